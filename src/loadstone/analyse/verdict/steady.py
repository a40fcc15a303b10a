"""Do the numbers describe a state of the server, or a moment on its way to another? And are they enough?

Trends are looked for in blocks: the requests in the order they were due, cut into BLOCKS of equal count, each block
known by its median. Medians of blocks are robust against outliers, and neighbouring requests, which share their fate
in a queue, count as one. Kendall's τ of the blocks says how steadily they rise, the first against the last three how
far: a trend needs both. For ten blocks in random order |τ| ≥ 0.7 has a probability of about 0.002 (Kendall 1938).
A sudden change half-way through has a τ of 0.56 at most: it is looked for as such, in the gap that parts the blocks.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from loadstone.analyse.metrics import CellMetrics
from loadstone.analyse.verdict.facts import Facts, Floats, plan_rows, under_way
from loadstone.analyse.verdict.finding import Finding
from loadstone.core import Load, Plan
from loadstone.core.statistics import autocorrelation
from loadstone.core.units import show_seconds

BLOCKS = 10
BLOCK_REQUESTS = 5
"""Requests in a block, at least: below 50 in all, chance looks like a trend."""
TAU = 0.7
ENDS = 3
"""Blocks that stand for the beginning of a cell, or its end."""
DRIFT_RATIO = 1.25
"""The last blocks over the first, or the inverse, from which a cell has no one latency."""
DRIFT_SHARE = 0.05
"""The change's share of the median E2E from which it matters."""
LENGTHS_RATIO = 1.1
"""A change of the lengths asked for, from which a change of latencies is their doing."""
OVERLOAD_RATIO = 2.5
"""Growth of TTFT from the intended time, from which a server does not keep up: in a queue that grows evenly the last
blocks wait more than five times as long as the first, their own prefill apart."""
BEHIND_SHARE = 0.05
"""Of the time of the sends, by which a server that has not kept up is behind at its end; and by which it falls
behind in its second half where a tenth fewer end than would."""
BEHIND_OWN = 0.9
"""Quantile of the waits in the block that waited least: so much is a request's own, and no queue."""
BEHIND_SINCE = 0.1
"""Of how far it is behind at the end: when it was less, it had caught up."""
BEHIND_LASTS = 0.25
"""Of the time of the sends, since when it has not: what begins later is a burst whose end was not seen."""
BACKLOG_RATIO = 1.5
BACKLOG_MORE = 4
"""Growth of the requests under way that goes with it: times, and requests at least."""
UNENDED_SHARE = 0.1
"""Of the requests that begin in each of the last two quarters, the part that those that end fall short by: as many
more would be under way after another E2E."""
UNENDED_SIGMAS = 3.0
"""Standard deviations of the difference of two random counts by which they do so over the last half. Of 800 cells at
0.8, 0.9 and 0.95 of a server's capacity, 50 to 2,000 requests, at most 4 are beyond both; of those at 1.3 times it
29 % with 400 requests and 99 % with 2,000, at twice it all with 400."""

LOCKED = 0.8
"""Standard deviation of the mean gaps between sends, of a closed loop's places over their generations, as a share of
the mean gap, from which requests are sent in groups that stay: 1 where all are in pairs. In 50 simulated loops of
equal lengths it was up to 0.74 or from 0.84 on, in 50 of spread lengths 0 (docs/measuring.md)."""
LOCKED_APART = 0.2
"""The same of TTFT, from which its percentiles depend on how many places are in which group."""

P99_REQUESTS = 368
"""Independent requests that bound a p99 from above with 97.5 %: 0.99ⁿ ≤ 0.025."""


def few_samples(metrics: CellMetrics) -> Finding | None:
    values = metrics.ttft_s or metrics.e2e_s
    if values is None:
        return None
    low, high = values.ci95["p99"]
    if high is not None:
        return None
    at_least = f"; it is at least {show_seconds(low)}" if low is not None else ""
    remedy = f"For a p99 with a 95 % bound on both sides, measure {P99_REQUESTS} requests or more."
    if values.n >= P99_REQUESTS:
        remedy = "They were slow together, so they count as fewer independent ones: measure several times as many."
    return Finding("few_samples", "info", f"{values.n} requests do not bound the p99 from above{at_least}", remedy)


