"""Fitting coefficients to many points: a hierarchical model, robust, with what it does not know as
a covariance.

A point's ln θ is a sum over the groups it belongs to: all, its engine, the engine's era and the
present eras before it, for each of those what engines gain from one era to the next, its GPU's
architecture, engine on architecture, and its model family (kernels alone). AMD's GPUs share a group
of their vendor, and each engine and era has one of its own on each of their architectures, for
kernels: the host's times are the vendor's. Each group's share has a normal prior around zero (the first around ln of the coefficient's prior), so
that what a group has no data for comes from the wider ones, with their uncertainty.

Every (model family, engine, architecture, weight type) has, besides, one offset of its own in ln
TTFT and one in ln TPOT: kernels fit one model better than another in ways that shapes do not tell.
Offsets are never used to predict; their spread goes into the interval, and so does that of the
shares of families where another one is predicted.

    minimise  Σ ρ((ln measured − ln predicted − offset)/σ) + Σ (u/s)²,   ρ Student's t with 2
              degrees of freedom

by Gauss-Newton, the robust linear problem of each round by reweighting. The covariance is the
inverse of the last normal matrix. Gelman and Hill, Data Analysis Using Regression and Multilevel
Models (2007), chapters 12 and 13.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadstone.calibrate.cases import Case, CaseTable, predict, slopes
from loadstone.core.vectors import Floats
from loadstone.engines import ENGINES, OLD_ERAS, rules_of
from loadstone.predict.step_time.boards import architecture_of, is_amd
from loadstone.predict.step_time.coefficients import (
    FRONTEND,
    HOST,
    NAMES,
    PRIOR,
    SPREAD,
)

LEVELS = {
    "all": 0.9, "engine": 0.5, "era": 0.5, "progress": 1.5, "architecture": 0.4, "pair": 0.4, "vendor": 2.0,
    "build": 1.5, "family": 0.6,
}  # fmt: skip
"""Standard deviation of each level's share, of the coefficient's own spread."""
SHARED = 0.25
"""Architectures, and engines on them, have only so much of that: with more of kernels'
coefficients, families that were held out are predicted worse (median error in TPOT 0.15 at 1, 0.11
at 0.25). AMD's kernels are free, for they are other libraries'."""
HOSTS = 0.5
"""Of engines on an architecture, the host's times: GPUs were measured in machines of their own.
With SHARED, TPOT on A100 is off by 14 % in place of 10, TTFT of TensorRT-LLM on B200 by 26 in place
of 22, families held out."""
STEADY = 0.08
"""Of eras and their progress, what is neither host nor floor: no release reads weights faster than
the one before."""
FLOORS = frozenset({"product_s", "layer_s", "expert_layer_s", "latent_layer_s", "collective_s"})
"""Times of small kernels, which releases join and overlap: free by era as the host's are."""
OLD_HOST = 1.2
"""Standard deviation, in ln, of an old era's share in the host's times: some took ten times as long
as today's."""
OLD_KERNELS = 0.8  # of each coefficient's own spread
OLD_LAYERS = frozenset({"expert_layer_s", "latent_layer_s", "latent_decode"})
"""Have that freedom in old eras too, which had just learned experts and latent attention: what a
new kind of layer took then is a time of that layer, and no other model's steps had it."""
ALIKE = frozenset({"collective_link", "quantised_s"})
"""Links reach, and quantising takes, what tables say, whoever made the libraries and whatever the
model."""
NOTHING = 1e-3
"""Of a family, what is alike, and the host's times, which are its engine's."""
NOISE = {"ttft": 0.20, "tpot": 0.08}
"""σ: of one point around its family's best, in ln."""
EAGER_WEIGHT = 0.1
"""Of runs without CUDA graphs: launches hide the kernels whose coefficients are sought."""
OFFSET = {"ttft": 0.10, "tpot": 0.05}
"""Standard deviation of the families' offsets, in ln."""
_FREEDOM = 2.0
_ROUNDS = 20
_REWEIGHTINGS = 4
_HALVINGS = 6
CLOSE = 1e-4
"""The fit has converged where a round lowers what is minimised by no larger a share."""
_SIZE = len(NAMES)


@dataclass
class Groups:
    """Which groups each case belongs to, and where their shares lie in the vector of unknowns."""

    keys: list[tuple[str, ...]]
    spreads: Floats
    of_case: list[list[int]]
    offsets: list[tuple[str, ...]]
    offset_of_case: NDArray[np.int64]

    @property
    def unknowns(self) -> int:
        return len(self.keys) * _SIZE + 2 * len(self.offsets)


