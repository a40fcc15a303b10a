"""Reads what a request asks for: its JSON body, how many tokens go in and out, and when it is
refused."""

import base64
import contextlib
from collections.abc import Collection, Iterable
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import msgspec

from loadstone.catalogue.visual.visual import Visual
from loadstone.core.errors import InputError
from loadstone.measure.simulated_server.settings import MODEL, Usage
from loadstone.measure.wire.simulated import SimulatedBody, SimulatedWire
from loadstone.workload.picture_files import read_picture

_ROLE_TOKENS, END = 3, "<end>"
"""What the pretended chat template puts before a message, the answer's own too, and behind it: so
that a later turn goes on with the tokens of this one and its answer."""

_HEAD = 1 << 18
"""Characters of a picture's file in which its size stands."""


class RefusalError(Exception):
    """The request is answered with this HTTP status and message instead."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _ImageUrl(msgspec.Struct):
    url: str = ""


class _Source(msgspec.Struct):
    data: str = ""


class MessagePart(msgspec.Struct):
    """A part of a message: a text, or a picture as chat (an object), Responses (a URL) or Messages
    (a source) has it."""

    text: str | None = None
    image_url: _ImageUrl | str | None = None
    source: _Source | None = None

    def tokens(self) -> list[Any]:
        """Return its words, or its picture. Raises RefusalError."""
        url = self.image_url.url if isinstance(self.image_url, _ImageUrl) else self.image_url
        if url is None and self.source is None:
            return (self.text or "").split()
        data = self.source.data if self.source is not None else (url or "").partition(";base64,")[2]
        found = None
        with contextlib.suppress(ValueError):
            found = read_picture(base64.b64decode(data[:_HEAD]))
        if found is None:
            raise RefusalError(400, "image_url must be an image file in a data URL")
        return [PicturePart(found.size.width, found.size.height, hash(data))]


class PicturePart(NamedTuple):
    """Stands among a prompt's tokens for a picture; equal files have equal names."""

    width: int
    height: int
    name: int


def see_pictures(tokens: list[Any], visual: Visual | None, most: int) -> tuple[list[Any], int]:
    """Return tokens with those of each picture in its place, by a model's rule, and how many these
    are; without one pictures are dropped. Raises RefusalError: more than `most` pictures."""
    pictures = sum(isinstance(token, PicturePart) for token in tokens)
    if pictures > most:
        raise RefusalError(400, f"At most {most} image(s) may be provided in one prompt.")
    if not pictures:
        return tokens, 0
    seen: list[Any] = []
    count = 0
    for token in tokens:
        if not isinstance(token, PicturePart):
            seen.append(token)
        elif visual is not None:
            try:
                counted = visual.count(token.width, token.height)
            except InputError as error:
                raise RefusalError(400, f"image_url: {error}") from None
            seen += [f"<image {token.name}>"] * (counted.tokens + counted.markers)
            count += counted.tokens
    return seen, count


class _Message(msgspec.Struct):
    role: str | None = None
    content: str | list[MessagePart] | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _SamplingParams(msgspec.Struct):
    max_new_tokens: int | None = None
    n: int | None = None


class OpenAIBody(SimulatedBody):
    """A request of OpenAI's dialect, or to /tokenize. Lengths are in tokens."""

    prompt: Any = None
    content: Any = None
    messages: list[_Message] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    stream_options: _StreamOptions | None = None

    def counts(self) -> dict[str, int | None]:
        if self.use_beam_search:
            raise RefusalError(400, "use_beam_search: beams are not simulated; ask without.")
        return {"n": self.n, "best_of": self.best_of}

    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def usage(self) -> Usage:
        """Return the usage that is asked for; an answer in one piece always has it."""
        options = self.stream_options or _StreamOptions()
        if self.stream and not options.include_usage:
            return "none"
        return "running" if options.continuous_usage_stats else "final"

    def split_messages(self) -> list[Any]:
        """Return a conversation's tokens: texts with roles, pictures, and what an answer begins
        with; other parts of a message count nothing. Raises RefusalError."""
        if not self.messages:
            raise RefusalError(400, "messages must be a list of at least one message")
        tokens: list[Any] = []
        for message in self.messages:
            content = message.content or ""
            parts = [content] if isinstance(content, str) else content
            tokens += split_turn(message.role or "", parts)
        return tokens + begin_turn("assistant")


