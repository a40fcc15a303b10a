"""Findings about the client, and about what lies between it and the server."""

from typing import Any

import numpy as np
import pytest
from msgspec import structs

from loadstone.core.metrics import Latency, Requests
from loadstone.core.parts import ReplicaPart
from loadstone.core.plan import Load, Plan
from loadstone.core.record import CellInfo
from loadstone.core.verdict import Finding
from verdict_cells import COUNT, LOAD, TARGET, Case, Rows, check, closed, found, plan_of, rows


def ran(
    cpu_s: float | None, seconds: float = 10.0, workers: int = 1, **changed: Any
) -> dict[str, Finding]:
    records = rows()
    if workers == 2:
        records[7]["worker"] = 1
        records[8]["worker"] = None
    times = {
        "start_s": 5.0,
        "issue_end_s": 5.0,
        "end_s": 5.0 + seconds,
        "client_cpu_s": cpu_s,
    } | changed
    return found(records, info=CellInfo(load=LOAD, **times))


def in_one_read(share: float, stalled: bool | None = None, **changed: Any) -> Rows:
    """Of the events that follow another, two of three come in its read, in a share of the answers.
    `stalled`: a fifth of the answers waited for the client, the first ones or all others.
    """
    records = rows(**changed)
    for each in records[: round(share * len(records))]:
        first, _, _, last = each["arrival_s"]
        # The first comes by itself: TTFT is right.
        each.update(read=[0, 1, 1, 1], arrival_s=[first, last, last, last])
    for number, each in enumerate(records):
        if stalled is not None:
            each["receive_lag_s"] = 0.3 if (number < len(records) // 5) == stalled else 1e-4
    return records


def first_late(count: int, first: int = 3, lag_s: float = 0.12) -> list[str]:
    """The percentiles spoilt by a stall over the first tokens of so many answers."""
    records = rows()
    for each in records[:count]:
        at = each["arrival_s"][0] + 0.1 * (first - 1)
        later = [at + 0.1 * (after + 1) for after in range(4 - first)]
        each.update(
            read=[0] * first + [1] * len(later), arrival_s=[at] * first + later, receive_lag_s=lag_s
        )
    finding = found(records).get("client_read_late")
    names = [] if finding is None else finding.evidence.partition("which spoils ")[2].split(", ")
    return [name.partition(" (")[0] for name in names]


def long_wait(count: int) -> dict[str, Finding]:
    """A wait as long as the longest gaps in so many answers, each of three gaps."""
    records = in_one_read(0.1)
    for each in [each for each in records if len(set(each["read"])) < len(each["read"])][:count]:
        each["receive_lag_s"] = 0.4
    return found(records)


def starved_tool(**more: Any) -> dict[str, Finding]:
    """vLLM's client, starved: a median ITL of 0.0 ms and a p99 of 124 ms."""
    records = rows()
    for each in records:
        first, _, _, last = each["arrival_s"]
        each["arrival_s"] = [first, first, first, last]
    return found(records, **more)


def began_with(
    tokens: int, of: int, share: float = 1.0, sent_before_s: float = 0.0, **changed: Any
) -> Rows:
    """Answers of `of` tokens, an event each, the first `tokens` of them in one read; a share of the
    cell."""
    records = rows()
    for each in records[: round(share * len(records))]:
        first = each["arrival_s"][0]
        later = [first + 0.1 * after for after in range(1, of - tokens + 1)]
        each.update(
            arrival_s=[first] * tokens + later, read=[0] * tokens + list(range(1, of - tokens + 1)),
            tokens=list(range(1, of + 1)), output_tokens=of, **changed,
        )  # fmt: skip
        each["end_s"] = each["arrival_s"][-1]
        each.update(
            intended_s=each["sent_s"] - sent_before_s, sent_s=each["sent_s"] - sent_before_s
        )
    return records


def natural(output: int = 64) -> Plan:
    plan = plan_of(LOAD)
    plan.output_tokens[:] = output
    return plan


def began(*arguments: Any, silent: int = 0, **changed: Any) -> dict[str, Finding]:
    records = began_with(*arguments, **changed)
    for each in records[:silent]:
        each.update(arrival_s=[], read=[], tokens=[])
    return found(records, natural())


def running(tokens: list[int], source: str = "running usage") -> dict[str, Finding]:
    return found(rows(tokens=tokens, output_tokens=32, token_source=source), natural())


def flushed(*events: int) -> dict[str, Finding]:
    """Answers whose reads, 0.1 s apart, bring so many events of a token each."""
    read = np.repeat(np.arange(len(events)), events)
    records = rows(
        read=read.tolist(), tokens=list(range(1, len(read) + 1)), output_tokens=len(read)
    )
    for each in records:
        each["arrival_s"] = (each["sent_s"] + 0.1 * (read + 1)).tolist()
        each["end_s"] = each["arrival_s"][-1]
    return found(records, natural())


def whole(gap_s: float = 0.0, read: Any = (0, 0, 0, 0), **changed: Any) -> dict[str, Finding]:
    """Answers whose tokens arrive at once, or so far apart."""
    arrival_s = [5.0 + gap_s * number for number in range(4)]
    kinds = found(rows(arrival_s=arrival_s, read=list(read), end_s=arrival_s[3], **changed))
    assert gap_s or not {"events_coalesced", "client_read_late"} & set(kinds)
    return kinds


def fleet(*pace_s: float | None) -> dict[str, Finding]:
    parts = [
        ReplicaPart(
            requests=Requests(),
            output_tokens=0,
            replica=i,
            url=f"http://{i}",
            tpot_s=Latency(p50=p50_s),
        )
        for i, p50_s in enumerate(pace_s)
    ]
    return found(rows(), replicas=parts)


def connected(
    fresh: int, wait_s: float = 0.0, count: int = 400, e2e_s: float = 0.4
) -> dict[str, Finding]:
    """A closed loop of 8 slots; `fresh` requests after the first eight on a connection of their
    own."""
    records = closed(8, count, lambda _: e2e_s)
    for number, each in enumerate(records):
        each["reused_connection"] = not (number < 8 or number < 8 + fresh)
        each["intended_s"] -= 0.0 if each["reused_connection"] else wait_s
    return found(records, plan_of(Load("concurrency", 8), count, warm=8))


def at_once() -> dict[str, Finding]:
    """A burst, in which each request needs its own connection."""
    burst = rows(reused_connection=False)
    rng = np.random.default_rng(0)
    for each in burst:
        each.update(intended_s=0.0, sent_s=0.0)
        each["arrival_s"] = [t + float(rng.uniform(0, 1e-4)) for t in each["arrival_s"]]
    return found(burst, plan_of(Load("burst", 400)))


def resent(count: int, of: int = 400, kept: int = 400) -> dict[str, Finding]:
    records = rows(of)
    for each in records[kept:]:
        each["reused_connection"] = False
    return found(records, plan_of(LOAD, of), info=CellInfo(load=LOAD, requests_resent=count))


def in_one_piece(**changed: Any) -> dict[str, Finding]:
    records = rows(read=[0], **changed)
    for each in records:
        each["arrival_s"] = each["arrival_s"][3:]
    kinds = found(records, target=structs.replace(TARGET, streams=False))
    kinds.pop("few_samples", None)  # it is about how many independent values these are worth
    return kinds


def early_first(
    first_s: float, second_s: float, early: int = COUNT, **told: int
) -> dict[str, Finding]:
    made = rows(output_tokens=10, tokens=list(range(1, 11)), read=list(range(10)))
    for i, each in enumerate(made):
        first, second = (first_s, second_s) if i < early else (second_s, second_s + 0.1)
        own = np.random.default_rng(i).uniform(0, 5e-5, 10)
        times = own + each["sent_s"] + [first, *(second + 0.1 * k for k in range(9))]
        each["arrival_s"] = [float(t) for t in times]
        each["end_s"] = each["arrival_s"][-1]
    return found(made, natural(10), info=CellInfo(load=LOAD, **told))


LATE, TOGETHER, UNDER, OVER = (
    "client_read_late",
    "events_coalesced",
    "tpot_understated",
    "ttft_overstated",
)
BUNCHED, FRESH, RESENT = "arrivals_bunched", "connections_not_kept", "requests_resent"
CASES: list[Case] = [
    # The client itself.
    ("=", None, {}, lambda: ran(8.9)),
    ("client_saturated", "warning", {"workers": 1, "cpu_s": 9.5, "duration_s": 10, "share": 0.95}, lambda: ran(9.5)),
    ("=", None, {}, lambda: ran(9.5, workers=2)),
    ("client_saturated", "warning", {"workers": 2, "cpu_s": 19}, lambda: ran(19, workers=2)),
    ("=", None, {}, lambda: ran(0.95, 0.95)),
    ("client_saturated", "warning", {}, lambda: ran(0.95, 1.0)),
    ("=", None, {}, lambda: ran(None)),
    ("=", None, {}, lambda: ran(9.5, end_s=None)),
    ("user_clock", "info", {}, lambda: found(rows(), clock="user")),
    ("=", None, {}, lambda: found(rows(), clock="packets")),
    ("packets_missed", "info", {"missed": 2, "lost": 0}, lambda: found(rows(), info=CellInfo(load=LOAD, packets_missed=2))),
    ("packets_missed", "info", {"missed": 0, "lost": 5}, lambda: found(rows(), info=CellInfo(load=LOAD, packets_lost=5))),
    # Events in one read: two of three that follow another, in a share of the answers.
    ("=", None, {}, lambda: found(rows(read=None))),
    ("=", None, {}, lambda: found(in_one_read(0.1, receive_lag_s=1e-4))),
    ("=", None, {}, lambda: found(in_one_read(0.1, receive_lag_s=0.2))),
    ("=", None, {}, lambda: found(in_one_read(59 / 400, receive_lag_s=0.2))),
    (f"={LATE}", "info", {}, lambda: found(in_one_read(60 / 400, receive_lag_s=0.2))),
    (f"={LATE}", "info", {}, lambda: found(in_one_read(299 / 400, receive_lag_s=0.2))),
    (f"={LATE}", "warning", {}, lambda: found(in_one_read(300 / 400, receive_lag_s=0.2))),
    (f"={LATE}", "info", {}, lambda: found(in_one_read(0.3, receive_lag_s=0.2))),
    ("client_read_late.spoilt", "warning", {"lag_s": 0.2}, lambda: found(in_one_read(0.9, receive_lag_s=0.2))),
    (
        TOGETHER, "info", {"share": 0.6},
        lambda: found(in_one_read(0.9)),
    ),
    # A stall is judged by the requests that it was of; the others were read at once.
    (f"={LATE}", "info", {}, lambda: found(in_one_read(0.2, stalled=True))),
    (f"={TOGETHER}", "info", {}, lambda: found(in_one_read(0.2, stalled=False))),
    # From a hundredth of the gaps on: 12 of 1,200. A stall in two answers of many tokens is in no
    # p99.
    ("client_read_late.spoilt", "warning", {"spoilt": [{"metric": "ITL", "percentile": "p99", "value_s": 0.3}]}, lambda: long_wait(12)),
    (LATE, None, {}, lambda: long_wait(3)),
    ("=", None, {}, lambda: found(rows(receive_lag_s=0.3))),  # nothing came together
    ("client_read_late.other_tool", "warning", {"itl_p50_s": 0, "itl_p99_s": 0.3}, lambda: starved_tool(source="imported")),
    (LATE, None, {}, starved_tool),  # our own reads are known, and were four
    ("=", None, {}, lambda: found(rows(), source="imported")),
    # Tokens that came with the first make TPOT too small.
    (
        UNDER, "warning",
        {"tokens": 7, "times": 1.667}, lambda: began(7, 16),
    ),
    (UNDER, "warning", {}, lambda: began(3, 16)),  # 15/13
    (UNDER, None, {}, lambda: began(2, 16)),  # 15/14
    (UNDER, None, {}, lambda: began(7, 16, share=0.4)),
    (UNDER, None, {}, lambda: began(3, 64)),
    (UNDER, None, {}, lambda: began(7, 16, receive_lag_s=0.2)),  # the client's doing
    (UNDER, None, {}, lambda: began(1, 1, share=0.6)),  # one token has no TPOT
    (UNDER, "warning", {}, lambda: began(7, 16, silent=240)),
    # Several tokens in the first event are known by a running count alone.
    # Tokens in blocks, by running counts, by a final one, and by reads; none where the first has more.
    (f"{UNDER}.blocks", "info", {"tokens": 8}, lambda: running([8, 16, 24, 32])),
    (f"{UNDER}.blocks", "info", {"tokens": 8}, lambda: running([8, 16, 24, 32], "final usage")),
    (f"{UNDER}.blocks", "info", {"tokens": 4, "times": 15 / 12}, lambda: flushed(4, 4, 4, 4)),
    (f"{UNDER}.blocks", "info", {"tokens": 3}, lambda: flushed(3, 4, 2, 4)),
    (UNDER, "warning", {"tokens": 4}, lambda: flushed(4, 2, 2, 2, 2)),
    (UNDER, "warning", {}, lambda: flushed(4, 4)),
    (UNDER, "warning", {}, lambda: running([20, 24, 28, 32])),
    (UNDER, None, {}, lambda: running([1, 11, 21, 32])),
    # First events that waited for others, as nginx holds 16 KiB of a TLS stream, and Nagle's
    # algorithm two or three.
    (
        OVER, "warning",
        {"events": 50, "held_s": 4.9}, lambda: began(50, 600),
    ),
    (UNDER, None, {}, lambda: began(50, 600)),
    (OVER, "warning", {}, lambda: began(2, 64)),  # a gap of 100 ms, and as long a TTFT
    (OVER, None, {}, lambda: began(1, 64)),
    (OVER, None, {}, lambda: began(50, 600, share=0.4)),
    (OVER, None, {}, lambda: began(50, 600, receive_lag_s=0.2)),  # the client's doing
    (OVER, None, {}, lambda: began(2, 64, sent_before_s=1.0)),  # 0.1 s of 1.1 s
    # Whole answers.
    (BUNCHED, "warning", {}, whole),
    (BUNCHED, None, {}, lambda: found(rows())),
    (BUNCHED, "warning", {}, lambda: whole(0.9e-5, range(4))),
    (BUNCHED, None, {}, lambda: whole(1.5e-5, range(4))),
    # From a tenth of E2E, 5 s less 2.015 s, on it is the client; and only where reads brought
    # several events.
    (
        "arrivals_bunched.starved", "warning", {"lag_s": 2},
        lambda: whole(receive_lag_s=2.0),
    ),
    ("arrivals_bunched.starved", "warning", {}, lambda: whole(receive_lag_s=0.30)),
    (BUNCHED, "warning", {}, lambda: whole(receive_lag_s=0.29)),
    (BUNCHED, "warning", {}, lambda: whole(read=range(4), receive_lag_s=2.0)),
    (BUNCHED, "warning", {"servers": ["http://1"]}, lambda: fleet(0.1, 0.0)),
    (BUNCHED, None, {}, lambda: fleet(0.1, 2e-5)),
    (BUNCHED, None, {}, lambda: fleet(0.1, None)),
    # Connections.
    ("=", None, {}, lambda: connected(199)),
    (f"={FRESH}", "info", {}, lambda: connected(200)),
    (FRESH, None, {}, lambda: connected(9, count=9)),
    (FRESH, "info", {}, lambda: connected(10, count=10)),
    (FRESH, "info", {}, lambda: connected(400)),
    (
        "connections_not_kept.slow", "warning",
        {"fresh": 400, "requests": 400, "late_s": 0.1}, lambda: connected(400, 0.1),
    ),
    # Connecting is dear from a twentieth of E2E and 5 ms on.
    (FRESH, "info", {}, lambda: connected(400, 0.019)),
    (FRESH, "warning", {}, lambda: connected(400, 0.021)),
    (FRESH, "info", {}, lambda: connected(400, 0.0045, e2e_s=0.04)),
    (FRESH, "warning", {}, lambda: connected(400, 0.0055, e2e_s=0.04)),
    ("=", None, {}, lambda: found(rows(reused_connection=None))),
    (FRESH, None, {}, lambda: found(rows(6, reused_connection=False))),
    (FRESH, None, {}, at_once),
    (RESENT, None, {}, lambda: resent(0)),
    (RESENT, "info", {}, lambda: resent(4)),  # 1 %
    (RESENT, "warning", {}, lambda: resent(5)),
    (RESENT, "info", {}, lambda: resent(4, 100, 100)),  # few
    # None of the kept connections served twice.
    (RESENT, "info", {"resent": 5, "requests": 400, "share": 0.0125}, lambda: resent(5, kept=5)),
    (RESENT, "warning", {}, lambda: resent(5, kept=6)),
    # Answers in one piece.
    ("=not_streamed", "info", {}, lambda: in_one_piece(tokens=[4])),
    (
        "no_usage.whole", "warning",
        {},
        lambda: in_one_piece(tokens=[1], output_tokens=1, token_source="pieces"),  # noqa: S106
    ),
    # A first event long before the second.
    ("first_event_early", "warning", {}, lambda: early_first(0.005, 1.0)),
    ("first_event_early", "warning", {}, lambda: early_first(0.005, 0.32)),
    ("first_event_early", None, {}, lambda: early_first(0.005, 0.28)),  # no more than three steps
    ("first_event_early", None, {}, lambda: early_first(0.6, 1.0)),  # the first took longer
    ("first_event_early", None, {}, lambda: early_first(0.005, 1.0, early=COUNT // 2)),
    # First events that differ are the model's own, whose prompt then goes to other workers.
    ("first_event_early", None, {}, lambda: early_first(0.005, 1.0, openings=400, openings_alike=90)),
    ("first_event_early", "warning", {}, lambda: early_first(0.005, 1.0, openings=400, openings_alike=110)),
    ("first_event_early", "warning", {}, lambda: early_first(0.005, 1.0, openings=400, openings_blank=110)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_findings_about_the_client(case: Case) -> None:
    check(case)


def test_first_events_that_were_read_late_spoil_ttft_and_tpot_by_name() -> None:
    """A stall over the first tokens of four answers in 400 is in the p99; over those of half of
    them, in the p50."""
    assert first_late(3) == []
    assert first_late(4) == ["TTFT p99", "TPOT p99"]  # 8 of 1,200 gaps are no p99
    assert first_late(6) == ["TTFT p99", "TPOT p99", "ITL p99"]
    assert first_late(200)[:3] == ["TTFT p50", "TTFT p99", "TPOT p50"]
    assert all(
        name.startswith("ITL") for name in first_late(4, first=1)
    )  # alone in its read: its stamp is its own
    assert first_late(4, lag_s=1e-4) == []  # the client read at once


def collected(
    seed: int,
    by_answer: float = 0.01,
    by_prompt: float = 0.0,
    paced: float = 0.02,
    tied: bool = False,
    equal: bool = False,
) -> dict[str, Finding]:
    """Answers of 4 events that stand for drawn lengths: TTFT is 20 ms and `by_answer` for each of
    their tokens, `by_prompt` for each of the prompt's; TPOT has a spread of `paced`. `tied`: longer
    prompts get longer answers; `equal`: all answers are of one length, but for those of the
    warm-up.
    """
    rng, slots = np.random.default_rng(seed), 8
    plan = plan_of(Load("concurrency", slots), 100, slots)
    records = closed(slots, 100)
    for number, each in enumerate(records):
        prompt = int(rng.integers(50, 400))
        output = int(prompt / 4 + rng.integers(0, 15)) if tied else int(rng.integers(10, 100))
        if equal:
            prompt, output = 100, 64 if number >= slots else 8 * number + 8
        ttft_s = 0.02 + by_answer * output + by_prompt * prompt + float(rng.normal(0, 0.003))
        pace_s = 0.002 * float(rng.lognormal(0, paced)) * (output - 1) / 3
        first_s = each["sent_s"] + ttft_s
        each["arrival_s"] = [first_s + k * pace_s for k in range(4)]
        each.update(input_tokens=prompt, output_tokens=output, end_s=each["arrival_s"][-1])
        plan.input_tokens[number], plan.output_tokens[number] = prompt, output
    return found(records, plan)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("thought_s", "told"), [(1.0, True), (0.0, False), (3.0, False)])
def test_tokens_that_were_made_before_the_first_event(
    seed: int, thought_s: float, told: bool
) -> None:
    """Answers of 64 tokens, of which 4 to 24 have an event each; the others took `thought_s` times
    as long as an event before the first. Where they took no time, events hold several tokens.
    """
    rng, load = np.random.default_rng(seed), Load("concurrency", 8)
    records = closed(8, 60)
    for each in records:
        events = int(rng.integers(4, 25))
        first_s = (
            each["sent_s"] + 0.05 + 0.01 * thought_s * (64 - events) + float(rng.normal(0, 0.003))
        )
        times = [first_s + 0.01 * k for k in range(events)]
        each.update(
            arrival_s=times,
            read=list(range(events)),
            tokens=[*range(1, events), 64],
            output_tokens=64,
        )
        each["end_s"] = times[-1]
    findings = found(records, plan_of(load, 60, 8))
    assert ("tokens_not_streamed" in findings) == told
    assert "several_tokens_an_event" in findings


@pytest.mark.parametrize("seed", range(5))
def test_answers_that_are_collected_and_replayed(seed: int) -> None:
    kind = "answers_collected"
    check((kind, "warning", {}, lambda: collected(seed)))
    check((kind, "warning", {}, lambda: collected(seed, by_prompt=0.0005)))
    check((kind, "warning", {}, lambda: collected(seed, by_prompt=0.0002, tied=True)))
    # The warm-up's answers of a loop are cut.
    check((kind, "warning", {}, lambda: collected(seed, equal=True)))
    # A prompt's length may be what counts, and go with the answer's; what is even may be an engine;
    # and a pace that varies is one.
    check((kind, None, {}, lambda: collected(seed, by_answer=0, by_prompt=0.001, tied=True)))
    check((kind, None, {}, lambda: collected(seed, by_answer=0, paced=0.0)))
    check((kind, None, {}, lambda: collected(seed, by_answer=0, equal=True, paced=0.0)))
    check((kind, None, {}, lambda: collected(seed, paced=0.4)))


def test_first_tokens_that_queue_while_a_loop_fills_are_no_replay() -> None:
    """Eight slots on four servers: later warm-up requests, whose answers are longer, wait
    longer."""
    slots, free = 8, [0.0] * 4
    ready, records = [0.0] * slots, closed(slots, 100)
    for number, each in enumerate(records):
        slot = int(np.argmin(ready))
        sent_s, output = ready[slot], 64 if number >= slots else 8 * number + 8
        server = int(np.argmin(free))
        first_s = max(sent_s, free[server]) + 0.04
        last_s = first_s + 0.008 * (output - 1)
        free[server] = ready[slot] = last_s
        each.update(intended_s=sent_s, sent_s=sent_s, output_tokens=output, end_s=last_s)
        each["arrival_s"] = [float(at) for at in np.linspace(first_s, last_s, 4)]
    assert "answers_collected" not in found(
        records, plan_of(Load("concurrency", slots), 100, slots)
    )
