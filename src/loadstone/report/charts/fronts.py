"""What one gives for another: pace per user against throughput per GPU, or against the price of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from loadstone.report.charts.curves import apart, axis_scale, definition, ends_of, looks, sample_words
from loadstone.report.charts.frames import DOLLARS, OUTPUT, PER_GPU, PER_USER, Frame
from loadstone.report.charts.theme import Figure, Row, data, figure

if TYPE_CHECKING:
    import altair as alt


def pareto(frame: Frame, *, section: str, key: str) -> Figure | None:
    """Tokens per user against tokens per GPU, with the points that no other beats in both joined by a step."""
    import altair as alt

    per_gpu = all(point.gpus for point in frame.points)
    cost = PER_GPU if per_gpu else OUTPUT
    rows: list[Row] = [
        {"x": pace, "y": much, "load": point.load, "colour": series.colour, "variant": series.variant}
        for point, series in zip(frame.points, frame.series, strict=True)
        if (pace := PER_USER.of(point)) is not None and (much := cost.of(point)) is not None
    ]
    if len(rows) < 3:
        return None
    front = _front(rows, "higher")
    x = alt.X("x:Q", title="Output tok/s per user (1 / median TPOT)", scale=axis_scale([row["x"] for row in rows]))
    y = alt.Y("y:Q", title=f"{cost.name} (tok/s)", scale=axis_scale([row["y"] for row in rows]))
    tooltip = [
        *_tells(frame),
        alt.Tooltip("y:Q", title="tok/s", format=".5~g"),
    ]
    points = alt.Chart(data(rows)).mark_point(size=90)
    chart = _joined(front, x, y) + points.encode(x=x, y=y, tooltip=tooltip, **looks(rows, lines=False)("point"))
    words = " · ".join(frame.words)
    return figure(
        key,
        "Pareto front: pace per user against throughput" + (" per GPU" if per_gpu else ""),
        [words, "Dashed: points that none beats in both; better is up and right", definition(frame.points, cost)],
        chart,
        section=section,
        summary=f"{len(front)} of {len(rows)} points are on the front; {words}",
    )


def price_by_pace(frame: Frame, *, section: str, key: str) -> Figure | None:
    """Dollars per million output tokens over the pace one user sees, a line for each series through its loads; the
    points that none beats in both joined by a step: what a pace costs at least.
    """
    import altair as alt

    rows: list[Row] = []
    for point, series in zip(frame.points, frame.series, strict=True):
        pace, stat = PER_USER.of(point), point.dollars_output
        if pace is None or stat is None:
            continue
        row: Row = {"x": pace, "y": stat.value, "load": point.load}
        row |= {
            "colour": series.colour,
            "variant": series.variant,
            "total": point.dollars_total.value if point.dollars_total is not None else None,
        }
        rows.append(row | ({} if stat.reach is None else {"low": stat.low, "high": stat.high}))
    if len(rows) < 2:
        return None
    front = _front(rows, "lower")
    xs, ys = [row["x"] for row in rows], [row["y"] for row in rows]
    x = alt.X("x:Q", title="Output tok/s per user (1 / median TPOT)", scale=axis_scale(xs))
    bounds = [row["high"] for row in rows if "high" in row]
    y = alt.Y("y:Q", title="$ per million output tokens", scale=axis_scale(ys, bounds))
    tooltip = [
        *_tells(frame),
        alt.Tooltip("y:Q", title="$ per million output tokens", format=".3~g"),
        alt.Tooltip("total:Q", title="$ per million tokens, input and output", format=".3~g"),
    ]
    encode = looks(rows)
    base = alt.Chart(data(rows))
    chart = (
        _joined(front, x, y)
        + base.mark_line().encode(x=x, y=y, order=alt.Order("load:Q"), **encode("line"))
        + base.mark_point().encode(x=x, y=y, tooltip=tooltip, **encode("point"))
    )
    if bounds:
        bars = base.transform_filter("isValid(datum.low)").mark_rule(opacity=0.55)
        chart = bars.encode(x=x, y=alt.Y("low:Q"), y2="high:Q", **encode("rule")) + chart
    chart += (
        alt.Chart(data(apart(ends_of(rows), xs, ys)))
        .mark_text(align="left", dx=8, dy=-7, fontSize=12)
        .encode(x=x, y=y, text=alt.Text("load:Q", format="~g"))
    )
    words = " · ".join(frame.words)
    return figure(
        key,
        "Price of output tokens against pace per user",
        [
            words,
            f"A point per load, written beside: {frame.x_title}; better is down and right. Dashed: what a pace costs "
            "at least",
            definition(frame.points, DOLLARS),
            sample_words(frame.points, DOLLARS),
        ],
        chart,
        section=section,
        summary=f"Dollars per million output tokens over tokens per second per user; {words}. The cheapest for each "
        "pace: " + "; ".join(f"${row['y']:.3g} at {row['x']:.3g} tok/s per user" for row in front[:12]),
    )


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
    import altair as alt

    marks = alt.Chart(data(front)).mark_line(
        interpolate="step-before", color="#777777", strokeDash=[3, 3], strokeWidth=2
    )
    line: alt.Chart = marks.encode(x=x, y=y, order=alt.Order("x:Q"))
    return line


def _tells(frame: Frame) -> list[alt.Tooltip]:
    """What a point tells of itself before its height."""
    import altair as alt

    return [
        alt.Tooltip("colour:N", title="series"),
        alt.Tooltip("variant:N", title="variant"),
        alt.Tooltip("load:Q", title=frame.x_title),
        alt.Tooltip("x:Q", title="tok/s per user", format=".4~g"),
    ]
