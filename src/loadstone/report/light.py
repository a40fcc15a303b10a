"""The speed of light beside a point: the time below which its hardware cannot go, from the catalogue's numbers.

Only where a run says enough (model, GPU, how many, how they are split) and the catalogue knows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from loadstone.catalogue.hardware import Gpu
from loadstone.catalogue.own import is_file
from loadstone.errors import InputError
from loadstone.runfacts import RunFacts, mapping

if TYPE_CHECKING:
    from loadstone.perfmodel import StepModel


def light_tpot_s(facts: RunFacts, decodes: float, context_tokens: float) -> float | None:
    """Seconds of a step of nothing but decodes, on all schedulers of the deployment together `decodes` of them.

    context_tokens: mean of a sequence. Weights, KV cache and arithmetic at the data sheet's rates, no overhead.
    """
    model = _model(facts)
    if model is None or decodes <= 0:
        return None
    schedulers = max(1, model.deployment.dp) * max(1, model.deployment.pp)
    each = max(1, round(decodes / schedulers))
    base_s, s_per_token = model.decode_line(each)
    return float(base_s + s_per_token * each * context_tokens)


def speculates(settings: Mapping[str, Any]) -> bool:
    """Whether the run says that its engine guesses tokens: a step gives several then, and its time bounds no TPOT."""
    arguments = mapping(mapping(settings.get("deployment")).get("arguments"))
    return str(arguments.get("num_speculative_tokens") or 0).strip() != "0"


def light_ttft_s(facts: RunFacts, input_tokens: int) -> float | None:
    """Seconds of one prompt through all layers, alone and whole."""
    model = _model(facts)
    return None if model is None else float(model.step_s(0, 0, [(input_tokens, 0)]))


def _model(facts: RunFacts) -> StepModel | None:
    name = facts.architecture or facts.model
    if not name or not facts.gpu or not facts.gpus or (facts.source == "imported" and facts.tp is None):
        return None
    split = [f"{name}{n}" for name, n in (("tp", facts.tp), ("pp", facts.pp), ("dp", facts.dp)) if n]
    engine = (facts.engine or "").lower()
    words = [*split, *([f"engine={engine}"] if engine in ("vllm", "sglang", "tensorrt-llm") else [])]
    dtype = f":{facts.weights_dtype}" if facts.weights_dtype else ""
    if facts.hardware is None and is_file(facts.gpu):
        return None  # a run names a file: none is read for it
    return _built(f"{name}{dtype}@{facts.gpus}x{facts.gpu}/{','.join(words)}".rstrip("/"), facts.hardware)


@lru_cache(maxsize=256)
def _built(shorthand: str, hardware: Gpu | None) -> StepModel | None:
    from loadstone.catalogue.shorthand import parse_deployment
    from loadstone.perfmodel import StepModel

    # A model's name may come from a server, and the shorthand takes paths too: none is looked up for it.
    if shorthand.startswith((".", "/", "~")) or "\\" in shorthand or ".." in shorthand or shorthand.count("/") > 2:
        return None
    try:
        return StepModel(parse_deployment(shorthand, hardware)).light()
    except (InputError, ArithmeticError, KeyError):
        return None
