"""Run by test_gpubench.py: the code that only runs on a GPU, on the processor with a stand-in for
torch.cuda.

Events are clock readings. A graph runs its calls once, when it is captured, and a replay sleeps as
long as that took. So the times mean little; that every line runs, and that what fails is told and
costs nothing else, is the point. Prints {"points": [[operator, kernel, method, calls, SM clock]],
"skipped": [[what, why]], "moments": [when]}.
"""

import contextlib
import functools
import json
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from fake_nvml import FakeNvml, h100
from gpubench import attention, engine_kernels, memory_and_launches, products, shapes
from gpubench.lab import Lab, Operation, describe_device, number_of
from gpubench.points import Bench
from loadstone.measure.nvml import Gpus


class Event:
    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, other: "Event") -> float:
        return (other.at - self.at) * 1e3


class Graph:
    capturing = False
    took_s = 0.0
    replays = 0

    def replay(self) -> None:
        self.replays += 1
        time.sleep(min(self.took_s, 1e-3))

    def reset(self) -> None:
        del self.took_s


@contextlib.contextmanager
def capture(graph: Graph, pool: tuple[int, int] | None = None) -> Iterator[None]:
    begun = time.perf_counter()
    Graph.capturing = True
    try:
        yield
    finally:
        Graph.capturing = False
    graph.took_s = time.perf_counter() - begun


SET: list[str] = []
"""Streams that were made the current one."""
ENDED: list[tuple[str, int, tuple[int, int]]] = []
"""What the allocator was told of a capture that failed."""


def stand_in() -> None:
    uuid = "11111111-2222-3333-4444-555555555555"
    properties = SimpleNamespace(
        name="NVIDIA H100 80GB HBM3", total_memory=85_000_000_000, multi_processor_count=8, major=9, minor=0,
        L2_cache_size=1 << 16, uuid=uuid,
    )  # fmt: skip
    for name, made in {
        "Event": Event, "CUDAGraph": Graph, "graph": capture, "synchronize": lambda *_: None,
        "empty_cache": lambda: None, "mem_get_info": lambda *_: (1 << 28, 1 << 30), "is_available": lambda: True,
        "device_count": lambda: 1, "get_device_properties": lambda *_: properties,
        "current_stream": lambda: "the first", "set_stream": SET.append, "current_device": lambda: 0,
        "graph_pool_handle": lambda: (0, 7),
    }.items():  # fmt: skip
        setattr(torch.cuda, name, made)
    for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
        setattr(torch._C, name, functools.partial(lambda *told: ENDED.append(told), name))


def attend(query: Any, keys: Any, values: Any, **given: Any) -> Any:
    """What FlashAttention 3 computes by its documentation: the last tokens line up, the cache is in
    pages."""
    assert given["causal"]
    assert given["fa_version"] == 3
    assert given["scheduler_metadata"] == "a plan"
    starts = given["cu_seqlens_q"].tolist()
    for at, (table, length) in enumerate(
        zip(given["block_table"], given["seqused_k"].tolist(), strict=True)
    ):
        mine = slice(starts[at], starts[at + 1])
        key, value = (part[table.long()].flatten(0, 1)[:length].float() for part in (keys, values))
        group = query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(group, 1).transpose(0, 1) for part in (key, value))
        new = mine.stop - mine.start
        seen = torch.arange(length) <= torch.arange(length - new, length)[:, None]
        scores = query[mine].float().transpose(0, 1) @ key.transpose(1, 2) / query.shape[2] ** 0.5
        given["out"][mine] = (
            (scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value)
            .transpose(0, 1)
            .to(query.dtype)
        )
    return given["out"]


def multiply(out: Any, x: Any, w: Any, x_scale: Any, w_scale: Any, bias: None) -> None:
    assert w.stride(0) == 1
    assert (x_scale.numel(), w_scale.numel()) == (len(x), w.shape[1])
    out.copy_((x.float() @ w.float()) * x_scale.reshape(-1, 1) * w_scale.reshape(1, -1))


def vllm() -> None:
    """Its kernels, by their documentation."""
    flash = SimpleNamespace(
        flash_attn_varlen_func=attend, get_scheduler_metadata=lambda **_: "a plan"
    )
    for name in (
        "vllm.vllm_flash_attn",
        "vllm.vllm_flash_attn._vllm_fa3_C",
        "vllm._C_stable_libtorch",
    ):
        sys.modules[name] = flash  # type: ignore[assignment]
    torch.ops._C.cutlass_scaled_mm = multiply


def grouped(made: Any, seen: set[tuple[int, ...]], x: Any, weights: Any, offs: Any) -> Any:
    """torch's grouped product, which remembers whose turn it was."""
    seen.add(tuple(offs.tolist()))
    return made(x, weights, offs=offs)


def only_outside_graphs(_: int) -> None:
    if Graph.capturing:
        raise RuntimeError("operation not permitted when stream is capturing")


def main() -> None:
    stand_in()
    vllm()
    heads = shapes.Heads(4, 2, 32)
    with Gpus(FakeNvml(h100())) as gpus, torch.inference_mode():
        bench = Bench(created="", loadstone="", device=describe_device("cuda", gpus), budget_s=600)
        lab: Any = Lab(bench, "cpu", 600, gpus=gpus, gpu=number_of("cuda", gpus), spend_s=0.0)
        lab.cuda = True
        lab.note("before")
        memory_and_launches.bandwidth(lab)  # more than there is room for
        memory_and_launches._read(lab, lab.random(1 << 16), {"bytes": 1 << 17})
        memory_and_launches.floors(lab)
        for dtype in ("bf16", "fp8", "fp8-rows"):
            products.measure_products(lab, 64, 96, (1, 16), dtype)
        attention.measure_prefill(lab, heads, ((16, 0), (8, 24)))
        attention.measure_decode(lab, heads, ((2, 50),))
        assert (
            engine_kernels._module.cache_info().currsize == 0
        )  # vLLM may break: not before torch's are measured
        products.measure_products(lab, 64, 96, (1, 16), "fp8-rows", engine=True)
        attention.measure_prefill(lab, heads, ((16, 0), (8, 24)), engine=True)
        attention.measure_decode(lab, heads, ((2, 50),), engine=True)
        memory_and_launches.layer(lab, 64, heads, 96, (1, 4))
        memory_and_launches.TOKENS = (1, 4)
        memory_and_launches.small_kernels(lab)
        memory_and_launches.sustained(lab, 0.2, size=64)
        turns: set[tuple[int, ...]] = set()
        torch.nn.functional.grouped_mm = functools.partial(
            grouped, torch.nn.functional.grouped_mm, turns
        )
        products.measure_experts(lab, shapes.ExpertShape(8, 2, 64, 32), (1,))
        assert len(turns) == 8  # all of them: the cache would hold two
        lab.measure(Operation("uncapturable", {}), "torch", only_outside_graphs)
        assert SET == ["the first"]
        assert ENDED == [("_cuda_endAllocateToPool", 0, (0, 7)), ("_cuda_releasePool", 0, (0, 7))]
    print(
        json.dumps(
            {
                "points": [
                    [p.operator, p.kernel, p.method, p.calls, p.sm_clock_mhz] for p in bench.points
                ],
                "skipped": [[each.what, each.why] for each in bench.skipped],
                "moments": [each.when for each in bench.moments],
                "device": [bench.device.name, bench.device.driver, bench.device.power_limit_w],
            }
        )
    )


if __name__ == "__main__":
    main()
