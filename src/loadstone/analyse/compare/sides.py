"""Opens the two sides of a comparison: the runs of either, none twice, and of each cell its
requests, as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadstone.analyse import imported_run
from loadstone.analyse.classes import cell_of_class, class_numbers
from loadstone.analyse.compare.price import Prices, dollars_per_hour
from loadstone.analyse.stored_run import StoredRun, read_run
from loadstone.core import arrays, run_folder
from loadstone.core.errors import InputError
from loadstone.core.plan import Load, Plan
from loadstone.core.statistics.dependence import (
    block_rates,
    window_curve,
)
from loadstone.core.summary import CellSummary
from loadstone.core.vectors import Floats, Ints64

if TYPE_CHECKING:
    import pyarrow as pa

_LENGTHS = tuple(name for name in Plan.COLUMNS if name not in ("cell", "prompt"))
"""Columns of a plan that define each request, without its text."""


class ComparedRun(StoredRun, kw_only=True, dict=True):
    """A run that is compared, and what it costs per hour if that is known."""

    dollars: float | None = None

    @property
    def simulated(self) -> bool:
        return self.info.source == "simulated"

    @property
    def has_plan(self) -> bool:
        """True for all but imported runs."""
        return self.info.source != "imported"

    @cached_property
    def plan(self) -> Plan:
        return run_folder.read_plan(self.folder)

    @property
    def places(self) -> list[RunCell]:
        return [RunCell(self, position) for position in range(len(self.summary.cells))]

    @cached_property
    def numbers(self) -> dict[int, int]:
        """Map the position in the summary's cells to the cell's number in the records: a summary
        leaves out cells of which nothing was sent.
        """
        left = {
            number: (cell.load.kind, cell.load.value) for number, cell in enumerate(self.info.cells)
        }
        numbers = {}
        for position, cell in enumerate(self.summary.cells):
            same = (
                number for number, load in left.items() if load == (cell.load.kind, cell.load.value)
            )
            number = next(same, None)
            if number is not None:
                numbers[position] = number
                del left[number]
        return numbers


class RunCell(NamedTuple):
    """A cell of a run: its position in the run's summary. `traffic_class`: the class of traffic of
    it that is meant alone; "": all requests."""

    run: ComparedRun
    position: int
    traffic_class: str = ""

    @property
    def cell(self) -> CellSummary:
        cell = self.run.summary.cells[self.position]
        part = next((part for part in cell.by_class if part.name == self.traffic_class), None)
        return cell if part is None else cell_of_class(cell, part)

    @property
    def classes(self) -> list[str]:
        """The names of its classes of traffic."""
        return [part.name for part in self.cell.by_class]

    @property
    def number(self) -> int | None:
        """The cell's number in the plan and the records."""
        return self.run.numbers.get(self.position)


def load_key(load: Load) -> Load:
    """Make a key that is equal for cells of the same load, however long it lasted."""
    return msgspec.structs.replace(load, duration_s=None)


# --- from what a user names to runs ---------------------------------------------------------------


def open_run(folder: Path, prices: Prices) -> ComparedRun:
    """Open a run for a comparison. Raises InputError where it cannot be read or holds nothing."""
    run = read_run(folder)
    if not run.summary.cells or not run.info.cells:
        raise InputError(f"{folder}: nothing was sent in this run; there is nothing to compare")
    return ComparedRun(**msgspec.structs.asdict(run), dollars=dollars_per_hour(run.facts, prices))


def runs_in(path: Path) -> list[Path]:
    """List the run folder itself, or those in it. Raises InputError where it holds none."""
    if (path / "run.json").exists() or not path.is_dir():
        return [path]
    files = list(path.glob("*/run.json")) or path.glob("*/*/run.json")
    folders = sorted(file.parent for file in files)  # of a study's cells, each has a folder of runs
    if not folders:
        raise InputError(
            f"{path}: neither a run folder nor a folder of run folders; name a run, e.g. runs/RUN"
        )
    return folders


