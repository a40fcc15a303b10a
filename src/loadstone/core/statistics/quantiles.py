"""Computes chances and quantiles of few distributions by numpy alone, to twelve digits; to eleven
above 500 degrees of freedom."""

import math

import numpy as np

_EXACT = 1e-14
"""Newton's steps end where no more than this share is missing: rounding alone is below it."""
_PLACES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
"""Of Gauss and Legendre's integration from −1 to 1."""
_FAR = 1e-11
"""Chances closer to 1 cannot be told from it."""


def student_chance(t: float, freedom: float) -> float:
    """Return the chance that Student's t is below `t`; `freedom`: its degrees, > 0."""
    return 0.5 + _peak(freedom) * _area(math.atan(t / math.sqrt(freedom)), freedom)


def student_quantile(chance: float, freedom: float) -> float:
    """Return what Student's t is below with this chance, ½ or more; infinity where that is 1."""
    if chance > 1 - _FAR:
        return math.inf
    angle = 0.0
    area = rest = (chance - 0.5) / _peak(freedom)
    while rest > _EXACT * area:  # from below, as the area's slope only falls
        angle += rest / math.cos(angle) ** (freedom - 1)
        rest = area - _area(angle, freedom)
    return math.sqrt(freedom) * math.tan(angle)


def maxwell_quantile(chance: float) -> float:
    """Return the y > 0 with erf(y) − 2y·exp(−y²)/√π = chance: the root of half the sum of squares
    of three independent normal numbers is below it with this chance."""
    y = 1.0  # where the slope is greatest
    for _ in range(20):  # steps of Newton, of which a chance of one in a thousand needs twelve
        slope = 4 * y * y * math.exp(-y * y) / math.sqrt(math.pi)
        y += (chance - math.erf(y)) / slope + 0.5 / y
    return y


def _peak(freedom: float) -> float:
    """Return the density of Student's t at 0, times the root of its degrees of freedom."""
    ratio = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    return math.exp(ratio) / math.sqrt(math.pi)


def _area(angle: float, freedom: float) -> float:
    """Integrate cosᵛ⁻¹ from 0 to `angle`: the density of Student's t, where t = √v·tan(angle)."""
    half = angle / 2
    return half * float(_WEIGHTS @ np.cos(half + half * _PLACES) ** (freedom - 1))
