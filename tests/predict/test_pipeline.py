"""Pipelines: batches that share cache, queue and places, and take turns on the stages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.predict.scheduler import EnginePolicy, Sequence, Speculative, batches_of, policy_of
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.engine import RequestLog
from loadstone.predict.simulator.fleet import Fleet, fleet_of, longest_request
from loadstone.predict.simulator.pipeline import Pipeline, complete, engines_of
from loadstone.predict.sizing.size import size
from test_simulator import POLICY, SLOPED, Times, check_answers, plan, records_of

PIPED = EnginePolicy(kv_blocks=10_000, max_batched_tokens=1024, max_seqs=64, pipeline=2)


def engine(policy: EnginePolicy, times: Times) -> tuple[Pipeline, RequestLog]:
    journal = RequestLog(20)
    _, (unit,) = engines_of(Fleet(policy, times), journal, shared=False)
    assert isinstance(unit, Pipeline)
    return unit, journal


def drive(unit: Pipeline) -> dict[int, float]:
    """Until all is done; when each request ended."""
    ended: dict[int, float] = {}
    while unit.next_s < np.inf:
        at_s = unit.next_s
        ended |= {sequence.row: at_s for sequence in complete(unit)}
    return ended


# --- exact times ----------------------------------------------------------------------------------


def test_one_request_takes_the_sum_of_the_stages() -> None:
    asked = plan(concurrency=[1], requests=[3], output="40")
    alone, piped = (records_of(asked, Fleet(policy, SLOPED)) for policy in (POLICY, PIPED))
    for one, other in zip(alone, piped, strict=True):
        assert other["arrival_s"] == pytest.approx(one["arrival_s"])


def test_two_batches_take_turns_on_the_stages() -> None:
    # Prompts of 1,000 tokens, one to a batch: 0.11 s a prompt, 0.01 s a decode, half of it on each
    # stage.
    unit, journal = engine(PIPED, Times())
    unit.add(Sequence(0, 1000, 3), 0.0)
    assert unit.next_s == pytest.approx(0.11)
    unit.add(
        Sequence(1, 1000, 3), 0.001
    )  # the first stage is busy, and the engine looks for it only afterwards
    assert unit.next_s == pytest.approx(0.11)
    ended = drive(unit)
    # The second prompt goes with the first one's decode, 1 + 1,000 tokens; they stay together.
    assert journal.first_s[:2] == pytest.approx([0.11, 0.22])
    assert ended == pytest.approx({0: 0.23, 1: 0.24})


def test_what_a_step_has_no_room_for_goes_with_the_next_batch() -> None:
    unit, journal = engine(PIPED, Times())
    # Found waiting together: two to a batch of 1,024 tokens.
    unit.add(Sequence(9, 1, 1), 0.0)
    for row in range(4):
        unit.add(Sequence(row, 512, 3), 0.001)
    ended = drive(unit)
    begun = 0.0101
    prompts = 0.01 + 0.1024
    # The second batch enters each stage when the first leaves it: half a step behind.
    first, second = begun + prompts, begun + 1.5 * prompts
    assert journal.first_s[:4] == pytest.approx([first, first, second, second])
    # The first one's decode has both stages behind the second's prompts; then each finds the other
    # half a step ahead.
    assert ended[0] == ended[1] == pytest.approx(second + 0.005 + 0.01)
    assert ended[2] == ended[3] == pytest.approx(second + 0.02)


def test_chunks_of_a_prompt_follow_one_another_through_the_stages() -> None:
    for stages, seconds in ((1, 0.4096), (2, 0.1024 * (1 + 3 / 2)), (4, 0.1024 * (1 + 3 / 4))):
        asked = plan(concurrency=[1], requests=[1], input="4096", output="1")
        policy = EnginePolicy(
            kv_blocks=10_000, max_batched_tokens=1024, max_seqs=64, pipeline=stages
        )
        flat = Times(step=0.1024, token=0.0)
        (record,) = records_of(asked, Fleet(policy, flat))
        assert record["arrival_s"][0] - record["sent_s"] == pytest.approx(seconds + 0.004)


def test_a_large_batch_goes_at_the_pace_of_one_stage() -> None:
    # A step takes 0.1 ms for each that decodes: halved batches take half as long, each half of that
    # on a stage.
    asked = plan(concurrency=[64], requests=[640], input="512", output="100")
    times = Times(step=0.0, token=1e-7, slot=1e-4)
    rates = [64_000 / run_cell(asked, 0, Fleet(policy, times)).over_s for policy in (POLICY, PIPED)]
    assert 1.7 < rates[1] / rates[0] < 2.0


# --- what is shared -------------------------------------------------------------------------------


def test_one_request_may_have_the_whole_cache() -> None:
    policy = EnginePolicy(kv_blocks=10, max_batched_tokens=1024, max_seqs=8, pipeline=2)
    (record,) = records_of(
        plan(concurrency=[1], requests=[1], input="140", output="20"), Fleet(policy, Times())
    )
    assert record["output_tokens"] == 20


def test_places_are_shared_or_cut_by_batch() -> None:
    for batch_seqs, running in ((None, [3, 0]), (2, [2, 1])):
        policy = EnginePolicy(
            kv_blocks=1000, max_seqs=3, max_batched_tokens=100, pipeline=2, batch_seqs=batch_seqs
        )
        first, second = batches_of(policy)
        for row in range(5):
            first.add(Sequence(row, 10, 5))
        first.schedule()
        second.schedule()
        assert [len(first.running), len(second.running)] == running


@pytest.mark.parametrize(
    "deployment",
    [
        "llama-3.1-70b@4xh100/tp2,pp2",
        "llama-3.1-70b@4xh100/tp2,pp2,engine=sglang",
        "llama-3.1-70b@4xh100/tp2,pp2,engine=tensorrt-llm",
        "llama-3.1-8b@2xh100/tp1,pp2,engine=tensorrt-llm,max_batch_size=3",
        "llama-3.1-8b@2xh100/tp1,pp2,max_num_seqs=5",
        "llama-3.1-8b@4xh100/tp1,pp2,dp2,engine=sglang,max_running_requests=4",
    ],
)
def test_as_many_run_at_once_as_sizing_says(deployment: str) -> None:
    deployed = parse_deployment(deployment)
    fleet = fleet_of(deployed)
    row = size(deployed.worker, 8192)
    # All at once, each with prompts and answers that come to 8,192 tokens; the first ones' answers
    # are not over yet.
    asked = plan(
        rate=[float("inf")], requests=[row.max_concurrent_requests + 60], input="8000", output="192"
    )
    most = 0

    def look(at_s: float, states: Any) -> float:
        nonlocal most
        most = max(most, sum(state.running for state in states))
        return at_s + 0.05

    run_cell(asked, 0, fleet, look=look)
    assert longest_request(deployed, fleet.policy)[0] == row.max_context_tokens
    # Requests whose answers have only begun leave room for a few more, and SGLang keeps some of it
    # free.
    assert 0.9 * row.max_concurrent_requests <= most <= 1.05 * row.max_concurrent_requests + 1


def test_virtual_engines_had_their_part_of_the_cache() -> None:
    old, new = (
        parse_deployment(f"llama-3.1-8b@2xh100/tp1,pp2,version={version}")
        for version in ("0.7.3", "0.19.0")
    )
    assert fleet_of(old).replicas == 2
    assert fleet_of(new).replicas == 1
    assert policy_of(old.worker).pipeline == 1
    assert policy_of(new.worker).pipeline == 2
    assert policy_of(old.worker).kv_blocks == pytest.approx(
        policy_of(new.worker).kv_blocks / 2, rel=0.1
    )


# --- whatever comes -------------------------------------------------------------------------------


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    order=st.sampled_from(["mixed", "prefill-first"]),
    stages=st.integers(2, 4),
    kv_blocks=st.sampled_from([12, 20, 500]),
    batch_seqs=st.sampled_from([None, 2]),
    chunked=st.booleans(),
    keep_free=st.sampled_from([0.0, 0.3, 1.0]),
    speculative=st.sampled_from([None, Speculative(2, 0.6)]),
    load=st.sampled_from(
        [{"concurrency": [12]}, {"rate": [50.0]}, {"concurrency": [1]}, {"rate": [float("inf")]}]
    ),
    engines=st.sampled_from([(1, False), (2, False), (2, True)]),
    shared=st.booleans(),
)
def test_every_token_has_its_time(
    seed: int,
    order: Any,
    stages: int,
    kv_blocks: int,
    batch_seqs: int | None,
    chunked: bool,
    keep_free: float,
    speculative: Speculative | None,
    load: dict[str, Any],
    engines: tuple[int, bool],
    shared: bool,
) -> None:
    more: dict[str, Any] = (
        {"prefix": 32, "prefix_groups": 2, "input": "uniform:33:90"} if shared else {}
    )
    asked = plan(
        **({"input": "uniform:1:90", "output": "uniform:1:90", "requests": [30]} | load | more),
        seed=seed,
    )
    policy = EnginePolicy(
        kv_blocks=kv_blocks,
        max_batched_tokens=32,
        max_seqs=6,
        order=order,
        chunked=chunked,
        keep_free=keep_free,
        speculative=speculative,
        pipeline=stages,
        batch_seqs=batch_seqs,
    )
    fleet = Fleet(policy, SLOPED, replicas=engines[0], in_step=engines[1])
    run = run_cell(asked, 0, fleet)
    records = records_of(asked, fleet)
    check_answers(asked, records, one_by_one=speculative is None)
    for replica in run.replicas:
        scheduler = replica.scheduler
        assert scheduler.idle
        assert (
            scheduler.used_blocks()
            == scheduler._pool.most_blocks
            == scheduler._owed
            == scheduler.decodes
            == 0
        )
        assert not scheduler._prefilling
        assert not any(scheduler._phases)
    assert sum(state.written_tokens for state in run.states()) == asked.output_tokens.sum()
    assert records == records_of(asked, fleet), "the same seed gives the same run"
