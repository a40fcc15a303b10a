"""Reads the attention of each layer from a config's fields."""

from collections.abc import Container
from typing import Any

from loadstone.catalogue.architecture.attention import (
    Attention,
    CompressedAttention,
    FullAttention,
    LatentAttention,
)
from loadstone.catalogue.config.families import Family, Mixer, tables
from loadstone.catalogue.config.fields import Fields
from loadstone.catalogue.config.states import linear_attention
from loadstone.core.errors import InputError

_BY_NUMBER: dict[str, tuple[Mixer, Mixer]] = {
    "hybrid_layer_pattern": ("full", "window"),  # MiMo
    "attn_type_list": ("linear", "full"),  # MiniMax-01
}
"""Fields with a number for each layer: what 0 is, and what 1 is."""
# Engines take MiMo's window from the first, which stands beside the second.
_WINDOWS = ("sliding_window_size", "sliding_window", "attention_chunk_size")


# --- which attention each layer has ---------------------------------------------------------------


def attention_kinds(fields: Fields, family: Family, count: int) -> list[Mixer]:
    """Return which attention each layer has. Raises InputError: a kind that is not known here."""
    _spread_window_settings(fields)
    listed = fields.per_layer(count, "layer_types")
    if listed is not None:
        return [_kind(fields, name) for name in listed]
    for name, kinds in _BY_NUMBER.items():
        numbers = fields.per_layer(count, name)
        if numbers is not None:
            return [kinds[bool(number)] for number in numbers]
    placed = _with_cache(fields, count)
    if placed is not None:
        return _full_at(placed, count, "linear")
    chunk = fields.optional_count("attention_chunk_size")
    if chunk and "sliding_window" not in fields.values:
        # Llama 4: every fourth layer has no RoPE and sees everything.
        step = fields.count("no_rope_layer_interval", default=4, least=1)
        return _full_at(_every(step, count), count, "window")
    return _window_kinds(fields, family, count)


def _with_cache(fields: Fields, count: int) -> Container[Any] | None:
    """Return the layers with a KV cache, of a model whose others keep a state; None: it has no
    others."""
    period = fields.optional_count("attn_layer_period", least=1)
    if period:  # Jamba
        offset = fields.count("attn_layer_offset", default=0)
        return [index for index in range(count) if index % period == offset]
    placed = fields.entries("attn_layer_indices", "full_attn_idxs")  # Bamba; LFM2
    if placed is not None:
        return placed
    linear = fields.inner("linear_attn_config")
    placed = None if linear is None else linear.entries("full_attn_layers")
    if placed is not None:  # counted from 1
        return [index for index in range(count) if index + 1 in placed]
    if linear is not None:
        raise InputError(
            f"{linear.where}: no full_attn_layers, so which layers have a KV cache is unknown"
        )
    interval = fields.optional_count("full_attention_interval", "layer_group_size", least=1)
    return _every(interval, count) if interval else None


def _window_kinds(fields: Fields, family: Family, count: int) -> list[Mixer]:
    """Return, for a model without `layer_types` whose layers all have a KV cache: which of them see
    a window."""
    window = fields.optional_count("sliding_window")
    if not window or not fields.flag("use_sliding_window", default=family.window_pattern != "G"):
        return ["full"] * count
    names = ("sliding_window_pattern", "_sliding_window_pattern")
    pattern = fields.raw(*names)
    if isinstance(pattern, str):  # EXAONE 4: `LLLG`, and the last layer sees everything
        if not pattern or set(pattern) - {"L", "G"}:
            raise InputError(
                f"{fields.where}: sliding_window_pattern is {pattern[:40]!r}; known are letters L"
                " and G"
            )
        return _by_letters(pattern + "$", count)
    every = fields.optional_count(*names, "global_attn_every_n_layers", least=1)
    if every and family.encoder:  # ModernBERT, from the first layer on
        return _full_at(range(0, count, every), count, "window")
    if every:
        return _full_at(_every(every, count), count, "window")
    if fields.values.get("use_sliding_window"):
        rotated = fields.per_layer(count, "no_rope_layers")  # SmolLM3: 0 has no RoPE, and a window
        if rotated is not None:
            return ["full" if value else "window" for value in rotated]
        first = fields.count(
            "max_window_layers", default=28 if family.window_pattern else 0
        )  # Qwen
        return _full_at(range(first), count, "window")
    return _by_letters(family.window_pattern or "L", count)


