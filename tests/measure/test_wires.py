"""What every wire promises: pieces of any size mean the same, nothing raises, facts can be
stored."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadstone.measure.wire import answer as base
from loadstone.measure.wires import sglang as sglang_wire
from loadstone.measure.wires.anthropic import MessagesReply
from loadstone.measure.wires.openai import OpenAIAnswer
from loadstone.measure.wires.responses import ResponsesReply
from loadstone.measure.wires.sglang import SglangAnswer
from loadstone.measure.wires.triton import TritonAnswer
from test_sglang import said
from test_triton import response
from wires import DONE, JSON, check_storable, cut, event, fields, hear, state

LENGTH = {"type": "length", "length": 3}
CLASSES = {
    "openai": OpenAIAnswer,
    "messages": MessagesReply,
    "responses": ResponsesReply,
    "sglang": SglangAnswer,
    "triton": TritonAnswer,
}


def text(value: Any, finish: Any = None, **more: Any) -> bytes:
    return event(choices=[{"index": 0, "text": value, "finish_reason": finish}], **more)


def block(delta: Any, **more: Any) -> bytes:
    return event(type="content_block_delta", index=0, delta=delta, **more)


def speech(delta: Any, **more: Any) -> bytes:
    return event(type="response.output_text.delta", output_index=0, delta=delta, **more)


STREAMS = {
    "messages": [
        event(type="message_start", message={"usage": {"input_tokens": 4, "output_tokens": 1}}),
        event(type="content_block_start", index=0, content_block={"type": "text", "text": ""}),
        block({"type": "text_delta", "text": " one"}),
        event(type="ping"),
        block({"type": "text_delta", "text": " two\u00e9"}),
        event(
            type="message_delta", delta={"stop_reason": "max_tokens"}, usage={"output_tokens": 2}
        ),
        event(type="message_stop"),
    ],
    "responses": [
        event(type="response.created", response={"id": "r", "status": "in_progress"}),
        speech(" one", sequence_number=1),
        speech(" two\u00e9", sequence_number=2),
        event(
            type="response.incomplete",
            response={
                "status": "incomplete",
                "incomplete_details": {"reason": "max_output_tokens"},
                "usage": {"input_tokens": 4, "output_tokens": 2},
            },
        ),
    ],
    "openai": [text(" one"), text(" two\u00e9"), text("", "length"), DONE],
    "sglang": [
        said(" one", 1),
        said(" one two\u00e9", 2),
        said(" one two\u00e9", 2),
        said(" a", 3, LENGTH),
        DONE,
    ],
    "triton": [response(" one", 1), response("", 1), response(" three four", 2), response("", 0)],
}
_DELTA = fields(("content", "reasoning", "tool_calls", "role"))
_CHOICE = fields(("text", "finish_reason"), delta=_DELTA)
_USAGE = fields(
    ("prompt_tokens", "completion_tokens"),
    prompt_tokens_details=fields(("cached_tokens",)),
    completion_tokens_details=fields(("reasoning_tokens",)),
)
_META = fields(
    ("finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")
)


def documents(names: tuple[str, ...], **more: Any) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, JSON) | more)


_COUNTS = fields(
    (
        "input_tokens",
        "output_tokens",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
        "input_tokens_details",
        "output_tokens_details",
    )
)
_BLOCK = fields(
    ("text", "thinking", "partial_json", "name", "input", "stop_reason"),
    type=st.sampled_from(["text_delta", "thinking_delta", "signature_delta", "odd_delta"]),
)
_MESSAGE = fields(("model", "content", "stop_reason"), usage=_COUNTS)
_RESPONSE = fields(
    ("id", "model", "incomplete_details", "error", "output"),
    usage=_COUNTS,
    status=st.sampled_from(["in_progress", "completed", "incomplete", "failed"]) | JSON,
)
DOCUMENTS = {
    "messages": documents(
        ("index", "error", "content", "stop_reason"),
        type=st.sampled_from(
            ["message_start", "content_block_start", "content_block_delta", "message_delta"]
        )
        | JSON,
        message=_MESSAGE,
        content_block=_BLOCK,
        delta=_BLOCK,
        usage=_COUNTS,
    ),
    "responses": documents(
        ("error", "message", "item", "output_index", "output", "status"),
        type=st.sampled_from(
            [
                "response.output_text.delta",
                "response.reasoning_summary_text.delta",
                "response.function_call_arguments.delta",
                "response.odd.delta",
                "response.output_item.added",
                "error",
            ]
        )
        | JSON,
        delta=JSON,
        response=_RESPONSE,
        usage=_COUNTS,
    ),
    "openai": documents(
        ("error", "message"),
        choices=JSON | st.lists(_CHOICE, max_size=3),
        usage=_USAGE,
        timings=fields(("prompt_ms", "predicted_ms")),
    ),
    "sglang": documents(("text", "output_ids", "error", "message"), meta_info=_META),
    "triton": documents(("text_output", "num_input_tokens", "num_output_tokens", "error")),
}
each_wire = pytest.mark.parametrize("wire", CLASSES)


@each_wire
@given(st.data())
def test_a_stream_means_the_same_in_pieces_of_any_size(wire: str, data: st.DataObject) -> None:
    keep = data.draw(st.booleans())
    make = CLASSES[wire]
    whole = hear(make(keep_text=keep), *STREAMS[wire])
    assert whole.events
    assert state(hear(make(keep_text=keep), *cut(data, b"".join(STREAMS[wire])))) == state(whole)


@each_wire
@settings(max_examples=300)
@given(st.data(), st.booleans())
def test_nothing_raises_and_the_facts_can_be_stored(
    wire: str, data: st.DataObject, stream: bool
) -> None:
    sent = DOCUMENTS[wire].map(lambda document: event(**document)) | st.binary(max_size=100)
    pieces = data.draw(st.lists(sent, max_size=5))
    check_storable(hear(CLASSES[wire](stream=stream, keep_text=True), *pieces))
    check_storable(hear(CLASSES[wire](), *(b"data: " + piece + b"\n\n" for piece in pieces)))


@each_wire
@settings(max_examples=200)
@given(st.data())
def test_no_body_makes_an_answer_in_one_piece_raise(wire: str, data: st.DataObject) -> None:
    document = DOCUMENTS[wire].map(lambda fields: json.dumps(fields).encode())
    body = data.draw(st.binary(max_size=200) | document)
    answer = hear(CLASSES[wire](stream=False), body[:7], body[7:])
    assert answer.events in (0, 1)
    assert answer.template(body) is None
    check_storable(answer)


PLAIN = {
    "messages": lambda: block({"type": "text_delta", "text": "a"}),
    "responses": lambda: speech("a"),
    "openai": lambda: text("a"),
    "sglang": lambda: said("a", 1),
    "triton": lambda: response("a", 1),
}


@each_wire
@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (event(error="plain words"), "plain words"),
        (event(error={"message": "out of memory", "code": 500}), "out of memory"),
        (b"data: {\n\n", "stream event is not a JSON object: {"),
        (b"data: [1]\n\n", "stream event is not a JSON object: [1]"),
    ],
)
def test_errors_after_a_200(wire: str, sent: bytes, error: str) -> None:
    answer = hear(CLASSES[wire](), PLAIN[wire](), sent)
    assert (answer.error, answer.events) == (error, 1)


@pytest.mark.parametrize("wire", ["openai", "sglang"])
@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        ("stop", "stop"),
        (None, None),
        ({"type": "length", "length": 8}, "length"),
        ({"type": "stop", "matched": 128009}, "stop"),
        ({"type": "\x1b[31m\n"}, "\ufffd[31m"),
        (7, "7"),
        ("x" * 100, "x" * 39 + "…"),
    ],
)
def test_a_finish_reason_of_any_type_becomes_a_short_printable_word(
    wire: str, finish: Any, expected: str | None
) -> None:
    sent = text("a", finish) if wire == "openai" else said("a", 1, finish)
    answer = hear(CLASSES[wire](), sent)
    assert (answer.events, answer.finish_reason, answer.error) == (1, expected, None)


@pytest.mark.parametrize(
    ("wire", "pieces"),
    [
        ("openai", [text("abcd")] * 5),
        ("sglang", [said("abcd", 1), said("abcdabcdabcd", 2)]),
        ("triton", [response("abcd", 1)] * 5),
    ],
)
def test_no_more_text_is_kept_than_has_its_use(
    wire: str, pieces: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (base, sglang_wire):
        monkeypatch.setattr(module, "MAX_TEXT", 10)
    answer = hear(CLASSES[wire](keep_text=True), *pieces)
    assert (answer.text, answer.events) == ("abcdabcdab", len(pieces))
