"""MLPerf LoadGen with token latencies (mlcommons/inference, loadgen/results.cc, early_stopping.cc).

Keys are those of its detail log; times are whole nanoseconds. Latencies count from the time a query was scheduled,
which in an open loop is not when it was sent. `early_stopping_*` is the bound that its SingleStream scenario reports
instead of a percentile; it needs 64 requests for the 90th percentile and 662 for the 99th.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loadstone.analyse.other_tools.facts import Facts, Floats, Summary
from loadstone.core.arrays import over, present, total
from loadstone.core.statistics import percentile_bounds

if TYPE_CHECKING:
    from loadstone.core import Load

_PERCENTILES = (0.50, 0.90, 0.95, 0.97, 0.99, 0.999)
_CONFIDENCE = 0.98
"""Of a two-sided bound, so that its upper side alone has LoadGen's 0.99."""

# What a value is called before and after the percentile, and what it is.
_VALUES = {
    "latency": ("result_{}_percentile_latency_ns", "tT − scheduled"),
    "first_token": ("result_first_token_{}_percentile_latency_ns", "t1 − scheduled"),
    "tpot": ("result_time_per_output_token_{}_percentile_ns", "(tT − t1)/(n − 1), n ≥ 2"),
}
_MOMENTS = {
    "latency": "result_{}_latency_ns",
    "first_token": "result_first_token_{}_latency_ns",
    "tpot": "result_time_to_output_token_{}",
}
_WORDS = {"min": "smallest", "max": "largest", "mean": "mean"}
_EARLY = {"early_stopping_latency_ss": 0.90, "early_stopping_latency_ms": 0.99}
DEFINITIONS = {
    "result_query_count": "requests, whatever became of them",
    "result_scheduled_samples_per_sec": "(completed − 1)/(last scheduled − first scheduled), 1/s",
    "result_completed_samples_per_sec": "(completed − 1)/(tT of the last scheduled − first scheduled), 1/s",
    "result_token_throughput_with_loadgen_overhead": "Σ n/(send of the last scheduled − first scheduled), tokens/s",
    **{
        pattern.format(f"{100 * q:.2f}"): f"value number ⌊{q:g}·count⌋, from 0, in order, of {formula}; ns"
        for pattern, formula in _VALUES.values()
        for q in _PERCENTILES
    },
    **{
        pattern.format(key): f"{words} of {_VALUES[name][1]}; ns"
        for name, pattern in _MOMENTS.items()
        for key, words in _WORDS.items()
    },
    **{
        key: f"99 % upper bound of the {100 * q:g}th percentile of tT − scheduled, None below its least count; ns"
        for key, q in _EARLY.items()
    },
}


def summary(facts: Facts, load: Load) -> Summary:
    measured, done = facts.measured, facts.done
    # A closed loop schedules a query when it sends it.
    closed = load.kind == "concurrency"
    begins = done["sent"] if closed else np.where(np.isnan(done["intended"]), done["sent"], done["intended"])
    values = {
        "latency": _ns(done["last"] - begins),
        "first_token": _ns(done["first"] - begins),
        "tpot": _tpot_ns(done),
    }

    found: Summary = {"result_query_count": len(measured), **_rates(facts, begins)}
    for name, ordered in values.items():
        count = len(ordered)
        for q in _PERCENTILES:
            found[_VALUES[name][0].format(f"{100 * q:.2f}")] = int(ordered[int(count * q)]) if count else None
        moments = (ordered[0], ordered[-1], ordered.sum() // count) if count else (None, None, None)
        for key, moment in zip(_WORDS, moments, strict=True):
            found[_MOMENTS[name].format(key)] = None if moment is None else int(moment)
    return found | {key: _bound(values["latency"], q) for key, q in _EARLY.items()}


def _rates(facts: Facts, begins: Floats) -> Summary:
    """Throughputs up to the last request scheduled, which need not be the last to end."""
    done = facts.done
    known = ~np.isnan(begins)
    keys = list(DEFINITIONS)[1:4]
    if not known.any():
        return dict.fromkeys(keys)
    begin, last = float(np.nanmin(begins)), int(np.nanargmax(begins))
    return {
        keys[0]: over(len(done) - 1, float(begins[last]) - begin),
        keys[1]: over(len(done) - 1, float(done["last"][last]) - begin),
        keys[2]: over(total(done["tokens"]), float(done["sent"][last]) - begin),
    }


def _bound(ordered: NDArray[np.int64], q: float) -> int | None:
    """The value with t − 1 above it, t the most for which P(Bin(count, 1 − q) ≤ t) ≤ 0.01; None where t < 1."""
    _, rank = percentile_bounds(len(ordered), q, _CONFIDENCE)
    # The bound's rank leaves t above it; LoadGen takes the next value up.
    return None if rank is None or rank >= len(ordered) else int(ordered[rank])


def _tpot_ns(done: NDArray[Any]) -> NDArray[np.int64]:
    """In order, of requests of two tokens and more."""
    several = done[(done["tokens"] > 1) & ~np.isnan(done["first"])]
    span_ns = np.rint((several["last"] - several["first"]) * 1e9).astype(np.int64)
    return np.sort(span_ns // (several["tokens"].astype(np.int64) - 1))


def _ns(seconds: Floats) -> NDArray[np.int64]:
    """What is present, in order."""
    return np.sort(np.rint(present(seconds) * 1e9).astype(np.int64))
