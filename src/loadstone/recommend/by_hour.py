"""Capacity by the hour: how many replicas run when, where a trace's traffic rises and falls.

What a plan must carry is the busiest window of the trace. In the others as many replicas run as leave each no more
requests per second than it has there, or more where these would not hold the bounds in a simulation of the window,
and the reserve. Those that a later window needs are started before it and are paid for from then on. A month is the
trace over and over.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadstone.core.errors import InputError
from loadstone.core.plan import Plan
from loadstone.recommend.options import HOURS_PER_MONTH, RecommendOptions
from loadstone.recommend.result import ByHour, Span

Array = NDArray[np.float64]
_MOST_WINDOWS = 20_000
"""Two years by the hour. Each is simulated, and counted in a thousand worlds."""


@dataclass(frozen=True)
class Hours:
    """rates: requests/s of each window of the trace, `every_s` long; plans: what is sent in it. busiest_s: the window
    that has most."""

    rates: Array
    every_s: float
    start_up_s: float
    busiest_s: tuple[float, float]
    plans: tuple[Plan, ...] = ()

    @property
    def busiest(self) -> Plan:
        return self.plans[int(np.argmax(self.rates))]

    @property
    def window(self) -> str:
        """The busiest, as --trace-window takes it."""
        return f"{self.busiest_s[0]:g}s:{self.busiest_s[1]:g}s"

    def grown(self, demand: float) -> Hours:
        """The same with `demand` in the busiest window."""
        return replace(self, rates=self.rates * (demand / self.rates.max()))

    def replicas(self, each: Array | float, reserve: int) -> Array:
        """By window (last axis), where a replica carries `each`; those that start for a later one are not in it."""
        return np.asarray(np.maximum(1.0, np.ceil(self.rates / each * (1 - 1e-9))) + reserve)

    def mean(self, replicas: Array) -> Array:
        """Replicas that are paid for on average over the trace, those that start up too."""
        whole, rest_s = divmod(self.start_up_s, self.every_s)
        ahead, covered, ahead_of = replicas, 1, min(int(whole) + 1, replicas.shape[-1])
        while covered < ahead_of:
            step = min(covered, ahead_of - covered)
            ahead, covered = np.maximum(ahead, np.roll(ahead, -step, axis=-1)), covered + step
        started = np.maximum(0.0, np.roll(ahead, -1, axis=-1) - ahead)
        mean: Array = (ahead + started * rest_s / self.every_s).mean(axis=-1)
        return mean

    def followed(self, replicas: int, reserve: int) -> Array:
        """By window, where the busiest has `replicas`, the reserve included."""
        return self.replicas(float(self.rates.max()) / (replicas - reserve), reserve)


def hours_of(options: RecommendOptions, plan: Plan) -> Hours | None:
    """Of the whole trace; None where it is not longer than one window and a half. Raises InputError: too many."""
    times_s, every_s = plan.intended_s, options.every
    if times_s[-1] > every_s * _MOST_WINDOWS:
        raise InputError(
            f"--every {every_s:g}s: cuts the trace, {times_s[-1]:,.0f} s, into more than {_MOST_WINDOWS:,} windows; "
            f"give {math.ceil(times_s[-1] / _MOST_WINDOWS)}s or more"
        )
    count = int(times_s[-1] / every_s + 0.5)  # the last is half as long as the others, to one and a half times
    if count < 2:
        return None
    lengths_s = np.full(count, every_s)
    lengths_s[-1] = times_s[-1] - (count - 1) * every_s
    window = np.minimum(times_s // every_s, count - 1).astype(np.int64)
    rates = np.bincount(window, minlength=count) / lengths_s
    at = int(np.argmax(rates))
    plans = tuple(_cut(plan, np.flatnonzero(window == each), each * every_s, rates[each]) for each in range(count))
    return Hours(rates, every_s, options.start_up, (at * every_s, at * every_s + float(lengths_s[at]) + 1e-3), plans)


def _cut(plan: Plan, rows: NDArray[np.int64], start_s: float, rate: float) -> Plan:
    columns: dict[str, Any] = {name: getattr(plan, name)[rows] for name in Plan.COLUMNS}
    columns["intended_s"] = columns["intended_s"] - start_s
    cell = msgspec.structs.replace(plan.cells[0], value=float(rate))
    return replace(plan, cells=(cell,), blocks=None if plan.blocks is None else plan.blocks.take(rows), **columns)


def by_hour(
    hours: Hours,
    replicas: int,
    reserve: int,
    capacities: Array,
    most: int,
    *,
    gpus: int,
    dollars_per_hour: float | None,
    holds: Callable[[Plan, int], bool],
) -> ByHour:
    """Of a plan of `replicas`. `capacities`: what one carries in each world, requests/s; `most`: how many there may
    be; GPUs and dollars of one; `holds`: whether so many hold the bounds in a window."""
    by_rate = hours.followed(replicas, reserve)
    here = by_rate.copy()
    for at, window in enumerate(hours.plans):
        while here[at] < replicas and len(window) and not holds(window, int(here[at]) - reserve):
            here[at] += 1
    worlds = hours.replicas(np.maximum(capacities, 1e-9)[:, None], reserve) + (here - by_rate)
    worlds = worlds[worlds.max(axis=1) <= most]  # in the others nothing holds, at any cost
    mean = float(hours.mean(here))
    low, high = np.quantile(hours.mean(worlds), (0.1, 0.9)).tolist() if len(worlds) else (mean, mean)
    month = None if dollars_per_hour is None else dollars_per_hour * HOURS_PER_MONTH
    return ByHour(
        replicas=[int(each) for each in here],
        every_s=hours.every_s,
        start_up_s=hours.start_up_s,
        gpus=mean * gpus,
        usd_per_month=Span(mean * month, min(low, mean) * month, max(high, mean) * month) if month else None,
        saves=1 - mean / replicas,
    )


def words(number: int, replicas: int, plan: ByHour) -> str:
    """A sentence on a plan, as a person reads it."""
    window = "hour" if plan.every_s == 3600 else f"{plan.every_s / 60:g} min"
    cost = plan.usd_per_month
    paid = f", ${cost.value:,.0f} a month ({cost.low:,.0f} to {cost.high:,.0f})" if cost is not None else ""
    return (
        f"Plan {number} by the {window}: {min(plan.replicas)} to {max(plan.replicas)} replicas, {plan.gpus:.1f} GPUs "
        f"on average with {plan.start_up_s / 60:g} min to start{paid}: {plan.saves:.0%} less than {replicas} all the "
        "time."
    )
