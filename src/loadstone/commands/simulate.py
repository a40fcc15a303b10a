"""`loadstone simulate`: the flags of `bench`, and a deployment in place of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadstone.commands import flags
from loadstone.commands.flags import RUN, asked_of, option
from loadstone.commands.output import interrupted_shown, show_document

Deployment = Annotated[
    str,
    typer.Argument(help="what to simulate: MODEL[:weights]@N×GPU[/tp8,engine=vllm], e.g. llama-3.1-70b@8xh200"),
]
_SIMULATOR = "Simulator"
Acceptance = Annotated[
    float | None,
    option(_SIMULATOR, "speculative decoding: probability that a draft token is accepted [default: 0.7]"),
]
Profile = Annotated[
    str | None,
    option(_SIMULATOR, "coefficients made by `calibrate`, by name or file [default: the shipped ones]"),
]
Draws = Annotated[
    int | None,
    option(_SIMULATOR, "simulations with varied coefficients, for the 80 % intervals; 0: no intervals [default: 24]"),
]
Model = Annotated[str | None, option(RUN, "model name kept in run.json; the deployment decides what is simulated")]
Temperature = Annotated[float | None, option(RUN, "kept in run.json, as in bench; changes no simulated time")]
TopP = Annotated[float | None, option(RUN, "kept in run.json, as in bench; changes no simulated time")]


def simulate(
    deployment: Deployment,
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
    profile: Profile = None,
    acceptance: Acceptance = None,
    draws: Draws = None,
    model: Model = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    slo: flags.Slo = None,
    dialect: flags.Dialect = None,
    label: flags.Label = None,
    out: flags.Out = Path("runs"),
    json: flags.Json = False,
    strict: flags.Strict = False,
) -> None:
    """Simulate a deployment under a load, without hardware. Loads, run folder and numbers are those of bench; the
    predictions have 80 % intervals.
    """
    given = locals()
    from loadstone.analyse.summary import trusted
    from loadstone.runs.simulate import simulate as run
    from loadstone.workload.options import options_of

    own = ("deployment", "acceptance", "draws", "profile")
    options = options_of({name: value for name, value in asked_of(given).items() if name not in own})
    with interrupted_shown(json, "simulated"):
        document = run(deployment, options, acceptance=acceptance, draws=draws, profile=profile)
    show_document(document, json)
    if strict and not trusted(document):
        raise typer.Exit(1)
