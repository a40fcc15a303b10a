"""Load generators whose percentiles are linear: vLLM's and SGLang's clients, AIPerf, inference-perf
and llmperf.

Keys are those of each tool's result file, and each formula is as its source computes it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadstone.analyse.other_tools.dialect import Dialect, ToolSample, Total, linear
from loadstone.analyse.other_tools.facts import Facts, mean_gap_s
from loadstone.core.arrays import Floats, divide, drop_missing, span_s, total

# --- vLLM and SGLang ------------------------------------------------------------------------------

_CHUNKS = "gaps between chunks, pooled, whatever the chunks hold"
_BENCH = {
    "duration": Total("last end − first send, successful or not, s", lambda f: f.duration_s),
    "completed": Total("requests ok or short", lambda f: f.ok),
    "total_input_tokens": Total("Σ input tokens of completed requests", lambda f: f.input_tokens),
    "total_output_tokens": Total("Σ n of completed requests", lambda f: f.output_tokens),
    "request_throughput": Total("completed/duration, 1/s", lambda f: f.per_s(f.ok)),
    "output_throughput": Total(
        "total_output_tokens/duration, tokens/s", lambda f: f.per_s(f.output_tokens)
    ),
}
_NAMES = {
    "output_tokens_per_s": "output_throughput",
    "requests_per_s": "request_throughput",
    **{f"{name}_s": name for name in ("ttft", "tpot", "itl")},
}
_ALL_THROUGHPUT = Total(
    "(total_input_tokens + total_output_tokens)/duration, tokens/s", lambda f: f.per_s(f.all_tokens)
)
_CONCURRENT = "most requests that touch one whole second, even if one after another"

# vllm/benchmarks/serve.py, calculate_metrics; lib/endpoint_request_func.py
VLLM = Dialect(
    "vllm bench serve 0.33.0",
    totals={
        **_BENCH,
        "failed": Total("all others", lambda f: len(f.failed)),
        "total_token_throughput": _ALL_THROUGHPUT,
        "max_output_tokens_per_s": Total(
            "most chunks, not tokens, in one whole second from the first send on",
            lambda f: _most_events(f, f.arrival, f.done["last"]),
        ),
        "max_concurrent_requests": Total(_CONCURRENT, lambda f: _most_requests(f, f.done["last"])),
    },
    samples={
        "ttft": ToolSample("t1 − t0", lambda f: f.ttft_s * 1e3),
        "tpot": ToolSample("(tT − t1)/(n − 1) per request, n ≥ 2", lambda f: f.tpot_s * 1e3),
        "itl": ToolSample(_CHUNKS, lambda f: f.chunk_gaps_s * 1e3),
        "e2el": ToolSample("tT − t0", lambda f: f.span("sent", "last") * 1e3),
    },
    statistics=linear("mean", "median", "std", percentiles=(50, 90, 95, 99)),
    keys=("*", "{}_*_ms"),
    suffix="; ms",
    names=_NAMES | {"total_tokens_per_s": "total_token_throughput", "e2e_s": "e2el"},
)


def sglang(*, native: bool) -> Dialect:
    """sglang/benchmark/serving.py: two clients in one.

    Of SGLang's own endpoint (`native`) the answers say how many tokens they hold, and gaps are
    shared out over them; of OpenAI's they do not, and a gap is a gap between chunks.
    """
    gaps = "gaps over the tokens each brought, once per token, pooled" if native else _CHUNKS

    def gaps_ms(facts: Facts) -> Floats:
        return (facts.shared_gaps_s if native else facts.chunk_gaps_s) * 1e3

    return Dialect(
        "sglang.bench_serving 0.5.23 --backend"
        f" {'sglang' if native else 'sglang-oai, sglang-oai-chat or vllm'}",
        totals={
            **_BENCH,
            "total_output_tokens_retokenized": Total(
                "not told by a record: needs the answers' texts", lambda f: None
            ),
            "input_throughput": Total(
                "total_input_tokens/duration, tokens/s", lambda f: f.per_s(f.input_tokens)
            ),
            "total_throughput": _ALL_THROUGHPUT,
            "concurrency": Total(
                "Σ(te − t0) of completed requests/duration",
                lambda f: f.per_s(float(drop_missing(f.span("sent", "end")).sum())),
            ),
            "accept_length": Total(
                "not told by a record: the server states it after the run", lambda f: None
            ),
            "max_output_tokens_per_s": Total(
                "most gaps and first chunks in one whole second from the first send on",
                lambda f: _most_events(f, _each_token(f) if native else f.arrival, f.done["end"]),
            ),
            "max_concurrent_requests": Total(
                _CONCURRENT, lambda f: _most_requests(f, f.done["end"])
            ),
            "max_itl_ms": Total(
                f"largest of {gaps}; ms",
                lambda f: max(gaps_ms(f).tolist(), default=None),
            ),
        },
        samples={
            "e2e_latency": ToolSample(
                "te − t0, to the last line of the stream", lambda f: f.span("sent", "end") * 1e3
            ),
            "ttft": ToolSample("t1 − t0", lambda f: f.ttft_s * 1e3),
            "tpot": ToolSample(
                "(te − t1)/(n − 1) per request, n ≥ 2",
                lambda f: mean_gap_s(f.span("first", "end"), f.done["tokens"]) * 1e3,
            ),
            "itl": ToolSample(gaps, gaps_ms),
        },
        statistics=linear("mean", "median", "std", percentiles=(90, 95, 99)),
        keys=("*", "{}_*_ms"),
        suffix="; ms",
        names=_NAMES | {"total_tokens_per_s": "total_throughput", "e2e_s": "e2e_latency"},
    )


def _first_send(facts: Facts, ends: Floats) -> tuple[NDArray[np.bool_], float | None]:
    """Mark done requests that have a send and an end, and find the first send: there the grid of
    seconds begins."""
    timed = ~np.isnan(facts.done["sent"]) & ~np.isnan(ends)
    return timed, float(facts.done["sent"][timed].min()) if timed.any() else None


def _most_events(facts: Facts, arrival: Floats, ends: Floats) -> float | None:
    """The most events in one second of a fixed grid that begins at the first send."""
    _, begin = _first_send(facts, ends)
    if begin is None:
        return None
    _, counts = np.unique(np.floor(arrival - begin), return_counts=True)
    return float(counts.max(initial=0))


def _most_requests(facts: Facts, ends: Floats) -> int | None:
    """The most requests in one second of that grid: each counts from the second of its send to that
    of its end."""
    timed, begin = _first_send(facts, ends)
    if begin is None:
        return None
    sent, ended = (np.sort(np.floor(times[timed] - begin)) for times in (facts.done["sent"], ends))
    # The count can only be highest in a second in which one is sent.
    return int(
        (
            np.searchsorted(sent, sent, side="right") - np.searchsorted(ended, sent, side="left")
        ).max()
    )


def _each_token(facts: Facts) -> Floats:
    """First chunks, and each later token where its shared-out gap puts it."""
    done, gaps_s = facts.done, facts.shared_gaps_s
    following = np.where(facts.first_events, 0, np.maximum(facts.gained, 0))
    per_request = np.bincount(facts.owners, weights=following, minlength=len(done)).astype(np.int64)
    spaced_s = np.cumsum(gaps_s)
    offset = np.cumsum(per_request) - per_request
    base_s = np.where(offset > 0, spaced_s[offset - 1] if len(spaced_s) else 0.0, 0.0)
    tokens = np.repeat(done["first"] - base_s, per_request) + spaced_s
    return np.concatenate([done["first"][done["events"] > 0], tokens])


# --- AIPerf: aiperf/metrics/types/*.py, metric_dicts.py; keys of profile_export_aiperf.json -------

# Its phase begins before the first request and ends after the last. `benchmark_duration` is
# something else, and rates are not over it, whatever AIPerf's own docstrings say.
AIPERF = Dialect(
    "AIPerf 0.13.0",
    totals={
        "request_count": Total("requests ok or short", lambda f: f.ok),
        "error_request_count": Total(
            "requests neither ok, short nor cancelled; the tool leaves it out where it is 0",
            lambda f: f.errors,
        ),
        "request_error_rate": Total(
            "errors/(errors + request_count), %", lambda f: divide(100 * f.errors, f.errors + f.ok)
        ),
        "benchmark_duration": Total(
            "last tT − first send of ok and short requests, s",
            lambda f: span_s(f.done["sent"], f.done["last"]),
        ),
        "request_throughput": Total(
            "request_count/(last end − first send), 1/s", lambda f: f.per_s(f.ok)
        ),
        "total_isl": Total("Σ input tokens of ok and short requests", lambda f: f.input_tokens),
        "total_osl": Total("Σ n of ok and short requests", lambda f: f.output_tokens),
        "total_output_tokens": Total(
            "Σ (n less reasoning tokens) of ok and short requests", lambda f: total(_spoken(f))
        ),
        "input_token_throughput": Total(
            "total_isl/(last end − first send), tokens/s", lambda f: f.per_s(f.input_tokens)
        ),
        "output_token_throughput": Total(
            "total_osl/(last end − first send), tokens/s", lambda f: f.per_s(f.output_tokens)
        ),
        "total_token_throughput": Total(
            "(total_isl + total_osl)/(last end − first send), tokens/s",
            lambda f: f.per_s(f.all_tokens),
        ),
    },
    samples={
        "request_latency": ToolSample("tT − t0; ms", lambda f: f.span("sent", "last") * 1e3),
        "time_to_first_token": ToolSample("t1 − t0; ms", lambda f: f.ttft_s * 1e3),
        "time_to_second_token": ToolSample(
            "second event − first event; ms", lambda f: f.span("first", "second") * 1e3
        ),
        "time_to_first_output_token": ToolSample(
            "first event that is no reasoning − t0, where that is known; ms",
            lambda f: f.span("sent", "answer") * 1e3,
        ),
        "inter_token_latency": ToolSample(
            "(tT − t1)/(n − 1) per request, n ≥ 2; ms", lambda f: f.tpot_s * 1e3
        ),
        "inter_chunk_latency": ToolSample(f"{_CHUNKS}; ms", lambda f: f.chunk_gaps_s * 1e3),
        "decode_duration": ToolSample("tT − t1; ms", lambda f: f.span("first", "last") * 1e3),
        "output_token_throughput_per_user": ToolSample(
            "1/inter_token_latency per request, tokens/s", lambda f: _per_s(np.ones(f.ok), f.tpot_s)
        ),
        "e2e_output_token_throughput": ToolSample(
            "n/(tT − t0) per request, tokens/s",
            lambda f: _per_s(f.done["tokens"], f.span("sent", "last")),
        ),
        "prefill_throughput_per_user": ToolSample(
            "input tokens/(t1 − t0) per request, tokens/s",
            lambda f: _per_s(f.done["input"], f.ttft_s),
        ),
        "input_sequence_length": ToolSample("input tokens per request", lambda f: f.done["input"]),
        "output_sequence_length": ToolSample(
            "n per request, reasoning included", lambda f: f.done["tokens"]
        ),
        # A request that only reasoned has no count of output tokens rather than one of 0.
        "output_token_count": ToolSample(
            "n less reasoning tokens per request",
            lambda f: np.where(_spoken(f) > 0, _spoken(f), np.nan),
        ),
    },
    statistics=linear("avg", "min", "max", "std", percentiles=(1, 5, 10, 25, 50, 75, 90, 95, 99)),
    keys=("*.avg", "*.{}"),
    names={
        "output_tokens_per_s": "output_token_throughput",
        "total_tokens_per_s": "total_token_throughput",
        "requests_per_s": "request_throughput",
        "ttft_s": "time_to_first_token",
        "tpot_s": "inter_token_latency",
        "itl_s": "inter_chunk_latency",
        "e2e_s": "request_latency",
    },
)


def _spoken(facts: Facts) -> Floats:
    """Output tokens that are no reasoning."""
    return np.asarray(facts.done["tokens"] - np.nan_to_num(facts.done["reasoning"]))


def _per_s(counts: Floats, seconds: Floats) -> Floats:
    """counts/seconds, NaN where either is missing or no time passed."""
    return mean_gap_s(counts, seconds, less=0)


# --- inference-perf: inference_perf/reportgen/base.py, summarize_requests; in seconds -------------


def _sending_s(facts: Facts) -> float | None:
    return span_s(facts.measured["sent"], facts.measured["sent"])


def _gaps_with_zeros_s(facts: Facts) -> Floats:
    """One gap per token: an event's gap to the event before that brought a token.

    The first of its tokens takes all of it and the others take 0, those of a first event too; the
    first event that brought a token is the first that counts.
    """
    kept = facts.gained > 0
    first = np.diff(facts.owners[kept], prepend=-1) > 0
    gap_s, tokens = np.diff(facts.arrival[kept], prepend=0.0), facts.gained[kept]
    gaps_s = np.zeros(int(tokens.sum()))
    offset = np.cumsum(tokens) - tokens
    gaps_s[offset] = gap_s
    return np.delete(gaps_s, offset[first])


INFERENCE_PERF = Dialect(
    "inference-perf 0.7.0",
    totals={
        "benchmark_time_seconds": Total(
            "last end − first send, successful or not", lambda f: f.duration_s
        ),
        "load_summary.count": Total("requests, whatever became of them", lambda f: len(f.measured)),
        "load_summary.send_duration": Total("last send − first send, s", _sending_s),
        "load_summary.achieved_rate": Total(
            "requests/send_duration, 1/s", lambda f: divide(len(f.measured), _sending_s(f))
        ),
        "successes.count": Total("requests ok or short", lambda f: f.ok),
        "successes.throughput.input_tokens_per_sec": Total(
            "Σ input tokens of successes/benchmark time", lambda f: f.per_s(f.input_tokens)
        ),
        "successes.throughput.output_tokens_per_sec": Total(
            "Σ n of successes/benchmark time", lambda f: f.per_s(f.output_tokens)
        ),
        "successes.throughput.total_tokens_per_sec": Total(
            "both of them/benchmark time", lambda f: f.per_s(f.all_tokens)
        ),
        "successes.throughput.requests_per_sec": Total(
            "successes/benchmark time", lambda f: f.per_s(f.ok)
        ),
        "failures.count": Total("requests neither ok nor short", lambda f: len(f.failed)),
    },
    samples={
        "load_summary.schedule_delay": ToolSample(
            "t0 − intended, of all requests; s",
            lambda f: f.measured["sent"] - f.measured["intended"],
        ),
        "successes.latency.request_latency": ToolSample(
            "te − t0; s", lambda f: f.span("sent", "end")
        ),
        "successes.latency.normalized_time_per_output_token": ToolSample(
            "(te − t0)/n per request; s",
            lambda f: mean_gap_s(f.span("sent", "end"), f.done["tokens"], less=0),
        ),
        "successes.latency.time_per_output_token": ToolSample(
            "(tT − t1)/(n − 1) per request, n ≥ 2; s", lambda f: f.tpot_s
        ),
        "successes.latency.time_to_first_token": ToolSample(
            "t1 − t0, of requests of two tokens and more; s",
            lambda f: np.where(f.done["tokens"] > 1, f.ttft_s, np.nan),
        ),
        "successes.latency.inter_token_latency": ToolSample(
            "gaps between tokens, pooled, 0 within a chunk; s", _gaps_with_zeros_s
        ),
        "successes.output_len": ToolSample("n per request", lambda f: f.done["tokens"]),
        "failures.request_latency": ToolSample(
            "te − t0 of requests neither ok nor short; s",
            lambda f: f.failed["end"] - f.failed["sent"],
        ),
    },
    statistics=linear(
        "mean", "min", "max", "median", percentiles=(0.1, 1, 5, 10, 25, 75, 90, 95, 99, 99.9)
    ),
    keys=("*", "*.{}"),
    names={
        "output_tokens_per_s": "successes.throughput.output_tokens_per_sec",
        "total_tokens_per_s": "successes.throughput.total_tokens_per_sec",
        "requests_per_s": "successes.throughput.requests_per_sec",
        "ttft_s": "successes.latency.time_to_first_token",
        "tpot_s": "successes.latency.time_per_output_token",
        "itl_s": "successes.latency.inter_token_latency",
        "e2e_s": "successes.latency.request_latency",
    },
)


# --- llmperf: token_benchmark_ray.py, openai_chat_completions_client.py; its summary file, in secon

LLMPERF = Dialect(
    "llmperf token_benchmark_ray.py",
    totals={
        "num_requests_started": Total(
            "requests, whatever became of them", lambda f: len(f.measured)
        ),
        "num_completed_requests": Total("requests ok or short", lambda f: f.ok),
        "num_completed_requests_per_min": Total(
            "60·completed/(last end − first send)", lambda f: f.per_s(60 * f.ok)
        ),
        "number_errors": Total("requests neither ok nor short", lambda f: len(f.failed)),
        "error_rate": Total(
            "errors/requests started", lambda f: divide(len(f.failed), len(f.measured)) or 0
        ),
        "mean_output_throughput_token_per_s": Total(
            "Σ n of completed requests/(last end − first send)", lambda f: f.per_s(f.output_tokens)
        ),
    },
    samples={
        "inter_token_latency_s": ToolSample(
            "(tT − t0)/n per request: it includes TTFT",
            lambda f: mean_gap_s(f.span("sent", "last"), f.done["tokens"], less=0),
        ),
        "ttft_s": ToolSample("t1 − t0", lambda f: f.ttft_s),
        "end_to_end_latency_s": ToolSample("te − t0", lambda f: f.span("sent", "end")),
        "request_output_throughput_token_per_s": ToolSample(
            "n/(te − t0) per request", lambda f: _per_s(f.done["tokens"], f.span("sent", "end"))
        ),
        "number_input_tokens": ToolSample("input tokens per request", lambda f: f.done["input"]),
        "number_output_tokens": ToolSample("n per request", lambda f: f.done["tokens"]),
    },
    statistics=linear(
        "mean", "min", "max", "stddev", percentiles=(25, 50, 75, 90, 95, 99), prefix="quantiles_p"
    ),
    keys=("results_*", "results_*_{}"),
)
