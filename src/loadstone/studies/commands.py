"""A launch of a study as commands: what its engine makes of the deployment, or a server that runs already."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.catalogue.engines import engine_key
from loadstone.core.errors import InputError
from loadstone.engines import launch_named
from loadstone.engines.launch import Launch as Commands
from loadstone.engines.launch import RankCommand, Site, own_words
from loadstone.measure.engines import llama_cpp
from loadstone.studies.file import EngineSettings
from loadstone.studies.plan import EMBEDDED_MODEL, PlannedLaunch

_ADDRESS = "LOADSTONE-NODE-"
_EMBEDDED_SLOTS = 16
_EMBEDDED_CONTEXT = 4096


def commands_of(
    launch: PlannedLaunch, engine: EngineSettings, nodes: tuple[str, ...], port: int | None, host: str = "127.0.0.1"
) -> Commands:
    """The commands of all ranks. `host`: where the only one of them listens. Raises InputError where the engine
    cannot be started so.
    """
    site = Site(
        model=engine.model,
        host=host,
        port=port,
        nodes=nodes,
        program=engine.program,
        runtime=engine.container if engine.image else None,
        image=engine.image,
        cache=str(Path("~/.cache/huggingface").expanduser()),
        arguments=launch.arguments,
        environment=tuple((name, str(value)) for name, value in engine.env.items()),
    )
    if launch.model == EMBEDDED_MODEL and launch.deployment is None and engine.model is None:
        return _embedded(site)
    text = launch.deployment or f"{launch.model}@1xcpu/engine={engine_key(engine.engine or launch.engine)}"
    return launch_named(text, site)


def _embedded(site: Site) -> Commands:
    """llama.cpp with the small model that comes with Loadstone."""
    if site.port is None:
        raise InputError("the embedded llama.cpp needs a port")
    if site.image is not None:
        raise InputError("the small model runs in no container; name a model, or leave out image")
    words = llama_cpp.command(
        Path(site.program) if site.program else llama_cpp.find() or llama_cpp.fetch(),
        port=site.port,
        slots=_EMBEDDED_SLOTS,
        context_tokens=_EMBEDDED_CONTEXT,
        host=site.host,
    )
    return Commands(
        engine="llama.cpp",
        ranks=(RankCommand("127.0.0.1", (*words, *own_words(site)), dict(site.environment)),),
        url=f"http://{site.host}:{site.port}",
        container=None,
        notes=(),
    )


def node_addresses(count: int) -> tuple[str, ...]:
    """What stands in commands for the addresses of nodes that are not known yet; see shell_word()."""
    return tuple(f"{_ADDRESS}{i}" for i in range(count))


def with_address(text: str, address: str) -> str:
    """`text` with the first node's address."""
    return text.replace(f"{_ADDRESS}0", address)


def shell_word(word: str, address: Callable[[int], str]) -> str:
    """A word of a command as a shell takes it; `address`: what gives the shell that of a node, by its number."""
    first, *parts = word.split(_ADDRESS)
    quoted = shlex.quote(first) if first or not parts else ""
    for part in parts:
        rest = part.lstrip("0123456789")
        quoted += address(int(part[: len(part) - len(rest)])) + (shlex.quote(rest) if rest else "")
    return quoted


def gpus_per_node(launch: PlannedLaunch) -> int:
    """0 where a launch has none, or nothing is known of the hardware."""
    if launch.deployment is None:
        return 0
    deployment = parse_deployment(launch.deployment)
    return 0 if deployment.gpu.vendor == "any" else deployment.gpus // deployment.nodes
