"""A day of many requests under an autoscaler: how long it takes to simulate, and where the time
goes.

    python benchmarks/autoscale.py [--requests 1000000] [--autoscale FILE]
    python benchmarks/autoscale.py --trace day.csv [--requests 3000] [--seconds 2400]

The day has one peak, five times as high as its night; requests are short: 50 to 300 tokens in, 8 to
40 out. `--trace` writes such a trace, of longer requests, and simulates nothing. Prints JSON: seconds
of the wall and of the processor, of the whole command `simulate`, and the fleet that came of it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np

import loadstone
from loadstone.core.summary import Summary

DEPLOYMENT = "llama-3.1-8b@1xa100"
SLO = "ttft_p99<500ms,tpot_p99<40ms"
SCALER = """\
preset: keda
metrics: [{metric: running, target: 2}, {metric: queued, target: 1}]
"""


def write_trace(file: Path, requests: int, seconds: float, lengths: tuple[int, ...]) -> None:
    """Write a trace whose rate rises to five times its least and falls again, by a seed."""
    rng = np.random.default_rng(0)
    at = np.linspace(0, 1, 10_001)
    rate = 0.6 - 0.4 * np.cos(2 * np.pi * at)
    share = np.concatenate([[0.0], np.cumsum(rate[1:] + rate[:-1])])
    times = np.interp(np.sort(rng.random(requests)), share / share[-1], at) * seconds
    shortest, longest, fewest, most = lengths
    prompts = rng.integers(shortest, longest, requests)
    answers = rng.integers(fewest, most, requests)
    lines = [f"{t:.2f},{i},{o}\n" for t, i, o in zip(times, prompts, answers, strict=True)]
    file.write_text("timestamp_s,input_tokens,output_tokens\n" + "".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--autoscale", type=Path)
    asked = parser.parse_args()
    if asked.trace is not None:
        lengths = (200, 2000, 400, 1600)
        write_trace(asked.trace, asked.requests or 3000, asked.seconds or 2400.0, lengths)
        return
    with tempfile.TemporaryDirectory() as folder:
        trace, scaler = Path(folder, "day.csv"), asked.autoscale or Path(folder, "scaler.yaml")
        requests, seconds = asked.requests or 1_000_000, asked.seconds or 86_400.0
        write_trace(trace, requests, seconds, (50, 300, 8, 40))
        if asked.autoscale is None:
            scaler.write_text(SCALER)
        begun_s, cpu_s = time.monotonic(), time.process_time()
        summary = loadstone.simulate(
            DEPLOYMENT, trace=trace, autoscale=str(scaler), slo=SLO, out=Path(folder, "runs")
        )
        wall_s, cpu_s = time.monotonic() - begun_s, time.process_time() - cpu_s
        assert isinstance(summary, Summary)
        fleet = summary.fleet
        assert fleet is not None
        result = {
            "requests": requests,
            "wall_s": round(wall_s, 1),
            "processor_s": round(cpu_s, 1),
            "cores": os.cpu_count(),
            "starts": fleet.starts,
            "most_replicas": max(count for _, count in fleet.paid),
            "sampled": fleet.sampled,
            "gpu_hours": fleet.gpu_hours,
            "attainment": fleet.attainment,
        }
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
