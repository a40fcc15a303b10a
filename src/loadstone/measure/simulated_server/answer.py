"""The bytes of an answer, streamed or in one piece, as vLLM 0.32 writes them."""

import time
from typing import Generic, NamedTuple, TypeVar

import msgspec

from loadstone.core.record import ANSWER, THINKING, TOOL_CALL
from loadstone.measure.simulated_server.body import GenerateBody, OpenAIBody
from loadstone.measure.simulated_server.settings import Settings
from loadstone.measure.wire.simulated import SimulatedBody

WORDS = [
    b" w%04d" % number for number in range(1000)
]  # all of one length, so the chunk's size is known beforehand


_Body = TypeVar("_Body", bound=SimulatedBody)


class _Shape(NamedTuple):
    """The bytes in which the two endpoints differ; `before` and `after` stand around the text of a
    choice."""

    id: bytes
    chunk_object: bytes
    chunk_before: bytes
    chunk_after: bytes
    last_after: bytes  # of the last chunk, and of the choice of an answer in one piece
    whole_object: bytes
    whole_before: bytes
    first: bytes  # a choice sent before the first token


_COMPLETION = _Shape(
    id=b"cmpl-",
    chunk_object=b"text_completion",
    chunk_before=b'{"index":0,"text":"',
    chunk_after=(
        b'","logprobs":null,"finish_reason":null,"stop_reason":null,'
        b'"prompt_token_ids":null,"token_ids":null}'
    ),
    last_after=(
        b'","logprobs":null,"finish_reason":"length","stop_reason":null,'
        b'"prompt_token_ids":null,"token_ids":null}'
    ),
    whole_object=b"text_completion",
    whole_before=b'{"index":0,"text":"',
    first=b"",
)
_CHAT = _Shape(
    id=b"chatcmpl-",
    chunk_object=b"chat.completion.chunk",
    chunk_before=b'{"index":0,"delta":{"content":"',
    chunk_after=b'"},"logprobs":null,"finish_reason":null,"token_ids":null}',
    last_after=b'"},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}',
    whole_object=b"chat.completion",
    whole_before=b'{"index":0,"message":{"role":"assistant","content":"',
    first=(
        b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
        b'"finish_reason":null}'
    ),
)
_CHANNELS = {
    THINKING: (b'{"index":0,"delta":{"reasoning":"', b'"}'),
    TOOL_CALL: (
        b'{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"',
        b'"}}]}',
    ),
}
"""What stands around the text of a chat's events that are no answer."""
# What follows the head of a plain event, by token: a token then costs one concatenation.
_TAILS = {
    shape: [word + shape.chunk_after + b"]}\n\n\r\n" for word in WORDS]
    for shape in (_COMPLETION, _CHAT)
}


def count_drafts(accepted: list[int]) -> tuple[int, int, int]:
    """Count steps, guesses and those accepted, where so many steps accepted exactly 0, 1, … of
    them."""
    steps = sum(accepted)
    return (
        steps,
        steps * (len(accepted) - 1),
        sum(number * times for number, times in enumerate(accepted)),
    )


