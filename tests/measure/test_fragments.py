from array import array
from typing import Any

import pytest

from loadstone.core.plan import PlannedRequest
from loadstone.core.run_folder import journal_schema
from loadstone.measure.client.clock import RunClock
from loadstone.measure.client.stream import Fragments, Stream, _Fragment
from loadstone.measure.wires.openai import OpenAIAnswer

ORIGIN_NS = 10_000_000_000


def stream(index: int = 0, **fields: Any) -> Stream:
    request = PlannedRequest(2, index, "measure", None, 40, 8, None, 0, None)
    made = Stream(request, b"", ORIGIN_NS + 500_000_000, OpenAIAnswer())
    made.sent_ns = ORIGIN_NS + 750_000_000
    made.http_status, made.expected = 200, True
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def hear(
    one: Stream, times: list[float], reads: list[int], running: list[int] | None = None
) -> None:
    one.arrival_s, one.read_index = array("d", times), array("i", reads)
    one.answer.events += len(times)
    if running is None:
        one.answer.running = False
    else:
        one.answer.running_tokens = list(running)
        one.answer.output_tokens = running[-1]


@pytest.fixture
def fragments() -> Fragments:
    return Fragments(7, RunClock(ORIGIN_NS))


def test_nothing_heard_makes_no_batch(fragments: Fragments) -> None:
    assert fragments.take() is None


def test_an_ended_stream_is_a_row_of_the_record_s_schema(fragments: Fragments) -> None:
    one = stream(
        3, end_ns=ORIGIN_NS + 2_000_000_000, status="ok", reused=True, worst_lag_ns=1_000_000
    )
    hear(one, [1.0, 1.5], [0, 1])
    one.answer.input_tokens, one.answer.output_tokens, one.answer.finish_reason = 40, 9, "length"
    fragments.add(one)
    batch = fragments.take()
    assert batch is not None
    assert batch.schema.equals(journal_schema(), check_metadata=True)
    assert list(_Fragment.__struct_fields__) == journal_schema().names
    (row,) = batch.to_pylist()
    expected = {
        "request_id": "2-3", "cell": 2, "phase": "measure", "intended_s": 0.5, "sent_s": 0.75,
        "arrival_s": [1.0, 1.5], "channel": [],
        "read": [0, 1], "tokens": [], "token_source": "final usage", "end_s": 2.0, "input_tokens": 40,
        "output_tokens": 9, "finish_reason": "length", "status": "ok", "http_status": 200, "worker": 7, "replica": 0,
        "reused_connection": True, "receive_lag_s": 0.001, "earlier_events": 0, "voids": 0, "opening": 0, "closing": 0,
    }  # fmt: skip
    assert row == {name: expected.get(name) for name in journal_schema().names}
    assert fragments.take() is None


def test_a_stream_that_goes_on_gives_its_parts_then_its_end(fragments: Fragments) -> None:
    one = stream()
    hear(one, [1.0, 1.5], [0, 0], [1, 3])
    fragments.add(one)
    assert len(one.arrival_s) == 0
    hear(one, [2.0], [1], [4])
    fragments.add(one)
    hear(one, [2.5], [2], [6])
    one.status, one.end_ns = "ok", ORIGIN_NS + 3_000_000_000
    fragments.add(one)
    assert fragments.events == 4
    batch = fragments.take()
    assert batch is not None
    rows = batch.to_pylist()
    assert [row["arrival_s"] for row in rows] == [[1.0, 1.5], [2.0], [2.5]]
    assert [row["read"] for row in rows] == [[0, 0], [1], [2]]
    assert [row["tokens"] for row in rows] == [[1, 3], [4], [6]]
    assert [row["status"] for row in rows] == [None, None, "ok"]
    assert [row["end_s"] for row in rows] == [None, None, 3.0]
    assert {row["token_source"] for row in rows} == {"running usage"}


def test_a_request_that_was_never_answered_states_nothing(fragments: Fragments) -> None:
    fragments.add(
        stream(sent_ns=None, http_status=None, expected=None, status="error", error="refused")
    )
    fragments.add(stream(1, http_status=500, expected=False, status="error", error="HTTP 500"))
    batch = fragments.take()
    assert batch is not None
    first, second = batch.to_pylist()
    for row in (first, second):
        assert (row["token_source"], row["output_tokens"], row["receive_lag_s"]) == (
            None,
            None,
            None,
        )
        assert (row["arrival_s"], row["tokens"]) == ([], [])
    assert (first["sent_s"], first["http_status"], first["error"]) == (None, None, "refused")
    assert (second["sent_s"], second["http_status"]) == (0.75, 500)
