"""llmperf (token_benchmark_ray.py; openai_chat_completions_client.py): keys of its summary file, all in seconds."""

from __future__ import annotations

from loadstone.analyse.other_tools.facts import Facts, Summary, describe, described, mean_gap_s
from loadstone.core.arrays import over, span_s, total

_PERCENTILES = (25, 50, 75, 90, 95, 99)
_VALUES = {
    "inter_token_latency_s": "(tT − t0)/n per request: it includes TTFT",
    "ttft_s": "t1 − t0",
    "end_to_end_latency_s": "te − t0",
    "request_output_throughput_token_per_s": "n/(te − t0) per request",
    "number_input_tokens": "input tokens per request",
    "number_output_tokens": "n per request",
}
_STATISTICS = {
    **{f"quantiles_p{p}": f"{p}th percentile, linear" for p in _PERCENTILES},
    "mean": "mean",
    "min": "smallest",
    "max": "largest",
    "stddev": "standard deviation over n − 1",
}
DEFINITIONS = {
    **described("results_{name}_{statistic}", _VALUES, _STATISTICS),
    "results_num_requests_started": "requests, whatever became of them",
    "results_num_completed_requests": "requests ok or short",
    "results_num_completed_requests_per_min": "60·completed/(last end − first send)",
    "results_number_errors": "requests neither ok nor short",
    "results_error_rate": "errors/requests started",
    "results_mean_output_throughput_token_per_s": "Σ n of completed requests/(last end − first send)",
}


def summary(facts: Facts) -> Summary:
    measured, done = facts.measured, facts.done
    seconds = span_s(measured["sent"], measured["end"])
    latency = done["end"] - done["sent"]
    values = {
        "inter_token_latency_s": mean_gap_s(done["last"] - done["sent"], done["tokens"], less=0),
        "ttft_s": done["first"] - done["sent"],
        "end_to_end_latency_s": latency,
        "request_output_throughput_token_per_s": mean_gap_s(done["tokens"], latency, less=0),
        "number_input_tokens": done["input"],
        "number_output_tokens": done["tokens"],
    }
    found: Summary = {}
    for name, each in values.items():
        numbers = describe(each, _PERCENTILES, ddof=1)
        numbers["stddev"] = numbers.pop("std")
        for key, value in numbers.items():
            found[f"results_{name}_{'quantiles_' if key.startswith('p') else ''}{key}"] = value
    errors = len(measured) - len(done)
    return found | {
        "results_num_requests_started": len(measured),
        "results_num_completed_requests": len(done),
        "results_num_completed_requests_per_min": over(60 * len(done), seconds),
        "results_number_errors": errors,
        "results_error_rate": errors / len(measured) if len(measured) else 0,
        "results_mean_output_throughput_token_per_s": over(total(done["tokens"]), seconds),
    }
