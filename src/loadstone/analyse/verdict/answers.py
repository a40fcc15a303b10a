"""Rules on answers: are they what was asked for, and can their token counts be believed?"""

import re
from collections import Counter
from typing import Any

import numpy as np

from loadstone.analyse.verdict import thresholds
from loadstone.analyse.verdict.finding import Findings, finding
from loadstone.analyse.verdict.pooling import count_planned
from loadstone.analyse.verdict.requests import JudgedCell, RequestTable
from loadstone.core.arrays import (
    drop_missing,
)
from loadstone.core.record import STOP_REASONS, Target
from loadstone.core.vectors import Bools, Floats
from loadstone.core.verdict import Finding
from loadstone.workload.prompts import count_characters
from loadstone.workload.schedule import promised_tokens

_DATE = re.compile(r"-\d{4}[\d-]*$")
"""A release's date, which may follow a model's name in OpenAI's answers."""


def request_errors(cell: JudgedCell) -> Findings:
    """Count failed requests. Those under way when a cell ended early, or another tool's time was
    up, did not fail."""
    counts, requests = cell.numbers.requests, cell.measured
    ended_early = cell.interrupted is not None
    cut = cell.origin.cut_at_end and not counts.error and not counts.timeout
    cancelled = 0 if ended_early or cut else counts.cancelled or 0
    failed = counts.failed + cancelled
    if not failed:
        return
    after_ok = int(((requests.status == "error") & (requests.http_status == 200)).sum())
    if ended_early:
        requests = requests.pick(requests.status != "cancelled")
    messages = Counter(error for error in requests.error if error)
    yield finding(
        "request_errors",
        failed=failed,
        requests=counts.sent,
        errors=counts.error,
        timeouts=counts.timeout,
        cancelled=cancelled,
        after_ok=after_ok or None,
        messages=_most_common("text", messages, 2),
        **_common_cause(requests),
    )


def _common_cause(requests: RequestTable) -> dict[str, Any]:
    """Name what most errors have in common, as values of the finding; none where they have
    nothing."""
    errors = requests.pick(requests.status == "error")
    for pattern, cause in thresholds.REFUSALS.items():
        if 2 * sum(bool(re.search(pattern, text or "")) for text in errors.error) > len(errors):
            return {"cause": cause}
    statuses = Counter(drop_missing(errors.http_status).tolist())
    for status, count in statuses.most_common(1):
        if 2 * count > len(errors) and status in thresholds.CAUSES:
            return {"cause": thresholds.CAUSES[int(status)]}
    was_cut = ["closed the connection" in (error or "") for error in errors.error]
    cut = errors.pick(np.array(was_cut, np.bool_))
    silent_s = drop_missing(cut.end_s - np.where(np.isnan(cut.last_s), cut.sent_s, cut.last_s))
    if len(silent_s) < 2 or 2 * len(silent_s) <= len(errors):
        return {}
    low, middle, high = np.quantile(silent_s, [0.25, 0.5, 0.75])
    if middle < thresholds.CUT_S or high - low > thresholds.CUT_SPREAD * middle:
        return {}
    return {"silent_s": float(middle)}


def _most_common(name: str, counts: Counter[str], limit: int) -> list[dict[str, Any]]:
    """List the most frequent of other programs' words, each with its count."""
    return [{"count": n, name: _printable(text)} for text, n in counts.most_common(limit)]


