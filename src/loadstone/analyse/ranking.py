"""Ranks several deployments under the same loads, the best first.

Each is judged at the load at which it gives most: output tokens per second and GPU, of the loads
that meet the run's bounds on latency (SLO), if it has any. Throughputs within 1 % are taken as
equal, and the median E2E decides.
"""

import math
from collections.abc import Iterable

from loadstone.core.ranked_runs import Ranked
from loadstone.core.summary import CellSummary, Summary

RULE = (
    "ranked by output tokens/s per GPU, at the load where a deployment gives most and meets its"
    " bounds on latency; within 1% by the median E2E"
)
_ALIKE = 0.01


def judged(deployment: str, gpus: int, summary: Summary) -> Ranked:
    """Judge a run of `deployment`, which has so many GPUs."""
    rows = [_at(deployment, gpus, summary.run_dir, cell) for cell in summary.cells]
    if not rows:
        return Ranked(
            deployment=deployment, gpus=gpus, run_dir=summary.run_dir, why="nothing was simulated"
        )
    return min(rows, key=_order)


def ranking(rows: Iterable[Ranked]) -> list[Ranked]:
    """Sort deployments: the best first, those that miss their bounds behind the others, those that
    cannot be simulated last.
    """
    return sorted(rows, key=_order)


def _at(deployment: str, gpus: int, run_dir: str, cell: CellSummary) -> Ranked:
    metrics, rate = cell.metrics, getattr(cell.lasting(), cell.rate_name)
    interval = metrics.interval.get(cell.rate_name)
    unit = "output_tokens" if cell.rate_name == "output_tokens_per_s" else "texts"
    rates = {f"{unit}_per_s": rate, f"{unit}_per_s_per_gpu": rate and rate / gpus}
    ttft, e2e = (
        metrics.ttft_intended_s or metrics.ttft_s if cell.load.is_open else metrics.ttft_s,
        metrics.e2e_intended_s or metrics.e2e_s if cell.load.is_open else metrics.e2e_s,
    )
    return Ranked(
        deployment=deployment,
        gpus=gpus,
        run_dir=run_dir,
        load=cell.load,
        **rates,
        low=None if interval is None else interval.low / gpus,
        high=None if interval is None else interval.high / gpus,
        ttft_s=ttft.p50 if ttft else None,
        tpot_s=metrics.tpot_s.p50 if metrics.tpot_s else None,
        e2e_s=e2e.p50 if e2e else None,
        slo_met=cell.slo_met,
    )


def _order(row: Ranked) -> tuple[bool, bool, bool, int, float]:
    rate = row.output_tokens_per_s_per_gpu or row.texts_per_s_per_gpu or 0.0
    steps = round(math.log(rate) / _ALIKE) if rate > 0 else 0
    e2e_s = math.inf if row.e2e_s is None else row.e2e_s
    return row.why is not None, row.slo_met is False, rate <= 0, -steps, e2e_s
