"""Results on stdout: one JSON document, or what a person reads."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from loadstone.core.signals import SIGNALS, Interrupted
from loadstone.core.text import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.table import Column, Table

INTERRUPTED = 130
"""Exit code of a command that a signal ended, as of a program that SIGINT kills."""
_WIDTH = 160
"""Of what goes to a file or another program."""
_HEADING_WIDTH = 12
"""Of a heading on a terminal; one with its unit takes more lines, not a wider column."""
_NUMBER = re.compile(r"-?[0-9][0-9.,]*(?:e[+-]?[0-9]+)?")
_OBEYED = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_ONE_LINE = str.maketrans("\t\r\n", "   ")


def show_document(document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(document)
        return
    from loadstone.core.summary import Summary
    from loadstone.report.pages.terminal import ranked, render

    if "runs" in document:
        if "ranking" in document:  # of several deployments
            print_text(ranked(document["ranking"]))
        else:
            print_text(*(render(Summary.of(run)) for run in document["runs"]))
        for run in document["runs"]:
            print(run["run_dir"])
        return
    print_text(render(Summary.of(document)))
    if "max" in document:
        print_text("", document["max"]["text"])
    print(document["run_dir"])


def show_run(run: Callable[[], dict[str, Any]], done: str, as_json: bool, strict: bool) -> None:
    """Shows the document of a run that was `done` ("measured"), and ends the command with the exit code for it; of a
    run that a signal ends, what there is of it, and where it is.
    """
    from loadstone.core.summary import Summary

    try:
        document = run()
    except Interrupted as interrupted:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # impatience shall not cut what is printed of it
        with contextlib.suppress(OSError):  # whoever read it may be gone, as with a terminal that is closed
            show_document(interrupted.document, as_json)
        print(f"interrupted; what was {done} is in {interrupted.folder}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except KeyboardInterrupt:
        print(f"loadstone: interrupted before anything was {done}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    show_document(document, as_json)
    runs = document.get("runs", [document])
    if any(run["status"] == "failed" or (strict and not Summary.of(run).trusted) for run in runs):
        sys.exit(1)


def print_text(*parts: RenderableType) -> None:
    """What a person reads. A table that is wider than the terminal is cut into several, so that no figure is."""
    from rich.console import Console

    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=_WIDTH)
    for part in _pieces(parts, console.width):
        # Indented lines, such as commands, are broken by the terminal alone, so that they can be copied.
        console.print(_Printable(part), soft_wrap=isinstance(part, str) and part.startswith("  "))


class _Printable:
    """Text, whoever it is of, that says nothing to the terminal itself: the last place where that is seen to."""

    def __init__(self, part: RenderableType) -> None:
        self._part = part

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._part, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def _pieces(parts: tuple[RenderableType, ...], width: int) -> Iterator[RenderableType]:
    from rich.console import Group
    from rich.table import Table

    for part in parts:
        if isinstance(part, Group):
            yield from _pieces(tuple(part.renderables), width)
        elif isinstance(part, Table):
            yield from fitted(part, width)
        else:
            yield part


def fitted(table: Table, width: int) -> list[Table]:
    """The table where it fits into so many columns of text; else its columns in several tables, each of which begins
    with those that say what a line is of: words before numbers where they fit too, else the first.
    """

    made = [table]
    if _room(table) > width:
        numbers = [at for at, column in enumerate(table.columns) if column.justify == "right"]
        for keys in dict.fromkeys((max(1, numbers[0] if numbers else 1), 1)):
            bound: list[list[Column]] = []
            for column in table.columns[keys:]:
                if column.header == "p99" and bound:
                    bound[-1].append(column)  # of what the column before it is
                else:
                    bound.append([column])
            made, chosen = [], table.columns[:keys]
            for columns in bound:
                if len(chosen) > keys and _room(_of(table, [*chosen, *columns])) > width:
                    made.append(_of(table, chosen))
                    chosen = table.columns[:keys]
                chosen = [*chosen, *columns]
            made.append(_of(table, chosen))
            if max(map(_room, made)) <= width:
                break
    return made


def _room(table: Table) -> int:
    """The columns of text that it takes where there is no end of them."""
    from rich.console import Console

    # As no terminal, since a dumb one (TERM=dumb) is 80 wide to rich whatever is said.
    return Console(width=10_000, force_terminal=False).measure(table).maximum


def _of(table: Table, columns: list[Column]) -> Table:
    """Some columns of a table."""
    from rich.table import Table

    part = Table(box=table.box, pad_edge=table.pad_edge, padding=table.padding, header_style=table.header_style)
    for column in columns:
        part.add_column(column.header, justify=column.justify, no_wrap=column.no_wrap)
    for line in zip(*(column.cells for column in columns), strict=True):
        part.add_row(*line)
    return part


def print_json(document: object) -> None:
    import msgspec

    text = msgspec.json.encode(document, enc_hook=str).decode()
    # What a terminal would obey, such as a change of the direction of writing, is escaped as JSON has it.
    sys.stdout.write(_OBEYED.sub(lambda each: f"\\u{ord(each[0]):04x}", text) + "\n")


def print_rows(columns: list[str], rows: list[tuple[Any, ...]]) -> None:
    """A query's rows on stdout: a table on a terminal, tab-separated values elsewhere."""
    if not sys.stdout.isatty():
        for row in (columns, *rows):
            print("\t".join(printable(_plain(value).translate(_ONE_LINE)) for value in row))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD)
    for place, column in enumerate(columns):
        cells = [row[place] for row in rows]
        numbers = any(map(_is_number, cells)) and all(cell in (None, "-") or _is_number(cell) for cell in cells)
        heading = textwrap.fill(column, _HEADING_WIDTH, break_long_words=False, break_on_hyphens=False)
        table.add_column(Text(printable(heading)), justify="right" if numbers else "left", vertical="bottom")
    for row in rows:
        table.add_row(*(Text(printable(_plain(value))) for value in row))
    console = Console()
    parts = fitted(table, console.width)
    narrow = max(map(_room, parts)) <= console.width
    for part in parts if narrow else [table]:  # where a text is longer than a line, its lines stay beside one another
        console.print(part)


def _is_number(value: object) -> bool:
    """Whether a cell is a number, or the text of one."""
    return isinstance(value, int | float) or (isinstance(value, str) and _NUMBER.fullmatch(value) is not None)


def _plain(value: Any) -> str:
    """A cell of a query's table: what is nested as JSON."""
    if isinstance(value, dict | list | tuple):
        import msgspec

        return msgspec.json.encode(value, enc_hook=str).decode()
    return "" if value is None else str(value)
