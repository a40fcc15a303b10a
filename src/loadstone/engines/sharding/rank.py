"""Counts what one GPU of a deployment holds: its share of the weights, and what a token costs it in
the KV cache.

Tensor parallelism cuts matrices as `Matrix.split` says, pipeline parallelism cuts the list of
layers, expert parallelism deals out whole experts. Ranks of one pipeline stage are alike, so there
is a `Rank` per stage.
"""

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

import msgspec

from loadstone.catalogue.architecture.model import (
    CompressedAttention,
    Experts,
    FullAttention,
    Layers,
    LinearAttention,
    Matrix,
    Model,
)
from loadstone.catalogue.architecture.precision import FORMATS, KV_BYTES
from loadstone.catalogue.deployment.deployment import Worker
from loadstone.engines.sharding.limits import BatchLimits

LOGIT_BYTES = 14
"""Per logit while sampling: as computed in bf16 (2), as float (4), probabilities (4), random
numbers (4)."""
SORTED_LOGIT_BYTES = 38
"""Likewise where top-k and top-p sort the vocabulary: vLLM before 0.17. Measured: 37.9 on
Llama-3.1-8B and on Qwen3-14B."""
FILTER_ROWS = 132
"""Rows of float logits that the filter without sorting keeps at hand, one per multiprocessor: of an
H100."""
ROUTED_TOKENS = 32_768
"""Tokens that the experts' kernel takes at once."""

_BYTES = 2  # activations are bf16, whatever the weights are


class CacheLayer(msgspec.Struct, frozen=True):
    """Holds what `count` equal layers keep on one rank.

    token_bytes    of one token in one layer; 0 for a state
    window_tokens  tokens a layer keeps at most; None: all
    state_bytes    of one sequence in one layer, whatever its length; 0 unless it keeps a state
    """

    count: int
    token_bytes: float
    window_tokens: int | None = None
    state_bytes: float = 0.0


class Rank(msgspec.Struct, frozen=True):
    """Holds one GPU of a pipeline stage.

    weights_bytes  parameters it holds
    mxfp4_bytes    of them, experts in MXFP4
    cache          what its layers keep of sequences
    head           whether it holds the output head, and so samples
    compressed     attention that compresses, and its layers: engines cut its cache in other ways
    """

    stage: int
    weights_bytes: float
    mxfp4_bytes: float
    cache: tuple[CacheLayer, ...]
    head: bool
    compressed: tuple[tuple[CompressedAttention, int], ...] = ()


class Shape(msgspec.Struct, frozen=True):
    """Says how a model is spread.

    tp, pp     as engines mean them
    expert_tp  how often each expert's matrices are cut
    expert_ep  among how many ranks whole experts are dealt out
    """

    tp: int
    pp: int
    expert_tp: int
    expert_ep: int


