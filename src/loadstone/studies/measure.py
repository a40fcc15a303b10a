"""One cell of a study measured: `bench` at the launch's URL, or the same load through the simulator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from loadstone.core.errors import InputError
from loadstone.core.summary import Summary
from loadstone.runs.bench import Event, bench
from loadstone.runs.simulate import simulate
from loadstone.studies.file import StudyFile
from loadstone.studies.journal import Journal
from loadstone.studies.machines.local import Attached
from loadstone.studies.plan import Cell, Launch
from loadstone.studies.status import name_of
from loadstone.studies.supervise import Measure, Running
from loadstone.workload.options import Options, SimulateOptions, options_of


def live(read: StudyFile, on_event: Callable[[Event], None]) -> Measure:
    """What measures a cell on a live engine."""

    def measure(launch: Launch, cell: Cell, url: str, out: Path) -> Summary:
        options = _options(read, launch, cell, out) | {"url": url, "deployment": launch.deployment}
        return Summary.of(bench(options_of(options, Options), on_event))

    return measure


def simulated(read: StudyFile) -> Measure:
    """What simulates a cell."""

    def measure(launch: Launch, cell: Cell, url: str, out: Path) -> Summary:
        if launch.deployment is None:
            raise InputError(f"{launch.engine}: no layout, so that there is nothing to simulate; write one")
        options = _options(read, launch, cell, out) | {"deployment": launch.deployment}
        return Summary.of(simulate(options_of(options, SimulateOptions)))

    return measure


class Simulation:
    """The machine of a simulated study: nothing is started."""

    @contextlib.contextmanager
    def running(self, launch: Launch, folder: Path, journal: Journal) -> Iterator[Running]:
        """See supervise.Machine."""
        journal.write("launch", launch=launch.id)
        yield Attached("simulated")


def _options(read: StudyFile, launch: Launch, cell: Cell, out: Path) -> dict[str, Any]:
    named = {key.replace("-", "_"): value for key, value in cell.options.items()}
    workload = f" · {cell.workload}" if len(read.study.workloads) > 1 else ""
    setup = f"{launch.engine} {launch.layout}".strip() if launch.layout else name_of(launch)
    return named | {"out": out, "label": f"{setup}{workload}", "slo": read.study.slo}
