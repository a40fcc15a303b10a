"""Classes of deployments and loads that no measurement behind the shipped coefficients covers, and
how much wider their intervals are.

Each was found by errors of rows that no fit has seen; docs/accuracy.md has what other rows say of
them. A calibration on measurements of one's own removes the widening.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from loadstone.catalogue.deployment.deployment import Worker
from loadstone.engines import rules_of
from loadstone.engines.rules import EngineRules

_TWICE = 2.0
_FOUR_BITS = ("nvfp4", "mxfp4")
_LARGE_BURST = 500


class Uncovered(NamedTuple):
    """A class without measurements; `times`: how much wider its intervals are, in ln."""

    what: str
    times: float = _TWICE


def uncovered(rules: EngineRules, measured: Collection[str], family: str) -> list[Uncovered]:
    """List the classes that a deployment is in. `measured`: the families with measurements on its
    architecture."""
    worker = rules.worker
    gpu, model, weights = worker.gpu, worker.model, worker.weights_dtype
    found = [Uncovered(kind) for kind in rules.uncovered()]
    if worker.task is not None:
        found.append(Uncovered("models that write no text"))
    if gpu.vendor == "amd":
        if family not in measured:
            found.append(Uncovered(f"{model.name}'s family on {gpu.architecture}"))
        if weights in _FOUR_BITS and "fp4" not in gpu.flops_per_s:
            found.append(Uncovered(f"FP4 weights on {gpu.name}, which widens them"))
        if weights == "int4" and model.has_experts:
            found.append(Uncovered(f"INT4 experts on {gpu.name}", 3.0))
    return found


def uncovered_load(worker: Worker, burst: int, running: int) -> list[Uncovered]:
    """List the classes that a load is in. `burst`: the requests of a burst, 0 where it is none;
    `running`: those that one scheduler decodes at once, at most."""
    found = []
    if burst >= _LARGE_BURST:
        found.append(Uncovered(f"bursts of {_LARGE_BURST} requests and more"))
    largest = rules_of(worker).graph_seqs
    if largest and running > largest:
        found.append(Uncovered(f"batches above the largest CUDA graph ({largest})"))
    return found


def widening(found: Sequence[Uncovered]) -> float:
    """Return how much wider intervals are in ln; 1 where nothing was found."""
    return max((uncovered.times for uncovered in found), default=1.0)
