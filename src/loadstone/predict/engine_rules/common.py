"""What rules of all engines share: releases of one era, and the longest context that an engine takes."""

from __future__ import annotations

from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.predict.engine_rules import llama_cpp
from loadstone.predict.sharding.limits import count, version_of


def context_limit(deployment: Deployment) -> int | None:
    """The model's own limit, or the engine's shorter one where it was given; None where neither says."""
    said = count(deployment, "max_model_len", "max_seq_len")
    slot = llama_cpp.slot_tokens(deployment) if deployment.engine == "llama.cpp" else None
    limits = [limit for limit in (deployment.model.max_context_tokens, said, slot) if limit is not None]
    return min(limits) if limits else None


_ERAS = {
    # engine: (first version of an era, its name), newest first
    "vllm": (((0, 14), "async"), ((0, 8), "v1"), ((0, 3), "v0"), ((0, 0), "eager")),
    "sglang": (((0, 5, 11), "0.5.11"), ((0, 5, 10), "graphs"), ((0, 5), "0.5"), ((0, 0), "0.4")),
    "tensorrt-llm": (((1, 3), "1.3"), ((1, 0), "1.0"), ((0, 0), "0.x")),
}
"""vLLM before 0.3 had no CUDA graphs; 0.8 made its V1 core the default, 0.14 asynchronous scheduling. SGLang 0.5 and
TensorRT-LLM 1.0 (PyTorch backend) overlap host and device; SGLang's prompts run in piecewise CUDA graphs by default
from about 0.5.10 on."""


OLD_ERAS = frozenset({"eager", "v0", "0.4", "0.x"})
"""Whose coefficients are freer than those of later ones, and few rows tell them (docs/perfmodel.md)."""


def era_of(deployment: Deployment) -> str:
    """The era its engine's version belongs to; without a version, or one that cannot be read, the newest."""
    eras = _ERAS.get(deployment.engine)
    if eras is None:
        return "*"
    newest, _ = eras[0]
    version = version_of(deployment, newest)
    return next(name for first, name in eras if version >= first)


def eras_to(engine: str, era: str) -> list[str]:
    """What a release's coefficients are made of: present eras build on one another, so that the newest has what all
    before it had; an old one stands alone."""
    if era in OLD_ERAS or engine not in _ERAS:
        return [era]
    present = [name for _, name in reversed(_ERAS[engine]) if name not in OLD_ERAS]
    return present[: present.index(era) + 1]
