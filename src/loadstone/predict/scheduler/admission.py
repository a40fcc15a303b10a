"""Who of those that wait is let in: whether slots and blocks are left for one, and what the prefix
cache and the tiers below it have of its prompt."""

from loadstone.predict.scheduler.policy import EnginePolicy
from loadstone.predict.scheduler.queue import Queue
from loadstone.predict.scheduler.running import Pool
from loadstone.predict.scheduler.sequence import Sequence
from loadstone.predict.scheduler.tiers import LowerTiers


class Admission(Queue):
    """The rules of admission of a scheduler."""

    def __init__(self, policy: EnginePolicy, pool: Pool, *, shared: bool, seed: int) -> None:
        super().__init__(policy, pool, shared=shared, seed=seed)
        self.cache_queries = self.cache_hits = 0  # prompt tokens looked for, and found
        self._slots = policy.adapters
        self._sure = policy.keep_free >= 1 or not self._paged

    @property
    def _max_seqs(self) -> int:
        """Requests that may run in this batch, as those of a pipeline's others are."""
        policy = self.policy
        if not self._pipelined:
            return policy.max_seqs
        elsewhere = sum(len(batch.running) for batch in self._pool.batches) - len(self.running)
        return min(policy.max_seqs - elsewhere, policy.batch_seqs or policy.max_seqs)

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
