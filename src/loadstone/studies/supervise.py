"""Carries out a study: starts each launch, measures its missing cells, and stops it; run again, it
goes on.

A cell is done where its run folder has the summary of a run that ended as it should: it is then
never measured again. One that was cut off is measured again whole, and what there was of it is kept
beside the study. Launches that run at the same time have a process each, which ends with this one.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from loadstone.core import run_folder
from loadstone.core.errors import DiskFullError, InputError, LoadstoneError
from loadstone.core.provenance import Provenance
from loadstone.core.run_folder.folder import writing
from loadstone.core.run_folder.owner import own
from loadstone.core.signals import Interrupted
from loadstone.core.summary import Summary
from loadstone.studies.file import StudyFile
from loadstone.studies.journal import Handle, StudyJournal, find_leftovers
from loadstone.studies.plan import PlannedCell, PlannedLaunch

CELLS, CUT, LAUNCHES = "cells", "cut", "launches"
"""Folders of a study: run folders by cell, runs that were cut off, logs by launch."""
_SET_DEATH_SIGNAL = 1
"""An operation of Linux's prctl(2)."""
CUT_SHORT = INTERRUPTED, TIME_OVER = "interrupted", "the study's time was over"
"""Why a launch ended that another `run` goes on with."""
_INTERRUPTED, _FULL = 130, 28
"""Exit codes of a launch's process."""


class LoadClient(Protocol):
    """A host that sends the load. `bench` runs `loadstone bench` there with these words; the run
    folder is then in `out` here, also of a run that was interrupted. Raises TargetError, and
    KeyboardInterrupt."""

    def bench(self, words: Sequence[str], out: Path) -> None: ...


class RunningLaunch(NamedTuple):
    """A launch that has been started and answers.

    url     where, as the client sees it
    handle  what the journal keeps of it, such as its processes
    check   raises TargetError once a rank of it has ended
    client  who sends the load; None: this process
    made_with  what is known of how it was started
    model   name that requests must use, where the server itself may not say it
    worker_metrics  pages of the workers behind a router
    """

    url: str
    handle: Handle
    check: Callable[[], None] = lambda: None
    client: LoadClient | None = None
    made_with: Provenance = Provenance()
    model: str | None = None
    worker_metrics: tuple[str, ...] = ()


class Machine(Protocol):
    """A place where launches run. Its methods raise LoadstoneError.

    kind     of its handles
    running  a context of a launch, which is ready within it and gone after it. The intent is in the
             journal before anything starts. `left`: the handle of a supervisor that vanished, whose
             launch is taken up or ended
    release  ends what such a handle tells of, where nobody needs it any more
    """

    kind: str

    def running(
        self, launch: PlannedLaunch, folder: Path, journal: StudyJournal, left: Handle
    ) -> contextlib.AbstractContextManager[RunningLaunch]: ...

    def release(self, left: Handle) -> None: ...


class StudyEvent(NamedTuple):
    """Something worth telling. `cell`: None where the launch is meant."""

    kind: str
    launch: PlannedLaunch
    cell: PlannedCell | None
    text: str


Listener = Callable[[StudyEvent], None]
Measure = Callable[[PlannedLaunch, PlannedCell, RunningLaunch, Path], Summary]
"""Measures one cell of a running launch into a folder, as bench() does or a simulation."""


