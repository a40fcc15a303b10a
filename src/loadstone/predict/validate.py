"""Scoring the performance model: predictions for published measurements, with intervals, beside what was measured.

Also the document of `loadstone validate`, as JSON and as the table that a person reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from loadstone.core.errors import InputError
from loadstone.core.statistics.distribution import Z80
from loadstone.predict.calibrate.cases import Case, CaseTable, case_of, refresh, slopes
from loadstone.predict.calibrate.points import Point
from loadstone.predict.step_time.profile import (
    OtherArchitecture,
    Profile,
    Quantity,
    family_of,
    is_own,
    profile_of,
    spreads,
)

if TYPE_CHECKING:
    from rich.table import Table


QUANTITIES: tuple[Quantity, ...] = ("ttft", "tpot", "throughput")


Figure = Literal["n", "median_error", "bias", "coverage"]
Way = Literal["all", "source", "engine", "gpu", "model", "regime"]
Summary = dict[Way, dict[str, dict[Quantity, dict[Figure, float]]]]


class Scored(msgspec.Struct, frozen=True):
    """A point with its prediction.

    Times in seconds, `throughput` in output tokens per second; `low` and `high` bound an 80 % interval. `profile`
    says which coefficients were used; `held_out`: they were fitted without this point's model family (True), which
    was in no fit (False), or nobody knows, for the profile is the user's own (None).
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


def score(points: Sequence[Point], profile_name: str | None = None) -> list[Scored]:
    """Every point in order, predicted where that is possible. `profile_name`: a user's profile, in place of the
    shipped ones."""
    cases: list[Case] = []
    profiles: list[Profile] = []
    skipped: dict[int, str] = {}
    for point in points:
        if point.exclude:
            skipped[point.row] = f"excluded: {point.exclude}"
            continue
        try:
            case = case_of(point)
        except InputError as reason:
            skipped[point.row] = str(reason)
            continue
        try:
            profiles.append(profile_of(case.deployment, profile_name))
            cases.append(case)
        except OtherArchitecture as reason:
            skipped[point.row] = str(reason)
    found = dict(zip((case.point.row for case in cases), _predicted(cases, profiles), strict=True))
    return [
        found.get(point.row)
        or Scored(point, {}, {}, {}, measured_of(point), skipped.get(point.row, "the same row number twice"))
        for point in points
    ]


def measured_of(point: Point) -> dict[Quantity, float]:
    values = (point.ttft_s, point.tpot_s, point.output_tokens_per_s)
    return {name: value for name, value in zip(QUANTITIES, values, strict=True) if value is not None}


def _predicted(cases: Sequence[Case], profiles: Sequence[Profile]) -> list[Scored]:
    if not cases:
        return []
    families = [family_of(case.deployment.model, case.point.fold) for case in cases]
    held = [
        True if family in profile.held_out else None if is_own(profile) else False
        for profile, family in zip(profiles, families, strict=True)
    ]
    values = np.array([profile.values(without=family) for profile, family in zip(profiles, families, strict=True)])
    table = CaseTable(cases)
    refresh(table, values)
    by_ttft, by_tpot = slopes(table, np.log(values))
    by = {"ttft": by_ttft, "tpot": by_tpot, "throughput": by_tpot}
    scored = []
    for at, case in enumerate(cases):
        predicted: dict[Quantity, float] = {
            "ttft": table.ttft_s[at],
            "tpot": table.tpot_s[at],
            "throughput": table.rate[at],
        }
        source, profile = case.point.source, profiles[at]
        spread = {
            name: float(np.exp(Z80 * spreads(profile, by[name][at : at + 1], name, source)[0])) for name in QUANTITIES
        }
        scored.append(
            Scored(
                point=_named(case),
                predicted={name: float(value) for name, value in predicted.items()},
                low={name: float(value) / spread[name] for name, value in predicted.items()},
                high={name: float(value) * spread[name] for name, value in predicted.items()},
                measured=measured_of(case.point),
                deployment=case.deployment.name,
                profile=profiles[at].name,
                held_out=held[at],
                users=case.users,
            )
        )
    return scored


def _named(case: Case) -> Point:
    """The point; one that has a shorthand alone, with its engine, model and GPU beside it."""
    point, deployment = case.point, case.deployment
    return msgspec.structs.replace(
        point,
        engine=point.engine or deployment.engine,
        model=point.model or deployment.model.name,
        gpu=point.gpu or deployment.gpu.name,
    )


# --- summaries ----------------------------------------------------------------------------------------------------


