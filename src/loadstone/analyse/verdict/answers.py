"""Are the answers what was asked for, and can their token counts be believed?"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from loadstone.analyse.verdict import thresholds
from loadstone.analyse.verdict.finding import finding
from loadstone.analyse.verdict.requests import Cell, Floats, RequestTable
from loadstone.core.record import Target
from loadstone.core.summary import Finding
from loadstone.core.units import show_seconds
from loadstone.workload.schedule import promised_tokens

_DATE = re.compile(r"-\d{4}[\d-]*$")
"""The release's, which may follow a model's name at OpenAI's."""


def request_errors(cell: Cell) -> Finding | None:
    """What was under way when a cell ended early, or when another tool's time was up, did not fail."""
    counts, measured, ended_early = cell.metrics.requests, cell.measured, cell.interrupted is not None
    cut = cell.origin.cut_at_end and not counts.error and not counts.timeout
    cancelled = 0 if ended_early or cut else counts.cancelled
    failed = counts.error + counts.timeout + cancelled
    if not failed:
        return None
    requests = measured.pick(measured.status != "cancelled") if ended_early else measured
    messages = Counter(error for error in requests.error if error)
    most = "; ".join(f"{count} × {_printable(text)}" for text, count in messages.most_common(2))
    after = int(((measured.status == "error") & (measured.http_status == 200)).sum())
    within = f", {after} of the errors after HTTP 200" if after else ""
    return finding(
        "request_errors",
        f"{failed} of {counts.sent} requests failed ({counts.error} error, {counts.timeout} timeout, "
        f"{cancelled} cancelled){within}" + (f": {most}" if most else ""),
        cause=_cause(requests),
    )


def _cause(requests: RequestTable) -> str:
    """What most errors have in common, as half a sentence; empty where that tells nothing."""
    errors = requests.pick(requests.status == "error")
    if not len(errors):
        return ""
    statuses, counts = np.unique(errors.http_status[~np.isnan(errors.http_status)], return_counts=True)
    if len(counts) and 2 * counts.max() > len(errors) and statuses[counts.argmax()] in thresholds.CAUSES:
        return f"{thresholds.CAUSES[int(statuses[counts.argmax()])]}; "
    cut = errors.pick(np.array(["closed the connection" in (error or "") for error in errors.error], np.bool_))
    silent_s = cut.end_s - np.where(np.isnan(cut.last_s), cut.sent_s, cut.last_s)
    silent_s = silent_s[~np.isnan(silent_s)]
    if len(silent_s) < 2 or 2 * len(silent_s) <= len(errors):
        return ""
    low, middle, high = np.quantile(silent_s, [0.25, 0.5, 0.75])
    if middle < thresholds.CUT_S or high - low > thresholds.CUT_SPREAD * middle:
        return ""
    return f"connections were cut after {show_seconds(float(middle))} of silence, probably a proxy's timeout; "


