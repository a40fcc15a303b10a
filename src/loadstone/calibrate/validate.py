"""Scores the performance model: predictions for published measurements, with 80 % intervals, beside
what was measured.

Also the document of `loadstone validate --json`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, inf, sqrt
from typing import Literal, cast

import msgspec
import numpy as np

from loadstone.calibrate.cases import Case, CaseTable, case_of, middle_of, refresh, slopes
from loadstone.calibrate.points import Point
from loadstone.catalogue import Worker
from loadstone.core.document import Document
from loadstone.core.errors import InputError
from loadstone.core.groups import by_key
from loadstone.core.statistics.distribution import Z80
from loadstone.core.vectors import Floats
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import Fleet
from loadstone.predict.simulator.latencies import answered_rows, latencies_s
from loadstone.predict.simulator.uncertainty import find_uncovered_load, intervals, margins_of
from loadstone.predict.step_time.coverage import Uncovered, uncovered_load
from loadstone.predict.step_time.profile import (
    OtherArchitecture,
    Profile,
    Quantity,
    family_of,
    is_own,
    leave_out,
    profile_of,
    remaining,
    spreads,
    uncovered_classes,
)
from loadstone.predict.step_time.step import StepModel

_DRAWS = 12
_METRICS: dict[Quantity, str] = {
    "ttft": "ttft_s",
    "tpot": "tpot_s",
    "throughput": "output_tokens_per_s",
}
QUANTITIES: tuple[Quantity, ...] = tuple(_METRICS)

Grouping = Literal["all", "source", "engine", "gpu", "model", "regime"]
ByQuantity = dict[Quantity, float]


class Errors(msgspec.Struct, frozen=True):
    """Holds the errors of n predictions. `median_error`: median of |predicted/measured − 1|;
    `coverage`: share of the measurements inside their 80 % intervals."""

    n: int
    median_error: float
    coverage: float


Summary = dict[Grouping, dict[str, dict[Quantity, Errors]]]


class Scored(msgspec.Struct, frozen=True):
    """Holds a point with its prediction: seconds, and for `throughput` output tokens per second.

    low, high  ends of an 80 % interval
    profile    name of the coefficients that were used
    held_out   True: they were fitted without this point's model family; False: no fit had that
               family; None: not known, for the profile is the user's own
    rows_left  measurements behind the profile, without those of a family held out
    uncovered  classes without measurements that the point is in (coverage.py)
    """

    point: Point
    predicted: ByQuantity
    low: ByQuantity
    high: ByQuantity
    measured: ByQuantity
    skipped_because: str | None = None
    deployment: str = ""
    profile: str = ""
    held_out: bool | None = False
    users: int = 0
    rows_left: int = 0
    uncovered: tuple[str, ...] = ()


def score(
    points: Sequence[Point], profile_name: str | None = None, *, hold_out: bool = True
) -> list[Scored]:
    """Return every point with its prediction, in order, or with the reason why there is none.

    `profile_name`: a user's profile, in place of the shipped ones; `hold_out`: predict a point by
    coefficients that were fitted without its model family.
    """
    scored: dict[int, Scored] = {}
    cases: dict[int, Case] = {}
    profiles: list[Profile] = []
    for number, point in enumerate(points):
        try:
            case = _included(point, profile_name)
            if case.fleet is not None:
                scored[number] = _score_pools(case, case.fleet, hold_out=hold_out)
                continue
        except InputError as reason:
            scored[number] = _skip(point, reason)
            continue
        try:
            profiles.append(profile_of(case.worker, profile_name, published=True))
            cases[number] = case
        except OtherArchitecture as reason:
            scored[number] = _skip(point, reason)
    predicted = _predicted([*cases.values()], profiles, hold_out)
    scored |= zip(cases, predicted, strict=True)
    return [scored[number] for number in range(len(points))]


def _included(point: Point, profile_name: str | None) -> Case:
    """Return a point as a simulation. Raises InputError where it is excluded or cannot be one."""
    if point.exclude:
        raise InputError(f"excluded: {point.exclude}")
    return case_of(point, profile_name)


def _skip(point: Point, reason: InputError) -> Scored:
    return Scored(point, {}, {}, {}, measured_of(point), str(reason))


def measured_of(point: Point) -> ByQuantity:
    """Return what was measured, of the quantities that the point has."""
    values = (point.ttft_s, point.tpot_s, point.output_tokens_per_s)
    return {
        name: value for name, value in zip(QUANTITIES, values, strict=True) if value is not None
    }


def _predicted(cases: Sequence[Case], profiles: Sequence[Profile], hold_out: bool) -> list[Scored]:
    if not cases:
        return []
    families = [_family_held_out(case, hold_out) for case in cases]
    kept = [leave_out(*pair) for pair in zip(profiles, families, strict=True)]
    values = np.array([profile.values() for profile in kept])
    table = CaseTable(cases)
    refresh(table, values)
    # Derivatives of ln TTFT and ln TPOT by ln of the coefficients: cases × coefficients.
    by_ttft, by_tpot = slopes(table, values)
    scored = []
    for row, (case, profile) in enumerate(zip(cases, kept, strict=True)):
        predicted: ByQuantity = {
            "ttft": float(table.ttft_s[row]),
            "tpot": float(table.tpot_s[row]),
            "throughput": float(table.rate[row]),
        }
        loads = [] if is_own(profile) else uncovered_load(case.worker, *count_at_once(case))
        spread = _spreads(case, profile, predicted, by_ttft[row : row + 1], by_tpot[row : row + 1])
        wider = profile.wider_for(loads)
        width = {name: exp(Z80 * wider * value) for name, value in spread.items()}
        classes = [] if is_own(profile) else [*uncovered_classes(case.worker), *loads]
        low = {name: value / width[name] for name, value in predicted.items()}
        high = {name: value * width[name] for name, value in predicted.items()}
        held_out = _is_held_out(profiles[row], families[row])
        scored.append(_scored(case, profile, held_out, (predicted, low, high), classes))
    return scored


def _scored(
    case: Case,
    profile: Profile,
    held_out: bool | None,
    figures: tuple[ByQuantity, ByQuantity, ByQuantity],
    classes: Sequence[Uncovered],
) -> Scored:
    """Return the case with what was predicted, and the ends of the intervals."""
    return Scored(
        _with_names(case),
        *figures,
        measured=measured_of(case.point),
        deployment=case.deployment.name,
        profile=profile.name,
        held_out=held_out,
        users=case.users,
        rows_left=profile.provenance.rows,
        uncovered=tuple(uncovered.what for uncovered in classes),
    )


def _family_held_out(case: Case, hold_out: bool) -> str:
    return family_of(case.deployment.model, case.point.fold) if hold_out else ""


def _is_held_out(profile: Profile, family: str) -> bool | None:
    if family in profile.held_out:
        return True
    return None if is_own(profile) else False


def _score_pools(case: Case, fleet: Fleet, *, hold_out: bool) -> Scored:
    """Simulate a point's pools, also at coefficients drawn from the profiles' uncertainty, for the
    intervals."""
    family = _family_held_out(case, hold_out)
    fleet, profile = _hold_out(fleet, case.worker, family)
    if fleet.prefill is not None:
        prefill, _ = _hold_out(fleet.prefill.fleet, case.deployment.prefiller, family)
        fleet = replace(fleet, prefill=fleet.prefill._replace(fleet=prefill))
    plan, middle = case.plan(), middle_of(case)
    rows = answered_rows(run_cell(plan, 0, fleet))[case.warm :]
    latencies = latencies_s(rows)
    predicted: ByQuantity = {
        "ttft": float(middle(latencies["ttft_s"])),
        "tpot": float(middle(latencies["tpot_s"])),
        "throughput": float(rows["tokens"].sum() / (rows["end"].max() - rows["sent"].min())),
    }
    factors = intervals(plan, 0, fleet, fleet.draws(_DRAWS, 0), margins_of(plan, 0, fleet))
    low, high = (
        {name: value * factors[_METRICS[name]][end] for name, value in predicted.items()}
        for end in (0, 1)
    )
    classes = find_uncovered_load(plan, 0, fleet)
    return _scored(case, profile, _is_held_out(profile, family), (predicted, low, high), classes)


def _hold_out(fleet: Fleet, worker: Worker, family: str) -> tuple[Fleet, Profile]:
    """Return the fleet by coefficients that were fitted without a family of models."""
    model = cast(StepModel, fleet.model)
    profile = leave_out(model.profile, family)
    without = StepModel(worker, profile, draft_tokens=model.draft_tokens, work=model.work)
    return replace(fleet, model=without), profile


def count_at_once(case: Case) -> tuple[int, int]:
    """Return how many requests arrive at once (0 where the load is no burst), and how many one
    scheduler runs at once."""
    point = case.point
    burst = point.load == "rate" and point.load_value == inf and point.mode != "offline"
    return (len(case.inputs) if burst else 0), min(
        case.users // case.worker.dp, case.policy.max_seqs
    )


def _spreads(
    case: Case,
    profile: Profile,
    predicted: ByQuantity,
    by_ttft: Floats,
    by_tpot: Floats,
) -> dict[Quantity, float]:
    """Return the standard deviation of ln(measured/predicted) for each quantity. In a closed loop
    tokens per second are as far off as E2E: TTFT and then tokens, each by its share of the time."""
    source = case.point.source
    spread = {
        name: float(spreads(profile, by, name, source)[0])
        for name, by in zip(QUANTITIES, (by_ttft, by_tpot, by_tpot), strict=True)
    }
    if case.point.load == "concurrency" and case.point.mode != "offline":
        tokens_s = (float(case.outputs.mean()) - 1) * predicted["tpot"]
        first = predicted["ttft"] / (predicted["ttft"] + tokens_s)
        slope = (first * by_ttft + (1 - first) * by_tpot)[0]
        remains = remaining(profile, source)
        spread["throughput"] = sqrt(
            float(slope @ np.array(profile.covariance) @ slope)
            + (first * remains["ttft"]) ** 2
            + ((1 - first) * remains["tpot"]) ** 2
        )
    return spread


def _with_names(case: Case) -> Point:
    """Return the point; one that has a shorthand alone, with its engine, model and GPU as well."""
    point, worker = case.point, case.worker
    return msgspec.structs.replace(
        point,
        engine=point.engine or worker.engine,
        model=point.model or worker.model.name,
        gpu=point.gpu or worker.gpu.name,
    )


# --- summaries ------------------------------------------------------------------------------------


def regime(scored: Scored) -> str:
    """Return the name of a load by what limits a step: with few users reading weights, with many
    computing; long prompts hold up the other requests."""
    users = "65+ users"
    if scored.users <= 64:
        users = "1-8 users" if scored.users <= 8 else "9-64 users"
    long = (scored.point.input_tokens or 0) >= 4000
    return f"{users}, {'long' if long else 'short'} prompts"


GROUPINGS: dict[Grouping, Callable[[Scored], str]] = {
    "source": lambda row: row.point.source or "unnamed",
    "engine": lambda row: row.point.engine,
    "gpu": lambda row: row.point.gpu,
    "model": lambda row: row.point.fold or row.point.model,
    "regime": regime,
}


def summarise(rows: Sequence[Scored]) -> Summary:
    """Return the errors of the rows with a prediction: {grouping: {group: {quantity: Errors}}}."""
    usable = [row for row in rows if row.skipped_because is None]
    if not usable:
        return {}
    summary: Summary = {"all": {"all": errors(usable)}}
    for grouping, group_of in GROUPINGS.items():
        members = by_key((group_of(row), row) for row in usable)
        summary[grouping] = {group: errors(members[group]) for group in sorted(members)}
    return summary


def errors(rows: Sequence[Scored]) -> dict[Quantity, Errors]:
    """Return the errors of each quantity that a row has measured."""
    found: dict[Quantity, Errors] = {}
    for name in QUANTITIES:
        measured = [row for row in rows if name in row.measured]
        if not measured:
            continue
        relative = [abs(row.predicted[name] / row.measured[name] - 1) for row in measured]
        inside = [row.low[name] <= row.measured[name] <= row.high[name] for row in measured]
        found[name] = Errors(len(measured), float(np.median(relative)), float(np.mean(inside)))
    return found


class Figures(msgspec.Struct, frozen=True):
    """Holds a point's numbers in its file's units, milliseconds and tokens per second; None where
    the point has none."""

    ttft_ms: float | None
    tpot_ms: float | None
    output_tok_s: float | None


class ScoredRow(msgspec.Struct, frozen=True):
    """Holds a Scored as `loadstone validate --json` prints it; the last five fields are left out
    where there is no prediction."""

    row: int
    predicted: Figures
    low: Figures
    high: Figures
    measured: Figures
    skipped_because: str | None
    deployment: str | msgspec.UnsetType = msgspec.UNSET
    profile: str | msgspec.UnsetType = msgspec.UNSET
    family_held_out: bool | msgspec.UnsetType | None = msgspec.UNSET
    rows_left: int | msgspec.UnsetType = msgspec.UNSET
    uncovered: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class Validation(Document, msgspec.Struct, frozen=True):
    """Holds the document of `loadstone validate --json`."""

    schema: int
    rows: list[ScoredRow]
    summary: Summary


def validation(rows: Sequence[Scored]) -> Validation:
    return Validation(1, [_show_row(row) for row in rows], summarise(rows))


def _show_row(row: Scored) -> ScoredRow:
    predicted, low, high, measured = map(_figures, (row.predicted, row.low, row.high, row.measured))
    shown = ScoredRow(row.point.row, predicted, low, high, measured, row.skipped_because)
    if row.skipped_because is not None:
        return shown
    return msgspec.structs.replace(
        shown,
        deployment=row.deployment,
        profile=row.profile,
        family_held_out=row.held_out,
        rows_left=row.rows_left,
        uncovered=row.uncovered,
    )


def _figures(values: ByQuantity) -> Figures:
    def rounded(name: Quantity, scale: float) -> float | None:
        return float(f"{values[name] * scale:.6g}") if name in values else None

    return Figures(rounded("ttft", 1e3), rounded("tpot", 1e3), rounded("throughput", 1.0))
