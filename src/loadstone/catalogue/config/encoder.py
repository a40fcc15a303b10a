"""Tell encoders, which read whole texts and write none, from models that generate."""

from collections.abc import Mapping
from typing import Any

_CLASSES = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForMaskedLM",
    "ForQuestionAnswering",
    "RewardModel",
)
_PARTS_OF_ONE = {"text_config", "llm_config", "language_config", "llm_cfg", "thinker_config"}


def encoder(config: Mapping[str, Any]) -> str | None:
    """Return what in a config tells an encoder: its class, or attention both ways; None for one
    that generates."""
    classes, auto_map = config.get("architectures"), config.get("auto_map")
    first = str(classes[0]) if isinstance(classes, list) and classes else ""
    bare = first.endswith("Model") and not first.endswith(("LMHeadModel", "ChatModel"))
    writes = (
        "AutoModelForCausalLM" in auto_map
        if isinstance(auto_map, dict)
        else _PARTS_OF_ONE.intersection(config)
    )
    if first.endswith(_CLASSES) or "Bidirectional" in first or (bare and not writes):
        return first
    ways = {"is_causal": (False,), "use_bidirectional_attention": (True, "all")}
    return next((name for name, values in ways.items() if config.get(name) in values), None)
