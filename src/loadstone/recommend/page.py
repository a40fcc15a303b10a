"""A recommendation as a page of its own, that needs no network."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadstone.catalogue.checkpoints import published
from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.catalogue.engines import engine_title
from loadstone.catalogue.find import gpu_title
from loadstone.core.errors import InputError
from loadstone.core.files import explain_os_error
from loadstone.core.units import show_share
from loadstone.engines import rules_of
from loadstone.recommend.result import DeploymentPlan, FinalistPoint, GpuChoice, Recommendation
from loadstone.recommend.text import (
    claim,
    describe_launch,
    footer,
    plan_table,
    remarks,
    say_nearest,
    why_measure,
)
from loadstone.report.charts.plans import Finalist, cost_figure, load_figure
from loadstone.report.data.wording import spell
from loadstone.report.pages.html import frame_page, render
from loadstone.report.table import Table

_NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four", 8: "eight"}
_STUDY_BYTES = 100_000


def write_page(document: Recommendation, path: Path, command: Sequence[str] = ()) -> None:
    """Raises InputError where it cannot be written. `command`: what was asked, to be asked
    again."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"-o {path}: a recommendation is an HTML page; name it e.g. plans.html")
    best = document.plans[0]
    finalists = {
        (each.deployment, each.replicas): _finalist(each, document) for each in document.finalists
    }
    several, numbered = len(document.by_gpu) > 1, list(enumerate(document.plans, 1))
    names = [f"{number}. {_words(plan)}" for number, plan in numbered]
    planned = _known(document.plans, finalists)
    of_gpus = _known(document.by_gpu, finalists) if several else planned
    curves = {each.name: each for each in [*planned, *of_gpus]}
    load_unit = document.traffic.unit
    cost_unit = "dollars a month" if best.usd_per_month is not None else "GPUs"
    content = render(
        "plans.html",
        model=document.model,
        title=describe_plan(best, document.holds, document.confidence),
        answer=spell(f"{claim(document)}.", long=True),
        binds=spell(f"{best.binds}; {best.helps}."),
        by_gpu=_table_gpus(document) if several else None,
        plans=msgspec.structs.replace(plan_table(document, names), words=True),
        shorthands=[
            f"Plan {number}: {plan.replicas} × {plan.deployment}" for number, plan in numbered
        ],
        remarks=[
            spell(each) for each in (*remarks(document, gpus=False)[1:], *document.notes)
        ],  # the first is said
        figures=[
            *([cost_figure(of_gpus, cost_unit, list(curves.values()))] if of_gpus else []),
            *([load_figure(list(curves.values()), load_unit)] if curves else []),
        ],
        why=why_measure(document),
        measure=document.measure_next.command if document.measure_next else "",
        launch="\n".join(describe_launch(best)),
        command=shlex.join(command),
        study=document.study,
        study_text=_read_study(document.study),
        rejected=_rejected(document),
        foot=footer(document),
    )
    with explain_os_error(f"-o {path}: cannot be written", "name another file"):
        path.write_text(
            frame_page(f"What to deploy for {document.model}", content), encoding="utf-8"
        )


def describe_plan(plan: DeploymentPlan, holds: bool, confidence: float) -> str:
    """Say in words what to deploy, what it costs and how sure it is to hold."""
    cost = "" if plan.usd_per_month is None else f": ${plan.usd_per_month.value:,.0f} a month"
    begins = "" if holds else f"{say_nearest(confidence)} "
    return f"{begins}{_words(plan)}{cost}, {show_share(plan.p_slo)} sure"


def _words(plan: DeploymentPlan | GpuChoice | FinalistPoint) -> str:
    """Write `8 × B200, one GPU each, vLLM, FP8 checkpoint of NVIDIA`."""
    deployment = parse_deployment(str(plan.deployment))
    each = _NUMBERS.get(deployment.gpus, str(deployment.gpus))
    if deployment.gpus == 1:
        shared = "one GPU each" if plan.replicas > 1 else ""
    else:
        shared = (
            f"{plan.replicas} replicas of {each} GPUs" if plan.replicas > 1 else "in one replica"
        )
    parts = [
        f"{plan.gpus} × {_gpu(deployment)}",
        shared,
        _describe_pools(deployment),
        engine_title(deployment.engine),
        _describe_weights(deployment),
    ]
    return ", ".join(filter(None, parts))


