"""Reads what a request asks for: its JSON body, how many tokens go in and out, and when it is
refused."""

from __future__ import annotations

from typing import Any

import msgspec

from loadstone.measure.simulated_server.settings import MODEL, Usage

COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"
_DEFAULT_TOKENS = {COMPLETIONS: 16, GENERATE: 128}
"""The default length of an answer: the OpenAI API's, kept by vLLM, and SGLang's; a conversation's
goes on to the end.
"""
_ROLE_TOKENS, _END = 3, "<end>"
"""What the pretended chat template puts before a message, the answer's own too, and behind it: so
that a later turn goes on with the tokens of this one and its answer."""


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


class Body(msgspec.Struct):
    """The fields of a request that matter here; others are accepted and ignored. Lengths are in
    tokens."""

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


_decode = msgspec.json.Decoder(Body).decode


def parse_body(data: bytes, model: str = MODEL) -> Body:
    """Parse a JSON body into a request for the model of that name. Raises RefusalError."""
    try:
        body = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusalError(400, str(error)) from None
    if body.model not in (None, model):
        raise RefusalError(404, f"The model `{body.model}` does not exist.")
    # To answer with one would be to serve a part of the load that was asked for.
    sampling = body.sampling_params or _SamplingParams()
    several = {"n": body.n, "best_of": body.best_of, "sampling_params.n": sampling.n}
    for name, value in several.items():
        if value not in (None, 1):
            raise RefusalError(
                400, f"{name} {value}: one answer to a request is simulated; ask for 1."
            )
    if body.use_beam_search:
        raise RefusalError(400, "use_beam_search: beams are not simulated; ask without.")
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


def read_content(body: Body, path: str) -> list[Any]:
    """Return the prompt's tokens at this endpoint, for what they have in common with other
    prompts'. Raises RefusalError.

    Of a conversation, texts with roles, and what an answer begins with; parts of a message that are
    no text count nothing.
    """
    if path == GENERATE:
        return split_prompt(body.text if body.input_ids is None else body.input_ids)
    if path != CHAT:
        return split_prompt(body.prompt)
    if not body.messages:
        raise RefusalError(400, "messages must be a list of at least one message")
    tokens: list[Any] = []
    for message in body.messages:
        content = message.content or ""
        texts = [content] if isinstance(content, str) else [part.text or "" for part in content]
        tokens += [f"<{message.role}>"] * _ROLE_TOKENS
        for text in texts:
            tokens += text.split()
        tokens.append(_END)
    return tokens + ["<assistant>"] * _ROLE_TOKENS


def count_tokens(body: Body, path: str, input_tokens: int, max_model_len: int) -> tuple[int, int]:
    """Count input and output tokens of a request whose prompt has so many. Raises RefusalError if
    they are more than `max_model_len` together.
    """
    room = max_model_len - input_tokens
    if path == GENERATE:
        output_tokens = (body.sampling_params or _SamplingParams()).max_new_tokens
    else:
        output_tokens = (
            body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        )
    if output_tokens is None:
        output_tokens = max(1, min(room, _DEFAULT_TOKENS.get(path, room)))
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


def read_usage(body: Body) -> Usage:
    """Return the usage that `stream_options` asks for; an answer in one piece always has it."""
    options = body.stream_options or _StreamOptions()
    if body.stream and not options.include_usage:
        return "none"
    return "running" if options.continuous_usage_stats else "final"
