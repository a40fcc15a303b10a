"""Verdicts as a whole, and findings about the client's sends."""

from typing import Any

import msgspec
import pytest

from loadstone.analyse.verdict.finding import judge
from loadstone.core.plan import Load
from loadstone.core.verdict import Finding, Verdict
from verdict_cells import LOAD, Case, check, closed, found, plan_of, rows


def test_a_clean_cell_has_no_findings() -> None:
    assert found(rows()) == {}
    assert found(closed(8, 400), plan_of(Load("concurrency", 8), warm=8)) == {}
    assert judge([]) == Verdict(True, [])


def test_warnings_and_errors_spoil_trust_and_come_first() -> None:
    info, warning, error = (Finding(s, s, "", "") for s in ("info", "warning", "error"))  # type: ignore[arg-type]
    assert judge([info]) == Verdict(True, [info])
    assert judge([info, warning, error]) == Verdict(False, [error, warning, info])
    assert msgspec.to_builtins(judge([warning])) == {
        "trusted": False,
        "findings": [{"kind": "warning", "severity": "warning", "evidence": "", "remedy": ""}],
    }


LOOP, CAPPED = Load("concurrency", 60), Load("rate", 100.0, max_concurrency=60)


def late(by: float, count: int = 10, load: Load = LOAD, **changed: Any) -> dict[str, Finding]:
    records = rows(**changed)
    for row in records[:count]:
        row["intended_s"] -= by
    return found(records, plan_of(load))


def hiccups(count: int, load: Load = LOAD) -> dict[str, Finding]:
    """Six requests, of which so many are late."""
    records = rows()[:6]
    for row in records[:count]:
        row["intended_s"] -= 0.5
    return found(records, plan_of(load))


def starved(ttft_s: float, tail_s: float, lag_s: float) -> dict[str, Finding]:
    """As seen beside vLLM on two cores: four users, 64 requests, four of them sent after a
    stall."""
    records = rows(64, ttft=ttft_s, tpot=0.006)
    for each in records[30:34]:
        each["intended_s"] -= lag_s
        each["arrival_s"] = [at + tail_s - ttft_s for at in each["arrival_s"]]
        each["end_s"] = each["arrival_s"][-1]
    return found(records, plan_of(Load("concurrency", 4), 64, warm=0))


CASES: list[Case] = [
    ("=", None, {}, lambda: late(0.01)),  # less than a tenth of a TTFT of 0.11 s, which contains it
    ("=", None, {}, lambda: late(0.03, 3)),  # of less than 1 % of the requests
    ("=sends_late", "warning", {}, lambda: late(0.03, 4)),
    # more than a tenth, but less than 2 ms
    ("=", None, {}, lambda: late(0.0019, ttft=0.01, tpot=0.01)),
    ("=sends_late", "warning", {}, lambda: late(0.0021, ttft=0.01, tpot=0.01)),
    (
        "sends_late", "warning",
        {"p50_s": 0, "p99_s": 0.03, "spoilt": [{"metric": "TTFT", "percentile": "p99", "value_s": 0.13}]}, lambda: late(0.03),
    ),
    ("sends_late", "warning", {"spoilt": [{"metric": "TTFT", "percentile": "p99", "value_s": 0.16}, {"metric": "E2E", "percentile": "p99", "value_s": 0.46}]}, lambda: late(0.06)),
    ("sends_late", "warning", {"spoilt": [
        {"metric": "TTFT", "percentile": "p50", "value_s": 0.13}, {"metric": "E2E", "percentile": "p50", "value_s": 0.43},
        {"metric": "TTFT", "percentile": "p99", "value_s": 0.16}, {"metric": "E2E", "percentile": "p99", "value_s": 0.46},
    ]}, lambda: late(0.06, 200)),
    # In a closed loop latencies count from sending; slots that wait for the client are filled
    # together.
    ("=", None, {}, lambda: late(0.009, load=LOOP)),
    ("sends_late", "warning", {"spoilt": [{"metric": "TTFT", "percentile": "p99", "value_s": 0.1}]}, lambda: late(0.03, load=LOOP)),
    # Load is missing, 5 % of it from 20 ms in each request on.
    ("=", None, {}, lambda: late(0.0165, 400, LOOP, ttft=0.3, tpot=0.01)),
    (
        "sends_late", "warning", {"spoilt": [{"metric": "throughput", "missing_share": 0.05151}]},
        lambda: late(0.017, 400, LOOP, ttft=0.3, tpot=0.01),
    ),
    ("sends_late", "warning", {"p99_s": 0.209, "spoilt": [{"metric": "TTFT", "percentile": "p99", "value_s": 0.4}, {"metric": "throughput", "missing_share": 0.1812}]}, lambda: starved(0.031, 0.4, 0.209)),
    ("sends_late", "warning", {"p99_s": 0.197, "spoilt": [{"metric": "TTFT", "percentile": "p99", "value_s": 0.4}, {"metric": "throughput", "missing_share": 0.1547}]}, lambda: starved(0.039, 0.4, 0.197)),
    ("sends_late", "warning", {"p99_s": 0.101, "spoilt": [{"metric": "TTFT", "percentile": "p99", "value_s": 0.461}]}, lambda: starved(0.2, 0.461, 0.101)),
    ("sends_late", None, {}, lambda: hiccups(1)),  # one request among others
    ("sends_late", "warning", {}, lambda: hiccups(2)),
    # Waiting for a slot is no lateness.
    ("=", None, {}, lambda: late(0.03, 3, CAPPED)),
    (
        "=cap_held_back", "info",
        {"late": 10, "requests": 400, "share": 0.025, "limit_s": 0.02, "slots": 60, "longest_s": 0.03},
        lambda: late(0.03, 10, CAPPED),
    ),
    ("cap_held_back", "warning", {}, lambda: late(0.03, 60, CAPPED)),
    ("cap_held_back", None, {}, lambda: hiccups(1, CAPPED)),
    ("cap_held_back", "warning", {}, lambda: hiccups(2, CAPPED)),
    # Few requests do not bound a p99.
    ("few_samples", None, {}, lambda: found(rows()[:368])),
    (
        "few_samples", "info", {"requests": 367, "at_least_s": 0.1},
        lambda: found(rows()[:367]),
    ),
    ("few_samples", "info", {"requests": 5}, lambda: found(rows()[:5])),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_findings_about_sends(case: Case) -> None:
    check(case)


def test_a_simulated_cell_has_no_client_to_blame() -> None:
    records = rows(reused_connection=False)
    for row in records[:10]:
        row["intended_s"] -= 0.03
    blamed = found(records, clock="user")
    assert {"sends_late", "connections_not_kept", "user_clock"} <= blamed.keys()
    assert found(records, clock="user", source="simulated", target=None) == {}
