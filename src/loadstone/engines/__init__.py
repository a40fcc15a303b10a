"""Finds an engine's own rules by its name.

An engine is an entry point of the group `loadstone.engines`: its name is the engine's, its object a
class of EngineRules, and beside the class's module lies the engine's table (table.py). Loadstone's
own come through the same door (pyproject.toml). An engine without any is assumed to do what
EngineRules does.
"""

import msgspec

from loadstone.catalogue.deployment.deployment import Worker
from loadstone.catalogue.deployment.shorthand import parse_worker
from loadstone.catalogue.engines import ALL_ENGINES
from loadstone.core import plugins
from loadstone.engines import triton
from loadstone.engines.advice import advise, describe_loading
from loadstone.engines.flags import check_choices, check_flags
from loadstone.engines.launch import ANYWHERE, Command, Launch, Site, launch_command
from loadstone.engines.offline.keywords import Keywords, keywords_of
from loadstone.engines.refusals import check_launch
from loadstone.engines.rules import EngineRules

_OFFERED = plugins.offers(plugins.ENGINES)
_ALL: dict[str, type[EngineRules]] = {
    name: plugins.load(plugins.ENGINES, name, "engine") for name in ALL_ENGINES if name in _OFFERED
}

ENGINES = {name: rules for name, rules in _ALL.items() if rules.sized}
"""Those whose memory and scheduling are known."""

EMBEDDED = "llama.cpp"
"""The engine that is started with a small random model where none is named."""

OLD_ERAS = frozenset(era.name for rules in ENGINES.values() for era in rules.eras if era.old)


def rules_of(worker: Worker) -> EngineRules:
    """Return the rules of a worker's engine, with the worker in them: whoever has these asks no
    more by its name. Raises InputError: an argument that has not one of the engine's values."""
    rules = _ALL.get(worker.engine, EngineRules)(worker)
    check_choices(worker, rules.version, rules.newest)
    return rules


def launch_of(worker: Worker, site: Site = ANYWHERE) -> Launch:
    """Return the commands that start a worker. Raises InputError where its engine cannot be started
    so."""
    if worker.argument("server") is not None:
        command = triton.command(worker, site)
        built = [f"--{name}={value}" for name, value in worker.arguments if name == "backend"]
        check_flags(worker, rules_of(worker).version, [built])
        return launch_command(msgspec.structs.replace(worker, arguments=()), command, site)
    rules, command = _advise(worker, site)
    launch = launch_command(rules.worker, command, site)
    check_flags(worker, rules.version, [rank.argv for rank in launch.ranks])
    return launch


def _advise(worker: Worker, site: Site) -> tuple[EngineRules, Command]:
    """Return the rules of the worker as it would start, and how, with what is to be said of it; see
    advise()."""
    rules = rules_of(worker)
    check_launch(rules)
    notes: list[str] = []
    if worker.engine in ENGINES and worker.gpu.vendor != "any":
        changed, notes = advise(rules, rules.ranks)
        stored = rules.weights(site).first if rules.loads_first else None
        if stored is not None:
            loaded = rules.of(msgspec.structs.replace(worker, weights_dtype=stored))
            notes += describe_loading(rules, site, loaded.ranks)
        rules = rules.of(changed)
    command = rules.command(site)
    return rules, command._replace(notes=(*command.notes, *notes))


def launch_named(text: str, site: Site) -> Launch:
    """Return launch_of() a worker's shorthand, at the checkpoint that it names. Raises
    InputError."""
    return launch_of(parse_worker(text), site)


def keywords_named(text: str, site: Site) -> Keywords:
    """Return what launch_named() does for the engine's own interface in Python. Raises
    InputError."""
    rules, command = _advise(parse_worker(text), site)
    return keywords_of(rules.worker, command, site, rules.model_name(site))
