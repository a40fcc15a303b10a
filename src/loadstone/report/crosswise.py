"""Tables that set things against one another: models on machines, GPU against GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from loadstone.report.charts.bars import UNSETTLED, Ratio, gpu_ratios, heaviest, left_out
from loadstone.report.charts.frames import E2E, ITL, OUTPUT, TPOT, TTFT, load_label
from loadstone.report.findings.effect import effect
from loadstone.report.points import Point, joined
from loadstone.report.series import asked
from loadstone.report.tables import MAX_ROWS, WARNED, Table, told
from loadstone.units import show_number

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
        for *_, machine in machines:
            row = [machine]
            for model in models:
                own = next((point for point in group if point.model == model and _machine(point) == machine), None)
                row.append("N/A" if own is None else _pair(own))
            rows.append(row)
        first = group[0]
        latency = "ITL" if all(point.tpot is None for point in group) else "TPOT"
        made.append(
            Table(
                key=f"matrix-{len(made) + 1}",
                title=f"Output throughput / {latency}: {joined(first.engine, load_label(first), asked(first))}",
                heads=["", *models],
                align="l" + "r" * len(models),
                rows=rows,
                notes=[f"output tok/s / median or mean {latency} in ms; N/A: no such run", *_doubtful(rows)],
            )
        )
    return made


def _machine(point: Point) -> str:
    plain = f"tp{point.gpus}"  # all of the machine's GPUs for one copy of the model: what one expects
    return joined(point.hardware, point.parallel if point.parallel != plain else "", by=" ")


def _pair(point: Point) -> str:
    stat = point.tpot or point.itl
    latency = f"{1e3 * stat.value:.4g}" if stat is not None else "-"
    return f"{show_number(point.output_tokens_per_s, 4)} / {latency}{'' if point.trusted else _DOUBTFUL}"


def ratios(points: Sequence[Point]) -> list[Table]:
    """GPU against GPU: throughput and latency ratios, a row for all that is equal otherwise, at the highest load."""
    pairs: dict[tuple[str, str], dict[Any, list[Ratio]]] = defaultdict(lambda: defaultdict(list))
    for ratio in heaviest(gpu_ratios(points)):
        over = ratio.over
        key = (over.engine, over.model, over.gpus, over.parallel, over.kind, over.load, asked(over))
        pairs[over.gpu, ratio.under.gpu][key].append(ratio)
    made = []
    for (better, worse), found in pairs.items():
        rows = []
        for own in found.values():
            point = own[0].over
            times = {ratio.measure.key: _times(ratio) for ratio in own}
            said = [times.get(measure.key, "-") for measure in (OUTPUT, TTFT, TPOT, ITL, E2E)]
            where = joined(load_label(point), asked(point))
            where += "" if all(ratio.over.trusted and ratio.under.trusted for ratio in own) else _DOUBTFUL
            rows.append([point.model, point.engine, f"{point.gpus or '?'}×", where, *said])
        heads = ["model", "engine", "GPUs", "workload", "output throughput"]
        heads += [f"lower {name}" for name in ("TTFT", "TPOT", "ITL", "E2E")]
        table = Table(
            key=f"ratios-{better}-{worse}",
            title=f"{better} against {worse}",
            heads=heads,
            align="llrlrrrrr",
            rows=sorted(rows)[:MAX_ROWS],
            notes=[
                f"times better, with the interval: {_intervals(found)}, and what repeats of one configuration differ "
                "by (TTFT 8.8 %, others 3.4 %)",
                *_doubtful(rows),
                *([f"{UNSETTLED}."] if left_out(ratio for own in found.values() for ratio in own) else []),
            ],
        )
        made.append(told(table))
    return made


def _intervals(found: Mapping[Any, Sequence[Ratio]]) -> str:
    predicted = {
        each.source == "simulated" for own in found.values() for ratio in own for each in (ratio.over, ratio.under)
    }
    return joined(
        "sampling where its spread is known" if False in predicted else "",
        "of predictions the model's own, 80 %" if True in predicted else "",
        by="; ",
    )


def _doubtful(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"{WARNED}: a cell carries a warning"] if any(_DOUBTFUL in text for row in rows for text in row) else []


def _times(ratio: Ratio) -> str:
    """How many times better, whichever direction is."""
    found = effect(ratio.over, ratio.under, ratio.measure)
    if found is None:
        return "-"
    return found.times if ratio.measure.better == "higher" else found.inverse.times
