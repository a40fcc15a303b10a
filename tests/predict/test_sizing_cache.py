"""The KV cache's arithmetic on small numbers, and on what vLLM printed for a hybrid."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadstone.engines.sharding.kv_cache import Cache, Group, grouped, pooled
from loadstone.engines.sharding.rank import CacheLayer

GIB = 1 << 30


def test_layers_of_one_kind_share_a_block() -> None:
    # 2 layers of 10 bytes a token, 16 tokens a block: 320 bytes.
    cache = grouped([CacheLayer(2, 10.0)], 16, in_flight_tokens=0, states=1, held_blocks=1)
    assert cache == Cache((Group("full", 16),), 320.0, 0, 1)
    assert cache.blocks(3300) == 10
    assert [cache.request_blocks(n) for n in (1, 16, 17)] == [1, 1, 2]
    # Of 10 blocks one is never given out.
    assert cache.max_context(10, 1000) == 9 * 16
    assert cache.max_context(10, 100) == 100
    assert cache.max_context(10, 1000, requests=4) == 2 * 16
    assert cache.max_context(1, 1000) == 0
    assert cache.concurrency(10, 40) == 10 / 3
    assert cache.tokens(10, 40) == 160


def test_layers_of_different_width_still_share_a_block() -> None:
    cache = grouped([CacheLayer(3, 10.0), CacheLayer(1, 4.0)], 8, 0, 1, 0)
    assert (len(cache.groups), cache.block_bytes) == (1, 8 * 34.0)


def test_a_window_holds_no_more_than_it_sees() -> None:
    cache = grouped([CacheLayer(2, 10.0, 100)], 16, in_flight_tokens=32, states=1, held_blocks=0)
    assert cache.groups == (Group("window", 16, 100),)
    # ⌈(99 + 32) / 16⌉ + 1 at most, ⌈20 / 16⌉ + 1 for a short one.
    assert [cache.request_blocks(n) for n in (20, 131, 10_000)] == [3, 10, 10]
    assert cache.max_context(10, 50_000) == 50_000
    assert cache.max_context(9, 50_000) == 128


def test_full_layers_and_windows_are_dealt_into_groups_of_equal_size() -> None:
    # 10 full and 20 windows: groups of ten.
    cache = grouped([CacheLayer(10, 4.0), CacheLayer(20, 4.0, 64)], 16, 0, 1, 0)
    assert [group.kind for group in cache.groups] == ["full", "window", "window"]
    assert cache.block_bytes == 10 * 16 * 4
    # 12 windows and 13 full: less than half as many again, so all are padded to 13.
    cache = grouped([CacheLayer(13, 4.0), CacheLayer(12, 4.0, 64)], 16, 0, 1, 0)
    assert ([group.kind for group in cache.groups], cache.block_bytes) == (
        ["full", "window"],
        13 * 16 * 4,
    )


def test_smaller_pages_get_longer_blocks() -> None:
    cache = grouped([CacheLayer(4, 8.0), CacheLayer(4, 4.0, 64)], 16, 0, 1, 0)
    assert cache.groups == (Group("full", 16), Group("window", 32, 64))
    # Where that does not come out even, pages are padded: both groups cost the larger page.
    cache = grouped([CacheLayer(4, 8.0), CacheLayer(4, 5.0, 64)], 16, 0, 1, 0)
    assert (cache.groups[1].block_tokens, cache.block_bytes) == (16, 4 * 16 * 8)


def test_states_lengthen_attentions_blocks_until_they_fit() -> None:
    # A state of 1000 bytes, 10 bytes a token: 100 tokens, in steps of 16: 112, a page of 1120.
    cache = grouped(
        [CacheLayer(2, 10.0), CacheLayer(6, 0.0, None, 1000.0)], 16, 0, states=2, held_blocks=0
    )
    assert cache.groups == (Group("full", 112), *[Group("state", 112, states=2)] * 3)
    assert cache.block_bytes == 2 * 1120
    assert cache.request_blocks(200) == 2 + 3 * 2


def test_a_hybrid_is_cut_as_vllm_cut_it() -> None:
    """noonghunna/club-3090 issue 612: vLLM 0.24, Qwen3.6-35B-A3B, fp8 KV, 5.98 GiB of room: 567,978
    tokens, 4.33x.

    10 layers of attention with 2 KV heads of 256, 30 gated-delta layers whose state is 32 heads of
    128×128 in fp32 and 3 inputs of 8192 channels in bf16.
    """
    layers = [
        CacheLayer(10, 2 * 2 * 256.0),
        CacheLayer(30, 0.0, None, 32 * 128 * 128 * 4 + 3 * 8192 * 2.0),
    ]
    cache = grouped(layers, 16, in_flight_tokens=8192, states=2, held_blocks=0)
    blocks = cache.blocks(5.98 * GIB)
    assert f"{cache.concurrency(blocks, 131_072):.2f}" == "4.33"
    assert cache.tokens(blocks, 131_072) == 567_978


def test_pools_are_sized_in_proportion() -> None:
    cache = pooled([CacheLayer(2, 10.0), CacheLayer(2, 10.0, 128)], 1, 0.8)
    assert cache.block_bytes == 20 + 0.8 * 20
    assert cache.blocks(3600) == 100
    assert pooled([CacheLayer(2, 10.0, 128)], 4).block_bytes == 80
    # Of 100 tokens and 80 of windows: within a window that pool runs out first, of 200 tokens the
    # other.
    assert cache.request_blocks(80) == 100
    assert [cache.holds(100, 40, requests) for requests in (2, 3)] == [True, False]
    assert cache.request_blocks(200) == 200
    assert pooled([CacheLayer(2, 10.0), CacheLayer(2, 10.0, 128)], 1).request_blocks(80) == 80


def test_what_keeps_nothing_of_its_tokens_has_no_limit() -> None:
    assert grouped([], 16, 0, 1, 0).max_context(0, 5000) == 5000
    assert grouped([], 16, 0, 1, 0).concurrency(1, 5000) == math.inf
    assert pooled([CacheLayer(2, 0.0, None, 100.0)], 1).groups == ()


@given(
    st.integers(0, 10_000),
    st.integers(1, 100_000),
    st.integers(1, 40),
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 64), st.none() | st.integers(1, 5000)),
        min_size=1,
        max_size=4,
    ),
)
def test_the_longest_context_fits_and_one_token_more_does_not(
    blocks: int, limit: int, requests: int, layers: list[tuple[int, int, int | None]]
) -> None:
    cache = grouped(
        [CacheLayer(n, float(size), window) for n, size, window in layers], 16, 64, 2, 1
    )
    longest = cache.max_context(blocks, limit, requests)
    assert 0 <= longest <= limit
    assert longest == 0 or cache.holds(blocks, longest, requests)
    assert longest == limit or not cache.holds(blocks, longest + 1, requests)


@pytest.mark.parametrize("kv_bytes", [-1.0, 0.0, 319.0])
def test_no_room_is_no_block(kv_bytes: float) -> None:
    assert grouped([CacheLayer(2, 10.0)], 16, 0, 1, 0).blocks(kv_bytes) == 0
