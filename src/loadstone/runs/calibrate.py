"""From a user's own runs to a profile: each cell is a case of what was sent and measured; a profile is moved towards
all of them and kept.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from math import exp, expm1
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
import numpy as np

from loadstone.analyse import imported_run
from loadstone.analyse.run_facts import RunFacts, run_facts
from loadstone.analyse.summary import summary_of
from loadstone.catalogue import Deployment, parse_deployment
from loadstone.catalogue.deployment.shorthand import parse_named
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.predict.calibrate.cases import MOST_REQUESTS, Case
from loadstone.predict.calibrate.points import Point
from loadstone.predict.calibrate.update import Calibration, update
from loadstone.predict.scheduler import policy_of
from loadstone.predict.step_time.profile import Quantity, profile_of, save, user_folder
from loadstone.predict.step_time.work import work_of

_TELLS_NO_ENGINE = ("Triton",)
"""In front of engines that it does not name."""
_MOST_CACHED = 0.05
"""Of a cell's prompt tokens: fewer, as of a chat template that all begin with, change TTFT by less than it varies."""


class CalibratedProfile(NamedTuple):
    """A profile by its name, the file it is kept in, the deployment it is of, the name of the profile it came from,
    on how many measured cells it stands, and how it became surer."""

    name: str
    path: Path
    deployment: str
    base: str
    points: int
    calibration: Calibration

    @property
    def furthest(self) -> float:
        """The factor that predictions were off by before, of TTFT or TPOT, whichever is the larger; 1 of nothing."""
        return max((exp(abs(median(gaps))) for gaps in self.calibration.gap_before.values() if gaps), default=1.0)

    def to_json(self) -> dict[str, Any]:
        """Half-widths of the 80 % intervals and errors, relative, by `ttft` and `tpot`."""
        return {
            "schema": 1, "profile": self.name, "path": str(self.path), "from": self.base, "points": self.points,
            "interval_before": _means(self.calibration.before), "interval_after": _means(self.calibration.after),
            "error_before": _errors(self.calibration.gap_before), "error_after": _errors(self.calibration.gap_after),
        }  # fmt: skip


def calibrate(runs: Sequence[Path], deployment: str | None, name: str, folder: Path | None) -> CalibratedProfile:
    """The profile of what the `runs` were measured on, moved towards them and kept in `folder` (None: the user's).

    `deployment`: its shorthand; None: as the runs tell it. Raises InputError, one line.
    """
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise InputError(f"--profile {name!r}: letters, digits, - _ . only")
    runs = list({run.resolve(): run for run in runs}.values())  # a run that is named twice counts once
    target = parse_deployment(deployment) if deployment is not None else deployment_of_runs(runs)
    cases = cases_of_runs(runs, target)
    base = profile_of(target)
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    calibration = update(base, cases, name, today)
    path = save(calibration.profile, folder or user_folder())
    return CalibratedProfile(name, path, target.name, base.name, len(cases), calibration)


def _means(values: Mapping[Quantity, list[float]]) -> dict[str, float]:
    return {key: sum(each) / len(each) for key, each in values.items() if each}


def _errors(gaps: Mapping[Quantity, list[float]]) -> dict[str, float]:
    return {key: median(abs(expm1(-gap)) for gap in each) for key, each in gaps.items() if each}


# --- cases of runs ----------------------------------------------------------------------------------------------


def deployment_of_runs(folders: Sequence[Path]) -> Deployment:
    """What the user said, when they were measured, that all of them were measured on. Raises InputError."""
    deployments: dict[str, tuple[Path, Deployment]] = {}
    for folder in folders:
        info = run_folder.read_info(folder)
        if info.source == "simulated":
            raise InputError(f"{folder}: is a simulated run; calibrate on measured ones")
        declared, facts = info.settings.get("deployment"), run_facts(info)
        name = declared.get("name") if isinstance(declared, dict) and facts.stated else None
        if not isinstance(name, str):
            raise InputError(f"{folder}: does not say what it was measured on; give it with --deployment")
        if facts.engine in _TELLS_NO_ENGINE:
            raise InputError(
                f"{folder}: {facts.engine} was measured, but not which engine is behind it; give it with --deployment"
            )
        own = f"{msgspec.json.encode(facts.hardware)!r} {facts.own_model}"
        deployments.setdefault(f"{name} {own}", (folder, _parsed(folder, name, facts)))
    (first, deployment), *others = deployments.values()
    if others:
        raise InputError(
            f"{others[0][0]}: was measured on {others[0][1].name}, and {first} on {deployment.name}; "
            "calibrate on runs of one deployment, or give it with --deployment"
        )
    return deployment


