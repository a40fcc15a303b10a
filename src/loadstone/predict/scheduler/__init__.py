"""An engine's scheduler: queues, paged KV blocks, chunked prefill, preemption, prefix cache. No
clock."""

from loadstone.predict.scheduler.policy import EnginePolicy, Speculative, policy_of
from loadstone.predict.scheduler.scheduler import Scheduler, batches_of
from loadstone.predict.scheduler.sequence import Sequence

__all__ = ["EnginePolicy", "Scheduler", "Sequence", "Speculative", "batches_of", "policy_of"]
