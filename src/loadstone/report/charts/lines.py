"""Lines: a measure against load or length, throughput against latency, what one gives for another
(fronts); what they are drawn of, and what pictures say of their points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import altair as alt
import numpy as np

from loadstone.core.groups import by_key
from loadstone.core.units import show_load, show_number
from loadstone.report.charts.theme import (
    DASHES,
    GREY,
    HEIGHT,
    MARK,
    PALETTE,
    SHAPES,
    WIDTH,
    Figure,
    Row,
    data,
    figure,
    load_axis,
    seconds_unit,
    stack_layers,
    tooltips,
    wide,
)
from loadstone.report.data.frames import (
    E2E,
    PER_USER,
    Frame,
    Measure,
    cliff,
    is_bunched,
    knee,
    load_label,
)
from loadstone.report.data.pairs import Effect
from loadstone.report.data.points import CellPoint
from loadstone.report.data.series import ChartSeries
from loadstone.report.data.statistic import REPEATS, Estimate
from loadstone.report.data.wording import join, requests_a

Direction = Literal["x", "y"]
Look = TypeVar("Look")

LOGARITHMIC = 10.0
"""Times that the largest value must be above the smallest for a logarithmic axis."""
_ROOM = 0.05
"""Share of a logarithmic axis that is left free at each end."""
BESIDE = "labelled where there is room"
WHOSE = (("label:N", "series"),)
"""Tooltips: what every point tells of itself first."""
CROSSED = "×: the cell carries a warning"
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


def row_facts(point: CellPoint, series: ChartSeries) -> Row:
    """Make the facts of a row: its series, and a warning if its cell carries one."""
    hue = PALETTE[point.look.hue % len(PALETTE)]
    shape = {} if point.look.shape is None else {MARK: point.look.shape}
    return (
        {"label": series.label, "variant": series.variant, "who": point.look.name, "hue": hue}
        | shape
        | warning(point)
    )


def warning(*points: CellPoint) -> Row:
    """Mark a row whose cell carries a warning."""
    return {} if all(point.trusted for point in points) else {"warned": True}


def bounds(known: Estimate | Effect | None, scale: float = 1.0) -> dict[str, float]:
    if known is None or known.low is None or known.high is None:
        return {}
    return {"low": known.low * scale, "high": known.high * scale}


def panels(layers: list[alt.Chart], rows: Sequence[Row]) -> list[alt.Chart] | dict[str, Any]:
    """Draw a small picture for each thing compared, on the same axes, if lines are too many to be
    named beside them.

    `layers`: all of the same `rows`.
    """
    if (
        directly(rows)
        or not len({row["label"] for row in rows}) > DIRECT
        or len({row["who"] for row in rows}) < 2
    ):
        return layers
    spec = stack_layers(layers, width=WIDTH // 2 - 30, height=HEIGHT // 2 + 30)
    (name,) = {layer.pop("data")["name"] for layer in spec["layer"]}
    whole = {key: spec.pop(key) for key in ("$schema", "datasets")}
    by = {
        "field": "who",
        "type": "nominal",
        "title": None,
        "sort": list(dict.fromkeys(row["who"] for row in rows)),
    }
    return whole | {"data": {"name": name}, "facet": by, "columns": 2, "spec": spec}


def quantiles(known: Estimate | None, scale: float) -> dict[str, float]:
    """Give what a page can show in place of a median."""
    if known is None or known.which != "median" or known.p90 is None or known.p99 is None:
        return {}
    return {"p50": known.value * scale, "p90": known.p90 * scale, "p99": known.p99 * scale}


def lines(
    rows: Sequence[Row],
    known: Sequence[str],
    x: alt.X,
    y: alt.Y,
    tooltip: list[alt.Tooltip],
    *,
    bars: Direction = "y",
    order: str = "",
) -> list[alt.Chart]:
    """Draw a line with points for each series; rows with `low` and `high` have a bar between them,
    along `bars`.

    known: as in looks(). order: the column that a line follows, where it is not x.
    """
    encode, base = looks(rows, known), alt.Chart(data(rows))
    along = {"order": alt.Order(f"{order}:Q")} if order else {}
    drawn = [base.mark_line().encode(x=x, y=y, **along, **encode("line"))]
    drawn += cross_out(
        base.mark_point().encode(x=x, y=y, tooltip=tooltip, **encode("point")), rows, x, y
    )
    drawn += names_beside(rows, known, y, order or "x")
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


def cross_out(
    marks: alt.Chart, rows: Sequence[Row], x: alt.X, y: alt.Y, **more: Any
) -> list[alt.Chart]:
    """Cross out the marks of cells with a warning. `more`: channels that place the marks beside x
    and y.
    """
    if not any("warned" in row for row in rows):
        return [marks]
    cross = alt.Chart(data(rows)).transform_filter("datum.warned").mark_text(text="×", fontSize=19)
    return [marks, cross.encode(x=x, y=y, **more)]


def looks(rows: Sequence[Row], known: Sequence[str]) -> Any:
    """Return encodings of a mark: the colour of whose it is in the whole report; dashes and shapes
    by the rest where several share a colour, else shapes by colour. All are of one field, so that
    the legend is one. That of dashes, in another order, is none of it: they would tear its shapes.

    `known`: variants of the whole report, see Frame.
    """
    of, shared, places = _places(rows, known)
    hues = [row["hue"] for row in of.values()]
    legend = alt.Legend(title=None) if len(of) > 1 and not directly(rows) else None
    names = list(of)

    def channel(kind: Any, looks: Sequence[Any]) -> Any:
        return kind("label:N", scale=alt.Scale(domain=names, range=list(looks)), legend=legend)

    colour, shapes = (
        channel(alt.Color, hues),
        channel(alt.Shape, [SHAPES[place] for place in places]),
    )
    dashed = alt.Scale(domain=names[::-1], range=[list(DASHES[place]) for place in places[::-1]])
    dashes = alt.StrokeDash("label:N", scale=dashed, legend=None)
    aside = alt.condition(_SHOWN, alt.value(1), alt.value(0.12))

    def encode(mark: str) -> dict[str, Any]:
        channels: dict[str, Any] = {"color": colour, "opacity": aside}
        if shared and mark == "line":
            channels["strokeDash"] = dashes
        if len(of) > 1 and mark == "point":
            channels["shape"] = shapes
        return channels

    return encode


def _places(rows: Sequence[Row], known: Sequence[str]) -> tuple[dict[str, Row], bool, list[int]]:
    """Return a row of each line, whether several share a colour, and the number of the shape, and
    dash, of each."""
    of = {row["label"]: row for row in rows}
    shared = len({row["hue"] for row in of.values()}) < len(of)
    order = sorted(dict.fromkeys((*known, *(row["variant"] for row in rows))), key=bool)
    taken: set[tuple[str, int]] = set()
    places = []
    for row in of.values():
        place = order.index(row["variant"]) % len(SHAPES) if shared else PALETTE.index(row["hue"])
        place = row.get(MARK, place)
        free = (
            place + step
            for step in range(len(SHAPES))
            if (row["hue"], (place + step) % len(SHAPES)) not in taken
        )
        places.append(next(free, place) % len(SHAPES))
        taken.add((row["hue"], places[-1]))
    return of, shared, places


def directly(rows: Sequence[Row]) -> bool:
    """Tell whether each line has its name beside its end, which is easier to read than a legend."""
    names = {row["label"] for row in rows}
    return 1 < len(names) <= DIRECT and max(map(len, names)) <= LONGEST


def names_beside(
    rows: Sequence[Row], known: Sequence[str], y: alt.Y, order: str
) -> list[alt.Chart]:
    """Draw the name of each line right of the picture, at the height of its end, none over
    another."""
    if not directly(rows):
        return []
    last = {row["label"]: row for row in sorted(rows, key=lambda row: float(row[order]))}
    ends = _domain(y)
    at = sorted(((1 - _part(row["y"], *ends)) * HEIGHT, name) for name, row in last.items())
    tops: list[float] = []
    for top, _ in at:
        tops.append(max(top, tops[-1] + _LINE) if tops else top)
    tops = [min(top, HEIGHT - _LINE * (len(tops) - 1 - n)) for n, top in enumerate(tops)]
    of, _, places = _places(rows, known)
    marks = {name: _MARKS[place] for name, place in zip(of, places, strict=True)}
    texts = [
        {"name": name, "mark": marks[name], "top": round(top, 1), "hue": last[name]["hue"]}
        for (_, name), top in zip(at, tops, strict=True)
    ]
    raw = alt.Y("top:Q", scale=None, axis=None)
    base = alt.Chart(data(texts)).encode(x=alt.value("width"), y=raw)
    shapes = base.mark_text(align="left", baseline="middle", dx=8, fontSize=13)
    names = base.mark_text(align="left", baseline="middle", dx=24, fontSize=12).encode(
        text="name:N"
    )
    return [shapes.encode(color=alt.Color("hue:N", scale=None), text="mark:N"), names]


def axis_scale(
    rows: Sequence[Row], column: Direction, *, bars: bool = False, log: bool | None = None
) -> alt.Scale:
    """Make a scale from 0 with some room above; or logarithmic, by `log` or where values span over
    LOGARITHMIC times.

    `bars`: they lie along this axis, and their ends have to be seen too.
    """
    low, high = _ends(rows, column, bars, log)
    return alt.Scale(type="log" if low else "linear", domain=[low or 0, high], nice=False)


def _ends(
    rows: Sequence[Row], column: Direction, bars: bool, log: bool | None = None
) -> tuple[float, float]:
    """Give the ends of the axis: it begins at 0 unless it is logarithmic."""
    values = [row[column] for row in rows]
    ends_of_bars = [row[end] for row in rows for end in ("low", "high") if bars and end in row]
    if not (wide(values, LOGARITHMIC) if log is None else log):
        return 0.0, max(1.12 * max(values), 1.02 * max(ends_of_bars, default=0.0)) or 1.0
    seen = [value for value in (*values, *ends_of_bars) if value > 0]
    room = (max(seen) / min(seen)) ** (_ROOM / (1 - 2 * _ROOM)) if len(set(seen)) > 1 else 1.1
    return min(seen) / room, max(seen) * room


def alike_scales(rows: Sequence[Row], bars: Direction) -> tuple[alt.Scale, alt.Scale]:
    """Make the scales of x and y: both logarithmic where either needs to be, so that a power law is
    a line."""
    log = all(min(row[column] for row in rows) > 0 for column in "xy") and any(
        wide([row[column] for row in rows], LOGARITHMIC) for column in "xy"
    )
    return axis_scale(rows, "x", bars=bars == "x", log=log), axis_scale(
        rows, "y", bars=bars == "y", log=log
    )


def _domain(channel: alt.X | alt.Y) -> tuple[float, float]:
    """Give the ends of a scale, the lower 0 unless it is logarithmic."""
    low, high = channel["scale"]["domain"]
    return low, high


def loads_beside(rows: Sequence[Row], x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Draw loads, each written beside its point, on that side of it where it lies on nothing
    else."""
    base = alt.Chart(data(_place_names(rows, x, y))).encode(
        x=x, y=y, text=alt.Text("load:Q", format="~g")
    )
    return [
        base.transform_filter(f"datum.side == {n}").mark_text(
            align=align, dx=dx, dy=dy, fontSize=12
        )
        for n, (align, dx, dy) in enumerate(_SIDES)
    ]


