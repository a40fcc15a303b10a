"""Tests if A differs from B: permutation tests over independent units (blocks of requests, or whole
runs), for all metrics at once.

Under the null hypothesis the labels A and B mean nothing: units can be exchanged. Each relabelling
gives a t for every metric; the share of relabellings whose largest |t| over all metrics is at least
a metric's own is its p value for the family (Westfall and Young 1993, single step): the chance of
any false alarm in a comparison is held, as by Holm's, while metrics that go together (TTFT, TPOT
and E2E of the same requests) are not paid for separately.

Two or three runs a side have too few relabellings. There the direction of the difference among the
runs is drawn instead of their labels (rotation tests: Langsrud, Statistics and Computing 15
(2005)): exact for values of a normal law, whatever the correlation of the metrics, and for one
metric alone Student's t.
"""

import math
from dataclasses import dataclass

import numpy as np

from loadstone.core.vectors import Floats

RELABELLINGS = 3999
_TINY = 1e-9
"""A share of a metric: a smaller spread counts as none, as that of a simulator without noise."""


@dataclass(frozen=True)
class Units:
    """Holds one cell's units on both sides: a row of means for each unit, a column for each metric.

    correlation  ρ of neighbouring units, for each metric: it makes the observed t too large by
                 √((1 + ρ)/(1 − ρ)), so t is divided by that
    paired       the same row of `a` and `b` is of the same requests
    between_places  variance of the difference that units do not show, because the slots of a closed
                    loop differ (core.statistics.dependence), for each metric; None: there is none
    too_few      directions are drawn instead of labels
    """

    a: Floats
    b: Floats
    correlation: Floats
    paired: bool = False
    between_places: Floats | None = None
    too_few: bool = False

    @property
    def within(self) -> Floats:
        """Return the variance of the difference of means that units show, for each metric; above
        0."""
        sides = [self.b - self.a] if self.paired else [self.a, self.b]
        scale = np.max([np.abs(side).max(axis=0) for side in sides], axis=0)
        parts = sum(
            (side.var(axis=0, ddof=1) / len(side) for side in sides), np.zeros(self.a.shape[1])
        )
        return np.asarray(
            parts * (1 + self.correlation) / (1 - self.correlation) + (_TINY * scale) ** 2 + 1e-300
        )

    @property
    def wider(self) -> Floats:
        """Return, for each metric, the factor by which its standard error grows where the slots of
        a closed loop differ."""
        return np.asarray(
            np.sqrt(1 + (0.0 if self.between_places is None else self.between_places) / self.within)
        )


@dataclass(frozen=True)
class TestedMetrics:
    """Holds the result for each metric of a cell: t (B − A, over its standard error), its p value
    alone, and in the family of all metrics.

    least   the smallest |t| that is a difference in the family
    """

    t: Floats
    p: Floats
    p_family: Floats
    least: float


def compare_all(
    cells: list[Units], seed: int, relabellings: int = RELABELLINGS, level: float = 0.05
) -> list[TestedMetrics]:
    """Return the test of each cell, in order; the family is all metrics of all cells. `level`: the
    p value up to which a metric differs."""
    if not cells:
        return []
    rng = np.random.default_rng([seed, 1])
    observed, singles, largest = [], [], np.zeros(relabellings)
    directions: dict[tuple[int, int], Floats] = {}
    for units in cells:
        shape, rho = (len(units.a), len(units.b)), units.correlation
        if units.too_few:
            # The same directions for every load: a slow run is slow under each.
            if shape not in directions:
                directions[shape] = rng.normal(size=(relabellings, sum(shape)))
            labels = directions[shape]
        elif units.paired:
            labels = rng.choice([-1.0, 1.0], size=(relabellings, len(units.a)))
        else:
            order = rng.permuted(np.tile(np.arange(sum(shape)), (relabellings, 1)), axis=1)
            labels = (order < len(units.a)).astype(np.float64)
        drawn = np.abs(_t(units, labels))
        t = _t(units, _own_labels(units))[0] * np.sqrt((1 - rho) / (1 + rho)) / units.wider
        observed.append(t)
        # Sums differ in their last bits with the order of their terms.
        singles.append((1 + (drawn >= np.abs(t) * (1 - 1e-9)).sum(axis=0)) / (1 + relabellings))
        largest = np.maximum(largest, drawn.max(axis=1))
    least = float(np.quantile(largest, 1 - level))
    return [
        TestedMetrics(
            t,
            p,
            (1 + (largest[:, None] >= np.abs(t) * (1 - 1e-9)).sum(axis=0)) / (1 + relabellings),
            least,
        )
        for t, p in zip(observed, singles, strict=True)
    ]


