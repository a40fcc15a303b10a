"""The table a person reads at a glance: one row per cell, definitions below it, findings by
number."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from loadstone.analyse.ranking import RULE
from loadstone.analyse.slo import SURE
from loadstone.core.bounds import SloBound
from loadstone.core.electricity import BOARDS
from loadstone.core.groups import by_key
from loadstone.core.machine_figures import PredictedPower
from loadstone.core.metrics import Latency, Metrics, Requests
from loadstone.core.parts import ClassPart, Part, PiecePart, SizePart
from loadstone.core.plan import Load
from loadstone.core.ranked_runs import Ranked
from loadstone.core.settings import FirstToken
from loadstone.core.summary import Accuracy, CellSummary, ScenarioResult, Summary, TaskAccuracy
from loadstone.core.text import excerpt
from loadstone.core.units import (
    show_gpus,
    show_load,
    show_met,
    show_number,
    show_seconds,
    show_share,
)
from loadstone.core.verdict import Finding
from loadstone.report.data.points import share_of
from loadstone.report.data.wording import join, show_finding
from loadstone.report.pages.class_cost import tabulate_cost
from loadstone.report.pages.columns import (
    RUN,
    UNBOUNDED,
    UNBOUNDED_NOTE,
    UNKNOWN_MARGIN,
    CellRow,
    show_failed,
    show_margin,
    show_megabytes,
    show_p50,
    show_p99,
    show_percent,
    show_percents,
    show_visual_tokens,
)
from loadstone.report.pages.fleet import render_fleet
from loadstone.report.table import (
    MAX_NOTES,
    Column,
    Footnote,
    Shown,
    Table,
    first_notes,
    show_verdict,
    tabulate,
)

_LOAD_HEADS = {"concurrency": "conc", "rate": "req/s", "burst": "burst"}
_LOAD_NAMES = {"concurrency": "concurrency {}", "rate": "{} req/s", "burst": "burst of {}"}
_STATED_LABELS = {("output_tokens_per_s", None): "out tok/s", ("itl_s", "p99"): "ITL p99"} | {
    (f"{name}_s", statistic): f"{name.upper()} {statistic}"
    for name in ("ttft", "tpot", "e2e")
    for statistic in ("p50", "p99")
}
"""Of what an imported file states what the table has too."""
_RATE_HEADS = {
    "output_tokens_per_s": "out tok/s",
    "inputs_per_s": "inputs/s",
    "documents_per_s": "docs/s",
}
_LATE_KINDS = ("sends_late", "client_read_late", "client_saturated")
"""Findings of a client that was too slow."""
_SPARE = ("roofline", "ITL p99", "E2E p99", "E2E p50", "failed")
"""Columns of a run's table that a narrow terminal leaves out, the first one first."""
_FIRST_PARTS = 5
"""Of a predicted TTFT, by name."""


def render(summary: Summary, explain: bool = True) -> list[Shown]:
    """Show a run: its heading, its table, and what was found. What the engine wrote is plain text.

    explain: also show parts of loads, all findings, and what each number means.
    """
    cells = summary.cells
    of_run = [show_finding(finding) for finding in summary.findings]
    if not cells:
        return ["nothing was sent", *of_run]
    fleet = summary.fleet
    if fleet is not None and fleet.point is not None and not explain:
        return [heading(summary), *render_fleet(fleet), *of_run]
    findings = _list_doubts(cells)
    head, loads = _loads(cells)
    rows = [
        _row(load, cell, cell.requests, cell.metrics, cells)
        for load, cell in zip(loads, cells, strict=True)
    ]
    tables = [_table(head, rows, findings)]
    classes = [(row, part) for row in rows for part in row.cell.by_class]
    if classes:
        tables.append(_table_classes(head if len(cells) > 1 else "", classes, cells))
    sizes = [(row, part) for row in rows for part in row.cell.by_size]
    if sizes:
        tables.append(_table_sizes(f"{head} · pictures", sizes, cells))
    for name, parts_of, name_part in _PARTS if explain else ():
        parts = [(row, part) for row in rows for part in parts_of(row.cell)]
        if parts:
            tables.append(_table_parts(f"{head} · {name}", parts, name_part, cells))
    if any(cell.graded for cell in cells):
        tables.append(_answers(head, rows))
    if any(cell.sessions is not None for cell in cells):
        tables.append(_sessions(head, rows))
    if cells[0].dialect is not None:
        tables.append(_dialect(cells))
    if summary.class_cost is not None:
        tables.append(tabulate_cost(summary.class_cost, loads))
    found = [f"({number}) {show_finding(finding)}" for number, finding in enumerate(findings, 1)]
    found += of_run
    scenario_lines = _scenario(summary.scenario)
    first: list[Shown] = [heading(summary), *scenario_lines, *_answer(cells), *tables]
    if not explain:
        # What changed the work itself is always said.
        changes, groups = [*of_run, *_say_text_alone(cells)], _group(findings)
        notes = [*changes, *first_notes(groups, max(1, MAX_NOTES - len(changes)))]
        return [*first, *notes, *_footnotes(cells, summary.source == "simulated")]
    if fleet is not None and fleet.point is not None:
        first += render_fleet(fleet)
    lines = [
        *_definitions(cells, summary.source == "simulated"),
        *_first_token(summary.first_token),
    ]
    return [*first, *lines, *found]


