"""Attention of prompts and of new tokens, by torch's kernels and by ours over a paged cache."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

from gpubench import engine_kernels
from gpubench.lab import Lab, Operation
from gpubench.shapes import Heads

Kernels = list[tuple[str, Callable[[int], Any]]]
"""Whose code, and the call of it."""

PAGE_TOKENS = 16
_MOST_CACHE_BYTES = 24 << 30
_SAMPLE = 4


def measure_prefill(
    lab: Lab, heads: Heads, chunks: Iterable[tuple[int, int]], engine: bool = False
) -> None:
    """One sequence's new tokens over themselves and the cached ones before them, causal. By torch's
    kernels, or by an engine's.

    flops: 4·heads·dim for each pair of a token and one that it sees, itself or earlier.
    """
    for new, cached in chunks:
        lab.check_time()
        _prefill(lab, heads, new, cached, _flash3 if engine else _prefill_kernels)
    lab.tidy()


def _prefill(
    lab: Lab, heads: Heads, new: int, cached: int, kernels_of: Callable[..., Kernels]
) -> None:
    context = new + cached
    query = lab.random(1, new, heads.heads, heads.head_dim).transpose(1, 2)
    key, value = (
        lab.random(1, context, heads.kv_heads, heads.head_dim).transpose(1, 2) for _ in range(2)
    )
    pairs = new * cached + new * (new + 1) / 2
    numbers = 2 * new * heads.heads * heads.head_dim + 2 * context * heads.kv_heads * heads.head_dim
    operation = Operation(
        "attention_prefill",
        {"new": new, "cached": cached, **heads._asdict()},
        flops=4.0 * heads.heads * heads.head_dim * pairs,
        moved_bytes=2.0 * numbers,
    )

    def error(call: Callable[[int], Any]) -> float:
        """Of some query tokens, the first and the last among them."""
        at = lab.integers(0, new, 8)
        at[0], at[1] = 0, new - 1
        mask = lab.torch.arange(context, device=lab.device) <= (at + cached)[:, None]
        exact = _exact(lab.torch, query[0][:, at], key[0], value[0], mask)
        return lab.relative_error(call(0)[0][:, at], exact)

    for kernel, call in kernels_of(lab, query, key, value, cached):
        lab.measure(operation, kernel, call, error=functools.partial(error, call))


def _prefill_kernels(lab: Lab, query: Any, key: Any, value: Any, cached: int) -> Kernels:
    torch = lab.torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right

    attend = torch.nn.functional.scaled_dot_product_attention
    grouped = query.shape[1] != key.shape[1]

    def by(backend: Any) -> Callable[[int], Any]:
        def call(_: int) -> Any:
            with sdpa_kernel(backend):
                if not cached:
                    return attend(query, key, value, is_causal=True, enable_gqa=grouped)
                # Flash attention is the one that lines up the last tokens without a mask in memory.
                mask = causal_lower_right(query.shape[2], key.shape[2])
                return attend(query, key, value, attn_mask=mask, enable_gqa=grouped)

        return call

    if not lab.cuda:
        return [("torch", by(SDPBackend.MATH))]
    kernels = [("flash", by(SDPBackend.FLASH_ATTENTION))]
    if not cached:
        kernels.append(("cudnn", by(SDPBackend.CUDNN_ATTENTION)))
    return kernels


def _flash3(lab: Lab, query: Any, key: Any, value: Any, cached: int) -> Kernels:
    """One sequence, its cache in pages one after another; nothing where vLLM is not installed."""
    if key.shape[2] % PAGE_TOKENS:
        return []
    keys, values = (
        part.transpose(1, 2).reshape(-1, PAGE_TOKENS, part.shape[1], part.shape[3])
        for part in (key, value)
    )
    table = lab.torch.arange(len(keys), dtype=lab.torch.int32, device=lab.device)[None]
    lengths = lab.torch.full((1,), key.shape[2], dtype=lab.torch.int32, device=lab.device)
    inputs = query[0].transpose(0, 1), keys, values, table, lengths, query.shape[2]
    attend = engine_kernels.flash3(lab, "attention_prefill", *inputs)
    return [] if attend is None else [("flash3", lambda _: attend().transpose(0, 1)[None])]


def measure_decode(
    lab: Lab, heads: Heads, batches: Iterable[tuple[int, int]], engine: bool = False
) -> None:
    """One new token for each of `sequences` sequences of `context` tokens.

    bytes: the cache once. By torch's flash kernel over a contiguous cache, and by ours over pages
    in random order; or by an engine's over such pages.
    """
    for sequences, context in batches:
        lab.check_time()
        size = 2 * 2 * sequences * context * heads.kv_heads * heads.head_dim
        copies = lab.copies(size)
        if size * copies > min(_MOST_CACHE_BYTES, lab.free_bytes // 2):
            lab.skip(
                f"attention_decode of {sequences} sequences of {context} tokens",
                "not enough free memory",
            )
            continue
        operation = Operation(
            "attention_decode",
            {"sequences": sequences, "context": context, **heads._asdict()},
            flops=4.0 * sequences * context * heads.heads * heads.head_dim,
            moved_bytes=size + 4 * sequences * heads.heads * heads.head_dim,
        )
        if not engine:
            _contiguous(lab, heads, operation, copies)
            lab.tidy()
        if lab.cuda:
            try:
                _paged(lab, heads, operation, copies, engine)
            except ImportError as missing:
                lab.skip("attention_decode paged", str(missing))
        lab.tidy()


def _contiguous(lab: Lab, heads: Heads, operation: Operation, copies: int) -> None:
    torch = lab.torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    sequences, context = operation.shape["sequences"], operation.shape["context"]
    attend = torch.nn.functional.scaled_dot_product_attention
    query = lab.random(sequences, heads.heads, 1, heads.head_dim)
    cache = lab.random(2, copies, sequences, context, heads.kv_heads, heads.head_dim)
    backend = SDPBackend.FLASH_ATTENTION if lab.cuda else SDPBackend.MATH

    def call(copy: int) -> Any:
        key, value = (part[copy].transpose(1, 2) for part in cache)
        with sdpa_kernel(backend):
            return attend(query, key, value, enable_gqa=heads.heads != heads.kv_heads)

    def error() -> float:
        worst = 0.0
        for at in lab.integers(0, sequences, min(_SAMPLE, sequences)).tolist():
            for copy in {0, copies - 1}:
                key, value = (part[copy, at].transpose(0, 1) for part in cache)
                expected = _exact(torch, query[at], key, value, None)
                worst = max(worst, lab.relative_error(call(copy)[at], expected))
        return worst

    lab.measure(operation, "flash" if lab.cuda else "torch", call, copies=copies, error=error)


def _paged(lab: Lab, heads: Heads, operation: Operation, copies: int, engine: bool) -> None:
    from gpubench.kernels import PagedDecode

    torch = lab.torch
    sequences, context = operation.shape["sequences"], operation.shape["context"]
    each = math.ceil(context / PAGE_TOKENS)
    pages = sequences * each
    query = lab.random(sequences, heads.heads, heads.head_dim)
    out = torch.empty_like(query)
    made = []
    for _ in range(copies):
        keys, values = (
            lab.random(pages, PAGE_TOKENS, heads.kv_heads, heads.head_dim) for _ in range(2)
        )
        table = lab.shuffled(pages).to(torch.int32).reshape(sequences, each)
        lengths = torch.full((sequences,), context, dtype=torch.int32, device=lab.device)
        made.append(
            PagedDecode(keys, values, table, lengths, heads.heads, lab.bench.device.multiprocessors)
        )

    def ours(copy: int) -> Any:
        made[copy](query, out)
        return out

    attend = _engines_decode(lab, query, made) if engine else ours
    if attend is None:
        return

    def error(copy: int) -> float:
        out.fill_(math.nan)
        return error_of(lab, made[copy], query, attend(copy))

    kernel = "flash3" if engine else "paged"
    lab.measure(
        operation, kernel, attend, copies=copies, error=lambda: max(map(error, {0, copies - 1}))
    )


def _engines_decode(lab: Lab, query: Any, made: list[Any]) -> Callable[[int], Any] | None:
    """Over the same pages; None where vLLM is not installed, or another version of it."""
    calls: list[Callable[[], Any]] = []
    for pages in made:
        inputs = query, pages.keys, pages.values, pages.table, pages.lengths, 1
        call = engine_kernels.flash3(lab, "attention_decode", *inputs)
        if call is None:
            return None
        calls.append(call)
    return lambda copy: calls[copy]()


def error_of(lab: Lab, decode: Any, query: Any, out: Any) -> float:
    """The worst error of a sample of sequences, every head of them. `decode`: a PagedDecode, for
    its cache."""
    torch = lab.torch
    if not bool(torch.isfinite(out).all()):
        return math.inf
    worst = 0.0
    for at in {0, len(query) - 1, *lab.integers(0, len(query), _SAMPLE).tolist()}:
        length = int(decode.lengths[at])
        pages = decode.table[at, : math.ceil(length / decode.page)].long()
        key, value = (
            part[pages].reshape(-1, decode.kv_heads, decode.dim)[:length].transpose(0, 1)
            for part in (decode.keys, decode.values)
        )
        worst = max(
            worst,
            lab.relative_error(out[at], _exact(torch, query[at][:, None], key, value, None)[:, 0]),
        )
    return worst


def _exact(torch: Any, query: Any, key: Any, value: Any, mask: Any) -> Any:
    """softmax(q·kᵀ/√dim)·v in float64.

    query: heads × tokens × dim; key, value: KV heads × context × dim; mask: tokens × context, true
    where seen.
    """
    group = query.shape[0] // key.shape[0]
    out = []
    for head in range(key.shape[0]):  # one KV head at a time: float64 copies are large
        mine = query[head * group : (head + 1) * group].double()
        scores = mine @ key[head].double().t() / math.sqrt(query.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        out.append(scores.softmax(-1) @ value[head].double())
    return torch.cat(out)
