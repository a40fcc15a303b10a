"""`loadstone trend`: runs of setups over releases and dates, and when their numbers changed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from loadstone.commands.output import print_json, print_text


def trend(
    runs: Annotated[list[Path], typer.Argument(help="run folders, or folders of them, or other tools' result files")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="write a page too, e.g. trend.html")] = None,
    false_alarms: Annotated[
        float, typer.Option(help="the chance of any alarm where nothing changed; a smaller one needs more runs")
    ] = 0.002,
    strict: Annotated[bool, typer.Option("--strict", help="exit 1 where something changed for the worse")] = False,
    seed: Annotated[int, typer.Option(min=0, help="seed of the test: same runs and seed, same result")] = 0,
    json: Annotated[bool, typer.Option("--json", help="print series and changes as JSON on stdout")] = False,
) -> None:
    """Find when a setup became faster or slower, over releases and dates. Shows each change with its runs."""
    from loadstone.analyse.trend import find_changes
    from loadstone.interop.read.folders import run_folders
    from loadstone.report.data.runs import read_runs
    from loadstone.report.pages.trend import render, write_page

    with run_folders(runs, ()) as (folders, passed_over):
        read, unreadable = read_runs(folders)
    found = find_changes(read, false_alarms=false_alarms, seed=seed)
    for left_out in (*passed_over, *unreadable):
        print(f"loadstone: passed over: {left_out}", file=sys.stderr)
    if out is not None:
        write_page(found, out)
    if json:
        import msgspec

        print_json(msgspec.to_builtins(found))
    else:
        print_text(*render(found))
        if out is not None:
            print(out)
    if strict and any(change.worse for change in found.changes):
        raise typer.Exit(1)
