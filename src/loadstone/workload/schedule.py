"""From a workload and loads to a Plan: which requests, how long, when. Everything is drawn here, before the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from loadstone.core import Blocks, Load, Plan
from loadstone.workload import trace
from loadstone.workload.arrivals import default_warmup
from loadstone.workload.cell_rows import drawn_rows, trace_rows
from loadstone.workload.dataset import Dataset
from loadstone.workload.lengths import Length, Synthetic
from loadstone.workload.session import Sessions
from loadstone.workload.trace import Trace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Workload = Synthetic | Dataset | Trace


def make_plan(
    workload: Workload,
    loads: Sequence[Load],
    *,
    seed: int = 0,
    requests: Sequence[int] | None = None,
    warmup: int | None = None,
    output: Length | None = None,
    sessions: Sessions | None = None,
    exact: bool = True,
) -> Plan:
    """The plan of a run with one cell per load.

    requests  measured requests per cell; None: `default_requests`, or the duration's worth, or the whole trace
    warmup    requests (sessions) per cell before the measured ones; None: `default_warmup`
    output    for datasets: demanded lengths where the file states none
    sessions  turns per session and pauses; loads then count sessions, `requests` still requests
    exact     lengths of answers are demanded, where they are said
    Raises InputError where a dataset has no length to ask for.
    """
    import numpy as np

    columns: dict[str, list[NDArray[Any]]] = {name: [] for name in Plan.COLUMNS}
    traced: list[NDArray[np.int64]] = []
    for cell, load in enumerate(loads):
        asked = requests[cell] if requests is not None else None
        measured = workload.count if isinstance(workload, Trace) and load.process == "trace" else None
        warm = default_warmup(load, measured if asked is None else asked) if warmup is None else warmup
        if isinstance(workload, Trace):
            rows = trace_rows(workload, load, warm, asked, seed, cell)
            traced.append(rows.pop("line"))
        else:
            rows = drawn_rows(workload, load, warm, asked, sessions, output, seed, cell)
        count = len(rows["intended_s"])
        columns["cell"].append(np.full(count, cell, np.int32))
        for name, values in rows.items():
            columns[name].append(values)
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    prompts: list[str] = []
    if not isinstance(workload, Synthetic) and workload.prompts:
        given = _turn_texts(workload) if sessions is not None and isinstance(workload, Dataset) else workload.prompts
        joined["prompt"], prompts = _by_first_use(joined["prompt"], given)
    chats = isinstance(workload, Dataset) and (sessions is not None or workload.chat)
    return Plan(
        seed=seed,
        cells=tuple(loads),
        workload=describe(workload, output, sessions),
        exact_output=exact and (isinstance(workload, Synthetic | Trace) or output is not None),
        prompts=prompts,
        chat=chats,
        blocks=_blocks(workload, np.concatenate(traced)) if isinstance(workload, Trace) else None,
        **joined,
    )


def _turn_texts(workload: Dataset) -> list[str]:
    """Each turn's message as a JSON array, a system message before the first; all conversations end to end."""
    import msgspec

    texts = []
    for turns, system in zip(workload.turns, workload.system, strict=True):
        for number, text in enumerate(turns):
            messages = [{"role": "user", "content": text}]
            if number == 0 and system is not None:
                messages.insert(0, {"role": "system", "content": system})
            texts.append(msgspec.json.encode(messages).decode())
    return texts


def _blocks(workload: Trace, lines: NDArray[np.int64]) -> Blocks | None:
    """The blocks of the plan's rows; the warm-up (line −1) has none."""
    import numpy as np

    if not workload.block_tokens:
        return None
    # One row more, without blocks, for the lines that are −1.
    offsets = np.concatenate([workload.block_offsets, workload.block_offsets[-1:]])
    return Blocks(workload.block_tokens, offsets, workload.block_ids).take(lines % (len(offsets) - 1))


def promised_tokens(plan: Plan, cell: int) -> NDArray[np.int32]:
    """Tokens at the start of each of a cell's prompts that its plan shares with earlier ones on purpose.

    A group's prefix, or the leading blocks that any earlier request of the cell had too: what a prefix cache without
    bounds could give. Later turns of a session share all that was said, which only the answers tell: −1.
    """
    import numpy as np

    rows = plan.rows(cell)
    shared = plan.prefix_tokens[rows.start : rows.stop].copy()
    if plan.blocks is not None:
        lengths = plan.input_tokens[rows.start : rows.stop]
        blocks = plan.blocks.take(np.arange(rows.start, rows.stop))
        shared = trace.promised_tokens(blocks.offsets, blocks.ids, blocks.tokens, lengths)
    return np.where(plan.turn[rows.start : rows.stop] > 0, -1, shared).astype(np.int32)


def _by_first_use(picks: NDArray[np.int32], prompts: list[str]) -> tuple[NDArray[np.int32], list[str]]:
    import numpy as np

    used, first, inverse = np.unique(picks, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(used), np.int32)
    rank[order] = np.arange(len(used))
    return rank[inverse].astype(np.int32), [prompts[used[i]] for i in order]


def describe(workload: Workload, output: Length | None, sessions: Sessions | None = None) -> dict[str, Any]:
    """The workload as the run's papers name it."""
    import msgspec

    if isinstance(workload, Synthetic):
        described = msgspec.to_builtins(workload)
    elif isinstance(workload, Trace):
        described = {
            "kind": "trace",
            "format": workload.format,
            "sha256": workload.sha256,
            "requests": workload.count,
            "skipped": workload.skipped,
            "simultaneous": workload.simultaneous,
        }
    else:
        described = {
            "kind": "dataset",
            "format": workload.format,
            "sha256": workload.sha256,
            "prompts": len(workload.prompts),
            "skipped": workload.skipped,
            "bad": workload.bad,
            "output": msgspec.to_builtins(output),
        }
    return described if sessions is None else {**described, "sessions": msgspec.to_builtins(sessions)}
