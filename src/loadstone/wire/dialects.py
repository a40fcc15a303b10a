"""Which answers an endpoint gives. No I/O."""

from __future__ import annotations

from loadstone.errors import InputError
from loadstone.wire.answer import Answer
from loadstone.wire.ask import Endpoint
from loadstone.wire.openai import OpenAIAnswer
from loadstone.wire.sglang import SglangAnswer
from loadstone.wire.triton import TritonAnswer
from loadstone.wire.triton_grpc import GrpcAnswer

_ANSWERS: dict[Endpoint, type[Answer]] = {
    "completions": OpenAIAnswer,
    "chat": OpenAIAnswer,
    "sglang": SglangAnswer,
    "triton": TritonAnswer,
    "triton-grpc": GrpcAnswer,
}


def new_answer(endpoint: Endpoint, *, stream: bool = True, keep_text: bool = False) -> Answer:
    """An answer about to be heard, over HTTP. Raises InputError for an endpoint that is not HTTP."""
    kind = _ANSWERS.get(endpoint)
    if kind is None:
        raise InputError(f"--endpoint {endpoint}: its answers do not come over HTTP")
    return kind(stream=stream, keep_text=keep_text)
