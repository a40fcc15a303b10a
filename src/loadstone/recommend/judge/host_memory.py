"""Weighs host memory for KV blocks: the first plan is simulated with and without it."""

import math

import msgspec

from loadstone.core.errors import InputError
from loadstone.predict.sizing.check import contradictions
from loadstone.recommend.demand.options import HOURS_PER_MONTH
from loadstone.recommend.demand.planning import Planning
from loadstone.recommend.judge.choices import PlanChoice
from loadstone.recommend.search.candidates import make_candidate
from loadstone.recommend.search.curve import simulate_curve, simulate_load

_GB_PER_GPU = 128
"""Of a host of 1 to 2 TB with eight GPUs, what an engine may well be given."""
_TIERS = ("kv_host", "kv_disk", "kv_offload")
_PAYS = 1.1


class HostMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The first plan without and with `kv_host`, memory in the host, of a replica, by the best
    prediction.

    assumed           nobody gave its size
    sessions_per_gpu  alive, where a replica carries what it can
    cached_share      of prompts, under the load that the better of both carries
    gpus              that carry the traffic; usd_per_month: what they cost, None without prices
    pays              a replica carries a tenth more with it; what the memory costs is not counted
    why               it could not be told
    """

    kv_host: str
    assumed: bool
    sessions_per_gpu: list[float] = []
    cached_share: list[float] = []
    gpus: list[int] = []
    usd_per_month: list[float] | None = None
    pays: bool = False
    why: str = ""


def weigh_host_memory(choice: PlanChoice, planning: Planning) -> HostMemory | None:
    """Return what the plan's deployment carries without and with `kv_host`, or why that is not
    known; None where the traffic is no sessions."""
    if planning.traffic.sessions is None:
        return None
    planning.show("simulating the first plan with and without host memory")
    worker = choice.finalist.candidate.worker
    given = worker.argument("kv_host")
    size = given or f"{_GB_PER_GPU * worker.gpus}gb"
    try:
        return _weigh(choice, planning, size, assumed=given is None)
    except InputError as error:
        return HostMemory(kv_host=size, assumed=given is None, why=str(error))


def _weigh(choice: PlanChoice, planning: Planning, size: str, *, assumed: bool) -> HostMemory:
    """Simulate both. Raises InputError where one cannot be, or carries nothing."""
    traffic, worker = planning.traffic, choice.finalist.candidate.worker
    plain = tuple(pair for pair in worker.arguments if pair[0] not in _TIERS)
    bare = msgspec.structs.replace(worker, arguments=plain)
    tiered = worker
    if assumed:
        arguments = (*worker.arguments, ("kv_host", size))
        tiered = msgspec.structs.replace(worker, arguments=arguments)
    candidates = [make_candidate(bare, planning), make_candidate(tiered, planning)]
    for problem in contradictions(tiered):
        raise InputError(problem)
    for candidate in candidates:
        if candidate.load <= 0:
            raise InputError(candidate.name)
    curves = [simulate_curve(candidate, planning, choice.replicas) for candidate in candidates]
    capacities = [curve.capacity for curve in curves]
    if not min(capacities):
        raise InputError("the bounds hold under no load")
    needed = [traffic.demand / capacity * (1 - 1e-9) for capacity in capacities]
    gpus = [(math.ceil(replicas) + planning.choice.reserve) * worker.gpus for replicas in needed]
    dollars = planning.price_gpu(worker)
    return HostMemory(
        kv_host=size,
        assumed=assumed,
        sessions_per_gpu=[
            curve.capacity * curve.nearest(curve.capacity).sessions.alive_per_load / worker.gpus
            for curve in curves
        ],
        cached_share=[
            simulate_load(candidate, planning, max(capacities), 1).sessions.cached_share
            for candidate in candidates
        ],
        gpus=gpus,
        usd_per_month=(
            [count * dollars * HOURS_PER_MONTH for count in gpus] if planning.prices else None
        ),
        pays=needed[0] > _PAYS * needed[1],
    )
