import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadstone.core.text import error_text, excerpt
from loadstone.measure.wire import sse
from loadstone.measure.wire.answer import Whole
from loadstone.measure.wires.openai import OpenAIAnswer as Answer
from wires import DONE, cut, event, hear, state

WIRE = Path(__file__).resolve().parents[3] / "shared" / "data" / "wire"
RECORDED = sorted(WIRE.glob("*.sse"))
needs_recordings = pytest.mark.skipif(
    not RECORDED, reason="recorded engine streams (shared/data/wire) are not here"
)


def heard(*pieces: bytes) -> Answer:
    return hear(Answer(), *pieces)


def text(value: Any, finish: Any = None, **fields: Any) -> bytes:
    return event(choices=[{"index": 0, "text": value, "finish_reason": finish}], **fields)


def delta(finish: Any = None, usage: Any = None, **fields: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": fields, "finish_reason": finish}], usage=usage)


def usage(output: Any, prompt: Any = 5) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "total_tokens": 0, "completion_tokens": output}


# --- recorded engines -----------------------------------------------------------------------------

# events, finish reason, [DONE], input, output, cached and reasoning tokens, server prefill and
# decode in ms
HEARD: dict[str, tuple[Any, ...]] = {
    "debllama.chat": (12, "length", True, 9, 12, 0, None, 7.826, 19.962),
    "debllama.completions": (12, "length", True, 7, 12, 0, None, 90.002, 175.381),
    "debllama.completions_nousage": (12, "length", True, 7, 12, 6, None, 0.908, 26.682),
    "hf.chat": (6, "length", False, 9, 6, None, None, None, None),
    "hf.completions": (6, "length", False, 7, 6, None, None, None, None),
    "hf.completions_nousage": (12, "length", False, 7, 12, None, None, None, None),
    "lcpp.chat": (11, "length", True, None, None, None, None, None, None),
    "lcpp.completions": (12, "length", True, None, None, None, None, None, None),
    "lcpp.completions_nousage": (12, "length", True, None, None, None, None, None, None),
    "lcpp.interrupted_1": (20, None, False, None, None, None, None, None, None),
    "lcpp.interrupted_2": (0, None, False, None, None, None, None, None, None),
    "lcppbin.chat": (12, "length", True, 9, 12, 0, None, 1.605, 5.137),
    "lcppbin.completions": (12, "length", True, 7, 12, 0, None, 1.499, 3.74),
    "lcppbin.completions_nousage": (12, "length", True, 7, 12, 6, None, 4.872, 5.651),
    "max.chat": (12, "length", True, 9, 12, 0, 0, None, None),
    "max.completions": (12, "length", True, 7, 12, 0, 0, None, None),
    "max.completions_nousage": (12, "length", True, None, None, None, None, None, None),
    "mlx.chat": (12, "length", True, 9, 12, 0, None, None, None),
    "mlx.completions": (12, "length", True, 7, 12, 0, None, None, None),
    "mlx.completions_nousage": (12, "length", True, None, None, None, None, None, None),
    "vllm.chat": (6, "length", True, 9, 12, None, None, None, None),
    "vllm.completions": (12, "length", True, 7, 12, None, None, None, None),
    "vllm.completions_nousage": (12, "length", True, None, None, None, None, None, None),
}


@needs_recordings
def test_every_recorded_stream_is_expected_here() -> None:
    assert [path.name.removesuffix(".sse") for path in RECORDED] == sorted(HEARD)


@needs_recordings
@pytest.mark.parametrize("name", sorted(HEARD))
def test_a_recorded_stream_says_what_its_engine_meant(name: str) -> None:
    answer = heard((WIRE / f"{name}.sse").read_bytes())
    events, finish, done, inputs, outputs, cached, reasoning, prefill_ms, decode_ms = HEARD[name]
    assert (answer.events, answer.finish_reason, answer.done, answer.error) == (
        events,
        finish,
        done,
        None,
    )
    assert (answer.input_tokens, answer.output_tokens) == (inputs, outputs)
    assert (answer.cached_tokens, answer.reasoning_tokens) == (cached, reasoning)
    assert answer.server_prefill_s == (None if prefill_ms is None else prefill_ms / 1e3)
    assert answer.server_decode_s == (None if decode_ms is None else decode_ms / 1e3)
    assert answer.running is (events == 0)  # no recorded engine was asked for running usage
    assert answer.running_tokens == []


@needs_recordings
def test_vllm_chat_shows_six_events_for_twelve_tokens() -> None:
    answer = heard((WIRE / "vllm.chat.sse").read_bytes())
    assert (answer.events, answer.output_tokens) == (6, 12)


@needs_recordings
def test_pings_after_an_interrupted_answer_change_nothing() -> None:
    stream = (WIRE / "lcpp.interrupted_1.sse").read_bytes()
    before, ping, _ = stream.partition(b": ping")
    assert ping
    assert before.count(b"data: ") == 20
    assert b"data: " not in stream[len(before) :]
    assert state(heard(before)) == state(heard(stream))


