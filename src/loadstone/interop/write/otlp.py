"""Writes a run as OTLP: spans of its sessions and requests, with the GenAI names of OpenTelemetry's
semantic conventions, from the stamps of its records.

Times are the run's monotonic ones, from its wall time at 0. Spans of a request begin where it was
sent; what its engine did is known where the engine said so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from loadstone.analyse.summary import summary_of
from loadstone.core import run_folder
from loadstone.core.errors import TargetError
from loadstone.core.extras import require
from loadstone.core.groups import by_key
from loadstone.core.plan import Plan
from loadstone.core.record import RunInfo
from loadstone.core.text import error_text
from loadstone.core.trace_ids import name_span, name_trace
from loadstone.core.version import __version__

_COLUMNS = (
    *("request_id", "cell", "phase", "session_id", "turn", "intended_s", "sent_s", "end_s"),
    *("arrival_s", "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"),
    *("finish_reason", "status", "error", "server_prefill_s", "replica"),
)
_OPERATIONS = {
    "completions": "text_completion",
    "sglang": "text_completion",
    "triton": "text_completion",
    "embeddings": "embeddings",
    "rerank": "rerank",
    "score": "rerank",
}
"""By endpoint; of all others it is chat."""
_CLIENT, _INTERNAL = 3, 1
"""Kinds of spans."""
_ERROR = 2
_SPANS_AT_ONCE = 2000
_TIMEOUT_S = 60.0
Span = dict[str, Any]


def document(folder: Path, info: RunInfo) -> bytes:
    """Write all spans of a run as OTLP's JSON. Raises InputError."""
    return msgspec.json.encode(_wrap(_spans(folder, info), info))


def send(folder: Path, info: RunInfo, url: str) -> None:
    """Send the spans to a collector's OTLP/HTTP endpoint. Raises InputError, TargetError."""
    require("opentelemetry", "otlp", f"--output {url}")
    from google.protobuf.json_format import ParseDict
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceRequest,
    )

    if urlsplit(url).path in ("", "/"):
        url = url.rstrip("/") + "/v1/traces"
    spans = list(_spans(folder, info))
    headers = {"Content-Type": "application/x-protobuf"}
    for first in range(0, len(spans), _SPANS_AT_ONCE):
        part = _wrap(map(_in_base64, spans[first : first + _SPANS_AT_ONCE]), info)
        body = ParseDict(part, ExportTraceServiceRequest()).SerializeToString()
        try:
            answer = httpx.post(url, content=body, headers=headers, timeout=_TIMEOUT_S)
        except httpx.HTTPError as error:
            raise TargetError(
                f"{url}: no collector takes spans there ({error}); give its OTLP/HTTP address"
            ) from error
        if not answer.is_success:
            reason = error_text(answer.content)
            raise TargetError(
                f"{url}: HTTP {answer.status_code}: {reason}; give its OTLP/HTTP address"
            )


def _in_base64(span: Span) -> Span:
    """Return a span as protobuf's JSON has it: its ids are bytes there, not hex digits."""
    import base64

    ids = ("traceId", "spanId", "parentSpanId")
    return span | {
        name: base64.b64encode(bytes.fromhex(span[name])).decode() for name in ids if name in span
    }


def _wrap(spans: Any, info: RunInfo) -> dict[str, Any]:
    resource = {"service.name": "loadstone", "loadstone.run": info.run_id}
    scope = {"name": "loadstone", "version": __version__}
    scoped = [{"scope": scope, "spans": list(spans)}]
    return {"resourceSpans": [{"resource": {"attributes": _facts(resource)}, "scopeSpans": scoped}]}


def _spans(folder: Path, info: RunInfo) -> Iterator[Span]:
    """Yield the spans of all requests that were sent, session by session."""
    plan, writer = run_folder.read_plan(folder), _Writer(info)
    verdicts = (cell.verdict.trusted for cell in summary_of(folder).cells)
    for cell in range(len(info.cells)):
        rows = run_folder.read_columns(folder, _COLUMNS, cell).to_pylist()
        sent = [row for row in rows if row["sent_s"] is not None and row["end_s"] is not None]
        trusted = next(verdicts, None) if sent else None
        sessions = by_key((row["session_id"] or row["request_id"], row) for row in sent)
        for calls in sessions.values():
            calls.sort(key=lambda row: row["sent_s"])
            if calls[0]["session_id"] is not None:
                yield from writer.session(calls)
            for row in calls:
                yield from writer.request(row, _asked(plan, row), trusted)


