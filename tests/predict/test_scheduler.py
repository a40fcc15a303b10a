"""The scheduler: what engines do, step by step, in examples by hand; and what must hold whatever
comes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadstone.core.errors import InputError
from loadstone.predict.scheduler import EnginePolicy, Scheduler, Sequence, Speculative
from loadstone.predict.scheduler.blocks import PrefixCache, Segment, SingleBlocks
from loadstone.predict.scheduler.running import gains

Step = tuple[list[tuple[int, int, int]], int]
"""Chunks (row, new, cached) and decodes that take part."""


def step(scheduler: Scheduler) -> Step:
    scheduler.schedule()
    chunks = [(sequence.row, new, done) for sequence, new, done in scheduler.chunks]
    return chunks, scheduler.decodes if scheduler.decoding else 0


def scheduler_of(*lengths: tuple[int, int], **policy: Any) -> Scheduler:
    scheduler = Scheduler(
        EnginePolicy(**{"kv_blocks": 1000, "max_seqs": 8, "max_batched_tokens": 100} | policy)
    )
    for row, (prompt, output) in enumerate(lengths):
        scheduler.add(Sequence(row, prompt, output))
    return scheduler


def rows(sequences: list[Sequence]) -> list[int]:
    return [sequence.row for sequence in sequences]


# --- by hand --------------------------------------------------------------------------------------


def test_mixed_steps_give_prompts_what_the_decodes_leave() -> None:
    scheduler = scheduler_of((60, 5), (60, 5))
    assert step(scheduler) == ([(0, 60, 0), (1, 40, 0)], 0)
    scheduler.advance()
    assert rows(scheduler.begun) == [0]
    assert scheduler.has_prompts
    assert step(scheduler) == ([(1, 20, 40)], 1)
    assert not scheduler.has_prompts
    assert scheduler.context_tokens == 61  # the prompt and the token it gave
    scheduler.advance()
    assert step(scheduler) == ([], 2)
    assert scheduler.context_tokens == 62 + 61


def test_new_requests_are_looked_for_every_so_many_decode_steps() -> None:
    scheduler = scheduler_of((60, 90), order="prefill-first", poll_steps=5)
    assert step(scheduler) == ([(0, 60, 0)], 0)
    scheduler.add(Sequence(1, 10, 9))  # during the step with prompts: after it, they are looked for
    scheduler.add(Sequence(2, 10, 9))
    scheduler.advance()
    assert step(scheduler) == ([], 1)
    assert scheduler.schedule() == 5
    scheduler.advance(2)
    scheduler.add(Sequence(3, 10, 9))
    assert scheduler.schedule() == 3  # the rest of the five
    scheduler.advance(3)
    scheduler.add(Sequence(4, 10, 9))  # just in time
    assert step(scheduler) == ([(1, 10, 0), (2, 10, 0), (3, 10, 0), (4, 10, 0)], 0)
    scheduler.advance()
    # Steps are counted from there on.
    assert step(scheduler) == ([], 5)
    scheduler.advance(1)
    scheduler.add(Sequence(5, 10, 9))
    assert scheduler.schedule() == 4


def test_who_came_before_a_step_with_prompts_is_seen_after_it() -> None:
    scheduler = scheduler_of((60, 90), (60, 90), order="prefill-first", poll_steps=50)
    assert step(scheduler) == ([(0, 60, 0), (1, 40, 0)], 0)
    scheduler.add(Sequence(2, 10, 9))
    scheduler.advance()
    assert step(scheduler) == ([(1, 20, 40)], 0)
    scheduler.advance()
    assert step(scheduler) == ([(2, 10, 0)], 0)


def test_a_request_that_leaves_unseen_is_not_counted_on() -> None:
    scheduler = scheduler_of((60, 90), order="prefill-first", poll_steps=5)
    step(scheduler)
    scheduler.advance()
    gone, stays = Sequence(1, 10, 9), Sequence(2, 10, 9)
    scheduler.add(gone)
    scheduler.add(stays)
    scheduler.abort(gone)
    assert scheduler.schedule() == 5
    scheduler.advance(5)
    assert step(scheduler) == ([(2, 10, 0)], 0)


def test_prompts_that_are_held_wait_while_others_decode() -> None:
    scheduler = scheduler_of((60, 90))
    step(scheduler)
    scheduler.advance()
    scheduler.add(Sequence(1, 10, 9))
    assert scheduler.has_prompts
    assert scheduler.schedule(hold=True) == 89
    scheduler.advance(3)
    assert step(scheduler) == ([(1, 10, 0)], 1)
    scheduler.advance()
    assert not scheduler.has_prompts


def test_prompts_wait_for_company_while_others_decode_but_not_for_ever() -> None:
    scheduler = scheduler_of((60, 90), gather_steps=20, gather_tokens=80)
    assert step(scheduler) == ([(0, 60, 0)], 0)  # nobody decodes: at once
    scheduler.advance()
    assert scheduler.schedule() == 89  # nobody waits
    scheduler.advance(3)
    scheduler.add(Sequence(1, 10, 90))
    assert scheduler.open
    assert (scheduler.schedule(), scheduler.chunks) == (20, [])
    scheduler.advance(8)
    assert (scheduler.schedule(), scheduler.chunks) == (12, [])
    scheduler.advance(12)
    assert step(scheduler) == ([(1, 10, 0)], 1)
    scheduler.advance()
    scheduler.add(Sequence(2, 10, 9))
    assert (scheduler.schedule(), scheduler.chunks) == (20, [])
    scheduler.advance(5)
    scheduler.add(Sequence(3, 68, 9))  # with the two that decode, 80
    assert step(scheduler) == ([(2, 10, 0), (3, 68, 0)], 2)


def test_guesses_are_company_too() -> None:
    for prompt, waits in ((75, True), (76, False)):
        scheduler = scheduler_of(
            (60, 90), gather_steps=20, gather_tokens=80, speculative=Speculative(3, 0.0)
        )
        step(scheduler)
        scheduler.advance()
        scheduler.add(Sequence(1, prompt, 9))  # with a token and three guesses, 79 or 80
        assert (step(scheduler) == ([], 1)) is waits


def test_nobody_waits_for_company_where_no_place_is_free() -> None:
    scheduler = scheduler_of((60, 9), max_seqs=1, gather_steps=20, gather_tokens=80)
    step(scheduler)
    scheduler.advance()
    scheduler.add(Sequence(1, 10, 9))
    assert (scheduler.schedule(), scheduler.open) == (8, False)
    scheduler.advance(8)
    assert step(scheduler) == ([(1, 10, 0)], 0)


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_steps_in_which_nothing_fits_are_no_wait_for_company(prefix_cache: bool) -> None:
    scheduler = scheduler_of(
        (40, 90),
        (40, 30),
        kv_blocks=14,
        keep_free=1.0,
        gather_steps=20,
        gather_tokens=99,
        prefix_cache=prefix_cache,
    )
    assert step(scheduler) == ([(0, 40, 0), (1, 40, 0)], 0)
    scheduler.advance()
    scheduler.add(Sequence(2, 10, 60))
    waited = 0
    while not (chunks := step(scheduler)[0]):
        waited += 1
        scheduler.advance()
    assert chunks == [(2, 10, 0)]
    assert waited == 29 + 20  # until the second ends, and then for company


def test_prompts_go_first_and_alone_as_in_sglang() -> None:
    scheduler = scheduler_of((60, 5), order="prefill-first")
    assert step(scheduler) == ([(0, 60, 0)], 0)
    scheduler.advance()
    scheduler.add(Sequence(1, 150, 5))
    assert step(scheduler) == ([(1, 100, 0)], 0)
    scheduler.advance()
    assert step(scheduler) == ([(1, 50, 100)], 0)
    scheduler.advance()
    assert step(scheduler) == ([], 2)


def test_whole_prompts_wait_for_room_in_a_step_and_have_it_alone_if_they_are_too_long() -> None:
    scheduler = scheduler_of((60, 5), (60, 5), (130, 5), chunked=False)
    assert step(scheduler) == ([(0, 60, 0)], 0)
    scheduler.advance()
    assert step(scheduler) == ([(1, 60, 0)], 1)
    scheduler.advance()
    # Longer than any step: it waits until nothing else runs, and then goes whole.
    assert step(scheduler) == ([], 2)
    while scheduler.decodes:
        scheduler.schedule()
        scheduler.advance()
    assert step(scheduler) == ([(2, 130, 0)], 0)


def test_quiet_steps_are_counted_to_the_next_end_and_taken_at_once() -> None:
    scheduler = scheduler_of((10, 5), (10, 9))
    scheduler.schedule()
    scheduler.advance()
    assert scheduler.schedule() == 4
    assert scheduler.context_tokens == 22
    assert rows(scheduler.advance(3)) == []
    assert scheduler.context_tokens == 28
    assert scheduler.schedule() == 1
    assert rows(scheduler.advance()) == [0]
    assert scheduler.schedule() == 4
    assert scheduler.context_tokens == 15
    assert rows(scheduler.advance(4)) == [1]
    assert scheduler.idle
    assert scheduler.schedule() == 0


def test_many_end_one_after_the_other() -> None:
    scheduler = scheduler_of(*[(1, 2 + 3 * row) for row in range(40)], max_seqs=40)
    scheduler.schedule()
    scheduler.advance()
    for row in range(40):
        steps = scheduler.schedule()
        assert (steps, rows(scheduler.advance(steps))) == (3 if row else 1, [row])


def test_a_single_token_ends_with_its_prompt() -> None:
    scheduler = scheduler_of((10, 1))
    scheduler.schedule()
    assert rows(scheduler.advance()) == [0]
    assert scheduler.idle


def test_places_are_as_many_as_max_seqs() -> None:
    scheduler = scheduler_of((10, 3), (10, 3), (10, 3), max_seqs=2)
    assert step(scheduler) == ([(0, 10, 0), (1, 10, 0)], 0)
    scheduler.advance()
    assert step(scheduler) == ([], 2)
    assert not scheduler.open
    assert not scheduler.has_prompts
    scheduler.advance(2)
    assert step(scheduler) == ([(2, 10, 0)], 0)


@pytest.mark.parametrize(("prefix_cache", "found"), [(False, 0), (True, 16)])
def test_the_newest_gives_way_and_is_computed_again(prefix_cache: bool, found: int) -> None:
    # Two of 16 + 5 in 3 blocks of 16: both prompts fit, then one block is left for two.
    scheduler = scheduler_of((16, 6), (16, 6), kv_blocks=3, prefix_cache=prefix_cache)
    assert step(scheduler) == ([(0, 16, 0), (1, 16, 0)], 0)
    scheduler.advance()
    assert step(scheduler) == ([], 1)
    assert scheduler.preemptions == 1
    assert scheduler.used_blocks() == 1
    assert rows(list(scheduler.waiting)) == [1]
    # Nothing is let in during the step that took a request's place.
    assert rows(scheduler.advance()) == []
    assert scheduler.used_blocks() == 2
    # It comes back as a prompt of 17: what it had written is computed too. Two blocks, and one is
    # free: where blocks are kept after use, its own, for nobody took it meanwhile.
    assert step(scheduler) == ([], 1)
    assert scheduler.schedule() == 4
    assert rows(scheduler.advance(4)) == [0]
    assert step(scheduler) == ([(1, 17 - found, found)], 0)
    assert rows(scheduler.advance()) == []
    assert scheduler.schedule() == 4
    assert rows(scheduler.advance(4)) == [1]
    assert (scheduler.prompt_tokens, scheduler.written_tokens) == (32, 12)  # each once
    assert scheduler.cache_queries == 0


def test_quiet_steps_end_where_blocks_run_short() -> None:
    scheduler = scheduler_of((16, 20), (16, 20), kv_blocks=4)
    step(scheduler)
    scheduler.advance()
    assert scheduler.schedule() == 16  # two blocks each: 16 tokens and 16 more
    assert scheduler.advance(16) == []
    assert scheduler.used_blocks() == 4
    assert step(scheduler) == ([], 1)
    assert scheduler.preemptions == 1


def test_blocks_of_those_under_way_are_counted_from_when_they_may_run_short() -> None:
    scheduler = scheduler_of((16, 40), kv_blocks=5)
    step(scheduler)
    scheduler.advance()
    scheduler.schedule()
    scheduler.advance(3)
    scheduler.add(Sequence(1, 16, 20))
    assert step(scheduler) == ([(1, 16, 0)], 1)
    scheduler.advance()
    assert (
        scheduler.schedule() == 16
    )  # the first's third block comes after 13 steps; then none is free for a sixth
    scheduler.advance(13)
    assert scheduler.used_blocks() == 5


@pytest.mark.parametrize(("prefix_cache", "chunk"), [(False, (1, 100, 0)), (True, (1, 60, 80))])
def test_a_prompt_whose_next_part_finds_no_blocks_begins_anew(
    prefix_cache: bool, chunk: tuple[int, int, int]
) -> None:
    scheduler = scheduler_of((16, 9), (140, 9), kv_blocks=10, prefix_cache=prefix_cache)
    assert step(scheduler) == (
        [(0, 16, 0), (1, 84, 0)],
        0,
    )  # all nine of its blocks are free when it is let in
    scheduler.advance()
    assert step(scheduler) == ([], 1)  # of the last three one is the decode's
    assert (scheduler.preemptions, scheduler.used_blocks()) == (1, 1)
    scheduler.advance(scheduler.schedule())
    assert step(scheduler) == ([chunk], 0)  # where blocks are kept, all but its five full ones


@pytest.mark.parametrize(
    ("order", "chunk"),
    [
        (
            "mixed",
            (1, 9, 24),
        ),  # vLLM: all that it had filled, but what the other has taken since, its last first
        ("prefill-first", (1, 17, 16)),  # SGLang: what of it is prompt; answers are freed
    ],
)
def test_who_gave_way_finds_again_what_nobody_took(order: str, chunk: tuple[int, int, int]) -> None:
    scheduler = scheduler_of((16, 24), (16, 30), kv_blocks=8, block_tokens=8, order=order)
    step(scheduler)
    scheduler.advance()
    scheduler.advance(scheduler.schedule())  # 16 steps, and four blocks each
    assert step(scheduler) == ([], 1)
    assert scheduler.preemptions == 1
    scheduler.advance()
    assert rows(scheduler.advance(scheduler.schedule())) == [0]
    assert step(scheduler) == ([chunk], 0)
    scheduler.advance()
    assert rows(scheduler.advance(scheduler.schedule())) == [1]
    assert (scheduler.prompt_tokens, scheduler.written_tokens, scheduler.used_blocks()) == (
        32,
        54,
        0,
    )


def test_a_prompt_is_let_in_where_all_of_it_fits_not_only_its_first_chunk() -> None:
    scheduler = scheduler_of((100, 2), (100, 2), kv_blocks=10)
    assert step(scheduler) == ([(0, 100, 0)], 0)
    scheduler.advance()
    assert step(scheduler) == ([], 1)  # 7 blocks are used, 3 free; it needs 7


def test_tensorrt_llm_lets_in_what_is_sure_to_fit_and_never_preempts() -> None:
    scheduler = scheduler_of((16, 17), (16, 17), kv_blocks=3, keep_free=1.0)
    assert step(scheduler) == ([(0, 16, 0)], 0)
    scheduler.advance()
    assert scheduler.schedule() == 16
    assert rows(scheduler.advance(16)) == [0]
    assert step(scheduler) == ([(1, 16, 0)], 0)
    assert scheduler.preemptions == 0
    # A token more is a block more for each of four, though all they may write would go into one.
    policy = EnginePolicy(kv_blocks=7, max_seqs=8, max_batched_tokens=100, keep_free=1.0)
    for shared in (False, True):
        scheduler = Scheduler(policy, shared=shared)
        for row in range(4):
            scheduler.add(Sequence(row, 16, 2))
        assert step(scheduler) == ([(0, 16, 0), (1, 16, 0), (2, 16, 0)], 0)


def test_a_share_of_what_may_still_be_written_is_kept_free() -> None:
    # 10 blocks, of which the first holds 1 and may write 97 tokens, 7 blocks' worth; the second
    # needs 5 in all.
    for keep_free, lets_in in ((0.0, True), (0.6, True), (0.7, False), (1.0, False)):
        scheduler = scheduler_of((16, 97), (16, 65), kv_blocks=10, keep_free=keep_free)
        chunks, _ = step(scheduler)
        assert (len(chunks) == 2) is lets_in, keep_free


def test_reserved_memory_lets_in_fewer() -> None:
    paged = scheduler_of(*[(16, 16)] * 8, kv_blocks=16)
    unpaged = scheduler_of(*[(16, 16)] * 8, kv_blocks=16, reserved_tokens=128)
    assert len(step(paged)[0]) == 7  # the seventh is cut at the token budget's end
    assert len(step(unpaged)[0]) == 2
    assert unpaged.used_blocks() == 16


def test_a_static_batch_keeps_its_size_until_all_have_ended() -> None:
    scheduler = scheduler_of((10, 2), (10, 5), (10, 2), order="static", max_seqs=2)
    assert step(scheduler) == ([(0, 10, 0), (1, 10, 0)], 0)
    scheduler.advance()
    assert scheduler.schedule() == 1
    assert rows(scheduler.advance()) == [0]
    assert step(scheduler) == ([], 2)  # its place is taken, and computed, though it has ended
    assert rows(scheduler.advance(3)) == [1]
    assert step(scheduler) == ([(2, 10, 0)], 0)
    scheduler.add(Sequence(3, 150, 2))
    scheduler.add(Sequence(4, 150, 2))
    scheduler.advance()
    assert step(scheduler) == ([], 1)  # a place is free, and stays so
    assert not scheduler.open
    scheduler.advance()
    assert scheduler.open
    assert step(scheduler) == ([(3, 150, 0), (4, 150, 0)], 0)  # whatever the budget


def test_what_can_never_fit_is_refused_with_a_reason() -> None:
    scheduler = scheduler_of(kv_blocks=2)
    scheduler.add(Sequence(0, 30, 3))
    with pytest.raises(
        InputError, match="31 \\+ 3 tokens does not fit into the KV cache, which holds 32"
    ):
        scheduler.add(Sequence(1, 31, 3))


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"kv_blocks": 0}, "kv_blocks 0"),
        ({"keep_free": 1.5}, "keep_free 1.5"),
        ({"max_seqs": 200}, "max_seqs 200"),
        ({"speculative": Speculative(3, 0.5), "max_seqs": 50}, "4 tokens each"),
    ],
)
def test_policies_that_cannot_be(policy: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        EnginePolicy(**{"kv_blocks": 100, "max_batched_tokens": 100, "max_seqs": 8} | policy)


def test_an_abandoned_request_gives_back_what_it_held() -> None:
    scheduler = scheduler_of((20, 9), (150, 9), (20, 9), kv_blocks=12)
    waiting = scheduler.waiting[2]
    scheduler.schedule()
    scheduler.advance()
    decoding, prefilling = scheduler.running
    for sequence in (waiting, prefilling, decoding):
        scheduler.abort(sequence)
    assert scheduler.idle
    assert not scheduler.has_prompts
    assert scheduler.used_blocks() == 0
    assert scheduler.schedule() == 0


def sharing(sequence: Sequence, keys: list[Any]) -> Sequence:
    return sequence.share(SingleBlocks(keys), len(keys))


# --- prefix cache ---------------------------------------------------------------------------------


def test_shared_blocks_are_found_but_the_last_token_is_computed() -> None:
    scheduler = Scheduler(
        EnginePolicy(kv_blocks=100, max_batched_tokens=200, max_seqs=8), shared=True
    )
    keys = ["a", "b", "c", "d"]
    scheduler.add(sharing(Sequence(0, 64, 4), keys))
    scheduler.add(sharing(Sequence(1, 64, 4), keys))
    # The second finds what the first computes in the same step, as in vLLM; of four full blocks
    # three. One of a token more finds all four.
    scheduler.add(sharing(Sequence(2, 65, 4), keys))
    assert step(scheduler) == ([(0, 64, 0), (1, 16, 48), (2, 1, 64)], 0)
    assert scheduler.used_blocks() == 5
    assert (scheduler.cache_queries, scheduler.cache_hits) == (193, 112)


def test_blocks_are_kept_after_use_and_the_oldest_go_first() -> None:
    cache = PrefixCache()
    ab, ac = SingleBlocks("ab"), SingleBlocks("ac")
    assert cache.take(ab, 0, 2) == 2
    assert cache.take(ac, 0, 2) == 1
    assert cache.give_back(ab, 2, 3) == 1
    assert cache.idle_blocks == 4
    assert cache.match(SingleBlocks("abx"), 3) == 2
    cache.shrink(2)
    assert cache.idle_blocks == 2  # two of the three that no other can ask for
    assert cache.match(ab, 2) == 2
    cache.shrink(0)
    assert cache.match(ab, 2) == 1
    assert cache.give_back(ac, 2, 0) == 2
    cache.shrink(1)
    assert cache.match(ac, 2) == 1  # the last of a request goes before its first
    assert cache.evicted == 5
    cache.shrink(-3)  # running requests hold more than there are
    cache.shrink(-3)
    assert (cache.idle_blocks, cache.evicted) == (0, 6)


class EachBlock:
    """A prefix cache block by block: what PrefixCache does by segments."""

    def __init__(self) -> None:
        self.users: dict[Any, int] = {}
        self.idle: dict[Any, None] = {}

    def blocks(self, segments: Iterable[Segment], first: int, last: int) -> list[Any]:
        keys: list[Any] = []
        for key, end in segments:
            keys += [(key, place) for place in range(len(keys), end)]
        return keys[first:last]

    def take(self, keys: list[Any]) -> int:
        fresh = sum(not self.users.get(key) for key in keys)
        for key in keys:
            self.users[key] = self.users.get(key, 0) + 1
            self.idle.pop(key, None)
        return fresh

    def give_back(self, keys: list[Any]) -> int:
        freed = 0
        for key in reversed(keys):
            self.users[key] -= 1
            if not self.users[key]:
                self.idle[key] = None
                freed += 1
        return freed

    def match(self, keys: list[Any]) -> int:
        there = [bool(self.users.get(key)) or key in self.idle for key in keys]
        return there.index(False) if False in there else len(there)


PATHS: list[list[Segment]] = [
    [("system", 3), ("first", 7), ("more", 12)],
    [("system", 3), ("first", 5)],
    [("system", 3), ("second", 4), ("end", 9)],
    [("system", 2), ("cut", 8)],
]


@settings(max_examples=300)
@given(
    asked=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(0, 9)), max_size=40)
)
def test_segments_are_kept_as_their_blocks_would_be(asked: list[tuple[int, int, int]]) -> None:
    cache, each = PrefixCache(), EachBlock()
    using: list[tuple[list[Segment], int]] = []
    for path, blocks, what in asked:
        segments = PATHS[path]
        last = segments[-1][1]
        if what < 4:
            most = min(blocks, last)
            assert cache.unused(segments, most) == sum(
                not each.users.get(k) for k in each.blocks(segments, 0, most)
            )
            assert cache.take(segments, 0, most) == each.take(each.blocks(segments, 0, most))
            using.append((segments, most))
        elif what < 6 and using:
            segments, held = using.pop(blocks % len(using))
            last = segments[-1][1]
            assert cache.take(segments, held, last) == each.take(each.blocks(segments, held, last))
            using.append((segments, last))
        elif what < 8 and using:
            segments, held = using.pop(blocks % len(using))
            assert cache.give_back(segments, held, 0) == each.give_back(
                each.blocks(segments, 0, held)
            )
        else:
            cache.shrink(blocks)
            for key in list(each.idle)[: max(0, len(each.idle) - blocks)]:
                del each.idle[key]
        assert cache.idle_blocks == len(each.idle)
        assert cache.used_blocks == sum(map(bool, each.users.values()))
        for known in PATHS:
            assert cache.match(known, 99) == each.match(each.blocks(known, 0, 99))


def test_without_room_the_prefix_is_forgotten() -> None:
    scheduler = Scheduler(
        EnginePolicy(kv_blocks=6, max_batched_tokens=200, max_seqs=8), shared=True
    )
    hits = []
    for row, keys in enumerate((["a", "b"], ["a", "b"], ["x", "y", "z", "w", "v"], ["a", "b"])):
        scheduler.add(sharing(Sequence(row, 16 * len(keys) + 8, 2), keys))
        while not scheduler.idle:
            steps = scheduler.schedule()
            scheduler.advance(steps)
        hits.append(scheduler.cache_hits)
    assert hits == [0, 32, 32, 32]


# --- speculation ----------------------------------------------------------------------------------


def test_speculation_gives_what_its_acceptance_promises() -> None:
    speculative = Speculative(3, 0.7)
    steps = gains(speculative, 0, 0, 0, 200_000)
    assert steps[-2] < 200_000 <= steps[-1]
    assert 200_000 / len(steps) == pytest.approx(speculative.tokens_per_step, rel=0.01)
    assert speculative.tokens_per_step == pytest.approx((1 - 0.7**4) / (1 - 0.7))
    assert steps == gains(speculative, 0, 0, 0, 200_000)
    assert steps != gains(speculative, 0, 1, 0, 200_000)
    assert gains(Speculative(4, 1.0), 0, 0, 0, 12) == [5, 10, 15]
    assert gains(Speculative(4, 0.0), 0, 0, 0, 3) == [1, 2, 3]


def test_speculation_takes_its_guesses_of_the_budget() -> None:
    scheduler = scheduler_of((10, 9), speculative=Speculative(3, 1.0))
    scheduler.schedule()
    scheduler.advance()
    assert (scheduler.context_tokens, scheduler.growth) == (11, 4)
    scheduler.add(Sequence(1, 100, 9))
    assert step(scheduler) == ([(1, 96, 0)], 1)
    assert rows(scheduler.advance()) == []
    scheduler.schedule()
    assert rows(scheduler.advance()) == [0]  # 1, then 4 and 4


# --- whatever comes -------------------------------------------------------------------------------

LENGTHS = st.lists(
    st.tuples(st.integers(1, 90), st.integers(1, 40), st.integers(0, 6)), min_size=1, max_size=25
)
POLICIES = st.fixed_dictionaries(
    {
        "kv_blocks": st.integers(0, 12),
        "block_tokens": st.sampled_from([1, 4, 16]),
        "max_batched_tokens": st.integers(16, 120),
        "max_seqs": st.integers(1, 8),
        "order": st.sampled_from(["mixed", "prefill-first", "static"]),
        "chunked": st.booleans(),
        "keep_free": st.sampled_from([0.0, 0.3, 1.0]),
        "poll_steps": st.sampled_from([0, 0, 1, 7]),
    },
    optional={
        "speculative": st.builds(Speculative, st.integers(1, 1), st.floats(0, 1)),
        "reserved_tokens": st.just(132),
    },
)


@settings(max_examples=300)
@given(lengths=LENGTHS, asked=POLICIES, shared=st.booleans(), hurry=st.booleans())
def test_everyone_ends_in_order_and_no_block_is_lost_or_given_twice(
    lengths: list[tuple[int, int, int]], asked: dict[str, Any], shared: bool, hurry: bool
) -> None:
    # Every request fits alone, and there are so many blocks more.
    policy = EnginePolicy(
        **asked | {"kv_blocks": asked["kv_blocks"] + -(-132 // asked["block_tokens"])}
    )
    scheduler = Scheduler(policy, shared=shared)
    coming = [
        sharing(
            Sequence(row, prompt, output), keys_of(row, prompt, output, policy) if shared else []
        )
        for row, (prompt, output, _) in enumerate(lengths)
    ]
    gaps = [gap for _, _, gap in lengths]
    let_in: list[int] = []
    written = dict.fromkeys(range(len(coming)), 0)
    ended: list[int] = []
    wait = 0
    for _ in range(20_000):
        while coming and (wait >= gaps[-len(coming)] or scheduler.idle):
            wait = 0
            scheduler.add(coming.pop(0))
        steps = scheduler.schedule()
        if scheduler.idle:
            break
        assert steps >= 1, "something runs or waits, and nothing is done"
        assert_sound(scheduler, policy)
        for sequence, _, _ in scheduler.chunks:
            if sequence.row not in let_in:
                let_in.append(sequence.row)
        before = {sequence: scheduler.written_by(sequence) for sequence in scheduler.running}
        steps = steps if hurry else 1
        wait += steps
        those = scheduler.advance(steps)
        assert scheduler.used_blocks() <= policy.kv_blocks
        for sequence, had in before.items():
            if sequence in scheduler.running and policy.order != "static":
                now = scheduler.written_by(sequence)
                assert now >= had >= written[sequence.row]
                written[sequence.row] = now
        ended += rows(those)
    assert sorted(ended) == list(range(len(lengths)))
    assert let_in == sorted(let_in), "first come, first served"
    assert scheduler.used_blocks() == 0
    assert scheduler.decodes == 0
    assert scheduler.context_tokens == 0
    if scheduler.cache is not None:
        assert not scheduler.cache.used_blocks
        assert scheduler.cache.idle_blocks <= policy.kv_blocks


def keys_of(row: int, prompt: int, output: int, policy: EnginePolicy) -> list[tuple[int, int]]:
    """Every other request has the prompt of one of three families, as far as it goes, and some
    their answers."""
    if row % 2:
        return []
    tokens = prompt + (output if row % 4 else 0)
    return [(row % 3, place) for place in range(tokens // policy.block_tokens)]


def assert_sound(scheduler: Scheduler, policy: EnginePolicy) -> None:
    assert len(scheduler.running) <= policy.max_seqs
    assert scheduler.used_blocks() <= policy.kv_blocks
    tokens = sum(new for _, new, _ in scheduler.chunks)
    if scheduler.decoding:
        tokens += scheduler.decodes * policy.decode_tokens
    alone = len(scheduler.chunks) == 1 and not policy.chunked
    if policy.order != "static" and not alone:
        assert tokens <= policy.max_batched_tokens
    if scheduler.chunks and policy.order != "mixed":
        assert not scheduler.decoding
    if policy.order != "static":
        assert scheduler._left() == sum(
            s.output_tokens - scheduler.written_by(s) for s in scheduler.running
        )
    decoding = [sequence for sequence in scheduler.running if sequence.end_tick]
    if policy.order != "static":
        assert scheduler.decodes == len(decoding)
        total = sum(s.base + scheduler.tick * s.growth + 1 for s in decoding)
        assert scheduler.context_tokens == pytest.approx(total)
    cache = scheduler.cache
    if scheduler._tight and policy.speculative is None:
        # Counted anew: whole blocks of each, those that are shared once.
        own = 0
        for sequence in scheduler.running:
            own += scheduler.blocks_for(scheduler._tokens_of(sequence)) - sequence.held
        shared = cache.used_blocks if cache is not None else 0
        assert scheduler.used_blocks() == own + shared
    if cache is not None:
        assert scheduler.used_blocks() + cache.idle_blocks <= policy.kv_blocks
