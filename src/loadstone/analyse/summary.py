"""From a run folder to its numbers: the document that `loadstone bench --json` prints and summary.json keeps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import numpy as np

from loadstone.analyse import imported_run, verdict
from loadstone.analyse.breakdown import breakdown_of
from loadstone.analyse.client_accuracy import Selftest, quote
from loadstone.analyse.metrics import CellMetrics, RequestBounds, cell_metrics
from loadstone.analyse.roofline import roofline_of
from loadstone.analyse.run_facts import RunFacts, run_facts
from loadstone.analyse.slo import Bound, bounds_of
from loadstone.core import run_folder
from loadstone.core.arrays import COLUMNS, mask_times
from loadstone.core.errors import InputError
from loadstone.core.gpu_metrics import Readings
from loadstone.core.plan import Plan
from loadstone.core.record import RunInfo
from loadstone.core.statistics import PERCENTILES, Distribution
from loadstone.core.statistics.distribution import Z80, Z95
from loadstone.core.summary import (
    LATENCIES,
    SCHEMA,
    SLO_KEYS,
    CellSummary,
    Client,
    FirstToken,
    Latency,
    Metrics,
    RateInterval,
    Requests,
    Summary,
    ToolNumbers,
)
from loadstone.core.units import parse_seconds
from loadstone.workload.schedule import promised_tokens

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_BARE_S = 10.0
"""From here on a bound without a unit is refused: it is more likely to be meant in milliseconds."""
_TOTALS = (
    "input_tokens", "output_tokens", "output_events", "cached_input_tokens", "output_tokens_per_s",
    "total_tokens_per_s", "requests_per_s", "steady", "sustained", "achieved_rate_per_s", "goodput_per_s",
    "attainment",
)  # fmt: skip
_Factors = Annotated[list[Annotated[float, msgspec.Meta(gt=0)]], msgspec.Meta(min_length=1)]
_NOT_SUSTAINED = ("rate_not_reached", "interrupted")
"""Findings on cells whose rate is not what came."""


class _Run(NamedTuple):
    """A run folder that is summarised. `samples`: what its servers and GPUs said, `readings`: of these the GPUs'."""

    folder: Path
    info: RunInfo
    plan: Plan
    samples: pa.Table | None
    readings: Readings | None

    @property
    def simulated(self) -> bool:
        return self.info.source == "simulated"


def parse_slo(text: str) -> tuple[Bound, ...]:
    """Bounds in seconds from `ttft<500ms,tpot_p99<30ms`: per request (`ttft`), or on a percentile (`tpot_p99`).

    A small number without a unit is seconds. Raises InputError.
    """
    bounds: dict[str, float] = {}
    for part in text.split(","):
        name, sign, limit = part.partition("<")
        base, joint, percentile = name.strip().partition("_")
        if not sign or base not in SLO_KEYS or (joint and percentile not in PERCENTILES):
            raise InputError(
                f"--slo: {part.strip()!r} is not a bound; write e.g. ttft<500ms,tpot_p99<30ms "
                f"({', '.join(SLO_KEYS)}; {', '.join(PERCENTILES)})"
            )
        if name.strip() in bounds:
            raise InputError(f"--slo: {name.strip()} has two bounds; give one")
        limit = limit.removeprefix("=").strip()
        bounds[name.strip()] = limit_s = parse_seconds(limit, "--slo")
        if limit_s >= _MOST_BARE_S and limit[-1] in "0123456789.":
            # Other tools' bounds are milliseconds without saying so.
            raise InputError(f"--slo: {part.strip()!r}: {limit} seconds? write {limit}ms or {limit}s")
        if not limit_s > 0:
            raise InputError(f"--slo: {part.strip()!r} can never be met; write a time above 0")
    return tuple(Bound(*each) for each in bounds.items())


def summary_of(folder: Path, dialect: str | None = None) -> Summary:
    """The run's summary, from its records alone; of an imported run without any, as it was stated.

    Raises InputError where they are missing.

    `dialect`: another tool's numbers of the same records beside ours; None: as the run was told.
    """
    info = run_folder.read_info(folder)
    only_stated = imported_run.is_summary_only(folder, info)
    summary = imported_run.read(folder) if only_stated else measured_summary(folder, info, dialect)
    add_roofline(summary, info)
    return summary


