"""A measured run: the server is met, the plan made, sent by the workers, saved and summarised."""

from __future__ import annotations

import contextlib
import ipaddress
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from loadstone.analyse.client_accuracy import load as load_selftest
from loadstone.analyse.stopping import Stopping, Watch, parse_rules
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.nvml import Gpus
from loadstone.core.plan import Plan
from loadstone.core.provenance import Provenance
from loadstone.core.record import CellInfo, RunInfo
from loadstone.core.signals import Signals
from loadstone.measure.client.pool import WorkerPool
from loadstone.measure.client.protocol import NOTHING_YET, Progress, StepDone
from loadstone.measure.engines import attach
from loadstone.measure.engines.launch import RunningEngine
from loadstone.measure.engines.observe import Observer, exporter
from loadstone.measure.engines.server import HttpServer
from loadstone.runs import execution, launched, preflight, provenance, worker_jobs
from loadstone.runs.preflight import Server
from loadstone.workload.options import Options
from loadstone.workload.planning import Planner

_EVENT_BYTES = 20


class Event(msgspec.Struct, kw_only=True):
    """Something worth showing while a run goes on."""

    kind: Literal["attached", "cell", "progress", "cell_end", "note"]
    text: str = ""
    cell: int | None = None
    progress: Progress | None = None
    info: RunInfo | None = None
    plan: Plan | None = None
    folder: Path | None = None


Listener = Callable[[Event], None]


def bench(
    options: Options,
    on_event: Listener = lambda event: None,
    made_with: Provenance | None = None,
    stopping: Stopping | None = None,
) -> dict[str, Any]:
    """Measure a live engine; returns the summary (the `--json` document), whose `run_dir` holds the run. `made_with`:
    what is known of how the server at a URL was started. `stopping`: in place of what the options say ends a cell.

    Raises InputError (TargetError, DiskFullError) with one line where it cannot be done, and Interrupted, after
    saving, when a signal ended it. Requests that fail during the run are records, not exceptions.
    """
    planner = Planner(options)
    draft = planner.plan()
    bounds = execution.bounds_of(options)
    preflight.check_options(options)
    launched.check_options(options)
    deployment = preflight.declared_deployment(options)
    stopping = stopping or _stopping(planner.options)
    headers = preflight.headers_of(options.headers)
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(Signals())
        started = preflight.target_of(options, draft, stack, lambda text: on_event(Event(kind="note", text=text)))
        server = preflight.probe(options, draft, started, headers)
        plan, expected_s = preflight.plan_for(planner, draft, server)
        del planner, draft  # a plan may take a gigabyte
        salt = preflight.salt_of(options)
        preflight.check_plan(plan, server, salt, options.workers)
        info = execution.describe(
            options,
            plan,
            server.target,
            bounds,
            source="measured",
            name=(server.target.engine, server.target.model.rsplit("/", 1)[-1]),
            salt=salt,
            settings=_settings(options, plan, expected_s),
        )
        info.selftest = msgspec.to_builtins(load_selftest())
        doubts = []
        stated = options.launch or options.deployment
        if deployment is not None and stated is not None:
            doubts = preflight.doubts(deployment, server.target)
            declared = preflight.deployment_record(stated, deployment, server.target)
            info.settings["deployment"] = declared | ({"doubts": doubts} if doubts else {})
        elif (simulated := preflight.simulated_record(server.target)) is not None:
            info.settings["deployment"] = simulated
        gpus = _gpus(options, server, info, stack)
        if started.engine is not None:
            made_with = provenance.of_launch(started.engine.launch)
        info.settings["provenance"] = _made_with(made_with or Provenance(), info)
        folder = run_folder.create(options.out, info.run_id)
        info.run_id = folder.name
        execution.check_room(folder, plan, 2 * _EVENT_BYTES)  # journals, then records beside them

        def run() -> str | None:
            on_event(Event(kind="attached", info=info, plan=plan, folder=folder))
            check = (
                f"--{'launch' if options.launch else 'deployment'} {stated}: please check: {{}}; reports rely on it"
            )
            for text in [*server.notes, *map(check.format, doubts)]:
                on_event(Event(kind="note", text=text))
            try:
                failure = _measure(
                    options, plan, info, folder, server, gpus, signals, on_event, stopping, started.engine
                )
            finally:
                if started.log is not None:
                    with contextlib.suppress(OSError):
                        shutil.copyfile(started.log, folder / "engine.log")
            return launched.why_ended(started.engine, folder / "engine.log") or failure

        return execution.execute(folder, info, plan, signals, run)


