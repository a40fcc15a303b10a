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
from itertools import product

import numpy as np

from loadstone.calibrate.update import SIGMA
from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.core.vectors import Floats
from loadstone.predict.simulator.uncertainty import (
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
from loadstone.recommend.demand.planning import Planning
from loadstone.recommend.demand.traffic import Traffic
from loadstone.recommend.search.candidates import Candidate
from loadstone.recommend.search.curve import (
    Curve,
)
from loadstone.recommend.search.finalists import Finalists
from loadstone.recommend.search.layouts import schedulers_in_step, shape_of

COMMON: dict[Quantity, float] = {"ttft": 1 - (14.0 / 19.5) ** 2, "tpot": 1 - (4.8 / 8.6) ** 2}
"""The share of the variance that remains which all deployments of a model on an engine and GPU have
in common."""
NOISE = np.array([SIGMA[quantity] for quantity in QUANTITIES])
"""Standard deviations of one measurement of TTFT and TPOT around the best that the model can do."""


@dataclass(frozen=True)
class JointErrors:
    """Mean and covariance of ln(measured/predicted): TTFT and TPOT of each deployment in turn."""

    mean: Floats
    covariance: Floats

    def draw(self, count: int, seed: int = 0) -> Floats:
        """Draw factors of the predictions, count × deployments × (TTFT, TPOT). Their tails are
        Student's t's."""
        spread, axes = np.linalg.eigh(self.covariance)
        rng = np.random.default_rng(seed)
        wide = AS_WIDE * np.sqrt(TAILS / rng.chisquare(TAILS, (count, 1)))
        normal = rng.standard_normal((count, len(spread))) * np.sqrt(np.maximum(spread, 0.0)) * wide
        drawn: Floats = np.exp(self.mean + normal @ axes.T)
        return drawn.reshape(count, -1, 2)

    def marginal(self, deployment: int) -> PredictionError:
        """Return the error of one deployment alone."""
        rows = slice(2 * deployment, 2 * deployment + 2)
        return PredictionError(self.mean[rows], self.covariance[rows, rows])

    def learn(self, deployment: int, gaps: Floats) -> JointErrors:
        """Return the errors once TTFT and TPOT of a deployment were measured to be off by `gaps`;
        NaN: were not."""
        quantities = np.flatnonzero(np.isfinite(gaps))
        rows = 2 * deployment + quantities
        noise = np.diag(NOISE[quantities] ** 2)
        measured = self.covariance[np.ix_(rows, rows)] + noise
        gain = np.linalg.solve(measured, self.covariance[rows, :]).T
        mean = self.mean + gain @ (gaps[quantities] - self.mean[rows])
        covariance = self.covariance - gain @ self.covariance[rows, :]
        return JointErrors(mean, (covariance + covariance.T) / 2)


@dataclass(frozen=True, eq=False)
class UncertainFinalist:
    """A finalist with its simulations, and how wrong these may be.

    error         of ln(measured/predicted), of TTFT and TPOT
    factors       draws of the errors, draws × (TTFT, TPOT)
    capacities    by draw, what a replica carries within the bounds (requests/s, or under way)
    learned       the errors are not those of the profile alone: runs were measured
    """

    candidate: Candidate
    curve: Curve
    error: PredictionError
    factors: Floats
    capacities: Floats
    learned: bool = False

    @property
    def deployment(self) -> Deployment:
        return self.candidate.deployment

    @property
    def name(self) -> str:
        return self.candidate.deployment.name

    def replicas_needed(self, planning: Planning) -> Floats:
        """Return how many replicas hold the bounds under the traffic in each draw, those that may
        fail included."""
        capacities = np.maximum(self.capacities, 1e-9)
        needed = np.ceil(planning.traffic.demand / capacities * (1 - 1e-9))
        return np.asarray(needed + planning.choice.reserve)

    def needed_interval(self, planning: Planning) -> Floats:
        """Return the ends of the 80 % interval of the replicas that are needed, of those that
        --gpus-max gives."""
        given = planning.search.gpus_max // self.deployment.gpus
        needed = np.minimum(self.replicas_needed(planning), given)
        return np.asarray(np.quantile(needed, (0.1, 0.9)))


def draw_errors(finalists: Finalists, planning: Planning) -> list[UncertainFinalist]:
    """Return the finalists with draws of their errors, once all measurements are known."""
    return draw_joint_errors([(finalists, planning)])[0]


def draw_joint_errors(
    searches: Sequence[tuple[Finalists, Planning]],
) -> list[list[UncertainFinalist]]:
    """Return the finalists of several searches, with draws of the errors of all of them together;
    what was measured is the same in all."""
    rows = [(simulated, planning) for found, planning in searches for simulated in found.simulated]
    candidates = [simulated.candidate for simulated, _ in rows]
    errors = unmeasured_errors(candidates, *(planning for _, planning in rows))
    names = [candidate.name for candidate in candidates]
    first, choice = searches[0]
    for run in first.measured:
        if run.deployment in names and not run.wrong:
            errors = errors.learn(names.index(run.deployment), run.gaps)
    factors = iter(enumerate(np.moveaxis(errors.draw(choice.effort.draws), 1, 0)))
    drawn: list[list[UncertainFinalist]] = []
    for found, planning in searches:
        drawn.append([])
        for (candidate, curve), (number, of_finalist) in zip(
            found.simulated, factors, strict=False
        ):
            drawn[-1].append(
                UncertainFinalist(
                    candidate=candidate,
                    curve=curve,
                    error=errors.marginal(number),
                    factors=of_finalist,
                    capacities=curve.capacities(planning.traffic, of_finalist),
                    learned=bool(found.measured),
                )
            )
    return drawn


def unmeasured_errors(candidates: Sequence[Candidate], *plannings: Planning) -> JointErrors:
    """Return the errors before anything was measured. `plannings`: of each, or of all."""
    count = len(candidates)
    plannings = plannings if len(plannings) == count else plannings * count
    covariance: Floats = np.zeros((2 * count, 2 * count))
    slopes = [
        _predict_slopes(candidate, planning.traffic)
        for candidate, planning in zip(candidates, plannings, strict=True)
    ]
    profiles = [candidate.model.profile for candidate in candidates]
    spreads = [
        [remaining(profile).get(quantity, UNKNOWN) for quantity in QUANTITIES]
        for profile in profiles
    ]
    for row, column in product(range(count), repeat=2):
        block = np.zeros((2, 2))
        if profiles[row].name == profiles[column].name:
            block += slopes[row] @ np.array(profiles[row].covariance) @ slopes[column].T
        if _have_in_common(candidates[row], candidates[column]):
            # A layout under another traffic is the same one.
            same = row == column or (
                plannings[row] is not plannings[column]
                and shape_of(candidates[row].worker) == shape_of(candidates[column].worker)
            )
            for number, quantity in enumerate(QUANTITIES):
                share = 1.0 if same else COMMON[quantity]
                block[number, number] += share * spreads[row][number] * spreads[column][number]
        if row == column and not plannings[row].acceptance_known:
            block[1, 1] += acceptance_spread(candidates[row].policy) ** 2
        covariance[2 * row : 2 * row + 2, 2 * column : 2 * column + 2] = block
    if plannings[0].traffic.texts:  # of one time, there is one error
        covariance = covariance[::2, ::2].repeat(2, axis=0).repeat(2, axis=1)
    wider = [
        _widen_for(candidate, planning.traffic)
        for candidate, planning in zip(candidates, plannings, strict=True)
    ]
    scale = np.repeat(wider, len(QUANTITIES))
    return JointErrors(np.zeros(2 * count), covariance * np.outer(scale, scale))


def _have_in_common(candidate: Candidate, rival: Candidate) -> bool:
    """Tell whether both are of one model, on one engine and GPU."""
    one_model = candidate.worker.model.name == rival.worker.model.name
    return one_model and candidate.group == rival.group


def _widen_for(candidate: Candidate, traffic: Traffic) -> float:
    """Return how much wider errors are where more run at once than any measurement covers, in a
    closed loop."""
    profile, policy = candidate.model.profile, candidate.policy
    if traffic.is_open or is_own(profile):
        return 1.0
    schedulers = candidate.worker.dp if candidate.fleet is None else candidate.fleet.replicas
    running = min(traffic.demand / candidate.replicas, candidate.load) / schedulers
    if traffic.sessions is not None:
        running = candidate.level.decoding
    return profile.wider_for(
        uncovered_load(candidate.worker, 0, min(int(running), policy.max_seqs))
    )


def _predict_slopes(candidate: Candidate, traffic: Traffic) -> Floats:
    """Return d ln (TTFT, TPOT) / d ln coefficient at the load that the deployment carries, 2 ×
    coefficients."""
    decoding = candidate.level.decoding
    if candidate.fleet is not None:
        return fleet_slopes(candidate.fleet, decoding, traffic.lengths)
    in_step = schedulers_in_step(candidate.worker)
    return predict_slopes(candidate.model, candidate.policy, in_step, decoding, traffic.lengths)
