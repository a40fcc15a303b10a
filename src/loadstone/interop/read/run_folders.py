"""Cells to run folders: those of one deployment and workload are one run, a cell for each load."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loadstone.analyse import verdict
from loadstone.analyse.run_facts import run_facts
from loadstone.analyse.summary import run_summary, summarise
from loadstone.core import PHASES, CellInfo, Load, Plan, RequestRecord, RunInfo, Target, run_folder
from loadstone.core.errors import InputError
from loadstone.core.statistics import PERCENTILES, STATISTICS
from loadstone.core.summary import LATENCIES, TOTALS, CellSummary
from loadstone.core.version import __version__
from loadstone.interop.read.cell import Cell
from loadstone.interop.read.files import printable

_COUNTS = ("sent", "ok", "error", "timeout", "cancelled", "short")
_MOST_RUNS = 10_000
SITTING = timedelta(hours=12)
"""Between cells of one sweep there is less: another time is another state of the machine, or another release."""
LENGTHS = 0.02
"""Mean lengths that are so near to one another are of one workload, as in reports."""


def runs_of(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Cells that belong together, in the order they were met; within a run by load.

    Together belong cells of one tool, server, deployment, workload and kind of load, measured in one sitting, all
    with records or all without; a load that comes again begins another run: a repeat. Raises InputError.
    """
    sittings, lengths = _sittings(cells), _Alike()
    runs: dict[tuple[Any, ...], list[list[Cell]]] = {}
    for cell in cells:
        load = _load(cell)
        key = (
            cell.tool, cell.server, cell.endpoint, bool(cell.records), cell.prefix_cache, cell.label,
            load.kind, bool(load.profile), sittings.get((cell.tool, cell.created)),
            msgspec.json.encode([cell.deployment, cell.workload], order="sorted"),
            None if cell.workload else lengths.of(_means(cell)),
        )  # fmt: skip
        repeats = runs.setdefault(key, [])
        free = next((run for run in repeats if all(_load(one) != load for one in run)), None)
        if free is None:
            repeats.append([cell])
        else:
            free.append(cell)
    found = [sorted(run, key=lambda cell: _load(cell).value) for repeats in runs.values() for run in repeats]
    if len(found) > _MOST_RUNS:
        raise InputError(f"{len(found):,} runs in one import: at most {_MOST_RUNS:,}; import fewer rows at a time")
    return found


def _sittings(cells: Sequence[Cell]) -> dict[tuple[str, str | None], int]:
    """By tool, when cells were measured, as told, to the number of the sitting: one ends where SITTING passes without
    any. Times without a zone are somebody's local ones: they are set against those of the same tool alone.
    """
    times = {}
    for cell in cells:
        if cell.created is not None:
            told = datetime.fromisoformat(cell.created)
            times[cell.tool, cell.created] = told if told.tzinfo is not None else told.replace(tzinfo=UTC)
    found: dict[tuple[str, str | None], int] = {}
    number, last = 0, dict[str, datetime]()
    for (tool, created), at in sorted(times.items(), key=lambda item: item[1]):
        number += tool in last and at - last[tool] > SITTING
        found[tool, created], last[tool] = number, at
    return found


def _means(cell: Cell) -> tuple[float, ...]:
    """Input and output tokens per request, as far as told."""
    given, made = (cell.totals.get(f"{end}_tokens") for end in ("input", "output"))
    return () if not cell.completed else tuple((total or 0) / cell.completed for total in (given, made))


