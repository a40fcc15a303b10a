"""Before a measured run: the options are checked, the server is found or started and probed, and a plan is made that
it takes.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult

import msgspec

from loadstone.analyse.run_facts import engine_name
from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.catalogue.deployment.shorthand import names_engine, parse_deployment, parse_named
from loadstone.catalogue.engines import ENGINES, engine_key
from loadstone.core.errors import InputError, TargetError
from loadstone.core.plan import Plan
from loadstone.core.record import Target
from loadstone.core.secrets import blank, blank_bytes, keys_in, names_key
from loadstone.core.text import excerpt
from loadstone.engines.sharding.limits import count
from loadstone.engines.table import SIMULATED
from loadstone.engines.triton import BACKENDS
from loadstone.measure.client.pool import choose_workers
from loadstone.measure.engines import attach
from loadstone.measure.engines.launch import RunningEngine
from loadstone.measure.engines.probe import Requirements, token_counter
from loadstone.measure.engines.server import HttpServer, check_proxy, shown
from loadstone.measure.wire.request import RequestBody, make_body, make_path
from loadstone.runs.launched import launch_for, started
from loadstone.workload.option_values import DEFAULT_SIM, parse_structured
from loadstone.workload.options import Options
from loadstone.workload.planning import Beyond, Planner
from loadstone.workload.prompts import PromptWriter, Vocabulary, prompt_text
from loadstone.workload.request import RequestSpec, Sampling

LOADED = 2.0
"""E2E of a request among others over that of one alone, guessed: before a run nobody knows its load."""
_PROBE_TOKENS = 17
KEY_VARIABLES = ("LOADSTONE_API_KEY", "OPENAI_API_KEY")
_MARK = "[01234567] "
"""As long as what stands in front of a file's prompt; see PromptWriter."""


class Server(NamedTuple):
    """A server that was probed, or a fleet of them.

    target      what it is
    vocabulary  how prompts of exact length are written for it
    request     what all requests have in common
    headers     of every request
    addresses   of each server, its URL in parts and its base path
    keys        secrets, which are written down nowhere
    notes       what the user should know of the probing
    """

    target: Target
    vocabulary: Vocabulary
    request: RequestSpec
    headers: list[tuple[str, str]]
    addresses: list[tuple[SplitResult, str]]
    keys: list[str]
    notes: list[str]


class Measured(NamedTuple):
    """What is measured. `engine`: started for it; `log`: where that writes, which is kept with the run."""

    urls: list[str]
    engine: RunningEngine | None = None
    log: Path | None = None


def target_of(options: Options, plan: Plan, stack: contextlib.ExitStack, tell: Callable[[str], None]) -> Measured:
    """The servers to measure, starting an engine of our own, which ends with `stack`, where no URL is given. Raises
    InputError.
    """
    flags = {"--engine": options.engine, "--sim": options.sim, "--launch": options.launch}
    own = [flag for flag, value in flags.items() if value is not None]
    if options.urls:
        if own:
            raise InputError(f"a URL and {own[0]}: measure a running server, or one of our own; give one")
        twice = [url for i, url in enumerate(options.urls) if url in options.urls[:i]]
        if twice:
            raise InputError(f"{shown(twice[0])}: given twice; name each server of a fleet once")
        return Measured(options.urls)
    if len(own) > 1:
        raise InputError(f"{own[0]} and {own[1]}: one engine is measured; give one")
    if options.launch is not None:
        launch = launch_for(options, options.launch)
        for note in launch.notes:
            tell(note)
        engine = stack.enter_context(started(launch, tell, options.timeout_ready_s))
        return Measured([engine.url], engine, engine.ranks[0].log_path)
    if options.engine is None:
        from loadstone.measure import simulated_server

        simulated = options.sim or DEFAULT_SIM
        if "://" in simulated:
            raise InputError("--sim and a URL: measure a running server, or one of our own; give one")
        latency: simulated_server.FixedLatency | str = simulated
        # MODEL@GPUS is a deployment, whose scheduler then has the times.
        if "@" in simulated:
            from loadstone.predict.simulator.fleet import fleet_of

            fleet_of(parse_deployment(simulated))  # an error in it is one line, before a server starts
        else:
            latency = simulated_server.FixedLatency.parse(simulated, "--sim", f"{DEFAULT_SIM}, or fixed times, ")
        return Measured([stack.enter_context(simulated_server.start(latency)).url])
    from loadstone.measure.engines import llama_cpp

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="loadstone-")))
    most = max((int(load.value) for load in plan.cells if not load.is_open), default=8)
    process = stack.enter_context(
        llama_cpp.launch(
            slots=min(64, max(1, most)),
            connections=min(1024, most),
            context_tokens=_longest_tokens(plan) + 64,
            log_path=folder / "engine.log",
        )
    )
    return Measured([process.url], None, process.log_path)


