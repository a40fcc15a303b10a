"""Finalists: the few candidates that are simulated."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from loadstone.catalogue import parse_deployment
from loadstone.core.errors import InputError
from loadstone.recommend.demand.planning import Planning
from loadstone.recommend.search.candidates import (
    Candidate,
    Refused,
    Search,
    make_candidate,
    predict_rate,
    search,
)
from loadstone.recommend.search.curve import Curve, simulate_curve
from loadstone.recommend.search.layouts import shape_of
from loadstone.recommend.search.measured import MeasuredRun, read_measured, refuse_wrong
from loadstone.recommend.search.pools import search_pools

_SIZES = 2
"""GPUs of a replica that are looked at of each kind of GPU: what one lacks, such as room for what
prompts share, the other may have."""


class SimulatedCandidate(NamedTuple):
    """A candidate, and what it does under more and more load."""

    candidate: Candidate
    curve: Curve


class Finalists(NamedTuple):
    """Holds the candidates that hold the bounds in some simulation, the measured runs that were
    read, and what is refused beside what the closed form refused."""

    simulated: list[SimulatedCandidate]
    measured: list[MeasuredRun]
    refused: list[Refused]


def rank_candidates(planning: Planning) -> Search:
    """Rank every deployment of the options by closed form, with --pools also those with pools."""
    planning.show("ranking deployments by closed form")
    return search_pools(search(planning), planning)


def simulate_finalists(found: Search, planning: Planning) -> Finalists:
    """Simulate the best candidates. Raises InputError where none holds the bounds under any load,
    and where a measured run cannot be read."""
    measured = [
        read_measured(Path(run), force=planning.choice.force) for run in planning.choice.measured
    ]
    right, wrong = refuse_wrong(found.candidates, measured)
    if not right:
        raise InputError(
            f"--with: {wrong[0].deployment}: {wrong[0].why}; and nothing else carries the traffic"
        )
    candidates = choose_finalists(right, measured, planning)
    simulated: list[SimulatedCandidate] = []
    refused: list[Refused] = []
    for number, candidate in enumerate(candidates, 1):
        planning.show(f"simulating {number} of {len(candidates)} finalists: {candidate.name}")
        try:
            curve = simulate_curve(candidate, planning, candidate.replicas)
        except InputError as error:
            refused.append(Refused(candidate.name, str(error)))
            continue
        if curve.capacity > 0:
            simulated.append(SimulatedCandidate(candidate, curve))
        else:
            why = "holds the bounds by closed form, and under no load that was simulated"
            refused.append(Refused(candidate.name, why))
    if not simulated:
        raise InputError(
            f"--slo: {refused[-1].deployment}: {refused[-1].why}; widen the bounds, or give more"
            " GPUs"
        )
    return Finalists(simulated, measured, refused + wrong)


def choose_finalists(
    candidates: Sequence[Candidate], measured: Sequence[MeasuredRun], planning: Planning
) -> list[Candidate]:
    """Choose the cheapest layouts, the cheapest of each engine and GPU, and those that were
    measured; of each layout the best limits. By --objective throughput those that give most take
    the place of the cheapest.
    """
    effort = planning.effort
    ordered = _drop_dear_stages(_best_limits(candidates, planning))
    pooled = [candidate for candidate in ordered if candidate.fleet is not None]
    single = [candidate for candidate in ordered if candidate.fleet is None]
    chosen = single[: effort.cheapest]
    # Of each GPU the cheapest, whatever it takes, and the cheapest of another size; then of each
    # engine on it.
    for candidate in single[effort.cheapest :]:
        gpu, gpus = candidate.worker.gpu.name, candidate.deployment.gpus
        sizes = {finalist.deployment.gpus for finalist in chosen if finalist.worker.gpu.name == gpu}
        if len(sizes) < _SIZES and gpus not in sizes:
            chosen.append(candidate)
    for candidate in single[effort.cheapest :]:
        groups = {finalist.group for finalist in chosen}
        if len(chosen) < effort.cheapest + effort.of_groups and candidate.group not in groups:
            chosen.append(candidate)
    chosen += pooled[: effort.of_pools]
    for run in measured:
        if not run.wrong and run.deployment not in {finalist.name for finalist in chosen}:
            chosen += _find_measured(run, candidates, planning)
    return chosen


def _best_limits(candidates: Sequence[Candidate], planning: Planning) -> list[Candidate]:
    """Return of each layout the candidate with the best limits, the best layout first."""
    by_throughput = planning.by_throughput
    layouts: dict[tuple[object, ...], tuple[float, Candidate]] = {}
    for candidate in candidates:
        carried = predict_rate(candidate, planning) if by_throughput else candidate.load
        split = candidate.deployment.is_split
        shape = (candidate.name,) if split else shape_of(candidate.worker)
        best, rival = layouts.setdefault(shape, (carried, candidate))
        plainer = len(candidate.worker.arguments) < len(rival.worker.arguments)
        # Engines' own limits, unless others carry more.
        if carried > 1.02 * best or (carried > 0.98 * best and plainer):
            layouts[shape] = carried, candidate

    def order(row: tuple[float, Candidate]) -> tuple[float, float]:
        carried, candidate = row
        if by_throughput:
            return -carried, candidate.cost
        return candidate.cost, -carried * candidate.replicas

    return [candidate for _, candidate in sorted(layouts.values(), key=order)]


def _drop_dear_stages(ordered: Sequence[Candidate]) -> list[Candidate]:
    """Keep stages, which take ten times as long to simulate, only where they are cheaper than what
    has none."""
    plain: dict[tuple[str, str], float] = {}
    for candidate in ordered:
        if candidate.worker.pp == 1:
            plain.setdefault(candidate.group, candidate.cost)
    return [
        candidate
        for candidate in ordered
        if candidate.worker.pp == 1 or candidate.cost < plain.get(candidate.group, math.inf)
    ]


def _find_measured(
    run: MeasuredRun, candidates: Sequence[Candidate], planning: Planning
) -> list[Candidate]:
    """Return the candidate that was measured, if it carries the traffic."""
    found = [candidate for candidate in candidates if candidate.name == run.deployment]
    deployment = parse_deployment(run.deployment)
    if not found and not deployment.is_split:
        found = [make_candidate(deployment.worker, planning)]
    return [candidate for candidate in found if candidate.replicas]
