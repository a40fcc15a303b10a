"""Findings about the load: was it offered as planned, and did it meet one state of the server?"""

import heapq
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray

from loadstone.analyse.verdict.finding import finding as make_finding
from loadstone.analyse.verdict.steady import Change, step, trend
from loadstone.core.metrics import Requests
from loadstone.core.parts import ReplicaPart
from loadstone.core.plan import Load
from loadstone.core.record import CellInfo
from loadstone.core.verdict import Finding
from loadstone.workload.arrivals import profile_arrivals
from loadstone.workload.lengths import Length, Sessions
from loadstone.workload.schedule import make_plan
from loadstone.workload.synthetic import Synthetic
from verdict_cells import (
    COUNT,
    LOAD,
    TARGET,
    WARM,
    WORKLOAD,
    Case,
    Rows,
    check,
    closed,
    found,
    plan_of,
    row,
    rows,
)

SPOILS = {"overload", "queue_grows", "not_stationary", "warmup_leaked", "rate_not_reached"}


def opened(
    latency: Callable[[float], float], count: int = 400, rate: float = 100.0, seed: int = 1
) -> Rows:
    """An open loop: a request's TTFT is `latency` of the time it is sent at, with some noise; E2E
    as before."""
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(1 / rate, count))
    return [
        row(WARM + i, float(at[i]), ttft=latency(float(at[i])) * float(rng.uniform(0.7, 1.3)))
        for i in range(count)
    ]


# --- rate, warm-up, ends, fleets ------------------------------------------------------------------


def stretched(by: float, load: Load = LOAD, count: int = COUNT) -> dict[str, Finding]:
    records = rows(count)
    for each in records:
        each["intended_s"] = each["sent_s"] / by
    return found(records, plan_of(load, count))


def late_end() -> dict[str, Finding]:
    records = rows(30)
    records[-1].update(sent_s=records[-1]["intended_s"] + 1, end_s=records[-1]["end_s"] + 1)
    return found(records, plan_of(LOAD, 30))


def drawn(rate: float, load: Load, count: int = 200, turns: int = 1) -> dict[str, Finding]:
    """Random arrivals at a rate; with two turns, half of them begin a session."""
    records = opened(lambda _: 0.1, count, rate)
    for number, each in enumerate(records):
        each["turn"] = number % turns
    return found(records, plan_of(load, count))


def handed_over(load: Load, still: int, warm: int = 100) -> dict[str, Finding]:
    """Warm-up requests before a clean cell, `still` of them under way when it begins at 0.02 s."""
    before = []
    for index in range(warm):
        end_s = 0.3 if index < still else 0.01
        before.append(row(1000 + index, -1 + index / warm, phase="warmup", end_s=end_s))
    return found(before + rows(), plan_of(load, warm=warm))


def warmed(refused: int) -> dict[str, Finding]:
    """A closed loop, so many of whose warm-up requests failed."""
    records = closed(8, 100)
    for each in records[:refused]:
        each.update(
            status="error", http_status=503, arrival_s=[], read=[], tokens=[], output_tokens=None
        )
    return found(records, plan_of(Load("concurrency", 8), 100, 8))


def held(later_s: float, **changed: Any) -> dict[str, Finding]:
    """Answers that end so long after their last output."""
    records = closed(8, 100)
    for each in records:
        each["end_s"] += later_s
    return found(
        records, plan_of(Load("concurrency", 8), 100, 8), target=structs.replace(TARGET, **changed)
    )


def shared(*shares: float | None) -> dict[str, Finding]:
    """A fleet whose servers gave these shares of the output."""
    parts = [
        ReplicaPart(
            requests=Requests(), output_tokens=0, replica=i, url=f"http://{i}", token_share=share
        )
        for i, share in enumerate(shares)
    ]
    return found(rows(), replicas=parts)


