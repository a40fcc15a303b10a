"""Where launches run, by the kind of machine that a study names."""

from __future__ import annotations

import math

from loadstone.core.errors import InputError
from loadstone.studies import file
from loadstone.studies.file import StudyFile
from loadstone.studies.machines.local import LocalMachine
from loadstone.studies.machines.slurm import SlurmMachine
from loadstone.studies.machines.ssh import SshMachine
from loadstone.studies.supervise import Machine


def machine_named(read: StudyFile, name: str | None) -> tuple[str, file.Machine]:
    """What the file says of the machine that a study calls `name`; None: its first one. Raises InputError."""
    machines = read.study.machines
    if name is not None and name not in machines:
        raise InputError(f"--on {name}: no such machine in {read.path}; it has {', '.join(machines)}")
    name = name or next(iter(machines))
    return name, machines[name]


def machine_of(read: StudyFile, name: str | None) -> Machine:
    """The machine that a study calls `name`, to run on it; None: its first one. Raises InputError."""
    name, machine = machine_named(read, name)
    if machine.kind in ("dstack", "kubernetes"):
        problem = f"{name}: studies are not run by {machine.kind}, only rendered for it"
        remedy = "run --render FOLDER writes the files; start one, and measure it as an engine with url:"
        raise read.error(f"$.machines.{name}", f"{problem}; {remedy}")
    for at, wanted, what in (
        (f"$.machines.{name}", machine.kind == "ray", f"{name} is a machine of kind ray"),
        (f"$.machines.{name}.parallel", machine.parallel != 1, "parallel: several launches at a time"),
        ("$.restart", read.study.restart == "never", "restart: never"),
        ("$.limits.cell", math.isfinite(read.study.limits.cell), "cell: a limit of time for each"),
    ):
        if wanted:
            raise read.error(at, f"{what}, which this version does not run; leave it out")
    study = read.study
    if machine.kind == "ssh":
        return SshMachine(machine, study.engines, study.limits)
    if machine.kind == "slurm":
        return SlurmMachine(machine, study.engines, study.limits, study.study)
    return LocalMachine(study.engines, study.limits.ready)
