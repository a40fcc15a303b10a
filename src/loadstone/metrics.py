"""From the records of one cell to its numbers. docs/metrics.md has the same definitions with their reasons.

Symbols: t0 sent, t1 first and tT last arrival of output, T output tokens; all times in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadstone.errors import InputError
from loadstone.records import Load, Status
from loadstone.statistics import Distribution, Pool, distribution

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SLO_KEYS = ("ttft", "tpot", "e2e")

_STATUSES: tuple[str, ...] = get_args(Status)
_COMPLETED = [_STATUSES.index("ok"), _STATUSES.index("short")]

# What is kept of each request; NaN where missing. `tokens`: output tokens that arrived, see _rows().
_ROW = np.dtype(
    [("measured", "?"), ("status", "i1")]
    + [(name, "f8") for name in ("intended", "sent", "first", "last", "end", "input", "tokens", "cached", "lag")]
)
# Columns as the record names them, for those that are taken as they are.
_TAKEN = {
    "intended": "intended_s",
    "sent": "sent_s",
    "end": "end_s",
    "input": "input_tokens",
    "cached": "cached_tokens",
    "lag": "receive_lag_s",
}
_SLICE = 1024


class Requests(msgspec.Struct, kw_only=True, frozen=True):
    """Measured requests by how they ended. `sent` is all of them; `short` ones are not counted under `ok`."""

    sent: int
    ok: int
    error: int
    timeout: int
    cancelled: int
    short: int


class Steady(msgspec.Struct, kw_only=True, frozen=True):
    """Throughput from the first to the last send of a measured request, while the load is full.

    output_tokens_per_s  tokens of both phases and any status that arrived within / (end_s − start_s)
    total_tokens_per_s   those, and input tokens of requests whose first token arrived within / (end_s − start_s)
    requests_per_s       ok and short requests of both phases that ended within / (end_s − start_s)
    """

    start_s: float
    end_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float | None
    requests_per_s: float


class CellMetrics(msgspec.Struct, kw_only=True, frozen=True):
    """The numbers of one cell. Distributions are over measured requests that are ok or short; seconds.

    ttft_s, ttft_intended_s  t1 − t0; t1 − intended; None where answers came in one piece, as tpot_s and itl_s
    e2e_s, e2e_intended_s    tT − t0; tT − intended: to the last output, not to the end of the stream
    tpot_s                   (tT − t1)/(T − 1), for T ≥ 2
    itl_s                    gaps between tokens, pooled over all requests, see _token_gaps(); no bounds, because
                             gaps that one engine step makes in many requests are not independent
    send_lag_s               t0 − intended
    receive_lag_s            the record's receive_lag_s
    duration_s               last end − first of intended and sent, over measured requests
    input_tokens             of measured requests that produced a first token; None where never reported
    output_tokens            that arrived for measured requests, whatever became of them
    output_events            stream events that carried those of ok and short requests
    cached_input_tokens      of measured requests; None where never reported
    output_tokens_per_s      output_tokens / duration_s
    total_tokens_per_s       (input_tokens + output_tokens) / duration_s
    requests_per_s           (ok + short) / duration_s
    achieved_rate_per_s      (sends − 1)/(last send − first send)
    attainment               requests that meet every SLO / all measured requests, failed ones included
    goodput_per_s            requests that meet every SLO / duration_s
    """

    requests: Requests
    duration_s: float | None
    ttft_s: Distribution | None
    tpot_s: Distribution | None
    itl_s: Distribution | None
    e2e_s: Distribution | None
    ttft_intended_s: Distribution | None
    e2e_intended_s: Distribution | None
    send_lag_s: Distribution | None
    receive_lag_s: Distribution | None
    input_tokens: int | None
    output_tokens: int
    output_events: int
    cached_input_tokens: int | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    requests_per_s: float | None
    steady: Steady | None
    achieved_rate_per_s: float | None
    goodput_per_s: float | None
    attainment: float | None


class Part(msgspec.Struct, kw_only=True, frozen=True):
    """The numbers of some of a cell's requests: one turn's, one server's. Fields as in CellMetrics.

    token_share  of the cell's output tokens
    """

    requests: Requests
    ttft_s: Distribution | None
    tpot_s: Distribution | None
    e2e_s: Distribution | None
    ttft_intended_s: Distribution | None
    e2e_intended_s: Distribution | None
    input_tokens: int | None
    cached_input_tokens: int | None
    output_tokens: int
    token_share: float | None


def parts(
    read: Callable[[], Iterable[pa.RecordBatch]],
    keys: Callable[[pa.RecordBatch], NDArray[np.int64]],
    *,
    streams: bool = True,
) -> dict[int, Part]:
    """The measured requests of a cell by a key ≥ 0 that `keys` gives to each record of a batch; −1: to none."""
    rows, labels = [np.empty(0, _ROW)], [np.empty(0, np.int64)]
    for piece in _pieces(read()):
        rows.append(_rows(piece, *_events(piece)))
        labels.append(keys(piece))
    all_rows, label = np.concatenate(rows), np.concatenate(labels)
    label = np.where(all_rows["measured"], label, -1)
    tokens = float(np.nansum(all_rows["tokens"][all_rows["measured"]]))
    return {int(key): _part(all_rows[label == key], tokens, streams) for key in np.unique(label) if key >= 0}


def _part(rows: NDArray[Any], all_tokens: float, streams: bool) -> Part:
    done = rows[_completed(rows)]
    output_tokens = int(np.nansum(rows["tokens"]))
    return Part(
        requests=_requests(rows),
        ttft_s=_over(done["first"] - done["sent"]) if streams else None,
        tpot_s=_over(_tpot_s(done)) if streams else None,
        e2e_s=_over(done["last"] - done["sent"]),
        ttft_intended_s=_over(done["first"] - done["intended"]) if streams else None,
        e2e_intended_s=_over(done["last"] - done["intended"]),
        input_tokens=_total(rows["input"][~np.isnan(rows["first"])]),
        cached_input_tokens=_total(rows["cached"]),
        output_tokens=output_tokens,
        token_share=output_tokens / all_tokens if all_tokens else None,
    )


def _requests(measured: NDArray[Any]) -> Requests:
    status = measured["status"]
    return Requests(sent=len(measured), **{name: int((status == code).sum()) for code, name in enumerate(_STATUSES)})


COLUMNS = ("request_id", "phase", "status", *_TAKEN.values(), "output_tokens", "arrival_s", "tokens")
"""Of the records, what these numbers are made of."""


def cell_metrics(
    read: Callable[[], Iterable[pa.RecordBatch]],
    load: Load,
    slo: Mapping[str, float],
    *,
    streams: bool = True,
    sent_s: Floats | None = None,
) -> CellMetrics:
    """The numbers of one cell. `read` starts reading its records anew, columns named as in RequestRecord.

    It is called twice, but for a burst: the steady window ends at a send that is only known when all was read;
    unless `sent_s` says beforehand when the measured requests were sent.
    `streams`: False where answers came in one piece: there is no TTFT then, nor TPOT and ITL.
    `slo` has upper bounds in seconds, each met or missed per request: "ttft", "tpot", "e2e"; may be empty.
    Raises InputError on any other name.

    Kept are 74 bytes per request and 4 per output token.
    """
    if unknown := sorted(set(slo) - set(SLO_KEYS)):
        raise InputError(f"--slo: {', '.join(unknown)} is no bound; use {', '.join(SLO_KEYS)}")

    events = 0
    parts = [np.empty(0, _ROW)]
    gaps = Pool()
    window = None if sent_s is None or load.kind == "burst" else _window(sent_s)
    within = 0
    for piece in _pieces(read()):
        arrival, tokens, lengths = _events(piece)
        part = _rows(piece, arrival, tokens, lengths)
        chosen = part["measured"] & _completed(part)
        gained = _gained(tokens, lengths)
        if window is not None:
            within += _gained_within(arrival, gained, window)
        if not chosen.all():
            kept = np.repeat(chosen, lengths)
            arrival, gained, lengths = arrival[kept], gained[kept], lengths[chosen]
        events += len(arrival)
        if streams:
            gaps.add(_token_gaps(arrival, gained, lengths))
        parts.append(part)
    rows = np.concatenate(parts)
    parts.clear()
    itl = gaps.distribution()
    del gaps
    if window is None and load.kind != "burst":
        window = _window(rows["sent"][rows["measured"]])
        if window is not None:
            for piece in _pieces(read()):
                arrival, tokens, lengths = _events(piece)
                within += _gained_within(arrival, _gained(tokens, lengths), window)

    measured = _those(rows, rows["measured"])
    done = _those(measured, _completed(measured))
    started = _those(measured, ~np.isnan(measured["first"]))
    duration_s = _duration_s(measured)
    output_tokens = int(np.nansum(measured["tokens"]))
    input_tokens = _total(started["input"])
    met = _met(measured, load, slo) if slo else None

    return CellMetrics(
        requests=_requests(measured),
        duration_s=duration_s,
        ttft_s=_over(done["first"] - done["sent"]) if streams else None,
        tpot_s=_over(_tpot_s(done)) if streams else None,
        itl_s=itl,
        e2e_s=_over(done["last"] - done["sent"]),
        ttft_intended_s=_over(done["first"] - done["intended"]) if streams else None,
        e2e_intended_s=_over(done["last"] - done["intended"]),
        send_lag_s=_over(done["sent"] - done["intended"]),
        receive_lag_s=_over(done["lag"]),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        output_events=events,
        cached_input_tokens=_total(measured["cached"]),
        output_tokens_per_s=_per_s(output_tokens, duration_s),
        total_tokens_per_s=None if input_tokens is None else _per_s(input_tokens + output_tokens, duration_s),
        requests_per_s=_per_s(len(done), duration_s),
        steady=None if window is None else _steady(within, rows, window),
        achieved_rate_per_s=_achieved_rate_per_s(measured),
        goodput_per_s=None if met is None else _per_s(int(met.sum()), duration_s),
        attainment=float(met.mean()) if met is not None and len(met) else None,
    )


def _window(sent_s: Floats) -> tuple[float, float] | None:
    """From the first to the last send; None where it has no length, as with a single send."""
    sent = _present(sent_s)
    return (float(sent.min()), float(sent.max())) if len(sent) and np.ptp(sent) > 0 else None


def _gained_within(arrival: Floats, gained: NDArray[Any], window: tuple[float, float]) -> int:
    """Tokens that arrived within the window, both its ends included."""
    return int(gained[(arrival >= window[0]) & (arrival <= window[1])].sum())


def _steady(tokens: int, rows: NDArray[Any], window: tuple[float, float]) -> Steady:
    """Throughput over the window, both its ends included; `tokens` arrived within."""
    start_s, end_s = window
    length_s = end_s - start_s

    def within(time_s: Floats) -> Bools:
        return (time_s >= start_s) & (time_s <= end_s)

    input_tokens = np.nansum(rows["input"][within(rows["first"])])
    ended = within(rows["end"]) & _completed(rows)
    return Steady(
        start_s=start_s,
        end_s=end_s,
        output_tokens_per_s=tokens / length_s,
        total_tokens_per_s=None if np.isnan(rows["input"]).all() else float(tokens + input_tokens) / length_s,
        requests_per_s=float(ended.sum()) / length_s,
    )


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same records, at most _SLICE at a time, so that memory does not depend on how large batches are."""
    for batch in batches:
        for start in range(0, batch.num_rows, _SLICE):
            yield batch.slice(start, _SLICE)