POISSON, LOOP, BURST = Load("rate", 100.0), Load("concurrency", 60), Load("burst", 400)
SLOW, CHANCE, LEAKED = "rate_not_reached", "rate_by_chance", "warmup_leaked"
STILL = "were still under way when the first measured one was sent"
CASES: list[Case] = [
    (SLOW, None, {}, lambda: stretched(1.04)),
    (SLOW, "warning", {"planned_per_s": 106, "share": 0.9434}, lambda: stretched(1.06)),
    (SLOW, "warning", {"sent_per_s": 100, "planned_per_s": 125, "share": 0.8}, lambda: stretched(1.25)),
    (SLOW, None, {}, lambda: stretched(1.25, LOOP)),
    # that is told
    (SLOW, None, {}, lambda: stretched(1.25, Load("rate", 100.0, max_concurrency=60))),
    (SLOW, None, {}, lambda: stretched(1.25, count=19)),
    (SLOW, "warning", {}, lambda: stretched(1.25, count=20)),
    (SLOW, None, {}, late_end),
    (CHANCE, None, {}, lambda: drawn(100, POISSON)),
    (
        CHANCE, "info", {"requests": 200, "drawn_per_s": 122.0, "requested_per_s": 100},
        lambda: drawn(128, POISSON),
    ),
    # Even gaps are never off by chance, a trace's are its own, and few say nothing.
    (CHANCE, None, {}, lambda: drawn(128, LOAD)),
    (CHANCE, None, {}, lambda: drawn(128, Load("rate", 100.0, "trace"))),
    (CHANCE, None, {}, lambda: drawn(128, Load("rate", 100.0, profile=((1, 200, 4),)))),
    # 50 of them begin in a second
    (CHANCE, None, {}, lambda: drawn(100, Load("rate", 50.0), turns=2)),
    (CHANCE, None, {}, lambda: drawn(200, POISSON, 19)),
    (CHANCE, "info", {}, lambda: drawn(200, POISSON, 20)),
    # 100 requests/s came: of 90 that is 11 % more, of 111 9.9 % less.
    (
        CHANCE, "info", {"requests": 400, "drawn_per_s": 100, "requested_per_s": 90},
        lambda: found(rows(), plan_of(Load("rate", 90))),
    ),
    (CHANCE, None, {}, lambda: found(rows(), plan_of(Load("rate", 91)))),
    (CHANCE, None, {}, lambda: found(rows(), plan_of(Load("rate", 111)))),
    (
        CHANCE, "info", {"requests": 400, "drawn_per_s": 100, "requested_per_s": 112},
        lambda: found(rows(), plan_of(Load("rate", 112))),
    ),
    # 41 requests are under way at any time: twice as many, and four.
    (LEAKED, None, {}, lambda: handed_over(LOAD, 86)),
    (
        LEAKED, "warning", {"under_way": 87, "usual": 86},
        lambda: handed_over(POISSON, 87),
    ),
    (LEAKED, None, {}, lambda: handed_over(LOOP, 60)),
    (LEAKED, "warning", {"under_way": 61, "usual": 60}, lambda: handed_over(LOOP, 61)),
    (LEAKED, None, {}, lambda: handed_over(BURST, 0)),
    (LEAKED, "warning", {"under_way": 1}, lambda: handed_over(BURST, 1)),
    ("warmup_failed", None, {}, lambda: warmed(4)),
    ("warmup_failed", "warning", {"failed": 5, "requests": 8}, lambda: warmed(5)),
    ("warmup_failed", "warning", {"failed": 8, "requests": 8}, lambda: warmed(8)),
    ("ends_late", None, {}, lambda: held(0.015)),
    ("ends_late", "warning", {}, lambda: held(0.03)),
    (
        "ends_late", "warning", {"held_s": 1, "share": 0.7143},
        lambda: held(1.0),
    ),
    ("ends_late", None, {}, lambda: held(1.0, endpoint="offline")),
    ("=", None, {}, lambda: shared(0.6, 0.4)),
    ("=", None, {}, lambda: shared(0.62, 0.38)),
    ("=fleet_imbalance", "info", {}, lambda: shared(0.625, 0.375)),
    ("=", None, {}, lambda: shared(1.0)),
    ("=", None, {}, lambda: shared(None, None)),
    (
        "fleet_imbalance", "info", {"url": "http://1", "share": 0.8, "times": 1.6},
        lambda: shared(0.2, 0.8),
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_findings_about_the_load(case: Case) -> None:
    check(case)


# --- trends and steps of blocks -------------------------------------------------------------------


def blocks(*medians: float) -> NDArray[np.float64]:
    """Values in blocks of five, with these medians and others about them."""
    return np.array([[m - 90, m, m + 90, m, m] for m in map(float, medians)]).ravel()


def test_a_trend_is_steady() -> None:
    assert trend(blocks(*range(10))) == Change(1, 8)
    assert trend(blocks(*range(10))[::-1]) == Change(8, 1)
    assert trend(blocks(*range(10))[1:]) is None  # 49 values
    # Of 45 pairs 5 the other way round make a τ of 0.78; 6 make one of 0.73.
    assert trend(blocks(2, 3, 1, 0, 4, 5, 6, 7, 8, 9)) == Change(2, 8)
    assert trend(blocks(3, 2, 1, 0, 4, 5, 6, 7, 8, 9)) is None
    assert trend(blocks(*[1] * 10)) is None
    # What rises and then stays has risen: of τ_b's pairs those within the last seven blocks tell
    # nothing.
    assert trend(blocks(1, 2, 3, 4, 5, 5.01, 5, 5, 5.01, 5)) == Change(2, 5)
    assert trend(blocks(1, 5, 5, 5, 5.01, 5, 5, 5, 5.01, 5)) is None
    assert trend(blocks(1, 1, 1, 1, 1, 5, 5, 5, 5, 5)) is None  # that is a step


@pytest.mark.parametrize(
    ("medians", "change"),
    [
        ((1, 1, 1, 9, 9, 9, 9, 9, 9, 9), Change(1, 9, 0.3)),
        ((9, 9, 9, 9, 9, 9, 9, 1, 1, 1), Change(9, 1, 0.7)),
        ((1, 1, 9, 9, 9, 9, 9, 9, 9, 9), None),  # two blocks are no state
        ((9, 9, 9, 9, 9, 9, 9, 9, 1, 1), None),
        ((1, 1, 1, 1, 1, 1, 1, 1, 1, 1), None),
        # As far apart as those of a kind are from one another, and less far.
        ((1, 2, 3, 5, 5, 5, 5, 5, 5, 5), Change(2, 5, 0.3)),
        ((1, 2, 3, 4, 4, 4, 4, 4, 4, 4), None),
        ((5, 5, 5, 5, 5, 5, 5, 3, 2, 1), Change(5, 2, 0.7)),
        ((5, 5, 5, 5, 5, 5, 5, 8, 9, 10), Change(5, 9, 0.7)),
        # It happened within the fourth block.
        ((1, 2, 1, 5.5, 9, 10, 9, 10, 9, 10), Change(1, 9.5, 0.35)),
        ((9, 10, 9, 10, 9, 10, 5.5, 1, 2, 1), Change(9.5, 1, 0.65)),
    ],
)
def test_a_step_parts_two_states(medians: tuple[float, ...], change: Change | None) -> None:
    assert step(blocks(*medians)) == change


def test_too_few_values_have_no_step() -> None:
    values = blocks(1, 1, 1, 1, 1, 9, 9, 9, 9, 9)
    assert step(values) == Change(1, 9, 0.5)
    assert step(values[1:]) is None


# --- overload -------------------------------------------------------------------------------------


def test_a_server_that_does_not_keep_up() -> None:
    finding = found(opened(lambda at: 0.05 + 2 * at))["overload"]
    assert finding.severity == "warning"
    assert finding.evidence.startswith(
        "at the last send, 3.90 s after the first, 278 of 400 requests had no first token, "
    )
    assert "not_stationary" not in found(opened(lambda at: 0.05 + 2 * at))


@pytest.mark.parametrize(("at_first_s", "overloaded"), [(0.6, True), (1.5, False)])
def test_overload_is_waiting_that_grows_two_and_a_half_times(
    at_first_s: float, overloaded: bool
) -> None:
    """A second more for each second of 4: from 1.2 to 4.0 s between the ends, or from 2.1 to 4.9
    s."""
    assert ("overload" in found(opened(lambda at: at_first_s + at))) == overloaded


@pytest.mark.parametrize(("unended", "grows"), [(9, False), (11, True)])
def test_a_queue_grows_where_a_tenth_more_begins_than_ends(unended: int, grows: bool) -> None:
    records = rows(6000)  # so many that less is more than chance
    for number, each in enumerate(records):
        if number % 100 < unended:
            each["end_s"] = each["sent_s"] + 600
    assert ("queue_grows" in found(records, plan_of(LOAD, 6000))) == grows


def test_overload_behind_a_cap_shows_from_the_intended_time() -> None:
    records = opened(lambda _: 0.05)
    for each in records:
        each["intended_s"] /= 4
    assert "overload" in found(records, plan_of(Load("rate", 400.0, max_concurrency=60)))


def test_overload_of_answers_in_one_piece() -> None:
    records = opened(lambda at: 0.05 + 2 * at)
    for each in records:
        each.update(arrival_s=each["arrival_s"][-1:], read=[0], tokens=[4])
    assert "overload" in found(records, target=structs.replace(TARGET, streams=False))


@pytest.mark.parametrize("seed", range(20))
def test_load_that_a_server_bears_is_no_overload(seed: int) -> None:
    """Poisson arrivals, noisy latencies, some of them long: chance rises and falls."""
    assert not SPOILS & set(found(opened(lambda _: 0.1, seed=seed), plan_of(Load("rate", 100.0))))
    tail = np.random.default_rng(seed)
    assert not SPOILS & set(found(opened(lambda _: float(tail.lognormal(-2, 1)), seed=seed)))
    assert not SPOILS & set(
        found(opened(lambda _: 0.1, count=60, rate=2, seed=seed), plan_of(Load("rate", 2.0), 60))
    )


def test_a_short_cell_that_only_fills_up_is_no_overload() -> None:
    records = opened(lambda _: 0.1)
    for each in records:
        each.update(
            arrival_s=[each["sent_s"] + each["arrival_s"][0] * 0 + s for s in (0.1, 2, 4, 6)]
        )
        each["end_s"] = each["sent_s"] + 6  # nothing ends while requests are sent
    assert SPOILS & set(found(records)) == {"queue_grows"}


def test_one_slow_stretch_is_no_overload() -> None:
    assert "overload" not in found(opened(lambda at: 0.5 if 2.0 < at < 2.6 else 0.05))


# --- more begins than ends ------------------------------------------------------------------------


def decoded_together(rate: float, count: int, seed: int) -> set[str]:
    """What is found where TTFT is always 20 ms, and decoding, 50 requests/s in all, is shared by
    those under way."""
    at = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))
    return SPOILS & set(found(decoded(at, 50), plan_of(Load("rate", rate), count)))


