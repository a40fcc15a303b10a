"""Flags that several commands share, by the name that `Options` gives them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

WORKLOAD, LOAD, TARGET, RUN = "Workload", "Load", "Target", "Run"
"""Headings of a help text."""


def option(heading: str, text: str, *names: str) -> Any:
    """An option that `--help` lists under `heading`."""
    return typer.Option(*names, help=text, rich_help_panel=heading)


Target = Annotated[
    list[str] | None,
    typer.Argument(
        help="URL of a server; several URLs: a fleet; with --sim: a deployment, or fixed times, ttft=30ms,itl=5ms"
    ),
]
Sim = Annotated[
    bool,
    option(TARGET, "measure an embedded simulated engine, as without a URL [default: llama-3.1-8b@1xh100]", "--sim"),
]
Deployment = Annotated[
    str | None,
    option(TARGET, "what the server or fleet runs, for prices, roofline, calibrate: llama-3.1-70b@8xh200/tp8"),
]
Engine = Annotated[
    Literal["llama.cpp"] | None, option(TARGET, "start this engine with a small random model and measure it")
]
Model = Annotated[str | None, option(TARGET, "model name to request [default: the server's first]")]
Endpoint = Annotated[
    Literal["completions", "chat", "sglang", "triton", "triton-grpc"] | None,
    option(TARGET, "API to use [default: what the server offers, completions first]"),
]
Route = Annotated[
    Literal["round-robin", "least-busy", "sticky"] | None,
    option(TARGET, "how to spread requests over a fleet [default: round-robin; for sessions: sticky]"),
]
Tokenizer = Annotated[
    str | None,
    option(TARGET, "tokenizer.json, or its folder, to count prompt tokens [default: the server is asked]"),
]
Header = Annotated[list[str] | None, option(TARGET, "'Name: value', sent with every request", "--header", "-H")]
ExtraBody = Annotated[str | None, option(TARGET, "JSON object merged into every request body")]
TimeoutConnect = Annotated[str, option(TARGET, "longest time to connect")]
TimeoutFirst = Annotated[str, option(TARGET, "longest time from sending to the first output")]
TimeoutIdle = Annotated[str, option(TARGET, "longest time between outputs")]
TimeoutTotal = Annotated[str, option(TARGET, "longest time from sending to the end")]
Input = Annotated[
    str | None,
    option(
        WORKLOAD,
        "prompt tokens: 1024, 8k, uniform:512:1024, normal:1024:128, lognormal:1024:0.5 [default: 1024]",
    ),
]
Output = Annotated[str | None, option(WORKLOAD, "output tokens, in the same forms [default: 128; a dataset's own]")]
RangeRatio = Annotated[float, option(WORKLOAD, "draw lengths uniformly from [ratio·n, n]")]
Prefix = Annotated[str, option(WORKLOAD, "tokens at the start of each prompt that its group shares, e.g. 2000")]
PrefixGroups = Annotated[int, option(WORKLOAD, "groups of prompts; prompts of a group share a prefix")]
Dataset = Annotated[
    Path | None, option(WORKLOAD, "file of prompts: ShareGPT, OpenAI messages or plain; JSONL, JSON or text")
]
Turns = Annotated[
    str | None,
    option(WORKLOAD, "conversations of this many turns, e.g. 4 or uniform:2:6; loads then count conversations"),
]
ThinkTime = Annotated[
    str | None, option(WORKLOAD, "pause between turns: 2s, uniform:1s:3s, exponential:2s, lognormal:2s:0.5")
]
Trace = Annotated[
    Path | None,
    option(WORKLOAD, "replay this trace at its own times: Azure, Mooncake, BurstGPT, or plain CSV or JSONL"),
]
TimeScale = Annotated[
    str | None,
    option(WORKLOAD, "multiply a trace's times by this; 0.1: ten times as fast; a list: a cell each [default: 1]"),
]
TraceWindow = Annotated[str | None, option(WORKLOAD, "replay only FROM:TO of a trace, e.g. 0s:10m")]
TraceSample = Annotated[float | None, option(WORKLOAD, "replay this share of a trace's requests, e.g. 0.1")]
LengthScale = Annotated[
    float | None, option(WORKLOAD, "multiply a trace's lengths in tokens by this; prefixes stay shared")
]
SkipBad = Annotated[
    bool, option(WORKLOAD, "leave out bad lines of a trace or dataset, and report how many", "--skip-bad")
]
Plan = Annotated[Path | None, option(WORKLOAD, "replay the plan of a run folder, or a plan.parquet")]
Seed = Annotated[int, option(WORKLOAD, "seed of the plan: same seed, same plan")]
Salt = Annotated[
    str,
    option(WORKLOAD, "what makes prompts new to every prefix cache: auto, none, or an earlier run's, to repeat it"),
]
FlushCache = Annotated[
    bool | None,
    option(
        WORKLOAD,
        "empty the engine's prefix cache before each cell [default: if --salt makes no new prompts]",
        "--flush-cache/--no-flush-cache",
    ),
]
Temperature = Annotated[float | None, option(WORKLOAD, "sampling temperature [default: the server's]")]
TopP = Annotated[float | None, option(WORKLOAD, "nucleus sampling [default: the server's]")]
SamplingSeed = Annotated[int | None, option(WORKLOAD, "sampling seed for the engine")]
Stop = Annotated[list[str] | None, option(WORKLOAD, "stop answers at this text (may be repeated)")]
Structured = Annotated[
    str | None, option(WORKLOAD, "constrain answers: json-schema:FILE, grammar:FILE or regex:PATTERN")
]
Stream = Annotated[
    bool, option(WORKLOAD, "stream answers, or ask for them in one piece (E2E only)", "--stream/--no-stream")
]
Concurrency = Annotated[
    str | None, option(LOAD, "closed loop: requests under way at a time; a list: a cell each [default: 1,4,16]")
]
Rate = Annotated[
    str | None, option(LOAD, "open loop: requests/s; a list: a cell each; inf: all of --requests at once")
]
Burstiness = Annotated[
    float,
    option(LOAD, "spread of open-loop arrivals: 1 is Poisson, below 1 burstier, above 1 more even, inf constant"),
]
Ramp = Annotated[
    str | None,
    option(LOAD, "rate in pieces: 1:20:60s,20:30s (1 to 20 in 60 s, then 20 for 30 s); or concurrency=1:64:60s"),
]
MaxConcurrency = Annotated[
    int | None, option(LOAD, "cap on an open loop's requests under way; waiting for a slot counts as latency")
]
Requests = Annotated[
    str | None,
    option(
        LOAD,
        "measured requests per cell; a list with --rate inf [default: 8 to 16 × concurrency; a minute of arrivals]",
    ),
]
RequestsPerRate = Annotated[float | None, option(LOAD, "measured requests per cell: this × the rate")]
Duration = Annotated[str | None, option(LOAD, "measure each cell for this long instead, e.g. 60s")]
Grace = Annotated[str, option(LOAD, "after --duration: time for requests under way to end")]
Warmup = Annotated[
    int | None,
    option(
        LOAD,
        "requests before the measured ones, or 0 [default: the concurrency; a second of the rate, at most a tenth]",
    ),
]
Slo = Annotated[
    str | None,
    option(
        RUN,
        "bounds on each request (goodput, attainment): ttft<500ms,tpot<30ms,e2e<5s; or on a percentile: ttft_p99<1s",
    ),
]
Dialect = Annotated[
    str | None,
    option(
        RUN,
        "another tool's numbers too: vllm, sglang, sglang-oai, aiperf, guidellm, inference-perf, llmperf, mlperf",
    ),
]
Proxy = Annotated[str | None, option(TARGET, "HTTP proxy, http://host:port; proxies in the environment are ignored")]
GpuTelemetry = Annotated[
    bool | None,
    option(
        RUN,
        "read this machine's NVIDIA GPUs once a second [default: if a server runs on this machine]",
        "--gpu-telemetry/--no-gpu-telemetry",
    ),
]
GpuMetrics = Annotated[
    list[str] | None,
    option(RUN, "exporters of GPU metrics on the servers' machines (DCGM, AMD), e.g. node:9400"),
]
Workers = Annotated[int | None, option(RUN, "client processes [default: as many as the load needs]")]
Label = Annotated[str | None, option(RUN, "name of this setup in reports and comparisons, e.g. 'no prefix cache'")]
Out = Annotated[Path, option(RUN, "folder for the run folders")]
Json = Annotated[bool, option(RUN, "print the summary as JSON on stdout", "--json")]
Price = Annotated[
    list[str] | None,
    typer.Option("--price", help="dollars per GPU and hour: h200=3.2,h100=2.1; adds the cost of a million tokens"),
]
Strict = Annotated[bool, option(RUN, "exit 1 unless every cell is trusted and every bound is met", "--strict")]


def asked_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """A command's parameters without those that say what is done with the result; see options.options_of()."""
    said = {name: value for name, value in given.items() if name not in ("json", "strict", "target", "sim")}
    return said | {"command": ["loadstone", *sys.argv[1:]]}
