"""Median and p99 over the load, predictions under measurements, and runs by date."""

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from statistics import median
from typing import Any

import altair as alt
from msgspec import json

from loadstone.analyse.trend import ChangePoint, TrendSeries
from loadstone.core.bounds import split_bound
from loadstone.core.units import show_number, show_seconds
from loadstone.report.charts.captions import CROSSED, count_requests, unit_of
from loadstone.report.charts.layers import (
    Encoder,
    axis_scale,
    bounds,
    cross_out,
    encode_lines,
    row_facts,
    warning,
)
from loadstone.report.charts.theme import (
    BLUE,
    GREY,
    INK,
    VERMILION,
    WIDTH,
    Figure,
    Row,
    colour_by,
    data,
    figure,
    load_axis,
    seconds_unit,
    tooltips,
    wide,
)
from loadstone.report.data.frames import Frame, Measure, load_title
from loadstone.report.data.points import CellPoint
from loadstone.report.data.series import ChartSeries, lengths_label
from loadstone.report.data.wording import (
    clean,
    join,
    requests_a,
    show_change,
    show_day,
    show_name,
    spell,
)

_PARTS = {"p50": "median", "mean": "mean", "p99": "p99"}
_PART_HUES = {"p50": BLUE, "mean": BLUE, "p99": VERMILION}
"""Of the lines of one series."""
WIDE = 30
"""Times that the p99 must be above the median for a logarithmic axis."""
_MAX_TICKS = 5
"""Dates below a picture of runs."""
FAR = 10
"""Times that the largest value laid over another must be above the smallest for one."""


def tails(frame: Frame, measures: Sequence[Measure], *, key: str) -> Figure | None:
    """Draw the median and the p99 of each series over its loads, a panel for each measure, with
    the bounds that the SLO has for it; None where there are not two loads."""
    panels: dict[Measure, list[Row]] = {}
    for measure in measures:
        scale = unit_of(measure, frame.points)[1]
        rows = [row for pair in frame.pairs for row in _tail_rows(frame, measure, pair, scale)]
        if len({row["x"] for row in rows}) > 1:
            panels[measure] = rows
    if not panels:
        return None
    every = list(chain(*panels.values()))
    encode = encode_lines(every, frame.variants, beside=False)
    drawn = [
        _tail_panel(frame, measure, rows, encode, measure is list(panels)[-1])
        for measure, rows in panels.items()
    ]
    chart: Any = drawn[0]
    if len(drawn) > 1:
        sized = [alt.layer(*panel).properties(width=WIDTH, height=115) for panel in drawn]
        chart = alt.vconcat(*sized, spacing=12)
    parts = [words for part, words in _PARTS.items() if any(row["part"] == part for row in every)]
    if len(parts) > 1:
        parts = [f"{words} (thick)" if words == "p99" else words for words in parts]
    counts = (count_requests(measures[0], point) for point in frame.points)
    stats = [measure.stat(point) for measure in measures for point in frame.points]
    explained = join(
        "bars: 95% bounds" if any("low" in row for row in every) else "",
        "too few requests to bound the p99"
        if all(stat is None or stat.p99_high is None for stat in stats)
        else "",
        requests_a("load", counts),
        by="; ",
    )
    spoken = [
        f"{row['label']} {row['part']} {show_number(row['y'], 4)} at {row['x']:g}"
        for row in every[:48]
    ]
    names = " and ".join(measure.name for measure in panels)
    return figure(
        key,
        f"{names}: {' and '.join(parts)}",
        [frame.words, explained],
        chart,
        section="run",
        summary=f"{names} by {frame.axis_word}, {frame.words}. {', '.join(spoken)}",
    )


