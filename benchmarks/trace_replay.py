"""How exactly a trace is replayed: every request's send time beside the time that the trace gives
it.

    python benchmarks/trace_replay.py AzureLLMInferenceTrace_conv.csv [--time-scale 0.1] [--law
    ttft=50ms,itl=10ms]

Runs `loadstone bench --trace` against the embedded timing server, which shares the machine, and
reads the records: lateness is `sent_s − intended_s`, and each intended time is checked against the
file. Exit code 1 if something was lost.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

from loadstone import open_run
from loadstone.measure import simulated_server
from loadstone.runs.bench import bench
from loadstone.workload import trace
from loadstone.workload.options import Options


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("--time-scale", type=float, default=0.1)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--law", default="ttft=50ms,itl=10ms")
    parser.add_argument("--workers", type=int)
    given = parser.parse_args()
    expected = trace.read(given.trace).time_s[: given.requests] * given.time_scale
    with (
        simulated_server.start(simulated_server.FixedLatency.parse(given.law)) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        document = bench(
            Options.read(
                url=server.url, trace=given.trace, time_scale=[given.time_scale], workers=given.workers,
                requests=[given.requests] if given.requests else (), out=Path(folder),
            )
        ).document()  # fmt: skip
        records = open_run(document["run_dir"]).records()
    cell = document["cells"][0]
    measured = np.array([phase == "measure" for phase in records["phase"].to_pylist()])
    order = np.array([int(name.rpartition("-")[2]) for name in records["request_id"].to_pylist()])[
        measured
    ].argsort()
    intended, sent = (
        records[name].to_numpy()[measured][order] for name in ("intended_s", "sent_s")
    )
    late_s = sent - intended
    off_s = np.abs((intended - intended[0]) - (expected - expected[0]))
    print(f"requests            {cell['requests']}")
    print(f"output tokens       {cell['metrics']['output_tokens']:,}, {cell['duration_s']:.1f} s")
    print(f"planned off trace   {off_s.max() * 1e6:.3f} µs at most")
    shown = ", ".join(
        f"p{q:g} {np.percentile(late_s, q) * 1e3:.3f} ms" for q in (50, 99, 99.9, 100)
    )
    print(f"sent late           {shown}")
    print(f"late by over 2 ms   {(late_s > 2e-3).sum()} of {len(late_s)}")
    print(f"receive lag p99     {cell['client']['receive_lag_p99_s'] * 1e3:.3f} ms")
    print(f"client CPU          {cell['client']['cpu_s']:.1f} s")
    return 0 if cell["requests"]["ok"] == len(expected) == len(late_s) else 1


if __name__ == "__main__":
    sys.exit(main())
