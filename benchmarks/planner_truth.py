"""Does the planner's first plan hold as often as it says? Traces, shared prefixes, bursts and
sessions, made from a seed.

    python benchmarks/planner_truth.py RESULTS.jsonl [--cases 40] [--draws 50] [--seed 1] [--most 5]
    [-o PAGE.md]

Each first plan is simulated whole: all its replicas behind the router that it names, with caches as
warm as they are after a warm-up and sessions out of step, under all its traffic (other requests
than those that it was chosen by), once for each draw of the errors that `recommend` states (TTFT and
TPOT together, with Student's tails; the draws lie evenly, from a random start). The share of draws
in which all bounds hold stands beside the stated probability. So this tests what lies between the
errors and the answer: windows, shares of a fleet, interpolation between slower engines, quantiles
of few requests. The errors are tested by planner_choice.py.

Then as many replicas of each plan that was shown as three quarters of the first plan's GPUs give
are simulated under the same draws, until it is known whether they hold as often.

Cases that are in RESULTS.jsonl are not done again; `--most` ends a call after so many.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from loadstone.catalogue import parse_deployment, parse_worker
from loadstone.core.errors import InputError
from loadstone.core.plan import Plan
from loadstone.predict.simulator.fleet import Fleet, fleet_of
from loadstone.predict.simulator.latencies import simulated_pace
from loadstone.predict.simulator.parts import hasten, take_requests
from loadstone.predict.simulator.uncertainty import (
    AS_WIDE,
    TAILS,
    PredictionError,
    bounded_figures,
    estimate_error,
)
from loadstone.recommend.demand.effort import Effort
from loadstone.recommend.demand.options import RecommendOptions
from loadstone.recommend.demand.planning import Planning, plan_for
from loadstone.recommend.demand.sessions import run_steady
from loadstone.recommend.demand.traffic import Traffic, traffic_of
from loadstone.recommend.demand.warm_up import warm_caches
from loadstone.recommend.recommend import recommend
from loadstone.recommend.search.candidates import make_candidate
from loadstone.recommend.search.curve import parts_to_simulate
from loadstone.workload.option_fields import options_of

_KINDS = (
    "quiet and busy",
    "short then long",
    "prefixes",
    "bursts",
    "bursts of prefixes",
    "sessions",
    "sessions in step",
    "sessions at a rate",
    "many prefixes",
    "fewer for nothing",
)
_REQUESTS = 3_000
"""Requests at a rate that are simulated for each draw. Traces are whole."""


def make_case(number: int, seed: int, folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the kind of a case and the options of `recommend` that ask for it."""
    rng = np.random.default_rng([seed, number])
    kind = _KINDS[number % len(_KINDS)]
    ttft, tpot = (
        f"p{rng.choice([90, 95, 99])}<{rng.choice(bounds)}" for bounds in ((1, 2, 3), (25, 35, 50))
    )
    asked: dict[str, Any] = {
        "model": str(rng.choice(["llama-3.1-8b", "qwen3-8b", "mistral-7b", "qwen3-32b"])),
        "gpus": str(rng.choice(["h100", "a100", "h200"])),
        "gpus_max": 32,
        "engine": str(rng.choice(["vllm", "sglang"])),
        "slo": f"ttft_{ttft}s,tpot_{tpot}ms",
    }
    rate = float(rng.uniform(4, 40))
    if kind == "fewer for nothing":
        return kind, asked | {"rate": rate, "input": "1024", "output": "200", "miss_cost": 0.0}
    if kind == "many prefixes":
        groups = {"prefix": "3k", "input": "4k", "prefix_groups": int(rng.integers(20, 100))}
        return kind, asked | groups | {"rate": rate / 2, "output": "150"}
    if "sessions" in kind:
        pause = float(rng.choice([3, 10, 30]))
        think = f"{pause:g}s" if kind == "sessions in step" else f"exponential:{pause:g}s"
        asked |= {"turns": str(rng.integers(3, 8)), "think_time": think}
        asked |= {"input": str(rng.choice([300, 800, 1500])), "output": str(rng.integers(80, 300))}
        if kind == "sessions at a rate":
            return kind, asked | {"rate": round(rate / 10, 2)}
        return kind, asked | {"concurrency": int(rng.integers(100, 400))}
    if "prefixes" in kind or kind == "bursts":
        asked |= {"rate": rate, "input": "uniform:256:2048", "output": "uniform:32:256"}
        if "prefixes" in kind:
            shared = int(rng.integers(1, 7))
            asked |= {
                "prefix": f"{shared}k",
                "input": f"{shared + 1}k",
                "prefix_groups": int(rng.integers(1, 40)),
            }
        if "bursts" in kind:
            asked |= {"burstiness": float(rng.choice([0.1, 0.2, 0.4]))}
        return kind, asked
    stretches = [(512, 96, rate / 3), (512, 96, 2 * rate), (512, 96, rate)][
        : int(rng.integers(2, 4))
    ]
    if kind == "short then long":
        stretches = [(128, 32, rate), (int(rng.integers(2, 9)) * 1024, 200, rate / 4)]
    path = folder / f"{number}.csv"
    write_trace(path, stretches, rng)
    return kind, asked | {"trace": str(path)}


