"""Makes a `config.json` a Model: the one way into the catalogue, for its own entries and for a
user's files alike."""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from loadstone.catalogue.architecture.attention import FullAttention
from loadstone.catalogue.architecture.linear import LinearAttention
from loadstone.catalogue.architecture.matrix import Matrix, vector
from loadstone.catalogue.architecture.mlp import DenseMlp, Experts
from loadstone.catalogue.architecture.model import Layers, Model
from loadstone.catalogue.architecture.precision import FORMATS, TORCH_DTYPES, Format
from loadstone.catalogue.config.beside import beside_layers
from loadstone.catalogue.config.encoder import is_bidirectional, lacks_head, pooling_of
from loadstone.catalogue.config.families import Family, tables
from loadstone.catalogue.config.fields import Fields
from loadstone.catalogue.config.index import held_against
from loadstone.catalogue.config.layers import draft_layers, read_layers
from loadstone.catalogue.config.nested import text_fields, tied_embeddings
from loadstone.catalogue.config.quantisation import Rules, read_quantisation
from loadstone.catalogue.config.towers import read_towers
from loadstone.catalogue.config.visual import PROCESSOR_FILES, join_processor, read_visual
from loadstone.catalogue.visual.visual import Visual
from loadstone.core.errors import InputError
from loadstone.core.files import read_bytes

MOST_BYTES = 64 << 20
_MOST_STRETCHED = 10_000
_GATED = ("silu", "swish", "swiglu", "silu_and_mul")
_SHAPING = re.compile(
    r"layer|block|pattern|period|interval|offset|attn_type|mamba|ssm|state|conv"
    r"|rwkv|heads|_dim$|_rank$|_size$|width"
    r"|expert|ffn|mlp|mixer|loop|ngram|ut_steps|altup|laurel|lora|cross_attention"
    r"|shared|group_num|use_cla"
)
"""Names of fields that are likely to change sizes."""
_HARMLESS = re.compile(
    r"_(alpha|beta|alpha_factor|beta_factor|scale|scaling|eps|std|init|coef"
    r"|loss_weight|dropout|pdrop|noise|act|act_fn"
    r"|token_id|token_index)$|^(attention|embedding|residual)_multiplier$"
    r"|^(summary|vision_feature|vit)_"
)
"""Names of fields that change no size, by their ends and beginnings."""
_WIDTHS = ("intermediate_size", "ffn_hidden_size", "moe_intermediate_size")
_TELLING = {
    "layer_types",
    "layers_block_type",
    "hybrid_override_pattern",
    "attn_layer_indices",
    "attn_layer_period",
    "full_attn_idxs",
}
"""Fields that tell layers with a state from those without."""
_AS_WIDE = ("block_dim", "conv_dim", "conv_dim_out", "word_embed_proj_dim")
"""Widths of LFM2 and OPT that say nothing new where they are the residual stream's, as nearly
always."""
_PARTS = {
    "text_config",
    "llm_config",
    "language_config",
    "vision_config",
    "vision_tower_config",
    "audio_config",
    "attn_config",
    "ffn_config",
    "thinker_config",
}


def read_path(path: Path) -> Model:
    """Read a `config.json`, or the folder that holds one, with `hf_quant_config.json`, the files of
    its processor and the index of the weights beside it.

    Raises InputError: no such file, no JSON, no language model.
    """
    return read_given(_describe(path))


def read_visual_of(path: Path) -> Visual | None:
    """Read how a model takes pictures from the same files, whose text model need not be one that is
    read here. Raises InputError."""
    files = _describe(path)
    whole = Fields(files["config"], files["name"])
    hidden = text_fields(whole)[0].count("hidden_size", default=0)
    shape = read_towers(whole, hidden)[1]
    return read_visual(files["config"], files["processor"], shape, files["name"])


