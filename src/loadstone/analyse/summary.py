"""Makes a run folder's summary: the document that `loadstone bench --json` prints and summary.json
keeps. Facts become numbers, numbers findings; when all of these are in, each cell is judged, once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from loadstone.analyse import drafts, imported_run
from loadstone.analyse.breakdown import breakdown_of
from loadstone.analyse.classes import COLUMNS as CLASS_COLUMNS
from loadstone.analyse.classes import classes_of
from loadstone.analyse.client_accuracy import Selftest, quote
from loadstone.analyse.grading.accuracy import grade_cells
from loadstone.analyse.imported_run import ImportedCell
from loadstone.analyse.metrics import CellNumbers, measure_cell
from loadstone.analyse.pictures import COLUMNS as SIZE_COLUMNS
from loadstone.analyse.pictures import sizes_of
from loadstone.analyse.pooling import name_rates
from loadstone.analyse.power import add_power
from loadstone.analyse.roofline import roofline_of
from loadstone.analyse.run_facts import RunFacts, run_facts
from loadstone.analyse.scenario import scenario_findings, scenario_result
from loadstone.analyse.server_figures import gpu_figures, measured_fleet, server_figures
from loadstone.analyse.sessions import cacheable_shares, session_numbers
from loadstone.analyse.slo import BoundedCell, request_bounds
from loadstone.analyse.verdict.classes import class_findings
from loadstone.analyse.verdict.finding import Findings, finding, judge
from loadstone.analyse.verdict.requests import SCALARS, EventReader, JudgedCell, request_table
from loadstone.analyse.verdict.rules import cell_findings
from loadstone.analyse.verdict.run import (
    beyond_hardware,
    kept_findings,
    prediction_findings,
    record_findings,
    run_findings,
    session_findings,
)
from loadstone.core import run_folder
from loadstone.core.arrays import CHANNELS, COLUMNS, mask_times
from loadstone.core.bounds import SLO_KEYS, Bound, split_bound
from loadstone.core.errors import InputError
from loadstone.core.gpu_metrics import Readings
from loadstone.core.machine_figures import PoolFigures
from loadstone.core.metrics import Latency, Metrics, RateInterval, Window
from loadstone.core.plan import Load, Plan
from loadstone.core.record import RunInfo
from loadstone.core.settings import PooledCell
from loadstone.core.statistics import Distribution
from loadstone.core.statistics.distribution import Z80, Z95
from loadstone.core.summary import SCHEMA, CellSummary, Client, Summary
from loadstone.core.vectors import Floats
from loadstone.core.verdict import Finding, Verdict
from loadstone.workload.schedule import promised_tokens

if TYPE_CHECKING:
    import pyarrow as pa

_NOT_SUSTAINED = ("rate_not_reached", "interrupted")
"""Findings on cells at which another rate came than was asked for."""


def summary_of(folder: Path, dialect: str | None = None) -> Summary:
    """Make the run's summary from its records alone; that of an imported run without any is as its
    file reported.

    `dialect`: another tool whose numbers of the same records are added; None: the one that the run
    was given. Raises InputError where records are missing.
    """
    info = run_folder.read_info(folder)
    if imported_run.is_summary_only(folder, info):
        summary = imported_run.read(folder, info)
        add_limits(summary, info)
        return summary
    return measured_summary(folder, info, dialect)[0]


def measured_summary(
    folder: Path, info: RunInfo, dialect: str | None = None
) -> tuple[Summary, RunFacts]:
    """Make the summary of a run's records, and collect the facts of the run. Raises InputError
    where records are missing."""
    plan = run_folder.read_plan(folder)
    if len(info.cells) != len(plan.cells):
        raise InputError(
            f"{folder}: run.json has {len(info.cells)} cells and plan.parquet {len(plan.cells)}:"
            " these are of two runs; copy the folder again"
        )
    run_folder.check_cells(folder, len(plan.cells))
    samples = run_folder.read_server(folder)
    readings = Readings(samples) if samples is not None else None
    run = _Run(folder, info, plan, samples, readings, dialect or info.settings.dialect or None)
    summaries = [_summarise_cell(run, number) for number in range(len(plan.cells))]
    begun = [summary is not None for summary in summaries]
    cells = {number: cell for number, cell in enumerate(summaries) if cell is not None}
    grade_cells(folder, info, plan, cells)
    summary = run_summary(folder, info, list(cells.values()), run_findings(info, plan, begun))
    if info.source == "measured":
        summary.fleet = measured_fleet(samples)
    facts = add_limits(summary, info)
    changed = run_folder.find_changed(folder, info.marks)
    for cell in summary.cells:
        cell.verdict = judge([*cell.verdict.findings, *late_findings(cell, info, changed)])
    summary.scenario = scenario_result(info, summary.cells, facts.gpus)
    return summary, facts


def add_limits(summary: Summary, info: RunInfo) -> RunFacts:
    """Add to each cell what the hardware allows, where the catalogue knows it; return the facts of
    the run."""
    facts = run_facts(info, summary)
    for cell, pooled in zip_longest(summary.cells, info.settings.pools):
        cell.pools = [_measure_pool(pool, cell, pooled) for pool in facts.pools]
        cell.roofline = None if facts.pools else roofline_of(info, facts, cell)
        if info.source == "simulated":
            add_power(cell, info, facts)
    return facts


def late_findings(cell: CellSummary, info: RunInfo, changed: Sequence[str]) -> Findings:
    """Find what a cell's whole summary tells, as far as it has no such findings: what is among the
    `changed` files, times and speeds that cannot be."""
    if not cell.verdict.has("records_altered", "times_impossible"):
        altered = "records.parquet" in changed
        yield from record_findings(altered=altered, impossible=cell.is_impossible)
    papers = [name for name in changed if name not in ("records.parquet", "summary.json")]
    if papers and not cell.verdict.has("evidence_altered"):
        yield finding("evidence_altered", files=", ".join(papers))
    if not cell.verdict.has("beyond_hardware"):
        yield from beyond_hardware(cell.roofline, info.source)


def run_summary(
    folder: Path, info: RunInfo, cells: list[CellSummary], findings: Iterable[Finding] = ()
) -> Summary:
    """Make a run's summary of its cells' summaries; `findings`: those of the run."""
    start = info.settings.workload.get("start")
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
        start=start if isinstance(start, str) else None,
        first_token=info.settings.first_token if info.source == "simulated" else None,
        fleet=info.settings.fleet,
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


# --- facts ----------------------------------------------------------------------------------------


class _Run(NamedTuple):
    """A run folder to summarise. `samples`: what its servers and GPUs reported, `readings`: of
    these the GPUs'."""

    folder: Path
    info: RunInfo
    plan: Plan
    samples: pa.Table | None
    readings: Readings | None
    dialect: str | None

    @property
    def simulated(self) -> bool:
        return self.info.source == "simulated"


