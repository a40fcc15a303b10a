"""Shows what a study measured, in one table, and what is left to do."""

from __future__ import annotations

from pathlib import Path

from loadstone.core import summary as summaries
from loadstone.core.errors import InputError
from loadstone.core.summary import CellSummary
from loadstone.core.units import show_met, show_number, show_seconds
from loadstone.report.pages.cell_words import pick_clock
from loadstone.report.pages.columns import show_p50
from loadstone.report.table import Shown, Table, drop_empty_columns, show_verdict
from loadstone.studies.status import StudyStatus

_HEADS = ("out tok/s", "texts/s", "TTFT p50", "TPOT p50", "E2E p50", "SLO", "trusted")


def render_results(status: StudyStatus, words: str, seconds: float) -> list[Shown]:
    """Show a row for each load that was measured, how many of all were, and what to do next.

    words: the study's file and flags, as commands take them; seconds: what this call took
    """
    cells = [(launch, cell) for launch in status.launches for cell in launch.cells]
    kinds = {cell.load.partition(" ")[0] for _, cell in cells}
    once = all(cell.repeat == 1 for _, cell in cells)
    rows = []
    for launch, cell in cells:
        if cell.state == "done" and cell.run_dir is not None:
            load = cell.load.partition(" ")[2] if len(kinds) == 1 else cell.load
            load += "" if once else f", repeat {cell.repeat}"
            name = [launch.deployment, cell.workload, load]
            rows += [[*name, *_figures(measured)] for measured in _read_cells(Path(cell.run_dir))]
    table = Table(
        heads=["deployment", "workload", *(kinds if len(kinds) == 1 else ["load"]), *_HEADS],
        align="wnnrrrrrrl",
        rows=rows,
        style=show_verdict,
        spare=("workload",),
    )
    table = drop_empty_columns(table)
    done = sum(cell.state == "done" for _, cell in cells)
    failed = [launch for launch in status.launches if launch.state == "failed"]
    parts: list[Shown] = [table] if rows else []
    parts.append(f"{done} of {len(cells)} loads are done; this took {show_seconds(seconds)}")
    parts += [f"failed: {launch.deployment}: {launch.why}" for launch in failed[:3]]
    again = f"next: loadstone study run {words}"
    parts.append(again if done < len(cells) else f"next: loadstone study report {words}")
    return parts


def _read_cells(folder: Path) -> list[CellSummary]:
    """Read the loads of a run; none where its summary cannot be read."""
    try:
        return summaries.read(folder).cells
    except InputError:
        return []


def _figures(cell: CellSummary) -> list[str]:
    window, metrics = cell.steady or cell.metrics, cell.metrics
    ttft, _ = pick_clock(metrics, [cell])
    is_pooled = cell.rate_name != "output_tokens_per_s"
    return [
        show_number(window.output_tokens_per_s, 4),
        show_number(getattr(window, cell.rate_name), 4) if is_pooled else "-",
        show_p50(ttft),
        show_p50(metrics.tpot_s),
        show_p50(metrics.e2e_s) if is_pooled else "-",
        show_met(cell.slo_met, cell.slo_probability),
        "yes" if cell.verdict.trusted else "NO",
    ]
