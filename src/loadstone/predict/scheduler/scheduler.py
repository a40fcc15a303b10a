"""The decisions of an engine's scheduler between two steps. It never reads a clock: whoever drives
it says when a step is over, and how many steps went by where nothing but decode happened.

    scheduler.add(sequence)         a request arrives
    steps = scheduler.schedule()    decide the next step: `chunks` of prompts, and whether the
                                    decodes take part; without chunks, for how many steps the same
                                    decodes go on if nothing arrives
    scheduler.advance(steps)        the step, or some of those, are over: who wrote a first token,
                                    who ended

What it decides: whose prompts a step computes. Whom it takes, whom it lets in and who gives way are
in queue.py, admission.py and preemption.py; the account of what runs, and of its blocks, in
running.py. Each is the base of the next, for every look from one object into another would cost in
loops that run a million times.

A pipeline has as many schedulers as stages, with one queue, one cache and one set of slots
(`Pool`). vLLM V1, SGLang and TensorRT-LLM have one pool of blocks and one queue, and a batch under
way for each stage. What decodes stays with its batch, for it cannot be in two at once. Of a prompt
in chunks the next one goes with the next batch, while the one before is still on its way. (vLLM:
EngineCore.step_with_batch_queue; SGLang: event_loop_pp and its running_mbs; TensorRT-LLM:
PyExecutor._executor_loop_pp and its inflight_req_ids. Each of vLLM's virtual engines before 0.8 had
its part of the cache, RFC 11945: those are schedulers of their own.)
"""

from itertools import islice

from loadstone.predict.scheduler.encoder_cache import EncoderCache
from loadstone.predict.scheduler.policy import EnginePolicy
from loadstone.predict.scheduler.preemption import Preemption
from loadstone.predict.scheduler.running import NO_CHUNKS, Pool
from loadstone.predict.scheduler.sequence import Sequence


class Scheduler(Preemption):
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
        self.decoding = False
        # Of prompts that were computed, of answers that ended.
        self.prompt_tokens = self.written_tokens = 0
        self._budget = policy.max_batched_tokens
        self._chunked = policy.chunked
        self._decode_tokens = policy.decode_tokens
        self._passes = self._slots is None or self._slots.passes
        self._displaces = policy.priorities and policy.preempt_above is not None
        self.encoder = EncoderCache(policy)
        self._missed = 0  # of these, who came before the step with prompts that is under way
        self._looked = 0  # the tick at which that ended
        self._gather = policy.gather_steps
        self._since: int | None = None  # the tick from which prompts have waited for company

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

    def schedule(self, hold: bool = False) -> int:
        """Decide the next step; returns how many like it follow one another, 1 with chunks, 0 where
        nothing runs.

        `hold`: prompts have to wait, as there are decodes.
        """
        if self.encoder.is_used:
            self.encoder.release(self.running)
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
                self.encoder.encode(sequence, new)
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
            return self.encoder.cut(sequence, new) or None
        return new

    @property
    def step_adapters(self) -> set[int]:
        """The adapters of the step that was scheduled; 0: of requests without one."""
        decoding = {s.adapter for s in self.running if s.end_tick} if self.decoding else set()
        return decoding | {sequence.adapter for sequence, _, _ in self.chunks}

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
                new = self.encoder.cut(sequence, new)
            if (
                new <= 0
                or sequence not in self.running
                or (self._tight and not self._take_for(sequence, new))
            ):
                continue
            self.chunks.append((sequence, new, sequence.computed))
            if sequence.pictures:
                self.encoder.encode(sequence, new)
            sequence.computed += new
            budget -= new
            if sequence.computed == sequence.target:
                self._prefilling.remove(sequence)
        return budget


def batches_of(policy: EnginePolicy, *, shared: bool = False, seed: int = 0) -> list[Scheduler]:
    """The schedulers of one engine of this policy: one, or as many as batches are under way in its
    pipeline."""
    pool = Pool()
    return [Scheduler(policy, pool, shared=shared, seed=seed) for _ in range(policy.pipeline)]
