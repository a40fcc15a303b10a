"""The nouns of a GPU benchmark, and its file: one JSON document, written anew after every group of
points."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

SCHEMA = 1
Method = Literal["graph", "eager", "host"]


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One operator of one shape, timed `n` times.

    operator   copy, read; product (y = x·Wᵀ), experts; attention_decode, attention_prefill; norm,
               silu_mul, rotary, kv_write, quantise; launch, graph_launch; layer (a decoder layer
               without its attention)
    shape      sizes by name: a product has tokens, inputs, outputs
    dtype      bf16, fp8 (one scale a tensor), fp8-rows (a scale a row), fp32
    kernel     whose code ran: cublas, scaled_mm (torch's choice of cuBLAS or CUTLASS), cutlass
               (vLLM's), flash (torch's FlashAttention 2), flash3 (vLLM's), cudnn, paged (ours, in
               Triton), torch, elementwise (a copy that changes the sign), triton, cpu
    method     graph: seconds of one call within a CUDA graph of many, by events; eager: the same,
               launched one by one; host: seconds of the host for launching it
    median_s, p10_s, p90_s   of one call, over n repeats of `calls` calls
    flops      of one call; a multiplication and an addition are two
    bytes      that one call must move to or from device memory at least, weights and caches once
    error      ‖result − float64 result‖ / ‖float64 result‖, from a sample of the result; None where
               there is nothing to compute
    sm_clock_mhz, power_w    while it ran, where telemetry is there
    """

    operator: str
    shape: dict[str, int]
    dtype: str
    kernel: str
    method: Method
    median_s: float
    p10_s: float
    p90_s: float
    n: int
    calls: int
    flops: float = 0.0
    bytes: float = 0.0
    error: float | None = None
    sm_clock_mhz: float | None = None
    power_w: float | None = None

    @property
    def flops_per_s(self) -> float:
        return self.flops / self.median_s

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.median_s


class Skipped(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was not measured, and why: no time left, no room, not supported, or a wrong result."""

    what: str
    why: str


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was measured, and with what."""

    name: str
    memory_bytes: int
    multiprocessors: int
    l2_bytes: int
    capability: str = ""
    driver: str | None = None
    power_limit_w: float | None = None
    sm_clock_max_mhz: float | None = None
    software: dict[str, str]


class Moment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The GPU's own word at a moment, names as in loadstone.measure.nvml without their prefix."""

    when: str
    time_s: float
    values: dict[str, float]


class Bench(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A whole session. `complete` is false where time ran out, or something broke, before all was
    measured."""

    created: str
    loadstone: str
    device: Device
    budget_s: float
    took_s: float = 0.0
    complete: bool = False
    points: list[Point] = []
    skipped: list[Skipped] = []
    moments: list[Moment] = []
    schema: int = SCHEMA

    def of(self, operator: str, dtype: str | None = None) -> list[Point]:
        return [
            each
            for each in self.points
            if each.operator == operator and dtype in (None, each.dtype)
        ]


def best(bench: Bench) -> dict[str, float]:
    """The highest rate of each kind, in bytes/s or FLOP/s; what was not measured is missing."""
    rates = {
        "copy_bytes_per_s": [point.bytes_per_s for point in bench.of("copy")],
        "read_bytes_per_s": [point.bytes_per_s for point in bench.of("read")],
        "bf16_flops_per_s": [point.flops_per_s for point in bench.of("product", "bf16")],
        "bf16_sustained_flops_per_s": [
            point.flops_per_s for point in bench.of("sustained_product", "bf16")
        ],
        "fp8_flops_per_s": [
            point.flops_per_s for kind in ("fp8", "fp8-rows") for point in bench.of("product", kind)
        ],
        "decode_bytes_per_s": [point.bytes_per_s for point in bench.of("attention_decode")],
        "prefill_flops_per_s": [point.flops_per_s for point in bench.of("attention_prefill")],
    }
    return {name: max(values) for name, values in rates.items() if values}


def save(bench: Bench, path: Path) -> None:
    """Whole or not at all: a reader never sees half of it."""
    partial = path.with_name(path.name + ".part")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(bench), indent=1) + b"\n")
    partial.replace(path)
