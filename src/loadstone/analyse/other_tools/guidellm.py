"""GuideLLM (guidellm/schemas/base/request_stats.py, statistics.py; benchmark/schemas/metrics.py), release 0.8.1.

Keys are paths in `benchmarks[i].metrics` of its JSON report. Its percentiles do not interpolate: a percentile is the
smallest value at which the weights of all values up to it reach that share. TPOT and ITL weigh each request by its
tokens. Rates and concurrency are distributions over time: between two events the rate is what it takes to make the
events of that time, and each counts by how long it held.
"""

from __future__ import annotations

import math

import numpy as np

from loadstone.analyse.other_tools.facts import Facts, Floats, Summary, described, mean_gap_s
from loadstone.core.arrays import span_s

_NEAR_S = 1e-4  # events so near to one another count as one moment
_LEAST_S = 1e-6  # the least time that the last event's rate holds

_PERCENTILES = {"p10": 0.10, "p25": 0.25, "p50": 0.50, "p75": 0.75, "p90": 0.90, "p95": 0.95, "p99": 0.99}
_VALUES = {
    "request_latency": "te − t0; s",
    "time_to_first_token_ms": "t1 − t0; ms",
    "time_per_output_token_ms": "(tT − t0)/n, first token included, each request weighing n; ms",
    "inter_token_latency_ms": "(tT − t1)/(n − 1), each request weighing n − 1; ms",
    "prompt_token_count": "input tokens per request",
    "output_token_count": "n per request",
    "total_token_count": "input tokens + n per request",
    "requests_per_second": "the rate of request ends, over time",
    "request_concurrency": "requests under way, over time",
    "prompt_tokens_per_second": "the rate of input tokens, all at t1, over time",
    "output_tokens_per_second": "the rate of output tokens, 1 at t1 and the others evenly up to tT, over time",
    "tokens_per_second": "the rate of input and output tokens, over time",
}
_STATISTICS = {
    "mean": "mean",
    "median": "median",
    "std_dev": "standard deviation over n",
    "min": "smallest",
    "max": "largest",
    **{f"percentiles.{name}": f"{name[1:]}th percentile, a value that occurred," for name in _PERCENTILES},
}
DEFINITIONS = {
    "request_totals.successful": "requests ok or short",
    "request_totals.incomplete": "requests cancelled",
    "request_totals.errored": "all others",
    "request_totals.total": "requests, whatever became of them",
    **described("{name}.successful.{statistic}", _VALUES, _STATISTICS, ", of ok and short requests"),
}


def summary(facts: Facts, window: tuple[float, float] | None = None) -> Summary:
    """The keys of `benchmarks[i].metrics`. `window`: where its rates begin and end, if known.

    Otherwise that is the first send and the last end; the tool begins when it begins to hand out requests.
    """
    measured, done = facts.measured, facts.done
    cancelled = int(measured["cancelled"].sum())
    found: Summary = {
        "request_totals.successful": len(done),
        "request_totals.incomplete": cancelled,
        "request_totals.errored": len(measured) - len(done) - cancelled,
        "request_totals.total": len(measured),
    }
    tokens = done["tokens"]
    values = {
        "request_latency": (done["end"] - done["sent"], None),
        "time_to_first_token_ms": ((done["first"] - done["sent"]) * 1e3, None),
        "time_per_output_token_ms": (mean_gap_s(done["last"] - done["sent"], tokens, less=0) * 1e3, tokens),
        "inter_token_latency_ms": (mean_gap_s(done["last"] - done["first"], tokens) * 1e3, tokens - 1),
        "prompt_token_count": (done["input"], None),
        "output_token_count": (tokens, None),
        "total_token_count": (done["input"] + tokens, None),
    }
    weighted = {name: (each, np.ones(len(done)) if by is None else by) for name, (each, by) in values.items()}
    if window is None and span_s(measured["sent"], measured["end"]) is not None:
        window = float(np.nanmin(measured["sent"])), float(np.nanmax(measured["end"]))
    weighted |= _over_time(facts, window) if window else dict.fromkeys(list(_VALUES)[7:], (np.empty(0), np.empty(0)))
    for name, (each, weights) in weighted.items():
        found |= {f"{name}.successful.{key}": value for key, value in _describe(each, weights).items()}
    return found