class Change(NamedTuple):
    """Medians of the first and the last blocks of a cell; `at`: the share of the requests before a sudden change."""

    before: float
    after: float
    at: float | None = None


def _medians(values: Floats) -> Floats | None:
    """Of BLOCKS blocks; None where these are too few values. `values` in the order they were due, without NaN."""
    if len(values) < BLOCKS * BLOCK_REQUESTS:
        return None
    return np.array([np.median(block) for block in np.array_split(values, BLOCKS)])


def trend(values: Floats) -> Change | None:
    """Where the blocks rise or fall steadily: the medians of the first and the last ENDS of them."""
    medians = _medians(values)
    if medians is None:
        return None
    pairs = np.sign(medians[None, :] - medians[:, None])[np.triu_indices(BLOCKS, 1)]
    if abs(pairs.mean()) < TAU:
        return None
    return Change(float(np.median(medians[:ENDS])), float(np.median(medians[-ENDS:])))


def step(values: Floats) -> Change | None:
    """Where the blocks are of two kinds, one after the other: the medians of both.

    There are ENDS of each at least, further apart than those of a kind are from one another. The block within which
    it happens may be of neither.
    """
    medians = _medians(values)
    if medians is None:
        return None
    for within in (0, 1):
        for first in range(ENDS, BLOCKS - ENDS - within + 1):
            before, after = medians[:first], medians[first + within :]
            apart = max(after.min() - before.max(), before.min() - after.max())
            if apart > 0 and apart >= max(np.ptp(before), np.ptp(after)):
                return Change(float(np.median(before)), float(np.median(after)), (first + within / 2) / BLOCKS)
    return None


def overload(load: Load, measured: Facts, streams: bool) -> Finding | None:
    """In an open loop: the server does not keep up. Where the load is meant to change, waits that grow may be its
    doing, and only those tell that are left at its end.
    """
    if load.kind != "rate":
        return None
    if not load.profile and load.process != "trace":
        return _waits_grow(measured, streams)
    return _never_caught_up(measured) if streams else None


def _waits_grow(measured: Facts, streams: bool) -> Finding | None:
    """At one rate: requests under way and the time to the first token (whole answer, without streaming) both rise
    through the cell. A short cell that only fills up has the first without the second.
    """
    done = _in_order(measured.pick(measured.completed & ~(measured.turn > 0)))
    waited = trend((done.first_s if streams else done.last_s) - _due_s(done))
    if waited is None or waited.after < OVERLOAD_RATIO * waited.before:
        return None
    due_s = _due_s(measured)
    backlog = np.array_split(under_way(measured, np.sort(due_s[~np.isnan(due_s)]), since=due_s), BLOCKS)
    first, last = float(np.mean(backlog[ENDS - 1])), float(np.mean(backlog[-1]))
    if last < BACKLOG_RATIO * first or last - first < BACKLOG_MORE:
        return None
    what = "TTFT" if streams else "E2E"
    since = "sending" if np.isnan(measured.intended_s).all() else "the intended time"
    return Finding(
        "overload",
        "warning",
        f"requests under way rose from {first:.0f} to {last:.0f}, and {what} counted from {since} rose from "
        f"{show_seconds(waited.before)} to {show_seconds(waited.after)} during the cell",
        "The server does not keep up with this rate: latencies grow with the length of the cell. Lower the rate.",
    )


