"""Keeps the user's keys out of what is written down: a server may repeat them in anything it says.
No I/O."""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

_SHORTEST = 8
"""Words that are shorter are no keys."""
_NAMED = re.compile(r"key|token$|secret|passw|credential|auth", re.IGNORECASE)
"""Fields of a body whose text is a key."""
_BLANK = "…"
_BETWEEN = rb"(?:\s|\\[nrt]|%20){0,4}"
"""The bytes that may stand between two characters of a key that is spaced or broken into lines."""
_WHITESPACE = b" \t\r\n\v\f"


def keys_in(headers: Iterable[tuple[str, str]], body: object = None) -> list[str]:
    """The words of the user's headers, and of the fields of `body`, however deep, that are named as
    keys are; longest first. Of a name and password in base64 (Basic) also what they are decoded.
    """
    texts = [*(value for _, value in headers), *_named(body)]
    words = [word for text in texts for word in [*text.split(), *_basic(text)]]
    return sorted(
        {word for word in words if len(word) >= _SHORTEST}, key=lambda word: (-len(word), word)
    )


def names_key(name: str) -> bool:
    """Return True if a field, flag or variable of that name has a key."""
    return bool(_NAMED.search(name))


def blank_words(words: Sequence[str]) -> list[str]:
    """A command line without the values whose flags are named as keys are: `--api-key …`,
    `--env=HF_TOKEN=…`."""
    shown: list[str] = []
    for i, word in enumerate(words):
        *names, _ = word.split("=")
        named = next((place for place, name in enumerate(names) if names_key(name)), None)
        if named is not None:
            shown.append("=".join(names[: named + 1]) + "=" + _BLANK)
        else:
            previous = words[i - 1] if i else ""
            is_value = previous.startswith("-") and "=" not in previous and not word.startswith("-")
            shown.append(_BLANK if is_value and names_key(previous) else word)
    return shown


def _basic(value: str) -> list[str]:
    """`name:password` and the password of a header `Basic …`; nothing of any other."""
    scheme, _, encoded = value.strip().partition(" ")
    if scheme.lower() != "basic":
        return []
    try:
        decoded = base64.b64decode(encoded.strip()).decode()
    except ValueError:
        return []
    return [decoded, decoded.partition(":")[2]]


def _named(value: object, name: str = "") -> Iterator[str]:
    """Texts of the fields in a decoded value that are named as keys are; those of a list have its
    name."""
    if isinstance(value, Mapping):
        for inner_name, inner in value.items():
            yield from _named(inner, inner_name)
    elif isinstance(value, list):
        for inner in value:
            yield from _named(inner, name)
    elif isinstance(value, str) and _NAMED.search(name):
        yield value


def blank(text: str, keys: Sequence[str]) -> str:
    """`text` without the keys, as blank_bytes(); at the end of a text that was cut short without
    their beginnings."""
    for key in keys:
        text = blank_bytes(text.encode("utf-8", "surrogatepass"), [key]).decode(
            "utf-8", "surrogatepass"
        )
        end = text.removesuffix(_BLANK)
        lower, of_key = end.lower(), key.lower()
        begun = next(
            (size for size in range(len(key), _SHORTEST - 1, -1) if lower.endswith(of_key[:size])),
            0,
        )
        if begun:
            text = end[:-begun] + _BLANK
    return text


def blank_bytes(body: bytes, keys: Sequence[str]) -> bytes:
    """`body` without the keys: in capitals or small letters, with space between their characters,
    in whichever way JSON or a URL may write these.
    """
    if not keys:
        return body
    plain = None if b"\\" in body or b"%" in body else body.lower().translate(None, _WHITESPACE)
    for key in keys:
        # Looking for the plain letters first is a hundred times as fast: pages of metrics are read
        # every second.
        if plain is None or "".join(key.split()).encode().lower() in plain:
            body = _spellings(key).sub(_BLANK.encode(), body)
    return body


@lru_cache(maxsize=256)
def _spellings(key: str) -> re.Pattern[bytes]:
    """Finds a key in all its spellings, its characters each in any of them."""
    characters = []
    for character in "".join(key.split()):
        utf8, utf16 = (
            character.encode("utf-8", "surrogatepass"),
            character.encode("utf-16-be", "surrogatepass"),
        )
        in_json = b"".join(
            rb"\\u%02x%02x" % (utf16[place], utf16[place + 1]) for place in range(0, len(utf16), 2)
        )
        in_url = b"".join(b"%%%02x" % byte for byte in utf8)
        escaped = rb"\\?" if character in '"\\/' else b""
        characters.append(b"(?:%s%s|%s|%s)" % (escaped, re.escape(utf8), in_json, in_url))
    return re.compile(_BETWEEN.join(characters), re.IGNORECASE)
