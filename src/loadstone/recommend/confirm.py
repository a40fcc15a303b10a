"""The plans that are shown: each is simulated under the load that was asked for, and those that do not hold there give
way to more replicas, or to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from loadstone.recommend.asked_load import AskedLoad, check_whole, simulate_asked
from loadstone.recommend.decide import PlanChoice, best_of_each
from loadstone.recommend.options import RecommendOptions
from loadstone.recommend.progress import show_progress
from loadstone.recommend.traffic import Traffic

_MOST_MORE = 3
"""Times that replicas are added to a plan that does not hold."""


class ConfirmedPlan(NamedTuple):
    """A plan under the asked load. on_whole: requests of the whole trace, where it was simulated for this plan too."""

    choice: PlanChoice
    asked: AskedLoad
    on_whole: int = 0


def confirm_plans(
    choices: Sequence[PlanChoice], traffic: Traffic, options: RecommendOptions, *, learned: bool
) -> list[ConfirmedPlan]:
    """Return plans in their order: --plans of all, and the best of each kind of GPU. Those that hold with --confidence
    stand first, of these the least regret."""
    heads = best_of_each(choices)
    confirmed: list[ConfirmedPlan] = []
    kinds = {head.finalist.deployment.gpu.name for head in heads}
    for head in heads:
        known = {each.choice.finalist.deployment.gpu.name for each in confirmed if _holds(each, options)}
        enough = sum(_holds(each, options) for each in confirmed) >= options.plans
        if (enough or len(confirmed) >= 2 * options.plans) and not kinds - known:
            break
        tried = sum(
            each.choice.finalist.deployment.gpu.name == head.finalist.deployment.gpu.name for each in confirmed
        )
        if (enough or len(confirmed) >= 2 * options.plans) and (
            head.finalist.deployment.gpu.name in known or tried > 1
        ):
            continue
        show_progress(f"simulating the asked load on {head.replicas} × {head.finalist.name}")
        confirmed.append(_confirm(head, choices, traffic, options, learned=learned))
    ordered = sorted(
        confirmed,
        key=lambda each: (
            not _holds(each, options),
            each.choice.regret if _holds(each, options) else -each.asked.p_slo,
        ),
    )
    return _check_first(ordered, traffic, options)


def _holds(plan: ConfirmedPlan, options: RecommendOptions) -> bool:
    return plan.asked.p_slo >= options.confidence


def _confirm(
    head: PlanChoice, choices: Sequence[PlanChoice], traffic: Traffic, options: RecommendOptions, *, learned: bool
) -> ConfirmedPlan:
    """Simulate a plan under the asked load, with more replicas as long as it does not hold there."""
    assumed = options.acceptance is None

    def simulate(choice: PlanChoice) -> ConfirmedPlan:
        replicas = choice.replicas - options.reserve
        asked = simulate_asked(choice.finalist, replicas, traffic, learned=learned, assumed=assumed)
        return ConfirmedPlan(choice._replace(p_slo=asked.p_slo), asked)

    others = sorted((each for each in choices if each.finalist is head.finalist), key=lambda each: each.replicas)
    plan = simulate(head)
    more = [each for each in others if each.replicas > head.replicas][:_MOST_MORE]
    while more and not _holds(plan, options):
        plan = simulate(more.pop(0))
    return plan


def _check_first(plans: list[ConfirmedPlan], traffic: Traffic, options: RecommendOptions) -> list[ConfirmedPlan]:
    """Put first the first plan that also holds on the whole trace."""
    if not traffic.has_times:
        return plans
    failed = []
    for at, plan in enumerate(plans):
        if plan.asked.whole or not _holds(plan, options):
            return [*plans[at:], *failed]
        show_progress(f"simulating the whole trace on {plan.choice.replicas} × {plan.choice.finalist.name}")
        holds, requests = check_whole(plan.choice.finalist, plan.choice.replicas - options.reserve, traffic)
        if holds:
            return [plan._replace(on_whole=requests), *plans[at + 1 :], *failed]
        failed.append(plan._replace(on_whole=requests, asked=plan.asked._replace(met=False, p_slo=0.0)))
    return failed


def show_with_seed(
    plans: Sequence[ConfirmedPlan], traffic: Traffic, options: RecommendOptions, *, learned: bool
) -> list[ConfirmedPlan]:
    """Return the same plans with the figures that other requests give them."""
    assumed = options.acceptance is None
    return [
        plan._replace(
            asked=simulate_asked(
                plan.choice.finalist,
                plan.choice.replicas - options.reserve,
                traffic,
                learned=learned,
                assumed=assumed,
            )
        )
        for plan in plans
    ]
