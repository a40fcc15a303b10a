"""Tables of a report: rows of text, made once for HTML and Markdown."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from loadstone.analyse.stored_run import StoredRun
from loadstone.core.groups import by_key
from loadstone.core.summary import Accuracy
from loadstone.core.units import show_load, show_number, show_seconds, show_share
from loadstone.report.data.frames import (
    DOLLARS,
    E2E,
    ITL,
    OUTPUT,
    PER_GPU,
    TPOT,
    TTFT,
    Measure,
    best_cells,
    load_label,
)
from loadstone.report.data.pairs import (
    UNSETTLED,
    Ratio,
    gpu_ratios,
    has_unsettled,
    heaviest,
    interval_words,
    lightest,
)
from loadstone.report.data.points import LATENCIES, LONG_RUN, CellPoint
from loadstone.report.data.series import list_common, series_of, workload_label
from loadstone.report.data.statistic import PREDICTED, Estimate
from loadstone.report.data.wording import clean, join
from loadstone.report.findings.sentence import within_slo
from loadstone.report.pages.terminal import UNBOUNDED, UNBOUNDED_NOTE
from loadstone.report.table import Table, drop_empty_columns

MAX_ROWS = 400
FILLED = 0.8
"""Share of a matrix of ratios that has to be known for it to be shown."""


def overview(runs: Sequence[StoredRun], points: Sequence[CellPoint]) -> Table:
    """Make a row for each run: what it was of, what was asked, whether it can be trusted."""
    rows = []
    for number, run in enumerate(runs, 1):
        own = [point for point in points if point.number == number]
        first = own[0] if own else None
        cells, trusted = len(run.summary.cells), sum(point.trusted for point in own)
        rows.append(
            [
                str(number),
                clean(run.info.run_id),
                run.info.source,
                _name_deployment(run),
                workload_label(first) if first else "",
                _loads(own),
                trust((trusted, cells), stated_cells([run]) > 0),
                (
                    f"${show_number(first.dollars_per_hour)}"
                    if first and first.dollars_per_hour is not None
                    else "-"
                ),
            ]
        )
    heads = ["run", "folder", "source", "deployment", "workload", "loads", "trusted", "$ per hour"]
    return drop_empty_columns(
        Table(key="runs", title="Runs", heads=heads, align="rlnwllnr", rows=rows, words=True)
    )


def _loads(points: Sequence[CellPoint]) -> str:
    """Write `rate 1, 2`, of each kind of load."""
    by_kind = by_key(
        ("batch" if point.offline else point.kind, show_load(point.load)) for point in points
    )
    return "; ".join(
        f"{kind} {', '.join(loads[:12])}" + (" …" if len(loads) > 12 else "")
        for kind, loads in by_kind.items()
    )


def _name_deployment(run: StoredRun) -> str:
    """Name the deployment; in a fleet only the first server was asked who it is."""
    servers = len(run.info.target.urls) if run.info.target else 0
    return clean(
        f"first of {servers} servers: {run.facts.label}" if servers > 1 else run.facts.label, 120
    )


def trust(cells: tuple[int, int], stated: bool) -> str:
    """`cells`: (trusted, all). `stated`: they are as another tool stated them."""
    trusted, every = cells
    if not every:
        return "no cells"
    return f"{trusted} of {every} cells" if trusted < every else "as reported" if stated else "yes"


def stated_cells(runs: Sequence[StoredRun]) -> int:
    """Return cells of which there is only what another tool stated: no records to judge by."""
    return sum(cell.is_as_stated for run in runs for cell in run.summary.cells)


def verdicts(runs: Sequence[StoredRun]) -> Table:
    """Make a table of every warning and error of every cell, the same ones together."""
    places: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for number, run in enumerate(runs, 1):
        of_cells = [
            (finding, f"{cell.load.kind} {show_load(cell.load.value)}")
            for cell in run.summary.cells
            for finding in cell.verdict.findings
        ]
        for finding, where in [
            *((finding, "as a whole") for finding in run.summary.findings),
            *of_cells,
        ]:
            if finding.severity != "info":
                key = finding.severity, clean(finding.kind, 60), clean(finding.remedy, 300)
                places[key].append(f"run {number}, {where}: {clean(finding.evidence, 300)}")
    rows = []
    for (severity, kind, remedy), own in sorted(
        places.items(), key=lambda at: (at[0][0] != "error", -len(at[1]))
    ):
        others = f"; and in {len(own) - 1} more cell{'s' * (len(own) > 2)}" if len(own) > 1 else ""
        rows.append([severity, kind.replace("_", " "), own[0] + others, remedy])
    heads = ["severity", "finding", "evidence", "remedy"]
    return Table(
        key="verdicts",
        title="Warnings and errors",
        heads=heads,
        align="llll",
        rows=rows,
        words=True,
    )


_RATE_NAMES = {
    "output_tokens_per_s": "output tok/s",
    "total_tokens_per_s": "total tok/s",
    "requests_per_s": "requests/s",
}


def stated_otherwise(runs: Sequence[StoredRun]) -> list[Table]:
    """Make a table of the numbers that imported files state otherwise than their requests do, or no
    table."""
    rows = []
    for number, run in enumerate(runs, 1):
        for cell in run.summary.cells:
            for each in cell.stated:
                digits = 3 if each.statistic else 4
                show = show_seconds if each.statistic else show_number
                name = _RATE_NAMES.get(each.metric) or clean(each.metric).removesuffix("_s").upper()
                rows.append(
                    [
                        str(number),
                        f"{cell.load.kind} {show_load(cell.load.value)}",
                        join(name, clean(each.statistic or ""), by=" "),
                        show(each.stated, digits),
                        show(each.ours, digits),
                        clean(each.definition or "-", 200),
                        clean(cell.measured_by or "-"),
                    ]
                )
    if not rows:
        return []
    heads = ["run", "load", "number", "in the file", "here", "the tool's own is", "tool"]
    notes = [
        "Definitions, token counts or failed requests make the difference. Here the definitions"
        " under the table of all cells hold, for all tools alike."
    ]
    if len(rows) > MAX_ROWS:
        notes.append(
            f"{len(rows) - MAX_ROWS} more are not shown; `loadstone show --json` has them as"
            " `stated`"
        )
    title = "What files report otherwise"
    table = Table(
        key="stated", title=title, heads=heads, align="rllrrww", rows=rows[:MAX_ROWS], notes=notes
    )
    return [drop_empty_columns(table)]


def cells(
    points: Sequence[CellPoint], *, key: str = "cells", title: str = "All cells", run: bool = True
) -> Table:
    """Make a table with the columns of published tables: load, prompts, throughput, latencies,
    prices, bounds.

    What is looked for first stands before the edge of a screen.
    """
    shown = points[:MAX_ROWS]
    names = _deployments(shown)
    loads = [
        join(
            load_label(point), point.how, point.prefix if point.prefix not in name else "", by=" · "
        )
        + ("" if point.trusted else f" {WARNED}")
        for point, name in zip(shown, names, strict=True)
    ]
    columns = (
        [("run", "r", [str(point.number) for point in shown]), ("deployment", "w", names)]
        if run
        else []
    )
    columns += [("load", "l" if any(point.how for point in shown) else "n", loads)]
    columns += [
        (_name_level(shown) if head == _INTERVAL else head, side, list(map(of, shown)))
        for head, side, of in _NUMBERS
    ]
    heads, align, texts = zip(*columns, strict=True)
    shared = " · ".join(list_common(points)) if run and points else ""
    notes = [*([f"All rows: {shared}."] if shared else []), *_notes(points), *_front(points)]
    if len(points) > MAX_ROWS:
        notes.append(f"{len(points) - MAX_ROWS} more cells are not shown; --format csv has all")
    rows = [list(row) for row in zip(*texts, strict=True)]
    return drop_empty_columns(
        Table(
            key=key,
            title=title,
            heads=list(heads),
            align="".join(align),
            rows=rows,
            notes=notes,
            sortable=run,
        )
    )


def scores(points: Sequence[CellPoint]) -> Table:
    """List each setup's best cell of one workload by each goal, and its load; the best of all is
    marked."""
    names = _deployments(points)
    goals = [
        (head, measure, show, best_cells(points, names, measure)) for head, measure, show in _GOALS
    ]
    rows = []
    for name in dict.fromkeys(names):
        row = [name]
        for _, measure, show, best in goals:
            text, at = "-", best.get(name)
            if at is not None:
                first = measure.of(at) == measure.of(next(iter(best.values())))
                text = f"{'★ ' if first else ''}{show(measure.of(at))} at {show_load(at.load)}"
            row.append(text)
        own = (
            point
            for point, whose in zip(points, names, strict=True)
            if whose == name and point.kind != "burst"
        )
        loads = [
            point.load / (point.gpus or 1) for point in within_slo(list(own))[0] if point.slo_met
        ]
        rows.append([*row, f"{max(loads):,.4g}" if loads else "-"])
    heads = ["setup", *(head for head, *_ in goals), "load per GPU within the SLO"]
    notes = [
        "★: the best by its number alone; the findings say by how much, and whether beyond the"
        " intervals."
    ]
    if any(point.failed for point in points):
        notes.append(
            "Cells with an error are left out: not all of what was asked for was measured there."
        )
    made = Table(
        key="scores",
        title="Best of each setup",
        heads=heads,
        align="w" + "r" * (len(goals) + 1),
        rows=rows,
    )
    return drop_empty_columns(
        msgspec.structs.replace(made, rows=rows if len(rows) > 1 else [], notes=notes)
    )


def _deployments(points: Sequence[CellPoint]) -> list[str]:
    """Name what differs among the points: what all have in common would only push the numbers out
    of sight."""
    return [
        _shorten(series.setup, point)
        for series, point in zip(series_of(points), points, strict=True)
    ]


def _shorten(name: str, point: CellPoint) -> str:
    """Write `8×H200` for `H200 · 8×`."""
    parts = name.split(" · ")
    if point.gpu in parts and f"{point.gpus}×" in parts:
        parts.remove(f"{point.gpus}×")
        parts[parts.index(point.gpu)] = point.hardware
    return " · ".join(parts)


def _number(stat: Estimate | None) -> str:
    return show_number(stat.value) if stat is not None else "-"


def _value(stat: Estimate | None) -> str:
    return (
        "-" if stat is None else show_seconds(stat.value) + (" ⌀" if stat.which == "mean" else "")
    )


def _bounds(stat: Estimate | None, show: Callable[[float | None], str] = show_seconds) -> str:
    if stat is None or stat.low is None or stat.high is None:
        return "-"
    low, high = show(stat.low), show(stat.high)
    number, _, unit = low.rpartition(" ")
    return f"{number if unit and high.endswith(f' {unit}') else low}–{high}"


def _show_roofline(point: CellPoint) -> str:
    """Write the roofline's TPOT over the one there was: 100% is as fast as the hardware can be."""
    light_s, tpot_s = point.roofline.tpot_s, point.tpot.value if point.tpot is not None else None
    return show_share(light_s / tpot_s if light_s and tpot_s else None)


