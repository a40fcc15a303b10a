"""inference-perf (inference_perf/reportgen/base.py, summarize_requests): its lifecycle report, in seconds."""

from __future__ import annotations

import numpy as np

from loadstone.analyse.other_tools.facts import Facts, Summary, both, describe, described, mean_gap_s, token_gaps
from loadstone.core.arrays import over, span_s, total

_PERCENTILES = (0.1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
_STATISTICS = {
    "mean": "mean",
    "min": "smallest",
    "max": "largest",
    "median": "median",
    **{f"p{p:g}": f"{p:g}th percentile, linear" for p in _PERCENTILES if p != 50},
}
_VALUES = {
    "load_summary.schedule_delay": "t0 − intended, of all requests; s",
    "successes.latency.request_latency": "te − t0; s",
    "successes.latency.normalized_time_per_output_token": "(te − t0)/n per request; s",
    "successes.latency.time_per_output_token": "(tT − t1)/(n − 1) per request, n ≥ 2; s",
    "successes.latency.time_to_first_token": "t1 − t0, of requests of two tokens and more; s",
    "successes.latency.inter_token_latency": "gaps between tokens, pooled, 0 within a chunk; s",
    "successes.output_len": "n per request",
    "failures.request_latency": "te − t0 of requests neither ok nor short; s",
}
DEFINITIONS = {
    "benchmark_time_seconds": "last end − first send, successful or not",
    "load_summary.count": "requests, whatever became of them",
    "load_summary.send_duration": "last send − first send, s",
    "load_summary.achieved_rate": "requests/send_duration, 1/s",
    "successes.count": "requests ok or short",
    "successes.throughput.input_tokens_per_sec": "Σ input tokens of successes/benchmark time",
    "successes.throughput.output_tokens_per_sec": "Σ n of successes/benchmark time",
    "successes.throughput.total_tokens_per_sec": "both of them/benchmark time",
    "successes.throughput.requests_per_sec": "successes/benchmark time",
    "failures.count": "requests neither ok nor short",
    **described("{name}.{statistic}", _VALUES, _STATISTICS),
}


def summary(facts: Facts) -> Summary:
    measured, done = facts.measured, facts.done
    failed = measured[~measured["done"]]
    seconds, sending = span_s(measured["sent"], measured["end"]), span_s(measured["sent"], measured["sent"])
    inputs, outputs = total(done["input"]), total(done["tokens"])
    latency, tokens = done["end"] - done["sent"], done["tokens"]
    several = tokens > 1
    values = {
        "load_summary.schedule_delay": measured["sent"] - measured["intended"],
        "successes.latency.request_latency": latency,
        "successes.latency.normalized_time_per_output_token": mean_gap_s(latency, tokens, less=0),
        "successes.latency.time_per_output_token": mean_gap_s(done["last"] - done["first"], tokens),
        "successes.latency.time_to_first_token": np.where(several, done["first"] - done["sent"], np.nan),
        "successes.latency.inter_token_latency": token_gaps(facts, shared=False),
        "successes.output_len": tokens,
        "failures.request_latency": failed["end"] - failed["sent"],
    }
    found: Summary = {
        "benchmark_time_seconds": seconds,
        "load_summary.count": len(measured),
        "load_summary.send_duration": sending,
        "load_summary.achieved_rate": over(len(measured), sending),
        "successes.count": len(done),
        "successes.throughput.input_tokens_per_sec": over(inputs, seconds),
        "successes.throughput.output_tokens_per_sec": over(outputs, seconds),
        "successes.throughput.total_tokens_per_sec": over(both(inputs, outputs), seconds),
        "successes.throughput.requests_per_sec": over(len(done), seconds),
        "failures.count": len(failed),
    }
    for name, each in values.items():
        numbers = describe(each, _PERCENTILES)
        numbers["median"] = numbers.pop("p50")
        del numbers["std"]
        found |= {f"{name}.{key}": value for key, value in numbers.items()}
    return found
