"""Measures how far the requests of a cell depend on one another, and the errors of means, shares
and throughputs that follow.

Requests that share engine steps are not independent: they are taken in blocks, long enough to be
nearly so. A block has at least a generation of requests, in the order of their sends: as many as
were under way at a time, Σ E2E over the duration. Where neighbouring blocks still go together,
blocks are joined two by two, and what correlation ρ is left makes a standard error larger by √((1 +
ρ)/(1 − ρ)).

A closed loop may settle into something for a whole run, and into something else in another run.
Requests of equal length that are sent together end together, and their successors are sent together
again: who shares a step with whom stays as it was at the start. All blocks of such a run then look
alike, however much the next run differs. What the run had as a choice are its places, not its
requests: that much is seen from how far the means of places are apart, each over all of its
generations.

docs/statistics.md tells how the numbers below were chosen, how often intervals made so hold the
truth, and what false alarms and power the tests of `loadstone compare` have.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadstone.core.vectors import Floats

LEAST_BLOCKS = 6
"""A cell with fewer generations of requests says nothing about its own spread."""
MOST_BLOCKS = 40
"""More add nothing: the 95 % point of t is 1.99 with 78 degrees of freedom, 1.96 with any number.
"""
JOIN_AT = 0.3
"""Correlation of neighbours, the largest of any metric, from which blocks are joined."""
UNSETTLED = 0.8
"""The correlation that is assumed at least where joining ends at LEAST_BLOCKS before it is below
JOIN_AT: a queue near saturation, whose memory is longer than the cell.
"""
STRETCH_SIGMAS = 2.5
STRETCH_AFTER = 0.05
"""Correlation of a request with the next, in standard deviations of none, and with one a block
later, from which both were in one slow stretch: who shares engine steps goes with the next as well,
and with nobody a generation later."""
LEAST_STRETCHES = 4.0
"""A cell that is worth fewer independent blocks says nothing about how far stretches move
its mean."""
TINY = 1e-9
"""A share of a value: a smaller difference counts as none."""
RESOLUTION = 1e-3
"""A smaller difference is none: the median of published repeats of one setup differ by three times
as much in TPOT, and by 26 times as much in TTFT (docs/statistics.md)."""
CURVE = 4096
"""Stretches of a steady window in which tokens are counted; blocks of time are made of them."""
_LEAST_PLACES = 4
_Z99 = 2.326348
"""The 99 % point: slots of a loop that are alike are taken for different once in a hundred times.
"""


# --- blocks ---------------------------------------------------------------------------------------


def block_count(requests: int, under_way: float) -> int:
    """Count the blocks that so many requests make, with `under_way` of them at a time; 0 where
    these are too few."""
    count = int(requests / max(1.0, under_way))
    return 0 if count < LEAST_BLOCKS else min(count, MOST_BLOCKS)


def block_means(values: Floats, blocks: int) -> Floats:
    """Compute the mean of each of so many blocks of values in their order, without NaN ones; NaN
    for a block of nothing else.

    Sizes of blocks differ by one at most.
    """
    means = np.full(blocks, np.nan)
    if len(values) >= blocks:
        present = ~np.isnan(values)
        starts = -(-np.arange(blocks) * len(values) // blocks)
        sizes = np.add.reduceat(present.astype(np.float64), starts)
        np.divide(
            np.add.reduceat(np.where(present, values, 0.0), starts),
            sizes,
            out=means,
            where=sizes > 0,
        )
    return means


def window_curve(at_s: Floats, tokens: Floats, window: tuple[float, float]) -> Floats:
    """Count the tokens that came in each of CURVE stretches of a window (start, end in seconds),
    both its ends included.

    `at_s`, `tokens`: of each event when it came and what it brought.
    """
    start_s, end_s = window
    inside = (at_s >= start_s) & (at_s <= end_s)
    if not inside.all():
        at_s, tokens = at_s[inside], tokens[inside]
    stretch = ((at_s - start_s) * (CURVE / (end_s - start_s))).astype(np.int64)
    return np.bincount(np.minimum(stretch, CURVE - 1), tokens, CURVE).astype(np.float64)


def block_rates(curve: Floats, window_s: float, blocks: int) -> Floats:
    """Compute the rate in `blocks` equal parts of a window, from the counts of its stretches."""
    reached = np.concatenate([[0.0], np.cumsum(curve)])
    edges = np.linspace(0, len(curve), blocks + 1)
    return np.asarray(
        np.diff(np.interp(edges, np.arange(len(reached)), reached)) * blocks / window_s
    )


def above(values: Floats, quantile: float, near: float = TINY) -> Floats:
    """Mark values above `quantile` with 1, below with 0, and with ½ where they equal it, to a share
    `near`: block means of these make the test of a quantile.

    What differs by a billionth is equal: a simulator's sums differ in their last digits, and drift.
    """
    equal = np.abs(values - quantile) <= near * abs(quantile)
    return np.where(np.isnan(values), np.nan, np.where(equal, 0.5, values > quantile))


def correlation(rows: Floats) -> Floats:
    """Compute the lag-1 autocorrelation of each column of block means (blocks × metrics), corrected
    for their number, ≥ 0.

    r₁ = Σ(x_k − x̄)(x_{k+1} − x̄)/Σ(x_k − x̄)²; of k independent blocks it is −1/k on average
    (Kendall 1954).
    """
    centred = rows - rows.mean(axis=0)
    sum_of_squares = (centred**2).sum(axis=0)
    r1 = np.zeros(rows.shape[1])
    np.divide(
        (centred[1:] * centred[:-1]).sum(axis=0), sum_of_squares, out=r1, where=sum_of_squares > 0
    )
    return np.clip(r1 + 1 / len(rows), 0.0, 0.9)


def inflation(rho: float) -> float:
    """Return the factor by which a standard error grows where neighbouring blocks are
    correlated."""
    return math.sqrt((1 + rho) / (1 - rho))


def settle(limit: int, correlations: Callable[[int], Floats]) -> tuple[int, Floats]:
    """Choose the number of blocks, `limit` or fewer, and the correlation between neighbours to
    assume for each metric, which is larger where the blocks stay correlated.

    `correlations` gives it, one value for each metric, for a number of blocks.
    """
    blocks = limit
    left = correlations(blocks)
    while left.max(initial=0.0) >= JOIN_AT and blocks // 2 >= LEAST_BLOCKS:
        blocks //= 2
        left = correlations(blocks)
    return blocks, np.maximum(left, UNSETTLED) if left.max(initial=0.0) >= JOIN_AT else left


def student(freedom: float) -> float:
    """Return the two-sided t, 95 %, for 5 degrees of freedom or more, to 0.001 (Abramowitz and
    Stegun 26.7.5).

    (scipy has it for any number, at a fifth of a second of processor time for its import, in every
    run.)
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


