"""Computes what launches say about settings: a posterior over the logarithms of their values.

A launch's value is `setting + round + noise`, all logarithms: settings are N(prior mean, prior
covariance + spread²), rounds (one plan for all settings of it) have a wide prior, so that only
differences within rounds count, and noise is N(0, sd²) from launch to launch. Spread and noise are
not known: the posterior is a mixture over a grid of both, weighted by how likely the launches are
under each pair (Gelman et al., Bayesian Data Analysis, chapter 5).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from loadstone.core.vectors import Floats

SPREADS = (0.0, 0.005, 0.01, 0.02, 0.035, 0.06, 0.1, 0.18, 0.35)
"""How far settings may lie apart beyond what the prior says, as sds of logarithms."""
NOISES = (0.002, 0.005, 0.01, 0.02, 0.03, 0.045, 0.07, 0.1, 0.15, 0.25)
"""How far launches of one setting may lie apart, as sds of logarithms."""
_SPREAD_WEIGHTS = (0.3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05)
"""Prior weights of the spreads: often flags change nothing at all."""
_ROUND_SD = 0.5
_DRAWS = 4_000


class Observation(NamedTuple):
    """A launch that was measured.

    setting  its index; `round`: from 0
    value    the logarithm of what was measured; larger is better
    """

    setting: int
    round: int
    value: float


class Prior(NamedTuple):
    """Holds what is believed before any launch: means (n) and covariance (n × n) of logarithms."""

    mean: Floats
    covariance: Floats

    @classmethod
    def flat(cls, count: int) -> "Prior":
        return cls(np.zeros(count), np.zeros((count, count)))


class Belief(NamedTuple):
    """Holds the posterior of settings.

    draws  (draws × settings), logarithms up to a constant that all settings of a draw share
    noise  the posterior mean of the noise's sd
    """

    draws: Floats
    noise: float

    @property
    def mean(self) -> Floats:
        """Return the posterior means, relative to the first setting, which is the default."""
        means: Floats = (self.draws - self.draws[:, :1]).mean(axis=0)
        return means

    def best(self, among: Sequence[int]) -> int:
        """Return the setting with the largest posterior mean."""
        return max(among, key=lambda index: float(self.draws[:, index].mean()))

    def regret(self, setting: int, among: Sequence[int]) -> float:
        """Return by how much the best setting is expected to be better, as a logarithm."""
        return float((self.draws[:, among].max(axis=1) - self.draws[:, setting]).mean())

    def near_best(self, setting: int, among: Sequence[int], within: float) -> float:
        """Return the probability that a setting is within `within` (a logarithm) of the best."""
        best = self.draws[:, among].max(axis=1)
        return float((self.draws[:, setting] >= best - within).mean())

    def improvements(self, setting: int) -> Floats:
        """Return for every setting by how much it is expected to be better than this one, counting
        0 where it is worse."""
        better: Floats = np.maximum(self.draws - self.draws[:, [setting]], 0).mean(axis=0)
        return better

    def beaten(self, setting: int, among: Sequence[int], margin: float) -> float:
        """Return the probability that any setting is better than this one by `margin`."""
        best = self.draws[:, among].max(axis=1)
        return float((best > self.draws[:, setting] + margin).mean())


def believe(prior: Prior, seen: Sequence[Observation], rng: np.random.Generator) -> Belief:
    """Return the posterior after these launches."""
    count = len(prior.mean)
    settings = np.array([launch.setting for launch in seen], dtype=int)
    rounds = np.array([launch.round for launch in seen], dtype=int)
    values = np.array([launch.value for launch in seen])
    values = values - (values.mean() if len(values) else 0.0)
    same_setting = (settings[:, None] == settings[None, :]).astype(float)
    same_round = (rounds[:, None] == rounds[None, :]).astype(float)
    shared = prior.covariance[np.ix_(settings, settings)] + _ROUND_SD**2 * same_round
    grid = [(spread, noise) for spread in SPREADS for noise in NOISES]
    weights = np.array([weight for weight in _SPREAD_WEIGHTS for _ in NOISES])
    likelihoods, parts = [], []
    residual = values - prior.mean[settings]
    for spread, noise in grid:
        covariance = shared + spread**2 * same_setting + noise**2 * np.eye(len(seen))
        factor = np.linalg.cholesky(covariance)
        white = np.linalg.solve(factor, residual)
        likelihoods.append(-0.5 * white @ white - np.log(np.diag(factor)).sum())
        parts.append((factor, white))
    odds = np.array(likelihoods) + np.log(weights)
    odds = np.exp(odds - odds.max())
    odds /= odds.sum()
    draws = np.empty((_DRAWS, count))
    picked = rng.choice(len(grid), _DRAWS, p=odds)
    for index in np.unique(picked):
        spread, _ = grid[index]
        factor, white = parts[index]
        whole = prior.covariance + spread**2 * np.eye(count)
        loading = np.linalg.solve(factor, whole[settings]) if len(seen) else np.zeros((0, count))
        mean = prior.mean + loading.T @ white
        left = whole - loading.T @ loading
        left_values, axes = np.linalg.eigh((left + left.T) / 2)
        root = axes * np.sqrt(np.maximum(left_values, 0))
        rows = picked == index
        draws[rows] = mean + rng.standard_normal((int(rows.sum()), count)) @ root.T
    noises = np.array([noise for _, noise in grid])
    return Belief(draws, float(np.sqrt(odds @ noises**2)))