class _Cell(NamedTuple):
    """A cell of it. `scalars`: one value for each request; `bounds`: those of --slo."""

    run: _Run
    number: int
    scalars: pa.Table
    bounds: Sequence[Bound]
    imported: ImportedCell | None

    @property
    def load(self) -> Load:
        """The load; the plan of a cell that ran by time has become one by count."""
        return self.run.info.cells[self.number].load

    def times(self, column: str) -> Floats:
        """Take a column of times of the measured requests."""
        import pyarrow.compute as pc

        measured = np.array(pc.fill_null(pc.equal(self.scalars["phase"], "measure"), False))
        return np.asarray(mask_times(self.scalars[column].to_numpy())[measured])


def _read_cell(run: _Run, number: int) -> _Cell:
    """Read what is known of each request. Raises InputError where a cell has more records than
    planned requests."""
    scalars = run_folder.read_columns(run.folder, SCALARS, number)
    planned, warmups = len(run.plan.rows(number)), run.plan.warmup_count(number)
    warm = scalars["phase"].to_pylist().count("warmup")
    if run.info.source != "imported" and scalars.num_rows > planned:
        raise InputError(
            f"{run.folder}: {scalars.num_rows:,} records of {planned:,} planned requests; copy or"
            " measure it again"
        )
    if run.info.source != "imported" and not scalars.num_rows - planned <= warm - warmups <= 0:
        raise InputError(
            f"{run.folder}: {warm:,} of {scalars.num_rows:,} records are of the warm-up, for which"
            f" {warmups:,} are planned; copy or measure it again"
        )
    bounds = [Bound(name, limit_s) for name, limit_s in (run.info.slo or {}).items()]
    return _Cell(run, number, scalars, bounds, imported_run.of_cell(run.info, number))


