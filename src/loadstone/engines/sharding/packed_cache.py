"""Packs the caches of DeepSeek-V4's layers as vLLM does: pages of several sizes in one block, which
layers with a window and the states of compressors take too.

Source: vLLM 0.25, v1/core/kv_cache_utils.py (_get_kv_cache_groups_uniform_groups,
_get_kv_cache_config_packed), v1/attention/backends/mla/sparse_swa.py and
models/deepseek_v4/compressor.py.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from loadstone.catalogue.architecture.attention import CompressedAttention
from loadstone.engines.sharding.kv_cache import Cache, Group

_FP8_ALIGNMENT, _ALIGNMENT = 576, 512
"""Bytes of which a page is a multiple."""
_WINDOW_TOKENS = 64
_FINE_RATIO = 4
_FINE_STATE_TOKENS, _COARSE_STATE_TOKENS = 4, 8
"""Tokens of a block of the compressors' states."""
_STATE_BYTES = 4


class _Part(NamedTuple):
    """A cache of one layer: its group, and the bytes of a page."""

    group: Group
    page_bytes: int


def packed(
    kinds: Iterable[tuple[CompressedAttention, int]],
    block_tokens: int,
    kv_dtype: str,
    in_flight_tokens: int,
    held_blocks: int,
) -> Cache:
    """Return the cache of one rank's layers, so many of each kind of attention.

    Of a batch in flight the states keep each token: more than a long context takes, and many times
    what a request holds whose prompt is computed. The log counts it for each request.
    """
    layers: dict[Group, Counter[int]] = defaultdict(Counter)
    for attention, count in kinds:
        for part in _parts(attention, block_tokens, kv_dtype):
            layers[part.group][part.page_bytes] += count
    full = layers.pop(Group("full", block_tokens))
    windows = {group: _pad(pages, sorted(full)) for group, pages in layers.items()}
    tuples = _choose_tuples([max(pages.values()) for pages in (full, *windows.values())])
    slots, groups = Counter(full), [Group("full", block_tokens)]
    for group, pages in windows.items():
        copies = -(-max(pages.values()) // tuples)
        groups += [group] * copies
        slots |= Counter({page: -(-count // copies) for page, count in pages.items()})
    block_bytes = sum(page * count for page, count in slots.items())
    return Cache(tuple(groups), block_bytes, in_flight_tokens, held_blocks, each_in_flight=True)


def _parts(attention: CompressedAttention, block_tokens: int, kv_dtype: str) -> Iterator[_Part]:
    """Yield a layer's window, its compressed vectors, its indexer's keys, and the states of the
    compressors that make them."""
    is_fp8 = kv_dtype.startswith("fp8")
    alignment = _FP8_ALIGNMENT if is_fp8 else _ALIGNMENT
    # In FP8: the RoPE part stays in bf16, and seven scales and a byte of padding follow.
    token = attention.head_dim + attention.rope_dim + 8 if is_fp8 else 2 * attention.head_dim

    def part(group: Group, size: float) -> _Part:
        return _Part(group, -(-int(size) // alignment) * alignment)

    window = Group("window", _WINDOW_TOKENS, attention.window_tokens)
    yield part(window, _WINDOW_TOKENS * token)
    ratio = attention.ratio
    if not ratio:
        return
    full, stored = Group("full", block_tokens), block_tokens // ratio
    overlap, state_tokens = 1, _COARSE_STATE_TOKENS
    if ratio == _FINE_RATIO:
        overlap, state_tokens = 2, _FINE_STATE_TOKENS
    state = Group("window", state_tokens, overlap * ratio)
    state_bytes = 2 * overlap * _STATE_BYTES * state_tokens
    yield part(full, stored * token)
    yield part(state, state_bytes * attention.head_dim)
    if attention.index_heads:
        index = attention.index_dim + 4 * (attention.index_dim // 128)
        yield part(full, stored * index)
        yield part(state, state_bytes * attention.index_dim)


def _pad(pages: Counter[int], sizes: Sequence[int]) -> Counter[int]:
    """Pad each page to the next size of a page of full attention."""
    padded: Counter[int] = Counter()
    for page, count in pages.items():
        padded[next((size for size in sizes if size >= page), page)] += count
    return padded


def _choose_tuples(counts: Sequence[int]) -> int:
    """Choose into how many slots the layers of a group are dealt: with the least padding over all
    groups, and of these the most; not fewer than full attention has, the first."""

    def padding(tuples: int) -> tuple[int, int]:
        return sum(-count % tuples for count in counts), -tuples

    return min(range(counts[0], max(counts) + 1), key=padding)
