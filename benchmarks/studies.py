"""What studies take beside launching and measuring: `show` of 2,000 cells, and the machinery's
seconds a cell.

    python benchmarks/studies.py [--engine llama.cpp] [--cells N]

`show_s` are three studies of 2,000 cells, from file to estimate: few deployments with many loads,
and many of both; the first in a fresh process. Of a study that is run, `beside_s` is all of its
time but that in which an engine was started or stopped and cells were measured or simulated, by
cell; `around_s` of an engine also what a measurement takes beside its own requests (attaching,
planning, saving, the summary). Prints JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadstone.analyse.compare.price import Prices
from loadstone.core import run_folder
from loadstone.core.summary import Summary
from loadstone.studies import measure
from loadstone.studies.file import read_study
from loadstone.studies.journal import Handle, StudyJournal
from loadstone.studies.machines import make_machines
from loadstone.studies.plan import PlannedCell, PlannedLaunch, plan_study
from loadstone.studies.show import estimate
from loadstone.studies.supervise import Machine, Measure, RunningLaunch, run_study

LAYOUTS = [
    f"{count}x{gpu}/tp{count}"
    for count in (1, 2, 4, 8)
    for gpu in ("h100", "h200", "b200", "a100", "mi300x")
]
SHOWN = {
    "1 deployment": (
        "8xh200/tp8",
        "{rate: " + str([i / 10 for i in range(1, 1001)]) + ", requests: 500}",
        1,
    ),
    "20 deployments, 5 repeats": (
        ", ".join(LAYOUTS),
        "{concurrency: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]}",
        5,
    ),
    "20 deployments": (", ".join(LAYOUTS), f"{{concurrency: {list(range(1, 51))}}}", 1),
}
STUDY = """\
study: timed
model: llama-3.1-70b
deployments: {{engine: [vllm], layout: [{}]}}
workloads: {{short: {{input: 1k, output: 128}}, long: {{input: 8k, output: 1k}}}}
loads: {}
repeats: {}
"""
RUN = """\
study: timed
{}
workloads: {{short: {{input: 32, output: 8}}}}
loads: {{concurrency: {}, requests: 4, warmup: 0}}
"""


class Timed:
    """A machine and a measurement whose seconds are added up."""

    def __init__(self, machine: Machine, how: Measure) -> None:
        self.kind = machine.kind
        self.launching_s = self.measuring_s = 0.0
        self._machine, self._how = machine, how

    @contextlib.contextmanager
    def running(
        self, launch: PlannedLaunch, folder: Path, journal: StudyJournal, left: Handle
    ) -> Iterator[RunningLaunch]:
        begun_s = time.perf_counter()
        with self._machine.running(launch, folder, journal, left) as running:
            self.launching_s += time.perf_counter() - begun_s
            yield running
            begun_s = time.perf_counter()
        self.launching_s += time.perf_counter() - begun_s

    def release(self, left: Handle) -> None:
        self._machine.release(left)

    def measure(
        self, launch: PlannedLaunch, cell: PlannedCell, engine: RunningLaunch, out: Path
    ) -> Summary:
        begun_s = time.perf_counter()
        summary = self._how(launch, cell, engine, out)
        self.measuring_s += time.perf_counter() - begun_s
        return summary


def show_s(folder: Path) -> dict[str, float]:
    took = {}
    for name, (layouts, loads, repeats) in SHOWN.items():
        path = folder / "show.yaml"
        path.write_text(STUDY.format(layouts, loads, repeats))
        begun_s = time.perf_counter()
        read = read_study(path)
        found = estimate(read, plan_study(read), Prices())
        took[name] = round(time.perf_counter() - begun_s, 3)
        if found.cells != 2000:
            raise SystemExit(f"{name}: {found.cells} cells")
    return took


def run_s(folder: Path, engine: str | None, cells: int) -> dict[str, Any]:
    path = folder / "run.yaml"
    simulated = "model: llama-3.1-8b\ndeployments: {engine: [vllm], layout: [1xh100]}"
    deployments = f"deployments: {{engine: [{engine}]}}" if engine else simulated
    path.write_text(RUN.format(deployments, [*range(1, cells + 1)]))
    read = read_study(path)
    launches = plan_study(read)
    machine = make_machines(read, None)[0] if engine else measure.Simulation()
    timed = Timed(
        machine, measure.live(read, lambda event: None) if engine else measure.simulated(read)
    )
    begun_s = time.perf_counter()
    left = run_study(read, launches, folder / "run", [timed], timed.measure)
    wall_s = time.perf_counter() - begun_s
    if left:
        raise SystemExit(f"{left} cells are missing")
    result = {
        "cells": cells,
        "launching_s": round(timed.launching_s, 3),
        "measuring_s": round(timed.measuring_s, 3),
        "beside_s": round((wall_s - timed.launching_s - timed.measuring_s) / cells, 4),
    }
    if engine:
        runs = [
            run_folder.read_info(file.parent)
            for file in (folder / "run" / "cells").glob("*/*/run.json")
        ]
        requests_s = sum(
            (cell.end_s or 0) - (cell.start_s or 0) for run in runs for cell in run.cells
        )
        result["around_s"] = round((wall_s - timed.launching_s - requests_s) / cells, 4)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", default="llama.cpp", help="that is started and measured")
    parser.add_argument("--cells", type=int, default=12, help="of a study that is run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result: dict[str, Any] = {"show_s": show_s(Path(folder))}
        for name, engine in (("simulated", None), (options.engine, options.engine)):
            where = Path(folder) / name
            where.mkdir()
            result[name] = run_s(where, engine, options.cells)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
