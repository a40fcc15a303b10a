"""Runs are described, opened, ended and recovered here, whether measured or simulated."""

import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

from loadstone.analyse.other_tools import DIALECTS
from loadstone.analyse.summary import conclude
from loadstone.core import host, run_folder
from loadstone.core.bounds import TASK, parse_slo
from loadstone.core.errors import DiskFullError, InputError
from loadstone.core.plan import Plan
from loadstone.core.record import CellInfo, RunInfo, Target
from loadstone.core.secrets import blank_words
from loadstone.core.settings import RunSettings
from loadstone.core.signals import Interrupted, Signals
from loadstone.core.summary import Summary
from loadstone.core.version import __version__
from loadstone.workload.options import OutputOptions, RunOptions

_SECRET_FLAGS = ("--header", "-H", "--extra-body")


class OpenRun(NamedTuple):
    """A run that goes on: its folder, and what signals it got. `info` is completed as it goes."""

    folder: Path
    info: RunInfo
    plan: Plan
    signals: Signals


def bounds_of(output: OutputOptions, plan: Plan, *, streams: bool = True) -> dict[str, float]:
    """Return the limits of --slo, in seconds; `streams`: answers come a token at a time. Raises
    InputError, for a --dialect that is not known too."""
    if output.dialect is not None and output.dialect not in DIALECTS:
        raise InputError(
            f"--dialect {output.dialect}: unknown; choose one of {', '.join(DIALECTS)}"
        )
    bounds = dict(parse_slo(output.slo)) if output.slo is not None else {}
    if plan.classes and bounds:
        raise InputError("--mix and --slo: each class has its own bounds; give them there, as slo")
    for of_class in plan.classes:
        bounds |= {f"{of_class.name}:{name}": limit for name, limit in of_class.slo.items()}
    unknown = next((name for name in bounds if ":" in name and not plan.classes), None)
    if unknown is not None:
        raise InputError(f"--slo {unknown}: is of a class of traffic, and there is no --mix")
    if not plan.has_sessions and any(name.startswith(TASK) for name in bounds):
        raise InputError(
            "--slo task: is the time of a session; give --agents FILE or --turns, or leave it out"
        )
    streams &= plan.inputs is None
    unseen = [name for name in bounds if not re.match("([^:]*:)?(e2e|task|answer)", name)]
    if unseen and not streams:
        raise InputError(
            f"--slo {unseen[0]}: answers in one piece have e2e alone; write e.g. e2e_p99<1s"
        )
    return bounds


def describe(
    options: RunOptions,
    plan: Plan,
    target: Target,
    settings: RunSettings,
    *,
    source: Literal["measured", "simulated"],
    name: Sequence[str | None],
    salt: str | None = None,
) -> RunInfo:
    """Write what run.json says of a run before it begins, without secrets. `name`: parts of the
    folder's name."""
    begun = datetime.now(UTC)
    settings.label, settings.dialect = options.output.label, options.output.dialect
    settings.workload, settings.grace_s = plan.workload, options.load.grace_s
    settings.scenario = options.workload.scenario
    return RunInfo(
        run_id=run_folder.run_id(begun, *name),
        source=source,
        created=begun.isoformat(timespec="seconds"),
        command=_without_secrets(options.output.command),
        loadstone=__version__,
        host=host.describe(),
        target=target,
        plan_id=plan.plan_id,
        seed=plan.seed,
        salt=salt,
        slo=bounds_of(options.output, plan),
        settings=settings,
        cells=[CellInfo(load=load) for load in plan.cells],
    )


def open_run(out: Path, info: RunInfo, plan: Plan, signals: Signals, event_bytes: float) -> OpenRun:
    """Make the run's folder in `out`. `event_bytes`: that a token takes on the disk. Raises
    InputError, DiskFullError where there is no room.
    """
    folder = run_folder.create(out, info.run_id)
    info.run_id = folder.name
    check_room(folder, plan, event_bytes)
    return OpenRun(folder, info, plan, signals)


def _without_secrets(command: Sequence[str]) -> list[str]:
    shown = blank_words(command)
    for i, part in enumerate(shown):
        for flag in _SECRET_FLAGS:
            if part == flag and i + 1 < len(shown):
                shown[i + 1] = "…"
            elif part.startswith(flag + "="):
                shown[i] = f"{flag}=…"
            elif part.startswith(flag) and not flag.startswith("--"):
                shown[i] = f"{flag}…"
    return shown


def check_room(folder: Path, plan: Plan, event_bytes: float) -> None:
    """Refuse to start what the disk cannot hold, at so many bytes a token; the empty `folder` goes.
    Raises DiskFullError.
    """
    events = float(plan.output_tokens.clip(min=0).sum())
    needed = event_bytes * events + 400 * len(plan) + 2 * run_folder.RESERVE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        folder.rmdir()
        raise DiskFullError(
            f"{folder.parent}: {free / 1e6:.0f} MB free, and the run may need {needed / 1e6:.0f}"
            " MB; free some space, or give another folder with --out"
        )


def execute(run: OpenRun, measure: Callable[[], str | None]) -> Summary:
    """Own the run's folder while `measure` fills it, and conclude; returns the summary. What ends
    the run early is written there.

    `measure`: returns why the run failed, where it did; `signals.on_first` is its own while it
    lasts. Raises what it raises, and Interrupted, once all is saved, where a signal came.
    """
    folder, info, plan, signals = run
    with run_folder.own(folder):
        run_folder.write_info(folder, info)
        try:
            run_folder.write_plan(folder / "plan.parquet", plan)
            failure = measure()
        except (KeyboardInterrupt, Exception) as error:
            run_folder.write_failure(folder, info, error, info.source)
            raise
        info.status, info.error = ("failed", failure) if failure else ("done", None)
        if signals.count:
            info.status, info.error = "interrupted", "interrupted by a signal"
            run_folder.log(folder, info.error)
        summary = finish(folder, info)
    if signals.count:
        raise Interrupted(folder, summary)
    return summary


def finish(folder: Path, info: RunInfo) -> Summary:
    """Make records of the journals and the summary of the records, as the folder's owner."""
    voids = Counter[int]()
    run_folder.assemble(folder, voids)
    for cell, answers in voids.items():
        info.cells[cell].void_firsts = answers
    info.journals_damaged = run_folder.damaged_journals(folder) or info.journals_damaged
    return conclude(folder, info, run_folder.read_plan(folder))


def recover(folder: Path) -> Summary:
    """Finish a run folder that a crash left: make records of what the journals hold, and the
    summary. Idempotent.

    Raises InputError, one line, where it cannot be done, as while the run still goes on.
    """
    run_folder.read_info(folder)  # where there is none, the run has no owner yet, or it is no run
    with run_folder.own(folder):
        info = run_folder.read_info(folder)
        if info.status == "running":
            info.status = "interrupted"
            info.error = info.error or "the run was cut off"
        return finish(folder, info)
