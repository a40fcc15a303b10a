"""Kernels in Triton: reading memory, and attention of new tokens over a paged cache.

Imported only where Triton is. The attention is flash decoding: each program reads one stretch of
one sequence's cache for the query heads that share a KV head, with a running softmax; a second
kernel joins the stretches. Dao et al., Flash-Decoding (2023); Kwon et al., PagedAttention (SOSP
2023).
"""

import math
from typing import Any

import torch
import triton.language as tl

import triton

_BLOCK = 8192
_STRETCH = 64
"""Tokens that a program reads at a time."""


@triton.jit  # type: ignore[untyped-decorator]
def _block_sum(numbers, sums, length, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(numbers + at, mask=at < length, other=0.0)
    tl.store(sums + tl.program_id(0), tl.sum(values, 0))


def block_sums(numbers: Any) -> Any:
    """Sums of blocks of 8192 numbers: every number is read once, and almost nothing written."""
    blocks = triton.cdiv(numbers.numel(), _BLOCK)
    sums = torch.empty(blocks, dtype=torch.float32, device=numbers.device)
    _block_sum[(blocks,)](numbers, sums, numbers.numel(), BLOCK=_BLOCK, num_warps=8)
    return sums


# What changes from one batch to the next is no constant: each would be compiled again, for seconds.
@triton.jit(do_not_specialize=["table_stride", "split_tokens", "splits"])  # type: ignore[untyped-decorator]
def _stretches(  # type: ignore[no-untyped-def]
    query, keys, values, table, lengths, parts, stats, scale, table_stride, split_tokens, splits,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
    STRETCH: tl.constexpr,
):  # fmt: skip
    sequence, head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    rows, dims, steps = tl.arange(0, ROWS), tl.arange(0, DIM), tl.arange(0, STRETCH)
    at_query = ((sequence * KV_HEADS + head) * GROUP + rows)[:, None] * DIM + dims[None, :]
    q = tl.load(query + at_query, mask=rows[:, None] < GROUP, other=0.0)
    first = split * split_tokens
    end = tl.minimum(first + split_tokens, tl.load(lengths + sequence))
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    summed = tl.zeros([ROWS, DIM], tl.float32)
    for start in range(first, end, STRETCH):
        token = start + steps
        live = token < end
        page = tl.load(table + sequence * table_stride + token // PAGE, mask=live, other=0).to(
            tl.int64
        )
        at = ((page * PAGE + token % PAGE) * KV_HEADS + head)[:, None] * DIM + dims[None, :]
        k = tl.load(keys + at, mask=live[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale  # in powers of two
        scores = tl.where(live[None, :], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(highest - higher)
        total = total * shrink + tl.sum(weights, 1)
        v = tl.load(values + at, mask=live[:, None], other=0.0)
        summed = summed * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        highest = higher
    part = ((sequence * KV_HEADS + head) * splits + split) * ROWS + rows
    tl.store(parts + part[:, None] * DIM + dims[None, :], summed)
    tl.store(stats + part * 2, highest)
    tl.store(stats + part * 2 + 1, total)


@triton.jit(do_not_specialize=["splits"])  # type: ignore[untyped-decorator]
def _join(  # type: ignore[no-untyped-def]
    parts, stats, out, splits, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr
):
    pair, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dims = tl.arange(0, DIM)
    # A sequence has a token at least, so that its first stretch is never empty; later ones may be,
    # and add nothing.
    part = pair * splits * ROWS + row
    highest, total = tl.load(stats + part * 2), tl.load(stats + part * 2 + 1)
    summed = tl.load(parts + part * DIM + dims)
    for split in range(1, splits):
        part = (pair * splits + split) * ROWS + row
        top = tl.load(stats + part * 2)
        higher = tl.maximum(highest, top)
        shrink, share = tl.exp2(highest - higher), tl.exp2(top - higher)
        total = total * shrink + tl.load(stats + part * 2 + 1) * share
        summed = summed * shrink + tl.load(parts + part * DIM + dims) * share
        highest = higher
    tl.store(out + (pair * GROUP + row) * DIM + dims, (summed / total).to(out.dtype.element_ty))


class PagedDecode:
    """Attention of one new token per sequence over a paged cache, with its room for partial results
    made once.

    keys, values: pages × page tokens × KV heads × dim; table: sequences × pages of each, int32;
    lengths: sequences, int32, at least 1. dim: a power of two from 16 on.
    """

    def __init__(
        self, keys: Any, values: Any, table: Any, lengths: Any, heads: int, processors: int
    ) -> None:
        self.keys, self.values, self.table, self.lengths = keys, values, table, lengths
        _, self.page, self.kv_heads, self.dim = keys.shape
        self.group = heads // self.kv_heads
        self.rows = max(16, triton.next_power_of_2(self.group))  # tl.dot wants 16 rows at least
        sequences, longest = len(lengths), int(lengths.max())
        stretches = triton.cdiv(longest, _STRETCH)
        # Two programs a multiprocessor, and no more stretches than there are.
        self.splits = max(
            1, min(stretches, 2 * processors // max(1, sequences * self.kv_heads), 64)
        )
        self.split_tokens = triton.cdiv(stretches, self.splits) * _STRETCH
        self.splits = triton.cdiv(longest, self.split_tokens)
        pairs = sequences * self.kv_heads
        self.parts = torch.empty(
            pairs * self.splits * self.rows * self.dim, dtype=torch.float32, device=keys.device
        )
        self.stats = torch.empty(
            pairs * self.splits * self.rows * 2, dtype=torch.float32, device=keys.device
        )
        self.scale = math.log2(math.e) / math.sqrt(self.dim)

    def __call__(self, query: Any, out: Any) -> None:
        """query, out: sequences × heads × dim, contiguous."""
        sequences = len(query)
        _stretches[(sequences, self.kv_heads, self.splits)](
            query, self.keys, self.values, self.table, self.lengths, self.parts, self.stats, self.scale,
            self.table.stride(0), self.split_tokens, self.splits, KV_HEADS=self.kv_heads, GROUP=self.group,
            ROWS=self.rows, DIM=self.dim, PAGE=self.page, STRETCH=_STRETCH, num_warps=4, num_stages=3,
        )  # fmt: skip
        _join[(sequences * self.kv_heads, self.group)](
            self.parts, self.stats, out, self.splits, GROUP=self.group, ROWS=self.rows, DIM=self.dim, num_warps=4,
        )  # fmt: skip