def _describe(path: Path) -> dict[str, Any]:
    """Return a model's name and what its files hold, as `read_given` takes them. Raises
    InputError."""
    file = path / "config.json" if path.is_dir() else path
    config = _json(file)
    # Collections keep many models in one folder: `<model>_config.json` beside
    # `<model>_hf_quant_config.json`.
    names = ("hf_quant_config.json", file.name.removesuffix("config.json") + "hf_quant_config.json")
    beside = next(
        (
            _json(neighbour)
            for neighbour in map(file.with_name, names)
            if neighbour != file and neighbour.is_file()
        ),
        None,
    )
    index = file.with_name("model.safetensors.index.json")
    metadata = (
        _json(index).get("metadata") if file.name == "config.json" and index.is_file() else None
    )
    processors = [_json(near) for near in map(file.with_name, PROCESSOR_FILES) if near.is_file()]
    return {
        "name": _name_of(path),
        "config": config,
        "quantisation": beside,
        "total_size": metadata.get("total_size") if isinstance(metadata, dict) else None,
        "processor": join_processor(processors) if processors else None,
    }


def read_given(description: Mapping[str, Any]) -> Model:
    """Read a model's files, as `Model.given` and a run's papers keep them, and its `name`. Raises
    InputError."""
    name, config, beside = (
        description.get("name"),
        description.get("config"),
        description.get("quantisation"),
    )
    processor = description.get("processor")
    if (
        not isinstance(name, str)
        or not isinstance(config, dict)
        or not isinstance(beside, dict | None)
        or not isinstance(processor, dict | None)
    ):
        raise InputError(
            "a model's description lacks its name or its config; give the path to its config.json"
        )
    model = read_config(config, name, beside, processor)
    given: dict[str, Any] = {"config": config, "quantisation": beside}
    if processor is not None:
        given["processor"] = processor
    total = description.get("total_size")
    if isinstance(total, int | float) and 0 < total < math.inf:
        given["total_size"] = total
        model = held_against(model, total, estimated=tables().find(model.model_type) is None)
    return msgspec.structs.replace(model, given=given)


def _name_of(path: Path) -> str:
    """Return the path that tells a model from others: every checkpoint has a `config.json`, so its
    folder's."""
    folder = path.parent if path.name == "config.json" else path
    return str(folder if folder.name not in ("", "..") else folder.resolve())


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(
            read_bytes(file, MOST_BYTES, "give a config.json or the folder that holds it").decode()
        )
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: not a readable JSON file ({str(error)[:100]})") from None
    if not isinstance(content, dict):
        raise InputError(
            f"{file}: a JSON {type(content).__name__}, not an object; give a model's config.json"
        )
    return content


