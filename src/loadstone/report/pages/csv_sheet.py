"""A report's cells as CSV, a row each, plain numbers in SI units: for spreadsheets and scripts."""

from __future__ import annotations

import csv
import io
from typing import Any

from loadstone.core.text import no_formula
from loadstone.report.data.points import LATENCIES, Point
from loadstone.report.pages.document import Report

_FACTS = (
    "run", "cell", "source", "engine", "version", "model", "gpu", "gpus", "parallel", "precision", "context",
    "settings", "offline", "input_tokens", "output_tokens", "prefix", "work", "kind", "load", "ok", "sent", "trusted",
)  # fmt: skip
_STATS = ("which", "value", "low", "high", "n", "mean", "p90", "p99", "p99_low", "p99_high")
_TOTALS = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s", "duration_s", "window")
_SLO = ("slo", "slo_met", "p_met", "attainment", "goodput_per_s")
_RATES = ("output", "total")
_ENDS = ("low", "high")
_PRICES = (
    "dollars_per_hour",
    *(f"dollars_per_million_{kind}_tokens{end}" for kind in ("output", "total") for end in ("", "_low", "_high")),
)
_LIGHT = ("light_tpot_s", "light_ttft_s", "mbu", "mfu")
_ENERGY = ("j_per_output_token", *(f"j_per_output_token_{end}" for end in _ENDS), "gpu_power_w")
_NO_SECONDS = ("which", "n")


def sheet(report: Report) -> str:
    """CSV with a head. `value` is the median, or the mean where `which` says so; low, high: its interval."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    latencies = [f"{name}_{each}{'' if each in _NO_SECONDS else '_s'}" for name in LATENCIES for each in _STATS]
    rates = [f"{name}_tokens_per_s_{end}" for name in _RATES for end in _ENDS]
    prices = _PRICES if report.prices else ()
    writer.writerow([*_FACTS, *latencies, *_TOTALS, *_SLO, *rates, *_LIGHT, *_ENERGY, *prices])
    for point in report.points:
        writer.writerow(map(no_formula, [*_row(point), *(_costs(point) if prices else ())]))
    return out.getvalue()


def _costs(point: Point) -> list[float | None]:
    stats = point.dollars_output, point.dollars_total
    return [
        point.dollars_per_hour,
        *(getattr(stat, each, None) for stat in stats for each in ("value", "low", "high")),
    ]


def _row(point: Point) -> list[Any]:
    return [
        *(getattr(point, name) for name in _FACTS),
        *(getattr(getattr(point, name), each, None) for name in LATENCIES for each in _STATS),
        *(getattr(point, name) for name in (*_TOTALS, *_SLO)),
        *(getattr(getattr(point, name), end, None) for name in _RATES for end in _ENDS),
        *(getattr(point, name) for name in _LIGHT),
        *(getattr(point.j_output, each, None) for each in ("value", *_ENDS)),
        point.power_w,
    ]
