"""What products reach of a data sheet where kernel tables know better than the coefficients."""

from __future__ import annotations

import numpy as np
import pytest

from loadstone.catalogue import gpu, gpus
from loadstone.catalogue.deployment.shorthand import parse_worker
from loadstone.engines import ENGINES
from loadstone.predict.step_time import StepModel
from loadstone.predict.step_time.boards import (
    architecture_of,
    board_efficiency,
    floor_of,
    ring_of,
    widened,
    widening_of,
)
from loadstone.predict.step_time.coefficients import INDEX, PRIOR
from loadstone.predict.step_time.formulas import body_seconds
from loadstone.predict.step_time.operators import COLLECTIVE, GEMM, HEAD, idealise
from loadstone.predict.step_time.profile import prior_profile
from loadstone.predict.step_time.work import work_of


def prompt_s(deployment: str) -> float:
    return StepModel(parse_worker(deployment), prior_profile()).step_s(0, 0, [(8192, 0)])


def test_what_the_coefficients_were_fitted_on_is_left_to_them() -> None:
    for each in gpus():
        if architecture_of(each).split()[0] in ("ampere", "hopper", "cdna") or each.name in (
            "b200",
            "b300",
            "gb200",
        ):
            reach = board_efficiency(each)
            assert {*reach.compute, *reach.memory, floor_of(each)} == {1.0}, each.name


def test_a_board_reaches_what_its_tables_say() -> None:
    assert board_efficiency(gpu("l40s")).compute[0] * 0.75 == pytest.approx(
        0.58, abs=0.01
    )  # of its peak, in 16 bits
    work = work_of(parse_worker("llama-3.1-8b:fp8@1xrtx-pro-6000/engine=vllm"))
    head, products = work.operators.kind == HEAD, work.operators.kind == GEMM
    assert set(work.operators.efficiency_compute[head]) == {1.07}
    assert set(work.operators.efficiency_compute[products]) == {1.22}
    assert work.products[0] == pytest.approx(
        0.75 * work_of(parse_worker("llama-3.1-8b:fp8@1xh100")).products[0]
    )


def test_widened_weights_are_read_faster_and_multiplied_slower_on_ampere() -> None:
    wide, narrow = "llama-3.1-8b@1xa100/engine=vllm", "llama-3.1-8b:fp8@1xa100/engine=vllm"
    assert prompt_s(narrow) / prompt_s(wide) == pytest.approx(1 / 0.6, rel=0.1)
    model, other = (StepModel(parse_worker(each), prior_profile()) for each in (wide, narrow))
    assert other.step_s(1, 1024, []) < 0.7 * model.step_s(1, 1024, [])
    assert widened(gpu("a100-pcie"), ENGINES["sglang"]) == 0.6
    assert {
        widened(gpu("a100"), ENGINES["tensorrt-llm"]),
        widened(gpu("h100"), ENGINES["vllm"]),
        widened(gpu("a10"), ENGINES["vllm"]),
    } == {1.0}


@pytest.mark.parametrize(
    ("name", "engine", "share"),
    [
        ("l40s", "vllm", 1.0),
        ("rtx-4090", "llama.cpp", 1.0),
        ("a100", "sglang", 1.0),
        ("h100-pcie", "vllm", 0.82),
        ("b200", "vllm", 0.53),
        ("rtx-4090", "tensorrt-llm", 1.0),
    ],
)
def test_four_bits_that_are_widened_are_read_like_sixteen(
    name: str, engine: str, share: float
) -> None:
    def reading(weights: str) -> tuple[int, float]:
        ops = work_of(parse_worker(f"llama-3.1-8b:{weights}@1x{name}/engine={engine}")).operators
        at = np.flatnonzero(ops.kind == GEMM)[0]
        return int(ops.memory[at]), float(ops.efficiency_memory[at])

    sixteen, four = reading("bf16"), reading("int4")
    assert four == (sixteen[0], pytest.approx(share * sixteen[1]))


