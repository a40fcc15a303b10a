"""A journal while it grows: the last frame (store.journal) may not be all there yet; read from where a look ended."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from loadstone.core import run_folder

if TYPE_CHECKING:
    import pyarrow as pa

WINDOW_BYTES = 32 * 1024 * 1024
"""Read at a time: a whole frame is always in it, since a worker appends twice a second."""


class Tail:
    """One journal. `broken`: why it is read no further."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self.broken = ""

    def read(self) -> tuple[list[pa.RecordBatch], bool]:
        """Batches that were appended since, of one window; and whether there is more to read at once.

        A frame not wholly written is left for the next look. A file that went (its records are made) gives nothing.
        """
        if self.broken:
            return [], False
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read(WINDOW_BYTES)
        except OSError:
            return [], False
        batches, used = self._frames(data)
        self._at += used
        return batches, len(data) == WINDOW_BYTES and not self.broken

    def _frames(self, data: bytes) -> tuple[list[pa.RecordBatch], int]:
        """The batches of the whole frames in `data`, and how many bytes these take."""
        import pyarrow as pa

        batches: list[pa.RecordBatch] = []
        used = 0
        try:
            while len(data) - used >= run_folder.HEADER_BYTES:
                number, length, check = run_folder.read_header(data, used)
                begin, end = used + run_folder.HEADER_BYTES, used + run_folder.HEADER_BYTES + length
                if end > len(data) and length <= WINDOW_BYTES - run_folder.HEADER_BYTES:
                    break
                batches += _taken(data[begin:end], number, check)
                used = end
        except (pa.ArrowException, OSError, ValueError, EOFError, MemoryError) as error:
            self.broken = str(error)
        return batches, used


def _taken(message: bytes, number: int, check: int) -> list[pa.RecordBatch]:
    """The batch of a frame's message, if it is one. Raises ValueError where it is not what it says."""
    import pyarrow as pa

    if zlib.crc32(message) != check:
        raise ValueError("not a journal, or a damaged one")
    schema = run_folder.journal_schema()
    if number:
        batch = pa.ipc.read_record_batch(pa.py_buffer(message), schema)
        batch.validate(full=True)
        return [batch]
    if not pa.ipc.read_schema(pa.py_buffer(message)).equals(schema):
        raise ValueError("the columns are not those of records")
    return []
