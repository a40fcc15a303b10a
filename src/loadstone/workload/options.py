"""The options of a run, each written once: its name, type, unit, default and help text.

From these fields come the command line (`commands/flags.py`), what `loadstone.bench()` and
`loadstone.simulate()` take, and a JSON Schema (option_fields.py). Those of what is sent are in
load_options.py, those of engines that are started in start_options.py. Options lie in groups, and
users name them without their group:

    Options.read(rate="4,8", input="512").load.rate == [4.0, 8.0]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from loadstone.core.electricity import HELP, Electricity, parse_electricity
from loadstone.core.errors import InputError
from loadstone.core.plan import POOLING_TASKS, PoolingTask
from loadstone.workload import option_values as values
from loadstone.workload.load_options import (
    TEMPERATURE,
    CheckOptions,
    EarlyEndOptions,
    LoadOptions,
    SamplingOptions,
    WorkloadOptions,
)
from loadstone.workload.option_fields import (
    ABOVE_0,
    ARGUMENT,
    RUN,
    SHARE,
    SIMULATOR,
    TARGET,
    WORKLOAD,
    Flags,
    Limits,
    flag,
    flags_of,
    group,
    list_in_docstring,
    values_of,
)
from loadstone.workload.request import History, Route, Timeouts
from loadstone.workload.start_options import TO_BENCH, StartOptions


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
        RUN, "kept in run.json, as in bench; changes no simulated time", limits=TEMPERATURE
    )
    top_p: float | None = flag(
        RUN, "kept in run.json, as in bench; changes no simulated time", limits=SHARE
    )


@dataclasses.dataclass(kw_only=True)
class RunOptions(Flags):
    """The options that measured and simulated runs share."""

    command_name = "bench"

    workload: WorkloadOptions = group(WorkloadOptions)
    load: LoadOptions = group(LoadOptions)
    grading: CheckOptions = group(CheckOptions)
    output: OutputOptions = group(OutputOptions)


@dataclasses.dataclass(kw_only=True)
class Options(RunOptions):
    """The options of `loadstone bench`:"""

    target: TargetOptions = group(TargetOptions)
    start: StartOptions = group(StartOptions, TARGET, TO_BENCH)
    sampling: SamplingOptions = group(SamplingOptions)
    early_end: EarlyEndOptions = group(EarlyEndOptions)
    client: ClientOptions = group(ClientOptions)


@dataclasses.dataclass(kw_only=True)
class SimulateOptions(RunOptions):
    """The options of `loadstone simulate`:"""

    simulator: SimulatorOptions = group(SimulatorOptions)

    @classmethod
    def refuse(cls, name: str) -> InputError:
        of_bench = flags_of(Options)
        if name in of_bench or any(name == flag.name for flag in of_bench.values()):
            return InputError(
                f"{name}: an option of bench, about a server or its client; a simulation has"
                " neither: leave it out"
            )
        return super().refuse(name)


def pooling_task(options: RunOptions) -> PoolingTask | None:
    """Return what is asked of a model that writes no text; None: it writes text."""
    endpoint = values_of(options).get("endpoint")
    return next((task for task in POOLING_TASKS if task == endpoint), None)


list_in_docstring(Options)
list_in_docstring(SimulateOptions)