class _Alike:
    """Mean lengths, those within LENGTHS of one that came before made that one: a file that names no workload tells
    it by these alone.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, ...], tuple[float, ...]] = {}
        self._of: dict[tuple[float, ...], tuple[float, ...]] = {}

    def of(self, lengths: tuple[float, ...]) -> tuple[float, ...]:
        if lengths in self._of:
            return self._of[lengths]
        # On a grid of this step no place holds two of those seen, and what is near is no further than the next place.
        step = -math.log1p(-LENGTHS)
        place = tuple(math.floor(math.log(each or 1e-300) / step) for each in lengths)
        for near in itertools.product(*((at, at - 1, at + 1) for at in place)):
            seen = self._seen.get(near)
            if seen is not None and all(
                abs(a - b) <= LENGTHS * max(a, b) for a, b in zip(seen, lengths, strict=True)
            ):
                return self._of.setdefault(lengths, seen)
        if len(self._seen) == _MOST_RUNS:
            raise InputError(
                f"requests of more than {_MOST_RUNS:,} mean lengths in one import; import fewer rows at a time"
            )
        self._seen[place] = lengths
        return self._of.setdefault(lengths, lengths)


def _load(cell: Cell) -> Load:
    if cell.load is None:
        raise ValueError(f"{cell.where}: no load")
    return cell.load


def write(cells: list[Cell], out: Path, command: list[str]) -> Path:
    """One run folder of one run's cells. Raises InputError where it cannot be written."""
    first = cells[0]
    plan = _plan(cells)
    now = datetime.now(UTC)
    info = RunInfo(
        run_id="",
        source="imported",
        status="done",
        created=min((cell.created for cell in cells if cell.created), default=now.isoformat(timespec="seconds")),
        command=[printable(word) for word in command],
        loadstone=__version__,
        host={},
        target=_target(first),
        plan_id=plan.plan_id,
        seed=0,
        salt=None,
        settings={
            "deployment": first.deployment,
            "workload": first.workload,
            **({} if first.label is None else {"label": first.label}),
            **({} if first.prefix_cache is None else {"prefix_cache": first.prefix_cache}),
            "import": {
                "tool": first.tool,
                "files": sorted({cell.file for cell in cells}),
                "cells": [_told(cell) for cell in cells],
            },
        },
        cells=[CellInfo(load=_load(cell)) for cell in cells],
    )
    facts = run_facts(info)
    model = (facts.model or "").rsplit("/", 1)[-1]
    folder = run_folder.create(out, run_folder.run_id(now, "imported", facts.engine, model, facts.gpu))
    info.run_id = folder.name
    with run_folder.own(folder):
        for cell_info, cell in zip(info.cells, cells, strict=True):
            _span(cell_info, cell)
        run_folder.write_info(folder, info)
        run_folder.write_plan(folder / "plan.parquet", plan)
        if first.records:
            _write_records(folder, cells)
            document = summarise(folder)
        else:
            stated = [msgspec.convert(_document(cell), CellSummary) for cell in cells]
            document = run_summary(folder, info, stated).document()
        run_folder.write_json(folder / "summary.json", document)
    return folder


def _target(cell: Cell) -> Target | None:
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


def _told(cell: Cell) -> dict[str, Any]:
    return {
        "where": cell.where,
        "created": cell.created,
        "tool": cell.tool,
        "definitions": cell.definitions,
        "relative_times": cell.relative,
        "unknown": list(cell.unknown),
        "stated": {
            "requests": cell.requests,
            "duration_s": cell.duration_s,
            "latencies": cell.latencies,
            "totals": cell.totals,
            "under_way": cell.under_way,
        },
        "findings": [msgspec.to_builtins(finding) for finding in cell.findings],
    }


# --- with records ----------------------------------------------------------------------------------------------


