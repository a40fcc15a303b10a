"""How wrong the model may be about several deployments together, and what a measurement says of
them.

The logarithm of measured/predicted of TTFT and TPOT of all deployments is one normal vector. Its
covariance has three parts: the profile's coefficients, J·C·Jᵀ, common to deployments that share a
profile; what a model has of its own on an engine and a GPU, common to its deployments there; and
what is each deployment's alone. The last two are what remained when the profile was fitted. Their
shares follow from the points that it was fitted on: with each family's offset on an engine and GPU
known, the median error falls from 8.6 to 4.8 % in TPOT, and from 19.5 to 14 in TTFT
(docs/accuracy.md).

A measurement conditions the vector (the update of a Kalman filter). In a draw of it in which a
deployment's steps take m times as long, all that it does takes m times as long under 1/m of the
load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadstone.calibrate.update import SIGMA
from loadstone.predict.simulator.bound_errors import (
    AS_WIDE,
    QUANTITIES,
    TAILS,
    UNKNOWN,
    PredictionError,
    acceptance_spread,
    fleet_slopes,
    predict_slopes,
)
from loadstone.predict.step_time.coverage import uncovered_load
from loadstone.predict.step_time.profile import Quantity, is_own, remaining
from loadstone.recommend.candidates import Candidate, schedulers_in_step
from loadstone.recommend.traffic import Traffic

Array = NDArray[np.float64]

COMMON: dict[Quantity, float] = {"ttft": 1 - (14.0 / 19.5) ** 2, "tpot": 1 - (4.8 / 8.6) ** 2}
"""The share of the variance that remains which all deployments of a model on an engine and GPU have
in common."""
NOISE = np.array([SIGMA[quantity] for quantity in QUANTITIES])
"""Standard deviations of one measurement of TTFT and TPOT around the best that the model can do."""


@dataclass(frozen=True)
class JointErrors:
    """Mean and covariance of ln(measured/predicted): TTFT and TPOT of each deployment in turn."""

    mean: Array
    covariance: Array

    def draw(self, count: int, seed: int = 0) -> Array:
        """Draw factors of the predictions, count × deployments × (TTFT, TPOT). Their tails are
        Student's t's."""
        spread, axes = np.linalg.eigh(self.covariance)
        rng = np.random.default_rng(seed)
        wide = AS_WIDE * np.sqrt(TAILS / rng.chisquare(TAILS, (count, 1)))
        normal = rng.standard_normal((count, len(spread))) * np.sqrt(np.maximum(spread, 0.0)) * wide
        drawn: Array = np.exp(self.mean + normal @ axes.T)
        return drawn.reshape(count, -1, 2)

    def marginal(self, deployment: int) -> PredictionError:
        """Return the error of one deployment alone."""
        here = slice(2 * deployment, 2 * deployment + 2)
        return PredictionError(self.mean[here], self.covariance[here, here])

    def learn(self, deployment: int, gaps: Array) -> JointErrors:
        """Return the errors once TTFT and TPOT of a deployment were measured to be off by `gaps`;
        NaN: were not."""
        known = np.flatnonzero(np.isfinite(gaps))
        rows = [2 * deployment + int(each) for each in known]
        measured = self.covariance[np.ix_(rows, rows)] + np.diag(NOISE[known] ** 2)
        gain = np.linalg.solve(measured, self.covariance[rows, :]).T
        mean = self.mean + gain @ (gaps[known] - self.mean[rows])
        covariance = self.covariance - gain @ self.covariance[rows, :]
        return JointErrors(mean, (covariance + covariance.T) / 2)


def unmeasured_errors(
    candidates: Sequence[Candidate], traffic: Traffic, *, acceptance_known: bool = False
) -> JointErrors:
    """Return the errors before anything was measured."""
    count = len(candidates)
    covariance = np.zeros((2 * count, 2 * count))
    slopes = [_predict_slopes(each, traffic) for each in candidates]
    profiles = [each.model.profile for each in candidates]
    rest = [remaining(profile) for profile in profiles]
    for one in range(count):
        for other in range(count):
            block = np.zeros((2, 2))
            if profiles[one].name == profiles[other].name:
                block += slopes[one] @ np.array(profiles[one].covariance) @ slopes[other].T
            if candidates[one].group == candidates[other].group:
                for at, quantity in enumerate(QUANTITIES):
                    first, second = (rest[each].get(quantity, UNKNOWN) for each in (one, other))
                    share = 1.0 if one == other else COMMON[quantity]
                    block[at, at] += share * first * second
            if one == other and not acceptance_known:
                block[1, 1] += acceptance_spread(candidates[one].policy) ** 2
            covariance[2 * one : 2 * one + 2, 2 * other : 2 * other + 2] = block
    wider = np.repeat([_widen_for(each, traffic) for each in candidates], len(QUANTITIES))
    return JointErrors(np.zeros(2 * count), covariance * np.outer(wider, wider))


def _widen_for(candidate: Candidate, traffic: Traffic) -> float:
    """Return how much wider errors are where more run at once than any measurement covers, in a
    closed loop."""
    profile, policy = candidate.model.profile, candidate.policy
    if traffic.is_open or is_own(profile):
        return 1.0
    schedulers = candidate.deployment.dp if candidate.fleet is None else candidate.fleet.replicas
    running = min(traffic.demand / candidate.replicas, candidate.load) / schedulers
    running = running if traffic.sessions is None else candidate.level.decoding
    return profile.wider_for(
        uncovered_load(candidate.worker, 0, min(int(running), policy.max_seqs))
    )


def _predict_slopes(candidate: Candidate, traffic: Traffic) -> Array:
    """Return d ln (TTFT, TPOT) / d ln coefficient at the load that the deployment carries, 2 ×
    coefficients."""
    if candidate.fleet is not None:
        return fleet_slopes(candidate.fleet, candidate.level.decoding, traffic.lengths)
    in_step = schedulers_in_step(candidate.deployment)
    return predict_slopes(
        candidate.model, candidate.policy, in_step, candidate.level.decoding, traffic.lengths
    )
