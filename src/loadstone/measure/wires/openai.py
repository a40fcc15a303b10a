"""The OpenAI dialect: `/v1/completions` and `/v1/chat/completions`, streamed or in one piece. No
I/O.

What engines really send differs from the specification; the differences seen (recorded bytes of
vLLM, llama.cpp, llama-cpp-python, transformers, mlx-lm, MAX) decide what is tolerated here: usage
on every event, on the last choice, in an event without choices, or never; `[DONE]` or none;
role-only first deltas, with or without the first token; empty deltas that stand for a token (vLLM:
special tokens, half a character) or for none; an `error` object after a 200; `choices: null`;
numbers as `1.0`; invalid UTF-8.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

from loadstone.core.record import ANSWER, THINKING
from loadstone.core.text import error_text, excerpt
from loadstone.measure.simulated_server.answer import ChatAnswer, CompletionAnswer
from loadstone.measure.simulated_server.body import OpenAIBody, split_prompt
from loadstone.measure.wire.answer import CHOICES, MAX_TEXT, REASON_LENGTH, Answer, read_index
from loadstone.measure.wire.channels import Channels
from loadstone.measure.wire.chunk import (
    Choice,
    Chunk,
    Delta,
    Details,
    Timings,
    Usage,
    WholeAnswer,
    decode_chunk,
    decode_whole,
)
from loadstone.measure.wire.drafts import read_drafts
from loadstone.measure.wire.first_event import FirstEvent
from loadstone.measure.wire.simulated import SimulatedWire
from loadstone.measure.wire.sse import SseDecoder, find_payload
from loadstone.measure.wire.structured import make_sampling_fields, make_shape_fields
from loadstone.measure.wire.template import Template, learn
from loadstone.measure.wire.tolerant import (
    MAX_COUNT,
    NO_RAW,
    UNREADABLE,
    count,
    is_error,
    is_present,
    load,
    load_object,
)
from loadstone.measure.wire.unlisted import find_usage
from loadstone.measure.wire.wire import Fields, Wire
from loadstone.workload.request import LENGTH, PROMPT, RequestSpec, Spelling, StructuredKind

# --- requests -------------------------------------------------------------------------------------


def make_body(spec: RequestSpec, prompt_field: str) -> dict[str, Any]:
    """Return the body of a request, with its prompt in the field `prompt_field`."""
    body: dict[str, Any] = {"model": spec.model, "stream": spec.stream}
    if spec.stream and spec.usage != "none":
        body["stream_options"] = {"include_usage": True}
        if spec.usage == "running":
            body["stream_options"]["continuous_usage_stats"] = True
    if spec.ignore_eos:
        body["ignore_eos"] = True
    body |= make_sampling_fields(spec) | make_shape_fields(spec)
    body[spec.length] = LENGTH
    if spec.min_tokens:
        body["min_tokens"] = LENGTH
    body[prompt_field] = PROMPT
    return body


def make_path(spec: RequestSpec, name: str) -> str:
    """Return the path of the API `name`; Azure's, with a version in its query, has no /v1."""
    return f"/{name}{spec.query}" if spec.query else f"/v1/{name}"


def list_length_fields(spec: RequestSpec) -> dict[str, Fields]:
    """Return the fields by which some servers write a whole length, as changes of the request."""
    return {"ignore_eos": {"ignore_eos": True}, "min_tokens": {"min_tokens": True}}


def list_optional(spec: RequestSpec) -> dict[str, Fields]:
    """Return the fields that not every server of the dialect takes, as changes of the request."""
    fields = list_length_fields(spec)
    if spec.stream:
        fields["stream_options"] = {"usage": "final"}
        fields["continuous_usage_stats"] = {"usage": "running"}
    return fields


# --- answers --------------------------------------------------------------------------------------

_THINKING_FIELD = re.compile("reason|think|thought", re.IGNORECASE)
_MAX_MS = 1e12
_NAME_LENGTH = 100
_GIVEN_UP = ("abort", "error")
"""Finish reasons of requests that vLLM and SGLang did not bring to their end."""


class _Output(NamedTuple):
    """Holds where the output of an event belongs.

    channel    ANSWER or THINKING; 0: that of the event before
    evidence   the unlisted field, or "" for a count, that alone makes it output; None: it has text
               under a known name (see FirstEvent)
    """

    channel: int
    evidence: str | None


class _PlainEvent(NamedTuple):
    """Holds the facts of the event from which the template in use was made.

    number     which of several answers it is of
    is_tagged  it stood between tags, where content is thinking
    """

    usage: Usage | None
    number: int
    channel: int
    is_tagged: bool


