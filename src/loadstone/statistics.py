"""Describing a sample: its moments, its percentiles, and how far each percentile can be trusted."""

from __future__ import annotations

import math
import sys
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}

_BLOCK = 1 << 18


class Distribution(msgspec.Struct, kw_only=True, frozen=True):
    """A sample in a dozen numbers, in the unit of the values.

    mean  Σx / n
    std   √(Σ(x − mean)² / n): of these n values, not an estimate for others (numpy's default, as vLLM prints it)
    pNN   see percentile()
    ci95  {"p50": [low, high], …}: two-sided 95 % confidence bounds, see percentile_bounds(); a side that n values
          cannot give is None, and both sides are None where the values are not independent of one another
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


def distribution(values: NDArray[Any], *, independent: bool = True) -> Distribution | None:
    """The distribution of `values` (one axis, no NaN, in any order), or None where there are none.

    `independent=False` leaves the bounds out: they hold only for values drawn independently.
    """
    n = len(values)
    if n == 0:
        return None
    ordered = np.sort(values)
    mean = float(ordered.mean(dtype=np.float64))
    points = {name: _interpolate(ordered, q) for name, q in PERCENTILES.items()}
    bounds: dict[str, list[float | None]] = {}
    for name, q in PERCENTILES.items():
        ranks = percentile_bounds(n, q) if independent else (None, None)
        bounds[name] = [None if rank is None else float(ordered[rank - 1]) for rank in ranks]
    return Distribution(
        n=n,
        mean=mean,
        std=_std(ordered, mean),
        min=float(ordered[0]),
        max=float(ordered[-1]),
        ci95=bounds,
        **points,
    )


class Pool:
    """A distribution of float32 values that come a part at a time, without sorting them or holding them twice.

    Floats are ordered as their bits are, but for the sign: they are counted by the upper half of these, and those of
    the bins that hold a percentile by the lower half. The order statistics are exact; mean and std are sums in
    float64. What comes out does not depend on how the values are cut into parts.
    """

    def __init__(self) -> None:
        self._blocks: list[NDArray[np.float32]] = []
        self._open = np.empty(_BLOCK, np.float32)
        self._filled = 0
        self._counts = np.zeros(1 << 16, np.int64)
        self._shift = 0.0  # near the mean: squares of what is left lose nothing
        self._sum = self._squares = 0.0

    def add(self, values: NDArray[np.float32]) -> None:
        """More values, one axis, no NaN."""
        start = 0
        while start < len(values):
            count = min(len(values) - start, _BLOCK - self._filled)
            self._open[self._filled : self._filled + count] = values[start : start + count]
            self._filled += count
            start += count
            if self._filled == _BLOCK:
                self._close()

    def _close(self) -> None:
        """The open block is complete."""
        block = self._open[: self._filled]
        if not self._filled:
            return
        if not self._blocks:
            self._shift = float(block.mean(dtype=np.float64))
        self._counts += np.bincount(_halves(block)[0], minlength=len(self._counts))
        rest = np.subtract(block, self._shift, dtype=np.float64)
        self._sum += float(rest.sum())
        # Not np.dot: BLAS sums by as many threads as there are, so the last digits vary, and these spin as they wait.
        self._squares += float(np.square(rest, out=rest).sum())
        self._blocks.append(block)
        self._open = np.empty(_BLOCK, np.float32)
        self._filled = 0

    def distribution(self) -> Distribution | None:
        """Without bounds, which hold for independent values only. None where there are no values."""
        self._close()
        n = int(self._counts.sum())
        if not n:
            return None
        ends = np.cumsum(self._counts)
        wanted = {0, n - 1}
        for q in PERCENTILES.values():
            below = int((n - 1) * q)
            wanted |= {below, min(below + 1, n - 1)}
        bin_of = {rank: int(np.searchsorted(ends, rank, side="right")) for rank in wanted}
        within = {number: np.zeros(1 << 16, np.int64) for number in bin_of.values()}
        for block in self._blocks:
            upper, lower = _halves(block)
            for number in within:
                if len(found := lower[upper == number]):
                    within[number] += np.bincount(found, minlength=1 << 16)
        at = {}
        for rank, number in bin_of.items():
            rest = rank - int(ends[number] - self._counts[number])
            at[rank] = _value(number, int(np.searchsorted(np.cumsum(within[number]), rest, side="right")))
        points = {}
        for name, q in PERCENTILES.items():
            position = (n - 1) * q
            low, high = at[int(position)], at[min(int(position) + 1, n - 1)]
            points[name] = low + (position - int(position)) * (high - low)
        mean = self._sum / n
        return Distribution(
            n=n,
            mean=self._shift + mean,
            std=math.sqrt(max(0.0, self._squares / n - mean * mean)),
            min=at[0],
            max=at[n - 1],
            ci95={name: [None, None] for name in PERCENTILES},
            **points,
        )


def _halves(values: NDArray[np.float32]) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Upper and lower half of a key that orders floats: of negative ones all bits flipped, of others the sign's."""
    halves = values.view(np.uint16)
    first = 0 if sys.byteorder == "little" else 1
    lower, upper = halves[first::2], halves[1 - first :: 2].copy()
    negative = (upper.view(np.int16) >> 15).view(np.uint16)
    return upper ^ (negative | np.uint16(1 << 15)), lower ^ negative


