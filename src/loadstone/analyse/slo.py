"""Judges bounds on latencies: were they met, and how sure is that?"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from loadstone.analyse.metrics import RequestBounds
from loadstone.core.bounds import SLO_KEYS, TASK, Bound, SloBound, split_bound
from loadstone.core.metrics import Latency, Metrics, Requests, latency_field
from loadstone.core.parts import Part
from loadstone.core.plan import Load
from loadstone.core.statistics.distribution import PERCENTILES, Z95
from loadstone.core.vectors import Floats

SURE = 0.9
"""Probability from which a bound counts as met for sure, and below one less which as missed for
sure: the ends of an 80 % interval.
"""
_MEASURED = (1.0,)
"""The factors of what was measured, which no prediction's error widens."""
_GUMBEL = math.pi / math.sqrt(6)
"""Standard deviation of the largest of many values whose tail is exponential, as a multiple of its
scale."""


def request_bounds(slo: Sequence[Bound]) -> RequestBounds:
    """Choose what goodput and attainment ask of a request: the bounds on requests; where all are on
    percentiles, their limits, of several on one measure the largest, which is what a user bears at
    worst.
    """
    limits: dict[str, float] = {}
    per_request = [bound for bound in slo if bound.name in SLO_KEYS]
    for name, limit_s in per_request or slo:
        base = split_bound(name).base
        if base in SLO_KEYS:  # run.json may have another version's bounds
            limits[f"{base}_s"] = max(limit_s, limits.get(f"{base}_s", 0.0))
    return RequestBounds(**limits)


class BoundedCell(NamedTuple):
    """The numbers of a cell that bounds are on.

    factors_of  of a bound, by its name, equally likely factors by which a prediction may be off;
                None: not known
    task_s      of its sessions; classes: the numbers of each class of traffic

    As for single requests (metrics.py), TTFT and E2E of an open loop count from the intended time.
    """

    load: Load
    requests: Requests
    metrics: Metrics
    factors_of: Callable[[str], Sequence[float] | None] = lambda name: _MEASURED
    task_s: Latency | None = None
    classes: Mapping[str, Part] = {}

    def judge(self, slo: Sequence[Bound]) -> list[SloBound]:
        """Judge each bound: the value measured or predicted, and how likely the bound holds."""
        bounds = []
        for name, limit_s in slo:
            traffic_class, base, percentile = split_bound(name)
            part = self.classes.get(traffic_class)
            bounded = self.requests if part is None else part.requests
            failed = (bounded.sent or 0) - bounded.completed
            values = self._find_values(name)
            of_all = not percentile and base in SLO_KEYS
            value = values.value("max" if of_all else percentile) if values is not None else None
            whole = not (of_all and failed)
            factors = self.factors_of(name)
            odds = None if factors is None else _judge(values, percentile, limit_s, factors)
            bounds.append(
                SloBound(
                    bound=f"{name}<{_limit(limit_s)}",
                    metric=name,
                    limit_s=limit_s,
                    measured_s=value,
                    value=value,
                    met=value is not None and value <= limit_s and whole,
                    p_met=None if odds is None else float(odds.met.mean() * whole),
                    p_most=None if odds is None or odds.limit == 1 else odds.limit,
                )
            )
        return bounds

    def probability(self, bounds: Sequence[SloBound]) -> float | None:
        """Compute the probability that all bounds are met at once, over all draws of
        probabilities(); None where it is not known."""
        by_draw = self.probabilities(bounds)
        return None if by_draw is None else float(np.mean(by_draw))

    def probabilities(self, bounds: Sequence[SloBound]) -> Floats | None:
        """Compute the probability that all bounds are met at once, in one draw of a prediction's
        errors after another; None where it is not known.

        In a draw, bounds on one measure stand and fall together; those on several are missed by
        chance, each by its own. All together are not surer than the sample allows of the least
        sure: a request that is within all limits is so of each.
        """
        least: dict[str, Floats] = {}
        sample_limit = 1.0
        for bound in bounds:
            factors = self.factors_of(bound.metric)
            if factors is None or bound.p_met is None:
                return None
            traffic_class, base, percentile = split_bound(bound.metric)
            odds = _judge(self._find_values(bound.metric), percentile, bound.limit_s, factors)
            met = odds.tail * (bound.p_met > 0)
            measure = f"{traffic_class}:{base}"
            least[measure] = np.minimum(met, least[measure]) if measure in least else met
            sample_limit = min(sample_limit, odds.limit)
        return np.minimum(sample_limit, math.prod(least.values())) if least else None

    def _find_values(self, name: str) -> Latency | None:
        traffic_class, base, percentile = split_bound(name)
        if base == TASK:
            return self.task_s
        numbers = self.classes.get(traffic_class, self.metrics)
        values: Latency | None = getattr(numbers, latency_field(base, self.load), None)
        if values is None and not percentile:
            values = getattr(numbers, f"{base}_s", None)
        return values


