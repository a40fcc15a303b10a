"""The main job: plan, attach, run, save, summarise. `bench()` is what the command line calls, and a notebook may."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Literal
from urllib.parse import SplitResult

import msgspec

import loadstone
from loadstone import host, store
from loadstone.accuracy import load as load_selftest
from loadstone.client.pool import Pool, StepResult, workers_for
from loadstone.client.protocol import Destination, Job, Progress, Route
from loadstone.dialects import DIALECTS
from loadstone.engines import attach, cache
from loadstone.engines.observe import Observer
from loadstone.errors import DiskFullError, InputError, LoadstoneError, TargetError
from loadstone.options import Options, parse_structured, plan_of
from loadstone.records import CellInfo, Plan, RunInfo, Target
from loadstone.summary import parse_slo, summarise
from loadstone.wire import ask
from loadstone.wire.ask import Ask, Sampling
from loadstone.wire.triton_grpc import GrpcAsk
from loadstone.wire.triton_grpc import body as grpc_body
from loadstone.workload.prompts import PromptWriter, Vocabulary

DEFAULT_LAW = "ttft=30ms,itl=5ms"
_HELD_BYTES = 256 * 1024 * 1024
"""Raw bytes that all streams together may hold undecoded, about."""
_EVENT_BYTES = 20
_SECRET_FLAGS = ("--header", "-H", "--extra-body")
KEY_VARIABLES = ("LOADSTONE_API_KEY", "OPENAI_API_KEY")


class Event(msgspec.Struct, kw_only=True):
    """Something worth showing while a run goes on."""

    kind: Literal["attached", "cell", "progress", "cell_end", "note"]
    text: str = ""
    cell: int | None = None
    progress: Progress | None = None
    info: RunInfo | None = None
    plan: Plan | None = None
    folder: Path | None = None


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or a termination signal ended the run; what was measured is saved in `folder`."""

    def __init__(self, folder: Path, document: dict[str, Any]) -> None:
        super().__init__(str(folder))
        self.folder = folder
        self.document = document


def bench(options: Options, on_event: Callable[[Event], None] = lambda event: None) -> dict[str, Any]:
    """Measure a live engine; returns the summary (the `--json` document), whose `run_dir` holds the run.

    Raises InputError (TargetError, DiskFullError) with one line where it cannot be done, and Interrupted, after
    saving, when a signal ended it. Requests that fail during the run are records, not exceptions.
    """
    plan = plan_of(options)
    slo = parse_slo(options.slo) if options.slo else {}
    if options.dialect is not None and options.dialect not in DIALECTS:
        raise InputError(f"--dialect {options.dialect}: unknown; choose of {', '.join(DIALECTS)}")
    headers = _headers(options.headers)
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(_Signals())
        urls, engine_log = _target_urls(options, plan, stack)
        target, vocabulary, asking, servers = _meet(options, plan, urls, headers)
        path = "" if asking.endpoint == "triton-grpc" else ask.path(asking)
        if options.trace is not None:
            plan = plan_of(options, target.max_model_tokens, target.overhead_tokens + 1)
        salt = _salt(options)
        _check(plan, target, vocabulary, salt)
        info = _run_info(options, plan, target, slo, salt)
        folder = store.create(options.out, info.run_id)
        info.run_id = folder.name
        _check_room(folder, plan)
        store.write_info(folder, info)
        store.write_plan(folder / "plan.parquet", plan)
        on_event(Event(kind="attached", info=info, plan=plan, folder=folder))
        flush = _flush(options, headers, target, info)
        jobs = _jobs(options, plan, info, vocabulary, asking, folder, [
            _destination(options, parts, base_path, path, headers) for parts, base_path in servers
        ])  # fmt: skip
        try:
            pages = [f"{url}/metrics" if target.metrics_names else None for url in target.urls]
            observer = Observer(folder, pages, jobs[0].origin_ns, headers=headers, proxy=options.proxy)
            with observer:
                _run(Pool(jobs, folder / "log.txt"), plan, info, folder, on_event, signals, flush, observer.look)
            for note in observer.notes:
                on_event(Event(kind="note", text=note))
        except LoadstoneError as error:
            info.status, info.error = "failed", str(error)
            store.write_info(folder, info)
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
    """Finish a run folder that a crash left: records of what the journals hold, and the summary. Idempotent."""
    info = store.read_info(folder)
    if info.status == "running":
        info.status = "interrupted"
        info.error = info.error or "the run was cut off"
    return finish(folder, info)


