"""Writes cells as run folders: those of one deployment and workload are one run, a cell for each
load."""

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET

from loadstone.analyse.run_facts import run_facts
from loadstone.analyse.summary import run_summary, summary_of
from loadstone.analyse.verdict.finding import judge
from loadstone.core import run_folder
from loadstone.core.calls import CallGraph
from loadstone.core.errors import InputError
from loadstone.core.host import Host
from loadstone.core.metrics import Bounds, Latency, Metrics, Requests
from loadstone.core.plan import PHASES, Load, Plan
from loadstone.core.record import CellInfo, RunInfo, Target
from loadstone.core.settings import ImportedFrom, RunSettings
from loadstone.core.statistics import PERCENTILES
from loadstone.core.summary import CellSummary
from loadstone.core.vectors import Ints32
from loadstone.core.version import __version__
from loadstone.interop.read.cell import ResultCell
from loadstone.interop.read.files import printable
from loadstone.interop.read.findings import finding

_STATED = ("requests", "duration_s", "latencies", "totals", "under_way", "graded", "drafts")
_MOST_RUNS = 10_000
SITTING = timedelta(hours=12)
"""The longest pause between cells of one sweep: another time is another state of the machine, or
another release."""
LENGTHS = 0.02
"""The share by which mean lengths of one workload may differ, as in reports."""


def group_runs(cells: Sequence[ResultCell]) -> list[list[ResultCell]]:
    """Group cells that belong together, in the order they were met; within a run by load.

    Together belong cells of one tool, server, deployment, workload and kind of load, measured in
    one sitting, all with records or all without; a load that comes again begins another run: a
    repeat. Raises InputError.
    """
    sittings, alike = _number_sittings(cells), _Alike()
    runs: dict[tuple[Any, ...], list[list[ResultCell]]] = {}
    for cell in cells:
        load = _require_load(cell)
        key = (
            cell.tool,
            cell.server,
            cell.endpoint,
            bool(cell.records),
            cell.prefix_cache,
            cell.label,
            load.kind,
            bool(load.profile),
            sittings.get((cell.tool, cell.created)),
            msgspec.json.encode([cell.deployment, cell.workload], order="sorted"),
            _mean_lengths(cell, alike),
        )
        repeats = runs.setdefault(key, [])
        for run in repeats:
            if all(member.load != load for member in run):
                run.append(cell)
                break
        else:
            repeats.append([cell])
    separate = [
        sorted(run, key=lambda cell: _require_load(cell).value)
        for repeats in runs.values()
        for run in repeats
    ]
    if len(separate) > _MOST_RUNS:
        raise InputError(
            f"{len(separate):,} runs in one import: at most {_MOST_RUNS:,}; import fewer rows at a"
            " time"
        )
    return separate


def _number_sittings(cells: Sequence[ResultCell]) -> dict[tuple[str, str | None], int]:
    """Number the sittings: {(tool, when cells were measured, as told): number}; one ends where
    SITTING passes without any. Times without a zone are somebody's local ones: they are set against
    those of the same tool alone.
    """
    times = {}
    for cell in cells:
        if cell.created is not None:
            local = datetime.fromisoformat(cell.created)
            times[cell.tool, cell.created] = (
                local if local.tzinfo is not None else local.replace(tzinfo=UTC)
            )
    numbers: dict[tuple[str, str | None], int] = {}
    number, last = 0, dict[str, datetime]()
    for (tool, created), time in sorted(times.items(), key=lambda item: item[1]):
        number += tool in last and time - last[tool] > SITTING
        numbers[tool, created], last[tool] = number, time
    return numbers


class _Alike:
    """Matches mean lengths within LENGTHS of ones that came before: a file that names no workload
    tells it by these alone.
    """

    def __init__(self) -> None:
        self._seen = np.empty((_MOST_RUNS, 2))
        self._count = 0

    def match(self, lengths: tuple[float, float]) -> tuple[float, float]:
        seen = self._seen[: self._count]
        near = (np.abs(seen - lengths) <= LENGTHS * np.maximum(seen, lengths)).all(axis=1)
        if near.any():
            inputs, outputs = seen[near.argmax()].tolist()
            return inputs, outputs
        if self._count == _MOST_RUNS:
            raise InputError(
                f"requests of more than {_MOST_RUNS:,} mean lengths in one import; import fewer"
                " rows at a time"
            )
        self._seen[self._count] = lengths
        self._count += 1
        return lengths


