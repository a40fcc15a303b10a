"""What `validate` and fits simulate is what `simulate` does; and the means that they take of it,
counted by hand."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from loadstone.calibrate.cases import (
    CaseTable,
    Outcome,
    case_of,
    predict,
    refresh,
    run,
    simulate,
    slopes,
)
from loadstone.calibrate.points import Point
from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.predict.scheduler import EnginePolicy
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import Fleet, fleet_of
from loadstone.predict.step_time import StepModel
from loadstone.workload.options import Options
from loadstone.workload.planning import plan_of

POLICY = EnginePolicy(kv_blocks=10_000, max_batched_tokens=1024, max_seqs=64)


class Times(msgspec.Struct):
    """10 ms a step, and 1 ms per prompt token; no ways."""

    request_s: float = 0.0
    request_token_s: float = 0.0
    stream_s: float = 0.0
    window_tokens: float = 0.0
    window_s: float = 0.0
    adapters: None = None

    def step_s(
        self,
        decodes: int,
        context: float,
        chunks: Sequence[tuple[int, int]],
        met_tokens: int | None = None,
    ) -> float:
        return 0.010 + 0.001 * sum(new for new, _ in chunks)

    def decode_line(self, decodes: int) -> tuple[float, float]:
        return 0.010, 0.0


def of(*tokens: int) -> NDArray[np.int64]:
    return np.array(tokens, np.int64)


def both(order: str = "mixed", replicas: int = 1, in_step: bool = False) -> Outcome:
    """100 tokens in and 21 out at 0 s; 200 in, 11 out at 0.225 s, in the twelfth step that the
    first decodes."""
    policy = msgspec.structs.replace(POLICY, order=order)
    fleet = Fleet(policy, Times(), replicas, in_step)
    return run(fleet, 2, of(100, 200), of(21, 11), times=np.array([0.0, 0.225]))


def test_one_request_after_another() -> None:
    outcome = run(Fleet(POLICY, Times()), 1, of(100, 100, 100), of(5, 5, 5))
    assert outcome.ttft_s == pytest.approx([0.110] * 3)
    assert outcome.tpot_s == pytest.approx([0.010] * 3)
    assert (outcome.decode_steps, outcome.decodes) == (12, 1)
    assert outcome.context == 102.5  # 101, 102, 103, 104
    assert (outcome.prompt_steps, outcome.chunk_tokens, outcome.met_tokens) == (3, 100, 100)
    assert (outcome.output_tokens, outcome.preemptions, outcome.held_back) == (15, 0, False)


@pytest.mark.parametrize("order", ["mixed", "prefill-first"])
def test_a_prompt_that_comes_between(order: str) -> None:
    # 12 steps of the first alone, one with the second's prompt, which it takes part in or not; then
    # both.
    outcome = both(order)
    beside = order == "mixed"
    after = 7 if beside else 8
    assert outcome.ttft_s == pytest.approx([0.110, 0.230 + 0.210 - 0.225])
    assert outcome.tpot_s[0] == pytest.approx((0.2 + 0.2 + (0 if beside else 0.01)) / 20)
    assert outcome.decode_steps == 12 + 10
    assert outcome.decodes == pytest.approx((12 + after + 10) / 22)
    # The first reads 101 … 120 in its decodes, in the mixed step 113; the second 201 … 210.
    read = sum(range(101, 121)) - (113 if beside else 0) + sum(range(201, 211))
    assert outcome.context == pytest.approx(read / (12 + after + 10))
    assert (outcome.prompt_steps, outcome.chunk_tokens) == (2, 150)
    assert outcome.met_tokens == (300 + beside) / 2


def test_ranks_that_go_in_step_are_held_up_by_one_anothers_prompts() -> None:
    alone, together = both(replicas=2), both(replicas=2, in_step=True)
    assert alone.tpot_s == pytest.approx([0.010, 0.010])
    assert together.tpot_s == pytest.approx([0.020, 0.010])
    # Of either rank on average: the first's steps go on beside the second's, of which both have the
    # long one.
    assert together.decode_steps == pytest.approx((19 + 10) / 2)
    assert together.decodes == pytest.approx(1.0)
    assert together.prompt_steps == 3 / 2  # the first had nobody beside it that decodes
    assert together.chunk_tokens == 150
    assert together.met_tokens == (300 + 1) / 3


def test_preemptions_and_the_wait_for_room_are_told() -> None:
    inputs, outputs = np.full(16, 400), np.full(16, 200)
    small = msgspec.structs.replace(POLICY, kv_blocks=94)
    tight = run(Fleet(small, Times()), 8, inputs, outputs)
    assert tight.preemptions > 0
    assert tight.held_back
    # Tokens that are computed again are prompt tokens too, and write a token.
    assert tight.decodes * tight.decode_steps < 16 * 199
    sure = run(Fleet(msgspec.structs.replace(small, keep_free=1.0), Times()), 8, inputs, outputs)
    assert (sure.preemptions, sure.held_back) == (0, True)
    assert not run(Fleet(POLICY, Times()), 8, inputs, outputs).held_back


@pytest.mark.parametrize(
    ("deployment", "tokens", "ratio", "users"),
    [
        ("llama-3.1-8b@1xh100", (1024, 128), 0.5, 32),
        ("llama-3.1-8b@1xh100/engine=sglang,scheduler_recv_interval=30", (1024, 128), 0.8, 32),
        ("llama-3.1-8b@1xl4", (2000, 500), 0.8, 64),
        ("llama-3.1-8b@4xh100/tp1,dp4,engine=sglang", (1024, 128), 0.5, 32),
        (
            "deepseek-r1@8xh200/tp1,dp8,attention-dp,engine=sglang,version=0.4.3",
            (3200, 100),
            0.5,
            40,
        ),
        (
            "deepseek-r1@8xh200/tp1,dp8,attention-dp,engine=tensorrt-llm,timeout_iters=60",
            (1024, 100),
            0.8,
            40,
        ),
    ],
)
def test_simulate_gives_the_same(
    deployment: str, tokens: tuple[int, int], ratio: float, users: int
) -> None:
    fleet = fleet_of(parse_deployment(deployment))
    plan = plan_of(
        Options.read(
            input=str(tokens[0]), output=str(tokens[1]), range_ratio=ratio, warmup=0, concurrency=[users],
            requests=[4 * users],
        )
    )  # fmt: skip
    done = run_cell(plan, 0, fleet)
    outcome = run(
        fleet,
        users,
        plan.input_tokens.astype(np.int64),
        plan.output_tokens.astype(np.int64),
        plan.seed,
    )
    ttft = np.array(done.journal.first_s) + done.stream_s - np.array(done.requests.sent_s_of)
    np.testing.assert_allclose(outcome.ttft_s, ttft, rtol=1e-9)
    np.testing.assert_allclose(
        outcome.e2e_s, np.array(done.end_s) + done.stream_s - np.array(done.requests.sent_s_of)
    )
    assert outcome.preemptions == sum(replica.scheduler.preemptions for replica in done.replicas)


def point(**more: object) -> Point:
    given = {
        "row": 7, "engine": "sglang", "engine_version": "0.5.3", "model": "deepseek-r1", "precision": "fp8",
        "gpu": "H200", "gpus": 8, "tp": 1, "dp": 8, "moe_ep": 8, "input_tokens": 2000,
        "output_tokens": 100, "load": "concurrency", "load_value": 40.0, "ttft_s": 1.0, "tpot_s": 0.05,
    }  # fmt: skip
    return Point(**(given | more))  # type: ignore[arg-type]


def test_a_point_is_simulated_on_all_its_ranks() -> None:
    case = case_of(point())
    assert case.worker.attention_dp
    assert (case.users, len(case.inputs)) == (40, 400)
    fleet = fleet_of(case.deployment)
    assert case.policy == fleet.policy
    assert isinstance(fleet.model, StepModel)
    outcome, _ = simulate(case, fleet.model.values)
    same = run(fleet, case.users, case.inputs, case.outputs, case.point.row)
    np.testing.assert_array_equal(outcome.ttft_s, same.ttft_s)
    # As many at once as the ranks have places for, not a rank's part of them on each.
    alone = simulate(case_of(point(load_value=1.0)), fleet.model.values)[0]
    assert alone.decodes <= 1


def test_the_warm_up_is_simulated_and_left_out_of_the_times() -> None:
    case = case_of(point())
    fleet = fleet_of(case.deployment)
    whole = run(fleet, case.users, case.inputs, case.outputs)
    late = run(fleet, case.users, case.inputs, case.outputs, warm=40)
    np.testing.assert_array_equal(late.ttft_s, whole.ttft_s[40:])
    np.testing.assert_array_equal(late.tpot_s, whole.tpot_s[40:])
    assert (late.decode_steps, late.duration_s) == (whole.decode_steps, whole.duration_s)


TP8 = {"tp": 8, "dp": 1, "moe_ep": 1}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("parallel", [{}, TP8], ids=["attention-dp", "tp8"])
def test_the_formula_follows_the_simulation_as_coefficients_move(
    engine: str, parallel: dict[str, int]
) -> None:
    case = case_of(point(engine=engine, engine_version="", **parallel))
    table = CaseTable([case])
    model = fleet_of(case.deployment).model
    assert isinstance(model, StepModel)
    values = model.values[None, :]
    refresh(table, values)
    assert table.in_step.all() == (not parallel)
    ttft, tpot = predict(table, values)
    assert np.exp(tpot)[0] == pytest.approx(table.tpot_s[0])
    assert np.exp(ttft)[0] == pytest.approx(table.ttft_s[0])
    _, by_tpot = slopes(table, values)
    # What matters most, moved by a tenth, moves the simulation as the formula says.
    checked = 0
    for most in np.abs(by_tpot[0]).argsort()[-4:]:
        both, shares = [], [float(table.q[0])]
        for by in (0.1, -0.1):
            moved = np.log(values.copy())
            moved[0, most] += by
            refresh(table, np.exp(moved))
            both.append(table.tpot_s[0])
            shares.append(float(table.q[0]))
        refresh(table, values)
        if max(shares) > 1.05 * min(shares):
            # here the schedule leaps: equal lengths keep step, and one prompt more has found a
            # place
            continue
        checked += 1
        assert np.log(both[0] / both[1]) / 0.2 == pytest.approx(by_tpot[0, most], rel=0.1, abs=0.03)
    assert checked >= 2
