"""Side by side: bars of cells that differ in one thing alone, and GPU against GPU."""

from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt

from loadstone.analyse.compare.result import MetricRow
from loadstone.core.groups import by_key
from loadstone.core.units import show_gpus, show_number
from loadstone.report.charts.captions import CROSSED, unit_of
from loadstone.report.charts.layers import bounds, cross_out, warning
from loadstone.report.charts.theme import (
    GREY,
    INK,
    VERMILION,
    WIDTH,
    Figure,
    Row,
    data,
    figure,
    stack_layers,
    tooltips,
)
from loadstone.report.data.frames import Measure, load_label
from loadstone.report.data.pairs import (
    UNSETTLED,
    Fact,
    Ratio,
    has_unsettled,
    heaviest,
    interval_words,
)
from loadstone.report.data.points import FACTS, CellPoint
from loadstone.report.data.series import lengths_label, list_common, series_of
from loadstone.report.data.wording import join, requests_a

ROWS = 24
"""Bars, or rows of a picture, beyond these are left to the table."""
_NEAR, _FAR = (1, 1.2, 1.5, 2, 3), (1, 2, 5, 10, 30, 100)
"""Ticks of ratios, both ways from 1, where all are within a factor of 3 or not."""
_LANE = 11
"""Height of a measure's own part of a row, so that no interval lies on another."""


def side_by_side(
    sets: Sequence[Sequence[CellPoint]], measure: Measure, fact: Fact, words: str, *, absence: str
) -> Figure | None:
    """Draw a group of bars for each set of switches(), a bar for each value of what was switched.

    `words`: what that is; `absence`: what it is called where there is none of it.
    """
    every = [point for switched in sets for point in switched]
    unit, scale = unit_of(measure, every)
    rows = _bar_rows(every, measure, fact, absence, scale)
    if not rows:
        return None
    lengths = {lengths_label(point) for point in every if point.demand.prefix == ""}
    loads = {(point.kind, point.load) for point in every}
    return figure(
        f"{fact}-{measure.key}",
        f"{measure.name}: {words}",
        [
            join(
                *list_common(every, without=(fact,)),
                lengths.pop() if len(lengths) == 1 else "",
                load_label(every[0]) if len(loads) == 1 else "",
                by=" · ",
            ),
            measure.definition.format(since=every[0].since, window=every[0].window),
            join(
                requests_a("bar", (point.ok for point in every)),
                "intervals are in the table",
                "pale: the load carries a warning" if any("warned" in row for row in rows) else "",
                by="; ",
            ),
        ],
        _bars(rows, f"{measure.name} ({unit})", absence),
        section=fact,
        summary=f"{measure.name} in {unit}, {words}: "
        + "; ".join(f"{row['set']} {row['value']} {show_number(row['y'], 4)}" for row in rows[:12]),
    )


def _bar_rows(
    every: Sequence[CellPoint], measure: Measure, fact: Fact, absence: str, scale: float
) -> list[Row]:
    names = [series.label for series in series_of(every, without=(fact,))]
    name_of = dict(zip(map(id, every), names, strict=True))
    several = len({(point.kind, point.load) for point in every}) > 1
    rows: list[Row] = []
    for point, height in measure.values(every):
        value = FACTS[fact](point) or absence
        row = {
            "set": join(name_of[id(point)], load_label(point) if several else "", by=" · "),
            "value": value,
            "y": height * scale,
            "order": point.load,
            "n": point.ok,
            "said": f"{show_number(height * scale, 4)} {value}",
        }
        rows.append(row | warning(point))
    return rows[: 2 * ROWS]


