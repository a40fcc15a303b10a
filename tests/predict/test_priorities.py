"""Priorities and limits of queues: SGLang's and vLLM's rules by hand, and queues whose means are
known."""

from __future__ import annotations

from typing import Any

import pytest

from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.core.errors import InputError
from loadstone.predict.scheduler import EnginePolicy, Scheduler, Sequence, policy_of

Rows = list[int]


def sglang(**policy: Any) -> Scheduler:
    """A scheduler as SGLang's, with one slot."""
    habits = {
        "kv_blocks": 10_000,
        "block_tokens": 1,
        "max_seqs": 1,
        "order": "prefill-first",
        "keep_free": 1.0,
        "priorities": True,
    }
    return Scheduler(EnginePolicy(**(habits | policy)))


def request(row: int, priority: int, output: int = 10, prompt: int = 5) -> Sequence:
    sequence = Sequence(row, prompt, output)
    sequence.priority = priority
    return sequence


def step(scheduler: Scheduler) -> tuple[Rows, Rows]:
    """One step: whose prompts were computed, and who ended."""
    steps = scheduler.schedule()
    computed = [sequence.row for sequence, _, _ in scheduler.chunks]
    return computed, [sequence.row for sequence in scheduler.advance(min(steps, 1))]


def served(scheduler: Scheduler) -> Rows:
    """The order in which prompts are computed from now on."""
    order: Rows = []
    while not scheduler.idle:
        order += step(scheduler)[0]
    return order


def refused(scheduler: Scheduler) -> list[tuple[int, int, str]]:
    said = [(row.sequence.row, row.status, row.reason) for row in scheduler.refused]
    scheduler.refused.clear()
    return said


HIGHER = "The request is aborted by a higher priority request."
FULL = "The request queue is full."


# --- SGLang ---------------------------------------------------------------------------------------


def test_a_full_queue_gives_its_last_place_to_a_higher_priority() -> None:
    """SGLang's own test: one runs, three wait at most, priorities 1 to 7 come in turn."""
    scheduler = sglang(max_waiting=3)
    scheduler.add(request(1, 1, output=1000))
    step(scheduler)
    gone: list[tuple[int, int, str]] = []
    for priority in range(2, 8):
        scheduler.add(request(priority, priority))
        gone += refused(scheduler)
    assert gone == [(2, 200, HIGHER), (3, 200, HIGHER), (4, 200, HIGHER)]
    assert served(scheduler) == [7, 6, 5]


def test_a_full_queue_turns_away_who_comes_with_no_higher_priority() -> None:
    """Its test the other way round: 7 runs, 6, 5, 4 wait, and 3, 2, 1 are turned away."""
    scheduler = sglang(max_waiting=3)
    scheduler.add(request(7, 7, output=1000))
    step(scheduler)
    for priority in (6, 5, 4, 3, 2, 1, 4):
        scheduler.add(request(priority, priority))
    assert refused(scheduler) == [(row, 200, FULL) for row in (3, 2, 1, 4)]
    assert served(scheduler) == [6, 5, 4]


def test_without_priorities_a_full_queue_turns_away_who_comes() -> None:
    scheduler = sglang(priorities=False, max_waiting=2)
    scheduler.add(request(0, 0))
    step(scheduler)
    for row in (1, 2, 3):
        scheduler.add(request(row, row))
    assert refused(scheduler) == [(3, 200, FULL)]
    assert served(scheduler) == [1, 2]


@pytest.mark.parametrize(("above", "order"), [(9, [1, 0]), (10, [1]), (None, [1])])
def test_running_requests_give_way_to_who_is_higher_by_more_than_the_threshold(
    above: int | None, order: Rows
) -> None:
    scheduler = sglang(preempt_above=above)
    scheduler.add(request(0, 0))
    step(scheduler)
    step(scheduler)
    scheduler.add(request(1, 10))
    assert served(scheduler) == order
    assert scheduler.preemptions == (above == 9)


@pytest.mark.parametrize(("kept", "computed"), [(False, 5 + 4), (True, 4)])
def test_who_gave_way_keeps_its_place_among_equals_and_is_computed_again(
    kept: bool, computed: int
) -> None:
    """With a prefix cache what it wrote, without one its prompt too."""
    scheduler = sglang(preempt_above=10, prefix_cache=kept)
    scheduler.add(request(0, 0, output=10))
    for _ in range(4):  # its prompt, and three tokens more
        step(scheduler)
    scheduler.add(request(1, 0))
    scheduler.add(request(2, 50, output=2))
    scheduler.schedule()
    assert [(sequence.row, new) for sequence, new, _ in scheduler.chunks] == [(2, 5)]
    assert [sequence.row for sequence in scheduler.waiting] == [0, 1]
    scheduler.advance()
    step(scheduler)
    scheduler.schedule()
    assert [(sequence.row, new) for sequence, new, _ in scheduler.chunks] == [(0, computed)]


