"""GuideLLM (guidellm/schemas/base/request_stats.py, statistics.py; benchmark/schemas/metrics.py),
release 0.8.1.

Keys are paths in `benchmarks[i].metrics` of its JSON report. Its percentiles do not interpolate: a
percentile is the smallest value at which the weights of all values up to it reach that share. TPOT
and ITL weigh each request by its tokens. Rates and concurrency are distributions over time: between
two events the rate is what it takes to make the events of that time, and each counts by how long it
held.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from loadstone.analyse.other_tools.facts import Facts, mean_gap_s
from loadstone.core.vectors import Floats

_NEAR_S = 1e-4  # events so near to one another count as one moment
_LEAST_S = 1e-6  # the least time that the last event's rate holds

Weighted = tuple[Floats, Floats]
"""Values and their weights."""


@dataclass(frozen=True, eq=False)
class Shares:
    """Different values in order, each with its share of all weight."""

    values: Floats
    share: Floats

    def __len__(self) -> int:
        return len(self.values)

    def percentile(self, q: float) -> float:
        place = int(np.searchsorted(np.cumsum(self.share), q / 100, side="left"))
        return float(self.values[min(place, len(self.values) - 1)])

    def mean(self) -> float:
        return float(np.sum(self.values * self.share))

    def deviation(self) -> float:
        return math.sqrt(float(np.sum((self.values - self.mean()) ** 2 * self.share)))


def shares(values: Floats | Weighted) -> Shares:
    """Share out the weight, which is equal where none is given, over the values that have any."""
    numbers, weights = values if isinstance(values, tuple) else _alike(values)
    weighing = ~np.isnan(numbers) & (weights > 0)
    ordered, inverse = np.unique(numbers[weighing], return_inverse=True)
    sums = np.bincount(inverse, weights=weights[weighing])
    return Shares(ordered, sums / np.sum(sums))


def _alike(values: Floats) -> Weighted:
    return values, np.ones(len(values))


def _prompts(facts: Facts) -> Weighted:
    return facts.done["first"], facts.done["input"]


def _outputs(facts: Facts) -> Weighted:
    """Place output tokens in time as GuideLLM does: one at t1, the others evenly at as many moments
    as events."""
    done = facts.done
    bundled = done["events"] <= 1
    spread = ~bundled & (done["tokens"] > 1)
    times = [np.where(bundled, done["last"], done["first"])]
    weights = [np.where(bundled, done["tokens"], np.minimum(done["tokens"], 1))]
    for row in done[spread]:
        moments = np.linspace(row["first"], row["last"], num=int(row["events"]))[1:]
        times.append(moments)
        weights.append(np.full(len(moments), (row["tokens"] - 1.0) / (row["events"] - 1.0)))
    return np.concatenate(times), np.concatenate(weights)


def _rate(facts: Facts, *events: Weighted) -> Weighted:
    """Events per second around each moment, and how long: from half way to the moment before to
    half way to the next.

    The ends of the window are moments at which nothing happens.
    """
    if facts.window is None:
        return np.empty(0), np.empty(0)
    times, weights = (np.concatenate(parts) for parts in zip(*events, strict=True))
    begin, end = window = facts.window
    inside = (times >= begin) & (times <= end) & ~np.isnan(weights)
    moments, counts = _merged(
        np.append(times[inside], window), np.append(weights[inside], (0.0, 0.0))
    )
    if len(moments) <= 1:
        return np.empty(0), np.empty(0)
    halfway = (moments[1:] + moments[:-1]) / 2
    held = np.diff(halfway, prepend=moments[0], append=moments[-1])
    held[-1] = max(held[-1], _LEAST_S)
    return counts / held, held


def _concurrency(facts: Facts) -> Weighted:
    """Count requests under way, with the time that each count held."""
    if facts.window is None:
        return np.empty(0), np.empty(0)
    begin, end = facts.window
    kept = (facts.done["end"] >= begin) & (facts.done["sent"] <= end)
    begins, ends = facts.done["sent"][kept], facts.done["end"][kept]
    if len(begins) == 0:
        return np.empty(0), np.empty(0)
    moments, changes = _merged(
        np.concatenate([begins, ends]), np.concatenate([np.ones(len(begins)), -np.ones(len(ends))])
    )
    first = int(np.searchsorted(moments, begin, side="left"))
    until = int(np.searchsorted(moments, end, side="right"))
    moments = np.concatenate([[begin], moments[first:until], [end]])
    changes = np.concatenate([[changes[:first].sum()], changes[first:until]])
    held = np.maximum(np.diff(moments), 0)
    level = np.maximum(np.cumsum(changes), 0)
    return (level, held) if held.any() else (np.empty(0), np.empty(0))


def _merged(times: Floats, weights: Floats) -> Weighted:
    """Moments in order, those within _NEAR_S of the first of a group taken as that one, with the
    sum of weights."""
    unique, inverse = np.unique(times, return_inverse=True)
    sums = np.bincount(inverse, weights=weights, minlength=len(unique))
    following = np.searchsorted(unique, unique + _NEAR_S, side="right")
    groups, index = [], 0
    while index < len(unique):
        groups.append(index)
        index = int(following[index])
    return unique[groups], np.add.reduceat(sums, groups)


MOMENTS: dict[str, tuple[str, Callable[[Shares], Any]]] = {
    "mean": ("mean", Shares.mean),
    "median": ("median", partial(Shares.percentile, q=50)),
    "std_dev": ("standard deviation over n", Shares.deviation),
    "min": ("smallest", lambda shares: shares.values[0]),
    "max": ("largest", lambda shares: shares.values[-1]),
}
FUNCTIONS: dict[str, Callable[[Facts], Any]] = {
    "weighed_time_per_token_ms": lambda f: (
        mean_gap_s(f.span("sent", "last"), f.done["tokens"], less=0) * 1e3,
        f.done["tokens"],
    ),
    "weighed_tpot_ms": lambda f: (f.tpot_s * 1e3, f.done["tokens"] - 1),
    "lengths": lambda f: f.done["input"] + f.done["tokens"],
    "end_rate": lambda f: _rate(f, _alike(f.done["end"])),
    "concurrency": _concurrency,
    "input_rate": lambda f: _rate(f, _prompts(f)),
    "output_rate": lambda f: _rate(f, _outputs(f)),
    "token_rate": lambda f: _rate(f, _prompts(f), _outputs(f)),
}
"""The formulas of its table in tools.toml, by name."""
