"""Lines: a measure against load or length, throughput against latency, what one gives for another (fronts); what they
are drawn of, and what pictures say of their points.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import altair as alt
import numpy as np

from loadstone.report.charts.theme import (
    DASHES,
    HEIGHT,
    SEQUENCE,
    SHAPES,
    WIDTH,
    Figure,
    Row,
    colour_by,
    colours,
    data,
    figure,
    load_axis,
    seconds_unit,
    tooltips,
    wide,
)
from loadstone.report.data.frames import DOLLARS, OUTPUT, PER_GPU, PER_USER, Frame, Measure, bunched, load_label
from loadstone.report.data.pairs import Effect
from loadstone.report.data.points import Point
from loadstone.report.data.series import Series
from loadstone.report.data.statistic import Stat
from loadstone.report.data.wording import joined, requests_a

Direction = Literal["x", "y"]
Look = TypeVar("Look")

FAR = 100.0
"""Times that a value must be above another for a logarithmic axis: else a line over loads is read from 0."""
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
    return {"colour": series.colour, "variant": series.variant} | warning(point)


def warning(*points: Point) -> Row:
    """That a cell carries one, where it does."""
    return {} if all(point.trusted for point in points) else {"warned": True}


def bounds(known: Stat | Effect | None, scale: float = 1.0) -> dict[str, float]:
    if known is None or known.low is None or known.high is None:
        return {}
    return {"low": known.low * scale, "high": known.high * scale}


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
    encode, base = looks(rows, known), alt.Chart(data(rows))
    along = {"order": alt.Order(f"{order}:Q")} if order else {}
    drawn: alt.LayerChart = base.mark_line().encode(x=x, y=y, **along, **encode("line"))
    drawn += crossed(base.mark_point().encode(x=x, y=y, tooltip=tooltip, **encode("point")), rows, x, y)
    if not any("low" in row for row in rows):
        return drawn
    ends = (
        {"x": x, "y": alt.Y("low:Q"), "y2": alt.Y2("high:Q")}
        if bars == "y"
        else {"x": alt.X("low:Q"), "x2": alt.X2("high:Q"), "y": y}
    )
    bounded = base.transform_filter("isValid(datum.low)").mark_rule(opacity=0.55)
    under: alt.LayerChart = bounded.encode(**ends, **encode("rule")) + drawn
    return under


def crossed(marks: alt.Chart, rows: Sequence[Row], x: alt.X, y: alt.Y, **more: Any) -> alt.LayerChart:
    """The marks; those of cells with a warning crossed out. `more`: channels that place the marks beside x and y."""
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
    names, field = list(dict.fromkeys(row["colour"] for row in rows)), "colour"
    shades = colours(names)
    order = sorted(dict.fromkeys((*known, *(row["variant"] for row in rows))), key=bool)
    variants = [variant for variant in order if any(row["variant"] == variant for row in rows)]
    word = f"datum.label || '{OTHERS}'"
    if len(names) == 1 and len(variants) > 1:
        names, field, shades = variants, "variant", _kept(SEQUENCE, variants, order)
    colour = colour_by(field, names, shades, least=2, labelExpr=word)
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
        channels: dict[str, Any] = {"color": colour, "detail": [alt.Detail("colour:N"), alt.Detail("variant:N")]}
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


def against(frame: Frame, measure: Measure, *, key: str, suffix: str = "") -> Figure | None:
    """`measure` over the frame's axis, a line for each series; None where no point has it."""
    unit, scale = unit_of(measure, frame.points)
    rows: list[Row] = []
    for point, series in frame.pairs:
        at, value = frame.x(point), measure.of(point)
        if at is not None and value is not None:
            row = {"x": at, "y": value * scale} | named(point, series) | bounds(measure.stat(point), scale)
            rows.append(row | {"n": _n(measure, point), "is": load_label(point)})
    if not rows:
        return None
    stat_name = _which(frame.points, measure)
    title = f"{measure.name}{stat_name} ({unit})"
    x = load_axis(frame.x_title, sorted({row["x"] for row in rows}))
    far = wide([row["y"] for row in rows], FAR)
    y = alt.Y("y:Q", title=title, scale=axis_scale(rows, "y", bars=True) if far else alt.Scale(zero=True))
    tooltip = tooltips(*WHOSE, ("x:Q", frame.x_title), ("y:Q", title, ".4~g"), ("n:Q", "requests"))
    return figure(
        key,
        f"{measure.name} by {frame.axis_word}{suffix}",
        [whose(frame, rows), definition(frame.points, measure), sample_words(frame.points, measure)],
        lines(rows, frame.variants, x, y, tooltip),
        section=frame.section,
        summary=f"{measure.name}{stat_name} in {unit} by {frame.axis_word}; {frame.words}. {_spoken(rows, unit)}",
    )