def regime(scored: Scored) -> str:
    """By what limits a step: few users read weights, many compute; long prompts hold up the others."""
    users = "1-8 users" if scored.users <= 8 else "9-64 users" if scored.users <= 64 else "65+ users"
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
    """{"all" | way: {which: {quantity: {"n", "median_error", "bias", "coverage"}}}}, of the rows with a prediction.

    median_error |predicted/measured − 1|; bias the median of predicted/measured, less 1; coverage the share of
    measurements inside the 80 % interval.
    """
    usable = [each for each in rows if each.skipped_because is None]
    summary: Summary = {"all": {"all": figures(usable)}} if usable else {}
    for name, way in WAYS.items():
        members: dict[str, list[Scored]] = {}
        for each in usable:
            members.setdefault(way(each), []).append(each)
        if members:
            summary[name] = {which: figures(members[which]) for which in sorted(members)}
    return summary


def figures(rows: Sequence[Scored]) -> dict[Quantity, dict[Figure, float]]:
    by_quantity: dict[Quantity, dict[Figure, float]] = {}
    for name in QUANTITIES:
        here = [each for each in rows if name in each.measured]
        if not here:
            continue
        ratio = np.array([each.predicted[name] / each.measured[name] for each in here])
        inside = [each.low[name] <= each.measured[name] <= each.high[name] for each in here]
        by_quantity[name] = {
            "n": len(here),
            "median_error": float(np.median(np.abs(ratio - 1))),
            "bias": float(np.median(ratio) - 1),
            "coverage": float(np.mean(inside)),
        }
    return by_quantity


_KEYS: dict[Quantity, tuple[str, float]] = {
    "ttft": ("ttft_ms", 1e3),
    "tpot": ("tpot_ms", 1e3),
    "throughput": ("output_tok_s", 1.0),
}
_TITLES: dict[Quantity, str] = {"tpot": "TPOT", "ttft": "TTFT", "throughput": "output tok/s"}


def document_of(rows: Sequence[Scored]) -> dict[str, Any]:
    """Milliseconds and tokens per second, as the points file has them; null where there is no such number."""
    return {"schema": 1, "rows": [_row(each) for each in rows], "summary": summarise(rows)}


def _row(each: Scored) -> dict[str, Any]:
    row: dict[str, Any] = {"row": each.point.row}
    for name, values in (
        ("predicted", each.predicted),
        ("low", each.low),
        ("high", each.high),
        ("measured", each.measured),
    ):
        row[name] = {
            title: float(f"{values[key] * scale:.6g}") if key in values else None
            for key, (title, scale) in _KEYS.items()
        }
    row["skipped_because"] = each.skipped_because
    if each.skipped_because is None:
        row["deployment"] = each.deployment
        row["profile"] = each.profile
        row["family_held_out"] = each.held_out
    return row


def render(rows: Sequence[Scored]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("")
    for title in _TITLES.values():
        for head in (title, "n", "bias", "in 80 %"):
            table.add_column(head, justify="right")
    for way, groups in summarise(rows).items():
        if way != "all":
            table.add_row(f"by {way}")
        for which, figures in groups.items():
            cells: list[str] = []
            for name in _TITLES:
                each = figures.get(name)
                cells += ["", "", "", ""] if each is None else _cells(each)
            table.add_row(which if way == "all" else f"  {which[:48]}", *cells)
    return table


def _cells(figures: dict[Figure, float]) -> list[str]:
    error, inside = f"{figures['median_error']:.1%}", f"{figures['coverage']:.0%}"
    return [error, str(int(figures["n"])), f"{figures['bias']:+.0%}", inside]


def footnote(rows: Sequence[Scored]) -> str:
    scored = [each for each in rows if each.skipped_because is None]
    lines = [
        f"{len(scored)} of {len(rows)} points predicted{_fitted(scored)}",
        "median |predicted/measured − 1|; bias: median of predicted/measured; share inside the 80 % interval",
    ]
    reasons: dict[str, int] = {}
    for each in rows:
        if each.skipped_because:
            reasons[each.skipped_because] = reasons.get(each.skipped_because, 0) + 1
    ordered = sorted(reasons.items(), key=lambda entry: -entry[1])
    lines += [f"left out, {count}: {reason}" for reason, count in ordered[:8]]
    return "\n".join(lines)


_FITTED = {
    True: "with coefficients fitted without their model family",
    False: "of model families that were in no fit",
    None: "with a profile of your own, which may have been fitted on them",
}


def _fitted(scored: Sequence[Scored]) -> str:
    counts = {held: sum(each.held_out is held for each in scored) for held in _FITTED}
    return "".join(f"; {count} {_FITTED[held]}" for held, count in counts.items() if count)
