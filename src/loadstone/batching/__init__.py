"""What an engine's scheduler does: queues, paged KV blocks, chunked prefill, preemption, prefix cache. No clock."""

from loadstone.batching.defaults import policy_of
from loadstone.batching.pipeline import batches_of
from loadstone.batching.policy import EnginePolicy, Route, Speculative
from loadstone.batching.scheduler import Scheduler
from loadstone.batching.sequence import Sequence

__all__ = ["EnginePolicy", "Route", "Scheduler", "Sequence", "Speculative", "batches_of", "policy_of"]
