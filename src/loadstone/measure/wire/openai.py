"""Reads answers of the OpenAI dialect, `/v1/completions` and `/v1/chat/completions`, streamed or in
one piece. No I/O.

What engines really send differs from the specification; the differences seen (recorded bytes of
vLLM, llama.cpp, llama-cpp-python, transformers, mlx-lm, MAX) decide what is tolerated here: usage
on every event, on the last choice, in an event without choices, or never; `[DONE]` or none;
role-only first deltas, with or without the first token; empty deltas that stand for a token (vLLM:
special tokens, half a character) or for none; an `error` object after a 200; `choices: null`;
numbers as `1.0`; invalid UTF-8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

import msgspec

from loadstone.core.record import ANSWER, THINKING, TOOL_CALL
from loadstone.core.text import error_text, excerpt
from loadstone.measure.wire.answer import CHOICES, MAX_TEXT, REASON_LENGTH, Answer, read_index
from loadstone.measure.wire.drafts import read_drafts
from loadstone.measure.wire.sse import SseDecoder
from loadstone.measure.wire.template import Template, learn
from loadstone.measure.wire.tolerant import (
    MAX_COUNT,
    NO_RAW,
    UNREADABLE,
    count,
    is_present,
    load,
    load_object,
)
from loadstone.measure.wire.unlisted import find_text, find_usage


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

    def channel(self) -> int:
        """The last of its channels: reasoning, tool calls and refusals are output as much as
        content is; 0: a role alone, which is none.
        """
        if is_present(self.tool_calls) or is_present(self.function_call):
            return TOOL_CALL
        if self.refusal or (self.content and not self.content.isspace()):
            return ANSWER
        if self.reasoning_content or self.reasoning:
            return THINKING
        return _BLANK if self.content else 0


_BLANK = -1
"""White space alone: it goes with what came before, as line breaks that end the thinking do."""
_TAGS = {"<think>": "</think>", "<|channel|>analysis<|message|>": "<|end|>"}
"""Tags around thinking that a server without a reasoning parser leaves in the content, which begins
with it."""
_THINKING_FIELD = re.compile("reason|think|thought", re.IGNORECASE)


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
    """A choice of a whole answer, whose message is what a chunk calls its delta."""

    delta: Delta | None = msgspec.field(default=None, name="message")


class _WholeChunk(Chunk):
    choices: list[_WholeChoice] | None = None  # type: ignore[assignment]


Decode = Callable[[bytes], Chunk]
decode_chunk: Decode = msgspec.json.Decoder(Chunk).decode
decode_whole: Decode = msgspec.json.Decoder(_WholeChunk).decode
"""Strict decoders: they raise one of UNREADABLE."""


_FIELDS = 16
"""Unknown fields that are kept apart."""
_MAX_MS = 1e12
_NAME_LENGTH = 100
_GIVEN_UP = ("abort", "error")
"""Finish reasons of requests that vLLM and SGLang did not bring to their end."""


class OpenAIAnswer(Answer):
    """An answer of /v1/completions or /v1/chat/completions."""

    __slots__ = (
        "_apart",
        "_began_at",
        "_called",
        "_channel",
        "_closing",
        "_decode",
        "_doubted",
        "_fields",
        "_held",
        "_plain_channel",
        "_plain_in_tag",
        "_plain_number",
        "_plain_usage",
        "_tag",
        "_thought",
        "_total",
    )

    def __init__(self, *, stream: bool = True, keep_text: bool = False) -> None:
        super().__init__(stream=stream, keep_text=keep_text)
        self._decode = decode_chunk if stream else decode_whole
        self._plain_usage: Usage | None = (
            None  # of the event that the template in use was made from
        )
        self._plain_number = 0  # which of several answers that event is of
        self._apart = 0  # of several answers, tokens stated in events without choices
        self._doubted: str | None = (
            None  # by what alone the first event is output: "" by its count, or an odd field
        )
        self._fields: dict[
            str, str | None
        ] = {}  # odd fields and their last text; None: it differed, they are output
        self._began_at = 0  # the running count at the first event
        self._thought = False  # reasoning came
        self._channel = 0  # of the newest event that had one
        self._plain_channel = ANSWER  # of the events that the template in use recognises
        self._plain_in_tag = False  # it was learned between tags, where content is thinking
        self._closing: str | None = (
            None  # the tag that ends thinking within the content; None: it may begin yet
        )
        self._tag = ""  # what of the content may be the beginning of a tag
        self._held = (
            False  # the next event's text decides of what channel it is: no template takes it
        )
        self._total: int | None = None  # tokens of prompt and answer together
        self._called: list[bytes] = []  # what came of calls of tools, piece by piece

    @property
    def thought(self) -> bool:
        return self._thought

    @property
    def calls(self) -> list[dict[str, str]]:
        return join_calls(self._called)

    @property
    def unlisted(self) -> list[str]:
        return [excerpt(name, _NAME_LENGTH) for name, last in self._fields.items() if last is None]

    @property
    def tokens(self) -> tuple[int | None, int | None]:
        """The counts as they are to be read: with reasoning in the server's count or beside it, as
        it came or not."""
        tokens, thinking, events = (
            self.output_tokens,
            self.reasoning_tokens,
            self.events - self.voids,
        )
        if not (tokens and thinking and events and self.streams) or self._counts:
            return tokens, tokens
        came = (
            self._thought
            or bool(self.unlisted)
            or (self.running and 0 < self._began_at <= thinking)
        )
        beside = thinking > tokens or self._total == (self.input_tokens or 0) + tokens + thinking
        made = tokens + thinking if beside or (came and events >= tokens + thinking) else tokens
        return made, made if came or events > made - thinking + 1 else max(events, made - thinking)

    def finish(self) -> int:
        late = super().finish()
        if self._doubted:  # an unknown field that nothing followed
            self.voids, self._doubted = self.voids + 1, None
        return late

    def feed(self, piece: bytes) -> int:
        events = super().feed(piece)
        if self._held and self.streams:
            self._sse.at_rest = False
        return events

    def template(self, body: bytes) -> Template | None:
        """A template for the chunks to come, if `body` was one, held one whole event, and that a
        plain one."""
        if not self._sse.at_rest or self._keeps or not isinstance(self._sse, SseDecoder):
            return None
        try:
            chunk = decode_chunk(body[len(b"data: ") :])
        except UNREADABLE:
            return None
        choices, usage = chunk.choices, chunk.usage
        if (
            choices is None
            or len(choices) != 1
            or choices[0].finish_reason
            or chunk.timings is not None
        ):
            return None
        if chunk.error is not NO_RAW or chunk.message is not NO_RAW:
            return None
        delta = choices[0].delta or Delta()
        text = choices[0].text or delta.content or delta.reasoning_content or delta.reasoning
        counted = usage is not None
        # Counted events where others were not, or the reverse, change what counts mean: those are
        # read in full. With usage that has no count nothing is running.
        if not text or text.isspace() or counted != self.running:
            return None
        is_content = bool(choices[0].text or delta.content) and not self._closing
        if self._channel != (ANSWER if is_content else THINKING):
            return None
        if (
            chunk.model and self.model is None
        ):  # an event before it that was never ended has swallowed it unread
            return None
        template = learn(body, text, counted=counted, sse=self._sse, stop=bool(self._closing))
        if template is not None:
            self._plain_channel, self._plain_in_tag = self._channel, bool(self._closing)
            self._plain_usage = usage
            self._plain_number = read_index(choices[0].index)
        return template

    def take_plain(self, events: int, counts: list[int]) -> None:
        counted = self._plain_usage is not None and bool(counts)
        if self._plain_usage is not None and counts:
            # What an event between said of the rest of usage, these say again as the template has
            # it.
            self._take_details(self._plain_usage)
            if self._counts:
                counts = [self._sum_answers(tokens, self._plain_number) for tokens in counts]
            self.output_tokens = counts[-1] or self.output_tokens
            if counts[0] < self._last_running or counts != sorted(counts):
                counts = list(accumulate(counts, max, initial=self._last_running))[1:]
        self._take_first(None, counts[0] if counted else self._last_running)
        self._channel = ANSWER if self._plain_in_tag and not self._closing else self._plain_channel
        self.channels += bytes([self._channel]) * events
        self.events += events
        if counted:
            if self.running:
                self.running_tokens += counts
                self.still += len(counts) - len({*counts, self._last_running}) + 1
            self._last_running = counts[-1]

    def _fold(self, payload: bytes) -> None:
        try:
            chunk = self._decode(payload)
        except UNREADABLE:
            lenient = self._read_leniently(payload, Chunk if self.streams else _WholeChunk)
            if lenient is None:
                return
            chunk = lenient
        if self.model is None and chunk.model:
            self.model = excerpt(chunk.model, _NAME_LENGTH)
        output = finished = False
        channel = 0
        before = self._last_running
        choices, usage = chunk.choices, chunk.usage
        if choices:
            for choice in choices:
                if choice.index and not self._counts:
                    self._counts[0] = self._last_running
                if (found := self._find_channel(choice)) is not None:
                    output, channel = True, found
                if choice.finish_reason:
                    self.finish_reason = excerpt(choice.finish_reason, REASON_LENGTH)
                    self._ended |= {read_index(choice.index)}
                    finished = True
        alone = None if output else ""
        if not output or finished or (usage is not None and usage.completion_tokens is None):
            document = load_object(payload) or {}
            if not output and (field := self._take_unlisted(document)):
                output, alone = True, field
                channel = THINKING if _THINKING_FIELD.search(field) else ANSWER
            usage = self._read_rest(document) or usage
        if usage is not None:
            output = self._take_usage(
                usage, output, read_index(choices[0].index) if choices else None
            )
        elif output:
            self.running = False
        if output:
            self._channel = channel or self._channel
            self.channels.append(self._channel)
            self._take_first(alone, self._last_running)
            self.events += 1
            if self.running:
                self.running_tokens.append(self._last_running)
                self.still += self._last_running == before
            if self._keeps and choices and not (first := choices[0]).index:
                self._keep(first.text or (first.delta.content if first.delta is not None else None))
                self._keep_call(first.delta)
        if chunk.timings is not None:
            self._take_timings(chunk.timings)
        if chunk.error is not NO_RAW and is_present(chunk.error):
            self._complain(error_text(bytes(chunk.error)))
        elif not choices and is_present(chunk.message):
            self._complain(error_text(payload))
        elif self.finish_reason in _GIVEN_UP:
            self._complain(f"the server gave up the request (finish reason {self.finish_reason})")

    def _read_rest(self, document: dict[str, Any]) -> Usage | None:
        """Take from a whole event what only some of them have: usage wherever it stands, counts of
        drafts."""
        found = find_usage(document)
        self.drafts = read_drafts(document, count((found or {}).get("output"))) or self.drafts
        if not found:
            return None
        self._total = count(found.get("total"))
        details = CachedDetails(found.get("cached")), ReasoningDetails(found.get("reasoning"))
        return Usage(found.get("input"), found["output"], *details)

    def _find_channel(self, choice: Choice) -> int | None:
        """The channel of a choice's output; 0: of what came before, as is white space; None: it has
        no output."""
        delta, text = choice.delta, choice.text
        if text:
            channel = _BLANK if text.isspace() else ANSWER
        elif delta is None or not (channel := delta.channel()):
            return None
        else:
            text = delta.content
            self._thought = self._thought or bool(delta.reasoning_content or delta.reasoning)
        self._held = False
        if text and self._closing != "":
            channel = self._find_tag(text, channel)
        if channel != _BLANK:
            return channel
        self._held = self._channel == THINKING
        return 0

    def _find_tag(self, text: str, channel: int) -> int:
        """The channel of content that may begin with thinking between tags: `channel` where it does
        not."""
        self._tag += text
        if self._closing is None:
            begun = self._tag.lstrip()
            opening = next((each for each in _TAGS if begun.startswith(each)), "")
            if not opening and any(each.startswith(begun) for each in _TAGS):
                self._held = True
                return channel
            self._closing = _TAGS.get(opening, "")
            if not opening:
                return channel
            self.channels = bytearray([THINKING]) * len(self.channels)
        _, closed, after = self._tag.partition(self._closing)
        if closed:
            self._closing, self._held = "", True
            return ANSWER if after.strip() else THINKING
        self._tag = self._tag[1 - len(self._closing) :]
        self._held = "<" in self._tag
        return THINKING

    def _keep_call(self, delta: Delta | None) -> None:
        if delta is not None and is_present(delta.tool_calls) and self._texts_length < MAX_TEXT:
            self._called.append(bytes(delta.tool_calls))
            self._texts_length += len(self._called[-1])

    def _take_unlisted(self, document: Any) -> str | None:
        """The unknown field by which a chunk is output: what it says differed from chunk to chunk,
        or it is the first to say anything, of which the next output tells.
        """
        found = None
        for name, said in find_text(document):
            if name not in self._fields:
                if len(self._fields) == _FIELDS:
                    continue
                self._fields[name] = said
                is_output = not self.events or self._doubted is not None
            else:
                if self._fields[name] != said:
                    self._fields[name] = None
                is_output = self._fields[name] is None
            found = name if is_output else found
        return found

    def _take_first(self, alone: str | None, running: int) -> None:
        """Output is about to be counted; `alone`: by what it is, where it has no text that is
        known, as `_doubted`. `running`: the count at it.

        The one before was none where its count is not passed, or its field's text stays what it
        was; then this is the first.
        """
        if self.events and self._doubted is None:
            return
        if self._doubted is not None:
            if 0 < self._began_at < running or self._fields.get(self._doubted, "") is None:
                self._doubted = None
                return
            self.voids += 1
        self._doubted, self._began_at = alone, running

    def _take_usage(self, usage: Usage, output: bool, number: int | None) -> bool:
        """Keep the newest counts. True if the event stands for output: text, or a running count
        that grew.

        `number`: which of several answers the event is of; None: it has no choices.
        """
        self._take_details(usage)
        # As `count`, without the call: engines may send this on every event.
        reported = usage.completion_tokens
        if reported is None or not 0 <= reported <= MAX_COUNT or reported != int(reported):
            self.running = self.running and not output
            return output
        tokens = int(reported)
        if self._counts:
            tokens = self._sum_answers(tokens, number)
        self.output_tokens = (
            tokens or self.output_tokens
        )  # output came: 0 is not counted yet, or never
        grew = tokens > self._last_running
        if grew:
            self._last_running = tokens
        if grew and self.running and not output and number is not None:
            # A token without text. A first count above one, without text, is a total that comes at
            # the end.
            output = self.events > 0 or tokens == 1
        return output

    def _sum_answers(self, tokens: int, number: int | None) -> int:
        """The tokens of all answers side by side, where an event states those of answer `number`;
        None: it has no choices, and states those of all (vLLM, SGLang), or of the one that ended
        (llama.cpp's chat).
        """
        if number is None:
            self._apart += tokens
        else:
            self._counts[number] = tokens
        return self._apart or sum(self._counts.values())

    def _take_details(self, usage: Usage) -> None:
        """Everything in `usage` but the count of output tokens."""
        cached, thinking = usage.prompt_tokens_details, usage.completion_tokens_details
        self._take_counts(
            usage.prompt_tokens,
            None if cached is None else cached.cached_tokens,
            None if thinking is None else thinking.reasoning_tokens,
        )

    def _take_timings(self, timings: Timings) -> None:
        if timings.prompt_ms is not None and 0 <= timings.prompt_ms <= _MAX_MS:
            self.server_prefill_s = timings.prompt_ms / 1e3
        if timings.predicted_ms is not None and 0 <= timings.predicted_ms <= _MAX_MS:
            self.server_decode_s = timings.predicted_ms / 1e3


def join_calls(pieces: Iterable[bytes]) -> list[dict[str, str]]:
    """Put the calls of tools together from what each event has of them, by their index."""
    calls: dict[int, dict[str, str]] = {}
    for piece in pieces:
        listed = load(piece)
        for at, part in enumerate(listed if isinstance(listed, list) else ()):
            function = part.get("function") if isinstance(part, dict) else None
            if isinstance(function, dict):
                number = (
                    count(part["index"]) if isinstance(part.get("index"), float | int) else None
                )
                call = calls.setdefault(
                    at if number is None else number, {"name": "", "arguments": ""}
                )
                for name in call:
                    said = function.get(name)
                    call[name] += (
                        said if isinstance(said, str) else "" if said is None else json.dumps(said)
                    )
    return list(calls.values())[:CHOICES]
