"""Rules on answers: are they what was asked for, and can their token counts be believed?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from loadstone.analyse.verdict import thresholds
from loadstone.analyse.verdict.finding import finding
from loadstone.analyse.verdict.requests import Floats, JudgedCell, RequestTable
from loadstone.core.record import Target
from loadstone.core.summary import Finding
from loadstone.core.units import show_seconds
from loadstone.workload.schedule import promised_tokens

_DATE = re.compile(r"-\d{4}[\d-]*$")
"""A release's date, which may follow a model's name in OpenAI's answers."""


def request_errors(cell: JudgedCell) -> Iterator[Finding]:
    """Count failed requests. Those under way when a cell ended early, or another tool's time was
    up, did not fail."""
    counts, measured, ended_early = (
        cell.numbers.requests,
        cell.measured,
        cell.interrupted is not None,
    )
    cut = cell.origin.cut_at_end and not counts.error and not counts.timeout
    cancelled = 0 if ended_early or cut else counts.cancelled or 0
    failed = counts.failed + cancelled
    if not failed:
        return
    requests = measured.pick(measured.status != "cancelled") if ended_early else measured
    messages = Counter(error for error in requests.error if error)
    most = "; ".join(f"{count} × {_printable(text)}" for text, count in messages.most_common(2))
    after = int(((measured.status == "error") & (measured.http_status == 200)).sum())
    within = f", {after} of the errors after HTTP 200" if after else ""
    yield finding(
        "request_errors",
        f"{failed} of {counts.sent} requests failed ({counts.error} error, {counts.timeout}"
        f" timeout, {cancelled} cancelled){within}" + (f": {most}" if most else ""),
        cause=_common_cause(requests),
    )


def _common_cause(requests: RequestTable) -> str:
    """Name what most errors have in common, as half a sentence; empty where they have nothing."""
    errors = requests.pick(requests.status == "error")
    if not len(errors):
        return ""
    statuses, counts = np.unique(
        errors.http_status[~np.isnan(errors.http_status)], return_counts=True
    )
    if (
        len(counts)
        and 2 * counts.max() > len(errors)
        and statuses[counts.argmax()] in thresholds.CAUSES
    ):
        return f"{thresholds.CAUSES[int(statuses[counts.argmax()])]}; "
    cut = errors.pick(
        np.array(["closed the connection" in (error or "") for error in errors.error], np.bool_)
    )
    silent_s = cut.end_s - np.where(np.isnan(cut.last_s), cut.sent_s, cut.last_s)
    silent_s = silent_s[~np.isnan(silent_s)]
    if len(silent_s) < 2 or 2 * len(silent_s) <= len(errors):
        return ""
    low, middle, high = np.quantile(silent_s, [0.25, 0.5, 0.75])
    if middle < thresholds.CUT_S or high - low > thresholds.CUT_SPREAD * middle:
        return ""
    return (
        f"connections were cut after {show_seconds(float(middle))} of silence, probably a proxy's"
        " timeout; "
    )