def run_study(
    read: StudyFile,
    launches: tuple[PlannedLaunch, ...],
    folder: Path,
    machines: Sequence[Machine],
    measure: Measure,
    on_event: Listener = lambda event: None,
) -> int:
    """Measure what is missing; returns how many cells still are. `machines`, all of a kind, run a
    launch each at a time.

    Raises InputError where another process runs this study, DiskFullError, and KeyboardInterrupt,
    after ending the engine that ran. A launch or cell that fails is in the journal, and the rest
    goes on.
    """
    ends_s = time.monotonic() + read.study.limits.total
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with own(folder, "this study"):
        handles = find_leftovers(folder)
        journal = StudyJournal(folder)
        supervisor = _Supervisor(read, folder, measure, journal, on_event, handles, ends_s)
        try:
            journal.write("run")
            _release(launches, folder, machines[0], journal, handles)
            waiting = deque(
                launch
                for launch in launches
                if any(not find_run(folder, cell) for cell in launch.cells)
            )
            if len(machines) > 1:
                _run_at_once(waiting, machines, supervisor)
            while waiting and supervisor.has_time:
                supervisor.run_launch(waiting.popleft(), machines[0])
        finally:
            journal.close()
    return sum(not find_run(folder, cell) for launch in launches for cell in launch.cells)


def _run_at_once(
    waiting: deque[PlannedLaunch], machines: Sequence[Machine], supervisor: _Supervisor
) -> None:
    """Run launches in processes of their own, one on each machine. Raises what ends the whole
    study, after all."""
    context = multiprocessing.get_context("fork")
    free = list(machines)
    running: dict[Any, tuple[Any, PlannedLaunch, Machine]] = {}
    try:
        while running or (waiting and supervisor.has_time):
            while free and waiting and supervisor.has_time:
                launch, machine = waiting.popleft(), free.pop(0)
                child = context.Process(
                    target=_run_in_child, args=(os.getpid(), supervisor, launch, machine)
                )
                child.start()
                running[child.sentinel] = child, launch, machine
            for sentinel in wait(list(running)):
                child, launch, machine = running.pop(sentinel)
                child.join()
                free.append(machine)
                _check_exit(child.exitcode, launch, supervisor.journal)
    except BaseException:
        for child, _, _ in running.values():
            child.terminate()
        raise
    finally:
        for child, _, _ in running.values():
            child.join()


def _check_exit(exit_code: int, launch: PlannedLaunch, journal: StudyJournal) -> None:
    """Raise what ended a launch's process, where that ends the study."""
    if exit_code == _FULL:
        raise DiskFullError("the disk is full; make room, and run it again to go on")
    if exit_code == _INTERRUPTED:
        raise KeyboardInterrupt
    if exit_code:
        journal.write("end", launch=launch.id, why=f"its process ended with code {exit_code}")


def _run_in_child(
    parent: int, supervisor: _Supervisor, launch: PlannedLaunch, machine: Machine
) -> None:
    """Run a launch in a process of its own. A signal from the terminal reaches its parent, which
    ends it."""
    os.setpgid(0, 0)
    with contextlib.suppress(AttributeError):  # elsewhere than on Linux
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    try:
        if os.getppid() == parent:
            supervisor.run_launch(launch, machine)
    except DiskFullError:
        sys.exit(_FULL)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _release(
    launches: tuple[PlannedLaunch, ...],
    folder: Path,
    machine: Machine,
    journal: StudyJournal,
    handles: Mapping[str, Handle],
) -> None:
    """End what a supervisor that vanished left running, and of which nothing is missing."""
    needed = {
        launch.id for launch in launches if not all(find_run(folder, cell) for cell in launch.cells)
    }
    for launch, handle in handles.items():
        if handle["kind"] != machine.kind:
            where = f"launch {launch} may still run on a machine of kind {handle['kind']}"
            raise InputError(
                f"{folder}: {where}; run the study there once more (--on), which takes it up or"
                " ends it"
            )
        if launch not in needed:
            machine.release(handle)
            journal.write("end", launch=launch, why="its supervisor had vanished")


