"""Where launches run, by the kind of machine that a study names."""

from __future__ import annotations

from loadstone.core.errors import InputError
from loadstone.studies.file import StudyFile
from loadstone.studies.machines.local import LocalMachine
from loadstone.studies.supervise import Machine


def machine_of(read: StudyFile, name: str | None) -> Machine:
    """The machine that a study calls `name`; None: its first one. Raises InputError."""
    machines = read.study.machines
    if name is not None and name not in machines:
        raise InputError(f"--on {name}: no such machine in {read.path}; it has {', '.join(machines)}")
    kind = next(iter(machines.values())).kind if name is None else machines[name].kind
    if kind != "local":
        raise InputError(
            f"--on {name or next(iter(machines))}: {kind} is not run by this version; use a local machine"
        )
    return LocalMachine(read.study.engines, read.study.limits.ready)
