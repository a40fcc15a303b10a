"""A study carried out: each launch is started, its missing cells are measured, and it is stopped; again: resumed.

A cell is done where its run folder has the summary of a run that ended as it should: it is then never measured again.
One that was cut off is measured again whole, and what there was of it is kept beside the study.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from loadstone.core import run_folder
from loadstone.core.errors import DiskFullError, InputError, LoadstoneError
from loadstone.core.provenance import Provenance
from loadstone.core.run_folder.owner import lock
from loadstone.core.signals import Interrupted
from loadstone.core.summary import Summary
from loadstone.studies.file import StudyFile
from loadstone.studies.journal import Handle, Journal, left
from loadstone.studies.plan import Cell, Launch

CELLS, CUT, LAUNCHES = "cells", "cut", "launches"
"""Folders of a study: run folders by cell, runs that were cut off, logs by launch."""
_LOCK = ".owner"


class Client(Protocol):
    """A host that sends the load. `bench` runs `loadstone bench` there with these words; the run folder is then in
    `out` here, also of a run that was interrupted. Raises TargetError, and KeyboardInterrupt."""

    def bench(self, words: Sequence[str], out: Path) -> None: ...


class Running(NamedTuple):
    """A launch that answers.

    url     where, as the client sees it
    handle  what the journal keeps of it, such as its processes
    check   raises TargetError once a rank of it has ended
    client  who sends the load; None: this process
    made_with  what is known of how it was started
    model   name that requests must use, where the server itself may not say it
    """

    url: str
    handle: Handle
    check: Callable[[], None] = lambda: None
    client: Client | None = None
    made_with: Provenance = Provenance()
    model: str | None = None


class Machine(Protocol):
    """Where launches run. Raises LoadstoneError.

    kind     of its handles
    running  a context of a launch, which is ready within it and gone after it. The intent is in the journal before
             anything starts. `left`: the handle of a supervisor that vanished, whose launch is taken up or ended
    release  ends what such a handle tells of, where nobody needs it any more
    """

    kind: str

    def running(
        self, launch: Launch, folder: Path, journal: Journal, left: Handle
    ) -> contextlib.AbstractContextManager[Running]: ...

    def release(self, left: Handle) -> None: ...


class Event(NamedTuple):
    """Something worth telling. `cell`: None where the launch is meant."""

    kind: str
    launch: Launch
    cell: Cell | None
    text: str


Listener = Callable[[Event], None]
Measure = Callable[[Launch, Cell, Running, Path], Summary]
"""Measures one cell of a running launch into a folder; what bench() does, or a simulation."""


def run_study(
    read: StudyFile,
    launches: tuple[Launch, ...],
    folder: Path,
    machine: Machine,
    measure: Measure,
    on_event: Listener = lambda event: None,
) -> int:
    """Measure what is missing; returns how many cells still are.

    Raises InputError where another process runs this study, DiskFullError, and KeyboardInterrupt, after ending the
    engine that ran. A launch or cell that fails is in the journal, and the rest goes on.
    """
    ends_s = time.monotonic() + read.study.limits.total
    with _own(folder):
        handles = left(folder)
        journal = Journal(folder)
        try:
            journal.write("run")
            _release(launches, folder, machine, journal, handles)
            for launch in launches:
                if time.monotonic() > ends_s:
                    break
                handle = handles.get(launch.id, {})
                _run_launch(read, launch, folder, machine, measure, journal, on_event, ends_s, handle)
        finally:
            journal.close()
    return sum(not finished(folder, cell) for launch in launches for cell in launch.cells)


def _release(
    launches: tuple[Launch, ...], folder: Path, machine: Machine, journal: Journal, handles: Mapping[str, Handle]
) -> None:
    """End what a supervisor that vanished left running, and of which nothing is missing."""
    needed = {launch.id for launch in launches if not all(finished(folder, cell) for cell in launch.cells)}
    for launch, handle in handles.items():
        if handle["kind"] != machine.kind:
            where = f"launch {launch} may still run on a machine of kind {handle['kind']}"
            raise InputError(f"{folder}: {where}; run the study there once more (--on), which takes it up or ends it")
        if launch not in needed:
            machine.release(handle)
            journal.write("end", launch=launch, why="its supervisor had vanished")


def _run_launch(
    read: StudyFile,
    launch: Launch,
    folder: Path,
    machine: Machine,
    measure: Measure,
    journal: Journal,
    on_event: Listener,
    ends_s: float,
    handle: Handle,
) -> None:
    missing = [cell for cell in launch.cells if finished(folder, cell) is None]
    if not missing:
        return
    on_event(Event("launch", launch, None, launch.deployment or launch.engine))
    why = ""
    try:
        with machine.running(launch, folder / LAUNCHES / launch.id, journal, handle) as engine:
            journal.write("ready", launch=launch.id, handle=engine.handle)
            on_event(Event("ready", launch, None, engine.url))
            for cell in missing:
                if time.monotonic() > ends_s:
                    why = "the study's time was over"
                    break
                engine.check()
                why = _run_cell(read, launch, cell, engine, folder, measure, journal, on_event) or why
    except DiskFullError:
        raise
    except LoadstoneError as error:
        why = str(error)
        on_event(Event("failed", launch, None, why))
    except KeyboardInterrupt:
        journal.write("end", launch=launch.id, why="interrupted")
        raise
    journal.write("end", launch=launch.id, why=why)


def _run_cell(
    read: StudyFile,
    launch: Launch,
    cell: Cell,
    engine: Running,
    folder: Path,
    measure: Measure,
    journal: Journal,
    on_event: Listener,
) -> str:
    """Measure one cell; why it is not done, or nothing. Raises what ends the whole launch."""
    out = folder / CELLS / cell.id
    _set_aside(folder, out)
    journal.write("cell", launch=launch.id, cell=cell.id)
    on_event(Event("cell", launch, cell, f"{cell.workload}, {cell.load}"))
    try:
        summary = measure(launch, cell, engine, out)
        try:
            engine.check()
        except LoadstoneError:
            _set_aside(folder, out)  # an engine that died in the middle was not measured whole
            raise
    except Interrupted:
        raise
    except DiskFullError:
        raise
    except InputError as error:
        engine.check()  # where the engine is gone, that is the reason
        journal.write("done", launch=launch.id, cell=cell.id, why=str(error))
        on_event(Event("failed", launch, cell, str(error)))
        return f"{cell.workload}, {cell.load}: {error}"
    why = _too_many_errors(summary, read.study.limits.errors)
    journal.write("done", launch=launch.id, cell=cell.id, folder=_beside(folder, summary.run_dir), why=why)
    on_event(Event("done", launch, cell, why))
    return why


def _too_many_errors(summary: Summary, most: float) -> str:
    counts = [cell.requests for cell in summary.cells]
    sent, ok = sum(each.sent or 0 for each in counts), sum(each.ok or 0 for each in counts)
    share = 1 - ok / sent if sent else 1.0
    return f"{share:.1%} of the requests failed" if share > most else ""


def finished(folder: Path, cell: Cell) -> Path | None:
    """The run folder in which a cell is done; None: it is not."""
    with contextlib.suppress(OSError):
        for run in sorted((folder / CELLS / cell.id).iterdir()):
            if (run / "summary.json").is_file():
                with contextlib.suppress(InputError):
                    if run_folder.read_info(run).status == "done":
                        return run
    return None


def _set_aside(folder: Path, out: Path) -> None:
    """Runs that were cut off make room, and are kept."""
    with contextlib.suppress(FileNotFoundError):
        for run in sorted(out.iterdir()):
            target = folder / CUT / f"{out.name}-{run.name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            while target.exists():
                target = target.with_name(f"{target.name}-again")
            run.rename(target)


def _beside(folder: Path, run_dir: str) -> str:
    path = Path(run_dir)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else run_dir


class _Owner(msgspec.Struct):
    pid: int
    host: str
    since: float


@contextlib.contextmanager
def _own(folder: Path) -> Iterator[None]:
    """Be the only one that runs this study. Raises InputError, which says who does."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise run_folder.folder.unwritable(error, folder) from error
    try:
        try:
            lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = "another process"
            with contextlib.suppress(msgspec.DecodeError):
                owner = msgspec.json.decode(os.pread(file, 4096, 0), type=_Owner)
                since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(owner.since))
                who = f"process {owner.pid} on {owner.host} since {since}"
            raise InputError(f"{folder}: this study is being run by {who}; wait for its end, or stop it") from None
        os.ftruncate(file, 0)
        os.pwrite(file, msgspec.json.encode(_Owner(os.getpid(), socket.gethostname(), time.time())), 0)
        yield
        os.ftruncate(file, 0)
    finally:
        os.close(file)


def is_owned(folder: Path) -> bool:
    """Whether a process runs this study now."""
    try:
        file = os.open(folder / _LOCK, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not lock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