def trade_off(frame: Frame, latency: Measure, throughput: Measure, *, section: str, key: str) -> Figure | None:
    """Throughput over latency: each line a series, from its lightest load to its heaviest, loads written beside."""
    unit, scale = unit_of(latency, frame.points)
    rows: list[Row] = []
    for point, series in frame.pairs:
        slow, much = latency.of(point), throughput.of(point)
        if slow is not None and much is not None:
            row = {"x": slow * scale, "y": much, "load": point.load} | named(point, series)
            rows.append(row | bounds(latency.stat(point), scale) | {"n": _n(latency, point)})
    if len(rows) < 2:
        return None
    title = f"{throughput.name} ({throughput.unit})"
    x = alt.X(
        "x:Q", title=f"{latency.name}{_which(frame.points, latency)} ({unit})", scale=axis_scale(rows, "x", bars=True)
    )
    y = alt.Y("y:Q", title=title, scale=axis_scale(rows, "y"))
    shown = ("x:Q", f"{latency.name} ({unit})", ".4~g"), ("y:Q", title, ".5~g"), ("n:Q", "requests")
    tooltip = tooltips(*WHOSE, ("load:Q", frame.x_title), *shown)
    better = "up and right" if latency.better == "higher" else "up and left"
    return figure(
        key,
        f"{throughput.name} against {latency.noun}",
        [
            whose(frame, rows),
            f"A point per load, {BESIDE}: {frame.x_title}; better is {better}",
            f"{definition(frame.points, throughput)}; {definition(frame.points, latency)}",
            sample_words(frame.points, latency),
        ],
        lines(rows, frame.variants, x, y, tooltip, bars="x", order="load") + loads_beside(rows, x, y, bars="x"),
        section=section,
        summary=f"{throughput.name} over {latency.noun}; {frame.words}. "
        + _spoken([{**row, "x": row["load"]} for row in rows], throughput.unit),
    )


_PACE = "Output tok/s per user (1 / median TPOT)"


def pareto(frame: Frame) -> Figure | None:
    """Tokens per user against tokens per GPU, with the points that no other beats in both joined by a step."""
    per_gpu = all(point.gpus for point in frame.points)
    cost = PER_GPU if per_gpu else OUTPUT
    rows = _rows(frame, cost)
    if len(rows) < 3:
        return None
    front = _front(_rows(_candidates(frame), cost), "higher")
    x = alt.X("x:Q", title=_PACE, scale=axis_scale(rows, "x"))
    y = alt.Y("y:Q", title=f"{cost.name} (tok/s)", scale=axis_scale(rows, "y"))
    tooltip = _tooltips(frame, ("y:Q", "tok/s", ".5~g"))
    points = (
        alt.Chart(data(rows))
        .mark_point(size=90)
        .encode(x=x, y=y, tooltip=tooltip, **looks(rows, frame.variants)("point"))
    )
    return figure(
        "pareto",
        "Pareto front: pace per user against throughput" + (" per GPU" if per_gpu else ""),
        [
            frame.words,
            f"Dotted, grey: the front, points that no other beats in both{_aside(frame)}; better is up and right",
            definition(frame.points, cost),
            sample_words(frame.points, PER_USER),
        ],
        _joined(front, x, y) + crossed(points, rows, x, y),
        section="throughput",
        summary=f"{len(front)} of {len(rows)} points are on the front; {frame.words}",
    )


