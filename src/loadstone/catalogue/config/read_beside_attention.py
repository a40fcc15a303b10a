"""From a config's fields to what a layer has beside attention and MLP: a state, short convolutions, streams."""

from __future__ import annotations

import math
from itertools import count as numbers_from
from itertools import islice

from msgspec.structs import replace

from loadstone.catalogue.architecture.attention import FullAttention
from loadstone.catalogue.architecture.linear import LinearAttention, ShortStates
from loadstone.catalogue.architecture.matrix import Matrix, vector
from loadstone.catalogue.architecture.model import Layers
from loadstone.catalogue.config.families import FAMILIES, Family
from loadstone.catalogue.config.fields import Fields
from loadstone.catalogue.config.linear import STATES_ONLY, linear_attention
from loadstone.core.errors import InputError

_MOST_TABLES = 1_000
_ATTENTION_ONLY = (
    "num_attention_heads", "num_key_value_heads", "head_dim", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim",
    "qk_rope_head_dim", "qk_head_dim", "v_head_dim", "attention_bias", "kv_channels", "attention_head_dim",
    "sliding_window", "index_head_dim", "index_n_heads", "index_topk", "index_kpool", "indexer_types",
)  # fmt: skip
"""Say nothing of a model none of whose layers has attention, whose class may have such."""
_TELLING = (
    "layer_types", "layers_block_type", "hybrid_override_pattern", "attn_layer_indices", "attn_layer_period",
    "full_attn_idxs",
)  # fmt: skip

_HASHED_ONLY = (
    "heads_per_ngram", "ngram_size", "ple_conv_kernel_size", "ple_embed_dim", "ngram_vocab_size_base",
    "make_ngram_vocab_size_divisible_by", "split_ngram_parts", "seed",
)  # fmt: skip


def beside_attention(fields: Fields, family: Family, layers: list[Layers], hidden: int) -> list[Layers]:
    """The layers with all that. Raises InputError."""
    found = [_beside(fields, family, layer, index, hidden) for index, layer in enumerate(layers)]
    # Of a type that is not known, or whose layers are not told apart, such fields may mean something.
    told_apart = fields.text("model_type") in FAMILIES and any(name in fields.used for name in _TELLING)
    if told_apart and not any(layer.states for layer in found):
        fields.find(*STATES_ONLY)
    if not any(layer.attention is not None and not isinstance(layer.attention, LinearAttention) for layer in found):
        fields.find(*_ATTENTION_ONLY)
    return found


def _beside(fields: Fields, family: Family, layer: Layers, index: int, hidden: int) -> Layers:
    attention = layer.attention
    state: LinearAttention | ShortStates | None = None
    extra: tuple[Matrix, ...] = ()
    if fields.flag("use_sandwich_norm"):  # LFM3
        extra += (vector("sandwich_norms", 2 * hidden),)
    if family.state == "beside":
        state = linear_attention(fields, family, hidden)
    if isinstance(attention, FullAttention) and fields.find("cca_time0"):
        state, more = _zaya(fields, attention, index, hidden)
        extra += more
    if isinstance(attention, FullAttention) and fields.find("d_rel"):
        state, more = _inkling(fields, attention, hidden)
        extra += more
    streams = fields.maybe("hc_count", least=1)
    if streams:
        extra += 2 * _gated_residual(fields, streams, hidden)
        placed = fields.items("ple_layer_ids") or []
        if not placed:
            fields.find(*_HASHED_ONLY)
        if index + 1 in placed:
            state, more = _hashed(fields, streams, sorted(set(placed)).index(index + 1), hidden)
            extra += more
    return replace(layer, state=state, extra=layer.extra + extra)


def streams_of_model(fields: Fields, hidden: int) -> tuple[Matrix, ...]:
    """Of the model, likewise."""
    found: list[Matrix] = []
    streams = fields.maybe("hc_count", least=1)
    if streams:
        # Its last mixer's norm is over all streams, and there is no other: less the one that every model has.
        down, up, _, norm = _gated_residual(fields, streams, hidden)
        found += [down, up, replace(norm, outputs=norm.outputs - hidden)]
    if fields.find("cca_time0"):
        found.append(vector("input_scale_bias", 2 * hidden, "other"))
    return tuple(found)


