"""Reads files of agents' sessions: what their lines hold becomes RawSession, calls in order with
their parents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from loadstone.core.errors import InputError
from loadstone.workload.agent_formats.messages import MessagesReader
from loadstone.workload.agent_formats.mlperf import MlperfReader
from loadstone.workload.agent_formats.otel import OtelReader
from loadstone.workload.agent_formats.rows import RowsReader
from loadstone.workload.agent_formats.session import Reader
from loadstone.workload.agent_formats.weka import WekaReader
from loadstone.workload.files import describe_broken, first_line, lines

GIVE = (
    "give sessions of agents as a Weka trace, Mooncake or Dynamo rows with session_id, MLPerf's"
    " agentic rows, OpenAI messages with tools, or OpenTelemetry GenAI spans, as JSON or JSONL in"
    " UTF-8"
)
_MOST_BYTES = 1 << 31
READERS: dict[str, type[Reader]] = {
    "weka": WekaReader,
    "otel": OtelReader,
    "mlperf": MlperfReader,
    "messages": MessagesReader,
    "rows": RowsReader,
}
_KEYS = (
    ("weka", {"requests", "block_size"}),
    ("otel", {"spans"}),
    ("otel", {"resourceSpans"}),
    ("mlperf", {"conversation_id", "role"}),
    ("rows", {"session_id", "messages"}),
    ("rows", {"input_length", "output_length"}),
    ("rows", {"input_tokens", "output_tokens"}),
    ("messages", {"messages"}),
)


def documents(path: Path, stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the JSON objects of a file, with their line or, of an array, their place: one to a
    line, in an array, or one that is the whole file. Raises InputError.
    """
    line, head = first_line(path, stream, GIVE)
    text = head.strip()
    if not text:
        raise InputError(f"{path}: empty; {GIVE}")
    if text[:1] == b"{" and _is_whole(text):
        for number, data in enumerate(lines(path, stream), 1):
            if data.strip():
                yield number, data
        return
    if text[:1] not in (b"{", b"["):
        raise InputError(f"{path}, line {line}: no JSON object; {GIVE}")
    data = stream.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise InputError(
            f"{path}: over {_MOST_BYTES:,} bytes in one JSON value; give JSONL, an object on each"
            " line"
        )
    if text[:1] == b"{":
        yield line, data
        return
    try:
        elements = msgspec.json.decode(data, type=list[msgspec.Raw])
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: {describe_broken(error)}; correct it, or give JSONL") from None
    yield from ((number, bytes(element)) for number, element in enumerate(elements, 1))


def _is_whole(text: bytes) -> bool:
    """Tell whether a line that begins an object is one, or is meant to be: a file of one
    pretty-printed object has its first line end in the middle.
    """
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (ValueError, RecursionError):
        return not text.rstrip(b"\r\n").endswith((b"{", b"[", b","))
    return True


def format_of(path: Path, line: int, value: bytes) -> str:
    """Tell the format by the keys of the first object. Raises InputError where it is none."""
    try:
        keys = set(msgspec.json.decode(value, type=dict[str, msgspec.Raw]))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}, line {line}: {describe_broken(error)}; the first object determines the format"
        ) from None
    for name, needed in _KEYS:
        if needed <= keys:
            return name
    raise InputError(
        f"{path}, line {line}: not an agents' session, but {', '.join(sorted(keys)[:12])}; {GIVE}"
    )
