"""What load workers on the nodes of a Ray cluster cost beside one process here: CPU per token, and
the same result.

    python benchmarks/ray_load.py [--streams 1000] [--tokens 400] [--itl 25ms] [--rounds 5]
    needs loadstone[ray]

One plan on one timing server: by one local worker, by two local ones, and by two on the two nodes
that scripts/clusters/ray starts on this machine, in turn. CPU is that of all processes of a kind
between a cell's begin and its end, by their own clocks: workers, relays (a process of the owner for
each worker elsewhere) and actors; process start is left out, as in client_cpu.py. Ray's daemons,
which every cluster has, stand beside.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadstone.runs.bench import bench
from loadstone.runs.cells import Event
from loadstone.workload.options import Options

SCRIPT = Path(__file__).parents[1] / "scripts" / "clusters" / "ray"
KINDS = {
    "loadstone.measure.client.worker": "workers",
    "loadstone.measure.client.ray_worker": "relays",
    "ray::WorkerHost": "actors",
    "raylet/raylet": "daemons",
    "gcs_server": "daemons",
}
QUANTILES = [f"{metric}_{name}" for metric in ("ttft_s", "tpot_s") for name in ("p50", "p99")]
RAMP_S = 1.0


@contextlib.contextmanager
def cluster() -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as ray:
        assert ray.stdin is not None
        assert ray.stdout is not None
        try:
            yield next(
                line.strip() for line in ray.stdout if line.count(":") == 1 and " " not in line
            )
        finally:
            ray.stdin.close()
            ray.wait(60)


@contextlib.contextmanager
def timing_server(law: str) -> Iterator[str]:
    """In a session of its own, as one elsewhere: all workers are then scheduled alike
    (measure.client.priority)."""
    command = [sys.executable, "-m", "loadstone", "serve-sim", law, "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as server:
        assert server.stdout is not None
        try:
            yield json.loads(server.stdout.readline())["url"]
        finally:
            server.terminate()


def cpu_s() -> dict[str, float]:
    """CPU seconds that this process and its descendants have had, by kind."""
    parents, commands = {}, {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(process.name)] = int(
                (process / "stat").read_text().rpartition(")")[2].split()[1]
            )
            commands[int(process.name)] = (process / "cmdline").read_text(errors="replace")
    spent = dict.fromkeys(KINDS.values(), 0.0) | {"owner": time.process_time()}
    for pid, command in commands.items():
        above = pid
        while above not in (0, os.getpid()):
            above = parents.get(above, 0)
        kind = next((kind for word, kind in KINDS.items() if word in command), None)
        if above and kind:
            with contextlib.suppress(OSError):
                # The clock of another process: clock_getcpuclockid(3).
                spent[kind] += time.clock_gettime((~pid << 3) | 2)
    return spent


def measured(options: Options) -> tuple[dict[str, float], dict[str, float]]:
    """CPU by kind, and what the run says."""
    at: dict[str, dict[str, float]] = {}

    def on_event(event: Event) -> None:
        if event.kind in ("cell", "cell_end"):
            at[event.kind] = cpu_s()

    document = bench(options, on_event).document()
    cell: dict[str, Any] = document["cells"][0]
    result = {
        "requests": float(cell["requests"]["ok"]),
        "tokens": float(cell["metrics"]["output_tokens"]),
    }
    for name in QUANTILES:
        metric, _, quantile = name.rpartition("_")
        result[name] = cell["metrics"][metric][quantile]
    return {kind: now - at["cell"][kind] for kind, now in at["cell_end"].items()}, result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--itl", default="25ms")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    spent: dict[str, list[dict[str, float]]] = {}
    results: dict[str, list[dict[str, float]]] = {}
    with (
        cluster() as address,
        timing_server(f"ttft=50ms,itl={given.itl}") as url,
        tempfile.TemporaryDirectory() as folder,
    ):
        arms = {"1 here": (1, None), "2 here": (2, None), "2 by Ray": (2, address)}
        for _ in range(given.rounds):
            for arm, (workers, ray) in arms.items():
                one, result = measured(
                    Options.read(
                        url=url, rate=[given.streams / RAMP_S], burstiness=float("inf"), warmup=0, input="2",
                        requests=[given.streams], output=str(given.tokens), salt="same", workers=workers, ray=ray,
                        out=Path(folder),
                    )
                )  # fmt: skip
                spent.setdefault(arm, []).append(one)
                results.setdefault(arm, []).append(result)
    tokens = given.streams * given.tokens
    kinds = ("workers", "relays", "actors", "owner", "daemons")
    print(f"{'µs/token':>9}", *(f"{kind:>8}" for kind in (*kinds, "client", "ratio")), "  rounds")
    ratios: dict[str, list[float]] = {}
    for arm, rounds in spent.items():
        clients = [each["workers"] + each["relays"] + each["actors"] for each in rounds]
        ratios[arm] = [
            mine / each["workers"] for mine, each in zip(clients, spent["1 here"], strict=True)
        ]
        row = [statistics.median(each[kind] for each in rounds) / tokens * 1e6 for kind in kinds]
        row += [statistics.median(clients) / tokens * 1e6, statistics.median(ratios[arm])]
        print(
            f"{arm:>9}",
            *(f"{each:8.2f}" for each in row),
            "  ",
            *(f"{each:.2f}" for each in ratios[arm]),
        )
    print(f"{'result':>9}", *(f"{name:>12}" for name in results["1 here"][0]))
    for arm, runs in results.items():
        print(
            f"{arm:>9}",
            *(f"{statistics.median(run[name] for run in runs):12.6g}" for name in runs[0]),
        )


if __name__ == "__main__":
    main()
