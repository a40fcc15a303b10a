"""Describes a sample in a dozen numbers, each percentile and the mean with its confidence
bounds."""

import math

import msgspec
import numpy as np

from loadstone.core.statistics.dependence import (
    LEAST_BLOCKS,
    Dependence,
    above,
    student,
)
from loadstone.core.vectors import Array, Floats

PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
STATISTICS = ("mean", "std", "min", "max", *PERCENTILES)
Z80, Z95 = 1.281552, 1.959964
BLOCK = 1 << 18
"""The number of values that are processed at a time."""


class Distribution(msgspec.Struct, kw_only=True, frozen=True):
    """A sample in a dozen numbers, in the unit of the values.

    mean  Σx / n
    std   √(Σ(x − mean)² / n): of these n values, not an estimate for others (numpy's default, as
          vLLM prints it)
    pNN   see percentile()
    ci95  {"mean": [low, high], "p50": …}: two-sided 95 % confidence bounds, see distribution(); a
          side that the values cannot give is None
    worth {"p50": …}: how many independent values would tell the percentile as well; 0 where nobody
    can say;
          empty where no percentile has bounds
    """

    n: int
    mean: float
    std: float
    min: float
    max: float
    p50: float
    p90: float
    p95: float
    p99: float
    ci95: dict[str, list[float | None]]
    worth: dict[str, int]


def distribution(values: Floats, dependence: Dependence | None = None) -> Distribution | None:
    """Compute the distribution of `values` (one axis, NaN where missing), or None where there are
    none.

    `dependence`: of the requests that these are values of, one each; requests that were under way
    together depend on one another, and the bounds are wider by what that makes of their number.
    Both sides of all bounds are None where they were too few generations to tell. Without it the
    values are taken as drawn independently.

    Bounds of a mean are ± t·error, not below 0 where no value is; those of a percentile the order
    statistics of percentile_bounds(), for as many independent values as these are worth: n/effect,
    effect = error²·(t/1.96)²/(q(1 − q)/n) and at least 1, with the standard error of the share of
    values above the percentile (Kish 1965, 8.2; Woodruff 1952). Where places of a closed loop are
    apart it is at least what that makes of the mean's variance: their number tells what else may
    be, also where no value of this run is.
    """
    present = values[~np.isnan(values)]
    n = len(present)
    if n == 0:
        return None
    ordered = np.sort(present)
    mean = float(ordered.mean(dtype=np.float64))
    std = _std(ordered, mean)
    points = {name: interpolate(ordered, q) for name, q in PERCENTILES.items()}
    if dependence is None:
        margin, worth = mean_margin(std, n), dict.fromkeys(PERCENTILES, n)
    else:
        between_places = dependence.between_places(values)
        independent = dependence.independent(values)
        found = dependence.error_of_mean(values, between_places, independent)
        margin = student(found[1]) * found[0] if found is not None else math.inf
        least = max(1.0, between_places * n / std**2) if between_places else 1.0
        worth = {
            name: _worth(above(values, points[name]), q, n, dependence, independent, least)
            for name, q in PERCENTILES.items()
        }
    bounds: dict[str, list[float | None]] = {"mean": [None, None]}
    if math.isfinite(margin):
        bounds["mean"] = [
            max(0.0, mean - margin) if ordered[0] >= 0 else mean - margin,
            mean + margin,
        ]
    for name, q in PERCENTILES.items():
        ranks = ranks_among(percentile_bounds(worth[name], q), n, worth[name])
        bounds[name] = [None if rank is None else float(ordered[rank - 1]) for rank in ranks]
    return Distribution(
        n=n,
        mean=mean,
        std=std,
        min=float(ordered[0]),
        max=float(ordered[-1]),
        ci95=bounds,
        worth=worth,
        **points,
    )


def mean_margin(std: float, n: int) -> float:
    """Return the margin of the 95 % interval of a mean of n independent values; infinite where they
    are too few."""
    return student(n - 1.0) * std / math.sqrt(n - 1) if n >= LEAST_BLOCKS else math.inf


def _worth(
    higher: Floats, q: float, n: int, dependence: Dependence, independent: float, least: float
) -> int:
    """Return the number of independent values that would tell the q-quantile as well as these n do,
    of which `higher` are above it; 0 where nobody can say.
    """
    found = dependence.error_of_mean(higher, independent=independent)
    if found is None:
        return 0
    error, freedom = found
    effect = (error * student(freedom) / Z95) ** 2 * n / (q * (1 - q))
    return int(n / max(least, effect))


