from typing import Any

import pyarrow as pa
import pytest

from loadstone import store, verdict
from loadstone.metrics import cell_metrics
from loadstone.records import Load, Plan
from loadstone.schedule import make_plan
from loadstone.verdict import Finding, cell_findings, judge
from loadstone.workload.dataset import Dataset
from loadstone.workload.synthetic import Length, Synthetic

LOAD = Load("rate", 100.0, process="constant")
WORKLOAD = Synthetic(Length("fixed", 100), Length("fixed", 4))
COUNT = 400
PLAN = make_plan(WORKLOAD, [LOAD], requests=[COUNT], warmup=2)


def rows(**changed: Any) -> list[dict[str, Any]]:
    """A cell that nothing is wrong with, 400 requests; `changed` holds for all of them."""
    made = []
    for index in range(2, COUNT + 2):
        at = index / 100
        made.append(
            dict.fromkeys(store.records_schema().names) | {
                "request_id": f"0-{index}", "cell": 0, "phase": "measure", "intended_s": at, "sent_s": at,
                "arrival_s": [at + 0.1, at + 0.2, at + 0.3, at + 0.4], "read": [0, 1, 2, 3], "tokens": [1, 2, 3, 4],
                "token_source": "final usage", "end_s": at + 0.4, "input_tokens": 100, "output_tokens": 4,
                "cached_tokens": 0, "status": "ok", "receive_lag_s": 0.0,
            } | changed
        )  # fmt: skip
    return made


def found(
    records: list[dict[str, Any]], plan: Plan = PLAN, clock: Any = "kernel", interrupted: str | None = None
) -> dict[str, Finding]:
    batch = pa.RecordBatch.from_pylist(records, schema=store.records_schema())
    metrics = cell_metrics(lambda: [batch], plan.cells[0], {})
    scalars = pa.Table.from_batches([batch]).select(verdict.SCALARS)
    findings = cell_findings(metrics, scalars, plan, 0, clock, interrupted)
    assert len({finding.kind for finding in findings}) == len(findings)
    assert all(f"{f.evidence}{f.remedy}".isprintable() and f.remedy.endswith(".") for f in findings)
    return {finding.kind: finding for finding in findings}


def spoilt(count: int, **changed: Any) -> list[dict[str, Any]]:
    """The clean cell, its first `count` requests changed."""
    made = rows()
    for row in made[:count]:
        row.update(changed)
    return made


def test_a_clean_cell_has_no_findings() -> None:
    assert found(rows()) == {}
    assert judge([]) == verdict.Verdict(True, [])


def test_warnings_and_errors_spoil_trust_and_come_first() -> None:
    info, warning, error = (Finding(s, s, "", "") for s in ("info", "warning", "error"))  # type: ignore[arg-type]
    assert judge([info]) == verdict.Verdict(True, [info])
    assert judge([info, warning, error]) == verdict.Verdict(False, [error, warning, info])
    assert verdict.to_json(judge([warning])) == {
        "trusted": False,
        "findings": [{"kind": "warning", "severity": "warning", "evidence": "", "remedy": ""}],
    }


def test_an_interrupted_cell() -> None:
    finding = found(rows(), interrupted="the cell did not run to its end (x)")["interrupted"]
    assert (finding.severity, finding.evidence) == ("warning", "the cell did not run to its end (x)")


def test_failed_requests() -> None:
    records = spoilt(3, status="error", error="HTTP 500: \x1b[31mboom\n")
    records[3].update(status="timeout", error="timeout")
    records[4].update(status="cancelled", error=None)
    finding = found(records)["request_errors"]
    assert finding.severity == "error"
    assert finding.evidence == (
        "5 of 400 requests failed (3 error, 1 timeout, 1 cancelled): 3 × HTTP 500: \ufffd[31mboom\ufffd; 1 × timeout"
    )
    silent = found(spoilt(1, status="cancelled"))["request_errors"]
    assert silent.evidence.endswith("1 cancelled)")


def test_short_answers() -> None:
    finding = found(spoilt(2, status="short"))["short_outputs"]
    assert finding.severity == "warning"
    assert finding.evidence.startswith("2 of 400 answers")


