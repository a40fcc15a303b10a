"""How often the 80 % interval of a simulated throughput holds the truth: the rate times the mean
answer.

    python benchmarks/throughput.py [--deployment llama-3.1-70b@4xh100] [--seeds 20] [--rates 1,4,8]

Cells of a minute; answers of 128 tokens, or of 64 to 128. Arrivals: as plans have them, so many in
the time that they take at the rate; free, Poisson without that; and free and unknown, as a trace
tells no rate. *Kept up*: cells whose rate is the estimate. *Delivered*: how far what the cells
delivered is from the truth, as a standard deviation.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from loadstone.core import run_folder
from loadstone.core.plan import Plan
from loadstone.runs import simulate
from loadstone.workload.options import Options, SimulateOptions
from loadstone.workload.planning import plan_of

ARRIVALS = ("planned", "free", "free, unknown")


def drawn(plan: Plan, seed: int, arrivals: str) -> Plan:
    """The same requests, at other times."""
    if arrivals == "planned":
        return plan
    (load,) = plan.cells
    gaps = np.random.default_rng([seed, 7]).exponential(1 / load.value, len(plan))
    if arrivals != "free":
        load = msgspec.structs.replace(load, process="trace")
    return replace(plan, cells=(load,), intended_s=np.cumsum(gaps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deployment", default="llama-3.1-70b@4xh100")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rates", default="1,4,8")
    options = parser.parse_args()
    print("| arrivals | answers | requests/s | cells | held | kept up | width | delivered |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for arrivals in ARRIVALS:
            for ratio, answers in ((1.0, "128"), (0.5, "64–128")):
                for rate in map(float, options.rates.split(",")):
                    row(folder, options.deployment, options.seeds, arrivals, ratio, answers, rate)


def row(
    folder: Path,
    deployment: str,
    seeds: int,
    arrivals: str,
    ratio: float,
    answers: str,
    rate: float,
) -> None:
    held, kept, widths, off = 0, 0, [], []
    truth = rate * 128 * (1 + ratio) / 2
    for seed in range(seeds):
        plan = plan_of(
            Options.read(seed=seed, rate=[rate], input="512", output="128", range_ratio=ratio)
        )
        run_folder.write_plan(folder / "plan.parquet", drawn(plan, seed, arrivals))
        options = SimulateOptions.read(
            deployment=deployment, plan=folder / "plan.parquet", out=folder, draws=6
        )
        document = simulate.simulate(options).document()
        metrics = document["cells"][0]["metrics"]
        found = metrics["interval"]["output_tokens_per_s"]
        held += found["low"] <= truth <= found["high"]
        kept += metrics["sustained"] is not None
        widths.append(found["high"] / found["low"] - 1)
        off.append(metrics["steady"]["output_tokens_per_s"] / truth - 1)
        shutil.rmtree(document["run_dir"])
    print(
        f"| {arrivals} | {answers} | {rate:g} | {seeds} | {held / seeds:.0%} | {kept / seeds:.0%} |"
        f" {np.mean(widths):.1%} | {np.std(off):.1%} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
