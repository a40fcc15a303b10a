"""SGLang's memory, as its source has it (0.5.23: arg_groups/memory_hook.py, kv_cache_configurator.py).

KV = free after loading − free before loading · (1 − mem_fraction_static)
   = free before loading · mem_fraction_static − weights [− CUDA graphs, where the cache is sized after their capture]
"""

from __future__ import annotations

from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.predict.sharding.kv_cache import Cache, pooled
from loadstone.predict.sharding.limits import GIB, MIB, Budget, Limits, count, fraction, switched, version_of
from loadstone.predict.sharding.rank import Rank, guesses, keeps_free_for_drafts

NEWEST = (0, 5, 23)

CONTEXT_BYTES = 0.51 * GIB
"""What is gone before the weights come, one GPU: the CUDA context (an H100, vLLM 0.19's first snapshot)."""
CONTEXT_TP_BYTES = 1.9 * GIB
"""Likewise with communicators: 8×H200, 137.9 of 139.8 GiB free (SemiAnalysisAI/InferenceX issue 2128)."""
WINDOW_SHARE = 0.8
"""`swa_full_tokens_ratio`: tokens in the windows' pool per token of full attention's."""
STATE_SHARE = 0.9
"""`mamba_full_memory_ratio`: memory for states per memory for KV, where no number of states is set."""
GUESSING = 48
"""max_running_requests where tokens are guessed and it is not given (speculative_hook._handle_eagle_family)."""

_GRAPH_MIB_PER_SEQ = 2
_GRAPH_MIB_PER_PREFILL_SIZE = 8
_DRAFT_MIB = 2048


def limits(deployment: Deployment, context_tokens: int | None = None) -> Limits:
    """Chunk and CUDA-graph batch by the GPU's memory: < 20 GiB 2048, 8 · < 60 GiB 4096, 32 (48 below 35 GiB; 160 from
    tp 4) · < 160 GiB 8192, 256 (512 from tp 4) · else 16384, 512. `max_seqs` here is the graphs' largest batch; what
    may run at once follows from the cache, see max_running(). Before 0.5: 2048 tokens below 25 GB, else 8192.
    """
    gib = deployment.gpu.usable_bytes / GIB
    many = deployment.moe_ranks >= 4
    if gib < 20:
        chunk, graph = 2048, 8
    elif gib < 60:
        chunk, graph = 4096, 160 if many else (48 if gib < 35 else 32)
    elif gib < 160:
        chunk, graph = 8192, 512 if many else 256
    else:
        chunk, graph = 16_384, 512
    if version_of(deployment, NEWEST) < (0, 5):
        chunk = 2048 if deployment.gpu.usable_bytes < 25e9 else 8192
    return Limits(
        block_tokens=count(deployment, "page_size") or 1,
        max_batched_tokens=count(deployment, "chunked_prefill_size", "max_prefill_tokens") or chunk,
        max_seqs=count(deployment, "cuda_graph_max_bs") or graph,
    )


def max_running(deployment: Deployment, kv_tokens: int) -> int:
    """Requests at once per replica: 2048, up to 4096 where the cache holds that many at 512 per whole context; of all
    replicas 48 where tokens are guessed.
    """
    said = count(deployment, "max_running_requests") or (GUESSING if guesses(deployment) else None)
    if said is not None:
        return max(1, min(said // (deployment.dp if deployment.attention_dp else 1), kv_tokens // 2))
    context = count(deployment, "max_model_len", "max_seq_len") or deployment.model.max_context_tokens or 131_072
    return max(1, min(max(min(kv_tokens * 512 // context, 4096), 2048), kv_tokens // 2))


def static_fraction(deployment: Deployment, limit: Limits) -> float:
    """mem_fraction_static where nothing is said: (memory − reserved) / memory, to three digits, in MiB

    sized after capture  reserved = 1536 + 128 tp pp: all but MLA, since 0.5.20 or so
    else                 reserved = 512 + 1.5 max(chunk, 2048) + 128 tp pp + graphs, at least 10 GiB above 60 GiB;
                         2048 more where tokens are guessed by its own layers, before 0.5.20 or so: they and their
                         cache come out of it
    """
    said = fraction(deployment, "mem_fraction_static")
    if said is not None:
        return said
    total = deployment.gpu.usable_bytes / MIB
    ranks = deployment.moe_ranks * deployment.pp
    if _after_capture(deployment):
        reserved = 1536 + ranks / 8 * 1024
    else:
        reserved = 512 + 1.5 * max(limit.max_batched_tokens, 2048) + ranks / 8 * 1024
        reserved += _graphs_mib(deployment, limit)
        if total > 60 * 1024:
            reserved = max(reserved, 10 * 1024)
        if guesses(deployment) and deployment.draft is None and keeps_free_for_drafts(deployment):
            reserved += _DRAFT_MIB
    return max(0.001, round((total - reserved) / total, 3))


def _after_capture(deployment: Deployment) -> bool:
    graphs = not switched(deployment, "enforce_eager")
    return graphs and not deployment.model.has_latent_attention and version_of(deployment, NEWEST) >= (0, 5, 20)


def _graphs_mib(deployment: Deployment, limit: Limits) -> float:
    """What SGLang itself expects of its graphs: 2 per sequence of the largest batch, with attention-DP 3 (4.5 above
    300) more for every replica's; for prefill 8 per captured size, with MLA 1536."""
    if switched(deployment, "enforce_eager"):
        return 0.0
    total = float(_GRAPH_MIB_PER_SEQ * limit.max_seqs)
    if deployment.attention_dp:
        total += limit.max_seqs * deployment.dp * (4.5 if limit.max_seqs > 300 else 3)
    if deployment.model.has_latent_attention:
        return total + 1536
    return total + _GRAPH_MIB_PER_PREFILL_SIZE * _prefill_sizes(limit.max_batched_tokens)


def _prefill_sizes(chunk: int) -> int:
    """How many prefill sizes are captured up to `chunk`: every 4 tokens to 32, 16 to 256, 32 to 512, 64 to 1024,
    256 to 4096, 512 beyond."""
    steps = ((4, 4, 32), (48, 16, 256), (288, 32, 512), (576, 64, 1024), (1280, 256, 4096), (4608, 512, chunk))
    return sum(len(range(first, min(last, chunk) + 1, step)) for first, step, last in steps)


def budget(deployment: Deployment, rank: Rank, limit: Limits) -> Budget:
    """Activations have no piece of their own here: the slack that mem_fraction_static leaves is for them."""
    total = deployment.gpu.usable_bytes
    multi = deployment.gpus > 1 and (deployment.tp * deployment.pp > 1 or deployment.attention_dp)
    context = CONTEXT_TP_BYTES if multi else CONTEXT_BYTES
    static = static_fraction(deployment, limit)
    graphs = _graphs_mib(deployment, limit) * MIB if _after_capture(deployment) else 0.0
    slack = (total - context) * (1 - static)
    room = total - context - slack - rank.weights_bytes - graphs
    states = any(layer.state_bytes for layer in rank.cache)
    return Budget(
        total_bytes=total,
        outside_bytes=0.0,
        weights_bytes=rank.weights_bytes,
        activation_bytes=slack,
        runtime_bytes=context,
        graphs_bytes=graphs,
        state_bytes=max(0.0, room) * STATE_SHARE / (1 + STATE_SHARE) if states else 0.0,
    )


def cache(deployment: Deployment, rank: Rank, limit: Limits) -> Cache:
    return pooled(rank.cache, limit.block_tokens, WINDOW_SHARE)
