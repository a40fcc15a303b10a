"""What matrix products reach of data sheets, by the GEMM tables of PyPI's aiconfigurator-core (Apache-2.0).

    pip install --no-deps --target TABLES aiconfigurator-core==0.12.0
    python benchmarks/products.py TABLES/aiconfigurator_core/systems/data

Each table is fitted by t0 + ‖FLOPs/(compute·peak), bytes/(memory·bandwidth)‖, ‖a, b‖ = (a³ + b³)^⅓, over products of
at least 4 million weights. perfmodel/reaches.py has ratios of these. Two minutes on one core.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.optimize import least_squares

from loadstone.catalogue import gpu

BOARDS = {
    "a100_sxm": "a100",
    "h100_sxm": "h100",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
}
TYPES = {"bfloat16": ("bf16", 2.0), "fp8": ("fp8", 1.0), "fp8_block": ("fp8", 1.0), "nvfp4": ("fp4", 0.5625)}
Floats = NDArray[np.float64]
LEAST_WEIGHTS = 2**22
MOST_FLOOR_S = 20e-6
"""Tables with a longer floor are of kernels that quantise on the host's side: what they reach says little."""


def fitted(path: Path, board: str) -> dict[str, tuple[float, float, float, float]]:
    """By type: compute, memory (shares of the peaks), floor (s), median error."""
    table = pq.read_table(path, columns=["gemm_dtype", "m", "n", "k", "latency"])
    dtype = np.array(table["gemm_dtype"].to_pylist())
    rows, wide, deep, ms = (table[name].to_numpy().astype(float) for name in ("m", "n", "k", "latency"))
    device, found = gpu(BOARDS[board]), {}
    for name, (kind, width) in TYPES.items():
        at = (dtype == name) & (wide * deep >= LEAST_WEIGHTS) & (np.minimum(wide, deep) >= 1024)
        at &= np.maximum(wide, deep) <= 65536
        if at.sum() < 1000 or kind not in device.flops_per_s:
            continue
        m, n, k, seconds = rows[at], wide[at], deep[at], ms[at] * 1e-3
        products = 2 * m * n * k / device.flops_per_s[kind]
        reading = (n * k * width + 2 * m * (n + k)) / device.hbm_bytes_per_s

        given = products, reading, seconds
        best = least_squares(off, np.log([0.6, 0.7, 5e-6]), loss="soft_l1", f_scale=0.1, args=given).x
        compute, memory, floor = (float(each) for each in np.exp(best))
        found[name] = compute, memory, floor, float(np.median(np.abs(np.expm1(off(best, *given)))))
    return found


def off(logs: Floats, products: Floats, reading: Floats, seconds: Floats) -> Floats:
    """ln of the formula's times over those of the table."""
    compute, memory, floor = np.exp(logs)
    said: Floats = floor + np.cbrt((products / compute) ** 3 + (reading / memory) ** 3)
    gap: Floats = np.log(said / seconds)
    return gap


def main() -> None:
    folder = Path(sys.argv[1])
    classes: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    print("| board | engine | type | of peak | of bandwidth | floor | off |")
    print("|---|---|---|---|---|---|---|")
    for path in sorted(folder.glob("*/gemm/*/*/gemm_perf.parquet")):
        board, _, engine, version = path.parts[-5:-1]
        if board not in BOARDS:
            continue
        for name, (compute, memory, floor, error) in fitted(path, board).items():
            print(
                f"| {BOARDS[board]} | {engine} {version} | {name} | {compute:.2f} | {memory:.2f} | "
                f"{floor * 1e6:.1f} µs | {error:.0%} |"
            )
            if floor <= MOST_FLOOR_S:
                classes[BOARDS[board], TYPES[name][0]].append((compute, memory))
    print("| ratio to H100, H200 and B200 | type | of peak | of bandwidth |")
    print("|---|---|---|---|")
    for (board, kind), each in sorted(classes.items()):
        others = [classes[name, kind] for name in ("h100", "h200", "b200") if (name, kind) in classes]
        mine, rest = np.log(each).mean(0), np.mean([np.log(other).mean(0) for other in others], 0)
        compute, memory = np.exp(mine - rest)
        print(f"| {board} | {kind} | {compute:.2f} | {memory:.2f} |")


if __name__ == "__main__":
    main()
