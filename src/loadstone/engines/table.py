"""Reads each engine's table (`vllm.toml`, …): how to recognise a server, its metrics, failures,
batches."""

import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Literal

import msgspec

from loadstone.catalogue.engines import ALL_ENGINES, Engine, engine_title
from loadstone.catalogue.plug_ins import read_table
from loadstone.core import plugins

COMMON = "common"
"""The table of what belongs to no single engine."""
SIMULATED = "simulated engine"


class KnownServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tells servers of one kind from others, and holds what they alone offer.

    title      what it is called; an engine's own name where the table says nothing
    owner      what /v1/models says of the models' owner
    metrics    how the names in /metrics begin
    about      the pages that state its version, the newest first; the rest of what they say is not
               kept
    version    the field of these pages that states it; without such pages /version says it
    flush      the path that empties its prefix cache
    needs_gpu  it does not run on the processor of a machine with GPUs
    """

    title: str = ""
    owner: str | None = None
    metrics: str | None = None
    about: tuple[str, ...] = ()
    version: str = "version"
    flush: str | None = None
    needs_gpu: bool = True


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Explains how the start of an engine fails, as its log shows it.

    pattern  a regular expression, searched in each line without its prefix of time and level
    cause    what went wrong, for people; {0}, {1} …: groups of the pattern
    remedy   what to change
    vague    any other cause says more, wherever it stands
    """

    pattern: str
    cause: str
    remedy: str
    vague: bool = False


class Offline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Says what an engine's own interface in Python takes.

    one_replica  it holds one replica; one_gpu: on one GPU
    timed        it tells when each request had its first and last token
    server_only  flags of the server, `_` for `-`, that the interface does not have
    keywords     its names for what the server's flags call otherwise, within a group after a dot
    """

    one_replica: bool = False
    one_gpu: bool = False
    timed: bool = False
    server_only: tuple[str, ...] = ()
    keywords: dict[str, str] = {}


class ReleaseFlag(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Says which releases have a flag of the command line, or load a model.

    since     the first that is known to have it; until: the first that no longer has it
    lacks     the last that is known to lack it, where those between are not known, and are let pass
    instead   what to do where a release lacks it
    excludes  other flags, and values of these beside which it is refused
    """

    since: str = ""
    until: str = ""
    lacks: str = ""
    instead: str = ""
    excludes: dict[str, tuple[str, ...]] = {}


class TunedFlag(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Says which values of a flag of the command line are worth measuring.

    values   to try; of a switch true and false, which leaves it out
    cores    the values are powers of two, up to the cores of the machine
    default  what the engine takes without it, where that is one value everywhere
    also     other names of it
    main     it is among those that are tried where nobody names any
    memory   1 where a larger value takes more memory, −1 where it takes less
    answers  it may change what the model answers
    unread   the release from which nothing reads it
    """

    values: tuple[str | int | float | bool, ...] = ()
    cores: bool = False
    default: str | int | float | bool | None = None
    also: tuple[str, ...] = ()
    main: bool = False
    memory: Literal[-1, 0, 1] = 0
    answers: bool = False
    unread: str = ""


class Tie(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Says which values of two flags are refused together.

    least  two flags: the first is no smaller than the second
    where  a flag and the values of it with which `needs`, a flag and its values, is needed
    why    what happens otherwise
    """

    why: str
    least: tuple[str, str] | None = None
    where: dict[str, tuple[str, ...]] = {}
    needs: dict[str, tuple[str, ...]] = {}


class EngineTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds one engine's table; `gauges`, `counters`: see server_metrics.py; `offline`: None
    without interface; `program`: what starts it, and how one gets it; `forced_drafts`: its switches
    that accept as many guessed tokens as they are told to; `profiles`: those by which it profiles
    itself; `shorthand`: what engines.toml of the catalogue has of engines that come with Loadstone;
    `flags`: by name without dashes, `-` for `_`, and NAME=VALUE for one value alone; `models`: by
    their model_type; `choices`: what flags with few values take, named as in `flags`, and as the
    shorthand names them where they are none; `priority_sign`: 1 where a larger `priority` of a
    request is served first, −1 where a smaller one is, 0 where there is none; `adapter`: the field
    by which a request names its LoRA adapter: `model`, or `base:model`, or what else the body has;
    `tune`: flags worth measuring, named as in `flags`; `tie`: which of their values do not go
    together."""

    program: str = ""
    install: str = ""
    forced_drafts: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    server: tuple[KnownServer, ...] = ()
    gauges: dict[str, tuple[str, ...]] = {}
    counters: dict[str, tuple[str, ...]] = {}
    offline: Offline | None = None
    shorthand: Engine | None = None
    failure: tuple[Failure, ...] = ()
    flags: dict[str, ReleaseFlag] = {}
    models: dict[str, ReleaseFlag] = {}
    choices: dict[str, tuple[str, ...]] = {}
    priority_sign: int = 0
    adapter: str = "model"
    tune: dict[str, TunedFlag] = {}
    tie: tuple[Tie, ...] = ()


@cache
def engine_tables() -> dict[str, EngineTable]:
    """Return the tables by the engines' names in the catalogue's order; the common one is last."""
    folder, points = resources.files("loadstone.engines"), plugins.offers(plugins.ENGINES)
    tables = {}
    for name in (*ALL_ENGINES, COMMON):
        if name in points:
            tables[name] = msgspec.convert(read_table(points[name]), EngineTable)
            continue
        file = folder.joinpath(f"{name}.toml")
        if file.is_file():
            tables[name] = msgspec.toml.decode(file.read_bytes(), type=EngineTable)
    return tables


@cache
def known_servers() -> tuple[KnownServer, ...]:
    return tuple(
        msgspec.structs.replace(server, title=server.title or engine_title(name))
        for name, table in engine_tables().items()
        for server in table.server
    )


def needs_gpu(title: str | None) -> bool:
    """Return False for a server that may run on the processor of a machine with GPUs."""
    return all(server.needs_gpu for server in known_servers() if server.title == title)


def failures(engine: str) -> Iterator[Failure]:
    """Yield the known failures of an engine, its own before those of all."""
    for name in (engine, COMMON):
        yield from engine_tables().get(name, EngineTable()).failure


def find_forced_drafts(text: str) -> str | None:
    """Return the switch in a text, as it stands there, by which an engine accepts as many guessed
    tokens as it is told to; `-` or any other character may stand for `_`."""
    names = [name for table in engine_tables().values() for name in table.forced_drafts]
    found = re.search("|".join(names).replace("_", "."), text, re.IGNORECASE)
    return None if found is None else found[0]


def find_profiler(text: str) -> str | None:
    """Return the switch in a text, as it stands there, by which an engine profiles itself as it
    serves."""
    names = [name for table in engine_tables().values() for name in table.profiles]
    found = re.search("|".join(names), text)
    return None if found is None else found[0]


def priority_sign(title: str | None) -> int:
    """Return how an engine orders the priorities of requests: 1 larger first, −1 smaller first, 0
    where it has none, or is not known."""
    for name, table in engine_tables().items():
        if engine_title(name) == title:
            return table.priority_sign
    return 0


def adapter_field(title: str | None) -> str:
    """Return how requests to an engine name their adapter; unknown ones take it for a model."""
    for name, table in engine_tables().items():
        if engine_title(name) == title:
            return table.adapter
    return "model"


def offline_table(engine: str) -> Offline | None:
    return engine_tables().get(engine, EngineTable()).offline


def offline_engines() -> list[str]:
    return [name for name, table in engine_tables().items() if table.offline is not None]
