"""Merge repeats of a cell into one point: medians over the repeats, with the range from the least
to the greatest."""

import math
from collections.abc import Mapping, Sequence
from statistics import median, stdev
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from loadstone.analyse.compare.ratio import pooled
from loadstone.core.groups import by_key
from loadstone.core.statistics.quantiles import student_quantile
from loadstone.report.data.points import CellPoint, alike, change_setup, reduce_known
from loadstone.report.data.statistic import REPEATS, Estimate

_Part = TypeVar("_Part", bound=msgspec.Struct)


def merge(points: Sequence[CellPoint]) -> CellPoint:
    """Merge repeats of a cell into one point.

    It meets its bounds if every repeat does, and is trusted if every repeat is. Repeated
    simulations are the same, so the first stands for all.
    """
    if len(points) == 1 or points[0].is_simulated:
        return points[0]
    return replace(
        _merge_numbers(points, "ttft", "tpot", "itl", "e2e", "output", "total", "pooled"),
        cells=tuple(cell for point in points for cell in point.cells),
        requests_per_s=reduce_known(median, (point.requests_per_s for point in points)),
        dollars=_merge_numbers([point.dollars for point in points], "output", "total", "input"),
        joules=_merge_numbers([point.joules for point in points], "output", "total"),
    )


def _merge_numbers(parts: Sequence[_Part], *names: str) -> _Part:
    """Return the first with the estimates of these names merged."""
    merged = {name: _merge_estimates([getattr(part, name) for part in parts]) for name in names}
    return replace(parts[0], **merged)


def _merge_estimates(stats: Sequence[Estimate | None]) -> Estimate | None:
    """Merge one number of several repeats: the median, and the range from the least to the
    greatest.

    `sampling_margin` is the 95 % margin of their mean, from the differences between repeats and
    within them.
    """
    present = [stat for stat in stats if stat is not None]
    if len(present) < 2:
        return present[0] if present else None
    values = [stat.value for stat in present]
    low, high = min(values), max(values)
    margin = None
    if low > 0:
        error = stdev(map(math.log, values)) / math.sqrt(len(values))
        between = student_quantile(0.975, len(values) - 1) * error
        reaches = [stat.reach for stat in present if stat.reach is not None]
        lower, upper = pooled(reaches or [(0.0, 0.0)])
        margin = math.hypot(between, lower), math.hypot(between, upper)
    medians = {
        name: reduce_known(median, (getattr(stat, name) for stat in present))
        for name in ("mean", "std", "p90", "p99")
    }
    return Estimate(
        value=median(values),
        which=present[0].which,
        low=low,
        high=high,
        level=REPEATS,
        sampling_margin=margin,
        n=reduce_known(sum, (stat.n for stat in present)),
        unbounded=any(stat.unbounded or stat.p99_high is not None for stat in present),
        **medians,
    )


def merge_repeats(points: Sequence[CellPoint], names: Sequence[str]) -> list[tuple[str, CellPoint]]:
    """List (name, point) of all cells of the setups `names`, repeats of a cell merged."""
    repeats_of = by_key(
        ((name, alike(point)), point) for name, point in zip(names, points, strict=True)
    )
    return [(name, merge(repeats)) for (name, _), repeats in repeats_of.items()]


def name_setups(
    points: Sequence[CellPoint], cells: Mapping[int, tuple[str, int]]
) -> list[CellPoint]:
    """Give points the study's names of their setups. `cells`: run number → (name, number of the
    study's cell)."""
    return [
        change_setup(point, study=cells[point.number][0])
        for point in points
        if point.number in cells
    ]


def merge_cells(
    points: Sequence[CellPoint], cells: Mapping[int, tuple[str, int]]
) -> list[CellPoint]:
    """Merge the repeats of each cell of a study; `cells` as in name_setups()."""
    repeats_of = by_key(
        ((point.setup.source, cells[point.number][1], point.kind, point.load), point)
        for point in points
    )
    return [merge(repeats) for repeats in repeats_of.values()]
