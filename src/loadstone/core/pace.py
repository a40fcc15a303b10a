"""Decides if a server keeps up with an open loop, for metrics, verdict, planner and reports.

A server that does not keep up has ever more requests waiting, in whichever order it takes them. The
age of the oldest tells, for first tokens and for whole answers: where requests are taken in turn it
grows as the queue does; where others are taken first, or one part of the server alone is too slow,
it grows by a second per second, though most are served at once. A server that keeps up comes to
those that wait again and again. docs/verdict.md has how often this is wrong.

The own wait of a request is the time that it takes where there is no queue: it is read off the
block of neighbouring requests that waited least. A request is late once it has waited for longer
than that. Times are compared with the time of the sends, from the first measured request to the
last.
"""

import math
from typing import NamedTuple

import numpy as np

from loadstone.core import arrays
from loadstone.core.plan import Load
from loadstone.core.statistics.growth import SURE, growth
from loadstone.core.vectors import Array, Floats

# --- the own wait ---------------------------------------------------------------------------------

OWN_WAIT_QUANTILE = 0.9
"""The own wait is this quantile of the waits in the block that waited least."""
OWN_WAIT_BLOCKS = 10
"""Requests whose wait ended before the last send are cut into so many blocks at most."""
OWN_WAIT_REQUESTS = 4
"""A block has so many requests at least."""
OWN_WAITS_IN_SENDS = 3.0
"""The time of the sends must exceed so many own waits for a queue to show."""

# --- one oldest request ---------------------------------------------------------------------------

OLDEST_AGE_SHARE = 0.05
"""A server is behind from this share of the time of the sends on, by the age of the oldest request.
"""
OLDEST_AGE_CHANCE = 1.5
"""The share is at least this over the root of the requests: n arrivals at random leave a server
that has just enough room so far behind by chance."""
OVERLOAD_RATIO = 2.5
"""The age must be so many times the own wait; and where no own wait is known, the waits of the last
third of the requests so many times those of the first."""
CAUGHT_UP_SHARE = 0.1
"""The server had caught up when the age was at most this share of the age at the last send."""
BEHIND_FOR_SHARE = 0.25
"""It must not have caught up during this last share of the sends: a later start is a burst whose
end was not seen."""
STUCK_REQUESTS = 4
"""The three requests that waited longest of all are left out, and so many others must be late:
fewer are stuck, each for a reason of its own."""

# --- all late requests ----------------------------------------------------------------------------

LATE_ROOT = 0.8
"""The late requests at the last send must be at least this times the root of all requests."""
LATE_GROWTH = 1.25
"""At one rate they must be so many times as many as ever in the first half: where waits are long by
chance as many are late at any time, where a queue grows twice as many are in twice the time. Or the
age, of first tokens, is so many times as long.
"""
STARVED_SHARE = 1 / 3
"""Such an age must be this share of the time of the sends: some requests are never taken up."""
WAIT_CORRELATION = 0.7
"""Rank correlation of waits with the order of the requests, at one rate, from which later requests
wait longer."""

# --- requests that end ----------------------------------------------------------------------------

COUNTED_REQUESTS = 50
"""Ends are counted from so many requests on: below, chance looks like a trend."""
UNENDED_SHARE = 0.1
"""In each of the last two quarters of the sends, ends must fall short by this share of the requests
that begin: as many more would be under way after another E2E.
"""
UNENDED_SIGMAS = 3.0
"""Over both quarters they must fall short by so many standard deviations of the difference of two
random counts. Of 800 cells at 0.8, 0.9 and 0.95 of a server's capacity, 50 to 2,000 requests, at
most 4 reach both limits; of those at 1.3 times it 29 % with 400 requests and 99 % with 2,000, at
twice it all with 400.
"""


