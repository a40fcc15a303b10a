"""Whether host memory for KV blocks pays: the first plan is simulated with and without it."""

from __future__ import annotations

import math

import msgspec

from loadstone.analyse.compare.price import Prices
from loadstone.core.errors import InputError
from loadstone.predict.sizing.check import contradictions
from loadstone.recommend.candidates import Candidate, make_candidate, price_gpu
from loadstone.recommend.curve import simulate_curve, simulate_load
from loadstone.recommend.decide import PlanChoice
from loadstone.recommend.options import HOURS_PER_MONTH, RecommendOptions
from loadstone.recommend.result import HostMemory, TierPlan
from loadstone.recommend.traffic import Traffic

_GB_PER_GPU = 128
"""Of a host of 1 to 2 TB with eight GPUs, what an engine may well be given."""
_BELOW = ("kv_host", "kv_disk", "kv_offload")


def weigh_host_memory(
    choice: PlanChoice, options: RecommendOptions, traffic: Traffic, prices: Prices
) -> HostMemory | None:
    """Return what the plan's deployment carries with and without `kv_host`; None where its engine has none, or the
    traffic is no sessions."""
    mine, share = choice.finalist.deployment, traffic.demand / (choice.replicas - options.reserve)
    if traffic.sessions is None:
        return None
    bare = msgspec.structs.replace(mine, arguments=tuple(each for each in mine.arguments if each[0] not in _BELOW))
    memory = mine.argument("kv_host")
    tiered, size = mine, memory or f"{_GB_PER_GPU * mine.gpus}gb"
    if memory is None:
        tiered = msgspec.structs.replace(mine, arguments=(*mine.arguments, ("kv_host", size)))
    plans = []
    for deployment in (bare, tiered):
        try:
            if contradictions(deployment):
                return None
            candidate = make_candidate(deployment, options, traffic, prices, {})
            plans.append(_plan(candidate, choice, share, options, traffic, prices))
        except InputError:
            return None
    without, within = plans
    pays = within.gpus < without.gpus or (within.gpus == without.gpus and within.headroom > without.headroom * 1.1)
    return HostMemory(kv_host=size, assumed=memory is None, without=without, within=within, pays=pays)


def _plan(
    candidate: Candidate,
    choice: PlanChoice,
    share: float,
    options: RecommendOptions,
    traffic: Traffic,
    prices: Prices,
) -> TierPlan:
    """Raises InputError where it carries nothing."""
    deployment = candidate.deployment
    if candidate.load <= 0:
        raise InputError(f"{deployment.name}: carries nothing")
    curve = simulate_curve(candidate, traffic, choice.replicas)
    asked = simulate_load(candidate, traffic, share, choice.replicas).sessions
    if curve.capacity <= 0 or asked is None:
        raise InputError(f"{deployment.name}: holds the bounds under no load")
    there = curve.nearest(curve.capacity)
    alive = there.sessions.alive if there.sessions is not None else 0.0
    replicas = math.ceil(traffic.demand / curve.capacity * (1 - 1e-9)) + options.reserve
    gpus = replicas * deployment.gpus
    return TierPlan(
        deployment=deployment.name,
        cached_share=asked.cached_share,
        sessions_per_gpu=alive / deployment.gpus,
        gpus=gpus,
        headroom=curve.capacity * (replicas - options.reserve) / traffic.demand,
        usd_per_month=gpus * price_gpu(deployment, prices) * HOURS_PER_MONTH if prices else None,
    )
