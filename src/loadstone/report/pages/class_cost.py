"""Tells what a class of traffic costs the others."""

from collections.abc import Sequence

from loadstone.core.summary import ClassCost
from loadstone.core.units import show_seconds
from loadstone.report.table import Table


def _show_change(seconds: float) -> str:
    return f"{'−' if seconds < 0 else '+'}{show_seconds(abs(seconds))}"


def tabulate_cost(cost: ClassCost, loads: Sequence[str]) -> Table:
    """Make a table of what a class costs the others: percentiles with it and without it."""
    rows = []
    for change in cost.changes:
        if change.statistic == "mean":
            continue
        several = [loads[change.cell]] if len(loads) > 1 else []
        ends = "-"
        if change.low_s is not None and change.high_s is not None:
            ends = f"{_show_change(change.low_s)} to {_show_change(change.high_s)}"
        rows.append(
            [
                " · ".join([*several, change.traffic_class]),
                f"{change.metric.upper()} {change.statistic}",
                show_seconds(change.present_s),
                show_seconds(change.absent_s),
                _show_change(change.difference_s),
                ends,
            ]
        )
    return Table(
        title=f"What {cost.of} costs the others",
        heads=["class", "", f"with {cost.of}", "without", "difference", "95%"],
        align="llrrrr",
        rows=rows,
        caption=f"what {cost.of} costs the others, request by request; without it: {cost.run_dir}",
    )
