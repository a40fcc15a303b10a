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
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import msgspec

import loadstone
from loadstone import host, store
from loadstone.client.pool import Pool, StepResult, workers_for
from loadstone.client.protocol import Job, Progress, Timeouts
from loadstone.engines import attach
from loadstone.errors import DiskFullError, InputError, LoadstoneError, TargetError
from loadstone.records import CellInfo, Load, Plan, RunInfo, Target
from loadstone.schedule import default_requests, default_warmup, make_plan
from loadstone.summary import parse_slo, summarise
from loadstone.wire.openai import PATHS, Endpoint
from loadstone.workload import dataset
from loadstone.workload.prompts import PromptWriter, Vocabulary
from loadstone.workload.synthetic import Length, Synthetic, parse_length

DEFAULT_LAW = "ttft=30ms,itl=5ms"
_HELD_BYTES = 256 * 1024 * 1024
"""Raw bytes that all streams together may hold undecoded, about."""
_EVENT_BYTES = 20
_MOST_REQUESTS = 20_000_000
"""In one run: a plan of more would not fit into memory, and its run would take days."""
_PLANNED = (
    "rate",
    "concurrency",
    "max-concurrency",
    "requests",
    "requests-per-rate",
    "warmup",
    "dataset",
    "prefix",
)
"""Flags that a plan answers already."""
_SECRET_FLAGS = ("--header", "-H", "--extra-body")
KEY_VARIABLES = ("LOADSTONE_API_KEY", "OPENAI_API_KEY")


class Options(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to measure, named as the flags of `loadstone bench`; see `loadstone bench --help`."""

    url: str | None = None
    engine: Literal["llama.cpp"] | None = None
    sim: str | None = None
    """Law of the embedded timing server, as `ttft=30ms,itl=5ms`; used where neither url nor engine is given."""
    model: str | None = None
    endpoint: Endpoint | None = None
    tokenizer: str | None = None
    input: str = "1024"
    output: str | None = None
    range_ratio: float = 1.0
    prefix: int = 0
    prefix_groups: int = 1
    dataset: Path | None = None
    plan: Path | None = None
    rate: Sequence[float] = ()
    burstiness: float = 1.0
    concurrency: Sequence[int] = ()
    max_concurrency: int | None = None
    requests: Sequence[int] = ()
    requests_per_rate: float | None = None
    duration_s: float | None = None
    grace_s: float = 30.0
    warmup: int | None = None
    slo: str | None = None
    seed: int = 0
    salt: str = "auto"
    temperature: float | None = None
    top_p: float | None = None
    headers: Sequence[tuple[str, str]] = ()
    extra_body: Mapping[str, Any] = {}
    proxy: str | None = None
    """http://host:port to go through; proxies named in the environment are not used."""
    timeouts: Timeouts = Timeouts()
    workers: int | None = None
    out: Path = Path("runs")
    command: Sequence[str] = ()
    """The command line, for the run's papers; secrets in it are blanked."""


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
    plan = _plan(options)
    slo = parse_slo(options.slo) if options.slo else {}
    headers = _headers(options.headers)
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(_Signals())
        url, engine_log = _target_url(options, plan, stack)
        with attach.Server(url, headers, options.proxy) as server:
            target, vocabulary = attach.attach(
                server,
                model=options.model,
                endpoint=options.endpoint,
                tokenizer=options.tokenizer,
                extra=_sampling(options),
            )
            base_path, parts = server.base_path, server.parts
        salt = _salt(options)
        _check(plan, target, vocabulary, salt)
        info = _run_info(options, plan, target, slo, salt)
        folder = store.create(options.out, info.run_id)
        info.run_id = folder.name
        _check_room(folder, plan)
        store.write_info(folder, info)
        store.write_plan(folder / "plan.parquet", plan)
        on_event(Event(kind="attached", info=info, plan=plan, folder=folder))
        jobs = _jobs(options, plan, info, vocabulary, folder, (parts, base_path, headers))
        try:
            _run(Pool(jobs, folder / "log.txt"), plan, info, folder, on_event, signals)
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
    pool: Pool, plan: Plan, info: RunInfo, folder: Path, on_event: Callable[[Event], None], signals: _Signals
) -> None:
    """All cells, one after another; `info` is kept up to date on disk."""
    origin_ns = pool.origin_ns
    stopped = False
    with pool:
        info.clock = "kernel" if pool.kernel_clock else "user"
        signals.on_first = lambda: pool.stop("interrupted")
        for cell, load in enumerate(plan.cells):
            if signals.count or pool.failures:
                break
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


# --- from options to a plan -----------------------------------------------------------------------------------


