"""The closed loop against a hand count, the fit against coefficients it must find again, and the
update."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Loadstone
from fit import group, keys_of, solve, values_of, weights_of
from loadstone import calibrate_profile
from loadstone.calibrate.cases import (
    CaseTable,
    Outcome,
    case_of,
    mean_step_seconds,
    predict,
    refresh,
    run,
    slopes,
)
from loadstone.calibrate.points import Point, deployment_of
from loadstone.calibrate.update import update, widths
from loadstone.catalogue import parse_deployment, parse_worker
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.statistics.distribution import Z80
from loadstone.measure.simulated_server import start
from loadstone.measure.simulated_server.settings import FixedLatency
from loadstone.predict.scheduler import EnginePolicy
from loadstone.predict.simulator.fleet import Fleet
from loadstone.predict.step_time import StepModel
from loadstone.predict.step_time.coefficients import INDEX, NAMES, PRIOR
from loadstone.predict.step_time.profile import load, prior_profile, profile_of, remaining
from loadstone.recommend.search.measured import read_measured
from loadstone.runs.calibrate import cases_of_runs
from profiles import profiles, residuals

HOST = {"request_s": 0.010, "stream_s": 0.001}


def values(**changes: float) -> np.ndarray:
    found = np.exp(PRIOR)
    for name, value in changes.items():
        found[INDEX[name]] = value
    return found


def model_of(**changes: float) -> StepModel:
    deployment = parse_worker("llama-3.1-8b@1xh100/tp1,engine=vllm")
    return StepModel(
        deployment, prior_profile(), values=values(**{"request_token_s": 1e-30, **HOST, **changes})
    )


def lengths(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int64)


MIXED = EnginePolicy(kv_blocks=10**8, max_batched_tokens=8192, max_seqs=64)


def loop(
    model: StepModel, policy: EnginePolicy, users: int, inputs: np.ndarray, outputs: np.ndarray
) -> Outcome:
    return run(Fleet(policy, model), users, inputs, outputs)


# --- the closed loop ------------------------------------------------------------------------------


def test_one_request_is_a_prefill_and_its_steps() -> None:
    model = model_of()
    outcome = loop(model, MIXED, 1, lengths(1000), lengths(5))
    prefill = model.step_s(0, 0, [(1000, 0)])
    assert outcome.ttft_s[0] == pytest.approx(0.010 + prefill + 0.001, rel=1e-9)
    base, slope = model.decode_line(1)
    steps = sum(base + slope * (1001 + step) for step in range(4))
    assert outcome.tpot_s[0] == pytest.approx(steps / 4, rel=1e-9)
    assert outcome.output_tokens == 5


def test_a_long_prompt_goes_in_chunks() -> None:
    model = model_of()
    policy = msgspec.structs.replace(MIXED, max_batched_tokens=512)
    outcome = loop(model, policy, 1, lengths(1200), lengths(2))
    chunks = [
        model.step_s(0, 0, [(new, cached)]) for new, cached in ((512, 0), (512, 512), (176, 1024))
    ]
    assert outcome.ttft_s[0] == pytest.approx(0.010 + sum(chunks) + 0.001, rel=1e-9)


def test_mixed_prompts_share_steps_and_first_ones_wait_for_none() -> None:
    model = model_of()
    inputs, outputs = np.full(40, 500), np.full(40, 50)
    mixed = loop(model, MIXED, 4, inputs, outputs)
    alone = loop(model, msgspec.structs.replace(MIXED, order="prefill-first"), 4, inputs, outputs)
    for outcome in (mixed, alone):
        assert (outcome.ttft_s > 0.011).all()
        assert (outcome.tpot_s > model.decode_line(1)[0]).all()
    # A step of prompts alone gives no token to the others.
    assert alone.prompt_steps > 0
    assert mixed.duration_s < alone.duration_s


def test_a_full_cache_holds_back_and_preempts() -> None:
    model = model_of()
    inputs, outputs = np.full(16, 400), np.full(16, 200)
    small = msgspec.structs.replace(MIXED, kv_blocks=94)
    free = loop(model, MIXED, 8, inputs, outputs)
    tight = loop(model, small, 8, inputs, outputs)
    sure = loop(model, msgspec.structs.replace(small, keep_free=1.0), 8, inputs, outputs)
    assert not free.held_back
    assert tight.held_back
    assert sure.held_back
    assert tight.preemptions > 0
    assert sure.preemptions == 0
    assert tight.duration_s > free.duration_s
    assert len(tight.tpot_s) == 16


def test_polling_makes_newcomers_wait() -> None:
    model = model_of()
    inputs, outputs = np.full(60, 200), np.arange(60) % 37 + 100
    prompt = loop(model, MIXED, 6, inputs, outputs)
    polled = loop(model, msgspec.structs.replace(MIXED, poll_steps=30), 6, inputs, outputs)
    extra = np.median(polled.ttft_s) - np.median(prompt.ttft_s)
    assert 5 * model.decode_line(5)[0] < extra < 31 * model.decode_line(6)[0]


def test_requests_at_given_times_keep_them() -> None:
    model = model_of()
    outcome = run(
        Fleet(MIXED, model), 3, np.full(3, 100), np.full(3, 10), times=np.array([0.0, 5.0, 10.0])
    )
    assert np.ptp(outcome.ttft_s) < 1e-9  # alone each time
    assert outcome.duration_s > 10


# --- points ---------------------------------------------------------------------------------------


def point_of(row: int, users: int, **more: object) -> Point:
    given = {
        "engine": "vllm",
        "engine_version": "0.15.1",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "precision": "bf16",
        "gpu": "H100-SXM-80GB",
        "gpus": 1,
        "tp": 1,
        "dp": 1,
        "input_tokens": 1000,
        "output_tokens": 200,
        "load": "concurrency",
        "load_value": float(users),
        "requests": 5 * users,
        "mode": "serving",
        "fold": "llama",
        "stat": "median",
    }
    return Point(row=row, **(given | more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"engine": "mystery"}, "not modelled"),
        ({"model": "nobody/none"}, "not in the catalogue"),
        ({"gpu": "TPU"}, "not in the catalogue"),
        ({"input_tokens": None}, "lengths"),
        ({"gpus": 72, "tp": 72, "gpu": "GB200-NVL72"}, "sums over several"),
        ({"gpus": 12, "tp": 12, "gpu": "GB200-NVL72"}, "does not divide"),
        ({"gpus": 0, "tp": 2, "dp": 0}, "not said"),
        ({"model": "deepseek-ai/DeepSeek-R1", "precision": "fp8"}, "do not fit"),
        ({"mode": "disagg"}, "the pools are not said"),
        ({"load": "rate", "load_value": None}, "no number"),
        ({"precision": "fp9"}, "precision: 'fp9' is not a known precision"),
        ({"kv_dtype": "int3"}, "kv_dtype: 'int3' is not a precision of a KV cache"),
        ({"load_value": 1e9, "requests": None}, "users at once"),
        ({"output_tokens": 10**9}, "beyond"),
        ({"input_tokens": -5}, "beyond"),
    ],
)
def test_what_cannot_be_predicted_says_why(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        case_of(point_of(1, 8, **changes))


def test_precisions_by_their_other_names() -> None:
    deployment = deployment_of(point_of(1, 8, precision="FP8 (native)", kv_dtype="float16")).worker
    assert (deployment.weights_dtype, deployment.kv_dtype) == ("fp8", "fp16")
    assert deployment_of(point_of(1, 8, kv_dtype="fp8_e5m2")).worker.kv_dtype == "fp8_e5m2"
    assert deployment_of(point_of(1, 8, kv_dtype="auto")).worker.kv_dtype == "bf16"


def test_no_more_users_than_requests_are_there_at_once() -> None:
    case = case_of(point_of(1, 1024, requests=400))
    assert (case.users, len(case.inputs)) == (400, 400)
    assert case_of(point_of(1, 64, requests=400)).users == 64


def test_range_ratio_is_what_is_sent() -> None:
    case = case_of(point_of(1, 64, range_ratio=0.8))
    assert case.inputs.min() >= 800
    assert case.inputs.max() <= 1000
    assert np.ptp(case_of(point_of(1, 64)).inputs) == 0
    around = case_of(point_of(1, 64, range_ratio=0.9, range_most=1.1)).inputs
    assert (900 <= around.min() < 920, 1080 < around.max() <= 1100) == (True, True)


# --- fitting --------------------------------------------------------------------------------------


def measured(cases: list, truth: np.ndarray, noise: float = 0.0) -> list:
    """The cases with the TTFT and TPOT that the model with these coefficients gives."""
    rng = np.random.default_rng(0)
    table = CaseTable(cases)
    refresh(table, np.tile(truth, (len(cases), 1)))
    found = []
    for at, case in enumerate(cases):
        off = np.exp(noise * rng.standard_normal(2))
        case.point = msgspec.structs.replace(
            case.point,
            ttft_s=float(table.ttft_s[at] * off[0]),
            tpot_s=float(table.tpot_s[at] * off[1]),
        )
        found.append(case)
    return found


def grid(model: str = "meta-llama/Llama-3.1-8B-Instruct", **more: object) -> list:
    return [
        case_of(point_of(row, users, model=model, input_tokens=tokens, **more))
        for row, (users, tokens) in enumerate(
            [(u, n) for u in (1, 4, 16, 64) for n in (200, 1000, 4000)], 1
        )
    ]


TRUTH = {"gemm_memory_bf16": 0.74, "gemm_compute_bf16": 0.66, "product_s": 6e-6, "request_s": 0.030}


def test_the_formula_agrees_with_the_simulation_it_was_taken_from() -> None:
    cases = measured(grid(), values(**TRUTH))
    table = CaseTable(cases)
    rows = np.tile(values(**TRUTH), (len(cases), 1))
    refresh(table, rows)
    ttft, tpot = predict(table, rows)
    assert np.allclose(np.exp(tpot), table.tpot_s, rtol=1e-9)
    assert np.allclose(np.exp(ttft), table.ttft_s, rtol=0.3)
    assert (mean_step_seconds(table, rows, prompts=False) < table.tpot_s * 1.001).all()
    by_ttft, by_tpot = slopes(table, rows)
    # Slower memory, longer steps; the host's part of a request is in TTFT alone.
    assert (by_tpot[:, INDEX["gemm_memory_bf16"]] < 0).all()
    assert np.allclose(by_tpot[:, INDEX["request_s"]], 0)
    assert (by_ttft[:, INDEX["request_s"]] > 0).all()


def test_a_fit_finds_coefficients_again() -> None:
    cases = measured(grid(), values(**TRUTH), noise=0.01)
    table = CaseTable(cases)
    groups, weights, use = group(cases), weights_of(cases), np.ones(len(cases), bool)
    fit = None
    for _ in range(3):
        refresh(table, np.exp(values_of(fit, cases)))
        fit = solve(table, groups, use, weights, None if fit is None else fit.unknowns)
    found = np.exp(values_of(fit, cases)[0])
    before = abs(np.log(np.exp(PRIOR[INDEX["gemm_memory_bf16"]]) / TRUTH["gemm_memory_bf16"]))
    after = abs(np.log(found[INDEX["gemm_memory_bf16"]] / TRUTH["gemm_memory_bf16"]))
    assert after < before
    refresh(table, np.tile(found, (len(cases), 1)))
    gap = [abs(np.log(case.point.tpot_s / table.tpot_s[at])) for at, case in enumerate(cases)]
    assert np.median(gap) < 0.05
    sure = np.sqrt(np.diag(fit.spread([("all",), ("engine", "vllm")])))
    unseen = np.sqrt(np.diag(fit.spread([("all",), ("engine", "nobody's")])))
    assert (sure <= unseen + 1e-9).all()


def test_profiles_of_a_fit_hold_a_family_out() -> None:
    first = measured(grid(fold="llama"), values(**TRUTH))
    second = measured(grid(model="Qwen/Qwen3-8B", fold="qwen"), values(**TRUTH))
    cases = first + second
    table = CaseTable(cases)
    refresh(table, np.exp(values_of(None, cases)))
    use = np.ones(len(cases), bool)
    fit = solve(table, group(cases), use, weights_of(cases))
    only = solve(
        table,
        fit.groups,
        np.array([case.point.fold != "qwen" for case in cases]),
        weights_of(cases),
    )
    found = profiles(
        table, fit, {"qwen": only}, lambda *key: {"ttft": 0.2, "tpot": 0.1}, "test", "2026-01-01"
    )
    names = {profile.name for profile in found}
    assert "any-any-any" in names
    mine = next(
        profile
        for profile in found
        if profile.engine == "vllm" and "*" not in (profile.era, profile.architecture)
    )
    assert set(mine.held_out) == {"qwen"}
    assert mine.names == NAMES
    assert mine.provenance.rows == len(cases)


def test_what_an_old_release_took_for_latent_attention_is_nobody_elses() -> None:
    """Rows of DeepSeek alone, 25 ms slower each: no dense model's steps get longer for it."""
    more = {
        "engine_version": "0.7.3", "precision": "fp8", "gpu": "H200-SXM-141GB", "gpus": 8, "tp": 8, "fold": "r1",
    }  # fmt: skip
    slow = values(latent_layer_s=16e-6 + 0.025 / 61)
    cases = measured(grid("deepseek-ai/DeepSeek-R1", **more), slow)
    table = CaseTable(cases)
    fit = None
    for _ in range(3):
        refresh(table, np.exp(values_of(fit, cases)))
        fit = solve(
            table,
            group(cases),
            np.ones(len(cases), bool),
            weights_of(cases),
            None if fit is None else fit.unknowns,
        )
    refresh(table, np.exp(values_of(fit, cases)))
    off = [case.point.tpot_s / at for case, at in zip(cases, table.tpot_s, strict=True)]
    assert np.median(off) == pytest.approx(1, abs=0.1)
    logarithms = fit.logarithms([("all",), ("engine", "vllm"), ("era", "vllm", "v0")])
    assert np.exp(logarithms[INDEX["step_s"]]) < 1e-3
    assert np.exp(logarithms[INDEX["latent_layer_s"]]) > 2e-4


