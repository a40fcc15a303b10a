"""Can the token counts be believed: the server's count against the events that came, and the prefix cache's part?"""

from __future__ import annotations

import numpy as np

from loadstone.analyse.verdict.facts import Facts, plan_rows
from loadstone.analyse.verdict.finding import Finding
from loadstone.core import Plan
from loadstone.core.summary import ServerFigures
from loadstone.workload.schedule import promised_tokens

CACHED_SHARE = 0.01
"""Cached tokens beyond the plan's promise, as a share of input tokens, from which a run is flattered."""
UNSTATED_SHARE = 0.01
"""Answers without usage, from which percentiles mix two ways of counting."""
REPEATED_SHARE = 0.01
"""Prompts of a file asked once more, from which they are worth a word."""
SYSTEM_TOKENS = 16
"""What a chat template may add for a system message, which is shared too."""
COALESCED_TOKENS = 1.05
"""Tokens per output event from which events are no tokens; events per token, from which tokens are miscounted."""
UNSEEN_TOKENS = 64
"""Tokens per output event from which most of them were never streamed: no engine's stream interval is so long."""


def no_usage(done: Facts, streams: bool) -> Finding | None:
    """`done`: measured requests that completed; the others were cut off before their usage."""
    without = int(np.isin(done.token_source, ["pieces"]).sum())
    if without <= UNSTATED_SHARE * len(done):
        return None
    counted = "each stream event" if streams else "each answer"
    said = "the server reports" if without == len(done) else f"{without} of {len(done)} answers have"
    return Finding(
        "no_usage",
        "warning",
        f"{said} no usage: there, {counted} is counted as one output token",
        "Events can hold several tokens or none; use an engine version that reports usage."
        if streams
        else "Read only E2E and requests per second, or use an engine version that reports usage.",
    )


def tokens_and_events(done: Facts) -> Finding | None:
    """Tokens as the server counts them against events as they came. `done`: measured requests that completed.

    Some servers count the end of the sequence, which has no event: one token more than events says nothing.
    """
    stated = np.isin(done.token_source, ["final usage", "running usage"]) & ~np.isnan(done.output_tokens)
    stated &= done.events > 0
    events, tokens = done.events[stated], done.output_tokens[stated]
    if not len(events):
        return None
    ratio = float(tokens.sum() / events.sum())
    more, fewer = tokens.sum() - events.sum(), events.sum() - tokens.sum()
    if ratio >= UNSEEN_TOKENS and np.median(events) > 1:
        return Finding(
            "tokens_not_streamed",
            "warning",
            f"{ratio:.0f} tokens per stream event, by the server's count",
            "The server counts tokens that it does not stream, such as hidden reasoning: TPOT and ITL are too small.",
        )
    if ratio > COALESCED_TOKENS and more > len(events):
        return Finding(
            "several_tokens_an_event",
            "info",
            f"{ratio:.2f} tokens per stream event",
            "ITL divides each gap between events among the event's tokens. E2E is not affected; TPOT is, only by "
            "tokens that came with the first one.",
        )
    if events.sum() > COALESCED_TOKENS * tokens.sum() and fewer > len(events):
        return Finding(
            "fewer_tokens_than_events",
            "warning",
            f"the server counts {tokens.sum():.0f} output tokens, but {events.sum()} events with output came",
            "Its usage leaves out tokens, or it splits tokens over events: throughput and TPOT follow its count.",
        )
    return None


def prefix_cache_helped(
    facts: Facts, plan: Plan, cell: int, overhead_tokens: int, server: ServerFigures | None
) -> Finding | None:
    """Tokens that came from a prefix cache, beyond what the plan shares on purpose: by the usage of each answer,
    or, where that is silent about it, by the server's own counters over the cell.
    """
    # Texts of a file share what they share, and later turns what was said.
    if plan.prompts:
        return None
    measured = facts.pick(facts.measured)
    cached, inputs = measured.cached_tokens, measured.input_tokens
    shared = _shared(measured, plan, cell, overhead_tokens)
    known = ~np.isnan(cached) & ~np.isnan(inputs) & ~np.isnan(shared)
    if known.any():
        excess = float(np.clip(cached[known] - shared[known], 0, None).sum())
        share, whose = excess / max(1.0, inputs[known].sum()), ""
    else:
        shared = _shared(facts, plan, cell, overhead_tokens)
        if server is None or not server.prefix_hits or not server.prefix_queries or np.isnan(shared).any():
            return None
        share = (server.prefix_hits - float(shared.sum())) / server.prefix_queries
        whose = ", by the server's counters"
    if share <= CACHED_SHARE:
        return None
    return Finding(
        "prefix_cache_helped",
        "warning",
        f"{share:.0%} of input tokens came from the prefix cache beyond what the plan shares{whose}",
        "Restart the engine or switch off its prefix cache; leave --salt at its default.",
    )


def prompts_repeated(measured: Facts, plan: Plan, cell: int) -> Finding | None:
    """Texts of a file that were asked before within the cell: a prefix cache has them. Of sessions, those they begin
    with. A file's own repeats may be what its traffic is like; those of going round a short file are not.
    """
    begins = ~(measured.turn > 0)
    texts = plan.prompt[plan_rows(measured, plan, cell)]
    order = np.argsort(measured.index)
    again = begins & (texts >= 0)
    again[order[np.unique(texts[order], return_index=True)[1]]] = False
    if again.sum() <= REPEATED_SHARE * begins.sum():
        return None
    file = plan.workload.get("prompts")
    round_again = isinstance(file, int) and begins.sum() > file
    cached = float(np.nansum(measured.cached_tokens[again])) / max(1.0, float(np.nansum(measured.input_tokens)))
    helped = f"; {cached:.0%} of the cell's input tokens came from the prefix cache for them" if cached > 0 else ""
    why = f", because the file has only {file}" if round_again else ""
    return Finding(
        "prompts_repeated",
        "warning" if round_again and cached > CACHED_SHARE else "info",
        f"{again.sum()} of {begins.sum()} prompts had been sent before in the cell{why}{helped}",
        "Send no more requests than the file has prompts, or read the results as those of a warm prefix cache.",
    )


def _shared(facts: Facts, plan: Plan, cell: int, overhead_tokens: int) -> np.ndarray:
    """Tokens that any cache may have of each request; NaN for later turns of a session."""
    rows = plan_rows(facts, plan, cell)
    promised = promised_tokens(plan, cell)[rows - plan.rows(cell).start].astype(np.float64)
    # A template, and the word that every text begins with, are in any cache after the first request.
    shared = promised + overhead_tokens + 1 + SYSTEM_TOKENS * (plan.turn[rows] == 0)
    return np.where(promised < 0, np.nan, shared)
