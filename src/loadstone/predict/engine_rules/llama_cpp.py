"""llama.cpp's memory (llama-server): slots of equal context, whose cache is allocated whole at the start.

KV = ctx_size tokens, in cells of one token; a slot has ctx_size / parallel of them, and a request takes a slot
Where nothing is said: 4 slots, the model's own context, 2048 tokens a step (tools/server/README.md: --parallel,
--ctx-size, --batch-size). The cache is f16 whatever the weights are (--cache-type-k): write kv=fp16 where a model's
own type is another.
"""

from __future__ import annotations

from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.predict.sharding.kv_cache import Cache, pooled
from loadstone.predict.sharding.limits import Budget, Limits, count
from loadstone.predict.sharding.rank import Rank

SLOTS = 4
BATCH_TOKENS = 2048
MICRO_BATCH_TOKENS = 512
"""--ubatch-size: what a step is computed in pieces of; its intermediate results are of so many tokens."""
UNKNOWN_CONTEXT_TOKENS = 4096
"""Where neither the model nor the user names one."""

_FLOAT_BYTES = 4


def limits(deployment: Deployment, context_tokens: int | None = None) -> Limits:
    return Limits(
        block_tokens=1,
        max_batched_tokens=count(deployment, "batch_size") or BATCH_TOKENS,
        max_seqs=slots(deployment),
    )


def slots(deployment: Deployment) -> int:
    return count(deployment, "parallel") or SLOTS


def cache_tokens(deployment: Deployment) -> int:
    """Cells of all slots. `max_model_len`, which is not llama.cpp's word, is one slot's."""
    total = count(deployment, "ctx_size")
    each = count(deployment, "max_model_len", "max_seq_len")
    if total is None and each is not None:
        total = each * slots(deployment)
    return total or deployment.model.max_context_tokens or UNKNOWN_CONTEXT_TOKENS


def slot_tokens(deployment: Deployment) -> int | None:
    """The longest request where the slots' cache was sized by `ctx_size`; None where it was not."""
    total = count(deployment, "ctx_size")
    return None if total is None else max(1, total // slots(deployment))


def budget(deployment: Deployment, rank: Rank, limit: Limits) -> Budget:
    """Logits of every slot and the widest of a piece's intermediate results, in 32 bits; a state of every slot. What
    the cache leaves is outside: it is never asked for.
    """
    total, model = deployment.gpu.usable_bytes, deployment.model
    piece = min(MICRO_BATCH_TOKENS, limit.max_batched_tokens)
    activation = float(_FLOAT_BYTES * model.vocab * max(limit.max_seqs, piece))
    states = limit.max_seqs * sum(layer.count * layer.state_bytes for layer in rank.cache)
    room = total - rank.weights_bytes - activation - states
    wanted = cache_tokens(deployment) * cache(deployment, rank, limit).block_bytes
    outside = max(0.0, room - wanted)
    return Budget(total, outside, rank.weights_bytes, activation, 0.0, state_bytes=states)


def cache(deployment: Deployment, rank: Rank, limit: Limits) -> Cache:
    return pooled(rank.cache, limit.block_tokens)