def measured_summary(folder: Path, info: RunInfo, dialect: str | None = None) -> Summary:
    """The summary of a run's records, without its roofline. Raises InputError where they are missing."""
    dialect = dialect or info.settings.get("dialect")
    plan = run_folder.read_plan(folder)
    if len(info.cells) != len(plan.cells):
        raise InputError(
            f"{folder}: run.json has {len(info.cells)} cells and plan.parquet {len(plan.cells)}: these are of two "
            "runs; copy the folder again"
        )
    run_folder.check_cells(folder, len(plan.cells))
    samples = run_folder.read_server(folder)
    run = _Run(folder, info, plan, samples, Readings(samples) if samples is not None else None)
    cells = [_cell(run, cell, dialect) for cell in range(len(plan.cells))]
    doubt(folder, [cell for cell in cells if cell is not None])
    findings = verdict.run_findings(info, plan, [cell is not None for cell in cells])
    return run_summary(folder, info, [cell for cell in cells if cell is not None], findings)


def doubt(folder: Path, cells: Sequence[CellSummary]) -> None:
    """Tells where a cell's records are not those that were written, or its times none that can be."""
    altered = "records.parquet" in run_folder.find_changed(folder)
    for cell in cells:
        if not cell.verdict.has("records_altered", "times_impossible"):
            doubts = verdict.record_findings(altered=altered, impossible=cell.is_impossible)
            cell.verdict = verdict.judge([*cell.verdict.findings, *doubts]) if doubts else cell.verdict


def add_roofline(summary: Summary, info: RunInfo) -> RunFacts:
    """Puts beside each cell what the hardware allows, where the catalogue knows it, and a finding where a cell took
    more than there is; returns the facts of the run.
    """
    facts = run_facts(info, summary)
    for cell in summary.cells:
        cell.roofline = roofline_of(info, facts, cell)
        beyond = verdict.beyond_hardware(cell.roofline, info.source)
        if beyond is not None and not cell.verdict.has(beyond.kind):
            cell.verdict = verdict.judge([*cell.verdict.findings, beyond])
    return facts


def run_summary(
    folder: Path, info: RunInfo, cells: list[CellSummary], findings: Sequence[verdict.Finding] = ()
) -> Summary:
    """The summary of cells that are summarised; `findings`: of the run."""
    try:
        first_token = msgspec.convert(info.settings.get("first_token"), FirstToken | None)
    except msgspec.ValidationError:
        first_token = None  # another version's
    return Summary(
        schema=SCHEMA,
        run_id=info.run_id,
        run_dir=str(folder),
        source=info.source,
        status=info.status,
        target=info.target,
        plan_id=info.plan_id,
        seed=info.seed,
        cells=cells,
        findings=list(findings),
        first_token=first_token if info.source == "simulated" else None,
    )


def conclude(folder: Path, info: RunInfo, plan: Plan) -> Summary:
    """Writes run.json, the plan and the summary of a run whose records are there; returns the summary.

    What ran by time, or was stopped, is written as what was issued, so that it can be replayed.
    """
    cut = {number for number, cell in enumerate(info.cells) if cell.stopped is not None}
    if cut or any(plan.cyclic(cell) for cell in range(len(plan.cells))):
        plan = run_folder.cut_to_issued(folder, plan, cut)
        run_folder.write_plan(folder / "plan.parquet", plan)
        info.plan_id = plan.plan_id
    run_folder.write_info(folder, info)
    summary = summary_of(folder)
    run_folder.write_json(folder / "summary.json", summary.document())
    run_folder.seal(folder, info)
    return summary


