"""How large a difference is, and how sure: the ratio of two points of a measure, with its interval."""

from __future__ import annotations

import math

import msgspec

from loadstone.report.charts.frames import Measure
from loadstone.report.points import Z95, Point, Stat

REPEATS = {"ttft": 0.088}
OTHER_REPEATS = 0.034
"""How far two runs of one configuration are apart: three quarters of published repeats differ by less, 8.8 % in TTFT
and 3.4 % in TPOT (docs/reports.md). It stands for what requests within one run cannot show."""


class Effect(msgspec.Struct, frozen=True):
    """`ratio` of two values, and the interval in which it lies, sampling and repetition considered."""

    ratio: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        return self.low > 1 or self.high < 1

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
        inverse = self if self.ratio >= 1 else Effect(1 / self.ratio, 1 / self.high, 1 / self.low)
        return f"a factor of {inverse.ratio:.3g} ({inverse.low:.3g}–{inverse.high:.3g})"


def _two(percent: float) -> str:
    """Two digits, never 1.1e+02."""
    return f"{percent:.2g}" if percent < 99.5 else f"{percent:.0f}"


def effect(a: Point, b: Point, measure: Measure) -> Effect | None:
    """a over b. The interval: √(sampling of a² + sampling of b² + repeats²), as a factor either way."""
    of_a, of_b = measure.of(a), measure.of(b)
    if not of_a or not of_b or of_a <= 0 or of_b <= 0:
        return None
    ratio = of_a / of_b
    repeats = REPEATS.get(measure.key, OTHER_REPEATS)
    reach = math.exp(math.sqrt(_sampling(a, measure) ** 2 + _sampling(b, measure) ** 2 + repeats**2))
    return Effect(ratio, ratio / reach, ratio * reach)


def _sampling(point: Point, measure: Measure) -> float:
    """Half the width of a value's 95 % interval, on a log scale; 0 where nothing is known of it.

    A throughput is one number a cell; in a closed loop it varies as the mean E2E does (places over mean E2E),
    whatever else may be predicted of it.
    """
    if measure.stat is not None:
        return _of(measure.stat(point))
    closed = point.kind == "concurrency" and point.e2e is not None
    if closed and point.source == "simulated":
        return _of(point.e2e)
    if point.output_low and point.output_high:
        return math.log(point.output_high / point.output_low) / 2
    return _of_mean(point.e2e) or _of(point.e2e) if closed else 0.0


def _of(stat: Stat | None) -> float:
    if stat is not None and stat.low is not None and stat.high is not None and stat.low > 0:
        return math.log(stat.high / stat.low) / 2
    return _of_mean(stat)


def _of_mean(stat: Stat | None) -> float:
    if stat is not None and stat.mean and stat.std is not None and stat.n:
        return Z95 * stat.std / math.sqrt(stat.n) / stat.mean
    return 0.0
