"""What the rules look at: a cell's requests as arrays, one entry each, in the order of the records."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loadstone.core import Plan, arrays
from loadstone.core.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SCALARS = (
    "request_id", "phase", "status", "error", "turn", "intended_s", "sent_s", "end_s", "input_tokens",
    "output_tokens", "cached_tokens", "token_source", "finish_reason", "http_status", "worker", "reused_connection",
    "receive_lag_s",
)  # fmt: skip
"""The columns of the records that the rules look at, beside their events."""

_PATTERN_EVENTS = 3
"""Gaps from which the pattern of a request's arrivals is its own."""


@dataclass(frozen=True, eq=False)
class Facts:
    """Requests of one cell, both phases; NaN (−1 for whole numbers) where missing.

    index     number of the request within its cell
    first_s   first and last_s last arrival of output
    events    stream events with output
    together  of those, events that came with the one before in the same read
    first_read_events, first_read_tokens  of those, events that the first read brought, and output tokens after it
    pattern   equal for requests whose gaps are equal to the microsecond; 0: too few gaps to tell
    reused    1 sent on a connection that had served another, 0 on a fresh one
    """

    index: NDArray[np.int64]
    measured: Bools
    completed: Bools
    status: NDArray[np.object_]
    error: NDArray[np.object_]
    finish_reason: NDArray[np.object_]
    token_source: NDArray[np.object_]
    turn: Floats
    intended_s: Floats
    sent_s: Floats
    end_s: Floats
    input_tokens: Floats
    output_tokens: Floats
    cached_tokens: Floats
    http_status: Floats
    worker: Floats
    reused: Floats
    receive_lag_s: Floats
    first_s: Floats
    last_s: Floats
    events: NDArray[np.int64]
    together: NDArray[np.int64]
    first_read_events: NDArray[np.int64]
    first_read_tokens: NDArray[np.int64]
    pattern: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.index)

    def pick(self, chosen: NDArray[Any]) -> Facts:
        """Those of a mask, or of row numbers in their order."""
        at: Any = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
        if chosen.dtype == np.bool_ and len(at) and np.ptp(at) == len(at) - 1:
            at = slice(at[0], at[-1] + 1)  # not copied: a million requests have some 150 MB of facts
        return Facts(**{field.name: getattr(self, field.name)[at] for field in fields(self)})


