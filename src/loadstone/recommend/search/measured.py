"""Measured runs of deployments: how far off their predictions were, and whether answers were
right."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from loadstone.analyse.power import PowerGap
from loadstone.analyse.summary import summary_of
from loadstone.calibrate.cases import predict_latencies
from loadstone.catalogue import parse_deployment
from loadstone.catalogue.deployment.deployment import Worker
from loadstone.core import arrays
from loadstone.core.summary import CellSummary
from loadstone.core.vectors import Floats
from loadstone.recommend.search.candidates import Candidate, Refused
from loadstone.runs.calibrate import cases_of_runs, deployment_of_runs, power_gaps


class MeasuredRun(NamedTuple):
    """A measured run of a deployment; gaps: ln(measured/predicted) of its TTFT and TPOT, NaN where
    not measured.

    power   of its loads, how far their watts are off
    graded  its answers were graded, with a verdict; `wrong`: they are wrong, as it says
    """

    deployment: str
    gaps: Floats
    graded: bool = False
    wrong: str = ""
    power: Sequence[PowerGap] = ()

    def has_precision_of(self, worker: Worker) -> bool:
        """Tell whether a worker has the model, and the precision of weights and KV cache, that
        was measured."""
        measured = parse_deployment(self.deployment).decoder
        return all(
            getattr(measured, name) == getattr(worker, name)
            for name in ("model", "weights_dtype", "kv_dtype")
        )


def read_measured(run: Path, *, force: bool) -> MeasuredRun:
    """Compare a measured run with its simulation. Raises InputError where it is no measured run of
    a known deployment, or, unless `force`, not trusted."""
    deployment = deployment_of_runs([run])
    cells = summary_of(run).cells
    wrong = wrong_answers(cells)
    if wrong:
        return MeasuredRun(deployment.name, np.full(2, np.nan), True, wrong)
    gaps = []
    for case in cases_of_runs([run], deployment, force=force):
        ttft_s, tpot_s = predict_latencies(case)
        measured = case.point.ttft_s or math.nan, case.point.tpot_s or math.nan
        gaps.append((math.log(measured[0] / ttft_s), math.log(measured[1] / tpot_s)))
    graded = any(cell.graded is not None and cell.graded.undecided is None for cell in cells)
    finite = (arrays.drop_missing(column) for column in np.array(gaps).T)
    middle = np.array([np.median(column) if len(column) else math.nan for column in finite])
    return MeasuredRun(deployment.name, middle, graded, power=power_gaps([run]))


def wrong_answers(cells: Sequence[CellSummary]) -> str:
    """Return the evidence that answers of a run are wrong; empty where they are not."""
    for cell in cells:
        for finding in cell.verdict.findings:
            if finding.kind == "answers_wrong":
                return finding.evidence
    return ""


def refuse_wrong(
    candidates: Sequence[Candidate], measured: Sequence[MeasuredRun]
) -> tuple[list[Candidate], list[Refused]]:
    """Leave out what has a precision at which measured answers were wrong; return the others, and
    the reasons."""
    reasons: dict[str, str] = {}
    for run in measured:
        for candidate in candidates if run.wrong else ():
            if run.has_precision_of(candidate.deployment.decoder):
                reasons[candidate.name] = (
                    f"its precision failed the check of answers on {run.deployment}: {run.wrong}"
                )
    kept = [candidate for candidate in candidates if candidate.name not in reasons]
    return kept, [Refused(name, why) for name, why in reasons.items()]
