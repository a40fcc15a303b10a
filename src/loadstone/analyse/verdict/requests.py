"""Holds what the rules judge: a cell, and its requests as arrays, one entry each, in the order of
the records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loadstone.analyse.metrics import CellNumbers
from loadstone.analyse.verdict.finding import Origin
from loadstone.core import arrays
from loadstone.core.errors import InputError
from loadstone.core.machine_figures import DraftFigures, GpuFigures, ServerFigures
from loadstone.core.parts import ReplicaPart
from loadstone.core.plan import Load, Plan
from loadstone.core.record import CellInfo, Clock, Target
from loadstone.core.statistics import Distribution
from loadstone.core.vectors import Array, Bools, Floats, Ints64

if TYPE_CHECKING:
    import pyarrow as pa


Texts = NDArray[np.object_]

_TEXTS = ("status", "error", "finish_reason", "token_source")
_NUMBERS = (
    "turn",
    "intended_s",
    "sent_s",
    "end_s",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "http_status",
    "worker",
    "reused_connection",
    "receive_lag_s",
    "visual_tokens",
    "sent_end_s",
)
SCALARS = ("request_id", "phase", *_TEXTS, *_NUMBERS)
"""Columns of the records that the rules read; their events come on top."""

_PATTERN_EVENTS = 3
"""The fewest gaps whose pattern tells one request from another."""
_STEP_EVENTS, _STEP_REQUESTS = 16, 400
"""The fewest events whose gaps tell an engine's step, and the requests of a batch that are looked
at."""
_STEP_SHARE = 0.75
"""Share of the gaps, the shortest, that tell it: others' prompts are computed in the longest."""


@dataclass(frozen=True, eq=False)
class EventFigures:
    """Figures of each request's stream events; NaN and 0 where there are none.

    first_s   first, second_s second and last_s last arrival of output
    events    stream events with output
    together  of those, events that came with the one before in the same read
    first_read_events, first_read_tokens  of those, events that the first read brought, and output
                                          tokens after it
    step_s    mean of its gaps but the longest: a step of the engine that computes no prompt
    begin_ratio  median of its first gaps over that of its second half
    pattern   equal for requests whose gaps are equal to the microsecond; 0: too few gaps to tell
    """

    first_s: Floats
    second_s: Floats
    last_s: Floats
    events: Ints64
    together: Ints64
    first_read_events: Ints64
    first_read_tokens: Ints64
    step_s: Floats
    begin_ratio: Floats
    pattern: NDArray[np.uint64]

    @classmethod
    def empty(cls, count: int) -> EventFigures:
        """Make the figures of so many requests without events."""
        first_s, second_s, last_s, step_s, begin_ratio = np.full((5, count), np.nan)
        events, together, read_events, read_tokens = np.zeros((4, count), np.int64)
        pattern = np.zeros(count, np.uint64)
        times = (first_s, second_s, last_s)
        counts = (events, together, read_events, read_tokens)
        return cls(*times, *counts, step_s, begin_ratio, pattern)


@dataclass(frozen=True, eq=False)
class RequestTable(EventFigures):
    """Requests of one cell, both phases; NaN (−1 for whole numbers) where missing.

    index              number of the request within its cell
    reused_connection  1 sent on a connection that had served another, 0 on a fresh one
    """

    index: Ints64
    measured: Bools
    completed: Bools
    status: Texts
    error: Texts
    finish_reason: Texts
    token_source: Texts
    turn: Floats
    intended_s: Floats
    sent_s: Floats
    end_s: Floats
    input_tokens: Floats
    output_tokens: Floats
    cached_tokens: Floats
    http_status: Floats
    worker: Floats
    reused_connection: Floats
    receive_lag_s: Floats
    visual_tokens: Floats
    sent_end_s: Floats

    def __len__(self) -> int:
        return len(self.index)

    @property
    def due_s(self) -> Floats:
        """Intended times; the sends of imported requests, whose intended times are not known."""
        return np.where(np.isnan(self.intended_s), self.sent_s, self.intended_s)

    def pick(self, chosen: Array) -> RequestTable:
        """Take the rows of a mask, or of row numbers in their order."""
        rows: Any = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
        if chosen.dtype == np.bool_ and len(rows) and np.ptp(rows) == len(rows) - 1:
            # Not copied: a table of a million requests has some 150 MB.
            rows = slice(rows[0], rows[-1] + 1)
        columns = {column.name: getattr(self, column.name)[rows] for column in fields(self)}
        return RequestTable(**columns)