def _printable(text: str) -> str:
    """Other programs' words, which records of any origin hold, made harmless for terminals."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def not_streamed(cell: Cell) -> Finding | None:
    if cell.streams:
        return None
    return finding("not_streamed", "answers came in one piece: only E2E is measured, not TTFT, TPOT and ITL")


def short_outputs(cell: Cell) -> Finding | None:
    counts = cell.metrics.requests
    if not counts.short:
        return None
    return finding(
        "short_outputs" if cell.choices == 1 else "short_outputs.choices",
        f"{counts.short} of {counts.sent} answers ended before the requested length",
    )


def empty_answers(cell: Cell) -> Finding | None:
    done, plan, least = cell.completed, cell.plan, thresholds.EMPTY_REQUESTED_TOKENS
    silent = int((done.events == 0).sum())
    if silent > thresholds.EMPTY_SHARE * len(done):
        return finding(
            "empty_answers", f"{silent} of {len(done)} complete answers carried no output, only a token count"
        )
    allowed = plan.output_tokens[cell.plan_rows(done)] >= least
    single = int((allowed & (done.output_tokens <= 1)).sum())
    if not cell.streams or plan.exact_output or single <= thresholds.ONE_TOKEN_SHARE * len(done):
        return None
    return finding(
        "empty_answers.one_token",
        f"{single} of {len(done)} answers ended after one token, though {least} or more were allowed",
    )


def several_answers(cell: Cell) -> Finding | None:
    if cell.choices == 1:
        return None
    return finding(
        "several_answers" if cell.streams else "several_answers.whole",
        f"each request returns {cell.choices} answers: its output tokens are those of all of them together",
        choices=cell.choices,
    )


def output_length(cell: Cell) -> Finding | None:
    """Answers longer than allowed. One token more is let pass: some count the end of the sequence."""
    done = cell.completed
    allowed = cell.plan.output_tokens[cell.plan_rows(done)] * cell.choices
    over = (allowed > 0) & (done.output_tokens > allowed + cell.choices)
    if over.sum() <= thresholds.LENGTH_SHARE * len(done):
        return None
    more = float(np.median((done.output_tokens - allowed)[over]))
    return finding(
        "output_length",
        f"{over.sum()} of {len(done)} answers are longer than allowed, by the server's count (median {more:+.0f})",
    )


def input_length(cell: Cell) -> Finding | None:
    """Prompts that are not as long as requested, by the server's count."""
    # What a session's later turns hold depends on the answers, and a template may add more for a system message.
    plan, counted = cell.plan, cell.measured.input_tokens
    rows = cell.plan_rows(cell.measured)
    unsure = (plan.turn[rows] > 0) | ((plan.turn[rows] == 0) & (plan.prefix_tokens[rows] > 0))
    requested = np.where(unsure, -1, plan.input_tokens[rows])
    known = ~np.isnan(counted) & (requested >= 0)
    wrong = known & (counted != requested)
    if not known.any() or wrong.sum() <= thresholds.LENGTH_SHARE * known.sum():
        return None
    off = np.median((counted - requested)[wrong])
    return finding(
        "input_length",
        f"{wrong.sum()} of {known.sum()} prompts are not as long as requested, by the server's count "
        f"(median {off:+.0f})",
    )


def finish_reasons(cell: Cell) -> Finding | None:
    """Several reasons to finish, where lengths were demanded exactly: then none but the length is one."""
    reasons: Counter[str] = Counter()
    for reason, count in Counter(cell.completed.finish_reason).items():
        if reason:
            reasons[_printable(reason)] += count
    if len(reasons) < 2:
        return None
    most = ", ".join(f"{count} × {reason[:40]}" for reason, count in reasons.most_common(4))
    against = cell.plan.exact_output and reasons["stop"] > 0
    return finding(
        "finish_reasons.exact" if against else "finish_reasons", f"answers ended for different reasons: {most}"
    )


def other_model(cell: Cell) -> Finding | None:
    """Answers that name another model than was requested.

    One name may be the same model's: an info, but where the words differ in a path, provider or revision alone.
    Several names, or that of another model which the server lists, are other models.
    """
    target, counts = cell.target, cell.info.models
    if target is None or not counts:
        return None
    names = sorted(counts.items(), key=lambda each: -each[1])
    own, others = _listed_names(target)
    if len(names) == 1 and any(_alike(names[0][0], name) for name in own):
        return None
    doubted = len(names) > 1 or names[0][0] in others - own
    most = ", ".join(f"{count} × {_printable(name)}" for name, count in names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return finding(
        "other_model.several" if doubted else "other_model",
        f"requests asked for {_printable(target.model)}, answers name {most}{more}",
    )


def _listed_names(target: Target) -> tuple[set[str], set[str]]:
    """What the server lists as names of the model that was requested, and of others."""
    own, others = {target.model}, set[str]()
    listed = target.models.get("data") if isinstance(target.models, dict) else None
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict):
            aliases = entry.get("aliases")
            names = [entry.get("id"), entry.get("root"), *(aliases if isinstance(aliases, list) else ())]
            (own if target.model in names else others).update(name for name in names if isinstance(name, str))
    return own, others


