"""Parts of a plan of one cell: some of its requests, a replica's share of a trace, faster
arrivals."""

from dataclasses import replace

import msgspec
import numpy as np

from loadstone.core.plan import Plan
from loadstone.core.vectors import Floats, Ints64

_LEAST_REQUESTS = 300
_ROUNDS = 4
"""Requests of a cell's beginning, for each slot of a closed loop."""
_MAX_REQUESTS = 4096


def beginning(plan: Plan, cell: int, least: int = _LEAST_REQUESTS) -> Plan:
    """Cut a plan of one cell: the warm-up of that one and its first requests, as many as settle it;
    `least`, where there are so many."""
    load = plan.cells[cell]
    rows = plan.rows(cell)
    wanted = least if load.is_open else max(least, int(_ROUNDS * load.value))
    count = min(len(rows), plan.warmup_count(cell) + min(wanted, _MAX_REQUESTS))
    while count < len(rows) and plan.turn[rows.start + count] > 0:
        count += 1  # sessions are whole
    picked = np.arange(rows.start, rows.start + count)
    if load.slots:
        # By count, also of a cell by time: what goes round after the part is not looked at.
        load = msgspec.structs.replace(load, duration_s=None)
    return plan.take(picked, cells=(load,), cell=np.zeros(count, np.int32))


def take_requests(
    plan: Plan, rows: Ints64, start_s: float = 0.0, rate: float | None = None
) -> Plan:
    """Return a plan of these requests alone, with times from `start_s` on. `rate`: of its load;
    None: as it was."""
    cell = plan.cells[0] if rate is None else msgspec.structs.replace(plan.cells[0], value=rate)
    intended_s = plan.intended_s[rows] - start_s
    return plan.take(rows, cells=(cell,), intended_s=intended_s, cell=np.zeros(len(rows), np.int32))


def hasten(plan: Plan, factor: float) -> Plan:
    """Return the plan with arrivals `factor` times as fast, and pauses as much shorter: what it is
    on the clock of an engine that is so many times slower."""
    cells = tuple(
        msgspec.structs.replace(
            load, value=load.value * factor, time_scale=load.time_scale / factor
        )
        if load.is_open
        else load
        for load in plan.cells
    )
    return replace(
        plan, cells=cells, intended_s=plan.intended_s / factor, think_s=plan.think_s / factor
    )


def thin(plan: Plan, share: float) -> Plan:
    """Return what a router sends to a part of a fleet: that share of the requests, evenly, at their
    own times.

    A share above 1 is of several such crowds: each sends the same lengths, a moment later and with
    its own prompts.
    """
    crowds = max(1, int(np.ceil(share - 1e-9)))
    if crowds > 1:
        plan = _multiply(plan, crowds)
    counted = np.arange(len(plan) + 1) * (share / crowds)
    rows = np.flatnonzero(np.diff(np.floor(counted + 0.5)) > 0)
    rows = rows if len(rows) else np.array([0])
    return take_requests(plan, rows, rate=plan.cells[0].value * share / crowds)


def _multiply(plan: Plan, crowds: int) -> Plan:
    """Return the requests of several crowds. The n-th comes n/crowds of the mean gap later."""
    count, gap_s = len(plan), 1 / plan.cells[0].value
    later_s = np.repeat(np.arange(crowds) * gap_s / crowds, count)
    rows = np.tile(np.arange(count), crowds)
    times_s = plan.intended_s[rows] + later_s
    order = np.argsort(times_s, kind="stable")
    crowded = take_requests(plan, rows[order], rate=plan.cells[0].value * crowds)
    crowded = replace(crowded, intended_s=times_s[order])
    crowd = np.repeat(np.arange(crowds), count)[order].astype(np.int32)
    if crowded.blocks is not None:
        blocks = crowded.blocks
        apart = np.repeat(crowd, np.diff(blocks.offsets)) * (int(blocks.ids.max(initial=0)) + 1)
        crowded = replace(
            crowded, blocks=replace(blocks, ids=(blocks.ids + apart).astype(np.int32))
        )
    groups = crowded.prefix_group + crowd * (int(plan.prefix_group.max(initial=0)) + 1)
    return replace(
        crowded, prefix_group=np.where(crowded.prefix_group < 0, -1, groups).astype(np.int32)
    )


def find_busiest(plan: Plan, work: Floats, count: int, windows: int) -> list[Ints64]:
    """Return the windows of equal length, apart from one another, in which requests ask for most
    `work`: each of some `count` requests, the busiest first. The whole plan where it has no more.
    """
    if len(plan) <= count:
        return [np.arange(len(plan))]
    times_s = plan.intended_s
    span_s = float(times_s[-1] - times_s[0]) * count / len(plan)
    ends = np.searchsorted(times_s, times_s + span_s, side="right")
    total = np.concatenate([[0.0], np.cumsum(work)])
    wanted = total[ends] - total[:-1]
    wanted[times_s > times_s[-1] - span_s] *= (
        0.999  # a window that the trace's end cuts off is none to prefer
    )
    found: list[Ints64] = []
    for _ in range(windows):
        first = int(np.argmax(wanted))
        if wanted[first] <= 0:
            break
        found.append(np.arange(first, ends[first]))
        wanted[(times_s < times_s[first] + span_s) & (times_s > times_s[first] - span_s)] = 0.0
    return found
