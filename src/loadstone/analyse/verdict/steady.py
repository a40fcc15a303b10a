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
from loadstone.analyse.verdict.requests import Cell, Floats, RequestTable, under_way
from loadstone.analyse.verdict.thresholds import BLOCKS, ENDS
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
    return overload(cell) or queue_grows(cell) or not_stationary(cell)


def overload(cell: Cell) -> Finding | None:
    """In an open loop: the server does not keep up. Where the load is meant to change, waits that grow may be its
    doing, and only those count that are left at its end.
    """
    if not cell.load.is_open:
        return None
    if not cell.load.profile and cell.load.process != "trace":
        return _waits_grow(cell)
    return _never_caught_up(cell.measured) if cell.streams else None


def _waits_grow(cell: Cell) -> Finding | None:
    """At one rate: requests under way and the time to the first token (whole answer, without streaming) both rise
    through the cell. A short cell that only fills up has the first without the second.
    """
    measured = cell.measured
    done = _in_order(measured.pick(measured.completed & ~(measured.turn > 0)))
    waited = trend((done.first_s if cell.streams else done.last_s) - done.due_s)
    if waited is None or waited.after < thresholds.OVERLOAD_RATIO * waited.before:
        return None
    due_s = measured.due_s
    backlog = np.array_split(under_way(measured, np.sort(due_s[~np.isnan(due_s)]), since=due_s), BLOCKS)
    first, last = float(np.mean(backlog[ENDS - 1])), float(np.mean(backlog[-1]))
    if last < thresholds.BACKLOG_RATIO * first or last - first < thresholds.BACKLOG_MORE:
        return None
    latency = "TTFT" if cell.streams else "E2E"
    since = "sending" if np.isnan(measured.intended_s).all() else "the intended time"
    return finding(
        "overload",
        f"requests under way rose from {first:.0f} to {last:.0f}, and {latency} counted from {since} rose from "
        f"{show_seconds(waited.before)} to {show_seconds(waited.after)} during the cell",
    )


def _never_caught_up(measured: RequestTable) -> Finding | None:
    """First tokens are behind at the last send by a good part of the sends, and have been so for long. A burst that
    the server catches up with leaves nothing of that, nor does a ramp that comes down again in time.
    """
    starters = measured.pick(~(measured.turn > 0) & ~np.isnan(measured.due_s))
    done = _in_order(starters.pick(starters.completed))
    if len(done) < _LEAST_REQUESTS:
        return None
    waits_s = np.array_split(done.first_s - done.due_s, BLOCKS)
    own_s = min(float(np.quantile(block, thresholds.BEHIND_OWN)) for block in waits_s)
    due_s = np.sort(starters.due_s)
    left_s = np.where(np.isnan(starters.first_s), starters.end_s, starters.first_s)
    behind = _behind_s(due_s, left_s, due_s)
    span_s = due_s[-1] - due_s[0]
    if behind[-1] < max(thresholds.BEHIND_SHARE * span_s, thresholds.OVERLOAD_RATIO * own_s):
        return None
    since = int(np.flatnonzero(behind <= thresholds.BEHIND_SINCE * behind[-1])[-1])
    part_s = due_s[-1] - due_s[since]
    if part_s < thresholds.BEHIND_LASTS * span_s:
        return None
    at_s = due_s[[since, -1]]
    first, last = under_way(starters, at_s, since=starters.due_s)
    if last - first < thresholds.BACKLOG_MORE:
        return None
    came = len(due_s) - 1 - since
    began = int(((left_s > at_s[0]) & (left_s <= at_s[1])).sum())
    return finding(
        "overload.part",
        f"from {show_seconds(due_s[since] - due_s[0])} to the last send at {show_seconds(span_s)} the server did not "
        f"catch up: {came / part_s:.3g} requests/s came and {began / part_s:.3g} got their first token, requests "
        f"under way went from {first} to {last}, and at the end first tokens were {show_seconds(behind[-1])} behind",
    )


def queue_grows(cell: Cell) -> Finding | None:
    """In an open loop: requests take ever longer, up to the last that is sent, so that fewer end than would if each
    took as long as before; at one rate these are as many as begin. Prefill may go first and TTFT stay low meanwhile;
    each request's share of the server falls, so that E2E, TPOT and throughput follow from how long the cell lasts.

    What begins less what ends in a time, both at random, has the variance of their sum; arrivals of gamma times have
    1/shape times theirs. A server that keeps up has far less: what it is behind, it takes up later.
    """
    if not cell.load.is_open:
        return None
    measured, due_s = cell.measured, cell.measured.due_s
    starters_s = np.sort(due_s[~np.isnan(due_s) & ~(measured.turn > 0)])
    if len(starters_s) < _LEAST_REQUESTS:
        return None
    half, quarter, last = (round(share * (len(starters_s) - 1)) for share in (0.5, 0.75, 1.0))
    at_s = starters_s[[half, quarter, last]]
    begun_s = np.sort(due_s[~np.isnan(due_s)])
    backlog = under_way(measured, at_s, since=due_s)
    ended = np.searchsorted(begun_s, at_s, side="right") - backlog
    behind = _behind_s(begun_s, measured.end_s, at_s)
    would = np.searchsorted(begun_s, at_s[1:] - behind[:-1], side="right") - ended[:-1]
    missing = would - np.diff(ended)
    from_s, span_s = at_s[0] - starters_s[0], at_s[-1] - starters_s[0]
    # Where half of the requests come in a moment, they may be late by more of it, and yet by next to nothing.
    too_few = (missing < thresholds.UNENDED_SHARE * would).any()
    if too_few or behind[-1] - behind[0] < thresholds.BEHIND_SHARE * span_s:
        return None
    more, of = int(missing.sum()), int(would.sum())
    scatter = of / min(1.0, cell.load.burstiness) + of - more
    if more < thresholds.UNENDED_SIGMAS * math.sqrt(scatter):
        return None
    return finding(
        "queue_grows",
        f"requests took longer and longer up to the last: in the second half of the sends, from "
        f"{show_seconds(from_s)} to {show_seconds(span_s)}, {of - more} ended, {of} would have if each had taken as "
        f"long as before, and requests under way went from {backlog[0]} to {backlog[-1]}",
    )


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
    known = Dependence.of(done.sent_s, done.last_s, places=cell.load.places)
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
    sent, places = cell.measured.pick(np.argsort(cell.measured.sent_s, kind="stable")), cell.load.places
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


def _behind_s(due_s: Floats, left_s: Floats, at_s: Floats) -> Floats:
    """How far behind a server is at each moment, as if it took requests in the order they are due: the time since the
    one was due that is next to leave. `due_s`: sorted; `left_s`: when each left, in any order; NaN: never.
    """
    left = np.searchsorted(np.sort(np.where(np.isnan(left_s), np.inf, left_s)), at_s, side="right")
    return np.asarray(np.maximum(0.0, at_s - np.append(due_s, np.inf)[left]))


def _in_order(requests: RequestTable) -> RequestTable:
    """By when they were due; those that were, and have arrivals."""
    due_s = requests.due_s
    order = np.argsort(due_s, kind="stable")
    known = ~np.isnan(due_s) & ~np.isnan(requests.first_s)
    return requests.pick(order[known[order]])