@needs_recordings
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_a_recorded_stream_means_the_same_cut_at_every_place(path: Path, thorough: bool) -> None:
    stream = path.read_bytes()
    whole = state(heard(stream))
    for place in range(0, len(stream) + 1, 1 if thorough else 11):
        assert state(heard(stream[:place], stream[place:])) == whole


@needs_recordings
@settings(max_examples=150)
@given(st.data())
def test_a_recorded_stream_means_the_same_in_pieces_of_any_size_and_any_line_end(
    data: st.DataObject,
) -> None:
    stream = data.draw(st.sampled_from(RECORDED)).read_bytes()
    whole = state(heard(stream))
    stream = stream.replace(b"\n", data.draw(st.sampled_from([b"\n", b"\r", b"\r\n"])))
    assert state(heard(*cut(data, stream))) == whole


# --- usage ----------------------------------------------------------------------------------------


def test_usage_never_sent_leaves_counts_missing() -> None:
    answer = heard(text("a"), text("b"), text("", "stop"), DONE)
    assert (answer.events, answer.running, answer.running_tokens) == (2, False, [])
    assert (answer.input_tokens, answer.output_tokens, answer.cached_tokens) == (None, None, None)


def test_null_usage_on_events_is_no_usage() -> None:
    answer = heard(text("a", usage=None), text("b", "stop", usage=None), DONE)
    assert (answer.events, answer.running, answer.output_tokens) == (2, False, None)


@pytest.mark.parametrize(
    "last",
    [text("", "length", usage=usage(3)), text("", "length") + event(choices=[], usage=usage(3))],
    ids=["in the last choices", "in an event without choices"],
)
def test_usage_at_the_end_gives_counts_and_no_event(last: bytes) -> None:
    answer = heard(text("a"), text("b"), last, DONE)
    assert (answer.events, answer.running, answer.running_tokens) == (2, False, [])
    assert (answer.input_tokens, answer.output_tokens, answer.finish_reason) == (5, 3, "length")


def test_usage_only_with_the_last_text_is_no_running_usage() -> None:
    answer = heard(text("a"), text("b", "length", usage=usage(2)))
    assert (answer.events, answer.running, answer.output_tokens) == (2, False, 2)


def test_an_answer_in_one_event_has_a_running_count() -> None:
    answer = heard(text("all of it", "stop", usage=usage(4)), DONE)
    assert (answer.events, answer.running, answer.running_tokens) == (1, True, [4])


def test_running_usage_counts_tokens_at_each_event() -> None:
    stream = [
        delta(role="assistant", content="", usage=usage(0)),
        delta(content="ab", usage=usage(2)),  # the first event bundles two tokens
        delta(content="", usage=usage(3)),  # a special token
        delta(content="", usage=usage(3)),  # nothing
        delta(content="c", usage=usage(5)),
        delta(content="", finish="length", usage=usage(6)),
        event(choices=[], usage=usage(6)),
        DONE,
    ]
    assert [Answer().feed(piece) for piece in stream[:2]] == [0, 1]
    answer = heard(*stream)
    assert (answer.events, answer.running, answer.running_tokens) == (4, True, [2, 3, 5, 6])
    assert (answer.input_tokens, answer.output_tokens, answer.finish_reason) == (5, 6, "length")


def test_a_first_token_without_text_is_output_where_running_usage_counts_it() -> None:
    answer = heard(delta(role="assistant", usage=usage(0)), delta(content="", usage=usage(1)))
    assert (answer.events, answer.running_tokens) == (1, [1])


def test_a_total_that_comes_before_any_output_is_no_event() -> None:
    answer = heard(text("", "stop", usage=usage(7)))
    assert (answer.events, answer.output_tokens) == (0, 7)


def test_running_usage_that_misses_an_event_is_not_running() -> None:
    answer = heard(
        text("a", usage=usage(1)), text("b"), text("c", usage=usage(3)), text("", usage=usage(4))
    )
    assert (answer.events, answer.running, answer.output_tokens) == (3, False, 4)


def test_an_event_that_says_nothing_needs_no_count() -> None:
    answer = heard(
        delta(role="assistant"),
        delta(content="a", usage=usage(1)),
        delta(content="b", usage=usage(2)),
    )
    assert (answer.events, answer.running, answer.running_tokens) == (2, True, [1, 2])


def test_usage_without_an_output_count_is_not_running() -> None:
    answer = heard(text("a", usage={"prompt_tokens": 5}), text("b", usage=usage(2)))
    assert (answer.events, answer.running, answer.input_tokens, answer.output_tokens) == (
        2,
        False,
        5,
        2,
    )


def test_running_counts_never_fall() -> None:
    answer = heard(text("a", usage=usage(3)), text("b", usage=usage(2)), text("c", usage=usage(4)))
    assert (answer.running_tokens, answer.output_tokens) == ([3, 3, 4], 4)


