"""The table a person reads at a glance: one row per cell, definitions below it, findings by
number."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from loadstone.analyse.ranking import RULE, Ranked
from loadstone.core.settings import FirstToken
from loadstone.core.summary import (
    CellSummary,
    Finding,
    Latency,
    Metrics,
    Part,
    PiecePart,
    Requests,
    SloBound,
    Summary,
)
from loadstone.core.text import excerpt
from loadstone.core.units import show_load, show_number, show_seconds, show_share
from loadstone.report.data.wording import join
from loadstone.report.table import Shown, Table, show_verdict, table_of

_PartsOf = Callable[[CellSummary], Sequence[Part]]

_LOAD_HEADS = {"concurrency": "conc", "rate": "req/s", "burst": "burst"}
_LOAD_NAMES = {"concurrency": "concurrency {}", "rate": "{} req/s", "burst": "burst of {}"}
_STATED_LABELS = {("output_tokens_per_s", None): "out tok/s", ("itl_s", "p99"): "ITL p99"} | {
    (f"{name}_s", statistic): f"{name.upper()} {statistic}"
    for name in ("ttft", "tpot", "e2e")
    for statistic in ("p50", "p99")
}
"""Of what an imported file states what the table has too."""
_FIRST_PARTS = 5
"""Of a predicted TTFT, by name."""
UNBOUNDED = "~"
UNBOUNDED_NOTE = (
    "~: p99 of the sample, without an upper 95% bound, which takes 368 requests, or more if slow"
    " ones come together"
)


def render(summary: Summary) -> list[Shown]:
    """Show a run: its heading, its tables, and what their columns mean. What the engine wrote is
    plain text."""
    cells = summary.cells
    of_run = [_finding(finding) for finding in summary.findings]
    if not cells:
        return ["nothing was sent", *of_run]
    findings: list[Finding] = []
    tables = [_table(cells, findings)]
    tables += [_parts(cells, *named) for named in _PARTS if any(named[0](cell) for cell in cells)]
    if any(cell.graded for cell in cells):
        tables.append(answers(list(zip(_loads(cells)[1], cells, strict=True)), _loads(cells)[0]))
    if any(cell.sessions is not None for cell in cells):
        tables.append(_sessions(cells))
    if cells[0].dialect is not None:
        tables.append(_dialect(cells))
    lines = [
        *_definitions(cells, summary.source == "simulated"),
        *_first_token(summary.first_token),
    ]
    lines += [f"({number}) {_finding(finding)}" for number, finding in enumerate(findings, 1)]
    return [heading(summary), *_answer(cells), *tables, *lines, *of_run]


def _answer(cells: Sequence[CellSummary]) -> list[str]:
    """Write a line on a sweep: the most throughput, and up to where every request meets the SLO."""
    known = [
        (much, cell)
        for cell in cells
        if (much := (cell.steady or cell.metrics).output_tokens_per_s)
    ]
    if len(known) < 2:
        return []
    most, at = max(known, key=lambda each: each[0])
    parts = [f"most throughput: {show_number(most, 4)} output tok/s at {_name_load(at)}"]
    judged = sorted(
        (cell for cell in cells if cell.slo_met is not None), key=lambda cell: cell.load.value
    )
    if judged:
        held = list(itertools.takewhile(lambda cell: cell.slo_met, judged))
        parts.append(f"the SLO holds {f'up to {_name_load(held[-1])}' if held else 'at no load'}")
    return ["; ".join(parts)]


def render_ranking(rows: Sequence[Mapping[str, Any]]) -> list[Shown]:
    """Show several deployments, the best first; see analyse.ranking."""
    places = msgspec.convert(rows, list[Ranked])
    simulated = [row for row in places if row.load is not None]
    with_bounds = any(row.slo_met is not None for row in simulated)
    ranking = table_of(
        [
            [
                ("rank", str(place)),
                ("deployment", row.deployment),
                (
                    "load",
                    (
                        _LOAD_NAMES[row.load.kind].format(show_load(row.load.value))
                        if row.load
                        else ""
                    ),
                ),
                ("out tok/s/GPU", show_number(row.output_tokens_per_s_per_gpu, 4)),
                (
                    "80%",
                    "" if row.low is None else f"{show_number(row.low)}–{show_number(row.high)}",
                ),
                ("out tok/s", show_number(row.output_tokens_per_s, 4)),
                ("TTFT p50", show_seconds(row.ttft_s)),
                ("TPOT p50", show_seconds(row.tpot_s)),
                ("E2E p50", show_seconds(row.e2e_s)),
                *([("bounds", "met" if row.slo_met else "missed")] if with_bounds else []),
            ]
            for place, row in enumerate(simulated, 1)
        ],
        "deployment",
    )
    left_out = [
        f"not simulated: {excerpt(row.why or '', 400)}" for row in places if row.load is None
    ]
    return [ranking, RULE, *left_out]


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
    return " · ".join([engine, model, target.endpoint if target else "?", plan])


def _table(cells: Sequence[CellSummary], findings: list[Finding]) -> Table:
    has_roofline = bool(_roofline_shares(cells, "tpot_ratio"))
    # Where nothing failed its column is empty, and makes room for one more within 120 characters.
    has_failures = not has_roofline or any(_count_failed(cell.requests) for cell in cells)
    rows = []
    load_head, loads = _loads(cells)
    for cell, load in zip(cells, loads, strict=True):
        metrics = cell.metrics
        ttft, e2e = _pick_clock(metrics, cells)
        throughput = (cell.steady or metrics).output_tokens_per_s
        share = cell.roofline.tpot_ratio if cell.roofline else None
        rows.append(
            [
                (load_head, load),
                ("ok", str(cell.requests.completed)),
                *([("failed", _count_failed(cell.requests))] if has_failures else []),
                ("out tok/s", show_number(throughput, 4) + _reach(cell)),
                ("TTFT p50", _p50(ttft)),
                ("p99", _p99(cell, ttft)),
                ("TPOT p50", _p50(metrics.tpot_s)),
                ("p99", _p99(cell, metrics.tpot_s)),
                ("ITL p99", show_seconds(metrics.itl_s.p99 if metrics.itl_s else None)),
                ("E2E p50", _p50(e2e)),
                ("p99", _p99(cell, e2e)),
                *([("roofline", show_share(share))] if has_roofline else []),
                ("trusted", _show_trust(cell, findings)),
            ]
        )
    return table_of(rows, "trusted", style=show_verdict)


def _parts(
    cells: Sequence[CellSummary],
    parts_of: Callable[[CellSummary], Sequence[Part]],
    head: str,
    name: Callable[[Any], str],
) -> Table:
    """Make one row for each turn, server or piece of a profile, of each cell; tokens are a
    request's mean.

    What a row is of is one column: where the table is too wide, that is what each piece of it
    begins with.
    """
    load_head, loads = _loads(cells)
    first = f"{load_head} · {head}"
    rows = []
    for cell, load in zip(cells, loads, strict=True):
        for part in parts_of(cell):
            cached, prompts = part.cached_input_tokens, part.input_tokens
            ttft, e2e = _pick_clock(part, cells)
            rows.append(
                [
                    (first, f"{load} · {name(part)}"),
                    ("ok", str(part.requests.completed)),
                    ("failed", _count_failed(part.requests)),
                    ("in tok", _figure(part.mean_input_tokens)),
                    (
                        "cached",
                        show_share(cached / prompts) if cached is not None and prompts else "-",
                    ),
                    *_could(part, cells),
                    ("out tok", _figure(part.mean_output_tokens)),
                    ("share", show_share(part.token_share)),
                    ("TTFT p50", _p50(ttft)),
                    ("p99", _p99(cell, ttft)),
                    ("TPOT p50", _p50(part.tpot_s)),
                    ("E2E p50", _p50(e2e)),
                    ("p99", _p99(cell, e2e)),
                ]
            )
    return table_of(rows, first)


def _could(part: Any, cells: Sequence[CellSummary]) -> list[tuple[str, str]]:
    """Make the column of what the plan could have had in the cache, where a turn tells it."""
    if all(cell.sessions is None for cell in cells):
        return []
    shared, prompts = getattr(part, "shared_input_tokens", None), part.input_tokens
    return [("could", show_share(shared / prompts) if shared is not None and prompts else "-")]


def _sessions(cells: Sequence[CellSummary]) -> Table:
    """Make a row for each cell's sessions of agents; tokens are those of all measured calls."""
    load_head, loads = _loads(cells)
    rows = []
    for cell, load in zip(cells, loads, strict=True):
        numbers, metrics = cell.sessions, cell.metrics
        if numbers is None:
            continue
        task, cached, prompts = numbers.task_s, metrics.cached_input_tokens, metrics.input_tokens
        new = None if cached is None or prompts is None else prompts - cached
        rows.append(
            [
                (load_head, load),
                ("sessions", str(numbers.sessions)),
                ("ended", str(numbers.finished)),
                ("calls", _figure(numbers.calls)),
                ("task p50", show_seconds(task.p50) if task is not None else "-"),
                ("p90", show_seconds(task.p90) if task is not None else "-"),
                ("model", show_seconds(numbers.model_s)),
                ("tools", show_seconds(numbers.tool_s)),
                ("waiting", show_share(numbers.waiting_share, 1)),
                ("per hour", _figure(numbers.per_hour)),
                ("new tok", _figure(new)),
                ("cached", _figure(cached)),
                ("could be", _figure(metrics.shared_input_tokens)),
            ]
        )
    return table_of(rows, load_head)


