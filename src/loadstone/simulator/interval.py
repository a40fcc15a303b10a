"""How far off may the numbers be? A part of the same cell, with coefficients drawn from the profile's uncertainty.

For each draw the ratio of a metric's median to that with the best coefficients; to the logarithm of the ratio is
added the spread that remained when the profile was fitted (`residual`: of quantities, ln(measured/predicted)). The
10 % and 90 % quantiles of that are the 80 % interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadstone.records import Plan
from loadstone.simulator.cell import run_cell
from loadstone.simulator.engine import StepTimes
from loadstone.simulator.fleet import Fleet
from loadstone.simulator.run import CellRun

LOW, HIGH = 0.1, 0.9
_LEAST_REQUESTS = 300
_ROUNDS = 4
"""Requests of the part, for each place of a closed loop."""
_MOST_REQUESTS = 4096
_RESIDUAL = {"ttft_s": "ttft", "ttft_intended_s": "ttft", "tpot_s": "tpot", "itl_s": "tpot"}
_POINTS = np.array([NormalDist().inv_cdf((i + 0.5) / 25) for i in range(25)])

Interval = tuple[float, float]


def intervals(
    plan: Plan, cell: int, fleet: Fleet, draws: Sequence[StepTimes], residual: Mapping[str, float]
) -> dict[str, Interval]:
    """By metric, what its p50 is multiplied by for the low and the high end of the 80 % interval."""
    part = beginning(plan, cell)
    best = medians(run_cell(part, 0, fleet, grace_s=0.0))
    drawn = [medians(run_cell(part, 0, replace(fleet, model=model), grace_s=0.0)) for model in draws]
    ratios = {
        name: np.log([each[name] / value for each in drawn if each.get(name, 0) > 0 and value > 0] or [1.0])
        for name, value in best.items()
    }
    found = {}
    for name, by_draw in ratios.items():
        # ITL is a step and so is TPOT; nothing more is known of the one than of the other.
        logs = by_draw[:, None] + _remains(name, best, ratios, residual) * _POINTS[None, :]
        low, high = np.exp(np.quantile(logs, (LOW, HIGH)))
        found[name] = (min(1.0, float(low)), max(1.0, float(high)))
    return found


def _remains(
    name: str, best: Mapping[str, float], ratios: Mapping[str, NDArray[np.float64]], residual: Mapping[str, float]
) -> float:
    """What of ln(measured/predicted) of a metric the coefficients do not explain.

    E2E is TTFT and then tokens: the two spreads, each by its share of the time, as if independent. Throughput follows
    E2E as far as it does in the draws: one for one in a closed loop, not at all in an open one below saturation.
    """
    if name == "output_tokens_per_s":
        e2e = float(ratios["e2e_s"].std())
        follows = min(1.0, float(ratios[name].std()) / e2e) if e2e > 0 else 1.0
        return follows * _remains("e2e_s", best, ratios, residual)
    if not name.startswith("e2e"):
        return residual.get(_RESIDUAL[name], 0.0)
    first = best[name.replace("e2e", "ttft")] / best[name] if best[name] > 0 else 0.0
    return math.hypot(first * residual.get("ttft", 0.0), (1 - first) * residual.get("tpot", 0.0))


def medians(run: CellRun) -> dict[str, float]:
    """p50 of each latency over measured requests that ended, and output tokens per second of the cell."""
    asked = run.asked
    count = asked.count
    first = np.array(run.journal.first_s[:count]) + run.stream_s
    end = np.array(run.end_s[:count]) + run.stream_s
    sent, intended = np.array(asked.sent_s_of[:count]), np.array(asked.intended_s_of[:count])
    output = np.array(asked.output_tokens)
    done = ~np.isnan(end) & (np.arange(count) >= asked.warm)
    several = done & (output > 1)
    found: dict[str, float] = {}
    if not done.any():
        return found

    def put(name: str, values: NDArray[np.float64]) -> None:
        if len(values):
            found[name] = float(np.median(values))

    put("ttft_s", (first - sent)[done])
    put("ttft_intended_s", (first - intended)[done])
    put("e2e_s", (end - sent)[done])
    put("e2e_intended_s", (end - intended)[done])
    put("tpot_s", (end - first)[several] / (output[several] - 1))
    put("itl_s", (end - first)[several] / (output[several] - 1))
    length_s = float(end[done].max() - sent[done].min())
    if length_s > 0:
        found["output_tokens_per_s"] = float(output[done].sum()) / length_s
    return found


def answer_s(run: CellRun) -> float:
    """About how long a request takes under the load, but for a queue before it, which grows as long as an overload
    does: the least TTFT, and the median time from the first token to the last. Seconds.
    """
    count = run.asked.count
    first, end, sent = (np.array(of[:count]) for of in (run.journal.first_s, run.end_s, run.asked.sent_s_of))
    done = ~np.isnan(end)
    return float((first - sent)[done].min() + np.median((end - first)[done])) if done.any() else 0.0


def beginning(plan: Plan, cell: int) -> Plan:
    """A plan of one cell: the warm-up of that one and its first requests, as many as settle it."""
    load = plan.cells[cell]
    rows = plan.rows(cell)
    wanted = _LEAST_REQUESTS
    if load.kind != "rate":
        wanted = max(wanted, int(_ROUNDS * load.value))
    count = min(len(rows), plan.warmup_count(cell) + min(wanted, _MOST_REQUESTS))
    while count < len(rows) and plan.turn[rows.start + count] > 0:
        count += 1  # sessions are whole
    picked = np.arange(rows.start, rows.start + count)
    columns = {name: getattr(plan, name)[picked] for name in Plan.COLUMNS}
    columns["cell"] = np.zeros(count, np.int32)
    if load.places:
        # By count, also of a cell by time: what goes round after the part is not looked at.
        load = msgspec.structs.replace(load, duration_s=None)
    return replace(plan, cells=(load,), blocks=None if plan.blocks is None else plan.blocks.take(picked), **columns)
