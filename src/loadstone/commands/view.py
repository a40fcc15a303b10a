"""`loadstone view`: runs in a browser."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from loadstone.commands.flags import json_flag
from loadstone.commands.output import print_json


def view(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="folders of runs, or run folders [default: runs]", show_default=False),
    ] = None,
    host: Annotated[
        str, typer.Option(help="address to listen on; beyond this machine, a token is required")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="port to listen on; 0: any free port", min=0, max=65535)
    ] = 8717,
    token: Annotated[
        bool, typer.Option("--token", help="require a token on this machine too")
    ] = False,
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="a host name that browsers may use for it (may be repeated)", show_default=False
        ),
    ] = None,
    json: Annotated[bool, json_flag("the URL")] = False,
) -> None:
    """Show runs in a browser. List, reports, comparisons, and live curves while a benchmark runs;
    read-only."""
    from loadstone.report.view.serve import serve

    def ready(url: str) -> None:
        if json:
            print_json({"schema": 1, "url": url})
            sys.stdout.flush()
        else:
            print(f"{url}    (stop with Ctrl-C)", flush=True)

    serve(
        runs or [Path("runs")], host=host, port=port, token=token, names=name or (), on_ready=ready
    )
