"""Starts an engine here, and stops it: for a run (`bench --launch`), or until its user has
enough."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from loadstone.core.errors import InputError, TargetError
from loadstone.core.files import TemporaryFolder
from loadstone.engines import launch_named
from loadstone.engines.launch import Launch, site_of
from loadstone.measure.engines.launch import READY_S, LaunchError, RunningEngine
from loadstone.measure.engines.process import free_port
from loadstone.workload.option_fields import changed_options
from loadstone.workload.options import Options
from loadstone.workload.start_options import StartOptions


def check_start(options: Options) -> None:
    """Raise InputError where an option is about an engine to be started, and none is."""
    if options.target.launch is not None:
        return
    for flag in changed_options(options.start):
        if flag not in ("model", "timeout-ready"):
            raise InputError(f"--{flag}: goes with --launch DEPLOYMENT, which starts an engine")


def launch_for(start: StartOptions, text: str) -> Launch:
    """Return the commands of the deployment `text` on this machine. Raises InputError."""
    launch = launch_named(text, msgspec.structs.replace(site_of(start), port=free_port()))
    nodes = len(launch.ranks)
    if nodes > 1:
        raise InputError(
            f"--launch {text}: it takes {nodes} nodes, and this is one; write a study"
            " (docs/studies.md)"
        )
    return launch


@contextlib.contextmanager
def started(
    launch: Launch, tell: Callable[[str], None], timeout_s: float = READY_S
) -> Iterator[RunningEngine]:
    """Run an engine on this machine: it is ready within the block, and gone after it.

    Raises LaunchError where it does not start or has ended: its log then stays.
    """
    folder = TemporaryFolder()
    try:
        with RunningEngine(launch, folder.path) as engine:
            tell(f"starting {launch.engine}; log: {engine.ranks[0].log_path}")
            engine.wait_ready(timeout_s)
            try:
                yield engine
            except TargetError:
                engine.check()  # where it has ended, that is the reason
                raise
    except LaunchError as error:
        if error.log.is_file():
            folder.keep()
        raise
    finally:
        folder.remove()


def why_ended(engine: RunningEngine | None, log: Path) -> str | None:
    """Return why an engine ended while it was measured; None: it did not. `log`: where its log is
    kept."""
    try:
        if engine is not None:
            engine.check()
    except LaunchError as error:
        return str(error).replace(str(error.log), str(log))
    return None
