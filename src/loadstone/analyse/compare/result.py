"""Holds the result of a comparison, of a load on both sides and of a metric: as it is computed, and
as it is printed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from loadstone.analyse.compare.metric import Metric
from loadstone.analyse.compare.permutation import Units
from loadstone.analyse.compare.price import Prices
from loadstone.analyse.grading.paired import ComparedAnswers
from loadstone.core.document import Document
from loadstone.core.groups import by_key
from loadstone.core.plan import Load
from loadstone.core.record import Source
from loadstone.core.statistics.dependence import RESOLUTION
from loadstone.core.verdict import Finding

Conclusion = Literal[
    "better",
    "runs_differ",
    "same",
    "within_model",
    "may_be_chance",
    "not_shown",
    "too_little",
    "not_all_measured",
]
UnitKind = Literal["runs", "blocks"]

LEVEL = 0.05
"""The chance of any false alarm in a comparison."""
LEVEL_OF_FEW = 0.01
"""The largest p value of two or three runs a side for that: the test takes runs as normal, and of
40 pairs of real ones that did not differ it found a difference in 7 at 5 %, in 2 at 1 %
(docs/statistics.md).
"""


@dataclass
class ComparedMetric:
    """One metric of one cell.

    low, high       95 %, what the data leaves open; `log_error`: standard error of log(B/A)
    model           80 %, what the performance model leaves open besides, where a side is simulated
                    and its error does not cancel
    would_show      the least ratio that would have shown
    single_run      a side is one measured run, so that what differs from run to run is not in the
                    data
    failing         the sides, of `ab`, whose cell has an error among its findings: what was
                    measured is not all
    is_complete     every run has it, on both sides
    spread          that, a standard deviation on a log scale, where it is
    repeats_needed  runs a side that would show a difference of this size
    """

    metric: Metric
    a: float | None
    b: float | None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    log_error: float | None = None
    p: float | None = None
    p_family: float | None = None
    level: float = LEVEL
    would_show: float | None = None
    model: tuple[float, float] | None = None
    single_run: bool = False
    failing: str = ""
    is_complete: bool = False
    spread: float | None = None
    repeats_needed: int | None = None

    @property
    def change(self) -> float | None:
        """The ratio B/A; of a share 1 + B − A."""
        if self.metric.is_share and self.a is not None and self.b is not None:
            return 1 + self.b - self.a
        return self.ratio

    @property
    def significant(self) -> bool:
        """True if the test finds a difference, of any size."""
        return self.p_family is not None and self.p_family <= self.level

    @property
    def large(self) -> bool:
        """True if the estimate is large enough to matter."""
        change = self.change
        return change is not None and (
            change == 0 or abs(math.log(change)) > math.log1p(RESOLUTION)
        )

    @property
    def confirmed(self) -> bool:
        """True if test and interval agree: a metric without an interval has its test alone."""
        return self.significant and self.large and not _contains_one(self.interval)

    @property
    def differs(self) -> bool:
        """True if the setups differ, and not these two runs alone."""
        return self.confirmed and not self.single_run

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def conclusion(self) -> Conclusion | None:
        """The conclusion; None where nothing was tested."""
        if self.p_family is None:
            return None
        if self.confirmed:
            if _contains_one(self.model) or self.single_run:
                return "within_model" if _contains_one(self.model) else "runs_differ"
            return "not_all_measured" if self._ahead in self.failing else "better"
        interval = self.interval
        narrow = interval is not None and max(abs(math.log(end)) for end in interval) <= math.log1p(
            RESOLUTION
        )
        if narrow or (self.significant and not self.large):
            return "same"
        if self.large and (
            self.significant or (interval is not None and not _contains_one(interval))
        ):
            return "may_be_chance"
        return "not_shown" if self.would_show is not None else "too_little"

    @property
    def better(self) -> Literal["a", "b"] | None:
        return self._ahead if self.conclusion == "better" else None

    @property
    def _ahead(self) -> Literal["a", "b"]:
        """The side that has the better number."""
        return "b" if ((self.change or 1) > 1) == self.metric.more_is_better else "a"

    @property
    def name(self) -> str:
        return self.metric.name

    @property
    def model_low(self) -> float | None:
        return self.model[0] if self.model else None

    @property
    def model_high(self) -> float | None:
        return self.model[1] if self.model else None

    @property
    def printed(self) -> MetricRow:
        return msgspec.convert(self, MetricRow, from_attributes=True)


def _contains_one(interval: tuple[float, float] | None) -> bool:
    """Tell if a ratio of 1 lies within: no difference."""
    return interval is not None and interval[0] <= 1 <= interval[1]


@dataclass
class ComparedCell:
    """One load on both sides, or a class of traffic of it. `unit`: runs, blocks, or None where
    nothing can be tested, and `why`. `tested` are the rows that `units` has columns for. `runs`:
    how many have the load on either side. `one_after_another`: all of one side were measured before
    all of the other. `unseen`: what the runs may not show of how they differ, in the spread of
    published repeats.
    """

    load: Load
    rows: list[ComparedMetric]
    unit: UnitKind | None = None
    why: str = ""
    counts: tuple[int, int] | None = None
    runs: tuple[int, int] = (1, 1)
    paired: bool = False
    one_after_another: bool = False
    unseen: float = 0.0
    units: Units | None = None
    answers: ComparedAnswers | str | None = None
    tested: list[ComparedMetric] = field(default_factory=list)
    traffic_class: str = ""
    classes: list[ComparedCell] = field(default_factory=list)

    @property
    def parts(self) -> list[ComparedCell]:
        """The load, and its classes."""
        return [self, *self.classes]

    @property
    def label(self) -> str:
        return name_class(self.load.label, self.traffic_class)

    @property
    def printed(self) -> CellResult:
        rows = [row.printed for row in self.rows]
        on_a, on_b = self.counts or (None, None)
        answers = self.answers if isinstance(self.answers, ComparedAnswers) else UNSET
        units = UnitCounts(self.unit, on_a, on_b, self.paired)
        classes = [part.printed for part in self.classes]
        name = self.traffic_class or UNSET
        return CellResult(self.load, units, self.why or None, rows, answers, name, classes or UNSET)


# --- as `loadstone compare --json` prints it: keys are only ever added ----------------------------


class MetricRow(msgspec.Struct, kw_only=True, frozen=True):
    """One metric of one cell, as in ComparedMetric; seconds, per second, dollars or joules."""

    name: str = msgspec.field(name="metric")
    a: float | None
    b: float | None
    ratio: float | None
    low: float | None
    high: float | None
    p: float | None
    p_family: float | None
    would_show: float | None
    model_low: float | None
    model_high: float | None
    differs: bool
    better: Literal["a", "b"] | None
    conclusion: Conclusion | None
    repeats_needed: int | None


class UnitCounts(msgspec.Struct, frozen=True):
    """Counts the units that the tests permute on either side; kind None: nothing was tested."""

    kind: UnitKind | None
    a: int | None
    b: int | None
    paired: bool


class CellResult(msgspec.Struct, frozen=True):
    """One load on both sides; `by_class`: the classes of traffic that both have, each with its
    `name`."""

    load: Load
    units: UnitCounts
    why_not_tested: str | None
    metrics: list[MetricRow]
    answers: ComparedAnswers | UnsetType = UNSET
    name: str | UnsetType = UNSET
    by_class: list[CellResult] | UnsetType = UNSET

    @property
    def parts(self) -> list[CellResult]:
        """The load, and its classes."""
        return [self, *(self.by_class or ())]


class Difference(msgspec.Struct, frozen=True):
    """A fact that differs between the sides, as runs tell it; several values of a side in a
    list."""

    what: str
    a: object
    b: object


class SideResult(msgspec.Struct, frozen=True):
    """The run folders of a side, and their common name."""

    runs: list[str]
    label: str
    source: Source


class Unmatched(msgspec.Struct, frozen=True):
    """The loads that one side alone has, and the classes of traffic."""

    a: list[Load]
    b: list[Load]
    a_classes: list[str] | UnsetType = UNSET
    b_classes: list[str] | UnsetType = UNSET


class PricesResult(msgspec.Struct, frozen=True):
    """The prices that were given, and what each run of either side costs an hour; None where that
    is not known."""

    dollars_per_gpu_hour: Prices
    a: list[float | None]
    b: list[float | None]


class BoundResult(msgspec.Struct, kw_only=True, frozen=True):
    """Tells if a bound of --fail-on is met, and at which loads; `missing`: no load has the metric
    on both sides.

    untested        of these, where point values alone say so
    not_shown       exceeded by what may be chance
    one_run         exceeded by one measured run a side, which decides nothing
    failing         loads at which B's cell has an error among its findings, and nobody allowed it:
                    not passed
    repeats_needed  runs a side that would show what is not shown yet
    """

    bound: str
    met: bool
    at: list[str]
    untested: list[str]
    not_shown: list[str]
    one_run: list[str]
    repeats_needed: int | None
    missing: bool
    failing: list[str] | UnsetType = UNSET

    @property
    def fails(self) -> bool:
        """True if B does not pass: a bound that nothing can be held against must not let a change
        through."""
        return self.met or self.missing or bool(self.failing)


class Comparison(Document, msgspec.Struct, kw_only=True, frozen=True):
    """A against B; `level`: the chance of any false alarm; `resolution`: a smaller difference
    counts as none.

    flags_known  false: of some engine it is not known how it was started, so that `setup` does not
                 tell of it
    """

    schema: int = 1
    a: SideResult
    b: SideResult
    setup: list[Difference]
    flags_known: bool | UnsetType = UNSET
    cells: list[CellResult]
    unmatched: Unmatched
    level: float = LEVEL
    resolution: float = RESOLUTION
    prices: PricesResult | UnsetType = UNSET
    findings: list[Finding]
    fail_on: list[BoundResult] | UnsetType = UNSET

    @property
    def parts(self) -> list[CellResult]:
        """All loads, each before its classes."""
        return [part for cell in self.cells for part in cell.parts]


def name_class(load: str, traffic_class: str | UnsetType) -> str:
    """Write `rate 4`, or of a class `rate 4 · chat`."""
    return f"{load} · {traffic_class}" if traffic_class else load


def name_loads(loads: Sequence[Load]) -> str:
    """Write loads as `concurrency 2, 8, 32; rate 4`, or `none`."""
    values = by_key((load.kind, f"{load.value:g}") for load in loads)
    return "; ".join(f"{kind} {', '.join(texts)}" for kind, texts in values.items()) or "none"
