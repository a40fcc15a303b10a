"""Finds the load that each deployment carries within the bounds, and why others cannot."""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from loadstone.catalogue import parse_worker
from loadstone.catalogue.deployment.deployment import Deployment, Worker
from loadstone.core.errors import InputError
from loadstone.core.units import show_gpus
from loadstone.engines import rules_of
from loadstone.predict.scheduler import EnginePolicy, policy_of
from loadstone.predict.simulator.fleet import Fleet
from loadstone.predict.sizing.check import contradictions
from loadstone.predict.sizing.memory import Memory, memory_of
from loadstone.predict.sizing.size import size
from loadstone.predict.steady_state import Lengths, SteadyState, steady_state, steady_states
from loadstone.predict.step_time import StepModel
from loadstone.predict.step_time.profile import profile_of
from loadstone.predict.step_time.work import work_of
from loadstone.recommend.demand.options import HOURS_PER_MONTH
from loadstone.recommend.demand.planning import Planning
from loadstone.recommend.demand.traffic import QuantileBound, Traffic, TrafficLevel
from loadstone.recommend.search.layouts import (
    list_machines,
    schedulers_in_step,
    shape_of,
    vary_limits,
)

Models = dict[tuple[object, ...], StepModel]
_HOPELESS = 4.0
"""Layouts so many times as dear as the cheapest are looked at under their engine's own limits
alone."""
_NO_ROOM = "does not fit"
_EVEN = 0.8
"""Of a bound on a wait in a closed loop, whose queue is nearly always as long, its mean."""
_LONGEST_WAIT_S = 60.0
"""Of one that nothing bounds."""


class Candidate(NamedTuple):
    """One deployment, and what one replica of it carries: by closed form, before anything is
    simulated.

    load         requests/s, or requests under way, that it carries within all bounds
    replicas     that carry the traffic; 0: none within the GPUs that there are
    cost         dollars per hour of all of them, or GPUs where no price is known
    level        at that load
    fleet        of a deployment with pools, one replica of both
    """

    deployment: Deployment
    policy: EnginePolicy
    model: StepModel
    load: float
    replicas: int
    cost: float
    level: SteadyState
    fleet: Fleet | None = None

    @property
    def worker(self) -> Worker:
        """The worker that decodes."""
        return self.deployment.decoder

    @property
    def name(self) -> str:
        return self.deployment.name

    @property
    def gpus(self) -> int:
        return self.replicas * self.deployment.gpus

    @property
    def replica_cost(self) -> float:
        """Dollars per hour of one replica, or its GPUs where no price is known."""
        return self.cost / self.replicas

    @property
    def group(self) -> tuple[str, str]:
        """Name the group of deployments whose errors have much in common."""
        return self.worker.engine, self.worker.gpu.name

    @property
    def decoding_batch(self) -> int:
        """Requests that one step decodes."""
        return max(1, round(self.level.decoding / self.policy.pipeline))

    def level_load(self, traffic: Traffic) -> float:
        """Return what of the load is in a replica at the level, without those that queue longer."""
        return self.worker.dp * traffic.load_at(self.level)

    def most_w(self, planning: Planning) -> float:
        """Return the watts of one replica whose boards are at their limit."""
        return planning.electricity.drawn_w(self.deployment.boards_w, self.deployment.gpus)

    def max_replicas(self, planning: Planning) -> int:
        """Count the replicas that --gpus-max and the budgets give."""
        replicas = planning.search.gpus_max // self.deployment.gpus
        if planning.choice.power_budget is not None:
            replicas = min(replicas, int(planning.choice.power_budget / self.most_w(planning)))
        if planning.choice.budget is None or not planning.prices:
            return replicas
        dollars_per_hour = planning.choice.budget / HOURS_PER_MONTH
        return min(replicas, int(dollars_per_hour * self.replicas / self.cost))


class Refused(NamedTuple):
    """A deployment that cannot carry the traffic, and why.

    alike        it and all others that cannot for the same reason
    gpus_needed  that would carry it, where the reason is that there are fewer; else 0
    missed_s     the latency that misses its bound with one request at a time, where that is the
                 reason; else 0
    """

    deployment: str
    why: str
    alike: int = 1
    gpus_needed: int = 0
    missed_s: float = 0.0


class Search(NamedTuple):
    """Holds the deployments that could carry the traffic, the cheapest first, those that cannot, a
    row for each kind, and how many were looked at."""

    candidates: list[Candidate]
    refused: list[Refused]
    looked_at: int


