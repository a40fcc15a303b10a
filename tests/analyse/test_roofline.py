"""Shares of the speed of light, of memory bandwidth (MBU) and of peak FLOP/s (MFU)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conftest import Loadstone
from loadstone.analyse.roofline import roofline_of
from loadstone.analyse.run_facts import run_facts
from loadstone.analyse.stored_run import read_run
from loadstone.analyse.summary import late_findings
from loadstone.core import run_folder
from loadstone.core.summary import CellSummary, Roofline
from loadstone.core.verdict import Verdict
from report_folders import cell, length, run
from summary_documents import summarise

H100 = {"gpu": "h100", "gpus": 1, "tp": 1, "model": "llama-3.1-8b"}
EMBEDDED = 128_256 * 4096
"""Numbers of the table of embeddings, which is looked up, and of the head, which is multiplied."""
READ = 2 * (8_030_261_248 - EMBEDDED)
"""Bytes of llama-3.1-8b that a step reads."""
KV = 2 * 32 * 8 * 128 * 2
"""Bytes of a token in its cache: keys and values of 32 layers."""
BANDWIDTH, PEAK = 3.35e12, 989.4e12
DEPLOYMENTS = (
    "llama-3.1-8b@1xh100", "llama-3.1-8b:fp8@1xl40s", "llama-3.1-8b@8xh100/dp8", "llama-3.1-70b@4xmi300x",
    "gemma-3-27b@1xh100", "deepseek-v3@8xh200", "deepseek-v3@8xh200/tp1,dp8,ep8,attention-dp",
    "deepseek-v3@16xh200/tp8,pp2", "qwen3-235b-a22b@8xh200", "gpt-oss-120b@1xb200",
    "llama-3.1-405b:fp8@16xh100/tp8,pp2,kv=fp8",
)  # fmt: skip


def light(
    parent: Path, deployment: dict[str, Any], one: dict[str, Any], **more: Any
) -> Roofline | None:
    """Of a cell of 1,024 tokens in and 128 out (report_folders)."""
    folder = run(parent, f"r{len(list(parent.iterdir()))}", [one], deployment=deployment, **more)
    info = run_folder.read_info(folder)
    return roofline_of(info, run_facts(info), msgspec.convert(one, CellSummary))


def served(
    load: float, *, rate: float, tpot: float | None, kind: str = "concurrency"
) -> dict[str, Any]:
    one = cell(load, kind=kind, tpot=tpot, ttft=0.1)
    one["metrics"]["requests_per_s"] = rate
    return one


def test_a_dense_model_by_hand(tmp_path: Path) -> None:
    found = light(tmp_path, H100, served(1, rate=1.0, tpot=0.0065))
    assert found is not None
    # 127 of 128 tokens are a decode step each, in the mean of a request with 1,024 + 64 tokens in
    # the cache.
    step = READ + 1088 * KV
    assert found.mbu == pytest.approx(127 * step / BANDWIDTH, rel=1e-3)
    assert found.tpot_s == pytest.approx(step / BANDWIDTH, rel=0.01)
    assert found.tpot_ratio == pytest.approx(step / BANDWIDTH / 0.0065, rel=0.01)
    # Two FLOPs for each number, and in attention for each pair of tokens: 32 layers of 32 heads,
    # keys and values.
    products, head, pair = 2 * (READ / 2 - EMBEDDED), 2 * EMBEDDED, 2 * 32 * 32 * (128 + 128)
    flops = (1024 + 127) * products + 128 * head + pair * (1024**2 / 2 + 127 * 1088)
    assert found.mfu == pytest.approx(flops / PEAK, rel=1e-3)
    prompt_s = (1024 * products + head + pair * 1024**2 / 2) / PEAK
    assert found.ttft_s == pytest.approx(
        prompt_s, rel=0.06
    )  # where products are near the ridge, both count
    assert found.ttft_s > prompt_s
    assert found.ttft_ratio == pytest.approx(found.ttft_s / 0.1)


def test_more_than_the_hardware_has_is_not_to_be_trusted(tmp_path: Path) -> None:
    """Of what is stated for a server, and of a batch through an engine's own interface."""
    for endpoint in ("completions", "offline"):
        for tpot_s, told in ((0.0065, False), (0.0020, True)):
            one = served(1, rate=1 / (128 * tpot_s), tpot=tpot_s)
            folder = run(tmp_path, f"{endpoint}{tpot_s}", [one], deployment=H100, source="measured")
            info = run_folder.read_info(folder)
            (cell,) = read_run(folder).summary.cells
            kinds = [finding.kind for finding in cell.verdict.findings]
            assert kinds.count("beyond_hardware") == told
            assert cell.verdict.trusted != told
            assert not list(late_findings(cell, info, []))  # it is found once
            info.source = "simulated"
            cell.verdict = Verdict(True, [])
            assert not list(late_findings(cell, info, []))


