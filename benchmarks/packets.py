"""Arrival times by `--clock packets` beside those by sockets, where the client is stopped meanwhile.

    python benchmarks/packets.py [--streams 100] [--rounds 3] [--stop 30ms]

A hundred streams in lock-step on the timing server, which knows when it wrote each token. Three
times a second the client's worker is stopped (`--stop 0ms`: never), as on a host without a
processor for it. Needs root: packets are read.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from loadstone.core import run_folder
from loadstone.core.units import parse_seconds
from loadstone.measure import simulated_server
from loadstone.runs import selftest
from loadstone.runs.bench import bench
from loadstone.workload.options import Options

EVERY_S = 0.3
OUTPUT, REQUESTS_A_STREAM = 100, 8
LAW = simulated_server.FixedLatency(ttft_s=0.1, itl_s=0.01)


def signal_workers(number: signal.Signals) -> None:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"client.worker" in (folder / "cmdline").read_bytes():
                os.kill(int(folder.name), number)


@contextlib.contextmanager
def stopping(stop_s: float) -> Iterator[None]:
    ended = threading.Event()

    def stop() -> None:
        while not ended.wait(EVERY_S):
            signal_workers(signal.SIGSTOP)
            ended.wait(stop_s)
            signal_workers(signal.SIGCONT)

    thread = threading.Thread(target=stop)
    if stop_s:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if stop_s:
            thread.join()


def measure(clock: str, streams: int, stop_s: float) -> str:
    """Measure once; returns a line of the errors, ms, and the client's µs of processor a token."""
    with (
        tempfile.TemporaryDirectory() as folder,
        simulated_server.start(LAW, keep_truth=True) as server,
    ):
        with stopping(stop_s):
            summary = bench(
                Options.read(
                    url=server.url, concurrency=[streams], requests=[streams * REQUESTS_A_STREAM], warmup=0,
                    input="2", output=str(OUTPUT), salt="selftest", workers=1, clock=clock, out=Path(folder),
                )
            )  # fmt: skip
        truth = selftest._ask_truth(server)
        info = run_folder.read_info(Path(summary.run_dir))
        records = pa.Table.from_batches(
            run_folder.read_records(Path(summary.run_dir), 0), schema=run_folder.records_schema()
        )
    found = selftest.compare(records, truth, info.origin_ns or 0, LAW, info.cells[0].load)
    assert found is not None
    assert found.ttft_s is not None
    cpu_us = (info.cells[0].client_cpu_s or 0) / (streams * REQUESTS_A_STREAM * OUTPUT) * 1e6
    error_ms = [1e3 * (value or 0) for value in (found.error_s.p50, found.error_s.p99)]
    shift_ms = [1e3 * found.ttft_s.p50, 1e3 * found.ttft_s.p99]
    return (
        f"{clock:8} token p50 {error_ms[0]:.3f} p99 {error_ms[1]:.3f}   TTFT {shift_ms[0]:+.3f}"
        f" {shift_ms[1]:+.3f}   together {found.coalesced:.1%}   {cpu_us:.1f} µs/token"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stop", default="30ms")
    arguments = parser.parse_args()
    for number in range(arguments.rounds):
        for clock in ("kernel", "packets") if number % 2 == 0 else ("packets", "kernel"):
            print(measure(clock, arguments.streams, parse_seconds(arguments.stop, "--stop")))


if __name__ == "__main__":
    main()
