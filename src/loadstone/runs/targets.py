"""The servers that a run measures: those at given URLs, or an engine that is started for the run and ends with it."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.core.errors import InputError, TargetError
from loadstone.core.plan import Plan
from loadstone.engines import launch_named
from loadstone.engines.launch import Site
from loadstone.measure.engines.launch import LaunchError, RunningEngine
from loadstone.measure.engines.process import free_port
from loadstone.measure.engines.server import shown
from loadstone.workload.option_values import DEFAULT_SIM
from loadstone.workload.options import TargetOptions

Tell = Callable[[str], None]


class Servers(NamedTuple):
    """The servers to measure. `engine`: started for the run; `log`: its file, which is kept with the run."""

    urls: list[str]
    engine: RunningEngine | None = None
    log: Path | None = None


def check_target(options: TargetOptions) -> None:
    """Raise InputError where an option is about an engine to be started, and none is."""
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


def find_servers(options: TargetOptions, plan: Plan, stack: contextlib.ExitStack, tell: Tell) -> Servers:
    """Find the servers to measure; without a URL, start an engine that ends with `stack`. Raises InputError."""
    flags = {"--engine": options.engine, "--sim": options.sim, "--launch": options.launch}
    own = [flag for flag, value in flags.items() if value is not None]
    if options.urls:
        if own:
            raise InputError(f"a URL and {own[0]}: measure a running server, or one of our own; give one")
        twice = [url for i, url in enumerate(options.urls) if url in options.urls[:i]]
        if twice:
            raise InputError(f"{shown(twice[0])}: given twice; name each server of a fleet once")
        return Servers(options.urls)
    if len(own) > 1:
        raise InputError(f"{own[0]} and {own[1]}: one engine is measured; give one")
    if options.launch is not None:
        engine = stack.enter_context(launch(options, options.launch, tell))
        return Servers([engine.url], engine, engine.ranks[0].log_path)
    if options.engine is None:
        return Servers([_start_simulated(options.sim or DEFAULT_SIM, stack)])
    return _start_llama_cpp(plan, stack)


def _start_simulated(simulated: str, stack: contextlib.ExitStack) -> str:
    """Start a simulated engine, or a timing server; returns its URL."""
    from loadstone.measure import simulated_server

    if "://" in simulated:
        raise InputError("--sim and a URL: measure a running server, or one of our own; give one")
    latency: simulated_server.FixedLatency | str = simulated
    # MODEL@GPUS is a deployment, whose scheduler then has the times.
    if "@" in simulated:
        from loadstone.predict.simulator.fleet import fleet_of

        fleet_of(parse_deployment(simulated))  # an error in it is one line, before a server starts
    else:
        latency = simulated_server.FixedLatency.parse(simulated, "--sim", f"{DEFAULT_SIM}, or fixed times, ")
    return stack.enter_context(simulated_server.start(latency)).url


def _start_llama_cpp(plan: Plan, stack: contextlib.ExitStack) -> Servers:
    from loadstone.measure.engines import llama_cpp

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="loadstone-")))
    most = max((int(load.value) for load in plan.cells if not load.is_open), default=8)
    process = stack.enter_context(
        llama_cpp.launch(
            slots=min(64, max(1, most)),
            connections=min(1024, most),
            context_tokens=longest_tokens(plan) + 64,
            log_path=folder / "engine.log",
        )
    )
    return Servers([process.url], None, process.log_path)


def longest_tokens(plan: Plan) -> int:
    """Return the most tokens that a request of the plan, or a whole session, has in and out; a guess of prompts that
    are texts.
    """
    import numpy as np

    tokens = plan.input_tokens.clip(min=2048 if plan.prompts else 1).astype(np.int64) + plan.output_tokens
    if not plan.has_sessions:
        return int(tokens.max())
    session = np.cumsum(plan.turn <= 0)
    # Each turn also has what its template adds.
    return int(np.bincount(session, tokens + 16).max())


@contextlib.contextmanager
def launch(options: TargetOptions, text: str, tell: Tell) -> Iterator[RunningEngine]:
    """Run the deployment `text` on this machine: ready within the block, and gone after it.

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


def why_ended(engine: RunningEngine | None, log: Path) -> str | None:
    """Say why an engine ended while it was measured; None: it did not. `log`: where its log is kept."""
    try:
        if engine is not None:
            engine.check()
    except LaunchError as error:
        return str(error).replace(str(error.log), str(log))
    return None
