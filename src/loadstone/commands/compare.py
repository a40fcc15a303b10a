"""`loadstone compare` and `loadstone trend`: whether two sides of runs, or those of other dates,
differ by more than chance.
"""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from loadstone.commands.flags import PlainExplain, Price, json_flag
from loadstone.commands.output import print_json, print_text


def compare(
    sides: Annotated[
        tuple[str, str],
        typer.Argument(
            metavar="A B",
            help="run folders; repeats with commas, A1,A2,A3 B1,B2,B3; or folders of repeats",
        ),
    ],
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-on",
            help="exit 1 if B differs from A by more: 'ttft_p99>+5%', 'output_tokens_per_s<-3%'",
        ),
    ] = None,
    allow_errors: Annotated[
        bool,
        typer.Option(
            "--allow-errors", help="let B pass --fail-on with loads that have an error finding"
        ),
    ] = False,
    price: Price = None,
    seed: Annotated[
        int, typer.Option(help="seed of the permutation tests: same runs and seed, same result")
    ] = 0,
    format: Annotated[
        Literal["text", "github", "junit"],
        typer.Option(help="text, GitHub's annotations, or JUnit's XML, for continuous integration"),
    ] = "text",
    json: Annotated[bool, json_flag("the comparison")] = False,
    explain: PlainExplain = False,
) -> None:
    """Compare two runs, or two sets of repeats. Shows what differs in the setup, and each metric's
    ratio B/A with its interval and a test."""
    from loadstone.analyse.compare import compare as compare_runs
    from loadstone.core.errors import InputError

    if json and format != "text":
        raise InputError(f"--json and --format {format}: each is a document of its own; give one")
    if seed < 0:
        raise InputError(f"--seed {seed}: must be 0 or more")
    a, b = map(_folders, sides)
    comparison = compare_runs(
        a, b, fail_on=fail_on or (), allow_errors=allow_errors, price=price or (), seed=seed
    )
    if json:
        print_json(comparison)
    elif format != "text":
        from loadstone.report.pages.checks import github, junit

        sys.stdout.write((github if format == "github" else junit)(comparison))
    else:
        from loadstone.report.pages.comparison import render

        print_text(*render(comparison, explain))
    if any(bound.fails for bound in comparison.fail_on or ()):
        raise typer.Exit(1)


def trend(
    runs: Annotated[
        list[Path],
        typer.Argument(help="run folders, or folders of them, or other tools' result files"),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="write a page too, e.g. trend.html")
    ] = None,
    false_alarms: Annotated[
        float,
        typer.Option(
            help="the chance of any alarm where nothing changed; a smaller one needs more runs"
        ),
    ] = 0.002,
    strict: Annotated[
        bool, typer.Option("--strict", help="exit 1 where something changed for the worse")
    ] = False,
    json: Annotated[bool, json_flag("series and changes")] = False,
) -> None:
    """Find when a setup became faster or slower, over releases and dates. Shows each change with
    its runs."""
    from loadstone.analyse.stored_run import leave_out_copies
    from loadstone.analyse.trend import find_changes
    from loadstone.interop.read.folders import run_folders
    from loadstone.report.data.runs import read_runs
    from loadstone.report.pages.trend import render, write_page

    with run_folders(runs) as (folders, passed_over):
        read, unreadable = read_runs(folders)
        read, copies = leave_out_copies(read)
    found = find_changes(read, false_alarms=false_alarms)
    for left_out in (*passed_over, *unreadable, *copies):
        print(f"loadstone: passed over: {left_out}", file=sys.stderr)
    if out is not None:
        write_page(found, out)
    if json:
        print_json(found)
    else:
        print_text(*render(found), *([str(out)] if out is not None else []))
    if strict and any(change.worse for change in found.changes):
        raise typer.Exit(1)


def _folders(text: str) -> list[Path]:
    """Read one folder, or several with commas; a folder whose name has a comma is itself."""
    return (
        [Path(text)]
        if Path(text).exists()
        else [Path(part.strip()) for part in text.split(",") if part.strip()]
    )
