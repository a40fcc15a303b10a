"""Builds the parts of line charts: rows, scales, encodings, the layers of a picture, and the names
and loads beside them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import altair as alt
import numpy as np

from loadstone.core.groups import by_key
from loadstone.core.vectors import Floats
from loadstone.report.charts.theme import (
    DASHES,
    GREY,
    HEIGHT,
    MARK,
    PALETTE,
    SHAPES,
    WIDTH,
    Row,
    data,
    stack_layers,
    wide,
)
from loadstone.report.data.pairs import Effect
from loadstone.report.data.points import CellPoint
from loadstone.report.data.series import ChartSeries
from loadstone.report.data.statistic import Estimate

Direction = Literal["x", "y"]
Place = tuple[float, float]

LOGARITHMIC = 10.0
"""Times that the largest value must be above the smallest for a logarithmic axis."""
_ROOM = 0.05
"""Share of a logarithmic axis that is left free at each end."""
DIRECT, LONGEST = 8, 34
"""So many lines, with names of so many letters at most, have their names beside them."""
_MARKS = "●■▲◆▼✚▶◀"
"""SHAPES as letters."""
_LINE = 16
"""Height of a name."""
_SHOWN = "shown === '' || datum.who === shown"
"""Of a mark: nobody was picked on the page, or the one whose it is."""
_NEAR = 10
"""Points that are nearer than so many units lie together."""
_SIDES: tuple[tuple[Literal["left", "right"], int, int], ...] = (
    ("left", 7, -8),
    ("right", -7, -8),
    ("left", 7, 9),
    ("right", -7, 9),
)
"""Where a text may stand beside its point: its alignment, and the way there, right and down."""


# --- rows -----------------------------------------------------------------------------------------


def row_facts(point: CellPoint, series: ChartSeries) -> Row:
    """Make the facts of a row: its series, and a warning if its cell carries one."""
    facts = {
        "label": series.label,
        "variant": series.variant,
        "who": point.look.name,
        "hue": PALETTE[point.look.hue % len(PALETTE)],
    }
    shape = {} if point.look.shape is None else {MARK: point.look.shape}
    return facts | shape | warning(point)


def warning(*points: CellPoint) -> Row:
    """Mark a row whose cell carries a warning."""
    return {} if all(point.trusted for point in points) else {"warned": True}


def bounds(stat: Estimate | Effect | None, scale: float = 1.0) -> dict[str, float]:
    if stat is None or stat.low is None or stat.high is None:
        return {}
    return {"low": stat.low * scale, "high": stat.high * scale}


def quantiles(stat: Estimate | None, scale: float) -> dict[str, float]:
    """Give what a page can show in place of a median."""
    if stat is None or stat.which != "median" or stat.p90 is None or stat.p99 is None:
        return {}
    return {"p50": stat.value * scale, "p90": stat.p90 * scale, "p99": stat.p99 * scale}


# --- scales ---------------------------------------------------------------------------------------


def axis_scale(
    rows: Sequence[Row], column: Direction, *, bars: bool = False, log: bool | None = None
) -> alt.Scale:
    """Make a scale from 0 with some room above; or logarithmic, by `log` or where values span over
    LOGARITHMIC times.

    `bars`: they lie along this axis, and their ends have to be seen too.
    """
    values = [row[column] for row in rows]
    ends = [row[end] for row in rows for end in ("low", "high") if end in row] if bars else []
    if log is None:
        log = wide(values, LOGARITHMIC)
    if not log:
        high = max(1.12 * max(values), 1.02 * max(ends, default=0.0)) or 1.0
        return alt.Scale(type="linear", domain=[0, high], nice=False)
    seen = [value for value in (*values, *ends) if value > 0]
    room = (max(seen) / min(seen)) ** (_ROOM / (1 - 2 * _ROOM)) if len(set(seen)) > 1 else 1.1
    return alt.Scale(type="log", domain=[min(seen) / room, max(seen) * room], nice=False)


def alike_scales(rows: Sequence[Row], bars: Direction) -> tuple[alt.Scale, alt.Scale]:
    """Make the scales of x and y: both logarithmic where either needs to be, so that a power law is
    a line."""
    columns = [[row["x"] for row in rows], [row["y"] for row in rows]]
    log = all(min(values) > 0 for values in columns) and any(
        wide(values, LOGARITHMIC) for values in columns
    )
    return (
        axis_scale(rows, "x", bars=bars == "x", log=log),
        axis_scale(rows, "y", bars=bars == "y", log=log),
    )


def _domain(channel: alt.X | alt.Y) -> tuple[float, float]:
    """Give the ends of a scale, the lower 0 unless it is logarithmic."""
    low, high = channel["scale"]["domain"]
    return low, high


def _part(value: float, low: float, high: float) -> float:
    """Place a value on an axis with these ends, from 0 to 1."""
    if low:
        return math.log(value / low) / math.log(high / low)
    return value / high if high else 0.0


# --- layers ---------------------------------------------------------------------------------------


def lines(
    rows: Sequence[Row],
    variants: Sequence[str],
    x: alt.X,
    y: alt.Y,
    tooltip: list[alt.Tooltip],
    *,
    bars: Direction = "y",
    order: str = "",
) -> list[alt.Chart]:
    """Draw a line with points for each series; rows with `low` and `high` have a bar between them,
    along `bars`.

    variants: as in encode_lines(). order: the column that a line follows, where it is not x.
    """
    encode, base = encode_lines(rows, variants), alt.Chart(data(rows))
    along = {"order": alt.Order(f"{order}:Q")} if order else {}
    points = base.mark_point().encode(x=x, y=y, tooltip=tooltip, **encode("point"))
    drawn = [
        base.mark_line().encode(x=x, y=y, **along, **encode("line")),
        *cross_out(points, rows, x, y),
        *names_beside(rows, variants, y, order or "x"),
    ]
    if not any("low" in row for row in rows):
        return drawn
    floor = _domain(y if bars == "y" else x)[0]
    if floor:  # 0 is nowhere on a logarithmic axis: such a bar begins with the axis
        base = base.transform_calculate(low=f"max(datum.low, {floor})")
    ends = (
        {"x": x, "y": alt.Y("low:Q"), "y2": alt.Y2("high:Q")}
        if bars == "y"
        else {"x": alt.X("low:Q"), "x2": alt.X2("high:Q"), "y": y}
    )
    bounded = base.transform_filter("isValid(datum.low)").mark_rule(strokeOpacity=0.55)
    return [bounded.encode(**ends, **encode("rule")), *drawn]


def panels(layers: list[alt.Chart], rows: Sequence[Row]) -> list[alt.Chart] | dict[str, Any]:
    """Draw a small picture for each thing compared, on the same axes, if lines are too many to be
    named beside them.

    `layers`: all of the same `rows`.
    """
    names = list(dict.fromkeys(row["who"] for row in rows))
    count = len({row["label"] for row in rows})
    if directly(rows) or count <= DIRECT or len(names) < 2:
        return layers
    spec = stack_layers(layers, width=WIDTH // 2 - 30, height=HEIGHT // 2 + 30)
    (name,) = {layer.pop("data")["name"] for layer in spec["layer"]}
    whole = {key: spec.pop(key) for key in ("$schema", "datasets")}
    facet = {"field": "who", "type": "nominal", "title": None, "sort": names}
    return whole | {"data": {"name": name}, "facet": facet, "columns": 2, "spec": spec}


def cross_out(
    marks: alt.Chart, rows: Sequence[Row], x: alt.X, y: alt.Y, **channels: Any
) -> list[alt.Chart]:
    """Cross out the marks of cells with a warning. `channels`: those that place the marks beside x
    and y.
    """
    if not any("warned" in row for row in rows):
        return [marks]
    cross = alt.Chart(data(rows)).transform_filter("datum.warned").mark_text(text="×", fontSize=19)
    return [marks, cross.encode(x=x, y=y, **channels)]


def ring(rows: Sequence[Row], x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Draw a ring around these points."""
    if not rows:
        return []
    marks = alt.Chart(data(rows)).mark_point(size=300, filled=False, color=GREY, strokeWidth=2)
    return [marks.encode(x=x, y=y)]


