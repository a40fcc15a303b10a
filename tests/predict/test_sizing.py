"""What a rank holds, what engines leave of it, and what was printed by engines that ran."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from loadstone import catalogue
from loadstone.catalogue import parse_worker
from loadstone.core.errors import InputError
from loadstone.engines import rules_of
from loadstone.engines.sharding.limits import GIB, MIB, Budget, EngineLimits
from loadstone.engines.sharding.rank import CacheLayer, stage_layers
from loadstone.predict.scheduler import policy_of
from loadstone.predict.sizing.memory import engine_limits, max_context, memory_of
from loadstone.predict.sizing.size import size

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
PRINTED = re.compile(r"^\| `([^`]+)` \| ([\d.]+) \| ([\d.]+) \| ([+−]?[\d.]+) % \| ", re.MULTILINE)


def test_what_one_gpu_holds_of_llama_8b() -> None:
    (rank,) = rules_of(parse_worker("llama-3.1-8b@1xh100")).ranks
    assert rank.weights_bytes == 2 * 8_030_261_248
    assert rank.cache == (CacheLayer(32, 2 * 8 * 128 * 2.0),)


def test_tensor_parallelism_cuts_matrices_and_repeats_norms() -> None:
    whole = rules_of(parse_worker("llama-3.1-8b@1xh100")).ranks[0].weights_bytes
    norms = (2 * 32 + 1) * 4096 * 2
    for tp in (2, 4, 8):
        (rank,) = rules_of(parse_worker(f"llama-3.1-8b@{tp}xh100/tp{tp}")).ranks
        assert rank.weights_bytes == pytest.approx((whole - norms) / tp + norms)
        assert rank.cache == (CacheLayer(32, 2 * 8 / tp * 128 * 2.0),)


def test_beyond_the_kv_heads_they_are_copied() -> None:
    row = size(parse_worker("llama-3.1-8b@16xh100/tp16"), 4096)
    assert row.kv_replication == 2
    assert row.kv_bytes == 2 * 4096 * 131_072
    assert row.kv_bytes_per_token == 131_072
    keys_and_values = 2 * 32 * 4096 * 1024 * 2  # bytes; each of 16 ranks has an eighth
    assert row.weights_bytes == pytest.approx(
        2 * 8_030_261_248 + keys_and_values + 15 * (2 * 32 + 1) * 4096 * 2
    )


def test_the_latent_is_on_every_rank() -> None:
    row = size(parse_worker("deepseek-v3@8xh200/tp8"), 4096)
    assert (row.kv_bytes_per_token, row.kv_replication) == (70_272, 8)
    assert row.kv_bytes == 8 * 4096 * 70_272
    spread = size(parse_worker("deepseek-v3@8xh200/tp1,dp8,attention-dp,ep8"), 4096, 8)
    assert (spread.kv_replication, spread.kv_bytes) == (1, row.kv_bytes)


def test_compressed_attention_keeps_a_window_and_a_share_of_the_rest() -> None:
    (rank,) = rules_of(parse_worker("deepseek-v4-pro@8xb200/tp8")).ranks
    windows = CacheLayer(61, 512 * 2.0, 128)
    assert rank.cache == (
        windows,
        CacheLayer(31, 512 / 128 * 2),
        CacheLayer(30, (512 + 128) / 4 * 2),
    )


def test_states_are_cut_by_their_heads() -> None:
    (rank,) = rules_of(parse_worker("qwen3.5-397b-a17b:fp8@8xb200/tp8")).ranks
    state = (
        64 * 128 * 128 * 4 + 3 * (2 * 16 + 64) * 128 * 2
    )  # in 32 bits; three inputs of the convolution in 16
    assert rank.cache == (CacheLayer(45, 0.0, None, state / 8), CacheLayer(15, 2 * 256 * 2.0))


def test_experts_are_dealt_out_or_cut_alike() -> None:
    cut, dealt = (
        rules_of(parse_worker(f"mixtral-8x7b@8xh100/tp8{more}")).ranks[0] for more in ("", ",ep8")
    )
    assert cut.weights_bytes == dealt.weights_bytes
    (shared,) = rules_of(parse_worker("mixtral-8x7b@8xh100/tp1,dp8,attention-dp,ep8")).ranks
    assert shared.weights_bytes > cut.weights_bytes  # the attention is whole on each


def test_stages_share_layers_and_have_an_end_each() -> None:
    assert stage_layers(32, 4) == [8, 8, 8, 8]
    assert stage_layers(61, 4) == [15, 15, 16, 15]
    assert stage_layers(30, 4) == [7, 8, 8, 7]
    stages = rules_of(parse_worker("llama-3.1-8b@4xh100/tp1,pp4")).ranks
    table = 128_256 * 4096 * 2
    assert [rank.head for rank in stages] == [False, False, False, True]
    assert stages[0].weights_bytes == stages[1].weights_bytes + table
    assert stages[3].weights_bytes == stages[1].weights_bytes + table + 4096 * 2
    assert sum(rank.weights_bytes for rank in stages) == 2 * 8_030_261_248
    # Three dense layers, in the first stage alone.
    uneven = rules_of(parse_worker("deepseek-v3@16xh200/tp8,pp2,nodes=2")).ranks
    assert (
        sum(rank.weights_bytes for rank in uneven)
        == rules_of(parse_worker("deepseek-v3@8xh200/tp8")).ranks[0].weights_bytes
    )


def test_precision_of_weights_leaves_the_embeddings() -> None:
    row = size(parse_worker("llama-3.1-70b:fp8@2xh100/tp1,dp2"))
    embeddings = 2 * 128_256 * 8192
    assert row.weights_bytes / 2 == pytest.approx(70_553_706_496 + embeddings, rel=1e-3)


# --- against what engines printed -----------------------------------------------------------------


def printed() -> list[tuple[str, float, float, float]]:
    found = PRINTED.findall((RESULTS / "sizing.md").read_text())
    return [
        (name, float(seen), float(ours), float(off.replace("−", "-")))
        for name, seen, ours, off in found
    ]


def test_the_page_has_what_was_printed() -> None:
    assert len(printed()) == 12


@pytest.mark.parametrize(
    ("name", "seen", "ours", "off"), printed(), ids=[row[0] for row in printed()]
)
def test_the_pages_numbers_are_ours_and_near_those_printed(
    name: str, seen: float, ours: float, off: float
) -> None:
    found = memory_of(parse_worker(name)).budget.kv_bytes / GIB
    assert found == pytest.approx(ours, abs=0.006)
    assert 100 * (found / seen - 1) == pytest.approx(off, abs=0.15)
    # Never more than 3 % beyond what there was; less by 6 %, or by what is little of the GPU.
    assert -max(0.06 * seen, 0.6) < found - seen < 0.03 * seen


def test_an_rtx_4090_holds_what_vllm_gave_it() -> None:
    limits = engine_limits(
        parse_worker("llama-3.1-8b@1xrtx-4090/version=0.19.0,max_model_len=32768")
    )
    assert limits.kv_tokens == pytest.approx(41_408, rel=0.03)
    assert (limits.block_tokens, limits.max_batched_tokens, limits.max_seqs) == (16, 2048, 256)


def test_what_failed_to_start_does_not_fit() -> None:
    # vLLM, one H100: −1.44 GiB were left for KV (benchmarks/results/sizing.md, B).
    assert memory_of(parse_worker("llama-3.1-70b:fp8@1xh100/version=0.15.0")).budget.kv_bytes < 0


# --- the worked example ---------------------------------------------------------------------------


def test_the_worked_example() -> None:
    memory = memory_of(parse_worker("llama-3.1-8b@1xrtx-4090/version=0.19.0"))
    budget = memory.budget
    assert budget.total_bytes - budget.outside_bytes == 22_728_966_930
    assert budget.activation_bytes == 256 * 128_256 * 14 + 4 * 132 * 128_256 + 2 * 2048 * 4096 * 2
    assert budget.runtime_bytes == 0.46 * GIB + 131_072 * 128 * 2
    assert budget.graphs_bytes == 0
    text = (RESULTS / "sizing.md").read_text()
    for number in (budget.kv_bytes, memory.blocks, memory.blocks * 16):
        assert f"{round(number):,}" in text


@pytest.mark.parametrize(
    ("argument", "counted"),
    [
        ("max_num_seqs=256", True),
        ("cudagraph_mode=PIECEWISE", True),
        ("cudagraph_mode=NONE", False),
        ("enforce_eager=1", False),
    ],
)
def test_graphs_that_are_not_captured_take_no_memory(argument: str, counted: bool) -> None:
    memory = memory_of(parse_worker(f"llama-3.1-8b@1xh100/version=0.21.0,{argument}"))
    assert (memory.budget.graphs_bytes > 0) == counted


def test_vllms_shares_and_steps_in_flight() -> None:
    all_of_it = memory_of(parse_worker("llama-3.1-8b@1xh100/gpu_memory_utilization=1")).budget
    assert all_of_it.outside_bytes == 0
    assert (
        memory_of(parse_worker("llama-3.1-8b@1xh100/version=0.21")).budget.graphs_bytes
        == 1.04 * GIB
    )
    for more, steps, held in (
        ("1xh100", 2, 1),
        ("2xh100/tp1,pp2", 3, 1),
        ("1xh100/version=0.29.0", 1, 0),
    ):
        cache = memory_of(parse_worker(f"gpt-oss-20b@{more}")).stages[0][2]
        assert (cache.in_flight_tokens, cache.held_blocks) == (steps * 8192, held)


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-3.1-8b@1xh100", (16, 8192, 1024)),
        ("llama-3.1-8b@1xa100", (16, 2048, 256)),
        ("llama-3.1-8b@1xb200", (16, 16_384, 1024)),
        (
            "llama-3.1-8b@1xh100/max_num_seqs=64,max_num_batched_tokens=4096,block_size=32",
            (32, 4096, 64),
        ),
        ("llama-3.1-8b@1xh100/engine=tensorrt-llm", (32, 8192, 2048)),
        ("llama-3.1-8b@1xh100/engine=sglang", (1, 8192, 2048)),
        ("llama-3.1-8b@1xh100/engine=sglang,max_running_requests=100", (1, 8192, 100)),
    ],
)
def test_what_a_scheduler_works_under(name: str, expected: tuple[int, int, int]) -> None:
    limits = engine_limits(parse_worker(name))
    assert isinstance(limits, EngineLimits)
    assert (limits.block_tokens, limits.max_batched_tokens, limits.max_seqs) == expected
    assert limits.kv_tokens == limits.kv_blocks * limits.block_tokens > 100_000


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize(
    "name",
    ["gemma-3-27b@1xh100", "llama-4-scout@8xh100/tp8", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16@1xh100",
     "gpt-oss-120b@1xh100", "llama-3.1-8b@1xh100"],
)  # fmt: skip
def test_a_scheduler_holds_as_many_requests_as_are_promised(name: str, engine: str) -> None:
    """Windows and states are most of a short request: a cache holds fewer of its tokens than of a
    long one's."""
    deployment = parse_worker(name + ("," if "/tp" in name else "/") + f"engine={engine}")
    for context in (256, 1280, 8192, 32768):
        policy = policy_of(deployment, lengths=np.full(3, context))
        held = min(policy.max_seqs, policy.kv_tokens // context)
        assert held == pytest.approx(
            size(deployment, context).max_concurrent_requests, rel=0.01, abs=1
        )
    # Whatever the mean is, the longest is held; and without lengths no more than states are.
    lengths = np.array([10, 10, 30_000])
    assert policy_of(deployment, lengths=lengths).kv_tokens >= 30_000
    assert engine_limits(deployment).max_seqs <= memory_of(deployment).whole_requests(1)


def test_limits_of_what_does_not_fit_say_so() -> None:
    with pytest.raises(InputError, match=r"weights per GPU .* do not fit .* GPUs would"):
        engine_limits(parse_worker("llama-3.1-70b@1xh100"))
    with pytest.raises(
        InputError, match=r"tp3 does not divide the 32 attention heads, .* tp 1, 2, 4, 8, 16, 32 w"
    ):
        engine_limits(parse_worker("llama-3.1-8b@3xh100/tp3"))
    with pytest.raises(InputError, match="no sizing rules"):
        engine_limits(parse_worker("llama-3.1-8b@1xh100/engine=transformers"))


def test_sglangs_fraction() -> None:
    def slack(name: str) -> float:
        budget = memory_of(parse_worker(name)).budget
        return 1 - budget.activation_bytes / (budget.total_bytes - budget.runtime_bytes)

    total = parse_worker("llama-3.1-8b@1xh100").gpu.usable_bytes / (1 << 20)
    assert slack("llama-3.1-8b@1xh100/engine=sglang") == pytest.approx(
        round(1 - (1536 + 128) / total, 3)
    )
    # Before: 512 + 1.5 · 8192 + 128 + 2 · 256 + 8 · 58 captured sizes, above the 10 GiB that are
    # the least.
    older = 512 + 1.5 * 8192 + 128 + 2 * 256 + 8 * 58
    assert slack("llama-3.1-8b@1xh100/engine=sglang,version=0.5.10") == pytest.approx(
        round(1 - older / total, 3)
    )
    assert slack("llama-3.1-8b@1xh100/engine=sglang,mem_fraction_static=0.7") == pytest.approx(0.7)
    # Of shorter chunks less than the 10 GiB, which a GPU of 24 GB does not keep: 48 sequences and
    # 50 sizes there.
    shorter = "engine=sglang,version=0.5.10,chunked_prefill_size=2048"
    assert slack(f"llama-3.1-8b@1xh100/{shorter}") == pytest.approx(round(1 - 10 * 1024 / total, 3))
    total = parse_worker("llama-3.1-8b@1xrtx-4090").gpu.usable_bytes / MIB
    small = 512 + 1.5 * 4096 + 128 + 2 * 48 + 8 * 50
    assert slack("llama-3.1-8b@1xrtx-4090/engine=sglang,version=0.5.10") == pytest.approx(
        round(1 - small / total, 3)
    )
    # Latent attention: 1536 for prefill; eight replicas of up to 512 with 4.5 for each sequence of
    # theirs.
    total = parse_worker("deepseek-v3@8xh200").gpu.usable_bytes / MIB
    latent = 512 + 1.5 * 8192 + 8 * 128 + 2 * 512 + 1536 + 8 * 512 * 4.5
    spread = "deepseek-v3@8xh200/tp1,dp8,ep8,attention-dp,engine=sglang"
    assert slack(spread) == pytest.approx(round(1 - latent / total, 3))
    fewer = latent - 1.5 * (8192 - 4096) - 2 * 256 - 8 * (512 * 4.5 - 256 * 3)
    limited = f"{spread},chunked_prefill_size=4096,cuda_graph_max_bs=256"
    assert slack(limited) == pytest.approx(round(1 - fewer / total, 3))


@pytest.mark.parametrize(
    ("name", "tokens", "graph"),
    [
        ("llama-3.1-8b@1xt4", 2048, 8),
        ("llama-3.1-8b@1xrtx-4090", 4096, 48),
        ("llama-3.1-8b@1xl40s", 4096, 32),
        ("llama-3.1-8b@4xl40s/tp4", 4096, 160),
        ("llama-3.1-8b@1xh100", 8192, 256),
        ("llama-3.1-8b@4xh100/tp2,dp2", 8192, 256),
        ("deepseek-v3@8xh200/tp1,dp8,ep8,attention-dp", 8192, 512),
        ("llama-3.1-8b@1xb200", 16_384, 512),
        ("llama-3.1-8b@1xh100/version=0.4", 8192, 256),
        ("llama-3.1-8b@1xb200/version=0.4.9", 8192, 512),
        ("llama-3.1-8b@1xt4/version=0.4.9", 2048, 8),
        ("llama-3.1-8b@1xb200/version=0.5", 16_384, 512),
    ],
)
def test_sglangs_steps_by_the_gpus_memory(name: str, tokens: int, graph: int) -> None:
    limits = rules_of(parse_worker(f"{name}{',' if '/' in name else '/'}engine=sglang")).limits()
    assert (limits.block_tokens, limits.max_batched_tokens, limits.max_seqs) == (1, tokens, graph)


def test_how_many_sglang_runs_at_once() -> None:
    def most(deployment: str, kv_tokens: int) -> int:
        rules = rules_of(parse_worker(deployment))
        return rules.max_seqs(rules.limits(), kv_tokens)

    plain = "llama-3.1-8b@1xh100/engine=sglang"  # 512 for each whole context of 131,072
    assert [most(plain, tokens) for tokens in (1, 1000, 400_000, 768_000, 4_000_000)] == [
        1,
        500,
        2048,
        3000,
        4096,
    ]
    spread = "deepseek-v3@8xh200/tp1,dp8,ep8,attention-dp,engine=sglang,max_running_requests=100"
    assert [most(spread, tokens) for tokens in (10, 10_000)] == [5, 12]
    guessing = ",num_speculative_tokens=1"
    for more, seqs in (("", 48), (",max_running_requests=64", 64)):
        assert most(f"deepseek-v3@8xh200/tp8,engine=sglang{guessing}{more}", 400_000) == seqs
    assert (
        most(f"deepseek-v3@8xh200/tp1,dp8,attention-dp,engine=sglang{guessing}", 400_000) == 48 // 8
    )


def test_sglangs_states_have_nine_parts_of_nineteen() -> None:
    budget = memory_of(parse_worker("qwen3.5-397b-a17b:fp8@8xb200/tp8,engine=sglang")).budget
    assert budget.runtime_bytes == 1.9 * GIB
    assert budget.graphs_bytes == (2 * 512 + 8 * 74) * MIB  # 58 sizes up to 8192 and 16 beyond
    room = budget.total_bytes - budget.activation_bytes - budget.runtime_bytes - budget.graphs_bytes
    room -= budget.weights_bytes + 100 * MIB  # embeddings of pictures
    assert (budget.state_bytes, budget.kv_bytes) == (
        pytest.approx(room * 9 / 19),
        pytest.approx(room * 10 / 19),
    )


@pytest.mark.parametrize(
    ("given", "tokens", "seqs", "share"),
    [
        ("", 8192, 2048, 0.9),
        (",max_batch_size=64,max_num_tokens=1024,free_gpu_memory_fraction=0.5", 1024, 64, 0.5),
    ],
)
def test_tensorrt_llm_takes_a_share_of_what_is_left(
    given: str, tokens: int, seqs: int, share: float
) -> None:
    budget = memory_of(parse_worker(f"llama-3.1-8b@1xh100/engine=tensorrt-llm{given}")).budget
    sampling = seqs * 128_256 * 14 + 4 * min(seqs, 132) * 128_256
    assert budget.activation_bytes == 2 * tokens * 4096 * 2 + sampling
    left = budget.total_bytes - 2 * 8_030_261_248 - budget.activation_bytes - 0.46 * GIB
    assert budget.kv_bytes == pytest.approx(left * share)


# --- answers --------------------------------------------------------------------------------------


def test_pieces_add_up_to_the_gpus() -> None:
    for name in (
        "llama-3.1-8b@2xh100",
        "deepseek-v3@8xh200/engine=sglang",
        "llama-3.1-8b@1xl40s/engine=tensorrt-llm",
    ):
        row = size(parse_worker(name), 4096, 3)
        total = (
            row.weights_bytes
            + row.activation_bytes
            + row.reserve_bytes
            + row.kv_bytes
            + row.free_bytes
        )
        assert total == pytest.approx(row.usable_bytes)


def test_the_longest_context_fits_and_one_block_more_does_not() -> None:
    deployment = parse_worker("llama-3.1-8b@1xrtx-4090")
    longest = size(deployment).max_context_tokens
    assert size(deployment, longest).fits
    row = size(deployment, longest + 1)
    assert not row.fits
    assert f"a context of {longest:,} fits" in row.why
    assert max_context(deployment, 2) < longest


@pytest.mark.parametrize(
    ("name", "requests"),
    [
        ("llama-3.1-8b@1xrtx-4090/version=0.5.3", 1),  # steps that take whole prompts
        ("llama-3.1-8b@1xrtx-4090/version=0.6.0", 1),  # and beyond 32,768 tokens parts of them
        ("llama-3.1-8b@1xh100/version=0.6.0", 4),
        ("llama-3.1-8b@1xh100/version=0.6.0", 16),
    ],
)
def test_the_longest_context_where_memory_depends_on_it(name: str, requests: int) -> None:
    deployment = parse_worker(name)
    longest = max_context(deployment, requests)
    assert memory_of(deployment, longest).holds(longest, requests)
    assert not memory_of(deployment, longest + 1).holds(longest + 1, requests)


def test_more_at_once_than_the_engine_runs() -> None:
    row = size(parse_worker("llama-3.1-8b@1xh200/max_num_seqs=8"), 1024, 16)
    assert (row.fits, row.max_concurrent_requests) == (True, 8)
    assert "runs 8 requests at once" in row.why


def test_replicas_hold_a_share_each() -> None:
    one, four = (size(parse_worker(f"llama-3.1-8b@{n}xh100/tp1,dp{n}"), 8192, n) for n in (1, 4))
    assert four.max_concurrent_requests == 4 * one.max_concurrent_requests
    assert four.weights_bytes == 4 * one.weights_bytes
    assert four.max_context_tokens == one.max_context_tokens


@pytest.mark.parametrize(
    ("name", "context", "said"),
    [
        ("llama-3.1-8b@3xh100/tp3", None, "tp3 does not divide the 32 attention heads"),
        ("llama-3.1-8b@1xh100", 200_000, "beyond the 131,072"),
        ("llama-3.1-8b@1xh100/max_model_len=4096", 8192, "beyond the 4,096"),
        ("llama-3.1-70b@1xh100", 4096, "2 GPUs would"),
        ("qwen3-235b-a22b-fp8@8xh100/tp8", None, "blocks of 128"),
        ("qwen3-32b@24xh100/tp24,pp1", None, "does not divide"),
    ],
)
def test_what_cannot_be_says_why_and_what_would(name: str, context: int | None, said: str) -> None:
    row = size(parse_worker(name), context)
    assert not row.fits
    assert said in row.why


@pytest.mark.parametrize("value", ["0", "1.5", "-1", "x", "nan", "²", "٣"])
def test_an_argument_that_means_nothing_is_named(value: str) -> None:
    with pytest.raises(InputError, match="--gpu-memory-utilization"):
        size(parse_worker(f"llama-3.1-8b@1xh100/gpu_memory_utilization={value}"))
    with pytest.raises(InputError, match="--max-num-seqs"):
        size(parse_worker(f"llama-3.1-8b@1xh100/max_num_seqs={value}"))


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen2.5-72B@1xh100",
        "llama-3.1-70b:fp8@1xl4",
        "deepseek-v3@1xb200",
        "mixtral-8x22b@1xl40s/engine=sglang",
    ],
)
def test_the_gpus_that_a_row_says_would_do_do(name: str) -> None:
    why = size(parse_worker(name), 8192, 4).why
    would = re.search(r"; (\d+) GPUs would \(([^)]+)\)", why)
    assert would is not None
    model, _, rest = name.partition("@1x")
    gpu, _, engine = rest.partition("/")
    layout = ",".join([*would[2].split(), engine]).rstrip(",")
    assert size(parse_worker(f"{model}@{would[1]}x{gpu}/{layout}"), 8192, 4).fits