class TimedAnswer(Generic[_Body]):
    """One generation: the bytes of its parts. `accepted`: how many steps accepted exactly 0, 1, …
    guesses."""

    def __init__(
        self,
        body: _Body,
        settings: Settings,
        lengths: tuple[int, int],
        *,
        name: bytes,
        truth: bool,
    ) -> None:
        """`lengths`: input and output tokens; `name` is the request's id; `truth` stamps each event
        with the CLOCK_MONOTONIC ns at which it is made.
        """
        self.input_tokens, self.output_tokens = lengths
        self.cached_tokens = self.visual_tokens = 0
        self.accepted: list[int] = []
        self.is_stream = bool(body.stream)
        self._settings, self._truth = settings, truth
        self._id = msgspec.json.encode(name.decode("latin-1"))[1:-1]
        self._parts = self._divide()
        self._prepare(body)

    def _prepare(self, body: _Body) -> None:
        """Make what all parts have in common."""

    def opening(self) -> bytes:
        """Return the events sent as soon as the request is read; nothing where there are none."""
        return b""

    def role(self) -> bytes:
        """Return the event before the first token; nothing where there is none."""
        return b""

    def _event(self, payload: bytes, name: bytes = b"") -> bytes:
        """Make an HTTP chunk of one server-sent event."""
        stamp = b": t=%d\n" % time.monotonic_ns() if self._truth else b""
        named = b"event: %b\n" % name if name else b""
        text = b"%b%bdata: %b\n\n" % (stamp, named, payload)
        return b"%x\r\n%b\r\n" % (len(text), text)

    def _words(self, begin: int, end: int) -> bytes:
        """Return the text of the tokens from `begin` to before `end`."""
        return b"".join([WORDS[index % len(WORDS)] for index in range(begin, end)])

    def _divide(self) -> tuple[int, int]:
        """Return the tokens of thinking, and the first token of a tool call, of an answer that may
        have both."""
        latency = self._settings.latency
        thinking, calls = (
            round(share * self.output_tokens) for share in (latency.thinking, latency.tool_calls)
        )
        return thinking, max(thinking, self.output_tokens - calls)

    def _channel(self, end: int) -> int:
        """Return the channel of an event whose tokens end before `end`."""
        thinking, calls_from = self._parts
        return THINKING if end <= thinking else TOOL_CALL if end > calls_from else ANSWER

    def failure(self, reason: str) -> bytes:
        """Return the chunks that end a stream because its request was turned away."""
        error = {"object": "error", "message": reason, "type": "ServiceUnavailable", "code": 503}
        return self._event(msgspec.json.encode({"error": error})) + self._ending()

    def _ending(self) -> bytes:
        return (self._event(b"[DONE]") if self._settings.done else b"") + b"0\r\n\r\n"


class CompletionAnswer(TimedAnswer[OpenAIBody]):
    """One answer to a prompt."""

    _shape = _COMPLETION

    def _prepare(self, body: OpenAIBody) -> None:
        settings, shape = self._settings, self._shape
        self._usage = body.usage() if settings.usage == "asked" else settings.usage
        kind = shape.chunk_object if self.is_stream else shape.whole_object
        start = b'{"id":"%b%b","object":"%b","created":%d,"model":"%b","choices":['
        self._prefix = start % (
            shape.id,
            self._id,
            kind,
            int(time.time()),
            msgspec.json.encode(settings.model)[1:-1],
        )
        # Of a plain event all but the word is known beforehand, its size too.
        self._tails = _TAILS[shape]
        self._plain_head = b""
        if shape is not _CHAT:
            self._parts = 0, self.output_tokens
        self._thinking, _ = self._parts
        plain = self._parts == (0, self.output_tokens)
        if (
            plain
            and settings.tokens_per_event == 1
            and self._usage != "running"
            and not self._truth
        ):
            head = b"data: " + self._prefix + shape.chunk_before
            self._plain_head = b"%x\r\n%b" % (len(head) + len(self._tails[0]) - len(b"\r\n"), head)

    def role(self) -> bytes:
        """Return the event before the first token; nothing where there is none."""
        first = self._shape.first
        if not (self.is_stream and first):
            return b""
        return self._event(self._prefix + first + b"]" + self._running_usage(0) + b"}")

    def piece(self, begin: int, end: int) -> bytes:
        """Return the event of the tokens from `begin` to before `end`; with the last of them, all
        that ends the response."""
        if self._plain_head and end < self.output_tokens:
            return self._plain_head + self._tails[begin % len(WORDS)]
        shape = self._shape
        channel = self._channel(end)
        opening, closing = _CHANNELS.get(channel, (shape.chunk_before, b'"}'))
        chunk_after, last_after = (
            text if channel == ANSWER else closing + text.removeprefix(b'"}')
            for text in (shape.chunk_after, shape.last_after)
        )
        choice = self._prefix + opening + self._words(begin, end)
        if end < self.output_tokens:
            return self._event(choice + chunk_after + b"]" + self._running_usage(end) + b"}")
        usage = self._final_usage() if self._usage == "unasked" else self._running_usage(end)
        data = self._event(choice + last_after + b"]" + usage + b"}")
        if self._usage in ("final", "running"):
            data += self._event(self._prefix + b"]" + self._final_usage() + b"}")
        return data + self._ending()

    def whole(self) -> bytes:
        """Return the body of an answer in one piece."""
        choice = (
            self._shape.whole_before + self._words(0, self.output_tokens) + self._shape.last_after
        )
        usage = b"" if self._usage == "none" else self._final_usage()
        return self._prefix + choice + b"]" + usage + b"}"

    def _counts(self, tokens: int) -> bytes:
        counts = (self.input_tokens, self.input_tokens + tokens, tokens)
        return b'"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d' % counts

    def _running_usage(self, tokens: int) -> bytes:
        """The usage of an event with text, after so many output tokens."""
        return b',"usage":{%b}' % self._counts(tokens) if self._usage == "running" else b""

    def _final_usage(self) -> bytes:
        details = (
            b',"completion_tokens_details":{"reasoning_tokens":%d}' % self._thinking
            if self._thinking
            else b""
        )
        pictures = b',"multimodal_tokens":{"image":%d}' % self.visual_tokens
        return b',"usage":{%b,"prompt_tokens_details":{"cached_tokens":%d%b}%b}%b' % (
            self._counts(self.output_tokens),
            self.cached_tokens,
            pictures if self.visual_tokens else b"",
            details,
            self._drafts(),
        )

    def _drafts(self) -> bytes:
        steps, drafted, accepted = count_drafts(self.accepted)
        if not steps:
            return b""
        fields = {
            "mean_acceptance_length": 1 + accepted / steps,
            "draft_acceptance_rate": accepted / drafted,
            "acceptance_histogram": self.accepted,
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": drafted,
            "num_spec_tokens": len(self.accepted) - 1,
        }
        return b',"metrics":%b' % msgspec.json.encode({"speculative_decoding": fields})


