"""A recommendation as a person reads it: the answer first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadstone.core.units import show_seconds
from loadstone.recommend.result import Plan, Recommendation

if TYPE_CHECKING:
    from rich.console import RenderableType


def render(document: Recommendation, rejected: int = 8) -> list[RenderableType]:
    from rich.table import Table

    best = document.plans[0]
    parts: list[RenderableType] = [_answer(document, best), ""]
    table = Table(box=None, pad_edge=False, header_style="")
    priced = best.usd_per_month is not None
    heads = ["plan", "GPUs", "P(SLO)", "headroom", "TTFT p50", "p99", "TPOT p50", "p99"]
    for head in [*heads, "$ a month", "$/M out", "80 %"] if priced else heads:
        table.add_column(head, justify="right")
    for number, plan in enumerate(document.plans, 1):
        parts.append(f"{number}: {plan.replicas} × {plan.deployment}")
        row = [
            str(number),
            str(plan.gpus),
            f"{plan.p_slo:.0%}",
            f"{plan.headroom:+.0%}",
            *(show_seconds(each) for each in (plan.ttft_s.p50, plan.ttft_s.p99, plan.tpot_s.p50, plan.tpot_s.p99)),
        ]
        if plan.usd_per_month is not None and plan.usd_per_mtok is not None:
            mtok = plan.usd_per_mtok
            row += [f"{plan.usd_per_month.value:,.0f}", f"{mtok.value:.2f}", f"{mtok.low:.2f} to {mtok.high:.2f}"]
        table.add_row(*row)
    parts.append("")
    parts += [table, ""]
    parts += [f"{number}: {plan.binds}; {plan.helps}" for number, plan in enumerate(document.plans, 1)]
    parts += ["", *document.notes]
    if document.rejected:
        parts += ["", "Not advised:"]
        for each in document.rejected[:rejected]:
            many = f" (and {each.count - 1:,} like it)" if each.count > 1 else ""
            parts.append(f"  {each.deployment}{many}: {each.why}")
        if len(document.rejected) > rejected:
            parts.append(f"  {len(document.rejected) - rejected} more kinds with --json")
    if document.measure_next is not None:
        step = document.measure_next
        unit = "$ a month" if priced else "GPUs"
        parts += [
            "",
            f"The {step.minutes:g} minutes that are worth most: expected regret falls from {step.regret_now:,.3g} to "
            f"{step.regret_after:,.3g} {unit}:",
            f"  {step.command}",
            "then give its run folder to --with.",
        ]
    else:
        parts += ["", "No single measurement would change the choice by more than it costs to be wrong."]
    parts += ["", "To start one replica of plan 1:", *(f"  {line}" for line in best.launch)]
    if document.study:
        parts += ["", f"{document.study} measures all of these: loadstone study run {document.study}"]
    ranking_s, simulating_s = document.seconds["ranking"], document.seconds["simulating"]
    ranked, finalists = f"{document.deployments_ranked:,} deployments", len(document.finalists)
    parts += ["", f"{ranked} ranked in {ranking_s:.1f} s, {finalists} simulated in {simulating_s:.1f} s"]
    return parts


def _answer(document: Recommendation, best: Plan) -> str:
    traffic = document.traffic
    load = f"{traffic.value:g} requests/s" if traffic.kind == "rate" else f"{traffic.value:g} requests under way"
    bounds = ", ".join(
        f"{each.metric} p{each.quantile * 100:g} < {show_seconds(each.bound_s)}" for each in document.slo
    )
    return (
        f"Deploy {best.replicas} × {best.deployment}: {best.gpus} GPU{'' if best.gpus == 1 else 's'} "
        f"hold {bounds} at {load} "
        f"({traffic.input_tokens:,.0f} tokens in, {traffic.output_tokens:,.0f} out) with a probability of "
        f"{best.p_slo:.0%}."
    )
