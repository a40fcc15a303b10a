"""Makes a run folder's summary: the document that `loadstone bench --json` prints and summary.json
keeps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from loadstone.analyse import drafts, imported_run, verdict
from loadstone.analyse.breakdown import breakdown_of
from loadstone.analyse.client_accuracy import Selftest, quote
from loadstone.analyse.drafts import drafts_of
from loadstone.analyse.grading.accuracy import grade_cells
from loadstone.analyse.metrics import CellNumbers, RequestBounds, measure_cell
from loadstone.analyse.roofline import roofline_of
from loadstone.analyse.run_facts import RunFacts, run_facts
from loadstone.analyse.sessions import cacheable_shares, session_numbers
from loadstone.analyse.slo import Bound, bounds_of, probability_of
from loadstone.core import run_folder
from loadstone.core.arrays import CHANNELS, COLUMNS, Floats, mask_times
from loadstone.core.errors import InputError
from loadstone.core.gpu_metrics import Readings
from loadstone.core.plan import Load, Plan
from loadstone.core.record import RunInfo
from loadstone.core.statistics import PERCENTILES, Distribution
from loadstone.core.statistics.distribution import Z80, Z95
from loadstone.core.summary import (
    SCHEMA,
    SLO_KEYS,
    TASK,
    CellSummary,
    Client,
    DraftFigures,
    Latency,
    PoolFigures,
    RateInterval,
    Summary,
    ToolNumbers,
)
from loadstone.core.units import parse_seconds
from loadstone.workload.schedule import promised_tokens

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_BARE_S = 10.0
"""The least bound, in seconds, that needs a unit: without one it is more likely to be meant in
milliseconds."""
_NOT_SUSTAINED = ("rate_not_reached", "interrupted")
"""Findings on cells at which another rate came than was asked for."""


class _Run(NamedTuple):
    """A run folder to summarise. `samples`: what its servers and GPUs reported, `readings`: of
    these the GPUs'."""

    folder: Path
    info: RunInfo
    plan: Plan
    samples: pa.Table | None
    readings: Readings | None

    @property
    def simulated(self) -> bool:
        return self.info.source == "simulated"


def parse_slo(text: str) -> tuple[Bound, ...]:
    """Parse bounds, in seconds, from `ttft<500ms,tpot_p99<30ms`: per request (`ttft`), or on a
    percentile (`tpot_p99`).

    A small number without a unit is seconds. Raises InputError.
    """
    bounds: dict[str, float] = {}
    for part in text.split(","):
        name, sign, limit = part.partition("<")
        base, joint, percentile = name.strip().partition("_")
        if not sign or base not in (*SLO_KEYS, TASK) or (joint and percentile not in PERCENTILES):
            raise InputError(
                f"--slo: {part.strip()!r} is not a bound; write e.g. ttft<500ms,tpot_p99<30ms "
                f"({', '.join(SLO_KEYS)}; of sessions task; {', '.join(PERCENTILES)})"
            )
        if base == TASK and not joint:
            raise InputError(
                f"--slo: {part.strip()!r}: is on a percentile of sessions; write e.g. task_p90<120s"
            )
        if name.strip() in bounds:
            raise InputError(f"--slo: {name.strip()} has two bounds; give one")
        limit = limit.removeprefix("=").strip()
        bounds[name.strip()] = limit_s = parse_seconds(limit, "--slo")
        if limit_s >= _MOST_BARE_S and limit[-1] in "0123456789.":
            # Other tools' bounds are milliseconds without saying so.
            raise InputError(
                f"--slo: {part.strip()!r}: {limit} seconds? write {limit}ms or {limit}s"
            )
        if not limit_s > 0:
            raise InputError(f"--slo: {part.strip()!r} can never be met; write a time above 0")
    return tuple(Bound(*each) for each in bounds.items())


def summary_of(folder: Path, dialect: str | None = None) -> Summary:
    """Make the run's summary from its records alone; that of an imported run without any is as its
    file reported.

    `dialect`: another tool whose numbers of the same records are added; None: the one that the run
    was given. Raises InputError where records are missing.
    """
    info = run_folder.read_info(folder)
    only_stated = imported_run.is_summary_only(folder, info)
    summary = (
        imported_run.read(folder, info) if only_stated else measured_summary(folder, info, dialect)
    )
    add_roofline(summary, info)
    return summary


