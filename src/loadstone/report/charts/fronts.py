"""What one gives for another: pace per user against throughput per GPU, or against the price of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from loadstone.report.charts.curves import definition, sample_words, whose
from loadstone.report.charts.marks import BESIDE, axis_scale, bounds, crossed, lines, loads_beside, looks, named, tips
from loadstone.report.charts.theme import Figure, Row, data, figure
from loadstone.report.data.frames import DOLLARS, OUTPUT, PER_GPU, PER_USER, Frame, Measure
from loadstone.report.data.wording import joined

if TYPE_CHECKING:
    import altair as alt


_PACE = "Output tok/s per user (1 / median TPOT)"


def pareto(frame: Frame) -> Figure | None:
    """Tokens per user against tokens per GPU, with the points that no other beats in both joined by a step."""
    import altair as alt

    per_gpu = all(point.gpus for point in frame.points)
    cost = PER_GPU if per_gpu else OUTPUT
    rows = _rows(frame, cost)
    if len(rows) < 3:
        return None
    front = _front(_rows(_candidates(frame), cost), "higher")
    x = alt.X("x:Q", title=_PACE, scale=axis_scale(rows, "x"))
    y = alt.Y("y:Q", title=f"{cost.name} (tok/s)", scale=axis_scale(rows, "y"))
    tooltip = [*_tells(frame), alt.Tooltip("y:Q", title="tok/s", format=".5~g")]
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
    import altair as alt

    rows = _rows(frame, DOLLARS)
    if len(rows) < 2:
        return None
    front = _front(_rows(_candidates(frame), DOLLARS), "lower")
    title = "$ per million output tokens"
    x = alt.X("x:Q", title=_PACE, scale=axis_scale(rows, "x"))
    y = alt.Y("y:Q", title=title, scale=axis_scale(rows, "y", bars=True))
    tooltip = [
        *_tells(frame),
        alt.Tooltip("y:Q", title=title, format=".3~g"),
        alt.Tooltip("total:Q", title="$ per million tokens, input and output", format=".3~g"),
    ]
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
    kept = _candidates(frame).points
    rest = [point for point in frame.points if not any(point is other for other in kept)]
    aside = [
        "predictions"
        if any(point.source == "simulated" and point.source != kept[0].source for point in rest)
        else "",
        "points with a warning"
        if any(not point.trusted for point in rest) and all(point.trusted for point in kept)
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
    import altair as alt

    marks = alt.Chart(data(front)).mark_line(
        interpolate="step-before", color="#777777", strokeDash=[3, 3], strokeWidth=2
    )
    line: alt.Chart = marks.encode(x=x, y=y, order=alt.Order("x:Q"))
    return line


def _tells(frame: Frame) -> list[alt.Tooltip]:
    """What a point tells of itself before its height."""
    import altair as alt

    pace = alt.Tooltip("x:Q", title="tok/s per user", format=".4~g")
    return [*tips(), alt.Tooltip("load:Q", title=frame.x_title), pace]
