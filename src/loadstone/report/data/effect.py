"""How large a difference is, and how sure: the ratio of two points of a measure, with its interval."""

from __future__ import annotations

import msgspec

from loadstone.analyse.compare.ratio import Side, bounds, contrast
from loadstone.report.data.frames import Measure, unsettled
from loadstone.report.data.points import Point

SUMS = {"tpot": 4.0, "itl": 4.0}
OTHER_SUMS = 2.0
"""Nobody can see in sums how requests depend on one another: their standard errors are taken as so many times those
of independent requests. So large they are in closed loops whose requests share their steps (docs/statistics.md)."""


class Effect(msgspec.Struct, frozen=True):
    """`ratio` of two values, and the interval in which it lies, sampling and repetition considered."""

    ratio: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        return self.low > 1 or self.high < 1

    @property
    def inverse(self) -> Effect:
        return Effect(1 / self.ratio, 1 / self.high, 1 / self.low)

    @property
    def times(self) -> str:
        """`1.35× (1.28–1.42)`"""
        return f"{self.ratio:.3g}× ({self.low:.3g}–{self.high:.3g})"

    @property
    def percent(self) -> str:
        """`26 % (21–31)`: by how much the value is above or below the other."""
        bounds = sorted(abs(100 * (each - 1)) for each in (self.low, self.high))
        return f"{_two(abs(100 * (self.ratio - 1)))} % ({_two(bounds[0])}–{_two(bounds[1])})"

    @property
    def words(self) -> str:
        """Percent near one, times far from it."""
        if 0.5 < self.ratio < 2:
            return self.percent
        large = self if self.ratio >= 1 else self.inverse
        return f"a factor of {large.ratio:.3g} ({large.low:.3g}–{large.high:.3g})"


def _two(percent: float) -> str:
    """Two digits, never 1.1e+02."""
    return f"{percent:.2g}" if percent < 99.5 else f"{percent:.0f}"


def effect(a: Point, b: Point, measure: Measure) -> Effect | None:
    """a over b, with what a comparison of the two would say of it (comparison.contrast); None where a value is
    missing or depends on how long the cell lasted, or its requests were too few generations to tell how sure it is.

    A comparison asks twice, whether sampling leaves 1 in the ratio and whether the performance model does: the
    interval here is what either leaves open.
    """
    if unsettled(a, measure) or unsettled(b, measure):
        return None
    of_a, of_b = measure.of(a), measure.of(b)
    if not of_a or not of_b or of_a <= 0 or of_b <= 0:
        return None
    known = contrast(_side(b, measure), _side(a, measure), measure.key)
    # Of two simulations that were asked the same, drawn by one seed, no chance is in what they differ by.
    draws = [point.basis.draw for point in (a, b) if point.basis is not None]
    simulated, alike = len(draws) == 2, len(draws) == 2 and draws[0] == draws[1]
    if known.model is not None and (alike or (simulated and known.sampling is None)):
        reaches = [known.model]
    elif known.sampling is None:
        return None
    else:
        reaches = [known.sampling, known.model or known.sampling]
    widest = max(each[0] for each in reaches), max(each[1] for each in reaches)
    return Effect(of_a / of_b, *bounds(of_a / of_b, widest))


def _side(point: Point, measure: Measure) -> Side:
    """Of gaps between tokens it is that of TPOT: both are steps of the engine.

    Of a run of sums, whose requests are not there: by their spread, made larger; in a closed loop a throughput varies
    as the mean E2E does (places over mean E2E).
    """
    bases = (point.basis,)
    stat = point.tpot if measure.pooled and point.tpot is not None else measure.stat(point)
    if stat is not None and stat.reach is not None:
        predicted = point.basis is not None
        return Side(stat.sampling if predicted else stat.reach, stat.model if predicted else None, bases)
    if not point.sums:
        return Side(None, None, bases)
    if stat is None or stat.which == "rate":
        stat = point.e2e if point.kind == "concurrency" else None
    each = SUMS.get(measure.key, OTHER_SUMS) * stat.by_spread if stat is not None else 0.0
    return Side((each, each), None, bases)