class OpenAIAnswer(Answer):
    """Reads an answer of /v1/completions or /v1/chat/completions."""

    __slots__ = (
        "_called",
        "_channels",
        "_decode",
        "_first",
        "_plain",
        "_total",
        "_unnumbered",
        "summaries",
    )

    def __init__(self, *, stream: bool = True, keep_text: bool = False) -> None:
        super().__init__(stream=stream, keep_text=keep_text)
        self._decode = decode_chunk if stream else decode_whole
        self.summaries = 0  # first events that tell hidden reasoning in other words
        self._channels = Channels()
        self._first = FirstEvent()
        self._plain = _PlainEvent(None, 0, ANSWER, False)
        self._unnumbered = 0  # of several answers, tokens stated in events without choices
        self._total: int | None = None  # of prompt and answer, as the usage states it
        self._called: list[bytes] = []  # what each event has of tool calls, with `keep_text`

    @property
    def thought(self) -> bool:
        return self._channels.thought

    @property
    def calls(self) -> list[dict[str, str]]:
        return join_calls(self._called)

    @property
    def unlisted(self) -> list[str]:
        fields = self._first.fields
        return [excerpt(name, _NAME_LENGTH) for name, text in fields.items() if text is None]

    @property
    def tokens(self) -> tuple[int | None, int | None]:
        """Return (tokens that were made, tokens that came as events).

        Servers count reasoning within the output tokens or beside them, and send it or not: the
        counts and the number of events show which.
        """
        tokens, thinking = self.output_tokens, self.reasoning_tokens
        events = self.events - self.voids - self.summaries
        if not (tokens and thinking and events and self.streams) or self._counts:
            return tokens, tokens
        thinking_came = (
            (self.thought and not self.summaries)
            or bool(self.unlisted)
            or (self.running and 0 < self._first.count <= thinking)
        )
        both = tokens + thinking
        is_beside = thinking > tokens or self._total == (self.input_tokens or 0) + both
        made = both if is_beside or (thinking_came and events >= both) else tokens
        if thinking_came or events > made - thinking + 1:
            return made, made
        return made, max(events, made - thinking)

    def finish(self) -> int:
        late = super().finish()
        if self._first.doubted:  # an unknown field that nothing followed
            self.voids += 1
            self._first.doubted = None
        if self.streams and self.output_tokens and not self.reasoning_tokens and not self._counts:
            signs = self._first.count_signs(self.events - self.output_tokens)
            if signs > self.voids:
                self.voids = signs
                self._first.fields.clear()
        return late

    @property
    def ends(self) -> tuple[str | None, str | None]:
        first = self._first
        return first.text if self.voids else first.opening, first.closing

    # --- plain events, many at a time -------------------------------------------------------------

    def feed(self, piece: bytes) -> int:
        events = super().feed(piece)
        if self._channels.held and self.streams:
            self._sse.at_rest = False
        return events

    def template(self, body: bytes) -> Template | None:
        """Return a template that recognises later chunks, if `body` is a chunk of one whole event,
        and that a plain one; else None."""
        if not self._sse.at_rest or self.keeps_text or not isinstance(self._sse, SseDecoder):
            return None
        payload = find_payload(body)
        try:
            chunk = None if payload is None else self._read_plain(payload)
        except UNREADABLE:
            return None
        if chunk is None:
            return None
        choice, usage = _plain_choice(chunk), chunk.usage
        if choice is None:
            return None
        delta = choice.delta or Delta()
        text = choice.text or delta.content or delta.reasoning_content or delta.reasoning
        # Counted events where others were not, or the reverse, change what counts mean: those are
        # read in full. With usage that has no count nothing is running.
        if not text or text.isspace() or (usage is not None) != self.running:
            return None
        if chunk.model and self.model is None:
            return None  # it was read as part of an event that was never ended
        channels = self._channels
        is_tagged = bool(channels.closing)
        is_content = bool(choice.text or delta.content)
        if channels.newest != (ANSWER if is_content and not is_tagged else THINKING):
            return None
        template = learn(body, text, counted=usage is not None, sse=self._sse, stop=is_tagged)
        if template is not None:
            number = read_index(choice.index)
            self._plain = _PlainEvent(usage, number, channels.newest, is_tagged)
        return template

    def take_plain(self, events: int, counts: list[int]) -> None:
        plain, channels = self._plain, self._channels
        is_counted = plain.usage is not None and bool(counts)
        if plain.usage is not None and counts:
            # Plain events state the rest of usage as the template's did: a full event between them
            # may have said otherwise.
            self._take_details(plain.usage)
            if self._counts:
                counts = [self._sum_answers(tokens, plain.number) for tokens in counts]
            self.output_tokens = counts[-1] or self.output_tokens
            if counts[0] < self._last_running or counts != sorted(counts):
                counts = list(accumulate(counts, max, initial=self._last_running))[1:]
        running = counts[0] if is_counted else self._last_running
        self.voids += self._first.follow(self.events, None, running)
        channels.newest = ANSWER if plain.is_tagged and not channels.closing else plain.channel
        self._first.closing = None
        self.channels += bytes([channels.newest]) * events
        self.events += events
        if is_counted:
            if self.running:
                self.running_tokens += counts
                self.still += len(counts) - len({*counts, self._last_running}) + 1
            self._last_running = counts[-1]

    # --- one event, whatever it holds -------------------------------------------------------------

    def fold(self, payload: bytes) -> None:
        chunk = self._read_chunk(payload)
        if chunk is None:
            return
        if self.model is None and chunk.model:
            self.model = excerpt(chunk.model, _NAME_LENGTH)
        choices = chunk.choices or []
        usage = chunk.usage
        split = None if usage is None else usage.prompt_tokens_details
        if split is not None:
            self.visual_tokens = count(split.visual_tokens) or self.visual_tokens
        previous = self._last_running
        output, is_finished = self._take_choices(choices)
        if output is None or is_finished or (usage is not None and usage.completion_tokens is None):
            document = load_object(payload) or {}
            if output is None:
                output = self._find_unlisted(document)
            usage = self._read_rest(document) or usage
        if usage is not None:
            number = read_index(choices[0].index) if choices else None
            if self._take_usage(usage, output is not None, number) and output is None:
                output = _Output(0, "")
        elif output is not None:
            self.running = False
        if output is not None:
            self._add_event(output, previous)
            text = _say(choices[0]) if choices and output.evidence is None else ""
            self._first.note_text(text)
            self._first.closing = text if is_finished else None
            if self.keeps_text and choices and not choices[0].index:
                self._keep_choice(choices[0])
        if chunk.timings is not None:
            self._take_timings(chunk.timings)
        self._take_error(chunk, payload)

    def _read_plain(self, payload: bytes) -> Chunk | None:
        """Read an event that may be plain, and keep nothing of it. Raises one of UNREADABLE."""
        return decode_chunk(payload)

    def _read_chunk(self, payload: bytes) -> Chunk | None:
        try:
            return self._decode(payload)
        except UNREADABLE:
            return self.read_leniently(payload, Chunk if self.streams else WholeAnswer)

    def _take_choices(self, choices: list[Choice]) -> tuple[_Output | None, bool]:
        """Return the output of an event's choices, and whether one of the answers has ended."""
        output = None
        is_finished = False
        for choice in choices:
            if choice.index and not self._counts:
                self._counts[0] = self._last_running
            channel = self._channels.find(choice, self.channels)
            if channel is not None:
                output = _Output(channel, None)
            if choice.finish_reason:
                self.finish_reason = excerpt(choice.finish_reason, REASON_LENGTH)
                self._ended |= {read_index(choice.index)}
                is_finished = True
        return output, is_finished

    def _find_unlisted(self, document: dict[str, Any]) -> _Output | None:
        """Return the output of a chunk without any under a known name; None where it has none."""
        name = self._first.find_output(document, self.events)
        if not name:
            return None
        return _Output(THINKING if _THINKING_FIELD.search(name) else ANSWER, name)

    def _read_rest(self, document: dict[str, Any]) -> Usage | None:
        """Keep what few servers send: counts of drafts. Return usage, wherever in the event it
        stands."""
        found = find_usage(document) or {}
        self.drafts = read_drafts(document, count(found.get("output"))) or self.drafts
        if not found:
            return None
        self._total = count(found.get("total"))
        details = Details(found.get("cached"), found.get("reasoning"))
        return Usage(found.get("input"), found["output"], details, details)

    def _add_event(self, output: _Output, previous: int) -> None:
        """Count an output event; `previous`: the running count before it."""
        self._channels.newest = output.channel or self._channels.newest
        self.voids += self._first.follow(self.events, output.evidence, self._last_running)
        self.add_event(self._channels.newest, self._last_running)
        self.still += self.running and self._last_running == previous

    def _keep_choice(self, choice: Choice) -> None:
        delta = choice.delta or Delta()
        self.say(choice.text or delta.content)
        if is_present(delta.tool_calls) and self._texts_length < MAX_TEXT:
            self._called.append(bytes(delta.tool_calls))
            self._texts_length += len(self._called[-1])

    def _take_usage(self, usage: Usage, has_output: bool, number: int | None) -> bool:
        """Keep the newest counts; return whether the event is output, by its text or by a running
        count that grew.

        `number`: which of several answers the event is of; None: it has no choices.
        """
        self._take_details(usage)
        # The rule of count(), without the call: engines may send this on every event.
        reported = usage.completion_tokens
        if reported is None or not 0 <= reported <= MAX_COUNT or reported != int(reported):
            self.running = self.running and not has_output
            return has_output
        tokens = int(reported)
        if self._counts:
            tokens = self._sum_answers(tokens, number)
        # A count of 0 is no news: the server counts later, or never.
        self.output_tokens = tokens or self.output_tokens
        if tokens <= self._last_running:
            return has_output
        self._last_running = tokens
        if has_output or not self.running or number is None:
            return has_output
        # The count grew without text: a token of no text. But a first count above one is a total,
        # which comes at the end.
        return self.events > 0 or tokens == 1

    def _sum_answers(self, tokens: int, number: int | None) -> int:
        """Return the tokens of all answers side by side, where an event states those of answer
        `number`; None: it has no choices, and states those of all (vLLM, SGLang), or of the one
        that ended (llama.cpp's chat).
        """
        if number is None:
            self._unnumbered += tokens
        else:
            self._counts[number] = tokens
        return self._unnumbered or sum(self._counts.values())

    def _take_details(self, usage: Usage) -> None:
        """Take everything in `usage` but the count of output tokens."""
        cached, thinking = usage.prompt_tokens_details, usage.completion_tokens_details
        self.take_counts(
            usage.prompt_tokens,
            None if cached is None else cached.cached_tokens,
            None if thinking is None else thinking.reasoning_tokens,
        )

    def _take_timings(self, timings: Timings) -> None:
        if timings.prompt_ms is not None and 0 <= timings.prompt_ms <= _MAX_MS:
            self.server_prefill_s = timings.prompt_ms / 1e3
        if timings.predicted_ms is not None and 0 <= timings.predicted_ms <= _MAX_MS:
            self.server_decode_s = timings.predicted_ms / 1e3

    def _take_error(self, chunk: Chunk, payload: bytes) -> None:
        if chunk.error is not NO_RAW and is_error(chunk.error):
            self.complain(error_text(bytes(chunk.error)))
        elif not chunk.choices and is_present(chunk.message):
            self.complain(error_text(payload))
        elif self.finish_reason in _GIVEN_UP:
            self.complain(f"the server gave up the request (finish reason {self.finish_reason})")


