"""The judgement: which plans hold, how surely, and what would change the choice."""

from typing import NamedTuple

from loadstone.recommend.demand.planning import Planning
from loadstone.recommend.judge.autoscaled import AutoscaledPlan, autoscale_plan
from loadstone.recommend.judge.by_hour import follow_hours
from loadstone.recommend.judge.choices import PlanChoice, affordable, rank_choices
from loadstone.recommend.judge.confirm import ConfirmedPlan, confirm_plans, join_confirmed
from loadstone.recommend.judge.errors import UncertainFinalist, draw_errors
from loadstone.recommend.judge.host_memory import HostMemory, weigh_host_memory
from loadstone.recommend.judge.measurement import MeasurementValue, best_measurement
from loadstone.recommend.judge.power import fed_by
from loadstone.recommend.judge.split import Split, compare_split
from loadstone.recommend.search.finalists import Finalists


class Judgement(NamedTuple):
    """Holds what is known of the finalists.

    choices    the best of each, in their order; of those that were confirmed, that one
    confirmed  the plans that are shown, and the best of each GPU, the best first
    shown      the first --plans of these
    """

    finalists: list[UncertainFinalist]
    choices: list[PlanChoice]
    confirmed: list[ConfirmedPlan]
    shown: list[ConfirmedPlan]
    measurement: MeasurementValue
    measured_replicas: int
    split: Split | None
    host_memory: HostMemory | None
    autoscaled: list[AutoscaledPlan]


def judge_finalists(simulated: Finalists, planning: Planning) -> Judgement:
    """Choose among the finalists. Raises InputError where --reserve leaves no GPU, and where
    --budget pays for nothing."""
    finalists = draw_errors(simulated, planning)
    choices = rank_choices(finalists, planning)
    paid = fed_by(affordable(choices, planning), planning, simulated.measured)
    confirmed = confirm_plans(paid, planning)
    shown = confirmed[: planning.options.plans]
    hours, autoscale = planning.traffic.hours, planning.options.load.autoscale
    if hours is not None:
        shown = [
            plan._replace(by_hour=follow_hours(plan.choice, hours, planning)) for plan in shown
        ]
    split = None
    if planning.search.pools:
        best = [*(plan.choice for plan in confirmed), *paid]
        split = compare_split(best, finalists, planning)
    measurement = best_measurement(paid, finalists, planning)
    measured = next(choice for choice in choices if choice.finalist is measurement.finalist)
    return Judgement(
        finalists=finalists,
        choices=join_confirmed(choices, confirmed),
        confirmed=confirmed,
        shown=shown,
        measurement=measurement,
        measured_replicas=measured.replicas,
        split=split,
        host_memory=weigh_host_memory(shown[0].choice, planning),
        autoscaled=autoscale_plan(shown[0].choice, autoscale, planning) if autoscale else [],
    )