def test_weights_are_read_once_for_all_that_decode(tmp_path: Path) -> None:
    found = light(tmp_path, H100, served(16, rate=10.0, tpot=0.0126))
    assert found is not None
    assert found.mbu == pytest.approx(
        (READ + 10 * 127 * 0.0126 * 1088 * KV) / BANDWIDTH / 0.0126, rel=1e-3
    )


def test_requests_that_come_by_chance_leave_steps_out(tmp_path: Path) -> None:
    """By Poisson's law: of 0.826 requests on average, 44 % of the time there is none."""
    found = light(tmp_path, H100, served(1, rate=1.0, tpot=0.0065, kind="rate"))
    assert found is not None
    assert found.mbu == pytest.approx(
        (0.5620 * READ + 0.8255 * 1088 * KV) / BANDWIDTH / 0.0065, rel=1e-3
    )


def test_replicas_share_the_load(tmp_path: Path) -> None:
    one = light(tmp_path, H100, served(4, rate=3.0, tpot=0.0065))
    four = light(tmp_path, H100 | {"gpus": 4, "dp": 4}, served(16, rate=12.0, tpot=0.0065))
    alone = light(tmp_path, H100 | {"gpus": 4, "dp": 4}, served(1, rate=1.0, tpot=0.0065))
    assert one is not None
    assert four == one
    single = light(tmp_path, H100, served(1, rate=1.0, tpot=0.0065))
    assert alone is not None
    assert single is not None
    assert (alone.mbu, alone.mfu) == (
        pytest.approx((single.mbu or 0) / 4),
        pytest.approx((single.mfu or 0) / 4),
    )
    assert alone.tpot_s == pytest.approx(single.tpot_s)


def test_what_was_cached_is_not_computed(tmp_path: Path) -> None:
    one, half = served(4, rate=3.0, tpot=0.0065), served(4, rate=3.0, tpot=0.0065)
    half["metrics"] |= {
        "input_tokens": 500 * 1024,
        "output_tokens": 500 * 128,
        "cached_input_tokens": 500 * 512,
    }
    whole, less = light(tmp_path, H100, one), light(tmp_path, H100, half)
    assert whole is not None
    assert less is not None
    products, pair = 2 * (READ / 2 - EMBEDDED), 2 * 32 * 32 * 256
    assert (whole.mfu or 0) - (less.mfu or 0) == pytest.approx(
        3 * (512 * products + pair * 512**2 / 2) / PEAK, rel=1e-3
    )
    assert 0.5 < (less.ttft_s or 0) / (whole.ttft_s or 1) < 0.6  # the weights are read all the same
    assert less.mbu == whole.mbu
    # Shared, and nobody tells what came of it.
    untold = light(tmp_path, H100, one, workload={"prefix_tokens": 512})
    assert untold == msgspec.structs.replace(whole, mfu=None, ttft_s=None, ttft_ratio=None)
    off = {"workload": {"prefix_tokens": 512}, "settings": {"prefix_cache": False}}
    assert light(tmp_path, H100, one, **off) == whole


def test_a_quantised_cache_is_half_as_much_to_read(tmp_path: Path) -> None:
    wide, narrow = (
        light(tmp_path, H100 | {"kv_dtype": dtype}, served(16, rate=10.0, tpot=0.0126))
        for dtype in ("auto", "fp8")
    )
    assert wide is not None
    assert narrow is not None
    difference = 10 * 127 * 0.0126 * 1088 * KV / 2 / BANDWIDTH / 0.0126
    assert (wide.mbu or 0) - (narrow.mbu or 0) == pytest.approx(difference, rel=1e-3)


def test_guessed_tokens_leave_out_what_steps_would_tell(tmp_path: Path) -> None:
    one = served(1, rate=1.0, tpot=0.0065)
    plain = light(tmp_path, H100, one)
    guessing = light(tmp_path, H100 | {"arguments": {"num_speculative_tokens": "3"}}, one)
    assert plain is not None
    assert guessing == msgspec.structs.replace(plain, tpot_s=None, tpot_ratio=None, mbu=None)


def test_answers_side_by_side_are_none_that_the_formulas_know(tmp_path: Path) -> None:
    one = served(1, rate=1.0, tpot=0.0065)
    folder = run(tmp_path, "n", [one], deployment=H100)
    info = run_folder.read_info(folder)
    assert roofline_of(info, run_facts(info), msgspec.convert(one, CellSummary)) is not None
    assert info.target is not None
    info.target.choices = 2
    assert roofline_of(info, run_facts(info), msgspec.convert(one, CellSummary)) is None


