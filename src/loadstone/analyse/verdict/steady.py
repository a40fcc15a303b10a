"""Rules on the state of the server: do the numbers describe one, or a moment on its way to another?
Are they enough?

Trends are looked for in blocks: the requests in the order they were due, cut into BLOCKS of equal
count, each block known by its median. Medians of blocks are robust against outliers, and
neighbouring requests, which share their fate in a queue, count as one. Kendall's τ of the blocks
says how steadily they rise, the first against the last three how far: a trend needs both. For ten
blocks in random order |τ| ≥ 0.75 has a probability of 0.001 (Kendall 1938). Blocks that are as good
as equal tell of no direction (τ_b, 1945): values that rise and then stay have risen. A sudden
change is looked for as such, in the gap that parts the blocks; a warm-up, which is shorter than
some of them, in the first requests against all others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from loadstone.analyse.verdict import thresholds
from loadstone.analyse.verdict.finding import finding
from loadstone.analyse.verdict.requests import Floats, JudgedCell, RequestTable
from loadstone.analyse.verdict.thresholds import BLOCKS, ENDS
from loadstone.core import arrays
from loadstone.core.pace import Unended
from loadstone.core.statistics import Distribution
from loadstone.core.statistics.dependence import Dependence, spread_between_places
from loadstone.core.summary import Finding
from loadstone.core.units import show_seconds

_LEAST_REQUESTS = BLOCKS * thresholds.BLOCK_REQUESTS
_LEAST_CLOSED = BLOCKS * thresholds.CLOSED_BLOCK_REQUESTS


def few_samples(cell: JudgedCell) -> Iterator[Finding]:
    """Find a p99 that the requests do not bound from above."""
    values = cell.ttft or cell.e2e
    if values is None:
        return
    low, high = values.ci95["p99"]
    if high is not None:
        return
    at_least = f"; it is at least {show_seconds(low)}" if low is not None else ""
    yield finding(
        "few_samples.dependent" if values.n >= thresholds.P99_REQUESTS else "few_samples",
        f"{values.n} requests do not bound the p99 from above{at_least}",
        requests=thresholds.P99_REQUESTS,
    )


class Change(NamedTuple):
    """Medians of the first and the last blocks of a cell; `at`: the share of the requests before a
    sudden change."""

    before: float
    after: float
    at: float | None = None


def _medians(values: Floats) -> Floats:
    """Compute the median of each block of `values`, which are in the order they were due, without
    NaN."""
    return np.array([np.median(block) for block in np.array_split(values, BLOCKS)])


def trend(values: Floats, least: int = _LEAST_REQUESTS) -> Change | None:
    """Find a steady rise or fall of the blocks: the medians of the first and the last ENDS of
    them."""
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
    """Find blocks of two kinds, one after the other: the medians of both.

    There are ENDS of each at least, further apart than those of a kind are from one another. The
    block within which it happens may be of neither.
    """
    if len(values) < least:
        return None
    medians = _medians(values)
    for within in (0, 1):
        for first in range(ENDS, BLOCKS - ENDS - within + 1):
            before, after = medians[:first], medians[first + within :]
            apart = max(after.min() - before.max(), before.min() - after.max())
            if apart > 0 and apart >= max(np.ptp(before), np.ptp(after)):
                return Change(
                    float(np.median(before)), float(np.median(after)), (first + within / 2) / BLOCKS
                )
    return None


def start(values: Floats, sign: int = 1) -> Change | None:
    """Find first requests that are slower (with `sign` −1 faster) than all later ones, three
    quarters of them than nine tenths of those: the mean of the first, the median of the others. A
    cause that lasts slows down more than a tenth of all, or not so many of the first.
    """
    for share in thresholds.STARTS:
        first, after = np.split(sign * values, [round(share * len(values))])
        if len(first) < thresholds.BLOCK_REQUESTS:
            break
        if np.quantile(first, 0.25) > np.quantile(after, 0.9):
            return Change(sign * float(first.mean()), sign * float(np.median(after)), share)
    return None


def sudden(values: Floats, least: int, *, closed: bool) -> Iterator[tuple[bool, Change, float]]:
    """Find sudden changes, each with whether it is a slow start, and the share of the requests that
    it makes slower or faster: blocks of two kinds; first requests that are slower. In a closed loop
    also first ones that are faster, as while credits last, and last ones that are slower: an open
    loop fills up at the start.
    """
    if (two := step(values, least)) is not None:
        yield False, two, 1.0
    ways = [(True, values, 1), (False, values, -1), (False, values[::-1], 1)]
    for slow_start, ordered, sign in ways if closed and len(values) >= least else ways[:1]:
        if (few := start(ordered, sign)) is not None and few.at:
            yield (
                slow_start,
                few if ordered is values else Change(few.after, few.before, 1 - few.at),
                few.at,
            )


def no_steady_state(cell: JudgedCell) -> Iterator[Finding]:
    """Find the gravest reason why the server is not in one state, and loops that do not tell if it
    keeps up."""
    gravest = _behind(cell) or _not_stationary(cell)
    if gravest is not None:
        yield gravest
    yield from _unknown_pace(cell)


def _behind(cell: JudgedCell) -> Finding | None:
    """Find a server that does not keep up with an open loop (core.pace)."""
    pace, load = cell.numbers.pace, cell.load
    if pace is None or pace.why is None:
        return None
    why, server = pace.why, ""
    if pace.replica is not None:
        urls = cell.target.urls if cell.target is not None else []
        server = f"{urls[pace.replica] if pace.replica < len(urls) else f'server {pace.replica}'}: "
    if isinstance(why, Unended):
        first, last = why.under_way
        return finding(
            "queue_grows",
            f"{server}requests took longer and longer up to the last: in the second half of the"
            f" sends, from {show_seconds(why.from_s)} to {show_seconds(why.span_s)}, {why.ended}"
            f" ended, {why.would} would have if each had taken as long as before, and requests"
            f" under way went from {first} to {last}",
        )
    lacked = "had not ended" if why.answers else "had no first token"
    evidence = (
        f"{server}at the last send, {show_seconds(why.span_s)} after the first, {why.waiting} of"
        f" {why.sent} requests {lacked}, one of them since {show_seconds(why.age_s)}, though it"
        f" takes {show_seconds(why.own_s)} where the server is not behind; it had last caught up"
        f" {show_seconds(why.since_s)} after the first send"
    )
    if why.answers and cell.streams:
        return finding("queue_grows", evidence)
    if load.process == "trace" or load.profile:
        return finding("overload.part", evidence)
    return finding("overload", evidence)


def _unknown_pace(cell: JudgedCell) -> Iterator[Finding]:
    pace, e2e = cell.numbers.pace, cell.e2e
    if pace is None or pace.keeps_up is not None or e2e is None:
        return
    if pace.growth is not None:
        evidence = (
            f"each request took {pace.growth[0]:.0%} ± {pace.growth[1]:.0%} longer per second that"
            " it was due later"
        )
    else:
        span_s = float(np.ptp(arrays.drop_missing(cell.measured.due_s)))
        evidence = (
            f"{e2e.n} requests in {show_seconds(span_s)}, each of which took"
            f" {show_seconds(e2e.mean)} on average"
        )
    yield finding("pace_unknown", f"{evidence}: too little to tell whether the server keeps up")


def _not_stationary(cell: JudgedCell) -> Finding | None:
    """Find a TTFT or TPOT (E2E, without streaming) that rises or falls through the cell, or at one
    moment of it, though the lengths that were requested did not.
    """
    e2e, load, plan = cell.e2e, cell.load, cell.plan
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
        return (
            high >= thresholds.DRIFT_RATIO * low
            and (high - low) * times >= thresholds.DRIFT_SHARE * e2e.p50
        )

    for latency, (each, times) in latencies.items():
        values = each[~np.isnan(each)]
        steadily = trend(values, least)
        if steadily is not None and matters(steadily, times):
            return finding(
                "not_stationary", f"{latency} went steadily {_from_to(steadily)} during the cell"
            )
        for slow_start, change, share in sudden(values, least, closed=load.is_closed):
            if matters(change, times * share):
                evidence = (
                    f"{latency} went at once {_from_to(change)} after {change.at:.0%} of the"
                    " requests"
                )
                return finding(
                    "not_stationary.start" if slow_start else "not_stationary.at_once", evidence
                )
    return None


def _from_to(change: Change) -> str:
    return f"from {show_seconds(change.before)} to {show_seconds(change.after)}"


def intervals(cell: JudgedCell) -> Iterator[Finding]:
    """Find means and throughputs that are known badly, or to an extent that nobody can tell."""
    latencies = {
        name: one
        for name, one in (("TTFT", cell.ttft), ("TPOT", cell.tpot), ("E2E", cell.e2e))
        if one is not None
    }
    yield from _wide_intervals(cell, latencies)
    # Slow stretches that last about as long as the cell: nobody can tell how many more there would
    # be.
    done = cell.completed
    known = Dependence.of(done.sent_s, done.last_s, places=cell.load.slots)
    unknown = [name for name, one in latencies.items() if one.ci95["mean"] == [None, None]]
    if unknown and known.most_blocks and known.places:
        yield finding(
            "interval_unknown",
            f"slow or fast stretches last about as long as the cell: its {len(done)} requests do"
            f" not tell how far {', '.join(unknown)} may be off",
        )


def _wide_intervals(cell: JudgedCell, latencies: Mapping[str, Distribution]) -> Iterator[Finding]:
    """Find a mean or throughput whose interval is wider than it. A warning where it is the
    throughput of a closed loop, whose load follows its answers: latencies of a queue below
    saturation may vary so.
    """
    wide, steady = [], cell.numbers.metrics.steady
    if len(cell.completed) < thresholds.WIDE_REQUESTS:
        return
    each = [
        (f"mean {name}", one.mean, one.ci95["mean"], show_seconds)
        for name, one in latencies.items()
    ]
    if steady is not None and cell.load.is_closed:
        bounds = steady.ci95["output_tokens_per_s"]
        each.append(("output tokens/s", steady.output_tokens_per_s, bounds, "{:.4g}".format))
    for name, value, (low, high), show in each:
        if low is not None and high is not None and high - low > value:
            wide.append(f"{name} {show(value)} ({show(low)} to {show(high)})")
    if wide:
        yield finding(
            "wide_interval.throughput" if wide[-1].startswith("output") else "wide_interval",
            f"95% intervals are wider than their values: {', '.join(wide)}",
        )


def phases_locked(cell: JudgedCell) -> Iterator[Finding]:
    """Find slots of a closed loop that stay together: requests that were sent together end
    together, and so do their successors, so that the same requests wait for each other all the time
    (core.statistics.dependence).
    """
    sent, slots = (
        cell.measured.pick(np.argsort(cell.measured.sent_s, kind="stable")),
        cell.load.slots,
    )
    unlike = cell.load.unit != "requests"
    if unlike or spread_between_places(np.diff(sent.sent_s), slots) < thresholds.LOCKED:
        return
    ttft_s = sent.first_s - sent.sent_s
    apart = cell.streams and spread_between_places(ttft_s, slots) >= thresholds.LOCKED_APART
    evidence = f"the gaps between sends repeat from one generation of the {slots} slots to the next"
    if apart:
        generations = ttft_s[: len(ttft_s) // slots * slots].reshape(-1, slots)
        low, high = np.quantile(np.median(generations, axis=0), (0.1, 0.9))
        evidence += (
            f", and the median TTFT of a slot is anywhere from {show_seconds(low)} to"
            f" {show_seconds(high)}"
        )
    yield finding(
        "phases_locked.ttft" if apart else "phases_locked",
        f"requests of equal length stay together in groups: {evidence}",
    )


def kinds_mixed(cell: JudgedCell) -> Iterator[Finding]:
    """Find answers of two kinds in turn: nothing lies between their paces, the faster ones also
    begin sooner, and neither prompts nor lengths tell them apart. An engine serves those that are
    under way together at one pace.
    """
    done = _in_order(cell.completed)
    done = done.pick((done.output_tokens >= thresholds.KINDS_TOKENS) & (done.last_s > done.first_s))
    if not cell.streams or len(done) < _LEAST_CLOSED or len(cell.replicas) > 1:
        return
    pace_s, ttft_s = (
        (done.last_s - done.first_s) / (done.output_tokens - 1),
        done.first_s - done.sent_s,
    )
    block = len(done) // BLOCKS
    each_s = np.sort(pace_s)[block - 1 : 1 - block]
    times = each_s[1:] / each_s[:-1]
    if times.max() < thresholds.KINDS_APART:
        return
    fast, plan = pace_s <= each_s[times.argmax()], cell.plan
    rows = [cell.plan_rows(done)[kind] for kind in (fast, ~fast)]
    asked = [
        [float(of[each].mean()) + 1 for each in rows]
        for of in (plan.input_tokens, plan.output_tokens)
    ]
    alike = all(max(both) < thresholds.LENGTHS_RATIO * min(both) for both in asked)
    in_turn = (
        np.count_nonzero(np.diff(fast)) * len(fast)
        >= thresholds.KINDS_IN_TURN * 2 * fast.sum() * (~fast).sum()
    )
    sooner = np.quantile(ttft_s[fast], 0.75) < np.quantile(ttft_s[~fast], 0.25)
    if alike and in_turn and sooner:
        told = [
            show_seconds(float(np.median(of[kind])))
            for kind in (fast, ~fast)
            for of in (ttft_s, pace_s)
        ]
        words = (
            "{} of {} answers began after {}, with a token every {}, the others, in turn, after {}"
            " and every {}"
        )
        evidence = words.format(fast.sum(), len(fast), *told)
        yield finding(
            "kinds_mixed.others" if times.max() >= thresholds.KINDS_OTHERS else "kinds_mixed",
            evidence,
        )


def _in_order(requests: RequestTable) -> RequestTable:
    """Sort requests by when they were due, without those that have no such time or no arrivals."""
    due_s = requests.due_s
    order = np.argsort(due_s, kind="stable")
    known = ~np.isnan(due_s) & ~np.isnan(requests.first_s)
    return requests.pick(order[known[order]])
