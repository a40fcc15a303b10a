"""Decides when a cell has been measured for long enough, by rules that are checked while it runs.

`tpot_p50±2%` ends a cell once the 95 % interval of its median TPOT lies within 2 % of it. An
interval for a number of requests that was fixed before would not do: whoever looks again and again,
and stops when he likes what he sees, is wrong more often than it says. These hold at all looks
together.

`ttft_p99<500ms` ends a cell once it is known, likewise, on which side of the bound the percentile
lies. There the first requests do not count: an engine that was idle answers them faster than it
will the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from loadstone.core.errors import InputError
from loadstone.core.record import Stop, WatchedRequest
from loadstone.core.statistics import PERCENTILES, Dependence, distribution
from loadstone.core.statistics.distribution import ranks_among
from loadstone.core.units import parse_seconds, show_seconds
from loadstone.core.vectors import Floats

_ERROR = 0.05
"""Probability that an interval is ever wrong."""
_TUNED_REQUESTS = 32.0
"""Weight of the mixture's prior, in requests: bounds are tightest at about eight times as many."""
_LOOK_AGAIN = 1.05
"""The growth of the number of requests after which a cell is checked again: each check sorts all of
them."""
_SETTLES = 2.0
"""Median E2E after which an engine is as busy as it will be under the load."""
_BOUND = re.compile(r"\s*(ttft|tpot|e2e)_(p\d+)\s*<=?\s*(\S+[a-z])\s*")
_RULE = re.compile(r"\s*(ttft|tpot|e2e)_(p\d+)\s*(?:±|\+-|\+/-)\s*(\d+(?:\.\d*)?|\.\d+)\s*%\s*")


class StoppingRule(NamedTuple):
    """A rule: a latency's percentile is to be known to a share of itself, or on which side of
    `limit_s`, in seconds. `text`: as it was written; `error`: the probability that its interval is
    ever wrong.
    """

    text: str
    metric: str
    percentile: str
    within: float
    limit_s: float | None = None
    error: float = _ERROR

    def is_met(self, interval: Interval | None) -> bool:
        if interval is None:
            return False
        return (
            interval.is_within(self.within)
            if self.limit_s is None
            else self.holds(interval) is not None
        )

    def holds(self, interval: Interval | None) -> bool | None:
        """Tell if the percentile is below the limit for sure; None: not known yet."""
        if interval is None or self.limit_s is None:
            return None
        if interval.high is not None and interval.high <= self.limit_s:
            return True
        return False if interval.low is not None and interval.low > self.limit_s else None


class Interval(NamedTuple):
    """A percentile in seconds, and its bounds, which hold whenever one looks; a side that nobody
    can tell is None."""

    value: float
    low: float | None
    high: float | None

    def is_within(self, share: float) -> bool:
        """Tell if both bounds are within this share of the value."""
        low, high = self.low, self.high
        return (
            low is not None
            and high is not None
            and max(high - self.value, self.value - low) <= share * self.value
        )


def parse_rules(text: str) -> tuple[StoppingRule, ...]:
    """Parse rules from `tpot_p50±2%,ttft_p99±10%,ttft_p99<500ms`. Raises InputError."""
    rules = []
    for part in text.split(","):
        bound = _BOUND.fullmatch(part)
        if bound is not None and bound[2] in PERCENTILES:
            rules.append(
                StoppingRule(
                    part.strip(), bound[1], bound[2], 0.0, parse_seconds(bound[3], "--stop-when")
                )
            )
            continue
        match = _RULE.fullmatch(part)
        if match is None or match[2] not in PERCENTILES or not 0 < float(match[3]) < 100:
            raise InputError(
                f"--stop-when: {part.strip()!r} is no rule; write e.g. tpot_p50±2%,ttft_p99<500ms "
                f"(ttft, tpot, e2e; {', '.join(PERCENTILES)})"
            )
        rules.append(StoppingRule(part.strip(), match[1], match[2], float(match[3]) / 100))
    return tuple(rules)


def evidence_against(count: int, n: int, q: float) -> float:
    """Compute the ln of a test martingale: 1 at n = 0, and no larger on average at any time if
    `count` of n independent trials succeeded with probability q each, 0 < q < 1. It ever reaches
    ln(1/α) with probability α at most (Ville 1939).

    It is the likelihood of the trials averaged over a Beta prior of mean q, over their likelihood
    under q: the mixture of Robbins (1970), for quantiles in Howard and Ramdas, Sequential
    estimation of quantiles, Bernoulli 28 (2022), theorem 1.
    """
    a, b = _TUNED_REQUESTS * q, _TUNED_REQUESTS * (1 - q)
    gained = math.lgamma(a + count) - math.lgamma(a) + math.lgamma(b + n - count) - math.lgamma(b)
    return (
        gained
        - math.lgamma(a + b + n)
        + math.lgamma(a + b)
        - count * math.log(q)
        - (n - count) * math.log1p(-q)
    )


def sequential_ranks(n: int, q: float, error: float = _ERROR) -> tuple[int | None, int | None]:
    """Find ranks l < u, from 1, with X₍ₗ₎ ≤ q-quantile ≤ X₍ᵤ₎ at all n together, with a probability
    of at least 1 − error.

    For independent values of any distribution, with ties too: those at the quantile may be dealt to
    its sides so that the number below it is Binomial(n, q). Numbers without enough
    evidence_against() them are kept; the evidence rises on either side of n·q. A side is None where
    n is too small for it.
    """

    def holds(count: int) -> bool:
        return evidence_against(count, n, q) < -math.log(error)

    middle = min(n, max(0, round(n * q)))
    lowest, highest = -1, n + 1
    smallest, largest = middle, middle
    while smallest - lowest > 1:
        probe = (smallest + lowest) // 2
        smallest, lowest = (probe, lowest) if holds(probe) else (smallest, probe)
    while highest - largest > 1:
        probe = (largest + highest) // 2
        largest, highest = (probe, highest) if holds(probe) else (largest, probe)
    return smallest or None, largest + 1 if largest < n else None


