import math

import msgspec
import pyarrow as pa
import pytest

from loadstone.analyse import verdict
from loadstone.analyse.verdict import Finding, judge
from loadstone.core import run_folder
from loadstone.core.plan import Load
from loadstone.workload.dataset import Dataset
from loadstone.workload.lengths import Length, Sessions, Synthetic
from loadstone.workload.schedule import make_plan
from verdict_cells import COUNT, LOAD, WORKLOAD, closed, found, plan_of, rows, spoilt


def test_a_clean_cell_has_no_findings() -> None:
    assert found(rows()) == {}
    assert found(closed(8, 400), plan_of(Load("concurrency", 8), warm=8)) == {}
    assert judge([]) == verdict.Verdict(True, [])


def test_warnings_and_errors_spoil_trust_and_come_first() -> None:
    info, warning, error = (Finding(s, s, "", "") for s in ("info", "warning", "error"))  # type: ignore[arg-type]
    assert judge([info]) == verdict.Verdict(True, [info])
    assert judge([info, warning, error]) == verdict.Verdict(False, [error, warning, info])
    assert msgspec.to_builtins(judge([warning])) == {
        "trusted": False,
        "findings": [{"kind": "warning", "severity": "warning", "evidence": "", "remedy": ""}],
    }


def test_an_interrupted_cell() -> None:
    finding = found(rows(), interrupted="the cell did not run to its end (x)")["interrupted"]
    assert (finding.severity, finding.evidence) == ("warning", "the cell did not run to its end (x)")


def test_what_an_interruption_cancelled_did_not_fail() -> None:
    records = spoilt(3, status="cancelled", error="interrupted")
    assert set(found(records, interrupted="stopped")) == {"interrupted"}
    assert "request_errors" in found(records)
    records[0].update(status="error", error="HTTP 500")
    failed = found(records, interrupted="stopped")["request_errors"]
    assert (
        failed.evidence
        == "1 of 400 requests failed (1 error, 0 timeout, 0 cancelled), 1 of the errors after HTTP 200: 1 × HTTP 500"
    )


def test_failed_requests() -> None:
    records = spoilt(3, status="error", error="HTTP 500: \x1b[31mboom\n")
    records[3].update(status="timeout", error="timeout")
    records[4].update(status="cancelled", error=None)
    finding = found(records)["request_errors"]
    assert finding.severity == "error"
    assert finding.evidence == (
        "5 of 400 requests failed (3 error, 1 timeout, 1 cancelled), 3 of the errors after HTTP 200: 3 × "
        "HTTP 500: \ufffd[31mboom\ufffd; 1 × timeout"
    )
    silent = found(spoilt(1, status="cancelled"))["request_errors"]
    assert silent.evidence.endswith("1 cancelled)")


def test_errors_in_the_stream_are_told_apart() -> None:
    records = spoilt(5, status="error", error="HTTP 503: busy", http_status=503)
    for row in records[:2]:
        row.update(error="error in the stream: out of memory", http_status=200)
    assert found(records)["request_errors"].evidence.startswith(
        "5 of 400 requests failed (5 error, 0 timeout, 0 cancelled), 2 of the errors after HTTP 200: 3 × HTTP 503"
    )


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (429, "limits requests; fix"),
        (413, "client_max_body_size); fix"),
        (502, "a proxy found no engine behind it; fix"),
    ],
)
def test_what_most_refusals_tell_of_their_cause(status: int, cause: str) -> None:
    refused = {"status": "error", "error": f"HTTP {status}", "http_status": status}
    assert cause in found(spoilt(3, **refused))["request_errors"].remedy
    half = spoilt(6, status="error", error="HTTP 400", http_status=400)
    half[0].update(refused)
    assert cause not in found(half)["request_errors"].remedy


