"""Describing a sample: its moments, its percentiles, and how far each can be trusted.

`flow` has the one rule by which requests that depend on one another are counted, as `blocks` and as the places of a
closed loop (`rhythm`); summaries, reports and comparisons take their intervals from it. docs/statistics.md says how
often these hold the truth.
"""

from loadstone.core.statistics.distribution import (
    PERCENTILES,
    STATISTICS,
    Distribution,
    distribution,
    percentile,
    percentile_bounds,
)
from loadstone.core.statistics.flow import Flow
from loadstone.core.statistics.pool import Pool

__all__ = [
    "PERCENTILES", "STATISTICS", "Distribution", "Flow", "Pool", "distribution", "percentile", "percentile_bounds",
]  # fmt: skip
