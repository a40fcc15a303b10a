"""An engine that a run starts for itself, measures and stops: `bench --launch`."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from loadstone.core.errors import InputError, TargetError
from loadstone.engines import launch_named
from loadstone.engines.launch import Site
from loadstone.measure.engines.launch import LaunchError, RunningEngine
from loadstone.measure.engines.process import free_port
from loadstone.workload.options import Options


def check_options(options: Options) -> None:
    """Raises InputError where something says how to start an engine, and none is to be started."""
    given = {
        "--argument": options.arguments,
        "--env": options.environment,
        "--program": options.program,
        "--container": options.container,
        "--image": options.image,
    }
    for flag, value in given.items():
        if value and options.launch is None:
            raise InputError(f"{flag}: goes with --launch DEPLOYMENT, which starts an engine")


@contextlib.contextmanager
def launched(options: Options, text: str, tell: Callable[[str], None]) -> Iterator[RunningEngine]:
    """The deployment `text` on this machine, ready within the block, and gone after it.

    Raises InputError, and LaunchError where it does not start or has ended: its log then stays.
    """
    site = Site(
        model=options.model,
        port=free_port(),
        program=options.program,
        runtime=options.container,
        image=options.image,
        cache=str(Path("~/.cache/huggingface").expanduser()),
        arguments=tuple(options.arguments),
        environment=tuple(options.environment),
    )
    commands = launch_named(text, site)
    if len(commands.ranks) > 1:
        nodes = len(commands.ranks)
        raise InputError(f"--launch {text}: it takes {nodes} nodes, and this is one; write a study (docs/studies.md)")
    for note in commands.notes:
        tell(note)
    folder = Path(tempfile.mkdtemp(prefix="loadstone-"))
    kept = False
    try:
        with RunningEngine(commands, folder) as engine:
            tell(f"starting {commands.engine}; log: {engine.ranks[0].log_path}")
            engine.wait_ready(options.timeout_ready_s)
            try:
                yield engine
            except TargetError:
                engine.check()  # where it has ended, that is the reason
                raise
    except LaunchError as error:
        kept = error.log.is_file()
        raise
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


def ended(engine: RunningEngine | None, log: Path) -> str | None:
    """Why an engine ended while it was measured; None: it did not. `log`: where its log is kept."""
    try:
        if engine is not None:
            engine.check()
    except LaunchError as error:
        return str(error).replace(str(error.log), str(log))
    return None
