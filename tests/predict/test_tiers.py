"""Tiers below the KV cache: what is found in them, who waits for it, what it costs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadstone.catalogue.deployment.shorthand import parse_worker
from loadstone.core.errors import InputError
from loadstone.predict.scheduler import EnginePolicy, Scheduler, Sequence, policy_of
from loadstone.predict.scheduler.blocks import SingleBlocks
from loadstone.predict.scheduler.policy import Tiers
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import Fleet
from loadstone.predict.sizing.size import size
from loadstone.workload.options import Options
from loadstone.workload.planning import plan_of
from loadstone.workload.routing import SentPrefixes, choose_by_prefix
from predict.test_simulator import Times

BLOCK_S = 0.16


def policy_with(
    load: str = "async", write: str = "through", host_blocks: int = 100, **more: Any
) -> EnginePolicy:
    below = {
        "host_tokens": 16 * host_blocks,
        "host_token_s": BLOCK_S / 16,
        "load": load,
        "write": write,
    }
    tiers = Tiers(
        **below | {name: more.pop(name) for name in list(more) if name in Tiers.__struct_fields__}
    )
    return EnginePolicy(
        **{"kv_blocks": 8, "max_batched_tokens": 200, "max_seqs": 8, "tiers": tiers} | more
    )


def asking(row: int, keys: str, prompt: int | None = None, output: int = 1) -> Sequence:
    sequence = Sequence(row, 16 * len(keys) + 1 if prompt is None else prompt, output)
    return sequence.share(SingleBlocks(keys), len(keys))


def steps(scheduler: Scheduler, *times: float) -> list[list[tuple[int, int, int]]]:
    """The chunks (row, new, cached) of the steps that begin at these times."""
    found = []
    for at_s in times:
        assert scheduler.tiers is not None
        scheduler.tiers.now_s = at_s
        taken = scheduler.schedule()
        found.append([(sequence.row, new, done) for sequence, new, done in scheduler.chunks])
        scheduler.advance(max(1, taken))
    return found


def forgotten(policy: EnginePolicy) -> Scheduler:
    """A scheduler that has computed `abcdef`, and then `uvwxyz`, which left no room for its last
    blocks in HBM."""
    scheduler = Scheduler(policy, shared=True)
    for row, keys in enumerate(("abcdef", "uvwxyz")):
        scheduler.add(asking(row, keys))
        assert steps(scheduler, 0.0) == [[(row, 97, 0)]]
    assert scheduler.idle
    return scheduler


def test_a_request_of_vllm_waits_beside_the_queue_for_its_blocks_and_others_pass() -> None:
    scheduler = forgotten(policy_with())
    scheduler.add(asking(2, "abcdef"))
    scheduler.add(asking(3, "p"))
    # One of six blocks is in HBM: five are loaded, the other request passes.
    assert steps(scheduler, 1.0) == [[(3, 17, 0)]]
    assert [each.row for each in scheduler.waiting] == [2]
    tiers = scheduler.tiers
    assert tiers is not None
    assert tiers.wake_s == pytest.approx(1.0 + 5 * BLOCK_S)
    assert tiers.loaded_tokens == 80
    scheduler.add(
        asking(4, "abcdef")
    )  # finds its blocks on their way for another, and waits for them
    assert steps(scheduler, 1.5, 1.0 + 5 * BLOCK_S) == [[], [(2, 1, 96), (4, 1, 96)]]
    assert scheduler.idle
    assert scheduler.used_blocks() == 0


def test_where_all_of_a_prompt_is_loaded_its_last_token_is_computed() -> None:
    scheduler = forgotten(policy_with())
    scheduler.add(asking(2, "abcdef", prompt=96))
    assert steps(scheduler, 1.0, 2.0) == [[], [(2, 1, 95)]]


def test_loads_follow_one_another_over_the_link() -> None:
    scheduler = forgotten(policy_with(kv_blocks=16))
    scheduler.add(asking(2, "mnopqr"))
    scheduler.add(asking(3, "ghijkl"))
    steps(scheduler, 0.0)  # nothing of the first two is left in HBM but a few blocks
    scheduler.add(asking(4, "abcdef"))
    scheduler.add(asking(5, "uvwxyz"))
    found = steps(scheduler, 1.0)
    tiers = scheduler.tiers
    assert tiers is not None
    first, second = tiers.wake_s, 1.0 + tiers.loaded_tokens / 16 * BLOCK_S
    assert found == [[]]
    assert 1.0 < first < second
    assert steps(scheduler, first, second) == [[(4, 1, 96)], [(5, 1, 96)]]


def test_a_client_that_goes_while_its_blocks_come_leaves_nothing_behind() -> None:
    scheduler = forgotten(policy_with())
    gone = asking(2, "abcdef")
    scheduler.add(gone)
    assert steps(scheduler, 1.0) == [[]]
    assert scheduler.used_blocks() == 6
    scheduler.abort(gone)
    assert scheduler.used_blocks() == 0
    assert scheduler.tiers is not None
    assert scheduler.tiers.wake_s == float("inf")


@pytest.mark.parametrize(
    ("load", "write", "chunk", "cached", "step_s"),
    [
        ("overlap", "through", 16, 96, 5 * BLOCK_S),  # the longer of the two
        ("blocking", "through", 16, 96, 0.5 + 5 * BLOCK_S),
        ("blocking", "through", 64, 64, 0.5 + 3 * BLOCK_S),  # of six blocks, one chunk of four
        ("blocking", "evicted", 16, 96, 0.5 + 5 * BLOCK_S),
    ],
)
def test_a_step_waits_for_its_loads(
    load: str, write: str, chunk: int, cached: int, step_s: float
) -> None:
    scheduler = forgotten(policy_with(load, write, chunk_tokens=chunk))
    tiers = scheduler.tiers
    assert tiers is not None
    tiers.lengthen(0.0, scheduler.cache)  # what has been
    scheduler.add(asking(2, "abcdef"))
    tiers.now_s = 1.0
    scheduler.schedule()
    assert [(new, done) for _, new, done in scheduler.chunks] == [(97 - cached, cached)]
    assert tiers.lengthen(0.5, scheduler.cache) == pytest.approx(step_s)
    assert tiers.lengthen(0.5, scheduler.cache) == pytest.approx(0.5)


def test_the_host_gives_up_what_was_used_least_lately_and_what_is_late_has_both() -> None:
    found = {}
    for write in ("through", "evicted"):
        scheduler = forgotten(policy_with("blocking", write, host_blocks=8))
        scheduler.add(asking(2, "abcdef"))
        found[write] = steps(scheduler, 1.0)[0][0][2]
    # The host has the last six and two of those before; with HBM's eight blocks, all.
    assert found == {"through": 32, "evicted": 96}


@settings(max_examples=150)
@given(
    asked=st.lists(
        st.tuples(st.sampled_from(["abc", "abcde", "abx", "pqrst", "p"]), st.integers(1, 40)),
        max_size=14,
    ),
    kinds=st.sampled_from([("async", "through"), ("overlap", "through"), ("blocking", "evicted")]),
    kv_blocks=st.integers(9, 14),
    host_blocks=st.integers(1, 12),
)
def test_whatever_comes_ends_and_no_block_is_lost(
    asked: list[tuple[str, int]], kinds: tuple[str, str], kv_blocks: int, host_blocks: int
) -> None:
    scheduler = Scheduler(
        policy_with(*kinds, host_blocks=host_blocks, kv_blocks=kv_blocks), shared=True
    )
    tiers = scheduler.tiers
    assert tiers is not None
    coming = [asking(row, keys, output=output) for row, (keys, output) in enumerate(asked)]
    ended = 0
    for at in range(3000):
        if coming and at % 2:
            scheduler.add(coming.pop())
        tiers.now_s = at * BLOCK_S
        taken = scheduler.schedule()
        assert scheduler.used_blocks() <= kv_blocks
        ended += len(scheduler.advance(1 if taken else 0))
        if scheduler.idle and not coming:
            break
    assert ended == len(asked)
    assert scheduler.used_blocks() == 0


def test_sessions_beyond_hbm_are_found_in_the_host_while_their_tools_run() -> None:
    options: dict[str, Any] = {
        "turns": "6",
        "input": "640",
        "output": "32",
        "think_time": "5",
        "warmup": 0,
    }
    asked = plan_of(Options.read(**options, concurrency=[8], requests=[96]))
    share = {}
    for name, tiers in (
        ("hbm", None),
        ("host", Tiers(host_tokens=200_000, host_token_s=1e-6)),
        ("overlap", Tiers(host_tokens=200_000, host_token_s=1e-6, load="overlap")),
        (
            "disk",
            Tiers(host_tokens=8_000, host_token_s=1e-6, disk_tokens=200_000, disk_token_s=1e-5),
        ),
    ):
        policy = EnginePolicy(kv_blocks=700, max_batched_tokens=2048, max_seqs=64, tiers=tiers)
        run = run_cell(asked, 0, Fleet(policy, Times(step=0.01, token=1e-5)))
        assert not any(end != end for end in run.end_s)  # noqa: PLR0124  (NaN: it did not end)
        share[name] = sum(run.cached_tokens) / sum(run.requests.input_tokens)
    assert share["hbm"] < 0.5 < share["host"]
    assert (
        share["host"]
        == pytest.approx(share["overlap"], abs=0.01)
        == pytest.approx(share["disk"], abs=0.01)
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            "kv_host=1tb,engine=llama.cpp",
            "kv_host: llama.cpp keeps no KV cache outside of the GPUs here",
        ),
        ("kv_disk=1tb", "kv_disk lies below the host's memory; give kv_host too"),
        ("kv_host=1tb,kv_disk=1tb,engine=sglang", "kv_disk: sglang is not simulated with one"),
        (
            "kv_host=lots",
            "kv_host='lots': is a size of memory with its unit; write e.g. kv_host=512gb",
        ),
        ("kv_host=1tb,prefix_caching=0", "leave out prefix_caching=0"),
        (
            "kv_host=1tb,kv_offload=floppy",
            "kv_offload=floppy: vllm has no such value; use native, lmcache, kvbm",
        ),
    ],
)
def test_what_cannot_be_is_one_line(options: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        policy_of(parse_worker(f"llama-3.1-8b@1xh200/{options}"))
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sizes_say_how_many_sessions_stay_warm() -> None:
    deployment = parse_worker("llama-3.1-8b@1xh200/kv_host=1tb,kv=bf16")
    row = size(deployment, 100_000)
    # 131,072 bytes a token: 902,976 of them in HBM, 7,629,394 in the host.
    assert (row.warm_sessions, row.warm_sessions_host) == (9, 76)
    assert size(parse_worker("llama-3.1-8b@1xh200"), 100_000).warm_sessions_host is None
    tiers = policy_of(deployment).tiers
    assert tiers is not None
    assert tiers.host_token_s == pytest.approx(131_072 / (0.85 * 64e9), rel=1e-3)


def test_by_prefix_sessions_stay_where_their_blocks_are() -> None:
    options: dict[str, Any] = {
        "turns": "6",
        "input": "320",
        "output": "32",
        "think_time": "3",
        "warmup": 0,
    }
    asked = plan_of(Options.read(**options, concurrency=[12], requests=[144]))
    share = {}
    for how in ("round-robin", "prefix"):
        policy = EnginePolicy(kv_blocks=550, max_batched_tokens=2048, max_seqs=64, route=how)
        run = run_cell(asked, 0, Fleet(policy, Times(step=0.01, token=1e-5), replicas=3))
        share[how] = sum(run.cached_tokens) / sum(run.requests.input_tokens)
    assert share["round-robin"] < 0.4
    assert share["prefix"] > 0.6


def test_a_router_remembers_what_it_sent_and_passes_over_who_is_far_busier() -> None:
    asked = plan_of(Options.read(turns="3", input="64", output="8", prefix=32, prefix_groups=2, concurrency=[4],
                                 requests=[12], warmup=0))  # fmt: skip
    first, second, other = asked.request(0, 0), asked.request(0, 1), asked.request(0, 3)
    sent = SentPrefixes(3)
    assert sent.found(first) == [0, 0, 0]
    sent.note(first, 1)
    assert sent.found(second)[1] > max(sent.found(second)[::2])
    assert sent.found(other)[0] == 0
    assert choose_by_prefix([0, 2, 0], [1, 9, 0], 0) == 2
    assert choose_by_prefix([0, 2, 0], [1, 8, 0], 0) == 1
    assert [choose_by_prefix([0, 0, 0], [1, 1, 1], turn) for turn in range(3)] == [0, 1, 2]
