"""Draws the runs of one setup by date, with the steps between them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import altair as alt

from loadstone.analyse.trend import ChangePoint, TrendSeries
from loadstone.report.charts.theme import BLUE, INK, VERMILION, Figure, data, figure, seconds_unit, tooltips


def trend_figure(series: TrendSeries, metric: str, changes: Sequence[ChangePoint], key: str) -> Figure:
    """Draw one metric of a series: a point for each run, a line at the median between steps."""
    values = [point.values[metric] or 0.0 for point in series.points]
    unit, scale = ("tok/s", 1.0) if metric.endswith("per_s") else seconds_unit(max(values))
    names = [point.run for point in series.points]
    places = sorted(names.index(change.run) for change in changes)
    rows = [
        {
            "n": at, "value": value * scale, "run": point.run, "date": point.created[:16].replace("T", " "),
            "release": point.release or "not told",
        }
        for at, (point, value) in enumerate(zip(series.points, values, strict=True), 1)
    ]  # fmt: skip
    levels = [
        {"from": begin + 0.6, "to": end + 0.4, "level": median(values[begin:end]) * scale}
        for begin, end in pairwise([0, *places, len(values)])
    ]
    # Where the release changes it is named, else the date.
    labels = [
        str(row["release"]) if row["release"] != "not told" else str(row["date"])[:10] for row in rows
    ]  # fmt: skip
    axis = alt.Axis(labelExpr=f"{json.dumps(['', *labels])}[datum.value]", tickMinStep=1, grid=False, labelAngle=-30)
    x = alt.X("n:Q", title="runs by date", axis=axis, scale=alt.Scale(nice=False, domain=[0.5, len(values) + 0.5]))
    y = alt.Y(
        "value:Q", title=f"{metric.replace('_', ' ').removesuffix(' per s')}, {unit}", scale=alt.Scale(zero=False)
    )
    told = tooltips(("run:N",), ("date:N",), ("release:N",), ("value:Q", f"{metric}, {unit}", ".4~g"))
    points = alt.Chart(data(rows)).mark_point(color=BLUE).encode(x=x, y=y, tooltip=told)
    lines = alt.Chart(data(levels)).mark_rule(color=INK).encode(x=alt.X("from:Q"), x2="to:Q", y=alt.Y("level:Q"))
    steps = alt.Chart(data([{"at": place + 0.5} for place in places]))
    rules = steps.mark_rule(color=VERMILION, strokeDash=[5, 4]).encode(x=alt.X("at:Q"))
    return figure(
        key,
        f"{metric}, {series.load.label}",
        [series.setup, "line: the median between steps; dashed: a step; a point: a run"],
        [points, lines, *([rules] if places else [])],
        section="trend",
        summary=f"{metric} of {len(values)} runs with {len(places)} steps",
    )