def _piece(part: PiecePart) -> str:
    start, end = part.begin, part.end
    return (
        f"{start:g} for {part.seconds:g} s"
        if start == end
        else f"{start:g}–{end:g} in {part.seconds:g} s"
    )


_PARTS: tuple[tuple[_PartsOf, str, Callable[[Any], str]], ...] = (
    (lambda cell: cell.by_turn, "turn", lambda part: str(part.turn + 1)),
    (lambda cell: cell.by_replica, "server", lambda part: excerpt(str(part.url), 60)),
    (lambda cell: cell.by_piece, "load", _piece),
)
"""Of what a cell has parts, the head of their column, and the name of one."""


def answers(rows: Sequence[tuple[str, CellSummary]], head: str) -> Table:
    """Make one row for each cell with graded answers, named by its load, and one for each kind of
    question there."""
    shown = []
    for load, cell in rows:
        if (graded := cell.graded) is None:
            continue
        part = graded.part
        counts = zip(
            ("cut", "failed", "unparsed"), (graded.cut, graded.failed, graded.unparsed), strict=True
        )
        of_all = [
            ("in form %", "-" if graded.strict is None else f"{100 * graded.strict:.1f}"),
            *((name, "-" if count is None else str(count)) for name, count in counts),
            ("of requests", show_share(graded.share, 1)),
            ("TTFT p50", _p50(part.ttft_s) if part else "-"),
            ("E2E p50", _p50(part.e2e_s) if part else "-"),
        ]
        shown += [
            [
                (f"{head} · answers", f"{load} · {excerpt(kind.task or 'all', 40)}"),
                ("graded", str(kind.questions)),
                ("right %", "-" if kind.accuracy is None else f"{100 * kind.accuracy:.1f}"),
                ("95%", f"{100 * kind.low:.1f}–{100 * kind.high:.1f}"),
                *(of_all if kind is graded else [(name, "") for name, _ in of_all]),
            ]
            for kind in (graded, *graded.tasks)
        ]
    return table_of(shown, f"{head} · answers")


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
    return _LOAD_NAMES[cell.load.kind].format(show_load(cell.load.value))