def decoded(at: NDArray[np.float64], capacity: float) -> Rows:
    """Requests at these times, where TTFT is always 20 ms and decoding, `capacity` in all, is
    shared by them."""
    count = len(at)
    begins, left, ends = at + 0.02, list[tuple[float, int]](), np.zeros(count)
    now = served = 0.0  # of each request that was there from the start, in requests
    for index in range(count + 1):
        until = begins[index] if index < count else np.inf
        while left and now + (left[0][0] - served) * len(left) / capacity <= until:
            now += (left[0][0] - served) * len(left) / capacity
            served, which = heapq.heappop(left)
            ends[which] = now
        if left:
            served += (until - now) * capacity / len(left)
        now = until
        heapq.heappush(left, (served + 1, index))
    tpot = (ends - begins) / 3
    return [row(WARM + i, float(at[i]), ttft=0.02, tpot=float(tpot[i])) for i in range(count)]


def test_more_begins_than_ends_though_first_tokens_come_at_once() -> None:
    for seed in range(3):
        assert "queue_grows" in decoded_together(100, 400, seed)
    assert "queue_grows" in decoded_together(65, 2000, 0)


def test_what_a_growing_queue_says() -> None:
    records = rows()
    for each in records[::2]:
        each["end_s"] = each["sent_s"] + 60
    finding = found(records)["queue_grows"]
    assert finding.severity == "warning"
    assert finding.evidence == (
        "requests took longer and longer up to the last: in the second half of the sends, from 2.00 s to 3.99 s, 99 "
        "ended, 200 would have if each had taken as long as before, and requests under way went from 121 to 221"
    )


@pytest.mark.parametrize("seed", range(20))
def test_shared_decoding_at_four_fifths_of_its_capacity_is_no_growing_queue(seed: int) -> None:
    assert "queue_grows" not in decoded_together(40, 60, seed)
    assert "queue_grows" not in decoded_together(40, 400, seed)


def test_filling_up_that_came_to_its_end_is_no_growing_queue() -> None:
    records = rows()
    for each in records:  # 4 s of sends; 260 under way from 2.6 s on
        each["end_s"] = each["sent_s"] + 2.6
    assert "queue_grows" not in found(records)


def test_where_growth_is_meant_or_too_little_is_known() -> None:
    records = rows()
    for each in records:
        each["end_s"] = each["sent_s"] + 60
    for load in (LOAD, RAMP, TRACE):
        assert "queue_grows" in found(records, plan_of(load))
        assert "queue_grows" not in found(records[:49], plan_of(load, 49))
    assert "queue_grows" not in found(records, plan_of(Load("burst", 400)))


# --- loads that change ----------------------------------------------------------------------------


RAMP = Load("rate", 100.0, profile=((1, 200, 4),))
TRACE = Load("rate", 100.0, process="trace")

Pieces = tuple[tuple[float, float, float], ...]


def ramped(pieces: Pieces, seed: int = 1) -> NDArray[np.float64]:
    return profile_arrivals(Load("rate", 1.0, profile=pieces), np.random.default_rng(seed))


def in_turn(at: NDArray[np.float64], places: int = 8, mean_s: float = 0.4, seed: int = 1) -> Rows:
    """Arrivals at a server of so many places: 20 requests/s, if they are 8. A queue has no
    place."""
    rng, free = np.random.default_rng(seed), [0.0] * places
    records = []
    for index, due in enumerate(map(float, at)):
        begins = max(due, heapq.heappop(free))
        lasts = mean_s * float(rng.lognormal(-0.125, 0.5))
        heapq.heappush(free, begins + lasts)
        records.append(row(WARM + index, due, ttft=begins - due + 0.1 * lasts, tpot=0.3 * lasts))
    return records