def _cell(run: _Run, cell: int, dialect: str | None) -> CellSummary | None:
    """One cell of the summary; None where nothing of it was sent."""
    import pyarrow.compute as pc

    info = run.info
    scalars = run_folder.read_columns(run.folder, verdict.SCALARS, cell)
    if scalars.num_rows == 0:
        return None
    if info.source != "imported" and scalars.num_rows > (planned := len(run.plan.rows(cell))):
        raise InputError(
            f"{run.folder}: {scalars.num_rows:,} records of {planned:,} planned requests; copy or measure it again"
        )
    load = info.cells[cell].load  # the plan of a cell that ran by time has become one by count
    bounds = [Bound(name, limit_s) for name, limit_s in (info.slo or {}).items()]
    # The records are read once, for the numbers and for the verdict.
    events = verdict.Events(live=not run.simulated)

    def read() -> Iterator[pa.RecordBatch]:
        for batch in run_folder.read_records(run.folder, cell, COLUMNS if run.simulated else (*COLUMNS, "read")):
            events.add(batch)
            yield batch

    measured = np.array(pc.fill_null(pc.equal(scalars["phase"], "measure"), False))
    imported = imported_run.of_cell(info, cell)
    metrics = cell_metrics(
        read,
        load,
        _limits(bounds),
        streams=info.streams,
        sent_s=mask_times(scalars["sent_s"].to_numpy())[measured],
        span_s=imported.stated.duration_s if imported is not None and imported.relative_times else None,
    )
    parts = breakdown_of(run.folder, info, run.plan, cell, load, info.streams)
    summary = CellSummary(
        load=load,
        requests=Requests(**msgspec.structs.asdict(metrics.requests)),
        duration_s=metrics.duration_s,
        metrics=_metrics(metrics, run.plan, cell),
        by_turn=parts.by_turn,
        by_replica=parts.by_replica,
        by_piece=parts.by_piece,
        client=Client(
            send_lag_p99_s=_p99(metrics.send_lag_s),
            receive_lag_p99_s=_p99(metrics.receive_lag_s),
            clock=info.clock or "user",
            cpu_s=info.cells[cell].client_cpu_s,
        ),
        verdict=verdict.judge([]),
        slo_per_request_s={name: limit_s for name, limit_s in bounds if name in SLO_KEYS},
        stopped=info.cells[cell].stopped,
    )
    _add_server(summary, run, cell)
    if summary.gpu is not None and run.readings is not None:
        ends_s = mask_times(scalars["end_s"].to_numpy())[measured]
        _add_energy(summary, run.readings, float(np.nanmax(ends_s, initial=0.0)))
    summary.verdict = verdict.judge(_findings(run, cell, metrics, scalars, events, summary, imported))
    line, beyond = quote(summary, _selftest(info))
    if line is not None:
        summary.client = msgspec.structs.replace(summary.client, selftest=line)
    if beyond is not None:
        summary.verdict.findings.append(beyond)
    if info.slo and summary.requests.sent != 0:  # of none, nothing was met or missed
        off = _of_cell(info, "slo_factors", cell) or {}
        known = None if run.simulated else (1.0,)
        summary.slo = bounds_of(bounds, load, summary.requests, summary.metrics, lambda name: off.get(name, known))
    if imported is not None:
        imported_run.lay_over(summary, imported)
    if summary.verdict.has(*_NOT_SUSTAINED):
        summary.metrics.sustained = None
    _add_intervals(summary, _of_cell(info, "intervals", cell))
    if dialect is not None:
        summary.dialect = _in_dialect(run, cell, dialect)
    return summary


def _findings(
    run: _Run,
    cell: int,
    metrics: CellMetrics,
    scalars: pa.Table,
    events: verdict.Events,
    summary: CellSummary,
    imported: imported_run.ImportedCell | None,
) -> list[verdict.Finding]:
    info = run.info
    over = info.cells[cell].end_s is not None
    seen = verdict.Cell(
        metrics=metrics,
        requests=verdict.request_table(scalars, events),
        plan=run.plan,
        number=cell,
        info=info.cells[cell],
        origin=imported_run.origin(info, imported),
        clock=summary.client.clock,
        interrupted=None if over else f"the cell did not run to its end ({info.error or info.status})",
        target=info.target,
        replicas=summary.by_replica,
        server=summary.server,
        gpus=summary.gpu,
    )
    return (
        verdict.cell_findings(seen)
        + verdict.kept_findings(info, run.plan, cell, scalars.num_rows)
        + verdict.prediction_findings(info)
    )


def _metrics(metrics: CellMetrics, plan: Plan, cell: int) -> Metrics:
    """As the summary has them; with the input tokens that measured requests share with earlier ones on purpose."""
    shared = promised_tokens(plan, cell)
    rows = plan.rows(cell)
    shared = shared[(plan.phase[rows.start : rows.stop] == 1) & (shared > 0)]
    summary = Metrics(shared_input_tokens=int(shared.sum()) if len(shared) else None)
    for name in LATENCIES:
        setattr(summary, name, Latency.of(getattr(metrics, name)))
    for name in _TOTALS:
        setattr(summary, name, getattr(metrics, name))
    return summary


