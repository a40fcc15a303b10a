"""From a config's fields to the MLP or the experts of each layer."""

from __future__ import annotations

from loadstone.catalogue.families import Family
from loadstone.catalogue.fields import Fields
from loadstone.catalogue.mlp import DenseMlp, Experts
from loadstone.errors import InputError

_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts", "num_routed_experts")


def sparse_layers(fields: Fields, count: int) -> list[bool]:
    """Which layers have experts."""
    if not fields.maybe(*_EXPERTS):
        fields.find("first_k_dense_replace", "moe_layer_freq", "mlp_only_layers", "decoder_sparse_step")
        return [False] * count
    named = fields.per_layer(count, "mlp_layer_types")
    if named is not None:
        fields.find("first_k_dense_replace", "moe_layer_freq")
        return [name == "sparse" for name in named]
    first = fields.count("first_k_dense_replace", default=0)
    only = {value for value in fields.items("mlp_only_layers") or [] if isinstance(value, int)}
    every = fields.count("decoder_sparse_step", default=1, least=1)
    step = fields.count("interleave_moe_layer_step", default=1, least=1)
    frequency = fields.find("moe_layer_freq")
    listed = fields.per_layer(count, "moe_layer_freq") if frequency and isinstance(frequency[1], list) else None
    freq = 1 if listed or not frequency else fields.whole("moe_layer_freq", frequency[1], least=1)
    return [
        bool(listed[index])
        if listed is not None
        else index >= first
        and index not in only
        and (index + 1) % every == 0
        and index % freq == 0
        and (index + 1) % step == 0
        for index in range(count)
    ]


def read_dense(fields: Fields, family: Family, hidden: int) -> DenseMlp:
    names = ("dense_intermediate_size", "intermediate_size_mlp", "intermediate_size", "ffn_hidden_size", "ffn_dim")
    # BLOOM and GPT-2 do not say: four times hidden.
    usual = 4 * hidden if family.matrices == 2 else None
    return DenseMlp(fields.count(*names, "n_inner", default=usual, least=1), family.matrices, family.mlp_bias)


def read_experts(fields: Fields, family: Family) -> Experts:
    count = fields.count(*_EXPERTS, least=1)
    width = fields.count("moe_intermediate_size", "expert_intermediate_size", "intermediate_size", least=1)
    per_token = fields.count(
        "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts", "moe_topk", "moe_top_k"
    )
    if per_token > count:
        raise InputError(f"{fields.where}: a token takes {per_token} experts of {count}")
    return Experts(
        experts=count,
        per_token=per_token,
        intermediate=width,
        matrices=family.matrices,
        shared_intermediate=_shared(fields, width),
        bias=family.expert_bias,
        router_bias=fields.flag("use_routing_bias", "use_moe_router_bias", default=family.router_bias),
        shared_gate=family.shared_gate,
        latent=fields.maybe("moe_latent_size", "routed_expert_hidden_size", least=1),
    )


def _shared(fields: Fields, width: int) -> int:
    """Width of the part that all tokens pass beside the routed experts."""
    if fields.flag("enable_moe_block"):
        return fields.count("intermediate_size")  # Gemma 4: the ordinary MLP runs beside the experts
    if fields.find("intermediate_size_mlp"):
        return fields.count("intermediate_size")  # Llama 4
    named = (
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
        "share_expert_dim",
    )
    shared = fields.maybe(*named)
    many = fields.maybe("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    return (many or 0) * width if shared is None else shared
