"""How the requests of a cell went, and from that how far their means, shares and throughputs are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadstone.core.statistics import autocorrelation as rhythm
from loadstone.core.statistics import blocks
from loadstone.core.statistics.blocks import LEAST_BLOCKS

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Flow:
    """How the requests of a cell went.

    order   by their sends
    most    blocks that they make, 0 where too few
    places  of a closed loop that held them; 0 of any other load
    pace    what its rhythm adds to the variance of the mean E2E, as a share of its square: so a throughput varies
    """

    order: NDArray[np.int64]
    most: int
    places: int = 0
    pace: float = 0.0

    @classmethod
    def of(cls, sent_s: Floats, end_s: Floats, span_s: float | None = None, places: int = 0) -> Flow:
        """Of requests that ended well, by when each was sent and had its last output.

        `span_s`: how long they took together, where their times have no common clock.
        """
        order = np.argsort(sent_s, kind="stable")
        if not len(order):
            return cls(order, 0)
        took = end_s - sent_s
        if np.isnan(took).all():
            return cls(order, 0)
        span_s = span_s if span_s is not None else float(np.nanmax(end_s) - np.nanmin(sent_s))
        under_way = float(np.nansum(took)) / span_s if span_s > 0 else math.inf
        pace = rhythm.variance(took[order], places)
        return cls(order, blocks.count(len(order), under_way), places, pace and pace / float(took.mean()) ** 2)

    def rhythm(self, values: NDArray[Any]) -> float:
        """What a rhythm adds to the variance of the mean of values of these requests."""
        return rhythm.variance(values[self.order], self.places)


def error_of_mean(values: NDArray[Any], flow: Flow, rhythm: float = 0.0) -> tuple[float, float] | None:
    """(standard error of the mean, degrees of freedom) of values of requests, NaN where missing; None where they are
    too few generations, or a block of them has no value. `rhythm`: what it adds to the variance."""
    in_order = values[flow.order]
    found = error_of_blocks(flow.most, lambda count: blocks.means(in_order, count))
    return found and _with_rhythm(found, rhythm, flow)


def error_of_blocks(most: int, sample: Callable[[int], Floats]) -> tuple[float, float] | None:
    """(standard error of the mean of blocks, degrees of freedom). `sample`: values of so many blocks."""
    if most < LEAST_BLOCKS:
        return None
    made: dict[int, Floats] = {}

    def correlations(count: int) -> Floats:
        made[count] = sample(count)
        return blocks.correlation(made[count][:, None])

    count, _, rho = blocks.settle(most, correlations)
    found = made[count]
    if np.isnan(found).any():
        return None
    return float(found.std(ddof=1)) / math.sqrt(count) * blocks.inflation(float(rho[0])), count - 1.0


def _with_rhythm(found: tuple[float, float], variance: float, flow: Flow) -> tuple[float, float]:
    """With what a rhythm adds, of which only places tell."""
    if not variance:
        return found
    error, freedom = found
    return math.hypot(error, math.sqrt(variance)), min(freedom, flow.places - 1.0)


def rate_bounds(curve: Floats, window_s: float, flow: Flow) -> list[float | None]:
    """95 % bounds of a throughput, from what came in each of the evenly long stretches of its window.

    A side is None where there are too few generations. In a closed loop of places that are always taken a throughput
    varies as the mean E2E does; in an open one below saturation as the arrivals do.
    """
    found = error_of_blocks(flow.most, lambda count: blocks.rates(curve, window_s, count))
    if found is None:
        return [None, None]
    rate = float(curve.sum()) / window_s
    error, freedom = _with_rhythm(found, flow.pace * rate**2, flow)
    reach = blocks.student(freedom) * error
    return [max(0.0, rate - reach), rate + reach]
