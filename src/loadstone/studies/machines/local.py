"""This machine: an engine's processes are children of the study's, and end with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from loadstone.core.errors import InputError
from loadstone.engines.deployment_launch import DeploymentLaunch
from loadstone.measure.engines.launch import RunningEngine
from loadstone.measure.engines.observe import worker_page
from loadstone.measure.engines.process import free_port
from loadstone.runs import provenance
from loadstone.studies.commands import commands_of, pools_of
from loadstone.studies.file import EngineSettings
from loadstone.studies.journal import Handle, StudyJournal
from loadstone.studies.plan import PlannedLaunch
from loadstone.studies.supervise import RunningLaunch


class LocalMachine:
    """Starts one launch at a time on this machine. `ready_s`: how long an engine may take until it
    answers."""

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
        if launch.parsed is not None and launch.parsed.is_split:
            with self._pools(
                pools_of(launch.parsed, launch, engine, free_port()), folder
            ) as started:
                yield started
            return
        commands = commands_of(launch, engine, (), free_port(), here=True)
        if len(commands.ranks) > 1:
            raise InputError(
                f"{len(commands.ranks)} nodes are needed, and `local` is one; run it --on another"
                " machine"
            )
        with RunningEngine(commands, folder) as running:
            running.wait_ready(self._ready_s)
            made = provenance.of_launch(commands, start_up_s=running.start_up_s)
            yield RunningLaunch(
                running.url, running.handle, running.check, None, made, commands.model
            )

    @contextlib.contextmanager
    def _pools(self, made: DeploymentLaunch, folder: Path) -> Iterator[RunningLaunch]:
        """Start all workers together, and the router once they are ready."""
        with contextlib.ExitStack() as stack:
            workers = [
                stack.enter_context(RunningEngine(worker, folder / f"{role}-{number}"))
                for role, pool in made.pools.items()
                for number, worker in enumerate(pool)
            ]
            for worker in workers:
                worker.wait_ready(self._ready_s)
            router = stack.enter_context(RunningEngine(made.launches[-1], folder / "router"))
            router.wait_ready(self._ready_s)
            running, first = [*workers, router], workers[0].launch
            ranks = tuple(rank for engine in running for rank in engine.launch.ranks)
            start_up_s = max(worker.start_up_s or 0.0 for worker in workers) + (
                router.start_up_s or 0.0
            )
            made_with = provenance.of_launch(
                msgspec.structs.replace(first, ranks=ranks), start_up_s=start_up_s
            )
            handle: Handle = {
                "url": router.url,
                "processes": [pid for engine in running for pid in engine.processes],
            }

            def check() -> None:
                for engine in running:
                    engine.check()

            pages: tuple[str, ...] = ()
            with contextlib.suppress(InputError):  # without, the router's own are read
                pages = tuple(worker_page(worker.url, ()) for worker in workers)
            yield RunningLaunch(router.url, handle, check, None, made_with, first.model, pages)

    def release(self, left: Handle) -> None:
        """Do nothing: what was started here has ended with its supervisor."""