class _Supervisor(NamedTuple):
    """Runs launches one by one, until the study's time is over (`ends_s`, by the monotonic
    clock)."""

    read: StudyFile
    folder: Path
    measure: Measure
    journal: StudyJournal
    on_event: Listener
    handles: Mapping[str, Handle]
    ends_s: float

    @property
    def has_time(self) -> bool:
        return time.monotonic() < self.ends_s

    def run_launch(self, launch: PlannedLaunch, machine: Machine) -> None:
        folder, journal, on_event = self.folder, self.journal, self.on_event
        missing = [cell for cell in launch.cells if find_run(folder, cell) is None]
        if not missing:
            return
        on_event(StudyEvent("launch", launch, None, launch.deployment or launch.engine))
        why, handle = "", self.handles.get(launch.id, {})
        try:
            with machine.running(launch, folder / LAUNCHES / launch.id, journal, handle) as engine:
                journal.write("ready", launch=launch.id, handle=engine.handle)
                on_event(StudyEvent("ready", launch, None, engine.url))
                for cell in missing:
                    if not self.has_time:
                        why = TIME_OVER
                        break
                    engine.check()
                    why = self._run_cell(launch, cell, engine) or why
        except DiskFullError:
            raise
        except LoadstoneError as error:
            why = str(error)
            on_event(StudyEvent("failed", launch, None, why))
        except KeyboardInterrupt:
            journal.write("end", launch=launch.id, why=INTERRUPTED)
            raise
        journal.write("end", launch=launch.id, why=why)

    def _run_cell(self, launch: PlannedLaunch, cell: PlannedCell, engine: RunningLaunch) -> str:
        """Measure one cell; returns why it is not done, or nothing. Raises what ends the whole
        launch."""
        folder, journal, on_event = self.folder, self.journal, self.on_event
        run_dir = folder / CELLS / cell.id
        _set_aside(folder, run_dir)
        journal.write("cell", launch=launch.id, cell=cell.id)
        on_event(StudyEvent("cell", launch, cell, f"{cell.workload}, {cell.load}"))
        try:
            summary = self.measure(launch, cell, engine, run_dir)
            try:
                engine.check()
            except LoadstoneError:
                # An engine that died in the middle was not measured whole.
                _set_aside(folder, run_dir)
                raise
        except (Interrupted, DiskFullError):
            raise
        except InputError as error:
            engine.check()  # where the engine is gone, that is the reason
            journal.write("done", launch=launch.id, cell=cell.id, why=str(error))
            on_event(StudyEvent("failed", launch, cell, str(error)))
            return f"{cell.workload}, {cell.load}: {error}"
        why = _too_many_errors(summary, self.read.study.limits.errors)
        run = _shorten_path(folder, summary.run_dir)
        journal.write("done", launch=launch.id, cell=cell.id, folder=run, why=why)
        on_event(StudyEvent("done", launch, cell, why))
        return why


def _too_many_errors(summary: Summary, limit: float) -> str:
    counts = [cell.requests for cell in summary.cells]
    sent = sum(requests.sent or 0 for requests in counts)
    ok = sum(requests.ok or 0 for requests in counts)
    share = 1 - ok / sent if sent else 1.0
    return f"{share:.1%} of the requests failed" if share > limit else ""


def find_run(folder: Path, cell: PlannedCell) -> Path | None:
    """Find the run folder in which a cell is done; None: it is not. Of a search, the run that has
    its answer."""
    with contextlib.suppress(OSError):
        for run in sorted((folder / CELLS / cell.id).iterdir()):
            if (run / "summary.json").is_file():
                with contextlib.suppress(InputError):
                    info = run_folder.read_info(run)
                    if info.status == "done" and (
                        not cell.is_search or info.settings.find_max is not None
                    ):
                        return run
    return None


def _set_aside(folder: Path, out: Path) -> None:
    """Move runs that were cut off out of the way, and keep them."""
    with contextlib.suppress(FileNotFoundError):
        for run in sorted(out.iterdir()):
            target = folder / CUT / f"{out.name}-{run.name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            while target.exists():
                target = target.with_name(f"{target.name}-again")
            run.rename(target)


def _shorten_path(folder: Path, run_dir: str) -> str:
    path = Path(run_dir)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else run_dir
