"""The options of a run, each written once: its name, type, unit, default and help text.

From these fields come the command line (`commands/flags.py`), what `loadstone.bench()` and
`loadstone.simulate()` take, and a JSON Schema. A field is named as its flag, with _ for -; where it
is a time in seconds, _s follows. Options lie in groups, and users name them without their group:

    Options.read(rate="4,8", input="512").load.rate == [4.0, 8.0]
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeVar, get_args, get_type_hints

import msgspec

from loadstone.core.electricity import HELP, Electricity, parse_electricity
from loadstone.core.errors import InputError
from loadstone.core.plan import POOLING_TASKS, PoolingTask
from loadstone.workload import option_values as values
from loadstone.workload.flag_names import no_such_option
from loadstone.workload.request import History, Route, Sampling, Timeouts
from loadstone.workload.scenarios import complete

ARGUMENT, TARGET, WORKLOAD = "Arguments", "Target", "Workload"
LOAD, SIMULATOR, RUN = "Load", "Simulator", "Run"
DEPLOYMENT, ENGINE, WHERE = "Deployment", "Engine", "Where"
SEARCH, BATCH = "Search", "Batch"
"""Headings of a help text; ARGUMENT is for what stands without a flag."""
HEADINGS = (
    ARGUMENT,
    BATCH,
    DEPLOYMENT,
    ENGINE,
    WHERE,
    TARGET,
    WORKLOAD,
    LOAD,
    SIMULATOR,
    SEARCH,
    RUN,
)
"""Their order."""
Reader = Callable[[Any, str], Any]


class Limits(NamedTuple):
    """The numbers that an option may be, as a JSON Schema bounds them, and the same in `words`.
    Infinity is allowed only where `maximum` is."""

    words: str
    minimum: float = -math.inf
    exclusive_minimum: float = -math.inf
    maximum: float = sys.float_info.max

    def allow(self, value: float) -> bool:
        return self.exclusive_minimum < value <= self.maximum and self.minimum <= value

    def schema(self) -> dict[str, float]:
        """Return the bounds as a JSON Schema has them."""
        bounds = {
            "minimum": self.minimum,
            "exclusiveMinimum": self.exclusive_minimum,
            "maximum": self.maximum,
        }
        return {name: bound for name, bound in bounds.items() if abs(bound) < sys.float_info.max}


ABOVE_0 = Limits("must be above 0", exclusive_minimum=0)
SHARE = Limits("must be above 0 and at most 1", exclusive_minimum=0, maximum=1)
_TEMPERATURE = Limits("must be 0 (greedy) or above", 0)
AT_LEAST_0, AT_LEAST_1 = Limits("must be 0 or more", 0), Limits("must be at least 1", 1)


class Flag(NamedTuple):
    """An option as the command line knows it.

    heading   under which `--help` lists it
    help      what it says there
    default   what it shows as the default: text, or the value itself
    read      from a text or a notebook's value to the field's, by value and name; None: the value
              as it is
    name      without -- and with _ for -; "" stands for the field's, without _s
    argument  its name as an argument of the command, where it has no flag there
    limits    the numbers that it may be
    short     a second name of one letter, with its -
    is_switch whether the command line gives it without a value
    """

    heading: str
    help: str
    default: Any = None
    read: Reader | None = None
    name: str = ""
    argument: str | None = None
    limits: Limits | None = None
    short: str = ""
    is_switch: bool = False

    @property
    def dashed(self) -> str:
        """The name as users of the command line write it, without --."""
        return self.name.rstrip("_").replace("_", "-")


def flag(
    heading: str, help: str, default: Any = None, read: Reader | None = None, **others: Any
) -> Any:
    """Make a field that is an option; see Flag. A `default` that is text is read; {} makes a new
    one for each."""
    shown = None if default in ((), {}) else default
    metadata = {"flag": Flag(heading, help, shown, read, **others)}
    if default == {}:
        return dataclasses.field(default_factory=dict, metadata=metadata)
    value = read(default, "") if read is not None and isinstance(default, str) else default
    return dataclasses.field(
        default=tuple(value) if isinstance(value, list) else value, metadata=metadata
    )


def group(kind: type[Flags], heading: str = "", wording: Mapping[str, str] | None = None) -> Any:
    """Make a field that is a group of options.

    `wording`: fields of the group that are options here, each with its help, in which {} stands for
    what the group says; None: all of them. `heading`: theirs here; "": as in the group.
    """
    metadata = {"group": kind, "heading": heading, "wording": wording}
    return dataclasses.field(default_factory=kind, metadata=metadata)


@dataclasses.dataclass(kw_only=True)
class Flags:
    """Options: each field is one, made by flag(), or a group of them, made by group()."""

    @classmethod
    def read(cls, **given: Any) -> Self:
        """Make options as options_of() does, whatever their groups. Raises InputError."""
        return options_of(given, cls)


# --- groups of options ----------------------------------------------------------------------------


@dataclasses.dataclass(kw_only=True)
class TargetOptions(Flags):
    """The server to measure, or the engine to start for it."""

    url: str | Sequence[str] | None = flag(
        ARGUMENT,
        "URL of a server; several URLs: a fleet; with --sim: a deployment, or fixed times,"
        " ttft=30ms,itl=5ms",
        read=values.urls,
        argument="target",
    )
    sim: str | None = flag(
        TARGET,
        f"measure an embedded simulated engine, as without a URL [default: {values.DEFAULT_SIM}]",
        read=values.simulated,
        is_switch=True,
    )
    deployment: str | None = flag(
        TARGET,
        "what the server or fleet runs, for prices, roofline, calibrate: llama-3.1-70b@8xh200/tp8",
    )
    engine: Literal["llama.cpp"] | None = flag(
        TARGET, "start this engine with a small random model and measure it"
    )
    launch: str | None = flag(
        TARGET,
        "start this deployment here, measure it, and stop it: llama-3.1-8b@1xh100/engine=vllm",
    )

    @property
    def urls(self) -> list[str]:
        if self.url is None:
            return []
        return [self.url] if isinstance(self.url, str) else list(self.url)


@dataclasses.dataclass(kw_only=True)
class StartOptions(Flags):
    """How an engine is started, wherever Loadstone starts one: the options of `loadstone launch`;
    other commands have some of them."""

    model: str | None = flag(
        ENGINE, "what the engine loads: a path or an id [default: the deployment's model]"
    )
    served_name: str | None = flag(ENGINE, "name that requests use for the model")
    arguments: Sequence[tuple[str, str | None]] = flag(
        ENGINE,
        "a flag of the engine's own, passed as it is: FLAG or FLAG=VALUE",
        (),
        values.engine_flags,
        name="argument",
        short="-a",
    )
    environment: Sequence[tuple[str, str]] = flag(
        ENGINE, "NAME=VALUE in the engine's environment", (), values.variables, name="env"
    )
    program: str | None = flag(ENGINE, "path of the engine's program [default: found on PATH]")
    host: str = flag(WHERE, "address to listen on, without nodes and containers", "127.0.0.1")
    port: int | None = flag(WHERE, "port to listen on [default: the engine's own]")
    nodes: Sequence[str] = flag(
        WHERE,
        "address of a node, rank 0 first; once for each of several nodes",
        (),
        values.texts,
        name="node",
    )
    container: Literal["docker", "podman", "enroot", "pyxis", "apptainer"] | None = flag(
        WHERE, "start it in a container, run by this"
    )
    image: str | None = flag(WHERE, "image of the container, e.g. vllm/vllm-openai:v0.33.0")
    cache: Path = flag(
        WHERE, "folder of models, mounted into the container", "~/.cache/huggingface", values.path
    )
    timeout_ready_s: float = flag(
        WHERE, "longest time until the engine serves", "30m", values.seconds, limits=ABOVE_0
    )


_TO_LAUNCH = dict.fromkeys(
    (
        "model",
        "served_name",
        "arguments",
        "environment",
        "program",
        "host",
        "port",
        "nodes",
        "container",
        "image",
        "cache",
    ),
    "{}",
)
_TO_BENCH = {
    "model": (
        "model name to request [default: the server's first]; with --launch: what the engine loads,"
        " a path or an id"
    ),
    "arguments": "with --launch: a flag of the engine, FLAG or FLAG=VALUE",
} | dict.fromkeys(
    ("environment", "program", "container", "image", "timeout_ready_s"), "with --launch: {}"
)
_TO_OFFLINE = {
    "model": "{}",
    "arguments": "an argument of the engine's own, passed as it is: NAME=VALUE",
    "environment": "{}",
}
"""What the commands say of the options of StartOptions that they have."""


@dataclasses.dataclass(kw_only=True)
class WorkloadOptions(Flags):
    """The requests, as the plan has them."""

    input: str | None = flag(
        WORKLOAD,
        "prompt tokens: 1024, 8k, uniform:512:1024, normal:1024:128, lognormal:1024:0.5 [default:"
        " 1024; 256 of an embedding's input, 32 of a query]",
        read=values.text,
    )
    inputs: str | None = flag(
        WORKLOAD,
        "with --endpoint embeddings: texts in a request, in the same forms [default: 1]",
        read=values.text,
    )
    documents: str | None = flag(
        WORKLOAD,
        "with --endpoint rerank or score: documents in a request [default: 10]",
        read=values.text,
    )
    document: str | None = flag(
        WORKLOAD, "tokens of each document, in the same forms [default: 256]", read=values.text
    )
    output: str | None = flag(
        WORKLOAD,
        "output tokens, in the same forms [default: 128; a dataset's own]",
        read=values.text,
    )
    range_ratio: float = flag(
        WORKLOAD, "draw lengths uniformly from [ratio·n, n]", 1.0, limits=SHARE
    )
    prefix: int = flag(
        WORKLOAD,
        "tokens at the start of each prompt that its group shares, e.g. 2000",
        "0",
        values.tokens,
    )
    prefix_groups: int = flag(
        WORKLOAD, "groups of prompts; prompts of a group share a prefix", 1, limits=AT_LEAST_1
    )
    dataset: Path | None = flag(
        WORKLOAD,
        "file of prompts: ShareGPT, OpenAI messages or plain; JSONL, JSON or text",
        read=values.path,
    )
    text: str | None = flag(
        WORKLOAD,
        "prompts of real text, cut to --input: a text, JSONL or Parquet file, or a folder; with"
        " PATH:COLUMN where the column is not clear",
        read=values.name_or_path,
    )
    images: str | None = flag(
        WORKLOAD,
        "pictures in each prompt, beside its text: 1, uniform:1:4 (docs/images.md)",
        read=values.text,
    )
    image_size: str | None = flag(
        WORKLOAD,
        "width x height of pictures in pixels: 512x512,1920x1080:0.2 (a weight), or"
        " uniform:256x256:1536x1536 [default: 1024x768]",
        read=values.text,
    )
    image_format: str | None = flag(
        WORKLOAD, "png, or jpeg with its quality [default: jpeg:85]", read=values.text
    )
    image_content: Literal["photo", "noise", "solid"] = flag(
        WORKLOAD, "what pictures compress like", "photo"
    )
    image_groups: int | None = flag(
        WORKLOAD,
        "so many different sets of pictures, which requests share [default: each is new]",
        limits=AT_LEAST_1,
    )
    image_place: Literal["first", "last"] = flag(
        WORKLOAD, "where pictures stand: before the text, or behind it", "first"
    )
    turns: str | None = flag(
        WORKLOAD,
        "conversations of this many turns, e.g. 4 or uniform:2:6; loads then count conversations",
        read=values.text,
    )
    think_time: str | None = flag(
        WORKLOAD,
        "pause between turns: 2s, uniform:1s:3s, exponential:2s, lognormal:2s:0.5",
        read=values.text,
    )
    trace: Path | None = flag(
        WORKLOAD,
        "replay this trace at its own times: Azure, Mooncake, BurstGPT, plain CSV, JSONL",
        read=values.path,
    )
    agents: Path | None = flag(
        WORKLOAD,
        "replay sessions of agents: Weka, Mooncake or Dynamo rows, MLPerf, OpenAI messages,"
        " OpenTelemetry spans; loads then count sessions",
        read=values.path,
    )
    answers: Literal["recorded", "live"] = flag(
        WORKLOAD,
        "with --agents: whose answers later prompts hold, the file's or the server's own",
        "recorded",
    )
    tool_time: str | None = flag(
        WORKLOAD,
        "with --agents: pauses between calls, a multiple of the recorded, 0.5x, or drawn: 2s,"
        " exponential:2s [default: 1x]",
        read=values.text,
    )
    time_scale: Sequence[float] = flag(
        WORKLOAD,
        "multiply a trace's times by this; 0.1: ten times as fast; a list: a load each"
        " [default: 1]",
        (),
        values.scales,
    )
    trace_window_s: tuple[float, float] | None = flag(
        WORKLOAD, "replay only FROM:TO of a trace, e.g. 0s:10m", read=values.window
    )
    trace_sample: float | None = flag(
        WORKLOAD, "replay this share of a trace's requests, e.g. 0.1", limits=SHARE
    )
    length_scale: float | None = flag(
        WORKLOAD,
        "multiply a trace's lengths in tokens by this; prefixes stay shared",
        limits=ABOVE_0,
    )
    mix: Path | None = flag(
        WORKLOAD,
        "YAML file of classes of traffic, each with its share, lengths and bounds (docs/mixed.md)",
        read=values.path,
    )
    classes: Sequence[str] = flag(
        WORKLOAD,
        "a class of traffic, 'chat,share=0.7,input=512,output=128,slo=ttft_p99<1s'; once for each",
        (),
        values.texts,
        name="class_",
    )
    without: str | None = flag(
        WORKLOAD,
        "of a mix: also run the same plan without this class, to see what it costs the others",
        read=values.text,
    )
    skip_bad: bool = flag(WORKLOAD, "leave out bad lines of a file, and report how many", False)
    scenario: str | None = flag(
        WORKLOAD,
        "published rules that set options and are checked: agentx@0.13, mlperf-agentic@ea332753,"
        " like:aa-agentperf",
        read=values.text,
    )
    plan: Path | None = flag(
        WORKLOAD, "replay the plan of a run folder, or a plan.parquet", read=values.path
    )
    seed: int = flag(
        WORKLOAD,
        "seed of the plan: same seed, same plan",
        0,
        limits=Limits("must be 0 or more, and below 2^63", 0, maximum=(1 << 63) - 1),
    )
    structured: str | None = flag(
        WORKLOAD, "constrain answers: json-schema:FILE, grammar:FILE or regex:PATTERN"
    )


@dataclasses.dataclass(kw_only=True)
class SamplingOptions(Flags):
    """The way in which an engine draws the tokens of answers."""

    temperature: float | None = flag(
        WORKLOAD, "sampling temperature [default: the server's]", limits=_TEMPERATURE
    )
    top_p: float | None = flag(WORKLOAD, "nucleus sampling [default: the server's]", limits=SHARE)
    sampling_seed: int | None = flag(WORKLOAD, "sampling seed for the engine")
    stop: Sequence[str] = flag(
        WORKLOAD, "stop answers at this text (may be repeated)", (), values.texts
    )

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_p, self.sampling_seed, tuple(self.stop))


@dataclasses.dataclass(kw_only=True)
class LoadOptions(Flags):
    """The load: how requests are offered, and how many of them."""

    concurrency: Sequence[int] = flag(
        LOAD,
        "closed loop: requests under way at a time; a list: a load each [default: 1,4,16; of"
        " bench: 1, 2, 4 … until throughput stops growing]",
        (),
        values.counts,
    )
    rate: Sequence[float] = flag(
        LOAD,
        "open loop: requests/s; a list: a load each; inf: all of --requests at once",
        (),
        values.numbers,
    )
    burstiness: float = flag(
        LOAD,
        "spread of open-loop arrivals: 1 is Poisson, below 1 burstier, above 1 more even, inf"
        " constant",
        1.0,
        limits=Limits(
            "must be above 0 (1 is Poisson, inf constant)", exclusive_minimum=0, maximum=math.inf
        ),
    )
    ramp: str | None = flag(
        LOAD,
        "rate in pieces: 1:20:60s,20:30s (1 to 20 in 60 s, then 20 for 30 s); or"
        " concurrency=1:64:60s",
    )
    max_concurrency: int | None = flag(
        LOAD,
        "cap on an open loop's requests under way; waiting for a slot counts as latency",
        limits=AT_LEAST_1,
    )
    requests: Sequence[int] = flag(
        LOAD,
        "measured requests per load; a list with --rate inf [default: 8 to 16 × concurrency; a"
        " minute of arrivals]",
        (),
        values.counts,
    )
    requests_per_rate: float | None = flag(LOAD, "measured requests per load: this × the rate")
    duration_s: float | None = flag(
        LOAD,
        "measure each load for this long instead, e.g. 60s",
        read=values.seconds,
        limits=ABOVE_0,
    )
    grace_s: float = flag(
        LOAD, "after --duration: time for requests under way to end", "30s", values.seconds
    )
    find_max: str | None = flag(
        LOAD,
        "search the highest load at which these bounds hold, ttft_p99<500ms,tpot_p99<30ms, by"
        " --rate or, with --concurrency, by requests under way; for --max-duration in all [default:"
        " 10m]",
        read=values.text,
    )
    warmup: int | None = flag(
        LOAD,
        "requests before the measured ones, or 0 [default: the concurrency; a second of the rate,"
        " at most a tenth]",
        limits=AT_LEAST_0,
    )
    start: Literal["staggered", "together"] = flag(
        LOAD,
        "users begin staggered, by a warm-up of cut answers, or together, without one, as with"
        " other tools",
        "staggered",
    )


@dataclasses.dataclass(kw_only=True)
class EarlyEndOptions(Flags):
    """Rules that end a measured cell before all of its requests are sent."""

    stop_when: str | None = flag(
        LOAD,
        "end a load once all of these are known so well, with 95% confidence:"
        " tpot_p50±2%,ttft_p99±10%; or whether bounds hold, ttft_p99<500ms; without --requests or"
        " --duration it goes on until then, or for --max-duration",
    )
    max_errors: float | None = flag(
        LOAD,
        "end a load once more than this share of its requests fails, e.g. 5%",
        read=values.share,
        limits=Limits("must be from 0 to below 1", 0, maximum=0.999),
    )
    min_duration_s: float | None = flag(
        LOAD,
        "shortest time of a load before --stop-when ends it",
        read=values.seconds,
        limits=ABOVE_0,
    )
    max_duration_s: float | None = flag(
        LOAD,
        "longest time of a load [default: 10m with --stop-when alone]",
        read=values.seconds,
        limits=ABOVE_0,
    )


@dataclasses.dataclass(kw_only=True)
class ClientOptions(Flags):
    """The client: how it sends requests, and what it watches."""

    endpoint: str | None = flag(
        TARGET,
        "API to use: completions, chat, messages, responses, sglang, triton; embeddings, rerank or"
        " score, of models that write no text [default: what the server offers, completions"
        " first]",
        read=values.endpoint,
    )
    history: History = flag(
        TARGET,
        "what a later turn holds of those before: all of it (sent), or the name of an answer that"
        " the server keeps (stored, with --endpoint responses)",
        "sent",
    )
    route: Route | None = flag(
        TARGET, "how to spread requests over a fleet [default: round-robin; for sessions: sticky]"
    )
    tokenizer: str | None = flag(
        TARGET,
        "tokenizer.json, or its folder, to count prompt tokens [default: the server is asked]",
    )
    headers: Sequence[tuple[str, str]] = flag(
        TARGET,
        "'Name: value', sent with every request",
        (),
        values.headers,
        name="header",
        short="-H",
    )
    extra_body: Mapping[str, Any] = flag(
        TARGET, "JSON object merged into every request body", {}, values.json_object
    )
    traceparent: bool = flag(
        TARGET,
        "send W3C's traceparent with every request; export --format otlp writes its spans",
        False,
    )
    timeout_connect_s: float = flag(
        TARGET, "longest time to connect", "10s", values.seconds, limits=ABOVE_0
    )
    timeout_first_s: float = flag(
        TARGET,
        "longest time from sending to the first output",
        "600s",
        values.seconds,
        limits=ABOVE_0,
    )
    timeout_idle_s: float = flag(
        TARGET, "longest time between outputs", "300s", values.seconds, limits=ABOVE_0
    )
    timeout_total_s: float = flag(
        TARGET, "longest time from sending to the end", "6h", values.seconds, limits=ABOVE_0
    )
    proxy: str | None = flag(
        TARGET, "HTTP proxy, http://host:port; proxies in the environment are ignored"
    )
    stream: bool = flag(WORKLOAD, "stream answers, or ask for them in one piece (E2E only)", True)
    salt: str = flag(
        WORKLOAD,
        "what makes prompts new to every prefix cache: auto, none, or an earlier run's, to repeat",
        "auto",
    )
    flush_cache: bool | None = flag(
        WORKLOAD,
        "empty the engine's prefix cache before each load [default: if --salt makes no new"
        " prompts]",
    )
    profile_s: float | None = flag(
        RUN,
        "after each load, run the engine's profiler for this long under the same load, e.g. 20; no"
        " figure includes it",
        read=values.seconds,
        limits=ABOVE_0,
    )
    workers: int | None = flag(RUN, "client processes [default: as many as the load needs]")
    clock: Literal["kernel", "packets"] = flag(
        RUN,
        "what times arrivals: the kernel's stamp of a read, or that of each packet, which a client"
        " that reads late does not spoil (http, Linux, root)",
        "kernel",
    )
    ray: str | None = flag(
        RUN,
        "spread the client processes over the machines of this Ray cluster, host:port of its head",
    )
    gpu_telemetry: bool | None = flag(
        RUN,
        "read this machine's NVIDIA GPUs once a second [default: if a server runs on this machine]",
    )
    metrics_port: str | None = flag(
        RUN,
        "serve the run that goes on at /metrics for Prometheus: PORT of this machine, or HOST:PORT",
    )
    gpu_metrics: Sequence[str] = flag(
        RUN,
        "exporters of GPU metrics on the servers' machines (DCGM, AMD), e.g. node:9400; of a"
        " pool's: decode=node:9400",
        (),
        values.addresses,
    )
    worker_metrics: Sequence[str] = flag(
        RUN,
        "workers behind a router, e.g. node:8101, whose /metrics are read in its place",
        (),
        values.addresses,
    )

    @property
    def timeouts(self) -> Timeouts:
        return Timeouts(
            self.timeout_connect_s, self.timeout_first_s, self.timeout_idle_s, self.timeout_total_s
        )


@dataclasses.dataclass(kw_only=True)
class CheckOptions(Flags):
    """Questions mixed into the load whose answers are graded."""

    check: str | None = flag(
        WORKLOAD,
        "grade answers under this load: FILE[:N] of questions (GSM8K, multiple choice, JSON schema,"
        " tool calls, needles), or generated[:N], which needs no file",
        read=values.text,
    )
    check_share: float = flag(
        WORKLOAD,
        "the most that graded requests may be of all, e.g. 5%",
        "10%",
        values.share,
        limits=Limits("must be above 0 and at most 0.9", exclusive_minimum=0, maximum=0.9),
    )
    check_min: float | None = flag(
        WORKLOAD,
        "the least share of right answers, e.g. 90%; below it is an error",
        read=values.share,
        limits=SHARE,
    )
    check_tokens: int | None = flag(
        WORKLOAD,
        "the most tokens of a graded answer [default: the item's, else 128 or 1024]",
        limits=AT_LEAST_1,
    )
    keep_answers: bool = flag(
        RUN, "keep the texts of graded answers in answers.parquet, not their hashes alone", False
    )


@dataclasses.dataclass(kw_only=True)
class OutputOptions(Flags):
    """The numbers that are computed of a run, and where it is kept."""

    slo: str | None = flag(
        RUN,
        "bounds on each request (goodput, attainment): ttft<500ms,tpot<30ms,e2e<5s; or on a"
        " percentile: ttft_p99<1s",
    )
    dialect: str | None = flag(
        RUN,
        "another tool's numbers too: vllm, sglang, sglang-oai, aiperf, guidellm, inference-perf,"
        " llmperf",
    )
    label: str | None = flag(
        RUN,
        "name of this setup in reports and comparisons, e.g. 'no prefix cache'",
        read=values.text,
    )
    out: Path = flag(RUN, "folder for the run folders", "runs", values.path)
    command: Sequence[str] = ()
    """The command line, for run.json; secrets in it are blanked."""


@dataclasses.dataclass(kw_only=True)
class SimulatorOptions(Flags):
    """The deployment to simulate, and how."""

    deployment: str = flag(
        ARGUMENT,
        "what to simulate: MODEL[:weights]@N×GPU[/tp8,engine=vllm], e.g. llama-3.1-70b@8xh200;"
        " braces, in quotes, give several and a ranking: 'llama-3.1-70b@4xh200/tp={2,4}'",
        dataclasses.MISSING,
        argument="deployment",
    )
    endpoint: PoolingTask | None = flag(
        WORKLOAD, "what is asked of a model that writes no text: embeddings, rerank or score"
    )
    profile: str | None = flag(
        SIMULATOR,
        "coefficients by `calibrate`: name or file [default: the shipped]",
        read=values.name_or_path,
    )
    offline: bool = flag(
        SIMULATOR,
        "batches through the engine's own interface, without server and client; with --rate inf",
        False,
    )
    acceptance: float | None = flag(
        SIMULATOR, "speculative decoding: probability that a draft token is accepted [default: 0.7]"
    )
    route: Literal["round-robin", "least-busy", "prefix", "hashed"] | None = flag(
        SIMULATOR,
        "how replicas get requests; prefix: who has most of the prompt; hashed: each session at"
        " random, and then always there [default: as the engine does]",
    )
    electricity: Electricity | None = flag(SIMULATOR, HELP, read=parse_electricity)
    flow_control: str | None = flag(
        SIMULATOR,
        "an inference gateway before the replicas: default, or KEY=VALUE,… of fairness, ordering,"
        " queue_depth, kv_utilization, refresh, stale, ttl, shed",
    )
    autoscale: str | None = flag(
        SIMULATOR,
        "autoscaler that adds and removes replicas of the deployment: a YAML file, or a preset: hpa"
        " keda apa slo planner saturation (docs/autoscale.md)",
        read=values.name_or_path,
    )
    draws: int | None = flag(
        SIMULATOR,
        "simulations with varied coefficients, for the 80% intervals; 0: no intervals"
        " [default: 24]",
        limits=Limits("must be 0 (no intervals) to 1,000", 0, maximum=1000),
    )
    model: str | None = flag(
        RUN, "model name kept in run.json; the deployment decides what is simulated"
    )
    temperature: float | None = flag(
        RUN, "kept in run.json, as in bench; changes no simulated time", limits=_TEMPERATURE
    )
    top_p: float | None = flag(
        RUN, "kept in run.json, as in bench; changes no simulated time", limits=SHARE
    )


# --- the options of a command ---------------------------------------------------------------------


@dataclasses.dataclass(kw_only=True)
class RunOptions(Flags):
    """The options that measured and simulated runs share."""

    workload: WorkloadOptions = group(WorkloadOptions)
    load: LoadOptions = group(LoadOptions)
    grading: CheckOptions = group(CheckOptions)
    output: OutputOptions = group(OutputOptions)


@dataclasses.dataclass(kw_only=True)
class Options(RunOptions):
    """The options of `loadstone bench`:"""

    target: TargetOptions = group(TargetOptions)
    start: StartOptions = group(StartOptions, TARGET, _TO_BENCH)
    sampling: SamplingOptions = group(SamplingOptions)
    early_end: EarlyEndOptions = group(EarlyEndOptions)
    client: ClientOptions = group(ClientOptions)


@dataclasses.dataclass(kw_only=True)
class SimulateOptions(RunOptions):
    """The options of `loadstone simulate`:"""

    simulator: SimulatorOptions = group(SimulatorOptions)


@dataclasses.dataclass(kw_only=True)
class OfflineOptions(Flags):
    """The options of `loadstone offline`:"""

    deployment: str = flag(
        ARGUMENT,
        "what runs them: MODEL[:weights]@N×GPU[/tp8,engine=vllm]",
        dataclasses.MISSING,
        argument="deployment",
    )
    batch: Sequence[int] = flag(
        BATCH, "requests given at once; a list: a load each", "32", values.counts
    )
    input: str = flag(BATCH, "prompt tokens: 512, 8k, uniform:512:1024", "512", values.text)
    output: str = flag(
        BATCH,
        "output tokens, in the same forms; a list, 800,1600: a run folder each",
        "256",
        values.text,
    )
    range_ratio: float = flag(BATCH, "draw lengths uniformly from [ratio·n, n]", 1.0, limits=SHARE)
    warmup: int = flag(
        BATCH,
        "requests before each batch, their answers cut to 16 tokens, or 0",
        16,
        limits=AT_LEAST_0,
    )
    seed: int = flag(BATCH, "seed of the plan: same seed, same plan", 0)
    start: StartOptions = group(StartOptions, ENGINE, _TO_OFFLINE)
    python: str | None = flag(
        ENGINE, "interpreter that has the engine [default: that of its program on PATH]"
    )
    simulate: bool = flag(RUN, "simulate the same batches, without hardware", False)
    profile: str | None = flag(
        RUN,
        "coefficients by `calibrate`: name or file [default: the shipped]",
        read=values.name_or_path,
    )
    label: str | None = flag(RUN, "name of this setup in reports and comparisons", read=values.text)
    out: Path = flag(RUN, "folder for the run folders", "runs", values.path)
    command: Sequence[str] = ()


@dataclasses.dataclass(kw_only=True)
class LaunchOptions(Flags):
    """The options of `loadstone launch`:"""

    deployment: str = flag(
        ARGUMENT,
        "what to start: MODEL[:weights]@N×GPU[/tp8,engine=vllm]",
        dataclasses.MISSING,
        argument="deployment",
    )
    start: StartOptions = group(StartOptions, "", _TO_LAUNCH)


# --- reading and changing them --------------------------------------------------------------------

Kind = TypeVar("Kind", bound=Flags)


class Field(NamedTuple):
    """An option of a command: the group that holds it ("": none), what the command line knows of
    it, and its type. Without a `flag` it is no option of users."""

    group: str
    flag: Flag | None
    hint: Any


_fields: dict[type[Flags], dict[str, Field]] = {}


def fields_of(kind: type[Flags]) -> dict[str, Field]:
    """Return all fields, those of groups too, by their names; a dict to be read alone."""
    if kind in _fields:
        return _fields[kind]
    fields: dict[str, Field] = {}
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        about = field.metadata
        if "group" not in about:
            flag = about.get("flag")
            named = flag and flag._replace(name=flag.name or field.name.removesuffix("_s"))
            fields[field.name] = Field("", named, hints[field.name])
            continue
        wording = about["wording"]
        for name, (_, flag, hint) in fields_of(about["group"]).items():
            if wording is None or flag is None:
                fields[name] = Field(field.name, flag, hint)
            elif name in wording:
                heading, help = about["heading"] or flag.heading, wording[name].format(flag.help)
                fields[name] = Field(field.name, flag._replace(heading=heading, help=help), hint)
    _fields[kind] = fields
    return fields


def flags_of(kind: type[Flags]) -> dict[str, Flag]:
    """Return all options by field, in the order of the help text."""
    flags = {name: field.flag for name, field in fields_of(kind).items() if field.flag is not None}
    return dict(sorted(flags.items(), key=lambda item: HEADINGS.index(item[1].heading)))


def values_of(options: Flags) -> dict[str, Any]:
    """Return the values of all options by field, those of groups too."""
    return {
        name: getattr(getattr(options, field.group) if field.group else options, name)
        for name, field in fields_of(type(options)).items()
    }


def pooling_task(options: RunOptions) -> PoolingTask | None:
    """Return what is asked of a model that writes no text; None: it writes text."""
    endpoint = values_of(options).get("endpoint")
    return next((task for task in POOLING_TASKS if task == endpoint), None)


def change(options: Kind, **changes: Any) -> Kind:
    """Return options with other values of some fields, whatever their groups."""
    parts = _in_groups(changes, type(options))
    for name in {field.group for field in fields_of(type(options)).values()} - {""}:
        parts[name] = dataclasses.replace(getattr(options, name), **parts[name])
    return dataclasses.replace(options, **parts)


def changed_flags(options: Flags) -> list[str]:
    """Return the flags, with - for _, that have another value than by being left out."""
    given, defaults = values_of(options), values_of(type(options)())

    def is_changed(field: str) -> bool:
        value = given[field]
        return bool((tuple(value) if isinstance(value, list) else value) != defaults[field])

    return [flag.dashed for field, flag in flags_of(type(options)).items() if is_changed(field)]


def check_limits(options: Flags) -> None:
    """Raise InputError for a number beyond the limits of its option."""
    given = values_of(options)
    for field, flag in flags_of(type(options)).items():
        value = given[field]
        if value is not None and flag.limits is not None and not flag.limits.allow(value):
            shown = f"{value:g}" if isinstance(value, float) else value
            raise InputError(f"--{flag.dashed} {shown}: {flag.limits.words}")


def options_of(given: Mapping[str, Any], kind: type[Kind]) -> Kind:
    """Read options by their flags' names (with _ for -), or by those of the fields, each as a
    flag's text or a value.

    A time that is a number is in seconds; one value may stand for a list of it; None is an option
    left out. Raises InputError, one line, where there is no such option, or a value is none of its
    kind.
    """
    flags = flags_of(kind)
    if given.get("scenario") is not None:
        by_flag = {flags[name].name if name in flags else name: given[name] for name in given}
        defaults = {flag.name: flag.default for flag in flags.values()}
        given = complete(str(given["scenario"]), by_flag, defaults)
    field_of = {flag.name: field for field, flag in flags.items()}
    field_of |= {flag.name.rstrip("_"): field for field, flag in flags.items()}
    field_of |= {field: field for field in fields_of(kind)}
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if name not in field_of:
            raise _refused(name, kind)
        field = field_of[name]
        if field in fields:
            raise InputError(f"{name}: given twice, by two names; give one")
        flag = flags.get(field)
        number = values.plain(value)
        if value is None:
            if flag is not None and flag.default is dataclasses.MISSING:
                fields[field] = None
        elif flag is None or flag.read is None:
            fields[field] = number
        else:
            fields[field] = flag.read(number, f"--{name.replace('_', '-')}")
    return _convert(fields, kind)


def _refused(name: str, kind: type[Flags]) -> InputError:
    """Say in one line that `name` is no option of this kind, and what there is instead."""
    if name in ("json", "strict", "explain", "report"):
        return InputError(
            f"{name}: of the command alone; here the result comes back, with a verdict in each load"
        )
    if issubclass(kind, SimulateOptions):
        of_bench = flags_of(Options)
        if name in of_bench or any(name == flag.name for flag in of_bench.values()):
            return InputError(
                f"{name}: an option of bench, about a server or its client; a simulation has"
                " neither: leave it out"
            )
    names = [flag.name for flag in flags_of(kind).values()]
    return no_such_option(name, names, "bench" if issubclass(kind, RunOptions) else "size")


def _in_groups(values_by_field: Mapping[str, Any], kind: type[Flags]) -> dict[str, Any]:
    """Sort values into the groups to which their fields belong."""
    fields = fields_of(kind)
    parts: dict[str, Any] = {field.group: {} for field in fields.values() if field.group}
    for name, value in values_by_field.items():
        holder = fields[name].group if name in fields else ""
        (parts[holder] if holder else parts)[name] = value
    return parts


def _convert(fields: Mapping[str, Any], kind: type[Kind]) -> Kind:
    """Check the types of values. Raises InputError, one line."""
    try:
        return msgspec.convert(_in_groups(fields, kind), kind, strict=False)
    except UnicodeEncodeError:
        raise InputError(
            "an option holds half of a surrogate pair, which is no text; give text"
        ) from None
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$.")
        field = path.rstrip("`").partition("[")[0].rpartition(".")[2]
        if problem.startswith("Invalid enum value"):
            kinds = get_args(fields_of(kind)[field].hint)
            choices = [choice for part in kinds for choice in get_args(part)]
            problem += f"; choose one of {', '.join(choices)}"
        flag = flags_of(kind)[field]
        raise InputError(f"{flag.argument or f'--{flag.dashed}'}: {problem}") from error


def json_schema(kind: type[Flags]) -> dict[str, Any]:
    """Return a JSON Schema of the options by their flags' names, as a file of them has them: each
    as a value of its type or as the flag's text.
    """
    flags, fields = flags_of(kind), fields_of(kind)
    types, definitions = msgspec.json.schema_components(
        [fields[name].hint for name in flags], schema_hook=lambda path: {"type": "string"}
    )
    properties = {}
    for flag, kind_of_value in zip(flags.values(), types, strict=True):
        schema = kind_of_value
        if flag.read is not None:
            schema = {"anyOf": [kind_of_value, {"type": ["string", "number", "boolean"]}]}
        default = {} if flag.default in (None, dataclasses.MISSING) else {"default": flag.default}
        bounds = {} if flag.limits is None else flag.limits.schema()
        properties[flag.name] = schema | default | bounds | {"description": flag.help}
    required = [flag.name for flag in flags.values() if flag.default is dataclasses.MISSING]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
        "$defs": definitions,
    }


def list_in_docstring(kind: type[Kind]) -> type[Kind]:
    """Add the options to the end of the docstring of their class, which help() shows."""
    lines = (f"{flag.name:18} {flag.help}" for flag in flags_of(kind).values())
    kind.__doc__ = "\n    ".join((f"{kind.__doc__}\n", *lines))
    return kind


list_in_docstring(Options)
list_in_docstring(SimulateOptions)
