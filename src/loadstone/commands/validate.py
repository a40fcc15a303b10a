"""`loadstone validate`: the performance model against published measurements."""

from pathlib import Path
from typing import Annotated

import typer

from loadstone.commands.flags import json_flag


def validate(
    points: Annotated[
        Path,
        typer.Argument(help="CSV of measurements, a line each (docs/accuracy.md has the columns)"),
    ],
    profile: Annotated[
        str | None,
        typer.Option(
            help="coefficients made by `calibrate`, by name or file [default: the shipped ones]"
        ),
    ] = None,
    json: Annotated[bool, json_flag("rows and summary")] = False,
) -> None:
    """Predict every measurement in a file, and show the errors. Nothing is fitted on the file."""
    from loadstone.calibrate.points import read_points
    from loadstone.calibrate.validate import score, validation
    from loadstone.commands.output import print_json, print_text
    from loadstone.report.pages.validation import render

    rows = score(read_points(points), profile)
    if json:
        print_json(validation(rows))
        return
    print_text(*render(rows))
