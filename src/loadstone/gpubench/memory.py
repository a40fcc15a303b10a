"""Device memory: how fast it is copied and read, and the small kernels of a layer, which do little else."""

from __future__ import annotations

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
    torch = lab.torch
    sizes = (GIB // 4, GIB, 4 * GIB) if lab.cuda else (1 << 20,)
    for size in sizes:
        if 3 * size > lab.free_bytes:
            lab.skip(f"copy and read of {size} bytes", "not enough free memory")
            continue
        source = lab.random(size // 2)
        target = torch.empty_like(source)

        def copy(_: int, target: Any = target, source: Any = source) -> None:
            target.copy_(source)

        def copied(copy: Callable[[int], None] = copy, target: Any = target, source: Any = source) -> float:
            target.fill_(math.nan)
            copy(0)
            return 0.0 if bool(torch.equal(target, source)) else math.inf

        shape = {"bytes": size}
        lab.measure("copy", shape, "bf16", "torch", copy, moved_bytes=2 * size, error=copied)

        # A copy is the driver's business, and may not be the same in a graph; this is a kernel of torch's.
        def negate(_: int, target: Any = target, source: Any = source) -> None:
            torch.neg(source, out=target)

        def negated(negate: Callable[[int], None] = negate, target: Any = target, source: Any = source) -> float:
            target.fill_(math.nan)
            negate(0)
            return 0.0 if bool(torch.equal(target.neg_(), source)) else math.inf

        lab.measure("copy", shape, "bf16", "elementwise", negate, moved_bytes=2 * size, error=negated)
        _read(lab, source, shape)
        lab.tidy()


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


def quantise(torch: Any, x: Any) -> tuple[Any, Any]:
    """x to 8-bit floating point (E4M3, largest 448) with one scale a row."""
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / 448.0
    return (x / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn), scale


def small_kernels(lab: Lab) -> None:
    """Each at several token counts: their times at few tokens are launch floors, at many a matter of bandwidth.

    Plain torch; an engine fuses more.
    """
    torch = lab.torch
    weight = lab.random(HIDDEN)
    for tokens in TOKENS if lab.cuda else (1, 4):
        shape = {"tokens": tokens}
        x, wide = lab.random(tokens, HIDDEN), lab.random(tokens, 2 * INTERMEDIATE)
        query = lab.random(tokens, HEADS + KV_HEADS, HEAD_DIM)
        angle = lab.random(tokens, 1, HEAD_DIM // 2, dtype=torch.float32)
        cos, sin = angle.cos().to(torch.bfloat16), angle.sin().to(torch.bfloat16)
        cache = lab.random(max(8192, tokens), 2 * KV_HEADS * HEAD_DIM)
        slots, new = lab.shuffled(len(cache))[:tokens], lab.random(tokens, 2 * KV_HEADS * HEAD_DIM)

        def compare(made: Callable[..., Any], *inputs: Any) -> Callable[[], float]:
            return lambda: lab.relative_error(made(*inputs), made(*(each.double() for each in inputs)))

        def take(operator: str, made: Callable[..., Any], inputs: tuple[Any, ...], widths: int, shape: Any) -> None:
            lab.measure(
                operator,
                shape,
                "bf16",
                "torch",
                lambda _: made(*inputs),
                moved_bytes=2 * shape["tokens"] * widths,
                error=compare(made, *inputs),
            )

        take("norm", lambda x, w: norm(torch, x, w), (x, weight), 2 * HIDDEN, shape)
        take("silu_mul", lambda x: silu_mul(torch, x), (wide,), 3 * INTERMEDIATE, shape)
        turned = 2 * (HEADS + KV_HEADS) * HEAD_DIM
        take("rotary", lambda x, c, s: rotary(torch, x, c, s), (query, cos, sin), turned, shape)

        def write(_: int, cache: Any = cache, slots: Any = slots, new: Any = new) -> None:
            cache.index_copy_(0, slots, new)

        def written(
            write: Callable[[int], None] = write, cache: Any = cache, slots: Any = slots, new: Any = new
        ) -> float:
            write(0)
            return 0.0 if bool(torch.equal(cache[slots], new)) else math.inf

        moved = 2 * 2 * tokens * 2 * KV_HEADS * HEAD_DIM
        lab.measure("kv_write", shape, "bf16", "torch", write, moved_bytes=moved, error=written)

        def quantised(x: Any = x) -> float:
            values, scale = quantise(torch, x)
            return lab.relative_error(values.double() * scale.double(), x)

        # E4M3 keeps three bits: rounding alone is up to 2⁻⁴ of an element, about 0.026 in the mean square.
        lab.measure(
            "quantise",
            shape,
            "fp8-rows",
            "torch",
            lambda _, x=x: quantise(torch, x),  # type: ignore[misc]
            moved_bytes=3 * tokens * HIDDEN,
            error=quantised,
            limit=0.05,
        )
