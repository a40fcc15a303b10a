"""Results on stdout: one JSON document, or what a person reads."""

from __future__ import annotations

import sys
from typing import Any


def show_document(document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(document)
        return
    from rich.console import Console

    from loadstone.report.table import render

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(render(document))
    console.print(document["run_dir"], markup=False, soft_wrap=True)


def print_json(document: dict[str, Any]) -> None:
    import msgspec

    sys.stdout.write(msgspec.json.encode(document, enc_hook=str).decode() + "\n")
