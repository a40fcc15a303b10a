"""The machines on which launches run, by the kind that a study names."""

from __future__ import annotations

from importlib import import_module

from loadstone.core.errors import InputError
from loadstone.studies.file import StudyFile
from loadstone.studies.machines.kind import MachineKind
from loadstone.studies.supervise import Machine

_KINDS = {
    "local": "loadstone.studies.machines.local:LocalKind",
    "ssh": "loadstone.studies.machines.ssh:SshKind",
    "slurm": "loadstone.studies.machines.slurm:SlurmKind",
    "ray": "loadstone.studies.machines.ray:RayKind",
    "dstack": "loadstone.studies.render:DstackKind",
    "kubernetes": "loadstone.studies.render:KubernetesKind",
}


def find_machine(read: StudyFile, name: str | None) -> tuple[str, MachineKind]:
    """Return the name and kind of the machine that a study calls `name`, or its first. Raises
    InputError."""
    machines = read.study.machines
    if name is not None and name not in machines:
        raise InputError(
            f"--on {name}: no such machine in {read.path}; it has {', '.join(machines)}"
        )
    name = name or next(iter(machines))
    module, _, kind = _KINDS[machines[name].kind].partition(":")
    found: MachineKind = getattr(import_module(module), kind)()
    return name, found


def make_machines(read: StudyFile, name: str | None) -> list[Machine]:
    """Make the machine that a study calls `name`, or its first: one for each launch that runs at a
    time. Raises InputError.
    """
    name, kind = find_machine(read, name)
    served = [key for key, engine in read.study.engines.items() if engine.url is not None]
    if read.study.machines[name].parallel > 1 and served:
        raise read.error(
            f"$.machines.{name}.parallel",
            f"parallel: {served[0]} is one server at a url, for one launch at a time; leave it out",
        )
    return list(kind.make(read, name))