def finish(folder: Path, info: RunInfo) -> dict[str, Any]:
    """Journals to records, records to summary."""
    store.assemble(folder)
    plan = store.read_plan(folder)
    if any(plan.cyclic(cell) for cell in range(len(plan.cells))):
        # What ran by time is written as what was issued, so that it can be replayed.
        plan = store.issued(folder, plan)
        store.write_plan(folder / "plan.parquet", plan)
        info.plan_id = plan.plan_id
    store.write_info(folder, info)
    document = summarise(folder)
    store.write_json(folder / "summary.json", document)
    return document


# --- running --------------------------------------------------------------------------------------------------


def _run(
    pool: Pool,
    plan: Plan,
    info: RunInfo,
    folder: Path,
    on_event: Callable[[Event], None],
    signals: _Signals,
    before_cell: Callable[[], None],
    look: Callable[[], None],
) -> None:
    """All cells, one after another; `info` is kept up to date on disk."""
    origin_ns = info.origin_ns = pool.origin_ns
    stopped = False
    with pool:
        info.clock = "kernel" if pool.kernel_clock else "user"
        signals.on_first = lambda: pool.stop("interrupted")
        for cell, load in enumerate(plan.cells):
            if signals.count or pool.failures:
                break
            before_cell()
            look()
            on_event(Event(kind="cell", cell=cell, info=info, plan=plan))
            for first, last in _steps(plan, cell):
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
                )
                look()
                on_event(Event(kind="cell_end", cell=cell, info=info, plan=plan))
                store.write_info(folder, info)
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
                done.append(cache.flush(server))
        info.settings["prefix_cache"] = (
            f"emptied before each cell, POST {done[0]}"
            if None not in done
            else "not emptied: the server offers no way"
        )

    return flush_all if wanted and target.endpoint != "triton-grpc" else lambda: None


def _steps(plan: Plan, cell: int) -> Iterator[tuple[int, int | None]]:
    """Index ranges to run one after another. A burst begins from rest, so its warm-up is a step of its own."""
    count = len(plan.rows(cell))
    warm = plan.warmup_count(cell)
    if plan.cells[cell].kind == "burst" and warm:
        yield 0, warm
        yield warm, count
    else:
        yield 0, None if plan.cyclic(cell) else count


class _Signals:
    """Counts SIGINT and SIGTERM while the run lasts, and calls `on_first` at the first: nothing is ever torn."""

    def __init__(self) -> None:
        self.count = 0
        self.on_first: Callable[[], None] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.on_first is None:
            raise KeyboardInterrupt  # nothing measured yet: nothing to save
        self.count += 1
        if self.count == 1:
            self.on_first()


# --- from options to a target ---------------------------------------------------------------------------------


def _target_urls(options: Options, plan: Plan, stack: contextlib.ExitStack) -> tuple[list[str], Path | None]:
    """The URLs to measure, starting an engine of our own where none is given; and its log."""
    if options.urls:
        if options.engine is not None or options.sim is not None:
            raise InputError("a URL and --engine or --sim: measure a running server, or one of our own; give one")
        twice = [url for i, url in enumerate(options.urls) if url in options.urls[:i]]
        if twice:
            raise InputError(f"{twice[0]}: given twice; name each server of a fleet once")
        return options.urls, None
    if options.engine is None:
        from loadstone import simserver

        law = simserver.Law.parse(options.sim or DEFAULT_LAW)
        return [stack.enter_context(simserver.start(law)).url], None
    from loadstone.engines import llama_cpp

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="loadstone-")))
    most = max((int(load.value) for load in plan.cells if load.kind != "rate"), default=8)
    engine = llama_cpp.launch(
        slots=min(64, max(1, most)),
        context_tokens=_longest_tokens(plan) + 64,
        log_path=folder / "engine.log",
        cache_prompt=True,
    )
    return [stack.enter_context(engine).url], folder / "engine.log"


def _longest_tokens(plan: Plan) -> int:
    """The most tokens that a request of the plan, or a whole session, has in and out; guessed where texts decide."""
    import numpy as np

    tokens = plan.input_tokens.clip(min=2048 if plan.prompts else 1).astype(np.int64) + plan.output_tokens
    if not plan.has_sessions:
        return int(tokens.max())
    session = np.cumsum(plan.turn <= 0)
    # Each turn also has what its template adds.
    return int(np.bincount(session, tokens + 16).max())


