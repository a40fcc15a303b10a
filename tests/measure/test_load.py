"""Which request of a step may be sent, and when."""

from __future__ import annotations

import json
import time
from collections import deque
from concurrent.futures import Future
from typing import Any

import pytest

from loadstone.core.plan import Load, Plan
from loadstone.measure.client.load import Due, StepLoad
from loadstone.measure.client.protocol import Step
from loadstone.measure.client.stream import Stream
from loadstone.measure.wires.openai import OpenAIAnswer
from loadstone.workload.lengths import Length
from loadstone.workload.pictures import FilledBody
from loadstone.workload.schedule import make_plan
from loadstone.workload.synthetic import Synthetic

WORKLOAD = Synthetic(Length("fixed", 8), Length("fixed", 4))
HOUR_NS = 3_600_000_000_000


class StandInFeed:
    """Requests by the offsets of their times from now, in hours; the order is their own."""

    def __init__(self, plan: Plan, starters: list[float], later: list[float]) -> None:
        self._plan = plan
        self._starters = deque(self._due(i, hours) for i, hours in enumerate(starters))
        self._later = deque(self._due(100 + i, hours) for i, hours in enumerate(later))
        self.ended = False

    def _due(self, order: int, hours: float) -> Due:
        request = self._plan.request(0, order % len(self._plan))
        return Due(time.monotonic_ns() + round(hours * HOUR_NS), order, request, b"", b"", None)

    def next_starter(self, number: int = 0) -> Due | None:
        return self._starters[0] if self._starters else None

    def next_later(self) -> Due | None:
        return self._later[0] if self._later else None

    def take_starter(self, number: int = 0) -> Due:
        return self._starters.popleft()

    def take_later(self) -> Due:
        return self._later.popleft()

    def end(self) -> None:
        self.ended = True
        self._starters.clear()
        self._later.clear()


def step_of(
    load: Load,
    starters: list[float],
    later: list[float] | None = None,
    *,
    part: int = 0,
    parts: int = 1,
) -> tuple[StepLoad, StandInFeed]:
    plan = make_plan(WORKLOAD, [load], requests=[20], warmup=0)
    feed: Any = StandInFeed(plan, starters, later or [])
    return StepLoad(
        Step(cell=0, first=0, last=20, part=part, parts=parts, start_ns=0), plan, feed
    ), feed


def orders(load: StepLoad, under_way: int = 0, freed_ns: int = 7) -> list[int]:
    """All that may be sent at once, by their order; each is then under way."""
    sent = []
    while (may := load.next(freed_ns, under_way + len(sent))) is not None:
        sent.append(may[0].order)
    return sent


def test_a_closed_loop_fills_its_slots_and_no_more() -> None:
    load, feed = step_of(Load("concurrency", 3), [-1] * 10)
    due = load.next(7, 0)
    assert due is not None
    assert due[1] == 7  # when its slot came free
    assert orders(load) == [1, 2]
    assert load.wake_ns is None  # until a request ends
    load.free_slot(feed._plan.request(0, 0))
    assert orders(load, 2) == [3]


@pytest.mark.parametrize(("part", "slots"), [(0, 3), (1, 2), (2, 2)])
def test_workers_share_the_slots(part: int, slots: int) -> None:
    load, _ = step_of(Load("concurrency", 7), [-1] * 10, part=part, parts=3)
    assert load.at_once == slots
    assert len(orders(load)) == slots


def test_an_open_loop_sends_what_is_due_and_says_when_to_ask_again() -> None:
    load, feed = step_of(Load("rate", 1.0), [-2, -1, 1, 2])
    following = feed._starters[2]
    first = load.next(7, 0)
    assert first is not None
    assert first[1] == first[0].due_ns  # not when something came free
    assert orders(load, 1) == [1]
    assert load.wake_ns == following.due_ns


def test_later_turns_that_are_due_go_first() -> None:
    load, feed = step_of(Load("rate", 1.0), [-1, 3], [-1, 2])
    turn = feed._later[1]
    assert orders(load) == [100, 0]
    assert load.wake_ns == turn.due_ns
    closed, feed = step_of(Load("concurrency", 1), [-1, -1], [-1, 2])
    turn = feed._later[1]
    assert orders(closed) == [100, 0]
    assert closed.wake_ns == turn.due_ns


def test_a_cap_holds_back_until_a_request_ends() -> None:
    load, _ = step_of(Load("rate", 1.0, max_concurrency=2), [-1] * 5)
    assert orders(load) == [0, 1]
    assert load.wake_ns is None
    assert orders(load, 1) == [2]


