"""Records as arrays: one row per request, and the stream events of a batch end to end. Times in
seconds."""

from collections.abc import Iterator
from typing import NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from loadstone.core.errors import InputError
from loadstone.core.plan import Load
from loadstone.core.record import ANSWER, THINKING, TOOL_CALL, Status
from loadstone.core.vectors import Array, Bools, Floats, Ints64

STATUSES: tuple[str, ...] = get_args(Status)
_COMPLETED = [STATUSES.index("ok"), STATUSES.index("short")]

_NUMBERS = (
    "intended",
    "sent",
    "first",
    "last",
    "end",
    "input",
    "tokens",
    "cached",
    "lag",
    "turn",
    "replica",
    "answer",
    "answer_last",
    "thinking",
    "tool",
)
ROW = np.dtype([("measured", "?"), ("status", "i1")] + [(name, "f8") for name in _NUMBERS])
"""The columns kept of each request; NaN where missing. `tokens`: output tokens that arrived, see
rows(); `answer`, `answer_last`: when the first and last event that is no thinking came; `thinking`,
`tool`: of the tokens, those that are thinking, and those of tool calls."""

# Columns as the record names them, for those that are taken as they are.
_TAKEN = {
    "intended": "intended_s",
    "sent": "sent_s",
    "end": "end_s",
    "input": "input_tokens",
    "cached": "cached_tokens",
    "lag": "receive_lag_s",
    "turn": "turn",
    "replica": "replica",
}
COLUMNS = (
    "request_id",
    "phase",
    "status",
    *_TAKEN.values(),
    "output_tokens",
    "arrival_s",
    "tokens",
)
"""The columns of records that these arrays are made of."""
CHANNELS = ("channel", "reasoning_tokens")
"""Those beside them that tell thinking from answers."""

_FARTHEST_S = 1e12
_PIECE_EVENTS = 1 << 16


class Events(NamedTuple):
    """Stream events of some requests, end to end.

    arrival  when each came
    tokens   output tokens of its request after each
    lengths  events of each request
    """

    arrival: Floats
    tokens: Array
    lengths: Ints64


def events(batch: pa.RecordBatch) -> Events:
    """Read the events of a batch of records. Raises InputError where lists of a request differ in
    length."""

    (arrival, lengths), (tokens, counted) = (
        flatten(batch.column(name)) for name in ("arrival_s", "tokens")
    )
    if not np.array_equal(lengths, counted):
        names = pc.fill_null(batch.column("request_id"), "?").to_pylist()
        first = int(np.argmax(lengths != counted))
        raise InputError(
            f"request {names[first]}: arrival_s and tokens differ in length; copy or measure it"
            " again"
        )
    return Events(mask_times(arrival), tokens, lengths)


def mask_times(seconds: Floats) -> Floats:
    """Put NaN for times that no clock tells: infinite, or so far off that their square is, as in
    other tools' files.
    """
    far = np.abs(seconds) > _FARTHEST_S
    return np.where(far, np.nan, seconds) if far.any() else seconds


