"""Describes values that come a part at a time: the gaps between all tokens of a cell."""

import math

import numpy as np
from numpy.typing import NDArray

from loadstone.core.statistics.distribution import BLOCK, PERCENTILES, Distribution, interpolate


class SamplePool:
    """A distribution of float32 values that come a part at a time, without sorting them or holding
    them twice.

    They are put into order as far as the percentiles need it, in the place where they lie. The
    order statistics are exact; mean and std are sums in float64. What comes out does not depend on
    how the values are cut into parts.
    """

    def __init__(self) -> None:
        self._values = np.empty(BLOCK, np.float32)
        self._count = 0

    def add(self, values: NDArray[np.float32]) -> None:
        """Add values, one axis, no NaN."""
        end = self._count + len(values)
        if end > len(self._values):
            # Enlarged by the system, page by page: nothing is copied of what is large.
            self._values.resize(end + end // 4, refcheck=False)
        self._values[self._count : end] = values
        self._count = end

    def distribution(self) -> Distribution | None:
        """Compute the distribution, without bounds, which hold for independent values only. None
        where there are no values. Nothing can be added afterwards.
        """
        values, n = self._values[: self._count], self._count
        if not n:
            return None
        # Near the mean: squares of what is left lose nothing.
        shift = float(values[:BLOCK].mean(dtype=np.float64))
        total = squares = 0.0
        for start in range(0, n, BLOCK):
            rest = np.subtract(values[start : start + BLOCK], shift, dtype=np.float64)
            total += float(rest.sum())
            # Not np.dot: BLAS sums by as many threads as there are, so the last digits vary, and
            # these spin as they wait.
            squares += float(np.square(rest, out=rest).sum())
        ranks = [int((n - 1) * q) for q in PERCENTILES.values()]
        values.partition([0, *ranks, *(min(rank + 1, n - 1) for rank in ranks), n - 1])
        mean = total / n
        return Distribution(
            n=n,
            mean=shift + mean,
            std=math.sqrt(max(0.0, squares / n - mean * mean)),
            min=float(values[0]),
            max=float(values[-1]),
            ci95={name: [None, None] for name in ("mean", *PERCENTILES)},
            worth={},
            **{name: interpolate(values, q) for name, q in PERCENTILES.items()},
        )
