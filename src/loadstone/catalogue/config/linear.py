"""From a config's fields to the state that a layer keeps."""

from __future__ import annotations

from loadstone.catalogue.architecture.linear import LinearAttention
from loadstone.catalogue.architecture.precision import TORCH_DTYPES
from loadstone.catalogue.config.families import Family
from loadstone.catalogue.config.fields import Fields
from loadstone.core.errors import InputError

_MAMBA2_HEADS = ("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_heads")

STATES_ONLY = (
    "mamba_num_heads", "mamba_n_heads", "mamba_head_dim", "mamba_d_head", "mamba_n_groups", "mamba_d_state",
    "mamba_d_conv", "mamba_conv_bias", "mamba_proj_bias", "mamba_expand", "mamba_dt_rank", "n_groups", "conv_kernel",
    "ssm_state_size", "use_conv_bias", "expand", "mamba_ssm_cache_dtype", "conv_L_cache", "conv_bias",
    "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim", "short_conv_kernel_size", "linear_num_key_heads",
    "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "mamba_ssm_dtype",
)  # fmt: skip
"""Say nothing of a model none of whose layers keeps a state, whose class may have such."""


def linear_attention(fields: Fields, family: Family, hidden: int) -> LinearAttention:
    """Raises InputError: no field says which kind it is."""
    if family.state == "lightning":
        heads = fields.count("num_attention_heads", least=1)
        dim = fields.count("head_dim", default=hidden // heads, least=1)
        return LinearAttention("lightning", heads, heads, dim, dim, 1)
    if family.state == "short-conv":
        bias, width = fields.flag("conv_bias"), fields.count("conv_L_cache", default=3, least=1)
        return LinearAttention("short-conv", hidden, 0, 0, 1, width, bias, bias=bias, output_bias=bias)
    if family.state in ("mamba1", "mamba1-normed"):
        return _mamba1(fields, hidden, family.state == "mamba1-normed")
    kda = fields.inner("linear_attn_config")
    if kda is not None:
        kda.find("kda_layers", "full_attn_layers", "gate_lower_bound", "safe_gate")
        fields.find("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")  # which it overrides
        heads, dim = kda.count("num_heads", least=1), kda.count("head_dim", least=1)
        full = kda.flag("use_full_rank_gate")
        width = kda.count("short_conv_kernel_size", default=4, least=1)
        return LinearAttention("kda", heads, heads, dim, dim, width, state_dtype="fp32", full_rank_gate=full)
    if fields.find("linear_num_heads", "short_conv_kernel_size"):
        # Ling 3's own configs have no names of their own for these: its heads are the attention's, head_dim theirs.
        heads = fields.count("linear_num_heads", "num_attention_heads", least=1)
        dim = fields.count("linear_head_dim", "head_dim", least=1)
        width = fields.count("linear_conv_kernel_dim", "short_conv_kernel_size", default=4, least=1)
        full = fields.flag("no_kda_lora", default=family.state == "kda-full")
        return LinearAttention(
            "kda", heads, heads, dim, dim, width, state_dtype="fp32", full_rank_gate=full, full_rank_decay=full
        )
    if family.state == "kda-full":  # Ling 2.5, which has no such convolution
        heads, dim = fields.count("num_attention_heads", least=1), fields.count("head_dim", least=1)
        biased, normed = fields.flag("use_bias"), fields.flag("use_qk_norm")
        bias = fields.flag("use_qkv_bias") or biased
        fields.find("group_norm_size", "linear_silu", "use_linear_silu", "linear_rope")
        return LinearAttention(
            "lightning", heads, heads, dim, dim, 1, bias=bias, output_bias=biased, inner_norms=normed
        )
    if fields.find("linear_num_value_heads"):
        return LinearAttention(
            "gated-delta",
            heads=fields.count("linear_num_value_heads", least=1),
            key_heads=fields.count("linear_num_key_heads", least=1),
            key_dim=fields.count("linear_key_head_dim", least=1),
            value_dim=fields.count("linear_value_head_dim", least=1),
            conv_width=fields.count("linear_conv_kernel_dim", default=4, least=1),
            state_dtype=_state_dtype(fields, "mamba_ssm_dtype"),
        )
    return _mamba2(fields, hidden)


def _mamba2(fields: Fields, hidden: int) -> LinearAttention:
    heads = fields.maybe(*_MAMBA2_HEADS, least=1)
    if heads is None:
        raise InputError(
            f"{fields.where}: no field says of which kind its layers without a KV cache are (linear_num_value_heads, "
            "mamba_num_heads …); such a model_type is not known here"
        )
    fields.find("time_step_rank")
    times = fields.maybe("mamba_expand", "expand", least=1)
    inner = fields.maybe("mamba_d_ssm", least=1) or (times or 2) * hidden  # d_ssm: Falcon-H1
    nemotron = fields.text("model_type").startswith("nemotron")  # whose states vLLM keeps so, said or not
    bias = fields.flag("use_bias", "mamba_proj_bias", "add_bias_linear")
    said = fields.find("mamba_head_dim", "mamba_d_head", "mamba_headdim", "head_dim")
    return LinearAttention(
        "mamba2",
        heads=heads,
        key_heads=fields.count("n_groups", "mamba_n_groups", "mamba_ngroups", default=1, least=1),
        key_dim=fields.count("ssm_state_size", "mamba_d_state", "state_size", least=1),
        value_dim=inner // heads if said is None or said[1] == "auto" else fields.whole(*said, least=1),
        conv_width=fields.count("conv_kernel", "mamba_d_conv", default=4, least=1),
        conv_bias=fields.flag("use_conv_bias", "mamba_conv_bias", default=True),
        state_dtype=_state_dtype(fields, "mamba_ssm_cache_dtype") or ("fp32" if nemotron else None),
        bias=bias,
        output_bias=fields.flag("projectors_bias", default=bias),
        normed=fields.flag("mamba_rms_norm", default=True),
    )


def _mamba1(fields: Fields, hidden: int, inner_norms: bool) -> LinearAttention:
    bias = fields.flag("use_bias", "mamba_proj_bias")
    fields.find("expand")
    times = fields.maybe("mamba_expand", least=1)
    # Mamba's own configs have the width itself, which their `expand` need not give.
    wide = hidden * times if times else fields.count("intermediate_size", default=2 * hidden, least=1)
    said = fields.find("mamba_dt_rank", "time_step_rank")
    # `auto`, or nothing: a sixteenth of hidden.
    rank = -(-hidden // 16) if said is None or said[1] == "auto" else fields.whole(*said, least=1)
    return LinearAttention(
        "mamba1",
        heads=wide,
        key_heads=0,
        key_dim=fields.count("mamba_d_state", "state_size", "ssm_state_size", default=16, least=1),
        value_dim=1,
        conv_width=fields.count("mamba_d_conv", "conv_kernel", default=4, least=1),
        conv_bias=fields.flag("mamba_conv_bias", "use_conv_bias", default=True),
        rank=rank,
        bias=bias,
        output_bias=bias,
        inner_norms=fields.flag("mamba_inner_layernorms", default=inner_norms),
    )


def _state_dtype(fields: Fields, name: str) -> str | None:
    return TORCH_DTYPES.get(fields.text(name))
