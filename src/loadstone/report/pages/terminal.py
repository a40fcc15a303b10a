"""The table a person reads at a glance: one row per cell, definitions below it, findings by
number."""

import itertools
from collections.abc import Iterator, Sequence

from loadstone.analyse.ranking import RULE
from loadstone.analyse.slo import SURE
from loadstone.core.groups import by_key
from loadstone.core.ranked_runs import Ranked
from loadstone.core.summary import CellSummary, ScenarioResult, Summary
from loadstone.core.text import excerpt
from loadstone.core.units import show_met, show_number, show_seconds, show_share
from loadstone.core.verdict import Finding
from loadstone.report.data.wording import join, show_finding
from loadstone.report.pages.cell_words import (
    has_unbounded,
    head_loads,
    name_cell,
    name_load,
    show_slo,
)
from loadstone.report.pages.class_cost import tabulate_cost
from loadstone.report.pages.columns import UNBOUNDED_NOTE, UNKNOWN_MARGIN, show_margin
from loadstone.report.pages.explanations import (
    define,
    say_text_alone,
    show_first_token,
    show_intervals,
    worst_lags,
)
from loadstone.report.pages.fleet import render_fleet
from loadstone.report.pages.terminal_tables import tables_of
from loadstone.report.table import MAX_NOTES, Column, Footnote, Shown, first_notes, tabulate

_RATE_HEADS = {
    "output_tokens_per_s": "out tok/s",
    "inputs_per_s": "inputs/s",
    "documents_per_s": "docs/s",
}
_LATE_KINDS = ("sends_late", "client_read_late", "client_saturated")
"""Findings of a client that was too slow."""


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
    tables = [*tables_of(cells, findings, explain=explain)]
    if summary.class_cost is not None:
        tables.append(tabulate_cost(summary.class_cost, head_loads(cells)[1]))
    found = [f"({number}) {show_finding(finding)}" for number, finding in enumerate(findings, 1)]
    found += of_run
    scenario_lines = _scenario(summary.scenario)
    first: list[Shown] = [heading(summary), *scenario_lines, *_answer(cells), *tables]
    if not explain:
        # What changed the work itself is always said.
        changes, groups = [*of_run, *say_text_alone(cells)], _group(findings)
        notes = [*changes, *first_notes(groups, max(1, MAX_NOTES - len(changes)))]
        return [*first, *notes, *_footnotes(cells, summary.source == "simulated")]
    if fleet is not None and fleet.point is not None:
        first += render_fleet(fleet)
    lines = [
        *define(cells, summary.source == "simulated"),
        *show_first_token(summary.first_token),
    ]
    return [*first, *lines, *found]


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
        yield Footnote(show_intervals(cells))
    elif not cells[0].measured_by:
        yield Footnote(_client_health(cells))
    margins = {show_margin(cell) for cell in cells} - {""}
    signs = [f"{_RATE_HEADS[cells[0].rate_name]} ± 95%: of the steady window"] if margins else []
    signs += ["±? too short to tell"] if UNKNOWN_MARGIN in margins else []
    signs += [UNBOUNDED_NOTE] if has_unbounded(cells) else []
    if any(bound.is_short_of_requests for cell in cells for bound in cell.slo):
        signs += ["SLO unsure: too few requests to be surer, however fast they were"]
    signs += ["--explain says what each number means"]
    yield Footnote(" · ".join(signs))


def _client_health(cells: Sequence[CellSummary]) -> str:
    """Say how late the client was at the most."""
    receive, send = worst_lags(cells)
    late = any(cell.verdict.has(kind) for cell in cells for kind in _LATE_KINDS)
    health = "late, see the findings" if late else "good"
    return f"client: {health} (p99 of reading {receive} late, of sending {send} late)"


def _answer(cells: Sequence[CellSummary]) -> list[str]:
    """Write a line on a sweep: the most throughput, and up to where every request meets the SLO."""
    name = cells[0].rate_name
    rates = [(getattr(cell.steady or cell.metrics, name) or 0.0, cell) for cell in cells]
    positive = [(rate, cell) for rate, cell in rates if rate]
    if len(positive) < 2:
        return []
    rate, cell = max(positive, key=lambda pair: pair[0])
    unit = "output tok/s" if name == "output_tokens_per_s" else name.replace("_per_s", "/s")
    parts = [f"most throughput: {show_number(rate, 4)} {unit} at {name_cell(cell)}"]
    judged = sorted(
        (cell for cell in cells if cell.slo_met is not None), key=lambda cell: cell.load.value
    )
    if judged:
        held = list(itertools.takewhile(lambda cell: show_slo(cell).startswith("met"), judged))
        parts.append(f"the SLO holds {_up_to(held[-1]) if held else 'at no load'}")
    return ["; ".join(parts)]


def _up_to(cell: CellSummary) -> str:
    """Name the last load that meets the bounds, with the probability of that where it is small."""
    sure = cell.slo_probability
    doubt = "" if sure is None or sure >= SURE else f" (with a probability of {show_share(sure)})"
    return f"up to {name_cell(cell)}{doubt}"


def render_ranking(places: Sequence[Ranked]) -> list[Shown]:
    """Show several deployments, the best first; see analyse.ranking."""
    simulated = [row for row in places if row.load is not None]
    columns: list[Column[tuple[int, Ranked]]] = [
        Column("rank", lambda row: str(row[0])),
        Column("deployment", lambda row: row[1].deployment, "l"),
        Column("load", lambda row: name_load(row[1].load) if row[1].load else ""),
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
