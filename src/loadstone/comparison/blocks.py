"""Requests that share engine steps are not independent: they are taken in blocks, long enough to be nearly so.

A block has at least a generation of requests, in the order of their sends: as many as were under way at a time,
Σ E2E/duration. Where neighbouring blocks still go together, blocks are joined two by two. docs/statistics.md tells
how these numbers were chosen, and what false alarms and power they give.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST_BLOCKS = 6
"""A cell with fewer generations of requests says nothing about its own spread."""
MOST_BLOCKS = 40
"""More add nothing: the 95 % point of t is 1.99 with 78 degrees of freedom, 1.96 with any number."""
JOIN_AT = 0.3
"""Correlation of neighbours, the largest of any metric, from which blocks are joined."""
UNSETTLED = 0.8
"""What is taken for it at least where joining ends at LEAST_BLOCKS before it is below JOIN_AT: a queue near
saturation, whose memory is longer than the cell."""


def count(requests: int, under_way: float) -> int:
    """How many blocks so many requests make, with `under_way` of them at a time; 0 where these are too few."""
    found = int(requests / max(1.0, under_way))
    return 0 if found < LEAST_BLOCKS else min(found, MOST_BLOCKS)


def settle(most: int, correlations: Callable[[int], Floats]) -> tuple[int, Floats, Floats]:
    """How many blocks to take, `most` or fewer; what correlation between neighbours is left for each metric; and what
    is to be taken for it in the test, which is more where the blocks could not be made to part.

    `correlations` gives it, one value for each metric, for a number of blocks.
    """
    blocks = most
    found = correlations(blocks)
    while found.max(initial=0.0) >= JOIN_AT and blocks // 2 >= LEAST_BLOCKS:
        blocks //= 2
        found = correlations(blocks)
    unsettled = bool(found.max(initial=0.0) >= JOIN_AT)
    return blocks, found, np.maximum(found, UNSETTLED) if unsettled else found


def labels(requests: int, blocks: int) -> NDArray[np.int64]:
    """Which block each request belongs to, in their order; sizes differ by one at most."""
    return np.arange(requests, dtype=np.int64) * blocks // max(requests, 1)


def means(values: Floats, label: NDArray[np.int64], blocks: int) -> Floats:
    """The mean of each block's values, NaN ones left out; NaN for a block of nothing else."""
    known = ~np.isnan(values)
    sums = np.bincount(label[known], values[known], minlength=blocks)
    sizes = np.bincount(label[known], minlength=blocks)
    found = np.full(blocks, np.nan)
    np.divide(sums, sizes, out=found, where=sizes > 0)
    return found


def above(values: Floats, quantile: float) -> Floats:
    """1 where a value is above `quantile`, ½ where it equals it: block means of these make the test of a quantile."""
    return np.where(np.isnan(values), np.nan, (values > quantile) + 0.5 * (values == quantile))


def correlation(rows: Floats) -> Floats:
    """Lag-1 autocorrelation of each column of block means (blocks × metrics), what their number hides added, ≥ 0.

    r₁ = Σ(x_k − x̄)(x_{k+1} − x̄)/Σ(x_k − x̄)²; of k independent blocks it is −1/k on average (Kendall 1954).
    """
    centred = rows - rows.mean(axis=0)
    below = (centred**2).sum(axis=0)
    found = np.zeros(rows.shape[1])
    np.divide((centred[1:] * centred[:-1]).sum(axis=0), below, out=found, where=below > 0)
    return np.clip(found + 1 / len(rows), 0.0, 0.9)
