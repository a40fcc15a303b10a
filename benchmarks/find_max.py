"""How well does --find-max find the highest load that bounds allow?

    python benchmarks/find_max.py [--seeds 20] [--http] [--json FILE]

On the simulated clock: the simulator's own capacity is that at which a long simulation (60,000 requests) of other
arrivals just holds the bounds; found is what `simulate --find-max` says with each seed. With --http also over real
HTTP on `serve-sim`, twice, for ten minutes each.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

from loadstone.runs.bench import bench  # noqa: F401 - imported before the clock runs
from loadstone.runs.find_max import find_max
from loadstone.runs.simulate import simulate
from loadstone.workload.options import Options, SimulateOptions, options_of

BOUNDS = "ttft_p99<500ms,tpot_p99<15ms"
TRAFFIC = {"input": "512", "output": "128", "range_ratio": 0.8}
DEPLOYMENT = "llama-3.1-8b@1xh100/engine=vllm"
LONG = 60_000


def true_capacity(out: str) -> float:
    """By bisection to 0.5 %, each probe long."""
    low, high = 1.0, 200.0
    options = options_of(TRAFFIC | {"deployment": DEPLOYMENT, "out": out, "slo": BOUNDS, "draws": 0}, SimulateOptions)
    while high / low > 1.005:
        rate = math.sqrt(low * high)
        cell = simulate(dataclasses.replace(options, rate=(rate,), requests=(LONG,), seed=12345))["cells"][0]
        holds = all(each["value"] <= each["limit_s"] for each in cell["slo"])
        low, high = (rate, high) if holds else (low, rate)
    return math.sqrt(low * high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    document: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as out:
        capacity = true_capacity(out)
        print(f"the simulator's own capacity: {capacity:.2f} requests/s")
        rows = []
        for seed in range(arguments.seeds):
            begun_s = time.monotonic()
            given = TRAFFIC | {"deployment": DEPLOYMENT, "out": out, "find_max": BOUNDS, "seed": seed}
            answer = find_max(options_of(given, SimulateOptions))["max"]
            middle = math.sqrt(answer["load"]["value"] * answer["fails_at"]["value"])
            rows.append({"seed": seed, "low": answer["load"]["value"], "high": answer["fails_at"]["value"],
                         "off": middle / capacity - 1, "requests": answer["requests"],
                         "seconds": time.monotonic() - begun_s})  # fmt: skip
        within = sum(abs(row["off"]) <= 0.05 for row in rows)
        seconds, requests = rows[0]["seconds"], rows[0]["requests"]
        print(f"within 5 %: {within} of {len(rows)}; requests {requests:,}, {seconds:.1f} s a search")
        document |= {"capacity": capacity, "within": within, "rows": rows}
        if arguments.http:
            document["http"] = []
            for seed in (1, 2):
                given = TRAFFIC | {
                    "sim": DEPLOYMENT,
                    "out": out,
                    "find_max": BOUNDS,
                    "seed": seed,
                    "max_duration": 600,
                }
                answer = find_max(options_of(given, Options))["max"]
                document["http"].append(answer)
                print(f"over HTTP, seed {seed}: {answer['text']}")
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
