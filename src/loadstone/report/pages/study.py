"""Show the study that a report's runs belong to."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

import msgspec

from loadstone.analyse.stored_run import StoredRun
from loadstone.core.groups import by_key
from loadstone.core.units import show_load, show_number, show_seconds
from loadstone.report.data.frames import E2E, INPUTS, OUTPUT, TPOT, TTFT, Measure, load_label
from loadstone.report.data.pairs import effect, pair_predictions
from loadstone.report.data.points import CellPoint
from loadstone.report.data.series import workload_label
from loadstone.report.data.statistic import Estimate
from loadstone.report.data.wording import clean, join
from loadstone.report.findings.sentence import setup
from loadstone.report.table import Table, drop_empty_columns

_MEASURES: tuple[
    tuple[str, Callable[[CellPoint], Estimate | None], Callable[[float], str]], ...
] = (
    ("output tok/s", lambda point: point.output, lambda value: show_number(value, 4)),
    ("texts/s", lambda point: point.pooled, lambda value: show_number(value, 4)),
    ("TTFT", lambda point: point.ttft, show_seconds),
    ("TPOT", lambda point: point.tpot, show_seconds),
)


class StudyCell(msgspec.Struct, kw_only=True):
    """A workload at one load of one deployment, which the study calls `name`. `runs`: folders of
    its repeats, of `planned`; `simulated`: the folder in which it was simulated, where these were
    measured; `found`: of a search its answers, in words."""

    name: str
    workload: str
    load: str
    planned: int = 0
    runs: list[Path] = []
    simulated: Path | None = None
    found: str = ""


class StudyPart(msgspec.Struct, kw_only=True):
    """Holds what a report says of a study, beyond what it says of its runs.

    missing      launches with cells that are missing, and why, a line each
    differences  sentences on what differs between runs though the study does not vary it
    file         its text, without secrets
    table        its cells, see table_cells()
    against      its settings against the first, see compare_settings(); `conclusion`: in a sentence
    shared       (name, value) of what all its runs were made with; `apart`: by deployment, what is
                 not alike
    """

    name: str
    missing: list[str]
    differences: list[str]
    cells: list[StudyCell]
    file: str
    shared: list[tuple[str, str]]
    apart: list[tuple[str, list[tuple[str, str]]]]
    table: Table | None = None
    against: Table | None = None
    conclusion: str = ""


def map_cells(study: StudyPart, runs: Sequence[StoredRun]) -> dict[int, tuple[str, int]]:
    """Map a run's number to the name of its setup and the number of its cell."""
    numbers = {run.folder: number for number, run in enumerate(runs, 1)}
    return {
        numbers[folder]: (clean(cell.name, 80), number)
        for number, cell in enumerate(study.cells)
        for folder in (*cell.runs, cell.simulated)
        if folder in numbers
    }


def table_cells(
    study: StudyPart, runs: Sequence[StoredRun], points: Sequence[CellPoint]
) -> Table | None:
    """Make a row for each cell: medians over its repeats, how far these lie apart, and what was
    predicted; None where nothing was repeated, predicted or searched.
    """
    if all(cell.planned == 1 and cell.simulated is None and not cell.found for cell in study.cells):
        return None
    numbers = {run.folder: number for number, run in enumerate(runs, 1)}
    # A cell of a study is the only one of its run.
    by_number = {point.number: point for point in points}
    rows: list[_Row] = []
    for cell in study.cells:
        measured = _points(cell.runs, numbers, by_number)
        predicted = _points([cell.simulated] if cell.simulated else [], numbers, by_number)
        load = f"{cell.load}: {cell.found}" if cell.found else cell.load
        names = [clean(cell.name, 120), cell.workload, load, f"{len(measured)} of {cell.planned}"]
        rows.append((names, measured, predicted))
    return _beside(rows)