def search(planning: Planning) -> Search:
    """Rank every deployment of the options, the cheapest first. Raises InputError: names that mean
    nothing."""
    candidates: list[Candidate] = []
    refusals: dict[tuple[object, ...], Refused] = {}
    memories: dict[tuple[object, ...], Memory | str] = {}
    looked_at, least_cost = 0, math.inf

    def refuse(worker: Worker, refused: Refused) -> None:
        """Count those that cannot for the same reason as one."""
        kind = (worker.gpu.name, worker.gpus, worker.engine, worker.weights_dtype, refused.why)
        first = refusals.get(kind)
        refusals[kind] = refused if first is None else first._replace(alike=first.alike + 1)

    for base in list_machines(planning):
        shape = shape_of(base)
        if shape not in memories:
            memories[shape] = _find_problem(base, planning.traffic) or memory_of(base)
        memory = memories[shape]
        if isinstance(memory, str) or not memory.has_room:
            why = memory if isinstance(memory, str) else _NO_ROOM
            refuse(base, Refused(base.name, why))
            looked_at += 1
            continue
        for number, worker in enumerate(vary_limits(base)):
            looked_at += 1
            try:
                candidate = make_candidate(worker, planning, planning.models)
                check_room(candidate, planning.traffic)
            except InputError as reason:
                refuse(worker, Refused(worker.name, str(reason)))
                continue
            if candidate.replicas:
                candidates.append(candidate)
            else:
                refuse(worker, _refuse(candidate, planning.traffic))
            if candidate.load > 0:
                cost = worker.gpus * planning.price_gpu(worker) / candidate.load
                least_cost = min(least_cost, cost)
                if number == 0 and cost > _HOPELESS * least_cost:
                    break
    refused = [_explain_no_room(refused) for refused in refusals.values()]
    return Search(sort_candidates(candidates), refused, looked_at)


def sort_candidates(candidates: list[Candidate]) -> list[Candidate]:
    """Sort candidates, the cheapest first, of equals the one that carries most."""
    return sorted(
        candidates, key=lambda candidate: (candidate.cost, -candidate.load * candidate.replicas)
    )


def check_room(candidate: Candidate, traffic: Traffic) -> None:
    """Raise InputError where a request does not fit into the KV cache."""
    kv_tokens = candidate.policy.longest_tokens
    if traffic.longest_tokens > kv_tokens:
        raise InputError(
            f"a request of {traffic.longest_tokens} tokens, and the KV cache holds {kv_tokens}"
        )


def _find_problem(base: Worker, traffic: Traffic) -> str | None:
    """Return why a deployment cannot be, or takes no request as long as these; None where it can
    and does."""
    for problem in contradictions(base):
        return problem
    rules = rules_of(base)
    if traffic.texts and "task" not in rules.spelled:
        return f"{base.engine} is not started for vectors or scores here"
    context = rules.context_limit
    if context is None or traffic.longest_tokens <= context:
        return None
    return (
        f"a request of {traffic.longest_tokens:,} tokens, in and out together, is beyond the"
        f" model's context of {context:,}; ask for less"
    )


def _explain_no_room(refused: Refused) -> Refused:
    if refused.why != _NO_ROOM:
        return refused
    return refused._replace(why=size(parse_worker(refused.deployment)).why or refused.why)


def _refuse(candidate: Candidate, traffic: Traffic) -> Refused:
    if candidate.load > 0:
        needed = math.ceil(traffic.demand / candidate.load) * candidate.deployment.gpus
        return Refused(candidate.name, f"takes {show_gpus(needed)} to carry it", gpus_needed=needed)

    def latency_s(bound: QuantileBound) -> float:
        return traffic.latency_s(candidate.level, bound.metric, bound.quantile, bound.traffic_class)

    worst = max(traffic.bounds, key=lambda bound: latency_s(bound) / bound.bound_s)
    missed_s = latency_s(worst)
    why = (
        f"misses {worst.name}: {_show(missed_s)} with one request at a time, beyond"
        f" {_show(worst.bound_s)}"
    )
    return Refused(candidate.name, why, missed_s=missed_s)


