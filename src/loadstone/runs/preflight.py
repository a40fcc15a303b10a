"""Before a measured run: the options are checked, the servers are found or started and probed, and
a plan is made that they take.
"""

import contextlib
import math
import os
import re
import resource
import socket
import time
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import SplitResult

import msgspec

from loadstone.analyse.stopping import Stopping, parse_rules
from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.catalogue.deployment.shorthand import names_engine, parse_deployment
from loadstone.catalogue.engines import engine_title
from loadstone.core.errors import InputError, TargetError
from loadstone.core.extras import require
from loadstone.core.plan import CHECK, Inputs, Plan, PoolingTask
from loadstone.core.record import Target
from loadstone.core.secrets import blank, blank_bytes, keys_in, names_key
from loadstone.engines.table import adapter_field
from loadstone.measure.client.packets import check_packets
from loadstone.measure.client.pool import choose_workers
from loadstone.measure.engines import attach
from loadstone.measure.engines.http import check_proxy
from loadstone.measure.engines.probe import Requirements, prompt_counter, token_counter
from loadstone.measure.engines.server import PATIENCE, Server
from loadstone.measure.wire.request import RequestBody, make_body, make_path
from loadstone.measure.wire.wire import find_wire
from loadstone.measure.wires.pooling import cuts_inputs
from loadstone.runs import execution, profiler, targets
from loadstone.runs.adapters import find_adapters
from loadstone.runs.deployments import declared_deployment
from loadstone.runs.launched import check_start
from loadstone.runs.pictures import check_endpoint, count_visual_tokens, needed_endpoint
from loadstone.runs.targets import Servers, Tell, longest_tokens
from loadstone.workload.draw import Beyond
from loadstone.workload.load_options import EarlyEndOptions
from loadstone.workload.option_fields import change
from loadstone.workload.option_values import check_headers, parse_structured
from loadstone.workload.options import ClientOptions, Options, pooling_task
from loadstone.workload.pictures import PictureWriter
from loadstone.workload.planning import Planner, until_precise
from loadstone.workload.prompts import PromptWriter, Vocabulary, prompt_text
from loadstone.workload.request import RequestSpec

LOADED = 2.0
"""E2E of a request among others over that of one alone, guessed: before a run nobody knows its
load."""
_PROBE_TOKENS = 17
_KEYS_OF_ALL = ("LOADSTONE_API_KEY", "OPENAI_API_KEY")
KEY_VARIABLES = (*_KEYS_OF_ALL, "ANTHROPIC_API_KEY")
_FAIRNESS = "x-gateway-inference-fairness-id"
"""The header in which gateways of Kubernetes (llm-d) read the tenant of a request."""
_MARK = "[01234567] "
"""As long as what stands in front of a file's prompt; see PromptWriter."""


class ProbedServer(NamedTuple):
    """A server that was probed, or a fleet of them.

    target      what it is
    vocabulary  how prompts of exact length are written for it
    request     what all requests have in common
    headers     of every request
    addresses   of each server, its URL in parts and its base path
    keys        secrets, which are written down nowhere
    notes       what the user should know of the probing
    adapters    numbers of LoRA adapters by name, where the server's requests have these
    """

    target: Target
    vocabulary: Vocabulary
    request: RequestSpec
    headers: list[tuple[str, str]]
    addresses: list[tuple[SplitResult, str]]
    keys: list[str]
    notes: list[str]
    adapters: dict[str, int] = {}  # noqa: RUF012


class Prepared(NamedTuple):
    """All that a measured run needs to begin.

    options     the user's, completed by what follows from them
    stopping    what ends a cell early
    declared    the deployment that the user declared
    servers     what is measured; `server`: as it was probed
    expected_s  about how long a request of each cell takes, in seconds, where that decided how many
                there are
    salt        what makes prompts new; None: nothing does
    """

    options: Options
    stopping: Stopping
    declared: Deployment | None
    servers: Servers
    server: ProbedServer
    plan: Plan
    expected_s: list[float]
    salt: str | None


