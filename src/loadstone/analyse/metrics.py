"""Computes the numbers of one cell from its records. core.metrics.Metrics defines them,
docs/metrics.md has the reasons.

Symbols: t0 sent, t1 first and tT last arrival of output, T output tokens; all times in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from loadstone.core import arrays
from loadstone.core.metrics import LATENCIES, Latency, Metrics, Requests, Steady, Sustained
from loadstone.core.pace import Pace, pace_of
from loadstone.core.parts import Part
from loadstone.core.plan import Load
from loadstone.core.statistics import Dependence, Distribution, SamplePool, distribution
from loadstone.core.statistics.dependence import CURVE, window_curve
from loadstone.core.statistics.distribution import mean_margin
from loadstone.core.vectors import Array, Bools, Floats, Ints64

if TYPE_CHECKING:
    import pyarrow as pa

Span = tuple[float, float]  # seconds

ROUNDS = 5.0
"""The least length of a steady window, in times from the last send to the last output. A shorter
one leaves out more than a tenth of what the cell takes: slots that fall empty one by one, or the
longest answers, which begin late.
"""


class RequestBounds(NamedTuple):
    """Upper bounds on each request's latencies, in seconds; None: no bound."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    answer_s: float | None = None


NO_BOUNDS = RequestBounds()


class CellNumbers(NamedTuple):
    """The numbers of one cell, and what the verdict needs beside them.

    duration_s  last end − first of intended and sent, over measured requests
    samples     by name, the distribution of each of LATENCIES, of send_lag_s (t0 − intended, over
                every measured request that was sent, however it ended) and of receive_lag_s; None
                where it has no value
    pace        of an open loop: whether the server keeps up with it
    """

    requests: Requests
    duration_s: float | None
    metrics: Metrics
    samples: Mapping[str, Distribution | None]
    pace: Pace | None


def parts(
    read: Callable[[], Iterable[pa.RecordBatch]],
    keys: Callable[[pa.RecordBatch], Ints64],
    *,
    streams: bool = True,
) -> dict[int, Part]:
    """Compute the numbers of a cell's measured requests by a key ≥ 0 that `keys` gives each record;
    −1: to none."""
    all_rows, label = label_rows(read(), keys)
    tokens = float(np.nansum(all_rows["tokens"][all_rows["measured"]]))
    return {
        int(key): measure_part(all_rows[label == key], tokens, streams)
        for key in np.unique(label)
        if key >= 0
    }


def label_rows(
    batches: Iterable[pa.RecordBatch], keys: Callable[[pa.RecordBatch], Ints64]
) -> tuple[Array, Ints64]:
    """Read a ROW for each record, and its key; −1 for those that are not measured."""
    rows, labels = [np.empty(0, arrays.ROW)], [np.empty(0, np.int64)]
    for batch in batches:
        rows.append(arrays.rows(batch, arrays.events(batch)))
        labels.append(keys(batch))
    all_rows = np.concatenate(rows)
    return all_rows, np.where(all_rows["measured"], np.concatenate(labels), -1)


def measure_part(rows: Array, all_tokens: float, streams: bool) -> Part:
    """Compute the numbers of some measured requests of a cell that had `all_tokens` in all."""
    done = rows[arrays.is_completed(rows)]
    output_tokens = int(np.nansum(rows["tokens"]))
    latencies = _latencies(done, Dependence.of(done["sent"], done["last"]), streams)
    return Part(
        requests=_count_requests(rows),
        **{name: Latency.of(values) for name, values in latencies.items()},
        input_tokens=arrays.total(rows["input"][~np.isnan(rows["first"])]),
        cached_input_tokens=arrays.total(rows["cached"]),
        output_tokens=output_tokens,
        mean_input_tokens=_mean(done["input"]),
        mean_output_tokens=_mean(done["tokens"]),
        token_share=output_tokens / all_tokens if all_tokens else None,
    )