def _never_caught_up(measured: Facts) -> Finding | None:
    """First tokens are behind at the last send by a good part of the sends, and have been so for long. A burst that
    the server catches up with leaves nothing of that, nor does a ramp that comes down again in time.
    """
    starters = measured.pick(~(measured.turn > 0) & ~np.isnan(_due_s(measured)))
    done = _in_order(starters.pick(starters.completed))
    if len(done) < BLOCKS * BLOCK_REQUESTS:
        return None
    waits_s = np.array_split(done.first_s - _due_s(done), BLOCKS)
    own_s = min(float(np.quantile(block, BEHIND_OWN)) for block in waits_s)
    due_s = np.sort(_due_s(starters))
    left_s = np.where(np.isnan(starters.first_s), starters.end_s, starters.first_s)
    behind = _behind_s(due_s, left_s, due_s)
    span_s = due_s[-1] - due_s[0]
    if behind[-1] < max(BEHIND_SHARE * span_s, OVERLOAD_RATIO * own_s):
        return None
    since = int(np.flatnonzero(behind <= BEHIND_SINCE * behind[-1])[-1])
    part_s = due_s[-1] - due_s[since]
    if part_s < BEHIND_LASTS * span_s:
        return None
    at_s = due_s[[since, -1]]
    first, last = under_way(starters, at_s, since=_due_s(starters))
    if last - first < BACKLOG_MORE:
        return None
    came = len(due_s) - 1 - since
    began = int(((left_s > at_s[0]) & (left_s <= at_s[1])).sum())
    return Finding(
        "overload",
        "warning",
        f"from {show_seconds(due_s[since] - due_s[0])} to the last send at {show_seconds(span_s)} the server did not "
        f"catch up: {came / part_s:.3g} requests/s came and {began / part_s:.3g} got their first token, requests "
        f"under way went from {first} to {last}, and at the end first tokens were {show_seconds(behind[-1])} behind",
        "The server does not keep up with this part of the load: latencies grow with its length. Lower the load, or "
        "read the part before it.",
    )


def queue_grows(load: Load, measured: Facts) -> Finding | None:
    """In an open loop: requests take ever longer, up to the last that is sent, so that fewer end than would if each
    took as long as before; at one rate these are as many as begin. Prefill may go first and TTFT stay low meanwhile;
    each request's share of the server falls, so that E2E, TPOT and throughput follow from how long the cell lasts.

    What begins less what ends in a time, both at random, has the variance of their sum; arrivals of gamma times have
    1/shape times theirs. A server that keeps up has far less: what it is behind, it takes up later.
    """
    if load.kind != "rate":
        return None
    due_s = _due_s(measured)
    starters_s = np.sort(due_s[~np.isnan(due_s) & ~(measured.turn > 0)])
    if len(starters_s) < BLOCKS * BLOCK_REQUESTS:
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
    if (missing < UNENDED_SHARE * would).any() or behind[-1] - behind[0] < BEHIND_SHARE * span_s:
        return None
    more, of = int(missing.sum()), int(would.sum())
    scatter = of / min(1.0, load.burstiness) + of - more
    if more < UNENDED_SIGMAS * math.sqrt(scatter):
        return None
    return Finding(
        "queue_grows",
        "warning",
        f"requests took longer and longer up to the last: in the second half of the sends, from "
        f"{show_seconds(from_s)} to {show_seconds(span_s)}, {of - more} ended, {of} would have if each had taken as "
        f"long as before, and requests under way went from {backlog[0]} to {backlog[-1]}",
        "The results depend on how long the load lasted: measure for several times the E2E, or lower the rate.",
    )


