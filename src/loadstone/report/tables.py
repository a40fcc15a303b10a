"""Tables of a report: rows of text, made once for HTML, Markdown and CSV."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from loadstone.report.charts.frames import load_label
from loadstone.report.points import Point, clean, count
from loadstone.report.runs import RunView
from loadstone.report.series import common, lengths_label, series_of
from loadstone.report.stats import Stat
from loadstone.units import show_number, show_seconds

MAX_ROWS = 400


class Table(msgspec.Struct, kw_only=True):
    """`align`: for each column l or r; w is l and wide, n is l and in one line. `notes`: what the numbers mean.

    `words`: its rows are read one by one, not down the columns.
    """

    key: str
    title: str
    heads: list[str]
    align: str
    rows: list[list[str]]
    notes: list[str] = msgspec.field(default_factory=list)
    words: bool = False


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
        if priced(points):
            cost = first.dollars_per_hour if first else None
            rows[-1].append(f"${show_number(cost)}" if cost is not None else "-")
    heads = ["run", "folder", "source", "deployment", "workload", "loads", "trusted"]
    align = "rlnwlln"
    if priced(points):
        heads, align = [*heads, "$ per hour"], align + "r"
    return Table(key="runs", title="Runs", heads=heads, align=align, rows=rows, words=True)


def priced(points: Sequence[Point]) -> bool:
    return any(point.dollars_per_hour is not None for point in points)


def stated_cells(runs: Sequence[RunView]) -> int:
    """Cells of which there is only what another tool stated: no records to judge by."""
    counts = [cell.get("requests") for run in runs for cell in run.document["cells"]]
    return sum(isinstance(count, dict) and count.get("short", 0) is None for count in counts)


def verdicts(runs: Sequence[RunView]) -> Table:
    """Every warning and error of every cell, the same ones together."""
    found: dict[tuple[str, str, str], list[tuple[int, str, str]]] = defaultdict(list)
    for number, run in enumerate(runs, 1):
        of_run = {"verdict": {"findings": run.document.get("findings")}}  # what no cell of it can tell
        for cell in [of_run, *run.document["cells"]]:
            for said in (cell.get("verdict") or {}).get("findings") or ():
                if said.get("severity") == "info":
                    continue
                load = cell.get("load") or {}
                key = (
                    str(said.get("severity")),
                    clean(str(said.get("kind")), 60),
                    clean(str(said.get("remedy")), 300),
                )
                where = f"{load.get('kind')} {_short(load.get('value'))}" if load else "as a whole"
                found[key].append((number, where, clean(str(said.get("evidence")), 300)))
    rows = []
    for (severity, kind, remedy), places in sorted(
        found.items(), key=lambda entry: (entry[0][0] != "error", -len(entry[1]))
    ):
        number, where, evidence = places[0]
        others = f"; and in {len(places) - 1} more cell{'s' * (len(places) > 2)}" if len(places) > 1 else ""
        rows.append([severity, kind.replace("_", " "), f"run {number}, {where}: {evidence}{others}", remedy])
    heads = ["severity", "finding", "evidence", "remedy"]
    return Table(key="verdicts", title="What spoils numbers", heads=heads, align="llll", rows=rows, words=True)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else "?"


def cells(points: Sequence[Point], *, key: str = "cells", title: str = "All cells", run: bool = True) -> Table:
    """The columns published tables have: load, prompts, throughput, median TTFT, TPOT, ITL, E2E; bounds and prices.

    What is looked for first stands before the edge of a screen.
    """
    heads = ["run", "deployment"] if run else []
    costs = priced(points)
    heads += ["load", "in", "out", "prompts", "output tok/s", "total tok/s"]
    heads += ["$/M output", "95 %", "$/M total"] if costs else []
    heads += ["TTFT", "95 %", "p99", "TPOT", "95 %", "of light", "ITL", "E2E"]
    rows = []
    for point, name in zip(points[:MAX_ROWS], _deployments(points[:MAX_ROWS]), strict=True):
        row = [str(point.number), name] if run else []
        rows.append(
            [
                *row,
                load_label(point) + (f" · {point.prefix}" if point.prefix else ""),
                count(point.input_tokens) if point.input_tokens else "-",
                count(point.output_tokens) if point.output_tokens else "-",
                count(point.ok) if point.ok is not None else "-",
                show_number(point.output_tokens_per_s, 4),
                show_number(point.total_tokens_per_s, 4),
                *(_costs(point) if costs else ()),
                _value(point.ttft),
                _bounds(point.ttft),
                _p99(point),
                _value(point.tpot),
                _bounds(point.tpot),
                _of_light(point),
                _value(point.itl),
                _value(point.e2e),
            ]
        )
    shared = " · ".join(common(points)) if run and points else ""
    notes = [*([f"All of them: {shared}."] if shared else []), *_notes(points)]
    if len(points) > MAX_ROWS:
        notes.append(f"{len(points) - MAX_ROWS} more cells are left out here; --format csv has all")
    align = ("rw" if run else "") + "n" + "r" * (len(heads) - len(heads[:2] if run else []) - 1)
    return Table(key=key, title=title, heads=heads, align=align, rows=rows, notes=notes)


def _deployments(points: Sequence[Point]) -> list[str]:
    """What differs among the points: what all have in common would only push the numbers out of sight."""
    return [_unrepeated(series.setup, point) for series, point in zip(series_of(points), points, strict=True)]


def _unrepeated(name: str, point: Point) -> str:
    """`8×H200` for `H200 · 8×`."""
    parts = name.split(" · ")
    if point.gpu in parts and f"{point.gpus}×" in parts:
        parts.remove(f"{point.gpus}×")
        parts[parts.index(point.gpu)] = point.hardware
    return " · ".join(parts)


def _costs(point: Point) -> list[str]:
    output, total = point.dollars_output, point.dollars_total
    known = output is not None and output.reach is not None
    return [
        show_number(output.value) if output is not None else "-",
        f"{show_number(output.low)}–{show_number(output.high)}" if output is not None and known else "-",
        show_number(total.value) if total is not None else "-",
    ]


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


def _p99(point: Point) -> str:
    """The p99 of TTFT, marked where the sample cannot bound it from above; of imported numbers none may be known."""
    stat = point.ttft
    if stat is None or stat.p99 is None:
        return "-"
    unbounded = stat.p99_high is None and (stat.p99_low is not None or point.source != "imported")
    return ("≥ " if unbounded else "") + show_seconds(stat.p99)


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
    if priced(points):
        notes.append(
            "$/M: dollars per million tokens, of output and of input and output: what all GPUs of the deployment "
            "cost in an hour, over the throughput beside it; the interval is that of the output throughput."
        )
    if any(point.source == "simulated" for point in points):
        notes.append("Of simulated cells the interval is that of the prediction, 80 %.")
    if any(_p99(point).startswith("≥") for point in points):
        notes.append("≥: too few requests to bound this p99 from above (95 %; it takes 368 at least).")
    return notes


def _means(points: Sequence[Point]) -> bool:
    return any(stat is not None and stat.which == "mean" for p in points for stat in (p.ttft, p.tpot, p.itl, p.e2e))