def write_trace(
    path: Path, stretches: list[tuple[int, int, float]], rng: np.random.Generator
) -> None:
    """Write a trace of stretches of a minute each: tokens in, tokens out, requests/s."""
    lines = ["timestamp_s,input_tokens,output_tokens"]
    for number, (inputs, outputs, rate) in enumerate(stretches):
        times_s = 60 * number + np.sort(rng.uniform(0, 60, int(60 * rate)))
        lines += [
            f"{at:.3f},{max(1, int(inputs * rng.uniform(0.5, 1.5)))},{max(2, int(outputs * rng.uniform(0.5, 1.5)))}"
            for at in times_s
        ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def draw_evenly(error: PredictionError, draws: int, seed: int) -> Any:
    """Return factors of TTFT and TPOT, draws × 2, evenly over the distribution of the error, from a
    random start."""
    from scipy.special import gammaincinv, ndtri

    start = np.random.default_rng(seed).uniform(0, 1, 3)
    shares = np.mod(start + np.arange(draws)[:, None] / 1.2207440846057596 ** np.arange(1, 4), 1.0)
    wide = AS_WIDE * np.sqrt(TAILS / (2 * gammaincinv(TAILS / 2, shares[:, 2:])))
    spread, axes = np.linalg.eigh(error.covariance)
    return np.exp((ndtri(shares[:, :2]) * np.sqrt(np.maximum(spread, 0.0)) * wide) @ axes.T)


def make_requests(planning: Planning, plan: tuple[int, str, Any]) -> Plan:
    """Return the whole traffic, as it is once engines are warm."""
    traffic, candidate = planning.traffic, make_candidate(parse_worker(plan[1]), planning)
    if traffic.sessions is not None:
        more = replace(planning, effort=Effort(sessions=100, calls=3_000))
        (part,) = parts_to_simulate(candidate, more, traffic.demand / plan[0], plan[0], (0, 0))
        return part
    requests = traffic.plan if traffic.has_times else traffic.part(traffic.demand, _REQUESTS)
    if traffic.plan.cells[0].process != "trace" and len(requests) > _REQUESTS:
        requests = take_requests(requests, np.arange(_REQUESTS))
    prompt_s = candidate.model.step_s(0, 0.0, [(int(traffic.input_tokens), 0)])
    return warm_caches(requests, plan[0], prompt_s)


def count_holds(
    planning: Planning, plan: tuple[int, str, Any], draws: int, seed: int, least: float = 0.0
) -> float:
    """Return the share of draws in which a plan, replicas, deployment and router, holds all bounds
    under the whole traffic; where that is known to be below `least`, at most which share it is."""
    traffic, one = planning.traffic, fleet_of(parse_deployment(plan[1]))
    workers = plan[0] if one.in_step else 1
    fleet = replace(one, replicas=one.replicas * plan[0], workers=workers, route=plan[2])
    requests = make_requests(planning, plan)
    names = [each.name for each in traffic.bounds]
    error = estimate_error(run_steady(requests, fleet), fleet)
    missed = 0
    for first, pace in draw_evenly(error, draws, seed):
        missed += not _holds(requests, fleet, traffic, names, first, pace)
        if 1 - missed / draws < least:
            break
    return 1 - missed / draws


def _holds(
    plan: Any, fleet: Fleet, traffic: Traffic, names: list[str], first: float, pace: float
) -> bool:
    sooner = hasten(plan, pace)
    run, load = run_steady(sooner, fleet), sooner.cells[0]
    figures = bounded_figures(run, sooner, names)
    met = all(
        figures[each.name] * (first if each.metric == "ttft" else pace) <= each.bound_s
        for each in traffic.bounds
    )
    return met and (load.is_closed or simulated_pace(run, load).keeps_up is not False)


def judge_case(number: int, seed: int, draws: int) -> dict[str, Any]:
    """Plan one case and count how often its first plan holds, and those at three quarters of its
    GPUs."""
    with tempfile.TemporaryDirectory() as folder:
        kind, asked = make_case(number, seed, Path(folder))
        found: dict[str, Any] = {"case": number, "kind": kind, "seed": seed, "draws": draws}
        options = options_of(asked, RecommendOptions)
        try:
            document = recommend(options)
        except InputError as error:
            return found | {"refused": str(error)}
        planning = plan_for(options)
        planning = replace(planning, traffic=traffic_of(options, seed=1000 + number))
        best = document.plans[0]
        route = best.route or "least-busy"
        held = count_holds(planning, (best.replicas, best.deployment, route), draws, number)
        found |= {
            "plan": f"{best.replicas} × {best.deployment}",
            "stated": best.p_slo,
            "held": held,
            "route": route,
        }
        if best.replicas > 1:
            one_fewer = (best.replicas - 1, best.deployment, route)
            found["one_fewer"] = count_holds(planning, one_fewer, draws, number)
            found["said"] = best.one_fewer.why if best.one_fewer else None
        less = []
        for each in document.plans:
            replicas = math.floor(0.75 * best.gpus / (each.gpus // each.replicas))
            if replicas:
                fewer = (replicas, each.deployment, each.route or "least-busy")
                less.append(count_holds(planning, fewer, draws, number, held))
        return found | {
            "less": max(less, default=None),
            "cheaper": len(less),
            "holds": document.holds,
        }


def write_page(rows: list[dict[str, Any]]) -> str:
    """Return the table of all cases, and what they say together."""
    lines = ["| case | plan | stated | held | at three quarters |", "|---|---|---|---|---|"]
    for each in rows:
        if "refused" in each:
            lines.append(f"| {each['case']} {each['kind']} | none: {each['refused'][:60]} | | | |")
            continue
        less = "" if each["less"] is None else f"at most {each['less']:.0%}"
        lines.append(
            f"| {each['case']} {each['kind']} | {each['plan']}, {each['route']} |"
            f" {each['stated']:.0%} |"
            f" {each['held']:.0%} | {less} |"
        )
    planned = [each for each in rows if "plan" in each]
    off = np.array([each["held"] - each["stated"] for each in planned])
    beaten = [each for each in planned if each["less"] is not None and each["less"] >= each["held"]]
    cheaper = sum(each["less"] is not None for each in planned)
    lines.append(
        f"\nStated {np.mean([each['stated'] for each in planned]):.1%} on average, held"
        f" {np.mean([each['held'] for each in planned]):.1%}; within 10 points in"
        f" {np.sum(abs(off) <= 0.1)} of {len(off)} cases, {rows[0]['draws']} draws each, seed"
        f" {rows[0]['seed']}. Three quarters of the GPUs hold as often in {len(beaten)} of"
        f" {cheaper}."
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("results", type=Path)
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=1000)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    rows = (
        [json.loads(line) for line in given.results.read_text().splitlines()]
        if given.results.exists()
        else []
    )
    done = {each["case"] for each in rows}
    for number in [each for each in range(given.cases) if each not in done][: given.most]:
        rows.append(judge_case(number, given.seed, given.draws))
        with given.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        print(rows[-1], flush=True)
    page = write_page(sorted(rows, key=lambda each: int(each["case"])))
    print(page.splitlines()[-1])
    if given.output is not None:
        given.output.write_text(page + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
