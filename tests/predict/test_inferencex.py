"""Rows of InferenceX's database as points: what is left out, and what the launch scripts add."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from loadstone.calibrate.cases import CaseTable, case_of, refresh
from loadstone.calibrate.points import read_points
from loadstone.predict.step_time.profile import profile_of

HERE = Path(__file__).resolve().parents[2]
POINTS = HERE / "benchmarks" / "inferencex_points.csv"
DUMP = HERE.parent / "shared" / "data" / "inferencex_2026-05.csv"

ROW = {
    "engine": "sglang", "engine_version": "v0.5.12-cu130", "gpu": "B200", "precision": "fp4", "tp": "8", "ep": "1",
    "input_len": "1024", "output_len": "1024", "concurrency": "16", "ttft_ms_median": "386.1088",
    "tpot_ms_median": "9.23372", "out_tok_s": "1615.856", "note": "InferenceX run 2026-05-20 https://x; image y",
}  # fmt: skip


@pytest.fixture(scope="module")
def converter() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "inferencex", HERE / "benchmarks" / "inferencex.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"engine": "atom"}, "no rules for atom"),
        ({"engine_version": ""}, "its image is not stored"),
        (
            {"note": "InferenceX run 2026-05-20 x; disaggregated multi-node: prefill"},
            "prefills and decodes apart",
        ),
        ({"note": "InferenceX run 2026-05-20 x; suspect: tok/s"}, "suspect"),
    ],
)
def test_what_is_left_out(converter: ModuleType, changes: dict[str, str], why: str) -> None:
    assert converter.why_not(ROW | changes) == why


@pytest.mark.parametrize(
    ("changes", "deployment"),
    [
        (
            {},
            "deepseek-r1:nvfp4@8xb200/tp8,engine=sglang,version=0.5.12,kv=fp8,chunked_prefill_size=16384,"
            "mem_fraction_static=0.85,max_running_requests=256,scheduler_recv_interval=30",
        ),
        (
            {"gpu": "MI355X", "concurrency": "64", "note": "InferenceX run 2026-05-20 https://x; speculative: mtp"},
            "deepseek-r1:mxfp4@8xmi355x/tp8,engine=sglang,version=0.5.12,kv=fp8,chunked_prefill_size=196608,"
            "mem_fraction_static=0.8,num_speculative_tokens=3",
        ),
        (
            {
                "engine": "trt", "engine_version": "1.3.0rc14", "ep": "8", "concurrency": "256", "precision": "fp8",
                "note": "InferenceX run 2026-05-18 https://x; speculative: mtp; dp attention",
            },
            "deepseek-r1:fp8@8xb200/tp1,dp8,ep8,attention-dp,engine=tensorrt-llm,version=1.3.0rc14,kv=fp8,"
            "max_num_tokens=1152,max_batch_size=32,free_gpu_memory_fraction=0.7,timeout_iters=60,"
            "num_speculative_tokens=1",
        ),
    ],
)  # fmt: skip
def test_launches(converter: ModuleType, changes: dict[str, str], deployment: str) -> None:
    assert converter.deployment_of(ROW | changes) == deployment


@pytest.mark.skipif(not DUMP.exists(), reason="the shared measurements are not beside the checkout")
def test_the_table_is_what_the_script_makes(converter: ModuleType) -> None:
    with DUMP.open(newline="", encoding="utf-8") as file:
        made = [
            converter.point_of(row) for row in csv.DictReader(file) if not converter.why_not(row)
        ]
    with POINTS.open(newline="", encoding="utf-8") as file:
        assert list(csv.DictReader(file)) == made


def test_rows_of_the_fit_are_met() -> None:
    """A sample, with the shipped coefficients: near in TPOT, on NVIDIA's GPUs and AMD's."""
    cases = [case_of(point) for point in read_points(POINTS)[::3]]
    cases = [case for case in cases if case.policy.speculative is None and case.users <= 64]
    table = CaseTable(cases)
    refresh(table, np.array([profile_of(case.worker).values() for case in cases]))
    off = np.array(
        [abs(table.tpot_s[at] / (case.point.tpot_s or np.nan) - 1) for at, case in enumerate(cases)]
    )
    amd = np.array([case.worker.gpu.vendor == "amd" for case in cases])
    assert amd.sum() > 8 < (~amd).sum()
    assert np.median(off[amd]) < 0.10
    assert np.median(off[~amd]) < 0.10
