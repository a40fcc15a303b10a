"""The tables of a run on a terminal: its cells, and their classes, parts, sessions and answers."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from loadstone.core.metrics import Metrics, Requests
from loadstone.core.parts import ClassPart, Part, PiecePart, SizePart
from loadstone.core.summary import Accuracy, CellSummary, TaskAccuracy
from loadstone.core.text import excerpt
from loadstone.core.units import show_met, show_number, show_seconds, show_share
from loadstone.core.verdict import Finding
from loadstone.report.data.points import share_of
from loadstone.report.pages.cell_words import head_loads, pick_clock, roofline_shares, show_slo
from loadstone.report.pages.columns import (
    RUN,
    CellRow,
    show_failed,
    show_megabytes,
    show_p50,
    show_percent,
    show_percents,
    show_visual_tokens,
)
from loadstone.report.table import Column, Table, drop_empty_columns, show_verdict, tabulate

_SPARE = ("roofline", "ITL p99", "E2E p99", "E2E p50", "failed")
"""Columns of a run's table that a narrow terminal leaves out, the first one first."""


def tables_of(
    cells: Sequence[CellSummary], doubts: Sequence[Finding], *, explain: bool
) -> Iterator[Table]:
    """Yield the tables of a run, that of its cells first. `doubts`: what is found of them, each by
    its number; `explain`: those of turns, servers and pieces too."""
    head, loads = head_loads(cells)
    rows = [
        _row(load, cell, cell.requests, cell.metrics, cells)
        for load, cell in zip(loads, cells, strict=True)
    ]
    yield _tabulate_cells(head, rows, doubts)
    classes = [(row, part) for row in rows for part in row.cell.by_class]
    if classes:
        yield _tabulate_classes(head if len(cells) > 1 else "", classes, cells)
    sizes = [(row, part) for row in rows for part in row.cell.by_size]
    if sizes:
        yield _tabulate_sizes(f"{head} · pictures", sizes, cells)
    for name, parts_of, name_part in _PARTS if explain else ():
        parts = [(row, part) for row in rows for part in parts_of(row.cell)]
        if parts:
            yield _tabulate_parts(f"{head} · {name}", parts, name_part, cells)
    if any(cell.graded for cell in cells):
        yield _tabulate_answers(head, rows)
    if any(cell.sessions is not None for cell in cells):
        yield _tabulate_sessions(head, rows)
    if cells[0].dialect is not None:
        yield _tabulate_dialect(cells)


def _show_trust(cell: CellSummary, doubts: Sequence[Finding]) -> str:
    numbers = [
        str(doubts.index(finding) + 1)
        for finding in cell.verdict.findings
        if finding.severity != "info"
    ]
    if numbers:
        return f"NO ({','.join(numbers)})"
    return "as reported" if cell.is_as_stated else "yes"


def _row(
    load: str,
    cell: CellSummary,
    requests: Requests,
    numbers: Metrics | Part,
    cells: Sequence[CellSummary],
) -> CellRow:
    """Make the row of a cell, or of a part of it, by the clock of a table of these cells."""
    return CellRow(load, cell, requests, numbers, *pick_clock(numbers, cells))


def _tabulate_cells(head: str, rows: Sequence[CellRow], doubts: Sequence[Finding]) -> Table:
    names = ["ok", "failed", "output", "ttft", "ttft_p99", "tpot", "tpot_p99", "itl_p99"]
    names += ["e2e", "e2e_p99"]
    if rows[0].cell.rate_name != "output_tokens_per_s":
        texts = rows[0].cell.rate_name.removesuffix("_per_s")
        names = ["ok", "failed", "requests", texts, "input_rate", "e2e", "e2e_p95", "e2e_p99"]
    if any(row.cell.by_class for row in rows):
        # A percentile over classes is no one's, and bounds are each class's own.
        names = ["ok", "failed", "output"]
    if roofline_shares([row.cell for row in rows], "tpot_ratio"):
        names.append("roofline")
        # Where nothing failed its column is empty, and makes room for this one within 120
        # characters.
        if not any(show_failed(row.requests) for row in rows):
            names.remove("failed")
    slo = [Column[CellRow]("SLO", lambda row: show_slo(row.cell))]
    if all(row.cell.slo_met is None for row in rows):
        slo = []
    columns: list[Column[CellRow]] = [
        Column(head, lambda row: row.load),
        *(RUN[name] for name in names),
        *slo,
        Column("trusted", lambda row: _show_trust(row.cell, doubts), "l"),
    ]
    return tabulate(columns, rows, style=show_verdict, spare=_SPARE)


