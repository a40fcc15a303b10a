"""Classes without measurements: who is in one, how much wider intervals are, and who says so."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

import loadstone
from loadstone.calibrate.cases import case_of, slower_than_fewer
from loadstone.calibrate.points import Point
from loadstone.calibrate.validate import Scored, score
from loadstone.catalogue import parse_deployment, parse_worker
from loadstone.predict.scheduler import policy_of
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import fleet_of
from loadstone.predict.simulator.uncertainty import estimate_error
from loadstone.predict.sizing.memory import engine_limits, memory_of, no_room
from loadstone.predict.step_time.coverage import uncovered_load, widening
from loadstone.predict.step_time.profile import leave_out, profile_of, remaining, uncovered_classes
from loadstone.report.pages.validation import explain
from loadstone.workload.option_fields import options_of
from loadstone.workload.options import SimulateOptions
from loadstone.workload.planning import Planner

POINT = Point(
    row=1, deployment="llama-3.1-8b@1xh100/engine=vllm,version=0.15.1", input_tokens=1000, output_tokens=100,
    load="concurrency", load_value=4.0, requests=40, mode="serving", ttft_s=0.05, tpot_s=0.008,
    output_tokens_per_s=400.0,
)  # fmt: skip


def scored(**changes: object) -> Scored:
    (row,) = score([msgspec.structs.replace(POINT, **changes)])
    assert row.skipped_because is None
    return row


def margin(row: Scored, name: str) -> float:
    return float(np.log(row.high[name] / row.predicted[name]))  # type: ignore[index]


@pytest.mark.parametrize(
    ("deployment", "what", "times"),
    [
        (
            "deepseek-r1@8xh200/tp1,dp8,ep8,attention-dp,engine=sglang,moe_a2a_backend=deepep",
            "with DeepEP",
            2,
        ),
        ("deepseek-r1@8xb300/tp8,engine=sglang,version=0.5.10", "0.5.10 and 0.5.11 on B300", 2),
        ("qwen3-32b@1xmi300x/engine=vllm", "family on CDNA 3", 2),
        ("deepseek-r1:mxfp4@8xmi300x/tp8,engine=sglang", "FP4 weights on mi300x", 2),
        ("kimi-k2-instruct:int4@8xmi355x/tp8,engine=vllm", "INT4 experts on mi355x", 3),
        ("llama-3.1-8b@1xgb200/engine=vllm", "Grace", 2),
        ("deepseek-v3.2@8xh200/tp8,engine=tensorrt-llm", "sparse attention", 2),
    ],
)
def test_classes_without_measurements_have_wider_intervals(
    deployment: str, what: str, times: float
) -> None:
    deployed = parse_worker(deployment)
    found = uncovered_classes(deployed)
    assert any(what in each.what for each in found), found
    assert widening(found) == times == profile_of(deployed).wider


def test_what_is_covered_is_in_no_class() -> None:
    for text in (
        "llama-3.1-8b@1xh100/engine=vllm", "deepseek-r1@8xmi355x/tp8,engine=sglang",
        "deepseek-r1@8xb300/tp8,engine=sglang,version=0.5.12", "deepseek-r1:mxfp4@8xmi355x/tp8,engine=sglang",
        "deepseek-r1@8xh200/tp8,engine=tensorrt-llm", "deepseek-r1@4xgb200/tp4,engine=sglang",
    ):  # fmt: skip
        assert uncovered_classes(parse_worker(text)) == []


def test_twice_as_wide_is_so_in_ln() -> None:
    plain, bad = (
        scored(deployment=f"deepseek-r1@8xb300/tp8,engine=sglang,version={at}")
        for at in ("0.5.9", "0.5.10")
    )
    assert margin(bad, "tpot") > 1.4 * margin(plain, "tpot")
    profile = profile_of(parse_worker("llama-3.1-8b@1xh100/engine=vllm"))
    wider = msgspec.structs.replace(profile, wider=2.0)
    assert remaining(wider)["tpot"] == 2 * remaining(profile)["tpot"]


def test_large_bursts_and_batches_above_the_graphs_are_classes_of_loads() -> None:
    deployed = parse_worker("llama-3.1-8b@1xh100/engine=vllm")
    assert uncovered_load(deployed, 499, 64) == []
    assert [each.what for each in uncovered_load(deployed, 500, 64)] == [
        "bursts of 500 requests and more"
    ]
    assert "CUDA graph (512)" in uncovered_load(deployed, 0, 600)[0].what
    small, large = (scored(load="rate", load_value=np.inf, requests=count) for count in (100, 505))
    assert not small.uncovered
    assert large.uncovered == ("bursts of 500 requests and more",)
    text = explain([large])
    assert any("two points for `calibrate`" in line for line in text)


@pytest.mark.parametrize(
    ("few", "many"), [({"rate": ["inf"], "requests": [499]}, {"rate": ["inf"], "requests": [500]}),
                      ({"concurrency": [512], "requests": [600]}, {"concurrency": [513], "requests": [600]})]
)  # fmt: skip
def test_errors_of_loads_without_measurements_are_twice_as_wide(few, many) -> None:
    fleet = fleet_of(parse_deployment("llama-3.1-8b@1xh100/engine=vllm"))
    given = {"deployment": "", "input": "64", "output": "8", "warmup": 0}
    errors = []
    for load in (few, many):
        plan = Planner(options_of(given | load, SimulateOptions)).plan()
        errors.append(
            np.diag(estimate_error(run_cell(plan, 0, fleet, grace_s=math.inf), fleet).covariance)
        )
    assert errors[1] / errors[0] == pytest.approx(4.0, rel=0.05)


def test_a_family_held_out_leaves_its_fits_uncertainty_and_says_how_many_rows() -> None:
    """Of SGLang on CDNA 3 all measurements are of DeepSeek."""
    deployed = parse_worker("deepseek-r1@8xmi300x/tp8,engine=sglang,version=0.5.12")
    profile = profile_of(deployed)
    left = leave_out(profile, "deepseek-v3")
    assert left.provenance.rows == 0 < profile.provenance.rows
    assert left.wider == 2
    row = scored(deployment=deployed.name)
    assert (row.held_out, row.rows_left) == (True, 0)
    kept = score([msgspec.structs.replace(POINT, deployment=deployed.name)], hold_out=False)[0]
    assert margin(row, "tpot") > 1.8 * margin(kept, "tpot")
    assert any("leaves none of its measurements" in line for line in explain([row]))


def test_tokens_per_second_of_a_closed_loop_are_as_sure_as_e2e() -> None:
    """With answers of one step most of E2E is TTFT, and of long ones it is TPOT."""
    short, long = scored(output_tokens=2, input_tokens=8000), scored(output_tokens=4000)
    assert 1.2 * margin(short, "tpot") < margin(short, "throughput") < margin(short, "ttft")
    assert margin(long, "throughput") == pytest.approx(margin(long, "tpot"), rel=0.1)


def test_a_simulation_says_which_class_it_is_in(tmp_path: Path) -> None:
    done = loadstone.simulate(
        "qwen3-32b@1xmi300x",
        concurrency="2",
        input="64",
        output="8",
        requests=4,
        out=tmp_path,
        draws=0,
    ).document()
    found = {each["kind"]: each for each in done["cells"][0]["verdict"]["findings"]}
    assert "family on CDNA 3" in found["uncovered"]["evidence"]
    assert "two points" in found["uncovered"]["remedy"]
    assert "waves" not in found
    together = loadstone.simulate(
        "qwen3-32b@1xh100",
        concurrency="2",
        input="64",
        output="8",
        requests=4,
        warmup=0,
        out=tmp_path,
        draws=0,
    ).document()
    assert "waves" in [each["kind"] for each in together["cells"][0]["verdict"]["findings"]]


def test_tpot_that_rises_with_tp_is_the_hosts() -> None:
    deployed = "llama-3.1-8b@2xh100/tp2,engine=vllm,version=0.15.1"
    slow, fine = (
        case_of(msgspec.structs.replace(POINT, deployment=deployed, tpot_s=tpot_s))
        for tpot_s in (0.030, 0.004)
    )
    assert slower_than_fewer([fine]) is None
    said = slower_than_fewer([slow])
    assert said is not None
    assert said.startswith("TPOT rises with TP: 30 ms was measured at tp2")


def test_sglang_keeps_three_states_for_each_request_of_a_hybrid() -> None:
    text = "qwen3-next-80b-a3b@4xh100/tp4,engine=sglang"
    shared, alone = (memory_of(parse_worker(text + more)) for more in ("", ",prefix_caching=off"))
    assert shared.requests(1) == pytest.approx(alone.requests(1) / 3)


def test_deepseek_v4_runs_as_many_with_drafts() -> None:
    for drafts in ("", ",num_speculative_tokens=3"):
        policy = policy_of(parse_worker(f"deepseek-v4-pro@8xb200/tp8,engine=sglang{drafts}"))
        assert policy.max_seqs == 256


def test_a_fraction_that_would_fit_is_named() -> None:
    deployed = parse_worker("deepseek-r1@8xh200/tp8,engine=sglang,chunked_prefill_size=131072")
    assert "mem_fraction_static=0.8 would" in no_room(deployed, memory_of(deployed))
    given = parse_worker(deployed.name + ",mem_fraction_static=0.8")
    assert engine_limits(given).kv_tokens > 0
