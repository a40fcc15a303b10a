"""Where a study stands: what is done, what runs, what failed and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from loadstone.core import run_folder
from loadstone.core.run_folder.owner import is_owned
from loadstone.studies.file import StudyFile
from loadstone.studies.journal import entries
from loadstone.studies.plan import Launch
from loadstone.studies.supervise import CUT_SHORT, finished

State = Literal["waiting", "running", "done", "failed"]


class CellStatus(msgspec.Struct, frozen=True):
    """run_dir: where the cell was measured; None: it was not. found: of a search its answer."""

    id: str
    workload: str
    load: str
    repeat: int
    state: State
    run_dir: str | None
    found: str | None = None


class LaunchStatus(msgspec.Struct, frozen=True):
    """repeat: of its cells, the first where they are of several; why: what went wrong last, where something did."""

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


def repeats_of(launch: Launch) -> str:
    """Which repeats of the study a launch serves, for people."""
    last = launch.cells[-1].repeat
    return f"repeat {launch.repeat}" if last == launch.repeat else f"repeats {launch.repeat} to {last}"


def answer_in(run: Path) -> dict[str, Any] | None:
    """What a search found, of which this is the run that the answer is about."""
    return run_folder.read_info(run).settings.find_max


def status_of(read: StudyFile, launches: tuple[Launch, ...], folder: Path) -> StudyStatus:
    """The state of every launch and cell. Raises InputError where the journal cannot be read."""
    goes_on = is_owned(folder)
    open_cells: dict[str, str] = {}
    why: dict[str, str] = {}
    for entry in entries(folder):
        if entry.event == "run":
            open_cells.clear()
        elif entry.event in ("launch", "end"):
            open_cells.pop(entry.launch, None)
            if entry.event == "launch":
                open_cells[entry.launch] = ""
            why[entry.launch] = entry.why
        elif entry.event in ("cell", "done"):
            open_cells[entry.launch] = entry.cell if entry.event == "cell" else ""
            why[entry.cell] = entry.why
    statuses = []
    for launch in launches:
        cells = []
        for cell in launch.cells:
            run = finished(folder, cell)
            is_open = goes_on and open_cells.get(launch.id) == cell.id
            state: State = "done" if run else "running" if is_open else "waiting"
            if state == "waiting" and why.get(cell.id):
                state = "failed"
            where = str(run) if run else None
            answer = answer_in(run) if run and cell.is_search else None
            found = answer["text"] if answer else None
            cells.append(CellStatus(cell.id, cell.workload, cell.load, cell.repeat, state, where, found))
        states = {cell.state for cell in cells}
        reason = "" if states == {"done"} else why.get(launch.id, "")
        has_failed = "failed" in states or reason not in ("", *CUT_SHORT)
        whole: State = "done" if states == {"done"} else "failed" if has_failed else "waiting"
        if goes_on and launch.id in open_cells:
            whole = "running"
        statuses.append(LaunchStatus(launch.id, name_of(launch), launch.repeat, whole, reason, cells))
    return StudyStatus(study=read.study.study, launches=statuses)