def test_replicas_that_lack_room_are_told_of_one_by_one() -> None:
    row = size(parse_worker("deepseek-v3@16xh100/tp1,dp16,ep16"))
    assert not row.fits
    assert "of each of 16 replicas holds 0.99 requests" in row.why
    shared = size(parse_worker("deepseek-v3@8xl40s/dp8,attention-dp")).why
    assert "32 GPUs would (attention-dp tp2 pp2 dp8)" in shared
    assert size(parse_worker("deepseek-v3@32xl40s/attention-dp,tp2,pp2,dp8"), context_tokens=1).fits
    assert "; 64 GPUs would (tp8 dp8)" in size(parse_worker("llama-3.1-405b@8xh200/dp8")).why


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("deepseek-v3@8xh100", "or weights of fewer bits: these GPUs hold int4 (MODEL:int4)"),
        ("deepseek-v3@4xb200", "or weights of fewer bits: these GPUs hold nvfp4 (MODEL:nvfp4)"),
        ("llama-3.1-70b@2xl40s", "or weights of fewer bits (MODEL:fp8), which these GPUs hold"),
        (
            "llama-3.1-70b@1xl40s",
            "or weights of fewer bits (MODEL:fp8): these GPUs hold int4 (MODEL:int4)",
        ),
        ("deepseek-v3@1xh100", "or weights of fewer bits"),
    ],
)
def test_the_precision_that_these_gpus_hold_is_named(text: str, said: str) -> None:
    assert size(parse_worker(text), 4096).why.endswith(said)
    named = said.rpartition("MODEL:")[2].partition(")")[0]
    if named in ("fp8", "nvfp4", "int4"):
        assert size(parse_worker(text.replace("@", f":{named}@")), 4096).fits


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("llama-3.1-8b@1xh100/kv=nvfp4", ""),
        (
            "llama-3.1-8b@1xh100/kv=nvfp4,version=0.19.0",
            "vllm 0.19.0 has no KV cache in nvfp4; 0.21 has",
        ),
        (
            "llama-3.1-8b@1xmi300x/kv=nvfp4",
            "vllm has no KV cache in nvfp4 on a mi300x; fp8 would work (kv=fp8)",
        ),
        ("llama-3.1-8b@2xt4/kv=nvfp4", "no KV cache in nvfp4 on a t4"),
        ("gpt-oss-20b@1xh100/kv=nvfp4", "heads of 64 numbers or attention sinks"),
        ("gpt-oss-20b@1xb200/kv=nvfp4", ""),
        ("deepseek-v3@8xh200/kv=nvfp4", "no KV cache in nvfp4 for MLA"),
        (
            "llama-3.1-8b@1xh100/kv=int8,engine=sglang",
            "sglang has no KV cache in int8; fp32, bf16, fp16, nvfp4, fp8",
        ),
        ("llama-3.1-8b@1xb200/kv=int8,engine=trtllm", "tensorrt-llm has no KV cache in int8"),
        ("llama-3.1-8b@1xh100/kv=fp8,engine=llama.cpp", "llama.cpp has no KV cache in fp8"),
        ("llama-3.1-8b@1xh100/kv=int8,engine=llama.cpp", ""),
        ("llama-3.1-8b@1xa100/kv=fp8", ""),
    ],
)
def test_a_cache_that_the_engine_has_not_does_not_fit(text: str, said: str) -> None:
    row = size(parse_worker(text), 512)
    assert said in row.why
    assert row.fits == (not said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "llama-3.1-8b:fp8@1xa100/engine=tensorrt-llm",
            "no a100 does; int4 would work; engine=vllm or",
        ),
        (
            "llama-3.1-8b:nvfp4@1xl40s/engine=tensorrt-llm",
            "tensorrt-llm takes nvfp4 weights only where",
        ),
        (
            "llama-3.1-8b@1xmi300x/engine=tensorrt-llm",
            "NVIDIA's GPUs alone, not on a mi300x; engine=vllm or engine=sglang or",
        ),
        (
            "llama-3.1-8b:int4@1xt4/engine=tensorrt-llm",
            "tensorrt-llm runs from Ampere on, not on a t4",
        ),
        (
            "llama-3.1-8b:fp8@1xv100",
            "vllm has no kernels for fp8 weights on a v100; bf16 or int4 would work",
        ),
        ("gpt-oss-20b@1xv100/engine=sglang", "sglang has no kernels for mxfp4 weights on a v100"),
        ("llama-3.1-8b:int4@1xt4/engine=tensorrt-llm,version=0.9.0", ""),
        ("llama-3.1-8b:fp8@1xl40s/engine=tensorrt-llm", ""),
        ("llama-3.1-8b:nvfp4@1xrtx-5090/engine=tensorrt-llm", ""),
        ("llama-3.1-8b:int4@1xa100/engine=tensorrt-llm", ""),
        ("llama-3.1-8b:fp8@1xa100", ""),  # widened, as FP4 is
        ("llama-3.1-8b:nvfp4@1xl40s", ""),
        ("llama-3.1-8b:fp8@1xt4", ""),
        ("llama-3.1-8b@1xv100", ""),  # in float16
    ],
)
def test_weights_that_an_engine_has_no_kernels_for_do_not_fit(text: str, said: str) -> None:
    row = size(parse_worker(text), 512)
    assert said in row.why
    assert row.fits == (not said)


