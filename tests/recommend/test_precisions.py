"""Precisions that plans may have: of checkpoints that somebody publishes, or any."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from asked import options, plans
from loadstone.catalogue import parse_deployment, parse_worker
from loadstone.core.verdict import Finding
from loadstone.engines import launch_of
from loadstone.recommend.demand.options import RecommendOptions
from loadstone.recommend.search import measured as measured_runs
from loadstone.recommend.search.precisions import list_precisions
from loadstone.recommend.tell.document import Recommendation
from loadstone.recommend.tell.text import remarks


def pairs(asked: RecommendOptions, gpu: str, engine: str) -> set[tuple[str, str]]:
    return set(list_precisions(parse_worker(f"{asked.model}@1x{gpu}/tp1,engine={engine}"), asked))


@pytest.mark.parametrize(
    ("model", "gpu", "engine", "expected"),
    [
        # Meta's own, and NVIDIA's FP8 with its scales for the cache; on AMD's GPUs AMD's.
        ("llama-3.1-70b-instruct", "h200", "tensorrt-llm", {("bf16", "bf16"), ("fp8", "fp8")}),
        (
            "llama-3.3-70b",
            "mi300x",
            "vllm",
            {("bf16", "bf16"), ("fp8", "bf16"), ("fp8", "fp8"), ("int4", "bf16")},
        ),
        (
            "llama-3.3-70b",
            "b200",
            "tensorrt-llm",
            {("bf16", "bf16"), ("fp8", "fp8"), ("nvfp4", "fp8")},
        ),
        ("deepseek-r1", "h200", "vllm", {("fp8", "bf16")}),  # no NVFP4 where it is not multiplied
        ("deepseek-r1", "b200", "vllm", {("fp8", "bf16"), ("nvfp4", "fp8")}),
        ("gpt-oss-120b", "h100", "vllm", {("mxfp4", "bf16")}),
        ("qwen3-32b", "a100-80gb", "vllm", {("bf16", "bf16"), ("int4", "bf16")}),
        ("qwen3-32b:fp8", "h100", "vllm", {("fp8", "bf16"), ("fp8", "fp8")}),
        ("llama-3-70b", "h100", "vllm", {("bf16", "bf16")}),  # nobody's FP8 of it is known
    ],
)
def test_as_published_is_what_somebody_publishes(
    model: str, gpu: str, engine: str, expected: set[tuple[str, str]]
) -> None:
    assert pairs(options(model=model), gpu, engine) == expected


def test_any_adds_fp8_of_both() -> None:
    made = pairs(options(model="llama-3-70b", quality="any"), "h100", "vllm")
    assert made == {("bf16", "bf16"), ("bf16", "fp8"), ("fp8", "bf16"), ("fp8", "fp8")}


def test_a_precision_whose_answers_were_wrong_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Finding("answers_wrong", "error", "81.0% of 500 questions are answered right", "")
    cell = SimpleNamespace(verdict=SimpleNamespace(findings=[told]))
    measured = parse_deployment("llama-3.1-8b:fp8@1xh200/tp1,engine=sglang")
    monkeypatch.setattr(measured_runs, "deployment_of_runs", lambda runs: measured)
    monkeypatch.setattr(measured_runs, "summary_of", lambda run: SimpleNamespace(cells=[cell]))
    asked = {"weights_dtype": None, "kv_dtype": None, "quality": "any"}
    failed = measured.worker.weights_dtype, measured.worker.kv_dtype
    assert failed in precisions_of(plans(**asked))
    after = plans(**asked, measured=(str(tmp_path),))
    assert precisions_of(after) - {failed} == precisions_of(after) != set()
    assert any(
        "failed the check of answers" in each.why and "81.0%" in each.why for each in after.rejected
    )
    assert any("nobody graded answers with" in note for note in after.notes)


def precisions_of(found: Recommendation) -> set[tuple[str, str]]:
    deployments = [parse_worker(each.deployment) for each in found.finalists]
    return {(each.weights_dtype, each.kv_dtype) for each in deployments}


def test_what_the_options_name_is_taken() -> None:
    assert pairs(options(model="llama-3-70b", weights_dtype="fp8"), "h100", "vllm") == {
        ("fp8", "bf16")
    }
    assert pairs(options(model="llama-3-70b", kv_dtype="fp8"), "h100", "vllm") == {("bf16", "fp8")}
    both = options(model="llama-3-70b", weights_dtype="int4", kv_dtype="fp8")
    assert pairs(both, "h100", "vllm") == {("int4", "fp8")}


def test_beside_the_first_plan_stands_what_one_step_further_would_save() -> None:
    document = plans(model="llama-3-8b", weights_dtype=(), kv_dtype=())
    plan = document.plans[0]
    assert "kv=" not in plan.deployment
    assert plan.further is not None
    assert plan.further.startswith("one step further (--quality any), ")
    assert f"Plan 1: {plan.further}." in remarks(document)
    assert (
        plans(model="llama-3-8b", weights_dtype=(), kv_dtype=(), quality="any").plans[0].further
        is None
    )


def test_every_warning_of_the_launch_is_shown_with_the_plan() -> None:
    document = plans(weights_dtype="fp8")
    for number, plan in enumerate(document.plans, 1):
        launch = launch_of(parse_worker(plan.deployment))
        assert launch.notes
        assert set(launch.notes) <= set(plan.warnings)
        assert plan.files == launch.files
        assert all(f"Plan {number}: {note}." in remarks(document) for note in launch.notes)


def test_a_plan_over_nodes_says_that_the_network_is_guessed() -> None:
    document = plans(model="deepseek-r1", gpus="h100", weights_dtype=(), kv_dtype=(), tp=(16,), rate=1, price=(),
                     slo="ttft_p99<20s,tpot_p99<100ms")  # fmt: skip
    assert any(
        each.startswith("network_guessed: one replica spans 2 nodes")
        for each in document.plans[0].warnings
    )