def prepare(
    options: Options, stopping: Stopping | None, stack: contextlib.ExitStack, tell: Tell
) -> Prepared:
    """Check the options, find or start the servers, which end with `stack`, probe them, and make
    the plan.

    `stopping`: in place of what the options say ends a cell. Raises InputError.
    """
    options = _ask_for(options, pooling_task(options))
    planner = Planner(options)
    draft = planner.plan()
    execution.bounds_of(options.output, draft, streams=options.client.stream)
    check_client(options.client)
    check_clock(options.client, options.target.urls)
    check_start(options)
    declared = declared_deployment(options.target)
    stopping = stopping or stopping_of(until_precise(options).early_end, options.client)
    headers = headers_of(options.client.headers, options.client.endpoint)
    servers = targets.find_servers(options, draft, stack, tell)
    if options.client.profile_s is not None:
        profiler.check(servers.urls, headers, options.client)
    server = probe(options, draft, servers, headers)
    text = options.target.launch or options.target.deployment or ""
    if (
        server.target.engine is None
        and declared is not None
        and (options.target.launch or names_engine(text))
    ):
        server.target.engine = engine_title(declared.decoder.engine)
    check_priorities(draft, server.target)
    check_endpoint(draft, server.target.endpoint)
    plan, expected_s = plan_for(planner, draft, server, options.client)
    plan = count_visual_tokens(plan, declared, server.target)
    salt = salt_of(options.client.salt)
    check_plan(plan, server, salt, options.client.workers)
    return Prepared(options, stopping, declared, servers, server, plan, expected_s, salt)


def _ask_for(options: Options, task: PoolingTask | None) -> Options:
    """Return the options of a run that asks for vectors or scores: answers in one piece, of
    deployments that give them. Raises InputError."""
    target = options.target
    named = {"launch": target.launch, "deployment": target.deployment, "sim": target.sim}
    if task is None:
        return options
    deployments = {
        name: parse_deployment(text).asked_for(task).name
        for name, text in named.items()
        if text is not None and "@" in text
    }
    return change(options, stream=False, **deployments)


def stopping_of(options: EarlyEndOptions, client: ClientOptions) -> Stopping:
    """Return what ends cells early. Raises InputError."""
    rules = parse_rules(options.stop_when) if options.stop_when is not None else ()
    unseen = [rule for rule in rules if rule.metric != "e2e"]
    if unseen and not client.stream:
        raise InputError(
            f"--stop-when {unseen[0].text}: with --no-stream there is e2e alone; write e.g."
            " e2e_p50±2%"
        )
    return Stopping(
        rules, options.max_errors, options.min_duration_s or 0.0, options.max_duration_s or math.inf
    )


def probe(
    options: Options, plan: Plan, servers: Servers, headers: list[tuple[str, str]]
) -> ProbedServer:
    """Probe the first server; the others of a fleet must offer the same. Raises InputError,
    TargetError."""
    urls, client, structured = servers.urls, options.client, options.workload.structured
    needs = Requirements(
        model=options.start.model if servers.engine is None else servers.engine.launch.model,
        endpoint=client.endpoint or needed_endpoint(plan),
        tokenizer=client.tokenizer,
        sampling=options.sampling.sampling,
        structured=parse_structured(structured) if structured is not None else None,
        extra=dict(client.extra_body),
        stream=client.stream,
        exact=plan.exact_output,
        text_only=plan.is_real_text or (plan.has_sessions and (plan.graph.live or plan.chat)),
        stored=client.history == "stored",
    )
    if needs.stored and not (plan.has_sessions and plan.graph.live):
        raise InputError(
            "--history stored: no prompt of this plan holds an answer of the server's; give"
            " --turns, or --agents with --answers live"
        )
    with Server(urls[0], headers, client.proxy, extra_body=client.extra_body) as server:
        target, vocabulary, request = attach.attach(server, needs)
        adapters = find_adapters(server, plan, adapter_field(target.engine))
        addresses, cuts = [(server.parts, server.base_path)], server.cuts
        missed = server.missed
    target.urls, engines = [target.url], [target.engine]
    for url in urls[1:]:
        with Server(url, headers, client.proxy, extra_body=client.extra_body) as server:
            engines.append(attach.check_same(server, target, request))
            target.urls.append(server.url)
            addresses.append((server.parts, server.base_path))
            cuts += server.cuts
            missed += server.missed
    target.engines = engines if len(set(engines)) > 1 else []
    # A header may name the model, too, which is no key.
    of_classes = [header for by_class in class_headers(plan) for header in by_class]
    secret = [header for header in [*headers, *of_classes] if names_key(header[0])]
    named = keys_in(secret, client.extra_body)
    model = target.model.lower()
    keys = [
        key
        for key in keys_in([*headers, *of_classes], client.extra_body)
        if key in named or key.lower() not in model
    ]
    # A server may repeat a key in anything that it says of itself; run.json has all of that.
    target.models, target.version = (
        _blank_keys(target.models, keys),
        _blank_keys(target.version, keys),
    )
    target.engine_version = target.engine_version and blank(target.engine_version, keys)
    target.model = blank(target.model, keys)
    places = {"--label": options.output.label or "", "the URL": " ".join(urls)}
    stays = [
        f"{name} holds a part of a key, and is written down as it is"
        for name, text in places.items()
        if any(key.lower() in text.lower() for key in keys)
    ]
    notes = [
        f"{page}: the connection was cut {times}×; the probe was sent again"
        for page, times in cuts.items()
    ]
    return ProbedServer(
        target,
        vocabulary,
        request,
        headers,
        addresses,
        keys,
        stays + [blank(note, keys) for note in notes + missed],
        adapters,
    )


