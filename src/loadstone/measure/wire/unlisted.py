"""Finds what a chunk of OpenAI's dialect says under names that the specification lacks: counts of
tokens, output. No I/O.

It is looked for where a chunk says nothing that is known, which is twice or three times in an
answer.
"""

import itertools
import re
from collections.abc import Iterator
from typing import Any

_COUNTS = {
    "input": re.compile("(num)?(prompt|input)tokens?(count)?"),
    "output": re.compile("(num)?(completion|output|generated|candidates)tokens?(count)?"),
    "total": re.compile("(num)?totaltokens?(count)?"),
    "cached": re.compile("(?!.*(creat|writ|miss)).*cache.*"),
    "reasoning": re.compile(".*(reason|think|thought).*tokens?.*"),
}
"""Names of counts, their letters alone."""
_LEVELS = 4
_DELTA = {"content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call"}
_NO_TEXT = re.compile(
    "(id|ids|role|name|type|kind|format|reason|status|object|model|index"
    "|signature|fingerprint|hash|encrypted.*|"
    "created|time|timestamp|date|at|url|uri|mime|language|logprobs?|version)$",
    re.IGNORECASE,
)
"""Endings of the names of fields whose strings are about the output, and not of it."""
_ENCODED = re.compile(
    r"[A-Za-z0-9+/_=-]{48,}|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|data:\w+/.*", re.DOTALL
)
"""Base64 and its like; identifiers."""


def find_usage(chunk: Any) -> dict[str, float] | None:
    """Find the counts of the first object in a decoded chunk that counts output: input, output,
    total, cached, reasoning, as far as they are there. None where there is no such object.
    """
    waiting = [(chunk, _LEVELS)]
    for value, levels in waiting:  # which grows: those that are further in come later
        if isinstance(value, dict):
            found = _read_counts(value)
            if "output" in found:
                return found
        inner = value.values() if isinstance(value, dict) else value
        if levels:
            waiting += [(part, levels - 1) for part in inner if isinstance(part, dict | list)]
    return None


def _read_counts(usage: dict[str, Any]) -> dict[str, float]:
    """Take the largest of each count, of an object and of those in it."""
    found: dict[str, float] = {}
    inner = [value.items() for value in usage.values() if isinstance(value, dict)]
    for name, value in itertools.chain(usage.items(), *inner):
        letters = re.sub("[^a-z]", "", name.lower())
        kind = next((kind for kind, names in _COUNTS.items() if names.fullmatch(letters)), None)
        if kind is None or isinstance(value, bool) or not isinstance(value, int | float | str):
            continue
        if kind in ("input", "output", "total") and name not in usage:
            continue  # of an object further in, which counts something else
        try:
            found[kind] = max(float(value), found.get(kind, 0.0))
        except (ValueError, OverflowError):
            continue
    return found


def find_text(chunk: Any) -> Iterator[tuple[str, str]]:
    """Yield the names of the unknown fields of a decoded chunk's deltas, each with what it says in
    words."""
    choices = chunk.get("choices") if isinstance(chunk, dict) else None
    for choice in choices if isinstance(choices, list) else ():
        delta = choice.get("delta") if isinstance(choice, dict) else None
        for name, value in delta.items() if isinstance(delta, dict) else ():
            text = "" if name in _DELTA else "".join(_collect_text(name, value, _LEVELS))
            if text:
                yield name, text


def _collect_text(name: str, value: Any, levels: int) -> Iterator[str]:
    if isinstance(value, str):
        if not _NO_TEXT.search(name) and not _ENCODED.fullmatch(value):
            yield value
    elif levels and isinstance(value, dict):
        for inner_name, inner in value.items():
            yield from _collect_text(inner_name, inner, levels - 1)
    elif levels and isinstance(value, list):
        for inner in value:
            yield from _collect_text(name, inner, levels - 1)