def test_an_era_and_a_gpu_seen_apart_have_a_profile_too() -> None:
    cases = measured(grid(engine_version="0.12.0"), values(**TRUTH))
    cases += measured(grid(gpu="A100-SXM-80GB"), values(**TRUTH))
    table = CaseTable(cases)
    refresh(table, np.exp(values_of(None, cases)))
    fit = solve(table, group(cases), np.ones(len(cases), bool), weights_of(cases))
    found = {
        profile.name: profile
        for profile in profiles(
            table, fit, {}, lambda *key: {"ttft": 0.2, "tpot": 0.1}, "test", "2026-01-01"
        )
    }
    assert {name for name in found if name.startswith("vllm-") and "any" not in name} == {
        "vllm-v1-hopper", "vllm-v1-ampere", "vllm-async-hopper", "vllm-async-ampere",
    }  # fmt: skip
    apart = found["vllm-v1-ampere"]
    assert (apart.provenance.rows, apart.provenance.kinds) == (0, {})
    assert found["vllm-v1-hopper"].provenance.kinds == {"dense": 12}
    by_hand = np.array(found["vllm-v1-any"].logarithms) + found["vllm-any-ampere"].logarithms
    assert np.allclose(apart.logarithms, by_hand - found["vllm-any-any"].logarithms, atol=1e-3)
    assert found["any-any-any"].families == {"4096 x 32 x 128256": "llama"}