def test_details_of_usage_are_kept() -> None:
    details = {
        "prompt_tokens": 9.0,
        "completion_tokens": 3.0,
        "prompt_tokens_details": {"cached_tokens": 4.0},
        "completion_tokens_details": {"reasoning_tokens": 1.0},
    }
    answer = heard(text("a"), event(choices=[], usage=details))
    counts = (
        answer.input_tokens,
        answer.output_tokens,
        answer.cached_tokens,
        answer.reasoning_tokens,
    )
    assert counts == (9, 3, 4, 1)
    assert {type(count) for count in counts} == {int}


def test_an_odd_field_of_usage_does_not_spoil_the_others() -> None:
    odd = {"prompt_tokens": "five", "completion_tokens": "3", "prompt_tokens_details": [1]}
    answer = heard(text("a"), event(choices=[], usage=odd))
    assert (answer.input_tokens, answer.output_tokens, answer.cached_tokens, answer.error) == (
        None,
        3,
        None,
        None,
    )


@pytest.mark.parametrize(
    "number",
    [
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"-1",
        b"1e300",
        b"1e400",
        b"4294967295",
        b"2147483647",
        b"9" * 5,
        b"true",
    ],
)
@pytest.mark.parametrize("place", ["prompt_tokens", "completion_tokens", "prompt_ms"])
def test_an_impossible_number_is_a_missing_one(number: bytes, place: str) -> None:
    body = b'{"choices":[],"usage":{"%b":%b},"timings":{"%b":%b}}' % (
        place.encode(),
        number,
        place.encode(),
        number,
    )
    answer = heard(text("a"), b"data: " + body + b"\n\n", text("b", "stop"))
    found = (answer.input_tokens, answer.output_tokens, answer.server_prefill_s)
    if number == b"99999":
        assert [value for value in found if value is not None] in ([99999], [99.999])
    elif number == b"true":
        assert answer.error is None
    elif place != "prompt_ms" or len(number) != 10:  # which are many tokens, and some weeks
        assert found == (None, None, None)
    assert (answer.events, answer.finish_reason, answer.error) == (2, "stop", None)


def test_a_number_too_long_for_any_decoder_is_an_error_of_the_stream() -> None:
    answer = heard(b'data: {"choices":[],"usage":{"prompt_tokens":' + b"9" * 5000 + b"}}\n\n")
    assert (answer.events, answer.input_tokens) == (0, None)


def test_white_space_that_is_not_counted_before_the_text_is_a_sign_of_life() -> None:
    rest = [*(delta(content=text) for text in "abc"), event(choices=[], usage=usage(3))]
    assert heard(delta(content=" "), *rest).voids == 1
    assert heard(*[delta(content=" ")] * 4, *rest).voids == 4
    assert heard(delta(content="\n"), *rest[:-1], event(choices=[], usage=usage(4))).voids == 0
    assert heard(delta(content="-"), *rest).voids == 0  # it may be the last that is not counted
    hidden = usage(3) | {"completion_tokens_details": {"reasoning_tokens": 1}}
    assert heard(delta(content=" "), *rest[:-1], event(choices=[], usage=hidden)).voids == 0
    answer = heard(delta(content=" "), *rest)
    assert answer.ends == ("a", None)
    assert heard(*rest[:2], delta(content="z", finish="stop")).ends == ("a", "z")


def test_a_place_in_a_queue_is_no_output() -> None:
    waits = [delta(place_in_queue=f"{place} of 9") for place in (3, 2, 1)]
    rest = [*(delta(content=text) for text in "ab"), event(choices=[], usage=usage(2))]
    answer = heard(*waits, *rest)
    assert (answer.events, answer.voids, answer.unlisted) == (5, 3, [])


def test_a_first_count_that_the_next_output_does_not_pass_was_no_token() -> None:
    role, rest = (
        delta(role="assistant", content="", usage=usage(1)),
        [delta(content="a"), delta(content="b")],
    )
    assert heard(role, *rest, event(choices=[], usage=usage(2))).voids
    assert heard(role, delta(content="a", usage=usage(1)), delta(content="b", usage=usage(2))).voids
    assert not heard(role, delta(content="a", usage=usage(2))).voids
    assert not heard(delta(content=" "), *rest).voids


@pytest.mark.parametrize(
    "said",
    [
        {
            "usage": {
                "input_tokens": 64,
                "output_tokens": 20,
                "input_tokens_details": {"cached_tokens": 8},
            }
        },
        {
            "choices": [
                {
                    "delta": {},
                    "usage": {"prompt_tokens": 64, "completion_tokens": 20, "cached_tokens": 8},
                }
            ]
        },
        {"usage": {"prompt_tokens": 64, "completion_tokens": 20, "prompt_cache_hit_tokens": 8}},
        {
            "usageMetadata": {
                "promptTokenCount": 64,
                "candidatesTokenCount": 20,
                "cachedContentTokenCount": 8,
            }
        },
        {
            "x_vendor": {
                "usage": {
                    "num_prompt_tokens": "64",
                    "num_generated_tokens": 20,
                    "cache_read_input_tokens": 8,
                }
            }
        },
    ],
    ids=str,
)
def test_usage_is_heard_wherever_and_however_it_is_spelled(said: dict[str, Any]) -> None:
    answer = heard(text("a"), text("b", "length"), event(**({"choices": []} | said)), DONE)
    assert (answer.input_tokens, answer.output_tokens, answer.cached_tokens) == (64, 20, 8)


