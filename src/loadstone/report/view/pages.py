"""The pages: what the templates are filled with. Scripts and styles come from files of this page
alone."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from urllib.parse import urlencode

import msgspec

from loadstone.core.errors import InputError
from loadstone.core.version import __version__
from loadstone.report.data.wording import clean
from loadstone.report.pages import html
from loadstone.report.table import Table
from loadstone.report.view.run_list import RunRow

PAGE_ROWS = 300


class Filter(msgspec.Struct, frozen=True):
    """Narrows the list; empty: no bound. `start`: rows before this one are on earlier pages."""

    text: str = ""
    engine: str = ""
    source: str = ""
    trusted: str = ""
    slo: str = ""
    sort: str = ""
    start: int = 0
    group: str = ""

    def takes(self, row: RunRow) -> bool:
        good, cells = row.trusted
        is_trusted = cells > 0 and good == cells
        met, bounded = row.slo
        return (
            self.group in ("", row.group)
            and all(word in row.search for word in self.text.casefold().split())
            and self.engine in ("", row.engine)
            and self.source in ("", row.source)
            and self.trusted in ("", "yes" if is_trusted else "no")
            and self.slo in ("", ("met" if met else "missed") if bounded else "none")
        )

    def url(self, start: int) -> str:
        query = msgspec.structs.asdict(self) | {"q": self.text, "start": start}
        del query["text"]
        return f"/?{urlencode({name: value for name, value in query.items() if value != ''})}"


_ORDERS: dict[str, Callable[[RunRow], float]] = {
    "output tok/s": lambda row: -(row.output_tokens_per_s or 0.0),
    "TTFT p99": lambda row: row.ttft_p99_s or math.inf,
    "TPOT p99": lambda row: row.tpot_p99_s or math.inf,
}
"""Orders of the list, but for the newest first: the best first."""


@cache
def asset(name: str) -> str | None:
    """Write the text of a file that pages load; None where there is none of that name."""
    return (
        html.asset(name)
        if name in ("vega.js", "page.js", "page.css", "view.css", "list.js", "live.js")
        else None
    )


@cache
def asset_url(name: str) -> str:
    """Give the URL of a file: another text has another URL, so that it may be kept for long."""
    return f"/assets/{name}?v={hashlib.sha256((asset(name) or '').encode()).hexdigest()[:12]}"


def _page(template: str, title: str, scripts: Sequence[str] = (), **values: object) -> str:
    urls = {"scripts": [asset_url(name) for name in scripts]}
    urls["styles"] = [asset_url(name) for name in ("page.css", "view.css")]
    return html.render(template, title=title, is_list=template == "list.html", **urls, **values)


def message(title: str, *texts: str) -> str:
    """Write a page that has only something to say."""
    return _page("message.html", title, texts=texts)


def opening(url: str) -> str:
    """Write the answer to a token: on to the page itself, which then is requested with the
    cookie."""
    return html.render("opening.html", url=url)


def listing(rows: Sequence[RunRow], chosen: Filter) -> str:
    engines = sorted({row.engine for row in rows if row.engine}, key=str.casefold)
    return _page(
        "list.html",
        "Runs",
        ["list.js"],
        engines=engines,
        filter=chosen,
        orders=list(_ORDERS),
        version=__version__,
        **_shown(rows, chosen),
    )


def rows_part(rows: Sequence[RunRow], chosen: Filter) -> str:
    """Write the table alone, as the list's script fetches it again."""
    return html.render("rows.html", **_shown(rows, chosen))


def _shown(rows: Sequence[RunRow], chosen: Filter) -> dict[str, object]:
    matches = [row for row in rows if chosen.takes(row)]
    matching, sizes = len(matches), Counter(row.group for row in matches)
    if not chosen.group:
        matches = _fold(matches)
    if chosen.sort in _ORDERS:
        matches.sort(key=_ORDERS[chosen.sort])
    end = chosen.start + PAGE_ROWS
    return {
        "shown": matches[chosen.start : end],
        "start": chosen.start,
        "matching": matching,
        "sizes": sizes,
        "group": chosen.group,
        "total": len(rows),
        "newer": chosen.url(max(0, chosen.start - PAGE_ROWS)) if chosen.start else None,
        "older": chosen.url(end) if end < len(matches) else None,
    }


def _fold(rows: Sequence[RunRow]) -> list[RunRow]:
    """Return one row for each study and search: of a search the run that its answer is about, of a
    study the one with most output."""
    heads: dict[str, RunRow] = {}
    for row in sorted(rows, key=lambda row: (not row.probes, -(row.output_tokens_per_s or 0.0))):
        heads.setdefault(row.group, row)
    return [row for row in rows if not row.group or heads[row.group] is row]


def live(row: RunRow) -> str:
    """Write the page of a run without records: its script fills it from the run's live.json."""
    return _page("live.html", row.name, ["live.js"], row=row)


def report(content: str, title: str, heading: str = "") -> str:
    """Write the page of a report's body."""
    return _page("frame.html", title, ["vega.js", "page.js"], content=heading + content)


def comparison(a: RunRow, b: RunRow) -> str:
    """Compare two runs, A the baseline, as a picture of ratios and as the tables that `loadstone
    compare A B` prints; or a line that says why there is none.
    """
    from loadstone.analyse.compare import compare
    from loadstone.report.charts.bars import change_figure
    from loadstone.report.pages.comparison import (
        conclude,
        explain_heads,
        main_table,
        metric_tables,
        plain,
        unmatched_lines,
    )

    swap = f"/compare?{urlencode([('run', b.key), ('run', a.key), ('as', 'given')])}"

    try:
        compared = compare([a.folder], [b.folder])
    except InputError as error:
        why = str(error)
        # The name of one may begin with that of the other.
        for folder, side in sorted([(str(a.folder), "A"), (str(b.folder), "B")], reverse=True):
            why = why.replace(folder, side)
        return html.render(
            "comparison.html", a=a.name, b=b.name, swap=swap, conclusion="", why=clean(why, 400)
        )
    notes = [f"{finding.evidence}. {finding.remedy}" for finding in compared.findings]
    notes += [f"Only {line}." for line in unmatched_lines(compared)]
    differences = [
        [clean(difference.what), plain(difference.a, 200), plain(difference.b, 200)]
        for difference in compared.setup
    ]
    figure = change_figure([(cell.load.label, cell.metrics) for cell in compared.cells])
    return html.render(
        "comparison.html",
        a=a.name,
        b=b.name,
        swap=swap,
        why=None,
        conclusion=conclude(compared),
        main=main_table(compared),
        figures=[figure] if figure is not None else [],
        notes=[clean(note, 400) for note in notes],
        setup=Table(
            key="setup",
            title="What differs in the setup",
            heads=["fact", "A", "B"],
            align="lll",
            rows=differences,
        ),
        cells=metric_tables(compared),
        heads=explain_heads(compared),
    )
