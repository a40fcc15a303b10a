"""Two runs compared, as tables: what `loadstone compare A B` prints, above the report of both."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from loadstone.analyse.compare import compare
from loadstone.analyse.compare.text import HEADS, cells_of, load_of, loads_of, plain, word
from loadstone.core.errors import InputError
from loadstone.report.data.wording import clean
from loadstone.report.pages.html import titled
from loadstone.report.pages.tables import Table
from loadstone.report.view.shelf import Row


def comparison(a: Row, b: Row) -> str:
    """The section, or a line that says why there is none."""
    sides = f"A is {a.name}, B is {b.name}."
    try:
        document = compare([a.folder], [b.folder])
    except InputError as error:
        why = str(error).replace(str(a.folder), "A").replace(str(b.folder), "B")
        return _section(sides, f"<p>No comparison: {escape(clean(why, 400))}</p>\n")
    tables = [_setup(document), *(titled(_cell(cell)) for cell in document["cells"])]
    alone = [
        f"Only {side.upper()} has {loads_of(loads)}." for side in ("a", "b") if (loads := document["unmatched"][side])
    ]
    said = [clean(f"{one['evidence']}. {one['remedy']}", 400) for one in document["findings"]] + alone
    items = "".join(f"<li>{escape(clean(each, 400))}</li>\n" for each in said)
    note = (
        "of all: p corrected for testing all metrics of all loads, "
        f"false alarms {100 * document['level']:.0f} %. would show: the "
        "least difference that this data would have shown."
    )
    return _section(sides, f"<ul>{items}</ul>\n" if items else "", *tables, f'<p class="soft">{escape(note)}</p>\n')


def _section(sides: str, *parts: str) -> str:
    heading = '<h1 id="comparison">A against B</h1>\n'
    return f'<section aria-labelledby="comparison">\n{heading}<p>{escape(sides)}</p>\n{"".join(parts)}</section>\n'


def _setup(document: Mapping[str, Any]) -> str:
    rows = [[clean(one["what"]), plain(one["a"], 200), plain(one["b"], 200)] for one in document["setup"]]
    if not rows:
        return "<p>The setup is the same on both sides.</p>\n"
    return titled(Table(key="setup", title="What differs in the setup", heads=["", "A", "B"], align="lll", rows=rows))


def _cell(cell: Mapping[str, Any]) -> Table:
    rows = [[*cells_of(row), word(row)[0]] for row in cell["metrics"] if row["a"] is not None or row["b"] is not None]
    return Table(
        key="cell",
        title=load_of(cell),
        heads=["metric", *HEADS, "says"],
        align="l" + "r" * len(HEADS) + "l",
        rows=rows,
    )
