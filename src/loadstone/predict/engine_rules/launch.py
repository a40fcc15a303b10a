"""A deployment as the commands that start it: what all engines' commands have in common.

Each engine's own file says how it spells what a deployment has (EngineRules.command); here these become a command for
each node, natively or in a container. Nothing is started here, and no secret is in what comes out: variables such as
HF_TOKEN are named, so that they are taken from the environment of who runs the command.
"""

from __future__ import annotations

import re
import shlex
from typing import Literal, NamedTuple

import msgspec

from loadstone.catalogue.architecture.precision import TORCH_DTYPES
from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.core.errors import InputError

Runtime = Literal["docker", "podman", "enroot"]
SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Variables that are handed on by name and never written down."""
_SHM = "32g"
_CACHE = "/root/.cache/huggingface"
_HERE = "127.0.0.1"
_ALL = "0.0.0.0"  # noqa: S104 - others reach it there: other nodes, or what is outside of its container
DTYPES = {ours: theirs for theirs, ours in TORCH_DTYPES.items()}
"""PyTorch's names, which engines' flags take."""
_FLAG = re.compile(r"-{0,2}[A-Za-z][A-Za-z0-9._-]*")


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how a deployment is started; what has no value is as the engine has it by default.

    model        what the engine is told to load: a path, or an id; None: the deployment's model by its name
    checkpoint   id of the weights as the user wrote it, whose precision the deployment may change
    port         of the server, on every interface of its node where there are several nodes or a container, else on
                 `host`
    nodes        addresses of the nodes, that of rank 0 first; placeholders where they are not known yet
    program      in place of the engine's own program: its path
    runtime      of containers; None: the engine runs as it is installed
    image        in which it runs there
    cache        folder of models on the nodes, mounted into the container
    arguments    of the engine's own command line, as (flag, value), passed as they are; value None: a flag alone
    environment  of the engine
    """

    model: str | None = None
    checkpoint: str | None = None
    host: str = "127.0.0.1"
    port: int | None = None
    nodes: tuple[str, ...] = ()
    served_name: str | None = None
    program: str | None = None
    runtime: Runtime | None = None
    image: str | None = None
    cache: str = "~/.cache/huggingface"
    arguments: tuple[tuple[str, str | None], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


Flags = list[tuple[str, str | int | float | bool | None]]
"""Names of flags without dashes, and values: True stands alone, False and None are left out."""


class Command(NamedTuple):
    """What an engine's own file makes of a deployment.

    program  its words before the flags
    flags    of every node
    nodes    flags that a node has beside them, rank 0 first
    files    that must lie where it starts, by name
    entry    how many words of `program` the entry point of its image has already
    model    name that requests must use, where the server itself may not say it
    """

    program: list[str]
    flags: Flags
    nodes: list[Flags] = []  # noqa: RUF012
    notes: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    entry: int = 0
    underscores: bool = False
    port: int = 8000
    model: str | None = None


class RankCommand(msgspec.Struct, frozen=True):
    """What one node runs. `env`: what it adds to the environment."""

    node: str
    argv: tuple[str, ...]
    env: dict[str, str]


class Container(msgspec.Struct, frozen=True):
    """In what the ranks run. `engine`: the digest is recorded when it runs, a tag may move."""

    runtime: Runtime
    image: str
    shm_size: str
    mounts: tuple[str, ...]


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment ready to be started; printed as `loadstone launch --dry-run --json`.

    url    where rank 0 will answer
    files  to be written beside the log before it starts, by name
    ready  path that answers 200 once requests are served
    model  name that requests must use, where the server itself may not say it
    """

    engine: str
    ranks: tuple[RankCommand, ...]
    url: str
    container: Container | None
    notes: tuple[str, ...]
    files: dict[str, str] = {}
    ready: str = "/health"
    model: str | None = None
    schema: int = 1

    def shell_lines(self) -> list[str]:
        """A line for each rank, ready to paste into a shell on its node."""
        return [
            " ".join([*(f"{name}={shlex.quote(value)}" for name, value in rank.env.items()), shlex.join(rank.argv)])
            for rank in self.ranks
        ]


def launch_command(deployment: Deployment, command: Command, site: Site) -> Launch:
    """The commands of all nodes. Raises InputError: a container without an image, something that is no flag."""
    addresses = addresses_of(deployment, site)
    if len(addresses) != deployment.nodes:
        raise InputError(f"{len(addresses)} nodes are named, and the deployment has {deployment.nodes}; name each")
    alone = deployment.nodes == 1 and site.runtime is None
    port = site.port or command.port
    listening: Flags = [("host", site.host if alone else _ALL), ("port", port)]
    environment = dict(site.environment)
    container = None
    if site.runtime is not None:
        if site.image is None:
            raise InputError(f"--container {site.runtime}: no image; name one with --image")
        container = Container(site.runtime, site.image, _SHM, (f"{site.cache}:{_CACHE}",))
    ranks = []
    for i, address in enumerate(addresses):
        flags = [*command.flags, *listening, *(command.nodes[i] if command.nodes else [])]
        words = _words(flags, command.underscores) + own_words(site, command.underscores)
        argv = [*command.program, *words]
        if container is not None:
            argv = _contained(container, command, argv, environment, f"loadstone-{port}-{i}")
        ranks.append(RankCommand(address, tuple(argv), {} if container else environment))
    return Launch(
        engine=deployment.engine,
        ranks=tuple(ranks),
        url=f"http://{site.host if alone else addresses[0]}:{port}",
        container=container,
        notes=command.notes,
        files=dict(command.files),
        model=command.model,
    )


def addresses_of(deployment: Deployment, site: Site) -> tuple[str, ...]:
    """Of every node, rank 0 first: as they are named, else placeholders; this machine where it is the only one."""
    if deployment.nodes == 1:
        return (_HERE,)
    return site.nodes or tuple(f"node{i}" for i in range(deployment.nodes))


def _words(flags: Flags, underscores: bool) -> list[str]:
    words = []
    for name, value in flags:
        if value is None or value is False:
            continue
        words.append("--" + (name.replace("-", "_") if underscores else name.replace("_", "-")))
        words += [] if value is True else [str(value)]
    return words


def own_words(site: Site, underscores: bool = False) -> list[str]:
    """The user's own flags and values as words. Raises InputError for what is no flag."""
    for flag, _ in site.arguments:
        if not _FLAG.fullmatch(flag):
            raise InputError(f"{flag!r} is no flag; write e.g. max_model_len=8192")
    return _words(
        [(flag.lstrip("-"), True if value is None else value) for flag, value in site.arguments], underscores
    )


def _contained(
    container: Container, command: Command, argv: list[str], environment: dict[str, str], name: str
) -> list[str]:
    """`argv` as it runs in a container. Secrets are named without a value: the runtime takes it from its own
    environment.
    """
    runtime, mount = container.runtime, container.mounts[0]
    variables = [f"{each}={value}" for each, value in environment.items()]
    names = [word for each in (*SECRETS, *variables) for word in ("--env", each)]
    if runtime == "enroot":
        return ["enroot", "start", "--rw", "--mount", mount, *names, container.image, *argv]
    gpus = ["--gpus", "all"] if runtime == "docker" else ["--device", "nvidia.com/gpu=all"]
    return [
        *(runtime, "run", "--rm", "--init", "--name", name, *gpus, "--ipc", "host", "--network", "host"),
        *("--shm-size", container.shm_size, "--volume", mount, *names),
        container.image,
        *argv[command.entry :],
    ]


def over_one(count: int) -> int | None:
    """A number of ranks that is said only where it is not 1."""
    return count if count > 1 else None


def weights_flags(deployment: Deployment, site: Site) -> tuple[Flags, tuple[str, ...]]:
    """How the weights get the deployment's precision where that is not the checkpoint's: dtype or quantisation when
    loading, or a note that another checkpoint is needed.
    """
    wanted, stored = deployment.weights_dtype, deployment.model.weights_dtype
    if wanted == stored or site.model is not None:
        return [], ()
    if wanted in DTYPES and stored in DTYPES:
        return [("dtype", DTYPES[wanted])], ()
    if wanted == "fp8" and stored in DTYPES:
        return [("quantization", "fp8")], ()
    name = deployment.model.name
    return [], (f"{name} has weights in {stored}, the deployment in {wanted}: name such a checkpoint with --model",)
