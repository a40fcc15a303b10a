"""What only one maker's model has: weights beside its layers, layers that run several times, tables."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from loadstone.catalogue.architecture.attention import FullAttention, LatentAttention
from loadstone.catalogue.architecture.matrix import Matrix, vector
from loadstone.catalogue.architecture.mlp import Experts
from loadstone.catalogue.architecture.model import Layers
from loadstone.catalogue.config.families import Family
from loadstone.catalogue.config.fields import Fields
from loadstone.catalogue.config.makers import GIGACHAT_NORMS
from loadstone.core.errors import InputError

_MOST_LOOPS = 16
_LOOPED = ("nanbeige", "ouro", "iquestloopcoder")


def with_own_parts(fields: Fields, kind: str, family: Family, hidden: int, layers: list[Layers]) -> list[Layers]:
    """The layers, with weights that only this model type has beside the two halves."""
    if kind == "gigachat3_5":
        wide = family.norms * hidden
        return [replace(each, extra=(*each.extra, _norm_gates(fields, wide, *_latents(each)))) for each in layers]
    if kind == "k2_horizon":
        layers = [_chosen_values(fields, layer) for layer in layers]
    return [replace(layer, extra=layer.extra + tuple(_beside(fields, kind, layer))) for layer in layers]


def _chosen_values(fields: Fields, layer: Layers) -> Layers:
    """Layers with experts have some for the attention's values too."""
    many, taken = fields.count("mova_num_experts", default=0), fields.count("mova_num_experts_per_tok", default=0)
    if not many or not isinstance(layer.mlp, Experts) or not isinstance(layer.attention, FullAttention):
        return layer
    if not 0 < taken <= many:
        raise InputError(f"{fields.where}: a token takes {taken} value projections of {many}")
    bias = (vector("self_attn.v_router.bias", many, "router"),) if layer.mlp.router_bias else ()
    attention = replace(layer.attention, value_experts=many, values_per_token=taken)
    return replace(layer, attention=attention, extra=layer.extra + bias)


def _latents(layer: Layers) -> list[int]:
    attention = layer.attention
    return [attention.q_rank or 0, attention.kv_rank] if isinstance(attention, LatentAttention) else []


def _norm_gates(fields: Fields, *widths: int) -> Matrix:
    rank = GIGACHAT_NORMS[fields.text("norm_type", default="ZeroCenteredGatedNorm")]
    return vector("norm_gates", 2 * rank * sum(widths))


def _beside(fields: Fields, kind: str, layer: Layers) -> list[Matrix]:
    attention = layer.attention
    if kind == "iquestloopcoder" and isinstance(attention, FullAttention):
        # For each head, how much it hears of the first loop's cache.
        return [vector("gate_projections", attention.heads * (attention.head_dim + 1), "attention")]
    if kind == "iquest_q1" and isinstance(attention, FullAttention):
        sinks = attention.kv_heads * attention.head_dim if fields.flag("enable_sink_attention", default=True) else 0
        return [vector("self_attn.sink_k", sinks, "attention")]
    if kind == "PanguProMoE" and isinstance(attention, FullAttention):
        sinks = fields.count("param_sink_number", default=0) * attention.kv_heads
        wide = attention.head_dim + (attention.v_head_dim if fields.flag("param_sink_with_value") else 0)
        return [vector("self_attn.k_layernorm", attention.head_dim), vector("self_attn.sinks", sinks * wide)]
    return []


def looped(fields: Fields, kind: str, runs: tuple[Layers, ...]) -> tuple[Layers, ...]:
    """All layers again, as often as the config says, with the same weights and a cache for every time."""
    loops = fields.count("loops", default=2 if kind == "iquestloopcoder" else 1, least=1) if kind in _LOOPED else 1
    if loops > _MOST_LOOPS:
        raise InputError(f"{fields.where}: {loops} loops; {_MOST_LOOPS} at most")
    again = tuple(replace(run, shared=True, extra=()) for run in runs)
    if kind == "iquestloopcoder":
        window = fields.count("loop_window_size", default=64, least=1)
        again = tuple(replace(run, attention=_windowed(run.attention, window)) for run in again)
        fields.assume("later loops also read the first one's cache: not in the times")
    return runs + again * (loops - 1)


def _windowed(attention: Any, window: int) -> Any:
    return replace(attention, window_tokens=window)


def own_tables(fields: Fields, kind: str, hidden: int, vocab: int) -> tuple[Matrix, ...]:
    """Molmo's 128 rows for images; LongCat-Flash-Lite's n-grams: for each of several hashes of the last tokens a
    table of narrow vectors, and a projection to hidden size. Sizes as in vLLM 0.32.
    """
    if kind == "gigachat3_5":
        return (_norm_gates(fields, hidden),)
    if kind == "molmo":
        return (vector("new_embedding", 128 * hidden, "embedding"),)
    ratio = fields.maybe("ngram_vocab_size_ratio", least=1)
    if not ratio:
        return ()
    tables = fields.count("emb_split_num", least=1) * (fields.count("emb_neighbor_num", least=2) - 1)
    width = hidden // tables
    rows = tables * ratio * vocab + tables * tables
    return (
        Matrix("ngram_embeddings", rows, width, "embedding", "vocab", quantisable=False),
        Matrix("ngram_projections", tables * width, hidden, "embedding", quantisable=False),
    )