def _limit(limit_s: float) -> str:
    """Write a limit as --slo takes it: `40ms`, `2s`."""
    return f"{limit_s * 1e3:.10g}ms" if limit_s < 1 else f"{limit_s:.10g}s"


class _Odds(NamedTuple):
    """How likely a bound is met: by the value's interval, for each factor of a prediction's error
    (`tail`), and by the size of the sample at most (`limit`)."""

    tail: Floats
    limit: float = 1.0

    @property
    def met(self) -> Floats:
        return np.minimum(self.tail, self.limit)


def _judge(
    values: Latency | None, percentile: str, limit_s: float, factors: Sequence[float]
) -> _Odds:
    """Judge a bound by factor: log-normal around the value, each side as wide as the value's
    interval."""
    value = values.value(percentile or "max") if values is not None else None
    if values is None or value is None:
        return _Odds(np.zeros(len(factors)))
    if value <= 0:
        return _Odds(np.ones(len(factors)))
    lower, upper = _errors(values, percentile, value)
    met = []
    for far in np.log(limit_s / (value * np.asarray(factors))):
        error = upper if far >= 0 else lower
        met.append(NormalDist().cdf(far / error) if error > 0 else float(far >= 0))
    # A simulated server has no slow state that its sample may have missed.
    is_measured = tuple(factors) == _MEASURED
    sample_limit = _limit_of_sample(values, percentile, limit_s) if is_measured else 1.0
    return _Odds(np.asarray(met), sample_limit)


def _limit_of_sample(values: Latency, percentile: str, limit_s: float) -> float:
    """Compute the most that a sample can say, whatever the tail: the confidence that fewer than
    1 − q of all values are above the limit, of n values of which none was, or one.

    Source: the binomial test of a quantile, 1 − qⁿ where none was.
    """
    n = (values.worth or {}).get(percentile) or values.n
    if not percentile or not n:
        return 1.0  # of another tool's figures nobody knows
    q = PERCENTILES[percentile]
    chance = q**n
    if values.max is None or values.max > limit_s:
        chance += n * (1 - q) * q ** (n - 1)
    return 1.0 - min(1.0, chance)


def _errors(values: Latency, percentile: str, value: float) -> tuple[float, float]:
    """Compute the standard errors of ln(value), downwards and upwards, from the value's 95 %
    interval. Where an end is not known, and of the largest value, as if the tail were exponential,
    as steep as p90 and p99 have it.
    """
    scale = max(0.0, (values.p99 or 0.0) - (values.p90 or 0.0)) / math.log(10)
    if not percentile:
        error = _GUMBEL * scale / value
        return error, error
    q = PERCENTILES[percentile]
    worth = (values.worth or {}).get(percentile, 0)
    guessed = scale * math.sqrt(q / (1 - q) / max(1, worth))
    low, high = values.bounds(percentile)
    if high is None:
        high = max(
            value + Z95 * guessed, values.max or 0.0 if worth else 0.0
        )  # known to be beyond all values
    lower = (
        math.log(value / low) / Z95 if low is not None and low > 0 else math.log1p(guessed / value)
    )
    return lower, math.log(high / value) / Z95
