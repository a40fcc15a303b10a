"""A Plan is drawn from a workload and loads: which requests, how long, when. Everything is drawn
here, before the run.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from loadstone.core.calls import CallGraph
from loadstone.core.plan import Load, Plan
from loadstone.core.vectors import Ints32
from loadstone.workload.arrivals import default_warmup
from loadstone.workload.block_tree import BlockTree
from loadstone.workload.draw import Draw, Workload
from loadstone.workload.lengths import Length, Sessions
from loadstone.workload.prompts import text_tokens


def make_plan(
    workload: Workload,
    loads: Sequence[Load],
    *,
    seed: int = 0,
    requests: Sequence[int] | None = None,
    warmup: int | None = None,
    output: Length | None = None,
    sessions: Sessions | None = None,
) -> Plan:
    """Make the plan of a run with one cell per load.

    requests  measured requests per cell; None: `default_requests`, or the duration's worth, or the
              whole trace
    warmup    requests (sessions) per cell before the measured ones; None: `default_warmup`
    output    for datasets: demanded lengths where the file states none
    sessions  turns per session and pauses; loads then count sessions, `requests` still requests
    Raises InputError where a dataset has no length to ask for.
    """
    draws = []
    for cell, load in enumerate(loads):
        requested = workload.length(load) if requests is None else requests[cell]
        warm = default_warmup(load, requested) if warmup is None else warmup
        draws.append(Draw(load, cell, seed, requested, warm, output, sessions))
    cells = [workload.rows(draw) for draw in draws]
    rows = {name: np.concatenate([columns[name] for columns in cells]) for name in cells[0]}
    counts = [len(columns["turn"]) for columns in cells]
    rows["cell"] = np.repeat(np.arange(len(cells), dtype=np.int32), counts)
    described = workload.describe(output)
    if sessions is not None:
        described["sessions"] = msgspec.to_builtins(sessions)
    closed = [draw for draw in draws if draw.load.is_closed and draw.load.value > 1]
    if closed:
        staggered = all(draw.staggers for draw in closed)
        described["start"] = "staggered" if staggered else "together"
    contents: dict[str, Any] = {name: rows[name] for name in Plan.COLUMNS} | {
        "graph": CallGraph.of_turns(rows["turn"]),
        "exact_output": True,
    }
    return Plan(
        seed=seed,
        cells=tuple(loads),
        workload=described,
        **(contents | workload.finish(rows, draws[0])),
    )


def promised_tokens(plan: Plan, cell: int) -> Ints32:
    """Count the tokens at the start of each of a cell's prompts that its plan shares with earlier
    ones on purpose.

    A group's prefix, or the leading blocks that any earlier request of the cell had too: what a
    prefix cache without bounds could give. Later turns of a session share all that was said, which
    only the answers tell: −1; of sessions of calls 0 where the answers are live.
    """
    rows, cells_rows, blocks = plan.rows(cell), plan.span(cell), plan.blocks
    if blocks is None:
        promised = np.where(plan.turn[cells_rows] > 0, -1, plan.prefix_tokens[cells_rows])
        return promised.astype(np.int32)
    if plan.graph.live:
        return np.zeros(len(rows), np.int32)
    alike = BlockTree(blocks, rows, plan.graph.copy).known
    if blocks.tokens:
        shared = np.array(alike, np.int64) * blocks.tokens
        return np.minimum(shared, plan.input_tokens[cells_rows]).astype(np.int32)
    sizes = np.array([text_tokens(text) for text in plan.prompts])
    pairs = zip(rows, alike, strict=True)
    return np.array([sizes[blocks.take_row(row)[:count]].sum() for row, count in pairs], np.int32)