def _is_intended(cells: Sequence[CellSummary]) -> bool:
    """Open loops are judged from the intended time: waiting that a slow server causes is latency.

    Other tools do not tell it, and it is from sending then.
    """
    return not cells[0].load.is_closed and any(
        cell.metrics.e2e_intended_s is not None for cell in cells
    )


def _pick_clock(
    values: Metrics | Part, cells: Sequence[CellSummary]
) -> tuple[Latency | None, Latency | None]:
    """Return TTFT and E2E by the clock of a table of these cells."""
    return (
        (values.ttft_intended_s, values.e2e_intended_s)
        if _is_intended(cells)
        else (values.ttft_s, values.e2e_s)
    )


def _count_failed(requests: Requests) -> str:
    if requests.sent is None:
        return "?"
    return str(requests.sent - requests.completed) if requests.sent != requests.completed else ""


def _p50(values: Latency | None) -> str:
    return show_seconds(values.p50 if values is not None else None)


def _p99(cell: CellSummary, values: Latency | None) -> str:
    """Write the p99, marked where the sample cannot bound it from above."""
    if values is None:
        return "-"
    unbounded = values.bounds("p99")[1] is None and not cell.is_as_stated
    return (UNBOUNDED if unbounded else "") + show_seconds(values.p99)


def _reach(cell: CellSummary) -> str:
    """Write the 95 % margin of a steady throughput, upwards: the lower end, which is not below 0,
    may not tell."""
    steady = cell.steady
    high = steady.ci95.get("output_tokens_per_s", (None, None))[1] if steady is not None else None
    if steady is None or high is None or not steady.output_tokens_per_s:
        return " ±?" if cell.verdict.has("interval_unknown") else ""
    reach = 100 * (high / steady.output_tokens_per_s - 1)
    return f" ±{reach:.0f}%" if reach >= 1 else " ±<1%"


