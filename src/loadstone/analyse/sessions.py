"""The numbers of a cell's sessions: time for a task, in the model and waiting for tools, and which
of them ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from loadstone.core.arrays import mask_times
from loadstone.core.metrics import Latency
from loadstone.core.parts import SessionNumbers
from loadstone.core.plan import Plan
from loadstone.core.record import Target
from loadstone.core.sessions import time_tasks
from loadstone.core.statistics import distribution
from loadstone.core.vectors import Ints64
from loadstone.predict.simulator.client import whole_prompts
from loadstone.workload.schedule import promised_tokens

if TYPE_CHECKING:
    import pyarrow as pa

_HOUR_S = 3600.0


def session_numbers(
    plan: Plan, cell: int, scalars: pa.Table, duration_s: float | None
) -> SessionNumbers | None:
    """Compute the numbers of a cell's measured sessions; None where it has none. `scalars`: columns
    of its records, named as in RequestRecord.
    """
    rows = plan.rows(cell)
    if not plan.has_sessions or not len(rows):
        return None
    import pyarrow.compute as pc

    places = _places(scalars["request_id"])
    turn = plan.turn[plan.span(cell)]
    number = np.cumsum(turn <= 0) - 1
    sent, end = (np.full(len(rows), np.nan) for _ in range(2))
    done, failed = np.zeros(len(rows), bool), np.zeros(len(rows), bool)
    planned = places < len(rows)
    rows_sent = places[planned]
    sent[rows_sent] = mask_times(scalars["sent_s"].to_numpy())[planned]
    end[rows_sent] = mask_times(scalars["end_s"].to_numpy())[planned]
    status = scalars["status"].combine_chunks()
    done[rows_sent] = np.asarray(pc.is_in(status, value_set=_texts("ok", "short")))[planned]
    failed[rows_sent] = np.asarray(pc.is_in(status, value_set=_texts("error", "timeout")))[planned]
    begins = np.flatnonzero(turn <= 0)
    measured = (plan.phase[plan.span(cell)][begins] == 1) & ~np.isnan(sent[begins])
    whole = np.logical_and.reduceat(done, begins) & measured
    broken = np.logical_or.reduceat(failed, begins) & measured
    spans, busy = time_tasks(turn, sent, end, whole)
    calls = np.bincount(number)[measured]
    total = sum(spans)
    return SessionNumbers(
        sessions=int(measured.sum()),
        finished=len(spans),
        failed=int(broken.sum()),
        task_s=Latency.of(distribution(np.array(spans))),
        model_s=sum(busy) / len(busy) if busy else None,
        tool_s=(total - sum(busy)) / len(busy) if busy else None,
        waiting_share=1 - sum(busy) / total if total else None,
        per_hour=len(spans) / duration_s * _HOUR_S if duration_s else None,
        calls=float(calls.mean()) if len(calls) else None,
    )


def _places(request_ids: pa.ChunkedArray) -> Ints64:
    import pyarrow.compute as pc

    return np.asarray(pc.replace_substring_regex(request_ids, "^.*-", "").cast("int64").to_numpy())


def _texts(*values: str) -> pa.Array:
    import pyarrow as pa

    return pa.array(values)


def cacheable_shares(
    plan: Plan, cell: int, request_ids: pa.ChunkedArray, target: Target | None
) -> dict[int, float]:
    """Return the share of measured prompts, of these requests, that the plan shares with earlier
    calls, by turn and of all under −1; nothing where the plan does not say. What the target's
    template adds to a prompt is shared with it.
    """
    if plan.graph.live or not plan.has_sessions:
        return {}
    turn, phase = plan.turn[plan.span(cell)], plan.phase[plan.span(cell)]
    sent = np.zeros(len(turn), bool)
    places = _places(request_ids)
    sent[places[places < len(turn)]] = True
    measured = (phase == 1) & sent
    turn = turn[measured]
    template = target.overhead_tokens if target is not None else 0
    shared = promised_tokens(plan, cell)[measured]
    shared += template * (shared > 0)
    prompts = whole_prompts(plan, cell)[measured] + template
    by_turn = np.bincount(turn, shared) / np.maximum(1, np.bincount(turn, prompts))
    return {-1: float(shared.sum() / max(1, prompts.sum()))} | dict(enumerate(by_turn.tolist()))
