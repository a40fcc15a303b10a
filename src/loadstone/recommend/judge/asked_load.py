"""A plan under the very load that was asked for: its latencies, and how likely all bounds hold.

The probability is that of `simulate --slo`: the same draws of the model's errors
(predict/simulator/uncertainty.py), judged by the same function (analyse/slo.py).
"""

import math
from typing import NamedTuple

import numpy as np

from loadstone.analyse.metrics import latencies_of
from loadstone.analyse.slo import Bound, bounds_of, probability_of
from loadstone.core.plan import Plan
from loadstone.core.statistics import distribution
from loadstone.core.summary import Latency, Requests
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import Fleet
from loadstone.predict.simulator.latencies import request_rows, simulated_pace, task_times
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
from loadstone.recommend.search.curve import fleet_beside, fleet_size, parts_to_simulate

TTFT, TPOT = 0, 1
"""Places of both in the vectors of errors."""


class AskedLoad(NamedTuple):
    """Holds what a plan does under the load that was asked for. Latencies in seconds, throughputs
    of a replica.

    p_slo     the probability that all bounds hold; `met`: by the best prediction
    weakest   the bound that breaks most often in draws of the errors, and in which share of them
    cause     what the uncertainty of its time mostly is, and its share of the variance
    requests  that were simulated; `whole`: none of the traffic is left out but other replicas'
              share
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


def quantity_of(bound: str) -> int:
    """Return whose error a bound's figure has: TTFT's or TPOT's."""
    return TTFT if bound.startswith("ttft") else TPOT


def simulate_asked(choice: PlanChoice, planning: Planning) -> AskedLoad:
    """Simulate the asked load on a plan's replicas but for those that may fail; of several windows
    of a trace the worst counts."""
    finalist, traffic = choice.finalist, planning.traffic
    load, size, fleet = _serve(choice, planning)
    whole = True
    if traffic.has_times:
        share = load * size / traffic.plan.cells[0].value
        whole = share * len(traffic.plan) <= planning.effort.whole_requests
    requests = planning.effort.asked_requests
    parts = parts_to_simulate(finalist.candidate, planning, load, size, requests)
    if traffic.has_times and whole:
        parts = traffic.parts(load * size, len(traffic.plan), 1.0)
    error = finalist.error if finalist.learned else None
    judged = [_judge_part(fleet, part, planning, size, error) for part in parts]
    worst = min(judged, key=lambda asked: (asked.met, asked.p_slo))
    return worst._replace(whole=whole, requests=sum(len(part) for part in parts))


def check_whole(choice: PlanChoice, planning: Planning) -> tuple[bool, int]:
    """Simulate the whole trace by the best prediction; returns whether all bounds hold, and its
    requests."""
    traffic = planning.traffic
    load, size, fleet = _serve(choice, planning)
    (part,) = traffic.parts(load * size, len(traffic.plan), 1.0)
    run = run_cell(part, 0, fleet, grace_s=math.inf)
    figures = bounded_figures(run, part, [bound.name for bound in traffic.bounds])
    factors = np.exp(choice.finalist.error.mean)
    holds = all(
        figures[bound.name] * factors[quantity_of(bound.metric)] <= bound.bound_s
        for bound in traffic.bounds
    )
    return bool(holds) and simulated_pace(run, part.cells[0]).keeps_up is not False, len(part)


def _serve(choice: PlanChoice, planning: Planning) -> tuple[float, int, Fleet]:
    """Return the load of each replica but for those that may fail, how many of them are simulated
    side by side, and these."""
    candidate, traffic = choice.finalist.candidate, planning.traffic
    replicas = choice.replicas - planning.choice.reserve
    size = fleet_size(candidate, replicas, traffic)
    return traffic.demand / replicas, size, fleet_beside(candidate, traffic, size)


def _judge_part(
    fleet: Fleet, part: Plan, planning: Planning, size: int, learned: PredictionError | None
) -> AskedLoad:
    """Simulate a part of the traffic on `size` replicas, and judge its bounds. `learned`: the
    error, where that is not the profile's."""
    traffic = planning.traffic
    run, load = run_steady(part, fleet), part.cells[0]
    if learned is None:
        causes = split_error(run, fleet, acceptance_known=planning.acceptance_known)
        error = sum_causes(causes)
    else:
        causes = {"what the measurement leaves open": learned.covariance}
        error = learned
    bounds = [Bound(bound.name, bound.bound_s) for bound in traffic.bounds]
    factors = bound_factors(part, run, fleet, [bound.name for bound in bounds], error)
    rows = request_rows(run)
    rows = rows[~np.isnan(rows["end"])]
    metrics = latencies_of(rows[rows["measured"]], load)
    task_s = None if traffic.sessions is None else Latency.of(distribution(task_times(run)[0]))
    requests = Requests(sent=len(rows), ok=len(rows))
    judged = bounds_of(bounds, load, requests, metrics, factors.get, task_s)
    keeps_up = not load.is_open or simulated_pace(run, load).keeps_up is not False
    missed = {bound.metric: 1 - (bound.p_met or 0.0) for bound in judged}
    weakest = max(missed, key=lambda name: missed[name])
    quantity = quantity_of(weakest)
    cause = max(causes, key=lambda name: float(causes[name][quantity, quantity]))
    variance = float(error.covariance[quantity, quantity])
    first_s = float(np.fmin(rows["intended"], rows["sent"]).min())
    span_s = float(rows["end"].max()) - first_s
    ttft_s = metrics.ttft_s if load.is_closed else metrics.ttft_intended_s
    factor = np.exp(error.mean)
    sessions = traffic.session_figures(run, load.value)
    tokens_per_s = sessions.requests_per_s * traffic.output_tokens
    return AskedLoad(
        p_slo=(probability_of(judged, load, metrics, factors.get, task_s) or 0.0) * keeps_up,
        met=keeps_up and all(bound.met for bound in judged),
        ttft_s=_scale_latency(ttft_s, float(factor[TTFT])),
        tpot_s=_scale_latency(metrics.tpot_s, float(factor[TPOT])),
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
    )


def _scale_latency(latency: Latency | None, factor: float) -> tuple[float, float]:
    if latency is None or latency.p50 is None or latency.p99 is None:
        return 0.0, 0.0
    return latency.p50 * factor, latency.p99 * factor
