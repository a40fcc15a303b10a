"""What launching costs: kernels one by one and in graphs, and a decoder layer both ways."""

from __future__ import annotations

import time
from typing import Any

from loadstone.gpubench.lab import Lab
from loadstone.gpubench.memory import norm, rotary, silu_mul
from loadstone.gpubench.shapes import Heads
from loadstone.gpubench.timing import elapsed_s, launched, quantiles, record

_MANY = 200


def floors(lab: Lab) -> None:
    """launch: a kernel that does nothing worth mentioning, in a graph (its floor on the GPU), and the host's time for
    launching it; graph_launch: the host's time for starting a graph of one such kernel.
    """
    x = lab.random(64)
    lab.measure("launch", {"kernels": 1}, "bf16", "torch", lambda _: x.add_(1.0), moved_bytes=256)
    if not lab.cuda:
        return
    _keep_host(lab, "launch", {"kernels": 1}, lambda: x.add_(1.0))
    graph = lab.torch.cuda.CUDAGraph()
    with lab.torch.cuda.graph(graph):
        x.add_(1.0)
    _keep_host(lab, "graph_launch", {"kernels": 1}, graph.replay)


def _keep_host(lab: Lab, operator: str, shape: dict[str, int], call: Any, calls: int = _MANY) -> None:
    lab.keep(operator, shape, "bf16", "torch", launched(lab, call, calls))


def layer(lab: Lab, hidden: int, heads: Heads, intermediate: int, tokens: tuple[int, ...]) -> None:
    """A decoder layer without its attention: norm, QKV, rotary, KV write, output product, norm, MLP, both residuals.

    In a graph (what is left beside its products are its small kernels and the gaps) and launched by the host (its
    time for doing so). Plain torch: engines fuse more, and launch more cheaply.
    """
    width, query = (heads.heads + 2 * heads.kv_heads) * heads.head_dim, heads.heads * heads.head_dim
    matrices = ((width, hidden), (hidden, query), (2 * intermediate, hidden), (hidden, intermediate))
    weights = [lab.random(*shape, scale=shape[1] ** -0.5) for shape in matrices]
    gains = [lab.random(hidden, scale=0.1).add_(1.0) for _ in range(2)]
    for count in tokens:
        lab.check_time()
        shape = {"tokens": count, "hidden": hidden, "intermediate": intermediate, **heads._asdict()}
        _layer(lab, shape, heads, weights, gains)
    lab.tidy()


def _layer(lab: Lab, shape: dict[str, int], heads: Heads, weights: list[Any], gains: list[Any]) -> None:
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
        cache.index_copy_(0, slots, torch.cat((turned[:, heads.heads :], mixed[:, -heads.kv_heads :]), 1))
        x = x + turned[:, : heads.heads].reshape(len(x), -1) @ of[1].t()
        return x + silu_mul(torch, norm(torch, x, gain[1]) @ of[2].t()) @ of[3].t()

    def call(_: int = 0) -> Any:
        return forward(x, cos, sin, cache, weights, gains)

    def error() -> float:
        of, gain = ([each.double() for each in part] for part in (weights, gains))
        exact = forward(x.double(), cos.double(), sin.double(), cache.double(), of, gain)
        return lab.relative_error(call(), exact)

    parameters = sum(each.numel() for each in weights)
    point = lab.measure(
        "layer",
        shape,
        "bf16",
        "torch",
        call,
        copies=1,  # a layer's weights are many times the cache
        flops=2.0 * count * parameters,
        moved_bytes=2.0 * parameters,
        # Four products one after another, each rounded.
        error=error if count <= 256 else None,
        limit=2e-2,
    )
    if point is not None and lab.cuda and count <= 64:
        _keep_host(lab, "layer", shape, call, 20)


def sustained(lab: Lab, seconds: float = 3.0, size: int = 8192) -> None:
    """A large product over and over: what clocks and power allow once the GPU is warm, by the last half of it."""
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
    flops, moved_bytes = 2.0 * size**3, 6.0 * size**2
    lab.keep("sustained_product", shape, "bf16", "cublas", warm, values, flops, moved_bytes)
    lab.note("sustained product: after")
