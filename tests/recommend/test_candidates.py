"""Candidates by closed form: relations that hold whatever the numbers are."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from asked import options, planning
from loadstone.catalogue import parse_worker
from loadstone.predict.scheduler import policy_of
from loadstone.predict.steady_state import Lengths, most_decoding, steady_states
from loadstone.predict.step_time import StepModel
from loadstone.recommend.demand.classes import classes_of
from loadstone.recommend.demand.planning import Planning, plan_for
from loadstone.recommend.search.candidates import search
from loadstone.recommend.search.curve import search_capacity, simulate_curve
from loadstone.recommend.search.finalists import choose_finalists
from loadstone.recommend.search.layouts import shape_of, vary_limits
from loadstone.recommend.tell.refusal import explain_refusal

COSTS: dict[str, float] = {}


def least_cost(asked: Planning) -> float:
    """Dollars per hour of the cheapest candidate; infinite where there is none."""
    key = repr(asked.options)
    if key not in COSTS:
        COSTS[key] = min((each.cost for each in search(asked).candidates), default=math.inf)
    return COSTS[key]


def test_the_closed_form_follows_from_little_s_law_and_the_step_model() -> None:
    deployment = parse_worker("llama-3.1-8b@1xh100")
    model, policy = StepModel(deployment), policy_of(deployment)
    rows = list(steady_states(model, policy, 1, Lengths(1024, 128)))
    assert rows[0].decoding == 1
    assert rows[-1].decoding == pytest.approx(most_decoding(policy, Lengths(1024, 128)))
    for row in rows:
        assert row.rate_per_s == pytest.approx(row.decoding / (128 * row.tpot_s))
        assert row.users >= row.decoding
    assert all(after.tpot_s > before.tpot_s for before, after in pairwise(rows))
    alone = model.step_s(1, 1024 + 64, ())
    assert alone < rows[0].tpot_s < 1.3 * alone


def test_the_closed_form_is_near_the_simulator() -> None:
    asked = planning()
    rows = search(asked).candidates
    ratios = [
        simulate_curve(each, asked, each.replicas).capacity / each.load
        for each in rows[:: len(rows) // 12]
    ]
    assert np.median(np.abs(np.log(ratios))) < math.log(1.25)


QWEN = {
    "model": "qwen3-vl-8b", "gpus": "h100", "gpus_max": 64, "price": "h100=2", "rate": 20, "tp": (1, 2),
    "weights_dtype": "bf16", "kv_dtype": "bf16",
}  # fmt: skip
CHAT = "chat,share=1,input=1024,output=128,slo=ttft_p99<500ms"
LOOK = "look,share=1,input=64,output=128,images={},slo=ttft_p99<1s"


@pytest.mark.long
@pytest.mark.parametrize(
    "cases",
    [
        [
            {"images": images, "image_size": size, "slo": slo, "input": "512"}
            for images, size in (("2", "1920x1080"), ("1", "1920x1080"), ("uniform:0:2", "1024x768"))
            for slo in ("ttft_p99<1s", "ttft_p50<500ms,tpot_p99<30ms")
        ],
        [
            {"images": images, "image_size": size, "image_groups": groups, "image_place": place, "slo": "ttft_p99<1s"}
            for images, size, groups in (("2", "1920x1080", 4), ("1", "1024x768", 64), ("1", "1920x1080", 64))
            for place in ("first", "last")
        ],
        [
            {"slo": None, "input": None, "output": None, "classes": (CHAT, LOOK.format(pictures))}
            for pictures in (
                "1,image-size=1920x1080", "2,image-size=1920x1080,image-groups=4", "2,image-size=1024x768",
                "1,image-size=512x512", "1,image-size=1024x768,image-groups=16",
            )
        ],
    ],
    ids=["new", "groups", "classes"],
)  # fmt: skip
def test_the_closed_form_of_pictures_is_near_the_simulator(cases: list[dict[str, object]]) -> None:
    """Of new ones, whose host may have more to do than the GPU; of groups, which caches have; and
    of a class beside one without."""
    ratios = []
    for number, case in enumerate(cases):
        asked = options(**QWEN, **case, engine=("vllm", "sglang")[number % 2])
        of_mix = ()
        if asked.workload.classes:
            asked, of_mix = classes_of(asked).ask((0, 1))
        planned = plan_for(asked, classes=of_mix)
        rows = [each for each in search(planned).candidates if each.worker.pp == 1]
        each = rows[len(rows) // 2]
        ratios.append(simulate_curve(each, planned, each.replicas).capacity / each.load)
    assert np.median(np.abs(np.log(ratios))) < math.log(1.25)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"slo": "tpot_p99<60ms"}, {"slo": "tpot_p99<20ms"}),
        ({"slo": "tpot_p99<20ms"}, {"slo": "tpot_p99<12ms"}),
        ({"slo": "ttft_p99<3s"}, {"slo": "ttft_p99<300ms"}),
        ({"slo": "ttft_p99<300ms"}, {"slo": "ttft_p99<100ms"}),
        ({"slo": "e2e_p99<10s"}, {"slo": "e2e_p99<2s"}),
        ({"slo": "tpot_p50<20ms"}, {"slo": "tpot_p90<20ms"}),
        ({"slo": "tpot_p90<20ms"}, {"slo": "tpot_p99<20ms"}),
        ({"slo": "tpot_p99<20ms"}, {"slo": "tpot<20ms"}),
        ({"slo": "ttft_p50<100ms"}, {"slo": "ttft_p99<100ms"}),
        ({"slo": "tpot_p99<20ms"}, {"slo": "tpot_p99<20ms,ttft_p99<100ms"}),
        ({"rate": 10}, {"rate": 40}),
        ({"rate": 40}, {"rate": 80}),
        ({"rate": None, "concurrency": 64}, {"rate": None, "concurrency": 512}),
        ({"growth": 1.0}, {"growth": 2.0}),
        ({"input": "256"}, {"input": "2048"}),
        ({"input": "2048"}, {"input": "8k"}),
        ({"output": "64"}, {"output": "256"}),
        ({"range_ratio": 0.2}, {"range_ratio": 1.0}),
        ({"gpus": "h100,h200"}, {"gpus": "h200"}),
        ({"gpus": "h100,h200"}, {"gpus": "h100"}),
        ({"gpus_max": 32}, {"gpus_max": 8}),
        ({"engine": "vllm,sglang,tensorrt-llm"}, {"engine": "vllm"}),
        ({"engine": "vllm,sglang,tensorrt-llm"}, {"engine": "sglang"}),
        ({"weights_dtype": "bf16,fp8"}, {"weights_dtype": "bf16"}),
        ({"kv_dtype": "bf16,fp8"}, {"kv_dtype": "bf16"}),
        ({"tp": (1, 2, 4)}, {"tp": (4,)}),
        ({"price": "h100=1,h200=3"}, {"price": "h100=2,h200=3"}),
        ({"price": "h100=2,h200=3"}, {"price": "h100=4,h200=6"}),
        ({"model": "llama-3.1-8b"}, {"model": "llama-3.1-70b"}),
        ({}, {"arguments": ("max_num_seqs=4",)}),
    ],
    ids=lambda each: " ".join(f"{name}={value}" for name, value in each.items()) or "as asked",
)
def test_what_asks_for_more_never_costs_less(less, more) -> None:
    """More traffic, tighter bounds, fewer choices, dearer GPUs."""
    few = {"engine": "vllm", "weights_dtype": "bf16", "kv_dtype": "bf16"}
    cheap, dear = (least_cost(planning(**(few | changed))) for changed in (less, more))
    assert 0 < cheap <= dear


@pytest.mark.parametrize(("less", "more"), [(40, 80), (60, 600)])
@pytest.mark.parametrize("load", ["rate", "concurrency"])
def test_a_candidate_needs_replicas_in_proportion_to_the_traffic(less, more, load) -> None:
    asked = {
        "rate": None,
        "gpus_max": 256,
        "engine": "vllm",
        "gpus": "h100",
        "kv_dtype": "bf16",
        "tp": (1,),
    }
    few, many = (
        {
            each.deployment.name: each
            for each in search(planning(**(asked | {load: value}))).candidates
        }
        for value in (less, more)
    )
    assert set(few) == set(many)
    for name, each in few.items():
        assert each.load == pytest.approx(many[name].load)
        assert abs(many[name].replicas - each.replicas * more / less) <= more / less


@pytest.mark.parametrize(
    "changed", [{}, {"rate": None, "concurrency": 64}, {"engine": "sglang"}, {"price": ()}]
)
def test_candidates_carry_the_traffic_within_the_gpus_the_cheapest_first(changed) -> None:
    asked = planning(**changed)
    found, demand = search(asked), asked.traffic.demand
    costs = [each.cost for each in found.candidates]
    assert costs == sorted(costs)
    for each in found.candidates:
        assert each.gpus == each.replicas * each.deployment.gpus <= asked.search.gpus_max
        assert (
            each.replicas * each.load
            >= demand * (1 - 1e-6)
            > (each.replicas - 1) * each.load * (1 - 1e-6)
        )
    assert found.looked_at == len(found.candidates) + sum(each.alike for each in found.refused)


@pytest.mark.parametrize(
    ("output", "slo"),
    [
        ("4", "tpot_p50<25ms"),
        ("4", "ttft_p99<1s,tpot_p50<25ms"),
        ("10", "tpot_p50<20ms"),
        ("2", "ttft_p99<3s"),
        ("40", "e2e_p99<2s"),
    ],
)
def test_one_gpu_carries_short_answers_that_seldom_meet(output: str, slo: str) -> None:
    """Where one request decodes at all times, others' prompts come without end: fewer than one do
    not."""
    asked = planning(
        output=output, slo=slo, rate=0.5, input="8k", gpus="l40s", price=(), engine="vllm", tp=(1,)
    )
    rows = [each for each in search(asked).candidates if each.deployment.gpus == 1]
    assert rows
    assert rows[0].load > 0.02
    alone = simulate_curve(rows[0], asked, rows[0].replicas)
    assert alone.capacity > rows[0].load / 4


@pytest.mark.parametrize("users", [1, 6])
def test_a_replica_carries_at_least_one_user_or_none(users: int) -> None:
    asked = planning(
        output="4",
        slo="tpot_p50<25ms",
        rate=None,
        concurrency=users,
        gpus="l40s",
        price=(),
        tp=(1,),
    )
    rows = search(asked).candidates
    assert rows
    assert all(each.load >= 1 and each.replicas <= users for each in rows)


def test_many_replicas_carry_more_each_than_one_alone() -> None:
    """A router finds an idle one; beside no other, one in a hundred requests meets another soon."""
    asked = planning(
        output="4", slo="tpot_p99<40ms", rate=4.0, input="1500", gpus="l40s", price=(), tp=(2,)
    )
    candidate = next(each for each in search(asked).candidates if each.worker.pp == 1)
    alone, beside = search_capacity(candidate, asked, 1), simulate_curve(candidate, asked, 1)
    assert beside.capacity > 1.5 * alone.capacity


def test_of_a_dear_gpu_too_a_second_size_is_a_finalist() -> None:
    asked = planning(gpus="h100,a100", price="h100=1,a100=9", gpus_max=32, engine="vllm,sglang")
    chosen = choose_finalists(search(asked).candidates, [], asked)
    assert len({each.deployment.gpus for each in chosen if each.worker.gpu.name == "a100"}) > 1


def test_each_deployment_is_looked_at_once() -> None:
    rows = search(planning(rate=1)).candidates
    names = [(shape_of(each.worker), each.worker.arguments) for each in rows]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_limits_are_varied_by_the_engines_own_names_and_those_given_are_kept(engine: str) -> None:
    base = parse_worker(f"llama-3.1-8b@1xh100/tp1,engine={engine}")
    varied = list(vary_limits(base))
    assert varied[0] == base
    assert len({each.name for each in varied}) == len(varied) == 9
    name = varied[-1].arguments[0][0]
    given = parse_worker(f"llama-3.1-8b@1xh100/tp1,engine={engine},{name}=4096")
    assert all(dict(each.arguments)[name] == "4096" for each in vary_limits(given))
    assert len(list(vary_limits(given))) == 3


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"rate": 100_000},
            "--gpus-max 8: nothing carries this within so many; the nearest, llama-3.1-8b",
        ),
        ({"slo": "ttft_p99<15ms"}, "comes nearest, and misses ttft_p99"),
        ({"slo": "tpot_p99<0.1ms"}, "faster than the hardware allows"),
        ({"model": "llama-3.1-405b", "gpus_max": 1}, "do not fit"),
        ({"input": "300k"}, "beyond the model's context of 131,072"),
        ({"tp": (3,)}, "--tp: no deployment can be made of these"),
    ],
)
def test_a_refusal_names_what_stands_in_the_way(changed, words) -> None:
    asked = planning(**changed)
    found = search(asked)
    assert not found.candidates
    line = explain_refusal(found, asked)
    assert words in line
    assert "\n" not in line


@pytest.mark.parametrize("rate", [500, 2_000])
def test_the_gpus_that_are_missing_would_carry_it(rate: int) -> None:
    few = {"rate": rate, "price": (), "engine": "vllm", "kv_dtype": "bf16", "gpus": "h100"}
    asked = planning(**few)
    needed = min(each.gpus_needed for each in search(asked).refused if each.gpus_needed)
    assert not search(asked).candidates
    assert least_cost(planning(**few, gpus_max=needed)) == needed
    assert least_cost(planning(**few, gpus_max=needed - 1)) == math.inf
