"""Memory and accounting at scale: many streams at once, and a plan of many requests.

    python benchmarks/scale.py streams [--streams 10000] [--tokens 1024] [--itl 200ms]
    python benchmarks/scale.py requests [--requests 1000000] [--concurrency 64] [--tokens 2]
    python benchmarks/scale.py summary [--requests 1000000] [--concurrency 64] [--tokens 100]

The first two print the largest resident memory of the workers and of the owner (planning, assembly,
summary), and check that every request is in the records with all its tokens. Their target is the
embedded timing server. The third simulates such a run, and prints what its summary, anew from the
records, and its report take.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadstone.measure import simulated_server
from loadstone.runs.bench import bench
from loadstone.workload.options import Options


class WorkerMemory(threading.Thread):
    """Watches the largest resident size (VmHWM, bytes) of any worker."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self.running = True

    def run(self) -> None:
        while self.running:
            for process in Path("/proc").iterdir():
                if process.name.isdigit():
                    self._look(process)
            time.sleep(0.5)

    def _look(self, process: Path) -> None:
        try:
            if b"loadstone.measure.client.worker" not in (process / "cmdline").read_bytes():
                return
            for line in (process / "status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    self.peak_bytes = max(self.peak_bytes, int(line.split()[1]) * 1024)
        except OSError:
            return


def run(
    law: str, options: Callable[[str, Path], Options], expected_requests: int, expected_tokens: int
) -> None:
    memory = WorkerMemory()
    memory.start()
    with (
        simulated_server.start(simulated_server.FixedLatency.parse(law)) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        started = time.monotonic()
        document: dict[str, Any] = bench(options(server.url, Path(folder))).document()
        wall_s = time.monotonic() - started
        size = sum(file.stat().st_size for file in Path(document["run_dir"]).iterdir())
    memory.running = False
    cell = document["cells"][0]
    assert cell["requests"]["sent"] == cell["requests"]["ok"] == expected_requests, cell["requests"]
    assert cell["metrics"]["output_tokens"] == expected_tokens, cell["metrics"]["output_tokens"]
    owner = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"requests            {cell['requests']}")
    print(
        f"duration            {cell['duration_s']:.1f} s measured, {wall_s:.1f} s in all,"
        f" {os.cpu_count()} cores"
    )
    print(
        f"output tokens       {cell['metrics']['output_tokens']:,} at"
        f" {cell['metrics']['output_tokens_per_s']:,.0f}/s"
    )
    print(f"client CPU          {cell['client']['cpu_s']:.1f} s")
    print(f"receive lag p99     {cell['client']['receive_lag_p99_s'] * 1e3:.2f} ms")
    print(f"largest worker      {memory.peak_bytes / 2**20:.0f} MiB")
    print(f"owner               {owner / 2**20:.0f} MiB")
    print(f"run folder          {size / 2**20:.0f} MiB")


def timed(*arguments: str) -> None:
    """Prints what `loadstone` with these arguments takes, its start included."""
    started = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "loadstone.commands", *arguments], stdout=subprocess.DEVNULL
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, arguments
    print(
        f"{arguments[0]:10} {time.monotonic() - started:5.1f} s wall,"
        f" {usage.ru_utime + usage.ru_stime:5.1f} s of processor time,"
        f" {usage.ru_maxrss / 2**20:.2f} GiB"
    )


def summary(requests: int, concurrency: int, tokens: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        timed(
            "simulate", "llama-3.1-8b@1xh100", "--requests", str(requests), "--concurrency", str(concurrency),
            "--output", str(tokens), "--out", folder,
        )  # fmt: skip
        (made,) = Path(folder).iterdir()
        for _ in range(3):
            timed("show", str(made))
        timed("report", str(made), "-o", str(Path(folder) / "report.html"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["streams", "requests", "summary"])
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--itl", default="200ms")
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    if given.what == "streams":
        tokens = given.tokens or 1024
        run(
            f"ttft=1s,itl={given.itl}",
            lambda url, out: Options.read(
                url=url, concurrency=[given.streams], requests=[given.streams], warmup=0, input="8",
                output=str(tokens), workers=given.workers, out=out,
            ),
            given.streams,
            given.streams * tokens,
        )  # fmt: skip
    elif given.what == "summary":
        summary(given.requests, given.concurrency, given.tokens or 100)
    else:
        tokens = given.tokens or 2
        run(
            "ttft=1ms,itl=1ms",
            lambda url, out: Options.read(
                url=url, concurrency=[given.concurrency], requests=[given.requests], input="8",
                output=str(tokens), workers=given.workers, out=out,
            ),
            given.requests,
            given.requests * tokens,
        )  # fmt: skip


if __name__ == "__main__":
    main()