def test_connections_that_are_cut_after_the_same_silence() -> None:
    """As proxies do when their time is up."""
    cut = {"status": "error", "error": "the server closed the connection before the answer's end"}

    def remedy(*silences_s: float) -> str:
        records = spoilt(len(silences_s), **cut)
        for each, silence_s in zip(records, silences_s, strict=False):
            each["end_s"] = each["arrival_s"][-1] + silence_s
        return found(records)["request_errors"].remedy

    assert "cut after 60.0 s of silence, probably a proxy's timeout; fix" in remedy(60.0, 60.01, 60.02, 60.0)
    assert "silence" not in remedy(5.0, 60.0, 33.0, 12.0)
    assert "silence" not in remedy(0.01, 0.01, 0.01, 0.01)  # in the midst of a stream
    records = spoilt(3, **cut, arrival_s=[], read=[], tokens=[])
    for each in records:
        each["end_s"] = each["sent_s"] + 1.0
    assert "cut after 1.00 s of silence" in found(records)["request_errors"].remedy


def test_short_answers() -> None:
    finding = found(spoilt(2, status="short"))["short_outputs"]
    assert finding.severity == "warning"
    assert finding.evidence.startswith("2 of 400 answers")


def late(by: float, count: int = 10, load: Load = LOAD, **changed: float) -> dict[str, Finding]:
    records = rows(**changed)
    for row in records[:count]:
        row["intended_s"] -= by
    return found(records, plan_of(load))


def test_late_sends() -> None:
    assert late(0.01) == {}  # less than a tenth of a TTFT of 0.11 s, which contains it
    assert late(0.03, 3) == {}  # of less than 1 % of the requests
    assert set(late(0.03, 4)) == {"sends_late"}
    assert late(0.0019, ttft=0.01, tpot=0.01) == {}  # more than a tenth, but less than 2 ms
    assert set(late(0.0021, ttft=0.01, tpot=0.01)) == {"sends_late"}
    finding = late(0.03)["sends_late"]
    assert finding.severity == "warning"
    assert finding.evidence == "requests were sent late, p50 0 ms, p99 30.0 ms, which spoils TTFT p99 (130 ms)"
    assert late(0.06)["sends_late"].evidence.endswith("which spoils TTFT p99 (160 ms), E2E p99 (460 ms)")
    assert "TTFT p50" in late(0.06, 200)["sends_late"].evidence


def test_late_sends_of_a_closed_loop() -> None:
    """Latencies count from sending; slots that wait for the client are filled together when it returns."""
    load = Load("concurrency", 60)
    assert late(0.009, load=load) == {}
    assert late(0.03, load=load)["sends_late"].evidence.endswith("which spoils TTFT p99 (100 ms)")
    # What is missing is load, 5 % of it from 20 ms in each request on.
    missing = {"load": load, "ttft": 0.3, "tpot": 0.01}
    assert late(0.0165, 400, **missing) == {}  # type: ignore[arg-type]
    evidence = late(0.017, 400, **missing)["sends_late"].evidence  # type: ignore[arg-type]
    assert evidence.endswith("which spoils throughput (slots stood empty for 5% of the mean E2E)")


@pytest.mark.parametrize(
    ("ttft_s", "tail_s", "lag_s"), [(0.031, 0.4, 0.209), (0.039, 0.4, 0.197), (0.2, 0.461, 0.101)]
)
def test_a_starved_client_of_a_closed_loop_is_not_trusted(ttft_s: float, tail_s: float, lag_s: float) -> None:
    """As seen beside vLLM on two cores: four users, 64 requests, four of them sent after a stall."""
    records = rows(64, ttft=ttft_s, tpot=0.006)
    for each in records[30:34]:
        each["intended_s"] -= lag_s
        each["arrival_s"] = [at + tail_s - ttft_s for at in each["arrival_s"]]
        each["end_s"] = each["arrival_s"][-1]
    finding = found(records, plan_of(Load("concurrency", 4), 64, warm=0))["sends_late"]
    assert finding.severity == "warning"
    assert f"p99 {lag_s * 1e3:.0f} ms, which spoils TTFT p99 ({tail_s * 1e3:.0f} ms)" in finding.evidence