def test_those_of_the_lowest_priority_and_the_newest_of_them_give_way() -> None:
    scheduler = sglang(preempt_above=10, max_seqs=3)
    for row, priority in enumerate((5, 0, 0)):
        scheduler.add(request(row, priority))
    step(scheduler)
    scheduler.add(request(3, 100))
    step(scheduler)
    assert [sequence.row for sequence in scheduler.running] == [0, 1, 3]
    scheduler.add(request(4, 12))
    step(scheduler)
    assert [sequence.row for sequence in scheduler.running] == [0, 3, 4]
    scheduler.add(request(5, 15))  # 10 above what is left: not more
    step(scheduler)
    assert [sequence.row for sequence in scheduler.running] == [0, 3, 4]


def test_as_many_give_way_as_leave_room_by_what_they_have_to_write() -> None:
    """SGLang counts of a victim the tokens that are still to come, not those that it holds."""
    scheduler = sglang(preempt_above=10, max_seqs=2, kv_blocks=100)
    for row in range(2):
        scheduler.add(request(row, 0, output=45))
    step(scheduler)
    scheduler.add(request(2, 100, output=75))  # lacks 80 of 100: both have 44 to write
    step(scheduler)
    assert [sequence.row for sequence in scheduler.running] == [2]
    assert [sequence.row for sequence in scheduler.waiting] == [0, 1]


def test_nobody_gives_way_for_who_would_not_fit_even_so() -> None:
    scheduler = sglang(preempt_above=10, max_seqs=2, kv_blocks=100)
    for row in range(2):
        scheduler.add(request(row, 0, output=45))
    for _ in range(10):
        step(scheduler)
    scheduler.add(request(2, 100, output=80))  # lacks 85, and both have 35 to write
    assert scheduler.schedule() == 1
    assert scheduler.preemptions == 0


SHORTHAND = "llama-3.1-8b@1xh100/engine=sglang"


def test_deployments_of_sglang_have_its_rules() -> None:
    def rules(arguments: str) -> tuple[Any, ...]:
        policy = policy_of(parse_deployment(f"{SHORTHAND}{arguments}").decoder)
        return (policy.priorities, policy.priority_sign, policy.preempt_above, policy.max_waiting)

    assert rules("") == (False, 1, None, None)
    assert rules(",enable_priority_scheduling=1") == (True, 1, 10, None)
    assert rules(
        ",enable_priority_scheduling=1,priority_scheduling_preemption_threshold=0,"
        "schedule_low_priority_values_first=1,max_queued_requests=7"
    ) == (True, -1, 0, 7)
    assert rules(",enable_priority_scheduling=1,disable_priority_preemption=1")[2] is None
    unset = {
        text: policy_of(
            parse_deployment(f"{SHORTHAND},enable_priority_scheduling=1{text}").decoder
        ).unset_priority
        for text in ("", ",default_priority_value=3")
    }
    assert unset[""] < -(1 << 60)
    assert unset[",default_priority_value=3"] == 3
    with pytest.raises(InputError, match="--default-priority-value: 'high' is not a whole number"):
        rules(",enable_priority_scheduling=1,default_priority_value=high")


# --- vLLM -----------------------------------------------------------------------------------------


def test_vllm_turns_away_by_requests_that_wait_or_run() -> None:
    scheduler = Scheduler(EnginePolicy(kv_blocks=1000, max_seqs=2, max_under_way=3))
    for row in range(5):
        scheduler.add(request(row, 0))
    assert [row for row, status, _ in refused(scheduler) if status == 503] == [3, 4]
    step(scheduler)
    scheduler.add(request(5, 0))
    assert [row for row, _, _ in refused(scheduler)] == [5]
    assert served(scheduler) == [2]
    scheduler.add(request(6, 0))
    assert refused(scheduler) == []


def test_vllm_turns_away_by_tokens_of_prompts_that_are_not_through() -> None:
    """Who brings the tokens up to the limit, or beyond it, is taken; the next one is not. A prompt
    counts whole until its first token."""
    habits = {"kv_blocks": 1000, "max_seqs": 4, "max_batched_tokens": 10}
    scheduler = Scheduler(EnginePolicy(**habits, max_queued_tokens=25))
    for row in range(3):
        scheduler.add(request(row, 0, prompt=20))
    assert [row for row, _, _ in refused(scheduler)] == [2]
    step(scheduler)  # half of the first prompt
    scheduler.add(request(3, 0, prompt=20))
    assert [row for row, _, _ in refused(scheduler)] == [3]
    step(scheduler)  # the first is through: 20 are left
    scheduler.add(request(4, 0, prompt=20))
    assert refused(scheduler) == []


def test_ranks_of_one_server_count_together() -> None:
    policy = EnginePolicy(kv_blocks=1000, max_under_way=2)
    ranks = [Scheduler(policy), Scheduler(policy)]
    for rank in ranks:
        rank.peers = ranks
    ranks[0].add(request(0, 0))
    ranks[1].add(request(1, 0))
    ranks[1].add(request(2, 0))
    assert [row for row, _, _ in refused(ranks[1])] == [2]
    assert [len(rank.waiting) for rank in ranks] == [1, 1]