@pytest.mark.parametrize(
    ("thinking", "count", "total", "streamed"),
    [
        ("hidden", 20, 84, 10),
        ("hidden", 20, None, 10),
        ("hidden", 10, 84, 10),  # beside the output
        ("reasoning", 20, 84, 20),
        ("reasoning", 10, 84, 20),
        ("reasoning", 10, None, 20),
        ("cot", 20, 84, 20),
    ],
)
def test_reasoning_is_counted_as_output_where_it_came(
    thinking: str, count: int, total: int | None, streamed: int
) -> None:
    details = {"prompt_tokens": 64, "completion_tokens": count, "total_tokens": total}
    thought = [] if thinking == "hidden" else [delta(**{thinking: f"w{i}"}) for i in range(10)]
    answer = heard(
        *thought, *(delta(content=f"a{i}") for i in range(10)),
        event(choices=[], usage=details | {"completion_tokens_details": {"reasoning_tokens": 10}}),
    )  # fmt: skip
    assert (answer.output_tokens, answer.tokens) == (count, (20, streamed))


# --- choices and deltas ---------------------------------------------------------------------------

CALL = [{"index": 0, "function": {"name": "f", "arguments": "{"}}]


@pytest.mark.parametrize(
    ("fields", "output"),
    [
        ({"content": "a"}, 1),
        ({"content": " "}, 1),
        ({"reasoning_content": "a"}, 1),
        ({"reasoning": "a"}, 1),
        ({"refusal": "no"}, 1),
        ({"tool_calls": CALL}, 1),
        ({"function_call": {"name": "f"}}, 1),
        ({"content": None, "reasoning_content": "a"}, 1),
        ({"content": [{"type": "text", "text": "a"}]}, 1),
        ({"role": "assistant", "content": "a"}, 1),
        ({"role": "assistant"}, 0),
        ({"role": "assistant", "content": ""}, 0),
        ({"role": "assistant", "content": None}, 0),
        ({"content": "", "tool_calls": [], "function_call": None, "refusal": None}, 0),
        ({"content": [], "tool_calls": {}, "function_call": ""}, 0),
        ({"content": False}, 0),
        ({}, 0),
    ],
    ids=str,
)
def test_a_delta_is_output_if_it_says_anything_but_a_role(
    fields: dict[str, Any], output: int
) -> None:
    answer = heard(delta(**fields))
    assert (answer.events, answer.error) == (output, None)
    odd = heard(event(choices=[{"delta": fields}], usage="odd"))  # which the strict decoder refuses
    assert (odd.events, odd.error) == (output, None)


@pytest.mark.parametrize(
    ("first", "second", "output"),
    [
        (
            {"reasoning_details": [{"type": "text", "id": "r", "text": "a"}]},
            {"reasoning_details": [{"text": "b"}]},
            2,
        ),
        ({"thoughts": "a"}, {"thoughts": "b"}, 2),
        ({"plan": {"steps": ["a"]}}, {"plan": {"steps": ["b"]}}, 2),
        ({"provider": "p"}, {"provider": "p"}, 0),
        ({"chunk_id": "a"}, {"chunk_id": "b"}, 0),
        ({"sound": {"data": "QUJD" * 20}}, {"sound": {"data": "QUJE" * 20}}, 0),
        ({"signature": "a"}, {"signature": "b"}, 0),
    ],
    ids=str,
)
def test_text_of_an_unknown_field_is_output_if_it_differs(
    first: Any, second: Any, output: int
) -> None:
    answer = heard(
        delta(content="", **first), delta(content="", **second), delta(content="c"), DONE
    )
    assert answer.events - answer.voids == output + 1
    assert answer.unlisted == ([*first] if output else [])
    late = heard(delta(content="c"), delta(**first), delta(**second), DONE)
    assert late.events == (2 if output else 1)  # what says something once may be about the output
    assert heard(delta(**first), DONE).events in (0, heard(delta(**first), DONE).voids)


@pytest.mark.parametrize(
    "choices", [None, [], {}, "none", [None], [1], [{}], [{"delta": None}], [{"text": None}]]
)
def test_choices_that_say_nothing_are_no_output_and_no_error(choices: Any) -> None:
    answer = heard(event(choices=choices, usage=usage(3)), event(choices=choices))
    assert (answer.events, answer.output_tokens, answer.error) == (0, 3, None)


def test_several_choices_in_an_event_are_one_event() -> None:
    answer = heard(
        event(choices=[{"text": ""}, {"text": "a", "finish_reason": "stop"}, {"text": "b"}])
    )
    assert (answer.events, answer.finish_reason) == (1, "stop")


