"""A deployment under more and more load, by simulation: from an idle engine past its capacity."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadstone.core.errors import InputError
from loadstone.core.plan import Load, Plan
from loadstone.core.summary import TASK, latency_field
from loadstone.predict.simulator.fleet import Fleet, fleet_with
from loadstone.predict.simulator.latencies import (
    answered_rows,
    latencies_s,
    simulated_pace,
    task_times,
)
from loadstone.predict.simulator.pool_figures import describe_pools
from loadstone.predict.simulator.run import CellRun
from loadstone.recommend.candidates import Candidate
from loadstone.recommend.sessions import NO_SESSIONS, SessionFigures, run_steady
from loadstone.recommend.traffic import LEAST_REQUESTS, QuantileBound, Traffic

Array = NDArray[np.float64]
_STEP = 1.3
_MOST_STEPS = 8
_HALVINGS = 3
_MOST_REQUESTS = 4_000
"""Requests of one of the loads among which a capacity is looked for."""
_COARSE_BLOCK = 128
_BELOW, _BELOW_CLOSED = (0.65, 0.35), (0.65, 0.35, 0.12, 0.04)
"""Shares of the capacity that are simulated too: what a slower engine would hold. In a closed loop
prompts meet one another under small loads, too."""
_WAVES = 6
"""Requests of a simulation, for each that is under way at once."""
_MOST_FLEET = 4
"""Replicas that are simulated together; of more, each has its share of the requests."""
_STARTS = 0.25
"""The first part of the sends, which is left out: an engine that was idle. Of a trace nothing is
left out."""
_GRID = 240
"""Loads at which a capacity is looked for."""


@dataclass(frozen=True)
class SimulatedLoad:
    """One simulated load of one replica. `figures`: by bound, the bounded quantile in seconds;
    `limit`: of pools what is full, see PooledCell."""

    load: float
    keeps_up: bool
    figures: dict[str, float]
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_p50_s: float
    tpot_p99_s: float
    requests_per_s: float
    output_tokens_per_s: float
    limit: str = ""
    sessions: SessionFigures = NO_SESSIONS

    def holds(self, bounds: tuple[QuantileBound, ...]) -> bool:
        return self.keeps_up and all(self.figures[each.name] <= each.bound_s for each in bounds)


@dataclass(frozen=True)
class Curve:
    """Simulated loads of one replica, ascending, and the largest that holds (requests/s, or under
    way)."""

    points: list[SimulatedLoad]
    capacity: float

    def nearest(self, load: float) -> SimulatedLoad:
        """Return the nearest load that was simulated."""
        return min(self.points, key=lambda each: abs(math.log(each.load / load)))

    def figure(self, bound: str, loads: Array) -> Array:
        """Return a bounded quantile at any load, log-linear between those simulated; rising on
        beyond the last."""
        known = np.array([each.load for each in self.points])
        # More load never makes it faster: what looks so is the noise of one simulation.
        values = np.maximum.accumulate([each.figures[bound] for each in self.points])
        logs = np.interp(np.log(loads), np.log(known), np.log(np.maximum(values, 1e-9)))
        beyond = np.maximum(0.0, np.log(loads / known[-1]))
        return np.asarray(np.exp(logs + 4 * beyond))

    def output_tokens_per_s(self, load: float) -> float:
        """Return the throughput of a replica at any load, log-linear between those simulated."""
        known = np.log([each.load for each in self.points])
        rates = np.log([each.output_tokens_per_s for each in self.points])
        below = min(0.0, math.log(load) - float(known[0]))  # an engine with less to do gives less
        return math.exp(float(np.interp(math.log(load), known, rates)) + below)

    @property
    def saturates(self) -> float:
        """The largest load that is kept up with."""
        return max((each.load for each in self.points if each.keeps_up), default=0.0)

    def capacities(self, traffic: Traffic, factors: Array) -> Array:
        """Return by draw the load that a replica carries within all bounds, where its times are
        `factors` (draws × (TTFT, TPOT)) of those simulated."""
        if not any(each.keeps_up for each in self.points):
            return np.zeros(len(factors))
        lowest, highest = self.points[0].load, max(self.saturates, self.points[-1].load)
        loads = np.exp(np.linspace(math.log(lowest / 20), math.log(highest * 3), _GRID))
        slower = factors[:, 1:2] if traffic.is_open else np.ones((len(factors), 1))
        effective = loads[None, :] * slower  # the load on the clock of the simulated engine
        good = effective <= (self.saturates * 1.02 if traffic.is_open else np.inf)
        for bound in traffic.bounds:
            factor = factors[:, :1] if bound.metric in ("ttft", "answer") else factors[:, 1:2]
            if bound.metric == TASK:
                factor = (
                    1
                    + (factors - 1)
                    @ np.array(self.nearest(self.capacity or highest).sessions.parts)[:, None]
                )
            value = self.figure(bound.name, effective.ravel()).reshape(effective.shape)
            good &= value * factor <= bound.bound_s
        # The largest load below which all hold.
        first_bad = np.where(good.all(axis=1), len(loads), np.argmin(good, axis=1))
        return np.where(first_bad > 0, loads[np.maximum(first_bad, 1) - 1], 0.0)


def simulate_curve(candidate: Candidate, traffic: Traffic, replicas: int) -> Curve:
    """Simulate a replica under loads around its capacity, beside as many as carry the traffic: a
    router finds one that is idle the easier the more there are. Raises InputError where a request
    does not fit."""
    curve = _search_capacity(candidate, traffic, replicas)
    needed = math.ceil(traffic.demand / curve.capacity) if curve.capacity > 0 else replicas
    if fleet_size(candidate, needed, traffic) < 2 * fleet_size(candidate, replicas, traffic):
        return curve
    return _search_capacity(candidate, traffic, needed)


def _search_capacity(candidate: Candidate, traffic: Traffic, replicas: int) -> Curve:
    points: dict[float, SimulatedLoad] = {}

    def holds(load: float) -> bool:
        load = load if traffic.is_open else max(1.0, float(round(load)))
        if load not in points:
            points[load] = simulate_load(candidate, traffic, load, replicas)
        return points[load].holds(traffic.bounds)

    low, high = 0.0, math.inf
    load = candidate.load
    for _ in range(_MOST_STEPS):
        if holds(load):
            low = load
            load *= _STEP
        else:
            high = load
            load /= _STEP ** (1 + len(points) // 3)
        if low and high < math.inf:
            break
        if not traffic.is_open and load < 1:
            break
    if low and high < math.inf:
        for _ in range(_HALVINGS):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if holds(middle) else (low, middle)
    for share in _BELOW if traffic.is_open else _BELOW_CLOSED:
        holds(low * share if low else candidate.load * share)
    return Curve([points[load] for load in sorted(points)], low)


def simulate_load(
    candidate: Candidate, traffic: Traffic, load: float, replicas: int
) -> SimulatedLoad:
    """Simulate `load` of each replica, of which some run side by side. Raises InputError as
    simulate_curve does."""
    size = fleet_size(candidate, replicas, traffic)
    fleet, loads = fleet_beside(candidate, traffic, size), []
    for plan in parts_to_simulate(candidate, traffic, load, size, (LEAST_REQUESTS, _MOST_REQUESTS)):
        run = run_steady(plan, fleet)
        loads.append(_summarise(run, plan.cells[0], load, size, traffic))

    def exceed(each: SimulatedLoad) -> tuple[bool, float]:
        return not each.keeps_up, max(
            each.figures[bound.name] / bound.bound_s for bound in traffic.bounds
        )

    return max(loads, key=exceed)


def fleet_size(candidate: Candidate, replicas: int, traffic: Traffic) -> int:
    """Count the replicas that are simulated side by side. In a closed loop the least busy takes
    what its neighbour would: each keeps its share, so one tells of all."""
    alone = (
        candidate.fleet or candidate.deployment.dp > 1 or not traffic.is_open or traffic.sessions
    )
    return 1 if alone else min(replicas, _MOST_FLEET)


def fleet_beside(candidate: Candidate, traffic: Traffic, size: int) -> Fleet:
    """Make `size` replicas. Requests of a trace share blocks of hundreds of tokens: smaller ones
    than a part of these tell no more, and take long."""
    policy, blocks = candidate.policy, traffic.plan.blocks
    if candidate.fleet is not None:
        return candidate.fleet
    if blocks is not None and policy.block_tokens < (tokens := min(_COARSE_BLOCK, blocks.tokens)):
        policy = msgspec.structs.replace(
            policy, block_tokens=tokens, kv_blocks=max(1, policy.kv_tokens // tokens)
        )
    fleet = fleet_with(candidate.deployment, policy, candidate.model)
    return replace(fleet, replicas=fleet.replicas * size)


def parts_to_simulate(
    candidate: Candidate, traffic: Traffic, load: float, size: int, requests: tuple[int, int]
) -> list[Plan]:
    """Return the requests that tell of `load` on each of `size` replicas, as few and as many
    `requests` as that. Raises InputError where one does not fit."""
    level, kv_tokens = candidate.level, candidate.policy.longest_tokens
    if traffic.longest_tokens > kv_tokens:
        raise InputError(
            f"a request of {traffic.longest_tokens} tokens, and the KV cache holds {kv_tokens}"
        )
    if traffic.sessions is not None:
        return [traffic.sessions.draw(load, level, is_open=traffic.is_open)]
    # Of a trace the same windows for all loads: those that the candidate's own capacity asks for.
    usual = candidate.load if traffic.has_times else load
    under_way = (
        usual * (level.base_s + traffic.output_tokens * level.tpot_s) if traffic.is_open else load
    )
    wanted = int(min(requests[1], max(requests[0], _WAVES * size * under_way)))
    if traffic.has_times:
        wanted = max(1, int(wanted * traffic.plan.cells[0].value / (usual * size)))
    return traffic.parts(load * size, wanted, _weigh_prompts(candidate, traffic))


def _weigh_prompts(candidate: Candidate, traffic: Traffic) -> float:
    """Return what a token of a prompt costs, in tokens of an answer."""
    model, batch = (
        candidate.model,
        max(1, round(candidate.level.decoding / candidate.policy.pipeline)),
    )
    decode_s = model.step_s(batch, batch * (traffic.input_tokens + traffic.output_tokens / 2), ())
    tokens = max(1, int(min(traffic.input_tokens, candidate.policy.max_batched_tokens)))
    return model.step_s(0, 0.0, [(tokens, 0)]) / tokens / (decode_s / batch)


def _summarise(
    run: CellRun, cell: Load, load: float, replicas: int, traffic: Traffic
) -> SimulatedLoad:
    rows = answered_rows(run)
    starts = rows["sent" if cell.is_closed else "intended"]
    first_s, last_s = float(starts.min()), float(starts.max())
    begin_s = first_s + (0.0 if traffic.has_times else _STARTS) * (last_s - first_s)
    steady = rows[starts >= begin_s]
    latencies = latencies_s(steady)

    def quantile(metric: str, q: float) -> float:
        values = task_times(run)[0] if metric == TASK else latencies[latency_field(metric, cell)]
        return float(np.quantile(values, q)) if len(values) else 0.0

    sessions, window_s = traffic.session_figures(run, load), float(rows["end"].max()) - begin_s
    return SimulatedLoad(
        load=load,
        keeps_up=cell.is_closed or simulated_pace(run, cell).keeps_up is not False,
        figures={each.name: quantile(each.metric, each.quantile) for each in traffic.bounds},
        ttft_p50_s=quantile("ttft", 0.5),
        ttft_p99_s=quantile("ttft", 0.99),
        tpot_p50_s=quantile("tpot", 0.5),
        tpot_p99_s=quantile("tpot", 0.99),
        requests_per_s=sessions.requests_per_s or len(steady) / window_s / replicas,
        output_tokens_per_s=sessions.requests_per_s * traffic.output_tokens
        or float(steady["tokens"].sum()) / window_s / replicas,
        limit=describe_pools(run, run.pool_times).limit if run.pool_times is not None else "",
        sessions=sessions,
    )