def _mean_lengths(cell: ResultCell, alike: _Alike) -> tuple[float, float] | None:
    """Return the mean lengths of a cell that names no workload; None where it names one, or tells
    nothing."""
    inputs, outputs = cell.mean_lengths
    return (
        None
        if cell.workload or not cell.completed
        else alike.match((inputs or 0.0, outputs or 0.0))
    )


def _require_load(cell: ResultCell) -> Load:
    if cell.load is None:
        raise ValueError(f"{cell.where}: no load")
    return cell.load


def write(cells: list[ResultCell], out: Path, command: list[str], now: datetime) -> Path:
    """Write one run folder of one run's cells. `now` is one time for all of an import, so that
    their order does not follow the clock. Raises InputError where it cannot be written, and leaves
    none then.
    """
    first = cells[0]
    for cell in cells:
        # Warm-up first, as in a plan; then by send, or as the file has them where that is unknown.
        cell.records.sort(key=lambda record: (PHASES.index(record.phase), record.sent_s or 0.0))
    plan = _make_plan(cells)
    info = RunInfo(
        run_id="",
        source="imported",
        status="done",
        created=min(
            (cell.created for cell in cells if cell.created),
            default=now.isoformat(timespec="seconds"),
        ),
        command=[printable(word) for word in command],
        loadstone=__version__,
        host=Host(),
        target=_make_target(first),
        plan_id=plan.plan_id,
        seed=0,
        salt=None,
        settings=RunSettings(
            deployment=first.deployment,
            workload=first.workload,
            label=UNSET if first.label is None else first.label,
            prefix_cache=first.prefix_cache,
            imported=ImportedFrom(
                tool=first.tool,
                files=sorted({cell.file for cell in cells}),
                cells=[_describe_cell(cell) for cell in cells],
            ),
        ),
        cells=[CellInfo(load=_require_load(cell)) for cell in cells],
    )
    facts = run_facts(info)
    model = (facts.model or "").rstrip("/").rsplit("/", 1)[-1]
    folder = run_folder.create(
        out, run_folder.run_id(now, "imported", facts.engine, model, facts.gpu)
    )
    info.run_id = folder.name
    try:
        _write(folder, info, plan, cells)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _write(folder: Path, info: RunInfo, plan: Plan, cells: Sequence[ResultCell]) -> None:
    with run_folder.own(folder):
        for cell_info, cell in zip(info.cells, cells, strict=True):
            _set_times(cell_info, cell)
        run_folder.write_info(folder, info)
        run_folder.write_plan(folder / "plan.parquet", plan)
        if cells[0].records:
            _write_records(folder, cells)
            document = summary_of(folder).document()
        else:
            document = run_summary(folder, info, [_summarise(cell) for cell in cells]).document()
        run_folder.write_json(folder / "summary.json", document)
        run_folder.seal(folder, info)


def _make_target(cell: ResultCell) -> Target | None:
    model, engine = cell.deployment.get("model"), cell.deployment.get("engine")
    if model is None and engine is None:
        return None
    return Target(
        url=cell.url or "",
        endpoint=cell.endpoint or "unknown",
        model=model or "",
        engine=engine,
        engine_version=cell.deployment.get("engine_version"),
        prompt_kind="text",
    )


def _describe_cell(cell: ResultCell) -> dict[str, Any]:
    """Make what analyse/imported_run.py reads."""
    return {
        "where": cell.where,
        "created": cell.created,
        "tool": cell.tool,
        "definitions": cell.definitions,
        "relative_times": cell.relative,
        "unknown": list(cell.unknown),
        "stated": {name: msgspec.to_builtins(getattr(cell, name)) for name in _STATED},
        "findings": msgspec.to_builtins(cell.findings),
    }


