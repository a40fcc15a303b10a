"""Deployments with prefill and decode pools: shorthand, refusals, sizes, exact ways through the
simulator."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import loadstone
from loadstone.catalogue.deployment.pools import split_pools
from loadstone.catalogue.deployment.shorthand import (
    models_of,
    names_engine,
    parse_deployment,
    parse_worker,
)
from loadstone.core.errors import InputError
from loadstone.engines.habits import Handover
from loadstone.engines.handover import Link, handover_of, link_of
from loadstone.engines.sglang import Sglang
from loadstone.engines.sharding.rank import CacheLayer
from loadstone.engines.tensorrt_llm import TensorrtLlm
from loadstone.engines.vllm import Vllm
from loadstone.predict.pool_rates import pool_rates
from loadstone.predict.scheduler import EnginePolicy, Speculative
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import Fleet, PrefillPool, fleet_of
from loadstone.predict.simulator.pool_figures import describe_pools
from loadstone.predict.simulator.pools import DecodeReplica
from loadstone.predict.sizing.deployments import sizes, split_models
from loadstone.predict.sizing.options import SizeOptions
from test_simulator import Times, check_answers, plan, records_of

WIDE = "deepseek-r1@prefill=4*(4xgb200/tp4)+decode=32xgb200/dp32,ep32,attention-dp"
SMALL = "llama-3.1-8b@prefill=2*(1xh100/tp1)+decode=1xh100/tp1"
BYTE = Link((CacheLayer(1, 1.0),), 1, 1e4, 0.002)
"""A link that takes 2 ms, and a second for 10,000 tokens."""


def pooled(
    rules: Handover | None,
    times: Times | None = None,
    link: Link = BYTE,
    workers: int = 1,
    **limits: Any,
) -> Fleet:
    """Make two pools of one scheduler a worker."""
    times = times or Times()
    assert rules is not None
    alone = EnginePolicy(
        kv_blocks=10_000, max_batched_tokens=1024, max_seqs=64, order="prefill-first"
    )
    policy = msgspec.structs.replace(alone, prefix_cache=False, **limits)
    prefill = PrefillPool(Fleet(alone, times, replicas=workers, workers=workers), rules, link)
    return Fleet(policy, times, prefill=prefill)


# --- shorthand ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "gpus", "workers"),
    [
        (WIDE, 48, [(4, 4), (1, 32)]),
        (
            "deepseek-r1@decode=2*8xh200/dp8,ep8+prefill=8xh200,engine=sglang".replace(
                "8xh200,", "8xh200/"
            ),
            24,
            None,
        ),
        (
            "deepseek-r1:fp8@prefill=(8xh200/tp8),engine=sglang+decode=2*(8xh200/tp8)/kv=fp8",
            24,
            [(1, 8), (2, 8)],
        ),
        ("llama-3.1-8b@prefill=2*(1xh100)+decode=1xh200/tp1", 3, [(2, 1), (1, 1)]),
    ],
)
def test_a_shorthand_names_pools_and_is_named_by_them(
    text: str, gpus: int, workers: list[tuple[int, int]] | None
) -> None:
    made = parse_deployment(text)
    assert made.gpus == gpus
    assert [pool.role for pool in made.pools] == ["prefill", "decode"]
    if workers is not None:
        assert [(pool.workers, pool.worker.gpus) for pool in made.pools] == workers
    assert parse_deployment(made.name) == made
    assert made.to_settings()["pools"][1]["role"] == "decode"


def test_what_one_pool_says_of_the_engine_holds_for_both() -> None:
    made = parse_deployment(
        "llama-3.1-8b@prefill=1xh100+decode=1xh100/engine=sglang,version=0.5.9,kv=fp8"
    )
    assert {(p.worker.engine, p.worker.engine_version, p.worker.kv_dtype) for p in made.pools} == {
        ("sglang", "0.5.9", "fp8")
    }
    own = parse_deployment("llama-3.1-8b@prefill=1xh100/kv=bf16+decode=1xh100/kv=fp8")
    assert [pool.worker.kv_dtype for pool in own.pools] == ["bf16", "fp8"]
    assert names_engine("llama-3.1-8b@prefill=1xh100/engine=vllm+decode=1xh100")
    assert not names_engine(SMALL)
    assert models_of(SMALL) == ["llama-3.1-8b"]


def test_a_list_of_models_keeps_pools_whole() -> None:
    text = "deepseek-r1@prefill=4*(4xgb200/tp4,ep4)+decode=32xgb200/dp32,ep32,attention-dp"
    assert split_models(f"{text},llama-3.1-8b") == [text, "llama-3.1-8b"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("deepseek-r1@prefill=8xh200", "has no decode pool"),
        ("deepseek-r1@prefill=8xh200+prefill=8xh200+decode=8xh200", "prefill is given twice"),
        ("deepseek-r1@prefill=0*(8xh200)+decode=8xh200", "has 0 workers"),
        (
            "deepseek-r1@prefill=2*(8xh200+decode=8xh200",
            r"'2\*\(8xh200' is no N\*\(…\) of prefill workers",
        ),
        ("deepseek-r1@prefill=1.5*(8xh200)+decode=8xh200", r"'1\.5\*\(8xh200\)' is no N"),
        ("deepseek-r1@prefill=8xh200+rerank=8xh200", "is no pool"),
        ("@prefill=8xh200+decode=8xh200", "names no model"),
        ("deepseek-r1@prefill=8xh20z+decode=8xh200", "prefill pool: .*no GPU or node"),
        ("deepseek-r1@prefill=4096*(4096xh200/tp1)+decode=8xh200", "GPUs; write 1 to"),
    ],
)
def test_pools_that_are_none_are_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as error:
        parse_deployment(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "llama-3.1-8b@prefill=1xh100/engine=vllm+decode=1xh100/engine=sglang",
            "vllm cannot hand a KV cache",
        ),
        (
            "llama-3.1-8b@prefill=1xh100+decode=1xh100/engine=llama.cpp",
            "llama.cpp has no prefill and decode apart",
        ),
        ("llama-3.1-8b@prefill=8xh100/tp8+decode=6xh100/tp3", "tp8 and tp3"),
        (
            "llama-3.1-8b@prefill=1xh100/kv=fp8+decode=1xh100/kv=bf16",
            "in fp8, the decode pool in bf16",
        ),
        ("llama-3.1-8b@prefill=1xh100+decode=4xh100/pp4", "pp4 is not simulated"),
        ("llama-3.1-8b@prefill=1xh100+decode=1xh100/engine=vllm,version=0.8.5", "since 0.9"),
        ("qwen3-next-80b-a3b@prefill=4xh200/tp4+decode=8xh200/tp8", "recurrent states"),
    ],
)
def test_pools_that_cannot_hand_caches_over_are_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as error:
        fleet_of(parse_deployment(text))
    assert "\n" not in str(error.value)


def test_what_takes_one_worker_refuses_pools() -> None:
    with pytest.raises(InputError, match="one worker is asked for"):
        parse_worker(SMALL)


# --- the way of a request -------------------------------------------------------------------------


def test_a_prompt_s_rank_follows_from_its_room_unless_the_launch_balances_them() -> None:
    text = "deepseek-r1@prefill=8xh200/dp8,ep8,attention-dp%s+decode=8xh200/tp8,engine=sglang"
    balanced = ",load_balance_method=round_robin"
    asked = plan(rate=[math.inf], requests=[8], input="1000", output="2")
    most: list[int] = []
    for more in ("", balanced):
        run = run_cell(asked, 0, fleet_of(parse_deployment(text % more)))
        prompts = [replica.scheduler.prompt_tokens for replica in run.prefill_replicas]
        assert sum(prompts) == 8000
        most.append(max(prompts))
    assert most[0] > most[1] == 1000  # of eight prompts on eight ranks
    # Before it could be told, rounds were rooms too.
    old = handover_of(parse_deployment((text % balanced).replace("sglang", "sglang,version=0.5.6")))
    assert old.by_room
    assert not handover_of(parse_deployment(text % balanced)).by_room


def test_a_worker_deals_its_requests_out_in_turn() -> None:
    """Whichever worker has the next: of two workers none uses every other rank alone."""
    text = "deepseek-r1@prefill=8xh200/tp8+decode=2*(8xh200/dp8,ep8,attention-dp),engine=sglang"
    run = run_cell(
        plan(rate=[5.0], requests=[32], input="1000", output="2"),
        0,
        fleet_of(parse_deployment(text)),
    )
    assert len(set(run.journal.replica)) == len(run.replicas) == 16


def test_the_prefill_side_makes_the_first_token_and_the_decode_side_shows_it() -> None:
    (record,) = records_of(plan(concurrency=[1], requests=[1]), pooled(Sglang.handover))
    # 3 ms of way; 10 ms and 100 tokens; 2 ms and 100 bytes of link; 1 ms of way. Then steps of 10
    # ms.
    first = record["sent_s"] + 0.003 + 0.020 + 0.012 + 0.001
    assert record["arrival_s"] == pytest.approx([first + 0.010 * at for at in range(5)])


def test_vllm_shows_the_first_token_of_its_decode_side() -> None:
    (record,) = records_of(
        plan(concurrency=[1], requests=[1]), pooled(Vllm.handover, Times(context=1e-5))
    )
    start = record["sent_s"] + 0.003 + 0.020 + 0.012
    # Its last prompt token is computed again: 100 to 104 tokens are read.
    ends = start + np.cumsum([0.010 + tokens * 1e-5 for tokens in range(100, 105)])
    assert record["arrival_s"] == pytest.approx(ends + 0.001)


@pytest.mark.parametrize("rules", [Sglang.handover, Vllm.handover, TensorrtLlm.handover])
@pytest.mark.parametrize("drafts", [None, Speculative(2, 0.6)])
def test_every_request_is_handed_over_and_answered_whole(
    rules: Handover, drafts: Speculative | None
) -> None:
    asked = plan(concurrency=[40], requests=[300], input="uniform:10:900", output="uniform:1:90")
    fleet = pooled(rules, workers=2, max_seqs=16, kv_blocks=700, speculative=drafts)
    check_answers(asked, records_of(asked, fleet), one_by_one=drafts is None)
    run = run_cell(asked, 0, fleet)
    assert run.pool_times is not None
    figures = describe_pools(run)
    assert figures is not None
    assert figures.transfers == 300
    assert run.pool_times.prompt_tokens == asked.input_tokens.sum()
    states = run.states()
    assert sum(state.prompt_tokens for state in states) == asked.input_tokens.sum()
    assert sum(state.written_tokens for state in states) == asked.output_tokens.sum()
    assert all(state.running == state.waiting == 0 for state in states)
    for replica in run.replicas:
        assert isinstance(replica, DecodeReplica)
        assert (replica.there, replica.promised_tokens, replica.whole_tokens) == (0, 0, 0)


def test_a_full_decode_pool_shows_in_ttft_and_not_in_tpot() -> None:
    asked = plan(concurrency=[8], requests=[80], output="50")
    for handover in (Sglang.handover, TensorrtLlm.handover):
        assert handover is not None
        rules = handover._replace(twice_up_to=0)
        wide, narrow = (records_of(asked, pooled(rules, max_seqs=seqs)) for seqs in (64, 2))
        tpot = [
            np.median([(r["end_s"] - r["arrival_s"][0]) / 49 for r in rows])
            for rows in (wide, narrow)
        ]
        ttft = [
            np.median([r["arrival_s"][0] - r["sent_s"] for r in rows]) for rows in (wide, narrow)
        ]
        assert tpot[1] == pytest.approx(tpot[0], rel=0.02)
        assert ttft[1] > 5 * ttft[0]


def test_sglang_keeps_512_tokens_beside_each_prompt() -> None:
    asked = plan(concurrency=[3], requests=[3], input="100", output="300")
    assert Sglang.handover is not None
    rules = Sglang.handover
    # 1,224 tokens: two requests of 100 tokens have room with 512 each, the third waits.
    run = run_cell(asked, 0, pooled(rules, kv_blocks=77))
    firsts = sorted(run.journal.first_s)
    assert firsts[2] > min(run.end_s)
    free = run_cell(asked, 0, pooled(rules._replace(spare_tokens=0), kv_blocks=77))
    assert sorted(free.journal.first_s)[2] < min(free.end_s)


def test_prompts_wait_for_the_reader_where_room_is_looked_for_later() -> None:
    """Whose blocks the decode side does not read fill the prefill side's cache, and then it
    stops."""
    asked = plan(rate=[math.inf], requests=[6], input="800", output="40")
    assert TensorrtLlm.handover is not None
    fleet = pooled(TensorrtLlm.handover, max_seqs=1)
    small = fleet.prefill._replace(fleet=Fleet(EnginePolicy(kv_blocks=100, max_seqs=64), Times()))  # type: ignore[union-attr]
    narrow = run_cell(asked, 0, replace(fleet, prefill=small))
    wide = run_cell(asked, 0, fleet)
    assert narrow.pool_times is not None
    assert wide.pool_times is not None
    assert narrow.pool_times.prefill_s > 1.5 * wide.pool_times.prefill_s
    assert sorted(narrow.end_s) == pytest.approx(sorted(wide.end_s), abs=0.2)


def test_transfers_of_one_worker_follow_one_another() -> None:
    asked = plan(rate=[math.inf], requests=[2], input="100", output="2")
    assert Sglang.handover is not None
    slow = BYTE._replace(bytes_per_s=1e3)  # 100 ms each
    run = run_cell(asked, 0, pooled(Sglang.handover, link=slow))
    first, second = sorted(run.journal.first_s)
    assert second - first == pytest.approx(0.1, abs=0.011)
    assert describe_pools(run).limit == "link"  # type: ignore[union-attr]


def test_workers_of_ranks_that_go_in_step_are_groups_of_their_own() -> None:
    asked = plan(concurrency=[16], requests=[200], input="uniform:10:400", output="uniform:2:60")
    assert Sglang.handover is not None
    one = pooled(Sglang.handover)
    fleet = Fleet(one.policy, one.model, replicas=8, in_step=True, workers=2, prefill=one.prefill)
    records = records_of(asked, fleet)
    check_answers(asked, records, one_by_one=True)
    run = run_cell(asked, 0, fleet)
    assert len(set(run.journal.replica)) == 8


def test_a_decode_pool_without_room_for_one_request_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"no room for one request of 100 \+ 5 tokens, with 512 kept free"
    ):
        run_cell(plan(concurrency=[1], requests=[1]), 0, pooled(Sglang.handover, kv_blocks=30))


def test_a_prompt_beyond_a_prefill_workers_context_is_refused() -> None:
    fleet = fleet_of(
        parse_deployment("llama-3.1-8b@prefill=1xh100/max_model_len=100+decode=1xh100/engine=vllm")
    )
    run_cell(plan(concurrency=[1], requests=[1], input="99"), 0, fleet)
    with pytest.raises(
        InputError, match="a prefill worker's context of 100 tokens has no room for 100 and"
    ):
        run_cell(plan(concurrency=[1], requests=[1], input="100"), 0, fleet)


# --- the deployment -------------------------------------------------------------------------------


def test_a_link_carries_what_decode_ranks_keep() -> None:
    made = parse_deployment(
        "deepseek-r1@prefill=8xh200/tp8+decode=8xh200/dp8,ep8,attention-dp,engine=sglang,kv=fp8"
    )
    before, after = (pool.worker for pool in made.pools)
    rules = handover_of(made)
    link = link_of(before, after, rules)
    assert link.token_bytes(1000) == pytest.approx(61 * 576, rel=0.15)  # one rank gets it, once
    whole = link_of(before, before, rules)
    assert whole.token_bytes(1000) == pytest.approx(
        8 * link.token_bytes(1000)
    )  # each of eight gets it whole
    assert whole.transfer_s(1000) == pytest.approx(link.transfer_s(1000))
    grouped = parse_deployment("llama-3.1-70b@prefill=8xh200/tp8+decode=8xh200/tp8")
    parts = link_of(grouped.prefiller, grouped.decoder, rules)
    assert parts.token_bytes(1000) == pytest.approx(grouped.model.kv_bytes_per_token())


def test_a_row_of_size_for_each_pool_has_what_is_on_its_way() -> None:
    rows = sizes(SizeOptions(models=(f"{SMALL},engine=sglang",), context=(4096,), batch=(64,)))
    assert [(row.pool, row.workers, row.batch) for row in rows] == [
        ("prefill", 2, 1),
        ("decode", 1, 64),
    ]
    prefill, decode = rows
    assert prefill.staging_bytes == 0
    held = decode.max_concurrent_requests
    assert held == decode.kv_capacity_tokens // (4096 + 512)
    assert decode.staging_bytes == held * 512 * decode.kv_bytes_per_token
    buffered = sizes(SizeOptions(models=(f"{SMALL},engine=tensorrt-llm",), context=(4096,)))[1]
    assert buffered.staging_bytes == 4096 * buffered.kv_bytes_per_token
    assert buffered.max_concurrent_requests == buffered.kv_capacity_tokens // 4096 - 1
    wrong = sizes(SizeOptions(models=("llama-3.1-8b@prefill=1xh100+decode=4xh100/pp4",)))
    assert not any(row.fits for row in wrong)
    assert all("pp4" in row.why for row in wrong)


def test_the_ratio_of_workers_balances_the_pools() -> None:
    rates = pool_rates(parse_deployment(SMALL), 2048, 256)
    alone = pool_rates(parse_deployment(SMALL.replace("2*", "1*")), 2048, 256)
    assert rates.prefill_per_s == pytest.approx(2 * alone.prefill_per_s)
    assert rates.decode_per_s == pytest.approx(alone.decode_per_s)
    assert "balance them" in rates.describe()
    many = parse_deployment(SMALL.replace("2*", "64*"))
    assert "starves the prefill pool" in pool_rates(many, 2048, 256).describe()
    # A closed loop of more users than both can have carries no more than the smaller of the two
    # promises.
    run = run_cell(
        plan(concurrency=[400], requests=[800], input="2048", output="256"),
        0,
        fleet_of(parse_deployment(SMALL)),
    )
    assert 800 / run.over_s < 1.05 * min(rates.prefill_per_s, rates.decode_per_s)


def test_a_simulated_run_says_what_each_pool_did(tmp_path: Path) -> None:
    summary = loadstone.simulate(
        f"{SMALL},engine=sglang",
        concurrency=[4],
        requests=[40],
        input="512",
        output="32",
        draws=3,
        out=tmp_path,
    ).document()
    (found,) = [
        each for each in summary["cells"][0]["verdict"]["findings"] if each["kind"] == "pools"
    ]
    assert (
        "40 caches handed over" in found["evidence"] or "44 caches handed over" in found["evidence"]
    )
    assert summary["cells"][0]["requests"]["ok"] == 40
    stored = msgspec.json.decode((Path(summary["run_dir"]) / "run.json").read_bytes())
    (pools,) = stored["settings"]["pools"]
    assert pools["limit"] in ("none", "prefill")
    assert [each["workers"] for each in stored["settings"]["deployment"]["pools"]] == [2, 1]


def test_each_pools_worker_has_a_shorthand_of_its_own() -> None:
    assert [pool.worker for pool in split_pools(WIDE)] == [
        "deepseek-r1@4xgb200/tp4", "deepseek-r1@32xgb200/dp32,ep32,attention-dp",
    ]  # fmt: skip


@pytest.mark.parametrize(("how", "computed"), [("prefix", 2), ("round-robin", 4)])
def test_the_router_sends_a_prefix_to_who_has_it(how: Any, computed: int) -> None:
    """Two groups of prompts on two prefill workers: by prefix each group is computed on one of them
    alone."""
    asked = plan(
        prefix=640, prefix_groups=2, input="700", output="2", concurrency=[1], requests=[12]
    )
    fleet = pooled(Sglang.handover, workers=2)
    assert fleet.prefill is not None
    fleet = replace(
        fleet,
        policy=msgspec.structs.replace(fleet.policy, prefix_cache=True),
        prefill=fleet.prefill._replace(route=how),
    )
    assert [record["cached_tokens"] for record in records_of(asked, fleet)].count(0) == computed


def test_route_reaches_the_router_between_pools() -> None:
    fleet = fleet_of(parse_deployment(SMALL), route="round-robin")
    assert fleet.prefill is not None
    assert fleet.prefill.route == "round-robin"
    plain = fleet_of(parse_deployment(SMALL))
    assert plain.prefill is not None
    assert plain.prefill.route == "least-busy"
    assert fleet.policy == plain.policy