def test_waiting_for_a_place_is_no_lateness() -> None:
    capped = Load("rate", 100.0, max_concurrency=60)
    assert late(0.03, 3, capped) == {}
    some = late(0.03, 10, capped)
    assert set(some) == {"cap_held_back"}
    assert some["cap_held_back"].severity == "info"
    assert some["cap_held_back"].evidence == (
        "10 of 400 requests (2%) waited more than 20.0 ms for one of the 60 slots of --max-concurrency, up to 30.0 ms"
    )
    assert late(0.03, 60, capped)["cap_held_back"].severity == "warning"
    for waited in (1, 2):  # of six: one is a hiccup
        records = rows()[:6]
        for row in records[:waited]:
            row["intended_s"] -= 0.5
        assert ("cap_held_back" in found(records, plan_of(capped))) == (waited == 2)


def test_a_hiccup_is_one_request_among_others() -> None:
    records = rows()[:6]
    records[0]["intended_s"] -= 0.5
    assert "sends_late" not in found(records)
    records[1]["intended_s"] -= 0.5
    assert "sends_late" in found(records)


def test_a_user_space_clock() -> None:
    assert found(rows(), clock="user")["user_clock"].severity == "info"


def test_a_simulated_cell_has_no_client_to_blame() -> None:
    records = rows(reused_connection=False)
    for row in records[:10]:
        row["intended_s"] -= 0.03
    blamed = found(records, clock="user")
    assert {"sends_late", "connections_not_kept", "user_clock"} <= blamed.keys()
    assert found(records, clock="user", source="simulated", target=None) == {}


def test_few_samples() -> None:
    assert "few_samples" not in found(rows()[:368])
    finding = found(rows()[:367])["few_samples"]
    assert finding.severity == "info"
    assert finding.evidence == "367 requests do not bound the p99 from above; it is at least 100 ms"
    assert found(rows()[:5])["few_samples"].evidence.startswith("5 requests do not bound the p99")


def test_inputs_of_another_length() -> None:
    assert found(spoilt(4, input_tokens=103)) == {}
    assert found(rows(input_tokens=None)) == {}
    finding = found(spoilt(5, input_tokens=103))["input_length"]
    assert finding.severity == "warning"
    assert finding.evidence.startswith(
        "5 of 400 prompts are not as long as requested, by the server's count (median +3)"
    )


def test_of_sessions_the_first_prompts_lengths_are_known() -> None:
    plan = make_plan(WORKLOAD, [LOAD], requests=[COUNT], warmup=0, sessions=Sessions(Length("fixed", 4)))
    records = rows()
    for number, row in enumerate(records):
        row.update(request_id=f"0-{number}", turn=number % 4, input_tokens=100 if number % 4 == 0 else 999)
    assert found(records, plan) == {}
    for row in records[::4]:
        row["input_tokens"] = 103
    assert found(records, plan)["input_length"].evidence.startswith("100 of 100 prompts")


def test_input_lengths_of_a_dataset_are_its_own() -> None:
    plan = make_plan(Dataset("text", ["a"], [4], "00", 0), [LOAD], requests=[COUNT], warmup=2)
    assert set(found(rows(), plan)) == {"prompts_repeated"}
    assert set(found(rows(cached_tokens=100), plan)) == {"prompts_repeated"}


def test_help_of_a_prefix_cache() -> None:
    assert found(rows(cached_tokens=1)) == {}
    twice = rows(cached_tokens=2)
    assert found(twice) == {}  # 1 % of 100
    twice[0]["input_tokens"] = None
    assert found(twice) == {}  # a share of what is known
    assert set(found(rows(cached_tokens=3))) == {"prefix_cache_helped"}
    assert found(rows(cached_tokens=None)) == {}
    finding = found(rows(cached_tokens=32))["prefix_cache_helped"]  # one is the word every text begins with
    assert finding.severity == "warning"
    assert finding.evidence.startswith("31% of input tokens came from the prefix cache")


def test_a_shared_prefix_may_be_cached() -> None:
    shared = Synthetic(WORKLOAD.input, WORKLOAD.output, prefix_tokens=31)
    plan = make_plan(shared, [LOAD], requests=[COUNT], warmup=2)
    assert found(rows(cached_tokens=31), plan) == {}
    assert "prefix_cache_helped" in found(rows(cached_tokens=40), plan)