def _printable(text: str) -> str:
    """Make other programs' words, which records of any origin hold, harmless for terminals."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def answer_form(cell: JudgedCell) -> Iterator[Finding]:
    """Tell of answers that came in one piece, and of several answers to each request."""
    if not cell.streams:
        yield finding(
            "not_streamed",
            "answers came in one piece: only E2E is measured, not TTFT, TPOT and ITL",
        )
    if cell.choices != 1:
        yield finding(
            "several_answers" if cell.streams else "several_answers.whole",
            f"each request returns {cell.choices} answers: its output tokens are those of all of"
            " them together",
            choices=cell.choices,
        )


def answer_ends(cell: JudgedCell) -> Iterator[Finding]:
    """Find answers that are empty, longer than allowed, or ended for different reasons."""
    yield from _empty_answers(cell)
    yield from _long_answers(cell)
    yield from _finish_reasons(cell)


def short_outputs(cell: JudgedCell) -> Iterator[Finding]:
    counts = cell.numbers.requests
    if counts.short:
        yield finding(
            "short_outputs" if cell.choices == 1 else "short_outputs.choices",
            f"{counts.short} of {counts.sent} answers ended before the requested length",
        )


def _empty_answers(cell: JudgedCell) -> Iterator[Finding]:
    done, plan, least = cell.completed, cell.plan, thresholds.EMPTY_REQUESTED_TOKENS
    silent = int((done.events == 0).sum())
    if silent > thresholds.EMPTY_SHARE * len(done):
        yield finding(
            "empty_answers",
            f"{silent} of {len(done)} complete answers carried no output, only a token count",
        )
        return
    allowed = plan.output_tokens[cell.plan_rows(done)] >= least
    single = int((allowed & (done.output_tokens <= 1)).sum())
    if cell.streams and not plan.exact_output and single > thresholds.ONE_TOKEN_SHARE * len(done):
        yield finding(
            "empty_answers.one_token",
            f"{single} of {len(done)} answers ended after one token, though {least} or more were"
            " allowed",
        )


def _long_answers(cell: JudgedCell) -> Iterator[Finding]:
    """Find answers longer than allowed. One token more is let pass: some count the end of the
    sequence."""
    done = cell.completed
    allowed = cell.plan.output_tokens[cell.plan_rows(done)] * cell.choices
    over = (allowed > 0) & (done.output_tokens > allowed + cell.choices)
    if over.sum() <= thresholds.LENGTH_SHARE * len(done):
        return
    more = float(np.median((done.output_tokens - allowed)[over]))
    yield finding(
        "output_length",
        f"{over.sum()} of {len(done)} answers are longer than allowed, by the server's count"
        f" (median {more:+.0f})",
    )


def input_length(cell: JudgedCell) -> Iterator[Finding]:
    """Find prompts that are not as long as requested, by the server's count."""
    # Later turns of a session depend on the answers, and a template may add more for a system
    # message.
    plan, counted = cell.plan, cell.measured.input_tokens
    rows = cell.plan_rows(cell.measured)
    unsure = (plan.turn[rows] > 0) | ((plan.turn[rows] == 0) & (plan.prefix_tokens[rows] > 0))
    requested = np.where(unsure, -1, plan.input_tokens[rows])
    known = ~np.isnan(counted) & (requested >= 0)
    wrong = known & (counted != requested)
    if not known.any() or wrong.sum() <= thresholds.LENGTH_SHARE * known.sum():
        return
    off = np.median((counted - requested)[wrong])
    yield finding(
        "input_length",
        f"{wrong.sum()} of {known.sum()} prompts are not as long as requested, by the server's"
        f" count (median {off:+.0f})",
    )


def _finish_reasons(cell: JudgedCell) -> Iterator[Finding]:
    """List several reasons to finish. Where lengths were demanded exactly, the length should be the
    only one."""
    reasons: Counter[str] = Counter()
    for reason, count in Counter(cell.completed.finish_reason).items():
        if reason:
            reasons[_printable(reason)] += count
    if len(reasons) < 2:
        return
    most = ", ".join(f"{count} × {reason[:40]}" for reason, count in reasons.most_common(4))
    against = cell.plan.exact_output and reasons["stop"] > 0
    yield finding(
        "finish_reasons.exact" if against else "finish_reasons",
        f"answers ended for different reasons: {most}",
    )


def other_model(cell: JudgedCell) -> Iterator[Finding]:
    """Find answers that name another model than was requested.

    One other name may be of the same model, and is an info; it is nothing if only a path, provider
    or revision differs. Several names, or that of another model which the server lists, are other
    models.
    """
    target, counts = cell.target, cell.info.models
    if target is None or not counts:
        return
    names = sorted(counts.items(), key=lambda each: -each[1])
    own, others = _listed_names(target)
    if len(names) == 1 and any(_same_name(names[0][0], name) for name in own):
        return
    doubted = len(names) > 1 or names[0][0] in others - own
    most = ", ".join(f"{count} × {_printable(name)}" for name, count in names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    yield finding(
        "other_model.several" if doubted else "other_model",
        f"requests asked for {_printable(target.model)}, answers name {most}{more}",
    )


def _listed_names(target: Target) -> tuple[set[str], set[str]]:
    """List the server's names of the model that was requested, and of others."""
    own, others = {target.model}, set[str]()
    listed = target.models.get("data") if isinstance(target.models, dict) else None
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict):
            aliases = entry.get("aliases")
            names = [
                entry.get("id"),
                entry.get("root"),
                *(aliases if isinstance(aliases, list) else ()),
            ]
            (own if target.model in names else others).update(
                name for name in names if isinstance(name, str)
            )
    return own, others


