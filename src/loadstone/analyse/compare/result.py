"""The result for one load on both sides: a row for each metric, the units that tell them apart, conclusions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from loadstone.analyse.compare.metric import Metric
from loadstone.analyse.compare.permutation import Units
from loadstone.core.plan import Load
from loadstone.core.statistics.dependence import RESOLUTION

Conclusion = Literal["better", "runs_differ", "same", "within_model", "may_be_chance", "not_shown", "too_little"]

LEVEL = 0.05
"""The chance of any false alarm in a comparison."""
LEVEL_OF_FEW = 0.01
"""What the p value of two or three runs a side must not exceed for that: the test takes runs as normal, and of 40
pairs of real ones that did not differ it found a difference in 7 at 5 %, in 2 at 1 % (docs/statistics.md)."""


@dataclass
class Row:
    """One metric of one cell. `log_error`: standard error of log(B/A); `least`: the ratio that would have shown.

    `low`, `high`: 95 %, what the data leaves open; `model`: 80 %, what the performance model leaves open besides,
    where a side is simulated and its error does not cancel. `alone`: a side is one measured run, so that what differs
    from run to run is not in the data; `spread`: that, a standard deviation on a log scale, where it is; `repeats`:
    how many runs a side would show a difference of this size.
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
    least: float | None = None
    model: tuple[float, float] | None = None
    alone: bool = False
    spread: float | None = None
    repeats: int | None = None

    @property
    def shown(self) -> bool:
        """Whether the test finds a difference, of any size."""
        return self.p_family is not None and self.p_family <= self.level

    @property
    def large(self) -> bool:
        """Whether the estimate is one that matters."""
        return self.ratio is not None and abs(math.log(self.ratio)) > math.log1p(RESOLUTION)

    @property
    def apart(self) -> bool:
        """Test and interval agree: a metric without an interval has its test alone."""
        return self.shown and self.large and not _holds_one(self.interval)

    @property
    def differs(self) -> bool:
        """Whether the setups do, and not these two runs alone."""
        return self.apart and not self.alone

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def conclusion(self) -> Conclusion | None:
        """None where nothing was tested."""
        if self.p_family is None:
            return None
        if self.apart:
            return "within_model" if _holds_one(self.model) else "runs_differ" if self.alone else "better"
        known = self.interval
        narrow = known is not None and max(abs(math.log(end)) for end in known) <= math.log1p(RESOLUTION)
        if narrow or (self.shown and not self.large):
            return "same"
        if self.large and (self.shown or (known is not None and not _holds_one(known))):
            return "may_be_chance"
        return "not_shown" if self.least is not None else "too_little"

    def to_json(self) -> dict[str, Any]:
        conclusion, better = self.conclusion, None
        if conclusion == "better" and self.ratio is not None:
            better = "b" if (self.ratio > 1) == self.metric.more_is_better else "a"
        model_low, model_high = self.model or (None, None)
        return {
            "metric": self.metric.name, "a": self.a, "b": self.b, "ratio": self.ratio, "low": self.low,
            "high": self.high, "p": self.p, "p_family": self.p_family, "would_show": self.least,
            "model_low": model_low, "model_high": model_high, "differs": self.differs, "better": better,
            "conclusion": conclusion, "repeats_needed": self.repeats,
        }  # fmt: skip


def load_json(load: Load) -> dict[str, Any]:
    """A load as summaries have it."""
    return {**msgspec.to_builtins(load), "profile": [list(piece) for piece in load.profile]}


def _holds_one(interval: tuple[float, float] | None) -> bool:
    """Whether a ratio of 1 lies within: no difference."""
    return interval is not None and interval[0] <= 1 <= interval[1]


@dataclass
class Cell:
    """`unit`: runs, blocks, or None where nothing can be tested, and `why`. `tested` are the rows that `units` has
    columns for. `runs`: how many have the load on either side.
    """

    load: Load
    rows: list[Row]
    unit: str | None = None
    why: str = ""
    counts: tuple[int, int] | None = None
    runs: tuple[int, int] = (1, 1)
    paired: bool = False
    units: Units | None = None
    tested: list[Row] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        units: dict[str, Any] = {"kind": self.unit, "a": None, "b": None, "paired": self.paired}
        if self.counts is not None:
            units |= {"a": self.counts[0], "b": self.counts[1]}
        return {
            "load": load_json(self.load),
            "units": units,
            "why_not_tested": self.why or None,
            "metrics": [row.to_json() for row in self.rows],
        }
