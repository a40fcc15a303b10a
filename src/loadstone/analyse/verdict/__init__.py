"""Judges if a cell's numbers can be believed: findings, each with its evidence and what to do about
it.

No warning and no error means trusted. `findings.toml` has the severity of each finding, the runs
for which it holds and its remedy; `thresholds.py` has the thresholds with their reasons;
docs/verdict.md has all of it for readers.
"""

from loadstone.analyse.verdict.finding import Origin, judge
from loadstone.analyse.verdict.requests import SCALARS, EventReader, JudgedCell, request_table
from loadstone.analyse.verdict.rules import cell_findings
from loadstone.analyse.verdict.run import (
    beyond_hardware,
    kept_findings,
    prediction_findings,
    record_findings,
    run_findings,
    session_findings,
)
from loadstone.analyse.verdict.server import gpu_figures, server_figures
from loadstone.core.summary import Finding, GpuFigures, ServerFigures, Verdict

__all__ = [
    "SCALARS",
    "EventReader",
    "Finding",
    "GpuFigures",
    "JudgedCell",
    "Origin",
    "ServerFigures",
    "Verdict",
    "beyond_hardware",
    "cell_findings",
    "gpu_figures",
    "judge",
    "kept_findings",
    "prediction_findings",
    "record_findings",
    "request_table",
    "run_findings",
    "server_figures",
    "session_findings",
]
