"""Whether a cell's numbers can be believed: findings, each with its evidence and what to do about it.

No warning and no error means trusted. Each module names its thresholds at its top, with their reasons;
docs/verdict.md has them all for readers.
"""

from loadstone.analyse.verdict.cell import cell_findings
from loadstone.analyse.verdict.damage import kept_findings
from loadstone.analyse.verdict.facts import SCALARS, Events
from loadstone.analyse.verdict.finding import Finding, Verdict, judge
from loadstone.analyse.verdict.gpu import gpu_figures
from loadstone.analyse.verdict.prediction import prediction_findings
from loadstone.analyse.verdict.run import run_findings
from loadstone.analyse.verdict.server import server_figures
from loadstone.core.summary import GpuFigures, ServerFigures

__all__ = [
    "SCALARS", "Events", "Finding", "GpuFigures", "ServerFigures", "Verdict", "cell_findings", "gpu_figures", "judge",
    "kept_findings", "prediction_findings", "run_findings", "server_figures",
]  # fmt: skip
