"""Make numbers of a cell with their intervals, from summaries of any tool."""

import math
from typing import Literal, TypeGuard

import msgspec

from loadstone.analyse.compare.metric import predicted_rate, rate_interval
from loadstone.analyse.compare.price import per_million
from loadstone.analyse.compare.ratio import Reach, bounds, reach
from loadstone.core.metrics import Latency, Metrics, Window
from loadstone.core.plan import LoadKind
from loadstone.core.statistics.distribution import Z80, Z95

RateName = Literal["output_tokens_per_s", "total_tokens_per_s", "inputs_per_s", "documents_per_s"]
PREDICTED = "80%, predicted"
REPEATS = "range of repeats"
_MOST = 1e100


class Estimate(msgspec.Struct, kw_only=True, frozen=True):
    """A number of one cell with its interval: a latency in seconds, a throughput per second,
    dollars or joules.

    value      the median, or the mean where no median is known; a rate is one number per cell
               (`which`)
    low, high  the interval of `value`; None where it is not known
    level      the kind of interval: 95 % confidence (statistics.Dependence), 80 % of a prediction,
               range of repeats
    sampling_margin  for a prediction and for repeats, the 95 % margin of sampling, on a log scale
    model_margin     for a prediction, the 80 % margin of the model, where `low` and `high` include
                     sampling too
    p99_*      95 % bounds of the p99
    unbounded  its requests are known, and cannot bound the p99 from above
    """

    value: float
    which: Literal["median", "mean", "rate"]
    low: float | None = None
    high: float | None = None
    level: str | None = None
    sampling_margin: Reach | None = None
    model_margin: Reach | None = None
    n: int | None = None
    mean: float | None = None
    std: float | None = None
    p90: float | None = None
    p99: float | None = None
    p99_low: float | None = None
    p99_high: float | None = None
    unbounded: bool = False

    @property
    def reach(self) -> Reach | None:
        return reach(self.value, self.low, self.high)

    @property
    def sampling(self) -> Reach | None:
        """The 95 % margin of sampling, on a log scale."""
        return self.sampling_margin if self.level in (PREDICTED, REPEATS) else self.reach

    @property
    def model(self) -> Reach | None:
        """The 80 % margin of the performance model; None for what was measured."""
        return (self.model_margin or self.reach) if self.level == PREDICTED else None

    @property
    def by_spread(self) -> float:
        """Half the width of a 95 % interval on a log scale, if the requests were independent; 0
        without a spread."""
        if not self.mean or self.std is None or not self.n:
            return 0.0
        return Z95 * self.std / math.sqrt(self.n) / self.mean


def value_of(stat: Estimate | None) -> float | None:
    """Return an estimate's value."""
    return stat.value if stat is not None else None


def latency(values: Latency | None, ok: int | None, sums: bool) -> Estimate | None:
    """Read a latency of a summary's distribution; `ok`: the number of requests, where it has none.
    `sums`: it is another tool's, without the requests that it is of."""
    if values is None:
        return None
    which: Literal["median", "mean"] = "median" if values.p50 is not None else "mean"
    value = values.p50 if values.p50 is not None else values.mean
    if not _is_possible(value):
        return None
    low, high = values.bounds("p50" if which == "median" else "mean")
    sampling_margin = reach(value, low, high)
    level = "95%"
    if values.low is not None and values.high is not None:
        low, high, level = values.low, values.high, PREDICTED
    p99_low, p99_high = values.bounds("p99")
    return Estimate(
        value=value,
        which=which,
        low=low,
        high=high,
        level=level if low is not None and high is not None else None,
        sampling_margin=sampling_margin,
        n=round_count(values.n) or ok,
        mean=values.mean,
        std=values.std,
        p90=values.p90,
        p99=values.p99,
        p99_low=p99_low,
        p99_high=p99_high,
        unbounded=p99_high is None and not sums,
    )


def throughput(metrics: Metrics, window: Window, name: RateName, kind: LoadKind) -> Estimate | None:
    """Read `name` of a cell with this kind of load, in the window that is shown. A prediction may
    be off by what the performance model is, and by sampling, as if independent.
    """
    value: float | None = getattr(window, name)
    if not _is_possible(value):
        return None
    low, high = rate_interval(metrics, name, window)
    sampling, model, level = reach(value, low, high), predicted_rate(metrics, kind), "95%"
    if model is not None:
        lower, upper = map(
            math.hypot, model, (margin * Z80 / Z95 for margin in sampling or (0.0, 0.0))
        )
        (low, high), level = bounds(value, (lower, upper)), PREDICTED
    bounded = low is not None and high is not None
    made = Estimate(value=value, which="rate", low=low, high=high, level=level if bounded else None)
    return msgspec.structs.replace(made, sampling_margin=sampling, model_margin=model)


def price(
    dollars: float | None, rate: Estimate | None, weight: float | None = 1.0
) -> Estimate | None:
    """Price a million tokens of what costs `dollars` per hour: the more at the rate's low end.
    `weight`: tokens that are paid for, for each of the rate's."""
    value = (
        per_million(dollars, rate.value * weight)
        if rate is not None and weight is not None
        else None
    )
    return None if value is None or rate is None else _inverse(value, rate)


def energy(joules: float | None, rate: Estimate | None) -> Estimate | None:
    """Make the joules per output token, with the certainty of the throughput."""
    return None if joules is None else _inverse(joules, rate)


def _inverse(value: float, rate: Estimate | None) -> Estimate:
    """Make an estimate of what grows as a throughput falls, with the same certainty."""
    if rate is None or rate.reach is None:
        return Estimate(value=value, which="rate")
    low, high = bounds(value, rate.reach[::-1])
    sampling, model = (
        margin and margin[::-1] for margin in (rate.sampling_margin, rate.model_margin)
    )
    return Estimate(
        value=value,
        which="rate",
        low=low,
        high=high,
        level=rate.level,
        sampling_margin=sampling,
        model_margin=model,
    )


def _is_possible(value: float | None) -> TypeGuard[float]:
    """Tell whether a number can be used: files of others may have some below 0, or so far from 1
    that ratios fail."""
    return value is not None and (value == 0 or 1 / _MOST < value < _MOST)


def round_count(value: float | None) -> int | None:
    return round(value) if value is not None and value > 0 else None