def beside(index: Any, said: str, finish: Any = None, **fields: Any) -> bytes:
    """An event of one of several answers (`n` of a request)."""
    return event(choices=[{"index": index, "text": said, "finish_reason": finish}], **fields)


def test_tokens_of_answers_side_by_side_are_those_of_all() -> None:
    """vLLM and SGLang: a running count is of its own answer, the last usage, without choices, of
    all."""
    stream = [
        beside(0, "a", usage=usage(1)),
        beside(1, "A", usage=usage(2)),
        beside(1, "", usage=usage(3)),  # a token without text
        beside(0, "b", "length", usage=usage(2)),
        beside(1, "C", "stop", usage=usage(4)),
    ]
    for end in ((), (event(choices=[], usage=usage(6)), DONE)):
        answer = heard(*stream, *end)
        assert (answer.events, answer.running, answer.running_tokens) == (5, True, [1, 3, 4, 5, 6])
        assert (answer.output_tokens, answer.choices) == (6, 2)
    answer = heard(
        *(beside(i % 2, "x", "length" if i > 3 else None) for i in range(6)),
        event(choices=[], usage=usage(6)),
    )
    assert (answer.events, answer.running, answer.output_tokens, answer.choices) == (6, False, 6, 2)


@pytest.mark.parametrize("with_choice", [True, False])
def test_each_of_several_answers_may_have_a_usage_of_its_own(with_choice: bool) -> None:
    """llama.cpp: completions with the last choice of each, chat in an event of its own."""

    def end(index: int) -> tuple[bytes, ...]:
        if with_choice:
            return (beside(index, "", "length", usage=usage(2)),)
        return beside(index, "", "length"), event(choices=[], usage=usage(2))

    answer = heard(
        beside(0, "a"), beside(1, "A"), beside(0, "b"), *end(0), beside(1, "B"), *end(1), DONE
    )
    assert (answer.events, answer.running, answer.output_tokens, answer.choices) == (4, False, 4, 2)


@pytest.mark.parametrize("index", [None, "1", -1, float("nan"), float("inf"), 1e300, True, {}])
def test_an_odd_index_spoils_nothing(index: Any) -> None:
    answer = heard(
        beside(index, "a", usage=usage(1)), beside(index, "b", "length", usage=usage(2)), DONE
    )
    assert (answer.events, answer.output_tokens, answer.choices, answer.error) == (2, 2, 1, None)


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        ("", None),
        (False, None),
        ({"matched": 1}, None),
        (["stop"], '["stop"]'),
        ("\x1b[31m\nred", "\ufffd[31m red"),
        ("\ud800", "?"),
    ],
)
def test_an_odd_finish_reason_becomes_a_short_printable_word(
    finish: Any, expected: str | None
) -> None:
    answer = heard(text("a", finish))
    assert (answer.events, answer.finish_reason, answer.error) == (1, expected, None)


@pytest.mark.parametrize("finish", ["abort", "error"])
def test_a_request_that_the_server_gave_up_is_no_answer(finish: str) -> None:
    answer = heard(text("a"), text("", finish), event(choices=[], usage={"completion_tokens": 1}))
    assert answer.error == f"the server gave up the request (finish reason {finish})"
    assert (answer.events, answer.finish_reason, answer.output_tokens) == (1, finish, 1)


def test_the_first_name_of_a_model_is_kept_short_and_printable() -> None:
    assert heard(text("a")).model is None
    assert (
        heard(text("a", model=""), text("a", model="m\x1b"), text("a", model="n")).model
        == "m\ufffd"
    )
    assert heard(text("a", model="x" * 500)).model == "x" * 99 + "…"
    assert heard(text("a", model=["m"])).model == '["m"]'
    assert heard(text("a", model="\ud800")).model == "?"


def test_timings_of_llama_cpp_are_kept_in_seconds() -> None:
    answer = heard(
        text("a"), event(choices=[], timings={"prompt_ms": 7.5, "predicted_ms": 20, "cache_n": 3})
    )
    assert (answer.server_prefill_s, answer.server_decode_s) == (0.0075, 0.02)
    answer = heard(event(timings={"prompt_ms": "slow", "predicted_ms": 20}))
    assert (answer.server_prefill_s, answer.server_decode_s) == (None, 0.02)


# --- the end, and what is no event ----------------------------------------------------------------


@pytest.mark.parametrize(
    "end", [DONE, DONE * 2, b"data:[DONE]\n\n", b"data:  [DONE] \n\n", b"data: [DONE]"]
)
def test_done_is_heard_in_any_dress(end: bytes) -> None:
    answer = heard(text("a", "stop"), end)
    assert (answer.events, answer.done, answer.error) == (1, True, None)


def test_what_comes_after_the_end_is_no_part_of_the_answer() -> None:
    answer = heard(text("a", "length"), DONE, text("b", "stop", usage=usage(2)), DONE)
    assert (answer.events, answer.done, answer.finish_reason, answer.output_tokens) == (
        1,
        True,
        "length",
        None,
    )
    assert heard(text("a") + DONE + text("b")).events == 1


