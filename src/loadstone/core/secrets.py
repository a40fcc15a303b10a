"""Keeps the user's keys out of what is written down: a server may repeat them in anything it says.
No I/O."""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from urllib.parse import unquote

_SHORTEST = 8
"""Words that are shorter are no keys."""
_NAMED = re.compile(r"key|token$|secret|passw|credential|auth|cookie|bearer", re.IGNORECASE)
"""Fields of a body whose text is a key."""
_SCHEMES = re.compile(
    r"(?:apikey|aws4-hmac-sha256|basic|bearer|digest|dpop|gnap|hoba|hmac-sha256|mutual|negotiate"
    r"|ntlm|oauth|signature|token|vapid)\Z",
    re.IGNORECASE,
)
"""The first word of a header that says how the others are to be read."""
_PARTS = re.compile(r"[\s,;:&|\"'<>@(){}\[\]]+|(?<=\w)=(?=[^=])")
_FIELD_NAMES = re.compile(r"(?<![^\s,;&?\"'{])\"?[A-Za-z][\w.-]*\"?=(?=[^=])")
"""What stands before a value within a composite one: `keyId=`, `session=`."""
_BLANK = "…"
_BETWEEN = rb"(?:\s|\\[nrt]|%20){0,4}"
"""The bytes that may stand between two characters of a key that is spaced or broken into lines."""
_WHITESPACE = b" \t\r\n\v\f"


def keys_in(headers: Iterable[tuple[str, str]], body: object = None) -> list[str]:
    """The words of the user's headers, and of the fields of `body`, however deep, that are named as
    keys are, and the parts of these words: `user`, `KEY` and `user:KEY`; longest first. Of a name
    and password in base64 (Basic) also what they are decoded.
    """
    texts = [*(value for _, value in headers), *_named(body)]
    words = [word for text in texts for word in [*_words(text), *_basic(text)]]
    return sorted(
        {word for word in words if len(word) >= _SHORTEST}, key=lambda word: (-len(word), word)
    )


def _words(text: str) -> Iterator[str]:
    """The words of a value, and their parts, without what says how they are to be read."""
    words = text.split()
    for word in words[1:] if has_scheme(text) else words:
        yield word
        values = _FIELD_NAMES.sub(" ", word)
        for part in _PARTS.split(values):
            yield part
            yield unquote(part)
            if values != word or part.startswith("eyJ"):  # of a signature, of a JSON web token
                yield from re.split("[/.]", part)


def has_scheme(text: str) -> bool:
    """Return True if a header's value begins with the word of a way to give a key: `Bearer …`."""
    words = text.split()
    return bool(words[1:] and _SCHEMES.match(words[0]))


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
    """Texts of the fields in a decoded value that are named as keys are, with all that is in them
    unless it is a schema; those of a list have its name. Text may be JSON, or a header.
    """
    is_key = bool(_NAMED.search(name))
    if isinstance(value, Mapping):
        called = next((value[key] for key in ("name", "header") if key in value), "")
        pair = isinstance(called, str) and _NAMED.search(called) and "value" in value
        if pair:
            yield from _named(value["value"], str(called))
        inherited = name if is_key and "type" not in value else ""
        for inner_name, inner in value.items():
            is_named = _NAMED.search(str(inner_name))
            yield from _named(inner, str(inner_name) if is_named else inherited or str(inner_name))
    elif isinstance(value, list | tuple):
        if len(value) == 2 and isinstance(value[0], str) and _NAMED.search(value[0]):
            yield from _named(value[1], value[0])
        for inner in value:
            yield from _named(inner, name)
    elif isinstance(value, str):
        if is_key:
            yield value
        elif value.lstrip()[:1] in ("{", "["):
            try:
                yield from _named(json.loads(value), name)
            except (ValueError, RecursionError):
                return
        else:
            called, separator, rest = value.partition(":")
            if separator and re.fullmatch(r"\s*[\w-]+\s*", called) and _NAMED.search(called):
                yield rest


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
    in whichever way JSON or a URL may write these; also in hexadecimal digits, and in base64 within
    a longer text.
    """
    if not keys:
        return body
    plain = None if b"\\" in body or b"%" in body else body.lower().translate(None, _WHITESPACE)
    for key in keys:
        # Looking for the plain letters first is a hundred times as fast: pages of metrics are read
        # every second.
        if plain is None or "".join(key.split()).encode().lower() in plain:
            body = _spellings(key).sub(_BLANK.encode(), body)
        for encoded, beside in _encodings(key):
            if encoded in body:
                whole = beside + re.escape(encoded) + beside + rb"={0,2}"
                body = re.sub(whole, _BLANK.encode(), body)
    return body


@lru_cache(maxsize=256)
def _encodings(key: str) -> list[tuple[bytes, bytes]]:
    """Returns a key in hexadecimal digits and in base64, each with a pattern of the characters
    beside it that may still hold some of it. In base64 that depends on how many bytes are before
    it: by three."""
    plain = key.encode("utf-8", "surrogatepass")
    found = {(plain.hex().encode(), b""), (plain.hex().upper().encode(), b"")}
    for offset in range(3):
        whole = base64.b64encode(b"\0" * offset + plain)
        first, last = (offset * 8 + 5) // 6, (offset + len(plain)) * 8 // 6
        inside = whole[first:last]
        for encoded in (inside, inside.translate(bytes.maketrans(b"+/", b"-_"))):
            found.add((encoded, rb"[\w+/-]{0,2}"))
    return sorted(found)


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
