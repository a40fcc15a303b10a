"""Reads the lines of traces: which columns tell the format, and the values of each line.

The names of the columns (CSV with a header) or keys (JSONL, an object per line) tell the format:

azure     TIMESTAMP (date and time, to 100 ns), ContextTokens, GeneratedTokens: Azure LLM inference,
          2023 and 2024
burstgpt  Timestamp (s), Request tokens, Response tokens: BurstGPT, with Session ID and Elapsed time
          or without
mooncake  timestamp (ms), input_length, output_length, hash_ids (blocks of 512 tokens; may be
          absent): Mooncake; in seconds where times have fractions and as ms would be requests that
          nobody sends
bailian   the same with chat_id, in seconds and blocks of 16 tokens: Alibaba's Bailian
plain     timestamp_s, input_tokens, output_tokens; also prompt (sent as it is) and, in JSONL,
          hash_ids with block_tokens: our own. Only here is a column of another name an error

`class`, in any of them, names the class of traffic of each request.

BurstGPT notes a failed request as one of 0 response tokens: such lines are left out and counted,
without an error. In the azure format two lines of one time and the same lengths are an error: its
clock is so fine that the line was repeated. The clocks of the others are coarse, and requests do
come at once.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from loadstone.core.errors import InputError
from loadstone.workload.files import BadLine, RequestFile, bad_block_count, decode

GIVE = "give an Azure, BurstGPT, Mooncake or plain trace, as CSV or JSONL in UTF-8"
MAX_TOKENS = 2**31 - 1
_MAX_TIME = (
    1e15  # no stamp in s or ms comes near it; one in µs or ns does, and would be read wrongly
)
TIME_DIGITS = 6
_DATE = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII
)


class TraceFormat(NamedTuple):
    """A format, by the names of its columns. `ticks_per_s`: the unit of its times, once they are
    numbers."""

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
    TraceFormat("azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", 10**9),
    TraceFormat("burstgpt", "Timestamp", "Request tokens", "Response tokens", 1),
    TraceFormat("mooncake", "timestamp", "input_length", "output_length", 1000, 512),
    TraceFormat("plain", "timestamp_s", "input_tokens", "output_tokens", 1),
)
_BAILIAN = TraceFormat("bailian", "timestamp", "input_length", "output_length", 1, 16)


class TraceRequest(NamedTuple):
    """A line that can be used. time: in the format's ticks; tokens at least 1; block_tokens 0:
    without hash_ids."""

    time: float
    input_tokens: int
    output_tokens: int
    prompt: str | None
    hash_ids: Sequence[int]
    block_tokens: int
    traffic_class: str = ""


Lines = Iterator[tuple[int, dict[str, Any]]]
"""Line numbers, from 1, each with the values that stand there by their names, as the file has them
(text in CSV, anything in JSON)."""


def read_csv(file: RequestFile) -> tuple[TraceFormat, Lines]:
    """Tell the format of a CSV file by its header, and its lines, read as they are taken. Raises
    InputError where it has not all the columns of a format."""
    try:
        file.head.decode()
    except UnicodeDecodeError:
        file.refuse(file.first, f"invalid UTF-8; {GIVE}")
    # Invalid bytes must not end the reading of the lines behind them: they are met again in the
    # value they spoil.
    lines = (data.decode(errors="surrogateescape") for data in file.lines())
    reader = csv.reader(lines, strict=True)
    try:
        header = next((row for row in reader if any(map(str.strip, row))), None)
    except csv.Error as error:
        file.refuse(reader.line_num, f"broken CSV: {error}; {GIVE}")
    if header is None:
        raise InputError(f"{file.path}: empty; {GIVE}")
    columns = [column.strip() for column in header]
    format = _format(f"{file.path}, line {reader.line_num}", columns, ("prompt", "class"))
    names = [*format.columns, *(["class"] if "class" in columns else [])]
    if format.name == "plain" and "prompt" in columns:
        names.append("prompt")
    places = {name: columns.index(name) for name in names}
    return format, _csv_rows(file, reader, len(columns), places)


def _csv_rows(file: RequestFile, reader: Any, width: int, places: dict[str, int]) -> Lines:
    while True:
        # A prompt in quotation marks may go over several lines; the first is the one to name.
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            file.leave_out(line, BadLine("broken line", f"broken CSV: {error}"))
            continue
        if len(cells) == width:
            yield line, {name: cells[place] for name, place in places.items()}
        elif any(map(str.strip, cells)):
            problem = f"values: {len(cells)}, columns of the header: {width}"
            file.leave_out(line, BadLine("broken line", problem))


def read_json(file: RequestFile) -> tuple[TraceFormat, Lines]:
    """Tell the format of a JSONL file by its first line, and its lines, read as they are taken.
    Raises InputError where that has not all the keys of a format."""
    where = f"{file.path}, line {file.first}"
    try:
        first = _object(file.head)
    except BadLine as bad:
        raise InputError(f"{where}: {bad}; the first line determines the format") from None
    optional = ("prompt", "hash_ids", "block_tokens", "class")
    format = _format(where, list(first), optional)
    keys = {*format.columns, *optional}
    has_prompts = first.get("prompt") is not None

    def read(data: bytes) -> dict[str, Any]:
        item = _object(data)
        if format.name != "plain":
            item.pop("prompt", None)
            return item
        if not keys.issuperset(item):
            raise BadLine("broken line", f"unknown: {_list(item.keys() - keys)}", "leave it out")
        if (item.get("prompt") is not None) != has_prompts:
            found = "no 'prompt'" if has_prompts else "a 'prompt'"
            problem = f"{found}, other than in the first line"
            raise BadLine("no prompt", problem, "give all lines one, or none")
        return item

    return format, file.read(read)


def _object(data: bytes) -> dict[str, Any]:
    item: Any = decode(data)
    if not isinstance(item, dict):
        raise BadLine("broken line", "JSON, but no object", "give one whole object on each line")
    return item


def _format(where: str, names: list[str], optional: tuple[str, ...]) -> TraceFormat:
    """Find the format that has most of its columns among these, which must be all of them."""
    format = max(_FORMATS, key=lambda format: len(set(format.columns) & set(names)))
    if format.name == "mooncake" and "chat_id" in names:
        format = _BAILIAN
    missing = [column for column in format.columns if column not in names]
    if len(missing) == len(format.columns):
        formats = "; ".join(f"{format.name}: {_list(format.columns)}" for format in _FORMATS)
        raise InputError(
            f"{where}: not the columns of a trace, but {_list(names)}; give one of these: {formats}"
        )
    if missing:
        raise InputError(
            f"{where}: found {_list(names)}, but not {_list(missing)}; a trace of format"
            f" {format.name} needs it"
        )
    taken = {*format.columns, *optional}
    odd = [column for column in names if column not in taken] if format.name == "plain" else []
    if odd:
        raise InputError(
            f"{where}: unknown: {_list(odd)}; leave it out, or name it one of"
            f" {_list(sorted(taken))}"
        )
    twice = sorted({column for column in taken if names.count(column) > 1})
    if twice:
        raise InputError(f"{where}: more than one {_list(twice)}; leave one")
    return format


def _list(names: Iterable[object]) -> str:
    shown = [_show(name) for name in names]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")


def _show(value: object) -> str:
    """Show a value of the file, in a line's length."""
    # Of what is nested deeply, not even a repr can be had.
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = repr(value[:50] if isinstance(value, str) else value)
    return text if len(text) <= 60 else text[:57] + "..."