def _tail_rows(
    frame: Frame, measure: Measure, pair: tuple[CellPoint, ChartSeries], scale: float
) -> Iterator[Row]:
    """Yield a row for the median of a point, and one for its p99, where they are known. Alone, a
    series has a colour for each, and bars."""
    point, series = pair
    stat, x = measure.stat(point), frame.x(point)
    if stat is None or x is None:
        return
    alone = len(frame.xs) == 1
    middle = "mean" if stat.which == "mean" else "p50"
    ends = {
        middle: (stat.value, stat.low, stat.high),
        "p99": (stat.p99, stat.p99_low, stat.p99_high),
    }
    for part, (value, low, high) in ends.items():
        if value is None:
            continue
        row = {"x": x, "y": value * scale, "part": part, "n": stat.n} | row_facts(point, series)
        if alone:
            row |= {"label": part, "hue": _PART_HUES[part]}
            if low is not None and high is not None:
                row |= {"low": low * scale, "high": high * scale}
        yield row


def _tail_panel(
    frame: Frame, measure: Measure, rows: list[Row], encode: Encoder, last: bool
) -> list[alt.Chart]:
    """Draw lines of medians and p99, and a rule at each bound. `last`: with the axis' title."""
    unit, scale = unit_of(measure, frame.points)
    limits = {
        (spell(f"{bound.metric} < {show_seconds(bound.limit_s)}"), bound.limit_s * scale)
        for point in frame.points
        for bound in point.cells[0].slo
        if split_bound(bound.metric).base == measure.key
    }
    bound_rows: list[Row] = [{"y": limit, "text": f"SLO: {text}"} for text, limit in sorted(limits)]
    x = load_axis(frame.x_title if last else "", sorted({row["x"] for row in rows}))
    y_scale = axis_scale([*rows, *bound_rows], "y", bars=True)
    y = alt.Y("y:Q", title=f"{measure.name} ({unit})", scale=y_scale)
    widths = alt.StrokeWidth("part:O", legend=None).scale(domain=list(_PARTS), range=[1, 1, 2.6])
    shown = tooltips(
        ("label:N", ""),
        ("part:N", ""),
        ("x:Q", frame.x_title),
        ("y:Q", f"{measure.name} ({unit})", ",.4~r"),
        ("n:Q", "requests"),
    )
    base = alt.Chart(data(rows)).encode(x=x)
    layers = [
        base.mark_line().encode(y=y, strokeWidth=widths, **encode("line")),
        base.mark_point(size=60).encode(y=y, tooltip=shown, **encode("point")),
    ]
    if any("low" in row for row in rows):
        bars = base.transform_filter("isValid(datum.low)").mark_rule(strokeOpacity=0.55)
        low = alt.Y("low:Q", scale=y_scale)
        layers.append(bars.encode(y=low, y2=alt.Y2("high:Q"), **encode("rule")))
    if bound_rows:
        limit = alt.Chart(data(bound_rows)).encode(y=y)
        text = limit.mark_text(align="left", baseline="bottom", dx=4, dy=-2, color=INK)
        layers += [
            limit.mark_rule(color=INK, strokeWidth=1.5),
            text.encode(x=alt.value(0), text="text:N"),
        ]
    return layers


