"""How wrong the model may be about several deployments together, and what a measurement says of them.

The logarithm of measured/predicted of TTFT and TPOT of all deployments is one normal vector. Its covariance has three
parts: the profile's coefficients, J·C·Jᵀ, common to deployments that share a profile; what a model has of its own on
an engine and a GPU, common to its deployments there; and what is each deployment's alone. The last two are what
remained when the profile was fitted. Their shares follow from the points that it was fitted on: with each family's
offset on an engine and GPU known, the median error falls from 8.6 to 4.8 % in TPOT, and from 19.5 to 14 in TTFT
(docs/accuracy.md).

A measurement conditions the vector (the update of a Kalman filter). In a draw of it in which a deployment's steps
take m times as long, all that it does takes m times as long under 1/m of the load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadstone.calibrate.update import SIGMA
from loadstone.core.statistics.distribution import Z80
from loadstone.predict.steady_state import steady_state
from loadstone.predict.step_time import StepModel
from loadstone.predict.step_time.profile import Quantity, remaining
from loadstone.recommend.candidates import Candidate, schedulers_in_step
from loadstone.recommend.traffic import Traffic

Array = NDArray[np.float64]

QUANTITIES: tuple[Quantity, Quantity] = ("ttft", "tpot")
COMMON: dict[Quantity, float] = {"ttft": 1 - (14.0 / 19.5) ** 2, "tpot": 1 - (4.8 / 8.6) ** 2}
"""The share of the variance that remains which all deployments of a model on an engine and GPU have in common."""
TAILS = 3.0
"""Degrees of freedom of the errors: held-out rows are far off more often than normal ones would be. Of 2, 3 and 4 all
state probabilities better than normal errors do (benchmarks/planner_choice.py)."""
_AS_WIDE = Z80 / 1.637744
"""So that the 80 % interval is that of the normal: the 0.9-quantile of it over that of t with 3 degrees."""
_ACCEPTANCE_SPREAD = 0.1
"""Standard deviation of an assumed acceptance."""
_MOVE = 1e-3
NOISE = np.array([SIGMA[quantity] for quantity in QUANTITIES])
"""Standard deviations of one measurement of TTFT and TPOT around the best that the model can do."""


@dataclass(frozen=True)
class JointErrors:
    """Mean and covariance of ln(measured/predicted): TTFT and TPOT of each deployment in turn."""

    mean: Array
    covariance: Array

    def draw(self, count: int, seed: int) -> Array:
        """Draw factors of the predictions, count × deployments × (TTFT, TPOT). Their tails are Student's t's."""
        spread, axes = np.linalg.eigh(self.covariance)
        rng = np.random.default_rng(seed)
        wide = _AS_WIDE * np.sqrt(TAILS / rng.chisquare(TAILS, (count, 1)))
        normal = rng.standard_normal((count, len(spread))) * np.sqrt(np.maximum(spread, 0.0)) * wide
        drawn: Array = np.exp(self.mean + normal @ axes.T)
        return drawn.reshape(count, -1, 2)

    def learn(self, deployment: int, gaps: Array) -> JointErrors:
        """Return the errors once TTFT and TPOT of a deployment were measured to be off by `gaps`; NaN: were not."""
        known = np.flatnonzero(np.isfinite(gaps))
        rows = [2 * deployment + int(each) for each in known]
        measured = self.covariance[np.ix_(rows, rows)] + np.diag(NOISE[known] ** 2)
        gain = np.linalg.solve(measured, self.covariance[rows, :]).T
        mean = self.mean + gain @ (gaps[known] - self.mean[rows])
        covariance = self.covariance - gain @ self.covariance[rows, :]
        return JointErrors(mean, (covariance + covariance.T) / 2)


def unmeasured_errors(candidates: Sequence[Candidate], traffic: Traffic) -> JointErrors:
    """Return the errors before anything was measured."""
    count = len(candidates)
    covariance = np.zeros((2 * count, 2 * count))
    slopes = [_slopes(each, traffic) for each in candidates]
    profiles = [each.model.profile for each in candidates]
    rest = [remaining(profile) for profile in profiles]
    for one in range(count):
        for other in range(count):
            block = np.zeros((2, 2))
            if profiles[one].name == profiles[other].name:
                block += slopes[one] @ np.array(profiles[one].covariance) @ slopes[other].T
            if candidates[one].group == candidates[other].group:
                for at, quantity in enumerate(QUANTITIES):
                    first, second = (rest[each].get(quantity, 0.3) for each in (one, other))
                    share = 1.0 if one == other else COMMON[quantity]
                    block[at, at] += share * first * second
            if one == other:
                block[1, 1] += _acceptance_spread(candidates[one]) ** 2
            covariance[2 * one : 2 * one + 2, 2 * other : 2 * other + 2] = block
    return JointErrors(np.zeros(2 * count), covariance)


def _slopes(candidate: Candidate, traffic: Traffic) -> Array:
    """Return d ln (TTFT, TPOT) / d ln coefficient at the load that the deployment carries, 2 × coefficients."""

    def logarithms(model: StepModel) -> Array:
        level = steady_state(
            model,
            candidate.policy,
            schedulers_in_step(candidate.deployment),
            candidate.level.decoding,
            traffic.input_tokens,
            traffic.output_tokens,
        )
        return np.asarray(np.log(np.array([level.base_s, level.tpot_s])))

    here = logarithms(candidate.model)
    columns = []
    for number in range(len(candidate.model.values)):
        values = candidate.model.values.copy()
        values[number] *= np.exp(_MOVE)
        columns.append((logarithms(candidate.model.at(values)) - here) / _MOVE)
    return np.array(columns).T


def _acceptance_spread(candidate: Candidate) -> float:
    """Return the relative spread of TPOT by what is not known of a draft's acceptance."""
    speculative = candidate.policy.speculative
    if speculative is None:
        return 0.0
    drafts, rate = speculative.draft_tokens, speculative.acceptance
    slope = sum(power * rate ** (power - 1) for power in range(1, drafts + 1))
    return _ACCEPTANCE_SPREAD * slope / speculative.tokens_per_step
