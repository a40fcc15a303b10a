"""Tells the state of a study: what is done, what runs, what failed and why."""

from pathlib import Path
from typing import Literal

import msgspec

from loadstone.core import run_folder
from loadstone.core.run_folder.owner import is_owned
from loadstone.core.settings import FoundMax
from loadstone.studies.file import StudyFile
from loadstone.studies.journal import read_entries
from loadstone.studies.plan import PlannedCell, PlannedLaunch
from loadstone.studies.supervise import CUT_SHORT, find_run

State = Literal["waiting", "running", "done", "failed"]


class CellStatus(msgspec.Struct, frozen=True):
    """The state of a cell. run_dir: where it was measured; None: it was not. found: the answer of a
    search."""

    id: str
    workload: str
    load: str
    repeat: int
    state: State
    run_dir: str | None
    found: str | None = None


class LaunchStatus(msgspec.Struct, frozen=True):
    """The state of a launch. repeat: the first one of its cells; why: what went wrong last, where
    something did; start_up_s: from starting its processes until the engine answered."""

    id: str
    deployment: str
    repeat: int
    state: State
    why: str
    cells: list[CellStatus]
    start_up_s: float | None = None


class StudyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `loadstone study status --json`."""

    schema: int = 1
    study: str
    launches: list[LaunchStatus]


def deployment_name(launch: PlannedLaunch) -> str:
    """Name the deployment of a launch for people and documents."""
    return launch.deployment or f"{launch.engine}: {launch.model}"


def repeats_text(launch: PlannedLaunch) -> str:
    """Say which repeats of the study a launch serves."""
    last = launch.cells[-1].repeat
    return (
        f"repeat {launch.repeat}" if last == launch.repeat else f"repeats {launch.repeat} to {last}"
    )


def read_answer(run: Path) -> FoundMax | None:
    """Return the answer of a search, of which this is the run that it is about."""
    return run_folder.read_info(run).settings.find_max


def read_status(read: StudyFile, launches: tuple[PlannedLaunch, ...], folder: Path) -> StudyStatus:
    """Return the state of every launch and cell. Raises InputError where the journal cannot be
    read."""
    goes_on = is_owned(folder)
    open_cells, why = _read_journal(folder)
    statuses = []
    for launch in launches:
        open_cell = open_cells.get(launch.id) if goes_on else None
        cells = [_cell_status(folder, cell, open_cell, why) for cell in launch.cells]
        states = {cell.state for cell in cells}
        reason = "" if states == {"done"} else why.get(launch.id, "")
        has_failed = "failed" in states or reason not in ("", *CUT_SHORT)
        whole: State = "done" if states == {"done"} else "failed" if has_failed else "waiting"
        if open_cell is not None:
            whole = "running"
        infos = (run_folder.read_info(Path(cell.run_dir)) for cell in cells if cell.run_dir)
        start_ups_s = (info.settings.provenance.start_up_s for info in infos)
        start_up_s = next(filter(None, start_ups_s), None)
        name = deployment_name(launch)
        statuses.append(
            LaunchStatus(launch.id, name, launch.repeat, whole, reason, cells, start_up_s)
        )
    return StudyStatus(study=read.study.study, launches=statuses)


def _read_journal(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the cell of each launch that was begun last ("": none is under way), and why launches
    and cells failed."""
    open_cells: dict[str, str] = {}
    why: dict[str, str] = {}
    for entry in read_entries(folder):
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
    return open_cells, why


def _cell_status(
    folder: Path, cell: PlannedCell, open_cell: str | None, why: dict[str, str]
) -> CellStatus:
    run = find_run(folder, cell)
    state: State = "done" if run else "running" if open_cell == cell.id else "waiting"
    if state == "waiting" and why.get(cell.id):
        state = "failed"
    answer = read_answer(run) if run and cell.is_search else None
    found = answer.text if answer else None
    return CellStatus(
        cell.id, cell.workload, cell.load, cell.repeat, state, str(run) if run else None, found
    )
