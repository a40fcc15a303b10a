"""One table for people, shown on a terminal, in Markdown, in HTML (`templates/parts.html`) and as
CSV."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from loadstone.core.text import printable

if TYPE_CHECKING:
    from rich.align import VerticalAlignMethod
    from rich.console import Console

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&$@-])")
_PLAIN = re.compile(r"\\([().+-])")
_GAP = 2
"""Characters between two columns on a terminal; the first and the last have one before and after
them."""
_BREAKABLE = 24
"""Characters that a column of words keeps at least before a table is cut."""


_Subject = TypeVar("_Subject")


class Column(msgspec.Struct, Generic[_Subject], frozen=True):
    """Declares a column: its head, and what it says of what a row is about; `side`: see Table."""

    head: str
    show: Callable[[_Subject], str]
    side: str = "r"


class Table(msgspec.Struct, kw_only=True):
    """Rows of text under heads.

    align     a letter for each column: l is left, r is right; w is left and wide, and is broken
              into lines before the table is cut; n is left and never broken; u is right and belongs
              to the column before it: a terminal keeps both together, a page shows it small under
              the other
    notes     what the numbers mean
    style     gives the last column's style on a terminal, by its text
    words     the rows are read one by one, not down the columns
    sortable  a page lets one sort and filter the rows
    """

    heads: list[str]
    align: str
    rows: list[list[str]]
    key: str = ""
    title: str = ""
    notes: list[str] = msgspec.field(default_factory=list)
    style: Callable[[str], str] | None = None
    words: bool = False
    sortable: bool = False

    @property
    def groups(self) -> list[tuple[str, list[int]]]:
        """The columns of a page: the side of each, and which columns stand in it, one under the
        other."""
        groups: list[tuple[str, list[int]]] = []
        for index, side in enumerate(self.align):
            if side == "u":
                groups[-1][1].append(index)
            else:
                groups.append((side, [index]))
        return groups


Shown = str | Table
"""What people are shown is made of these: lines of plain text, and tables."""


def tabulate(
    columns: Sequence[Column[_Subject]], subjects: Iterable[_Subject], **options: Any
) -> Table:
    """Make a table of these columns, a row for each subject. `options`: other fields of Table."""
    return Table(
        heads=[column.head for column in columns],
        align="".join(column.side for column in columns),
        rows=[[column.show(subject) for column in columns] for subject in subjects],
        **options,
    )


def show_verdict(text: str) -> str:
    """Give the style of a last column that says yes or NO."""
    if text.startswith("NO"):
        return "bold red"
    return "green" if text.startswith("yes") else ""


def select(table: Table, columns: Sequence[int]) -> Table:
    """Return the table with these columns alone."""
    is_last = bool(columns) and columns[-1] == len(table.heads) - 1
    return replace(
        table,
        heads=[table.heads[index] for index in columns],
        align="".join(table.align[index] for index in columns),
        rows=[[row[index] for index in columns] for row in table.rows],
        style=table.style if is_last else None,
    )


def drop_empty_columns(table: Table) -> Table:
    """Return the table without the columns that have nothing to say in any row."""
    if not table.rows:
        return table
    kept: list[int] = []
    sides = ""
    for _, group in table.groups:
        present = [index for index in group if any(row[index] != "-" for row in table.rows)]
        if present:
            # What stands under a column that is left out takes its place.
            sides += table.align[group[0]] if present[0] == group[0] else "r"
            sides += "u" * (len(present) - 1)
            kept += present
    return replace(select(table, kept), align=sides)


# --- a terminal -----------------------------------------------------------------------------------


def to_text(parts: Iterable[Shown], width: int) -> str:
    """Write lines and tables as plain text: tables `width` characters wide at most, lines
    unbroken."""
    from rich.console import Console

    buffer = io.StringIO()
    print_parts(
        Console(file=buffer, width=width, highlight=False, force_terminal=False), parts, wrap=False
    )
    return buffer.getvalue()


def print_parts(console: Console, parts: Iterable[Shown], *, wrap: bool = True) -> None:
    """Print lines and tables. Tables wider than the console are cut into several, so that no number
    is.

    Nothing that is printed is an order to the terminal. `wrap`: long lines are broken between
    words, but for indented ones, such as commands: these can be copied.
    """
    from rich.text import Text

    for part in parts:
        if isinstance(part, str):
            console.print(Text(printable(part)), soft_wrap=not wrap or part.startswith("  "))
            continue
        for piece in split(part, console.width):
            _print(console, piece)


def split(table: Table, width: int) -> list[Table]:
    """Cut a table into several that are `width` characters wide at most.

    Each begins with the columns that name a row: those before the first number where they leave
    room, else the first; rows that have nothing but their name there are left out.
    """
    widths = _widths(table)

    def room(columns: Sequence[int]) -> int:
        return sum(widths[index] for index in columns) + _GAP * len(columns)

    if room(range(len(widths))) <= width:
        return [table]
    pieces: list[list[int]] = []
    groups = [columns for _, columns in table.groups]
    words = len(table.align) - len(table.align.lstrip("lnw"))
    for keys in dict.fromkeys((max(1, words), 1)):
        names = [index for columns in groups[:keys] for index in columns]
        pieces = [names]
        for columns in groups[keys:]:
            if pieces[-1] != names and room([*pieces[-1], *columns]) > width:
                pieces.append(names)
            pieces[-1] = [*pieces[-1], *columns]
        if max(map(room, pieces)) <= width:
            break
    cut = [select(table, piece) for piece in pieces]
    for piece in cut:
        piece.rows = [row for row in piece.rows if any(row[len(names) :])]
    return cut


def _widths(table: Table) -> list[int]:
    """Measure how many characters each column needs."""
    from rich.cells import cell_len

    widths = []
    for side, *texts in zip(table.align, table.heads, *table.rows, strict=True):
        lines = "\n".join(texts).split("\n")
        widest = max(cell_len(printable(line)) for line in lines)
        widths.append(min(widest, _BREAKABLE) if side == "w" else widest)
    return widths


def _print(console: Console, table: Table) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    vertical: VerticalAlignMethod = "bottom" if any("\n" in head for head in table.heads) else "top"
    drawn = RichTable(
        box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True, header_style="bold"
    )
    for head, side in zip(table.heads, table.align, strict=True):
        drawn.add_column(
            Text(printable(head)),
            justify="right" if side in "ru" else "left",
            no_wrap=side in "run",
            overflow="fold",
            vertical=vertical,
        )
    for row in table.rows:
        texts = [Text(printable(text)) for text in row]
        if table.style is not None and texts:
            texts[-1].stylize(table.style(row[-1]))
        drawn.add_row(*texts)
    console.print(drawn)


# --- files ----------------------------------------------------------------------------------------


def to_markdown(table: Table) -> Iterator[str]:
    """Yield the table's lines in Markdown, with its notes below."""
    yield "| " + " | ".join(escape(head) or " " for head in table.heads) + " |"
    yield "|" + "|".join("---:" if side in "ru" else "---" for side in table.align) + "|"
    for row in table.rows:
        yield "| " + " | ".join(escape(cell) or " " for cell in row) + " |"
    yield ""
    for note in table.notes:
        yield escape(note)
        yield ""


def escape(text: str) -> str:
    """Escape every character that Markdown reads, but for those that mean nothing within a line."""
    return _PLAIN.sub(r"\1", _SPECIAL.sub(r"\\\1", text))
