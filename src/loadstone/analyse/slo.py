"""Judges bounds on latencies: were they met, and how sure is that?"""

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from loadstone.analyse.metrics import RequestBounds
from loadstone.core.errors import InputError
from loadstone.core.plan import Load
from loadstone.core.statistics.distribution import PERCENTILES, Z95
from loadstone.core.summary import (
    SLO_KEYS,
    TASK,
    Latency,
    Metrics,
    Requests,
    SloBound,
    latency_field,
)
from loadstone.core.units import parse_seconds
from loadstone.core.vectors import Floats

_MAX_BARE_S = 10.0
"""The least bound, in seconds, that needs a unit: without one it is more likely to be meant in
milliseconds."""
SURE = 0.9
"""Probability from which a bound counts as met for sure, and below one less which as missed for
sure: the ends of an 80 % interval.
"""
_MEASURED = (1.0,)
"""The factors of what was measured, which no prediction's error widens."""
_GUMBEL = math.pi / math.sqrt(6)
"""Standard deviation of the largest of many values whose tail is exponential, as a multiple of its
scale."""


class Bound(NamedTuple):
    """An upper bound: `ttft` of each request, or `ttft_p99` of all together; in seconds."""

    name: str
    limit_s: float


def parse_slo(text: str) -> tuple[Bound, ...]:
    """Parse bounds, in seconds, from `ttft<500ms,tpot_p99<30ms`: per request (`ttft`), or on a
    percentile (`tpot_p99`).

    A small number without a unit is seconds. Raises InputError.
    """
    bounds: dict[str, float] = {}
    for part in text.split(","):
        name, sign, limit = part.partition("<")
        base, joint, percentile = name.strip().partition("_")
        if not sign or base not in (*SLO_KEYS, TASK) or (joint and percentile not in PERCENTILES):
            raise InputError(
                f"--slo: {part.strip()!r} is not a bound; write e.g. ttft<500ms,tpot_p99<30ms "
                f"({', '.join(SLO_KEYS)}; of sessions task; {', '.join(PERCENTILES)})"
            )
        if base == TASK and not joint:
            raise InputError(
                f"--slo: {part.strip()!r}: is on a percentile of sessions; write e.g. task_p90<120s"
            )
        if name.strip() in bounds:
            raise InputError(f"--slo: {name.strip()} has two bounds; give one")
        limit = limit.removeprefix("=").strip()
        limit_s = parse_seconds(limit, "--slo")
        bounds[name.strip()] = limit_s
        if limit_s >= _MAX_BARE_S and limit[-1] in "0123456789.":
            # Other tools' bounds are milliseconds without saying so.
            raise InputError(
                f"--slo: {part.strip()!r}: {limit} seconds? write {limit}ms or {limit}s"
            )
        if not limit_s > 0:
            raise InputError(f"--slo: {part.strip()!r} can never be met; write a time above 0")
    return tuple(Bound(name, limit_s) for name, limit_s in bounds.items())


def request_bounds(slo: Sequence[Bound]) -> RequestBounds:
    """Choose what goodput and attainment ask of a request: the bounds on requests; where all are on
    percentiles, their limits, of several on one measure the largest, which is what a user bears at
    worst.
    """
    limits: dict[str, float] = {}
    per_request = [bound for bound in slo if bound.name in SLO_KEYS]
    for name, limit_s in per_request or slo:
        base = name.partition("_")[0]
        if base in SLO_KEYS:  # run.json may have another version's bounds
            limits[f"{base}_s"] = max(limit_s, limits.get(f"{base}_s", 0.0))
    return RequestBounds(**limits)


def bounds_of(
    slo: Sequence[Bound],
    load: Load,
    requests: Requests,
    metrics: Metrics,
    factors_of: Callable[[str], Sequence[float] | None] = lambda name: _MEASURED,
    task_s: Latency | None = None,
) -> list[SloBound]:
    """Judge each bound of a cell: the value measured or predicted, and how likely the bound holds.

    `factors_of` a bound, by its name: equally likely factors by which a prediction may be off;
    None: not known. `task_s`: of its sessions.

    As for single requests (metrics.py), TTFT and E2E of an open loop count from the intended time.
    """
    bounds = []
    failed = (requests.sent or 0) - requests.completed
    for name, limit_s in slo:
        base, _, percentile = name.partition("_")
        values = _find_values(name, load, metrics, task_s)
        of_all = not percentile and base in SLO_KEYS
        value = values.value("max" if of_all else percentile) if values is not None else None
        whole = not (of_all and failed)
        factors = factors_of(name)
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
                p_most=None if odds is None or odds.most == 1 else odds.most,
            )
        )
    return bounds


def probability_of(
    bounds: Sequence[SloBound],
    load: Load,
    metrics: Metrics,
    factors_of: Callable[[str], Sequence[float] | None] = lambda name: _MEASURED,
    task_s: Latency | None = None,
) -> float | None:
    """Compute the probability that all bounds are met at once, in one draw of a prediction's errors
    after another; None where it is not known.

    In a draw, bounds on one measure stand and fall together; those on several are missed by chance,
    each by its own. All together are not surer than the sample allows of the least sure: a request
    that is within all limits is so of each.
    """
    least: dict[str, Floats] = {}
    most = 1.0
    for bound in bounds:
        factors = factors_of(bound.metric)
        if factors is None or bound.p_met is None:
            return None
        base, _, percentile = bound.metric.partition("_")
        values = _find_values(bound.metric, load, metrics, task_s)
        odds = _judge(values, percentile, bound.limit_s, factors)
        met = odds.tail * (bound.p_met > 0)
        least[base] = np.minimum(met, least[base]) if base in least else met
        most = min(most, odds.most)
    return float(np.mean(np.minimum(most, math.prod(least.values())))) if least else None


def _find_values(name: str, load: Load, metrics: Metrics, task_s: Latency | None) -> Latency | None:
    base, _, percentile = name.partition("_")
    if base == TASK:
        return task_s
    values: Latency | None = getattr(metrics, latency_field(base, load), None)
    if values is None and not percentile:
        values = getattr(metrics, f"{base}_s", None)
    return values


def _limit(limit_s: float) -> str:
    """Write a limit as --slo takes it: `40ms`, `2s`."""
    return f"{limit_s * 1e3:.10g}ms" if limit_s < 1 else f"{limit_s:.10g}s"


class _Odds(NamedTuple):
    """How likely a bound is met: by the value's interval, for each factor of a prediction's error
    (`tail`), and by the size of the sample at most (`most`)."""

    tail: Floats
    most: float = 1.0

    @property
    def met(self) -> Floats:
        return np.minimum(self.tail, self.most)


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
    most = _limit_of_sample(values, percentile, limit_s) if is_measured else 1.0
    return _Odds(np.asarray(met), most)


def _limit_of_sample(values: Latency, percentile: str, limit_s: float) -> float:
    """Compute the most that a sample can say, whatever the tail: the confidence that fewer than
    1 − q of all values are above the limit, of n values of which none was, or one.

    Source: the binomial test of a quantile, 1 − qⁿ where none was.
    """
    n = (values.worth or {}).get(percentile) or values.n
    if not percentile or not n:
        return 1.0  # of another tool's figures nobody knows
    q = PERCENTILES[percentile]
    above = q**n
    if values.max is None or values.max > limit_s:
        above += n * (1 - q) * q ** (n - 1)
    return 1.0 - min(1.0, above)


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
