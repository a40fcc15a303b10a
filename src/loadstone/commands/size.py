"""`loadstone size`: does it fit, how long a context, how many at once."""

import sys
from pathlib import Path
from typing import Annotated

from loadstone.commands.flags import option, takes
from loadstone.commands.output import print_json, print_text
from loadstone.core.errors import InputError
from loadstone.predict.sizing.options import SizeOptions, words

_OUT = "Output"


@takes(SizeOptions)
def size(
    options: SizeOptions,
    by: Annotated[
        str | None,
        option(
            _OUT,
            "a table of two facts instead, e.g. gpus,model; weights_dtype,gpu; or model,machine"
            " (8×h100)",
        ),
    ] = None,
    show: Annotated[
        str, option(_OUT, "with --by: what the table shows: max-context, requests, kv-tokens, fits")
    ] = "max-context",
    csv: Annotated[Path | None, option(_OUT, "also write the rows to this file")] = None,
    picture: Annotated[
        Path | None, option(_OUT, "draw the memory of each GPU to this file: .png, .svg or .html")
    ] = None,
    context_map: Annotated[
        Path | None,
        option(
            _OUT, "draw the longest contexts, models by GPUs, to this file: .png, .svg or .html"
        ),
    ] = None,
    json: Annotated[bool, option(_OUT, "print the rows as JSON on stdout", "--json")] = False,
    strict: Annotated[bool, option(_OUT, "exit 1 if no row fits", "--strict")] = False,
) -> None:
    """Compute whether a model fits, its longest context, its batch. By the engine's memory rules,
    without a GPU."""
    from loadstone.predict.pool_rates import rates_of
    from loadstone.predict.sizing.deployments import sizes

    rows = sizes(options)
    rates = rates_of(options) if options.answer else []
    try:
        if csv is not None:
            from loadstone.report.pages.sizes import sizes_csv

            csv.write_text(sizes_csv(rows), encoding="utf-8")
        if picture is not None or context_map is not None:
            from loadstone.report.charts.sizing import contexts_picture, memory_picture
            from loadstone.report.pages.html import save_picture

            for draw, file in ((memory_picture, picture), (contexts_picture, context_map)):
                if file is not None:
                    save_picture(draw(rows), file)
    except OSError as error:
        raise InputError(
            f"{error.filename}: cannot write ({error.strerror}); name another file"
        ) from error
    if json:
        carried = [{**rate._asdict(), "says": rate.describe()} for rate in rates]
        print_json({"schema": 1, "rows": rows} | ({"pools": carried} if rates else {}))
    else:
        from loadstone.report.pages.sizes import render, render_pivot

        shown = render(rows) if by is None else render_pivot(rows, words(by, "--by"), show)
        print_text(*shown, *(rate.describe() for rate in rates))
    if strict and not any(row.fits for row in rows):
        sys.exit(1)
