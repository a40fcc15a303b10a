"""Where launches run, by the kind of machine that a study names."""

from __future__ import annotations

import math

from loadstone.core.errors import InputError
from loadstone.studies.file import StudyFile
from loadstone.studies.machines.local import LocalMachine
from loadstone.studies.machines.slurm import SlurmMachine
from loadstone.studies.machines.ssh import SshMachine
from loadstone.studies.supervise import Machine


def machine_of(read: StudyFile, name: str | None) -> Machine:
    """The machine that a study calls `name`; None: its first one. Raises InputError."""
    machines = read.study.machines
    if name is not None and name not in machines:
        raise InputError(f"--on {name}: no such machine in {read.path}; it has {', '.join(machines)}")
    name = name or next(iter(machines))
    for at, wanted, what in (
        (f"$.machines.{name}", machines[name].kind == "ray", f"{name} is a machine of kind ray"),
        (f"$.machines.{name}.parallel", machines[name].parallel != 1, "parallel: several launches at a time"),
        ("$.restart", read.study.restart == "never", "restart: never"),
        ("$.limits.cell", math.isfinite(read.study.limits.cell), "cell: a limit of time for each"),
    ):
        if wanted:
            raise read.error(at, f"{what}, which this version does not run; leave it out")
    study, machine = read.study, machines[name]
    if machine.kind == "ssh":
        return SshMachine(machine, study.engines, study.limits)
    if machine.kind == "slurm":
        return SlurmMachine(machine, study.engines, study.limits, study.study)
    return LocalMachine(study.engines, study.limits.ready)
