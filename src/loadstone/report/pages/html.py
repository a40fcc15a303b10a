"""A report as a page. `page` makes one self-contained file; `body` is what the live page puts into
its own frame.

Nothing that an engine, a file or a user wrote becomes markup: templates escape what they insert,
specifications are JSON whose `<` is written as \\u003c, so that no `</script>` in a name ends it.
The file's content-security-policy allows its own two scripts by their hashes, no evaluation of
strings, and no network.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from loadstone.core.errors import InputError
from loadstone.core.extras import require
from loadstone.core.groups import by_key
from loadstone.core.units import show_number, show_seconds
from loadstone.report.data.wording import spell
from loadstone.report.table import escape, to_markdown

if TYPE_CHECKING:
    import jinja2

    from loadstone.report.charts.theme import Figure
    from loadstone.report.findings.sentence import Sentence
    from loadstone.report.pages.document import Report

OPEN_SENTENCES = 12
"""So many findings are seen at once, of each kind in turn; the rest is behind a word."""
_PAPER_ROWS = 40
"""Rows of a table of runs that are printed: longer ones are for the screen."""
_TELLING = (
    "price",
    "peak",
    "capacity",
    "ratio",
    "leader",
    "scale",
    "switch",
    "bottleneck",
    "trend",
    "light",
)


def page(report: Report) -> str:
    """Write the whole report as one file that needs no network."""
    return frame_page(report.title, body(report))


def frame_page(title: str, content: str) -> str:
    """Write a page of its own around `content`, which is markup already."""
    scripts = [asset("vega.js"), asset("page.js")]
    hashes = " ".join(map(_hash, scripts))
    return render(
        "page.html",
        title=title,
        hashes=hashes,
        style=asset("page.css"),
        body=content,
        scripts=scripts,
    )


def save_picture(picture: Figure, path: Path) -> None:
    """Write HTML, SVG or PNG, by the name's ending; the HTML needs no network. Raises InputError
    for any other."""
    from loadstone.report.charts.theme import to_png, to_svg

    kind = path.suffix.lower()
    if kind == ".png":
        path.write_bytes(to_png(picture))
    elif kind == ".svg":
        path.write_text(to_svg(picture), encoding="utf-8")
    elif kind in (".html", ".htm"):
        content = render("picture.html", figure=picture)
        path.write_text(frame_page(picture.title, content), encoding="utf-8")
    else:
        raise InputError(f"{path}: a picture's name ends in .png, .svg or .html")


def body(report: Report) -> str:
    """Write the report without frame: answer, hero, findings, tables, figures with their
    specifications."""
    by_kind = by_key((sentence.kind, sentence) for sentence in report.sentences)
    turns = zip_longest(*(by_kind.get(kind, []) for kind in _TELLING))
    telling = (sentence for turn in turns for sentence in turn if sentence is not None)
    seen = {id(sentence) for sentence in islice(telling, OPEN_SENTENCES)}
    shown = _select_sentences(report, lambda sentence: id(sentence) in seen)
    folded = _select_sentences(report, lambda sentence: id(sentence) not in seen)
    sections = report.sections()
    return render(
        "report.html",
        report=report,
        sections=sections,
        keys={key for key, *_ in sections},
        shown=shown,
        more=folded,
        hidden=len(report.sentences) - len(seen),
        paper_rows=_PAPER_ROWS,
    )


def _select_sentences(
    report: Report, chosen: Callable[[Sentence], bool]
) -> list[tuple[str, list[Sentence]]]:
    groups = ((where, list(filter(chosen, group))) for where, group in report.by_context)
    return [(where, group) for where, group in groups if group]


def render(template: str, **values: object) -> str:
    """Fill one of the wing's templates; text is escaped."""
    return _templates().get_template(template).render(values)


@cache
def _templates() -> jinja2.Environment:
    import jinja2
    from markupsafe import Markup

    made = jinja2.Environment(
        loader=jinja2.PackageLoader("loadstone.report"),
        autoescape=jinja2.select_autoescape(),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["anchor"] = lambda text: re.sub("[^0-9A-Za-z]", "-", text)
    made.filters["spell"] = spell
    made.filters["tone"] = _tone
    made.filters["md"] = escape
    made.filters["md_table"] = lambda table: "\n".join(to_markdown(table))
    made.filters["number"] = lambda value: show_number(value, 4)
    made.filters["seconds"] = show_seconds
    made.filters["script_json"] = lambda spec: Markup(_json(_pack(spec)))  # noqa: S704
    return made


def _tone(text: str) -> str:
    """Give the style of a cell of a table that says what is good, or bad."""
    if text.endswith(" better") or text.partition(" (")[0] == "met":
        return "good"
    return "bad" if text.endswith(" worse") or text.startswith("MISSED") else ""


def _pack(spec: dict[str, Any]) -> dict[str, Any]:
    """Write long data as columns, in two thirds of the room; assets/page.js makes rows of them
    again."""
    sets = spec.get("datasets", {}).items()
    return spec | {
        "datasets": {name: _transpose(rows) if len(rows) > 20 else rows for name, rows in sets}
    }


def _transpose(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    return {key: [row.get(key) for row in rows] for key in dict.fromkeys(chain.from_iterable(rows))}


def _json(value: object) -> str:
    """Write JSON that can stand in a script element: no <, no >, no &, no line separators of
    JavaScript."""
    text = msgspec.json.encode(value).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def asset(name: str) -> str:
    """Return the text of a script or style. vega.js is Vega, Vega-Lite and Vega-Embed with all they
    need, about 0.9 MB, where the build put it (hatch_build.py), or else as vl-convert carries it.
    """
    file = resources.files("loadstone.report").joinpath("assets", name)
    if name == "vega.js" and not file.is_file():
        require("vl_convert", "images", "pages of a checkout that was not installed")
        import vl_convert

        bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
        return bundle.replace("</script", "<\\/script")
    return file.read_text("utf-8")
