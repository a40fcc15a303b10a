"""vLLM's memory, as its source has it (0.32: gpu_worker.determine_available_memory, arg_utils, kv_cache_utils).

KV = ⌈total · gpu_memory_utilization⌉ − weights − peak activation − runtime − CUDA graphs
"""

from __future__ import annotations

import math

from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.core.errors import InputError
from loadstone.predict.engine_rules.common import context_limit
from loadstone.predict.sharding.activation import LOGIT_BYTES, SORTED_LOGIT_BYTES, activation_bytes
from loadstone.predict.sharding.kv_cache import Cache, grouped
from loadstone.predict.sharding.limits import GIB, Budget, Limits, count, fraction, switched, version_of
from loadstone.predict.sharding.rank import Rank, rope_bytes

NEWEST = (0, 32)

RUNTIME_BYTES = 0.46 * GIB
"""CUDA context growth and kernels, one GPU. vLLM 0.19 on an H100 printed 0.24 to 0.46 GiB as "non-torch memory",
mostly 0.25: the largest, since a planner should rather promise too little."""
RUNTIME_TP_BYTES = 2.17 * GIB
"""With collectives' buffers, tensor parallel: 2.06 to 2.17 GiB there (0.55 in 2025's releases)."""
GRAPHS_BYTES = 1.04 * GIB
"""CUDA graphs, taken off since 0.21: mean of the pools of 49 runs of 0.19 on an H100, which were 0.51 to 1.85 GiB."""


def is_v0(deployment: Deployment) -> bool:
    """Whether the engine core is the first one, V0: before 0.8."""
    return version_of(deployment, NEWEST) < (0, 8)


def chunks_prompts(deployment: Deployment, context_tokens: int) -> bool:
    """Whether a prompt may be computed in pieces, in an engine made for `context_tokens`.

    Always since 0.8. From 0.5.4 (pull request 6666) where the context is longer than 32,768, but not with latent
    attention ("MLA is enabled; forcing chunked prefill and prefix caching to be disabled", 0.7; later V0 the same).
    Before: no. `enable_chunked_prefill`, if given, decides.
    """
    said = switched(deployment, "enable_chunked_prefill")
    if said is not None:
        return said
    if not is_v0(deployment):
        return True
    latent = deployment.model.has_latent_attention
    return version_of(deployment, NEWEST) >= (0, 5, 4) and context_tokens > 32_768 and not latent


def limits(deployment: Deployment, context_tokens: int | None = None) -> Limits:
    """Batch limits of the OpenAI server when nothing is said (0.32, EngineArgs.get_batch_defaults).

    total ≥ 160 GiB: 16384 tokens, 1024 sequences · ≥ 70 GiB and no A100: 8192, 1024 · else 2048, 256.
    Before 0.8: 256 sequences, and where prompts come in pieces 2048 tokens, before 0.6.5 512 (pull request 10544).
    A step that takes whole prompts has room for one of `context_tokens`, and for 2048.
    """
    version, total = version_of(deployment, NEWEST), deployment.gpu.usable_bytes
    if is_v0(deployment):
        tokens, seqs = (512 if version < (0, 6, 5) else 2048), 256
    elif total >= 160 * GIB:
        tokens, seqs = 16_384, 1024
    elif total >= 70 * GIB and "a100" not in deployment.gpu.name.lower():
        tokens, seqs = 8192, 1024
    else:
        tokens, seqs = 2048, 256
    context = context_tokens or context_limit(deployment) or 32_768
    if not chunks_prompts(deployment, context):
        tokens = max(2048, context)
    return Limits(
        block_tokens=count(deployment, "block_size") or 16,
        max_batched_tokens=count(deployment, "max_num_batched_tokens") or tokens,
        max_seqs=count(deployment, "max_num_seqs") or seqs,
    )


def utilization(deployment: Deployment) -> float:
    """0.92 where nothing is said; 0.9 up to 0.20 (it was 0.9 in 0.19 and is 0.92 in 0.32)."""
    said = fraction(deployment, "gpu_memory_utilization")
    return said if said is not None else (0.92 if version_of(deployment, NEWEST) >= (0, 21) else 0.9)


def runtime_bytes(deployment: Deployment) -> float:
    """Attention-DP's ranks exchange what their experts need, and have collectives' buffers too."""
    return RUNTIME_TP_BYTES if deployment.tp > 1 or deployment.attention_dp else RUNTIME_BYTES


def padding_bytes(deployment: Deployment, rank: Rank) -> float:
    """MXFP4 kernels work on a hidden size of whole 256: gpt-oss's 2880 becomes 3072. (Measured on an H100: 13.47 GiB
    of weights for gpt-oss-20b, 64.38 for 120b; 13.45 and 64.55 so, 12.82 and 60.77 without.)
    """
    hidden = deployment.model.hidden
    return rank.mxfp4_bytes * (-(-hidden // 256) * 256 / hidden - 1)


CUDAGRAPH_MODES = {
    "none": False,
    "full_decode_only": False,
    "piecewise": True,
    "full": True,
    "full_and_piecewise": True,
}
"""vLLM's CUDAGraphMode, and whether steps with prompts run as graphs in it."""


def cudagraph_mode(deployment: Deployment) -> str:
    """One of CUDAGRAPH_MODES. Raises InputError."""
    said = deployment.argument("cudagraph_mode") or "full_and_piecewise"
    if said.lower() not in CUDAGRAPH_MODES:
        known = ", ".join(CUDAGRAPH_MODES).upper()
        raise InputError(f"--cudagraph-mode: {said!r} is not a mode of vLLM; use {known}")
    return said.lower()


def budget(deployment: Deployment, rank: Rank, limit: Limits) -> Budget:
    version = version_of(deployment, NEWEST)
    total = deployment.gpu.usable_bytes
    logit_bytes = LOGIT_BYTES if version >= (0, 17) else SORTED_LOGIT_BYTES
    activation = activation_bytes(deployment, rank, limit, logit_bytes)
    runtime = runtime_bytes(deployment)
    without = switched(deployment, "enforce_eager") or cudagraph_mode(deployment) == "none"
    graphs = version >= (0, 21) and not without
    return Budget(
        total_bytes=total,
        outside_bytes=total - math.ceil(total * utilization(deployment)),
        weights_bytes=rank.weights_bytes,
        activation_bytes=activation,
        runtime_bytes=runtime + rope_bytes(deployment.model) + padding_bytes(deployment, rank),
        graphs_bytes=GRAPHS_BYTES if graphs else 0.0,
    )


def cache(deployment: Deployment, rank: Rank, limit: Limits) -> Cache:
    """In 0.32 two steps may be in flight at once (one more than pipeline stages), one block is never given out, and
    with prefix caching a state keeps one more block to go back to. When the first two came is not known to us; 0.30
    is taken.
    """
    late = version_of(deployment, NEWEST) >= (0, 30)
    steps = deployment.pp + 1 if late else deployment.pp
    states = 1 if switched(deployment, "prefix_caching") is False else 2
    return grouped(
        rank.cache, limit.block_tokens, steps * limit.max_batched_tokens, states, held_blocks=1 if late else 0
    )