def refuse_twice(sides: Sequence[Sequence[Path]]) -> None:
    """Refuse a run that is named twice, however it is spelled. Raises InputError."""
    named: dict[tuple[int, int], tuple[str, Path]] = {}
    for side, folders in zip("AB", sides, strict=True):
        for folder in folders:
            try:
                status = folder.stat()
            except OSError:
                continue  # it is refused when it is opened
            key = status.st_dev, status.st_ino
            if key in named:
                earlier, spelled = named[key]
                where = f"twice on side {side}" if earlier == side else "on both sides"
                also = f" (also as {spelled})" if str(spelled) != str(folder) else ""
                raise InputError(
                    f"{folder}: the same run {where}{also}; name each once, a repeat is another run"
                )
            named[key] = side, folder


# --- the requests of a cell -----------------------------------------------------------------------


@dataclass
class RequestTimes:
    """The completed measured requests of one cell, in the order of their sends; seconds, NaN where
    missing.

    index      their numbers within the cell, for pairing
    failed     of all requests that were sent, in the order of their sends: 1 where one failed, 0
               where it completed
    curve      output tokens that came in each of CURVE stretches of the steady window, first to
               last send; None where it has no length, or times of different requests cannot be
               compared
    span_s     how long the cell took
    """

    index: Ints64
    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    sent_s: Floats
    end_s: Floats
    curve: Floats | None
    window_s: float | None
    span_s: float | None
    failed: Floats = field(default_factory=lambda: np.empty(0))

    @property
    def under_way(self) -> float:
        """Mean requests under way, Σ E2E/duration; infinite where it cannot be known."""
        return (
            float(np.nansum(self.end_s - self.sent_s)) / self.span_s
            if self.span_s
            else float("inf")
        )

    def rates(self, count: int) -> Floats | None:
        """Output tokens/s in `count` equal stretches of the steady window; None without one."""
        return (
            block_rates(self.curve, self.window_s, count)
            if self.curve is not None and self.window_s
            else None
        )

    def pick(self, chosen: NDArray[np.intp]) -> RequestTimes:
        """Take the requests of these row numbers in their order; of the same window."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in _PER_REQUEST})


_PER_REQUEST = ("index", "ttft_s", "tpot_s", "e2e_s", "sent_s", "end_s")
"""The arrays of Requests that have an entry for each."""


def requests_of(place: RunCell, *, intended: bool, with_tokens: bool) -> RequestTimes:
    """Read the requests of a cell of a run that has records; `intended`: times count from then, not
    from the send."""
    number = place.run.numbers[place.position]
    imported = imported_run.of_cell(place.run.info, number)
    relative = imported is not None and imported.relative_times
    parts = [_part(batch, intended) for batch in _read_records(place, number)]
    rows = {
        name: np.concatenate([part[name] for part in parts]) if parts else np.empty(0)
        for name in _PER_REQUEST
    }
    order = np.argsort(rows["sent_s"], kind="stable")
    columns = {name: values[order] for name, values in rows.items()}
    curve = window_s = None
    span_s = place.cell.duration_s
    if not relative and len(order):
        start_s, last_s = float(np.nanmin(columns["sent_s"])), float(np.nanmax(columns["sent_s"]))
        span_s = float(np.nanmax(columns["end_s"])) - start_s
        if with_tokens and last_s > start_s:
            events = map(arrays.events, _read_records(place, number))
            curves = [
                window_curve(part.arrival, arrays.count_gained(part), (start_s, last_s))
                for part in events
            ]
            curve, window_s = np.sum(curves, axis=0), last_s - start_s
    index = columns.pop("index").astype(np.int64)
    if place.traffic_class:
        # By their place among those of the class, which another class does not change.
        first = len(place.run.plan.rows(number))
        of_class = planned_indices(place.run.plan, place, number)
        index = np.where(index < first, np.searchsorted(of_class, index), index)
    failed = _failed(place, number)
    return RequestTimes(
        index=index, curve=curve, window_s=window_s, span_s=span_s, failed=failed, **columns
    )


def _read_records(place: RunCell, number: int) -> Iterator[pa.RecordBatch]:
    """Yield the records of a cell, or of one class of it."""
    import pyarrow as pa

    columns = (*arrays.COLUMNS, "cell")
    for batch in run_folder.read_records(place.run.folder, number, columns):
        if not place.traffic_class:
            yield batch
            continue
        plan = place.run.plan
        is_own = class_numbers(batch, plan) == plan.class_names.index(place.traffic_class)
        yield batch.filter(pa.array(is_own))


def planned_indices(plan: Plan, place: RunCell, number: int) -> Ints64:
    """Return the indices of a cell's planned requests, or of those of one class of it."""
    if not place.traffic_class or plan.traffic_class is None:
        return np.arange(len(plan.rows(number)))
    classes = plan.traffic_class[plan.span(number)]
    return np.flatnonzero(classes == plan.class_names.index(place.traffic_class))


