"""The options of a run, each written once: its name, type, unit, default and help text.

From these fields come the command line (`commands/flags.py`), what `loadstone.bench()` and `loadstone.simulate()`
take, and a JSON Schema. A field is named as its flag, with _ for -; where it is a time in seconds, _s follows.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec

from loadstone.core.errors import InputError
from loadstone.workload import option_values as values
from loadstone.workload.flag_names import no_such_option
from loadstone.workload.request import Endpoint, Route, Timeouts

ARGUMENT, TARGET, WORKLOAD, LOAD, SIMULATOR, RUN = "Arguments", "Target", "Workload", "Load", "Simulator", "Run"
DEPLOYMENT, ENGINE, SEARCH = "Deployment", "Engine", "Search"
"""Headings of a help text, in their order there; ARGUMENT: of what stands without a flag."""
_OF_A_SERVER = frozenset((
    "url", "salt", "flush_cache", "sampling_seed", "stop", "structured", "stream", "workers", "ray", "gpu_telemetry",
    "gpu_metrics", "stop_when", "max_errors", "min_duration_s", "max_duration_s",
))  # fmt: skip
"""Options, beside those under TARGET, that a simulation takes and that do nothing there."""
HEADINGS = (ARGUMENT, DEPLOYMENT, ENGINE, TARGET, WORKLOAD, LOAD, SIMULATOR, SEARCH, RUN)
Reader = Callable[[Any, str], Any]


class Limits(NamedTuple):
    """The numbers that an option may be, infinity only where `most` says so; and the same in `words`."""

    words: str
    least: float = -math.inf
    above: float = -math.inf
    most: float = sys.float_info.max

    def allow(self, value: float) -> bool:
        return self.above < value <= self.most and self.least <= value


ABOVE_0 = Limits("must be above 0", above=0)
SHARE = Limits("must be above 0 and at most 1", above=0, most=1)
_TEMPERATURE = Limits("must be 0 (greedy) or above", 0)
AT_LEAST_0, AT_LEAST_1 = Limits("must be 0 or more", 0), Limits("must be at least 1", 1)


class Flag(NamedTuple):
    """What the command line knows of an option.

    heading   under which `--help` lists it
    help      what it says there
    default   what it shows as the default: text, or the value itself
    read      from a text or a notebook's value to the field's, by value and name; None: the value as it is
    name      without -- and with _ for -; "" stands for the field's, without _s
    argument  its name as an argument of the command, where it has no flag there
    limits    the numbers that it may be
    """

    heading: str
    help: str
    default: Any = None
    read: Reader | None = None
    name: str = ""
    argument: str | None = None
    limits: Limits | None = None


def flag(heading: str, help: str, default: Any = None, read: Reader | None = None, **more: Any) -> Any:
    """A field that is an option; see Flag. A `default` that is text is read; {} makes a new one for each."""
    metadata = {"flag": Flag(heading, help, None if default in ((), {}) else default, read, **more)}
    if default == {}:
        return dataclasses.field(default_factory=dict, metadata=metadata)
    value = read(default, "") if read is not None and isinstance(default, str) else default
    return dataclasses.field(default=value, metadata=metadata)


@dataclasses.dataclass(kw_only=True)
class Flags:
    """A class of options: its fields are made by flag()."""


@dataclasses.dataclass(kw_only=True)
class Options(Flags):
    """What to measure. The options of `loadstone bench`:"""

    url: str | Sequence[str] | None = flag(
        ARGUMENT,
        "URL of a server; several URLs: a fleet; with --sim: a deployment, or fixed times, ttft=30ms,itl=5ms",
        read=values.urls,
        argument="target",
    )
    sim: str | None = flag(
        TARGET,
        f"measure an embedded simulated engine, as without a URL [default: {values.DEFAULT_SIM}]",
        read=values.simulated,
    )
    deployment: str | None = flag(
        TARGET, "what the server or fleet runs, for prices, roofline, calibrate: llama-3.1-70b@8xh200/tp8"
    )
    engine: Literal["llama.cpp"] | None = flag(TARGET, "start this engine with a small random model and measure it")
    launch: str | None = flag(
        TARGET, "start this deployment here, measure it, and stop it: llama-3.1-8b@1xh100/engine=vllm"
    )
    model: str | None = flag(
        TARGET,
        "model name to request [default: the server's first]; with --launch: what the engine loads, a path or an id",
    )
    arguments: Sequence[tuple[str, str | None]] = flag(
        TARGET, "with --launch: a flag of the engine, FLAG or FLAG=VALUE", (), values.engine_flags, name="argument"
    )
    environment: Sequence[tuple[str, str]] = flag(
        TARGET, "with --launch: NAME=VALUE in the engine's environment", (), values.variables, name="env"
    )
    program: str | None = flag(TARGET, "with --launch: path of the engine's program [default: found on PATH]")
    container: Literal["docker", "podman", "enroot"] | None = flag(
        TARGET, "with --launch: start it in a container, run by this"
    )
    image: str | None = flag(TARGET, "with --launch: image of the container, e.g. vllm/vllm-openai:v0.33.0")
    timeout_ready_s: float = flag(
        TARGET, "with --launch: longest time until the engine serves", "30m", values.seconds, limits=ABOVE_0
    )
    endpoint: Endpoint | None = flag(TARGET, "API to use [default: what the server offers, completions first]")
    route: Route | None = flag(
        TARGET, "how to spread requests over a fleet [default: round-robin; for sessions: sticky]"
    )
    tokenizer: str | None = flag(
        TARGET, "tokenizer.json, or its folder, to count prompt tokens [default: the server is asked]"
    )
    headers: Sequence[tuple[str, str]] = flag(
        TARGET, "'Name: value', sent with every request", (), values.headers, name="header"
    )
    extra_body: Mapping[str, Any] = flag(TARGET, "JSON object merged into every request body", {}, values.json_object)
    timeout_connect_s: float = flag(TARGET, "longest time to connect", "10s", values.seconds, limits=ABOVE_0)
    timeout_first_s: float = flag(
        TARGET, "longest time from sending to the first output", "600s", values.seconds, limits=ABOVE_0
    )
    timeout_idle_s: float = flag(TARGET, "longest time between outputs", "300s", values.seconds, limits=ABOVE_0)
    timeout_total_s: float = flag(
        TARGET, "longest time from sending to the end", "6h", values.seconds, limits=ABOVE_0
    )
    proxy: str | None = flag(TARGET, "HTTP proxy, http://host:port; proxies in the environment are ignored")

    input: str | None = flag(
        WORKLOAD,
        "prompt tokens: 1024, 8k, uniform:512:1024, normal:1024:128, lognormal:1024:0.5 [default: 1024]",
        read=values.text,
    )
    output: str | None = flag(
        WORKLOAD, "output tokens, in the same forms [default: 128; a dataset's own]", read=values.text
    )
    range_ratio: float = flag(WORKLOAD, "draw lengths uniformly from [ratio·n, n]", 1.0, limits=SHARE)
    prefix: int = flag(
        WORKLOAD, "tokens at the start of each prompt that its group shares, e.g. 2000", "0", values.tokens
    )
    prefix_groups: int = flag(WORKLOAD, "groups of prompts; prompts of a group share a prefix", 1, limits=AT_LEAST_1)
    dataset: Path | None = flag(
        WORKLOAD, "file of prompts: ShareGPT, OpenAI messages or plain; JSONL, JSON or text", read=values.path
    )
    turns: str | None = flag(
        WORKLOAD,
        "conversations of this many turns, e.g. 4 or uniform:2:6; loads then count conversations",
        read=values.text,
    )
    think_time: str | None = flag(
        WORKLOAD, "pause between turns: 2s, uniform:1s:3s, exponential:2s, lognormal:2s:0.5", read=values.text
    )
    trace: Path | None = flag(
        WORKLOAD, "replay this trace at its own times: Azure, Mooncake, BurstGPT, plain CSV, JSONL", read=values.path
    )
    time_scale: Sequence[float] = flag(
        WORKLOAD,
        "multiply a trace's times by this; 0.1: ten times as fast; a list: a cell each [default: 1]",
        (),
        values.scales,
    )
    trace_window_s: tuple[float, float] | None = flag(
        WORKLOAD, "replay only FROM:TO of a trace, e.g. 0s:10m", read=values.window
    )
    trace_sample: float | None = flag(WORKLOAD, "replay this share of a trace's requests, e.g. 0.1", limits=SHARE)
    length_scale: float | None = flag(
        WORKLOAD, "multiply a trace's lengths in tokens by this; prefixes stay shared", limits=ABOVE_0
    )
    skip_bad: bool = flag(WORKLOAD, "leave out bad lines of a trace or dataset, and report how many", False)
    plan: Path | None = flag(WORKLOAD, "replay the plan of a run folder, or a plan.parquet", read=values.path)
    seed: int = flag(
        WORKLOAD,
        "seed of the plan: same seed, same plan",
        0,
        limits=Limits("must be 0 or more, and below 2^63", 0, most=(1 << 63) - 1),
    )
    salt: str = flag(
        WORKLOAD, "what makes prompts new to every prefix cache: auto, none, or an earlier run's, to repeat", "auto"
    )
    flush_cache: bool | None = flag(
        WORKLOAD, "empty the engine's prefix cache before each cell [default: if --salt makes no new prompts]"
    )
    temperature: float | None = flag(WORKLOAD, "sampling temperature [default: the server's]", limits=_TEMPERATURE)
    top_p: float | None = flag(WORKLOAD, "nucleus sampling [default: the server's]", limits=SHARE)
    sampling_seed: int | None = flag(WORKLOAD, "sampling seed for the engine")
    stop: Sequence[str] = flag(WORKLOAD, "stop answers at this text (may be repeated)", (), values.texts)
    structured: str | None = flag(WORKLOAD, "constrain answers: json-schema:FILE, grammar:FILE or regex:PATTERN")
    stream: bool = flag(WORKLOAD, "stream answers, or ask for them in one piece (E2E only)", True)

    concurrency: Sequence[int] = flag(
        LOAD, "closed loop: requests under way at a time; a list: a cell each [default: 1,4,16]", (), values.counts
    )
    rate: Sequence[float] = flag(
        LOAD, "open loop: requests/s; a list: a cell each; inf: all of --requests at once", (), values.numbers
    )
    burstiness: float = flag(
        LOAD,
        "spread of open-loop arrivals: 1 is Poisson, below 1 burstier, above 1 more even, inf constant",
        1.0,
        limits=Limits("must be above 0 (1 is Poisson, inf constant)", above=0, most=math.inf),
    )
    ramp: str | None = flag(
        LOAD, "rate in pieces: 1:20:60s,20:30s (1 to 20 in 60 s, then 20 for 30 s); or concurrency=1:64:60s"
    )
    max_concurrency: int | None = flag(
        LOAD, "cap on an open loop's requests under way; waiting for a slot counts as latency", limits=AT_LEAST_1
    )
    requests: Sequence[int] = flag(
        LOAD,
        "measured requests per cell; a list with --rate inf [default: 8 to 16 × concurrency; a minute of arrivals]",
        (),
        values.counts,
    )
    requests_per_rate: float | None = flag(LOAD, "measured requests per cell: this × the rate")
    duration_s: float | None = flag(
        LOAD, "measure each cell for this long instead, e.g. 60s", read=values.seconds, limits=ABOVE_0
    )
    grace_s: float = flag(LOAD, "after --duration: time for requests under way to end", "30s", values.seconds)
    stop_when: str | None = flag(
        LOAD,
        "end a cell once all of these are known so well, with 95 % confidence: tpot_p50±2%,ttft_p99±10%; or whether "
        "bounds hold, ttft_p99<500ms; without --requests or --duration it goes on until then, or for --max-duration",
    )
    find_max: str | None = flag(
        LOAD,
        "search the highest load at which these bounds hold, ttft_p99<500ms,tpot_p99<30ms, by --rate or, with "
        "--concurrency, by requests under way; for --max-duration in all [default: 10m]",
        read=values.text,
    )
    max_errors: float | None = flag(
        LOAD,
        "end a cell once more than this share of its requests fails, e.g. 5%",
        read=values.share,
        limits=Limits("must be from 0 to below 1", 0, most=0.999),
    )
    min_duration_s: float | None = flag(
        LOAD, "shortest time of a cell before --stop-when ends it", read=values.seconds, limits=ABOVE_0
    )
    max_duration_s: float | None = flag(
        LOAD, "longest time of a cell [default: 10m with --stop-when alone]", read=values.seconds, limits=ABOVE_0
    )
    warmup: int | None = flag(
        LOAD,
        "requests before the measured ones, or 0 [default: the concurrency; a second of the rate, at most a tenth]",
        limits=AT_LEAST_0,
    )

    slo: str | None = flag(
        RUN,
        "bounds on each request (goodput, attainment): ttft<500ms,tpot<30ms,e2e<5s; or on a percentile: ttft_p99<1s",
    )
    dialect: str | None = flag(
        RUN, "another tool's numbers too: vllm, sglang, sglang-oai, aiperf, guidellm, inference-perf, llmperf"
    )
    workers: int | None = flag(RUN, "client processes [default: as many as the load needs]")
    ray: str | None = flag(
        RUN, "spread the client processes over the machines of this Ray cluster, host:port of its head"
    )
    gpu_telemetry: bool | None = flag(
        RUN, "read this machine's NVIDIA GPUs once a second [default: if a server runs on this machine]"
    )
    gpu_metrics: Sequence[str] = flag(
        RUN, "exporters of GPU metrics on the servers' machines (DCGM, AMD), e.g. node:9400", (), values.addresses
    )
    label: str | None = flag(
        RUN, "name of this setup in reports and comparisons, e.g. 'no prefix cache'", read=values.text
    )
    out: Path = flag(RUN, "folder for the run folders", "runs", values.path)
    command: Sequence[str] = ()
    """The command line, for run.json; secrets in it are blanked."""

    @property
    def urls(self) -> list[str]:
        return [] if self.url is None else [self.url] if isinstance(self.url, str) else list(self.url)

    @property
    def timeouts(self) -> Timeouts:
        return Timeouts(self.timeout_connect_s, self.timeout_first_s, self.timeout_idle_s, self.timeout_total_s)


@dataclasses.dataclass(kw_only=True)
class SimulateOptions(Options):
    """What to simulate. Options of `bench` that are about a server do nothing here. Those of `loadstone simulate`:"""

    deployment: str = flag(
        ARGUMENT,
        "what to simulate: MODEL[:weights]@N×GPU[/tp8,engine=vllm], e.g. llama-3.1-70b@8xh200; braces, in quotes, "
        "give several and a ranking: 'llama-3.1-70b@4xh200/tp={2,4}'",
        dataclasses.MISSING,
        argument="deployment",
    )
    profile: str | None = flag(
        SIMULATOR, "coefficients by `calibrate`: name or file [default: the shipped]", read=values.name_or_path
    )
    offline: bool = flag(
        SIMULATOR, "batches through the engine's own interface, without server and client; with --rate inf", False
    )
    acceptance: float | None = flag(
        SIMULATOR, "speculative decoding: probability that a draft token is accepted [default: 0.7]"
    )
    draws: int | None = flag(
        SIMULATOR,
        "simulations with varied coefficients, for the 80 % intervals; 0: no intervals [default: 24]",
        limits=Limits("must be 0 (no intervals) to 1,000", 0, most=1000),
    )
    model: str | None = flag(RUN, "model name kept in run.json; the deployment decides what is simulated")
    temperature: float | None = flag(
        RUN, "kept in run.json, as in bench; changes no simulated time", limits=_TEMPERATURE
    )
    top_p: float | None = flag(RUN, "kept in run.json, as in bench; changes no simulated time", limits=SHARE)


Kind = TypeVar("Kind", bound=Flags)


_flags: dict[type[Flags], dict[str, Flag]] = {}


def flags_of(kind: type[Flags]) -> dict[str, Flag]:
    """By field, in the order of the help text. The same dict each time: it is read, and not changed."""
    if kind not in _flags:
        flags = {}
        for field in dataclasses.fields(kind):
            if (each := field.metadata.get("flag")) is not None:
                flags[field.name] = each._replace(name=each.name or field.name.removesuffix("_s"))
        _flags[kind] = dict(sorted(flags.items(), key=lambda item: HEADINGS.index(item[1].heading)))
    return _flags[kind]


def is_for_server(field: str, heading: str) -> bool:
    """Whether only a live server has an option: simulations take it and do nothing."""
    return heading == TARGET or field in _OF_A_SERVER


def changed_flags(options: Options, *headings: str) -> list[str]:
    """The flags under `headings`, with - for _, that say something else than they would by being left out."""
    defaults = Options()
    changed = []
    for field, each in flags_of(Options).items():
        value = getattr(options, field)
        differs = (tuple(value) if isinstance(value, list) else value) != getattr(defaults, field)
        if differs and each.heading in headings and not is_for_server(field, each.heading):
            changed.append(each.name.replace("_", "-"))
    return changed


def check_limits(options: Flags) -> None:
    """Raises InputError for a number beyond the limits of its option."""
    for field, each in flags_of(type(options)).items():
        value = getattr(options, field)
        if value is not None and each.limits is not None and not each.limits.allow(value):
            shown = f"{value:g}" if isinstance(value, float) else value
            raise InputError(f"--{each.name.replace('_', '-')} {shown}: {each.limits.words}")


def options_of(given: Mapping[str, Any], kind: type[Kind]) -> Kind:
    """Options by their flags' names (with _ for -), or by those of the fields, each as a flag's text or as a value.

    A time that is a number is in seconds; one value may stand for a list of it; None is an option left out.
    Raises InputError, one line, where there is no such option, or a value is none of its kind.
    """
    flags = flags_of(kind)
    field_of = {each.name: field for field, each in flags.items()}
    field_of |= {field.name: field.name for field in dataclasses.fields(kind)}
    fields: dict[str, Any] = {}
    for name, value in given.items():
        field = field_of.get(name)
        if field is None:
            if name in ("json", "strict"):
                raise InputError(
                    f"{name}: of the command alone; here its document comes back, with a verdict in each cell"
                )
            raise no_such_option(
                name, [each.name for each in flags.values()], "bench" if issubclass(kind, Options) else "size"
            )
        if field in fields:
            raise InputError(f"{name}: given twice, by two names; give one")
        number = values.plain(value)
        read = flags[field].read if field in flags else None
        if value is not None:
            fields[field] = number if read is None else read(number, f"--{name.replace('_', '-')}")
        elif field in flags and flags[field].default is dataclasses.MISSING:
            fields[field] = None
    try:
        return msgspec.convert(fields, kind, strict=False)
    except UnicodeEncodeError:
        raise InputError("an option holds half of a surrogate pair, which is no text; give text") from None
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$.")
        field = place.rstrip("`").partition("[")[0]
        if problem.startswith("Invalid enum value"):
            choices = [choice for part in get_args(get_type_hints(kind)[field]) for choice in get_args(part)]
            problem += f"; choose one of {', '.join(choices)}"
        name = flags[field].argument or f"--{flags[field].name.replace('_', '-')}"
        raise InputError(f"{name}: {problem}") from error


def json_schema(kind: type[Options]) -> dict[str, Any]:
    """A JSON Schema of the options by their flags' names, as a file of them has them: each as a value of its type or
    as the flag's text.
    """
    flags, hints = flags_of(kind), get_type_hints(kind)
    types, definitions = msgspec.json.schema_components(
        [hints[field] for field in flags], schema_hook=lambda path: {"type": "string"}
    )
    properties = {}
    for each, of_type in zip(flags.values(), types, strict=True):
        schema = of_type if each.read is None else {"anyOf": [of_type, {"type": ["string", "number", "boolean"]}]}
        shown = {} if each.default in (None, dataclasses.MISSING) else {"default": each.default}
        properties[each.name] = schema | shown | _limits_schema(each.limits) | {"description": each.help}
    required = [each.name for each in flags.values() if each.default is dataclasses.MISSING]
    return {
        "type": "object", "properties": properties, "required": required, "additionalProperties": False,
        "$defs": definitions,
    }  # fmt: skip


def _limits_schema(limits: Limits | None) -> dict[str, float]:
    if limits is None:
        return {}
    keys = {"minimum": limits.least, "exclusiveMinimum": limits.above, "maximum": limits.most}
    return {key: value for key, value in keys.items() if abs(value) < sys.float_info.max}


def list_in_docstring(kind: type[Kind]) -> type[Kind]:
    """A decorator: the docstring of the class, for help(), ends with its options."""
    lines = (f"{each.name:18} {each.help}" for each in flags_of(kind).values())
    kind.__doc__ = "\n    ".join((f"{kind.__doc__}\n", *lines))
    return kind


list_in_docstring(Options)
list_in_docstring(SimulateOptions)
