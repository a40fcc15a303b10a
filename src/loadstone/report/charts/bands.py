"""Spread over the load, predictions under measurements, and runs by date."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

import altair as alt

from loadstone.analyse.trend import ChangePoint, TrendSeries
from loadstone.core.groups import by_key
from loadstone.core.units import show_number
from loadstone.report.charts.captions import CROSSED, unit_of
from loadstone.report.charts.layers import bounds, cross_out, quantiles, warning
from loadstone.report.charts.theme import (
    BLUE,
    GREY,
    INK,
    VERMILION,
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
from loadstone.report.data.series import lengths_label
from loadstone.report.data.wording import join, requests_a

WIDE = 30
"""Times that the p99 must be above the median for a logarithmic axis."""
FAR = 10
"""Times that the largest value laid over another must be above the smallest for one."""


def spread(frame: Frame, measure: Measure, *, key: str) -> Figure | None:
    """Draw p50, p90 and p99 of one series over its loads, with the bounds of the p99."""
    unit, scale = unit_of(measure, frame.points)
    rows = [row for point in frame.points for row in _spread_row(frame, measure, point, scale)]
    if len(rows) < 2:
        return None
    rows.sort(key=lambda row: row["x"])
    base = alt.Chart(data(rows)).encode(x=load_axis(frame.x_title, [row["x"] for row in rows]))
    y_title = f"{measure.name} ({unit})"
    values = [row[name] for row in rows for name in ("p50", "p99")]
    y_scale = alt.Scale(type="log", nice=False) if wide(values, WIDE) else alt.Scale()
    shown = [(f"{name}:Q", f"{name} ({unit})", ",.4~r") for name in ("p50", "p90", "p99")]
    chart = [
        base.mark_area(opacity=0.22, color=GREY).encode(
            y=alt.Y("p90:Q", title=y_title, scale=y_scale), y2=alt.Y2("p99:Q")
        ),
        base.mark_area(opacity=0.45, color=GREY).encode(
            y=alt.Y("p50:Q", title=y_title), y2=alt.Y2("p90:Q")
        ),
        base.mark_line(color=INK, point=alt.OverlayMarkDef(color=INK, size=60)).encode(
            y=alt.Y("p50:Q", title=y_title),
            tooltip=tooltips(("x:Q", frame.x_title), *shown, ("n:Q", "requests")),
        ),
    ]
    if any("low" in row and "high" in row for row in rows):
        bounded = base.transform_filter("isValid(datum.low) && isValid(datum.high)")
        bars = bounded.mark_rule(color=INK, strokeWidth=1.2)
        chart.append(bars.encode(y=alt.Y("low:Q", title=y_title), y2=alt.Y2("high:Q")))
    bounded_above = any("high" in row for row in rows)
    bar_text = (
        "bars: 95% bounds of the p99" if bounded_above else "too few requests to bound the p99"
    )
    sizes = requests_a("load", (row["n"] for row in rows))
    return figure(
        key,
        f"{measure.name}: median, p90, p99",
        [frame.words, join("line: median; dark: to p90; light: to p99", bar_text, sizes, by="; ")],
        chart,
        section="run",
        summary=f"{measure.name} percentiles, {frame.words}: "
        + "; ".join(
            f"at {row['x']:g}:"
            f" {', '.join(show_number(row[name], 4) for name in ('p50', 'p90', 'p99'))} {unit}"
            for row in rows
        ),
    )


def _spread_row(frame: Frame, measure: Measure, point: CellPoint, scale: float) -> Iterator[Row]:
    """Yield the row of a point whose percentiles are known."""
    stat, x = measure.stat(point), frame.x(point)
    percentiles = quantiles(stat, scale)
    if stat is not None and x is not None and percentiles:
        ends = {"low": stat.p99_low, "high": stat.p99_high}
        bars = {name: bound * scale for name, bound in ends.items() if bound is not None}
        yield {"x": x, "n": stat.n} | percentiles | bars


def pair_predictions(
    points: Sequence[CellPoint],
) -> Iterator[tuple[list[CellPoint], list[CellPoint]]]:
    """Yield (simulated, measured or imported) points of the same deployment under the same work,
    where both are there.

    Of several settings each is laid under what was measured with it, and where nobody said with
    which.
    """
    groups = by_key((_predictable(point), point) for point in points)
    for group in groups.values():
        simulated = by_key(
            (point.setup.settings, point) for point in group if point.setup.source == "simulated"
        )
        for settings, predicted in simulated.items():
            observed = [
                point
                for point in group
                if point.setup.source != "simulated"
                and (not settings or point.setup.settings in ("", settings))
            ]
            if observed:
                yield predicted, observed


def _predictable(point: CellPoint) -> tuple[object, ...]:
    """Make a key that is equal for what a prediction is of."""
    setup, demand = point.setup, point.demand
    deployed = setup.architecture or setup.model, setup.engine, setup.gpu, setup.gpus
    work = point.kind, demand.prefix, demand.near_input, demand.near_output
    return *deployed, setup.parallel, *work


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
        | {"what": "simulated" if point.setup.source == "simulated" else "measured"}
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
    """Draw one metric of a series: a point for each run, a line at the median between steps."""
    values = [point.values[metric] or 0.0 for point in series.points]
    unit, scale = ("tok/s", 1.0) if metric.endswith("per_s") else seconds_unit(max(values))
    names = [point.run for point in series.points]
    places = [names.index(change.run) for change in changes]
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
    levels = [
        {"from": begin + 0.6, "to": end + 0.4, "level": median(values[begin:end]) * scale}
        for begin, end in pairwise([0, *places, len(values)])
    ]
    x = alt.X("n:Q", title="runs, by date").axis(tickMinStep=1, grid=False).scale(nice=False)
    y = alt.Y("value:Q", title=f"{metric.replace('_', ' ')}, {unit}").scale(zero=False)
    tooltip = tooltips(("run:N",), ("date:N",), ("release:N",), ("value:Q", unit, ".4~g"))
    points = alt.Chart(data(rows)).mark_point(color=BLUE).encode(x=x, y=y, tooltip=tooltip)
    lines = (
        alt.Chart(data(levels))
        .mark_rule(color=INK)
        .encode(x="from:Q", x2=alt.X2("to:Q"), y="level:Q")
    )
    steps = alt.Chart(data([{"at": place + 0.5} for place in places]))
    rules = steps.mark_rule(color=VERMILION, strokeDash=[5, 4]).encode(x="at:Q")
    title, layers = f"{metric}, {series.load.label}", [points, lines, *([rules] if places else [])]
    notes = [series.setup, "line: the median between steps; dashed: a step; a point: a run"]
    summary = f"{metric} of {len(values)} runs with {len(places)} steps"
    return figure(key, title, notes, layers, section="trend", summary=summary)
