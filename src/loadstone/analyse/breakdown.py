"""Divides a cell's numbers by turn of its sessions, by server of its fleet, by piece of its load's
profile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from loadstone.analyse.metrics import parts
from loadstone.analyse.sessions import cacheable_shares
from loadstone.core import run_folder
from loadstone.core.arrays import COLUMNS
from loadstone.core.parts import PiecePart, ReplicaPart, TurnPart
from loadstone.core.plan import Load, Plan
from loadstone.core.record import RunInfo
from loadstone.core.vectors import Ints64
from loadstone.workload.draw import WARMUP_S

if TYPE_CHECKING:
    import pyarrow as pa


def breakdown_of(
    folder: Path, info: RunInfo, plan: Plan, cell: int, load: Load, streams: bool
) -> dict[str, Any]:
    """Compute the cell's numbers `by_turn`, `by_replica` of a fleet, `by_piece` of a profile.

    A list is empty where the cell has no such parts.
    """

    def read() -> Iterator[pa.RecordBatch]:
        return run_folder.read_records(folder, cell, COLUMNS)

    def by(
        key: Callable[[pa.RecordBatch], Ints64],
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, part in parts(read, key, streams=streams).items():
            yield number, msgspec.structs.asdict(part)

    turns: list[TurnPart] = []
    replicas: list[ReplicaPart] = []
    pieces: list[PiecePart] = []
    if plan.has_sessions:
        request_ids = run_folder.read_columns(folder, ("request_id",), cell)["request_id"]
        shares = cacheable_shares(plan, cell, request_ids, info.target)
        for turn, part in by(_whole("turn")):
            tokens = part["input_tokens"]
            shared = round(shares[turn] * tokens) if turn in shares and tokens is not None else None
            turns.append(TurnPart(turn=turn, shared_input_tokens=shared, **part))
    urls = info.target.urls if info.target is not None else []
    if len(urls) > 1:
        replicas.extend(
            ReplicaPart(replica=number, url=urls[number] if number < len(urls) else None, **part)
            for number, part in by(_whole("replica"))
        )
    if load.profile:
        edges = np.cumsum([0.0, *(seconds for _, _, seconds in load.profile)])
        begin_s = _profile_start_s(folder, info, plan, cell, load)

        def piece(batch: pa.RecordBatch) -> Ints64:
            at_s = batch.column("intended_s").to_numpy(zero_copy_only=False) - begin_s
            places: Ints64 = np.searchsorted(edges, at_s, side="right").astype(np.int64) - 1
            return places.clip(0, len(load.profile) - 1)

        for number, part in by(piece):
            begin, end, seconds = load.profile[number]
            rate = part["output_tokens"] / seconds
            pieces.append(
                PiecePart(begin=begin, end=end, seconds=seconds, output_tokens_per_s=rate, **part)
            )
    return {"by_turn": turns, "by_replica": replicas, "by_piece": pieces}


def _whole(column: str) -> Callable[[pa.RecordBatch], Ints64]:
    return lambda batch: (
        batch.column(column).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    )


def _profile_start_s(folder: Path, info: RunInfo, plan: Plan, cell: int, load: Load) -> float:
    """Find when the profile began: after the warm-up, for a rate by its plan, for a concurrency
    with the first request.
    """
    import pyarrow.compute as pc

    columns = run_folder.read_columns(folder, ["phase", "intended_s"], cell)
    measured = columns["intended_s"].to_numpy()[np.array(pc.equal(columns["phase"], "measure"))]
    if load.is_closed or info.cells[cell].start_s is None:
        return float(measured.min()) if len(measured) else 0.0
    rows = plan.span(cell)
    planned = plan.intended_s[rows][plan.phase[rows] == 1]
    # The plan's times count from the cell's start; a profile's first piece begins when the warm-up
    # is over.
    lead_s = WARMUP_S if plan.warmup_count(cell) else 0.0
    return float(np.nanmin(measured) - np.nanmin(planned) + lead_s)
