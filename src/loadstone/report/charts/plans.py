"""Pictures of a recommendation: cost against the probability that the bounds hold, and finalists under more load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import altair as alt

from loadstone.report.charts.theme import PALETTE, SHAPES, Figure, colour_by, data, figure, tooltips

_MOST_CURVES = 8


class Finalist(NamedTuple):
    """`cost`: dollars a month, or GPUs; `asked`: p_slo is of the asked load; `loads` of one replica in `load_unit`,
    `worst` the largest of bounded latency over bound there."""

    name: str
    short: str
    replicas: int
    cost: float
    low: float
    high: float
    p_slo: float
    asked: bool
    front: bool
    loads: Sequence[float]
    worst: Sequence[float]


def cost_figure(finalists: Sequence[Finalist], cost_unit: str) -> Figure:
    """Draw what is paid for how much certainty. The front: nothing is both cheaper and surer."""
    rows = [
        {
            "plan": f"{each.replicas} × {each.name}", "deployment": each.short, "cost": each.cost,
            "low": each.low, "high": each.high, "p": each.p_slo, "front": each.front,
            "by": "the asked load, simulated" if each.asked else "loads nearby",
        }
        for each in finalists
    ]  # fmt: skip
    names = [each.short for each in finalists]
    base = alt.Chart(data(rows))
    x = alt.X("cost:Q", title=cost_unit, scale=alt.Scale(zero=False, nice=True))
    y = alt.Y(
        "p:Q", title="probability that all bounds hold", axis=alt.Axis(format=".0%"), scale=alt.Scale(domain=[0, 1])
    )
    reach = base.mark_rule(opacity=0.25, strokeWidth=2).encode(x=alt.X("low:Q"), x2="high:Q", y=y)
    front = (
        base.transform_filter("datum.front")
        .mark_line(color="#888888", strokeDash=[4, 3])
        .encode(x=x, y=y, order=alt.Order("cost:Q"))
    )
    shapes = [SHAPES[at // len(PALETTE) % len(SHAPES)] for at in range(len(names))]  # where colours come again
    shape = alt.Shape("deployment:N", scale=alt.Scale(domain=names, range=shapes), legend=alt.Legend(title=None))
    points = base.mark_point(filled=True, size=110).encode(
        x=x,
        y=y,
        shape=shape,
        color=colour_by("deployment", names, columns=2, labelLimit=240),
        fillOpacity=alt.condition(alt.datum.by == "loads nearby", alt.value(0.0), alt.value(1.0)),
        opacity=alt.condition("datum.front", alt.value(1.0), alt.value(0.45)),
        tooltip=tooltips(("plan:N", "plan"), ("cost:Q", cost_unit, ",.0f"), ("p:Q", "P(SLO)", ".0%"), ("by:N", "by")),
    )
    best = max(finalists, key=lambda each: each.p_slo)
    return figure(
        "plans-cost",
        "What certainty costs",
        [
            "dashed: the front, where nothing is both cheaper and surer; bars: cost of as many as are needed, 80 %",
            "hollow: not simulated under the asked load, where others are better; P is of loads nearby",
        ],
        reach + front + points,
        section="plans",
        summary=f"{len(finalists)} finalists; the surest, {best.short}, holds with {best.p_slo:.0%}",
    )


def load_figure(finalists: Sequence[Finalist], load_unit: str) -> Figure:
    """Draw how near the tightest bound comes as a replica's load grows: its capacity is where it reaches 1."""
    chosen = finalists[:_MOST_CURVES]
    rows = [
        {"deployment": each.short, "plan": each.name, "load": load, "worst": worst}
        for each in chosen
        for load, worst in zip(each.loads, each.worst, strict=True)
        if worst < 20
    ]
    base = alt.Chart(data(rows)).encode(
        x=alt.X("load:Q", title=f"load of one replica, {load_unit}", scale=alt.Scale(type="log", nice=False)),
        y=alt.Y("worst:Q", title="tightest latency / its bound", scale=alt.Scale(domain=[0, 2])),
        color=colour_by("deployment", [each.short for each in chosen], columns=2, labelLimit=240),
        tooltip=tooltips(("plan:N", "plan"), ("load:Q", load_unit, ".3g"), ("worst:Q", "latency / bound", ".2f")),
    )
    line = alt.Chart(data([{"bound": 1}])).mark_rule(color="#888888", strokeDash=[4, 3]).encode(y="bound:Q")
    return figure(
        "plans-load",
        "How far each carries",
        ["dashed: the bound; where a curve crosses it is the capacity of a replica by the best prediction"],
        line + base.mark_line(clip=True) + base.mark_point(filled=True, size=40, clip=True),
        section="plans",
        summary=f"{len(chosen)} finalists under more and more load",
    )
