"""The client beside an engine on the same cores: does it see what the engine says of itself?

    python benchmarks/beside_engine.py [--runs 10] [--concurrency 4] [--requests 64] [--setsid]
    [--json]

Starts the engine (scripts/engines/vllm installs it) in this session, as a shell does, or with
--setsid in one of its own, as a service does; then runs `loadstone bench` on it again and again,
without pinning either. The truth is the engine's mean time to first token: what
vllm:time_to_first_token_seconds_sum and _count gained over the cell, by the readings of /metrics in
the run folder. It begins after the engine has read a request and ends before it writes the token,
so that a right client is above it by a little. A run is near if its mean TTFT, of warm-up and
measured requests as the engine counts both, is within 10 % or 3 ms. The first run is thrown away:
an engine's first requests are slow.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from loadstone.measure.engines.process import free_port

ROOT = Path(__file__).resolve().parents[1]
NEAR_SHARE, NEAR_S = 0.10, 0.003
TTFT = "vllm:time_to_first_token_seconds_"
READY_S = 300.0


@contextmanager
def serving(folder: Path, session: bool) -> Iterator[str]:
    """vLLM's address, by the recipe of tests/engines/launch.py, which would guard it in a session
    that we choose."""
    sys.path.insert(0, str(ROOT / "tests"))
    launch, tiny_model = (
        importlib.import_module(f"engines.{name}") for name in ("launch", "tiny_model")
    )
    recipe = launch.RECIPES["vLLM"]
    program = ROOT / ".cache" / "engines" / recipe.home / "bin" / "vllm"
    if not program.exists():
        raise SystemExit(f"vLLM is not installed: run scripts/engines/{recipe.home}")
    tiny_model.write(folder / "tiny")
    (folder / "hub").mkdir()
    port = free_port()
    words = [word.format(model=folder / "tiny", port=port) for word in recipe.command.split()[1:]]
    env = launch.environment() | {
        "HF_HOME": str(folder),
        "OMP_NUM_THREADS": "1",
        **recipe.environment,
    }
    with (folder / "log").open("wb") as log:
        engine = subprocess.Popen(
            [program, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
            start_new_session=session, process_group=None if session else 0,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + READY_S
        while not _answers(f"{url}/health"):
            if engine.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(
                    f"vLLM did not start: {(folder / 'log').read_text(errors='replace')[-500:]}"
                )
            time.sleep(0.5)
        yield url
    finally:
        os.killpg(engine.pid, signal.SIGTERM)
        engine.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status) == 200
    except (urllib.error.URLError, OSError):
        return False


def bench(url: str, asked: argparse.Namespace, out: Path) -> dict[str, Any]:
    command = [
        str(Path(sys.executable).with_name("loadstone")),
        "bench",
        url,
        "--json",
        "--out",
        str(out),
    ]
    command += ["--input", "128", "--output", "64"]
    command += ["--concurrency", str(asked.concurrency), "--requests", str(asked.requests)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"bench: {done.stderr.strip().splitlines()[-1:]}")
    document = json.loads(done.stdout)
    (cell,) = document["cells"]
    metrics = cell["metrics"]
    folder = Path(document["run_dir"])
    engine_s = engines_own(folder)
    sent = pq.read_table(folder / "records.parquet", columns=["sent_s", "arrival_s"]).to_pylist()
    mean_s = statistics.mean(
        row["arrival_s"][0] - row["sent_s"] for row in sent if row["arrival_s"]
    )
    return {
        "ttft_mean_s": mean_s, "engine_ttft_mean_s": engine_s, "ttft_p50_s": metrics["ttft_s"]["p50"],
        "near": abs(mean_s - engine_s) <= max(NEAR_SHARE * engine_s, NEAR_S), "trusted": cell["verdict"]["trusted"],
        "send_lag_p99_s": cell["client"]["send_lag_p99_s"], "receive_lag_p99_s": cell["client"]["receive_lag_p99_s"],
        "itl_p50_s": metrics["itl_s"]["p50"], "itl_p99_s": metrics["itl_s"]["p99"],
        "spoilt_by": [f["kind"] for f in cell["verdict"]["findings"] if f["severity"] != "info"],
        "load_average": os.getloadavg()[0],
    }  # fmt: skip


def engines_own(folder: Path) -> float:
    """Mean TTFT of the one cell by the engine, s: counters from the last reading before it to the
    first after."""
    cell = json.loads((folder / "run.json").read_text())["cells"][0]
    rows = pq.read_table(folder / "server.parquet").to_pylist()
    gained = {}
    for part in ("sum", "count"):
        read = sorted((row["time_s"], row["value"]) for row in rows if row["name"] == TTFT + part)
        before = [value for time_s, value in read if time_s <= cell["start_s"]]
        after = [value for time_s, value in read if time_s >= cell["end_s"]]
        gained[part] = after[0] - before[-1]
    return float(gained["sum"] / gained["count"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--setsid", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="beside-engine-") as scratch,
        serving(Path(scratch), asked.setsid) as url,
    ):
        for number in range(asked.runs + 1):
            row = bench(url, asked, Path(scratch) / "runs")
            if number == 0:
                continue
            rows.append(row)
            if not asked.json:
                ms = {name: value * 1e3 for name, value in row.items() if name.endswith("_s")}
                print(
                    f"TTFT mean {ms['ttft_mean_s']:6.1f} ms, engine's own"
                    f" {ms['engine_ttft_mean_s']:6.1f}, p50 {ms['ttft_p50_s']:6.1f}; sends late p99"
                    f" {ms['send_lag_p99_s']:6.1f}, receive lag p99 {ms['receive_lag_p99_s']:6.1f};"
                    f" ITL p50 {ms['itl_p50_s']:5.2f}, p99 {ms['itl_p99_s']:6.1f};"
                    f" {'near' if row['near'] else 'off'},"
                    f" {'trusted' if row['trusted'] else row['spoilt_by']} (load"
                    f" {row['load_average']:.1f})",
                    flush=True,
                )
    if asked.json:
        print(json.dumps({"setsid": asked.setsid, "runs": rows}, indent=1))
        return
    near, trusted = (sum(row[name] for row in rows) for name in ("near", "trusted"))
    print(
        f"{'setsid' if asked.setsid else 'same session'}: near {near}, trusted {trusted} of"
        f" {len(rows)}"
    )


if __name__ == "__main__":
    main()
