"""Offline throughput is measured by batches through an engine's own interface; each is a cell of an
ordinary run folder.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import time
from collections.abc import Callable

import msgspec
import numpy as np

from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.catalogue.engines import engine_title
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.plan import Plan, PlannedRequest
from loadstone.core.ranked_runs import RankedRuns
from loadstone.core.record import CellInfo, RequestRecord, Target
from loadstone.core.settings import RunSettings
from loadstone.core.signals import Signals
from loadstone.core.summary import SCHEMA, Summary
from loadstone.engines import keywords_named
from loadstone.engines.launch import site_of
from loadstone.engines.offline.keywords import Keywords
from loadstone.measure.engines.launch import LaunchError
from loadstone.measure.offline.engine import (
    LoadedEngine,
    OfflineAnswer,
    OfflineBatch,
    OfflineEngine,
    find_interpreter,
)
from loadstone.runs import execution
from loadstone.runs.deployments import deployment_record
from loadstone.runs.preflight import salt_of
from loadstone.runs.simulate import simulate
from loadstone.workload.load_options import LoadOptions, WorkloadOptions
from loadstone.workload.option_fields import changed_options
from loadstone.workload.options import OutputOptions, RunOptions, SimulateOptions, SimulatorOptions
from loadstone.workload.planning import plan_of
from loadstone.workload.prompts import PromptWriter, Vocabulary
from loadstone.workload.start_options import OfflineOptions

_EVENT_BYTES = 1
_WARMUP_TOKENS = 16
"""Answers of warm-up requests are cut to so many: they are there so that kernels are compiled and
memory is taken."""
_MAX_IDS = 1 << 16


class _Stopped(Exception):
    """A signal came while the engine worked."""


def offline(
    options: OfflineOptions, tell: Callable[[str], None] = lambda note: None
) -> Summary | RankedRuns:
    """Measure batches through the engine's own interface, or simulate them; returns the summary, of
    several output lengths theirs as `runs`. `tell` gets notes on how the engine is loaded.

    Raises InputError, one line, where it cannot be done, and Interrupted, after saving, when a
    signal ended it. An engine that ends during a later batch leaves a failed run with the cells
    before.
    """
    if options.simulate:
        runs = [simulate(simulation) for simulation in _simulations(options)]
    else:
        if options.profile is not None:
            raise InputError("--profile: of simulated batches; add --simulate, or leave it out")
        runs = _measure(options, tell)
    return runs[0] if len(runs) == 1 else RankedRuns(schema=SCHEMA, runs=runs)


def _options_of_runs(options: OfflineOptions) -> list[RunOptions]:
    """Return the options of each run, one for each length of outputs. Raises InputError."""
    lengths = options.output.split(",")
    if not all(length.strip() for length in lengths):
        raise InputError(
            f"--output: a length is missing in {options.output!r}; write e.g. 800,1600"
        )
    load = LoadOptions(rate=(math.inf,), requests=options.batch, warmup=options.warmup)
    output = OutputOptions(label=options.label, out=options.out, command=options.command)
    return [
        RunOptions(
            workload=WorkloadOptions(
                input=options.input,
                output=length,
                range_ratio=options.range_ratio,
                seed=options.seed,
            ),
            load=load,
            output=output,
        )
        for length in lengths
    ]


def _simulations(options: OfflineOptions) -> list[SimulateOptions]:
    if changed_options(options.start) or options.python:
        raise InputError(
            "--simulate starts no engine; leave --model, --argument, --env and --python out"
        )
    simulator = SimulatorOptions(
        deployment=options.deployment, profile=options.profile, offline=True
    )
    return [
        SimulateOptions(
            workload=run.workload, load=run.load, output=run.output, simulator=simulator
        )
        for run in _options_of_runs(options)
    ]


def _measure(options: OfflineOptions, tell: Callable[[str], None]) -> list[Summary]:
    """Load the engine once and run the batches, each length of outputs into a folder of its own."""
    runs = _options_of_runs(options)
    keywords = keywords_named(options.deployment, site_of(options.start))
    for note in keywords.notes:
        tell(note)
    plans = [_plan(run) for run in runs]
    interpreter = find_interpreter(keywords, options.python)
    with Signals() as signals:

        def look() -> None:
            if signals.count:
                raise _Stopped

        measured: list[Summary] = []
        with OfflineEngine(keywords, interpreter, dict(options.start.environment), look) as engine:
            loaded = engine.load()
            for run, plan in zip(runs, plans, strict=True):
                session = _open(options.deployment, run, plan, keywords, engine, loaded, signals)
                measured.append(execution.execute(session.run, session.measure))
                signals.on_first = None
                if measured[-1].status != "done":
                    break
    return measured


def _plan(options: RunOptions) -> Plan:
    plan = plan_of(options)
    plan.output_tokens = np.where(
        plan.phase == 0, plan.output_tokens.clip(max=_WARMUP_TOKENS), plan.output_tokens
    )
    plan.workload["mode"] = "offline"
    return plan


def _open(
    text: str,
    options: RunOptions,
    plan: Plan,
    keywords: Keywords,
    engine: OfflineEngine,
    loaded: LoadedEngine,
    signals: Signals,
) -> _Batches:
    """Make the folder of a run of the deployment `text`. Raises InputError."""
    deployment = parse_deployment(text)
    target = Target(
        url=text,
        urls=[text],
        endpoint="offline",
        streams=keywords.timed,
        model=deployment.model.name,
        engine=engine_title(keywords.engine),
        engine_version=loaded.version,
        prompt_kind="token ids",
    )
    settings = RunSettings(
        deployment=deployment_record(text, deployment, target),
        sampling={"temperature": 0.0},
        prefix_cache="prompts are new",
        engine_arguments=msgspec.json.decode(keywords.arguments),
        loaded=keywords.model,
    )
    name = (target.engine, "offline", target.model.rsplit("/", 1)[-1])
    salt = salt_of("auto")
    info = execution.describe(
        options, plan, target, settings, source="measured", name=name, salt=salt
    )
    tenth = loaded.vocabulary // 10  # special tokens are the first or the last of a vocabulary
    ids = tuple(range(tenth, min(loaded.vocabulary - tenth, tenth + _MAX_IDS)))
    if not ids:
        raise InputError(
            f"{keywords.model}: a vocabulary of {loaded.vocabulary} tokens makes no prompts"
        )
    writer = PromptWriter(Vocabulary("token ids", ids), seed=plan.seed, salt=salt, chat=False)
    return _Batches(
        execution.open_run(options.output.out, info, plan, signals, _EVENT_BYTES), engine, writer
    )


@dataclasses.dataclass
class _Batches:
    """A run of batches whose folder is open."""

    run: execution.OpenRun
    engine: OfflineEngine
    writer: PromptWriter

    def measure(self) -> str | None:
        """Run every batch, and its warm-up before it; returns why they ended early, where a later
        one did."""
        folder, info, _, signals = self.run
        origin_ns = info.origin_ns = time.monotonic_ns()
        run_folder.write_info(folder, info)
        signals.on_first = lambda: None  # the batch under way ends, and what there is is saved
        journal = run_folder.JournalWriter(folder, 0)
        try:
            return self._cells(origin_ns * 1e-9, journal)
        except _Stopped:
            return None
        finally:
            journal.close()
            shutil.copyfile(self.engine.log, folder / "engine.log")

    def _cells(self, origin_s: float, journal: run_folder.JournalWriter) -> str | None:
        import pyarrow as pa

        folder, info, plan, _ = self.run
        for cell, load in enumerate(plan.cells):
            for first, last in plan.steps(cell):
                requests = [
                    plan.request(cell, index)
                    for index in range(first, last or len(plan.rows(cell)))
                ]
                prompts = [self.writer.write(request) for request in requests]
                try:
                    batch = self.engine.generate(
                        prompts, [request.output_tokens for request in requests]
                    )
                except LaunchError as error:
                    if cell == 0:
                        raise
                    return str(error)
                rows = [
                    msgspec.structs.asdict(_record(request, answer, batch, origin_s))
                    for request, answer in zip(requests, batch.answers, strict=True)
                ]
                table = pa.Table.from_pylist(rows, schema=run_folder.records_schema())
                if not all(journal.write(batch) for batch in table.combine_chunks().to_batches()):
                    return "the disk is full"
            start_s, end_s = batch.start_s - origin_s, batch.end_s - origin_s
            info.cells[cell] = CellInfo(
                load=load, start_s=start_s, issue_end_s=start_s, end_s=end_s
            )
            run_folder.write_info(folder, info)
            run_folder.log(folder, f"{load.label}: {end_s - start_s:.3g} s")
        return None


def _record(
    request: PlannedRequest, answer: OfflineAnswer, batch: OfflineBatch, origin_s: float
) -> RequestRecord:
    """Make the record of one request of a batch: with its first and last token where the engine
    tells when these were, else with the end alone.
    """
    timed = answer.first_s is not None and answer.last_s is not None and answer.output_tokens > 1
    times = [answer.first_s, answer.last_s] if timed else [answer.last_s or batch.end_s]
    tokens = [1, answer.output_tokens] if timed else [answer.output_tokens]
    return RequestRecord(
        request_id=request.request_id,
        cell=request.cell,
        phase=request.phase,
        intended_s=batch.start_s - origin_s,
        sent_s=batch.start_s - origin_s,
        arrival_s=[(time_s or 0.0) - origin_s for time_s in times],
        read=list(range(len(times))),
        tokens=tokens,
        token_source="running usage",  # noqa: S106
        end_s=batch.end_s - origin_s,
        input_tokens=answer.input_tokens,
        output_tokens=answer.output_tokens,
        finish_reason="length",
        status="ok" if answer.output_tokens >= request.output_tokens else "short",
    )
