"""MLPerf LoadGen with token latencies (mlcommons/inference, loadgen/results.cc, early_stopping.cc).

Keys are those of its detail log; times are whole nanoseconds. Latencies count from the time a query was scheduled,
which in an open loop is not when it was sent. `early_stopping_*` is the bound that its SingleStream scenario reports
instead of a percentile; it needs 64 requests for the 90th percentile and 662 for the 99th.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from loadstone.analyse.other_tools.dialect import Dialect, Sample, Statistic, Total
from loadstone.analyse.other_tools.facts import Facts
from loadstone.core.arrays import Floats, over, present
from loadstone.core.statistics import percentile_bounds

_CONFIDENCE = 0.98
"""Of a two-sided bound, so that its upper side alone has LoadGen's 0.99."""


def _at_share(ordered: NDArray[np.int64], q: float) -> int:
    return int(ordered[int(len(ordered) * q)])


_MOMENTS = (
    Statistic("min", "smallest", lambda ordered: ordered[0]),
    Statistic("max", "largest", lambda ordered: ordered[-1]),
    Statistic("mean", "mean", lambda ordered: ordered.sum() // len(ordered)),
)
_ORDERED = tuple(
    Statistic(f"{100 * q:.2f}_percentile", f"value number ⌊{q:g}·count⌋, from 0, in order,", partial(_at_share, q=q))
    for q in (0.50, 0.90, 0.95, 0.97, 0.99, 0.999)
)
_TPOT = "(tT − t1)/(n − 1), n ≥ 2"
_BOUND = "99 % upper bound of the {}th percentile of tT − scheduled, None below its least count; ns"


def _scheduled(facts: Facts) -> Floats:
    """When each done request was to be sent; a closed loop schedules a query when it sends it."""
    sent, intended = facts.done["sent"], facts.done["intended"]
    closed = facts.load.is_closed
    return np.where(np.isnan(intended) | closed, sent, intended)


def _until_last_s(facts: Facts, moments: Floats) -> float | None:
    """From the first scheduled to this moment of the last scheduled, which need not be the last to end."""
    begins = _scheduled(facts)
    if np.isnan(begins).all():
        return None
    return float(moments[np.nanargmax(begins)] - np.nanmin(begins))


def _latency_ns(facts: Facts) -> NDArray[np.int64]:
    return _ns(facts.done["last"] - _scheduled(facts))


def _bound(ordered: NDArray[np.int64], q: float) -> int | None:
    """The value with t − 1 above it, t the most for which P(Bin(count, 1 − q) ≤ t) ≤ 0.01; None where t < 1."""
    _, rank = percentile_bounds(len(ordered), q, _CONFIDENCE)
    # The bound's rank leaves t above it; LoadGen takes the next value up.
    return None if rank is None or rank >= len(ordered) else int(ordered[rank])


def _tpot_ns(facts: Facts) -> NDArray[np.int64]:
    """In order, of requests of two tokens and more."""
    several = facts.done[(facts.done["tokens"] > 1) & ~np.isnan(facts.done["first"])]
    span_ns = np.rint((several["last"] - several["first"]) * 1e9).astype(np.int64)
    return np.sort(span_ns // (several["tokens"].astype(np.int64) - 1))


def _ns(seconds: Floats) -> NDArray[np.int64]:
    """What is present, in order."""
    return np.sort(np.rint(present(seconds) * 1e9).astype(np.int64))


MLPERF = Dialect(
    "MLPerf LoadGen, token latencies",
    totals={
        "result_query_count": Total("requests, whatever became of them", lambda f: len(f.measured)),
        "result_scheduled_samples_per_sec": Total(
            "(completed − 1)/(last scheduled − first scheduled), 1/s",
            lambda f: over(len(f.done) - 1, _until_last_s(f, _scheduled(f))),
        ),
        "result_completed_samples_per_sec": Total(
            "(completed − 1)/(tT of the last scheduled − first scheduled), 1/s",
            lambda f: over(len(f.done) - 1, _until_last_s(f, f.done["last"])),
        ),
        "result_token_throughput_with_loadgen_overhead": Total(
            "Σ n/(send of the last scheduled − first scheduled), tokens/s",
            lambda f: over(f.output_tokens, _until_last_s(f, f.done["sent"])),
        ),
        "early_stopping_latency_ss": Total(_BOUND.format(90), lambda f: _bound(_latency_ns(f), 0.90)),
        "early_stopping_latency_ms": Total(_BOUND.format(99), lambda f: _bound(_latency_ns(f), 0.99)),
    },
    samples={
        "result_{}_latency_ns": Sample("tT − scheduled", _latency_ns),
        "result_first_token_{}_latency_ns": Sample("t1 − scheduled", lambda f: _ns(f.done["first"] - _scheduled(f))),
        "result_time_per_output_token_{}_ns": Sample(_TPOT, _tpot_ns, _ORDERED),
        "result_time_to_output_token_{}": Sample(_TPOT, _tpot_ns, _MOMENTS),
    },
    statistics=_ORDERED + _MOMENTS,
    suffix="; ns",
    prepare=lambda ordered: ordered if len(ordered) else None,
)
