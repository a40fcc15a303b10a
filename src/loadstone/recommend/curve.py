"""What a deployment does under more and more load, by simulation: the way from an idle engine past its capacity."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadstone.core.errors import InputError
from loadstone.core.plan import Load
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import Fleet, fleet_with
from loadstone.predict.simulator.interval import ended, pace_in
from loadstone.predict.simulator.run import CellRun
from loadstone.recommend.candidates import Candidate
from loadstone.recommend.traffic import LEAST_REQUESTS, MOST_REQUESTS, Bound, Traffic

Array = NDArray[np.float64]
_STEP = 1.3
_MOST_STEPS = 8
_HALVINGS = 3
_WAVES = 6
"""Requests of a simulation, for each that is under way at once."""
_MOST_FLEET = 4
"""Replicas that are simulated together; of more, each has its share of the load."""
_STARTS = 0.25
"""Of the sends, the first part is left out: an engine that was idle."""


@dataclass(frozen=True)
class Seen:
    """One simulated load of one replica. `figures`: by bound, the bounded quantile in seconds."""

    load: float
    keeps_up: bool
    figures: dict[str, float]
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_p50_s: float
    tpot_p99_s: float
    requests_per_s: float
    output_tokens_per_s: float

    def holds(self, bounds: tuple[Bound, ...]) -> bool:
        return self.keeps_up and all(self.figures[each.name] <= each.bound_s for each in bounds)


@dataclass(frozen=True)
class Curve:
    """Simulated loads of one replica, ascending, and the largest that holds (requests/s, or under way)."""

    seen: list[Seen]
    capacity: float

    def at(self, load: float) -> Seen:
        """The nearest load that was simulated."""
        return min(self.seen, key=lambda each: abs(math.log(each.load / load)))

    def figure(self, bound: str, loads: Array) -> Array:
        """A bounded quantile at any load, log-linear between those simulated; rising on beyond the last."""
        known = np.array([each.load for each in self.seen])
        # More load never makes it faster: what looks so is the noise of one simulation.
        values = np.maximum.accumulate([each.figures[bound] for each in self.seen])
        logs = np.interp(np.log(loads), np.log(known), np.log(np.maximum(values, 1e-9)))
        beyond = np.maximum(0.0, np.log(loads / known[-1]))
        return np.asarray(np.exp(logs + 4 * beyond))

    @property
    def saturates(self) -> float:
        """The largest load that is kept up with."""
        return max((each.load for each in self.seen if each.keeps_up), default=0.0)


def curve_of(candidate: Candidate, traffic: Traffic, replicas: int, seed: int = 0) -> Curve:
    """Simulates a replica under loads around its capacity, and at its share of the traffic. Raises InputError where a
    request does not fit."""
    seen: dict[float, Seen] = {}
    fleet = fleet_with(candidate.deployment, candidate.policy, candidate.model)

    def holds(load: float) -> bool:
        load = load if traffic.is_open else max(1.0, float(round(load)))
        if load not in seen:
            seen[load] = simulated(candidate, fleet, traffic, load, replicas)
        return seen[load].holds(traffic.bounds)

    low, high = 0.0, math.inf
    load = candidate.load
    for _ in range(_MOST_STEPS):
        if holds(load):
            low = load
            load *= _STEP
        else:
            high = load
            load /= _STEP ** (1 + len(seen) // 3)
        if low and high < math.inf:
            break
        if not traffic.is_open and load < 1:
            break
    if low and high < math.inf:
        for _ in range(_HALVINGS):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if holds(middle) else (low, middle)
    holds(traffic.demand / replicas)
    return Curve([seen[load] for load in sorted(seen)], low)


def simulated(candidate: Candidate, fleet: Fleet, traffic: Traffic, load: float, replicas: int) -> Seen:
    """`load` of each replica, of which some are simulated side by side."""
    deployment = candidate.deployment
    many = 1 if deployment.dp > 1 else min(replicas, _MOST_FLEET)
    level = candidate.level
    answer_s = level.base_s + traffic.output_tokens * level.tpot_s
    under_way = load * answer_s if traffic.is_open else load
    wanted = int(min(MOST_REQUESTS, max(LEAST_REQUESTS, _WAVES * many * under_way)))
    plan = traffic.part(load * many, wanted)
    longest = int((plan.input_tokens + plan.output_tokens).max())
    if longest > candidate.policy.longest_tokens:
        raise InputError(f"a request of {longest} tokens, and the KV cache holds {candidate.policy.longest_tokens}")
    run = run_cell(plan, 0, replace(fleet, replicas=fleet.replicas * many), grace_s=math.inf)
    return _seen(run, plan.cells[0], load, many, traffic)


def _seen(run: CellRun, cell: Load, load: float, many: int, traffic: Traffic) -> Seen:
    done = ended(run)
    due, first, last = done.due_s, float(done.due_s.min()), float(done.due_s.max())
    if cell.is_closed:
        due, first, last = done.sent_s, float(done.sent_s.min()), float(done.sent_s.max())
    chosen = due >= first + _STARTS * (last - first)
    several = done.output_tokens > 1
    kept = chosen[several]
    name = "ttft_intended_s" if cell.is_open else "ttft_s"
    by_metric = {
        "ttft": done.latencies[name][chosen],
        "tpot": done.latencies["tpot_s"][kept],
        "itl": done.latencies["itl_s"][kept],
        "e2e": done.latencies["e2e_intended_s" if cell.is_open else "e2e_s"][chosen],
    }

    def quantile(metric: str, q: float) -> float:
        values = by_metric[metric]
        return float(np.quantile(values, q)) if len(values) else 0.0

    window = float(done.end_s.max()) - (first + _STARTS * (last - first))
    tokens = float(done.output_tokens[chosen].sum())
    return Seen(
        load=load,
        keeps_up=cell.is_closed or pace_in(run, cell).keeps_up is not False,
        figures={each.name: quantile(each.metric, each.quantile) for each in traffic.bounds},
        ttft_p50_s=quantile("ttft", 0.5),
        ttft_p99_s=quantile("ttft", 0.99),
        tpot_p50_s=quantile("tpot", 0.5),
        tpot_p99_s=quantile("tpot", 0.99),
        requests_per_s=float(chosen.sum()) / window / many,
        output_tokens_per_s=tokens / window / many,
    )