def test_no_weights_are_proposed_that_would_not_run() -> None:
    assert "fp8" not in size(parse_worker("llama-3.1-70b@1xv100"), 4096).why
    assert (
        "these GPUs hold int4" in size(parse_worker("llama-3.1-70b@1xa100/engine=trtllm"), 4096).why
    )


def test_replicas_that_could_share_their_experts_are_told_so() -> None:
    why = size(parse_worker("deepseek-r1@8xh200/tp4,dp2"), 8192).why
    assert why.endswith("; replicas that share one set of experts would (attention-dp tp4 dp2)")
    assert size(parse_worker("deepseek-r1@8xh200/tp4,dp2,attention-dp"), 8192).fits
    assert "32 GPUs would" in size(parse_worker("deepseek-r1@8xh100/tp4,dp2"), 8192).why


def test_a_block_never_given_out_is_not_promised_to_the_last_request() -> None:
    """Blocks for four requests to the block, of which vLLM keeps one: three are held, and the row
    says so."""
    deployment = parse_worker(
        "Qwen/Qwen3-VL-8B-Instruct:fp8@1xh100-nvl/kv=fp8,gpu_memory_utilization=0.91,"
        "limit_mm_per_prompt=0"
    )
    context = 258_752
    assert memory_of(deployment).requests(context) == 4
    row = size(deployment, context, 4)
    assert (row.fits, row.max_concurrent_requests) == (False, 3)
    assert "holds 3.99 requests" in row.why
    assert "a batch of 3 fits" in row.why


