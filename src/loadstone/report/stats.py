"""A number of one cell as summaries have it, whoever wrote them, with its interval where there is one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from loadstone.comparison.interval import Reach, bounds, reach
from loadstone.comparison.metric import predicted_rate, rate_interval
from loadstone.comparison.price import per_million
from loadstone.runfacts import mapping, number
from loadstone.statistics.distribution import Z95

PREDICTED = "80 %, predicted"


class Stat(msgspec.Struct, kw_only=True, frozen=True):
    """A latency of one cell in seconds, a throughput per second, dollars for a million tokens, or joules for one.

    value      the median, or the mean where nobody gave a median; of a rate there is one number a cell
    which      which of these it is
    low, high  of `value`; None where it is not known
    level      what they are: a 95 % confidence interval, see statistics.blocks; the 80 % interval of a prediction
    p99_*      bounds of the p99, 95 %
    """

    value: float
    which: Literal["median", "mean", "rate"]
    low: float | None = None
    high: float | None = None
    level: str | None = None
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
    def by_spread(self) -> float:
        """Half the width of a 95 % interval on a log scale, if the requests were independent; 0 without a spread."""
        if not self.mean or self.std is None or not self.n:
            return 0.0
        return Z95 * self.std / math.sqrt(self.n) / self.mean


def latency(said: Any, ok: int | None) -> Stat | None:
    """Out of a distribution of a summary; `ok`: requests, where it does not tell."""
    values = {name: number(value) for name, value in mapping(said).items()}
    median, mean = values.get("p50"), values.get("mean")
    value = median if median is not None else mean
    if value is None:
        return None
    ci95 = mapping(mapping(said).get("ci95"))
    low, high = _pair(ci95.get("p50" if median is not None else "mean"))
    level: str | None = "95 %"
    if values.get("low") is not None and values.get("high") is not None:
        low, high, level = values["low"], values["high"], PREDICTED
    p99_low, p99_high = _pair(ci95.get("p99"))
    return Stat(
        value=value,
        which="median" if median is not None else "mean",
        low=low,
        high=high,
        level=level if low is not None and high is not None else None,
        n=whole(values.get("n")) or ok,
        mean=mean,
        std=values.get("std"),
        p90=values.get("p90"),
        p99=values.get("p99"),
        p99_low=p99_low,
        p99_high=p99_high,
    )


def throughput(metrics: Mapping[str, Any], window: Mapping[str, Any], name: str, e2e: Stat | None) -> Stat | None:
    """`name` of a cell in the window that is shown. `e2e`: of a closed loop, as whose mean a predicted throughput
    varies, whatever else may be predicted of it. What is predicted of output tokens in the long run holds, as a
    share, for all throughputs and windows.
    """
    value = number(window.get(name))
    if value is None:
        return None
    ends = predicted_rate(metrics)
    if e2e is not None and e2e.level == PREDICTED and e2e.reach is not None:
        ends = e2e.reach[::-1]
    low: float | None
    high: float | None
    if ends is not None:
        (low, high), level = bounds(value, ends), PREDICTED
    else:
        (low, high), level = _pair(rate_interval(mapping(metrics), name, window)), "95 %"
    known = low is not None and high is not None
    return Stat(value=value, which="rate", low=low, high=high, level=level if known else None)


def price(dollars: float | None, rate: Stat | None) -> Stat | None:
    """Dollars for a million tokens of what costs `dollars` per hour: the more at the rate's low end."""
    value = per_million(dollars, rate.value) if rate is not None else None
    if value is None or rate is None:
        return None
    low, high = per_million(dollars, rate.high), per_million(dollars, rate.low)
    known = low is not None and high is not None
    return Stat(value=value, which="rate", low=low, high=high, level=rate.level if known else None)


def energy(joules: float | None, rate: Stat | None) -> Stat | None:
    """Joules for an output token, as sure as the throughput is."""
    if joules is None or rate is None or rate.reach is None:
        return None if joules is None else Stat(value=joules, which="rate")
    low, high = bounds(joules, rate.reach[::-1])
    return Stat(value=joules, which="rate", low=low, high=high, level=rate.level)


def _pair(said: Any) -> tuple[float | None, float | None]:
    if not isinstance(said, list | tuple) or len(said) != 2:
        return None, None
    return number(said[0]), number(said[1])


def whole(value: float | None) -> int | None:
    return round(value) if value is not None and value > 0 else None
