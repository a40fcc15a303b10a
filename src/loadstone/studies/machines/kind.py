"""Defines the services of a kind of machines for a study: launches are started on such a machine,
or rendered as files for its scheduler."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from loadstone.engines.deployment_launch import DeploymentLaunch
from loadstone.engines.launch import Launch as Commands
from loadstone.studies.commands import commands_of
from loadstone.studies.file import StudyFile
from loadstone.studies.plan import PlannedLaunch
from loadstone.studies.supervise import Machine


class Rendered(NamedTuple):
    """Holds a file. `hint`: how it is handed in, and where the engine then answers; `separator`:
    what stands between several of them."""

    name: str
    text: str
    hint: str
    separator: str = ""


class MachineKind:
    """A kind of machines. One that starts launches has a `make` of its own, one whose scheduler
    takes files a `render`; `name` is that of a machine in the study."""

    def make(self, read: StudyFile, name: str) -> Sequence[Machine]:
        """Return a machine for each launch that runs at a time, with its part of the hosts or GPUs.
        Raises InputError where launches cannot be started so."""
        kind = read.study.machines[name].kind
        problem = f"{name}: studies are not run by {kind}, only rendered for it"
        remedy = (
            "run --render FOLDER writes the files; start one, and measure it as an engine with url:"
        )
        raise read.error(f"$.machines.{name}", f"{problem}; {remedy}")

    def render(
        self, read: StudyFile, name: str, launch: PlannedLaunch, folder: Path
    ) -> Rendered | None:
        """Return the launch as the scheduler takes it; None: it takes commands alone. `folder`: of
        the launch. Raises InputError."""
        return None

    def commands(self, launch: PlannedLaunch, port: int) -> Commands | DeploymentLaunch:
        """Return the commands that start the launch. Raises InputError."""
        return commands_of(launch, (), port)


def divide(
    read: StudyFile, name: str, resources: tuple[str, ...], noun: str
) -> list[tuple[str, ...]]:
    """Divide hosts or GPUs among the launches that run at a time. Raises InputError."""
    parts = read.study.machines[name].parallel
    share = len(resources) // parts
    if not share:
        raise read.error(
            f"$.machines.{name}.parallel",
            f"parallel: {parts} launches at a time on {len(resources)} {noun}; write fewer",
        )
    return [resources[share * i : share * (i + 1)] for i in range(parts)]
