"""`loadstone launch`: prints the commands that start a deployment, or starts it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from loadstone.commands.flags import option
from loadstone.commands.output import print_json
from loadstone.core.errors import InputError

_ENGINE, _WHERE = "Engine", "Where"


def launch(
    deployment: Annotated[
        str, typer.Argument(help="what to start: MODEL[:weights]@N×GPU[/tp8,engine=vllm]")
    ],
    model: Annotated[
        str | None,
        option(_ENGINE, "what the engine loads: a path or an id [default: the deployment's model]"),
    ] = None,
    served_name: Annotated[
        str | None, option(_ENGINE, "name that requests use for the model")
    ] = None,
    argument: Annotated[
        list[str] | None,
        option(
            _ENGINE,
            "a flag of the engine's own, passed as it is: FLAG or FLAG=VALUE",
            "--argument",
            "-a",
        ),
    ] = None,
    env: Annotated[
        list[str] | None, option(_ENGINE, "NAME=VALUE in the engine's environment")
    ] = None,
    program: Annotated[
        str | None, option(_ENGINE, "path of the engine's program [default: found on PATH]")
    ] = None,
    host: Annotated[
        str, option(_WHERE, "address to listen on, without nodes and containers")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, option(_WHERE, "port to listen on [default: the engine's own]")
    ] = None,
    node: Annotated[
        list[str] | None,
        option(_WHERE, "address of a node, rank 0 first; once for each of several nodes"),
    ] = None,
    container: Annotated[
        Literal["docker", "podman", "enroot", "pyxis", "apptainer"] | None,
        option(_WHERE, "start it in a container, run by this"),
    ] = None,
    image: Annotated[
        str | None, option(_WHERE, "image of the container, e.g. vllm/vllm-openai:v0.33.0")
    ] = None,
    cache: Annotated[Path, option(_WHERE, "folder of models, mounted into the container")] = Path(
        "~/.cache/huggingface"
    ),
    dry_run: Annotated[
        bool, option(_WHERE, "print the command of each rank, and start nothing")
    ] = False,
    json: Annotated[
        bool, option(_WHERE, "with --dry-run: print one JSON document on stdout")
    ] = False,
) -> None:
    """Start a deployment on this machine, wait until it serves, and stop it with Ctrl-C; or print
    the commands that start it, on one node or many, as each engine's release spells them.
    """
    from loadstone.catalogue import parse_deployment
    from loadstone.engines import ENGINES, launch_of
    from loadstone.engines.launch import read_site
    from loadstone.engines.pooled_launch import PooledLaunch, launch_pools
    from loadstone.predict.sizing.check import find_misfits

    if json and not dry_run:
        raise InputError("--json: goes with --dry-run")
    site = read_site(
        model=model,
        host=host,
        port=port,
        nodes=tuple(node or ()),
        served_name=served_name,
        program=program,
        runtime=container,
        image=image,
        cache=cache,
        argument=argument or (),
        env=env or (),
    )
    made = (launch_pools if (parsed := parse_deployment(deployment)).is_split else launch_of)(
        parsed, site
    )
    workers = [pool.worker for pool in parsed.pools]
    misfits = [line for each in workers if each.engine in ENGINES for line in find_misfits(each)]
    for note in (*dict.fromkeys(f"this will not start: {line}" for line in misfits), *made.notes):
        print(f"loadstone: {note}", file=sys.stderr)
    if json:
        print_json({"schema": made.schema, **msgspec.to_builtins(made)})
    elif dry_run:
        print(*made.shell_lines(), sep="\n")
        for name, content in made.files.items():
            print(f"loadstone: {name}, where it starts:\n{content}", file=sys.stderr, end="")
    elif isinstance(made, PooledLaunch):
        raise InputError(
            "pools are started one by one: paste what --dry-run prints, the router last"
        )
    elif len(made.ranks) > 1:
        raise InputError(
            f"{len(made.ranks)} nodes, and this is one: paste what --dry-run prints on each"
        )
    else:
        from loadstone.runs.launched import started

        with started(made, lambda text: print(text, file=sys.stderr)) as engine:
            print(made.url, flush=True)
            engine.wait()