@pytest.mark.long
def test_releases_build_on_one_another() -> None:
    """What is known of the releases before holds for one that was held out, and what engines gain
    from era to era."""
    before = measured(grid(engine="sglang", engine_version="0.5.9"), values(product_s=8e-6))
    newest = measured(grid(engine="sglang", engine_version="0.5.12"), values(product_s=4e-6))
    other = measured(grid(engine="tensorrt-llm", engine_version="1.2"), values(product_s=8e-6))
    other += measured(grid(engine="tensorrt-llm", engine_version="1.3"), values(product_s=4e-6))
    cases = before + other + newest
    table = CaseTable(cases)
    refresh(table, np.exp(values_of(None, cases)))
    groups, weights, at = group(cases), weights_of(cases), np.arange(len(cases))
    fit = solve(table, groups, at < len(before + other), weights)
    old, new = values_of(fit, [before[0], newest[0]])[:, INDEX["product_s"]]
    assert new < old - 0.05
    alone = solve(table, groups, at < len(before), weights)
    old, new = values_of(alone, [before[0], newest[0]])[:, INDEX["product_s"]]
    assert new == pytest.approx(old, abs=1e-6)


def test_the_groups_of_a_deployment() -> None:
    assert keys_of("sglang", "graphs", "hopper", "kimi") == [
        ("all",), ("engine", "sglang"), ("era", "sglang", "0.5"), ("era", "sglang", "graphs"), ("progress",),
        ("architecture", "hopper"), ("pair", "sglang", "hopper"), ("family", "kimi"),
    ]  # fmt: skip
    assert ("progress",) not in keys_of("sglang", "0.4", "hopper")
    amd = set(keys_of("sglang", "graphs", "cdna 4")) - set(keys_of("sglang", "graphs", "hopper"))
    assert {key[0] for key in amd} == {"vendor", "architecture", "pair", "build"}


