"""`loadstone simulate`: the flags of `bench`, and a deployment in place of a server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from loadstone.cli import flags
from loadstone.cli.flags import scales_of, window_of
from loadstone.cli.output import show_document
from loadstone.units import parse_counts, parse_list, parse_seconds

Deployment = Annotated[
    str,
    typer.Argument(help="what to simulate: MODEL[:weights]@N×GPU[/tp8,engine=vllm], e.g. llama-3.1-70b@8xh200"),
]
Acceptance = Annotated[
    float | None,
    typer.Option(help="share of guessed tokens that are accepted, where it decodes speculatively [default: 0.7]"),
]
Profile = Annotated[
    str | None, typer.Option(help="performance profile that `calibrate` made [default: the shipped one for it]")
]
Draws = Annotated[
    int | None, typer.Option(help="of the model's coefficients, for the 80 % intervals; 0: none [default: 24]")
]


def simulate(
    deployment: Deployment,
    input: flags.Input = None,
    output: flags.Output = None,
    range_ratio: flags.RangeRatio = 1.0,
    prefix: flags.Prefix = 0,
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
    model: flags.Model = None,
    temperature: flags.Temperature = None,
    top_p: flags.TopP = None,
    profile: Profile = None,
    acceptance: Acceptance = None,
    draws: Draws = None,
    slo: flags.Slo = None,
    dialect: flags.Dialect = None,
    out: flags.Out = Path("runs"),
    json: flags.Json = False,
    strict: flags.Strict = False,
) -> None:
    """Simulate a deployment under a load, without hardware: the same run folder and numbers as bench."""
    from loadstone.batching.defaults import ACCEPTANCE
    from loadstone.options import Options
    from loadstone.simulation import DRAWS
    from loadstone.simulation import simulate as run
    from loadstone.summary import trusted

    options = Options(
        input=input,
        output=output,
        range_ratio=range_ratio,
        prefix=prefix,
        prefix_groups=prefix_groups,
        dataset=dataset,
        trace=trace,
        time_scale=scales_of(time_scale),
        trace_window_s=window_of(trace_window),
        trace_sample=trace_sample,
        length_scale=length_scale,
        skip_bad=skip_bad,
        turns=turns,
        think_time=think_time,
        plan=plan,
        rate=parse_list(rate, "--rate") if rate is not None else (),
        burstiness=burstiness,
        ramp=ramp,
        concurrency=parse_counts(concurrency, "--concurrency") if concurrency is not None else (),
        max_concurrency=max_concurrency,
        requests=parse_counts(requests, "--requests") if requests is not None else (),
        requests_per_rate=requests_per_rate,
        duration_s=parse_seconds(duration, "--duration") if duration is not None else None,
        grace_s=parse_seconds(grace, "--grace"),
        warmup=warmup,
        slo=slo,
        dialect=dialect,
        model=model,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        out=out,
        command=["loadstone", *sys.argv[1:]],
    )
    document = run(
        deployment,
        options,
        acceptance=ACCEPTANCE if acceptance is None else acceptance,
        draws=DRAWS if draws is None else draws,
        profile=profile,
    )
    show_document(document, json)
    if strict and not trusted(document):
        raise typer.Exit(1)
