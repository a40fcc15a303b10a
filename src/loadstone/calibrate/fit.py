"""Fitting coefficients to many points: a hierarchical model, robust, with what it does not know as a covariance.

A point's ln θ is a sum over the groups it belongs to: all, its engine, the engine's era, its GPU's architecture, and
engine on architecture. Each group's share has a normal prior around zero (the first around ln of the coefficient's
prior), so that what a group has no data for comes from the wider ones, with their uncertainty.

Every (model family, engine, architecture, weight type) has, besides, one offset of its own in ln TTFT and one in
ln TPOT: kernels fit one model better than another in ways that shapes do not tell. Offsets are never used to predict
another family; their spread goes into the interval.

    minimise  Σ ρ((ln measured − ln predicted − offset)/σ) + Σ (u/s)²,   ρ Student's t with 2 degrees of freedom

by Gauss-Newton with reweighting. The covariance is the inverse of the last normal matrix.
Gelman and Hill, Data Analysis Using Regression and Multilevel Models (2007), chapters 12 and 13.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadstone.calibrate.table import Case, Table, predict, slopes
from loadstone.perfmodel.coefficients import HOST, NAMES, PRIOR, SPREAD, Array
from loadstone.perfmodel.families import architecture_of, era_of, is_eager

LEVELS = {"all": 0.9, "engine": 0.5, "era": 0.4, "architecture": 0.4, "pair": 0.4}
"""Standard deviation of each level's share, of the coefficient's own spread."""
SHARED = 0.25
"""Of kernels' coefficients, the narrower levels have only so much of that: with more, families that were held out are
predicted worse (median error in TPOT 0.15 at 1, 0.11 at 0.25). Old eras had kernels of their own and keep theirs."""
OLD_ERAS = frozenset({"eager", "v0", "0.4", "0.x"})
NOISE = {"ttft": 0.20, "tpot": 0.08}
"""σ: of one point around its family's best, in ln."""
OFFSET = {"ttft": 0.10, "tpot": 0.05}
"""Standard deviation of the families' offsets, in ln."""
_FREEDOM = 2.0
_SIZE = len(NAMES)


@dataclass
class Groups:
    """Which groups each case belongs to, and where their shares lie in the vector of unknowns."""

    keys: list[tuple[str, ...]]
    spreads: Array
    of_case: list[list[int]]
    offsets: list[tuple[str, ...]]
    offset_of_case: NDArray[np.int64]

    @property
    def unknowns(self) -> int:
        return len(self.keys) * _SIZE + 2 * len(self.offsets)


def keys_of(engine: str, era: str, architecture: str) -> list[tuple[str, ...]]:
    """The groups of a deployment, widest first; `*` stands for any and is left out."""
    found: list[tuple[str, ...]] = [("all",)]
    if engine != "*":
        found.append(("engine", engine))
        if era != "*":
            found.append(("era", engine, era))
    if architecture != "*":
        found.append(("architecture", architecture))
        if engine != "*":
            found.append(("pair", engine, architecture))
    return found


def case_keys(case: Case) -> list[tuple[str, ...]]:
    deployment = case.deployment
    era = era_of(deployment.engine, deployment.engine_version)
    return keys_of(deployment.engine, era, architecture_of(deployment.gpu))


