"""Plans, and measurements, by expected regret over draws of the model's joint errors.

In each draw a deployment needs some number of replicas to hold the bounds. A plan that has them
costs what its GPUs cost. One that has too few costs what it takes to have enough there, and
`--miss-cost` times the least that would have held: bounds were broken before that was known. Its
regret is that cost less the least at which any plan holds in that draw. Plans are chosen by their
mean regret: not the cheapest that holds if all predictions are right, nor the one that is sure to
hold.

A measurement is worth the fall of the regret of the plan that one would choose after it: it comes
out as each draw in turn says, draws count by how likely it comes out so in them, and the plan that
is best by these is taken (the expected value of sample information, Raiffa and Schlaifer 1961).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from loadstone.core.errors import InputError
from loadstone.recommend.candidates import most_replicas
from loadstone.recommend.curve import Array
from loadstone.recommend.errors import NOISE
from loadstone.recommend.finalists import SimulatedCandidate
from loadstone.recommend.options import HOURS_PER_MONTH, RecommendOptions
from loadstone.recommend.traffic import Traffic

_MINUTES, _MOST_MINUTES, _START_MINUTES = 10.0, 60.0, 2.0
"""A measurement's length, at least and at most, and the part of it in which the engine starts."""
_BEYOND = 10
"""Requests beyond a bounded quantile that tell where it is."""
_TAIL_SPREADS = 0.5, 0.15
"""By how much of itself the tail of TTFT, and of TPOT, falls off between requests: what chance does
to a quantile."""
_QUANTILES = (0.05, 0.5, 0.8, 0.9, 0.95, 0.99)


class PlanChoice(NamedTuple):
    """A finalist with so many replicas. p_slo: the share of draws in which all bounds hold;
    regrets: by draw, in the unit of cost."""

    finalist: SimulatedCandidate
    replicas: int
    p_slo: float
    cost: float
    regrets: Array

    @property
    def regret(self) -> float:
        return float(self.regrets.mean())


