"""Lines: a measure against load or length, and throughput against latency; what other pictures of points share."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from loadstone.report.charts.colours import DASHES, SEQUENCE, SHAPES, colours
from loadstone.report.charts.frames import Frame, Measure, load_label
from loadstone.report.charts.theme import HEIGHT, WIDTH, Figure, Row, data, figure, load_axis, wide
from loadstone.report.points import Point, joined, requests_a
from loadstone.report.series import Series
from loadstone.report.stats import Stat

if TYPE_CHECKING:
    import altair as alt


Direction = Literal["x", "y"]

LOGARITHMIC = 20.0
"""Times that the largest value must be above the smallest for a logarithmic axis."""


def against(frame: Frame, measure: Measure, *, key: str, suffix: str = "") -> Figure | None:
    """`measure` over the frame's axis, a line for each series; None where no point has it."""
    import altair as alt

    unit, scale = unit_of(measure, frame.points)
    rows: list[Row] = []
    for point, series in frame.pairs:
        at, value = frame.x(point), measure.of(point)
        if at is not None and value is not None:
            row = {"x": at, "y": value * scale} | named(series) | bounds(measure.stat(point), scale)
            rows.append(row | {"n": _n(measure, point), "is": load_label(point)})
    if not rows:
        return None
    stat_name = _which(frame.points, measure)
    title = f"{measure.name}{stat_name} ({unit})"
    x = load_axis(frame.x_title, sorted({row["x"] for row in rows}))
    y = alt.Y("y:Q", title=title, scale=alt.Scale(zero=True))
    tooltip = [
        *tips(),
        alt.Tooltip("x:Q", title=frame.x_title),
        alt.Tooltip("y:Q", title=title, format=".4~g"),
        alt.Tooltip("n:Q", title="requests"),
    ]
    return figure(
        key,
        f"{measure.name} by {frame.axis_word}{suffix}",
        [frame.words, definition(frame.points, measure), sample_words(frame.points, measure)],
        lines(rows, x, y, tooltip),
        section=frame.section,
        summary=f"{measure.name}{stat_name} in {unit} by {frame.axis_word}; {frame.words}. {_spoken(rows, unit)}",
    )


def trade_off(frame: Frame, latency: Measure, throughput: Measure, *, section: str, key: str) -> Figure | None:
    """Throughput over latency: each line a series, from its lightest load to its heaviest, loads written beside."""
    import altair as alt

    unit, scale = unit_of(latency, frame.points)
    rows: list[Row] = []
    for point, series in frame.pairs:
        slow, much = latency.of(point), throughput.of(point)
        if slow is not None and much is not None:
            row = {"x": slow * scale, "y": much, "load": point.load} | named(series)
            rows.append(row | bounds(latency.stat(point), scale) | {"n": _n(latency, point)})
    if len(rows) < 2:
        return None
    title = f"{throughput.name} ({throughput.unit})"
    x = alt.X(
        "x:Q", title=f"{latency.name}{_which(frame.points, latency)} ({unit})", scale=axis_scale(rows, "x", bars=True)
    )
    y = alt.Y("y:Q", title=title, scale=axis_scale(rows, "y"))
    tooltip = [
        *tips(),
        alt.Tooltip("load:Q", title=frame.x_title),
        alt.Tooltip("x:Q", title=f"{latency.name} ({unit})", format=".4~g"),
        alt.Tooltip("y:Q", title=title, format=".5~g"),
        alt.Tooltip("n:Q", title="requests"),
    ]
    better = "up and right" if latency.better == "higher" else "up and left"
    return figure(
        key,
        f"{throughput.name} against {latency.noun}",
        [
            frame.words,
            f"A point per load, written beside: {frame.x_title}; better is {better}",
            f"{definition(frame.points, throughput)}; {definition(frame.points, latency)}",
            sample_words(frame.points, latency),
        ],
        lines(rows, x, y, tooltip, bars="x", order="load") + loads_beside(rows, x, y),
        section=section,
        summary=f"{throughput.name} over {latency.noun}; {frame.words}. "
        + _spoken([{**row, "x": row["load"]} for row in rows], throughput.unit),
    )


def tips() -> list[alt.Tooltip]:
    """What every point tells of itself first."""
    import altair as alt

    return [alt.Tooltip("colour:N", title="series"), alt.Tooltip("variant:N", title="variant")]


def lines(
    rows: Sequence[Row], x: alt.X, y: alt.Y, told: list[alt.Tooltip], *, bars: Direction = "y", order: str = ""
) -> alt.LayerChart:
    """A line with points for each series; rows with `low` and `high` have a bar between them, along `bars`.

    order: the column that a line follows, where it is not x.
    """
    import altair as alt

    encode, base = looks(rows), alt.Chart(data(rows))
    along = {"order": alt.Order(f"{order}:Q")} if order else {}
    drawn: alt.LayerChart = base.mark_line().encode(x=x, y=y, **along, **encode("line"))
    drawn += base.mark_point().encode(x=x, y=y, tooltip=told, **encode("point"))
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


def loads_beside(rows: Sequence[Row], x: alt.X, y: alt.Y) -> alt.Chart:
    """The first and the last load of each series, written beside its point."""
    import altair as alt

    texts = alt.Chart(data(_apart(_ends(rows), rows))).mark_text(align="left", dx=8, dy=-7, fontSize=12)
    written: alt.Chart = texts.encode(x=x, y=y, text=alt.Text("load:Q", format="~g"))
    return written


