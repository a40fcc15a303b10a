"""A trace file as lines: which format it is, and the numbers of each line or what is wrong with it.

The names of the columns (CSV with a header) or keys (JSONL, an object per line) tell the format:

azure     TIMESTAMP (date and time, to 100 ns), ContextTokens, GeneratedTokens: Azure LLM inference, 2023 and 2024
burstgpt  Timestamp (s), Request tokens, Response tokens: BurstGPT, with Session ID and Elapsed time or without
mooncake  timestamp (ms), input_length, output_length, hash_ids (blocks of 512 tokens; may be absent): Mooncake
plain     timestamp_s, input_tokens, output_tokens; also prompt (sent as it is) and, in JSONL, hash_ids with
          block_tokens: our own. Only here is a column of another name an error
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from loadstone.core.errors import InputError
from loadstone.workload.files import BOM, HEAD_BYTES, check_text, lines

GIVE = "give an Azure, BurstGPT, Mooncake or plain trace, as CSV or JSONL in UTF-8"

MAX_TOKENS = 2**31 - 1
_MAX_TIME = 1e15  # no stamp in s or ms comes near it; one in µs or ns does, and would be read wrongly
_DATE = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_ONE_OBJECT = "give one whole object on each line"


class BadLine(Exception):
    """What is wrong with one line, and the remedy; `reason` is the name under which such lines are counted."""

    def __init__(self, reason: str, what: str, remedy: str = "correct it") -> None:
        super().__init__(f"{what}; {remedy}")
        self.reason = reason


class Format(NamedTuple):
    """A format by the names of its columns. `ticks_per_s`: the unit of its times, once they are numbers."""

    name: str
    time: str
    input: str
    output: str
    ticks_per_s: int
    block_tokens: int | None = None

    @property
    def columns(self) -> tuple[str, str, str]:
        return (self.time, self.input, self.output)


_FORMATS = (
    Format("azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", 10**9),
    Format("burstgpt", "Timestamp", "Request tokens", "Response tokens", 1),
    Format("mooncake", "timestamp", "input_length", "output_length", 1000, 512),
    Format("plain", "timestamp_s", "input_tokens", "output_tokens", 1),
)


class Row(NamedTuple):
    """A line's values as the file has them: text in CSV, anything in JSON. None: the file does not say."""

    time: Any
    input: Any
    output: Any
    prompt: Any = None
    hash_ids: Any = None
    block_tokens: Any = None


class Request(NamedTuple):
    """A line that can be used. time: in the format's ticks; tokens at least 1; block_tokens 0: without hash_ids."""

    time: float
    input_tokens: int
    output_tokens: int
    prompt: str | None
    hash_ids: Sequence[int]
    block_tokens: int


Rows = Iterator[tuple[int, Row | BadLine]]
"""Line numbers, from 1, each with what stands there; blank lines are passed over."""


def rows(path: Path, stream: BinaryIO) -> tuple[Format, Rows]:
    """The format of a file and its lines, read as they are taken.

    Raises InputError where it is empty, is not text, or has not all the columns of a format.
    """
    line, head = 1, stream.readline(HEAD_BYTES).removeprefix(BOM)
    while head and not head.strip():
        line, head = line + 1, stream.readline(HEAD_BYTES)
    stream.seek(0)
    if not head:
        raise InputError(f"{path}: empty; {GIVE}")
    check_text(path, head, GIVE)
    if head.lstrip()[:1] in (b"{", b"["):
        return _json(path, lines(path, stream), line, head)
    try:
        head.decode()
    except UnicodeDecodeError:
        raise InputError(f"{path}, line {line}: invalid UTF-8; {GIVE}") from None
    return _csv(path, lines(path, stream))


def _csv(path: Path, lines: Iterator[bytes]) -> tuple[Format, Rows]:
    # Invalid bytes must not end the reading of the lines behind them: they are met again in the value they spoil.
    reader = csv.reader((data.decode(errors="surrogateescape") for data in lines), strict=True)
    try:
        header = next(row for row in reader if any(map(str.strip, row)))
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: broken CSV: {error}; {GIVE}") from None
    columns = [column.strip() for column in header]
    format = _format(f"{path}, line {reader.line_num}", columns, ("prompt",))
    wanted = [*format.columns, "prompt"] if format.name == "plain" and "prompt" in columns else format.columns
    return format, _csv_rows(reader, len(columns), itemgetter(*map(columns.index, wanted)))