def read_request(row: dict[str, Any], format: TraceFormat, block_tokens: int) -> TraceRequest:
    """Make a request of a line. Raises BadLine where none can be made.

    `block_tokens`: the size of blocks in the lines before, 0 while none had any.
    """
    time = (_date if format.name == "azure" else _time)(row.get(format.time), format.time)
    output_tokens = _least_1(row, format.output, "no answer")
    input_tokens = _least_1(row, format.input, "no input")
    prompt, ids = row.get("prompt"), row.get("hash_ids")
    if prompt is not None and (not isinstance(prompt, str) or not prompt.strip()):
        raise BadLine("no prompt", f"'prompt' is {_show(prompt)}", "give it text")
    try:
        (prompt or "").encode()
    except UnicodeEncodeError:
        raise BadLine("broken line", "invalid UTF-8 in 'prompt'") from None
    size = 0 if ids is None else _block_tokens(row, ids, format, input_tokens)
    if size and block_tokens and size != block_tokens:
        problem = f"blocks of {size} tokens here, of {block_tokens} further up"
        raise BadLine("hash_ids do not fit", problem, "give all lines the same 'block_tokens'")
    of_class = str(row.get("class") or "").strip()
    return TraceRequest(time, input_tokens, output_tokens, prompt, ids or (), size, of_class)


