"""Configs in their makers' own form: their names for what others call otherwise, and what their flags stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from loadstone.catalogue.config.families import Family
from loadstone.catalogue.config.fields import Fields
from loadstone.core.errors import InputError

BY_ARCHITECTURE = {
    "Grok1ForCausalLM": "grok-1",
    "Grok1ModelForCausalLM": "grok-1",
    "LongcatFlashForCausalLM": "longcat_flash",
    "LongcatFlashNgramForCausalLM": "longcat_flash",
}
"""Model types of configs that state none, or another's."""

_SAME = {
    "Keye": "qwen3",
    "KeyeVL1_5": "qwen3",
    "aquila": "llama",
    "kimi_audio": "qwen2",
    "phi3_v": "phi3",
    "phi4mm": "phi3",
    "sdar": "qwen3",
    "sdar_moe": "qwen3_moe",
    "xverse": "llama",
}
"""Model types whose text model is another's, said without a config of its own."""

_VERSIONS = {
    "minicpmv": {"2.0": "minicpm", "2.5": "llama", "2.6": "qwen2", "4.0": "llama", "4.5": "qwen3"},
    "minicpmo": {"2.6": "qwen2", "4.5": "qwen3"},
}
"""Likewise, by their `version`."""

_BAILING = {"moe_router_enable_expert_bias": "use_moe_router_bias"}
_NAMES: dict[str, dict[str, str]] = {
    "bailing_moe": _BAILING,
    "bailing_moe_v2": _BAILING,
    "sarvam_moe": _BAILING,
    "sarvam_mla": _BAILING,
    "param2moe": _BAILING,
    "chatglm": {"padded_vocab_size": "vocab_size"},
    "mimo_v2": {"sliding_window_size": "sliding_window"},
    "mimo_v2_flash": {"sliding_window_size": "sliding_window"},
    "gigachat3_5": {"gated_attention": "mla_use_output_gate"},
    "molmo": {"embedding_size": "vocab_size", "weight_tying": "tie_word_embeddings"},
    "k2_horizon": {"query_key_norm": "use_qk_norm", "moe_gate_bias": "use_moe_router_bias"},
    "PanguEmbedded": {"bias": "attention_bias"},
    "pangu_ultra_moe": {"router_enable_expert_bias": "use_moe_router_bias"},
    "PanguProMoE": {"router_enable_expert_bias": "use_moe_router_bias", "v_channels": "v_head_dim"},
    "step3_text": {"max_position_embedding": "max_position_embeddings"},
    "spark2_5": {"headwise_attn_output_gate": "use_head_wise_attn_gate"},
    "nanbeige": {"num_loops": "loops"},
    "ouro": {"total_ut_steps": "loops"},
    "iquestloopcoder": {"loop_num": "loops"},
}
"""Fields that are called otherwise in all other configs."""


def own_kind(fields: Fields, architectures: Any, kind: str) -> str:
    """The model type to read it as, where the stated one is another's. Raises InputError."""
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    if isinstance(first, str) and first in BY_ARCHITECTURE:
        return BY_ARCHITECTURE[first]
    versions = _VERSIONS.get(kind)
    if versions is None or fields.inner("text_config", "llm_config"):
        return _SAME.get(kind, kind)
    version = str(fields.values.get("version"))
    if version not in versions:
        raise InputError(f"{fields.where}: {kind} of version {version[:20]}; known are {', '.join(versions)}")
    return versions[version]


def in_common_names(fields: Fields, kind: str, family: Family) -> Family:
    """Renames fields in place; the family, as the config's own flags have it. Raises InputError."""
    names = _NAMES.get(kind, {})
    kept = {name: value for name, value in fields.values.items() if name not in names}
    fields.values = {**kept, **{new: fields.values[old] for old, new in names.items() if old in fields.values}}
    own = _OWN.get(kind)
    return family if own is None else own(fields, family)


# --- families with flags of their own ------------------------------------------------------------------------------


def _no_biases(fields: Fields, *names: str) -> None:
    for name in names:
        if fields.flag(name):
            raise InputError(f"{fields.where}: {name} is true, which no published model of this type has")


def _param2moe(fields: Fields, family: Family) -> Family:
    _no_biases(fields, "use_bias")
    return family


def _loop_coder(fields: Fields, family: Family) -> Family:
    _no_biases(fields, "attention_bias", "mlp_bias")
    return family


