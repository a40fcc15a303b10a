"""Tables of a report: rows of text, made once for HTML, Markdown and CSV."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from loadstone.report.charts.bars import gpu_ratios, heaviest
from loadstone.report.charts.frames import load_label
from loadstone.report.findings.effect import effect
from loadstone.report.points import Point, Stat, clean, count
from loadstone.report.runs import RunView
from loadstone.report.series import lengths_label
from loadstone.units import show_number, show_seconds

MAX_ROWS = 400


class Table(msgspec.Struct, kw_only=True):
    """`align`: for each column l or r; w is l and wide, n is l and in one line. `notes`: what the numbers mean."""

    key: str
    title: str
    heads: list[str]
    align: str
    rows: list[list[str]]
    notes: list[str] = msgspec.field(default_factory=list)


def overview(runs: Sequence[RunView], points: Sequence[Point]) -> Table:
    """A row for each run: what it was of, what was asked, whether it can be trusted."""
    rows = []
    for number, run in enumerate(runs, 1):
        own = [point for point in points if point.number == number]
        first = own[0] if own else None
        cells = len(run.document["cells"])
        trusted = sum(point.trusted for point in own)
        loads = ", ".join(f"{point.load:g}" for point in own[:12]) + (" …" if len(own) > 12 else "")
        rows.append(
            [
                str(number),
                clean(run.info.run_id),
                run.info.source,
                clean(run.facts.label, 120),
                ", ".join(part for part in (lengths_label(first), first.prefix, first.work) if part) if first else "",
                f"{first.kind} {loads}" if first and not first.offline else f"batch {loads}" if first else "",
                "as stated"
                if cells and trusted == cells and stated_cells([run]) == cells
                else "yes"
                if cells and trusted == cells
                else f"{trusted} of {cells} cells"
                if cells
                else "no cells",
            ]
        )
    heads = ["run", "folder", "source", "deployment", "workload", "loads", "trusted"]
    return Table(key="runs", title="Runs", heads=heads, align="rlnwlln", rows=rows)


def stated_cells(runs: Sequence[RunView]) -> int:
    """Cells of which there is only what another tool stated: no records to judge by."""
    counts = [cell.get("requests") for run in runs for cell in run.document["cells"]]
    return sum(isinstance(count, dict) and count.get("short", 0) is None for count in counts)


def verdicts(runs: Sequence[RunView]) -> Table:
    """Every warning and error of every cell, the same ones together."""
    found: dict[tuple[str, str, str], list[tuple[int, str, str]]] = defaultdict(list)
    for number, run in enumerate(runs, 1):
        for cell in run.document["cells"]:
            for said in (cell.get("verdict") or {}).get("findings") or ():
                if said.get("severity") == "info":
                    continue
                load = cell.get("load") or {}
                key = (
                    str(said.get("severity")),
                    clean(str(said.get("kind")), 60),
                    clean(str(said.get("remedy")), 300),
                )
                where = f"{load.get('kind')} {_short(load.get('value'))}"
                found[key].append((number, where, clean(str(said.get("evidence")), 300)))
    rows = []
    for (severity, kind, remedy), places in sorted(
        found.items(), key=lambda entry: (entry[0][0] != "error", -len(entry[1]))
    ):
        number, where, evidence = places[0]
        others = f"; and in {len(places) - 1} more cell{'s' * (len(places) > 2)}" if len(places) > 1 else ""
        rows.append([severity, kind.replace("_", " "), f"run {number}, {where}: {evidence}{others}", remedy])
    heads = ["severity", "finding", "evidence", "remedy"]
    return Table(key="verdicts", title="What spoils numbers", heads=heads, align="llll", rows=rows)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else "?"


def cells(points: Sequence[Point], *, key: str = "cells", title: str = "All cells", run: bool = True) -> Table:
    """The columns published tables have: load, prompts, median E2E, TTFT, TPOT, ITL, throughput; and the bounds."""
    heads = ["run", "deployment"] if run else []
    heads += [
        "load",
        "in",
        "out",
        "prompts",
        "E2E",
        "TTFT",
        "95 %",
        "p99",
        "TPOT",
        "95 %",
        "of light",
        "ITL",
        "output tok/s",
        "total tok/s",
    ]
    rows = []
    for point in points[:MAX_ROWS]:
        name = " · ".join(
            part for part in (point.engine, point.version, point.model, point.hardware, point.parallel) if part
        )
        row = [str(point.number), name] if run else []
        rows.append(
            [
                *row,
                load_label(point) + (f" · {point.prefix}" if point.prefix else ""),
                count(point.input_tokens) if point.input_tokens else "-",
                count(point.output_tokens) if point.output_tokens else "-",
                count(point.ok) if point.ok is not None else "-",
                _value(point.e2e),
                _value(point.ttft),
                _bounds(point.ttft),
                _p99(point.ttft),
                _value(point.tpot),
                _bounds(point.tpot),
                _of_light(point),
                _value(point.itl),
                show_number(point.output_tokens_per_s, 4),
                show_number(point.total_tokens_per_s, 4),
            ]
        )
    notes = _notes(points)
    if len(points) > MAX_ROWS:
        notes.append(f"{len(points) - MAX_ROWS} more cells are left out here; --format csv has all")
    align = ("rw" if run else "") + "n" + "r" * (len(heads) - len(heads[:2] if run else []) - 1)
    return Table(key=key, title=title, heads=heads, align=align, rows=rows, notes=notes)


def _value(stat: Stat | None) -> str:
    return "-" if stat is None else show_seconds(stat.value) + (" ⌀" if stat.which == "mean" else "")


def _bounds(stat: Stat | None) -> str:
    if stat is None or stat.low is None or stat.high is None:
        return "-"
    low, high = show_seconds(stat.low), show_seconds(stat.high)
    number, _, unit = low.rpartition(" ")
    return f"{number if high.endswith(f' {unit}') else low}–{high}"


def _of_light(point: Point) -> str:
    """The roofline's TPOT over the one there was: 100 % is as fast as the hardware can be."""
    if point.tpot is None or not point.light_tpot_s:
        return "-"
    return f"{100 * point.light_tpot_s / point.tpot.value:.0f} %"


