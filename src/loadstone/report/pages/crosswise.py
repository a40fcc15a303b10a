"""A table for each pair of GPUs: by how much one is better than the other."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from loadstone.core.units import show_number
from loadstone.report.charts.ratios import UNSETTLED, Ratio, gpu_ratios, heaviest, interval_words, left_out, lightest
from loadstone.report.data.frames import E2E, ITL, OUTPUT, TPOT, TTFT, Measure, load_label, pace
from loadstone.report.data.points import Point
from loadstone.report.data.series import asked
from loadstone.report.data.wording import joined
from loadstone.report.pages.tables import MAX_ROWS, WARNED, Table, trimmed

_DOUBTFUL = f" {WARNED}"
"""Behind what comes of a cell with a warning."""


def ratios(points: Sequence[Point]) -> list[Table]:
    """GPU against GPU: throughput and latency ratios, for all that is equal otherwise a row at the lightest load and
    one at the highest.
    """
    pairs: dict[tuple[str, str], dict[Any, list[Ratio]]] = defaultdict(lambda: defaultdict(list))
    every = gpu_ratios(points)
    ends = {id(ratio): ratio for ratio in (*lightest(every), *heaviest(every))}
    for ratio in ends.values():
        over = ratio.over
        key = (over.engine, over.model, over.gpus, over.parallel, over.kind, over.load, asked(over))
        pairs[over.gpu, ratio.under.gpu][key].append(ratio)
    made = []
    for (better, worse), found in pairs.items():
        placed: list[tuple[Any, list[str]]] = []
        for own in found.values():
            point = own[0].over
            times = {ratio.measure.key: each.times for ratio in own if (each := ratio.effect) is not None}
            said = [times.get(measure.key, "-") for measure in (OUTPUT, TTFT, TPOT, ITL, E2E)]
            where = joined(load_label(point), asked(point))
            where += "" if all(ratio.over.trusted and ratio.under.trusted for ratio in own) else _DOUBTFUL
            place = point.model, point.engine, point.gpus or 0, point.parallel, asked(point), point.kind, point.load
            placed.append((place, [point.model, point.engine, f"{point.gpus or '?'}×", where, *said]))
        rows = [row for _, row in sorted(placed)]
        heads = ["model", "engine", "GPUs", "workload", "output throughput"]
        heads += [f"lower {name}" for name in ("TTFT", "TPOT", "ITL", "E2E")]
        table = Table(
            key=f"ratios-{better}-{worse}",
            title=f"{better} against {worse}",
            heads=heads,
            align="llrlrrrrr",
            rows=rows[:MAX_ROWS],
            notes=[
                f"times better, with the interval: {interval_words(itertools.chain(*found.values()))}, and how much "
                "repeats of one configuration differ (TTFT 8.8 %, others 3.4 %)",
                *_doubtful(rows),
                *([f"{UNSETTLED}."] if left_out(ratio for own in found.values() for ratio in own) else []),
            ],
        )
        made.append(trimmed(table))
    return made


def _doubtful(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"{WARNED}: a cell carries a warning"] if any(_DOUBTFUL in text for row in rows for text in row) else []