def test_sglang_holds_no_more_than_max_total_tokens() -> None:
    name = "llama-3.1-8b@1xl4/engine=sglang"
    whole, capped = (
        size(parse_worker(name + more), 4096) for more in ("", ",max_total_tokens=5000")
    )
    assert (
        capped.kv_capacity_tokens,
        capped.max_context_tokens,
        capped.max_concurrent_requests,
    ) == (5000, 5000, 1)
    assert whole.kv_capacity_tokens > 5000


def test_a_stage_without_attention_needs_no_cache() -> None:
    """Three of four layers keep a state alone: with 48 layers on 16 ranks some have no other."""
    row = size(parse_worker("Qwen/Qwen3-Next-80B-A3B-Instruct@16xgh200/engine=llama.cpp"), 8192, 4)
    assert (row.fits, row.max_concurrent_requests) == (True, 4)


@pytest.mark.parametrize("engine", ["tensorrt-llm", "llama.cpp"])
def test_states_take_room_of_their_own(engine: str) -> None:
    kv = "int8" if engine == "llama.cpp" else "fp8"
    deployment = parse_worker(f"Qwen/Qwen3.5-27B@1xgh200/kv={kv},engine={engine}")
    row = size(deployment, 8192, 4)
    held = size(deployment, 8192, row.max_concurrent_requests)
    assert held.fits
    assert held.free_bytes >= -1
    assert row.max_concurrent_requests > 4 or engine == "llama.cpp"
    more = size(deployment, 8192, row.max_concurrent_requests + 1)
    assert not more.fits


