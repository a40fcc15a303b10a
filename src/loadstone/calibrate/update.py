"""Calibration: a profile's coefficients moved towards a few measurements of one deployment.

A Bayesian update by Gauss-Newton in logarithms. The prior is the profile's, widened: one deployment
differs from its engine and GPU's others by more than the fit's own uncertainty: much in what comes
before the engine, which public figures show with their clients, and little in its kernels. After it

    C = (P⁻¹ + Σ JᵀJ/σ²)⁻¹,  θ = θ₀ + C·Σ Jᵀ·r/σ²,  r = ln measured − ln simulated,

simulated anew after each step, and what remains unexplained is σ of one measurement, not that of an
unseen model.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from loadstone.calibrate.cases import Case, CaseTable, refresh, slopes
from loadstone.core.statistics.distribution import Z80
from loadstone.core.vectors import Floats
from loadstone.predict.step_time.coefficients import FRONTEND, HOST, NAMES, PROCESSOR, SPREAD
from loadstone.predict.step_time.pictures import TERMS, PictureTerms, guess_terms
from loadstone.predict.step_time.profile import FitProvenance, Profile, Quantity, rows_of, spreads

OWN: Floats = np.array(
    [
        1.5 if name in FRONTEND else 0.5 if name in HOST else 0.6 * spread
        for name, spread in zip(NAMES, SPREAD, strict=True)
    ]
)
"""Prior standard deviations of a deployment's own part. Chosen on an H200: after two measured
loads TTFT of the others is off by 9.1 %; by 13.6 with 1.2 of each coefficient's spread."""
LEAST: dict[Quantity, float] = {"ttft": 0.18}
"""The least spread that remains, for what the model has no terms of: the cells that it learned from
do not show how far it is off in others (on that H200 21 of 40 intervals of 80 % held)."""
SIGMA: dict[Quantity, float] = {"ttft": 0.06, "tpot": 0.03, "throughput": 0.03}
"""One measurement around the best that the model can do for its deployment, in ln: a quarter of the
repeats of public points differ by more than 8.8 % in TTFT and 3.4 % in TPOT."""
OWN_PICTURES = 1.0
"""The same as OWN of each term of pictures: guesses, of one GPU [G]."""
_TOLD = 0.5
"""A term of pictures is learned where its spread is less than that of what it was."""
_ROUNDS = 4
_MOST_ROUNDS = 30
"""Where the prior is far off (a processor), steps are held back, and it takes more of them."""
_LONGEST_STEP = 0.7


class Calibration(msgspec.Struct, frozen=True):
    """The new profile; for each case and quantity the half-width of its 80 % interval, relative,
    before and after; gaps are ln measured − ln simulated."""

    profile: Profile
    before: dict[Quantity, list[float]]
    after: dict[Quantity, list[float]]
    gap_before: dict[Quantity, list[float]]
    gap_after: dict[Quantity, list[float]]


def update(
    profile: Profile, cases: Sequence[Case], name: str, date: str, *, without: str | None = None
) -> Calibration:
    """Move the profile towards these cases. `without`: start from the coefficients fitted without
    that family."""
    table = CaseTable(cases)
    start, count = np.log(profile.values(without=without)), len(NAMES)
    covariance = widen(profile)
    if table.has_pictures:
        of_processor = profile.architecture == PROCESSOR
        terms = profile.pictures or guess_terms(of_processor=of_processor)
        profile = msgspec.structs.replace(profile, pictures=terms)
        start = np.append(start, terms.logarithms)
        spread = np.append(OWN, [OWN_PICTURES] * len(TERMS))
        covariance = profile.joint_covariance() + np.diag(spread**2)
    inverse = np.asarray(np.linalg.inv(covariance), np.float64)
    measured = _measured(cases)
    logarithms = start
    gap_before: dict[Quantity, list[float]] = {}
    last, turn = _ROUNDS, 0
    while True:
        rows = np.tile(logarithms[:count], (len(cases), 1))
        refresh(table, np.exp(rows), logarithms[count:] if table.has_pictures else None)
        gap: dict[Quantity, Floats] = {
            "ttft": measured["ttft"] - np.log(table.ttft_s),
            "tpot": measured["tpot"] - np.log(table.tpot_s),
        }
        if turn == 0:
            gap_before = {key: _finite(values) for key, values in gap.items()}
        both = slopes(table, np.exp(rows))
        if table.has_pictures:
            both = np.concatenate([both, table.picture_slopes], axis=2)
        by = dict(zip(gap, both, strict=True))
        if turn == last:
            break
        normal, right = inverse.copy(), inverse @ (start - logarithms)
        _add_measurements(normal, right, table, gap, by)
        covariance = np.asarray(np.linalg.inv(normal), np.float64)
        step = covariance @ right
        longest = float(np.abs(step).max())
        logarithms = logarithms + step * min(1.0, _LONGEST_STEP / max(1e-9, longest))
        turn += 1
        if longest > _LONGEST_STEP:
            last = min(_MOST_ROUNDS, turn + _ROUNDS)
    note = f"from {profile.name}"
    updated = msgspec.structs.replace(
        profile,
        name=name,
        logarithms=tuple(logarithms[:count].tolist()),
        covariance=rows_of(covariance[:count, :count]),
        pictures=_learned(table, logarithms, covariance, inverse) if table.has_pictures else None,
        residual=_residual(table, gap),
        provenance=FitProvenance(
            "loadstone calibrate", date, len(cases), {case.point.source: 1 for case in cases}, note
        ),
        held_out={},
        held_out_spread={},
        wider=1.0,
        families={},
        family_shares={},
    )
    return Calibration(
        updated,
        before={key: widths(profile, by[key], key) for key in gap},
        after={key: widths(updated, by[key], key) for key in gap},
        gap_before=gap_before,
        gap_after={key: _finite(values) for key, values in gap.items()},
    )


