"""Appends what a worker saw as the run goes. What was written survives kill −9, and a full disk
ends it in order.

A journal holds fragments: rows of the records' own schema, and how many events earlier ones held. A
request's fragments share its cell and id; list columns are continued from one to the next, and the
last fragment, the one with a status, has the final scalars.

On disk it is a row of frames, each a header and an Arrow IPC message: number 0 the schema, then a
batch each.

    4 bytes   LSJ2, the version of the format
    4         number of the frame, from 0
    8         length of the message
    4         CRC-32 of the message
    4         CRC-32 of the header before it

All numbers are little-endian. What was damaged is told from what a crash tore off, and whole frames
behind it are read. Version 1 was a plain Arrow stream, which has no checksums.
"""

import contextlib
import errno
import fcntl
import os
import struct
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa

from loadstone.core.errors import InputError, check_room
from loadstone.core.files import check_regular, explain_os_error, open_regular
from loadstone.core.record import JournalDamage
from loadstone.core.run_folder.folder import writing
from loadstone.core.run_folder.owner import lock
from loadstone.core.run_folder.records import ADDED, JOURNAL_COLUMNS, journal_schema

RESERVE_BYTES = 32 * 1024 * 1024
WRITERS_TIMEOUT_S = 5.0
"""How long a worker whose owner has gone may still save what it has."""
_MAGIC = b"LSJ2"
_ARROW = b"\xff\xff\xff\xff"
"""The first bytes of an Arrow stream."""
_HEADER = struct.Struct("<4sIQII")
HEADER_BYTES = _HEADER.size
_SEARCH_BYTES = 1 << 20


class JournalWriter:
    """Appends record batches to one worker's journal. What was written survives kill −9.

    On a full disk the reserve file is given up, so that what was measured so far still finds room.
    """

    def __init__(self, folder: Path, worker: int) -> None:
        self._path = folder / f"journal-{worker}.arrow"
        self._reserve = folder / f".reserve-{worker}"
        self._frames = 0
        with writing(folder), contextlib.ExitStack() as stack:
            stack.callback(self._reserve.unlink, missing_ok=True)
            with self._reserve.open("wb") as file:
                if sys.platform == "linux":
                    os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
                else:
                    file.write(bytes(RESERVE_BYTES))
            self._file = self._path.open("wb", buffering=0)
            # Held while this process lives: told from a journal left behind.
            lock(self._file, fcntl.LOCK_EX)
            self._append(journal_schema().serialize())
            stack.pop_all()

    def write(self, batch: pa.RecordBatch) -> bool:
        """Append `batch`, rows as journal_schema() or records_schema(). False if the disk was full:
        the batch is safe in the reserve's room, the run should end.
        """
        message = _add_journal_columns(batch).serialize()
        with writing(self._path):
            try:
                self._append(message)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._reserve.exists():
                    raise
                self._reserve.unlink()
                self._append(message)
                return False
        return True

    def _append(self, message: pa.Buffer) -> None:
        """All of a frame or none of it: half of one would be taken for damage."""
        start = self._file.tell()
        header = _HEADER.pack(_MAGIC, self._frames, len(message), zlib.crc32(message), 0)[:-4]
        view = memoryview(b"".join((header, zlib.crc32(header).to_bytes(4, "little"), message)))
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError:
            self._file.truncate(start)
            self._file.seek(start)
            raise
        self._frames += 1

    def close(self) -> None:
        self._file.close()
        self._reserve.unlink(missing_ok=True)


def read_header(data: bytes, at: int = 0, least: int = 0) -> tuple[int, int, int]:
    """Read the header of the frame at `at`: its number, `least` or more, the length of its message,
    the message's CRC-32.

    Raises ValueError where no such header is. There must be HEADER_BYTES bytes.
    """
    magic, number, length, check, own_check = _HEADER.unpack_from(data, at)
    if (
        magic != _MAGIC
        or number < least
        or own_check != zlib.crc32(data[at : at + HEADER_BYTES - 4])
    ):
        raise ValueError("not a journal, or a damaged one")
    return number, length, check


