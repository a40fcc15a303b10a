"""Describes values that come a part at a time: the gaps between all tokens of a cell."""

from __future__ import annotations

import math
import sys

import numpy as np
from numpy.typing import NDArray

from loadstone.core.statistics.distribution import BLOCK, PERCENTILES, Distribution


class SamplePool:
    """A distribution of float32 values that come a part at a time, without sorting them or holding
    them twice.

    Floats are ordered as their bits are, but for the sign: they are counted by the upper half of
    these, and those of the bins that hold a percentile by the lower half. The order statistics are
    exact; mean and std are sums in float64. What comes out does not depend on how the values are
    cut into parts.
    """

    def __init__(self) -> None:
        self._blocks: list[NDArray[np.float32]] = []
        self._open = np.empty(BLOCK, np.float32)
        self._filled = 0
        self._counts = np.zeros(1 << 16, np.int64)
        self._shift = 0.0  # near the mean: squares of what is left lose nothing
        self._sum = self._squares = 0.0

    def add(self, values: NDArray[np.float32]) -> None:
        """Add values, one axis, no NaN."""
        start = 0
        while start < len(values):
            count = min(len(values) - start, BLOCK - self._filled)
            self._open[self._filled : self._filled + count] = values[start : start + count]
            self._filled += count
            start += count
            if self._filled == BLOCK:
                self._close()

    def _close(self) -> None:
        """Count the open block."""
        block = self._open[: self._filled]
        if not self._filled:
            return
        if not self._blocks:
            self._shift = float(block.mean(dtype=np.float64))
        self._counts += np.bincount(_halves(block)[0], minlength=len(self._counts))
        rest = np.subtract(block, self._shift, dtype=np.float64)
        self._sum += float(rest.sum())
        # Not np.dot: BLAS sums by as many threads as there are, so the last digits vary, and these
        # spin as they wait.
        self._squares += float(np.square(rest, out=rest).sum())
        self._blocks.append(block)
        self._open = np.empty(BLOCK, np.float32)
        self._filled = 0

    def distribution(self) -> Distribution | None:
        """Compute the distribution, without bounds, which hold for independent values only. None
        where there are no values.
        """
        self._close()
        n = int(self._counts.sum())
        if not n:
            return None
        ends = np.cumsum(self._counts)
        wanted = {0, n - 1}
        for q in PERCENTILES.values():
            rank = int((n - 1) * q)
            wanted |= {rank, min(rank + 1, n - 1)}
        bin_of = {rank: int(np.searchsorted(ends, rank, side="right")) for rank in wanted}
        within = {number: np.zeros(1 << 16, np.int64) for number in bin_of.values()}
        for block in self._blocks:
            upper, lower = _halves(block)
            for number in within:
                halves = lower[upper == number]
                if len(halves):
                    within[number] += np.bincount(halves, minlength=1 << 16)
        value_at = {}
        for rank, number in bin_of.items():
            rest = rank - int(ends[number] - self._counts[number])
            value_at[rank] = _value(
                number, int(np.searchsorted(np.cumsum(within[number]), rest, side="right"))
            )
        points = {}
        for name, q in PERCENTILES.items():
            position = (n - 1) * q
            low, high = value_at[int(position)], value_at[min(int(position) + 1, n - 1)]
            points[name] = low + (position - int(position)) * (high - low)
        mean = self._sum / n
        return Distribution(
            n=n,
            mean=self._shift + mean,
            std=math.sqrt(max(0.0, self._squares / n - mean * mean)),
            min=value_at[0],
            max=value_at[n - 1],
            ci95={name: [None, None] for name in ("mean", *PERCENTILES)},
            worth={},
            **points,
        )


def _halves(values: NDArray[np.float32]) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Split a key that orders floats into its upper and lower half: of negative ones all bits
    flipped, of others the sign's.
    """
    halves = values.view(np.uint16)
    first = 0 if sys.byteorder == "little" else 1
    lower, upper = halves[first::2], halves[1 - first :: 2].copy()
    negative = (upper.view(np.int16) >> 15).view(np.uint16)
    return upper ^ (negative | np.uint16(1 << 15)), lower ^ negative


def _value(upper: int, lower: int) -> float:
    """Return the float that has this key."""
    key = upper << 16 | lower
    return float(np.uint32(key ^ (0x80000000 if key >> 31 else 0xFFFFFFFF)).view(np.float32))
