"""Requests that share engine steps are not independent: they are taken in blocks, long enough to be nearly so.

A block has at least a generation of requests, in the order of their sends: as many as were under way at a time,
Σ E2E/duration. Where neighbouring blocks still go together, blocks are joined two by two, and what correlation ρ is
left makes a standard error larger by √((1 + ρ)/(1 − ρ)). docs/statistics.md tells how these numbers were chosen, how
often intervals made so hold the truth, and what false alarms and power the tests of `loadstone compare` have.
"""

from __future__ import annotations

import math
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
TINY = 1e-9
"""Share of a value that is no difference."""
RESOLUTION = 1e-3
"""A smaller difference is none: the median of published repeats of one setup differ by three times as much in TPOT,
and by 26 times as much in TTFT (docs/statistics.md)."""
CURVE = 4096
"""Stretches of a steady window in which tokens are counted; blocks of time are made of them."""


def rates(curve: Floats, window_s: float, blocks: int) -> Floats:
    """Things per second in `blocks` equal parts of a window, from what came in each of its stretches."""
    reached = np.concatenate([[0.0], np.cumsum(curve)])
    at = np.linspace(0, len(curve), blocks + 1)
    found: Floats = np.diff(np.interp(at, np.arange(len(reached)), reached)) * blocks / window_s
    return found


def inflation(rho: float) -> float:
    """By how much a standard error grows where neighbouring blocks go together."""
    return math.sqrt((1 + rho) / (1 - rho))


def student(freedom: float) -> float:
    """The two-sided t, 95 %, for 5 degrees of freedom or more, to 0.001 (Abramowitz and Stegun 26.7.5).

    (scipy has it for any number, at a fifth of a second of processor time for its import, in every run.)
    """
    z = 1.959963985
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))


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


def means(values: Floats, blocks: int) -> Floats:
    """The mean of each of so many blocks of values in their order, without NaN ones; NaN for a block of nothing else.

    Sizes of blocks differ by one at most.
    """
    known = ~np.isnan(values)
    starts = -(-np.arange(blocks) * len(values) // blocks)
    if len(values) < blocks:
        return np.full(blocks, np.nan)
    sums = np.add.reduceat(np.where(known, values, 0.0), starts)
    sizes = np.add.reduceat(known.astype(np.float64), starts)
    found = np.full(blocks, np.nan)
    np.divide(sums, sizes, out=found, where=sizes > 0)
    return found


def above(values: Floats, quantile: float, near: float = TINY) -> Floats:
    """1 where a value is above `quantile`, 0 below, ½ where it equals it, to a share `near`: block means of these
    make the test of a quantile.

    What differs by a billionth is equal: a simulator's sums differ in their last digits, and drift.
    """
    equal = np.abs(values - quantile) <= near * abs(quantile)
    return np.where(np.isnan(values), np.nan, np.where(equal, 0.5, values > quantile))


def correlation(rows: Floats) -> Floats:
    """Lag-1 autocorrelation of each column of block means (blocks × metrics), what their number hides added, ≥ 0.

    r₁ = Σ(x_k − x̄)(x_{k+1} − x̄)/Σ(x_k − x̄)²; of k independent blocks it is −1/k on average (Kendall 1954).
    """
    centred = rows - rows.mean(axis=0)
    below = (centred**2).sum(axis=0)
    found = np.zeros(rows.shape[1])
    np.divide((centred[1:] * centred[:-1]).sum(axis=0), below, out=found, where=below > 0)
    return np.clip(found + 1 / len(rows), 0.0, 0.9)
