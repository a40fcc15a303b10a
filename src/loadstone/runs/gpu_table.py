"""A GPU benchmark in some lines: the best that was seen, beside the data sheet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loadstone.catalogue.hardware import Gpu
from loadstone.core.units import show_number, show_seconds
from loadstone.gpubench.points import Bench
from loadstone.predict.calibrate.gpu import Fitted


def best(bench: Bench) -> dict[str, float]:
    """The highest rate of each kind, in bytes/s or FLOP/s; what was not measured is missing."""
    rates = {
        "copy_bytes_per_s": [point.bytes_per_s for point in bench.of("copy")],
        "read_bytes_per_s": [point.bytes_per_s for point in bench.of("read")],
        "bf16_flops_per_s": [point.flops_per_s for point in bench.of("product", "bf16")],
        "bf16_sustained_flops_per_s": [point.flops_per_s for point in bench.of("sustained_product", "bf16")],
        "fp8_flops_per_s": [point.flops_per_s for kind in ("fp8", "fp8-rows") for point in bench.of("product", kind)],
        "decode_bytes_per_s": [point.bytes_per_s for point in bench.of("attention_decode")],
        "prefill_flops_per_s": [point.flops_per_s for point in bench.of("attention_prefill")],
    }
    return {name: max(values) for name, values in rates.items() if values}


def document(bench: Bench, fitted: Fitted, path: str) -> dict[str, Any]:
    """What `--json` prints; the points are in the file."""
    import msgspec

    return {
        "schema": 1,
        "file": path,
        "device": msgspec.to_builtins(bench.device),
        "complete": bench.complete,
        "took_s": bench.took_s,
        "points": len(bench.points),
        "skipped": msgspec.to_builtins(bench.skipped),
        "best": best(bench),
        "fit": msgspec.to_builtins(fitted),
    }


def lines(bench: Bench, gpu: Gpu, fitted: Fitted) -> Iterator[str]:
    software = bench.device.software
    yield (
        f"{bench.device.name} · driver {bench.device.driver or 'unknown'} · torch {software['torch']} · "
        f"{len(bench.points)} points in {show_seconds(bench.took_s)}{'' if bench.complete else ', not complete'}"
    )
    for name, rate in best(bench).items():
        peak = gpu.hbm_bytes_per_s
        if "flops" in name:
            peak = gpu.peak_flops_per_s("fp8" if name.startswith("fp8") else "bf16")
        what = f"{name.removesuffix('_per_s').replace('_', ' '):22} {show_number(rate / 1e12):>6} T/s"
        yield f"  {what}  {rate / peak:4.0%} of the data sheet"
    for point in (*bench.of("launch"), *bench.of("graph_launch")):
        yield f"  {point.operator.replace('_', ' ') + ', ' + point.method:22} {show_seconds(point.median_s):>10}"
    yield "  coefficient                 value    ± standard error, scatter of points"
    for name, each in fitted.estimates.items():
        value = show_seconds(each.value) if name.endswith("_s") else f"{each.value:.3f}"
        yield f"  {name:22} {value:>10}    ± {each.spread:.1%}, {each.scatter:.1%} ({each.n})"
    if bench.skipped:
        yield f"  {len(bench.skipped)} skipped; the first: {bench.skipped[0].what}: {bench.skipped[0].why}"