def keys_of(
    engine: str, era: str, architecture: str, model_family: str = ""
) -> list[tuple[str, ...]]:
    """The groups of a deployment, widest first; `*` stands for any and is left out."""
    found: list[tuple[str, ...]] = [("all",)]
    releases = [] if "*" in (engine, era) else releases_of(engine, era)
    if engine != "*":
        found.append(("engine", engine))
        found += [("era", engine, each) for each in releases]
        found += [("progress",)] * (len(releases) - 1)
    if architecture != "*":
        amd = is_amd(architecture)
        if amd:
            found.append(("vendor", "amd"))
        found.append(("architecture", architecture))
        if engine != "*":
            found.append(("pair", engine, architecture))
            found += [("build", engine, each, architecture) for each in releases if amd]
    if model_family:
        found.append(("family", model_family))
    return found


def releases_of(engine: str, era: str) -> list[str]:
    """What a release's coefficients are made of: present eras build on one another, so that the
    newest has what all before it had; an old one stands alone."""
    eras = ENGINES[engine].eras if engine in ENGINES else ()
    present = [each.name for each in reversed(eras) if not each.old]
    return present[: present.index(era) + 1] if era in present else [era]


def case_keys(case: Case) -> list[tuple[str, ...]]:
    deployment = case.worker
    return keys_of(
        deployment.engine, rules_of(deployment).era, architecture_of(deployment.gpu), family(case)
    )


def family(case: Case) -> str:
    return case.point.fold or case.point.model


def offset_key(case: Case) -> tuple[str, ...]:
    deployment = case.worker
    return (
        family(case),
        deployment.engine,
        architecture_of(deployment.gpu),
        deployment.weights_dtype,
    )


def group(cases: Sequence[Case]) -> Groups:
    keys: dict[tuple[str, ...], int] = {}
    offsets: dict[tuple[str, ...], int] = {}
    of_case = [[keys.setdefault(key, len(keys)) for key in case_keys(case)] for case in cases]
    offset_of_case = [offsets.setdefault(offset_key(case), len(offsets)) for case in cases]
    spreads = np.concatenate([share(key) for key in keys]) if keys else np.zeros(0)
    return Groups(list(keys), spreads, of_case, list(offsets), np.array(offset_of_case, np.int64))


def share(key: tuple[str, ...]) -> Floats:
    """Prior standard deviation of a group's share, per coefficient."""
    level = key[0]
    spread: Floats = LEVELS[level] * SPREAD
    host, floors, alike = (
        np.array([name in names for name in NAMES]) for names in (HOST, FLOORS, ALIKE)
    )
    if level == "era" and key[-1] in OLD_ERAS:
        return np.where(
            host | [name in OLD_LAYERS for name in NAMES], OLD_HOST, OLD_KERNELS * SPREAD
        )
    if level in ("era", "progress"):
        # Before and after their steps engines do not become faster all alike.
        fixed = np.array([level == "progress" and name in FRONTEND for name in NAMES])
        return spread * np.where((host | floors) & ~fixed, 1.0, STEADY)
    if level in ("vendor", "build"):
        # A prompt's launches and what comes before it are told apart by few rows, if each
        # architecture has its own; hosts and AMD's runtime are alike.
        shared = alike | (host & (level == "build"))
        return np.where(shared, LEVELS["architecture"] * SHARED * SPREAD, spread)
    if level in ("architecture", "pair"):
        own = np.where(alike | (not is_amd(key[-1])), SHARED, 1.0)
        return spread * np.where(host, SHARED if level == "architecture" else HOSTS, own)
    return np.where(host | alike, NOTHING, spread) if level == "family" else spread