# --- running --------------------------------------------------------------------------------------------------


def _measure(
    options: Options,
    plan: Plan,
    info: RunInfo,
    folder: Path,
    server: Server,
    gpus: Gpus | None,
    signals: Signals,
    on_event: Listener,
    stopping: Stopping,
    engine: RunningEngine | None,
) -> str | None:
    """All cells, by workers, with the servers' metrics beside them; why it failed, where it did."""
    flush = _flush(options, server, info)
    jobs = worker_jobs.jobs(options, plan, info, server, folder)
    observer = Observer(
        folder,
        [f"{url}/metrics" if server.target.metrics_names else None for url in server.target.urls],
        jobs[0].origin_ns,
        headers=server.headers,
        proxy=options.proxy,
        gpus=gpus,
        exporters=info.settings.get("gpu_metrics", ()),
    )
    with observer:
        pool = WorkerPool(jobs, folder / "log.txt")
        measure_cells(
            pool,
            plan,
            info,
            folder,
            signals,
            on_event,
            before_cell=flush,
            look=observer.look,
            stopping=stopping,
            engine_ended=lambda: launched.why_ended(engine, folder / "engine.log"),
        )
    failure = "; ".join(pool.failures) if pool.failures and not signals.count else None
    for note in [*([failure] if failure else []), *observer.notes]:
        on_event(Event(kind="note", text=note))
    return failure


def measure_cells(
    pool: WorkerPool,
    plan: Plan,
    info: RunInfo,
    folder: Path,
    signals: Signals,
    on_event: Listener,
    *,
    before_cell: Callable[[], None] = lambda: None,
    look: Callable[[], None] = lambda: None,
    stopping: Stopping = Stopping(),  # noqa: B008 - immutable
    engine_ended: Callable[[], str | None] = lambda: None,
) -> None:
    """All cells, one after another, until a signal or a worker's failure; `info` is kept up to date on disk.

    `look` samples the servers' metrics at the beginning and end of each cell; `engine_ended` says why an engine that
    was started for the run is gone, if it is.
    """
    info.origin_ns = pool.origin_ns
    with pool:
        info.clock = "kernel" if pool.kernel_clock else "user"
        if pool.clocks:
            info.settings["worker_clocks"] = [
                {"worker": worker, "offset_s": ready.clock_offset_ns * 1e-9, "within_s": ready.clock_within_ns * 1e-9}
                for worker, ready in sorted(pool.clocks.items())
            ]
        run_folder.write_info(folder, info)  # for `recover`, should this be all that is ever written
        signals.on_first = lambda: pool.stop("interrupted")
        for cell in range(len(plan.cells)):
            if signals.count or pool.failures:
                break
            before_cell()
            look()
            on_event(Event(kind="cell", cell=cell, info=info, plan=plan))
            measured = _cell(pool, plan, cell, info, signals, on_event, stopping, engine_ended)
            if measured is not None:
                info.cells[cell] = measured
                look()
                on_event(Event(kind="cell_end", cell=cell, info=info, plan=plan))
                run_folder.write_info(folder, info)
        # Closing the pool lets workers write their last rows: not to be cut short by impatience.
        signals.on_first = lambda: None


def _cell(
    pool: WorkerPool,
    plan: Plan,
    cell: int,
    info: RunInfo,
    signals: Signals,
    on_event: Listener,
    stopping: Stopping,
    engine_ended: Callable[[], str | None],
) -> CellInfo | None:
    """The steps of one cell; times are those of the last, after the warm-up. None where it was cut short."""
    resent, stopped, stop = 0, False, None
    steps, watched = plan.steps(cell), stopping != Stopping()
    watch = Watch(stopping, plan.cells[cell].slots)
    for first, last in steps:
        begun_s, before = time.monotonic(), pool.progress if watched else NOTHING_YET
        for message in pool.run_step(cell, plan.cells[cell], first, last):
            if isinstance(message, StepDone):
                step = message
                resent += step.resent
            else:
                on_event(Event(kind="progress", cell=cell, progress=message, info=info, plan=plan))
                if watched and stop is None and (first, last) == steps[-1]:
                    so_far = message - before
                    took_s = time.monotonic() - begun_s
                    stop = watch.look(took_s, so_far.ended, so_far.failed, pool.watched)
                    if stop is not None:
                        pool.end_step()
                if not pool.failures and (why := engine_ended()) is not None:
                    pool.failures.append(why)
            if signals.count > 1:
                break
            if pool.failures and not stopped:
                # What goes on without a worker is not the load that was planned.
                pool.stop(pool.failures[0])
                stopped = True
        if signals.count or pool.failures:
            return None
    return CellInfo(
        load=plan.cells[cell],
        start_s=(step.start_ns - pool.origin_ns) * 1e-9,
        issue_end_s=(step.issue_end_ns - pool.origin_ns) * 1e-9,
        end_s=(step.end_ns - pool.origin_ns) * 1e-9,
        client_cpu_s=step.cpu_s,
        clocks_apart_s=step.clocks_apart_ns * 1e-9 or None,
        requests_resent=resent,
        models=dict(step.models),
        unlisted=dict(step.unlisted),
        hidden_tokens=step.hidden_tokens,
        prompts_compared=len(step.texts),
        texts_compared=len(set(step.texts.values())),
        stopped=stop or (watch.over(pool.watched) if watched else None),
    )


