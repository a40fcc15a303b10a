"""From a config's fields to the attention of each layer."""

from __future__ import annotations

from typing import Any, Literal

from loadstone.catalogue.architecture.attention import Attention, FullAttention
from loadstone.catalogue.config.families import Family
from loadstone.catalogue.config.fields import Fields
from loadstone.catalogue.config.linear import linear_attention
from loadstone.catalogue.config.read_heads import attention_biases, head_widths
from loadstone.catalogue.config.read_latent import compressed_attention, latent_attention
from loadstone.core.errors import InputError

Half = Literal["full", "window", "linear", "none"]
_NAMES: dict[str, Half] = {
    "full_attention": "full",
    "attention": "full",
    "deepseek_sparse_attention": "full",
    "indexed_attention": "full",
    "compressed_sparse_attention": "full",
    "heavily_compressed_attention": "full",
    "minimax_m3_sparse": "full",
    "reference_sliding_attention": "full",  # a window for what a model wrote, whose cache engines keep all the same
    "sliding_attention": "window",
    "chunked_attention": "window",
    "linear_attention": "linear",
    "mamba": "linear",
    "conv": "linear",
    "hybrid": "full",
    "hybrid_sliding": "window",
    "moe": "none",
    "mlp": "none",
}


_OF_WINDOWS = (
    "swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim",
    "swa_attention_sink_enabled", "num_sliding_attention_heads",
)  # fmt: skip


def attention_kinds(fields: Fields, family: Family, count: int) -> list[Half]:
    """Which attention each layer has. Raises InputError: a kind that is not known here."""
    _part_windows(fields)
    named = fields.per_layer(count, "layer_types")
    if named is not None:
        fields.find("full_attention_interval", "sliding_window_pattern", "_sliding_window_pattern")
        fields.find("layer_group_size", "full_attn_idxs", "local_layer_ids", "sliding_window", "use_sliding_window")
        fields.find("global_attn_every_n_layers", "prefix_dense_sliding_window_pattern")
        return [_kind(fields, name) for name in named]
    hybrid = fields.per_layer(count, "hybrid_layer_pattern")  # MiMo: 1 is a sliding window
    if hybrid is not None:
        return ["window" if value else "full" for value in hybrid]
    mixed = fields.per_layer(count, "attn_type_list")  # MiniMax-01: 1 is softmax attention
    if mixed is not None:
        return ["full" if value else "linear" for value in mixed]
    period = fields.maybe("attn_layer_period", least=1)
    if period:  # Jamba
        offset = fields.count("attn_layer_offset", default=0)
        return ["full" if index % period == offset else "linear" for index in range(count)]
    placed = fields.items("attn_layer_indices", "full_attn_idxs")  # Bamba, of which null says: none; LFM2
    if placed is not None or (family.state == "mamba2" and "attn_layer_indices" in fields.values):
        placed = placed or []
        return ["full" if index in placed else "linear" for index in range(count)]
    local = fields.items("local_layer_ids")  # Inkling
    if local is not None:
        return ["window" if index in local else "full" for index in range(count)]
    linear = fields.inner("linear_attn_config")
    placed = None if linear is None else linear.items("full_attn_layers")
    if placed is not None:  # counted from 1
        return ["full" if index + 1 in placed else "linear" for index in range(count)]
    if family.period:
        return _every(family.period, count, "linear")
    if linear is not None:
        raise InputError(f"{linear.where}: no full_attn_layers, so which layers have a KV cache is unknown")
    interval = fields.maybe("full_attention_interval", "layer_group_size", least=1)
    if interval:
        return _every(interval, count, "linear")
    chunk = fields.maybe("attention_chunk_size")
    if chunk and "sliding_window" not in fields.values:
        # Llama 4: every fourth layer has no RoPE and sees everything.
        step = fields.count("no_rope_layer_interval", default=4, least=1)
        return _every(step, count, "window")
    window = fields.maybe("sliding_window")
    if not window or not fields.flag("use_sliding_window", default=family.windows != "G"):
        return ["full"] * count
    pattern = fields.find("sliding_window_pattern", "_sliding_window_pattern")
    if pattern is not None and isinstance(pattern[1], str):
        return _lettered(fields, pattern[1], count)
    names = ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")
    every = fields.maybe(*names, least=1)
    if every:
        return _every(every, count, "window")
    if fields.values.get("use_sliding_window"):
        rotated = fields.per_layer(count, "no_rope_layers")  # SmolLM3: 0 has no RoPE, and a window
        if rotated is not None:
            return ["full" if value else "window" for value in rotated]
        first = fields.count("max_window_layers", default=28 if family.windows else 0)  # Qwen: they see everything
        return ["full" if index < first else "window" for index in range(count)]
    kinds = _by_letters(family.windows.rstrip("$") or "L", count)
    return [*kinds[:-1], "full"] if family.windows.endswith("$") else kinds