# --- with records ---------------------------------------------------------------------------------


def _set_times(info: CellInfo, cell: ResultCell) -> None:
    """Set when the cell ran, by its records' clock."""
    sent = [record.sent_s for record in cell.records if record.sent_s is not None]
    ends = [record.end_s for record in cell.records if record.end_s is not None]
    if sent and ends and not cell.relative:
        info.start_s = min(sent)
        info.issue_end_s = max(sent)
        info.end_s = max(*sent, *ends)
    elif sent:
        info.start_s, info.end_s = 0.0, max([0.0, *ends])


def _make_plan(cells: Sequence[ResultCell]) -> Plan:
    """Make the plan, as far as it is told: lengths as they were, no intended times."""
    records = [record for cell in cells for record in cell.records]
    count, counts = len(records), [len(cell.records) for cell in cells]
    absent = np.full(count, -1, np.int32)

    def column(name: str) -> Ints32:
        """Return counts of the records, -1 where one is not told, as a plan has it."""
        stated = (getattr(record, name) for record in records)
        return np.array([-1 if n is None else min(n, 2**31 - 1) for n in stated], np.int32)

    turn = column("turn")
    return Plan(
        seed=0,
        cells=tuple(_require_load(cell) for cell in cells),
        workload=dict(cells[0].workload),
        exact_output=False,
        cell=np.repeat(np.arange(len(cells), dtype=np.int32), counts),
        phase=np.array([PHASES.index(record.phase) for record in records], np.uint8),
        intended_s=np.full(count, np.nan),
        input_tokens=column("input_tokens"),
        output_tokens=column("output_tokens"),
        prefix_group=absent,
        prefix_tokens=np.zeros(count, np.int32),
        turn=turn,
        think_s=np.zeros(count),
        prompt=absent,
        graph=CallGraph.of_turns(turn),
    )


def _write_records(folder: Path, cells: Sequence[ResultCell]) -> None:
    import pyarrow as pa

    schema = run_folder.records_schema()
    journal = run_folder.JournalWriter(folder, 0)
    try:
        for number, cell in enumerate(cells):
            begun: dict[str, str] = {}
            for index, record in enumerate(cell.records):
                record.request_id, record.cell = f"{number}-{index}", number
                if record.session_id is not None:
                    record.session_id = begun.setdefault(record.session_id, record.request_id)
            columns = {
                name: [getattr(record, name) for record in cell.records] for name in schema.names
            }
            journal.write(pa.RecordBatch.from_pydict(columns, schema=schema))
    except (pa.ArrowInvalid, OverflowError) as error:
        raise InputError(
            f"{cells[0].where}: a number in it is too large for a record ({error})"
        ) from error
    finally:
        journal.close()
    run_folder.assemble(folder)


# --- without records ------------------------------------------------------------------------------


def _summarise(cell: ResultCell) -> CellSummary:
    """Make the summary as stated; what is not told is None."""
    evidence = f"{cell.where}: summary statistics by {cell.tool}, without the requests behind them"
    metrics: dict[str, Any] = {
        **cell.totals,
        **{name: _make_latency(cell, name) for name in cell.latencies},
    }
    return CellSummary(
        load=_require_load(cell),
        requests=Requests(**cell.requests),
        duration_s=cell.duration_s,
        metrics=Metrics(**metrics),
        measured_by=cell.tool,
        definitions=cell.definitions,
        graded=cell.graded,
        drafts=cell.drafts,
        verdict=judge([finding("as_stated", evidence), *cell.findings]),
    )


def _make_latency(cell: ResultCell, name: str) -> Latency | None:
    """Make a latency without bounds, which need the sample itself."""
    stated: dict[str, Any] = dict(cell.latencies[name])
    count = cell.completed if name.startswith(("ttft", "e2e")) else None
    bounds: Bounds = [None, None]
    return Latency(n=count, ci95=dict.fromkeys(PERCENTILES, bounds), **stated) if stated else None
