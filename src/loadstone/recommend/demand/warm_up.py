"""The requests before those that are judged: a plan is judged as it runs after its warm-up."""

import math
from dataclasses import replace

import numpy as np

from loadstone.core.plan import Plan

_PACE, _REST = 4.0, 10.0
"""A warm-up gives each prompt so many times its own time, and ends so many of these before what is
measured: engines that are slower than predicted are idle by then, too."""
_MOST = 12_000
_SHARE = 0.25


def begin_busy(part: Plan, under_way: float) -> Plan:
    """Return requests at a rate, of which as many as are under way are not measured: the first,
    which found idle engines."""
    if not part.cells[0].is_open:
        return part
    phase = part.phase.copy()
    phase[: math.ceil(min(under_way, _SHARE * len(part)))] = 0
    return replace(part, phase=phase)


def warm_caches(part: Plan, replicas: int, prompt_s: float) -> Plan:
    """Return requests after others that bring each shared prefix once for each replica, and want a
    token: caches then hold what they hold for ever."""
    groups, first = np.unique(part.prefix_group, return_index=True)
    first = first[groups >= 0][-(_MOST // replicas) :]
    if not len(first) or part.has_sessions:
        return part
    rows = np.concatenate([np.repeat(first, replicas), np.arange(len(part))])
    count, load = len(rows) - len(part), part.cells[0]
    start_s = np.arange(count) * _PACE * prompt_s
    intended_s = np.concatenate([start_s, part.intended_s + start_s[-1] + _REST * prompt_s])
    phase, output_tokens = part.phase[rows], part.output_tokens[rows]
    phase[:count], output_tokens[:count] = 0, 1
    if load.is_closed:
        intended_s[:] = np.nan
    return part.take(
        rows,
        phase=phase,
        output_tokens=output_tokens,
        intended_s=intended_s,
        cell=np.zeros(len(rows), np.int32),
    )