class Events:
    """What the rules know of the requests' events, from records that come a batch at a time, whole."""

    def __init__(self, *, rhythm: bool = True) -> None:
        """`rhythm`: also `pattern` and what reads brought, which say something of live servers only."""
        self._rhythm = rhythm
        self._found: list[dict[str, Any]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        self._found.append(_events(batch, self._rhythm))

    def arrays(self) -> dict[str, Any]:
        names = _events_of_none().keys()
        return {name: np.concatenate([each[name] for each in [_events_of_none(), *self._found]]) for name in names}


def gather(scalars: pa.Table, events: Events) -> Facts:
    """`scalars`: one cell's records, columns SCALARS. `events`: of the same records in the same order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def texts(name: str) -> NDArray[np.object_]:
        # Few are different: each is made once.
        column = scalars[name].combine_chunks()
        if column.type != pa.string():
            column = column.cast(pa.string())
        coded = column.dictionary_encode()
        words = np.array([*coded.dictionary.to_pylist(), None], dtype=object)
        codes = coded.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)
        return np.asarray(words[codes.astype(np.int64)])

    def numbers(name: str) -> Floats:
        values: Floats = scalars[name].to_numpy().astype(np.float64)
        return values

    status = texts("status")
    numbers_of = pc.replace_substring_regex(scalars["request_id"].combine_chunks(), "^.*-", "")
    if not pc.all(pc.match_substring_regex(numbers_of, "^[0-9]{1,18}$"), skip_nulls=False).as_py():
        raise InputError(
            "records whose request_id does not end in a number belong to no run; copy or measure it again"
        )
    return Facts(
        index=numbers_of.cast(pa.int64()).to_numpy(zero_copy_only=False),
        measured=texts("phase") == "measure",
        completed=np.isin(status, ["ok", "short"]) if len(status) else np.zeros(0, np.bool_),
        status=status,
        error=texts("error"),
        finish_reason=texts("finish_reason"),
        token_source=texts("token_source"),
        turn=numbers("turn"),
        intended_s=numbers("intended_s"),
        sent_s=numbers("sent_s"),
        end_s=numbers("end_s"),
        input_tokens=numbers("input_tokens"),
        output_tokens=numbers("output_tokens"),
        cached_tokens=numbers("cached_tokens"),
        http_status=numbers("http_status"),
        worker=numbers("worker"),
        reused=numbers("reused_connection"),
        receive_lag_s=numbers("receive_lag_s"),
        **events.arrays(),
    )


def _events_of_none(count: int = 0) -> dict[str, Any]:
    return {
        "first_s": np.full(count, np.nan),
        "last_s": np.full(count, np.nan),
        "events": np.zeros(count, np.int64),
        "together": np.zeros(count, np.int64),
        "first_read_events": np.zeros(count, np.int64),
        "first_read_tokens": np.zeros(count, np.int64),
        "pattern": np.zeros(count, np.uint64),
    }


def _events(batch: pa.RecordBatch, rhythm: bool) -> dict[str, Any]:
    found = _events_of_none(batch.num_rows)
    arrival, lengths = arrays.flat(batch.column("arrival_s"))
    found["events"][:] = lengths
    some = lengths > 0
    ends = np.cumsum(lengths)[some]
    firsts = ends - lengths[some]
    found["first_s"][some] = arrival[firsts]
    found["last_s"][some] = arrival[ends - 1]
    if not len(arrival) or not rhythm:
        return found
    (read, reads), (tokens, counts) = (arrays.flat(batch.column(name)) for name in ("read", "tokens"))
    with np.errstate(invalid="ignore"):  # records that others made may have arrivals without end
        gap_us = np.diff(arrival, prepend=0.0) * 1e6
    gap_us[firsts] = 0.0
    # Sums of gaps times a number for each position, modulo 2⁶⁴: different gaps give different sums.
    position = np.arange(len(arrival)) - np.repeat(firsts, lengths[some])
    weight = (position.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    weight ^= weight >> np.uint64(29)
    whole_us = np.nan_to_num(np.rint(gap_us), posinf=0.0, neginf=0.0).astype(np.int64)
    sums = np.add.reduceat(whole_us.astype(np.uint64) * weight, firsts)
    gaps = np.add.reduceat((whole_us > 0).astype(np.int64), firsts)
    found["pattern"][some] = np.where(gaps >= _PATTERN_EVENTS, sums, np.uint64(0))
    if np.array_equal(lengths, reads) and np.array_equal(lengths, counts):
        same = np.diff(read, prepend=-1) == 0
        same[firsts] = False
        found["together"][some] = np.add.reduceat(same.astype(np.int64), firsts)
        of_first = read == np.repeat(read[firsts], lengths[some])
        brought = np.add.reduceat(of_first.astype(np.int64), firsts)
        found["first_read_events"][some] = brought
        found["first_read_tokens"][some] = tokens[firsts + brought - 1]
    return found


def plan_rows(facts: Facts, plan: Plan, cell: int) -> NDArray[np.int64]:
    """The plan's row of each request; laps of a cell that runs by time repeat the measured rows."""
    rows, warm = plan.rows(cell), plan.warmup_count(cell)
    lap = max(1, len(rows) - warm)
    index = facts.index
    return rows.start + np.where(index < len(rows), index, warm + (index - warm) % lap)


def under_way(facts: Facts, at_s: Floats, *, since: Floats | None = None) -> NDArray[np.int64]:
    """Requests begun (sent, or `since`) at or before each moment and not ended by it."""
    begun_s = facts.sent_s if since is None else since
    known = ~np.isnan(begun_s)
    ends_s = np.where(np.isnan(facts.end_s), np.inf, facts.end_s)
    begun = np.searchsorted(np.sort(begun_s[known]), at_s, side="right")
    ended = np.searchsorted(np.sort(ends_s[known]), at_s, side="right")
    return np.asarray(begun - ended, np.int64)
