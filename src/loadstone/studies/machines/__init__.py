"""The machines on which launches run, by the kind that a study names.

A kind is a class of kind.MachineKind, found by an entry point of its name in the group
`loadstone.machines`, and loaded when a study needs it: docs/extending.md.
"""

from importlib.metadata import entry_points

from loadstone.core.errors import InputError
from loadstone.studies.file import StudyFile
from loadstone.studies.machines.kind import MachineKind
from loadstone.studies.supervise import Machine

GROUP = "loadstone.machines"
"""The entry points by which kinds of machines are found, those of this package too."""


def find_machine(read: StudyFile, name: str | None) -> tuple[str, MachineKind]:
    """Return the name and kind of the machine that a study calls `name`, or its first. Raises
    InputError."""
    machines = read.study.machines
    if name is not None and name not in machines:
        raise InputError(
            f"--on {name}: no such machine in {read.path}; it has {', '.join(machines)}"
        )
    name = name or next(iter(machines))
    wanted = machines[name].kind
    for point in entry_points(group=GROUP, name=wanted):
        kind: MachineKind = point.load()()
        return name, kind
    installed = ", ".join(sorted(entry_points(group=GROUP).names))
    raise read.error(
        f"$.machines.{name}", f"{wanted}: no such kind of machines; installed are {installed}"
    )


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
