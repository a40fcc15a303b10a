"""How far the performance model can be believed: fitted and scored on public points, families and
sources held out.

    python research/calibration/accuracy.py POINTS.csv…                fit; score each row with its
    family held out python research/calibration/accuracy.py POINTS.csv… --write FILE   … and write
    the profiles, packed python research/calibration/accuracy.py POINTS.csv… --out source   score
    each row with its source held out python research/calibration/accuracy.py POINTS.csv… --out gpu
    … its GPU; `release`: its engine's version
    --of TEXT     of the rows of sources with this text alone (all are fitted on)
    python research/calibration/accuracy.py POINTS.csv… --two         two points of each sweep
    given, others predicted
    --json FILE   every row: deployment, ln(measured/predicted), interval; --worst N   the rows
                  furthest off

What is shipped was fitted on the public points (as annotate.py writes them),
benchmarks/vendor_tables.csv and benchmarks/inferencex_points.csv together (docs/accuracy.md).

AIConfigurator on the same rows: benchmarks/accuracy_peer.py, from --json's file. Minutes on one
core; set OMP_NUM_THREADS=1 where others measure.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fit import Fit, family, solve, values_of, weights_of
from loadstone.calibrate.cases import Case, CaseTable, case_of, refresh, slopes
from loadstone.calibrate.points import read_points
from loadstone.calibrate.update import update
from loadstone.core.errors import InputError
from loadstone.core.statistics.distribution import Z80
from loadstone.engines import OLD_ERAS, rules_of
from loadstone.predict.step_time.boards import architecture_of
from loadstone.predict.step_time.profile import Quantity, profile_of, save_packed, spreads
from profiles import (
    MANY,
    fit_all,
    fit_without,
    fit_without_architecture,
    gaps,
    held_out_values,
    known_variance,
    profiles,
    residuals,
    spreads_of,
)

QUANTITIES: tuple[Quantity, ...] = ("tpot", "ttft", "throughput")
LATENCIES: tuple[Quantity, Quantity] = ("ttft", "tpot")
Floats = NDArray[np.float64]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def cases_of(paths: Sequence[Path]) -> list[Case]:
    cases, why = [], Counter[str]()
    for point in (point for path in paths for point in read_points(path)):
        if point.exclude:
            continue
        try:
            cases.append(case_of(point))
        except InputError as reason:
            why[str(reason)] += 1
    say(f"{len(cases)} points; left out:")
    for text, count in why.most_common(20):
        say(f"{count:6d}  {text}")
    return cases


def regime(case: Case) -> str:
    length = "long prompts" if (case.point.input_tokens or 0) >= 4000 else "short prompts"
    return f"{'1-8' if case.users <= 8 else '9-64' if case.users <= 64 else '65+'} users, {length}"


WAYS: dict[str, Callable[[Case], str]] = {
    "all": lambda case: "all",
    "GPU": lambda case: case.worker.gpu.name,
    "architecture": lambda case: architecture_of(case.worker.gpu),
    "GPU and engine": lambda case: f"{case.worker.gpu.name} {case.worker.engine}",
    "family": family,
    "regime": regime,
    "source": lambda case: case.point.source,
    "release": lambda case: f"{case.worker.engine} {case.worker.engine_version}",
    "drafts": lambda case: (
        f"{case.worker.gpu.vendor} {'without' if case.policy.speculative is None else 'with'}"
    ),
}


def show(
    table: CaseTable,
    gap: Mapping[Quantity, Floats],
    spread: Mapping[Quantity, Floats] | None = None,
    ways: Sequence[str] = ("all", "GPU", "GPU and engine", "family", "regime", "source"),
) -> None:
    """|predicted/measured − 1|: median and 90th percentile; bias; share inside the 80 %
    interval."""
    for what in ways:
        way = WAYS[what]
        members: dict[str, list[int]] = defaultdict(list)
        for at, case in enumerate(table.cases):
            members[way(case)].append(at)
        for which, positions in sorted(members.items()):
            text = f"{what:15s} {which[:44]:44s}"
            for name in QUANTITIES:
                here = gap[name][positions]
                fine = np.isfinite(here)
                if not fine.any():
                    continue
                off = np.abs(np.exp(-here[fine]) - 1)
                text += (
                    f" {name} n {fine.sum():4d} {np.median(off):6.1%} p90"
                    f" {np.quantile(off, 0.9):5.0%}"
                )
                text += f" {np.exp(-np.median(here[fine])) - 1:+5.0%}"
                if spread is not None:
                    inside = np.abs(here[fine]) <= Z80 * spread[name][positions][fine]
                    text += f" in {inside.mean():4.0%}"
                text += " |"
            print(text)


def worst(table: CaseTable, gap: Mapping[Quantity, Floats], count: int) -> None:
    for name in QUANTITIES[:2]:
        size = np.where(np.isfinite(gap[name]), np.abs(gap[name]), 0.0)
        print(f"furthest off in {name}")
        for at in np.argsort(-size)[:count]:
            case = table.cases[at]
            point = case.point
            print(
                f"  row {point.row:5d} {np.exp(-gap[name][at]):6.2f}× {case.deployment.name}"
                f" {point.input_tokens}/{point.output_tokens} users {point.load_value}"
                f" {point.source[:40]}"
            )


def key_of(case: Case) -> tuple[str, str, str]:
    deployment = case.worker
    return deployment.engine, rules_of(deployment).era, architecture_of(deployment.gpu)


def fitted_on(cases: Sequence[Case]) -> CaseTable:
    """Of the cases those that the fit is to: tokens per second are scored alone, and take long to
    simulate."""
    return CaseTable([case for case in cases if case.point.ttft_s or case.point.tpot_s])


def families_out(table: CaseTable, arguments: argparse.Namespace) -> None:
    fitted = fitted_on(table.cases)
    use = np.ones(len(fitted.cases), bool)
    fit = fit_all(fitted, use, arguments.rounds)
    fits = fit_without(fitted, fit, use)
    logarithms = held_out_values(table, fits, fit)
    refresh(table, np.exp(logarithms))
    gap = gaps(table)
    known = known_variance(table, logarithms, spreads_of(table.cases, fits, fit))
    keys = [key_of(case) for case in table.cases]
    # Old eras are further off than later ones; what few of their rows there are, are told by them
    # alone.
    old = np.array([key[1] in OLD_ERAS for key in keys])
    everywhere = {True: residuals(gap, known, old), False: residuals(gap, known, ~old)}
    remaining = {}
    for key in set(keys):
        mine = np.array([each == key for each in keys])
        if mine.sum() >= MANY:
            remaining[key] = everywhere[key[1] in OLD_ERAS] | residuals(gap, known, mine)
    alone, unseen = architectures_out(fitted, fit)

    def residual_of(engine: str, era: str, architecture: str) -> Mapping[Quantity, float]:
        rest = everywhere[era in OLD_ERAS]
        if architecture not in alone:
            rest = {name: max(value, unseen.get(name, 0.0)) for name, value in rest.items()}
        return remaining.get((engine, era, architecture), rest)

    spread: dict[Quantity, Floats] = {}
    for name in QUANTITIES:
        rest = np.array([residual_of(*key)[name] for key in keys])
        spread[name] = np.sqrt(known[name] + rest**2)
    show(table, gap, spread)
    if arguments.worst:
        worst(table, gap, arguments.worst)
    if arguments.write:
        today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        found = profiles(table, fit, fits, residual_of, "research/calibration/accuracy.py", today)
        save_packed(found, arguments.write)
    if arguments.json:
        arguments.json.write_text(
            json.dumps([_row(table, gap, spread, at) for at in range(len(table.cases))])
        )


def architectures_out(table: CaseTable, fit: Fit) -> tuple[set[str], dict[Quantity, float]]:
    """The architectures with many rows, and what remains where each is predicted from the others;
    says how far off that is. `table` is left as it was."""
    fits = fit_without_architecture(table, fit)
    at = [
        place for place, case in enumerate(table.cases) if architecture_of(case.worker.gpu) in fits
    ]
    kept = CaseTable([table.cases[place] for place in at])
    fit_of = [fits[architecture_of(case.worker.gpu)] for case in kept.cases]
    logarithms = np.concatenate(
        [values_of(each, [case]) for each, case in zip(fit_of, kept.cases, strict=True)]
    )
    refresh(kept, np.exp(logarithms))
    gap = gaps(kept)
    spreads = [
        spreads_of([case], {}, each)[0] for each, case in zip(fit_of, kept.cases, strict=True)
    ]
    unseen = residuals(gap, known_variance(kept, logarithms, spreads), np.ones(len(at), bool))
    print("architecture held out")
    show(kept, gap, ways=("architecture", "GPU"))
    print("family held out")
    return set(fits), unseen


def _row(
    table: CaseTable, gap: Mapping[Quantity, Floats], spread: Mapping[Quantity, Floats], at: int
) -> dict[str, object]:
    case = table.cases[at]
    deployment, point = case.worker, case.point
    row: dict[str, object] = {
        "row": point.row,
        "deployment": case.deployment.name,
        "family": family(case),
        "model": point.model,
        "gpu": deployment.gpu.name,
        "engine": deployment.engine,
        "weights": deployment.weights_dtype,
        "kv": deployment.kv_dtype,
        "tp": deployment.tp,
        "dp": deployment.dp,
        "ep": deployment.ep,
        "attention_dp": deployment.attention_dp,
        "input_tokens": point.input_tokens,
        "output_tokens": point.output_tokens,
        "users": point.load_value,
        "ttft_s": point.ttft_s,
        "tpot_s": point.tpot_s,
    }
    for name in QUANTITIES:
        if np.isfinite(gap[name][at]):
            row[name] = {
                "ln_measured_over_predicted": float(gap[name][at]),
                "sd": float(spread[name][at]),
            }
    return row


def out(cases: Sequence[Case], arguments: argparse.Namespace) -> None:
    """Each row from a fit without its source, GPU or release; an extrapolation where nothing else
    has that engine and GPU. The model family is in the fit by its other rows."""
    table = fitted_on(cases)
    fit = fit_all(table, np.ones(len(table.cases), bool), arguments.rounds)
    way = WAYS["GPU" if arguments.out == "gpu" else arguments.out]
    names = np.array([way(case) for case in table.cases])
    scored = np.array([arguments.of in case.point.source for case in table.cases])
    weights = weights_of(table.cases)
    logarithms = values_of(fit, table.cases)
    for name in np.unique(names[scored]):
        without: Fit = solve(table, fit.groups, names != name, weights, fit.unknowns)
        at = np.flatnonzero(names == name)
        logarithms[at] = values_of(without, [table.cases[position] for position in at])
        say(f"{name[:60]}: {len(at)} rows held out")
    at = np.flatnonzero(scored)
    kept = CaseTable([table.cases[position] for position in at])
    refresh(kept, np.exp(logarithms[at]))
    show(
        kept,
        gaps(kept),
        ways=("all", "drafts", "GPU", "release", "GPU and engine", "family", "source"),
    )


def two_given(cases: list[Case]) -> None:
    """The two ends of each sweep calibrate (from the profile without the family), the rest is
    predicted."""
    sweeps: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        if case.point.sweep and case.point.tpot_s and case.point.mode == "serving":
            sweeps[case.point.sweep].append(case)
    off: dict[tuple[str, str], list[float]] = defaultdict(list)
    inside: dict[str, list[bool]] = defaultdict(list)
    sizes = 0
    for members in sweeps.values():
        members.sort(key=lambda case: (case.users, case.point.row))
        if len({case.users for case in members}) < 3:
            continue
        sizes += 1
        given = [members[0], members[-1]]
        rest = [
            case for case in members[1:-1] if case.users not in (given[0].users, given[1].users)
        ]
        if not rest:
            continue
        profile = profile_of(given[0].worker, published=True)
        found = update(profile, given, "two", "", without=family(given[0]))
        table = CaseTable(rest)
        for when, values in (
            ("before", profile.values(without=family(given[0]))),
            ("after", found.profile.values()),
        ):
            coefficients = np.tile(values, (len(rest), 1))
            refresh(table, coefficients)
            for name, by, gap in zip(
                LATENCIES, slopes(table, coefficients), _gaps(table), strict=True
            ):
                known = np.isfinite(gap)
                off[when, name] += np.abs(np.expm1(-gap[known])).tolist()
                if when == "after":
                    width = Z80 * spreads(found.profile, by[known], name)
                    inside[name] += (np.abs(gap[known]) <= width).tolist()
    print(f"{sizes} sweeps")
    for (when, quantity), errors in off.items():
        print(
            f"{quantity} {when}: {len(errors)} rows, off by {np.median(errors):.1%}"
            f" (p90 {np.quantile(errors, 0.9):.0%})"
            + (f", {np.mean(inside[quantity]):.0%} inside 80 %" if when == "after" else "")
        )


def _gaps(table: CaseTable) -> tuple[Floats, Floats]:
    """ln(measured/predicted) of TTFT and of TPOT, as last simulated; NaN where not measured."""
    points = [case.point for case in table.cases]
    ttft = np.array([point.ttft_s or np.nan for point in points])
    tpot = np.array([point.tpot_s or np.nan for point in points])
    return np.log(ttft / table.ttft_s), np.log(tpot / table.tpot_s)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("points", type=Path, nargs="+")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worst", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", choices=("source", "gpu", "release"))
    parser.add_argument("--of", default="")
    parser.add_argument("--two", action="store_true")
    arguments = parser.parse_args()
    began = time.perf_counter()
    cases = cases_of(arguments.points)
    if arguments.two:
        two_given(cases)
    elif arguments.out:
        out(cases, arguments)
    else:
        families_out(CaseTable(cases), arguments)
    say(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
