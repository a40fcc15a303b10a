"""Which plan, and which measurement: by expected regret over worlds, draws of the model's joint errors.

In a world each deployment needs some number of replicas to hold the bounds. A plan that has them costs what its GPUs
cost. One that has too few costs what it takes to have enough there, and `miss` times the least that would have held:
bounds were broken before that was known. Its regret is that cost less the least at which any plan holds in that
world. Plans are chosen by their mean regret: not the cheapest that holds if all predictions are right, nor the one
that is sure to hold.

What a measurement is worth is how much lower the regret of the plan is that one would choose after it: in each world
in turn it would come out so, worlds count by how likely it comes out so in them, and the plan that is best by these
is taken (the expected value of sample information, Raiffa and Schlaifer 1961).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from loadstone.core.errors import InputError
from loadstone.recommend.candidates import Candidate
from loadstone.recommend.curve import Curve
from loadstone.recommend.errors import Array, Errors, noise
from loadstone.recommend.traffic import Traffic

WORLDS = 1024
_LOADS = 240
_QUANTILES = (0.05, 0.5, 0.8, 0.9, 0.95, 0.99)


class Choice(NamedTuple):
    """A deployment with so many replicas. p_slo: the share of worlds in which all bounds hold; regret in the unit of
    cost."""

    candidate: int
    replicas: int
    p_slo: float
    cost: float
    regret: float = 0.0


class Outlook(NamedTuple):
    """All choices, the best first; by candidate what a replica carries in each world (requests/s, or under way)."""

    choices: list[Choice]
    capacities: Array
    factors: Array
    regrets: Array

    @property
    def best(self) -> dict[int, Choice]:
        """By candidate, its best choice, the best of all first."""
        best: dict[int, Choice] = {}
        for choice in self.choices:
            best.setdefault(choice.candidate, choice)
        return best

    """Choices × worlds, in the order of `choices`."""


def outlook(
    candidates: Sequence[Candidate],
    curves: Sequence[Curve],
    traffic: Traffic,
    errors: Errors,
    gpus_max: int,
    seed: int,
    miss: float,
    reserve: int = 0,
) -> Outlook:
    """`reserve`: replicas that may fail, of any deployment. Raises InputError: nothing is left beside it."""
    factors = errors.worlds(WORLDS, seed)
    capacities = np.array([
        capacity_in(curve, traffic, factors[:, at]) for at, curve in enumerate(curves)
    ])  # fmt: skip
    with np.errstate(divide="ignore"):
        needed = np.ceil(traffic.demand / capacities * (1 - 1e-9)) + reserve
    each = np.array([one.cost / one.replicas for one in candidates])
    most = np.array([gpus_max // one.deployment.gpus for one in candidates], float)
    reachable = needed <= most[:, None]
    cost_there = np.where(reachable, needed * each[:, None], np.inf)
    least = cost_there.min(axis=0)
    # Where nothing within the GPUs holds, all are as wrong: what counts is what they cost.
    dearest = np.max(most * each)
    least = np.where(np.isfinite(least), least, dearest)
    rows: list[Choice] = []
    regrets: list[Array] = []
    for at in range(len(candidates)):
        for replicas in _worth_trying(needed[at], int(most[at]), candidates[at].replicas + reserve, reserve + 1):
            cost = replicas * each[at]
            holds = needed[at] <= replicas
            # One that never holds is given up for the best there is.
            mended = np.where(reachable[at], cost_there[at], np.maximum(least, cost)) + miss * least
            regret = np.where(holds, cost, mended) - least
            rows.append(Choice(at, replicas, float(holds.mean()), float(cost)))
            regrets.append(regret)
    if not rows:
        raise InputError(f"--reserve {reserve}: leaves none of --gpus-max {gpus_max} for the traffic; give more GPUs")
    table = np.array(regrets)
    order = np.argsort(table.mean(axis=1), kind="stable")
    choices = [rows[row]._replace(regret=float(table[row].mean())) for row in order]
    return Outlook(choices, capacities, factors, table[order])


def _worth_trying(needed: Array, most: int, planned: int, least: int) -> list[int]:
    enough = np.quantile(np.clip(needed, 1, most), _QUANTILES)
    wanted = {planned, *(math.ceil(value) for value in enough)}
    return sorted(each for each in wanted if least <= each <= most)


def capacity_in(curve: Curve, traffic: Traffic, factors: Array) -> Array:
    """The load that a replica carries within all bounds, by world: `factors` (worlds × (TTFT, TPOT)) of its times."""
    if not curve.seen or not any(each.keeps_up for each in curve.seen):
        return np.zeros(len(factors))
    lowest, highest = curve.seen[0].load, max(curve.saturates, curve.seen[-1].load)
    loads = np.exp(np.linspace(math.log(lowest / 20), math.log(highest * 3), _LOADS))
    slower = factors[:, 1:2] if traffic.is_open else np.ones((len(factors), 1))
    effective = loads[None, :] * slower  # what the engine of this world feels like, on the clock of the simulated
    good = effective <= (curve.saturates * 1.02 if traffic.is_open else np.inf)
    for bound in traffic.bounds:
        by_ttft = bound.metric == "ttft"
        value = curve.figure(bound.name, effective.ravel()).reshape(effective.shape)
        good &= value * factors[:, 0 : 1 if by_ttft else 2][:, -1:] <= bound.bound_s
    # The largest load below which all hold.
    first_bad = np.where(good.all(axis=1), len(loads), np.argmin(good, axis=1))
    return np.where(first_bad > 0, loads[np.maximum(first_bad, 1) - 1], 0.0)


class Advice(NamedTuple):
    """Measure this candidate: the expected regret now, and of what would be chosen after it."""

    candidate: int
    regret_now: float
    regret_after: float


def advice(outlook: Outlook, errors: Errors, count: int) -> list[Advice]:
    """What measuring each of the first `count` candidates would be worth, the most valuable first."""
    logs = np.log(outlook.factors)
    now = float(outlook.regrets.mean(axis=1).min())
    sigma = noise()
    several = []
    for at in range(count):
        seen = logs[:, at] / sigma
        # In each world (rows) what would be measured there, and how well that fits every other world.
        far = ((seen[:, None, :] - seen[None, :, :]) ** 2).sum(axis=2) / 2  # both measured with noise
        weights = np.exp(-far / 2)
        np.fill_diagonal(weights, 0.0)  # nobody knows the very world
        total = weights.sum(axis=1)
        lonely = total < 1e-12
        weights[lonely] = 1.0
        weights /= weights.sum(axis=1, keepdims=True)
        chosen = np.argmin(weights @ outlook.regrets.T, axis=1)
        after = float(outlook.regrets[chosen, np.arange(len(chosen))].mean())
        several.append(Advice(at, now, min(now, after)))
    return sorted(several, key=lambda each: each.regret_after)