def _same_name(answered: str, name: str) -> bool:
    """Compare two names, but for a provider or path before them, and a date or revision that only
    one of them has."""
    (bare, *release), (own, *own_release) = _name_parts(answered), _name_parts(name)
    return bare == own and all(
        a == b or not a or not b for a, b in zip(release, own_release, strict=True)
    )


def _name_parts(text: str) -> tuple[str, str, str]:
    """Split a model's name, the release's date after it, and the revision, which transformers adds
    behind an @."""
    name, _, revision = text.casefold().rpartition("/")[2].partition("@")
    bare = _DATE.sub("", name)
    return bare, name[len(bare) :], revision


# --- token counts ---------------------------------------------------------------------------------


def token_counts(cell: JudgedCell) -> Iterator[Finding]:
    """Compare tokens as the server counts them with events as they came.

    Some servers count the end of the sequence, which has no event: one token more than events says
    nothing.
    """
    done = cell.completed  # the others were cut off before their usage
    without = int(np.isin(done.token_source, ["pieces"]).sum())
    if without > thresholds.NO_USAGE_SHARE * len(done):
        counted = "each stream event" if cell.streams else "each answer"
        who = (
            "the server reports"
            if without == len(done)
            else f"{without} of {len(done)} answers have"
        )
        yield finding(
            "no_usage" if cell.streams else "no_usage.whole",
            f"{who} no usage: there, {counted} is counted as one output token",
        )
    reported = np.isin(done.token_source, ["final usage", "running usage"]) & ~np.isnan(
        done.output_tokens
    )
    reported &= done.events > 0
    events, tokens = int(done.events[reported].sum()), float(done.output_tokens[reported].sum())
    requests = int(reported.sum())
    # Of a batch's answers the times of the first and the last token are known, and no events.
    offline = cell.target is not None and cell.target.endpoint == "offline"
    if not cell.streams or not requests or offline:
        return
    ratio = tokens / events
    if ratio >= thresholds.UNSEEN_TOKENS and np.median(done.events[reported]) > 1:
        yield finding(
            "tokens_not_streamed", f"{ratio:.0f} tokens per stream event, by the server's count"
        )
    elif ratio > thresholds.COALESCED_TOKENS and tokens - events > requests:
        yield finding("several_tokens_an_event", f"{ratio:.2f} tokens per stream event")
    elif events > thresholds.COALESCED_TOKENS * tokens and events - tokens > requests:
        yield finding(
            "fewer_tokens_than_events",
            f"the server counts {tokens:.0f} output tokens, but {events} events with output came",
        )


def odd_output(cell: JudgedCell) -> Iterator[Finding]:
    """Tell what the client noticed of answers: first events without a token, unlisted fields,
    hidden reasoning.

    Hidden tokens are known by each answer's count of reasoning tokens, and by whether reasoning
    came.
    """
    info, done = cell.info, cell.completed
    if info.void_firsts:
        yield finding(
            "first_event_void",
            f"the first event of {info.void_firsts} of {len(cell.requests)} answers was no token",
        )
    if info.unlisted:
        first = list(info.unlisted.items())[:4]
        most = ", ".join(f"delta.{_printable(name)} ({count} answers)" for name, count in first)
        evidence = f"output came in fields that are not the specification's: {most}"
        if 2 * (done.events > done.output_tokens).sum() <= len(done):
            yield finding("output_unlisted", evidence)
        else:
            yield finding(
                "output_unlisted.uncounted", f"{evidence}; the server's counts leave out some of it"
            )
    hidden = info.hidden_tokens or 0
    if hidden > 0:
        yield finding(
            "tokens_hidden", f"the server counts {hidden} tokens of reasoning that it did not send"
        )
    elif hidden < 0:
        yield finding(
            "tokens_hidden.beside",
            f"the server sent {-hidden} tokens of reasoning that its count leaves out",
        )


# --- caches and repeats ---------------------------------------------------------------------------