def _place_names(rows: Sequence[Row], x_axis: alt.X, y_axis: alt.Y) -> list[Row]:
    """Return the loads that can be written, heaviest first, each with its side: none lies on a
    line, a point or another; of points that lie together under the same load one says it.
    """
    ends = {"x": _domain(x_axis), "y": _domain(y_axis)}
    at = {
        id(row): (_part(row["x"], *ends["x"]) * WIDTH, -_part(row["y"], *ends["y"]) * HEIGHT)
        for row in rows
    }
    lines = by_key((row["label"], at[id(row)]) for row in sorted(rows, key=lambda row: row["load"]))
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
        if any(
            other["load"] == row["load"] and math.dist(at[id(other)], (x, y)) < _NEAR
            for other in written
        ):
            continue
        wide_px = 7 * len(f"{row['load']:g}")
        for side, (align, dx, dy) in enumerate(_SIDES):
            middle = x + dx + (wide_px / 2 if align == "left" else -wide_px / 2), y + dy
            if not (np.abs(taken - middle) < (wide_px / 2 + 2, 7)).all(axis=1).any():
                box = [
                    (part * wide_px, high)
                    for part in np.linspace(-0.5, 0.5, 12)
                    for high in (-2, 2)
                ]
                taken = np.concatenate([taken, np.add(middle, box)])
                placed.append({"x": row["x"], "y": row["y"], "load": row["load"], "side": side})
                written.append(row)
                break
    return placed