def _roofline_shares(cells: Sequence[CellSummary], name: str) -> list[float]:
    """Return the cells' shares of what the hardware allows, where known."""
    shares = (getattr(cell.roofline, name) for cell in cells if cell.roofline is not None)
    return [share for share in shares if share is not None]


def _roofline(cells: Sequence[CellSummary]) -> str:
    """Say what the roofline column is, and how much of bandwidth and arithmetic was used, from
    least to most."""
    known = bool(_roofline_shares(cells, "tpot_ratio"))
    parts = ["roofline: TPOT that the hardware allows / TPOT p50"] if known else []
    for name, of in (("MBU", "memory bandwidth"), ("MFU", "peak FLOP/s")):
        if shares := _roofline_shares(cells, name.lower()):
            least, most = show_share(min(shares)), show_share(max(shares))
            parts.append(f"{name} {least if least == most else f'{least} to {most}'} of {of}")
    return " · ".join(parts)


def _energy(cells: Sequence[CellSummary]) -> str:
    """Write the power that GPUs drew, in the order of the loads."""
    power = [cell.gpu.power_w.mean if cell.gpu and cell.gpu.power_w else None for cell in cells]
    windows = [cell.steady or cell.metrics for cell in cells]
    if all(value is None for value in power):
        return ""
    gpus = max(cell.gpu.gpus if cell.gpu else 0 for cell in cells)
    text = f"{gpus} GPU{'s' * (gpus > 1)} drew {', '.join(map(show_number, power))} W"
    for name in ("output", "total"):
        energy = [getattr(window, f"j_per_{name}_token") for window in windows]
        if any(value is not None for value in energy):
            text += f" · {', '.join(map(show_number, energy))} J per {name} token"
    return text


def _show_trust(cell: CellSummary, findings: list[Finding]) -> str:
    numbers = []
    for finding in cell.verdict.findings:
        if finding.severity != "info":
            if finding not in findings:
                findings.append(finding)
            numbers.append(str(findings.index(finding) + 1))
    if not numbers:
        return "as reported" if cell.is_as_stated else "yes"
    return f"NO ({','.join(numbers)})"


def _finding(finding: Finding) -> str:
    return f"{finding.kind}: {finding.evidence}. {finding.remedy}"


