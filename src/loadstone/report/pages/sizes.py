"""Sizing for people: one line per deployment, or one number of each as a table of two facts."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from loadstone.core.errors import InputError
from loadstone.core.text import no_formula
from loadstone.report.data.wording import clean
from loadstone.report.pages.terminal import empty

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

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


def render(document: Mapping[str, Any]) -> RenderableType:
    """A line per row, GiB per GPU; below it why, by number."""
    from rich.console import Group
    from rich.text import Text

    rows = document["rows"]
    table = empty()
    table.add_column("model", overflow="fold")
    table.add_column("GPUs", no_wrap=True)
    table.add_column("cut", no_wrap=True)
    engines = list(dict.fromkeys(" ".join(filter(None, (row["engine"], row["engine_version"]))) for row in rows))
    if len(engines) > 1:
        table.add_column("engine", no_wrap=True)
    for head in ("weights", "activ.", "KV asked", "KV room", "KV tokens", "context", "batch", "longest", "at once"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    reasons: list[str] = []
    for row in rows:
        each = row["gpus"] * _GIB
        table.add_row(
            Text(f"{clean(row['model'].rpartition('/')[2])} {row['weights_dtype']}, KV {row['kv_dtype']}"),
            machine(row),
            _cut(row),
            *([row["engine"]] if len(engines) > 1 else []),
            f"{row['weights_bytes'] / each:.1f}",
            f"{row['activation_bytes'] / each:.1f}",
            f"{row['kv_bytes'] / each:.1f}",
            f"{(row['free_bytes'] + row['kv_bytes']) / each:.1f}",
            f"{row['kv_capacity_tokens']:,}",
            f"{row['context_tokens']:,}",
            f"{row['batch']:,}",
            f"{row['max_context_tokens']:,}",
            f"{row['max_concurrent_requests']:,}",
            Text(*_fits(row, reasons)),
        )
    foot = [
        f"GiB per GPU · memory rules of {', '.join(engines)} · KV asked: of the batch at its context · "
        "longest: context at which the batch fits · at once: requests of the given context",
        *(f"({number}) {clean(reason, 400)}" for number, reason in enumerate(reasons, 1)),
    ]
    return Group(table, *(Text(line) for line in foot))


def machine(row: Mapping[str, Any]) -> str:
    return f"{row['gpus']}×{row['gpu']}"


def _cut(row: Mapping[str, Any]) -> str:
    return " ".join(f"{name}{row[name]}" for name in ("tp", "pp", "dp", "ep") if row[name] > 1) or "whole"


def _fits(row: Mapping[str, Any], reasons: list[str]) -> tuple[str, str]:
    word, style = ("yes", "green") if row["fits"] else ("NO", "bold red")
    if not row["why"]:
        return word, style
    if row["why"] not in reasons:
        reasons.append(row["why"])
    return f"{word} ({reasons.index(row['why']) + 1})", style


def table_of(document: Mapping[str, Any], by: Sequence[str], shown: str) -> Table:
    """One number of each row, `by` two facts: down, across. Raises InputError: a fact that no row has, and rows that
    differ in a third.
    """
    from rich.text import Text

    down, across, cells = pivot(document, by, shown)
    table = empty(shown)
    table.add_column(by[0], overflow="fold")
    for head in across:
        table.add_column(Text(head), justify="right")
    for name in down:
        table.add_row(Text(name), *(_show(cells.get((name, head))) for head in across))
    return table


def pivot(
    document: Mapping[str, Any], by: Sequence[str], shown: str
) -> tuple[list[str], list[str], dict[tuple[str, str], Any]]:
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
    cells: dict[tuple[str, str], Any] = {}
    for row in document["rows"]:
        place = clean(str(_fact(row, names[0]))), clean(str(_fact(row, names[1])))
        if place in cells:
            more = _also(document["rows"], names)
            raise InputError(f"--by: rows differ in {', '.join(more) or 'nothing'} too; give one value of each")
        down[place[0]] = across[place[1]] = None
        cells[place] = row[SHOWN[shown]]
    return list(down), list(across), cells


def _fact(row: Mapping[str, Any], name: str) -> Any:
    return machine(row) if name == "machine" else row[name]


def _also(rows: Sequence[Mapping[str, Any]], names: Collection[str]) -> list[str]:
    """In which facts rows differ that are alike in `names`; not those that follow from others, as tp from gpus."""
    known, more = list(names), []
    for name in FACTS:
        places = {tuple(_fact(row, each) for each in known) for row in rows}
        if len({tuple(_fact(row, each) for each in (*known, name)) for row in rows}) > len(places):
            known.append(name)
            more.append(name)
    return more


def _show(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}"


def to_csv(document: Mapping[str, Any]) -> str:
    """A line per row under the JSON's names. Text that a spreadsheet would run as a formula is marked as text."""
    text = io.StringIO()
    rows = document["rows"]
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else ["model"], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {
                name: str(value).lower() if isinstance(value, bool) else no_formula(value)
                for name, value in row.items()
            }
        )
    return text.getvalue()
