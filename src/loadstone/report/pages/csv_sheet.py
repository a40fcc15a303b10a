"""A report's cells as CSV, a row each, plain numbers in SI units: for spreadsheets and scripts."""

from __future__ import annotations

from loadstone.core.text import to_csv
from loadstone.report.data.points import LATENCIES, CellPoint
from loadstone.report.pages.document import Report

_FACTS = (
    "run",
    "cell",
    "source",
    "engine",
    "version",
    "model",
    "gpu",
    "gpus",
    "parallel",
    "precision",
    "context",
    "settings",
    "offline",
    "input_tokens",
    "output_tokens",
    "prefix",
    "work",
    "kind",
    "load",
    "ok",
    "sent",
    "trusted",
)
_TIMES = ("value", "low", "high", "mean", "p90", "p99", "p99_low", "p99_high")
_STATS = ("which", "value", "low", "high", "n", "mean", "p90", "p99", "p99_low", "p99_high")
_TOTALS = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s", "duration_s", "window")
_SLO = ("slo", "slo_met", "p_met", "attainment", "goodput_per_s")
_ENDS = {"": "value", "_low": "low", "_high": "high"}
_COLUMNS = {
    **{name: name for name in _FACTS},
    **{
        f"{name}_{each}{'_s' if each in _TIMES else ''}": f"{name}.{each}"
        for name in LATENCIES
        for each in _STATS
    },
    **{name: name for name in (*_TOTALS, *_SLO)},
    **{
        f"{name}_tokens_per_s_{end}": f"{name}.{end}"
        for name in ("output", "total")
        for end in ("low", "high")
    },
    **{
        name: f"roofline.{name.removeprefix('light_')}"
        for name in ("light_tpot_s", "light_ttft_s", "mbu", "mfu")
    },
    **{
        f"j_per_{of}_token{end}": f"j_{of}.{each}"
        for of in ("output", "total")
        for end, each in _ENDS.items()
    },
    "gpu_power_w": "power_w",
    "sessions_per_hour": "sessions.per_hour",
    "task_p50_s": "sessions.task_s.p50",
    **{
        name: name
        for name in ("hit_share", "could_share", "answer_s", "thinking_share", "accepted_length")
    },
}
"""Each column, and where a point has it."""
_PRICES = {
    "dollars_per_hour": "dollars_per_hour",
    **{
        f"dollars_per_million_{kind}_tokens{end}": f"dollars_{kind}.{each}"
        for kind in ("output", "total")
        for end, each in _ENDS.items()
    },
    "list_price_input": "dollars_input.value",
}


def sheet(report: Report) -> str:
    """Write CSV with a head. `value` is the median, or the mean where `which` says so; low, high:
    its interval."""
    columns = _COLUMNS | (_PRICES if report.prices else {})
    return to_csv(
        columns, ([_value(point, path) for path in columns.values()] for point in report.points)
    )


def _value(point: CellPoint, path: str) -> object:
    """Follow a path of names; None where one is missing."""
    value: object = point
    for name in path.split("."):
        value = getattr(value, name, None)
    return value