def flatten(lists: pa.ListArray) -> tuple[Array, Ints64]:
    """Flatten a column of lists: their values end to end, and the count in each row, 0 where a list
    is missing."""

    lengths = (
        pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    # flatten() honours the offsets of a sliced batch and skips null lists.
    return lists.flatten().to_numpy(zero_copy_only=False), lengths


def split_pieces(whole: Events) -> Iterator[tuple[slice, Events]]:
    """Cut events into pieces of some _PIECE_EVENTS in whole requests; yields each with its range of
    requests.

    Memory does not depend on how large batches are then, and what is computed of a piece stays in
    the processor.
    """
    ends = np.cumsum(whole.lengths)
    start = first = 0
    while start < len(ends):
        stop = max(start + 1, int(np.searchsorted(ends, first + _PIECE_EVENTS, side="right")))
        last = int(ends[stop - 1])
        events = slice(first, last)
        yield (
            slice(start, stop),
            Events(whole.arrival[events], whole.tokens[events], whole.lengths[start:stop]),
        )
        start, first = stop, last


def rows(batch: pa.RecordBatch, events: Events) -> Array:
    """Make one ROW per request; `events`: of the same batch.

    `tokens` is T: what an ok or short request says of itself (`output_tokens`); for others, and
    where it says nothing, the last of its cumulative counts.
    """

    arrival, tokens, lengths = events
    table = np.zeros(batch.num_rows, ROW)
    table["measured"] = pc.fill_null(pc.equal(batch.column("phase"), "measure"), False).to_numpy(
        zero_copy_only=False
    )
    codes = pc.index_in(batch.column("status"), value_set=pa.array(STATUSES))
    table["status"] = pc.fill_null(codes, -1).to_numpy(zero_copy_only=False)
    for name, column in _TAKEN.items():
        values = batch.column(column).to_numpy(zero_copy_only=False)
        table[name] = mask_times(values) if column.endswith("_s") else values

    table["first"] = table["last"] = table["tokens"] = np.nan
    any_output = lengths > 0
    ends = np.cumsum(lengths)[any_output]
    table["first"][any_output] = arrival[ends - lengths[any_output]]
    table["last"][any_output] = arrival[ends - 1]
    table["tokens"][any_output] = tokens[ends - 1]
    reported = batch.column("output_tokens").to_numpy(zero_copy_only=False).astype(np.float64)
    trusted = is_completed(table) & ~np.isnan(reported)
    table["tokens"][trusted] = reported[trusted]
    _add_channels(table, batch, events)
    return table


def _add_channels(table: Array, batch: pa.RecordBatch, events: Events) -> None:
    """Fill the columns of `table` that tell thinking from answers; NaN where a record does not. Of
    a batch without channels, as of simulated runs, all is answer.
    """
    for name in ("answer", "answer_last", "thinking", "tool"):
        table[name] = np.nan
    if "channel" not in batch.schema.names:
        table["answer"], table["answer_last"] = table["first"], table["last"]
        return
    lengths = events.lengths
    channel, listed = flatten(batch.column("channel"))
    complete = (listed == lengths) & (lengths > 0)
    for name, value in (
        ("answer", table["first"]),
        ("answer_last", table["last"]),
        ("thinking", 0.0),
        ("tool", 0.0),
    ):
        table[name] = np.where(complete, value, np.nan)
    if not np.isin(channel, (THINKING, TOOL_CALL)).any():
        return
    owner = np.repeat(np.arange(len(table)), lengths)
    of_event = np.zeros(len(owner), np.int64)
    of_event[complete[owner]] = np.minimum(channel, TOOL_CALL)[np.repeat(complete, listed)]
    thought = np.bincount(owner[of_event == THINKING], minlength=len(table)) > 0
    spoken = np.flatnonzero(of_event >= ANSWER)
    who, first = np.unique(owner[spoken], return_index=True)
    table["answer"][thought] = table["answer_last"][thought] = np.nan
    last = np.append(first[1:], len(spoken)) - 1
    for name, place in (("answer", first), ("answer_last", last)):
        table[name][who[thought[who]]] = events.arrival[spoken[place]][thought[who]]
    gained = np.maximum(count_gained(events), 0)
    sums = np.bincount(owner * 4 + of_event, weights=gained, minlength=4 * len(table)).reshape(
        -1, 4
    )
    tokens, counted = table["tokens"], np.full(len(table), np.nan)
    if "reasoning_tokens" in batch.schema.names:
        counted = batch.column("reasoning_tokens").to_numpy(zero_copy_only=False).astype(np.float64)
    # A count of 0, or one that leaves the answer no token, was not counted: then by what the events
    # brought.
    has_answer = np.isin(np.arange(len(table)), who)
    credible = (counted > 0) & (counted <= tokens - has_answer)
    spread = tokens * _share(sums[:, THINKING], sums[:, THINKING:].sum(axis=1))
    # More than came at all: what came of it are a summary's words.
    spread[counted > tokens] = 0.0
    table["thinking"][thought] = np.where(credible, counted, spread)[thought]
    called = _share(sums[:, TOOL_CALL], sums[:, ANSWER:].sum(axis=1))
    table["tool"] = (tokens - table["thinking"]) * np.where(complete, called, np.nan)


def _share(part: Array, whole: Array) -> Floats:
    share = np.zeros(len(whole))
    np.divide(part, whole, out=share, where=whole > 0)
    return share


def answer_rate_per_s(rows: Array) -> Floats:
    """Compute (answer tokens − 1)/(last − first answer event) of each ROW, NaN where that is no
    time."""
    tokens, length_s = rows["tokens"] - rows["thinking"], rows["answer_last"] - rows["answer"]
    rate = np.full(len(rows), np.nan)
    np.divide(tokens - 1, length_s, out=rate, where=(tokens >= 2) & (length_s > 0))
    return rate


def count_gained(events: Events) -> Array:
    """Count the tokens that each event brought, from the cumulative counts; each request counts
    from 0."""
    _, tokens, lengths = events
    brought = tokens.copy()
    brought[1:] -= tokens[:-1]
    firsts = (np.cumsum(lengths) - lengths)[lengths > 0]
    brought[firsts] = tokens[firsts]
    return brought


def token_gaps(arrival: Floats, gained: Array, lengths: Ints64) -> NDArray[np.float32]:
    """Compute ITL: the gap between one event and the next, divided by the later one's tokens, once
    per token.

    A chunk is not a token. An engine under load, or with speculative decoding, sends several tokens
    in one chunk: counting gaps between chunks gives few and long ones (what vLLM prints as ITL),
    counting zeros within a chunk makes the median 0. Spread over the tokens, the gaps of a request
    sum to tT − t1 however they were bundled.

    The tokens of the first event follow no event and add no gap. An event that brought none passes
    its gap on to the next that does; events after the last token have none to pass it to, and count
    in tT only.
    """
    firsts = (np.cumsum(lengths) - lengths)[lengths > 0]
    if len(gained) and (gained == 1).all():
        # One token an event, as most engines send them: the gaps as they are, but for those between
        # requests.
        within = np.ones(len(arrival) - 1, np.bool_)
        within[firsts[1:] - 1] = False
        return np.diff(arrival)[within].astype(np.float32)
    _, gap_s, brought = spread_gaps(arrival, gained, lengths)
    return np.repeat(gap_s.astype(np.float32), brought)


def spread_gaps(arrival: Floats, gained: Array, lengths: Ints64) -> tuple[Floats, Floats, Array]:
    """Return (arrival, ITL of each of its tokens, tokens) of each event that ends a gap, for
    token_gaps()."""
    first = np.zeros(len(arrival), np.bool_)
    first[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
    kept = first | (gained > 0)
    following = ~first[kept][1:]
    at_s, brought = arrival[kept][1:][following], gained[kept][1:][following]
    return at_s, np.diff(arrival[kept])[following] / brought, brought


def drop_missing(values: Array) -> Array:
    """Drop what is missing."""
    return np.asarray(values[~np.isnan(values)])


def total(values: Floats) -> int | None:
    """Sum what was reported; None where nothing was."""
    reported = drop_missing(values)
    return int(reported.sum()) if len(reported) else None


def span_s(begins: Floats, ends: Floats) -> float | None:
    """Return last end − first begin; None where either is missing."""
    begins, ends = drop_missing(begins), drop_missing(ends)
    return float(ends.max() - begins.min()) if len(begins) and len(ends) else None


def divide(count: float | None, seconds: float | None) -> float | None:
    """Divide count by seconds; None where either is missing or no time passed."""
    return count / seconds if count is not None and seconds is not None and seconds > 0 else None


def origin_s(rows: Array, load: Load) -> Floats:
    """Return the time from which TTFT and E2E of each ROW count: in a closed loop its sending, else
    the intended time, since the user waits from then on; sending where that is not known.
    """
    sent: Floats = rows["sent"]
    return sent if load.is_closed else np.where(np.isnan(rows["intended"]), sent, rows["intended"])


def is_graded(batch: pa.RecordBatch) -> Bools:
    """Mark the records whose answers are graded."""
    graded = pc.fill_null(pc.equal(batch.column("phase"), "check"), False)
    return np.asarray(graded.to_numpy(zero_copy_only=False))


def is_completed(rows: Array) -> Bools:
    """Mark the ROWs that are ok or short."""
    return np.isin(rows["status"], _COMPLETED)


def tpot_s(rows: Array) -> Floats:
    """Compute (tT − t1)/(T − 1) of each ROW, NaN for T < 2; from the answer's first event where a
    summary of hidden thinking, which has no tokens, came before."""
    tpot = np.full(len(rows), np.nan)
    answer = np.fmax(rows["first"], rows["answer"])  # of rows without one, the first output
    first = np.where(rows["thinking"] == 0, answer, rows["first"])
    np.divide(rows["last"] - first, rows["tokens"] - 1, out=tpot, where=rows["tokens"] >= 2)
    return tpot