def test_four_bits_of_other_kernels_have_the_rate_of_the_gpus_that_multiply_them() -> None:
    for text in ("1xa100/engine=llama.cpp", "1xmi300x/engine=vllm", "1xh100/engine=tensorrt-llm"):
        ops = work_of(parse_worker(f"llama-3.1-8b:int4@{text}")).operators
        assert set(ops.memory[ops.kind == GEMM]) == {2}
    ops = work_of(parse_worker("llama-3.1-8b:nvfp4@1xrtx-5090")).operators
    assert set(ops.memory[ops.kind == GEMM]) == {2}


@pytest.mark.parametrize("weights", ["bf16", "fp8", "int8", "int4", "nvfp4"])
def test_a_card_with_more_of_everything_is_not_slower(weights: str) -> None:
    """The chip decides, whose tables and coefficients the card has: neither memory nor products are
    fewer."""

    def step_s(name: str, engine: str, prompt: int) -> float:
        text = f"llama-3.1-8b:{weights}@1x{name}/engine={engine}"
        model = StepModel(parse_worker(text))
        return model.step_s(32, 32 * 1024, [(prompt, 0)] if prompt else [])

    for engine in ("vllm", "sglang"):
        for small, large in (
            ("rtx-5090", "rtx-pro-6000"),
            ("h100-pcie", "h100"),
            ("a100-40gb", "a100"),
            ("a100-pcie", "a100"),
            ("h200-nvl", "h200"),
        ):
            for prompt in (0, 2048):
                assert step_s(large, engine, prompt) <= 1.001 * step_s(small, engine, prompt), (
                    large,
                    engine,
                    prompt,
                )


def test_the_speed_of_light_is_the_data_sheets() -> None:
    light = idealise(work_of(parse_worker("llama-3.1-8b:int4@1xa100/engine=vllm")))
    assert np.all(light.operators.efficiency_compute == 1)
    assert np.all(light.operators.efficiency_memory == 1)


def test_each_stage_of_a_pipeline_has_a_host() -> None:
    def host_s(pp: int) -> float:
        work = work_of(parse_worker(f"llama-3.1-70b@8xh100/tp{8 // pp},pp{pp},engine=vllm"))
        return float(work.stages[0])

    assert [host_s(pp) for pp in (1, 2, 8)] == [1, 2, 8]
    one = StepModel(parse_worker("llama-3.1-8b@1xh100/engine=vllm"), prior_profile())
    four = StepModel(parse_worker("llama-3.1-8b@4xh100/tp1,pp4,engine=vllm"), prior_profile())
    waited = 300e-6 + 64 * 6e-6  # step_s and sequence_s of the priors
    assert four.step_s(64, 64 * 1000, []) - one.step_s(64, 64 * 1000, []) == pytest.approx(
        3 * waited, rel=0.15
    )


def test_an_fp8_cache_is_read_at_the_rate_its_kernel_widens_it() -> None:
    """TB/s of a decode's attention against the tables', at the coefficients that bandwidth alone
    asks for."""

    def read(gpu: str, engine: str, kv: str) -> float:
        deployment = parse_worker(f"llama-3.1-8b@1x{gpu}/engine={engine},kv={kv}")
        values = np.exp(PRIOR)
        values[INDEX["attention_decode"]] = {"h100": 0.86, "h200": 0.82, "b200": 0.80}[gpu]
        _, slope_s = StepModel(deployment, prior_profile(), values=values).decode_line(8)
        return deployment.model.kv_bytes_per_token(kv) / slope_s / 1e12

    for gpu_name, engine, measured in (
        ("h100", "vllm", 2.41), ("h200", "vllm", 2.65), ("b200", "vllm", 5.90),
        ("h100", "sglang", 1.93), ("h200", "sglang", 2.21), ("b200", "sglang", 4.86),
        ("h100", "tensorrt-llm", 2.84), ("h200", "tensorrt-llm", 3.70), ("b200", "tensorrt-llm", 5.89),
    ):  # fmt: skip
        assert read(gpu_name, engine, "fp8") == pytest.approx(measured, rel=0.12), (
            gpu_name,
            engine,
        )
    assert (
        widening_of(gpu("a100"), ENGINES["vllm"]) == widening_of(gpu("l40s"), ENGINES["vllm"]) == 0
    )
    assert (
        idealise(work_of(parse_worker("llama-3.1-8b@1xh200/engine=vllm,kv=fp8"))).widening[0] == 0
    )


