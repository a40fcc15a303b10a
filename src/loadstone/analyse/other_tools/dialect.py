"""A tool's numbers as two tables, in which each has its definition beside its formula."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from loadstone.analyse.other_tools.facts import Facts
from loadstone.core.arrays import Floats, present

Number = float | int | None
Summary = dict[str, Number]

_MOMENTS: dict[str, tuple[str, Callable[[Floats], Any]]] = {
    "mean": ("mean", np.mean),
    "avg": ("mean", np.mean),
    "min": ("smallest", np.min),
    "max": ("largest", np.max),
    "std": ("standard deviation over n", np.std),
    "stddev": ("standard deviation over n − 1", lambda values: np.std(values, ddof=1) if len(values) > 1 else None),
    "median": ("median", lambda values: np.percentile(values, 50)),
}


def linear(*moments: str, percentiles: Sequence[float], prefix: str = "p") -> dict[str, str]:
    """Names and words of statistics whose percentiles are linear between neighbours, numpy's default."""
    words = {name: _MOMENTS[name][0] for name in moments}
    return words | {f"{prefix}{p:g}": f"{p:g}th percentile, linear" for p in percentiles}


def describe(values: Floats, statistics: Collection[str]) -> Summary:
    """These statistics, named as by linear(), of what is present; None where nothing is."""
    values = present(values)
    if len(values) == 0:
        return dict.fromkeys(statistics)
    numbers: Summary = {}
    for name in statistics:
        if name in _MOMENTS:
            number = _MOMENTS[name][1](values)
            numbers[name] = None if number is None else float(number)
    points = [name for name in statistics if name not in _MOMENTS]
    places = np.percentile(values, [float(name.rpartition("p")[2]) for name in points])
    return numbers | dict(zip(points, map(float, places), strict=True))


class Total(NamedTuple):
    """One number of a cell: what it is, in a line, and its formula."""

    definition: str
    of: Callable[[Facts], Number]


class Sample(NamedTuple):
    """Values of which a tool gives statistics; `statistics`: where they are not the dialect's."""

    definition: str
    of: Callable[[Facts], Any]
    statistics: Mapping[str, str] | None = None


class Dialect(NamedTuple):
    """One tool's definitions.

    tool        whose, as read from its source, and of which version
    totals      name to number
    samples     name to values
    statistics  of each sample: name to words
    keys        how the keys of totals and of samples are made: * is the name, {} the statistic
    suffix      what the definition of each statistic ends with
    describe    from a sample's values and the names of statistics to these
    """

    tool: str
    totals: Mapping[str, Total]
    samples: Mapping[str, Sample]
    statistics: Mapping[str, str]
    keys: tuple[str, str] = ("*", "*")
    suffix: str = ""
    describe: Callable[[Any, Collection[str]], Summary] = describe

    def definitions(self) -> dict[str, str]:
        """What each key is, in a line."""
        return {self._total(name): total.definition for name, total in self.totals.items()} | {
            self._key(name, statistic): f"{words} of {sample.definition}{self.suffix}"
            for name, sample in self.samples.items()
            for statistic, words in (sample.statistics or self.statistics).items()
        }

    def summary(self, facts: Facts) -> Summary:
        """A value for each key."""
        numbers: Summary = {self._total(name): total.of(facts) for name, total in self.totals.items()}
        for name, sample in self.samples.items():
            described = self.describe(sample.of(facts), sample.statistics or self.statistics)
            numbers |= {self._key(name, statistic): value for statistic, value in described.items()}
        return numbers

    def _total(self, name: str) -> str:
        return self.keys[0].replace("*", name)

    def _key(self, sample: str, statistic: str) -> str:
        return self.keys[1].replace("*", sample).format(statistic)
