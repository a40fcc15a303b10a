"""Two runs compared, as tables: what `loadstone compare A B` prints, above the report of both."""

from __future__ import annotations

from loadstone.analyse.compare import compare
from loadstone.analyse.compare.text import HEADS, cells_of, load_of, loads_of, plain, word
from loadstone.core.errors import InputError
from loadstone.report.data.wording import clean
from loadstone.report.pages.html import render
from loadstone.report.pages.tables import Table
from loadstone.report.view.shelf import Row


def comparison(a: Row, b: Row) -> str:
    """The section, or a line that says why there is none."""
    try:
        document = compare([a.folder], [b.folder])
    except InputError as error:
        why = str(error).replace(str(a.folder), "A").replace(str(b.folder), "B")
        return render("comparison.html", a=a.name, b=b.name, why=clean(why, 400))
    notes = [f"{finding['evidence']}. {finding['remedy']}" for finding in document["findings"]]
    notes += [
        f"Only {side.upper()} has {loads_of(loads)}." for side in ("a", "b") if (loads := document["unmatched"][side])
    ]
    differences = [[clean(one["what"]), plain(one["a"], 200), plain(one["b"], 200)] for one in document["setup"]]
    heads = ["metric", *HEADS, "says"]
    cells = [
        Table(
            key="cell",
            title=load_of(cell),
            heads=heads,
            align="l" + "r" * len(HEADS) + "l",
            rows=[[*cells_of(row), word(row)[0]] for row in cell["metrics"] if (row["a"], row["b"]) != (None, None)],
        )
        for cell in document["cells"]
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
        percent=f"{100 * document['level']:.0f}",
    )
