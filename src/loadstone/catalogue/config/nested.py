"""Reads a text model's config inside another one: what it leaves out, and whose word counts."""

from functools import cache
from importlib import resources
from typing import Any

import msgspec

from loadstone.catalogue.config.families import Family, tables
from loadstone.catalogue.config.fields import Fields

TEXT_PARTS = ("text_config", "llm_config", "language_config")
_PERIODS = ("sliding_window_pattern", "full_attention_interval")


class _Defaults(msgspec.Struct, frozen=True):
    """Holds text_defaults.json, which tests/catalogue/transformers_defaults.py writes. parts: outer
    model_type, the part's field, its model_type; defaults: of the fields of such a part's class;
    aliases: other names that the class takes for one.
    """

    parts: dict[str, dict[str, str]]
    defaults: dict[str, dict[str, Any]]
    aliases: dict[str, dict[str, list[str]]]


@cache
def _defaults() -> _Defaults:
    content = (resources.files("loadstone.catalogue") / "text_defaults.json").read_bytes()
    return msgspec.json.decode(content, type=_Defaults)


def text_fields(whole: Fields) -> tuple[Fields, str]:
    """Return the fields of the text model, with what its class has where they are silent, and its
    model_type; of a config without another one inside, its own.
    """
    whole.flatten("thinker_config")  # Qwen's Omni models: what reads and writes text
    fields = whole.inner(*TEXT_PARTS)
    if fields is None:
        return whole, whole.text("model_type") or str(
            next(iter(whole.entries("architectures") or []), "")
        )
    kind = fields.text("model_type") or part_kind(whole, fields, "text_config")
    left = filled(fields, kind)
    named = ", ".join(
        f"{name} {value}" for name, value in left.items() if value and not isinstance(value, str)
    )
    if named:
        fields.assume(f"left out, and so as in the class of this model_type: {named}")
    return fields, kind


def part_kind(whole: Fields, part: Fields, name: str) -> str:
    """Return the model_type of a part: its own, or where it does not say one that is known, the one
    its outer class has."""
    inner_type, outer = part.text("model_type"), whole.text("model_type")
    return (
        inner_type
        if inner_type in _defaults().defaults
        else _defaults().parts.get(outer, {}).get(name, inner_type or outer)
    )


def filled(fields: Fields, kind: str) -> dict[str, Any]:
    """Adds what a part of this model_type leaves out because its class has it, and returns that.
    transformers before 4.52 saved of a part only what differs from its class, and its model_type; a
    part without one is its maker's own.
    """
    if not fields.text("model_type"):
        return {}
    aliases = _defaults().aliases.get(kind, {})
    left = {
        name: value
        for name, value in _defaults().defaults.get(kind, {}).items()
        if fields.values.keys().isdisjoint([name, *aliases.get(name, ())])
    }
    if "layer_types" in fields.values or "_sliding_window_pattern" in fields.values:
        left = {name: value for name, value in left.items() if name not in _PERIODS}
    fields.values = {**fields.values, **left}
    return left


def tied_embeddings(fields: Fields, whole: Fields, family: Family, is_listed: bool) -> bool:
    """Return whether the output head is the input table. The outer config's word counts, as for
    transformers 5 and vLLM (`VllmConfig.with_hf_config`), but in a few classes; then the text
    model's; then its class.
    """
    names = ("tie_word_embeddings", "tie_embedding")  # the other is LFM2's
    inner = fields.raw(*names)
    outer = whole.raw(*names) if whole is not fields else None
    alone = any(str(name).endswith("ForCausalLM") for name in whole.entries("architectures") or [])
    rule = tables().tied_embeddings.get(whole.text("model_type"), "inner" if alone else "outer")
    if rule == "never":
        return False
    flags = [
        bool(flag)
        for flag in ((inner, outer) if rule == "inner" else (outer, inner))
        if flag is not None
    ]
    if not flags:
        how = (
            f"{'tied' if family.tied_embeddings else 'not tied'}, as this model_type is"
            if is_listed
            else "not tied assumed"
        )
        fields.assume(f"tie_word_embeddings absent: {how}")
        return family.tied_embeddings
    if len(set(flags)) > 1:
        fields.assume(
            f"tie_word_embeddings differs from text_config's: {'tied' if flags[0] else 'not tied'}"
            " taken, as transformers and vLLM do unless the checkpoint has an output head of"
            " its own"
        )
    return flags[0]
