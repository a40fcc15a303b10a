"""SGLang's own dialect, in the bytes that its source says it sends."""

import json
from typing import Any

import pytest

from loadstone.measure.wires.sglang import SglangAnswer
from wires import DONE, event, hear

LENGTH = {"type": "length", "length": 3}
COUNTS = {"prompt_tokens": 5, "cached_tokens": 2}


def meta(tokens: Any, finish: Any = None, **more: Any) -> dict[str, Any]:
    return {"id": "r1", "finish_reason": finish, **COUNTS, "completion_tokens": tokens, **more}


def said(text: Any, tokens: Any, finish: Any = None, **more: Any) -> bytes:
    return event(text=text, output_ids=[7] * 3, meta_info=meta(tokens, finish, **more))


STREAM = [
    said(" one", 1),
    said(" one two\u00e9", 2),
    said(" one two\u00e9", 2),  # nothing new
    said(" one two\u00e9", 3, LENGTH),  # a token without text
    DONE,
]


def heard(*pieces: bytes, stream: bool = True, keep_text: bool = False) -> SglangAnswer:
    return hear(SglangAnswer(stream=stream, keep_text=keep_text), *pieces)


_META = (
    b'"weight_version":"default","num_retractions":0,"storage_prefetch_wait":0.0,"storage_staging_wait":0.0,'
    b'"forward_entry_time":1795264883.0317378,"prefill_finished_time":1795264883.276586,'
    b'"queue_time":0.0005316579999998794,"reasoning_tokens":0,'
)
RECORDED = [
    b'data: {"text":" there","output_ids":[2886],"meta_info":{"id":"3a0c","finish_reason":null,"prompt_tokens":6,'
    + _META
    + b'"completion_tokens":1,"cached_tokens":0,"cached_tokens_details":null,"dp_rank":null,'
    b'"response_sent_to_client_ts":1795264883.2963517}}\n\n',
    b'data: {"text":" there clearly","output_ids":[2886,703],"meta_info":{"id":"3a0c",'
    b'"finish_reason":{"type":"length","length":2},"prompt_tokens":6,'
    + _META
    + b'"completion_tokens":2,"cached_tokens":5,"weight_versions":[{"version":"default","start":0,"end":2}],'
    b'"cached_tokens_details":{"device":5,"host":0},"dp_rank":null,"e2e_latency":0.44274040599975706,'
    b'"request_received_ts":1795264883.0298407,"decode_throughput":28.28071718158632}}\n\n',
    DONE,
]
"""The first and the last event that SGLang 0.5.23 sent."""


def test_a_recorded_stream_says_what_its_engine_meant() -> None:
    answer = heard(*RECORDED, keep_text=True)
    assert (answer.events, answer.running_tokens, answer.text) == (2, [1, 2], " there clearly")
    assert (answer.finish_reason, answer.done, answer.error) == ("length", True, None)
    counts = (
        answer.input_tokens,
        answer.output_tokens,
        answer.cached_tokens,
        answer.reasoning_tokens,
    )
    assert counts == (6, 2, 5, 0)


def test_a_stream_is_counted_by_the_servers_running_count() -> None:
    answer = heard(*STREAM)
    assert [SglangAnswer().feed(piece) for piece in STREAM] == [1, 1, 1, 1, 0]
    assert (answer.events, answer.running, answer.running_tokens) == (3, True, [1, 2, 3])
    assert (answer.finish_reason, answer.done, answer.error) == ("length", True, None)
    assert (answer.input_tokens, answer.output_tokens, answer.cached_tokens) == (5, 3, 2)
    assert answer.text == ""


def test_several_tokens_in_an_event() -> None:
    answer = heard(said("ab", 2), said("abcdef", 7, {"type": "stop", "matched": 2}), DONE)
    assert (answer.running_tokens, answer.output_tokens, answer.finish_reason) == (
        [2, 7],
        7,
        "stop",
    )


@pytest.mark.parametrize(
    "texts",
    [(" one", " one two", " one two three"), (" one", " two", " three")],
    ids=["the whole text each time", "what is new"],
)
def test_the_text_is_kept_in_either_form(texts: tuple[str, ...]) -> None:
    answer = heard(*(said(text, number) for number, text in enumerate(texts, 1)), keep_text=True)
    assert answer.text == " one two three"


def test_reasoning_tokens_are_kept() -> None:
    answer = heard(
        said("a", 3, reasoning_tokens=2), said("ab", 5, reasoning_tokens=4), said("abc", 6)
    )
    assert answer.reasoning_tokens == 4


def test_a_count_that_falls_is_no_output() -> None:
    answer = heard(said("a", 3), said("ab", 2), said("abc", 4))
    assert (answer.running_tokens, answer.output_tokens) == ([3, 4], 4)