def offset_key(case: Case) -> tuple[str, ...]:
    deployment = case.deployment
    return (
        case.point.fold or case.point.model,
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


def share(key: tuple[str, ...]) -> Array:
    """Prior standard deviation of a group's share, per coefficient."""
    level = key[0]
    spread: Array = LEVELS[level] * SPREAD
    if level == "all":
        return spread
    if level == "era" and key[-1] in OLD_ERAS:
        return 2 * spread
    factors: Array = np.array([1.0 if name in HOST else SHARED for name in NAMES])
    shares: Array = spread * factors
    return shares


@dataclass
class Fit:
    """Unknowns (groups' shares, then offsets), their covariance, and what remained."""

    groups: Groups
    unknowns: Array
    covariance: Array
    residual: dict[str, float]

    def logarithms(self, keys: Sequence[tuple[str, ...]]) -> Array:
        """ln θ of a member of these groups; groups that the fit has not seen add nothing."""
        total = PRIOR.copy()
        for at in self._places(keys):
            total += self.unknowns[at]
        return total

    def spread(self, keys: Sequence[tuple[str, ...]]) -> Array:
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


def values_of(fit: Fit | None, cases: Sequence[Case]) -> Array:
    """ln θ of each case, d × K; the priors where there is no fit yet."""
    if fit is None:
        return np.tile(PRIOR, (len(cases), 1))
    kept: dict[tuple[tuple[str, ...], ...], Array] = {}
    rows = []
    for case in cases:
        keys = tuple(case_keys(case))
        if keys not in kept:
            kept[keys] = fit.logarithms(keys)
        rows.append(kept[keys])
    return np.array(rows)


def solve(
    table: Table,
    groups: Groups,
    use: NDArray[np.bool_],
    weights: Array,
    start: Array | None = None,
    rounds: int = 8,
) -> Fit:
    """Coefficients from the cases in `use`. `weights`: repeats of one measurement share one."""
    unknowns = np.zeros(groups.unknowns) if start is None else start.copy()
    prior = np.concatenate(
        [groups.spreads, np.full(len(groups.offsets), OFFSET["ttft"]), np.full(len(groups.offsets), OFFSET["tpot"])]
    )
    measured_ttft = np.array([np.log(case.point.ttft_s) if case.point.ttft_s else np.nan for case in table.cases])
    measured_tpot = np.array([np.log(case.point.tpot_s) if case.point.tpot_s else np.nan for case in table.cases])
    # A queue for memory says nothing of kernels.
    use_ttft = use & np.isfinite(measured_ttft) & ~table.held_back
    use_tpot = use & np.isfinite(measured_tpot)
    normal = np.diag(1 / prior**2)
    residuals = {"ttft": np.zeros(0), "tpot": np.zeros(0)}
    for _ in range(rounds):
        logarithms = _logarithms(groups, unknowns)
        by_ttft, by_tpot = slopes(table, logarithms)
        ttft, tpot = predict(table, np.exp(logarithms))
        base = len(groups.keys) * _SIZE
        normal = np.diag(1 / prior**2)
        right = -unknowns / prior**2
        for name, measured, said, by, chosen, first in (
            ("ttft", measured_ttft, ttft, by_ttft, use_ttft, base),
            ("tpot", measured_tpot, tpot, by_tpot, use_tpot, base + len(groups.offsets)),
        ):
            at = np.flatnonzero(chosen)
            offset = first + groups.offset_of_case[at]
            gap = measured[at] - said[at] - unknowns[offset]
            pull = weights[at] * (_FREEDOM + 1) / (_FREEDOM + (gap / NOISE[name]) ** 2) / NOISE[name] ** 2
            _gather(groups, at, by, offset, pull, gap, normal, right)
            residuals[name] = gap
        step = np.linalg.solve(normal, right)
        # Gauss-Newton on a curved model: no coefficient moves by more than e^½ a round.
        unknowns = unknowns + step * min(1.0, 0.5 / max(1e-9, float(np.abs(step).max())))
        if np.abs(step).max() < 2e-3:
            break
    spread = {
        name: float(np.median(np.abs(gap)) / 0.6745) if len(gap) else NOISE[name] for name, gap in residuals.items()
    }
    covariance = np.asarray(np.linalg.inv(normal), np.float64)
    return Fit(groups, unknowns, covariance, spread)


def _logarithms(groups: Groups, unknowns: Array) -> Array:
    shares = unknowns[: len(groups.keys) * _SIZE].reshape(-1, _SIZE)
    return np.array([PRIOR + shares[places].sum(0) for places in groups.of_case])


def _gather(
    groups: Groups,
    at: NDArray[np.int64],
    by: Array,
    offset: NDArray[np.int64],
    pull: Array,
    gap: Array,
    normal: Array,
    right: Array,
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


def weights_of(cases: Sequence[Case]) -> Array:
    """Rows that repeat one measurement (the same TTFT and TPOT) share the weight of one; the rows of a family on one
    engine and GPU err together, so that n of them count as 2·√n."""
    keys = [(case.point.ttft_s, case.point.tpot_s) for case in cases]
    repeats = Counter(keys)
    single = np.array([1.0 / repeats[key] for key in keys])
    single *= ~faster_twins(cases)
    single *= np.array([EAGER_WEIGHT if is_eager(case.deployment) else 1.0 for case in cases])
    families = [offset_key(case) for case in cases]
    size: Counter[tuple[str, ...]] = Counter()
    for family, weight in zip(families, single, strict=True):
        size[family] += weight
    shares: Array = single * np.array([min(1.0, 2 / np.sqrt(size[family])) for family in families])
    return shares


TWIN = 1.4
EAGER_WEIGHT = 0.1
"""Of runs without CUDA graphs: launches hide the kernels whose coefficients are sought."""


def faster_twins(cases: Sequence[Case]) -> NDArray[np.bool_]:
    """Cases with a twin, of the same deployment and traffic on another version or day, that takes over 1.4 times as
    long per token: most likely run with speculative decoding, which their rows do not say. They are not fitted on.
    """
    slowest: dict[tuple[object, ...], float] = {}
    keys = []
    for case in cases:
        deployment, point = case.deployment, case.point
        key = (
            point.fold, deployment.engine, deployment.gpu.name, deployment.weights_dtype, deployment.gpus,
            deployment.attention_dp, point.input_tokens, point.output_tokens, case.users,
        )  # fmt: skip
        keys.append(key)
        slowest[key] = max(slowest.get(key, 0.0), point.tpot_s or 0.0)
    return np.array(
        [
            bool(case.point.tpot_s and slowest[key] > TWIN * case.point.tpot_s)
            for key, case in zip(keys, cases, strict=True)
        ]
    )
