"""The main job: plan, attach, run, save, summarise. `bench()` is what the command line calls, and a notebook may."""

from __future__ import annotations

import contextlib
import ipaddress
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal
from urllib.parse import SplitResult

import msgspec

from loadstone.runs import worker_jobs, meet_server
from loadstone.analyse.client_accuracy import load as load_selftest
from loadstone.measure.client.pool import Pool, StepResult
from loadstone.measure.client.protocol import Progress
from loadstone.core import CellInfo, Plan, RunInfo, Target, run_folder
from loadstone.core.errors import DiskFullError, InputError
from loadstone.core.nvml import Gpus
from loadstone.core.signals import Interrupted, Signals
from loadstone.analyse.other_tools import DIALECTS
from loadstone.measure.engines import attach
from loadstone.measure.engines.observe import Observer, exporter
from loadstone.runs.run_info import run_info
from loadstone.analyse.summary import conclude, parse_slo
from loadstone.measure.wire import ask
from loadstone.workload.options import Options
from loadstone.workload.planning import by_default, plan_of

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


def bench(options: Options, on_event: Callable[[Event], None] = lambda event: None) -> dict[str, Any]:
    """Measure a live engine; returns the summary (the `--json` document), whose `run_dir` holds the run.

    Raises InputError (TargetError, DiskFullError) with one line where it cannot be done, and Interrupted, after
    saving, when a signal ended it. Requests that fail during the run are records, not exceptions.
    """
    plan = plan_of(options)
    slo = parse_slo(options.slo) if options.slo is not None else {}
    if options.dialect is not None and options.dialect not in DIALECTS:
        raise InputError(f"--dialect {options.dialect}: unknown; choose one of {', '.join(DIALECTS)}")
    meet_server.check_asked(options)
    deployed = meet_server.stated_deployment(options)
    headers = meet_server.headers_of(options.headers)
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(Signals())
        urls, engine_log = meet_server.target_urls(options, plan, stack)
        target, vocabulary, asking, servers, keys = meet_server.meet(options, plan, urls, headers)
        path = "" if asking.endpoint == "triton-grpc" else ask.path(asking)
        if options.trace is not None:
            plan = plan_of(options, target.max_model_tokens, target.overhead_tokens + 1)
        elif options.dataset is not None and options.turns is None and target.max_model_tokens is not None:
            with meet_server.counting(options, target, headers) as beyond:
                plan = plan_of(options, target.max_model_tokens, beyond=beyond)
        salt = meet_server.salt_of(options)
        meet_server.check(plan, target, vocabulary, salt)
        expected_s: list[float] = []
        if by_default(options) and options.dataset is None:
            expected_s = meet_server.expected_s(options, plan, target, vocabulary, asking, headers)
            plan = plan_of(options, e2e_s=expected_s)
        info = run_info(options, plan, target, slo, salt, load_selftest())
        if expected_s:
            info.settings["expected_e2e_s"] = expected_s
        if deployed is not None and options.deployment is not None:
            info.settings["deployment"] = meet_server.deployment_papers(options.deployment, deployed, target)
            if doubted := meet_server.doubts(deployed, target):
                info.settings["deployment"]["doubts"] = doubted
        if options.gpu_metrics:
            info.settings["gpu_metrics"] = [exporter(url, options.proxy) for url in options.gpu_metrics]
        gpus = _gpus(options, servers, info, stack)
        folder = run_folder.create(options.out, info.run_id)
        info.run_id = folder.name
        _check_room(folder, plan)
        stack.enter_context(run_folder.own(folder))
        run_folder.write_info(folder, info)
        try:
            run_folder.write_plan(folder / "plan.parquet", plan)
            on_event(Event(kind="attached", info=info, plan=plan, folder=folder))
            for doubt in info.settings.get("deployment", {}).get("doubts", ()):
                text = f"--deployment {options.deployment}: please check: {doubt}; reports rely on it"
                on_event(Event(kind="note", text=text))
            flush = _flush(options, headers, target, info)
            told = worker_jobs.jobs(options, plan, info, vocabulary, asking, folder, [
                worker_jobs.destination(options, parts, base_path, path, headers, keys) for parts, base_path in servers
            ])  # fmt: skip
            pages = [f"{url}/metrics" if target.metrics_names else None for url in target.urls]
            with Observer(
                folder,
                pages,
                told[0].origin_ns,
                headers=headers,
                proxy=options.proxy,
                gpus=gpus,
                exporters=info.settings.get("gpu_metrics", ()),
            ) as observer:
                _run(Pool(told, folder / "log.txt"), plan, info, folder, on_event, signals, flush, observer.look)
            for note in observer.notes:
                on_event(Event(kind="note", text=note))
        except (KeyboardInterrupt, Exception) as error:
            run_folder.write_failure(folder, info, error, "measured")
            raise
        finally:
            if engine_log is not None:
                with contextlib.suppress(OSError):
                    shutil.copyfile(engine_log, folder / "engine.log")
        document = finish(folder, info)
    if signals.count:
        raise Interrupted(folder, document)
    return document


