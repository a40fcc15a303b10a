"""From a config's fields to the MLP or the experts of each layer."""

from __future__ import annotations

import re
from typing import Any

from loadstone.catalogue.architecture.mlp import DenseMlp, Experts
from loadstone.catalogue.config.families import Family
from loadstone.catalogue.config.fields import Fields
from loadstone.core.errors import InputError

_PER_TOKEN = (
    "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts", "moe_topk", "moe_top_k",
    "moe_k",
)  # fmt: skip
_PAIRS = (
    "moe_num_experts", "moe_intermediate_size", "moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval",
    "moe_k",
)  # fmt: skip
_SPARSE = {"sparse": True, "moe": True, "hash_moe": True, "dense": False}
_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts", "num_routed_experts")

EXPERTS_ONLY = (
    "num_experts_per_tok", "moe_intermediate_size", "expert_layer_period", "expert_layer_offset", "n_routed_experts",
    "n_shared_experts", "moe_shared_expert_intermediate_size", "num_shared_experts", "shared_expert_sink",
    "shared_expert_intermediate_size", "use_expert_bias",
)  # fmt: skip
"""Say nothing of a model without experts, whose class may have them."""


def sparse_layers(fields: Fields, count: int) -> list[bool]:
    """Which layers have experts. Raises InputError: a kind of layer that is not known here."""
    _part_pairs(fields, count)
    found = _sparse(fields, count)
    if not any(found):
        fields.find(*_EXPERTS, *_PER_TOKEN, *EXPERTS_ONLY)
    return found


def _sparse(fields: Fields, count: int) -> list[bool]:
    if not fields.maybe(*_EXPERTS):
        fields.find("first_k_dense_replace", "moe_layer_freq", "mlp_only_layers", "decoder_sparse_step")
        return [False] * count
    period = fields.maybe("expert_layer_period", least=1)
    if period:  # Jamba
        offset = fields.count("expert_layer_offset", default=0)
        several = fields.count(*_EXPERTS) > 1
        return [several and index % period == offset for index in range(count)]
    placed = fields.items("moe_layers")  # Llama 4
    if placed:
        fields.find("interleave_moe_layer_step")
        return [index in placed for index in range(count)]
    fields.find("dense_intermediate_size", "prefix_dense_intermediate_size")
    types = fields.per_layer(count, "mlp_layer_types")
    if types is not None:
        fields.find(
            "first_k_dense_replace", "moe_layer_freq", "is_moe_layer", "mlp_only_layers", "decoder_sparse_step"
        )
        return [_is_sparse(fields, name) for name in types]
    named = _moe_layers(fields)
    if named is not None:
        return [index in named for index in range(count)]
    firsts = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", "dense_mlp_idx")
    first = fields.count(*firsts, default=0)
    last = fields.find("moe_layer_end_index")  # -1: the last layer
    end = count - 1 if last is None or last[1] == -1 else fields.whole(*last)
    only = {value for value in fields.items("mlp_only_layers") or [] if isinstance(value, int)}
    names = ("decoder_sparse_step", "moe_layer_interval", "moe_layer_frequency")
    every = fields.count(*names, default=1, least=1)
    step = fields.count("interleave_moe_layer_step", default=1, least=1)
    frequency = fields.find("moe_layer_freq")
    listed = fields.per_layer(count, "moe_layer_freq") if frequency and isinstance(frequency[1], list) else None
    listed = fields.per_layer(count, "is_moe_layer") if listed is None else listed
    freq = 1 if listed or not frequency else fields.whole("moe_layer_freq", frequency[1], least=1)
    return [
        bool(listed[index])
        if listed is not None
        else first <= index <= end
        and index not in only
        and (index + 1) % every == 0
        and index % freq == 0
        and (index + 1) % step == 0
        for index in range(count)
    ]


def _part_pairs(fields: Fields, count: int) -> None:
    """ERNIE 4.5 VL says some numbers twice: for its experts, and for those of images."""
    for name in _PAIRS:
        value = fields.values.get(name)
        if isinstance(value, list) and len(value) == 2 != count:
            fields.values = {**fields.values, name: value[0], f"image_{name}": value[1]}


def _is_sparse(fields: Fields, name: Any) -> bool:
    if name not in _SPARSE:
        raise InputError(f"{fields.where}: MLP type {str(name)[:40]!r} is not known; known are {', '.join(_SPARSE)}")
    return _SPARSE[name]


def _moe_layers(fields: Fields) -> set[int] | None:
    """Step: `3,4,5` or a list."""
    found = fields.find("moe_layers_enum")
    if found is None:
        return None
    listed = found[1].split(",") if isinstance(found[1], str) else found[1]
    if not isinstance(listed, list) or not all(re.fullmatch("[0-9]{1,5}", str(each).strip()) for each in listed):
        raise InputError(f"{fields.where}: moe_layers_enum is {str(found[1])[:40]!r}; it must list layers: 3,4,5")
    fields.find("moe_every_n_layer", "moe_layer_offset")
    return {int(each) for each in listed}


