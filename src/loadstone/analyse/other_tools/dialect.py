"""Describes a tool's numbers as tables: each has its definition beside its formula."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from loadstone.analyse.other_tools.facts import Facts
from loadstone.core.arrays import Floats, drop_missing

Number = float | int | None


class Total(NamedTuple):
    """One number of a cell: its definition, in a line, and its formula."""

    definition: str
    formula: Callable[[Facts], Number]


class Statistic(NamedTuple):
    """One number of a distribution: its name in the tool's keys, its definition, its formula of
    what `prepare` gives.
    """

    name: str
    definition: str
    formula: Callable[[Any], Number]


class ToolSample(NamedTuple):
    """Values of which a tool gives statistics, with their definition in a line."""

    definition: str
    formula: Callable[[Facts], Any]


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
    "median": ("median", functools.partial(np.percentile, q=50)),
}


def linear(*moments: str, percentiles: Sequence[float], prefix: str = "p") -> tuple[Statistic, ...]:
    """Make statistics whose percentiles are linear between neighbours, numpy's default."""
    return (
        *(Statistic(name, *_MOMENTS[name]) for name in moments),
        *(
            Statistic(
                f"{prefix}{q:g}",
                f"{q:g}th percentile, linear",
                functools.partial(np.percentile, q=q),
            )
            for q in percentiles
        ),
    )


def _present(values: Floats) -> Floats | None:
    present = drop_missing(values)
    return present if len(present) else None


class Dialect(NamedTuple):
    """One tool's definitions.

    tool           its name and the version whose source was read
    totals         name to number
    distributions  name to values
    statistics     computed of each distribution
    keys           patterns of the keys of totals and of distributions: * is the name, {} the
                   statistic
    suffix         ends the definition of each statistic
    names          field of core's Metrics to the total or distribution that is the tool's own
    prepare        makes of values what statistics are taken of; None: there is nothing to take them
                   of
    """

    tool: str
    totals: Mapping[str, Total]
    samples: Mapping[str, ToolSample]
    statistics: Sequence[Statistic]
    keys: tuple[str, str] = ("*", "*")
    suffix: str = ""
    names: Mapping[str, str] = MappingProxyType({})
    prepare: Callable[[Any], Any] = _present

    def definitions(self) -> Iterator[tuple[str, str]]:
        """Yield each key with its definition in a line."""
        for name, total in self.totals.items():
            yield self.keys[0].replace("*", name), total.definition
        for name, sample in self.samples.items():
            for statistic in self.statistics:
                definition = f"{statistic.definition} of {sample.definition}{self.suffix}"
                yield self._key(name, statistic), definition

    def numbers(self, facts: Facts) -> Iterator[tuple[str, Number]]:
        """Yield each key with its value."""
        for name, total in self.totals.items():
            yield self.keys[0].replace("*", name), total.formula(facts)
        for name, sample in self.samples.items():
            values = self.prepare(sample.formula(facts))
            for statistic in self.statistics:
                number = None if values is None else statistic.formula(values)
                # Of numpy's numbers plain ones, which JSON can hold.
                yield (
                    self._key(name, statistic),
                    (number.item() if isinstance(number, np.generic) else number),
                )

    def find_definition(self, metric: str) -> str | None:
        """Find the tool's definition of a field of Metrics, in a line, without its unit; None where
        it has none."""
        name = self.names.get(metric, "")
        row = self.totals.get(name) or self.samples.get(name)
        return row.definition.removesuffix("; ms").removesuffix("; s") if row else None

    def _key(self, name: str, statistic: Statistic) -> str:
        return self.keys[1].replace("*", name).format(statistic.name)
