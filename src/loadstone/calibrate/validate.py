"""Scoring the performance model: predictions for published measurements, with intervals, beside
what was measured.

Also the document of `loadstone validate --json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import exp, inf, sqrt
from typing import Literal, cast

import msgspec
import numpy as np

from loadstone.calibrate.cases import Case, CaseTable, case_of, refresh, slopes
from loadstone.calibrate.points import Point
from loadstone.catalogue import Worker
from loadstone.core.document import Document
from loadstone.core.errors import InputError
from loadstone.core.groups import by_key
from loadstone.core.statistics.distribution import Z80
from loadstone.predict.simulator.bound_errors import find_uncovered_load
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import Fleet
from loadstone.predict.simulator.interval import intervals
from loadstone.predict.simulator.latencies import answered_rows, latencies_s
from loadstone.predict.step_time.coefficients import Array
from loadstone.predict.step_time.coverage import uncovered_load
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
_METRICS = "ttft_s", "tpot_s", "output_tokens_per_s"
QUANTITIES: tuple[Quantity, ...] = ("ttft", "tpot", "throughput")


Way = Literal["all", "source", "engine", "gpu", "model", "regime"]


class Errors(msgspec.Struct, frozen=True):
    """Errors of n predictions. median_error |predicted/measured − 1|; bias: the median of
    predicted/measured, less 1; coverage: the share of measurements inside the 80 % interval."""

    n: int
    median_error: float
    bias: float
    coverage: float


ByQuantity = dict[Quantity, Errors]
Summary = dict[Way, dict[str, ByQuantity]]


class Scored(msgspec.Struct, frozen=True):
    """A point with its prediction.

    Times in seconds, `throughput` in output tokens per second; `low` and `high` bound an 80 %
    interval. `profile` says which coefficients were used; `held_out`: they were fitted without this
    point's model family (True), which was in no fit (False), or nobody knows, for the profile is
    the user's own (None). `rows_left`: the measurements behind the profile, without those of a
    family held out; `uncovered`: the classes without measurements that the point is in
    (coverage.py).
    """

    point: Point
    predicted: dict[Quantity, float]
    low: dict[Quantity, float]
    high: dict[Quantity, float]
    measured: dict[Quantity, float]
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
    """Predict every point in order, where that is possible. `profile_name`: a user's profile, in
    place of the shipped ones; `hold_out`: by coefficients that were fitted without a point's model
    family."""
    cases: list[Case] = []
    profiles: list[Profile] = []
    skipped: dict[int, str] = {}
    pooled: dict[int, Scored] = {}
    for point in points:
        if point.exclude:
            skipped[point.row] = f"excluded: {point.exclude}"
            continue
        try:
            case = case_of(point, profile_name)
            if case.fleet is not None:
                pooled[point.row] = _score_pools(case, case.fleet, hold_out=hold_out)
                continue
        except InputError as reason:
            skipped[point.row] = str(reason)
            continue
        try:
            profiles.append(profile_of(case.worker, profile_name))
            cases.append(case)
        except OtherArchitecture as reason:
            skipped[point.row] = str(reason)
    predicted = dict(
        zip((case.point.row for case in cases), _predicted(cases, profiles, hold_out), strict=True)
    )
    predicted |= pooled
    return [
        predicted.get(point.row)
        or Scored(
            point,
            {},
            {},
            {},
            measured_of(point),
            skipped.get(point.row, "the same row number twice"),
        )
        for point in points
    ]


def measured_of(point: Point) -> dict[Quantity, float]:
    values = (point.ttft_s, point.tpot_s, point.output_tokens_per_s)
    return {
        name: value for name, value in zip(QUANTITIES, values, strict=True) if value is not None
    }


def _predicted(cases: Sequence[Case], profiles: Sequence[Profile], hold_out: bool) -> list[Scored]:
    if not cases:
        return []
    families = [
        family_of(case.deployment.model, case.point.fold) if hold_out else "" for case in cases
    ]
    held = [
        True if family in profile.held_out else None if is_own(profile) else False
        for profile, family in zip(profiles, families, strict=True)
    ]
    profiles = [
        leave_out(profile, family) for profile, family in zip(profiles, families, strict=True)
    ]
    values = np.array([profile.values() for profile in profiles])
    table = CaseTable(cases)
    refresh(table, values)
    by_ttft, by_tpot = slopes(table, np.log(values))
    scored = []
    for at, (case, profile) in enumerate(zip(cases, profiles, strict=True)):
        predicted: dict[Quantity, float] = {
            "ttft": float(table.ttft_s[at]),
            "tpot": float(table.tpot_s[at]),
            "throughput": float(table.rate[at]),
        }
        loads = [] if is_own(profile) else uncovered_load(case.worker, *count_at_once(case))
        spread = _spreads(case, profile, predicted, by_ttft[at : at + 1], by_tpot[at : at + 1])
        width = {
            name: exp(Z80 * profile.wider_for(loads) * value) for name, value in spread.items()
        }
        found = [] if is_own(profile) else [*uncovered_classes(case.worker), *loads]
        scored.append(
            Scored(
                point=_with_names(case),
                predicted=predicted,
                low={name: value / width[name] for name, value in predicted.items()},
                high={name: value * width[name] for name, value in predicted.items()},
                measured=measured_of(case.point),
                deployment=case.deployment.name,
                profile=profile.name,
                held_out=held[at],
                users=case.users,
                rows_left=profile.provenance.rows,
                uncovered=tuple(each.what for each in found),
            )
        )
    return scored


def _score_pools(case: Case, fleet: Fleet, *, hold_out: bool) -> Scored:
    """Simulate a point's pools, also at coefficients drawn from the profiles' uncertainty, for the
    intervals."""
    family = family_of(case.deployment.model, case.point.fold) if hold_out else ""
    fleet, profile = _hold_out(fleet, case.worker, family)
    if (pool := fleet.prefill) is not None:
        prefill, _ = _hold_out(pool.fleet, case.deployment.prefiller, family)
        fleet = replace(fleet, prefill=pool._replace(fleet=prefill))
    plan, middle = case.plan(), np.mean if case.point.stat == "mean" else np.median
    rows = answered_rows(run_cell(plan, 0, fleet))[case.warm :]
    latencies = latencies_s(rows)
    predicted: dict[Quantity, float] = {
        "ttft": float(middle(latencies["ttft_s"])),
        "tpot": float(middle(latencies["tpot_s"])),
        "throughput": float(rows["tokens"].sum() / (rows["end"].max() - rows["sent"].min())),
    }
    loads = [] if is_own(profile) else find_uncovered_load(plan, 0, fleet)
    factors = intervals(
        plan, 0, fleet, fleet.draws(_DRAWS, 0), remaining(profile), profile.wider_for(loads)
    )
    ends = {name: factors[metric] for name, metric in zip(QUANTITIES, _METRICS, strict=True)}
    return Scored(
        point=_with_names(case),
        predicted=predicted,
        low={name: value * ends[name][0] for name, value in predicted.items()},
        high={name: value * ends[name][1] for name, value in predicted.items()},
        measured=measured_of(case.point),
        deployment=case.deployment.name,
        profile=profile.name,
        held_out=True if family in profile.held_out else None if is_own(profile) else False,
        users=case.users,
        rows_left=profile.provenance.rows,
        uncovered=tuple(each.what for each in loads),
    )


def _hold_out(fleet: Fleet, worker: Worker, family: str) -> tuple[Fleet, Profile]:
    """Return the fleet by coefficients that were fitted without a family of models."""
    model = cast(StepModel, fleet.model)
    profile = leave_out(model.profile, family)
    return (
        replace(
            fleet,
            model=StepModel(worker, profile, draft_tokens=model.draft_tokens, work=model.work),
        ),
        profile,
    )


def count_at_once(case: Case) -> tuple[int, int]:
    """Return the requests of a burst, 0 where it is none, and those that one scheduler runs at
    once."""
    point = case.point
    burst = point.load == "rate" and point.load_value == inf and point.mode != "offline"
    return (len(case.inputs) if burst else 0), min(
        case.users // case.worker.dp, case.policy.max_seqs
    )


def _spreads(
    case: Case,
    profile: Profile,
    predicted: Mapping[Quantity, float],
    by_ttft: Array,
    by_tpot: Array,
) -> dict[Quantity, float]:
    """Return standard deviations of ln(measured/predicted). In a closed loop tokens per second are
    as far off as E2E, which is TTFT and then tokens, each by its share of the time."""
    source = case.point.source
    spread = {
        name: float(spreads(profile, by, name, source)[0])
        for name, by in zip(QUANTITIES, (by_ttft, by_tpot, by_tpot), strict=True)
    }
    if case.point.load == "concurrency" and case.point.mode != "offline":
        tokens_s = (float(case.outputs.mean()) - 1) * predicted["tpot"]
        first = predicted["ttft"] / (predicted["ttft"] + tokens_s)
        slope = (first * by_ttft + (1 - first) * by_tpot)[0]
        rest = remaining(profile, source)
        spread["throughput"] = sqrt(
            float(slope @ np.array(profile.covariance) @ slope)
            + (first * rest["ttft"]) ** 2
            + ((1 - first) * rest["tpot"]) ** 2
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
    """Name the load by what limits a step: few users read weights, many compute; long prompts hold
    up the others."""
    users = (
        "1-8 users" if scored.users <= 8 else "9-64 users" if scored.users <= 64 else "65+ users"
    )
    long = (scored.point.input_tokens or 0) >= 4000
    return f"{users}, {'long' if long else 'short'} prompts"


WAYS: dict[Way, Callable[[Scored], str]] = {
    "source": lambda each: each.point.source or "unnamed",
    "engine": lambda each: each.point.engine,
    "gpu": lambda each: each.point.gpu,
    "model": lambda each: each.point.fold or each.point.model,
    "regime": regime,
}


def summarise(rows: Sequence[Scored]) -> Summary:
    """Summarise the errors of the rows with a prediction: {"all" | way: {which: {quantity: …}}}."""
    usable = [each for each in rows if each.skipped_because is None]
    summary: Summary = {"all": {"all": errors(usable)}} if usable else {}
    for name, way in WAYS.items():
        members = by_key((way(each), each) for each in usable)
        if members:
            summary[name] = {which: errors(members[which]) for which in sorted(members)}
    return summary


def errors(rows: Sequence[Scored]) -> ByQuantity:
    by_quantity: ByQuantity = {}
    for name in QUANTITIES:
        if not (here := [each for each in rows if name in each.measured]):
            continue
        ratio = np.array([each.predicted[name] / each.measured[name] for each in here])
        inside = [each.low[name] <= each.measured[name] <= each.high[name] for each in here]
        by_quantity[name] = Errors(
            len(here),
            float(np.median(np.abs(ratio - 1))),
            float(np.median(ratio) - 1),
            float(np.mean(inside)),
        )
    return by_quantity


class Figures(msgspec.Struct, frozen=True):
    """A point's numbers as its file has them: milliseconds and tokens per second; None where there
    is no such one."""

    ttft_ms: float | None
    tpot_ms: float | None
    output_tok_s: float | None


class ScoredRow(msgspec.Struct, frozen=True):
    """A Scored as `loadstone validate --json` prints it; the last five are there if it was
    predicted."""

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
    """The document of `loadstone validate --json`."""

    schema: int
    rows: list[ScoredRow]
    summary: Summary


def validation(rows: Sequence[Scored]) -> Validation:
    return Validation(1, [_row(each) for each in rows], summarise(rows))


def _row(each: Scored) -> ScoredRow:
    row = ScoredRow(
        each.point.row,
        predicted=_figures(each.predicted),
        low=_figures(each.low),
        high=_figures(each.high),
        measured=_figures(each.measured),
        skipped_because=each.skipped_because,
    )
    if each.skipped_because is not None:
        return row
    return msgspec.structs.replace(
        row,
        deployment=each.deployment,
        profile=each.profile,
        family_held_out=each.held_out,
        rows_left=each.rows_left,
        uncovered=each.uncovered,
    )


def _figures(values: dict[Quantity, float]) -> Figures:
    def rounded(name: Quantity, scale: float) -> float | None:
        return float(f"{values[name] * scale:.6g}") if name in values else None

    return Figures(rounded("ttft", 1e3), rounded("tpot", 1e3), rounded("throughput", 1.0))
