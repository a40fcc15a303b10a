"""GuideLLM (guidellm/schemas/base/request_stats.py, statistics.py; benchmark/schemas/metrics.py),
release 0.8.1.

Keys are paths in `benchmarks[i].metrics` of its JSON report. Its percentiles do not interpolate: a
percentile is the smallest value at which the weights of all values up to it reach that share. TPOT
and ITL weigh each request by its tokens. Rates and concurrency are distributions over time: between
two events the rate is what it takes to make the events of that time, and each counts by how long it
held.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from loadstone.analyse.other_tools.dialect import Dialect, Statistic, ToolSample, Total
from loadstone.analyse.other_tools.facts import Facts, mean_gap_s
from loadstone.core.arrays import Floats

_NEAR_S = 1e-4  # events so near to one another count as one moment
_LEAST_S = 1e-6  # the least time that the last event's rate holds

_PERCENTILES = (10, 25, 50, 75, 90, 95, 99)
Weighted = tuple[Floats, Floats]
"""Values and their weights."""


class _Shares(NamedTuple):
    """Different values in order, each with its share of all weight."""

    values: Floats
    share: Floats

    def percentile(self, percent: int) -> float:
        place = int(np.searchsorted(np.cumsum(self.share), percent / 100, side="left"))
        return float(self.values[min(place, len(self.values) - 1)])

    def mean(self) -> float:
        return float(np.sum(self.values * self.share))

    def deviation(self) -> float:
        return math.sqrt(float(np.sum((self.values - self.mean()) ** 2 * self.share)))


def _shares(values: Weighted) -> _Shares | None:
    """None where no value has any weight."""
    numbers, weights = values
    weighing = ~np.isnan(numbers) & (weights > 0)
    if not weighing.any():
        return None
    ordered, inverse = np.unique(numbers[weighing], return_inverse=True)
    sums = np.bincount(inverse, weights=weights[weighing])
    return _Shares(ordered, sums / np.sum(sums))


def _statistics() -> Iterator[Statistic]:
    yield Statistic("mean", "mean", _Shares.mean)
    yield Statistic("median", "median", partial(_Shares.percentile, percent=50))
    yield Statistic("std_dev", "standard deviation over n", _Shares.deviation)
    yield Statistic("min", "smallest", lambda shares: shares.values[0])
    yield Statistic("max", "largest", lambda shares: shares.values[-1])
    for percent in _PERCENTILES:
        words = f"{percent}th percentile, a value that occurred,"
        yield Statistic(
            f"percentiles.p{percent}", words, partial(_Shares.percentile, percent=percent)
        )


def _alike(values: Floats) -> Weighted:
    return values, np.ones(len(values))


def _prompts(facts: Facts) -> Weighted:
    return facts.done["first"], facts.done["input"]


def _outputs(facts: Facts) -> Weighted:
    """Place output tokens in time as GuideLLM does: one at t1, the others evenly at as many moments
    as events."""
    done = facts.done
    bundled = done["events"] <= 1
    spread = ~bundled & (done["tokens"] > 1)
    times = [np.where(bundled, done["last"], done["first"])]
    weights = [np.where(bundled, done["tokens"], np.minimum(done["tokens"], 1))]
    for row in done[spread]:
        moments = np.linspace(row["first"], row["last"], num=int(row["events"]))[1:]
        times.append(moments)
        weights.append(np.full(len(moments), (row["tokens"] - 1.0) / (row["events"] - 1.0)))
    return np.concatenate(times), np.concatenate(weights)


def _rate(facts: Facts, *events: Weighted) -> Weighted:
    """Events per second around each moment, and how long: from half way to the moment before to
    half way to the next.

    The ends of the window are moments at which nothing happens.
    """
    if facts.window is None:
        return np.empty(0), np.empty(0)
    times, weights = (np.concatenate(parts) for parts in zip(*events, strict=True))
    begin, end = window = facts.window
    inside = (times >= begin) & (times <= end) & ~np.isnan(weights)
    moments, counts = _merged(
        np.append(times[inside], window), np.append(weights[inside], (0.0, 0.0))
    )
    if len(moments) <= 1:
        return np.empty(0), np.empty(0)
    halfway = (moments[1:] + moments[:-1]) / 2
    held = np.diff(halfway, prepend=moments[0], append=moments[-1])
    held[-1] = max(held[-1], _LEAST_S)
    return counts / held, held


def _concurrency(facts: Facts) -> Weighted:
    """Count requests under way, with the time that each count held."""
    if facts.window is None:
        return np.empty(0), np.empty(0)
    begin, end = facts.window
    kept = (facts.done["end"] >= begin) & (facts.done["sent"] <= end)
    begins, ends = facts.done["sent"][kept], facts.done["end"][kept]
    if len(begins) == 0:
        return np.empty(0), np.empty(0)
    moments, changes = _merged(
        np.concatenate([begins, ends]), np.concatenate([np.ones(len(begins)), -np.ones(len(ends))])
    )
    first = int(np.searchsorted(moments, begin, side="left"))
    until = int(np.searchsorted(moments, end, side="right"))
    moments = np.concatenate([[begin], moments[first:until], [end]])
    changes = np.concatenate([[changes[:first].sum()], changes[first:until]])
    held = np.maximum(np.diff(moments), 0)
    level = np.maximum(np.cumsum(changes), 0)
    return (level, held) if held.any() else (np.empty(0), np.empty(0))


def _merged(times: Floats, weights: Floats) -> Weighted:
    """Moments in order, those within _NEAR_S of the first of a group taken as that one, with the
    sum of weights."""
    unique, inverse = np.unique(times, return_inverse=True)
    sums = np.bincount(inverse, weights=weights, minlength=len(unique))
    following = np.searchsorted(unique, unique + _NEAR_S, side="right")
    groups, index = [], 0
    while index < len(unique):
        groups.append(index)
        index = int(following[index])
    return unique[groups], np.add.reduceat(sums, groups)


# Its rates begin when it begins to hand out requests; records know the first send and the last end.
GUIDELLM = Dialect(
    "GuideLLM 0.8.1",
    totals={
        "request_totals.successful": Total("requests ok or short", lambda f: f.ok),
        "request_totals.incomplete": Total("requests cancelled", lambda f: f.cancelled),
        "request_totals.errored": Total("all others", lambda f: f.errors),
        "request_totals.total": Total(
            "requests, whatever became of them", lambda f: len(f.measured)
        ),
    },
    samples={
        "request_latency": ToolSample("te − t0; s", lambda f: _alike(f.span("sent", "end"))),
        "time_to_first_token_ms": ToolSample("t1 − t0; ms", lambda f: _alike(f.ttft_s * 1e3)),
        "time_to_first_output_token_ms": ToolSample(
            "first event that is no reasoning − t0, where that is known; ms",
            lambda f: _alike(f.span("sent", "answer") * 1e3),
        ),
        "time_per_output_token_ms": ToolSample(
            "(tT − t0)/n, first token included, each request weighing n; ms",
            lambda f: (
                mean_gap_s(f.span("sent", "last"), f.done["tokens"], less=0) * 1e3,
                f.done["tokens"],
            ),
        ),
        "inter_token_latency_ms": ToolSample(
            "(tT − t1)/(n − 1), each request weighing n − 1; ms",
            lambda f: (f.tpot_s * 1e3, f.done["tokens"] - 1),
        ),
        "prompt_token_count": ToolSample(
            "input tokens per request", lambda f: _alike(f.done["input"])
        ),
        "output_token_count": ToolSample("n per request", lambda f: _alike(f.done["tokens"])),
        "total_token_count": ToolSample(
            "input tokens + n per request", lambda f: _alike(f.done["input"] + f.done["tokens"])
        ),
        "requests_per_second": ToolSample(
            "the rate of request ends, over time", lambda f: _rate(f, _alike(f.done["end"]))
        ),
        "request_concurrency": ToolSample("requests under way, over time", _concurrency),
        "prompt_tokens_per_second": ToolSample(
            "the rate of input tokens, all at t1, over time", lambda f: _rate(f, _prompts(f))
        ),
        "output_tokens_per_second": ToolSample(
            "the rate of output tokens, 1 at t1 and the others evenly up to tT, over time",
            lambda f: _rate(f, _outputs(f)),
        ),
        "tokens_per_second": ToolSample(
            "the rate of input and output tokens, over time",
            lambda f: _rate(f, _prompts(f), _outputs(f)),
        ),
    },
    statistics=tuple(_statistics()),
    keys=("*", "*.successful.{}"),
    suffix=", of ok and short requests",
    prepare=_shares,
    names={
        "ttft_s": "time_to_first_token_ms",
        "tpot_s": "inter_token_latency_ms",
        "e2e_s": "request_latency",
    },
)