def _printable(text: str) -> str:
    """Make other programs' words, which records of any origin hold, harmless for terminals."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def answer_form(cell: JudgedCell) -> Findings:
    """Tell of answers that came in one piece, and of several answers to each request."""
    if not cell.streams and cell.plan.inputs is None:
        yield finding("not_streamed")
    if cell.choices != 1:
        name = "several_answers" if cell.streams else "several_answers.whole"
        yield finding(name, choices=cell.choices)


def answer_ends(cell: JudgedCell) -> Findings:
    """Find answers that are empty, longer than allowed, or ended for different reasons."""
    yield from _empty_answers(cell)
    yield from _long_answers(cell)
    yield from _finish_reasons(cell)


def short_outputs(cell: JudgedCell) -> Findings:
    counts = cell.numbers.requests
    if counts.short:
        name = "short_outputs" if cell.choices == 1 else "short_outputs.choices"
        yield finding(name, short=counts.short, requests=counts.sent)


def _empty_answers(cell: JudgedCell) -> Findings:
    done, plan, least = cell.completed, cell.plan, thresholds.EMPTY_REQUESTED_TOKENS
    silent = int((done.events == 0).sum())
    if silent > thresholds.EMPTY_SHARE * len(done):
        yield finding("empty_answers", silent=silent, answers=len(done))
        return
    allowed = plan.output_tokens[cell.plan_rows(done)] >= least
    single = int((allowed & (done.output_tokens <= 1)).sum())
    if cell.streams and not plan.exact_output and single > thresholds.ONE_TOKEN_SHARE * len(done):
        yield finding(
            "empty_answers.one_token", single=single, answers=len(done), allowed_tokens=least
        )


def _long_answers(cell: JudgedCell) -> Findings:
    """Find answers longer than allowed. One token more is let pass: some count the end of the
    sequence."""
    done = cell.completed
    allowed = cell.plan.output_tokens[cell.plan_rows(done)] * cell.choices
    longer = (allowed > 0) & (done.output_tokens > allowed + cell.choices)
    if longer.sum() > thresholds.LENGTH_SHARE * len(done):
        excess = np.median((done.output_tokens - allowed)[longer])
        yield finding("output_length", longer=longer.sum(), answers=len(done), excess_tokens=excess)


def input_length(cell: JudgedCell) -> Findings:
    """Find prompts that are not as long as requested, by the server's count."""
    # Later turns of a session depend on the answers, and a template may add more for a system
    # message.
    plan, counted = cell.plan, cell.measured.input_tokens
    rows = cell.plan_rows(cell.measured)
    unsure = (plan.turn[rows] > 0) | ((plan.turn[rows] == 0) & (plan.prefix_tokens[rows] > 0))
    if plan.pictures is not None:
        unsure |= plan.pictures.count[rows] > 0
    requested = np.where(unsure, -1, plan.input_tokens[rows])
    if plan.inputs is not None:
        # Fewer tokens are a finding of their own.
        planned = count_planned(cell, cell.measured)
        requested = np.where(counted < planned, -1, planned)
    compared = ~np.isnan(counted) & (requested >= 0)
    wrong = compared & (counted != requested)
    if wrong.sum() > thresholds.LENGTH_SHARE * compared.sum():
        excess = np.median((counted - requested)[wrong])
        yield finding(
            "input_length", other=wrong.sum(), prompts=compared.sum(), excess_tokens=excess
        )


def prompts_cut(cell: JudgedCell) -> Findings:
    """Find texts of a file of which the server counts so few tokens that it must have cut them."""
    rows, counted = cell.plan_rows(cell.measured), cell.measured.input_tokens
    sizes = np.array([*map(count_characters, cell.plan.prompts), 0])[cell.plan.prompt[rows]]
    per_token = sizes / np.maximum(counted, 1.0)
    largest = counted == np.nanmax(counted, initial=0.0)
    several = len(np.unique(cell.plan.prompt[rows][largest])) >= thresholds.EQUAL_COUNTS
    limit = np.where(largest & several, 0.5, 1.0) * thresholds.CHARACTERS_A_TOKEN
    cut = (per_token > limit) & (sizes > thresholds.LONG_CHARACTERS)
    if cut.sum() > thresholds.LENGTH_SHARE * len(cut):
        yield finding(
            "input_length.cut",
            other=cut.sum(),
            prompts=len(cut),
            characters=np.median(per_token[cut]),
            tokens=np.median(counted[cut]),
        )


def _finish_reasons(cell: JudgedCell) -> Findings:
    """List several reasons to finish. Where lengths were demanded exactly, the length should be the
    only one."""
    reasons: Counter[str] = Counter()
    for reason, count in Counter(cell.completed.finish_reason).items():
        if reason:
            reasons[_printable(reason)] += count
    if len(reasons) < 2:
        return
    against = cell.plan.exact_output and any(reasons[reason] for reason in STOP_REASONS)
    shown = [{"count": n, "reason": reason[:40]} for reason, n in reasons.most_common(4)]
    yield finding("finish_reasons.exact" if against else "finish_reasons", reasons=shown)


