"""Lines: a measure against load or length, and throughput against latency; what other pictures of points share."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from loadstone.report.charts.colours import DASHES, SEQUENCE, SHAPES, colours
from loadstone.report.charts.frames import Frame, Measure, load_label
from loadstone.report.charts.theme import HEIGHT, WIDTH, Figure, Row, data, figure, load_axis, load_scale
from loadstone.report.points import Point, counted
from loadstone.report.stats import Stat


def against(frame: Frame, measure: Measure, *, section: str, key: str, suffix: str = "") -> Figure | None:
    """`measure` over the frame's axis, a line for each series; None where no point has it."""
    import altair as alt

    unit, scale = unit_of(measure, frame.points)
    rows: list[Row] = []
    for point, series in zip(frame.points, frame.series, strict=True):
        at, value = frame.x(point), measure.of(point)
        if at is None or value is None:
            continue
        stat = measure.stat(point) if measure.stat is not None else None
        rows.append(
            {"x": at, "y": value * scale, "colour": series.colour, "variant": series.variant}
            | _bounds(stat, scale)
            | {"n": _n(measure, point), "is": load_label(point)}
        )
    if not rows:
        return None
    stat_name = _which(frame.points, measure)
    title = f"{measure.name}{stat_name} ({unit})"
    xs = sorted({row["x"] for row in rows})
    x = alt.X("x:Q", title=frame.x_title, scale=load_scale(xs), axis=load_axis(xs))
    y = alt.Y("y:Q", title=title, scale=alt.Scale(zero=True))
    tooltip = [
        alt.Tooltip("colour:N", title="series"),
        alt.Tooltip("variant:N", title="variant"),
        alt.Tooltip("x:Q", title=frame.x_title),
        alt.Tooltip("y:Q", title=title, format=".4~g"),
        alt.Tooltip("n:Q", title="requests"),
    ]
    encode = looks(rows)
    base = alt.Chart(data(rows))
    chart = base.mark_line().encode(x=x, y=y, **encode("line")) + base.mark_point().encode(
        x=x, y=y, tooltip=tooltip, **encode("point")
    )
    if any("low" in row for row in rows):
        bars = base.transform_filter("isValid(datum.low)").mark_rule(opacity=0.55)
        chart = bars.encode(x=x, y=alt.Y("low:Q"), y2="high:Q", **encode("rule")) + chart
    words = " · ".join(frame.words)
    return figure(
        key,
        f"{measure.name} by {_axis_word(frame)}{suffix}",
        [words, definition(frame.points, measure), sample_words(frame.points, measure)],
        chart,
        section=section,
        summary=f"{measure.name}{stat_name} in {unit} by {_axis_word(frame)}; {words}. {_spoken(rows, unit)}",
    )