def test_a_ramp_of_places_starts_with_the_first_measured_request() -> None:
    load, feed = step_of(Load("concurrency", 8, profile=((2, 8, 1e-6), (8, 8, 3600))), [-1] * 10)
    assert load.follows_profile
    assert orders(load) == [0, 1]
    assert load.note_sent(feed._plan.request(0, 0), time.monotonic_ns() - 1_000_000)
    assert not load.note_sent(feed._plan.request(0, 1), time.monotonic_ns())
    assert len(orders(load, 2)) == 6


def test_a_closed_loop_by_time_ends_when_it_is_over() -> None:
    load, feed = step_of(Load("concurrency", 2, duration_s=60), [-1] * 5)
    assert orders(load) == [0, 1]
    load.note_sent(feed._plan.request(0, 0), time.monotonic_ns() - 59_000_000_000)
    assert not load.is_over()
    other, feed = step_of(Load("concurrency", 2, duration_s=60), [-1] * 5)
    other.note_sent(feed._plan.request(0, 0), time.monotonic_ns() - 60_000_000_000)
    assert other.is_over()
    assert orders(other) == []
    assert feed.ended


def test_the_text_of_the_first_measured_answers_is_kept_to_compare() -> None:
    load, _ = step_of(Load("concurrency", 1), [])
    plan = make_plan(WORKLOAD, [Load("concurrency", 1)], requests=[40], warmup=2)
    assert [load.keeps_text(plan.request(0, index)) for index in range(42)] == [False] * 2 + [
        True
    ] * 32 + [False] * 8


def answered(texts: list[str], tokens: int) -> Stream:
    request = make_plan(WORKLOAD, [Load("concurrency", 1)], requests=[1], warmup=0).request(0, 0)
    stream = Stream(request, b"", 0, OpenAIAnswer(keep_text=True))
    events = [{"choices": [{"index": 0, "text": text}]} for text in texts]
    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": tokens}}
    for event in (*events, usage):
        stream.answer.feed(b"data: %b\n\n" % json.dumps(event).encode())
    stream.answer.finish()
    return stream


def test_lengths_of_texts_are_those_of_events_that_are_tokens() -> None:
    load, _ = step_of(Load("concurrency", 1), [])
    load.note_text(answered([" ", "abc", " de", "f"], 9), b"a")
    load.note_text(answered([" ", " ", *"abcdefgh"], 8), b"b")  # two signs of life
    assert load.result.text_sizes == [(9, 4, 8, 1 + 9 + 9 + 1), (8, 8, 8, 8)]


def test_openings_are_counted_with_white_space_apart() -> None:
    load, _ = step_of(Load("concurrency", 1), [])
    for texts in (["a", "b"], ["a", "c"], [" ", "d"], ["\n", "e"]):
        load.note_answer(answered(texts, 2), [])
    load.note_answer(answered([" ", "a", "f"], 2), [])  # whose first event was none
    assert sorted(load.result.openings.values()) == [2, 3]
    assert load.result.openings[""] == 2


def test_answers_to_the_same_request_are_compared_once_and_a_yes_never() -> None:
    load, _ = step_of(Load("concurrency", 1), [])
    for body, texts, tokens in (
        (b"a", ["one", " text"], 8), (b"b", ["one", " text"], 8), (b"b", ["one", " text"], 9), (b"c", ["\ud800"], 8),
        (b"d", ["yes"], 7), (b"e", [], 8),
    ):  # fmt: skip
        load.note_text(answered(texts, tokens), body)
    assert len(load.result.texts) == 3
    assert len(set(load.result.texts.values())) == 2


class SoonMade(Future[FilledBody]):
    """A body that is not made yet when it is asked for."""

    def done(self) -> bool:
        return False


@pytest.mark.parametrize(("waited_ns", "late"), [(900_000, 0), (1_100_000, 1)])
def test_pictures_are_late_where_a_request_waits_for_them(
    waited_ns: int, late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a later turn are begun when it is due, and small ones made at once."""
    load, _ = step_of(Load("concurrency", 1), [-1])
    request = make_plan(WORKLOAD, [Load("concurrency", 1)], requests=[1], warmup=0).request(0, 0)
    body = SoonMade()
    body.set_result(FilledBody(b"{}", 0))
    times_ns = iter((7, 7 + waited_ns))
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(times_ns))
    assert load.take_body(Due(0, 0, request, body, b"", None)).body == b"{}"
    assert load.result.pictures_late == late
