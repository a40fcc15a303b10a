"""What sessions of agents cost: reading and planning them, the memory that this takes, and
simulating them.

    python benchmarks/agents.py [--sessions 2000] [--turns 40] [--tokens 200000] [--concurrency 32]

Sessions of so many turns, each of which adds as much to its prompt, up to so many tokens in blocks
of 64; the first blocks are those of all sessions. Planned: from the file to the plan and what it
promises a cache.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import fleet_of
from loadstone.workload.options import Options
from loadstone.workload.planning import plan_of
from loadstone.workload.schedule import promised_tokens

BLOCK = 64
COMMON = 100
"""Blocks of a system prompt."""
DEPLOYMENTS = (
    "llama-3.1-8b@8xh200/tp8,engine=vllm",
    "llama-3.1-8b@8xh200/tp1,dp8,engine=vllm",
    "llama-3.1-8b@8xh200/tp8,engine=sglang",
)
"""The more sessions fit into the KV cache, the fewer steps a turn takes."""


def write(path: Path, sessions: int, turns: int, tokens: int) -> None:
    most = tokens // BLOCK
    with path.open("w") as file:
        for session in range(sessions):
            ids = [
                *range(COMMON),
                *range(COMMON + session * most, COMMON + (session + 1) * most - COMMON),
            ]
            calls = []
            for turn in range(turns):
                length = tokens * (turn + 1) // turns
                calls.append({
                    "t": 30 * turn, "in": length, "out": 200, "api_time": 10, "hash_ids": ids[: -(-length // BLOCK)],
                })  # fmt: skip
            file.write(
                json.dumps({"block_size": BLOCK, "hash_id_scope": "global", "requests": calls})
                + "\n"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--concurrency", type=int, default=32)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sessions.jsonl"
        write(path, asked.sessions, asked.turns, asked.tokens)
        begun = time.process_time()
        plan = plan_of(Options.read(agents=path, concurrency=[asked.concurrency], warmup=0))
        planned = time.process_time() - begun
        shared = promised_tokens(plan, 0)
        promised = time.process_time() - begun - planned
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    print(
        f"planned    {len(plan.cell):,} turns in {planned:.1f} s, what they share in"
        f" {promised:.1f} s,",
        end=" ",
    )
    print(f"{memory:.2f} GiB, {shared.sum() / plan.input_tokens.sum():.2%} of tokens are shared")
    for deployment in DEPLOYMENTS:
        begun = time.process_time()
        run = run_cell(plan, 0, fleet_of(parse_deployment(deployment)))
        took = time.process_time() - begun
        cached = sum(run.cached_tokens[: len(plan.cell)]) / plan.input_tokens.sum()
        print(
            f"simulated  {len(plan.cell) / took:,.0f} turns/s on {deployment}, {cached:.2%} of"
            " tokens were cached"
        )


if __name__ == "__main__":
    main()