def _p99(stat: Estimate | None, point: CellPoint) -> str:
    """Write a p99, marked where its requests cannot bound it from above; of sums nobody has
    them."""
    if stat is None or stat.p99 is None:
        return "-"
    return (UNBOUNDED if stat.p99_high is None and not point.sums else "") + show_seconds(stat.p99)


def _slo(point: CellPoint) -> str:
    if point.slo_met is None:
        return "-"
    sure = "" if point.p_met is None else f" ({show_share(point.p_met)})"
    return f"{'met' if point.slo_met else 'MISSED'}{sure}"


def _name_level(points: Sequence[CellPoint]) -> str:
    """Write the head of a column of intervals."""
    stats = (
        stat
        for point in points
        for stat in (point.ttft, point.tpot, point.output, point.dollars_output)
    )
    levels = {stat.level for stat in stats if stat is not None and stat.level is not None}
    return "95%" if levels <= {"95%"} else "80%" if levels == {PREDICTED} else _INTERVAL


_GOALS: tuple[tuple[str, Measure, Callable[[float | None], str]], ...] = (
    ("$/M output", DOLLARS, show_number),
    ("output tok/s per GPU", PER_GPU, lambda much: show_number(much, 4)),
    ("output tok/s", OUTPUT, lambda much: show_number(much, 4)),
    ("TTFT", TTFT, show_seconds),
    ("TPOT", TPOT, show_seconds),
)