def test_a_later_cell_is_compared_with_its_own_rows() -> None:
    shared = Synthetic(WORKLOAD.input, WORKLOAD.output, prefix_tokens=31)
    plan = make_plan(shared, [LOAD, LOAD], requests=[COUNT, COUNT], warmup=2)
    first = plan.rows(0)
    plan.input_tokens[first.start : first.stop] = plan.output_tokens[first.start : first.stop] = 1
    records = rows(cached_tokens=31)
    assert found(records, plan, cell=1) == {}
    assert {"input_length", "output_length"} <= found(records, plan).keys()


def test_no_usage() -> None:
    finding = found(rows(token_source="pieces", output_tokens=4))["no_usage"]  # noqa: S106
    assert "no_usage" not in found(rows(token_source="pieces", output_tokens=4, status="timeout"))  # noqa: S106
    assert finding.severity == "warning"
    assert found(spoilt(4, token_source="pieces")) == {}  # noqa: S106
    assert set(found(spoilt(5, token_source="pieces"))) == {"no_usage"}  # noqa: S106
    assert finding.evidence.startswith("the server reports no usage")
    assert finding.remedy.startswith("Events can hold several tokens")
    some = found(spoilt(100, token_source="pieces"))["no_usage"]  # noqa: S106
    assert (
        some.evidence == "100 of 400 answers have no usage: there, each stream event is counted as one output token"
    )


def test_several_tokens_an_event() -> None:
    finding = found(rows(tokens=[2, 4, 6, 8], output_tokens=8))["several_tokens_an_event"]
    assert (finding.severity, finding.evidence) == ("info", "2.00 tokens per stream event")
    # An end of sequence that is counted too is no token of an event, nor are 5 % more.
    twice = {"tokens": [2, 4, 6, 8], "output_tokens": 8}
    assert "several_tokens_an_event" not in found(spoilt(20, **twice))  # 80 of 1600
    assert "several_tokens_an_event" not in found(spoilt(100, **twice))  # 400 more, of 400
    assert "several_tokens_an_event" in found(spoilt(101, **twice))
    # Nor do answers that are counted by their events say anything of it.
    records = rows(**twice)
    for row in records[:200]:
        row.update(token_source="pieces", tokens=[1, 2, 3, 4], output_tokens=4)  # noqa: S106
    assert found(records)["several_tokens_an_event"].evidence.startswith("2.00 tokens")


def test_events_of_failed_requests_are_no_tokens_of_others() -> None:
    kinds = found(spoilt(100, status="error", error="x"))
    assert set(kinds) == {"request_errors", "few_samples"}


def test_arrivals_without_end_say_nothing_of_a_rhythm() -> None:
    endless = [0.1, math.inf, math.inf, -math.inf]
    batch = pa.RecordBatch.from_pylist(rows(1, arrival_s=endless), schema=run_folder.records_schema())
    events = verdict.Events()
    events.add(batch)
    assert events.figures().pattern.tolist() == [0]


def test_a_cell_where_everything_failed() -> None:
    kinds = found(
        rows(status="error", error="x", arrival_s=[], read=[], tokens=[], output_tokens=None, token_source=None)
    )
    assert set(kinds) == {"request_errors"}


def test_a_cell_that_only_warmed_up() -> None:
    assert set(found(rows(phase="warmup"), interrupted="stopped")) == {"interrupted"}


@pytest.mark.parametrize("index", [2 + COUNT, 2 + 5 * COUNT])
def test_laps_of_a_closed_loop_by_time_are_compared_with_their_rows(index: int) -> None:
    plan = make_plan(
        Synthetic(Length("uniform", 150, low=100, high=200), WORKLOAD.output),
        [Load("concurrency", 4, duration_s=1.0)],
        requests=[COUNT],
        warmup=2,
    )
    records = rows()
    for i, row in enumerate(records):
        row["request_id"] = f"0-{index + i}"
        row["input_tokens"] = int(plan.input_tokens[2 + i])
    assert found(records, plan) == {}
