"""Results on stdout: one JSON document, or what a person reads."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from loadstone.core.signals import SIGNALS, Interrupted
from loadstone.core.text import printable

if TYPE_CHECKING:
    from loadstone.core.ranked_runs import RankedRuns
    from loadstone.core.summary import Summary
    from loadstone.report.table import Shown

INTERRUPTED = 130
"""Exit code of a command that a signal ended, as of a program that SIGINT kills."""
_WIDTH = 80
"""Characters of a table's line in a file or in another program's input, unless COLUMNS says
otherwise; lines of text are not broken there."""
_HEADING_WIDTH = 12
"""Characters of a heading on a terminal; one with its unit takes more lines, not a wider column."""
_NUMBER = re.compile(r"-?[0-9][0-9.,]*(?:e[+-]?[0-9]+)?")
_OBEYED = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_ONE_LINE = str.maketrans("\t\r\n", "   ")


def show_result(
    result: Summary | RankedRuns, as_json: bool, explain: bool = False, announced: bool = False
) -> None:
    """Print the numbers of a run or of several, and where these are kept.

    explain: also what the numbers mean; announced: the title is on the terminal already
    """
    from loadstone.core.ranked_runs import RankedRuns
    from loadstone.core.summary import SearchSummary
    from loadstone.report.pages.terminal import render, render_ranking

    if as_json:
        print_json(result.document())
        return
    if isinstance(result, RankedRuns):
        if result.ranking is not None:
            print_text(*render_ranking(result.ranking))
        else:
            print_text(*(part for run in result.runs for part in render(run, explain)))
        for run in result.runs:
            print(run.run_dir)
        return
    found = ["", result.max.text] if isinstance(result, SearchSummary) else []
    parts = render(result, explain)
    if announced and sys.stdout.isatty() and sys.stderr.isatty():
        parts = parts[1:]
    print_text(*parts, *found, f"next: loadstone report {result.run_dir}")
    print(result.run_dir)


def show_run(
    run: Callable[[], Summary | RankedRuns],
    done: str,
    as_json: bool,
    strict: bool,
    explain: bool,
) -> None:
    """Show the result of a run that was `done` ("measured"), and end the command with its exit
    code.

    Of a run that a signal ends, show what there is of it, and where it is.
    """
    from loadstone.core.ranked_runs import RankedRuns

    try:
        result = run()
    except Interrupted as interrupted:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # impatience shall not cut what is printed of it
        # Whoever read it may be gone, as with a terminal that is closed.
        with contextlib.suppress(OSError):
            show_result(interrupted.result, as_json, explain)
        print(f"interrupted; what was {done} is in {interrupted.folder}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except KeyboardInterrupt:
        print(f"loadstone: interrupted before anything was {done}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    show_result(result, as_json, explain, announced=done == "measured")
    runs = result.runs if isinstance(result, RankedRuns) else [result]
    if any(summary.status == "failed" or (strict and not summary.trusted) for summary in runs):
        sys.exit(1)


def print_text(*parts: Shown) -> None:
    """Print lines and tables for a person, each table as the width of the terminal allows."""
    from loadstone.report.table import print_parts, to_text

    if not sys.stdout.isatty():
        columns = os.environ.get("COLUMNS", "")
        sys.stdout.write(to_text(parts, int(columns) if columns.isdecimal() else _WIDTH))
        return
    from rich.console import Console

    print_parts(Console(highlight=False), parts)


def print_json(document: object) -> None:
    import msgspec

    text = msgspec.json.encode(document, enc_hook=str).decode()
    # What a terminal would obey, such as a change of the direction of writing, is escaped as JSON
    # has it.
    sys.stdout.write(_OBEYED.sub(lambda each: f"\\u{ord(each[0]):04x}", text) + "\n")


def print_rows(columns: list[str], rows: list[tuple[Any, ...]], spare: Sequence[str] = ()) -> None:
    """Print a query's rows: a table on a terminal, tab-separated values elsewhere. `spare`: as of
    Table."""
    if not sys.stdout.isatty():
        for row in (columns, *rows):
            print("\t".join(printable(_plain(value).translate(_ONE_LINE)) for value in row))
        return
    from loadstone.report.table import Table

    lines = [[_plain(value) for value in row] for row in rows]
    align = "n"
    for column in range(1, len(columns)):
        cells = [row[column] for row in rows]
        numbers = any(map(_is_number, cells)) and all(
            cell in (None, "-") or _is_number(cell) for cell in cells
        )
        align += "r" if numbers else "w"
    heads = [
        textwrap.fill(head, _HEADING_WIDTH, break_long_words=False, break_on_hyphens=False)
        for head in columns
    ]
    print_text(Table(heads=heads, align=align, rows=lines, spare=spare))


def _is_number(value: object) -> bool:
    """Tell whether a cell is a number, or the text of one."""
    return isinstance(value, int | float) or (
        isinstance(value, str) and _NUMBER.fullmatch(value) is not None
    )


def _plain(value: Any) -> str:
    """Write a cell of a query's table: what is nested as JSON."""
    if isinstance(value, dict | list | tuple):
        import msgspec

        return msgspec.json.encode(value, enc_hook=str).decode()
    return "" if value is None else str(value)