def _blank_keys(value: Any, keys: list[str]) -> Any:
    return msgspec.json.decode(blank_bytes(msgspec.json.encode(value), keys))


def plan_for(
    planner: Planner, draft: Plan, server: ProbedServer, client: ClientOptions
) -> tuple[Plan, list[float]]:
    """Make the plan that the server takes; and estimate how long a request of each cell will take
    there, in seconds, where that decides how many there are. `draft`: made without knowing the
    server. Raises InputError.
    """
    workload, limit = planner.options.workload, server.target.max_model_tokens
    if workload.trace is not None or workload.agents is not None:
        return planner.plan(limit, server.target.overhead_tokens + 1), []
    if workload.dataset is not None and workload.turns is None and limit is not None:
        with count_long_prompts(client, server) as beyond:
            return planner.plan(limit, beyond=beyond), []
    expected_s: list[float] = []
    if planner.chooses_length and workload.dataset is None:
        expected_s = answer_times_s(draft, server, client.proxy)
    elif workload.text is None:
        return draft, []
    if workload.text is None:
        return planner.plan(e2e_s=expected_s), expected_s
    patience = PATIENCE._replace(spare_page_s=60.0, spare_pages_s=math.inf)
    with Server(server.target.url, server.headers, client.proxy, patience) as connection:
        words = server.vocabulary.words
        count = prompt_counter(connection, server.target, server.request, words, client.tokenizer)
        return planner.plan(e2e_s=expected_s, count=count), expected_s


def answer_times_s(plan: Plan, server: ProbedServer, proxy: str | None = None) -> list[float]:
    """Estimate how long a request of each cell will take, in seconds: LOADED times one alone, of
    the mean length, by small requests with prompts of the plan's kind. Nothing where the server
    does not answer these.
    """
    target = server.target
    writer = PromptWriter(
        server.vocabulary,
        seed=plan.seed,
        salt=os.urandom(6).hex(),
        chat=find_wire(target.endpoint).takes_messages,
    )
    wire = find_wire(target.endpoint)
    shapes = () if plan.pictures is None else plan.pictures.shapes
    pictures = PictureWriter(shapes, seed=plan.seed, salt="")
    requests = RequestBody(make_body(server.request), wire.spell)
    with Server(target.url, server.headers, proxy) as connection:
        # The first may find the server cold, and does not count.
        took_s = {}
        for index, tokens in enumerate((1, 1, _PROBE_TOKENS)):
            prompt = writer.write(plan.request(0, min(index, len(plan.rows(0)) - 1)))
            start_s = time.monotonic()
            try:
                body = pictures.fill(requests.render(prompt, tokens)).body
                answer = connection.post(make_path(server.request), body, wire.headers)
            except TargetError:
                return []
            if answer.status_code != 200:
                return []
            took_s[tokens] = time.monotonic() - start_s
    token_s = max(0.0, took_s[_PROBE_TOKENS] - took_s[1]) / (_PROBE_TOKENS - 1)
    outputs = (plan.output_tokens[plan.span(cell)] for cell in range(len(plan.cells)))
    return [
        LOADED * (took_s[1] + token_s * max(0.0, float(tokens.mean()) - 1)) for tokens in outputs
    ]