def _meet(
    options: Options, plan: Plan, urls: list[str], headers: list[tuple[str, str]]
) -> tuple[Target, Vocabulary, Ask, list[tuple[SplitResult, str]]]:
    """Get to know the first server; the others of a fleet must offer the same. With each one's URL in parts."""
    if options.endpoint == "triton-grpc":
        return _meet_grpc(options, plan, urls, headers)
    with attach.Server(urls[0], headers, options.proxy) as server:
        target, vocabulary, asking = attach.meet(
            server,
            model=options.model,
            endpoint=options.endpoint,
            tokenizer=options.tokenizer,
            sampling=_sampling(options),
            structured=parse_structured(options.structured) if options.structured is not None else None,
            extra=dict(options.extra_body),
            stream=options.stream,
            exact=plan.exact_output,
            text_only=plan.has_sessions,
        )
        target.urls = [target.url]
        target.streams = options.stream
        servers = [(server.parts, server.base_path)]
    for url in urls[1:]:
        with attach.Server(url, headers, options.proxy) as server:
            attach.check_same(server, target)
            target.urls.append(server.origin + server.base_path)
            servers.append((server.parts, server.base_path))
    return target, vocabulary, asking, servers


def _meet_grpc(
    options: Options, plan: Plan, urls: list[str], headers: list[tuple[str, str]]
) -> tuple[Target, Vocabulary, Ask, list[tuple[SplitResult, str]]]:
    """As `_meet`, where there is gRPC alone."""
    from loadstone.engines import triton_grpc

    with triton_grpc.GrpcServer(urls[0], headers, options.proxy) as server:
        target, vocabulary, asking = triton_grpc.meet(
            server,
            model=options.model,
            tokenizer=options.tokenizer,
            sampling=_sampling(options),
            structured=parse_structured(options.structured) if options.structured is not None else None,
            extra=dict(options.extra_body),
            stream=options.stream,
            exact=plan.exact_output,
        )
        target.urls = [target.url]
        servers = [(server.parts, "")]
    for url in urls[1:]:
        with triton_grpc.GrpcServer(url, headers, options.proxy) as server:
            triton_grpc.check_same(server, target)
            target.urls.append(server.origin)
            servers.append((server.parts, ""))
    return target, vocabulary, asking, servers


