"""Describes a sample: its moments, its percentiles, and how far each can be trusted.

`dependence` has the one rule by which requests that depend on one another are counted, in blocks
and as the places of a closed loop; summaries, reports and comparisons take their intervals from it.
docs/statistics.md says how often these hold the truth.
"""

from loadstone.core.statistics.dependence import Dependence
from loadstone.core.statistics.distribution import (
    PERCENTILES,
    STATISTICS,
    Distribution,
    distribution,
    percentile,
    percentile_bounds,
)
from loadstone.core.statistics.pool import SamplePool

__all__ = [
    "PERCENTILES",
    "STATISTICS",
    "Dependence",
    "Distribution",
    "SamplePool",
    "distribution",
    "percentile",
    "percentile_bounds",
]
