"""A GPU's benchmark made from known coefficients by formulas written out here, for tests of the fit."""

from __future__ import annotations

import itertools

import numpy as np

from loadstone import catalogue
from loadstone.predict.gpubench.points import Bench, Device, Method, Point
from loadstone.predict.step_time.expert_kernels import expert_kernel

H100 = catalogue.gpu("h100")
TRUE = {
    "gemm_compute_bf16": 0.78,
    "gemm_memory_bf16": 0.89,
    "gemm_compute_fp8": 0.66,
    "gemm_memory_fp8": 0.80,
    "expert_compute": 0.61,
    "expert_memory": 0.84,
    "attention_decode": 0.71,
    "attention_prefill": 0.60,
    "product_s": 2.2e-6,
    "layer_s": 21e-6,
    "launch_s": 4.4e-6,
}
PRODUCT_FLOOR_S, DECODE_FLOOR_S, PROMPT_FLOOR_S = TRUE["product_s"], 6e-6, 5e-6
TOKENS = (1, 8, 64, 256, 1024, 8192)
SHAPES = ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096), (4096, 128256))


def device(name: str = "NVIDIA H100 80GB HBM3") -> Device:
    return Device(
        name=name, memory_bytes=85_000_000_000, multiprocessors=132, l2_bytes=50 * 1024 * 1024, capability="9.0",
        driver="580.159.04", power_limit_w=700.0, sm_clock_max_mhz=1980.0, software={"torch": "2.11.0+cu130"},
    )  # fmt: skip


def point(
    operator: str, shape: dict[str, int], seconds: float, *, dtype: str = "bf16", kernel: str = "cublas",
    method: Method = "graph", flops: float = 0.0, moved: float = 0.0,
) -> Point:  # fmt: skip
    return Point(
        operator=operator, shape=shape, dtype=dtype, kernel=kernel, method=method, median_s=seconds,
        p10_s=seconds * 0.99, p90_s=seconds * 1.01, n=20, calls=50, flops=flops, bytes=moved, error=1e-3,
    )  # fmt: skip


def made(noise: float = 0.02, seed: int = 0, tokens: tuple[int, ...] = TOKENS) -> Bench:
    """Times are the model's with log-normal noise; beside each decode a kernel that is half as fast."""
    rng = np.random.default_rng(seed)
    hbm, peak, peak8 = H100.hbm_bytes_per_s, H100.flops_per_s["bf16"], H100.flops_per_s["fp8"]

    def off() -> float:
        return float(np.exp(rng.normal(0.0, noise)))

    def overlap(first: float, second: float) -> float:
        return float((first**3 + second**3) ** (1 / 3))

    points = []
    for (inputs, outputs), n, (dtype, size, top, e) in itertools.product(
        SHAPES,
        tokens,
        (("bf16", 2, peak, "bf16"), ("fp8-rows", 1, peak8, "fp8"), ("fp8", 1, peak8, "fp8")),
    ):
        flops = 2.0 * n * inputs * outputs
        moved = float(size * inputs * outputs + n * (size * inputs + 2 * outputs))
        seconds = PRODUCT_FLOOR_S + overlap(
            flops / (TRUE[f"gemm_compute_{e}"] * top), moved / (TRUE[f"gemm_memory_{e}"] * hbm)
        )
        shape = {"tokens": n, "inputs": inputs, "outputs": outputs}
        points.append(point("product", shape, seconds * off(), dtype=dtype, flops=flops, moved=moved))
    for sequences, context in ((1, 1024), (8, 1024), (32, 1024), (128, 1024), (32, 4096), (1, 65536)):
        moved, flops = 4.0 * sequences * context * 1024, 4.0 * sequences * context * 4096
        seconds = DECODE_FLOOR_S + overlap(
            moved / (TRUE["attention_decode"] * hbm), flops / (TRUE["attention_prefill"] * peak)
        )
        shape = {"sequences": sequences, "context": context, "heads": 32, "kv_heads": 8, "head_dim": 128}
        seconds *= off()
        for kernel, slower in (("flash", 2.0), ("paged", 1.0)):
            points.append(point("attention_decode", shape, seconds * slower, kernel=kernel, flops=flops, moved=moved))
    for new, cached in ((1024, 0), (2048, 0), (8192, 0), (2048, 8192), (512, 4096)):
        flops = 4.0 * 4096 * (new * cached + new * (new + 1) / 2)
        seconds = PROMPT_FLOOR_S + flops / (TRUE["attention_prefill"] * peak)
        shape = {"new": new, "cached": cached, "heads": 32, "kv_heads": 8, "head_dim": 128}
        points.append(point("attention_prefill", shape, seconds * off(), kernel="flash", flops=flops))
    for n in (1, 8, 64):
        products = sum(
            overlap(
                2.0 * n * i * o / (TRUE["gemm_compute_bf16"] * peak),
                2.0 * (i * o + n * (i + o)) / (TRUE["gemm_memory_bf16"] * hbm),
            )
            for i, o in ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096))
        )
        shape = {"tokens": n, "hidden": 4096, "intermediate": 14336, "heads": 32, "kv_heads": 8, "head_dim": 128}
        whole = products + 4 * PRODUCT_FLOOR_S + TRUE["layer_s"] - DECODE_FLOOR_S
        points.append(point("layer", shape, whole * float(np.exp(rng.normal(0, noise / 20))), kernel="torch"))
        points.append(point("layer", shape, 95e-6 * off(), kernel="torch", method="host"))
    for n, touched in ((1, 8), (8, 50), (64, 126), (512, 128), (4096, 128), (16384, 128)):
        flops, moved = 2.0 * 8 * n * 2048 * 1536, 2.0 * (touched * 2048 * 1536 + 8 * n * (2048 + 1536))
        kernel = expert_kernel("*", "hopper", "bf16")
        seconds = PRODUCT_FLOOR_S + flops / (TRUE["expert_compute"] * kernel.compute * peak)
        seconds += moved / (TRUE["expert_memory"] * kernel.memory * hbm)
        shape = {"tokens": n, "experts": 128, "per_token": 8, "touched": touched, "inputs": 2048, "outputs": 1536}
        points.append(point("experts", shape, seconds * off(), kernel="torch", flops=flops, moved=moved))
    points.append(point("launch", {"kernels": 1}, TRUE["launch_s"], kernel="torch", method="host"))
    points.append(point("copy", {"bytes": 1 << 32}, 2 * 2**32 / 3.0e12, kernel="torch", moved=2.0 * 2**32))
    return Bench(
        created="2026-01-01T00:00:00+00:00", loadstone="0.1.0", device=device(), budget_s=480.0, took_s=300.0,
        complete=True, points=points,
    )  # fmt: skip