def test_done_is_not_heard_where_it_is_only_named() -> None:
    assert not heard(text("[DONE]")).done
    answer = heard(b'data: "[DONE]"\n\n')
    assert not answer.done
    assert answer.error == 'stream event is not a JSON object: "[DONE]"'


def test_an_empty_event_is_no_error() -> None:
    assert state(heard(b"data:\n\n", b"data\n\n", b"data:   \n\n")) == state(Answer())


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (
            event(error={"message": "out of memory", "type": "server_error", "code": 500}),
            "out of memory",
        ),
        (event(error={"message": "with choices"}, choices=[]), "with choices"),
        (event(error="plain words"), "plain words"),
        (event(error={"code": 5}), '{"code": 5}'),
        (event(error={"code": 0, "message": "no memory"}), "no memory"),
        (event(error={"error": {"message": "twice"}}), "twice"),
        (event(error=["a", 1]), '["a", 1]'),
        (
            event(object="error", message="vLLM's form", type="BadRequestError", code=400),
            "vLLM's form",
        ),
        (event(choices=None, error={"message": "écrit"}), "écrit"),
        (b"event: error\ndata: " + event(error={"message": "named"})[6:], "named"),
        (event(error={"message": "tolerated", "n": float("nan")}), "tolerated"),
        (b'data: {"error":{"message":"half \xff"}}\n\n', "half \ufffd"),
        (
            b'data: {"choices":[{"text":"a"\n\n',
            'stream event is not a JSON object: {"choices":[{"text":"a"',
        ),
        (b"data: [1]\n\n", "stream event is not a JSON object: [1]"),
        (b"data: null\n\n", "stream event is not a JSON object: null"),
        (b"data: <html>\n\n", "stream event is not a JSON object: <html>"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_error_after_a_200_is_heard_in_every_form(sent: bytes, said: str) -> None:
    answer = heard(text("a"), sent, text("b", "stop"))
    assert (answer.error, answer.events, answer.finish_reason) == (said, 2, "stop")


@pytest.mark.parametrize("nothing", [None, "", {}, [], False, 0])
def test_an_error_field_that_says_nothing_is_no_error(nothing: Any) -> None:
    assert heard(text("a", error=nothing, message=nothing)).error is None
    assert heard(event(error=nothing, message=nothing, choices=[1])).error is None


@pytest.mark.parametrize(
    "nothing",
    [
        {"code": 0},
        {"code": 0.0, "message": "Success."},
        {"code": 0, "data": {}, "request_id": "ab12"},
    ],
)
def test_an_error_of_code_0_without_a_reason_is_none(nothing: Any) -> None:
    assert heard(text("a", error=nothing), event(error=nothing)).error is None


def test_a_message_beside_choices_is_no_error() -> None:
    assert heard(text("a", message="hello")).error is None


def test_the_first_error_is_kept() -> None:
    assert heard(event(error="first"), event(error="second"), b"data: {\n\n").error == "first"


def test_a_stream_cut_inside_its_last_event_is_an_error_and_keeps_what_came() -> None:
    answer = heard(text("a"), text("b")[:-10])
    assert answer.events == 1
    assert answer.error is not None
    assert answer.error.startswith("stream event is not a JSON object: ")


def test_invalid_utf8_in_text_is_text() -> None:
    answer = heard(b'data: {"choices":[{"text":"\xe2\x82"}],"id":"\xff"}\n\n')
    assert (answer.events, answer.error) == (1, None)
    answer = heard(b'data: {"choices":[{"text":"\\ud83d","finish_reason":"stop"}]}\n\n')
    assert (answer.events, answer.finish_reason, answer.error) == (1, "stop", None)


def test_a_number_where_text_belongs_is_text() -> None:
    assert heard(text(7)).events == 1


@pytest.mark.parametrize("depth", [100, 300, 900, 1100, 5000, 100_000])
@pytest.mark.parametrize(
    "around", [b'{"x":%b}', b'{"error":%b}', b'{"choices":[{"text":%b}]}', b'{"usage":%b}', b"%b"]
)
@pytest.mark.parametrize("kind", [(b"[", b"]"), (b'{"a":', b"}")])
def test_deep_nesting_is_never_an_exception(
    depth: int, around: bytes, kind: tuple[bytes, bytes]
) -> None:
    nested = kind[0] * depth + b"1" + kind[1] * depth
    answer = heard(b"data: " + around % nested + b"\n\n", text("b"))
    assert answer.events >= 1
    error_text(around % nested)


def test_an_event_of_ten_megabytes_is_one_event() -> None:
    body = text("x" * 10_000_000, "stop", usage=usage(9))
    answer = heard(*(body[at : at + 65536] for at in range(0, len(body), 65536)))
    assert state(answer) == state(heard(body))
    assert (answer.events, answer.running_tokens, answer.finish_reason, answer.error) == (
        1,
        [9],
        "stop",
        None,
    )


def test_an_endless_line_is_an_error_and_ends_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 2**20)
    answer = Answer()
    assert answer.feed(text("a") + text("b") + b"data: ") == 2
    for _ in range(100):
        assert answer.feed(b"x" * 65536) == 0
    assert (answer.feed(b"\n\n" + text("c")), answer.finish()) == (0, 0)
    assert (answer.events, answer.error) == (2, "one event exceeds 1 MiB")


