"""AIConfigurator on the rows that accuracy.py scored: the same deployments, lengths and users.

    pip install "aiconfigurator==0.12.*"      (an environment of its own; this script needs nothing
                                              of Loadstone)
    python benchmarks/accuracy_peer.py ROWS.json [--rows 200]

ROWS.json is what `accuracy.py --json` wrote. A seeded sample of the closed-loop rows without
speculative decoding; where the installed tables have no such combination the row is counted as not
predicted.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
import statistics
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

BACKENDS = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}
SYSTEMS = {
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200": "gb200",
}
GEMM = {
    "fp8": "fp8_block",
    "nvfp4": "nvfp4",
    "bf16": "bfloat16",
    "mxfp4": "bfloat16",
    "int4": "bfloat16",
}
EXPERTS = {
    "fp8": "fp8_block",
    "nvfp4": "nvfp4",
    "bf16": "bfloat16",
    "mxfp4": "w4a16_mxfp4",
    "int4": "int4_wo",
}
DENSE = ("llama", "qwen3-32b")


def estimate(row: dict[str, Any]) -> tuple[float, float]:
    """(TTFT, TPOT) in seconds."""
    from aiconfigurator.cli.api import cli_estimate  # type: ignore[import-not-found]

    dense = row["family"].startswith(DENSE)
    ranks = row["tp"] * (row["dp"] if row["attention_dp"] else 1)
    more: dict[str, Any] = {}
    if not dense:
        more = {
            "moe_ep_size": row["ep"],
            "moe_tp_size": ranks // row["ep"],
            "moe_quant_mode": EXPERTS[row["weights"]],
        }
    model = row["model"].replace("/Llama-3.1-70B", "/Meta-Llama-3.1-70B")
    found = cli_estimate(
        model.replace("/Llama-3.1-8B-Instruct", "/Meta-Llama-3.1-8B"),
        SYSTEMS[row["gpu"]],
        backend_name=BACKENDS[row["engine"]],
        isl=row["input_tokens"],
        osl=row["output_tokens"],
        batch_size=max(1, round(row["users"] / row["dp"])),
        tp_size=row["tp"],
        attention_dp_size=row["dp"] if row["attention_dp"] else 1,
        gemm_quant_mode="fp8" if dense and row["weights"] == "fp8" else GEMM[row["weights"]],
        kvcache_quant_mode="fp8" if row["kv"] == "fp8" else "bfloat16",
        **more,
    )
    return found.ttft / 1e3, found.tpot / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("--rows", dest="count", type=int, default=200)
    arguments = parser.parse_args()
    logging.disable(logging.ERROR)
    rows = [
        row
        for row in json.loads(arguments.rows.read_text())
        if row["gpu"] in SYSTEMS
        and row["users"]
        and row["tpot_s"]
        and row["ttft_s"]
        and "ttft" in row
        and "num_speculative_tokens" not in row["deployment"]
    ]
    random.Random(1).shuffle(rows)
    theirs: dict[tuple[str, str], list[float]] = defaultdict(list)
    ours: dict[tuple[str, str], list[float]] = defaultdict(list)
    failed = Counter[str]()
    for row in rows[: arguments.count]:
        try:
            ttft, tpot = estimate(row)
        except Exception as error:
            what = (
                f"{row['gpu']} {row['engine']} {row['family']} {row['weights']}:"
                f" {type(error).__name__} {error}"
            )
            failed[what[:140]] += 1
            continue
        for group in ("all", row["gpu"], row["engine"]):
            for name, value in (("ttft", ttft), ("tpot", tpot)):
                theirs[group, name].append(value / row[f"{name}_s"] - 1)
                ours[group, name].append(math.exp(-row[name]["ln_measured_over_predicted"]) - 1)
    for (group, name), values in sorted(theirs.items()):
        mine = ours[group, name]
        print(
            f"{group:14s} {name} n {len(values):4d}: AIConfigurator"
            f" {statistics.median(map(abs, values)):6.1%} (bias {statistics.median(values):+.0%}),"
            f" Loadstone {statistics.median(map(abs, mine)):6.1%} (bias"
            f" {statistics.median(mine):+.0%})"
        )
    print(f"not predicted: {sum(failed.values())} of {min(arguments.count, len(rows))}")
    for text, count in failed.most_common(15):
        print(f"  {count:3d}  {text}")


if __name__ == "__main__":
    main()
