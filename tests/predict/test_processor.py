"""Engines on a processor: `1xcpu`, llama.cpp's slots, and a calibration that begins far off."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from loadstone import catalogue
from loadstone.calibrate.cases import Case, run
from loadstone.calibrate.points import Point
from loadstone.calibrate.update import update
from loadstone.catalogue import Deployment, Worker, parse_worker
from loadstone.core.errors import InputError
from loadstone.predict.scheduler import policy_of
from loadstone.predict.simulator.fleet import Fleet
from loadstone.predict.sizing.memory import engine_limits, memory_of
from loadstone.predict.sizing.size import size
from loadstone.predict.step_time import StepModel, profile_of
from loadstone.predict.step_time.coefficients import INDEX
from loadstone.predict.step_time.work import work_of

SLOTS = "llama-3.1-8b:fp16@1xcpu/engine=llama.cpp,parallel=8,ctx_size=4096"


@pytest.fixture
def small(tmp_path: Path) -> str:
    """A model of 4 layers, as a path."""
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 4096, "hidden_size": 256,
                "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
                "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 4096, "torch_dtype": "float32",
            }
        )
    )  # fmt: skip
    return str(path)


def test_a_processor_is_named_like_a_gpu_and_is_none() -> None:
    deployment = parse_worker("llama-3.1-8b@1xcpu/engine=llama.cpp")
    assert deployment.gpu.name == "cpu"
    assert parse_worker(deployment.name) == deployment
    assert "cpu" not in {gpu.name for gpu in catalogue.gpus()}
    with pytest.raises(InputError, match=r"nearest: .*cpu"):
        parse_worker("llama-3.1-8b@1xcpus")


def test_slots_share_the_cache_that_was_asked_for(small: str) -> None:
    limits = engine_limits(
        parse_worker(f"{small}@1xcpu/engine=llama.cpp,kv=fp16,parallel=8,ctx_size=4096")
    )
    assert (limits.kv_tokens, limits.kv_blocks, limits.block_tokens) == (4096, 4096, 1)
    assert (limits.max_seqs, limits.max_batched_tokens) == (8, 2048)
    longer = engine_limits(
        parse_worker(f"{small}@1xcpu/engine=llama.cpp,parallel=2,max_model_len=1000")
    )
    assert longer.kv_tokens == 2000
    usual = engine_limits(parse_worker(f"{small}@1xcpu/engine=llama.cpp,batch_size=512"))
    assert (usual.kv_tokens, usual.max_seqs, usual.max_batched_tokens) == (4096, 4, 512)


def test_a_cache_that_was_not_asked_for_is_outside() -> None:
    memory = memory_of(parse_worker(SLOTS.replace("1xcpu", "1xh100")))
    per_token = 2 * 32 * 8 * 128 * 2  # bytes: keys and values, layers, heads, their width, fp16
    assert memory.budget.kv_bytes == pytest.approx(4096 * per_token)
    assert memory.budget.outside_bytes > 50e9


def test_more_than_there_is_room_for_is_cut() -> None:
    """15.5 GiB: 140 GB of weights leave nothing, 16 GB some thousands of the 131,072 tokens of a
    context."""
    with pytest.raises(InputError, match="do not fit"):
        engine_limits(parse_worker("llama-3.1-70b@1xcpu/engine=llama.cpp"))
    limits = engine_limits(parse_worker("llama-3.1-8b@1xcpu/engine=llama.cpp"))
    assert 1000 < limits.kv_tokens < 8192


def test_a_request_is_at_most_a_slot_long() -> None:
    row = size(parse_worker(SLOTS.replace("1xcpu", "1xh100")), 600)
    assert not row.fits
    assert "at most 512" in row.why
    assert size(parse_worker(SLOTS.replace("1xcpu", "1xh100")), 512, 8).fits


def test_steps_are_mixed() -> None:
    policy = policy_of(parse_worker(SLOTS.replace("1xcpu", "1xh100")))
    assert (policy.order, policy.chunked, policy.max_seqs) == ("mixed", True, 8)


def test_no_gpus_measurements_are_taken_for_a_processors(small: str) -> None:
    for engine in ("vllm", "sglang", "llama.cpp"):
        profile = profile_of(parse_worker(f"{small}@1xcpu/engine={engine}"))
        assert profile.name == "cpu"
        assert np.sqrt(np.diag(np.array(profile.covariance))).min() >= 1.0


# --- calibration from far off ---------------------------------------------------------------------


def case(worker: Worker, truth: StepModel, users: int) -> Case:
    """A closed loop, measured on an engine with the coefficients of `truth`."""
    rng = np.random.default_rng(1)
    inputs, outputs = rng.integers(64, 129, 96), rng.integers(32, 65, 96)
    policy = policy_of(worker)
    outcome = run(Fleet(policy, truth), users, inputs, outputs)
    ttft, tpot = float(np.median(outcome.ttft_s)), float(np.median(outcome.tpot_s))
    point = Point(
        row=users, source="here", ttft_s=ttft, tpot_s=tpot, stat="median", fold="the user's"
    )
    deployment = Deployment.of(worker)
    return Case(point, deployment, users, policy, inputs, outputs, work_of(worker))


@pytest.mark.parametrize(
    "engine",
    [
        {"sequence_s": 1e-3, "step_s": 1e-5, "gemm_compute_bf16": 0.1, "request_s": 5e-4},
        {
            "sequence_s": 2e-4,
            "step_s": 15e-3,
            "gemm_compute_bf16": 0.6,
            "request_s": 10e-3,
            "prefill_step_s": 3e-3,
        },
    ],
    ids=["its sequences cost most", "its steps do"],
)
def test_two_points_give_the_rest_of_a_sweep(small: str, engine: dict[str, float]) -> None:
    deployment = parse_worker(f"{small}@1xcpu/engine=llama.cpp,parallel=16,ctx_size=8192")
    profile = profile_of(deployment)
    values = profile.values()
    for name, value in engine.items():
        values[INDEX[name]] = value
    truth = StepModel(deployment, profile, values=values)
    cases = {users: case(deployment, truth, users) for users in (1, 2, 4, 8, 16)}
    found = update(profile, [cases[1], cases[8]], "here", "2026-01-01")
    # Far off before, or this shows nothing.
    assert max(map(abs, found.gap_before["tpot"])) > 0.5
    fitted = StepModel(deployment, found.profile)
    for users, each in cases.items():
        outcome = run(Fleet(each.policy, fitted), users, each.inputs, each.outputs)
        assert each.point.tpot_s == pytest.approx(float(np.median(outcome.tpot_s)), rel=0.05), users
        assert each.point.ttft_s == pytest.approx(float(np.median(outcome.ttft_s)), rel=0.10), users


def test_repeats_that_differ_keep_the_interval_wide(small: str) -> None:
    deployment = parse_worker(f"{small}@1xcpu/engine=llama.cpp,parallel=16,ctx_size=8192")
    profile = profile_of(deployment)
    measured = case(deployment, StepModel(deployment, profile), 4)
    tpot = measured.point.tpot_s or 0.0
    apart = [
        replace(measured, point=msgspec.structs.replace(measured.point, tpot_s=tpot * factor))
        for factor in (0.8, 1.0, 1.25)
    ]
    found = update(profile, apart, "here", "2026-01-01")
    assert 0.15 < found.profile.residual["tpot"] < 0.25
    assert found.after["tpot"][0] > 0.2


def test_a_calibration_is_surer_than_what_it_began_with(small: str) -> None:
    deployment = parse_worker(f"{small}@1xcpu/engine=llama.cpp,parallel=16,ctx_size=8192")
    profile = profile_of(deployment)
    truth = StepModel(deployment, profile)
    found = update(profile, [case(deployment, truth, 4)], "here", "2026-01-01")
    assert found.after["tpot"][0] < 0.2 < found.before["tpot"][0]
    # What it was told agrees with what it believed, but for what two generators draw: hardly
    # anything to move.
    moved = np.array(found.profile.logarithms) - np.array(profile.logarithms)
    assert np.abs(moved).max() < 0.15
    assert (
        msgspec.json.decode(msgspec.json.encode(found.profile), type=type(profile)) == found.profile
    )
