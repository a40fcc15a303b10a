"""Makes a deployment the keyword arguments of its engine's own interface in Python, from its
command line's flags."""

from typing import Any

import msgspec

from loadstone.catalogue.deployment.deployment import Worker
from loadstone.core.errors import InputError
from loadstone.engines.launch import Command, Site, launch_flags
from loadstone.engines.table import offline_engines, offline_table


class Keywords(msgspec.Struct, frozen=True):
    """Holds what the engine's interface is made of.

    program    the engine's own command, whose interpreter has the engine installed
    model      id or path
    arguments  the others by their names, a JSON object
    timed      the engine tells when each request had its first and last token
    """

    engine: str
    program: str
    model: str
    arguments: str
    notes: tuple[str, ...]
    timed: bool = False


def keywords_of(worker: Worker, command: Command, site: Site, model: str) -> Keywords:
    """Return the keywords that say what `command` says. Raises InputError where one process cannot
    hold the worker, or the engine has no such interface."""
    engine = worker.engine
    offline = offline_table(engine)
    if offline is None:
        raise InputError(
            f"{engine} has no interface for batches that is used here; engine= one of"
            f" {', '.join(offline_engines())}"
        )
    if worker.nodes > 1:
        raise InputError(f"nodes={worker.nodes}: a batch runs on one node; leave nodes out")
    if offline.one_replica and worker.dp > 1:
        raise InputError(f"dp{worker.dp}: {engine}'s interface holds one replica; leave dp out")
    if offline.one_gpu and worker.gpus > 1:
        raise InputError(f"{worker.gpus} GPUs: {engine} takes a batch on one; name one")
    arguments: dict[str, Any] = {}
    for _, content in command.files:
        arguments |= msgspec.yaml.decode(content)
    added = [(name, True if value is None else value) for name, value in site.arguments]
    for flag, text in [*command.flags, *launch_flags(worker, command, site), *added]:
        name, value = flag.lstrip("-").replace("-", "_"), _read_value(text)
        if not name.replace(".", "_").isidentifier():
            raise InputError(
                f"--argument {flag}={text}: write NAME=VALUE, with a keyword of {engine}'s"
                " interface"
            )
        if value is None or text is False or name in (*offline.server_only, "served_model_name"):
            continue
        name = offline.keywords.get(name, name)
        if name.startswith("no_"):
            arguments[name.removeprefix("no_")] = False
        elif "." in name:
            group, _, key = name.partition(".")
            arguments.setdefault(group, {})[key] = value
        else:
            arguments[name] = value
    encoded = msgspec.json.encode(arguments).decode()
    return Keywords(engine, command.program[0], model, encoded, command.notes, offline.timed)


def _read_value(value: Any) -> Any:
    """Return what a parser makes of a flag's text: a number, true or false, JSON; else the text."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return {"True": True, "False": False}.get(value, value)
