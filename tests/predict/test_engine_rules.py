"""How engines schedule by default, by release; and the longest context that each takes."""

from __future__ import annotations

from typing import Any

import pytest

from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.core.errors import InputError
from loadstone.predict.calibrate.deployments import schedulers_of, with_arguments
from loadstone.predict.calibrate.points import Point
from loadstone.predict.calibrate.scripts import Arguments, arguments_of
from loadstone.predict.engine_rules import rules_of
from loadstone.predict.engine_rules.sglang import KEEP_FREE
from loadstone.predict.engine_rules.vllm import Vllm
from loadstone.predict.scheduler import EnginePolicy, policy_of


def habits(deployment: str) -> EnginePolicy:
    return policy_of(parse_deployment(deployment))


@pytest.mark.parametrize(
    ("deployment", "order", "chunked", "budget"),
    [
        ("llama-3.1-8b@1xh100", "mixed", True, 8192),
        ("llama-3.1-8b@1xh100/version=0.8.1", "mixed", True, 8192),
        # A context of 131,072: in pieces, of 512 and later of 2,048 tokens.
        ("llama-3.1-8b@1xh100/version=0.7.3", "mixed", True, 2048),
        ("llama-3.1-8b@1xh100/version=0.6.0", "mixed", True, 512),
        # A shorter one, or before there was that rule: whole, and a step has room for the longest.
        ("llama-3.1-8b@1xh100/version=0.7.3,max_model_len=16384", "prefill-first", False, 16384),
        ("llama-3-8b@1xh100/version=0.7.3", "prefill-first", False, 8192),
        ("llama-3.1-8b@1xh100/version=0.5.3,max_model_len=65536", "prefill-first", False, 65536),
        # Latent attention.
        ("deepseek-r1@8xh200/version=0.7.4,max_model_len=65536", "prefill-first", False, 65536),
        ("deepseek-r1@8xh200/version=0.9", "mixed", True, 8192),
        # What is given decides.
        ("llama-3-8b@1xh100/version=0.7.3,enable_chunked_prefill=1", "mixed", True, 2048),
        ("llama-3.1-8b@1xh100/version=0.7.3,enable_chunked_prefill=0", "prefill-first", False, 131072),
        ("llama-3.1-8b@1xh100/enable_chunked_prefill=0,max_model_len=4096", "mixed", False, 4096),
    ],
)
def test_vllm(deployment: str, order: str, chunked: bool, budget: int) -> None:
    found = habits(deployment)
    assert (found.order, found.chunked, found.max_batched_tokens) == (order, chunked, budget)
    assert found.keep_free == 0.0


def test_vllm_caches_prefixes_by_default_since_v1() -> None:
    assert habits("llama-3.1-8b@1xh100").prefix_cache
    assert not habits("llama-3.1-8b@1xh100/version=0.7.3").prefix_cache
    assert habits("llama-3.1-8b@1xh100/version=0.7.3,prefix_caching=1").prefix_cache
    assert not habits("llama-3.1-8b@1xh100/prefix_caching=0").prefix_cache


def test_sglangs_attention_ranks_share_a_chunk_and_a_caution() -> None:
    whole = habits("deepseek-r1@8xh200/tp8,engine=sglang")
    rank = habits("deepseek-r1@8xh200/tp1,dp8,attention-dp,engine=sglang")
    assert whole.order == rank.order == "prefill-first"
    assert (whole.max_batched_tokens, rank.max_batched_tokens) == (8192, 1024)
    assert whole.keep_free == rank.keep_free == 1.0  # lengths are fixed
    before = "engine=sglang,version=0.5.9"
    assert habits(f"deepseek-r1@8xh200/tp8,{before}").keep_free == KEEP_FREE
    rank = habits(f"deepseek-r1@8xh200/tp1,dp8,attention-dp,{before}")
    assert (rank.max_batched_tokens, rank.keep_free) == (1024, pytest.approx(0.3 * KEEP_FREE))
    early = habits("deepseek-r1@8xh200/tp1,dp8,attention-dp,engine=sglang,version=0.4.3")
    assert early.max_batched_tokens == 4096
    asked = "chunked_prefill_size=32768,mem_fraction_static=0.8"
    given = habits(f"deepseek-r1@8xh200/tp1,dp8,attention-dp,engine=sglang,{asked}")
    assert given.max_batched_tokens == 4096


