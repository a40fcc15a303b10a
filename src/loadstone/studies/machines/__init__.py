"""The machines on which launches run, by the kind that a study names."""

from __future__ import annotations

import contextlib
import os

import msgspec

from loadstone.core.errors import InputError
from loadstone.core.nvml import Gpus
from loadstone.studies.file import EngineSettings, MachineSettings, StudyFile
from loadstone.studies.machines.local import LocalMachine
from loadstone.studies.machines.ray import RayMachine
from loadstone.studies.machines.slurm import SlurmMachine
from loadstone.studies.machines.ssh import SshMachine
from loadstone.studies.supervise import Machine

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def find_machine(read: StudyFile, name: str | None) -> tuple[str, MachineSettings]:
    """Return the name and settings of the machine that a study calls `name`, or its first. Raises
    InputError."""
    machines = read.study.machines
    if name is not None and name not in machines:
        raise InputError(
            f"--on {name}: no such machine in {read.path}; it has {', '.join(machines)}"
        )
    name = name or next(iter(machines))
    return name, machines[name]


def make_machines(read: StudyFile, name: str | None) -> list[Machine]:
    """Make the machine that a study calls `name`, or its first: one for each launch that runs at a
    time, with its part of the hosts or GPUs. Raises InputError.
    """
    name, machine = find_machine(read, name)
    if machine.kind in ("dstack", "kubernetes"):
        problem = f"{name}: studies are not run by {machine.kind}, only rendered for it"
        remedy = (
            "run --render FOLDER writes the files; start one, and measure it as an engine with url:"
        )
        raise read.error(f"$.machines.{name}", f"{problem}; {remedy}")
    study, parts, place = read.study, machine.parallel, f"$.machines.{name}.parallel"
    served = [key for key, engine in study.engines.items() if engine.url is not None]
    if parts > 1 and served:
        raise read.error(
            place,
            f"parallel: {served[0]} is one server at a url, for one launch at a time; leave it out",
        )
    if machine.kind in ("slurm", "ray"):
        kind = SlurmMachine if machine.kind == "slurm" else RayMachine
        return [kind(machine, study.engines, study.limits, study.study) for _ in range(parts)]
    if machine.kind == "ssh":
        shares = _divide(read, place, machine.ssh, parts, "hosts")
        parted = [msgspec.structs.replace(machine, ssh=share) for share in shares]
        return [
            SshMachine(settings, study.engines, study.limits, study.study) for settings in parted
        ]
    gpus = _find_gpus() if parts > 1 else ()
    if not gpus:
        return [LocalMachine(study.engines, study.limits.ready) for _ in range(parts)]
    machines: list[Machine] = []
    replace = msgspec.structs.replace
    engines = dict.fromkeys(study.deployments.engine, EngineSettings()) | study.engines
    for share in _divide(read, place, gpus, parts, "GPUs"):
        visible = {_VISIBLE: ",".join(share)}
        restricted = {
            name: replace(engine, env=visible | engine.env) for name, engine in engines.items()
        }
        machines.append(LocalMachine(restricted, study.limits.ready))
    return machines


def _divide(
    read: StudyFile, at: str, things: tuple[str, ...], parts: int, what: str
) -> list[tuple[str, ...]]:
    """Divide hosts or GPUs among the launches that run at a time."""
    share = len(things) // parts
    if not share:
        raise read.error(
            at, f"parallel: {parts} launches at a time on {len(things)} {what}; write fewer"
        )
    return [things[share * i : share * (i + 1)] for i in range(parts)]


def _find_gpus() -> tuple[str, ...]:
    """Return NVIDIA's GPUs that engines on this machine would see."""
    visible = os.environ.get(_VISIBLE)
    if visible is not None:
        return tuple(filter(None, visible.split(",")))
    with contextlib.suppress(InputError), Gpus() as gpus:
        return tuple(gpu.uuid for gpu in gpus.describe())
    return ()