def _value(upper: int, lower: int) -> float:
    """The float that has this key."""
    key = upper << 16 | lower
    return float(np.uint32(key ^ (0x80000000 if key >> 31 else 0xFFFFFFFF)).view(np.float32))


def percentile(sorted_values: NDArray[Any], q: float) -> float | None:
    """The q-quantile (0 ≤ q ≤ 1) of ascending values, or None where there are none.

    Linear interpolation between the two nearest order statistics, Hyndman and Fan's type 7, numpy's "linear":
    with h = (n − 1)·q counted from 0, x⌊h⌋ + (h − ⌊h⌋)·(x⌊h⌋₊₁ − x⌊h⌋). vLLM, SGLang and numpy print this one.
    """
    return _interpolate(sorted_values, q) if len(sorted_values) else None


def percentile_bounds(n: int, q: float, confidence: float = 0.95) -> tuple[int | None, int | None]:
    """Ranks l < u, from 1, with P(X₍ₗ₎ ≤ q-quantile ≤ X₍ᵤ₎) ≥ confidence, for n independent values.

    Free of any assumption on their distribution.
    The number of values below the quantile is Binomial(n, q), so with a tail of (1 − confidence)/2 on each side
    l is the largest rank with P(Bin ≤ l − 1) ≤ tail and u the smallest with P(Bin ≥ u) ≤ tail.
    A side is None where n is too small for it: above p99 at 95 % it takes 368 values (0.99ⁿ ≤ 0.025).

    Hahn and Meeker, Statistical Intervals (1991), 5.2; David and Nagaraja, Order Statistics (2003), 7.1.
    """
    if n == 0:
        return None, None
    tail = (1 - confidence) / 2
    first, mass = _binomial(n, q)
    # Over k = first, first + 1, …: P(Bin ≤ k) rises, P(Bin ≥ k) falls.
    low = first + int(np.searchsorted(np.cumsum(mass), tail, side="right"))
    high = first + int(np.count_nonzero(np.cumsum(mass[::-1])[::-1] > tail))
    return low if low >= 1 else None, high if high <= n else None


def _binomial(n: int, q: float) -> tuple[int, NDArray[np.float64]]:
    """P(Bin(n, q) = k) for k = first, first + 1, …, as far as that is not next to nothing, for 0 < q < 1.

    By the ratio of neighbours, from the mode; twelve standard deviations either way leave out less than 1e-30.
    (scipy.special has it too, at a fifth of a second of processor time for its import, in every run.)
    """
    reach = math.ceil(12 * math.sqrt(n * q * (1 - q))) + 12
    mode = min(n, math.floor((n + 1) * q))
    first, last = max(0, mode - reach), min(n, mode + reach)
    k = np.arange(first, last, dtype=np.float64)
    log_mass = np.concatenate([[0.0], np.cumsum(np.log((n - k) / (k + 1)) + math.log(q / (1 - q)))])
    at_mode = (
        math.lgamma(n + 1) - math.lgamma(mode + 1) - math.lgamma(n - mode + 1)
        + mode * math.log(q) + (n - mode) * math.log1p(-q)
    )  # fmt: skip
    return first, np.exp(log_mass - log_mass[mode - first] + at_mode)


def _interpolate(ordered: NDArray[Any], q: float) -> float:
    position = (len(ordered) - 1) * q
    below = int(position)
    low = float(ordered[below])
    high = float(ordered[min(below + 1, len(ordered) - 1)])
    return low + (position - below) * (high - low)


def _std(values: NDArray[Any], mean: float) -> float:
    # By blocks: numpy's own std would hold a hundred million float32 gaps once more, as float64.
    total = 0.0
    for start in range(0, len(values), _BLOCK):
        deviation = np.subtract(values[start : start + _BLOCK], mean, dtype=np.float64)
        total += float(np.square(deviation, out=deviation).sum())
    return float(np.sqrt(total / len(values)))
