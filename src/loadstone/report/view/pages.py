"""The pages' markup. Whatever a run says is escaped; scripts and styles come from files of this page alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib import resources
from urllib.parse import quote, urlencode

import msgspec

from loadstone.core.units import show_number
from loadstone.core.version import __version__
from loadstone.report.pages import html
from loadstone.report.pages.tables import trust
from loadstone.report.view.shelf import Row

PAGE_ROWS = 300


class Wanted(msgspec.Struct, frozen=True):
    """What the list is narrowed to; empty: no bound. `start`: rows before this one are on earlier pages."""

    text: str = ""
    engine: str = ""
    source: str = ""
    trusted: str = ""
    start: int = 0

    def takes(self, row: Row) -> bool:
        good, cells = row.trusted
        is_trusted = cells > 0 and good == cells
        return (
            all(word in row.search for word in self.text.casefold().split())
            and self.engine in ("", row.engine)
            and self.source in ("", row.source)
            and self.trusted in ("", "yes" if is_trusted else "no")
        )


# --- assets -------------------------------------------------------------------------------------------------------


_OWN = ("view.css", "list.js", "live.js")
_OF_REPORTS = {"vega.js": html.vega, "page.js": html.script, "page.css": html.style}


@cache
def asset(name: str) -> str | None:
    """The text of a file that pages load; None where there is none of that name."""
    if name in _OWN:
        return resources.files("loadstone.report.view").joinpath("assets", name).read_text("utf-8")
    return _OF_REPORTS[name]() if name in _OF_REPORTS else None


@cache
def _asset(name: str) -> str:
    """Its URL; another text, another URL, so that it may be kept for long."""
    return f"/assets/{name}?v={hashlib.sha256((asset(name) or '').encode()).hexdigest()[:12]}"


def frame(title: str, content: str, scripts: Sequence[str] = (), *, is_list: bool = False) -> str:
    """A whole page."""
    bar = f'<li><a href="/"{" aria-current=page" if is_list else ""}>All runs</a></li>'
    return "".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            f'<title>{escape(title)} · Loadstone</title>\n<link rel="icon" href="data:,">\n',
            *(f'<link rel="stylesheet" href="{_asset(name)}">\n' for name in ("page.css", "view.css")),
            *(f'<script defer src="{_asset(name)}"></script>\n' for name in scripts),
            f'</head>\n<body>\n<nav class="bar" aria-label="Loadstone"><b>Loadstone</b><ul>{bar}</ul></nav>\n',
            content,
            "</body>\n</html>\n",
        ]
    )


def message(title: str, text: str, more: Iterable[str] = ()) -> str:
    """A page that has only something to say."""
    paragraphs = "".join(f"<p>{escape(each)}</p>\n" for each in (text, *more))
    return frame(title, f'<main id="main">\n<h1>{escape(title)}</h1>\n{paragraphs}</main>\n')


def opening(url: str) -> str:
    """The answer to a token: on to the page itself, which then is asked for with the cookie."""
    there = escape(url)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" '
        f'content="0;url={there}"><title>Loadstone</title><link rel="icon" href="data:,"></head><body>'
        f'<p><a href="{there}">Open the runs</a></p></body></html>\n'
    )


# --- the list -----------------------------------------------------------------------------------------------------


def listing(rows: Sequence[Row], wanted: Wanted) -> str:
    return frame(
        "Runs",
        "".join(
            [
                '<a class="skip" href="#runs">To the runs</a>\n<main id="main">\n<h1>Runs</h1>\n',
                _filter(rows, wanted),
                '<form action="/compare" id="compare">\n',
                '<p class="tools"><button type="submit">Compare</button> ',
                '<span class="soft" id="ticked" role="status">Tick two runs to compare them.</span></p>\n',
                f'<div id="runs" tabindex="-1" data-every-s="4">\n{rows_part(rows, wanted)}</div>\n',
                "</form>\n</main>\n",
                f'<footer><p class="soft">Loadstone {escape(__version__)}. This page is read-only.</p></footer>\n',
            ]
        ),
        ["list.js"],
        is_list=True,
    )


def _filter(rows: Sequence[Row], wanted: Wanted) -> str:
    engines = sorted({row.engine for row in rows if row.engine}, key=str.casefold)
    return "".join(
        [
            '<form role="search" class="filter" id="filter" action="/">\n',
            '<label>Text <input type="search" name="q" maxlength="200" autocomplete="off" ',
            f'placeholder="name, model, GPU …" value="{escape(wanted.text)}"></label>\n',
            _select("engine", "Engine", {"": "any"} | {name: name for name in engines}, wanted.engine),
            _select(
                "source",
                "Source",
                {"": "any", "measured": "measured", "simulated": "simulated", "imported": "imported"},
                wanted.source,
            ),
            _select("trusted", "Trusted", {"": "any", "yes": "yes", "no": "no"}, wanted.trusted),
            '<button type="submit">Show</button>\n</form>\n',
        ]
    )


def _select(name: str, label: str, choices: Mapping[str, str], chosen: str) -> str:
    options = "".join(
        f'<option value="{escape(value)}"{" selected" if value == chosen else ""}>{escape(text)}</option>'
        for value, text in choices.items()
    )
    return f'<label>{label} <select name="{name}">{options}</select></label>\n'


_HEADS = ("", "Run", "Started", "Source", "Deployment", "Workload", "Loads", "Output tok/s", "Trusted", "State")


def rows_part(rows: Sequence[Row], wanted: Wanted) -> str:
    """The table alone, as the list's script fetches it again."""
    found = [row for row in rows if wanted.takes(row)]
    shown = found[wanted.start : wanted.start + PAGE_ROWS]
    if not shown:
        return f"<p>{'No run matches.' if rows else 'No runs here yet.'}</p>\n"
    # The roles are those that these elements have anyway: a narrow page lays them out otherwise, and would lose them.
    heads = "".join(
        f'<th scope="col" role="columnheader"{" class=r" if name == "Output tok/s" else ""}>'
        f"{escape(name) or '<span class=unseen>Tick</span>'}</th>"
        for name in _HEADS
    )
    last = wanted.start + len(shown)
    said = f"{len(found)} of {len(rows)} runs" + (
        f", {wanted.start + 1} to {last}" if len(shown) < len(found) else ""
    )
    return "".join(
        [
            f'<table class="runs" role="table"><caption>{said}</caption>\n',
            f'<thead role="rowgroup"><tr role="row">{heads}</tr></thead>\n<tbody role="rowgroup">\n',
            *map(_row, shown),
            "</tbody></table>\n",
            _pager(wanted, last, len(found)),
        ]
    )