def test_sglangs_chunk_was_once_the_same_on_large_gpus() -> None:
    assert habits("deepseek-r1@8xmi300x/tp8,engine=sglang").max_batched_tokens == 16384
    assert habits("deepseek-r1@8xmi300x/tp8,engine=sglang,version=0.4.2").max_batched_tokens == 8192


def test_tensorrt_llm_takes_whole_prompts_and_its_ranks_may_wait_for_one_another() -> None:
    one = habits("llama-3.1-8b@1xh100/engine=tensorrt-llm")
    assert (one.order, one.chunked, one.keep_free, one.route) == ("mixed", False, 1.0, "round-robin")
    assert habits("llama-3.1-8b@1xh100/engine=tensorrt-llm,enable_chunked_prefill=true").chunked
    ranks = "deepseek-r1@8xh200/tp1,dp8,attention-dp,engine=tensorrt-llm"
    assert (habits(ranks).route, habits(ranks).hold_steps) == ("least-busy", 0)
    assert habits(f"{ranks},timeout_iters=60").hold_steps == 60
    waits = "batch_wait_timeout_iters=20,batch_wait_max_tokens_ratio=0.9,max_num_tokens=16384"
    alone = habits(f"llama-3.1-8b@1xh100/engine=tensorrt-llm,{waits}")
    assert (alone.gather_steps, alone.gather_tokens) == (20, 14_745)
    assert habits(f"{ranks},{waits}").gather_steps == 0  # balancing takes its place


def test_what_a_sources_script_said_reaches_the_scheduler() -> None:
    sglang = parse_deployment("qwen3-32b@1xb200/engine=sglang")
    said = Arguments(poll_steps=30, max_batched_tokens=4096, max_seqs=77)
    policy = schedulers_of(with_arguments(sglang, said))
    assert (policy.poll_steps, policy.max_batched_tokens, policy.max_seqs) == (30, 4096, 77)
    ranks = parse_deployment("deepseek-r1@8xh200/tp1,dp8,attention-dp,engine=tensorrt-llm")
    assert schedulers_of(with_arguments(ranks, Arguments(hold_steps=60))).hold_steps == 60
    # Without ranks there is nobody to wait for.
    alone = parse_deployment("deepseek-r1@8xh200/tp8,engine=tensorrt-llm")
    assert schedulers_of(with_arguments(alone, Arguments(hold_steps=60))).hold_steps == 0
    gathers = schedulers_of(with_arguments(alone, Arguments(gather_steps=40, gather_share=0.8)))
    assert (gathers.gather_steps, gathers.gather_tokens) == (40, int(0.8 * 8192))


def scripted(**row: Any) -> Arguments:
    point = Point(row=1, source="aiconfigurator silicon_sample.csv", input_tokens=1024, output_tokens=1024, **row)
    return arguments_of(point, "tensorrt-llm", "b200", row.get("tp", 1))


def test_published_scripts_of_tensorrt_llm() -> None:
    llama = scripted(fold="llama-70b", tp=4)
    assert (llama.max_batched_tokens, llama.gather_steps, llama.gather_share) == (16_384, 20, 0.9)
    assert scripted(fold="llama-70b", tp=8).gather_steps is None
    early = scripted(fold="deepseek-v3", precision="fp8", load_value=64.0, engine_version="1.1.0rc2", tp=8)
    assert (early.max_batched_tokens, early.gather_steps) == (1152, None)  # one prompt and 64 decodes, in 64s
    late = scripted(fold="deepseek-v3", precision="fp8", load_value=64.0, engine_version="1.2.0rc6", tp=8)
    assert (late.max_batched_tokens, late.gather_steps) == (8192, 40)
    assert (early.graph_tokens, late.graph_tokens) == (None, 8192)
    assert scripted(fold="deepseek-v3", engine_version="1.3.0rc5").max_batched_tokens == 8192
    assert Arguments() == arguments_of(Point(row=1, source="mine"), "tensorrt-llm", "b200", 1)