def _sarvam_mla(fields: Fields, family: Family) -> Family:
    if fields.count("moe_layer_freq", default=1) != 1:
        raise InputError(f"{fields.where}: moe_layer_freq must be 1, as in all published models of this type")
    return _bailing(fields, family)


def _bailing(fields: Fields, family: Family) -> Family:
    """Ling, Ring and Sarvam: the shared experts' width is said of one."""
    _no_biases(fields, "use_bias")
    if fields.flag("use_qk_norm") and not fields.flag("use_rmsnorm", default=True):
        raise InputError(f"{fields.where}: use_rmsnorm is false, which no published model of this type has")
    return _shared_width(fields, family)


def _shared_width(fields: Fields, family: Family) -> Family:
    """Of one shared expert, as its makers say it, to all."""
    each = fields.maybe("moe_shared_expert_intermediate_size", least=1)
    if each:
        many = fields.count("num_shared_experts", "n_shared_experts", default=1)
        fields.values = {**fields.values, "moe_shared_expert_intermediate_size": each * many}
    return family


def _chatglm(fields: Fields, family: Family) -> Family:
    if not fields.flag("multi_query_attention"):
        fields.find("multi_query_group_num")
    biased = fields.flag("add_bias_linear")
    times = 1 if fields.flag("rmsnorm", default=True) else 2
    if not fields.flag("post_layer_norm", default=True):
        raise InputError(f"{fields.where}: post_layer_norm is false, which no published model of this type has")
    fields.values = {**fields.values, "attention_out_bias": biased}
    return replace(family, mlp_bias=biased, norms=2 * times, outer_norms=times)


def _telechat(fields: Fields, family: Family) -> Family:
    """A bias on the output, none on Q, K and V."""
    fields.values = {**fields.values, "attention_out_bias": True}
    return family


