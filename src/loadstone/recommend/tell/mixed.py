"""Tells what to deploy for a mix of classes: the typed document, and that as people read it."""

from __future__ import annotations

from typing import Literal

import msgspec

from loadstone.core.units import show_gpus, show_seconds, show_share
from loadstone.recommend.demand.classes import Classes
from loadstone.recommend.demand.options import HOURS_PER_MONTH
from loadstone.recommend.demand.planning import Planning
from loadstone.recommend.judge.confirm import redraw_figures
from loadstone.recommend.judge.partitions import ClassFleet, Division, Divisions, Saving
from loadstone.recommend.tell.document import SCHEMA, DeploymentPlan
from loadstone.recommend.tell.plans import describe_plan
from loadstone.recommend.tell.text import describe_launch, say_nearest, show_stated
from loadstone.report.data.wording import spell
from loadstone.report.table import Footnote, Shown, Table


class ClassTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """A class as it is planned for. kind: rate (requests/s; of turns, sessions/s) or slots."""

    name: str
    model: str
    kind: Literal["rate", "slots"]
    value: float
    slo: dict[str, float]
    priority: int | None = None


class ClassFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A class on its fleet, of the requests that are simulated. Latencies in seconds, p50 and p99;
    p_met: the probability of each bound."""

    name: str
    ttft_s: tuple[float, float]
    tpot_s: tuple[float, float]
    p_met: dict[str, float] = {}


class FleetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet of some classes; its `plan` has the latencies of all of them together."""

    classes: list[str]
    by_priority: bool
    plan: DeploymentPlan
    figures: list[ClassFigures]


class PartitionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The classes divided into fleets.

    p_slo    probability that every class holds, in the same draw of the model's errors
    holds    with --confidence
    expected_usd_per_hour  with what broken bounds cost; in GPUs without prices
    regret   of that, beyond the cheapest division that holds in each draw
    """

    fleets: list[FleetPlan]
    gpus: int
    p_slo: float
    holds: bool
    usd_per_hour: float | None
    usd_per_month: float | None
    expected_usd_per_hour: float
    regret: float


class RefusedPartition(msgspec.Struct, frozen=True):
    """A division that cannot be, and why."""

    fleets: list[list[str]]
    by_priority: bool
    why: str


class MixRecommendation(msgspec.Struct, frozen=True, kw_only=True):
    """Tells how to divide the classes of a mix into fleets, the best division first; `seconds`:
    that it took."""

    model: str
    classes: list[ClassTraffic]
    partitions: list[PartitionPlan]
    rejected: list[RefusedPartition]
    saving: Saving | None
    confidence: float
    holds: bool
    notes: list[str]
    deployments_ranked: int
    simulated: int
    seconds: float
    schema: int = SCHEMA


# --- how it is filled -----------------------------------------------------------------------------


def write_mix(classes: Classes, found: Divisions, seconds: float) -> MixRecommendation:
    """Return the document."""
    planning = found.ranked[0].fleets[0].search.planning
    described: dict[int, FleetPlan] = {}
    partitions = [
        _describe_division(classes, division, regret, described)
        for division, regret in zip(found.ranked, found.regrets, strict=True)
    ]
    return MixRecommendation(
        model=classes.options.model,
        classes=[
            ClassTraffic(
                name=request.name,
                model=model,
                kind="slots" if request.traffic.slots else "rate",
                value=(request.traffic.slots or rate) * classes.options.load.growth,
                slo=request.traffic.slo,
                priority=request.traffic.priority,
            )
            for request, rate, model in zip(
                classes.requests, classes.rates, classes.models, strict=True
            )
        ],
        partitions=partitions,
        rejected=[
            RefusedPartition(
                [classes.names(chosen) for chosen in row.sets], row.by_priority, row.why
            )
            for row in found.refused
        ],
        saving=found.saving,
        confidence=planning.choice.confidence,
        holds=partitions[0].holds,
        notes=_write_notes(classes, planning),
        deployments_ranked=found.looked_at,
        simulated=found.simulated,
        seconds=round(seconds, 3),
    )


def _describe_division(
    classes: Classes, division: Division, regret: float, described: dict[int, FleetPlan]
) -> PartitionPlan:
    """Describe a division; `described`: fleets that were, by the identity of plans."""
    planning = division.fleets[0].search.planning
    priced = bool(planning.prices)
    fleets = []
    for fleet in division.fleets:
        if id(fleet.plan) not in described:
            described[id(fleet.plan)] = _describe_fleet(classes, fleet)
        fleets.append(described[id(fleet.plan)])
    return PartitionPlan(
        fleets=fleets,
        gpus=division.gpus,
        p_slo=round(division.p_slo, 3),
        holds=division.p_slo >= planning.choice.confidence,
        usd_per_hour=division.cost if priced else None,
        usd_per_month=division.cost * HOURS_PER_MONTH if priced else None,
        expected_usd_per_hour=division.expected_cost,
        regret=regret,
    )


def _describe_fleet(classes: Classes, fleet: ClassFleet) -> FleetPlan:
    planning, plan = fleet.search.planning, fleet.plan
    if planning.options.seed:
        plan = redraw_figures(plan, planning.redraw())
    names, figures = classes.names(fleet.classes), plan.figures
    by_class = [
        ClassFigures(
            name=name,
            ttft_s=row.ttft_s,
            tpot_s=row.tpot_s,
            p_met={bound.partition(":")[2]: round(p, 3) for bound, p in row.bounds.items()},
        )
        for name, row in figures.by_class.items()
    ] or [ClassFigures(name=names[0], ttft_s=figures.ttft_s, tpot_s=figures.tpot_s)]
    measured = fleet.search.finalists.measured
    return FleetPlan(
        classes=names,
        by_priority=fleet.by_priority,
        plan=describe_plan(plan, planning, fleet.search.found, measured),
        figures=by_class,
    )


def _write_notes(classes: Classes, planning: Planning) -> list[str]:
    notes = [
        f"class {name} asks for {adapter}, which is no model of the catalogue: it is planned as"
        " the model itself, without what an adapter costs"
        for name, adapter in classes.adapters.items()
    ]
    if not planning.prices:
        notes.append("no prices are given: fleets are ranked by their GPUs (--price h200=3.2,…)")
    slots = [request.name for request in classes.requests if request.traffic.slots]
    if slots and len(classes.requests) > 1:
        notes.append(f"classes with slots have a fleet each: {', '.join(slots)}")
    return notes


# --- as people read it ----------------------------------------------------------------------------


def show_fleets(partition: PartitionPlan) -> str:
    """Write `chat + search by priority | batch`."""
    return " | ".join(
        " + ".join(fleet.classes) + " by priority" * fleet.by_priority for fleet in partition.fleets
    )


def answer(document: MixRecommendation) -> str:
    """Say which fleets to deploy, and what they hold."""
    best = document.partitions[0]
    begins = "Deploy" if document.holds else say_nearest(document.confidence)
    fleets = "one fleet" if len(best.fleets) == 1 else f"{len(best.fleets)} fleets"
    cost = "" if best.usd_per_hour is None else f" for ${best.usd_per_hour:,.2f} an hour"
    hold = "holds" if best.gpus == 1 else "hold"
    sure = show_stated(best.p_slo, document.confidence)
    return (
        f"{begins} {fleets}, {show_fleets(best)}: {show_gpus(best.gpus)}{cost} {hold} the bounds of"
        f" every class with a probability of {sure}."
    )


def say_saving(document: MixRecommendation) -> str:
    """Say what the first division saves beside the next; empty where there is none."""
    saving = document.saving
    if saving is None:
        return ""
    value, ends = saving.value, f"{saving.low:,.0f} to {saving.high:,.0f}"
    amount = show_gpus(value)
    if saving.unit == "usd_per_month":
        amount = f"{'−' * (value < 0)}${abs(value):,.0f} a month"
    second = show_fleets(document.partitions[1])
    if not (value or saving.low or saving.high):
        return (
            f"{second} costs the same: in {show_share(saving.equal)} of the draws of the model's"
            " errors both need as much."
        )
    return (
        f"Beside {second} it saves {amount} (80% of the model's errors: {ends}); it is the cheaper"
        f" one with a probability of {show_share(saving.probability)}, as cheap with"
        f" {show_share(saving.equal)}."
    )


def table_partitions(document: MixRecommendation) -> Table:
    """Make a table of the divisions, the best first."""
    priced = document.partitions[0].usd_per_hour is not None
    costs = ["$/h", "$ a month"] if priced else []
    rows = []
    for row in document.partitions:
        cost = [f"{row.usd_per_hour:,.2f}", f"{row.usd_per_month:,.0f}"] if priced else []
        rows.append([show_fleets(row), str(row.gpus), *cost, show_share(row.p_slo)])
    return Table(
        title="Fleets",
        heads=["fleets", "GPUs", *costs, "P(every class)"],
        align=f"wr{'r' * len(costs)}r",
        rows=rows,
        words=True,
    )


def table_classes(document: MixRecommendation) -> Table:
    """Make a table of the classes on the fleets of the first division."""
    classes = {of_class.name: of_class for of_class in document.classes}
    rows = []
    for number, fleet in enumerate(document.partitions[0].fleets, 1):
        for figures in fleet.figures:
            of_class = classes[figures.name]
            amount, _, bounds = spell(show_class(of_class)).partition(", ")
            least = min(figures.p_met.values(), default=fleet.plan.p_slo)
            latencies = map(show_seconds, (*figures.ttft_s, *figures.tpot_s))
            rows.append([figures.name, str(number), amount, *latencies, bounds, show_share(least)])
    heads = ["class", "fleet", "load", "TTFT p50", "p99", "TPOT p50", "p99", "bounds", "P"]
    return Table(title="Classes", heads=heads, align="lrrruruwr", rows=rows)


def show_class(of_class: ClassTraffic) -> str:
    """Write `18/s, tpot_p99 < 30.0 ms`."""
    amount = f"{of_class.value:.4g}{'/s' if of_class.kind == 'rate' else ' slots'}"
    bounds = [f"{name} < {show_seconds(limit_s)}" for name, limit_s in of_class.slo.items()]
    return ", ".join([amount, *bounds])


def describe_fleets(partition: PartitionPlan) -> list[str]:
    """Write what each fleet is."""
    return [
        f"fleet {number}, {' + '.join(fleet.classes)}: {fleet.plan.replicas} ×"
        f" {fleet.plan.deployment}"
        for number, fleet in enumerate(partition.fleets, 1)
    ]


def list_limits(partition: PartitionPlan) -> list[str]:
    """Write what binds each fleet, and what would help."""
    return [
        spell(f"Fleet {number}: {fleet.plan.binds}. {fleet.plan.helps}.")
        for number, fleet in enumerate(partition.fleets, 1)
    ]


def list_starts(partition: PartitionPlan) -> list[str]:
    """List the commands that start a replica of each fleet."""
    lines = []
    for number, fleet in enumerate(partition.fleets, 1):
        lines += [f"fleet {number}:", *(f"  {line}" for line in describe_launch(fleet.plan))]
    return lines


def list_refused(document: MixRecommendation) -> list[list[str]]:
    """List the divisions that cannot be, and why."""
    return [
        [" | ".join(map(" + ".join, row.fleets)) + " by priority" * row.by_priority, row.why]
        for row in document.rejected
    ]


def foot(document: MixRecommendation) -> str:
    return (
        f"{document.deployments_ranked:,} deployments ranked, {document.simulated} simulated in"
        f" {document.seconds:.1f} s; every class's bounds are judged in the same draws"
    )


def render_mix(document: MixRecommendation, explain: bool = True) -> list[Shown]:
    """Show the answer, the divisions, the classes on the first of them, and how to start it.

    explain: also show the limits of each fleet.
    """
    best = document.partitions[0]
    parts: list[Shown] = [answer(document), "", *describe_fleets(best)]
    parts += [table_partitions(document), table_classes(document)]
    parts += [line for line in (say_saving(document),) if line]
    parts += list_limits(best) if explain else []
    parts += document.notes
    parts += [f"{fleets}: {why}" for fleets, why in list_refused(document)]
    parts += ["", "To start one replica of each fleet:", *list_starts(best)]
    return [*parts, "", Footnote(foot(document))]
