"""How long sizing takes: a table of 500 deployments, from names to rows.

    python benchmarks/sizing.py [--rounds N]

`first_s` is a first table in a fresh process, with reading the catalogue; `command_s` the whole
command, from Python's start to the rows as JSON. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from loadstone.predict.sizing.deployments import sizes
from loadstone.predict.sizing.options import SizeOptions

MODELS = (
    "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "mixtral-8x22b", "deepseek-v3", "qwen3-32b", "gpt-oss-120b",
)  # fmt: skip

GPUS = ("a100", "h100", "h200", "b200", "mi300x")
COUNTS = (1, 2, 4, 8)
DTYPES = ("bf16", "fp8")
KV_DTYPES = ("bf16", "fp8")


OPTIONS = SizeOptions(
    models=MODELS, gpu=GPUS, gpus=COUNTS, weights_dtype=DTYPES, kv_dtype=KV_DTYPES
)
"""7 models × 5 GPUs × 4 counts × 2 precisions of weights × 2 of the cache: 560 rows."""


def command() -> list[str]:
    lists = {"gpu": GPUS, "gpus": map(str, COUNTS), "weights-dtype": DTYPES, "kv-dtype": KV_DTYPES}
    flags = [part for name, values in lists.items() for part in (f"--{name}", ",".join(values))]
    return [sys.executable, "-m", "loadstone.commands", "size", ",".join(MODELS), *flags, "--json"]


def measure(rounds: int) -> dict[str, Any]:
    started = time.perf_counter()
    rows = sizes(OPTIONS)
    first_s = time.perf_counter() - started
    took = []
    for _ in range(rounds):
        started = time.perf_counter()
        sizes(OPTIONS)
        took.append(time.perf_counter() - started)
    started = time.perf_counter()
    subprocess.run(command(), check=True, stdout=subprocess.DEVNULL)
    command_s = time.perf_counter() - started
    return {
        "rows": len(rows),
        "fit": sum(row.fits for row in rows),
        "first_s": round(first_s, 3),
        "warm_s": round(statistics.median(took), 3),
        "command_s": round(command_s, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    print(json.dumps(measure(parser.parse_args().rounds)))


if __name__ == "__main__":
    main()
