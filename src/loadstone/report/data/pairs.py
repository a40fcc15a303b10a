"""Cells that differ in one thing alone, in a fact, in how many GPUs there are, in the GPU; and how
large a difference is, and how sure: the ratio of two points of a measure, with its interval.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from loadstone.analyse.compare.ratio import Side, bounds, contrast
from loadstone.core.groups import by_key
from loadstone.report.data.frames import E2E, OUTPUT, TTFT, Measure, is_unsettled, pace
from loadstone.report.data.points import FACTS, CellPoint, alike
from loadstone.report.data.statistic import REPEATS
from loadstone.report.data.wording import join

NEAR = 0.1
"""Lengths that differ by less are the same: a shared prefix is seldom cut to the token."""
UNSETTLED = (
    "TTFT and E2E of cells whose queue grew are left out: they grow with the length of the cell"
)

_SPLIT = re.compile(r"(tp|pp|dp|ep|fleet of )(\d+)")

Fact = Literal["prefix", "parallel", "context", "settings"]


def switches(points: Sequence[CellPoint], fact: Fact) -> list[list[CellPoint]]:
    """Return all sets of points that differ in `fact` alone, each of its values once, by their
    values.

    Of prefixes, input lengths that nearly are the same are taken to be.
    """
    groups = by_key((alike(point, fact, "near_input", "near_output"), point) for point in points)
    result = []
    for group in groups.values():
        for base in _group_by_length(group, fact != "prefix"):
            chosen = {FACTS[fact](point): point for point in reversed(base)}
            if len(chosen) > 1:
                result.append([chosen[value] for value in sorted(chosen)])
    return result


def more_gpus(points: Sequence[CellPoint]) -> list[tuple[CellPoint, CellPoint]]:
    """Return (fewer, more): cells that differ in their number of GPUs alone and in what follows
    from it, one kind of split that goes further; the next larger number of each kind.
    """
    groups: dict[Any, dict[tuple[int, str], CellPoint]] = defaultdict(dict)
    for point in points:
        if point.setup.gpus:
            groups[alike(point, "gpus", "parallel")].setdefault(
                (point.setup.gpus, point.setup.parallel), point
            )
    result = []
    for group in groups.values():
        for (few, split), point in group.items():
            larger: dict[str, tuple[int, CellPoint]] = {}
            for (many, other), more in sorted(group.items(), key=lambda entry: entry[0]):
                kinds = _further(split, other)
                if many > few and kinds is not None:
                    larger.setdefault(kinds, (many, more))
            result += [(point, more) for _, more in larger.values()]
    return result


def _further(split: str, other: str) -> str | None:
    """Return the kind of split in which `other` differs; "" where nothing is told of either, None
    where they differ in more. Experts are dealt out as the rest is.
    """
    splits, other_splits = (dict(_SPLIT.findall(text)) for text in (split, other))
    if bool(splits) != bool(other_splits):
        return None
    kinds = {
        kind
        for kind in (*splits, *other_splits)
        if splits.get(kind, "1") != other_splits.get(kind, "1")
    } - {"ep"}
    return "".join(kinds) if len(kinds) < 2 else None


def _group_by_length(group: Sequence[CellPoint], exactly: bool) -> list[list[CellPoint]]:
    sets: list[list[CellPoint]] = []
    for point in group:
        for known in sets:
            if _near(known[0].demand.input_tokens, point.demand.input_tokens, exactly) and _near(
                known[0].demand.output_tokens, point.demand.output_tokens, exactly
            ):
                known.append(point)
                break
        else:
            sets.append([point])
    return sets


def _near(a: int | None, b: int | None, exactly: bool) -> bool:
    if a is None or b is None or exactly:
        return a == b
    return abs(a - b) <= NEAR * max(a, b)


class Ratio(msgspec.Struct, frozen=True):
    """Says how many times better `over` does than `under`: throughput divided, latency the other
    way round."""

    over: CellPoint
    under: CellPoint
    measure: Measure
    times: float

    @property
    def effect(self) -> Effect | None:
        """`times` with its interval, where that is known."""
        result = effect(self.over, self.under, self.measure)
        return result.inverse if result is not None and self.measure.better == "lower" else result


def gpu_ratios(points: Sequence[CellPoint]) -> list[Ratio]:
    """Return all pairs of cells that differ in their GPU alone, the better GPU (by its throughputs)
    over the other; without the ratios of queues that may have grown.
    """
    groups: dict[Any, dict[str, CellPoint]] = defaultdict(dict)
    for point in points:
        if not point.setup.gpu:
            continue
        groups[alike(point, "gpu", "version")].setdefault(point.setup.gpu, point)
    wins: dict[tuple[str, str], float] = defaultdict(float)
    for group in groups.values():
        for a, b in itertools.permutations(group.values(), 2):
            if a.output_tokens_per_s and b.output_tokens_per_s:
                wins[a.setup.gpu, b.setup.gpu] += math.log(
                    a.output_tokens_per_s / b.output_tokens_per_s
                )
    result = []
    for group in groups.values():
        for (over, under), sum_log in wins.items():
            if (
                sum_log < 0
                or over not in group
                or under not in group
                or (sum_log == 0 and over > under)
            ):
                continue
            for measure in (OUTPUT, TTFT, pace((group[over], group[under])), E2E):
                if is_unsettled(group[over], measure) or is_unsettled(group[under], measure):
                    continue
                much, less = measure.of(group[over]), measure.of(group[under])
                if much and less and much > 0 and less > 0:
                    times = much / less if measure.better == "higher" else less / much
                    result.append(Ratio(group[over], group[under], measure, times))
    return result


def has_unsettled(ratios: Iterable[Ratio]) -> bool:
    """Tell whether some latencies of these pairs are left out: see is_unsettled()."""
    return any(is_unsettled(point, TTFT) for ratio in ratios for point in (ratio.over, ratio.under))


def heaviest(ratios: Sequence[Ratio]) -> list[Ratio]:
    """Take each sweep's highest load that both have, if there is one without a latency left out."""
    return _take_end(ratios, 1)


