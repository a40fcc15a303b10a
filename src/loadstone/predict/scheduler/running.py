"""The account of what runs in a scheduler: who decodes, which step ends each, and the KV blocks
that they hold.

Here is only the account of it; scheduler.py decides.

Blocks are counted exactly. While all that runs could come to hold fits into the cache at once, no
step can want for a block, and nothing needs counting; `_tight` says when that is no longer so.
"""

from collections import deque

import numpy as np

from loadstone.predict.scheduler.blocks import PrefixCache
from loadstone.predict.scheduler.policy import EnginePolicy, Speculative
from loadstone.predict.scheduler.sequence import Sequence
from loadstone.predict.scheduler.tiers import LowerTiers


def gains(speculative: Speculative, seed: int, row: int, written: int, left: int) -> list[int]:
    """Draw how many tokens are written after each step until `left` of them are, for a request that
    has written some already. The last step may give more."""
    luck = np.random.default_rng([seed, row, written]).random((left, speculative.draft_tokens))
    # A guess counts where all before it did; each step writes one token besides.
    gained = 1 + np.cumprod(luck < speculative.acceptance, axis=1).sum(axis=1)
    total = np.cumsum(gained)
    steps = int(np.searchsorted(total, left)) + 1
    written_by_step: list[int] = total[:steps].tolist()
    return written_by_step


Chunk = tuple[Sequence, int, int]
"""A part of a prompt that a step computes: of whom, new tokens, tokens before them in the cache."""
NO_CHUNKS: list[Chunk] = []
_FEW = 32
"""Ends that are compared with one another; of more, the next one is near."""


class Pool:
    """The queue, the cache and the slots of one engine, which the batches of a pipeline share.

    waiting       in the order of their arrival
    prefilling    whose prompts are computed in part
    cache         the blocks that requests share; None where they do not
    most_blocks   that all running may come to hold
    used_blocks   in use; known while blocks are counted
    batches       of a pipeline; none of an engine without
    """

    def __init__(self) -> None:
        self.waiting: deque[Sequence] = deque()
        self.prefilling: list[Sequence] = []
        self.cache: PrefixCache | None = None
        self.most_blocks = 0
        self.used_blocks = 0
        self.batches: list[Running] = []


