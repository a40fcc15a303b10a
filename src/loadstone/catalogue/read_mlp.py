"""From a config's fields to the MLP or the experts of each layer."""

from __future__ import annotations

from loadstone.catalogue.families import Family
from loadstone.catalogue.fields import Fields
from loadstone.catalogue.mlp import DenseMlp, Experts
from loadstone.errors import InputError

_PER_TOKEN = (
    "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts", "moe_topk", "moe_top_k",
    "moe_k",
)  # fmt: skip
_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts", "num_routed_experts")

EXPERTS_ONLY = (
    "num_experts_per_tok", "moe_intermediate_size", "expert_layer_period", "expert_layer_offset", "n_routed_experts",
    "n_shared_experts", "moe_shared_expert_intermediate_size", "num_shared_experts", "shared_expert_sink",
    "shared_expert_intermediate_size", "use_expert_bias",
)  # fmt: skip
"""Say nothing of a model without experts, whose class may have them."""


def sparse_layers(fields: Fields, count: int) -> list[bool]:
    """Which layers have experts."""
    found = _sparse(fields, count)
    if not any(found):
        fields.find(*_EXPERTS, *_PER_TOKEN, *EXPERTS_ONLY)
    return found


def _sparse(fields: Fields, count: int) -> list[bool]:
    if not fields.maybe(*_EXPERTS):
        fields.find(
            "first_k_dense_replace", "moe_layer_freq", "mlp_only_layers", "decoder_sparse_step", *EXPERTS_ONLY
        )
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
    named = fields.per_layer(count, "mlp_layer_types")
    if named is not None:
        fields.find("first_k_dense_replace", "moe_layer_freq")
        return [name == "sparse" for name in named]
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


def read_dense(fields: Fields, family: Family, hidden: int, index: int = 0, count: int = 1) -> DenseMlp:
    """Of layer `index` of `count`."""
    names: tuple[str, ...] = (
        "dense_intermediate_size",
        "intermediate_size_mlp",
        "intermediate_size",
        "ffn_hidden_size",
        "ffn_dim",
    )
    if fields.maybe("shared_intermediate_size"):
        names = ("shared_intermediate_size", *names)  # Granite 4, of which this is the MLP where it has no experts
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
    return DenseMlp(width, family.matrices, fields.flag("mlp_bias", default=biased))


def read_experts(fields: Fields, family: Family) -> Experts:
    count = fields.count(*_EXPERTS, least=1)
    names = ("moe_intermediate_size", "expert_intermediate_size", "intermediate_size", "ffn_hidden_size")
    width = fields.count(*names, least=1)
    per_token = fields.count(*_PER_TOKEN)
    if per_token > count:
        raise InputError(f"{fields.where}: a token takes {per_token} experts of {count}")
    return Experts(
        experts=count,
        per_token=per_token,
        intermediate=width,
        matrices=family.matrices,
        shared_intermediate=_shared(fields, width),
        bias=family.expert_bias,
        router_bias=fields.flag(
            "use_routing_bias",
            "use_moe_router_bias",
            "use_expert_bias",
            "moe_router_enable_expert_bias",
            default=family.router_bias,
        ),
        shared_gate=family.shared_gate,
        latent=fields.maybe("moe_latent_size", "routed_expert_hidden_size", least=1),
        router_width=fields.maybe("router_hidden_size", least=1),  # ZAYA
        more_choices=_more_choices(fields),
        shared_bias=fields.flag("mlp_bias"),
    )


def _more_choices(fields: Fields) -> int:
    """What the router weighs beside the experts: Inkling's shared ones, and no expert at all, with ZAYA."""
    if fields.find("shared_expert_sink"):
        return fields.count("n_shared_experts", least=1)
    return 1 if "router_hidden_size" in fields.values else 0


def _shared(fields: Fields, width: int) -> int:
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
    many = fields.maybe("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
    return (many or 0) * width if shared is None else shared
