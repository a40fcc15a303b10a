"""Lines: a measure against load or length, and throughput against latency; what pictures say of their points."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from loadstone.report.charts.marks import BESIDE, CROSSED, axis_scale, bounds, lines, loads_beside, named, tips
from loadstone.report.charts.theme import Figure, Row, figure, load_axis, wide
from loadstone.report.data.frames import Frame, Measure, bunched, load_label
from loadstone.report.data.points import Point
from loadstone.report.data.wording import joined, requests_a

FAR = 100.0
"""Times that a value must be above another for a logarithmic axis: else a line over loads is read from 0."""


def against(frame: Frame, measure: Measure, *, key: str, suffix: str = "") -> Figure | None:
    """`measure` over the frame's axis, a line for each series; None where no point has it."""
    import altair as alt

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
    tooltip = [
        *tips(),
        alt.Tooltip("x:Q", title=frame.x_title),
        alt.Tooltip("y:Q", title=title, format=".4~g"),
        alt.Tooltip("n:Q", title="requests"),
    ]
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
    import altair as alt

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
    return ("ms", 1e3) if values and max(values) < 2 else ("s", 1.0)


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
    said = []
    for name, line in list(lines.items())[:12]:
        line.sort(key=lambda row: row["x"])
        first, last = line[0], line[-1]
        said.append(f"{name}: {first['y']:.4g} {unit} at {first['x']:g} to {last['y']:.4g} at {last['x']:g}")
    return "; ".join(said)
