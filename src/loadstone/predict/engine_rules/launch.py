"""A deployment as the commands that start it: what all engines' commands have in common.

Each engine's own file says how it spells what a deployment has (EngineRules.command); here these become a command for
each node, natively or in a container. Nothing is started here, and no secret is in what comes out: variables such as
HF_TOKEN are named, so that they are taken from the environment of who runs the command.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import msgspec

from loadstone.core.errors import InputError

Runtime = Literal["docker", "podman", "enroot"]
SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Variables that are handed on by name and never written down."""
_SHM = "32g"
_CACHE = "/root/.cache"
_FLAG = re.compile(r"-{0,2}[A-Za-z][A-Za-z0-9._-]*")


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how a deployment is started; what has no value is as the engine has it by default.

    model        what the engine is told to load: a path, or an id; None: the deployment's model by its name
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


class Command(NamedTuple):
    """What an engine's own file makes of a deployment: the words of its command line, without the node's.

    words   program and arguments
    each    arguments that a node has beside them, rank 0 first
    files   that must lie in the folder where it starts, by name
    serves  how many of the nodes' processes answer HTTP: the first
    """

    words: list[str]
    each: list[list[str]]
    environment: dict[str, str]
    files: dict[str, str]
    notes: list[str]


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
    """

    engine: str
    ranks: tuple[RankCommand, ...]
    url: str
    container: Container | None
    notes: tuple[str, ...]
    files: dict[str, str] = {}
    ready: str = "/health"
    schema: int = 1


def in_container(site: Site, words: list[str], environment: dict[str, str], entry: list[str], name: str) -> list[str]:
    """The command that runs `words` in a container of `site`. `entry`: words that the image's entry point has
    already, which are left out. Raises InputError: no image.
    """
    if site.image is None:
        raise InputError(f"--container {site.runtime}: no image; name one with --image")
    inside = words[len(entry) :] if words[: len(entry)] == entry else words
    names = [*SECRETS, *environment]
    if site.runtime == "enroot":
        variables = [word for each in names for word in ("--env", _variable(each, environment))]
        return [
            "enroot",
            "start",
            "--rw",
            "--mount",
            f"{site.cache}:{_CACHE}/huggingface",
            *variables,
            site.image,
            *words,
        ]
    gpus = ["--gpus", "all"] if site.runtime == "docker" else ["--device", "nvidia.com/gpu=all"]
    return [
        *(str(site.runtime), "run", "--rm", "--init", "--name", name, *gpus, "--ipc", "host", "--network", "host"),
        *("--shm-size", _SHM, "--volume", f"{site.cache}:{_CACHE}/huggingface"),
        *(word for each in names for word in ("--env", _variable(each, environment))),
        site.image,
        *inside,
    ]


def _variable(name: str, environment: dict[str, str]) -> str:
    return f"{name}={environment[name]}" if name in environment else name


def own_arguments(site: Site, underscores: bool = False) -> list[str]:
    """The engine's own arguments as words of its command line. Raises InputError for what is no flag."""
    words = []
    for flag, value in site.arguments:
        if not _FLAG.fullmatch(flag):
            raise InputError(f"{flag!r} is no flag; write e.g. max_model_len=8192")
        name = flag.lstrip("-")
        words.append("--" + (name.replace("-", "_") if underscores else name.replace("_", "-")))
        words += [] if value is None else [value]
    return words
