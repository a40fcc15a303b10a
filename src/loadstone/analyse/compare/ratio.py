"""Computes the margin of the ratio of two values, B over A: the one rule of `loadstone compare` and
of reports.

Three things make a ratio uncertain, and each is known in its own way:

sampling   what was drawn in each run: from the intervals of the two values, 95 %
repeats    what differs from run to run of one setup, which a single measured run cannot show:
           published repeats stand for it. It is added to sampling. A simulation repeats itself and
           has none
model      how far the performance model may be off, 80 %: of predictions, less what both share
           (shared_error)

The intervals of the values are those of each run's summary (core.statistics.dependence), so that a
report and a comparison say the same of a run. On a log scale, with a and b the values and [l, u]
their intervals:

    lower end = b − a − √((b − l_b)² + (u_a − a)² − 2·c·(b − l_b)(u_a − a))

and the upper end likewise; c is how far both go together, 0 but for requests compared in pairs (the
method of variance estimates recovery: Zou and Donner, Statistics in Medicine 27 (2008)).

Each simulated run has an 80 % interval of its own (predict.simulator.uncertainty), and two such
runs may share what is wrong with them. How much, published measurements say (docs/compare.md): on
one user's machines the errors of two predictions go together by two thirds, of one profile and one
model by four fifths; and one deployment with one workload has one error, which the ratio does not
have.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from loadstone.analyse.run_facts import RunFacts
from loadstone.core.record import RunInfo

REPEATS = {"ttft": 0.088}
OTHER_REPEATS = 0.034
"""The spread of runs of one configuration: three quarters of published repeats differ by less, 8.8
% in TTFT and 3.4 % in TPOT (docs/reports.md).
"""
_QUARTILE = 1.150
"""The upper quartile of |x|, x of a normal law with a standard deviation of 1."""
ONE_USER = 2 / 3
"""Correlation of the errors of two predictions: machine, launch and client are one user's in both.
"""
ONE_PROFILE = 0.8
"""The same with the coefficients of one profile, for one model."""
_ONE_ERROR = ("deployment", "policy", "schedulers", "profile", "workload")
"""Settings of a run that, all alike, make two simulations of a load wrong by the same."""

Reach = tuple[float, float]
"""The margin of a value, below and above it, on a log scale."""


def reach(value: float, low: float | None, high: float | None) -> Reach | None:
    """Compute the margin of a value; None where an end is not known, or has no logarithm."""
    if low is None or high is None or not 0 < low <= value <= high < math.inf:
        return None
    return math.log(value / low), math.log(high / value)


def bounds(value: float, reach: Reach) -> tuple[float, float]:
    """The interval again."""
    return value * math.exp(-reach[0]), value * math.exp(reach[1])


def pooled(reaches: Sequence[Reach]) -> Reach:
    """Compute the margin of the geometric mean of independent values."""
    lower, upper = (math.hypot(*ends) / len(reaches) for ends in zip(*reaches, strict=True))
    return lower, upper


def ratio_margin(a: Reach, b: Reach, correlation: float = 0.0, more: float = 0.0) -> Reach:
    """Compute the margin of b over a. `correlation`: c; `more`: a further difference between them,
    added as if independent.
    """

    def joined(x: float, y: float) -> float:
        return math.sqrt(max(0.0, x * x + y * y - 2 * correlation * x * y) + more * more)

    return joined(b[0], a[1]), joined(b[1], a[0])


def repeats(base: str) -> float:
    """Return the published spread of two runs of one setup, for TTFT or for another metric."""
    return REPEATS.get(base, OTHER_REPEATS)


def published_spread(base: str) -> float:
    """The standard deviation from run to run that goes with it, on a log scale."""
    return repeats(base) / _QUARTILE / 2**0.5


class Basis(NamedTuple):
    """The deployment, profile and load that a prediction rests on.

    question  everything that decides how far the model is off, as bytes
    draw      everything that decides what was drawn: lengths and times
    profile   the performance model's coefficients: their name, as JSON; None where it is not known
    """

    question: bytes
    draw: bytes
    profile: bytes | None
    model: str | None


def basis(info: RunInfo, facts: RunFacts, load: object = None) -> Basis | None:
    """Describe the basis of a simulated run, under this load (anything that has a JSON form) where
    several are compared; None for another run.
    """
    if info.source != "simulated":
        return None
    settings, profile = info.settings, info.settings.profile
    question = _encoded([load, [getattr(settings, name) for name in _ONE_ERROR]])
    draw = _encoded([load, info.seed, settings.workload])
    return Basis(question, draw, _encoded(profile) if profile is not None else None, facts.model)


def _encoded(value: object) -> bytes:
    return msgspec.json.encode(value, order="sorted")


def shared_error(bases: Sequence[Basis | None]) -> float:
    """Correlation of the errors of these runs: 1, ONE_PROFILE or ONE_USER; 0 where one is
    measured."""
    simulated = [basis for basis in bases if basis is not None]
    if len(simulated) < len(bases) or not simulated:
        return 0.0
    first = simulated[0]
    if all(basis.question == first.question for basis in simulated):
        return 1.0
    named = first.profile is not None and first.model is not None
    return ONE_PROFILE if named and all(basis[2:] == first[2:] for basis in simulated) else ONE_USER


class Side(NamedTuple):
    """Holds the margins of one value; None where one is not known, or there is no model in it.

    `bases`: of its runs, of each what its prediction rests on; None: it was measured, or imported.
    """

    sampling: Reach | None
    model: Reach | None
    bases: Sequence[Basis | None]

    @property
    def repeats_missing(self) -> bool:
        """True if it is of a single measured run, from which another run of the same setup would
        differ."""
        return len(self.bases) == 1 and self.bases[0] is None


class Contrast(NamedTuple):
    """Holds the margins of a ratio, on a log scale; None where one is not known, or nothing of that
    sort is in it."""

    sampling: Reach | None
    model: Reach | None


def contrast(a: Side, b: Side, base: str, *, paired: float = 0.0) -> Contrast:
    """Compute the margins of b over a. `base`: the metric, as `ttft`; `paired`: correlation of the
    draws on both sides.
    """
    sampling = model = None
    if a.sampling is not None and b.sampling is not None:
        spread = repeats(base) * ((a.repeats_missing + b.repeats_missing) / 2) ** 0.5
        sampling = ratio_margin(a.sampling, b.sampling, paired, spread)
    bases = [*a.bases, *b.bases]
    shared = shared_error(bases)
    has_errors = all(side.model is not None or not any(side.bases) for side in (a, b))
    if any(bases) and shared < 1 and has_errors:
        model = ratio_margin(a.model or (0.0, 0.0), b.model or (0.0, 0.0), shared)
    return Contrast(sampling, model)