@dataclass
class Fit:
    """Unknowns (groups' shares, then offsets) and their covariance."""

    groups: Groups
    unknowns: Floats
    covariance: Floats

    def logarithms(self, keys: Sequence[tuple[str, ...]]) -> Floats:
        """ln θ of a member of these groups; groups that the fit has not seen add nothing."""
        total = PRIOR.copy()
        for at in self._places(keys):
            total += self.unknowns[at]
        return total

    def share_of(self, key: tuple[str, ...]) -> Floats:
        """What one group adds to ln θ; nothing, of one that the fit has not seen."""
        places = self._places([key])
        return self.unknowns[places[0]] if places else np.zeros(_SIZE)

    def spread(self, keys: Sequence[tuple[str, ...]]) -> Floats:
        """The covariance of that, K × K; unseen groups add their prior variance."""
        places = self._places(keys)
        total = np.zeros((_SIZE, _SIZE))
        for first in places:
            for second in places:
                total += self.covariance[first, second]
        seen = {key for key in keys if key in self.groups.keys}
        for key in keys:
            if key not in seen:
                total += np.diag(share(key) ** 2)
        return (total + total.T) / 2

    def _places(self, keys: Sequence[tuple[str, ...]]) -> list[slice]:
        known = {key: position for position, key in enumerate(self.groups.keys)}
        return [slice(known[key] * _SIZE, (known[key] + 1) * _SIZE) for key in keys if key in known]


def values_of(fit: Fit | None, cases: Sequence[Case]) -> Floats:
    """ln θ of each case, d × K; the priors where there is no fit yet."""
    if fit is None:
        return np.tile(PRIOR, (len(cases), 1))
    kept: dict[tuple[tuple[str, ...], ...], Floats] = {}
    rows = []
    for case in cases:
        keys = tuple(case_keys(case))
        if keys not in kept:
            kept[keys] = fit.logarithms(keys)
        rows.append(kept[keys])
    return np.array(rows)


class _Target(NamedTuple):
    """What is fitted to: of the cases `at`, ln measured, their weights, and where their families'
    offsets lie."""

    at: NDArray[np.int64]
    measured: Floats
    weights: Floats
    offset: NDArray[np.int64]
    noise: float


def solve(
    table: CaseTable,
    groups: Groups,
    use: NDArray[np.bool_],
    weights: Floats,
    start: Floats | None = None,
) -> Fit:
    """Coefficients from the cases in `use`. `weights`: repeats of one measurement share one."""
    unknowns = np.zeros(groups.unknowns) if start is None else start.copy()
    prior = np.concatenate(
        [
            groups.spreads,
            np.full(len(groups.offsets), OFFSET["ttft"]),
            np.full(len(groups.offsets), OFFSET["tpot"]),
        ]
    )
    base = len(groups.keys) * _SIZE
    targets = (
        # A queue for memory says nothing of kernels.
        _target("ttft", table, groups, use & ~table.held_back, weights, base),
        _target("tpot", table, groups, use, weights, base + len(groups.offsets)),
    )
    normal = np.diag(1 / prior**2)
    said = [*predict(table, np.exp(_logarithms(groups, unknowns)))]
    cost = _cost(targets, said, unknowns, prior)
    for _ in range(_ROUNDS):
        by = [*slopes(table, np.exp(_logarithms(groups, unknowns)))]
        step = np.zeros(groups.unknowns)
        for _ in range(_REWEIGHTINGS):
            normal, step = _step(groups, targets, by, said, unknowns, step, prior)
        # The model is curved: no coefficient moves by more than e^½ a round, and less where that is
        # too far.
        length = min(1.0, 0.5 / max(1e-9, float(np.abs(step).max())))
        for _ in range(_HALVINGS):
            moved = unknowns + length * step
            there = [*predict(table, np.exp(_logarithms(groups, moved)))]
            lower = _cost(targets, there, moved, prior)
            if lower < cost:
                break
            length /= 2
        else:
            break
        gained, unknowns, said, cost = cost - lower, moved, there, lower
        if gained < CLOSE * cost:
            break
    return Fit(groups, unknowns, np.asarray(np.linalg.inv(normal), np.float64))


def _target(
    name: str,
    table: CaseTable,
    groups: Groups,
    use: NDArray[np.bool_],
    weights: Floats,
    first_offset: int,
) -> _Target:
    seconds = [case.point.ttft_s if name == "ttft" else case.point.tpot_s for case in table.cases]
    measured = np.array([np.log(value) if value else np.nan for value in seconds])
    at = np.flatnonzero(use & np.isfinite(measured))
    return _Target(
        at, measured[at], weights[at], first_offset + groups.offset_of_case[at], NOISE[name]
    )


def _gap(target: _Target, said: Floats, unknowns: Floats) -> Floats:
    gap: Floats = target.measured - said[target.at] - unknowns[target.offset]
    return gap