def _longest_tokens(plan: Plan) -> int:
    """The most tokens that a request of the plan, or a whole session, has in and out; guessed where texts decide."""
    import numpy as np

    tokens = plan.input_tokens.clip(min=2048 if plan.prompts else 1).astype(np.int64) + plan.output_tokens
    if not plan.has_sessions:
        return int(tokens.max())
    session = np.cumsum(plan.turn <= 0)
    # Each turn also has what its template adds.
    return int(np.bincount(session, tokens + 16).max())


def probe(options: Options, plan: Plan, measured: Measured, headers: list[tuple[str, str]]) -> Server:
    """Probe the first server; the others of a fleet must offer the same."""
    urls = measured.urls
    needs = Requirements(
        model=options.model if measured.engine is None else measured.engine.launch.model,
        endpoint=options.endpoint,
        tokenizer=options.tokenizer,
        sampling=sampling_of(options),
        structured=parse_structured(options.structured) if options.structured is not None else None,
        extra=dict(options.extra_body),
        stream=options.stream,
        exact=plan.exact_output,
        text_only=plan.has_sessions,
    )
    with attach.connect(urls[0], options.endpoint, headers, options.proxy) as server:
        target, vocabulary, request = attach.attach(server, needs)
        addresses, cuts = [(server.parts, server.base_path)], server.cuts
        missed = server.missed
    target.urls, engines = [target.url], [target.engine]
    for url in urls[1:]:
        with attach.connect(url, options.endpoint, headers, options.proxy) as server:
            engines.append(attach.check_same(server, target, request))
            target.urls.append(server.url)
            addresses.append((server.parts, server.base_path))
            cuts += server.cuts
            missed += server.missed
    target.engines = engines if len(set(engines)) > 1 else []
    # A header may name the model, too, which is no key.
    named = keys_in([header for header in headers if names_key(header[0])], options.extra_body)
    model = target.model.lower()
    keys = [key for key in keys_in(headers, options.extra_body) if key in named or key.lower() not in model]
    # A server may repeat a key in anything that it says of itself; run.json has all of that.
    target.models, target.version = _blanked(target.models, keys), _blanked(target.version, keys)
    target.engine_version = target.engine_version and blank(target.engine_version, keys)
    target.model = blank(target.model, keys)
    notes = [f"{page}: the connection was cut {times}×; the probe was sent again" for page, times in cuts.items()]
    return Server(
        target, vocabulary, request, headers, addresses, keys, [blank(note, keys) for note in notes + missed]
    )


def _blanked(value: Any, keys: list[str]) -> Any:
    return msgspec.json.decode(blank_bytes(msgspec.json.encode(value), keys))


