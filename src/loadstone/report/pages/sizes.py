"""Sizing for people: one line per deployment, or one number of each as a table of two facts."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from loadstone.core.errors import InputError
from loadstone.core.text import escape_formula
from loadstone.predict.sizing.size import Row
from loadstone.report.data.wording import clean
from loadstone.report.pages.terminal import empty

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

_GIB = 1 << 30

SHOWN = {
    "max-context": "max_context_tokens",
    "requests": "max_concurrent_requests",
    "kv-tokens": "kv_capacity_tokens",
    "fits": "fits",
}
"""What a table of two facts may show, and where a row has it."""
FACTS = (
    "model",
    "gpu",
    "gpus",
    "tp",
    "pp",
    "dp",
    "ep",
    "weights_dtype",
    "kv_dtype",
    "engine",
    "context_tokens",
    "batch",
    "machine",
)
"""What rows may differ in: `machine` is the GPUs and how many, 8×h200."""
Value = str | int | float


def render(rows: Sequence[Row]) -> RenderableType:
    """A line per row, GiB per GPU; below it why, by number."""
    from rich.console import Group
    from rich.text import Text

    table = empty()
    table.add_column("model", overflow="fold")
    table.add_column("GPUs", no_wrap=True)
    table.add_column("cut", no_wrap=True)
    engines = list(dict.fromkeys(" ".join(filter(None, (row.engine, row.engine_version))) for row in rows))
    if len(engines) > 1:
        table.add_column("engine", no_wrap=True)
    for head in ("weights", "activ.", "KV asked", "KV room", "KV tokens", "context", "batch", "longest", "at once"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    reasons: list[str] = []
    for row in rows:
        each = row.gpus * _GIB
        table.add_row(
            Text(f"{clean(row.model.rpartition('/')[2])} {row.weights_dtype}, KV {row.kv_dtype}"),
            row.machine,
            _cut(row),
            *([row.engine] if len(engines) > 1 else []),
            f"{row.weights_bytes / each:.1f}",
            f"{row.activation_bytes / each:.1f}",
            f"{row.kv_bytes / each:.1f}",
            f"{(row.free_bytes + row.kv_bytes) / each:.1f}",
            f"{row.kv_capacity_tokens:,}",
            f"{row.context_tokens:,}",
            f"{row.batch:,}",
            f"{row.max_context_tokens:,}",
            f"{row.max_concurrent_requests:,}",
            Text(*_fits(row, reasons)),
        )
    foot = [
        f"GiB per GPU · memory rules of {', '.join(engines)} · KV asked: of the batch at its context · "
        "longest: context at which the batch fits · at once: requests of the given context",
        *(f"({number}) {clean(reason, 800)}" for number, reason in enumerate(reasons, 1)),
    ]
    return Group(table, *(Text(line) for line in foot))


def assumptions(rows: Sequence[Row]) -> Iterator[Text]:
    """A line for each model whose config left something open."""
    from rich.text import Text

    for model, text in {row.model: row.assumed for row in rows if row.assumed}.items():
        yield Text(f"assumed for {clean(model)}: {clean(text, 400)}")


def _cut(row: Row) -> str:
    named = (("tp", row.tp), ("pp", row.pp), ("dp", row.dp), ("ep", row.ep))
    return " ".join(f"{name}{ranks}" for name, ranks in named if ranks > 1) or "whole"


def _fits(row: Row, reasons: list[str]) -> tuple[str, str]:
    word, style = ("yes", "green") if row.fits else ("NO", "bold red")
    if not row.why:
        return word, style
    if row.why not in reasons:
        reasons.append(row.why)
    return f"{word} ({reasons.index(row.why) + 1})", style


def table_of(rows: Sequence[Row], by: Sequence[str], shown: str) -> Table:
    """One number of each row, `by` two facts: down, across. Raises InputError: a fact that no row has, and rows that
    differ in a third.
    """
    from rich.text import Text

    down, across, cells = _pivot(rows, by, shown)
    table = empty(shown)
    table.add_column(by[0], overflow="fold")
    for head in across:
        table.add_column(Text(head), justify="right")
    for name in down:
        table.add_row(Text(name), *(_show(cells.get((name, head))) for head in across))
    return table


def _pivot(
    rows: Sequence[Row], by: Sequence[str], shown: str
) -> tuple[list[str], list[str], dict[tuple[str, str], Value]]:
    """Rows' names, columns' names, and the values; see table_of(). Raises InputError."""
    names = [name.replace("-", "_") for name in by]
    for name in names:
        if name not in FACTS:
            raise InputError(f"--by: {name!r} is not a fact of a row; write two of {', '.join(FACTS)}")
    if len(names) != 2 or names[0] == names[1]:
        raise InputError(f"--by: two facts are needed; write e.g. gpus,model, of {', '.join(FACTS)}")
    if shown not in SHOWN:
        raise InputError(f"--show: {shown!r} is not known; write one of {', '.join(SHOWN)}")
    down: dict[str, None] = {}
    across: dict[str, None] = {}
    cells: dict[tuple[str, str], Value] = {}
    for row in rows:
        place = clean(str(getattr(row, names[0]))), clean(str(getattr(row, names[1])))
        if place in cells:
            more = _also(rows, names)
            raise InputError(f"--by: rows differ in {', '.join(more) or 'nothing'} too; give one value of each")
        down[place[0]] = across[place[1]] = None
        cells[place] = getattr(row, SHOWN[shown])
    return list(down), list(across), cells


def _also(rows: Sequence[Row], names: Collection[str]) -> list[str]:
    """In which facts rows differ that are alike in `names`; not those that follow from others, as tp from gpus."""
    known, more = list(names), []
    for name in FACTS:
        places = {tuple(getattr(row, each) for each in known) for row in rows}
        if len({tuple(getattr(row, each) for each in (*known, name)) for row in rows}) > len(places):
            known.append(name)
            more.append(name)
    return more


def _show(value: Value | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}"


def to_csv(rows: Sequence[Row]) -> str:
    """A line per row under the JSON's names. Text that a spreadsheet would run as a formula is marked as text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row.__struct_fields__)
    for row in rows:
        values = msgspec.structs.astuple(row)
        writer.writerow(str(value).lower() if isinstance(value, bool) else escape_formula(value) for value in values)
    return text.getvalue()
