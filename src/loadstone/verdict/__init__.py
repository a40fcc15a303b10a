"""Whether a cell's numbers can be believed: findings, each with its evidence and what to do about it.

No warning and no error means trusted. Each module names its thresholds at its top, with their reasons;
docs/verdict.md has them all for readers.
"""

from loadstone.verdict.cell import cell_findings
from loadstone.verdict.facts import SCALARS
from loadstone.verdict.finding import Finding, Severity, Verdict, judge, to_json
from loadstone.verdict.server import ServerFigures, server_figures

__all__ = [
    "SCALARS", "Finding", "ServerFigures", "Severity", "Verdict", "cell_findings", "judge", "server_figures",
    "to_json",
]  # fmt: skip
