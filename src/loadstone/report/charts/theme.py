"""Give all pictures the same looks, data, axes, tooltips, and their files (SVG, PNG, HTML), made
offline.

They are small with large letters, so that they can be read at a third of their size. A colour means
one thing in all pictures of a report: what is compared (data/series.py, assign_hues). The first
three are of Okabe and Ito, Color Universal Design (2008); all have a contrast of at least 3 on
white and on the dark page, are told apart by the colour-blind (tests/report/test_charts.py has the
measure), and have a shape beside them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

import altair as alt
import msgspec
from altair.utils import schemapi

from loadstone.core.extras import require

Row = dict[str, Any]
MARK = "look"
"""Of a row: the number of its shape, which no page needs to be told again."""

WIDTH, HEIGHT = 460, 280
PNG_SCALE = 3
"""Pixels per unit of length: a PNG is three times as large as it needs to be to be read."""
INK = "#222222"
_LINE_CHARS = 80


BLUE, VERMILION, GREEN, CYAN, GREY = "#0072B2", "#D55E00", "#009E73", "#0E8FA8", "#777777"
PALETTE = (BLUE, VERMILION, GREEN, "#8F1FFF", "#E00043", "#8D70FF", "#A55083", "#FF3370")
"""What is compared, and nothing else: all else is INK or GREY, and told apart by dashes, shapes and
words."""

DASHES = ((1, 0), (7, 4), (2, 3), (9, 3, 2, 3), (4, 2), (12, 4), (1, 2), (6, 2, 1, 2, 1, 2))
SHAPES = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "triangle-down",
    "cross",
    "triangle-right",
    "triangle-left",
)


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


def figure(
    key: str, title: str, notes: Iterable[str], chart: Any, *, section: str, summary: str
) -> Figure:
    """Make a figure of an Altair chart, or of charts in layers: add title, notes and looks."""
    shown_notes = [note for note in notes if note]
    lines = [line for note in shown_notes for line in textwrap.wrap(note, _LINE_CHARS)]
    spec = stack_layers(chart) if isinstance(chart, list) else chart
    if not isinstance(spec, dict):
        spec = spec.to_dict(validate=schemapi.DEBUG_MODE)
    spec["title"] = {"text": textwrap.wrap(title, 52) or "", "subtitle": lines}
    spec["config"] = CONFIG
    if "datum.who" in str(spec):
        spec["params"] = [
            *spec.get("params", []),
            {"name": "shown", "value": ""},
        ]  # whom a reader picked on the page
    if "width" not in spec and not {"hconcat", "vconcat", "facet", "repeat"} & set(spec):
        spec |= {"width": WIDTH, "height": HEIGHT}
    return Figure(
        key=key, title=title, notes=shown_notes, summary=summary, section=section, spec=spec
    )


def stack_layers(charts: Sequence[alt.Chart], **more: Any) -> dict[str, Any]:
    """Return the specification of charts over one another. Altair's own way copies all of them for
    each that is added.
    """
    parts = [chart.to_dict(validate=schemapi.DEBUG_MODE) for chart in charts]
    datasets = {name: rows for part in parts for name, rows in part.pop("datasets", {}).items()}
    layers = [
        {name: value for name, value in part.items() if name not in ("$schema", "config")}
        for part in parts
    ]
    return {"$schema": parts[0]["$schema"], "layer": layers, "datasets": datasets} | more


def tooltips(*columns: tuple[str, ...]) -> list[alt.Tooltip]:
    """Make tooltips of columns, each with its title and number format where these are not its name
    and Vega's own."""

    def tooltip(column: str, title: str = "", format: str = "") -> alt.Tooltip:
        return alt.Tooltip(column, title=title or alt.Undefined, format=format or alt.Undefined)

    return [tooltip(*column) for column in columns]


class _Rows(alt.InlineData):
    """Rows that stay the same object: Altair copies all that a chart has each time that a part of
    it is set."""

    def __deepcopy__(self, memo: object) -> _Rows:
        return self


def data(rows: Iterable[Mapping[str, Any]]) -> alt.InlineData:
    """Make data of rows, floats cut to five digits: a picture shows no more, and a report of 100
    runs stays small."""
    rounded = [
        {
            name: float(f"{value:.5g}") if isinstance(value, float) else value
            for name, value in row.items()
            if name != MARK
        }
        for row in rows
    ]
    return _Rows(values=rounded)


def wide(values: Sequence[float], times: float) -> bool:
    """Tell whether values span more than a factor of `times`, so that a linear axis would hide the
    small ones."""
    return min(values) > 0 and max(values) / min(values) > times


def colour_by(
    column: str,
    names: Sequence[str],
    shades: Sequence[str] = PALETTE,
    *,
    least: int = 1,
    **options: Any,
) -> alt.Color:
    """Give each name a colour, in their order. `options`: of its legend, which fewer names than
    `least` have not."""
    legend = alt.Legend(title=None, **options) if len(names) >= least else None
    shown = [shades[number % len(shades)] for number in range(len(names))]
    return alt.Color(f"{column}:N", legend=legend).scale(domain=names, range=shown)


def seconds_unit(longest_s: float) -> tuple[str, float]:
    """Return milliseconds for what is below two seconds; and how many of the unit a second has."""
    return ("ms", 1e3) if longest_s < 2 else ("s", 1.0)


def load_axis(title: str, values: Sequence[float]) -> alt.X:
    """Make an axis of loads, which double from cell to cell: a log scale where they span a factor
    of four or more.

    A tick for each load, in full: left to itself, Vega rounds 128 to 1.3e+2 beside 32 and 64.
    """
    doubling = min(values) > 0 and max(values) / min(values) >= 4
    kind = {"type": "log", "base": 2} if doubling else {"zero": False}
    axis = alt.Axis(values=list(values), format=",.6~r", grid=False)
    return alt.X("x:Q", title=title, axis=axis).scale(**kind, nice=False, padding=14)


def to_png(figure: Figure, scale: float = PNG_SCALE) -> bytes:
    require("vl_convert", "images", "PNG")
    import vl_convert

    drawn: bytes = vl_convert.vegalite_to_png(figure.spec, scale=scale, allowed_base_urls=[])
    return drawn


def to_svg(figure: Figure) -> str:
    require("vl_convert", "images", "SVG")
    import vl_convert

    drawn: str = vl_convert.vegalite_to_svg(figure.spec, allowed_base_urls=[])
    return drawn


CONFIG: dict[str, Any] = msgspec.json.decode(
    resources.files("loadstone.report").joinpath("assets", "chart_looks.json").read_bytes()
)
"""One look for all; a dark page exchanges its colours (assets/page.js)."""
