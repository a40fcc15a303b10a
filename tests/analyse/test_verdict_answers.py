"""Findings about answers and prompts: failures, lengths, ends, token counts, caches, models."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec import structs

from loadstone.analyse.verdict.requests import EventReader
from loadstone.core import run_folder
from loadstone.core.plan import Load, Plan
from loadstone.core.record import CellInfo
from loadstone.core.verdict import Finding
from loadstone.workload.dataset import Dataset
from loadstone.workload.lengths import Length, Sessions
from loadstone.workload.schedule import make_plan
from loadstone.workload.synthetic import Synthetic
from verdict_cells import (
    COUNT,
    LOAD,
    PLAN,
    TARGET,
    WORKLOAD,
    Case,
    check,
    found,
    plan_of,
    rows,
    spoilt,
)

PIECES = {"token_source": "pieces"}
SILENT = {"arrival_s": [], "read": [], "tokens": []}
ONE = {"arrival_s": [5.0], "read": [0], "tokens": [1], "output_tokens": 1, "finish_reason": "stop"}
TWICE = {"tokens": [2, 4, 6, 8], "output_tokens": 8}
WHOLE = {"arrival_s": [5.0], "read": [0], "tokens": [1000], "output_tokens": 1000}


def make(workload: Any, warmup: int = 2, loads: int = 1, **more: Any) -> Plan:
    return make_plan(workload, [LOAD] * loads, requests=[COUNT] * loads, warmup=warmup, **more)


def natural(output: int = 64) -> Plan:
    """Answers may end by themselves."""
    plan = make(Synthetic(WORKLOAD.input, Length("fixed", output)))
    return replace(plan, exact_output=False)


def long(output: int) -> Plan:
    plan = plan_of(LOAD)
    plan.output_tokens[:] = output
    return plan


def failed(*statuses: str, **first: Any) -> dict[str, Finding]:
    """Three failures of the server, then these; `first` changes the first of all."""
    records = spoilt(3, status="error", error="HTTP 500: \x1b[31mboom\n")
    for each, status in zip(records[3:], statuses, strict=False):
        each.update(status=status, error="timeout" if status == "timeout" else None)
    records[0].update(first)
    return found(records)


def stopped(**first: Any) -> dict[str, Finding]:
    records = spoilt(3, status="cancelled", error="interrupted")
    records[0].update(first)
    return found(records, interrupted="stopped")


def streamed_errors() -> dict[str, Finding]:
    records = spoilt(5, status="error", error="HTTP 503: busy", http_status=503)
    for each in records[:2]:
        each.update(error="error in the stream: out of memory", http_status=200)
    return found(records)


def refused(status: int, others: int = 0) -> dict[str, Finding]:
    refusal = {"status": "error", "error": f"HTTP {status}", "http_status": status}
    if not others:
        return found(spoilt(3, **refusal))
    records = spoilt(others, status="error", error="HTTP 400", http_status=400)
    records[0].update(refusal)
    return found(records)


def cut_after(*silences_s: float, events: bool = True) -> dict[str, Finding]:
    """Connections that were cut after so long a silence, as proxies do when their time is up."""
    error = "the server closed the connection before the answer's end"
    records = spoilt(len(silences_s), status="error", error=error, **({} if events else SILENT))
    for each, silence_s in zip(records, silences_s, strict=False):
        each["end_s"] = (each["arrival_s"][-1] if events else each["sent_s"]) + silence_s
    return found(records)


def side_by_side(streams: bool = True, choices: int = 2, **changed: Any) -> dict[str, Finding]:
    """The tokens of all answers to a request are its own: not longer than allowed; the prompt is
    asked twice."""
    target = structs.replace(TARGET, choices=choices, streams=streams)
    return found(rows(**{**TWICE, "cached_tokens": 96, **changed}), target=target)


def answered(*named: str, asked: str = "org/tiny", listed: object = None) -> dict[str, Finding]:
    models = {name: COUNT >> number for number, name in enumerate(named)}
    target = structs.replace(TARGET, model=asked, models=listed)
    return found(rows(), target=target, info=CellInfo(load=LOAD, models=models))


LISTED = {
    "data": [
        {"id": "org/tiny", "root": "/models/t", "aliases": ["t1", 7]},
        {"id": "small", "root": None, "aliases": None},
        "odd",
    ]
}


def compared(prompts: int | None, texts: int | None) -> dict[str, Finding]:
    return found(rows(), info=CellInfo(load=LOAD, prompts_compared=prompts, texts_compared=texts))


def billed(
    events: Sequence[int], characters: float | None = 4.0, spread: float = 2.0
) -> dict[str, Finding]:
    """Answers of 96 tokens in so many events with so many characters each, and a standard deviation
    of them; None: four for each token."""
    sizes = []
    for came in events:
        mean = 96 * 4 / came if characters is None else characters
        sizes.append((96, came, round(came * mean), round(came * (mean**2 + spread**2))))
    records = rows(arrival_s=[9.0, 9.1], read=[0, 1], tokens=[2, 4], output_tokens=4)
    info = CellInfo(load=LOAD, text_sizes=sizes)
    kinds = ("tokens_not_streamed", "several_tokens_an_event")
    return {k: each for k, each in found(records, long(64), info=info).items() if k in kinds}


SHARES = [96 - 3 * number for number in range(24)]
"""Events of answers of 96 tokens, of which a share is not sent."""


def alike(ttft_s: float = 0.1, texts: int = 20, **told: int) -> dict[str, Finding]:
    """Of 20 texts that were compared, so many are different."""
    info = CellInfo(load=LOAD, prompts_compared=20, texts_compared=texts, **told)
    findings = found(rows(ttft=ttft_s), info=info)
    findings.pop("answers_repeated", None)
    return findings


def same_rhythm(count: int = 200, jitter_s: float = 0.0, **more: Any) -> dict[str, Finding]:
    """So many answers with the same gaps; or all of them so evenly."""
    rng, records = np.random.default_rng(0), rows()
    for each in records[:count]:
        noise = rng.normal(0, jitter_s, 4) if jitter_s else np.zeros(4)
        each["arrival_s"] = [each["sent_s"] + 0.1 * (i + 1) + float(noise[i]) for i in range(4)]
    for each in records[: 200 - count]:
        each["arrival_s"] = [at + 1e-5 * i * i for i, at in enumerate(each["arrival_s"])]
    return found(records, **more)


def mixed(events: int, tokens: int) -> dict[str, Finding]:
    records = rows(
        arrival_s=[5.0 + 0.1 * number for number in range(events)],
        read=list(range(events)),
        tokens=[min(number + 1, tokens) for number in range(events - 1)] + [tokens],
        output_tokens=tokens,
    )
    kinds = ("fewer_tokens_than_events", "several_tokens_an_event")
    return {kind: each for kind, each in found(records, long(64)).items() if kind in kinds}


def half_counted() -> dict[str, Finding]:
    """Answers that are counted by their events say nothing of several tokens in one."""
    records = rows(**TWICE)
    for each in records[:200]:
        each.update(tokens=[1, 2, 3, 4], output_tokens=4, **PIECES)
    return found(records)


def heard(output: dict[str, Any] | None = None, **told: Any) -> dict[str, Finding]:
    return found(rows(**output or {}), info=CellInfo(load=LOAD, start_s=0.0, end_s=9.0, **told))


def first_turns(first: int, later: int = 999) -> dict[str, Finding]:
    plan = make(WORKLOAD, warmup=0, sessions=Sessions(Length("fixed", 4)))
    records = rows()
    for number, each in enumerate(records):
        turn = number % 4
        each.update(request_id=f"0-{number}", turn=turn, input_tokens=later if turn else first)
    return found(records, plan)


def short_file(prompts: int, cached: int | None, again: int = 0) -> dict[str, Finding]:
    """A file of so many prompts, of which the last `again` are the first one."""
    texts = [f"p{i}" for i in range(prompts - again)] + ["p0"] * again
    plan = make(Dataset("text", texts, [4] * prompts, "00", 0))
    # As it comes back from disk, where equal texts are one.
    places = {text: texts.index(text) for text in texts}
    plan.prompt[:] = [places[plan.prompts[at]] for at in plan.prompt]
    plan.prompts[:] = texts
    seen: set[int] = set()
    records = rows()
    for record, text in zip(records, plan.prompt[2:].tolist(), strict=True):
        record["cached_tokens"] = cached if text in seen else 0
        seen.add(text)
    return found(records, plan)


def repeated_turns(odd: bool) -> dict[str, Finding]:
    """The same text in every second turn, or in every first one."""
    plan = make(Dataset("text", [f"p{i}" for i in range(COUNT)], [4] * COUNT, "00", 0), warmup=0)
    records = rows()
    for number, each in enumerate(records):
        each.update(request_id=f"0-{number}", turn=number % 2)
    plan.prompt[:] = np.arange(COUNT)[::-1]
    plan.prompt[int(odd) :: 2] = 0
    return found(records, plan)


def cached(tokens: int | None, prefix: int = 0, unknown: int = 0) -> dict[str, Finding]:
    records = rows(cached_tokens=tokens)
    for each in records[:unknown]:
        each["input_tokens"] = None
    return found(records, make(Synthetic(WORKLOAD.input, WORKLOAD.output, prefix_tokens=prefix)))


def second_cell(cell: int) -> dict[str, Finding]:
    """Two cells, of which the first has other lengths."""
    plan = make(Synthetic(WORKLOAD.input, WORKLOAD.output, prefix_tokens=31), loads=2)
    first = plan.rows(0)
    plan.input_tokens[first.start : first.stop] = plan.output_tokens[first.start : first.stop] = 1
    return found(rows(cached_tokens=31), plan, cell=cell)


def laps(index: int) -> dict[str, Finding]:
    """A closed loop that ends by time repeats the plan's rows."""
    lengths = Synthetic(Length("uniform", 150, low=100, high=200), WORKLOAD.output)
    plan = make_plan(lengths, [Load("concurrency", 4, duration_s=1.0)], requests=[COUNT], warmup=2)
    records = rows()
    for i, each in enumerate(records):
        each.update(request_id=f"0-{index + i}", input_tokens=int(plan.input_tokens[2 + i]))
    return found(records, plan)


