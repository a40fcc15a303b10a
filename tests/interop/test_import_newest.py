"""What the newest releases of other clients write, in the numbers of real runs against the timing
server."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from loadstone.core import run_folder
from loadstone.interop.read import Imported, import_files
from loadstone.interop.write import export_run
from test_import import document, kinds, run, save
from test_import_fuzz import AIPERF, AIPERF_ROW, GUIDELLM, INFERENCE_PERF


def rows(found: Imported) -> list[dict[str, Any]]:
    return [
        row
        for folder in found.runs
        for batch in run_folder.read_records(folder)
        for row in batch.to_pylist()
    ]


# 0.33.0 --request-rate 20 --max-concurrency 3 --save-detailed: three of 40 requests
VLLM_OPEN: dict[str, Any] = {
    "date": "20261123-023609", "backend": "openai", "model_id": "timing", "num_prompts": 3, "request_rate": 20.0,
    "burstiness": 1.0, "max_concurrency": 3, "duration": 0.6, "completed": 3, "failed": 0, "total_input_tokens": 384,
    "total_output_tokens": 6, "request_throughput": 5.0, "output_throughput": 10.0, "total_token_throughput": 650.0,
    "input_lens": [128] * 3, "output_lens": [2] * 3, "ttfts": [0.07, 0.07, 0.07], "itls": [[0.24], [0.24], [0.24]],
    "latencies": [0.31, 0.31, 0.31], "start_times": [2847.74, 2847.80, 2848.06],
    "queue_times": [0.0002, 0.0003, 0.21], "errors": ["", "", ""],
    "mean_ttft_ms": 70.0, "median_ttft_ms": 70.0, "std_ttft_ms": 0.0, "p99_ttft_ms": 70.0,
}  # fmt: skip


def test_vllms_requests_count_from_when_they_were_due(tmp_path: Path) -> None:
    found = run(tmp_path, save(tmp_path, "a.json", VLLM_OPEN))
    waited = [row["sent_s"] - row["intended_s"] for row in rows(found)]
    assert waited == pytest.approx([0.0002, 0.0003, 0.21])
    metrics = document(found)["cells"][0]["metrics"]
    assert metrics["e2e_intended_s"]["max"] == pytest.approx(0.52)

    line = json.loads(export_run(found.runs[0], "vllm"))
    assert line["queue_times"] == pytest.approx([0.0002, 0.0003, 0.21])


def test_vllms_closed_loops_have_no_due_times(tmp_path: Path) -> None:
    found = run(tmp_path, save(tmp_path, "a.json", VLLM_OPEN | {"request_rate": "inf"}))
    assert {row["intended_s"] for row in rows(found)} == {None}
    assert "queue_times" not in json.loads(export_run(found.runs[0], "vllm"))


@pytest.mark.parametrize(
    ("waits", "told"), [([0.0, 0.5, 1.0], True), ([0.0002, 0.0003, 0.001], False)]
)
def test_waits_that_vllms_sums_leave_out_are_told(
    tmp_path: Path, waits: list[float], told: bool
) -> None:
    """A default run has neither requests nor sums of the waits, and all of the waits."""
    lists = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors")
    sums = {name: value for name, value in VLLM_OPEN.items() if name not in lists} | {
        "queue_times": waits
    }
    found = run(tmp_path, save(tmp_path, "a.json", sums))
    assert ("waits_left_out" in kinds(found)) == told
    assert document(found)["cells"][0]["metrics"]["ttft_s"]["mean"] == pytest.approx(0.07)
    closed = run(tmp_path, save(tmp_path, "b.json", sums | {"request_rate": "inf"}))
    assert "waits_left_out" not in kinds(closed)


def test_of_vllms_tracebacks_the_error_is_kept(tmp_path: Path) -> None:
    end = "aiohttp.client_exceptions.ClientPayloadError: Response payload is not completed"
    traced = (
        f'Traceback (most recent call last):\n  File "a.py", line 1, in b\n    await c\n{end}\n'
    )
    failed = VLLM_OPEN | {"errors": ["", "", traced], "completed": 2, "failed": 1}
    assert [row["error"] for row in rows(run(tmp_path, save(tmp_path, "a.json", failed)))] == [
        None,
        None,
        end,
    ]


def test_closed_loops_of_inference_perf(tmp_path: Path) -> None:
    """0.7.0 writes 40 requests at 4 places as `requested_rate` 40 beside `concurrency` 4."""
    summary = {
        "count": 40,
        "send_duration": 2.946,
        "requested_rate": 40.0,
        "achieved_rate": 13.58,
        "concurrency": 4,
    }
    stage = INFERENCE_PERF | {"load_summary": summary}
    (cell,) = document(run(tmp_path, save(tmp_path, "stage_1_lifecycle_metrics.json", stage)))[
        "cells"
    ]
    assert (cell["load"]["kind"], cell["load"]["value"]) == ("concurrency", 4.0)


# --- GuideLLM -------------------------------------------------------------------------------------


def guidellm(spans: list[tuple[float, float]], **change: Any) -> dict[str, Any]:
    """A report of requests from and to these times, in seconds from 0.8 s after its start."""
    made = copy.deepcopy(GUIDELLM)
    (benchmark,) = made["benchmarks"]
    (done,) = benchmark["requests"]["successful"]
    at = [
        {"request_start_time": 1.7e9 + begin, "request_end_time": 1.7e9 + end}
        for begin, end in spans
    ]
    benchmark["requests"]["successful"] = [done | times for times in at]
    benchmark["metrics"]["request_totals"] |= {"successful": len(spans), "total": len(spans)}
    made["benchmarks"] = [benchmark | change]
    return made


def test_what_guidellm_does_not_measure_is_warm_up(tmp_path: Path) -> None:
    """With warmup=0.2,cooldown=0.1 its sums are of the requests that touch the window, and its file
    has all."""
    spans = [
        (-0.791, -0.475),
        (-0.463, -0.148),
        (-0.1, 0.2),
        (1.0, 1.3),
        (2.763, 3.078),
        (2.81, 3.1),
    ]
    made = guidellm(
        spans, duration=2.8, warmup_duration=0.791, cooldown_duration=0.409,
        scheduler_metrics={"measure_start_time": 1.7e9, "measure_end_time": 1.7e9 + 2.8},
    )  # fmt: skip
    metrics = made["benchmarks"][0]["metrics"]
    metrics["request_totals"] |= {"successful": 3, "total": 3}
    metrics["requests_per_second"] = {"successful": {"mean": 0.9}}
    found = run(tmp_path, save(tmp_path, "a.json", made))
    assert [row["phase"] for row in rows(found)] == ["warmup"] * 3 + ["measure"] * 3
    assert document(found)["cells"][0]["requests"]["ok"] == 3
    assert not {"concurrency_inconsistent", "throughput_inconsistent", "requests_missing"} & set(
        kinds(found)
    )
    stated = run_folder.read_info(found.runs[0]).settings.imported.cells[0]["stated"]
    assert (stated["totals"]["requests_per_s"], stated["duration_s"]) == (0.9, None)


@pytest.mark.parametrize(("every_s", "told"), [(0.05, False), (0.003, True)])
def test_a_rate_that_was_not_sent_is_told(tmp_path: Path, every_s: float, told: bool) -> None:
    """GuideLLM 0.8.1 may send a Poisson process of 20/s all at once: 40 requests in 0.12 s, due
    before its start."""
    made = guidellm([(every_s * n, every_s * n + 0.3) for n in range(40)])
    made["benchmarks"][0]["config"] = {"strategy": {"type_": "poisson", "rate": 20.0}}
    assert ("rate_differs" in kinds(run(tmp_path, save(tmp_path, "a.json", made)))) == told


def test_the_model_of_guidellm_before_0_7(tmp_path: Path) -> None:
    """Its arguments name the backend; what is told of it is beside."""
    made = guidellm([(0.0, 1.0)])
    del made["config"]
    made["args"] = {
        "backend": "openai_http",
        "backend_kwargs": {"target": "http://x:8", "model": "timing"},
    }
    target = run_folder.read_info(run(tmp_path, save(tmp_path, "a.json", made)).runs[0]).target
    assert target is not None
    assert (target.model, target.url) == ("timing", "http://x:8")


def test_a_report_in_two_formats_is_one_run(tmp_path: Path) -> None:
    made = guidellm([(0.0, 1.0)])
    made["benchmarks"][0]["config"] |= {"id_": "265cdaac-f835-46f4-bbff-821e60396ec6"}
    (tmp_path / "in").mkdir()
    for name in ("result.json", "r.yaml"):  # JSON is YAML; its own begins with a key
        (tmp_path / "in" / name).write_text(
            ("---\n" if name == "r.yaml" else "") + json.dumps(made)
        )
    found = import_files([tmp_path / "in"], tmp_path / "runs")
    assert (len(found.runs), "copies" in kinds(found)) == (1, True)
    assert len(run(tmp_path, tmp_path / "in" / "r.yaml").runs) == 1


# --- AIPerf ---------------------------------------------------------------------------------------


def aiperf_row(**metadata: Any) -> dict[str, Any]:
    return AIPERF_ROW | {"metadata": AIPERF_ROW["metadata"] | metadata}


@pytest.mark.parametrize(("begin_ms", "sent_s"), [(167.9, 0.0157), (2.7, 0.0027)])
def test_cancelled_requests_of_aiperf_begin_when_they_were_sent(
    tmp_path: Path, begin_ms: float, sent_s: float
) -> None:
    """0.13.0 --request-cancellation-delay 0.15: handed out at 0.2 ms, "begun" at 167.9, "ended" at
    320.1."""
    issued = 10**18
    times = {
        "request_start_ns": issued + int(begin_ms * 1e6),
        "request_end_ns": issued + int((begin_ms + 152.2) * 1e6),
    }
    gone = aiperf_row(was_cancelled=True, **times) | {
        "metrics": {},
        "error": {"code": 499, "message": "cancelled"},
    }
    path = save(tmp_path, "profile_export.jsonl", AIPERF_ROW, gone)
    found = run(tmp_path, path, given=["concurrency=4"])
    cancelled = [row for row in rows(found) if row["status"] == "cancelled"]
    assert [row["sent_s"] for row in cancelled] == pytest.approx([sent_s])


def test_conversations_of_aiperf_are_sessions(tmp_path: Path) -> None:
    prompts = {"isl": {"mean": 128.0}, "osl": {"mean": 32.0}}
    chats = {
        "prompts": prompts,
        "turns": {"mean": 3.0, "stddev": 0.0},
        "turn_delay": {"mean": 100.0},
    }
    config = AIPERF["input_config"] | {"datasets": [chats]}
    save(tmp_path, "profile_export_aiperf.json", AIPERF | {"input_config": config})
    turns = [
        aiperf_row(x_correlation_id=name, turn_index=turn, request_start_ns=10**18 + turn * 10**9)
        for turn in range(3)
        for name in "ab"
    ]
    found = run(tmp_path, save(tmp_path, "profile_export.jsonl", *turns))
    (cell,) = document(found)["cells"]
    assert cell["load"]["unit"] == "sessions"
    assert [part["turn"] for part in cell["by_turn"]] == [0, 1, 2]
    made = rows(found)
    firsts = {row["request_id"] for row in made if row["turn"] == 0}
    assert {row["session_id"] for row in made} == firsts
    workload = run_folder.read_info(found.runs[0]).settings.workload
    assert workload["sessions"] == {
        "turns": {"kind": "fixed", "mean": 3.0},
        "think": {"mean_s": 0.1},
    }


def test_aiperfs_requests_are_read_beside_broken_sums(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    broken = tmp_path / "in" / "profile_export_aiperf.json"
    broken.write_text(json.dumps(AIPERF)[:100])
    requests = save(tmp_path / "in", "profile_export.jsonl", AIPERF_ROW)
    for path in (broken, requests, tmp_path / "in"):
        found = run(tmp_path, path, given=["concurrency=4"])
        assert len(rows(found)) == 1
        assert "broken" in kinds(found)


def test_a_run_of_aiperf_that_was_stopped_says_so(tmp_path: Path) -> None:
    assert "interrupted" in kinds(
        run(tmp_path, save(tmp_path, "a.json", AIPERF | {"was_cancelled": True}))
    )
    assert "interrupted" not in kinds(
        run(tmp_path, save(tmp_path, "b.json", AIPERF | {"was_cancelled": False}))
    )
