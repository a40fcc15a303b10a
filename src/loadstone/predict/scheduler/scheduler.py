"""The decisions of an engine's scheduler between two steps. It never reads a clock: whoever drives
it says when a step is over, and how many steps went by where nothing but decode happened.

    scheduler.add(sequence)         a request arrives
    steps = scheduler.schedule()    decide the next step: `chunks` of prompts, and whether the
                                    decodes take part; without chunks, for how many steps the same
                                    decodes go on if nothing arrives
    scheduler.advance(steps)        the step, or some of those, are over: who wrote a first token,
                                    who ended

What it decides: whose prompts a step computes, who is let in, who gives way where blocks run short.
The account of what runs, and of its blocks, is in running.py.

A pipeline has as many schedulers as stages, with one queue, one cache and one set of slots
(`Pool`). vLLM V1, SGLang and TensorRT-LLM have one pool of blocks and one queue, and a batch under
way for each stage. What decodes stays with its batch, for it cannot be in two at once. Of a prompt
in chunks the next one goes with the next batch, while the one before is still on its way. (vLLM:
EngineCore.step_with_batch_queue; SGLang: event_loop_pp and its running_mbs; TensorRT-LLM:
PyExecutor._executor_loop_pp and its inflight_req_ids. Each of vLLM's virtual engines before 0.8 had
its part of the cache, RFC 11945: those are schedulers of their own.)
"""

from bisect import bisect_right
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from loadstone.core.errors import InputError
from loadstone.predict.scheduler.blocks import PrefixCache
from loadstone.predict.scheduler.policy import EnginePolicy
from loadstone.predict.scheduler.running import NO_CHUNKS, Pool, Running
from loadstone.predict.scheduler.sequence import Sequence
from loadstone.predict.scheduler.tiers import LowerTiers
from loadstone.predict.step_time.pictures import Picture

_order_of = attrgetter("order")
_QUEUE_FULL = "The request queue is full."
_HIGHER_CAME = "The request is aborted by a higher priority request."
_TOO_MANY = "busy: max_num_queued_reqs is reached"
_TOO_LONG = "busy: max_num_queued_tokens is reached"


class Refusal(NamedTuple):
    """A request that was turned away: by an HTTP status, or (`status` of an answer that has begun)
    by an event in the stream."""

    sequence: Sequence
    status: int
    reason: str


