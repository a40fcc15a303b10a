"""Capacity by the hour: how many replicas run when, where a trace's traffic rises and falls.

What a plan must carry is the busiest window of the trace. In the others as many replicas run as
leave each no more requests per second than it has there, or more where these would not hold the
bounds in a simulation of the window, and the reserve. Those that a later window needs are started
before it and are paid for from then on. A month is the trace over and over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadstone.core.errors import InputError
from loadstone.core.plan import Plan
from loadstone.predict.simulator.parts import take_requests
from loadstone.recommend.options import RecommendOptions

Array = NDArray[np.float64]
_PROMPT_WEIGHT = 0.2
"""What a token of a prompt counts, in tokens of an answer, where windows are compared before a GPU
is known."""
_MOST_WINDOWS = 20_000
"""Two years by the hour. Each is simulated, and counted in a thousand draws."""


@dataclass(frozen=True)
class Hours:
    """The windows of a trace, `every_s` long: what each asks for (`rates`), in requests/s of the
    busiest one's kind, and what is sent in it (`plans`). busiest_s: from when to when the one lasts
    that asks for most.
    """

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
        """The busiest window, as --trace-window takes it."""
        return f"{self.busiest_s[0]:g}s:{self.busiest_s[1]:g}s"

    def scale(self, demand: float) -> Hours:
        """Return the same with `demand` in the busiest window."""
        return replace(self, rates=self.rates * (demand / self.rates.max()))

    def replicas(self, each: Array | float, reserve: int) -> Array:
        """Count replicas by window (last axis), where one carries `each`; not those that start for
        a later one."""
        return np.asarray(np.maximum(1.0, np.ceil(self.rates / each * (1 - 1e-9))) + reserve)

    def mean(self, replicas: Array) -> Array:
        """Average the replicas that are paid for over the trace, those that start up too."""
        whole, rest_s = divmod(self.start_up_s, self.every_s)
        ahead, covered, ahead_of = replicas, 1, min(int(whole) + 1, replicas.shape[-1])
        while covered < ahead_of:
            step = min(covered, ahead_of - covered)
            ahead, covered = np.maximum(ahead, np.roll(ahead, -step, axis=-1)), covered + step
        started = np.maximum(0.0, np.roll(ahead, -1, axis=-1) - ahead)
        mean: Array = (ahead + started * rest_s / self.every_s).mean(axis=-1)
        return mean

    def followed(self, replicas: int, reserve: int) -> Array:
        """Count replicas by window, where the busiest has `replicas`, the reserve included."""
        return self.replicas(float(self.rates.max()) / (replicas - reserve), reserve)


def split_hours(options: RecommendOptions, plan: Plan) -> Hours | None:
    """Split the whole trace into windows; None where it is no longer than one and a half. Raises
    InputError: too many."""
    times_s, every_s = plan.intended_s, options.every
    if times_s[-1] > every_s * _MOST_WINDOWS:
        raise InputError(
            f"--every {every_s:g}s: cuts the trace, {times_s[-1]:,.0f} s, into more than"
            f" {_MOST_WINDOWS:,} windows; give {math.ceil(times_s[-1] / _MOST_WINDOWS)}s or more"
        )
    count = int(
        times_s[-1] / every_s + 0.5
    )  # the last is half as long as the others, to one and a half times
    if count < 2:
        return None
    lengths_s = np.full(count, every_s)
    lengths_s[-1] = times_s[-1] - (count - 1) * every_s
    window = np.minimum(times_s // every_s, count - 1).astype(np.int64)
    rates = np.bincount(window, minlength=count) / lengths_s
    work = (
        np.bincount(window, _PROMPT_WEIGHT * plan.input_tokens + plan.output_tokens, count)
        / lengths_s
    )
    at = int(np.argmax(work))
    plans = tuple(
        take_requests(plan, np.flatnonzero(window == each), each * every_s, float(rates[each]))
        for each in range(count)
    )
    return Hours(
        work * (rates[at] / work[at]),
        every_s,
        options.start_up,
        (at * every_s, at * every_s + float(lengths_s[at]) + 1e-3),
        plans,
    )
