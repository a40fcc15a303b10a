"""AIConfigurator on the same relations: how many of its own predictions cannot be.

    python benchmarks/relations.py --grid GRID.json
    pip install "aiconfigurator==0.12.*"      (an environment of its own; this script needs nothing
                                              of Loadstone)
    python benchmarks/relations_peer.py GRID.json [--relations 100]

A seeded sample of the relations `fp8` and `newer` whose models and GPUs it has; with FP8 in blocks
and without as the grid says. Its TTFT is that of a steady state with so many users. An estimate
takes it seconds.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
from collections import Counter
from functools import cache
from pathlib import Path

TOLERANCE = 0.03
BACKENDS = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}
SYSTEMS = {"h100": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm", "b300": "b300_sxm"}
MODELS = {
    # ours: theirs, and whether it has experts
    "llama-3.1-8b": ("meta-llama/Meta-Llama-3.1-8B", False),
    "llama-3.1-70b": ("meta-llama/Meta-Llama-3.1-70B", False),
    "llama-3.1-405b": ("meta-llama/Meta-Llama-3.1-405B", False),
    "qwen3-32b": ("Qwen/Qwen3-32B", False),
    "qwen3-30b-a3b": ("Qwen/Qwen3-30B-A3B", True),
    "qwen3-235b-a22b": ("Qwen/Qwen3-235B-A22B", True),
}
PRECISIONS = {"bf16": "bfloat16", "fp8": "fp8", "fp8 blocks": "fp8_block"}


@cache
def estimate(
    model: str, weights: str, gpu: str, engine: str, ranks: int, prompt: int, users: int
) -> dict[str, float] | str:
    """TTFT and TPOT in ms; or why there are none."""
    from aiconfigurator.cli.api import cli_estimate  # type: ignore[import-not-found]

    name, experts = MODELS[model]
    dealt = (
        {"moe_ep_size": 1, "moe_tp_size": ranks, "moe_quant_mode": PRECISIONS[weights]}
        if experts
        else {}
    )
    try:
        found = cli_estimate(
            name,
            SYSTEMS[gpu],
            backend_name=BACKENDS[engine],
            isl=prompt,
            osl=256,
            batch_size=users,
            tp_size=ranks,
            attention_dp_size=1,
            gemm_quant_mode=PRECISIONS[weights],
            kvcache_quant_mode="bfloat16",
            **dealt,
        )
    except Exception as error:
        return f"{gpu} {engine} {model} {weights}: {type(error).__name__}"
    return {"TTFT": found.ttft, "TPOT": found.tpot}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("grid", type=Path)
    parser.add_argument("--relations", type=int, default=100)
    arguments = parser.parse_args()
    logging.disable(logging.ERROR)
    grid = [
        (kind, fast, slow)
        for kind, fast, slow in json.loads(arguments.grid.read_text())
        if kind in ("fp8", "newer")
        and fast[0] in MODELS
        and {fast[2], slow[2]} <= SYSTEMS.keys()
        and fast[5] > 1  # prompts of one token: its tables of attention begin later
    ]
    random.Random(1).shuffle(grid)
    counts, violated, failed = Counter[str](), Counter[str](), Counter[str]()
    for kind, fast, slow in grid[: arguments.relations]:
        here, there = estimate(*fast), estimate(*slow)
        if isinstance(here, str) or isinstance(there, str):
            failed[here if isinstance(here, str) else str(there)] += 1
            continue
        for metric in here:
            counts[f"{kind} {metric}"] += 1
            if here[metric] > there[metric] * (1 + TOLERANCE):
                violated[f"{kind} {metric}"] += 1
                print(
                    f"{kind} {metric} {here[metric] / there[metric] - 1:+.0%} {fast} against"
                    f" {slow}",
                    flush=True,
                )
    for name, count in sorted(counts.items()):
        print(f"{name:12s} {violated[name]:4d} of {count:4d} violated")
    print(f"not predicted: {failed.total()} of {min(arguments.relations, len(grid))}")
    for text, count in failed.most_common(15):
        print(f"  {count:3d}  {text}")


if __name__ == "__main__":
    main()
