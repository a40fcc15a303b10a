"""Values a measurement of each finalist.

It is worth the fall of the regret of the plan that one would choose after it: it comes out as each
draw in turn says, draws count by how likely it comes out so in them, and the plan that is best by
these is taken (the expected value of sample information, Raiffa and Schlaifer 1961).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from loadstone.core.vectors import Floats
from loadstone.recommend.demand.planning import Planning
from loadstone.recommend.judge.choices import PlanChoice
from loadstone.recommend.judge.errors import NOISE, UncertainFinalist

START_MINUTES = 2.0
"""The part of a measurement in which the engine starts."""
_MINUTES, _MAX_MINUTES = 10.0, 60.0
"""A measurement's length, at least and at most."""
_BEYOND = 10
"""Requests beyond a bounded quantile that tell where it is."""
_TAIL_SPREADS = np.array([0.5, 0.15])
"""By how much of itself the tail of TTFT, and of TPOT, falls off between requests: what chance does
to a quantile."""


class MeasurementValue(NamedTuple):
    """The expected regret now, and that of the plan one would choose after measuring this finalist
    for so long."""

    finalist: UncertainFinalist
    regret_now: float
    regret_after: float
    minutes: float
    requests: float


def plan_measurement(requests_per_s: float, quantile: float) -> tuple[float, float]:
    """Return the minutes of a measurement, and its requests: at least so long, and until some
    requests lie beyond the quantile, but not for ever. The first minutes are the engine's start."""
    enough_s = _BEYOND / (1 - quantile) / max(requests_per_s, 1e-9)
    minutes = min(_MAX_MINUTES, max(_MINUTES, enough_s / 60 + START_MINUTES))
    return minutes, requests_per_s * (minutes - START_MINUTES) * 60


def best_measurement(
    choices: Sequence[PlanChoice], finalists: Sequence[UncertainFinalist], planning: Planning
) -> MeasurementValue:
    """Return the measurement that is worth most, by how many requests each would get in its
    time."""
    serving = {
        choice.finalist.name: choice.replicas - planning.choice.reserve
        for choice in reversed(choices)
    }
    rates = []
    for finalist in finalists:
        share = planning.traffic.demand / serving.get(finalist.name, finalist.candidate.replicas)
        near = finalist.curve.nearest(share)
        per_s = share if planning.traffic.is_open else near.requests_per_s * share / near.load
        rates.append(per_s)
    quantile = max(bound.quantile for bound in planning.traffic.bounds)
    return value_measurements(choices, finalists, rates, quantile)[0]


def value_measurements(
    choices: Sequence[PlanChoice],
    finalists: Sequence[UncertainFinalist],
    rates: Sequence[float],
    quantile: float,
) -> list[MeasurementValue]:
    """Return the value of measuring each finalist, the most valuable first. `rates`: requests/s
    that each would get; the fewer there are beyond the bounded `quantile`, the less its time is
    known afterwards."""
    regrets = np.array([choice.regrets for choice in choices])
    regret_now = float(regrets.mean(axis=1).min())
    values = []
    for finalist, rate in zip(finalists, rates, strict=True):
        minutes, requests = plan_measurement(rate, quantile)
        chance = _TAIL_SPREADS * math.sqrt(quantile / ((1 - quantile) * max(1.0, requests)))
        outcomes = np.log(finalist.factors) / np.hypot(NOISE, chance)
        chosen = np.argmin(_weigh_draws(outcomes) @ regrets.T, axis=1)
        regret_after = float(regrets[chosen, np.arange(len(chosen))].mean())
        values.append(
            MeasurementValue(finalist, regret_now, min(regret_now, regret_after), minutes, requests)
        )
    return sorted(values, key=lambda value: value.regret_after)


def _weigh_draws(outcomes: Floats) -> Floats:
    """Return in each draw (rows) what would be measured there, and how well that fits every other
    draw."""
    gaps = outcomes[:, None, :] - outcomes[None, :, :]
    squares = (gaps**2).sum(axis=2) / 2  # both measured with noise
    weights: Floats = np.exp(-squares / 2)
    np.fill_diagonal(weights, 0.0)  # nobody knows the very draw
    weights[weights.sum(axis=1) < 1e-12] = 1.0
    weights /= weights.sum(axis=1, keepdims=True)
    return weights