def plan_for(planner: Planner, draft: Plan, server: Server) -> tuple[Plan, list[float]]:
    """The plan that the server takes; and about how long a request of each cell will take there, in seconds, where
    that decides how many there are. `draft`: made without knowing the server. Raises InputError.
    """
    options, most = planner.options, server.target.max_model_tokens
    if options.trace is not None:
        return planner.plan(most, server.target.overhead_tokens + 1), []
    if options.dataset is not None and options.turns is None and most is not None:
        with counting(options, server) as beyond:
            return planner.plan(most, beyond=beyond), []
    if not planner.chooses_length or options.dataset is not None:
        return draft, []
    expected_s = answer_times_s(draft, server, options.proxy)
    return planner.plan(e2e_s=expected_s), expected_s


def answer_times_s(plan: Plan, server: Server, proxy: str | None = None) -> list[float]:
    """About how long a request of each cell will take, in seconds: LOADED times one alone, of the mean length, by
    small requests with prompts of the plan's kind. Nothing where the server does not answer these.
    """
    target = server.target
    if target.endpoint == "triton-grpc":
        return []
    writer = PromptWriter(server.vocabulary, seed=plan.seed, salt=os.urandom(6).hex(), chat=target.endpoint == "chat")
    requests = RequestBody(make_body(server.request))
    with HttpServer(target.url, server.headers, proxy) as connection:
        # The first may find the server cold, and does not count.
        took_s = {}
        for index, tokens in enumerate((1, 1, _PROBE_TOKENS)):
            prompt = writer.write(plan.request(0, min(index, len(plan.rows(0)) - 1)))
            start_s = time.monotonic()
            try:
                answer = connection.post(make_path(server.request), requests.render(prompt, tokens))
            except TargetError:
                return []
            if answer.status_code != 200:
                return []
            took_s[tokens] = time.monotonic() - start_s
    token_s = max(0.0, took_s[_PROBE_TOKENS] - took_s[1]) / (_PROBE_TOKENS - 1)
    outputs = (plan.output_tokens[rows.start : rows.stop] for rows in map(plan.rows, range(len(plan.cells))))
    return [LOADED * (took_s[1] + token_s * max(0.0, float(tokens.mean()) - 1)) for tokens in outputs]


def check_options(options: Options) -> None:
    """Refuse what cannot be, before anything is started. Raises InputError, which names the flag."""
    most = 4 * max(4, os.cpu_count() or 1)
    if options.ray is not None:
        most = 1024  # its machines have more processors than this one
    if options.workers is not None and not 1 <= options.workers <= most:
        raise InputError(
            f"--workers {options.workers}: must be from 1 to {most} on this host; one per core is enough"
        )
    if options.proxy is not None:
        check_proxy(options.proxy)
    if options.ray is not None:
        _check_ray(options.ray)


def _check_ray(address: str) -> None:
    """Ray itself tries for minutes. Raises InputError."""
    if find_spec("ray") is None:
        raise InputError("--ray: Ray is not installed; pip install 'loadstone[ray]'")
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(
            f"--ray {address}: no Ray cluster answers there ({error}); give the host:port of its head"
        ) from error


def declared_deployment(options: Options) -> Deployment | None:
    """What the server runs on, where the user says it. Raises InputError: no such deployment, or no server to say it
    of.
    """
    if options.launch is not None:
        if options.deployment is not None:
            raise InputError("--deployment beside --launch, which has one of its own; leave --deployment out")
        return parse_deployment(options.launch)
    if options.deployment is None:
        return None
    if options.sim is not None:
        raise InputError("--deployment beside --sim, which has a deployment of its own; leave --deployment out")
    if not options.urls:
        raise InputError("--deployment says what the server at a URL runs on; give its URL, or leave it out")
    return parse_deployment(options.deployment)


