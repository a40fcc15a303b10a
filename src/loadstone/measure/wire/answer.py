"""Folds an answer's bytes, in whatever dialect, into the facts that the client keeps. No I/O."""

import math
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any, TypeVar

import msgspec

from loadstone.core.record import ANSWER, CUT_REASONS
from loadstone.core.text import excerpt
from loadstone.measure.wire import sse
from loadstone.measure.wire.drafts import DraftCounts
from loadstone.measure.wire.sse import SseDecoder, SseError
from loadstone.measure.wire.template import Template
from loadstone.measure.wire.tolerant import convert, count, load_object
from loadstone.measure.wire.vectors import AnswerVectors

MAX_TEXT = 4 * 1024 * 1024
"""Characters of an answer's text that are kept, where it is asked for; the rest is counted and
forgotten."""

CHOICES = 1024
"""Answers to a request that are kept apart. `n` is a handful: a number beyond is no answer's."""
REASON_LENGTH = 40
"""Characters of a finish reason that are kept."""
_DONE = b"[DONE]"
_T = TypeVar("_T", bound=msgspec.Struct)


def read_index(index: float | None) -> int:
    """Return the number, from 0, of the answer among several side by side that an event is of."""
    return min(count(index) or 0, CHOICES - 1)


class Whole:
    """Takes an answer in one piece as SseDecoder takes a stream: its only payload is the whole
    body, at the end."""

    __slots__ = ("_body", "_endless")

    at_rest = False
    """No template is ever learned from it."""

    def __init__(self) -> None:
        self._body = bytearray()
        self._endless = False

    def feed(self, piece: bytes) -> list[bytes]:
        """Take a piece; gives nothing yet. Raises SseError from an endless body on."""
        if self._endless or len(self._body) + len(piece) > sse.MAX_EVENT_BYTES:
            self._endless = True
            self._body.clear()
            raise SseError(f"the answer exceeds {sse.MAX_EVENT_BYTES >> 20} MiB")
        self._body += piece
        return []

    def finish(self) -> list[bytes]:
        """Give the body, if there was any."""
        body, self._body = bytes(self._body), bytearray()
        return [body] if body.strip() else []


