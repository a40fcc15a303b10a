"""Plans of sessions, traces and ramps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.plan import Load, Plan, PlannedRequest
from loadstone.core.sessions import OpenSessions
from loadstone.workload import trace
from loadstone.workload.dataset import Dataset
from loadstone.workload.draw import WARMUP_S
from loadstone.workload.lengths import Length, Sessions, Think
from loadstone.workload.schedule import make_plan, promised_tokens
from loadstone.workload.synthetic import Synthetic

FIXED = Synthetic(Length("fixed", 10), Length("fixed", 5), system_prompt=True)
FOUR = Sessions(Length("fixed", 4), Think("fixed", 2.0))
MOONCAKE = """\
{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2]}
{"timestamp": 500, "input_length": 1500, "output_length": 6, "hash_ids": [1, 2, 3]}
{"timestamp": 500, "input_length": 600, "output_length": 7, "hash_ids": [1, 9]}
{"timestamp": 4000, "input_length": 100, "output_length": 8, "hash_ids": [2]}
"""


def measured(plan: Plan, cell: int = 0) -> list[PlannedRequest]:
    return [request for request in plan if request.cell == cell and request.phase == "measure"]


def traced(folder: Path, text: str = MOONCAKE) -> trace.Trace:
    path = folder / "trace.jsonl"
    path.write_text(text)
    return trace.read(path)


def test_requests_count_turns_and_loads_count_sessions() -> None:
    plan = make_plan(FIXED, [Load("concurrency", 2, unit="sessions")], requests=[10], sessions=FOUR)
    asked = measured(plan)
    assert [request.turn for request in asked] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    names = [request.session_id for request in asked]
    assert names[:4] == [asked[0].request_id] * 4
    assert len(set(names)) == 3
    assert [request.think_s for request in asked[:4]] == [0.0, 2.0, 2.0, 2.0]
    assert all(request.intended_s is None for request in asked)


def test_warm_up_sessions_are_out_of_step() -> None:
    plan = make_plan(FIXED, [Load("concurrency", 4, unit="sessions")], requests=[8], sessions=FOUR)
    turns = [request.turn for request in plan if request.phase == "warmup"]
    assert turns == [0, 0, 1, 0, 1, 2, 0, 1, 2, 3]


def test_sessions_of_an_open_loop_begin_at_their_times_and_go_on_after_their_answers() -> None:
    load = Load("rate", 4.0, "constant", unit="sessions")
    plan = make_plan(FIXED, [load], requests=[8], warmup=0, sessions=FOUR)
    assert [request.intended_s for request in measured(plan)] == [
        0.25,
        None,
        None,
        None,
        0.5,
        None,
        None,
        None,
    ]


def test_drawn_turns_are_the_same_in_every_cell() -> None:
    sessions = Sessions(Length("uniform", 3, low=1, high=5), Think("exponential", 1.0))
    loads = [Load("concurrency", n, unit="sessions") for n in (1, 8)]
    plan = make_plan(FIXED, loads, requests=[100, 100], sessions=sessions)
    first, second = ([(r.turn, r.think_s) for r in measured(plan, cell)] for cell in (0, 1))
    assert first == second
    assert len(first) == 100
    assert {turn for turn, _ in first} == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("seed", range(8))
def test_as_many_turns_as_were_asked_for_however_short_sessions_turn_out(seed: int) -> None:
    sessions = Sessions(Length("uniform", 3, low=1, high=5))
    plan = make_plan(
        FIXED, [Load("rate", 4.0, unit="sessions")], requests=[10], sessions=sessions, seed=seed
    )
    assert len(measured(plan)) == 10
    begun = [request.intended_s for request in plan if request.turn == 0]
    assert None not in begun
    assert begun == sorted(begun, key=float)  # type: ignore[arg-type]


def test_a_system_prompt_comes_on_top_and_once_in_a_session() -> None:
    workload = Synthetic(Length("fixed", 10), Length("fixed", 5), 50, 3, system_prompt=True)
    plan = make_plan(
        workload, [Load("concurrency", 1, unit="sessions")], requests=[40], warmup=0, sessions=FOUR
    )
    asked = measured(plan)
    assert [(r.input_tokens, r.prefix_tokens) for r in asked[:4]] == [
        (60, 50),
        (10, 0),
        (10, 0),
        (10, 0),
    ]
    groups = [
        {r.prefix_group for r in asked if r.session_id == name}
        for name in {r.session_id for r in asked}
    ]
    assert all(len(group) == 1 for group in groups)
    assert {next(iter(group)) for group in groups} == {0, 1, 2}
    assert promised_tokens(plan, 0)[:4].tolist() == [50, -1, -1, -1]


def test_the_next_turn_is_the_next_row_of_the_session() -> None:
    plan = make_plan(
        FIXED, [Load("concurrency", 1, unit="sessions")], requests=[6], warmup=0, sessions=FOUR
    )
    sessions = OpenSessions(plan, 0)
    seen = [0]
    for index in seen:
        assert sessions.sent(index, 0.0) == []
        seen += [following for _, following in sessions.ended(index, 1.0)]
        assert sessions.close(index) == (index == 3)
    assert seen == [0, 1, 2, 3]
    sessions.sent(4, 0.0)
    sessions.ended(4, 0.0)
    sessions.sent(5, 0.0)
    assert sessions.ended(5, 0.0) == []


def test_a_loop_by_time_goes_round_in_whole_sessions() -> None:
    load = Load("concurrency", 1, duration_s=1.0, unit="sessions")
    plan = make_plan(FIXED, [load], warmup=0, sessions=FOUR)
    count = len(plan.rows(0))
    assert count % 4 == 0
    sessions = OpenSessions(plan, 0)
    sessions.sent(count - 1, 0.0)
    assert sessions.ended(count - 1, 0.0) == []
    again = plan.request(0, count)
    assert (again.turn, again.session_id) == (0, f"0-{count}")


def test_conversations_of_a_dataset() -> None:
    a = [
        '[{"role":"system","content":"be"},{"role":"user","content":"a1"}]',
        '[{"role":"user","content":"a2"}]',
    ]
    b = ['[{"role":"user","content":"b1"}]']
    c = ['[{"role":"user","content":"c1"}]', '[{"role":"user","content":"c2"}]']
    turns = [[*a, '[{"role":"user","content":"a3"}]'], b, c]
    data = Dataset("sharegpt", ["[]"] * 3, [None] * 3, "00", 0, turns=turns)
    load = Load("concurrency", 1, unit="sessions")
    sessions = Sessions(Length("fixed", 2))
    plan = make_plan(
        data, [load], requests=[5], warmup=1, output=Length("fixed", 7), sessions=sessions
    )
    asked = measured(plan)
    texts = [request.prompt or "" for request in asked]
    by_session: dict[str | None, list[str]] = {}
    for request, text in zip(asked, texts, strict=True):
        by_session.setdefault(request.session_id, []).append(text)
    assert sorted(by_session.values()) == sorted([a, b, c])
    assert plan.chat
    assert {request.output_tokens for request in asked} == {7}
    with pytest.raises(InputError, match="--output"):
        make_plan(data, [load], sessions=sessions)


def test_a_trace_keeps_its_times_and_lengths(tmp_path: Path) -> None:
    plan = make_plan(traced(tmp_path), [Load("rate", 1.0, "trace", time_scale=0.1)], warmup=0)
    assert [r.intended_s for r in measured(plan)] == pytest.approx(
        [0.0, 0.05, 0.05, 0.4], abs=1e-12
    )
    assert [(r.input_tokens, r.output_tokens) for r in measured(plan)] == [
        (1000, 5),
        (1500, 6),
        (600, 7),
        (100, 8),
    ]
    assert [r.blocks for r in measured(plan)] == [(0, 1), (0, 1, 2), (0, 3), (1,)]
    assert plan.exact_output
    assert plan.workload["simultaneous"] == 1


def test_a_closed_loop_by_time_goes_round_a_trace(tmp_path: Path) -> None:
    plan = make_plan(traced(tmp_path), [Load("concurrency", 2, duration_s=60.0)], warmup=2)
    # The warm-up is as long as the first ones, its answers cut to a half and the whole.
    assert [(r.phase, r.input_tokens, r.output_tokens) for r in plan] == [
        ("warmup", 1000, 2), ("warmup", 1500, 6),
        ("measure", 1000, 5), ("measure", 1500, 6), ("measure", 600, 7), ("measure", 100, 8),
    ]  # fmt: skip
    assert plan.request(0, 6).input_tokens == 1000


def test_a_trace_s_warm_up_comes_before_it_and_shares_nothing(tmp_path: Path) -> None:
    plan = make_plan(traced(tmp_path), [Load("rate", 2.0, "trace")], warmup=2)
    warm = [request for request in plan if request.phase == "warmup"]
    assert [request.intended_s for request in warm] == [0.0, WARMUP_S / 2]
    assert [request.blocks for request in warm] == [(), ()]
    assert measured(plan)[0].intended_s == WARMUP_S


def test_a_trace_under_another_load_gives_its_lengths_in_order(tmp_path: Path) -> None:
    loads = [Load("concurrency", 2), Load("rate", 10.0)]
    with pytest.raises(InputError, match="10 req/s: 5 requests, and the trace has 4"):
        make_plan(traced(tmp_path), loads, requests=[3, 5], warmup=1)
    plan = make_plan(traced(tmp_path), loads, requests=[3, 4], warmup=1)
    assert [r.input_tokens for r in measured(plan)] == [1000, 1500, 600]
    assert [r.input_tokens for r in measured(plan, 1)] == [1000, 1500, 600, 100]
    assert all(r.intended_s is None for r in measured(plan))
    assert all(r.intended_s for r in measured(plan, 1))
    assert measured(plan, 1)[1].blocks == (0, 1, 2)


def test_what_a_trace_promises_is_what_came_before_in_its_cell(tmp_path: Path) -> None:
    load = Load("rate", 1.0, "trace")
    plan = make_plan(traced(tmp_path), [load, load], warmup=1)
    for cell in (0, 1):
        # Block 1 first in the last request: not at the start of any earlier one.
        assert promised_tokens(plan, cell).tolist() == [0, 0, 1024, 512, 0]


def test_a_plan_of_blocks_survives_its_file(tmp_path: Path) -> None:
    plan = make_plan(traced(tmp_path), [Load("rate", 1.0, "trace")], warmup=1)
    run_folder.write_plan(tmp_path / "plan.parquet", plan)
    again = run_folder.read_plan(tmp_path)
    assert again.plan_id == plan.plan_id
    assert list(again) == list(plan)
    other = traced(tmp_path, MOONCAKE.replace("[1, 9]", "[9, 1]"))
    assert make_plan(other, [Load("rate", 1.0, "trace")], warmup=1).plan_id != plan.plan_id


def test_a_plan_of_sessions_survives_its_file(tmp_path: Path) -> None:
    plan = make_plan(FIXED, [Load("concurrency", 2, unit="sessions")], requests=[10], sessions=FOUR)
    run_folder.write_plan(tmp_path / "plan.parquet", plan)
    again = run_folder.read_plan(tmp_path)
    assert again.plan_id == plan.plan_id
    assert list(again) == list(plan)


def test_a_ramp_s_arrivals_end_with_it() -> None:
    load = Load("rate", 15.0, "constant", profile=((10.0, 20.0, 2.0), (0.0, 0.0, 5.0)))
    plan = make_plan(FIXED, [load], warmup=2)
    times = np.array([request.intended_s for request in measured(plan)])
    assert len(times) == 30  # the last is due at the very end
    assert times.min() > WARMUP_S
    assert times.max() == pytest.approx(WARMUP_S + 2)
    with pytest.raises(InputError, match="--ramp: nothing would be sent"):
        make_plan(FIXED, [Load("rate", 0.1, "constant", profile=((0.1, 0.1, 2.0),))])
