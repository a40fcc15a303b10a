"""Describes the JSON of OpenAI's chunks and answers, as far as it is read. No I/O."""

from collections.abc import Callable
from typing import Any

import msgspec

from loadstone.core.record import ANSWER, THINKING, TOOL_CALL
from loadstone.measure.wire.tolerant import NO_RAW, is_present

BLANK = -1
"""The channel of white space alone, which goes with what came before, as line breaks that end the
thinking do."""


class Details(msgspec.Struct):
    """Splits a count of tokens. Those of pictures: vLLM's by kind of input, SGLang's."""

    cached_tokens: float | None = None
    reasoning_tokens: float | None = None
    multimodal_tokens: Any = None
    image_tokens: Any = None

    @property
    def visual_tokens(self) -> Any:
        by_kind = self.multimodal_tokens
        return by_kind.get("image") if isinstance(by_kind, dict) else self.image_tokens


class Usage(msgspec.Struct):
    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None


class Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: msgspec.Raw = NO_RAW
    function_call: msgspec.Raw = NO_RAW

    def channel(self) -> int:
        """Return the last of its channels: reasoning, tool calls and refusals are output as much as
        content is; 0: a role alone, which is none.
        """
        if is_present(self.tool_calls) or is_present(self.function_call):
            return TOOL_CALL
        if self.refusal or (self.content and not self.content.isspace()):
            return ANSWER
        if self.reasoning_content or self.reasoning:
            return THINKING
        return BLANK if self.content else 0


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


class WholeChoice(Choice):
    """A choice of a whole answer, whose message is what a chunk calls its delta."""

    delta: Delta | None = msgspec.field(default=None, name="message")


class WholeAnswer(Chunk):
    choices: list[WholeChoice] | None = None  # type: ignore[assignment]


Decode = Callable[[bytes], Chunk]
decode_chunk: Decode = msgspec.json.Decoder(Chunk).decode
decode_whole: Decode = msgspec.json.Decoder(WholeAnswer).decode
"""Strict decoders: they raise one of UNREADABLE."""
