"""Reads values of options, from a flag's text or from what a Python call gives.

A reader is named after what it returns. It takes the value, and the flag that an error names, and
raises InputError with one line.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from loadstone.core import plugins
from loadstone.core.errors import InputError
from loadstone.core.host import make_path
from loadstone.core.units import parse_counts, parse_list, parse_seconds
from loadstone.workload.lengths import parse_tokens
from loadstone.workload.request import Structured

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t -~]*")
DEFAULT_SIM = "llama-3.1-8b@1xh100"
"""What is simulated where nothing is named."""


def plain(value: Any) -> Any:
    """Return a number or truth value of numpy (also an array without dimensions) as Python's;
    anything else as it is."""
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    return value.item() if kind in ("b", "i", "u", "f") and value.shape == () else value


def is_several(value: Any) -> bool:
    """Return whether a value holds several: anything to iterate over, but a text."""
    return hasattr(value, "__iter__") and not isinstance(value, str)


def text(value: Any, flag: str) -> str:
    return str(value)


def path(value: Any, flag: str) -> Path:
    try:
        return make_path(value)
    except TypeError:
        raise InputError(
            f"{flag}: a path is needed, and this is of type {type(value).__name__}"
        ) from None


def name_or_path(value: Any, flag: str) -> str:
    return str(path(value, flag))


def urls(value: Any, flag: str) -> str | list[Any]:
    """Return one URL as it is, several as a list."""
    if not is_several(value):
        return value  # type: ignore[no-any-return]
    several = list(value)
    if not several:
        raise InputError(
            f"{flag}: a list without a URL; name a server, or give None for an embedded one"
        )
    return several


def endpoint(value: Any, flag: str) -> str:
    """Return the name of an API by which servers are measured."""
    name = str(value)
    if name == "triton-grpc":
        raise InputError(
            f"{flag} triton-grpc: Triton is measured over HTTP alone; write --endpoint triton, and"
            " give the URL of its HTTP port (8000 by default)"
        )
    plugins.check(plugins.WIRES, name, flag)
    return name


def simulated(value: Any, flag: str) -> Any:
    """Return what is simulated: True stands for DEFAULT_SIM, False for nothing."""
    return (DEFAULT_SIM if value else None) if isinstance(value, bool) else value


def seconds(value: Any, flag: str) -> float:
    return parse_seconds(str(value), flag)


def share(value: Any, flag: str) -> float:
    """Return a part of a whole, 0.05, from `5%` or 0.05."""
    text = str(value).strip()
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise InputError(f"{flag}: {text!r} is no share; write e.g. 5%") from None


def tokens(value: Any, flag: str) -> int:
    return parse_tokens(str(value), flag)


def _join(value: Any) -> str | None:
    """Return numbers as a flag's text has them, with commas; None where there are none."""
    if isinstance(value, str):
        return value
    return ",".join(map(str, value if is_several(value) else [value])) or None


def numbers(value: Any, flag: str) -> list[float]:
    joined = _join(value)
    return [] if joined is None else parse_list(joined, flag)


def counts(value: Any, flag: str) -> list[int]:
    joined = _join(value)
    return [] if joined is None else parse_counts(joined, flag)


def scales(value: Any, flag: str) -> list[float]:
    """Return factors, from `0.1` or `1/10`, several with commas."""
    result = []
    joined = _join(value)
    for part in () if joined is None else joined.split(","):
        number, slash, divisor = part.partition("/")
        values = parse_list(f"{number},{divisor}" if slash else number, flag)
        if slash and values[1] == 0:
            raise InputError(f"{flag}: {part!r} divides by zero; write 0.1 or 1/10")
        result.append(values[0] / values[1] if slash else values[0])
    return result


def window(value: Any, flag: str) -> tuple[float, float]:
    """Return start and end in seconds, from `0s:10m` or a pair."""
    span = (
        ":".join(map(str, value))
        if isinstance(value, Sequence) and not isinstance(value, str)
        else str(value)
    )
    start, colon, end = span.partition(":")
    if not colon:
        raise InputError(f"{flag}: {span!r} is not a span of time; write FROM:TO, e.g. 0s:10m")
    limits = parse_seconds(start or "0", flag), parse_seconds(end, flag)
    if limits[0] >= limits[1]:
        raise InputError(f"{flag}: {span!r} ends before it begins; write FROM:TO, e.g. 0s:10m")
    return limits


