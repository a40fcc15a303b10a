"""Which steps run as CUDA graphs, by engine."""

from __future__ import annotations

import pytest

from loadstone.catalogue.deployment.shorthand import parse_worker
from loadstone.core.errors import InputError
from loadstone.engines import rules_of
from loadstone.predict.step_time.step import StepModel

DENSE, LATENT = "llama-3.1-70b:fp8@4xb200/tp4", "deepseek-r1:fp8@8xb200/tp8"
SEEING = "qwen3.5-397b-a17b:fp8@8xb200/tp8"


@pytest.mark.parametrize(
    ("deployment", "tokens"),
    [
        (f"{DENSE},engine=vllm", 512),
        (f"{DENSE},engine=vllm,max_num_seqs=4", 8),
        (f"{DENSE},engine=vllm,max_cudagraph_capture_size=2048", 2048),
        (f"{DENSE},engine=vllm,max_cudagraph_capture_size=2048,max_num_batched_tokens=1024", 1024),
        (f"{DENSE},engine=vllm,cudagraph_mode=FULL_DECODE_ONLY", 0),
        (f"{DENSE},engine=vllm,cudagraph_mode=PIECEWISE", 512),
        (f"{DENSE},engine=vllm,enforce_eager=1", 0),
        (f"{DENSE},engine=vllm,version=0.7.3", 0),
        (f"{DENSE},engine=sglang,version=0.5.9", 0),
        (f"{DENSE},engine=sglang,version=0.5.10,chunked_prefill_size=4096", 4096),
        (f"{DENSE},engine=sglang,piecewise_cuda_graph_max_tokens=1024", 1024),
        (f"{DENSE},engine=sglang,disable_piecewise_cuda_graph=1", 0),
        (f"{LATENT},engine=sglang", 2048),
        (f"{LATENT},engine=sglang,version=0.5.12", 2048),
        (f"{LATENT},engine=sglang,num_speculative_tokens=2", 0),
        ("deepseek-r1:fp8@8xmi300x/tp8,engine=sglang", 0),
        (f"{LATENT},ep8,engine=sglang", 0),
        ("deepseek-r1:fp8@8xb200/tp1,dp8,attention-dp,engine=sglang", 0),
        (f"{SEEING},engine=sglang", 0),
        (f"{DENSE},engine=tensorrt-llm", 0),
        (f"{DENSE},engine=tensorrt-llm,capture_num_tokens=8192", 8192),
        (f"{DENSE},engine=transformers", 0),
    ],
)
def test_the_largest_step_with_prompts(deployment: str, tokens: int) -> None:
    assert rules_of(parse_worker(deployment)).graph_tokens == tokens


def test_arguments_that_are_none_are_told() -> None:
    with pytest.raises(
        InputError, match="cudagraph_mode=maybe: vllm has no such value; use NONE, FULL_DECODE"
    ):
        StepModel(parse_worker(f"{DENSE},engine=vllm,cudagraph_mode=maybe"))
    with pytest.raises(
        InputError, match="--max-cudagraph-capture-size: 'many' is not a whole number"
    ):
        StepModel(parse_worker(f"{DENSE},engine=vllm,max_cudagraph_capture_size=many"))


def test_decode_steps() -> None:
    assert rules_of(parse_worker(f"{DENSE},engine=vllm,version=0.2")).is_eager
    assert rules_of(parse_worker(f"{DENSE},engine=vllm,cudagraph_mode=NONE")).is_eager
    assert not rules_of(
        parse_worker(f"{DENSE},engine=vllm,cudagraph_mode=FULL_DECODE_ONLY")
    ).is_eager


def test_prompts_beyond_the_graphs_wait_for_their_launches() -> None:
    """A prompt of 600 tokens takes longer where graphs end at 512, one of 500 does not."""
    short, long = (
        StepModel(parse_worker(f"{DENSE},engine=vllm,max_cudagraph_capture_size={size}"))
        for size in (512, 2048)
    )
    assert short.step_s(0, 0, [(500, 0)]) == long.step_s(0, 0, [(500, 0)])
    assert short.step_s(0, 0, [(600, 0)]) > 1.05 * long.step_s(0, 0, [(600, 0)])
    # Decodes take places in the graph too.
    assert short.step_s(20, 20_000, [(500, 0)]) > 1.05 * long.step_s(20, 20_000, [(500, 0)])
