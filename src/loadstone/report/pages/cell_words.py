"""Words for a cell: its load, the clock of its latencies, whether it met its bounds."""

from collections.abc import Sequence

from loadstone.core.metrics import Latency, Metrics
from loadstone.core.parts import Part
from loadstone.core.plan import Load
from loadstone.core.summary import CellSummary
from loadstone.core.units import show_load, show_met
from loadstone.report.pages.columns import UNBOUNDED, show_p99

_LOAD_HEADS = {"concurrency": "conc", "rate": "req/s", "burst": "burst"}
_LOAD_NAMES = {"concurrency": "concurrency {}", "rate": "{} req/s", "burst": "burst of {}"}


def has_unbounded(cells: Sequence[CellSummary]) -> bool:
    """Tell whether a p99 of the table has no upper bound."""
    return any(
        show_p99(values, cell).startswith(UNBOUNDED)
        for cell in cells
        for values in (*pick_clock(cell.metrics, cells), cell.metrics.tpot_s)
    )


def show_slo(cell: CellSummary) -> str:
    return show_met(cell.slo_met, cell.slo_probability)


def head_loads(cells: Sequence[CellSummary]) -> tuple[str, list[str]]:
    """Return the head of a column of loads, and each cell's load, with its unit where they are of
    several kinds."""
    loads = [show_load(cell.load.value) for cell in cells]
    heads = [_LOAD_HEADS[cell.load.kind] for cell in cells]
    if len(set(heads)) > 1:
        return "load", [f"{load} {head}" for load, head in zip(loads, heads, strict=True)]
    return heads[0], loads


def name_cell(cell: CellSummary) -> str:
    """Name a cell at the head of a line, which a number alone, as of a finding, would not."""
    return name_load(cell.load)


def name_load(load: Load) -> str:
    return _LOAD_NAMES[load.kind].format(show_load(load.value))


def is_intended(cells: Sequence[CellSummary]) -> bool:
    """Open loops are judged from the intended time: waiting that a slow server causes is latency.

    Other tools do not tell it, and it is from sending then.
    """
    return not cells[0].load.is_closed and any(
        cell.metrics.e2e_intended_s is not None for cell in cells
    )


def pick_clock(
    values: Metrics | Part, cells: Sequence[CellSummary]
) -> tuple[Latency | None, Latency | None]:
    """Return TTFT and E2E by the clock of a table of these cells."""
    return (
        (values.ttft_intended_s, values.e2e_intended_s)
        if is_intended(cells)
        else (values.ttft_s, values.e2e_s)
    )


def roofline_shares(cells: Sequence[CellSummary], name: str) -> list[float]:
    """Return the cells' shares of what the hardware allows, where known."""
    shares = (getattr(cell.roofline, name) for cell in cells if cell.roofline is not None)
    return [share for share in shares if share is not None]
