"""A cell's numbers by turn of its sessions, by server of its fleet, by piece of its load's profile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadstone.analyse.metrics import parts
from loadstone.core import Load, Plan, RunInfo, run_folder
from loadstone.core.arrays import COLUMNS
from loadstone.workload.schedule import WARMUP_S

if TYPE_CHECKING:
    import pyarrow as pa


def breakdown_of(
    folder: Path, info: RunInfo, plan: Plan, cell: int, load: Load, streams: bool
) -> dict[str, list[dict[str, Any]]]:
    """The cell's numbers by turn, by server of a fleet, by piece of a profile: whichever there are."""

    def read() -> Iterator[pa.RecordBatch]:
        return run_folder.read_records(folder, cell, (*COLUMNS, "turn", "replica"))

    found: dict[str, list[dict[str, Any]]] = {}
    if plan.has_sessions:
        by_turn = parts(read, _whole("turn"), streams=streams)
        found["by_turn"] = [{"turn": turn, **msgspec.to_builtins(part)} for turn, part in by_turn.items()]
    urls = info.target.urls if info.target is not None else []
    if len(urls) > 1:
        by_replica = parts(read, _whole("replica"), streams=streams)
        found["by_replica"] = [
            {"replica": number, "url": urls[number] if number < len(urls) else None, **msgspec.to_builtins(part)}
            for number, part in by_replica.items()
        ]
    if load.profile:
        edges = np.cumsum([0.0, *(seconds for _, _, seconds in load.profile)])
        begin_s = _profile_start_s(folder, info, plan, cell, load)

        def piece(batch: pa.RecordBatch) -> NDArray[np.int64]:
            at_s = batch.column("intended_s").to_numpy(zero_copy_only=False) - begin_s
            at: NDArray[np.int64] = np.searchsorted(edges, at_s, side="right").astype(np.int64) - 1
            return at.clip(0, len(load.profile) - 1)

        found["by_piece"] = [
            {
                "from": load.profile[number][0],
                "to": load.profile[number][1],
                "seconds": load.profile[number][2],
                "output_tokens_per_s": part.output_tokens / load.profile[number][2],
                **msgspec.to_builtins(part),
            }
            for number, part in parts(read, piece, streams=streams).items()
        ]
    return found


def _whole(column: str) -> Callable[[pa.RecordBatch], NDArray[np.int64]]:
    return lambda batch: batch.column(column).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)


def _profile_start_s(folder: Path, info: RunInfo, plan: Plan, cell: int, load: Load) -> float:
    """When the profile began: after the warm-up, for a rate by its plan, for a concurrency with the first request."""
    import pyarrow.compute as pc

    columns = run_folder.read_columns(folder, ["phase", "intended_s"], cell)
    measured = columns["intended_s"].to_numpy()[np.array(pc.equal(columns["phase"], "measure"))]
    if load.kind == "concurrency" or info.cells[cell].start_s is None:
        return float(measured.min()) if len(measured) else 0.0
    rows = plan.rows(cell)
    planned = plan.intended_s[rows.start : rows.stop][plan.phase[rows.start : rows.stop] == 1]
    # The plan's times count from the cell's start; a profile's first piece begins when the warm-up is over.
    lead_s = WARMUP_S if plan.warmup_count(cell) else 0.0
    return float(np.nanmin(measured) - np.nanmin(planned) + lead_s)
