"""Tables that set things against one another: models on machines, GPU against GPU."""

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


def matrices(points: Sequence[Point]) -> list[Table]:
    """Throughput/latency of each model (columns) on each machine (rows), a table for each load that several share."""
    groups: dict[Any, list[Point]] = defaultdict(list)
    for point in points:
        asked_of = point.kind, point.load, point.offline, point.near_input, point.near_output, point.prefix
        groups[point.engine, asked_of].append(point)
    made: list[Table] = []
    for group in groups.values():
        models = list(dict.fromkeys(point.model for point in group))
        machines = sorted({(point.gpu, point.gpus or 0, _machine(point)) for point in group if point.hardware})
        if len(models) < 2 or len(machines) < 2:
            continue
        rows = []
        latency = pace(group)
        for *_, machine in machines:
            row = [machine]
            for model in models:
                own = next((point for point in group if point.model == model and _machine(point) == machine), None)
                row.append("N/A" if own is None else _pair(own, latency))
            rows.append(row)
        first = group[0]
        made.append(
            Table(
                key=f"matrix-{len(made) + 1}",
                title=f"Output throughput / {latency.name}: {joined(first.engine, load_label(first), asked(first))}",
                heads=["", *models],
                align="l" + "r" * len(models),
                rows=rows,
                notes=[
                    f"output tok/s / median or mean {latency.name} in ms; -: not stated; N/A: no such run",
                    *_doubtful(rows),
                ],
            )
        )
    return made


def _machine(point: Point) -> str:
    plain = f"tp{point.gpus}"  # all of the machine's GPUs for one copy of the model: what one expects
    return joined(point.hardware, point.parallel if point.parallel != plain else "", by=" ")


def _pair(point: Point, latency: Measure) -> str:
    seconds = latency.of(point)
    told_ms = f"{1e3 * seconds:.4g}" if seconds is not None else "-"
    return f"{show_number(point.output_tokens_per_s, 4)} / {told_ms}{'' if point.trusted else _DOUBTFUL}"


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
