"""Weighs host memory for KV blocks: the first plan is simulated with and without it."""

from __future__ import annotations

import math

import msgspec

from loadstone.analyse.compare.price import Prices
from loadstone.core.errors import InputError
from loadstone.predict.sizing.check import contradictions
from loadstone.recommend.candidates import make_candidate, price_gpu
from loadstone.recommend.curve import simulate_curve, simulate_load
from loadstone.recommend.decide import PlanChoice
from loadstone.recommend.options import HOURS_PER_MONTH, RecommendOptions
from loadstone.recommend.progress import show_progress
from loadstone.recommend.result import HostMemory
from loadstone.recommend.traffic import Traffic

_GB_PER_GPU = 128
"""Of a host of 1 to 2 TB with eight GPUs, what an engine may well be given."""
_BELOW = ("kv_host", "kv_disk", "kv_offload")
_PAYS = 1.1


def weigh_host_memory(
    choice: PlanChoice, options: RecommendOptions, traffic: Traffic, prices: Prices
) -> HostMemory | None:
    """Return what the plan's deployment carries without and with `kv_host`, or why that is not
    known; None where the traffic is no sessions."""
    if traffic.sessions is None:
        return None
    show_progress("simulating the first plan with and without host memory")
    mine, size = choice.finalist.deployment, choice.finalist.deployment.argument("kv_host")
    bare = msgspec.structs.replace(
        mine, arguments=tuple(each for each in mine.arguments if each[0] not in _BELOW)
    )
    added = ("kv_host", size or f"{_GB_PER_GPU * mine.gpus}gb")
    tiered = mine if size else msgspec.structs.replace(mine, arguments=(*mine.arguments, added))
    found = HostMemory(kv_host=added[1], assumed=size is None)
    try:
        candidates = [make_candidate(each, options, traffic, prices, {}) for each in (bare, tiered)]
        wrong = [
            *contradictions(tiered),
            *[each.deployment.name for each in candidates if each.load <= 0],
        ]
        carried = (
            [] if wrong else [simulate_curve(each, traffic, choice.replicas) for each in candidates]
        )
    except InputError as error:
        wrong = [str(error)]
    if wrong or not min(curve.capacity for curve in carried):
        return msgspec.structs.replace(
            found, why=wrong[0] if wrong else "the bounds hold under no load"
        )
    most = max(curve.capacity for curve in carried)
    needed = [traffic.demand / curve.capacity * (1 - 1e-9) for curve in carried]
    gpus = [(math.ceil(each) + options.reserve) * mine.gpus for each in needed]
    return msgspec.structs.replace(
        found,
        sessions_per_gpu=[
            curve.capacity * curve.nearest(curve.capacity).sessions.alive_each / mine.gpus
            for curve in carried
        ],
        cached_share=[
            simulate_load(each, traffic, most, 1).sessions.cached_share for each in candidates
        ],
        gpus=gpus,
        usd_per_month=(
            [each * price_gpu(mine, prices) * HOURS_PER_MONTH for each in gpus] if prices else None
        ),
        pays=needed[0] > _PAYS * needed[1],
    )
