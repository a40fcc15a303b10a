"""A report's cells as CSV, a row each, plain numbers in SI units: for spreadsheets and scripts."""

from loadstone.core.text import to_csv
from loadstone.report.pages.columns import COLUMNS, value_at
from loadstone.report.pages.document import Report

_FACTS = (
    "run",
    "cell",
    "setup.source",
    "setup.engine",
    "setup.version",
    "setup.model",
    "setup.gpu",
    "setup.gpus",
    "setup.parallel",
    "setup.precision",
    "setup.context",
    "setup.settings",
    "demand.offline",
    "demand.input_tokens",
    "demand.output_tokens",
    "demand.prefix",
    "demand.work",
    "kind",
    "load",
    "ok",
    "sent",
    "trusted",
)
"""What was deployed, what was asked, and whether it can be trusted."""
_ORDER = (
    "ttft",
    "tpot",
    "itl",
    "e2e",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "requests_per_s",
    "slo_words",
    "attainment",
    "goodput_per_s",
    "output",
    "roofline_share",
    "roofline.mbu",
    "roofline.mfu",
    "joules.output",
    "joules.total",
    "power_w",
    "sessions.per_hour",
    "sessions.task_s.p50",
    "hit_share",
    "could_share",
    "answer_s",
    "thinking_share",
    "accepted_length",
)
"""The columns in the order that scripts know."""
_PRICES = ("dollars.output", "dollars.total", "dollars.input")


def sheet(report: Report) -> str:
    """Write CSV with a head. `value` is the median, or the mean where `which` says so; low, high:
    its interval."""
    paths = {path.rpartition(".")[2]: path for path in _FACTS}
    declared = {column.path: column.sheet for column in COLUMNS if column.sheet}
    for place in _ORDER:
        paths |= declared[place]
    if report.prices:
        paths["dollars_per_hour"] = "dollars.per_hour"
        for place in _PRICES:
            paths |= declared[place]
    return to_csv(
        paths, ([value_at(point, path) for path in paths.values()] for point in report.points)
    )