def draw_prediction(
    pair: tuple[list[CellPoint], list[CellPoint]], measure: Measure
) -> Figure | None:
    """Draw measurements laid over the prediction with its interval, and over the roofline where it
    is known."""
    simulated, measured = pair
    unit, scale = unit_of(measure, [*simulated, *measured])
    predicted, dots = _rows(simulated, measure, scale), _rows(measured, measure, scale)
    if not predicted or not dots:
        return None
    x = load_axis(load_title(simulated[0]), sorted({row["x"] for row in (*predicted, *dots)}))
    title = f"{measure.name} ({unit})"
    light = _light_rows(simulated, measure, scale)
    heights = [row["y"] for row in (*predicted, *dots)]
    log = wide([*heights, *(row["y"] for row in light)], FAR)
    for row in (*predicted, *dots) if log else ():
        if row.get("low") == 0:  # nowhere on that axis
            row["low"] = min(heights) / 2
    y_scale = alt.Scale(type="log", nice=False, padding=8) if log else alt.Scale()
    y, low = (alt.Y(f"{column}:Q", title=title, scale=y_scale) for column in ("y", "low"))
    shown = {"simulated": GREY, "measured": INK} | ({"roofline": GREY} if light else {})
    colour = colour_by("what", list(shown), list(shown.values()))
    dash_scale = alt.Scale(domain=list(shown), range=[[6, 3], [1, 0], [2, 3]])
    dashes = alt.StrokeDash("what:N", scale=dash_scale, legend=None)

    def line(rows: Sequence[Row]) -> alt.Chart:
        drawn: alt.Chart = alt.Chart(data(rows)).mark_line()
        return drawn.encode(x=x, y=y, color=colour, strokeDash=dashes)

    layers = [line(predicted)]
    explained = []
    if any("low" in row for row in predicted):
        explained.append("band: 80% interval of the prediction")
        bounded = alt.Chart(data(predicted)).transform_filter("isValid(datum.low)")
        band = bounded.mark_area(opacity=0.25, color=GREY)
        layers.insert(0, band.encode(x=x, y=low, y2=alt.Y2("high:Q")))
    if any("low" in row for row in dots):
        explained.append("bars: 95% interval of what was measured")
        bars = alt.Chart(data(dots)).transform_filter("isValid(datum.low)").mark_rule(color=INK)
        layers.append(bars.encode(x=x, y=low, y2=alt.Y2("high:Q")))
    tooltip = tooltips(("run:N",), ("x:Q",), ("y:Q", title, ",.4~r"))
    marks = alt.Chart(data(dots)).mark_point(size=90)
    layers += cross_out(marks.encode(x=x, y=y, color=colour, tooltip=tooltip), dots, x, y)
    if any("warned" in row for row in dots):
        explained.append(CROSSED)
    if light:
        layers.append(line(light))
    off = [
        dot["y"] / row["y"]
        for dot in dots
        for row in predicted
        if row["x"] == dot["x"] and row["y"]
    ]
    first = measured[0]
    words = join(
        first.setup.model,
        first.setup.engine,
        first.setup.hardware,
        lengths_label(first),
        simulated[0].setup.settings,
        by=" · ",
    )
    agreement = (
        f"measured / simulated: {_times(min(off))} to {_times(max(off))} over {len(off)} loads"
        if off
        else "no load in common"
    )
    return figure(
        f"predicted-{measure.key}",
        f"{measure.name}: measured over simulated",
        [words, "; ".join([agreement, *explained])],
        layers,
        section="predicted",
        summary=f"{measure.name}, measured over simulated, {words}. {agreement}",
    )


def _times(ratio: float) -> str:
    """Write `1.10`, `243`."""
    return f"{ratio:.2f}" if ratio < 10 else show_number(ratio, 3)


def _rows(points: Sequence[CellPoint], measure: Measure, scale: float) -> list[Row]:
    ordered = sorted(points, key=lambda point: point.load)
    return [
        {"x": point.load, "y": value * scale, "run": f"run {point.number}"}
        | {"what": "simulated" if point.is_simulated else "measured"}
        | bounds(measure.stat(point), scale)
        | warning(point)
        for point, value in measure.values(ordered)
    ]


def _light_rows(points: Sequence[CellPoint], measure: Measure, scale: float) -> list[Row]:
    """Make rows of the roofline, of measures that have one."""
    rows: list[Row] = []
    for point in sorted(points, key=lambda point: point.load):
        lights = {"tpot": point.roofline.tpot_s, "ttft": point.roofline.ttft_s}
        light_s = lights.get(measure.key)
        if light_s is not None:
            rows.append({"x": point.load, "y": light_s * scale, "what": "roofline"})
    return rows


