"""Whether classes with priorities, and queues with limits, are simulated as they are measured: one
plan through `simulate`, and through `bench` on serve-sim.

    python benchmarks/mixed_traffic.py [LOAD…]  a table, by load and class
    python benchmarks/mixed_traffic.py --pace   requests/s of the simulator, with classes and without,
                                                in pairs of runs that take turns

serve-sim has the same scheduler in real time, so that what differs is how the client, the plan and
refusals are simulated. Loads of half a minute each, whose steps take 15 ms or more, so that a client
which shares its machine does not decide. Of two requests that both have a first token in both runs
the order is compared; of the whole load, for a class's requests compete with those of others.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import loadstone
from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.core import run_folder
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import fleet_of
from loadstone.workload.options import SimulateOptions
from loadstone.workload.planning import plan_of

BASE = "llama-3.1-70b@4xh100/tp4"
Row = dict[str, Any]

LOADS: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "vLLM, priorities": (
        f"{BASE},max_num_seqs=8,scheduling_policy=priority",
        ["chat,share=0.6,input=lognormal:600:0.6,output=uniform:20:120,priority=high",
         "batch,share=0.4,input=lognormal:1500:0.4,output=100,priority=low"],
        {"rate": 6, "requests": 200},
    ),
    "vLLM, priorities, max_num_queued_reqs": (
        f"{BASE},max_num_seqs=8,max_num_queued_reqs=24,scheduling_policy=priority",
        ["chat,share=0.6,input=600,output=uniform:20:120,priority=high",
         "batch,share=0.4,input=1500,output=100,priority=low"],
        {"rate": 10, "requests": 300},
    ),
    "vLLM, max_num_queued_tokens": (
        f"{BASE},max_num_seqs=8,max_num_queued_tokens=12000",
        ["chat,share=0.6,input=600,output=uniform:20:120", "batch,share=0.4,input=1500,output=100"],
        {"rate": 10, "requests": 300},
    ),
    "SGLang, priorities, evicting": (
        f"{BASE},engine=sglang,max_running_requests=8,enable_priority_scheduling=1",
        ["chat,share=0.6,input=600,output=uniform:20:120,priority=50",
         "batch,share=0.4,input=1500,output=100,priority=0"],
        {"rate": 6, "requests": 200},
    ),
    "SGLang, priorities, max_queued_requests": (
        f"{BASE},engine=sglang,max_running_requests=8,max_queued_requests=12,"
        "enable_priority_scheduling=1,disable_priority_preemption=1",
        ["chat,share=0.5,input=600,output=uniform:20:120,priority=high",
         "agents,share=0.2,input=900,output=60",
         "batch,share=0.3,input=1500,output=100,priority=low"],
        {"rate": 10, "requests": 300},
    ),
    "vLLM, slots": (
        f"{BASE},max_num_seqs=8,scheduling_policy=priority",
        ["chat,slots=6,input=600,output=uniform:20:120,priority=high",
         "batch,slots=8,input=1500,output=100,priority=low"],
        {"duration": "25s"},
    ),
}  # fmt: skip


def firsts(run: Any) -> dict[str, float]:
    """Returns when each measured request had its first token, from the start of the load."""
    columns = ("request_id", "phase", "arrival_s", "status")
    table = run_folder.read_columns(Path(run.run_dir), columns, 0)
    return {
        row["request_id"]: row["arrival_s"][0]
        for row in table.to_pylist()
        if row["phase"] == "measure" and row["status"] == "ok"
    }


def concordant(one: dict[str, float], other: dict[str, float]) -> float:
    """Returns the share of pairs of requests, of those in both, that are in the same order."""
    both = sorted(one.keys() & other.keys())
    first, second = (np.array([times[name] for name in both]) for times in (one, other))
    upper = np.triu_indices(len(both), 1)
    same = np.sign(first[:, None] - first)[upper] == np.sign(second[:, None] - second)[upper]
    return float(same.mean())


def compare(name: str) -> list[Row]:
    """Returns a row for each class of a load."""
    deployment, classes, load = LOADS[name]
    with tempfile.TemporaryDirectory() as folder:
        flags = {"class_": classes, "out": folder} | load
        measured = loadstone.bench(sim=deployment, **flags)
        simulated = loadstone.simulate(deployment, plan=measured.run_dir, draws=0, out=folder)
        order = concordant(firsts(measured), firsts(simulated))
        rows = []
        for there, here in zip(parts_of(measured), parts_of(simulated), strict=True):
            sent = there["requests"]["sent"] or 1
            rows.append(
                {
                    "load": name,
                    "class": there["name"],
                    "sent": sent,
                    "tpot": [(pace_of(there, q), pace_of(here, q)) for q in ("p50", "p99")],
                    "rejected": (there.get("rejected", 0), here.get("rejected", 0)),
                    "order": order,
                }
            )
    return rows


def parts_of(run: Any) -> list[Row]:
    parts: list[Row] = run.document()["cells"][0]["by_class"]
    return parts


def pace_of(part: Row, percentile: str) -> float:
    """Returns a class's TPOT in seconds; NaN where it got no answers."""
    found = (part["tpot_s"] or {}).get(percentile)
    return math.nan if found is None else found


