"""Finalists: the few candidates that are simulated, with what is known of each afterwards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from loadstone.analyse.compare.price import Prices
from loadstone.analyse.summary import summary_of
from loadstone.calibrate.cases import predict_latencies
from loadstone.catalogue import parse_deployment
from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.core.errors import InputError
from loadstone.predict.simulator.bound_errors import PredictionError
from loadstone.recommend.candidates import (
    Candidate,
    Refused,
    make_candidate,
    predict_rate,
    shape_of,
)
from loadstone.recommend.curve import Array, Curve, simulate_curve
from loadstone.recommend.errors import unmeasured_errors
from loadstone.recommend.options import RecommendOptions
from loadstone.recommend.progress import show_progress
from loadstone.recommend.traffic import Traffic
from loadstone.runs.calibrate import cases_of_runs, deployment_of_runs

DRAWS = 1024
_SIZES = 2
"""GPUs of a replica that are looked at of each kind of GPU: what one lacks, such as room for what
prompts share, the other may have."""
_OF_POOLS = 6
"""Deployments with pools that are simulated beside those with one."""
_CHEAPEST, _OF_GROUPS = 10, 10
"""Finalists: so many of the cheapest layouts, and the cheapest of so many GPUs, sizes and engines
besides."""


class MeasuredRun(NamedTuple):
    """A measured run of a deployment; gaps: ln(measured/predicted) of its TTFT and TPOT, NaN where
    not measured.

    graded  its answers were graded, with a verdict; `wrong`: they are wrong, as it says
    """

    deployment: str
    gaps: Array
    graded: bool = False
    wrong: str = ""

    def has_precision_of(self, deployment: Deployment) -> bool:
        """Tell whether a deployment has the model, and the precision of weights and KV cache, that
        was measured."""
        own = parse_deployment(self.deployment)
        return all(
            getattr(own, name) == getattr(deployment, name)
            for name in ("model", "weights_dtype", "kv_dtype")
        )


def refuse_wrong(
    candidates: Sequence[Candidate], measured: Sequence[MeasuredRun]
) -> tuple[list[Candidate], list[Refused]]:
    """Leave out what has a precision at which measured answers were wrong; return the others, and
    the reasons."""
    why = {
        each.deployment.name: (
            f"its precision failed the check of answers on {run.deployment}: {run.wrong}"
        )
        for run in measured
        for each in candidates
        if run.wrong and run.has_precision_of(each.deployment)
    }
    kept = [each for each in candidates if each.deployment.name not in why]
    return kept, [Refused(name, text) for name, text in why.items()]


@dataclass(frozen=True, eq=False)
class SimulatedCandidate:
    """A candidate with its simulations, and how wrong these may be.

    error         of ln(measured/predicted), of TTFT and TPOT
    factors       draws of the errors, draws × (TTFT, TPOT)
    capacities    by draw, what a replica carries within the bounds (requests/s, or under way)
    """

    candidate: Candidate
    curve: Curve
    error: PredictionError
    factors: Array
    capacities: Array

    @property
    def deployment(self) -> Deployment:
        return self.candidate.deployment

    @property
    def name(self) -> str:
        return self.candidate.deployment.name

    @property
    def replica_cost(self) -> float:
        """Dollars per hour of one replica, or its GPUs where no price is known."""
        return self.candidate.cost / self.candidate.replicas

    def replicas_needed(self, traffic: Traffic, reserve: int) -> Array:
        """Return by draw how many replicas hold the bounds under the traffic, `reserve` of which
        may fail."""
        each = np.maximum(self.capacities, 1e-9)
        return np.asarray(np.ceil(traffic.demand / each * (1 - 1e-9)) + reserve)


def choose_finalists(
    candidates: Sequence[Candidate],
    measured: Sequence[MeasuredRun],
    options: RecommendOptions,
    traffic: Traffic,
    prices: Prices,
) -> list[Candidate]:
    """Choose the cheapest layouts, the cheapest of each engine and GPU, and those that were
    measured; of each layout the best limits. By --objective throughput those that give most take
    the place of the cheapest.
    """
    fast = options.objective == "throughput"
    layouts: dict[tuple[object, ...], tuple[float, Candidate]] = {}
    for each in candidates:
        carries = predict_rate(each, options, traffic) if fast else each.load
        before, now = layouts.setdefault(shape_of(each.deployment), (carries, each))
        # Engines' own limits, unless others carry more.
        if carries > 1.02 * before or (
            carries > 0.98 * before
            and len(each.deployment.arguments) < len(now.deployment.arguments)
        ):
            layouts[shape_of(each.deployment)] = carries, each
    ordered = [
        each for _, each in sorted(layouts.values(), key=lambda row: _order(*row, fast=fast))
    ]
    # Stages take ten times as long to simulate: only where they are cheaper than what has none.
    plain = {each.group: each.cost for each in reversed(ordered) if each.deployment.pp == 1}
    ordered = [
        each
        for each in ordered
        if each.deployment.pp == 1 or each.cost < plain.get(each.group, math.inf)
    ]
    pooled = [each for each in ordered if each.fleet is not None][:_OF_POOLS]
    ordered = [each for each in ordered if each.fleet is None]
    chosen = ordered[:_CHEAPEST]
    # Of each GPU the cheapest, whatever it takes, and the cheapest of another size; then of each
    # engine on it.
    for each in ordered[_CHEAPEST:]:
        sizes = {
            one.deployment.gpus
            for one in chosen
            if one.deployment.gpu.name == each.deployment.gpu.name
        }
        if len(sizes) < _SIZES and each.deployment.gpus not in sizes:
            chosen.append(each)
    for each in ordered[_CHEAPEST:]:
        if len(chosen) < _CHEAPEST + _OF_GROUPS and each.group not in {one.group for one in chosen}:
            chosen.append(each)
    chosen += pooled
    for run in measured:
        if not run.wrong and run.deployment not in {each.deployment.name for each in chosen}:
            deployment = parse_deployment(run.deployment)
            same = [
                each for each in candidates if each.deployment.name == run.deployment
            ]  # so pools are put together
            if not same and not deployment.is_split:
                same = [make_candidate(deployment, options, traffic, prices, {})]
            chosen += [each for each in same if each.replicas]
    return chosen


def _order(carries: float, each: Candidate, *, fast: bool) -> tuple[float, float]:
    return (-carries, each.cost) if fast else (each.cost, -carries * each.replicas)


def simulate_finalists(
    candidates: Sequence[Candidate],
    measured: Sequence[MeasuredRun],
    traffic: Traffic,
    options: RecommendOptions,
) -> tuple[list[SimulatedCandidate], list[Refused]]:
    """Simulate each candidate; returns those that hold the bounds under some load, and the others
    with the reason."""
    kept: list[tuple[Candidate, Curve]] = []
    refused: list[Refused] = []
    for at, candidate in enumerate(candidates, 1):
        show_progress(
            f"simulating {at} of {len(candidates)} finalists: {candidate.deployment.name}"
        )
        try:
            curve = simulate_curve(candidate, traffic, candidate.replicas)
        except InputError as error:
            refused.append(Refused(candidate.deployment.name, str(error)))
            continue
        if curve.capacity > 0:
            kept.append((candidate, curve))
        else:
            why = "holds the bounds by closed form, and under no load that was simulated"
            refused.append(Refused(candidate.deployment.name, why))
    if not kept:
        raise InputError(
            f"--slo: {refused[-1].deployment}: {refused[-1].why}; widen the bounds, or give more"
            " GPUs"
        )
    errors = unmeasured_errors(
        [each for each, _ in kept], traffic, acceptance_known=options.acceptance is not None
    )
    names = [candidate.deployment.name for candidate, _ in kept]
    for run in measured:
        if run.deployment in names and not run.wrong:
            errors = errors.learn(names.index(run.deployment), run.gaps)
    factors = np.moveaxis(errors.draw(DRAWS), 1, 0)
    finalists = [
        SimulatedCandidate(
            candidate, curve, errors.marginal(at), factor, curve.capacities(traffic, factor)
        )
        for at, ((candidate, curve), factor) in enumerate(zip(kept, factors, strict=True))
    ]
    return finalists, refused


def read_measured(run: Path, *, force: bool) -> MeasuredRun:
    """Compare a measured run with its simulation. Raises InputError where it is no measured run of
    a known deployment, or, unless `force`, not trusted."""
    deployment = deployment_of_runs([run])
    cells = summary_of(run).cells
    found = [
        each for cell in cells for each in cell.verdict.findings if each.kind == "answers_wrong"
    ]
    if found:
        return MeasuredRun(deployment.name, np.full(2, np.nan), True, found[0].evidence)
    gaps = []
    for case in cases_of_runs([run], deployment, force=force):
        ttft_s, tpot_s = case.point.ttft_s or math.nan, case.point.tpot_s or math.nan
        predicted = predict_latencies(case)
        gaps.append((math.log(ttft_s / predicted[0]), math.log(tpot_s / predicted[1])))
    graded = any(cell.graded is not None and cell.graded.undecided is None for cell in cells)
    return MeasuredRun(deployment.name, np.nanmedian(np.array(gaps), axis=0), graded)