def _part(value: float, low: float, high: float) -> float:
    """Place a value on an axis with these ends, from 0 to 1."""
    return math.log(value / low) / math.log(high / low) if low else value / high if high else 0.0


def against(frame: Frame, measure: Measure, *, key: str) -> Figure | None:
    """Draw `measure` over the frame's axis, a line for each series; None where no point has it."""
    unit, scale = unit_of(measure, frame.points)
    rows: list[Row] = []
    for point, series in frame.pairs:
        at, value = frame.x(point), measure.of(point)
        if at is not None and value is not None:
            row = (
                {"x": at, "y": value * scale}
                | row_facts(point, series)
                | bounds(measure.stat(point), scale)
            )
            row |= quantiles(measure.stat(point), scale)
            rows.append(row | {"n": _n(measure, point), "is": load_label(point)})
    if not rows:
        return None
    stat_name = _choose(frame.points, measure)
    title = f"{measure.name}{stat_name} ({unit})"
    x = load_axis(frame.x_title, sorted({row["x"] for row in rows}))
    y = alt.Y("y:Q", title=title, scale=axis_scale(rows, "y", bars=True))
    tooltip = tooltips(*WHOSE, ("x:Q", frame.x_title), ("y:Q", title, ",.4~r"), ("n:Q", "requests"))
    falls = (
        _marked(frame, rows, cliff)
        if frame.of_sessions and measure.key in ("output_tok_s", "gpu_tok_s")
        else []
    )
    drawn = panels(lines(rows, frame.variants, x, y, tooltip), rows)
    said = (
        "ringed: the last load before throughput falls" if falls and isinstance(drawn, list) else ""
    )
    return figure(
        key,
        f"{measure.name} by {frame.axis_word}",
        [
            whose(frame, rows),
            join(definition(frame.points, measure), said),
            sample_words(frame.points, measure),
        ],
        drawn + _ring(falls, x, y) if isinstance(drawn, list) else drawn,
        section=frame.section,
        summary=(
            f"{measure.name}{stat_name} in {unit} by {frame.axis_word}; {frame.words}."
            f" {_spoken(rows, unit)}"
        ),
    )


