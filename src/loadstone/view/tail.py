"""A journal while it grows: an Arrow IPC stream whose end is not yet written, read from where the last look ended."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

from loadstone import store

if TYPE_CHECKING:
    import pyarrow as pa

MESSAGE_BYTES = 32 * 1024 * 1024
"""A message beyond it is none of ours, since a worker appends twice a second."""
WINDOW_BYTES = MESSAGE_BYTES + 1
"""Read at a time: a whole message is always in it."""
_PREFIX, _OFFSET, _BACK, _FIELD, _LENGTH = map(struct.Struct, ("<ii", "<I", "<i", "<H", "<q"))


def message_bytes(data: bytes, at: int) -> int | None:
    """How long the encapsulated message at `at` is, body and all; None where its head is not all there.

    It begins with −1 and the length of its metadata, a FlatBuffer whose root is a table Message, whose field 3 is the
    length of the body (Arrow columnar format, "Encapsulated message format"; format/Message.fbs). Raises ValueError.
    """
    if len(data) - at < _PREFIX.size:
        return None
    mark: int
    metadata: int
    mark, metadata = _PREFIX.unpack_from(data, at)
    if mark != -1 or not 0 <= metadata < MESSAGE_BYTES:
        raise ValueError("not an Arrow stream")
    head = at + _PREFIX.size
    if metadata > len(data) - head:
        return None
    inside = data[head : head + metadata]
    try:
        (table,) = _OFFSET.unpack_from(inside)
        fields = table - _BACK.unpack_from(inside, table)[0]
        (size,) = _FIELD.unpack_from(inside, fields)
        (place,) = _FIELD.unpack_from(inside, fields + 10) if size > 10 else (0,)
        (body,) = _LENGTH.unpack_from(inside, table + place) if place else (0,)
    except struct.error as error:
        raise ValueError("not an Arrow stream") from error
    length = _PREFIX.size + metadata + int(body)
    if body < 0 or length > MESSAGE_BYTES:
        raise ValueError(f"a message of {length} bytes")
    return length


class Tail:
    """One journal. `broken`: why it is read no further."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._schema: pa.Schema | None = None
        self.broken = ""

    def read(self) -> tuple[list[pa.RecordBatch], bool]:
        """Batches that were appended since, of one window; and whether there is more to read at once.

        A message not wholly written is left for the next look. A file that went (its records are made) gives nothing.
        """
        if self.broken:
            return [], False
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read(WINDOW_BYTES)
        except OSError:
            return [], False
        batches, used = self._messages(data)
        self._at += used
        return batches, len(data) == WINDOW_BYTES and not self.broken

    def _messages(self, data: bytes) -> tuple[list[pa.RecordBatch], int]:
        """The batches of the whole messages in `data`, and how many bytes these take."""
        import pyarrow as pa

        batches: list[pa.RecordBatch] = []
        used = 0
        while not self.broken:
            try:
                length = message_bytes(data, used)
                if length is None or length > len(data) - used:
                    break
                batch = self._take(pa.ipc.read_message(pa.py_buffer(data)[used : used + length]))
            except (pa.ArrowException, OSError, ValueError, EOFError, MemoryError) as error:
                self.broken = str(error)
                break
            if batch is not None:
                batches.append(batch)
            used += length
        return batches, used

    def _take(self, message: pa.Message) -> pa.RecordBatch | None:
        """A batch that is what it says, or None for the schema, which comes first. Raises ValueError."""
        import pyarrow as pa

        if self._schema is None:
            schema = pa.ipc.read_schema(message)
            if not schema.equals(store.records_schema()):
                raise ValueError("the columns are not those of records")
            self._schema = schema
            return None
        batch = pa.ipc.read_record_batch(message, self._schema)
        batch.validate(full=True)
        return batch
