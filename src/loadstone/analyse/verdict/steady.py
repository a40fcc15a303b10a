"""Do the numbers describe a state of the server, or a moment on its way to another? And are they enough?

Trends are looked for in blocks: the requests in the order they were due, cut into BLOCKS of equal count, each block
known by its median. Medians of blocks are robust against outliers, and neighbouring requests, which share their fate
in a queue, count as one. Kendall's τ of the blocks says how steadily they rise, the first against the last three how
far: a trend needs both. For ten blocks in random order |τ| ≥ 0.75 has a probability of 0.001 (Kendall 1938).
Blocks that are as good as equal tell of no direction (τ_b, 1945): what rises and then stays has risen.
A sudden change is looked for as such, in the gap that parts the blocks; a warm-up, which is shorter than some of
them, in the first requests against all others.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from loadstone.analyse.verdict import thresholds
from loadstone.analyse.verdict.finding import finding
from loadstone.analyse.verdict.requests import Cell, Floats, RequestTable
from loadstone.analyse.verdict.thresholds import BLOCKS, ENDS
from loadstone.core import arrays
from loadstone.core.pace import Unended
from loadstone.core.statistics.dependence import Dependence, spread_between_places
from loadstone.core.summary import Finding
from loadstone.core.units import show_seconds

_LEAST_REQUESTS = BLOCKS * thresholds.BLOCK_REQUESTS
_LEAST_CLOSED = BLOCKS * thresholds.CLOSED_BLOCK_REQUESTS


def few_samples(cell: Cell) -> Finding | None:
    """Requests that do not bound a p99 from above."""
    values = cell.metrics.ttft_s or cell.metrics.e2e_s
    if values is None:
        return None
    low, high = values.ci95["p99"]
    if high is not None:
        return None
    at_least = f"; it is at least {show_seconds(low)}" if low is not None else ""
    return finding(
        "few_samples.dependent" if values.n >= thresholds.P99_REQUESTS else "few_samples",
        f"{values.n} requests do not bound the p99 from above{at_least}",
        requests=thresholds.P99_REQUESTS,
    )


class Change(NamedTuple):
    """Medians of the first and the last blocks of a cell; `at`: the share of the requests before a sudden change."""

    before: float
    after: float
    at: float | None = None


def _medians(values: Floats) -> Floats:
    """Of the blocks of `values`, which are in the order they were due, without NaN."""
    return np.array([np.median(block) for block in np.array_split(values, BLOCKS)])


def trend(values: Floats, least: int = _LEAST_REQUESTS) -> Change | None:
    """Where the blocks rise or fall steadily: the medians of the first and the last ENDS of them."""
    if len(values) < least:
        return None
    medians = _medians(values)
    apart = (medians[None, :] - medians[:, None])[np.triu_indices(BLOCKS, 1)]
    apart[np.abs(apart) < thresholds.TIED * float(np.median(medians))] = 0.0
    known = np.count_nonzero(apart)
    if abs(np.sign(apart).sum()) < thresholds.TAU * math.sqrt(len(apart) * known) or not known:
        return None
    return Change(float(np.median(medians[:ENDS])), float(np.median(medians[-ENDS:])))


def step(values: Floats, least: int = _LEAST_REQUESTS) -> Change | None:
    """Where the blocks are of two kinds, one after the other: the medians of both.

    There are ENDS of each at least, further apart than those of a kind are from one another. The block within which
    it happens may be of neither.
    """
    if len(values) < least:
        return None
    medians = _medians(values)
    for within in (0, 1):
        for first in range(ENDS, BLOCKS - ENDS - within + 1):
            before, after = medians[:first], medians[first + within :]
            apart = max(after.min() - before.max(), before.min() - after.max())
            if apart > 0 and apart >= max(np.ptp(before), np.ptp(after)):
                return Change(float(np.median(before)), float(np.median(after)), (first + within / 2) / BLOCKS)
    return None


def start(values: Floats) -> Change | None:
    """Where the first requests are of another kind than all later ones: three quarters of them are slower than nine
    tenths of those. The mean of the first, the median of the others. What slows down some requests all the time slows
    down more than a tenth of them, or not so many of the first.
    """
    for share in thresholds.STARTS:
        first, after = np.split(values, [round(share * len(values))])
        if len(first) < thresholds.BLOCK_REQUESTS:
            break
        if np.quantile(first, 0.25) > np.quantile(after, 0.9):
            return Change(float(first.mean()), float(np.median(after)), share)
    return None


def no_steady_state(cell: Cell) -> Finding | None:
    """The gravest of what is wrong where the server is not in one state."""
    return falls_behind(cell) or not_stationary(cell)


def falls_behind(cell: Cell) -> Finding | None:
    """In an open loop: the server does not keep up (core.pace)."""
    pace, load = cell.metrics.pace, cell.load
    if pace is None or pace.why is None:
        return None
    why, of = pace.why, ""
    if pace.replica is not None:
        urls = cell.target.urls if cell.target is not None else []
        of = f"{urls[pace.replica] if pace.replica < len(urls) else f'server {pace.replica}'}: "
    if isinstance(why, Unended):
        first, last = why.under_way
        return finding(
            "queue_grows",
            f"{of}requests took longer and longer up to the last: in the second half of the sends, from "
            f"{show_seconds(why.from_s)} to {show_seconds(why.span_s)}, {why.ended} ended, {why.would} would have if "
            f"each had taken as long as before, and requests under way went from {first} to {last}",
        )
    lacked = "had not ended" if why.answers else "had no first token"
    evidence = (
        f"{of}at the last send, {show_seconds(why.span_s)} after the first, {why.waiting} of {why.sent} requests "
        f"{lacked}, one of them since {show_seconds(why.age_s)}, though it takes {show_seconds(why.own_s)} where the "
        f"server is not behind; it had last caught up {show_seconds(why.since_s)} after the first send"
    )
    if why.answers and cell.streams:
        return finding("queue_grows", evidence)
    if load.process == "trace" or load.profile:
        return finding("overload.part", evidence)
    return finding("overload", evidence)


def pace_unknown(cell: Cell) -> Finding | None:
    """In an open loop: its requests do not tell whether the server keeps up."""
    pace, e2e = cell.metrics.pace, cell.metrics.e2e_s
    if pace is None or pace.keeps_up is not None or e2e is None:
        return None
    if pace.growth is not None:
        evidence = (
            f"each request took {pace.growth[0]:.0%} ± {pace.growth[1]:.0%} longer per second that it was due later"
        )
    else:
        span_s = float(np.ptp(arrays.drop_missing(cell.measured.due_s)))
        evidence = (
            f"{e2e.n} requests in {show_seconds(span_s)}, each of which took {show_seconds(e2e.mean)} on average"
        )
    return finding("pace_unknown", f"{evidence}: too little to tell whether the server keeps up")


def not_stationary(cell: Cell) -> Finding | None:
    """TTFT or TPOT (E2E, without streaming) rises or falls through the cell, or at one moment of it, though nothing
    that was requested did.
    """
    e2e, load, plan = cell.metrics.e2e_s, cell.load, cell.plan
    if e2e is None or load.is_burst or load.profile or load.process == "trace" or plan.has_sessions:
        return None
    done = _in_order(cell.completed)
    rows = cell.plan_rows(done)
    least = _LEAST_CLOSED if load.is_closed else _LEAST_REQUESTS
    for lengths in (plan.input_tokens[rows], plan.output_tokens[rows]):
        change = trend(lengths.astype(np.float64), least) or step(lengths.astype(np.float64), least)
        ratio = thresholds.LENGTHS_RATIO
        if change and not 1 / ratio < (change.after + 1) / (change.before + 1) < ratio:
            return None
    latencies = {"E2E": (done.last_s - done.sent_s, 1.0)}
    if cell.streams:
        tokens = np.where(done.output_tokens >= 2, done.output_tokens - 1, np.nan)
        mean = float(np.nanmean(tokens)) if not np.isnan(tokens).all() else 0.0
        latencies = {
            "TTFT": (done.first_s - done.sent_s, 1.0),
            "TPOT": ((done.last_s - done.first_s) / tokens, mean),  # × its count is its part of E2E
        }

    def matters(change: Change, times: float) -> bool:
        low, high = sorted(change[:2])
        return high >= thresholds.DRIFT_RATIO * low and (high - low) * times >= thresholds.DRIFT_SHARE * e2e.p50

    for latency, (each, times) in latencies.items():
        values = each[~np.isnan(each)]
        steadily, at_once, starting = trend(values, least), step(values, least), start(values)
        if steadily is not None and matters(steadily, times):
            return finding("not_stationary", f"{latency} went steadily {_from_to(steadily)} during the cell")
        if at_once is not None and matters(at_once, times):
            return finding(
                "not_stationary.at_once",
                f"{latency} went at once {_from_to(at_once)} after {at_once.at:.0%} of the requests",
            )
        if starting is not None and matters(starting, times * (starting.at or 0.0)):
            return finding(
                "not_stationary.start",
                f"{latency} went down {_from_to(starting)} after the first {starting.at:.0%} of the requests",
            )
    return None


def _from_to(change: Change) -> str:
    return f"from {show_seconds(change.before)} to {show_seconds(change.after)}"


def wide_interval(cell: Cell) -> Finding | None:
    """A mean or throughput whose interval is wider than it. A warning where it is the throughput of a closed loop,
    whose load follows its answers: latencies of a queue below saturation may vary so.
    """
    metrics, wide = cell.metrics, []
    if len(cell.completed) < thresholds.WIDE_REQUESTS:
        return None
    named = {"TTFT": metrics.ttft_s, "TPOT": metrics.tpot_s, "E2E": metrics.e2e_s}
    each = [
        (f"mean {name}", one.mean, one.ci95["mean"], show_seconds) for name, one in named.items() if one is not None
    ]
    if metrics.steady is not None and cell.load.is_closed:
        rate, bounds = metrics.steady.output_tokens_per_s, metrics.steady.ci95["output_tokens_per_s"]
        each.append(("output tokens/s", rate, bounds, "{:.4g}".format))
    for name, value, (low, high), show in each:
        if low is not None and high is not None and high - low > value:
            wide.append(f"{name} {show(value)} ({show(low)} to {show(high)})")
    if not wide:
        return None
    evidence = f"95 % intervals are wider than their values: {', '.join(wide)}"
    return finding("wide_interval.throughput" if wide[-1].startswith("output") else "wide_interval", evidence)


def interval_unknown(cell: Cell) -> Finding | None:
    """Slow stretches that last about as long as the cell, so that nobody can tell how many more there would be."""
    done, metrics = cell.completed, cell.metrics
    known = Dependence.of(done.sent_s, done.last_s, places=cell.load.slots)
    named = {"TTFT": metrics.ttft_s, "TPOT": metrics.tpot_s, "E2E": metrics.e2e_s}
    unknown = [name for name, one in named.items() if one is not None and one.ci95["mean"] == [None, None]]
    if not unknown or not known.most_blocks or not known.places:
        return None
    return finding(
        "interval_unknown",
        f"slow or fast stretches last about as long as the cell: its {len(done)} requests do not tell how far "
        f"{', '.join(unknown)} may be off",
    )


def phases_locked(cell: Cell) -> Finding | None:
    """In a closed loop: requests that were sent together end together and are followed by such as are sent together,
    so that who waits for whom stays as it came about (core.statistics.dependence).
    """
    sent, places = cell.measured.pick(np.argsort(cell.measured.sent_s, kind="stable")), cell.load.slots
    unlike = cell.load.unit != "requests"
    if unlike or spread_between_places(np.diff(sent.sent_s), places) < thresholds.LOCKED:
        return None
    ttft_s = sent.first_s - sent.sent_s
    apart = cell.streams and spread_between_places(ttft_s, places) >= thresholds.LOCKED_APART
    evidence = f"the gaps between sends repeat from one generation of the {places} slots to the next"
    if apart:
        generations = ttft_s[: len(ttft_s) // places * places].reshape(-1, places)
        low, high = np.quantile(np.median(generations, axis=0), (0.1, 0.9))
        evidence += f", and the median TTFT of a slot is anywhere from {show_seconds(low)} to {show_seconds(high)}"
    return finding(
        "phases_locked.ttft" if apart else "phases_locked",
        f"requests of equal length stay together in groups: {evidence}",
    )


def _in_order(requests: RequestTable) -> RequestTable:
    """By when they were due; those that were, and have arrivals."""
    due_s = requests.due_s
    order = np.argsort(due_s, kind="stable")
    known = ~np.isnan(due_s) & ~np.isnan(requests.first_s)
    return requests.pick(order[known[order]])