def measured_summary(folder: Path, info: RunInfo, dialect: str | None = None) -> Summary:
    """Make the summary of a run's records, without its roofline. Raises InputError where they are
    missing."""
    dialect = dialect or info.settings.dialect or None
    plan = run_folder.read_plan(folder)
    if len(info.cells) != len(plan.cells):
        raise InputError(
            f"{folder}: run.json has {len(info.cells)} cells and plan.parquet {len(plan.cells)}:"
            " these are of two runs; copy the folder again"
        )
    run_folder.check_cells(folder, len(plan.cells))
    samples = run_folder.read_server(folder)
    run = _Run(folder, info, plan, samples, Readings(samples) if samples is not None else None)
    cells = [_summarise_cell(run, cell, dialect) for cell in range(len(plan.cells))]
    there = {number: cell for number, cell in enumerate(cells) if cell is not None}
    for number, found in grade_cells(folder, info, plan, there).items():
        there[number].verdict = verdict.judge([*there[number].verdict.findings, *found])
    doubt(run_folder.find_changed(folder, info.marks), [cell for cell in cells if cell is not None])
    findings = verdict.run_findings(info, plan, [cell is not None for cell in cells])
    return run_summary(folder, info, [cell for cell in cells if cell is not None], findings)


def doubt(changed: Sequence[str], cells: Sequence[CellSummary]) -> None:
    """Add findings where a cell's records are among the `changed` files, or its times are
    impossible."""
    altered = "records.parquet" in changed
    for cell in cells:
        if not cell.verdict.has("records_altered", "times_impossible"):
            doubts = list(verdict.record_findings(altered=altered, impossible=cell.is_impossible))
            cell.verdict = (
                verdict.judge([*cell.verdict.findings, *doubts]) if doubts else cell.verdict
            )


def add_roofline(summary: Summary, info: RunInfo) -> RunFacts:
    """Add to each cell what the hardware allows, where the catalogue knows it, and a finding where
    the cell took more; return the facts of the run.
    """
    facts = run_facts(info, summary)
    for cell in summary.cells:
        cell.pools = _measure_pools(facts, cell)
        cell.roofline = None if facts.pools else roofline_of(info, facts, cell)
        beyond = verdict.beyond_hardware(cell.roofline, info.source)
        if beyond is not None and not cell.verdict.has(beyond.kind):
            cell.verdict = verdict.judge([*cell.verdict.findings, beyond])
    return facts


def _measure_pools(facts: RunFacts, cell: CellSummary) -> list[PoolFigures]:
    """Compute what each pool gave: those that prefill the input's tokens, those that decode the
    output's."""
    window = cell.lasting()
    output, total = window.output_tokens_per_s, window.total_tokens_per_s
    rates = {
        "decode": output,
        "prefill": total - output if total is not None and output is not None else None,
    }
    watts = cell.gpu.power_w_by_pool if cell.gpu is not None else {}
    return [
        msgspec.structs.replace(
            pool,
            tokens_per_s=rate,
            tokens_per_s_per_gpu=None if rate is None else rate / pool.gpus,
            j_per_token=watts[pool.role] / rate if rate and pool.role in watts else None,
        )
        for pool in facts.pools
        for rate in [rates.get(pool.role)]
    ]


def run_summary(
    folder: Path, info: RunInfo, cells: list[CellSummary], findings: Iterable[verdict.Finding] = ()
) -> Summary:
    """Make a run's summary of its cells' summaries; `findings`: those of the run."""
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
        first_token=info.settings.first_token if info.source == "simulated" else None,
    )