def interval_of(
    values: Floats, percentile: str, dependence: Dependence, error: float = _ERROR
) -> Interval | None:
    """Compute the interval of a percentile of a cell's requests so far, NaN where missing, in the
    order of `dependence`; None where there are none.

    Requests that share an engine's steps are no independent values: they count as many as they are
    worth (see core.statistics.distribution), which is estimated from the same requests. That the
    interval holds at all looks is proven for independent values, and simulated for others
    (docs/statistics.md).
    """
    sample = distribution(values, dependence)
    if sample is None:
        return None
    worth = sample.worth[percentile]
    ranks = sequential_ranks(worth, PERCENTILES[percentile], error) if worth else (None, None)
    ordered = np.sort(values[~np.isnan(values)])
    low, high = (
        None if rank is None else float(ordered[rank - 1])
        for rank in ranks_among(ranks, sample.n, worth)
    )
    return Interval(getattr(sample, percentile), low, high)


class Stopping(NamedTuple):
    """The conditions that end a cell before all of it is sent. Times in seconds from its start.

    rules        all of which must hold; none: precision ends nothing
    most_errors  share of the requests that may fail
    shows_s      before which bounds are not said to hold: a queue takes a while to show
    """

    rules: tuple[StoppingRule, ...] = ()
    most_errors: float | None = None
    least_s: float = 0.0
    most_s: float = math.inf
    shows_s: float = 0.0


class Watch:
    """Watches one cell. `slots`: of a closed loop that has as many requests under way all the time,
    else 0."""

    def __init__(self, stopping: Stopping, places: int = 0) -> None:
        self._stopping = stopping
        self._places = places
        self._next = 1.0
        self._precise = False
        self._holds: bool | None = None
        self._shown = ""

    def look(
        self, elapsed_s: float, ended: int, failed: int, requests: Sequence[WatchedRequest]
    ) -> Stop | None:
        """Return why to end the cell now; None: go on. `requests`: all measured ones so far that
        ended well."""
        most_errors, most_s = self._stopping.most_errors, self._stopping.most_s
        if most_errors is not None and _more_fail(failed, ended, most_errors):
            share = f"{failed} of {ended} requests failed ({failed / ended:.1%})"
            return Stop("errors", f"{share}, more than --max-errors {100 * most_errors:g}%")
        if len(requests) >= self._next and elapsed_s >= self._stopping.least_s:
            self._next = len(requests) * _LOOK_AGAIN
            self._estimate(requests)
            if self._holds and elapsed_s < self._stopping.shows_s:
                self._precise = False
            if self._precise:
                return Stop("precise", self._shown, self._holds)
        if elapsed_s >= most_s:
            return self.over(requests) or Stop("time", f"the longest time of {most_s:g} s was over")
        return None

    def over(self, requests: Sequence[WatchedRequest]) -> Stop | None:
        """Tell which rules were not met, of a cell that ended otherwise."""
        if not self._stopping.rules or self._precise:
            return None
        self._estimate(requests)
        return Stop("precise" if self._precise else "imprecise", self._shown, self._holds)

    def _estimate(self, requests: Sequence[WatchedRequest]) -> None:
        table = np.array(requests, np.float64).reshape(-1, len(WatchedRequest._fields))
        rules = self._stopping.rules
        if any(rule.limit_s is not None for rule in rules):
            table = _settled(table)
        columns = dict(zip(WatchedRequest._fields, table.T, strict=True))
        dependence = Dependence.of(columns["sent_s"], columns["end_s"], places=self._places)
        parts, intervals = [], []
        for rule in rules:
            values = columns[f"{rule.metric}_s"]
            intervals.append(interval_of(values, rule.percentile, dependence, rule.error))
            parts.append(f"{rule.text}: {_show(intervals[-1])}")
        verdicts = [
            rule.holds(interval)
            for rule, interval in zip(rules, intervals, strict=True)
            if rule.limit_s is not None
        ]
        self._holds = (
            False if False in verdicts else True if verdicts and None not in verdicts else None
        )
        met = [rule.is_met(interval) for rule, interval in zip(rules, intervals, strict=True)]
        self._precise = bool(met) and (all(met) or self._holds is False)
        self._shown = f"{'; '.join(parts)}; after {len(requests)} requests"


def _settled(table: Floats) -> Floats:
    """Select the requests that were sent once the engine was as busy as it will be."""
    sent_s, end_s = table[:, 0], table[:, 1]
    if not len(table):
        return table
    return np.asarray(table[sent_s >= sent_s.min() + _SETTLES * float(np.median(end_s - sent_s))])


def _show(interval: Interval | None) -> str:
    if interval is None:
        return "no request has one"
    low, high = (
        "unknown" if side is None else show_seconds(side) for side in (interval.low, interval.high)
    )
    return f"{show_seconds(interval.value)}, between {low} and {high}"


def _more_fail(failed: int, ended: int, share: float) -> bool:
    """Tell if more than such a share of the requests fails, with 95 % confidence whenever one
    looks."""
    if share == 0 or failed <= share * ended:
        return failed > share * ended
    return evidence_against(failed, ended, share) >= -math.log(_ERROR)
