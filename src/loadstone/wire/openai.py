"""The OpenAI dialect, `/v1/completions` and `/v1/chat/completions`: request bodies out, stream events in. No I/O.

What engines really send differs from the specification; the differences seen (recorded bytes of vLLM, llama.cpp,
llama-cpp-python, transformers, mlx-lm, MAX) decide what is tolerated here:
usage on every event, on the last choice, in an event without choices, or never; `[DONE]` or none; role-only first
deltas, with or without the first token; empty deltas that stand for a token (vLLM: special tokens, half a
character) or for none; an `error` object after a 200; `choices: null`; numbers as `1.0`; invalid UTF-8.
"""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any, Literal, TypeVar

import msgspec

from loadstone.wire.sse import SseDecoder, SseError
from loadstone.wire.template import MAX_COUNT, Template, learn

Endpoint = Literal["completions", "chat"]

PATHS: dict[Endpoint, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}

_T = TypeVar("_T", bound=msgspec.Struct)

_DONE = b"[DONE]"
_NO_RAW = msgspec.Raw(b"")
_NULLISH = (b"null", b'""', b"[]", b"{}", b"false", b"0")
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_MAX_MS = 1e12
_REASON_LENGTH = 40


def _present(raw: msgspec.Raw) -> bool:
    """The field was sent and says something."""
    return raw is not _NO_RAW and bytes(raw) not in _NULLISH


class _CachedDetails(msgspec.Struct):
    cached_tokens: float | None = None


