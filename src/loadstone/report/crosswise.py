"""Tables that set things against one another: models on machines, GPU against GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from loadstone.report.charts.bars import gpu_ratios, heaviest
from loadstone.report.charts.frames import load_label
from loadstone.report.findings.effect import Effect, effect
from loadstone.report.points import Point
from loadstone.report.series import asked
from loadstone.report.tables import MAX_ROWS, Table, told
from loadstone.units import show_number


def matrices(points: Sequence[Point]) -> list[Table]:
    """Throughput/latency of each model (columns) on each machine (rows), a table for each load that several share."""
    groups: dict[Any, list[Point]] = defaultdict(list)
    for point in points:
        groups[
            point.engine, point.kind, point.load, point.offline, point.near_input, point.near_output, point.prefix
        ].append(point)
    made: list[Table] = []
    for group in groups.values():
        models = list(dict.fromkeys(point.model for point in group))
        machines = list(
            dict.fromkeys((point.gpu, point.gpus or 0, _machine(point)) for point in group if point.hardware)
        )
        if len(models) < 2 or len(machines) < 2:
            continue
        machines.sort()
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
                title=f"Output throughput / {latency}: "
                + ", ".join(part for part in (first.engine, load_label(first), asked(first)) if part),
                heads=["", *models],
                align="l" + "r" * len(models),
                rows=rows,
                notes=[f"output tok/s / median or mean {latency} in ms; N/A: no such run"],
            )
        )
    return made


def _machine(point: Point) -> str:
    plain = f"tp{point.gpus}"  # all of the machine's GPUs for one copy of the model: what one expects
    return " ".join(part for part in (point.hardware, point.parallel if point.parallel != plain else "") if part)


def _pair(point: Point) -> str:
    stat = point.tpot or point.itl
    latency = f"{1e3 * stat.value:.4g}" if stat is not None else "-"
    return f"{show_number(point.output_tokens_per_s, 4)} / {latency}"


def ratios(points: Sequence[Point]) -> list[Table]:
    """GPU against GPU: throughput and latency ratios, a row for all that is equal otherwise, at the highest load."""
    pairs: dict[tuple[str, str], dict[Any, dict[str, Any]]] = defaultdict(dict)
    for ratio in heaviest(gpu_ratios(points)):
        over = ratio.over
        key = (over.engine, over.model, over.gpus, over.parallel, over.kind, over.load, asked(over))
        row = pairs[over.gpu, ratio.under.gpu].setdefault(key, {"point": over})
        row[ratio.measure.key] = effect(ratio.over, ratio.under, ratio.measure)
    made = []
    for (better, worse), found in pairs.items():
        rows = []
        for each in found.values():
            point: Point = each["point"]
            where = ", ".join(part for part in (load_label(point), asked(point)) if part)
            said = [one.times if (one := each.get("output_tok_s")) is not None else "-"]
            said += [_inverse(each.get(name)) for name in ("ttft", "tpot", "itl", "e2e")]
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
                "times better, with the interval: sampling where its spread is known, and what repeats of one "
                "configuration differ by (TTFT 8.8 %, others 3.4 %)"
            ],
        )
        made.append(told(table))
    return made


def _inverse(found: Effect | None) -> str:
    return found.inverse.times if found is not None else "-"