def _summarise_cell(run: _Run, number: int) -> CellSummary | None:
    """Make the summary of one cell, with its findings; None where nothing of it was sent."""
    cell = _read_cell(run, number)
    if cell.scalars.num_rows == 0:
        return None
    events = EventReader(live=not run.simulated)
    numbers = _measure(cell, events)
    summary = _put_together(cell, numbers)
    if run.info.source != "imported":
        summary.sessions = session_numbers(run.plan, number, cell.scalars, numbers.duration_s)
    _add_class_goodput(summary)
    _add_server(summary, cell)
    if not run.simulated:
        _add_drafts(summary, cell)
    summary.verdict.findings.extend(_find(cell, numbers, events, summary))
    _quote_selftest(summary, run.info)
    if run.info.slo and summary.requests.sent != 0:  # without requests, nothing was met or missed
        _add_slo(summary, cell)
    if cell.imported is not None:
        imported_run.overlay(summary, cell.imported)
    if summary.verdict.has(*_NOT_SUSTAINED):
        summary.metrics.sustained = None
    _add_intervals(summary, _factors(run.info.settings.intervals, number))
    if run.plan.inputs is not None:
        name_rates(summary, run.plan.inputs)
    if run.dialect is not None:
        from loadstone.analyse.other_tools import summarise_as

        summary.dialect = summarise_as(
            run.dialect,
            lambda: run_folder.read_records(run.folder, number),
            streams=run.info.streams,
        )
    return summary


# --- numbers --------------------------------------------------------------------------------------


def _measure(cell: _Cell, events: EventReader) -> CellNumbers:
    """Compute the cell's numbers. The records are read once, for these and, into `events`, for the
    verdict."""
    run, imported = cell.run, cell.imported

    def read() -> Iterator[pa.RecordBatch]:
        columns = COLUMNS if run.simulated else (*COLUMNS, *CHANNELS, "read")
        for batch in run_folder.read_records(run.folder, cell.number, columns):
            events.add(batch)
            yield batch

    numbers = measure_cell(
        read,
        cell.load,
        request_bounds([bound for bound in cell.bounds if ":" not in bound.name]),
        streams=run.info.streams,
        sent_s=cell.times("sent_s"),
        answers=not run.simulated or any(name.startswith("answer") for name, _ in cell.bounds),
        span_s=(
            imported.stated.duration_s if imported is not None and imported.relative_times else None
        ),
    )
    _add_shared(numbers.metrics, cell)
    return numbers


