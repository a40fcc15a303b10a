"""Computes what some load generators define for themselves: the clients of vLLM and SGLang, AIPerf,
inference-perf and llmperf.

Each formula is as the tool's source computes it; tools.toml takes it from `FUNCTIONS` by its name.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from loadstone.analyse.other_tools.facts import Facts, mean_gap_s
from loadstone.core.arrays import (
    divide,
    drop_missing,
    span_s,
    total,
)
from loadstone.core.vectors import Bools, Floats

# --- vLLM and SGLang ------------------------------------------------------------------------------


def _first_send(facts: Facts, ends: Floats) -> tuple[Bools, float | None]:
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


# --- AIPerf and inference-perf --------------------------------------------------------------------


def _spoken(facts: Facts) -> Floats:
    """Output tokens that are no reasoning."""
    return np.asarray(facts.done["tokens"] - np.nan_to_num(facts.done["reasoning"]))


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


FUNCTIONS: dict[str, Callable[[Facts], Any]] = {
    "unknown": lambda f: None,
    "most_chunks_until_last": lambda f: _most_events(f, f.arrival, f.done["last"]),
    "most_chunks_until_end": lambda f: _most_events(f, f.arrival, f.done["end"]),
    "most_tokens_until_end": lambda f: _most_events(f, _each_token(f), f.done["end"]),
    "most_requests_until_last": lambda f: _most_requests(f, f.done["last"]),
    "most_requests_until_end": lambda f: _most_requests(f, f.done["end"]),
    "sum_e2e_s": lambda f: float(drop_missing(f.span("sent", "end")).sum()),
    "longest_chunk_gap_ms": lambda f: max((f.chunk_gaps_s * 1e3).tolist(), default=None),
    "longest_shared_gap_ms": lambda f: max((f.shared_gaps_s * 1e3).tolist(), default=None),
    "tpot_until_end_s": lambda f: mean_gap_s(f.span("first", "end"), f.done["tokens"]),
    "error_percent": lambda f: divide(100 * f.errors, f.errors + f.ok),
    "outputs_took_s": lambda f: span_s(f.done["sent"], f.done["last"]),
    "spoken_tokens": lambda f: total(_spoken(f)),
    # A request that only reasoned has no count of output tokens rather than one of 0.
    "spoken": lambda f: np.where(_spoken(f) > 0, _spoken(f), np.nan),
    "user_tokens_per_s": lambda f: mean_gap_s(np.ones(f.ok), f.tpot_s, less=0),
    "sending_s": _sending_s,
    "sends_per_s": lambda f: divide(f.count, _sending_s(f)),
    "schedule_delay_s": lambda f: f.measured["sent"] - f.measured["intended"],
    "ttft_of_several_s": lambda f: np.where(f.done["tokens"] > 1, f.ttft_s, np.nan),
    "gaps_with_zeros_s": _gaps_with_zeros_s,
    "failures_took_s": lambda f: f.failed["end"] - f.failed["sent"],
    "ok_per_min": lambda f: f.per_s(60 * f.ok),
    "failed_share": lambda f: divide(f.failures, f.count) or 0,
}
