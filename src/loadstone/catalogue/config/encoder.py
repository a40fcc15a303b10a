"""Tell models that write no text from those that generate: what is asked of them in its place, and
whether their tokens see those behind them too."""

from collections.abc import Mapping
from typing import Any

from loadstone.catalogue.architecture.model import Pooling

_SCORES = ("ForSequenceClassification", "RewardModel")
_CLASSES = (*_SCORES, "ForTokenClassification", "ForMaskedLM", "ForQuestionAnswering")
_PARTS_OF_ONE = {"text_config", "llm_config", "language_config", "llm_cfg", "thinker_config"}
_WAYS: dict[str, tuple[Any, ...]] = {
    "is_causal": (False,),
    "use_bidirectional_attention": (True, "all"),
}
_BOTH = "Bidirectional"


def pooling_of(config: Mapping[str, Any]) -> Pooling | None:
    """Return what a model gives by its config's class, or attention both ways; None for one that
    generates."""
    first, auto_map = _class_of(config), config.get("auto_map")
    bare = first.endswith("Model") and not first.endswith(("LMHeadModel", "ChatModel"))
    writes = (
        "AutoModelForCausalLM" in auto_map
        if isinstance(auto_map, dict)
        else _PARTS_OF_ONE.intersection(config)
    )
    if first.endswith(_CLASSES) or _BOTH in first or (bare and not writes):
        return "score" if first.endswith(_SCORES) else "embed"
    return "embed" if _sees_both_ways(config) else None


def is_bidirectional(config: Mapping[str, Any]) -> bool:
    """Return whether a config says that tokens see those behind them; some model types always
    do."""
    return _BOTH in _class_of(config) or _sees_both_ways(config)


def lacks_head(config: Mapping[str, Any]) -> bool:
    """Return whether a config's class has no output head; of a bare one that is not sure."""
    return _class_of(config).endswith(_CLASSES) or is_bidirectional(config)


def _class_of(config: Mapping[str, Any]) -> str:
    classes = config.get("architectures")
    return str(classes[0]) if isinstance(classes, list) and classes else ""


def _sees_both_ways(config: Mapping[str, Any]) -> bool:
    return any(config.get(name) in values for name, values in _WAYS.items())