def other_model(cell: JudgedCell) -> Findings:
    """Find answers that name another model than was requested.

    One other name may be of the same model, and is an info; it is nothing if only a path, provider
    or revision differs. Several names, or that of another model which the server lists, are other
    models.
    """
    target, counts = cell.target, Counter(cell.info.models)
    for of_class in cell.plan.classes:
        for requested in (of_class.model, *of_class.adapter_names):
            for name in [name for name in counts if requested and name.endswith(requested)]:
                del counts[name]
    if target is None or not counts:
        return
    ((name, _),) = counts.most_common(1)
    aliases, models = _listed_names(target)
    if len(counts) == 1 and any(_same_name(name, alias) for alias in aliases):
        return
    doubted = len(counts) > 1 or name in models - aliases
    yield finding(
        "other_model.several" if doubted else "other_model",
        requested=_printable(target.model),
        names=_most_common("name", counts, 3),
        unnamed=len(counts) - 3 if len(counts) > 3 else None,
    )


def _listed_names(target: Target) -> tuple[set[str], set[str]]:
    """List the server's names of the model that was requested, and of others."""
    requested, models = {target.model}, set[str]()
    listed = target.models.get("data") if isinstance(target.models, dict) else None
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict):
            aliases = entry.get("aliases")
            aliases = aliases if isinstance(aliases, list) else []
            names = [entry.get("id"), entry.get("root"), *aliases]
            same = requested if target.model in names else models
            same.update(name for name in names if isinstance(name, str))
    return requested, models


def _same_name(answered: str, name: str) -> bool:
    """Compare two names, but for a provider or path before them, and a date or revision that only
    one of them has."""
    (bare, *release), (listed, *listed_release) = _name_parts(answered), _name_parts(name)
    return bare == listed and all(
        a == b or not a or not b for a, b in zip(release, listed_release, strict=True)
    )


def _name_parts(text: str) -> tuple[str, str, str]:
    """Split a model's name, the release's date after it, and the revision, which transformers adds
    behind an @."""
    name, _, revision = text.casefold().rpartition("/")[2].partition("@")
    bare = _DATE.sub("", name)
    return bare, name[len(bare) :], revision


# --- token counts ---------------------------------------------------------------------------------


def token_counts(cell: JudgedCell) -> Findings:
    """Compare tokens as the server counts them with events as they came.

    Some servers count the end of the sequence, which has no event: one token more than events says
    nothing.
    """
    done = cell.completed  # the others were cut off before their usage
    without = int(np.isin(done.token_source, ["pieces"]).sum())
    if without > thresholds.NO_USAGE_SHARE * len(done):
        yield finding(
            "no_usage" if cell.streams else "no_usage.whole",
            without=without,
            answers=len(done) if without < len(done) else None,
        )
    reported = np.isin(done.token_source, ["final usage", "running usage"])
    reported &= ~np.isnan(done.output_tokens) & (done.events > 0)
    requests, events = int(reported.sum()), int(done.events[reported].sum())
    tokens = float(done.output_tokens[reported].sum())
    # Of a batch's answers the times of the first and the last token are known, and no events.
    if not cell.streams or not requests or cell.is_offline:
        return
    ratio = tokens / events
    if ratio >= thresholds.UNSEEN_TOKENS and np.median(done.events[reported]) > 1:
        yield finding("tokens_not_streamed", tokens_per_event=ratio)
    elif ratio > thresholds.COALESCED_TOKENS and tokens - events > requests:
        yield _judge_bill(cell) or finding("several_tokens_an_event", tokens_per_event=ratio)
    elif events > thresholds.COALESCED_TOKENS * tokens and events - tokens > requests:
        yield finding("fewer_tokens_than_events", tokens=tokens, events=events)


def _judge_bill(cell: JudgedCell) -> Finding | None:
    """Find more tokens than events that the texts do not have: their length follows the events and
    not the count; or events are too much alike for such a mean of whole tokens."""
    sizes = np.array(cell.info.text_sizes, np.float64).reshape(-1, 4)
    if len(sizes) < thresholds.SAME_REQUESTS:
        return None
    tokens, events, characters, squares = sizes.T
    per_token, per_event = (float(np.log(characters / counts).std()) for counts in (tokens, events))
    if per_token >= max(thresholds.BILL_SPREAD, thresholds.BILL_TIMES * per_event):
        return finding("tokens_not_streamed.hidden", spread=per_token, event_spread=per_event)
    ratio = tokens.sum() / events.sum()
    part = ratio % 1
    spread = squares.sum() / events.sum() / (characters.sum() / events.sum()) ** 2 - 1
    if spread < thresholds.BILL_WHOLE * part * (1 - part) / ratio**2:
        return finding("tokens_not_streamed.bill", ratio=ratio)
    return None


