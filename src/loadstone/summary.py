"""From a run folder to its numbers: the document that `loadstone bench --json` prints and summary.json keeps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from loadstone import store, verdict
from loadstone.errors import InputError
from loadstone.metrics import SLO_KEYS, CellMetrics, cell_metrics
from loadstone.records import Clock, Load, Plan, RunInfo
from loadstone.statistics import PERCENTILES
from loadstone.units import parse_seconds

SCHEMA = 1
_LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "ttft_intended_s", "e2e_intended_s")
_TOTALS = (
    "input_tokens", "output_tokens", "output_events", "cached_input_tokens", "output_tokens_per_s",
    "total_tokens_per_s", "requests_per_s", "steady", "achieved_rate_per_s",
)  # fmt: skip


def parse_slo(text: str) -> dict[str, float]:
    """Bounds in seconds from `ttft<500ms,tpot_p99<30ms`: per request (`ttft`), or on a percentile (`tpot_p99`)."""
    bounds = {}
    for part in text.split(","):
        name, sign, limit = part.partition("<")
        base, joint, percentile = name.strip().partition("_")
        if not sign or base not in SLO_KEYS or (joint and percentile not in PERCENTILES):
            raise InputError(
                f"--slo: {part.strip()!r} is no bound; write e.g. ttft<500ms,tpot_p99<30ms "
                f"({', '.join(SLO_KEYS)}; {', '.join(PERCENTILES)})"
            )
        bounds[name.strip()] = parse_seconds(limit.removeprefix("="), "--slo")
    return bounds


def summarise(folder: Path) -> dict[str, Any]:
    """The run's summary, from its records alone. Raises InputError where they are missing."""
    info = store.read_info(folder)
    plan = store.read_plan(folder)
    cells = [_cell(folder, info, plan, cell) for cell in range(len(plan.cells))]
    return {
        "schema": SCHEMA,
        "run_id": info.run_id,
        "run_dir": str(folder),
        "source": info.source,
        "status": info.status,
        "target": msgspec.to_builtins(info.target) if info.target else None,
        "plan_id": info.plan_id,
        "seed": info.seed,
        "cells": [cell for cell in cells if cell is not None],
    }


def _cell(folder: Path, info: RunInfo, plan: Plan, cell: int) -> dict[str, Any] | None:
    """One cell's part of the document; None where nothing of it was sent."""
    scalars = store.read_columns(folder, verdict.SCALARS, cell)
    if scalars.num_rows == 0:
        return None
    load = info.cells[cell].load  # the plan of a cell that ran by time has become one by count
    per_request = {name: limit for name, limit in info.slo.items() if name in SLO_KEYS}
    metrics = cell_metrics(lambda: store.read_records(folder, cell), load, per_request)
    clock = info.clock or "user"
    over = info.cells[cell].end_s is not None
    reason = None if over else f"the cell did not run to its end ({info.error or info.status})"
    overhead = info.target.overhead_tokens if info.target is not None else 0
    judged = verdict.judge(verdict.cell_findings(metrics, scalars, plan, cell, clock, reason, overhead))
    built: dict[str, Any] = msgspec.to_builtins(metrics)
    document = {
        "load": msgspec.to_builtins(load),
        "requests": built["requests"],
        "duration_s": built["duration_s"],
        "metrics": {name: built[name] for name in (*_LATENCIES, *_TOTALS)},
        "client": {**_client(metrics, clock), "cpu_s": info.cells[cell].client_cpu_s},
        "verdict": verdict.to_json(judged),
    }
    if per_request:
        document["metrics"]["goodput_per_s"] = built["goodput_per_s"]
        document["metrics"]["attainment"] = built["attainment"]
    if bounds := _bounds(info.slo, load, built):
        document["slo"] = bounds
    return document


def _client(metrics: CellMetrics, clock: Clock) -> dict[str, Any]:
    send, receive = metrics.send_lag_s, metrics.receive_lag_s
    return {
        "send_lag_p99_s": send.p99 if send is not None else None,
        "receive_lag_p99_s": receive.p99 if receive is not None else None,
        "clock": clock,
    }


def _bounds(slo: Mapping[str, float], load: Load, built: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Bounds on percentiles, each with what was measured; a percentile of nothing misses its bound.

    As for single requests (metrics.py), TTFT and E2E of an open loop count from the intended time.
    """
    bounds = []
    for name, limit_s in slo.items():
        base, _, percentile = name.partition("_")
        if percentile:
            values = built[f"{base}_s" if load.kind == "concurrency" or base == "tpot" else f"{base}_intended_s"]
            measured = values[percentile] if values is not None else None
            met = measured is not None and measured <= limit_s
            bounds.append({"bound": name, "limit_s": limit_s, "measured_s": measured, "met": met})
    return bounds


def trusted(document: Mapping[str, Any]) -> bool:
    """Every cell is trusted and every bound met: what `--strict` asks for."""
    return all(
        cell["verdict"]["trusted"] and all(bound["met"] for bound in cell.get("slo", ()))
        for cell in document["cells"]
    ) and bool(document["cells"])
