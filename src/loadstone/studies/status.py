"""Where a study stands: what is done, what runs, what failed and why."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from loadstone.studies.file import StudyFile
from loadstone.studies.journal import entries
from loadstone.studies.plan import Launch
from loadstone.studies.supervise import finished, is_owned

State = Literal["waiting", "running", "done", "failed"]


class CellStatus(msgspec.Struct, frozen=True):
    """run_dir: where the cell was measured; None: it was not."""

    id: str
    workload: str
    load: str
    state: State
    run_dir: str | None


class LaunchStatus(msgspec.Struct, frozen=True):
    """why: what went wrong last, where something did."""

    id: str
    deployment: str
    repeat: int
    state: State
    why: str
    cells: list[CellStatus]


class StudyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `loadstone study status --json`."""

    schema: int = 1
    study: str
    launches: list[LaunchStatus]


def name_of(launch: Launch) -> str:
    """The deployment of a launch for people and documents."""
    return launch.deployment or f"{launch.engine}: {launch.model}"


def status_of(read: StudyFile, launches: tuple[Launch, ...], folder: Path) -> StudyStatus:
    """The state of every launch and cell. Raises InputError where the journal cannot be read."""
    goes_on = is_owned(folder)
    open_launch = open_cell = ""
    why: dict[str, str] = {}
    for entry in entries(folder):
        if entry.event in ("launch", "end"):
            open_launch = entry.launch if entry.event == "launch" else ""
            open_cell = ""
            why[entry.launch] = entry.why
        elif entry.event in ("cell", "done"):
            open_cell = entry.cell if entry.event == "cell" else ""
            why[entry.cell] = entry.why
    statuses = []
    for launch in launches:
        cells = []
        for cell in launch.cells:
            run = finished(folder, cell)
            state: State = "done" if run else "running" if goes_on and cell.id == open_cell else "waiting"
            if state == "waiting" and why.get(cell.id):
                state = "failed"
            cells.append(CellStatus(cell.id, cell.workload, cell.load, state, str(run) if run else None))
        states = {cell.state for cell in cells}
        reason = "" if states == {"done"} else why.get(launch.id, "")
        whole: State = "done" if states == {"done"} else "failed" if reason or "failed" in states else "waiting"
        if goes_on and launch.id == open_launch:
            whole = "running"
        statuses.append(LaunchStatus(launch.id, name_of(launch), launch.repeat, whole, reason, cells))
    return StudyStatus(study=read.study.study, launches=statuses)
