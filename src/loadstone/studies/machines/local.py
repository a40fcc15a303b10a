"""This machine: an engine's processes are children of the study's, and end with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from loadstone.core.errors import InputError
from loadstone.measure.engines.launch import RunningEngine
from loadstone.measure.engines.process import free_port
from loadstone.runs import provenance
from loadstone.studies.commands import commands_of
from loadstone.studies.file import EngineSettings
from loadstone.studies.journal import Handle, StudyJournal
from loadstone.studies.plan import PlannedLaunch
from loadstone.studies.supervise import RunningLaunch


class LocalMachine:
    """Starts one launch at a time on this machine. `ready_s`: how long an engine may take until it answers."""

    kind = "local"

    def __init__(self, engines: Mapping[str, EngineSettings], ready_s: float) -> None:
        self._engines = engines
        self._ready_s = ready_s

    @contextlib.contextmanager
    def running(
        self, launch: PlannedLaunch, folder: Path, journal: StudyJournal, left: Handle
    ) -> Iterator[RunningLaunch]:
        """See supervise.Machine."""
        engine = self._engines.get(launch.engine, EngineSettings())
        journal.write("launch", launch=launch.id)
        if engine.url is not None:
            yield RunningLaunch(engine.url, {"url": engine.url})
            return
        commands = commands_of(launch, engine, (), free_port(), here=True)
        if len(commands.ranks) > 1:
            raise InputError(
                f"{len(commands.ranks)} nodes are needed, and `local` is one; run it --on another machine"
            )
        with RunningEngine(commands, folder) as running:
            running.wait_ready(self._ready_s)
            made = provenance.of_launch(commands, start_up_s=running.start_up_s)
            yield RunningLaunch(running.url, running.handle, running.check, None, made, commands.model)

    def release(self, left: Handle) -> None:
        """Do nothing: what was started here has ended with its supervisor."""