def odd_output(cell: JudgedCell) -> Findings:
    """Tell what the client noticed of answers: first events without a token, unlisted fields,
    hidden reasoning.

    Hidden tokens are known by each answer's count of reasoning tokens, and by whether reasoning
    came.
    """
    info, done = cell.info, cell.completed
    if info.void_firsts:
        yield finding("first_event_void", void=info.void_firsts, answers=len(cell.requests))
    yield from _openings_alike(cell)
    yield from _openings_uncounted(cell)
    if info.unlisted:
        first = list(info.unlisted.items())[:4]
        uncounted = 2 * (done.events > done.output_tokens).sum() > len(done)
        yield finding(
            "output_unlisted.uncounted" if uncounted else "output_unlisted",
            fields=[{"field": _printable(name), "answers": count} for name, count in first],
        )
    if info.hidden_tokens:
        name = "tokens_hidden" if info.hidden_tokens > 0 else "tokens_hidden.beside"
        yield finding(name, tokens=abs(info.hidden_tokens))


def _openings_alike(cell: JudgedCell) -> Findings:
    """Find answers that begin with the same event, or with white space, and go on otherwise: what a
    gateway writes itself looks so. An engine takes longer for a prompt than for a token, and has
    one pace.
    """
    info, ttft, tpot = cell.info, cell.ttft, cell.tpot
    alike = max(info.openings_alike, info.openings_blank)
    prompts, texts = info.prompts_compared or 0, info.texts_compared or 0
    repeated = prompts - texts >= thresholds.SAME_TEXTS_SHARE * prompts
    if (
        repeated
        or info.openings < thresholds.SAME_REQUESTS
        or info.void_firsts >= alike
        or ttft is None
    ):
        return
    blank = info.openings_blank >= thresholds.BLANK_SHARE * info.openings
    if not blank and info.openings_alike < thresholds.ALIKE_SHARE * info.openings:
        return
    ratios = drop_missing(cell.completed.begin_ratio)
    times = float(np.median(ratios)) if len(ratios) else 1.0
    token_s = 0.0 if tpot is None else tpot.p50
    case = ".sooner" if ttft.p50 < token_s else ""
    if not case and (blank or ttft.p50 < thresholds.SOON_TOKENS * token_s):
        case = ".pace" if max(times, 1 / max(times, 1e-9)) >= thresholds.PACE_CHANGE else ""
    yield finding(
        f"first_events_alike{case}",
        alike=info.openings_blank if blank else info.openings_alike,
        answers=info.openings,
        ttft_s=ttft.p50,
        tpot_s=token_s if case == ".sooner" else None,
        times=times if case == ".pace" else None,
    )


def _openings_uncounted(cell: JudgedCell) -> Findings:
    """Find answers with an event more than tokens whose second event comes long after the first:
    the count has no token for what a gateway wrote. Other answers show no such wait."""
    done = cell.completed
    uncounted = done.events > done.output_tokens
    waited = done.second_s - done.first_s > thresholds.WAIT_STEPS * done.step_s
    answers = int(uncounted.sum())
    if cell.choices != 1 or answers < thresholds.UNCOUNTED_SHARE * len(done) or answers < 3:
        return
    counted = waited[~uncounted]
    if waited[uncounted].mean() >= 0.9 and (not len(counted) or counted.mean() <= 0.5):
        yield finding("first_events_alike.uncounted", alike=answers, answers=len(done))


# --- caches and repeats ---------------------------------------------------------------------------


def prefix_cache_helped(cell: JudgedCell) -> Findings:
    """Find tokens that came from a prefix cache, beyond those that the plan shares on purpose: by
    the usage of each answer, or, where that is silent about it, by the server's own counters over
    the cell.
    """
    # Texts of a file may share anything, later turns share what was said, and other answers share
    # the prompt.
    has_messages = cell.plan.blocks is not None and not cell.plan.blocks.tokens
    if cell.plan.has_texts or has_messages or cell.choices != 1:
        return
    cached, inputs = cell.measured.cached_tokens, cell.measured.input_tokens
    shared = _shared_tokens(cell, cell.measured)
    counted = ~np.isnan(cached) & ~np.isnan(inputs) & ~np.isnan(shared)
    if counted.any():
        name = "prefix_cache_helped"
        excess = float(np.clip(cached[counted] - shared[counted], 0, None).sum())
        share = excess / max(1.0, inputs[counted].sum())
    else:
        name = "prefix_cache_helped.counters"
        share = _cached_by_counters(cell)
    if share > thresholds.CACHED_SHARE:
        yield finding(name, share=share)