def _add_shared(metrics: Metrics, cell: _Cell) -> None:
    """Add what the plan shares between prompts."""
    plan, tokens = cell.run.plan, metrics.input_tokens
    rows = plan.span(cell.number)
    shared = promised_tokens(plan, cell.number)
    measured = (plan.phase[rows] == 1) & (shared >= 0)
    ids, target = cell.scalars["request_id"], cell.run.info.target
    shares = cacheable_shares(plan, cell.number, ids, target)
    if shares:
        metrics.shared_input_tokens = None if tokens is None else round(shares[-1] * tokens)
    elif shared[measured].any():
        metrics.shared_input_tokens = int(shared[measured].sum())
    blocks = plan.blocks
    if blocks is not None and blocks.tokens and measured.any():
        prompts = plan.input_tokens[rows][measured].astype(np.int64)
        counts = [-(-lengths // blocks.tokens) for lengths in (shared[measured], prompts)]
        metrics.shared_block_share = float(counts[0].sum() / counts[1].sum())


def _put_together(cell: _Cell, numbers: CellNumbers) -> CellSummary:
    """Put together what the records tell of a cell, without findings yet."""
    run, part = cell.run, cell.run.info.cells[cell.number]
    parts = breakdown_of(run.folder, run.info, run.plan, cell.number, cell.load, run.info.streams)
    classes = classes_of(
        run_folder.read_records(run.folder, cell.number, CLASS_COLUMNS),
        run.plan,
        cell.number,
        cell.load,
        numbers.duration_s,
        run.info.streams,
    )
    return CellSummary(
        load=cell.load,
        requests=numbers.requests,
        duration_s=numbers.duration_s,
        metrics=numbers.metrics,
        by_class=classes,
        by_size=sizes_of(
            run_folder.read_records(run.folder, cell.number, SIZE_COLUMNS),
            run.plan,
            numbers.duration_s,
            run.info.streams,
        ),
        **parts,
        client=Client(
            send_lag_p99_s=_p99(numbers.samples["send_lag_s"]),
            receive_lag_p99_s=_p99(numbers.samples["receive_lag_s"]),
            clock=run.info.clock or "user",
            cpu_s=part.client_cpu_s,
        ),
        verdict=Verdict(trusted=False, findings=[]),
        slo_per_request_s={name: limit_s for name, limit_s in cell.bounds if name in SLO_KEYS},
        stopped=part.stopped,
    )


def _add_class_goodput(summary: CellSummary) -> None:
    """Sum up the requests that meet the bounds of their class, over the classes that have any."""
    bounded = [part for part in summary.by_class if part.attainment is not None]
    if bounded and summary.metrics.attainment is None:
        sent = sum(part.requests.sent or 0 for part in bounded)
        met = sum((part.attainment or 0.0) * (part.requests.sent or 0) for part in bounded)
        summary.metrics.attainment = met / sent if sent else None
        summary.metrics.goodput_per_s = sum(part.goodput_per_s or 0.0 for part in bounded)


def _p99(lags: Distribution | None) -> float | None:
    return lags.p99 if lags is not None else None


def _add_server(summary: CellSummary, cell: _Cell) -> None:
    """Add what servers and GPUs reported while the cell ran, and the energy of a token."""
    run, part = cell.run, cell.run.info.cells[cell.number]
    if run.samples is None or run.readings is None or part.start_s is None or part.end_s is None:
        return
    has_pools = bool(run.info.settings.deployed.pools)
    answered = cell.scalars["status"].to_pylist().count("ok") if has_pools else None
    summary.server = server_figures(run.samples, part.start_s, part.end_s, answered)
    summary.gpu = gpu_figures(run.readings, part.start_s, part.end_s)
    if summary.gpu is not None:
        end_s = float(np.nanmax(cell.times("end_s"), initial=0.0))
        _add_energy(summary, run.readings, end_s)
        power_w = _read_pool_power(summary, Readings.of_pools(run.samples), end_s)
        summary.gpu = replace(summary.gpu, power_w_by_pool=power_w)


def _add_energy(summary: CellSummary, readings: Readings, end_s: float) -> None:
    """Add `j_per_output_token` and `j_per_total_token` to each throughput: what all GPUs that were
    watched drew in its window, over the tokens that came in it; nothing where that is not known.
    `end_s`: of the last measured request.
    """

    def joules(window: Window, begin_s: float, until_s: float) -> Iterator[tuple[str, float]]:
        energy_j = readings.sum_energy_j(begin_s, until_s)
        for kind in ("output", "total"):
            tokens_per_s = getattr(window, f"{kind}_tokens_per_s")
            if energy_j is not None and tokens_per_s:
                yield f"j_per_{kind}_token", energy_j / (tokens_per_s * (until_s - begin_s))

    metrics, steady = summary.metrics, summary.metrics.steady
    if summary.duration_s:
        for name, value in joules(metrics, end_s - summary.duration_s, end_s):
            setattr(metrics, name, value)
    if steady is not None:
        per_token = dict(joules(steady, steady.start_s, steady.end_s))
        metrics.steady = replace(steady, **per_token)


def _read_pool_power(
    summary: CellSummary, readings: Mapping[str, Readings], end_s: float
) -> dict[str, float]:
    """Compute the mean power of each pool in the window of the throughputs, of those read often
    enough in it."""
    steady, start_s = summary.metrics.steady, end_s - (summary.duration_s or 0)
    if steady is not None:
        start_s, end_s = steady.start_s, steady.end_s
    energies = {role: pool.sum_energy_j(start_s, end_s) for role, pool in readings.items()}
    return {
        role: joules / (end_s - start_s) for role, joules in energies.items() if joules is not None
    }


def _add_drafts(summary: CellSummary, cell: _Cell) -> None:
    """Add what drafts came to, by the servers' counters from the first send of a measured request
    on."""
    run, server = cell.run, summary.server
    if server is not None and server.draft_tokens and run.samples is not None:
        start_s = float(np.nanmin(cell.times("sent_s")))
        end_s = float(np.nanmax(cell.times("end_s")))
        server = server_figures(run.samples, start_s, end_s)
    records = run_folder.read_columns(run.folder, drafts.COLUMNS, cell.number)
    summary.drafts = drafts.drafts_of(server, records, run.info)


def _measure_pool(pool: PoolFigures, cell: CellSummary, pooled: PooledCell | None) -> PoolFigures:
    """Compute what a pool gave: one that prefills the input's tokens, one that decodes the
    output's."""
    window = cell.lasting()
    output, total = window.output_tokens_per_s, window.total_tokens_per_s
    rates = {"decode": output, "both": total}
    if output is not None and total is not None:
        rates["prefill"] = total - output
    rate = rates.get(pool.role)
    watts = cell.gpu.power_w_by_pool.get(pool.role) if cell.gpu is not None else None
    return replace(
        pool,
        tokens_per_s=rate,
        tokens_per_s_per_gpu=None if rate is None else rate / pool.gpus,
        j_per_token=watts / rate if rate and watts is not None else None,
        busy_share=getattr(pooled, f"{pool.role}_busy", None),
    )


def _factors(
    factors: Sequence[Mapping[str, Sequence[float]]], cell: int
) -> Mapping[str, Sequence[float]]:
    return factors[cell] if cell < len(factors) else {}


def _add_slo(summary: CellSummary, cell: _Cell) -> None:
    """Add whether bounds were met, or how likely a prediction meets them."""
    simulated = cell.run.simulated
    errors = _factors(cell.run.info.settings.slo_factors, cell.number)
    unknown = None if simulated else (1.0,)

    def factors(name: str) -> Sequence[float] | None:
        return errors.get(name, unknown)

    bounded = BoundedCell(
        cell.load,
        summary.requests,
        summary.metrics,
        factors,
        summary.sessions.task_s if summary.sessions is not None else None,
        {part.name: part for part in summary.by_class},
    )
    summary.slo = bounded.judge(cell.bounds)
    summary.p_slo = bounded.probability(summary.slo)
    for place, part in enumerate(summary.by_class):
        bounds = [bound for bound in summary.slo if split_bound(bound.metric)[0] == part.name]
        if bounds:
            summary.by_class[place] = replace(
                part,
                slo_met=all(bound.met for bound in bounds),
                p_slo=bounded.probability(bounds),
            )


def _add_intervals(summary: CellSummary, factors: Mapping[str, Sequence[float]]) -> None:
    """Add the intervals of a prediction: `low` and `high` of each p50, and those of throughputs.
    `factors`: by metric, those by which its prediction may be off.
    """
    metrics = summary.metrics
    for name, ends in factors.items():
        low, high = min(ends), max(ends)
        value = getattr(metrics, name, None)
        if isinstance(value, Latency):
            setattr(metrics, name, _widen(value, low, high))
            summary.by_class = [
                replace(part, **{name: _widen(getattr(part, name), low, high)})
                if hasattr(part, name)
                else part
                for part in summary.by_class
            ]
        elif isinstance(value, int | float):
            window = summary.lasting()
            value = getattr(window, name)
            # The draws are of one plan: another has other lengths and, where their rate is not
            # known, other arrivals.
            drawn = [
                abs(math.log(end / value)) * Z80 / Z95 if end and value else 0.0
                for end in window.ci95.get(name, [None, None])
            ]
            lower, upper = map(math.hypot, drawn, (math.log(low), math.log(high)))
            metrics.interval[name] = RateInterval(
                value=value,
                low=value * math.exp(-lower),
                high=value * math.exp(upper),
                model_low=value * low,
                model_high=value * high,
            )


def _widen(latency: Latency | None, low: float, high: float) -> Latency | None:
    if latency is None or latency.p50 is None:
        return latency
    return replace(latency, low=latency.p50 * low, high=latency.p50 * high)


# --- findings -------------------------------------------------------------------------------------


def _find(cell: _Cell, numbers: CellNumbers, events: EventReader, summary: CellSummary) -> Findings:
    """Find what there is to know of a cell by its records, its plan and its run."""
    info, plan = cell.run.info, cell.run.plan
    ended = info.cells[cell.number].end_s is not None
    judged = JudgedCell(
        numbers=numbers,
        requests=request_table(cell.scalars, events),
        plan=plan,
        number=cell.number,
        info=info.cells[cell.number],
        origin=imported_run.origin(info, cell.imported),
        clock=summary.client.clock,
        interrupted=None if ended else info.error or info.status,
        target=info.target,
        replicas=summary.by_replica,
        server=summary.server,
        gpus=summary.gpu,
        drafts=summary.drafts,
        has_pools=bool(info.settings.deployed.pools),
    )
    yield from cell_findings(judged)
    yield from kept_findings(info, plan, cell.number, cell.scalars.num_rows)
    yield from session_findings(plan, summary.sessions)
    yield from class_findings(summary.by_class, plan, info.cells[cell.number], cell.number)
    yield from scenario_findings(info, plan, cell.number, cell.scalars, summary)
    yield from prediction_findings(info)


def _quote_selftest(summary: CellSummary, info: RunInfo) -> None:
    """Quote the host's self-test, as run.json keeps it."""
    try:
        selftest = msgspec.convert(info.selftest, Selftest) if info.selftest is not None else None
    except msgspec.ValidationError:
        return  # another version's
    line, beyond = quote(summary, selftest)
    if line is not None:
        summary.client = replace(summary.client, selftest=line)
    if beyond is not None:
        summary.verdict.findings.append(beyond)