def _events(batch: pa.RecordBatch) -> tuple[Floats, NDArray[Any], NDArray[np.int64]]:
    """The batch's stream events end to end: arrivals, cumulative token counts, and events per request."""
    import pyarrow.compute as pc

    arrival, tokens = batch.column("arrival_s"), batch.column("tokens")
    lengths = _lengths(arrival)
    if not np.array_equal(lengths, _lengths(tokens)):
        names = pc.fill_null(batch.column("request_id"), "?").to_pylist()
        first = int(np.argmax(lengths != _lengths(tokens)))
        raise ValueError(f"request {names[first]}: arrival_s and tokens differ in length")
    # flatten() honours the offsets of a sliced batch and skips null lists.
    return arrival.flatten().to_numpy(zero_copy_only=False), tokens.flatten().to_numpy(zero_copy_only=False), lengths


def _lengths(lists: pa.Array) -> NDArray[np.int64]:
    import pyarrow.compute as pc

    lengths: NDArray[np.int64] = (
        pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    return lengths


def _rows(batch: pa.RecordBatch, arrival: Floats, tokens: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[Any]:
    """One _ROW per request.

    `tokens` is T: what an ok or short request says of itself (`output_tokens`); for others, and where it says
    nothing, the last of its cumulative counts.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = np.zeros(batch.num_rows, _ROW)
    rows["measured"] = pc.fill_null(pc.equal(batch.column("phase"), "measure"), False).to_numpy(zero_copy_only=False)
    codes = pc.index_in(batch.column("status"), value_set=pa.array(_STATUSES))
    rows["status"] = pc.fill_null(codes, -1).to_numpy(zero_copy_only=False)
    for name, column in _TAKEN.items():
        rows[name] = batch.column(column).to_numpy(zero_copy_only=False)

    rows["first"] = rows["last"] = rows["tokens"] = np.nan
    any_output = lengths > 0
    ends = np.cumsum(lengths)[any_output]
    rows["first"][any_output] = arrival[ends - lengths[any_output]]
    rows["last"][any_output] = arrival[ends - 1]
    rows["tokens"][any_output] = tokens[ends - 1]
    stated = batch.column("output_tokens").to_numpy(zero_copy_only=False).astype(np.float64)
    trusted = _completed(rows) & ~np.isnan(stated)
    rows["tokens"][trusted] = stated[trusted]
    return rows


def _gained(tokens: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[Any]:
    """Tokens that each event brought, from the cumulative counts; each request counts from 0."""
    gained = tokens.copy()
    gained[1:] -= tokens[:-1]
    firsts = (np.cumsum(lengths) - lengths)[lengths > 0]
    gained[firsts] = tokens[firsts]
    return gained


def _token_gaps(arrival: Floats, gained: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
    """ITL: the gap between one event and the next, divided by the tokens the later one brought, once per token.

    A chunk is not a token. An engine under load, or with speculative decoding, sends several tokens in one chunk:
    counting gaps between chunks gives few and long ones (what vLLM prints as ITL), counting zeros within a chunk
    makes the median 0. Spread over the tokens, the gaps of a request sum to tT − t1 however they were bundled.

    The tokens of the first event follow no event and add no gap. An event that brought none passes its gap on to
    the next that does; events after the last token have none to pass it to, and count in tT only.
    """
    firsts = (np.cumsum(lengths) - lengths)[lengths > 0]
    if len(gained) and (gained == 1).all():
        # One token an event, as most engines send them: the gaps as they are, but for those between requests.
        within = np.ones(len(arrival) - 1, np.bool_)
        within[firsts[1:] - 1] = False
        return np.diff(arrival)[within].astype(np.float32)
    first = np.zeros(len(arrival), np.bool_)
    first[firsts] = True
    kept = first | (gained > 0)
    later = ~first[kept][1:]
    brought = gained[kept][1:][later]
    gap_s = np.diff(arrival[kept])[later] / brought
    return np.repeat(gap_s.astype(np.float32), brought)


def _tpot_s(rows: NDArray[Any]) -> Floats:
    """(tT − t1)/(T − 1), NaN for T < 2."""
    tpot_s = np.full(len(rows), np.nan)
    np.divide(rows["last"] - rows["first"], rows["tokens"] - 1, out=tpot_s, where=rows["tokens"] >= 2)
    return tpot_s


def _met(rows: NDArray[Any], load: Load, slo: Mapping[str, float]) -> Bools:
    """Which requests are ok or short and within every bound (≤).

    TTFT and E2E count from the intended time in an open loop (the user waits from then on), where it is known, and
    from sending in a closed one. One token has no TPOT to miss.
    """
    intended, sent = rows["intended"], rows["sent"]
    origin = sent if load.kind == "concurrency" else np.where(np.isnan(intended), sent, intended)
    met = _completed(rows)
    if "ttft" in slo:
        met &= rows["first"] - origin <= slo["ttft"]
    if "tpot" in slo:
        met &= (_tpot_s(rows) <= slo["tpot"]) | (rows["tokens"] == 1)
    if "e2e" in slo:
        met &= rows["last"] - origin <= slo["e2e"]
    return met


def _duration_s(measured: NDArray[Any]) -> float | None:
    """Last end − first of intended and sent; None where nothing ended."""
    begins = _present(np.fmin(measured["intended"], measured["sent"]))
    ends = _present(measured["end"])
    return float(ends.max() - begins.min()) if len(begins) and len(ends) else None


def _achieved_rate_per_s(measured: NDArray[Any]) -> float | None:
    """(sends − 1)/(last send − first send); None below two sends or where all were sent at once."""
    sent = _present(measured["sent"])
    return _per_s(len(sent) - 1, float(np.ptp(sent))) if len(sent) >= 2 else None


def _completed(rows: NDArray[Any]) -> Bools:
    return np.isin(rows["status"], _COMPLETED)


def _those(rows: NDArray[Any], chosen: Bools) -> NDArray[Any]:
    return rows if chosen.all() else rows[chosen]


def _present(values: NDArray[Any]) -> NDArray[Any]:
    present: NDArray[Any] = values[~np.isnan(values)]
    return present


def _over(values: Floats) -> Distribution | None:
    return distribution(_present(values))


def _total(values: Floats) -> int | None:
    """The sum of what was reported; None where nothing was."""
    reported = _present(values)
    return int(reported.sum()) if len(reported) else None


def _per_s(count: float, duration_s: float | None) -> float | None:
    return count / duration_s if duration_s is not None and duration_s > 0 else None
