"""From a run folder to its numbers: the document that `loadstone bench --json` prints and summary.json keeps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from loadstone.analyse import imported_run, verdict
from loadstone.analyse.breakdown import breakdown_of
from loadstone.analyse.client_accuracy import Selftest, quote
from loadstone.analyse.metrics import CellMetrics, cell_metrics
from loadstone.analyse.roofline import light_of
from loadstone.analyse.run_facts import lasting, run_facts, slo_met
from loadstone.analyse.slo import bounds_of
from loadstone.core import Clock, Plan, RunInfo, run_folder
from loadstone.core.arrays import COLUMNS
from loadstone.core.errors import InputError
from loadstone.core.gpu_metrics import Readings
from loadstone.core.statistics import PERCENTILES
from loadstone.core.statistics.distribution import Z80, Z95
from loadstone.core.summary import LATENCIES, SLO_KEYS, Summary
from loadstone.core.units import parse_seconds
from loadstone.workload.schedule import promised_tokens

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = 1
_MOST_BARE_S = 10.0
"""From here on a bound without a unit is refused: it is more likely to be meant in milliseconds."""
_TOTALS = (
    "input_tokens", "output_tokens", "output_events", "cached_input_tokens", "output_tokens_per_s",
    "total_tokens_per_s", "requests_per_s", "steady", "sustained", "achieved_rate_per_s",
)  # fmt: skip
_NOT_SUSTAINED = {"overload", "queue_grows", "rate_not_reached", "interrupted"}
"""Findings on cells whose rate is not what came, or not what was kept up with."""


def parse_slo(text: str) -> dict[str, float]:
    """Bounds in seconds from `ttft<500ms,tpot_p99<30ms`: per request (`ttft`), or on a percentile (`tpot_p99`).

    A small number without a unit is seconds. Raises InputError.
    """
    bounds = {}
    for part in text.split(","):
        name, sign, limit = part.partition("<")
        base, joint, percentile = name.strip().partition("_")
        if not sign or base not in SLO_KEYS or (joint and percentile not in PERCENTILES):
            raise InputError(
                f"--slo: {part.strip()!r} is not a bound; write e.g. ttft<500ms,tpot_p99<30ms "
                f"({', '.join(SLO_KEYS)}; {', '.join(PERCENTILES)})"
            )
        limit = limit.removeprefix("=").strip()
        bounds[name.strip()] = limit_s = parse_seconds(limit, "--slo")
        if limit_s >= _MOST_BARE_S and limit[-1] in "0123456789.":
            # Other tools' bounds are milliseconds without saying so.
            raise InputError(f"--slo: {part.strip()!r}: {limit} seconds? write {limit}ms or {limit}s")
        if not limit_s > 0:
            raise InputError(f"--slo: {part.strip()!r} can never be met; write a time above 0")
    return bounds


def summarise(folder: Path, dialect: str | None = None) -> dict[str, Any]:
    """The run's summary, from its records alone; of an imported run without any, as it was stated.

    Raises InputError where they are missing.

    `dialect`: another tool's numbers of the same records beside ours; None: as the run was told.
    """
    info = run_folder.read_info(folder)
    if imported_run.is_summary_only(folder, info):
        return with_light(imported_run.read(folder), info)
    dialect = dialect or info.settings.get("dialect")
    plan = run_folder.read_plan(folder)
    if len(info.cells) != len(plan.cells):
        raise InputError(
            f"{folder}: run.json has {len(info.cells)} cells and plan.parquet {len(plan.cells)}: these are of two "
            "runs; copy the folder again"
        )
    samples = run_folder.read_server(folder)
    readings = Readings(samples) if samples is not None else None
    cells = [_cell(folder, info, plan, cell, samples, readings) for cell in range(len(plan.cells))]
    if dialect is not None:
        for number, document in enumerate(cells):
            if document is not None:
                document["dialect"] = _in_dialect(folder, info, number, dialect)
    found = verdict.run_findings(
        [cell.load for cell in info.cells],
        [cell is not None for cell in cells],
        plan.workload,
        info.error or f"the run is {info.status}",
        info.settings.get("deployment"),
        info.journals_damaged,
    )
    return with_light(document_of(folder, info, [cell for cell in cells if cell is not None], found), info)


def summary_of(folder: Path, dialect: str | None = None) -> Summary:
    """The run's summary, typed; as summarise()."""
    return Summary.of(summarise(folder, dialect))