def _bars(rows: Sequence[Row], title: str, absence: str) -> dict[str, Any]:
    values = sorted({row["value"] for row in rows}, key=lambda value: (value != absence, value))
    ordered = sorted(rows, key=lambda row: (row["set"].partition(" · ")[0], row["order"]))
    order = list(dict.fromkeys(row["set"] for row in ordered))
    base = alt.Chart(data(rows)).encode(
        y=alt.Y("set:N", title=None, sort=order).axis(labelLimit=300),
        yOffset=alt.YOffset("value:N", sort=values),
    )
    bars = base.mark_bar().encode(
        x=alt.X("y:Q", title=title)
        .axis(tickCount=5)
        .scale(domain=[0, 1.45 * max(row["y"] for row in rows)]),
        color=alt.value(GREY),
        opacity=alt.condition("datum.warned", alt.value(0.4), alt.value(1)),
        tooltip=tooltips(("set:N",), ("value:N",), ("y:Q", title, ",.4~r"), ("n:Q", "requests")),
    )
    texts = base.mark_text(align="left", dx=4, fontSize=12).encode(x="y:Q", text="said:N")
    return stack_layers(
        [bars, texts], width=WIDTH - 60, height=max(120, len(order) * (18 * len(values) + 12))
    )


def ratio_figures(ratios: Sequence[Ratio]) -> Iterator[Figure]:
    """Draw a picture for each pair of GPUs: a row for each model, number of GPUs and length, a mark
    per measure."""
    pairs = by_key(
        ((ratio.over.setup.gpu, ratio.under.setup.gpu), ratio) for ratio in heaviest(ratios)
    )
    for (over, under), compared in pairs.items():
        points = [ratio.over for ratio in compared]
        rows, order = _ratio_rows(compared, over)
        shown = [row for row in rows if row["row"] in order[:ROWS]]
        beyond = f"; {len(order) - ROWS} more rows are in the table" if len(order) > ROWS else ""
        bars = "no interval: too few generations of requests"
        if any("low" in row for row in shown):
            bars = f"bars: {interval_words(compared)}, and how much repeats differ"
        yield figure(
            f"gpus-{over}-{under}",
            f"{over} against {under}",
            [
                " · ".join(_common_words(points)),
                f"Right of 1 {over} is better, whatever the measure: latencies are inverted"
                + beyond,
                (
                    "At the highest load that both keep up with; model, engine, GPU count and"
                    " lengths are the same"
                ),
                join(
                    bars,
                    CROSSED if any("warned" in row for row in shown) else "",
                    UNSETTLED if has_unsettled(compared) else "",
                    by="; ",
                ),
            ],
            _forest(shown, order, f"times better on {over} than on {under} (1: the same)"),
            section="gpus",
            summary=f"{over} over {under}: {_speak(shown)}",
        )


def _ratio_rows(compared: Sequence[Ratio], gpu: str) -> tuple[list[Row], list[str]]:
    """Return a row for each ratio, and the names of rows in their order."""
    points = [ratio.over for ratio in compared]
    several_loads = len(set(map(load_label, points))) > 1
    several_lengths = len(set(map(lengths_label, points))) > 1
    rows: list[Row] = []
    places: list[tuple[Any, str]] = []
    for ratio, series in zip(compared, series_of(points, without=("gpu",)), strict=True):
        point, name = ratio.over, series.label
        tokens = point.demand.output_tokens
        row = join(
            name if name != gpu else "",
            load_label(point) if several_loads else "",
            f"{tokens:,} out" if several_lengths and tokens else "",
            by=" · ",
        )
        places.append(((name, point.kind, point.load, point.demand.near_output or 0), row or gpu))
        numbers: Row = {"row": row or gpu, "measure": ratio.measure.name, "times": ratio.times}
        rows.append(numbers | bounds(ratio.effect) | warning(point, ratio.under))
    ordered = sorted(places, key=lambda place: place[0])
    return rows, list(dict.fromkeys(name for _, name in ordered))


def _common_words(points: Sequence[CellPoint]) -> Iterator[str]:
    """Yield what all have in common, of the GPU their number alone."""
    last = points[-1].setup
    for part in list_common(points, without=("gpu",)):
        if part != last.hardware:
            yield part
        elif last.gpus:
            yield f"{show_gpus(last.gpus)} each"


