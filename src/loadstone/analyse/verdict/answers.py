"""Are the answers what was asked for?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import numpy as np

from loadstone.analyse.metrics import CellMetrics
from loadstone.analyse.verdict.facts import Facts, plan_rows
from loadstone.analyse.verdict.finding import Finding
from loadstone.core import Plan, Target
from loadstone.core.units import show_seconds

CAUSES = {
    413: "a proxy limits the size of requests (nginx: client_max_body_size)",
    429: "the server, or a gateway, limits requests",
    502: "a proxy found no engine behind it",
    503: "the server was full, or a proxy found no engine ready",
    504: "a proxy timed out waiting for the engine",
}
"""What the HTTP status of most refusals tells of the cause."""
CUT_SPREAD = 0.1
CUT_S = 0.5
"""Silence before connections were cut: as long each time (middle half over median), it was somebody's time limit."""
LENGTH_SHARE = 0.01
"""Requests whose input or output is not as long as asked, from which the workload is another one."""
EMPTY_SHARE = 0.01
"""Answers without any output, though complete: as for lengths."""
EMPTY_ASKED_TOKENS = 8
ONE_TOKEN_SHARE = 0.5
"""Answers of one token where EMPTY_ASKED_TOKENS or more were allowed, from which there is no decoding to measure.
Some are natural: a yes, a no."""
SAME_REQUESTS = 20
SAME_SHARE = 0.5
"""Answers whose gaps are equal to the microsecond, from which they are none of an engine's: no two requests agree in
several gaps by chance."""

SAME_TEXTS_SHARE = 0.1
"""Different prompts that got a text which another had got: few answers of an engine agree in eight tokens."""

_DATE = re.compile(r"-\d{4}[\d-]*$")
"""The release's, which may follow a model's name at OpenAI's."""


def request_errors(metrics: CellMetrics, measured: Facts, interrupted: bool = False) -> Finding | None:
    """`interrupted`: the cell ended early: what was under way then was cancelled by that, and did not fail."""
    counts = metrics.requests
    cancelled = 0 if interrupted else counts.cancelled
    failed = counts.error + counts.timeout + cancelled
    if not failed:
        return None
    of_those = measured.pick(measured.status != "cancelled") if interrupted else measured
    texts = Counter(error for error in of_those.error if error)
    most = "; ".join(f"{count} × {_printable(text)}" for text, count in texts.most_common(2))
    after = int(((measured.status == "error") & (measured.http_status == 200)).sum())
    within = f", {after} of the errors after HTTP 200" if after else ""
    return Finding(
        "request_errors",
        "error",
        f"{failed} of {counts.sent} requests failed ({counts.error} error, {counts.timeout} timeout, "
        f"{cancelled} cancelled){within}" + (f": {most}" if most else ""),
        f"Percentiles leave out failed requests: {_cause(of_those)}fix the cause, or read them with the attainment.",
    )


def _cause(failed: Facts) -> str:
    """What most errors have in common, as half a sentence; empty where that tells nothing."""
    errors = failed.pick(failed.status == "error")
    if not len(errors):
        return ""
    statuses, counts = np.unique(errors.http_status[~np.isnan(errors.http_status)], return_counts=True)
    if len(counts) and 2 * counts.max() > len(errors) and statuses[counts.argmax()] in CAUSES:
        return f"{CAUSES[int(statuses[counts.argmax()])]}; "
    cut = errors.pick(np.array(["closed the connection" in (error or "") for error in errors.error], np.bool_))
    silent_s = cut.end_s - np.where(np.isnan(cut.last_s), cut.sent_s, cut.last_s)
    silent_s = silent_s[~np.isnan(silent_s)]
    if len(silent_s) < 2 or 2 * len(silent_s) <= len(errors):
        return ""
    low, middle, high = np.quantile(silent_s, [0.25, 0.5, 0.75])
    if middle < CUT_S or high - low > CUT_SPREAD * middle:
        return ""
    return f"connections were cut after {show_seconds(float(middle))} of silence, probably a proxy's timeout; "


