"""Makes a launch of a study the commands that its engine's release takes."""

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
_EMBEDDED_SLOTS = 16
_EMBEDDED_CONTEXT = 4096


def commands_of(
    launch: PlannedLaunch,
    nodes: tuple[str, ...],
    port: int | None,
    host: str = "127.0.0.1",
    here: bool = False,
) -> Commands:
    """Return the commands of all ranks. `host`: where the only one of them listens; `here`: this
    machine starts them, and folders of the home are those of its user. Raises InputError where the
    engine cannot be started so.
    """
    site, engine = _site_of(launch, nodes, port, host), launch.settings
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
    """Return the commands of all workers of a deployment with pools on this machine, and the
    router's. Raises InputError."""
    made = launch_deployment(deployment, _site_of(launch, (), port, "127.0.0.1"))
    nodes = {rank.node for commands in made.launches for rank in commands.ranks}
    if len(nodes) > 1:
        raise InputError(
            f"{len(nodes)} nodes are needed, and `local` is one; start them yourself, and give"
            " their url:"
        )
    return made


def _site_of(launch: PlannedLaunch, nodes: tuple[str, ...], port: int | None, host: str) -> Site:
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
    """Return what stands in commands for addresses of nodes that are not known yet; see
    shell_word()."""
    return tuple(f"{_ADDRESS}{i}" for i in range(count))


def with_address(text: str, address: str) -> str:
    """Return `text` with the first node's address filled in."""
    return text.replace(f"{_ADDRESS}0", address)


def shell_word(word: str, address: Callable[[int], str]) -> str:
    """Quote a word of a command for a shell; `address`: what gives the shell that of a node, by its
    number."""
    first, *parts = word.split(_ADDRESS)
    quoted = quote_word(first) if first or not parts else ""
    for part in parts:
        rest = part.lstrip("0123456789")
        quoted += address(int(part[: len(part) - len(rest)])) + (shlex.quote(rest) if rest else "")
    return quoted


def gpus_per_node(launch: PlannedLaunch) -> int:
    """Return how many GPUs a launch has on each node; 0 where it has none, or nothing is known of
    the hardware."""
    deployment = launch.parsed
    if deployment is None or deployment.decoder.gpu.vendor == "any":
        return 0
    return deployment.gpus // deployment.nodes
