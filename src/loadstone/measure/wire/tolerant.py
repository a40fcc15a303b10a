"""Reads JSON that is not quite as it should be: an odd type, an impossible number, invalid UTF-8.
No I/O.

Nothing here raises on what a server sent: what cannot be used is missing.
"""

import json
from typing import Any, TypeVar, get_args

import msgspec

MAX_COUNT = 1 << 24
"""Token counts above this are no counts: nothing longer can be asked for, and each token costs
memory later."""

MAX_LEVELS = 32
"""Levels of JSON that is kept as it came: engines need 5, and DuckDB reads 128."""
_MOST = 1.7e308

NO_RAW = msgspec.Raw(b"")
"""Default of a field that is kept as bytes: it was not sent."""

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors of a strict decoder; the tolerant way is then tried."""

_NULLISH = (b"null", b'""', b"[]", b"{}", b"false", b"0")

_NO_ERRORS = ("", "0", "0.0", "[]", "{}", "false", "none", "null", "ok", "success", "no error")
_CODES = ("code", "status", "status_code")
_REASONS = ("message", "msg", "detail", "error", "reason")
_T = TypeVar("_T", bound=msgspec.Struct)


def is_present(field: msgspec.Raw) -> bool:
    """Return True if the field was sent and says something."""
    return field is not NO_RAW and bytes(field) not in _NULLISH


def is_error(field: msgspec.Raw) -> bool:
    """Return True if a field of errors tells of one: `{"code": 0, "message": ""}` does not; with a
    code of 0 only a reason does."""
    if not is_present(field):
        return False
    error = load_object(bytes(field))
    if error is None:
        return True
    codes = [error[name] for name in _CODES if name in error]
    if codes and not any(map(_tells, codes)):
        return any(_tells(error.get(name)) for name in _REASONS)
    return any(map(_tells, error.values()))


def _tells(part: object) -> bool:
    """Tell if a part of an error says that there is one."""
    return str(part).lower().strip(" .!") not in _NO_ERRORS


def count(value: object) -> int | None:
    """Read a count of tokens; None for what cannot be one (no number, negative, huge, a fraction,
    NaN, which compares to nothing).
    """
    if isinstance(value, int | float) and 0 <= value <= MAX_COUNT and value == int(value):
        return None if isinstance(value, bool) else int(value)
    return None


def load_object(payload: bytes) -> dict[str, Any] | None:
    """Read a JSON object, invalid UTF-8 replaced; None for anything else."""
    fields = load(payload)
    return fields if isinstance(fields, dict) else None


def list_objects(document: object, name: str) -> list[dict[str, Any]]:
    """List the objects in a document's list of that name; none where there is no such list."""
    entries = document.get(name) if isinstance(document, dict) else None
    if not isinstance(entries, list):
        return []
    return [entry for entry in entries if isinstance(entry, dict)]


def load(payload: bytes) -> Any:
    """Read a JSON document, invalid UTF-8 replaced, a byte order mark passed over; None where it
    cannot be read.

    Numbers of any length are read, and so are NaN and Infinity, which some engines print.
    """
    try:
        return json.loads(payload.decode("utf-8-sig", "replace"), parse_int=_parse_number)
    except (ValueError, RecursionError):
        return None


def _parse_number(digits: str) -> float:
    """Read an integer; Python refuses those of thousands of digits, which are as good as
    infinite."""
    return int(digits) if len(digits) < 400 else float(digits)


def raw(value: Any) -> msgspec.Raw:
    """Encode a decoded value again; one nested deeper than can be written becomes a word that says
    so."""
    try:
        return msgspec.Raw(json.dumps(value, separators=(",", ":")).encode())
    except RecursionError:
        return msgspec.Raw(b'"nested too deeply to be shown"')


def storable(value: Any, levels: int = MAX_LEVELS) -> Any:
    """Make a decoded value one that every reader of JSON takes: what is nested deeper is null, and
    so is a number beyond float64; half a UTF-16 pair is a replacement character.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode() if not value.isascii() else value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if -_MOST <= value <= _MOST else None
    if not isinstance(value, list | dict):
        return value
    if levels == 0:
        return None
    if isinstance(value, list):
        return [storable(part, levels - 1) for part in value]
    return {storable(name): storable(part, levels - 1) for name, part in value.items()}


def text(value: Any) -> str | None:
    """Make text of any value; None of one that says nothing."""
    if not value or isinstance(value, str):
        return value or None
    try:
        return json.dumps(value)
    except RecursionError:
        return None


def convert(value: Any, kind: type[_T]) -> _T | None:
    """Make a struct of a dict, as far as its fields can be read; None of what is no dict.

    Whatever is there can be text; a field of another type than expected keeps its default.
    """
    if not isinstance(value, dict):
        return None
    fields = {}
    for field in msgspec.structs.fields(kind):
        try:
            given = value.get(field.encode_name)
            if (
                field.name == "finish_reason"
                and field.type is not msgspec.Raw
                and isinstance(given, dict)
            ):
                given = given.get(
                    "type"
                )  # SGLang's older servers send an object, {"type": "length", …}
            fields[field.name] = _convert_field(given, field.type)
        except (msgspec.ValidationError, ValueError, OverflowError):
            continue
    return kind(**fields)


def _convert_field(value: Any, kind: Any) -> Any:
    option = (get_args(kind) or (kind,))[0]  # of what is optional, the type that it has
    if option is str:
        return text(value)
    if option is msgspec.Raw:
        return raw(value) if value else NO_RAW
    if msgspec.inspect.is_struct_type(option):
        return convert(value, option)
    (element,) = get_args(option) or (None,)
    if isinstance(value, list) and msgspec.inspect.is_struct_type(element):
        return [convert(part, element) for part in value if isinstance(part, dict)]
    return msgspec.convert(value, kind, strict=False)