class Running:
    """The state of what runs; Scheduler has the meaning of the public ones."""

    def __init__(self, policy: EnginePolicy, pool: Pool, *, shared: bool, seed: int) -> None:
        self.policy = policy
        self._pool = pool
        self.waiting, self._prefilling = pool.waiting, pool.prefilling
        self.running: dict[Sequence, None] = {}  # in the order they were let in
        self.chunks: list[Chunk] = []
        self.decodes = 0
        self.context_tokens: float = 0
        self.growth: float = 0
        self.tick = 0
        self._static = policy.order == "static"
        self._mixed = policy.order == "mixed"
        self._luck = policy.speculative
        self._seed = seed
        self._owed = 0  # tokens still to be written by those that run but do not decode yet
        self._ends: dict[int, list[Sequence]] = {}  # decodes by the tick that ends them
        self._next_end = 0  # the first such tick
        self.paused: list[Sequence] = []
        """Those that decode, and take no part in the step that is scheduled."""
        self._end_ticks = 0  # sum over those that decode
        self._block = policy.block_tokens
        self._blocks = policy.kv_blocks
        self._paged = policy.reserved_tokens is None and not self._static
        self._shares = shared and policy.prefix_cache and self._paged
        if self._shares and pool.cache is None:
            pool.cache = PrefixCache()
        self.tiers = (
            LowerTiers(policy.tiers, policy) if self._shares and policy.tiers is not None else None
        )
        # The batches of a pipeline count blocks whether there are enough or not.
        self._pipelined = policy.pipeline > 1
        if self._pipelined:
            pool.batches.append(self)
        self._tight = pool.cache is not None or self._pipelined
        self._taken_blocks = 0  # of a pipeline's step under way, which decodes took beforehand
        # Decodes by what is left of `base` over whole blocks; known while tight.
        self._phases = [0] * self._block

    @property
    def cache(self) -> PrefixCache | None:
        """The blocks that requests share; None where they do not."""
        return self._pool.cache

    # --- who decodes ------------------------------------------------------------------------------

    def written_by(self, sequence: Sequence, steps: int = 0) -> int:
        """Tokens it has written; `steps` more decode steps may be over of which advance() was not
        told yet."""
        if not sequence.end_tick:
            return sequence.emitted
        left = max(0, sequence.end_tick - self.tick - steps)
        if sequence.gains is not None:
            done = len(sequence.gains) - left
            gained = sequence.gains[done - 1] if done else 0
            return min(sequence.output_tokens, sequence.emitted + 1 + gained)
        return sequence.output_tokens - left

    def accepted_by(self, sequence: Sequence) -> int | None:
        """Count the guesses that its last step accepted; None where it guessed nothing."""
        gains = sequence.gains or ()
        done = len(gains) - (sequence.end_tick - self.tick)
        if done < (2 if sequence.emitted < 0 else 1):
            return None
        return gains[done - 1] - (gains[done - 2] if done > 1 else 0) - 1

    def _left(self) -> int:
        """Tokens that all that run have still to write."""
        if self._luck is not None or self._static:
            return sum(s.output_tokens - self.written_by(s) for s in self.running)
        return self._owed + self._end_ticks - self.decodes * self.tick

    def _start_decoding(self, sequence: Sequence) -> None:
        tick = self.tick
        left = sequence.output_tokens - sequence.emitted - 1
        if self._luck is not None:
            if sequence.emitted < 0:  # nothing is guessed before its first token
                guessed = (
                    gains(self._luck, self._seed, sequence.row, 0, left - 1) if left > 1 else []
                )
                sequence.gains = steps = [1, *(1 + written for written in guessed)]
            else:
                sequence.gains = steps = gains(
                    self._luck, self._seed, sequence.row, sequence.emitted, left
                )
            sequence.growth = left / len(steps)
            left = len(steps)
            sequence.base = sequence.target - tick * sequence.growth
        else:
            sequence.base = sequence.target - tick
        sequence.end_tick = tick + left
        self._join(sequence, sequence.target)

    def _join(self, sequence: Sequence, tokens: float) -> None:
        """Count a sequence among those that decode, with so many tokens in the KV cache."""
        end, ends = sequence.end_tick, self._ends
        self._end_ticks += end
        if end in ends:
            ends[end].append(sequence)
        else:
            if end < self._next_end or not ends:
                self._next_end = end
            ends[end] = [sequence]
        self.decodes += 1
        self.growth += sequence.growth
        self.context_tokens += tokens + 1
        if self._tight:
            self._phases[int(sequence.base) % self._block] += 1

    def _pause(self, sequence: Sequence) -> None:
        """It decodes, and takes no part in the next step."""
        self._drop_end(sequence)
        self._stop_decoding(sequence)
        self.paused.append(sequence)

    def _end_pause(self, steps: int) -> None:
        """So many steps are over without those that paused, which go on."""
        for sequence in self.paused:
            sequence.base -= steps * sequence.growth
            sequence.end_tick += steps
            self._join(sequence, sequence.base + self.tick * sequence.growth)
        self.paused = []

    def _stop_decoding(self, sequence: Sequence) -> None:
        self.decodes -= 1
        self._end_ticks -= sequence.end_tick
        if self.decodes:
            self.growth -= sequence.growth
            self.context_tokens -= sequence.base + self.tick * sequence.growth + 1
        else:
            # Of fractions that were added and taken away, nothing is left.
            self.growth = self.context_tokens = 0
        if self._tight:
            self._phases[int(sequence.base) % self._block] -= 1

    def _stop_early(self, sequence: Sequence) -> None:
        """It ends before its last token, and still has its blocks."""
        if sequence.end_tick:
            self._drop_end(sequence)
            self._stop_decoding(sequence)
        else:
            self._owed -= sequence.output_tokens - sequence.emitted
        if sequence in self._prefilling:
            self._prefilling.remove(sequence)

    def _drop_end(self, sequence: Sequence) -> None:
        """It will not end then."""
        due = self._ends[sequence.end_tick]
        due.remove(sequence)
        if not due:
            del self._ends[sequence.end_tick]
            self._find_next_end()

    def _find_next_end(self) -> None:
        # Nearly every tick ends something where many decode: looking from tick to tick costs less
        # than a heap.
        ends = self._ends
        if len(ends) < _FEW:
            self._next_end = min(ends, default=0)
        else:
            tick = self.tick + 1
            while tick not in ends:
                tick += 1
            self._next_end = tick

    # --- blocks -----------------------------------------------------------------------------------

    def blocks_for(self, tokens: float) -> int:
        """Blocks that hold so many tokens."""
        return -int(-tokens // self._block)

    def used_blocks(self) -> int:
        """Blocks in use, those of a prefix cache that nobody uses left out."""
        if self.policy.reserved_tokens is not None:
            return self._pool.most_blocks
        return self._pool.used_blocks if self._tight else self._recount()

    def growth_blocks(self, steps: int) -> int:
        """Blocks that so many decode steps bring into use, of which advance() was not told yet."""
        if self.policy.reserved_tokens is not None:
            return 0
        tick = self.tick + steps
        if self._pipelined:
            tick += 1  # the step under way has its blocks
        grown = sum(
            self.blocks_for(s.base + min(tick, s.end_tick) * s.growth) - self._blocks_of(s)
            for s in self.running
            if s.end_tick
        )
        return grown - self._taken_blocks

    def _leave(self, sequence: Sequence, preempted: bool = False) -> None:
        """It no longer runs, and gives its blocks back."""
        pool = self._pool
        del self.running[sequence]
        pool.most_blocks -= sequence.most_blocks
        if self._tight:
            self._give_back(sequence, preempted)
            if pool.cache is None and pool.most_blocks <= self._blocks and not self._pipelined:
                self._tight = False

    # --- blocks, where they may run short ---------------------------------------------------------

    def _tokens_of(self, sequence: Sequence) -> float:
        """Tokens of a running sequence that are in the KV cache."""
        if not sequence.end_tick:
            return sequence.computed
        # One that ended but keeps its slot in a static batch grows no more.
        return sequence.base + min(self.tick, sequence.end_tick) * sequence.growth

    def _blocks_of(self, sequence: Sequence) -> int:
        """Blocks that a running sequence holds."""
        return self.blocks_for(self._tokens_of(sequence))

    def _recount(self) -> int:
        """Blocks in use, those of the step's chunks included."""
        return sum(map(self._blocks_of, self.running))

    def _count(self) -> None:
        """From now on blocks are counted."""
        self._tight = True
        self._pool.used_blocks = self._recount()
        self._phases = [0] * self._block
        for sequence in self.running:
            if sequence.end_tick:
                self._phases[int(sequence.base) % self._block] += 1

    def _free(self) -> int:
        """Blocks that prompts may take: those in nobody's use, less what the decodes of the same
        step will need."""
        free = self._blocks - self._pool.used_blocks
        return free - self._needed() if self._mixed and self.decodes else free

    def _needed(self) -> int:
        """Blocks that the next decode step takes."""
        if self._luck is not None:
            return sum(
                self.blocks_for(s.base + (self.tick + 1) * s.growth) - self._blocks_of(s)
                for s in self.running
                if s.end_tick
            )
        return self._phases[-self.tick % self._block]

    def _hold(self, sequence: Sequence, new: int) -> None:
        """Take the blocks of `new` more tokens of its prompt."""
        computed = sequence.computed + new
        pool, cache = self._pool, self._pool.cache
        goes_on = sequence in self.running or (self.tiers is not None and sequence.fetched)
        if cache is not None and not goes_on:
            cache.take_own(sequence)
        if cache is None or not sequence.shared_blocks:
            pool.used_blocks += self.blocks_for(computed)
            if goes_on:
                pool.used_blocks -= self.blocks_for(sequence.computed)
        else:
            full = min(computed // self._block, sequence.shared_blocks)
            shared = cache.take(sequence.segments, sequence.held, full)
            unshared = self.blocks_for(computed) - full
            if goes_on:
                unshared -= self.blocks_for(sequence.computed) - sequence.held
            pool.used_blocks += shared + unshared
            sequence.held = full
        if cache is not None:
            cache.shrink(self._free())

    def _take_first_step(self) -> None:
        """Take the blocks of the step that a pipeline has scheduled: the next batch is scheduled
        before this one's step is over."""
        used = self._pool.used_blocks
        self._grow(1)
        self._taken_blocks = self._pool.used_blocks - used

    def _grow(self, steps: int) -> None:
        """Take the blocks of so many decode steps."""
        pool = self._pool
        if self._luck is not None:
            pool.used_blocks += self._needed()
        else:
            phases, block, tick = self._phases, self._block, self.tick
            rounds, steps_left = divmod(steps, block)
            pool.used_blocks += rounds * self.decodes + sum(
                phases[-(tick + step) % block] for step in range(steps_left)
            )
        if pool.cache is not None:
            pool.cache.shrink(self._blocks - pool.used_blocks)

    def _give_back(self, sequence: Sequence, preempted: bool) -> None:
        blocks = self._blocks_of(sequence)
        pool, cache = self._pool, self._pool.cache
        if cache is None:
            pool.used_blocks -= blocks
            return
        held = sequence.held
        # What it wrote may be asked for too: later turns of its session begin with it.
        full = int(self._tokens_of(sequence)) // self._block
        if preempted and self.policy.order == "prefill-first":
            # SGLang frees the answers of those it retracts.
            full = min(full, sequence.prompt_tokens // self._block)
        shared = min(full, sequence.shared_blocks)
        if shared > held:
            pool.used_blocks += cache.take(sequence.segments, held, shared) - (shared - held)
            held = shared
        unshared, own_full = blocks - held, max(0, full - held)
        owner = sequence if preempted else None
        pool.used_blocks -= unshared + cache.give_back(sequence.segments, held, own_full, owner)
        sequence.held = 0
        if self.tiers is not None:
            self.tiers.keep(sequence, held, own_full, owner)
        cache.shrink(self._blocks - pool.used_blocks)