def _alike(answered: str, name: str) -> bool:
    """The same, but for a provider or path before it, and a date or revision after it that only one of them has."""
    (bare, *release), (own, *own_release) = _name_parts(answered), _name_parts(name)
    return bare == own and all(a == b or not a or not b for a, b in zip(release, own_release, strict=True))


def _name_parts(text: str) -> tuple[str, str, str]:
    """A model's name, the release's date after it, and the revision, which transformers adds behind an @."""
    name, _, revision = text.casefold().rpartition("/")[2].partition("@")
    bare = _DATE.sub("", name)
    return bare, name[len(bare) :], revision


def answers_identical(cell: Cell) -> Finding | None:
    """Answers that arrive with the same gaps to the microsecond: recorded, or made up, not computed."""
    patterns = cell.completed.pattern[cell.completed.pattern != 0]
    if len(patterns) < thresholds.SAME_REQUESTS:
        return None
    same = int(np.unique(patterns, return_counts=True)[1].max())
    if same < thresholds.SAME_SHARE * len(patterns):
        return None
    return finding(
        "answers_identical", f"{same} of {len(patterns)} answers arrived with the same gaps, to the microsecond"
    )


def answers_repeated(cell: Cell) -> Finding | None:
    """Different prompts that were answered with the same text."""
    prompts, texts = cell.info.prompts_compared, cell.info.texts_compared
    if prompts is None or texts is None or prompts < thresholds.SAME_REQUESTS:
        return None
    if prompts - texts < thresholds.SAME_TEXTS_SHARE * prompts:
        return None
    return finding(
        "answers_repeated", f"the first {prompts} different prompts were answered with {texts} different texts"
    )


# --- token counts ---------------------------------------------------------------------------------------------------


def no_usage(cell: Cell) -> Finding | None:
    """Of completed requests; the others were cut off before their usage."""
    done = cell.completed
    without = int(np.isin(done.token_source, ["pieces"]).sum())
    if without <= thresholds.NO_USAGE_SHARE * len(done):
        return None
    counted = "each stream event" if cell.streams else "each answer"
    who = "the server reports" if without == len(done) else f"{without} of {len(done)} answers have"
    return finding(
        "no_usage" if cell.streams else "no_usage.whole",
        f"{who} no usage: there, {counted} is counted as one output token",
    )


def tokens_and_events(cell: Cell) -> Finding | None:
    """Tokens as the server counts them against events as they came.

    Some servers count the end of the sequence, which has no event: one token more than events says nothing.
    """
    done = cell.completed
    reported = np.isin(done.token_source, ["final usage", "running usage"]) & ~np.isnan(done.output_tokens)
    reported &= done.events > 0
    events, tokens = int(done.events[reported].sum()), float(done.output_tokens[reported].sum())
    requests = int(reported.sum())
    if not cell.streams or not requests:
        return None
    if cell.target is not None and cell.target.endpoint == "offline":
        return None  # of a batch's answers the times of the first and the last token are known, and no events
    ratio = tokens / events
    if ratio >= thresholds.UNSEEN_TOKENS and np.median(done.events[reported]) > 1:
        return finding("tokens_not_streamed", f"{ratio:.0f} tokens per stream event, by the server's count")
    if ratio > thresholds.COALESCED_TOKENS and tokens - events > requests:
        return finding("several_tokens_an_event", f"{ratio:.2f} tokens per stream event")
    if events > thresholds.COALESCED_TOKENS * tokens and events - tokens > requests:
        return finding(
            "fewer_tokens_than_events",
            f"the server counts {tokens:.0f} output tokens, but {events} events with output came",
        )
    return None


def first_event_void(cell: Cell) -> Finding | None:
    if not (answers := cell.info.void_firsts):
        return None
    return finding("first_event_void", f"the first event of {answers} of {len(cell.requests)} answers was no token")


