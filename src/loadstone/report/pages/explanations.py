"""The lines that say what a run's numbers mean, and what else is known of each cell."""

from collections.abc import Iterable, Iterator, Sequence

from loadstone.core.bounds import SloBound
from loadstone.core.electricity import BOARDS
from loadstone.core.machine_figures import PredictedPower
from loadstone.core.metrics import Latency
from loadstone.core.settings import FirstToken
from loadstone.core.summary import CellSummary
from loadstone.core.text import excerpt
from loadstone.core.units import show_gpus, show_number, show_seconds, show_share
from loadstone.report.pages.cell_words import (
    has_unbounded,
    head_loads,
    is_intended,
    name_cell,
    pick_clock,
    roofline_shares,
)
from loadstone.report.pages.columns import UNBOUNDED_NOTE, show_margin

_STATED_LABELS = {("output_tokens_per_s", None): "out tok/s", ("itl_s", "p99"): "ITL p99"} | {
    (f"{name}_s", statistic): f"{name.upper()} {statistic}"
    for name in ("ttft", "tpot", "e2e")
    for statistic in ("p50", "p99")
}
"""Of what an imported file states what the table has too."""
_FIRST_PARTS = 5
"""Of a predicted TTFT, by name."""


def say_text_alone(cells: Sequence[CellSummary]) -> list[str]:
    """Say that prompts of a model that sees were text alone."""
    found = (finding for cell in cells for finding in cell.verdict.findings)
    texts = dict.fromkeys(finding.evidence for finding in found if finding.kind == "text_alone")
    return [f"{text[0].upper()}{text[1:]}" for text in texts]


def _roofline(cells: Sequence[CellSummary]) -> str:
    """Say what the roofline column is, and how much of bandwidth and arithmetic was used, from
    least to most."""
    ratios = roofline_shares(cells, "tpot_ratio")
    parts = ["roofline: TPOT that the hardware allows / TPOT p50"] if ratios else []
    for name, resource in (("MBU", "memory bandwidth"), ("MFU", "peak FLOP/s")):
        shares = roofline_shares(cells, name.lower())
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


def define(cells: Sequence[CellSummary], simulated: bool) -> list[str]:
    whole = [
        load for cell, load in zip(cells, head_loads(cells)[1], strict=True) if cell.steady is None
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
        show_intervals(cells) if simulated and not cells[0].measured_by else _measured_by(cells),
        *stated_lines(cells),
        *map(_show_cached, cells),
        *map(_show_thinking, cells),
        *map(show_drafts, cells),
        *map(_show_pools, cells),
        *map(_show_ttft_parts, cells),
        _roofline(cells),
        _energy(cells),
        *dict.fromkeys(cell.client.selftest or "" for cell in cells),
        UNBOUNDED_NOTE if has_unbounded(cells) else "",
    ]
    found = [(cell, finding) for cell in cells for finding in cell.verdict.findings]
    lines += [
        f"{name_cell(cell)}: {finding.evidence}"
        for cell, finding in found
        if finding.kind == "rate_by_chance"
    ]
    lines += say_text_alone(cells)
    lines += [f"{name_cell(cell)}: {'; '.join(_bounds(cell))}" for cell in cells if _bounds(cell)]
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
        f"{name_cell(cell)}: the plan shares"
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
    return f"{name_cell(cell)}: {share}; {times}{pace}"


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
        f"{name_cell(cell)}: drafts gave {', '.join(parts)}"
        f" ({whose.get(drafts.source, 'imported')}{forced})"
    )


def _show_pools(cell: CellSummary) -> str:
    """Say what each pool gave, and a GPU of it."""
    parts = [
        f"{pool.role} {show_number(pool.tokens_per_s)} tok/s on {pool.gpus}×{pool.gpu or 'GPU'} "
        f"({show_number(pool.tokens_per_s_per_gpu)} a GPU"
        f"{'' if pool.j_per_token is None else f', {show_number(pool.j_per_token)} J a token'})"
        for pool in cell.pools
        if pool.role != "encode"
    ]
    return f"{name_cell(cell)}: input by {parts[0]}, output by {parts[-1]}" if parts else ""


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
        f"{name_cell(cell)}: of a request's TTFT, on average and by the engine's counters: {times}"
    )


def _since(cells: Sequence[CellSummary]) -> str:
    if cells[0].load.is_closed:
        return "sending (closed loop)"
    return (
        "the intended time (open loop)"
        if is_intended(cells)
        else "sending (open loop, intended times unknown)"
    )


def _measured_by(cells: Sequence[CellSummary]) -> str:
    """Name the client that measured; of our own, say how late it was at the most."""
    if cells[0].measured_by:
        return f"measured by {cells[0].measured_by}"
    capped = any(cell.verdict.has("cap_held_back") for cell in cells)
    held = "; held back by --max-concurrency, not by the client" if capped else ""
    receive, send = worst_lags(cells)
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
            yield f"{name_cell(cell)}: the file itself reports {numbers}"


def worst_lags(cells: Sequence[CellSummary]) -> tuple[str, str]:
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


def show_intervals(cells: Sequence[CellSummary]) -> str:
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
        f"simulated; 80% intervals at {name_cell(cell)}: " + ", ".join(shown)
        if shown
        else "simulated"
    )


def show_first_token(first: FirstToken | None) -> list[str]:
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
