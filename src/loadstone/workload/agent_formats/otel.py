"""Reads OpenTelemetry's GenAI spans."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np

from loadstone.core.groups import by_key
from loadstone.workload.agent_formats.messages import Message, fields_of, text_of
from loadstone.workload.agent_formats.session import (
    MAX_SECONDS,
    NO_BLOCKS,
    RawCall,
    RawSession,
    grow,
)
from loadstone.workload.files import BadLine, RequestFile, decode
from loadstone.workload.prompts import text_tokens

_NO_CALLS = ("execute_tool", "embeddings", "invoke_agent")
"""Operations that ask no model for text."""
_ANSWERS = ("gen_ai.output.messages", "gen_ai.output.text", "gen_ai.output", "gen_ai.completion")
_PROMPT_COUNTS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_COUNTS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_UNKNOWN_OUTPUT = 1000
"""Tokens of a span's answer of which neither the length nor the text is known, nor a limit."""


def read_otel(file: RequestFile, dropped: Counter[str]) -> Iterator[RawSession]:
    """Read GenAI spans: a document has all spans of a session, or of several, by trace_id."""

    def read(data: bytes) -> list[RawSession]:
        spans = [
            span
            for span in _spans(decode(data, dict[str, Any]))
            if isinstance(span, dict) and isinstance(span.get("attributes"), dict)
        ]
        traces = by_key((str(span.get("trace_id") or span.get("traceId")), span) for span in spans)
        timed = [
            [call for call in (_call_of(span, dropped) for span in members) if call is not None]
            for members in traces.values()
        ]
        if not any(timed):
            raise BadLine(
                "no calls",
                "no span with gen_ai.input.messages, nor with gen_ai.usage.input_tokens",
                "record what is question, or leave it out",
            )
        return [_session_of_spans(calls) for calls in timed if calls]

    for _, sessions in file.read(read):
        yield from sessions


def _call_of(span: dict[str, Any], dropped: Counter[str]) -> tuple[float, float, RawCall] | None:
    """Make a call of a span, with its times; None where it is none."""
    facts = span["attributes"]
    if facts.get("gen_ai.operation.name") in _NO_CALLS:
        return None
    question = _first_of(facts, ("gen_ai.input.messages", "gen_ai.prompt")) or []
    messages = [text_of(message, dropped) for message in _span_messages(question, "user")]
    length = _first_of(facts, _PROMPT_COUNTS)
    if not messages and length is None:
        return None
    counted = _first_of(facts, _COUNTS)
    answer = next((facts[name] for name in _ANSWERS if facts.get(name)), None)
    if counted is None and answer is not None:
        texts = [text_of(part, Counter()) for part in _span_messages(answer, "assistant")]
        counted = text_tokens("".join(texts))
    if counted is None:
        counted = facts.get("gen_ai.request.max_tokens") or _UNKNOWN_OUTPUT
    tools = _decoded(facts.get("gen_ai.tool.definitions"))
    fields = fields_of({"tools": tools if isinstance(tools, list) else None})
    start, end = _seconds(span, "start"), _seconds(span, "end")
    tokens = max(1, _whole(counted, "output tokens"))
    size = 1 if length is None else max(1, _whole(length, "input tokens"))
    call = RawCall((), False, 0.0, size, tokens, NO_BLOCKS, messages, fields)
    return start, max(start, end), call


def _first_of(facts: dict[str, Any], names: Sequence[str]) -> Any:
    """Return the value under the first of these names that is there."""
    return next((facts[name] for name in names if name in facts), None)


def _session_of_spans(timed: list[tuple[float, float, RawCall]]) -> RawSession:
    """Link calls by their times: each follows all that had ended by then, but those that these
    followed."""
    timed.sort(key=lambda call: call[:2])
    starts, ends = (np.array([call[column] for call in timed]) for column in (0, 1))
    calls = [timed[0][2]]
    for place, (start, _, call) in enumerate(timed[1:], 1):
        ended = np.flatnonzero(ends[:place] <= start)
        parents = ended[ends[ended] > starts[ended].max(initial=-math.inf)]
        if not len(parents):
            # Calls that took no time, or none that had ended: then it follows the one before it.
            parents = ended[-1:] if len(ended) else np.array([place - 1])
        sent = not len(ended)
        since = float((starts if sent else ends)[parents].max())
        calls.append(
            call._replace(
                parents=tuple(parents.tolist()), sent=sent, delay_s=max(0.0, start - since)
            )
        )
    if all(call.messages for call in calls):
        return RawSession(calls, 0)
    # Of spans without texts, all that was said before stands in front.
    lengths = [0, *(call.input_tokens + call.output_tokens for call in calls)]
    return grow([call._replace(messages=()) for call in calls], lengths[:-1])


