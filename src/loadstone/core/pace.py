"""Does an open loop keep up? The one answer for metrics, verdict, planner and reports.

A server that does not keep up has ever more requests waiting, in whichever order it takes them. The age of the oldest
tells, for first tokens and for whole answers: where requests are taken in turn it grows as the queue does; where
others are taken first, or one part of the server alone is too slow, by a second per second, though most are served at
once. A server that keeps up comes to those that wait again and again. docs/verdict.md has how often this is wrong.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadstone.core import arrays
from loadstone.core.arrays import Floats
from loadstone.core.plan import Load
from loadstone.core.statistics.growth import SURE, growth

BEHIND_SHARE = 0.05
"""Of the time of the sends, by which a server that does not keep up is behind at its end."""
CHANCE = 1.5
"""That share is this over the root of the requests at least: so far n arrivals at random, for which there is just
enough room, leave a server behind by chance."""
OWN_QUANTILE = 0.9
_OWN_BLOCKS, _OWN_REQUESTS = 10, 4
"""Of waits that ended before the last send, in the block of neighbours that waited least: so much is a request's own,
and no queue. Blocks, at most; requests in each, at least."""
_OWN_TIMES = 3.0
"""So many times must the sends last as long for a wait to show."""
OVERLOAD_RATIO = 2.5
"""Times its own that a request waits beyond it; and the last third of the requests as long as the first."""
BEHIND_SINCE = 0.1
"""Of how far it is behind at the end: when it was less, it had caught up."""
BEHIND_LASTS = 0.25
"""Of the time of the sends, since when it has not: what begins later is a burst whose end was not seen."""
GREW = 1.25
"""Times as many requests that wait for longer than their own at the last send as ever in the first half, at one rate:
where waits are long by chance as many are late at any time, where a queue grows twice as many in twice the time."""
STARVED = 1 / 3
"""Or, of first tokens, for so many times as long, and for this share of the sends: some are never taken up."""
LATER_LONGER = 0.7
"""Rank correlation of waits with the order of the requests, at one rate, from which later ones wait longer."""
BEHIND_REQUESTS = 4
LATE_ROOT = 0.8
"""Requests that wait for longer than their own at the last send, at least, and this times the root of all: fewer are
stuck, each for a reason of its own."""
COUNTED_REQUESTS = 50
"""Requests from which those that end are counted: below, chance looks like a trend."""
UNENDED_SHARE = 0.1
"""Of the requests that begin in each of the last two quarters, the part that those that end fall short by: as many
more would be under way after another E2E."""
UNENDED_SIGMAS = 3.0
"""Standard deviations of the difference of two random counts by which they do so over the last half. Of 800 cells at
0.8, 0.9 and 0.95 of a server's capacity, 50 to 2,000 requests, at most 4 are beyond both; of those at 1.3 times it
29 % with 400 requests and 99 % with 2,000, at twice it all with 400."""


class Behind(NamedTuple):
    """How far behind a server was at the last send.

    answers  with whole answers; else with first tokens
    waiting  requests, of `sent`, that were due and had not got it
    age_s    how long the oldest of them had been due; the few that waited longest of all are left out
    own_s    how long it takes where there is no queue
    since_s  when it had last caught up, from the first send; `span_s`: the last send
    """

    answers: bool
    waiting: int
    sent: int
    age_s: float
    own_s: float
    since_s: float
    span_s: float


class Unended(NamedTuple):
    """Of the second half of the sends, `from_s` to `span_s` after the first: requests that ended, those that would
    have if each had taken as long as before, and how many were under way at its two ends."""

    from_s: float
    span_s: float
    ended: int
    would: int
    under_way: tuple[int, int]


class Pace(NamedTuple):
    """Whether an open loop keeps up; None: its requests do not tell.

    why      the evidence against it, where there is some; `replica`: of which server, where it is of one alone
    growth   of statistics.growth, at one rate
    """

    keeps_up: bool | None
    why: Behind | Unended | None = None
    replica: int | None = None
    growth: tuple[float, float] | None = None


def pace_of(load: Load, rows: NDArray[Any], *, streams: bool = True) -> Pace:
    """Of an open loop; `rows`: all its requests, as in arrays.rows(), warm-up too."""
    replicas = np.unique(arrays.drop_missing(rows["replica"]))
    for replica in (None, *(map(int, replicas) if len(replicas) > 1 else ())):
        those = rows if replica is None else rows[rows["replica"] == replica]
        if (why := _why_not(load, those, streams)) is not None:
            return Pace(False, why, replica)
    measured = rows[rows["measured"]]
    if not load.steady:
        # Its rate is none to fall behind: what has caught up by the end keeps up.
        return Pace(True if len(measured) >= COUNTED_REQUESTS else None)
    ended = measured[~np.isnan(measured["last"])]
    grown = growth(arrays.origin_s(ended, load), ended["last"])
    return Pace(True if grown is not None and grown[0] - grown[1] <= SURE else None, growth=grown)


def _left_s(rows: NDArray[Any], name: str) -> Floats:
    """When each got its `first` or `last` output, or failed; infinite where neither is known."""
    left_s = np.where(np.isnan(rows[name]), rows["end"], rows[name])
    return np.where(np.isnan(left_s), math.inf, left_s)


def _why_not(load: Load, rows: NDArray[Any], streams: bool) -> Behind | Unended | None:
    rows = rows[~np.isnan(arrays.origin_s(rows, load))]
    rows = rows[np.argsort(arrays.origin_s(rows, load), kind="stable")]
    starters = rows[~(rows["turn"] > 0)]  # later turns follow their answers
    if np.count_nonzero(starters["measured"]) < _OWN_REQUESTS:
        return None
    why: Behind | Unended | None = None
    if streams:
        why = _behind(load, starters, "first")
    why = why or _behind(load, starters, "last", one_piece=not streams)
    return why or _unended(load, rows[rows["measured"]])


def _behind(load: Load, rows: NDArray[Any], name: str, *, one_piece: bool = False) -> Behind | None:
    """With first tokens; with answers, where `name` is `last`: how long each takes goes by its tokens."""
    due_s, left_s, measured = arrays.origin_s(rows, load), _left_s(rows, name), rows["measured"]
    size = np.ones(len(rows))
    if name == "last":
        size = np.maximum(1.0, rows["tokens"])
        known = arrays.drop_missing(size)
        size = np.nan_to_num(size, nan=float(known.mean()) if len(known) else 1.0)
    at_s = due_s[measured]
    span_s = float(at_s[-1] - at_s[0])
    least_s = max(BEHIND_SHARE, CHANCE / math.sqrt(len(at_s))) * span_s
    age_s = float(_oldest_s(due_s, left_s, at_s[-1:])[0])
    if age_s < least_s or not span_s:
        return None
    waits = (left_s - due_s) / size
    ended = waits[left_s <= at_s[-1]]
    blocks = min(_OWN_BLOCKS, len(ended) // _OWN_REQUESTS)
    own = 0.0
    if blocks:
        own = min(float(np.quantile(block, OWN_QUANTILE)) for block in np.array_split(ended, blocks))
    own_s, until_s = own * float(size.mean()), due_s + own * size
    ages_s = _oldest_s(until_s, left_s, at_s)
    late = np.searchsorted(np.sort(until_s), at_s, "right")
    late -= np.searchsorted(np.sort(np.maximum(left_s, until_s)), at_s, "right")
    caught_up = np.flatnonzero(ages_s <= BEHIND_SINCE * ages_s[-1])
    since_s = float(at_s[caught_up[-1]] - at_s[0]) if len(caught_up) else 0.0
    is_behind = (
        blocks > 0
        and _OWN_TIMES * own_s < span_s
        and ages_s[-1] >= max(least_s, OVERLOAD_RATIO * own_s)
        and since_s <= (1 - BEHIND_LASTS) * span_s
        and late[-1] >= max(BEHIND_REQUESTS, LATE_ROOT * math.sqrt(len(at_s)))
    )
    if is_behind and load.steady:
        first_half = at_s <= at_s[0] + span_s / 2
        is_behind = late[-1] >= GREW * late[first_half].max()
        if name == "first" and not is_behind:
            is_behind = ages_s[-1] >= max(GREW * ages_s[first_half].max(), STARVED * span_s)
    if not is_behind and load.steady and (name == "first" or one_piece):
        # Where it is behind from the start, no request tells how long one takes; that each waits longer does.
        waits = waits[measured]
        first, last = np.median(waits[: len(waits) // 3]), np.median(waits[-(len(waits) // 3) :])
        order = np.corrcoef(np.arange(len(waits)), waits.argsort().argsort())[0, 1]
        is_behind = order >= LATER_LONGER and last >= OVERLOAD_RATIO * first < math.inf
        own_s, since_s = float(first * size.mean()), 0.0
    waiting = int((left_s[measured] > at_s[-1]).sum())
    return Behind(name == "last", waiting, len(at_s), age_s, own_s, since_s, span_s) if is_behind else None


def _oldest_s(due_s: Floats, left_s: Floats, at_s: Floats) -> Floats:
    """At each moment, how long ago the request was due that is due for longest and has not left; 0 where none is.
    Those few that wait longest of all are no queue.
    """
    kept = np.argsort(left_s - due_s)[: 1 - BEHIND_REQUESTS]
    kept = kept[np.argsort(due_s[kept], kind="stable")]
    before = np.searchsorted(np.maximum.accumulate(left_s[kept]), at_s, side="right")
    return np.asarray(np.maximum(0.0, at_s - np.append(due_s[kept], math.inf)[before]))


def _unended(load: Load, rows: NDArray[Any]) -> Unended | None:
    """Requests take ever longer, up to the last that is sent, so that fewer end than would if each took as long as
    before; at one rate these are as many as begin.

    What begins less what ends in a time, both at random, has the variance of their sum; arrivals of gamma times have
    1/shape times theirs. A server that keeps up has far less: what it is behind, it takes up later.
    """
    due_s, ends_s = arrays.origin_s(rows, load), np.sort(_left_s(rows, "end"))
    starters_s = due_s[~(rows["turn"] > 0)]
    if len(starters_s) < COUNTED_REQUESTS:
        return None
    at_s = starters_s[[round(share * (len(starters_s) - 1)) for share in (0.5, 0.75, 1.0)]]
    ended = np.searchsorted(ends_s, at_s, side="right")
    behind_s = np.maximum(0.0, at_s - np.append(due_s, math.inf)[ended])  # as if it took them in turn
    would = np.searchsorted(due_s, at_s[1:] - behind_s[:-1], side="right") - ended[:-1]
    missing = would - np.diff(ended)
    from_s, span_s = at_s[0] - starters_s[0], at_s[-1] - starters_s[0]
    # Where half of the requests come in a moment, they may be late by more of it, and yet by next to nothing.
    too_few = (missing < UNENDED_SHARE * would).any()
    if too_few or behind_s[-1] - behind_s[0] < BEHIND_SHARE * span_s:
        return None
    more, of = int(missing.sum()), int(would.sum())
    if more < UNENDED_SIGMAS * math.sqrt(of / min(1.0, load.burstiness) + of - more):
        return None
    first, *_, last = map(int, np.searchsorted(due_s, at_s, side="right") - ended)
    return Unended(float(from_s), float(span_s), of - more, of, (first, last))
