"""Which numbers an error of the client has spoilt: like is compared with like."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from loadstone.analyse.verdict.facts import Floats
from loadstone.core.statistics import Distribution
from loadstone.core.units import show_seconds

SPOILT_SHARE = 0.1
"""An error over the metric that it is in, from which the metric is spoilt: a tenth is what repeated runs of one setup
differ by, and no difference below it is claimed from one run."""
_PERCENTILES = {"p50": 0.5, "p99": 0.01}
"""And the share of requests beyond them."""


def spoilt(errors_s: Floats, metrics: Mapping[str, Distribution | None], *, floor_s: float = 0.0) -> list[str]:
    """`TTFT p99 (31.0 ms)` for each percentile of `metrics` that the errors' own percentile spoils.

    `errors_s`: one of each request, seconds. `floor_s`: what is smaller spoils nothing.
    """
    names = []
    for percentile, share in _PERCENTILES.items():
        error_s = reached_by(errors_s, share)
        for name, metric in metrics.items():
            if metric is None or error_s <= floor_s:
                continue
            value_s = getattr(metric, percentile)
            if error_s >= SPOILT_SHARE * value_s:
                names.append(f"{name} {percentile} ({show_seconds(value_s)})")
    return names


def reached_by(values: Floats, share: float) -> float:
    """What this share of the values, and at least two of them, reach; 0 where there are fewer: one hiccup in a short
    run is one request among others.
    """
    rank = max(2, math.ceil(share * len(values)))
    return float(np.sort(values)[-rank]) if rank <= len(values) else 0.0
