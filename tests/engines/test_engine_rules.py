"""How engines schedule by default, by release; and the longest context that each takes."""

from __future__ import annotations

import pytest

from loadstone.catalogue.deployment.shorthand import parse_worker
from loadstone.core.errors import InputError
from loadstone.engines import rules_of
from loadstone.engines.sglang import KEEP_FREE
from loadstone.engines.vllm import Vllm
from loadstone.predict.scheduler import EnginePolicy, policy_of


def habits(deployment: str) -> EnginePolicy:
    return policy_of(parse_worker(deployment))


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
        (
            "llama-3.1-8b@1xh100/version=0.7.3,enable_chunked_prefill=0",
            "prefill-first",
            False,
            131072,
        ),
        ("llama-3.1-8b@1xh100/enable_chunked_prefill=0,max_model_len=4096", "mixed", False, 8192),
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
    assert (one.order, one.chunked, one.keep_free, one.route) == (
        "mixed",
        False,
        1.0,
        "round-robin",
    )
    assert habits("llama-3.1-8b@1xh100/engine=tensorrt-llm,enable_chunked_prefill=true").chunked
    ranks = "deepseek-r1@8xh200/tp1,dp8,attention-dp,engine=tensorrt-llm"
    assert (habits(ranks).route, habits(ranks).hold_steps) == ("least-busy", 0)
    assert habits(f"{ranks},timeout_iters=60").hold_steps == 60
    waits = "batch_wait_timeout_iters=20,batch_wait_max_tokens_ratio=0.9,max_num_tokens=16384"
    alone = habits(f"llama-3.1-8b@1xh100/engine=tensorrt-llm,{waits}")
    assert (alone.gather_steps, alone.gather_tokens) == (20, 14_745)
    assert habits(f"{ranks},{waits}").gather_steps == 0  # balancing takes its place


def test_what_a_script_gave_reaches_the_scheduler() -> None:
    asked = "scheduler_recv_interval=30,chunked_prefill_size=4096,max_running_requests=77"
    policy = habits(f"qwen3-32b@1xb200/engine=sglang,{asked}")
    assert (policy.poll_steps, policy.max_batched_tokens, policy.max_seqs) == (30, 4096, 77)
    # Without ranks there is nobody to wait for.
    assert habits("deepseek-r1@8xh200/tp8,engine=tensorrt-llm,timeout_iters=60").hold_steps == 0
    waits = "batch_wait_timeout_iters=40,batch_wait_max_tokens_ratio=0.8"
    gathers = habits(f"deepseek-r1@8xh200/tp8,engine=tensorrt-llm,{waits}")
    assert (gathers.gather_steps, gathers.gather_tokens) == (40, int(0.8 * 8192))


@pytest.mark.parametrize("wrong", ["enable_chunked_prefill=perhaps", "max_model_len=none"])
def test_an_argument_that_is_none_is_named(wrong: str) -> None:
    with pytest.raises(InputError, match=wrong.partition("=")[2]):
        habits(f"llama-3.1-8b@1xh100/{wrong}")


@pytest.mark.parametrize(
    ("deployment", "tokens"),
    [
        ("llama-3.1-8b@1xh100", 131_072),
        ("llama-3.1-8b@1xh100/max_model_len=8192", 8192),
        (
            "llama-3.1-8b@1xh100/max_model_len=262144",
            131_072,
        ),  # an engine refuses more than the model has
        ("llama-3.1-8b@1xh100/engine=tensorrt-llm,max_seq_len=4096", 4096),
        # A request takes one of llama.cpp's slots.
        ("llama-3.1-8b@1xh100/engine=llama.cpp,ctx_size=16384,parallel=8", 2048),
        ("llama-3.1-8b@1xh100/engine=llama.cpp,ctx_size=16384", 4096),
    ],
)
def test_the_longest_context(deployment: str, tokens: int) -> None:
    assert rules_of(parse_worker(deployment)).context_limit == tokens


def test_whole_prompts_or_pieces_by_context() -> None:
    rules = Vllm(parse_worker("llama-3.1-8b@1xh100/version=0.6.3"))
    assert not rules.chunks_prompts(32_768)
    assert rules.chunks_prompts(32_769)
