"""The step model: hand-sized figures, the properties any step time must have, and what a profile
must hold."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from loadstone import catalogue
from loadstone.catalogue import parse_worker
from loadstone.core.errors import InputError
from loadstone.engines import rules_of
from loadstone.predict import step_time
from loadstone.predict.step_time import StepModel, profile_of
from loadstone.predict.step_time.boards import architecture_of
from loadstone.predict.step_time.coefficients import (
    COEFFICIENTS,
    EXPERT_LAYERS,
    HOST,
    INDEX,
    LIGHT,
    NAMES,
    PRIOR,
)
from loadstone.predict.step_time.formulas import (
    attended_pairs,
    body_seconds,
    context_seconds,
    head_seconds,
    launch_seconds,
    pair_seconds,
    window_pairs,
)
from loadstone.predict.step_time.operators import (
    COLLECTIVE,
    EXPERTS,
    GEMM,
    HEAD,
    Operators,
    Work,
    idealise,
)
from loadstone.predict.step_time.profile import (
    ELSEWHERE,
    PACKED,
    Profile,
    load,
    prior_profile,
    remaining,
    save,
    save_packed,
    shipped_profiles,
    unmeasured,
)
from loadstone.predict.step_time.work import work_of

DEPLOYMENTS = (
    "llama-3.1-8b@1xh100/tp1,engine=vllm",
    "llama-3.1-70b:fp8@8xh200/tp8,kv=fp8,engine=tensorrt-llm",
    "deepseek-v3@8xh200/tp8,engine=sglang",
    "deepseek-v3@8xb200/tp1,dp8,ep8,attention-dp,engine=sglang",
    "gpt-oss-120b@2xh100/tp2,engine=vllm",
    "Qwen3.5-397B-A17B:fp8@8xb200/tp8,engine=sglang",
    "llama-3.1-405b:fp8@16xh100/tp8,pp2,engine=vllm",
)


def model_of(text: str) -> StepModel:
    return StepModel(parse_worker(text), prior_profile())


def test_weights_of_a_rank_are_the_models_share() -> None:
    for text, ranks in (("llama-3.1-8b@1xh100/tp1", 1), ("llama-3.1-70b@8xh100/tp8", 8)):
        deployment = parse_worker(text)
        work = work_of(deployment)
        held = (work.operators.weights * work.operators.layers)[
            np.isin(work.operators.kind, [GEMM, HEAD])
        ].sum() * ranks
        # All but the input table, norms and biases.
        table = deployment.model.vocab * deployment.model.hidden * 2
        assert held == pytest.approx(deployment.model.weights_bytes() - table, rel=2e-3)


def test_the_work_of_a_dense_rank_by_hand() -> None:
    """Llama-3.1-8B on two: 16 of 32 heads of 128 and 4 of 8 KV heads, half of 14,336; 16 bits
    throughout."""
    work = work_of(parse_worker("llama-3.1-8b@2xh100/tp2"))
    # inputs × outputs of queries, keys and values; of the output; of gate and up; of down; and the
    # head.
    sizes = [
        (4096, 2048 + 2 * 512),
        (2048, 4096),
        (4096, 2 * 7168),
        (7168, 4096),
        (4096, 128256 // 2),
    ]
    products = np.isin(work.operators.kind, [GEMM, HEAD])
    assert work.operators.flops[products].tolist() == [
        2 * inputs * outputs for inputs, outputs in sizes
    ]
    assert work.operators.weights[products].tolist() == [
        2 * inputs * outputs for inputs, outputs in sizes
    ]
    assert work.operators.activations[products].tolist() == [
        2 * sum(size) for size in sizes[:-1]
    ] + [12 * 128256]
    assert work.operators.layers.tolist() == [32] * 6 + [1]
    assert (
        work.operators.message[work.operators.kind == COLLECTIVE].tolist() == [2 * 4096] * 2
    )  # 2·(2 − 1)/2 of a tensor of 2 bytes
    assert (work.products[0], work.quantised[0], work.layers[0]) == (4 * 32, 0, 32)
    assert (work.cache[0], work.context_flops[0], work.pair_flops[0]) == (
        32 * 4 * 256 * 2,
        *[32 * 2 * 16 * 256] * 2,
    )


def test_the_work_of_experts_by_hand() -> None:
    """Mixtral 8x7B in FP8 on four, four of its eight experts on each half, shared by two ranks."""
    work = work_of(parse_worker("mixtral-8x7b:fp8@4xh100/tp4,ep2"))
    (at,) = np.flatnonzero(work.operators.kind == EXPERTS)
    assert work.operators.peak[at] == 2 * work.peak16[0]
    assert (work.operators.weights[at], work.operators.flops[at]) == (
        3 * 4096 * 14336 / 2,
        3 * 4096 * 14336,
    )
    assert work.operators.activations[at] == 2 * (2 * 4096 + 3 * 14336 / 2)
    assert (work.operators.experts[at], work.operators.per_token[at], work.operators.ep[at]) == (
        8,
        2,
        2,
    )
    assert work.operators.fullest[at] == pytest.approx(
        0.5895, abs=1e-4
    )  # Blom; exactly 1/√π = 0.564
    # Queries, keys and values, and the output in 8 bits; the router in 16.
    assert (work.products[0], work.quantised[0], work.expert_layers[0]) == (3 * 32, 2 * 32, 32)
    four_bits = work_of(parse_worker("gpt-oss-120b@2xh100/tp2"))  # which an H100 multiplies in 16
    at = four_bits.operators.kind == EXPERTS
    assert (
        four_bits.operators.weights[at].tolist()
        == (four_bits.operators.flops[at] / 2 * 4.25 / 8).tolist()
    )
    assert set(four_bits.operators.peak[at]) == {four_bits.peak16[0]}


def test_replicas_have_the_work_of_one_and_attention_ranks_meet() -> None:
    one, two = (
        work_of(parse_worker(f"mixtral-8x7b@{text}")) for text in ("4xh100/tp4", "8xh100/tp4,dp2")
    )
    assert all(
        np.array_equal(first, second)
        for first, second in zip(
            (*one.operators, *one[1:]), (*two.operators, *two[1:]), strict=True
        )
    )
    spread = work_of(parse_worker("deepseek-v3@8xh200/tp1,dp8,ep8,attention-dp"))
    assert (
        set(spread.operators.group[spread.operators.kind == COLLECTIVE])
        == set(spread.operators.group[spread.operators.kind == EXPERTS])
        == {8}
    )
    assert set(spread.operators.message[spread.operators.kind == COLLECTIVE]) == {
        2 * 7168 * 2 * 7 / 8
    }
    assert spread.operators.group[spread.operators.kind == HEAD].tolist() == [1]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            # 16 heads a rank on 512 + 64 numbers; of prompts on 128 + 64 and 128
            "deepseek-v3@8xh200/tp8",
            {
                "cache": 61 * 576 * 2,
                "context_flops": 61 * 2 * 16 * (576 + 512),
                "pair_flops": 61 * 2 * 16 * 320,
            }
            | {"products": 369, "quantised": 250, "launches": 369 + 6 * 61 + 6 * 58 + 12 * 61},
        ),
        (
            "deepseek-v3@8xh200/tp8,engine=tensorrt-llm",
            {"launches": 369 + 6 * 61 + 6 * 58 + 36 * 61},
        ),
        (
            # of these 2,048, which an indexer of 64 heads of 128 chooses, in 8 bits
            "deepseek-v3.2@8xh200/tp8",
            {"window": 2048, "window_cache": 61 * 576 * 2, "window_pair_flops": 61 * 2 * 16 * 320}
            | {"cache": 61 * 128, "context_flops": 61 * 64 * 128, "pair_flops": 61 * 64 * 128}
            | {"latent_layers": 61 * (1 + 3)},
        ),
        (
            # 31 layers see 128 tokens and all the others at 1 for 128, 30 see 128 and 1,024 of
            # those at 1 for 4.
            "deepseek-v4-pro@8xb200/tp8",
            {
                "window": (31 * 128 + 30 * 1152) / 61,
                "window_cache": 61 * 1024,
                "window_flops": 61 * 4 * 16 * 512,
            }
            | {"cache": 31 * 1024 / 128 + 30 * 128 / 4, "latent_layers": 61 + 30 * 3, "latent": 1}
            | {"context_flops": 31 * 4 * 16 * 512 / 128 + 30 * 64 * 128 / 4},
        ),
        (
            # 45 layers of linear attention, 64 heads of 128 × 128 in 32 bits and three inputs of
            # its convolution.
            "qwen3.5-397b-a17b:fp8@8xb200/tp8",
            {
                "state": 45 * 2 * (64 * 128 * 128 * 4 + 3 * 12288 * 2) / 8,
                "linear_layers": 45,
                "layers": 45 + 15 * 1.5,
            }
            | {"cache": 15 * 512 * 2, "context_flops": 15 * 2 * 4 * 512}
            # Two projections in 8 bits and one in 16; queries to gates, and the output; a router,
            # and a shared expert that has a gate of its own.
            | {"products": 45 * 3 + 15 * 2 + 60 * (1 + 2), "quantised": 45 * 2 + 15 * 2 + 60 * 2}
            | {"launches": 345 + 6 * 67.5 + 6 * 60 + 48 * 45},
        ),
        ("minimax-m2.5@8xh200/tp8", {"layers": 1.5 * 62, "expert_layers": 62}),
    ],
)
def test_attention_by_hand(text: str, what: dict[str, float]) -> None:
    work = work_of(parse_worker(text))
    assert {name: float(getattr(work, name)[0]) for name in what} == pytest.approx(what)


def test_messages_that_are_no_reduction() -> None:
    """From stage to stage a tensor goes once, over the network; a norm over heads of all ranks
    sends hardly any."""
    stages = work_of(parse_worker("llama-3.1-405b:fp8@16xh100/tp8,pp2,nodes=2")).operators
    last = np.flatnonzero(stages.kind == COLLECTIVE)[-1]
    assert (stages.layers[last], stages.ranks[last], stages.message[last]) == (1, 2, 2 * 16384)
    assert stages.link[last] == parse_worker("llama-3.1-8b@1xh100").gpu.nic_bytes_per_s
    for text, link in (
        ("llama-3.1-405b:fp8@32xh100/tp4,pp2,dp4,nodes=4", 450e9),  # each replica within a node
        ("llama-3.1-70b@8xmi300x/tp1,pp8", 64e9),  # in a mesh, the link between two
        ("llama-3.1-8b@2xl40s/tp1,pp2", 32e9),
    ):
        stages = work_of(parse_worker(text)).operators
        assert stages.link[np.flatnonzero(stages.kind == COLLECTIVE)[-1]] == link, text
    normed = work_of(parse_worker("minimax-m2.5@8xh200/tp8"))
    assert normed.operators.message[normed.operators.kind == COLLECTIVE].tolist() == [
        2 * 3072 * 1.75,
        0.0,
        2 * 3072 * 1.75,
    ]
    assert set(normed.operators.link[normed.operators.kind == COLLECTIVE]) == {
        parse_worker("llama-3.1-8b@1xh200").gpu.link_bytes_per_s
    }


def one_of(**columns: float) -> Work:
    """One operator of one deployment; what is not said is 0, and rates are 1."""
    rates = {"peak": 1.0, "hbm": 1.0, "peak16": 1.0, "link": 1.0, "count": 1.0, "stages": 1.0}
    rates |= {"efficiency_compute": 1.0, "efficiency_memory": 1.0}
    integers = ("row", "kind", "compute", "memory")
    columns = rates | columns

    def arrays(names: Iterable[str]) -> dict[str, np.ndarray]:
        return {
            name: np.array([columns.get(name, 0.0)], np.int64 if name in integers else float)
            for name in names
        }

    operators = Operators(**arrays(Operators._fields))
    operators = operators._replace(layers=np.array([columns["count"]]))
    return Work(operators, **arrays(Work._fields[1:]))


def test_the_formulas_by_hand() -> None:
    ones = np.ones((1, len(NAMES)))

    def given(**values: float) -> np.ndarray:
        """These coefficients; times are 0 else, efficiencies 1."""
        return np.array(
            [[values.get(each.name, 0.0 if each.unit == "s" else 1.0) for each in COEFFICIENTS]]
        )

    two = np.array([2.0])
    cubes = 91 ** (1 / 3)  # ‖3, 4‖
    half = given(gemm_compute_fp8=0.5, gemm_memory_fp4=0.25)
    product = one_of(
        kind=GEMM, flops=9, peak=12, weights=8, activations=6, hbm=20, compute=1, memory=2, count=5
    )
    assert float(body_seconds(product, half, two)[0]) == pytest.approx(5 * cubes)  # 18/6 and 20/5
    assert float(body_seconds(product.with_operators(group=two), half, two)[0]) == pytest.approx(
        5 * (6**3 + 6.4**3) ** (1 / 3)
    )
    assert float(
        head_seconds(product.with_operators(kind=np.array([HEAD])), half, two)[0]
    ) == pytest.approx(cubes)
    reached = product.with_operators(efficiency_compute=two / 4, efficiency_memory=two / 8)
    assert float(body_seconds(reached, half, two)[0]) == pytest.approx(
        5 * (6**3 + 16**3) ** (1 / 3)
    )
    caches = one_of(cache=6, context_flops=4, widening=2, peak16=4, window_cache=8)
    full, windowed, _ = context_seconds(caches, given(attention_prefill=0.5, attention_decode=0.5))
    assert float(full[0]) == pytest.approx((12**3 + (2 + 3) ** 3) ** (1 / 3))
    assert float(windowed[0]) == pytest.approx((16**3 + 4**3) ** (1 / 3))
    message = one_of(kind=COLLECTIVE, ranks=64, message=6, link=4, count=3)
    sent = body_seconds(message, given(collective_s=8, collective_link=0.5), two)
    assert float(sent[0]) == pytest.approx(3 * (8 * (1 / 2 + 6 / 6) + 6))
    slower = message.with_operators(floor=two, efficiency_memory=two / 4)
    sent = body_seconds(slower, given(collective_s=8, collective_link=0.5), two)
    assert float(sent[0]) == pytest.approx(3 * (8 * (1 / 2 + 6 / 6) + 2 + 12))
    layers = one_of(
        layers=1,
        products=2,
        quantised=3,
        expert_layers=4,
        latent_layers=5,
        linear_layers=6,
        launches=7,
    )
    floors = given(
        layer_s=1,
        product_s=10,
        quantised_s=1e2,
        expert_layer_s=1e3,
        latent_layer_s=1e4,
        linear_layer_s=1e5,
    )
    assert float(body_seconds(layers, floors, two)[0]) == 654321
    assert float(launch_seconds(layers, given(launch_s=2))[0]) == 14

    # Experts: of 8, four here, two for each of four tokens; asked for at rates of shape 1: a/(a +
    # 1) are touched.
    experts = one_of(
        kind=EXPERTS, flops=3, peak=4, weights=5, activations=6, hbm=8, experts=8, per_token=2, ep=2
    )
    experts = experts.with_operators(
        uneven=-two,
        floor=two,
        efficiency_compute=two / 4,
        efficiency_memory=two / 8,
        efficiency_moving=two / 4,
    )
    asked = 4 * np.log(8 / 6)
    share = asked / (1 + asked)
    for z in (0.0, 0.5):
        pairs = 4 + z * (4 + 4**2 / 4) ** 0.5
        touched = 4 * share + z * (4 * share * (1 - share)) ** 0.5
        spent = body_seconds(experts.with_operators(fullest=np.array([z])), ones, np.array([4.0]))
        assert float(spent[0]) == pytest.approx(2 + pairs * 3 / 2 + touched * 5 / 2 + pairs * 6 / 4)
    # Kernels that are not told which pairs are their own move those of both ranks.
    every = body_seconds(experts.with_operators(all_pairs=np.array([1.0])), ones, np.array([4.0]))
    alone = body_seconds(experts, ones, np.array([4.0]))
    assert float(every[0] - alone[0]) == pytest.approx(4 * 6 / 4)
    worst = body_seconds(
        experts.with_operators(fullest=np.array([50.0]), flops=two * 0, activations=two * 0),
        ones,
        two,
    )
    assert float(worst[0]) == 2 + 4 * 5 / 2  # no more than there are

    seen = one_of(
        cache=6, window_cache=12, context_flops=8, window_flops=16, state=10, hbm=4, peak16=8
    )
    rates = given(
        attention_decode=0.5, attention_prefill=0.25, latent_decode=0.5, latent_prefill=0.5
    )
    assert [float(each[0]) for each in context_seconds(seen, rates)] == pytest.approx(
        [cubes, 2 * cubes, 5]
    )
    latent = seen._replace(latent=two, cache=two * 1.5, window_cache=two * 3)
    assert [float(each[0]) for each in context_seconds(latent, rates)] == pytest.approx(
        [cubes, 2 * cubes, 5]
    )
    pairs_of_prompts = one_of(pair_flops=6, window_pair_flops=10, peak16=8)
    assert [float(each[0]) for each in pair_seconds(pairs_of_prompts, rates)] == [3, 5]
    assert [
        float(each[0]) for each in pair_seconds(pairs_of_prompts._replace(latent=two), rates)
    ] == [6, 10]


@pytest.mark.parametrize(
    "text",
    [
        "gpt-oss-120b@2xh100/tp2",
        "qwen3.5-397b-a17b:fp8@8xb200/tp8",
        "deepseek-v3@8xh200/tp1,dp8,ep8,attention-dp",
    ],
)
def test_a_step_is_the_sum_of_its_parts(text: str) -> None:
    model = model_of(text)
    work, values = model.work, model.values[None, :]
    new, cached, window = np.array([40.0, 8.0]), np.array([100.0, 0.0]), float(work.window[0])
    full, windowed, state = (float(each[0]) for each in context_seconds(work, values))
    pair, window_pair = (float(each[0]) for each in pair_seconds(work, values))
    pairs, seen = attended_pairs(new, cached), window_pairs(new, cached, np.array(window))

    def body(tokens: float) -> float:
        return float(body_seconds(work, values, np.array([tokens]))[0])

    def head(sequences: float) -> float:
        return float(head_seconds(work, values, np.array([sequences]))[0])

    def host(sequences: int, *names: str) -> float:
        return float(
            sum(model.values[INDEX[name]] for name in names)
            + sequences * model.values[INDEX["sequence_s"]]
        )

    # Three decodes of 3,000 tokens in all, and parts of two prompts.
    attention = 3000 * full + min(3000, 3 * window) * windowed + 5 * state
    attention += float(pairs.sum()) * pair + float(seen.sum()) * window_pair
    kernels = body(3 + 48) + head(3 + 2) + attention
    launches = float(launch_seconds(work, values)[0])
    for limit, spent in ((51, kernels), (50, (kernels**3 + launches**3) ** (1 / 3))):
        model.graph_tokens = limit
        found = model.step_s(3, 3000, [(40, 100), (8, 0)])
        assert found == pytest.approx(spent + host(5, "step_s", "prefill_step_s"))

    # Each of three guesses is a pass through the draft layers, and a head of its own.
    drafting = StepModel(parse_worker(text), prior_profile(), draft_tokens=3)
    layers = drafting.deployment.model
    share = (sum(run.count for run in layers.draft_layers) or 1) / layers.layer_count
    # Four tokens of each sequence attend to what is read once.
    verifying = work._replace(
        context_flops=4 * work.context_flops, window_flops=4 * work.window_flops
    )
    full, windowed, _ = (float(each[0]) for each in context_seconds(verifying, values))
    base = (
        body(4 * 4)
        + head(4 * 4)
        + 3 * (share * body(4) + head(4))
        + 4 * (window * windowed + state)
    )
    assert drafting.decode_line(4) == (pytest.approx(base + host(4, "step_s")), full)
    drafting.graph_tokens = 3 * 4 + 48
    within = drafting.step_s(3, 3000, [(40, 100), (8, 0)])
    drafting.graph_tokens -= 1
    assert drafting.step_s(3, 3000, [(40, 100), (8, 0)]) > within


def test_all_experts_are_on_the_ranks_that_share_them() -> None:
    for text, ranks in (
        ("deepseek-v3@8xh200/tp8", 8),
        ("deepseek-v3@8xh200/tp1,dp8,ep8,attention-dp", 8),
    ):
        deployment = parse_worker(text)
        work = work_of(deployment)
        at = work.operators.kind == EXPERTS
        held = (
            work.operators.weights
            * work.operators.experts
            / np.maximum(work.operators.ep, 1)
            * work.operators.layers
        )[at].sum() * ranks
        parameters = deployment.model.parameters_by_kind["experts"]
        assert held == pytest.approx(parameters, rel=1e-3)  # FP8: a byte each, and block scales


def test_speed_of_light_is_the_roofline_by_hand() -> None:
    """Llama-3.1-8B in bf16 on an H100: one token reads all weights but the embedding table once."""
    deployment = parse_worker("llama-3.1-8b@1xh100/tp1,engine=vllm")
    light = model_of("llama-3.1-8b@1xh100/tp1,engine=vllm").light()
    weights = (
        deployment.model.weights_bytes() - deployment.model.vocab * deployment.model.hidden * 2
    )
    base, slope = light.decode_line(1)
    assert base == pytest.approx(weights / 3.35e12, rel=0.02)
    assert slope == pytest.approx(131072 / 3.35e12, rel=0.01)
    # 4096 prompt tokens: 2 FLOPs a parameter and token, and half of 4·heads·head_dim·n² for each
    # layer.
    parameters = weights / 2 - deployment.model.vocab * deployment.model.hidden
    flops = 2 * parameters * 4096 + 32 * 4 * 32 * 128 * 4096**2 / 2
    assert light.step_s(0, 0, [(4096, 0)]) == pytest.approx(flops / 989e12, rel=0.05)


@pytest.mark.parametrize("text", DEPLOYMENTS)
def test_steps_grow_with_what_they_hold(text: str) -> None:
    model = model_of(text)
    bases = [model.decode_line(batch)[0] for batch in (1, 2, 4, 8, 16, 32, 64, 65, 128, 256, 500)]
    assert all(low < high for low, high in itertools.pairwise(bases))
    assert model.step_s(8, 8000, []) < model.step_s(8, 80000, [])
    assert (
        model.step_s(8, 8000, [])
        < model.step_s(8, 8000, [(512, 0)])
        < model.step_s(8, 8000, [(2048, 0)])
    )
    assert model.step_s(0, 0, [(512, 0)]) < model.step_s(0, 0, [(512, 30000)])
    light = model.light()
    for decodes, context, chunks in (
        (1, 500, []),
        (64, 64000, []),
        (3, 900, [(1000, 0)]),
        (0, 0, [(8192, 512)]),
    ):
        assert light.step_s(decodes, context, chunks) < model.step_s(decodes, context, chunks)


def test_a_decode_step_is_the_line() -> None:
    model = model_of("gpt-oss-120b@2xh100/tp2,engine=vllm")
    base, slope = model.decode_line(17)
    assert model.step_s(17, 17 * 3000, []) == base + slope * 17 * 3000
    assert model.decode_line(17) == (base, slope)


def test_a_table_lookup_is_the_formula_in_between() -> None:
    model = model_of("qwen3-32b@2xh100/tp2,engine=vllm")
    around = [model.decode_line(batch)[0] for batch in (190, 200, 210)]
    assert around[1] == pytest.approx((around[0] + around[2]) / 2, rel=5e-3)


@pytest.mark.parametrize("number", [float, lambda value: np.array([value])], ids=["one", "arrays"])
@pytest.mark.parametrize(
    ("cached", "pairs", "within"),
    [
        (0.0, 50, 4 * 2 + 6 * 4),
        (2.0, 70, 2 * (2 + 1) + 8 * 4),
        (100.0, 1050, 40),
    ],
)
def test_windows_bound_what_attention_sees(
    cached: float, pairs: float, within: float, number: Any
) -> None:
    """Pairs rise to the window, and stay there."""
    assert attended_pairs(number(10.0), number(cached)) == pairs
    assert window_pairs(number(10.0), number(cached), number(4.0)) == within


@pytest.mark.parametrize("more", ["", "/enforce_eager=1"])
@pytest.mark.parametrize("text", ["gemma-3-27b@1xh100", "llama-4-scout@8xh100"])
def test_a_decode_step_reads_no_more_of_a_window_than_there_is(text: str, more: str) -> None:
    model = model_of(text + more)
    window = int(model.window_tokens)
    short, full, longer = (
        model.step_s(64, 64 * tokens, []) for tokens in (128, window, window + 1000)
    )
    base, slope = model.decode_line(64)
    per_token = (full - short) / (64 * (window - 128))
    assert full == pytest.approx(base + slope * 64 * window)
    assert longer - full == pytest.approx(slope * 64 * 1000)
    assert per_token == pytest.approx(slope + model.window_s)
    assert model.window_s > 2.9 * slope  # most of these models' layers see a window alone
    # A prompt beside them takes time, and saves none.
    assert short < model.step_s(64, 64 * 128, [(1, 0)])


def test_the_windows_of_a_draft_model_are_read_once_for_each_guess() -> None:
    text = "gemma-3-27b@4xh100/tp4"
    alone = model_of(text)
    deployed = parse_worker(f"{text},num_speculative_tokens=2,draft=gemma-3-27b")
    drafted = StepModel(deployed, prior_profile(), draft_tokens=2)
    assert drafted.window_s == pytest.approx(3 * alone.window_s)
    assert drafted.window_tokens == pytest.approx(alone.window_tokens)
    longer, shorter = (drafted.step_s(8, 8 * tokens, []) for tokens in (1024, 24))
    slopes = drafted.window_s + drafted.decode_line(8)[1]
    assert longer - shorter == pytest.approx(slopes * 8 * 1000)


def test_experts_of_an_old_era_that_knew_latent_attention_alone_are_those_of_later_ones() -> None:
    """All rows with experts of SGLang 0.4 are DeepSeek-R1's, whose prompts took eight times as long
    as today."""

    def of(text: str) -> Profile:
        return profile_of(parse_worker(text))

    latent, mixture, dense, wide = (
        of("deepseek-r1@8xh200/tp8,engine=sglang,version=0.4.4"),
        of("mixtral-8x7b@2xh100/tp2,engine=sglang,version=0.4.4"),
        of("qwen3-8b@1xh100/engine=sglang,version=0.4.4"),
        shipped_profiles()["sglang", "*", "hopper"],
    )
    assert (latent.name, latent.covariance) == (dense.name, dense.covariance)
    latent = dense  # but for what its family adds
    experts = [name in EXPERT_LAYERS for name in NAMES]
    np.testing.assert_array_equal(
        mixture.values(), np.where(experts, wide.values(), latent.values())
    )
    assert (
        mixture.values()[INDEX["expert_compute"]] > 1.5 * latent.values()[INDEX["expert_compute"]]
    )
    assert np.linalg.eigvalsh(np.array(mixture.covariance)).min() > 0
    # Of vLLM 0.2 too no mixture was measured, nor anything else with experts.
    assert of("mixtral-8x7b@2xh100/tp2,version=0.11.0") == of("qwen3-8b@1xh100/version=0.11.0")
    old, new = (
        model_of_shipped(f"mixtral-8x7b@2xh100/tp2,engine=sglang,version={v}")
        for v in ("0.4.4", "0.5.2")
    )
    assert old.step_s(0, 0, [(4096, 0)]) == pytest.approx(new.step_s(0, 0, [(4096, 0)]), rel=0.2)


def model_of_shipped(text: str) -> StepModel:
    deployed = parse_worker(text)
    return StepModel(deployed, profile_of(deployed))


def test_products_that_were_cut_off_are_made_in_16_bits() -> None:
    """A B300 multiplies INT8 at a fifteenth of the rate of 16 bits."""
    wide, eight = (work_of(parse_worker(f"llama-3.1-8b{dtype}@1xb300")) for dtype in ("", ":int8"))
    assert (eight.operators.peak == wide.operators.peak).all()
    assert (eight.operators.compute == wide.operators.compute).all()
    read = [ops.weights[ops.kind == GEMM].sum() for ops in (wide.operators, eight.operators)]
    assert read[1] == pytest.approx(read[0] / 2, rel=0.01)
    assert eight.quantised == 0
    (hopper,) = {*work_of(parse_worker("llama-3.1-8b:int8@1xh100")).operators.peak} - {989.5e12}
    assert hopper == 1979e12


def test_verified_tokens_are_no_cheaper_than_their_products() -> None:
    """128 latent heads on a rank compute nearly as long as they read; four tokens of a sequence
    compute longer."""
    deployed = parse_worker("deepseek-r1@8xh200/tp1,dp8,ep8,attention-dp,engine=vllm")
    plain, verifying = (
        StepModel(deployed, prior_profile(), draft_tokens=drafts) for drafts in (0, 3)
    )
    per_token_s = float(4 * plain.work.context_flops[0] / plain.work.peak16[0])
    assert plain.decode_line(64)[1] < per_token_s < verifying.decode_line(64)[1]


@pytest.mark.parametrize(
    ("gpu", "share"), [("mi300x", 1 / 7), ("gaudi3", 1 / 7), ("h100", 1), ("l40s", 1)]
)
def test_in_a_mesh_two_gpus_have_the_link_between_them(gpu: str, share: float) -> None:
    device = catalogue.gpu(gpu)
    for ranks, links in ((2, share), (4, min(1, 3 * share)), (8, 1)):
        work = work_of(parse_worker(f"llama-3.1-8b@{ranks}x{gpu}/tp{ranks},engine=vllm"))
        assert work.operators.link[work.operators.kind == COLLECTIVE] == pytest.approx(
            links * device.link_bytes_per_s
        )


def test_parallelism_shares_work_and_costs_messages() -> None:
    one = model_of("llama-3.1-70b:fp8@1xh200/tp1,engine=vllm").decode_line(8)[0]
    eight = model_of("llama-3.1-70b:fp8@8xh200/tp8,engine=vllm").decode_line(8)[0]
    assert one / 8 < eight < one
    near = model_of("llama-3.1-405b:fp8@8xh100/tp8,engine=vllm").step_s(0, 0, [(8192, 0)])
    far = StepModel(
        parse_worker("llama-3.1-405b:fp8@16xh100/tp16,nodes=2,engine=vllm"), prior_profile()
    )
    assert (
        0.75 * near < far.step_s(0, 0, [(8192, 0)]) < near
    )  # half the work a rank, and the network between nodes


def test_every_gpu_has_its_part_of_the_network() -> None:
    """An all-reduce over two nodes adds its floor, and a part of the tensor over each network
    card."""
    near = parse_worker("llama-3.1-70b@8xh200/tp8,engine=vllm")
    far = parse_worker("llama-3.1-70b@16xh200/tp16,nodes=2,engine=vllm")
    work = [work_of(deployment).operators for deployment in (near, far)]
    near_ranks, far_ranks = ({*w.ranks[w.kind == COLLECTIVE].tolist()} for w in work)
    assert (near_ranks, far_ranks) == ({8.0}, {8.0, 2.0})
    between = (work[1].kind == COLLECTIVE) & (work[1].ranks == 2) & (work[1].message > 0)
    hidden = near.model.hidden
    assert set(work[1].message[between]) == {
        2.0 * hidden * 1.0 / 8
    }  # bytes a token: 2·(2 − 1)/2 of an eighth
    assert set(work[1].link[between]) == {near.gpu.nic_bytes_per_s}


def test_experts_spread_over_more_tokens_until_all_are_touched() -> None:
    model = model_of("deepseek-v3@8xh200/tp8,engine=sglang")
    steps = [model.decode_line(batch)[0] for batch in (1, 8, 64)]
    dense = model_of("llama-3.1-70b:fp8@8xh200/tp8,engine=sglang")
    assert steps[2] / steps[0] > 2 * dense.decode_line(64)[0] / dense.decode_line(1)[0]


@pytest.mark.parametrize("tokens", [1, 4, 32])
def test_all_ranks_wait_for_the_fullest(tokens: int) -> None:
    """Routing drawn at random: how many of its 32 experts the fullest of eight ranks is asked for,
    over the mean."""
    rng = np.random.default_rng(0)
    chosen = np.argsort(rng.random((2000, tokens, 256)), axis=2)[:, :, :8]
    touched = np.zeros((2000, 256), bool)
    for token in range(tokens):
        np.put_along_axis(touched, chosen[:, token], True, axis=1)
    ranks = touched.reshape(2000, 8, 32).sum(axis=2)

    spread = work_of(parse_worker("deepseek-v3@8xh200/tp8,ep8,engine=sglang"))
    light = LIGHT[None, :]
    alone = idealise(spread)
    reading = alone.with_operators(
        kind=np.where(alone.operators.kind == EXPERTS, EXPERTS, -1), flops=alone.operators.flops * 0
    )
    even, fullest = (
        body_seconds(
            reading.with_operators(fullest=z, activations=alone.operators.activations * 0),
            light,
            np.array([float(tokens)]),
        )
        for z in (alone.operators.fullest, spread.operators.fullest)
    )
    assert float(fullest[0] / even[0]) == pytest.approx(
        ranks.max(axis=1).mean() / ranks.mean(), rel=0.12
    )
    assert float(even[0]) > 0


@pytest.mark.parametrize(
    ("deployment", "moved"),
    [
        ("minimax-m2.5@8xh200/tp8,ep8", 1),
        ("minimax-m2.5@8xh200/tp8,ep8,engine=sglang", 1),
        ("minimax-m2.5@8xh200/tp8", 0),
        ("minimax-m2.5@8xh200/tp8,ep8,engine=tensorrt-llm", 0),
        ("minimax-m2.5@8xb200/tp8,ep8", 0),
    ],
)
def test_which_kernels_move_the_pairs_of_all_ranks(deployment: str, moved: int) -> None:
    work = work_of(parse_worker(deployment))
    assert work.operators.all_pairs[work.operators.kind == EXPERTS].tolist() == [moved]
    assert not idealise(
        work
    ).operators.all_pairs.any()  # at the speed of light no rank moves another's


def test_biases_are_kernels_of_their_own() -> None:
    """BLOOM's layers launch more kernels than Llama 2's, beside as many products."""
    bloom, llama = (
        work_of(parse_worker(f"{name}@8xa100/tp8")) for name in ("bloom", "llama-2-70b")
    )
    counts = [
        float(launch_seconds(work, np.ones((1, len(NAMES))))[0] / work.operators.layers[0])
        for work in (bloom, llama)
    ]
    assert counts == [13, 10]


def test_attention_ranks_share_the_experts() -> None:
    apart = model_of("deepseek-v3@8xh200/tp1,dp8,ep8,attention-dp,engine=sglang")
    together = model_of("deepseek-v3@8xh200/tp8,engine=sglang")
    # One scheduler's 8 sequences are 64 for the experts; its own cache is whole on its rank.
    assert apart.decode_line(8)[0] > together.decode_line(8)[0]
    assert apart.decode_line(1)[1] >= together.decode_line(1)[1]


def test_drafts_cost_a_pass_of_their_own() -> None:
    deployment = parse_worker("deepseek-v3@8xh200/tp8,engine=sglang")
    plain = StepModel(deployment, prior_profile())
    drafting = StepModel(deployment, prior_profile(), draft_tokens=3)
    assert plain.decode_line(4)[0] < drafting.decode_line(4)[0] < 4 * plain.decode_line(4)[0]


def test_eager_decode_is_bound_by_launches() -> None:
    graphs = model_of("llama-3.1-8b@1xh100/tp1,engine=vllm")
    eager = model_of("llama-3.1-8b@1xh100/tp1,engine=vllm,enforce_eager=true")
    kernels = (
        graphs.decode_line(1)[0]
        - graphs.values[INDEX["step_s"]]
        - graphs.values[INDEX["sequence_s"]]
    )
    launches = float(launch_seconds(graphs.work, graphs.values[None, :])[0])
    both = (kernels**3 + launches**3) ** (1 / 3)
    assert eager.decode_line(1)[0] - graphs.decode_line(1)[0] == pytest.approx(
        both - kernels, rel=1e-9
    )
    old = StepModel(
        parse_worker("llama-3.1-8b@1xh100/tp1,engine=vllm,version=0.2.1"), prior_profile()
    )
    assert old.eager


def test_draws_are_of_the_profile_and_repeatable() -> None:
    model = StepModel(parse_worker("llama-3.1-8b@1xh100/tp1,engine=vllm"))
    steps = [each.decode_line(32)[0] for each in model.draws(64, 1)]
    assert steps == [each.decode_line(32)[0] for each in model.draws(64, 1)]
    assert min(steps) < model.decode_line(32)[0] < max(steps)


def test_a_profile_is_a_file_or_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = parse_worker("llama-3.1-8b@1xh100")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    save(prior_profile("kept"), tmp_path / "config" / "loadstone" / "profiles")
    save(prior_profile("here"), tmp_path / "sub")
    assert profile_of(deployment, "kept").name == "kept"
    assert profile_of(deployment, "sub/here.json").name == "here"
    with pytest.raises(
        InputError, match=r"--profile sub/gone.json: neither a file nor .*config.loadstone.profiles"
    ):
        profile_of(deployment, "sub/gone.json")
    save(msgspec.structs.replace(prior_profile("other"), architecture="blackwell"), tmp_path)
    with pytest.raises(
        InputError, match=r"--profile other.json: it is of blackwell, h100 is hopper; leave it out"
    ):
        profile_of(deployment, "other.json")
    assert profile_of(parse_worker("llama-3.1-8b@1xb300"), "other.json").name == "other"


def test_every_gpu_and_engine_has_a_profile() -> None:
    for text in (
        "llama-3.1-8b@1xh100/tp1,engine=vllm",
        "llama-3.1-70b:fp8@4xmi300x/tp4,engine=sglang",
        "llama-3.1-8b@1xl40s/tp1,engine=transformers",
        "llama-3.1-70b:fp8@4xgb300/tp4,engine=tensorrt-llm",
        "llama-3.1-8b@1xa100/tp1,engine=vllm,version=0.6.3",
    ):
        profile = profile_of(parse_worker(text))
        assert profile.name != "prior", text
        values = profile.values()
        assert values.shape == (len(COEFFICIENTS),)
        assert (values > 0).all()
        efficiencies = [values[INDEX[each.name]] for each in COEFFICIENTS if each.unit == "of peak"]
        assert max(efficiencies) < 1.5, text
        assert np.linalg.eigvalsh(np.array(profile.covariance)).min() > -1e-6


def test_extrapolation_is_less_sure() -> None:
    known = profile_of(parse_worker("llama-3.1-8b@1xh100/tp1,engine=vllm"))
    unknown = profile_of(parse_worker("llama-3.1-8b@1xl40s/tp1,engine=transformers"))
    assert np.trace(np.array(unknown.covariance)) > np.trace(np.array(known.covariance))


def test_a_family_held_out_has_its_own_coefficients() -> None:
    profile = profile_of(parse_worker("llama-3.1-70b:fp8@8xh100/tp8,engine=vllm"))
    assert "llama-70b" in profile.held_out
    assert not np.allclose(profile.values(), profile.values(without="llama-70b"))
    assert np.allclose(profile.values(), profile.values(without="nobody's"))


def test_shipped_profiles_are_packed_and_pass_the_check_of_ones_own(tmp_path: Path) -> None:
    shipped = shipped_profiles()
    assert len(shipped) == len({each.name for each in shipped.values()}) > 80
    for profile in shipped.values():
        assert load(save(profile, tmp_path)) == profile
    save_packed(shipped.values(), tmp_path / PACKED)
    packed, there = (
        (tmp_path / PACKED).read_bytes(),
        Path(step_time.__file__).with_name(PACKED).read_bytes(),
    )
    assert gzip.decompress(packed) == gzip.decompress(
        there
    )  # versions of zlib pack in different ways


def test_profiles_are_kept_and_checked(tmp_path) -> None:
    profile = prior_profile("mine")
    path = save(profile, tmp_path)
    assert load(path) == profile
    path.write_text("{}")
    with pytest.raises(InputError, match="`loadstone calibrate` writes one"):
        load(path)
    with pytest.raises(InputError, match="loadstone calibrate"):
        load(tmp_path / "none.json")
    short = Profile(
        **{name: getattr(profile, name) for name in profile.__struct_fields__} | {"names": ("one",)}
    )
    with pytest.raises(InputError, match="another version"):
        load(save(short, tmp_path))
    for wrong in (
        {"logarithms": (800.0, *profile.logarithms[1:])},
        {"covariance": ((1e300,) * len(NAMES), *profile.covariance[1:])},
        {"residual": {"tpot": -0.1}},
    ):
        with pytest.raises(InputError, match="cannot be"):
            load(save(msgspec.structs.replace(profile, **wrong), tmp_path))


def test_coefficients_are_named_once_and_light_is_perfect() -> None:
    assert len(set(NAMES)) == len(NAMES) == len(PRIOR) == len(LIGHT)
    assert all(LIGHT[INDEX[each.name]] == 1 for each in COEFFICIENTS if each.unit.startswith("of"))
    assert all(LIGHT[INDEX[each.name]] < 1e-12 for each in COEFFICIENTS if each.unit == "s")


@pytest.mark.parametrize(
    ("engine", "era"),
    [
        ("vllm", "async"),
        ("vllm,version=0.19.0", "async"),
        ("vllm,version=v0.13.0", "v1"),
        ("vllm,version=0.7.3.dev138+g21f6ca217", "v0"),
        ("vllm,version=0.2", "eager"),
        ("sglang,version=0.4.3.post2", "0.4"),
        ("sglang,version=~0.4.0", "0.4"),
        ("sglang,version=0.5.10.post1", "graphs"),
        ("sglang,version=0.5.12", "0.5.11"),
        ("tensorrt-llm,version=1.2.0rc6.post2", "1.0"),
        ("tensorrt-llm,version=1.3.0rc14", "1.3"),
        ("tensorrt-llm,version=0.5.1-rc0.pre3", "0.x"),
        ("llama.cpp,version=b1234", "*"),
    ],
)
def test_versions_have_eras(engine: str, era: str) -> None:
    assert rules_of(parse_worker(f"llama-3.1-8b@1xh100/engine={engine}")).era == era


RELEASES = (
    "vllm", "vllm,version=0.10.0", "vllm,version=0.5.4", "vllm,version=0.2.7", "sglang", "sglang,version=0.5.5",
    "sglang,version=0.4.1", "tensorrt-llm", "tensorrt-llm,version=0.17.0",
)  # fmt: skip
"""One of each era."""


@pytest.mark.parametrize("engine", RELEASES)
@pytest.mark.parametrize("text", ["llama-3.1-8b@1x{}", "llama-3.1-70b@8x{}/tp8"])
def test_a_newer_gpu_is_the_faster_one_with_every_release(engine: str, text: str) -> None:
    text += "," if "/" in text else "/"
    slow, fast = (
        StepModel(parse_worker(text.format(gpu) + f"engine={engine}")) for gpu in ("a100", "h100")
    )
    for users in (1, 16, 64):
        context = users * 1000.0
        assert fast.step_s(users, context, []) < slow.step_s(users, context, [])
        # Of 8,192 tokens: how the host launches a short prompt differs between machines.
        assert fast.step_s(users, context, [(8192, 0)]) < slow.step_s(users, context, [(8192, 0)])


@pytest.mark.parametrize("engine", RELEASES)
@pytest.mark.parametrize("gpu", ["h100", "h200", "a100", "mi300x"])
def test_an_old_release_is_not_slow_with_dense_models_for_what_others_took(
    engine: str, gpu: str
) -> None:
    """Launching kernels one by one is slow with all of them: vLLM before 0.3, and nothing since."""
    if engine == "vllm,version=0.2.7":
        return
    name = engine.partition(",")[0]
    old, new = (
        StepModel(parse_worker(f"llama-3.1-8b@1x{gpu}/engine={each}")) for each in (engine, name)
    )
    assert old.step_s(1, 500.0, []) < 2 * new.step_s(1, 500.0, [])


def test_what_latent_attention_took_once_is_a_time_of_its_layers() -> None:
    """DeepSeek-R1 took two to three times as long with the releases of early 2025 as with later
    ones."""
    for engine, old in (("vllm", "0.7.3"), ("sglang", "0.4.3")):
        then, now = (
            StepModel(parse_worker(f"deepseek-r1@8xh200/tp8,engine={engine}{version}"))
            for version in (f",version={old}", "")
        )
        assert then.step_s(4, 4 * 3600.0, []) > 2 * now.step_s(4, 4 * 3600.0, [])


def test_an_era_and_a_gpu_that_were_measured_apart() -> None:
    apart, era, gpu = (
        profile_of(parse_worker(f"llama-3.1-8b@1x{text}"))
        for text in ("a100/version=0.7.3", "gaudi3/version=0.7.3", "h100/version=0.7.3")
    )
    assert (apart.name, apart.provenance.rows) == ("vllm-v0-ampere", 0)
    assert era.architecture == "*"
    assert gpu.provenance.rows > 0
    # Both shares are known: surer than of a GPU that nothing is known of, less than where some are
    # of both.
    widths = [np.trace(np.array(each.covariance)) for each in (gpu, apart, era)]
    assert widths == sorted(widths)


@pytest.mark.parametrize(
    ("deployment", "what"),
    [
        ("llama-3.1-8b@1xh100", ""),  # with the releases before, and there is little between them
        ("llama-3.1-8b@1xh100/version=0.5.4", ""),
        (
            "qwen3-30b-a3b@1xh100/version=0.5.4",
            "vllm 0.5.4 with mixture-of-experts models on hopper",
        ),
        ("llama-3.1-8b@8xmi300x/tp8,version=0.7.3", "vllm 0.7.3 with dense models on cdna 3"),
        ("deepseek-r1@8xmi300x/tp8,version=0.7.3", ""),
        ("llama-3.1-8b@1xb200/engine=sglang", "sglang of today with dense models on blackwell"),
        ("llama-3.1-8b@1xa100/version=0.5.4", "vllm 0.5.4 on ampere"),
        ("llama-3.1-8b@1xa100/engine=sglang", "sglang on ampere"),
        ("llama-3.1-8b@1xh100/engine=llama.cpp", "llama.cpp on hopper"),
        ("llama-3.1-8b@1xmi300x", "vllm of today on cdna 3"),
        ("llama-3.1-8b@1xgaudi3", "vllm on gaudi 3"),
        ("llama-3.1-8b@1xh800", ""),
        ("llama-3.1-8b@1xh20", "vllm on hopper h20"),
        ("deepseek-r1@8xh20-141gb/engine=sglang", "sglang on hopper h20"),
        (
            "llama-3.1-8b@1xl4",
            "vllm on ada pcie but for 1",
        ),  # and that is of a board with six times its power
        ("llama-3.1-8b@1xrtx-5090", "vllm on blackwell pcie but for 3"),
    ],
)
def test_a_kind_of_model_that_was_not_measured_is_told(deployment: str, what: str) -> None:
    deployed = parse_worker(deployment)
    assert unmeasured(deployed, profile_of(deployed)) == what


def test_a_version_that_is_no_number_is_the_newest() -> None:
    plain, nightly = (
        f"llama-3.1-8b@1xh100/engine=sglang{version}"
        for version in ("", ",version=nightly-20260216")
    )
    assert rules_of(parse_worker(nightly)).era == rules_of(parse_worker(plain)).era != "0.4"


def test_blackwells_are_one_architecture() -> None:
    gpus = {
        architecture_of(parse_worker(f"llama-3.1-8b@1x{name}").gpu)
        for name in ("b200", "b300", "gb200", "gb300")
    }
    assert gpus == {"blackwell"}
    assert architecture_of(parse_worker("llama-3.1-8b@1xrtx-pro-6000").gpu) != "blackwell"


def test_a_group_s_experts_take_what_all_ranks_bring() -> None:
    """One rank's prompt among decodes of seven others costs its own attention, and an eighth of it
    in the experts."""
    model = model_of("deepseek-v3@8xh200/tp1,dp8,ep8,attention-dp,engine=sglang")
    prompt, decodes, context = [(8192, 0)], 16, 16 * 2048
    all_bring_one = model.step_s(decodes, context, prompt)
    one_brings_it = model.step_s(decodes, context, prompt, -(-(8192 + 8 * decodes) // 8))
    assert model.step_s(decodes, context, prompt, 8192 + decodes) == all_bring_one
    assert model.step_s(decodes, context, []) < one_brings_it < all_bring_one
    assert model.step_s(decodes, context, []) < model.step_s(decodes, context, [], 8192)
    alone = model_of("deepseek-v3@8xh200/tp8,engine=sglang")
    assert alone.step_s(decodes, context, prompt, 1) == alone.step_s(decodes, context, prompt)


def test_on_a_machine_that_no_fit_has_seen_more_remains() -> None:
    profile = profile_of(parse_worker("llama-3.1-8b@1xh100"))
    seen, unseen = (
        remaining(profile, next(iter(profile.provenance.sources))),
        remaining(profile, "somebody's blog"),
    )
    assert seen == profile.residual
    assert unseen == remaining(profile)
    for name, least in ELSEWHERE.items():
        assert unseen[name] == max(least, profile.residual[name])
    assert unseen["tpot"] > seen["tpot"]
    own = msgspec.structs.replace(profile, name="mine")
    assert remaining(own) == profile.residual
    cpu = profile_of(parse_worker("llama-3.1-8b@1xcpu/engine=llama.cpp"))
    assert remaining(cpu) == cpu.residual


def test_a_family_of_models_has_what_the_fit_has_learned_of_it() -> None:
    engine, no_fit = "@8xh200/tp8,engine=sglang", "qwen3-8b@8xh200/tp8,engine=sglang"
    shares = profile_of(parse_worker("llama-3.1-8b@1xgaudi3/engine=transformers")).family_shares
    of_none = profile_of(parse_worker(no_fit), published=True)
    for name, family in (("deepseek-r1", "deepseek-v3"), ("llama-3.3-70b", "llama-70b")):
        mine = profile_of(parse_worker(f"{name}{engine}"), published=True)
        assert np.allclose(np.array(mine.logarithms) - of_none.logarithms, shares[family])
        # Where the family is held out there is none of it.
        assert mine.held_out == of_none.held_out
    hosts = [NAMES.index(name) for name in HOST]
    assert np.abs([np.array(share)[hosts] for share in shares.values()]).max() < 0.01


def test_users_are_told_nothing_of_the_clients_of_public_measurements() -> None:
    """A prompt alone on an H200 waited 3 ms beside its prefill; public figures have 17."""
    front = [NAMES.index(name) for name in ("request_s", "request_token_s", "stream_s")]
    worker = parse_worker("llama-3.1-8b@1xh200/engine=vllm,version=0.26.0")
    ours, public = (profile_of(worker, published=published) for published in (False, True))
    prompt = np.array([1.0, 1024.0, 1.0])
    assert prompt @ ours.values()[front] == pytest.approx(0.0028, rel=0.1)
    assert prompt @ public.values()[front] > 0.015
    same = [number for number in range(len(NAMES)) if number not in front]
    assert (ours.values()[same] == public.values()[same]).all()
    for engine in ("sglang", "tensorrt-llm"):
        found = profile_of(parse_worker(f"llama-3.1-8b@1xh200/engine={engine}"))
        assert 0.001 < found.values()[front[0]] < 0.02
    old = parse_worker("llama-2-70b@8xh100/tp8,engine=vllm,version=0.2.7")
    assert profile_of(old) == profile_of(old, published=True)


def test_an_unmeasured_architecture_of_amd_is_timed_like_the_measured_one() -> None:
    near, far = (
        profile_of(parse_worker(f"llama-3.1-8b@1x{gpu}/version=0.10.0"))
        for gpu in ("mi300x", "mi355x")
    )
    assert far.logarithms == near.logarithms
    assert np.trace(far.covariance) >= np.trace(near.covariance)
    assert far.residual["ttft"] >= near.residual["ttft"]
    gaudi, h100 = (profile_of(parse_worker(f"llama-3.1-8b@1x{gpu}")) for gpu in ("gaudi3", "h100"))
    assert gaudi.logarithms != h100.logarithms
