"""Lines: a measure against load or length, throughput against latency, what one gives for another
(fronts)."""

from collections.abc import Callable, Sequence

import altair as alt

from loadstone.core.groups import by_key
from loadstone.core.units import show_number
from loadstone.report.charts.captions import (
    BESIDE,
    WHOSE,
    count_requests,
    definition,
    name_statistic,
    sample_words,
    spoken,
    unit_of,
    whose,
)
from loadstone.report.charts.layers import (
    alike_scales,
    axis_scale,
    bounds,
    lines,
    loads_beside,
    panels,
    quantiles,
    ring,
    row_facts,
)
from loadstone.report.charts.theme import Figure, Row, data, figure, load_axis, tooltips
from loadstone.report.data.frames import E2E, PER_USER, Frame, Measure, cliff, knee, load_label
from loadstone.report.data.points import CellPoint
from loadstone.report.data.wording import join

_PACE = "Output tok/s per user (1 / median TPOT)"


def _rows(
    frame: Frame,
    x: Callable[[CellPoint], float | None],
    y: Callable[[CellPoint], float | None],
    facts: Callable[[CellPoint], Row],
    *,
    loads: bool = True,
) -> list[Row]:
    """Make the rows of the points that have both x and y. `loads`: they tell theirs."""
    rows: list[Row] = []
    for point, series in frame.pairs:
        across, height = x(point), y(point)
        if across is not None and height is not None:
            place = {"x": across, "y": height} | ({"load": point.load} if loads else {})
            rows.append(place | row_facts(point, series) | facts(point))
    return rows


def against(frame: Frame, measure: Measure, *, key: str) -> Figure | None:
    """Draw `measure` over the frame's axis, a line for each series; None where no point has it."""
    unit, scale = unit_of(measure, frame.points)

    def facts(point: CellPoint) -> Row:
        stat = measure.stat(point)
        numbers = {"n": count_requests(measure, point), "is": load_label(point)}
        return bounds(stat, scale) | quantiles(stat, scale) | numbers

    rows = _rows(frame, frame.x, measure.of, facts, loads=False)
    if not rows:
        return None
    for row in rows:
        row["y"] *= scale
    statistic = name_statistic(frame.points, measure)
    title = f"{measure.name}{statistic} ({unit})"
    x = load_axis(frame.x_title, sorted({row["x"] for row in rows}))
    y = alt.Y("y:Q", title=title, scale=axis_scale(rows, "y", bars=True))
    tooltip = tooltips(WHOSE, ("x:Q", frame.x_title), ("y:Q", title, ",.4~r"), ("n:Q", "requests"))
    falls = []
    if frame.of_sessions and measure.key in ("output_tok_s", "gpu_tok_s"):
        falls = _marked(frame, rows, cliff)
    drawn = panels(lines(rows, frame.variants, x, y, tooltip), rows)
    ringed = ""
    if falls and isinstance(drawn, list):
        drawn += ring(falls, x, y)
        ringed = "ringed: the last load before throughput falls"
    return figure(
        key,
        f"{measure.name} by {frame.axis_word}",
        [
            whose(frame, rows),
            join(definition(frame.points, measure), ringed),
            sample_words(frame.points, measure),
        ],
        drawn,
        section=frame.section,
        summary=(
            f"{measure.name}{statistic} in {unit} by {frame.axis_word}; {frame.words}."
            f" {spoken(rows, unit)}"
        ),
    )


