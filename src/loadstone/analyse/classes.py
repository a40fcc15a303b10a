"""Divides a cell's numbers by class of traffic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from loadstone.analyse.metrics import label_rows, measure_part, meets_bounds
from loadstone.analyse.slo import request_bounds
from loadstone.core import arrays
from loadstone.core.bounds import Bound
from loadstone.core.plan import Load, Plan
from loadstone.core.summary import ClassPart
from loadstone.core.vectors import Array, Ints64

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = (*arrays.COLUMNS, "http_status", "error")
_TURNED_AWAY = (429, 503)
_TURNED_AWAY_WORDS = "queue is full|higher priority|rejected|too many requests|rate limit"
"""Of an error that comes within a stream, after HTTP 200."""


def classes_of(
    read: Iterable[pa.RecordBatch],
    plan: Plan,
    cell: int,
    load: Load,
    duration_s: float | None,
    streams: bool = True,
) -> list[ClassPart]:
    """Compute the numbers of each class of a cell's measured requests; none where requests are of
    one kind. `read`: the records, with COLUMNS."""
    if plan.traffic_class is None:
        return []
    turned_away: list[Array] = []

    def keys(batch: pa.RecordBatch) -> Ints64:
        turned_away.append(_find_turned_away(batch))
        return np.fromiter(_class_numbers(batch, plan, cell), np.int64, batch.num_rows)

    rows, label = label_rows(read, keys)
    is_rejected = np.concatenate([*turned_away, np.zeros(0, np.bool_)])
    measured = rows["measured"]
    tokens = float(np.nansum(rows["tokens"][measured]))
    planned_rows = slice(plan.rows(cell).start, plan.rows(cell).stop)
    planned = plan.traffic_class[planned_rows][plan.phase[planned_rows] == 1]
    return [
        _class_part(
            plan,
            number,
            rows[label == number],
            _Whole(load, duration_s, int(measured.sum()), tokens, streams),
            planned_share=float(np.mean(planned == number)),
            rejected=int((is_rejected & (label == number)).sum()),
        )
        for number in range(len(plan.classes))
    ]


class _Whole(msgspec.Struct, frozen=True):
    """The cell that a class is a part of."""

    load: Load
    duration_s: float | None
    sent: int
    tokens: float
    streams: bool


def _class_part(
    plan: Plan, number: int, rows: Array, whole: _Whole, planned_share: float, rejected: int
) -> ClassPart:
    of_class = plan.classes[number]
    part = measure_part(rows, whole.tokens, whole.streams)
    bounds = request_bounds([Bound(*bound) for bound in of_class.slo.items()])
    is_bounded = bool(len(rows)) and any(limit is not None for limit in bounds)
    met = int(meets_bounds(rows, whole.load, bounds).sum()) if is_bounded else 0
    return ClassPart(
        name=of_class.name,
        share=len(rows) / whole.sent if whole.sent else None,
        planned_share=planned_share,
        slots=of_class.slots,
        priority=of_class.priority,
        rejected=rejected,
        attainment=met / len(rows) if is_bounded else None,
        goodput_per_s=arrays.divide(met, whole.duration_s) if is_bounded else None,
        requests_per_s=arrays.divide(part.requests.completed, whole.duration_s),
        output_tokens_per_s=arrays.divide(part.output_tokens, whole.duration_s),
        **msgspec.structs.asdict(part),
    )


def _class_numbers(batch: pa.RecordBatch, plan: Plan, cell: int) -> Iterator[int]:
    """Yield the place of each record's class; −1 where the plan has no such request."""
    for request_id in batch.column("request_id").to_pylist():
        index = (request_id or "").rpartition("-")[2]
        try:
            yield plan.class_of(plan.row(cell, int(index)))
        except (ValueError, IndexError):
            yield -1


def _find_turned_away(batch: pa.RecordBatch) -> Array:
    """Mark the records of requests that the server did not take: by its status, or within a
    stream."""
    import pyarrow as pa
    import pyarrow.compute as pc

    by_status = pc.is_in(batch.column("http_status"), value_set=pa.array(_TURNED_AWAY))
    in_words = pc.match_substring_regex(batch.column("error"), _TURNED_AWAY_WORDS, ignore_case=True)
    failed = pc.equal(batch.column("status"), "error")
    flags = pc.and_kleene(failed, pc.or_kleene(by_status, in_words))
    return np.asarray(pc.fill_null(flags, False).to_numpy(zero_copy_only=False))
