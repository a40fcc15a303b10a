"""A report as a page. `page` makes one self-contained file; `body` is what the live page puts into its own frame.

Nothing that an engine, a file or a user wrote becomes markup: text is escaped, specifications are JSON whose `<` is
written as \\u003c, so that no `</script>` in a name ends it. The file's content-security-policy allows its own two
scripts by their hashes, no evaluation of strings, and no network.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from functools import cache
from html import escape
from importlib import resources

import msgspec

from loadstone.report.charts.theme import Figure
from loadstone.report.findings import Sentence
from loadstone.report.pages.document import NOTHING_SHOWN, Report, RunPart
from loadstone.report.pages.tables import Table

MAX_SENTENCES = 40
FEW_SENTENCES = 12
"""So many stand together; of more, those about one section's pictures stand with these."""
_IN_SECTIONS = ("leader", "bottleneck", "light")
_FEW_COLUMNS = 12
"""Of more, each takes less room."""
_SIDES = {"r": " class=r", "w": " class=w", "n": " class=n"}


def page(report: Report) -> str:
    """The whole report as one file that needs no network."""
    scripts = [vega(), script()]
    hashes = " ".join(_hash(each) for each in scripts)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )
    return "".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            f"<title>{escape(report.title)} · Loadstone</title>\n<style>\n{style()}</style>\n</head>\n<body>\n",
            body(report),
            *(f"<script>{each}</script>\n" for each in scripts),
            "</body>\n</html>\n",
        ]
    )


def body(report: Report) -> str:
    """The report without frame: headings, tables, figures with their specifications beside them."""
    trusted, cells = report.trusted
    tone = "bad" if trusted < cells or not cells else "told" if report.stated else "good"
    verdict = f'<span class="{tone}">{report.verdict}</span>'
    sections = report.sections()
    links = [("verdicts", "Verdicts"), ("findings", "Findings"), ("tables", "Tables")]
    links += [(f"section-{key}", title) for key, title, _ in sections] + [("runs", "Runs, and how to repeat them")]
    parts = [
        '<a class="skip" href="#main">To the report</a>\n<header>\n',
        f"<h1>{escape(report.title)}</h1>\n",
        f'<p class="soft">{report.size} · Loadstone {escape(report.version)}</p>\n',
        '<nav aria-label="Contents"><ul>',
        *(f'<li><a href="#{key}">{escape(title)}</a></li>' for key, title in links),
        '</ul></nav>\n</header>\n<main id="main">\n',
        f'<h2 id="verdicts">Verdicts</h2>\n<p>{verdict}</p>\n',
        _table(report.verdicts) if report.verdicts.rows else "",
        _list(report.passed_over, "Passed over:"),
        '<h2 id="findings">Findings</h2>\n',
        _sentences(report, sections),
        *(f'<p class="soft">{escape(said)}</p>\n' for said in report.remarks),
        '<h2 id="tables">Tables</h2>\n',
        # After the findings: who opens a page wants to know who leads, not how folders are called.
        titled(report.overview),
        *map(titled, report.tables),
        "<noscript><p>The charts below need JavaScript; the tables have the same numbers.</p></noscript>\n",
    ]
    for key, title, figures in sections:
        parts += [f'<h2 id="section-{key}">{escape(title)}</h2>\n', _items(_about(report, key)), _grid(figures)]
    parts += ['<h2 id="runs">Runs, and how to repeat them</h2>\n', *map(_run, report.parts)]
    parts.append(
        '</main>\n<footer><p class="soft">Latencies are of requests that ended well; definitions stand beside. '
        "Charts are drawn by Vega, Vega-Lite and Vega-Embed (BSD-3-Clause).</p></footer>\n"
    )
    return "".join(parts)


def _sentences(report: Report, sections: list[tuple[str, str, list[Figure]]]) -> str:
    """What is said of the whole; what belongs to a section's pictures stands with them, unless all is little."""
    if not report.sentences:
        return f"<p>{NOTHING_SHOWN}</p>\n"
    beside = [(key, title, found) for key, title, _ in sections if (found := _about(report, key))]
    elsewhere = {sentence.text for _, _, found in beside for sentence in found}
    here = [sentence for sentence in report.sentences if sentence.text not in elsewhere]
    links = ", ".join(f'<a href="#section-{key}">{escape(title)}</a> ({len(found)})' for key, title, found in beside)
    more = f"<p>With their charts: {links}.</p>\n" if links else ""
    return _items(here) + more


