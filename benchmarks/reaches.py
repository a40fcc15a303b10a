"""What step_time/boards.py is made of, by the kernel tables of PyPI's aiconfigurator-core
(Apache-2.0): what matrix products reach of data sheets, how fast 16-bit and FP8 caches are read,
what all-reduces reach of their links.

    pip install --no-deps --target TABLES aiconfigurator-core==0.12.0
    python benchmarks/reaches.py TABLES/aiconfigurator_core/systems/data

Each table of products is fitted by t0 + ‖FLOPs/(compute·peak), bytes/(memory·bandwidth)‖, ‖a, b‖ =
(a³ + b³)^⅓, over those of at least 4 million weights. Caches: decodes that read at least 256
million numbers, heads of 128, medians. All-reduces: the shortest time, and the ring's bytes of the
longest message over its time. Two minutes on one core.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from expert_kernels import BOARDS, CACHE_BYTES
from numpy.typing import NDArray
from scipy.optimize import least_squares

from loadstone.catalogue import gpu

TYPES = {
    "bfloat16": ("bf16", 2.0),
    "fp8": ("fp8", 1.0),
    "fp8_block": ("fp8", 1.0),
    "nvfp4": ("fp4", 0.5625),
}
Floats = NDArray[np.float64]
LEAST_WEIGHTS, LEAST_READ = 2**22, 2**28
UNCACHED_BYTES = 32e6
"""Of the boards with large caches, products with smaller weights are left out: the tables go round
a few copies of them, which the cache holds, at up to three times the data sheet's bandwidth."""
MOST_FLOOR_S = 20e-6
"""Tables with a longer floor are of kernels that quantise on the host's side: what they reach says
little."""


def fitted(path: Path, board: str) -> dict[str, tuple[float, float, float, float]]:
    """By type: compute, memory (shares of the peaks), floor (s), median error."""
    table = pq.read_table(path, columns=["gemm_dtype", "m", "n", "k", "latency"])
    dtype = np.array(table["gemm_dtype"].to_pylist())
    rows, wide, deep, ms = (
        table[name].to_numpy().astype(float) for name in ("m", "n", "k", "latency")
    )
    device, found = gpu(board), {}
    for name, (kind, width) in TYPES.items():
        at = (dtype == name) & (wide * deep >= LEAST_WEIGHTS) & (np.minimum(wide, deep) >= 1024)
        at &= np.maximum(wide, deep) <= 65536
        if board in CACHE_BYTES:
            at &= wide * deep * width >= UNCACHED_BYTES
        if at.sum() < 1000 or kind not in device.flops_per_s:
            continue
        m, n, k, seconds = rows[at], wide[at], deep[at], ms[at] * 1e-3
        products = 2 * m * n * k / device.flops_per_s[kind]
        reading = (n * k * width + 2 * m * (n + k)) / device.hbm_bytes_per_s

        given = products, reading, seconds
        best = least_squares(
            off, np.log([0.6, 0.7, 5e-6]), loss="soft_l1", f_scale=0.1, args=given
        ).x
        compute, memory, floor = (float(each) for each in np.exp(best))
        found[name] = compute, memory, floor, float(np.median(np.abs(np.expm1(off(best, *given)))))
    return found


def off(logs: Floats, products: Floats, reading: Floats, seconds: Floats) -> Floats:
    """ln of the formula's times over those of the table."""
    compute, memory, floor = np.exp(logs)
    said: Floats = floor + np.cbrt((products / compute) ** 3 + (reading / memory) ** 3)
    gap: Floats = np.log(said / seconds)
    return gap


def products(folder: Path) -> None:
    classes: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    print("| board | engine | type | of peak | of bandwidth | floor | off |")
    print("|---|---|---|---|---|---|---|")
    for board, engine, path in tables(folder, "gemm", "gemm_perf"):
        for name, (compute, memory, floor, error) in fitted(path, board).items():
            print(
                f"| {board} | {engine} | {name} | {compute:.2f} | {memory:.2f} | {floor * 1e6:.1f}"
                f" µs | {error:.0%} |"
            )
            if floor <= MOST_FLOOR_S:
                classes[board, TYPES[name][0]].append((compute, memory))
    print("| ratio to H100, H200 and B200 | type | of peak | of bandwidth |")
    print("|---|---|---|---|")
    for (board, kind), each in sorted(classes.items()):
        others = [
            classes[name, kind] for name in ("h100", "h200", "b200") if (name, kind) in classes
        ]
        mine, rest = np.log(each).mean(0), np.mean([np.log(other).mean(0) for other in others], 0)
        compute, memory = np.exp(mine - rest)
        print(f"| {board} | {kind} | {compute:.2f} | {memory:.2f} |")


def caches(folder: Path) -> None:
    print("| board | engine | 16 bits, TB/s | FP8, TB/s |")
    print("|---|---|---|---|")
    for board, engine, path in tables(folder, "attention", "generation_attention_perf"):
        read: dict[int, list[float]] = {1: [], 2: []}
        for row in pq.read_table(path).to_pylist():
            numbers = row["batch_size"] * (row["isl"] + row["step"]) * 2 * row["head_dim"]
            numbers *= row["num_key_value_heads"] or row["num_heads"]
            if row["head_dim"] == 128 and numbers >= LEAST_READ and not row.get("window_size"):
                width = 1 if "fp8" in row["kv_cache_dtype"] else 2
                read[width].append(numbers * width / row["latency"] / 1e9)
        if read[1] and read[2]:
            print(f"| {board} | {engine} | {np.median(read[2]):.2f} | {np.median(read[1]):.2f} |")


def all_reduces(folder: Path) -> None:
    print("| board | engine | ranks | at least | of the link |")
    print("|---|---|---|---|---|")
    for board, engine, path in tables(folder, "comm", "custom_allreduce_perf"):
        times: dict[int, dict[int, float]] = defaultdict(dict)
        for row in pq.read_table(path).to_pylist():
            known = times[row["num_gpus"]]
            known[row["message_size"]] = min(
                row["latency"] * 1e-3, known.get(row["message_size"], np.inf)
            )
        for ranks, known in sorted(times.items()):
            longest = max(known)
            ring = 2 * (ranks - 1) / ranks * 2 * longest  # numbers of 16 bits
            share = ring / known[longest] / gpu(board).link_bytes_per_s
            print(
                f"| {board} | {engine} | {ranks} | {min(known.values()) * 1e6:.1f} µs |"
                f" {share:.2f} |"
            )


def tables(folder: Path, kind: str, name: str) -> Iterator[tuple[str, str, Path]]:
    """(board of the catalogue, engine and version, file) of each table of a kind."""
    for path in sorted(folder.glob(f"*/{kind}/*/*/{name}.parquet")):
        board, _, engine, version = path.parts[-5:-1]
        if board in BOARDS:
            yield BOARDS[board], f"{engine} {version}", path


def main() -> None:
    folder = Path(sys.argv[1])
    products(folder)
    caches(folder)
    all_reduces(folder)


if __name__ == "__main__":
    main()