def _say_text_alone(cells: Sequence[CellSummary]) -> list[str]:
    """Say that prompts of a model that sees were text alone."""
    found = (finding for cell in cells for finding in cell.verdict.findings)
    texts = dict.fromkeys(finding.evidence for finding in found if finding.kind == "text_alone")
    return [f"{text[0].upper()}{text[1:]}" for text in texts]


def _group(findings: Sequence[Finding]) -> list[str]:
    """Write a line for each kind of finding, errors first: its numbers, and its last evidence."""
    kinds = by_key(
        ((finding.severity != "error", finding.kind), number)
        for number, finding in enumerate(findings, 1)
    )
    return [
        f"({','.join(map(str, numbers))}) {show_finding(findings[numbers[-1] - 1])}"
        for _, numbers in sorted(kinds.items(), key=lambda item: item[0][0])
    ]


def _footnotes(cells: Sequence[CellSummary], simulated: bool) -> Iterator[Footnote]:
    """Yield what the table's signs mean, and how far off its numbers may be."""
    if simulated and not cells[0].measured_by:
        yield Footnote(_intervals(cells))
    elif not cells[0].measured_by:
        yield Footnote(_client_health(cells))
    margins = {show_margin(cell) for cell in cells} - {""}
    signs = [f"{_RATE_HEADS[cells[0].rate_name]} ± 95%: of the steady window"] if margins else []
    signs += ["±? too short to tell"] if UNKNOWN_MARGIN in margins else []
    signs += [UNBOUNDED_NOTE] if _has_unbounded(cells) else []
    if any(bound.is_short_of_requests for cell in cells for bound in cell.slo):
        signs += ["SLO unsure: too few requests to be surer, however fast they were"]
    signs += ["--explain says what each number means"]
    yield Footnote(" · ".join(signs))


def _client_health(cells: Sequence[CellSummary]) -> str:
    """Say how late the client was at the most."""
    receive, send = _worst_lags(cells)
    late = any(cell.verdict.has(kind) for cell in cells for kind in _LATE_KINDS)
    health = "late, see the findings" if late else "good"
    return f"client: {health} (p99 of reading {receive} late, of sending {send} late)"


def _has_unbounded(cells: Sequence[CellSummary]) -> bool:
    """Tell whether a p99 of the table has no upper bound."""
    return any(
        show_p99(values, cell).startswith(UNBOUNDED)
        for cell in cells
        for values in (*pick_clock(cell.metrics, cells), cell.metrics.tpot_s)
    )


