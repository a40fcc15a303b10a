"""Lines: a measure against load or length, and throughput against latency; what other pictures of points share."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from loadstone.report.charts.colours import DASHES, SEQUENCE, SHAPES, colours
from loadstone.report.charts.frames import Frame, Measure, load_label
from loadstone.report.charts.theme import HEIGHT, WIDTH, Figure, Row, data, figure, load_axis, load_scale
from loadstone.report.points import Point, counted
from loadstone.report.series import Series
from loadstone.report.stats import Stat

if TYPE_CHECKING:
    import altair as alt

Tip = tuple[str, str, str | None]
"""A line of a tooltip: column, title, number format."""


def against(frame: Frame, measure: Measure, *, section: str, key: str, suffix: str = "") -> Figure | None:
    """`measure` over the frame's axis, a line for each series; None where no point has it."""
    import altair as alt

    unit, scale = unit_of(measure, frame.points)
    rows: list[Row] = []
    for point, series in frame.pairs:
        at, value = frame.x(point), measure.of(point)
        if at is not None and value is not None:
            row = {"x": at, "y": value * scale} | _of(series) | bounds(measure.stat(point), scale)
            rows.append(row | {"n": _n(measure, point), "is": load_label(point)})
    if not rows:
        return None
    stat_name = _which(frame.points, measure)
    title = f"{measure.name}{stat_name} ({unit})"
    xs = sorted({row["x"] for row in rows})
    x = alt.X("x:Q", title=frame.x_title, scale=load_scale(xs), axis=load_axis(xs))
    y = alt.Y("y:Q", title=title, scale=alt.Scale(zero=True))
    tooltip = [
        *NAMES,
        ("x:Q", frame.x_title, None),
        ("y:Q", title, ".4~g"),
        ("n:Q", "requests", None),
    ]
    words = " · ".join(frame.words)
    return figure(
        key,
        f"{measure.name} by {frame.axis_word}{suffix}",
        [words, definition(frame.points, measure), sample_words(frame.points, measure)],
        lines(rows, x, y, tooltip),
        section=section,
        summary=f"{measure.name}{stat_name} in {unit} by {frame.axis_word}; {words}. {_spoken(rows, unit)}",
    )


def trade_off(frame: Frame, latency: Measure, throughput: Measure, *, section: str, key: str) -> Figure | None:
    """Throughput over latency: each line a series, from its lightest load to its heaviest, loads written beside."""
    import altair as alt

    unit, scale = unit_of(latency, frame.points)
    rows: list[Row] = []
    for point, series in frame.pairs:
        slow, much = latency.of(point), throughput.of(point)
        if slow is not None and much is not None:
            row = {"x": slow * scale, "y": much, "load": point.load} | _of(series)
            rows.append(row | bounds(latency.stat(point), scale) | {"n": _n(latency, point)})
    if len(rows) < 2:
        return None
    which = _which(frame.points, latency)
    xs, ys = [row["x"] for row in rows], [row["y"] for row in rows]
    wide = axis_scale(xs, [row[name] for row in rows for name in ("low", "high") if name in row])
    x = alt.X("x:Q", title=f"{latency.name}{which} ({unit})", scale=wide)
    y = alt.Y("y:Q", title=f"{throughput.name} ({throughput.unit})", scale=axis_scale(ys))
    tooltip = [
        *NAMES,
        ("load:Q", frame.x_title, None),
        ("x:Q", f"{latency.name} ({unit})", ".4~g"),
        ("y:Q", f"{throughput.name} ({throughput.unit})", ".5~g"),
        ("n:Q", "requests", None),
    ]
    words = " · ".join(frame.words)
    better = "up and right" if latency.better == "higher" else "up and left"
    return figure(
        key,
        f"{throughput.name} against {latency.noun}",
        [
            words,
            f"A point per load, written beside: {frame.x_title}; better is {better}",
            f"{definition(frame.points, throughput)}; {definition(frame.points, latency)}",
            sample_words(frame.points, latency),
        ],
        lines(rows, x, y, tooltip, bars="x", order="load") + loads_beside(rows, x, y),
        section=section,
        summary=f"{throughput.name} over {latency.noun}; {words}. "
        + _spoken([{**row, "x": row["load"]} for row in rows], throughput.unit),
    )


