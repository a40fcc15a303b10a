import math
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadstone.analyse.metrics import CellNumbers, RequestBounds, measure_cell, parts
from loadstone.core.errors import InputError
from loadstone.core.plan import Load
from loadstone.core.record import RequestRecord
from loadstone.core.statistics import Dependence, distribution

TEXT = pa.string()
SCHEMA = pa.schema(
    [
        ("request_id", TEXT), ("cell", pa.int32()), ("phase", TEXT), ("session_id", TEXT), ("turn", pa.int32()),
        ("intended_s", pa.float64()), ("sent_s", pa.float64()), ("arrival_s", pa.list_(pa.float64())),
        ("read", pa.list_(pa.int32())), ("tokens", pa.list_(pa.int32())), ("token_source", TEXT),
        ("end_s", pa.float64()), ("input_tokens", pa.int64()), ("output_tokens", pa.int64()),
        ("cached_tokens", pa.int64()), ("reasoning_tokens", pa.int64()), ("finish_reason", TEXT), ("status", TEXT),
        ("error", TEXT), ("http_status", pa.int32()), ("worker", pa.int32()), ("replica", pa.int32()),
        ("reused_connection", pa.bool_()), ("receive_lag_s", pa.float64()),
        ("server_prefill_s", pa.float64()), ("server_decode_s", pa.float64()),
        ("channel", pa.list_(pa.uint8())), ("draft_steps", pa.int64()), ("draft_tokens", pa.int64()),
        ("draft_accepted", pa.int64()), ("accepted_histogram", pa.list_(pa.int32())),
        ("images", pa.int64()), ("pixels", pa.int64()), ("picture_bytes", pa.int64()),
        ("body_bytes", pa.int64()), ("visual_tokens_planned", pa.int64()),
        ("visual_tokens", pa.int64()), ("sent_end_s", pa.float64()),
    ]
)  # fmt: skip

CLOSED = Load(kind="concurrency", value=2)
OPEN = Load(kind="rate", value=1.0)
BURST = Load(kind="burst", value=2)


def record(
    sent: float | None = 0.0,
    arrival: Iterable[float] = (),
    tokens: Iterable[int] | None = None,
    **fields: Any,
) -> RequestRecord:
    """A measured request that is ok, one token per event, ending with its last event, unless told
    otherwise."""
    arrival = [float(time) for time in arrival]
    tokens = list(range(1, len(arrival) + 1)) if tokens is None else list(tokens)
    fields = {
        "request_id": "0-0",
        "cell": 0,
        "phase": "measure",
        "status": "ok",
        "end_s": arrival[-1] if arrival else None,
        "output_tokens": tokens[-1] if tokens else None,
    } | fields
    return RequestRecord(
        sent_s=sent, arrival_s=arrival, read=list(range(len(arrival))), tokens=tokens, **fields
    )


