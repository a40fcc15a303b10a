"""`sglang.bench_serving` (sglang/benchmark/serving.py), release 0.5.23.

Two clients in one: of SGLang's own endpoint the answers say how many tokens they hold, and gaps are shared out over
them; of OpenAI's they do not, and a gap is a gap between chunks.
"""

from __future__ import annotations

import numpy as np

from loadstone.analyse.other_tools.facts import (
    Facts,
    Summary,
    both,
    chunk_gaps,
    describe,
    described,
    mean_gap_s,
    token_gaps,
)
from loadstone.analyse.other_tools.vllm import busiest_second, in_ms
from loadstone.core.arrays import over, present, span_s, total

_PERCENTILES = (50, 90, 95, 99)
_STATISTICS = {
    "mean": "mean",
    "median": "median",
    "std": "standard deviation over n",
    **{f"p{p}": f"{p}th percentile, linear" for p in _PERCENTILES[1:]},
}


def definitions(*, native: bool) -> dict[str, str]:
    latencies = {
        "e2e_latency": "te − t0, to the last line of the stream",
        "ttft": "t1 − t0",
        "tpot": "(te − t1)/(n − 1) per request, n ≥ 2",
        "itl": "gaps over the tokens each brought, once per token, pooled"
        if native
        else "gaps between chunks, pooled, whatever the chunks hold",
    }
    return {
        "duration": "last end − first send, successful or not, s",
        "completed": "requests ok or short",
        "total_input_tokens": "Σ input tokens of completed requests",
        "total_output_tokens": "Σ n of completed requests",
        "total_output_tokens_retokenized": "not told by a record: needs the answers' texts",
        "request_throughput": "completed/duration, 1/s",
        "input_throughput": "total_input_tokens/duration, tokens/s",
        "output_throughput": "total_output_tokens/duration, tokens/s",
        "total_throughput": "(total_input_tokens + total_output_tokens)/duration, tokens/s",
        "concurrency": "Σ(te − t0) of completed requests/duration",
        "accept_length": "not told by a record: the server states it after the run",
        "max_output_tokens_per_s": "most gaps and first chunks in one whole second from the first send on",
        "max_concurrent_requests": "most requests that touch one whole second, even if one after another",
        "max_itl_ms": f"largest of {latencies['itl']}; ms",
        **described("{statistic}_{name}_ms", latencies, _STATISTICS, "; ms"),
    }


def summary(facts: Facts, duration_s: float | None = None, *, native: bool) -> Summary:
    """The keys of its result line. `duration_s`: what it measured around its requests, where that is known."""
    done = facts.done
    if duration_s is None:
        duration_s = span_s(facts.measured["sent"], facts.measured["end"])
    inputs, outputs = total(done["input"]), total(done["tokens"])
    latency = done["end"] - done["sent"]
    itl = token_gaps(facts, shared=True) if native else chunk_gaps(facts)
    counted = _each_token(facts) if native else facts
    tokens_per_s, concurrent = busiest_second(counted, done["end"])
    found: Summary = {
        "duration": duration_s,
        "completed": len(done),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "total_output_tokens_retokenized": None,
        "request_throughput": over(len(done), duration_s),
        "input_throughput": over(inputs, duration_s),
        "output_throughput": over(outputs, duration_s),
        "total_throughput": over(both(inputs, outputs), duration_s),
        "concurrency": over(float(present(latency).sum()), duration_s),
        "accept_length": None,
        "max_output_tokens_per_s": tokens_per_s,
        "max_concurrent_requests": concurrent,
        "max_itl_ms": describe(itl * 1e3, ())["max"],
    }
    latencies = {
        "e2e_latency": latency,
        "ttft": done["first"] - done["sent"],
        "tpot": mean_gap_s(done["end"] - done["first"], done["tokens"]),
        "itl": itl,
    }
    for name, values in latencies.items():
        found |= in_ms(name, values, _PERCENTILES)
        found[f"median_{name}_ms"] = found.pop(f"p50_{name}_ms")
    return found


def _each_token(facts: Facts) -> Facts:
    """With an arrival for each token after the first chunk: where its shared-out gaps put it, one per gap."""
    gaps = token_gaps(facts, shared=True)
    done = facts.done.copy()
    owner = np.repeat(np.arange(len(done)), done["events"])
    later = np.maximum(facts.gained, 0)
    first = np.diff(owner, prepend=-1) > 0
    later[first] = 0
    per_request = np.bincount(owner, weights=later, minlength=len(done)).astype(np.int64)
    shown = done["events"] > 0
    spaced = np.cumsum(gaps)
    ahead = np.cumsum(per_request) - per_request
    base = np.where(ahead > 0, spaced[ahead - 1] if len(spaced) else 0.0, 0.0)
    tokens = np.repeat(done["first"] - base, per_request) + spaced
    return facts._replace(arrival=np.concatenate([done["first"][shown], tokens]))
