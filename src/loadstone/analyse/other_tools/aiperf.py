"""AIPerf (aiperf/metrics/types/*.py, metric_dicts.py), release 0.13.0: keys of profile_export_aiperf.json."""

from __future__ import annotations

import numpy as np

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
from loadstone.core.arrays import over, present, span_s, total

_PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
_VALUES = {
    "request_latency": "tT − t0; ms",
    "time_to_first_token": "t1 − t0; ms",
    "time_to_second_token": "second event − first event; ms",
    "time_to_first_output_token": "first text that is no reasoning − t0: not told by a record; ms",
    "inter_token_latency": "(tT − t1)/(n − 1) per request, n ≥ 2; ms",
    "inter_chunk_latency": "gaps between chunks, pooled, whatever the chunks hold; ms",
    "decode_duration": "tT − t1; ms",
    "output_token_throughput_per_user": "1/inter_token_latency per request, tokens/s",
    "e2e_output_token_throughput": "n/(tT − t0) per request, tokens/s",
    "prefill_throughput_per_user": "input tokens/(t1 − t0) per request, tokens/s",
    "input_sequence_length": "input tokens per request",
    "output_sequence_length": "n per request, reasoning included",
    "output_token_count": "n less reasoning tokens per request",
}
_STATISTICS = {
    "avg": "mean",
    "min": "smallest",
    "max": "largest",
    "std": "standard deviation over n",
    **{f"p{p}": f"{p}th percentile, linear" for p in _PERCENTILES},
}
_TOTALS = {
    "request_count": "requests ok or short",
    "error_request_count": "requests neither ok, short nor cancelled; the tool leaves it out where it is 0",
    "request_error_rate": "errors/(errors + request_count), %",
    "benchmark_duration": "last tT − first send of ok and short requests, s",
    "request_throughput": "request_count/(last end − first send), 1/s",
    "total_isl": "Σ input tokens of ok and short requests",
    "total_osl": "Σ n of ok and short requests",
    "total_output_tokens": "Σ (n less reasoning tokens) of ok and short requests",
    "input_token_throughput": "total_isl/(last end − first send), tokens/s",
    "output_token_throughput": "total_osl/(last end − first send), tokens/s",
    "total_token_throughput": "(total_isl + total_osl)/(last end − first send), tokens/s",
}
DEFINITIONS = {
    **{f"{name}.avg": words for name, words in _TOTALS.items()},
    **described("{name}.{statistic}", _VALUES, _STATISTICS),
}


def summary(facts: Facts, phase_s: float | None = None) -> Summary:
    """The keys of its export. `phase_s`: how long its phase of measurement was, where known, for its rates.

    The phase begins before the first request and ends after the last; otherwise it is taken from first send to last
    end. `benchmark_duration` is something else, and rates are not over it, whatever AIPerf's own docstrings say.
    """
    measured, done = facts.measured, facts.done
    if phase_s is None:
        phase_s = span_s(measured["sent"], measured["end"])
    errors = int((~measured["done"] & ~measured["cancelled"]).sum())
    inputs, outputs = total(done["input"]), total(done["tokens"])
    latency_s, ttft_s = done["last"] - done["sent"], done["first"] - done["sent"]
    decode_s, tokens = done["last"] - done["first"], done["tokens"]
    itl_s = mean_gap_s(decode_s, tokens)
    spoken = tokens - np.nan_to_num(done["reasoning"])
    totals: Summary = {
        "request_count": len(done),
        "error_request_count": errors,
        "request_error_rate": over(100 * errors, errors + len(done)),
        "benchmark_duration": span_s(done["sent"], done["last"]),
        "request_throughput": over(len(done), phase_s),
        "total_isl": inputs,
        "total_osl": outputs,
        "total_output_tokens": total(spoken),
        "input_token_throughput": over(inputs, phase_s),
        "output_token_throughput": over(outputs, phase_s),
        "total_token_throughput": over(both(inputs, outputs), phase_s),
    }
    values = {
        "request_latency": latency_s * 1e3,
        "time_to_first_token": ttft_s * 1e3,
        "time_to_second_token": (done["second"] - done["first"]) * 1e3,
        "time_to_first_output_token": np.empty(0),
        "inter_token_latency": itl_s * 1e3,
        "inter_chunk_latency": chunk_gaps(facts) * 1e3,
        "decode_duration": decode_s * 1e3,
        "output_token_throughput_per_user": _per_s(np.ones(len(done)), itl_s),
        "e2e_output_token_throughput": _per_s(tokens, latency_s),
        "prefill_throughput_per_user": _per_s(done["input"], ttft_s),
        "input_sequence_length": done["input"],
        "output_sequence_length": tokens,
        # A request that only reasoned has no count of output tokens rather than one of 0.
        "output_token_count": present(np.where(spoken > 0, spoken, np.nan)),
    }
    found: Summary = {f"{name}.avg": value for name, value in totals.items()}
    for name, each in values.items():
        numbers = describe(each, _PERCENTILES)
        numbers["avg"] = numbers.pop("mean")
        found |= {f"{name}.{key}": value for key, value in numbers.items()}
    return found


def _per_s(counts: Floats, seconds: Floats) -> Floats:
    """counts/seconds, NaN where either is missing or no time passed."""
    rate = np.full(len(counts), np.nan)
    np.divide(counts, seconds, out=rate, where=seconds > 0)
    return rate
