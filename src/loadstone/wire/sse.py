"""Server-sent events: bytes in, event payloads out. No I/O.

Source: WHATWG HTML, "Server-sent events", section "Parsing an event stream". Tolerated beyond it: a last event
whose closing blank line never came (`finish`), since some servers close right after the data line.
"""

from __future__ import annotations

MAX_EVENT_BYTES = 32 * 1024 * 1024
"""A line or an event longer than this is hostile: SseError."""


class SseError(ValueError):
    """The stream cannot be read as server-sent events."""


class SseDecoder:
    """Cuts a byte stream, fed in pieces of any size, into the data payloads of its events.

    The events are the same wherever the pieces are cut. An event is complete at its blank line.
    """

    __slots__ = ("_data", "_held_bytes", "_skip_lf", "_start", "_tail")

    def __init__(self) -> None:
        self._tail: list[bytes] = []  # pieces of the unfinished line
        self._data: list[bytes] = []  # data lines of the unfinished event
        self._held_bytes = 0
        self._skip_lf = False
        self._start = True

    @property
    def at_rest(self) -> bool:
        """Nothing is held: the next piece begins a new event."""
        return not self._tail and not self._data and not self._skip_lf

    def feed(self, piece: bytes) -> list[bytes]:
        """Payloads of the events that `piece` completes, in order. Raises SseError on an endless event."""
        # What nearly every server sends: one piece, one event, one data line.
        if (
            piece.startswith(b"data: ")
            and piece.find(b"\n") == len(piece) - 2
            and piece.endswith(b"\n\n")
            and not self._tail
            and not self._data
            and not self._skip_lf
            and b"\r" not in piece
        ):
            self._start = False
            return [piece[6:-2]]
        return self._feed_lines(piece)

    def _feed_lines(self, piece: bytes) -> list[bytes]:
        if not piece:
            return []
        if self._skip_lf:
            # The last piece ended in \r, which ended a line; a \n here belongs to it.
            self._skip_lf = False
            piece = piece.removeprefix(b"\n")
        if b"\r" in piece:
            self._skip_lf = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._tail.append(piece)
        self._held_bytes += len(piece)
        if self._held_bytes > MAX_EVENT_BYTES:
            raise SseError(f"one event exceeds {MAX_EVENT_BYTES >> 20} MiB")
        if b"\n" not in piece:
            return []
        lines = b"".join(self._tail).split(b"\n")
        if self._start:
            lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
            self._start = False
        self._tail = [lines[-1]] if lines[-1] else []
        payloads = []
        for line in lines[:-1]:
            if line:
                self._take(line)
            elif self._data:
                payloads.append(b"\n".join(self._data))
                self._data = []
        self._held_bytes = sum(map(len, self._tail)) + sum(map(len, self._data))
        return payloads

    def _take(self, line: bytes) -> None:
        name, colon, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" ") if colon else b"")
        # `event`, `id`, `retry` and comments (empty name) carry no output.

    def finish(self) -> list[bytes]:
        """The last payload, if the stream ended without its blank line."""
        if self._tail:
            self._take(b"".join(self._tail))
            self._tail = []
        payloads = [b"\n".join(self._data)] if self._data else []
        self._data = []
        return payloads