def _part_windows(fields: Fields) -> None:
    """Step's `attention_other_setting` is about layers with a window, of which others say `swa_…`."""
    other = fields.inner("attention_other_setting")
    if other is None:
        return
    if other.text("attention_type", default="sliding_attention") != "sliding_attention":
        raise InputError(f"{other.where}: attention_type must be 'sliding_attention'; no other is read")
    names = {
        "num_attention_heads": "swa_num_attention_heads",
        "num_attention_groups": "swa_num_key_value_heads",
        "head_dim": "swa_head_dim",
    }
    said = {new: other.values[old] for old, new in names.items() if old in other.values}
    fields.values = {**fields.values, **said}


def _lettered(fields: Fields, pattern: str, count: int) -> list[Half]:
    """EXAONE 4: `LLLG` again and again, L a window, G everything, as the last layer sees."""
    if not pattern or set(pattern) - {"L", "G"}:
        raise InputError(f"{fields.where}: sliding_window_pattern is {pattern[:40]!r}; known are letters L and G")
    return [*_by_letters(pattern, count - 1), "full"]


def _by_letters(letters: str, count: int) -> list[Half]:
    return ["window" if letters[index % len(letters)] == "L" else "full" for index in range(count)]


def _every(step: int, count: int, others: Half) -> list[Half]:
    """Each `step`-th layer sees everything."""
    return ["full" if (index + 1) % step == 0 else others for index in range(count)]


def _kind(fields: Fields, name: Any) -> Half:
    # What is hybrid about a layer, these fields tell: ZAYA's and Inkling's convolutions.
    untold = name in ("hybrid", "hybrid_sliding") and not {"cca_time0", "d_rel"} & fields.values.keys()
    if not isinstance(name, str) or name not in _NAMES or untold:
        raise InputError(
            f"{fields.where}: layer type {str(name)[:40]!r} is not known, so its weights and its cache per token are "
            "unknown too"
        )
    return _NAMES[name]


def read_attention(
    fields: Fields, family: Family, kind: Half, index: int, count: int, hidden: int
) -> Attention | None:
    if kind == "none":
        return None
    ratios, rates = fields.items("compress_ratios"), fields.inner("compress_rates")
    if ratios is not None:
        ratio = fields.whole("compress_ratios", ratios[index]) if index < len(ratios) else 0
        return compressed_attention(fields, ratio, 0 < ratio <= 4)
    if rates is not None:  # transformers' own form
        named = fields.per_layer(count, "layer_types")
        if named is None:
            raise InputError(f"{fields.where}: compress_rates without layer_types, which say where they hold")
        name = named[index]
        return compressed_attention(fields, rates.count(name, default=0), name == "compressed_sparse_attention")
    if kind == "linear":
        return linear_attention(fields, family, hidden)
    if fields.flag("use_mla", default=True) and fields.find("kv_lora_rank"):
        return latent_attention(fields, family, kind == "window", index)
    return full_attention(fields, family, kind == "window", index, count, hidden)


