"""What every dialect starts from: the measured requests of one cell as arrays, and sums that several tools share.

Symbols as in docs/metrics.md: t0 sent, t1 first and tT last event with output, te end of the stream, n output tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadstone.core import arrays
from loadstone.core.arrays import present

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]
Summary = dict[str, float | int | None]

_TIMES = {"intended": "intended_s", "sent": "sent_s", "end": "end_s"}
_COUNTS = {"input": "input_tokens", "tokens": "output_tokens", "reasoning": "reasoning_tokens"}
_ROW = np.dtype(
    [("done", "?"), ("cancelled", "?"), ("events", "i8")]
    + [(name, "f8") for name in (*_TIMES, *_COUNTS, "first", "second", "last")]
)


class Facts(NamedTuple):
    """Times in seconds from the run's origin, NaN where missing.

    measured  one row per measured request, whatever became of it: done (ok or short), cancelled, events, intended,
              sent, first, second, last (events with output), end, input, tokens, reasoning
    done      those of them that are done, which is what tools call successful
    arrival   when each event of the done requests arrived, in their order, end to end
    gained    tokens each of these brought
    """

    measured: NDArray[Any]
    done: NDArray[Any]
    arrival: Floats
    gained: NDArray[np.int64]


def gather(read: Callable[[], Iterable[pa.RecordBatch]], *, streams: bool = True) -> Facts:
    """The facts of the records that `read` yields. Without `streams` only the last event of each is kept, as `last`.

    Raises InputError where arrival_s and tokens of a request differ in length.
    """
    rows, arrivals, gains = [np.empty(0, _ROW)], [np.empty(0)], [np.empty(0, np.int64)]
    for batch in read():
        part, arrival, gained = _of_batch(batch, streams)
        rows.append(part)
        arrivals.append(arrival)
        gains.append(gained)
    measured = np.concatenate(rows)
    return Facts(measured, measured[measured["done"]], np.concatenate(arrivals), np.concatenate(gains))


def _of_batch(batch: pa.RecordBatch, streams: bool) -> tuple[NDArray[Any], Floats, NDArray[np.int64]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    def column(name: str) -> Any:
        return batch.column(name)

    def flags(mask: pa.Array) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = pc.fill_null(mask, False).to_numpy(zero_copy_only=False)
        return found

    whole = arrays.events(batch)
    arrival, tokens, events = whole
    rows = np.zeros(batch.num_rows, _ROW)
    for name, source in (_TIMES | _COUNTS).items():
        rows[name] = column(source).to_numpy(zero_copy_only=False)
    rows["done"] = flags(pc.is_in(column("status"), value_set=pa.array(["ok", "short"])))
    rows["cancelled"] = flags(pc.equal(column("status"), "cancelled"))
    rows["first"] = rows["second"] = rows["last"] = np.nan
    any_output, two = events > 0, events > 1
    starts = np.cumsum(events) - events
    rows["last"][any_output] = arrival[(starts + events - 1)[any_output]]
    # A server that states no count has what arrived counted for it.
    counted = np.full(batch.num_rows, np.nan)
    counted[any_output] = tokens[(starts + events - 1)[any_output]]
    rows["tokens"] = np.where(np.isnan(rows["tokens"]), counted, rows["tokens"])

    measured = flags(pc.equal(column("phase"), "measure"))
    if not streams:
        return rows[measured], np.empty(0), np.empty(0, np.int64)
    rows["events"] = events
    rows["first"][any_output] = arrival[starts[any_output]]
    rows["second"][two] = arrival[starts[two] + 1]
    kept = np.repeat(measured & rows["done"], events)
    return rows[measured], arrival[kept], arrays.gained(whole)[kept].astype(np.int64)


def described(
    keys: str, formulas: Mapping[str, str], statistics: Mapping[str, str], more: str = ""
) -> dict[str, str]:
    """A line for each statistic of each value; `keys`: how a key is made of `name` and `statistic`."""
    return {
        keys.format(name=name, statistic=statistic): f"{words} of {formula}{more}"
        for name, formula in formulas.items()
        for statistic, words in statistics.items()
    }


# --- gaps -----------------------------------------------------------------------------------------------------


def chunk_gaps(facts: Facts) -> Floats:
    """The gap before each event but a request's first: what a tool sees that takes a chunk for a token."""
    return np.diff(facts.arrival)[~_firsts(facts)[1:]]


def token_gaps(facts: Facts, *, shared: bool) -> Floats:
    """One gap per token: an event's gap to the event before that brought a token.

    `shared`: divided among the tokens it brought, and a first event's tokens have none (SGLang's own endpoint).
    Otherwise the first of them takes all of it and the others take 0, those of a first event too (inference-perf).
    """
    first = _firsts(facts)
    kept = (first if shared else False) | (facts.gained > 0)
    if not shared:
        # The first event that brought a token is the first that counts.
        owner = np.repeat(np.arange(len(facts.done)), facts.done["events"])[kept]
        first_kept = np.diff(owner, prepend=-1) > 0
    else:
        first_kept = first[kept]
    gap, gained = np.diff(facts.arrival[kept], prepend=0.0), facts.gained[kept]
    if shared:
        later = ~first_kept
        brought = np.maximum(gained[later], 0)
        return np.repeat(np.divide(gap[later], brought, out=np.zeros(len(brought)), where=brought > 0), brought)
    gaps = np.zeros(int(gained.sum()))
    ahead = np.cumsum(gained) - gained
    gaps[ahead] = gap
    return np.delete(gaps, ahead[first_kept])


def _firsts(facts: Facts) -> NDArray[np.bool_]:
    """Which events are their request's first."""
    events = facts.done["events"]
    first = np.zeros(len(facts.arrival), np.bool_)
    first[(np.cumsum(events) - events)[events > 0]] = True
    return first


# --- sums that several tools share ----------------------------------------------------------------------------


def mean_gap_s(span_s: Floats, tokens: Floats, less: int = 1) -> Floats:
    """span / (tokens − less), NaN where tokens ≤ less."""
    gap_s = np.full(len(tokens), np.nan)
    np.divide(span_s, tokens - less, out=gap_s, where=tokens > less)
    return gap_s


def both(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def describe(values: Floats, percentiles: Sequence[float], *, ddof: int = 0) -> Summary:
    """mean, std, min, max and `p<percentile>` of what is present, None where nothing is.

    std is √(Σ(x − mean)²/(n − ddof)); percentiles are linear between neighbours, numpy's default.
    """
    values = present(values)
    names = [f"p{p:g}" for p in percentiles]
    if len(values) == 0:
        return dict.fromkeys(("mean", "std", "min", "max", *names))
    points = dict(zip(names, map(float, np.percentile(values, percentiles)), strict=True))
    std = float(np.std(values, ddof=ddof)) if len(values) > ddof else None
    return {
        "mean": float(np.mean(values)),
        "std": std,
        "min": float(values.min()),
        "max": float(values.max()),
    } | points
