"""Computes a tool's numbers by its table in tools.toml: each has its definition and its formula."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from loadstone.analyse.other_tools import clients, guidellm
from loadstone.analyse.other_tools.facts import Facts, mean_gap_s
from loadstone.core.arrays import (
    drop_missing,
)
from loadstone.core.vectors import Floats

Number = float | int | None

_FUNCTIONS = clients.FUNCTIONS | guidellm.FUNCTIONS
_MOMENTS: dict[str, tuple[str, Callable[[Floats], Any]]] = {
    "mean": ("mean", np.mean),
    "avg": ("mean", np.mean),
    "min": ("smallest", np.min),
    "max": ("largest", np.max),
    "std": ("standard deviation over n", np.std),
    "stddev": (
        "standard deviation over n − 1",
        lambda values: np.std(values, ddof=1) if len(values) > 1 else None,
    ),
    "median": ("median", partial(np.percentile, q=50)),
}


class Statistic(NamedTuple):
    """One number of a distribution: its name in the tool's keys, its definition, its formula."""

    name: str
    definition: str
    formula: Callable[[Any], Any]


class Dialect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tool's definitions, a table of tools.toml, which says what its fields mean."""

    tool: str
    totals: dict[str, tuple[str, str]]
    samples: dict[str, tuple[str, str]]
    moments: list[str]
    percentiles: list[int | float]
    keys: tuple[str, str]
    prefix: str = "p"
    weighted: bool = False
    suffix: str = ""
    names: dict[str, str] = {}

    def statistics(self) -> Iterator[Statistic]:
        """Yield what is computed of each sample."""
        moments = guidellm.MOMENTS if self.weighted else _MOMENTS
        percentile = guidellm.Shares.percentile if self.weighted else np.percentile
        kind = "a value that occurred," if self.weighted else "linear"
        for name in self.moments:
            yield Statistic(name, *moments[name])
        for q in self.percentiles:
            words = f"{q:g}th percentile, {kind}"
            yield Statistic(f"{self.prefix}{q:g}", words, partial(percentile, q=q))

    def definitions(self) -> Iterator[tuple[str, str]]:
        """Yield each key with its definition in a line."""
        for name, (definition, _) in self.totals.items():
            yield self.keys[0].replace("*", name), definition
        for name, (definition, _) in self.samples.items():
            for statistic in self.statistics():
                words = f"{statistic.definition} of {definition}{self.suffix}"
                yield self._key(name, statistic), words

    def numbers(self, facts: Facts) -> Iterator[tuple[str, Number]]:
        """Yield each key with its value."""
        for name, (_, formula) in self.totals.items():
            yield self.keys[0].replace("*", name), compute(formula, facts)
        prepare = guidellm.shares if self.weighted else drop_missing
        for name, (_, formula) in self.samples.items():
            values = prepare(compute(formula, facts))
            for statistic in self.statistics():
                number = statistic.formula(values) if len(values) else None
                # Of numpy's numbers plain ones, which JSON can hold.
                plain = number.item() if isinstance(number, np.generic) else number
                yield self._key(name, statistic), plain

    def find_definition(self, metric: str) -> str | None:
        """Find the tool's definition of a field of Metrics, in a line, without its unit; None where
        it has none."""
        name = self.names.get(metric, "")
        row = self.totals.get(name) or self.samples.get(name)
        return row[0].removesuffix("; ms").removesuffix("; s") if row else None

    def _key(self, name: str, statistic: Statistic) -> str:
        return self.keys[1].replace("*", name).format(statistic.name)


def compute(formula: str, facts: Facts) -> Any:
    """Compute a formula, whose form tools.toml describes."""
    if formula in _FUNCTIONS:
        return _FUNCTIONS[formula](facts)
    if formula.endswith(" in ms"):
        return compute(formula.removesuffix(" in ms"), facts) * 1e3
    if formula.endswith(" per s"):
        return facts.per_s(compute(formula.removesuffix(" per s"), facts))
    dividend, divided, divisor = formula.partition(" / ")
    if divided:
        return mean_gap_s(compute(dividend, facts), compute(divisor, facts), less=0)
    begin, is_span, end = formula.partition("..")
    if is_span:
        return facts.span(begin, end)
    name, _, column = formula.partition(".")
    values = getattr(facts, name)
    return values[column] if column else values