def conclude(folder: Path, info: RunInfo, plan: Plan) -> Summary:
    """Write run.json, the plan and the summary of a run whose records are there; return the
    summary.

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


def _summarise_cell(run: _Run, cell: int, dialect: str | None) -> CellSummary | None:
    """Make the summary of one cell; None where nothing of it was sent."""
    info = run.info
    scalars = _read_scalars(run, cell)
    if scalars.num_rows == 0:
        return None
    load = info.cells[cell].load  # the plan of a cell that ran by time has become one by count
    bounds = [Bound(name, limit_s) for name, limit_s in (info.slo or {}).items()]
    imported = imported_run.of_cell(info, cell)
    events = verdict.EventReader(live=not run.simulated)
    numbers = _measure(run, cell, load, bounds, scalars, events, imported)
    summary = _cell_summary(run, cell, load, bounds, numbers)
    if info.source != "imported":
        summary.sessions = session_numbers(run.plan, cell, scalars, numbers.duration_s)
    _add_server(summary, run, cell, scalars)
    if not run.simulated:
        summary.drafts = _drafts(summary, run, cell, scalars)
    summary.verdict = verdict.judge(_find(run, cell, numbers, scalars, events, summary, imported))
    line, beyond = quote(summary, _selftest(info))
    if line is not None:
        summary.client = msgspec.structs.replace(summary.client, selftest=line)
    if beyond is not None:
        summary.verdict.findings.append(beyond)
    if info.slo and summary.requests.sent != 0:  # without requests, nothing was met or missed
        off = _factors(info.settings.slo_factors, cell)
        known = None if run.simulated else (1.0,)

        def factors(name: str) -> Sequence[float] | None:
            return off.get(name, known)

        task_s = summary.sessions.task_s if summary.sessions is not None else None
        summary.slo = bounds_of(bounds, load, summary.requests, summary.metrics, factors, task_s)
        if run.simulated:
            summary.p_slo = probability_of(summary.slo, load, summary.metrics, factors, task_s)
    if imported is not None:
        imported_run.overlay(summary, imported)
    if summary.verdict.has(*_NOT_SUSTAINED):
        summary.metrics.sustained = None
    _add_intervals(summary, _factors(info.settings.intervals, cell))
    if dialect is not None:
        summary.dialect = _in_dialect(run, cell, dialect)
    return summary


def _read_scalars(run: _Run, cell: int) -> pa.Table:
    """Read one value for each request. Raises InputError where a cell has more records than planned
    requests."""
    scalars = run_folder.read_columns(run.folder, verdict.SCALARS, cell)
    planned = len(run.plan.rows(cell))
    if run.info.source != "imported" and scalars.num_rows > planned:
        raise InputError(
            f"{run.folder}: {scalars.num_rows:,} records of {planned:,} planned requests; copy or"
            " measure it again"
        )
    return scalars


def _measure(
    run: _Run,
    cell: int,
    load: Load,
    bounds: Sequence[Bound],
    scalars: pa.Table,
    events: verdict.EventReader,
    imported: imported_run.ImportedCell | None,
) -> CellNumbers:
    """Compute the cell's numbers. The records are read once, for these and, into `events`, for the
    verdict."""

    def read() -> Iterator[pa.RecordBatch]:
        more = () if run.simulated else (*CHANNELS, "read")
        for batch in run_folder.read_records(run.folder, cell, (*COLUMNS, *more)):
            events.add(batch)
            yield batch

    numbers = measure_cell(
        read,
        load,
        _request_bounds(bounds),
        streams=run.info.streams,
        sent_s=_times(scalars, "sent_s"),
        answers=not run.simulated or any(name.startswith("answer") for name, _ in bounds),
        span_s=(
            imported.stated.duration_s if imported is not None and imported.relative_times else None
        ),
    )
    shared = promised_tokens(run.plan, cell)
    rows = run.plan.rows(cell)
    here = slice(rows.start, rows.stop)
    measured = (run.plan.phase[here] == 1) & (shared >= 0)
    metrics, blocks = numbers.metrics, run.plan.blocks
    shares = cacheable_shares(run.plan, cell, scalars["request_id"])
    if shares:
        tokens = metrics.input_tokens
        metrics.shared_input_tokens = None if tokens is None else round(shares[-1] * tokens)
    elif shared[measured].any():
        metrics.shared_input_tokens = int(shared[measured].sum())
    if blocks is not None and blocks.tokens and measured.any():
        whole = -(-run.plan.input_tokens[here][measured].astype(np.int64) // blocks.tokens)
        metrics.shared_block_share = float(
            (-(-shared[measured] // blocks.tokens)).sum() / whole.sum()
        )
    return numbers


def _times(scalars: pa.Table, column: str) -> Floats:
    """Take a column of times of the measured requests."""
    import pyarrow.compute as pc

    measured = np.array(pc.fill_null(pc.equal(scalars["phase"], "measure"), False))
    return np.asarray(mask_times(scalars[column].to_numpy())[measured])


def _cell_summary(
    run: _Run, cell: int, load: Load, bounds: Sequence[Bound], numbers: CellNumbers
) -> CellSummary:
    """Put together what is known of a cell before it is judged."""
    parts = breakdown_of(run.folder, run.info, run.plan, cell, load, run.info.streams)
    return CellSummary(
        load=load,
        requests=numbers.requests,
        duration_s=numbers.duration_s,
        metrics=numbers.metrics,
        by_turn=parts.by_turn,
        by_replica=parts.by_replica,
        by_piece=parts.by_piece,
        client=Client(
            send_lag_p99_s=_p99(numbers.samples["send_lag_s"]),
            receive_lag_p99_s=_p99(numbers.samples["receive_lag_s"]),
            clock=run.info.clock or "user",
            cpu_s=run.info.cells[cell].client_cpu_s,
        ),
        verdict=verdict.judge([]),
        slo_per_request_s={name: limit_s for name, limit_s in bounds if name in SLO_KEYS},
        stopped=run.info.cells[cell].stopped,
    )


def _find(
    run: _Run,
    cell: int,
    numbers: CellNumbers,
    scalars: pa.Table,
    events: verdict.EventReader,
    summary: CellSummary,
    imported: imported_run.ImportedCell | None,
) -> list[verdict.Finding]:
    info = run.info
    over = info.cells[cell].end_s is not None
    judged = verdict.JudgedCell(
        numbers=numbers,
        requests=verdict.request_table(scalars, events),
        plan=run.plan,
        number=cell,
        info=info.cells[cell],
        origin=imported_run.origin(info, imported),
        clock=summary.client.clock,
        interrupted=(
            None if over else f"the cell did not run to its end ({info.error or info.status})"
        ),
        target=info.target,
        replicas=summary.by_replica,
        server=summary.server,
        gpus=summary.gpu,
        drafts=summary.drafts,
        has_pools=bool(info.settings.deployment.get("pools")),
    )
    return [
        *verdict.cell_findings(judged),
        *verdict.kept_findings(info, run.plan, cell, scalars.num_rows),
        *verdict.session_findings(run.plan, summary.sessions),
        *verdict.prediction_findings(info),
    ]


def _p99(lags: Distribution | None) -> float | None:
    return lags.p99 if lags is not None else None


def _factors(
    factors: Sequence[Mapping[str, Sequence[float]]], cell: int
) -> Mapping[str, Sequence[float]]:
    return factors[cell] if cell < len(factors) else {}


def _add_intervals(summary: CellSummary, factors: Mapping[str, Sequence[float]]) -> None:
    """Add the intervals of a prediction: `low` and `high` of each p50, and those of throughputs.
    `factors`: by metric, those by which its prediction may be off.
    """
    metrics = summary.metrics
    for name, ends in factors.items():
        low, high = min(ends), max(ends)
        value = getattr(metrics, name, None)
        if isinstance(value, Latency) and value.p50 is not None:
            setattr(
                metrics,
                name,
                msgspec.structs.replace(value, low=value.p50 * low, high=value.p50 * high),
            )
        elif isinstance(value, int | float):
            window = summary.lasting()
            value = getattr(window, name)
            # The draws are of one plan: another has other lengths and, where their rate is not
            # known, other arrivals.
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
    """Add `j_per_output_token` and `j_per_total_token` to each throughput: what all GPUs that were
    watched drew in its window, over the tokens that came in it; nothing where that is not known.
    `end_s`: of the last measured request.
    """

    def joules(tokens_per_s: float | None, begin_s: float, over_s: float) -> float | None:
        energy_j = readings.sum_energy_j(begin_s, over_s)
        return (
            energy_j / (tokens_per_s * (over_s - begin_s))
            if energy_j is not None and tokens_per_s
            else None
        )

    metrics = summary.metrics
    if summary.duration_s:
        metrics.j_per_output_token = joules(
            metrics.output_tokens_per_s, end_s - summary.duration_s, end_s
        )
        metrics.j_per_total_token = joules(
            metrics.total_tokens_per_s, end_s - summary.duration_s, end_s
        )
    if (steady := metrics.steady) is not None:
        output, total = (
            joules(rate, steady.start_s, steady.end_s)
            for rate in (steady.output_tokens_per_s, steady.total_tokens_per_s)
        )
        metrics.steady = msgspec.structs.replace(
            steady, j_per_output_token=output, j_per_total_token=total
        )


def _selftest(info: RunInfo) -> Selftest | None:
    """Read the result of the host's self-test, as run.json keeps it."""
    try:
        return msgspec.convert(info.selftest, Selftest) if info.selftest is not None else None
    except msgspec.ValidationError:
        return None  # another version's