def _block_tokens(row: dict[str, Any], ids: Any, format: TraceFormat, input_tokens: int) -> int:
    if not isinstance(ids, list) or not all(type(id) is int for id in ids):
        raise BadLine(
            "hash_ids do not fit", f"'hash_ids' is {_show(ids)}, not a list of whole numbers"
        )
    size = format.block_tokens
    if size is None or row.get("block_tokens") is not None:
        size = _least_1(row, "block_tokens", "hash_ids do not fit")
    if len(ids) != -(-input_tokens // size):
        raise bad_block_count(len(ids), input_tokens, size)
    return size


def _date(value: Any, column: str) -> int:
    """Read a date and time, UTC where no zone is given, as ns since 1970."""
    match = _DATE.fullmatch(value.strip()) if isinstance(value, str) else None
    second = _epoch_s(match[1], match[3] or "Z") if match else None
    if not match or second is None:
        raise BadLine(
            "not a number", f"{column!r} is {_show(value)}, not like 2024-05-10 00:00:00.0099300"
        )
    if second < 0:
        raise BadLine("negative number", f"{column!r} is {_show(value)}, before 1970")
    return second * 10**9 + int((match[2] or "").ljust(9, "0"))


@lru_cache(maxsize=16)
def _epoch_s(date: str, zone: str) -> int | None:
    try:
        return int(datetime.fromisoformat(date + zone).timestamp())
    except ValueError:
        return None


def _time(value: Any, column: str) -> float:
    time = _number(value, column)
    if time < 0:
        raise BadLine("negative number", f"{column!r} is {_show(value)}, below 0")
    # So written, NaN fails too.
    if not time < _MAX_TIME:
        raise BadLine(
            "not a number", f"{column!r} is {_show(value)}, not a time in the format's unit"
        )
    return time


def _least_1(row: dict[str, Any], column: str, reason: str) -> int:
    """Read a count of at least 1; lines with 0 are counted under `reason`."""
    count = _count(row.get(column), column)
    if not count:
        raise BadLine(reason, f"{column!r} is 0", "give it at least 1")
    return count


def _count(value: Any, column: str) -> int:
    # Nearly every value of a long CSV file.
    if isinstance(value, str) and len(value) < 10 and value.isdecimal():
        return int(value)
    number = _number(value, column)
    if number < 0:
        raise BadLine("negative number", f"{column!r} is {_show(value)}, below 0")
    # Tables that once had gaps write 128.0.
    if not number <= MAX_TOKENS or number != int(number):
        raise BadLine("not a number", f"{column!r} is {_show(value)}, not a whole number of tokens")
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
    problem = (
        f"no {column!r}" if value in (None, "") else f"{column!r} is {_show(value)}, not a number"
    )
    raise BadLine("not a number", problem)
