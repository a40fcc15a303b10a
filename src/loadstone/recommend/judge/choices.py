"""Plans by expected regret over draws of the model's joint errors.

In each draw a deployment needs some number of replicas to hold the bounds. A plan that has them
costs what its GPUs cost. One that has too few costs what it takes to have enough there, and
`--miss-cost` times the least that would have held: bounds were broken before that was known. Its
regret is that cost less the least at which any plan holds in that draw. Plans are chosen by their
mean regret: not the cheapest that holds if all predictions are right, nor the one that is sure to
hold.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from loadstone.core.errors import InputError
from loadstone.core.vectors import Floats
from loadstone.engines.habits import Route
from loadstone.recommend.demand.options import HOURS_PER_MONTH
from loadstone.recommend.demand.planning import Planning
from loadstone.recommend.judge.errors import UncertainFinalist

_MAX_STEPS = 25
"""Numbers of replicas that are looked at from hardly any likelihood to the asked one."""
_QUANTILES = (0.05, 0.5, 0.8, 0.9, 0.95, 0.99)


class PlanChoice(NamedTuple):
    """A finalist with so many replicas. p_slo: the share of draws in which all bounds hold;
    regrets: by draw, in the unit of cost; tokens_per_s: median of all draws, where plans are ranked
    by it; losses: by draw, the neediest first, what a miss costs there; route: of the router before
    the replicas, once that is chosen."""

    finalist: UncertainFinalist
    replicas: int
    p_slo: float
    cost: float
    regrets: Floats
    tokens_per_s: float | None = None
    losses: Floats = np.zeros(1)
    route: Route | None = None

    @property
    def regret(self) -> float:
        return float(self.regrets.mean())

    @property
    def rank(self) -> float:
        """Return what plans are sorted by, the least first."""
        return self.regret if self.tokens_per_s is None else -self.tokens_per_s

    def expected_misses(self, p_slo: float) -> float:
        """Return what misses cost on average where bounds hold with that probability: those of the
        neediest draws."""
        draws = len(self.losses)
        shares = np.clip((1 - p_slo) * draws - np.arange(draws), 0, 1)
        return float((shares * self.losses).sum() / draws)

    @property
    def gpus(self) -> int:
        return self.replicas * self.finalist.deployment.gpus

    @property
    def gpu(self) -> str:
        """The kind of GPU."""
        return self.finalist.candidate.worker.gpu.name

    @property
    def usd_per_month(self) -> float:
        """Dollars a month, where prices are known."""
        return self.cost * HOURS_PER_MONTH

    @property
    def shorthand(self) -> str:
        return f"{self.replicas} × {self.finalist.name}"


def rank_choices(finalists: Sequence[UncertainFinalist], planning: Planning) -> list[PlanChoice]:
    """Return the plans of each finalist that are worth a thought: those that hold with
    --confidence, the least regret or the most tokens first, then the others. Raises InputError
    where the reserve leaves no GPU for the traffic."""
    rank = _rank_by_throughput if planning.by_throughput else _rank_by_cost
    confidence = planning.choice.confidence
    return sorted(
        rank(finalists, planning), key=lambda choice: (choice.p_slo < confidence, choice.rank)
    )


def _rank_by_cost(finalists: Sequence[UncertainFinalist], planning: Planning) -> list[PlanChoice]:
    options = planning.choice
    gpus_max = planning.search.gpus_max
    needed = np.array([finalist.replicas_needed(planning) for finalist in finalists])
    price = np.array([finalist.candidate.replica_cost for finalist in finalists])
    given = np.array([gpus_max // finalist.deployment.gpus for finalist in finalists], float)
    reachable = needed <= given[:, None]
    cost_to_hold = np.where(reachable, needed * price[:, None], np.inf)
    least = cost_to_hold.min(axis=0)
    # Where nothing within the GPUs holds, all are as wrong: what counts is what they cost.
    least = np.where(np.isfinite(least), least, np.max(given * price))
    choices = []
    for row, finalist in enumerate(finalists):
        planned = finalist.candidate.replicas + options.reserve
        counts = _counts_to_try(needed[row], int(given[row]), planned, options.confidence)
        for replicas in counts:
            if not options.reserve < replicas <= given[row]:
                continue
            cost = replicas * price[row]
            holds = needed[row] <= replicas
            # One that never holds is given up for the best there is.
            mended = np.where(reachable[row], cost_to_hold[row], np.maximum(least, cost))
            losses = np.maximum(mended - cost, price[row]) + options.miss_cost * least
            regrets = cost + np.where(holds, 0.0, losses) - least
            neediest = losses[np.argsort(-needed[row], kind="stable")]
            choices.append(
                PlanChoice(
                    finalist,
                    replicas,
                    float(holds.mean()),
                    float(cost),
                    regrets,
                    losses=neediest,
                )
            )
    if not choices:
        raise InputError(
            f"--reserve {options.reserve}: leaves none of --gpus-max {gpus_max} for the traffic;"
            " give more GPUs"
        )
    return choices


def _rank_by_throughput(
    finalists: Sequence[UncertainFinalist], planning: Planning
) -> list[PlanChoice]:
    """Return each finalist with as many replicas as there can be, ranked by the median of its
    tokens/s: the mean of what is divided by an uncertain time is the larger the less is known.
    Regrets are output tokens/s less than the best plan's in the draw; bounds that break there count
    as none at all, and times beyond their 90 % interval as its ends."""
    choices = []
    for finalist in finalists:
        replicas = finalist.candidate.max_replicas(planning)
        serving = replicas - planning.choice.reserve
        if serving < 1:
            continue
        holds = finalist.replicas_needed(planning) <= replicas
        rate = serving * finalist.curve.output_tokens_per_s(planning.traffic.demand / serving)
        slower = finalist.factors[:, 1]
        rates = rate / np.clip(slower, *np.quantile(slower, (0.05, 0.95))) * holds
        cost = replicas * finalist.candidate.replica_cost
        choices.append(
            PlanChoice(
                finalist, replicas, float(holds.mean()), cost, rates, float(np.median(rates))
            )
        )
    if not choices:
        raise InputError(
            "--gpus-max, --budget, --power-budget: give not one replica beyond --reserve; give more"
        )
    best = np.max([choice.regrets for choice in choices], axis=0)
    return [choice._replace(regrets=best - choice.regrets) for choice in choices]


def _counts_to_try(needed: Floats, given: int, planned: int, confidence: float) -> list[int]:
    """Return numbers of replicas around those that are needed in the draws."""
    enough = np.quantile(np.clip(needed, 1, given), (*_QUANTILES, confidence), method="higher")
    sure = math.ceil(enough[-1])
    counts = {planned, sure + 1, sure + 2, *(math.ceil(count) for count in enough)}
    steps = np.linspace(math.ceil(enough[0]), 1.5 * sure + 2, _MAX_STEPS)
    counts |= {int(count) for count in steps}
    for low, high in pairwise(sorted(counts)):  # and between those that are far apart
        doublings = math.ceil(math.log2(high / low))
        counts |= {low * 2**times for times in range(1, max(1, doublings))}
    return sorted(counts)


def best_of_each(choices: Sequence[PlanChoice]) -> list[PlanChoice]:
    """Return the first choice of each finalist, in their order."""
    best: dict[str, PlanChoice] = {}
    for choice in choices:
        best.setdefault(choice.finalist.name, choice)
    return list(best.values())


def affordable(choices: Sequence[PlanChoice], planning: Planning) -> list[PlanChoice]:
    """Return the choices that --budget pays for, by the hour where there is a day. Raises
    InputError where there are none."""
    budget, hours = planning.choice.budget, planning.traffic.hours
    if budget is None:
        return list(choices)
    if not planning.prices:
        raise InputError("--budget: needs prices; add e.g. --price h200=3.2")

    def month(choice: PlanChoice) -> float:
        if hours is None:
            return choice.usd_per_month
        replicas = float(hours.mean(hours.followed(choice.replicas, planning.choice.reserve)))
        return choice.usd_per_month * replicas / choice.replicas

    kept = [choice for choice in choices if month(choice) <= budget]
    if not kept:
        sure = [choice for choice in choices if choice.p_slo >= planning.choice.confidence]
        likeliest = max(choices, key=lambda choice: choice.p_slo)
        nearest = min(sure, key=month) if sure else likeliest
        raise InputError(
            f"--budget: ${budget:,.0f} a month is too little; the cheapest plan that holds,"
            f" {nearest.shorthand} with {nearest.p_slo:.0%}, takes ${month(nearest):,.0f}"
        )
    return kept