# --- what platform engineers asked ----------------------------------------------------------------


def test_a_tp_that_cannot_be_is_told_once_with_what_works_for_all() -> None:
    # 32 heads, 8 KV heads and 14,336 of width: 6 divides none of them, and what works must work for
    # each.
    why = size(parse_worker("llama-3.1-8b@6xh100")).why
    assert why == (
        "tp6 does not divide the 32 attention heads, the 8 KV heads and the 14336 numbers of the MLP's width; "
        "tp 1, 2, 4, 8, 16, 32 would: of 6 GPUs tp2 with dp3 or pp3"
    )
    for layout in ("tp2,dp3", "tp2,pp3"):
        assert size(parse_worker(f"llama-3.1-8b@6xh100/{layout}")).fits
    why = size(parse_worker("qwen3-235b-a22b-fp8@8xh100")).why
    assert "rest by ep (ep2)" in why
    assert size(parse_worker("qwen3-235b-a22b-fp8@8xh100/ep2")).fits


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_engine_told_of_more_context_than_the_model_has_does_not_start(engine: str) -> None:
    row = size(parse_worker(f"qwen3-8b@1xh100/engine={engine},max_model_len=131072"), 65_536)
    assert not row.fits
    assert (row.max_context_tokens, row.max_concurrent_requests) == (0, 0)
    assert "max_model_len 131,072 is beyond the 40,960" in row.why
    assert size(parse_worker(f"qwen3-8b@1xh100/engine={engine},max_model_len=40960"), 32_768).fits


