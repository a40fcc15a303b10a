"""Divides a cell's numbers by class of traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from loadstone.analyse.metrics import label_rows, measure_part, meets_bounds
from loadstone.analyse.overtaking import find_overtakes
from loadstone.analyse.slo import request_bounds
from loadstone.core import arrays
from loadstone.core.bounds import Bound, split_bound
from loadstone.core.metrics import Metrics
from loadstone.core.parts import ClassPart, Part
from loadstone.core.plan import Load, Plan
from loadstone.core.summary import CellSummary
from loadstone.core.vectors import Array, Ints64

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = (*arrays.COLUMNS, "cell", "http_status", "error")
IN_STREAM = "in stream"
"""The reason of a rejection that came as an event, after HTTP 200."""
_TURNED_AWAY = (429, 503)
_TURNED_AWAY_WORDS = "queue is full|higher priority|rejected|too many requests|rate limit"
"""Of such an error."""
_NOT_FOUND = 404
_UNKNOWN_WORDS = r"(?:model|lora|adapter).{0,80}(?:not exist|not found|not loaded|unknown)"
"""Of an error of a model or an adapter that the server does not have."""


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
    rejections: list[str | None] = []
    unknown: list[bool] = []

    def keys(batch: pa.RecordBatch) -> Ints64:
        unknown.extend(_find_unknown(batch).to_pylist())
        rejections.extend(rejections_of(batch).to_pylist())
        return class_numbers(batch, plan)

    rows, label = label_rows(read, keys)
    rejected = Counter(
        (number, reason)
        for number, reason in zip(label.tolist(), rejections, strict=True)
        if reason is not None
    )
    of_unknown = Counter(label[np.array(unknown, np.bool_)].tolist())
    overtakes = find_overtakes(rows, label, plan.classes)
    measured = rows["measured"]
    tokens = float(np.nansum(rows["tokens"][measured]))
    planned_rows = plan.span(cell)
    planned = plan.traffic_class[planned_rows][plan.phase[planned_rows] == 1]
    parts = [
        _class_part(
            plan,
            number,
            rows[label == number],
            _Whole(load, duration_s, int(measured.sum()), tokens, streams),
            planned_share=float(np.mean(planned == number)),
            rejected={
                reason: count for (owner, reason), count in rejected.items() if owner == number
            },
            unknown_model=of_unknown[number],
        )
        for number in range(len(plan.classes))
    ]
    return [
        msgspec.structs.replace(part, overtakes=overtakes.get(number, []))
        for number, part in enumerate(parts)
    ]


class _Whole(msgspec.Struct, frozen=True):
    """The cell that a class is a part of."""

    load: Load
    duration_s: float | None
    sent: int
    tokens: float
    streams: bool


def _class_part(
    plan: Plan,
    number: int,
    rows: Array,
    whole: _Whole,
    planned_share: float,
    rejected: dict[str, int],
    unknown_model: int,
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
        model=of_class.model or of_class.adapter,
        rejected=sum(rejected.values()),
        rejected_for=rejected,
        unknown_model=unknown_model,
        attainment=met / len(rows) if is_bounded else None,
        goodput_per_s=arrays.divide(met, whole.duration_s) if is_bounded else None,
        requests_per_s=arrays.divide(part.requests.completed, whole.duration_s),
        output_tokens_per_s=arrays.divide(part.output_tokens, whole.duration_s),
        **msgspec.structs.asdict(part),
    )


def cell_of_class(cell: CellSummary, part: ClassPart) -> CellSummary:
    """Make of a class's numbers a cell of its own: of its slots, where it has any, else of the load
    of all."""
    names = set(Metrics.__struct_fields__) & {*Part.__struct_fields__, *ClassPart.__struct_fields__}
    load = cell.load
    return CellSummary(
        load=msgspec.structs.replace(load, value=part.slots) if part.slots else load,
        requests=part.requests,
        duration_s=cell.duration_s,
        metrics=Metrics(**{name: getattr(part, name) for name in names}),
        verdict=cell.verdict,
        slo=[bound for bound in cell.slo if split_bound(bound.metric).traffic_class == part.name],
        p_slo=part.p_slo,
    )


def class_numbers(batch: pa.RecordBatch, plan: Plan) -> Ints64:
    """Find the place of each record's class in the plan's; −1 where the plan has no such request.
    `batch`: with the columns `request_id` and `cell`."""
    rows = rows_of(batch, plan)
    if plan.traffic_class is None:
        return np.full(len(rows), -1)
    return np.where(rows < 0, -1, plan.traffic_class[rows].astype(np.int64))


def rows_of(batch: pa.RecordBatch, plan: Plan) -> Ints64:
    """Find the plan's row of each record; −1 where it has no such request. `batch`: as of
    class_numbers()."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parsed = pc.extract_regex(batch.column("request_id"), r"-(?P<index>\d{1,9})$")
    index = pc.fill_null(pc.cast(pc.struct_field(parsed, "index"), pa.int64()), -1)
    return plan.find_rows(batch.column("cell").to_numpy(), index.to_numpy())


def class_columns(batch: pa.RecordBatch, plan: Plan) -> dict[str, pa.Array]:
    """Make columns that say of each record its class, what it asked for, and why it was rejected;
    null where nobody says. `batch`: of records, with COLUMNS."""
    import pyarrow as pa

    numbers = class_numbers(batch, plan)
    places = pa.array(numbers, mask=numbers < 0)
    values = {
        "class": pa.array([of_class.name for of_class in plan.classes], pa.string()),
        "priority": pa.array([of_class.priority for of_class in plan.classes], pa.int64()),
        "model": pa.array([kind.model or kind.adapter for kind in plan.classes], pa.string()),
    }
    columns = {name: column.take(places) for name, column in values.items()}
    return columns | {"rejected": rejections_of(batch)}


def _find_unknown(batch: pa.RecordBatch) -> pa.Array:
    """Mark the records of requests whose model or adapter the server does not have."""
    import pyarrow.compute as pc

    not_found = pc.equal(batch.column("http_status"), _NOT_FOUND)
    in_words = pc.match_substring_regex(batch.column("error"), _UNKNOWN_WORDS, ignore_case=True)
    flags = pc.and_kleene(
        pc.equal(batch.column("status"), "error"), pc.or_kleene(not_found, in_words)
    )
    return pc.fill_null(flags, False)


def rejections_of(batch: pa.RecordBatch) -> pa.Array:
    """Say of each record why the server turned its request away: an HTTP status, or IN_STREAM; null
    where it did not."""
    import pyarrow as pa
    import pyarrow.compute as pc

    failed = pc.equal(batch.column("status"), "error")
    status = batch.column("http_status")
    by_status = pc.and_(
        failed, pc.fill_null(pc.is_in(status, value_set=pa.array(_TURNED_AWAY)), False)
    )
    in_words = pc.match_substring_regex(batch.column("error"), _TURNED_AWAY_WORDS, ignore_case=True)
    by_words = pc.and_(failed, pc.fill_null(in_words, False))
    reason = pc.if_else(by_words, pa.scalar(IN_STREAM), pa.scalar(None, pa.string()))
    return pc.if_else(by_status, pc.cast(status, pa.string()), reason)