NAMES: tuple[Tip, ...] = (("colour:N", "series", None), ("variant:N", "variant", None))
"""What every point tells of itself first."""


def tips(told: Sequence[Tip]) -> list[alt.Tooltip]:
    import altair as alt

    return [
        alt.Tooltip(field, title=title, format=form) if form else alt.Tooltip(field, title=title)
        for field, title, form in told
    ]


def lines(
    rows: Sequence[Row], x: alt.X, y: alt.Y, told: Sequence[Tip], *, bars: Literal["x", "y"] = "y", order: str = ""
) -> alt.LayerChart:
    """A line with points for each series; rows with `low` and `high` have a bar between them, along `bars`.

    order: the column that a line follows, where it is not x.
    """
    import altair as alt

    encode, base = looks(rows), alt.Chart(data(rows))
    along = {"order": alt.Order(f"{order}:Q")} if order else {}
    drawn: alt.LayerChart = base.mark_line().encode(x=x, y=y, **along, **encode("line"))
    drawn += base.mark_point().encode(x=x, y=y, tooltip=tips(told), **encode("point"))
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

    xs, ys = [row["x"] for row in rows], [row["y"] for row in rows]
    texts = alt.Chart(data(_apart(_ends(rows), xs, ys))).mark_text(align="left", dx=8, dy=-7, fontSize=12)
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


def axis_scale(values: Sequence[float], bounds: Sequence[float] = ()) -> Any:
    """From 0 with some room above, or logarithmic where values span more than a factor of twenty.

    `bounds`: ends of bars, which have to be seen too.
    """
    import altair as alt

    if _logarithmic(values):
        return alt.Scale(type="log", nice=False, padding=16)
    return alt.Scale(domain=[0, max(1.12 * max(values), 1.02 * max(bounds, default=0.0))], nice=False)


def _logarithmic(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) > 20


def _of(series: Series) -> Row:
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


def _apart(ends: Sequence[Row], xs: Sequence[float], ys: Sequence[float]) -> list[Row]:
    """Without those whose text would lie on another's: lines begin and end at the same loads, so little is lost."""

    def part(value: float, values: Sequence[float]) -> float:
        if _logarithmic(values):
            return math.log(value / min(values)) / math.log(max(values) / min(values))
        return value / max(values) if max(values) else 0.0

    kept: list[tuple[Row, float, float]] = []
    for row in sorted(ends, key=lambda row: -row["load"]):
        left, up = part(row["x"], xs) * 0.85 * WIDTH, part(row["y"], ys) * 0.85 * HEIGHT
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
    counts = sorted({n for point in points if (n := _n(measure, point))})
    said = ""
    if counts:
        said = f"{counted(counts)} requests a point"
    sources = sorted({point.source for point in points})
    levels = sorted({stat.level for stat in stats if stat.level is not None})
    if not stats:
        bars = "no interval: one number a cell"
    elif levels:
        bars = f"bars: {' or '.join(levels)} interval"
    else:
        bars = "no interval: requests are pooled or their spread is not told"
    return "; ".join(part for part in (said, bars, " and ".join(sources)) if part)


def _spoken(rows: Sequence[Row], unit: str) -> str:
    """The lines in words, for those who do not see them."""
    lines = defaultdict(list)
    for row in rows:
        lines[" ".join(part for part in (row["colour"], row["variant"]) if part)].append(row)
    said = []
    for name, line in list(lines.items())[:12]:
        line.sort(key=lambda row: row["x"])
        first, last = line[0], line[-1]
        said.append(f"{name}: {first['y']:.4g} {unit} at {first['x']:g} to {last['y']:.4g} at {last['x']:g}")
    return "; ".join(said)
