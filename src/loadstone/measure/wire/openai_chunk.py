"""One JSON object of the OpenAI dialect, a stream's chunk or a whole answer, as far as it is read here. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from loadstone.measure.wire.tolerant import NO_RAW, convert, present, raw, text


class CachedDetails(msgspec.Struct):
    cached_tokens: float | None = None


class ReasoningDetails(msgspec.Struct):
    reasoning_tokens: float | None = None


class Usage(msgspec.Struct):
    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    prompt_tokens_details: CachedDetails | None = None
    completion_tokens_details: ReasoningDetails | None = None


class Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: msgspec.Raw = NO_RAW
    function_call: msgspec.Raw = NO_RAW

    def carries_output(self) -> bool:
        """Reasoning, tool calls and refusals are output as much as content is; a role alone is not."""
        return bool(
            self.content
            or self.reasoning_content
            or self.reasoning
            or self.refusal
            or present(self.tool_calls)
            or present(self.function_call)
        )


class Choice(msgspec.Struct):
    index: float | None = None
    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None


class Timings(msgspec.Struct):
    prompt_ms: float | None = None
    predicted_ms: float | None = None


class Chunk(msgspec.Struct):
    choices: list[Choice] | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    model: str | None = None
    error: msgspec.Raw = NO_RAW
    message: msgspec.Raw = NO_RAW


class _WholeChoice(Choice):
    """What a chunk calls its delta, a whole answer calls its message."""

    delta: Delta | None = msgspec.field(default=None, name="message")


class _WholeChunk(Chunk):
    choices: list[_WholeChoice] | None = None  # type: ignore[assignment]


Decode = Callable[[bytes], Chunk]
decode_chunk: Decode = msgspec.json.Decoder(Chunk).decode
decode_whole: Decode = msgspec.json.Decoder(_WholeChunk).decode
"""Strict decoders: they raise one of UNREADABLE."""


def tolerated(fields: dict[str, Any], *, whole: bool) -> Chunk:
    """An object where a field has an odd type or the text is no valid UTF-8."""
    delta = "message" if whole else "delta"
    choices = fields.get("choices")
    chunk = Chunk(
        choices=[_choice(c, delta) for c in choices if isinstance(c, dict)] if isinstance(choices, list) else None,
        usage=convert(fields.get("usage"), Usage),
        timings=convert(fields.get("timings"), Timings),
        model=text(fields.get("model")),
    )
    for name in ("error", "message"):
        if fields.get(name):
            setattr(chunk, name, raw(fields[name]))
    return chunk


def _choice(fields: dict[str, Any], delta_name: str) -> Choice:
    delta = fields.get(delta_name)
    finish = fields.get("finish_reason")
    return Choice(
        index=index if isinstance(index := fields.get("index"), int | float) else None,
        text=text(fields.get("text")),
        delta=Delta(
            content=text(delta.get("content")),
            reasoning_content=text(delta.get("reasoning_content")),
            reasoning=text(delta.get("reasoning")),
            refusal=text(delta.get("refusal")),
            tool_calls=raw(delta.get("tool_calls")),
            function_call=raw(delta.get("function_call")),
        )
        if isinstance(delta, dict)
        else None,
        # SGLang's older servers send an object, {"type": "length", …}.
        finish_reason=text(finish.get("type") if isinstance(finish, dict) else finish),
    )
