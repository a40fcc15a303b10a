"""The columns of a cell, each declared once for all who show it: a run's own table on a terminal,
the tables of pages and Markdown, and CSV."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import msgspec

from loadstone.core.metrics import Latency, Requests
from loadstone.core.parts import SizePart
from loadstone.core.summary import CellSummary, TaskAccuracy
from loadstone.core.units import show_number, show_seconds, show_share
from loadstone.report.data.points import CellPoint
from loadstone.report.data.statistic import Estimate, value_of
from loadstone.report.table import Column

UNBOUNDED = "~"
UNBOUNDED_NOTE = (
    "~ too few requests for a reliable p99 (368 needed, more if slow ones come together)"
)
INTERVAL = "interval"
"""The head of a column of intervals; a table of one level alone has that instead."""


class CellRow(msgspec.Struct, frozen=True):
    """Holds the subject of a row of a run's own table: a cell, or a part of it.

    load       names it
    numbers    its Metrics, or the Part
    ttft, e2e  by the clock of all cells of the table
    """

    load: str
    cell: CellSummary
    requests: Requests
    numbers: Any
    ttft: Latency | None
    e2e: Latency | None


class CellColumn(msgspec.Struct, frozen=True):
    """A number of a cell.

    head   on pages and in Markdown; "" where they do not have it
    path   where a point has it
    show   writes what is there
    side   as in Table
    sheet  of what CSV has of it the names, and where a point has each
    run    its column in a run's own table, and the name that it has among these
    """

    head: str
    path: str
    show: Callable[[Any], str]
    side: str = "r"
    sheet: Mapping[str, str] = {}
    run: tuple[str, Column[CellRow]] | None = None

    def text(self, point: CellPoint) -> str:
        return self.show(value_at(point, self.path))


def value_at(point: CellPoint, path: str) -> Any:
    """Follow a path of names, `sessions.task_s.p50`; None where one is missing."""
    value: Any = point
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return value


# --- how numbers are written ----------------------------------------------------------------------


def show_p50(values: Latency | None) -> str:
    return show_seconds(values.p50 if values is not None else None)


def show_p99(values: Latency | None, cell: CellSummary) -> str:
    """Write the p99, marked where the sample cannot bound it from above."""
    if values is None:
        return "-"
    unbounded = values.bounds("p99")[1] is None and not cell.is_as_stated
    return (UNBOUNDED if unbounded else "") + show_seconds(values.p99)


def show_percent(share: float | None) -> str:
    """Write `97.3`: a share of right answers in per cent."""
    return "-" if share is None else f"{100 * share:.1f}"


def show_percents(graded: TaskAccuracy | None) -> str:
    """Write the interval of a share of right answers."""
    return "-" if graded is None else f"{100 * graded.low:.1f}–{100 * graded.high:.1f}"


UNKNOWN_MARGIN = " ±?"


def show_visual_tokens(part: SizePart) -> str:
    """Write the tokens of one picture, and those planned where they are others."""
    seen, planned = part.visual_tokens, part.visual_tokens_planned
    shown = "-" if seen is None else f"{seen:,.0f}"
    return shown if planned is None or seen == planned else f"{shown} ({planned:,.0f})"


def show_megabytes(count: float | None) -> str:
    return "-" if count is None else f"{count / 1e6:.2f}"


def show_margin(cell: CellSummary) -> str:
    """Write the 95 % margin of a steady throughput, upwards: the lower end, which is not below 0,
    may not tell."""
    steady, name = cell.steady, cell.rate_name
    high = steady.ci95.get(name, (None, None))[1] if steady is not None else None
    rate = getattr(steady, name, None)
    if high is None or not rate:
        return UNKNOWN_MARGIN if cell.verdict.has("interval_unknown") else ""
    percent = 100 * (high / rate - 1)
    return f" ±{percent:.0f}%" if percent >= 1 else " ±<1%"


def show_failed(requests: Requests) -> str:
    """Write how many failed; nothing where none did."""
    if requests.sent is None:
        return "?"
    failed = requests.sent - requests.completed
    return str(failed) if failed else ""


def _show_throughput(cell: CellSummary, name: str = "output_tokens_per_s") -> str:
    rate = getattr(cell.steady or cell.metrics, name)
    return "-" if rate is None else show_number(rate, 4) + show_margin(cell)


def _rate_of(name: str, key: str, head: str) -> tuple[str, Column[CellRow]]:
    return key, Column(head, lambda row: _show_throughput(row.cell, name))


def _show_rate(row: CellRow, name: str) -> str:
    return show_number(getattr(row.cell.steady or row.cell.metrics, name), 4)


def _p95(row: CellRow) -> str:
    return show_seconds(row.e2e.p95 if row.e2e is not None else None)


def _roofline(row: CellRow) -> str:
    return show_share(row.cell.roofline.tpot_ratio if row.cell.roofline else None)


def _itl_p99(row: CellRow) -> str:
    itl = row.cell.metrics.itl_s
    return show_seconds(itl.p99 if itl is not None else None)


def _count(value: int | None) -> str:
    return show_number(value, 1)


def _rate(value: float | None) -> str:
    return show_number(value, 4)


def _share(share: float | None) -> str:
    return show_share(share, 1)


def _value(stat: Estimate | None) -> str:
    return show_number(value_of(stat))


def show_middle(stat: Estimate | None) -> str:
    if stat is None:
        return "-"
    return show_seconds(stat.value) + (" ⌀" if stat.which == "mean" else "")


def show_tail(stat: Estimate | None) -> str:
    if stat is None or stat.p99 is None:
        return "-"
    return (UNBOUNDED if stat.unbounded else "") + show_seconds(stat.p99)


def _times(stat: Estimate | None) -> str:
    return _bounds(stat, show_seconds)


def _bounds(stat: Estimate | None, show: Callable[[float | None], str] = show_number) -> str:
    if stat is None or stat.low is None or stat.high is None:
        return "-"
    low, high = show(stat.low), show(stat.high)
    number, _, unit = low.rpartition(" ")
    return f"{number if unit and high.endswith(f' {unit}') else low}–{high}"


# --- the columns ----------------------------------------------------------------------------------


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


def _estimate(name: str, path: str) -> dict[str, str]:
    """Return what CSV has of an estimate without a distribution."""
    return {name: f"{path}.value", f"{name}_low": f"{path}.low", f"{name}_high": f"{path}.high"}


def _latency(name: str) -> dict[str, str]:
    """Return what CSV has of a latency."""
    seconds = ("value", "low", "high", "mean", "p90", "p99", "p99_low", "p99_high")
    statistics = ("which", "value", "low", "high", "n", *seconds[3:])
    return {
        f"{name}_{statistic}{'_s' * (statistic in seconds)}": f"{name}.{statistic}"
        for statistic in statistics
    }


def _median_of(name: str, path: str = "") -> tuple[str, Column[CellRow]]:
    latency = attrgetter(path or name)
    return name, Column(f"{name.upper()} p50", lambda row: show_p50(latency(row)))


def _p99_of(name: str, path: str = "") -> tuple[str, Column[CellRow]]:
    latency = attrgetter(path or name)
    return f"{name}_p99", Column("p99", lambda row: show_p99(latency(row), row.cell), "u")


COLUMNS: tuple[CellColumn, ...] = (
    CellColumn("in", "demand.input_tokens", _count),
    CellColumn("out", "demand.output_tokens", _count),
    CellColumn(
        "prompts",
        "ok",
        _count,
        run=("ok", Column("ok", lambda row: str(row.requests.completed))),
    ),
    CellColumn(
        "",
        "failed",
        str,
        run=("failed", Column("failed", lambda row: show_failed(row.requests))),
    ),
    CellColumn(
        "req/s",
        "requests_per_s",
        show_number,
        sheet=_same("requests_per_s", "duration_s", "window"),
        run=("requests", Column("req/s", lambda row: _show_rate(row, "requests_per_s"))),
    ),
    CellColumn(
        "inputs/s",
        "inputs_per_s",
        _rate,
        sheet=_same("inputs_per_s"),
        run=_rate_of("inputs_per_s", "inputs", "inputs/s"),
    ),
    CellColumn(
        "documents/s",
        "documents_per_s",
        _rate,
        sheet=_same("documents_per_s"),
        run=_rate_of("documents_per_s", "documents", "docs/s"),
    ),
    CellColumn(INTERVAL, "pooled", _bounds, "u"),
    CellColumn(
        "input tok/s",
        "input_tokens_per_s",
        _rate,
        sheet=_same("input_tokens_per_s"),
        run=("input_rate", Column("in tok/s", lambda row: _show_rate(row, "input_tokens_per_s"))),
    ),
    CellColumn(
        "output tok/s",
        "output_tokens_per_s",
        _rate,
        sheet=_same("output_tokens_per_s"),
        run=("output", Column("out tok/s", lambda row: _show_throughput(row.cell))),
    ),
    CellColumn(
        INTERVAL,
        "output",
        _bounds,
        "u",
        {
            f"{name}_tokens_per_s_{end}": f"{name}.{end}"
            for name in ("output", "total")
            for end in ("low", "high")
        },
    ),
    CellColumn("total tok/s", "total_tokens_per_s", _rate, sheet=_same("total_tokens_per_s")),
    CellColumn(
        "$/M output",
        "dollars.output",
        _value,
        sheet=_estimate("dollars_per_million_output_tokens", "dollars.output"),
    ),
    CellColumn(INTERVAL, "dollars.output", _bounds, "u"),
    CellColumn(
        "$/M total",
        "dollars.total",
        _value,
        "u",
        _estimate("dollars_per_million_total_tokens", "dollars.total"),
    ),
    CellColumn(
        "$/M list in", "dollars.input", _value, "u", {"list_price_input": "dollars.input.value"}
    ),
    CellColumn(
        "J/token", "joules.output", _value, sheet=_estimate("j_per_output_token", "joules.output")
    ),
    CellColumn(
        "J/token total",
        "joules.total",
        _value,
        "u",
        _estimate("j_per_total_token", "joules.total"),
    ),
    CellColumn("GPUs' W", "power_w", show_number, "u", {"gpu_power_w": "power_w"}),
    CellColumn("right %", "graded.accuracy", show_percent),
    CellColumn("95% right", "graded", show_percents, "u"),
    CellColumn("TTFT", "ttft", show_middle, sheet=_latency("ttft"), run=_median_of("ttft")),
    CellColumn(INTERVAL, "ttft", _times, "u"),
    CellColumn("p99", "ttft", show_tail, "u", run=_p99_of("ttft")),
    CellColumn(
        "TPOT",
        "tpot",
        show_middle,
        sheet=_latency("tpot"),
        run=_median_of("tpot", "numbers.tpot_s"),
    ),
    CellColumn(INTERVAL, "tpot", _times, "u"),
    CellColumn("p99", "tpot", show_tail, "u", run=_p99_of("tpot", "numbers.tpot_s")),
    CellColumn(
        "roofline",
        "roofline_share",
        show_share,
        sheet={"light_tpot_s": "roofline.tpot_s", "light_ttft_s": "roofline.ttft_s"},
        run=("roofline", Column("roofline", _roofline)),
    ),
    CellColumn("MBU", "roofline.mbu", show_share, sheet={"mbu": "roofline.mbu"}),
    CellColumn("MFU", "roofline.mfu", show_share, sheet={"mfu": "roofline.mfu"}),
    CellColumn("ITL", "itl", show_middle, sheet=_latency("itl")),
    CellColumn(
        "p99",
        "itl.p99",
        show_seconds,
        "u",
        run=("itl_p99", Column("ITL p99", _itl_p99)),
    ),
    CellColumn("E2E", "e2e", show_middle, sheet=_latency("e2e"), run=_median_of("e2e")),
    CellColumn(
        "p95",
        "e2e_p95_s",
        show_seconds,
        "u",
        {"e2e_p95_s": "e2e_p95_s"},
        ("e2e_p95", Column("p95", _p95, "u")),
    ),
    CellColumn("p99", "e2e", show_tail, "u", run=_p99_of("e2e")),
    CellColumn(
        "sessions/h",
        "sessions.per_hour",
        show_number,
        sheet={"sessions_per_hour": "sessions.per_hour"},
    ),
    CellColumn(
        "task", "sessions.task_s.p50", show_seconds, "u", {"task_p50_s": "sessions.task_s.p50"}
    ),
    CellColumn("cached", "hit_share", show_share, sheet=_same("hit_share")),
    CellColumn("could be", "could_share", show_share, "u", _same("could_share")),
    CellColumn("answer", "answer_s", show_seconds, sheet=_same("answer_s")),
    CellColumn("thinking", "thinking_share", show_share, "u", _same("thinking_share")),
    CellColumn("accepted", "accepted_length", show_number, sheet=_same("accepted_length")),
    CellColumn("SLO", "slo_words", str, sheet={"slo": "demand.slo"} | _same("slo_met", "p_met")),
    CellColumn("attained", "attainment", _share, "u", _same("attainment")),
    CellColumn("goodput/s", "goodput_per_s", show_number, "u", _same("goodput_per_s")),
)
"""In the order of pages."""
PAGE = tuple(Column(column.head, column.text, column.side) for column in COLUMNS if column.head)
RUN = dict(column.run for column in COLUMNS if column.run is not None)
"""The columns of a run's own table."""
