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
from collections.abc import Sequence
from functools import cache
from importlib import resources
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING, Any

import msgspec

from loadstone.core.units import show_number
from loadstone.report.data.wording import spell

if TYPE_CHECKING:
    import jinja2

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
    scripts = [vega(), script()]
    hashes = " ".join(map(_hash, scripts))
    return render(
        "page.html", title=title, hashes=hashes, style=style(), body=content, scripts=scripts
    )


def body(report: Report) -> str:
    """Write the report without frame: answer, hero, findings, tables, figures with their
    specifications."""
    of_kinds = [[each for each in report.sentences if each.kind == kind] for kind in _TELLING]
    turns = (each for turn in zip_longest(*of_kinds) for each in turn if each is not None)
    seen = {id(sentence) for sentence in islice(turns, OPEN_SENTENCES)}
    shown, more = (
        [
            (where, own)
            for where, all_of in report.by_context
            if (own := [s for s in all_of if (id(s) in seen) is at])
        ]
        for at in (True, False)
    )
    sections = report.sections()
    return render(
        "report.html",
        report=report,
        sections=sections,
        keys={key for key, *_ in sections},
        shown=shown,
        more=more,
        hidden=len(report.sentences) - len(seen),
        paper_rows=_PAPER_ROWS,
    )


def render(template: str, **values: object) -> str:
    """Fill one of the wing's templates; text is escaped."""
    return _templates().get_template(template).render(values)


@cache
def _templates() -> jinja2.Environment:
    import jinja2
    from markupsafe import Markup

    made = jinja2.Environment(
        loader=jinja2.PackageLoader("loadstone.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["anchor"] = lambda text: "".join(
        c if c.isalnum() and c.isascii() else "-" for c in text
    )
    made.filters["spell"] = spell
    made.filters["number"] = lambda value: show_number(value, 4)
    made.filters["script_json"] = lambda spec: Markup(_json(_pack(spec)))  # noqa: S704
    return made


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
def vega() -> str:
    """Return Vega, Vega-Lite and Vega-Embed with all they need, as vl-convert carries them. About
    0.9 MB."""
    import vl_convert

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle.replace("</script", "<\\/script")


@cache
def style() -> str:
    return asset("page.css")


@cache
def script() -> str:
    return asset("page.js")


def asset(name: str) -> str:
    """Write a script or style of the wing, as it is."""
    return resources.files("loadstone.report").joinpath("assets", name).read_text("utf-8")