def _show_right(graded: Accuracy | None) -> str:
    return "-" if graded is None or graded.accuracy is None else f"{100 * graded.accuracy:.1f}"


def _front(points: Sequence[CellPoint]) -> list[str]:
    """Name the cells than which no other has more throughput and no fewer right answers."""
    sound = [
        (each.output.value, each.graded.accuracy or 0.0, each)
        for each in points
        if each.output and each.graded and each.graded.undecided is None and not each.failed
    ]
    front = [
        f"{each.study or each.label or f'run {each.number}'} at {load_label(each)}"
        for speed, right, each in sound
        if not any(a >= speed and b >= right and (a, b) != (speed, right) for a, b, _ in sound)
    ]
    return (
        [
            "Neither faster with as many right answers nor the reverse:"
            f" {clean(', '.join(front), 600)}."
        ]
        if front
        else []
    )


_INTERVAL = "interval"
WARNED = "†"
_NUMBERS: tuple[tuple[str, str, Callable[[CellPoint], str]], ...] = (
    ("in", "r", lambda point: show_number(point.input_tokens, 1)),
    ("out", "r", lambda point: show_number(point.output_tokens, 1)),
    ("prompts", "r", lambda point: show_number(point.ok, 1)),
    ("req/s", "r", lambda point: show_number(point.requests_per_s)),
    ("output tok/s", "r", lambda point: show_number(point.output_tokens_per_s, 4)),
    (_INTERVAL, "u", lambda point: _bounds(point.output, show_number)),
    ("total tok/s", "r", lambda point: show_number(point.total_tokens_per_s, 4)),
    ("$/M output", "r", lambda point: _number(point.dollars_output)),
    (_INTERVAL, "u", lambda point: _bounds(point.dollars_output, show_number)),
    ("$/M total", "u", lambda point: _number(point.dollars_total)),
    ("$/M list in", "u", lambda point: _number(point.dollars_input)),
    ("J/token", "r", lambda point: _number(point.j_output)),
    ("J/token total", "u", lambda point: _number(point.j_total)),
    ("GPUs' W", "u", lambda point: show_number(point.power_w)),
    ("right %", "r", lambda point: _show_right(point.graded)),
    (
        "95% right",
        "u",
        lambda point: (
            f"{100 * each.low:.1f}–{100 * each.high:.1f}" if (each := point.graded) else "-"
        ),
    ),
    ("TTFT", "r", lambda point: _value(point.ttft)),
    (_INTERVAL, "u", lambda point: _bounds(point.ttft)),
    ("p99", "u", lambda point: _p99(point.ttft, point)),
    ("TPOT", "r", lambda point: _value(point.tpot)),
    (_INTERVAL, "u", lambda point: _bounds(point.tpot)),
    ("p99", "u", lambda point: _p99(point.tpot, point)),
    ("roofline", "r", _show_roofline),
    ("MBU", "r", lambda point: show_share(point.roofline.mbu)),
    ("MFU", "r", lambda point: show_share(point.roofline.mfu)),
    ("ITL", "r", lambda point: _value(point.itl)),
    ("p99", "u", lambda point: show_seconds(point.itl.p99 if point.itl is not None else None)),
    ("E2E", "r", lambda point: _value(point.e2e)),
    ("p99", "u", lambda point: _p99(point.e2e, point)),
    (
        "sessions/h",
        "r",
        lambda point: show_number(each.per_hour) if (each := point.sessions) else "-",
    ),
    (
        "task",
        "u",
        lambda point: (
            show_seconds(each.task_s.p50) if (each := point.sessions) and each.task_s else "-"
        ),
    ),
    ("cached", "r", lambda point: show_share(point.hit_share)),
    ("could be", "u", lambda point: show_share(point.could_share)),
    ("answer", "r", lambda point: show_seconds(point.answer_s)),
    ("thinking", "u", lambda point: show_share(point.thinking_share)),
    ("accepted", "r", lambda point: show_number(point.accepted_length)),
    ("SLO", "r", _slo),
    ("attained", "u", lambda point: show_share(point.attainment, 1)),
    ("goodput/s", "u", lambda point: show_number(point.goodput_per_s)),
)
"""The columns of numbers in their order, each with its side (Table.align)."""


