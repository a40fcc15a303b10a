"""How far is B from A? The ratio of a statistic, B over A, with an interval by a bootstrap over blocks.

Blocks are drawn with replacement and the statistic taken of what is in them. Few blocks underestimate the spread of
their mean by √((k − 1)/k), and what is still correlated between neighbours by √((1 + ρ)/(1 − ρ)); the bootstrap's
standard error of the log ratio is made larger by both, and the interval is log ratio ± t·error with the t of as many
degrees of freedom as there are blocks less one each.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DRAWS = 1000
BINS = 2048
"""Distinct values kept of a sample, evenly by rank: quantiles move by a 2,048th of rank at most."""
LEAST_BEYOND = 5
"""Requests beyond a quantile, on each side, from which its spread can be drawn again: for a p99, 500 requests."""


def log_errors(
    a: tuple[Floats, NDArray[np.int64]],
    b: tuple[Floats, NDArray[np.int64]],
    blocks: tuple[int, int],
    quantiles: list[float],
    *,
    paired: bool,
    seed: int,
) -> list[float | None]:
    """Bootstrap standard errors of log(quantile of B/quantile of A), for each of `quantiles` (a mean is NaN).

    `a`, `b`: values and their blocks. None where too few values lie beyond a quantile.
    """
    rng = np.random.default_rng([seed, 2])
    counts = [_drawn(rng, k) for k in blocks]
    if paired:
        counts[1] = counts[0]
    logs = [
        _log_quantiles(values, label, count, quantiles) for (values, label), count in zip((a, b), counts, strict=True)
    ]
    least = min(len(a[0]), len(b[0]))
    found: list[float | None] = []
    for index, q in enumerate(quantiles):
        spread = (logs[1] - logs[0])[:, index]
        spread = spread[np.isfinite(spread)]
        few = not math.isnan(q) and least * min(q, 1 - q) < LEAST_BEYOND
        found.append(None if few or len(spread) < DRAWS // 2 else float(spread.std()))
    return found


def _drawn(rng: np.random.Generator, blocks: int) -> Floats:
    """How often each block is drawn; draws × blocks."""
    return rng.multinomial(blocks, np.full(blocks, 1 / blocks), size=DRAWS).astype(np.float64)


def _log_quantiles(values: Floats, label: NDArray[np.int64], counts: Floats, quantiles: list[float]) -> Floats:
    """log of each quantile (NaN: of the mean) of the values of drawn blocks; draws × quantiles."""
    kept = ~np.isnan(values)
    values, label = values[kept], label[kept]
    order = np.argsort(values, kind="stable")
    values, label = values[order], label[order]
    bins = min(len(values), BINS)
    edges = np.arange(len(values)) * bins // max(len(values), 1)
    held = np.zeros((counts.shape[1], bins))
    np.add.at(held, (label, edges), 1.0)
    sizes = np.maximum(held.sum(axis=0), 1.0)
    centre = np.bincount(edges, values, minlength=bins) / sizes
    reached = np.cumsum(counts @ held, axis=1)
    total = reached[:, -1]
    found = np.empty((len(counts), len(quantiles)))
    with np.errstate(divide="ignore", invalid="ignore"):
        for index, q in enumerate(quantiles):
            if math.isnan(q):
                found[:, index] = np.log(counts @ (held @ centre) / total)
                continue
            at = np.argmax(reached >= (q * total)[:, None] - 1e-9, axis=1)
            found[:, index] = np.log(centre[at])
    return found


def bounds(ratio: float, log_error: float, freedom: float) -> tuple[float, float]:
    """ratio·exp(± t·error), 95 %."""
    reach = student(freedom) * log_error
    return ratio * math.exp(-reach), ratio * math.exp(reach)


def student(freedom: float) -> float:
    """The two-sided t, 95 %."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))