def _headers(given: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    headers = list(given)
    for name, value in headers:
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or not re.fullmatch(r"[\t -~]*", value):
            raise InputError("--header: no HTTP header, whose name and value are plain ASCII; write 'Name: value'")
    key = next((os.environ[name] for name in KEY_VARIABLES if os.environ.get(name)), None)
    if key is not None and not any(name.lower() == "authorization" for name, _ in headers):
        if not re.fullmatch("[!-~]+", key):
            raise InputError(f"{' or '.join(KEY_VARIABLES)}: the key holds a space or what is no ASCII character")
        headers.append(("Authorization", f"Bearer {key}"))
    return headers


def _sampling(options: Options) -> Sampling:
    return Sampling(
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.sampling_seed,
        stop=tuple(options.stop),
    )


def _salt(options: Options) -> str | None:
    if options.salt == "none":
        return None
    if not re.fullmatch("[0-9A-Za-z._-]{1,64}", options.salt):
        raise InputError("--salt: write auto, none, or up to 64 letters, digits, dots and dashes")
    return os.urandom(6).hex() if options.salt == "auto" else options.salt


def _check(plan: Plan, target: Target, vocabulary: Vocabulary, salt: str | None) -> None:
    """Refuse before the run what the server would refuse in it."""
    longest = _longest_tokens(plan)
    if not plan.prompts:
        firsts = (plan.turn <= 0).nonzero()[0]
        row = int(firsts[plan.input_tokens[firsts].argmin()])
        cell = int(plan.cell[row])
        writer = PromptWriter(vocabulary, seed=plan.seed, salt=salt, chat=target.endpoint == "chat")
        writer.write(plan.request(cell, row - plan.rows(cell).start))
    if target.max_model_tokens is not None and longest > target.max_model_tokens and not plan.prompts:
        row = int((plan.input_tokens + plan.output_tokens).argmax())
        what = f"--input {plan.input_tokens[row]} and --output {plan.output_tokens[row]}: together"
        if plan.has_sessions:
            what = f"--turns: a session grows to {longest} tokens,"
        raise InputError(
            f"{what} beyond the server's context of {target.max_model_tokens} tokens; "
            "ask for less, or start it with more"
        )
    most = max((load.value for load in plan.cells if load.kind != "rate"), default=0)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if limit != resource.RLIM_INFINITY and most / workers_for(plan.cells) + 64 > limit:
        raise InputError(f"{most:g} connections at once: the limit of open files is {limit}; raise it with ulimit -n")


def _check_room(folder: Path, plan: Plan) -> None:
    """Refuse to start what the disk cannot hold: journals, then records beside them."""
    events = float(plan.output_tokens.clip(min=0).sum())
    needed = 2 * (_EVENT_BYTES * events + 200 * len(plan)) + 2 * store.RESERVE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        folder.rmdir()
        raise DiskFullError(
            f"{folder.parent}: {free / 1e6:.0f} MB free, and the run may need {needed / 1e6:.0f} MB; "
            "free some room, or give another folder with --out"
        )


def _run_info(options: Options, plan: Plan, target: Target, slo: dict[str, float], salt: str | None) -> RunInfo:
    now = datetime.now(UTC)
    name = "-".join(part for part in (target.engine, target.model.rsplit("/", 1)[-1]) if part)
    slug = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")[:60]
    return RunInfo(
        run_id=f"{now:%Y%m%d-%H%M%S}-{slug}",
        source="measured",
        created=now.isoformat(timespec="seconds"),
        command=_without_secrets(options.command),
        loadstone=loadstone.__version__,
        host=host.describe(),
        target=target,
        plan_id=plan.plan_id,
        seed=plan.seed,
        salt=salt,
        slo=slo,
        settings={
            "workload": plan.workload,
            "sampling": msgspec.to_builtins(_sampling(options)),
            "structured": options.structured,
            "dialect": options.dialect,
            "route": _route(options, plan),
            "extra_body_fields": sorted(options.extra_body),
            "headers": sorted(name for name, _ in options.headers),
            "timeouts": msgspec.to_builtins(options.timeouts),
            "grace_s": options.grace_s,
        },
        cells=[CellInfo(load=load) for load in plan.cells],
        selftest=msgspec.to_builtins(load_selftest()),
    )


def _without_secrets(command: Sequence[str]) -> list[str]:
    shown = list(command)
    for i, part in enumerate(shown):
        for flag in _SECRET_FLAGS:
            if part == flag and i + 1 < len(shown):
                shown[i + 1] = "…"
            elif part.startswith(flag + "="):
                shown[i] = f"{flag}=…"
            elif part.startswith(flag) and not flag.startswith("--"):
                shown[i] = f"{flag}…"
    return shown


def _route(options: Options, plan: Plan) -> Route:
    return options.route or ("sticky" if plan.has_sessions else "round-robin")


def _destination(
    options: Options, parts: SplitResult, base_path: str, path: str, headers: list[tuple[str, str]]
) -> Destination:
    """How workers reach one server."""
    tls = parts.scheme == "https"
    port = parts.port or (443 if tls else 80)
    via = attach.check_url(options.proxy) if options.proxy is not None else None
    host_name, host_port = (parts.hostname, port) if via is None else (via.hostname, via.port or 80)
    try:
        family, _, _, _, sockaddr = socket.getaddrinfo(host_name, host_port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise TargetError(f"{host_name}: host not found ({error.strerror or error}); correct the URL") from error
    # A proxy forwards plain HTTP, named whole in the request line; for TLS it is asked for a tunnel.
    forward = f"{parts.scheme}://{parts.netloc}" if via is not None and not tls else ""
    own = {name.lower() for name, _ in headers}
    fixed = [
        ("Host", parts.netloc),
        ("User-Agent", f"loadstone/{loadstone.__version__}"),
        ("Content-Type", "application/json"),
        ("Accept", "text/event-stream" if options.stream else "application/json"),
        # A compressed stream would be bunched by the compressor.
        ("Accept-Encoding", "identity"),
    ]
    return Destination(
        address=(int(family), list(sockaddr)),
        tls_name=parts.hostname if tls else None,
        tunnel=f"{parts.hostname}:{port}" if via is not None and tls else None,
        request_line=f"POST {forward}{base_path}{path} HTTP/1.1",
        headers=[(name, value) for name, value in fixed if name.lower() not in own] + headers,
    )


def _jobs(
    options: Options,
    plan: Plan,
    info: RunInfo,
    vocabulary: Vocabulary,
    asking: Ask,
    folder: Path,
    destinations: list[Destination],
) -> list[Job]:
    streams = max((load.value for load in plan.cells if load.kind != "rate"), default=1000)
    origin_ns = time.monotonic_ns()
    return [
        Job(
            folder=str(folder),
            worker=worker,
            origin_ns=origin_ns,
            destinations=destinations,
            route=_route(options, plan),
            endpoint=asking.endpoint,
            streams=asking.stream,
            body=grpc_body(asking) if isinstance(asking, GrpcAsk) else ask.body(asking),
            vocabulary=vocabulary,
            salt=info.salt,
            request_tag=f"{info.salt or info.run_id}-",
            timeouts=options.timeouts,
            grace_s=options.grace_s,
            held_limit_bytes=int(min(65_536, max(2048, _HELD_BYTES / streams))),
        )
        for worker in range(options.workers or workers_for(plan.cells))
    ]