@pytest.mark.parametrize(
    ("version", "month", "tp", "drafts"),
    [
        ("1.1.0rc2.post2", "2025-12", 8, None),
        ("1.1.0rc2.post2", "2026-01", 8, 3),
        ("1.2.0rc6.post2", "2026-02", 8, None),
        ("1.2.0rc6.post3", "2026-02", 8, 3),
        ("1.2.0rc6.post3", "2026-02", 1, 1),  # attention data-parallel
    ],
)
def test_scripts_with_multi_token_prediction(version: str, month: str, tp: int, drafts: int | None) -> None:
    row = {"engine_version": version, "notes": f"measured={month}-10", "load_value": 16.0, "tp": tp}
    assert scripted(fold="deepseek-v3", precision="fp8", **row).draft_tokens == drafts


def served(gpu: str, **row: Any) -> Arguments:
    row = {"source": "aiconfigurator silicon_sample.csv", "input_tokens": 1024, "load_value": 4.0, **row}
    point = Point(row=1, gpu=gpu, **row)
    return arguments_of(point, "vllm", gpu.lower(), 4)


def test_published_scripts_of_vllm() -> None:
    assert [served(gpu, fold="llama-70b").graph_tokens for gpu in ("B200", "H200")] == [0, None]
    assert served("H100", fold="gpt-oss").graph_tokens == 2048
    march, april = (
        served("B200", fold="kimi", precision="fp4", notes=f"measured=2026-{month}") for month in ("03", "04")
    )
    assert (march.graph_tokens, march.max_seqs, march.kv_dtype) == (None, 4, None)
    assert (april.graph_tokens, april.max_batched_tokens, april.kv_dtype) == (2048, 2048, "fp8")
    minimax = [served(gpu, fold="minimax", precision="fp8") for gpu in ("B200", "H200", "H100")]
    assert [each.experts_dealt for each in minimax] == [True, True, False]


@pytest.mark.parametrize("wrong", ["enable_chunked_prefill=perhaps", "max_model_len=none"])
def test_an_argument_that_is_none_is_named(wrong: str) -> None:
    with pytest.raises(InputError, match=wrong.partition("=")[2]):
        habits(f"llama-3.1-8b@1xh100/{wrong}")


@pytest.mark.parametrize(
    ("deployment", "tokens"),
    [
        ("llama-3.1-8b@1xh100", 131_072),
        ("llama-3.1-8b@1xh100/max_model_len=8192", 8192),
        ("llama-3.1-8b@1xh100/max_model_len=262144", 131_072),  # an engine refuses more than the model has
        ("llama-3.1-8b@1xh100/engine=tensorrt-llm,max_seq_len=4096", 4096),
        # A request takes one of llama.cpp's slots.
        ("llama-3.1-8b@1xh100/engine=llama.cpp,ctx_size=16384,parallel=8", 2048),
        ("llama-3.1-8b@1xh100/engine=llama.cpp,ctx_size=16384", 4096),
    ],
)
def test_the_longest_context(deployment: str, tokens: int) -> None:
    assert rules_of(parse_deployment(deployment)).context_limit == tokens


def test_whole_prompts_or_pieces_by_context() -> None:
    rules = Vllm(parse_deployment("llama-3.1-8b@1xh100/version=0.6.3"))
    assert not rules.chunks_prompts(32_768)
    assert rules.chunks_prompts(32_769)