def _own_labels(units: Units) -> Floats:
    """Return the labels that were observed, 1 × units: the direction from A to B; for pairs the
    signs, all 1; else 1 for a unit of A and 0 for one of B."""
    a, b = len(units.a), len(units.b)
    if units.too_few:
        return np.repeat([-1 / a, 1 / b], [a, b])[None, :]
    return np.ones((1, a)) if units.paired else np.repeat([1.0, 0.0], [a, b])[None, :]


def _t(units: Units, labels: Floats) -> Floats:
    """Return t for each labelling (labellings × units): labellings × metrics."""
    if units.paired and not units.too_few:
        return _paired_t(labels, units.b - units.a)
    rows = np.concatenate([units.a, units.b])
    return (_student_t if units.too_few else welch_t)(labels, rows)


def welch_t(labels: Floats, rows: Floats) -> Floats:
    """Return (x̄_B − x̄_A)/√(s²_A/n_A + s²_B/n_B), labellings × metrics, for each row of labels: 1
    where a unit is of A."""
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-300)
    # Without the mean, which would cost the squares their last digits.
    x = (rows - rows.mean(axis=0)) / scale
    n = labels.sum(axis=1, keepdims=True)
    m = len(rows) - n
    sum_a, square_a = labels @ x, labels @ x**2
    sum_b, square_b = x.sum(axis=0) - sum_a, (x**2).sum(axis=0) - square_a
    variance_a = np.maximum(square_a - sum_a**2 / n, 0.0) / np.maximum(n - 1, 1)
    variance_b = np.maximum(square_b - sum_b**2 / m, 0.0) / np.maximum(m - 1, 1)
    return np.asarray((sum_b / m - sum_a / n) / np.sqrt(variance_a / n + variance_b / m + _TINY**2))


def _paired_t(signs: Floats, differences: Floats) -> Floats:
    """Return the mean over its standard error of the signed differences, labellings × metrics."""
    scale = np.maximum(np.abs(differences).max(axis=0), 1e-300)
    x = differences / scale
    n = len(x)
    mean = signs @ x / n
    variance = np.maximum((x**2).sum(axis=0) / n - mean**2, 0.0) / max(n - 1, 1)
    return np.asarray(mean / np.sqrt(variance + _TINY**2))


def _student_t(directions: Floats, rows: Floats) -> Floats:
    """Return Student's t (one variance for both sides) if the difference of A and B lay in each of
    these directions in the space of units: directions × metrics."""
    x = rows - rows.mean(axis=0)
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-300)
    centred = directions - directions.mean(axis=1, keepdims=True)
    along = centred / np.linalg.norm(centred, axis=1, keepdims=True) @ x
    rest = np.maximum((x**2).sum(axis=0) - along**2, 0.0) / (len(rows) - 2)
    return np.asarray(along / np.sqrt(rest + (_TINY * scale) ** 2 + 1e-300))


def pooled_variance(a: Floats, b: Floats) -> tuple[float, float, float]:
    """Return the same as welch(), with one variance for both sides: for values that are too few to
    know the variance of each."""
    freedom = len(a) + len(b) - 2
    variance = float((np.var(a) * len(a) + np.var(b) * len(b)) / freedom)
    return (
        float(b.mean() - a.mean()),
        math.sqrt(variance * (1 / len(a) + 1 / len(b))),
        float(freedom),
    )


def welch(a: Floats, b: Floats) -> tuple[float, float, float]:
    """Return (difference of means b − a, its standard error, degrees of freedom) of few independent
    values (Welch 1947)."""
    parts = [float(np.var(values, ddof=1)) / len(values) for values in (a, b)]
    error = math.sqrt(sum(parts))
    squares = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (a, b), strict=True))
    freedom = sum(parts) ** 2 / squares if squares > 0 else float(len(a) + len(b) - 2)
    return float(b.mean() - a.mean()), error, freedom