def _spread_window_settings(fields: Fields) -> None:
    """Add the fields that layers with a window have in Step's `attention_other_setting`; other
    types have `swa_…`."""
    setting = fields.inner("attention_other_setting")
    if setting is None:
        return
    if setting.text("attention_type", default="sliding_attention") != "sliding_attention":
        raise InputError(
            f"{setting.where}: attention_type must be 'sliding_attention'; no other is read"
        )
    names = {
        "num_attention_heads": "swa_num_attention_heads",
        "num_attention_groups": "swa_num_key_value_heads",
        "head_dim": "swa_head_dim",
    }
    fields.values = fields.values | {
        new: setting.values[old] for old, new in names.items() if old in setting.values
    }


def _by_letters(letters: str, count: int) -> list[Mixer]:
    """Read letters: L a window, G everything, again and again; $ at the end: the last layer sees
    everything."""
    pattern = letters.removesuffix("$")
    full = [index for index in range(count) if pattern[index % len(pattern)] == "G"]
    return _full_at([*full, count - 1] if letters.endswith("$") else full, count, "window")


def _every(step: int, count: int) -> range:
    return range(step - 1, count, step)


def _full_at(layers: Container[Any], count: int, mixer: Mixer) -> list[Mixer]:
    return ["full" if index in layers else mixer for index in range(count)]


def _kind(fields: Fields, name: Any) -> Mixer:
    name = str(name)
    kind = next((kind for kind, names in tables().layer_types.items() if name in names), None)
    if kind is None:
        raise InputError(
            f"{fields.where}: layer type {name[:40]!r} is not known, so its weights and its cache"
            " per token are unknown too"
        )
    return kind


def read_attention(
    fields: Fields, family: Family, kind: Mixer, index: int, count: int, hidden: int
) -> Attention | None:
    """Return the attention of layer `index` of `count`; None: it mixes no tokens. Raises
    InputError."""
    if kind == "none":
        return None
    ratios, rates = fields.entries("compress_ratios"), fields.inner("compress_rates")
    if ratios is not None:
        ratio = fields.check_count("compress_ratios", ratios[index]) if index < len(ratios) else 0
        return _compressed_attention(fields, ratio, 0 < ratio <= 4)
    if rates is not None:  # transformers' own form
        listed = fields.per_layer(count, "layer_types")
        if listed is None:
            raise InputError(
                f"{fields.where}: compress_rates without layer_types, which say where they hold"
            )
        name = listed[index]
        return _compressed_attention(
            fields, rates.count(name, default=0), name == "compressed_sparse_attention"
        )
    if kind == "linear":
        return linear_attention(fields, family, hidden)
    if fields.flag("use_mla", default=True) and fields.find("kv_lora_rank"):
        return _latent_attention(fields, kind == "window", index)
    return full_attention(fields, family, kind == "window", index, count, hidden)


# --- keys and values of their own -----------------------------------------------------------------


