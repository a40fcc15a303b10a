"""From a user's own runs to a profile that is kept, and what is said of it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from math import exp, expm1
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from loadstone.catalogue import parse_deployment
from loadstone.core.errors import InputError
from loadstone.predict.calibrate.update import Calibration, update
from loadstone.predict.step_time.profile import Quantity, profile_of, save, user_folder
from loadstone.runs.calibration_cases import cases_of_runs, deployment_of_runs


class Kept(NamedTuple):
    """A profile by its name, the file it is kept in, the deployment it is of, the name of the profile it came from,
    on how many measured cells it stands, and how it became surer."""

    name: str
    path: Path
    deployment: str
    base: str
    points: int
    found: Calibration

    @property
    def furthest(self) -> float:
        """The factor that predictions were off by before, of TTFT or TPOT, whichever is the larger; 1 of nothing."""
        return max((exp(abs(median(gaps))) for gaps in self.found.gap_before.values() if gaps), default=1.0)

    def to_json(self) -> dict[str, Any]:
        """Half-widths of the 80 % intervals and errors, relative, by `ttft` and `tpot`."""
        return {
            "schema": 1, "profile": self.name, "path": str(self.path), "from": self.base, "points": self.points,
            "interval_before": _means(self.found.before), "interval_after": _means(self.found.after),
            "error_before": _errors(self.found.gap_before), "error_after": _errors(self.found.gap_after),
        }  # fmt: skip


def calibrate(runs: Sequence[Path], deployment: str | None, name: str, folder: Path | None) -> Kept:
    """The profile of what the `runs` were measured on, moved towards them and kept in `folder` (None: the user's).

    `deployment`: its shorthand; None: as the runs tell it. Raises InputError, one line.
    """
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise InputError(f"--profile {name!r}: letters, digits, - _ . only")
    runs = list({run.resolve(): run for run in runs}.values())  # given twice, one tells no more
    target = parse_deployment(deployment) if deployment is not None else deployment_of_runs(runs)
    cases = cases_of_runs(runs, target)
    base = profile_of(target)
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    found = update(base, cases, name, today)
    path = save(found.profile, folder or user_folder())
    return Kept(name, path, target.name, base.name, len(cases), found)


def _means(values: Mapping[Quantity, list[float]]) -> dict[str, float]:
    return {key: sum(each) / len(each) for key, each in values.items() if each}


def _errors(gaps: Mapping[Quantity, list[float]]) -> dict[str, float]:
    return {key: median(abs(expm1(-gap)) for gap in each) for key, each in gaps.items() if each}