def _plain_choice(chunk: Chunk) -> Choice | None:
    """Return the only choice of a chunk with nothing else but counts; None where it has more."""
    choices = chunk.choices
    if choices is None or len(choices) != 1 or choices[0].finish_reason:
        return None
    if chunk.timings is not None or chunk.error is not NO_RAW or chunk.message is not NO_RAW:
        return None
    return choices[0]


def _say(choice: Choice) -> str:
    """Return what a choice says under a name that is known; that of a tool call is not looked
    at."""
    delta = choice.delta or Delta()
    text = choice.text or delta.content or delta.reasoning_content or delta.reasoning
    return text or delta.refusal or "{}"


def join_calls(pieces: Iterable[bytes]) -> list[dict[str, str]]:
    """Return the calls of tools, put together by their index from the piece in each event."""
    calls: dict[int, dict[str, str]] = {}
    for piece in pieces:
        parts = load(piece)
        for position, part in enumerate(parts if isinstance(parts, list) else ()):
            function = part.get("function") if isinstance(part, dict) else None
            if not isinstance(function, dict):
                continue
            number = count(part.get("index"))
            number = position if number is None else number
            call = calls.setdefault(number, {"name": "", "arguments": ""})
            for name in call:
                call[name] += _as_text(function.get(name))
    return list(calls.values())[:CHOICES]


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value)