def _asked(plan: Plan, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the plan knows of a request: its length, and its prompt where that is text."""
    index = int(row["request_id"].partition("-")[2])
    request = plan.request(row["cell"], index)
    attributes: dict[str, Any] = {"gen_ai.request.max_tokens": request.output_tokens}
    of_class = plan.classes[request.traffic_class] if plan.classes else None
    if of_class is not None:
        attributes["loadstone.class"] = of_class.name
        if of_class.priority is not None:
            attributes["loadstone.priority"] = of_class.priority
        if of_class.model is not None:
            attributes["gen_ai.request.model"] = of_class.model
    messages = [msgspec.json.decode(message) for message in request.messages]
    if request.prompt is not None and not messages:
        decoded = msgspec.json.decode(request.prompt) if request.chat else request.prompt
        listed = decoded["messages"] if isinstance(decoded, dict) else decoded
        messages = [{"role": "user", "content": listed}] if isinstance(listed, str) else listed
    if messages:
        attributes["gen_ai.input.messages"] = msgspec.json.encode(messages).decode()
    return attributes


class _Writer:
    """Writes the spans of a run."""

    def __init__(self, info: RunInfo) -> None:
        self._run = info.run_id
        began = datetime.fromisoformat(info.created).timestamp()
        self._origin_ns = info.origin_unix_ns or round(began * 1e9)
        target = info.target
        endpoint = target.endpoint if target is not None else "chat"
        self._operation = _OPERATIONS.get(endpoint, "chat")
        self._model = target.model if target is not None else "unknown"
        self._urls = [] if target is None else target.urls or [target.url]
        self._shared = {
            "gen_ai.operation.name": self._operation,
            "gen_ai.provider.name": (target.engine if target is not None else None) or "_OTHER",
            "gen_ai.request.model": self._model,
            "gen_ai.request.stream": info.streams,
            "loadstone.run": info.run_id,
        }

    def session(self, calls: list[dict[str, Any]]) -> Iterator[Span]:
        """Write the span of a session, and of its pauses, in which tools work or a user thinks."""
        first, end_s = calls[0], max(row["end_s"] for row in calls)
        facts = {"gen_ai.operation.name": "invoke_agent"}
        facts["gen_ai.conversation.id"] = first["session_id"]
        name = f"session {first['session_id']}"
        yield self._span(first, name, "invoke_agent", (first["sent_s"], end_s), facts, parent=None)
        over_s = first["end_s"]
        for row in calls[1:]:
            if row["sent_s"] > over_s:
                span_name, facts = (
                    f"pause {row['request_id']}",
                    {"gen_ai.operation.name": "execute_tool"},
                )
                yield self._span(
                    row, span_name, "execute_tool", (over_s, row["sent_s"]), facts, name
                )
            over_s = max(over_s, row["end_s"])

    def request(
        self, row: dict[str, Any], attributes: dict[str, Any], trusted: bool | None
    ) -> Iterator[Span]:
        """Write the span of a request, and of its parts as far as they are known."""
        sent_s, end_s, request_id = row["sent_s"], row["end_s"], row["request_id"]
        url = urlsplit(self._urls[row["replica"] or 0]) if self._urls else None
        first_s = row["arrival_s"][0] if row["arrival_s"] else None
        failed = row["status"] not in ("ok", "short")
        facts = {
            **self._shared,
            **attributes,
            "gen_ai.conversation.id": row["session_id"],
            "gen_ai.usage.input_tokens": row["input_tokens"],
            "gen_ai.usage.output_tokens": row["output_tokens"],
            "gen_ai.usage.cache_read.input_tokens": row["cached_tokens"],
            "gen_ai.usage.reasoning.output_tokens": row["reasoning_tokens"],
            "gen_ai.response.finish_reasons": row["finish_reason"] and [row["finish_reason"]],
            "gen_ai.response.time_to_first_chunk": None if first_s is None else first_s - sent_s,
            "server.address": url and url.hostname,
            "server.port": url and url.port,
            "error.type": row["status"] if failed else None,
            "loadstone.cell": row["cell"],
            "loadstone.request": request_id,
            "loadstone.phase": row["phase"],
            "loadstone.ttft_s": None if first_s is None else first_s - sent_s,
            "loadstone.sent_late_s": row["intended_s"] and sent_s - row["intended_s"],
            "loadstone.trusted": trusted,
        }
        session = row["session_id"] and f"session {row['session_id']}"
        name = f"{self._operation} {self._model}"
        span = self._span(row, request_id, name, (sent_s, end_s), facts, session, _CLIENT)
        if failed:
            span["status"] = {"code": _ERROR, "message": row["error"] or row["status"]}
        yield span
        if first_s is None:
            return
        parts = {"decode": (first_s, end_s)}
        if row["server_prefill_s"] is not None:
            begun_s = max(sent_s, first_s - row["server_prefill_s"])
            parts |= {"queue": (sent_s, begun_s), "prefill": (begun_s, first_s)}
        for part, times_s in parts.items():
            yield self._span(row, f"{part} {request_id}", part, times_s, {}, request_id)

    def _span(
        self,
        row: Mapping[str, Any],
        name_of_span: str,
        name: str,
        times_s: tuple[float, float],
        facts: Mapping[str, Any],
        parent: str | None,
        kind: int = _INTERNAL,
    ) -> Span:
        """Write a span. `name_of_span` and `parent` name it and the one that it is in."""
        start, end = (str(self._origin_ns + round(time_s * 1e9)) for time_s in times_s)
        span = {
            "traceId": name_trace(self._run, row["request_id"], row["session_id"]),
            "spanId": name_span(self._run, name_of_span),
            "name": name,
            "kind": kind,
            "startTimeUnixNano": start,
            "endTimeUnixNano": end,
            "attributes": _facts(facts),
        }
        return span if parent is None else span | {"parentSpanId": name_span(self._run, parent)}


def _facts(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Write attributes as OTLP has them; without those that are not known."""
    return [
        {"key": key, "value": _value(value)} for key, value in facts.items() if _is_known(value)
    ]


def _is_known(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def _value(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            return {"arrayValue": {"values": list(map(_value, value))}}
    return {"stringValue": str(value)}