def _show(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


@lru_cache(maxsize=1 << 14)
def _policy(worker: Worker, acceptance: float | None) -> EnginePolicy:
    """Return the policy of a deployment, which the fleets of several classes ask for each."""
    return policy_of(worker, acceptance=acceptance)


def make_candidate(worker: Worker, planning: Planning, models: Models | None = None) -> Candidate:
    """Compute what a worker carries. `models`: those made so far, by shape. Raises InputError
    where the model does not fit."""
    traffic, models = planning.traffic, {} if models is None else models
    policy, rules = _policy(worker, planning.search.acceptance), rules_of(worker)
    drafts = policy.draft_tokens
    made = worker.model.name, drafts, rules.graph_tokens, rules.adapter_slots
    shape = (*shape_of(worker), *made)
    if shape not in models:
        models[shape] = StepModel(
            worker, profile_of(worker), draft_tokens=drafts, work=work_of(worker)
        )
    model = models[shape]
    load, level = closed_form_capacity(model, policy, worker, traffic)
    replicas = math.ceil(traffic.demand / load * (1 - 1e-9)) if load > 0 else 0
    if replicas * worker.gpus > planning.search.gpus_max:
        replicas = 0
    cost = replicas * worker.gpus * planning.price_gpu(worker)
    return Candidate(Deployment.of(worker), policy, model, load, replicas, cost, level)


def predict_rate(candidate: Candidate, planning: Planning) -> float:
    """Compute by closed form the requests/s of a closed loop on as many replicas as there can
    be."""
    replicas, level = candidate.max_replicas(planning), candidate.level
    carried = min(candidate.load, candidate.level_load(planning.traffic))
    share = min(1.0, planning.traffic.demand / max(1, replicas) / carried)
    if candidate.fleet is not None:
        return share * replicas * candidate.fleet.replicas * level.rate_per_s
    decoding = max(min(1.0, level.decoding), level.decoding * share)
    schedulers = schedulers_in_step(candidate.worker)
    loaded = steady_state(
        candidate.model, candidate.policy, schedulers, decoding, planning.traffic.lengths
    )
    return replicas * candidate.worker.dp * loaded.rate_per_s


def closed_form_capacity(
    model: StepModel, policy: EnginePolicy, worker: Worker, traffic: Traffic
) -> tuple[float, SteadyState]:
    """Return what one replica carries, requests/s or requests under way, and the state of one
    scheduler then; of a trace in the window that it carries worst. 0 where not even one request at
    a time meets the bounds.
    """
    schedulers = schedulers_in_step(worker)

    def carry(lengths: Lengths, *, seldom: bool = False) -> tuple[float, SteadyState]:
        levels = steady_states(model, policy, schedulers, lengths, seldom=seldom)
        return _carried_load(levels, worker.dp, traffic)

    carried = []
    for times, lengths in traffic.levels or (TrafficLevel(1.0, traffic.lengths),):
        found = lengths if policy.prefix_cache else lengths._replace(cached=0.0)
        load, level = carry(found)
        if load <= 0:  # with short answers, one that decodes at all times keeps prompts coming
            load, level = carry(found, seldom=True)
        warm = _warm_load(policy, worker, traffic, level)
        if load > warm:
            # So many find what they had; more than that it carries only where nothing is found.
            cold, cold_level = carry(found._replace(cached=0.0))
            if cold > warm:
                load, level = cold, cold_level
            else:
                level = level._replace(decoding=max(1.0, level.decoding * warm / load))
                load = warm
        carried.append((load / times, level))
    return min(carried, key=lambda row: row[0])


def _warm_load(policy: EnginePolicy, worker: Worker, traffic: Traffic, level: SteadyState) -> float:
    """Return the load whose sessions all keep their blocks, in the KV cache or in the tiers
    below."""
    if traffic.sessions is None:
        return math.inf
    room, tiers = policy.kv_tokens, policy.tiers
    if tiers is not None:
        lower = tiers.host_tokens + tiers.disk_tokens
        room = room + lower if tiers.write == "evicted" else max(room, lower)
    warm = max(1.0, worker.dp * room / (traffic.input_tokens + traffic.output_tokens))
    return warm / float(traffic.sessions.tasks_s(level).mean()) if traffic.is_open else warm


def _carried_load(
    levels: Iterator[SteadyState], dp: int, traffic: Traffic
) -> tuple[float, SteadyState]:
    best: tuple[float, SteadyState] | None = None
    for level in levels:
        load = dp * traffic.load_at(level)
        slack = _slack(level, traffic)
        if slack < 0:
            if best is None:
                return 0.0, level
            carried, good = best
            if level.busy >= 1 or traffic.texts:
                carried = max(carried, dp * _queue_up(good, good.busy, traffic))
                best = carried, good
            if not carried < load < math.inf:
                return best
            reserve = _slack(good, traffic)
            share = reserve / (reserve - slack) if math.isfinite(slack) else 0.5
            return carried * (load / carried) ** share, good
        if best is None or load > best[0]:
            best = load, level
    if best is not None:
        best = max(best[0], dp * _queue_up(best[1], 1.0, traffic)), best[1]
    return best or (0.0, level)


def _queue_up(level: SteadyState, share: float, traffic: Traffic) -> float:
    """Return the requests of a closed loop that keeps an engine full, which waits as long as the
    bounds let it. `share`: of what fills the engine, that which the level has."""
    if traffic.is_open or traffic.sessions is not None:
        return 0.0
    rests_s = {"ttft": 0.0, "answer": 0.0, "e2e": (traffic.output_tokens - 1) * level.tpot_s}
    waits_s = [
        _EVEN * bound.bound_s - rests_s[bound.metric]
        for bound in traffic.bounds
        if bound.metric in rests_s
    ]
    wait_s = min(waits_s, default=_LONGEST_WAIT_S)
    return (level.decoding + level.rate_per_s * wait_s) / share


def _slack(level: SteadyState, traffic: Traffic) -> float:
    """Return ln(bound / value) of the tightest bound."""
    if level.busy >= 1:
        return -math.inf
    slacks = []
    for bound in traffic.bounds:
        value_s = traffic.latency_s(level, bound.metric, bound.quantile, bound.traffic_class)
        slacks.append(math.log(bound.bound_s / value_s) if math.isfinite(value_s) else -math.inf)
    return min(slacks)
