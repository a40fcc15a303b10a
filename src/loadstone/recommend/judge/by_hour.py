"""A plan whose replicas follow a trace: each window is simulated with as many as it needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec
import numpy as np

from loadstone.core.plan import Plan
from loadstone.core.vectors import Floats
from loadstone.recommend.demand.hours import Hours
from loadstone.recommend.demand.options import HOURS_PER_MONTH
from loadstone.recommend.demand.planning import Planning
from loadstone.recommend.judge.choices import PlanChoice
from loadstone.recommend.search.candidates import Candidate
from loadstone.recommend.search.curve import (
    simulate_load,
)


class Span(msgspec.Struct, frozen=True):
    """A figure with an 80 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def around(cls, value: float, ends: Sequence[float] | Floats) -> Span:
        """Return the interval with these ends, or as far as the value where that is beyond."""
        return cls(value, min(float(ends[0]), value), max(float(ends[1]), value))


class ByHour(msgspec.Struct, frozen=True, kw_only=True):
    """A plan whose replicas follow a trace, windows of `every_s`.

    replicas  by window, the reserve included
    gpus      that are paid for on average, those that start up included; usd_per_month: what they
              cost
    saves     share of what the plan costs with all its replicas all the time
    broken    windows in which not even all replicas hold the bounds, by the best prediction
    """

    replicas: list[int]
    every_s: float
    start_up_s: float
    gpus: float
    usd_per_month: Span | None
    saves: float
    broken: int = 0


def follow_hours(choice: PlanChoice, hours: Hours, planning: Planning) -> ByHour:
    """Return the plan whose replicas follow the trace."""
    finalist, reserve = choice.finalist, planning.choice.reserve
    by_rate = hours.followed(choice.replicas, reserve)
    needed = by_rate.copy()
    broken = 0
    for number, window in enumerate(hours.plans):
        if not len(window):
            continue
        while not _window_holds(
            window, finalist.candidate, planning, int(needed[number]) - reserve
        ):
            if needed[number] >= choice.replicas:
                broken += 1
                break
            needed[number] += 1
    capacities = np.maximum(finalist.capacities, 1e-9)[:, None]
    drawn = hours.replicas(capacities, reserve) + (needed - by_rate)
    given = planning.search.gpus_max // finalist.deployment.gpus
    drawn = drawn[drawn.max(axis=1) <= given]  # in the others nothing holds, at any cost
    mean = float(hours.mean(needed))
    ends = np.quantile(hours.mean(drawn), (0.1, 0.9)) if len(drawn) else np.full(2, mean)
    dollars = choice.cost / choice.replicas * HOURS_PER_MONTH
    return ByHour(
        replicas=[int(count) for count in needed],
        every_s=hours.every_s,
        start_up_s=hours.start_up_s,
        gpus=mean * finalist.deployment.gpus,
        usd_per_month=(Span.around(mean * dollars, ends * dollars) if planning.prices else None),
        saves=1 - mean / choice.replicas,
        broken=broken,
    )


def _window_holds(window: Plan, candidate: Candidate, planning: Planning, replicas: int) -> bool:
    """Tell whether so many replicas hold the bounds in a window of the trace, by the best
    prediction. It ends, so that latencies alone count."""
    traffic = planning.traffic
    growth = traffic.demand / traffic.plan.cells[0].value
    load = growth * window.cells[0].value / replicas
    in_window = dataclasses.replace(
        planning, traffic=dataclasses.replace(traffic, plan=window, windows={})
    )
    return simulate_load(candidate, in_window, load, replicas).within_bounds(traffic.bounds)