def trade_off(
    frame: Frame, latency: Measure, throughput: Measure, *, section: str, key: str
) -> Figure | None:
    """Draw throughput over latency: each line a series, from its lightest load to its heaviest,
    with loads named."""
    unit, scale = unit_of(latency, frame.points)
    rows: list[Row] = []
    for point, series in frame.pairs:
        slow, much = latency.of(point), throughput.of(point)
        if slow is not None and much is not None:
            row = {"x": slow * scale, "y": much, "load": point.load} | row_facts(point, series)
            rows.append(row | bounds(latency.stat(point), scale) | {"n": _n(latency, point)})
    if len(rows) < 2:
        return None
    title = f"{throughput.name} ({throughput.unit})"
    x_title = f"{latency.name}{_choose(frame.points, latency)} ({unit})"
    x_scale, y_scale = alike_scales(rows, bars="x")
    x, y = alt.X("x:Q", title=x_title, scale=x_scale), alt.Y("y:Q", title=title, scale=y_scale)
    shown = (
        ("x:Q", f"{latency.name} ({unit})", ",.4~r"),
        ("y:Q", title, ",.5~r"),
        ("n:Q", "requests"),
    )
    tooltip = tooltips(*WHOSE, ("load:Q", frame.x_title), *shown)
    better = "up and right" if latency.better == "higher" else "up and left"
    bends = _marked(frame, rows, knee) if latency is E2E else []
    return figure(
        key,
        f"{throughput.name} against {latency.noun}",
        [
            whose(frame, rows),
            f"A point per load, {BESIDE}: {frame.x_title}; better is {better}"
            + ("; ringed: the knee, the most throughput for its latency" if bends else ""),
            f"{definition(frame.points, throughput)}; {definition(frame.points, latency)}",
            sample_words(frame.points, latency),
        ],
        lines(rows, frame.variants, x, y, tooltip, bars="x", order="load")
        + loads_beside(rows, x, y)
        + _ring(bends, x, y),
        section=section,
        summary=f"{throughput.name} over {latency.noun}; {frame.words}. "
        + _spoken([{**row, "x": row["load"]} for row in rows], throughput.unit),
    )


_PACE = "Output tok/s per user (1 / median TPOT)"


def _ring(rows: Sequence[Row], x: alt.X, y: alt.Y) -> list[alt.Chart]:
    ring = (
        alt.Chart(data(rows))
        .mark_point(size=300, filled=False, color=GREY, strokeWidth=2)
        .encode(x=x, y=y)
    )
    return [ring] if rows else []