def _plan(options: Options) -> Plan:
    if options.seed < 0 or options.seed >= 1 << 63:
        raise InputError(f"--seed {options.seed}: must be 0 or more, and below 2^63")
    if options.plan is not None:
        told = [name for name in _PLANNED if getattr(options, name.replace("-", "_"))]
        if told or options.duration_s is not None:
            flag = (told or ["duration"])[0]
            raise InputError(f"--plan and --{flag}: the plan says what is sent and when; give one")
        return store.read_plan(options.plan)
    if not 0 < options.range_ratio <= 1:
        raise InputError(f"--range-ratio {options.range_ratio:g}: must be above 0 and at most 1")
    if options.prefix < 0 or options.prefix_groups < 1:
        raise InputError("--prefix must be 0 or more tokens, and --prefix-groups at least 1")
    if options.warmup is not None and options.warmup < 0:
        raise InputError(f"--warmup {options.warmup}: must be 0 or more")
    output: Length | None = None
    if options.output is not None or options.dataset is None:
        output = parse_length(options.output or "128", options.range_ratio, "--output")
    loads, requests = _loads(options)
    most = sum(
        (requests[i] if requests is not None else 0 if load.duration_s is not None else default_requests(load))
        + (default_warmup(load) if options.warmup is None else options.warmup)
        + (load.value * (load.duration_s or 0.0) if load.kind == "rate" else 0)
        for i, load in enumerate(loads)
    )
    if most > _MOST_REQUESTS:
        raise InputError(f"{most:.3g} requests in one run: at most {_MOST_REQUESTS:,}; lower the load or --requests")
    if options.dataset is not None:
        if options.prefix:
            raise InputError("--prefix: a dataset's prompts share what they share; it goes with --input")
        return make_plan(
            dataset.read(options.dataset),
            loads,
            seed=options.seed,
            requests=requests,
            warmup=options.warmup,
            output=output,
        )
    assert output is not None  # noqa: S101
    workload = Synthetic(
        parse_length(options.input, options.range_ratio, "--input"), output, options.prefix, options.prefix_groups
    )
    return make_plan(workload, loads, seed=options.seed, requests=requests, warmup=options.warmup)


def _loads(options: Options) -> tuple[list[Load], list[int] | None]:
    """Loads, and measured requests per load where they are said."""
    if options.rate and options.concurrency:
        raise InputError(
            "--rate and --concurrency: one run is an open or a closed loop; give one, cap with --max-concurrency"
        )
    if options.duration_s is not None and options.duration_s <= 0:
        raise InputError("--duration: must be above 0")
    cap = options.max_concurrency
    if cap is not None and cap < 1:
        raise InputError(f"--max-concurrency {cap}: must be at least 1")
    bad = [rate for rate in options.rate if not rate > 0]
    if bad:
        raise InputError(f"--rate {bad[0]:g}: must be above 0 requests/s, or inf for all at once")
    per_rate = options.requests_per_rate
    if per_rate is not None and not (options.rate and 0 < per_rate < float("inf")):
        raise InputError("--requests-per-rate: needs --rate, and a number above 0")
    if not options.burstiness > 0:
        raise InputError(f"--burstiness {options.burstiness:g}: must be above 0 (1 is Poisson, inf constant)")
    if float("inf") in options.rate:
        if len(options.rate) > 1:
            raise InputError("--rate: inf stands alone; its bursts are as large as --requests says")
        if options.duration_s is not None or per_rate is not None:
            raise InputError("--rate inf: only --requests says how large its bursts are; leave out the rest")
        return [Load("burst", size, max_concurrency=cap) for size in options.requests or (32,)], None
    if len(options.requests) > 1:
        raise InputError("--requests: a list goes with --rate inf only; give one number for every cell")
    if not options.rate:
        if cap is not None:
            raise InputError("--max-concurrency: caps an open loop; a closed one has --concurrency")
        loads = [Load("concurrency", n, duration_s=options.duration_s) for n in options.concurrency or (1, 4, 16)]
    else:
        process: Literal["poisson", "constant", "gamma"] = "gamma"
        if options.burstiness in (1.0, float("inf")):
            process = "poisson" if options.burstiness == 1.0 else "constant"
        shape = options.burstiness if process == "gamma" else 1.0
        loads = [
            Load("rate", rate, process=process, burstiness=shape, max_concurrency=cap, duration_s=options.duration_s)
            for rate in options.rate
        ]
    if per_rate is not None:
        return loads, [max(1, round(per_rate * load.value)) for load in loads]
    if options.requests:
        if options.duration_s is not None:
            raise InputError("--requests and --duration: a cell ends by count or by time; give one")
        return loads, [options.requests[0]] * len(loads)
    return loads, None


# --- from options to a target ---------------------------------------------------------------------------------


