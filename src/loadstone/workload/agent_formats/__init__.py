"""Reads files of agents' sessions: what their lines hold becomes RawSession, calls in order with
their parents."""

from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from loadstone.core.errors import InputError
from loadstone.workload.agent_formats.messages import read_messages
from loadstone.workload.agent_formats.mlperf import read_mlperf
from loadstone.workload.agent_formats.otel import read_otel
from loadstone.workload.agent_formats.rows import read_rows
from loadstone.workload.agent_formats.session import RawSession
from loadstone.workload.agent_formats.tracelab import read_tracelab
from loadstone.workload.agent_formats.weka import read_weka
from loadstone.workload.files import BadLine, RequestFile, decode

GIVE = (
    "give sessions of agents as a Weka trace, Mooncake or Dynamo rows with session_id, MLPerf's"
    " agentic rows, OpenAI messages with tools, or OpenTelemetry GenAI spans, as JSON or JSONL in"
    " UTF-8"
)
READERS: dict[str, Callable[[RequestFile, Counter[str]], Iterator[RawSession]]] = {
    "weka": read_weka,
    "otel": read_otel,
    "mlperf": read_mlperf,
    "messages": read_messages,
    "rows": read_rows,
    "tracelab": read_tracelab,
}
"""By format: yields the sessions of a file; counts, by name, what cannot be sent."""
_KEYS = (
    ("weka", {"requests", "block_size"}),
    ("otel", {"spans"}),
    ("otel", {"resourceSpans"}),
    ("mlperf", {"conversation_id", "role"}),
    ("tracelab", {"session_id", "prefix_tokens", "newly_append_tokens"}),
    ("rows", {"session_id", "messages"}),
    ("rows", {"schema", "version"}),
    ("rows", {"input_length", "output_length"}),
    ("rows", {"input_tokens", "output_tokens"}),
    ("messages", {"messages"}),
)


def format_of(file: RequestFile) -> str:
    """Tell the format by the keys of the first object. Raises InputError where it is none."""
    if file.head and file.kind == "text":
        file.refuse(file.first, f"no JSON object; {GIVE}")
    piece = file.peek()
    if piece is None:
        raise InputError(f"{file.path}: empty; {GIVE}")
    number, data = piece
    try:
        keys = set(decode(data, dict[str, msgspec.Raw]))
    except BadLine as bad:
        file.refuse(number, f"{bad}; the first object determines the format")
    found = next((name for name, needed in _KEYS if needed <= keys), None)
    if found is None:
        file.refuse(number, f"not an agents' session, but {', '.join(sorted(keys)[:12])}; {GIVE}")
    return found