def read_config(
    config: dict[str, Any],
    name: str,
    beside: dict[str, Any] | None = None,
    processor: dict[str, Any] | None = None,
) -> Model:
    """Read a config; `beside`: what hf_quant_config.json holds, or None; `processor`: what the
    files of its image processor hold. Raises InputError for what is no language model."""
    whole = Fields(config, name)
    fields, kind = text_fields(whole)
    fields.flatten("attn_config", "ffn_config")
    family = _family(fields, kind)
    fields.spellings = tables().spellings
    hidden, vocab = fields.count("hidden_size", least=1), fields.count("vocab_size", least=1)
    dtype = _dtype(fields, whole)
    local = fields.optional_count("local_attention", least=2)
    if local is not None:  # ModernBERT's window, both sides together
        fields.values = {**fields.values, "sliding_window": local // 2}
    layers = read_layers(fields, family, hidden)
    pooling = pooling_of(config)
    if pooling is not None and dtype == "fp32":
        dtype = "fp16"
        fields.assume("a checkpoint in 32 bits: fp16 taken, as engines load it")
    if family.encoder or is_bidirectional(config):
        layers = list(map(_both_ways, layers))
    place = fields if "quantization_config" in fields.values else whole
    rules = read_quantisation(place, beside, experts_apart=kind.startswith("gemma4"))
    is_listed = tables().find(kind) is not None
    headless = family.encoder or lacks_head(config)
    tied = headless or tied_embeddings(fields, whole, family, is_listed)
    runs = _join_runs(layers, rules, 0)
    drafts = draft_layers(fields, family, hidden, layers[-1])
    vision, shape, remarks = read_towers(whole, hidden)
    for remark in remarks:
        fields.assume(remark)
    context = _stretch_context(
        fields, kind, fields.optional_count("max_position_embeddings", least=1)
    )
    if context is None:
        fields.assume("the config states no longest context: no limit assumed")
    extra = tuple(beside_layers(fields, family, hidden, vocab, len(layers)))
    if family.position_rows is not None and context:
        extra += (vector("positions", (context + family.position_rows) * hidden, "embedding"),)
        context -= family.unused_positions
    # OPT's 350M norms behind its layers, and so has none at the end.
    norms = family.model_norms if fields.flag("do_layer_norm_before", default=True) else 0
    _look_for_unread(fields, whole, kind, layers, hidden)
    return Model(
        name=name,
        model_type=kind,
        pooling=pooling,
        hidden=hidden,
        vocab=vocab,
        layers=runs,
        tied_embeddings=tied,
        max_context_tokens=context,
        dtype=dtype,
        weights_dtype=_most_kept(runs, hidden, dtype),
        kv_dtype=(rules.kv_dtype if rules else None) or dtype,
        draft_layers=_join_runs(drafts, rules, len(layers)),
        vision_parameters=vision,
        visual=read_visual(config, processor, shape, name),
        embedding_formats=() if rules is None else _embedding_formats(rules, hidden, vocab),
        extra=extra,
        norms=norms,
        source="config.json",
        assumed=tuple(
            dict.fromkeys([*fields.assumed, *whole.assumed, *(rules.assumed if rules else ())])
        ),
    )


def _embedding_formats(rules: Rules, hidden: int, vocab: int) -> tuple[tuple[str, Format], ...]:
    """Return the formats of the table of embeddings and of the output head, where they have one."""
    table = Matrix("embed_tokens", vocab, hidden, "embedding", "vocab", quantisable=False)
    head = Matrix("lm_head", hidden, vocab, "embedding", "vocab", quantisable=False)
    formats = ((matrix.name, rules.format(None, matrix)) for matrix in (table, head))
    return tuple((name, form) for name, form in formats if form is not None)


def _both_ways(layer: Layers) -> Layers:
    """Return a layer whose tokens see those behind them."""
    attention = layer.attention
    if not isinstance(attention, FullAttention):
        return layer
    replace = msgspec.structs.replace
    return replace(layer, attention=replace(attention, bidirectional=True))


def _family(fields: Fields, kind: str) -> Family:
    """Return what holds of a model type: exactly, or as most decoders have it. Raises InputError:
    of no decoder, and of layers that no estimate is near.
    """
    if kind in tables().refused:
        reason = tables().refused[kind]
        raise InputError(
            f"{fields.where}: model_type {kind!r} is not read here, and cannot be sized: {reason}"
        )
    if fields.flag("is_encoder_decoder"):
        raise InputError(
            f"{fields.where}: an encoder with a decoder; only models of a decoder alone are read"
            " here"
        )
    family = tables().find(kind)
    if family is not None:
        return family
    act = fields.raw(
        "hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act", "activation"
    )
    gated = str(act).lower() in _GATED if act else fields.find(*_WIDTHS) is not None
    ungated = "" if gated else ", its MLPs of two matrices, as most without a gated activation"
    fields.assume(
        f"model_type {kind[:40]!r} not known: estimated as a Llama-like model with the fields it"
        f" has{ungated}"
    )
    return Family(matrices=3 if gated else 2, mlp_four_times_hidden=not gated)


def _stretch_context(fields: Fields, kind: str, context: int | None) -> int | None:
    """Return the context after RoPE's scaling, as vLLM derives it (_get_and_verify_max_len): YaRN
    original · factor; linear and dynamic context · factor, but Gemma 3's number has it in it; Llama
    3's and long RoPE are in it too.
    """
    rope = fields.inner("rope_scaling") or fields.inner("rope_parameters")
    if rope is None or context is None:
        return context
    how, factor = rope.text("rope_type", "type"), rope.values.get("factor")
    if (
        isinstance(factor, bool)
        or not isinstance(factor, int | float)
        or not 0 < factor <= _MOST_STRETCHED
    ):
        return context
    original = rope.optional_count("original_max_position_embeddings", least=1)
    if how == "yarn" and original is not None:
        return int(original * factor)
    return (
        int(context * factor)
        if how in ("linear", "dynamic") and not kind.startswith("gemma3")
        else context
    )


def _dtype(fields: Fields, whole: Fields) -> str:
    name = fields.text("torch_dtype", "dtype", default=whole.text("torch_dtype", "dtype"))
    if name not in TORCH_DTYPES:
        fields.assume(f"dtype {name[:40]!r}: bf16 assumed" if name else "no dtype: bf16 assumed")
    return TORCH_DTYPES.get(name, "bf16")


def _join_runs(layers: list[Layers], rules: Rules | None, first: int) -> tuple[Layers, ...]:
    """Join equal neighbours. `first`: the number that checkpoints give the first of these
    layers."""
    replace = msgspec.structs.replace
    kept = [
        replace(layer, formats=_formats(layer, rules, number))
        for number, layer in enumerate(layers, first)
    ]
    return tuple(replace(layer, count=sum(1 for _ in equal)) for layer, equal in groupby(kept))


def _formats(layer: Layers, rules: Rules | None, number: int) -> tuple[tuple[str, Format], ...]:
    if rules is None:
        return ()
    # Shapes do not matter for names: any hidden size will do.
    pairs = (
        (matrix.name, rules.format(number, matrix))
        for matrix in layer.weights(1)
        if matrix.inputs > 1 or matrix.quantisable
    )
    return tuple((name, form) for name, form in pairs if form is not None)


def _most_kept(runs: tuple[Layers, ...], hidden: int, dtype: str) -> str:
    """Return the precision that most of the layers' parameters have."""
    counts: Counter[Format] = Counter()
    for run in runs:
        formats = dict(run.formats)
        for matrix in run.weights(hidden):
            counts[formats.get(matrix.name, FORMATS[dtype])] += matrix.parameters * run.count
    return max(counts, key=lambda form: counts[form]).dtype


def _look_for_unread(
    fields: Fields, whole: Fields, kind: str, layers: list[Layers], hidden: int
) -> None:
    """Name what was neither read nor known to change no size. What is null, false, 0 or empty adds
    nothing.

    Raises InputError: of the text model of a type that is known exactly, fields whose names say
    that they shape it.
    """
    ignored = _find_ignored(fields, kind, layers)
    same = {name for name in _AS_WIDE if fields.values.get(name) == hidden}
    left = _find_unread(fields, ignored)
    shaping = [name for name in left if _SHAPING.search(name) and name not in same]
    unread = f"not understood, and likely to change sizes: {_list_fields(shaping)}"
    if shaping and tables().find(kind) is not None:
        raise InputError(
            f"{fields.where}: {unread}; where they do not, take them out of a copy of the file"
        )
    if shaping:
        fields.assume(f"fields {unread}")
    outer = [] if whole is fields else _find_unread(whole, tables().ignored.always)
    names = sorted({*left, *outer} - same - {*shaping})
    if names:
        fields.assume(f"fields not understood, taken to change no size: {_list_fields(names)}")


def _find_ignored(fields: Fields, kind: str, layers: list[Layers]) -> frozenset[str]:
    """Return fields that say nothing of a model with these fields and these layers."""
    rules = tables().ignored
    attentions = [
        run.attention for run in layers if not isinstance(run.attention, LinearAttention | None)
    ]
    # Of a type that is not known, or whose layers are not told apart, fields of states may mean
    # something.
    told_apart = tables().find(kind) is not None and not fields.used.isdisjoint(_TELLING)
    lacking = {
        "experts": not any(isinstance(run.mlp, Experts) for run in layers),
        "dense_mlps": not any(isinstance(run.mlp, DenseMlp) for run in layers),
        "windows": not any(attention.window_tokens for attention in attentions),
        "states": told_apart and not any(run.states for run in layers),
        "attention": not attentions,
    }
    without = (names for part, names in rules.without.items() if lacking[part])
    beside = (names for name, names in rules.beside.items() if fields.values.get(name) is not None)
    return rules.always.union(*without, *beside)


def _find_unread(part: Fields, ignored: frozenset[str]) -> list[str]:
    understood = part.used | ignored | _PARTS
    return sorted(
        name
        for name, value in part.values.items()
        if value and name not in understood and not _HARMLESS.search(name)
    )


def _list_fields(names: list[str]) -> str:
    return ", ".join(name[:60] for name in names[:12]) + (
        f" and {len(names) - 12} more" if len(names) > 12 else ""
    )
