"""Show the study that a report's runs belong to."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from loadstone.analyse.stored_run import StoredRun
from loadstone.core.units import show_number, show_seconds
from loadstone.report.data.points import CellPoint
from loadstone.report.data.statistic import Estimate
from loadstone.report.data.wording import clean
from loadstone.report.table import Table, drop_empty_columns

_MEASURES: tuple[
    tuple[str, Callable[[CellPoint], Estimate | None], Callable[[float], str]], ...
] = (
    ("output tok/s", lambda point: point.output, lambda value: show_number(value, 4)),
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
    by_number = {
        point.number: point for point in points
    }  # a cell of a study is the only one of its run
    rows = []
    errors: dict[str, list[float]] = {}
    inside: list[bool] = []
    for cell in study.cells:
        measured = _points(cell.runs, numbers, by_number)
        predicted = _points([cell.simulated] if cell.simulated else [], numbers, by_number)
        load = f"{cell.load}: {cell.found}" if cell.found else cell.load
        row = [clean(cell.name, 120), cell.workload, load, f"{len(measured)} of {cell.planned}"]
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
            error = stat.value / middle - 1
            row.append(f"{100 * error:+.1f}%".replace("-", "−"))
            errors.setdefault(name, []).append(abs(error))
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
    title = "Measured and predicted, by cell" if errors else "Repeats, by cell"
    return drop_empty_columns(
        Table(key="by-cell", title=title, heads=heads, align=align, rows=rows, notes=notes)
    )


def _points(
    folders: Iterable[Path], numbers: dict[Path, int], points: dict[int, CellPoint]
) -> list[CellPoint]:
    found = (points.get(numbers.get(folder, 0)) for folder in folders)
    return [point for point in found if point is not None]
