"""Relations that must hold between predictions, and of what a predicted TTFT consists."""

from __future__ import annotations

import json
import math
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from conftest import script
from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.catalogue.deployment.shorthand import parse_deployment, parse_worker
from loadstone.core.errors import InputError
from loadstone.core.summary import Summary
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import fleet_of
from loadstone.predict.simulator.latencies import answered_rows, latencies_s
from loadstone.predict.step_time import StepModel
from loadstone.predict.step_time.boards import architecture_of
from loadstone.predict.step_time.expert_kernels import PER_TENSOR, expert_kernel
from loadstone.predict.step_time.operators import COLLECTIVE
from loadstone.predict.step_time.step import first_token_s, parts_of
from loadstone.predict.step_time.work import work_of
from loadstone.report.pages.terminal import render
from loadstone.report.table import to_text
from loadstone.runs.simulate import simulate
from loadstone.workload.options import Options, SimulateOptions
from loadstone.workload.planning import plan_of

relations = script(Path(__file__).resolve().parents[2] / "benchmarks/relations.py")


@pytest.mark.long
def test_a_small_part_of_the_grid_holds_but_for_what_is_explained() -> None:
    def alike(kind: str, fast: object, slow: object) -> bool:
        """Of GPUs those whose coefficients are the same: others are for the whole grid."""
        chips = {architecture_of(parse_worker(point.deployment).gpu) for point in (fast, slow)}
        return kind != "newer" or len(chips) == 1

    asked = relations.relations(("llama-3.1-8b", "qwen3-30b-a3b"), (1, 1024, 16384), (1, 8))
    counts, found = relations.violations([each for each in asked if alike(*each)])
    assert counts.total() > 2000
    assert set(counts) == {"fp8", "newer", "longer", "users"}
    assert [each for each in found if not relations.explanation_of(each)] == []


@pytest.mark.slow
def test_the_whole_grid_holds_and_every_explanation_is_needed() -> None:
    counts, found = relations.violations(relations.relations())
    assert counts.total() > 50_000
    whys = [(each, relations.explanation_of(each)) for each in found]
    left = sorted(relations.group_of(each) for each, why in whys if why is None)
    assert {name: len(list(members)) for name, members in groupby(left)} == {}
    # What is open may close without notice; an explanation of nothing has to go.
    assert {why.name for _, why in whys if why and why not in relations.OPEN} == {
        why.name for why in relations.EXPLAINED
    }


def test_a_violation_beyond_what_was_measured_is_not_explained() -> None:
    slower = relations.Point("llama-3.1-8b", "fp8", "a100", "vllm", 1, 1024, 1)
    faster = slower._replace(weights="bf16")
    measured = relations.Violation("fp8", "TTFT", slower, faster, 1.5, 1.0)
    assert relations.explanation_of(measured).name == "Marlin on A100"
    assert relations.explanation_of(measured._replace(slower_s=2.0)) is None
    assert relations.explanation_of(measured._replace(slower=slower._replace(gpu="h100"))) is None


@pytest.mark.long
def test_the_least_busy_is_no_worse_than_in_turn() -> None:
    """Of open loops that replicas keep up with. First tokens may come later by half a step: fewest
    are where an answer has just ended, so where a step has just begun."""
    later = []
    for seed in range(60):
        deployment, load = _replicas_under_load(np.random.default_rng(seed))
        plan = plan_of(Options.read(**load))
        busy, turn = (
            latencies_s(answered_rows(run_cell(plan, 0, fleet_of(deployment, route=route))))
            for route in ("least-busy", "round-robin")
        )
        assert busy["e2e_s"].mean() < 1.02 * turn["e2e_s"].mean(), (seed, load)
        gap_s = busy["ttft_s"].mean() - turn["ttft_s"].mean()
        assert gap_s < 0.5 * turn["tpot_s"].mean(), (seed, load)
        later.append(gap_s / turn["ttft_s"].mean())
    assert np.median(later) < 0.03


