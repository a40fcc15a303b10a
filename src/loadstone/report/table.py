"""One table for people, shown on a terminal, in Markdown, in HTML (`templates/parts.html`) and as
CSV."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from loadstone.core.text import printable

if TYPE_CHECKING:
    from rich.align import VerticalAlignMethod
    from rich.console import Console

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&$@-])")
_STATISTIC = re.compile(r" p\d+$")
_PLAIN = re.compile(r"\\([().+-])")
_GAP = 2
"""Characters between two columns on a terminal; the first and the last have one before and after
them."""
_BREAKABLE = 24
"""Characters that a column of words keeps at least before a table is turned."""
_MAX_TURNED = 6
"""Rows of a table that may become columns: more are not read across."""
_BREAKS = re.compile(r"(?<=[/,·@ +])")


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
    spare     heads of columns that a terminal too narrow for all leaves out, the first one first
    left_out  those that it did leave out
    caption   what is the same in all rows, said above the table
    turned    rows are columns here, so that the style is the last row's
    places    numbers of the rows' workloads: a page lets one sort and filter the rows by them
    """

    heads: list[str]
    align: str
    rows: list[list[str]]
    key: str = ""
    title: str = ""
    notes: list[str] = msgspec.field(default_factory=list)
    style: Callable[[str], str] | None = None
    words: bool = False
    places: Sequence[int] = ()
    spare: Sequence[str] = ()
    left_out: Sequence[str] = ()
    caption: str = ""
    turned: bool = False

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


class Footnote(str):
    """A line that says what signs and words mean; a terminal shows it dim."""


Shown = str | Table
"""What people are shown is made of these: lines of plain text, and tables."""


MAX_NOTES = 3
"""Notes below an answer, before one asks for all."""


def first_notes(notes: Sequence[str], limit: int = MAX_NOTES) -> list[str]:
    """Return the first notes, and how many more there are."""
    left_out = len(notes) - limit
    return [*notes[:limit], *([f"{left_out} more with --explain"] if left_out > 0 else [])]


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
    """Print lines and tables. Tables wider than the console are turned or narrowed, see fit(), so
    that no number is cut.

    Nothing that is printed is an order to the terminal. `wrap`: long lines are broken between
    words, but for indented ones, such as commands: these can be copied.
    """
    from rich.text import Text

    for part in parts:
        if isinstance(part, str):
            style = "dim" if isinstance(part, Footnote) else ""
            text = Text(printable(part), style=style)
            console.print(text, soft_wrap=not wrap or part.startswith("  "))
            continue
        _print(console, fit(part, console.width))


def fit(table: Table, width: int) -> Table:
    """Return one table of at most `width` characters that has every row, and its last column.

    Where the table is wider, its few rows become columns; of many rows, the columns that can be
    spared are left out; else each row becomes a list of its fields.
    """
    if _room(table) <= width:
        return _break_words(table, width)
    turned = _turn(table, width)
    if turned is not None:
        return turned
    for spared in table.spare:
        heads = [head.replace("\n", " ") for head in full_heads(table)]
        if spared not in heads:
            continue
        kept = [index for index, head in enumerate(heads) if head != spared]
        table = replace(select(table, kept), left_out=[*table.left_out, spared])
        if _room(table) <= width:
            return _break_words(table, width)
    return _list_fields(table)


def _break_words(table: Table, width: int) -> Table:
    """Break the texts of wide columns where names part, so that all fits into the width."""
    wide = [index for index, side in enumerate(table.align) if side == "w"]
    widths = _widths(replace(table, align=table.align.replace("w", "l")))
    over = sum(widths) + _GAP * len(widths) - width
    if over <= 0 or not wide:
        return table
    room = (sum(widths[index] for index in wide) - over) // len(wide)
    rows = [
        [_break(text, room) if index in wide else text for index, text in enumerate(row)]
        for row in table.rows
    ]
    return replace(table, rows=rows)


def _room(table: Table) -> int:
    widths = _widths(table)
    return sum(widths) + _GAP * len(widths)