def _over_time(facts: Facts, window: tuple[float, float]) -> dict[str, tuple[Floats, Floats]]:
    """The rates and the concurrency, each as values and how long they held."""
    done = facts.done
    prompts, outputs = (done["first"], done["input"]), _output_moments(facts)
    both = np.concatenate([prompts[0], outputs[0]]), np.concatenate([prompts[1], outputs[1]])
    return {
        "requests_per_second": _rate(done["end"], np.ones(len(done)), window),
        "request_concurrency": _concurrency(done["sent"], done["end"], window),
        "prompt_tokens_per_second": _rate(*prompts, window),
        "output_tokens_per_second": _rate(*outputs, window),
        "tokens_per_second": _rate(*both, window),
    }


def _output_moments(facts: Facts) -> tuple[Floats, Floats]:
    """When output tokens came, as GuideLLM places them: one at t1, the others evenly at as many moments as events."""
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


def _rate(times: Floats, weights: Floats, window: tuple[float, float]) -> tuple[Floats, Floats]:
    """Events per second around each moment, and how long: from half way to the moment before to half way to the next.

    The ends of the window are moments at which nothing happens.
    """
    begin, end = window
    inside = (times >= begin) & (times <= end) & ~np.isnan(weights)
    moments, counts = _merged(np.append(times[inside], window), np.append(weights[inside], (0.0, 0.0)))
    if len(moments) <= 1:
        return np.empty(0), np.empty(0)
    halfway = (moments[1:] + moments[:-1]) / 2
    held = np.diff(halfway, prepend=moments[0], append=moments[-1])
    held[-1] = max(held[-1], _LEAST_S)
    return counts / held, held


def _concurrency(begins: Floats, ends: Floats, window: tuple[float, float]) -> tuple[Floats, Floats]:
    """How many were under way, and for how long each number."""
    begin, end = window
    kept = (ends >= begin) & (begins <= end)
    begins, ends = begins[kept], ends[kept]
    if len(begins) == 0:
        return np.empty(0), np.empty(0)
    moments, changes = _merged(
        np.concatenate([begins, ends]), np.concatenate([np.ones(len(begins)), -np.ones(len(ends))])
    )
    before = int(np.searchsorted(moments, begin, side="left"))
    until = int(np.searchsorted(moments, end, side="right"))
    moments = np.concatenate([[begin], moments[before:until], [end]])
    changes = np.concatenate([[changes[:before].sum()], changes[before:until]])
    held = np.maximum(np.diff(moments), 0)
    level = np.maximum(np.cumsum(changes), 0)
    return (level, held) if held.any() else (np.empty(0), np.empty(0))


def _merged(times: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Moments in order, those within _NEAR_S of the first of a group taken as that one, with the sum of weights."""
    unique, inverse = np.unique(times, return_inverse=True)
    sums = np.bincount(inverse, weights=weights, minlength=len(unique))
    following = np.searchsorted(unique, unique + _NEAR_S, side="right")
    groups, index = [], 0
    while index < len(unique):
        groups.append(index)
        index = int(following[index])
    return unique[groups], np.add.reduceat(sums, groups)


def _describe(values: Floats, weights: Floats) -> Summary:
    """What its distributions say, of values by weights; None where there is none of any weight."""
    weighing = ~np.isnan(values) & (weights > 0)
    names = ("mean", "median", "std_dev", "min", "max", *(f"percentiles.{name}" for name in _PERCENTILES))
    if not weighing.any():
        return dict.fromkeys(names)
    ordered, inverse = np.unique(values[weighing], return_inverse=True)
    sums = np.bincount(inverse, weights=weights[weighing])
    share = sums / np.sum(sums)
    mean = float(np.sum(ordered * share))
    places = np.minimum(np.searchsorted(np.cumsum(share), list(_PERCENTILES.values()), side="left"), len(ordered) - 1)
    points = {f"percentiles.{name}": float(ordered[place]) for name, place in zip(_PERCENTILES, places, strict=True)}
    return {
        "mean": mean,
        "median": points["percentiles.p50"],
        "std_dev": math.sqrt(float(np.sum((ordered - mean) ** 2 * share))),
        "min": float(ordered[0]),
        "max": float(ordered[-1]),
        **points,
    }
