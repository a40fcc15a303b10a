"""Simulates published sweeps of agents' sessions: at how many sessions throughput falls, and what
lower tiers give.

    python benchmarks/session_cliffs.py [CASE…]   prints a line for each load, and whether each case
    is met

Assumed of sessions, from facts other than the sweeps' own turning points:
  - in AgentX's full-context set one session held 35 % of a pool of 1,048,576 tokens at most
    (InferenceX pull 2273), and its traces have 145 top-level calls (57,000 in 393): 145 turns, each
    with as many tokens more, up to 367,000;
  - answers of 600 tokens (input over output tokens of InferenceX pull 2275, at prompts of 95,000
    tokens), tools of 8 s (inference-perf's example), exponential;
  - ATOM pull 890 states contexts of 100,000 tokens and 32 users; its host memory and disk are
    assumed: 200 GB, 2 TB.
Sub-agents are not told apart: a session is one chain. With data parallelism pull 2268 has a router
that hashes sessions to ranks (sglang-router's consistent_hashing), and a rank's cache is as large
as `size` finds it: it has all of attention's weights, so that less is left than the 3.3 M tokens
that the pull states of TP8. Throughput is that of all tokens, cached ones included, as AgentX
counts it.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np

from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.engines.habits import Route
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import fleet_of
from loadstone.workload.options import Options
from loadstone.workload.planning import plan_of

FALL = 0.8
"""Throughput has fallen where it is less than so much of the best at fewer sessions."""
WIDER = 1.25


class Sweep(NamedTuple):
    """A published sweep: the last load that was fine and the first that had fallen."""

    deployment: str
    sessions: tuple[int, ...]
    fine: int
    fallen: int
    route: Route | None = None


SWEEPS = {
    "2268-tp8": Sweep(
        "nvidia/GLM-5.2-NVFP4@8xb300/tp8,engine=sglang,max_total_tokens=3300000",
        (4, 8, 10, 12, 14, 16, 18, 20, 24, 32), 8, 16,
    ),
    "2268-dp": Sweep(
        "nvidia/GLM-5.2-NVFP4@8xb300/tp1,dp8,attention-dp,ep8,engine=sglang,max_total_tokens=3300000",
        (16, 32, 48, 64, 80, 96, 128, 192), 48, 64,
    ),
    "2268-dp-hashed": Sweep(
        "nvidia/GLM-5.2-NVFP4@8xb300/tp1,dp8,attention-dp,ep8,engine=sglang",
        (32, 48, 64, 80, 96, 128), 48, 64, "hashed",
    ),
    "2268-dp-prefix": Sweep(
        "nvidia/GLM-5.2-NVFP4@8xb300/tp1,dp8,attention-dp,ep8,engine=sglang,max_total_tokens=3300000",
        (32, 48, 64, 80, 96, 128, 192), 48, 64, "prefix",
    ),
    "2275": Sweep(
        "zai-org/GLM-5.2-FP8@prefill=8xh200/tp8+decode=16xh200/tp16,engine=sglang", (1, 2, 3, 4, 5, 6, 8), 3, 5
    ),
}  # fmt: skip
TIERS = {
    "hbm": "",
    "dram": ",kv_offload=lmcache,kv_host=200gb",
    "nvme": ",kv_offload=lmcache,kv_host=200gb,kv_disk=2tb",
}


def throughput(
    deployment: str, sessions: int, turns: int, tokens: int, route: Route | None = None
) -> tuple[float, float]:
    """All tokens per second and GPU, and the share of prompts that was cached."""
    answer = 600
    asked = plan_of(
        Options.read(
            turns=str(turns), input=str(tokens // turns - answer), output=str(answer), think_time="exponential:8s",
            concurrency=[sessions], requests=[2 * sessions * turns], warmup=sessions,
        )
    )  # fmt: skip
    parsed = parse_deployment(deployment)
    fleet = fleet_of(parsed, route=route)
    run = run_cell(asked, 0, fleet)
    inputs, outputs = np.array(run.requests.input_tokens), np.array(run.requests.output_tokens)
    ends, cached = np.array(run.end_s), np.array(run.cached_tokens)
    measured = slice(run.requests.warm, None)
    first, last = np.quantile(ends[measured], [0.0, 0.8])  # all sessions are there until then
    inside = (ends >= first) & (ends <= last)
    total = (inputs + outputs)[inside].sum() / (last - first)
    return total / parsed.gpus, cached[inside].sum() / inputs[inside].sum()


def main() -> None:
    wanted = sys.argv[1:] or [*SWEEPS, "890"]
    for name in wanted:
        if name == "890":
            totals = []
            for tier, options in TIERS.items():
                total, share = throughput(
                    f"minimax-m2.5@2xmi300x/tp2,engine=vllm{options}", 32, 40, 100_000
                )
                totals.append(total)
                print(f"890 {tier:5} {total:9,.0f} tok/s/GPU, cached {share:.2f}", flush=True)
            print(
                f"890: HBM < DRAM < NVMe {'met' if totals == sorted(totals) else 'missed'}",
                flush=True,
            )
            continue
        sweep = SWEEPS[name]
        best, found = 0.0, 0
        for sessions in sweep.sessions:
            total, share = throughput(sweep.deployment, sessions, 145, 367_000, sweep.route)
            print(
                f"{name} {sessions:4} sessions {total:9,.0f} tok/s/GPU, cached {share:.2f}",
                flush=True,
            )
            if not found and total < FALL * best:
                found = sessions
            best = max(best, total)
        low, high = sweep.fine / WIDER, sweep.fallen * WIDER
        said = "met" if low <= found <= high else "missed"
        print(
            f"{name}: falls at {found or 'none'}, published {sweep.fine}..{sweep.fallen}"
            f" ({low:g}..{high:g}): {said}"
        )


if __name__ == "__main__":
    main()