def trend_figure(
    series: TrendSeries, metric: str, changes: Sequence[ChangePoint], key: str
) -> Figure:
    """Draw one metric of a series: a point for each run, a line at the median between its changes
    or along a drift, and a dashed line where it changed."""
    values = [point.values[metric] or 0.0 for point in series.points]
    unit, scale = ("tok/s", 1.0) if metric.endswith("per_s") else seconds_unit(max(values))
    names = [point.run for point in series.points]
    found = [
        (names.index(change.run), change, changed)
        for change in changes
        for changed in change.metrics
        if changed.metric == metric
    ]
    drifts = {
        begin: (begin + change.runs[1], changed)
        for begin, change, changed in found
        if change.kind == "drift"
    }
    steps = [
        {"at": place + 0.5, "label": show_change(changed)}
        for place, change, changed in found
        if change.kind == "step"
    ]
    labels = [
        {"at": (begin + end + 1) / 2, "label": show_change(changed)}
        for begin, (end, changed) in drifts.items()
    ]
    rows = [
        {
            "n": number,
            "value": value * scale,
            "run": run.run,
            "date": run.created[:16],
            "release": run.release or "?",
        }
        for number, (run, value) in enumerate(zip(series.points, values, strict=True), 1)
    ]
    ends = {0, *(place for place, _, _ in found), *(end for end, _ in drifts.values()), len(values)}
    levels = []
    for begin, end in pairwise(sorted(ends)):
        _, drift = drifts.get(begin, (end, None))
        level = last = median(values[begin:end])
        if drift is not None:
            level, last = drift.before, drift.after
        rule = {"from": begin + 0.6, "to": end + 0.4, "level": level * scale, "last": last * scale}
        levels.append(rule)
    x = alt.X("n:Q", title="runs, by date and release").axis(**_date_axis(series))
    x = x.scale(domain=[0.5, len(values) + 0.5], nice=False)
    y = alt.Y(
        "value:Q", title=show_name(metric) if unit == "tok/s" else f"{show_name(metric)}, {unit}"
    ).scale(zero=False)
    tooltip = tooltips(("run:N",), ("date:N",), ("release:N",), ("value:Q", unit, ".4~g"))
    points = alt.Chart(data(rows)).mark_point(color=BLUE).encode(x=x, y=y, tooltip=tooltip)
    lines = (
        alt.Chart(data(levels))
        .mark_rule(color=INK)
        .encode(x="from:Q", x2=alt.X2("to:Q"), y="level:Q", y2="last:Q")
    )
    layers = [points, lines]
    if steps:
        dashed = alt.Chart(data(steps)).encode(x="at:Q")
        layers.append(dashed.mark_rule(color=VERMILION, strokeDash=[5, 4]))
    if found:
        texts = alt.Chart(data([*steps, *labels])).encode(x="at:Q", text="label:N")
        layers.append(texts.mark_text(dy=-8, fontSize=12).encode(y=alt.value(0)))
    title = f"{show_name(metric)}, {series.load.label}"
    notes = [series.setup, "line: the median between changes; dashed: a change; a point: a run"]
    summary = f"{metric} of {len(values)} runs with {len(found)} changes"
    return figure(key, title, notes, layers, section="trend", summary=summary)


def _date_axis(series: TrendSeries) -> dict[str, Any]:
    """Return an axis of runs with a date and a release at a few of them: where releases begin, if
    there are some."""
    releases = [point.release for point in series.points]
    places = [
        number
        for number, release in enumerate(releases)
        if number == 0 or release != releases[number - 1]
    ]
    if not 1 < len(places) <= _MAX_TICKS:
        step = -(-len(releases) // _MAX_TICKS)
        places = list(range(0, len(releases), step))
    labels = {
        number + 1: [show_day(series.points[number].created), clean(releases[number] or "", 10)]
        for number in places
    }
    return {
        "values": list(labels),
        "labelExpr": f"({json.encode(labels).decode()})[datum.value]",
        "labelOverlap": True,
        "grid": False,
    }
