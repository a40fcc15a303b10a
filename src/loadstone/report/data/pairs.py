"""Cells that differ in one thing alone, in a fact, in how many GPUs there are, in the GPU; and how
large a difference is, and how sure: the ratio of two points of a measure, with its interval.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
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
    "TTFT and E2E of loads whose queue grew are left out: they grow with the time that a load lasts"
)

_SPLIT = re.compile(r"(tp|pp|dp|ep|fleet of )(\d+)")

Fact = Literal["prefix", "parallel", "context", "settings"]


def switches(points: Sequence[CellPoint], fact: Fact) -> list[list[CellPoint]]:
    """Return all sets of points that differ in `fact` alone, each of its values once, by their
    values.

    Of prefixes, input lengths that nearly are the same are taken to be.
    """
    groups = by_key((alike(point, fact, "near_input", "near_output"), point) for point in points)
    sets = []
    for group in groups.values():
        for base in _group_by_length(group, fact != "prefix"):
            chosen = {FACTS[fact](point): point for point in reversed(base)}
            if len(chosen) > 1:
                sets.append([chosen[value] for value in sorted(chosen)])
    return sets


def more_gpus(points: Sequence[CellPoint]) -> list[tuple[CellPoint, CellPoint]]:
    """Return (fewer, more): cells that differ in their number of GPUs alone and in what follows
    from it, one kind of split that goes further; the next larger number of each kind.
    """
    groups: dict[Any, dict[tuple[int, str], CellPoint]] = defaultdict(dict)
    for point in points:
        if point.setup.gpus:
            size = point.setup.gpus, point.setup.parallel
            groups[alike(point, "gpus", "parallel")].setdefault(size, point)
    pairs = []
    for group in groups.values():
        ordered = sorted(group.items(), key=lambda entry: entry[0])
        for (gpus, split), point in group.items():
            larger: dict[str, CellPoint] = {}
            for (count, larger_split), candidate in ordered:
                kind = _further(split, larger_split)
                if count > gpus and kind is not None:
                    larger.setdefault(kind, candidate)
            pairs += [(point, candidate) for candidate in larger.values()]
    return pairs


def _further(split: str, larger: str) -> str | None:
    """Return the kind of split in which `larger` differs; "" where nothing is told of either, None
    where they differ in more. Experts are dealt out as the rest is.
    """
    ways, larger_ways = (dict(_SPLIT.findall(text)) for text in (split, larger))
    if bool(ways) != bool(larger_ways):
        return None
    kinds = {
        kind
        for kind in (*ways, *larger_ways)
        if kind != "ep" and ways.get(kind, "1") != larger_ways.get(kind, "1")
    }
    return "".join(kinds) if len(kinds) < 2 else None


def _group_by_length(group: Sequence[CellPoint], exactly: bool) -> list[list[CellPoint]]:
    sets: list[list[CellPoint]] = []
    for point in group:
        near = (base for base in sets if _is_near(base[0], point, exactly))
        base = next(near, None)
        if base is None:
            sets.append([point])
        else:
            base.append(point)
    return sets


def _is_near(a: CellPoint, b: CellPoint, exactly: bool) -> bool:
    """Tell whether the lengths of two points are the same."""
    for length, other_length in (
        (a.demand.input_tokens, b.demand.input_tokens),
        (a.demand.output_tokens, b.demand.output_tokens),
    ):
        if length is None or other_length is None or exactly:
            if length != other_length:
                return False
        elif abs(length - other_length) > NEAR * max(length, other_length):
            return False
    return True


def pair_predictions(
    points: Sequence[CellPoint],
) -> Iterator[tuple[list[CellPoint], list[CellPoint]]]:
    """Yield (simulated, measured or imported) points of the same deployment under the same work,
    where both are there.

    Of several settings each is laid under what was measured with it, and where nobody said with
    which.
    """
    groups = by_key((_predictable(point), point) for point in points)
    for group in groups.values():
        simulated = by_key((point.setup.settings, point) for point in group if point.is_simulated)
        for settings, predicted in simulated.items():
            observed = [
                point
                for point in group
                if not point.is_simulated
                and (not settings or point.setup.settings in ("", settings))
            ]
            if observed:
                yield predicted, observed


def _predictable(point: CellPoint) -> tuple[object, ...]:
    """Make a key that is equal for what a prediction is of."""
    setup, demand = point.setup, point.demand
    deployed = setup.architecture or setup.model, setup.engine, setup.gpu, setup.gpus
    work = point.kind, demand.prefix, demand.near_input, demand.near_output
    return *deployed, setup.parallel, *work


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
        if point.setup.gpu:
            groups[alike(point, "gpu", "version")].setdefault(point.setup.gpu, point)
    wins: dict[tuple[str, str], float] = defaultdict(float)
    for group in groups.values():
        for a, b in itertools.permutations(group.values(), 2):
            if a.output_tokens_per_s and b.output_tokens_per_s:
                log_ratio = math.log(a.output_tokens_per_s / b.output_tokens_per_s)
                wins[a.setup.gpu, b.setup.gpu] += log_ratio
    better = [
        pair
        for pair, sum_log in wins.items()
        if sum_log > 0 or (sum_log == 0 and pair[0] <= pair[1])
    ]
    return [
        ratio
        for group in groups.values()
        for over, under in better
        if over in group and under in group
        for ratio in _ratios(group[over], group[under])
    ]


def _ratios(over: CellPoint, under: CellPoint) -> Iterator[Ratio]:
    """Yield the ratios of two cells, by each measure that is settled."""
    for measure in (OUTPUT, TTFT, pace((over, under)), E2E):
        if is_unsettled(over, measure) or is_unsettled(under, measure):
            continue
        value, base = measure.of(over), measure.of(under)
        if value and base and value > 0 and base > 0:
            times = value / base if measure.better == "higher" else base / value
            yield Ratio(over, under, measure, times)


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
    def place(ratio: Ratio) -> tuple[bool, float]:
        return not has_unsettled([ratio]), sign * ratio.over.load

    sweeps = by_key((_sweep(ratio), place(ratio)) for ratio in ratios)
    ends = {sweep: max(places) for sweep, places in sweeps.items()}
    return [ratio for ratio in ratios if place(ratio) == ends[_sweep(ratio)]]


def _sweep(ratio: Ratio) -> tuple[Any, ...]:
    return ratio.under.setup.gpu, *alike(ratio.over, "load")


def interval_words(ratios: Iterable[Ratio]) -> str:
    """Say where the intervals of these ratios come from."""
    predicted = {point.is_simulated for ratio in ratios for point in (ratio.over, ratio.under)}
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
        bounds = sorted(abs(100 * (end - 1)) for end in (self.low, self.high))
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
    value, base = measure.of(a), measure.of(b)
    if not value or not base or value <= 0 or base <= 0:
        return None
    margins = contrast(_side(b, measure), _side(a, measure), measure.key)
    # Of two simulations that were asked the same, drawn by one seed, no chance is in what they
    # differ by.
    draws = [point.basis.draw for point in (a, b) if point.basis is not None]
    simulated = len(draws) == 2
    drawn_alike = simulated and draws[0] == draws[1]
    if margins.model is not None and (drawn_alike or (simulated and margins.sampling is None)):
        reaches = [margins.model]
    elif margins.sampling is None:
        return None
    else:
        reaches = [margins.sampling, margins.model or margins.sampling]
    widest = max(lower for lower, _ in reaches), max(upper for _, upper in reaches)
    return Effect(value / base, *bounds(value / base, widest))


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
    margin = SUMS.get(measure.key, OTHER_SUMS) * stat.by_spread if stat is not None else 0.0
    return Side((margin, margin), None, bases)