def _stopping(options: Options) -> Stopping:
    """What ends cells early. Raises InputError."""
    rules = parse_rules(options.stop_when) if options.stop_when is not None else ()
    if not options.stream and (rule := next((rule for rule in rules if rule.metric != "e2e"), None)):
        raise InputError(f"--stop-when {rule.text}: with --no-stream there is e2e alone; write e.g. e2e_p50±2%")
    return Stopping(rules, options.max_errors, options.min_duration_s or 0.0, options.max_duration_s or math.inf)


def _settings(options: Options, plan: Plan, expected_s: list[float]) -> dict[str, Any]:
    """RunInfo.settings that only a measured run has, before it begins."""
    settings: dict[str, Any] = {
        "sampling": msgspec.to_builtins(preflight.sampling_of(options)),
        "structured": options.structured,
        "route": worker_jobs.route(options, plan),
        "extra_body_fields": sorted(options.extra_body),
        "headers": sorted(name for name, _ in options.headers),
        "timeouts": msgspec.to_builtins(options.timeouts),
    }
    if expected_s:
        settings["expected_e2e_s"] = expected_s
    if options.gpu_metrics:
        settings["gpu_metrics"] = [exporter(url, options.proxy) for url in options.gpu_metrics]
    return settings


def _made_with(known: Provenance, info: RunInfo) -> dict[str, Any]:
    """RunInfo.settings["provenance"]: with the GPUs that are watched, and the folder's state."""
    gpus = info.settings.get("gpus", [])
    driver = gpus[0]["driver"] if gpus else None
    names = tuple(gpu["name"] for gpu in gpus)
    whole = msgspec.structs.replace(known, driver=driver, gpus=names, git=provenance.git_state())
    built: dict[str, Any] = msgspec.to_builtins(whole)
    return built


def _flush(options: Options, server: Server, info: RunInfo) -> Callable[[], None]:
    """What empties the servers' prefix caches before a cell; `info` tells what came of it."""
    wanted = options.flush_cache if options.flush_cache is not None else options.salt != "auto"
    info.settings["prefix_cache"] = "prompts are new" if options.salt == "auto" else "left as it was"

    def flush_all() -> None:
        done = []
        for url in server.target.urls:
            with HttpServer(url, server.headers, options.proxy) as each:
                done.append(attach.flush(each))
        info.settings["prefix_cache"] = (
            f"emptied before each cell, POST {done[0]}"
            if None not in done
            else "not emptied: the server offers no way"
        )

    return flush_all if wanted and server.target.endpoint != "triton-grpc" else lambda: None


def _gpus(options: Options, server: Server, info: RunInfo, stack: contextlib.ExitStack) -> Gpus | None:
    """This machine's GPUs, where they are to be watched; `info` tells which they are."""
    shared = bool(options.urls or options.engine or options.launch) and any(
        _is_here(parts.hostname) for parts, _ in server.addresses
    )
    if options.gpu_telemetry is False or (options.gpu_telemetry is None and (options.gpu_metrics or not shared)):
        return None
    try:
        gpus = stack.enter_context(Gpus())
    except InputError:
        if options.gpu_telemetry:
            raise
        return None
    info.settings["gpus"] = [each._asdict() | {"driver": gpus.driver} for each in gpus.describe()]
    return gpus


def _is_here(name: str | None) -> bool:
    try:
        return name == "localhost" or ipaddress.ip_address(name or "").is_loopback
    except ValueError:
        return False