def test_late_sends() -> None:
    def late(by: float, load: Load = LOAD) -> dict[str, Finding]:
        records = rows()
        for row in records[:10]:
            row["intended_s"] -= by
        return found(records, make_plan(WORKLOAD, [load], requests=[COUNT], warmup=2))

    assert late(0.019) == {}  # up to 5 % of an E2E of 0.4 s
    finding = late(0.03)["sends_late"]
    assert finding.severity == "warning"
    assert finding.evidence == "10 of 400 requests were sent more than 20.0 ms late, up to 30.0 ms"
    assert "sends_late" in late(0.03, Load("concurrency", 4))
    assert late(0.03, Load("rate", 100.0, max_concurrency=4)) == {}  # waiting for a place is no lateness


def test_a_hiccup_is_one_request_among_others() -> None:
    records = rows()[:6]
    records[0]["intended_s"] -= 0.5
    assert "sends_late" not in found(records)
    records[1]["intended_s"] -= 0.5
    assert "sends_late" in found(records)


def test_a_user_space_clock() -> None:
    assert found(rows(), clock="user")["user_clock"].severity == "info"


def test_few_samples() -> None:
    assert "few_samples" not in found(rows()[:368])
    finding = found(rows()[:367])["few_samples"]
    assert finding.severity == "info"
    assert finding.evidence == "367 requests do not bound the p99, only that it is at least 100 ms"
    assert found(rows()[:5])["few_samples"].evidence.startswith("5 requests do not bound the p99")


def test_inputs_of_another_length() -> None:
    assert found(spoilt(4, input_tokens=103)) == {}
    assert found(rows(input_tokens=None)) == {}
    finding = found(spoilt(5, input_tokens=103))["input_length"]
    assert finding.severity == "warning"
    assert finding.evidence.startswith("5 of 400 prompts are not as long as asked by the server's count (median +3)")


def test_input_lengths_of_a_dataset_are_its_own() -> None:
    plan = make_plan(Dataset("text", ["a"], [4], "00", 0), [LOAD], requests=[COUNT], warmup=2)
    assert found(rows(), plan) == {}
    assert found(rows(cached_tokens=100), plan) == {}


def test_help_of_a_prefix_cache() -> None:
    assert found(rows(cached_tokens=1)) == {}
    assert found(rows(cached_tokens=None)) == {}
    finding = found(rows(cached_tokens=32))["prefix_cache_helped"]  # one is the word every text begins with
    assert finding.severity == "warning"
    assert finding.evidence.startswith("31% of input tokens came from the prefix cache")


def test_a_shared_prefix_may_be_cached() -> None:
    shared = Synthetic(WORKLOAD.input, WORKLOAD.output, prefix_tokens=31)
    plan = make_plan(shared, [LOAD], requests=[COUNT], warmup=2)
    assert found(rows(cached_tokens=31), plan) == {}
    assert "prefix_cache_helped" in found(rows(cached_tokens=40), plan)


def test_no_usage() -> None:
    finding = found(rows(token_source="pieces", output_tokens=4))["no_usage"]  # noqa: S106
    assert finding.severity == "warning"
    assert found(spoilt(3, token_source="pieces")) == {}  # noqa: S106


def test_several_tokens_an_event() -> None:
    finding = found(rows(tokens=[2, 4, 6, 8], output_tokens=8))["several_tokens_an_event"]
    assert (finding.severity, finding.evidence) == ("info", "2.00 tokens per stream event")


def test_events_of_failed_requests_are_no_tokens_of_others() -> None:
    kinds = found(spoilt(100, status="error", error="x"))
    assert set(kinds) == {"request_errors", "few_samples"}


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


def test_answers_that_arrive_whole_were_buffered_on_the_way() -> None:
    finding = found(rows(arrival_s=[5.0, 5.0, 5.0, 5.0]))["arrivals_bunched"]
    assert finding.severity == "warning"
    assert "arrived whole" in finding.evidence
    assert "arrivals_bunched" not in found(rows())
