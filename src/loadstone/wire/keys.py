"""Keys of the user's, kept out of what is written down: a server may repeat them in anything it says. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

_SHORTEST = 8
"""Words that are shorter are no keys."""
_NAMED = re.compile(r"key|token$|secret|passw|credential|auth", re.IGNORECASE)
"""Fields of a body whose text is a key."""
_BLANK = "…"


def keys_in(headers: Iterable[tuple[str, str]], body: Mapping[str, Any] | None = None) -> list[str]:
    """The words of the user's headers, and of the fields of `body` that are named as keys are; longest first."""
    texts = [value for _, value in headers]
    texts += [value for name, value in (body or {}).items() if isinstance(value, str) and _NAMED.search(name)]
    found = {word for text in texts for word in text.split() if len(word) >= _SHORTEST}
    return sorted(found, key=lambda word: (-len(word), word))


def blank(text: str, keys: Sequence[str]) -> str:
    """`text` without the keys: whole ones, and at the end of a text that was cut short their beginnings."""
    for key in keys:
        text = text.replace(key, _BLANK)
        end = text.removesuffix(_BLANK)
        longest = min(len(key) - 1, len(end))
        begun = next((size for size in range(longest, _SHORTEST - 1, -1) if end.endswith(key[:size])), 0)
        if begun:
            text = end[:-begun] + _BLANK
    return text


def blank_bytes(body: bytes, keys: Sequence[str]) -> bytes:
    """`body` without the keys, in whichever way JSON or a URL may write them."""
    for key in keys:
        for spelled in {key, json.dumps(key)[1:-1], key.replace("/", "\\/"), quote(key, safe="")}:
            body = body.replace(spelled.encode(), _BLANK.encode())
    return body