def judged(records: Rows, load: Load = TRACE) -> set[str]:
    return SPOILS & set(found(records, plan_of(load, len(records))))


@pytest.mark.parametrize("load", [TRACE, RAMP])
@pytest.mark.parametrize(
    ("pieces", "spoilt"),
    [
        (((40, 40, 60),), {"overload"}),
        (((1, 40, 60),), {"overload"}),  # it ends at a peak that is too much
        (((22, 22, 200),), {"overload"}),
        (((10, 60, 30), (60, 5, 10)), {"overload"}),  # down again, too late
        (((40, 40, 40), (20, 20, 40)), {"overload"}),  # what was too much is never made up for
        (((40, 200, 20),), {"overload"}),
        (((1, 16, 60),), set()),
        (((16, 1, 60),), set()),
        (((16, 16, 60),), set()),
        (((5, 30, 30), (30, 1, 60)), set()),  # it catches up before the end
        (
            ((60, 60, 20), (1, 1, 60)),
            set(),
        ),  # most requests are of the overload, and all are made up for
        (tuple([(8, 8, 10), (40, 40, 3)] * 6), set()),
        (((10, 10, 100), (80, 80, 3)), set()),  # a burst at the end
        (
            ((1, 1, 200), (100, 100, 3)),
            set(),
        ),  # with most of the requests, and next to nothing of the time
    ],
)
def test_a_load_that_changes_is_too_much_where_it_is_not_caught_up_with(
    pieces: Pieces, spoilt: set[str], load: Load
) -> None:
    assert judged(in_turn(ramped(pieces)), load) == spoilt


@pytest.mark.parametrize("seed", range(20))
def test_bursts_of_a_trace_that_a_server_bears(seed: int) -> None:
    """Gaps as heavy as those of recorded traffic, at three fifths of the capacity; and steps of the
    rate."""
    gaps = np.random.default_rng(seed).gamma(0.3, 1 / 0.3, 1200)
    assert not judged(in_turn(np.cumsum(gaps) / 12, seed=seed))
    steps = tuple((rate, rate, 10.0) for rate in np.random.default_rng(seed).uniform(1, 17, 12))
    assert not judged(in_turn(ramped(steps, seed), seed=seed))


def test_what_overload_of_a_load_that_changes_says() -> None:
    records = behind(0.2, 0.4)
    finding = found(records, plan_of(TRACE))["overload"]
    assert finding.severity == "warning"
    assert finding.evidence == (
        "at the last send, 3.99 s after the first, 160 of 400 requests had no first token, one of them since 1.59 s, "
        "though it takes 1.04 ms where the server is not behind; it had last caught up 1.11 s after the first send"
    )


def behind(since: float, by: float, own_s: float = 0.001) -> Rows:
    """100 requests/s; from a share of the sends on the server falls behind evenly, at last by a
    share of them."""
    records, span_s = [], 4.0
    slope = by / (1 - since)
    for index in range(COUNT):
        due = index / 100
        late = max(0.0, (due - slope * since * span_s) / (1 - slope) - due)
        records.append(row(WARM + index, due, ttft=late + own_s, tpot=1e-4))
    return records


@pytest.mark.parametrize(
    ("since", "by", "told"),
    [
        (0.0, 0.07, False),
        (0.0, 0.085, True),  # from what 400 requests may be behind by chance on
        (0.71, 0.2, True),  # it was a tenth of that at 0.74
        (0.75, 0.2, False),
    ],
)
def test_being_behind_at_the_end_is_by_much_and_for_long(
    since: float, by: float, told: bool
) -> None:
    for load in (TRACE, RAMP):
        assert ("overload" in found(behind(since, by), plan_of(load))) == told


def test_requests_that_do_not_tell_whether_a_server_keeps_up_say_so() -> None:
    few = found(opened(lambda _: 0.1, 12, 4.0), plan_of(Load("rate", 4.0), 12))
    assert few["pace_unknown"].severity == "info"
    assert few["pace_unknown"].evidence.endswith(
        " on average: too little to tell whether the server keeps up"
    )
    assert "pace_unknown" not in found(
        opened(lambda _: 0.1, 100, 4.0), plan_of(Load("rate", 4.0), 100)
    )
    assert "pace_unknown" not in found(rows(12), plan_of(Load("concurrency", 4), 12))


def test_four_times_the_capacity_shows_with_48_requests() -> None:
    at = np.sort(np.random.default_rng(1).uniform(0, 48 / 80, 48))
    assert "overload" in judged_with(in_turn(at), Load("rate", 80.0))
    at = np.sort(np.random.default_rng(1).uniform(0, 48 / 10, 48))
    assert not SPOILS & judged_with(in_turn(at), Load("rate", 10.0))


def judged_with(records: Rows, load: Load) -> set[str]:
    return set(found(records, plan_of(load, len(records))))


def test_answers_in_one_piece_that_are_behind_show_by_their_growth() -> None:
    """How long each takes goes by its tokens, whose count is known."""
    for by, kinds in ((0.4, {"overload"}), (0.06, set())):
        records = behind(0.2, by)
        for each in records:
            each.update(arrival_s=each["arrival_s"][-1:], read=[0], tokens=[4])
        spoilt = found(records, plan_of(TRACE), target=structs.replace(TARGET, streams=False))
        assert SPOILS & set(spoilt) == kinds


@pytest.mark.parametrize(("own_s", "told"), [(0.1, True), (0.3, False)])
def test_long_first_tokens_of_their_own_are_no_queue(own_s: float, told: bool) -> None:
    """0.4 s behind for the queue, and what each takes: 0.5 s are five times that, 0.7 s not two and
    a half."""
    assert ("overload" in found(behind(0.5, 0.1, own_s), plan_of(TRACE))) == told
    assert "overload" not in found(behind(0, 0, own_s), plan_of(TRACE))


@pytest.mark.parametrize(("more", "told"), [(6, False), (14, True)])
def test_a_few_requests_behind_are_no_overload(more: int, told: bool) -> None:
    """One request a second for 60 s, of which the last wait for so many others."""
    records = []
    for index in range(60):
        late = min(max(0, index - 20) / 2, more)
        records.append(row(WARM + index, float(index), ttft=0.01 + late, tpot=1e-4))
    assert ("overload" in found(records, plan_of(TRACE, 60))) == told