def lightest(ratios: Sequence[Ratio]) -> list[Ratio]:
    """Return the lowest such load."""
    return _take_end(ratios, -1)


def _take_end(ratios: Sequence[Ratio], sign: Literal[1, -1]) -> list[Ratio]:
    tops: dict[Any, tuple[bool, float]] = {}

    def place(ratio: Ratio) -> tuple[bool, float]:
        return not has_unsettled([ratio]), sign * ratio.over.load

    def sweep(ratio: Ratio) -> tuple[Any, ...]:
        return ratio.under.setup.gpu, *alike(ratio.over, "load")

    for ratio in ratios:
        tops[sweep(ratio)] = max(tops.get(sweep(ratio), place(ratio)), place(ratio))
    return [ratio for ratio in ratios if place(ratio) == tops[sweep(ratio)]]


def interval_words(ratios: Iterable[Ratio]) -> str:
    """Say where the intervals of these ratios come from."""
    predicted = {
        point.setup.source == "simulated" for ratio in ratios for point in (ratio.over, ratio.under)
    }
    return join(
        "sampling where the spread is known" if False in predicted else "",
        "for predictions the model's own, 80%" if True in predicted else "",
        by="; ",
    )


SUMS = {"tpot": 4.0, "itl": 4.0}
OTHER_SUMS = 2.0
"""Nobody can see in sums how requests depend on one another: their standard errors are taken as so
many times those of independent requests. So large they are in closed loops whose requests share
their steps (docs/statistics.md)."""


class Effect(msgspec.Struct, frozen=True):
    """`ratio` of two values, and the interval in which it lies, sampling and repetition
    considered."""

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
        return f"{_two(abs(100 * (self.ratio - 1)))}% ({_two(bounds[0])}–{_two(bounds[1])})"

    @property
    def words(self) -> str:
        """Percent near one, times far from it."""
        if 0.5 < self.ratio < 2:
            return self.percent
        large = self if self.ratio >= 1 else self.inverse
        return f"a factor of {large.ratio:.3g} ({large.low:.3g}–{large.high:.3g})"


def _two(percent: float) -> str:
    """Return two digits, never 1.1e+02."""
    return f"{percent:.2g}" if percent < 99.5 else f"{percent:.0f}"


def effect(a: CellPoint, b: CellPoint, measure: Measure) -> Effect | None:
    """Divide a by b, with the interval that a comparison has (ratio.contrast).

    None where a value is missing, or depends on how long the cell lasted, where not all of a cell
    was measured, or where its requests were too few generations to tell how sure it is. A
    comparison asks twice, whether sampling leaves 1 in the ratio and whether the performance model
    does: the interval here is what either leaves open.
    """
    if is_unsettled(a, measure) or is_unsettled(b, measure) or a.failed or b.failed:
        return None
    of_a, of_b = measure.of(a), measure.of(b)
    if not of_a or not of_b or of_a <= 0 or of_b <= 0:
        return None
    known = contrast(_side(b, measure), _side(a, measure), measure.key)
    # Of two simulations that were asked the same, drawn by one seed, no chance is in what they
    # differ by.
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


def _side(point: CellPoint, measure: Measure) -> Side:
    """Give one side's margins. Gaps between tokens have those of TPOT: both are steps of the
    engine.

    In a run of sums, without requests, they follow from the spread, made larger; in a closed loop a
    throughput varies as the mean E2E does (concurrency over mean E2E).
    """
    bases = (point.basis,)
    stat = point.tpot if measure.pooled and point.tpot is not None else measure.stat(point)
    if stat is not None and stat.reach is not None:
        predicted = point.basis is not None
        sampling = stat.sampling if predicted or stat.level == REPEATS else stat.reach
        return Side(sampling, stat.model if predicted else None, bases)
    if not point.sums:
        return Side(None, None, bases)
    if stat is None or stat.which == "rate":
        stat = point.e2e if point.kind == "concurrency" else None
    each = SUMS.get(measure.key, OTHER_SUMS) * stat.by_spread if stat is not None else 0.0
    return Side((each, each), None, bases)
