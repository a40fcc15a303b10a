"""The batches of a pipeline: as many schedulers as it has stages, with one queue, one cache and one set of places.

vLLM V1, SGLang and TensorRT-LLM have one pool of blocks and one queue, and a batch under way for each stage. What
decodes stays with its batch, for it cannot be in two at once. Of a prompt in chunks the next one goes with the next
batch, while the one before is still on its way. (vLLM: EngineCore.step_with_batch_queue; SGLang: event_loop_pp and
its running_mbs; TensorRT-LLM: PyExecutor._executor_loop_pp and its inflight_req_ids. Each of vLLM's virtual engines
before 0.8 had its part of the cache, RFC 11945: those are schedulers of their own.)

Blocks are counted always, and those of a step are taken when it is scheduled, so that no other batch counts on them.
Who finds none preempts the newest of its own batch.
"""

from __future__ import annotations

from collections import deque

from loadstone.predict.scheduler.blocks import PrefixCache
from loadstone.predict.scheduler.policy import EnginePolicy
from loadstone.predict.scheduler.scheduler import Scheduler
from loadstone.predict.scheduler.sequence import Sequence


class Pool:
    """What the batches share."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.waiting: deque[Sequence] = deque()
        self.prefilling: list[Sequence] = []
        self.cache: PrefixCache | None = None
        self.most_blocks = 0
        self.used_blocks = 0


class Batch(Scheduler):
    """One batch under way: a scheduler for what runs in it."""

    def __init__(self, pool: Pool, policy: EnginePolicy, *, shared: bool = False, seed: int = 0) -> None:
        self._pool = pool
        self._taken = 0  # blocks, for the step under way
        super().__init__(policy, shared=shared, seed=seed)
        pool.batches.append(self)
        self.waiting = pool.waiting
        self._prefilling = pool.prefilling

    # What the account of one scheduler keeps in fields.

    @property
    def _most(self) -> int:
        return self._pool.most_blocks

    @_most.setter
    def _most(self, blocks: int) -> None:
        self._pool.most_blocks = blocks

    @property
    def _used(self) -> int:
        return self._pool.used_blocks

    @_used.setter
    def _used(self, blocks: int) -> None:
        self._pool.used_blocks = blocks

    @property
    def _cache(self) -> PrefixCache | None:
        return self._pool.cache

    @_cache.setter
    def _cache(self, cache: PrefixCache | None) -> None:
        self._pool.cache = cache

    @property
    def _tight(self) -> bool:
        return True

    @_tight.setter
    def _tight(self, tight: bool) -> None:
        """Blocks are counted whether there are enough or not."""

    @property
    def _max_seqs(self) -> int:
        """That may run in this batch, as the others are."""
        here = len(self.running)
        free = self.policy.max_seqs - sum(len(batch.running) for batch in self._pool.batches)
        return min(here + free, self.policy.batch_seqs or self.policy.max_seqs)

    @_max_seqs.setter
    def _max_seqs(self, seqs: int) -> None:
        """It follows from the policy and the others."""

    # Where it differs.

    def schedule(self, hold: bool = False) -> int:
        steps = super().schedule(hold)
        if self.decoding:
            before = self._used
            super()._grow(1)
            self._taken = self._used - before
        return steps

    def growth_blocks(self, steps: int) -> int:
        return super().growth_blocks(steps + 1) - self._taken  # the step under way has its blocks

    def _grow(self, steps: int) -> None:
        """The blocks of the first step were taken when it was scheduled."""
        self._used -= self._taken
        super()._grow(steps)

    def _fill(self, budget: int) -> None:
        if budget > 0:
            for sequence in self._prefilling:
                if sequence not in self.running:
                    self._adopt(sequence)
        super()._fill(budget)

    def _adopt(self, sequence: Sequence) -> None:
        """A prompt whose last chunk went with another batch goes on with this one."""
        owed = sequence.output_tokens - sequence.emitted
        for batch in self._pool.batches:
            if sequence in batch.running:
                del batch.running[sequence]
                batch._owed -= owed
        self.running[sequence] = None
        self._owed += owed


def batches_of(policy: EnginePolicy, *, shared: bool = False, seed: int = 0) -> list[Scheduler]:
    """The schedulers of one engine of this policy: one, or as many as batches are under way in its pipeline."""
    if policy.pipeline == 1:
        return [Scheduler(policy, shared=shared, seed=seed)]
    pool = Pool()
    return [Batch(pool, policy, shared=shared, seed=seed) for _ in range(policy.pipeline)]