def test_a_first_token_alone_has_no_steps(tmp_path: Path) -> None:
    found = light(tmp_path, H100, served(4, rate=3.0, tpot=None))
    assert found is not None
    assert (found.tpot_s, found.tpot_ratio, found.mbu) == (None, None, None)
    assert found.mfu is not None


@pytest.mark.parametrize(
    "unknown",
    [
        {"model": "org/Unheard-7B"}, {"gpu": "a card"}, {"gpu": "cpu", "gpus": 1}, {"gpu": None}, {"gpus": None},
        {"tp": 3}, {"model": "~nobody/model"}, {"model": "a" * 5000}, {"gpu": "own.yaml"},
        {"name": "./config.json@1xh100"},
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_not_known_is_null(tmp_path: Path, unknown: dict[str, Any]) -> None:
    assert light(tmp_path, H100 | unknown, served(1, rate=1.0, tpot=0.0065)) is None


def test_without_rates_or_with_absurd_ones_no_share_is_made_up(tmp_path: Path) -> None:
    one = served(1, rate=1.0, tpot=0.0065)
    one["metrics"]["requests_per_s"] = None
    found = light(tmp_path, H100, one)
    assert found is not None
    assert (found.mfu, found.mbu, found.tpot_ratio) == (None, None, None)
    for kind in ("concurrency", "rate"):
        for rate, tpot in ((1e-300, 1e-300), (1e200, 1e-100), (1e200, 1e200), (-1.0, 0.01)):
            found = light(tmp_path, H100, served(1, rate=rate, tpot=tpot, kind=kind))
            assert found is not None
            assert all(
                value is None or math.isfinite(value)
                for value in msgspec.to_builtins(found).values()
            )


def test_experts_over_replicas_are_one_set_of_them(tmp_path: Path) -> None:
    """As an importer tells it: tp 1, dp 8, ep 8 does not read all experts on each GPU."""
    told = {"gpu": "h200", "gpus": 8, "tp": 1, "dp": 8, "ep": 8, "model": "deepseek-v3"}
    one = served(8, rate=1.0, tpot=0.02)
    apart = light(tmp_path, told, one, source="imported")
    named = light(tmp_path, told | {"name": "deepseek-v3@8xh200/tp1,dp8,ep8,attention-dp"}, one)
    assert apart == named
    assert apart is not None


def asked(input_tokens: int, output_tokens: int) -> dict[str, Any]:
    return {"workload": {"input": length(input_tokens), "output": length(output_tokens)}}


def test_the_head_is_computed_once_for_each_token_of_the_answer(tmp_path: Path) -> None:
    found = light(tmp_path, H100, served(1, rate=1.0, tpot=None), **asked(1, 1))
    assert found is not None
    assert found.mfu == pytest.approx((2 * (READ / 2 - EMBEDDED) + 2 * EMBEDDED) / PEAK, rel=1e-3)


def test_ranks_read_their_shares_and_messages_are_no_reading(tmp_path: Path) -> None:
    found = light(tmp_path, {"name": "llama-3.1-70b@8xh200/tp8"}, served(200, rate=2.0, tpot=0.5))
    assert found is not None
    weights, token = 2 * (70_553_706_496 - 128_256 * 8192), 2 * 80 * 8 * 128 * 2
    assert found.mbu == pytest.approx((weights + 127 * 1088 * token) / 8 / 4.8e12 / 0.5, rel=1e-3)


def test_of_a_mixture_the_experts_that_a_token_takes_are_computed(tmp_path: Path) -> None:
    found = light(
        tmp_path, {"name": "mixtral-8x7b@2xh100/tp2"}, served(1, rate=1.0, tpot=None), **asked(1, 1)
    )
    assert found is not None
    # 12.9 G parameters are active, the embedding's 32,000 × 4,096 among them.
    assert found.mfu == pytest.approx(2 * (12.88e9 - 32_000 * 4096) / (2 * PEAK), rel=2e-3)


def test_attention_ranks_read_for_themselves_and_share_the_experts(tmp_path: Path) -> None:
    ranks, one = (
        {"name": "deepseek-v3@8xh200/tp1,dp8,ep8,attention-dp"},
        {"name": "deepseek-v3@8xh200/tp8"},
    )
    alone, full, cut = (
        light(tmp_path, name, served(users, rate=users / 128 / 0.02, tpot=0.02))
        for name, users in ((ranks, 1), (ranks, 8), (one, 1))
    )
    assert alone is not None
    assert full is not None
    assert cut is not None
    # With one user, its rank alone reads attention, and all of them an expert or so: in all what
    # eight read who share everything.
    assert alone.mbu == pytest.approx(cut.mbu, rel=0.2)
    assert (alone.tpot_s or 0) < 0.75 * (full.tpot_s or 0)
    assert (cut.ttft_s or 0) < (alone.ttft_s or 0) < 2.5 * (cut.ttft_s or 0)


@pytest.mark.parametrize(
    ("deployment", "inputs", "token"),
    [
        # 61 layers of a latent vector of 576 numbers; an eighth of the requests is a rank's.
        ("deepseek-v3@8xh200/tp1,dp8,ep8,attention-dp", (1024, 8192), 61 * 576 * 2 / 8),
        # All 62 layers, the windows of 1,024 tokens too, which are not full yet.
        ("gemma-3-27b@1xh200", (128, 512), 62 * 16 * 128 * 2 * 2),
    ],
)
def test_a_longer_context_is_so_much_more_to_read(
    tmp_path: Path, deployment: str, inputs: tuple[int, int], token: float
) -> None:
    short, long = (
        light(
            tmp_path, {"name": deployment}, served(200, rate=10.0, tpot=0.1), **asked(tokens, 128)
        )
        for tokens in inputs
    )
    assert short is not None
    assert long is not None
    more = 127 * (inputs[1] - inputs[0]) * token / 4.8e12 / 0.1
    assert (long.mbu or 0) - (short.mbu or 0) == pytest.approx(more, rel=1e-3)


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
@pytest.mark.parametrize("users", [1, 8, 200])
def test_nothing_is_above_the_roofline_itself(tmp_path: Path, deployment: str, users: int) -> None:
    """Decoding, then taking up prompts, as fast as the roofline lets so many users."""
    said = {"name": deployment}
    slow = light(tmp_path, said, served(users, rate=users / 127, tpot=1.0))
    assert slow is not None
    assert slow.tpot_s is not None
    assert slow.ttft_s is not None
    fast = light(tmp_path, said, served(users, rate=users / 127 / slow.tpot_s, tpot=slow.tpot_s))
    assert fast is not None
    assert fast.tpot_ratio == pytest.approx(1)
    assert 0 < (fast.mbu or 0) <= 1.0001
    schedulers = 1
    for part in deployment.partition("/")[2].split(","):
        if part.startswith(("dp", "pp")):
            schedulers *= int(part[2:])
    prompts = light(tmp_path, said, served(users, rate=schedulers / slow.ttft_s, tpot=None))
    assert prompts is not None
    # The answers' other tokens, which that rate leaves out, are 128 of 1,152.
    assert 0 < (prompts.mfu or 0) <= 1.13


@pytest.mark.parametrize(
    "deployment", ["llama-3.1-8b@1xh100", "deepseek-v3@8xh200", "qwen3-235b-a22b-fp8@4xh200"]
)
def test_simulated_runs_say_how_near_they_come(
    loadstone: Loadstone, tmp_path: Path, deployment: str
) -> None:
    common = ("--draws", 0, "--out", tmp_path / "runs", "--json")
    one = loadstone(
        "simulate",
        deployment,
        "--input",
        128,
        "--output",
        64,
        "--concurrency",
        1,
        "--requests",
        4,
        *common,
    )
    (alone,) = one.document["cells"]
    assert set(alone["light"]) == {"tpot_s", "ttft_s", "tpot_ratio", "ttft_ratio", "mbu", "mfu"}
    # One user: nearly all of the time is steps that read the weights.
    assert 0.9 < alone["light"]["mbu"] / alone["light"]["tpot_ratio"] < 1.01
    load = ("--input", 8192, "--output", 16, "--concurrency", 32, "--requests", 64)
    (heavy,) = loadstone("simulate", deployment, *load, *common).document["cells"]
    assert heavy["light"]["mfu"] > 5 * alone["light"]["mfu"]
    assert (0.3 if deployment.startswith("llama") else 0.05) < heavy["light"]["mfu"] < 1
    assert heavy["light"]["mbu"] < alone["light"]["mbu"]
    assert "roofline" in loadstone("show", one.folder).out
    assert summarise(one.folder)["cells"][0]["light"] == alone["light"]


def test_a_node_of_ones_own(loadstone: Loadstone, tmp_path: Path) -> None:
    node = tmp_path / "node.yaml"
    node.write_text("like: dgx-h200\ngpus: 4\nnics: 4\n")
    load = (
        "--input",
        64,
        "--output",
        8,
        "--concurrency",
        1,
        "--requests",
        2,
        "--draws",
        0,
        "--out",
        tmp_path / "o",
    )
    own, named = (
        loadstone("simulate", f"llama-3.1-70b@{where}/tp8", *load, "--json").document["cells"][0][
            "light"
        ]
        for where in (f"2x{node}", "8xh200")
    )
    # The same but for messages between nodes.
    assert own["mbu"] / own["tpot_ratio"] == pytest.approx(
        named["mbu"] / named["tpot_ratio"], rel=0.1
    )
    assert own["tpot_s"] == pytest.approx(named["tpot_s"], rel=0.2)
