"""The deployments with a prefill and a decode pool that could carry the traffic, by rate matching;
and whether splitting pays.

A prefill worker carries what its prompts take of a server in one queue within the bounds on TTFT
(M/D/1, as in steady_state.py), a decode worker as many requests as its room and the bounds on TPOT
let decode at once. Workers are then put together in ratios that come near to balancing both; what a
ratio carries in truth is simulated.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from itertools import product, takewhile
from typing import NamedTuple, cast

import numpy as np

from loadstone.analyse.compare.price import Prices
from loadstone.analyse.verdict.run import LIMITS
from loadstone.catalogue import parse_deployment
from loadstone.catalogue.deployment.deployment import DeployedPool, Deployment
from loadstone.core.errors import InputError
from loadstone.core.units import show_share
from loadstone.engines import rules_of
from loadstone.engines.handover import handover_problem
from loadstone.predict.pool_rates import decode_tpot_s, most_users, prompts_s
from loadstone.predict.simulator.fleet import Fleet, ease_floors, fleet_of
from loadstone.predict.sizing.check import contradictions
from loadstone.predict.steady_state import SteadyState
from loadstone.predict.step_time import StepModel
from loadstone.recommend.candidates import Candidate, Search, list_machines, price_gpu
from loadstone.recommend.confirm import ConfirmedPlan
from loadstone.recommend.decide import PlanChoice, rank_choices
from loadstone.recommend.finalists import SimulatedCandidate
from loadstone.recommend.options import RecommendOptions
from loadstone.recommend.result import DeploymentPlan, SplitAtLoad, SplitText
from loadstone.recommend.traffic import Traffic

_BEST_PREFILL, _BEST_DECODE, _OF_PAIR, _MOST_OF_UNIT = 2, 3, 2, 4
"""Kinds of workers of each role that are put together, ratios of each pair that are kept, and
workers of one role in the largest unit whose ratio is tried; a replica of the plan is such a unit.
"""
_BUSY = (0.9, 0.8, 0.7, 0.6, 0.5, 0.35, 0.2)
_LOADS = tuple(2.0 ** (each / 2) for each in range(-8, 9))
"""Multiples of the asked load under which plans with pools and without are compared."""
_FILLED = (0.92, 0.75, 0.6, 0.45, 0.3, 0.2, 0.12, 0.06, 0.03)


class _RatedWorker(NamedTuple):
    """A worker of either role: requests/s that it carries within the bounds, and the seconds that a
    request has there: TTFT of prefill, TPOT of decode."""

    worker: Deployment
    rate_per_s: float
    seconds: float


def search_pools(
    found: Search, options: RecommendOptions, traffic: Traffic, prices: Prices
) -> Search:
    """Return what was found, with --pools also the candidates with pools."""
    kinds: dict[tuple[str, ...], list[Deployment]] = {}
    for worker in list_machines(options) if options.pools else ():
        if (
            worker.pp == 1
            and worker.gpus < options.gpus_max
            and rules_of(worker).handover is not None
        ):
            kinds.setdefault(
                (worker.gpu.name, worker.engine, worker.weights_dtype, worker.kv_dtype), []
            ).append(worker)
    candidates, pairs = [*found.candidates], found.looked_at
    for workers in kinds.values():
        fleets = [
            (worker, fleet) for worker in workers if (fleet := _fleet(worker, options)) is not None
        ]
        prefills = _best([_rate_prefill(*each, traffic) for each in fleets], _BEST_PREFILL)
        decodes = _best([_rate_decode(*each, traffic) for each in fleets], _BEST_DECODE)
        for pair in product(prefills, decodes):
            pairs += 1
            candidates += _match(*pair, options, traffic, prices)
    candidates.sort(key=lambda each: (each.cost, -each.load * each.replicas))
    return found._replace(candidates=candidates, looked_at=pairs)


def _fleet(worker: Deployment, options: RecommendOptions) -> Fleet | None:
    try:
        return None if contradictions(worker) else fleet_of(worker, acceptance=options.acceptance)
    except InputError:
        return None


def _best(rated: Sequence[_RatedWorker | None], most: int) -> list[_RatedWorker]:
    return sorted(filter(None, rated), key=lambda each: -each.rate_per_s / each.worker.gpus)[:most]


def _rate_prefill(worker: Deployment, fleet: Fleet, traffic: Traffic) -> _RatedWorker | None:
    """Rate a worker as one that prefills; None where its TTFT misses the bounds, or a prompt has no
    room."""
    new = max(1, round(traffic.input_tokens - traffic.cached_tokens))
    if traffic.longest_tokens > fleet.policy.longest_tokens:
        return None
    (alone_s, _), (together_s, together) = prompts_s(fleet, new, 1), prompts_s(fleet, new)
    service_s = together_s / together
    bounds = [each for each in traffic.bounds if each.metric == "ttft"]
    for busy in _BUSY:
        queue_s = service_s / (2 * (1 - busy))
        if all(
            alone_s + queue_s * max(0.0, math.log(busy / (1 - each.quantile))) <= each.bound_s
            for each in bounds
        ):
            return _RatedWorker(worker, fleet.replicas * busy / service_s, alone_s + busy * queue_s)
    return None


def _rate_decode(worker: Deployment, fleet: Fleet, traffic: Traffic) -> _RatedWorker | None:
    """Rate a worker as one that decodes; None where it misses the bounds with a few requests, or
    has no room."""
    prompt, answer = round(traffic.input_tokens), max(1, round(traffic.output_tokens))
    rules, times = rules_of(worker).handover, {"tpot": 1.0, "itl": 1.0, "e2e": float(answer)}
    fleet = ease_floors(fleet, worker)
    assert rules is not None  # noqa: S101
    most = most_users(fleet, rules, prompt, answer)
    if traffic.longest_tokens + (rules.spare_tokens or 0) > fleet.policy.kv_tokens:
        return None
    for filled in _FILLED:
        tpot_s = decode_tpot_s(fleet, users := max(1, int(filled * most)), prompt, answer)
        if all(tpot_s * times.get(each.metric, 0.0) <= each.bound_s for each in traffic.bounds):
            return _RatedWorker(worker, fleet.replicas * users / (answer * tpot_s), tpot_s)
    return None


def _match(
    prefill: _RatedWorker,
    decode: _RatedWorker,
    options: RecommendOptions,
    traffic: Traffic,
    prices: Prices,
) -> Iterator[Candidate]:
    """Yield the cheapest deployments of a pair, in ratios near to that which balances them."""
    request_s = prefill.seconds + traffic.output_tokens * decode.seconds
    users_per_rate = 1.0 if traffic.is_open else request_s
    found = []
    for before, after in set(
        _ratios(prefill.rate_per_s, decode.rate_per_s, traffic.demand / users_per_rate)
    ):
        gpus = before * prefill.worker.gpus + after * decode.worker.gpus
        rate = min(before * prefill.rate_per_s, after * decode.rate_per_s)
        replicas = math.ceil(traffic.demand / (rate * users_per_rate) * (1 - 1e-9))
        found += [(replicas * gpus, replicas, before, after, rate)] * (
            replicas * gpus <= options.gpus_max
        )
    for gpus, replicas, before, after, rate in sorted(found)[:_OF_PAIR]:
        pools = (
            DeployedPool("prefill", before, prefill.worker),
            DeployedPool("decode", after, decode.worker),
        )
        deployment = parse_deployment(
            f"{prefill.worker.name.rpartition('@')[0]}@{'+'.join(each.name for each in pools)}"
        )
        if handover_problem(deployment) is not None:
            continue
        fleet = fleet_of(deployment, acceptance=options.acceptance)
        each_s, steps = rate / fleet.replicas, cast(StepModel, fleet.model)
        users = each_s * traffic.output_tokens * decode.seconds
        level = SteadyState(
            users, each_s * request_s, each_s, decode.seconds, prefill.seconds, 0.0, 0.0
        )
        load, cost = rate * users_per_rate, gpus * price_gpu(deployment, prices)
        yield Candidate(deployment, fleet.policy, steps, load, replicas, cost, level, fleet)


def _ratios(
    prefill_per_s: float, decode_per_s: float, demand_per_s: float
) -> Iterator[tuple[int, int]]:
    """List numbers of prefill and decode workers: small units, and one that carries all."""
    balance = decode_per_s / prefill_per_s
    for count in range(1, _MOST_OF_UNIT + 1):
        yield max(1, math.floor(count * balance)), count
        yield max(1, math.ceil(count * balance)), count
        yield count, max(1, round(count / balance))
    yield math.ceil(demand_per_s / prefill_per_s), math.ceil(demand_per_s / decode_per_s)


def _name(choice: PlanChoice) -> str:
    return (
        f"{choice.replicas} × {choice.finalist.name}"
        f" ({choice.replicas * choice.finalist.deployment.gpus} GPUs)"
    )


def _compare(
    ranked: Sequence[PlanChoice], load: float
) -> tuple[PlanChoice, PlanChoice, SplitAtLoad] | None:
    """Return the best plan with pools, the best without, and which is better; None where one of
    both is missing."""
    split = next((each for each in ranked if each.finalist.deployment.is_split), None)
    whole = next((each for each in ranked if not each.finalist.deployment.is_split), None)
    if split is None or whole is None:
        return None
    better, equal = (
        float(np.mean(each))
        for each in (split.regrets < whole.regrets, split.regrets == whole.regrets)
    )
    return split, whole, SplitAtLoad(load, ranked[0] is split, round(better, 3), round(equal, 3))


def compare_split(
    choices: Sequence[PlanChoice],
    confirmed: Sequence[ConfirmedPlan],
    finalists: Sequence[SimulatedCandidate],
    traffic: Traffic,
    options: RecommendOptions,
) -> SplitText | None:
    """Say whether the best plan with pools is better than the best without, and in how many draws
    of the model's joint errors, under the asked load and others; None where one of both kinds
    carries the traffic under no load.
    """
    asked = _compare([*(each.choice for each in confirmed), *choices], traffic.demand)
    if asked is None:
        return None
    split, whole, here = asked
    points = split.finalist.curve.points
    broken = next((each for each in points if not each.holds(traffic.bounds)), points[-1])
    by_load = [
        here if times == 1 else _at_load(times, finalists, traffic, options) for times in _LOADS
    ]
    known = [each for each in by_load if each is not None]
    paying = list(takewhile(lambda each: each.pays, reversed(known)))
    return SplitText(
        pays=here.pays,
        probability=here.probability,
        equal=here.equal,
        split=_name(split),
        whole=_name(whole),
        limit=broken.limit or "none",
        by_load=known,
        pays_from=paying[-1].load if paying else None,
        pays_from_probability=paying[-1].probability if paying else None,
    )


def _at_load(
    times: float,
    finalists: Sequence[SimulatedCandidate],
    traffic: Traffic,
    options: RecommendOptions,
) -> SplitAtLoad | None:
    """Compare both kinds under a multiple of the load, by what the finalists carry, with more GPUs
    for more; None where there is not one request under way. By throughput all GPUs serve under any
    load."""
    load = traffic.demand * times
    if not traffic.is_open and (load := float(round(load))) < 1:
        return None
    if options.objective == "cost":
        options = dataclasses.replace(
            options, gpus_max=math.ceil(options.gpus_max * max(1.0, times))
        )
    compared = _compare(
        rank_choices(finalists, dataclasses.replace(traffic, demand=load), options), load
    )
    return None if compared is None else compared[2]


def tell_split(split: SplitText | None, first: DeploymentPlan, unit: str) -> list[str]:
    """Say whether splitting pays, with which probability, from which load, and what limits it;
    None: one kind of plan alone, that of the `first`, carries the traffic."""
    if split is None:
        pooled = parse_deployment(first.deployment).is_split
        return [
            f"splitting prefill and decode {'pays' if pooled else 'does not pay'}: of what was"
            f" simulated, plans with{'' if pooled else 'out'} pools alone hold the bounds"
        ]
    return [
        (
            f"splitting prefill and decode {'pays' if split.pays else 'does not pay'}:"
            f" {split.split}, {split.whole}; the split plan is better with a probability of"
            f" {show_share(split.probability)}, as good with {show_share(split.equal)}; where it"
            f" breaks, {LIMITS[split.limit]}"
        ),
        _tell_loads(split, unit),
    ]


def _tell_loads(split: SplitText, unit: str) -> str:
    loads = split.by_load
    among = (
        f"of loads from {loads[0].load:.3g} to {loads[-1].load:.3g} {unit}, by what these finalists"
        " carry"
    )
    if split.pays_from is not None:
        there = next(each for each in loads if each.load == split.pays_from)
        sure = (
            f"better with {show_share(there.probability)} there, as good with"
            f" {show_share(there.equal)}"
        )
        return f"splitting pays from {split.pays_from:.3g} {unit} on, {sure}, {among}"
    most = max(loads, key=lambda each: each.probability)
    if some := [f"{each.load:.3g}" for each in loads if each.pays]:
        return f"splitting pays at {', '.join(some)} {unit} and not beyond, {among}"
    return (
        f"splitting pays at none {among}: better with at most {show_share(most.probability)}, at"
        f" {most.load:.3g}"
    )