def rank_choices(
    finalists: Sequence[SimulatedCandidate], traffic: Traffic, options: RecommendOptions
) -> list[PlanChoice]:
    """Return the plans of each finalist that are worth a thought: those that hold with
    --confidence, the least regret first, then the others. Raises InputError where the reserve
    leaves no GPU for the traffic."""
    if options.objective == "throughput":
        return _rank_by_throughput(finalists, traffic, options)
    reserve = options.reserve
    needed = np.array([each.replicas_needed(traffic, reserve) for each in finalists])
    price = np.array([each.replica_cost for each in finalists])
    most = np.array([options.gpus_max // each.deployment.gpus for each in finalists], float)
    reachable = needed <= most[:, None]
    cost_there = np.where(reachable, needed * price[:, None], np.inf)
    least = cost_there.min(axis=0)
    # Where nothing within the GPUs holds, all are as wrong: what counts is what they cost.
    least = np.where(np.isfinite(least), least, np.max(most * price))
    choices = []
    for at, finalist in enumerate(finalists):
        planned = finalist.candidate.replicas + reserve
        for replicas in _counts_to_try(
            needed[at], int(most[at]), planned, reserve + 1, options.confidence
        ):
            cost = replicas * price[at]
            holds = needed[at] <= replicas
            # One that never holds is given up for the best there is.
            mended = (
                np.where(reachable[at], cost_there[at], np.maximum(least, cost))
                + options.miss_cost * least
            )
            regrets = np.where(holds, cost, mended) - least
            choices.append(
                PlanChoice(finalist, replicas, float(holds.mean()), float(cost), regrets)
            )
    if not choices:
        raise InputError(
            f"--reserve {reserve}: leaves none of --gpus-max {options.gpus_max} for the traffic;"
            " give more GPUs"
        )
    return sorted(choices, key=lambda each: (each.p_slo < options.confidence, each.regret))


def _rank_by_throughput(
    finalists: Sequence[SimulatedCandidate], traffic: Traffic, options: RecommendOptions
) -> list[PlanChoice]:
    """Return each finalist with as many replicas as there can be. Regrets are output tokens/s less
    than the best plan's in the draw; bounds that break there count as none at all."""
    choices = []
    for each in finalists:
        replicas = most_replicas(each.candidate, options)
        serving = replicas - options.reserve
        if serving < 1:
            continue
        holds = each.replicas_needed(traffic, options.reserve) <= replicas
        rates = (
            serving
            * each.curve.output_tokens_per_s(traffic.demand / serving)
            / each.factors[:, 1]
            * holds
        )
        choices.append(
            PlanChoice(each, replicas, float(holds.mean()), replicas * each.replica_cost, rates)
        )
    if not choices:
        raise InputError("--gpus-max, --budget: give not one replica beyond --reserve; give more")
    best = np.max([each.regrets for each in choices], axis=0)
    choices = [each._replace(regrets=best - each.regrets) for each in choices]
    return sorted(choices, key=lambda each: (each.p_slo < options.confidence, each.regret))


def _counts_to_try(
    needed: Array, most: int, planned: int, least: int, confidence: float
) -> list[int]:
    enough = np.quantile(np.clip(needed, 1, most), (*_QUANTILES, confidence), method="higher")
    wanted = {planned, *(math.ceil(value) for value in enough)}
    wanted |= {math.ceil(enough[-1]) + more for more in (1, 2)}
    for low, high in pairwise(sorted(wanted)):  # and between those that are far apart
        wanted |= {low * 2**times for times in range(1, max(1, math.ceil(math.log2(high / low))))}
    return sorted(each for each in wanted if least <= each <= most)


def best_of_each(choices: Sequence[PlanChoice]) -> list[PlanChoice]:
    """Return the first choice of each finalist, in their order."""
    best: dict[str, PlanChoice] = {}
    for choice in choices:
        best.setdefault(choice.finalist.name, choice)
    return list(best.values())


def affordable(
    choices: Sequence[PlanChoice], traffic: Traffic, options: RecommendOptions
) -> list[PlanChoice]:
    """Return the choices that --budget pays for, by the hour where there is a day. Raises
    InputError where there are none."""
    if options.budget is None:
        return list(choices)
    if not options.price:
        raise InputError("--budget: needs prices; add e.g. --price h200=3.2")

    def month(choice: PlanChoice) -> float:
        dollars, hours = choice.cost * HOURS_PER_MONTH, traffic.hours
        if hours is None:
            return dollars
        return (
            dollars
            * float(hours.mean(hours.followed(choice.replicas, options.reserve)))
            / choice.replicas
        )

    kept = [choice for choice in choices if month(choice) <= options.budget]
    if not kept:
        sure = [each for each in choices if each.p_slo >= options.confidence]
        least = min(sure, key=month) if sure else max(choices, key=lambda each: each.p_slo)
        raise InputError(
            f"--budget: ${options.budget:,.0f} a month is too little; the cheapest plan that holds,"
            f" {least.replicas} × {least.finalist.name} with {least.p_slo:.0%}, takes"
            f" ${month(least):,.0f}"
        )
    return kept


class MeasurementValue(NamedTuple):
    """The expected regret now, and that of the plan one would choose after measuring this finalist
    for so long."""

    finalist: SimulatedCandidate
    regret_now: float
    regret_after: float
    minutes: float = _MINUTES
    requests: float = math.inf


def plan_measurement(requests_per_s: float, quantile: float) -> tuple[float, float]:
    """Return the minutes of a measurement, and its requests: at least so long, and until some
    requests lie beyond the quantile, but not for ever. The first minutes are the engine's start."""
    enough_s = _BEYOND / (1 - quantile) / max(requests_per_s, 1e-9)
    minutes = min(_MOST_MINUTES, max(_MINUTES, enough_s / 60 + _START_MINUTES))
    return minutes, requests_per_s * (minutes - _START_MINUTES) * 60


def value_measurements(
    choices: Sequence[PlanChoice],
    finalists: Sequence[SimulatedCandidate],
    rates: Sequence[float] | None = None,
    quantile: float = 0.5,
) -> list[MeasurementValue]:
    """Return the value of measuring each finalist, the most valuable first. `rates`: requests/s
    that each would get; the fewer there are beyond the bounded `quantile`, the less its time is
    known afterwards."""
    regrets = np.array([choice.regrets for choice in choices])
    now = float(regrets.mean(axis=1).min())
    values = []
    for at, finalist in enumerate(finalists):
        minutes, requests = (
            plan_measurement(rates[at], quantile) if rates is not None else (_MINUTES, math.inf)
        )
        chance = np.array(_TAIL_SPREADS) * math.sqrt(
            quantile / ((1 - quantile) * max(1.0, requests))
        )
        outcomes = np.log(finalist.factors) / np.hypot(NOISE, chance)
        # In each draw (rows) what would be measured there, and how well that fits every other draw.
        far = ((outcomes[:, None, :] - outcomes[None, :, :]) ** 2).sum(
            axis=2
        ) / 2  # both measured with noise
        weights = np.exp(-far / 2)
        np.fill_diagonal(weights, 0.0)  # nobody knows the very draw
        weights[weights.sum(axis=1) < 1e-12] = 1.0
        weights /= weights.sum(axis=1, keepdims=True)
        chosen = np.argmin(weights @ regrets.T, axis=1)
        after = float(regrets[chosen, np.arange(len(chosen))].mean())
        values.append(MeasurementValue(finalist, now, min(now, after), minutes, requests))
    return sorted(values, key=lambda each: each.regret_after)