def price_by_pace(frame: Frame) -> Figure | None:
    """Dollars per million output tokens over the pace one user sees, a line for each series through its loads; the
    points that none beats in both joined by a step: what a pace costs at least.
    """
    rows = _rows(frame, DOLLARS)
    if len(rows) < 2:
        return None
    front = _front(_rows(_candidates(frame), DOLLARS), "lower")
    title = "$ per million output tokens"
    x = alt.X("x:Q", title=_PACE, scale=axis_scale(rows, "x"))
    y = alt.Y("y:Q", title=title, scale=axis_scale(rows, "y", bars=True))
    total = "total:Q", "$ per million tokens, input and output", ".3~g"
    tooltip = _tooltips(frame, ("y:Q", title, ".3~g"), total)
    return figure(
        "price",
        "Price of output tokens against pace per user",
        [
            whose(frame, rows),
            f"A point per load, {BESIDE}: {frame.x_title}; better is down and right. Dotted, grey: the lowest price "
            f"of each pace{_aside(frame)}",
            definition(frame.points, DOLLARS),
            sample_words(frame.points, DOLLARS),
        ],
        _joined(front, x, y)
        + lines(rows, frame.variants, x, y, tooltip, order="load")
        + loads_beside(rows, x, y, bars="y"),
        section="price",
        summary=f"Dollars per million output tokens over tokens per second per user; {frame.words}. "
        "The cheapest for each pace: "
        + "; ".join(f"${row['y']:.3g} at {row['x']:.3g} tok/s per user" for row in front[:12]),
    )


def _candidates(frame: Frame) -> Frame:
    """The points that a front is of: not what was predicted, where anything was measured; none with a warning, where
    others are there.
    """
    measured = frame.only(lambda point, _: point.source != "simulated")
    measured = measured if measured.points else frame
    trusted = measured.only(lambda point, _: point.trusted)
    return trusted if trusted.points else measured


def _aside(frame: Frame) -> str:
    candidates = _candidates(frame).points
    rest = [point for point in frame.points if not any(point is other for other in candidates)]
    aside = [
        "predictions"
        if any(point.source == "simulated" and point.source != candidates[0].source for point in rest)
        else "",
        "points with a warning"
        if any(not point.trusted for point in rest) and all(point.trusted for point in candidates)
        else "",
    ]
    words = joined(*aside, by=" and ")
    return f", without {words}" if words else ""


def _rows(frame: Frame, measure: Measure) -> list[Row]:
    return [
        {"x": pace, "y": value, "load": point.load}
        | named(point, series)
        | bounds(measure.stat(point), 1.0)
        | ({"total": point.dollars_total.value} if point.dollars_total is not None else {})
        for point, series in frame.pairs
        if (pace := PER_USER.of(point)) is not None and (value := measure.of(point)) is not None
    ]


def _front(rows: Sequence[Row], better: Literal["higher", "lower"]) -> list[dict[str, Any]]:
    """The points that none beats in both pace, x, and y; fastest first."""
    sign = 1 if better == "higher" else -1
    front: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda each: (-each["x"], -sign * each["y"])):
        if not front or sign * row["y"] > sign * front[-1]["y"]:
            front.append({"x": row["x"], "y": row["y"]})
    return front


def _joined(front: Sequence[Row], x: alt.X, y: alt.Y) -> alt.Chart:
    """The front as a step."""
    marks = alt.Chart(data(front)).mark_line(
        interpolate="step-before", color="#777777", strokeDash=[3, 3], strokeWidth=2
    )
    line: alt.Chart = marks.encode(x=x, y=y, order=alt.Order("x:Q"))
    return line