class Behind(NamedTuple):
    """Tells how far behind a server was at the last send.

    answers  with whole answers; else with first tokens
    waiting  requests, of `sent`, that were due and had not got it
    age_s    how long the oldest of them had been due; the few that waited longest of all are left
             out
    own_s    the own wait
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
    """Counts, for the second half of the sends, `from_s` to `span_s` after the first: requests that
    ended, those that would have if each had taken as long as before, and how many were under way at
    its two ends."""

    from_s: float
    span_s: float
    ended: int
    would: int
    under_way: tuple[int, int]


class Pace(NamedTuple):
    """Tells if a server keeps up with an open loop; None: its requests do not tell.

    why      the evidence against it, where there is some; `replica`: of which server, where it is
             of one alone
    growth   of statistics.growth, at one rate
    """

    keeps_up: bool | None
    why: Behind | Unended | None = None
    replica: int | None = None
    growth: tuple[float, float] | None = None


def pace_of(load: Load, rows: Array, *, streams: bool = True) -> Pace:
    """Judge an open loop; `rows`: all its requests, as in arrays.rows(), warm-up too."""
    replicas = np.unique(arrays.drop_missing(rows["replica"]))
    for replica in (None, *(map(int, replicas) if len(replicas) > 1 else ())):
        judged = rows if replica is None else rows[rows["replica"] == replica]
        why = _why_not(load, judged, streams)
        if why is not None:
            return Pace(False, why, replica)
    measured = rows[rows["measured"]]
    if not load.steady:
        # Its rate is none to fall behind: if it has caught up by the end, it keeps up.
        return Pace(True if len(measured) >= COUNTED_REQUESTS else None)
    ended = measured[~np.isnan(measured["last"])]
    grown = growth(arrays.origin_s(ended, load), ended["last"])
    return Pace(True if grown is not None and grown[0] - grown[1] <= SURE else None, growth=grown)


def _left_s(rows: Array, name: str) -> Floats:
    """Find when each got its `first` or `last` output, or failed; infinite where neither is
    known."""
    left_s = np.where(np.isnan(rows[name]), rows["end"], rows[name])
    return np.where(np.isnan(left_s), math.inf, left_s)


def _why_not(load: Load, rows: Array, streams: bool) -> Behind | Unended | None:
    rows = rows[~np.isnan(arrays.origin_s(rows, load))]
    rows = rows[np.argsort(arrays.origin_s(rows, load), kind="stable")]
    starters = rows[~(rows["turn"] > 0)]  # later turns follow their answers
    if np.count_nonzero(starters["measured"]) < OWN_WAIT_REQUESTS:
        return None
    why: Behind | Unended | None = None
    if streams:
        why = _behind(load, starters, "first")
    why = why or _behind(load, starters, "last", one_piece=not streams)
    return why or _unended(load, rows[rows["measured"]])


def _behind(load: Load, rows: Array, name: str, *, one_piece: bool = False) -> Behind | None:
    """Judge the server by first tokens, or where `name` is `last` by answers, each of which takes
    as long as its tokens need.
    """
    due_s, left_s, measured = arrays.origin_s(rows, load), _left_s(rows, name), rows["measured"]
    at_s = due_s[measured]
    span_s = float(at_s[-1] - at_s[0])
    least_s = max(OLDEST_AGE_SHARE, OLDEST_AGE_CHANCE / math.sqrt(len(at_s))) * span_s
    age_s = float(_oldest_s(due_s, left_s, at_s[-1:])[0])
    if age_s < least_s or not span_s:
        return None
    size = _sizes(rows) if name == "last" else np.ones(len(rows))
    waits = (left_s - due_s) / size
    own_wait_s = _own_wait(waits[left_s <= at_s[-1]])
    own_s = (own_wait_s or 0.0) * float(size.mean())
    until_s = due_s + (own_wait_s or 0.0) * size
    ages_s = _oldest_s(until_s, left_s, at_s)
    caught_up = np.flatnonzero(ages_s <= CAUGHT_UP_SHARE * ages_s[-1])
    since_s = float(at_s[caught_up[-1]] - at_s[0]) if len(caught_up) else 0.0
    late = np.searchsorted(np.sort(until_s), at_s, "right")
    late -= np.searchsorted(np.sort(np.maximum(left_s, until_s)), at_s, "right")
    is_behind = (
        own_wait_s is not None
        and OWN_WAITS_IN_SENDS * own_s < span_s
        and ages_s[-1] >= max(least_s, OVERLOAD_RATIO * own_s)
        and since_s <= (1 - BEHIND_FOR_SHARE) * span_s
        and late[-1] >= max(STUCK_REQUESTS, LATE_ROOT * math.sqrt(len(at_s)))
    )
    if is_behind and load.steady:
        first_half = at_s <= at_s[0] + span_s / 2
        is_behind = late[-1] >= LATE_GROWTH * late[first_half].max()
        if name == "first" and not is_behind:
            is_behind = ages_s[-1] >= max(
                LATE_GROWTH * ages_s[first_half].max(), STARVED_SHARE * span_s
            )
    if not is_behind and load.steady and (name == "first" or one_piece):
        # Where it is behind from the start, no request tells the own wait; that each waits longer
        # does.
        first, is_behind = _compare_waits(waits[measured])
        own_s, since_s = float(first * size.mean()), 0.0
    waiting = int((left_s[measured] > at_s[-1]).sum())
    return (
        Behind(name == "last", waiting, len(at_s), age_s, own_s, since_s, span_s)
        if is_behind
        else None
    )


def _sizes(rows: Array) -> Floats:
    """Count the tokens of each answer, at least one; the mean of the others where they are not
    known."""
    size = np.maximum(1.0, rows["tokens"])
    present = arrays.drop_missing(size)
    return np.asarray(np.nan_to_num(size, nan=float(present.mean()) if len(present) else 1.0))


def _own_wait(ended: Floats) -> float | None:
    """Find the own wait, from waits that ended before the last send, in their order; None of too
    few."""
    blocks = min(OWN_WAIT_BLOCKS, len(ended) // OWN_WAIT_REQUESTS)
    if not blocks:
        return None
    return min(
        float(np.quantile(block, OWN_WAIT_QUANTILE)) for block in np.array_split(ended, blocks)
    )


def _compare_waits(waits: Floats) -> tuple[float, bool]:
    """Return the median wait of the first third of the requests, and if later ones wait longer."""
    first, last = np.median(waits[: len(waits) // 3]), np.median(waits[-(len(waits) // 3) :])
    order = np.corrcoef(np.arange(len(waits)), waits.argsort().argsort())[0, 1]
    return float(first), bool(
        order >= WAIT_CORRELATION and last >= OVERLOAD_RATIO * first < math.inf
    )


def _oldest_s(due_s: Floats, left_s: Floats, at_s: Floats) -> Floats:
    """Find, at each moment, how long ago the request was due that is due for longest and has not
    left; 0 where none is. Those few that wait longest of all are no queue.
    """
    kept = np.argsort(left_s - due_s)[: 1 - STUCK_REQUESTS]
    kept = kept[np.argsort(due_s[kept], kind="stable")]
    ended = np.searchsorted(np.maximum.accumulate(left_s[kept]), at_s, side="right")
    return np.asarray(np.maximum(0.0, at_s - np.append(due_s[kept], math.inf)[ended]))


def _unended(load: Load, rows: Array) -> Unended | None:
    """Find requests that take ever longer, up to the last that is sent, so that fewer end than
    would if each took as long as before; at one rate these are as many as begin.

    Begins less ends in a time, both at random, have the variance of their sum; arrivals of gamma
    times have 1/shape times theirs. A server that keeps up has far less: it makes up for delays
    later.
    """
    due_s, ends_s = arrays.origin_s(rows, load), np.sort(_left_s(rows, "end"))
    starters_s = due_s[~(rows["turn"] > 0)]
    if len(starters_s) < COUNTED_REQUESTS:
        return None
    at_s = starters_s[[round(share * (len(starters_s) - 1)) for share in (0.5, 0.75, 1.0)]]
    ended = np.searchsorted(ends_s, at_s, side="right")
    behind_s = np.maximum(
        0.0, at_s - np.append(due_s, math.inf)[ended]
    )  # as if it took them in turn
    would = np.searchsorted(due_s, at_s[1:] - behind_s[:-1], side="right") - ended[:-1]
    missing = would - np.diff(ended)
    from_s, span_s = at_s[0] - starters_s[0], at_s[-1] - starters_s[0]
    # Where half of the requests come in a moment, they may be late by more of it, and yet by next
    # to nothing.
    too_few = (missing < UNENDED_SHARE * would).any()
    if too_few or behind_s[-1] - behind_s[0] < OLDEST_AGE_SHARE * span_s:
        return None
    shortfall, expected = int(missing.sum()), int(would.sum())
    if shortfall < UNENDED_SIGMAS * math.sqrt(
        expected / min(1.0, load.burstiness) + expected - shortfall
    ):
        return None
    first, *_, last = map(int, np.searchsorted(due_s, at_s, side="right") - ended)
    return Unended(float(from_s), float(span_s), expected - shortfall, expected, (first, last))
