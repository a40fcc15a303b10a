"""A trace by the hour: what each of its windows asks for, and how many replicas run in it.

What a plan must carry is the busiest window of the trace. In the others as many replicas run as
leave each no more requests per second than it has there, or more where these would not hold the
bounds in a simulation of the window, and the reserve. Those that a later window needs are started
before it and are paid for from then on. A month is the trace over and over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from loadstone.core.errors import InputError
from loadstone.core.plan import Plan
from loadstone.core.vectors import Floats
from loadstone.predict.simulator.parts import take_requests
from loadstone.recommend.demand.options import TrafficLoad

_PROMPT_WEIGHT = 0.2
"""What a token of a prompt counts, in tokens of an answer, where windows are compared before a GPU
is known."""
_MAX_WINDOWS = 20_000
"""Two years by the hour. Each is simulated, and counted in a thousand draws."""


@dataclass(frozen=True)
class Hours:
    """The windows of a trace, `every_s` long: what each asks for (`rates`), in requests/s of the
    busiest one's kind, and what is sent in it (`plans`). busiest_s: from when to when the one lasts
    that asks for most. whole: all of it.
    """

    rates: Floats
    every_s: float
    start_up_s: float
    busiest_s: tuple[float, float]
    plans: tuple[Plan, ...] = ()
    whole: Plan | None = None

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

    def replicas(self, carried: Floats | float, reserve: int) -> Floats:
        """Count replicas by window (last axis), where one carries `carried` requests/s; not those
        that start for a later one."""
        needed = np.maximum(1.0, np.ceil(self.rates / carried * (1 - 1e-9)))
        return np.asarray(needed + reserve)

    def mean(self, replicas: Floats) -> Floats:
        """Average the replicas that are paid for over the trace, those that start up too."""
        whole, rest_s = divmod(self.start_up_s, self.every_s)
        windows = min(int(whole) + 1, replicas.shape[-1])
        # The most that any of so many windows needs, this one the first: doubled as far as it goes.
        paid, covered = replicas, 1
        while covered < windows:
            step = min(covered, windows - covered)
            paid = np.maximum(paid, np.roll(paid, -step, axis=-1))
            covered += step
        started = np.maximum(0.0, np.roll(paid, -1, axis=-1) - paid)
        mean: Floats = (paid + started * rest_s / self.every_s).mean(axis=-1)
        return mean

    def followed(self, replicas: int, reserve: int) -> Floats:
        """Count replicas by window, where the busiest has `replicas`, the reserve included."""
        return self.replicas(float(self.rates.max()) / (replicas - reserve), reserve)


def split_hours(load: TrafficLoad, plan: Plan) -> Hours | None:
    """Split the whole trace into windows; None where it is no longer than one and a half. Raises
    InputError: too many."""
    times_s, every_s = plan.intended_s, load.every_s
    if times_s[-1] > every_s * _MAX_WINDOWS:
        raise InputError(
            f"--every {every_s:g}s: cuts the trace, {times_s[-1]:,.0f} s, into more than"
            f" {_MAX_WINDOWS:,} windows; give {math.ceil(times_s[-1] / _MAX_WINDOWS)}s or more"
        )
    # The last is half as long as the others, to one and a half times.
    count = int(times_s[-1] / every_s + 0.5)
    if count < 2:
        return None
    lengths_s = np.full(count, every_s)
    lengths_s[-1] = times_s[-1] - (count - 1) * every_s
    window = np.minimum(times_s // every_s, count - 1).astype(np.int64)
    rates = np.bincount(window, minlength=count) / lengths_s
    tokens = _PROMPT_WEIGHT * plan.input_tokens + plan.output_tokens
    work = np.bincount(window, tokens, count) / lengths_s
    busiest = int(np.argmax(work))
    begin_s = busiest * every_s
    plans = [
        take_requests(
            plan, np.flatnonzero(window == number), number * every_s, float(rates[number])
        )
        for number in range(count)
    ]
    return Hours(
        rates=work * (rates[busiest] / work[busiest]),
        every_s=every_s,
        start_up_s=load.start_up_s,
        busiest_s=(begin_s, begin_s + float(lengths_s[busiest]) + 1e-3),
        plans=tuple(plans),
        whole=plan,
    )