def test_where_requests_take_longer_though_first_tokens_come_at_once() -> None:
    """Decoding that is shared, of a ramp that ends at its peak: E2E grows, and TTFT does not."""
    at = ramped(((10, 100, 10),))
    for load in (TRACE, RAMP):
        assert SPOILS & set(found(decoded(at, 20), plan_of(load, len(at)))) == {"queue_grows"}
        assert not SPOILS & set(found(decoded(at, 150), plan_of(load, len(at))))
    there_and_back = ramped(((10, 100, 10), (100, 1, 10), (1, 1, 20)))
    assert not judged(decoded(there_and_back, 50))


def test_more_of_a_ramp_begins_than_ends_though_each_takes_as_long() -> None:
    """Half of its requests begin in the last 29 % of the time, and a fifth of those have no time to
    end."""
    at = ramped(((0, 60, 30),))
    records = [row(WARM + i, float(due), ttft=0.1, tpot=0.6) for i, due in enumerate(at)]
    assert not judged(records, RAMP)


# --- drift ----------------------------------------------------------------------------------------


def drifting(
    e2e: Callable[[float], float], count: int = 400, load: Load | None = None
) -> dict[str, Finding]:
    load = load or Load("concurrency", 8)
    return found(closed(8, count, e2e), plan_of(load, count, 8))


def test_a_cell_that_is_not_stationary() -> None:
    finding = drifting(lambda at: 0.3 + at / 50)["not_stationary"]
    assert finding.severity == "warning"
    assert finding.evidence.startswith("TTFT went steadily from ")
    assert "not_stationary" in drifting(lambda at: 0.3 * np.exp(-at / 10))  # a server that warms up


def test_decoding_that_slows_down_is_not_stationary() -> None:
    records = closed(8, 400)
    for each in records:
        first = each["arrival_s"][0]
        stretch = 1 + each["sent_s"] / 20
        each["arrival_s"] = [first + (at - first) * stretch for at in each["arrival_s"]]
    finding = found(records, plan_of(Load("concurrency", 8), warm=8))["not_stationary"]
    assert finding.evidence.startswith("TPOT went steadily from ")


@pytest.mark.parametrize("share", [0.35, 0.5, 0.63])
@pytest.mark.parametrize("count", [60, 400])
def test_a_server_that_slows_down_at_once_is_not_stationary(share: float, count: int) -> None:
    """A step is no trend: with ten blocks, five of each kind, tau is 0.56."""
    rng = np.random.default_rng(count)
    records = closed(8, count)
    for at, each in enumerate(records[8:]):
        slower = float(rng.lognormal(0, 0.05)) * (1.5 if at >= share * count else 1.0)
        each["arrival_s"] = [
            each["sent_s"] + (time_s - each["sent_s"]) * slower for time_s in each["arrival_s"]
        ]
    finding = found(records, plan_of(Load("concurrency", 8), count, 8))["not_stationary"]
    assert finding.severity == "warning"
    told = re.fullmatch(
        r"TTFT went at once from (\S+) ms to (\S+) ms after (\d+)% of the requests",
        finding.evidence,
    )
    assert told is not None
    before, after, at_percent = map(float, told.groups())
    assert (before, after) == (pytest.approx(100, rel=0.05), pytest.approx(150, rel=0.05))
    assert at_percent == pytest.approx(100 * share, abs=5)


def test_a_slow_moment_and_few_slow_answers_are_no_step() -> None:
    assert "not_stationary" not in drifting(lambda at: 1.2 if 8 < at < 11 else 0.4)
    slow = iter(range(10_000))
    assert "not_stationary" not in drifting(lambda _: 4.0 if next(slow) % 20 == 0 else 0.4)


def test_a_step_of_the_lengths_asked_for_is_no_step_of_the_server() -> None:
    plan = plan_of(Load("concurrency", 8), warm=8)
    records = closed(8, 400)
    plan.input_tokens[208:] = 300
    for each in records[208:]:
        each["input_tokens"] = 300
        each["arrival_s"] = [
            each["sent_s"] + 2 * (time_s - each["sent_s"]) for time_s in each["arrival_s"]
        ]
    assert "not_stationary" not in found(records, plan)
    plan.input_tokens[208:] = 100
    for each in records:
        each["input_tokens"] = 100
    assert "not_stationary" in found(records, plan)


@pytest.mark.parametrize(
    ("times", "first", "last", "told"),
    [
        (0.5, 8, 48, "from 50.0 ms to 100 ms after 20%"),  # as while credits last
        (2.0, 168, 208, "from 100 ms to 200 ms after 80%"),
        (2.0, 88, 128, ""),  # a slow stretch in its midst, as may come again
        (0.5, 168, 208, ""),  # as a loop ends there are fewer others
    ],
)
def test_a_loop_whose_few_first_or_last_requests_are_of_another_state(
    times: float, first: int, last: int, told: str
) -> None:
    records = closed(8, 200)
    for each in records[first:last]:
        each["arrival_s"] = [
            each["sent_s"] + (time_s - each["sent_s"]) * times for time_s in each["arrival_s"]
        ]
    kinds = found(records, plan_of(Load("concurrency", 8), 200, 8))
    assert ("not_stationary" in kinds) == bool(told)
    if told:
        assert told in kinds["not_stationary"].evidence


def two_kinds(
    times: float = 4.0,
    every: int = 3,
    *,
    ttft: bool = True,
    asked: int = 100,
    in_turn: bool = True,
    count: int = 60,
) -> dict[str, Finding]:
    """Answers of 16 tokens; one in `every`, or else as many at the end, has them so many times as
    fast, and (`ttft`) begins sooner. Its prompts have `asked` tokens, those of the others 100.
    """
    load = Load("concurrency", 8)
    plan, records = plan_of(load, count, 8), closed(8, count, output_tokens=16)
    rng = np.random.default_rng(1)
    for number, each in enumerate(records):
        fast = number % every == 0 if in_turn else number >= 8 + count - count // every
        sent, noise = each["sent_s"], float(rng.lognormal(0, 0.05))
        first = sent + 0.1 * noise / (times if fast and ttft else 1.0)
        each["arrival_s"] = [first + 0.1 * k * noise / (times if fast else 1.0) for k in range(4)]
        plan.input_tokens[number] = each["input_tokens"] = asked if fast else 100
    return found(records, plan)