_EXPLAINED: tuple[tuple[Callable[[CellPoint], bool], str], ...] = (
    (
        lambda point: bool(point.roofline.tpot_s),
        (
            "Roofline: the TPOT that the hardware allows, at the data sheet's bandwidth and FLOP/s"
            " with as many requests decoding, over the TPOT of the cell."
        ),
    ),
    (
        lambda point: point.roofline.mbu is not None or point.roofline.mfu is not None,
        (
            "MBU: bytes of weights and KV cache that the decode steps read, over the bandwidth of"
            " all GPUs' memory. MFU: FLOPs of all tokens computed, prompts and answers, over the"
            " peak of all GPUs for the weights' type."
        ),
    ),
    (
        lambda point: point.dollars_per_hour is not None,
        (
            "$/M: dollars per million tokens, output only, or input and output: the hourly cost of"
            " all GPUs of the deployment, over the throughput beside it; the interval is that of"
            " the output throughput. List in: what input tokens must be sold for to pay for the"
            " GPUs, where an output token costs 4 times as much, one from a prefix cache a tenth."
        ),
    ),
    (
        lambda point: point.power_w is not None,
        (
            "J/token: energy of all GPUs that were read, over the output tokens (total: and input"
            " tokens), in the window of the throughput; W: their mean power over the cell, its"
            " warm-up included."
        ),
    ),
    (
        lambda point: point.sessions is not None,
        (
            "Task: from a session's first call to its last answer, median. Cached: the share of all"
            " prompts' tokens that was in a prefix cache; could be: the share that the plan has in"
            " common with earlier calls."
        ),
    ),
    (
        lambda point: point.thinking_share is not None,
        (
            "Answer: time to the first token that is no thinking; thinking: its share of the output"
            " tokens."
        ),
    ),
    (
        lambda point: point.accepted_length is not None,
        "Accepted: tokens that a step with drafts gives, the one that it always gives included.",
    ),
)
"""What some columns mean, where a cell has a number in them."""


