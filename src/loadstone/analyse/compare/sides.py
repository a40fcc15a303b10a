"""What is compared: the runs of a side, and of each cell its requests, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loadstone.analyse import imported_run
from loadstone.analyse.compare.price import Prices, dollars_per_hour
from loadstone.analyse.run_facts import RunFacts, run_facts
from loadstone.analyse.summary import summarise
from loadstone.core import RunInfo, arrays, run_folder
from loadstone.core.errors import InputError
from loadstone.core.statistics import blocks

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]


@dataclass
class Run:
    """One run: its papers, its summary, whether its requests are there, what it costs per hour if that is known."""

    folder: Path
    info: RunInfo
    document: Mapping[str, Any]
    facts: RunFacts
    has_records: bool
    dollars: float | None = None
    numbers: dict[int, int] = field(default_factory=dict)
    """Position in the document's cells to the cell's number in the records."""

    @property
    def simulated(self) -> bool:
        return self.info.source == "simulated"


Place = tuple[Run, int]
"""A cell of a run: its position in the run's summary."""


@dataclass
class Requests:
    """The completed measured requests of one cell, in the order of their sends; seconds, NaN where missing.

    index      their numbers within the cell, for pairing
    curve      output tokens that came in each of CURVE stretches of the steady window, first to last send; None where
               it has no length, or times of different requests cannot be compared
    span_s     how long the cell took
    """

    index: NDArray[np.int64]
    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    sent_s: Floats
    end_s: Floats
    curve: Floats | None
    window_s: float | None
    span_s: float | None

    @property
    def under_way(self) -> float:
        """Mean requests under way, Σ E2E/duration; infinite where it cannot be known."""
        return float(np.nansum(self.end_s - self.sent_s)) / self.span_s if self.span_s else float("inf")

    def rates(self, count: int) -> Floats | None:
        """Output tokens/s in `count` equal stretches of the steady window; None without one."""
        return blocks.rates(self.curve, self.window_s, count) if self.curve is not None and self.window_s else None


PER_REQUEST = ("index", "ttft_s", "tpot_s", "e2e_s", "sent_s", "end_s")
"""The arrays of Requests that have an entry for each."""


def open_run(folder: Path, prices: Prices) -> Run:
    """Raises InputError where it cannot be read or holds nothing."""
    info = run_folder.read_info(folder)
    document = summarise(folder)
    if not document["cells"]:
        raise InputError(f"{folder}: nothing was sent in this run; there is nothing to compare")
    facts = run_facts(info, document)
    has_records = not imported_run.is_summary_only(folder, info)
    run = Run(folder, info, document, facts, has_records, dollars_per_hour(facts, prices))
    left = list(range(len(info.cells)))
    for position, cell in enumerate(document["cells"]):
        # Cells of which nothing was sent are left out of a summary.
        number = next((n for n in left if _same(info.cells[n].load, cell["load"])), None)
        if number is not None:
            left.remove(number)
            run.numbers[position] = number
    return run


def _same(load: Any, stated_load: Mapping[str, Any]) -> bool:
    return bool(load.kind == stated_load.get("kind") and load.value == stated_load.get("value"))


def load_key(load: Mapping[str, Any]) -> tuple[Any, ...]:
    """Cells with equal keys are of the same load."""
    profile = tuple(map(tuple, load.get("profile") or ()))
    names = ("kind", "value", "process", "burstiness", "max_concurrency", "unit", "time_scale")
    return (*(load.get(name) for name in names), profile)


def requests_of(run: Run, position: int, *, intended: bool, with_tokens: bool) -> Requests:
    """The requests of a cell of a run that has records; `intended`: times count from then, not from the send."""
    number = run.numbers[position]
    imported = imported_run.of_cell(run.info, number)
    relative = imported is not None and imported.relative_times
    parts = [_part(batch, intended) for batch in run_folder.read_records(run.folder, number, arrays.COLUMNS)]
    rows = {name: np.concatenate([part[name] for part in parts]) if parts else np.empty(0) for name in PER_REQUEST}
    order = np.argsort(rows["sent_s"], kind="stable")
    taken = {name: values[order] for name, values in rows.items()}
    curve = window_s = None
    span_s = run.document["cells"][position]["duration_s"]
    if not relative and len(order):
        span_s = float(np.nanmax(taken["end_s"]) - np.nanmin(taken["sent_s"]))
        start, end = float(np.nanmin(taken["sent_s"])), float(np.nanmax(taken["sent_s"]))
        if with_tokens and end > start:
            batches = run_folder.read_records(run.folder, number, arrays.COLUMNS)
            curve, window_s = token_curve(map(_gains, batches), start, end), end - start
    return Requests(index=taken.pop("index").astype(np.int64), curve=curve, window_s=window_s, span_s=span_s, **taken)


def token_curve(pieces: Iterable[tuple[Floats, NDArray[Any]]], start_s: float, end_s: float) -> Floats:
    """Tokens that came in each of CURVE stretches from `start_s` to `end_s`; pieces of (arrivals, tokens)."""
    totals = np.zeros(blocks.CURVE)
    for arrivals, tokens in pieces:
        found, _ = np.histogram(arrivals, bins=blocks.CURVE, range=(start_s, end_s), weights=tokens)
        totals += found
    return totals


def _part(batch: pa.RecordBatch, intended: bool) -> dict[str, Floats]:
    import pyarrow as pa

    rows = arrays.rows(batch, arrays.events(batch))
    chosen = rows["measured"] & arrays.completed(rows) & ~np.isnan(rows["first"])
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


def _gains(batch: pa.RecordBatch) -> tuple[Floats, NDArray[Any]]:
    """When each event of any request came, and the tokens it brought."""
    events = arrays.events(batch)
    return events.arrival, arrays.gained(events)
