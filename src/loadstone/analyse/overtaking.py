"""Finds whether requests of a higher priority are served before those of a lower that wait."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from loadstone.core.parts import Overtakes
from loadstone.core.plan import TrafficClass
from loadstone.core.vectors import Array, Floats, Ints64

_MAX_ASKED = 2000
"""Requests of a class that are looked at; of more, so many evenly spread."""
_LONG_WAIT = 2.0
"""One waits that has its first token so many times as late as its prompt takes without a queue."""
_STEPS = 2
"""Steps that gave first tokens to others, before that of one that waited."""
_TIE = 0.25
"""Of that time: two first tokens that are nearer to one another may be of one step."""
_LEAST = 16
"""Requests that met one of the other class waiting, from which a share of them means anything."""
_ALPHA = 0.01


def find_overtakes(
    rows: Array, label: Ints64, classes: Sequence[TrafficClass]
) -> dict[int, list[Overtakes]]:
    """Count by class, for each class of a lower priority, how often its requests met one of that
    waiting, and had their first token before it. `rows`: of the whole cell, also those whose label
    is −1, which belong to no class."""
    begun = ~np.isnan(rows["first"]) & ~np.isnan(rows["sent"])
    own_s = _own_times(rows, begun)
    until_s = np.minimum(rows["first"] - _LONG_WAIT * own_s, _steps_before(rows, begun, own_s))
    found: dict[int, list[Overtakes]] = {}
    for high, low in itertools.permutations(range(len(classes)), 2):
        if not _is_above(classes[high], classes[low]):
            continue
        favoured, waiting = (np.flatnonzero(begun & (label == number)) for number in (high, low))
        met, overtook = _count(rows[favoured], rows[waiting], until_s[waiting], own_s[waiting])
        found.setdefault(high, []).append(
            Overtakes(traffic_class=classes[low].name, met=met, overtook=overtook)
        )
    return found


def _is_above(higher: TrafficClass, lower: TrafficClass) -> bool:
    """Tell whether every engine serves one class before the other. Requests without a priority are
    0 in one engine and last in another."""
    if higher.priority is None:
        return False
    return higher.priority > (0 if lower.priority is None else lower.priority)


def _own_times(rows: Array, begun: Array) -> Floats:
    """Return what each prompt takes at most without a queue: the least time to a first token of
    those that are at least as long."""
    lengths = np.nan_to_num(rows["input"])
    times_s = np.where(begun, rows["first"] - rows["sent"], np.inf)
    order = np.argsort(-lengths, kind="stable")
    least_s = np.minimum.accumulate(times_s[order])
    # Of equal lengths, what holds for the last of them holds for all.
    last = np.searchsorted(-lengths[order], -lengths[order], side="right") - 1
    own_s = np.empty(len(rows))
    own_s[order] = least_s[last]
    return own_s


def _steps_before(rows: Array, begun: Array, own_s: Floats) -> Floats:
    """Return for each request when the last but one step ended that gave first tokens before its
    own did: who came before that came while it waited, and was in no step yet."""
    first_s = np.sort(rows["first"][begun])
    if not len(first_s):
        return np.full(len(rows), -np.inf)
    apart = np.diff(first_s, prepend=-np.inf) > _TIE * own_s[begun].min()
    ends_s = np.concatenate([np.full(_STEPS, -np.inf), first_s[apart]])
    return np.asarray(ends_s[np.searchsorted(first_s[apart], rows["first"], side="right") - 1])


def _count(favoured: Array, waiting: Array, until_s: Floats, own_s: Floats) -> tuple[int, int]:
    """Count the requests that met one waiting, as each of these does `until_s`, and those that
    overtook it: of several that waited, the one in their midst."""
    order = np.argsort(waiting["sent"])
    sent_s, first_s = waiting["sent"][order], waiting["first"][order]
    until_s, own_s = until_s[order], own_s[order]
    step = -(-len(favoured) // _MAX_ASKED) or 1
    met = overtook = 0
    for at_s, served_s in favoured[["sent", "first"]][::step].tolist():
        present = np.flatnonzero(until_s[: np.searchsorted(sent_s, at_s)] > at_s)
        if not len(present):
            continue
        midst = present[len(present) // 2]
        behind_s = float(first_s[midst]) - served_s
        if abs(behind_s) > _TIE * own_s[midst]:
            met += 1
            overtook += int(behind_s > 0)
    return met, overtook


def ignored(found: Sequence[Overtakes]) -> list[Overtakes]:
    """Return those of all comparisons of a cell in which fewer than half overtook: by a sign test
    at 1 %, held over all of them by Holm's."""
    counted = [overtakes for overtakes in found if overtakes.met >= _LEAST]
    chances = [
        NormalDist().cdf(
            (overtakes.overtook + 0.5 - overtakes.met / 2) / (overtakes.met / 4) ** 0.5
        )
        for overtakes in counted
    ]
    order = sorted(range(len(counted)), key=chances.__getitem__)
    sure = itertools.takewhile(
        lambda place: chances[order[place]] <= _ALPHA / (len(counted) - place), range(len(counted))
    )
    return [counted[order[place]] for place in sure]