def _p99(lags: Distribution | None) -> float | None:
    return lags.p99 if lags is not None else None


def _of_cell(info: RunInfo, name: str, cell: int) -> Mapping[str, Sequence[float]]:
    """A setting that has factors for each cell, by metric or bound; none where it is another version's."""
    try:
        each = msgspec.convert(info.settings.get(name) or [], list[dict[str, _Factors]])
    except msgspec.ValidationError:
        return {}
    return each[cell] if cell < len(each) else {}


def _add_intervals(summary: CellSummary, factors: Mapping[str, Sequence[float]]) -> None:
    """Of a simulated cell: `low` and `high` beside each p50, and the intervals of throughputs. `factors`: by metric,
    those by which its prediction may be off.
    """
    metrics = summary.metrics
    for name, ends in factors.items():
        low, high = min(ends), max(ends)
        value = getattr(metrics, name, None)
        if isinstance(value, Latency) and value.p50 is not None:
            setattr(metrics, name, msgspec.structs.replace(value, low=value.p50 * low, high=value.p50 * high))
        elif isinstance(value, int | float):
            window = summary.lasting()
            value = getattr(window, name)
            # The draws are of one plan: another has other lengths and, where their rate is not known, other arrivals.
            drawn = [
                abs(math.log(end / value)) * Z80 / Z95 if end and value else 0.0
                for end in window.ci95.get(name, [None, None])
            ]
            below, above = map(math.hypot, drawn, (math.log(low), math.log(high)))
            metrics.interval[name] = RateInterval(
                value=value,
                low=value * math.exp(-below),
                high=value * math.exp(above),
                model_low=value * low,
                model_high=value * high,
            )


def _add_energy(summary: CellSummary, readings: Readings, end_s: float) -> None:
    """`j_per_output_token` beside each throughput of output tokens: what all GPUs that were watched drew in its
    window, over the tokens that came in it. Not there where nobody knows it. `end_s`: of the last measured request.
    """

    def joules(tokens_per_s: float | None, begin_s: float, over_s: float) -> float | None:
        energy_j = readings.sum_energy_j(begin_s, over_s)
        return energy_j / (tokens_per_s * (over_s - begin_s)) if energy_j is not None and tokens_per_s else None

    metrics = summary.metrics
    if summary.duration_s:
        metrics.j_per_output_token = joules(metrics.output_tokens_per_s, end_s - summary.duration_s, end_s)
    if (steady := metrics.steady) is not None:
        in_steady = joules(steady.output_tokens_per_s, steady.start_s, steady.end_s)
        metrics.steady = msgspec.structs.replace(steady, j_per_output_token=in_steady)


def _selftest(info: RunInfo) -> Selftest | None:
    """What the host's self-test had found, as run.json keeps it."""
    try:
        return msgspec.convert(info.selftest, Selftest) if info.selftest is not None else None
    except msgspec.ValidationError:
        return None  # another version's


def _in_dialect(run: _Run, cell: int, dialect: str) -> ToolNumbers:
    """The cell's numbers under another tool's names, by its definitions."""
    from loadstone.analyse.other_tools import summarise_as

    return summarise_as(dialect, lambda: run_folder.read_records(run.folder, cell), streams=run.info.streams)


def _add_server(summary: CellSummary, run: _Run, cell: int) -> None:
    """What the servers, and GPUs, said of themselves while the cell ran."""
    start_s, end_s = run.info.cells[cell].start_s, run.info.cells[cell].end_s
    if run.samples is None or run.readings is None or start_s is None or end_s is None:
        return
    summary.server = verdict.server_figures(run.samples, start_s, end_s)
    summary.gpu = verdict.gpu_figures(run.readings, start_s, end_s)


def _limits(slo: Sequence[Bound]) -> RequestBounds:
    """What goodput and attainment ask of a request: the bounds on requests. Where all are on percentiles, their
    limits; of several on one measure the largest, which is what a user bears at worst.
    """
    limits: dict[str, float] = {}
    own = [bound for bound in slo if bound.name in SLO_KEYS]
    for name, limit_s in own or slo:
        base = name.partition("_")[0]
        if base in SLO_KEYS:  # run.json may have another version's bounds
            limits[f"{base}_s"] = max(limit_s, limits.get(f"{base}_s", 0.0))
    return RequestBounds(**limits)
