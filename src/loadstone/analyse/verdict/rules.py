"""All rules, applied to one cell: each to the records that can show what it looks for."""

from __future__ import annotations

from collections.abc import Callable

from loadstone.analyse.verdict import answers, client, load, server, steady
from loadstone.analyse.verdict.finding import rule as row_of
from loadstone.analyse.verdict.requests import Cell
from loadstone.core.summary import Finding

_Rule = Callable[[Cell], Finding | None]

_RULES: tuple[_Rule, ...] = (
    load.interrupted, answers.request_errors, server.engine_restarted, server.engines_in_turns,
    server.gpu_throttled, server.gpu_read_seldom, server.server_writes_late, load.sends_late, load.rate_not_reached,
    load.rate_by_chance, load.cap_held_back, load.warmup_leaked, load.warmup_failed, load.ends_late,
    steady.no_steady_state, steady.pace_unknown, steady.wide_interval, steady.interval_unknown,
    steady.phases_locked, answers.short_outputs, answers.other_model, answers.answers_repeated,
    answers.not_streamed, answers.several_answers, steady.few_samples, load.fleet_imbalance, server.preemptions,
    client.client_saturated, client.clocks_apart, client.arrivals_bunched, client.events_together,
    client.gaps_unmeasured, client.tpot_understated, client.ttft_overstated, client.first_event_early,
    client.answers_collected, client.connections_not_kept, client.requests_resent, client.user_clock,
    answers.input_length, answers.prefix_cache_helped, answers.prompts_repeated, answers.empty_answers,
    answers.output_length, answers.finish_reasons, answers.answers_identical, answers.no_usage,
    answers.tokens_and_events, answers.first_event_void, answers.output_unlisted, answers.tokens_hidden,
)  # fmt: skip
_ROWS: dict[_Rule, tuple[str, ...]] = {
    steady.no_steady_state: ("overload", "queue_grows", "not_stationary"),
    client.events_together: ("client_read_late", "events_coalesced"),
    client.gaps_unmeasured: ("client_read_late.other_tool",),
    answers.tokens_and_events: ("tokens_not_streamed", "several_tokens_an_event", "fewer_tokens_than_events"),
}
"""The rows of findings.toml that a rule makes findings of, where it is not the one of its own name."""


def cell_findings(cell: Cell) -> list[Finding]:
    """The findings of one cell, in the order of the rules."""
    findings = []
    for rule in _RULES:
        rows = _ROWS.get(rule, (rule.__name__,))
        holding = {name.partition(".")[0] for name in rows if row_of(name).holds(cell.origin)}
        if holding and (finding := rule(cell)) is not None and finding.kind in holding:
            findings.append(finding)
    return findings