# --- the tables -----------------------------------------------------------------------------------

_SPELLINGS: dict[StructuredKind, tuple[Spelling, ...]] = {
    "json_schema": ("response_format", "structured_outputs", "guided", "llama.cpp", "sglang"),
    "regex": ("structured_outputs", "guided", "sglang"),  # llama.cpp has no field for it
    "grammar": ("structured_outputs", "guided", "sglang", "llama.cpp"),
}
_SIMULATED = SimulatedWire(
    path="/v1/completions",
    body=OpenAIBody,
    content=lambda body: split_prompt(body.prompt),
    limit=OpenAIBody.limit,
    default_tokens=16,  # the OpenAI API's, kept by vLLM
    answer=CompletionAnswer,
)
COMPLETIONS = Wire(
    path=lambda spec: make_path(spec, "completions"),
    body=lambda spec: make_body(spec, "prompt"),
    answer=OpenAIAnswer,
    prompts="text or ids",
    length_names=("max_tokens", "max_completion_tokens"),
    spellings=_SPELLINGS,
    order=0,
    optional=list_optional,
    simulated=_SIMULATED,
)
CHAT = replace(
    COMPLETIONS,
    path=lambda spec: make_path(spec, "chat/completions"),
    body=lambda spec: make_body(spec, "messages"),
    prompts="messages",
    order=1,
    simulated=_SIMULATED._replace(
        path="/v1/chat/completions",
        content=OpenAIBody.split_messages,
        default_tokens=None,
        answer=ChatAnswer,
    ),
)
