"""How pictures look. They are small with large letters, so that they can be read at a third of their size."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

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


def figure(key: str, title: str, notes: Iterable[str], chart: Any, *, section: str, summary: str = "") -> Figure:
    """An Altair chart made a figure: title, notes and looks added."""
    said = [note for note in notes if note]
    lines = [line for note in said for line in textwrap.wrap(note, _LINE_CHARS)]
    from altair.utils import schemapi

    spec: dict[str, Any] = chart.to_dict(validate=schemapi.DEBUG_MODE)
    spec["title"] = {"text": textwrap.wrap(title, 52) or "", "subtitle": lines}
    spec["config"] = CONFIG
    if "width" not in spec and not {"hconcat", "vconcat", "facet", "repeat"} & set(spec):
        spec |= {"width": WIDTH, "height": HEIGHT}
    return Figure(key=key, title=title, notes=said, summary=summary or title, section=section, spec=spec)


def rounded(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows with floats cut to five digits: a picture shows no more, and a report of 100 runs stays small."""
    return [
        {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in row.items()}
        for row in rows
    ]


def data(rows: Iterable[Mapping[str, Any]]) -> Any:
    import altair as alt

    return alt.InlineData(values=rounded(rows))


def load_axis(values: Sequence[float]) -> Any:
    """A tick for each load, in full: left to itself, Vega rounds 128 to 1.3e+2 beside 32 and 64."""
    import altair as alt

    return alt.Axis(values=list(values), format=",.6~r", grid=False)


def load_scale(values: Sequence[float]) -> Any:
    """Loads double from cell to cell: a log scale where they span a factor of four or more."""
    import altair as alt

    if min(values) > 0 and max(values) / min(values) >= 4:
        return alt.Scale(type="log", base=2, nice=False, padding=14)
    return alt.Scale(zero=False, nice=False, padding=14)


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
