"""The deployments with a prefill and a decode pool that could carry the traffic, by rate matching.

A prefill worker carries what its prompts take of a server in one queue within the bounds on TTFT
(M/D/1, as in steady_state.py), a decode worker as many requests as its room and the bounds on TPOT
let decode at once. Workers are then put together in ratios that come near to balancing both; what a
ratio carries in truth is simulated.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple, cast

from loadstone.catalogue import parse_deployment
from loadstone.catalogue.deployment.deployment import DeployedPool, Worker
from loadstone.core.errors import InputError
from loadstone.core.groups import by_key
from loadstone.engines import rules_of
from loadstone.engines.habits import Handover
from loadstone.engines.handover import handover_problem
from loadstone.predict.pool_rates import decode_tpot_s, most_users, prompts_s
from loadstone.predict.simulator.fleet import Fleet, ease_floors, fleet_of, worker_fleet
from loadstone.predict.sizing.check import contradictions
from loadstone.predict.steady_state import SteadyState
from loadstone.predict.step_time import StepModel
from loadstone.recommend.demand.planning import Planning
from loadstone.recommend.demand.traffic import Traffic
from loadstone.recommend.search.candidates import Candidate, Search, sort_candidates
from loadstone.recommend.search.layouts import list_machines

_BEST_PREFILL, _BEST_DECODE, _OF_PAIR, _MAX_OF_UNIT = 2, 3, 2, 4
"""Kinds of workers of each role that are put together, ratios of each pair that are kept, and
workers of one role in the largest unit whose ratio is tried; a replica of the plan is such a unit.
"""
_BUSY = (0.9, 0.8, 0.7, 0.6, 0.5, 0.35, 0.2)
_FILLED = (0.92, 0.75, 0.6, 0.45, 0.3, 0.2, 0.12, 0.06, 0.03)


class _RatedWorker(NamedTuple):
    """A worker of either role: requests/s that it carries within the bounds, and the seconds that a
    request has there: TTFT of prefill, TPOT of decode."""

    worker: Worker
    rate_per_s: float
    seconds: float


class _Ratio(NamedTuple):
    """Numbers of prefill and decode workers of a replica; sorted by the GPUs of all replicas."""

    gpus: int
    replicas: int
    prefill: int
    decode: int
    rate_per_s: float


def search_pools(found: Search, planning: Planning) -> Search:
    """Return what was found, with --pools also the candidates with pools."""
    if not planning.search.pools:
        return found
    traffic = planning.traffic
    candidates, pairs = [*found.candidates], found.looked_at
    for workers in _list_workers(planning).values():
        prefills, decodes = [], []
        for worker, rules in workers:
            fleet = _make_fleet(worker, planning)
            if fleet is not None:
                prefills.append(_rate_prefill(worker, fleet, traffic))
                decodes.append(_rate_decode(worker, fleet, rules, traffic))
        for prefill, decode in product(
            _best(prefills, _BEST_PREFILL), _best(decodes, _BEST_DECODE)
        ):
            pairs += 1
            candidates += _match(prefill, decode, planning)
    return found._replace(candidates=sort_candidates(candidates), looked_at=pairs)


def _list_workers(
    planning: Planning,
) -> dict[tuple[str, ...], list[tuple[Worker, Handover]]]:
    """Return the workers that can hand caches over, by what those of a deployment have in common,
    and the rules by which they do."""
    workers = []
    for worker in list_machines(planning):
        rules = rules_of(worker).handover
        if worker.pp == 1 and worker.gpus < planning.search.gpus_max and rules is not None:
            kind = (worker.gpu.name, worker.engine, worker.weights_dtype, worker.kv_dtype)
            workers.append((kind, (worker, rules)))
    return by_key(workers)


def _make_fleet(worker: Worker, planning: Planning) -> Fleet | None:
    """Make a replica of a worker; None where it cannot be."""
    if contradictions(worker):
        return None
    try:
        return worker_fleet(worker, acceptance=planning.search.acceptance)
    except InputError:
        return None


def _best(rated: Sequence[_RatedWorker | None], limit: int) -> list[_RatedWorker]:
    """Return the workers that carry most per GPU."""
    carrying = [worker for worker in rated if worker is not None]
    return sorted(carrying, key=lambda rated: -rated.rate_per_s / rated.worker.gpus)[:limit]


def _rate_prefill(worker: Worker, fleet: Fleet, traffic: Traffic) -> _RatedWorker | None:
    """Rate a worker as one that prefills; None where its TTFT misses the bounds, or a prompt has no
    room."""
    computed = max(1, round(traffic.input_tokens - traffic.cached_tokens))
    if traffic.longest_tokens > fleet.policy.longest_tokens:
        return None
    alone_s, _ = prompts_s(fleet, computed, 1)
    together_s, together = prompts_s(fleet, computed)
    service_s = together_s / together
    bounds = [bound for bound in traffic.bounds if bound.metric == "ttft"]
    for busy in _BUSY:
        queue_s = service_s / (2 * (1 - busy))
        if all(
            alone_s + queue_s * max(0.0, math.log(busy / (1 - bound.quantile))) <= bound.bound_s
            for bound in bounds
        ):
            return _RatedWorker(worker, fleet.replicas * busy / service_s, alone_s + busy * queue_s)
    return None


def _rate_decode(
    worker: Worker, fleet: Fleet, rules: Handover, traffic: Traffic
) -> _RatedWorker | None:
    """Rate a worker as one that decodes; None where it misses the bounds with a few requests, or
    has no room."""
    prompt, answer = round(traffic.input_tokens), max(1, round(traffic.output_tokens))
    times = {"tpot": 1.0, "itl": 1.0, "e2e": float(answer)}
    fleet = ease_floors(fleet, worker)
    limit = most_users(fleet, rules, prompt, answer)
    if traffic.longest_tokens + (rules.spare_tokens or 0) > fleet.policy.kv_tokens:
        return None
    for filled in _FILLED:
        users = max(1, int(filled * limit))
        tpot_s = decode_tpot_s(fleet, users, prompt, answer)
        if all(tpot_s * times.get(bound.metric, 0.0) <= bound.bound_s for bound in traffic.bounds):
            return _RatedWorker(worker, fleet.replicas * users / (answer * tpot_s), tpot_s)
    return None


def _match(prefill: _RatedWorker, decode: _RatedWorker, planning: Planning) -> Iterator[Candidate]:
    """Yield the cheapest deployments of a pair, in ratios near to that which balances them."""
    traffic = planning.traffic
    request_s = prefill.seconds + traffic.output_tokens * decode.seconds
    users_per_rate = 1.0 if traffic.is_open else request_s
    ratios = []
    for prefills, decodes in _ratios(
        prefill.rate_per_s, decode.rate_per_s, traffic.demand / users_per_rate
    ):
        gpus = prefills * prefill.worker.gpus + decodes * decode.worker.gpus
        rate = min(prefills * prefill.rate_per_s, decodes * decode.rate_per_s)
        replicas = math.ceil(traffic.demand / (rate * users_per_rate) * (1 - 1e-9))
        if replicas * gpus <= planning.search.gpus_max:
            ratios.append(_Ratio(replicas * gpus, replicas, prefills, decodes, rate))
    for ratio in sorted(ratios)[:_OF_PAIR]:
        pools = (
            DeployedPool("prefill", ratio.prefill, prefill.worker),
            DeployedPool("decode", ratio.decode, decode.worker),
        )
        model = prefill.worker.name.rpartition("@")[0]
        deployment = parse_deployment(f"{model}@{'+'.join(pool.name for pool in pools)}")
        if handover_problem(deployment) is not None:
            continue
        fleet = fleet_of(deployment, acceptance=planning.search.acceptance)
        rate = ratio.rate_per_s / fleet.replicas
        level = SteadyState(
            decoding=rate * traffic.output_tokens * decode.seconds,
            users=rate * request_s,
            rate_per_s=rate,
            tpot_s=decode.seconds,
            base_s=prefill.seconds,
            busy=0.0,
            queue_s=0.0,
        )
        yield Candidate(
            deployment,
            fleet.policy,
            cast(StepModel, fleet.model),
            load=ratio.rate_per_s * users_per_rate,
            replicas=ratio.replicas,
            cost=ratio.gpus * planning.price_gpu(decode.worker),
            level=level,
            fleet=fleet,
        )


def _ratios(prefill_per_s: float, decode_per_s: float, demand_per_s: float) -> set[tuple[int, int]]:
    """List numbers of prefill and decode workers: small units, and one that carries all."""
    balance = decode_per_s / prefill_per_s
    ratios = {(math.ceil(demand_per_s / prefill_per_s), math.ceil(demand_per_s / decode_per_s))}
    for count in range(1, _MAX_OF_UNIT + 1):
        ratios.add((max(1, math.floor(count * balance)), count))
        ratios.add((max(1, math.ceil(count * balance)), count))
        ratios.add((count, max(1, round(count / balance))))
    return ratios
