"""What lines are drawn of: points, bars, crosses, colours and dashes, axes, loads written beside their points."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from loadstone.report.charts.colours import DASHES, SEQUENCE, SHAPES, colours
from loadstone.report.charts.theme import HEIGHT, WIDTH, Row, data, wide
from loadstone.report.data.points import Point
from loadstone.report.data.series import Series
from loadstone.report.data.statistic import Stat

if TYPE_CHECKING:
    import altair as alt

Direction = Literal["x", "y"]
Look = TypeVar("Look")

LOGARITHMIC = 20.0
"""Times that the largest value must be above the smallest for a logarithmic axis."""
_ROOM = 0.05
"""Share of a logarithmic axis that is left free at each end."""
BESIDE = "labelled where there is room"
WHOSE = ("colour:N", "series"), ("variant:N", "variant")
"""Tooltips: what every point tells of itself first."""
CROSSED = "×: the cell carries a warning"
OTHERS = "the others"
"""In a legend: series of whom nothing more is told."""
_NEAR = 10
"""Points that are nearer than so many units lie together."""
_SIDES: tuple[tuple[Literal["left", "right"], int, int], ...] = (
    ("left", 7, -8), ("right", -7, -8), ("left", 7, 9), ("right", -7, 9),
)  # fmt: skip
"""Where a text may stand beside its point: its alignment, and the way there, right and down."""


def named(point: Point, series: Series) -> Row:
    """Whose it is; and that its cell carries a warning, where it does."""
    row: Row = {"colour": series.colour, "variant": series.variant}
    return row if point.trusted else row | {"warned": True}


def bounds(stat: Stat | None, scale: float) -> dict[str, float]:
    if stat is None or stat.low is None or stat.high is None:
        return {}
    return {"low": stat.low * scale, "high": stat.high * scale}


def lines(
    rows: Sequence[Row],
    known: Sequence[str],
    x: alt.X,
    y: alt.Y,
    tooltip: list[alt.Tooltip],
    *,
    bars: Direction = "y",
    order: str = "",
) -> alt.LayerChart:
    """A line with points for each series; rows with `low` and `high` have a bar between them, along `bars`.

    known: as in looks(). order: the column that a line follows, where it is not x.
    """
    import altair as alt

    encode, base = looks(rows, known), alt.Chart(data(rows))
    along = {"order": alt.Order(f"{order}:Q")} if order else {}
    drawn: alt.LayerChart = base.mark_line().encode(x=x, y=y, **along, **encode("line"))
    drawn += crossed(base.mark_point().encode(x=x, y=y, tooltip=tooltip, **encode("point")), rows, x, y)
    if not any("low" in row for row in rows):
        return drawn
    ends = (
        {"x": x, "y": alt.Y("low:Q"), "y2": "high:Q"}
        if bars == "y"
        else {"x": alt.X("low:Q"), "x2": "high:Q", "y": y}
    )
    bounded = base.transform_filter("isValid(datum.low)").mark_rule(opacity=0.55)
    under: alt.LayerChart = bounded.encode(**ends, **encode("rule")) + drawn
    return under


def crossed(marks: alt.Chart, rows: Sequence[Row], x: alt.X, y: alt.Y, **more: Any) -> alt.LayerChart:
    """The marks; those of cells with a warning crossed out. `more`: channels that place the marks beside x and y."""
    import altair as alt

    layers = [marks]
    if any("warned" in row for row in rows):
        cross = alt.Chart(data(rows)).transform_filter("datum.warned").mark_text(text="×", fontSize=19)
        layers.append(cross.encode(x=x, y=y, **more))
    return alt.LayerChart(layer=layers)


def looks(rows: Sequence[Row], known: Sequence[str]) -> Any:
    """Encodings of a mark: colour by the first thing that differs, dashes and shapes by the rest; the legend shows
    shapes, which points that stand alone have too. With one colour and several variants these get the colours.

    `known`: variants of the whole report, see Frame.
    """
    import altair as alt

    names, field = list(dict.fromkeys(row["colour"] for row in rows)), "colour"
    shades = colours(names)
    order = sorted(dict.fromkeys((*known, *(row["variant"] for row in rows))), key=bool)
    variants = [variant for variant in order if any(row["variant"] == variant for row in rows)]
    word = f"datum.label || '{OTHERS}'"
    if len(names) == 1 and len(variants) > 1:
        names, field, shades = variants, "variant", _kept(SEQUENCE, variants, order)
    colour = alt.Color(
        f"{field}:N",
        scale=alt.Scale(domain=names, range=shades),
        legend=alt.Legend(title=None, labelExpr=word) if len(names) > 1 else None,
    )
    dashes = alt.StrokeDash(
        "variant:N",
        # Backwards: Vega-Lite makes one legend, here none, of scales whose domains are the same.
        scale=alt.Scale(domain=variants[::-1], range=[list(dash) for dash in _kept(DASHES, variants, order)][::-1]),
        legend=None,
    )
    shapes = alt.Shape(
        "variant:N",
        scale=alt.Scale(domain=variants, range=_kept(SHAPES, variants, order)),
        legend=alt.Legend(title=None, symbolStrokeColor="#777777", symbolFillColor="#777777", labelExpr=word),
    )
    differ = field == "colour" and variants != order[:1]

    def encode(mark: str) -> dict[str, Any]:
        channels: dict[str, Any] = {"color": colour, "detail": ["colour:N", "variant:N"]}
        if differ and mark == "line":
            channels["strokeDash"] = dashes
        if differ and mark == "point":
            channels["shape"] = shapes
        return channels

    return encode


def _kept(looks: Sequence[Look], variants: Sequence[str], order: Sequence[str]) -> list[Look]:
    """For each of the variants the look of its place in the order; those that another here has got, one that is free
    while there are any.
    """
    places: dict[str, int] = {}
    for variant in variants:
        place = order.index(variant) % len(looks)
        if place not in places.values():
            places[variant] = place
    free = [place for place in range(len(looks)) if place not in places.values()]
    rest = [variant for variant in variants if variant not in places]
    places |= {variant: (free or range(len(looks)))[n % len(free or looks)] for n, variant in enumerate(rest)}
    return [looks[places[variant]] for variant in variants]


def axis_scale(rows: Sequence[Row], column: Direction, *, bars: bool = False) -> alt.Scale:
    """From 0 with some room above, or logarithmic where values span more than a factor of LOGARITHMIC.

    `bars`: they lie along this axis, and their ends have to be seen too.
    """
    import altair as alt

    low, high = _ends(rows, column, bars)
    return alt.Scale(type="log" if low else "linear", domain=[low or 0, high], nice=False)


def _ends(rows: Sequence[Row], column: Direction, bars: bool) -> tuple[float, float]:
    """Where the axis begins and ends: at 0 unless it is logarithmic."""
    values = [row[column] for row in rows]
    ends_of_bars = [row[end] for row in rows for end in ("low", "high") if bars and end in row]
    if not wide(values, LOGARITHMIC):
        return 0.0, max(1.12 * max(values), 1.02 * max(ends_of_bars, default=0.0))
    seen = [value for value in (*values, *ends_of_bars) if value > 0]
    room = (max(seen) / min(seen)) ** (_ROOM / (1 - 2 * _ROOM))
    return min(seen) / room, max(seen) * room


def loads_beside(rows: Sequence[Row], x: alt.X, y: alt.Y, *, bars: Direction) -> alt.LayerChart:
    """Loads, each written beside its point, on that side of it where it lies on nothing else.

    `bars`: as in lines().
    """
    import altair as alt

    base = alt.Chart(data(_beside(rows, bars))).encode(x=x, y=y, text=alt.Text("load:Q", format="~g"))
    texts = (
        base.transform_filter(f"datum.side == {n}").mark_text(align=align, dx=dx, dy=dy, fontSize=12)
        for n, (align, dx, dy) in enumerate(_SIDES)
    )
    return alt.LayerChart(layer=list(texts))


def _beside(rows: Sequence[Row], bars: Direction) -> list[Row]:
    """The loads that can be written, heaviest first, each with its side: none lies on a line, a point or another; of
    points that lie together under the same load one says it.
    """
    ends = {column: _ends(rows, column, column == bars) for column in ("x", "y")}
    at = {id(row): (_part(row["x"], *ends["x"]) * WIDTH, -_part(row["y"], *ends["y"]) * HEIGHT) for row in rows}
    lines = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["load"]):
        lines[row["colour"], row["variant"]].append(at[id(row)])
    taken = np.array(
        [
            np.add(start, share * np.subtract(end, start))
            for line in lines.values()
            for start, end in zip(line, [*line[1:], line[-1]], strict=True)
            for share in np.linspace(0, 1, 40)
        ]
    )
    placed: list[Row] = []
    written: list[Row] = []
    for row in sorted(rows, key=lambda row: -row["load"]):
        x, y = at[id(row)]
        if any(other["load"] == row["load"] and math.dist(at[id(other)], (x, y)) < _NEAR for other in written):
            continue
        wide_px = 7 * len(f"{row['load']:g}")
        for side, (align, dx, dy) in enumerate(_SIDES):
            middle = x + dx + (wide_px / 2 if align == "left" else -wide_px / 2), y + dy
            if not (np.abs(taken - middle) < (wide_px / 2 + 2, 7)).all(axis=1).any():
                box = [(part * wide_px, high) for part in np.linspace(-0.5, 0.5, 12) for high in (-2, 2)]
                taken = np.concatenate([taken, np.add(middle, box)])
                placed.append({"x": row["x"], "y": row["y"], "load": row["load"], "side": side})
                written.append(row)
                break
    return placed


def _part(value: float, low: float, high: float) -> float:
    """Where a value stands on an axis with these ends, from 0 to 1."""
    return math.log(value / low) / math.log(high / low) if low else value / high if high else 0.0