def _parsed(folder: Path, name: str, facts: RunFacts) -> Deployment:
    """The catalogue's alone, and what the run describes: what a run names, no file is read for."""
    try:
        return parse_named(name, facts.hardware, facts.own_model)
    except InputError as error:
        raise InputError(f"{folder}: {error}; give what it was measured on with --deployment") from error


def cases_of_runs(folders: Sequence[Path], deployment: Deployment) -> list[Case]:
    """A case for each cell with a TPOT. Raises InputError where a folder has none, or the model does not fit."""
    cases: list[Case] = []
    work = work_of(deployment)
    for folder in folders:
        info = run_folder.read_info(folder)
        if info.source == "simulated":
            raise InputError(f"{folder}: is a simulated run; calibrate on measured ones")
        if imported_run.is_summary_only(folder, info):
            raise InputError(f"{folder}: its file has figures and no requests, of which calibration needs each")
        if info.target is not None and info.target.choices > 1:
            raise InputError(
                f"{folder}: each request has {info.target.choices} answers side by side, and its TPOT is of all "
                "together; calibrate on a run without n"
            )
        before = len(cases)
        for number, cell in enumerate(summary_of(folder).document()["cells"]):
            point, arrays = _cell(folder, number, cell, len(cases) + 1)
            if point is None:
                continue
            inputs, outputs, times, warm = arrays
            try:
                policy = policy_of(deployment, lengths=inputs + outputs)
            except InputError as reason:
                raise InputError(f"--deployment: {reason}") from reason
            users = len(inputs) - warm if point.load != "concurrency" else int(point.load_value or 1)
            keep = slice(0, MOST_REQUESTS)
            times = None if times is None else times[keep]
            cases.append(Case(point, deployment, users, policy, inputs[keep], outputs[keep], work, times, warm))
        if len(cases) == before:
            raise InputError(
                f"{folder}: no cell with a TPOT; answers of two tokens or more, over a stream, are needed"
            )
    return cases


def _cell(folder: Path, number: int, cell: dict[str, Any], row: int) -> tuple[Point | None, Any]:
    metrics = cell["metrics"]
    tpot, ttft = _middle(metrics, "tpot_s"), _middle(metrics, "ttft_s")
    if tpot is None:
        return None, None
    cached = (metrics.get("cached_input_tokens") or 0) / max(1, metrics.get("input_tokens") or 0)
    if cached > _MOST_CACHED:
        raise InputError(
            f"{folder}: {cached:.0%} of a cell's prompt tokens were in the prefix cache, which is not simulated "
            "here; calibrate on a run whose prompts share no prefix"
        )
    table = run_folder.read_columns(folder, ["sent_s", "input_tokens", "output_tokens", "phase", "status"], number)
    columns = {name: table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names}
    load = cell["load"]
    # Without its warm-up a closed loop of equal lengths would start and stay in lock-step. A burst's is over before.
    fine = (columns["status"] == "ok") & ((columns["phase"] == "measure") | (load["kind"] != "burst"))
    order = np.argsort(columns["sent_s"][fine], kind="stable")
    inputs = columns["input_tokens"][fine][order].astype(float)
    outputs = columns["output_tokens"][fine][order].astype(float)
    known = np.isfinite(inputs) & (outputs >= 2)
    if not known.any():
        return None, None
    times = columns["sent_s"][fine][order][known]
    warm = int((columns["phase"][fine][order][known] == "warmup").sum())
    point = Point(
        row=row,
        source=str(folder),
        load=load["kind"],
        load_value=float(load["value"]),
        ttft_s=ttft,
        tpot_s=tpot,
        output_tokens_per_s=metrics.get("output_tokens_per_s"),
        stat="median",
        fold="the user's",
    )
    # Where more than the ends of answers says when requests come, they come when they came.
    at_times = load["kind"] == "rate" or load.get("unit") == "sessions" or bool(load.get("profile"))
    came_s = times - times[0] if at_times else None
    return point, (inputs[known].astype(np.int64), outputs[known].astype(np.int64), came_s, warm)


def _middle(metrics: dict[str, Any], name: str) -> float | None:
    distribution = metrics.get(name)
    value = distribution.get("p50") if isinstance(distribution, dict) else None
    return float(value) if value else None
