"""What two runs were asked: how many requests, from the first, their plans have alike, and how their loads ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loadstone.analyse.compare.sides import Place, Run, load_key
from loadstone.core import Plan, run_folder

_COMPARED = tuple(name for name in Plan.COLUMNS if name not in ("cell", "prompt"))
"""Columns of a plan that say what each request asks, but for its text."""


def has_plan(run: Run) -> bool:
    """Imported runs have none of their own."""
    return run.info.source != "imported"


def shared(a: Place, b: Place) -> int | None:
    """Numbers below which the requests of a cell are the same on both sides; None: all, the plans are one; 0: none.

    Lengths, texts and pauses follow from the seed in a sequence that a longer run goes on with: of runs that end by
    time, or by different counts, the first requests are the same.
    """
    if not (has_plan(a[0]) and has_plan(b[0])):
        return 0
    if a[0].info.plan_id == b[0].info.plan_id:
        return None
    plans = [run_folder.read_plan(run.folder) for run, _ in (a, b)]
    cells = [run.numbers[position] for run, position in (a, b)]
    warm = plans[0].warmup_count(cells[0])
    if any(getattr(plans[0], name) != getattr(plans[1], name) for name in ("seed", "exact_output", "chat")):
        return 0
    if warm != plans[1].warmup_count(cells[1]):
        return 0
    # How the warm-up was drawn depends on how long the run is; it is not compared.
    rows = [plan.rows(cell)[warm:] for plan, cell in zip(plans, cells, strict=True)]
    count = min(map(len, rows))
    firsts = [np.arange(each.start, each.start + count) for each in rows]
    same = np.ones(count, bool)
    for name in _COMPARED:
        on_a, on_b = (getattr(plan, name)[first] for plan, first in zip(plans, firsts, strict=True))
        same &= np.isclose(on_a, on_b, rtol=0, atol=1e-9, equal_nan=True)
    on_a, on_b = (_texts(plan, first) for plan, first in zip(plans, firsts, strict=True))
    same &= np.fromiter((x == y for x, y in zip(on_a, on_b, strict=True)), bool, count)
    return warm + (count if same.all() else int(same.argmin()))


def _texts(plan: Plan, rows: np.ndarray[Any, np.dtype[np.int64]]) -> list[Any]:
    """What each row asks that is no number: its text, or which shared blocks it is made of."""
    if plan.blocks is not None:
        return [plan.blocks.of(row).tobytes() for row in rows]
    return [plan.prompts[at] if at >= 0 else None for at in plan.prompt[rows]]


# --- said of the setup ----------------------------------------------------------------------------------------------


def ends(run: Run, loads: Sequence[Any]) -> list[str]:
    """After how long, or how many requests, each of these loads (their keys) ended; once where all are alike."""
    found = []
    for position, cell in enumerate(run.document["cells"]):
        load = cell["load"]
        if load_key(load) not in loads or load.get("profile") or load.get("process") == "trace":
            continue
        seconds = run.info.cells[run.numbers[position]].load.duration_s if position in run.numbers else None
        sent = cell["requests"].get("sent")
        if seconds is not None:
            found.append(f"{seconds:g} s")
        elif sent is not None:
            found.append(f"{sent} requests")
    return list(dict.fromkeys(found))


def by_time(run: Run) -> bool:
    """Whether a load of it goes on until a time: then how many requests there are is no choice of its user."""
    return any(cell.load.duration_s is not None for cell in run.info.cells)


def warmups(run: Run, loads: Sequence[Any]) -> list[int]:
    """Requests before the measured ones of each of these loads; once where all are alike."""
    plan = run_folder.read_plan(run.folder)
    cells = [
        run.numbers[position]
        for position, cell in enumerate(run.document["cells"])
        if position in run.numbers and load_key(cell["load"]) in loads
    ]
    return list(dict.fromkeys(plan.warmup_count(cell) for cell in cells))


def common_loads(a: Sequence[Run], b: Sequence[Run]) -> list[Any]:
    """Keys of the loads that are on both sides."""
    keys = [{load_key(cell["load"]) for run in side for cell in run.document["cells"]} for side in (a, b)]
    return list(keys[0] & keys[1])
