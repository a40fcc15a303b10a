"""Computes statistics of right and wrong answers: of one run, of two asked the same, and what these
could show."""

import math
from functools import cache

from loadstone.core.statistics.distribution import Z95

POWER = 0.8
LEVEL = 0.05
LEAST_DISCORDANT = 6
"""Pairs of which one alone is right, below which no split of them is beyond chance: 2 · 0.5^5 >
LEVEL."""


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
    from scipy.stats import binom

    if only_a + only_b == 0:
        return 1.0
    return min(1.0, 2 * float(binom.cdf(min(only_a, only_b), only_a + only_b, 0.5)))


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
    from scipy.optimize import brentq

    def missing(loss: float) -> float:
        return power(count, noise / 2 + loss, noise / 2) - POWER

    return float(brentq(missing, 0.0, 1 - noise, xtol=1e-6)) if missing(1 - noise) > 0 else None


def power(count: int, lost: float, gained: float) -> float:
    """Compute how likely the test finds a difference, where each answer is lost and gained with
    these chances."""
    import numpy as np
    from scipy.stats import binom

    if lost + gained <= 0:
        return 0.0
    discordant = np.arange(LEAST_DISCORDANT, count + 1)
    weight = binom.pmf(discordant, count, lost + gained)
    kept = weight > 1e-9
    discordant, weight = discordant[kept], weight[kept]
    # The most of the rarer kind at which the test is beyond chance.
    limit = binom.ppf(LEVEL / 2, discordant, 0.5)
    limit = np.where(2 * binom.cdf(limit, discordant, 0.5) > LEVEL, limit - 1, limit)
    chance = lost / (lost + gained)
    found = binom.cdf(limit, discordant, chance) + binom.sf(
        discordant - limit - 1, discordant, chance
    )
    return float((weight * found).sum())
