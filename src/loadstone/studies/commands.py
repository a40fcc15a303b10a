"""Turns a launch of a study into the commands that start its engine, a command for each rank."""

import shlex
from collections.abc import Callable
from pathlib import Path

import msgspec

from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.catalogue.engines import engine_key
from loadstone.core.errors import InputError
from loadstone.engines import EMBEDDED, launch_named, launch_of
from loadstone.engines.deployment_launch import DeploymentLaunch, launch_deployment
from loadstone.engines.launch import Launch as Commands
from loadstone.engines.launch import RankCommand, Site, own_words, quote_word
from loadstone.measure.engines import llama_cpp
from loadstone.studies.plan import EMBEDDED_MODEL, PlannedLaunch
from loadstone.workload.option_values import variables

_ADDRESS = "LOADSTONE-NODE-"
"""Stands in a command, before a node's number, for an address that only the job will know."""
_EMBEDDED_SLOTS = 16
_EMBEDDED_CONTEXT = 4096


def commands_of(
    launch: PlannedLaunch,
    nodes: tuple[str, ...],
    port: int | None,
    host: str = "127.0.0.1",
    here: bool = False,
) -> Commands:
    """Return the commands of all ranks on these nodes. Raises InputError where the engine cannot be
    started so.

    `host`: where a single rank listens; `here`: this machine starts them, so that `~` is the home
    of its user; otherwise the cache's path goes into the commands as it was written.
    """
    site = _site_of(launch, nodes, port, host)
    engine = launch.settings
    if not here:
        site = msgspec.structs.replace(site, cache=engine.cache)
    if launch.model == EMBEDDED_MODEL and launch.deployment is None and engine.model is None:
        return _embedded(site)
    if launch.parsed is None or launch.deployment is None:
        return launch_named(
            f"{launch.model}@1xcpu/engine={engine_key(engine.engine or launch.engine)}", site
        )
    if launch.parsed.is_split:
        raise InputError(
            "pools are started on one machine, `local`, alone; run it there, or give their url:"
        )
    return launch_of(launch.parsed.worker, site)


def pools_of(deployment: Deployment, launch: PlannedLaunch, port: int) -> DeploymentLaunch:
    """Return the commands that start all workers of a deployment with pools on this machine, and
    their router. Raises InputError where they need more than one node."""
    commands = launch_deployment(deployment, _site_of(launch, (), port, "127.0.0.1"))
    nodes = {rank.node for worker in commands.launches for rank in worker.ranks}
    if len(nodes) > 1:
        raise InputError(
            f"{len(nodes)} nodes are needed, and `local` is one; start them yourself, and give"
            " their url:"
        )
    return commands


def _site_of(launch: PlannedLaunch, nodes: tuple[str, ...], port: int | None, host: str) -> Site:
    """Return where and how a launch is started: what its study says, on these nodes."""
    engine = launch.settings
    return Site(
        model=engine.model,
        arguments=launch.arguments,
        environment=tuple(variables(engine.env, "--env")),
        program=engine.program,
        host=host,
        port=port,
        nodes=nodes,
        runtime=engine.container if engine.image else None,
        image=engine.image,
        cache=str(Path(engine.cache).expanduser()),
        mounts=engine.mounts,
        devices=engine.devices,
        options=engine.options,
    )


def _embedded(site: Site) -> Commands:
    """Return the commands of llama.cpp with the small model that comes with Loadstone."""
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
        engine=EMBEDDED,
        ranks=(RankCommand("127.0.0.1", (*words, *own_words(site)), dict(site.environment)),),
        url=f"http://{site.host}:{site.port}",
        container=None,
        notes=(),
    )


def node_addresses(count: int) -> tuple[str, ...]:
    """Return placeholders for the addresses of `count` nodes that are not known yet; shell_word()
    replaces them."""
    return tuple(f"{_ADDRESS}{i}" for i in range(count))


def with_address(text: str, address: str) -> str:
    """Return `text` with the first node's address in place of its placeholder."""
    return text.replace(f"{_ADDRESS}0", address)


def shell_word(word: str, address: Callable[[int], str]) -> str:
    """Return a word of a command, quoted for a shell. `address` gives the shell's expression for
    the address of a node, by its number."""
    first, *parts = word.split(_ADDRESS)
    quoted = quote_word(first) if first or not parts else ""
    for part in parts:
        rest = part.lstrip("0123456789")
        quoted += address(int(part[: len(part) - len(rest)])) + (shlex.quote(rest) if rest else "")
    return quoted


def gpus_per_node(launch: PlannedLaunch) -> int:
    """Return how many GPUs a launch takes on each node; 0 where it takes none, or its hardware is
    not known."""
    deployment = launch.parsed
    if deployment is None or deployment.decoder.gpu.vendor == "any":
        return 0
    return deployment.gpus // deployment.nodes
