"""A recommendation as a page of its own, that needs no network."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from loadstone.catalogue.checkpoints import published
from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.catalogue.engines import engine_title
from loadstone.catalogue.find import gpu_title
from loadstone.core.errors import InputError
from loadstone.core.files import explain_os_error
from loadstone.core.units import show_gpus, show_seconds, show_share
from loadstone.engines import rules_of
from loadstone.recommend.demand.options import HOURS_PER_MONTH
from loadstone.recommend.tell.document import (
    DeploymentPlan,
    FinalistPoint,
    GpuChoice,
    LatencySpan,
    Recommendation,
)
from loadstone.recommend.tell.mixed import (
    MixRecommendation,
    answer,
    describe_fleets,
    foot,
    list_limits,
    list_refused,
    list_starts,
    say_saving,
    show_class,
    table_classes,
    table_partitions,
)
from loadstone.recommend.tell.text import (
    claim,
    describe_launch,
    footer,
    plan_table,
    remarks,
    say_nearest,
    show_bounds,
    show_lengths,
    show_stated,
    show_traffic,
    why_measure,
)
from loadstone.report.charts.plans import PlanCurve, load_figure
from loadstone.report.charts.theme import Figure
from loadstone.report.data.wording import spell
from loadstone.report.pages.html import frame_page, render
from loadstone.report.table import Table

_NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four", 8: "eight"}
_STUDY_BYTES = 100_000
_MAX_CURVES = 6
"""Plans that are drawn under more load: of more, names would hide the curves."""


def write_page(document: Recommendation, path: Path, command: Sequence[str] = ()) -> None:
    """Write the page. `command`: what was asked, to be asked again. Raises InputError where it
    cannot be written."""
    _check_name(path)
    best, numbered = document.plans[0], list(enumerate(document.plans, 1))
    several = len(document.by_gpu) > 1
    names = [f"{number}. {_words(plan)}" for number, plan in numbered]
    reason, _, further = spell(best.why).partition(". ")
    content = render(
        "plans.html",
        model=document.model,
        title=_title(best, document.holds, document.confidence),
        answer=spell(f"{claim(document)}.", long=True),
        assumptions=_list_assumptions(document),
        cards=[_make_card(number, plan) for number, plan in numbered],
        confidence=document.confidence,
        reason=reason,
        further=further,
        by_gpu=_table_gpus(document) if several else None,
        plans=msgspec.structs.replace(plan_table(document, names), words=True),
        shorthands=[
            f"Plan {number}: {plan.replicas} × {plan.deployment}" for number, plan in numbered
        ],
        remarks=[
            spell(line)
            for line in (*remarks(document, gpus=False), *document.notes)
            if line != f"Plan 1 is {best.why}."  # it is said above
        ],
        figures=_draw_plans(document),
        why=why_measure(document),
        measure=document.measure_next.command if document.measure_next else "",
        launch="\n".join(describe_launch(best)),
        command=shlex.join(command),
        study=document.study,
        study_text=_read_study(document.study),
        rejected=_table_rejected(document),
        foot=footer(document),
    )
    with explain_os_error(f"-o {path}: cannot be written", "name another file"):
        path.write_text(
            frame_page(f"What to deploy for {document.model}", content), encoding="utf-8"
        )


def write_mix_page(document: MixRecommendation, path: Path, command: Sequence[str] = ()) -> None:
    """Write the page of fleets for classes of traffic, as write_page() does."""
    _check_name(path)
    best = document.partitions[0]
    cards = []
    for number, fleet in enumerate(best.fleets, 1):
        title = f"Fleet {number}: {' + '.join(fleet.classes)}{' by priority' * fleet.by_priority}"
        card = _make_card(number, fleet.plan) | {"title": title}
        if len(fleet.classes) > 1:  # whose latencies are each their own
            facts = ("Headroom", "Limit")
            card["facts"] = {fact: card["facts"][fact] for fact in facts}
        cards.append(card)
    content = render(
        "plans.html",
        model=document.model,
        title=answer(document),
        answer=say_saving(document),
        assumptions={of_class.name: spell(show_class(of_class)) for of_class in document.classes},
        measure="",
        reason="",
        figures=[],
        plans=None,
        by_gpu=None,
        study_text="",
        cards_title="Fleets",
        cards=cards,
        confidence=document.confidence,
        tables=[table_partitions(document), table_classes(document)],
        remarks=[*list_limits(best), *map(spell, document.notes)],
        shorthands=describe_fleets(best),
        launch="\n".join(list_starts(best)),
        started="each fleet",
        command=shlex.join(command),
        kinds="ways to divide the classes",
        rejected=Table(
            heads=["fleets", "why"],
            align="ll",
            rows=list_refused(document),
            words=True,
        ),
        foot=foot(document),
    )
    with explain_os_error(f"-o {path}: cannot be written", "name another file"):
        path.write_text(
            frame_page(f"Fleets for classes of traffic to {document.model}", content),
            encoding="utf-8",
        )


def _check_name(path: Path) -> None:
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"-o {path}: a recommendation is an HTML page; name it e.g. plans.html")


def _list_assumptions(document: Recommendation) -> dict[str, str]:
    """List what the plans stand on, each with its name."""
    traffic = f"{show_traffic(document)}, {show_lengths(document)} on average"
    if document.traffic.trace:
        traffic += f", from {document.traffic.trace}"
    bounds = f"{spell(show_bounds(document))}; with a probability of"
    prices = ", ".join(f"{gpu} ${price:,.2f}" for gpu, price in sorted(_prices(document).items()))
    return {
        "Traffic": traffic,
        "SLO": f"{bounds} {show_share(document.confidence)} or more",
        "Per GPU and hour": prices or "no price is given: plans are ranked by their GPUs",
        "Hours per month": f"{HOURS_PER_MONTH:g}, all replicas running",
    }


def _prices(document: Recommendation) -> dict[str, float]:
    """Return dollars per hour of each GPU, of finalists that stand on one kind alone."""
    prices = {}
    for point in document.finalists:
        kinds = _gpus(parse_deployment(point.deployment))
        if len(kinds) == 1 and point.usd_per_month is not None:
            prices[kinds[0]] = point.usd_per_month / point.gpus / HOURS_PER_MONTH
    return prices


def _make_card(number: int, plan: DeploymentPlan) -> dict[str, Any]:
    """Show a plan at a glance; `facts`: each with its name."""
    cost, reach = show_gpus(plan.gpus), ""
    if plan.usd_per_month is not None and plan.usd_per_mtok is not None:
        month = plan.usd_per_month
        cost = f"${month.value:,.0f} a month"
        if month.low < month.high:
            reach = f"${month.low:,.0f} to ${month.high:,.0f} for 80% of the model's errors, "
        way = "in" if plan.e2e_s else "out"
        reach += f"${plan.usd_per_mtok.value:.2f} per million tokens {way}"

    def show(latency: LatencySpan) -> str:
        return f"{show_seconds(latency.p50)}, {show_seconds(latency.p99)}"

    return {
        "title": f"Plan {number}",
        "words": _words(plan),
        "cost": cost,
        "range": reach,
        "p_slo": plan.p_slo,
        "sure": f"{show_share(plan.p_slo)} sure",
        "facts": {
            "Headroom": f"{plan.headroom:+,.0%}",
            **{f"{name} p50, p99": show(span) for name, span in plan.latencies.items()},
            "Limit": spell(plan.binds.partition(". ")[0]),
        },
    }


def _draw_plans(document: Recommendation) -> list[Figure]:
    """Draw the loads that plans carry, if they were simulated."""
    points = {(point.deployment, point.replicas): point for point in document.finalists}
    traffic, curves = document.traffic, []
    for number, plan in enumerate(document.plans[:_MAX_CURVES], 1):
        point = points.get((plan.deployment, plan.replicas))
        if point is None or not point.loads:
            continue
        curves.append(
            PlanCurve(
                name=f"plan {number}",
                words=_words(plan),
                loads=[load * plan.replicas for load in point.loads],
                worst=point.worst,
                capacity=traffic.value * max(1 + plan.headroom, 0.01),
                share=traffic.value / plan.replicas,
            )
        )
    return [load_figure(curves, traffic.value, traffic.unit)] if curves else []


def _title(plan: DeploymentPlan, holds: bool, confidence: float) -> str:
    """Say in words what to deploy, what it costs and how sure it is to hold."""
    cost = "" if plan.usd_per_month is None else f": ${plan.usd_per_month.value:,.0f} a month"
    begins = "" if holds else f"{say_nearest(confidence)} "
    return f"{begins}{_words(plan)}{cost}, {show_stated(plan.p_slo, confidence)} sure"


def _words(plan: DeploymentPlan | GpuChoice | FinalistPoint) -> str:
    """Write `8 × B200, one GPU each, vLLM, FP8 checkpoint of NVIDIA`."""
    deployment = parse_deployment(str(plan.deployment))
    replicas = "in one replica"
    if deployment.gpus == 1:
        replicas = "one GPU each" if plan.replicas > 1 else ""
    elif plan.replicas > 1:
        gpus = _NUMBERS.get(deployment.gpus, str(deployment.gpus))
        replicas = f"{plan.replicas} replicas of {gpus} GPUs"
    parts = [
        f"{plan.gpus} × {' and '.join(_gpus(deployment))}",
        replicas,
        _describe_pools(deployment),
        engine_title(deployment.decoder.engine),
        _describe_weights(deployment),
    ]
    return ", ".join(filter(None, parts))


def _describe_pools(deployment: Deployment) -> str:
    if not deployment.is_split:
        return ""
    return " and ".join(f"{pool.workers} that {pool.role}" for pool in deployment.pools)


def _gpus(deployment: Deployment) -> list[str]:
    titles = (gpu_title(pool.worker.gpu.name) for pool in deployment.pools)
    return list(dict.fromkeys(titles))


def _describe_weights(deployment: Deployment) -> str:
    """Say the precision of the weights, and whose checkpoint has it with this KV cache."""
    worker = deployment.decoder
    precision, rules = (worker.weights_dtype, worker.kv_dtype), rules_of(worker)
    title = precision[0].upper()
    for checkpoint in published(worker.model, worker.named):
        if (checkpoint.weights, checkpoint.kv) == precision and rules.reads(checkpoint):
            owner = checkpoint.name.partition("/")[0]
            owner = owner.upper() if owner in ("nvidia", "amd") else owner
            return f"{title} checkpoint of {owner}"
    return f"{title} weights"


def _table_gpus(document: Recommendation) -> Table:
    """Make a table of the best plan of each GPU, the cheapest first."""
    priced = document.plans[0].usd_per_month is not None
    points = {(point.deployment, point.replicas): point for point in document.finalists}
    costs = ["$ a month", "$ more a month"] if priced else []
    heads = ["GPU", "its best plan", *costs, "80%", "sure"]
    rows = []
    for best in sorted(
        document.by_gpu,
        key=lambda best: (best.deployment is None, best.usd_per_month or best.gpus or 0),
    ):
        row = [gpu_title(best.gpu)]
        if best.deployment is None:
            why = best.why or "no plan holds the bounds within what is given"
            row += [f"none: {why}", *[""] * (len(heads) - 2)]
        else:
            row.append(_words(best))
            if priced:
                added = round(best.more_usd_per_month or 0.0)
                row += [f"{best.usd_per_month or 0:,.0f}", f"{added:+,}" if added else "-"]
            reach = "-"
            point = points.get((best.deployment, best.replicas))
            if point is not None:
                cost = best.usd_per_month or best.gpus
                reach = f"{cost * point.needed_low:,.0f} to {cost * point.needed_high:,.0f}"
            row += [reach, show_share(best.p_slo)]
        rows.append(row)
    return Table(
        title="The best plan of each GPU",
        notes=["80%: what the replicas cost that 80% of the model's errors ask for"],
        heads=heads,
        align=f"ll{'r' * (len(heads) - 2)}",
        rows=rows,
        words=True,
    )


def _table_rejected(document: Recommendation) -> Table:
    return Table(
        title="Not advised",
        heads=["deployment", "why", "alike"],
        align="llr",
        rows=[
            [row.deployment, row.why, f"{row.count - 1:,}" if row.count > 1 else ""]
            for row in document.rejected
        ],
        words=True,
    )


def _read_study(name: str | None) -> str:
    """Return the text of the study that measures the plans, if it is there."""
    path = Path(name) if name else None
    if path is None or not path.is_file() or path.stat().st_size > _STUDY_BYTES:
        return ""
    return path.read_text("utf-8", "replace")