def with_roofline(summary: Summary, info: RunInfo) -> Summary:
    """The same with what the hardware allows beside each cell; None where nobody knows it."""
    return Summary.of(with_light(summary.document(), info))


def with_light(document: dict[str, Any], info: RunInfo) -> dict[str, Any]:
    """The same with what the hardware allows beside each cell; null where nobody knows it."""
    facts = run_facts(info, document)
    for cell in document["cells"]:
        if isinstance(cell, dict):
            cell["light"] = msgspec.to_builtins(light_of(info, facts, cell))
    return document


def document_of(
    folder: Path, info: RunInfo, cells: list[dict[str, Any]], findings: Sequence[verdict.Finding] = ()
) -> dict[str, Any]:
    """The summary, as `summary.json` and `--json` have it, of cells that are summarised; `findings`: of the run."""
    first_token = info.settings.get("first_token") if info.source == "simulated" else None
    return {
        "schema": SCHEMA,
        "run_id": info.run_id,
        "run_dir": str(folder),
        "source": info.source,
        "status": info.status,
        "target": msgspec.to_builtins(info.target) if info.target else None,
        "plan_id": info.plan_id,
        "seed": info.seed,
        "cells": cells,
        "findings": msgspec.to_builtins(list(findings)),
        **({"first_token": first_token} if first_token else {}),
    }


def conclude(folder: Path, info: RunInfo, plan: Plan) -> dict[str, Any]:
    """Writes the papers and the summary of a run whose records are there; returns the summary.

    What ran by time is written as what was issued, so that it can be replayed.
    """
    if any(plan.cyclic(cell) for cell in range(len(plan.cells))):
        plan = run_folder.issued(folder, plan)
        run_folder.write_plan(folder / "plan.parquet", plan)
        info.plan_id = plan.plan_id
    run_folder.write_info(folder, info)
    document = summarise(folder)
    run_folder.write_json(folder / "summary.json", document)
    return document


