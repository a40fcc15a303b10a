"""Device memory, the small kernels of a layer, which do little but use it, and what launching
costs."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import Any

from gpubench.lab import Lab, Operation, elapsed_s, launched, quantiles, record
from gpubench.shapes import TOKENS, Heads

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

    # A copy is the driver's business, and may not be the same in a graph; the other is a kernel of
    # torch's.
    for kernel, copy, arrived in (
        ("torch", lambda _: target.copy_(source), lambda: target),
        ("elementwise", lambda _: torch.neg(source, out=target), target.neg_),
    ):
        error = functools.partial(wrong, copy, arrived)
        lab.measure(
            Operation("copy", shape, moved_bytes=2 * shape["bytes"]), kernel, copy, error=error
        )


def _read(lab: Lab, source: Any, shape: dict[str, int]) -> None:
    torch = lab.torch
    # 32-bit numbers from 1 to 2: a sum that does not cancel can be checked.
    numbers = source.view(torch.float32)
    numbers.uniform_(1.0, 2.0, generator=lab.generator)
    expected = float(sum(float(part.double().sum()) for part in numbers.split(1 << 26)))

    def measure(kernel: str, total: Callable[[], Any]) -> None:
        def error() -> float:
            return abs(float(total().double().sum()) - expected) / expected

        operation = Operation("read", shape, "fp32", moved_bytes=shape["bytes"])
        lab.measure(operation, kernel, lambda _: total(), error=error)

    measure("torch", numbers.sum)
    if lab.cuda:
        try:
            from gpubench.kernels import block_sums
        except ImportError as missing:
            lab.skip("read fp32 triton", str(missing))
            return
        measure("triton", lambda: block_sums(numbers))


# --- small kernels of a layer ---------------------------------------------------------------------


def norm(torch: Any, x: Any, weight: Any) -> Any:
    """RMS norm: x·weight / √(mean(x²) + 1e-5)."""
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, 1e-5)


def silu_mul(torch: Any, x: Any) -> Any:
    """silu(first half)·second half."""
    gate, up = x.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def rotary(torch: Any, x: Any, cos: Any, sin: Any) -> Any:
    """x: tokens × heads × dim; cos, sin: tokens × 1 × dim/2. Halves turn against each other, as in
    Llama."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def quantise(torch: Any, x: Any, by_row: bool = True) -> tuple[Any, Any]:
    """x in 8-bit floating point (E4M3, largest 448), and what it is to be multiplied by: a scale a
    row (rows × 1), or one for all.
    """
    largest = x.abs().amax(-1, keepdim=True) if by_row else x.abs().amax()
    scale = largest.float().clamp(min=1e-12) / 448.0
    return (x.float() / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn), scale


def small_kernels(lab: Lab) -> None:
    """Each at several token counts: their times at few tokens are launch floors, at many a matter
    of bandwidth.

    Plain torch; an engine fuses more.
    """
    for tokens in TOKENS if lab.cuda else (1, 4):
        _small_kernels(lab, tokens)