def _row(row: Row) -> str:
    good, cells = row.trusted
    kind = "" if not cells else "good" if good == cells else "bad"
    state_kind = {"running": "going", "done": ""}.get(row.state, "bad")
    why = f'<span class="soft why">{escape(row.why)}</span>' if row.why else ""
    name = escape(row.name)
    link = name if row.state == "unreadable" else f'<a href="{run_url(row.key)}">{name}</a>'
    tick = f'<input type="checkbox" name="run" value="{escape(row.key)}" aria-label="Compare {name}">'
    pickable = row.state not in ("unreadable", "running", "cut off")
    texts = [
        ("tick", "", tick if pickable else ""),
        ("name", "", link),
        ("", "Started", escape(row.created.replace("T", " ").removesuffix("+00:00"))),
        ("", "Source", escape(row.source)),
        ("", "Deployment", escape(row.deployment)),
        ("", "Workload", escape(row.workload)),
        ("", "Loads", escape(row.loads)),
        ("r", "Output tok/s", show_number(row.output_tokens_per_s, 4)),
        (kind, "Trusted", trust(row.trusted, row.stated) if cells else "-"),
        (state_kind, "State", f'<span class="state">{escape(row.state)}</span>{why}'),
    ]
    cells_html = "".join(
        f'<td role="cell"{f" class={quote(css)}" if css else ""} data-head="{head}">{text}</td>'
        for css, head, text in texts
    )
    return f'<tr role="row">{cells_html}</tr>\n'


def _pager(wanted: Wanted, last: int, found: int) -> str:
    def link(start: int, text: str) -> str:
        query = {"q": wanted.text, "engine": wanted.engine, "source": wanted.source, "trusted": wanted.trusted}
        return f'<a href="/?{escape(urlencode(query | {"start": start}))}">{text}</a> '

    newer = link(max(0, wanted.start - PAGE_ROWS), "Newer runs") if wanted.start else ""
    older = link(last, "Older runs") if last < found else ""
    return f'<nav aria-label="Pages"><p>{newer}{older}</p></nav>\n' if newer or older else ""


def run_url(key: str) -> str:
    return f"/runs/{quote(key, safe='~')}"


# --- a run that goes on -------------------------------------------------------------------------------------------

_CURVES = (
    ("tokens", "Output tokens per second", "stream events × tokens per event of the requests that ended"),
    ("requests", "Requests under way", "sent, not ended; and failed requests per second"),
    ("ttft", "Time to first token", "of measured requests, at the time of the token; median and p90, ±3 %"),
    ("gaps", "Gap between stream events", "of measured requests; median and p99, ±3 %"),
)


def live(row: Row) -> str:
    """The page of a run without records: its script fills it from the run's live.json."""
    why = f'<p class="bad" id="why">{escape(row.why)}</p>\n' if row.why else '<p class="bad" id="why" hidden></p>\n'
    figures = "".join(
        f'<figure><figcaption><b>{title}</b><span>{note}</span></figcaption><div class="curve" id="curve-{key}">'
        '<p class="soft">Nothing yet.</p></div></figure>\n'
        for key, title, note in _CURVES
    )
    return frame(
        row.name,
        "".join(
            [
                '<a class="skip" href="#main">To the curves</a>\n<main id="main">\n',
                f"<h1>{escape(row.name)}</h1>\n",
                f'<p class="soft">{escape(row.deployment)} · {escape(row.source)} · {escape(row.loads)}</p>\n{why}',
                f'<p id="state" data-url="{run_url(row.key)}/live.json">State: {escape(row.state)}</p>\n',
                '<p id="said" role="status" aria-live="polite" class="unseen"></p>\n',
                '<h2 id="cells-head">Cells</h2>\n<div class="scroll few" tabindex="0" role="region" ',
                'aria-labelledby="cells-head"><table id="cells"></table></div>\n',
                '<p class="soft">Counts include the warm-up; latencies are of measured requests. TTFT counts from '
                "sending in a closed loop, from the intended time in an open one. No verdict before the end.</p>\n",
                f'<h2>Over time</h2>\n<div class="grid pairs">\n{figures}</div>\n',
                "<noscript><p>The curves need JavaScript.</p></noscript>\n</main>\n",
            ]
        ),
        ["live.js"],
    )


def report(content: str, title: str, before: str = "") -> str:
    """The page of a report's body."""
    return frame(title, before + content, ["vega.js", "page.js"])
