"""The plans that are shown: each is simulated under the load that was asked for. Those that do not
hold there give way to more replicas, or to the next."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from loadstone.engines.habits import Route
from loadstone.recommend.demand.planning import Planning
from loadstone.recommend.judge.asked_load import AskedLoad, check_whole, simulate_asked
from loadstone.recommend.judge.by_hour import ByHour
from loadstone.recommend.judge.choices import PlanChoice, best_of_each

_MAX_ADDED = 3
"""Times that replicas are added to a plan that does not hold."""
_DEAR = 1.5
"""Times the cheapest plan that holds, beyond which a plan gets no more replicas."""
_AS_SURE = 0.005
"""A probability that is lower by less is the same."""
_MAX_OF_GPU = 3
"""Plans of a kind of GPU that are tried for one that holds."""


class ConfirmedPlan(NamedTuple):
    """A plan under the asked load. on_whole: requests of the whole trace, where that was simulated
    besides; by_hour: how its replicas follow a trace; fewer: the plan with a replica less, of many
    some."""

    choice: PlanChoice
    figures: AskedLoad
    on_whole: int = 0
    by_hour: ByHour | None = None
    fewer: ConfirmedPlan | None = None

    @property
    def misses(self) -> float:
        """Return what misses cost on average, as likely as they are under the asked load."""
        return self.choice.expected_misses(self.figures.p_slo)

    @property
    def cost(self) -> float:
        """Return what it costs with its misses."""
        return self.choice.cost + self.misses

    @property
    def regret(self) -> float:
        """Return its regret with these misses; by throughput that of its choice."""
        choice = self.choice
        if choice.tokens_per_s is not None:
            return choice.regret
        return choice.regret + self.misses - choice.expected_misses(choice.p_slo)


@dataclass(frozen=True)
class Confirmation:
    """Tries plans, of all `choices`, under the asked load. `simulate`, `check`: the load itself,
    and a whole trace."""

    choices: Sequence[PlanChoice]
    planning: Planning
    simulate: Callable[[PlanChoice, Planning], AskedLoad] = simulate_asked
    check: Callable[[PlanChoice, Planning], tuple[bool, int]] = check_whole
    tried: dict[tuple[int, int], ConfirmedPlan] = field(default_factory=dict)

    def confirm(self) -> list[ConfirmedPlan]:
        """Return --plans of all plans, and the best of each kind of GPU: first those that hold with
        --confidence, of these the least regret, then the likeliest."""
        wanted = self.planning.options.plans
        confirmed: list[ConfirmedPlan] = []
        for head in best_of_each(self.choices):
            held = [plan.choice for plan in confirmed if self.holds(plan)]
            held_of_gpu = [choice for choice in held if choice.gpu == head.gpu]
            tried_of_gpu = [plan.choice.gpu for plan in confirmed].count(head.gpu)
            if (self._adds(head, held, wanted) and len(confirmed) < 2 * wanted) or (
                self._adds(head, held_of_gpu, 1) and tried_of_gpu < _MAX_OF_GPU
            ):
                self.planning.show(f"simulating the asked load on {head.shorthand}")
                confirmed.append(self._grow(head))
        plans = sorted(confirmed, key=self._order)
        if not self.planning.by_throughput:
            plans[0] = self.spare_replicas(plans[0])
            for number, plan in enumerate(plans[1:wanted], 1):
                if plan.choice.cost - plan.choice.finalist.candidate.replica_cost < plans[0].cost:
                    plans[number] = self.spare_replicas(plan)
            plans.sort(key=self._order)
        return self._check_first(plans)

    def holds(self, plan: ConfirmedPlan) -> bool:
        return plan.figures.p_slo >= self.planning.choice.confidence

    def _order(self, plan: ConfirmedPlan) -> tuple[bool, float]:
        if not self.holds(plan):
            return True, -plan.figures.p_slo
        if not self.planning.by_throughput:
            return False, plan.cost
        serving = plan.choice.replicas - self.planning.choice.reserve
        return False, -plan.figures.output_tokens_per_s * serving

    def _adds(self, head: PlanChoice, held: Sequence[PlanChoice], wanted: int) -> bool:
        """Tell whether a plan is to be tried beside those that hold: where they are fewer than
        wanted, or one of them had to get so many replicas that this one now has less regret."""
        if len(held) < wanted:
            return True
        last = sorted(choice.rank for choice in held)[wanted - 1]
        return head.p_slo >= self.planning.choice.confidence and head.rank < last

    def _with_replicas(self, head: PlanChoice) -> list[PlanChoice]:
        """Return the choices of the same finalist, the fewest replicas first."""
        same = [choice for choice in self.choices if choice.finalist is head.finalist]
        return sorted(same, key=lambda choice: choice.replicas)

    def _try(self, choice: PlanChoice, route: Route | None = None) -> ConfirmedPlan:
        """Simulate a plan, once, behind the router of its like; None: behind the best."""
        key = id(choice.finalist), choice.replicas
        if key not in self.tried:
            figures = self.simulate(choice._replace(route=route), self.planning)
            choice = choice._replace(route=figures.route)
            self.tried[key] = ConfirmedPlan(choice, figures)
        return self.tried[key]

    def _grow(self, head: PlanChoice) -> ConfirmedPlan:
        """Simulate a plan under the asked load, with more replicas as long as it does not hold
        there: as many more in proportion as were needed before to be as much surer."""
        plan, same = self._try(head), self._with_replicas(head)

        def needed(p_slo: float) -> int:
            return next(
                (choice.replicas for choice in same if choice.p_slo >= p_slo), same[-1].replicas
            )

        for _ in range(_MAX_ADDED):
            larger = [choice for choice in same if choice.replicas > plan.choice.replicas]
            if self.holds(plan) or not larger:
                break
            growth = needed(self.planning.choice.confidence) / needed(plan.figures.p_slo)
            wanted = plan.choice.replicas * growth
            enough = next((choice for choice in larger if choice.replicas >= wanted), larger[-1])
            held = [tried.choice.cost for tried in self.tried.values() if self.holds(tried)]
            if enough.cost > _DEAR * min(held, default=math.inf):
                break
            plan = self._try(enough, plan.choice.route)
        return plan

    def spare_replicas(self, plan: ConfirmedPlan) -> ConfirmedPlan:
        """Return the plan with fewer replicas, as long as these hold and the misses that they add
        cost less than they save; where none holds, as long as they are as likely to."""
        for choice in reversed(self._with_replicas(plan.choice)):
            if choice.replicas >= plan.choice.replicas:
                continue
            fewer = self._try(choice, plan.choice.route)
            if self.holds(plan):
                spares = self.holds(fewer) and fewer.cost <= plan.cost
            else:
                spares = fewer.figures.p_slo >= plan.figures.p_slo - _AS_SURE
            if not spares:
                return plan._replace(fewer=fewer)
            plan = fewer
        return plan

    def enlarge(self, plan: ConfirmedPlan) -> ConfirmedPlan | None:
        """Return the plan with more replicas, the next number of those that are looked at; None:
        there is none."""
        larger = (
            choice
            for choice in self._with_replicas(plan.choice)
            if choice.replicas > plan.choice.replicas
        )
        choice = next(larger, None)
        return None if choice is None else self._try(choice, plan.choice.route)

    def _check_first(self, plans: list[ConfirmedPlan]) -> list[ConfirmedPlan]:
        """Put first the first plan that also holds on the whole trace."""
        if not self.planning.traffic.has_times:
            return plans
        failed: list[ConfirmedPlan] = []
        for number, plan in enumerate(plans):
            if plan.figures.whole or not self.holds(plan):
                return [*plans[number:], *failed]
            self.planning.show(f"simulating the whole trace on {plan.choice.shorthand}")
            holds, requests = self.check(plan.choice, self.planning)
            if holds:
                checked = plan._replace(on_whole=requests)
                return [checked, *plans[number + 1 :], *failed]
            broken = plan.figures._replace(met=False, p_slo=0.0)
            failed.append(plan._replace(on_whole=requests, figures=broken))
        return failed


def confirm_plans(choices: Sequence[PlanChoice], planning: Planning) -> list[ConfirmedPlan]:
    """Return the plans to show, and the best of each GPU, as Confirmation has them; with --seed
    with the latencies that other requests give them, as likely to hold as before."""
    plans = Confirmation(choices, planning).confirm()
    if not planning.options.seed:
        return plans
    redrawn = planning.redraw()
    return [redraw_figures(plan, redrawn) for plan in plans]


def redraw_figures(plan: ConfirmedPlan, redrawn: Planning) -> ConfirmedPlan:
    """Return a plan with the latencies of other requests, as likely to hold as before."""
    figures = simulate_asked(plan.choice, redrawn)
    return plan._replace(figures=figures._replace(p_slo=plan.figures.p_slo))


def join_confirmed(
    choices: Sequence[PlanChoice], confirmed: Sequence[ConfirmedPlan]
) -> list[PlanChoice]:
    """Return the best choice of each finalist; of those that were confirmed, that one with its
    probability."""
    shown = {
        plan.choice.finalist.name: plan.choice._replace(p_slo=plan.figures.p_slo)
        for plan in confirmed
    }
    return [shown.get(choice.finalist.name, choice) for choice in best_of_each(choices)]
