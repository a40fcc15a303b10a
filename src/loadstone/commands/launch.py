"""`loadstone launch`: prints the commands that start a deployment, or starts it."""

import sys
from typing import Annotated

from loadstone.commands.flags import option, takes
from loadstone.commands.output import print_json
from loadstone.core.errors import InputError
from loadstone.workload.option_fields import WHERE
from loadstone.workload.start_options import LaunchOptions


@takes(LaunchOptions)
def launch(
    options: LaunchOptions,
    dry_run: Annotated[
        bool, option(WHERE, "print the command of each rank, and start nothing")
    ] = False,
    json: Annotated[
        bool, option(WHERE, "with --dry-run: print one JSON document on stdout")
    ] = False,
) -> None:
    """Start a deployment on this machine, until Ctrl-C. Or print the commands that start it, on one
    node or many, as each engine's release spells them.
    """
    from loadstone.catalogue import parse_deployment
    from loadstone.engines import ENGINES, rules_of
    from loadstone.engines.deployment_launch import launch_deployment
    from loadstone.engines.launch import site_of
    from loadstone.predict.sizing.check import find_misfits

    if json and not dry_run:
        raise InputError("--json: goes with --dry-run")
    site, parsed = site_of(options.start), parse_deployment(options.deployment)
    made = launch_deployment(parsed, site)
    judged = [pool.worker for pool in parsed.pools if pool.worker.engine in ENGINES]
    misfits = [
        f"this will not start: {line}"
        for worker in judged
        for line in find_misfits(rules_of(worker))
    ]
    for note in (*dict.fromkeys(misfits), *made.notes):
        print(f"loadstone: {note}", file=sys.stderr)
    if json:
        print_json(made.document())
    elif dry_run:
        print(*made.shell_lines(), sep="\n")
        for name, content in made.files.items():
            print(f"loadstone: {name}, where it starts:\n{content}", file=sys.stderr, end="")
    elif made.router is not None:
        raise InputError(
            "pools are started one by one: paste what --dry-run prints, the router last"
        )
    else:
        from loadstone.runs.launched import started

        (worker,) = made.launches
        if len(worker.ranks) > 1:
            raise InputError(
                f"{len(worker.ranks)} nodes, and this is one: paste what --dry-run prints on each"
            )
        with started(worker, lambda text: print(text, file=sys.stderr)) as engine:
            print(worker.url, flush=True)
            engine.wait()
