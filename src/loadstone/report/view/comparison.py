"""Two runs compared, as tables: what `loadstone compare A B` prints, above the report of both."""

from __future__ import annotations

from loadstone.analyse.compare import compare
from loadstone.analyse.compare.text import HEADS, cells_of, load_of, plain, unmatched_lines, word
from loadstone.core.errors import InputError
from loadstone.report.data.wording import clean
from loadstone.report.pages.html import render
from loadstone.report.pages.tables import Table
from loadstone.report.view.shelf import Row


def comparison(a: Row, b: Row) -> str:
    """The section, or a line that says why there is none."""
    try:
        compared = compare([a.folder], [b.folder])
    except InputError as error:
        why = str(error).replace(str(a.folder), "A").replace(str(b.folder), "B")
        return render("comparison.html", a=a.name, b=b.name, why=clean(why, 400))
    notes = [f"{finding.evidence}. {finding.remedy}" for finding in compared.findings]
    notes += [f"Only {line}." for line in unmatched_lines(compared)]
    differences = [[clean(one.what), plain(one.a, 200), plain(one.b, 200)] for one in compared.setup]
    heads = ["metric", *HEADS, "says"]
    cells = [
        Table(
            key="cell",
            title=load_of(cell),
            heads=heads,
            align="l" + "r" * len(HEADS) + "l",
            rows=[[*cells_of(row), word(row)[0]] for row in cell.metrics if (row.a, row.b) != (None, None)],
        )
        for cell in compared.cells
    ]
    return render(
        "comparison.html",
        a=a.name,
        b=b.name,
        why=None,
        notes=[clean(note, 400) for note in notes],
        setup=Table(
            key="setup", title="What differs in the setup", heads=["", "A", "B"], align="lll", rows=differences
        ),
        cells=cells,
        percent=f"{100 * compared.level:.0f}",
    )