def full_attention(
    fields: Fields, family: Family, window: bool, index: int, count: int, hidden: int
) -> FullAttention:
    """Return the attention of layer `index` of `count`; `window`: it has a sliding window. Raises
    InputError."""
    of_windows = ("swa_num_attention_heads", "num_sliding_attention_heads") if window else ()
    heads = fields.count(*of_windows, "num_attention_heads", least=1)
    apart = (
        window and family.window_kv_heads_doubled and "swa_num_key_value_heads" not in fields.values
    )
    kv_heads = (_kv_heads(fields, window) or heads) * (2 if apart else 1)
    kv_heads, head_dim, v_head_dim = _head_widths(fields, family, window, heads, kv_heads, hidden)
    sink_flags = ("add_swa_attention_sink_bias", "swa_attention_sink_enabled") if window else ()
    top_tokens, index_heads, index_dim = _block_sparse(fields, index, count)
    bias, output_bias = _attention_biases(fields, family)
    by_flag = fields.raw("use_qk_norm")
    normed = not family.qk_norm_by_flag if by_flag is None else bool(by_flag)
    qk_norm = family.qk_norm if normed else None
    if by_flag and qk_norm is None:
        fields.assume("norms of queries and keys, of a shape that is not known here: not counted")
    gated = fields.flag("attn_output_gate", default=bool(family.gate))
    cross = index in (fields.entries("cross_attention_layers") or ())
    return FullAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        window_tokens=_window_tokens(fields) if window else None,
        top_tokens=top_tokens,
        index_heads=index_heads,
        index_dim=index_dim,
        bias=bias,
        output_bias=output_bias,
        qk_norm="head" if cross else None if qk_norm == "bare" else qk_norm,
        gate=(family.gate or "element") if gated else None,
        gate_in_query=gated and family.gate_in_query,
        sinks=fields.flag(
            *(sink_flags or ("add_full_attention_sink_bias",)), default=family.sinks or apart
        ),
        keys_as_values=fields.flag("attention_k_eq_v") and not window,
        stores_kv=index < count - fields.count("num_kv_shared_layers", default=0),
        cross=cross,
    )


def _kv_heads(fields: Fields, window: bool) -> int | None:
    """Return the number of KV heads; None: as many as heads."""
    of_windows = ("swa_num_key_value_heads",) if window else ()
    grouped = fields.flag("new_decoder_architecture")  # Falcon 40B, whose multi_query means nothing
    multi_query = fields.flag("multi_query") or fields.text("attn_type") == "multiquery_attention"
    groups = (
        fields.optional_count("multi_query_group_num", least=1)
        if fields.flag("multi_query_attention")
        else None
    )
    count = fields.optional_count(*of_windows, "num_key_value_heads", least=1) or groups
    return 1 if multi_query and not grouped else count


def _head_widths(
    fields: Fields, family: Family, window: bool, heads: int, kv_heads: int, hidden: int
) -> tuple[int, int, int]:
    """Return KV heads, numbers of a key's head, of a value's. `kv_heads`: of layers with a window,
    where others differ."""
    of_windows = ("swa_head_dim",) if window else ()
    head_dim = fields.optional_count(
        *of_windows, "head_dim", "attention_head_dim", "kv_channels", least=1
    )
    if head_dim is None and family.head_dim:
        head_dim = family.head_dim
        fields.assume(f"no head_dim: {head_dim}, as in the class of this model_type")
    if head_dim is None:
        head_dim = hidden // heads
        if hidden % heads:
            fields.assume(
                f"no head_dim, and {heads} heads do not divide {hidden}: head_dim {head_dim}"
                " assumed"
            )
    v_head_dim = (
        fields.optional_count(*(("swa_v_head_dim",) if window else ()), "v_head_dim") or head_dim
    )
    wide = fields.optional_count("global_head_dim", least=1)
    if wide is None and not fields.find("per_layer_config"):
        wide = family.wide_head_dim
    fewer = fields.optional_count("num_global_key_value_heads", least=1)
    if window:
        return kv_heads, head_dim, v_head_dim
    # Gemma 4: layers that see everything have wider heads, and fewer where their values are the
    # keys.
    if fewer and fields.flag("attention_k_eq_v"):
        kv_heads = fewer
    return kv_heads, wide or head_dim, wide or v_head_dim


def _attention_biases(fields: Fields, family: Family) -> tuple[bool, bool]:
    """Return whether Q, K and V have a bias, and whether the output has."""
    of_all = fields.raw("attention_bias", *([family.bias_flag] if family.bias_flag else []))
    of_inputs = fields.raw("qkv_bias")
    if family.bias and family.output_bias is None:
        of_all = None  # Qwen2, whose class gives Q, K and V theirs, whatever the config says
    bias = next((bool(value) for value in (of_inputs, of_all) if value is not None), family.bias)
    output = bool(of_all) if family.output_bias is None else family.output_bias and bias
    return bias, fields.flag("attention_out_bias", default=output)


