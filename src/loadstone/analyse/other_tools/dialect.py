"""A tool's numbers as tables, in which each has its definition beside its formula."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from loadstone.analyse.other_tools.facts import Facts
from loadstone.core.arrays import Floats, present

Number = float | int | None


class Total(NamedTuple):
    """One number of a cell: what it is, in a line, and its formula."""

    definition: str
    of: Callable[[Facts], Number]


class Statistic(NamedTuple):
    """One number of a sample: its name in the tool's keys, what it is, and its formula, of what `prepare` gives."""

    name: str
    definition: str
    of: Callable[[Any], Number]


class Sample(NamedTuple):
    """Values of which a tool gives statistics; `statistics`: where they are not the dialect's."""

    definition: str
    of: Callable[[Facts], Any]
    statistics: Sequence[Statistic] = ()


_MOMENTS: dict[str, tuple[str, Callable[[Floats], Any]]] = {
    "mean": ("mean", np.mean),
    "avg": ("mean", np.mean),
    "min": ("smallest", np.min),
    "max": ("largest", np.max),
    "std": ("standard deviation over n", np.std),
    "stddev": ("standard deviation over n − 1", lambda values: np.std(values, ddof=1) if len(values) > 1 else None),
    "median": ("median", functools.partial(np.percentile, q=50)),
}


def linear(*moments: str, percentiles: Sequence[float], prefix: str = "p") -> tuple[Statistic, ...]:
    """Statistics whose percentiles are linear between neighbours, numpy's default."""
    return (
        *(Statistic(name, *_MOMENTS[name]) for name in moments),
        *(
            Statistic(f"{prefix}{q:g}", f"{q:g}th percentile, linear", functools.partial(np.percentile, q=q))
            for q in percentiles
        ),
    )


def _present(values: Floats) -> Floats | None:
    known = present(values)
    return known if len(known) else None


class Dialect(NamedTuple):
    """One tool's definitions.

    tool        whose, as read from its source, and of which version
    totals      name to number
    samples     name to values
    statistics  of each sample
    keys        how the keys of totals and of samples are made: * is the name, {} the statistic
    suffix      what the definition of each statistic ends with
    names       the total or sample that is the tool's own of a field of core's Metrics
    prepare     from a sample's values to what statistics are taken of; None where there is nothing to take them of
    """

    tool: str
    totals: Mapping[str, Total]
    samples: Mapping[str, Sample]
    statistics: Sequence[Statistic]
    keys: tuple[str, str] = ("*", "*")
    suffix: str = ""
    names: Mapping[str, str] = MappingProxyType({})
    prepare: Callable[[Any], Any] = _present

    def definitions(self) -> Iterator[tuple[str, str]]:
        """Each key, and what it is in a line."""
        for name, total in self.totals.items():
            yield self.keys[0].replace("*", name), total.definition
        for name, sample in self.samples.items():
            for statistic in sample.statistics or self.statistics:
                definition = f"{statistic.definition} of {sample.definition}{self.suffix}"
                yield self._key(name, statistic), definition

    def numbers(self, facts: Facts) -> Iterator[tuple[str, Number]]:
        """Each key, and its value."""
        for name, total in self.totals.items():
            yield self.keys[0].replace("*", name), total.of(facts)
        for name, sample in self.samples.items():
            values = self.prepare(sample.of(facts))
            for statistic in sample.statistics or self.statistics:
                number = None if values is None else statistic.of(values)
                # Of numpy's numbers plain ones, which JSON can hold.
                yield self._key(name, statistic), number.item() if isinstance(number, np.generic) else number

    def definition(self, metric: str) -> str | None:
        """What the tool's own of a field of Metrics is, in a line, without its unit; None where it has none."""
        name = self.names.get(metric, "")
        row = self.totals.get(name) or self.samples.get(name)
        return row.definition.removesuffix("; ms").removesuffix("; s") if row else None

    def _key(self, sample: str, statistic: Statistic) -> str:
        return self.keys[1].replace("*", sample).format(statistic.name)