class Scheduler(Running):
    """One scheduler. After `schedule()`:

    chunks          the step's parts of prompts; none once it is over
    decoding        whether the running decodes take part
    decodes         how many they are
    context_tokens  what their attention reads in this step: KV tokens of all, the new ones included
    growth          what that grows by from one decode step to the next

    After `advance()`: `begun`, those whose prompt was completed and who wrote a token with it.
    `joined` has those who were let in with a cache that was computed elsewhere (`computed` =
    `target`), until its reader empties it. `tick` counts the steps in which decodes took part.
    `refused` has those who were turned away, until its reader empties it; `peers` are the
    schedulers of its server, which counts requests of them all together.
    """

    def __init__(
        self,
        policy: EnginePolicy,
        pool: Pool | None = None,
        *,
        shared: bool = False,
        seed: int = 0,
    ) -> None:
        """Make an idle scheduler: of an engine, or of one batch of a pipeline, whose `pool` it
        shares. `shared`: some requests ask for the same blocks (they have segments); `seed` is of
        speculation's luck."""
        super().__init__(policy, pool or Pool(), shared=shared, seed=seed)
        self.begun: list[Sequence] = []
        self.joined: list[Sequence] = []
        self.refused: list[Refusal] = []
        self.peers: list[Scheduler] = [self]
        self.decoding = False
        self.preemptions = 0
        self.cache_queries = self.cache_hits = 0  # prompt tokens looked for, and found
        self.prompt_tokens = self.written_tokens = (
            0  # of prompts that were computed, of answers that ended
        )
        self.held_back = False  # whether anybody ever waited for blocks
        self._budget = policy.max_batched_tokens
        self._chunked = policy.chunked
        self._decode_tokens = policy.decode_tokens
        self._by_priority = policy.priorities
        self._slots = policy.adapters
        self._passes = self._slots is None or self._slots.passes
        self._turns_away = policy.turns_away
        self._displaces = policy.priorities and policy.preempt_above is not None
        self._displaced: list[Sequence] = []
        self._encoder_tokens = policy.encoder_tokens or 1 << 62
        self._embeddings: dict[tuple[Sequence, int], Picture] = {}  # that its cache holds
        self.encoded: list[Picture] = []  # by the step that was scheduled
        self._arrived = 0
        self._beyond = (
            self._decode_tokens - 2
        )  # KV tokens beyond prompt and answer: guesses, less the last token
        self._sure = policy.keep_free >= 1 or not self._paged
        self._poll = policy.poll_steps
        self._unseen = 0  # of those waiting the last, for whom the engine has not looked yet
        self._missed = 0  # of these, who came before the step with prompts that is under way
        self._looked = 0  # the tick at which that ended
        self._gather = policy.gather_steps
        self._since: int | None = None  # the tick from which prompts have waited for company
        self._resume = (
            False  # a preemption kept those waiting out of this step, and only of this one
        )
        self._padding: list[
            Sequence
        ] = []  # of a static batch: those that ended, whose slots stay taken

    @property
    def _max_seqs(self) -> int:
        """Requests that may run in this batch, as those of a pipeline's others are."""
        policy = self.policy
        if not self._pipelined:
            return policy.max_seqs
        elsewhere = sum(len(batch.running) for batch in self._pool.batches) - len(self.running)
        return min(policy.max_seqs - elsewhere, policy.batch_seqs or policy.max_seqs)

    # --- asking -----------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return not self.running and not self.waiting

    @property
    def has_prompts(self) -> bool:
        """Prompts could be computed in the next step, as far as slots go."""
        if self._prefilling:
            return True
        return len(self.waiting) > self._unseen and len(self.running) < self._max_seqs

    @property
    def open(self) -> bool:
        """One more that arrives might get into the very next step, or be looked for before others
        end."""
        if self._poll or self._displaces:
            return True
        if self._static:
            return not self.running
        if self._gather:
            return len(self.running) + len(self.waiting) < self._max_seqs
        if self.tiers is not None or self._by_priority or self._slots is not None:
            return len(self.running) < self._max_seqs
        return not self.waiting and len(self.running) < self._max_seqs

    # --- a step -----------------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """A request arrives. Raises InputError where it would never fit."""
        tokens = sequence.prompt_tokens + sequence.output_tokens + self._beyond
        if self.policy.reserved_tokens is not None:
            tokens = max(tokens, self.policy.reserved_tokens)
        sequence.most_blocks = blocks = -(-tokens // self._block)
        if blocks > self._blocks:
            raise InputError(
                f"a request of {sequence.prompt_tokens} + {sequence.output_tokens} tokens does not"
                f" fit into the KV cache, which holds {self.policy.kv_tokens}; ask for less, or"
                " deploy on more memory"
            )
        self._arrived += 1
        sequence.order = (-sequence.priority, self._arrived)
        if self._turns_away and not self._is_admitted(sequence):
            return
        self._enqueue(sequence)
        if self._poll:
            self._unseen += 1

    def _is_admitted(self, sequence: Sequence) -> bool:
        """Tell whether the server takes a request that comes; if not, or if another has to go for
        it, `refused` has who was turned away."""
        policy, refused = self.policy, self.refused
        queues = {id(peer.waiting): peer.waiting for peer in self.peers}.values()
        if policy.max_under_way is not None:
            under_way = sum(map(len, queues)) + sum(len(peer.running) for peer in self.peers)
            if under_way >= policy.max_under_way:
                refused.append(Refusal(sequence, 503, _TOO_MANY))
                return False
        if policy.max_queued_tokens is not None:
            unbegun = [
                request.prompt_tokens
                for among in (*queues, *(peer.running for peer in self.peers))
                for request in among
                if not request.emitted and not request.end_tick
            ]
            if sum(unbegun) >= policy.max_queued_tokens:
                refused.append(Refusal(sequence, 503, _TOO_LONG))
                return False
        return self._has_queue_room(sequence)

    def _has_queue_room(self, sequence: Sequence) -> bool:
        """Tell whether the queue takes one more, the last of a lower priority leaving it where it
        is full (SGLang: Scheduler._abort_on_queued_limit)."""
        limit, waiting = self.policy.max_waiting, self.waiting
        if limit is None or len(waiting) < limit:
            return True
        last = waiting[-1]
        if not self._by_priority or sequence.priority <= last.priority:
            self.refused.append(Refusal(sequence, 200, _QUEUE_FULL))
            return False
        self.abort(last)
        self.refused.append(Refusal(last, 200, _HIGHER_CAME))
        return True

    def _enqueue(self, sequence: Sequence, *, first: bool = False) -> None:
        """Have a request wait: by its order where there are priorities, else behind all others, or
        `first`."""
        waiting = self.waiting
        if self._by_priority:
            waiting.insert(bisect_right(waiting, sequence.order, key=_order_of), sequence)
        elif first:
            waiting.appendleft(sequence)
        else:
            waiting.append(sequence)

    def schedule(self, hold: bool = False) -> int:
        """Decide the next step; returns how many like it follow one another, 1 with chunks, 0 where
        nothing runs.

        `hold`: prompts have to wait, as there are decodes.
        """
        if self.encoded or self._embeddings:
            self._release_embeddings()
        if not self.waiting and not self._prefilling and not self._tight:
            self.chunks = NO_CHUNKS
            self.decoding = decoding = self.decodes > 0
            return self._next_end - self.tick if decoding else 0
        self.chunks = []
        self._resume = False
        gathering = 0
        if self._unseen and (not self.decodes or not self._until_look()):
            self._unseen = 0
        if self._mixed:
            gathering = self._schedule_mixed(hold)
        else:
            self._schedule_apart(hold)
        if self.chunks:
            self._missed = self._unseen
            steps = 1
        elif self.decoding:
            steps = self._steps_unchanged()
            steps = min(steps, gathering) if gathering else steps
        else:
            return int(bool(self.paused))
        if self._pipelined and self.decoding:
            self._take_first_step()
        return steps

    def _schedule_mixed(self, hold: bool) -> int:
        """Decide a step of prompts and decodes; returns for how many steps prompts wait for
        company."""
        if self._tight and self.decodes:
            self._make_room()
        gathering = self._steps_to_gather() if self._gather else 0
        if (self.waiting or self._prefilling) and not hold and not gathering:
            self._fill(self._budget - self.decodes * self._decode_tokens)
        self.decoding = self.decodes > 0
        return gathering

    def _schedule_apart(self, hold: bool) -> None:
        """Decide a step of prompts or decodes, prompts first; of static batches when the one before
        has ended."""
        if self._static:
            if not self.running:
                self._fill(1 << 62)
        else:
            if not hold:
                self._fill(self._budget)
            if self._tight and self.decodes and not self.chunks:
                self._make_room()
        self.decoding = self.decodes > 0 and not self.chunks

    def _steps_to_gather(self) -> int:
        """Count the decode steps for which those waiting wait for company, at most; 0: they do not.

        While the first does not fit into the cache no step counts: TensorRT-LLM counts those in
        which a prompt that could be computed is held back (`_apply_batch_waiting`).
        """
        free_slots = self._max_seqs - len(self.running)
        if self.decodes and self.waiting and free_slots > 0 and not self._prefilling:
            if self.cache is not None:
                self._look_up(self.waiting[0])
            if self._has_room(self.waiting[0]):
                tokens = self.decodes * self._decode_tokens
                tokens += sum(sequence.target for sequence in islice(self.waiting, free_slots))
                if self._since is None:
                    self._since = self.tick
                left = self._gather - (self.tick - self._since)
                if left > 0 and tokens < self.policy.gather_tokens:
                    return left
        self._since = None
        return 0

    def _steps_unchanged(self) -> int:
        """Count the steps in a row in which the decodes of this one go on unchanged, if nothing
        arrives."""
        steps = self._next_end - self.tick
        if self._unseen:
            steps = min(steps, self._until_look())
        if self._resume:
            return 1
        if not self._tight:
            return steps
        if self._luck is not None:
            return 1
        free = self._blocks - self._pool.used_blocks
        phases, block, tick = self._phases, self._block, self.tick
        first = self._find_fitting(steps, free)
        if first is None and self.decodes * (steps // block + 1) <= free:
            return steps
        for step in range(steps):
            previous = free
            free -= phases[-(tick + step) % block]
            if free < 0:
                return max(1, step)
            if (
                first is not None
                and step
                and self._wanted(first, step) <= (free if self._mixed else previous)
            ):
                return step
        return steps

    def _find_fitting(self, steps: int, free: int) -> Sequence | None:
        """The first of those waiting, where it may be let in within so many decode steps though
        nobody ends.

        What is left free for the running shrinks with every token that they write; their blocks
        grow one by one.
        """
        if not self.policy.keep_free or not self.has_prompts or not self.waiting:
            return None
        used = self._used_adapters()
        first = next(
            (candidate for candidate in self.waiting if self._has_slot(candidate, used)), None
        )
        if first is None:
            return None
        if self._sure and self._pool.most_blocks + first.most_blocks > self._blocks:
            return None
        return first if self._wanted(first, steps) <= free else None

    def _until_look(self) -> int:
        """Decode steps until new requests are looked for; 0: now."""
        since = self.tick - self._looked
        return (-since) % self._poll if since else self._poll

    def advance(self, steps: int = 1) -> list[Sequence]:
        """The step is over, or `steps` of those that schedule() counted; who ended, in the order
        they began."""
        ended: list[Sequence] = []
        begun_at = self.tick
        if self.decoding:
            if self._tight:
                self._pool.used_blocks -= self._taken_blocks
                self._grow(steps)
            self.tick = tick = self.tick + steps
            self.context_tokens += steps * self.growth
            if tick == self._next_end:
                ended = self._ends.pop(tick)
                if self._static:
                    self._padding += ended
                else:
                    for sequence in ended:
                        self._stop_decoding(sequence)
                        self._leave(sequence)
                self._find_next_end()
                if self._padding and not self._ends:
                    self._clear_static()
        if self.paused:
            self._end_pause(self.tick - begun_at)
        self.begun = begun = []
        if self.chunks:
            for sequence, new, done in self.chunks:
                if done + new == sequence.target:
                    begun.append(sequence)
                    self._owed -= sequence.output_tokens - sequence.emitted
                    if not sequence.emitted:
                        self.prompt_tokens += sequence.prompt_tokens
                    if sequence.emitted + 1 == sequence.output_tokens:
                        ended.append(sequence)
                        self._leave(sequence)
                    else:
                        self._start_decoding(sequence)
            self.chunks = NO_CHUNKS
            self._looked = self.tick
            self._unseen -= self._missed
        for sequence in ended:
            self.written_tokens += sequence.output_tokens
        return ended

    def _clear_static(self) -> None:
        """Free the slots of a static batch: all of it have ended."""
        for sequence in self._padding:
            self._stop_decoding(sequence)
            self._leave(sequence)
        self._padding = []

    def abort(self, sequence: Sequence) -> None:
        """Its client has gone. Between steps only."""
        if sequence not in self.running:
            if sequence in list(self.waiting)[len(self.waiting) - self._unseen :]:
                self._unseen -= 1
            self.waiting.remove(sequence)
            if sequence.fetched:
                self._drop(sequence)
        elif sequence not in self._padding:
            self._stop_early(sequence)
            self._leave(sequence)

    # --- who is let in ----------------------------------------------------------------------------

    def _fill(self, budget: int) -> None:
        """Cut chunks for the step: of prompts under way first, then of those waiting, as far as
        they are let in."""
        chunks, pool = self.chunks, self._pool
        if self._pipelined and budget > 0:
            self._adopt_prompts()
        if self._prefilling:
            budget = self._go_on_with_prompts(budget)
        if self._resume:
            return
        if pool.cache is not None:
            pool.cache.shrink(self._free())  # the decodes of the step take their blocks first
        waiting, running, max_seqs = self.waiting, self.running, self._max_seqs
        tiers, used = self.tiers, self._used_adapters()
        aside: list[Sequence] = []
        full = False
        while len(waiting) > self._unseen and budget > 0:
            sequence = waiting[0]
            full = full or len(running) >= max_seqs
            has_slot = self._has_slot(sequence, used)
            if (full and not self._displaces) or not (has_slot or self._passes):
                break
            if not has_slot:
                aside.append(waiting.popleft())
                continue
            if full and not self._displace_for(sequence):
                break
            loaded = tiers is not None and sequence.fetched
            if pool.cache is not None and not loaded and sequence.computed < sequence.target:
                self._look_up(sequence)
            if tiers is not None and tiers.asynchronous and self._waits_for_load(tiers, sequence):
                aside.append(waiting.popleft())
                continue
            new = self._next_tokens(sequence, budget)
            if new is None:
                break
            if not self._let_in(sequence, new):
                if tiers is not None and not running and not aside and self._drop_fetched(sequence):
                    continue
                self.held_back = True
                break
            waiting.popleft()
            running[sequence] = None
            used.add(sequence.adapter)
            if sequence.preempted and not self._shares and not self._awaits_preempted():
                pool.cache = None  # nobody waits who could find anything again
            if not new:  # its cache was computed elsewhere
                self.joined.append(sequence)
                self._start_decoding(sequence)
                continue
            self._owed += sequence.output_tokens - sequence.emitted
            chunks.append((sequence, new, sequence.computed))
            if sequence.pictures:
                self._encode(sequence, new)
            sequence.computed += new
            budget -= new
            if sequence.computed < sequence.target:
                self._prefilling.append(sequence)
        if aside:
            waiting.extendleft(reversed(aside))
        for sequence in self._displaced:
            if self._has_queue_room(sequence):
                self._enqueue(sequence)
        self._displaced.clear()

    def _next_tokens(self, sequence: Sequence, budget: int) -> int | None:
        """Return how many tokens of one that waits a step computes; None: it waits on."""
        new = sequence.target - sequence.computed
        if new > budget:
            if self._chunked:
                new = budget
            elif self.chunks or budget < self._budget:
                # whole prompts: it waits for a step of its own, which is as long as it needs
                return None
        if sequence.pictures and new:
            return self._cut_for_pictures(sequence, new) or None
        return new

    @property
    def step_adapters(self) -> set[int]:
        """The adapters of the step that was scheduled; 0: of requests without one."""
        decoding = {s.adapter for s in self.running if s.end_tick} if self.decoding else set()
        return decoding | {sequence.adapter for sequence, _, _ in self.chunks}

    def _used_adapters(self) -> set[int]:
        """The adapters of what runs, where there are slots for them; else nothing is looked at."""
        return set() if self._slots is None else {sequence.adapter for sequence in self.running}

    def _has_slot(self, sequence: Sequence, used: set[int]) -> bool:
        """Tell whether a batch with these adapters has a slot for one more request (vLLM's
        Scheduler.schedule; SGLang's can_run_lora_batch)."""
        slots = self._slots
        if slots is None or sequence.adapter in used or not (sequence.adapter or slots.needs_base):
            return True
        return len(used) - (0 in used and not slots.needs_base) < slots.slots

    def _awaits_preempted(self) -> bool:
        """Tell whether one that gave way waits, who stands in front where there are no
        priorities."""
        waiting = self.waiting
        if self._by_priority:
            return bool(self._displaced) or any(sequence.preempted for sequence in waiting)
        return bool(waiting) and waiting[0].preempted > 0

    def _adopt_prompts(self) -> None:
        """Have prompts whose last chunks went with other batches go on with this one."""
        for sequence in self._prefilling:
            if sequence in self.running:
                continue
            for batch in self._pool.batches:
                if sequence in batch.running:
                    del batch.running[sequence]
                    batch._owed -= sequence.output_tokens - sequence.emitted
            self.running[sequence] = None
            self._owed += sequence.output_tokens - sequence.emitted

    def _go_on_with_prompts(self, budget: int) -> int:
        """Cut the next chunks of prompts under way; returns what is left of the budget."""
        for sequence in list(self._prefilling):
            new = min(sequence.target - sequence.computed, budget)
            if sequence.pictures and new > 0:
                new = self._cut_for_pictures(sequence, new)
            if (
                new <= 0
                or sequence not in self.running
                or (self._tight and not self._take_for(sequence, new))
            ):
                continue
            self.chunks.append((sequence, new, sequence.computed))
            if sequence.pictures:
                self._encode(sequence, new)
            sequence.computed += new
            budget -= new
            if sequence.computed == sequence.target:
                self._prefilling.remove(sequence)
        return budget

    def _unencoded(self, sequence: Sequence, new: int) -> list[Picture]:
        """List the pictures among the next tokens of a prompt that are not in the cache of
        embeddings."""
        start, end = sequence.computed, sequence.computed + new
        return [
            picture
            for picture in sequence.pictures
            if picture.start < end
            and picture.end > start
            and (sequence, picture.start) not in self._embeddings
        ]

    def _cut_for_pictures(self, sequence: Sequence, new: int) -> int:
        """Return how many of the next tokens of a prompt the step computes: up to a picture that
        its tower, or the cache of embeddings, has no room for (vLLM's
        Scheduler._try_schedule_encoder_inputs)."""
        start, end = sequence.computed, sequence.computed + new
        if self.policy.whole_pictures and self._chunked:
            for picture in sequence.pictures:
                if picture.start < end < picture.end and picture.end - picture.start < self._budget:
                    end = max(start, picture.start)
        made = sum(picture.embeddings for picture in self.encoded)
        held = sum(picture.embeddings for picture in self._embeddings.values())
        for picture in self._unencoded(sequence, end - start):
            made, held = made + picture.embeddings, held + picture.embeddings
            if max(made, held) > self._encoder_tokens:
                return max(0, picture.start - start)
        return end - start

    def _encode(self, sequence: Sequence, new: int) -> None:
        """Have the step encode the pictures among the next tokens of a prompt."""
        for picture in self._unencoded(sequence, new):
            self.encoded.append(picture)
            self._embeddings[sequence, picture.start] = picture

    def _release_embeddings(self) -> None:
        """Free the embeddings that the steps so far have read."""
        self.encoded = []
        self._embeddings = {
            (sequence, start): picture
            for (sequence, start), picture in self._embeddings.items()
            if sequence in self.running and sequence.computed < picture.end
        }

    def _look_up(self, sequence: Sequence) -> None:
        """Find what the prefix cache has of a prompt: its first full blocks, but for the last
        token, which is computed; and what lower tiers have, where the step itself loads it."""
        cache, tiers = self._pool.cache, self.tiers
        assert cache is not None  # noqa: S101
        limit = (sequence.target - 1) // self._block
        shared = min(limit, sequence.shared_blocks)
        hits = cache.match(sequence.segments, shared) if shared else 0
        if sequence.preempted and hits == shared:
            hits = min(limit, hits + cache.own_blocks_left(sequence))
        if tiers is not None and not tiers.asynchronous:
            sequence.found = tiers.find(sequence, hits, limit)
            hits = sequence.found[-1]
        sequence.computed = hits * self._block

    def cached_blocks(self, sequence: Sequence) -> int:
        """Count the blocks of a request, from the first on, that the KV cache or a tier below it
        has."""
        caches = [] if self.cache is None else [self.cache]
        caches += [] if self.tiers is None else self.tiers.levels
        return max(
            (cache.match(sequence.segments, sequence.shared_blocks) for cache in caches), default=0
        )

    def _waits_for_load(self, tiers: LowerTiers, sequence: Sequence) -> bool:
        """Tell whether a request waits beside the queue for blocks of a lower tier, where it does
        not run meanwhile; its load may begin here (vLLM's Scheduler.schedule and
        get_num_new_matched_tokens)."""
        if tiers.is_loading(sequence):
            return True
        if sequence.fetched:
            return False
        limit = sequence.target // self._block
        hits = sequence.computed // self._block
        found = tiers.find(sequence, hits, limit)
        if tiers.are_on_their_way(sequence, found[-1]):
            return True
        if found[-1] <= hits or not self._has_room(sequence):
            return False
        self._hold(sequence, (found[-1] - hits) * self._block)
        sequence.computed = min(found[-1] * self._block, sequence.target - 1)
        sequence.fetched = True
        tiers.begin_load(sequence, found)
        return True

    def _drop_fetched(self, first: Sequence) -> bool:
        """Nothing runs, and the first of the queue lacks what those behind it had loaded: they give
        it back. False: they have nothing."""
        dropped = False
        for sequence in self.waiting:
            if sequence.fetched and sequence is not first:
                self._drop(sequence)
                dropped = True
        return dropped

    def _drop(self, sequence: Sequence) -> None:
        assert self.tiers is not None  # noqa: S101
        self._give_back(sequence, False)
        self.tiers.forget(sequence)
        sequence.fetched, sequence.computed = False, 0

    def _let_in(self, sequence: Sequence, new: int) -> bool:
        """Tell whether it may run; if so, its blocks are taken."""
        if not self._has_room(sequence):
            return False
        if self._tight:
            tiers = self.tiers
            if tiers is not None and sequence.found:
                tiers.load_in_step(sequence.found)
            self._hold(sequence, new)
            if tiers is not None:
                sequence.fetched = False
            if self._shares and not sequence.preempted:
                sequence.cached_tokens = sequence.computed
                self.cache_queries += sequence.prompt_tokens
                self.cache_hits += sequence.computed
        self._pool.most_blocks += sequence.most_blocks
        return True

    def _has_room(self, sequence: Sequence) -> bool:
        """The admission rule; see EnginePolicy.keep_free."""
        if self._pool.most_blocks + sequence.most_blocks > self._blocks:
            if self._sure:
                return False
            if not self._tight:
                self._count()
        return not self._tight or self._wanted(sequence) <= self._free()

    def _wanted(self, sequence: Sequence, steps: int = 0) -> int:
        """Blocks that have to be free for it, after so many more decode steps."""
        wanted = self.blocks_for(sequence.target)
        if self.policy.keep_free > 0:
            left = self._left() - steps * self.decodes
            wanted = sequence.most_blocks + self.blocks_for(left * self.policy.keep_free)
        if self.tiers is not None and sequence.fetched:
            return wanted - self.blocks_for(sequence.computed)
        cache = self._pool.cache
        if cache is not None:
            hits = min(sequence.computed // self._block, sequence.shared_blocks)
            wanted -= hits - cache.unused(sequence.segments, hits)
        return wanted

    # --- who gives way ----------------------------------------------------------------------------

    def _take_for(self, sequence: Sequence, new: int) -> bool:
        """Blocks for the next chunk of a prompt under way, the newest others giving way; False: it
        had to itself."""
        wanted = self.blocks_for(sequence.computed + new) - self.blocks_for(sequence.computed)
        while wanted > self._free():
            self._resume = True
            if self._preempt_newest() is sequence:
                return False
        self._hold(sequence, new)
        return True

    def _make_room(self) -> None:
        """Preempt the newest until the next decode step finds its blocks."""
        if self._by_priority and self._mixed:
            self._make_room_in_order()
            return
        while self.decodes and self._needed() > self._blocks - self._pool.used_blocks:
            self._preempt_newest()
            self._resume = True

    def _make_room_in_order(self) -> None:
        """Have the decodes take their blocks, in the order in which they were let in; those of the
        lowest priority give way. One that lacks a block and is itself the last in order ends the
        step for all that were let in behind it (vLLM: Scheduler.schedule)."""
        decodes = [sequence for sequence in self.running if sequence.end_tick]
        served: set[Sequence] = set()
        for place, sequence in enumerate(decodes):
            tokens = sequence.base + (self.tick + 1) * sequence.growth
            if sequence not in self.running or self.blocks_for(tokens) == self._blocks_of(sequence):
                continue
            while len(served) >= self._blocks - self._pool.used_blocks:
                self._resume = True
                last = self._preempt_newest()
                served.discard(last)
                if last is sequence:
                    for behind in decodes[place + 1 :]:
                        if behind in self.running:
                            self._pause(behind)
                    return
            served.add(sequence)

    def _preempt_newest(self) -> Sequence:
        """The newest, of the lowest priority, loses its KV and waits to be computed again: in front
        of all others, of its own priority. SGLang looks at no priority there."""
        sequence = next(reversed(self.running))
        if self._by_priority and self._mixed:
            sequence = max(self.running, key=lambda running: running.order)
        self._preempt(sequence)
        self._enqueue(sequence, first=True)
        return sequence

    def _displace_for(self, sequence: Sequence) -> bool:
        """Tell whether running requests gave way to one that waits, for whom there is no slot:
        those of the lowest priority and the newest first, until there is room for it by what they
        have still to write (SGLang: PrefillAdder.preempt_to_schedule)."""
        policy, lacking = self.policy, self._lacking_tokens(sequence)
        assert policy.preempt_above is not None  # noqa: S101
        bound = sequence.priority - policy.preempt_above
        lower = [
            running for running in self.running if running.end_tick and running.priority < bound
        ]
        lower.sort(key=lambda running: running.order, reverse=True)
        count = 0
        for running in lower:
            count += 1
            lacking -= (running.output_tokens - self.written_by(running)) * policy.keep_free
            if lacking <= 0:
                break
        if lower and lacking > 0:
            self._resume = True  # what is lacking changes with each step
            return False
        if lower and not self._tight:
            self._count()  # so that the cache gets what they leave
        for running in lower[:count]:
            self._preempt(running)
            self._displaced.append(running)
        return count > 0

    def _lacking_tokens(self, sequence: Sequence) -> float:
        """Count the tokens of the cache that a request lacks to be let in."""
        beyond = self._pool.most_blocks + sequence.most_blocks - self._blocks
        if beyond > 0 and not self._sure:
            if not self._tight:
                self._count()
            beyond = self._wanted(sequence) - self._free()
        return beyond * self._block

    def _preempt(self, sequence: Sequence) -> None:
        """It loses its KV."""
        self.preemptions += 1
        self.held_back = True
        sequence.preempted += 1
        emitted = self.written_by(sequence)
        self._stop_early(sequence)
        if self.cache is None and self.policy.prefix_cache and self._paged:
            # For what those that give way will find again of their own.
            self._pool.cache = PrefixCache()
        self._leave(sequence, preempted=True)
        sequence.emitted = emitted = max(0, emitted)
        sequence.target = sequence.prompt_tokens + emitted
        sequence.computed = sequence.end_tick = 0
        sequence.gains = None


def batches_of(policy: EnginePolicy, *, shared: bool = False, seed: int = 0) -> list[Scheduler]:
    """The schedulers of one engine of this policy: one, or as many as batches are under way in its
    pipeline."""
    pool = Pool()
    return [Scheduler(policy, pool, shared=shared, seed=seed) for _ in range(policy.pipeline)]
