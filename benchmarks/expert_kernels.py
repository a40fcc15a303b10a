"""Writes step_time/expert_kernels.json anew from the kernel tables of PyPI's aiconfigurator-core
(Apache-2.0).

    pip install --no-deps --target TABLES aiconfigurator-core==0.12.0
    python benchmarks/expert_kernels.py TABLES/aiconfigurator_core/systems/data [--write FILE]

Prints what each kernel reaches and how far the fit is off. A minute on one core.

`<gpu>/moe/<engine>/<version>/moe_perf.parquet` has the time of an engine's grouped expert products,
in ms, by tokens, hidden and intermediate size, experts (all and per token), tensor and expert
parallelism. Rows with `balanced` routing are taken, for there the experts touched are known:
min(experts, pairs). Of a table that has none, the prompts of its least uneven routing, which touch
all experts.

Floor and memory come from few tokens (a decode), compute and moving from many (a prompt), in turn
until they agree; where there are prompts alone, floor and memory are those of the architecture's
other engines.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from loadstone.catalogue import Gpu, gpu
from loadstone.catalogue.architecture.precision import FORMATS
from loadstone.core.errors import InputError
from loadstone.core.vectors import Floats
from loadstone.predict.step_time.boards import architecture_of
from loadstone.predict.step_time.expert_kernels import PER_TENSOR, ExpertKernel, mean_of

BOARDS = {
    "a100_sxm": "a100",
    "h100_sxm": "h100",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
}
_ENGINES = {"trtllm": "tensorrt-llm"}
_DTYPES = {
    "bfloat16": "bf16",
    "fp8": PER_TENSOR,
    "fp8_block": "fp8",
    "int4_wo": "int4",
    "nvfp4": "nvfp4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4",
}
FEW, MANY = 192, 1024
"""Tokens of a step: decodes have at most, prompts at least so many."""
MOST_FLOOR_S = 35e-6
"""Longer floors are of kernels whose many launches the measurement did not replay as a graph, as
engines do (Triton's for MXFP4 on Hopper). A judgement, from what whole engines take; a table with
more than twice it is not taken."""
LEAST_MEMORY = 0.35
"""Kernels that read slower widen their weights first, which engines do where they have nothing
better."""
MOST_COMPUTE = 0.8
"""No product reaches more of the peak; tables of narrow experts would say so, whose time is that of
their ends."""
LONG, MOST_OF_A_HALF = 8192, 0.8
"""Of the time of all experts, what half of them with half the pairs take at so many tokens, whose
products take longer than reading weights: tables have 0.5 to 0.7, or 0.94 to 1."""
_DECODE = "min_latency"
"""A kernel of TensorRT-LLM's for few tokens, which knows no ranks and is the fastest of its tables
up to 16,384. It has others for prompts, about as fast, that no table has: without these rows
NVIDIA's own throughput is met worse."""
CACHE_BYTES = {"l40s": 96 << 20, "rtx-pro-6000": 128 << 20}
"""Second-level caches that are large for their board's bandwidth. Tables are of one product over
and over, whose weights then come from there, at up to 3.8 times the data sheet's bandwidth; in an
engine other layers have passed through it in between."""
_TINY_BYTES, BEYOND_CACHE = 8e6, 1.5
"""Of such a board those rows are taken whose touched weights are so few that the floor is most of
their time, or so many times the cache that little of them stays."""
_EVENEST = "power_law_1.01"
_LEAST_ROWS = 100
_ROUNDS = 4

Row = dict[str, Any]


def fit_tables(folder: Path) -> list[ExpertKernel]:
    """One kernel for each engine, architecture and type: the newest version's, the faster where it
    has several.

    `folder`: aiconfigurator_core's `systems/data`. Raises InputError where it has no tables.
    """
    tables: dict[tuple[str, str, str, str], dict[tuple[Any, ...], tuple[Gpu, Row]]] = defaultdict(
        dict
    )
    for path in sorted(folder.glob("*/moe/*/*/moe_perf.parquet")):
        board, _, engine, version = path.parts[-5:-1]
        if board not in BOARDS:
            continue
        device = gpu(BOARDS[board])
        entries = _rows(path)
        eight = any(row["moe_dtype"] == "w4a8_mxfp4_mxfp8" for row in entries)
        for row in entries:
            if row["moe_dtype"] == "w4a16_mxfp4" and eight:
                continue  # engines that multiply four bits in eight widen them nowhere
            name = _ENGINES.get(engine, engine)
            key = (name, version, architecture_of(device), _DTYPES[row["moe_dtype"]])
            place = (board, *(row[column] for column in _SHAPE))
            kept = tables[key].get(place)
            if kept is None or row["latency"] < kept[1]["latency"]:
                tables[key][place] = device, row
    if not tables:
        raise InputError(
            f"{folder}: no */moe/*/*/moe_perf.parquet; give systems/data of aiconfigurator-core"
        )
    newest: dict[tuple[str, str, str], ExpertKernel] = {}
    prompts: dict[tuple[str, str, str], tuple[str, list[tuple[Gpu, Row]]]] = {}
    for (engine, version, architecture, dtype), rows in sorted(
        tables.items(), key=lambda each: _number(each[0][1])
    ):
        told = _told_apart(list(rows.values()))
        even = [each for each in told if each[1]["distribution"] != _EVENEST]
        if len(even or told) < _LEAST_ROWS:
            continue
        if not even:
            prompts[engine, architecture, dtype] = version, told
            continue
        kernel = _fit(engine, version, architecture, dtype, even)
        if kernel.memory >= LEAST_MEMORY and kernel.floor_s <= 2 * MOST_FLOOR_S:
            newest[engine, architecture, dtype] = replace(
                kernel, floor_s=min(kernel.floor_s, MOST_FLOOR_S)
            )
    balanced = list(newest.values())
    for (engine, architecture, dtype), (version, listed) in prompts.items():
        others = [
            each for each in balanced if (each.architecture, each.dtype) == (architecture, dtype)
        ]
        if others and (engine, architecture, dtype) not in newest:
            like = mean_of(engine, architecture, dtype, others)
            newest[engine, architecture, dtype] = _fit(
                engine, version, architecture, dtype, listed, like
            )
    return [newest[key] for key in sorted(newest)]


_SHAPE = (
    "num_tokens",
    "hidden_size",
    "inter_size",
    "topk",
    "num_experts",
    "moe_tp_size",
    "moe_ep_size",
)


def _rows(path: Path) -> list[Row]:
    """Gated experts of the sizes that catalogued models have, on at most 16 GPUs; evenly asked for
    if a table can."""
    import pyarrow.parquet as pq

    columns = [*_SHAPE, "moe_dtype", "kernel_source", "distribution", "latency"]
    rows = [
        row
        for row in pq.read_table(path, columns=columns).to_pylist()
        if row["distribution"] in ("balanced", _EVENEST)
        and row["moe_dtype"] in _DTYPES
        and row["latency"] > 0
        and "nongated" not in row["kernel_source"]
        and row["moe_tp_size"] * row["moe_ep_size"] <= 16
        and row["hidden_size"] >= 2048
        and row["inter_size"] < 8000
        and row["topk"] < 20
    ]
    balanced = [row for row in rows if row["distribution"] == "balanced"]
    return balanced or [row for row in rows if row["num_tokens"] >= MANY]


def _told_apart(rows: list[tuple[Gpu, Row]]) -> list[tuple[Gpu, Row]]:
    """Without whole experts on several ranks where these do not share the prompts' pairs: two take
    about as long as one does with all experts. Some tables gave each rank the pairs of all
    (SGLang's of 0.5.10), some kernels multiply them (Triton's of TensorRT-LLM on workstation
    Blackwell)."""
    whole: dict[tuple[Any, ...], float] = {}
    halves: dict[tuple[Any, ...], float] = {}
    for device, row in rows:
        place = (device.name, *(row[column] for column in _SHAPE[:-1]))
        if (
            row["num_tokens"] >= LONG
            and row["moe_ep_size"] <= 2
            and _DECODE not in row["kernel_source"]
        ):
            (whole if row["moe_ep_size"] == 1 else halves)[place] = row["latency"]
    both = [halves[place] / whole[place] for place in whole.keys() & halves.keys()]
    if not both or np.median(both) < MOST_OF_A_HALF:
        return rows
    return [each for each in rows if each[1]["moe_ep_size"] == 1]


def _fit(
    engine: str,
    version: str,
    architecture: str,
    dtype: str,
    rows: list[tuple[Gpu, Row]],
    like: ExpertKernel | None = None,
) -> ExpertKernel:
    """`like`: whose floor and memory it has, where `rows` are of prompts alone; `off` is then of
    these."""
    from scipy.optimize import least_squares

    stored = "fp8" if dtype == PER_TENSOR else dtype
    form = FORMATS[stored]
    kind = "fp4" if dtype in ("nvfp4", "mxfp4") else stored

    def column(name: str) -> Floats:
        return np.array([row[name] for _, row in rows], np.float64)

    tokens, hidden = column("num_tokens"), column("hidden_size")
    wide, ep = column("inter_size") / column("moe_tp_size"), column("moe_ep_size")
    experts, pairs = column("num_experts") / ep, tokens * column("topk") / ep
    touched = np.minimum(experts, np.maximum(pairs, 1.0))
    hbm = np.array([device.hbm_bytes_per_s for device, _ in rows])
    peak = np.array(
        [device.flops_per_s.get(kind, device.peak_flops_per_s("bf16")) for device, _ in rows]
    )
    parameters = 3 * hidden * wide
    weights = touched * parameters * form.bytes
    reading = weights / hbm
    moving = pairs * 2 * (2 * hidden + 3 * wide) / hbm
    products = 2 * pairs * parameters / peak
    measured = np.log(column("latency") * 1e-3)

    def off(logs: Floats, at: Any) -> Floats:
        floor, memory, compute, moved = np.exp(logs)
        seconds = floor + reading[at] / memory + products[at] / compute + moving[at] / moved
        gap: Floats = np.log(seconds) - measured[at]
        return gap

    cache = np.array([CACHE_BYTES.get(device.name, 0) for device, _ in rows])
    few = (tokens <= FEW) & ((weights <= _TINY_BYTES) | (weights >= BEYOND_CACHE * cache))
    many = tokens >= MANY
    decode, prompt = np.log([25e-6, 0.75]), np.log([0.3, 0.3])
    bounds = (np.log([1e-3, 1e-3]), np.log([MOST_COMPUTE, 1.0]))
    robust = {"loss": "soft_l1", "f_scale": 0.1}
    if like is not None:
        few, decode = many, np.log([like.floor_s, like.memory])
    for _ in range(_ROUNDS):
        if like is None:
            decode = least_squares(
                lambda x, other=prompt: off(np.append(x, other), few), decode, **robust
            ).x
        prompt = least_squares(
            lambda x, other=decode: off(np.append(other, x), many), prompt, bounds=bounds, **robust
        ).x
    logs = np.append(decode, prompt)
    floor, memory, compute, moved = (float(f"{value:.3g}") for value in np.exp(logs))
    error = float(np.median(np.abs(np.expm1(off(logs, few)))))
    return ExpertKernel(
        engine,
        architecture,
        dtype,
        floor,
        compute,
        memory,
        moved,
        version,
        len(rows),
        round(error, 3),
    )


def _number(version: str) -> list[int]:
    return [int(each) for each in re.findall(r"\d+", version)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", type=Path)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    kernels = fit_tables(arguments.tables)
    print(
        "| engine | architecture | weights | version | floor | of bandwidth | of peak | moving |"
        " rows | off |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for each in kernels:
        print(
            f"| {each.engine} | {each.architecture} | {each.dtype} | {each.version} |"
            f" {each.floor_s * 1e6:.0f} µs | {each.memory:.2f} | {each.compute:.2f} |"
            f" {each.moving:.2f} | {each.rows} | {each.off:.0%} |"
        )
    if arguments.write:
        arguments.write.write_bytes(
            msgspec.json.format(msgspec.json.encode(kernels), indent=1) + b"\n"
        )


if __name__ == "__main__":
    main()