def _failed(place: RunCell, number: int) -> Floats:
    parts = [
        [
            batch.column(name).to_numpy(zero_copy_only=False)
            for name in ("phase", "status", "sent_s")
        ]
        for batch in _read_records(place, number)
    ]
    if not parts:
        return np.empty(0)
    phase, status, sent_s = (np.concatenate(column) for column in zip(*parts, strict=True))
    kept = (phase == "measure") & (status != "cancelled")
    failed = np.isin(status, ("error", "timeout"))[kept].astype(np.float64)
    return np.asarray(failed[np.argsort(sent_s[kept], kind="stable")])


def _part(batch: pa.RecordBatch, intended: bool) -> dict[str, Floats]:
    import pyarrow as pa

    rows = arrays.rows(batch, arrays.events(batch))
    timed = ~(np.isnan(rows["first"]) | np.isnan(rows["sent"]))
    chosen = rows["measured"] & arrays.is_completed(rows) & timed
    rows = rows[chosen]
    names = batch.column("request_id").filter(pa.array(chosen)).to_pylist()
    origin_s = rows["intended"] if intended else rows["sent"]
    return {
        "index": np.array([float(name.rpartition("-")[2]) for name in names]),
        "ttft_s": rows["first"] - origin_s,
        "tpot_s": arrays.tpot_s(rows),
        "e2e_s": rows["last"] - origin_s,
        "sent_s": rows["sent"],
        "end_s": rows["last"],
    }


# --- which requests are the same on both sides ----------------------------------------------------


def shared_requests(a: RunCell, b: RunCell) -> int | None:
    """Return the number below which the requests of a cell are the same on both sides; None: all,
    the plans are one; 0: none.

    Lengths, texts and pauses follow from the seed in a sequence that a longer run goes on with: of
    runs that end by time, or by different counts, the first requests are the same.
    """
    if not (a.run.has_plan and b.run.has_plan) or a.number is None or b.number is None:
        return 0
    if a.run.info.plan_id == b.run.info.plan_id:
        return None
    plans = [place.run.plan for place in (a, b)]
    if any(
        getattr(plans[0], name) != getattr(plans[1], name)
        for name in ("seed", "exact_output", "chat")
    ):
        return 0
    rows = [
        plan.rows(number).start + planned_indices(plan, place, number)
        for plan, place, number in zip(plans, (a, b), (a.number, b.number), strict=True)
    ]
    # How the warm-up was drawn depends on how long the run is; it is not compared.
    warm, warm_b = (
        int((plan.phase[planned] == 0).sum()) for plan, planned in zip(plans, rows, strict=True)
    )
    if warm != warm_b:
        return 0
    count = min(map(len, rows)) - warm
    firsts = [planned[warm : warm + count] for planned in rows]
    same = np.ones(count, bool)
    for name in _LENGTHS:
        on_a, on_b = (getattr(plan, name)[first] for plan, first in zip(plans, firsts, strict=True))
        if a.traffic_class and name == "intended_s" and count:
            # How long the warm-up takes depends on all classes.
            on_a, on_b = on_a - on_a[0], on_b - on_b[0]
        same &= np.isclose(on_a, on_b, rtol=0, atol=1e-9, equal_nan=True)
    texts = zip(
        *(_texts(plan, first) for plan, first in zip(plans, firsts, strict=True)), strict=True
    )
    same &= np.fromiter((x == y for x, y in texts), bool, count)
    return warm + (count if same.all() else int(same.argmin()))


def _texts(plan: Plan, rows: NDArray[np.intp]) -> list[object]:
    """Describe each row's request beyond its numbers: by its text, or by the shared blocks it is
    made of."""
    if plan.blocks is not None:
        return [plan.blocks.take_row(row).tobytes() for row in rows]
    return [plan.prompts[row] if row >= 0 else None for row in plan.prompt[rows]]