@dataclass(slots=True, eq=False, kw_only=True)
class Answer:
    """Everything one answer says, folded event by event: feed it the body's bytes, in pieces of any
    size.

    `feed` returns how many output events the piece completed; the caller knows when the piece
    arrived. `streams` False: the answer is one JSON object, hence one event, completed by `finish`.
    What follows the end of a stream ([DONE]) is no part of it and is passed over.
    running          each output event so far came with the server's count of output tokens
    still            of those, events whose count had not grown. Where most had not it is none of
                     theirs: gateways write zeros until the end, mocks the total from the beginning
    running_tokens   that count at each output event; emptied by who writes it away
    channels         a byte for each output event, see RequestRecord.channel; emptied by who writes
                     it away
    drafts           what the server says of the answer's speculative decoding
    finish_reason, done (the answer said that it is complete), error (the server's, or why it cannot
    be read), input_tokens, output_tokens, cached_tokens, reasoning_tokens, visual_tokens;
    server_prefill_s, server_decode_s (llama.cpp).
    voids            the first so many output events were none, as later ones show; they are counted
                     and have times
    model            whose answer it is, as it first says (OpenAI's dialect)
    stored_id        the server's name of the answer, by which a later prompt may begin with it
    choices          how many answers have ended, at least 1: with `n` a request has several side by
                     side, and events and counts are of all of them together
    ends             what its first and its last output event say; None: not known
    thought          reasoning came apart from the text (OpenAI's dialect)
    calls            with `keep_text`: the tools called, each with its `name` and `arguments` as
                     text (OpenAI's)
    text             with `keep_text`: what was said, without reasoning and tool calls, at most
                     MAX_TEXT characters
    vectors          what of vectors or scores is in it
    An API adds `fold`, which takes one payload: a stream event's, or the whole body. Its counts are
    of the whole prompt, cached tokens among them, and of all output, reasoning among it.
    """

    stream: InitVar[bool] = True
    keep_text: InitVar[bool] = False
    streams: bool = field(init=False)
    events: int = 0
    running: bool = True
    still: int = 0
    running_tokens: list[int] = field(default_factory=list)
    channels: bytearray = field(default_factory=bytearray)
    drafts: DraftCounts | None = None
    vectors: AnswerVectors | None = None
    finish_reason: str | None = None
    done: bool = False
    error: str | None = None
    voids: int = 0
    model: str | None = None
    stored_id: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    visual_tokens: int | None = None
    server_prefill_s: float | None = None
    server_decode_s: float | None = None
    _sse: SseDecoder | Whole = field(init=False)
    keeps_text: bool = field(init=False)
    _texts: list[str] = field(default_factory=list)
    _texts_length: int = 0
    _last_running: int = 0
    _counts: dict[int, int] = field(default_factory=dict)  # newest count of each of several answers
    _ended: frozenset[int] = frozenset()

    def __post_init__(self, stream: bool, keep_text: bool) -> None:
        self.streams, self.keeps_text = stream, keep_text
        self._sse = SseDecoder() if stream else Whole()

    @property
    def choices(self) -> int:
        return max(1, len(self._ended))

    @property
    def is_cut(self) -> bool:
        """Return whether it ended at the limit of its tokens."""
        return self.finish_reason in CUT_REASONS

    @property
    def unlisted(self) -> list[str]:
        """Return names of fields that the API does not know, and that had output."""
        return []

    @property
    def tokens(self) -> tuple[int | None, int | None]:
        """Return the output tokens that the server made, by its counts, and those of them that
        came; None: it counts none."""
        return self.output_tokens, self.output_tokens

    @property
    def thought(self) -> bool:
        return False

    @property
    def ends(self) -> tuple[str | None, str | None]:
        return None, None

    @property
    def calls(self) -> list[dict[str, str]]:
        return []

    @property
    def text(self) -> str:
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
        return self._texts[0] if self._texts else ""

    def text_lengths(self) -> list[int]:
        """Return the characters of each event's text, as far as it is kept, until `text` is
        read."""
        return [len(text) for text in self._texts[self.voids :]]

    def feed(self, piece: bytes) -> int:
        """Return how many output events `piece` completes. Never raises: what cannot be read is
        `error`."""
        try:
            payloads = [] if self.done else self._sse.feed(piece)
        except SseError as error:
            self.complain(str(error))
            return 0
        events = self.events
        for payload in payloads:
            self.fold(payload)
            if self.done:
                self._sse.at_rest = False  # no template recognises what follows
                break
        return self.events - events

    def finish(self) -> int:
        """Take the body's end, which is no accident; return the output events completed by that."""
        events = self.events
        try:
            payloads = self._sse.finish()
        except SseError as error:
            self.complain(str(error))
            return 0
        for payload in payloads:
            if not self.done:
                self.fold(payload)
        if not self.streams:
            # All its tokens came at once: its count is a final one, and needs no text beside it.
            self.events = 1 if self.events or self.output_tokens else 0
            self.running, self.running_tokens = False, []
            self.channels = (self.channels or bytearray([ANSWER]))[-1:] * self.events
            self.done = self.done or (self.events > 0 and self.error is None)
        return self.events - events

    def template(self, body: bytes) -> Template | None:
        """Return a template for the chunks to come, if this API has such, `body` was one, and
        whole, and plain."""
        return None

    def take_headers(self, headers: Mapping[bytes, bytes]) -> None:
        """Take what the response's headers say of the answer, their names in small letters."""

    def take_request(self, asked: int, best: int | None = None) -> None:
        """Compare a whole answer with what was asked for: so many vectors or scores, or so many of
        the `best`."""

    def take_plain(self, events: int, counts: list[int]) -> None:
        """Take events that the newest template recognised, with their running counts if it has
        any."""
        raise NotImplementedError

    def fold(self, payload: bytes) -> None:
        """Take what a payload says: `add_event` where it has output, `take_counts`, `say` where the
        text is kept, `finish_reason` and `done` at the end, `complain` of an error."""
        raise NotImplementedError

    def add_event(self, channel: int, tokens: int | None) -> None:
        """Count an output event, with the server's count of output tokens so far; None: it has
        none, and then those of others are of no use for a curve."""
        self.events += 1
        self.channels.append(channel)
        if tokens is None:
            self.running = False
        elif self.running:
            self.running_tokens.append(tokens)

    def take_counts(
        self, input_tokens: float | None, cached: float | None, reasoning: float | None
    ) -> None:
        """Keep the newest of each that is a count; of cached tokens one that is not more than the
        prompt's."""
        # No prompt has 0: it was counted before, or never.
        self.input_tokens = count(input_tokens) or self.input_tokens
        limit = math.inf if self.input_tokens is None else self.input_tokens
        cached_tokens, reasoning_tokens = count(cached), count(reasoning)
        if cached_tokens is not None and cached_tokens <= limit:
            self.cached_tokens = cached_tokens
        if reasoning_tokens is not None:
            self.reasoning_tokens = reasoning_tokens

    def read_leniently(self, payload: bytes, kind: type[_T]) -> _T | None:
        """Read a payload that the strict decoder of its API refused, as far as its fields can be
        read: one has an odd type, or the text is no valid UTF-8. None where it is no object.
        """
        return convert(self.read_object(payload), kind)

    def read_object(self, payload: bytes, done: bytes | None = _DONE) -> dict[str, Any] | None:
        """Read such a payload as an object; None where it is none.

        It may be `done`, which says that the answer is complete, or nothing, which keeps a
        connection alive. All else is an error.
        """
        text = payload.strip()
        if text == done:
            self.done = True
            return None
        fields = load_object(payload) if text else None
        if text and fields is None:
            kind = "stream event" if self.streams else "answer"
            self.complain(f"{kind} is not a JSON object: {excerpt(payload)}")
        return fields

    def say(self, text: str | None) -> None:
        """Keep more of the text, as far as it is wanted."""
        if text and self.keeps_text and self._texts_length < MAX_TEXT:
            self._texts.append(text[: MAX_TEXT - self._texts_length])
            self._texts_length += len(text)

    def complain(self, error: str) -> None:
        """Keep the first complaint: what follows it is often its consequence."""
        self.error = self.error or error