def predictions(points: Sequence[CellPoint]) -> Table:
    """Set what was measured beside what was predicted for it, at each load that has both."""
    return _beside(
        [
            (
                [setup(measured), workload_label(measured), load_label(measured), "-"],
                [measured],
                [point],
            )
            for simulated, observed in pair_predictions(points)
            for measured in observed
            for point in simulated
            if point.load == measured.load
        ]
    )


_Row = tuple[list[str], list[CellPoint], list[CellPoint]]
"""Deployment, workload, load and repeats in words; what was measured, and predicted."""


def _beside(loads: Sequence[_Row]) -> Table:
    """Make a row for each load: medians over its repeats, and what was predicted."""
    rows = []
    errors: dict[str, list[float]] = {}
    inside: list[bool] = []
    for names, measured, predicted in loads:
        row = list(names)
        for name, value, show in _MEASURES:
            values = [stat.value for point in measured if (stat := value(point)) is not None]
            middle = statistics.median(values) if values else None
            stat = value(predicted[0]) if predicted else None
            row += [
                show(middle) if middle is not None else "-",
                f"{show(min(values))}–{show(max(values))}" if len(values) > 1 else "-",
                show(stat.value) if stat is not None else "-",
            ]
            if stat is None or not middle:
                row.append("-")
                continue
            row.append(_show_error(stat.value, middle))
            errors.setdefault(name, []).append(abs(stat.value / middle - 1))
            if stat.low is not None and stat.high is not None:
                inside.append(stat.low <= middle <= stat.high)
        rows.append(row)
    columns = [
        head for name, _, _ in _MEASURES for head in (name, "from–to", "predicted", "off by")
    ]
    heads = ["deployment", "workload", "load", "repeats", *columns]
    align = "wuur" + "ruuu" * len(_MEASURES)
    notes = [
        "Medians over repeats of each run's own median, from the least of these to the greatest."
    ]
    if errors:
        medians = ", ".join(
            f"{name} {100 * statistics.median(values):.1f}%" for name, values in errors.items()
        )
        within = (
            f" {sum(inside):,} of {len(inside):,} measured numbers lie in the 80% interval"
            " predicted."
        )
        notes.append(f"Predictions are off by, in the median: {medians}.{within if inside else ''}")
    title = "Measured and predicted, by load" if errors else "Repeats, by load"
    return drop_empty_columns(
        Table(key="by-cell", title=title, heads=heads, align=align, rows=rows, notes=notes)
    )


def _show_error(predicted: float, measured: float) -> str:
    """Write by how much a prediction is off: `−3.2%`."""
    return f"{100 * (predicted / measured - 1):+.1f}%".replace("-", "−")


def _points(
    folders: Iterable[Path], numbers: dict[Path, int], points: dict[int, CellPoint]
) -> list[CellPoint]:
    found = (points.get(numbers.get(folder, 0)) for folder in folders)
    return [point for point in found if point is not None]


_Pairs = Sequence[tuple[CellPoint, CellPoint]]
_Measures = tuple[tuple[str, Measure], ...]
_COMPARED: _Measures = (("throughput", OUTPUT), ("TTFT", TTFT), ("TPOT", TPOT))
_OF_TEXTS: _Measures = (("throughput", INPUTS), ("E2E", E2E))
"""Those of requests for vectors or scores."""