class ChatAnswer(CompletionAnswer):
    """One answer to a conversation."""

    _shape = _CHAT


class GenerateAnswer(TimedAnswer[GenerateBody]):
    """One answer of SGLang's own dialect.

    Each event holds all text and ids so far, as SGLang's do: what a stream costs grows with its
    length squared.
    """

    def _prepare(self, body: GenerateBody) -> None:
        self._text = bytearray()
        self._ids = bytearray()

    def piece(self, begin: int, end: int) -> bytes:
        """Return the event of the tokens up to before `end`; with the last of them, all that ends
        the response."""
        data = self._event(self._document(begin, end))
        return data if end < self.output_tokens else data + self._ending()

    def whole(self) -> bytes:
        """Return the body of an answer in one piece."""
        return self._document(0, self.output_tokens)

    def _document(self, begin: int, end: int) -> bytes:
        """All tokens before `end`, of which those before `begin` were said already."""
        for index in range(begin, end):
            self._text += WORDS[index % len(WORDS)]
            self._ids += b"%d," % (index % len(WORDS))
        reason = (
            b"null"
            if end < self.output_tokens
            else b'{"type":"length","length":%d}' % self.output_tokens
        )
        meta = (
            b'{"id":"%b","finish_reason":%b,"prompt_tokens":%d,"completion_tokens":%d,'
            b'"cached_tokens":%d%b}'
        )
        about = meta % (
            self._id,
            reason,
            self.input_tokens,
            end,
            self.cached_tokens,
            self._drafts(end),
        )
        return b'{"text":"%b","output_ids":[%b],"meta_info":%b}' % (
            bytes(self._text),
            bytes(self._ids[:-1]),
            about,
        )

    def _drafts(self, end: int) -> bytes:
        steps, drafted, accepted = count_drafts(self.accepted)
        if not steps:
            return b""
        fields = {
            "spec_verify_ct": steps,
            "spec_accept_rate": accepted / drafted,
            "spec_accept_length": end / steps,
            "spec_num_correct_drafts": accepted,
            "spec_num_proposed_drafts": drafted,
            "spec_correct_drafts_histogram": self.accepted,
        }
        return b"," + msgspec.json.encode(fields)[1:-1]