def from_file(**changed: Any) -> dict[str, Finding]:
    return found(rows(**changed), make(Dataset("text", ["a"], [4], "00", 0)))


def of_texts(**changed: Any) -> dict[str, Finding]:
    return found(
        rows(**changed),
        make(Dataset("text", [f"a{i}" for i in range(COUNT)], [4] * COUNT, "00", 0)),
    )


ERRORS, EMPTY, LONGER, INPUT = "request_errors", "empty_answers", "output_length", "input_length"
REASONS, MODEL, TEXTS, RHYTHM = (
    "finish_reasons",
    "other_model",
    "answers_repeated",
    "answers_identical",
)
UNSEEN, SEVERAL, FEWER, PROMPTS = (
    "tokens_not_streamed", "several_tokens_an_event", "fewer_tokens_than_events", "prompts_repeated",
)  # fmt: skip
CACHE, UNLISTED, HIDDEN = "prefix_cache_helped", "output_unlisted", "tokens_hidden"
CASES: list[Case] = [
    # Characters follow the events, and not the count.
    ("=tokens_not_streamed.hidden", "warning", {"event_spread": 0.0}, lambda: billed(SHARES)),
    ("=several_tokens_an_event", "info", {}, lambda: billed([48, 60, 72] * 8, None)),
    ("=several_tokens_an_event", "info", {}, lambda: billed(SHARES[:19])),  # too few to tell
    # Events of one length are no mix of one token and of two; those of two lengths are.
    ("=tokens_not_streamed.bill", "warning", {"ratio": 96 / 69}, lambda: billed([69] * 24, 6.0, 0.0)),
    ("=several_tokens_an_event", "info", {}, lambda: billed([69] * 24, 8.3, 2.9)),
    ("=several_tokens_an_event", "info", {}, lambda: billed([48] * 24, 12.0, 0.0)),
    # Texts that begin alike, or with nothing.
    ("=first_events_alike", "info", {"alike": 19, "answers": 20}, lambda: alike(openings=20, openings_alike=19)),
    ("=first_events_alike.sooner", "warning", {"ttft_s": 0.09}, lambda: alike(0.09, openings=20, openings_alike=20)),
    ("=first_events_alike", "info", {"alike": 4}, lambda: alike(openings=40, openings_alike=8, openings_blank=4)),
    ("=", None, {}, lambda: alike(openings=40, openings_alike=30, openings_blank=3)),
    ("=", None, {}, lambda: alike(openings=19, openings_alike=19)),
    ("=", None, {}, lambda: alike(texts=18, openings=20, openings_alike=20)),  # so are the whole texts
    ("=", None, {}, lambda: found(rows(), info=CellInfo(load=LOAD, openings=20, openings_alike=20))),
    ("=first_event_void", "info", {}, lambda: alike(openings=20, openings_alike=20, void_firsts=20)),
    # Requests that failed; those that an interruption cancelled did not.
    ("interrupted", "warning", {"why": "it did not end (x)"}, lambda: found(rows(), interrupted="it did not end (x)")),
    ("=interrupted", "warning", {}, stopped),
    ("=interrupted", "warning", {}, lambda: found(rows(phase="warmup"), interrupted="stopped")),
    (ERRORS, "error", {}, lambda: found(spoilt(3, status="cancelled", error="interrupted"))),
    (
        ERRORS, "error",
        {"failed": 1, "requests": 400, "errors": 1, "timeouts": 0, "cancelled": 0, "after_ok": 1, "messages": [{"count": 1, "text": "HTTP 500"}]},
        lambda: stopped(status="error", error="HTTP 500"),
    ),
    (
        ERRORS, "error",
        {"failed": 5, "requests": 400, "errors": 3, "timeouts": 1, "cancelled": 1, "after_ok": 3, "messages": [{"count": 3, "text": "HTTP 500: �[31mboom�"}, {"count": 1, "text": "timeout"}]}, lambda: failed("timeout", "cancelled"),
    ),
    (ERRORS, "error", {"failed": 1, "cancelled": 1, "messages": []}, lambda: found(spoilt(1, status="cancelled"))),
    (
        ERRORS, "error",
        {"failed": 5, "requests": 400, "errors": 5, "timeouts": 0, "cancelled": 0, "after_ok": 2},
        streamed_errors,
    ),
    (ERRORS, "error", {"cause": "the server, or a gateway, limits requests"}, lambda: refused(429)),
    (ERRORS, "error", {"cause": "a proxy limits the size of requests (nginx: client_max_body_size)"}, lambda: refused(413)),
    (ERRORS, "error", {"cause": "a proxy found no engine behind it"}, lambda: refused(502)),
    (ERRORS, "error", {"cause": None}, lambda: refused(429, others=6)),
    (ERRORS, "error", {"cause": None}, lambda: refused(413, others=6)),
    (ERRORS, "error", {"cause": None}, lambda: refused(502, others=6)),
    (
        ERRORS, "error", {"silent_s": 60},
        lambda: cut_after(60.0, 60.01, 60.02, 60.0),
    ),
    (ERRORS, "error", {"silent_s": None}, lambda: cut_after(5.0, 60.0, 33.0, 12.0)),
    # in the midst of a stream
    (ERRORS, "error", {"silent_s": None}, lambda: cut_after(0.01, 0.01, 0.01, 0.01)),
    (ERRORS, "error", {"silent_s": 1}, lambda: cut_after(1.0, 1.0, 1.0, events=False)),
    (
        f"={ERRORS}", "error", {},
        lambda: found(rows(status="error", error="x", output_tokens=None, token_source=None, **SILENT)),
    ),
    (SEVERAL, None, {}, lambda: found(spoilt(100, status="error", error="x"))),
    # Short, empty and long answers.
    ("short_outputs", "warning", {"short": 2, "requests": 400}, lambda: found(spoilt(2, status="short"))),
    (EMPTY, None, {}, lambda: found(spoilt(4, **SILENT))),
    (EMPTY, "warning", {"silent": 5, "answers": 400}, lambda: found(spoilt(5, **SILENT))),
    (EMPTY, None, {}, lambda: found(spoilt(200, **ONE), natural())),  # a yes, a no
    (
        "empty_answers.one_token", "warning", {"single": 201, "answers": 400, "allowed_tokens": 8},
        lambda: found(spoilt(201, **ONE), natural()),
    ),
    (EMPTY, None, {}, lambda: found(spoilt(201, **ONE), natural(1))),  # as asked
    (EMPTY, None, {}, lambda: found(rows(**ONE), natural(1))),
    (EMPTY, None, {}, lambda: found(rows(output_tokens=2), natural())),
    (LONGER, None, {}, lambda: found(spoilt(4, output_tokens=7))),
    (LONGER, None, {}, lambda: found(rows(output_tokens=5))),  # some count the end of the sequence
    (
        LONGER, "warning", {"longer": 5, "answers": 400, "excess_tokens": 3},
        lambda: found(spoilt(5, output_tokens=7)),
    ),
    ("=", None, {}, lambda: of_texts(output_tokens=4)),
    (LONGER, "warning", {}, lambda: of_texts(output_tokens=9)),
    # Answers side by side.
    ("several_answers", "warning", {"choices": 2}, side_by_side),
    ("several_answers.whole", "info", {"choices": 2}, lambda: side_by_side(streams=False)),
    (LONGER, None, {}, side_by_side),
    (CACHE, None, {}, side_by_side),
    (LONGER, "warning", {}, lambda: side_by_side(streams=False, output_tokens=11, tokens=[1, 2, 3, 4])),
    ("several_answers", None, {}, lambda: side_by_side(choices=1)),
    (LONGER, "warning", {}, lambda: side_by_side(choices=1)),
    (CACHE, "warning", {}, lambda: side_by_side(choices=1)),
    # Reasons to end: one reason for all is the server's word for it.
    (
        REASONS, "info", {"reasons": [{"count": 300, "reason": "length"}, {"count": 100, "reason": "stop"}]},
        lambda: found(spoilt(100, finish_reason="stop"), natural()),
    ),
    (REASONS, "warning", {}, lambda: found(spoilt(100, finish_reason="stop"))),
    (REASONS, "info", {}, lambda: found(spoilt(100, finish_reason="\x1b[31m"))),
    ("=", None, {}, lambda: found(rows(finish_reason="stop"))),
    ("=", None, {}, lambda: found(rows(finish_reason="length"))),
    ("=", None, {}, lambda: found(rows(finish_reason=None))),
    ("=", None, {}, lambda: found(spoilt(5, finish_reason=None))),
    # The same model in other words, another release, another model.
    *(
        ("=", None, {}, lambda named=named: answered(named, listed=LISTED))
        for named in (
            "org/tiny", "tiny", "/models/Tiny", "proxy/org/tiny", "org/tiny@main", "tiny-2026-11-22", "t", "t1",
        )
    ),
    (MODEL, None, {}, lambda: answered("org/tiny-2026-11@main", asked="tiny-2026-11")),
    (MODEL, None, {}, lambda: answered("tiny@main", asked="tiny-2026-11")),
    (MODEL, "info", {}, lambda: answered("tiny-2026-05", asked="tiny-2026-11")),
    (MODEL, "info", {}, lambda: answered("tiny@v2", asked="tiny@v1")),
    *(
        (
            MODEL, "info",
            {"requested": "org/tiny", "names": [{"count": 400, "name": named}], "unnamed": None},
            lambda named=named, listed=listed: answered(named, listed=listed),
        )
        for named in ("tiny-mini", "tiny-8", "tin", "tiny:70b", "org")
        for listed in (None, [], {"data": {}}, LISTED)
    ),
    ("other_model.several", "warning", {}, lambda: answered("small", listed=LISTED)),
    (
        "other_model.several", "warning",
        {"requested": "org/tiny", "names": [{"count": 400, "name": "org/tiny"}, {"count": 200, "name": "a"}, {"count": 100, "name": "b\ufffd"}], "unnamed": 1},
        lambda: answered("org/tiny", "a", "b\x1b", "c", listed=LISTED),
    ),
    ("=", None, {}, answered),
    (MODEL, "info", {}, lambda: found(rows(), info=CellInfo(load=LOAD, models={"other": 5}))),
    ("=", None, {}, lambda: found(rows(), info=CellInfo(load=LOAD, models=None))),
    # Answers that repeat.
    (TEXTS, "info", {"prompts": 20, "texts": 18}, lambda: compared(20, 18)),
    (TEXTS, None, {}, lambda: compared(20, 19)),
    (TEXTS, None, {}, lambda: compared(19, 1)),
    (TEXTS, None, {}, lambda: compared(64, 64)),
    (TEXTS, "info", {"prompts": 60, "texts": 16}, lambda: compared(60, 16)),
    (TEXTS, None, {}, lambda: compared(None, None)),
    (RHYTHM, "warning", {"same": 200, "answers": 400}, same_rhythm),
    (RHYTHM, None, {}, lambda: same_rhythm(source="imported")),
    (RHYTHM, None, {}, lambda: same_rhythm(199)),
    # an engine alone on its machine is steady
    ("=", None, {}, lambda: same_rhythm(COUNT, jitter_s=2e-5)),
    (RHYTHM, None, {}, lambda: found(rows(19, arrival_s=[5.0, 5.1, 5.2, 5.3]))),
    (RHYTHM, "warning", {}, lambda: found(rows(20, arrival_s=[5.0, 5.1, 5.2, 5.3]))),
    (RHYTHM, None, {}, lambda: found(rows(arrival_s=[5.0, 5.1, 5.2], read=[0, 1, 2], tokens=[1, 2, 3]))),
    (PROMPTS, None, {}, lambda: short_file(COUNT, 50)),
    (PROMPTS, None, {}, lambda: short_file(COUNT, 50, 4)),  # the first, and four more
    (PROMPTS, "info", {}, lambda: short_file(COUNT, 50, 5)),
    (
        "prompts_repeated.cached", "warning",
        {"again": 300, "prompts": 400, "file_prompts": 100, "cached_share": 0.375}, lambda: short_file(100, 50),
    ),
    # No cache, none that helped, or a file that is so itself: a reader should know, and it spoils
    # nothing.
    (
        PROMPTS, "info",
        {"again": 300, "prompts": 400, "file_prompts": 100},
        lambda: short_file(100, None),
    ),
    (PROMPTS, "info", {}, lambda: short_file(100, 1)),
    (PROMPTS, "info", {}, lambda: short_file(COUNT, 50, 200)),
    (CACHE, None, {}, lambda: short_file(100, 50)),
    (PROMPTS, None, {}, lambda: repeated_turns(odd=True)),
    (PROMPTS, "info", {"again": 199, "prompts": 200}, lambda: repeated_turns(odd=False)),
    # Lengths of prompts: of sessions those of the first turns are known, of a data set its own.
    ("=", None, {}, lambda: found(spoilt(4, input_tokens=103))),
    ("=", None, {}, lambda: found(rows(input_tokens=None))),
    (
        INPUT, "warning", {"other": 5, "prompts": 400, "excess_tokens": 3},
        lambda: found(spoilt(5, input_tokens=103)),
    ),
    ("=", None, {}, lambda: first_turns(100)),
    (INPUT, "warning", {"other": 100, "prompts": 100}, lambda: first_turns(103)),
    (f"={PROMPTS}", "info", {}, from_file),
    (f"={PROMPTS}", "warning", {}, lambda: from_file(cached_tokens=100)),
    ("=", None, {}, lambda: laps(2 + COUNT)),
    ("=", None, {}, lambda: laps(2 + 5 * COUNT)),
    # Help of a prefix cache.
    ("=", None, {}, lambda: cached(1)),
    ("=", None, {}, lambda: cached(2)),  # 1 % of 100
    ("=", None, {}, lambda: cached(2, unknown=1)),  # a share of what is known
    (f"={CACHE}", "warning", {}, lambda: cached(3)),
    ("=", None, {}, lambda: cached(None)),
    # One is the word that every text begins with.
    (CACHE, "warning", {"share": 0.31}, lambda: cached(32)),
    ("=", None, {}, lambda: cached(31, prefix=31)),
    (CACHE, "warning", {}, lambda: cached(40, prefix=31)),
    ("=", None, {}, lambda: second_cell(1)),
    (INPUT, "warning", {}, lambda: second_cell(0)),
    (LONGER, "warning", {}, lambda: second_cell(0)),
    # Token counts and events.
    (
        "no_usage", "warning", {},
        lambda: found(rows(output_tokens=4, **PIECES)),
    ),
    ("no_usage", None, {}, lambda: found(rows(output_tokens=4, status="timeout", **PIECES))),
    ("=", None, {}, lambda: found(spoilt(4, **PIECES))),
    ("=no_usage", "warning", {}, lambda: found(spoilt(5, **PIECES))),
    (
        "no_usage", "warning", {"without": 100, "answers": 400},
        lambda: found(spoilt(100, **PIECES)),
    ),
    (SEVERAL, "info", {"tokens_per_event": 2}, lambda: found(rows(**TWICE))),
    # An end of sequence that is counted too is no token of an event (mlx-lm), nor are 5 % more.
    ("=", None, {}, lambda: found(rows(output_tokens=5, tokens=[1, 2, 3, 5]))),
    (SEVERAL, None, {}, lambda: found(spoilt(20, **TWICE))),  # 80 of 1600
    (SEVERAL, None, {}, lambda: found(spoilt(100, **TWICE))),  # 400 more, of 400
    (SEVERAL, "info", {}, lambda: found(spoilt(101, **TWICE))),
    (SEVERAL, "info", {"tokens_per_event": 2}, half_counted),
    (
        UNSEEN, "warning", {"tokens_per_event": 250},
        lambda: found(rows(output_tokens=1000, tokens=[1, 300, 700, 1000]), long(1024)),
    ),
    (SEVERAL, "info", {}, lambda: found(rows(output_tokens=255, tokens=[1, 50, 100, 255]), long(1024))),
    (UNSEEN, "warning", {}, lambda: found(rows(output_tokens=256, tokens=[1, 50, 100, 256]), long(1024))),
    # Whole answers in one event are no stream that leaves tokens out, and those without events have
    # none.
    (UNSEEN, None, {}, lambda: found(rows(**WHOLE), long(1024))),
    (SEVERAL, "info", {"tokens_per_event": 1000}, lambda: found(rows(**WHOLE), long(1024))),
    ("=", None, {}, lambda: found(spoilt(4, output_tokens=1000, **SILENT), long(1024))),
    (
        FEWER, "warning", {"tokens": 800, "events": 1600},
        lambda: found(rows(output_tokens=2, tokens=[1, 1, 2, 2])),
    ),
    (FEWER, None, {}, lambda: found(rows(output_tokens=3, tokens=[1, 2, 2, 3]))),
    (FEWER, None, {}, lambda: found(spoilt(10, output_tokens=2, tokens=[1, 1, 2, 2]))),
    ("=", None, {}, lambda: mixed(63, 60)),  # 5 % more events
    (f"={FEWER}", "warning", {}, lambda: mixed(64, 60)),
    ("=", None, {}, lambda: mixed(60, 63)),
    (f"={SEVERAL}", "info", {}, lambda: mixed(60, 64)),
    # Odd output that the client noticed.
    (UNLISTED, "warning", {}, lambda: heard({"output_tokens": 3, "tokens": [1, 2, 2, 3]}, unlisted={"queue": 400})),
    (
        "=first_event_void", "info", {"void": 400, "answers": 400},
        lambda: heard(void_firsts=400),
    ),
    (f"={UNLISTED}", "info", {"fields": [{"field": "thoughts", "answers": 3}]}, lambda: heard(unlisted={"thoughts": 3})),
    (f"={HIDDEN}", "info", {"tokens": 60}, lambda: heard(hidden_tokens=60)),
    (f"={HIDDEN}", "info", {"tokens": 60}, lambda: heard(hidden_tokens=-60)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_findings_about_answers(case: Case) -> None:
    check(case)


def test_failures_alone_say_nothing_of_tokens() -> None:
    assert set(found(spoilt(100, status="error", error="x"))) == {"request_errors", "few_samples"}


def test_arrivals_without_end_say_nothing_of_a_rhythm() -> None:
    endless = [0.1, math.inf, math.inf, -math.inf]
    batch = pa.RecordBatch.from_pylist(
        rows(1, arrival_s=endless), schema=run_folder.records_schema()
    )
    events = EventReader()
    events.add(batch)
    assert events.figures().pattern.tolist() == [0]


@pytest.mark.parametrize(
    ("counted", "texts", "cut"),
    [(514, 1, True), (None, 1, False), (4000, 1, False), (1700, 1, False), (1700, 4, True)],
)
def test_prompts_that_a_server_cut_are_found(counted: int | None, texts: int, cut: bool) -> None:
    plan = replace(
        PLAN, prompts=["x" * (17_000 + n) for n in range(texts)], prompt=np.arange(len(PLAN), dtype=np.int32) % texts,
        input_tokens=np.full(len(PLAN), -1, np.int32),
    )  # fmt: skip
    told = found(rows(input_tokens=counted), plan).get(INPUT)
    assert (told is not None) == cut
    if told is not None:
        assert told.values["tokens"] == counted
