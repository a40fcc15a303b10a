"""From a config's fields to the state of constant size that a layer keeps, alone or beside its attention."""

from __future__ import annotations

import math
from itertools import count as numbers_from
from itertools import islice

from loadstone.catalogue.architecture.attention import FullAttention
from loadstone.catalogue.architecture.linear import LinearAttention, ShortStates
from loadstone.catalogue.architecture.matrix import Matrix, vector
from loadstone.catalogue.architecture.precision import TORCH_DTYPES
from loadstone.catalogue.config.families import Family
from loadstone.catalogue.config.fields import Fields
from loadstone.core.errors import InputError

_MAMBA2_HEADS = ("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_heads")
_MOST_TABLES = 1_000


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
    kimi = fields.inner("linear_attn_config")
    if kimi is not None:
        kimi.find("kda_layers", "full_attn_layers", "gate_lower_bound", "safe_gate")
        width = kimi.count("short_conv_kernel_size", default=4, least=1)
        return _kda(kimi.count("num_heads", least=1), kimi.count("head_dim", least=1), width,
                    gate=kimi.flag("use_full_rank_gate"))  # fmt: skip
    if fields.find("linear_num_heads", "short_conv_kernel_size"):
        # Ling 3's own configs have no names of their own for these: its heads are the attention's, head_dim theirs.
        heads = fields.count("linear_num_heads", "num_attention_heads", least=1)
        dim = fields.count("linear_head_dim", "head_dim", least=1)
        width = fields.count("linear_conv_kernel_dim", "short_conv_kernel_size", default=4, least=1)
        full = fields.flag("no_kda_lora", default=family.state == "kda-full")
        return _kda(heads, dim, width, gate=full, decay=full)
    if family.state == "kda-full":  # Ling 2.5, which has no such convolution
        heads, dim = fields.count("num_attention_heads", least=1), fields.count("head_dim", least=1)
        biased, normed = fields.flag("use_bias"), fields.flag("use_qk_norm")
        bias = fields.flag("use_qkv_bias") or biased
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
            state_dtype=TORCH_DTYPES.get(fields.text("mamba_ssm_dtype")),
        )
    return _mamba2(fields, hidden)


def _kda(heads: int, dim: int, conv_width: int, *, gate: bool, decay: bool = False) -> LinearAttention:
    """`gate`, `decay`: of full rank."""
    return LinearAttention(
        "kda", heads, heads, dim, dim, conv_width, state_dtype="fp32", full_rank_gate=gate, full_rank_decay=decay
    )


def _mamba2(fields: Fields, hidden: int) -> LinearAttention:
    heads = fields.maybe(*_MAMBA2_HEADS, least=1)
    if heads is None:
        raise InputError(
            f"{fields.where}: no field says of which kind its layers without a KV cache are (linear_num_value_heads, "
            "mamba_num_heads …); such a model_type is not known here"
        )
    times = fields.maybe("mamba_expand", "expand", least=1)
    inner = fields.maybe("mamba_d_ssm", least=1) or (times or 2) * hidden  # d_ssm: Falcon-H1
    nemotron = fields.text("model_type").startswith("nemotron")  # whose states vLLM keeps so, said or not
    bias = fields.flag("use_bias", "mamba_proj_bias", "add_bias_linear")
    head_dim = fields.find("mamba_head_dim", "mamba_d_head", "mamba_headdim", "head_dim")
    return LinearAttention(
        "mamba2",
        heads=heads,
        key_heads=fields.count("n_groups", "mamba_n_groups", "mamba_ngroups", default=1, least=1),
        key_dim=fields.count("ssm_state_size", "mamba_d_state", "state_size", least=1),
        value_dim=inner // heads if head_dim is None or head_dim[1] == "auto" else fields.whole(*head_dim, least=1),
        conv_width=fields.count("conv_kernel", "mamba_d_conv", default=4, least=1),
        conv_bias=fields.flag("use_conv_bias", "mamba_conv_bias", default=True),
        state_dtype=TORCH_DTYPES.get(fields.text("mamba_ssm_cache_dtype")) or ("fp32" if nemotron else None),
        bias=bias,
        output_bias=fields.flag("projectors_bias", default=bias),
        normed=fields.flag("mamba_rms_norm", default=True),
    )


def _mamba1(fields: Fields, hidden: int, inner_norms: bool) -> LinearAttention:
    bias = fields.flag("use_bias", "mamba_proj_bias")
    times = fields.maybe("mamba_expand", least=1)
    # Mamba's own configs have the width itself, which their `expand` need not give.
    wide = hidden * times if times else fields.count("intermediate_size", default=2 * hidden, least=1)
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
        rank=-(-hidden // 16) if rank is None or rank[1] == "auto" else fields.whole(*rank, least=1),
        bias=bias,
        output_bias=bias,
        inner_norms=fields.flag("mamba_inner_layernorms", default=inner_norms),
    )


# --- beside attention, with the weights that belong to it ----------------------------------------------------------


def zaya_states(
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


def inkling_states(fields: Fields, attention: FullAttention, hidden: int) -> tuple[ShortStates, tuple[Matrix, ...]]:
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


def hashed_ngrams(fields: Fields, streams: int, place: int, hidden: int) -> tuple[ShortStates, tuple[Matrix, ...]]:
    """Qwen4's per-layer embeddings: tables of hashed n-grams, each as long as a prime of its own, and a dilated
    convolution. `place`: of this layer among those that have them. Raises InputError."""
    grams, each = fields.count("ngram_size", default=3, least=2), fields.count("heads_per_ngram", default=8, least=1)
    tables = (grams - 1) * each
    if tables * (place + 1) > _MOST_TABLES:
        raise InputError(f"{fields.where}: {tables * (place + 1)} tables of n-grams; {_MOST_TABLES} at most")
    width = fields.count("ple_embed_dim", default=hidden, least=tables)
    primes = filter(_is_prime, numbers_from(fields.count("ngram_vocab_size_base", least=1)))
    rows = sum(islice(primes, place * tables, (place + 1) * tables))
    of = fields.count("make_ngram_vocab_size_divisible_by", default=128, least=1)
    wide, kernel = streams * hidden, fields.count("ple_conv_kernel_size", default=4, least=1)
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


def _is_prime(value: int) -> bool:
    return value > 1 and all(value % divisor for divisor in range(2, math.isqrt(value) + 1))
