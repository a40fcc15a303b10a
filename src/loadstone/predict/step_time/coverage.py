"""Classes of deployments and loads that no measurement behind the shipped coefficients covers, and how much wider
their intervals are.

Each was found by errors of rows that no fit has seen; docs/accuracy.md has what other rows say of them. A calibration
on measurements of one's own removes the widening.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from loadstone.catalogue.architecture.attention import LatentAttention
from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.engines import rules_of

_TWICE = 2.0
_FOUR_BITS = ("nvfp4", "mxfp4")
_LARGE_BURST = 500
_BAD_BUILDS = (0, 5, 10), (0, 5, 12)
"""SGLang's releases from the first on and before the second ran slowly on B300."""


class Uncovered(NamedTuple):
    """A class without measurements; `times`: how much wider its intervals are, in ln."""

    what: str
    times: float = _TWICE


def uncovered(deployment: Deployment, measured: Collection[str], family: str) -> list[Uncovered]:
    """List the classes that a deployment is in. `measured`: the families with measurements on its architecture."""
    gpu, model, weights = deployment.gpu, deployment.model, deployment.weights_dtype
    found = []
    if deployment.engine == "sglang":
        if deployment.attention_dp and deployment.argument("moe_a2a_backend") == "deepep":
            found.append(Uncovered("SGLang's attention data-parallel with DeepEP"))
        first, after = _BAD_BUILDS
        if gpu.name == "b300" and first <= rules_of(deployment).version < after:
            found.append(Uncovered("SGLang 0.5.10 and 0.5.11 on B300, which run slowly there"))
    if gpu.vendor == "amd":
        if family not in measured:
            found.append(Uncovered(f"{model.name}'s family on {gpu.architecture}"))
        if weights in _FOUR_BITS and "fp4" not in gpu.flops_per_s:
            found.append(Uncovered(f"FP4 weights on {gpu.name}, which widens them"))
        if weights == "int4" and model.has_experts:
            found.append(Uncovered(f"INT4 experts on {gpu.name}", 3.0))
    if (gpu.architecture or "").startswith("Grace"):
        found.append(Uncovered(f"hosts with Grace processors ({gpu.name})"))
    if deployment.engine == "tensorrt-llm" and any(_picks_tokens(run.attention) for run in model.kinds):
        found.append(Uncovered("TensorRT-LLM with sparse attention (DSA)"))
    return found


def uncovered_load(deployment: Deployment, burst: int, running: int) -> list[Uncovered]:
    """List the classes that a load is in. `burst`: the requests of a burst, 0 where it is none; `running`: those that
    one scheduler decodes at once, at most."""
    found = []
    if burst >= _LARGE_BURST:
        found.append(Uncovered(f"bursts of {_LARGE_BURST} requests and more"))
    largest = rules_of(deployment).graph_seqs
    if largest and running > largest:
        found.append(Uncovered(f"batches above the largest CUDA graph ({largest})"))
    return found


def widening(found: Sequence[Uncovered]) -> float:
    """Return how much wider intervals are in ln; 1 where nothing was found."""
    return max((each.times for each in found), default=1.0)


def _picks_tokens(attention: object) -> bool:
    return isinstance(attention, LatentAttention) and attention.top_tokens is not None