def looks(rows: Sequence[Row], *, lines: bool = True) -> Any:
    """Encodings of a mark: colour by the first thing that differs, dashes or shapes by the rest.

    With one colour and several variants these get the colours. `lines`: the legend shows dashes, else shapes.
    """
    import altair as alt

    names = list(dict.fromkeys(row["colour"] for row in rows))
    # Of whom nothing more is told has plain lines, and no place in the legend: there is no word for it.
    variants = sorted(dict.fromkeys(row["variant"] for row in rows), key=bool)
    told = [variant for variant in variants if variant]
    field = "colour"
    if len(names) == 1 and len(variants) > 1:
        names, variants, field = variants, [""], "variant"
    shades = colours(names) if field == "colour" else [SEQUENCE[n % len(SEQUENCE)] for n in range(len(names))]
    colour = alt.Color(
        f"{field}:N",
        scale=alt.Scale(domain=names, range=shades),
        legend=alt.Legend(title=None, values=[name for name in names if name]) if len(names) > 1 else None,
    )
    dashes = alt.StrokeDash(
        "variant:N",
        scale=alt.Scale(domain=variants, range=[list(DASHES[n % len(DASHES)]) for n in range(len(variants))]),
        legend=alt.Legend(title=None, symbolType="stroke", symbolSize=600, symbolStrokeColor="#777777", values=told),
    )
    # Beside dashes backwards: Vega-Lite makes one legend of scales whose domains are the same.
    turn = -1 if lines else 1
    marks = [SHAPES[n % len(SHAPES)] for n in range(len(variants))]
    shapes = alt.Shape(
        "variant:N",
        scale=alt.Scale(domain=variants[::turn], range=marks[::turn]),
        legend=None
        if lines
        else alt.Legend(title=None, symbolStrokeColor="#777777", symbolFillColor="#777777", values=told),
    )

    def encode(mark: str) -> dict[str, Any]:
        found: dict[str, Any] = {"color": colour, "detail": ["colour:N", "variant:N"]}
        if len(variants) > 1 and mark == "line":
            found["strokeDash"] = dashes
        if len(variants) > 1 and mark == "point":
            found["shape"] = shapes
        return found

    return encode


def unit_of(measure: Measure, points: Sequence[Point]) -> tuple[str, float]:
    """Milliseconds for latencies below two seconds."""
    if measure.unit != "s":
        return measure.unit, 1.0
    values = [value for point in points if (value := measure.of(point)) is not None]
    return ("ms", 1e3) if values and max(values) < 2 else ("s", 1.0)


def axis_scale(rows: Sequence[Row], column: Direction, *, bars: bool = False) -> alt.Scale:
    """From 0 with some room above, or logarithmic where values span more than a factor of LOGARITHMIC.

    `bars`: they lie along this axis, and their ends have to be seen too.
    """
    import altair as alt

    values = [row[column] for row in rows]
    if wide(values, LOGARITHMIC):
        return alt.Scale(type="log", nice=False, padding=16)
    ends = [row["high"] for row in rows if bars and "high" in row]
    return alt.Scale(domain=[0, max(1.12 * max(values), 1.02 * max(ends, default=0.0))], nice=False)


def named(series: Series) -> Row:
    return {"colour": series.colour, "variant": series.variant}


def bounds(stat: Stat | None, scale: float) -> dict[str, float]:
    if stat is None or stat.low is None or stat.high is None:
        return {}
    return {"low": stat.low * scale, "high": stat.high * scale}


def _n(measure: Measure, point: Point) -> int | None:
    """Requests that a value is of: those of a pooled one are not its gaps."""
    stat = None if measure.pooled else measure.stat(point)
    return stat.n if stat is not None and stat.n is not None else point.ok


def _ends(rows: Sequence[Row]) -> list[Row]:
    """The first and the last load of each series."""
    lines = defaultdict(list)
    for row in rows:
        lines[row["colour"], row["variant"]].append(row)
    ends = []
    for line in lines.values():
        line.sort(key=lambda row: row["load"])
        ends += line[:1] + line[-1:] if len(line) > 1 else line
    return [{"x": row["x"], "y": row["y"], "load": row["load"]} for row in ends]


def _apart(ends: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Without those whose text would lie on another's: lines begin and end at the same loads, so little is lost."""

    def part(row: Row, column: Direction) -> float:
        value, values = row[column], [each[column] for each in rows]
        if wide(values, LOGARITHMIC):
            return math.log(value / min(values)) / math.log(max(values) / min(values))
        return value / max(values) if max(values) else 0.0

    kept: list[tuple[Row, float, float]] = []
    for row in sorted(ends, key=lambda row: -row["load"]):
        left, up = part(row, "x") * 0.85 * WIDTH, part(row, "y") * 0.85 * HEIGHT
        if all(abs(left - other) > 8 * len(f"{row['load']:g}") or abs(up - high) > 14 for _, other, high in kept):
            kept.append((row, left, up))
    return [row for row, _, _ in kept]


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
    if not stats:
        bars = "no interval: one number a cell"
    elif levels:
        bars = f"bars: {' or '.join(levels)} interval"
    else:
        bars = "no interval: requests are pooled or their spread is not told"
    return joined(requests_a("point", (_n(measure, p) for p in points)), bars, " and ".join(sources), by="; ")


def _spoken(rows: Sequence[Row], unit: str) -> str:
    """The lines in words, for those who do not see them."""
    lines = defaultdict(list)
    for row in rows:
        lines[joined(row["colour"], row["variant"], by=" ")].append(row)
    said = []
    for name, line in list(lines.items())[:12]:
        line.sort(key=lambda row: row["x"])
        first, last = line[0], line[-1]
        said.append(f"{name}: {first['y']:.4g} {unit} at {first['x']:g} to {last['y']:.4g} at {last['x']:g}")
    return "; ".join(said)