def _latencies(done: Array, dependence: Dependence, streams: bool) -> dict[str, Any]:
    """The Distribution of each latency but ITL; None where there is none."""
    of_first = {
        "ttft_s": done["first"] - done["sent"],
        "tpot_s": arrays.tpot_s(done),
        "ttft_intended_s": done["first"] - done["intended"],
    }
    of_last = {
        "e2e_s": done["last"] - done["sent"],
        "e2e_intended_s": done["last"] - done["intended"],
    }
    return {
        name: distribution(values, dependence) if streams else None
        for name, values in of_first.items()
    } | {name: distribution(values, dependence) for name, values in of_last.items()}


def latencies_of(measured: Array, load: Load) -> Metrics:
    """Compute the latencies of measured requests, but ITL, and nothing else."""
    done = measured[arrays.is_completed(measured)]
    dependence = Dependence.of(done["sent"], done["last"], None, load.slots)
    metrics = Metrics()
    for name, values in _latencies(done, dependence, streams=True).items():
        setattr(metrics, name, Latency.of(values))
    return metrics


def _count_requests(measured: Array) -> Requests:
    status = measured["status"]
    return Requests(
        sent=len(measured),
        **{name: int((status == code).sum()) for code, name in enumerate(arrays.STATUSES)},
    )


def measure_cell(
    read: Callable[[], Iterable[pa.RecordBatch]],
    load: Load,
    slo: RequestBounds = NO_BOUNDS,
    *,
    streams: bool = True,
    sent_s: Floats | None = None,
    span_s: float | None = None,
    answers: bool = True,
) -> CellNumbers:
    """Compute the numbers of one cell. `read` starts reading its records anew, columns named as in
    RequestRecord.

    It is called twice, but for a burst: the steady window ends at a send that is only known when
    all was read; unless `sent_s` says beforehand when the measured requests were sent. `streams`:
    False where answers came in one piece: there is no TTFT then, nor TPOT and ITL. `span_s`: how
    long the cell took, where its requests' times have no common clock. `slo`: what each request is
    to keep; where it has no bound, goodput and attainment are not known. `answers`: False where
    thinking is not to be told from answers.

    Kept are 120 bytes per request and 4 per output token.
    """
    window = None if sent_s is None or load.is_burst else _find_window(sent_s)
    rows, itl, events, arrived = _scan(read(), window, streams=streams)
    if window is None and not load.is_burst:
        window = _find_window(rows["sent"][rows["measured"]])
        if window is not None:
            arrived = _count_arrivals(read(), window)

    pace = pace_of(load, rows, streams=streams) if load.is_open and rows["measured"].any() else None
    measured = _select(rows, rows["measured"])
    done = _select(measured, arrays.is_completed(measured))
    live = not np.isnan(done["lag"]).all()  # which simulations and other tools do not have
    dependence = Dependence.of(done["sent"], done["last"], span_s, load.slots, live=live)
    duration_s = arrays.span_s(np.fmin(measured["intended"], measured["sent"]), measured["end"])
    samples = _latencies(done, dependence, streams) | {
        "itl_s": itl,
        "send_lag_s": distribution(measured["sent"] - measured["intended"]),
        "receive_lag_s": distribution(done["lag"]),
    }
    metrics = _total(measured, len(done), duration_s)
    if answers and streams:
        samples |= _add_answers(metrics, measured, done, dependence)
    metrics.output_events = events
    for name in LATENCIES:
        setattr(metrics, name, Latency.of(samples.get(name)))
    if window is not None and _has_rounds(window, done):
        metrics.steady = _steady(arrived, window, dependence, metrics, len(done))
    metrics.sustained = sustained_of(load, measured, pace)
    if any(bound is not None for bound in slo):
        met = meets_bounds(measured, load, slo)
        metrics.goodput_per_s = arrays.divide(int(met.sum()), duration_s)
        metrics.attainment = float(met.mean()) if len(met) else None
    return CellNumbers(_count_requests(measured), duration_s, metrics, samples, pace)


