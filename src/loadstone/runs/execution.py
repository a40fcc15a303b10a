"""How a run is described, opened, ended and recovered, measured or simulated."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from loadstone.analyse.other_tools import DIALECTS
from loadstone.analyse.summary import conclude, parse_slo
from loadstone.core import host, run_folder
from loadstone.core.errors import DiskFullError, InputError
from loadstone.core.plan import Plan
from loadstone.core.record import CellInfo, RunInfo, Target
from loadstone.core.secrets import blank_words
from loadstone.core.signals import Interrupted, Signals
from loadstone.core.version import __version__
from loadstone.workload.options import Options

_SECRET_FLAGS = ("--header", "-H", "--extra-body")


def bounds_of(options: Options) -> dict[str, float]:
    """The limits of --slo, in seconds. Raises InputError, for a --dialect that is not known too."""
    if options.dialect is not None and options.dialect not in DIALECTS:
        raise InputError(f"--dialect {options.dialect}: unknown; choose one of {', '.join(DIALECTS)}")
    return dict(parse_slo(options.slo)) if options.slo is not None else {}


def describe(
    options: Options,
    plan: Plan,
    target: Target,
    bounds: dict[str, float],
    *,
    source: Literal["measured", "simulated"],
    name: Sequence[str | None],
    salt: str | None,
    settings: dict[str, Any],
) -> RunInfo:
    """What `run.json` says of a run before it begins, without secrets. `name`: what the folder's name consists of."""
    now = datetime.now(UTC)
    return RunInfo(
        run_id=run_folder.run_id(now, *name),
        source=source,
        created=now.isoformat(timespec="seconds"),
        command=_without_secrets(options.command),
        loadstone=__version__,
        host=host.describe(),
        target=target,
        plan_id=plan.plan_id,
        seed=plan.seed,
        salt=salt,
        slo=bounds,
        settings={
            "label": options.label,
            "workload": plan.workload,
            "dialect": options.dialect,
            "grace_s": options.grace_s,
            **settings,
        },
        cells=[CellInfo(load=load) for load in plan.cells],
    )


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
    """Refuse to start what the disk cannot hold, at so many bytes a token; the empty `folder` goes. Raises
    DiskFullError.
    """
    events = float(plan.output_tokens.clip(min=0).sum())
    needed = event_bytes * events + 400 * len(plan) + 2 * run_folder.RESERVE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        folder.rmdir()
        raise DiskFullError(
            f"{folder.parent}: {free / 1e6:.0f} MB free, and the run may need {needed / 1e6:.0f} MB; "
            "free some space, or give another folder with --out"
        )


def execute(
    folder: Path, info: RunInfo, plan: Plan, signals: Signals, run: Callable[[], str | None]
) -> dict[str, Any]:
    """Own `folder` while `run` fills it, and conclude; returns the summary. What ends the run early is written there.

    `run`: returns why the run failed, where it did; `signals.on_first` is its own while it lasts. Raises what `run`
    raises, and Interrupted, once all is saved, where a signal came.
    """
    with run_folder.own(folder):
        run_folder.write_info(folder, info)
        try:
            run_folder.write_plan(folder / "plan.parquet", plan)
            failure = run()
        except (KeyboardInterrupt, Exception) as error:
            run_folder.write_failure(folder, info, error, info.source)
            raise
        info.status, info.error = ("failed", failure) if failure else ("done", None)
        if signals.count:
            info.status, info.error = "interrupted", "interrupted by a signal"
            run_folder.log(folder, info.error)
        document = finish(folder, info)
    if signals.count:
        raise Interrupted(folder, document)
    return document


def finish(folder: Path, info: RunInfo) -> dict[str, Any]:
    """Journals to records, records to summary, by the folder's owner."""
    voids = Counter[int]()
    run_folder.assemble(folder, voids)
    for cell, answers in voids.items():
        info.cells[cell].void_firsts = answers
    info.journals_damaged = run_folder.damaged_journals(folder) or info.journals_damaged
    return conclude(folder, info, run_folder.read_plan(folder)).document()


def recover(folder: Path) -> dict[str, Any]:
    """Finish a run folder that a crash left: records of what the journals hold, and the summary. Idempotent.

    Raises InputError, one line, where it cannot be done, as while the run still goes on.
    """
    run_folder.read_info(folder)  # where there is none, the run has no owner yet, or it is no run
    with run_folder.own(folder):
        info = run_folder.read_info(folder)
        if info.status == "running":
            info.status = "interrupted"
            info.error = info.error or "the run was cut off"
        return finish(folder, info)