def full_attention(
    fields: Fields, family: Family, window: bool, index: int, count: int, hidden: int
) -> FullAttention:
    swa = ("swa_",) if window else ()
    fields.find(*_OF_WINDOWS)
    heads = _heads(fields, window, index, count)
    kv_heads = _kv_heads(fields, [f"{p}num_key_value_heads" for p in swa]) or heads
    apart = window and family.windows_apart and "swa_num_key_value_heads" not in fields.values
    kv_heads *= 2 if apart else 1
    kv_heads, head_dim, v_head_dim = head_widths(fields, family, window, heads, kv_heads, hidden)
    shared = fields.count("num_kv_shared_layers", default=0)
    of_windows = ("swa_attention_sink_enabled",) if window else ()
    sinks = fields.flag(
        f"add_{'swa' if window else 'full'}_attention_sink_bias", *of_windows, default=family.sinks or apart
    )
    fields.find(f"add_{'full' if window else 'swa'}_attention_sink_bias")
    sparse = _block_sparse(fields, index, count)
    names = ("sliding_window", "attention_chunk_size", "sliding_window_size")
    window_tokens = fields.maybe(*names, least=1) if window else None
    if window and not set(names) & fields.values.keys():
        raise InputError(f"{fields.where}: layers have a sliding window, and no sliding_window says how long it is")
    both = fields.find("use_bidirectional_attention")
    if window_tokens and both and both[1] in (True, "all"):  # Gemma's embedders: half of it on either side
        window_tokens = window_tokens // 2 + 1
    bias, output_bias = attention_biases(fields, family)
    normed = fields.flag("use_qk_norm", "qk_layernorm", default=not family.qk_norm_if_said)
    qk_norm = "whole" if fields.text("qk_norm_type") == "olmo" else family.qk_norm if normed else None
    if normed and qk_norm is None and fields.find("use_qk_norm", "qk_layernorm"):
        fields.assume("norms of queries and keys, of a shape that is not known here: not counted")
    gated = fields.flag(
        "attn_output_gate",
        "use_attn_output_gate",
        "use_head_wise_attn_gate",
        "attention_output_gate",
        "use_attention_gate",
        default=bool(family.gate),
    )
    return FullAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        window_tokens=window_tokens,
        top_tokens=sparse[0],
        index_heads=sparse[1],
        index_dim=sparse[2],
        index_pool=fields.count("indexer_compress_ratio", default=1, least=1),
        bias=bias,
        output_bias=output_bias,
        qk_norm=None if qk_norm == "bare" else qk_norm,
        gate=_gating(fields) or ((family.gate or "element") if gated else None),
        gate_in_query=gated and family.gate_in_query,
        sinks=sinks,
        keys_as_values=fields.flag("attention_k_eq_v") and not window,
        stores_kv=index < count - shared,
        q_rank=fields.maybe("share_q_dim", least=1),
    )


def _heads(fields: Fields, window: bool, index: int, count: int) -> int:
    each = fields.per_layer(count, "num_attention_heads_per_layer")  # Laguna
    first = ("swa_num_attention_heads", "num_sliding_attention_heads") if window else ()
    all_of_them = fields.count(*first, "num_attention_heads", "n_head", "n_heads", "num_heads", least=1)
    return all_of_them if each is None else fields.whole("num_attention_heads_per_layer", each[index], least=1)


def _gating(fields: Fields) -> Literal["element", "head"] | None:
    """Laguna's; None: its field is absent. Raises InputError: any other."""
    found = fields.find("gating")
    if found is None:
        return None
    if found[1] is True or found[1] == "per-head":
        return "head"
    if found[1] == "per-element":
        return "element"
    raise InputError(f"{fields.where}: gating is {str(found[1])[:40]!r}; known are true, per-head and per-element")


def _kv_heads(fields: Fields, first: list[str]) -> int | None:
    """None: as many as heads."""
    names = ("num_key_value_heads", "num_attention_groups", "n_head_kv", "num_kv_heads", "kv_n_heads")
    grouped = fields.flag("new_decoder_architecture")  # Falcon 40B, whose multi_query means nothing
    multi_query = fields.flag("multi_query") or fields.text("attn_type") == "multiquery_attention"
    groups = fields.maybe("multi_query_group_num", least=1) if fields.flag("multi_query_attention") else None
    said = fields.maybe(*first, *names, least=1) or groups
    return 1 if multi_query and not grouped else said


def _block_sparse(fields: Fields, index: int, count: int) -> tuple[int | None, int, int]:
    """MiniMax-M3: budget in tokens, heads and width of the index; none where the layer is dense."""
    budget = fields.maybe("indexer_budget", least=1)  # Qwen4
    if budget:
        fields.find("indexer_kv_heads")
        return budget, fields.count("indexer_n_heads", least=1), fields.count("indexer_head_dim", least=1)
    config = fields.inner("sparse_attention_config")
    blocks = fields.maybe("index_topk_blocks", least=1)
    if config is None and blocks:  # transformers' own form
        fields.find("index_n_heads", "index_head_dim", "index_block_size", "index_local_blocks")
        named = fields.per_layer(count, "layer_types")
        if named is None or named[index] != "minimax_m3_sparse":
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