class _ReasoningDetails(msgspec.Struct):
    reasoning_tokens: float | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    prompt_tokens_details: _CachedDetails | None = None
    completion_tokens_details: _ReasoningDetails | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: msgspec.Raw = _NO_RAW
    function_call: msgspec.Raw = _NO_RAW

    def carries_output(self) -> bool:
        """Reasoning, tool calls and refusals are output as much as content is; a role alone is not."""
        return bool(
            self.content
            or self.reasoning_content
            or self.reasoning
            or self.refusal
            or _present(self.tool_calls)
            or _present(self.function_call)
        )


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Timings(msgspec.Struct):
    prompt_ms: float | None = None
    predicted_ms: float | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    timings: _Timings | None = None
    error: msgspec.Raw = _NO_RAW
    message: msgspec.Raw = _NO_RAW


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class Answer:
    """Everything one streamed answer says, folded event by event: feed it the body's bytes, in pieces of any size.

    `feed` returns how many output events the piece completed; the caller knows when the piece arrived.
    running_tokens   the server's completion_tokens at each output event, as long as it sends it on all of them
    finish_reason, done ([DONE] seen), error (the server's, or why the stream cannot be read), usage counts:
    input_tokens, output_tokens, cached_tokens, reasoning_tokens; server_prefill_s, server_decode_s (llama.cpp).
    """

    __slots__ = (
        "_last_running",
        "_plain_usage",
        "_sse",
        "cached_tokens",
        "done",
        "error",
        "events",
        "finish_reason",
        "input_tokens",
        "output_tokens",
        "reasoning_tokens",
        "running",
        "running_tokens",
        "server_decode_s",
        "server_prefill_s",
    )

    def __init__(self) -> None:
        self._sse = SseDecoder()
        self._last_running = 0
        self._plain_usage: _Usage | None = None  # of the event that the template in use was made from
        self.events = 0
        self.running = True
        self.running_tokens: list[int] = []
        self.finish_reason: str | None = None
        self.done = False
        self.error: str | None = None
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.reasoning_tokens: int | None = None
        self.server_prefill_s: float | None = None
        self.server_decode_s: float | None = None

    def feed(self, piece: bytes) -> int:
        """Output events completed by `piece`. Never raises: what cannot be read becomes `error`."""
        try:
            payloads = self._sse.feed(piece)
        except SseError as error:
            self.error = self.error or str(error)
            return 0
        before = self.events
        for payload in payloads:
            self._fold(payload)
        return self.events - before

    def template(self, body: bytes) -> Template | None:
        """A template for the chunks to come, if `body` was one, held one whole event, and that a plain one."""
        if not self._sse.at_rest:
            return None
        try:
            chunk = _decode_chunk(body[len(b"data: ") :])
        except _UNREADABLE:
            return None
        choices, usage = chunk.choices, chunk.usage
        if choices is None or len(choices) != 1 or choices[0].finish_reason or chunk.timings is not None:
            return None
        if chunk.error is not _NO_RAW or chunk.message is not _NO_RAW:
            return None
        delta = choices[0].delta or _Delta()
        text = choices[0].text or delta.content or delta.reasoning_content or delta.reasoning
        counted = usage is not None and _count(usage.completion_tokens) is not None
        # Counted events where others were not, or the reverse, change what counts mean: those are read in full.
        if not text or counted != self.running or (usage is not None and not counted):
            return None
        template = learn(body, text, counted=counted, sse=self._sse)
        if template is not None:
            self._plain_usage = usage
        return template

    def take_plain(self, events: int, counts: list[int]) -> None:
        """Events that the newest template recognised, with their running counts if it counts."""
        self.events += events
        if self._plain_usage is None or not counts:
            return
        # What an event between said of the rest of usage, these say again as the template has it.
        self._take_details(self._plain_usage)
        self.output_tokens = counts[-1]
        if counts[0] < self._last_running or counts != sorted(counts):
            counts = list(accumulate(counts, max, initial=self._last_running))[1:]
        if self.running:
            self.running_tokens += counts
        self._last_running = counts[-1]

    def finish(self) -> int:
        """The stream has ended. Output events of a last event that lacked its blank line."""
        before = self.events
        try:
            payloads = self._sse.finish()
        except SseError as error:
            self.error = self.error or str(error)
            return 0
        for payload in payloads:
            self._fold(payload)
        return self.events - before

    def _fold(self, payload: bytes) -> None:
        try:
            chunk = _decode_chunk(payload)
        except _UNREADABLE:
            said = payload.strip()
            if said == _DONE:
                self.done = True
                return
            if not said:
                return  # an empty event keeps a connection alive
            tolerant = _decode_tolerantly(payload)
            if tolerant is None:
                self.error = self.error or f"stream event is no JSON object: {excerpt(payload)}"
                return
            chunk = tolerant
        output = False
        if chunk.choices:
            for choice in chunk.choices:
                if choice.text or ((delta := choice.delta) is not None and delta.carries_output()):
                    output = True
                if choice.finish_reason:
                    self.finish_reason = excerpt(choice.finish_reason.encode("utf-8", "replace"), _REASON_LENGTH)
        if chunk.usage is not None:
            output = self._take_usage(chunk.usage, output, bool(chunk.choices))
        elif output:
            self.running = False
        if output:
            self.events += 1
            if self.running:
                self.running_tokens.append(self._last_running)
        if chunk.timings is not None:
            self._take_timings(chunk.timings)
        if chunk.error is not _NO_RAW and _present(chunk.error):
            self.error = self.error or error_text(bytes(chunk.error))
        elif chunk.message is not _NO_RAW and _present(chunk.message) and not chunk.choices:
            self.error = self.error or error_text(payload)

    def _take_usage(self, usage: _Usage, output: bool, has_choices: bool) -> bool:
        """Keep the newest counts. True if the event stands for output: text, or a running count that grew."""
        self._take_details(usage)
        # As `_count`, without the call: engines may send this on every event.
        stated = usage.completion_tokens
        if stated is None or not 0 <= stated <= MAX_COUNT:
            self.running = self.running and not output
            return output
        count = int(stated)
        self.output_tokens = count
        grew = count > self._last_running
        if grew:
            self._last_running = count
        if grew and self.running and not output and has_choices:
            # A token without text. A first count above one, without text, is a total that comes at the end.
            output = self.events > 0 or count == 1
        return output

    def _take_details(self, usage: _Usage) -> None:
        """Everything in `usage` but the count of output tokens."""
        stated = usage.prompt_tokens
        if stated is not None and 0 <= stated <= MAX_COUNT:
            self.input_tokens = int(stated)
        cached = usage.prompt_tokens_details
        if cached is not None and (count := _count(cached.cached_tokens)) is not None:
            self.cached_tokens = count
        thinking = usage.completion_tokens_details
        if thinking is not None and (count := _count(thinking.reasoning_tokens)) is not None:
            self.reasoning_tokens = count

    def _take_timings(self, timings: _Timings) -> None:
        if timings.prompt_ms is not None and 0 <= timings.prompt_ms <= _MAX_MS:
            self.server_prefill_s = timings.prompt_ms / 1e3
        if timings.predicted_ms is not None and 0 <= timings.predicted_ms <= _MAX_MS:
            self.server_decode_s = timings.predicted_ms / 1e3