def _fused_width(fields: Fields, family: Family) -> Family:
    """Qwen's first and Molmo: `intermediate_size` is of gate and up together."""
    whole = fields.count("intermediate_size", least=2)
    fields.values = {**fields.values, "intermediate_size": whole // 2}
    return family


def _molmo(fields: Fields, family: Family) -> Family:
    fields.find("layer_norm_type", "norm_after")
    return replace(_fused_width(fields, family), qk_norm="whole" if fields.flag("attention_layer_norm") else None)


def _fixed_biases(fields: Fields, family: Family) -> Family:
    """MiMo has Qwen2's attention with its biases, DeepSeek's first none, whatever the config says."""
    fields.values = {name: value for name, value in fields.values.items() if name != "attention_bias"}
    return family


def _step3(fields: Fields, family: Family) -> Family:
    """Experts in the layers that `moe_layers_enum` lists; without it, in all but the first."""
    fields.find("norm_expert_weight", "num_attention_groups")
    listed = list(range(1, fields.layers(fields.count("num_hidden_layers"))))
    fields.values = {"moe_layers_enum": listed, **fields.values, "num_key_value_heads": 1}
    return family


def _k2_horizon(fields: Fields, family: Family) -> Family:
    _no_biases(fields, "attention_bias")
    fields.find("layernorm_num_groups", "rope_head_dim")
    gated = bool(fields.text("attention_gate_func"))
    return family if gated else replace(family, gate=None)


def _pangu_ultra(fields: Fields, family: Family) -> Family:
    return replace(family, norms=4 if fields.flag("sandwich_norm") else 2)


def _pangu_pro(fields: Fields, family: Family) -> Family:
    own = {
        "head_dim": fields.count("qk_nope_dim") + fields.count("qk_rope_dim"),
        "attention_out_bias": fields.flag("attention_bias"),
    }
    fields.values = {**fields.values, **own}
    return _pangu_ultra(fields, family)


def _plamo3(fields: Fields, family: Family) -> Family:
    """A list of windows, null where a layer sees everything."""
    fields.find("window_size", "sliding_window_pattern")
    count = fields.layers(fields.count("num_hidden_layers"))
    windows = fields.per_layer(count, "interleaved_sliding_window")
    if windows is not None:
        sizes = {value for value in windows if value is not None}
        if len(sizes) > 1:
            raise InputError(f"{fields.where}: interleaved_sliding_window has several sizes; only one is read")
        kinds = ["full_attention" if value is None else "sliding_attention" for value in windows]
        fields.values = {**fields.values, "layer_types": kinds, "sliding_window": sizes.pop() if sizes else None}
    return family


def _grok(fields: Fields, family: Family) -> Family:
    """With `residual_moe`, a dense MLP beside the experts."""
    fields.find("global_attn_every_n", "sliding_window_size", "attn_temperature_len", "context_len", "merge_gate_up")
    if fields.flag("residual_moe"):
        fields.values = {**fields.values, "shared_intermediate_size": fields.count("intermediate_size")}
    return family


GIGACHAT_NORMS = {"LlamaRMSNorm": 0, "ZeroCenteredRMSNorm": 0, "GatedNorm": 16, "ZeroCenteredGatedNorm": 16}
"""GigaChat's kinds of norm, and the rank of their gates."""


def _gigachat(fields: Fields, family: Family) -> Family:
    """Layers with a KV cache by their numbers; norms before both halves, or after them too."""
    _no_biases(fields, "use_shared_expert_sigmoid")
    placing = fields.text("layernorm_type", default="pre_post")
    form = fields.text("norm_type", default="ZeroCenteredGatedNorm")
    delta = fields.text("linear_attention_type", default="Qwen3NextGatedDeltaNet")
    if placing not in ("pre", "pre_post") or form not in GIGACHAT_NORMS or delta != "Qwen3NextGatedDeltaNet":
        raise InputError(
            f"{fields.where}: layernorm_type {placing[:20]}, norm_type {form[:30]} and linear_attention_type "
            f"{delta[:30]} are not known together"
        )
    placed = fields.items("full_attention_layers")
    if fields.find("layer_types") is None and placed is not None:
        count = fields.layers(fields.count("num_hidden_layers"))
        kinds = ["full_attention" if index in placed else "linear_attention" for index in range(count)]
        fields.values = {**fields.values, "layer_types": kinds}
    fields.find("layernorm_gating_weight", "linear_sigmoid_gate_scale", "linear_gating_type", "nextn_is_sparse")
    return replace(family, norms=4 if placing == "pre_post" else 2)


def _iquest_q1(fields: Fields, family: Family) -> Family:
    """Kinds of layers as a beginning, a block that comes again and again, and an end; dense layers by numbers."""
    count = fields.layers(fields.count("num_hidden_layers"))
    block = fields.items("hybrid_layers_types_block") or ["full_attention"] + ["sliding_attention"] * 3
    many = fields.layers(fields.count("num_hybrid_layers_block", default=21, least=1))
    first = fields.items("first_layers_types") or ["full_attention"]
    kinds = [*first, *block[:count] * many, *(fields.items("last_layers_types") or ["full_attention"] * 3)]
    if not fields.flag("use_hybrid_layers", default=True) or not fields.flag("use_sliding_window", default=True):
        kinds = ["full_attention"] * count
    if len(kinds) != count:
        raise InputError(f"{fields.where}: kinds for {len(kinds)} layers, of which there are {count}")
    _no_biases(fields, "use_over_encoding", "attention_bias")
    fields.find("enable_lm_head_fp32", "first_layer_attn_out_scale", "first_layer_ffn_out_scale", "num_mtp_layers")
    fields.values = {"mlp_only_layers": [0], **fields.values, "layer_types": kinds}
    return family


def _spark(fields: Fields, family: Family) -> Family:
    if fields.values.get("layer_types") is None:
        count = fields.layers(fields.count("num_hidden_layers"))
        kinds = ["sliding_attention" if (index + 1) % 4 else "full_attention" for index in range(count)]
        fields.values = {**fields.values, "layer_types": kinds}
    return replace(family, gate="head" if fields.flag("use_head_wise_attn_gate", default=True) else None)


_OWN: dict[str, Callable[[Fields, Family], Family]] = {
    "bailing_hybrid": _shared_width,
    "bailing_moe": _bailing,
    "bailing_moe_v2": _bailing,
    "chatglm": _chatglm,
    "mimo": _fixed_biases,
    "deepseek": _fixed_biases,
    "molmo": _molmo,
    "param2moe": _param2moe,
    "qwen": _fused_width,
    "sarvam_moe": _bailing,
    "sarvam_mla": _sarvam_mla,
    "iquestloopcoder": _loop_coder,
    "step3_text": _step3,
    "k2_horizon": _k2_horizon,
    "pangu_ultra_moe": _pangu_ultra,
    "PanguProMoE": _pangu_pro,
    "plamo3": _plamo3,
    "gigachat3_5": _gigachat,
    "grok-1": _grok,
    "iquest_q1": _iquest_q1,
    "spark2_5": _spark,
    "telechat": _telechat,
}