def test_what_must_not_be_fitted_on_has_no_weight() -> None:
    cases = [
        case_of(point_of(row, 8, tpot_s=0.02 * row, unfitted=why))
        for row, why in ((1, ""), (2, "a twin"))
    ]
    assert (weights_of(cases) > 0).tolist() == [True, False]


def test_repeats_share_one_weight() -> None:
    cases = [
        case_of(point_of(row, 8, tpot_s=tpot, ttft_s=0.1))
        for row, tpot in ((1, 0.02), (2, 0.02), (3, 0.021))
    ]
    weights = weights_of(cases)
    assert weights[0] == pytest.approx(weights[2] / 2)


def test_residuals_make_intervals_hold_four_in_five() -> None:
    rng = np.random.default_rng(3)
    gap = {"tpot": 0.2 * rng.standard_normal(2000)}
    found = residuals(gap, {"tpot": np.full(2000, 0.1**2)}, np.ones(2000, bool))
    assert found["tpot"] == pytest.approx(np.sqrt(0.2**2 - 0.1**2), rel=0.1)


# --- calibrating ----------------------------------------------------------------------------------


def test_two_points_bring_the_rest_of_a_sweep_near() -> None:
    truth = values(
        gemm_memory_bf16=0.6, gemm_compute_bf16=0.5, product_s=9e-6, sequence_s=3e-5, request_s=0.05
    )
    cases = measured(
        [case_of(point_of(row, users)) for row, users in enumerate((1, 8, 32, 128), 1)], truth
    )
    found = update(prior_profile(), [cases[0], cases[3]], "mine", "2026-01-01")
    table = CaseTable(cases[1:3])
    gaps = []
    for profile in (prior_profile(), found.profile):
        refresh(table, np.tile(profile.values(), (2, 1)))
        gaps.append(
            max(
                abs(np.log(case.point.tpot_s / table.tpot_s[at]))
                for at, case in enumerate(table.cases)
            )
        )
    assert gaps[1] < 0.05 < gaps[0]
    assert max(found.after["tpot"]) < min(found.before["tpot"])
    assert found.profile.provenance.note == "from prior"