def _p99(stat: Stat | None) -> str:
    if stat is None or stat.p99 is None:
        return "-"
    return ("≥ " if stat.p99_low is not None and stat.p99_high is None else "") + show_seconds(stat.p99)


def _notes(points: Sequence[Point]) -> list[str]:
    since = [
        f"{loop} from {' or '.join(sorted({point.since for point in own}))}"
        for loop, own in (
            ("in closed loops", [point for point in points if point.kind == "concurrency"]),
            ("in open loops and bursts", [point for point in points if point.kind != "concurrency"]),
        )
        if own
    ]
    windows = {point.window for point in points if point.kind != "burst"} or {"whole cell"}
    notes = [
        f"Medians{'; ⌀: a mean, where no median is known' if _means(points) else ''}. "
        f"TTFT, E2E {' and '.join(since)}. "
        f"TPOT = (tT − t1)/(T − 1). Throughput over the {' or '.join(sorted(windows))}; total: input and output."
    ]
    if any(point.light_tpot_s for point in points):
        notes.append(
            "Of light: the TPOT that the hardware allows, at the data sheet's bandwidth and arithmetic with as many "
            "requests decoding, over the one there was."
        )
    if any(point.source == "simulated" for point in points):
        notes.append("Of simulated cells the interval is that of the prediction, 80 %.")
    if any(_p99(stat).startswith("≥") for point in points for stat in (point.ttft,)):
        notes.append("≥: too few requests to bound this p99 from above (95 %; it takes 368).")
    return notes


def _means(points: Sequence[Point]) -> bool:
    return any(stat is not None and stat.which == "mean" for p in points for stat in (p.ttft, p.tpot, p.itl, p.e2e))


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
                + ", ".join(
                    part for part in (first.engine, load_label(first), lengths_label(first), first.prefix) if part
                ),
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
        key = (
            over.engine,
            over.model,
            over.gpus,
            over.parallel,
            over.kind,
            over.load,
            over.near_output,
            over.prefix,
        )
        row = pairs[over.gpu, ratio.under.gpu].setdefault(key, {"point": over})
        row[ratio.measure.key] = effect(ratio.over, ratio.under, ratio.measure)
    made = []
    for (better, worse), found in pairs.items():
        rows = []
        for each in found.values():
            point: Point = each["point"]
            cellsof = [each.get(name) for name in ("output_tok_s", "ttft", "tpot", "itl", "e2e")]
            texts = [
                "-" if one is None else (one.times if place == 0 else _inverse(one))
                for place, one in enumerate(cellsof)
            ]
            where = ", ".join(part for part in (load_label(point), lengths_label(point), point.prefix) if part)
            rows.append([point.model, point.engine, f"{point.gpus or '?'}×", where, *texts])
        heads = [
            "model",
            "engine",
            "GPUs",
            "workload",
            "output throughput",
            "lower TTFT",
            "lower TPOT",
            "lower ITL",
            "lower E2E",
        ]
        made.append(
            Table(
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
        )
    return made


def _inverse(found: Any) -> str:
    return f"{1 / found.ratio:.3g}× ({1 / found.high:.3g}–{1 / found.low:.3g})"
