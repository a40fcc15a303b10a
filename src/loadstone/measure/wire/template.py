"""Recognises stream events that differ from an earlier one in nothing but their text and token
counts. No I/O.

Most reads of a stream are such: one HTTP chunk, one event, one choice with text. A batch of them is
told by a few passes that compare bytes, at a fraction of the cost of parsing HTTP, SSE and JSON for
each; and it means the same by construction: what stands before and after the text is, but for the
counts, what stood there in an event that was parsed, the text is the inside of a JSON string, the
counts are JSON numbers, and the chunk is as long as it says.
"""

import re
from collections.abc import Sequence

from loadstone.measure.wire.sse import SseDecoder, find_payload
from loadstone.measure.wire.tolerant import MAX_COUNT

_MARKS = tuple(
    f'"{key}":{space}"'.encode()
    for key in ("text", "content", "reasoning_content", "reasoning", "thinking", "delta")
    for space in ("", " ")
)
_KEYS = rb'("(?:%b)": ?)[0-9]+(?=[,}\s])'
_SERIAL_KEY = re.compile(_KEYS % b"sequence_number")
_COUNT_KEY = re.compile(_KEYS % b"sequence_number|total_tokens|completion_tokens")
_COUNT = b'"completion_tokens"'
_DIGITS = b"0123456789"
_CONTROLS = bytes(range(0x20))
_TEXT = re.compile(rb'(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')


class Template:
    """Recognises plain reads of one form: chunk size, CR LF, head, text, tail, CR LF. Made by
    `learn`.

    `counted`: the tail states the running token count. `stop`: a tag in the text is not plain. It
    recognises nothing while `sse` holds part of an event. The event's own number may be anywhere.
    """

    __slots__ = ("_count_at", "_heads", "_sse", "_stop", "_tails")

    def __init__(
        self, head: bytes, tail: bytes, *, counted: bool, sse: SseDecoder, stop: bool = False
    ) -> None:
        keys, tails = _split(_COUNT_KEY if counted else _SERIAL_KEY, tail)
        self._sse, self._stop = sse, stop
        _, self._heads = _split(_SERIAL_KEY, b"\r\n" + head)
        self._tails = [*tails[:-1], tails[-1] + b"\r\n"]
        self._count_at = [key.startswith(_COUNT) for key in keys].index(True) if counted else -1

    def run(self, reads: Sequence[bytes]) -> tuple[int, list[int]]:
        """Return how many of `reads`, from the first on, are one plain event each; and their
        counts, if `counted`."""
        if not reads or not self._sse.at_rest:
            return 0, []
        counts = self._all(reads)
        if counts is not None:
            return len(reads), counts
        plain, limit, all_counts = 0, len(reads), list[int]()
        while limit - plain > 1:
            middle = (plain + limit) // 2
            counts = self._all(reads[plain:middle])
            if counts is None:
                limit = middle
            else:
                plain = middle
                all_counts += counts
        return plain, all_counts

    def _all(self, reads: Sequence[bytes]) -> list[int] | None:
        """Return the counts if every one of `reads` is plain, else None."""
        rests = _unframe(reads)
        if rests is None:
            return None
        left = sum(map(len, rests))
        for gap, head in enumerate(self._heads, 1 - len(self._heads)):
            left -= len(head) * len(reads)
            rests = [rest.removeprefix(head) for rest in rests]
            if gap:
                if sum(map(len, rests)) != left:
                    return None
                behind = [rest.lstrip(_DIGITS) for rest in rests]
                numbers = [
                    rest[: len(rest) - len(keep)] for rest, keep in zip(rests, behind, strict=True)
                ]
                if not _are_numbers(numbers):
                    return None
                rests = behind
                left = sum(map(len, rests))
        counts: list[int] = []
        for gap in range(len(self._tails) - 1, -1, -1):
            tail = self._tails[gap]
            # Each piece is cut off where it stands and nowhere else: the sum of lengths tells
            # whether all had it.
            left -= len(tail) * len(reads)
            rests = [rest.removesuffix(tail) for rest in rests]
            if sum(map(len, rests)) != left:
                return None
            if gap:
                without_digits = [rest.rstrip(_DIGITS) for rest in rests]
                numbers = [
                    rest[len(keep) :] for rest, keep in zip(rests, without_digits, strict=True)
                ]
                if not _are_numbers(numbers):
                    return None
                if gap - 1 == self._count_at:
                    counts = list(map(int, numbers))
                    if max(counts) > MAX_COUNT:
                        return None
                rests = without_digits
                left = sum(map(len, rests))
        texts = b"".join(rests)
        if not all(rests) or len(texts.translate(None, _CONTROLS)) != len(texts):
            return None
        if self._stop and (b"<" in texts or b"\\u003" in texts):
            return None
        if (b'"' in texts or b"\\" in texts) and not all(map(_TEXT.fullmatch, rests)):
            return None
        return counts


def _split(key: re.Pattern[bytes], text: bytes) -> tuple[list[bytes], list[bytes]]:
    """Return the keys in a text, and its pieces: a number follows each that ends with a key."""
    pieces = key.split(text)  # constant, key, constant, key, …
    return pieces[1::2], [b"".join(pieces[i : i + 2]) for i in range(0, len(pieces), 2)]


def _are_numbers(numbers: list[bytes]) -> bool:
    """Return False where one is none, has a leading zero (or is zero: read in full), or is one that
    nobody counts to."""
    return all(numbers) and b" 0" not in b" " + b" ".join(numbers) and max(map(len, numbers)) <= 10


def _unframe(reads: Sequence[bytes]) -> list[bytes] | None:
    """Cut off the chunk size of each read; None if one is not as long as it says."""
    digits = reads[0].find(b"\r")
    if [read[:digits] for read in reads] == [b"%x" % (len(read) - digits - 4) for read in reads]:
        return [read[digits:] for read in reads]
    # Sizes about 256 have two digits or three.
    ends = [read.find(b"\r") for read in reads]
    for read, end in zip(reads, ends, strict=True):
        if end < 1 or read[:end] != b"%x" % (len(read) - end - 4):
            return None
    return [read[end:] for read, end in zip(reads, ends, strict=True)]


def learn(
    body: bytes, text: str, *, counted: bool, sse: SseDecoder, stop: bool = False
) -> Template | None:
    """Make a template from an HTTP chunk's `body` that is one plain event with `text`; None where
    it would be ambiguous.

    Plain: one choice, with text and without a finish reason, no error. `counted`: its usage gave
    completion_tokens. `sse`: the decoder that read it, and reads what the template does not
    recognise.
    """
    if find_payload(body) is None or b"\\" in body:
        return None
    for mark in _MARKS:
        if body.count(mark) != 1:
            continue
        start = body.find(mark) + len(mark)
        end = body.find(b'"', start)
        if body[start:end] != text.encode():
            continue
        tail = body[end:]
        # A count stated twice, or not where it can be told, cannot be read from its place.
        if counted and (
            body.count(_COUNT) != 1
            or not any(k.startswith(_COUNT) for k in _COUNT_KEY.findall(tail))
        ):
            return None
        template = Template(body[:start], tail, counted=counted, sse=sse, stop=stop)
        return template if template.run([b"%x\r\n%b\r\n" % (len(body), body)])[0] == 1 else None
    return None
