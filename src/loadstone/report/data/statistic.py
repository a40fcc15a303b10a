"""A number of one cell as summaries have it, whoever wrote them, with its interval where there is one."""

from __future__ import annotations

import math
from typing import Literal, TypeGuard

import msgspec

from loadstone.analyse.compare.metric import predicted_rate, rate_interval
from loadstone.analyse.compare.price import per_million
from loadstone.analyse.compare.ratio import Reach, bounds, reach
from loadstone.core.plan import LoadKind
from loadstone.core.statistics.distribution import Z80, Z95
from loadstone.core.summary import Latency, Metrics, Window

RateName = Literal["output_tokens_per_s", "total_tokens_per_s"]
PREDICTED = "80 %, predicted"
REPEATS = "range of repeats"
_MOST = 1e100


class Stat(msgspec.Struct, kw_only=True, frozen=True):
    """A latency of one cell in seconds, a throughput per second, dollars for a million tokens, or joules for one.

    value      the median, or the mean where nobody gave a median; of a rate there is one number a cell
    which      which of these it is
    low, high  of `value`; None where it is not known
    level      what they are: a 95 % confidence interval, see statistics.Dependence; the 80 % one of a prediction;
               the least and the greatest of repeats
    drawn      of a prediction, or of repeats, how far the 95 % interval of what was drawn goes, on a log scale
    off        of a prediction, how far the 80 % interval of the model's error goes, where `low` and `high` have what
               was drawn in them too
    p99_*      bounds of the p99, 95 %
    """

    value: float
    which: Literal["median", "mean", "rate"]
    low: float | None = None
    high: float | None = None
    level: str | None = None
    drawn: Reach | None = None
    off: Reach | None = None
    n: int | None = None
    mean: float | None = None
    std: float | None = None
    p90: float | None = None
    p99: float | None = None
    p99_low: float | None = None
    p99_high: float | None = None

    @property
    def reach(self) -> Reach | None:
        return reach(self.value, self.low, self.high)

    @property
    def sampling(self) -> Reach | None:
        """How far off it may be by what was drawn, 95 %."""
        return self.drawn if self.level in (PREDICTED, REPEATS) else self.reach

    @property
    def model(self) -> Reach | None:
        """How far off it may be because the performance model is, 80 %; None of what was measured."""
        return (self.off or self.reach) if self.level == PREDICTED else None

    @property
    def by_spread(self) -> float:
        """Half the width of a 95 % interval on a log scale, if the requests were independent; 0 without a spread."""
        if not self.mean or self.std is None or not self.n:
            return 0.0
        return Z95 * self.std / math.sqrt(self.n) / self.mean


def latency(values: Latency | None, ok: int | None) -> Stat | None:
    """Out of a distribution of a summary; `ok`: requests, where it does not tell."""
    if values is None:
        return None
    which: Literal["median", "mean"] = "median" if values.p50 is not None else "mean"
    value = values.p50 if values.p50 is not None else values.mean
    if not _is_possible(value):
        return None
    low, high = values.bounds("p50" if which == "median" else "mean")
    drawn = reach(value, low, high)
    level = "95 %"
    if values.low is not None and values.high is not None:
        low, high, level = values.low, values.high, PREDICTED
    p99_low, p99_high = values.bounds("p99")
    return Stat(
        value=value,
        which=which,
        low=low,
        high=high,
        level=level if low is not None and high is not None else None,
        drawn=drawn,
        n=whole(values.n) or ok,
        mean=values.mean,
        std=values.std,
        p90=values.p90,
        p99=values.p99,
        p99_low=p99_low,
        p99_high=p99_high,
    )


def throughput(metrics: Metrics, window: Window, name: RateName, kind: LoadKind) -> Stat | None:
    """`name` of a cell with this kind of load, in the window that is shown. A prediction may be off by what the
    performance model is, and by what was drawn, as if independent.
    """
    value: float | None = getattr(window, name)
    if not _is_possible(value):
        return None
    low, high = rate_interval(metrics, name, window)
    drawn, off, level = reach(value, low, high), predicted_rate(metrics, kind), "95 %"
    if off is not None:
        below, above = map(math.hypot, off, (each * Z80 / Z95 for each in drawn or (0.0, 0.0)))
        (low, high), level = bounds(value, (below, above)), PREDICTED
    known = low is not None and high is not None
    return Stat(value=value, which="rate", low=low, high=high, level=level if known else None, drawn=drawn, off=off)


def price(dollars: float | None, rate: Stat | None) -> Stat | None:
    """Dollars for a million tokens of what costs `dollars` per hour: the more at the rate's low end."""
    value = per_million(dollars, rate.value) if rate is not None else None
    return None if value is None or rate is None else _inverse(value, rate)


def energy(joules: float | None, rate: Stat | None) -> Stat | None:
    """Joules for an output token, as sure as the throughput is."""
    return None if joules is None else _inverse(joules, rate)


def _inverse(value: float, rate: Stat | None) -> Stat:
    """What is the more the lower a throughput is, and as sure."""
    if rate is None or rate.reach is None:
        return Stat(value=value, which="rate")
    low, high = bounds(value, rate.reach[::-1])
    drawn, off = rate.drawn and rate.drawn[::-1], rate.off and rate.off[::-1]
    return Stat(value=value, which="rate", low=low, high=high, level=rate.level, drawn=drawn, off=off)


def _is_possible(value: float | None) -> TypeGuard[float]:
    """Files of others' making may have anything: below 0, or so far from 1 that ratios of it fail, it is left out."""
    return value is not None and (value == 0 or 1 / _MOST < value < _MOST)


def whole(value: float | None) -> int | None:
    return round(value) if value is not None and value > 0 else None