def _cost(
    targets: Sequence[_Target], said: Sequence[Floats], unknowns: Floats, prior: Floats
) -> float:
    """What is minimised, by Student's t: ρ(x) = (ν + 1)/2 · ln(1 + x²/ν)."""
    total = float(((unknowns / prior) ** 2).sum()) / 2
    for target, values in zip(targets, said, strict=True):
        away = (_gap(target, values, unknowns) / target.noise) ** 2
        total += float((target.weights * np.log1p(away / _FREEDOM)).sum()) * (_FREEDOM + 1) / 2
    return total


def _step(
    groups: Groups,
    targets: Sequence[_Target],
    by: Sequence[Floats],
    said: Sequence[Floats],
    unknowns: Floats,
    step: Floats,
    prior: Floats,
) -> tuple[Floats, Floats]:
    """The normal matrix and its step, of the model made linear; weights are those after the step
    before."""
    normal = np.diag(1 / prior**2)
    right = -unknowns / prior**2
    moves = _shares(groups, step)
    for target, slope, values in zip(targets, by, said, strict=True):
        at, gap = target.at, _gap(target, values, unknowns)
        left = gap - (slope[at] * moves[at]).sum(1) - step[target.offset]
        pull = (
            target.weights
            * (_FREEDOM + 1)
            / (_FREEDOM + (left / target.noise) ** 2)
            / target.noise**2
        )
        _gather(groups, at, slope, target.offset, pull, gap, normal, right)
    return normal, np.asarray(np.linalg.solve(normal, right), np.float64)


def _logarithms(groups: Groups, unknowns: Floats) -> Floats:
    return PRIOR + _shares(groups, unknowns)


def _shares(groups: Groups, unknowns: Floats) -> Floats:
    """What its groups together give each case, d × K."""
    shares = unknowns[: len(groups.keys) * _SIZE].reshape(-1, _SIZE)
    kept: dict[tuple[int, ...], Floats] = {}
    for places in groups.of_case:
        kept.setdefault(tuple(places), shares[places].sum(0))
    return np.array([kept[tuple(places)] for places in groups.of_case])


def _gather(
    groups: Groups,
    at: NDArray[np.int64],
    by: Floats,
    offset: NDArray[np.int64],
    pull: Floats,
    gap: Floats,
    normal: Floats,
    right: Floats,
) -> None:
    """Adds the weighted normal equations of some cases, taken together by the groups they share."""
    together: dict[tuple[int, ...], list[int]] = {}
    for position, case in enumerate(at):
        together.setdefault(tuple(groups.of_case[case]), []).append(position)
    for places, members in together.items():
        chosen = np.array(members)
        slope = by[at[chosen]]
        weight = pull[chosen]
        block = (slope * weight[:, None]).T @ slope
        side = slope.T @ (weight * gap[chosen])
        for first in places:
            one = slice(first * _SIZE, (first + 1) * _SIZE)
            right[one] += side
            for second in places:
                normal[one, second * _SIZE : (second + 1) * _SIZE] += block
        for number in np.unique(offset[chosen]):
            mine = offset[chosen] == number
            cross = slope[mine].T @ weight[mine]
            for first in places:
                one = slice(first * _SIZE, (first + 1) * _SIZE)
                normal[one, number] += cross
                normal[number, one] += cross
            normal[number, number] += weight[mine].sum()
            right[number] += (weight[mine] * gap[chosen][mine]).sum()


def weights_of(cases: Sequence[Case]) -> Floats:
    """Rows that repeat one measurement (the same TTFT and TPOT) share the weight of one; the rows
    of a family on one engine and GPU err together, so that n of them count as 2·√n."""
    keys = [(case.point.ttft_s, case.point.tpot_s) for case in cases]
    repeats = Counter(keys)
    single = np.array([1.0 / repeats[key] for key in keys])
    # How many of the guessed tokens were accepted is an assumption.
    single *= np.array(
        [case.policy.speculative is None and not case.point.unfitted for case in cases]
    )
    single *= np.array([EAGER_WEIGHT if rules_of(case.worker).is_eager else 1.0 for case in cases])
    families = [offset_key(case) for case in cases]
    size: Counter[tuple[str, ...]] = Counter()
    for family, weight in zip(families, single, strict=True):
        size[family] += weight
    shares: Floats = single * np.array([2 / np.sqrt(max(4.0, size[family])) for family in families])
    return shares