def output_unlisted(cell: Cell) -> Finding | None:
    if not (fields := cell.info.unlisted):
        return None
    most = ", ".join(f"delta.{_printable(name)} ({count} answers)" for name, count in list(fields.items())[:4])
    evidence, done = f"output came in fields that are not the specification's: {most}", cell.completed
    if 2 * (done.events > done.output_tokens).sum() <= len(done):
        return finding("output_unlisted", evidence)
    return finding("output_unlisted.uncounted", f"{evidence}; the server's counts leave out some of it")


def tokens_hidden(cell: Cell) -> Finding | None:
    """By each answer's count of reasoning tokens, and by whether reasoning came."""
    if not (hidden := cell.info.hidden_tokens):
        return None
    if hidden > 0:
        return finding("tokens_hidden", f"the server counts {hidden} tokens of reasoning that it did not send")
    return finding("tokens_hidden.beside", f"the server sent {-hidden} tokens of reasoning that its count leaves out")


def prefix_cache_helped(cell: Cell) -> Finding | None:
    """Tokens that came from a prefix cache, beyond what the plan shares on purpose: by the usage of each answer,
    or, where that is silent about it, by the server's own counters over the cell.
    """
    # Texts of a file share what they share, and later turns what was said; the other answers to a prompt find it.
    if cell.plan.prompts or cell.choices != 1:
        return None
    server = cell.server
    cached, inputs = cell.measured.cached_tokens, cell.measured.input_tokens
    shared = _shared_tokens(cell, cell.measured)
    known = ~np.isnan(cached) & ~np.isnan(inputs) & ~np.isnan(shared)
    if known.any():
        excess = float(np.clip(cached[known] - shared[known], 0, None).sum())
        share, whose = excess / max(1.0, inputs[known].sum()), ""
    else:
        shared = _shared_tokens(cell, cell.requests)
        if server is None or not server.prefix_hits or not server.prefix_queries or np.isnan(shared).any():
            return None
        share = (server.prefix_hits - float(shared.sum())) / server.prefix_queries
        whose = ", by the server's counters"
    if share <= thresholds.CACHED_SHARE:
        return None
    return finding(
        "prefix_cache_helped",
        f"{share:.0%} of input tokens came from the prefix cache beyond what the plan shares{whose}",
    )


def _shared_tokens(cell: Cell, requests: RequestTable) -> Floats:
    """Tokens that any cache may have of each request; NaN for later turns of a session."""
    rows = cell.plan_rows(requests)
    promised = promised_tokens(cell.plan, cell.number)[rows - cell.plan.rows(cell.number).start].astype(np.float64)
    # A template, and the word that every text begins with, are in any cache after the first request.
    template = cell.target.overhead_tokens if cell.target else 0
    shared = promised + template + 1 + thresholds.SYSTEM_TOKENS * (cell.plan.turn[rows] == 0)
    return np.where(promised < 0, np.nan, shared)


def prompts_repeated(cell: Cell) -> Finding | None:
    """Texts of a file that were asked before within the cell: a prefix cache has them. Of sessions, those they begin
    with. A file's own repeats may be what its traffic is like; those of going round a short file are not.
    """
    measured = cell.measured
    begins = ~(measured.turn > 0)
    texts = cell.plan.prompt[cell.plan_rows(measured)]
    order = np.argsort(measured.index)
    again = begins & (texts >= 0)
    again[order[np.unique(texts[order], return_index=True)[1]]] = False
    if again.sum() <= thresholds.REPEATED_SHARE * begins.sum():
        return None
    prompts = cell.plan.workload.get("prompts")
    round_again = isinstance(prompts, int) and begins.sum() > prompts
    cached = float(np.nansum(measured.cached_tokens[again])) / max(1.0, float(np.nansum(measured.input_tokens)))
    helped = f"; {cached:.0%} of the cell's input tokens came from the prefix cache for them" if cached > 0 else ""
    why = f", because the file has only {prompts}" if round_again else ""
    return finding(
        "prompts_repeated.cached" if round_again and cached > thresholds.CACHED_SHARE else "prompts_repeated",
        f"{again.sum()} of {begins.sum()} prompts had been sent before in the cell{why}{helped}",
    )