@pytest.mark.process
def test_the_command_calibrates_on_runs_of_the_client(loadstone: Loadstone, tmp_path: Path) -> None:
    """Measured against a server of known times: the profile comes to know this one."""
    # Above the model's own time: what a busy test machine adds is less beside it.
    with start(FixedLatency(ttft_s=0.025, itl_s=0.01)) as server:
        asked = (
            "--input",
            "200",
            "--output",
            "30",
            "--concurrency",
            "1,4",
            "--requests",
            "8",
            "--json",
        )
        run = loadstone("bench", server.url, *asked)
    # A busy test machine may make a cell untrusted.
    where = (
        "--deployment",
        "llama-3.1-8b@1xh100/tp1,engine=vllm",
        "--out",
        tmp_path / "profiles",
        "--force",
    )
    found = loadstone("calibrate", run.folder, *where, "--profile", "mine", "--json").document
    assert found["points"] == 2
    assert found["error_after"]["tpot"] < found["error_before"]["tpot"]
    assert found["interval_after"]["tpot"] < found["interval_before"]["tpot"]
    cases = cases_of_runs(
        [run.folder], parse_deployment("llama-3.1-8b@1xh100/tp1,engine=vllm"), force=True
    )
    assert [(case.warm, len(case.inputs)) for case in cases] == [
        (1, 9),
        (4, 12),
    ]  # the warm-up is simulated too
    profile = load(tmp_path / "profiles" / "mine.json")
    model = StepModel(parse_worker("llama-3.1-8b@1xh100/tp1,engine=vllm"), profile)
    assert model.decode_line(1)[0] == pytest.approx(0.01, rel=0.25)
    in_python = calibrate_profile(
        str(run.folder), deployment=where[1], out=tmp_path / "other", force=True
    ).document()
    assert in_python == found | {"path": str(tmp_path / "other" / "mine.json")}
    said = loadstone("calibrate", run.folder, run.folder / ".." / run.folder.name, *where)
    assert said.code == 0
    assert "80% interval" in said.out
    assert said.out.startswith("2 measured loads of"), "one run, told once or twice, is as much"
    kept = tmp_path / "profiles" / "mine.json"
    assert f"use it with --profile {kept}" in said.out  # by its name it would not be found there
    assert "check that" not in said.out
    wrong = loadstone(
        "calibrate",
        run.folder,
        "--deployment",
        "llama-3.1-405b:fp8@8xh100/tp8",
        "--out",
        tmp_path,
        "--force",
    )
    assert ": check that llama-3.1-405b:fp8@8xh100/tp8" in wrong.out
    info = run_folder.read_info(run.folder)
    assert info.target is not None
    info.target.choices = 4
    run_folder.write_info(run.folder, info)
    assert "4 answers side by side" in loadstone("calibrate", run.folder, *where).line()


