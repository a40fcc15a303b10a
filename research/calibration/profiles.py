"""Turns a fit over many points into the profiles of the package.

One profile for each era and each architecture that the fit has seen of an engine, together or not,
and the wider ones that stand in for what it has not (an engine on any GPU, any engine on an
architecture, any on any). Each carries the coefficients of fits that left out one model family, so
that its points are never scored with themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fit import (
    Fit,
    case_keys,
    family,
    group,
    keys_of,
    share,
    solve,
    values_of,
    weights_of,
)
from loadstone.calibrate.cases import Case, CaseTable, refresh, slopes
from loadstone.core.statistics.distribution import Z80
from loadstone.core.vectors import Floats
from loadstone.engines import rules_of
from loadstone.predict.step_time.boards import architecture_of, kind_of, shapes_of
from loadstone.predict.step_time.coefficients import (
    NAMES,
)
from loadstone.predict.step_time.profile import FitProvenance, Profile, Quantity

ROUNDS = 3
MANY = 60
"""Cases from which what remains after a fit can be told."""


def fit_all(table: CaseTable, use: NDArray[np.bool_], rounds: int = ROUNDS) -> Fit:
    """Simulating and fitting in turn, from the priors."""
    groups, weights = group(table.cases), weights_of(table.cases)
    fit: Fit | None = None
    for _ in range(rounds):
        refresh(table, np.exp(values_of(fit, table.cases)))
        fit = solve(table, groups, use, weights, None if fit is None else fit.unknowns)
    if fit is None:
        raise ValueError("rounds must be at least 1")
    return fit


def fit_without(table: CaseTable, fit: Fit, use: NDArray[np.bool_]) -> dict[str, Fit]:
    """A fit without each model family, from where the whole fit ended (the table as last
    simulated)."""
    weights = weights_of(table.cases)
    names = np.array([family(case) for case in table.cases])
    return {
        str(name): solve(table, fit.groups, use & (names != name), weights, fit.unknowns)
        for name in np.unique(names[use])
    }


def fit_without_architecture(table: CaseTable, fit: Fit) -> dict[str, Fit]:
    """A fit without each architecture that has MANY cases: what the others say of a GPU that nobody
    has measured."""
    weights = weights_of(table.cases)
    names = np.array([architecture_of(case.worker.gpu) for case in table.cases])
    counts = Counter(names.tolist())
    return {
        name: solve(table, fit.groups, names != name, weights, fit.unknowns)
        for name, count in sorted(counts.items())
        if count >= MANY
    }


def held_out_values(table: CaseTable, fits: Mapping[str, Fit], fit: Fit) -> Floats:
    """ln θ of each case from the fit without its family, d × K."""
    rows = np.empty((len(table.cases), len(NAMES)))
    for name in {family(case) for case in table.cases}:
        at = [position for position, case in enumerate(table.cases) if family(case) == name]
        rows[at] = values_of(fits.get(name, fit), [table.cases[position] for position in at])
    return rows


def gaps(table: CaseTable) -> dict[Quantity, Floats]:
    """ln measured − ln simulated, NaN where there is no measurement; the table as last
    simulated."""
    measured: dict[Quantity, list[float | None]] = {
        "ttft": [case.point.ttft_s for case in table.cases],
        "tpot": [case.point.tpot_s for case in table.cases],
        "throughput": [case.point.output_tokens_per_s for case in table.cases],
    }
    said: dict[Quantity, Floats] = {
        "ttft": table.ttft_s,
        "tpot": table.tpot_s,
        "throughput": table.rate,
    }
    return {
        name: (
            np.log(np.array([np.nan if value is None else value for value in values]))
            - np.log(said[name])
        )
        for name, values in measured.items()
    }


def residuals(
    gap: Mapping[Quantity, Floats], known: Mapping[Quantity, Floats], use: NDArray[np.bool_]
) -> dict[Quantity, float]:
    """The spread s for which ±1.28·√(known variance + s²) holds 80 % of the gaps: found by
    bisection."""
    found: dict[Quantity, float] = {}
    for name, values in gap.items():
        at = use & np.isfinite(values)
        if at.sum() < 10:
            continue
        low, high = 0.0, 3.0
        for _ in range(40):
            middle = (low + high) / 2
            held = np.abs(values[at]) <= Z80 * np.sqrt(known[name][at] + middle**2)
            low, high = (low, middle) if held.mean() >= 0.8 else (middle, high)
        found[name] = round(high, 4)
    return found


def known_variance(
    table: CaseTable, logarithms: Floats, spreads: Sequence[Floats]
) -> dict[Quantity, Floats]:
    """Variance of ln TTFT, ln TPOT and (as TPOT's) ln throughput from that of the coefficients."""
    by_ttft, by_tpot = slopes(table, np.exp(logarithms))
    ttft = np.array(
        [slope @ spread @ slope for slope, spread in zip(by_ttft, spreads, strict=True)]
    )
    tpot = np.array(
        [slope @ spread @ slope for slope, spread in zip(by_tpot, spreads, strict=True)]
    )
    return {"ttft": ttft, "tpot": tpot, "throughput": tpot}


def spreads_of(cases: Sequence[Case], fits: Mapping[str, Fit], fit: Fit) -> list[Floats]:
    kept: dict[tuple[object, ...], Floats] = {}
    rows = []
    for case in cases:
        keys = tuple(case_keys(case))
        name = family(case)
        if (name, keys) not in kept:
            kept[name, keys] = fits.get(name, fit).spread(keys)
        rows.append(kept[name, keys])
    return rows


def profiles(
    table: CaseTable,
    fit: Fit,
    fits: Mapping[str, Fit],
    residual_of: Callable[[str, str, str], Mapping[Quantity, float]],
    script: str,
    date: str,
) -> list[Profile]:
    """Make all profiles. `residual_of`: what remains, by engine, era and architecture, `*` for
    any."""
    seen: dict[tuple[str, str, str], list[Case]] = {}
    for case in table.cases:
        deployment = case.worker
        engine, era = deployment.engine, rules_of(deployment).era
        architecture = architecture_of(deployment.gpu)
        for key in (
            (engine, era, architecture), (engine, "*", architecture), (engine, era, "*"), (engine, "*", "*"),
            ("*", "*", architecture), ("*", "*", "*"),
        ):  # fmt: skip
            seen.setdefault(key, []).append(case)
    # Of an era and an architecture that were only seen apart, both shares are known.
    for engine, architecture in [
        (key[0], key[2]) for key in seen if key[1] == "*" != key[2] and key[0] != "*"
    ]:
        for era in [key[1] for key in seen if key[0] == engine and key[1] != "*" == key[2]]:
            seen.setdefault((engine, era, architecture), [])
    families = {shapes_of(case.deployment.model): family(case) for case in table.cases}
    found = []
    for (engine, era, architecture), cases in sorted(seen.items()):
        keys = keys_of(engine, era, architecture)
        fitted = [case for case in cases if case.point.ttft_s or case.point.tpot_s]
        sources = Counter(case.point.source for case in fitted)
        kinds = Counter(kind_of(case.deployment.model) for case in fitted)
        members = Counter(map(family, fitted))
        # A wider profile stands for a member that the fit has not seen: its own shares are unknown.
        unseen = _unseen(engine, era, architecture)
        spread = fit.spread(keys) + unseen
        without = {
            name: np.diag(fits[name].spread(keys) + unseen)
            for name in sorted(members)
            if name in fits
        }
        widest = engine == architecture == "*"
        found.append(
            Profile(
                name="-".join(
                    part.replace(" ", "") for part in (engine, era, architecture)
                ).replace("*", "any"),
                engine=engine,
                era=era,
                architecture=architecture,
                names=NAMES,
                logarithms=_rounded(fit.logarithms(keys)),
                covariance=tuple(_rounded(row) for row in spread),
                residual=dict(residual_of(engine, era, architecture)),
                provenance=FitProvenance(
                    script,
                    date,
                    len(fitted),
                    dict(sorted(sources.items())),
                    kinds=dict(sorted(kinds.items())),
                    families=dict(sorted(members.items())),
                ),
                held_out={name: _rounded(fits[name].logarithms(keys)) for name in sorted(fits)},
                held_out_spread={
                    name: _rounded(np.sqrt(variances / np.diag(spread)))
                    for name, variances in without.items()
                },
                families=dict(sorted(families.items())) if widest else {},
                family_shares=(
                    {name: _rounded(fit.share_of(("family", name))) for name in sorted(fits)}
                    if widest
                    else {}
                ),
            )
        )
    return found


def _unseen(engine: str, era: str, architecture: str) -> Floats:
    unknown = {
        "engine": engine == "*",
        "era": era == "*",
        "progress": era == "*",
        "architecture": architecture == "*",
        "pair": "*" in (engine, architecture),
    }
    # Of a model's family its kernels' share, too.
    return np.diag(
        sum(
            (share((level,)) ** 2 for level, any_ in unknown.items() if any_),
            share(("family",)) ** 2,
        )
    )


def _rounded(values: Floats) -> tuple[float, ...]:
    return tuple(float(f"{value:.5g}") for value in values)