CHOSEN: list[Case] = [
    ("kinds_mixed.others", "error", {"fast": 20, "answers": 60}, two_kinds),
    ("kinds_mixed.others", "error", {"fast": 10, "answers": 60}, lambda: two_kinds(every=6)),
    (
        "kinds_mixed",
        "warning",
        {"answers": 60},
        lambda: two_kinds(2.0, every=2),
    ),
    ("kinds_mixed", None, {}, lambda: two_kinds(1.3)),
    (
        "kinds_mixed",
        None,
        {},
        lambda: two_kinds(ttft=False),
    ),  # one of several prompts held up the others' decoding
    ("kinds_mixed", None, {}, lambda: two_kinds(asked=20)),  # short prompts may be decoded faster
    ("kinds_mixed", None, {}, lambda: two_kinds(in_turn=False)),  # the server's state changed
    ("kinds_mixed", None, {}, lambda: two_kinds(count=24)),
]


@pytest.mark.parametrize("case", CHOSEN)
def test_answers_of_two_kinds(case: Case) -> None:
    check(case)


def stepping(steps_s: Sequence[float], stall: int = 0) -> dict[str, Finding]:
    """Answers of a closed loop with 24 tokens, each in steps of its own; the prompt of another holds
    it up at the first `stall` of them."""
    rng = np.random.default_rng(0)
    records = closed(8, len(steps_s), warm=0)
    for number, (each, step_s) in enumerate(zip(records, steps_s, strict=True)):
        gaps = step_s * rng.uniform(0.9, 1.1, 23)
        gaps[: stall * (number % 2)] *= 20
        at = each["sent_s"] + 0.1 + np.concatenate([[0.0], np.cumsum(gaps)])
        each.update(
            arrival_s=at.tolist(), read=list(range(24)), tokens=list(range(1, 25)), output_tokens=24
        )
        each["end_s"] = each["arrival_s"][-1]
    plan = plan_of(Load("concurrency", 8), len(steps_s), 0)
    plan.output_tokens[:] = 24
    return found(records, plan)


def test_steps_tell_replicas_that_begin_as_soon() -> None:
    rng = np.random.default_rng(1)
    slow = rng.random(80) < 0.45
    kinds = stepping(np.where(slow, 0.02, 0.008).tolist())
    assert kinds["kinds_mixed"].severity == "warning"
    assert kinds["kinds_mixed"].values["fast"] == int((~slow).sum())
    assert "kinds_mixed" not in stepping(np.where(slow, 0.012, 0.008).tolist())
    # All steps are alike: others' prompts came between.
    assert not {"kinds_mixed", "paces_apart"} & set(stepping([0.008] * 80, stall=5))


@pytest.mark.parametrize(("spread", "told"), [(0.3, False), (0.7, True)])
def test_an_engine_has_one_step_for_all_that_it_serves(spread: float, told: bool) -> None:
    steps = 0.008 * np.random.default_rng(2).lognormal(0, spread, 80)
    assert ("paces_apart" in stepping(steps.tolist())) == told
    # As far apart, one after the other: the state of the machine.
    assert "paces_apart" not in stepping(np.sort(steps).tolist())


@pytest.mark.parametrize(
    ("begin", "ttft_s", "alike", "told"),
    [
        (2.0, 0.02, 20, "first_events_alike.pace"),
        (0.5, 0.02, 20, "first_events_alike.pace"),
        (1.2, 0.02, 20, "first_events_alike"),
        (2.0, 0.1, 20, "first_events_alike"),  # others' prompts may be computed at first
        (2.0, 0.02, 9, ""),
    ],
)
def test_a_gateway_s_words_have_a_pace_of_their_own(
    begin: float, ttft_s: float, alike: int, told: str
) -> None:
    records = rows()
    gaps = 0.01 * np.repeat([begin, 1.0], [16, 48])
    for each in records:
        at = each["sent_s"] + ttft_s + np.concatenate([[0.0], np.cumsum(gaps)])
        count = len(at)
        each.update(arrival_s=at.tolist(), read=list(range(count)), output_tokens=count)
        each.update(tokens=list(range(1, count + 1)), end_s=float(at[-1]))
    plan = plan_of(LOAD)
    plan.output_tokens[:] = len(gaps) + 1
    compared = {"prompts_compared": 20, "texts_compared": 20}
    info = CellInfo(load=LOAD, openings=20, openings_alike=alike, **compared)
    finding = found(records, plan, info=info).get("first_events_alike")
    assert (finding is not None) == bool(told)
    if finding is not None:
        assert finding == make_finding(told, **finding.values)


@pytest.mark.parametrize(
    ("share", "wait_s", "uncounted", "others_wait_s", "told"),
    [
        (0.65, 0.24, 1, 0.01, True),
        (1.0, 0.24, 1, 0.01, True),
        (0.65, 0.24, 2, 0.01, True),
        (0.65, 0.24, 0, 0.01, False),  # a prompt of others came between its first two tokens
        (0.65, 0.01, 1, 0.01, False),  # the end of the text has an event
        (0.65, 0.24, 1, 0.24, False),  # others' first gaps are as long
        (0.02, 0.24, 1, 0.01, False),
    ],
)
def test_first_events_that_no_count_has_are_no_tokens(
    share: float, wait_s: float, uncounted: int, others_wait_s: float, told: bool
) -> None:
    records = rows()
    for number, each in enumerate(records):
        odd = number % 100 < 100 * share
        gaps = np.concatenate([[wait_s if odd else others_wait_s], np.full(30, 0.01)])
        at = each["sent_s"] + 0.02 + np.concatenate([[0.0], np.cumsum(gaps)])
        count = len(at)
        each.update(arrival_s=at.tolist(), read=list(range(count)), end_s=float(at[-1]))
        each.update(tokens=list(range(1, count + 1)))
        each.update(output_tokens=count - uncounted * odd)
    plan = plan_of(LOAD)
    plan.output_tokens[:] = 32
    finding = found(records, plan, info=CellInfo(load=LOAD)).get("first_events_alike")
    assert (finding is not None) == told
    if finding is not None:
        assert finding.severity == "warning"