def _cell(
    folder: Path, info: RunInfo, plan: Plan, cell: int, samples: pa.Table | None, readings: Readings | None
) -> dict[str, Any] | None:
    """One cell's part of the document; None where nothing of it was sent."""
    import pyarrow.compute as pc

    scalars = run_folder.read_columns(folder, verdict.SCALARS, cell)
    if scalars.num_rows == 0:
        return None
    load = info.cells[cell].load  # the plan of a cell that ran by time has become one by count
    per_request = {name: limit for name, limit in info.slo.items() if name in SLO_KEYS}
    limits = per_request or _limits(info.slo)
    streams = info.target is None or info.target.streams
    # The records are read once, for the numbers and for the verdict.
    simulated = info.source == "simulated"
    events = verdict.Events(rhythm=not simulated)

    def read() -> Iterator[pa.RecordBatch]:
        for batch in run_folder.read_records(folder, cell, COLUMNS if simulated else (*COLUMNS, "read")):
            events.add(batch)
            yield batch

    measured = np.array(pc.equal(scalars["phase"], "measure"))
    sent_s = scalars["sent_s"].to_numpy()[measured]
    told = imported_run.of_cell(info, cell)
    span_s = (told.get("stated") or {}).get("duration_s") if told.get("relative_times") else None
    metrics = cell_metrics(read, load, limits, streams=streams, sent_s=sent_s, span_s=span_s)
    clock = info.clock or "user"
    over = info.cells[cell].end_s is not None
    reason = None if over else f"the cell did not run to its end ({info.error or info.status})"
    breakdown = breakdown_of(folder, info, plan, cell, load, streams)
    figures, gpus = _server(info, cell, samples, readings)
    judged = verdict.judge(
        verdict.cell_findings(
            metrics,
            scalars,
            events,
            plan,
            cell,
            clock,
            reason,
            target=info.target,
            measured_live=info.source == "measured",
            simulated=simulated,
            info=info.cells[cell],
            replicas=breakdown.get("by_replica", []),
            figures=figures,
            gpus=gpus,
        )
        + verdict.kept_findings(info, cell, scalars.num_rows, len(plan.rows(cell)))
        + verdict.prediction_findings(info.settings)
    )
    built: dict[str, Any] = msgspec.to_builtins(metrics)
    document = {
        "load": msgspec.to_builtins(load) | {"profile": [list(piece) for piece in load.profile]},
        "requests": built["requests"],
        "duration_s": built["duration_s"],
        "metrics": {name: built[name] for name in (*LATENCIES, *_TOTALS)} | _promised(plan, cell),
        **breakdown,
        "client": {**_client(metrics, clock), "cpu_s": info.cells[cell].client_cpu_s},
        "verdict": msgspec.to_builtins(judged),
    }
    if figures is not None:
        document["server"] = msgspec.to_builtins(figures)
    if gpus is not None and readings is not None:
        document["gpu"] = msgspec.to_builtins(gpus)
        ends_s = scalars["end_s"].to_numpy()[measured]
        _add_energy(document["metrics"], readings, metrics.duration_s, float(np.nanmax(ends_s, initial=0.0)))
    if per_request:
        document["slo_per_request_s"] = per_request
    if limits:
        document["metrics"]["goodput_per_s"] = built["goodput_per_s"]
        document["metrics"]["attainment"] = built["attainment"]
    said, beyond = quote(document, _selftest(info))
    if said is not None:
        document["client"]["selftest"] = said
    if beyond is not None:
        document["verdict"]["findings"].append(beyond)
    if info.slo:
        document["slo"] = bounds_of(
            info.slo, load, built, _of_cell(info, "slo_factors", cell), simulated=info.source == "simulated"
        )
    if told:
        imported_run.lay_over(document, told)
    if any(finding["kind"] in _NOT_SUSTAINED for finding in document["verdict"]["findings"]):
        document["metrics"]["sustained"] = None
    _add_intervals(document, info, cell)
    return document


def _of_cell(info: RunInfo, name: str, cell: int) -> Mapping[str, Any]:
    """A setting that has an entry for each cell."""
    each = info.settings.get(name) or []
    return each[cell] if cell < len(each) else {}


def _add_intervals(document: dict[str, Any], info: RunInfo, cell: int) -> None:
    """Of a simulated run: `low` and `high` beside each p50; null where no interval is known. Of throughput under
    `interval`, with the `value` that it is of, what the cell gives in the long run as far as it tells, and what the
    performance model alone leaves open.
    """
    metrics = document["metrics"]
    if info.source == "simulated":
        for name in LATENCIES:
            if isinstance(metrics.get(name), dict):
                metrics[name] |= {"low": None, "high": None}
    for name, (low, high) in _of_cell(info, "intervals", cell).items():
        values = metrics.get(name)
        if isinstance(values, dict):
            values["low"], values["high"] = values["p50"] * low, values["p50"] * high
        elif values is not None:
            window = lasting(document)
            value, ends = window[name], (window.get("ci95") or {}).get(name) or [None, None]
            # The draws are of one plan: another has other lengths and, where their rate is not known, other arrivals.
            drawn = [abs(math.log(end / value)) * Z80 / Z95 if end and value else 0.0 for end in ends]
            below, above = map(math.hypot, drawn, (math.log(low), math.log(high)))
            ends = {"low": value * math.exp(-below), "high": value * math.exp(above)}
            model = {"model_low": value * low, "model_high": value * high}
            metrics.setdefault("interval", {})[name] = {"value": value, **ends, **model}