@pytest.mark.process
def test_requests_come_when_they_came_where_more_than_answers_says_when(
    loadstone: Loadstone, tmp_path: Path
) -> None:
    deployment = parse_deployment("llama-3.1-8b@1xh100/tp1,engine=vllm")
    asked = ("--input", "50", "--output", "4", "--out", tmp_path / "runs", "--json")
    loads = {
        "sessions": (
            "--concurrency",
            "2",
            "--turns",
            "2",
            "--think-time",
            "200ms",
            "--requests",
            "4",
        ),
        "ramp": ("--ramp", "concurrency=1:3:1s"),
        "closed": ("--concurrency", "2", "--requests", "4"),
    }
    with start(
        FixedLatency(ttft_s=0.02, itl_s=0.02)
    ) as server:  # so that tokens do not come together on a busy machine
        folders = {
            name: loadstone("bench", server.url, *asked, *load).folder
            for name, load in loads.items()
        }
    (sessions,), (ramp,), (closed,) = (
        cases_of_runs([folders[name]], deployment, force=True) for name in loads
    )
    assert closed.times is None
    for case in (sessions, ramp):
        assert case.times is not None
        assert case.times[0] == 0
        assert (np.diff(case.times) >= 0).all()
    assert sessions.times is not None
    assert sessions.times[-1] > 0.2  # a pause is in it


@pytest.mark.process
def test_pools_are_learned_from_by_plans_and_are_no_profile(
    loadstone: Loadstone, tmp_path: Path
) -> None:
    deployment = "llama-3.1-8b@prefill=1xh100/tp1+decode=1xh100/tp1,engine=vllm"
    asked = ("--input", "400", "--output", "20", "--concurrency", "2", "--requests", "8", "--json")
    with start(deployment) as server:
        run = loadstone(
            "bench", server.url, "--deployment", deployment, *asked, "--out", tmp_path / "runs"
        )
    said = loadstone("calibrate", run.folder, "--force").line()
    assert "a profile is of one engine; recommend --pools --with learns from pools" in said
    measured = read_measured(run.folder, force=True)
    assert parse_deployment(measured.deployment).is_split
    assert np.abs(measured.gaps).max() < np.log(3)  # a busy test machine