def _about(report: Report, section: str) -> list[Sentence]:
    if len(report.sentences) <= FEW_SENTENCES:
        return []
    return [each for each in report.sentences if each.about == section and each.kind in _IN_SECTIONS]


def _items(sentences: list[Sentence]) -> str:
    items = "".join(f"<li>{escape(sentence.text)}</li>\n" for sentence in sentences[:MAX_SENTENCES])
    more = len(sentences) - MAX_SENTENCES
    rest = f'<p class="soft">{more} more are in the Markdown report.</p>\n' if more > 0 else ""
    return f"<ul>\n{items}</ul>\n{rest}" if items else ""


def _run(part: RunPart) -> str:
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>\n" for name, value in part.facts)
    repeat = f"<h3>Again</h3>\n<pre><code>{escape(part.repeat)}</code></pre>\n" if part.repeat else ""
    return "".join(
        [
            f'<details class="run" id="run-{part.number}"><summary>{escape(part.title)}</summary>\n',
            _list(part.notes),
            _table(part.table) if part.table.rows else "",
            _grid(part.figures),
            f"<h3>Environment</h3>\n<dl>\n{facts}</dl>\n{repeat}</details>\n",
        ]
    )


def _grid(figures: Iterable[Figure]) -> str:
    drawn = "".join(map(_figure, figures))
    return f'<div class="grid">\n{drawn}</div>\n' if drawn else ""


def _figure(figure: Figure) -> str:
    notes = "".join(f"<span>{escape(note)}</span>" for note in figure.notes)
    key = _key(figure.key)
    return (
        f'<figure id="{key}"><figcaption><b>{escape(figure.title)}</b>{notes}</figcaption>\n'
        f'<div class="chart" role="img" aria-label="{escape(figure.summary)}"></div>\n'
        f'<script type="application/json">{_json(figure.spec)}</script>\n'
        "<details><summary>Numbers</summary>"
        '<button type="button" data-kind="svg">Save SVG</button>'
        '<button type="button" data-kind="png">Save PNG</button>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="Numbers of {escape(figure.title)}"></div>'
        "</details></figure>\n"
    )


def titled(table: Table) -> str:
    """A table under its heading, with its notes."""
    return f"<h3>{escape(table.title)}</h3>\n{_table(table)}"


def _table(table: Table) -> str:
    def cells(tag: str, row: list[str], more: list[str]) -> str:
        made: list[str] = []
        for text, side, said in zip(row, table.align, more, strict=True):
            if side == "u":
                made[-1] = made[-1].removesuffix(f"</{tag}>") + f"<small>{escape(text)}</small></{tag}>"
            else:
                made.append(f"<{tag}{said}{_SIDES.get(side, '')}>{escape(text)}</{tag}>")
        return "".join(made)

    # On a phone a row of words stands as a list, each under the name of its column.
    named = [f' data-head="{escape(head)}"' if table.words else "" for head in table.heads]
    head = f"<thead><tr>{cells('th', table.heads, [' scope=col'] * len(table.heads))}</tr></thead>\n"
    rows = "".join(f"<tr>{cells('td', row, named)}</tr>\n" for row in table.rows)
    sort = " words" if table.words else " many" if len(table.align.replace("u", "")) > _FEW_COLUMNS else ""
    notes = "".join(f'<p class="soft">{escape(note)}</p>\n' for note in table.notes)
    return (
        f'<div class="scroll few{sort}" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f"<table>{head}<tbody>\n{rows}</tbody></table></div>\n{notes}"
    )


def _list(texts: Iterable[str], head: str = "") -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    said = f"<p>{escape(head)}</p>" if head else ""
    return f"{said}<ul>{items}</ul>\n" if items else ""


def _key(text: str) -> str:
    return "".join(character if character.isalnum() and character.isascii() else "-" for character in text)


def _json(value: object) -> str:
    """JSON that can stand in a script element: no <, no >, no &, no line separators of JavaScript."""
    text = msgspec.json.encode(value).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def vega() -> str:
    """Vega, Vega-Lite and Vega-Embed with all they need, as vl-convert carries them. About 0.9 MB."""
    import vl_convert

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle.replace("</script", "<\\/script")


@cache
def style() -> str:
    return _asset("page.css")


@cache
def script() -> str:
    return _asset("page.js")


def _asset(name: str) -> str:
    return resources.files("loadstone.report").joinpath("assets", name).read_text("utf-8")