def _scan(
    batches: Iterable[pa.RecordBatch], window: Span | None, *, streams: bool
) -> tuple[Array, Distribution | None, int, Floats]:
    """Read the records once: a row of each, the distribution of token gaps, the events of measured
    requests that completed, and the tokens that arrived in each stretch of the window, all 0
    without one.
    """
    events = 0
    parts = [np.empty(0, arrays.ROW)]
    gaps = SamplePool()
    arrived = np.zeros(CURVE)
    for batch in batches:
        whole = arrays.events(batch)
        part = arrays.rows(batch, whole)
        counted = part["measured"] & arrays.is_completed(part)
        graded = arrays.is_graded(batch)
        for requests, piece in arrays.split_pieces(whole):
            gained = arrays.count_gained(piece)
            if window is not None:
                arrived += _own_curve(piece, gained, graded[requests], window)
            chosen = counted[requests]
            events += int(piece.lengths[chosen].sum())
            if streams:
                of_chosen: Any = slice(None) if chosen.all() else np.repeat(chosen, piece.lengths)
                gaps.add(
                    arrays.token_gaps(
                        piece.arrival[of_chosen], gained[of_chosen], piece.lengths[chosen]
                    )
                )
        parts.append(part)
    rows = np.concatenate(parts)
    parts.clear()
    return rows, gaps.distribution(), events, arrived


def _count_arrivals(batches: Iterable[pa.RecordBatch], window: Span) -> Floats:
    """Count the tokens that arrived in each stretch of the window."""
    arrived = np.zeros(CURVE)
    for batch in batches:
        graded = arrays.is_graded(batch)
        for requests, piece in arrays.split_pieces(arrays.events(batch)):
            arrived += _own_curve(piece, arrays.count_gained(piece), graded[requests], window)
    return arrived


def _own_curve(piece: arrays.Events, gained: Array, graded: Bools, window: Span) -> Floats:
    """Count the tokens of a piece in each stretch of the window, but those of graded answers, which
    no other number of the load has."""
    if graded.any():
        gained = np.where(np.repeat(graded, piece.lengths), 0, gained)
    return window_curve(piece.arrival, gained, window)


def _total(measured: Array, done: int, duration_s: float | None) -> Metrics:
    """Sum tokens and requests, and divide by the cell's duration."""
    input_tokens = arrays.total(measured["input"][~np.isnan(measured["first"])])
    output_tokens = int(np.nansum(measured["tokens"]))
    total_tokens = None if input_tokens is None else input_tokens + output_tokens
    return Metrics(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_input_tokens=arrays.total(measured["cached"]),
        output_tokens_per_s=arrays.divide(output_tokens, duration_s),
        total_tokens_per_s=arrays.divide(total_tokens, duration_s),
        requests_per_s=arrays.divide(done, duration_s),
        achieved_rate_per_s=_achieved_rate_per_s(measured),
    )


def _add_answers(
    metrics: Metrics, measured: Array, done: Array, dependence: Dependence
) -> dict[str, Distribution | None]:
    """Add what tells thinking from answers; return the times to the first token of an answer."""
    thinking, tool = arrays.total(measured["thinking"]), arrays.total(measured["tool"])
    told_apart = ~np.isnan(measured["thinking"])
    metrics.thinking_tokens, metrics.tool_call_tokens = thinking, tool
    metrics.thinking_share = arrays.divide(
        thinking, float(np.nansum(measured["tokens"][told_apart]))
    )
    rates = arrays.drop_missing(arrays.answer_rate_per_s(done))
    metrics.answer_tokens_per_s = float(np.median(rates)) if len(rates) else None
    begins = {"answer_s": "sent", "answer_intended_s": "intended"}
    return {
        name: distribution(done["answer"] - done[begin], dependence)
        for name, begin in begins.items()
    }


def _find_window(sent_s: Floats) -> Span | None:
    """Find the span from the first to the last send; None where it has no length, as with a single
    send."""
    sent = arrays.drop_missing(sent_s)
    return (float(sent.min()), float(sent.max())) if len(sent) and np.ptp(sent) > 0 else None


def _has_rounds(window: Span, done: Array) -> bool:
    """Tell if the window is long beside what follows it; `done`: the requests that completed."""
    after_s = float(np.nanmax(done["last"], initial=window[1])) - window[1]
    return window[1] - window[0] >= ROUNDS * after_s


