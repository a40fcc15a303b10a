"""What a request asks for: its JSON body, how many tokens go in and out, and when it is refused."""

from __future__ import annotations

from typing import Any

import msgspec

from loadstone.simserver.law import MODEL, Usage

_COMPLETION_TOKENS = 16  # the OpenAI API's default, kept by vLLM
_GENERATE_TOKENS = 128  # SGLang's
_CHAT_TOKENS, _MESSAGE_TOKENS = 3, 4  # what the pretended chat template adds: in all, and per message


class RefusalError(Exception):
    """The request is answered with this HTTP status and message instead."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Part(msgspec.Struct):
    text: str | None = None


class _Message(msgspec.Struct):
    role: str | None = None
    content: str | list[_Part] | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _SamplingParams(msgspec.Struct):
    max_new_tokens: int | None = None
    n: int | None = None


class Ask(msgspec.Struct):
    """The fields of a request that matter here; others are accepted and ignored. Lengths are in tokens."""

    model: str | None = None
    prompt: Any = None
    content: Any = None
    messages: list[_Message] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    text: Any = None
    input_ids: list[int] | None = None
    sampling_params: _SamplingParams | None = None


_decode = msgspec.json.Decoder(Ask).decode


def parse_ask(body: bytes, model: str = MODEL) -> Ask:
    """The request in a JSON body, for the model of that name. Raises RefusalError."""
    try:
        ask = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusalError(400, str(error)) from None
    if ask.model not in (None, model):
        raise RefusalError(404, f"The model `{ask.model}` does not exist.")
    # To answer with one would be to serve a part of the load that was asked for.
    several = {"n": ask.n, "best_of": ask.best_of, "sampling_params.n": (ask.sampling_params or _SamplingParams()).n}
    for name, value in several.items():
        if value not in (None, 1):
            raise RefusalError(400, f"{name} {value}: one answer to a request is simulated; ask for 1.")
    if ask.use_beam_search:
        raise RefusalError(400, "use_beam_search: beams are not simulated; ask without.")
    return ask


def prompt_tokens(prompt: object) -> list[Any]:
    """One token per word of a text; token ids as they are. A list of one prompt is that prompt."""
    match prompt:
        case str(text) | [str(text)]:
            return text.split()
        case [int(), *_] as ids:
            return list(ids)
        case [[int(), *_] as ids]:
            return list(ids)
    raise RefusalError(400, "prompt must be one string or one list of token ids")


def content_of(ask: Ask, path: str) -> list[Any]:
    """The prompt's tokens, for what they have in common with other prompts'. Of a conversation, texts with roles.

    Of one without text: none.
    """
    if path == "/generate":
        return prompt_tokens(ask.text if ask.input_ids is None else ask.input_ids)
    if ask.messages is None:
        return prompt_tokens(ask.prompt)
    tokens: list[Any] = []
    for message in ask.messages:
        content = message.content or ""
        texts = [content] if isinstance(content, str) else [part.text or "" for part in content]
        tokens += [message.role] * _MESSAGE_TOKENS
        for text in texts:
            tokens += text.split()
    return tokens


def _chat_tokens(messages: list[_Message] | None) -> int:
    """Tokens of a conversation. Parts of a message that are no text count nothing."""
    if not messages:
        raise RefusalError(400, "messages must be a list of at least one message")
    tokens = _CHAT_TOKENS
    for message in messages:
        content = message.content or ""
        texts = [content] if isinstance(content, str) else [part.text or "" for part in content]
        tokens += _MESSAGE_TOKENS + sum(len(text.split()) for text in texts)
    return tokens


def lengths(ask: Ask, chat: bool, max_model_len: int) -> tuple[int, int]:
    """Input and output tokens. Raises RefusalError if they are more than `max_model_len` together."""
    input_tokens = _chat_tokens(ask.messages) if chat else len(prompt_tokens(ask.prompt))
    room = max_model_len - input_tokens
    output_tokens = ask.max_tokens if ask.max_completion_tokens is None else ask.max_completion_tokens
    if output_tokens is None:
        output_tokens = max(1, room if chat else min(room, _COMPLETION_TOKENS))
    return _fitting(input_tokens, output_tokens, max_model_len)


def generate_lengths(ask: Ask, max_model_len: int) -> tuple[int, int]:
    """As `lengths`, of a request to /generate."""
    input_tokens = len(prompt_tokens(ask.text if ask.input_ids is None else ask.input_ids))
    output_tokens = (ask.sampling_params or _SamplingParams()).max_new_tokens
    if output_tokens is None:
        output_tokens = max(1, min(max_model_len - input_tokens, _GENERATE_TOKENS))
    return _fitting(input_tokens, output_tokens, max_model_len)


def _fitting(input_tokens: int, output_tokens: int, max_model_len: int) -> tuple[int, int]:
    room = max_model_len - input_tokens
    if output_tokens < 1:
        raise RefusalError(400, f"max_tokens must be at least 1, got {output_tokens}.")
    if output_tokens > room:
        limit = f"This model's maximum context length is {max_model_len} tokens. However, you requested"
        raise RefusalError(400, f"{limit} {output_tokens} output tokens and {input_tokens} input tokens.")
    return input_tokens, output_tokens


def usage_asked(ask: Ask) -> Usage:
    """The usage that `stream_options` asks for; an answer in one piece always has it."""
    options = ask.stream_options or _StreamOptions()
    if ask.stream and not options.include_usage:
        return "none"
    return "running" if options.continuous_usage_stats else "final"