def recover(folder: Path) -> dict[str, Any]:
    """Finish a run folder that a crash left: records of what the journals hold, and the summary. Idempotent.

    Raises InputError, one line, where it cannot be done, as while the run still goes on.
    """
    run_folder.read_info(folder)  # where there is none, the run has no owner yet, or it is no run
    with run_folder.own(folder):
        info = run_folder.read_info(folder)
        if info.status == "running":
            info.status = "interrupted"
            info.error = info.error or "the run was cut off"
        return finish(folder, info)


def finish(folder: Path, info: RunInfo) -> dict[str, Any]:
    """Journals to records, records to summary, by the folder's owner."""
    run_folder.assemble(folder)
    info.journals_damaged = run_folder.damaged_journals(folder) or info.journals_damaged
    return conclude(folder, info, run_folder.read_plan(folder))


# --- running --------------------------------------------------------------------------------------------------


def _run(
    pool: Pool,
    plan: Plan,
    info: RunInfo,
    folder: Path,
    on_event: Callable[[Event], None],
    signals: Signals,
    before_cell: Callable[[], None],
    look: Callable[[], None],
) -> None:
    """All cells, one after another; `info` is kept up to date on disk."""
    origin_ns = info.origin_ns = pool.origin_ns
    stopped = False
    with pool:
        info.clock = "kernel" if pool.kernel_clock else "user"
        run_folder.write_info(folder, info)  # for `recover`, should this be all that is ever written
        signals.on_first = lambda: pool.stop("interrupted")
        for cell, load in enumerate(plan.cells):
            if signals.count or pool.failures:
                break
            before_cell()
            look()
            on_event(Event(kind="cell", cell=cell, info=info, plan=plan))
            for first, last in plan.steps(cell):
                for said in pool.run_step(cell, load, first, last):
                    if isinstance(said, StepResult):
                        measured = said
                    else:
                        on_event(Event(kind="progress", cell=cell, progress=said, info=info, plan=plan))
                    if signals.count > 1:
                        break
                    if pool.failures and not stopped:
                        # What goes on without a worker is not the load that was planned.
                        pool.stop(pool.failures[0])
                        stopped = True
                if signals.count or pool.failures:
                    break
            else:
                info.cells[cell] = CellInfo(
                    load=load,
                    start_s=(measured.start_ns - origin_ns) * 1e-9,
                    issue_end_s=(measured.issue_end_ns - origin_ns) * 1e-9,
                    end_s=(measured.end_ns - origin_ns) * 1e-9,
                    client_cpu_s=measured.cpu_s,
                    requests_resent=measured.resent,
                    models=dict(measured.models),
                    prompts_compared=len(measured.texts),
                    texts_compared=len(set(measured.texts.values())),
                )
                look()
                on_event(Event(kind="cell_end", cell=cell, info=info, plan=plan))
                run_folder.write_info(folder, info)
        # Closing the pool lets workers write their last rows: not to be cut short by impatience.
        signals.on_first = lambda: None
    if signals.count:
        info.status, info.error = "interrupted", "interrupted by a signal"
    elif pool.failures:
        info.status, info.error = "failed", "; ".join(pool.failures)
        on_event(Event(kind="note", text=info.error))
    else:
        info.status = "done"


def _flush(options: Options, headers: list[tuple[str, str]], target: Target, info: RunInfo) -> Callable[[], None]:
    """What empties the servers' prefix caches before a cell; `info` tells what came of it."""
    wanted = options.flush_cache if options.flush_cache is not None else options.salt != "auto"
    info.settings["prefix_cache"] = "prompts are new" if options.salt == "auto" else "left as it was"

    def flush_all() -> None:
        done = []
        for url in target.urls:
            with attach.Server(url, headers, options.proxy) as server:
                done.append(attach.flush(server))
        info.settings["prefix_cache"] = (
            f"emptied before each cell, POST {done[0]}"
            if None not in done
            else "not emptied: the server offers no way"
        )

    return flush_all if wanted and target.endpoint != "triton-grpc" else lambda: None


def _gpus(
    options: Options, servers: list[tuple[SplitResult, str]], info: RunInfo, stack: contextlib.ExitStack
) -> Gpus | None:
    """This machine's GPUs, where they are to be watched; `info` tells which they are."""
    shared = bool(options.urls or options.engine) and any(_is_here(parts.hostname) for parts, _ in servers)
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


def _check_room(folder: Path, plan: Plan) -> None:
    """Refuse to start what the disk cannot hold: journals, then records beside them."""
    events = float(plan.output_tokens.clip(min=0).sum())
    needed = 2 * (_EVENT_BYTES * events + 200 * len(plan)) + 2 * run_folder.RESERVE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        folder.rmdir()
        raise DiskFullError(
            f"{folder.parent}: {free / 1e6:.0f} MB free, and the run may need {needed / 1e6:.0f} MB; "
            "free some space, or give another folder with --out"
        )