def _notes(points: Sequence[CellPoint]) -> list[str]:
    if not points:
        return []
    loops = {
        "in closed loops": {point.since for point in points if point.kind == "concurrency"},
        "in open loops and bursts": {
            point.since for point in points if point.kind != "concurrency"
        },
    }
    origins = {
        name: " or ".join(sorted(origins_of)) for name, origins_of in loops.items() if origins_of
    }
    alike = len(set(origins.values())) == 1
    since = (
        sorted(set(origins.values()))
        if alike
        else [f"{origin} {name}" for name, origin in origins.items()]
    )
    windows = sorted({point.window for point in points} - {LONG_RUN})
    window = f" over the {windows[0]}" if windows else ""
    if len(windows) > 1:
        window += f" (for bursts, and for loads that the server did not keep up with: {windows[1]})"
    if any(point.window == LONG_RUN for point in points):
        window += f"{', ' if windows else ' '}of arrival rates that were kept up with: {LONG_RUN}"
    notes = [
        f"Medians{'; ⌀: a mean, where no median is known' if _means(points) else ''}. "
        f"TTFT and E2E count from {', from '.join(since)}. "
        f"TPOT = (tT − t1)/(T − 1). Throughput{window}; total: input and output."
    ]
    notes += [text for applies, text in _EXPLAINED if any(map(applies, points))]
    level = _name_level(points)
    if level != "95%":
        measured = "95%; for simulated cells, " if level == _INTERVAL else ""
        notes.append(f"Intervals: {measured}80%, of the prediction.")
    if any(not point.trusted for point in points):
        notes.append(f"{WARNED}: the cell carries a warning; Verdicts says which.")
    if any(
        _p99(stat, point).startswith(UNBOUNDED)
        for point in points
        for stat in (point.ttft, point.tpot, point.e2e)
    ):
        notes.append(f"{UNBOUNDED_NOTE}.")
    bounds = by_key((point.slo, point.number) for point in points if point.slo)
    for slo, runs in bounds.items():
        of = f" of run {', '.join(map(str, sorted(set(runs))))}" if len(bounds) > 1 else ""
        notes.append(f"SLO{of}: {slo}.")
    if any(point.p_met is not None for point in points):
        notes.append("In brackets after an SLO: the probability that it is met.")
    if any(point.attainment is not None for point in points):
        notes.append(
            "Attained: share of the requests sent that meet all bounds; goodput: these requests,"
            " per second of the whole cell."
        )
    return notes


