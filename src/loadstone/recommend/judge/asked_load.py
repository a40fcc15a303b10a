"""A plan under the very load that was asked for: its latencies, and how likely all bounds hold.

The probability is that of `simulate --slo`: the same draws of the model's errors
(predict/simulator/uncertainty.py), judged by the same function (analyse/slo.py).
"""

import math
from collections.abc import Mapping
from statistics import NormalDist
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from loadstone.analyse.metrics import latencies_of, measure_part
from loadstone.analyse.slo import BoundedCell
from loadstone.core.bounds import Bound, split_bound
from loadstone.core.metrics import Latency, Requests
from loadstone.core.parts import Part
from loadstone.core.plan import Plan
from loadstone.core.statistics import distribution
from loadstone.core.vectors import Floats
from loadstone.engines.habits import Route
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import Fleet
from loadstone.predict.simulator.latencies import (
    answered_classes,
    answered_rows,
    simulated_pace,
    task_times,
)
from loadstone.predict.simulator.parts import hasten
from loadstone.predict.simulator.run import CellRun
from loadstone.predict.simulator.uncertainty import (
    PredictionError,
    bound_factors,
    bounded_figures,
    split_error,
    sum_causes,
)
from loadstone.recommend.demand.planning import Planning
from loadstone.recommend.demand.sessions import NO_SESSIONS, SessionFigures, run_steady
from loadstone.recommend.judge.choices import PlanChoice
from loadstone.recommend.judge.errors import UncertainFinalist
from loadstone.recommend.search.curve import (
    fleet_beside,
    list_routes,
    parts_to_simulate,
    whole_size,
)

_ALL, _ALIKE = 1 << 40, 0.2
TTFT, TPOT = 0, 1
"""Places of both in the vectors of errors."""


class ClassLatencies(NamedTuple):
    """Median and 99th percentile of a class's TTFT and TPOT, in seconds, and how likely each of its
    bounds holds."""

    ttft_s: tuple[float, float]
    tpot_s: tuple[float, float]
    bounds: dict[str, float]


class AskedLoad(NamedTuple):
    """Holds what a plan does under the load that was asked for. Latencies in seconds, throughputs
    of a replica.

    p_slo     the probability that all bounds hold; `met`: by the best prediction
    weakest   the bound that breaks most often in draws of the errors, and in which share of them
    cause     what the uncertainty of its time mostly is, and its share of the variance
    by_draw   the probability in each draw of the errors of all finalists together
    requests  that were simulated; `whole`: none of the traffic is left out but other replicas'
              share; `side_by_side`: how many of these there were, behind a router of this `route`
    """

    p_slo: float
    met: bool
    ttft_s: tuple[float, float]
    tpot_s: tuple[float, float]
    requests_per_s: float
    output_tokens_per_s: float
    weakest: tuple[str, float]
    cause: tuple[str, float]
    error: PredictionError
    requests: int
    whole: bool
    sessions: SessionFigures = NO_SESSIONS
    side_by_side: int = 1
    route: Route = "least-busy"
    by_draw: Floats = np.zeros(0)
    by_class: Mapping[str, ClassLatencies] = MappingProxyType({})


def quantity_of(bound: str) -> int:
    """Return whose error a bound's figure has: TTFT's or TPOT's."""
    return TTFT if split_bound(bound).base == "ttft" else TPOT


def simulate_asked(choice: PlanChoice, planning: Planning) -> AskedLoad:
    """Simulate the asked load on a plan's replicas but for those that may fail; of several windows
    of a trace the worst counts."""
    finalist, traffic, effort = choice.finalist, planning.traffic, planning.effort
    load, size = _share(choice, planning)
    whole, requests = True, effort.asked_requests
    if traffic.has_times:
        share = load * size / traffic.plan.cells[0].value
        whole = share * len(traffic.plan) <= effort.whole_requests
        if whole:
            requests = (_ALL, _ALL)
    parts = parts_to_simulate(finalist.candidate, planning, load, size, requests)
    fleet = _choose_fleet(choice, parts[0], size, planning)
    judged = [_judge_part(fleet, part, planning, size, finalist) for part in parts]
    worst = min(judged, key=lambda asked: (asked.met, asked.p_slo))
    return worst._replace(
        whole=whole,
        requests=sum(len(part) for part in parts),
        side_by_side=size,
        route=fleet.route or "least-busy",
    )


