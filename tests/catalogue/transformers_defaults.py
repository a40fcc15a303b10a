"""Writes catalogue/text_defaults.json anew: what a `text_config` and its like leave out.

    .cache/engines/transformers/bin/python tests/catalogue/transformers_defaults.py

For every part of a model that reads more than text: the defaults of those fields that the
catalogue's reader names or refuses, and how often a layer sees everything, where only the class's
code says it. Run it again when the reader learns a field;
`tests/catalogue/test_architecture_nested.py` tells.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import sys
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)

CATALOGUE = Path(__file__).resolve().parents[2] / "src/loadstone/catalogue"
READER = sorted((CATALOGUE / "config").glob("*.py"))
FAMILIES = tomllib.loads((CATALOGUE / "families.toml").read_text("utf-8"))
_NEVER = (
    "model_type",
    "dtype",
    "torch_dtype",
    "tie_word_embeddings",
    "num_mtp_layers",
    "quantization_config",
)
"""Not sizes; tied embeddings have a rule of their own (`nested.tied_embeddings`)."""
_WHERE_FALSE = ("use_sliding_window", "attention_bias")
"""What the reader takes for true where it is absent, of some types."""
_PARTS = ("text_config", "vision_config", "audio_config")
_LAYERS = 24
_GENERATE = {
    *MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    *MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
}


def main() -> None:
    text = json.dumps(table(), indent=1, sort_keys=True)
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else CATALOGUE / "text_defaults.json"
    target.write_text(re.sub(r"\n {3,}", " ", text).replace("\n  }", " }") + "\n", "utf-8")


def table() -> dict[str, Any]:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    wanted = _wanted()
    found: dict[str, Any] = {"parts": {}, "defaults": {}, "aliases": {}}
    for name in sorted(_GENERATE & set(CONFIG_MAPPING)):
        whole = _made_of(CONFIG_MAPPING[name])
        if whole is None:
            continue  # a part that this installation cannot build
        whole = getattr(whole, "thinker_config", whole)
        parts = {each: getattr(whole, each, None) for each in _PARTS}
        if parts["text_config"] is None and parts["vision_config"] is None:
            continue
        kinds = {
            each: part.model_type
            for each, part in parts.items()
            if part is not None and part.model_type
        }
        found["parts"][name] = kinds
        for part in (parts[each] for each in kinds):
            kind = type(part)
            said = {**_defaults(kind, wanted), **_period(kind)}
            found["defaults"][part.model_type] = said
            others = {
                (kept, other)
                for other, kept in kind.attribute_map.items()
                if kept in said and wanted(other)
            }
            if others:
                found["aliases"][part.model_type] = {
                    name: sorted(other for kept, other in others if kept == name)
                    for name, _ in others
                }
    return found


def _texts(module: Path) -> list[str]:
    tree = ast.parse(module.read_text("utf-8"))
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def _wanted() -> Callable[[str], bool]:
    """Whether the reader names a field, as it does in its texts, or refuses a config for it."""
    known = {text for module in READER for text in _texts(module)}
    ignored = FAMILIES["ignored"]
    known |= {
        name for part in ("beside", "without") for names in ignored[part].values() for name in names
    }
    known |= {
        row[flag]
        for row in FAMILIES["family"].values()
        for flag in ("bias_flag", "parallel_flag")
        if flag in row
    }
    known |= {name for first, others in FAMILIES["spellings"].items() for name in (first, *others)}
    passed = set(ignored["always"])
    (shaping,) = (
        text for text in _texts(CATALOGUE / "config/reader.py") if text.startswith("layer|block|")
    )
    return lambda name: (
        name in known or (name not in passed and re.search(shaping, name) is not None)
    )


def _defaults(kind: type, wanted: Callable[[str], bool]) -> dict[str, Any]:
    """By the names that files have: of a field with an alias, the one it stands for."""
    kept = getattr(kind, "attribute_map", {})
    said = {kept.get(field.name, field.name): _plain(field) for field in dataclasses.fields(kind)}
    said |= {name: value for name, value in _made(kind).items() if said.get(name) is None}
    return {
        name: value
        for name, value in said.items()
        if wanted(name)
        and name not in _NEVER
        and (value or (value is False and name in _WHERE_FALSE))
    }


def _plain(field: dataclasses.Field[Any]) -> Any:
    """Its default; None for what is no plain value."""
    made = field.default_factory
    value = field.default if made is dataclasses.MISSING else made()
    value = list(value) if isinstance(value, tuple) else value
    return value if isinstance(value, bool | int | float | str | list) else None


def _made_of(kind: type, **fields: Any) -> Any:
    """A config; None where the class does not take such fields."""
    try:
        return kind(**fields)
    except Exception:
        return None


def _made(kind: type) -> dict[str, list[Any]]:
    """Lists that the class makes where nothing is said, and that no number of layers changes."""
    one, other = (_made_of(kind, num_hidden_layers=count) for count in (_LAYERS, 2 * _LAYERS))
    if one is None or other is None:
        return {}
    return {
        name: said
        for name, said in vars(one).items()
        if isinstance(said, list) and said == vars(other).get(name)
    }


def _period(kind: type) -> dict[str, int]:
    """{field: n} where each n-th layer sees everything, and the others have a window or no KV
    cache."""
    layers = getattr(_made_of(kind, num_hidden_layers=_LAYERS), "layer_types", None)
    names = {
        "sliding_attention": "sliding_window_pattern",
        "linear_attention": "full_attention_interval",
    }
    for other, field in names.items():
        if layers and set(layers) == {other, "full_attention"}:
            period = layers.index("full_attention") + 1
            if [(index + 1) % period == 0 for index in range(_LAYERS)] == [
                it == "full_attention" for it in layers
            ]:
                return {field: period}
    return {}


if __name__ == "__main__":
    main()
