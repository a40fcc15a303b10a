"""The servers that a run measures: those at given URLs, or an engine that is started for the run
and ends with it."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.core.errors import InputError
from loadstone.core.files import TemporaryFolder
from loadstone.core.plan import Plan
from loadstone.measure.engines.http import shown
from loadstone.measure.engines.launch import RunningEngine
from loadstone.predict.simulator.client import whole_prompts
from loadstone.runs.launched import launch_for, started
from loadstone.workload.option_values import DEFAULT_SIM
from loadstone.workload.options import Options

Tell = Callable[[str], None]


class Servers(NamedTuple):
    """The servers to measure. `engine`: started for the run; `log`: its file, which is kept with
    the run."""

    urls: list[str]
    engine: RunningEngine | None = None
    log: Path | None = None


def find_servers(options: Options, plan: Plan, stack: contextlib.ExitStack, tell: Tell) -> Servers:
    """Find the servers to measure; without a URL, start an engine that ends with `stack`. Raises
    InputError."""
    target, start = options.target, options.start
    flags = {"--engine": target.engine, "--sim": target.sim, "--launch": target.launch}
    embedded = [flag for flag, value in flags.items() if value is not None]
    if target.urls:
        if embedded:
            raise InputError(
                f"a URL and {embedded[0]}: measure a running server, or one of our own; give one"
            )
        twice = [url for i, url in enumerate(target.urls) if url in target.urls[:i]]
        if twice:
            raise InputError(f"{shown(twice[0])}: given twice; name each server of a fleet once")
        return Servers(target.urls)
    if len(embedded) > 1:
        raise InputError(f"{embedded[0]} and {embedded[1]}: one engine is measured; give one")
    if target.launch is not None:
        launch = launch_for(start, target.launch)
        for note in launch.notes:
            tell(note)
        engine = stack.enter_context(started(launch, tell, start.timeout_ready_s))
        return Servers([engine.url], engine, engine.ranks[0].log_path)
    if target.engine is None:
        return Servers([_start_simulated(target.sim or DEFAULT_SIM, stack)])
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
        latency = simulated_server.FixedLatency.parse(
            simulated, "--sim", f"{DEFAULT_SIM}, or fixed times, "
        )
    return stack.enter_context(simulated_server.start(latency)).url


def _start_llama_cpp(plan: Plan, stack: contextlib.ExitStack) -> Servers:
    from loadstone.measure.engines import llama_cpp

    folder = stack.enter_context(TemporaryFolder())
    users = max((int(load.value) for load in plan.cells if not load.is_open), default=8)
    flags: list[str] = []
    if plan.inputs is not None:
        kind = ("--reranking",) if plan.inputs.has_queries else ("--embedding", "--pooling", "mean")
        # Longer inputs than one physical batch are refused.
        flags = [*kind, "--ubatch-size", str(max(512, longest_tokens(plan) + 64))]
    process = stack.enter_context(
        llama_cpp.launch(
            slots=min(64, max(1, users)),
            connections=min(1024, users),
            context_tokens=longest_tokens(plan) + 64,
            flags=flags,
            log_path=folder / "engine.log",
        )
    )
    return Servers([process.url], None, process.log_path)


def longest_tokens(plan: Plan) -> int:
    """Return the most tokens that a request of the plan, or a whole session, has in and out; a
    guess of prompts that are texts.
    """
    import numpy as np

    if plan.inputs is not None:
        return plan.inputs.longest()
    if plan.graph.recorded:
        cells = range(len(plan.cells))
        return max(
            int((whole_prompts(plan, cell) + plan.output_tokens[plan.rows(cell)]).max())
            for cell in cells
        )
    tokens = (
        plan.input_tokens.clip(min=2048 if plan.has_texts else 1).astype(np.int64)
        + plan.output_tokens
    )
    if not plan.has_sessions:
        return int(tokens.max())
    session = np.cumsum(plan.turn <= 0)
    # Each turn also has what its template adds.
    return int(np.bincount(session, tokens + 16).max())