class Journal:
    """A journal that nobody writes to any more. Iterating, once, gives its batches, columns as
    journal_schema(); then `damage` says what could not be read, if anything. A torn end, as a crash
    leaves it, is no damage.

    Raises InputError where the file went, or cannot be read, or is of another version of the
    program.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: JournalDamage | None = None
        self._cell = 0
        self._hole = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        with (
            explain_os_error(f"{self.path}: cannot be read", "the other files stay"),
            open_regular(self.path) as file,
        ):
            size = os.fstat(file.fileno()).st_size
            old = file.read(len(_ARROW)) == _ARROW
            for batch in self._arrow(size) if old else self._framed(file, size):
                if batch.num_rows:
                    cells = batch["cell"]
                    if self._hole and self.damage is not None:
                        self.damage.last_cell, self._hole = cells[0].as_py(), False
                    self._cell = cells[-1].as_py()
                yield _add_journal_columns(batch)

    def _framed(self, file: IO[bytes], size: int) -> Iterator[pa.RecordBatch]:

        place = expected = 0
        schema = journal_schema()
        while size - place >= HEADER_BYTES:
            file.seek(place)
            try:
                number, length, check = read_header(file.read(HEADER_BYTES), least=expected)
            except ValueError:
                following = self._next_header(file, place + 1, size)
                # How many were lost is told by the number of the next one; at the end there is
                # none.
                self._lost(place, following - place, 1 if expected and following == size else 0)
                place = following
                continue
            following = place + HEADER_BYTES + length
            if following > size:
                return
            if number > expected:
                self._lost(place, 0, number - max(1, expected))
            message = file.read(length)
            if zlib.crc32(message) != check:
                self._lost(place, following - place, 1 if number else 0)
            elif number:
                try:
                    batch = pa.ipc.read_record_batch(pa.py_buffer(message), schema)
                    batch.validate(full=True)
                except (pa.ArrowException, ValueError, OSError) as error:
                    check_room(error)
                    raise self._another_version() from error
                yield batch
            else:
                schema = pa.ipc.read_schema(pa.py_buffer(message))
                if not _is_known(schema):
                    raise self._another_version()
            place, expected = following, number + 1

    def _next_header(self, file: IO[bytes], place: int, size: int) -> int:
        """Find where the next frame begins, from `at` on; the end of the file if none does."""
        while size - place >= HEADER_BYTES:
            file.seek(place)
            data = file.read(_SEARCH_BYTES)
            begin = data.find(_MAGIC)
            while 0 <= begin <= len(data) - HEADER_BYTES:
                try:
                    read_header(data, begin)
                except ValueError:
                    begin = data.find(_MAGIC, begin + 1)
                else:
                    return place + begin
            place += len(data) - HEADER_BYTES + 1
        return size

    def _lost(self, at: int, count: int, batches: int) -> None:
        if self.damage is None:
            self.damage = JournalDamage(file=self.path.name, at=at, first_cell=self._cell)
        self.damage.bytes += count
        self.damage.batches += batches
        self.damage.last_cell, self._hole = None, True

    def _another_version(self) -> InputError:
        return InputError(
            f"{self.path}: a journal of another version of Loadstone; recover the run with that one"
        )

    def _arrow(self, size: int) -> Iterator[pa.RecordBatch]:
        """Version 1. A torn end cannot be told from damage there."""
        end = 0
        for batch, read in read_stream(self.path):
            end = read
            if batch is not None:
                if not _is_known(batch.schema):
                    raise self._another_version()
                yield batch
        if end < size:
            self._lost(end, size - end, 1)


def read_stream(path: Path) -> Iterator[tuple[pa.RecordBatch | None, int]]:
    """Yield batches of an Arrow IPC stream as far as they are whole, each with the byte where it
    ends; None: the schema.

    Raises OSError where it cannot be opened.
    """

    check_regular(path)
    with pa.OSFile(str(path), "rb") as file:
        try:
            with pa.ipc.open_stream(file) as reader:
                yield None, file.tell()
                while True:
                    batch = reader.read_next_batch()
                    batch.validate(full=True)
                    yield batch, file.tell()
        except (StopIteration, pa.ArrowException, OSError, ValueError, MemoryError):
            return


def _is_known(schema: pa.Schema) -> bool:
    """Tell if a journal's columns are those of this version, or of an earlier one that had
    fewer."""
    current = journal_schema()
    with contextlib.suppress(ValueError):  # names of damaged bytes are no UTF-8
        needed = {*current.names} - ADDED - {*JOURNAL_COLUMNS}
        return needed <= {*schema.names} and all(field in current for field in schema)
    return False


def _add_journal_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Add the columns that are missing: the journals' own to rows that are whole, new ones to
    earlier journals."""

    schema = journal_schema()
    if batch.schema.names == schema.names:
        return batch
    had = set(batch.schema.names)
    columns = [
        batch[field.name] if field.name in had else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def damaged_journals(folder: Path) -> list[JournalDamage]:
    """List what could not be read of the journals that assemble() kept. Raises InputError as
    Journal does."""
    damages = []
    for path in sorted(folder.glob("journal-*.arrow")):
        journal = Journal(path)
        for _ in journal:
            pass
        if journal.damage is not None:
            damages.append(journal.damage)
    return damages


def wait_for_writers(folder: Path, journals: Iterable[Path]) -> None:
    """Return once no worker has a journal open: one that lost its owner still saves what it has.

    Raises InputError where one goes on for longer than WRITERS_TIMEOUT_S, or a journal is gone.
    """
    deadline = time.monotonic() + WRITERS_TIMEOUT_S
    for journal in journals:
        with explain_os_error(f"{journal}: cannot be read", "the other files stay"):
            while is_held(journal):
                if time.monotonic() > deadline:
                    raise InputError(
                        f"{folder}: this run is still going on; wait for its end, or stop it"
                    )
                time.sleep(0.05)


def is_held(path: Path) -> bool:
    """Return True if the process that locked it lives: see JournalWriter, own(). Raises OSError
    where it cannot be read.
    """
    with open_regular(path) as file:
        try:
            lock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
