"""Holds the measured requests of one cell as arrays, and computes values that several tools share.

Symbols as in docs/metrics.md: t0 sent, t1 first and tT last event with output, te end of the
stream, n output tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from loadstone.core import arrays
from loadstone.core.arrays import (
    divide,
    total,
)
from loadstone.core.vectors import Array, Bools, Floats, Ints64

if TYPE_CHECKING:
    import pyarrow as pa

_ROW = np.dtype([*arrays.ROW.descr, ("events", "i8"), ("second", "f8"), ("reasoning", "f8")])


@dataclass(frozen=True, eq=False)
class Facts:
    """Times in seconds from the run's origin, NaN where missing.

    measured  one row per measured request, whatever became of it: arrays.ROW, and beside it how
              many events with output it had (`events`), when the second of them came, and its
              reasoning tokens
    arrival   when each event of the done requests arrived, in their order, end to end
    gained    tokens each of these brought
    window    from when to when rates are taken: first send to last end, unless more is known; None
              without requests
    """

    measured: Array
    arrival: Floats
    gained: Ints64
    window: tuple[float, float] | None

    @cached_property
    def done(self) -> Array:
        """The measured requests that are ok or short, which is what tools call successful."""
        return np.asarray(self.measured[arrays.is_completed(self.measured)])

    @cached_property
    def failed(self) -> Array:
        return np.asarray(self.measured[~arrays.is_completed(self.measured)])

    @property
    def count(self) -> int:
        return len(self.measured)

    @property
    def ok(self) -> int:
        return len(self.done)

    @property
    def failures(self) -> int:
        return len(self.failed)

    @property
    def cancelled(self) -> int:
        return int((self.measured["status"] == arrays.STATUSES.index("cancelled")).sum())

    @property
    def errors(self) -> int:
        """Requests that failed otherwise than by being cancelled."""
        return self.failures - self.cancelled

    @property
    def duration_s(self) -> float | None:
        return None if self.window is None else self.window[1] - self.window[0]

    def per_s(self, count: float | None) -> float | None:
        """`count` over the duration."""
        return divide(count, self.duration_s)

    @property
    def input_tokens(self) -> int | None:
        return total(self.done["input"])

    @property
    def output_tokens(self) -> int | None:
        return total(self.done["tokens"])

    @property
    def all_tokens(self) -> int | None:
        inputs, outputs = self.input_tokens, self.output_tokens
        return None if inputs is None or outputs is None else inputs + outputs

    @property
    def ttft_s(self) -> Floats:
        """t1 − t0 of the done requests."""
        return self.span("sent", "first")

    @property
    def tpot_s(self) -> Floats:
        """(tT − t1)/(n − 1), NaN for n < 2."""
        return mean_gap_s(self.span("first", "last"), self.done["tokens"])

    def span(self, begin: str, end: str) -> Floats:
        """Seconds from one column of the done requests to another."""
        return np.asarray(self.done[end] - self.done[begin])

    @cached_property
    def chunk_gaps_s(self) -> Floats:
        """The gap before each event but a request's first, as a tool computes it that takes a chunk
        for a token."""
        return np.diff(self.arrival)[~self.first_events[1:]]

    @cached_property
    def shared_gaps_s(self) -> Floats:
        """ITL: each gap divided among the tokens that its event brought, once per token."""
        _, gap_s, tokens = arrays.spread_gaps(self.arrival, self.gained, self.done["events"])
        return np.repeat(gap_s, tokens)

    @property
    def owners(self) -> Ints64:
        """The row in `done` that each event belongs to."""
        return np.repeat(np.arange(len(self.done)), self.done["events"])

    @property
    def first_events(self) -> Bools:
        """True at each event that is its request's first."""
        return np.diff(self.owners, prepend=-1) > 0


def gather(read: Callable[[], Iterable[pa.RecordBatch]], *, streams: bool = True) -> Facts:
    """Gather the facts of the records that `read` yields. Without `streams` only the last event of
    each is kept, as `last`.

    Raises InputError where arrival_s and tokens of a request differ in length.
    """
    parts = [(np.empty(0, _ROW), np.empty(0), np.empty(0, np.int64))]
    parts += [_read_batch(batch, streams) for batch in read()]
    measured, arrival, gained = (np.concatenate(pieces) for pieces in zip(*parts, strict=True))
    duration_s = arrays.span_s(measured["sent"], measured["end"])
    window = (
        None
        if duration_s is None
        else (float(np.nanmin(measured["sent"])), float(np.nanmax(measured["end"])))
    )
    return Facts(measured, arrival, gained, window)


def _read_batch(batch: pa.RecordBatch, streams: bool) -> tuple[Array, Floats, Ints64]:
    whole = arrays.events(batch)
    arrival, _, events = whole
    taken = arrays.rows(batch, whole)
    rows = np.zeros(len(taken), _ROW)
    for name in arrays.ROW.names or ():
        rows[name] = taken[name]
    rows["reasoning"] = batch.column("reasoning_tokens").to_numpy(zero_copy_only=False)
    rows["second"] = np.nan
    measured = rows["measured"]
    if not streams:
        rows["first"] = np.nan
        return rows[measured], np.empty(0), np.empty(0, np.int64)
    rows["events"] = events
    two = events > 1
    rows["second"][two] = arrival[(np.cumsum(events) - events)[two] + 1]
    kept = np.repeat(measured & arrays.is_completed(rows), events)
    return rows[measured], arrival[kept], arrays.count_gained(whole)[kept].astype(np.int64)


def mean_gap_s(span_s: Floats, tokens: Floats, less: int = 1) -> Floats:
    """span / (tokens − less), NaN where tokens ≤ less."""
    gap_s = np.full(len(tokens), np.nan)
    np.divide(span_s, tokens - less, out=gap_s, where=tokens > less)
    return gap_s