def holds(row: Row) -> bool:
    """Tells whether TPOT is within 3 % or 1.5 ms, refusals within 2 % of the requests, and the
    order of 95 % of the pairs the same."""
    near = all(
        abs(a - b) <= max(0.03 * a, 0.0015) or (math.isnan(a) and math.isnan(b))
        for a, b in row["tpot"]
    )
    there, here = row["rejected"]
    return near and abs(there - here) <= max(1, 0.02 * row["sent"]) and row["order"] >= 0.95


def main() -> None:
    print("| load | class | sent | TPOT p50, ms | TPOT p99, ms | turned away | same order | |")
    print("|---|---|---|---|---|---|---|---|")
    for name in sys.argv[1:] or LOADS:
        for row in compare(name):
            tpot = " | ".join(f"{1e3 * a:.2f} → {1e3 * b:.2f}" for a, b in row["tpot"])
            there, here = row["rejected"]
            print(
                f"| {name} | {row['class']} | {row['sent']} | {tpot} | {there} → {here} |"
                f" {row['order']:.1%} | {'holds' if holds(row) else '**off**'} |",
                flush=True,
            )


def pace() -> None:
    """Prints requests per second of CPU time of cells with two classes, beside the same load without:
    by the faster loop, and by the general one where classes have priorities."""
    both = "share=0.5,input=600,output=100"
    high_low = [f"a,{both},priority=high", f"b,{both},priority=low"]
    served = ",scheduling_policy=priority"
    for name, rate, arguments, classes, quick in (
        ("two classes", 20, "", [f"a,{both}", f"b,{both}"], True),
        ("priorities, general loop", 20, served, high_low, False),
        ("priorities and a queue", 45, served, high_low, False),
    ):
        ratios, rates = [], []
        for _ in range(7):
            plain = cell_rate(rate, "", {"input": "600", "output": "100"}, quick)
            rates.append(cell_rate(rate, arguments, {"class_": classes}, quick))
            ratios.append(rates[-1] / plain)
        print(
            f"{name}: {statistics.median(rates):,.0f} requests/s,"
            f" {statistics.median(ratios):.0%} of the plain cell's (median of {len(ratios)} pairs,"
            f" {min(ratios):.0%} to {max(ratios):.0%})"
        )


def cell_rate(
    rate: float, arguments: str, asked: Row, quick: bool, requests: int = 10_000
) -> float:
    """Returns simulated requests per second of CPU time of a cell."""
    deployment = f"llama-3.1-8b@1xh100/max_num_seqs=48{arguments}"
    options = {"deployment": deployment, "rate": rate, "requests": requests}
    plan = plan_of(SimulateOptions.read(**options, **asked))
    fleet = fleet_of(parse_deployment(deployment))
    begun_s = time.process_time()
    run_cell(plan, 0, fleet, quick=quick)
    return requests / (time.process_time() - begun_s)


if __name__ == "__main__":
    pace() if "--pace" in sys.argv else main()