def _add_energy(metrics: dict[str, Any], readings: Readings, duration_s: float | None, end_s: float) -> None:
    """`j_per_output_token` beside each throughput of output tokens: what all GPUs that were watched drew in its
    window, over the tokens that came in it. Not there where nobody knows it. `end_s`: of the last measured request.
    """
    windows = [(metrics, end_s - duration_s, end_s)] if duration_s else []
    if (steady := metrics["steady"]) is not None:
        windows.append((steady, steady["start_s"], steady["end_s"]))
    for throughput, begin_s, over_s in windows:
        energy_j, rate = readings.energy_j(begin_s, over_s), throughput["output_tokens_per_s"]
        if energy_j is not None and rate:
            throughput["j_per_output_token"] = energy_j / (rate * (over_s - begin_s))


def _selftest(info: RunInfo) -> Selftest | None:
    """What the host's self-test had found, as the run's papers keep it."""
    try:
        return msgspec.convert(info.selftest, Selftest) if info.selftest is not None else None
    except msgspec.ValidationError:
        return None  # another version's


def _in_dialect(folder: Path, info: RunInfo, cell: int, dialect: str) -> dict[str, Any]:
    """The cell's numbers under another tool's names, by its definitions."""
    from loadstone.analyse.other_tools import DEFINITIONS, TOOLS, summarise_as

    streams = info.target is None or info.target.streams
    numbers = summarise_as(
        dialect, lambda: run_folder.read_records(folder, cell), info.cells[cell].load, streams=streams
    )
    return {"name": dialect, "tool": TOOLS[dialect], "metrics": numbers, "definitions": DEFINITIONS[dialect]}


def _server(
    info: RunInfo, cell: int, samples: pa.Table | None, readings: Readings | None
) -> tuple[verdict.ServerFigures | None, verdict.GpuFigures | None]:
    """What the servers, and GPUs, said of themselves while the cell ran."""
    start_s, end_s = info.cells[cell].start_s, info.cells[cell].end_s
    if samples is None or readings is None or start_s is None or end_s is None:
        return None, None
    return verdict.server_figures(samples, start_s, end_s), verdict.gpu_figures(readings, start_s, end_s)


def _promised(plan: Plan, cell: int) -> dict[str, int]:
    """Input tokens that the measured requests share with earlier ones on purpose: what a cache could give at best."""
    shared = promised_tokens(plan, cell)
    rows = plan.rows(cell)
    shared = shared[(plan.phase[rows.start : rows.stop] == 1) & (shared > 0)]
    return {"shared_input_tokens": int(shared.sum())} if len(shared) else {}


def _client(metrics: CellMetrics, clock: Clock) -> dict[str, Any]:
    send, receive = metrics.send_lag_s, metrics.receive_lag_s
    return {
        "send_lag_p99_s": send.p99 if send is not None else None,
        "receive_lag_p99_s": receive.p99 if receive is not None else None,
        "clock": clock,
    }


def _limits(slo: Mapping[str, float]) -> dict[str, float]:
    """What goodput and attainment ask of a request where all bounds are on percentiles: their limits, of several on
    one measure the largest, which is what a user bears at worst.
    """
    limits: dict[str, float] = {}
    for name, limit_s in slo.items():
        base = name.partition("_")[0]
        if base in SLO_KEYS:  # run.json may have another version's bounds
            limits[base] = max(limit_s, limits.get(base, 0.0))
    return limits


def trusted(document: Mapping[str, Any]) -> bool:
    """Every planned cell was measured, is trusted, and met its bounds: what `--strict` asks for."""
    cells = document["cells"]
    return (
        bool(cells)
        and all(finding["severity"] == "info" for finding in document.get("findings", ()))
        and all(cell["verdict"]["trusted"] and slo_met(cell) is not False for cell in cells)
    )
