"""Device memory: how fast it is copied and read, and the small kernels of a layer, which do little else."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from loadstone.gpubench.lab import Lab
from loadstone.gpubench.shapes import TOKENS

GIB = 1 << 30
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM = 4096, 14336, 32, 8, 128
"""Of Llama-3.1-8B, for the small kernels: their time is a floor and a width."""


def bandwidth(lab: Lab) -> None:
    """copy counts bytes read and bytes written; read counts bytes read."""
    for size in (GIB // 4, GIB, 4 * GIB) if lab.cuda else (1 << 20,):
        if 3 * size > lab.free_bytes:
            lab.skip(f"copy and read of {size} bytes", "not enough free memory")
            continue
        shape = {"bytes": size}
        source = lab.random(size // 2)
        _copy(lab, source, shape)
        _read(lab, source, shape)
        lab.tidy()


def _copy(lab: Lab, source: Any, shape: dict[str, int]) -> None:
    torch = lab.torch
    target = torch.empty_like(source)

    def wrong(copy: Callable[[int], object], arrived: Callable[[], Any]) -> float:
        target.fill_(math.nan)
        copy(0)
        return 0.0 if bool(torch.equal(arrived(), source)) else math.inf

    # A copy is the driver's business, and may not be the same in a graph; the other is a kernel of torch's.
    for kernel, copy, arrived in (
        ("torch", lambda _: target.copy_(source), lambda: target),
        ("elementwise", lambda _: torch.neg(source, out=target), target.neg_),
    ):
        error = functools.partial(wrong, copy, arrived)
        lab.measure("copy", shape, "bf16", kernel, copy, moved_bytes=2 * shape["bytes"], error=error)


def _read(lab: Lab, source: Any, shape: dict[str, int]) -> None:
    torch = lab.torch
    # 32-bit numbers from 1 to 2: a sum that does not cancel can be checked.
    numbers = source.view(torch.float32)
    numbers.uniform_(1.0, 2.0, generator=lab.generator)
    size = shape["bytes"]
    expected = float(sum(float(part.double().sum()) for part in numbers.split(1 << 26)))

    def off(found: Any) -> float:
        return abs(float(found.double().sum()) - expected) / expected

    lab.measure(
        "read", shape, "fp32", "torch", lambda _: numbers.sum(), moved_bytes=size, error=lambda: off(numbers.sum())
    )
    if lab.cuda:
        try:
            from loadstone.gpubench.kernels import block_sums
        except ImportError as missing:
            lab.skip("read fp32 triton", str(missing))
            return
        lab.measure(
            "read",
            shape,
            "fp32",
            "triton",
            lambda _: block_sums(numbers),
            moved_bytes=size,
            error=lambda: off(block_sums(numbers)),
        )


# --- small kernels of a layer -------------------------------------------------------------------------------------


def norm(torch: Any, x: Any, weight: Any) -> Any:
    """RMS norm: x·weight / √(mean(x²) + 1e-5)."""
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, 1e-5)


def silu_mul(torch: Any, x: Any) -> Any:
    """silu(first half)·second half."""
    gate, up = x.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def rotary(torch: Any, x: Any, cos: Any, sin: Any) -> Any:
    """x: tokens × heads × dim; cos, sin: tokens × 1 × dim/2. Halves turn against each other, as in Llama."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def quantise(torch: Any, x: Any, by_row: bool = True) -> tuple[Any, Any]:
    """x in 8-bit floating point (E4M3, largest 448), and what it is to be multiplied by: a scale a row (rows × 1), or
    one for all.
    """
    largest = x.abs().amax(-1, keepdim=True) if by_row else x.abs().amax()
    scale = largest.float().clamp(min=1e-12) / 448.0
    return (x.float() / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn), scale


def small_kernels(lab: Lab) -> None:
    """Each at several token counts: their times at few tokens are launch floors, at many a matter of bandwidth.

    Plain torch; an engine fuses more.
    """
    for tokens in TOKENS if lab.cuda else (1, 4):
        _small_kernels(lab, tokens)


def _small_kernels(lab: Lab, tokens: int) -> None:
    torch, shape = lab.torch, {"tokens": tokens}
    x, weight, wide = lab.random(tokens, HIDDEN), lab.random(HIDDEN), lab.random(tokens, 2 * INTERMEDIATE)
    query = lab.random(tokens, HEADS + KV_HEADS, HEAD_DIM)
    angle = lab.random(tokens, 1, HEAD_DIM // 2, dtype=torch.float32)
    cos, sin = angle.cos().to(torch.bfloat16), angle.sin().to(torch.bfloat16)

    def take(operator: str, made: Callable[..., Any], inputs: tuple[Any, ...], width: int) -> None:
        lab.measure(
            operator,
            shape,
            "bf16",
            "torch",
            lambda _: made(torch, *inputs),
            moved_bytes=2 * tokens * width,
            error=lambda: lab.relative_error(made(torch, *inputs), made(torch, *(each.double() for each in inputs))),
        )

    take("norm", norm, (x, weight), 2 * HIDDEN)
    take("silu_mul", silu_mul, (wide,), 3 * INTERMEDIATE)
    take("rotary", rotary, (query, cos, sin), 2 * (HEADS + KV_HEADS) * HEAD_DIM)

    cache, new = lab.random(max(8192, tokens), 2 * KV_HEADS * HEAD_DIM), lab.random(tokens, 2 * KV_HEADS * HEAD_DIM)
    slots = lab.shuffled(len(cache))[:tokens]

    def write(_: int) -> None:
        cache.index_copy_(0, slots, new)

    def written() -> float:
        write(0)
        return 0.0 if bool(torch.equal(cache[slots], new)) else math.inf

    moved = 2 * 2 * tokens * 2 * KV_HEADS * HEAD_DIM
    lab.measure("kv_write", shape, "bf16", "torch", write, moved_bytes=moved, error=written)

    def quantised() -> float:
        values, scale = quantise(torch, x)
        return lab.relative_error(values.double() * scale.double(), x)

    # E4M3 keeps three bits: rounding alone is up to 2⁻⁴ of an element, about 0.026 in the mean square.
    lab.measure(
        "quantise",
        shape,
        "fp8-rows",
        "torch",
        lambda _: quantise(torch, x),
        moved_bytes=3 * tokens * HIDDEN,
        error=quantised,
        limit=0.05,
    )