def test_ranks_without_nvlink_wait_for_one_another() -> None:
    """An all-reduce of 16-bit numbers against the tables, at the coefficients of the fit."""

    def all_reduce_s(gpu: str, ranks: int, numbers: int) -> float:
        deployment = parse_worker(f"llama-3.1-70b:fp8@{ranks}x{gpu}/tp{ranks},engine=vllm")
        work = work_of(deployment)
        values = np.exp(PRIOR)[None, :].copy()
        values[0, INDEX["collective_s"]], values[0, INDEX["collective_link"]] = 7.1e-6, 0.47
        tokens = np.array([numbers / deployment.model.hidden])
        others = work.with_operators(
            layers=np.where(work.operators.kind == COLLECTIVE, 0.0, work.operators.layers)
        )
        spent = body_seconds(work, values, tokens) - body_seconds(others, values, tokens)
        return float(spent[0] / work.operators.layers[work.operators.kind == COLLECTIVE].sum())

    for name, ranks, numbers, measured in (
        ("l40s", 2, 65_536, 11.1e-6), ("l40s", 2, 16_777_216, 1.78e-3),
        ("rtx-pro-6000", 4, 16_777_216, 1.79e-3), ("rtx-pro-6000", 4, 16_384, 15.8e-6),
        ("rtx-pro-6000", 8, 16_777_216, 2.55e-3),
    ):  # fmt: skip
        assert all_reduce_s(name, ranks, numbers) == pytest.approx(measured, rel=0.25), (
            name,
            ranks,
            numbers,
        )
    nodes = {4: (2.45e-3, 13.9e-3), 8: (2.86e-3, 31.5e-3)}  # the two that were measured
    for ranks, (best, worst) in nodes.items():
        assert best < all_reduce_s("l40s", ranks, 16_777_216) < worst
    assert ring_of(gpu("h100"), 8) == ring_of(gpu("mi210"), 4) == (0.0, 1.0)
    assert ring_of(gpu("l4"), 3) == ring_of(gpu("l4"), 4)
    assert ring_of(gpu("l4"), 16) == ring_of(gpu("l4"), 8)


def test_geforce_cards_reach_one_another_through_the_host() -> None:
    """Milliseconds that tensor parallelism leaves for all-reduces, as two users of RTX 3090
    measured."""

    def step_s(name: str, tp: int) -> float:
        text = f"qwen3-32b:int4@{tp}x{name}/tp{tp},engine=vllm"
        return StepModel(parse_worker(text)).step_s(1, 1024, [])

    def spent_s(name: str, tp: int) -> float:
        work = work_of(parse_worker(f"qwen3-32b:int4@{tp}x{name}/tp{tp},engine=vllm"))
        found = work.operators.kind == COLLECTIVE
        return float(work.operators.floor[found].mean())

    assert [round(spent_s("rtx-3090", tp) * 1e6) for tp in (2, 4, 8)] == [33, 41, 57]
    assert spent_s("rtx-4090", 4) == spent_s("rtx-5090", 4) > 4 * spent_s("l40s", 4)
    assert step_s("rtx-3090", 2) < step_s("rtx-3090", 1) < 1.7 * step_s("rtx-3090", 2)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_an_fp8_cache_of_latent_attention_is_multiplied_as_it_is_on_blackwell(engine: str) -> None:
    def context_s(name: str, kv: str) -> float:
        text = f"deepseek-r1@8x{name}/dp8,ep8,attention-dp,kv={kv},engine={engine}"
        return StepModel(parse_worker(text), prior_profile()).decode_line(8)[1]

    # Tables of 128 heads: B200 takes 0.58 of the time of a 16-bit cache, H200 0.9.
    assert context_s("b200", "fp8") / context_s("b200", "bf16") == pytest.approx(0.5, abs=0.08)
    assert context_s("h200", "fp8") > 0.85 * context_s("h200", "bf16")