def _csv_rows(reader: Any, width: int, pick: Callable[[list[str]], tuple[str, ...]]) -> Rows:
    while True:
        # A prompt in quotation marks may go over several lines; the first is the one to name.
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield line, BadLine("broken line", f"broken CSV: {error}")
            continue
        if len(cells) == width:
            yield line, Row(*pick(cells))
        elif any(map(str.strip, cells)):
            yield line, BadLine("broken line", f"values: {len(cells)}, columns of the header: {width}")


def _json(path: Path, lines: Iterator[bytes], line: int, head: bytes) -> tuple[Format, Rows]:
    where = f"{path}, line {line}"
    try:
        first = _object(head)
    except BadLine as bad:
        raise InputError(f"{where}: {bad}; the first line determines the format") from None
    format = _format(where, list(first), ("prompt", "hash_ids", "block_tokens"))
    return format, _json_rows(lines, format, first.get("prompt") is not None)


def _json_rows(lines: Iterator[bytes], format: Format, has_prompts: bool) -> Rows:
    known = {*format.columns, "prompt", "hash_ids", "block_tokens"}
    for line, data in enumerate(lines, 1):
        text = data.strip()
        if not text:
            continue
        try:
            yield line, _json_row(_object(text), format, known, has_prompts)
        except BadLine as bad:
            yield line, bad


def _json_row(item: dict[str, Any], format: Format, known: set[str], has_prompts: bool) -> Row:
    prompt = None
    if format.name == "plain":
        if not known.issuperset(item):
            raise BadLine("broken line", f"unknown: {_listed(item.keys() - known)}", "leave it out")
        prompt = item.get("prompt")
        if (prompt is not None) != has_prompts:
            what = "no 'prompt'" if has_prompts else "a 'prompt'"
            raise BadLine("no prompt", f"{what}, other than in the first line", "give all lines one, or none")
    time, input, output = map(item.get, format.columns)
    return Row(time, input, output, prompt, item.get("hash_ids"), item.get("block_tokens"))


def _object(data: bytes) -> dict[str, Any]:
    try:
        item = msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        what = str(error).removeprefix("JSON is malformed: ")
        raise BadLine("broken line", f"broken JSON: {what}", _ONE_OBJECT) from None
    if not isinstance(item, dict):
        raise BadLine("broken line", "JSON, but no object", _ONE_OBJECT)
    return item


def _format(where: str, found: list[str], optional: tuple[str, ...]) -> Format:
    """The format that has most of its columns among those found, which must be all of them."""
    format = max(_FORMATS, key=lambda format: len(set(format.columns) & set(found)))
    missing = [column for column in format.columns if column not in found]
    if len(missing) == len(format.columns):
        formats = "; ".join(f"{format.name}: {_listed(format.columns)}" for format in _FORMATS)
        raise InputError(f"{where}: not the columns of a trace, but {_listed(found)}; give one of these: {formats}")
    if missing:
        raise InputError(
            f"{where}: found {_listed(found)}, but not {_listed(missing)}; a trace of format {format.name} needs it"
        )
    known = {*format.columns, *optional}
    odd = [column for column in found if column not in known] if format.name == "plain" else []
    if odd:
        raise InputError(
            f"{where}: unknown: {_listed(odd)}; leave it out, or name it one of {_listed(sorted(known))}"
        )
    twice = sorted({column for column in known if found.count(column) > 1})
    if twice:
        raise InputError(f"{where}: more than one {_listed(twice)}; leave one")
    return format


def _listed(names: Iterable[object]) -> str:
    shown = [_shown(name) for name in names]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")


def _shown(value: object) -> str:
    """A value of the file, in a line's length."""
    # Of what is nested deeply, not even a repr can be had.
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = repr(value[:50] if isinstance(value, str) else value)
    return text if len(text) <= 60 else text[:57] + "..."


# --- the values of a line ---------------------------------------------------------------------------------------


