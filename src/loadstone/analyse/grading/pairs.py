"""Computes statistics of right and wrong answers: of one run, of two asked the same, and what these
could show."""

import math
from bisect import bisect_left
from functools import cache

import numpy as np

from loadstone.core.statistics.distribution import Z95
from loadstone.core.vectors import Floats, Ints64

POWER = 0.8
LEVEL = 0.05
LEAST_DISCORDANT = 6
"""Pairs of which one alone is right, below which no split of them is beyond chance: 2 · 0.5^5 >
LEVEL."""
_STEP = 1e-12
"""Losses are found to this."""
_NEVER = 1e-300
"""Stands for a chance of 0, whose logarithm is infinite."""


def wilson(right: float, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson); all that can be where nothing was counted."""
    if count <= 0:
        return 0.0, 1.0
    share, square = right / count, Z95 * Z95 / count
    centre, half = (
        share + square / 2,
        Z95 * math.sqrt(share * (1 - share) / count + square / (4 * count)),
    )
    return max(0.0, (centre - half) / (1 + square)), min(1.0, (centre + half) / (1 + square))


def mcnemar(only_a: int, only_b: int) -> float:
    """Return the two-sided exact p of McNemar's test: are those right on one side alone as many on
    either side?"""
    rarer = np.arange(min(only_a, only_b) + 1)
    return min(1.0, 2 * float(_binomial(rarer, only_a + only_b, 0.5).sum()))


def difference(both: int, only_a: int, only_b: int, neither: int) -> tuple[float, float]:
    """Return the 95 % interval of B's accuracy less A's on the same questions (Newcombe 1998,
    method 10)."""
    count = both + only_a + only_b + neither
    right_a, right_b = both + only_a, both + only_b
    a, b = right_a / count, right_b / count
    (low_a, high_a), (low_b, high_b) = wilson(right_a, count), wilson(right_b, count)
    product = float(right_a) * (only_b + neither) * right_b * (only_a + neither)
    cross = float(both * neither - only_a * only_b)
    corrected = max(cross - count / 2, 0.0) if cross >= 0 else cross
    phi = corrected / math.sqrt(product) if product else 0.0

    def margin(of_b: float, of_a: float) -> float:
        return math.sqrt(max(0.0, of_b**2 - 2 * phi * of_b * of_a + of_a**2))

    return b - a - margin(b - low_b, high_a - a), b - a + margin(high_b - b, a - low_a)


@cache
def detectable_loss(count: int, noise: float) -> float | None:
    """Return the smallest loss that the test finds with a power of 80 % among `count` questions,
    where `noise` of the answers flip without any loss; None where none can be found.
    """
    losses = range(round((1 - noise) / _STEP) + 1)
    flipped = noise / 2
    steps = bisect_left(
        losses, POWER, key=lambda step: power(count, flipped + step * _STEP, flipped)
    )
    return steps * _STEP if steps < len(losses) else None


def power(count: int, lost: float, gained: float) -> float:
    """Compute how likely the test finds a difference, where each answer is lost and gained with
    these chances."""
    flipped = lost + gained
    discordant = np.arange(LEAST_DISCORDANT, count + 1)
    weight = _binomial(discordant, count, flipped)
    kept = weight > 1e-9
    if not kept.any():
        return 0.0
    discordant, weight = discordant[kept, None], weight[kept]
    rarer = np.arange(discordant.max() // 2 + 1)
    beyond_chance = 2 * np.cumsum(_binomial(rarer, discordant, 0.5), axis=1) <= LEVEL
    share = lost / flipped
    found = _binomial(rarer, discordant, share) + _binomial(rarer, discordant, 1 - share)
    return float(weight @ (found * beyond_chance).sum(axis=1))


def _binomial(chosen: Ints64, count: Ints64 | int, chance: float) -> Floats:
    """Compute how likely so many of `count` are chosen, each with this chance, for 0 ≤ chance ≤ 1.

    By logarithms of factorials, in numbers long enough that their sum costs no digit.
    """
    inside = np.minimum(chosen, count)
    logs = np.log(np.arange(1, np.max(count) + 1, dtype=np.longdouble))
    factorials = np.concatenate([[0], np.cumsum(logs)])
    ways = factorials[count] - factorials[inside] - factorials[count - inside]
    taken = inside * np.log(max(chance, _NEVER))
    left = (count - inside) * np.log(max(1 - chance, _NEVER))
    mass = np.exp((ways + taken + left).astype(np.float64))
    return np.where(chosen <= count, mass, 0.0)