def _answer(cells: Sequence[CellSummary]) -> list[str]:
    """Write a line on a sweep: the most throughput, and up to where every request meets the SLO."""
    name = cells[0].rate_name
    rates = [(getattr(cell.steady or cell.metrics, name) or 0.0, cell) for cell in cells]
    positive = [(rate, cell) for rate, cell in rates if rate]
    if len(positive) < 2:
        return []
    rate, cell = max(positive, key=lambda pair: pair[0])
    unit = "output tok/s" if name == "output_tokens_per_s" else name.replace("_per_s", "/s")
    parts = [f"most throughput: {show_number(rate, 4)} {unit} at {_name_load(cell)}"]
    judged = sorted(
        (cell for cell in cells if cell.slo_met is not None), key=lambda cell: cell.load.value
    )
    if judged:
        held = list(itertools.takewhile(lambda cell: _show_slo(cell).startswith("met"), judged))
        parts.append(f"the SLO holds {_up_to(held[-1]) if held else 'at no load'}")
    return ["; ".join(parts)]


def _show_slo(cell: CellSummary) -> str:
    return show_met(cell.slo_met, cell.slo_probability)


def _up_to(cell: CellSummary) -> str:
    """Name the last load that meets the bounds, with the probability of that where it is small."""
    sure = cell.slo_probability
    doubt = "" if sure is None or sure >= SURE else f" (with a probability of {show_share(sure)})"
    return f"up to {_name_load(cell)}{doubt}"


def render_ranking(places: Sequence[Ranked]) -> list[Shown]:
    """Show several deployments, the best first; see analyse.ranking."""
    simulated = [row for row in places if row.load is not None]
    columns: list[Column[tuple[int, Ranked]]] = [
        Column("rank", lambda row: str(row[0])),
        Column("deployment", lambda row: row[1].deployment, "l"),
        Column("load", lambda row: _name(row[1].load) if row[1].load else ""),
        Column("out tok/s/GPU", lambda row: show_number(row[1].output_tokens_per_s_per_gpu, 4)),
        Column("texts/s/GPU", lambda row: _show_texts(row[1].texts_per_s_per_gpu)),
        Column("80%", lambda row: _show_range(row[1].low, row[1].high)),
        Column("out tok/s", lambda row: show_number(row[1].output_tokens_per_s, 4)),
        Column("TTFT p50", lambda row: show_seconds(row[1].ttft_s)),
        Column("TPOT p50", lambda row: show_seconds(row[1].tpot_s)),
        Column("E2E p50", lambda row: show_seconds(row[1].e2e_s)),
    ]
    if any(row.slo_met is not None for row in simulated):
        columns.append(Column("bounds", lambda row: show_met(row[1].slo_met, None)))
    unsimulated = [
        f"not simulated: {excerpt(row.why or '', 400)}" for row in places if row.load is None
    ]
    texts = any(row.texts_per_s_per_gpu for row in simulated)
    rule = RULE.replace("output tokens", "texts") if texts else RULE
    return [tabulate(columns, enumerate(simulated, 1)), rule, *unsimulated]


def _show_texts(rate: float | None) -> str:
    return "" if rate is None else show_number(rate, 4)


def _show_range(low: float | None, high: float | None) -> str:
    return "" if low is None else f"{show_number(low)}–{show_number(high)}"


def heading(summary: Summary) -> str:
    """Name what was measured, in one line."""
    target = summary.target
    engine = join(target.engine, target.engine_version, by=" ") if target else ""
    engine = f"simulated {engine}" if summary.source == "simulated" else engine or "unknown engine"
    if target and len(target.urls) > 1:
        engine = (  # the others were not asked who they are
            f"first of {len(target.urls)} servers: {engine}"
        )
    model = excerpt((target and target.model) or "?", 120)
    plan = f"plan {summary.plan_id[:6]} seed {summary.seed}"
    start = f"start {excerpt(summary.start, 20)}" if summary.start else ""
    return join(engine, model, target.endpoint if target else "?", plan, start, by=" · ")


def _list_doubts(cells: Sequence[CellSummary]) -> list[Finding]:
    """List the warnings and errors of all cells, each once: they have numbers."""
    doubts: list[Finding] = []
    for cell in cells:
        for finding in cell.verdict.findings:
            if finding.severity != "info" and finding not in doubts:
                doubts.append(finding)
    return doubts


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