def request(row: Row | BadLine, format: Format, block_tokens: int) -> Request:
    """What a line asks. Raises BadLine where no request can be made of it.

    `block_tokens`: the size of blocks in the lines before, 0 while none had any.
    """
    if isinstance(row, BadLine):
        raise row
    time = _date(row.time, format.time) if format.name == "azure" else _time(row.time, format.time)
    output_tokens = _count(row.output, format.output)
    if not output_tokens:
        raise BadLine("no answer", f"{format.output!r} is 0", "give it at least 1")
    input_tokens = _count(row.input, format.input)
    if not input_tokens:
        raise BadLine("no input", f"{format.input!r} is 0", "give it at least 1")
    if row.prompt is not None:
        _check_prompt(row.prompt)
    size = 0 if row.hash_ids is None else _block_tokens(row, format, input_tokens)
    if size and block_tokens and size != block_tokens:
        what = f"blocks of {size} tokens here, of {block_tokens} further up"
        raise BadLine("hash_ids do not fit", what, "give all lines the same 'block_tokens'")
    return Request(time, input_tokens, output_tokens, row.prompt, row.hash_ids or (), size)


def _block_tokens(row: Row, format: Format, input_tokens: int) -> int:
    ids = row.hash_ids
    if not isinstance(ids, list) or not all(type(id) is int for id in ids):
        raise BadLine("hash_ids do not fit", f"'hash_ids' is {_shown(ids)}, not a list of whole numbers")
    size = format.block_tokens
    if size is None or row.block_tokens is not None:
        size = _count(row.block_tokens, "block_tokens")
    if not size:
        raise BadLine("hash_ids do not fit", "'block_tokens' is 0", "give it at least 1")
    blocks = -(-input_tokens // size)
    if len(ids) != blocks:
        what = f"{len(ids)} hash_ids, but {input_tokens} tokens are {blocks} blocks of {size}"
        raise BadLine("hash_ids do not fit", what, "correct it (blocks of another size: state 'block_tokens')")
    return size


def _check_prompt(prompt: Any) -> None:
    if not isinstance(prompt, str) or not prompt.strip():
        raise BadLine("no prompt", f"'prompt' is {_shown(prompt)}", "give it text")
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise BadLine("broken line", "invalid UTF-8 in 'prompt'") from None


def _date(value: Any, column: str) -> int:
    """A date and time, UTC where no zone is given, as ns since 1970."""
    found = _DATE.fullmatch(value.strip()) if isinstance(value, str) else None
    second = _epoch_s(found[1], found[3] or "Z") if found else None
    if not found or second is None:
        raise BadLine("not a number", f"{column!r} is {_shown(value)}, not like 2024-05-10 00:00:00.0099300")
    if second < 0:
        raise BadLine("negative number", f"{column!r} is {_shown(value)}, before 1970")
    return second * 10**9 + int((found[2] or "").ljust(9, "0"))


@lru_cache(maxsize=16)
def _epoch_s(date: str, zone: str) -> int | None:
    try:
        return int(datetime.fromisoformat(date + zone).timestamp())
    except ValueError:
        return None


def _time(value: Any, column: str) -> float:
    time = _number(value, column)
    if time < 0:
        raise BadLine("negative number", f"{column!r} is {_shown(value)}, below 0")
    # So written, NaN fails too.
    if not time < _MAX_TIME:
        raise BadLine("not a number", f"{column!r} is {_shown(value)}, not a time in the format's unit")
    return time


def _count(value: Any, column: str) -> int:
    # Nearly every value of a long CSV file.
    if isinstance(value, str) and len(value) < 10 and value.isdecimal():
        return int(value)
    number = _number(value, column)
    if number < 0:
        raise BadLine("negative number", f"{column!r} is {_shown(value)}, below 0")
    # Tables that once had gaps write 128.0.
    if not number <= MAX_TOKENS or number != int(number):
        raise BadLine("not a number", f"{column!r} is {_shown(value)}, not a whole number of tokens")
    return int(number)


def _number(value: Any, column: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        text = value.strip()
        if text.isdecimal() and len(text) < 20:
            return int(text)
        try:
            # Python would take 1_000 for a number.
            if "_" not in text:
                return float(text)
        except ValueError:
            pass
    what = f"no {column!r}" if value in (None, "") else f"{column!r} is {_shown(value)}, not a number"
    raise BadLine("not a number", what)