class EventReader:
    """Collects figures of the requests' events from records that come a batch at a time, whole."""

    def __init__(self, *, live: bool = True) -> None:
        """`live`: collect `pattern` and the events of reads too, which tell something of live
        servers only."""
        self._live = live
        self._batches = [EventFigures.empty(0)]

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(_event_figures(batch, self._live))

    def figures(self) -> EventFigures:
        """Join the figures of all batches."""
        names = [column.name for column in fields(EventFigures)]
        return EventFigures(
            *(np.concatenate([getattr(batch, name) for batch in self._batches]) for name in names)
        )


def request_table(scalars: pa.Table, events: EventReader) -> RequestTable:
    """Join one cell's records (`scalars`, columns SCALARS) with the figures of the same records'
    events.

    Raises InputError where a request_id does not end in a number.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    def texts(name: str) -> Texts:
        # Few are different: each is made once.
        column = scalars[name].combine_chunks()
        if column.type != pa.string():
            column = column.cast(pa.string())
        coded = column.dictionary_encode()
        words = np.array([*coded.dictionary.to_pylist(), None], dtype=object)
        codes = coded.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)
        return np.asarray(words[codes.astype(np.int64)])

    last_parts = pc.replace_substring_regex(scalars["request_id"].combine_chunks(), "^.*-", "")
    if not pc.all(pc.match_substring_regex(last_parts, "^[0-9]{1,18}$"), skip_nulls=False).as_py():
        raise InputError(
            "records whose request_id does not end in a number belong to no run; copy or measure it"
            " again"
        )
    columns: dict[str, Any] = {name: texts(name) for name in _TEXTS}
    for name in _NUMBERS:
        columns[name] = arrays.mask_times(scalars[name].to_numpy().astype(np.float64))
    status = columns["status"]
    return RequestTable(
        index=last_parts.cast(pa.int64()).to_numpy(zero_copy_only=False),
        measured=texts("phase") == "measure",
        completed=(status == "ok") | (status == "short"),
        **columns,
        **vars(events.figures()),
    )


def _event_figures(batch: pa.RecordBatch, live: bool) -> EventFigures:
    figures = EventFigures.empty(batch.num_rows)
    arrival, lengths = arrays.flatten(batch.column("arrival_s"))
    arrival = arrays.mask_times(arrival)
    figures.events[:] = lengths
    answered = lengths > 0
    ends_of = np.cumsum(lengths)
    ends = ends_of[answered]
    firsts = ends - lengths[answered]
    figures.first_s[answered] = arrival[firsts]
    figures.last_s[answered] = arrival[ends - 1]
    figures.second_s[lengths > 1] = arrival[firsts[lengths[answered] > 1] + 1]
    if not len(arrival) or not live:
        return figures
    (read, reads), (tokens, counts) = (
        arrays.flatten(batch.column(name)) for name in ("read", "tokens")
    )
    with np.errstate(invalid="ignore"):  # records that others made may have arrivals without end
        gap_us = np.diff(arrival, prepend=0.0) * 1e6
    gap_us[firsts] = 0.0
    for row in np.flatnonzero(lengths >= _STEP_EVENTS)[:_STEP_REQUESTS]:
        end = int(ends_of[row])
        gaps = gap_us[end - int(lengths[row]) + 1 : end]
        later_us = float(np.median(gaps[len(gaps) // 2 :]))
        figures.begin_ratio[row] = np.median(gaps[: _STEP_EVENTS // 2]) / max(1.0, later_us)
        figures.step_s[row] = np.sort(gaps)[: round(_STEP_SHARE * len(gaps))].mean() / 1e6
    # Sums of gaps times a number for each position, modulo 2⁶⁴: different gaps give different sums.
    position = np.arange(len(arrival)) - np.repeat(firsts, lengths[answered])
    weight = (position.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    weight ^= weight >> np.uint64(29)
    whole_us = np.nan_to_num(np.rint(gap_us), posinf=0.0, neginf=0.0).astype(np.int64)
    sums = np.add.reduceat(whole_us.astype(np.uint64) * weight, firsts)
    gaps = np.add.reduceat((whole_us > 0).astype(np.int64), firsts)
    figures.pattern[answered] = np.where(gaps >= _PATTERN_EVENTS, sums, np.uint64(0))
    if np.array_equal(lengths, reads) and np.array_equal(lengths, counts):
        same = np.diff(read, prepend=-1) == 0
        same[firsts] = False
        figures.together[answered] = np.add.reduceat(same.astype(np.int64), firsts)
        of_first = read == np.repeat(read[firsts], lengths[answered])
        brought = np.add.reduceat(of_first.astype(np.int64), firsts)
        figures.first_read_events[answered] = brought
        figures.first_read_tokens[answered] = tokens[firsts + brought - 1]
    return figures


@dataclass(frozen=True, kw_only=True, eq=False)
class JudgedCell:
    """One cell of a run, as its rules see it.

    numbers      its numbers and distributions
    requests     its requests, warm-up too
    plan, number the run's plan, and which of its cells this is
    info         when it ran, and what answered
    interrupted  why it ended early, where it did
    target       the live server
    replicas     of each server of a fleet its part of the numbers
    server, gpus what servers and GPUs reported while it ran
    drafts       what its speculative decoding came to
    has_pools    whether prefill and decode have workers of their own
    """

    numbers: CellNumbers
    requests: RequestTable
    plan: Plan
    number: int
    info: CellInfo
    origin: Origin
    clock: Clock
    interrupted: str | None = None
    target: Target | None = None
    replicas: Sequence[ReplicaPart] = ()
    server: ServerFigures | None = None
    gpus: GpuFigures | None = None
    drafts: DraftFigures | None = None
    has_pools: bool = False

    @property
    def load(self) -> Load:
        return self.plan.cells[self.number]

    @property
    def ttft(self) -> Distribution | None:
        return self.numbers.samples["ttft_s"]

    @property
    def tpot(self) -> Distribution | None:
        return self.numbers.samples["tpot_s"]

    @property
    def itl(self) -> Distribution | None:
        return self.numbers.samples["itl_s"]

    @property
    def e2e(self) -> Distribution | None:
        return self.numbers.samples["e2e_s"]

    @property
    def streams(self) -> bool:
        return self.target is None or self.target.streams

    @property
    def is_offline(self) -> bool:
        """True if it was a batch, without a server."""
        return self.target is not None and self.target.endpoint == "offline"

    @property
    def choices(self) -> int:
        """Answers to each request, whose tokens are counted together."""
        return 1 if self.target is None else self.target.choices

    @cached_property
    def measured(self) -> RequestTable:
        return self.requests.pick(self.requests.measured)

    @cached_property
    def completed(self) -> RequestTable:
        """Measured requests that completed."""
        return self.measured.pick(self.measured.completed)

    def plan_rows(self, requests: RequestTable) -> Ints64:
        """Find the plan's row of each request; laps of a cell that runs by time repeat the measured
        rows.

        Raises InputError where the plan has none for them.
        """
        rows, warm = self.plan.rows(self.number), self.plan.warmup_count(self.number)
        lap = max(1, len(rows) - warm)
        index = requests.index
        if len(rows) <= warm and index.max(initial=-1) >= len(rows):
            raise InputError(
                f"plan.parquet has {len(rows)} requests for cell {self.number}, which has records"
                " of more: these are of two runs; copy the folder again"
            )
        return rows.start + np.where(index < len(rows), index, warm + (index - warm) % lap)


def count_under_way(requests: RequestTable, moments_s: Floats) -> Ints64:
    """Count the requests sent at or before each moment and not ended by it."""
    was_sent = ~np.isnan(requests.sent_s)
    ends_s = np.where(np.isnan(requests.end_s), np.inf, requests.end_s)
    begun = np.searchsorted(np.sort(requests.sent_s[was_sent]), moments_s, side="right")
    ended = np.searchsorted(np.sort(ends_s[was_sent]), moments_s, side="right")
    return np.asarray(begun - ended, np.int64)