def _target_url(options: Options, plan: Plan, stack: contextlib.ExitStack) -> tuple[str, Path | None]:
    """The URL to measure, starting an engine of our own where none is given; and its log."""
    if options.url is not None:
        if options.engine is not None or options.sim is not None:
            raise InputError("a URL and --engine or --sim: measure a running server, or one of our own; give one")
        return options.url, None
    if options.engine is None:
        from loadstone import simserver

        law = simserver.Law.parse(options.sim or DEFAULT_LAW)
        return stack.enter_context(simserver.start(law)).url, None
    from loadstone.engines import llama_cpp

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="loadstone-")))
    most = max((int(load.value) for load in plan.cells if load.kind != "rate"), default=8)
    longest = int((plan.input_tokens.clip(min=2048 if plan.prompts else 1) + plan.output_tokens).max())
    engine = llama_cpp.launch(
        slots=min(64, max(1, most)), context_tokens=longest + 64, log_path=folder / "engine.log", cache_prompt=True
    )
    return stack.enter_context(engine).url, folder / "engine.log"


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


def _sampling(options: Options) -> dict[str, Any]:
    """Fields of every request body beside model, prompt and length; what the user wrote last wins."""
    fields: dict[str, Any] = {}
    if options.temperature is not None:
        fields["temperature"] = options.temperature
    if options.top_p is not None:
        fields["top_p"] = options.top_p
    return {**fields, **options.extra_body}


def _salt(options: Options) -> str | None:
    if options.salt == "none":
        return None
    if not re.fullmatch("[0-9A-Za-z._-]{1,64}", options.salt):
        raise InputError("--salt: write auto, none, or up to 64 letters, digits, dots and dashes")
    return os.urandom(6).hex() if options.salt == "auto" else options.salt


def _check(plan: Plan, target: Target, vocabulary: Vocabulary, salt: str | None) -> None:
    """Refuse before the run what the server would refuse in it."""
    if not plan.prompts:
        rows = [int(plan.input_tokens.argmin()), int((plan.input_tokens + plan.output_tokens).argmax())]
        writer = PromptWriter(vocabulary, seed=plan.seed, salt=salt, chat=target.endpoint == "chat")
        for row in rows:
            cell = int(plan.cell[row])
            writer.write(plan.request(cell, row - plan.rows(cell).start))
        longest = int(plan.input_tokens[rows[1]] + plan.output_tokens[rows[1]])
        if target.max_model_tokens is not None and longest > target.max_model_tokens:
            raise InputError(
                f"--input {plan.input_tokens[rows[1]]} and --output {plan.output_tokens[rows[1]]}: together beyond "
                f"the server's context of {target.max_model_tokens} tokens; ask for less, or start it with more"
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
            "sampling": {name: value for name, value in _sampling(options).items() if name not in options.extra_body},
            "extra_body_fields": sorted(options.extra_body),
            "headers": sorted(name for name, _ in options.headers),
            "timeouts": msgspec.to_builtins(options.timeouts),
            "grace_s": options.grace_s,
        },
        cells=[CellInfo(load=load) for load in plan.cells],
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


def _jobs(
    options: Options,
    plan: Plan,
    info: RunInfo,
    vocabulary: Vocabulary,
    folder: Path,
    server: tuple[Any, str, list[tuple[str, str]]],
) -> list[Job]:
    parts, base_path, headers = server
    target = info.target
    assert target is not None  # noqa: S101
    endpoint: Endpoint = "chat" if target.endpoint == "chat" else "completions"
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
    fields: dict[str, Any] = {"model": target.model, "stream": True}
    if target.accepts.get("stream_options"):
        running = bool(target.accepts.get("continuous_usage_stats"))
        fields["stream_options"] = {"include_usage": True, **({"continuous_usage_stats": True} if running else {})}
    if plan.exact_output and target.accepts.get("ignore_eos"):
        fields["ignore_eos"] = True
    fields.update(_sampling(options))
    workers = options.workers or workers_for(plan.cells)
    streams = max((load.value for load in plan.cells if load.kind != "rate"), default=1000)
    own = {name.lower() for name, _ in headers}
    fixed = [
        ("Host", parts.netloc),
        ("User-Agent", f"loadstone/{loadstone.__version__}"),
        ("Content-Type", "application/json"),
        ("Accept", "text/event-stream"),
        # A compressed stream would be bunched by the compressor.
        ("Accept-Encoding", "identity"),
    ]
    origin_ns = time.monotonic_ns()
    return [
        Job(
            folder=str(folder),
            worker=worker,
            origin_ns=origin_ns,
            address=(int(family), list(sockaddr)),
            tls_name=parts.hostname if tls else None,
            tunnel=f"{parts.hostname}:{port}" if via is not None and tls else None,
            request_line=f"POST {forward}{base_path}{PATHS[endpoint]} HTTP/1.1",
            headers=[(name, value) for name, value in fixed if name.lower() not in own] + headers,
            body_fields=fields,
            exact_with="min_tokens" if plan.exact_output and target.accepts.get("min_tokens") else None,
            endpoint=endpoint,
            vocabulary=vocabulary,
            salt=info.salt,
            request_tag=f"{info.salt or info.run_id}-",
            timeouts=options.timeouts,
            grace_s=options.grace_s,
            held_limit_bytes=int(min(65_536, max(2048, _HELD_BYTES / streams))),
        )
        for worker in range(workers)
    ]