def _tabulate_classes(
    head: str, parts: Sequence[tuple[CellRow, ClassPart]], cells: Sequence[CellSummary]
) -> Table:
    """Make one row for each class of traffic of each cell. `head`: that of the loads; "" of one."""

    def show_slo(row: CellRow) -> str:
        part = row.numbers
        return show_met(part.slo_met, part.p_slo) if isinstance(part, ClassPart) else ""

    turned_away = any(part.rejected for _, part in parts)
    columns: list[Column[CellRow]] = [
        Column(f"{head} · class" if head else "class", lambda row: row.load, "l"),
        RUN["ok"],
        *([RUN["failed"]] if any(show_failed(part.requests) for _, part in parts) else []),
        *([Column[CellRow]("rejected", _show_rejected)] if turned_away else []),
        *(RUN[key] for key in ("ttft", "ttft_p99", "tpot", "tpot_p99", "e2e", "e2e_p99")),
    ]
    if any(part.slo_met is not None for _, part in parts):
        columns.append(Column("SLO", show_slo))
    rows = [
        _row(
            f"{row.load} · {part.name}" if head else part.name, row.cell, part.requests, part, cells
        )
        for row, part in parts
    ]
    return tabulate(columns, rows, style=show_verdict, spare=_SPARE)


def _tabulate_sizes(
    head: str, parts: Sequence[tuple[CellRow, SizePart]], cells: Sequence[CellSummary]
) -> Table:
    """Make one row for each size of pictures of each cell."""
    columns: list[Column[CellRow]] = [
        Column(head, lambda row: row.load, "l"),
        Column("images/s", lambda row: show_number(row.numbers.images_per_s)),
        Column("tok each", lambda row: show_visual_tokens(row.numbers)),
        *(RUN[key] for key in ("ttft", "ttft_p99")),
        Column("upload", lambda row: show_share(row.numbers.upload_share, 1)),
        Column("body MB", lambda row: show_megabytes(row.numbers.body_bytes)),
    ]
    rows = [
        _row(f"{row.load} · {part.size}", row.cell, part.requests, part, cells)
        for row, part in parts
    ]
    return drop_empty_columns(tabulate(columns, rows, style=show_verdict, spare=_SPARE))


def _show_rejected(row: CellRow) -> str:
    return str(getattr(row.numbers, "rejected", 0) or "")


def _tabulate_parts(
    head: str,
    parts: Sequence[tuple[CellRow, Part]],
    name: Callable[[Any], str],
    cells: Sequence[CellSummary],
) -> Table:
    """Make one row for each turn, server or piece of a profile, of each cell; tokens are a
    request's mean.

    What a row is of is one column: where the table is too wide, that is what each piece of it
    begins with.
    """
    could = [Column[CellRow]("could", lambda row: _share_of_prompts(row, "shared_input_tokens"))]
    columns: list[Column[CellRow]] = [
        Column(head, lambda row: row.load, "l"),
        RUN["ok"],
        RUN["failed"],
        Column("in tok", lambda row: _figure(row.numbers.mean_input_tokens)),
        Column("cached", lambda row: _share_of_prompts(row, "cached_input_tokens")),
        *(could if any(cell.sessions is not None for cell in cells) else []),
        Column("out tok", lambda row: _figure(row.numbers.mean_output_tokens)),
        Column("share", lambda row: show_share(row.numbers.token_share)),
        *(RUN[key] for key in ("ttft", "ttft_p99", "tpot", "e2e", "e2e_p99")),
    ]
    return tabulate(
        columns,
        [
            _row(f"{row.load} · {name(part)}", row.cell, part.requests, part, cells)
            for row, part in parts
        ],
    )


def _share_of_prompts(row: CellRow, name: str) -> str:
    """Write which share of the prompts' tokens that is, where it is told."""
    return show_share(share_of(getattr(row.numbers, name, None), row.numbers.input_tokens))


