"""A recommendation as a page of its own, that needs no network."""

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
from loadstone.recommend.tell.document import (
    DeploymentPlan,
    FinalistPoint,
    GpuChoice,
    Recommendation,
)
from loadstone.recommend.tell.text import (
    claim,
    describe_launch,
    footer,
    plan_table,
    remarks,
    say_nearest,
    why_measure,
)
from loadstone.report.charts.plans import Finalist, cost_figure, load_figure
from loadstone.report.charts.theme import Figure
from loadstone.report.data.wording import spell
from loadstone.report.pages.html import frame_page, render
from loadstone.report.table import Table

_NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four", 8: "eight"}
_STUDY_BYTES = 100_000


def write_page(document: Recommendation, path: Path, command: Sequence[str] = ()) -> None:
    """Write the page. `command`: what was asked, to be asked again. Raises InputError where it
    cannot be written."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"-o {path}: a recommendation is an HTML page; name it e.g. plans.html")
    best, numbered = document.plans[0], list(enumerate(document.plans, 1))
    several = len(document.by_gpu) > 1
    names = [f"{number}. {_words(plan)}" for number, plan in numbered]
    content = render(
        "plans.html",
        model=document.model,
        title=_title(best, document.holds, document.confidence),
        answer=spell(f"{claim(document)}.", long=True),
        binds=spell(f"{best.binds}. {best.helps}."),
        by_gpu=_table_gpus(document) if several else None,
        plans=msgspec.structs.replace(plan_table(document, names), words=True),
        shorthands=[
            f"Plan {number}: {plan.replicas} × {plan.deployment}" for number, plan in numbered
        ],
        # The first is said above.
        remarks=[spell(line) for line in (*remarks(document, gpus=False)[1:], *document.notes)],
        figures=_draw(document, several=several),
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


def _draw(document: Recommendation, *, several: bool) -> list[Figure]:
    """Draw what the best plan of each GPU costs, and the loads that plans carry."""
    points = {(point.deployment, point.replicas): point for point in document.finalists}

    def find(plans: Sequence[DeploymentPlan | GpuChoice]) -> list[Finalist]:
        found = (points.get((str(plan.deployment), plan.replicas)) for plan in plans)
        return [_finalist(point, document) for point in found if point is not None]

    planned = find(document.plans)
    of_gpus = find(document.by_gpu) if several else planned
    curves = list({finalist.name: finalist for finalist in [*planned, *of_gpus]}.values())
    priced = document.plans[0].usd_per_month is not None
    figures = []
    if of_gpus:
        figures.append(cost_figure(of_gpus, "dollars a month" if priced else "GPUs", curves))
    if curves:
        figures.append(load_figure(curves, document.traffic.unit))
    return figures


def _title(plan: DeploymentPlan, holds: bool, confidence: float) -> str:
    """Say in words what to deploy, what it costs and how sure it is to hold."""
    cost = "" if plan.usd_per_month is None else f": ${plan.usd_per_month.value:,.0f} a month"
    begins = "" if holds else f"{say_nearest(confidence)} "
    return f"{begins}{_words(plan)}{cost}, {show_share(plan.p_slo)} sure"


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
        f"{plan.gpus} × {_gpu(deployment)}",
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


def _gpu(deployment: Deployment) -> str:
    titles = (gpu_title(pool.worker.gpu.name) for pool in deployment.pools)
    return " and ".join(dict.fromkeys(titles))


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
    heads = ["GPU", "its best plan", *(["$ a month", "$ more a month"] if priced else []), "sure"]
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
            row.append(show_share(best.p_slo))
        rows.append(row)
    return Table(
        title="The best plan of each GPU",
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


def _finalist(point: FinalistPoint, document: Recommendation) -> Finalist:
    cost = point.usd_per_month if point.usd_per_month is not None else float(point.gpus)
    deployment = parse_deployment(point.deployment)
    return Finalist(
        name=point.deployment,
        words=_words(point),
        gpu=_gpu(deployment),
        engine=engine_title(deployment.decoder.engine),
        replicas=point.replicas,
        cost=cost,
        low=cost * point.needed_low,
        high=cost * point.needed_high,
        p_slo=point.p_slo,
        loads=point.loads,
        worst=point.worst,
        share=document.traffic.value / point.replicas,
    )


def _read_study(name: str | None) -> str:
    """Return the text of the study that measures the plans, if it is there."""
    path = Path(name) if name else None
    if path is None or not path.is_file() or path.stat().st_size > _STUDY_BYTES:
        return ""
    return path.read_text("utf-8", "replace")
