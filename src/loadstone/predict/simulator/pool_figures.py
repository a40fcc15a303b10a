"""Figures of the pools of a simulated cell: what each did, and which was full."""

import math

import msgspec
import numpy as np

from loadstone.core.settings import PooledCell
from loadstone.predict.simulator.latencies import answered_rows
from loadstone.predict.simulator.run import CellRun, PoolTimes

_FULL_BUSY = 0.85
"""Share of the time from which on encoders and prefill workers count as full: beyond it the queue
before them grows fast."""
_FULL_WAIT = 0.1
"""Share of E2E that a wait takes where what is waited for counts as full."""


def describe_pools(run: CellRun) -> PooledCell | None:
    """Tell what the pools did in a cell that is over, and which of them was full; None: it had
    none."""
    behind = None if run.pool_times is None else _describe_pair(run, run.pool_times)
    work = run.encoders
    if work is None:
        return behind
    busy = work.busy_share()
    cell = behind or PooledCell(limit="both")
    return msgspec.structs.replace(
        cell,
        encode_busy=busy,
        encode_s=work.request_s / max(1, work.requests),
        limit="encode" if busy > _FULL_BUSY else cell.limit,
    )


def _describe_pair(run: CellRun, times: PoolTimes) -> PooledCell:
    length_s = max(1e-9, run.over_s - run.start_s)
    rows = answered_rows(run)
    e2e_s = float(np.mean(rows["end"] - rows["sent"])) if len(rows) else math.inf
    transfers = max(1, times.transfers)
    room_s, waited_s = times.room_s / transfers, times.waited_s / transfers
    busy = times.busy_s / (times.workers * length_s)
    if (
        busy > _FULL_BUSY
    ):  # first: who waits for it may have room in the decode pool already, and keep others out
        limit = "prefill"
    elif room_s > _FULL_WAIT * e2e_s:
        limit = "decode"
    else:
        limit = "link" if waited_s > _FULL_WAIT * e2e_s else "none"
    return PooledCell(
        prefill_tokens_per_s=times.prompt_tokens / length_s,
        decode_tokens_per_s=float(rows["tokens"].sum()) / length_s,
        prefill_busy=busy,
        transfers=times.transfers,
        room_s=room_s,
        prefill_s=times.prefill_s / transfers,
        link_s=times.link_s / transfers,
        limit=limit,
    )
