"""Priorities and limits of queues on serve-sim, beside the simulation of the same plan."""

from __future__ import annotations

import pytest

from conftest import Json, Loadstone
from e2e.test_classes import by_class

DEPLOYMENT = "llama-3.1-70b@4xh100/tp4"
CLASSES = (
    "--class", "chat,share=0.6,input=600,output=uniform:20:60,priority=high",
    "--class", "batch,share=0.4,input=900,output=60,priority=low",
)  # fmt: skip


def firsts(records: list[Json]) -> dict[str, float]:
    return {
        record["request_id"]: record["arrival_s"][0]
        for record in records
        if record["status"] == "ok" and record["phase"] == "measure"
    }


@pytest.mark.parametrize(
    "arguments",
    [
        "max_num_seqs=4,max_num_queued_reqs=14,scheduling_policy=priority",
        "engine=sglang,max_running_requests=4,max_queued_requests=12,enable_priority_scheduling=1,"
        "priority_scheduling_preemption_threshold=1",
    ],
)
def test_a_mix_is_served_as_it_is_simulated(loadstone: Loadstone, arguments: str) -> None:
    deployment = f"{DEPLOYMENT},{arguments}"
    measured = loadstone(
        "bench", "--sim", deployment, "--rate", "9", "--requests", "80", "--json", *CLASSES
    )
    assert measured.code == 0, measured
    simulated = loadstone(
        "simulate", deployment, "--plan", measured.folder, "--draws", "0", "--json"
    )
    there, here = by_class(measured.cell), by_class(simulated.cell)
    turned_away = 0
    for name in ("chat", "batch"):
        for percentile in ("p50", "p99") if there[name]["requests"]["ok"] > 1 else ():
            value = there[name]["tpot_s"][percentile]
            assert here[name]["tpot_s"][percentile] == pytest.approx(value, rel=0.1, abs=0.003)
        sent = there[name]["requests"]["sent"]
        counts = [part[name].get("rejected", 0) for part in (there, here)]
        assert counts[0] == pytest.approx(counts[1], abs=max(3, 0.05 * sent))
        turned_away += counts[0]
    assert turned_away > 5
    one, other = firsts(measured.records), firsts(simulated.records)
    both = sorted(one.keys() & other.keys())
    pairs = [(a, b) for at, a in enumerate(both) for b in both[:at]]
    same = sum((one[a] < one[b]) == (other[a] < other[b]) for a, b in pairs)
    assert same / len(pairs) > 0.9
    assert there["chat"]["ttft_s"]["p50"] < there["batch"]["ttft_s"]["p50"]
    reasons = {record["error"] for record in measured.records if record["status"] == "error"}
    expected = {"HTTP 503: busy: max_num_queued_reqs is reached"}
    if "sglang" in arguments:
        expected = {
            "error in the stream: The request queue is full.",
            "error in the stream: The request is aborted by a higher priority request.",
        }
    assert reasons == expected


HIGH_AND_LOW = (
    "--class", "chat,share=0.5,input=lognormal:600:1.0,output=uniform:20:100,priority=high",
    "--class", "batch,share=0.5,input=lognormal:2000:1.0,output=uniform:20:100,priority=low",
)  # fmt: skip
SERVED = "llama-3.1-8b@1xh100"


@pytest.mark.parametrize(
    ("arguments", "rate", "ignored"),
    [
        ("max_num_seqs=4", 16, True),
        ("max_num_seqs=4,scheduling_policy=priority", 16, False),
        ("engine=sglang,max_running_requests=64", 60, True),
        ("engine=sglang,max_running_requests=64,enable_priority_scheduling=1", 60, False),
        ("max_num_seqs=256", 4, False),  # nobody waits
    ],
)
def test_priorities_that_a_server_ignores_are_found(
    loadstone: Loadstone, arguments: str, rate: int, ignored: bool
) -> None:
    outcome = loadstone(
        "simulate", f"{SERVED}/{arguments}", "--rate", str(rate), "--requests", "200",
        "--draws", "0", "--json", *HIGH_AND_LOW,
    )  # fmt: skip
    assert outcome.code == 0, outcome
    assert ("priority_ignored" in outcome.findings) is ignored
    (overtakes,) = by_class(outcome.cell)["chat"]["overtakes"]
    if rate > 4:
        assert overtakes["met"] > 40
        assert overtakes["overtook"] == (0 if ignored else overtakes["met"])


def test_a_server_that_ignores_priorities_is_found_by_measuring_it(loadstone: Loadstone) -> None:
    outcome = loadstone(
        "bench", "--sim", f"{SERVED}/max_num_seqs=2", "--rate", "24", "--requests", "60", "--json",
        *HIGH_AND_LOW,
    )  # fmt: skip
    assert outcome.code == 0, outcome
    assert "priority_ignored" in outcome.findings