def begin_turn(role: str) -> list[Any]:
    """Return the tokens that the pretended chat template puts before a message."""
    return [f"<{role}>"] * _ROLE_TOKENS


def split_turn(role: str, parts: Iterable[str | MessagePart]) -> list[Any]:
    """Return the tokens of a message, with all that the pretended chat template adds. Raises
    RefusalError."""
    read = (part.split() if isinstance(part, str) else part.tokens() for part in parts)
    return [*begin_turn(role), *chain.from_iterable(read), END]


class GenerateBody(SimulatedBody):
    """A request to SGLang's /generate."""

    text: Any = None
    input_ids: list[int] | None = None
    sampling_params: _SamplingParams = msgspec.field(default_factory=_SamplingParams)

    def counts(self) -> dict[str, int | None]:
        return {"sampling_params.n": self.sampling_params.n}

    def limit(self) -> int | None:
        return self.sampling_params.max_new_tokens

    def split(self) -> list[Any]:
        """Return the prompt's tokens. Raises RefusalError."""
        return split_prompt(self.text if self.input_ids is None else self.input_ids)


Body = TypeVar("Body", bound=SimulatedBody)


def parse_body(
    data: bytes, kind: type[Body], model: str = MODEL, adapters: Collection[str] = ()
) -> Body:
    """Parse a JSON body into a request for the model of that name, or for one of its adapters.
    Raises RefusalError."""
    try:
        body = msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusalError(400, str(error)) from None
    if body.model not in (None, model, *adapters):
        raise RefusalError(404, f"The model `{body.model}` does not exist.")
    # To answer with one would be to serve a part of the load that was asked for.
    for name, value in body.counts().items():
        if value not in (None, 1):
            raise RefusalError(
                400, f"{name} {value}: one answer to a request is simulated; ask for 1."
            )
    return body


def split_prompt(prompt: object) -> list[Any]:
    """Split a prompt into one token per word of a text; token ids stay as they are. A list of one
    prompt is that prompt.

    Raises RefusalError.
    """
    match prompt:
        case [str() | list(), _, *_]:
            raise RefusalError(
                400,
                f"{len(prompt)} prompts: one to a request is simulated; ask for each by itself.",
            )
        case [str() | list() as only]:
            prompt = only
    if isinstance(prompt, str):
        return prompt.split()
    if isinstance(prompt, list) and set(map(type, prompt)) == {int} and min(prompt) >= 0:
        return prompt
    raise RefusalError(400, "prompt must be one string or one list of token ids")


def count_tokens(
    wire: SimulatedWire, body: SimulatedBody, input_tokens: int, max_model_len: int
) -> tuple[int, int]:
    """Count input and output tokens of a request whose prompt has so many. Raises RefusalError if
    they are more than `max_model_len` together.
    """
    room = max_model_len - input_tokens
    output_tokens = wire.limit(body)
    if output_tokens is None:
        output_tokens = max(
            1, min(room, room if wire.default_tokens is None else wire.default_tokens)
        )
    if output_tokens < 1:
        raise RefusalError(400, f"max_tokens must be at least 1, got {output_tokens}.")
    if output_tokens > room:
        limit = (
            f"This model's maximum context length is {max_model_len} tokens. However, you requested"
        )
        raise RefusalError(
            400, f"{limit} {output_tokens} output tokens and {input_tokens} input tokens."
        )
    return input_tokens, output_tokens