def _count(value: float | None) -> int | None:
    """A count of tokens; None for what cannot be one (negative, huge, NaN, which compares to nothing)."""
    return int(value) if value is not None and 0 <= value <= MAX_COUNT else None


def _decode_tolerantly(payload: bytes) -> _Chunk | None:
    """The same event where a field has an odd type or the text is no valid UTF-8; None if it is no JSON object."""
    try:
        # Python's decoder takes NaN and Infinity, which some engines print.
        fields = json.loads(payload.decode("utf-8", "replace"))
        return _chunk(fields) if isinstance(fields, dict) else None
    except (ValueError, RecursionError):
        return None


def _chunk(fields: dict[str, Any]) -> _Chunk:
    choices = fields.get("choices")
    chunk = _Chunk(
        choices=[_choice(c) for c in choices if isinstance(c, dict)] if isinstance(choices, list) else None,
        usage=_convert(fields.get("usage"), _Usage),
        timings=_convert(fields.get("timings"), _Timings),
    )
    for name in ("error", "message"):
        if fields.get(name):
            setattr(chunk, name, msgspec.Raw(json.dumps(fields[name]).encode()))
    return chunk


def _choice(fields: dict[str, Any]) -> _Choice:
    delta = fields.get("delta")
    finish = fields.get("finish_reason")
    return _Choice(
        text=_text(fields.get("text")),
        delta=_Delta(
            content=_text(delta.get("content")),
            reasoning_content=_text(delta.get("reasoning_content")),
            reasoning=_text(delta.get("reasoning")),
            refusal=_text(delta.get("refusal")),
            tool_calls=msgspec.Raw(json.dumps(delta.get("tool_calls")).encode()),
            function_call=msgspec.Raw(json.dumps(delta.get("function_call")).encode()),
        )
        if isinstance(delta, dict)
        else None,
        # SGLang's older servers send an object, {"type": "length", …}.
        finish_reason=_text(finish.get("type") if isinstance(finish, dict) else finish),
    )


def _text(value: Any) -> str | None:
    if not value or isinstance(value, str):
        return value or None
    return json.dumps(value)


def _convert(value: Any, kind: type[_T]) -> _T | None:
    """A struct from a dict, leaving out fields that have another type than expected."""
    if not isinstance(value, dict):
        return None
    fields = {}
    for field in msgspec.structs.fields(kind):
        try:
            fields[field.name] = msgspec.convert(value.get(field.name), field.type, strict=False)
        except (msgspec.ValidationError, ValueError, OverflowError):
            continue
    return kind(**fields)


def error_text(body: bytes) -> str:
    """One printable line from an error body: its message where it is an OpenAI error object, else its beginning."""
    try:
        error = json.loads(body.decode("utf-8-sig", "replace"))
        for _ in range(2):
            if isinstance(error, dict):
                error = error.get("error") or error.get("message") or error.get("detail") or error
        said = error if isinstance(error, str) else json.dumps(error, ensure_ascii=False)
    except (ValueError, RecursionError):
        return excerpt(body)
    return excerpt(said.encode("utf-8", "replace"))


def excerpt(body: bytes, limit: int = 200) -> str:
    """The beginning of engine output, made harmless for terminals and logs: one line, printable, short."""
    text = " ".join(body[: 4 * limit].decode("utf-8", "replace").split())
    text = "".join(character if character.isprintable() else "\ufffd" for character in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


class RequestBody:
    """Writes request bodies of one run: everything but prompt and length is encoded once.

    `fields` go into each body as they are (model, sampling, stream options, extra body). `exact_with` names the
    field that repeats the length as a minimum where the engine takes it (`min_tokens`), or None.
    """

    def __init__(self, endpoint: Endpoint, fields: dict[str, Any], exact_with: str | None = None) -> None:
        self._head = msgspec.json.encode(fields)[:-1] + b"," if fields else b"{"
        self._length = b'"max_tokens":%d,'
        if exact_with is not None:
            self._length += b'"%b":%%d,' % exact_with.encode()
        self._lengths = 2 if exact_with is not None else 1
        self._prompt = b'"messages":' if endpoint == "chat" else b'"prompt":'

    def render(self, prompt: bytes, output_tokens: int) -> bytes:
        """The body for a prompt already in JSON (a string, an array of token ids, or an array of messages)."""
        return b"".join((self._head, self._length % ((output_tokens,) * self._lengths), self._prompt, prompt, b"}"))