def trade_off(frame: Frame, latency: Measure, throughput: Measure, *, section: str, key: str) -> Figure | None:
    """Throughput over latency: each line a series, from its lightest load to its heaviest, loads written beside."""
    import altair as alt

    unit, scale = unit_of(latency, frame.points)
    rows: list[Row] = []
    for point, series in zip(frame.points, frame.series, strict=True):
        slow, much = latency.of(point), throughput.of(point)
        if slow is None or much is None:
            continue
        stat = latency.stat(point) if latency.stat is not None else None
        rows.append(
            {"x": slow * scale, "y": much, "load": point.load, "colour": series.colour, "variant": series.variant}
            | _bounds(stat, scale)
            | {"n": _n(latency, point)}
        )
    if len(rows) < 2:
        return None
    which = _which(frame.points, latency)
    xs, ys = [row["x"] for row in rows], [row["y"] for row in rows]
    wide, high = (
        axis_scale(xs, [row[name] for row in rows for name in ("low", "high") if name in row]),
        axis_scale(ys),
    )
    x = alt.X("x:Q", title=f"{latency.name}{which} ({unit})", scale=wide)
    y = alt.Y("y:Q", title=f"{throughput.name} ({throughput.unit})", scale=high)
    tooltip = [
        alt.Tooltip("colour:N", title="series"),
        alt.Tooltip("variant:N", title="variant"),
        alt.Tooltip("load:Q", title=frame.x_title),
        alt.Tooltip("x:Q", title=f"{latency.name} ({unit})", format=".4~g"),
        alt.Tooltip("y:Q", title=f"{throughput.name} ({throughput.unit})", format=".5~g"),
        alt.Tooltip("n:Q", title="requests"),
    ]
    encode = looks(rows)
    base = alt.Chart(data(rows))
    chart = base.mark_line().encode(x=x, y=y, order=alt.Order("load:Q"), **encode("line")) + base.mark_point().encode(
        x=x, y=y, tooltip=tooltip, **encode("point")
    )
    if any("low" in row for row in rows):
        bars = base.transform_filter("isValid(datum.low)").mark_rule(opacity=0.55)
        chart = bars.encode(x=alt.X("low:Q"), x2="high:Q", y=y, **encode("rule")) + chart
    ends = apart(ends_of(rows), xs, ys)
    chart += (
        alt.Chart(data(ends))
        .mark_text(align="left", dx=8, dy=-7, fontSize=12)
        .encode(x=x, y=y, text=alt.Text("load:Q", format="~g"))
    )
    words = " · ".join(frame.words)
    better = "up and right" if latency.better == "higher" else "up and left"
    return figure(
        key,
        f"{throughput.name} against {latency.name}",
        [
            words,
            f"A point per load, written beside: {frame.x_title}; better is {better}",
            f"{definition(frame.points, throughput)}; {definition(frame.points, latency)}",
            sample_words(frame.points, latency),
        ],
        chart,
        section=section,
        summary=f"{throughput.name} over {latency.name}; {words}. "
        + _spoken([{**row, "x": row["load"]} for row in rows], throughput.unit),
    )


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


def _bounds(stat: Stat | None, scale: float) -> dict[str, float]:
    if stat is None or stat.low is None or stat.high is None:
        return {}
    return {"low": stat.low * scale, "high": stat.high * scale}


def _n(measure: Measure, point: Point) -> int | None:
    """Requests that a value is of: those of a pooled one are not its gaps."""
    stat = measure.stat(point) if measure.stat is not None and not measure.pooled else None
    return stat.n if stat is not None and stat.n is not None else point.ok


def ends_of(rows: Sequence[Row]) -> list[Row]:
    """The first and the last load of each series."""
    lines = defaultdict(list)
    for row in rows:
        lines[row["colour"], row["variant"]].append(row)
    ends = []
    for line in lines.values():
        line.sort(key=lambda row: row["load"])
        ends += line[:1] + line[-1:] if len(line) > 1 else line
    return [{"x": row["x"], "y": row["y"], "load": row["load"]} for row in ends]


def apart(ends: Sequence[Row], xs: Sequence[float], ys: Sequence[float]) -> list[Row]:
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


def _axis_word(frame: Frame) -> str:
    if frame.axis != "load":
        return f"{frame.axis} length"
    return {"concurrency": "concurrency", "rate": "arrival rate"}.get(
        frame.points[0].kind, "batch size" if frame.offline else "burst"
    )


def _which(points: Sequence[Point], measure: Measure) -> str:
    if measure.stat is None:
        return ""
    kinds = {stat.which for point in points if (stat := measure.stat(point)) is not None and stat.which != "rate"}
    return f", {' or '.join(sorted(kinds, reverse=True))}" if kinds else ""


def definition(points: Sequence[Point], measure: Measure) -> str:
    loop = "closed loop" if points[0].kind == "concurrency" else "open loop"
    since = " or ".join(sorted({point.since for point in points}))
    return measure.definition.format(since=f"{since} ({loop})", window=points[0].window)


def sample_words(points: Sequence[Point], measure: Measure) -> str:
    """How many requests a point is made of, and what its bar says."""
    stats = [measure.stat(point) if measure.stat is not None else None for point in points]
    counts = sorted({n for point in points if (n := _n(measure, point))})
    said = ""
    if counts:
        said = f"{counted(counts)} requests a point"
    sources = sorted({point.source for point in points})
    levels = sorted({stat.level for stat in stats if stat is not None and stat.level is not None})
    if measure.stat is None:
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