def _definitions(cells: Sequence[CellSummary], simulated: bool) -> list[str]:
    whole = [
        load for cell, load in zip(cells, _loads(cells)[1], strict=True) if cell.steady is None
    ]
    window = "steady window" if len(whole) < len(cells) else "whole cell"
    if 0 < len(whole) < len(cells):
        window += f", at {', '.join(whole)} over the whole cell"
    unbounded = any(
        _p99(cell, values).startswith(UNBOUNDED)
        for cell in cells
        for values in (*_pick_clock(cell.metrics, cells), cell.metrics.tpot_s)
    )
    known = " ± 95%" if any(map(_reach, cells)) else ""
    lines = [
        (
            f"TTFT, E2E from {_since(cells)} · TPOT = (tT−t1)/(T−1) · ITL per token · out"
            f" tok/s{known} over the {window}"
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
        UNBOUNDED_NOTE if unbounded else "",
    ]
    lines += [
        f"{_name_load(cell)}: {finding.evidence}"
        for cell in cells
        for finding in cell.verdict.findings
        if finding.kind == "rate_by_chance"
    ]
    every = [
        finding
        for cell in cells
        for finding in cell.verdict.findings
        if finding.kind == "text_alone"
    ]
    lines += [
        f"{evidence[0].upper()}{evidence[1:]}"
        for evidence in dict.fromkeys(each.evidence for each in every)
    ]
    lines += [
        f"{_name_load(cell)}: {'; '.join(bounds)}" for cell in cells if (bounds := _bounds(cell))
    ]
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
    if cell.server is None or (parts := cell.server.ttft_parts) is None:
        return ""
    known = (
        ("in queues", parts.queue_s),
        ("its prompt", parts.prefill_s),
        ("its cache's way", parts.transfer_s),
    )
    told = ", ".join(
        f"{what} {show_seconds(seconds)}" for what, seconds in known if seconds is not None
    )
    return (
        f"{_name_load(cell)}: of a request's TTFT, on average and by the engine's counters: {told}"
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
    if tool := cells[0].measured_by:
        return f"measured by {tool}"
    capped = any(cell.verdict.has("cap_held_back") for cell in cells)
    held = "; held back by --max-concurrency, not by the client" if capped else ""
    receive, send = (
        _worst(getattr(cell.client, f"{name}_lag_p99_s") for cell in cells)
        for name in ("receive", "send")
    )
    return (
        f"{cells[0].client.clock} clock: receive lag p99 {receive}, sends late p99 {send} (worst"
        f" cell{held})"
    )


def stated_lines(cells: Sequence[CellSummary]) -> Iterator[str]:
    """Yield the numbers that imported files state where those shown are others, with the tool's
    definition."""
    for cell in cells:
        by_definition: dict[str, list[str]] = {}
        for number in cell.stated:
            if label := _STATED_LABELS.get((number.metric, number.statistic)):
                shown = (
                    show_seconds(number.stated)
                    if number.statistic
                    else show_number(number.stated, 4)
                )
                own = f" ({number.definition})" if number.definition else ""
                by_definition.setdefault(own, []).append(f"{label} {shown}")
        if by_definition:
            numbers = ", ".join(f"{', '.join(each)}{own}" for own, each in by_definition.items())
            yield f"{_name_load(cell)}: the file itself reports {numbers}"


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
    return (
        f"{bound.metric} < {show_seconds(bound.limit_s)} {'met' if bound.met else 'MISSED'}"
        f" ({value}){sure}"
    )


def _intervals(cells: Sequence[CellSummary]) -> str:
    """Write the intervals of a prediction, by the table's clock, at the largest load that is
    trusted."""
    cell = max(
        [cell for cell in cells if cell.verdict.trusted] or cells, key=lambda each: each.load.value
    )
    ttft, e2e = _pick_clock(cell.metrics, cells)
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


def _first_token(first: FirstToken | None) -> list[str]:
    """Write what a predicted TTFT consists of, the largest parts by name."""
    if first is None:
        return []
    parts = sorted(first.parts_s.items(), key=lambda part: -part[1])
    shown = [f"{excerpt(name, 40)} {show_seconds(part_s)}" for name, part_s in parts[:_FIRST_PARTS]]
    if rest := parts[_FIRST_PARTS:]:
        shown.append(f"other {show_seconds(sum(part_s for _, part_s in rest))}")
    tokens = f"{first.prompt_tokens:,} token{'s' if first.prompt_tokens != 1 else ''}"
    return [
        f"TTFT of {tokens} alone, {show_seconds(sum(first.parts_s.values()))}: {' · '.join(shown)}"
    ]