def _table(head: str, rows: Sequence[CellRow], doubts: Sequence[Finding]) -> Table:
    names = ["ok", "failed", "output", "ttft", "ttft_p99", "tpot", "tpot_p99", "itl_p99"]
    names += ["e2e", "e2e_p99"]
    if rows[0].cell.rate_name != "output_tokens_per_s":
        texts = rows[0].cell.rate_name.removesuffix("_per_s")
        names = ["ok", "failed", "requests", texts, "input_rate", "e2e", "e2e_p95", "e2e_p99"]
    if any(row.cell.by_class for row in rows):
        # A percentile over classes is no one's, and bounds are each class's own.
        names = ["ok", "failed", "output"]
    if _roofline_shares([row.cell for row in rows], "tpot_ratio"):
        names.append("roofline")
        # Where nothing failed its column is empty, and makes room for this one within 120
        # characters.
        if not any(show_failed(row.requests) for row in rows):
            names.remove("failed")
    slo = [Column[CellRow]("SLO", lambda row: _show_slo(row.cell))]
    if all(row.cell.slo_met is None for row in rows):
        slo = []
    columns: list[Column[CellRow]] = [
        Column(head, lambda row: row.load),
        *(RUN[name] for name in names),
        *slo,
        Column("trusted", lambda row: _show_trust(row.cell, doubts), "l"),
    ]
    return tabulate(columns, rows, style=show_verdict, spare=_SPARE)