def read_dense(fields: Fields, family: Family, hidden: int, index: int = 0, count: int = 1) -> DenseMlp:
    """Of layer `index` of `count`."""
    # Of Granite 4 the shared one is the MLP where it has no experts; 0 is none.
    shared_size = ("shared_intermediate_size",) if fields.maybe("shared_intermediate_size") else ()
    names = (
        "dense_intermediate_size", "prefix_dense_intermediate_size", *shared_size, "intermediate_size_mlp",
        "intermediate_size", "ffn_hidden_size", "ffn_dim",
    )  # fmt: skip
    # BLOOM and GPT-2 do not say: four times hidden; MPT says how often.
    usual = int(fields.real("expansion_ratio", 4) * hidden) if family.four_times else None
    listed = fields.find("intermediate_size")
    if listed and isinstance(listed[1], list) and len(listed[1]) == count:  # Gemma 3n
        said: int | None = fields.whole("intermediate_size", listed[1][index], least=1)
    else:
        said = fields.maybe(*names, "block_ff_dim", "n_inner", least=1)
    width = said or fields.count("intermediate_size", default=usual)
    if not fields.flag("block_auto_adjust_ff_dim"):
        fields.find("block_multiple_of", "block_ffn_dim_multiplier")
    else:  # LFM2: two thirds, to the next multiple
        of = fields.count("block_multiple_of", default=256, least=1)
        width = -(-int(fields.real("block_ffn_dim_multiplier", 1) * int(2 * width / 3)) // of) * of
    shared = fields.count("num_kv_shared_layers", default=0)
    if fields.flag("use_double_wide_mlp") and index >= count - shared:
        width *= 2  # Gemma 4: where a layer reads an earlier one's cache
    biased = fields.flag(family.all_biases, default=family.mlp_bias) if family.all_biases else family.mlp_bias
    return DenseMlp(width, family.matrices, not family.mlp_plain and fields.flag("mlp_bias", default=biased))


def read_experts(fields: Fields, family: Family, index: int = 0) -> Experts:
    """Of layer `index`."""
    count = fields.count(*_EXPERTS, least=1)
    names = ("moe_intermediate_size", "expert_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
    width = fields.count(*names, "ffn_hidden_size", least=1)
    per_token = fields.count(*_PER_TOKEN)
    if per_token > count:
        raise InputError(f"{fields.where}: a token takes {per_token} experts of {count}")
    if family.all_biases and fields.flag(family.all_biases):  # ERNIE
        raise InputError(f"{fields.where}: use_bias is true; which biases there are beside experts is not known here")
    zero = fields.count("zero_expert_num", default=0)
    corrected = ("use_routing_bias", "use_moe_router_bias", "use_expert_bias", "moe_router_enable_expert_bias")
    biased = fields.flag(*corrected, default=family.router_bias)
    return Experts(
        experts=count,
        per_token=round(per_token * count / (count + zero)),
        intermediate=width,
        matrices=family.matrices,
        shared_intermediate=_shared(fields, family, width),
        bias=family.expert_bias,
        router_bias=biased and not _hashed(fields, index),
        choices_biased="router_hidden_size" in fields.values or zero > 0,
        shared_gate=family.shared_gate,
        latent=fields.maybe("moe_latent_size", "routed_expert_hidden_size", "moe_hidden_size", least=1),
        router_width=fields.maybe("router_hidden_size", least=1),  # ZAYA
        more_choices=zero or _more_choices(fields),
        shared_bias=not family.mlp_plain and fields.flag("mlp_bias", default=False),
        image_intermediate=_of_images(fields, index, count),
    )


def _more_choices(fields: Fields) -> int:
    """What the router weighs beside the experts: Inkling's shared ones, and no expert at all, with ZAYA."""
    if fields.find("shared_expert_sink"):
        return fields.count("n_shared_experts", least=1)
    return 1 if "router_hidden_size" in fields.values else 0


def _hashed(fields: Fields, index: int) -> bool:
    """DeepSeek-V4: in the first layers a table by token chooses the experts, without the router's correction."""
    named = fields.items("mlp_layer_types")
    if named is not None and index < len(named):
        return bool(named[index] == "hash_moe")
    return index < fields.count("num_hash_layers", default=0)


def _of_images(fields: Fields, index: int, experts: int) -> int:
    """Width of the experts of images; 0: none in this layer."""
    width = fields.maybe("image_moe_intermediate_size", least=1)
    if not width or fields.count("image_moe_num_experts", default=experts) != experts:
        if width:
            raise InputError(f"{fields.where}: moe_num_experts: only as many experts of images as of text are read")
        return 0
    fields.find("image_moe_layer_interval", "image_moe_k")
    start = fields.count("image_moe_layer_start_index", default=0)
    end = fields.find("image_moe_layer_end_index")
    last = end is None or end[1] == -1 or index <= fields.whole(*end)
    return width if index >= start and last else 0


def _shared(fields: Fields, family: Family, width: int) -> int:
    """Width of the part that all tokens pass beside the routed experts."""
    if fields.flag("enable_moe_block"):
        return fields.count("intermediate_size")  # Gemma 4: the ordinary MLP runs beside the experts
    if fields.find("intermediate_size_mlp"):
        return fields.count("intermediate_size")  # Llama 4
    if fields.flag("parallel_attn_mlp_res"):
        return fields.count("hidden_size")  # Arctic: a dense MLP as wide as the residual stream
    named = (
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
        "share_expert_dim",
    )
    shared = fields.maybe(*named)
    each = fields.count("shared_experts_intermediate_size", default=width)
    many = fields.maybe("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
    many = family.shared_experts if many is None and "use_mixed_mlp_moe" not in fields.values else many
    return (many or 0) * each if shared is None else shared
