"""What a worker saw, appended as the run goes. What was written survives kill −9, and a full disk ends it in order.

A journal holds fragments: rows of the records' own schema. A request's fragments share its cell and id; list
columns are continued from one to the next, and the last fragment, the one with a status, has the final scalars.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from loadstone.errors import InputError
from loadstone.store.folder import unwritable
from loadstone.store.records import records_schema

if TYPE_CHECKING:
    import pyarrow as pa

RESERVE_BYTES = 32 * 1024 * 1024
_WRITERS_S = 5.0


class JournalWriter:
    """Appends record batches to one worker's journal, an Arrow IPC stream. What was written survives kill −9.

    On a full disk the reserve file is given up, so that what was measured so far still finds room.
    """

    def __init__(self, folder: Path, worker: int) -> None:
        self._path = folder / f"journal-{worker}.arrow"
        self._reserve = folder / f".reserve-{worker}"
        try:
            with self._reserve.open("wb") as file:
                if sys.platform == "linux":
                    os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
                else:
                    file.write(bytes(RESERVE_BYTES))
            self._file = self._path.open("wb", buffering=0)
            fcntl.flock(self._file, fcntl.LOCK_EX)  # held while this process lives: told from a journal left behind
            self._append(records_schema().serialize())
        except OSError as error:
            self._reserve.unlink(missing_ok=True)
            raise unwritable(error, folder) from error

    def write(self, batch: pa.RecordBatch) -> bool:
        """Append `batch`. False if the disk was full: the batch is safe in the reserve's room, the run should end."""
        message = batch.serialize()
        try:
            self._append(message)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._reserve.exists():
                raise unwritable(error, self._path) from error
            self._reserve.unlink()
            try:
                self._append(message)
            except OSError as again:
                raise unwritable(again, self._path) from again
            return False
        return True

    def _append(self, message: pa.Buffer) -> None:
        """All of `message` or none of it: half a message would end the stream for every reader."""
        start = self._file.tell()
        view = memoryview(message)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError:
            self._file.truncate(start)
            self._file.seek(start)
            raise

    def close(self) -> None:
        self._file.close()
        self._reserve.unlink(missing_ok=True)


def read_journal(path: Path) -> Iterator[pa.RecordBatch]:
    """Batches of a journal, as far as they are whole: a torn end, as a crash leaves it, just ends it."""
    import pyarrow as pa

    try:
        with pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as reader:
            while True:
                try:
                    yield reader.read_next_batch()
                except StopIteration:
                    return
    except (pa.ArrowInvalid, OSError):
        return


def wait_for_writers(folder: Path, journals: Iterable[Path]) -> None:
    """Return once no worker has a journal open: one that lost its owner still saves what it has.

    Raises InputError where one goes on for longer than _WRITERS_S.
    """
    deadline = time.monotonic() + _WRITERS_S
    for journal in journals:
        while is_held(journal):
            if time.monotonic() > deadline:
                raise InputError(f"{folder}: this run is still going on; wait for its end, or stop it")
            time.sleep(0.05)


def is_held(journal: Path) -> bool:
    """Whether the worker that writes it lives: see JournalWriter. Raises OSError where it cannot be read."""
    with journal.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