def check_whole(choice: PlanChoice, planning: Planning) -> tuple[bool, int]:
    """Simulate the whole trace by the best prediction; returns whether all bounds hold, and its
    requests."""
    traffic = planning.traffic
    load, size = _share(choice, planning)
    (part,) = parts_to_simulate(choice.finalist.candidate, planning, load, size, (_ALL, _ALL))
    fleet = _choose_fleet(choice, part, size, planning)
    run = run_cell(part, 0, fleet, grace_s=math.inf)
    figures = bounded_figures(run, part, [bound.name for bound in traffic.bounds])
    factors = np.exp(choice.finalist.error.mean)
    holds = all(
        figures[bound.name] * factors[quantity_of(bound.metric)] <= bound.bound_s
        for bound in traffic.bounds
    )
    return bool(holds) and simulated_pace(run, part.cells[0]).keeps_up is not False, len(part)


def _share(choice: PlanChoice, planning: Planning) -> tuple[float, int]:
    """Return the load of each replica but for those that may fail, and how many of them are
    simulated side by side."""
    replicas = choice.replicas - planning.choice.reserve
    size = whole_size(choice.finalist.candidate, replicas, planning)
    return planning.traffic.demand / replicas, size


def _choose_fleet(choice: PlanChoice, part: Plan, size: int, planning: Planning) -> Fleet:
    """Return so many replicas behind the plan's router, or the best: behind which the bounds are
    nearest to holding where engines are as slow as the asked probability has to allow. Of those
    that hardly differ it is the simplest."""
    candidate, traffic, error = choice.finalist.candidate, planning.traffic, choice.finalist.error
    routes = [choice.route] if choice.route else list_routes(candidate, size, planning)
    fleets = [fleet_beside(candidate, traffic, size, route) for route in routes]
    if len(fleets) == 1:
        return fleets[0]
    spreads = np.sqrt(np.diag(error.covariance))
    factors = np.exp(NormalDist().inv_cdf(planning.choice.confidence) * spreads)
    sooner = hasten(part, float(factors[TPOT]))
    limits = {
        bound.name: bound.bound_s / float(factors[quantity_of(bound.name)])
        for bound in traffic.bounds
    }

    def miss(fleet: Fleet) -> float:
        figures = bounded_figures(run_steady(sooner, fleet), sooner, limits)
        return round(math.log(max(figures[name] / limits[name] for name in limits)) / _ALIKE)

    return min(fleets, key=miss)


