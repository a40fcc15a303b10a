"""What a report says of prices, as JSON."""

from __future__ import annotations

from typing import Any

from loadstone.report.data.statistic import Stat
from loadstone.report.pages.document import Report


def prices_of(report: Report) -> dict[str, Any]:
    """`prices`: those given, what a million tokens of each cell cost, who is cheapest; empty where none was given."""
    if not report.prices:
        return {}
    cells = [
        {
            "run": point.run,
            "cell": point.cell,
            "load": {"kind": point.kind, "value": point.load},
            "dollars_per_hour": point.dollars_per_hour,
            "dollars_per_million_output_tokens": _values(point.dollars_output),
            "dollars_per_million_total_tokens": _values(point.dollars_total),
        }
        for point in report.points
    ]
    return {
        "prices": {
            "dollars_per_gpu_hour": report.prices,
            "cells": cells,
            "cheapest": [sentence.text for sentence in report.sentences if sentence.kind == "price"],
            "without_price": report.unpriced,
        }
    }


def _values(stat: Stat | None) -> dict[str, Any] | None:
    """`interval`: what low and high are."""
    if stat is None:
        return None
    return {"value": stat.value, "low": stat.low, "high": stat.high, "interval": stat.level}
