"""What launching costs: kernels one by one and in graphs, and a decoder layer both ways."""

from __future__ import annotations

import time
from typing import Any

from loadstone.gpubench.lab import Lab
from loadstone.gpubench.memory import norm, rotary, silu_mul
from loadstone.gpubench.points import Point
from loadstone.gpubench.shapes import Heads

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
    timed = lab.time_launching(call, calls)
    lab.bench.points.append(
        Point(
            operator=operator,
            shape=shape,
            dtype="bf16",
            kernel="torch",
            method="host",
            median_s=timed.median_s,
            p10_s=timed.p10_s,
            p90_s=timed.p90_s,
            n=timed.n,
            calls=timed.calls,
        )
    )


def layer(lab: Lab, hidden: int, heads: Heads, intermediate: int, tokens: tuple[int, ...]) -> None:
    """A decoder layer without its attention: norm, QKV, rotary, KV write, output product, norm, MLP, both residuals.

    In a graph (what is left beside its products are its small kernels and the gaps) and launched by the host (its
    time for doing so). Plain torch: engines fuse more, and launch more cheaply.
    """
    torch = lab.torch
    width, query = (heads.heads + 2 * heads.kv_heads) * heads.head_dim, heads.heads * heads.head_dim
    matrices = ((width, hidden), (hidden, query), (2 * intermediate, hidden), (hidden, intermediate))
    weights = [lab.random(*shape, scale=shape[1] ** -0.5) for shape in matrices]
    gains = [lab.random(hidden, scale=0.1).add_(1.0) for _ in range(2)]
    parameters = sum(outputs * inputs for outputs, inputs in matrices)
    for count in tokens:
        lab.check_time()
        x = lab.random(count, hidden)
        angle = lab.random(count, 1, heads.head_dim // 2, dtype=torch.float32)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        cache = lab.random(max(1024, count), 2 * heads.kv_heads, heads.head_dim)
        slots = lab.shuffled(len(cache))[:count]

        def forward(
            x: Any = x, cos: Any = cos, sin: Any = sin, cache: Any = cache, slots: Any = slots, exact: bool = False
        ) -> Any:
            of = [each.double() for each in weights] if exact else weights
            gain = [each.double() for each in gains] if exact else gains
            mixed = norm(torch, x, gain[0]) @ of[0].t()
            mixed = mixed.view(len(x), heads.heads + 2 * heads.kv_heads, heads.head_dim)
            turned = rotary(torch, mixed[:, : heads.heads + heads.kv_heads], cos, sin)
            cache.index_copy_(0, slots, torch.cat((turned[:, heads.heads :], mixed[:, -heads.kv_heads :]), 1))
            x = x + turned[:, : heads.heads].reshape(len(x), -1) @ of[1].t()
            return x + silu_mul(torch, norm(torch, x, gain[1]) @ of[2].t()) @ of[3].t()

        def error(x: Any = x, cos: Any = cos, sin: Any = sin, cache: Any = cache, slots: Any = slots) -> float:
            exact = forward(x.double(), cos.double(), sin.double(), cache.double(), slots, exact=True)
            return lab.relative_error(forward(x, cos, sin, cache, slots), exact)

        shape = {
            "tokens": count,
            "hidden": hidden,
            "intermediate": intermediate,
            "heads": heads.heads,
            "kv_heads": heads.kv_heads,
            "head_dim": heads.head_dim,
        }

        def call(_: int, forward: Any = forward) -> Any:
            return forward()

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
            _keep_host(lab, "layer", shape, lambda forward=forward: forward(), 20)
    lab.tidy()


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
    with torch.cuda.graph(graph):
        for _ in range(10):
            torch.mm(left, right.t(), out=out)
    lab.note("sustained product: before")
    events: list[tuple[Any, Any]] = []
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.replay()
        last.record()
        if len(events) % 20 == 19:
            lab.sync()  # the queue stays short, so that the loop ends in time
        if len(events) % 50 == 49:
            lab.note("sustained product: during")
        events.append((first, last))
    values = lab.values()
    lab.sync()
    taken = [first.elapsed_time(last) * 1e-3 / 10 for first, last in events]
    ordered = sorted(taken[len(taken) // 2 :])
    lab.bench.points.append(
        Point(
            operator="sustained_product",
            shape={"tokens": size, "inputs": size, "outputs": size},
            dtype="bf16",
            kernel="cublas",
            method="graph",
            median_s=ordered[len(ordered) // 2],
            p10_s=ordered[len(ordered) // 10],
            p90_s=ordered[-1 - len(ordered) // 10],
            n=len(ordered),
            calls=10,
            flops=2.0 * size**3,
            bytes=6.0 * size**2,
            sm_clock_mhz=values.get("sm_clock_mhz"),
            power_w=values.get("power_w"),
        )
    )
    lab.note("sustained product: after")
