"""How much of the performance model's error do predictions share?

Each simulated run has an 80 % interval of its own (simulator.interval). Two such runs may share what is wrong with
them. How much, published measurements say (docs/compare.md): on one user's machines the errors of two predictions go
together by two thirds, of one profile and one model by four fifths; and one deployment asked the same has one error,
which the ratio does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from loadstone.analyse.run_facts import RunFacts
from loadstone.core import RunInfo

TOGETHER = 2 / 3
"""Correlation of the errors of two predictions: machine, launch and client are one user's in both."""
ALIKE = 0.8
"""The same with the coefficients of one profile, for one model."""
_ONE_ERROR = ("deployment", "policy", "schedulers", "profile", "workload")
"""Settings of a run that, all alike, make two simulations of a load wrong by the same."""


class Basis(NamedTuple):
    """What a prediction rests on.

    question  everything that decides how far the model is off, as bytes
    draw      everything that decides what was drawn: lengths and times
    """

    question: bytes
    draw: bytes
    profile: Any
    model: str | None


def basis(info: RunInfo, facts: RunFacts, load: Any = None) -> Basis | None:
    """Of a simulated run, under this load where not all that is compared has one load; None of another."""
    if info.source != "simulated":
        return None
    settings = info.settings
    question = msgspec.json.encode([load, [settings.get(name) for name in _ONE_ERROR]], order="sorted")
    draw = msgspec.json.encode([load, info.seed, settings.get("workload")], order="sorted")
    return Basis(question, draw, settings.get("profile"), facts.model)


def together(bases: Sequence[Basis | None]) -> float:
    """Correlation of the errors of these runs: 1, ALIKE or TOGETHER; 0 where one is measured."""
    known = [each for each in bases if each is not None]
    if len(known) < len(bases) or not known:
        return 0.0
    first = known[0]
    if all(each.question == first.question for each in known):
        return 1.0
    told = first.profile is not None and first.model is not None
    return ALIKE if told and all(each[2:] == first[2:] for each in known) else TOGETHER
