"""Judges if prefill and decode in pools of their own pay, under the asked load and others."""

import dataclasses
import math
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

import msgspec
import numpy as np

from loadstone.core.units import show_gpus
from loadstone.recommend.demand.planning import Planning
from loadstone.recommend.judge.choices import PlanChoice, rank_choices
from loadstone.recommend.judge.errors import UncertainFinalist

_LOADS = tuple(2.0 ** (exponent / 2) for exponent in range(-8, 9))
"""Multiples of the asked load under which plans with pools and without are compared."""


class SplitAtLoad(msgspec.Struct, frozen=True):
    """Says whether the best plan with pools is the better one under a load, as Split does."""

    load: float
    pays: bool
    probability: float
    equal: float


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """Says whether prefill and decode in pools of their own pay: whether the first plan has them.

    probability  that the split plan is the better one, by its cost and what broken bounds cost,
                 over the errors of the model; `equal`: that it is as good
    split, whole the best plan with pools and without, with its GPUs
    limit        what is full where the split one breaks its bounds: prefill, decode, link, none
    by_load      the same by what the finalists carry, under loads around the asked one, in the
                 traffic's unit
    pays_from    the least of these from which on it pays under all; None: it does not under the
                 largest
    pays_from_probability  that it is the better one there
    """

    pays: bool
    probability: float
    equal: float
    split: str
    whole: str
    limit: str
    by_load: list[SplitAtLoad] = []
    pays_from: float | None = None
    pays_from_probability: float | None = None


class _Pair(NamedTuple):
    """The best plan with pools, the best without, and which is better."""

    split: PlanChoice
    whole: PlanChoice
    found: SplitAtLoad


def compare_split(
    choices: Sequence[PlanChoice], finalists: Sequence[UncertainFinalist], planning: Planning
) -> Split | None:
    """Say whether the best plan with pools is better than the best without, and in how many draws
    of the model's joint errors, under the asked load and others. `choices`: the best first; None
    where one of both kinds carries the traffic under no load.
    """
    traffic = planning.traffic
    pair = _compare(choices, traffic.demand)
    if pair is None:
        return None
    compared = [
        pair.found if times == 1 else _compare_at(times, finalists, planning) for times in _LOADS
    ]
    by_load = [found for found in compared if found is not None]
    paying = list(takewhile(lambda found: found.pays, reversed(by_load)))
    return Split(
        pays=pair.found.pays,
        probability=pair.found.probability,
        equal=pair.found.equal,
        split=f"{pair.split.shorthand} ({show_gpus(pair.split.gpus)})",
        whole=f"{pair.whole.shorthand} ({show_gpus(pair.whole.gpus)})",
        limit=pair.split.finalist.curve.first_broken(traffic.bounds).limit or "none",
        by_load=by_load,
        pays_from=paying[-1].load if paying else None,
        pays_from_probability=paying[-1].probability if paying else None,
    )


def _compare(ranked: Sequence[PlanChoice], load: float) -> _Pair | None:
    """Compare the best plan with pools and the best without; None where one of both is missing."""
    best: dict[bool, PlanChoice] = {}
    for choice in ranked:
        best.setdefault(choice.finalist.deployment.is_split, choice)
    if len(best) < 2:
        return None
    split, whole = best[True], best[False]
    better = float(np.mean(split.regrets < whole.regrets))
    equal = float(np.mean(split.regrets == whole.regrets))
    found = SplitAtLoad(load, ranked[0] is split, round(better, 3), round(equal, 3))
    return _Pair(split, whole, found)


def _compare_at(
    times: float, finalists: Sequence[UncertainFinalist], planning: Planning
) -> SplitAtLoad | None:
    """Compare both kinds under a multiple of the load, by what the finalists carry, with more GPUs
    for more; None where there is not one request under way. By throughput all GPUs serve under any
    load."""
    traffic, options = planning.traffic, planning.options
    load = traffic.demand * times
    if not traffic.is_open:
        load = float(round(load))
        if load < 1:
            return None
    if not planning.by_throughput:
        gpus_max = math.ceil(options.search.gpus_max * max(1.0, times))
        search = dataclasses.replace(options.search, gpus_max=gpus_max)
        options = dataclasses.replace(options, search=search)
    loaded = dataclasses.replace(
        planning, options=options, traffic=dataclasses.replace(traffic, demand=load)
    )
    pair = _compare(rank_choices(finalists, loaded), load)
    return None if pair is None else pair.found
