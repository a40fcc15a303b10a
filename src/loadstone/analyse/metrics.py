"""From the records of one cell to its numbers. docs/metrics.md has the same definitions with their reasons.

Symbols: t0 sent, t1 first and tT last arrival of output, T output tokens; all times in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadstone.core import arrays
from loadstone.core.arrays import Bools, Floats
from loadstone.core.pace import Pace, pace_of
from loadstone.core.plan import Load
from loadstone.core.statistics import Dependence, Distribution, Pool, distribution
from loadstone.core.statistics.dependence import CURVE, window_curve
from loadstone.core.statistics.distribution import mean_reach
from loadstone.core.summary import Latency, Part, Steady, Sustained
from loadstone.core.summary import Requests as Counts

if TYPE_CHECKING:
    import pyarrow as pa

Span = tuple[float, float]  # seconds


class RequestBounds(NamedTuple):
    """Upper bounds on each request's latencies, in seconds; None: no bound."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


NO_BOUNDS = RequestBounds()


class Requests(msgspec.Struct, kw_only=True, frozen=True):
    """Measured requests by how they ended. `sent` is all of them; `short` ones are not counted under `ok`."""

    sent: int
    ok: int
    error: int
    timeout: int
    cancelled: int
    short: int


class CellMetrics(msgspec.Struct, kw_only=True, frozen=True):
    """The numbers of one cell. Distributions are over measured requests that are ok or short; seconds.

    ttft_s, ttft_intended_s  t1 − t0; t1 − intended; None where answers came in one piece, as tpot_s and itl_s
    e2e_s, e2e_intended_s    tT − t0; tT − intended: to the last output, not to the end of the stream
    tpot_s                   (tT − t1)/(T − 1), for T ≥ 2
    itl_s                    gaps between tokens, pooled over all requests, see arrays.token_gaps(); no bounds,
                             because gaps that one engine step makes in many requests are not independent
    send_lag_s               t0 − intended, over every measured request that was sent, however it ended
    receive_lag_s            the record's receive_lag_s
    duration_s               last end − first of intended and sent, over measured requests
    input_tokens             of measured requests that produced a first token; None where never reported
    output_tokens            that arrived for measured requests, whatever became of them
    output_events            stream events that carried those of ok and short requests
    cached_input_tokens      of measured requests; None where never reported
    output_tokens_per_s      output_tokens / duration_s
    total_tokens_per_s       (input_tokens + output_tokens) / duration_s
    requests_per_s           (ok + short) / duration_s
    pace                     of an open loop: whether the server keeps up with it
    sustained                see sustained_of()
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
    pace: Pace | None
    sustained: Sustained | None
    achieved_rate_per_s: float | None
    goodput_per_s: float | None
    attainment: float | None


def parts(
    read: Callable[[], Iterable[pa.RecordBatch]],
    keys: Callable[[pa.RecordBatch], NDArray[np.int64]],
    *,
    streams: bool = True,
) -> dict[int, Part]:
    """The measured requests of a cell by a key ≥ 0 that `keys` gives to each record of a batch; −1: to none."""
    rows, labels = [np.empty(0, arrays.ROW)], [np.empty(0, np.int64)]
    for batch in read():
        rows.append(arrays.rows(batch, arrays.events(batch)))
        labels.append(keys(batch))
    all_rows, label = np.concatenate(rows), np.concatenate(labels)
    label = np.where(all_rows["measured"], label, -1)
    tokens = float(np.nansum(all_rows["tokens"][all_rows["measured"]]))
    return {int(key): _part(all_rows[label == key], tokens, streams) for key in np.unique(label) if key >= 0}


def _part(rows: NDArray[Any], all_tokens: float, streams: bool) -> Part:
    done = rows[arrays.is_completed(rows)]
    output_tokens = int(np.nansum(rows["tokens"]))
    latencies = _latencies(done, Dependence.of(done["sent"], done["last"]), streams)
    return Part(
        requests=Counts(**msgspec.structs.asdict(_requests(rows))),
        **{name: Latency.of(values) for name, values in latencies.items()},
        input_tokens=arrays.total(rows["input"][~np.isnan(rows["first"])]),
        cached_input_tokens=arrays.total(rows["cached"]),
        output_tokens=output_tokens,
        mean_input_tokens=_mean(done["input"]),
        mean_output_tokens=_mean(done["tokens"]),
        token_share=output_tokens / all_tokens if all_tokens else None,
    )


def _latencies(done: NDArray[Any], dependence: Dependence, streams: bool) -> dict[str, Any]:
    """The Distribution of each latency but ITL; None where there is none."""
    of_first = {
        "ttft_s": done["first"] - done["sent"],
        "tpot_s": arrays.tpot_s(done),
        "ttft_intended_s": done["first"] - done["intended"],
    }
    of_last = {"e2e_s": done["last"] - done["sent"], "e2e_intended_s": done["last"] - done["intended"]}
    return {name: distribution(values, dependence) if streams else None for name, values in of_first.items()} | {
        name: distribution(values, dependence) for name, values in of_last.items()
    }


def _requests(measured: NDArray[Any]) -> Requests:
    status = measured["status"]
    return Requests(
        sent=len(measured), **{name: int((status == code).sum()) for code, name in enumerate(arrays.STATUSES)}
    )


def cell_metrics(
    read: Callable[[], Iterable[pa.RecordBatch]],
    load: Load,
    slo: RequestBounds = NO_BOUNDS,
    *,
    streams: bool = True,
    sent_s: Floats | None = None,
    span_s: float | None = None,
) -> CellMetrics:
    """The numbers of one cell. `read` starts reading its records anew, columns named as in RequestRecord.

    It is called twice, but for a burst: the steady window ends at a send that is only known when all was read;
    unless `sent_s` says beforehand when the measured requests were sent.
    `streams`: False where answers came in one piece: there is no TTFT then, nor TPOT and ITL.
    `span_s`: how long the cell took, where its requests' times have no common clock.
    `slo`: what each request is to keep; where it has no bound, goodput and attainment are not known.

    Kept are 90 bytes per request and 4 per output token.
    """
    events = 0
    parts = [np.empty(0, arrays.ROW)]
    gaps = Pool()
    window = None if sent_s is None or load.is_burst else _window(sent_s)
    within = np.zeros(CURVE)
    for batch in read():
        whole = arrays.events(batch)
        part = arrays.rows(batch, whole)
        counted = part["measured"] & arrays.is_completed(part)
        for at, piece in arrays.split_pieces(whole):
            gained = arrays.count_gained(piece)
            if window is not None:
                within += window_curve(piece.arrival, gained, window)
            chosen = counted[at]
            events += int(piece.lengths[chosen].sum())
            if streams:
                of_chosen: Any = slice(None) if chosen.all() else np.repeat(chosen, piece.lengths)
                gaps.add(arrays.token_gaps(piece.arrival[of_chosen], gained[of_chosen], piece.lengths[chosen]))
        parts.append(part)
    rows = np.concatenate(parts)
    parts.clear()
    itl = gaps.distribution()
    del gaps
    if window is None and not load.is_burst:
        window = _window(rows["sent"][rows["measured"]])
        if window is not None:
            for batch in read():
                for _, piece in arrays.split_pieces(arrays.events(batch)):
                    within += window_curve(piece.arrival, arrays.count_gained(piece), window)

    pace = pace_of(load, rows, streams=streams) if load.is_open and rows["measured"].any() else None
    measured = _those(rows, rows["measured"])
    done = _those(measured, arrays.is_completed(measured))
    started = _those(measured, ~np.isnan(measured["first"]))
    duration_s = arrays.span_s(np.fmin(measured["intended"], measured["sent"]), measured["end"])
    output_tokens = int(np.nansum(measured["tokens"]))
    input_tokens = arrays.total(started["input"])
    met = _met(measured, load, slo) if any(bound is not None for bound in slo) else None
    dependence = Dependence.of(done["sent"], done["last"], span_s, load.slots)

    return CellMetrics(
        requests=_requests(measured),
        duration_s=duration_s,
        **_latencies(done, dependence, streams),
        itl_s=itl,
        send_lag_s=distribution(measured["sent"] - measured["intended"]),
        receive_lag_s=distribution(done["lag"]),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        output_events=events,
        cached_input_tokens=arrays.total(measured["cached"]),
        output_tokens_per_s=arrays.divide(output_tokens, duration_s),
        total_tokens_per_s=None if input_tokens is None else arrays.divide(input_tokens + output_tokens, duration_s),
        requests_per_s=arrays.divide(len(done), duration_s),
        steady=None
        if window is None
        else _steady(within, window, dependence, input_tokens, output_tokens, len(done)),
        pace=pace,
        sustained=sustained_of(load, measured, pace),
        achieved_rate_per_s=_achieved_rate_per_s(measured),
        goodput_per_s=None if met is None else arrays.divide(int(met.sum()), duration_s),
        attainment=float(met.mean()) if met is not None and len(met) else None,
    )


def _window(sent_s: Floats) -> Span | None:
    """From the first to the last send; None where it has no length, as with a single send."""
    sent = arrays.drop_missing(sent_s)
    return (float(sent.min()), float(sent.max())) if len(sent) and np.ptp(sent) > 0 else None


def _steady(
    tokens: Floats, window: Span, dependence: Dependence, input_tokens: int | None, output_tokens: int, done: int
) -> Steady | None:
    """Throughput over the window: of `tokens` that arrived in each of its stretches, as window_curve() has them, and
    of what the cell had for so many; None where nobody had any."""
    start_s, end_s = window
    if not output_tokens:
        return None
    per_token = {"output_tokens_per_s": 1.0, "requests_per_s": done / output_tokens}
    if input_tokens is not None:
        per_token["total_tokens_per_s"] = (input_tokens + output_tokens) / output_tokens
    rate, bounds = float(tokens.sum()) / (end_s - start_s), dependence.rate_bounds(tokens, end_s - start_s)
    rates = {name: rate * per for name, per in per_token.items()}
    return Steady(
        start_s=start_s,
        end_s=end_s,
        output_tokens_per_s=rate,
        total_tokens_per_s=rates.get("total_tokens_per_s"),
        requests_per_s=rates["requests_per_s"],
        ci95={name: [end if end is None else end * per for end in bounds] for name, per in per_token.items()},
    )


def sustained_of(load: Load, measured: NDArray[Any], pace: Pace | None) -> Sustained | None:
    """What an open loop gives in the long run; `measured`: all its measured requests, rows as in arrays.rows().

    None where its rate is none that was asked for (a trace, a ramp, sessions), where not every request ended well,
    and where the cell does not keep up, or does not tell.
    """
    if pace is None or not pace.keeps_up or pace.growth is None:
        return None
    tokens = measured["tokens"]
    if not len(measured) or not arrays.is_completed(measured).all() or np.isnan(tokens).any() or not tokens.any():
        return None
    behind = math.log1p(max(0.0, sum(pace.growth)))
    each = {"output_tokens_per_s": tokens, "requests_per_s": np.ones(len(tokens))}
    if not np.isnan(measured["input"]).any():
        each["total_tokens_per_s"] = tokens + measured["input"]
    rates: dict[str, float] = {}
    bounds: dict[str, list[float | None]] = {}
    for name, values in each.items():
        mean = float(values.mean())
        # Lengths are drawn one by one, whatever the requests then share.
        reach = mean_reach(float(values.std()), len(values)) / mean
        below = math.hypot(math.log1p(-reach), behind) if reach < 1 else math.inf
        rates[name] = load.value * mean
        bounds[name] = [rates[name] * math.exp(-below), rates[name] * (1 + reach)]
    return Sustained(
        output_tokens_per_s=rates["output_tokens_per_s"],
        total_tokens_per_s=rates.get("total_tokens_per_s"),
        requests_per_s=rates["requests_per_s"],
        ci95=bounds,
    )


def _met(rows: NDArray[Any], load: Load, slo: RequestBounds) -> Bools:
    """Which requests are ok or short and within every bound (≤). One token has no TPOT to miss."""
    origin = arrays.origin_s(rows, load)
    met = arrays.is_completed(rows)
    if slo.ttft_s is not None:
        met &= rows["first"] - origin <= slo.ttft_s
    if slo.tpot_s is not None:
        met &= (arrays.tpot_s(rows) <= slo.tpot_s) | (rows["tokens"] == 1)
    if slo.e2e_s is not None:
        met &= rows["last"] - origin <= slo.e2e_s
    return met


def _achieved_rate_per_s(measured: NDArray[Any]) -> float | None:
    """(sends − 1)/(last send − first send); None below two sends or where all were sent at once."""
    sent = arrays.drop_missing(measured["sent"])
    return arrays.divide(len(sent) - 1, float(np.ptp(sent))) if len(sent) >= 2 else None


def _those(rows: NDArray[Any], chosen: Bools) -> NDArray[Any]:
    """Not copied where they are neighbours, as all but a warm-up are: rows of a million requests are 74 MB."""
    at = np.flatnonzero(chosen)
    return rows[at[0] : at[-1] + 1] if len(at) and np.ptp(at) == len(at) - 1 else rows[chosen]


def _mean(values: Floats) -> float | None:
    known = arrays.drop_missing(values)
    return float(known.mean()) if len(known) else None
