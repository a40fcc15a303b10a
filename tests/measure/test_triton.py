"""Triton's generate endpoints with TensorRT-LLM's ensemble, in the bytes that their sources say
they send."""

import json
from typing import Any

import pytest

from loadstone.measure.wire.tolerant import MAX_COUNT
from loadstone.measure.wires.triton import TritonAnswer, make_body, spell_input
from loadstone.workload.request import RequestSpec, Structured
from wires import event, hear


def response(text: Any, tokens: Any = None, **more: Any) -> bytes:
    counts = {} if tokens is None else {"num_input_tokens": 5, "num_output_tokens": tokens}
    fields = {"model_name": "ensemble", "model_version": "1", "text_output": text, **counts, **more}
    return event(**fields)


COUNTED = [response(" one", 1), response("", 1), response(" three four", 2), response("", 0)]


def heard(*pieces: bytes, stream: bool = True, keep_text: bool = False) -> TritonAnswer:
    return hear(TritonAnswer(stream=stream, keep_text=keep_text), *pieces)


def test_counts_of_each_response_add_up() -> None:
    answer = heard(*COUNTED, keep_text=True)
    assert (answer.events, answer.running, answer.running_tokens) == (3, True, [1, 2, 4])
    assert (answer.input_tokens, answer.output_tokens) == (5, 4)
    assert (answer.done, answer.finish_reason, answer.error) == (True, None, None)
    assert answer.text == " one three four"


def test_without_counts_a_response_with_text_is_a_piece() -> None:
    answer = heard(response(" one"), response("", []), response(" two"), response(""))
    assert (answer.events, answer.running, answer.running_tokens, answer.output_tokens) == (
        2,
        False,
        [],
        None,
    )
    assert answer.done
    assert answer.text == ""  # nobody asked to keep it


def test_one_response_without_a_count_ends_the_running_count() -> None:
    answer = heard(response(" one", 1), response(" two"), response(" three", 1))
    assert (answer.events, answer.running, answer.running_tokens, answer.output_tokens) == (
        3,
        False,
        [1],
        2,
    )


def test_the_count_of_input_tokens_need_not_be_repeated() -> None:
    assert heard(response(" one", 1), response(" two", num_output_tokens=1)).input_tokens == 5


def test_no_sum_of_counts_is_beyond_what_is_a_count() -> None:
    assert (
        heard(response(" one", MAX_COUNT), response(" two", MAX_COUNT)).output_tokens == MAX_COUNT
    )


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
    assert (answer.events, answer.output_tokens, answer.input_tokens, answer.text) == (
        1,
        1,
        5,
        " one",
    )


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (
            b'data: {"error":"in ensemble, max_tokens must be positive"}\n\n',
            "in ensemble, max_tokens",
        ),
        (b'data: {"text_output":7,"error":"odd"}\n\n', "odd"),
        (b"data: [DONE]\n\n", "stream event is not a JSON object: [DONE]"),
    ],
)
def test_errors_of_tritons_after_a_200(sent: bytes, error: str) -> None:
    answer = heard(response(" one", 1), sent)
    assert (answer.error or "").startswith(error)
    assert (answer.events, answer.done) == (1, False)


def test_an_answer_in_one_piece_is_one_event_with_all_its_tokens() -> None:
    counts = {"num_input_tokens": 5, "num_output_tokens": 4}
    body = json.dumps(
        {"model_name": "ensemble", "text_output": " one two three", **counts}
    ).encode()
    answer = heard(body[:20], body[20:], stream=False, keep_text=True)
    assert (answer.events, answer.output_tokens, answer.done, answer.text) == (
        1,
        4,
        True,
        " one two three",
    )
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
        endpoint="triton",
        model="ensemble",
        structured=Structured("regex", "a+"),
        spelling="guided_decoding",
    )
    guide = {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "a+"}
    assert make_body(shaped) == make_body(plain) | guide