def _speak(rows: Sequence[Row]) -> str:
    """Return ratios in words, for those who do not see them."""
    return "; ".join(f"{row['row']} {row['measure']} {row['times']:.2f}×" for row in rows[:12])


_CHANGED = {
    "output_tokens_per_s": "output throughput",
    "total_tokens_per_s": "total throughput",
} | {
    f"{base}_{statistic}": f"{base.upper()} {statistic}"
    for base in ("ttft", "tpot", "e2e")
    for statistic in ("p50", "p99")
}


def change_figure(cells: Sequence[tuple[str, Sequence[MetricRow]]]) -> Figure | None:
    """Draw B over A, a row for each load, a mark for each of the metrics that are asked for first,
    coloured where A does better. None where they have no ratio."""
    rows = [
        _change_row(load, metric, metric.ratio)
        for load, metrics in cells
        for metric in metrics
        if metric.name in _CHANGED and metric.ratio
    ]
    if not rows:
        return None
    order = list(dict.fromkeys(row["row"] for row in rows))[:ROWS]
    shown = [row for row in rows if row["row"] in order]
    bounded = any("low" in row for row in shown)
    return figure(
        "change",
        "B over A, as in the table",
        [
            "Of throughput more is better, of latencies less; orange: B does worse",
            "bars: 95% interval" if bounded else "no interval: too little data",
        ],
        _forest(shown, order, "B / A (1: the same)"),
        section="change",
        summary=_speak(shown),
    )


def _change_row(load: str, metric: MetricRow, ratio: float) -> Row:
    """Make the row of a metric; `worse`: B does, whichever way is better."""
    row: Row = {"row": load, "measure": _CHANGED[metric.name], "times": ratio}
    row["worse"] = (ratio < 1) == ("throughput" in row["measure"]) and ratio != 1
    if metric.low and metric.high:
        row |= {"low": metric.low, "high": metric.high}
    return row


def _forest(rows: Sequence[Row], order: Sequence[str], title: str) -> dict[str, Any]:
    """Draw ratios with their intervals around a line at 1, which is in the middle: as far to the
    right is as good as to the left is bad.
    """
    measures = list(dict.fromkeys(row["measure"] for row in rows))
    values = [row[name] for row in rows for name in ("times", "low", "high") if row.get(name)]
    far = 1.15 * max(1.2, *values, *(1 / value for value in values))
    ticks = _NEAR if far < 4 else _FAR
    x = (
        alt.X("times:Q", title=title)
        .scale(type="log", domain=[1 / far, far], nice=False)
        .axis(
            values=[1 / tick for tick in ticks[:0:-1]] + list(ticks),
            format=".2~r",
            tickCount=20,
            labelOverlap=False,
            titleAnchor="end",  # it may be wider than a narrow picture's axis
        )
    )
    y = alt.Y("row:N", title=None, sort=list(order)).axis(labelLimit=400, grid=True)
    lane = alt.YOffset("measure:N", sort=measures).scale(paddingOuter=0.7)
    colour = alt.condition("datum.worse", alt.value(VERMILION), alt.value(INK))
    base = alt.Chart(data(rows)).encode(y=y, yOffset=lane, color=colour)
    bounded = base.transform_filter("isValid(datum.low)").mark_rule(opacity=0.55)
    marks = base.mark_point(size=110, opacity=0.95).encode(
        x=x,
        shape=alt.Shape("measure:N").scale(domain=measures).legend(title=None, columns=1),
        tooltip=tooltips(("row:N",), ("measure:N",), ("times:Q", title, ".3~r")),
    )
    even = alt.Chart(data([{"times": 1}])).mark_rule(color=GREY, strokeWidth=2).encode(x="times:Q")
    layers = [
        even,
        bounded.encode(x="low:Q", x2=alt.X2("high:Q")),
        *cross_out(marks, rows, x, y, yOffset=lane),
    ]
    return stack_layers(
        layers, width=WIDTH - 100, height=max(100, _LANE * len(measures) * len(order))
    )
