"""Triton's generate endpoints with TensorRT-LLM's ensemble, in the bytes that their sources say they send."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadstone.measure.wire import answer as base
from loadstone.measure.wire.tolerant import MAX_COUNT
from loadstone.measure.wire.triton import TritonAnswer, make_inputs, spell_input
from loadstone.workload.request import RequestSpec, Structured


def response(text: Any, tokens: Any = None, **more: Any) -> bytes:
    counts = {} if tokens is None else {"num_input_tokens": 5, "num_output_tokens": tokens}
    fields = {"model_name": "ensemble", "model_version": "1", "text_output": text, **counts, **more}
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


COUNTED = [response(" one", 1), response("", 1), response(" three four", 2), response("", 0)]


def heard(*pieces: bytes, stream: bool = True, keep_text: bool = False) -> TritonAnswer:
    answer = TritonAnswer(stream=stream, keep_text=keep_text)
    told = sum(answer.feed(piece) for piece in pieces)
    assert told + answer.finish() == answer.events
    return answer


def state(answer: TritonAnswer) -> dict[str, Any]:
    answer.text  # noqa: B018  # joins what is held in parts
    return {name: getattr(answer, name) for name in base.Answer.__slots__ if name != "_sse"}


def test_counts_of_each_response_add_up() -> None:
    answer = heard(*COUNTED, keep_text=True)
    assert (answer.events, answer.running, answer.running_tokens) == (3, True, [1, 2, 4])
    assert (answer.input_tokens, answer.output_tokens) == (5, 4)
    assert (answer.done, answer.finish_reason, answer.error) == (True, None, None)
    assert answer.text == " one three four"


def test_without_counts_a_response_with_text_is_a_piece() -> None:
    answer = heard(response(" one"), response("", []), response(" two"), response(""))
    assert (answer.events, answer.running, answer.running_tokens, answer.output_tokens) == (2, False, [], None)
    assert answer.done
    assert answer.text == ""  # nobody asked to keep it


def test_one_response_without_a_count_ends_the_running_count() -> None:
    answer = heard(response(" one", 1), response(" two"), response(" three", 1))
    assert (answer.events, answer.running, answer.running_tokens, answer.output_tokens) == (3, False, [1], 2)


def test_the_count_of_input_tokens_need_not_be_repeated() -> None:
    assert heard(response(" one", 1), response(" two", num_output_tokens=1)).input_tokens == 5


def test_no_sum_of_counts_is_beyond_what_is_a_count() -> None:
    assert heard(response(" one", MAX_COUNT), response(" two", MAX_COUNT)).output_tokens == MAX_COUNT


def test_the_end_is_known_only_when_the_message_has_ended() -> None:
    answer = TritonAnswer()
    assert answer.feed(response(" one", 1)) == 1
    assert not answer.done
    answer.finish()
    assert answer.done


def test_no_output_is_no_answer() -> None:
    assert not heard(response(""), response("", 0)).done
    assert not heard().done


@pytest.mark.parametrize("text", [" one", [" one"]])
@pytest.mark.parametrize("tokens", [1, 1.0, [1], [1.0, 7.0]])
def test_values_come_bare_or_as_tensors(text: Any, tokens: Any) -> None:
    answer = heard(response(text, tokens, num_input_tokens=[5]), keep_text=True)
    assert (answer.events, answer.output_tokens, answer.input_tokens, answer.text) == (1, 1, 5, " one")


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b'data: {"error":"in ensemble, max_tokens must be positive"}\n\n', "in ensemble, max_tokens"),
        (b'data: {"error":{"message":"odd"}}\n\n', "odd"),
        (b'data: {"text_output":7,"error":"odd"}\n\n', "odd"),
        (b"data: {\n\n", "stream event is not a JSON object: {"),
        (b"data: [DONE]\n\n", "stream event is not a JSON object: [DONE]"),
    ],
)
def test_errors_after_a_200(sent: bytes, error: str) -> None:
    answer = heard(response(" one", 1), sent)
    assert (answer.error or "").startswith(error)
    assert (answer.events, answer.done) == (1, False)


def test_an_answer_in_one_piece_is_one_event_with_all_its_tokens() -> None:
    counts = {"num_input_tokens": 5, "num_output_tokens": 4}
    body = json.dumps({"model_name": "ensemble", "text_output": " one two three", **counts}).encode()
    answer = heard(body[:20], body[20:], stream=False, keep_text=True)
    assert (answer.events, answer.output_tokens, answer.done, answer.text) == (1, 4, True, " one two three")
    answer = heard(b'{"text_output": " one two three"}', stream=False)
    assert (answer.events, answer.output_tokens, answer.done) == (1, None, True)
    assert heard(b'{"error": "no"}', stream=False).error == "no"


def test_odd_fields_and_invalid_utf8_do_not_spoil_the_others() -> None:
    answer = heard(
        b'data: {"text_output":"\xe2\x82","num_output_tokens":1}\n\n',
        response(7, 1, num_input_tokens="five"),
        response(["a", 7, "b"], "1"),
        keep_text=True,
    )
    assert (answer.running_tokens, answer.text, answer.error) == ([1, 2, 3], "\ufffdab", None)


def test_inputs_are_named_as_the_models_release_does() -> None:
    assert spell_input("min_tokens", ()) == "min_tokens"
    assert spell_input("min_tokens", ("min_length",)) == "min_length"
    assert spell_input("min_tokens", ("min_length", "min_tokens")) == "min_tokens"
    assert spell_input("seed", ("random_seed",)) == "random_seed"
    assert spell_input("top_p", ("min_length",)) == "top_p"


def test_a_shape_is_asked_for_beside_the_prompt() -> None:
    plain = RequestSpec(endpoint="triton", model="ensemble")
    shaped = RequestSpec(
        endpoint="triton", model="ensemble", structured=Structured("regex", "a+"), spelling="guided_decoding"
    )
    guide = {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "a+"}
    assert make_inputs(shaped, "p", "9") == make_inputs(plain, "p", "9") | guide


@given(st.data())
def test_a_stream_means_the_same_in_pieces_of_any_size(data: st.DataObject) -> None:
    stream = b"".join(COUNTED)
    edges = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=30)))
    pieces = [stream[a:b] for a, b in pairwise([0, *edges, len(stream)])]
    assert state(heard(*pieces, keep_text=True)) == state(heard(*COUNTED, keep_text=True))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([1e400, -1]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
EVENTS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("text_output", "num_input_tokens", "num_output_tokens", "error"), JSON)
).map(lambda fields: b"data: " + json.dumps(fields).encode() + b"\n\n")


@settings(max_examples=300)
@given(st.lists(EVENTS | st.binary(max_size=60), max_size=4), st.booleans())
def test_nothing_raises_and_the_facts_can_be_stored(pieces: list[bytes], stream: bool) -> None:
    answer = heard(*pieces, stream=stream, keep_text=True)
    for count in (answer.input_tokens, answer.output_tokens):
        assert count is None or 0 <= count < 2**31
    assert answer.error is None or (answer.error.isprintable() and len(answer.error) <= 300)
    assert answer.running_tokens == sorted(answer.running_tokens)
    if answer.running:
        assert len(answer.running_tokens) == answer.events