def _cached_by_counters(cell: JudgedCell) -> float:
    """Compute the share of input tokens beyond the plan's promise by the server's counters; 0 where
    they do not tell, and of pools, for both look for a prompt."""
    server, shared = cell.server, _shared_tokens(cell, cell.requests)
    if server is None or cell.has_pools or np.isnan(shared).any():
        return 0.0
    if not server.prefix_hits or not server.prefix_queries:
        return 0.0
    # Another client's prompts may have had all that is looked for beyond these requests' own.
    ours = float(np.nansum(cell.requests.input_tokens)) or server.prefix_queries
    theirs = max(0.0, server.prefix_queries - ours)
    return (server.prefix_hits - theirs - float(shared.sum())) / min(ours, server.prefix_queries)


def _shared_tokens(cell: JudgedCell, requests: RequestTable) -> Floats:
    """Count the tokens that any cache may have of each request; NaN for later turns of a
    session."""
    rows = cell.plan_rows(requests)
    first = cell.plan.rows(cell.number).start
    promised = promised_tokens(cell.plan, cell.number)[rows - first].astype(np.float64)
    # A template, and the word that every text begins with, are in any cache after the first
    # request.
    template = cell.target.overhead_tokens if cell.target else 0
    shared = promised + template + 1 + thresholds.SYSTEM_TOKENS * (cell.plan.turn[rows] == 0)
    pictures = cell.plan.pictures
    if pictures is not None:
        # A group's pictures are shared on purpose, and what stands before them.
        in_group = (pictures.group[rows] >= 0) & (pictures.count[rows] > 0)
        shared = np.where(in_group, np.nan, shared)
    return np.where(promised < 0, np.nan, shared)


def repeats(cell: JudgedCell) -> Findings:
    """Find answers and prompts that repeat: a prompt of a file sent again, different prompts with
    the same answer, answers in the same rhythm to the microsecond, which were recorded or made up,
    not computed.
    """
    yield from _repeated_prompts(cell)
    prompts, texts = cell.info.prompts_compared, cell.info.texts_compared
    if prompts is not None and texts is not None and prompts >= thresholds.SAME_REQUESTS:
        repeated = prompts - texts >= thresholds.SAME_TEXTS_SHARE * prompts
        if repeated:
            yield finding("answers_repeated", prompts=prompts, texts=texts)
    patterns = cell.completed.pattern[cell.completed.pattern != 0]
    if len(patterns) >= thresholds.SAME_REQUESTS:
        same = np.unique(patterns, return_counts=True)[1].max()
        if same >= thresholds.SAME_SHARE * len(patterns):
            yield finding("answers_identical", same=same, answers=len(patterns))


def _repeated_prompts(cell: JudgedCell) -> Findings:
    """Find texts of a file that were asked before within the cell, so that a prefix cache has them;
    of sessions, those that they begin with. A file's own repeats may be natural; those of going
    round a short file are not.
    """
    measured = cell.measured
    begins: Bools = ~(measured.turn > 0)
    texts = cell.plan.prompt[cell.plan_rows(measured)]
    order = np.argsort(measured.index)
    again = begins & (texts >= 0)
    again[order[np.unique(texts[order], return_index=True)[1]]] = False
    if again.sum() <= thresholds.REPEATED_SHARE * begins.sum():
        return
    prompts = cell.plan.workload.get("prompts")
    went_round = isinstance(prompts, int) and begins.sum() > prompts
    cached = float(np.nansum(measured.cached_tokens[again]))
    cached /= max(1.0, float(np.nansum(measured.input_tokens)))
    helped = went_round and cached > thresholds.CACHED_SHARE
    yield finding(
        "prompts_repeated.cached" if helped else "prompts_repeated",
        again=again.sum(),
        prompts=begins.sum(),
        file_prompts=prompts if went_round else None,
        cached_share=cached if cached > 0 else None,
    )
