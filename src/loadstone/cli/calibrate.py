"""`loadstone calibrate`: the performance model fitted to the user's own runs, or to a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from loadstone.errors import InputError


def calibrate(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="run folders of `loadstone bench`, all of one deployment")
    ] = None,
    deployment: Annotated[
        str | None,
        typer.Option(
            help="what the runs were measured on, e.g. llama-3.1-8b@1xh100/engine=vllm [default: as told to `bench`]"
        ),
    ] = None,
    gpu: Annotated[
        bool,
        typer.Option("--gpu", help="benchmark this machine's GPU instead: memory, products, attention, launches"),
    ] = False,
    budget: Annotated[str, typer.Option(help="with --gpu: time that it may take")] = "420s",
    points: Annotated[
        Path | None,
        typer.Option(
            help="with --gpu: measure nothing, take this gpu.json of an earlier --gpu, perhaps of another machine"
        ),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="with --gpu: engine whose coefficients to update, e.g. vllm")
    ] = None,
    profile: Annotated[str, typer.Option(help="name to keep the calibrated coefficients by")] = "mine",
    out: Annotated[
        Path | None, typer.Option(help="folder to keep them in [default: ~/.config/loadstone/profiles]")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print the result as JSON on stdout")] = False,
) -> None:
    """Fit the performance model to your own runs, or to a GPU. A few runs are enough; it says how sure predictions
    became. Use the result with --profile.
    """
    if gpu:
        if runs or deployment:
            raise InputError("--gpu measures this machine: leave run folders and --deployment out, or --gpu")
        _of_gpu(profile, out, budget, points, engine, json)
        return
    for flag, given in (("--points", points), ("--engine", engine)):
        if given is not None:
            raise InputError(f"{flag}: goes with --gpu; of runs --deployment says what they were measured on")
    if not runs:
        raise InputError(
            "calibrate: give run folders, e.g. "
            "loadstone calibrate runs/a --deployment llama-3.1-8b@1xh100/engine=vllm; or --gpu"
        )
    import datetime
    from math import exp
    from statistics import median

    from loadstone.calibrate.runs import cases_of_runs, deployment_of_runs
    from loadstone.calibrate.update import update
    from loadstone.catalogue import parse_deployment
    from loadstone.cli.output import print_json
    from loadstone.perfmodel.profile import profile_of, save, user_folder

    if not profile.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise InputError(f"--profile {profile!r}: letters, digits, - _ . only")
    runs = list({run.resolve(): run for run in runs}.values())  # given twice, one tells no more
    target = parse_deployment(deployment) if deployment is not None else deployment_of_runs(runs)
    cases = cases_of_runs(runs, target)
    base = profile_of(target)
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    found = update(base, cases, profile, today)
    path = save(found.profile, out or user_folder())
    if json:
        print_json(
            {
                "schema": 1, "profile": profile, "path": str(path), "from": base.name, "points": len(cases),
                "interval_before": _means(found.before), "interval_after": _means(found.after),
                "error_before": _errors(found.gap_before), "error_after": _errors(found.gap_after),
            }
        )  # fmt: skip
        return
    print(f"{len(cases)} measured cell{'s' if len(cases) > 1 else ''} of {target.name}, from {base.name}")
    for key, title in (("tpot", "TPOT"), ("ttft", "TTFT")):
        before, after = _errors(found.gap_before).get(key), _errors(found.gap_after).get(key)
        if before is None or after is None:
            continue
        print(
            f"{title}: off by {before:.1%} before, {after:.1%} after; 80 % interval ±{_means(found.before)[key]:.0%} "
            f"before, ±{_means(found.after)[key]:.0%} after"
        )
    far = max((exp(abs(median(gaps))) for gaps in found.gap_before.values() if gaps), default=1.0)
    if far > 2:
        print(f"a factor of {far:.1f} off before: is {target.name} what ran, with its precision and arguments?")
    print(f"kept in {path}; use it with --profile {profile if out is None else path}")


def _of_gpu(
    profile: str, out: Path | None, budget: str, points: Path | None, engine: str | None, as_json: bool
) -> None:
    from loadstone.cli.output import print_json
    from loadstone.gpubench.command import calibrate as benchmark
    from loadstone.units import parse_seconds

    def say(text: str) -> None:
        print(text, file=sys.stderr if as_json else sys.stdout, flush=True)

    found = benchmark(
        Path("gpu.json"),
        parse_seconds(budget, "--budget"),
        say,
        name=profile,
        engine=engine,
        measured=points,
        folder=out,
    )
    if as_json:
        print_json(found)


def _means(values: dict[str, list[float]]) -> dict[str, float]:
    return {key: sum(each) / len(each) for key, each in values.items() if each}


def _errors(gaps: dict[str, list[float]]) -> dict[str, float]:
    from math import expm1
    from statistics import median

    return {key: median(abs(expm1(-gap)) for gap in each) for key, each in gaps.items() if each}
