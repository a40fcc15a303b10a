"""Keys of the user's, kept out of what is written down: a server may repeat them in anything it says. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

_SHORTEST = 8
"""Words that are shorter are no keys."""
_NAMED = re.compile(r"key|token$|secret|passw|credential|auth", re.IGNORECASE)
"""Fields of a body whose text is a key."""
_BLANK = "…"


def keys_in(headers: Iterable[tuple[str, str]], body: Mapping[str, Any] | None = None) -> list[str]:
    """The words of the user's headers, and of the fields of `body`, however deep, that are named as keys are; longest
    first.
    """
    texts = [*(value for _, value in headers), *_named(body)]
    keys = {word for text in texts for word in text.split() if len(word) >= _SHORTEST}
    return sorted(keys, key=lambda word: (-len(word), word))


def _named(value: Any, name: str = "") -> Iterator[str]:
    """Texts of the fields in a decoded value that are named as keys are; those of a list have its name."""
    if isinstance(value, Mapping):
        for inner_name, inner in value.items():
            yield from _named(inner, inner_name)
    elif isinstance(value, list):
        for inner in value:
            yield from _named(inner, name)
    elif isinstance(value, str) and _NAMED.search(name):
        yield value


def blank(text: str, keys: Sequence[str]) -> str:
    """`text` without the keys: whole ones, and at the end of a text that was cut short their beginnings."""
    for key in keys:
        text = text.replace(key, _BLANK)
        end = text.removesuffix(_BLANK)
        begun = next((size for size in range(len(key), _SHORTEST - 1, -1) if end.endswith(key[:size])), 0)
        if begun:
            text = end[:-begun] + _BLANK
    return text


def blank_bytes(body: bytes, keys: Sequence[str]) -> bytes:
    """`body` without the keys, in whichever way JSON or a URL may write them."""
    for key in keys:
        in_json = {json.dumps(key, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
        for spelled in {key, *in_json, key.replace("/", "\\/"), quote(key, safe="")}:
            body = body.replace(spelled.encode(), _BLANK.encode())
    return body
