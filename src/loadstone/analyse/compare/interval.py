"""How far is B from A? The ratio of two values, B over A, with an interval made of the values' own.

The intervals of the values are those of each run's summary (statistics.blocks), so that a report and a comparison say
the same of a run. On a log scale, with a and b the values and [l, u] their intervals:

    lower end = b − a − √((b − l_b)² + (u_a − a)² − 2·c·(b − l_b)(u_a − a))

and the upper end likewise; c is how far both go together, 0 but for requests compared in pairs (the method of
variance estimates recovery: Zou and Donner, Statistics in Medicine 27 (2008)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Reach = tuple[float, float]
"""How far an interval goes below a value and above it, on a log scale."""


def reach(value: float, low: float | None, high: float | None) -> Reach | None:
    """None where an end is not known, or is nothing that has a logarithm."""
    if low is None or high is None or not 0 < low <= value <= high < math.inf:
        return None
    return math.log(value / low), math.log(high / value)


def pooled(reaches: Sequence[Reach]) -> Reach:
    """Of the geometric mean of independent values."""
    below, above = (math.hypot(*ends) / len(reaches) for ends in zip(*reaches, strict=True))
    return below, above


def ratio(a: Reach, b: Reach, together: float = 0.0, more: float = 0.0) -> Reach:
    """Of b over a. `together`: c; `more`: what else makes them differ, added as if independent."""
    return _joined(b[0], a[1], together, more), _joined(b[1], a[0], together, more)


def _joined(x: float, y: float, together: float, more: float) -> float:
    return math.sqrt(max(0.0, x * x + y * y - 2 * together * x * y) + more * more)


def bounds(value: float, of: Reach) -> tuple[float, float]:
    """The interval again."""
    return value * math.exp(-of[0]), value * math.exp(of[1])


def student(freedom: float) -> float:
    """The two-sided t, 95 %, for any degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))
