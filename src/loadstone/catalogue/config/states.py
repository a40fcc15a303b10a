"""Reads the state of constant size that a layer keeps, alone or beside its attention."""

from loadstone.catalogue.architecture.linear import LinearAttention
from loadstone.catalogue.architecture.precision import TORCH_DTYPES
from loadstone.catalogue.config.families import Family
from loadstone.catalogue.config.fields import Fields
from loadstone.core.errors import InputError

_MAMBA2_HEADS = ("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_heads")


def linear_attention(fields: Fields, family: Family, hidden: int) -> LinearAttention:
    """Raises InputError: no field says which kind it is."""
    if family.state == "lightning":
        return _lightning(fields, hidden)
    if family.state == "short-conv":
        bias, width = fields.flag("conv_bias"), fields.count("conv_L_cache", default=3, least=1)
        return LinearAttention(
            "short-conv", hidden, 0, 0, 1, width, bias, bias=bias, output_bias=bias
        )
    if family.state in ("mamba1", "mamba1-normed"):
        return _mamba1(fields, hidden, family.state == "mamba1-normed")
    kimi = fields.inner("linear_attn_config")
    if kimi is not None:
        kimi.find("kda_layers", "full_attn_layers", "gate_lower_bound", "safe_gate")
        width = kimi.count("short_conv_kernel_size", default=4, least=1)
        heads, dim = kimi.count("num_heads", least=1), kimi.count("head_dim", least=1)
        return _kda(heads, dim, width, kimi.flag("use_full_rank_gate"))
    if fields.find("linear_num_heads"):  # transformers' form of the same
        heads, dim = (
            fields.count("linear_num_heads", least=1),
            fields.count("linear_head_dim", least=1),
        )
        return _kda(heads, dim, fields.count("linear_conv_kernel_dim", default=4, least=1))
    if fields.find("linear_num_value_heads"):
        return LinearAttention(
            "gated-delta",
            heads=fields.count("linear_num_value_heads", least=1),
            key_heads=fields.count("linear_num_key_heads", least=1),
            key_dim=fields.count("linear_key_head_dim", least=1),
            value_dim=fields.count("linear_value_head_dim", least=1),
            conv_width=fields.count("linear_conv_kernel_dim", default=4, least=1),
            state_dtype=TORCH_DTYPES.get(fields.text("mamba_ssm_dtype")),
        )
    if not family.source and fields.optional_count(*_MAMBA2_HEADS, least=1) is None:
        fields.assume(
            "no field says of which kind layers without a KV cache are: estimated as lightning"
            " attention"
        )
        return _lightning(fields, hidden)
    return _mamba2(fields, hidden)


def _lightning(fields: Fields, hidden: int) -> LinearAttention:
    heads = fields.count("num_attention_heads", least=1)
    dim = fields.count("head_dim", default=hidden // heads, least=1)
    return LinearAttention("lightning", heads, heads, dim, dim, 1)


def _kda(heads: int, dim: int, conv_width: int, full_rank_gate: bool = False) -> LinearAttention:
    return LinearAttention(
        "kda", heads, heads, dim, dim, conv_width, state_dtype="fp32", full_rank_gate=full_rank_gate
    )


def _mamba2(fields: Fields, hidden: int) -> LinearAttention:
    heads = fields.optional_count(*_MAMBA2_HEADS, least=1)
    if heads is None:
        raise InputError(
            f"{fields.where}: no field says of which kind its layers without a KV cache are"
            " (linear_num_value_heads, mamba_num_heads …); such a model_type is not known here"
        )
    times = fields.optional_count("mamba_expand", "expand", least=1)
    inner = (
        fields.optional_count("mamba_d_ssm", least=1) or (times or 2) * hidden
    )  # d_ssm: Falcon-H1
    nemotron = fields.text("model_type").startswith(
        "nemotron"
    )  # whose states vLLM keeps so, said or not
    bias = fields.flag("use_bias", "mamba_proj_bias", "add_bias_linear")
    head_dim = fields.find("mamba_head_dim", "mamba_d_head", "mamba_headdim", "head_dim")
    return LinearAttention(
        "mamba2",
        heads=heads,
        key_heads=fields.count("n_groups", "mamba_n_groups", "mamba_ngroups", default=1, least=1),
        key_dim=fields.count("ssm_state_size", "mamba_d_state", "state_size", least=1),
        value_dim=(
            inner // heads
            if head_dim is None or head_dim[1] == "auto"
            else fields.check_count(*head_dim, least=1)
        ),
        conv_width=fields.count("conv_kernel", "mamba_d_conv", default=4, least=1),
        conv_bias=fields.flag("use_conv_bias", "mamba_conv_bias", default=True),
        state_dtype=TORCH_DTYPES.get(fields.text("mamba_ssm_cache_dtype"))
        or ("fp32" if nemotron else None),
        bias=bias,
        output_bias=fields.flag("projectors_bias", default=bias),
        normed=fields.flag("mamba_rms_norm", default=True),
    )


def _mamba1(fields: Fields, hidden: int, inner_norms: bool) -> LinearAttention:
    bias = fields.flag("use_bias", "mamba_proj_bias")
    times = fields.optional_count("mamba_expand", least=1)
    # Mamba's own configs have the width itself, which their `expand` need not give.
    wide = (
        hidden * times if times else fields.count("intermediate_size", default=2 * hidden, least=1)
    )
    rank = fields.find("mamba_dt_rank", "time_step_rank")
    return LinearAttention(
        "mamba1",
        heads=wide,
        key_heads=0,
        key_dim=fields.count("mamba_d_state", "state_size", "ssm_state_size", default=16, least=1),
        value_dim=1,
        conv_width=fields.count("mamba_d_conv", "conv_kernel", default=4, least=1),
        conv_bias=fields.flag("mamba_conv_bias", "use_conv_bias", default=True),
        # `auto`, or nothing: a sixteenth of hidden.
        rank=(
            -(-hidden // 16)
            if rank is None or rank[1] == "auto"
            else fields.check_count(*rank, least=1)
        ),
        bias=bias,
        output_bias=bias,
        inner_norms=fields.flag("mamba_inner_layernorms", default=inner_norms),
    )