def _marked(
    frame: Frame, rows: Sequence[Row], find: Callable[[Sequence[CellPoint]], CellPoint | None]
) -> list[Row]:
    """Return the rows of the points that `find` finds in their series."""
    of = by_key((series.label, point) for point, series in frame.pairs if point.output_tokens_per_s)
    bends = {
        (name, bend.load)
        for name, own in of.items()
        if (bend := find(sorted(own, key=lambda p: p.load)))
    }
    return [row for row in rows if (row["label"], row.get("load", row["x"])) in bends]


def front(frame: Frame, measure: Measure, *, section: str, key: str) -> Figure | None:
    """Draw what a pace per user costs: tokens per GPU, or dollars per million, over tokens per
    second per user.

    Each series has a line through its loads; a step goes through the points that none beats in
    both.
    """
    rows = _rows(frame, measure)
    if len(rows) < 2:
        return None
    costs = measure.better == "lower"
    best = _front(_rows(_candidates(frame), measure), measure.better)
    title = f"{measure.name} ({measure.unit})"
    x_scale, y_scale = alike_scales(rows, bars="y")
    x, y = alt.X("x:Q", title=_PACE, scale=x_scale), alt.Y("y:Q", title=title, scale=y_scale)
    total = [("total:Q", "$ per million tokens, input and output", ",.3~r")] if costs else []
    tooltip = _tooltips(frame, ("y:Q", title, ",.4~r"), *total)
    several = len({row["label"] for row in rows}) > 1
    step = f"Dotted, grey: the front, points that no other beats in both{_aside(frame)}"
    return figure(
        key,
        f"{measure.name} against pace per user",
        [
            whose(frame, rows),
            f"A point per load, {BESIDE}: {frame.x_title}; better is {'down' if costs else 'up'}"
            " and right. " + (step if several else ""),
            f"{definition(frame.points, measure)}; {definition(frame.points, PER_USER)}",
            sample_words(frame.points, measure),
        ],
        [
            *([_join_points(best, x, y)] if several else []),
            *lines(rows, frame.variants, x, y, tooltip, order="load"),
            *loads_beside(rows, x, y),
        ],
        section=section,
        summary=(
            f"{measure.name} over tokens per second per user; {frame.words}. {len(best)} of"
            f" {len(rows)} points are on the front: "
        )
        + "; ".join(
            f"{show_number(row['y'])} {measure.unit} at {show_number(row['x'])} tok/s per user"
            for row in best[:12]
        ),
    )


def _candidates(frame: Frame) -> Frame:
    """Return the points that a front is of: not what was predicted, where anything was measured;
    none with a warning, where others are there.
    """
    measured = frame.only(lambda point, _: point.setup.source != "simulated")
    measured = measured if measured.points else frame
    trusted = measured.only(lambda point, _: point.trusted)
    return trusted if trusted.points else measured


def _aside(frame: Frame) -> str:
    candidates = _candidates(frame).points
    rest = [point for point in frame.points if not any(point is other for other in candidates)]
    aside = [
        (
            "predictions"
            if any(
                point.setup.source == "simulated"
                and point.setup.source != candidates[0].setup.source
                for point in rest
            )
            else ""
        ),
        (
            "points with a warning"
            if any(not point.trusted for point in rest)
            and all(point.trusted for point in candidates)
            else ""
        ),
    ]
    words = join(*aside, by=" and ")
    return f", without {words}" if words else ""


def _rows(frame: Frame, measure: Measure) -> list[Row]:
    return [
        {"x": pace, "y": value, "load": point.load}
        | row_facts(point, series)
        | bounds(measure.stat(point), 1.0)
        | ({"total": point.dollars.total.value} if point.dollars.total is not None else {})
        for point, series in frame.pairs
        if (pace := PER_USER.of(point)) is not None and (value := measure.of(point)) is not None
    ]


def _front(rows: Sequence[Row], better: Literal["higher", "lower"]) -> list[dict[str, Any]]:
    """Return the points that none beats in both pace, x, and y; fastest first."""
    sign = 1 if better == "higher" else -1
    front: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda each: (-each["x"], -sign * each["y"])):
        if not front or sign * row["y"] > sign * front[-1]["y"]:
            front.append({"x": row["x"], "y": row["y"]})
    return front