def _tooltips(frame: Frame, *more: tuple[str, ...]) -> list[alt.Tooltip]:
    """What a point of a front tells of itself; `more`: of its height."""
    return tooltips(*WHOSE, ("load:Q", frame.x_title), ("x:Q", "tok/s per user", ".4~g"), *more)


def whose(frame: Frame, rows: Sequence[Row]) -> str:
    """The frame's words, and of which series the rows are where no legend tells: where of several one is left."""
    series = dict.fromkeys(joined(row["colour"], row["variant"], by=" · ") for row in rows)
    parts = [*frame.words.split(" · "), *next(iter(series)).replace("not stated", "").split(" · ")]
    return joined(*dict.fromkeys(parts), by=" · ") if len(series) == 1 else frame.words


def unit_of(measure: Measure, points: Sequence[Point]) -> tuple[str, float]:
    """Milliseconds for latencies below two seconds."""
    if measure.unit != "s":
        return measure.unit, 1.0
    values = [value for point in points if (value := measure.of(point)) is not None]
    return seconds_unit(max(values, default=math.inf))


def _n(measure: Measure, point: Point) -> int | None:
    """Requests that a value is of: those of a pooled one are not its gaps."""
    stat = None if measure.pooled else measure.stat(point)
    return stat.n if stat is not None and stat.n is not None else point.ok


def _which(points: Sequence[Point], measure: Measure) -> str:
    kinds = {stat.which for point in points if (stat := measure.stat(point)) is not None and stat.which != "rate"}
    return f", {' or '.join(sorted(kinds, reverse=True))}" if kinds else ""


def definition(points: Sequence[Point], measure: Measure) -> str:
    loop = "closed loop" if points[0].kind == "concurrency" else "open loop"
    since = " or ".join(sorted({point.since for point in points}))
    return measure.definition.format(since=f"{since} ({loop})", window=points[0].window)


def sample_words(points: Sequence[Point], measure: Measure) -> str:
    """How many requests a point is made of, and what its bar says."""
    stats = [stat for point in points if (stat := measure.stat(point)) is not None]
    sources = sorted({point.source for point in points})
    levels = sorted({stat.level for stat in stats if stat.level is not None})
    bare = [point for point in points if (stat := measure.stat(point)) is not None and stat.level is None]
    why = joined(
        "tokens of all requests are pooled" if measure.pooled and bare else "",
        "other tools' summaries have none" if not measure.pooled and any(point.sums for point in bare) else "",
        "too few generations of requests" if not measure.pooled and not all(point.sums for point in bare) else "",
        by="; ",
    )
    if not stats:
        bars = "no interval: one number per cell"
    elif levels:
        bars = f"bars: {' or '.join(levels)} interval" + (
            f", none at {len(bare)} of {len(stats)} points: {why}" if bare else ""
        )
    else:
        bars = f"no interval: {why}"
    left_out = sum(bunched(point, measure) for point in points)
    return joined(
        requests_a("point", (_n(measure, p) for p in points)),
        bars,
        " and ".join(sources),
        CROSSED if not all(point.trusted for point in points) else "",
        f"left out: {left_out} {'points' if left_out > 1 else 'point'} whose tokens arrived together"
        if left_out
        else "",
        by="; ",
    )


def _spoken(rows: Sequence[Row], unit: str) -> str:
    """The lines in words, for those who do not see them."""
    lines = defaultdict(list)
    for row in rows:
        lines[joined(row["colour"], row["variant"], by=" ")].append(row)
    texts = []
    for name, line in list(lines.items())[:12]:
        line.sort(key=lambda row: row["x"])
        first, last = line[0], line[-1]
        texts.append(f"{name}: {first['y']:.4g} {unit} at {first['x']:g} to {last['y']:.4g} at {last['x']:g}")
    return "; ".join(texts)
