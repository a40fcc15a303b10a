"""Meeting a server: who it is, what it takes, and how to write prompts of exact length for it.

Everything here happens before the run, with single small requests, each asked and heard as the run's will be.
"""

from __future__ import annotations

from typing import Any

from loadstone.core import Target
from loadstone.core.errors import InputError
from loadstone.measure.engines.identify import check_same, identify
from loadstone.measure.engines.probe import (
    SHAPED_TOKENS,
    ask_once,
    check_inputs,
    try_fields,
    with_sampling,
    with_shape,
)
from loadstone.measure.engines.server import Server, check_proxy, check_url, shown
from loadstone.measure.engines.vocabulary import find_vocabulary, token_counter
from loadstone.measure.wire.answer import Answer
from loadstone.workload.prompts import Vocabulary
from loadstone.workload.request import Ask, Endpoint, Sampling, Structured

__all__ = ["Server", "check_proxy", "check_same", "check_url", "meet", "shown", "token_counter"]


def meet(
    server: Server,
    *,
    model: str | None,
    endpoint: Endpoint | None,
    tokenizer: str | None,
    sampling: Sampling,
    structured: Structured | None,
    extra: dict[str, Any],
    stream: bool,
    exact: bool,
    text_only: bool,
) -> tuple[Target, Vocabulary, Ask]:
    """Ask the server who it is and try what it takes; the Ask is what the run then says.

    exact       lengths of answers are demanded, as far as the server can be told so
    text_only   prompts must be text (conversations): chat is preferred, and token ids are not used
    Raises TargetError, one line, where it cannot be measured, and InputError where it does not take what was asked.
    """
    if endpoint == "triton-grpc":
        raise InputError("--endpoint triton-grpc: this is met over gRPC; over HTTP it is --endpoint triton")
    target, ask = identify(server, model=model, endpoint=endpoint, extra=extra, stream=stream, text_only=text_only)
    target.streams = stream
    if ask.endpoint == "triton":
        check_inputs(ask, sampling, structured)
    ask = try_fields(server, target, ask, exact=exact)
    ask = with_sampling(lambda ask: ask_once(server, ask).error, ask, sampling)
    if structured is not None:

        def hear(shaped: Ask) -> tuple[str | None, Answer]:
            heard = ask_once(server, shaped, tokens=SHAPED_TOKENS, keep_text=True)
            return heard.error, heard.answer

        ask = with_shape(hear, ask, structured)
    vocabulary = find_vocabulary(server, target, ask, tokenizer, text_only=text_only)
    target.prompt_kind, target.overhead_tokens = vocabulary.kind, vocabulary.overhead_tokens
    return target, vocabulary, ask