def _ordered(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """Warm-up first, as in a plan; then by send, or as the file has them where that is not told."""
    return sorted(records, key=lambda record: (PHASES.index(record.phase), record.sent_s or 0.0))


def _span(info: CellInfo, cell: Cell) -> None:
    """When the cell ran, by its records' clock."""
    sent = [record.sent_s for record in cell.records if record.sent_s is not None]
    ends = [record.end_s for record in cell.records if record.end_s is not None]
    if sent and ends and not cell.relative:
        info.start_s, info.issue_end_s, info.end_s = min(sent), max(sent), max(*sent, *ends)
    elif sent:
        info.start_s, info.end_s = 0.0, max([0.0, *ends])


def _plan(cells: Sequence[Cell]) -> Plan:
    """What was asked, as far as it is told: lengths as they were, no intended times."""
    rows = [(number, record) for number, cell in enumerate(cells) for record in _ordered(cell.records)]
    count = len(rows)
    return Plan(
        seed=0,
        cells=tuple(_load(cell) for cell in cells),
        workload=dict(cells[0].workload),
        exact_output=False,
        cell=np.array([number for number, _ in rows], np.int32),
        phase=np.array([PHASES.index(record.phase) for _, record in rows], np.uint8),
        intended_s=np.full(count, np.nan),
        input_tokens=np.array([_tokens(record.input_tokens) for _, record in rows], np.int32),
        output_tokens=np.array([_tokens(record.output_tokens) for _, record in rows], np.int32),
        prefix_group=np.full(count, -1, np.int32),
        prefix_tokens=np.zeros(count, np.int32),
        turn=np.array([_tokens(record.turn) for _, record in rows], np.int32),
        think_s=np.zeros(count),
        prompt=np.full(count, -1, np.int32),
    )


def _tokens(count: int | None) -> int:
    """-1 where it is not told, as a plan has it; of turns too."""
    return -1 if count is None else min(count, 2**31 - 1)


def _write_records(folder: Path, cells: Sequence[Cell]) -> None:
    import pyarrow as pa

    schema = run_folder.records_schema()
    journal = run_folder.JournalWriter(folder, 0)
    try:
        for number, cell in enumerate(cells):
            records = _ordered(cell.records)
            begun: dict[str, str] = {}
            for index, record in enumerate(records):
                record.request_id, record.cell = f"{number}-{index}", number
                if record.session_id is not None:
                    record.session_id = begun.setdefault(record.session_id, record.request_id)
            columns = {name: [getattr(record, name) for record in records] for name in schema.names}
            journal.write(pa.RecordBatch.from_pydict(columns, schema=schema))
    except (pa.ArrowInvalid, OverflowError) as error:
        raise InputError(f"{cells[0].where}: a number in it is too large for a record ({error})") from error
    finally:
        journal.close()
    run_folder.assemble(folder)


# --- without records -------------------------------------------------------------------------------------------


def _document(cell: Cell) -> dict[str, Any]:
    """A cell's part of the summary, as stated. Every key of a measured one is there; what is not told is None."""
    load = _load(cell)
    found = [verdict.Finding(
        "as_stated",
        "info",
        f"{cell.where}: summary statistics by {cell.tool}, without the requests behind them",
        "Nothing here could be checked against requests; save them too if the tool can (docs/import.md).",
    ), *cell.findings]  # fmt: skip
    return {
        "load": msgspec.to_builtins(load) | {"profile": [list(piece) for piece in load.profile]},
        "requests": {name: cell.requests.get(name) for name in _COUNTS},
        "duration_s": cell.duration_s,
        "metrics": {
            **{name: _distribution(cell, name) for name in LATENCIES},
            **{name: cell.totals.get(name) for name in TOTALS if name not in ("goodput_per_s", "attainment")},
            "output_events": None,
            "steady": None,
            "sustained": None,
            **{name: cell.totals[name] for name in ("goodput_per_s", "attainment") if name in cell.totals},
        },
        "client": {"send_lag_p99_s": None, "receive_lag_p99_s": None, "clock": "user", "cpu_s": None},
        "measured_by": cell.tool,
        "definitions": cell.definitions,
        "verdict": msgspec.to_builtins(verdict.judge(found)),
    }


def _distribution(cell: Cell, name: str) -> dict[str, Any] | None:
    """As statistics.Distribution; bounds need the sample itself, so there are none."""
    stated = cell.latencies.get(name)
    if not stated:
        return None
    count = cell.completed if name in ("ttft_s", "e2e_s", "ttft_intended_s", "e2e_intended_s") else None
    bounds: dict[str, list[None]] = {statistic: [None, None] for statistic in PERCENTILES}
    return {"n": count, **{statistic: stated.get(statistic) for statistic in STATISTICS}, "ci95": bounds}