def _means(points: Sequence[CellPoint]) -> bool:
    stats: Iterable[Estimate | None] = (
        getattr(point, name) for point in points for name in LATENCIES
    )
    return any(stat is not None and stat.which == "mean" for stat in stats)


def ratios(points: Sequence[CellPoint]) -> list[Table]:
    """Make tables of GPU against GPU: ratios of throughput and latency, for all that is equal
    otherwise, a row at the lightest load and one at the highest.
    """
    pairs: dict[tuple[str, str], dict[Any, list[Ratio]]] = defaultdict(lambda: defaultdict(list))
    every = gpu_ratios(points)
    ends = {id(ratio): ratio for ratio in (*lightest(every), *heaviest(every))}
    for ratio in ends.values():
        over = ratio.over
        key = (
            over.engine,
            over.model,
            over.gpus,
            over.parallel,
            over.kind,
            over.load,
            workload_label(over),
        )
        pairs[over.gpu, ratio.under.gpu][key].append(ratio)
    made = []
    for (better, worse), by_cell in pairs.items():
        placed: list[tuple[Any, list[str]]] = []
        for own in by_cell.values():
            point = own[0].over
            times = {
                ratio.measure.key: each.times for ratio in own if (each := ratio.effect) is not None
            }
            improvements = [
                times.get(measure.key, "-") for measure in (OUTPUT, TTFT, TPOT, ITL, E2E)
            ]
            where = join(load_label(point), workload_label(point))
            where += (
                ""
                if all(ratio.over.trusted and ratio.under.trusted for ratio in own)
                else f" {WARNED}"
            )
            place = (
                point.model or "-",
                point.engine,
                point.gpus or 0,
                point.parallel,
                workload_label(point),
                point.kind,
                point.load,
            )
            placed.append(
                (
                    place,
                    [
                        point.model or "-",
                        point.engine,
                        f"{point.gpus or '?'}×",
                        where,
                        *improvements,
                    ],
                )
            )
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
                (
                    "times better, with the interval:"
                    f" {interval_words(itertools.chain(*by_cell.values()))}, and how much repeats"
                    " of one configuration differ (TTFT 8.8%, others 3.4%)"
                ),
                *_doubtful(rows),
                *(
                    [f"{UNSETTLED}."]
                    if has_unsettled(ratio for own in by_cell.values() for ratio in own)
                    else []
                ),
            ],
        )
        table = drop_empty_columns(table)
        filled = [text != "-" for row in table.rows for text in row[4:]]
        if sum(filled) >= FILLED * len(filled):
            made.append(table)
    return made


def _doubtful(rows: Sequence[Sequence[str]]) -> list[str]:
    return (
        [f"{WARNED}: a cell carries a warning"]
        if any(text.endswith(f" {WARNED}") for row in rows for text in row)
        else []
    )
