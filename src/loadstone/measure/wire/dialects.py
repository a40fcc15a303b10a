"""Which answers an endpoint gives. No I/O."""

from __future__ import annotations

from loadstone.measure.wire.answer import Answer
from loadstone.measure.wire.openai import OpenAIAnswer
from loadstone.measure.wire.sglang import SglangAnswer
from loadstone.measure.wire.triton import TritonAnswer
from loadstone.measure.wire.triton_grpc import GrpcAnswer
from loadstone.workload.request import Endpoint

_ANSWERS: dict[Endpoint, type[Answer]] = {
    "completions": OpenAIAnswer,
    "chat": OpenAIAnswer,
    "sglang": SglangAnswer,
    "triton": TritonAnswer,
    "triton-grpc": GrpcAnswer,
}


def new_answer(endpoint: Endpoint, *, stream: bool = True, keep_text: bool = False) -> Answer:
    """An answer about to be heard: of a stream or in one piece, and whether its text is of use."""
    return _ANSWERS[endpoint](stream=stream, keep_text=keep_text)
