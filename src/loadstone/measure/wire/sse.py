"""Server-sent events: bytes in, event payloads out. No I/O.

Source: WHATWG HTML, "Server-sent events", section "Parsing an event stream". Tolerated beyond it: a
last event whose closing blank line never came (`finish`), since some servers close right after the
data line.
"""

MAX_EVENT_BYTES = 32 * 1024 * 1024
"""A line or an event longer than this is hostile: SseError."""

_BOM = b"\xef\xbb\xbf"


class SseError(ValueError):
    """The stream cannot be read as server-sent events."""


class SseDecoder:
    """Cuts a byte stream, fed in pieces of any size, into the data payloads of its events.

    The events are the same wherever the pieces are cut. An event is complete at its blank line.
    at_rest   nothing is held, and nothing went wrong: the next piece begins a new event
    """

    __slots__ = ("_data", "_endless", "_skip_lf", "_start", "_tail", "at_rest")

    def __init__(self) -> None:
        self._tail = bytearray()  # the unfinished line
        self._data = bytearray()  # data lines of the unfinished event, each with its \n
        self._skip_lf = False
        self._start = True
        self._endless = False
        self.at_rest = True

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the payloads of the events that `piece` completes, in order.

        Raises SseError from an endless event on (after the call that gave what was complete before
        it).
        """
        payload = find_payload(piece) if self.at_rest else None
        if payload is None:
            return self._feed_lines(piece)
        self._start = False
        return [payload]

    def _feed_lines(self, piece: bytes) -> list[bytes]:
        if self._endless:
            raise _endless_event()
        if self._skip_lf and piece:
            # The last piece ended in \r, which ended a line; a \n here belongs to it.
            self._skip_lf = False
            piece = piece.removeprefix(b"\n")
        if b"\r" in piece:
            self._skip_lf = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        payloads: list[bytes] = []
        if b"\n" in piece:
            lines = (bytes(self._tail) + piece).split(b"\n")
            self._tail = bytearray(lines.pop())
            for line in lines:
                if line:
                    if len(line) > MAX_EVENT_BYTES:
                        return self._give_up(payloads)
                    self._take(line)
                    if len(self._data) > MAX_EVENT_BYTES:
                        return self._give_up(payloads)
                elif self._data:
                    payloads.append(bytes(self._data[:-1]))
                    self._data.clear()
                self._start = False
        else:
            self._tail += piece
        if len(self._tail) > MAX_EVENT_BYTES:
            return self._give_up(payloads)
        self.at_rest = not (self._tail or self._data or self._skip_lf)
        return payloads

    def _take(self, line: bytes) -> None:
        if self._start:
            line = line.removeprefix(_BOM)
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data += value.removeprefix(b" ") + b"\n"
        # `event`, `id`, `retry` and comments (empty name) carry no output.

    def _give_up(self, payloads: list[bytes]) -> list[bytes]:
        """Hold nothing from here on. What was complete before is still given out."""
        self._endless = True
        self.at_rest = False
        self._tail.clear()
        self._data.clear()
        if payloads:
            return payloads
        raise _endless_event()

    def finish(self) -> list[bytes]:
        """Return the last payload, if the stream ended without its blank line. Raises SseError
        after an endless event."""
        if self._endless:
            raise _endless_event()
        if self._tail:
            self._take(bytes(self._tail))
            self._tail.clear()
        payloads = [bytes(self._data[:-1])] if self._data else []
        self._data.clear()
        return payloads


def find_payload(piece: bytes) -> bytes | None:
    """Return the payload of a piece that is what nearly every server sends: one event of one data
    line, its name before it or not. None of any other piece."""
    begin = piece.find(b"\n") + 1 if piece.startswith(b"event: ") else 0
    end = len(piece) - 2
    is_plain = (
        piece.startswith(b"data: ", begin)
        and piece.find(b"\n", begin) == end
        and piece.endswith(b"\n\n")
        and b"\r" not in piece
        and end <= MAX_EVENT_BYTES
    )
    return piece[begin + len(b"data: ") : end] if is_plain else None


def _endless_event() -> SseError:
    return SseError(f"one event exceeds {MAX_EVENT_BYTES >> 20} MiB")
