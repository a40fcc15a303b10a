"""Refuses models and flags that an engine's release does not have, or does not take beside others,
by its table (`[models]`, `[flags]`)."""

from collections.abc import Iterable, Iterator, Sequence

from loadstone.catalogue.deployment.deployment import Worker
from loadstone.catalogue.engines import ENGINES
from loadstone.catalogue.find import nearest
from loadstone.core.errors import InputError
from loadstone.engines.sharding.limits import Version
from loadstone.engines.table import EngineTable, ReleaseFlag, engine_tables

_MOST_CHOICES = 12


def check_flags(worker: Worker, version: Version, commands: Iterable[Sequence[str]]) -> None:
    """Raises InputError where the engine's release lacks the model or a flag of a command, or where
    two flags contradict each other. A release that nobody named is taken to have all."""
    table = engine_tables().get(worker.engine, EngineTable())
    rows, model = table.flags, worker.model
    if model.model_type in table.models:
        _check(model.name, table.models[model.model_type], {}, worker, version)
    for words in commands:
        given = dict(_pairs(words))
        for name, value in given.items():
            row = rows.get(f"{name}={value}", rows.get(name, rows.get(name.removeprefix("no-"))))
            if row is not None:
                flag = f"--{name} {value}" if f"{name}={value}" in rows else f"--{name}"
                _check(flag, row, given, worker, version)


def check_choices(worker: Worker, version: Version, newest: Version) -> None:
    """Raises InputError where a setting with few values has another one. What changes the start
    alone may have more in releases after `newest`."""
    choices = engine_tables().get(worker.engine, EngineTable()).choices
    started = ENGINES[worker.engine].launch if worker.engine in ENGINES else {}
    for name, value in worker.arguments:
        flag = started.get(name, name).removeprefix("yaml:").replace("_", "-")
        newer = name in started and version[: len(newest)] > newest
        values = () if newer else choices.get(flag, ())
        if values and {value, value.upper()}.isdisjoint(values):
            names = {choice.lower(): choice for choice in values}
            close = nearest(value, names) if len(values) > _MOST_CHOICES else names
            ways = (
                ", ".join(map(names.__getitem__, close))
                or f"{', '.join(values[:_MOST_CHOICES])}, …"
            )
            raise InputError(
                f"deployment {worker.name!r}: {name}={value}: {worker.engine} has no such value;"
                f" use {ways}"
            )


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the flags of a command, without dashes, each with the word behind it."""
    for word, following in zip(words, (*words[1:], ""), strict=False):
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            yield name.replace("_", "-"), value or following


def _check(
    flag: str, row: ReleaseFlag, given: dict[str, str], worker: Worker, version: Version
) -> None:
    engine = f"{worker.engine} {worker.engine_version}"
    has_it = row.lacks and version[: row.lacks.count(".") + 1] > _parse(row.lacks)
    if worker.engine_version and row.since and version < _parse(row.since) and not has_it:
        raise InputError(
            f"{flag}: {engine} does not have it; {row.since} and later have"
            f" (version={row.since}){row.instead and f', or {row.instead}'}"
        )
    if worker.engine_version and row.until and version >= _parse(row.until):
        raise InputError(
            f"{flag}: {engine} no longer has it, removed in {row.until};"
            f" {row.instead or 'leave it out, or name an older version'}"
        )
    for excluded, values in row.excludes.items():
        if given.get(excluded) in values:
            raise InputError(
                f"{flag}: {worker.engine} does not take it beside --{excluded} {given[excluded]};"
                f" leave out {excluded.replace('-', '_')}, or start the engine yourself, and give"
                " `bench` its URL"
            )


def _parse(release: str) -> Version:
    return tuple(map(int, release.split(".")))
