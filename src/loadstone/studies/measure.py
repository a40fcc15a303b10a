"""Measures one cell of a study: `bench` at the launch's URL, or the same load through the
simulator."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from loadstone.analyse.stored_run import read_run
from loadstone.core import run_folder
from loadstone.core.errors import InputError, TargetError
from loadstone.core.plan import POOLING_TASKS
from loadstone.core.provenance import Provenance
from loadstone.core.summary import SearchSummary, Summary
from loadstone.predict.simulator.fleet import fleet_of
from loadstone.runs.bench import bench
from loadstone.runs.cells import Event
from loadstone.runs.find_max import find_max
from loadstone.runs.simulate import simulate
from loadstone.studies.file import ACCEPTANCE, StudyFile
from loadstone.studies.journal import Handle, StudyJournal
from loadstone.studies.plan import PlannedCell, PlannedLaunch
from loadstone.studies.supervise import Measure, RunningLaunch, find_run
from loadstone.workload.option_fields import flags_of, options_of
from loadstone.workload.option_values import seconds
from loadstone.workload.options import Options, SimulateOptions

_MAX_ERRORS = 0.999
"""That `--max-errors` takes."""
_REPEATED = ("header", "stop", "gpu_metrics", "worker_metrics")
"""Flags that are given once for each of their values."""


def live(read: StudyFile, on_event: Callable[[Event], None]) -> Measure:
    """Return what measures a cell on a live engine."""

    def measure(
        launch: PlannedLaunch, cell: PlannedCell, engine: RunningLaunch, out: Path
    ) -> Summary:
        options = _options(read, launch, cell, out) | {
            "url": engine.url,
            "deployment": launch.deployment,
        }
        options |= _limits(read, options)
        options.pop(ACCEPTANCE, None)
        if engine.model is not None:
            options["model"] = engine.model
        if engine.worker_metrics:
            options.setdefault("worker_metrics", engine.worker_metrics)
        if engine.client is None:
            carry_out = find_max if cell.is_search else bench
            return _of_one_run(carry_out(options_of(options, Options), on_event, engine.made_with))
        engine.client.bench(
            command_words({name: value for name, value in options.items() if name != "out"}), out
        )
        run = find_run(out.parent.parent, cell)
        run = run or next((run for run in out.iterdir() if (run / "summary.json").is_file()), None)
        if run is None:
            raise TargetError(f"{out}: the client has left no run here")
        info = run_folder.read_info(run)
        made_there = msgspec.to_builtins(info.settings.provenance)
        info.settings.provenance = msgspec.convert(
            msgspec.to_builtins(engine.made_with) | made_there, Provenance
        )
        run_folder.write_info(run, info)
        return msgspec.structs.replace(read_run(run).summary, run_dir=str(run))

    return measure


def simulated(read: StudyFile) -> Measure:
    """Return what simulates a cell, by those of its options that are not about a server."""
    simulated_names = {flag.name.rstrip("_") for flag in flags_of(SimulateOptions).values()}

    def measure(
        launch: PlannedLaunch, cell: PlannedCell, engine: RunningLaunch, out: Path
    ) -> Summary:
        options = _options(read, launch, cell, out) | {"deployment": launch.deployment}
        options = {
            name: value for name, value in options.items() if name.rstrip("_") in simulated_names
        }
        if options.get("endpoint") not in POOLING_TASKS:
            options.pop("endpoint", None)  # by which API text is asked for, nothing says here
        # A simulation of the same plan is the same: each repeat draws its own.
        options["seed"] = read.study.seed + cell.repeat - 1
        carry_out = find_max if cell.is_search else simulate
        return _of_one_run(carry_out(options_of(options, SimulateOptions)))

    return measure


def _of_one_run(summary: Summary) -> Summary:
    """Return the summary of a cell; of a search, that of the run which its answer is about."""
    if not isinstance(summary, SearchSummary):
        return summary
    run = summary.run_dir
    return msgspec.structs.replace(read_run(Path(run)).summary, run_dir=run)


class Simulation:
    """The machine of a simulated study: nothing is started."""

    kind = "simulation"

    @contextlib.contextmanager
    def running(
        self, launch: PlannedLaunch, folder: Path, journal: StudyJournal, left: Handle
    ) -> Iterator[RunningLaunch]:
        """See supervise.Machine."""
        journal.write("launch", launch=launch.id)
        if launch.parsed is None:
            raise InputError(
                f"{launch.engine}: no layout, so that there is nothing to simulate; write one"
            )
        fleet_of(launch.parsed)  # what cannot be is said once, not for each cell
        yield RunningLaunch("simulated", {})

    def release(self, left: Handle) -> None:
        """Do nothing: nothing was started."""


def command_words(options: Mapping[str, Any]) -> list[str]:
    """Turn options of `bench`, as options_of() takes them, into words of its command line."""
    flags = flags_of(Options)
    by_name = {flag.name: flag for flag in flags.values()} | flags
    words = []
    for name, value in options.items():
        flag = by_name[name]
        if value is True:
            words.append(f"--{flag.dashed}")
        elif value is False:
            words += [f"--no-{flag.dashed}"] if flag.default is not False else []
        elif isinstance(value, Mapping):
            words.append(f"--{flag.dashed}={msgspec.json.encode(value).decode()}")
        elif value is not None:
            is_list = isinstance(value, Sequence) and not isinstance(value, str)
            texts = [str(part) for part in value] if is_list else [str(value)]
            if not flag.argument and flag.name not in _REPEATED:
                texts = [",".join(texts)]
            words += texts if flag.argument else [f"--{flag.dashed}={text}" for text in texts]
    return words


def _limits(read: StudyFile, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the study's limits of a cell as options of `bench`, where the cell has no narrower
    ones."""
    limits, narrower = read.study.limits, {}
    own_s = options.get("max_duration")
    if limits.cell < (math.inf if own_s is None else seconds(own_s, "--max-duration")):
        narrower["max_duration"] = float(limits.cell)
    if limits.errors < 1 and "max_errors" not in options:
        narrower["max_errors"] = min(float(limits.errors), _MAX_ERRORS)
    return narrower


def _options(
    read: StudyFile, launch: PlannedLaunch, cell: PlannedCell, out: Path
) -> dict[str, Any]:
    named = {key.replace("-", "_"): value for key, value in cell.options.items()}
    workload = cell.workload if len(read.study.workloads) > 1 else ""
    label = " · ".join(filter(None, (f"{launch.engine} {launch.layout}".rstrip(), workload)))
    return named | {"out": out, "label": label, "slo": None if cell.is_search else read.study.slo}
