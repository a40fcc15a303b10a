"""`loadstone doctor`: what this machine has for launching, measuring and keeping runs, and what to install."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadstone.commands.flags import Out
from loadstone.commands.output import print_json, print_text


def doctor(
    out: Out = Path("runs"),
    json: Annotated[bool, typer.Option("--json", help="print what was found as JSON on stdout")] = False,
) -> None:
    """Look at what this machine has: engines, GPUs, clocks, limits. Says what to install; starts nothing."""
    import msgspec

    from loadstone.report.pages.doctor import render
    from loadstone.runs.doctor import examine

    found = examine(out)
    if json:
        print_json(msgspec.to_builtins(found))
    else:
        rows = ((each.group, each.name, each.state, each.found, each.remedy) for each in found.checks)
        print_text(*render(rows))
