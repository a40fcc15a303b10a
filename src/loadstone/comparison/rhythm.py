"""What a closed loop settles into for a whole run, and another run otherwise.

Requests of equal length that are sent together end together, and their successors are sent together again: who shares
a step with whom stays as it was at the start. All blocks of such a run then look alike, however much the next run
differs. What the run had as a choice are its places, not its requests: that much is seen from how far the means of
places are apart, each over all of its generations.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadstone.statistics import blocks
from loadstone.statistics.blocks import inflation

Floats = NDArray[np.float64]

_LEAST_PLACES = 4
_LEVEL = 0.01
"""Places of a loop without a rhythm are taken for apart so seldom."""


def variance(values: Floats, places: int) -> float:
    """What a rhythm adds to the variance of the mean of these values, of requests in the order of their sends.

    0 where there are few places, where values are missing, and where places differ by no more than chance (F test).
    """
    from scipy.special import fdtri

    generations = len(values) // places if places else 0
    if places < _LEAST_PLACES or generations < blocks.LEAST_BLOCKS or np.isnan(values).any():
        return 0.0
    table = values[: generations * places].reshape(generations, places)
    means = table.mean(axis=0)
    within = float(table.var(axis=0, ddof=1).mean()) / generations
    between = float(means.var(ddof=1))
    if between <= within * float(fdtri(places - 1, places * (generations - 1), 1 - _LEVEL)):
        return 0.0
    # Neighbours are sent, and served, together.
    together = inflation(float(blocks.correlation(means[:, None])[0]))
    return (between - within) / places * together**2