# --- words of engines, made harmless --------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"plain", "plain"),
        (b" two\r\n\tlines ", "two lines"),
        (b"\x1b[2J\x1b]0;title\x07", "\ufffd[2J\ufffd]0;title\ufffd"),
        (b"\xc2\x9b31m", "\ufffd31m"),
        ("a\u202eb\u200bc".encode(), "a\ufffdb\ufffdc"),
        (b"a\x00b\x7f", "a\ufffdb\ufffd"),
        (b"\xff", "\ufffd"),
        (b"x" * 200, "x" * 200),
        (b"x" * 201, "x" * 199 + "…"),
        ("日本".encode() * 500, "日本" * 99 + "日…"),
        ("😀".encode() * 200, "😀" * 200),
        ("😀".encode() * 201, "😀" * 199 + "…"),
        (b"a" + b" " * 900 + b"b", "a…"),
        (b"", ""),
    ],
)
def test_an_excerpt_is_one_short_printable_line(body: bytes, shown: str) -> None:
    assert excerpt(body) == shown


def test_terminal_escapes_in_an_error_are_made_harmless() -> None:
    answer = heard(event(error={"message": "\x1b[31mred\x1b[0m\nnext"}))
    assert answer.error == "\ufffd[31mred\ufffd[0m next"


NGINX_413 = (
    b"<html>\r\n<head><title>413 Request Entity Too Large</title></head>\r\n<body>\r\n"
    b"<center><h1>413 Request Entity Too Large</h1></center>\r\n<hr>"
    b"<center>nginx/1.22.1</center>\r\n</body>\r\n</html>\r\n"
)
HAPROXY_503 = (
    b"<html><body><h1>503 Service Unavailable</h1>\n"
    b"No server is available to handle this request.\n</body></html>\n\n"
)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error":{"message":"no such model"}}', "no such model"),
        (b'{"error":"no such model"}', "no such model"),
        (b'{"object":"error","message":"bad"}', "bad"),
        (
            b'{"detail":[{"loc":["body"],"msg":"Field required"}]}',
            '[{"loc": ["body"], "msg": "Field required"}]',
        ),
        (b'{"detail":"Not Found"}', "Not Found"),
        ('{"error":{"wo":"hinüber"}}'.encode(), '{"wo": "hinüber"}'),
        (b"<h1>502</h1>\n", "502"),
        (NGINX_413, "413 Request Entity Too Large nginx/1.22.1"),
        (HAPROXY_503, "503 Service Unavailable No server is available to handle this request."),
        (b"a < b > c", "a < b > c"),
        (b'{"error":"\\ud800"}', "?"),
        (b"3", "3"),
        (b"", "no further word"),
        (b'{"error":" "}', "no further word"),
    ],
)
def test_the_message_of_an_error_body_is_found(body: bytes, said: str) -> None:
    assert error_text(body) == said


@given(st.binary(max_size=2000), st.integers(1, 300))
def test_any_bytes_give_a_harmless_excerpt(body: bytes, limit: int) -> None:
    for line in (excerpt(body, limit), error_text(body)):
        assert line.isprintable()
    assert len(excerpt(body, limit)) <= limit
    assert len(error_text(body)) <= 200


# --- nothing makes it raise -----------------------------------------------------------------------


@needs_recordings
@settings(max_examples=300)
@given(st.data())
def test_mutated_recorded_streams_never_raise(data: st.DataObject) -> None:
    stream = bytearray(data.draw(st.sampled_from(RECORDED)).read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(stream)))
        stream[at : at + data.draw(st.integers(0, 20))] = data.draw(st.binary(max_size=10))
    place = data.draw(st.integers(0, len(stream)))
    pieces = (bytes(stream[:place]), bytes(stream[place:]))
    assert state(heard(*pieces)) == state(heard(bytes(stream)))


# --- answers in one piece -------------------------------------------------------------------------


def whole(body: bytes, *, keep_text: bool = False) -> Answer:
    """An answer in one piece, which comes in two pieces of TCP's making."""
    answer = Answer(stream=False, keep_text=keep_text)
    assert answer.feed(body[:7]) == answer.feed(body[7:]) == 0
    assert answer.finish() == answer.events
    return answer


def document(text_: Any, finish: Any = "length", **fields: Any) -> bytes:
    return json.dumps(
        {"choices": [{"index": 0, "text": text_, "finish_reason": finish}], **fields}
    ).encode()


def message(finish: Any = "stop", **fields: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **fields}, "finish_reason": finish}
    return json.dumps({"choices": [choice], "usage": usage(3)}).encode()