def slow_end(factor: float, share: float = 0.2, evenly: bool = True) -> dict[str, Finding]:
    """An open loop whose last requests have longer steps; or come twice as often."""
    records = rows()
    slow = round((1 - share) * len(records))
    for each in records[slow:]:
        first = each["arrival_s"][0]
        each["arrival_s"] = [first + factor * (at - first) for at in each["arrival_s"]]
    for number, each in enumerate(records):
        early_s = 0.0 if evenly else max(0, number - slow) * 0.005
        for name in ("intended_s", "sent_s", "end_s"):
            each[name] -= early_s
        each["arrival_s"] = [at - early_s for at in each["arrival_s"]]
    return found(records)


@pytest.mark.parametrize(
    ("factor", "share", "evenly", "told"),
    [
        (2.0, 0.2, True, True),
        (2.0, 0.1, True, True),
        (1.4, 0.2, True, False),
        (2.0, 0.05, True, False),
        (2.0, 0.2, False, False),
    ],
)
def test_an_open_loop_that_is_slower_at_its_end(
    factor: float, share: float, evenly: bool, told: bool
) -> None:
    finding = slow_end(factor, share, evenly).get("not_stationary")
    assert (finding is not None) == told
    if finding is not None:
        assert finding.values["at_share"] == pytest.approx(1 - share)


@pytest.mark.parametrize(("factor", "told"), [(1.0, False), (1.6, True)])
def test_drift_is_looked_for_turn_by_turn(factor: float, told: bool) -> None:
    """Later turns take longer, as their prompts are longer; sessions take turns, and then all are
    slower."""
    plan = make_plan(
        WORKLOAD,
        [Load("concurrency", 8)],
        requests=[400],
        warmup=0,
        sessions=Sessions(Length("fixed", 4)),
    )
    records = closed(8, 400, warm=0)
    for number, each in enumerate(records):
        each["turn"] = number // 8 % 4
        stretch = (1 + each["turn"]) * (factor if number > 250 else 1.0)
        each["arrival_s"] = [
            each["sent_s"] + stretch * (at - each["sent_s"]) for at in each["arrival_s"]
        ]
        each["end_s"] = each["arrival_s"][-1]
    assert ("not_stationary" in found(records, plan)) == told


@pytest.mark.parametrize(
    ("sessions", "growth", "told"), [(40, 0.02, True), (40, 0.0, False), (29, 0.02, False)]
)
def test_sessions_of_an_open_loop_are_looked_at_while_they_begin(
    sessions: int, growth: float, told: bool
) -> None:
    """One begins each second, with turns 10 s apart: waits grow until the last begins, then fall."""
    plan = make_plan(
        WORKLOAD,
        [Load("rate", 1.0)],
        requests=[3 * sessions],
        warmup=0,
        sessions=Sessions(Length("fixed", 3)),
    )
    records = []
    for index in range(3 * sessions):
        at = index // 3 + 10.0 * (index % 3)
        waits = growth * (at if at < sessions else max(0.0, 2 * sessions - at))
        records.append(row(index, at, ttft=0.1 + waits, turn=index % 3))
    assert ("not_stationary" in found(records, plan)) == told


def test_small_drift_is_let_pass() -> None:
    assert set(drifting(lambda at: 0.4 * (1 + at / 200))) <= {"few_samples", "interval_unknown"}
    assert "not_stationary" in drifting(lambda at: 0.3 + at / 10, count=30)
    assert "not_stationary" not in drifting(
        lambda at: 0.3 + at / 10, count=29
    )  # too few to tell from chance


@pytest.mark.parametrize(("later_s", "told"), [(0.078, False), (0.082, True)])
def test_a_change_of_a_twentieth_of_e2e_matters(later_s: float, told: bool) -> None:
    records = closed(8, 400)
    for number, each in enumerate(records):
        each["arrival_s"][0] = each["sent_s"] + (0.060 if number < 208 else later_s)
    kinds = found(records, plan_of(Load("concurrency", 8), warm=8))
    assert ("not_stationary" in kinds) == told
    if told:
        assert kinds["not_stationary"].evidence == (
            "TTFT went at once from 60.0 ms to 82.0 ms after 50% of the requests"
        )


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [(100, 108, True), (100, 112, False), (108, 100, True), (112, 100, False)],
)
def test_lengths_that_change_by_a_tenth_explain_latencies(
    before: int, after: int, told: bool
) -> None:
    plan = plan_of(Load("concurrency", 8), warm=8)
    records = closed(8, 400, lambda at: 0.4 if at < 10 else 0.8)
    for number, each in enumerate(records):
        plan.input_tokens[number] = each["input_tokens"] = before if number < 208 else after
    assert ("not_stationary" in found(records, plan)) == told


def test_drift_of_what_hardly_counts_is_let_pass() -> None:
    records = closed(8, 400)
    for each in records:  # TTFT trebles, from a thousandth of E2E
        each["arrival_s"][0] = each["sent_s"] + 4e-4 * (1 + each["sent_s"] / 10)
    assert "not_stationary" not in found(records, plan_of(Load("concurrency", 8), warm=8))


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_drift(seed: int) -> None:
    rng = np.random.default_rng(seed)
    few = {"few_samples", "few_rounds"}
    assert drifting(lambda _: 0.4 * float(rng.lognormal(0, 0.5))).keys() <= few
    unsure = {
        *few,
        "wide_interval",
    }  # E2E that is anything from a third to thrice as much, of eight generations
    assert drifting(lambda _: 0.4 * float(rng.lognormal(0, 1)), count=64).keys() <= unsure
    # What lasts some seconds and comes again: another process, a batch of long prompts.
    assert drifting(lambda at: 0.4 * (2 if int(at) % 5 == seed % 5 else 1)).keys() <= few


