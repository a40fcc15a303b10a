"""`loadstone study`: many runs from one file."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from loadstone.commands.flags import Price, json_flag
from loadstone.commands.output import INTERRUPTED, print_json, print_text
from loadstone.commands.report import write_report
from loadstone.core.errors import InputError

if TYPE_CHECKING:
    from loadstone.studies.file import StudyFile
    from loadstone.studies.plan import PlannedLaunch
    from loadstone.studies.show import DeploymentEstimate, StudyEstimate

study = typer.Typer(
    help="Whole studies: deployments started, measured, stopped and compared, from one file."
)

File = Annotated[Path, typer.Argument(help="the study, a file of YAML (docs/studies.md)")]
Folder = Annotated[Path, typer.Option("--out", help="folder for studies")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON document on stdout")]
On = Annotated[
    str | None,
    typer.Option("--on", help="where it runs: a name under `machines` [default: the first]"),
]
Simulated = Annotated[
    bool, typer.Option("--simulate", help="simulate every load; nothing is started")
]
_STUDIES = Path("studies")
_PORT = 8000
"""The port of commands that are printed; each launch that runs takes a free one."""


def _folder(out: Path, name: str, simulate: bool) -> Path:
    return out / (f"{name}-simulated" if simulate else name)


def _plan(file: Path) -> tuple[StudyFile, tuple[PlannedLaunch, ...]]:
    """Read a study and plan its launches. Raises InputError, with line and column."""
    from loadstone.studies.file import read_study
    from loadstone.studies.plan import plan_study

    read = read_study(file)
    return read, plan_study(read)


@study.command()
def show(file: File, price: Price = None, json: Json = False) -> None:
    """Show what a study takes: launches, loads, requests, hours, dollars; and what will not fit.
    Starts nothing."""
    from loadstone.analyse.compare.price import check_prices, parse_prices
    from loadstone.studies.show import estimate, remarks

    prices = parse_prices(price or ())
    check_prices(prices, ())
    read, launches = _plan(file)
    found = estimate(read, launches, prices)
    if json:
        print_json(msgspec.to_builtins(found))
        return
    _print_estimate(found)
    for line in remarks(read, found):
        print(line)


def _print_estimate(found: StudyEstimate) -> None:
    from loadstone.report.table import Table

    priced = any(deployment.usd is not None for deployment in found.deployments)
    rows: list[tuple[str, int, DeploymentEstimate | StudyEstimate]] = [
        (estimate.deployment, estimate.repeats * len(estimate.cells), estimate)
        for estimate in found.deployments
    ]
    rows.append(("all", found.cells, found))
    heads = ["deployment", "launches", "loads", "requests", "hours", "GPU hours"]
    lines = [
        [
            deployment,
            f"{estimate.launches:,}",
            f"{cells:,}",
            f"{estimate.requests:,}",
            f"{estimate.seconds / 3600:.2f}" if estimate.seconds else "unknown",
            f"{estimate.gpu_hours:.2f}" if estimate.gpu_hours else "unknown",
            *(["" if estimate.usd is None else f"{estimate.usd:,.2f}"] if priced else []),
        ]
        for deployment, cells, estimate in rows
    ]
    heads += ["$"] if priced else []
    print_text(Table(heads=heads, align="l" + "r" * (len(heads) - 1), rows=lines))


@study.command()
def run(
    file: File,
    on: On = None,
    out: Folder = _STUDIES,
    simulate: Simulated = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="print what starts each deployment: commands, jobs or tasks; start nothing",
        ),
    ] = False,
    render: Annotated[
        Path | None,
        typer.Option(
            "--render", help="write jobs or tasks for the machine into this folder; start nothing"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Run a study; run it again to go on where it was cut off. Loads that are done are not measured
    again."""
    from loadstone.commands.progress import working
    from loadstone.core.units import show_seconds
    from loadstone.studies import measure
    from loadstone.studies.machines import make_machines
    from loadstone.studies.results import render_results
    from loadstone.studies.status import deployment_name, read_status, repeats_text
    from loadstone.studies.supervise import StudyEvent, run_study

    read, launches = _plan(file)
    folder = _folder(out, read.study.study, simulate)
    if dry_run or render is not None:
        _print_commands(read, launches, on, folder, render)
        return

    count = sum(len(launch.cells) for launch in launches)
    ended: list[float] = []
    begun_s = time.monotonic()

    def tell(event: StudyEvent) -> None:
        text = event.text
        if event.kind == "done" and event.cell is not None:
            ended.append(time.monotonic() - begun_s)
            left_s = ended[-1] / len(ended) * (count - len(ended))
            change(f"{len(ended)} of {count} loads, about {show_seconds(left_s, 2)} left")
        if not text and event.kind != "done":
            return
        which = f"repeat {event.cell.repeat}" if event.cell else repeats_text(event.launch)
        shown = f"{deployment_name(event.launch)}, {which}"
        cell = f" · {event.cell.workload}, {event.cell.load}" if event.cell else ""
        print(
            f"{event.kind:6}"
            f" {shown}{cell}{': ' + text if event.kind in ('failed', 'ready') else ''}",
            file=sys.stderr,
        )

    machines = [measure.Simulation()] if simulate else make_machines(read, on)
    how = measure.simulated(read) if simulate else measure.live(read, lambda event: None)
    # Launches at the same time are forks of this process, which a thread that draws would break.
    alone = len(machines) == 1
    try:
        with working(f"{count} loads to do", shown=alone) as change:
            left = run_study(read, launches, folder, machines, how, tell)
    except KeyboardInterrupt:
        print(f"interrupted; run it again to go on: {folder}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    status = read_status(read, launches, folder)
    if json:
        print_json(msgspec.to_builtins(status))
    else:
        words = _words(file, out, simulate)
        print_text(*render_results(status, words, time.monotonic() - begun_s))
        print(folder)
    sys.exit(1 if left else 0)


def _words(file: Path, out: Path, simulate: bool) -> str:
    """Write a study's file and flags as its commands take them."""
    flags = ["--simulate"] * simulate + (["--out", str(out)] if out != _STUDIES else [])
    return shlex.join([str(file), *flags])


def _print_commands(
    read: StudyFile,
    launches: tuple[PlannedLaunch, ...],
    on: str | None,
    folder: Path,
    files: Path | None,
) -> None:
    """Print what starts each deployment on a machine, once, or write it into `files`: repeats are
    started alike."""
    from loadstone.core.run_folder.folder import writing
    from loadstone.studies.machines import find_machine
    from loadstone.studies.status import deployment_name
    from loadstone.studies.supervise import LAUNCHES

    name, kind = find_machine(read, on)
    for launch in launches:
        if launch.repeat > 1:
            continue
        title = f"# {deployment_name(launch)}"
        if launch.settings.url is not None:
            print(title, f"# {launch.settings.url} runs already", sep="\n")
            continue
        file = kind.render(read, name, launch, folder / LAUNCHES / launch.id)
        if file is None:
            if files is not None:
                raise InputError(
                    f"--render: {name} is of kind {read.study.machines[name].kind}, which takes"
                    " commands; see --dry-run"
                )
            commands = kind.commands(launch, _PORT)
            notes = [f"# {note}" for note in commands.notes]
            print(title, *notes, *commands.shell_lines(), sep="\n")
        elif files is None:
            separator = [file.separator] if file.separator else []
            print(*separator, title, f"# {file.name}: {file.hint}", sep="\n")
            print(file.text, end="")
        else:
            with writing(files):
                files.mkdir(parents=True, exist_ok=True)
                (files / file.name).write_text(file.text, "utf-8")
            print(title, f"# {file.hint}", files / file.name, sep="\n")


@study.command()
def schema() -> None:
    """Print the JSON Schema of study files, for editors."""
    from loadstone.studies.schema import study_schema

    print_json(study_schema())


@study.command()
def status(
    file: File, out: Folder = _STUDIES, simulate: Simulated = False, json: Json = False
) -> None:
    """Show what of a study is done, what runs, and what failed, and why."""
    from loadstone.report.table import Table
    from loadstone.studies.status import read_status

    read, launches = _plan(file)
    found = read_status(read, launches, _folder(out, read.study.study, simulate))
    if json:
        print_json(msgspec.to_builtins(found))
        return
    rows = []
    for launch in found.launches:
        done = sum(cell.state == "done" for cell in launch.cells)
        repeats = dict.fromkeys(cell.repeat for cell in launch.cells)
        repeat, cells = ", ".join(map(str, repeats)), f"{done} of {len(launch.cells)}"
        rows.append([launch.id, launch.deployment, repeat, launch.state, cells, launch.why])
    answers = [
        f"{launch.deployment}, {cell.workload}: {cell.found}"
        for launch in found.launches
        for cell in launch.cells
        if cell.found
    ]
    heads = ["launch", "deployment", "repeat", "state", "cells", "why"]
    print_text(Table(heads=heads, align="nnnnnw", rows=rows), *answers)


@study.command()
def report(
    file: File,
    write: Annotated[
        Path | None,
        typer.Option(
            "--write",
            "-o",
            help="file to write, .html, .md or .csv (-: stdout) [default: report.html]",
        ),
    ] = None,
    price: Price = None,
    out: Folder = _STUDIES,
    simulate: Simulated = False,
    json: Annotated[bool, json_flag("what was written")] = False,
) -> None:
    """Report on all runs of a study in one file: what is missing, findings, charts, and how to
    repeat it."""
    from loadstone.studies.report import study_runs

    read, launches = _plan(file)
    name = read.study.study
    twin = None if simulate else _folder(out, name, True)
    runs = study_runs(read, launches, _folder(out, name, simulate), twin)
    write_report(
        runs.folders, write, json, passed_over=runs.passed_over, price=price or (), study=runs.part
    )
