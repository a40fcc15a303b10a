"""Named scenarios: rules that others have published, which set options before a run. What of them
can be seen afterwards is checked by analyse/scenario.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from loadstone.core.errors import InputError

FILE = Path(__file__).with_name("scenarios.toml")


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule on what a load turned out to be; see scenarios.toml."""

    name: str
    fact: str
    equals: str | bool | None = None
    minimum: float | None = None
    maximum: float | None = None
    multiple: int | None = None
    model: str = ""

    def holds(self, value: Any) -> bool:
        """Tell whether a value that is known keeps the rule."""
        if self.equals is not None:
            return bool(value == self.equals)
        if self.multiple is not None:
            return bool(value > 0 and value % self.multiple == 0)
        within = self.minimum is None or value >= self.minimum
        return bool(within and (self.maximum is None or value <= self.maximum))


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scenario; see scenarios.toml."""

    name: str
    source: str
    needs: list[str]
    options: dict[str, Any]
    fixed: dict[str, Any]
    forbidden: dict[str, str]
    excluded: list[str]
    unchecked: list[str]
    rule: list[Rule]
    aliases: list[str] = []
    per_gpu: bool = False


@cache
def scenarios() -> dict[str, Scenario]:
    """Return all scenarios by name, and by alias."""
    listed = msgspec.toml.decode(FILE.read_bytes(), type=dict[str, list[Scenario]])["scenario"]
    return {name: scenario for scenario in listed for name in (scenario.name, *scenario.aliases)}


def complete(named: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are given with those that the scenario sets, and its whole name.

    `defaults`: the values of the command's options that count as not given, by the flags' names;
    what the command has no option for is left out. Raises InputError, which names the flag, where
    one contradicts a rule.
    """
    offered = scenarios()
    scenario = offered.get(named) or next(
        (offered[name] for name in offered if name.partition("@")[0] == named), None
    )
    if scenario is None:
        raise InputError(
            f"--scenario {named}: none of this name and version; write one of {', '.join(offered)}"
        )
    chosen = {
        name: value
        for name, value in given.items()
        if value is not None and value != defaults.get(name) and value not in ([], ())
    }
    for name, value in chosen.items():
        flag = f"--{name.replace('_', '-')}"
        if name in scenario.excluded:
            raise InputError(f"{flag}: --scenario {scenario.name} allows none; leave it out")
        wanted = scenario.fixed.get(name, value)
        if wanted != value or scenario.forbidden.get(name) == value:
            shown = f"--no-{name}" if value is False else f"{flag} {value}"
            raise InputError(f"{shown}: breaks --scenario {scenario.name}; leave it out")
    if "@" in scenario.name and "@" not in named:
        raise InputError(
            f"--scenario {named}: rules change; name their version too, {named}@"
            f"{scenario.name.partition('@')[2]}"
        )
    for name in scenario.needs:
        if name not in chosen:
            raise InputError(f"--scenario {scenario.name}: goes with --{name} FILE; give it")
    if "find_max" in chosen:
        chosen["slo"] = None
    files = {"agents", "trace", "dataset", "text"} & chosen.keys()
    options = {
        name: value
        for name, value in scenario.options.items()
        if name in defaults and name not in chosen and not (files and not scenario.needs)
    }
    return {**given, **options, "scenario": scenario.name}