def deployment_record(text: str, deployed: Deployment, target: Target) -> dict[str, Any]:
    """RunInfo.settings["deployment"] of what the user stated as `text`, for a server that was met; see runfacts.

    Engine and version are the server's where it reports them, else as declared; a default of the shorthand counts for
    nothing. The model has the name that it is served by, since servers use aliases. Raises InputError where the user
    named another engine than the server does.
    """
    declared = deployed.engine if names_engine(text) else None
    behind = target.engine == "Triton" and declared in BACKENDS
    may_differ = behind or target.engine in (None, SIMULATED)
    if declared and not may_differ and engine_name(declared) != target.engine:
        raise InputError(
            f"--deployment {text!r}: its engine is {declared}, and {target.url} says that it is {target.engine}; "
            "correct it, or leave the engine and its own arguments out"
        )
    reported = None if behind else target.engine
    key = engine_key(reported) if reported else None
    engine = key if key in ENGINES else reported or declared
    version = (None if behind else target.engine_version) or deployed.engine_version
    # A node of the user's own is in a file; its GPU, which is kept, says enough.
    named = msgspec.structs.replace(deployed, node=None if deployed.has_own_hardware else deployed.node)
    if engine in ENGINES:
        # What a server says may hold commas, which would be options of the shorthand.
        plain = version if re.fullmatch("[0-9A-Za-z.+_-]+", version or "") else None
        named = msgspec.structs.replace(named, engine=engine, engine_version=plain)
    parts = named.name.split(",")
    record = deployed.to_settings()
    return record | {
        "model": target.model or deployed.model.name,
        "architecture": record["model"],
        "engine": engine,
        "engine_version": version,
        "name": ",".join(part for part in parts if engine in ENGINES or not part.startswith("engine=")),
        "stated": text,
    }


def simulated_record(target: Target) -> dict[str, Any] | None:
    """RunInfo.settings["deployment"] of a simulated engine, by its own word; None: of another server, or where it
    simulates what only a file on its machine describes. No file is read for a name that a server gives.
    """
    text = attach.simulated_deployment(target)
    if text is None:
        return None
    try:
        deployed = parse_named(text, None)
    except (InputError, OSError, ValueError):  # the last two: a name that no path can have
        return None
    record = deployment_record(deployed.name, deployed, target)
    del record["stated"]  # by the user
    return record | {"simulates": deployed.engine, "stated_by": "server"}


