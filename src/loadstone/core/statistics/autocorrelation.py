"""What a closed loop settles into for a whole run, and another run otherwise.

Requests of equal length that are sent together end together, and their successors are sent together again: who shares
a step with whom stays as it was at the start. All blocks of such a run then look alike, however much the next run
differs. What the run had as a choice are its places, not its requests: that much is seen from how far the means of
places are apart, each over all of its generations.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from loadstone.core.statistics import blocks

Floats = NDArray[np.float64]

_LEAST_PLACES = 4
_Z99 = 2.326348
"""Places of a loop without a rhythm are taken for apart once in a hundred times."""


def variance(values: Floats, places: int) -> float:
    """What a rhythm adds to the variance of the mean of these values, of requests in the order of their sends.

    0 where there are few places, where values are missing, and where places differ by no more than chance (F test)
    or by less than anything counts (blocks.RESOLUTION).
    """
    means, apart = _places(values, places)
    if not apart:
        return 0.0
    # Neighbours are sent, and served, together.
    together = blocks.inflation(float(blocks.correlation(means[:, None])[0]))
    return apart / places * together**2


def spread(values: Floats, places: int) -> float:
    """The standard deviation between places, over the mean of all values; 0 where variance() is."""
    means, apart = _places(values, places)
    return math.sqrt(apart) / float(means.mean()) if apart else 0.0


def _places(values: Floats, places: int) -> tuple[Floats, float]:
    """The mean of each place, and the variance between places that is not that of their generations."""
    generations = len(values) // places if places else 0
    if places < _LEAST_PLACES or generations < blocks.LEAST_BLOCKS or np.isnan(values).any():
        return np.empty(0), 0.0
    table = values[: generations * places].reshape(generations, places)
    means = table.mean(axis=0)
    within = float(table.var(axis=0, ddof=1).mean()) / generations
    between = float(means.var(ddof=1))
    least = (blocks.RESOLUTION * float(means.mean())) ** 2
    if between <= max(least, within * _fisher(places - 1, places * (generations - 1))):
        return means, 0.0
    return means, between - within


def _fisher(above: int, below: int) -> float:
    """What F exceeds once in a hundred times, to 0.2 % from 3 and 20 degrees of freedom on (Paulson 1942).

    (scipy has it, at a fifth of a second of processor time for its import, in every run.)
    """
    a, b = 2 / (9 * below), 2 / (9 * above)
    root = _Z99 * math.sqrt(b * (1 - a) ** 2 + a * (1 - b) ** 2 - a * b * _Z99**2)
    return float((((1 - a) * (1 - b) + root) / ((1 - a) ** 2 - a * _Z99**2)) ** 3)