def trade_off(
    frame: Frame, latency: Measure, throughput: Measure, *, section: str, key: str
) -> Figure | None:
    """Draw throughput over latency: each line a series, from its lightest load to its heaviest,
    with loads named."""
    unit, scale = unit_of(latency, frame.points)

    def facts(point: CellPoint) -> Row:
        return bounds(latency.stat(point), scale) | {"n": count_requests(latency, point)}

    rows = _rows(frame, latency.of, throughput.of, facts)
    if len(rows) < 2:
        return None
    for row in rows:
        row["x"] *= scale
    title = f"{throughput.name} ({throughput.unit})"
    x_title = f"{latency.name}{name_statistic(frame.points, latency)} ({unit})"
    x_scale, y_scale = alike_scales(rows, bars="x")
    x, y = alt.X("x:Q", title=x_title, scale=x_scale), alt.Y("y:Q", title=title, scale=y_scale)
    tooltip = tooltips(
        WHOSE,
        ("load:Q", frame.x_title),
        ("x:Q", f"{latency.name} ({unit})", ",.4~r"),
        ("y:Q", title, ",.5~r"),
        ("n:Q", "requests"),
    )
    better = "up and right" if latency.better == "higher" else "up and left"
    bends = _marked(frame, rows, knee) if latency is E2E else []
    ringed = "; ringed: the knee, the most throughput for its latency" if bends else ""
    return figure(
        key,
        f"{throughput.name} against {latency.noun}",
        [
            whose(frame, rows),
            f"A point per load, {BESIDE}: {frame.x_title}; better is {better}{ringed}",
            f"{definition(frame.points, throughput)}; {definition(frame.points, latency)}",
            sample_words(frame.points, latency),
        ],
        [
            *lines(rows, frame.variants, x, y, tooltip, bars="x", order="load"),
            *loads_beside(rows, x, y),
            *ring(bends, x, y),
        ],
        section=section,
        summary=f"{throughput.name} over {latency.noun}; {frame.words}. "
        + spoken([{**row, "x": row["load"]} for row in rows], throughput.unit),
    )


def _marked(
    frame: Frame, rows: Sequence[Row], find: Callable[[Sequence[CellPoint]], CellPoint | None]
) -> list[Row]:
    """Return the rows of the points that `find` finds in their series."""
    sweeps = by_key(
        (series.label, point) for point, series in frame.pairs if point.output_tokens_per_s
    )
    bends = set()
    for label, points in sweeps.items():
        bend = find(sorted(points, key=lambda point: point.load))
        if bend is not None:
            bends.add((label, bend.load))
    return [row for row in rows if (row["label"], row.get("load", row["x"])) in bends]


def front(frame: Frame, measure: Measure, *, section: str, key: str) -> Figure | None:
    """Draw what a pace per user costs: tokens per GPU, or dollars per million, over tokens per
    second per user.

    Each series has a line through its loads; a step goes through the points that none beats in
    both.
    """
    rows = _front_rows(frame, measure)
    if len(rows) < 2:
        return None
    costs = measure.better == "lower"
    best = _front(_front_rows(_candidates(frame), measure), costs)
    title = f"{measure.name} ({measure.unit})"
    x_scale, y_scale = alike_scales(rows, bars="y")
    x, y = alt.X("x:Q", title=_PACE, scale=x_scale), alt.Y("y:Q", title=title, scale=y_scale)
    tooltip = tooltips(
        WHOSE,
        ("load:Q", frame.x_title),
        ("x:Q", "tok/s per user", ",.4~r"),
        ("y:Q", title, ",.4~r"),
        *([("total:Q", "$ per million tokens, input and output", ",.3~r")] if costs else []),
    )
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


def _front_rows(frame: Frame, measure: Measure) -> list[Row]:
    def facts(point: CellPoint) -> Row:
        total = point.dollars.total
        price = {} if total is None else {"total": total.value}
        return bounds(measure.stat(point)) | price

    return _rows(frame, PER_USER.of, measure.of, facts)


def _candidates(frame: Frame) -> Frame:
    """Return the points that a front is of: not what was predicted, where anything was measured;
    none with a warning, where others are there.
    """
    measured = frame.only(lambda point, _: not point.is_simulated)
    measured = measured if measured.points else frame
    trusted = measured.only(lambda point, _: point.trusted)
    return trusted if trusted.points else measured


def _aside(frame: Frame) -> str:
    """Say which points the front is not of."""
    candidates = _candidates(frame).points
    ids = set(map(id, candidates))
    rest = [point for point in frame.points if id(point) not in ids]
    predicted = [point for point in rest if point.is_simulated]
    warned = any(not point.trusted for point in rest)
    words = join(
        "predictions" if predicted and not candidates[0].is_simulated else "",
        "points with a warning" if warned and all(p.trusted for p in candidates) else "",
        by=" and ",
    )
    return f", without {words}" if words else ""


def _front(rows: Sequence[Row], costs: bool) -> list[Row]:
    """Return the points that none beats in both pace, x, and y; fastest first."""
    sign = -1 if costs else 1
    front: list[Row] = []
    for row in sorted(rows, key=lambda row: (-row["x"], -sign * row["y"])):
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
