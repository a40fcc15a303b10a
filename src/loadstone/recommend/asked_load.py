"""A plan under the very load that was asked for: its latencies, and how likely all bounds hold.

The probability is that of `simulate --slo`: the same draws of the model's errors
(predict/simulator/bound_errors.py), judged by the same function (analyse/slo.py).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from loadstone.analyse.metrics import latencies_of
from loadstone.analyse.slo import Bound, bounds_of, probability_of
from loadstone.core.plan import Plan
from loadstone.core.statistics import distribution
from loadstone.core.summary import Latency, Requests
from loadstone.predict.simulator.bound_errors import (
    PredictionError,
    bound_factors,
    bounded_figures,
    split_error,
    sum_causes,
)
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import Fleet
from loadstone.predict.simulator.latencies import request_rows, simulated_pace, task_times
from loadstone.recommend.curve import fleet_beside, fleet_size, parts_to_simulate
from loadstone.recommend.finalists import SimulatedCandidate
from loadstone.recommend.sessions import NO_SESSIONS, SessionFigures, run_steady
from loadstone.recommend.traffic import MOST_REQUESTS, Traffic

_LEAST_REQUESTS = 2_000
_WHOLE_REQUESTS = 20_000
"""A trace of so many on the replicas that are simulated is simulated whole, for each draw of errors
too."""


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


def simulate_asked(
    finalist: SimulatedCandidate, replicas: int, traffic: Traffic, *, learned: bool, assumed: bool
) -> AskedLoad:
    """Simulate the asked load on so many replicas; of several windows of a trace the worst counts.
    `learned`: the finalist's errors are not those of the profile alone; `assumed`: nobody gave the
    acceptance of drafts.
    """
    candidate, load = finalist.candidate, traffic.demand / replicas
    size = fleet_size(candidate, replicas, traffic)
    fleet = fleet_beside(candidate, traffic, size)
    parts, whole = (
        parts_to_simulate(candidate, traffic, load, size, (_LEAST_REQUESTS, MOST_REQUESTS)),
        True,
    )
    if traffic.has_times:
        share = load * size / traffic.plan.cells[0].value
        whole = share * len(traffic.plan) <= _WHOLE_REQUESTS
        parts = traffic.parts(load * size, len(traffic.plan), 1.0) if whole else parts
    error = finalist.error if learned else None
    asked = [_judge_part(fleet, part, traffic, size, error, assumed=assumed) for part in parts]
    worst = min(asked, key=lambda each: (each.met, each.p_slo))
    return worst._replace(whole=whole, requests=sum(len(part) for part in parts))


def check_whole(finalist: SimulatedCandidate, replicas: int, traffic: Traffic) -> tuple[bool, int]:
    """Simulate the whole trace by the best prediction; returns whether all bounds hold, and its
    requests."""
    candidate = finalist.candidate
    size = fleet_size(candidate, replicas, traffic)
    fleet = fleet_beside(candidate, traffic, size)
    (part,) = traffic.parts(traffic.demand / replicas * size, len(traffic.plan), 1.0)
    run = run_cell(part, 0, fleet, grace_s=math.inf)
    figures = bounded_figures(run, part, [each.name for each in traffic.bounds])
    middle = np.exp(finalist.error.mean)
    holds = all(
        figures[each.name] * middle[0 if each.metric == "ttft" else 1] <= each.bound_s
        for each in traffic.bounds
    )
    return bool(holds) and simulated_pace(run, part.cells[0]).keeps_up is not False, len(part)


def _judge_part(
    fleet: Fleet,
    part: Plan,
    traffic: Traffic,
    size: int,
    error: PredictionError | None,
    *,
    assumed: bool,
) -> AskedLoad:
    run, load = run_steady(part, fleet), part.cells[0]
    names = [each.name for each in traffic.bounds]
    if error is None:
        causes = split_error(run, fleet, acceptance_known=not assumed)
        error = sum_causes(causes)
    else:
        causes = {"what the measurement leaves open": error.covariance}
    factors = bound_factors(part, run, fleet, names, error)
    rows = request_rows(run)
    rows = rows[~np.isnan(rows["end"])]
    metrics = latencies_of(rows[rows["measured"]], load)
    task_s = None if traffic.sessions is None else Latency.of(distribution(task_times(run)[0]))
    bounds = [Bound(each.name, each.bound_s) for each in traffic.bounds]
    judged = bounds_of(
        bounds, load, Requests(sent=len(rows), ok=len(rows)), metrics, factors.get, task_s
    )
    keeps_up = not load.is_open or simulated_pace(run, load).keeps_up is not False
    missed = {each.metric: 1 - (each.p_met or 0.0) for each in judged}
    weakest = max(missed, key=lambda name: missed[name])
    at = 0 if weakest.startswith("ttft") else 1
    cause = max(causes, key=lambda name: float(causes[name][at, at]))
    variance = float(error.covariance[at, at])
    first_s, end_s = float(np.fmin(rows["intended"], rows["sent"]).min()), float(rows["end"].max())
    middle = np.exp(error.mean)
    sessions = traffic.session_figures(run, load.value)
    return AskedLoad(
        p_slo=(probability_of(judged, load, metrics, factors.get, task_s) or 0.0) * keeps_up,
        met=keeps_up and all(each.met for each in judged),
        ttft_s=_scale_latency(
            metrics.ttft_s if load.is_closed else metrics.ttft_intended_s, float(middle[0])
        ),
        tpot_s=_scale_latency(metrics.tpot_s, float(middle[1])),
        requests_per_s=sessions.requests_per_s or len(rows) / (end_s - first_s) / size,
        output_tokens_per_s=sessions.requests_per_s * traffic.output_tokens
        or float(rows["tokens"].sum()) / (end_s - first_s) / size,
        weakest=(weakest, missed[weakest]),
        cause=(cause, float(causes[cause][at, at]) / variance if variance > 0 else 0.0),
        error=error,
        requests=len(part),
        whole=True,
        sessions=sessions,
    )


def _scale_latency(latency: Latency | None, factor: float) -> tuple[float, float]:
    if latency is None or latency.p50 is None or latency.p99 is None:
        return 0.0, 0.0
    return latency.p50 * factor, latency.p99 * factor
