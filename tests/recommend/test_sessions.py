"""Sessions planned for: closed forms and simulations of cases whose answer is known by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadstone.catalogue import parse_deployment, parse_worker
from loadstone.core.errors import InputError
from loadstone.predict.scheduler import policy_of
from loadstone.predict.simulator.client import whole_prompts
from loadstone.predict.simulator.fleet import fleet_of
from loadstone.predict.simulator.latencies import task_times
from loadstone.predict.steady_state import SteadyState
from loadstone.recommend.demand.effort import FULL, Effort
from loadstone.recommend.demand.options import RecommendOptions
from loadstone.recommend.demand.sessions import run_steady
from loadstone.recommend.demand.traffic import traffic_of
from loadstone.recommend.recommend import recommend
from loadstone.recommend.tell.document import Recommendation
from loadstone.recommend.tell.text import render
from loadstone.workload.option_fields import options_of

ASKED = {
    "model": "llama-3.1-8b", "slo": "ttft_p90<3s,task_p90<600s", "gpus": "h100", "gpus_max": 32, "engine": "vllm",
    "price": "h100=2", "weights_dtype": "bf16", "kv_dtype": "bf16", "tp": (1,), "concurrency": 30, "plans": 1,
    "argument": ["max_num_seqs=64", "max_num_batched_tokens=8192"],
}  # fmt: skip
LEVEL = SteadyState(
    decoding=1, users=1, rate_per_s=1, tpot_s=0.01, base_s=0.5, busy=0.0, queue_s=0.0
)


def options(**changed: Any) -> RecommendOptions:
    return options_of(ASKED | changed, RecommendOptions)


def plans(**changed: Any) -> Recommendation:
    few = Effort(stages=1, cheapest=1, of_groups=1, draws=64, sessions=8, calls=8)
    return recommend(options(**changed), few)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def long_sessions(path: Path, pause_s: float = 20.0, growth: int = 5_120, calls: int = 16) -> Path:
    """Twelve sessions that share nothing, each with so many tokens more from call to call."""
    blocks = growth // 512
    return write(path, [
        {
            "session_id": f"s{each}", "id": f"{each}-{call}", "after": [f"{each}-{call - 1}"] if call else [],
            "delay_s": pause_s, "input_tokens": growth * (call + 1), "output_tokens": 64, "block_tokens": 512,
            "hash_ids": [each * 1000 + block for block in range(blocks * (call + 1))],
        }
        for each in range(12)
        for call in range(calls)
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("turns", "load"), [(1, {"rate": 9.0}), (4, {"rate": 2.0}), (1, {}), (4, {})]
)
def test_so_many_calls_are_measured_that_a_tail_can_be_seen(
    turns: int, load: dict[str, float]
) -> None:
    given = {"turns": str(turns), "input": "800", "output": "100", "concurrency": None} | load
    traffic = traffic_of(options(**given if load else given | {"concurrency": 20}))
    assert traffic.sessions is not None
    plan = traffic.sessions.draw(traffic.demand, LEVEL, FULL, is_open=traffic.is_open)
    assert (plan.phase == 1).sum() >= 780


def test_a_session_takes_as_long_as_its_longest_line(tmp_path: Path) -> None:
    """Two sub-agents beside one another, then a call that joins them: three calls in line, of
    four."""
    call = {
        "session_id": "a",
        "input_tokens": 100,
        "output_tokens": 11,
        "hash_ids": [1],
        "block_tokens": 128,
    }
    rows = [
        {**call, "id": "root", "after": []},
        {**call, "id": "left", "after": ["root"], "delay_s": 1.0},
        {**call, "id": "right", "after": ["root"], "delay_s": 1.0},
        {**call, "id": "join", "after": ["left", "right"], "delay_s": 2.0},
    ]
    traffic = traffic_of(options(agents=str(write(tmp_path / "a.jsonl", rows))))
    assert traffic.sessions is not None
    assert traffic.calls == 4
    assert traffic.sessions.lines[0].tolist() == [3, 33, 3.0]
    assert traffic.sessions.tasks_s(LEVEL)[0] == pytest.approx(3 * (0.5 + 10 * 0.01) + 3.0)
    assert traffic.latency_s(LEVEL, "task", 0.9) == pytest.approx(4.8)
    # A session alive 4.8 s asks for its four calls in that time.
    assert traffic.load_at(LEVEL) == pytest.approx(4.8 / 4)


@pytest.mark.parametrize("load", [{"concurrency": 5}, {"concurrency": None, "rate": 0.5}])
def test_sessions_are_drawn_whole(load: dict[str, Any]) -> None:
    traffic = traffic_of(options(input="512", output="32", turns="3", think_time="2s", **load))
    assert traffic.sessions is not None
    # Prompts of 512, then all before with 32 of an answer and 512 more; all but the last 512 are
    # there already.
    assert traffic.lengths[:3] == pytest.approx((512 + 544, 32, (544 + 1088) / 3), rel=1e-3)
    plan = traffic.sessions.draw(
        5 if traffic.demand == 5 else 0.5, LEVEL, FULL, is_open=traffic.is_open
    )
    measured = plan.turn[plan.phase == 1]
    if not traffic.is_open:  # the last in their slots keep the load up, and tell nothing
        measured = measured[: np.flatnonzero(measured == 0)[-5]]
    assert len(measured) % 3 == 0
    assert measured.tolist() == [0, 1, 2] * (len(measured) // 3)
    run = run_steady(plan, fleet_of(parse_deployment("llama-3.1-8b@1xh100")))
    spans, busy = task_times(run)
    assert len(spans) == len(measured) // 3
    assert np.all(spans - busy == pytest.approx(4.0, abs=0.1))  # two pauses


def test_a_gpu_carries_the_sessions_that_its_cache_keeps_and_host_memory_carries_more(
    tmp_path: Path,
) -> None:
    """First tokens in time need what was computed before: contexts of 5k to 80k tokens, in a cache
    of some 400k."""
    file = long_sessions(tmp_path / "long.jsonl")
    found = plans(agents=str(file))
    policy = policy_of(parse_worker(found.plans[0].deployment))
    traffic = traffic_of(options(agents=str(file)))
    warm = policy.kv_tokens / (traffic.input_tokens + traffic.output_tokens)
    host = found.host_memory
    assert host is not None
    assert host.why == ""
    assert host.assumed
    assert 0.6 * warm < host.sessions_per_gpu[0] < 1.5 * warm
    assert host.pays
    assert host.sessions_per_gpu[1] > 1.2 * host.sessions_per_gpu[0]
    assert host.cached_share[1] > host.cached_share[0] + 0.1
    assert host.gpus[1] < host.gpus[0]
    assert host.usd_per_month == [gpus * 2 * 730 for gpus in host.gpus]
    first = found.plans[0]
    assert first.sessions_per_gpu is not None
    assert first.sessions_per_gpu >= 30 / first.gpus
    assert first.task_s is not None
    assert first.task_s.p50 > 15 * 20
    shown = "\n".join(str(each) for each in render(found))
    assert "at 30 sessions alive (16 calls of" in shown
    assert (
        "Host memory (kv_host=128gb, assumed) pays on plan 1: without and with it a GPU carries"
        in shown
    )
    assert (
        found.measure_next is None or f"--agents {file} --concurrency" in found.measure_next.command
    )


def test_host_memory_does_not_pay_where_all_fits_and_is_weighed_where_it_is_given() -> None:
    asked = {"input": "1024", "output": "64", "turns": "3", "think_time": "2s", "concurrency": 100}
    asked |= {"slo": "ttft_p90<2s,task_p90<600s"}
    found = plans(**asked, argument=[*ASKED["argument"], "kv_host=256gb"])
    host = found.host_memory
    assert host is not None
    assert (host.kv_host, host.assumed, host.pays) == ("256gb", False, False)
    assert host.gpus[0] == host.gpus[1]
    assert host.cached_share[0] == pytest.approx(host.cached_share[1], abs=0.05)
    assert "kv_host=256gb" in found.plans[0].deployment


def test_sessions_that_begin_at_a_rate() -> None:
    asked = {"input": "1024", "output": "64", "turns": "3", "think_time": "2s", "concurrency": None}
    found = plans(**asked, rate=4, argument=ASKED["argument"])
    first = found.plans[0]
    assert first.sessions_per_gpu is not None
    assert first.task_s is not None
    # By Little's law: so many begin a second that a GPU carries, and each takes so long.
    carried = 4 * (1 + first.headroom) * first.task_s.p50 / first.gpus
    assert first.sessions_per_gpu == pytest.approx(carried, rel=0.1)
    assert first.capacity_per_s == pytest.approx(3 * 4 * (1 + first.headroom), rel=1e-3)
    assert found.traffic.unit == "sessions/s"


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"input": "512"}, "--slo task: is the time of a session; give --agents FILE or --turns"),
        ({"turns": "3", "concurrency": None, "rate": 2, "burstiness": 0.5}, "of no sessions"),
        (
            {"turns": "3", "slo": "task<5s"},
            "is on a percentile of sessions; write e.g. task_p90<120s",
        ),
        ({"think_time": "2s", "slo": "ttft_p90<1s"}, "it goes with --turns"),
        ({"turns": "3", "think_time": "2s", "slo": "task_p90<3s"}, "misses task_p90: "),
        ({"turns": "3", "trace": "t.csv", "concurrency": None}, "give one"),
        ({"turns": "3", "pools": True}, "--pools: sessions are planned without pools"),
        (
            {"turns": "200", "input": "1000"},
            "is beyond the model's context of 131,072; ask for less",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused_in_a_line(changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError) as refused:
        plans(**changed)
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)


def test_sessions_end_where_the_model_s_context_does(tmp_path: Path) -> None:
    file = long_sessions(tmp_path / "long.jsonl", growth=20_480, calls=8)
    traffic = traffic_of(options(agents=str(file)), max_tokens=131_072)
    assert traffic.calls == 6
    assert traffic.plan.workload["overflowed"] == {"sessions": 12, "calls": 24}
    assert whole_prompts(traffic.plan, 0).max() == 6 * 20_480
