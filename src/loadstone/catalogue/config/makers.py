"""Configs in their makers' own form: their names for what others call otherwise, what their flags stand for, and the
weights that only one maker's model has: beside its layers, for layers that run several times, tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from loadstone.catalogue.architecture.attention import FullAttention, LatentAttention
from loadstone.catalogue.architecture.matrix import Matrix, vector
from loadstone.catalogue.architecture.mlp import Experts
from loadstone.catalogue.architecture.model import Layers
from loadstone.catalogue.config.families import Family, tables
from loadstone.catalogue.config.fields import Fields
from loadstone.core.errors import InputError

_MOST_LOOPS = 16
_ENCODERS = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForMaskedLM",
    "ForQuestionAnswering",
    "RewardModel",
)
_PARTS_OF_ONE = {"text_config", "llm_config", "language_config", "llm_cfg", "thinker_config"}
_GIGACHAT_NORMS = {"LlamaRMSNorm": 0, "ZeroCenteredRMSNorm": 0, "GatedNorm": 16, "ZeroCenteredGatedNorm": 16}
"""GigaChat's kinds of norm, and the rank of their gates."""


def encoder(config: Mapping[str, Any]) -> str | None:
    """What in a config tells a model that reads whole texts and writes none: its class, or attention both ways."""
    classes, own = config.get("architectures"), config.get("auto_map")
    first = str(classes[0]) if isinstance(classes, list) and classes else ""
    bare = first.endswith("Model") and not first.endswith(("LMHeadModel", "ChatModel"))
    writes = "AutoModelForCausalLM" in own if isinstance(own, dict) else _PARTS_OF_ONE.intersection(config)
    if first.endswith(_ENCODERS) or "Bidirectional" in first or (bare and not writes):
        return first
    ways = {"is_causal": (False,), "use_bidirectional_attention": (True, "all")}
    return next((name for name, values in ways.items() if config.get(name) in values), None)


def own_kind(fields: Fields, architectures: Any, kind: str) -> str:
    """The model type to read it as, where the stated one is another's. Raises InputError."""
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    if isinstance(first, str) and first in tables().read_as_by_architecture:
        return tables().read_as_by_architecture[first]
    versions = tables().read_as_by_version.get(kind)
    if versions is None or fields.inner("text_config", "llm_config"):
        return tables().read_as.get(kind, kind)
    version = str(fields.values.get("version"))
    if version not in versions:
        raise InputError(f"{fields.where}: {kind} of version {version[:20]}; known are {', '.join(versions)}")
    return versions[version]


def in_common_names(fields: Fields, kind: str, family: Family) -> Family:
    """Renames fields in place; the family, as the config's own flags have it. Raises InputError."""
    kept = {name: value for name, value in fields.values.items() if name not in family.names}
    fields.values = kept | {new: fields.values[old] for old, new in family.names.items() if old in fields.values}
    for name, only in family.published.items():
        value = fields.raw(name)
        if value is not None and (bool(value) if isinstance(only, bool) else value) != only:
            raise InputError(
                f"{fields.where}: {name} is {json.dumps(value)[:40]}; it must be {json.dumps(only)}, as in all "
                "published models of this type"
            )
    kept = {name: value for name, value in fields.values.items() if name not in family.dropped}
    fields.values = family.defaults | kept | family.fixed
    for condition, facts in family.when.items():
        name, _, wanted = condition.partition("=")
        value = fields.raw(name)
        if value is not None and wanted in (value, json.dumps(bool(value))):
            family = replace(family, **facts)
    if kind in _OWN:
        fields.values = fields.values | _OWN[kind](fields)
    return family


# --- types whose fields need arithmetic: the fields that others would have in their place --------------------------


def _shared_width(fields: Fields) -> dict[str, Any]:
    """Ling, Ring and Sarvam state the width of one shared expert, others of all together."""
    each = fields.maybe("moe_shared_expert_intermediate_size", least=1)
    many = fields.count("num_shared_experts", "n_shared_experts", default=1)
    return {"moe_shared_expert_intermediate_size": each * many} if each else {}


