"""Applies all rules to one cell: each to records that can show what it looks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from loadstone.analyse.verdict import answers, client, load, server, steady
from loadstone.analyse.verdict.finding import finding_row
from loadstone.analyse.verdict.requests import JudgedCell
from loadstone.core.summary import Finding

_RULES: dict[Callable[[JudgedCell], Iterator[Finding]], tuple[str, ...]] = {
    load.interrupted: ("interrupted",),
    answers.request_errors: ("request_errors",),
    server.engine: ("engine_restarted", "engines_in_turns", "server_writes_late", "preemptions"),
    server.transfers: ("transfers_differ",),
    server.drafts: ("drafts_forced", "drafts_on_random_text"),
    server.gpu: ("gpu_throttled", "gpu_read_seldom"),
    load.sends_late: ("sends_late",),
    load.rate: ("rate_not_reached", "rate_by_chance"),
    load.cap_held_back: ("cap_held_back",),
    load.warm_up: ("warmup_leaked", "warmup_failed"),
    load.ends_late: ("ends_late",),
    steady.no_steady_state: ("overload", "queue_grows", "not_stationary", "pace_unknown"),
    steady.intervals: ("wide_interval", "interval_unknown"),
    steady.phases_locked: ("phases_locked",),
    steady.kinds_mixed: ("kinds_mixed",),
    answers.short_outputs: ("short_outputs",),
    answers.other_model: ("other_model",),
    answers.answer_form: ("not_streamed", "several_answers"),
    steady.few_samples: ("few_samples",),
    load.fleet_imbalance: ("fleet_imbalance",),
    client.events_together: (
        "arrivals_bunched",
        "client_read_late",
        "client_read_late.other_tool",
        "events_coalesced",
        "tpot_understated",
        "ttft_overstated",
    ),
    client.first_event_early: ("first_event_early",),
    client.answers_collected: ("answers_collected", "tokens_not_streamed"),
    client.connections: ("connections_not_kept", "requests_resent"),
    client.client_limits: ("client_saturated", "clocks_apart", "user_clock"),
    answers.input_length: ("input_length",),
    answers.prefix_cache_helped: ("prefix_cache_helped",),
    answers.answer_ends: ("empty_answers", "output_length", "finish_reasons"),
    answers.repeats: ("prompts_repeated", "answers_repeated", "answers_identical"),
    answers.token_counts: (
        "no_usage",
        "tokens_not_streamed",
        "several_tokens_an_event",
        "fewer_tokens_than_events",
    ),
    answers.odd_output: ("first_event_void", "output_unlisted", "tokens_hidden"),
}
"""The rules, with the rows of findings.toml that each makes findings of."""


def cell_findings(cell: JudgedCell) -> list[Finding]:
    """Find all that there is to know about one cell, in the order of the rules."""
    findings = []
    for rule, rows in _RULES.items():
        holding = {name.partition(".")[0] for name in rows if finding_row(name).holds(cell.origin)}
        if holding:
            findings += [finding for finding in rule(cell) if finding.kind in holding]
    return findings
