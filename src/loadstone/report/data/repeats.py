"""Merge repeats of a cell into one point: medians over the repeats, with the range from the least
to the greatest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median, stdev
from typing import Any

import msgspec

from loadstone.analyse.compare.ratio import pooled, reach
from loadstone.core.groups import by_key
from loadstone.report.data.points import CellPoint, alike, reduce_known
from loadstone.report.data.statistic import REPEATS, Estimate

_STATS = (
    "ttft",
    "tpot",
    "itl",
    "e2e",
    "output",
    "total",
    "dollars_output",
    "dollars_total",
    "dollars_input",
    "j_output",
    "j_total",
)


def merge(points: Sequence[CellPoint]) -> CellPoint:
    """Merge repeats of a cell into one point.

    It meets its bounds if every repeat does, and is trusted if every repeat is. Repeated
    simulations are the same, so the first stands for all.
    """
    first, *others = points
    if not others or first.source == "simulated":
        return first
    values: dict[str, Any] = {
        name: _merge_estimates([getattr(point, name) for point in points]) for name in _STATS
    }
    return msgspec.structs.replace(
        first,
        **values,
        requests_per_s=reduce_known(median, (point.requests_per_s for point in points)),
        cells=tuple(cell for point in points for cell in point.cells),
    )


def _merge_estimates(stats: Sequence[Estimate | None]) -> Estimate | None:
    """Merge one number of several repeats: the median, and the range from the least to the
    greatest.

    `sampling_margin` is the 95 % margin of their mean, from the differences between repeats and
    within them.
    """
    from scipy.special import stdtrit

    known = [stat for stat in stats if stat is not None]
    if len(known) < 2:
        return known[0] if known else None
    values = [stat.value for stat in known]
    low, high = min(values), max(values)
    margin = None
    if low > 0:
        error = stdev(map(math.log, values)) / math.sqrt(len(values))
        between = float(stdtrit(len(values) - 1, 0.975)) * error
        within = pooled(
            [own for stat in known if (own := reach(stat.value, stat.low, stat.high))]
            or [(0.0, 0.0)]
        )
        margin = math.hypot(between, within[0]), math.hypot(between, within[1])
    more = {
        name: reduce_known(median, (getattr(stat, name) for stat in known))
        for name in ("mean", "std", "p90", "p99")
    }
    return Estimate(
        value=median(values),
        which=known[0].which,
        low=low,
        high=high,
        level=REPEATS,
        sampling_margin=margin,
        n=reduce_known(sum, (stat.n for stat in known)),
        **more,
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
    own = [point for point in points if point.number in cells]
    return [msgspec.structs.replace(point, study=cells[point.number][0]) for point in own]


def merge_cells(
    points: Sequence[CellPoint], cells: Mapping[int, tuple[str, int]]
) -> list[CellPoint]:
    """Merge the repeats of each cell of a study; `cells` as in name_setups()."""
    repeats_of = by_key(
        ((point.source, cells[point.number][1], point.kind, point.load), point) for point in points
    )
    return [merge(repeats) for repeats in repeats_of.values()]