def doubts(deployed: Deployment, target: Target) -> list[str]:
    """One line for each thing that a server says of its model and that is not so of the deployment that the user
    stated. Servers use aliases, so that none of it is an error.
    """
    model, differences = deployed.model, []
    names = [name.rsplit("/", 1)[-1] for name in (model.name, *model.aliases)]
    served = _letters(target.model.rstrip("/").rsplit("/", 1)[-1])
    if served and not any(_letters(name) in served or served in _letters(name) for name in names):
        differences.append(f"the server names its model {excerpt(target.model, 80)}")
    entries = target.models.get("data") if isinstance(target.models, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        meta = entry.get("meta") if isinstance(entry, dict) and entry.get("id") == target.model else None
        parameters = meta.get("n_params") if isinstance(meta, dict) else None
        if isinstance(parameters, int) and not 0.8 < parameters / model.parameters < 1.25:
            differences.append(f"the server's model has {parameters:.3g} parameters, not {model.parameters:.3g}")
    context = target.max_model_tokens
    limit = count(deployed, "max_model_len", "max_seq_len")
    if context is not None and limit is not None and context != limit:
        differences.append(f"the server's context is {context:,} tokens, not {limit:,}")
    elif context is not None and model.max_context_tokens is not None and context > model.max_context_tokens:
        most = model.max_context_tokens
        differences.append(f"the server's context is {context:,} tokens, beyond the model's {most:,}")
    return differences


def _letters(name: str) -> str:
    return re.sub("[^0-9a-z]", "", name.lower())


@contextlib.contextmanager
def counting(options: Options, server: Server) -> Iterator[Beyond]:
    """What tells a dataset's prompts that a server does not take; see planning.Beyond. Raises InputError.

    No tokenizer makes more tokens of a text than it has bytes: only what might be too long so is counted.
    """
    target, counts = server.target, dict[str, int | None]()
    with attach.connect(target.url, options.endpoint, server.headers, options.proxy) as connection:
        counter = cache(lambda: token_counter(connection, target, options.tokenizer))

        def beyond(prompt: str, chat: bool, output_tokens: int) -> int | None:
            text = _MARK + prompt_text(prompt, chat)
            room = (target.max_model_tokens or 0) - target.overhead_tokens - max(0, output_tokens)
            if target.max_model_tokens is None or len(text.encode("utf-8", "replace")) <= room:
                return None
            if prompt not in counts:
                counts[prompt] = counter()(text)
            tokens = counts[prompt]
            return None if tokens is None or tokens <= room else tokens + target.overhead_tokens

        yield beyond


def headers_of(named: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The headers of every request: those given, and a key that the environment holds. Raises InputError."""
    headers = list(named)
    for name, value in headers:
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or not re.fullmatch(r"[\t -~]*", value):
            raise InputError("--header: not an HTTP header (name and value in plain ASCII); write 'Name: value'")
        if name.lower() in ("content-length", "transfer-encoding"):
            raise InputError(f"--header: {name} follows from the request; leave it out")
    key = next((os.environ[name] for name in KEY_VARIABLES if os.environ.get(name)), None)
    if key is not None and not any(name.lower() == "authorization" for name, _ in headers):
        if not re.fullmatch("[!-~]+", key):
            raise InputError(f"{' or '.join(KEY_VARIABLES)}: the key holds a space or a character that is not ASCII")
        headers.append(("Authorization", f"Bearer {key}"))
    return headers


def sampling_of(options: Options) -> Sampling:
    return Sampling(
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.sampling_seed,
        stop=tuple(options.stop),
    )


def salt_of(options: Options) -> str | None:
    """What makes a run's prompts new, or the same again; None: nothing does. Raises InputError."""
    if options.salt == "none":
        return None
    if not re.fullmatch("[0-9A-Za-z._-]{1,64}", options.salt):
        raise InputError("--salt: write auto, none, or up to 64 letters, digits, dots and dashes")
    return os.urandom(6).hex() if options.salt == "auto" else options.salt


def check_plan(plan: Plan, server: Server, salt: str | None, workers: int | None) -> None:
    """Refuse before the run what the server, or this host with so many `workers`, would refuse in it. Raises
    InputError.
    """
    target, longest = server.target, _longest_tokens(plan)
    if not plan.prompts:
        firsts = (plan.turn <= 0).nonzero()[0]
        row = int(firsts[plan.input_tokens[firsts].argmin()])
        cell = int(plan.cell[row])
        writer = PromptWriter(server.vocabulary, seed=plan.seed, salt=salt, chat=target.endpoint == "chat")
        writer.write(plan.request(cell, row - plan.rows(cell).start))
    if target.max_model_tokens is not None and longest > target.max_model_tokens and not plan.prompts:
        row = int((plan.input_tokens + plan.output_tokens).argmax())
        what = f"--input {plan.input_tokens[row]} and --output {plan.output_tokens[row]}: together they are"
        if plan.has_sessions:
            what = f"--turns: a session grows to {longest} tokens,"
        raise InputError(
            f"{what} beyond the server's context of {target.max_model_tokens} tokens; "
            "ask for less, or start the server with a longer context"
        )
    check_open_files(plan, workers or choose_workers(plan.cells))


def check_open_files(plan: Plan, workers: int) -> None:
    """Refuse more connections than each of the `workers` may have open files. Raises InputError.

    How many an open loop has at once is not known before, but where it is capped: at most the cap, or its requests.
    """
    most = 0.0
    for cell, load in enumerate(plan.cells):
        connections = load.value if not load.is_open else load.max_concurrency or 0
        if not load.is_closed and not plan.cyclic(cell):
            connections = min(connections, load.max_concurrency or connections, len(plan.rows(cell)))
        most = max(most, connections)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if limit != resource.RLIM_INFINITY and most / workers + 64 > limit:
        what = f"{most:g} connections at once" if most else "even without a connection too few"
        raise InputError(f"{what}: the limit of open files is {limit}; raise it with ulimit -n")
