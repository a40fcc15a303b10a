"""What `loadstone trend` and the gate of `compare` hold: alarms where nothing changed, and changes
that are found.

    python benchmarks/trend.py [--series 1000] [--runs 20] [--pool 160]
    python benchmarks/trend.py --measured FOLDER [--pairs 20]
    python benchmarks/trend.py --llama FOLDER [--pairs 20] [--minutes 3]

simulated  series of so many runs, drawn without replacement and in random order from a pool of
           `loadstone simulate` with other seeds; a tenth as many have TPOT and E2E of their second
           half 5 % longer
measured   `loadstone bench` against `loadstone serve-sim` with fixed times, kept in FOLDER: a pool
           of runs, and one with tokens that take 10 % longer. Series are drawn as above. Then the
           gate, two runs against two: pairs of the first pool, and pairs of both, each `compare
           --fail-on 'tpot_p50>+3%'`. No run is in two pairs.
llama      the same gate on llama.cpp with the small random model: 180 runs of a second, in turn on
           one server, which is stopped for 1 ms after every 14 ms of every third. Pairs of 3, 6 and
           12 runs a side are drawn from them; two pairs may share runs. It goes on where --minutes
           ended it.

An alarm is a series with any change point. The 95 % range is binomial (Clopper and Pearson).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from scipy.stats import beta

from loadstone import bench, compare, simulate
from loadstone.analyse.stored_run import StoredRun, read_run
from loadstone.analyse.trend import FALSE_ALARMS, find_changes
from loadstone.core.metrics import Latency
from loadstone.core.summary import CellSummary
from loadstone.measure.engines import llama_cpp

Rng = np.random.Generator


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--series", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--pool", type=int, default=160)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--measured", type=Path)
    parser.add_argument("--llama", type=Path)
    parser.add_argument("--minutes", type=float, default=1e9)
    wanted = parser.parse_args()
    if wanted.llama is not None:
        gate_llama(wanted.llama, wanted.pairs, time.monotonic() + 60 * wanted.minutes)
        return
    if wanted.measured is not None:
        same, slower = (measure(wanted.measured / name, itl, 4 * wanted.pairs if name == "same" else 2 * wanted.pairs)
                        for name, itl in (("same", 5.0), ("slower", 5.5)))  # fmt: skip
        show("measured", list(map(read_run, same)), wanted.series, wanted.runs)
        gate(
            "A/A",
            [(same[at : at + 4 : 2], same[at + 1 : at + 4 : 2]) for at in range(0, len(same), 4)],
        )
        gate("−10 %", [(same[at : at + 2], slower[at : at + 2]) for at in range(0, len(slower), 2)])
        return
    with tempfile.TemporaryDirectory() as scratch:
        pool = []
        for seed in range(wanted.pool):
            document = simulate(
                "llama-3.1-8b@1xh100", concurrency=4, input=500, output="uniform:32:96", requests=64, seed=seed,
                draws=0, out=scratch,
            ).document()  # fmt: skip
            pool.append(read_run(Path(document["run_dir"])))
        show("simulated", pool, wanted.series, wanted.runs)


def show(name: str, pool: Sequence[StoredRun], series: int, runs: int) -> None:
    rng = np.random.default_rng(1)
    alarms = sum(bool(find_changes(draw(pool, runs, rng)).changes) for _ in range(series))
    low, high = beta.ppf(
        [0.025, 0.975], [alarms, alarms + 1], [series - alarms + 1, series - alarms]
    )
    print(
        f"{name}: {len(pool)} runs; {alarms} alarms in {series} series of {runs} at"
        f" {FALSE_ALARMS:.1%} ({0 if alarms == 0 else low:.2%} to {high:.2%})"
    )
    tried = series // 10
    for factor in (1.02, 1.05, 1.1):
        found = [find_changes(draw(pool, runs, rng, factor)).changes for _ in range(tried)]
        right = sum(any(abs(change.runs[0] - runs // 2) <= 1 for change in each) for each in found)
        print(f"  {factor - 1:.0%} longer from the middle on: found in {sum(map(bool, found))} of {tried}, "
              f"{right} of them within one run of the place", flush=True)  # fmt: skip


def draw(pool: Sequence[StoredRun], runs: int, rng: Rng, factor: float = 1.0) -> list[StoredRun]:
    """Draw a series, each run a day after the one before; the second half takes `factor` longer."""
    chosen = []
    for at, index in enumerate(rng.choice(len(pool), runs, replace=False)):
        run = pool[index]
        cells = [slow(cell, factor if at >= runs // 2 else 1.0) for cell in run.summary.cells]
        created = f"2026-{1 + at // 28:02d}-{1 + at % 28:02d}T00:00:00+00:00"
        chosen.append(
            msgspec.structs.replace(
                run,
                info=msgspec.structs.replace(run.info, created=created),
                summary=msgspec.structs.replace(run.summary, cells=cells),
            )
        )
    return chosen


def slow(cell: CellSummary, factor: float) -> CellSummary:
    def longer(latency: Latency | None) -> Latency | None:
        if latency is None or latency.p50 is None or latency.p99 is None:
            return latency
        return msgspec.structs.replace(latency, p50=latency.p50 * factor, p99=latency.p99 * factor)

    metrics = msgspec.structs.replace(
        cell.metrics, tpot_s=longer(cell.metrics.tpot_s), e2e_s=longer(cell.metrics.e2e_s)
    )
    return msgspec.structs.replace(cell, metrics=metrics)


def measure(folder: Path, itl_ms: float, runs: int) -> list[Path]:
    """Measure so many runs, as far as they are not there yet; in the order in which they were
    measured."""
    there = sorted(path.parent for path in folder.glob("*/run.json"))
    if len(there) < runs:
        command = [sys.executable, "-m", "loadstone"]
        served = f"ttft=10ms,itl={itl_ms}ms"
        with subprocess.Popen(
            [*command, "serve-sim", served, "--port", "0"], stdout=subprocess.PIPE
        ) as server:
            try:
                url = json.loads(server.stdout.readline() if server.stdout else "")["url"]
                for _ in range(runs - len(there)):
                    load = [
                        "--concurrency",
                        "4",
                        "--requests",
                        "32",
                        "--input",
                        "64",
                        "--output",
                        "32",
                    ]
                    subprocess.run(
                        [*command, "bench", url, *load, "--out", folder, "--json"],
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        check=False,
                    )
            finally:
                server.terminate()
        there = sorted(path.parent for path in folder.glob("*/run.json"))
    return there[:runs]


def gate_llama(folder: Path, pairs: int, until: float) -> None:
    """Measure A, B, A and again, one after another; judge A against A and A against B."""
    order = [folder / f"{at:03d}-{'aba'[at % 3]}" for at in range(180)]
    slower, over = threading.Event(), threading.Event()

    def hold(pid: int) -> None:
        while not over.is_set():
            if slower.wait(0.01):
                time.sleep(0.014)
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.001)
                os.kill(pid, signal.SIGCONT)

    with llama_cpp.launch(slots=4, context_tokens=512, log_path=folder / "server.log") as server:
        os.sched_setaffinity(
            0, {1}
        )  # and so the client's workers; the server has the other processor
        for task in Path(f"/proc/{server.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {0})
        thread = threading.Thread(target=hold, args=(server.pid,), daemon=True)
        thread.start()
        for out in order:
            if time.monotonic() > until:
                break
            if not list(out.glob("*/records.parquet")):
                (slower.set if out.name.endswith("b") else slower.clear)()
                bench(server.url, concurrency=[4], requests=[20], input="64", output="64", out=out)
        over.set()
        thread.join()
    kept: dict[str, list[Path]] = {"a": [], "b": []}
    for path in sorted(folder.glob("*/*/records.parquet")):
        kept[path.parts[-3][-1]].append(path.parent)
    rng, a, b = np.random.default_rng(1), kept["a"], kept["b"]
    for many in (3, 6, 12):
        drawn = [([a[at] for at in rng.permutation(len(a))], [b[at] for at in rng.permutation(len(b))])
                 for _ in range(pairs)]  # fmt: skip
        gate("llama.cpp, A/A", [(left[:many], left[many : 2 * many]) for left, _ in drawn], many)
        gate("llama.cpp, −10 %", [(left[:many], right[:many]) for left, right in drawn], many)


def gate(name: str, pairs: Sequence[tuple[Sequence[Path], Sequence[Path]]], runs: int = 2) -> None:
    failed, ratios = 0, []
    for a, b in pairs:
        document = compare(a, b, fail_on=["tpot_p50>+3%"]).document()
        failed += any(bound["met"] for bound in document["fail_on"])
        ratios += [
            each["ratio"]
            for each in document["cells"][0]["metrics"]
            if each["metric"] == "tpot_p50"
        ]
    print(
        f"gate, {name}: {failed} of {len(pairs)} pairs of {runs} runs a side fail at tpot_p50>+3%;"
        f" B/A {min(ratios):.3f} to {max(ratios):.3f}, median {np.median(ratios):.3f}"
    )


if __name__ == "__main__":
    main()