def headers(value: Any, flag: str) -> list[tuple[str, str]]:
    """Return names and values, from `Name: value`, pairs, or a mapping."""
    if isinstance(value, Mapping):
        return [(str(name), str(content)) for name, content in value.items()]
    pairs = []
    for header in value if is_several(value) else [value]:
        pair = header.split(":", 1) if isinstance(header, str) else header
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise InputError(f"{flag}: write 'Name: value'")
        pairs.append((str(pair[0]).strip(), str(pair[1]).strip()))
    return pairs


def check_headers(pairs: Iterable[tuple[str, str]], flag: str) -> None:
    """Raise InputError for what is no header, or one that follows from the request."""
    for name, value in pairs:
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise InputError(
                f"{flag}: not an HTTP header (name and value in plain ASCII); write 'Name: value'"
            )
        if name.lower() in ("content-length", "transfer-encoding"):
            raise InputError(f"{flag}: {name} follows from the request; leave it out")


def engine_flags(value: Any, flag: str) -> list[tuple[str, str | None]]:
    """Return an engine's own flags with their values, from `FLAG=VALUE`, pairs or a mapping; None
    for a flag without a value."""
    pairs = []
    for given in value.items() if isinstance(value, Mapping) else texts(value, flag):
        name, sign, content = given.partition("=") if isinstance(given, str) else ("", "", "")
        pair = given if not isinstance(given, str) else (name, content if sign else None)
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise InputError(f"{flag}: write FLAG, or FLAG=VALUE")
        pairs.append((str(pair[0]), None if pair[1] is None else str(pair[1])))
    return pairs


def variables(value: Any, flag: str) -> list[tuple[str, str]]:
    """Return environment variables with their values, from `NAME=VALUE`, pairs, or a mapping."""
    pairs = engine_flags(value, flag)
    for name, content in pairs:
        if content is None or not name.isidentifier():
            raise InputError(f"{flag} {name!r}: write NAME=VALUE")
    return [(name, content or "") for name, content in pairs]


def json_object(value: Any, flag: str) -> dict[str, Any]:
    try:
        fields = msgspec.json.decode(value) if isinstance(value, str) else value
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise InputError(f"{flag}: no JSON ({error}); write e.g. '{{\"top_k\": 40}}'") from None
    if not isinstance(fields, Mapping):
        raise InputError(f"{flag}: not a JSON object; write e.g. '{{\"top_k\": 40}}'")
    return dict(fields)


def texts(value: Any, flag: str) -> list[Any]:
    return list(value) if is_several(value) else [value]


def addresses(value: Any, flag: str) -> list[str]:
    """Return addresses, from texts that may hold several with commas."""
    return [address for given in texts(value, flag) for address in str(given).split(",")]


def parse_structured(option: str) -> Structured:
    """Return the form that answers must have, from `json-schema:…`, `regex:…` or `grammar:…`.

    Behind the colon stands a pattern, a schema or grammar itself, or the path of its file. Raises
    InputError.
    """
    kind, colon, content = option.partition(":")
    if not colon or kind not in ("json-schema", "regex", "grammar") or not content.strip():
        raise InputError(
            f"--structured: {option[:40]!r}: write json-schema:FILE, grammar:FILE or regex:PATTERN"
        )
    if kind == "regex":
        return Structured("regex", content)
    inline = content.lstrip().startswith("{") if kind == "json-schema" else "::=" in content
    if not inline:
        try:
            content = Path(content).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "no text"
            raise InputError(
                f"--structured: {content}: cannot be read ({reason}); give a file"
            ) from error
    if kind == "grammar":
        return Structured("grammar", content)
    try:
        schema = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise InputError(
            f"--structured: not a JSON schema ({error}); give a JSON object"
        ) from error
    return Structured("json_schema", schema)