# --- the places of a closed loop ------------------------------------------------------------------


def variance_between_places(values: Floats, places: int) -> float:
    """Compute the variance that differing slots add to the mean of these values, of requests in the
    order of their sends.

    0 where there are few places, where values are missing, and where places differ by no more than
    chance (F test) or by less than anything counts (RESOLUTION).
    """
    means, apart = _places(values, places)
    if not apart:
        return 0.0
    # Neighbours are sent, and served, together.
    return apart / places * inflation(float(correlation(means[:, None])[0])) ** 2


def spread_between_places(values: Floats, places: int) -> float:
    """Compute the standard deviation between slots, over the mean of all values; 0 where their
    variance is."""
    means, apart = _places(values, places)
    return math.sqrt(apart) / float(means.mean()) if apart else 0.0


def _places(values: Floats, places: int) -> tuple[Floats, float]:
    """Compute the mean of each slot, and the variance between slots that is not that of their
    generations."""
    generations = len(values) // places if places else 0
    if places < _LEAST_PLACES or generations < LEAST_BLOCKS or np.isnan(values).any():
        return np.empty(0), 0.0
    table = values[: generations * places].reshape(generations, places)
    means = table.mean(axis=0)
    within = float(table.var(axis=0, ddof=1).mean()) / generations
    between = float(means.var(ddof=1))
    least = (RESOLUTION * float(means.mean())) ** 2
    chance = within * _fisher(places - 1, places * (generations - 1))
    return means, between - within if between > max(least, chance) else 0.0


def _fisher(upper_freedom: int, lower_freedom: int) -> float:
    """Return the value that F exceeds once in a hundred times, to 0.2 % from 3 and 20 degrees of
    freedom on (Paulson 1942).

    (scipy has it, at a fifth of a second of processor time for its import, in every run.)
    """
    a, b = 2 / (9 * lower_freedom), 2 / (9 * upper_freedom)
    root = _Z99 * math.sqrt(b * (1 - a) ** 2 + a * (1 - b) ** 2 - a * b * _Z99**2)
    return float((((1 - a) * (1 - b) + root) / ((1 - a) ** 2 - a * _Z99**2)) ** 3)


# --- errors and intervals -------------------------------------------------------------------------


