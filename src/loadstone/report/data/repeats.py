"""Repeats of one cell made one point: medians over them, with the range in which they lie; and a study's cells so."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median, stdev
from typing import Any

import msgspec

from loadstone.analyse.compare.ratio import pooled, reach
from loadstone.report.data.points import Point, alike, reduce_known
from loadstone.report.data.statistic import REPEATS, Stat

_STATS = ("ttft", "tpot", "itl", "e2e", "output", "total", "dollars_output", "dollars_total", "j_output")


def merged(points: Sequence[Point]) -> Point:
    """The one point of these repeats: it met its bounds and is trusted where every repeat did and is. Simulations
    repeat themselves, and the first stands for all.
    """
    first, *others = points
    if not others or first.source == "simulated":
        return first
    values: dict[str, Any] = {name: _stat([getattr(point, name) for point in points]) for name in _STATS}
    return msgspec.structs.replace(
        first,
        **values,
        requests_per_s=reduce_known(median, (point.requests_per_s for point in points)),
        cells=tuple(cell for point in points for cell in point.cells),
    )


def _stat(stats: Sequence[Stat | None]) -> Stat | None:
    """`drawn`: how far the mean of the repeats may be off by what differs between them and within."""
    from scipy.special import stdtrit

    known = [stat for stat in stats if stat is not None]
    if len(known) < 2:
        return known[0] if known else None
    values = [stat.value for stat in known]
    low, high = min(values), max(values)
    drawn = None
    if low > 0:
        error = stdev(map(math.log, values)) / math.sqrt(len(values))
        between = float(stdtrit(len(values) - 1, 0.975)) * error
        within = pooled([own for stat in known if (own := reach(stat.value, stat.low, stat.high))] or [(0.0, 0.0)])
        drawn = math.hypot(between, within[0]), math.hypot(between, within[1])
    more = {
        name: reduce_known(median, (getattr(stat, name) for stat in known)) for name in ("mean", "std", "p90", "p99")
    }
    return Stat(
        value=median(values), which=known[0].which, low=low, high=high, level=REPEATS, drawn=drawn,
        n=reduce_known(sum, (stat.n for stat in known)), **more,
    )  # fmt: skip


def one_each(points: Sequence[Point], names: Sequence[str]) -> list[tuple[str, Point]]:
    """Each setup, by its name, with its cells: repeats of one are one."""
    places: dict[tuple[Any, ...], list[Point]] = defaultdict(list)
    for name, point in zip(names, points, strict=True):
        places[name, alike(point)].append(point)
    return [(name, merged(repeats)) for (name, _), repeats in places.items()]


def of_study(points: Sequence[Point], cells: Mapping[int, tuple[str, int]]) -> list[Point]:
    """The points by the names that a study has for their setups. `cells`: of a run's number that name, and which of
    the study's cells it is.
    """
    own = [point for point in points if point.number in cells]
    return [msgspec.structs.replace(point, study=cells[point.number][0]) for point in own]


def study_cells(points: Sequence[Point], cells: Mapping[int, tuple[str, int]]) -> list[Point]:
    """A point for each cell of a study, of its repeats; `cells` as in of_study()."""
    places: dict[tuple[Any, ...], list[Point]] = defaultdict(list)
    for point in points:
        places[point.source, cells[point.number][1], point.kind, point.load].append(point)
    return [merged(repeats) for repeats in places.values()]