def prefix_cache_helped(cell: JudgedCell) -> Iterator[Finding]:
    """Find tokens that came from a prefix cache, beyond those that the plan shares on purpose: by
    the usage of each answer, or, where that is silent about it, by the server's own counters over
    the cell.
    """
    # Texts of a file may share anything, later turns share what was said, and other answers share
    # the prompt.
    has_messages = cell.plan.blocks is not None and not cell.plan.blocks.tokens
    if cell.plan.has_texts or has_messages or cell.choices != 1:
        return
    server = cell.server
    cached, inputs = cell.measured.cached_tokens, cell.measured.input_tokens
    shared = _shared_tokens(cell, cell.measured)
    known = ~np.isnan(cached) & ~np.isnan(inputs) & ~np.isnan(shared)
    if known.any():
        excess = float(np.clip(cached[known] - shared[known], 0, None).sum())
        share, whose = excess / max(1.0, inputs[known].sum()), ""
    else:
        shared = _shared_tokens(cell, cell.requests)
        if (
            server is None
            or not server.prefix_hits
            or not server.prefix_queries
            or np.isnan(shared).any()
        ):
            return
        if cell.has_pools:  # both look for a prompt
            return
        share = (server.prefix_hits - float(shared.sum())) / server.prefix_queries
        whose = ", by the server's counters"
    if share <= thresholds.CACHED_SHARE:
        return
    yield finding(
        "prefix_cache_helped",
        f"{share:.0%} of input tokens came from the prefix cache beyond what the plan"
        f" shares{whose}",
    )


def _shared_tokens(cell: JudgedCell, requests: RequestTable) -> Floats:
    """Count the tokens that any cache may have of each request; NaN for later turns of a
    session."""
    rows = cell.plan_rows(requests)
    promised = promised_tokens(cell.plan, cell.number)[
        rows - cell.plan.rows(cell.number).start
    ].astype(np.float64)
    # A template, and the word that every text begins with, are in any cache after the first
    # request.
    template = cell.target.overhead_tokens if cell.target else 0
    shared = promised + template + 1 + thresholds.SYSTEM_TOKENS * (cell.plan.turn[rows] == 0)
    return np.where(promised < 0, np.nan, shared)


def repeats(cell: JudgedCell) -> Iterator[Finding]:
    """Find answers and prompts that repeat: a prompt of a file sent again, different prompts with
    the same answer, answers in the same rhythm to the microsecond, which were recorded or made up,
    not computed.
    """
    yield from _repeated_prompts(cell)
    prompts, texts = cell.info.prompts_compared, cell.info.texts_compared
    fewer = prompts - texts if prompts is not None and texts is not None else 0
    if (
        prompts
        and prompts >= thresholds.SAME_REQUESTS
        and fewer >= thresholds.SAME_TEXTS_SHARE * prompts
    ):
        yield finding(
            "answers_repeated",
            f"the first {prompts} different prompts were answered with {texts} different texts",
        )
    patterns = cell.completed.pattern[cell.completed.pattern != 0]
    if len(patterns) >= thresholds.SAME_REQUESTS:
        same = int(np.unique(patterns, return_counts=True)[1].max())
        if same >= thresholds.SAME_SHARE * len(patterns):
            yield finding(
                "answers_identical",
                f"{same} of {len(patterns)} answers arrived with the same gaps, to the microsecond",
            )


def _repeated_prompts(cell: JudgedCell) -> Iterator[Finding]:
    """Find texts of a file that were asked before within the cell, so that a prefix cache has them;
    of sessions, those that they begin with. A file's own repeats may be natural; those of going
    round a short file are not.
    """
    measured = cell.measured
    begins = ~(measured.turn > 0)
    texts = cell.plan.prompt[cell.plan_rows(measured)]
    order = np.argsort(measured.index)
    again = begins & (texts >= 0)
    again[order[np.unique(texts[order], return_index=True)[1]]] = False
    if again.sum() <= thresholds.REPEATED_SHARE * begins.sum():
        return
    prompts = cell.plan.workload.get("prompts")
    round_again = isinstance(prompts, int) and begins.sum() > prompts
    cached = float(np.nansum(measured.cached_tokens[again])) / max(
        1.0, float(np.nansum(measured.input_tokens))
    )
    helped = (
        f"; {cached:.0%} of the cell's input tokens came from the prefix cache for them"
        if cached > 0
        else ""
    )
    why = f", because the file has only {prompts}" if round_again else ""
    yield finding(
        (
            "prompts_repeated.cached"
            if round_again and cached > thresholds.CACHED_SHARE
            else "prompts_repeated"
        ),
        f"{again.sum()} of {begins.sum()} prompts had been sent before in the cell{why}{helped}",
    )
