"""The journal of a study: a file that is only ever appended to, a line of JSON for each thing that
happened.

Intent stands in it before anything is started, so that whoever takes a study up again after a crash
knows what may have been left running. Whether a cell is done is not asked of the journal: it is,
where its run folder has a summary.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from loadstone.core.files import read_bytes
from loadstone.core.run_folder.folder import writing

FILE_NAME = "journal.jsonl"
_MAX_BYTES = 256 << 20

EventKind = Literal["run", "launch", "ready", "cell", "done", "end"]
"""run: this study was taken up; launch: about to be started; ready: it answers; cell: about to be
measured; done: measured; end: the launch is over."""


Handle = dict[str, str | int | list[str | int]]
"""What a machine needs to find again what it started: the name of a job, hosts, processes. `kind`
is the machine's, where what runs may outlive its supervisor."""


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the journal.

    at       seconds since 1970
    launch   its id; empty: of the study as a whole
    cell     its id
    folder   of the cell's run, beside the journal
    why      why a launch ended, or a cell failed; empty: as it should
    handle   see Handle; of a launch's intent: what the next supervisor looks for, should this one
             vanish
    """

    event: EventKind
    at: float
    launch: str = ""
    cell: str = ""
    folder: str = ""
    why: str = ""
    handle: Handle = {}


class StudyJournal:
    """Appends entries, each on disk before the call returns."""

    def __init__(self, folder: Path) -> None:
        """Open it. Raises InputError where it cannot be written."""
        self._path = folder / FILE_NAME
        with writing(self._path):
            self._file = os.open(
                self._path,
                os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o666,
            )
            if not _ends_whole(self._path):
                os.write(
                    self._file, b"\n"
                )  # a torn line is left as it is, and the next one is not joined to it

    def write(self, event: EventKind, **fields: Any) -> None:
        """Append an entry. Raises InputError; DiskFullError where there is no room."""
        line = msgspec.json.encode(Entry(event, time.time(), **fields)) + b"\n"
        with writing(self._path):
            while line:  # a disk that is nearly full takes a part of it
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


def read_entries(folder: Path) -> Iterator[Entry]:
    """Yield what the journal says, in order; lines that a crash tore are passed over. Raises
    InputError."""
    path = folder / FILE_NAME
    if not os.path.lexists(path):
        return
    content = read_bytes(path, _MAX_BYTES, "give the folder of a study")
    decoder = msgspec.json.Decoder(Entry)
    for line in content.splitlines():
        with contextlib.suppress(msgspec.DecodeError):
            yield decoder.decode(line)


def find_leftovers(folder: Path) -> dict[str, Handle]:
    """Return the handles, by launch, of what may still run since its supervisor vanished. Raises
    InputError."""
    handles: dict[str, Handle] = {}
    for entry in read_entries(folder):
        if entry.event == "launch" and "kind" in entry.handle:
            handles[entry.launch] = entry.handle
        elif entry.event == "end":
            handles.pop(entry.launch, None)
    return handles


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if not size:
            return True
        file.seek(size - 1)
        return file.read(1) == b"\n"
