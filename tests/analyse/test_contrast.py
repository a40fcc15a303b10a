"""What engines have left behind, for contrast: batches that are let in together, and a cache that
is not paged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import loadstone
from loadstone.catalogue import parse_worker
from loadstone.core.errors import InputError
from loadstone.predict.scheduler import policy_of
from loadstone.predict.sizing.memory import engine_limits, max_context
from loadstone.predict.sizing.size import size

MODEL = "llama-3.1-8b@1xh100"
ENGINES = ["vllm", "sglang", "tensorrt-llm"]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_all_do_can_be_said(engine: str) -> None:
    plain = policy_of(parse_worker(f"{MODEL}/engine={engine}"))
    assert (
        policy_of(parse_worker(f"{MODEL}/engine={engine},batching=continuous,kv_cache=paged"))
        == plain
    )
    assert (plain.order != "static", plain.reserved_tokens) == (True, None)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_static_batch_has_the_engines_places_and_cache(engine: str) -> None:
    plain, static = (
        policy_of(parse_worker(f"{MODEL}/engine={engine}{more}"))
        for more in ("", ",batching=static")
    )
    assert static.order == "static"
    assert (static.kv_blocks, static.max_seqs, static.route) == (
        plain.kv_blocks,
        plain.max_seqs,
        plain.route,
    )
    assert (static.poll_steps, static.hold_steps, static.gather_steps) == (0, 0, 0)


def test_each_request_reserves_the_longest_that_there_may_be() -> None:
    asked = parse_worker(f"{MODEL}/kv_cache=reserved,max_model_len=2048")
    policy = policy_of(asked)
    assert policy.reserved_tokens == 2048
    assert not policy.prefix_cache  # nothing is kept in blocks that others could find
    whole = parse_worker(f"{MODEL}/kv_cache=reserved")
    assert policy_of(whole).reserved_tokens == max_context(whole) == 131_072
    # Where the model's context is more than the cache, the cache is what one request reserves.
    small = parse_worker("llama-3.1-8b@1xrtx-4090/kv_cache=reserved")
    assert policy_of(small).reserved_tokens == max_context(small) < 131_072
    # A virtual engine has but its part of it.
    few = "gpu_memory_utilization=0.3"
    virtual = policy_of(
        parse_worker(f"llama-3.1-8b@2xh100/tp1,pp2,version=0.7.3,{few},kv_cache=reserved")
    )
    assert virtual.reserved_tokens == virtual.kv_tokens < 131_072


def test_a_pipelines_stages_have_no_static_batches() -> None:
    with pytest.raises(
        InputError, match="static batches do not share a pipeline's stages; leave pp out"
    ):
        policy_of(parse_worker("llama-3.1-70b@4xh100/tp2,pp2,batching=static"))


def test_fewer_are_held_at_once_where_each_reserves() -> None:
    paged, reserved = (
        size(parse_worker(f"{MODEL}{more}"), 2048, 32)
        for more in ("", "/kv_cache=reserved,max_model_len=8192")
    )
    tokens = engine_limits(parse_worker(MODEL)).kv_tokens
    assert paged.max_concurrent_requests == tokens // 2048
    assert reserved.max_concurrent_requests == tokens // 8192
    assert reserved.kv_bytes == 4 * paged.kv_bytes
    assert (paged.fits, reserved.fits, reserved.max_context_tokens) == (True, True, 8192)
    crowd = size(parse_worker(f"{MODEL}/kv_cache=reserved"), 2048, 32)
    assert (crowd.fits, crowd.max_context_tokens, crowd.max_concurrent_requests) == (
        False,
        0,
        tokens // 131_072,
    )
    assert "a shorter max_model_len reserves less" in crowd.why


# --- in a run -------------------------------------------------------------------------------------


def simulated(tmp_path: Path, more: str) -> Any:
    done = loadstone.simulate(
        f"{MODEL}/max_num_seqs=32,max_model_len=8192{more}", concurrency="32", input="512", output="128",
        range_ratio="0.2", requests=256, out=tmp_path, draws=0,
    ).document()  # fmt: skip
    return done["cells"][0]["metrics"]


def test_static_batches_wait_for_their_longest(tmp_path: Path) -> None:
    continuous, static = (simulated(tmp_path, more) for more in ("", ",batching=static"))
    assert static["output_tokens_per_s"] < 0.85 * continuous["output_tokens_per_s"]
    assert static["ttft_s"]["p50"] > 10 * continuous["ttft_s"]["p50"]
    assert static["tpot_s"]["p50"] < continuous["tpot_s"]["p50"]  # no prompts come between


def test_a_reserved_cache_keeps_requests_out(tmp_path: Path) -> None:
    crowded = ",gpu_memory_utilization=0.4"
    paged, reserved = (simulated(tmp_path, crowded + more) for more in ("", ",kv_cache=reserved"))
    assert reserved["output_tokens_per_s"] < 0.85 * paged["output_tokens_per_s"]
    assert reserved["ttft_s"]["p50"] > 2 * paged["ttft_s"]["p50"]
