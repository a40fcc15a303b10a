"""Intervals of a simulated cell: a part of it, with coefficients drawn from the profile's
uncertainty.

For each draw the ratio of a figure (a median, a throughput) to that with the best coefficients; to
the logarithm of the ratio is added the spread that remained when the profile was fitted
(`residual`: of quantities, ln(measured/predicted)). The 10 % and 90 % quantiles of that are the 80
% interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

import msgspec
import numpy as np

from loadstone.core.plan import Load, Plan
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import Fleet
from loadstone.predict.simulator.latencies import Floats, answered_rows, latencies_s, simulated_pace
from loadstone.predict.simulator.run import CellRun
from loadstone.predict.step_time.profile import Quantity

LOW, HIGH = 0.1, 0.9
_LEAST_REQUESTS = 300
_ROUNDS = 4
"""Requests of the part, for each slot of a closed loop."""
_MOST_REQUESTS = 4096
_MEDIANS = ("ttft_s", "ttft_intended_s", "tpot_s", "itl_s", "e2e_s", "e2e_intended_s")
_RESIDUAL: dict[str, Quantity] = {
    "ttft_s": "ttft",
    "ttft_intended_s": "ttft",
    "tpot_s": "tpot",
    "itl_s": "tpot",
}
_POINTS = np.array([NormalDist().inv_cdf((at + 0.5) / 25) for at in range(25)])
_RATE = "output_tokens_per_s"

Interval = tuple[float, float]


class CellIntervals(NamedTuple):
    """Tells how far a cell's figures may be off.

    intervals  by metric, what its p50 is multiplied by for the low and the high end of the 80 %
               interval
    factors    by bound of the SLO, equally likely factors of its figure, draw by draw
               (bound_errors.py)
    """

    intervals: dict[str, Interval]
    factors: dict[str, list[float]]


def intervals(
    plan: Plan,
    cell: int,
    fleet: Fleet,
    draws: Sequence[Fleet],
    residual: Mapping[Quantity, float],
    wider: float = 1.0,
) -> dict[str, Interval]:
    """Simulate the beginning of a cell at each draw; returns the intervals as CellIntervals has
    them. `wider`: how many times as wide they are, in ln."""
    part = beginning(plan, cell)
    runs = [run_cell(part, 0, each, grace_s=0.0) for each in (fleet, *draws)]
    best, *drawn = (_figures(run) for run in runs)
    ratios = {
        name: np.log(
            [each[name] / value for each in drawn if each.get(name, 0) > 0 and value > 0] or [1.0]
        )
        for name, value in best.items()
    }
    leaving, *drawn_leaving = (_share_leaving(run, part.cells[0]) for run in runs)
    keeps_up = leaving == 1
    if keeps_up:
        # No more leaves than comes; where a draw's queue is too long to tell, what came out in all
        # that time tells.
        ratios[_RATE] = np.log(
            [
                min(1.0, each[_RATE] / best[_RATE]) if share is None else share
                for each, share in zip(drawn, drawn_leaving, strict=True)
            ]
            or [1.0]
        )
    found: dict[str, Interval] = {}
    for name, by_draw in ratios.items():
        # ITL is a step and so is TPOT; nothing more is known of the one than of the other.
        remains = _residual_spread(name, best, ratios, residual)
        if keeps_up and name == _RATE and not by_draw.any():
            remains = 0.0
        logs = wider * (by_draw[:, None] + remains * _POINTS[None, :])
        low, high = np.exp(np.quantile(logs, (LOW, HIGH)))
        found[name] = (
            min(1.0, float(low)),
            (1.0 if keeps_up and name == _RATE else max(1.0, float(high))),
        )
    return found


def _residual_spread(
    name: str,
    best: Mapping[str, float],
    ratios: Mapping[str, Floats],
    residual: Mapping[Quantity, float],
) -> float:
    """Return the part of the spread of ln(measured/predicted) of a metric that the coefficients do
    not explain.

    E2E is TTFT and then tokens: the two spreads, each by its share of the time, as if independent.
    Throughput follows E2E as far as it does in the draws: one for one in a closed loop, not at all
    in an open one below saturation.
    """
    if name == _RATE:
        e2e = float(ratios["e2e_s"].std())
        follows = min(1.0, float(ratios[name].std()) / e2e) if e2e > 0 else 1.0
        return follows * _residual_spread("e2e_s", best, ratios, residual)
    if not name.startswith("e2e"):
        return residual.get(_RESIDUAL[name], 0.0)
    first = best[name.replace("e2e", "ttft")] / best[name] if best[name] > 0 else 0.0
    return math.hypot(first * residual.get("ttft", 0.0), (1 - first) * residual.get("tpot", 0.0))


def _figures(run: CellRun) -> dict[str, float]:
    """Return of measured requests that ended the p50 of each latency, and output tokens per
    second."""
    rows = answered_rows(run)
    latencies = latencies_s(rows)
    figures = {
        name: float(np.median(values)) for name in _MEDIANS if len(values := latencies[name])
    }
    if len(rows) and (length_s := float(rows["end"].max() - rows["sent"].min())) > 0:
        figures[_RATE] = float(rows["tokens"].sum()) / length_s
    return figures


def _share_leaving(run: CellRun, load: Load) -> float | None:
    """Return the share of requests at a steady rate that leaves in the same time; None where it is
    unknown."""
    if not load.steady:
        return None
    pace = simulated_pace(run, load)
    if pace.growth is None:
        return None
    return 1.0 if pace.keeps_up else 1 / (1 + max(0.0, pace.growth[0]))


def answer_s(run: CellRun) -> float:
    """Estimate how long a request takes under the load, but for a queue before it, which grows as
    long as an overload does: the least TTFT, and the median time from the first token to the last.
    Seconds.
    """
    count = run.requests.count
    first, end, sent = (
        np.array(of[:count]) for of in (run.journal.first_s, run.end_s, run.requests.sent_s_of)
    )
    done = ~np.isnan(end)
    return float((first - sent)[done].min() + np.median((end - first)[done])) if done.any() else 0.0


def beginning(plan: Plan, cell: int, least: int = _LEAST_REQUESTS) -> Plan:
    """Cut a plan of one cell: the warm-up of that one and its first requests, as many as settle it;
    `least`, where there are so many."""
    load = plan.cells[cell]
    rows = plan.rows(cell)
    wanted = least
    if not load.is_open:
        wanted = max(wanted, int(_ROUNDS * load.value))
    count = min(len(rows), plan.warmup_count(cell) + min(wanted, _MOST_REQUESTS))
    while count < len(rows) and plan.turn[rows.start + count] > 0:
        count += 1  # sessions are whole
    picked = np.arange(rows.start, rows.start + count)
    if load.slots:
        # By count, also of a cell by time: what goes round after the part is not looked at.
        load = msgspec.structs.replace(load, duration_s=None)
    return plan.take(picked, cells=(load,), cell=np.zeros(count, np.int32))
