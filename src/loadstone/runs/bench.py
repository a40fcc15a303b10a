"""A measured run: a session is opened with servers and a plan, the plan is sent by the workers, the
run concluded."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import ipaddress
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from loadstone.analyse.client_accuracy import load as load_selftest
from loadstone.analyse.stopping import Stopping
from loadstone.core.errors import InputError
from loadstone.core.gpu_metrics import split_pool
from loadstone.core.provenance import Provenance
from loadstone.core.record import RunInfo
from loadstone.core.secrets import blank, blank_bytes, keys_in, names_key
from loadstone.core.settings import RunSettings
from loadstone.core.signals import Signals
from loadstone.core.summary import Summary
from loadstone.engines.table import find_profiler
from loadstone.measure.client.pool import WorkerPool
from loadstone.measure.engines import attach
from loadstone.measure.engines.observe import Observer, exporter, worker_page
from loadstone.measure.engines.server import Server
from loadstone.measure.nvml import Gpus
from loadstone.measure.wire.request import make_body
from loadstone.runs import deployments, execution, preflight, provenance, worker_jobs
from loadstone.runs.cells import CellLoop, Event, Listener
from loadstone.runs.grading import AnswerGrader
from loadstone.runs.launched import why_ended
from loadstone.runs.live_metrics import serving
from loadstone.runs.preflight import Prepared
from loadstone.runs.profiler import Profiler
from loadstone.workload.options import ClientOptions, Options
from loadstone.workload.pictures import describe_making

_EVENT_BYTES = 20


def bench(
    options: Options,
    on_event: Listener = lambda event: None,
    made_with: Provenance | None = None,
    stopping: Stopping | None = None,
    *,
    sweeps: bool = False,
) -> Summary:
    """Measure a live engine; returns the summary, whose `run_dir` holds the run.

    `made_with`: what is known of how the server at a URL was started. `stopping`: in place of what
    the options say ends a cell. `sweeps`: leave out the loads after one at which throughput has
    stopped growing.

    Raises InputError (TargetError, DiskFullError) with one line where it cannot be done, and
    Interrupted, after saving, when a signal ended it. Requests that fail during the run are
    records, not exceptions.
    """
    with open_session(options, on_event, made_with, stopping) as session:
        session.sweeps = sweeps
        return execution.execute(session.run, session.measure)


@contextlib.contextmanager
def open_session(
    options: Options, on_event: Listener, made_with: Provenance | None, stopping: Stopping | None
) -> Iterator[Session]:
    """Prepare a run and make its folder; an engine that is started for it ends with the block.
    Raises InputError."""
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(Signals())
        also = stack.enter_context(serving(options.client.metrics_port))

        def hear(event: Event) -> None:
            on_event(event)
            also(event)

        ready = preflight.prepare(
            options, stopping, stack, lambda text: on_event(Event(kind="note", text=text))
        )
        gpus = _watched_gpus(ready, stack)
        info = _describe(ready, gpus, made_with or Provenance())
        # Journals, then records too.
        run = execution.open_run(options.output.out, info, ready.plan, signals, 2 * _EVENT_BYTES)
        yield Session(run, ready, gpus, hear)


@dataclasses.dataclass
class Session:
    """A run whose servers are there and whose folder is open."""

    run: execution.OpenRun
    ready: Prepared
    gpus: Gpus | None
    on_event: Listener
    sweeps: bool = False

    def measure(self) -> str | None:
        """Measure all cells; returns why the run failed, where it did."""
        folder, servers = self.run.folder, self.ready.servers
        self._announce()
        try:
            failure = self._measure_cells()
        finally:
            if servers.log is not None:
                with contextlib.suppress(OSError):
                    shutil.copyfile(servers.log, folder / "engine.log")
        return why_ended(servers.engine, folder / "engine.log") or failure

    def _announce(self) -> None:
        target = self.ready.options.target
        self.on_event(
            Event(kind="attached", info=self.run.info, plan=self.run.plan, folder=self.run.folder)
        )
        declared = (
            f"--launch {target.launch}" if target.launch else f"--deployment {target.deployment}"
        )
        doubts = self.run.info.settings.deployed.doubts
        for text in self.ready.server.notes:
            self._note(text)
        for doubt in doubts:
            self._note(f"{declared}: please check: {doubt}; reports rely on it")

    def _note(self, text: str) -> None:
        self.on_event(Event(kind="note", text=text))

    def _measure_cells(self) -> str | None:
        """Measure by workers, and sample the servers' metrics; returns why a worker failed, where
        one did."""
        folder, info, options, server = (
            self.run.folder,
            self.run.info,
            self.ready.options,
            self.ready.server,
        )
        flush = self._flush()
        jobs = worker_jobs.jobs(options, self.run, server)
        observer = Observer(
            folder,
            info.settings.worker_metrics
            or [
                f"{url}/metrics" if server.target.metrics_names else None
                for url in server.target.urls
            ],
            jobs[0].origin_ns,
            headers=server.headers,
            proxy=options.client.proxy,
            gpus=self.gpus,
            exporters=info.settings.gpu_metrics,
        )
        with observer:
            grader = AnswerGrader(folder, self.run.plan, keep=options.grading.keep_answers)
            pool = WorkerPool(jobs, folder / "log.txt", grader.take)

            def before_cell() -> None:
                grader.save()
                flush()

            profiler = None
            if options.client.profile_s is not None:
                urls = server.target.urls
                profiler = Profiler(self.run, jobs, urls, server.headers, options.client)
            CellLoop(
                run=self.run,
                pool=pool,
                profiler=profiler,
                profiler_switch=find_profiler(msgspec.json.encode(info).decode()),
                on_event=self.on_event,
                stopping=self.ready.stopping,
                before_cell=before_cell,
                sweeps=self.sweeps,
                sample=observer.look,
                engine_ended=lambda: why_ended(self.ready.servers.engine, folder / "engine.log"),
            ).measure()
            grader.save()
        failure = "; ".join(pool.failures) if pool.failures and not self.run.signals.count else None
        profiling = [] if profiler is None else profiler.notes
        for note in [*([failure] if failure else []), *observer.notes, *profiling]:
            self._note(note)
        return failure

    def _flush(self) -> Callable[[], None]:
        """Return what empties the servers' prefix caches before a cell; run.json tells what came of
        it."""
        client, server, settings = (
            self.ready.options.client,
            self.ready.server,
            self.run.info.settings,
        )
        wanted = client.flush_cache if client.flush_cache is not None else client.salt != "auto"
        settings.prefix_cache = "prompts are new" if client.salt == "auto" else "left as it was"

        def flush_all() -> None:
            done = []
            for url in server.target.urls:
                with Server(url, server.headers, client.proxy) as connection:
                    done.append(attach.flush(connection))
            settings.prefix_cache = (
                f"emptied before each load, POST {done[0]}"
                if None not in done
                else "not emptied: the server offers no way"
            )

        return flush_all if wanted else lambda: None


# --- what run.json says before the run ------------------------------------------------------------


def _describe(ready: Prepared, gpus: Gpus | None, made_with: Provenance) -> RunInfo:
    target = ready.server.target
    settings = _settings(ready)
    if gpus is not None:
        settings.gpus = [gpu._asdict() | {"driver": gpus.driver} for gpu in gpus.describe()]
    if ready.servers.engine is not None:
        engine = ready.servers.engine
        made_with = provenance.of_launch(engine.launch, start_up_s=engine.start_up_s)
    settings.provenance = msgspec.structs.replace(
        made_with,
        driver=settings.gpus[0]["driver"] if settings.gpus else None,
        gpus=tuple(gpu["name"] for gpu in settings.gpus),
        git=provenance.git_state(),
    )
    info = execution.describe(
        ready.options,
        ready.plan,
        target,
        settings,
        source="measured",
        name=(target.engine, target.model.rsplit("/", 1)[-1]),
        salt=ready.salt,
    )
    info.selftest = msgspec.to_builtins(load_selftest())
    info.command = [blank(word, ready.server.keys) for word in info.command]
    return info


def _settings(ready: Prepared) -> RunSettings:
    """Return the settings that only a measured run has."""
    client, sampling = ready.options.client, ready.options.sampling.sampling
    for named in client.gpu_metrics:
        role, _ = split_pool(named)
        if role and not (ready.declared and ready.declared.is_split):
            raise InputError(
                f"--gpu-metrics {role}=: no pools are declared; name them with --deployment"
            )
    return RunSettings(
        deployment=deployments.describe(ready.options.target, ready.declared, ready.server.target),
        sampling=msgspec.to_builtins(sampling),
        check=_check_settings(ready),
        structured=ready.options.workload.structured,
        pictures=describe_making(ready.plan, ready.salt),
        route=worker_jobs.route_of(client, ready.plan),
        history=client.history if client.history != "sent" else None,
        extra_body_fields=sorted(client.extra_body),
        headers=sorted(name for name, _ in client.headers),
        sent=digest_sent(client),
        timeouts=msgspec.to_builtins(client.timeouts),
        expected_e2e_s=ready.expected_s,
        gpu_metrics=[exporter(url, client.proxy) for url in client.gpu_metrics],
        worker_metrics=[
            worker_page(url, ready.server.headers, client.proxy) for url in client.worker_metrics
        ],
    )


def digest_sent(client: ClientOptions) -> dict[str, str]:
    """Digest the values of the user's own fields and headers, without keys; so short a digest tells
    values apart, and gives none away."""
    keys, digests = keys_in((), client.extra_body), {}
    for name, value in (*client.extra_body.items(), *client.headers):
        if not names_key(name):
            content = blank_bytes(msgspec.json.encode(value, order="deterministic"), keys)
            digests[name] = hashlib.sha256(content).hexdigest()[:8]
    return digests


def _check_settings(ready: Prepared) -> dict[str, Any] | None:
    """Return how answers are graded; None where none are."""
    if "check" not in ready.plan.workload:
        return None
    temperature = make_body(worker_jobs.graded_request(ready.server.request)).get("temperature")
    return {"temperature": temperature, "least": ready.options.grading.check_min}


def _watched_gpus(ready: Prepared, stack: contextlib.ExitStack) -> Gpus | None:
    """Open this machine's GPUs, where they are to be watched."""
    target, client = ready.options.target, ready.options.client
    shared = bool(target.urls or target.engine or target.launch) and any(
        _is_here(parts.hostname) for parts, _ in ready.server.addresses
    )
    if client.gpu_telemetry is False or (
        client.gpu_telemetry is None and (client.gpu_metrics or not shared)
    ):
        return None
    try:
        return stack.enter_context(Gpus())
    except InputError:
        if client.gpu_telemetry:
            raise
        return None


def _is_here(name: str | None) -> bool:
    try:
        return name == "localhost" or ipaddress.ip_address(name or "").is_loopback
    except ValueError:
        return False