def _tabulate_sessions(head: str, rows: Sequence[CellRow]) -> Table:
    """Make a row for each cell's sessions of agents; tokens are those of all measured calls."""
    lines = []
    for row in rows:
        numbers, metrics = row.cell.sessions, row.cell.metrics
        if numbers is None:
            continue
        task, cached, prompts = numbers.task_s, metrics.cached_input_tokens, metrics.input_tokens
        lines.append(
            [
                row.load,
                str(numbers.sessions),
                str(numbers.finished),
                _figure(numbers.calls),
                show_p50(task),
                show_seconds(task.p90 if task is not None else None),
                show_seconds(numbers.model_s),
                show_seconds(numbers.tool_s),
                show_share(numbers.waiting_share, 1),
                _figure(numbers.per_hour),
                _figure(None if cached is None or prompts is None else prompts - cached),
                _figure(cached),
                _figure(metrics.shared_input_tokens),
            ]
        )
    heads = [head, "sessions", "ended", "calls", "task p50", "p90", "model", "tools", "waiting"]
    heads += ["per hour", "new tok", "cached", "could be"]
    return Table(heads=heads, align="l" + "r" * (len(heads) - 1), rows=lines)


def _piece(part: PiecePart) -> str:
    start, end = part.begin, part.end
    return (
        f"{start:g} for {part.seconds:g} s"
        if start == end
        else f"{start:g}–{end:g} in {part.seconds:g} s"
    )


_PARTS: tuple[tuple[str, Callable[[CellSummary], Sequence[Part]], Callable[[Any], str]], ...] = (
    ("turn", lambda cell: cell.by_turn, lambda part: str(part.turn + 1)),
    ("server", lambda cell: cell.by_replica, lambda part: excerpt(str(part.url), 60)),
    ("load", lambda cell: cell.by_piece, _piece),
)
"""Of what a cell may have parts, which they are, and the name of one."""


def _tabulate_answers(head: str, rows: Sequence[CellRow]) -> Table:
    """Make one row for each cell with graded answers, named by its load, and one for each kind of
    question there."""
    heads = [f"{head} · answers", "graded", "right %", "95%", "in form %", "cut", "failed"]
    heads += ["unparsed", "of requests", "TTFT p50", "E2E p50"]
    lines = []
    for row in rows:
        graded = row.cell.graded
        if graded is not None:
            lines.append(_kind_row(row.load, graded) + _all_answers(graded))
            lines += [_kind_row(row.load, kind) + [""] * 7 for kind in graded.tasks]
    return Table(heads=heads, align="l" + "r" * (len(heads) - 1), rows=lines)


def _kind_row(load: str, kind: TaskAccuracy) -> list[str]:
    return [
        f"{load} · {excerpt(kind.task or 'all', 40)}",
        str(kind.questions),
        show_percent(kind.accuracy),
        show_percents(kind),
    ]


def _all_answers(graded: Accuracy) -> list[str]:
    part, counts = graded.part, (graded.cut, graded.failed, graded.unparsed)
    return [
        show_percent(graded.strict),
        *("-" if count is None else str(count) for count in counts),
        show_share(graded.share, 1),
        show_p50(part.ttft_s) if part else "-",
        show_p50(part.e2e_s) if part else "-",
    ]


def _tabulate_dialect(cells: Sequence[CellSummary]) -> Table:
    """Make a table of another tool's numbers, a column for each cell, each with its definition."""
    dialects = [cell.dialect for cell in cells if cell.dialect is not None]
    loads = head_loads(cells)[1]
    rows = []
    for key, definition in dialects[0].definitions.items():
        values = [dialect.metrics[key] for dialect in dialects]
        if any(value is not None for value in values):
            rows.append([key, *map(_figure, values), definition])
    return Table(
        heads=[dialects[0].tool, *loads, "is"], align="n" + "r" * len(loads) + "w", rows=rows
    )


def _figure(value: float | None) -> str:
    """Write counts whole, all else to four digits."""
    if value is not None and float(value).is_integer():
        return show_number(value, len(f"{abs(value):.0f}"))
    return show_number(value, 4)
