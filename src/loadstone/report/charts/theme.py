"""What all pictures have: looks, data, axes, tooltips, and their files (SVG, PNG, HTML), made offline.

They are small with large letters, so that they can be read at a third of their size.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from loadstone.core.errors import InputError
from loadstone.report.charts.colours import SEQUENCE

if TYPE_CHECKING:
    import altair as alt

Row = dict[str, Any]

WIDTH, HEIGHT = 460, 280
PNG_SCALE = 3
"""Pixels per unit of length: a PNG is three times as large as it needs to be to be read."""
INK = "#222222"
_LINE_CHARS = 80


class Figure(msgspec.Struct, kw_only=True):
    """One picture. `spec` is Vega-Lite with its data inside.

    key      what it is, unique within a report: file names and anchors come from it
    notes    definition, sample count, interval: lines under the title, part of the picture itself
    summary  what a reader who does not see it is told
    section  where a report puts it
    """

    key: str
    title: str
    notes: list[str]
    summary: str
    section: str
    spec: dict[str, Any]


def figure(key: str, title: str, notes: Iterable[str], chart: Any, *, section: str, summary: str) -> Figure:
    """An Altair chart made a figure: title, notes and looks added."""
    shown_notes = [note for note in notes if note]
    lines = [line for note in shown_notes for line in textwrap.wrap(note, _LINE_CHARS)]
    from altair.utils import schemapi

    spec: dict[str, Any] = chart.to_dict(validate=schemapi.DEBUG_MODE)
    spec["title"] = {"text": textwrap.wrap(title, 52) or "", "subtitle": lines}
    spec["config"] = CONFIG
    if "width" not in spec and not {"hconcat", "vconcat", "facet", "repeat"} & set(spec):
        spec |= {"width": WIDTH, "height": HEIGHT}
    return Figure(key=key, title=title, notes=shown_notes, summary=summary, section=section, spec=spec)


def tooltips(*columns: tuple[str, ...]) -> list[alt.Tooltip]:
    """Of columns of the data, each with its title and number format where these are not its name and Vega's own."""
    import altair as alt

    def tooltip(column: str, title: str = "", format: str = "") -> alt.Tooltip:
        return alt.Tooltip(column, title=title or alt.Undefined, format=format or alt.Undefined)

    return [tooltip(*column) for column in columns]


def data(rows: Iterable[Mapping[str, Any]]) -> alt.InlineData:
    """Rows with floats cut to five digits: a picture shows no more, and a report of 100 runs stays small."""
    import altair as alt

    rounded = [
        {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in row.items()}
        for row in rows
    ]
    return alt.InlineData(values=rounded)


def wide(values: Sequence[float], times: float) -> bool:
    """Whether they span more than a factor of `times`, so that a linear axis would press the small ones together."""
    return min(values) > 0 and max(values) / min(values) > times


def shades(names: Sequence[str]) -> alt.Scale:
    """Colours for what has none of its own, in their order."""
    import altair as alt

    return alt.Scale(domain=names, range=list(SEQUENCE[: len(names)]))


def load_axis(title: str, values: Sequence[float]) -> alt.X:
    """Loads double from cell to cell: a log scale where they span a factor of four or more.

    A tick for each load, in full: left to itself, Vega rounds 128 to 1.3e+2 beside 32 and 64.
    """
    import altair as alt

    doubling = min(values) > 0 and max(values) / min(values) >= 4
    kind = {"type": "log", "base": 2} if doubling else {"zero": False}
    axis = alt.Axis(values=list(values), format=",.6~r", grid=False)
    return alt.X("x:Q", title=title, scale=alt.Scale(**kind, nice=False, padding=14), axis=axis)


def to_png(figure: Figure, scale: float = PNG_SCALE) -> bytes:
    import vl_convert

    drawn: bytes = vl_convert.vegalite_to_png(figure.spec, scale=scale, allowed_base_urls=[])
    return drawn


def to_svg(figure: Figure) -> str:
    import vl_convert

    drawn: str = vl_convert.vegalite_to_svg(figure.spec, allowed_base_urls=[])
    return drawn


def save_picture(picture: Figure, path: Path) -> None:
    """As HTML, SVG or PNG, by the name's ending; the HTML needs no network. Raises InputError for any other."""
    kind = path.suffix.lower()
    if kind == ".png":
        path.write_bytes(to_png(picture))
    elif kind == ".svg":
        path.write_text(to_svg(picture), encoding="utf-8")
    elif kind in (".html", ".htm"):
        import vl_convert

        # It writes strings into a script element as they are: a model's name must not end that.
        harmless = msgspec.json.decode(msgspec.json.encode(picture.spec).replace(b"<", "‹".encode()))
        path.write_text(vl_convert.vegalite_to_html(harmless, bundle=True), encoding="utf-8")
    else:
        raise InputError(f"{path}: a picture's name ends in .png, .svg or .html")


CONFIG: dict[str, Any] = {
    "background": "white",
    "font": "Liberation Sans, Arial, Helvetica, sans-serif",
    "padding": 8,
    "view": {"stroke": None},
    "title": {
        "anchor": "start", "fontSize": 17, "fontWeight": 600, "color": INK, "offset": 10,
        "subtitleFontSize": 12, "subtitleColor": "#555555", "subtitlePadding": 4,
    },
    "axis": {
        "labelFontSize": 14, "titleFontSize": 14, "titleFontWeight": "normal", "labelColor": INK, "titleColor": INK,
        "gridColor": "#e6e6e6", "domainColor": "#888888", "tickColor": "#888888", "labelOverlap": True,
        "tickCount": 6,
    },
    "legend": {
        "orient": "bottom", "labelFontSize": 14, "titleFontSize": 13, "labelColor": INK, "titleColor": INK,
        "symbolSize": 130, "symbolOpacity": 1, "symbolStrokeWidth": 2.5, "labelLimit": 300, "columns": 3,
        "titleFontWeight": "normal", "layout": {"bottom": {"direction": "vertical", "anchor": "start"}},
    },
    "header": {"labelFontSize": 14, "titleFontSize": 14, "labelColor": INK, "titleColor": INK},
    "line": {"strokeWidth": 2.8},
    "point": {"size": 75, "filled": True, "opacity": 1},
    "rule": {"strokeWidth": 1.8},
    "bar": {"cornerRadiusEnd": 2},
    "text": {"fontSize": 13, "color": INK},
    "locale": {"number": {"decimal": ".", "thousands": "\u202f", "grouping": [3], "currency": ["", ""]}},
}  # fmt: skip
"""One look for all; a dark page exchanges its colours (assets/page.js)."""