def _small_kernels(lab: Lab, tokens: int) -> None:
    torch, shape = lab.torch, {"tokens": tokens}
    x, weight, wide = (
        lab.random(tokens, HIDDEN),
        lab.random(HIDDEN),
        lab.random(tokens, 2 * INTERMEDIATE),
    )
    query = lab.random(tokens, HEADS + KV_HEADS, HEAD_DIM)
    angle = lab.random(tokens, 1, HEAD_DIM // 2, dtype=torch.float32)
    cos, sin = angle.cos().to(torch.bfloat16), angle.sin().to(torch.bfloat16)

    def take(operator: str, made: Callable[..., Any], inputs: tuple[Any, ...], width: int) -> None:
        def error() -> float:
            return lab.relative_error(
                made(torch, *inputs), made(torch, *(each.double() for each in inputs))
            )

        operation = Operation(operator, shape, moved_bytes=2 * tokens * width)
        lab.measure(operation, "torch", lambda _: made(torch, *inputs), error=error)

    take("norm", norm, (x, weight), 2 * HIDDEN)
    take("silu_mul", silu_mul, (wide,), 3 * INTERMEDIATE)
    take("rotary", rotary, (query, cos, sin), 2 * (HEADS + KV_HEADS) * HEAD_DIM)

    cache, new = (
        lab.random(max(8192, tokens), 2 * KV_HEADS * HEAD_DIM),
        lab.random(tokens, 2 * KV_HEADS * HEAD_DIM),
    )
    slots = lab.shuffled(len(cache))[:tokens]

    def write(_: int) -> None:
        cache.index_copy_(0, slots, new)

    def written() -> float:
        write(0)
        return 0.0 if bool(torch.equal(cache[slots], new)) else math.inf

    moved = 2 * 2 * tokens * 2 * KV_HEADS * HEAD_DIM
    lab.measure(Operation("kv_write", shape, moved_bytes=moved), "torch", write, error=written)

    def quantised() -> float:
        values, scale = quantise(torch, x)
        return lab.relative_error(values.double() * scale.double(), x)

    # E4M3 keeps three bits: rounding alone is up to 2⁻⁴ of an element, about 0.026 in the mean
    # square.
    operation = Operation("quantise", shape, "fp8-rows", moved_bytes=3 * tokens * HIDDEN)
    lab.measure(operation, "torch", lambda _: quantise(torch, x), error=quantised, limit=0.05)


_MANY = 200


def floors(lab: Lab) -> None:
    """launch: a kernel that does nothing worth mentioning, in a graph (its floor on the GPU), and
    the host's time for launching it; graph_launch: the host's time for starting a graph of one such
    kernel.
    """
    x = lab.random(64)
    launch = Operation("launch", {"kernels": 1})
    lab.measure(launch._replace(moved_bytes=256), "torch", lambda _: x.add_(1.0))
    if not lab.cuda:
        return
    _keep_host(lab, launch, lambda: x.add_(1.0))
    graph = lab.torch.cuda.CUDAGraph()
    with lab.torch.cuda.graph(graph):
        x.add_(1.0)
    _keep_host(lab, Operation("graph_launch", {"kernels": 1}), graph.replay)


def _keep_host(lab: Lab, operation: Operation, call: Any, calls: int = _MANY) -> None:
    lab.keep(operation, "torch", launched(lab, call, calls), {})


def layer(lab: Lab, hidden: int, heads: Heads, intermediate: int, tokens: tuple[int, ...]) -> None:
    """A decoder layer without its attention: norm, QKV, rotary, KV write, output product, norm,
    MLP, both residuals.

    In a graph (what is left beside its products are its small kernels and the gaps) and launched by
    the host (its time for doing so). Plain torch: engines fuse more, and launch more cheaply.
    """
    width, query = (heads.heads + 2 * heads.kv_heads) * heads.head_dim, heads.heads * heads.head_dim
    matrices = (
        (width, hidden),
        (hidden, query),
        (2 * intermediate, hidden),
        (hidden, intermediate),
    )
    weights = [lab.random(*shape, scale=shape[1] ** -0.5) for shape in matrices]
    gains = [lab.random(hidden, scale=0.1).add_(1.0) for _ in range(2)]
    for count in tokens:
        lab.check_time()
        shape = {"tokens": count, "hidden": hidden, "intermediate": intermediate, **heads._asdict()}
        _layer(lab, shape, heads, weights, gains)
    lab.tidy()


def _layer(
    lab: Lab, shape: dict[str, int], heads: Heads, weights: list[Any], gains: list[Any]
) -> None:
    torch, count = lab.torch, shape["tokens"]
    x = lab.random(count, shape["hidden"])
    angle = lab.random(count, 1, heads.head_dim // 2, dtype=torch.float32)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    cache = lab.random(max(1024, count), 2 * heads.kv_heads, heads.head_dim)
    slots = lab.shuffled(len(cache))[:count]

    def forward(x: Any, cos: Any, sin: Any, cache: Any, of: list[Any], gain: list[Any]) -> Any:
        mixed = norm(torch, x, gain[0]) @ of[0].t()
        mixed = mixed.view(len(x), heads.heads + 2 * heads.kv_heads, heads.head_dim)
        turned = rotary(torch, mixed[:, : heads.heads + heads.kv_heads], cos, sin)
        cache.index_copy_(
            0, slots, torch.cat((turned[:, heads.heads :], mixed[:, -heads.kv_heads :]), 1)
        )
        x = x + turned[:, : heads.heads].reshape(len(x), -1) @ of[1].t()
        return x + silu_mul(torch, norm(torch, x, gain[1]) @ of[2].t()) @ of[3].t()

    def call(_: int = 0) -> Any:
        return forward(x, cos, sin, cache, weights, gains)

    def error() -> float:
        of, gain = ([each.double() for each in part] for part in (weights, gains))
        exact = forward(x.double(), cos.double(), sin.double(), cache.double(), of, gain)
        return lab.relative_error(call(), exact)

    parameters = sum(each.numel() for each in weights)
    operation = Operation(
        "layer", shape, flops=2.0 * count * parameters, moved_bytes=2.0 * parameters
    )
    # One copy, for a layer's weights are many times the cache. Four products one after another,
    # each rounded.
    point = lab.measure(operation, "torch", call, error=error if count <= 256 else None, limit=2e-2)
    if point is not None and lab.cuda and count <= 64:
        _keep_host(lab, Operation("layer", shape), call, 20)


def sustained(lab: Lab, seconds: float = 3.0, size: int = 8192) -> None:
    """A large product over and over: what clocks and power allow once the GPU is warm, by the last
    half of it."""
    torch = lab.torch
    if not lab.cuda:
        return
    left, right = (lab.random(size, size, scale=size**-0.5) for _ in range(2))
    out = torch.empty_like(left)
    graph = torch.cuda.CUDAGraph()
    torch.mm(left, right.t(), out=out)
    lab.sync()
    calls = 10
    with torch.cuda.graph(graph):
        for _ in range(calls):
            torch.mm(left, right.t(), out=out)
    lab.note("sustained product: before")
    events: list[tuple[Any, Any]] = []
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        events.append(record(lab, graph.replay))
        if len(events) % 20 == 0:
            lab.sync()  # the queue stays short, so that the loop ends in time
        if len(events) % 50 == 0:
            lab.note("sustained product: during")
    values = lab.values()
    lab.sync()
    warm = quantiles(elapsed_s(events[len(events) // 2 :]), calls, "graph")
    shape = {"tokens": size, "inputs": size, "outputs": size}
    operation = Operation(
        "sustained_product", shape, flops=2.0 * size**3, moved_bytes=6.0 * size**2
    )
    lab.keep(operation, "cublas", warm, values)
    lab.note("sustained product: after")