# --- encodings ------------------------------------------------------------------------------------


Encoder = Callable[[Literal["line", "point", "rule"]], dict[str, Any]]


def encode_lines(rows: Sequence[Row], variants: Sequence[str], *, beside: bool = True) -> Encoder:
    """Return encodings of a mark: the colour of whose it is in the whole report; dashes and shapes
    by the rest where several share a colour, else shapes by colour. All are of one field, so that
    the legend is one. That of dashes, in another order, is none of it: they would tear its shapes.

    `variants`: of the whole report, see Frame. `beside`: names that fit beside lines stand there.
    """
    shapes = _shapes(rows, variants)
    hues = {row["label"]: row["hue"] for row in rows}
    names = list(shapes)
    named = len(names) < 2 or (beside and directly(rows))
    legend = None if named else alt.Legend(title=None)

    def channel(kind: Any, looks: Sequence[str]) -> Any:
        return kind("label:N", scale=alt.Scale(domain=names, range=list(looks)), legend=legend)

    colour = channel(alt.Color, list(hues.values()))
    shape = channel(alt.Shape, [SHAPES[number] for number in shapes.values()])
    strokes = [list(DASHES[number]) for number in reversed(shapes.values())]
    dashed = alt.Scale(domain=names[::-1], range=strokes)
    dashes = alt.StrokeDash("label:N", scale=dashed, legend=None)
    faded = alt.condition(_SHOWN, alt.value(1), alt.value(0.12))
    opacity = alt.OpacityValue(**faded)

    def encode(mark: Literal["line", "point", "rule"]) -> dict[str, Any]:
        channels: dict[str, Any] = {"color": colour, "opacity": opacity}
        if mark == "line" and _share_hues(hues):
            channels["strokeDash"] = dashes
        if mark == "point" and len(names) > 1:
            channels["shape"] = shape
        return channels

    return encode


def _share_hues(hues: Mapping[str, str]) -> bool:
    """Tell whether several lines share a colour."""
    return len(set(hues.values())) < len(hues)