def test_draft_layers_are_held_where_tokens_are_guessed() -> None:
    plain, guessing = (
        size(parse_worker(f"deepseek-v3@8xh200/ep8{more}"), 8192)
        for more in ("", ",num_speculative_tokens=1")
    )
    model = catalogue.model("deepseek-v3")
    # One layer more: its 256 + 1 experts in FP8 are shared out, and its 576 numbers a token are on
    # every rank.
    assert guessing.kv_bytes_per_token - plain.kv_bytes_per_token == 576 * 2
    assert guessing.kv_bytes / plain.kv_bytes == 62 / 61
    more = guessing.weights_bytes - plain.weights_bytes
    assert model.draft_parameters < more < 1.12 * model.draft_parameters
    none = size(parse_worker("deepseek-v3@8xh200/ep8,num_speculative_tokens=0"), 8192)
    assert none == plain


def test_that_no_draft_is_counted_is_said() -> None:
    one, other = (
        size(parse_worker(f"llama-3.1-8b@1xh100{more}"))
        for more in ("", "/num_speculative_tokens=3")
    )
    assert one.weights_bytes == other.weights_bytes
    assert "no memory of a draft is counted" in other.assumed
    own = size(parse_worker("deepseek-v3@8xh200/num_speculative_tokens=1"))
    assert "draft" not in one.assumed + own.assumed


def test_vllm_packs_fp8_of_sparse_mla() -> None:
    """512 numbers in FP8, four scales of 4 bytes, a RoPE key of 64 in bf16; the indexer's key of
    128 and a scale."""
    per_token = {
        name: size(parse_worker(name), 8192).kv_bytes_per_token
        for name in ("deepseek-v3.2@8xh200/kv=fp8", "deepseek-v3.2@8xh200/kv=fp8,engine=tensorrt-llm",
                     "deepseek-v3@8xh200/kv=fp8")
    }  # fmt: skip
    assert list(per_token.values()) == [61 * (512 + 16 + 128 + 132), 61 * (576 + 132), 61 * 576]
    assert size(parse_worker("deepseek-v3.2@8xh200"), 8192).kv_bytes_per_token == 61 * (
        2 * 576 + 132
    )


def test_sglang_loads_drafts_before_it_sizes_the_cache() -> None:
    """0.5.23 reserves nothing for them (memory_hook); a token's bytes have their layers
    (pool_configurator)."""
    for model, numbers in (("deepseek-v3", 576), ("glm-4.5", 2 * 8 * 128)):
        plain, guessing = (
            size(parse_worker(f"{model}@8xh200/tp8,engine=sglang{more}"), 8192)
            for more in ("", ",num_speculative_tokens=1")
        )
        assert guessing.kv_bytes_per_token - plain.kv_bytes_per_token == numbers * 2
        assert guessing.weights_bytes > plain.weights_bytes
        assert (
            guessing.reserve_bytes + guessing.activation_bytes
            == plain.reserve_bytes + plain.activation_bytes
        )


