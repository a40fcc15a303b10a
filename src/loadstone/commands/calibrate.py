"""`loadstone calibrate`: the performance model fitted to the user's own runs, or to a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from loadstone.core.errors import InputError


def calibrate(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="run folders of `loadstone bench`, all of one deployment")
    ] = None,
    deployment: Annotated[
        str | None,
        typer.Option(
            help="what the runs were measured on, e.g. llama-3.1-8b@1xh100/engine=vllm [default: as `bench` was told]"
        ),
    ] = None,
    gpu: Annotated[
        bool, typer.Option("--gpu", help="benchmark this machine's GPU instead: memory, GEMMs, attention, launches")
    ] = False,
    budget: Annotated[str, typer.Option(help="with --gpu: longest time it may take")] = "420s",
    points: Annotated[
        Path | None,
        typer.Option(
            help="with --gpu: measure nothing, use the gpu.json of an earlier --gpu, here or on another machine"
        ),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="with --gpu: engine whose coefficients to update, e.g. vllm")
    ] = None,
    profile: Annotated[str, typer.Option(help="name to keep the calibrated coefficients under")] = "mine",
    out: Annotated[
        Path | None, typer.Option(help="folder to keep them in [default: ~/.config/loadstone/profiles]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="learn from cells that are not trusted, too")] = False,
    json: Annotated[bool, typer.Option("--json", help="print the result as JSON on stdout")] = False,
) -> None:
    """Fit the performance model to your own runs, or to a GPU. A few runs are enough; the output says how wide the
    predictions' intervals are afterwards. Use the result with --profile.
    """
    if gpu:
        if runs or deployment:
            raise InputError(
                "--gpu measures this machine: leave out run folders and --deployment, or leave out --gpu"
            )
        _of_gpu(profile, out, budget, points, engine, json)
        return
    for flag, value in (("--points", points), ("--engine", engine)):
        if value is not None:
            raise InputError(f"{flag}: goes with --gpu; for runs, --deployment says what they were measured on")
    if not runs:
        raise InputError(
            "calibrate: give run folders, e.g. "
            "loadstone calibrate runs/a --deployment llama-3.1-8b@1xh100/engine=vllm; or --gpu"
        )
    from loadstone.commands.output import print_json
    from loadstone.runs.calibrate import calibrate as of_runs

    result = of_runs(runs, deployment, profile, out, force=force)
    if json:
        print_json(result)
        return
    print(
        f"{result.points} measured cell{'s' if result.points > 1 else ''} of {result.deployment}, from {result.base}"
    )
    keys: tuple[Literal["tpot", "ttft"], ...] = ("tpot", "ttft")
    for key in keys:
        if key in result.error_before and key in result.error_after:
            wide, narrow = (_ends(each[key]) for each in (result.interval_before, result.interval_after))
            print(
                f"{key.upper()}: off by {result.error_before[key]:.1%} before, {result.error_after[key]:.1%} after; "
                f"80 % interval {wide} before, {narrow} after"
            )
    if result.furthest > 2:
        print(
            f"the prediction before was off by a factor of {result.furthest:.1f}: check that {result.deployment} is "
            "what ran, with its precision and arguments"
        )
    print(f"kept in {result.path}; use it with --profile {profile if out is None else result.path}")


def _ends(up: float) -> str:
    """`−32/+48 %`: as far down on a log scale as it goes up."""
    return f"−{up / (1 + up):.0%}/+{up:.0%}".replace("%/", "/").replace("%", " %")


def _of_gpu(
    profile: str, out: Path | None, budget: str, points: Path | None, engine: str | None, as_json: bool
) -> None:
    from loadstone.commands.output import print_json
    from loadstone.core.units import parse_seconds
    from loadstone.runs.calibrate_gpu import calibrate as benchmark

    def say(text: str) -> None:
        print(text, file=sys.stderr if as_json else sys.stdout, flush=True)

    budget_s = parse_seconds(budget, "--budget")
    document = benchmark(Path("gpu.json"), budget_s, say, name=profile, engine=engine, measured=points, folder=out)
    if as_json:
        print_json(document)