def shape_of(worker: Worker) -> Shape:
    """Return the shape: attention-DP spreads the experts over all its ranks (vLLM and SGLang
    alike); plain DP copies the whole."""
    ep = min(max(1, worker.ep), worker.moe_ranks)
    return Shape(worker.tp, worker.pp, worker.moe_ranks // ep, ep)


@lru_cache(maxsize=4096)
def ranks_of(
    model: Model,
    shape: Shape,
    weights_dtype: str | None,
    kv_dtype: str,
    state_dtype: str,
    *,
    windows: bool = True,
    drafts: bool = False,
) -> tuple[Rank, ...]:
    """Return a rank of each pipeline stage, first to last.

    `state_dtype`: of recurrent states whose precision the model's config does not say. `windows`:
    layers with a window keep that alone. `drafts`: with the checkpoint's own draft layers, where
    vLLM puts them: on the last stage, beside the output head that they share.
    """
    stages, start = [], 0
    for stage, size in enumerate(stage_layers(model.layer_count, shape.pp)):
        runs = list(layers_between(model.layers, start, start + size))
        start += size
        first, last = stage == 0, stage == shape.pp - 1
        if last and drafts:
            runs += [(run, run.count) for run in model.draft_layers]
        weights, mxfp4 = _ends_bytes(model, shape, weights_dtype, first, last), 0.0
        for run, count in runs:
            of_all, of_mxfp4 = _layer_bytes(model, run, shape, weights_dtype)
            weights, mxfp4 = weights + count * of_all, mxfp4 + count * of_mxfp4
        cache = cache_layers(runs, shape.tp, kv_dtype, state_dtype)
        if not windows:
            cache = tuple(msgspec.structs.replace(layer, window_tokens=None) for layer in cache)
        compressed = tuple(
            (run.attention, count)
            for run, count in runs
            if isinstance(run.attention, CompressedAttention)
        )
        stages.append(Rank(stage, weights, mxfp4, cache, last, compressed))
    return tuple(stages)


def stage_layers(layers: int, pp: int) -> list[int]:
    """Return the layers of each pipeline stage: even, and what is left over goes to the stages
    before the last, from its end (vLLM 0.32, get_pp_indices); the last one has the output head.
    """
    sizes = [layers // pp] * pp
    for back in range(2, 2 + layers % pp):
        sizes[-back] += 1
    return sizes


def layers_between(
    layers: tuple[Layers, ...], start: int, stop: int
) -> Iterator[tuple[Layers, int]]:
    """Yield the runs of layers `start` to `stop`, each with how many of them are inside."""
    first = 0
    for run in layers:
        inside = min(stop, first + run.count) - max(start, first)
        if inside > 0:
            yield run, inside
        first += run.count


def _layer_bytes(model: Model, run: Layers, shape: Shape, dtype: str | None) -> tuple[float, float]:
    """Return weights of one layer on one rank: all, and the experts in MXFP4."""
    attention = run.attention
    kv_heads = attention.kv_heads if isinstance(attention, FullAttention) else 1
    of_all = of_mxfp4 = 0.0
    for matrix in run.weights(model.hidden):
        kept = model.format_of(run, matrix, dtype)
        size = part_of(matrix, shape, kv_heads) * kept.bytes
        of_all += size
        if matrix.kind == "experts" and kept.dtype == "mxfp4":
            of_mxfp4 += size
    return of_all, of_mxfp4


def _ends_bytes(model: Model, shape: Shape, dtype: str | None, first: bool, last: bool) -> float:
    """Return the bytes of embeddings: the table on the first stage, the head (tied: the table
    again) and the rest on the last."""
    total = model.vision_parameters / shape.tp * FORMATS[model.dtype].bytes if first else 0.0
    for matrix in model.embeddings:
        table, again = (
            matrix.name.startswith("embed_tokens"),
            model.tied_embeddings and matrix.name == "embed_tokens",
        )
        if (first and table) or (last and (not table or (again and not first))):
            total += part_of(matrix, shape, 1) * model.format_of(None, matrix, dtype).bytes
    return total


def part_of(matrix: Matrix, shape: Shape, kv_heads: int) -> float:
    """Return parameters of `matrix` on one rank.

    replicated: all · column, row, vocab: 1/tp · kv: 1/min(tp, kv_heads), whole heads, copied beyond
    that · expert: ⌈experts / ep⌉ of them, each 1/expert_tp.
    """
    if matrix.split == "replicated":
        return matrix.parameters
    if matrix.split == "kv":
        return matrix.parameters / min(shape.tp, kv_heads)
    if matrix.split == "expert":
        whole = -(-matrix.copies // shape.expert_ep)
        return matrix.inputs * matrix.outputs * whole / shape.expert_tp
    return matrix.parameters / shape.tp


def cache_layers(
    runs: list[tuple[Layers, int]], tp: int, kv_dtype: str, state_dtype: str = "fp32"
) -> tuple[CacheLayer, ...]:
    """Return what the layers of one rank keep, equal ones together.

    Full attention: ⌈kv_heads / tp⌉ heads, at least one. MLA's latent belongs to all heads, so every
    TP rank keeps all of it. A state is cut by its heads. `state_dtype`: where the config says
    nothing of a state's.
    """
    counts: Counter[CacheLayer] = Counter()
    for run, count in runs:
        for layer in _cache_layer(run, tp, kv_dtype, state_dtype):
            counts[msgspec.structs.replace(layer, count=1)] += count
    return tuple(msgspec.structs.replace(layer, count=count) for layer, count in counts.items())


def _cache_layer(
    run: Layers, tp: int, kv_dtype: str, state_dtype: str = "fp32"
) -> Iterator[CacheLayer]:
    attention = run.attention
    for state in run.states:
        yield CacheLayer(1, 0.0, None, state.state_bytes(state_dtype) / min(tp, state.heads))
    if attention is None or isinstance(attention, LinearAttention):
        return
    if isinstance(attention, FullAttention):
        if attention.stores_kv and not attention.bidirectional:
            whole = attention.kv_bytes_per_token(kv_dtype)
            heads = (
                attention.kv_heads
                * (attention.head_dim + attention.v_head_dim)
                * KV_BYTES[kv_dtype]
            )
            held = -(-attention.kv_heads // tp) / attention.kv_heads
            yield CacheLayer(1, heads * held + (whole - heads), attention.window_tokens)
    elif isinstance(attention, CompressedAttention):
        yield CacheLayer(1, attention.head_dim * KV_BYTES[kv_dtype], attention.window_tokens)
        if attention.ratio:
            yield CacheLayer(1, attention.kv_bytes_per_token(kv_dtype))
    else:
        yield CacheLayer(1, attention.kv_bytes_per_token(kv_dtype), attention.window_tokens)


def kv_replication(model: Model, tp: int, kv_dtype: str) -> float:
    """Return bytes that a token's KV takes on all TP ranks / the bytes it has; 1 where nothing is
    kept twice, or at all."""
    stored = needed = 0.0
    for run in model.kinds:
        token = run.kv_bytes_per_token(kv_dtype)
        needed += run.count * token
        if isinstance(run.attention, FullAttention):
            token = sum(layer.token_bytes for layer in _cache_layer(run, tp, kv_dtype))
        stored += run.count * tp * token
    return stored / needed if needed else 1.0


def sequence_bytes(cache: tuple[CacheLayer, ...], context_tokens: int) -> float:
    """Return what one sequence keeps on one rank: every token, or those of the window, and
    states."""
    total = 0.0
    for layer in cache:
        seen = (
            context_tokens
            if layer.window_tokens is None
            else min(context_tokens, layer.window_tokens)
        )
        total += layer.count * (layer.state_bytes + seen * layer.token_bytes)
    return total


def widths(model: Model, shape: Shape) -> tuple[float, float]:
    """Return what an MLP writes for one token on one rank, in numbers: (dense: gate, up and their
    product; routed: the experts' buffers).

    Routed, as vLLM's fused kernel keeps them for all `per_token` experts of a token: one buffer for
    gate and up, which the outputs use again, and one for their product. Kernels for MXFP4 experts
    keep none (gpt-oss, measured).
    """
    dense = routed = 0.0
    for run in model.kinds:
        if isinstance(run.mlp, Experts):
            wide = run.mlp.intermediate / shape.expert_tp
            output = max((run.mlp.matrices - 1) * wide, float(run.mlp.latent or model.hidden))
            if not any(
                name.startswith("mlp.experts") and kept.dtype == "mxfp4"
                for name, kept in run.formats
            ):
                routed = max(routed, run.mlp.per_token * (output + wide))
            dense = max(dense, run.mlp.matrices * run.mlp.shared_intermediate / shape.tp)
        elif run.mlp is not None:
            dense = max(dense, run.mlp.matrices * run.mlp.intermediate / shape.tp)
    return dense, routed


def activation_bytes(worker: Worker, rank: Rank, limits: BatchLimits, logit_bytes: int) -> float:
    """Return the peak bytes of a step on one rank, beside weights and KV cache.

    With T = max_batched_tokens, S = min(max_seqs, T), V the vocabulary and h the hidden size:

    2 T h (residual stream and a layer's output, bf16) + the experts' buffers, which stay allocated,
    + the larger of
      sampling   S V logit_bytes + 4 min(S, 132) V where nothing is sorted; on the rank with the
                 head
      a layer    T (MLP's gate, up and product + h), bf16
    Tensor parallelism cuts the layer, not the sampling: logits are gathered. Either moment can be
    the peak; sampling nearly always is. Shaped after vLLM's profile run, and checked against what
    29 runs of vLLM 0.15 to 0.19 on an H100 printed (docs/sizing.md).
    """
    model, batched_tokens = worker.model, limits.max_batched_tokens
    dense, routed = widths(model, shape_of(worker))
    seqs = min(limits.max_seqs, batched_tokens)
    layer = _BYTES * batched_tokens * (dense + model.hidden)
    sampling = 0.0
    if rank.head:
        sampling = float(seqs * model.vocab * logit_bytes)
        if logit_bytes == LOGIT_BYTES:
            sampling += 4 * min(seqs, FILTER_ROWS) * model.vocab
    experts = _BYTES * min(batched_tokens, ROUTED_TOKENS) * routed
    return 2 * _BYTES * batched_tokens * model.hidden + experts + max(layer, sampling)