def _shapes(rows: Sequence[Row], variants: Sequence[str]) -> dict[str, int]:
    """Return the number of the shape, and dash, of each line."""
    line_of = {row["label"]: row for row in rows}
    shared = _share_hues({label: row["hue"] for label, row in line_of.items()})
    order = sorted(dict.fromkeys((*variants, *(row["variant"] for row in rows))), key=bool)
    taken: set[tuple[str, int]] = set()
    shapes: dict[str, int] = {}
    for label, row in line_of.items():
        hue = row["hue"]
        first = order.index(row["variant"]) % len(SHAPES) if shared else PALETTE.index(hue)
        first = row.get(MARK, first)
        turned = [(first + step) % len(SHAPES) for step in range(len(SHAPES))]
        free = (number for number in turned if (hue, number) not in taken)
        shapes[label] = next(free, turned[0])
        taken.add((hue, shapes[label]))
    return shapes


# --- names and loads beside lines -----------------------------------------------------------------


def directly(rows: Sequence[Row]) -> bool:
    """Tell whether each line has its name beside its end, which is easier to read than a legend."""
    names = {row["label"] for row in rows}
    return 1 < len(names) <= DIRECT and max(map(len, names)) <= LONGEST


def names_beside(
    rows: Sequence[Row], variants: Sequence[str], y: alt.Y, order: str
) -> list[alt.Chart]:
    """Draw the name of each line right of the picture, at the height of its end, none over
    another."""
    if not directly(rows):
        return []
    last = {row["label"]: row for row in sorted(rows, key=lambda row: float(row[order]))}
    ends = _domain(y)
    heights = sorted(((1 - _part(row["y"], *ends)) * HEIGHT, name) for name, row in last.items())
    tops: list[float] = []
    for height, _ in heights:
        tops.append(max(height, tops[-1] + _LINE) if tops else height)
    lowest = HEIGHT - _LINE * (len(tops) - 1)
    shapes = _shapes(rows, variants)
    texts = [
        {
            "name": name,
            "mark": _MARKS[shapes[name]],
            "top": round(min(top, lowest + _LINE * number), 1),
            "hue": last[name]["hue"],
        }
        for number, ((_, name), top) in enumerate(zip(heights, tops, strict=True))
    ]
    raw = alt.Y("top:Q", scale=None, axis=None)
    base = alt.Chart(data(texts)).encode(x=alt.value("width"), y=raw)
    marks = base.mark_text(align="left", baseline="middle", dx=8, fontSize=13)
    names = base.mark_text(align="left", baseline="middle", dx=24, fontSize=12)
    return [
        marks.encode(color=alt.Color("hue:N", scale=None), text="mark:N"),
        names.encode(text="name:N"),
    ]


def loads_beside(rows: Sequence[Row], x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Draw loads, each written beside its point, on that side of it where it lies on nothing
    else."""
    base = alt.Chart(data(_place_loads(rows, x, y))).encode(
        x=x, y=y, text=alt.Text("load:Q", format="~g")
    )
    return [
        base.transform_filter(f"datum.side == {side}").mark_text(
            align=align, dx=dx, dy=dy, fontSize=12
        )
        for side, (align, dx, dy) in enumerate(_SIDES)
    ]


def _place_loads(rows: Sequence[Row], x_axis: alt.X, y_axis: alt.Y) -> list[Row]:
    """Return the loads that can be written, heaviest first, each with its side: none lies on a
    line, a point or another; of points that lie together under the same load one says it.
    """
    x_ends, y_ends = _domain(x_axis), _domain(y_axis)
    places: dict[int, Place] = {
        id(row): (_part(row["x"], *x_ends) * WIDTH, -_part(row["y"], *y_ends) * HEIGHT)
        for row in rows
    }
    ordered = sorted(rows, key=lambda row: row["load"])
    taken = _along(by_key((row["label"], places[id(row)]) for row in ordered).values())
    written: list[Row] = []
    placed: list[tuple[float, Place]] = []
    for row in sorted(rows, key=lambda row: -row["load"]):
        place, load = places[id(row)], row["load"]
        if any(load == near_load and math.dist(place, near) < _NEAR for near_load, near in placed):
            continue
        width = 7 * len(f"{load:g}")
        for side, (align, dx, dy) in enumerate(_SIDES):
            half = width / 2 if align == "left" else -width / 2
            middle = place[0] + dx + half, place[1] + dy
            if (np.abs(taken - middle) < (width / 2 + 2, 7)).all(axis=1).any():
                continue
            box = [(part * width, high) for part in np.linspace(-0.5, 0.5, 12) for high in (-2, 2)]
            taken = np.concatenate([taken, np.add(middle, box)])
            written.append({"x": row["x"], "y": row["y"], "load": load, "side": side})
            placed.append((load, place))
            break
    return written


def _along(lines: Iterable[Sequence[Place]]) -> Floats:
    """Return points along all lines, near enough to one another that no text fits between."""
    return np.array(
        [
            np.add(start, share * np.subtract(end, start))
            for line in lines
            for start, end in zip(line, [*line[1:], line[-1]], strict=True)
            for share in np.linspace(0, 1, 40)
        ]
    )
