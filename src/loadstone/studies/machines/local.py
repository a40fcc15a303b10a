"""This machine: an engine's processes are children of the study's, and end with it."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from loadstone.core.errors import InputError
from loadstone.engines.deployment_launch import DeploymentLaunch
from loadstone.engines.launch import Launch as Commands
from loadstone.measure.engines.launch import RunningEngine
from loadstone.measure.engines.observe import worker_page
from loadstone.measure.engines.process import free_port
from loadstone.measure.nvml import Gpus
from loadstone.runs import provenance
from loadstone.studies.commands import commands_of, pools_of
from loadstone.studies.file import StudyFile
from loadstone.studies.journal import Handle, StudyJournal
from loadstone.studies.machines.kind import MachineKind, divide
from loadstone.studies.plan import PlannedLaunch
from loadstone.studies.supervise import Machine, RunningLaunch

_VISIBLE = "CUDA_VISIBLE_DEVICES"


class LocalKind(MachineKind):
    """This machine, whose GPUs are divided among launches that run at a time."""

    def make(self, read: StudyFile, name: str) -> Sequence[Machine]:
        """See MachineKind."""
        ready_s, parts = read.study.limits.ready, read.study.machines[name].parallel
        gpus = _find_gpus() if parts > 1 else ()
        if not gpus:
            return [LocalMachine(ready_s) for _ in range(parts)]
        shares = divide(read, name, gpus, "GPUs")
        return [LocalMachine(ready_s, {_VISIBLE: ",".join(share)}) for share in shares]

    def commands(self, launch: PlannedLaunch, port: int) -> Commands | DeploymentLaunch:
        """See MachineKind; pools too are started here."""
        if launch.parsed is not None and launch.parsed.is_split:
            return pools_of(launch.parsed, launch, port)
        return super().commands(launch, port)


def _find_gpus() -> tuple[str, ...]:
    """Return NVIDIA's GPUs that engines on this machine would see."""
    visible = os.environ.get(_VISIBLE)
    if visible is not None:
        return tuple(filter(None, visible.split(",")))
    with contextlib.suppress(InputError), Gpus() as gpus:
        return tuple(gpu.uuid for gpu in gpus.describe())
    return ()


class LocalMachine:
    """Starts one launch at a time on this machine. `ready_s`: how long an engine may take until it
    answers; `environment`: of every engine, which the study's own goes before."""

    kind = "local"

    def __init__(self, ready_s: float, environment: Mapping[str, str | int] | None = None) -> None:
        self._ready_s = ready_s
        self.environment = dict(environment or {})

    @contextlib.contextmanager
    def running(
        self, launch: PlannedLaunch, folder: Path, journal: StudyJournal, left: Handle
    ) -> Iterator[RunningLaunch]:
        """See supervise.Machine."""
        engine = launch.settings
        journal.write("launch", launch=launch.id)
        if engine.url is not None:
            yield RunningLaunch(engine.url, {"url": engine.url})
            return
        settings = msgspec.structs.replace(engine, env=self.environment | engine.env)
        launch = launch._replace(settings=settings)
        if launch.parsed is not None and launch.parsed.is_split:
            made = pools_of(launch.parsed, launch, free_port())
            with self._pools(made, folder) as started:
                yield started
            return
        commands = commands_of(launch, (), free_port(), here=True)
        if len(commands.ranks) > 1:
            raise InputError(
                f"{len(commands.ranks)} nodes are needed, and `local` is one; run it --on another"
                " machine"
            )
        with RunningEngine(commands, folder) as running:
            running.wait_ready(self._ready_s)
            made_with = provenance.of_launch(commands, start_up_s=running.start_up_s)
            yield RunningLaunch(
                running.url, running.handle, running.check, None, made_with, commands.model
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