def _halved_width(fields: Fields) -> dict[str, Any]:
    """Qwen's first and Molmo: `intermediate_size` is of gate and up together."""
    return {"intermediate_size": fields.count("intermediate_size", least=2) // 2}


def _pangu_pro(fields: Fields) -> dict[str, Any]:
    return {
        "head_dim": fields.count("qk_nope_dim") + fields.count("qk_rope_dim"),
        "attention_out_bias": fields.flag("attention_bias"),
    }


def _plamo3(fields: Fields) -> dict[str, Any]:
    """A list of windows, null where a layer sees everything."""
    count = fields.layers(fields.count("num_hidden_layers"))
    windows = fields.per_layer(count, "interleaved_sliding_window")
    if windows is None:
        return {}
    sizes = {value for value in windows if value is not None}
    if len(sizes) > 1:
        raise InputError(f"{fields.where}: interleaved_sliding_window has several sizes; only one is read")
    kinds = ["full_attention" if value is None else "sliding_attention" for value in windows]
    return {"layer_types": kinds, "sliding_window": sizes.pop() if sizes else None}


def _gigachat(fields: Fields) -> dict[str, Any]:
    """Norms before both halves, or after them too; of a kind whose gates have a rank."""
    placing = fields.text("layernorm_type", default="pre_post")
    form = fields.text("norm_type", default="ZeroCenteredGatedNorm")
    delta = fields.text("linear_attention_type", default="Qwen3NextGatedDeltaNet")
    if placing not in ("pre", "pre_post") or form not in _GIGACHAT_NORMS or delta != "Qwen3NextGatedDeltaNet":
        raise InputError(
            f"{fields.where}: layernorm_type {placing[:20]}, norm_type {form[:30]} and linear_attention_type "
            f"{delta[:30]} are not known together"
        )
    return {}


def _iquest_q1(fields: Fields) -> dict[str, Any]:
    """Kinds of layers as a beginning, a block that comes again and again, and an end."""
    count = fields.layers(fields.count("num_hidden_layers"))
    block = fields.items("hybrid_layers_types_block") or ["full_attention"] + ["sliding_attention"] * 3
    many = fields.layers(fields.count("num_hybrid_layers_block", default=21, least=1))
    first = fields.items("first_layers_types") or ["full_attention"]
    kinds = [*first, *block[:count] * many, *(fields.items("last_layers_types") or ["full_attention"] * 3)]
    if not fields.flag("use_hybrid_layers", default=True) or not fields.flag("use_sliding_window", default=True):
        kinds = ["full_attention"] * count
    if len(kinds) != count:
        raise InputError(f"{fields.where}: kinds for {len(kinds)} layers, of which there are {count}")
    return {"layer_types": kinds}


_OWN: dict[str, Callable[[Fields], dict[str, Any]]] = {
    **dict.fromkeys(("bailing_hybrid", "bailing_moe", "bailing_moe_v2", "sarvam_moe", "sarvam_mla"), _shared_width),
    **dict.fromkeys(("molmo", "qwen"), _halved_width),
    "PanguProMoE": _pangu_pro,
    "plamo3": _plamo3,
    "gigachat3_5": _gigachat,
    "iquest_q1": _iquest_q1,
}


# --- weights that only one model type has --------------------------------------------------------------------------


def with_own_parts(fields: Fields, kind: str, family: Family, hidden: int, layers: list[Layers]) -> list[Layers]:
    """The layers, with weights that only this model type has beside the two halves."""
    if kind == "gigachat3_5":
        wide = family.norms * hidden
        return [replace(each, extra=(*each.extra, _norm_gates(fields, wide, *_latents(each)))) for each in layers]
    if kind == "k2_horizon":
        layers = [_chosen_values(fields, layer) for layer in layers]
    return [replace(layer, extra=layer.extra + tuple(_beside(fields, kind, layer))) for layer in layers]


def _chosen_values(fields: Fields, layer: Layers) -> Layers:
    """Layers with experts have some for the attention's values too."""
    many, taken = fields.count("mova_num_experts", default=0), fields.count("mova_num_experts_per_tok", default=0)
    if not many or not isinstance(layer.mlp, Experts) or not isinstance(layer.attention, FullAttention):
        return layer
    if not 0 < taken <= many:
        raise InputError(f"{fields.where}: a token takes {taken} value projections of {many}")
    bias = (vector("self_attn.v_router.bias", many, "router"),) if layer.mlp.router_bias else ()
    attention = replace(layer.attention, value_experts=many, values_per_token=taken)
    return replace(layer, attention=attention, extra=layer.extra + bias)


def _latents(layer: Layers) -> list[int]:
    attention = layer.attention
    return [attention.q_rank or 0, attention.kv_rank] if isinstance(attention, LatentAttention) else []


def _norm_gates(fields: Fields, *widths: int) -> Matrix:
    rank = _GIGACHAT_NORMS[fields.text("norm_type", default="ZeroCenteredGatedNorm")]
    return vector("norm_gates", 2 * rank * sum(widths))


def _beside(fields: Fields, kind: str, layer: Layers) -> list[Matrix]:
    attention = layer.attention
    if not isinstance(attention, FullAttention):
        return []
    if kind == "iquestloopcoder":
        # For each head, how much it hears of the first loop's cache.
        return [vector("gate_projections", attention.heads * (attention.head_dim + 1), "attention")]
    if kind == "iquest_q1":
        sinks = attention.kv_heads * attention.head_dim if fields.flag("enable_sink_attention", default=True) else 0
        return [vector("self_attn.sink_k", sinks, "attention")]
    if kind == "PanguProMoE":
        sinks = fields.count("param_sink_number", default=0) * attention.kv_heads
        wide = attention.head_dim + (attention.v_head_dim if fields.flag("param_sink_with_value") else 0)
        return [vector("self_attn.k_layernorm", attention.head_dim), vector("self_attn.sinks", sinks * wide)]
    return []


def looped(fields: Fields, kind: str, family: Family, runs: tuple[Layers, ...]) -> tuple[Layers, ...]:
    """All layers again, as often as the config says, with the same weights and a cache for every time."""
    loops = fields.count("loops", default=1, least=1) if "loops" in family.names.values() else 1
    if loops > _MOST_LOOPS:
        raise InputError(f"{fields.where}: {loops} loops; {_MOST_LOOPS} at most")
    again = tuple(replace(run, shared=True, extra=()) for run in runs)
    if kind == "iquestloopcoder":
        window = fields.count("loop_window_size", default=64, least=1)
        again = tuple(replace(run, attention=_windowed(run.attention, window)) for run in again)
        fields.assume("later loops also read the first one's cache: not in the times")
    return runs + again * (loops - 1)


def _windowed(attention: Any, window: int) -> Any:
    return replace(attention, window_tokens=window)


def own_tables(fields: Fields, kind: str, hidden: int, vocab: int) -> tuple[Matrix, ...]:
    """Molmo's 128 rows for images; LongCat-Flash-Lite's n-grams: for each of several hashes of the last tokens a
    table of narrow vectors, and a projection to hidden size. Sizes as in vLLM 0.32.
    """
    if kind == "gigachat3_5":
        return (_norm_gates(fields, hidden),)
    if kind == "molmo":
        return (vector("new_embedding", 128 * hidden, "embedding"),)
    ratio = fields.maybe("ngram_vocab_size_ratio", least=1)
    if not ratio:
        return ()
    count = fields.count("emb_split_num", least=1) * (fields.count("emb_neighbor_num", least=2) - 1)
    width = hidden // count
    rows = count * ratio * vocab + count * count
    return (
        Matrix("ngram_embeddings", rows, width, "embedding", "vocab", quantisable=False),
        Matrix("ngram_projections", count * width, hidden, "embedding", quantisable=False),
    )