def test_sglang_kept_memory_free_for_drafts() -> None:
    plain, guessing = (
        size(parse_worker(f"deepseek-v3@8xh200/engine=sglang,version=0.5.0{more}"))
        for more in ("", ",num_speculative_tokens=1")
    )
    assert guessing.weights_bytes == plain.weights_bytes
    # 2 GiB a GPU, but for the three digits of the fraction.
    lost = (plain.kv_bytes + plain.free_bytes - guessing.kv_bytes - guessing.free_bytes) / 8
    assert lost == pytest.approx(2 << 30, abs=0.0011 * 139.8 * (1 << 30))


def test_sglang_keeps_memory_for_towers() -> None:
    """By its source: 8 GiB where the cache is sized after capture, else 0.95 of the share, less a
    tenth for each tower of ViT-L/14's size beyond the first; Qwen3-VL's has 27 layers of 1,152."""
    name = "qwen3-vl-8b@1x{gpu}/engine=sglang{more}"

    def budget(gpu: str, more: str = "") -> Budget:
        return memory_of(parse_worker(name.format(gpu=gpu, more=more))).budget

    total = parse_worker("llama-3.1-8b@1xh100").gpu.usable_bytes / MIB
    share = round(1 - (1536 + 128) / total, 3) - 8192 / total
    after = budget("h100")
    assert after.activation_bytes == pytest.approx(
        (total * MIB - after.runtime_bytes) * (1 - share)
    )
    assert after.embeddings_bytes == 1024 * MIB  # pixels: a Hopper of 60 GiB and more
    assert budget("b200").embeddings_bytes == budget("a100").embeddings_bytes == 100 * MIB
    older = budget("h100", ",version=0.5.10")
    before = 512 + 1.5 * 8192 + 128 + 2 * 256 + 8 * 58
    grown = 27 * 1152**2 / (24 * 1024**2) - 1
    share = round(1 - before / total, 3) * 0.95 * (1 - 0.1 * grown)
    slack = (total * MIB - older.runtime_bytes) * (1 - share)
    assert older.activation_bytes == pytest.approx(slack)
    assert older.embeddings_bytes == 0
    given = budget("h100", ",mem_fraction_static=0.7")
    assert given.activation_bytes == pytest.approx((total * MIB - given.runtime_bytes) * 0.3)
    # Each rank has the whole tower where pictures are dealt out, else its part.
    whole, parts = (
        size(parse_worker(f"qwen3-vl-8b@2xh100/tp2,engine=sglang{more}"), 8192).weights_bytes
        for more in (",mm_enable_dp_encoder", "")
    )
    assert whole - parts == 2 * 576_388_336
    # Gemma 3 is served as text unless it is told otherwise.
    gemma = memory_of(parse_worker("gemma-3-27b@1xh100/engine=sglang")).budget
    assert gemma.embeddings_bytes == 0


def test_sglang_keeps_every_token_of_gemma_3_and_windows_of_gpt_oss() -> None:
    gemma = size(parse_worker("gemma-3-27b@1xh100/engine=sglang"), 8192)
    # 62 layers of 16 heads of 128, keys and values, in bf16; of them 52 have a window of 1,024.
    assert gemma.kv_bytes == 8192 * 62 * 2 * 16 * 128 * 2
    assert gemma.kv_capacity_tokens == int((gemma.kv_bytes + gemma.free_bytes) / 507_904)
    vllm = size(parse_worker("gemma-3-27b@1xh100"), 8192)
    full = 62 // 6  # every sixth
    assert vllm.kv_bytes == (8192 * full + 1024 * (62 - full)) * 2 * 16 * 128 * 2
    assert vllm.max_concurrent_requests > 1.5 * gemma.max_concurrent_requests
    gpt = size(parse_worker("gpt-oss-20b@1xh100/engine=sglang"), 8192)
    assert gpt.kv_bytes == (8192 * 12 + 128 * 12) * 2 * 8 * 64 * 2


def test_windows_that_slid_on_leave_room_for_others() -> None:
    """vLLM counts each request with a whole batch in flight when it prints its concurrency; but a
    batch is shared."""
    memory = memory_of(parse_worker("gemma-3-27b@1xh100"))
    # 10 layers a group: one of full attention, 52 others in six. 8,192 tokens are 512 blocks of 16
    # of each group while they are computed, and 64 and one more of a window's after.
    most, settled = 512 + 6 * 513, 512 + 6 * 65
    assert memory.cache.request_blocks(8192) == most
    assert memory.cache.settled_blocks(8192) == settled
    assert memory.cache.concurrency(memory.blocks, 8192) == memory.blocks / most
    held = 1 + (memory.blocks - most) / settled
    assert memory.requests(8192) == held
    assert memory.holds(8192, int(held))
    assert not memory.holds(8192, int(held) + 1)
    row = size(parse_worker("gemma-3-27b@1xh100"), 8192)
    assert (
        row.max_concurrent_requests * 8192
        <= row.kv_capacity_tokens
        < (row.max_concurrent_requests + 1) * 8192
    )
    # A model of full attention alone has no such difference.
    plain = memory_of(parse_worker("llama-3.1-8b@1xh100"))
    assert plain.requests(8192) == pytest.approx(plain.blocks / 512)


def test_links_between_nodes_of_four_are_named() -> None:
    assert (
        "tp8 reaches beyond the 4 GPUs of a node"
        in size(parse_worker("llama-3.1-70b@8xh100/nodes=2,tp8")).why
    )
    assert size(parse_worker("llama-3.1-70b@8xh100/tp8")).why == ""


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b@1xl40s", "gemma-3-27b@1xh100/engine=sglang", "deepseek-r1@8xh200"]
)
def test_gpus_that_hold_what_the_cache_does_not_are_named(name: str) -> None:
    why = size(parse_worker(name), 32_768, 64).why
    would = re.search(r"; (\d+) GPUs would \(([^)]+)\)", why)
    assert would is not None
    model, _, rest = name.partition("@")
    engine = rest.partition("/")[2]
    gpu = rest.partition("/")[0].partition("x")[2]
    layout = ",".join([*would[2].split(), engine]).rstrip(",")
    assert size(parse_worker(f"{model}@{would[1]}x{gpu}/{layout}"), 32_768, 64).fits


