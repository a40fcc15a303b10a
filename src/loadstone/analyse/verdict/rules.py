"""Applies all rules to one cell."""

from loadstone.analyse.verdict import answers, client, load, pictures, pooling, server, steady
from loadstone.analyse.verdict.finding import can_hold
from loadstone.analyse.verdict.requests import JudgedCell
from loadstone.core.verdict import Finding

_RULES = (
    load.interrupted,
    answers.request_errors,
    server.engine,
    server.counters,
    server.transfers,
    server.drafts,
    server.profiled,
    server.gpu,
    load.sends_late,
    load.rate,
    load.cap_held_back,
    load.warm_up,
    load.ends_late,
    steady.no_steady_state,
    steady.intervals,
    steady.phases_locked,
    steady.kinds_mixed,
    steady.paces_apart,
    answers.short_outputs,
    answers.other_model,
    answers.answer_form,
    steady.few_samples,
    steady.few_rounds,
    load.fleet_imbalance,
    client.events_together,
    client.first_event_early,
    client.answers_collected,
    client.connections,
    client.client_limits,
    answers.input_length,
    pooling.inputs_truncated,
    pooling.vectors,
    pictures.pictures,
    answers.prompts_cut,
    answers.prefix_cache_helped,
    answers.answer_ends,
    answers.repeats,
    answers.token_counts,
    answers.odd_output,
)


def cell_findings(cell: JudgedCell) -> list[Finding]:
    """Find all that there is to know about one cell, in the order of the rules; what its records
    cannot show is left out."""
    findings = [finding for rule in _RULES for finding in rule(cell)]
    return [finding for finding in findings if can_hold(finding, cell.origin)]