def full_heads(table: Table) -> list[str]:
    """Return the heads as they stand alone: `p99` that belongs to `TTFT p50` is `TTFT p99`."""
    heads: list[str] = []
    for _, group in table.groups:
        first = table.heads[group[0]]
        name = first.rpartition(" ")[0] if _STATISTIC.search(first) else first
        heads += [first, *(f"{name} {table.heads[index]}".strip() for index in group[1:])]
    return heads


def _naming(table: Table) -> tuple[list[int], list[int]]:
    """Return the columns of words before the first number, or the first: those that tell rows from
    one another, and those that are the same in all of several rows."""
    words = len(table.align) - len(table.align.lstrip("lnw"))
    leading = range(max(1, min(words, len(table.align) - 1)))
    telling = [index for index in leading if len({row[index] for row in table.rows}) > 1] or [0]
    if len(table.rows) == 1:
        return telling, []
    return telling, [index for index in leading if index not in telling]


def _turn(table: Table, width: int) -> Table | None:
    """Return the table with its rows as columns; None where these are too many or too wide."""
    if not table.rows or len(table.rows) > _MAX_TURNED or table.words:
        return None
    names, constant = _naming(table)
    heads = full_heads(table)
    rest = [index for index in range(len(heads)) if index not in (*names, *constant)]
    lines = [[heads[index], *(row[index] for row in table.rows)] for index in rest]
    lines = [line for line in lines if any(text not in ("", "-") for text in line[1:])]
    first = max(_longest(text) for text in (*(line[0] for line in lines), heads[names[0]]))
    numbers = [row[index] for index in rest for row in table.rows if table.align[index] not in "wl"]
    needed = max(map(_longest, numbers), default=0)
    column = (width - first - _GAP) // len(table.rows) - _GAP
    column = min(column, max(needed, _BREAKABLE))
    lines = [[line[0], *(_break(text, column) for text in line[1:])] for line in lines]
    titles = ["\n".join(_break(row[index], column) for index in names) for row in table.rows]
    if any(_longest(text) > column for text in (*titles, *chain(*(line[1:] for line in lines)))):
        return None
    return Table(
        heads=["\n".join(heads[index] for index in names), *titles],
        align="n" + "r" * len(table.rows),
        rows=lines,
        style=table.style,
        turned=True,
        caption=" · ".join(table.rows[0][index] for index in constant),
    )


def _list_fields(table: Table) -> Table:
    """Return a table of two columns, which has the fields of one row after another."""
    heads = full_heads(table)
    lines: list[list[str]] = []
    for row in table.rows:
        lines += [[""] * 2] * bool(lines)
        lines += [[head, text] for head, text in zip(heads, row, strict=True) if text]
    return Table(heads=["", ""], align="nw", rows=lines)


def _longest(text: str) -> int:
    from rich.cells import cell_len

    return max(cell_len(printable(line)) for line in text.split("\n"))


def _break(text: str, width: int) -> str:
    """Break a name into lines after the characters that part it, such as `/`."""
    lines = [""]
    for piece in _BREAKS.split(text):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


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
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
        collapse_padding=True,
        header_style="bold",
        show_header=any(table.heads),
    )
    for head, side in zip(table.heads, table.align, strict=True):
        drawn.add_column(
            Text(printable(head)),
            justify="right" if side in "ru" else "left",
            no_wrap=side in "run",
            overflow="fold",
            vertical=vertical,
        )
    for number, row in enumerate(table.rows, 1):
        texts = [Text(printable(text)) for text in row]
        if table.style is not None:
            judged = texts[-1:]
            if table.turned:
                judged = texts[1:] if number == len(table.rows) else []
            for text in judged:
                text.stylize(table.style(text.plain))
        drawn.add_row(*texts)
    if table.caption:
        console.print(Text(printable(table.caption)))
    console.print(drawn)
    if table.left_out:
        console.print(Text(f"not shown at this width: {', '.join(table.left_out)}", style="dim"))


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