@pytest.mark.parametrize(
    ("slow", "count", "times"), [(10, 100, 8), (50, 300, 6), (18, 200, 6), (8, 48, 4), (5, 100, 4)]
)
@pytest.mark.parametrize("seed", range(3))
def test_a_warm_up_inside_the_measured_requests(
    slow: int, count: int, times: float, seed: int
) -> None:
    rng, sent = np.random.default_rng(seed), iter(range(1000))
    finding = drifting(
        lambda _: 0.4 * float(rng.lognormal(0, 0.1)) * (times if next(sent) < 8 + slow else 1),
        count=count,
    )["not_stationary"]
    if (
        "steadily" not in finding.evidence
    ):  # as chance may have it, where more than a tenth of them are slow
        told = r"(TTFT|TPOT) went at once from \S+ m?s to \S+ m?s after [\d.]+% of the requests"
        assert re.fullmatch(told, finding.evidence)
        assert "--warmup" in finding.remedy


@pytest.mark.parametrize("seed", range(20))
def test_a_slow_moment_that_comes_again_is_no_warm_up(seed: int) -> None:
    """Also where it is the first of all: a tenth of the requests and more are as slow later on."""
    rng = np.random.default_rng(seed)
    assert drifting(lambda at: 1.2 if at % 3 < 0.4 else 0.4, count=200).keys() <= {
        "few_samples",
        "wide_interval",
    }
    assert drifting(lambda _: 1.2 if rng.random() < 0.3 else 0.4, count=100).keys() <= {
        "few_samples"
    }


@pytest.mark.parametrize(("slower", "told"), [(0.10, False), (0.22, True), (0.30, True)])
@pytest.mark.parametrize("lasts", [1.0, 0.5])
def test_all_that_grows_by_a_fifth_from_end_to_end_is_no_one_state(
    slower: float, told: bool, lasts: float
) -> None:
    """Over the whole cell, or over its first half."""
    span_s = 200 / 8 * 0.45
    kinds = drifting(lambda at: 0.4 * (1 + slower * min(1.0, at / span_s / lasts)), count=200)
    assert ("not_stationary" in kinds) == told


def test_a_throughput_that_is_known_to_within_more_than_itself() -> None:
    """A third of the places' answers take ten times as long, in generations that are all slow or
    all fast."""
    loop, rng = Load("concurrency", 4), np.random.default_rng(3)
    slow_until = [0.0]

    def e2e(at: float) -> float:
        if at >= slow_until[0] and rng.random() < 0.02:
            slow_until[0] = at + 6
        return 4.0 if at < slow_until[0] else 0.3

    for count, told in ((50, True), (49, False)):
        made = closed(4, count, e2e if count == 50 else lambda at: 4.0 if at < 6 else 0.3)
        wide = found(made, plan_of(loop, count, 4)).get("wide_interval")
        assert (wide is not None) == told
        if wide is not None:
            assert "output tokens/s" in wide.evidence


def test_slow_stretches_as_long_as_the_cell_leave_its_interval_unknown() -> None:
    def e2e(at: float) -> float:
        return 0.1 * (1 + 0.4 * float(np.sin(at * 3)))

    finding = found(closed(4, 64, e2e), plan_of(Load("concurrency", 4), 64, 4))["interval_unknown"]
    assert finding.severity == "info"
    assert "TTFT, TPOT, E2E" in finding.evidence
    rng = np.random.default_rng(0)
    for _ in range(50):
        records = closed(4, 64, lambda _: 0.1 * float(rng.lognormal(0, 0.2)))
        assert "interval_unknown" not in found(records, plan_of(Load("concurrency", 4), 64, 4))


def test_what_is_meant_to_change_is_no_drift() -> None:
    def rising(at: float) -> float:
        return 0.3 + at / 50

    ramp = Load("concurrency", 8, profile=((1, 8, 60),))
    assert "not_stationary" not in drifting(rising, load=ramp)
    longer = Synthetic(Length("fixed", 100), WORKLOAD.output)
    plan = make_plan(longer, [Load("concurrency", 8)], requests=[400], warmup=8)
    plan.input_tokens[8:] = np.linspace(100, 400, 400)
    records = closed(8, 400, rising)
    for each in records:
        each["input_tokens"] = int(plan.input_tokens[int(each["request_id"][2:])])
    assert "not_stationary" not in found(records, plan)
    turns = make_plan(
        WORKLOAD,
        [Load("concurrency", 8)],
        requests=[400],
        warmup=0,
        sessions=Sessions(Length("fixed", 8)),
    )
    assert "not_stationary" not in found(closed(8, 400, rising, warm=0), turns)


# --- a closed loop in step ------------------------------------------------------------------------


def looped(
    offsets_s: NDArray[np.float64], ttft_s: NDArray[np.float64], spread_s: float, count: int = 400
) -> Rows:
    """A closed loop whose slots begin at these times, with this TTFT each; E2E is 0.4 s and up to
    `spread_s` off."""
    rng, free = np.random.default_rng(3), offsets_s.copy()
    made = []
    for index in range(count):
        slot = int(np.argmin(free))
        tpot = (
            0.4 - float(ttft_s[slot]) + rng.normal(0, 1e-4) + rng.uniform(-spread_s, spread_s)
        ) / 3
        made.append(row(WARM + index, float(free[slot]), ttft=float(ttft_s[slot]), tpot=tpot))
        free[slot] = made[-1]["end_s"]
    return made


def test_slots_of_a_closed_loop_that_stay_together() -> None:
    plan = plan_of(Load("concurrency", 8))
    pairs, same = np.repeat(np.arange(4), 2) * 0.1 + np.tile([0, 0.002], 4), np.full(8, 0.1)
    finding = found(looped(pairs, same, 0.0), plan)["phases_locked"]
    assert finding.severity == "info"
    assert "from one generation of the 8 slots to the next" in finding.evidence
    # Those that wait for the other half of their group take longer for their whole life.
    finding = found(looped(pairs, np.tile([0.06, 0.14], 4), 0.0), plan)["phases_locked"]
    assert finding.severity == "warning"
    assert "the median TTFT of a slot is anywhere from 60.0 ms to 140 ms" in finding.evidence
    even = np.arange(8) * 0.05
    for loop in (looped(even, same, 0.0), looped(pairs, same, 0.2), looped(pairs, same, 0.0, 47)):
        assert "phases_locked" not in found(loop, plan)
    # An open loop has no slots, and conversations have pauses of their own.
    for load in (Load("rate", 16.0), Load("concurrency", 8, unit="sessions")):
        assert "phases_locked" not in found(looped(pairs, same, 0.0), plan_of(load))
