"""A recommendation as a page of its own, that needs no network."""

from __future__ import annotations

from pathlib import Path

from loadstone.core.errors import InputError
from loadstone.core.files import explain_os_error
from loadstone.recommend.result import Recommendation
from loadstone.recommend.text import answer, describe_launch, footer, plan_table, remarks, why_measure
from loadstone.report.charts.plans import Finalist, cost_figure, load_figure
from loadstone.report.pages.html import frame_page, render
from loadstone.report.table import Table


def write_page(document: Recommendation, path: Path) -> None:
    """Raises InputError where it cannot be written."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"-o {path}: a recommendation is an HTML page; name it e.g. plans.html")
    finalists = _finalists(document)
    priced = document.plans[0].usd_per_month is not None
    unit = document.traffic.unit
    content = render(
        "plans.html",
        answer=answer(document),
        plans=plan_table(document, [f"{plan.replicas} × {plan.deployment}" for plan in document.plans]),
        remarks=[*remarks(document), *document.notes],
        figures=[cost_figure(finalists, "dollars a month" if priced else "GPUs"), load_figure(finalists, unit)],
        why=why_measure(document),
        command=document.measure_next.command if document.measure_next else "",
        launch="\n".join(describe_launch(document.plans[0])),
        rejected=_rejected(document),
        foot=footer(document),
    )
    with explain_os_error(f"-o {path}: cannot be written", "name another file"):
        path.write_text(frame_page(f"What to deploy for {document.model}", content), encoding="utf-8")


def _rejected(document: Recommendation) -> Table:
    rows = [
        [each.deployment, each.why, f"{each.count - 1:,}" if each.count > 1 else ""] for each in document.rejected
    ]
    return Table(title="Not advised", heads=["deployment", "why", "alike"], align="llr", rows=rows)


def _finalists(document: Recommendation) -> list[Finalist]:
    rows = []
    for each in document.finalists:
        cost = each.usd_per_month if each.usd_per_month is not None else float(each.gpus)
        where, _, options = each.deployment.partition("@")[2].partition("/")
        parts = [part for part in options.split(",") if not part.startswith("max_")]
        rows.append(
            Finalist(
                name=each.deployment,
                short=f"{where} {' '.join(part.removeprefix('engine=') for part in parts)}",
                replicas=each.replicas,
                cost=cost,
                low=cost * each.needed_low,
                high=cost * each.needed_high,
                p_slo=each.p_slo,
                asked=each.asked,
                front=each.front,
                loads=each.loads,
                worst=each.worst,
            )
        )
    return rows