def check_client(options: ClientOptions) -> None:
    """Refuse what cannot be, before anything is started. Raises InputError, which names the
    flag."""
    limit = 4 * max(4, os.cpu_count() or 1)
    if options.ray is not None:
        limit = 1024  # its machines have more processors than this one
    if options.workers is not None and not 1 <= options.workers <= limit:
        raise InputError(
            f"--workers {options.workers}: must be from 1 to {limit} on this host; one per core is"
            " enough"
        )
    if options.proxy is not None:
        check_proxy(options.proxy)
    if options.ray is not None:
        _check_ray(options.ray)


def check_clock(client: ClientOptions, urls: Sequence[str]) -> None:
    """Refuse packets as the clock where they cannot be. Raises InputError."""
    if client.clock != "packets":
        return
    if any(url.lower().startswith("https:") for url in urls):
        raise InputError(
            "--clock packets: with https a packet does not tell which events it brought; measure"
            " over http, or leave it out"
        )
    if client.ray is not None:
        raise InputError("--clock packets and --ray: packets are read on this machine; give one")
    check_packets()


def _check_ray(address: str) -> None:
    """Ask for the cluster's head; Ray itself tries for minutes. Raises InputError."""
    require("ray", "ray", "--ray")
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(
            f"--ray {address}: no Ray cluster answers there ({error}); give the host:port of its"
            " head"
        ) from error


@contextlib.contextmanager
def count_long_prompts(client: ClientOptions, server: ProbedServer) -> Iterator[Beyond]:
    """Count the tokens of prompts that a server may not take; see planning.Beyond. Raises
    InputError.

    No tokenizer makes more tokens of a text than it has bytes: only what might be too long so is
    counted.
    """
    target, counts = server.target, dict[str, int | None]()
    with Server(target.url, server.headers, client.proxy) as connection:
        counter = cache(lambda: token_counter(connection, target, client.tokenizer))

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


def headers_of(
    named: Sequence[tuple[str, str]], endpoint: str | None = None
) -> list[tuple[str, str]]:
    """Return the headers of every request: those given, and a key that the environment holds, in
    the header of the API `endpoint` too, and in that alone where it is the API's own. Raises
    InputError."""
    headers = list(named)
    check_headers(headers, "--header")
    key_header = None if endpoint is None else find_wire(endpoint).key
    variables = _KEYS_OF_ALL if key_header is None else (key_header[1], *_KEYS_OF_ALL)
    variable = next((name for name in variables if os.environ.get(name)), None)
    given = {name.lower() for name, _ in headers}
    if variable is None or given & {
        "authorization",
        key_header[0] if key_header is not None else "",
    }:
        return headers
    key = os.environ[variable]
    if not re.fullmatch("[!-~]+", key):
        raise InputError(
            f"{' or '.join(variables)}: the key holds a space or a character that is not ASCII"
        )
    if key_header is not None:
        headers.append((key_header[0], key))
    if key_header is None or variable != key_header[1]:
        headers.append(("Authorization", f"Bearer {key}"))
    return headers


def class_headers(plan: Plan) -> list[list[tuple[str, str]]]:
    """Return the headers of each class of traffic; keys come from the environment. Raises
    InputError where a class has no key there."""
    found = []
    for of_class in plan.classes:
        headers = list(of_class.headers.items())
        if of_class.tenant is not None:
            headers.append((_FAIRNESS, of_class.tenant))
        if of_class.key_env is not None:
            key = os.environ.get(of_class.key_env)
            if not key or not key.isprintable() or not key.isascii():
                raise InputError(
                    f"class {of_class.name}: the variable {of_class.key_env} holds no key of"
                    " printable ASCII; set it"
                )
            headers.append(("Authorization", f"Bearer {key}"))
        found.append(headers)
    return found


