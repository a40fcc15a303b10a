"""Computes chances and quantiles of few distributions, to twelve digits or more, by numpy alone."""

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

_EXACT = 1e-14
"""Steps end where they change no more than this share: rounding alone is below it."""
_MAX_STEPS = 100


def student_chance(t: float, freedom: float) -> float:
    """Return the chance that Student's t is below `t`; `freedom`: its degrees, > 0."""
    return 0.5 + _peak(freedom) * _area(math.atan(t / math.sqrt(freedom)), freedom)


def student_quantile(chance: float, freedom: float) -> float:
    """Return what Student's t is below with this chance, ½ or more; infinity where that is 1."""
    if chance >= 1:
        return math.inf
    area, angle = (chance - 0.5) / _peak(freedom), 0.0
    for _ in range(_MAX_STEPS):  # of Newton, from below: the area's slope only falls
        rest = area - _area(angle, freedom)
        if rest <= _EXACT * area:
            break
        angle += rest / math.cos(angle) ** (freedom - 1)
    return math.sqrt(freedom) * math.tan(angle)


def maxwell_quantile(chance: float) -> float:
    """Return the y > 0 with erf(y) − 2y·exp(−y²)/√π = chance: the root of half the sum of squares
    of three independent normal numbers is below it with this chance."""
    y = 1.0  # where the slope is greatest
    for _ in range(_MAX_STEPS):
        slope = 4 * y * y * math.exp(-y * y) / math.sqrt(math.pi)
        step = (chance - math.erf(y) + slope / (2 * y)) / slope
        y += step
        if abs(step) <= _EXACT * y:
            break
    return y


def _peak(freedom: float) -> float:
    """Return the density of Student's t at 0, times the root of its degrees of freedom."""
    half = freedom / 2
    if half < 170:  # beyond it gamma() overflows, and this series is exact
        ratio = math.gamma(half + 0.5) / math.gamma(half)
    else:
        terms = (1, -1 / 8, 1 / 128, 5 / 1024, -21 / 32768)
        ratio = math.sqrt(half) * sum(term / half**power for power, term in enumerate(terms))
    return ratio / math.sqrt(math.pi)


def _area(angle: float, freedom: float) -> float:
    """Integrate cosᵛ⁻¹ from 0 to `angle`: the density of Student's t, where t = √v·tan(angle)."""
    places, weights = _nodes()
    return angle * float(weights @ np.cos(angle * places) ** (freedom - 1))


@cache
def _nodes() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the places and weights of Gauss and Legendre's integration from 0 to 1."""
    places, weights = np.polynomial.legendre.leggauss(64)
    return (places + 1) / 2, weights / 2