def test_output_without_counts_is_pieces() -> None:
    answer = heard(
        event(text="a"),
        event(text="ab", meta_info={"finish_reason": None}),
        event(output_ids=[1, 2]),
    )
    assert (answer.events, answer.running, answer.output_tokens) == (3, False, None)
    answer = heard(event(text="", meta_info=meta(None)), event(text=None, output_ids=[]))
    assert (answer.events, answer.error) == (0, None)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (
            event(
                error={"message": "The input (9 tokens) is longer than the model's context length"}
            ),
            "The input (9",
        ),
        (event(object="error", message="in the old form", code=400), "in the old form"),
        (
            said("a", 2, {"type": "abort", "message": "out of memory", "status_code": 500}),
            "out of memory",
        ),
        (said("a", 2, {"type": "abort", "message": None}), "aborted by the server"),
        (said("a", 2, "abort"), "aborted by the server"),
    ],
)
def test_errors_of_sglangs_after_a_200(sent: bytes, error: str) -> None:
    answer = heard(said("a", 1), sent, DONE)
    assert (answer.error or "").startswith(error)
    assert answer.done


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        ({"matched": 1}, '{"matched":1}'),
        ({}, None),
        ([1], "[1]"),
    ],
)
def test_a_finish_reason_without_a_type_is_shown_as_it_came(
    finish: Any, expected: str | None
) -> None:
    answer = heard(said("a", 1, finish))
    assert (answer.finish_reason, answer.error) == (expected, None)


def test_odd_fields_and_invalid_utf8_do_not_spoil_the_others() -> None:
    answer = heard(
        b'data: {"text":"\xe2\x82","meta_info":{"completion_tokens":1,"id":"\xff","prompt_tokens":"five"}}\n\n',
        event(text=["odd"], meta_info=meta("2", cached_tokens=[1])),
        event(text=7, meta_info=meta(3.0, LENGTH)),
        keep_text=True,
    )
    assert (answer.running_tokens, answer.finish_reason, answer.error) == (
        [1, 2, 3],
        "length",
        None,
    )
    assert (answer.input_tokens, answer.cached_tokens, answer.text) == (5, 2, "\ufffd")
    odd = {"meta_info": "none", "text": "a"}
    assert heard(event(**odd, error={"message": "no"})).error == "no"
    assert heard(event(**odd)).events == 1


@pytest.mark.parametrize(
    "tokens", [b"1", b'"1"'], ids=["all else as it should be", "a count as text"]
)
def test_invalid_utf8_is_neither_lost_nor_hides_what_is_said(tokens: bytes) -> None:
    event_of = b'data: {"text":"%b","meta_info":{"completion_tokens":%b}}\n\n'
    assert heard(event_of % (b"\xe2\x82", tokens), keep_text=True).text == "\ufffd"
    assert heard(event_of % (b"\\ud83d", tokens), keep_text=True).text == "\ud83d"
    reason = b'{"type":"abort","message":"\xff"}'
    aborted = heard(
        b'data: {"meta_info":{"completion_tokens":%b,"finish_reason":%b}}\n\n' % (tokens, reason)
    )
    assert (aborted.finish_reason, aborted.error) == ("abort", "\ufffd")


def test_tokens_of_answers_side_by_side_are_those_of_all() -> None:
    """With `n` each event has the number of its answer, and the count of that alone."""
    counts = [(0, 1), (1, 1), (1, 4), (0, 3), (0, 3)]
    stream = [
        event(text="x", index=index, meta_info=meta(tokens, LENGTH)) for index, tokens in counts
    ]
    answer = heard(*stream, DONE)
    assert (answer.running_tokens, answer.output_tokens, answer.choices) == ([1, 2, 5, 7], 7, 2)
    listed = json.dumps(
        [{"text": " a", "meta_info": meta(3, LENGTH)}, {"text": " b", "meta_info": meta(4, LENGTH)}]
    )
    answer = heard(listed.encode(), stream=False, keep_text=True)
    assert (answer.events, answer.output_tokens, answer.choices) == (1, 7, 2)
    assert (answer.input_tokens, answer.done, answer.error, answer.text) == (5, True, None, " a")
    assert heard(b"[1, 2]", stream=False).error is not None


def test_an_answer_in_one_piece_is_one_event_with_all_its_tokens() -> None:
    body = json.dumps(
        {"text": " one two", "output_ids": [1, 2], "meta_info": meta(2, LENGTH)}
    ).encode()
    answer = heard(body[:9], body[9:], stream=False, keep_text=True)
    assert (answer.events, answer.output_tokens, answer.running_tokens) == (1, 2, [])
    assert (answer.finish_reason, answer.done, answer.text) == ("length", True, " one two")
    assert heard(b'{"error": {"message": "no"}}', stream=False).error == "no"
