"""planning.py: what a user asks, to the plan; by hand-sized files."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.plan import Load, Plan
from loadstone.workload.draw import Beyond
from loadstone.workload.lengths import Length
from loadstone.workload.option_fields import change
from loadstone.workload.options import Options
from loadstone.workload.planning import Planner
from loadstone.workload.schedule import make_plan
from loadstone.workload.synthetic import Synthetic


def plan_of(options: Options, *limits: int, **server: Any) -> Plan:
    return Planner(options).plan(*limits, **server)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Ten requests: five within a second, five more at 10, 20, … 50 s."""
    times = [0.0, 0.2, 0.4, 0.6, 1.0, 10, 20, 30, 40, 50]
    path = tmp_path / "trace.csv"
    rows = "".join(f"{time},{100 + i},{10 + i}\n" for i, time in enumerate(times))
    path.write_text("timestamp_s,input_tokens,output_tokens\n" + rows)
    return path


def test_the_mean_rate_of_a_trace_is_that_of_the_requests_sent(trace: Path) -> None:
    whole = plan_of(Options.read(trace=trace, warmup=0))
    assert whole.cells[0].value == pytest.approx(9 / 50)
    first = plan_of(Options.read(trace=trace, warmup=0, requests=[5], time_scale=[1.0, 0.5]))
    assert [load.value for load in first.cells] == pytest.approx([4.0, 8.0])
    assert [len(first.rows(cell)) for cell in (0, 1)] == [5, 5]
    assert first.workload["requests"] == 5
    # A wait before the first request of a window is kept, and is no part of the rate.
    late = plan_of(Options.read(trace=trace, warmup=0, trace_window_s=(5.0, 25.0)))
    assert late.intended_s.tolist() == [5.0, 15.0]
    assert late.cells[0].value == pytest.approx(1 / 10)
    alone = plan_of(Options.read(trace=trace, warmup=0, trace_window_s=(15.0, 25.0)))
    assert (alone.intended_s.tolist(), alone.cells[0].value) == ([5.0], 1.0)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"requests": [11]}, r"--requests 11: the trace has 10; ask for no more"),
        ({"rate": [4.0], "requests": [11]}, "4 req/s: 11 requests, and the trace has 10"),
        (
            {"rate": [1.0, 4.0], "requests_per_rate": 5.0},
            "4 req/s: 20 requests, and the trace has 10",
        ),
        (
            {"concurrency": [4], "requests": [11]},
            "concurrency 4: 11 requests, and the trace has 10",
        ),
        ({"rate": [4.0], "duration_s": 60.0}, "4 req/s: .* requests, and the trace has 10"),
        ({"ramp": "5:40:10s"}, "5–40 req/s in 10 s: .* requests, and the trace has 10"),
        (
            {"rate": [math.inf], "requests": [4, 11]},
            "burst of 11: 11 requests, and the trace has 10",
        ),
    ],
)
def test_more_than_a_trace_has_is_refused(trace: Path, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan_of(Options.read(trace=trace, **asked))


@pytest.mark.parametrize(
    ("asked", "counts"),
    [
        ({"rate": [4.0]}, [10]),
        ({"rate": [4.0], "requests": [10]}, [10]),
        ({"concurrency": [1, 2]}, [10, 10]),
        ({"rate": [math.inf], "requests": [4, 10]}, [4, 10]),
        ({"rate": [2.0, math.inf, 4.0], "requests": [5]}, [5, 5, 5]),
        ({"concurrency": [2], "duration_s": 60.0}, [10]),  # goes round
    ],
)
def test_what_a_trace_has_is_sent(trace: Path, asked: dict[str, Any], counts: list[int]) -> None:
    plan = plan_of(Options.read(trace=trace, warmup=0, **asked))
    assert [len(plan.rows(cell)) for cell in range(len(plan.cells))] == counts
    assert plan.input_tokens[:4].tolist() == [100, 101, 102, 103]


def test_the_warm_up_of_a_trace_is_a_tenth_of_it_at_most(trace: Path) -> None:
    plan = plan_of(Options.read(trace=trace, time_scale=[0.0001]))  # ten requests in 5 ms
    assert (plan.warmup_count(0), len(plan)) == (1, 11)


def test_of_a_trace_what_is_sent_must_fit_the_model_in_its_own_lengths(trace: Path) -> None:
    # Lengths are 110 to 128 in all; scaled by 0.1 they are 11 to 13.
    assert len(plan_of(Options.read(trace=trace, warmup=0, length_scale=0.1), 13)) == 10
    with pytest.raises(
        InputError, match=r"line 7: 10 tokens in and 2 out, and the model takes 11 in all"
    ):
        plan_of(Options.read(trace=trace, warmup=0, length_scale=0.1), 11)
    first: list[dict[str, Any]] = [
        {"requests": [3]}, {"rate": [4.0], "requests": [3]}, {"concurrency": [2], "requests": [3]},
        {"trace_window_s": (0.0, 0.5)},
    ]  # fmt: skip
    for asked in first:  # lines 2 to 4
        assert len(plan_of(Options.read(trace=trace, warmup=0, **asked), 114)) == 3
        with pytest.raises(
            InputError, match="line 4: 102 tokens in and 12 out, and the model takes 113 in all"
        ):
            plan_of(Options.read(trace=trace, warmup=0, **asked), 113)
    with pytest.raises(
        InputError, match="line 5: "
    ):  # a warm-up has the lengths of the first lines
        plan_of(Options.read(trace=trace, concurrency=[4], requests=[3]), 114)
    kept = plan_of(Options.read(trace=trace, warmup=0, skip_bad=True), 114)
    assert (len(kept), kept.workload["skipped"]) == (3, {"too long for the model": 7})


def test_prompts_of_a_file_that_the_server_does_not_take(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("".join(f"{'a ' * n}\n" for n in range(1, 11)))
    asked = Options.read(dataset=file, output="4", concurrency=[1], requests=[10], warmup=0)

    def beyond(prompt: str, chat: bool, output_tokens: int) -> int | None:
        tokens = len(prompt.split())
        return tokens if not chat and tokens + output_tokens > 12 else None

    with pytest.raises(
        InputError, match=r"prompts.txt: a prompt of (9|10) tokens \(a a.*\) and an answer of 4: "
    ):
        plan_of(asked, beyond=beyond)
    plan = plan_of(change(asked, skip_bad=True), beyond=beyond)
    assert sorted({len(text.split()) for text in plan.prompts}) == list(range(1, 9))
    assert (plan.workload["prompts"], plan.workload["too_long"]) == (8, 2)
    assert (
        "too_long" not in plan_of(asked, beyond=lambda prompt, chat, output_tokens: None).workload
    )
    with pytest.raises(InputError, match="every prompt is longer than the server's context"):
        plan_of(change(asked, skip_bad=True), beyond=lambda *_: 7)
    # Only what is sent is looked at.
    some = change(asked, requests=[1])
    assert any(isinstance(_tried(change(some, seed=seed), beyond), Plan) for seed in range(5))


def _tried(options: Options, beyond: Beyond) -> Plan | None:
    try:
        return plan_of(options, beyond=beyond)
    except InputError:
        return None


def test_what_was_cut_out_of_a_trace_is_in_the_papers(trace: Path) -> None:
    said = plan_of(
        Options.read(
            trace=trace, trace_window_s=(0.0, 35.0), trace_sample=0.9, length_scale=0.5, warmup=0
        )
    ).workload
    assert said["window_s"] == (0.0, 35.0)
    assert (said["sample"], said["length_scale"]) == (0.9, 0.5)
    assert {"window_s", "sample", "length_scale", "lengthened"}.isdisjoint(
        plan_of(Options.read(trace=trace)).workload
    )


@pytest.mark.parametrize(
    ("flag", "given"),
    [
        ("warmup", {"warmup": 0}),
        ("seed", {"seed": 3}),
        ("time-scale", {"time_scale": [0.5]}),
        ("trace-window", {"trace_window_s": (0.0, 1.0)}),
        ("range-ratio", {"range_ratio": 0.5}),
        ("burstiness", {"burstiness": 2.0}),
        ("think-time", {"think_time": "2s"}),
        ("duration", {"duration_s": 5.0}),
        ("skip-bad", {"skip_bad": True}),
    ],
)
def test_nothing_that_a_plan_answers_is_passed_over_in_silence(
    tmp_path: Path, flag: str, given: dict[str, Any]
) -> None:
    plan = plan_of(Options.read(input="8", output="8", concurrency=[1], requests=[2]))
    path = tmp_path / "plan.parquet"
    run_folder.write_plan(path, plan)
    # As the command line has it: lists for what may be several, none of them given.
    again = plan_of(Options.read(plan=path, rate=[], time_scale=[], concurrency=[], requests=[]))
    assert again.plan_id == plan.plan_id
    assert np.array_equal(again.input_tokens, plan.input_tokens)
    with pytest.raises(InputError, match=f"^--plan and --{flag}: the plan says"):
        plan_of(Options.read(plan=path, **given))


@pytest.mark.parametrize("value", [-3.0, 0.0])
def test_a_plan_that_nobody_can_send_is_refused(tmp_path: Path, value: float) -> None:
    path = tmp_path / "plan.parquet"
    plan = make_plan(
        Synthetic(Length("fixed", 4), Length("fixed", 2)), [Load("concurrency", 1)], requests=[3]
    )
    for odd in (
        replace(plan, cells=(Load("concurrency", value),)),
        replace(plan, **{name: getattr(plan, name)[:0] for name in Plan.COLUMNS}),
        replace(plan, cells=(), **{name: getattr(plan, name)[:0] for name in Plan.COLUMNS}),
    ):
        run_folder.write_plan(path, odd)
        with pytest.raises(InputError, match=r"--plan .*: a load without requests"):
            plan_of(Options.read(plan=path))


def test_a_burst_takes_its_place_among_rates() -> None:
    plan = plan_of(Options.read(rate=[1.0, math.inf, 4.0], requests=[6], burstiness=2.0))
    assert [(load.kind, load.value) for load in plan.cells] == [
        ("rate", 1.0),
        ("burst", 6.0),
        ("rate", 4.0),
    ]
    assert [
        int((plan.phase[rows.start : rows.stop] == 1).sum()) for rows in map(plan.rows, range(3))
    ] == [6, 6, 6]
    assert [load.value for load in plan_of(Options.read(rate=[40.0, math.inf])).cells] == [
        40.0,
        32.0,
    ]


@pytest.mark.parametrize(
    ("asked", "counts"),
    [
        ({}, [480, 120]),
        ({"burstiness": 0.5}, [480, 120]),
        ({"requests": [30]}, [30, 30]),
        ({"requests_per_rate": 10}, [20, 20]),
        ({"duration_s": 10.0}, [20, 20]),
    ],
)
def test_how_long_a_request_takes_decides_how_many_come_unless_that_is_said(
    asked: dict[str, Any], counts: list[int]
) -> None:
    plan = plan_of(Options.read(rate=[2.0, 2.0], **asked), e2e_s=[40.0, 1.0])
    assert [len(plan.rows(cell)) - plan.warmup_count(cell) for cell in (0, 1)] == counts


def test_what_else_is_sent_does_not_depend_on_how_long_a_request_takes() -> None:
    for asked in (
        {"concurrency": [4]},
        {"ramp": "1:2:20s"},
        {"rate": [2.0], "turns": "3"},
        {"rate": [math.inf]},
    ):
        options = Options.read(**asked)  # type: ignore[arg-type]
        assert plan_of(options, e2e_s=[40.0]).plan_id == plan_of(options).plan_id
