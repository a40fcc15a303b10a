"""Recognises stream events that differ from an earlier one in nothing but their text and token counts. No I/O.

Most reads of a stream are such: one HTTP chunk, one event, one choice with text. A batch of them is told by a few
passes that compare bytes, at a fraction of the cost of parsing HTTP, SSE and JSON for each; and it means the same by
construction: what stands before and after the text is, but for the counts, what stood there in an event that was
parsed, the text holds nothing that could end its string or its line, and the chunk is as long as it says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_MARKS = tuple(
    f'"{key}":{space}"'.encode()
    for key in ("text", "content", "reasoning_content", "reasoning")
    for space in ("", " ")
)
_COUNT_KEY = re.compile(rb'("(?:total|completion)_tokens":)[0-9]+')
_DIGITS = b"0123456789"
_TEXT = re.compile(rb'(?:[^"\\\x00-\x1f]|\\[^\x00-\x1f])*')


class Template:
    """What one plain read looks like: chunk size, CR LF, head, text, tail, CR LF. Made by `learn`.

    `counted`: the tail states the running token count.
    """

    __slots__ = ("_count_at", "_head", "_tails", "counted")

    def __init__(self, head: bytes, tail: bytes, *, counted: bool) -> None:
        pieces = _COUNT_KEY.split(tail) if counted else [tail]
        # split() gives constant, key, constant, key, …: a number follows each key.
        keys = pieces[1::2]
        tails = [b"".join(pieces[i : i + 2]) for i in range(0, len(pieces), 2)]
        self.counted = counted
        self._head = b"\r\n" + head
        self._tails = [*tails[:-1], tails[-1] + b"\r\n"]
        self._count_at = keys.index(b'"completion_tokens":') if counted else -1

    def run(self, reads: Sequence[bytes]) -> tuple[int, list[int]]:
        """How many of `reads`, from the first on, are one plain event each; and their counts, if `counted`."""
        counts = self._all(reads)
        if counts is not None:
            return len(reads), counts
        plain, other, found = 0, len(reads), list[int]()
        while other - plain > 1:
            middle = (plain + other) // 2
            counts = self._all(reads[plain:middle])
            if counts is None:
                other = middle
            else:
                plain = middle
                found += counts
        return plain, found

    def _all(self, reads: Sequence[bytes]) -> list[int] | None:
        """The counts if every one of `reads` is plain, else None."""
        digits = reads[0].find(b"\r")
        sizes = [read[:digits] for read in reads]
        if sizes != [b"%x" % (len(read) - digits - 4) for read in reads]:
            return None
        rests = [read[digits:] for read in reads]
        left = sum(map(len, rests)) - len(self._head) * len(reads)
        rests = [rest.removeprefix(self._head) for rest in rests]
        counts: list[int] = []
        for gap in range(len(self._tails) - 1, -1, -1):
            tail = self._tails[gap]
            # Each piece is cut off where it stands and nowhere else: the sum of lengths tells whether all had it.
            left -= len(tail) * len(reads)
            rests = [rest.removesuffix(tail) for rest in rests]
            if sum(map(len, rests)) != left:
                return None
            if gap:
                kept = [rest.rstrip(_DIGITS) for rest in rests]
                numbers = [rest[len(keep) :] for rest, keep in zip(rests, kept, strict=True)]
                if not all(numbers):
                    return None
                if gap - 1 == self._count_at:
                    counts = list(map(int, numbers))
                rests = kept
                left = sum(map(len, rests))
        texts = b"".join(rests)
        if not all(rests) or b"\n" in texts or b"\r" in texts:
            return None
        if (b'"' in texts or b"\\" in texts) and not all(map(_TEXT.fullmatch, rests)):
            return None
        return counts


def learn(body: bytes, text: str, *, counted: bool) -> Template | None:
    """A template from an HTTP chunk's `body` that is one plain event with `text`; None where it would be ambiguous.

    Plain: one choice, with text and without a finish reason, no error. `counted`: its usage gave completion_tokens.
    """
    if not body.startswith(b"data: ") or body.find(b"\n") != len(body) - 2 or b"\\" in body or b"\r" in body:
        return None
    for mark in _MARKS:
        if body.count(mark) != 1:
            continue
        start = body.find(mark) + len(mark)
        end = body.find(b'"', start)
        if body[start:end] != text.encode():
            continue
        tail = body[end:]
        keys = [match[1] for match in _COUNT_KEY.finditer(tail)] if counted else []
        # A count stated twice, or not where it can be told, cannot be read from its place.
        if len(set(keys)) != len(keys) or (counted and b'"completion_tokens":' not in keys):
            return None
        template = Template(body[:start], tail, counted=counted)
        return template if template.run([b"%x\r\n%b\r\n" % (len(body), body)])[0] == 1 else None
    return None