@dataclass(frozen=True)
class Dependence:
    """Tells how the requests of a cell depend on one another.

    order       by their sends
    most_blocks that they make, 0 where too few
    places      of a closed loop that held them; 0 of any other load
    e2e_variance  what places that are apart add to the variance of the mean E2E, as a share of its
                  square: so a
                throughput varies
    e2e_independent  how many independent blocks E2E is worth, see independent()
    live         slow stretches of the machine are looked for, as in closed loops
    """

    order: NDArray[np.intp]
    most_blocks: int
    places: int = 0
    e2e_variance: float = 0.0
    e2e_independent: float = math.inf
    live: bool = False

    @classmethod
    def of(
        cls,
        sent_s: Floats,
        end_s: Floats,
        span_s: float | None = None,
        places: int = 0,
        *,
        live: bool = False,
    ) -> Dependence:
        """Measure the dependence of requests that ended well, by when each was sent and had its
        last output.

        `span_s`: how long they took together, where their times have no common clock. `live`: on a
        machine that may have other work.
        """
        order = np.argsort(sent_s, kind="stable")
        took_s = end_s - sent_s
        if np.isnan(took_s).all():
            return cls(order, 0)
        span_s = span_s if span_s is not None else float(np.nanmax(end_s) - np.nanmin(sent_s))
        under_way = float(np.nansum(took_s)) / span_s if span_s > 0 else math.inf
        variance = variance_between_places(took_s[order], places)
        share = variance and variance / float(took_s.mean()) ** 2
        count = block_count(len(order), under_way)
        dependence = cls(order, count, places, share, live=live)
        return replace(dependence, e2e_independent=dependence.independent(took_s))

    def independent(self, values: Floats) -> float:
        """Return the number of independent blocks that values of these requests are worth, where
        slow or fast stretches outlast a block, be it in E2E alone; infinite where none
        is seen. Blocks with a correlation φ are worth (1 − φ)/(1 + φ) as many. φ is the correlation
        of requests a block apart, over that of neighbours, which is below 1 by the noise of each;
        with the bias of so few blocks added (Kendall 1954).
        """
        blocks, in_order = self.most_blocks, values[self.order]
        looked_for = self.places or self.live
        if not looked_for or blocks < LEAST_BLOCKS or np.isnan(in_order).any():
            return self.e2e_independent
        means, apart = _places(in_order, self.places)
        rest = in_order - (np.resize(means, len(in_order)) if apart else in_order.mean())
        rest -= rest.mean()
        sum_of_squares, lag = float(rest @ rest), -(-len(rest) // blocks)
        if sum_of_squares <= len(rest) * (RESOLUTION * float(in_order.mean())) ** 2:
            return self.e2e_independent
        with_next, with_block = (
            float(rest[shift:] @ rest[:-shift]) / sum_of_squares for shift in (1, lag)
        )
        if with_next < STRETCH_SIGMAS / math.sqrt(len(rest)) or with_block < STRETCH_AFTER:
            return self.e2e_independent
        phi = min(1.0, with_block / with_next)
        phi = min(0.95, phi + (1 + 3 * phi) / blocks)
        return min(self.e2e_independent, blocks * (1 - phi) / (1 + phi))

    def between_places(self, values: Floats) -> float:
        """Compute the variance that differing slots add to the mean of values of these requests."""
        return variance_between_places(values[self.order], self.places)

    def error_of_mean(
        self, values: Floats, between_places: float = 0.0, independent: float = math.inf
    ) -> tuple[float, float] | None:
        """Compute (standard error of the mean, degrees of freedom) of values of these requests, NaN
        where missing; None where they are too few generations, or a block of them has no value.
        `independent`: how many blocks they are worth.
        """
        in_order = values[self.order]
        return self._error(lambda count: block_means(in_order, count), between_places, independent)

    def rate_bounds(self, curve: Floats, window_s: float) -> list[float | None]:
        """Compute the 95 % bounds of a throughput, from the counts of the evenly long stretches of
        its window.

        A side is None where there are too few generations. In a closed loop of places that are
        always taken a throughput varies as the mean E2E does; in an open one below saturation as
        the arrivals do.
        """
        rate = float(curve.sum()) / window_s
        found = self._error(
            lambda count: block_rates(curve, window_s, count),
            self.e2e_variance * rate**2,
            self.e2e_independent,
        )
        if found is None:
            return [None, None]
        error, freedom = found
        margin = student(freedom) * error
        return [max(0.0, rate - margin), rate + margin]

    def _error(
        self, sample: Callable[[int], Floats], between_places: float, independent: float
    ) -> tuple[float, float] | None:
        """Compute the error with the parts that slow stretches and differing slots add, of which
        slots alone tell: as many degrees of freedom as there are slots.
        """
        found = error_of_blocks(self.most_blocks, sample)
        if found is None or independent < LEAST_STRETCHES:
            return None
        error, freedom = found
        if math.isfinite(independent):
            # Their own mean takes away one of them.
            error = max(error, float(sample(self.most_blocks).std()) / math.sqrt(independent - 1))
            freedom = min(freedom, independent - 1)
        if not between_places:
            return error, freedom
        return math.hypot(error, math.sqrt(between_places)), min(freedom, self.places - 1.0)


def error_of_blocks(limit: int, sample: Callable[[int], Floats]) -> tuple[float, float] | None:
    """Compute (standard error of the mean of blocks, degrees of freedom). `sample`: values of so
    many blocks."""
    if limit < LEAST_BLOCKS:
        return None
    sample = functools.cache(sample)
    count, rho = settle(limit, lambda count: correlation(sample(count)[:, None]))
    values = sample(count)
    if np.isnan(values).any():
        return None
    return float(values.std(ddof=1)) / math.sqrt(count) * inflation(float(rho[0])), count - 1.0