def _spans(item: dict[str, Any]) -> Iterator[Any]:
    """Yield the spans of a document, OTLP's with its attributes as plain values."""
    if isinstance(item.get("spans"), list):
        yield from item["spans"]
    for resource in _objects(item, "resourceSpans"):
        for scope in _objects(resource, "scopeSpans"):
            for span in _objects(scope, "spans"):
                named = _objects(span, "attributes")
                facts = {str(fact.get("key")): _plain(fact.get("value")) for fact in named}
                yield {**span, "attributes": facts}


def _objects(item: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a list; nothing where there is no list."""
    values = item.get(name)
    for value in values if isinstance(values, list) else ():
        if isinstance(value, dict):
            yield value


def _plain(value: Any) -> Any:
    return next(iter(value.values()), None) if isinstance(value, dict) else value


def _decoded(value: Any) -> Any:
    """Decode what is JSON as text; text that is none stays as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return msgspec.json.decode(value)
        except (ValueError, RecursionError):
            return value
    return value


def _span_messages(value: Any, role: str) -> list[Message]:
    """Read messages of a span: OpenAI's, or with the semantic conventions' parts, or a text of this
    `role`."""
    value = _decoded(value)
    if isinstance(value, str):
        return [Message(role, value)]
    found: list[Message] = []
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, dict):
            raise BadLine("not as the format has it", "a message that is no object")
        parts = item.get("parts")
        found += (
            _of_parts(item, parts)
            if isinstance(parts, list)
            else [_convert({"role": role, **item})]
        )
    return found


def _convert(item: dict[str, Any]) -> Message:
    try:
        return msgspec.convert(item, Message)
    except msgspec.ValidationError as error:
        raise BadLine("not as the format has it", str(error)) from None


def _of_parts(item: dict[str, Any], parts: list[Any]) -> list[Message]:
    """Make OpenAI's messages of one with parts: a tool's results are messages of their own."""
    message = Message(str(item.get("role") or "user"))
    results: list[Message] = []
    texts: list[str] = []
    unknown: list[dict[str, Any]] = []
    for part in parts:
        if not isinstance(part, dict):
            continue
        kind = part.get("type")
        if kind == "text":
            texts.append(str(part.get("content") or part.get("text") or ""))
        elif kind in ("reasoning", "thinking"):
            message.reasoning_content = (message.reasoning_content or "") + str(
                part.get("content") or ""
            )
        elif kind == "tool_call":
            arguments = part.get("arguments")
            text = (
                arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
            )
            function = {"name": part.get("name"), "arguments": text}
            call = {"id": part.get("id"), "type": "function", "function": function}
            message.tool_calls = [*(message.tool_calls or ()), call]
        elif kind == "tool_call_response":
            result = part.get("response", part.get("result"))
            text = result if isinstance(result, str) else msgspec.json.encode(result).decode()
            results.append(Message("tool", text, tool_call_id=str(part.get("id"))))
        else:
            unknown.append({"type": str(kind)})
    message.content = "\n".join(texts)
    if unknown:
        message.content = [*({"type": "text", "text": text} for text in texts), *unknown]
    if not texts and message.tool_calls:
        message.content = None
    alone = results and not texts and not unknown and not message.tool_calls
    return results if alone else [message, *results]


def _seconds(span: dict[str, Any], which: str) -> float:
    """Read a span's time. Raises BadLine."""
    nanos = span.get(f"{which}TimeUnixNano")
    try:
        value = int(nanos) / 1e9 if nanos is not None else span.get(f"{which}_time")
        if not isinstance(value, int | float):
            time = datetime.fromisoformat(str(value))
            value = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.inf
    if abs(seconds) > MAX_SECONDS:
        raise BadLine("not a number", f"no time in a span's {which}_time", "give it as ISO 8601")
    return seconds


def _whole(value: Any, what: str) -> int:
    """Read a count that may be text, as OTLP's integers are. Raises BadLine."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < 2**31:
        raise BadLine("not a number", f"{what} are {str(value)[:40]!r}", "give a whole number")
    return number
