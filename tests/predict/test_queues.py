"""Simulated queues of classes with priorities beside means that theory knows.

Steps take one second each, and a request takes one step and one slot, or as many steps as it writes
tokens: so service is what a test says.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from loadstone.core.plan import Plan
from loadstone.core.vectors import Floats, Ints64
from loadstone.predict.scheduler import EnginePolicy
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import Fleet
from loadstone.predict.simulator.run import CellRun
from loadstone.workload.options import SimulateOptions
from loadstone.workload.planning import plan_of
from predict.test_simulator import Times

pytestmark = pytest.mark.long

STEP_S = 0.001
TIMES = Times(step=STEP_S, token=0.0, request_s=0.0, stream_s=0.0)
VLLM = EnginePolicy(kv_blocks=1 << 20, max_seqs=1, priorities=True)
SGLANG = EnginePolicy(
    kv_blocks=1 << 20, max_seqs=1, priorities=True, order="prefill-first", preempt_above=0
)


def asked(rates: tuple[float, float], answers: tuple[str, str], requests: int) -> Plan:
    classes = [
        f"high,rate={rates[0]},input=1,output={answers[0]},priority=high",
        f"low,rate={rates[1]},input=1,output={answers[1]},priority=low",
    ]
    return plan_of(
        SimulateOptions.read(
            class_=classes, deployment="llama-3.1-8b@1xh100", requests=requests, warmup=0
        )
    )


def exponential(plan: Plan, mean: float) -> Plan:
    """The plan with answers of exponential length, drawn evenly over the distribution."""
    count = len(plan)
    quantiles = np.random.default_rng(7).permutation((np.arange(count) + 0.5) / count)
    plan.output_tokens = np.maximum(1, np.round(-mean * np.log1p(-quantiles))).astype(np.int32)
    return plan


def times_of(plan: Plan, run: CellRun) -> tuple[Floats, Floats, Ints64]:
    """Time under way and service of each request, and its class; the first tenth is left out."""
    begin = len(plan) // 10
    sent, end = np.array(run.requests.sent_s_of), np.array(run.end_s)
    service = plan.output_tokens * STEP_S
    assert plan.traffic_class is not None
    return (end - sent)[begin:], service[begin:], plan.traffic_class[begin:].astype(np.int64)


def by_class(values: Floats, label: Ints64) -> list[float]:
    return [float(values[label == number].mean()) for number in (0, 1)]


FCFS = msgspec.structs.replace(VLLM, priorities=False)


def means(
    plan: Plan, policy: EnginePolicy, times: Times = TIMES
) -> tuple[list[float], list[float]]:
    """Mean wait and time under way of each class, in seconds."""
    whole_s, service_s, label = times_of(plan, run_cell(plan, 0, Fleet(policy, times)))
    return by_class(whole_s - service_s, label), by_class(whole_s, label)


def waits_beside(
    plan: Plan, policy: EnginePolicy, shares: tuple[float, float], fcfs_s: float
) -> list[float]:
    """Mean waits, of which the lower class's is set right by how far off the mean is of those who
    are served as they come: the same arrivals make both."""
    both = msgspec.structs.replace(FCFS, max_seqs=policy.max_seqs)
    plain_s = float(np.average(means(plan, both)[0], weights=shares))
    assert plain_s == pytest.approx(fcfs_s, rel=0.05)
    (high_s, low_s), _ = means(plan, policy)
    return [high_s, low_s * fcfs_s / plain_s]


@pytest.mark.parametrize(
    ("service", "expected_s", "fcfs_s"),
    [("exponential", [1.0, 3.333], 2.333), ("fixed", [0.5, 1.667], 1.167)],
)
def test_waits_without_eviction_are_cobhams(
    service: str, expected_s: list[float], fcfs_s: float
) -> None:
    """M/G/1, 0.3 and 0.4 requests per service: W1 = R/(1 − ρ1), W2 = W1/(1 − ρ)."""
    plan = asked((0.3, 0.4), ("1000", "1000"), 60_000)
    if service == "exponential":
        plan = exponential(plan, 1000)
    found_s = waits_beside(plan, VLLM, (0.3, 0.4), fcfs_s)
    assert found_s == pytest.approx(expected_s, rel=0.02)


def test_eviction_resumes_a_service() -> None:
    """M/M/1 with eviction: T1 = 1/(1 − ρ1), T2 = (1/(1 − ρ1)) · (1 + ρ/(1 − ρ)). SGLang computes a
    prompt and what was written again; here that costs a step, which writes a token as any does."""
    plan = exponential(asked((0.3, 0.4), ("1000", "1000"), 60_000), 1000)
    wait_s = waits_beside(plan, SGLANG, (0.3, 0.4), 2.333)
    assert wait_s[0] + 1 == pytest.approx(1.4286, rel=0.02)
    assert wait_s[1] + 1 == pytest.approx(4.7619, rel=0.02)


def test_two_servers_pooled_with_priority() -> None:
    """M/M/2, 0.8 requests/s of each class, one second of service."""
    plan = exponential(asked((0.8, 0.8), ("1000", "1000"), 60_000), 1000)
    two = msgspec.structs.replace(VLLM, max_seqs=2)
    found_s = waits_beside(plan, two, (0.5, 0.5), 1.778)
    assert found_s == pytest.approx([0.593, 2.963], rel=0.02)


def test_processor_sharing_stretches_each_service_alike() -> None:
    """M/G/1-PS at a load of a half: twice its service, whatever the distribution."""
    shared = Times(step=0.0, slot=STEP_S, token=STEP_S, request_s=0.0, stream_s=0.0)
    plan = asked((0.5, 0.1), ("400", "3000"), 75_000)
    _, whole_s = means(plan, msgspec.structs.replace(FCFS, max_seqs=512), shared)
    assert whole_s == pytest.approx([0.8, 6.0], rel=0.02)


def test_littles_law_holds_for_each_class() -> None:
    """Requests under way, counted at even moments, are arrivals per second times their time."""
    plan = exponential(asked((0.3, 0.4), ("1000", "1000"), 10_000), 1000)
    run = run_cell(plan, 0, Fleet(SGLANG, TIMES))
    sent, end = np.array(run.requests.sent_s_of), np.array(run.end_s)
    assert plan.traffic_class is not None
    begin_s, last_s = sent.min(), end.max()
    moments = np.linspace(begin_s, last_s, 400_001)[:-1]
    for number in (0, 1):
        own = plan.traffic_class == number
        under_way = np.searchsorted(np.sort(sent[own]), moments, side="right") - np.searchsorted(
            np.sort(end[own]), moments, side="right"
        )
        rate = own.sum() / (last_s - begin_s)
        assert under_way.mean() == pytest.approx(rate * (end - sent)[own].mean(), rel=0.01)