def _learned(
    table: CaseTable, logarithms: Floats, covariance: Floats, before: Floats
) -> PictureTerms:
    """Return the terms of pictures, which stand last: `before` is the inverse of their covariance
    before the measurements. None of them takes more than pictures took in any case."""
    count, shares = len(TERMS), table.picture_slopes[0][table.pictured].clip(1e-6)
    together = shares.sum(axis=1, keepdims=True) + 2 * SIGMA["ttft"]
    spread, first = (np.diag(matrix)[-count:] for matrix in (covariance, np.linalg.inv(before)))
    return PictureTerms(
        logarithms=tuple(logarithms[-count:].tolist()),
        covariance=rows_of(covariance[-count:, -count:]),
        shared=rows_of(covariance[-count:, :-count]),
        limits=tuple(np.log(together / shares).min(axis=0).tolist()),
        learned=tuple(np.array(list(TERMS))[spread < _TOLD**2 * first].tolist()),
    )


def widen(profile: Profile) -> Floats:
    """Return the covariance of one deployment's coefficients before anything of it was measured."""
    return np.asarray(np.array(profile.covariance) + np.diag(OWN**2))


def _add_measurements(
    normal: Floats,
    right: Floats,
    table: CaseTable,
    gap: Mapping[Quantity, Floats],
    by: Mapping[Quantity, Floats],
) -> None:
    """Add Σ JᵀJ/σ² and Σ Jᵀ·r/σ² over the measurements, in place."""
    for quantity, values in gap.items():
        # A queue for memory says nothing of kernels.
        rows = np.flatnonzero(
            np.isfinite(values) & (~table.held_back if quantity == "ttft" else True)
        )
        slope, weight = by[quantity][rows], 1 / SIGMA[quantity] ** 2
        # Far off, a measurement pulls no harder than at three σ… of a model that is off by a tenth.
        pull = weight / np.maximum(1.0, np.abs(values[rows]) / 0.3)
        normal += (slope * pull[:, None]).T @ slope
        right += slope.T @ (pull * values[rows])


def _residual(table: CaseTable, gap: Mapping[Quantity, Floats]) -> dict[Quantity, float]:
    """Return the spread that remains: repeats that differ by more than σ say that this machine's
    measurements do."""
    left = {key: values[np.isfinite(values)] for key, values in gap.items()}
    left["ttft"] = gap["ttft"][np.isfinite(gap["ttft"]) & ~table.held_back]
    return {
        key: max(sigma, LEAST.get(key, 0.0), _root_mean_square(left.get(key, left["tpot"])))
        for key, sigma in SIGMA.items()
    }


def _measured(cases: Sequence[Case]) -> dict[Quantity, Floats]:
    """Return ln of what was measured; NaN where it was not."""
    times = [(case.point.ttft_s, case.point.tpot_s) for case in cases]
    ttft, tpot = np.log(np.array(times, np.float64)).T
    return {"ttft": ttft, "tpot": tpot}


def widths(profile: Profile, by: Floats, quantity: Quantity) -> list[float]:
    """Return exp(Z80·√(J·C·Jᵀ + s²)) − 1: the margin of predictions with the profile upwards."""
    return [float(value) for value in np.expm1(Z80 * spreads(profile, by, quantity))]


def _root_mean_square(values: Floats) -> float:
    return float(np.sqrt(np.mean(values**2))) if len(values) else 0.0


def _finite(values: Floats) -> list[float]:
    return [float(value) for value in values if np.isfinite(value)]
