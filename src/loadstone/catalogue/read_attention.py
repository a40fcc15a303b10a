"""From a config's fields to the attention of each layer."""

from __future__ import annotations

from typing import Any, Literal

from loadstone.catalogue.attention import (
    Attention,
    CompressedAttention,
    FullAttention,
    LatentAttention,
)
from loadstone.catalogue.families import Family
from loadstone.catalogue.fields import Fields
from loadstone.catalogue.read_heads import attention_biases, head_widths
from loadstone.catalogue.read_linear import linear_attention
from loadstone.errors import InputError

Half = Literal["full", "window", "linear", "none"]
_NAMES: dict[str, Half] = {
    "full_attention": "full",
    "attention": "full",
    "deepseek_sparse_attention": "full",
    "indexed_attention": "full",
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

_GRANULARITIES: dict[str, Literal["element", "head"]] = {"head_wise": "head", "element_wise": "element"}
"""Of Ling's gates."""


def attention_kinds(fields: Fields, family: Family, count: int) -> list[Half]:
    """Which attention each layer has. Raises InputError: a kind that is not known here."""
    named = fields.per_layer(count, "layer_types")
    if named is not None:
        fields.find("full_attention_interval", "sliding_window_pattern", "_sliding_window_pattern")
        fields.find("layer_group_size", "full_attn_idxs", "local_layer_ids", "sliding_window")
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
        return ["full" if (index + 1) % family.period == 0 else "linear" for index in range(count)]
    if linear is not None:
        raise InputError(f"{linear.where}: no full_attn_layers, so which layers have a KV cache is unknown")
    interval = fields.maybe("full_attention_interval", "layer_group_size", least=1)
    if interval:
        return ["full" if (index + 1) % interval == 0 else "linear" for index in range(count)]
    chunk = fields.maybe("attention_chunk_size")
    if chunk and "sliding_window" not in fields.values:
        # Llama 4: every fourth layer has no RoPE and sees everything.
        step = fields.count("no_rope_layer_interval", default=4, least=1)
        return ["full" if (index + 1) % step == 0 else "window" for index in range(count)]
    window = fields.maybe("sliding_window")
    if not window or not fields.flag("use_sliding_window", default=family.windows != "G"):
        return ["full"] * count
    pattern = fields.find("sliding_window_pattern", "_sliding_window_pattern")
    if pattern is not None and isinstance(pattern[1], str):
        return _lettered(fields, pattern[1], count)
    every = fields.maybe("sliding_window_pattern", "_sliding_window_pattern", least=1)
    if every:
        return ["full" if (index + 1) % every == 0 else "window" for index in range(count)]
    if fields.values.get("use_sliding_window"):
        rotated = fields.per_layer(count, "no_rope_layers")  # SmolLM3: 0 has no RoPE, and a window
        if rotated is not None:
            return ["full" if value else "window" for value in rotated]
        first = fields.count("max_window_layers", default=28 if family.windows else 0)  # Qwen: they see everything
        return ["full" if index < first else "window" for index in range(count)]
    letters = family.windows.rstrip("$") or "L"
    kinds: list[Half] = ["window" if letters[index % len(letters)] == "L" else "full" for index in range(count)]
    return [*kinds[:-1], "full"] if family.windows.endswith("$") else kinds


def _lettered(fields: Fields, pattern: str, count: int) -> list[Half]:
    """EXAONE 4: `LLLG` again and again, L a window, G everything, as the last layer sees."""
    if not pattern or set(pattern) - {"L", "G"}:
        raise InputError(f"{fields.where}: sliding_window_pattern is {pattern[:40]!r}; known are letters L and G")
    letters = [pattern[index % len(pattern)] for index in range(count - 1)] + ["G"]
    return ["window" if letter == "L" else "full" for letter in letters]


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
    ratios = fields.items("compress_ratios")
    if ratios is not None:
        return _compressed(fields, fields.whole("compress_ratios", ratios[index]) if index < len(ratios) else 0)
    if kind == "linear":
        return linear_attention(fields, family, hidden)
    if fields.find("kv_lora_rank"):
        return _latent(fields, family, index)
    return full_attention(fields, family, kind == "window", index, count, hidden)


def full_attention(
    fields: Fields, family: Family, window: bool, index: int, count: int, hidden: int
) -> FullAttention:
    swa = ("swa_",) if window else ()
    heads = fields.count(
        *[f"{p}num_attention_heads" for p in swa], "num_attention_heads", "n_head", "n_heads", "num_heads", least=1
    )
    kv_heads = _kv_heads(fields, [f"{p}num_key_value_heads" for p in swa]) or heads
    kv_heads, head_dim, v_head_dim = head_widths(fields, family, window, heads, kv_heads, hidden)
    shared = fields.count("num_kv_shared_layers", default=0)
    sinks = fields.flag(f"add_{'swa' if window else 'full'}_attention_sink_bias", default=family.sinks)
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
        gate=(family.gate or "element") if gated else None,
        sinks=sinks,
        keys_as_values=fields.flag("attention_k_eq_v") and not window,
        stores_kv=index < count - shared,
    )


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


def _latent(fields: Fields, family: Family, index: int) -> LatentAttention:
    fields.find("head_dim", "qk_head_dim", "num_key_value_heads", "num_attention_heads")
    top = fields.maybe("index_topk", least=1)
    who = fields.items("indexer_types")  # GLM-5.2: `shared` layers use the choice of the last `full` one
    own = top is not None and (who is None or index >= len(who) or who[index] == "full")
    heads, dim = fields.maybe("index_n_heads"), fields.maybe("index_head_dim")
    pool = fields.maybe("index_kpool", least=1)
    # Ling's own configs say which gate, or that there is none; transformers' form of them leaves it to its class.
    unsaid = None if family.state == "kda-full" and "linear_num_heads" not in fields.values else family.gate
    fine = _GRANULARITIES.get(fields.text("gated_attention_proj_granularity_type"), unsaid)
    return LatentAttention(
        heads=fields.count("num_attention_heads", least=1),
        q_rank=fields.maybe("q_lora_rank", least=1),
        kv_rank=fields.count("kv_lora_rank", least=1),
        nope_dim=fields.count("qk_nope_head_dim"),
        rope_dim=fields.count("qk_rope_head_dim"),
        v_dim=fields.count("v_head_dim", least=1),
        top_tokens=top,
        index_heads=(heads or 0) if own else 0,
        index_dim=(dim or 0) if own else 0,
        index_pool=pool if own else None,
        gate="element" if fields.flag("mla_use_output_gate") else fine,
    )


def _compressed(fields: Fields, ratio: int) -> CompressedAttention:
    fields.find("num_key_value_heads")
    # The overlapping fine compression has the indexer; the coarse one is read whole.
    indexed = 0 < ratio <= 4
    return CompressedAttention(
        heads=fields.count("num_attention_heads", least=1),
        head_dim=fields.count("head_dim", least=1),
        rope_dim=fields.count("qk_rope_head_dim"),
        q_rank=fields.count("q_lora_rank", least=1),
        o_rank=fields.count("o_lora_rank", least=1),
        groups=fields.count("o_groups", least=1),
        ratio=ratio,
        window_tokens=fields.count("sliding_window", least=1),
        top_tokens=fields.maybe("index_topk") if indexed else None,
        index_heads=fields.count("index_n_heads") if indexed else 0,
        index_dim=fields.count("index_head_dim") if indexed else 0,
    )