def _steady(
    tokens: Floats, window: Span, dependence: Dependence, whole: Metrics, done: int
) -> Steady | None:
    """Compute throughput over the window: of `tokens` that arrived in each of its stretches, as
    window_curve() has them, and of what the whole cell had for so many; None where nobody had any.
    """
    start_s, end_s = window
    if not whole.output_tokens:
        return None
    per_token = {"output_tokens_per_s": 1.0, "requests_per_s": done / whole.output_tokens}
    if whole.input_tokens is not None:
        per_token["total_tokens_per_s"] = (
            whole.input_tokens + whole.output_tokens
        ) / whole.output_tokens
    rate, bounds = (
        float(tokens.sum()) / (end_s - start_s),
        dependence.rate_bounds(tokens, end_s - start_s),
    )
    rates = {name: rate * per for name, per in per_token.items()}
    return Steady(
        start_s=start_s,
        end_s=end_s,
        **rates,
        ci95={
            name: [end if end is None else end * per for end in bounds]
            for name, per in per_token.items()
        },
    )


def sustained_of(load: Load, measured: Array, pace: Pace | None) -> Sustained | None:
    """Compute what an open loop gives in the long run; `measured`: all its measured requests, rows
    as in arrays.rows().

    None where its rate is none that was asked for (a trace, a ramp, sessions), where not every
    request ended well, and where the cell does not keep up, or does not tell.
    """
    if pace is None or not pace.keeps_up or pace.growth is None:
        return None
    tokens = measured["tokens"]
    if (
        not len(measured)
        or not arrays.is_completed(measured).all()
        or np.isnan(tokens).any()
        or not tokens.any()
    ):
        return None
    behind = math.log1p(max(0.0, sum(pace.growth)))
    per_request = {"output_tokens_per_s": tokens, "requests_per_s": np.ones(len(tokens))}
    if not np.isnan(measured["input"]).any():
        per_request["total_tokens_per_s"] = tokens + measured["input"]
    rates: dict[str, float] = {}
    bounds: dict[str, list[float | None]] = {}
    for name, values in per_request.items():
        mean = float(values.mean())
        # Lengths are drawn one by one, whatever the requests then share.
        margin = mean_margin(float(values.std()), len(values)) / mean
        lower = math.hypot(math.log1p(-margin), behind) if margin < 1 else math.inf
        rates[name] = load.value * mean
        bounds[name] = [rates[name] * math.exp(-lower), rates[name] * (1 + margin)]
    return Sustained(**rates, ci95=bounds)


def meets_bounds(rows: Array, load: Load, slo: RequestBounds) -> Bools:
    """Mark the requests that are ok or short and within every bound (≤). One token has no TPOT to
    miss."""
    origin_s = arrays.origin_s(rows, load)
    met = arrays.is_completed(rows)
    tpot_s = np.where(rows["tokens"] == 1, 0.0, arrays.tpot_s(rows))
    for column, limit_s in (("first", slo.ttft_s), ("answer", slo.answer_s), ("last", slo.e2e_s)):
        if limit_s is not None:
            met &= rows[column] - origin_s <= limit_s
    return met if slo.tpot_s is None else met & (tpot_s <= slo.tpot_s)


def _achieved_rate_per_s(measured: Array) -> float | None:
    """(sends − 1)/(last send − first send); None below two sends or where all were sent at once."""
    sent = arrays.drop_missing(measured["sent"])
    return arrays.divide(len(sent) - 1, float(np.ptp(sent))) if len(sent) >= 2 else None


def _select(rows: Array, chosen: Bools) -> Array:
    """Take some of the rows, without a copy where they are neighbours: those of a million requests
    are 74 MB."""
    places = np.flatnonzero(chosen)
    return (
        rows[places[0] : places[-1] + 1]
        if len(places) and np.ptp(places) == len(places) - 1
        else rows[chosen]
    )


def _mean(values: Floats) -> float | None:
    present = arrays.drop_missing(values)
    return float(present.mean()) if len(present) else None
