"""Who gives way where blocks or slots run short: running requests lose their KV, and wait to be
computed again."""

from loadstone.predict.scheduler.admission import Admission
from loadstone.predict.scheduler.blocks import PrefixCache
from loadstone.predict.scheduler.policy import EnginePolicy
from loadstone.predict.scheduler.running import Pool
from loadstone.predict.scheduler.sequence import Sequence


class Preemption(Admission):
    """The rules of a scheduler by which running requests give way."""

    def __init__(self, policy: EnginePolicy, pool: Pool, *, shared: bool, seed: int) -> None:
        super().__init__(policy, pool, shared=shared, seed=seed)
        self.preemptions = 0
        self.held_back = False  # whether anybody ever waited for blocks
        # A preemption kept those waiting out of this step, and only of this one.
        self._resume = False
        self._displaced: list[Sequence] = []

    def _awaits_preempted(self) -> bool:
        """Tell whether one that gave way waits, who stands in front where there are no
        priorities."""
        waiting = self.waiting
        if self._by_priority:
            return bool(self._displaced) or any(sequence.preempted for sequence in waiting)
        return bool(waiting) and waiting[0].preempted > 0

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
