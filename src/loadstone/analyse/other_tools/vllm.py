"""`vllm bench serve` (vllm/benchmarks/serve.py, calculate_metrics; lib/endpoint_request_func.py), release 0.33.0."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadstone.analyse.other_tools.facts import (
    Facts,
    Floats,
    Summary,
    both,
    chunk_gaps,
    describe,
    described,
    mean_gap_s,
)
from loadstone.core.arrays import over, span_s, total

_LATENCIES = {
    "ttft": "t1 − t0",
    "tpot": "(tT − t1)/(n − 1) per request, n ≥ 2",
    "itl": "gaps between chunks, pooled, whatever the chunks hold",
    "e2el": "tT − t0",
}
_STATISTICS = {
    "mean": "mean",
    "median": "median",
    "std": "standard deviation over n",
    **{f"p{p}": f"{p}th percentile, linear" for p in (50, 90, 95, 99)},
}
DEFINITIONS = {
    "duration": "last end − first send, successful or not, s",
    "completed": "requests ok or short",
    "failed": "all others",
    "total_input_tokens": "Σ input tokens of completed requests",
    "total_output_tokens": "Σ n of completed requests",
    "request_throughput": "completed/duration, 1/s",
    "output_throughput": "total_output_tokens/duration, tokens/s",
    "total_token_throughput": "(total_input_tokens + total_output_tokens)/duration, tokens/s",
    "max_output_tokens_per_s": "most chunks, not tokens, in one whole second from the first send on",
    "max_concurrent_requests": "most requests that touch one whole second, even if one after another",
    **described("{statistic}_{name}_ms", _LATENCIES, _STATISTICS, "; ms"),
}


def summary(facts: Facts, duration_s: float | None = None) -> Summary:
    """The keys of its result file. `duration_s`: what it measured around its requests, where that is known."""
    done = facts.done
    if duration_s is None:
        duration_s = span_s(facts.measured["sent"], facts.measured["end"])
    inputs, outputs = total(done["input"]), total(done["tokens"])
    tokens_per_s, concurrent = busiest_second(facts, done["last"])
    found: Summary = {
        "duration": duration_s,
        "completed": len(done),
        "failed": len(facts.measured) - len(done),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": over(len(done), duration_s),
        "output_throughput": over(outputs, duration_s),
        "total_token_throughput": over(both(inputs, outputs), duration_s),
        "max_output_tokens_per_s": tokens_per_s,
        "max_concurrent_requests": concurrent,
    }
    latencies = {
        "ttft": done["first"] - done["sent"],
        "tpot": mean_gap_s(done["last"] - done["first"], done["tokens"]),
        "itl": chunk_gaps(facts),
        "e2el": done["last"] - done["sent"],
    }
    for name, values in latencies.items():
        found |= in_ms(name, values, (50, 90, 95, 99))
        found[f"median_{name}_ms"] = found[f"p50_{name}_ms"]
    return found


def in_ms(name: str, values_s: Floats, percentiles: tuple[int, ...]) -> Summary:
    """mean, std and percentiles as `<statistic>_<name>_ms`."""
    numbers = describe(values_s * 1e3, percentiles)
    return {f"{key}_{name}_ms": value for key, value in numbers.items() if key not in ("min", "max")}


def busiest_second(facts: Facts, ends: Floats) -> tuple[float | None, int | None]:
    """The most events, and the most requests under way at any time of it, in one second of a fixed grid.

    The grid begins at the first send. A request counts in every second from that of its send to that of its end.
    """
    done = facts.done
    known = ~np.isnan(done["sent"]) & ~np.isnan(ends)
    if not known.any():
        return None, None
    begin = float(done["sent"][known].min())

    def second(times: Floats) -> NDArray[np.float64]:
        return np.sort(np.floor(times - begin))

    _, events = np.unique(second(facts.arrival), return_counts=True)
    sent, ended = second(done["sent"][known]), second(ends[known])
    # The count can only be highest in a second in which one is sent.
    under_way = np.searchsorted(sent, sent, side="right") - np.searchsorted(ended, sent, side="left")
    return float(events.max(initial=0)), int(under_way.max())