def _replicas_under_load(random: np.random.Generator) -> tuple[Deployment, dict[str, object]]:
    """Draw replicas, and requests at a third to nine tenths of what they can take."""
    replicas, engine = int(random.integers(2, 9)), random.choice(["vllm", "sglang"])
    name = random.choice(["llama-3.1-8b@{0}xh100/dp{0}", "qwen3-32b:fp8@{0}xh200/dp{0}"])
    prompt, answer = (
        int(np.exp(random.uniform(*np.log(span)))) for span in ((64, 6000), (16, 400))
    )
    load: dict[str, object] = {"input": prompt, "output": f"uniform:{answer // 4}:{2 * answer}"}
    if random.random() < 0.4:
        load |= {
            "prefix": 1000,
            "prefix_groups": int(random.integers(1, 40)),
            "input": 1000 + prompt,
        }
    load |= {"warmup": 0, "seed": 3}
    every = plan_of(Options.read(**load, rate=[math.inf], requests=[200]))
    alone = run_cell(every, 0, fleet_of(parse_deployment(f"{name.format(1)},engine={engine}")))
    most = 200 / np.max(alone.end_s)
    load |= {
        "rate": [float(random.uniform(0.3, 0.9) * replicas * most)],
        "requests": [150 * replicas],
        "burstiness": float(random.choice([0.3, 1.0, 4.0])),
    }
    return parse_deployment(f"{name.format(replicas)},engine={engine}"), load


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b"])
def test_quantising_is_part_of_the_kernel_before_a_product_and_no_launch(model: str) -> None:
    def launches(weights: str) -> float:
        return float(work_of(parse_worker(f"{model}:{weights}@1xh100")).launches[0])

    assert launches("fp8") == launches("bf16")


def test_experts_in_fp8_are_scaled_by_blocks_or_by_tensors() -> None:
    def prompt_s(model: str) -> float:
        return StepModel(parse_worker(f"{model}@1xb200/engine=vllm")).step_s(0, 0, [(8192, 0)])

    # As in the kernels' tables: 0.60 and 1.54 times as long.
    assert prompt_s("qwen3-30b-a3b:fp8") < prompt_s("qwen3-30b-a3b") < prompt_s("qwen3-30b-a3b-fp8")


def test_an_engine_without_a_per_tensor_kernel_has_its_own_of_16_bits_beside_others() -> None:
    own, plain = (
        expert_kernel("sglang", "blackwell", PER_TENSOR),
        expert_kernel("sglang", "blackwell", "bf16"),
    )
    ratios = [
        expert_kernel(engine, "blackwell", PER_TENSOR).floor_s
        / expert_kernel(engine, "blackwell", "bf16").floor_s
        for engine in ("vllm", "tensorrt-llm")
    ]
    assert min(ratios) < own.floor_s / plain.floor_s < max(ratios)
    assert (
        expert_kernel("vllm", "ampere", PER_TENSOR).compute
        == expert_kernel("vllm", "ampere", "int4").compute
    )


def test_a_link_of_amds_mesh_reaches_what_it_was_measured_at_beside_nvlinks_coefficient() -> None:
    def reach(gpu: str) -> float:
        work = work_of(parse_worker(f"llama-3.1-70b@2x{gpu}/tp2"))
        return float(work.operators.efficiency_memory[work.operators.kind == COLLECTIVE][0])

    assert reach("h200") == 1
    assert 0.47 * reach("mi300x") == pytest.approx(48 / 64, rel=0.01)


def test_the_parts_of_a_first_token_add_up_to_it() -> None:
    model = StepModel(parse_worker("llama-3.1-8b@1xh100"))
    for tokens in (1, 20_000):
        total = first_token_s(model, tokens, 8192)
        parts = dict(parts_of(model, lambda each, tokens=tokens: first_token_s(each, tokens, 8192)))
        assert sum(parts.values()) == pytest.approx(total, rel=0.02)
        assert list(parts.values()) == sorted(parts.values(), reverse=True)
    alone = dict(parts_of(model, lambda each: first_token_s(each, 1, 8192)))
    assert alone["before the engine"] == pytest.approx(
        model.request_s + model.request_token_s, rel=0.01
    )
    assert alone["streaming"] == pytest.approx(model.stream_s, rel=0.01)


def test_simulate_says_of_what_the_first_token_consists(tmp_path: Path) -> None:
    load = {"input": "1", "output": "4", "concurrency": [1], "requests": [2], "out": tmp_path}
    document = simulate(
        SimulateOptions.read(deployment="llama-3.1-8b@1xh100", draws=0, **load)
    ).document()
    first = document["first_token"]
    assert first["prompt_tokens"] == 1
    ttft_s = document["cells"][0]["metrics"]["ttft_s"]["p50"]
    assert sum(first["parts_s"].values()) == pytest.approx(ttft_s, rel=0.03)
    saved = json.loads((Path(document["run_dir"]) / "summary.json").read_text())
    assert saved["first_token"] == first
    damaged = document | {"first_token": {"prompt_tokens": 1, "parts_s": {"x": "much"}}}
    assert "TTFT of 1 token alone" in _text(document)
    with pytest.raises(InputError, match="first_token"):
        _text(damaged)


def _text(document: dict[str, object]) -> str:
    return to_text(render(Summary.of(document)), 200)