def _join_points(front: Sequence[Row], x: alt.X, y: alt.Y) -> alt.Chart:
    """Draw the front as a step."""
    marks = alt.Chart(data(front)).mark_line(
        interpolate="step-before", color="#777777", strokeDash=[3, 3], strokeWidth=2
    )
    line: alt.Chart = marks.encode(x=x, y=y, order=alt.Order("x:Q"))
    return line


def _tooltips(frame: Frame, *more: tuple[str, ...]) -> list[alt.Tooltip]:
    """List what a point of a front tells of itself; `more`: of its height."""
    return tooltips(*WHOSE, ("load:Q", frame.x_title), ("x:Q", "tok/s per user", ",.4~r"), *more)


def whose(frame: Frame, rows: Sequence[Row]) -> str:
    """Write the frame's words, and the rows' series where no legend names it, since only one is
    left."""
    series = dict.fromkeys(row["label"] for row in rows)
    parts = [*frame.words.split(" · "), *next(iter(series)).replace("not stated", "").split(" · ")]
    return join(*dict.fromkeys(parts), by=" · ") if len(series) == 1 else frame.words


def unit_of(measure: Measure, points: Sequence[CellPoint]) -> tuple[str, float]:
    """Return milliseconds for latencies below two seconds."""
    if measure.unit != "s":
        return measure.unit, 1.0
    values = [value for point in points if (value := measure.of(point)) is not None]
    return seconds_unit(max(values, default=math.inf))


def _n(measure: Measure, point: CellPoint) -> int | None:
    """Return requests that a value is of: those of a pooled one are not its gaps."""
    stat = None if measure.pooled else measure.stat(point)
    return stat.n if stat is not None and stat.n is not None else point.ok


def _choose(points: Sequence[CellPoint], measure: Measure) -> str:
    kinds = {
        stat.which
        for point in points
        if (stat := measure.stat(point)) is not None and stat.which != "rate"
    }
    return f", {' or '.join(sorted(kinds, reverse=True))}" if kinds else ""


def definition(points: Sequence[CellPoint], measure: Measure) -> str:
    loop = "closed loop" if points[0].kind == "concurrency" else "open loop"
    since = " or ".join(sorted({point.since for point in points}))
    return measure.definition.format(since=f"{since} ({loop})", window=points[0].window)


def sample_words(points: Sequence[CellPoint], measure: Measure) -> str:
    """Say how many requests a point is made of, and what its bar means."""
    stats = [stat for point in points if (stat := measure.stat(point)) is not None]
    sources = sorted({point.setup.source for point in points})
    levels = sorted({stat.level for stat in stats if stat.level is not None})
    bare = [
        point
        for point in points
        if (stat := measure.stat(point)) is not None and stat.level is None
    ]
    why = join(
        "tokens of all requests are pooled" if measure.pooled and bare else "",
        (
            "other tools' summaries have none"
            if not measure.pooled and any(point.sums for point in bare)
            else ""
        ),
        (
            "too few generations of requests"
            if not measure.pooled and not all(point.sums for point in bare)
            else ""
        ),
        by="; ",
    )
    if not stats:
        bars = "no interval: one number per cell"
    elif levels:
        kinds = (level if level == REPEATS else f"{level} interval" for level in levels)
        bars = f"bars: {' or '.join(kinds)}" + (
            f", none at {len(bare)} of {len(stats)} points: {why}" if bare else ""
        )
    else:
        bars = f"no interval: {why}"
    left_out = sum(is_bunched(point, measure) for point in points)
    return join(
        requests_a("point", (_n(measure, p) for p in points)),
        bars,
        " and ".join(sources),
        CROSSED if not all(point.trusted for point in points) else "",
        (
            f"left out: {left_out} {'points' if left_out > 1 else 'point'} whose tokens arrived"
            " together"
            if left_out
            else ""
        ),
        by="; ",
    )


def _spoken(rows: Sequence[Row], unit: str) -> str:
    """Return the lines in words, for those who do not see them."""
    lines = by_key((row["label"], row) for row in rows)
    texts = []
    for name, line in list(lines.items())[:12]:
        line.sort(key=lambda row: row["x"])
        first, last = line[0], line[-1]
        texts.append(
            f"{name}: {show_number(first['y'])} {unit} at {show_load(float(first['x']))} to "
            f"{show_number(last['y'])} at {show_load(float(last['x']))}"
        )
    return "; ".join(texts)
