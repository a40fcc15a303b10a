"""`loadstone calibrate`: the performance model fitted to the user's own runs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from loadstone.commands.flags import json_flag


def calibrate(
    runs: Annotated[
        list[Path], typer.Argument(help="run folders of `loadstone bench`, all of one deployment")
    ],
    deployment: Annotated[
        str | None,
        typer.Option(
            help=(
                "what the runs were measured on, e.g. llama-3.1-8b@1xh100/engine=vllm [default: as"
                " `bench` was told]"
            )
        ),
    ] = None,
    profile: Annotated[
        str, typer.Option(help="name to keep the calibrated coefficients under")
    ] = "mine",
    out: Annotated[
        Path | None,
        typer.Option(help="folder to keep them in [default: ~/.config/loadstone/profiles]"),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="learn from loads that are not trusted, too")
    ] = False,
    json: Annotated[bool, json_flag("the result")] = False,
) -> None:
    """Fit the performance model to your own runs. A few runs are enough; the output says how wide
    the predictions' intervals are afterwards. Use the result with --profile.
    """
    from loadstone.commands.output import print_json
    from loadstone.runs.calibrate import calibrate as fit

    result = fit(runs, deployment, profile, out, force=force)
    if json:
        print_json(result)
        return
    print(
        f"{result.points} measured load{'s' if result.points > 1 else ''} of {result.deployment},"
        f" from {result.base}"
    )
    keys: tuple[Literal["tpot", "ttft"], ...] = ("tpot", "ttft")
    for key in keys:
        if key in result.error_before and key in result.error_after:
            wide, narrow = (
                _ends(interval[key]) for interval in (result.interval_before, result.interval_after)
            )
            print(
                f"{key.upper()}: off by {result.error_before[key]:.1%} before,"
                f" {result.error_after[key]:.1%} after; 80% interval {wide} before, {narrow} after"
            )
    if result.acceptance is not None:
        print(
            f"drafts: a guess was accepted with a probability of {result.acceptance:.0%}, which is"
            " kept too"
        )
    if result.furthest > 2:
        print(
            f"the prediction before was off by a factor of {result.furthest:.1f}: check that"
            f" {result.deployment} is what ran, with its precision and arguments"
        )
    if result.remark:
        print(result.remark)
    print(f"kept in {result.path}; use it with --profile {profile if out is None else result.path}")


def _ends(up: float) -> str:
    """Write an interval as `−32/+48 %`: as far down on a log scale as it goes up."""
    return f"−{up / (1 + up):.0%}/+{up:.0%}".replace("%/", "/")
