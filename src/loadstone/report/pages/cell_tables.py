"""Tables of cells: all loads, the best of each setup, and setups against each other."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any

from msgspec.structs import replace

from loadstone.core.groups import by_key
from loadstone.core.units import show_load, show_number, show_seconds
from loadstone.report.data.frames import (
    DOLLARS,
    E2E,
    INPUTS,
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
from loadstone.report.data.points import LONG_RUN, CellPoint
from loadstone.report.data.series import list_common, series_of, workload_label
from loadstone.report.data.statistic import PREDICTED
from loadstone.report.data.wording import clean, join
from loadstone.report.findings.sentence import within_slo
from loadstone.report.pages.columns import INTERVAL, PAGE, UNBOUNDED_NOTE
from loadstone.report.pages.tables import MAX_ROWS
from loadstone.report.table import Column, Table, drop_empty_columns, tabulate

FILLED = 0.8
"""Share of a matrix of ratios that has to be known for it to be shown."""
WARNED = "†"


def cells(
    points: Sequence[CellPoint],
    *,
    key: str = "cells",
    title: str = "All loads",
    run: bool = True,
    place: Callable[[CellPoint], int] = lambda _: 0,
) -> Table:
    """Make a table with the columns of published tables: load, prompts, throughput, latencies,
    prices, bounds.

    What is looked for first stands before the edge of a screen. `place`: of a point's workload.
    """
    shown = sorted(points, key=place)[:MAX_ROWS]
    names = dict(zip(map(id, shown), _deployments(shown), strict=True))
    load_side = "l" if any(point.demand.how for point in shown) else "n"
    naming = [
        Column[CellPoint]("run", lambda point: str(point.number)),
        Column[CellPoint]("deployment", lambda point: names[id(point)], "w"),
    ]
    load = Column[CellPoint](
        "load", lambda point: _describe_load(point, names[id(point)]), load_side
    )
    table = tabulate([*(naming if run else []), load, *PAGE], shown, key=key, title=title)
    level = _name_level(shown)
    shared = " · ".join(list_common(points)) if run and points else ""
    notes = [*([f"All rows: {shared}."] if shared else []), *_notes(points), *_front(points)]
    if len(points) > MAX_ROWS:
        notes.append(f"{len(points) - MAX_ROWS} more loads are not shown; --format csv has all")
    heads = [level if head == INTERVAL else head for head in table.heads]
    places = list(map(place, shown)) if key == "cells" else []
    return drop_empty_columns(replace(table, heads=heads, notes=notes, places=places))


def _describe_load(point: CellPoint, deployment: str) -> str:
    prefix = point.demand.prefix if point.demand.prefix not in deployment else ""
    text = join(load_label(point), point.demand.how, prefix, by=" · ")
    return text if point.trusted else f"{text} {WARNED}"


_GOALS: tuple[tuple[str, Measure, Callable[[float | None], str]], ...] = (
    ("$/M output", DOLLARS, show_number),
    ("output tok/s per GPU", PER_GPU, lambda rate: show_number(rate, 4)),
    ("output tok/s", OUTPUT, lambda rate: show_number(rate, 4)),
    ("texts/s", INPUTS, lambda rate: show_number(rate, 4)),
    ("TTFT", TTFT, show_seconds),
    ("TPOT", TPOT, show_seconds),
)


def scores(points: Sequence[CellPoint]) -> Table:
    """List each setup's best cell of one workload by each goal, and its load; the best of all is
    marked."""
    names = _deployments(points)
    points_of = by_key(zip(names, points, strict=True))
    goals = [
        Column(head, _best_of(best_cells(points, names, measure), measure, show))
        for head, measure, show in _GOALS
    ]
    notes = [
        "★: the best by its number alone; the findings say by how much, and whether beyond the"
        " intervals."
    ]
    if any(point.failed for point in points):
        notes.append(
            "Loads with an error are left out: not all of what was asked for was measured there."
        )
    table = tabulate(
        [
            Column("setup", str, "w"),
            *goals,
            Column("load per GPU within the SLO", lambda name: _capacity(points_of[name])),
        ],
        points_of,
        key="scores",
        title="Best of each setup",
    )
    rows = table.rows if len(table.rows) > 1 else []
    return drop_empty_columns(replace(table, rows=rows, notes=notes))


def _best_of(
    best: dict[str, CellPoint], measure: Measure, show: Callable[[float | None], str]
) -> Callable[[str], str]:
    """Return what shows the best cell of a setup, by its name."""
    first = measure.of(next(iter(best.values()))) if best else None

    def show_best(name: str) -> str:
        point = best.get(name)
        if point is None:
            return "-"
        value = measure.of(point)
        return f"{'★ ' if value == first else ''}{show(value)} at {show_load(point.load)}"

    return show_best


def _capacity(points: Sequence[CellPoint]) -> str:
    """Write the largest load of a GPU within the SLO."""
    met, _ = within_slo([point for point in points if point.kind != "burst"])
    loads = [point.load / (point.setup.gpus or 1) for point in met if point.holds]
    return f"{max(loads):,.4g}" if loads else "-"


def _deployments(points: Sequence[CellPoint]) -> list[str]:
    """Name what differs among the points: what all have in common would only push the numbers out
    of sight."""
    return [
        _shorten(series.setup, point)
        for series, point in zip(series_of(points), points, strict=True)
    ]


def _shorten(name: str, point: CellPoint) -> str:
    """Write `8×H200` for `H200 · 8×`."""
    parts, gpus = name.split(" · "), f"{point.setup.gpus}×"
    if point.setup.gpu in parts and gpus in parts:
        parts.remove(gpus)
        parts[parts.index(point.setup.gpu)] = point.setup.hardware
    return " · ".join(parts)


def _name_level(points: Sequence[CellPoint]) -> str:
    """Write the head of a column of intervals."""
    stats = (
        stat
        for point in points
        for stat in (point.ttft, point.tpot, point.output, point.dollars.output)
    )
    levels = {stat.level for stat in stats if stat is not None and stat.level is not None}
    if levels <= {"95%"}:
        return "95%"
    return "80%" if levels == {PREDICTED} else INTERVAL


def _front(points: Sequence[CellPoint]) -> Iterator[str]:
    """Name the cells than which no other has more throughput and no fewer right answers."""
    sound = [
        (point.output.value, point.graded.accuracy or 0.0, point)
        for point in points
        if point.output and point.graded and point.graded.undecided is None and not point.failed
    ]
    front = [
        f"{point.setup.study or point.setup.label or f'run {point.number}'} at {load_label(point)}"
        for speed, right, point in sound
        if not any(a >= speed and b >= right and (a, b) != (speed, right) for a, b, _ in sound)
    ]
    if front:
        yield (
            "Neither faster with as many right answers nor the reverse:"
            f" {clean(', '.join(front), 600)}."
        )


_EXPLAINED: tuple[tuple[Callable[[CellPoint], bool], str], ...] = (
    (
        lambda point: bool(point.roofline.tpot_s),
        (
            "Roofline: the TPOT that the hardware allows, at the data sheet's bandwidth and FLOP/s"
            " with as many requests decoding, over the TPOT of the load."
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
        lambda point: point.dollars.per_hour is not None,
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
            " tokens), in the window of the throughput; W: their mean power over the load, its"
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


def _notes(points: Sequence[CellPoint]) -> Iterator[str]:
    """Yield what the columns mean."""
    if not points:
        return
    stats = [
        stat for point in points for stat in (point.ttft, point.tpot, point.itl, point.e2e) if stat
    ]
    means = any(stat.which == "mean" for stat in stats)
    yield (
        f"Medians{'; ⌀: a mean, where no median is known' if means else ''}. "
        f"TTFT and E2E count from {_origins(points)}. "
        f"TPOT = (tT − t1)/(T − 1). Throughput{_windows(points)}; total: input and output."
    )
    yield from (text for applies, text in _EXPLAINED if any(map(applies, points)))
    by_text = by_key(
        (point.demand.work or "random words", point.accepted_length)
        for point in points
        if point.accepted_length is not None
    )
    if len(by_text) > 1:
        shown = (f"{show_number(median(lengths))} on {text}" for text, lengths in by_text.items())
        yield f"Accepted by text, the median of its loads: {', '.join(shown)}."
    level = _name_level(points)
    if level != "95%":
        measured = "95%; for simulated loads, " if level == INTERVAL else ""
        yield f"Intervals: {measured}80%, of the prediction."
    if any(not point.trusted for point in points):
        yield f"{WARNED}: the load carries a warning, see Warnings."
    marked = (stat for point in points for stat in (point.ttft, point.tpot, point.e2e) if stat)
    if any(stat.unbounded and stat.p99 is not None for stat in marked):
        yield f"{UNBOUNDED_NOTE}."
    bounds = by_key((point.demand.slo, point.number) for point in points if point.demand.slo)
    for slo, numbers in bounds.items():
        runs = f" of run {', '.join(map(str, sorted(set(numbers))))}" if len(bounds) > 1 else ""
        yield f"SLO{runs}: {slo}."
    if any(point.p_met is not None for point in points):
        yield "In brackets after an SLO: the probability that it is met."
    if any(point.attainment is not None for point in points):
        yield (
            "Attained: share of the requests sent that meet all bounds; goodput: these requests,"
            " per second of the whole load."
        )


def _origins(points: Sequence[CellPoint]) -> str:
    """Say from when TTFT and E2E count, in closed loops and in others."""
    loops = by_key(
        (
            "in closed loops" if point.kind == "concurrency" else "in open loops and bursts",
            point.since,
        )
        for point in sorted(points, key=lambda point: point.kind != "concurrency")
    )
    origins = {loop: " or ".join(sorted(set(since))) for loop, since in loops.items()}
    if len(set(origins.values())) == 1:
        return next(iter(origins.values()))
    return ", from ".join(f"{origin} {loop}" for loop, origin in origins.items())


def _windows(points: Sequence[CellPoint]) -> str:
    """Say over which windows throughputs are."""
    windows = sorted({point.measured_over for point in points} - {LONG_RUN})
    text = f" over the {windows[0]}" if windows else ""
    if len(windows) > 1:
        text += f" (for bursts, and for loads that the server did not keep up with: {windows[1]})"
    if any(point.window == LONG_RUN for point in points):
        text += f"{', ' if windows else ' '}of arrival rates that were kept up with: {LONG_RUN}"
    return text


_COMPARED = (
    (OUTPUT, "output throughput"),
    *((m, f"lower {m.name.split()[0]}") for m in (TTFT, TPOT, ITL, E2E)),
)


def ratios(points: Sequence[CellPoint]) -> list[Table]:
    """Make tables of GPU against GPU: ratios of throughput and latency, for all that is equal
    otherwise, a row at the lightest load and one at the highest.
    """
    every = gpu_ratios(points)
    ends = {id(ratio): ratio for ratio in (*lightest(every), *heaviest(every))}.values()
    pairs = by_key(((ratio.over.setup.gpu, ratio.under.setup.gpu), ratio) for ratio in ends)
    tables = [_ratio_table(*gpus, compared) for gpus, compared in pairs.items()]
    filled = [[text != "-" for row in table.rows for text in row[4:]] for table in tables]
    return [
        table for table, full in zip(tables, filled, strict=True) if sum(full) >= FILLED * len(full)
    ]


def _ratio_table(better: str, worse: str, compared: Sequence[Ratio]) -> Table:
    by_cell = by_key((_place(ratio.over), ratio) for ratio in compared)
    columns: list[Column[list[Ratio]]] = [
        Column("model", lambda row: row[0].over.setup.model or "-", "l"),
        Column("engine", lambda row: row[0].over.setup.engine, "l"),
        Column("GPUs", lambda row: f"{row[0].over.setup.gpus or '?'}×"),
        Column("workload", _name_compared, "l"),
        *(Column(head, partial(_show_times, measure)) for measure, head in _COMPARED),
    ]
    rows = [row for _, row in sorted(by_cell.items())]
    notes = [
        (
            f"times better, with the interval: {interval_words(compared)}, and how much repeats"
            " of one configuration differ (TTFT 8.8%, others 3.4%)"
        )
    ]
    if any(map(_is_warned, rows)):
        notes.append(f"{WARNED}: a load carries a warning")
    if has_unsettled(compared):
        notes.append(f"{UNSETTLED}.")
    return drop_empty_columns(
        tabulate(
            columns,
            rows[:MAX_ROWS],
            key=f"ratios-{better}-{worse}",
            title=f"{better} against {worse}",
            notes=notes,
        )
    )


def _place(point: CellPoint) -> tuple[Any, ...]:
    """Return the place of a cell's row in a table of ratios."""
    setup = point.setup
    machine = setup.model or "-", setup.engine, setup.gpus or 0, setup.parallel
    return *machine, workload_label(point), point.kind, point.load


def _is_warned(row: Sequence[Ratio]) -> bool:
    return not all(ratio.over.trusted and ratio.under.trusted for ratio in row)


def _name_compared(row: Sequence[Ratio]) -> str:
    text = join(load_label(row[0].over), workload_label(row[0].over))
    return f"{text} {WARNED}" if _is_warned(row) else text


def _show_times(measure: Measure, row: Sequence[Ratio]) -> str:
    """Show how many times better it is by this measure, with the interval."""
    effects = (ratio.effect for ratio in row if ratio.measure.key == measure.key)
    return next((effect.times for effect in effects if effect is not None), "-")
