"""`loadstone bench`: flags to options, and how the run ended to an exit code."""

from __future__ import annotations

from pathlib import Path

import typer

from loadstone.commands import flags
from loadstone.commands.flags import asked_of
from loadstone.commands.output import interrupted_shown, show_document
from loadstone.core.errors import InputError


def bench(
    target: flags.Target = None,
    sim: flags.Sim = False,
    deployment: flags.Deployment = None,
    engine: flags.Engine = None,
    model: flags.Model = None,
    endpoint: flags.Endpoint = None,
    route: flags.Route = None,
    tokenizer: flags.Tokenizer = None,
    header: flags.Header = None,
    extra_body: flags.ExtraBody = None,
    timeout_connect: flags.TimeoutConnect = "10s",
    timeout_first: flags.TimeoutFirst = "600s",
    timeout_idle: flags.TimeoutIdle = "300s",
    timeout_total: flags.TimeoutTotal = "6h",
    input: flags.Input = None,
    output: flags.Output = None,
    range_ratio: flags.RangeRatio = 1.0,
    prefix: flags.Prefix = "0",
    prefix_groups: flags.PrefixGroups = 1,
    dataset: flags.Dataset = None,
    turns: flags.Turns = None,
    think_time: flags.ThinkTime = None,
    trace: flags.Trace = None,
    time_scale: flags.TimeScale = None,
    trace_window: flags.TraceWindow = None,
    trace_sample: flags.TraceSample = None,
    length_scale: flags.LengthScale = None,
    skip_bad: flags.SkipBad = False,
    plan: flags.Plan = None,
    seed: flags.Seed = 0,
    salt: flags.Salt = "auto",
    flush_cache: flags.FlushCache = None,
    temperature: flags.Temperature = None,
    top_p: flags.TopP = None,
    sampling_seed: flags.SamplingSeed = None,
    stop: flags.Stop = None,
    structured: flags.Structured = None,
    stream: flags.Stream = True,
    concurrency: flags.Concurrency = None,
    rate: flags.Rate = None,
    burstiness: flags.Burstiness = 1.0,
    ramp: flags.Ramp = None,
    max_concurrency: flags.MaxConcurrency = None,
    requests: flags.Requests = None,
    requests_per_rate: flags.RequestsPerRate = None,
    duration: flags.Duration = None,
    grace: flags.Grace = "30s",
    warmup: flags.Warmup = None,
    slo: flags.Slo = None,
    dialect: flags.Dialect = None,
    proxy: flags.Proxy = None,
    workers: flags.Workers = None,
    gpu_telemetry: flags.GpuTelemetry = None,
    gpu_metrics: flags.GpuMetrics = None,
    label: flags.Label = None,
    out: flags.Out = Path("runs"),
    json: flags.Json = False,
    strict: flags.Strict = False,
) -> None:
    """Measure a live engine over a sweep of loads. Each load is a cell of the run, with TTFT, TPOT, ITL, E2E,
    throughput and a verdict; the run is kept in a folder. Without a URL, an embedded simulated engine is measured.
    """
    given = locals()
    from loadstone.analyse.summary import trusted
    from loadstone.commands.progress import Display
    from loadstone.runs.bench import bench as run
    from loadstone.workload.options import options_of

    if sim and len(target or ()) > 1:
        raise InputError("--sim: a run simulates one deployment, or one ttft=…,itl=… law; give one")
    url = {"sim": target[0] if target else True} if sim else {"url": target}
    options = options_of({**asked_of(given), **url})
    with interrupted_shown(json, "measured"), Display() as display:
        document = run(options, display)
    show_document(document, json)
    if document["status"] == "failed":
        raise typer.Exit(1)
    if strict and not trusted(document):
        raise typer.Exit(1)
