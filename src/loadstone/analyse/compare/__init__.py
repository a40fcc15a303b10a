"""Two sides of runs, A and B: what differs in the setup, and which metrics differ by more than
chance.

Units of the statistics are whole runs where both sides have repeats, else blocks of requests within
the one run (core.statistics.dependence). Differences are tested by permuting units, for all metrics
and cells together (`permutation`); ratios come with an interval (`ratio`), and with prices also
that of a million tokens (`price`). docs/compare.md is for readers, docs/statistics.md says what the
tests hold.
"""

from loadstone.analyse.compare.comparison import compare

__all__ = ["compare"]