def _judge_part(
    fleet: Fleet, part: Plan, planning: Planning, size: int, finalist: UncertainFinalist
) -> AskedLoad:
    """Simulate a part of the traffic on `size` replicas, and judge its bounds."""
    traffic = planning.traffic
    run, load = run_steady(part, fleet), part.cells[0]
    if finalist.learned:
        error = finalist.error
        causes = {"what the measurement leaves open": error.covariance}
    else:
        causes = split_error(run, fleet, acceptance_known=planning.acceptance_known)
        error = sum_causes(causes)
    bounds = [Bound(bound.name, bound.bound_s) for bound in traffic.bounds]
    limits = {bound.name: bound.bound_s for bound in traffic.bounds}
    by_finalist = error.draw_factors()
    drawn = (
        np.vstack([by_finalist, _draw_together(finalist, error)])
        if planning.is_mixed
        else by_finalist
    )
    found = bound_factors(part, run, fleet, limits, error, drawn)
    factors = {name: values[: len(by_finalist)] for name, values in found.items()}
    together = {name: values[len(by_finalist) :] for name, values in found.items()}
    rows = answered_rows(run)
    metrics, classes = latencies_of(rows, load), _divide_by_class(run, part)
    task_s = None if traffic.sessions is None else Latency.of(distribution(task_times(run)[0]))
    requests = Requests(sent=len(rows), ok=len(rows))
    cell = BoundedCell(load, requests, metrics, factors.get, task_s, classes)
    judged = cell.judge(bounds)
    by_draw = None
    if planning.is_mixed:
        by_draw = cell._replace(factors_of=together.get).probabilities(judged)
    keeps_up = not load.is_open or simulated_pace(run, load).keeps_up is not False
    missed = {bound.metric: 1 - (bound.p_met or 0.0) for bound in judged}
    weakest = max(missed, key=lambda name: missed[name])
    quantity = quantity_of(weakest)
    cause = max(causes, key=lambda name: float(causes[name][quantity, quantity]))
    variance = float(error.covariance[quantity, quantity])
    first_s = float(np.fmin(rows["intended"], rows["sent"]).min())
    span_s = float(rows["end"].max()) - first_s
    ttft_s = metrics.ttft_s if load.is_closed else metrics.ttft_intended_s
    first, pace = np.exp(error.mean).tolist()
    sessions = traffic.session_figures(run, load.value / size)
    tokens_per_s = sessions.requests_per_s * traffic.output_tokens
    return AskedLoad(
        p_slo=(cell.probability(judged) or 0.0) * keeps_up,
        met=keeps_up and all(bound.met for bound in judged),
        ttft_s=_scale_latency(ttft_s, first),
        tpot_s=_scale_latency(metrics.tpot_s, pace),
        requests_per_s=sessions.requests_per_s or len(rows) / span_s / size,
        output_tokens_per_s=tokens_per_s or float(rows["tokens"].sum()) / span_s / size,
        weakest=(weakest, missed[weakest]),
        cause=(
            cause,
            float(causes[cause][quantity, quantity]) / variance if variance > 0 else 0.0,
        ),
        error=error,
        requests=len(part),
        whole=True,
        sessions=sessions,
        by_draw=np.zeros(1) if by_draw is None else by_draw * keeps_up,
        by_class={
            name: ClassLatencies(
                _scale_latency(part.ttft_s if load.is_closed else part.ttft_intended_s, first),
                _scale_latency(part.tpot_s, pace),
                {
                    bound.metric: (bound.p_met or 0.0) * keeps_up
                    for bound in judged
                    if split_bound(bound.metric).traffic_class == name
                },
            )
            for name, part in classes.items()
        },
    )


def _draw_together(finalist: UncertainFinalist, error: PredictionError) -> Floats:
    """Return the finalist's draws, which are of all finalists together, as wide as the error is
    under the asked load."""
    spreads = [np.sqrt(np.diag(prediction.covariance)) for prediction in (error, finalist.error)]
    scale = spreads[0] / np.maximum(spreads[1], 1e-9)
    apart = np.log(finalist.factors) - finalist.error.mean
    return np.asarray(np.exp(error.mean + apart * scale))


def _divide_by_class(run: CellRun, part: Plan) -> dict[str, Part]:
    """Return the numbers of each class of traffic, by its name."""
    if part.traffic_class is None:
        return {}
    rows, classes = answered_rows(run), answered_classes(run, part)
    tokens = float(rows["tokens"].sum())
    return {
        of_class.name: measure_part(rows[classes == number], tokens, streams=True)
        for number, of_class in enumerate(part.classes)
    }


def _scale_latency(latency: Latency | None, factor: float) -> tuple[float, float]:
    if latency is None or latency.p50 is None or latency.p99 is None:
        return 0.0, 0.0
    return latency.p50 * factor, latency.p99 * factor