def _window_tokens(fields: Fields) -> int | None:
    tokens = fields.optional_count(*_WINDOWS, least=1)
    if fields.values.keys().isdisjoint(_WINDOWS):
        raise InputError(
            f"{fields.where}: layers have a sliding window, and no sliding_window says how long"
            " it is"
        )
    if tokens and fields.raw("use_bidirectional_attention") in (
        True,
        "all",
    ):  # Gemma's embedders: half either side
        return tokens // 2 + 1
    return tokens


def _block_sparse(fields: Fields, index: int, count: int) -> tuple[int | None, int, int]:
    """Return MiniMax-M3's budget in tokens, heads and width of the index; none where the layer is
    dense."""
    config = fields.inner("sparse_attention_config")
    blocks = fields.optional_count("index_topk_blocks", least=1)
    if config is None and blocks:  # transformers' own form
        listed = fields.per_layer(count, "layer_types")
        if listed is None or listed[index] != "minimax_m3_sparse":
            return None, 0, 0
        tokens = blocks * fields.count("index_block_size", least=1)
        return tokens, fields.count("index_n_heads"), fields.count("index_head_dim")
    if config is None or not config.flag("use_sparse_attention", default=True):
        return None, 0, 0
    where = config.per_layer(count, "sparse_attention_freq")
    if where is not None and not where[index]:
        return None, 0, 0
    block = config.count("sparse_block_size", least=1)
    return (
        block * config.count("sparse_topk_blocks", least=1),
        config.count("sparse_num_index_heads", default=0),
        config.count("sparse_index_dim", default=0),
    )


# --- compressed caches: a latent for all heads, a vector for many tokens --------------------------


def _latent_attention(fields: Fields, window: bool, index: int) -> LatentAttention:
    top = fields.optional_count("index_topk", least=1)
    # GLM-5.2: `shared` layers use the choice of the last `full` one.
    types = fields.entries("indexer_types")
    indexes = top is not None and (types is None or index >= len(types) or types[index] == "full")
    heads, dim = fields.optional_count("index_n_heads"), fields.optional_count("index_head_dim")
    return LatentAttention(
        heads=fields.count("num_attention_heads", least=1),
        q_rank=fields.optional_count("q_lora_rank", least=1),
        kv_rank=fields.count("kv_lora_rank", least=1),
        nope_dim=fields.count("qk_nope_head_dim"),
        rope_dim=fields.count("qk_rope_head_dim"),
        v_dim=fields.count("v_head_dim", least=1),
        top_tokens=top,
        index_heads=(heads or 0) if indexes else 0,
        index_dim=(dim or 0) if indexes else 0,
        gate="element" if fields.flag("mla_use_output_gate") else None,
        window_tokens=(
            fields.count("sliding_window", "sliding_window_size", least=1) if window else None
        ),
        bias=fields.flag("attention_bias"),
    )


def _compressed_attention(fields: Fields, ratio: int, indexed: bool) -> CompressedAttention:
    """Return DeepSeek-V4's attention; `indexed`: the overlapping fine compression, which has the
    indexer; the coarse one is read whole."""
    return CompressedAttention(
        heads=fields.count("num_attention_heads", least=1),
        head_dim=fields.count("head_dim", least=1),
        rope_dim=fields.count("qk_rope_head_dim"),
        q_rank=fields.count("q_lora_rank", least=1),
        o_rank=fields.count("o_lora_rank", least=1),
        groups=fields.count("o_groups", least=1),
        ratio=ratio,
        window_tokens=fields.count("sliding_window", least=1),
        top_tokens=fields.optional_count("index_topk") if indexed else None,
        index_heads=fields.count("index_n_heads") if indexed else 0,
        index_dim=fields.count("index_head_dim") if indexed else 0,
    )