def _in_dialect(run: _Run, cell: int, dialect: str) -> ToolNumbers:
    """Compute the cell's numbers under another tool's names, by its definitions."""
    from loadstone.analyse.other_tools import summarise_as

    return summarise_as(
        dialect, lambda: run_folder.read_records(run.folder, cell), streams=run.info.streams
    )


def _add_server(summary: CellSummary, run: _Run, cell: int, scalars: pa.Table) -> None:
    """Add what servers and GPUs reported while the cell ran, and the energy of a token."""
    start_s, end_s = run.info.cells[cell].start_s, run.info.cells[cell].end_s
    if run.samples is None or run.readings is None or start_s is None or end_s is None:
        return
    has_pools = bool(run.info.settings.deployment.get("pools"))
    answered = scalars["status"].to_pylist().count("ok") if has_pools else None
    summary.server = verdict.server_figures(run.samples, start_s, end_s, answered)
    summary.gpu = verdict.gpu_figures(run.readings, start_s, end_s)
    if summary.gpu is not None:
        last_s = float(np.nanmax(_times(scalars, "end_s"), initial=0.0))
        _add_energy(summary, run.readings, last_s)
        by_pool = _read_pool_power(summary, Readings.of_pools(run.samples), last_s)
        summary.gpu = msgspec.structs.replace(summary.gpu, power_w_by_pool=by_pool)