def ranks_among(
    ranks: tuple[int | None, int | None], n: int, worth: int
) -> tuple[int | None, int | None]:
    """Convert ranks of bounds among the `worth` independent values to ranks among n: each of these
    stands for n/worth neighbours, and the outermost of them is taken.
    """
    low, high = ranks
    return (
        None if low is None else (low - 1) * n // worth + 1,
        None if high is None else -(-high * n // worth),
    )


def percentile(sorted_values: Floats, q: float) -> float | None:
    """Compute the q-quantile (0 ≤ q ≤ 1) of ascending values, or None where there are none.

    Linear interpolation between the two nearest order statistics, Hyndman and Fan's type 7, numpy's
    "linear": with h = (n − 1)·q counted from 0, x⌊h⌋ + (h − ⌊h⌋)·(x⌊h⌋₊₁ − x⌊h⌋). vLLM, SGLang and
    numpy print this one.
    """
    return interpolate(sorted_values, q) if len(sorted_values) else None


def percentile_bounds(n: int, q: float, confidence: float = 0.95) -> tuple[int | None, int | None]:
    """Find ranks l < u, from 1, with P(X₍ₗ₎ ≤ q-quantile ≤ X₍ᵤ₎) ≥ confidence, for n independent
    values.

    Free of any assumption on their distribution. The number of values below the quantile is
    Binomial(n, q), so with a tail of (1 − confidence)/2 on each side l is the largest rank with
    P(Bin ≤ l − 1) ≤ tail and u the smallest with P(Bin ≥ u) ≤ tail. A side is None where n is too
    small for it: above p99 at 95 % it takes 368 values (0.99ⁿ ≤ 0.025).

    Hahn and Meeker, Statistical Intervals (1991), 5.2; David and Nagaraja, Order Statistics (2003),
    7.1.
    """
    if n == 0:
        return None, None
    tail = (1 - confidence) / 2
    first, mass = _binomial(n, q)
    # Over k = first, first + 1, …: P(Bin ≤ k) rises, P(Bin ≥ k) falls.
    low = first + int(np.searchsorted(np.cumsum(mass), tail, side="right"))
    high = first + int(np.count_nonzero(np.cumsum(mass[::-1]) > tail))
    return low if low >= 1 else None, high if high <= n else None


def _binomial(n: int, q: float) -> tuple[int, Floats]:
    """Compute P(Bin(n, q) = k) for k = first, first + 1, …, as far as it is not negligible, for 0 <
    q < 1.

    By the ratio of neighbours, from the mode; twelve standard deviations either way leave out less
    than 1e-30. (scipy.special has it too, at a fifth of a second of processor time for its import,
    in every run.)
    """
    margin = math.ceil(12 * math.sqrt(n * q * (1 - q))) + 12
    mode = min(n, math.floor((n + 1) * q))
    first, last = max(0, mode - margin), min(n, mode + margin)
    k = np.arange(first, last, dtype=np.float64)
    log_mass = np.concatenate([[0.0], np.cumsum(np.log((n - k) / (k + 1)) + math.log(q / (1 - q)))])
    at_mode = (
        math.lgamma(n + 1)
        - math.lgamma(mode + 1)
        - math.lgamma(n - mode + 1)
        + mode * math.log(q)
        + (n - mode) * math.log1p(-q)
    )
    return first, np.exp(log_mass - log_mass[mode - first] + at_mode)


def interpolate(ordered: Array, q: float) -> float:
    """Compute percentile() of values that are there, of which those at its ranks are in place."""
    position = (len(ordered) - 1) * q
    rank = int(position)
    low = float(ordered[rank])
    high = float(ordered[min(rank + 1, len(ordered) - 1)])
    return low + (position - rank) * (high - low)


def _std(values: Floats, mean: float) -> float:
    # By blocks: numpy's own std would hold a hundred million float32 gaps once more, as float64.
    total = 0.0
    for start in range(0, len(values), BLOCK):
        deviation = np.subtract(values[start : start + BLOCK], mean, dtype=np.float64)
        total += float(np.square(deviation, out=deviation).sum())
    return float(np.sqrt(total / len(values)))