def check_priorities(plan: Plan, target: Target) -> None:
    """Raise InputError for a class's priority that the server does not read."""
    for of_class in plan.classes:
        if of_class.priority is not None and not attach.priority_sign_of(target):
            raise InputError(
                f"class {of_class.name}: priority: nothing is known of priorities in"
                f" {target.engine or 'this server'}; leave it out, or send what the server reads"
                " with headers"
            )


def salt_of(text: str) -> str | None:
    """Return what makes a run's prompts new, or the same again; None: nothing does. Raises
    InputError."""
    if text == "none":
        return None
    if not re.fullmatch("[0-9A-Za-z._-]{1,64}", text):
        raise InputError("--salt: write auto, none, or up to 64 letters, digits, dots and dashes")
    return os.urandom(6).hex() if text == "auto" else text


def check_plan(plan: Plan, server: ProbedServer, salt: str | None, workers: int | None) -> None:
    """Refuse before the run what the server, or this host with so many `workers`, would refuse in
    it. Raises InputError.
    """
    target, longest = server.target, longest_tokens(plan)
    if plan.inputs is not None:
        _check_inputs(plan.inputs, server, longest)
    elif not plan.has_texts:
        firsts = ((plan.turn <= 0) & (plan.phase != CHECK)).nonzero()[0]
        row = int(firsts[plan.input_tokens[firsts].argmin()])
        cell = int(plan.cell[row])
        writer = PromptWriter(
            server.vocabulary,
            seed=plan.seed,
            salt=salt,
            chat=find_wire(target.endpoint).takes_messages,
        )
        writer.write(plan.request(cell, row - plan.rows(cell).start))
    if (
        target.max_model_tokens is not None
        and longest > target.max_model_tokens
        and not (plan.has_texts or plan.inputs)
    ):
        row = int((plan.input_tokens + plan.output_tokens).argmax())
        problem = (
            f"--input {plan.input_tokens[row]} and --output {plan.output_tokens[row]}: together"
            " they are"
        )
        if plan.phase[row] == CHECK:
            problem = f"--check: an answer of {plan.output_tokens[row]} tokens (--check-tokens) is"
        elif plan.has_sessions:
            problem = f"--turns: a session grows to {longest} tokens,"
        raise InputError(
            f"{problem} beyond the server's context of {target.max_model_tokens} tokens; "
            "ask for less, or start the server with a longer context"
        )
    check_open_files(plan, workers or choose_workers(plan.cells))


def _check_inputs(inputs: Inputs, server: ProbedServer, longest: int) -> None:
    """Refuse texts that are shorter than what the server adds, or longer than its model takes; one
    that cuts them is left to tell. Raises InputError."""
    limit, added = server.target.max_model_tokens, server.target.overhead_tokens
    least = int(inputs.tokens.min())
    if not inputs.has_queries and least <= added:
        raise InputError(
            f"--input {least}: the server adds {added} tokens to every input; ask for at least"
            f" {added + 1}"
        )
    if limit is None or longest <= limit or cuts_inputs(server.target, server.request):
        return
    flags = "--input and --document" if inputs.has_queries else "--input"
    raise InputError(
        f"{flags}: texts of {longest} tokens are beyond the {limit} that the model takes; ask for"
        " less, or have the server cut them with --extra-body"
    )


def check_open_files(plan: Plan, workers: int) -> None:
    """Refuse more connections than each of the `workers` may have open files. Raises InputError.

    How many an open loop has at once is not known before, but where it is capped: at most the cap,
    or its requests.
    """
    largest = 0.0
    for cell, load in enumerate(plan.cells):
        connections = load.value if not load.is_open else load.max_concurrency or 0
        if not load.is_closed and not plan.cyclic(cell):
            connections = min(
                connections, load.max_concurrency or connections, len(plan.rows(cell))
            )
        largest = max(largest, connections)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if limit != resource.RLIM_INFINITY and largest / workers + 64 > limit:
        problem = (
            f"{largest:g} connections at once" if largest else "even without a connection too few"
        )
        raise InputError(f"{problem}: the limit of open files is {limit}; raise it with ulimit -n")
