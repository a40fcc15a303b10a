"""What an engine's scheduler does: queues, paged KV blocks, chunked prefill, preemption, prefix cache. No clock."""

from loadstone.predict.scheduler.defaults import policy_of
from loadstone.predict.scheduler.pipeline import batches_of
from loadstone.predict.scheduler.policy import EnginePolicy, Speculative
from loadstone.predict.scheduler.scheduler import Scheduler
from loadstone.predict.scheduler.sequence import Sequence

__all__ = ["EnginePolicy", "Scheduler", "Sequence", "Speculative", "batches_of", "policy_of"]
