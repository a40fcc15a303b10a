"""`loadstone calibrate`: the performance model fitted to the user's own runs."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from loadstone.commands.flags import json_flag
from loadstone.core.errors import InputError

if TYPE_CHECKING:
    from loadstone.runs.calibrate import CalibratedProfile, LearnedPictures


def calibrate(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="run folders of `loadstone bench`, all of one deployment"),
    ] = None,
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
    advise: Annotated[
        str | None,
        typer.Option(
            metavar="INPUT/OUTPUT@USERS",
            help="without runs: say which loads to measure for the loads that matter, e.g."
            " 1024/128@1,16,64",
        ),
    ] = None,
    json: Annotated[bool, json_flag("the result")] = False,
) -> None:
    """Fit the performance model to your own runs. A few runs are enough; the output says how wide
    the predictions' intervals are afterwards. Use the result with --profile.
    """
    from loadstone.commands.output import print_json
    from loadstone.runs.calibrate import calibrate as fit

    if advise is not None:
        if runs or force or out is not None or profile != "mine":
            raise InputError("--advise: keeps nothing; give no runs, --profile, --out or --force")
        _advise(deployment, advise, json)
        return
    result = fit(runs or [], deployment, profile, out, force=force)
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
            name = key.upper() if "tpot" in result.error_before else "E2E"  # of vectors or scores
            print(
                f"{name}: off by {result.error_before[key]:.1%} before,"
                f" {result.error_after[key]:.1%} after; 80% interval {wide} before, {narrow} after"
            )
    for remark in _list_remarks(result):
        print(remark)
    print(f"kept in {result.path}; use it with --profile {profile if out is None else result.path}")


def _list_remarks(result: "CalibratedProfile") -> Iterator[str]:
    """List what else there is to say of a calibration."""
    if result.acceptance is not None:
        yield (
            f"drafts: a guess was accepted with a probability of {result.acceptance:.0%}, which is"
            " kept too"
        )
    if result.pictures is not None:
        yield _tell_pictures(result.pictures)
    if result.furthest > 2:
        yield (
            f"the prediction before was off by a factor of {result.furthest:.1f}: check that"
            f" {result.deployment} is what ran, with its precision and arguments"
        )
    if result.remark:
        yield result.remark


def _tell_pictures(pictures: "LearnedPictures") -> str:
    """Say what was learned of pictures, and what was not."""
    from loadstone.predict.step_time.pictures import TERMS

    sizes = ", ".join(pictures.sizes)
    if len(pictures.sizes) == 1:
        return (
            f"pictures of {sizes}: what one takes is learned as a whole, and not how that grows"
            " with its size, which stays a guess; measure a second size"
        )
    learned = [words for name, words in TERMS.items() if name in pictures.learned]
    guessed = [words for name, words in TERMS.items() if name not in pictures.learned]
    rest = f"; told apart by guess: {', '.join(guessed)}" if guessed else ""
    return f"pictures of {sizes}: learned {', '.join(['what they take together', *learned])}{rest}"


_MAX_ADVISED_USERS = 4096
_MAX_ADVISED_LOADS = 16


def _advise(deployment: str | None, loads: str, json: bool) -> None:
    """Print what to measure before a calibration."""
    from loadstone.calibrate.advise import advise
    from loadstone.catalogue import parse_deployment
    from loadstone.commands.output import print_json, print_text
    from loadstone.report.table import Table
    from loadstone.workload.option_values import counts, tokens

    parts = re.fullmatch(r"([^/@]+)/([^/@]+)@([^/@]+)", loads)
    if deployment is None or parts is None:
        raise InputError(
            f"--advise {loads!r}: needs INPUT/OUTPUT@USERS, such as 1024/128@1,16,64, and"
            " --deployment"
        )
    input, output = (tokens(part, "--advise") for part in parts.groups()[:2])
    users = list(dict.fromkeys(counts(parts[3], "--advise")))
    if input < 1 or output < 2:
        raise InputError(
            f"--advise: {input} tokens in, {output} out; give at least 1 in, and 2 out to have a"
            " TPOT"
        )
    if max(users) > _MAX_ADVISED_USERS or len(users) > _MAX_ADVISED_LOADS:
        raise InputError(
            f"--advise: {len(users):,} loads of up to {max(users):,} users; advice is for at most"
            f" {_MAX_ADVISED_LOADS} loads of {_MAX_ADVISED_USERS:,}"
        )
    advice = advise(parse_deployment(deployment).asked_for(None), input, output, users)
    if json:
        print_json(advice)
        return
    rows = [["nothing", "", *map(_ends, advice.interval_before.values())]] + [
        [
            f"{load.input_tokens:,} tokens",
            f"{load.concurrency}",
            *map(_ends, load.interval_after.values()),
        ]
        for load in advice.loads
    ]
    print_text(
        f"80% intervals of {input:,}-token prompts with {parts[3]} users on {advice.deployment},"
        " after measuring",
        Table(heads=["prompts of", "users", "TTFT", "TPOT"], align="lrrr", rows=rows),
        "\n".join(advice.commands),
    )


def _ends(up: float) -> str:
    """Write an interval as `−32/+48 %`: as far down on a log scale as it goes up."""
    return f"−{up / (1 + up):.0%}/+{up:.0%}".replace("%/", "/")