def _printable(text: str) -> str:
    """Other programs' words, which records of any origin hold, made harmless for terminals."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def short_outputs(metrics: CellMetrics, choices: int = 1) -> Finding | None:
    counts = metrics.requests
    if not counts.short:
        return None
    return Finding(
        "short_outputs",
        "warning",
        f"{counts.short} of {counts.sent} answers ended before the requested length",
        "The engine ignores ignore_eos: compare tokens per second, not requests per second."
        if choices == 1
        else "The engine ignores ignore_eos, or its usage counts one answer of several: inspect one with curl.",
    )


def empty_answers(done: Facts, plan: Plan, cell: int, streams: bool) -> Finding | None:
    """`done`: measured requests that completed."""
    silent = int((done.events == 0).sum())
    if silent > EMPTY_SHARE * len(done):
        return Finding(
            "empty_answers",
            "warning",
            f"{silent} of {len(done)} complete answers carried no output, only a token count",
            "They have no TTFT and no E2E: inspect one with curl, and check the server's chat template and parsers.",
        )
    allowed = plan.output_tokens[plan_rows(done, plan, cell)] >= EMPTY_ASKED_TOKENS
    single = int((allowed & (done.output_tokens <= 1)).sum())
    if not streams or plan.exact_output or single <= ONE_TOKEN_SHARE * len(done):
        return None
    return Finding(
        "empty_answers",
        "warning",
        f"{single} of {len(done)} answers ended after one token, though {EMPTY_ASKED_TOKENS} or more were allowed",
        "There is hardly any decoding to measure: request exact lengths with --output, or check the prompts.",
    )


def several_answers(choices: int, streams: bool) -> Finding | None:
    if choices == 1:
        return None
    return Finding(
        "several_answers",
        "warning" if streams else "info",
        f"each request returns {choices} answers: its output tokens are those of all of them together",
        "TTFT is of the first answer to start, E2E of the last to end. TPOT and ITL are of all together: a single "
        f"answer can be up to {choices} times slower. To measure latencies, request one answer (n)."
        if streams
        else "E2E is of the last answer to end: compare it with runs that request as many answers.",
    )


def output_length(done: Facts, plan: Plan, cell: int, choices: int = 1) -> Finding | None:
    """Answers longer than allowed. One token more is let pass: some count the end of the sequence.

    `choices`: answers to each request, whose tokens are counted together.
    """
    asked = plan.output_tokens[plan_rows(done, plan, cell)] * choices
    over = (asked > 0) & (done.output_tokens > asked + choices)
    if over.sum() <= LENGTH_SHARE * len(done):
        return None
    more = float(np.median((done.output_tokens - asked)[over]))
    return Finding(
        "output_length",
        "warning",
        f"{over.sum()} of {len(done)} answers are longer than allowed, by the server's count (median {more:+.0f})",
        "The server ignores max_tokens or counts differently: check its usage, and compare tokens per second.",
    )


def input_length(measured: Facts, plan: Plan, cell: int) -> Finding | None:
    # What a session's later turns hold depends on the answers, and a template may add more for a system message.
    rows = plan_rows(measured, plan, cell)
    unsure = (plan.turn[rows] > 0) | ((plan.turn[rows] == 0) & (plan.prefix_tokens[rows] > 0))
    asked = np.where(unsure, -1, plan.input_tokens[rows])
    got = measured.input_tokens
    known = ~np.isnan(got) & (asked >= 0)
    wrong = known & (got != asked)
    if not known.any() or wrong.sum() <= LENGTH_SHARE * known.sum():
        return None
    off = np.median((got - asked)[wrong])
    return Finding(
        "input_length",
        "warning",
        f"{wrong.sum()} of {known.sum()} prompts are not as long as requested, by the server's count "
        f"(median {off:+.0f})",
        "Give the model's --tokenizer, or use an endpoint that takes token ids.",
    )


def finish_reasons(done: Facts, plan: Plan) -> Finding | None:
    """Several reasons to finish, where lengths were demanded exactly: then none but the length is one."""
    reasons: Counter[str] = Counter()
    for reason, count in Counter(done.finish_reason).items():
        if reason:
            reasons[_printable(reason)] += count
    if len(reasons) < 2:
        return None
    said = ", ".join(f"{count} × {reason[:40]}" for reason, count in reasons.most_common(4))
    against = plan.exact_output and reasons["stop"] > 0
    return Finding(
        "finish_reasons",
        "warning" if against else "info",
        f"answers ended for different reasons: {said}",
        "Exact lengths were requested, but some answers stopped on their own: check that the engine takes ignore_eos."
        if against
        else "Answers ended on their own or at their limit: the model chose the lengths, and they vary between runs.",
    )


def other_model(target: Target | None, named: Mapping[str, int] | None) -> Finding | None:
    """Answers that name another model than was asked for. `named`: how many name which.

    One name may be the same model's: told, but where the words differ in a path, provider or revision alone. Several
    names, or that of another model which the server lists, are other models.
    """
    if target is None or not named:
        return None
    said = sorted(named.items(), key=lambda each: -each[1])
    own, others = _names(target)
    if len(said) == 1 and any(_alike(said[0][0], name) for name in own):
        return None
    doubted = len(said) > 1 or said[0][0] in others - own
    most = ", ".join(f"{count} × {_printable(name)}" for name, count in said[:3])
    more = f" and {len(said) - 3} more" if len(said) > 3 else ""
    return Finding(
        "other_model",
        "warning" if doubted else "info",
        f"requests asked for {_printable(target.model)}, answers name {most}{more}",
        "A router or a fallback answers in its place: send requests to one model, at its own server."
        if doubted
        else "Check whether this is the same model under another name.",
    )


def _names(target: Target) -> tuple[set[str], set[str]]:
    """What the server lists as names of the model that was asked for, and of others."""
    own, others = {target.model}, set[str]()
    listed = target.models.get("data") if isinstance(target.models, dict) else None
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict):
            aliases = entry.get("aliases")
            names = [entry.get("id"), entry.get("root"), *(aliases if isinstance(aliases, list) else ())]
            (own if target.model in names else others).update(name for name in names if isinstance(name, str))
    return own, others


def _alike(said: str, name: str) -> bool:
    """The same, but for a provider or path before it, and a date or revision after it that only one of them has."""
    (bare, *release), (own, *own_release) = _parts(said), _parts(name)
    return bare == own and all(a == b or not a or not b for a, b in zip(release, own_release, strict=True))


def _parts(text: str) -> tuple[str, str, str]:
    """A model's name, the release's date after it, and the revision, which transformers adds behind an @."""
    name, _, revision = text.casefold().rpartition("/")[2].partition("@")
    bare = _DATE.sub("", name)
    return bare, name[len(bare) :], revision


def answers_identical(done: Facts) -> Finding | None:
    """Answers that arrive in the same rhythm to the microsecond: recorded, or made up, not computed."""
    patterns = done.pattern[done.pattern != 0]
    if len(patterns) < SAME_REQUESTS:
        return None
    _, counts = np.unique(patterns, return_counts=True)
    same = int(counts.max())
    if same < SAME_SHARE * len(patterns):
        return None
    return Finding(
        "answers_identical",
        "warning",
        f"{same} of {len(patterns)} answers arrived with the same gaps, to the microsecond",
        "No engine on a real machine is that regular: check whether a cache, a replay or a mock answers.",
    )


def answers_repeated(prompts: int | None, texts: int | None) -> Finding | None:
    """Different prompts that were answered with the same text. `prompts`, `texts`: how many of each, where known."""
    if prompts is None or texts is None or prompts < SAME_REQUESTS or prompts - texts < SAME_TEXTS_SHARE * prompts:
        return None
    return Finding(
        "answers_repeated",
        "info",
        f"the first {prompts} different prompts were answered with {texts} different texts",
        "Random weights do this; with real weights, check whether a cache, a replay or a mock answers.",
    )
