"""The picture of a recommendation: its plans under more and more load."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import altair as alt
import numpy as np

from loadstone.report.charts.theme import (
    GREY,
    INK,
    SHAPES,
    Figure,
    Row,
    colour_by,
    data,
    figure,
    tooltips,
)

_OVER = 1.05
"""Where curves end: a little above the bound."""
_FLAG = 0.15
"""From flag to flag, on the same axis."""


class PlanCurve(NamedTuple):
    """A plan under more and more load of all its replicas: `worst` is the largest of bounded
    latency over bound there. `capacity`: the load at which a bound breaks; `share`: a replica's of
    the asked load."""

    name: str
    words: str
    loads: Sequence[float]
    worst: Sequence[float]
    capacity: float
    share: float

    def at(self, load: float) -> float:
        """Return latency over bound at a load."""
        value = float(np.interp(np.log(load), np.log(self.loads), self.worst))
        return min(value, _OVER)


def load_figure(curves: Sequence[PlanCurve], demand: float, load_unit: str) -> Figure:
    """Draw how near the tightest bound comes as the load of each plan grows, each with its name on
    a flag at its capacity: how far that is from the asked load is its headroom."""
    names = [curve.name for curve in curves]
    colour = colour_by("name", names, least=len(names) + 1)
    shape = alt.Shape("name:N", legend=None).scale(domain=names, range=list(SHAPES[: len(names)]))
    rows: list[Row] = [
        {"name": curve.name, "plan": curve.words, "load": load, "worst": worst}
        for curve in curves
        for load, worst in _cut_curve(curve, demand)
    ]
    shares = [
        {
            "name": curve.name,
            "plan": f"{curve.words}: its share of the asked load",
            "load": demand,
            "replica": curve.share,
            "worst": curve.at(demand),
        }
        for curve in curves
    ]
    flags = [
        {
            "name": curve.name,
            "load": curve.capacity,
            "worst": curve.at(curve.capacity),
            "height": 1 + _FLAG * rank,
            "label": f"{curve.name}: {curve.capacity / demand - 1:+,.0%}",
        }
        for rank, curve in enumerate(sorted(curves, key=lambda curve: curve.capacity), 1)
    ]
    loads = [demand, *(curve.capacity for curve in curves), *(float(row["load"]) for row in rows)]
    low, high = 0.9 * min(loads), 1.1 * max(loads)
    x = alt.X("load:Q", title=f"load of all replicas, {load_unit}").scale(
        type="log", domain=[low, high], nice=False
    )
    ticks = alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format=".2f")
    y = alt.Y("worst:Q", title="tightest latency / its bound", axis=ticks).scale(
        domain=[0, 1 + _FLAG * (len(curves) + 1)]
    )
    tooltip = tooltips(
        ("plan:N", "plan"), ("load:Q", load_unit, ".3g"), ("worst:Q", "latency / bound", ".2f")
    )
    base = alt.Chart(data(rows)).encode(x=x, y=y, color=colour, tooltip=tooltip)
    bound = alt.Chart(data([{"bound": 1}])).mark_rule(color=GREY, strokeDash=[4, 3])
    wanted = [
        {"load": demand, "label": f"asked: {demand:.4g}", "height": 1.0, "worst": 0.05, "foot": 0}
    ]
    line = alt.Chart(data(wanted)).encode(x=x)
    left = demand**2 < low * high  # where there is more room at its right
    flag = alt.Chart(data(flags)).encode(x=x)
    rings = alt.Chart(data(shares)).mark_point(size=200, filled=False, color=INK)
    layers = [
        bound.encode(y="bound:Q"),
        line.mark_rule(color=GREY).encode(y="foot:Q", y2="height:Q"),
        line.mark_text(align="left" if left else "right", dx=6 if left else -6, fontSize=12).encode(
            y=y, text="label:N"
        ),
        base.mark_line(),
        base.mark_point(filled=True, size=45).encode(shape=shape),
        rings.encode(x=x, y=y, tooltip=tooltip),
        flag.mark_rule().encode(y=y, y2="height:Q", color=colour),
        flag.mark_point(filled=True, size=90).encode(y="height:Q", color=colour, shape=shape),
        flag.mark_text(align="right", dx=-9, fontSize=12).encode(y="height:Q", text="label:N"),
    ]
    headrooms = ", ".join(str(row["label"]) for row in flags)
    return figure(
        "plans-load",
        "What each plan carries, and its headroom over what is asked",
        [
            "ring: the asked load; flag: the most that a plan carries within all bounds if the"
            " prediction is right, and how far above the asked load that is"
        ],
        layers,
        section="plans",
        summary=f"{len(curves)} plans under more and more load, and the headroom of each:"
        f" {headrooms}",
    )


def _cut_curve(curve: PlanCurve, demand: float) -> Iterator[tuple[float, float]]:
    """Return the points below the bound, and where the curve leaves it; from the asked load on."""
    if demand < curve.loads[0]:
        yield demand, curve.worst[0]
    previous = curve.loads[0], 0.0
    for load, worst in zip(curve.loads, curve.worst, strict=True):
        if worst > _OVER:
            share = (_OVER - previous[1]) / (worst - previous[1])
            yield previous[0] * (load / previous[0]) ** share, _OVER
            return
        yield load, worst
        previous = load, worst