def _zaya(
    fields: Fields, attention: FullAttention, index: int, hidden: int
) -> tuple[ShortStates, tuple[Matrix, ...]]:
    """Compressed convolutional attention (arXiv 2510.04476): queries and keys pass two convolutions, over each
    channel and over each head's; half of each value is the last token's."""
    first, second = fields.count("cca_time0", least=1), fields.count("cca_time1", least=1)
    keys = attention.kv_heads * attention.head_dim
    channels = attention.heads * attention.head_dim + keys
    weights = channels * (first + 1) + channels * (attention.head_dim * second + 1) + attention.kv_heads
    held = (first - 1 + second - 1) * channels + keys // 2
    router = fields.count("router_hidden_size", least=1)
    # The router adds what it found in the layer before.
    extra = (vector("residual_scaling", 8 * hidden), vector("router_states_scale", router if index else 0, "router"))
    return ShortStates(attention.heads, held, weights), extra


def _inkling(fields: Fields, attention: FullAttention, hidden: int) -> tuple[ShortStates, tuple[Matrix, ...]]:
    """Convolutions of keys, values and both halves' outputs; positions as a learnt bias of their distance."""
    width = fields.count("conv_kernel_size", "sconv_kernel_size", least=1)
    channels = attention.kv_heads * (attention.head_dim + attention.v_head_dim) + 2 * hidden
    relative = fields.count("d_rel", least=1)
    reach = fields.count("rel_extent", least=1)
    extra = (
        Matrix("self_attn.r_proj", hidden, attention.heads * relative, "attention", "column"),
        vector("self_attn.rel_logits", relative * (attention.window_tokens or reach), "attention"),
        vector("mlp.global_scale", 1, "router"),
    )
    return ShortStates(attention.kv_heads, (width - 1) * channels, width * channels), extra


def _gated_residual(fields: Fields, streams: int, hidden: int) -> tuple[Matrix, ...]:
    """Qwen4: what a half reads of all residual streams, through a projection of low rank, and writes back to each."""
    wide, rank = streams * hidden, fields.count("hc_lowrank", least=1)
    return (
        Matrix("hyper_connection.down", wide, rank, "other"),
        Matrix("hyper_connection.up", rank, wide, "other"),
        Matrix("hyper_connection.inject", wide, streams, "other"),
        vector("hyper_connection.norm", wide),
    )


def _hashed(fields: Fields, streams: int, place: int, hidden: int) -> tuple[ShortStates, tuple[Matrix, ...]]:
    """Qwen4's per-layer embeddings: tables of hashed n-grams, each as long as a prime of its own, and a dilated
    convolution. `place`: of this layer among those that have them."""
    grams, each = fields.count("ngram_size", default=3, least=2), fields.count("heads_per_ngram", default=8, least=1)
    tables = (grams - 1) * each
    if tables * (place + 1) > _MOST_TABLES:
        raise InputError(f"{fields.where}: {tables * (place + 1)} tables of n-grams; {_MOST_TABLES} at most")
    width = fields.count("ple_embed_dim", default=hidden, least=tables)
    primes = filter(_prime, numbers_from(fields.count("ngram_vocab_size_base", least=1)))
    rows = sum(islice(primes, place * tables, (place + 1) * tables))
    of = fields.count("make_ngram_vocab_size_divisible_by", default=128, least=1)
    wide, kernel = streams * hidden, fields.count("ple_conv_kernel_size", default=4, least=1)
    fields.find(*_HASHED_ONLY)
    extra = (
        # A token looks up a row of each: no weights are passed.
        Matrix(
            "ple.ngram_embedding", -(-rows // of) * of, width // tables, "embedding", "column", active=0,
            quantisable=False,
        ),
        Matrix("ple.key_proj", width, wide, "other"),
        Matrix("ple.value_proj", width, hidden, "other"),
        vector("ple.norms", 3 * wide),
    )  # fmt: skip
    return ShortStates(1, (kernel - 1) * grams * wide, kernel * wide), extra


def _prime(value: int) -> bool:
    return value > 1 and all(value % divisor for divisor in range(2, math.isqrt(value) + 1))