def batch(records: list[RequestRecord]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([msgspec.to_builtins(one) for one in records], schema=SCHEMA)


def bounds(slo: dict[str, float]) -> RequestBounds:
    return RequestBounds(**{f"{name}_s": limit_s for name, limit_s in slo.items()})


def flat(numbers: CellNumbers) -> Any:
    """A cell's numbers by their names, latencies as distributions."""
    own = {"requests": numbers.requests, "duration_s": numbers.duration_s}
    return SimpleNamespace(**own | msgspec.structs.asdict(numbers.metrics) | numbers.samples)


def metrics(records: list[RequestRecord], load: Load = CLOSED, **slo: float) -> Any:
    return flat(measure_cell(lambda: [batch(records)], load, bounds(slo)))


def test_schema_of_these_tests_is_the_records() -> None:
    assert tuple(SCHEMA.names) == RequestRecord.__struct_fields__


def test_latencies_of_one_request() -> None:
    found = metrics(
        [record(1.0, [1.5, 1.75, 2.0, 3.0], intended_s=0.75, receive_lag_s=0.001, end_s=9.0)]
    )
    assert found.ttft_s.p50 == 0.5
    assert found.tpot_s.p50 == 0.5
    assert found.e2e_s.p50 == 2.0  # to the last output, not to the end
    assert found.ttft_intended_s.p50 == 0.75
    assert found.e2e_intended_s.p50 == 2.25
    assert found.send_lag_s.p50 == 0.25
    assert found.receive_lag_s.p50 == 0.001
    assert (found.itl_s.n, found.itl_s.min, found.itl_s.p50, found.itl_s.max) == (
        3,
        0.25,
        0.25,
        1.0,
    )
    assert found.duration_s == 8.25


def test_how_late_sends_were_is_asked_of_every_request_that_was_sent() -> None:
    """A client that is late is late for those that fail too; one that was never sent says
    nothing."""
    sent = [
        record(1.0, [1.5, 2.0], intended_s=1.0),
        record(9.0, intended_s=1.0, status="timeout", end_s=9.5),
    ]
    never = msgspec.structs.replace(
        record(0.0, intended_s=1.0, status="error", end_s=2.0), sent_s=None
    )
    found = metrics([*sent, never])
    assert found.send_lag_s is not None
    assert (found.send_lag_s.n, found.send_lag_s.max) == (2, 8.0)


def test_percentiles_are_over_requests() -> None:
    found = metrics([record(0.0, [first]) for first in (1.0, 2.0, 3.0, 4.0, 5.0)])
    assert (found.ttft_s.n, found.ttft_s.mean, found.ttft_s.p50, found.ttft_s.p90) == (
        5,
        3.0,
        3.0,
        4.6,
    )
    assert found.ttft_s.ci95["p50"] == [None, None]


def test_a_gap_is_shared_by_the_tokens_the_later_event_brought() -> None:
    # Four tokens at 1.0 (no gap), three at 2.5 (0.5 each), one at 2.75 (0.25).
    found = metrics([record(0.0, [1.0, 2.5, 2.75], [4, 7, 8])])
    assert found.itl_s.n == 4
    assert (found.itl_s.min, found.itl_s.p50, found.itl_s.max) == (0.25, 0.5, 0.5)
    assert found.itl_s.mean == 1.75 / 4
    assert found.tpot_s.p50 == 1.75 / 7
    pairs = metrics([record(0.0, [1.0, 2.0], [2, 4])])
    assert (pairs.itl_s.n, pairs.itl_s.mean) == (2, 0.5)


def test_an_event_without_a_token_passes_its_gap_on() -> None:
    found = metrics([record(0.0, [1.0, 1.5, 2.0, 2.25], [1, 1, 3, 4])])
    assert (found.itl_s.n, found.itl_s.min, found.itl_s.max) == (3, 0.25, 0.5)
    assert found.itl_s.mean * found.itl_s.n == 1.25


def test_a_first_event_without_a_token_is_still_where_the_gaps_begin() -> None:
    found = metrics([record(0.0, [1.0, 2.0, 2.5], [0, 2, 3])])
    assert found.itl_s.n == 3
    assert found.itl_s.mean == 0.5


def test_gaps_do_not_run_from_one_request_into_the_next() -> None:
    found = metrics(
        [record(0.0, [1.0, 1.25]), record(0.0), record(0.0, [7.0]), record(0.0, [9.0, 9.5])]
    )
    assert (found.itl_s.n, found.itl_s.min, found.itl_s.max) == (2, 0.25, 0.5)


def test_itl_has_no_bounds() -> None:
    found = metrics([record(0.0, np.arange(1.0, 1001.0))])
    assert found.itl_s.n == 999
    assert found.itl_s.ci95["p50"] == [None, None]


def test_one_token_has_no_tpot_and_no_gap() -> None:
    found = metrics([record(0.0, [1.0])])
    assert found.tpot_s is None
    assert found.itl_s is None


def test_several_tokens_in_one_event_take_no_time() -> None:
    assert metrics([record(0.0, [1.0], [8])]).tpot_s.p50 == 0.0


def test_failed_requests_count_but_not_in_percentiles() -> None:
    found = metrics(
        [
            record(0.0, [1.0, 2.0], input_tokens=10),
            record(0.0, [1.0, 3.0], status="short", input_tokens=10),
            record(0.0, [5.0, 9.0], [2, 6], status="error", output_tokens=None, input_tokens=100),
            record(0.0, status="timeout", end_s=10.0, input_tokens=1000),
            record(0.0, [5.0], [3], status="cancelled", output_tokens=50, end_s=None),
        ],
        ttft=1.0,
    )
    assert msgspec.to_builtins(found.requests) == {
        "sent": 5, "ok": 1, "error": 1, "timeout": 1, "cancelled": 1, "short": 1,
    }  # fmt: skip
    assert found.ttft_s.n == 2
    assert found.e2e_s.max == 3.0
    assert found.itl_s.n == 2
    assert found.output_events == 2 + 2
    assert (
        found.output_tokens == 2 + 2 + 6 + 3
    )  # a cancelled request's own total is not what arrived
    assert found.input_tokens == 120  # the timeout never saw a first token
    assert found.duration_s == 10.0
    assert found.output_tokens_per_s == 1.3
    assert found.total_tokens_per_s == 13.3
    assert found.requests_per_s == 0.2
    assert found.attainment == 0.4
    assert found.goodput_per_s == 0.2


def test_output_tokens_are_the_requests_own_and_else_the_last_count() -> None:
    assert metrics([record(0.0, [1.0, 2.0], [1, 2], output_tokens=5)]).output_tokens == 5
    unstated = metrics([record(0.0, [1.0, 2.0, 3.0], [1, 2, 3], output_tokens=None)])
    assert unstated.output_tokens == 3
    assert unstated.tpot_s.p50 == 1.0


def test_warm_up_requests_count_nowhere_but_in_the_steady_window() -> None:
    warm = record(0.0, [0.5, 4.0], phase="warmup", input_tokens=7, cached_tokens=7)
    found = metrics([warm, record(1.0, [2.0], input_tokens=10, cached_tokens=4)])
    assert found.requests.sent == 1
    assert found.ttft_s.n == 1
    assert found.duration_s == 1.0
    assert (found.input_tokens, found.output_tokens, found.cached_input_tokens) == (10, 1, 4)


@pytest.fixture
def any_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand-sized cells have a steady window."""
    monkeypatch.setattr("loadstone.analyse.metrics.ROUNDS", 0.0)


@pytest.mark.usefixtures("any_rounds")
def test_steady_window_runs_from_the_first_to_the_last_measured_send() -> None:
    found = metrics(
        [
            # Warm-up: 2 tokens at 0.5 are before the window, 3 at 2.0 within; it ends within.
            record(0.0, [0.5, 2.0], [2, 5], phase="warmup", input_tokens=1000),
            record(1.0, [2.0, 3.0], [1, 2], input_tokens=10),
            # Fails, but what arrived within (4 tokens) the server did make.
            record(2.0, [4.0, 6.0], [4, 9], status="error", input_tokens=20),
            # The last send closes the window at 5.0: its own tokens come later.
            record(5.0, [5.5, 6.0], [1, 2], input_tokens=40),
        ]
    )
    assert found.steady is not None
    rates = msgspec.to_builtins(found.steady)
    bounds = {
        each: [None, None]
        for each in ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s")
    }
    assert rates.pop("ci95") == bounds
    assert rates == pytest.approx(
        {
            "start_s": 1.0,
            "end_s": 5.0,
            "output_tokens_per_s": (3 + 2 + 4) / 4,
            # The cell had 70 tokens in and 13 out, and two requests that ended well.
            "total_tokens_per_s": (3 + 2 + 4) / 4 * (70 + 13) / 13,
            "requests_per_s": (3 + 2 + 4) / 4 * 2 / 13,
        }
    )


@pytest.mark.usefixtures("any_rounds")
def test_a_steady_window_holds_as_many_prompts_as_answers() -> None:
    """Four places out of step, five generations: a place begins its last request in the window, and
    ends it later."""
    warm = [
        record(-4.0 + place, [float(place)], phase="warmup", input_tokens=300) for place in range(4)
    ]
    loop = [
        record(at, [at + 1, at + 2, at + 3, at + 4], input_tokens=300)
        for at in (place + 4.0 * generation for generation in range(5) for place in range(4))
    ]
    found = metrics([*warm, *loop])
    assert found.steady is not None
    assert found.steady.total_tokens_per_s == pytest.approx(
        found.steady.output_tokens_per_s * 304 / 4
    )
    assert found.steady.requests_per_s == pytest.approx(found.steady.output_tokens_per_s / 4)
    assert found.steady.requests_per_s < 1.05  # Little: four places, 4 s each
    ends = found.steady.ci95["output_tokens_per_s"]
    assert [end and end / 4 for end in ends] == found.steady.ci95["requests_per_s"]


def test_intervals_of_a_cell_know_that_its_requests_share_their_steps() -> None:
    """Four places in lock-step, each generation as slow as the last one's luck and half as much of
    its own: all four of a generation are one value. 40 generations tell the median as 40 values do,
    not as 160.
    """
    widths = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        pace_s = rng.lognormal(-4.0, 0.3, 40)
        starts = np.concatenate([[0.0], np.cumsum(21 * pace_s)[:-1]])
        requests = [
            record(
                float(start),
                (start + pace * np.arange(1, 21)).tolist(),
                list(range(1, 21)),
                input_tokens=10,
            )
            for start, pace in zip(starts, pace_s, strict=True)
            for _ in range(4)
        ]
        found, as_if = metrics(requests), distribution(pace_s)
        assert found.tpot_s is not None
        assert as_if is not None
        (low, high), (one_low, one_high) = found.tpot_s.ci95["p50"], as_if.ci95["p50"]
        assert low is not None
        assert high is not None
        assert one_low is not None
        assert one_high is not None
        widths.append(math.log(high / low) / math.log(one_high / one_low))
        assert found.steady is not None
        rate_low, rate_high = found.steady.ci95["output_tokens_per_s"]
        assert rate_low is not None
        assert rate_high is not None
        assert rate_low < found.steady.output_tokens_per_s < rate_high
        few = metrics(requests[:20])  # five generations
        assert few.tpot_s is not None
        assert few.tpot_s.ci95["p50"] == [None, None]
    assert np.median(widths) == pytest.approx(1, rel=0.35)


def test_intervals_follow_from_who_was_under_way_and_when_answers_came() -> None:
    """An open loop, 20 requests under way; latencies swing in the course of 40, and throughput
    hardly does."""
    sent_s = np.arange(400) * 0.1
    e2e_s = 2.0 + 0.1 * np.sin(sent_s * math.pi / 2)
    last_s = sent_s + e2e_s
    found = metrics(
        [record(float(at), [float(last)]) for at, last in zip(sent_s, last_s, strict=True)], OPEN
    )
    assert found.e2e_s == distribution(last_s - sent_s, Dependence.of(sent_s, last_s))
    assert found.e2e_s != distribution(last_s - sent_s, Dependence.of(last_s, sent_s))
    assert found.steady is not None
    low, high = found.steady.ci95["requests_per_s"]
    assert low is not None
    assert high is not None
    assert 0 < high - low < found.steady.requests_per_s


@pytest.mark.usefixtures("any_rounds")
def test_steady_window_includes_both_its_ends() -> None:
    found = metrics([record(1.0, [1.0, 3.0, 3.5]), record(3.0, [4.0])])
    assert found.steady.output_tokens_per_s == 1.0


@pytest.mark.usefixtures("any_rounds")
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]])
def test_steady_window_does_not_depend_on_the_order_of_records(order: list[int]) -> None:
    records = [
        record(float(i), np.arange(1, 9) / 2 + i, phase="warmup" if i == 0 else "measure")
        for i in range(4)
    ]
    found = flat(measure_cell(lambda: (batch([records[i]]) for i in order), CLOSED))
    # Window 1.0 to 3.0: five events of request 0 (0.5 … 4.0), four of request 1 (1.5 …), two of
    # request 2 (2.5 …).
    assert found.steady.output_tokens_per_s == 11 / 2


@pytest.mark.parametrize(("tail_s", "steady"), [(2.0, True), (2.2, False)])
def test_a_steady_window_is_five_times_what_follows_the_last_send(
    tail_s: float, steady: bool
) -> None:
    """What one place of a loop answers evenly, and one long answer that begins last."""
    records = [record(float(at), [at + 1.0]) for at in range(10)]
    found = metrics([*records, record(10.0, [10.0 + tail_s])])
    assert (found.steady is not None) == steady


def test_a_steady_window_leaves_out_graded_answers() -> None:
    records = [record(float(at), [at + 1.0]) for at in range(10)]
    graded = record(1.0, [2.0, 3.0, 4.0], [50, 90, 99], phase="check", output_tokens=99)
    assert metrics([*records, graded]).steady == metrics(records).steady


def test_no_steady_window_without_length() -> None:
    assert metrics([record(0.0, [1.0]), record(0.5, [2.0])], BURST).steady is None
    assert metrics([record(0.0, [1.0])]).steady is None
    assert metrics([record(1.0, [2.0]), record(1.0, [2.0])]).steady is None
    assert metrics([record(1.0, [2.0]), record(2.0, [3.0], phase="warmup")]).steady is None


def test_achieved_rate_counts_intervals_between_sends() -> None:
    found = metrics([record(float(i) / 4, [9.0]) for i in range(5)], OPEN)
    assert found.achieved_rate_per_s == 4.0
    assert metrics([record(0.0, [1.0])], OPEN).achieved_rate_per_s is None
    assert metrics([record(0.0, [1.0]), record(0.0, [1.0])], BURST).achieved_rate_per_s is None


def test_duration_begins_at_the_earlier_of_intended_and_sent() -> None:
    assert metrics([record(2.0, [4.0], intended_s=1.0)]).duration_s == 3.0
    assert metrics([record(1.0, [4.0], intended_s=2.0)]).duration_s == 3.0
    assert (
        metrics([record(None, intended_s=0.5, status="cancelled"), record(1.0, [4.0])]).duration_s
        == 3.5
    )


def test_slos_count_from_the_intended_time_in_an_open_loop_and_from_sending_in_a_closed_one() -> (
    None
):
    waited = [record(1.0, [1.5, 2.0], intended_s=0.0)]
    assert metrics(waited, CLOSED, ttft=0.5).attainment == 1.0
    assert metrics(waited, OPEN, ttft=0.5).attainment == 0.0
    assert metrics(waited, BURST, e2e=1.0).attainment == 0.0
    assert metrics(waited, OPEN, ttft=1.5, e2e=2.0, tpot=0.5).attainment == 1.0
    assert metrics(waited, OPEN, ttft=1.5, e2e=2.0, tpot=0.49).attainment == 0.0
    assert metrics([record(1.0, [1.5])], OPEN, ttft=0.5).attainment == 1.0  # intended time unknown


def test_one_token_meets_any_tpot() -> None:
    assert metrics([record(0.0, [1.0])], tpot=0.001).attainment == 1.0


def test_goodput_counts_requests_that_meet_every_slo() -> None:
    found = metrics(
        [record(0.0, [1.0, 2.0]), record(0.0, [1.0, 4.0]), record(0.0, [3.0, 4.0])],
        ttft=2.0,
        e2e=2.0,
    )
    assert found.attainment == pytest.approx(1 / 3)
    assert found.goodput_per_s == 1 / 4


def test_a_latency_that_is_missing_misses_its_slo() -> None:
    assert metrics([record(0.0, end_s=1.0, output_tokens=3)], ttft=10.0).attainment == 0.0


def test_without_slos_there_is_neither_goodput_nor_attainment() -> None:
    found = metrics([record(0.0, [1.0])])
    assert found.goodput_per_s is None
    assert found.attainment is None


@pytest.mark.usefixtures("any_rounds")
def test_what_was_never_reported_is_missing() -> None:
    found = metrics([record(0.0, [1.0]), record(2.0, [3.0])])
    assert found.input_tokens is None
    assert found.cached_input_tokens is None
    assert found.total_tokens_per_s is None
    assert found.steady.total_tokens_per_s is None
    assert found.steady.output_tokens_per_s == 0.5
    assert found.ttft_intended_s is None
    assert found.send_lag_s is None
    assert found.receive_lag_s is None


def test_what_was_reported_as_zero_is_zero() -> None:
    assert (
        metrics([record(0.0, [1.0], cached_tokens=0), record(0.0, [1.0])]).cached_input_tokens == 0
    )


def test_records_are_read_once_where_it_is_known_when_they_were_sent() -> None:
    records = [record(float(at), [at + 1.0, at + 3.0], input_tokens=5) for at in range(6)]
    reads = []

    def read() -> list[pa.RecordBatch]:
        reads.append(1)
        return [batch(records)]

    assert flat(measure_cell(read, OPEN, sent_s=np.arange(6.0))) == metrics(records, OPEN)
    assert len(reads) == 1


@pytest.mark.parametrize("batches", [[], [batch([])], [batch([record(phase="warmup")])]])
def test_no_measured_requests_give_no_numbers(batches: list[pa.RecordBatch]) -> None:
    found = flat(measure_cell(lambda: batches, OPEN, RequestBounds(ttft_s=1.0)))
    assert found.requests.sent == 0
    assert found.output_tokens == 0
    assert {key for key, value in vars(found).items() if value not in (None, {})} == {
        "requests",
        "output_tokens",
        "output_events",
    }


def test_requests_that_all_failed_give_counts_only() -> None:
    found = metrics([record(0.0, status="error", end_s=2.0)], ttft=1.0)
    assert (found.requests.sent, found.requests.error) == (1, 1)
    assert found.ttft_s is None
    assert found.requests_per_s == 0.0
    assert found.output_tokens_per_s == 0.0
    assert found.attainment == 0.0


def test_counts_without_their_arrivals_are_refused() -> None:
    with pytest.raises(InputError, match="request 0-7: arrival_s and tokens differ in length"):
        metrics([record(0.0, [1.0]), record(0.0, [1.0, 2.0], [1], request_id="0-7")])


def test_null_lists_are_empty_ones() -> None:
    row = msgspec.to_builtins(record(0.0, status="error", end_s=1.0)) | {
        "arrival_s": None,
        "tokens": None,
    }
    with_null = pa.RecordBatch.from_pylist(
        [row, msgspec.to_builtins(record(0.0, [1.0, 2.0]))], schema=SCHEMA
    )
    assert flat(measure_cell(lambda: [with_null], CLOSED)).itl_s.n == 1


def test_a_status_that_is_missing_is_none_of_them() -> None:
    row = msgspec.to_builtins(record(0.0, [1.0], end_s=1.0)) | {"status": None}
    found = flat(measure_cell(lambda: [pa.RecordBatch.from_pylist([row], schema=SCHEMA)], CLOSED))
    assert (sum(msgspec.to_builtins(found.requests).values()), found.ttft_s) == (
        1,
        None,
    )  # it was sent


def test_result_is_plain_data() -> None:
    found = metrics([record(0.0, [1.0, 2.0], intended_s=0.0), record(1.0, [2.0])], ttft=1.0)
    plain = msgspec.to_builtins(vars(found))
    assert msgspec.json.decode(msgspec.json.encode(plain)) == plain


requests = st.lists(
    st.tuples(
        st.floats(0, 10), st.lists(st.tuples(st.floats(1e-4, 10), st.integers(0, 6)), max_size=6)
    ),
    max_size=8,
)


def drawn(requests: list[tuple[float, list[tuple[float, int]]]]) -> list[RequestRecord]:
    records = []
    for i, (sent, events) in enumerate(requests):
        arrival = sent + np.cumsum([gap for gap, _ in events])
        tokens = np.cumsum([count for _, count in events], dtype=int)
        phase = "warmup" if i % 3 == 2 else "measure"
        status = "error" if i % 4 == 3 else "ok"
        records.append(record(sent, arrival.tolist(), tokens.tolist(), phase=phase, status=status))
    return records


@given(st.lists(st.tuples(st.floats(1e-4, 100), st.integers(1, 9)), min_size=2, max_size=50))
def test_gaps_sum_to_the_time_from_first_to_last_arrival(events: list[tuple[float, int]]) -> None:
    arrival = np.cumsum([gap for gap, _ in events]).tolist()
    tokens = np.cumsum([count for _, count in events]).tolist()
    found = metrics([record(0.0, arrival, tokens)])
    assert found.itl_s.n == tokens[-1] - tokens[0]
    assert found.itl_s.mean * found.itl_s.n == pytest.approx(arrival[-1] - arrival[0], rel=1e-6)


@given(st.lists(st.tuples(st.floats(1e-4, 100), st.integers(1, 9)), min_size=1, max_size=50))
def test_mean_gap_is_tpot_where_the_first_event_brings_one_token(
    events: list[tuple[float, int]],
) -> None:
    arrival = np.cumsum([1.0] + [gap for gap, _ in events]).tolist()
    tokens = np.cumsum([1] + [count for _, count in events]).tolist()
    found = metrics([record(0.0, arrival, tokens)])
    assert found.itl_s.mean == pytest.approx(found.tpot_s.mean, rel=1e-6)


@given(requests)
def test_percentiles_rise(requests: list[tuple[float, list[tuple[float, int]]]]) -> None:
    found = metrics(drawn(requests))
    for one in (found.ttft_s, found.tpot_s, found.itl_s, found.e2e_s):
        if one is not None:
            points = [one.min, one.p50, one.p90, one.p95, one.p99, one.max]
            assert points == sorted(points)


@given(requests, st.integers(0, 8), st.integers(1, 8))
def test_numbers_do_not_depend_on_how_records_are_cut_into_batches(
    requests: list[tuple[float, list[tuple[float, int]]]], cut: int, piece_events: int
) -> None:
    records = drawn(requests)
    whole = batch(records)
    slo = RequestBounds(1.0, 0.5)
    with mock.patch("loadstone.core.arrays._PIECE_EVENTS", piece_events):
        in_two = measure_cell(lambda: [whole.slice(0, cut), whole.slice(cut)], OPEN, slo)
    assert in_two == measure_cell(lambda: [whole], OPEN, slo)


def test_two_hundred_thousand_requests_agree_with_plain_numpy() -> None:
    n, events, warm = 200_000, 5, 1000
    rng = np.random.default_rng(3)
    sent = np.cumsum(rng.exponential(0.01, n))
    arrival = sent[:, None] + 0.1 + np.cumsum(rng.exponential(0.02, (n, events)), axis=1)
    counts = rng.integers(1, 4, (n, events))
    tokens = np.cumsum(counts, axis=1)
    failed = rng.random(n) < 0.1
    measured = np.arange(n) >= warm
    good = measured & ~failed
    offsets = np.arange(0, n * events + 1, events, dtype=np.int32)
    columns = {name: pa.nulls(n, SCHEMA.field(name).type) for name in SCHEMA.names} | {
        "request_id": pa.array([f"0-{i}" for i in range(n)]),
        "phase": pa.array(np.where(measured, "measure", "warmup").tolist()),
        "status": pa.array(np.where(failed, "error", "ok").tolist()),
        "intended_s": pa.array(sent - 0.001),
        "sent_s": pa.array(sent),
        "end_s": pa.array(arrival[:, -1]),
        "arrival_s": pa.ListArray.from_arrays(offsets, arrival.ravel()),
        "tokens": pa.ListArray.from_arrays(offsets, pa.array(tokens.ravel(), pa.int32())),
        "input_tokens": pa.array(np.full(n, 100)),
        "output_tokens": pa.array(tokens[:, -1], mask=failed),
    }
    whole = pa.RecordBatch.from_pydict(columns, schema=SCHEMA)
    # Batches of odd sizes, out of order.
    cuts = [(150_000, 50_000), (3, 70_001), (0, 3), (70_004, 79_996)]
    found = flat(
        measure_cell(lambda: (whole.slice(*cut) for cut in cuts), OPEN, RequestBounds(0.12, 0.01))
    )

    ttft, e2e = arrival[:, 0] - sent, arrival[:, -1] - sent
    tpot = (arrival[:, -1] - arrival[:, 0]) / (tokens[:, -1] - 1)
    itl = np.repeat(
        (np.diff(arrival[good], axis=1) / counts[good, 1:]).ravel(), counts[good, 1:].ravel()
    )
    for one, expected in (
        (found.ttft_s, ttft[good]),
        (found.e2e_s, e2e[good]),
        (found.tpot_s, tpot[good]),
    ):
        assert one.n == len(expected)
        assert one.mean == pytest.approx(expected.mean(), rel=1e-12)
        assert one.std == pytest.approx(expected.std(), rel=1e-9)
        assert [one.p50, one.p90, one.p95, one.p99] == pytest.approx(
            np.percentile(expected, [50, 90, 95, 99])
        )
    assert found.itl_s.n == len(itl)
    assert found.itl_s.mean == pytest.approx(itl.mean(), rel=1e-6)
    assert found.itl_s.p99 == pytest.approx(np.percentile(itl, 99), rel=1e-6)

    duration = arrival[measured, -1].max() - sent[measured].min() + 0.001
    assert found.duration_s == pytest.approx(duration, rel=1e-12)
    assert found.output_tokens == counts[measured].sum()
    assert found.requests_per_s == pytest.approx(good.sum() / duration, rel=1e-12)
    meets = good & (ttft + 0.001 <= 0.12) & (tpot <= 0.01)
    assert found.attainment == meets.sum() / measured.sum()

    start, end = sent[warm], sent[-1]
    inside = (arrival >= start) & (arrival <= end)
    made = counts[inside].sum()
    assert found.steady.output_tokens_per_s == pytest.approx(made / (end - start), rel=1e-12)
    own = counts[measured].sum()
    assert found.steady.total_tokens_per_s == pytest.approx(
        made / (end - start) * (100 * measured.sum() + own) / own
    )
    assert found.steady.requests_per_s == pytest.approx(made / (end - start) * good.sum() / own)


def test_answers_in_one_piece_have_an_end_and_no_first_token() -> None:
    whole = [record(0.0, [2.0], [8])]
    found = flat(measure_cell(lambda: [batch(whole)], CLOSED, streams=False))
    assert found.ttft_s is None
    assert found.ttft_intended_s is None
    assert found.tpot_s is None
    assert found.itl_s is None
    assert found.e2e_s is not None
    assert found.e2e_s.mean == 2.0
    assert found.output_tokens == 8


def test_parts_of_a_cell() -> None:
    records = [
        record(0.0, [1.0, 2.0], turn=0, input_tokens=10, cached_tokens=0, intended_s=-2.0),
        record(0.0, [3.0, 4.0, 5.0], turn=0, input_tokens=12, cached_tokens=4, intended_s=-2.0),
        record(6.0, [6.5], turn=1, input_tokens=20, cached_tokens=10),
        record(6.0, status="cancelled", turn=1),
        record(0.0, [1.0], turn=0, phase="warmup"),
        record(0.0, [1.0]),
    ]

    def turns(rows: pa.RecordBatch) -> Any:
        return rows.column("turn").fill_null(-1).to_numpy(zero_copy_only=False)

    found = parts(lambda: [batch(records[:2]), batch(records[2:])], turns)
    assert sorted(found) == [0, 1]
    first, second = found[0], found[1]
    assert (
        first.requests.sent,
        first.requests.ok,
        first.input_tokens,
        first.cached_input_tokens,
    ) == (2, 2, 22, 4)
    assert first.output_tokens == 5
    assert first.token_share == 5 / 7  # of seven: the row without a turn is the cell's too
    assert first.ttft_s is not None
    assert first.ttft_s.mean == 2.0
    assert first.tpot_s is not None
    assert first.tpot_s.mean == 1.0
    assert (first.ttft_intended_s.mean, first.e2e_intended_s.mean) == (4.0, 5.5)
    assert (second.requests.sent, second.requests.cancelled) == (2, 1)
    assert (first.mean_input_tokens, first.mean_output_tokens) == (11.0, 2.5)
    # What was cut off is in the totals, and not in the mean of a request.
    cut = record(0.0, [1.0, 2.0], turn=0, input_tokens=500, status="cancelled")
    first = parts(lambda: [batch([*records, cut])], turns)[0]
    assert (first.input_tokens, first.output_tokens) == (522, 7)
    assert (first.mean_input_tokens, first.mean_output_tokens) == (11.0, 2.5)
    assert second.e2e_s is not None
    assert second.e2e_s.mean == 0.5
    whole = parts(lambda: [batch(records)], turns, streams=False)[0]
    assert (whole.ttft_s, whole.tpot_s, whole.ttft_intended_s) == (None, None, None)