def _read_pool_power(
    summary: CellSummary, readings: Mapping[str, Readings], end_s: float
) -> dict[str, float]:
    """Compute the mean power of each pool in the window of the throughputs, of those read often
    enough in it."""
    steady = summary.metrics.steady
    begin_s, end_s = (
        (end_s - (summary.duration_s or 0), end_s)
        if steady is None
        else (steady.start_s, steady.end_s)
    )
    energies = {role: each.sum_energy_j(begin_s, end_s) for role, each in readings.items()}
    return {
        role: joules / (end_s - begin_s) for role, joules in energies.items() if joules is not None
    }


def _drafts(summary: CellSummary, run: _Run, cell: int, scalars: pa.Table) -> DraftFigures | None:
    """Compute what drafts came to, by the servers' counters from the first send of a measured
    request on."""
    server = summary.server
    if server is not None and server.draft_tokens and run.samples is not None:
        begin_s, end_s = np.nanmin(_times(scalars, "sent_s")), np.nanmax(_times(scalars, "end_s"))
        server = verdict.server_figures(run.samples, float(begin_s), float(end_s))
    return drafts_of(server, run_folder.read_columns(run.folder, drafts.COLUMNS, cell), run.info)


def _request_bounds(slo: Sequence[Bound]) -> RequestBounds:
    """Choose what goodput and attainment ask of a request: the bounds on requests; where all are on
    percentiles, their limits, of several on one measure the largest, which is what a user bears at
    worst.
    """
    limits: dict[str, float] = {}
    own = [bound for bound in slo if bound.name in SLO_KEYS]
    for name, limit_s in own or slo:
        base = name.partition("_")[0]
        if base in SLO_KEYS:  # run.json may have another version's bounds
            limits[f"{base}_s"] = max(limit_s, limits.get(f"{base}_s", 0.0))
    return RequestBounds(**limits)