def compare_settings(
    study: StudyPart, points: Sequence[CellPoint], cell_of: Mapping[int, tuple[str, int]]
) -> tuple[Table | None, str]:
    """Set each setting of the study against its first, the baseline, and conclude in a sentence;
    None where it has but one. `points`: repeats merged; `cell_of` as of map_cells()."""
    measured = [point for point in points if not point.is_simulated] or points
    cells = [(study.cells[cell_of[point.number][1]], point) for point in measured]
    settings = list(dict.fromkeys(clean(cell.name, 80) for cell in study.cells))
    by_place = {(point.setup.study, cell.workload, cell.load): point for cell, point in cells}
    by_work = by_key((cell.workload, (cell.load, point)) for cell, point in cells)
    works = sorted(by_work, key=lambda work: -sum(point.ok or 0 for _, point in by_work[work]))
    baseline, *settings_tried = settings
    compared = _OF_TEXTS if all(point.pooled for point in measured) else _COMPARED
    rows: list[list[str]] = []
    for work in works:
        loads = list(dict.fromkeys(load for load, _ in by_work[work]))
        for name in settings_tried:
            places = (
                (by_place.get((name, work, load)), by_place.get((baseline, work, load)))
                for load in loads
            )
            pairs = [(point, base) for point, base in places if point and base]
            if pairs:
                texts = [_compare(pairs, measure) for _, measure in compared]
                rows.append([name, work, *texts, _compare_slo(pairs)])
    if not rows:
        return None, ""
    notes = [
        f"Against {baseline}, the baseline: the geometric mean over the loads that both have. Not"
        " proven: at half of the loads or more the difference is within its interval."
    ]
    heads = ["setting", "workload", *(name for name, _ in compared), "SLO"]
    table = Table(
        key="against",
        title=f"Against {baseline}",
        heads=heads,
        align="wnr" + "r" * len(compared),
        rows=rows,
        notes=notes,
        words=True,
    )
    names = [name for name, _ in compared]
    return table, _conclude([row for row in rows if row[1] == works[0]], baseline, names)


def _compare(pairs: _Pairs, measure: Measure) -> str:
    """Write `12% better`, `3.3× worse`, or `−12% (not proven)`."""
    values = [(measure.of(point), measure.of(base)) for point, base in pairs]
    ratios = [value / base for value, base in values if value and base]
    if not ratios:
        return "-"
    ratio = statistics.geometric_mean(ratios)
    effects = [effect(point, base, measure) for point, base in pairs]
    clear = [found for found in effects if found is not None and found.clear]
    proven = 2 * len(clear) > len(pairs) and len({found.ratio > 1 for found in clear}) == 1
    change = _show_error(ratio, 1.0) if abs(ratio - 1) < 0.1 else f"{100 * (ratio - 1):+.0f}%"
    if not proven or (clear[0].ratio > 1) != (ratio > 1):
        return f"{change.replace('-', '−')} (not proven)"
    word = "better" if (ratio > 1) == (measure.better == "higher") else "worse"
    if 0.5 < ratio < 2:
        return f"{change[1:]} {word}"
    return f"{show_number(max(ratio, 1 / ratio), 2)}× {word}"


def _compare_slo(pairs: _Pairs) -> str:
    """Write up to which load each side holds its bounds."""
    if all(point.slo_met is None for point, _ in pairs):
        return "-"
    held, base_held = (
        [point.load for point in takewhile(lambda point: point.holds, side)]
        for side in zip(*sorted(pairs, key=lambda pair: pair[0].load), strict=True)
    )
    if len(held) == len(base_held):
        return f"{_name_held(held)}, as the baseline"
    word = "better" if len(held) > len(base_held) else "worse"
    return f"{_name_held(held)}, the baseline {_name_held(base_held)}: {word}"


def _name_held(loads: Sequence[float]) -> str:
    return f"up to {show_load(loads[-1])}" if loads else "at no load"


def _conclude(rows: Sequence[Sequence[str]], baseline: str, measures: Sequence[str]) -> str:
    """Say in a sentence what is proven of each setting."""
    names: dict[str, list[str]] = {}
    for name, _, *texts, slo in rows:
        proven = [
            f"{text} in {measure}"
            for measure, text in zip(measures, texts, strict=True)
            if text.endswith((" better", " worse"))
        ]
        held = f"SLO held {slo.rpartition(': ')[0]}" if ": " in slo else ""
        if proven or held:
            names.setdefault(join(*proven, held), []).append(name)
    if not names:
        return f"No setting is proven to differ from {baseline}, the baseline."
    parts = [f"{join(*alike, by=' and ')}: {words}" for words, alike in names.items()]
    undecided = sum(map(len, names.values())) < len(rows)
    rest = "; of no other is a difference proven" if undecided else ""
    return f"Against {baseline}, the baseline, {'; '.join(parts)}{rest}."