def _table_classes(
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


def _table_sizes(
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
    return tabulate(columns, rows, style=show_verdict, spare=_SPARE)


def _show_rejected(row: CellRow) -> str:
    return str(getattr(row.numbers, "rejected", 0) or "")


def _table_parts(
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


def _sessions(head: str, rows: Sequence[CellRow]) -> Table:
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


def _answers(head: str, rows: Sequence[CellRow]) -> Table:
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


def _dialect(cells: Sequence[CellSummary]) -> Table:
    """Make a table of another tool's numbers, a column for each cell, each with its definition."""
    dialects = [cell.dialect for cell in cells if cell.dialect is not None]
    loads = _loads(cells)[1]
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


def _loads(cells: Sequence[CellSummary]) -> tuple[str, list[str]]:
    """Return the head of a column of loads, and each cell's load, with its unit where they are of
    several kinds."""
    loads = [show_load(cell.load.value) for cell in cells]
    heads = [_LOAD_HEADS[cell.load.kind] for cell in cells]
    if len(set(heads)) > 1:
        return "load", [f"{load} {head}" for load, head in zip(loads, heads, strict=True)]
    return heads[0], loads


def _name_load(cell: CellSummary) -> str:
    """Name a cell at the head of a line, which a number alone, as of a finding, would not."""
    return _name(cell.load)


def _name(load: Load) -> str:
    return _LOAD_NAMES[load.kind].format(show_load(load.value))


def _is_intended(cells: Sequence[CellSummary]) -> bool:
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
        if _is_intended(cells)
        else (values.ttft_s, values.e2e_s)
    )


def _roofline_shares(cells: Sequence[CellSummary], name: str) -> list[float]:
    """Return the cells' shares of what the hardware allows, where known."""
    shares = (getattr(cell.roofline, name) for cell in cells if cell.roofline is not None)
    return [share for share in shares if share is not None]


def _roofline(cells: Sequence[CellSummary]) -> str:
    """Say what the roofline column is, and how much of bandwidth and arithmetic was used, from
    least to most."""
    ratios = _roofline_shares(cells, "tpot_ratio")
    parts = ["roofline: TPOT that the hardware allows / TPOT p50"] if ratios else []
    for name, resource in (("MBU", "memory bandwidth"), ("MFU", "peak FLOP/s")):
        shares = _roofline_shares(cells, name.lower())
        if shares:
            low, high = show_share(min(shares)), show_share(max(shares))
            parts.append(f"{name} {low if low == high else f'{low} to {high}'} of {resource}")
    return " · ".join(parts)


def _energy(cells: Sequence[CellSummary]) -> str:
    """Write the power that GPUs drew, in the order of the loads."""
    power = [cell.gpu.power_w.mean if cell.gpu and cell.gpu.power_w else None for cell in cells]
    windows = [cell.steady or cell.metrics for cell in cells]
    predicted = next((cell.power for cell in reversed(cells) if cell.power is not None), None)
    if all(value is None for value in power):
        return f"watts: not known: {predicted.unknown}" if predicted else ""
    gpus = max(cell.gpu.gpus if cell.gpu else 0 for cell in cells)
    verb = "would draw" if predicted else "drew"
    text = f"{show_gpus(gpus)} {verb} {', '.join(map(show_number, power))} W"
    for name in ("output", "total"):
        energy = [getattr(window, f"j_per_{name}_token") for window in windows]
        if any(value is not None for value in energy):
            text += f" · {', '.join(map(show_number, energy))} J per {name} token"
    return f"{text}{describe_power(predicted, ' at the last')}" if predicted else text


def describe_power(power: PredictedPower, load: str = "") -> str:
    """Write the intervals of predicted watts and joules, at a `load`, and whose they are."""
    parts = [
        f"{show_number(ends[0])} to {show_number(ends[1])} {unit}"
        for ends, unit in ((power.power_w, "W"), (power.j_per_output_token, "J per output token"))
        if ends is not None
    ]
    text = f" (80%{load}: {', '.join(parts)}; boards alone)"
    if power.boundary != BOARDS:
        text += f" · {show_number(power.drawn_w)} W with {power.boundary}"
    if power.usd_per_mtok is not None:
        text += f" · ${power.usd_per_mtok:.3g} of electricity per million output tokens"
    return text


def _definitions(cells: Sequence[CellSummary], simulated: bool) -> list[str]:
    whole = [
        load for cell, load in zip(cells, _loads(cells)[1], strict=True) if cell.steady is None
    ]
    window = "steady window" if len(whole) < len(cells) else "whole load"
    if 0 < len(whole) < len(cells):
        window += f", at {', '.join(whole)} over the whole load"
    margins = " ± 95%" if any(map(show_margin, cells)) else ""
    lines = [
        (
            f"TTFT, E2E from {_since(cells)} · TPOT = (tT−t1)/(T−1) · ITL per token · out"
            f" tok/s{margins} over the {window}"
        ),
        _intervals(cells) if simulated and not cells[0].measured_by else _measured_by(cells),
        *stated_lines(cells),
        *map(_show_cached, cells),
        *map(_show_thinking, cells),
        *map(show_drafts, cells),
        *map(_show_pools, cells),
        *map(_show_ttft_parts, cells),
        _roofline(cells),
        _energy(cells),
        *dict.fromkeys(cell.client.selftest or "" for cell in cells),
        UNBOUNDED_NOTE if _has_unbounded(cells) else "",
    ]
    found = [(cell, finding) for cell in cells for finding in cell.verdict.findings]
    lines += [
        f"{_name_load(cell)}: {finding.evidence}"
        for cell, finding in found
        if finding.kind == "rate_by_chance"
    ]
    lines += _say_text_alone(cells)
    lines += [f"{_name_load(cell)}: {'; '.join(_bounds(cell))}" for cell in cells if _bounds(cell)]
    return [line for line in lines if line]


def _show_cached(cell: CellSummary) -> str:
    """Say how much of the input a cache could give, and how much it gave."""
    metrics = cell.metrics
    if (
        not metrics.shared_input_tokens
        or metrics.cached_input_tokens is None
        or not metrics.input_tokens
    ):
        return ""
    turns = " (besides earlier turns of sessions)" if cell.by_turn and cell.sessions is None else ""
    return (
        f"{_name_load(cell)}: the plan shares"
        f" {metrics.shared_input_tokens / metrics.input_tokens:.1%} of input"
        f" tokens{turns},"
        f" {metrics.cached_input_tokens / metrics.input_tokens:.1%} were in the cache"
    )


def _show_thinking(cell: CellSummary) -> str:
    """Say when answers began, where something came before them, and at what pace they came."""
    metrics = cell.metrics
    if not metrics.thinking_tokens and not metrics.tool_call_tokens:
        return ""
    answer = (metrics.answer_s if cell.load.is_closed else metrics.answer_intended_s) or Latency()
    thinking, calls = metrics.thinking_share or 0, metrics.tool_call_tokens or 0
    share = f"thinking {thinking:.0%} of output tokens, tool calls {calls:,}"
    pace = (
        f", then {metrics.answer_tokens_per_s:.0f} tok/s each"
        if metrics.answer_tokens_per_s
        else ""
    )
    times = f"first answer token p50 {show_seconds(answer.p50)}, p99 {show_seconds(answer.p99)}"
    return f"{_name_load(cell)}: {share}; {times}{pace}"


def show_drafts(cell: CellSummary) -> str:
    """Say what speculative decoding came to."""
    drafts = cell.drafts
    if drafts is None:
        return ""
    parts = [f"{drafts.accepted_length:.2f} tokens a step"] if drafts.accepted_length else []
    parts += [f"{show_share(drafts.rate)} of guesses accepted"] if drafts.rate is not None else []
    parts += (
        ["by position " + " ".join(map(show_share, drafts.by_position))]
        if drafts.by_position
        else []
    )
    whose = {
        "counters": "by the engine's counters",
        "requests": "by each answer",
        "gauge": "by a gauge",
    }
    forced = ", forced" if drafts.forced else ""
    return (
        f"{_name_load(cell)}: drafts gave {', '.join(parts)}"
        f" ({whose.get(drafts.source, 'imported')}{forced})"
    )


def _show_pools(cell: CellSummary) -> str:
    """Say what each pool gave, and a GPU of it."""
    parts = [
        f"{pool.role} {show_number(pool.tokens_per_s)} tok/s on {pool.gpus}×{pool.gpu or 'GPU'} "
        f"({show_number(pool.tokens_per_s_per_gpu)} a GPU"
        f"{'' if pool.j_per_token is None else f', {show_number(pool.j_per_token)} J a token'})"
        for pool in cell.pools
    ]
    return f"{_name_load(cell)}: input by {parts[0]}, output by {parts[-1]}" if parts else ""


def _show_ttft_parts(cell: CellSummary) -> str:
    """Say of what TTFT consists, where the engines tell."""
    parts = cell.server.ttft_parts if cell.server is not None else None
    if parts is None:
        return ""
    named = (
        ("in queues", parts.queue_s),
        ("its prompt", parts.prefill_s),
        ("its cache's way", parts.transfer_s),
    )
    times = ", ".join(
        f"{name} {show_seconds(seconds)}" for name, seconds in named if seconds is not None
    )
    return (
        f"{_name_load(cell)}: of a request's TTFT, on average and by the engine's counters: {times}"
    )


def _since(cells: Sequence[CellSummary]) -> str:
    if cells[0].load.is_closed:
        return "sending (closed loop)"
    return (
        "the intended time (open loop)"
        if _is_intended(cells)
        else "sending (open loop, intended times unknown)"
    )


def _measured_by(cells: Sequence[CellSummary]) -> str:
    """Name the client that measured; of our own, say how late it was at the most."""
    if cells[0].measured_by:
        return f"measured by {cells[0].measured_by}"
    capped = any(cell.verdict.has("cap_held_back") for cell in cells)
    held = "; held back by --max-concurrency, not by the client" if capped else ""
    receive, send = _worst_lags(cells)
    return (
        f"{cells[0].client.clock} clock: receive lag p99 {receive}, sends late p99 {send} (worst"
        f" load{held})"
    )


def stated_lines(cells: Sequence[CellSummary]) -> Iterator[str]:
    """Yield the numbers that imported files state where those shown are others, with the tool's
    definition."""
    for cell in cells:
        by_definition: dict[str, list[str]] = {}
        for number in cell.stated:
            label = _STATED_LABELS.get((number.metric, number.statistic))
            if label is None:
                continue
            shown = (
                show_seconds(number.stated) if number.statistic else show_number(number.stated, 4)
            )
            definition = f" ({number.definition})" if number.definition else ""
            by_definition.setdefault(definition, []).append(f"{label} {shown}")
        if by_definition:
            numbers = ", ".join(
                f"{', '.join(texts)}{definition}" for definition, texts in by_definition.items()
            )
            yield f"{_name_load(cell)}: the file itself reports {numbers}"


def _worst_lags(cells: Sequence[CellSummary]) -> tuple[str, str]:
    """Return how late the client read and sent (p99), each in the load where it was latest."""
    clients = [cell.client for cell in cells]
    return (
        _worst(client.receive_lag_p99_s for client in clients),
        _worst(client.send_lag_p99_s for client in clients),
    )


def _worst(lags_s: Iterable[float | None]) -> str:
    return show_seconds(max((lag_s for lag_s in lags_s if lag_s is not None), default=None), 2)


def _bounds(cell: CellSummary) -> list[str]:
    """Say which bounds of --slo were met."""
    texts = [_bound(bound) for bound in cell.slo]
    attainment = cell.metrics.attainment
    if attainment is not None:
        limits = " and ".join(
            f"{name} < {show_seconds(limit)}" for name, limit in cell.slo_per_request_s.items()
        )
        limits = limits or ("these limits" if texts else "the SLO")
        goodput = show_number(cell.metrics.goodput_per_s)
        texts.append(
            f"{show_share(attainment, 1)} of requests sent meet {limits}, goodput {goodput} req/s"
        )
    return texts


def _bound(bound: SloBound) -> str:
    value = ("" if "_" in bound.metric else "slowest ") + show_seconds(bound.measured_s)
    sure = "" if bound.p_met is None else f", probability {show_share(bound.p_met)}"
    if bound.is_short_of_requests:
        sure += " (too few requests to be surer)"
    return (
        f"{bound.metric} < {show_seconds(bound.limit_s)} {'met' if bound.met else 'MISSED'}"
        f" ({value}){sure}"
    )


def _intervals(cells: Sequence[CellSummary]) -> str:
    """Write the intervals of a prediction, by the table's clock, at the largest load that is
    trusted."""
    trusted = [cell for cell in cells if cell.verdict.trusted]
    cell = max(trusted or cells, key=lambda cell: cell.load.value)
    ttft, e2e = pick_clock(cell.metrics, cells)
    shown = [
        f"{name} {show_seconds(values.low)} to {show_seconds(values.high)}"
        for name, values in (
            ("TTFT p50", ttft),
            ("TPOT p50", cell.metrics.tpot_s),
            ("E2E p50", e2e),
        )
        if values is not None and values.low is not None
    ]
    return (
        f"simulated; 80% intervals at {_name_load(cell)}: " + ", ".join(shown)
        if shown
        else "simulated"
    )


def _scenario(result: ScenarioResult | None) -> list[str]:
    """Say how a run stands to its scenario."""
    if result is None:
        return []
    kept = "keeps the rules that are checked" if result.keeps_rules else "is broken"
    imitated = ", an imitation," if result.name.startswith("like:") else ""
    lines = [f"{result.name}{imitated} {kept}; not checked: {', '.join(result.unchecked)}"]
    agents = result.agents_per_gpu
    if agents is not None:
        high = "?" if agents.high is None else show_number(agents.high)
        shown = f"{show_number(agents.value)} agents per GPU ({show_number(agents.low)} to {high})"
        if agents.per_mw is not None:
            shown += f", {show_number(agents.per_mw)} per MW of {agents.boundary}"
        lines.append(shown)
    return lines


def _first_token(first: FirstToken | None) -> list[str]:
    """Write what a predicted TTFT consists of, the largest parts by name."""
    if first is None:
        return []
    parts = sorted(first.parts_s.items(), key=lambda part: -part[1])
    shown = [f"{excerpt(name, 40)} {show_seconds(part_s)}" for name, part_s in parts[:_FIRST_PARTS]]
    if len(parts) > _FIRST_PARTS:
        rest_s = sum(part_s for _, part_s in parts[_FIRST_PARTS:])
        shown.append(f"other {show_seconds(rest_s)}")
    tokens = f"{first.prompt_tokens:,} token{'s' if first.prompt_tokens != 1 else ''}"
    return [
        f"TTFT of {tokens} alone, {show_seconds(sum(first.parts_s.values()))}: {' · '.join(shown)}"
    ]
