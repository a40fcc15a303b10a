"""The plans that are shown: each is simulated under the load that was asked for. Those that do not
hold there give way to more replicas, or to the next."""

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
_AS_SURE = 0.005
"""A probability that is lower by less is the same."""
_MOST_OF_GPU = 3
"""Plans of a kind of GPU that are tried for one that holds."""


class ConfirmedPlan(NamedTuple):
    """A plan under the asked load. on_whole: requests of the whole trace, where that was simulated
    besides."""

    choice: PlanChoice
    asked: AskedLoad
    on_whole: int = 0


def confirm_plans(
    choices: Sequence[PlanChoice], traffic: Traffic, options: RecommendOptions, *, learned: bool
) -> list[ConfirmedPlan]:
    """Return --plans of all plans, and the best of each kind of GPU: first those that hold with
    --confidence, of these the least regret, then the likeliest."""
    confirmed: list[ConfirmedPlan] = []
    heads = best_of_each(choices)
    for head in heads:
        held = [each.choice for each in confirmed if _holds(each, options)]
        of_gpu = [each for each in held if _name_gpu(each) == _name_gpu(head)]
        tried = [_name_gpu(each.choice) for each in confirmed].count(_name_gpu(head))
        few = _adds(head, held, options.plans, options) and len(confirmed) < 2 * options.plans
        if few or (_adds(head, of_gpu, 1, options) and tried < _MOST_OF_GPU):
            show_progress(f"simulating the asked load on {head.replicas} × {head.finalist.name}")
            confirmed.append(_confirm(head, choices, traffic, options, learned=learned))
    fast = options.objective == "throughput"

    def order(each: ConfirmedPlan) -> float:
        if not _holds(each, options):
            return -each.asked.p_slo
        tokens_per_s = each.asked.output_tokens_per_s * (each.choice.replicas - options.reserve)
        return -tokens_per_s if fast else each.choice.regret

    plans = sorted(confirmed, key=order)
    plans.sort(key=lambda each: not _holds(each, options))
    plans[0] = _spare_replicas(plans[0], choices, traffic, options, learned=learned)
    return _check_first(plans, traffic, options)


def _adds(
    head: PlanChoice, held: Sequence[PlanChoice], wanted: int, options: RecommendOptions
) -> bool:
    """Tell whether a plan is to be tried beside those that hold: where they are fewer than wanted,
    or one of them had to get so many replicas that this one now has less regret."""
    if len(held) < wanted:
        return True
    return (
        head.p_slo >= options.confidence
        and head.regret < sorted(each.regret for each in held)[wanted - 1]
    )


def _spare_replicas(
    plan: ConfirmedPlan,
    choices: Sequence[PlanChoice],
    traffic: Traffic,
    options: RecommendOptions,
    *,
    learned: bool,
) -> ConfirmedPlan:
    """Return the plan with fewer replicas, as long as these hold as likely under the asked load:
    beyond some number more do not help."""
    mine, least = (
        [each for each in choices if each.finalist is plan.choice.finalist],
        plan.asked.p_slo - _AS_SURE,
    )
    for choice in sorted(mine, key=lambda each: -each.replicas):
        if choice.replicas < plan.choice.replicas:
            fewer = ConfirmedPlan(choice, _simulate(choice, traffic, options, learned=learned))
            if fewer.asked.p_slo < least or _holds(fewer, options) < _holds(plan, options):
                break
            plan = fewer
    return plan


def _name_gpu(choice: PlanChoice) -> str:
    return choice.finalist.deployment.gpu.name


def _holds(plan: ConfirmedPlan, options: RecommendOptions) -> bool:
    return plan.asked.p_slo >= options.confidence


def _confirm(
    head: PlanChoice,
    choices: Sequence[PlanChoice],
    traffic: Traffic,
    options: RecommendOptions,
    *,
    learned: bool,
) -> ConfirmedPlan:
    """Simulate a plan under the asked load, with more replicas as long as it does not hold
    there."""

    def simulate(choice: PlanChoice) -> ConfirmedPlan:
        return ConfirmedPlan(choice, _simulate(choice, traffic, options, learned=learned))

    others = sorted(
        (each for each in choices if each.finalist is head.finalist), key=lambda each: each.replicas
    )
    plan = simulate(head)
    more = [each for each in others if each.replicas > head.replicas][:_MOST_MORE]
    while more and not _holds(plan, options):
        plan = simulate(more.pop(0))
    return plan


def _check_first(
    plans: list[ConfirmedPlan], traffic: Traffic, options: RecommendOptions
) -> list[ConfirmedPlan]:
    """Put first the first plan that also holds on the whole trace."""
    if not traffic.has_times:
        return plans
    failed: list[ConfirmedPlan] = []
    for at, plan in enumerate(plans):
        if plan.asked.whole or not _holds(plan, options):
            return [*plans[at:], *failed]
        show_progress(
            f"simulating the whole trace on {plan.choice.replicas} × {plan.choice.finalist.name}"
        )
        holds, requests = check_whole(
            plan.choice.finalist, plan.choice.replicas - options.reserve, traffic
        )
        if holds:
            return [plan._replace(on_whole=requests), *plans[at + 1 :], *failed]
        failed.append(
            plan._replace(on_whole=requests, asked=plan.asked._replace(met=False, p_slo=0.0))
        )
    return failed


def show_with_seed(
    plans: Sequence[ConfirmedPlan], traffic: Traffic, options: RecommendOptions, *, learned: bool
) -> list[ConfirmedPlan]:
    """Return the same plans with the latencies that other requests give them, as likely to hold as
    before."""
    others = [_simulate(plan.choice, traffic, options, learned=learned) for plan in plans]
    return [
        plan._replace(asked=other._replace(p_slo=plan.asked.p_slo))
        for plan, other in zip(plans, others, strict=True)
    ]


def join_confirmed(
    choices: Sequence[PlanChoice], confirmed: Sequence[ConfirmedPlan]
) -> list[PlanChoice]:
    """Return the best choice of each finalist; of those that were confirmed, that one with its
    probability."""
    known = {
        plan.choice.finalist.name: plan.choice._replace(p_slo=plan.asked.p_slo)
        for plan in confirmed
    }
    return [known.get(each.finalist.name, each) for each in best_of_each(choices)]


def _simulate(
    choice: PlanChoice, traffic: Traffic, options: RecommendOptions, *, learned: bool
) -> AskedLoad:
    """Simulate the asked load on the replicas of a plan but for those that may fail."""
    replicas, assumed = choice.replicas - options.reserve, options.acceptance is None
    return simulate_asked(choice.finalist, replicas, traffic, learned=learned, assumed=assumed)
