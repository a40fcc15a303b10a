"""Pictures of a recommendation: what each kind of GPU costs, how surely it holds, and finalists
under more load."""

from collections.abc import Sequence
from typing import NamedTuple

import altair as alt
import numpy as np

from loadstone.core.units import show_share
from loadstone.report.charts.theme import GREY, PALETTE, SHAPES, Figure, data, figure, tooltips
from loadstone.report.data.series import number_engines

_ROW = 46
"""Height of a row of names."""


class Finalist(NamedTuple):
    """`words` say its deployment, `name` is its shorthand; `cost`: dollars a month, or GPUs;
    `loads` of one replica, `worst` the largest of bounded latency over bound there; `share`: of the
    asked load, a replica's.
    """

    name: str
    words: str
    gpu: str
    engine: str
    replicas: int
    cost: float
    low: float
    high: float
    p_slo: float
    loads: Sequence[float]
    worst: Sequence[float]
    share: float


def cost_figure(best: Sequence[Finalist], cost_unit: str, every: Sequence[Finalist]) -> Figure:
    """Draw a row for each plan, the cheapest first: and what it costs with more or fewer replicas.
    `every`: those of the other chart too, which share their colours."""
    ordered = sorted(best, key=lambda plan: plan.cost)
    kinds = [(plan.gpu, plan.engine) for plan in ordered]
    suffixes = [
        f", plan {best.index(plan) + 1}" * (kinds.count((plan.gpu, plan.engine)) > 1)
        for plan in ordered
    ]
    rows = [
        {
            "row": f"{plan.gpu}\n{plan.engine}{suffix}",
            "cost": plan.cost,
            "low": plan.low,
            "high": plan.high,
            "p": plan.p_slo,
            "gpu": plan.gpu,
            "engine": plan.engine,
            "plan": plan.words,
            "label": f"{plan.cost:,.0f}, {show_share(plan.p_slo)} sure",
        }
        for plan, suffix in zip(ordered, suffixes, strict=True)
    ]
    base = alt.Chart(data(rows))
    names = [str(row["row"]) for row in rows]
    axis = alt.Axis(
        labelExpr="split(datum.value, '\\n')", labelLimit=180, ticks=False, domain=False
    )
    y = alt.Y("row:N", title=None, sort=names, axis=axis).scale(domain=names)
    limit = max(plan.high for plan in ordered)
    ticks = alt.Axis(format=",d")
    x = alt.X("cost:Q", title=cost_unit, axis=ticks).scale(domain=[0, 1.08 * limit], nice=False)
    reach = base.mark_rule(strokeWidth=2.5, strokeOpacity=0.55).encode(
        x="low:Q", x2=alt.X2("high:Q"), y=y
    )
    tooltip = tooltips(("plan:N", "plan"), ("cost:Q", cost_unit, ",.0f"), ("p:Q", "sure", ".0%"))
    looks = _looks(every, legend=False)
    dots = base.mark_point(filled=True, size=130).encode(x=x, y=y, tooltip=tooltip, **looks)
    texts = base.mark_text(dy=-13, fontSize=12).encode(x=x, y=y, text="label:N")
    first = ordered[0]
    return figure(
        "plans-cost",
        "What certainty costs on each GPU",
        ["dot: the plan; bar: as many replicas as 80% of the model's errors ask for"],
        (reach.encode(color=looks["color"]) + dots + texts).properties(
            width=460, height=max(290, _ROW * len(rows))
        ),
        section="plans",
        summary=(
            f"{len(rows)} plans; the cheapest, {first.words}, costs {first.cost:,.0f} {cost_unit}"
        ),
    )


def load_figure(finalists: Sequence[Finalist], load_unit: str) -> Figure:
    """Draw how near the tightest bound comes as a replica's load grows: its capacity is where it
    reaches 1. The share of the asked load that each plan gives a replica is marked on its curve."""
    rows = [
        {
            "gpu": plan.gpu,
            "engine": plan.engine,
            "plan": plan.words,
            "who": plan.name,
            "load": load,
            "worst": worst,
        }
        for plan in finalists
        for load, worst in [
            *(
                (plan.share, value) for value in plan.worst[:1] if plan.share < plan.loads[0]
            ),  # it is no longer there
            *zip(plan.loads, plan.worst, strict=True),
        ]
        if worst < 20
    ]
    shares = [
        {
            "gpu": plan.gpu,
            "plan": f"{plan.words}: its share of the asked load",
            "load": plan.share,
            "worst": float(np.interp(np.log(plan.share), np.log(plan.loads), plan.worst)),
        }
        for plan in finalists
        if plan.loads
    ]
    x = alt.X("load:Q", title=f"load of one replica, {load_unit}").scale(
        type="log", nice=False, padding=12
    )
    y = alt.Y("worst:Q", title="tightest latency / its bound").scale(domain=[0, 2])
    tooltip = tooltips(
        ("plan:N", "plan"), ("load:Q", load_unit, ".3g"), ("worst:Q", "latency / bound", ".2f")
    )
    looks = _looks(finalists, legend=True)
    base = alt.Chart(data(rows)).encode(x=x, y=y, detail="who:N", tooltip=tooltip)
    line = base.mark_line(clip=True).encode(color=looks["color"])
    points = base.mark_point(filled=True, size=45, clip=True).encode(**looks)
    marks = alt.Chart(data(shares)).mark_point(
        filled=False, size=260, strokeWidth=2, shape="circle", color="#222222"
    )
    bound = (
        alt.Chart(data([{"bound": 1}])).mark_rule(color=GREY, strokeDash=[4, 3]).encode(y="bound:Q")
    )
    return figure(
        "plans-load",
        "How far one replica carries, and what it is asked for",
        [
            "rings: a replica's share of the asked load; dashed: the bound, where a curve crosses"
            " it is the capacity"
        ],
        bound + line + points + marks.encode(x=x, y=y, tooltip=tooltip),
        section="plans",
        summary=f"{len(finalists)} finalists under more and more load, with the asked load marked",
    )


def _looks(plans: Sequence[Finalist], *, legend: bool) -> dict[str, alt.Color | alt.Shape]:
    """Give each engine its hue, and each GPU its shape."""
    engines = number_engines(sorted({plan.engine for plan in plans}))
    gpus = sorted({plan.gpu for plan in plans})
    hues = [PALETTE[number % len(PALETTE)] for number in engines.values()]
    shapes = [SHAPES[number % len(SHAPES)] for number in range(len(gpus))]
    colour = alt.Color("engine:N", legend=None).scale(domain=list(engines), range=hues)
    shape = alt.Shape("gpu:N", legend=None).scale(domain=gpus, range=shapes)
    if legend:
        colour = colour.legend(title=None, columns=3)
        shape = shape.legend(title=None, columns=3, symbolFillColor=GREY, symbolStrokeColor=GREY)
    return {"color": colour, "shape": shape}
