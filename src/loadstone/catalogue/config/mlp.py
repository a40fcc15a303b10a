"""Reads the MLP or the experts of each layer."""

import re

from loadstone.catalogue.architecture.mlp import DenseMlp, Experts
from loadstone.catalogue.config.families import Family
from loadstone.catalogue.config.fields import Fields
from loadstone.core.errors import InputError

_SPARSE = {"sparse": True, "moe": True, "hash_moe": True, "dense": False}


# --- which layers have experts --------------------------------------------------------------------


def sparse_layers(fields: Fields, count: int) -> list[bool]:
    """Return which layers have experts. Raises InputError: a kind of layer that is not known
    here."""
    if not fields.optional_count("n_routed_experts"):
        return [False] * count
    period = fields.optional_count("expert_layer_period", least=1)
    if period:  # Jamba
        offset = fields.count("expert_layer_offset", default=0)
        several = fields.count("n_routed_experts") > 1
        return [several and index % period == offset for index in range(count)]
    placed = fields.entries("moe_layers")  # Llama 4
    if placed:
        return [index in placed for index in range(count)]
    types = fields.per_layer(count, "mlp_layer_types")
    if types is not None:
        unknown = next((name for name in types if name not in _SPARSE), None)
        if unknown is not None:
            raise InputError(
                f"{fields.where}: MLP type {str(unknown)[:40]!r} is not known; known are"
                f" {', '.join(_SPARSE)}"
            )
        return [_SPARSE[name] for name in types]
    enumerated = _read_enumerated(fields)
    if enumerated is not None:
        return [index in enumerated for index in range(count)]
    first = fields.count("first_k_dense_replace", default=0)
    last = fields.find("moe_layer_end_index")  # -1: the last layer
    end = count - 1 if last is None or last[1] == -1 else fields.check_count(*last)
    dense = {value for value in fields.entries("mlp_only_layers") or [] if isinstance(value, int)}
    every = fields.count("decoder_sparse_step", default=1, least=1)
    step = fields.count("interleave_moe_layer_step", default=1, least=1)
    if isinstance(fields.raw("moe_layer_freq"), list):
        return [bool(value) for value in fields.per_layer(count, "moe_layer_freq") or []]
    frequency = fields.count("moe_layer_freq", default=1, least=1)
    return [
        first <= index <= end
        and index not in dense
        and (index + 1) % every == 0
        and index % frequency == 0
        and (index + 1) % step == 0
        for index in range(count)
    ]


def _read_enumerated(fields: Fields) -> set[int] | None:
    """Return Step's layers with experts: `3,4,5` or a list."""
    value = fields.raw("moe_layers_enum")
    if value is None:
        return None
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(
        re.fullmatch("[0-9]{1,5}", str(entry).strip()) for entry in listed
    ):
        raise InputError(
            f"{fields.where}: moe_layers_enum is {str(value)[:40]!r}; it must list layers: 3,4,5"
        )
    return {int(entry) for entry in listed}


# --- one MLP --------------------------------------------------------------------------------------


def read_dense(
    fields: Fields, family: Family, hidden: int, index: int = 0, count: int = 1
) -> DenseMlp:
    """Return the MLP of layer `index` of `count`."""
    # BLOOM does not say: four times hidden.
    default = 4 * hidden if family.mlp_four_times_hidden else None
    listed = fields.raw("intermediate_size")
    if isinstance(listed, list) and len(listed) == count:  # Gemma 3n
        width: int | None = fields.check_count("intermediate_size", listed[index], least=1)
    else:
        # Of Granite 4 the shared one is the MLP where it has no experts; 0 is none.
        shared_size = (
            ("shared_intermediate_size",)
            if fields.optional_count("shared_intermediate_size")
            else ()
        )
        width = fields.optional_count(
            "dense_intermediate_size",
            *shared_size,
            "intermediate_size_mlp",
            "intermediate_size",
            "ffn_hidden_size",
            "ffn_dim",
            "block_ff_dim",
            "n_inner",
            least=1,
        )
    width = width or fields.count("intermediate_size", default=default)
    if fields.flag("block_auto_adjust_ff_dim"):  # LFM2: two thirds, to the next multiple
        multiple = fields.count("block_multiple_of", default=256, least=1)
        width = (
            -(-int(fields.number("block_ffn_dim_multiplier", 1) * int(2 * width / 3)) // multiple)
            * multiple
        )
    shared = fields.count("num_kv_shared_layers", default=0)
    if fields.flag("use_double_wide_mlp") and index >= count - shared:
        width *= 2  # Gemma 4: where a layer reads an earlier one's cache
    biased = (
        fields.flag(family.bias_flag, default=family.mlp_bias)
        if family.bias_flag
        else family.mlp_bias
    )
    return DenseMlp(width, family.matrices, fields.flag("mlp_bias", default=biased))


# --- experts --------------------------------------------------------------------------------------


def read_experts(fields: Fields, family: Family, index: int = 0) -> Experts:
    """Return the experts of layer `index`."""
    count = fields.count("n_routed_experts", least=1)
    names = (
        "moe_intermediate_size",
        "expert_intermediate_size",
        "expert_ffn_hidden_size",
        "intermediate_size",
    )
    width = fields.count(*names, "ffn_hidden_size", least=1)
    per_token = fields.count("num_experts_per_tok")
    if per_token > count:
        raise InputError(f"{fields.where}: a token takes {per_token} experts of {count}")
    if family.bias_flag and fields.flag(family.bias_flag):  # ERNIE
        raise InputError(
            f"{fields.where}: use_bias is true; which biases there are beside experts is not known"
            " here"
        )
    zero = fields.count("zero_expert_num", default=0)
    biased = fields.flag("use_routing_bias", default=family.router_bias)
    return Experts(
        experts=count,
        per_token=round(per_token * count / (count + zero)),
        intermediate=width,
        matrices=family.matrices,
        shared_intermediate=_shared_width(fields, family, width),
        bias=family.expert_bias,
        router_bias=biased and not _is_hashed(fields, index),
        shared_gate=family.shared_gate,
        latent=fields.optional_count("moe_latent_size", least=1),
        more_choices=zero,
        shared_bias=fields.flag("mlp_bias"),
    )


def _is_hashed(fields: Fields, index: int) -> bool:
    """Return whether, as in DeepSeek-V4's first layers, a table by token chooses the experts,
    without the router's correction."""
    types = fields.entries("mlp_layer_types")
    if types is not None and index < len(types):
        return bool(types[index] == "hash_moe")
    return index < fields.count("num_hash_layers", default=0)


def _shared_width(fields: Fields, family: Family, width: int) -> int:
    """Return the width of the part that all tokens pass beside the routed experts."""
    # Gemma 4: the ordinary MLP runs beside the experts. Llama 4 has two widths.
    if fields.flag("enable_moe_block") or fields.find("intermediate_size_mlp"):
        return fields.count("intermediate_size")
    shared = fields.optional_count("shared_expert_intermediate_size")
    experts = fields.optional_count("n_shared_experts")
    if experts is None and "use_mixed_mlp_moe" not in fields.values:
        experts = family.shared_experts
    return (experts or 0) * width if shared is None else shared