@pytest.mark.process
def test_what_a_prefix_cache_had_is_not_calibrated_on(loadstone: Loadstone, tmp_path: Path) -> None:
    asked = (
        "--input",
        "200",
        "--output",
        "3",
        "--prefix",
        "160",
        "--concurrency",
        "2",
        "--requests",
        "8",
    )
    with start("llama-3.1-8b@1xh100") as server:
        run = loadstone("bench", server.url, *asked, "--out", tmp_path / "runs", "--json")
    said = loadstone(
        "calibrate", run.folder, "--deployment", "llama-3.1-8b@1xh100", "--out", tmp_path, "--force"
    ).line()
    assert "were in the prefix cache" in said


@pytest.mark.process
def test_what_is_not_trusted_teaches_nothing(loadstone: Loadstone, tmp_path: Path) -> None:
    """Neither a profile nor a recommendation; unless somebody says so."""
    asked = (
        "--input",
        "50",
        "--output",
        "5",
        "--concurrency",
        "2",
        "--requests",
        "8",
        "--out",
        tmp_path / "runs",
    )
    named = ("--deployment", "llama-3.1-8b@1xh100/tp1")
    with start(FixedLatency(ttft_s=0.02, itl_s=0.002)) as server:
        run = loadstone("bench", server.url, *asked, *named, "--json").folder
    table = pq.read_table(run / "records.parquet")
    words = ["error", *table["status"].to_pylist()[1:]][::-1]  # the last, which is no warm-up
    pq.write_table(
        table.set_column(table.column_names.index("status"), "status", pa.array(words)),
        run / "records.parquet",
    )
    info = run_folder.read_info(run)
    info.marks = {}
    run_folder.write_info(run, info)
    calibrate = ("calibrate", run, "--out", tmp_path / "profiles")
    assert "request_errors" in loadstone(*calibrate).line()
    assert loadstone(*calibrate, "--force").code == 0
    chosen = (
        "recommend",
        "llama-3.1-8b",
        "--gpus",
        "h100",
        "--engine",
        "vllm",
        "--tp",
        "1",
        "--rate",
        "2",
    )
    chosen += ("--input", "50", "--output", "5", "--slo", "tpot_p99<1s", "--with", str(run))
    assert "request_errors" in loadstone(*chosen).line()
    assert loadstone(*chosen, "--force").code == 0


def test_what_cannot_calibrate_is_one_line(loadstone: Loadstone, tmp_path: Path) -> None:
    where = ("--deployment", "llama-3.1-8b@1xh100/tp1,engine=vllm")
    assert loadstone("calibrate", tmp_path, *where).line()
    table = tmp_path / "table.csv"
    table.write_text("concurrency,ttft_p50_ms,tpot_p50_ms\n8,60,8\n")
    imported = loadstone("import", table, "--out", tmp_path / "imported", "--json").document[
        "runs"
    ][0]
    assert "figures and no requests" in loadstone("calibrate", imported, *where).line()
    assert "--profile" in loadstone("calibrate", tmp_path, *where, "--profile", "../up").line()
    asked = (
        "--input",
        "50",
        "--output",
        "5",
        "--concurrency",
        "1",
        "--requests",
        "2",
        "--draws",
        "0",
        "--json",
    )
    simulated = loadstone("simulate", "llama-3.1-8b@1xh100/tp1", *asked, "--out", tmp_path / "runs")
    assert "simulated" in loadstone("calibrate", simulated.folder, *where).line()


def test_calibration_states_the_interval_that_a_simulation_has() -> None:
    """Of a shipped profile the spread on a machine that no fit has seen, not that of the fit's own
    points."""
    profile = profile_of(parse_worker("llama-3.1-8b@1xh100"))
    known = np.zeros((1, len(profile.names)))
    for quantity, least in (("tpot", 0.24), ("ttft", 0.40)):
        (width,) = widths(profile, known, quantity)
        assert width == pytest.approx(np.expm1(Z80 * remaining(profile)[quantity]))
        assert width >= np.expm1(Z80 * least)