def test_llama_cpp_is_told_of_its_own_arguments() -> None:
    why = size(parse_worker("llama-3.1-8b@1xh100/engine=llama.cpp"), 8192, 24).why
    assert "--kv-dtype" not in why
    assert "a batch of 4 fits" in why  # 16 would be held, but there are 4 slots
    assert "ctx_size=196608 with parallel=24 would" in why
    assert size(
        parse_worker("llama-3.1-8b@1xh100/engine=llama.cpp,ctx_size=196608,parallel=24"),
        8192,
        24,
    ).fits


YARN = (
    '{"rope_parameters":{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768}}'
)


@pytest.mark.parametrize(
    ("engine", "argument", "requests"),
    [("vllm", "hf_overrides", 5), ("sglang", "json_model_override_args", 6)],
)
def test_beyond_its_context_a_model_needs_scaled_positions(
    engine: str, argument: str, requests: int
) -> None:
    """Memory is looked at all the same, and the remedy can be copied."""
    where = f"qwen3-32b@2xh200/tp2,engine={engine}"
    row = size(parse_worker(where), 131_072)
    assert (row.fits, row.max_concurrent_requests) == (False, 0)
    held = f"memory holds {requests} requests of 131,072 tokens"
    assert row.why.startswith(f"{held}, but context 131,072 is beyond the 40,960")
    for override in (f"{argument}={YARN}", row.why.partition("(YaRN): ")[2]):
        for more in ("", "max_model_len=131072,"):
            deployment = parse_worker(f"{where},{more}{override}")
            scaled = size(deployment, 131_072)
            assert (scaled.fits, scaled.why, scaled.max_concurrent_requests) == (True, "", requests)
            assert parse_worker(deployment.name) == deployment


@pytest.mark.parametrize(
    ("overrides", "limit"),
    [
        ('{"max_position_embeddings": 65536}', 65_536),
        (
            '{"max_position_embeddings": 32768, "rope_scaling": {"type": "linear", "factor": 2}}',
            65_536,
        ),
        ('{"rope_parameters": {"rope_type": "llama3", "factor": 8, "rope_theta": 1e6}}', 40_960),
    ],
)
def test_what_an_override_makes_of_the_context(overrides: str, limit: int) -> None:
    assert size(parse_worker(f"qwen3-32b@2xh200/hf_overrides={overrides}")).context_tokens == limit


@pytest.mark.parametrize(
    "overrides",
    [
        "yarn",
        "{",
        '{"num_experts": 4}',
        '{"rope_scaling": 5}',
        '{"rope_scaling": {"factor": 1e300}}',
        "[]",
    ],
)
def test_an_override_that_is_not_understood_is_one_line(overrides: str) -> None:
    with pytest.raises(InputError, match=r"^--hf-overrides: ") as caught:
        size(parse_worker(f"qwen3-32b@2xh200/hf_overrides={overrides}"))
    assert "\n" not in str(caught.value)


def test_a_precision_is_that_of_the_published_checkpoint() -> None:
    """What cuts the checkpoint's blocks is no answer for `MODEL:fp8` either."""
    row = size(parse_worker("qwen3-235b-a22b:fp8@8xh200"))
    assert not row.fits
    assert row.why.startswith(
        "Qwen/Qwen3-235B-A22B in fp8 is published as Qwen/Qwen3-235B-A22B-FP8: tp8 cuts"
    )
    assert size(parse_worker("qwen3-235b-a22b:fp8@8xh200/ep2")).fits
    assert size(parse_worker("qwen3-235b-a22b@8xh200")).fits


@pytest.mark.parametrize(
    ("arguments", "full_gib", "windows_gib"),
    [
        # Of Gemma 3 27B 10 of 62 layers keep all tokens, 8,192 bytes each; a window has 1,024.
        ("ctx_size=131072,parallel=1", 10.0, 52 * 8192 * 1536 / (1 << 30)),
        ("ctx_size=131072,parallel=4", 10.0, 4 * 52 * 8192 * 1536 / (1 << 30)),
        ("ctx_size=131072", 10.0, 52 * 8192 * 4608 / (1 << 30)),
        ("ctx_size=131072,parallel=1,swa_full=true", 62.0, 0.0),
    ],
)
def test_llama_cpp_keeps_windows_in_a_small_pool(
    arguments: str, full_gib: float, windows_gib: float
) -> None:
    worker = parse_worker(f"google/gemma-3-27b-it:int4@1xh200/engine=llama.cpp,{arguments}")
    memory = memory_of(worker)
    assert memory.cache.block_bytes * memory.blocks / (1 << 30) == pytest.approx(full_gib)
    assert memory.budget.state_bytes / (1 << 30) == pytest.approx(windows_gib)


@pytest.mark.parametrize(
    ("deployment", "context", "requests"),
    [
        ("8xb200/tp8,ep8,max_num_batched_tokens=8192", 1 << 20, 20.43),
        ("8xb200/tp1,dp8,ep8,max_num_batched_tokens=8192", 1 << 20, 156.9),
    ],
)
def test_compressed_caches_are_packed_as_the_log_says(
    deployment: str, context: int, requests: float
) -> None:
    """The logs of vLLM 0.25 with DeepSeek-V4-Flash: "Maximum concurrency for 1,048,576 tokens"."""
    stated = f"deepseek-v4-flash@{deployment},kv_cache_dtype=fp8,gpu_memory_utilization=0.95"
    row = size(parse_worker(f"{stated},version=0.25.0,max_num_seqs=256"), context)
    assert row.kv_capacity_tokens / context == pytest.approx(requests, rel=0.02)


def test_a_short_request_takes_its_states_of_a_whole_batch() -> None:
    """A log of vLLM 0.22 on two GH200: a request of 30,000 tokens needs 6.66 GiB of each."""
    worker = parse_worker(
        "deepseek-v4-flash@2xgh200/tp2,ep2,kv_cache_dtype=fp8,version=0.22.0"
        ",max_num_batched_tokens=16384,max_model_len=30000"
    )
    cache = memory_of(worker).cache
    # 118 blocks of tokens; 259 of windows, twice; 4,099 and 2,065 of states.
    assert cache.request_blocks(30_000) == 118 + 2 * 259 + 4099 + 2065
    assert cache.request_blocks(30_000) * cache.block_bytes / (1 << 30) == pytest.approx(
        6.66, rel=0.015
    )
