"""Flow control of a gateway before replicas: bands, flows, order, saturation, and who is turned
away."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from loadstone.core.errors import InputError
from loadstone.core.plan import Plan
from loadstone.predict.scheduler import EnginePolicy
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import Fleet
from loadstone.predict.simulator.flow_control import FlowControl
from loadstone.predict.simulator.table import tables
from loadstone.workload.options import SimulateOptions
from loadstone.workload.planning import plan_of
from predict.test_simulator import Times

ONE = EnginePolicy(kv_blocks=10_000, max_batched_tokens=1024, max_seqs=1)
Rows = list[dict[str, Any]]


def mixed(*classes: str, **others: Any) -> Plan:
    options = {"deployment": "llama-3.1-8b@1xh100", "warmup": "0"} | others
    return plan_of(SimulateOptions.read(class_=list(classes), **options))


def run(plan: Plan, control: str | None, policy: EnginePolicy = ONE, **fleet: Any) -> Rows:
    """The records, with the names of their classes, in the order of first tokens."""
    gate = None if control is None else FlowControl.parse(control)
    simulated = Fleet(policy, Times(), flow_control=gate, **fleet)
    done = run_cell(plan, 0, simulated)
    rows = [row for table in tables(plan, 0, done, policy) for row in table.to_pylist()]
    for at, row in enumerate(rows):
        row["class"] = plan.classes[plan.class_of(at)].name if plan.classes else ""
    return sorted(rows, key=lambda row: (row["arrival_s"] or [row["end_s"]])[0])


def order(rows: Rows) -> str:
    return "".join(row["class"] for row in rows if row["status"] == "ok")


def test_a_gateway_that_is_never_saturated_changes_nothing() -> None:
    plan = mixed(
        "a,share=1,input=50,output=20,priority=-1", "b,share=1,input=90,output=9",
        rate="5", requests="60",
    )  # fmt: skip
    policy = EnginePolicy(kv_blocks=10_000, max_seqs=64)
    assert run(plan, "default", policy) == run(plan, None, policy)


def test_the_highest_band_goes_first_and_flows_in_turn() -> None:
    """All come at about once; the engine is full with two, so the others wait at the gateway."""
    flood = "a,rate=1000,input=50,output=20,tenant=x"
    plan = mixed(flood, "b,rate=1000,input=50,output=20,tenant=y", "h,rate=1000,input=50,output=20,priority=1",
                 requests="60")  # fmt: skip
    settings = "queue_depth=1,refresh=1ms"
    strict = order(run(plan, settings))
    assert len(strict) == 60
    # All of the high band before any but the few that were let through before it came.
    assert strict[:26].count("h") == 20
    fair = order(run(plan, f"{settings},fairness=round-robin"))
    assert all(one != other for one, other in itertools.pairwise(fair[30:50]))


def test_a_flood_of_one_tenant_leaves_another_its_turns() -> None:
    plan = mixed(
        "a,rate=900,input=50,output=20,tenant=x", "b,rate=100,input=50,output=20,tenant=y",
        requests="100",
    )  # fmt: skip
    settings = "queue_depth=1,refresh=1ms"
    by_strict, by_turn = (
        [
            at
            for at, name in enumerate(order(run(plan, f"{settings},fairness={how}")))
            if name == "b"
        ]
        for how in ("global-strict", "round-robin")
    )
    assert len(by_strict) == len(by_turn) == 10
    assert sum(by_turn) < 0.5 * sum(by_strict)


def test_deadlines_order_a_flow_by_the_header_and_without_it_last(tmp_path: Path) -> None:
    mix = tmp_path / "mix.yaml"
    mix.write_text(
        "classes:\n"
        "  - {name: n, rate: 1000, input: 50, output: 20}\n"
        "  - {name: s, rate: 1000, input: 50, output: 20, headers: {X-SLO-TTFT-MS: '9000'}}\n"
        "  - {name: f, rate: 1000, input: 50, output: 20, headers: {x-slo-ttft-ms: '100'}}\n"
    )
    options = {"deployment": "llama-3.1-8b@1xh100", "warmup": "0", "requests": "45"}
    plan = plan_of(SimulateOptions.read(mix=mix, **options))
    by_deadline = order(run(plan, "ordering=slo-deadline,queue_depth=1,refresh=1ms"))
    assert by_deadline[8:] == "".join(sorted(by_deadline[8:], key="fsn".index))
    by_arrival = order(run(plan, "queue_depth=1,refresh=1ms"))
    assert by_arrival[8:] != by_deadline[8:]


def test_saturation_is_seen_only_by_the_next_scrape() -> None:
    """Forty come within one interval of scrapes, and all of them pass."""
    low = "l,rate=1000,input=50,output=20,priority=-1"
    plan = mixed(low, requests="40")
    assert order(run(plan, "refresh=10s,stale=20s")) == "l" * 40
    turned_away = [row for row in run(plan, "refresh=1ms") if row["status"] == "error"]
    assert 30 <= len(turned_away) < 40
    assert {(row["http_status"], row["error"].partition(":")[0]) for row in turned_away} == {
        (429, "rejected-saturated")
    }
    for row in turned_away:  # 3 ms of way, and 1 ms back
        assert row["end_s"] - row["sent_s"] == pytest.approx(0.004)
    assert order(run(plan, "refresh=1ms,shed=off")) == "l" * 40


def test_metrics_that_are_too_old_count_as_saturated() -> None:
    plan = mixed("a,rate=20,input=50,output=2", requests="40")
    fresh, stale = (run(plan, f"refresh=1s,stale={stale}") for stale in ("2s", "100ms"))
    waits = [
        max(row["arrival_s"][0] - row["sent_s"] for row in rows if row["status"] == "ok")
        for rows in (fresh, stale)
    ]
    assert waits[0] < 0.3
    assert 0.7 < waits[1] < 1.4


def test_who_waits_for_longer_than_the_ttl_is_turned_away() -> None:
    plan = mixed("a,rate=1000,input=50,output=20", requests="40")
    rows = run(plan, "queue_depth=1,refresh=1ms,ttl=2s")
    gone = [row for row in rows if row["status"] == "error"]
    assert 20 < len(gone) < 40
    assert len(gone) + len(order(rows)) == 40
    for row in gone:
        assert (row["http_status"], row["error"].partition(":")[0]) == (503, "rejected-ttl-expired")
        assert row["end_s"] - row["sent_s"] == pytest.approx(2.004)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lifo", "'lifo' is none of its settings"),
        ("ttl=1s,ttl=2s", "is given twice"),
        ("fairness=vtc", "Invalid enum value 'vtc'"),
        ("queue_depth=0", "must be above 0"),
        ("refresh=often", "--flow-control"),
    ],
)
def test_what_is_no_flow_control_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as refused:
        FlowControl.parse(text)
    assert "\n" not in str(refused.value)
