"""`loadstone report`: runs to a page, a text, a sheet or pictures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from loadstone.commands.flags import Price, json_flag
from loadstone.commands.output import print_json
from loadstone.core.errors import InputError

if TYPE_CHECKING:
    from loadstone.core.ranked_runs import RankedRuns
    from loadstone.core.summary import Summary


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="run folders, or folders of them: measured, simulated or imported"),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="file to write (-: stdout), or folder of pictures [default: report.html]",
        ),
    ] = None,
    format: Annotated[
        Literal["html", "md", "csv", "png", "svg"] | None,
        typer.Option(help="what to write [default: by the file's suffix, else html]"),
    ] = None,
    set: Annotated[
        list[str] | None,
        typer.Option(
            help="for other tools' files, a fact missing from them: model=…, gpu=h200, gpus=8 …"
        ),
    ] = None,
    price: Price = None,
    json: Annotated[bool, json_flag("what was written")] = False,
) -> None:
    """Report on runs, in one file that opens offline. It has verdicts, findings in words, tables
    and charts."""
    from loadstone.interop.read.folders import run_folders

    with run_folders(runs, set or ()) as (folders, passed_over):
        write_report(folders, out, json, kind=format, passed_over=passed_over, price=price or ())


def write_report(folders: Sequence[Path], out: Path | None, as_json: bool, **others: Any) -> None:
    """Write a report and say what was written. `others`: as of report.write.report()."""
    from loadstone.report.write import report as write

    if as_json and out == Path("-"):
        raise InputError("--json and -o -: both write to stdout; name a file with -o")
    files, made = write(folders, out, **others)
    for left_out in made.passed_over:
        print(f"loadstone: passed over: {left_out}", file=sys.stderr)
    if as_json:
        print_json({"schema": 1, "files": [str(path) for path in files], **made.prices_document()})
        return
    for path in files:
        print(path)
    if made.unpriced is not None:
        print(f"loadstone: {made.unpriced}", file=sys.stderr)


def open_report(result: Summary | RankedRuns) -> None:
    """Write report.html into the folder of a run, and open it in a browser where there is one."""
    import webbrowser

    from loadstone.core.ranked_runs import RankedRuns
    from loadstone.report.write import report as write

    runs = result.runs if isinstance(result, RankedRuns) else [result]
    folders = [Path(run.run_dir) for run in runs]
    files, _ = write(folders, folders[0] / "report.html")
    print(f"wrote {files[0]}", file=sys.stderr)
    if sys.stdout.isatty():
        webbrowser.open(files[0].resolve().as_uri())