def not_stationary(
    metrics: CellMetrics, load: Load, measured: Facts, plan: Plan, cell: int, streams: bool
) -> Finding | None:
    """TTFT or TPOT (E2E, without streaming) rises or falls through the cell, or at one moment of it, though nothing
    that was asked did.
    """
    if metrics.e2e_s is None or load.kind == "burst" or load.profile or load.process == "trace" or plan.has_sessions:
        return None
    done = _in_order(measured.pick(measured.completed))
    rows = plan_rows(done, plan, cell)
    for asked in (plan.input_tokens[rows], plan.output_tokens[rows]):
        lengths = asked.astype(np.float64)
        change = trend(lengths) or step(lengths)
        if change and not 1 / LENGTHS_RATIO < (change.after + 1) / (change.before + 1) < LENGTHS_RATIO:
            return None
    tokens = np.where(done.output_tokens >= 2, done.output_tokens - 1, np.nan)
    looked_at = {"E2E": (done.last_s - done.sent_s, 1.0)}
    if streams:
        mean = float(np.nanmean(tokens)) if not np.isnan(tokens).all() else 0.0
        looked_at = {
            "TTFT": (done.first_s - done.sent_s, 1.0),
            "TPOT": ((done.last_s - done.first_s) / tokens, mean),  # × its count is its part of E2E
        }
    for what, (values, times) in looked_at.items():
        known = values[~np.isnan(values)]
        change = trend(known) or step(known)
        if change is None:
            continue
        low, high = sorted(change[:2])
        if high < DRIFT_RATIO * low or (high - low) * times < DRIFT_SHARE * metrics.e2e_s.p50:
            continue
        how, when = "steadily", "during the cell"
        if change.at is not None:
            how, when = "at once", f"after {change.at:.0%} of the requests"
        return Finding(
            "not_stationary",
            "warning",
            f"{what} went {how} from {show_seconds(change.before)} to {show_seconds(change.after)} {when}",
            "The percentiles mix different states: warm up or measure longer, until the change has ended."
            if change.at is None
            else "The percentiles mix two states: find out what happened then (another job, lower clocks, a queue), "
            "and measure again, or longer.",
        )
    return None


def phases_locked(load: Load, measured: Facts, streams: bool) -> Finding | None:
    """In a closed loop: requests that were sent together end together and are followed by such as are sent together,
    so that who waits for whom stays as it came about (statistics.rhythm).
    """
    sent = measured.pick(np.argsort(measured.sent_s, kind="stable"))
    if load.unit != "requests" or autocorrelation.spread(np.diff(sent.sent_s), load.places) < LOCKED:
        return None
    ttft_s = sent.first_s - sent.sent_s
    apart = autocorrelation.spread(ttft_s, load.places) if streams else 0.0
    evidence = f"the gaps between sends repeat from one generation of the {load.places} slots to the next"
    if apart >= LOCKED_APART:
        generations = ttft_s[: len(ttft_s) // load.places * load.places].reshape(-1, load.places)
        low, high = np.quantile(np.median(generations, axis=0), (0.1, 0.9))
        evidence += f", and the median TTFT of a slot is anywhere from {show_seconds(low)} to {show_seconds(high)}"
    return Finding(
        "phases_locked",
        "warning" if apart >= LOCKED_APART else "info",
        f"requests of equal length stay together in groups: {evidence}",
        "TTFT is that of these groups, not of independent users: spread the lengths (--range-ratio 0.5) or send at a "
        "--rate. E2E and throughput hardly depend on it.",
    )


def _behind_s(due_s: Floats, left_s: Floats, at_s: Floats) -> Floats:
    """How far behind a server is at each moment, as if it took requests in the order they are due: the time since the
    one was due that is next to leave. `due_s`: sorted; `left_s`: when each left, in any order; NaN: never.
    """
    left = np.searchsorted(np.sort(np.where(np.isnan(left_s), np.inf, left_s)), at_s, side="right")
    behind: Floats = np.maximum(0.0, at_s - np.append(due_s, np.inf)[left])
    return behind


def _due_s(facts: Facts) -> Floats:
    """Intended times; of imported requests, whose are not told, when they were sent."""
    return np.where(np.isnan(facts.intended_s), facts.sent_s, facts.intended_s)


def _in_order(facts: Facts) -> Facts:
    """By when they were due; those that were, and have arrivals."""
    due_s = _due_s(facts)
    order = np.argsort(due_s, kind="stable")
    known = ~np.isnan(due_s) & ~np.isnan(facts.first_s)
    chosen = order[known[order]]
    return facts.pick(chosen)