def _describe_pools(deployment: Deployment) -> str:
    if not deployment.is_split:
        return ""
    return " and ".join(f"{pool.workers} that {pool.role}" for pool in deployment.pools)


def _gpu(deployment: Deployment) -> str:
    titles = (gpu_title(pool.worker.gpu.name) for pool in deployment.pools)
    return " and ".join(dict.fromkeys(titles))


def _describe_weights(deployment: Deployment) -> str:
    """Say the precision of the weights, and whose checkpoint has it with this KV cache."""
    worker = deployment.decoder
    wanted, rules = (worker.weights_dtype, worker.kv_dtype), rules_of(worker)
    known = published(worker.model, worker.named)
    found = next(
        (each for each in known if (each.weights, each.kv) == wanted and rules.reads(each)), None
    )
    if found is None:
        return f"{wanted[0].upper()} weights"
    owner = found.name.partition("/")[0]
    return (
        f"{wanted[0].upper()} checkpoint of"
        f" {owner.upper() if owner in ('nvidia', 'amd') else owner}"
    )


def _table_gpus(document: Recommendation) -> Table:
    priced = document.plans[0].usd_per_month is not None
    rows = []
    for each in sorted(
        document.by_gpu, key=lambda it: (it.deployment is None, it.usd_per_month or it.gpus or 0)
    ):
        if each.deployment is None:
            why = each.why or "no plan holds the bounds within what is given"
            rows.append([gpu_title(each.gpu), f"none: {why}", *[""] * (3 if priced else 1)])
            continue
        more = round(each.more_usd_per_month or 0.0)
        cost = [f"{each.usd_per_month or 0:,.0f}", f"{more:+,}" if more else "-"] if priced else []
        rows.append([gpu_title(each.gpu), _words(each), *cost, show_share(each.p_slo)])
    heads = ["GPU", "its best plan", *(["$ a month", "$ more a month"] if priced else []), "sure"]
    return Table(
        title="The best plan of each GPU",
        heads=heads,
        align=f"ll{'r' * (len(heads) - 2)}",
        rows=rows,
        words=True,
    )


def _rejected(document: Recommendation) -> Table:
    alike = [f"{each.count - 1:,}" if each.count > 1 else "" for each in document.rejected]
    rows = [
        [each.deployment, each.why, many]
        for each, many in zip(document.rejected, alike, strict=True)
    ]
    return Table(
        title="Not advised",
        heads=["deployment", "why", "alike"],
        align="llr",
        rows=rows,
        words=True,
    )


def _known(
    plans: Sequence[DeploymentPlan | GpuChoice], finalists: dict[tuple[str, int], Finalist]
) -> list[Finalist]:
    keys = [(str(plan.deployment), plan.replicas) for plan in plans]
    return [finalists[key] for key in keys if key in finalists]


def _finalist(each: FinalistPoint, document: Recommendation) -> Finalist:
    cost = each.usd_per_month if each.usd_per_month is not None else float(each.gpus)
    deployment = parse_deployment(each.deployment)
    return Finalist(
        name=each.deployment,
        words=_words(each),
        gpu=_gpu(deployment),
        engine=engine_title(deployment.engine),
        replicas=each.replicas,
        cost=cost,
        low=cost * each.needed_low,
        high=cost * each.needed_high,
        p_slo=each.p_slo,
        loads=each.loads,
        worst=each.worst,
        share=document.traffic.value / each.replicas,
    )


def _read_study(name: str | None) -> str:
    """Return the text of the study that measures the plans, if it is there."""
    path = Path(name) if name else None
    if path is None or not path.is_file() or path.stat().st_size > _STUDY_BYTES:
        return ""
    return path.read_text("utf-8", "replace")
