"""Sentences beside the plans: what was assumed and learned, why a dearer plan is first, and whether
splitting pays."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from loadstone.analyse.verdict.run import LIMITS
from loadstone.catalogue import parse_deployment
from loadstone.core.units import show_gpus, show_share
from loadstone.recommend.demand.options import HOURS_PER_MONTH
from loadstone.recommend.demand.planning import Planning
from loadstone.recommend.judge.confirm import ConfirmedPlan
from loadstone.recommend.judge.errors import UncertainFinalist
from loadstone.recommend.judge.judgement import Judgement
from loadstone.recommend.judge.split import Split
from loadstone.recommend.search.measured import MeasuredRun
from loadstone.recommend.tell.document import DeploymentPlan
from loadstone.recommend.tell.text import show_stated


def write_notes(
    judgement: Judgement,
    measured: Sequence[MeasuredRun],
    first: DeploymentPlan,
    planning: Planning,
    unit: str,
) -> list[str]:
    """Return all sentences; `unit`: that of the load."""
    return [
        *_explain_order(judgement.shown, planning),
        *_note_assumptions(judgement.finalists, planning),
        *_note_measured(measured),
        *_note_ungraded(judgement.finalists, measured),
        *_note_context(planning),
        *(tell_split(judgement.split, first, unit) if planning.search.pools else []),
    ]


def _explain_order(shown: Sequence[ConfirmedPlan], planning: Planning) -> Iterator[str]:
    """Say why the first plan stands before those that are cheaper."""
    first, *rest = shown
    options = planning.choice
    for number, plan in enumerate(rest, 2):
        saved = first.choice.cost - plan.choice.cost
        if saved <= 0:
            continue
        cheaper = show_gpus(saved)
        if planning.prices:
            cheaper = f"${saved * HOURS_PER_MONTH:,.0f} a month"
        surer = first.figures.p_slo - plan.figures.p_slo
        if plan.figures.p_slo < options.confidence:
            sure = show_stated(round(plan.figures.p_slo, 3), options.confidence)
            why = f"holds with {sure}, below --confidence {options.confidence * 100:g}%"
        elif planning.by_throughput:
            why = "gives fewer tokens/s"
        else:
            why = (
                f"breaks the bounds {surer:.0%} more often, which --miss-cost {options.miss_cost:g}"
                " counts for more"
            )
        yield f"plan {number} is cheaper by {cheaper}, and stands behind plan 1 since it {why}"


def _note_assumptions(finalists: Sequence[UncertainFinalist], planning: Planning) -> Iterator[str]:
    if not planning.prices:
        yield "no prices are given: plans are ranked by their number of GPUs (--price h200=3.2,…)"
    drafted = any(finalist.candidate.policy.speculative for finalist in finalists)
    if drafted and not planning.acceptance_known:
        yield (
            "drafts are taken to be accepted in 0.7 ± 0.1 of cases; give --acceptance if you"
            " know it"
        )


def _note_measured(measured: Sequence[MeasuredRun]) -> Iterator[str]:
    for run in measured:
        if run.wrong:
            yield f"plans with the precision of {run.deployment} are left out: {run.wrong}"
            continue
        factors = zip(("TTFT", "TPOT"), np.exp(run.gaps), strict=True)
        shown = ", ".join(
            f"{name} {factor:.2f}×" for name, factor in factors if math.isfinite(factor)
        )
        yield f"{run.deployment} was measured: {shown} of what was predicted"


def _note_ungraded(
    finalists: Sequence[UncertainFinalist], measured: Sequence[MeasuredRun]
) -> list[str]:
    """Name the precisions whose answers nobody graded, once something was measured."""
    ungraded: dict[tuple[str, str], str] = {}
    for finalist in reversed(finalists) if measured else ():
        worker = finalist.candidate.worker
        precision = (worker.weights_dtype, worker.kv_dtype)
        published = (worker.model.weights_dtype, worker.model.kv_dtype)
        graded = any(run.graded and run.has_precision_of(worker) for run in measured)
        if not graded and precision != published:
            ungraded[precision] = finalist.name
    return [
        f"nobody graded answers with {weights} weights and {kv} KV cache: measure {name} with bench"
        " --check, and give that run to --with"
        for (weights, kv), name in ungraded.items()
    ]


def _note_context(planning: Planning) -> Iterator[str]:
    overflowed = planning.traffic.plan.workload.get("overflowed")
    if overflowed:
        yield (
            f"{overflowed['sessions']:,} of the file's sessions end early, where the model's"
            " context does"
        )


def tell_split(split: Split | None, first: DeploymentPlan, unit: str) -> list[str]:
    """Say whether splitting pays, with which probability, from which load, and what limits it;
    None: one kind of plan alone, that of the `first`, carries the traffic."""
    if split is None:
        pooled = parse_deployment(first.deployment).is_split
        return [
            f"splitting prefill and decode {_pays(pooled)}: of what was simulated, plans"
            f" {'with' if pooled else 'without'} pools alone hold the bounds"
        ]
    return [
        (
            f"splitting prefill and decode {_pays(split.pays)}: {split.split}, {split.whole}; the"
            f" split plan is better with a probability of {show_share(split.probability)}, as good"
            f" with {show_share(split.equal)}; where it breaks, {LIMITS[split.limit]}"
        ),
        _tell_loads(split, unit),
    ]


def _pays(pays: bool) -> str:
    return "pays" if pays else "does not pay"


def _tell_loads(split: Split, unit: str) -> str:
    loads = split.by_load
    among = (
        f"of loads from {loads[0].load:.3g} to {loads[-1].load:.3g} {unit}, by what these finalists"
        " carry"
    )
    if split.pays_from is not None:
        least = next(found for found in loads if found.load == split.pays_from)
        return (
            f"splitting pays from {least.load:.3g} {unit} on, better with"
            f" {show_share(least.probability)} there, as good with {show_share(least.equal)},"
            f" {among}"
        )
    paying = [f"{found.load:.3g}" for found in loads if found.pays]
    if paying:
        return f"splitting pays at {', '.join(paying)} {unit} and not beyond, {among}"
    best = max(loads, key=lambda found: found.probability)
    return (
        f"splitting pays at none {among}: better with at most {show_share(best.probability)}, at"
        f" {best.load:.3g}"
    )
