"""What is whole in a JSON array that breaks off or is damaged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

_INK = re.compile(r"[^ \t\n\r]|\Z")
_UNREADABLE = b"{"
"""Stands for the element at which an array breaks."""


def elements(text: str) -> Iterator[bytes]:
    """The elements of an array up to where it breaks; what is after that is one that cannot be read.

    Half of a surrogate pair breaks the strict decoder, and not this one: its element alone is then found to be bad.
    """
    decode = json.JSONDecoder().raw_decode
    at = text.index("[") + 1
    try:
        while True:
            at = _past_blanks(text, at)
            element, at = decode(text, at)
            yield json.dumps(element).encode()
            at = _past_blanks(text, at)
            if text[at : at + 1] != ",":
                break
            at += 1
    except (ValueError, RecursionError):
        yield _UNREADABLE
        return
    if text[at : at + 1] != "]" or text[at + 1 :].strip():
        yield _UNREADABLE


def _past_blanks(text: str, at: int) -> int:
    found = _INK.search(text, at)
    return found.start() if found else len(text)
