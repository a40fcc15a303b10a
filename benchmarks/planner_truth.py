"""Does the planner's first plan hold as often as it says? Traces, shared prefixes and bursts, made from a seed.

    python benchmarks/planner_truth.py [--cases 40] [--draws 50] [--seed 0] [-o benchmarks/results/planner_truth.md]

Each first plan is simulated whole: all its replicas, under all its traffic, once for each draw of the errors that
`recommend` states (TTFT and TPOT together, with Student's tails). The share of draws in which all bounds hold stands
beside the stated probability. So this tests what lies between the errors and the answer: windows, shares of a fleet,
interpolation between slower engines, quantiles of few requests. The errors are tested by planner_choice.py.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from loadstone.catalogue import parse_deployment
from loadstone.core.errors import InputError
from loadstone.predict.simulator.bound_errors import AS_WIDE, TAILS, bounded_figures, estimate_error
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import Fleet, fleet_of
from loadstone.predict.simulator.latencies import simulated_pace
from loadstone.predict.simulator.parts import hasten
from loadstone.recommend.options import RecommendOptions
from loadstone.recommend.recommend import recommend
from loadstone.recommend.traffic import Traffic, traffic_of
from loadstone.workload.options import options_of

_KINDS = ("steady", "quiet and busy", "short then long", "prefixes", "bursts")


def make_case(number: int, seed: int, folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the kind of a case and the options of `recommend` that ask for it."""
    rng = np.random.default_rng([seed, number])
    kind = _KINDS[number % len(_KINDS)]
    ttft, tpot = (f"p{rng.choice([90, 95])}<{rng.choice(bounds)}" for bounds in ((1, 2, 3), (25, 35, 50)))
    asked: dict[str, Any] = {
        "model": str(rng.choice(["llama-3.1-8b", "qwen3-8b", "mistral-7b"])),
        "gpus": str(rng.choice(["h100", "a100"])),
        "gpus_max": 16,
        "engine": "vllm",
        "kv_dtype": "bf16",
        "weights_dtype": "bf16",
        "plans": 1,
        "tp": (1,),
        "slo": f"ttft_{ttft}s,tpot_{tpot}ms",
    }
    rate = float(rng.uniform(8, 40))
    if kind in ("steady", "prefixes"):
        asked |= {"rate": rate, "input": "uniform:256:2048", "output": "uniform:32:256"}
        if kind == "prefixes":
            asked |= {"input": "4k", "prefix": "3k", "prefix_groups": int(rng.integers(1, 20))}
    elif kind == "bursts":
        asked |= {"rate": rate, "input": "1024", "output": "128", "burstiness": float(rng.choice([0.1, 0.2, 0.4]))}
    else:
        lengths = [(512, 96, rate / 3), (512, 96, 2 * rate)]
        if kind == "short then long":
            lengths = [(128, 32, rate), (int(rng.integers(2, 5)) * 1024, 200, rate / 3)]
        path = folder / f"{number}.csv"
        write_trace(path, lengths, rng)
        asked |= {"trace": str(path)}
    return kind, asked


def write_trace(path: Path, stretches: list[tuple[int, int, float]], rng: np.random.Generator) -> None:
    """Write a trace of stretches of a minute each: tokens in, tokens out, requests/s."""
    lines = ["timestamp_s,input_tokens,output_tokens"]
    for number, (inputs, outputs, rate) in enumerate(stretches):
        times_s = 60 * number + np.sort(rng.uniform(0, 60, int(60 * rate)))
        lines += [
            f"{at:.3f},{max(1, int(inputs * rng.uniform(0.5, 1.5)))},{max(2, int(outputs * rng.uniform(0.5, 1.5)))}"
            for at in times_s
        ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def count_holds(traffic: Traffic, deployment: str, replicas: int, draws: int, seed: int) -> float:
    """Return the share of draws in which so many replicas hold all bounds under the whole traffic."""
    one = fleet_of(parse_deployment(deployment))
    fleet = replace(one, replicas=one.replicas * replicas)
    plan = traffic.plan if traffic.has_times else traffic.part(traffic.demand, 3000)
    names = [each.name for each in traffic.bounds]
    error = estimate_error(run_cell(plan, 0, fleet, grace_s=math.inf), fleet)
    rng = np.random.default_rng(seed)
    wide = AS_WIDE * np.sqrt(TAILS / rng.chisquare(TAILS, draws))
    factors = np.exp(wide[:, None] * rng.multivariate_normal(np.zeros(2), error.covariance, draws))
    return float(np.mean([_holds(plan, fleet, traffic, names, first, pace) for first, pace in factors]))


def _holds(plan: Any, fleet: Fleet, traffic: Traffic, names: list[str], first: float, pace: float) -> bool:
    sooner = hasten(plan, pace)
    run = run_cell(sooner, 0, fleet, grace_s=math.inf)
    figures = bounded_figures(run, sooner, names)
    met = all(
        figures[each.name] * (first if each.metric == "ttft" else pace) <= each.bound_s for each in traffic.bounds
    )
    return met and simulated_pace(run, sooner.cells[0]).keeps_up is not False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    lines = ["| case | plan | stated | held | held at three quarters |", "|---|---|---|---|---|"]
    gaps = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.cases):
            kind, asked = make_case(number, given.seed, Path(folder))
            options = options_of(asked, RecommendOptions)
            try:
                best = recommend(options).plans[0]
            except InputError as error:
                lines.append(f"| {number} {kind} | none: {str(error)[:60]} | | | |")
                continue
            traffic = traffic_of(options, seed=1000 + number)
            held = count_holds(traffic, best.deployment, best.replicas, given.draws, number)
            fewer = math.floor(0.75 * best.replicas)
            less = f"{count_holds(traffic, best.deployment, fewer, given.draws, number):.0%}" if fewer else ""
            gaps.append(held - best.p_slo)
            name = f"{best.replicas} × {best.deployment}"
            lines.append(f"| {number} {kind} | {name} | {best.p_slo:.0%} | {held:.0%} | {less} |")
            print(lines[-1], flush=True)
    off = np.array(gaps)
    lines.append(
        f"\nHeld less stated: {off.mean():+.1%} on average; within 15 points in {np.mean(abs(off) <= 0.15):.0%} of "
        f"{len(off)} cases, {given.draws} draws each, seed {given.seed}."
    )
    print(lines[-1])
    if given.output is not None:
        given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
