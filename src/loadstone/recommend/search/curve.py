"""A deployment under more and more load, by simulation: from an idle engine past its capacity."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from loadstone.core.bounds import TASK
from loadstone.core.metrics import latency_field
from loadstone.core.plan import Load, Plan
from loadstone.core.vectors import Floats
from loadstone.engines.habits import Route
from loadstone.predict.simulator.fleet import Fleet, fleet_with
from loadstone.predict.simulator.latencies import (
    answered_classes,
    answered_rows,
    latencies_s,
    simulated_pace,
    task_times,
)
from loadstone.predict.simulator.pool_figures import describe_pools
from loadstone.predict.simulator.run import CellRun
from loadstone.recommend.demand.planning import Planning
from loadstone.recommend.demand.sessions import MAX_CALLS, NO_SESSIONS, SessionFigures, run_steady
from loadstone.recommend.demand.traffic import QuantileBound, Traffic
from loadstone.recommend.demand.warm_up import begin_busy, warm_caches
from loadstone.recommend.search.candidates import Candidate, check_room

_STEP = 1.3
_MAX_STEPS = 8
_HALVINGS = 3
_COARSE_BLOCK = 128
_SHARES, _SHARES_CLOSED = (0.65, 0.35), (0.65, 0.35, 0.12, 0.04)
"""Shares of the capacity that are simulated too: what a slower engine would hold. In a closed loop
prompts meet one another under small loads, too."""
_WAVES = 6
"""Requests of a simulation, for each that is under way at once."""
_MAX_FLEET = 4
"""Replicas that are simulated together; of more, each has its share of the requests."""
_OF_PROMPTS: tuple[Route, ...] = ("least-busy", "prefix")
_OF_SESSIONS: tuple[Route, ...] = ("hashed", "prefix")
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
    tpot_p50_s: float
    requests_per_s: float
    output_tokens_per_s: float
    limit: str = ""
    sessions: SessionFigures = NO_SESSIONS

    def within_bounds(self, bounds: tuple[QuantileBound, ...]) -> bool:
        """Tell whether each figure is within its bound, whether or not the queue grows."""
        return all(self.figures[bound.name] <= bound.bound_s for bound in bounds)

    def holds(self, bounds: tuple[QuantileBound, ...]) -> bool:
        return self.keeps_up and self.within_bounds(bounds)

    def worst(self, bounds: tuple[QuantileBound, ...]) -> float:
        """Return the largest of figure / bound."""
        return max(self.figures[bound.name] / bound.bound_s for bound in bounds)


@dataclass(frozen=True)
class Curve:
    """Simulated loads of one replica, ascending, and the largest that holds (requests/s, or under
    way)."""

    points: list[SimulatedLoad]
    capacity: float

    def nearest(self, load: float) -> SimulatedLoad:
        """Return the nearest load that was simulated."""
        return min(self.points, key=lambda point: abs(math.log(point.load / load)))

    def first_broken(self, bounds: tuple[QuantileBound, ...]) -> SimulatedLoad:
        """Return the smallest load that does not hold; the largest where all do."""
        broken = (point for point in self.points if not point.holds(bounds))
        return next(broken, self.points[-1])

    def figure(self, bound: str, loads: Floats) -> Floats:
        """Return a bounded quantile at any load, log-linear between those simulated; rising on
        beyond the last."""
        simulated = np.array([point.load for point in self.points])
        # More load never makes it faster: what looks so is the noise of one simulation.
        values = np.maximum.accumulate([point.figures[bound] for point in self.points])
        logs = np.interp(np.log(loads), np.log(simulated), np.log(np.maximum(values, 1e-9)))
        beyond = np.maximum(0.0, np.log(loads / simulated[-1]))
        return np.asarray(np.exp(logs + 4 * beyond))

    def output_tokens_per_s(self, load: float) -> float:
        """Return the throughput of a replica at any load, log-linear between those simulated."""
        logs = np.log([point.load for point in self.points])
        rates = np.log([point.output_tokens_per_s for point in self.points])
        # An engine with less to do gives less.
        idle = min(0.0, math.log(load) - float(logs[0]))
        return math.exp(float(np.interp(math.log(load), logs, rates)) + idle)

    @property
    def saturates(self) -> float:
        """The largest load that is kept up with."""
        return max((point.load for point in self.points if point.keeps_up), default=0.0)

    def capacities(self, traffic: Traffic, factors: Floats) -> Floats:
        """Return the load that a replica carries within all bounds in each draw, where its times
        are `factors` (draws × (TTFT, TPOT)) of those simulated."""
        if not any(point.keeps_up for point in self.points):
            return np.zeros(len(factors))
        lowest, highest = self.points[0].load, max(self.saturates, self.points[-1].load)
        loads = np.exp(np.linspace(math.log(lowest / 20), math.log(highest * 3), _GRID))
        slower = factors[:, 1:2] if traffic.is_open else np.ones((len(factors), 1))
        effective = loads[None, :] * slower  # the load on the clock of the simulated engine
        good = effective <= (self.saturates * 1.02 if traffic.is_open else np.inf)
        for bound in traffic.bounds:
            factor = factors[:, :1] if bound.metric in ("ttft", "answer") else factors[:, 1:2]
            if bound.metric == TASK:
                parts = np.array(self.nearest(self.capacity or highest).sessions.parts)
                factor = 1 + (factors - 1) @ parts[:, None]
            value = self.figure(bound.name, effective.ravel()).reshape(effective.shape)
            good &= value * factor <= bound.bound_s
        # The largest load below which all hold.
        first_bad = np.where(good.all(axis=1), len(loads), np.argmin(good, axis=1))
        return np.where(first_bad > 0, loads[np.maximum(first_bad, 1) - 1], 0.0)


def simulate_curve(candidate: Candidate, planning: Planning, replicas: int) -> Curve:
    """Simulate a replica under loads around its capacity, beside as many as carry the traffic: a
    router finds one that is idle the easier the more there are. Raises InputError where a request
    does not fit."""
    traffic = planning.traffic
    curve = search_capacity(candidate, planning, replicas)
    needed = math.ceil(traffic.demand / curve.capacity) if curve.capacity > 0 else replicas
    if fleet_size(candidate, needed, traffic) < 2 * fleet_size(candidate, replicas, traffic):
        return curve
    return search_capacity(candidate, planning, needed)


def search_capacity(candidate: Candidate, planning: Planning, replicas: int) -> Curve:
    """Simulate a replica beside so many others, as simulate_curve() does."""
    traffic = planning.traffic
    points: dict[float, SimulatedLoad] = {}

    def holds(load: float) -> bool:
        load = load if traffic.is_open else max(1.0, float(round(load)))
        if load not in points:
            points[load] = simulate_load(candidate, planning, load, replicas)
        return points[load].holds(traffic.bounds)

    low, high = 0.0, math.inf
    load = candidate.load if traffic.is_open else min(candidate.load, 4 * traffic.demand)
    for _ in range(_MAX_STEPS):
        if holds(load):
            low = load
            load *= _STEP
        else:
            high = load
            load /= _STEP ** (1 + len(points) // 3)
            if not traffic.is_open and traffic.sessions is None:
                load = min(load, candidate.level_load(traffic))
        if low and high < math.inf:
            break
        if not traffic.is_open and load < 1:
            break
    share = traffic.demand / replicas
    if not low and share < high and holds(share):  # of traffic that asks for next to nothing
        low = share
    if low and high < math.inf:
        for _ in range(_HALVINGS):
            middle = math.sqrt(low * high)
            if holds(middle):
                low = middle
            else:
                high = middle
    for share in _SHARES if traffic.is_open else _SHARES_CLOSED:
        holds((low or candidate.load) * share)
    return Curve([points[load] for load in sorted(points)], low)


def simulate_load(
    candidate: Candidate, planning: Planning, load: float, replicas: int
) -> SimulatedLoad:
    """Simulate `load` of each replica, of which some run side by side. Raises InputError as
    simulate_curve does."""
    traffic = planning.traffic
    size = fleet_size(candidate, replicas, traffic)
    route = list_routes(candidate, size, planning)[-1]
    fleet = fleet_beside(candidate, traffic, size, route)
    parts = parts_to_simulate(candidate, planning, load, size, planning.effort.curve_requests)
    loads = [
        _summarise(run_steady(part, fleet), part.cells[0], load, size, traffic) for part in parts
    ]
    return max(loads, key=lambda point: (not point.keeps_up, point.worst(traffic.bounds)))


def fleet_size(candidate: Candidate, replicas: int, traffic: Traffic) -> int:
    """Count the replicas that are simulated side by side. In a closed loop the least busy takes
    what its neighbour would: each keeps its share, so one tells of all."""
    alone = candidate.fleet or candidate.worker.dp > 1 or not traffic.is_open or traffic.sessions
    return 1 if alone else min(replicas, _MAX_FLEET)


def whole_size(candidate: Candidate, replicas: int, planning: Planning) -> int:
    """Count the replicas of a plan that are simulated together: all that the requests of a
    simulation can keep busy for long. In a closed loop that shares nothing the least busy takes
    what its neighbour would: each keeps its share, so one tells of all."""
    traffic, effort = planning.traffic, planning.effort
    alike = not (traffic.is_open or traffic.shares or planning.search.route)
    if candidate.fleet is not None or alike:
        return 1
    load, budget = traffic.demand / replicas, effort.asked_requests[1]
    per_replica = _WAVES * _count_under_way(candidate, traffic, load)
    if traffic.sessions is not None:
        alive = load * float(traffic.sessions.tasks_s(candidate.level).mean())
        per_replica, budget = 4 * traffic.calls * (alive if traffic.is_open else load), MAX_CALLS
    elif traffic.has_times:
        per_replica = load / traffic.plan.cells[0].value * len(traffic.plan)
        budget = effort.whole_requests
    return min(replicas, max(_MAX_FLEET, int(budget / per_replica)))


def list_routes(candidate: Candidate, replicas: int, planning: Planning) -> Sequence[Route]:
    """List the routers before so many replicas, the simplest first: where requests share something
    those that find it. A session whose calls go to the least busy loses its cache with each."""
    traffic = planning.traffic
    if replicas == 1 or candidate.fleet is not None:
        return ("least-busy",)
    if planning.search.route is not None:
        return (planning.search.route,)
    if not traffic.shares or not candidate.policy.prefix_cache:
        return ("least-busy",)
    return _OF_SESSIONS if traffic.sessions is not None else _OF_PROMPTS


def fleet_beside(
    candidate: Candidate, traffic: Traffic, size: int, route: Route = "least-busy"
) -> Fleet:
    """Make `size` replicas behind a router. Requests of a trace share blocks of hundreds of tokens:
    smaller ones than a part of these tell no more, and take long."""
    if candidate.fleet is not None:
        return candidate.fleet
    policy, blocks = candidate.policy, traffic.plan.blocks
    tokens = 0 if blocks is None else min(_COARSE_BLOCK, blocks.tokens)
    if policy.block_tokens < tokens:
        policy = msgspec.structs.replace(
            policy, block_tokens=tokens, kv_blocks=max(1, policy.kv_tokens // tokens)
        )
    fleet = fleet_with(candidate.worker, policy, candidate.model)
    return replace(fleet, replicas=fleet.replicas * size, workers=size, route=route)


def parts_to_simulate(
    candidate: Candidate, planning: Planning, load: float, size: int, requests: tuple[int, int]
) -> list[Plan]:
    """Return the requests that tell of `load` on each of `size` replicas, as few and as many
    `requests` as that. Raises InputError where one does not fit."""
    traffic, level = planning.traffic, candidate.level
    check_room(candidate, traffic)
    if traffic.sessions is not None:
        load *= size
        return [traffic.sessions.draw(load, level, planning.effort, is_open=traffic.is_open)]
    # Of a trace the same windows for all loads: those that the candidate's own capacity asks for.
    usual = candidate.load if traffic.has_times else load
    under_way = size * _count_under_way(candidate, traffic, usual)
    wanted = int(min(requests[1], max(requests[0], _WAVES * under_way)))
    if traffic.has_times:
        wanted = max(1, int(wanted * traffic.plan.cells[0].value / (usual * size)))
    parts = traffic.parts(load * size, wanted, _weigh_prompts(candidate, traffic))
    if not traffic.has_times:
        parts = [begin_busy(part, under_way) for part in parts]
    prompt_s = candidate.model.step_s(0, 0.0, [(int(traffic.input_tokens), 0)])
    return [warm_caches(part, size * candidate.worker.dp, prompt_s) for part in parts]


def _count_under_way(candidate: Candidate, traffic: Traffic, load: float) -> float:
    level = candidate.level
    request_s = level.base_s + traffic.output_tokens * level.tpot_s
    return load * request_s if traffic.is_open else load


def _weigh_prompts(candidate: Candidate, traffic: Traffic) -> float:
    """Return what a token of a prompt costs, in tokens of an answer."""
    model, batch = candidate.model, candidate.decoding_batch
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
    is_steady = starts >= begin_s
    steady = rows[is_steady]
    latencies = {"": latencies_s(steady)}
    plan = run.requests.plan
    classes = answered_classes(run, plan)[is_steady] if traffic.classes else is_steady
    for number, name in enumerate(traffic.classes):
        latencies[name] = latencies_s(steady[classes == number])

    def quantile(metric: str, q: float, traffic_class: str = "") -> float:
        of_class = latencies[traffic_class]
        values = task_times(run)[0] if metric == TASK else of_class[latency_field(metric, cell)]
        return float(np.quantile(values, q)) if len(values) else 0.0

    sessions, pools = traffic.session_figures(run, load), describe_pools(run)
    window_s = float(rows["end"].max()) - begin_s
    requests_per_s = sessions.requests_per_s
    tokens_per_s = sessions.requests_per_s * traffic.output_tokens
    return SimulatedLoad(
        load=load,
        keeps_up=cell.is_closed or simulated_pace(run, cell).keeps_up is not False,
        figures={
            bound.name: quantile(bound.metric, bound.quantile, bound.traffic_class)
            for bound in traffic.bounds
        },
        tpot_p50_s=quantile("tpot", 0.5),
        requests_per_s=requests_per_s or len(steady) / window_s / replicas,
        output_tokens_per_s=tokens_per_s or float(steady["tokens"].sum()) / window_s / replicas,
        limit="" if pools is None else pools.limit,
        sessions=sessions,
    )