@needs_recordings
@pytest.mark.parametrize("name", ["debllama", "hf", "lcpp", "lcppbin", "max", "mlx", "vllm"])
def test_a_recorded_answer_in_one_piece_is_one_event_with_all_its_tokens(name: str) -> None:
    answer = whole((WIRE / f"{name}.completions.json").read_bytes(), keep_text=True)
    said = (
        answer.events,
        answer.finish_reason,
        answer.done,
        answer.error,
        answer.input_tokens,
        answer.output_tokens,
    )
    assert said == (1, "length", True, None, 7, 12)
    assert (answer.running, answer.running_tokens) == (False, [])
    assert len(answer.text) > 12


@pytest.mark.parametrize(
    ("body", "events", "text_"),
    [
        (document("all of it", usage=usage(4)), 1, "all of it"),
        (document("all of it"), 1, "all of it"),
        (document("", usage=usage(1)), 1, ""),  # special tokens alone
        (document("", usage=usage(0)), 0, ""),
        (message(content="said"), 1, "said"),
        (message(content=None, reasoning_content="thought"), 1, ""),
        (message(content=None, tool_calls=[{"function": {"name": "f"}}]), 1, ""),
        (
            message(content=[{"type": "text", "text": "parts"}]),
            1,
            '[{"type": "text", "text": "parts"}]',
        ),
    ],
)
def test_an_answer_in_one_piece(body: bytes, events: int, text_: str) -> None:
    answer = whole(body, keep_text=True)
    assert (answer.events, answer.error, answer.text) == (events, None, text_)
    assert answer.done is (events == 1)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "out of memory"}}', "out of memory"),
        (b'{"object": "error", "message": "bad"}', "bad"),
        (b"<html>", "answer is not a JSON object: <html>"),
        (b'{"choices": [{"te', 'answer is not a JSON object: {"choices": [{"te'),
        (b'data: {"choices": []}', 'answer is not a JSON object: data: {"choices": []}'),
        (b"[1]", "answer is not a JSON object: [1]"),
    ],
)
def test_what_is_no_answer_in_one_piece(body: bytes, said: str) -> None:
    answer = whole(body)
    assert (answer.error, answer.events, answer.done) == (said, 0, False)


def test_an_endless_answer_in_one_piece_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 2**20)
    answer = Answer(stream=False)
    for _ in range(17):
        assert answer.feed(b" " * 65536) == 0
    # What comes after that is no answer either.
    assert (answer.feed(b'{"choices":[{"text":"a"}]}'), answer.finish()) == (0, 0)
    assert answer.error == "the answer exceeds 1 MiB"
    assert isinstance(answer._sse, Whole)


# --- its text -------------------------------------------------------------------------------------


def test_the_text_is_kept_where_it_is_asked_for() -> None:
    stream = [
        delta(role="assistant", content=""),
        delta(reasoning_content="hm"),
        delta(content="Hel"),
        delta(content="lo \u00e9"),
        delta(content="", finish="stop"),
        DONE,
    ]
    answer = Answer(keep_text=True)
    for piece in stream:
        answer.feed(piece)
    assert (answer.text, answer.events) == ("Hello \u00e9", 3)
    assert answer.template(delta(content="Hel")) is None  # a template tells nothing of texts
    plain = Answer()
    plain.feed(text("a"))
    assert plain.text == ""


def test_the_text_of_completions_is_kept_too() -> None:
    answer = Answer(keep_text=True)
    for word in ("a", " b", " c"):
        answer.feed(text(word))
    assert answer.text == "a b c"
    answer.feed(text(" d"))
    assert answer.text == "a b c d"


def test_a_count_of_thousands_of_digits_is_none_and_costs_nothing_else() -> None:
    counts = b'"usage": {"prompt_tokens": 7, "completion_tokens": %b}' % (b"9" * 5000)
    answer = heard(
        b'data: {"choices": [{"text": "a", "finish_reason": "stop"}], ' + counts + b"}\n\n"
    )
    assert (answer.events, answer.input_tokens, answer.output_tokens, answer.error) == (
        1,
        7,
        None,
        None,
    )


@pytest.mark.parametrize("output", ["3.7", "-1", "1e400", "Infinity", "NaN", "16777217"])
def test_what_cannot_count_tokens_is_no_count(output: str) -> None:
    end = (
        b'data: {"choices": [], "usage": {"prompt_tokens": 2.5, "completion_tokens": %b}}\n\n'
        % output.encode()
    )
    answer = heard(text("a"), text("b", "length"), end, DONE)
    assert (answer.events, answer.output_tokens, answer.input_tokens, answer.error) == (
        2,
        None,
        None,
        None,
    )


@pytest.mark.parametrize(("cached", "taken"), [(4, 4), (5, 5), (156, None)])
def test_no_more_tokens_are_cached_than_the_prompt_has(cached: int, taken: int | None) -> None:
    stated = usage(1) | {"prompt_tokens_details": {"cached_tokens": cached}}
    assert heard(text("a", "length", usage=stated), DONE).cached_tokens == taken
