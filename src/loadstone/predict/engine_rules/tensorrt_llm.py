"""TensorRT-LLM's memory (PyTorch backend): free_gpu_memory_fraction of what weights and a trial run leave.

KV = (total − weights − activation − runtime) · free_gpu_memory_fraction
The fraction is 0.9 and a block 32 tokens where nothing is said (KvCacheConfig); 2048 requests and 8192 tokens per
step (BuildConfig, PyTorch LLM arguments). Activations are not its own arithmetic but that of activation.py.
"""

from __future__ import annotations

from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.predict.engine_rules.vllm import runtime_bytes
from loadstone.predict.sharding.activation import LOGIT_BYTES, activation_bytes
from loadstone.predict.sharding.kv_cache import Cache, pooled
from loadstone.predict.sharding.limits import Budget, Limits, count, fraction
from loadstone.predict.sharding.rank import Rank


def limits(deployment: Deployment, context_tokens: int | None = None) -> Limits:
    return Limits(
        block_tokens=count(deployment, "block_size") or 32,
        max_batched_tokens=count(deployment, "max_num_tokens") or 8192,
        max_seqs=count(deployment, "max_batch_size") or 2048,
    )


def budget(deployment: Deployment, rank: Rank, limit: Limits) -> Budget:
    total = deployment.gpu.usable_bytes
    share = fraction(deployment, "free_gpu_memory_fraction") or 0.9
    activation = activation_bytes(deployment, rank, limit, LOGIT_BYTES)
    runtime = runtime_bytes(deployment)
    free = max(0.0, total - rank.weights_bytes - activation - runtime)
    return Budget(total, free * (1 - share), rank.weights_bytes, activation, runtime)


def cache(deployment: Deployment, rank: Rank, limit: Limits) -> Cache:
    return pooled(rank.cache, limit.block_tokens)
