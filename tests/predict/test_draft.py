"""A draft model beside the large one: named in the shorthand, held in memory, paid for in every
step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadstone
from loadstone.catalogue import parse_worker
from loadstone.catalogue.deployment.shorthand import models_of
from loadstone.core.errors import InputError
from loadstone.engines import rules_of
from loadstone.predict.sizing.memory import memory_of
from loadstone.predict.sizing.size import size
from loadstone.predict.step_time import StepModel
from loadstone.predict.step_time.coefficients import INDEX
from loadstone.predict.step_time.formulas import (
    body_seconds,
    context_seconds,
    head_seconds,
    launch_seconds,
    pair_seconds,
)
from loadstone.predict.step_time.operators import repeat
from loadstone.predict.step_time.profile import prior_profile

LARGE = "llama-3-70b@8xh200/tp8"
NAMED = f"{LARGE},num_speculative_tokens=5,draft=llama-3-8b"


# --- in the shorthand -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "model", "weights"),
    [
        ("draft=llama-3-8b", "meta-llama/Meta-Llama-3-8B", "bf16"),
        ("draft=meta-llama/Llama-3.2-1B-Instruct:fp8", "meta-llama/Llama-3.2-1B", "fp8"),
        ("draft=llama-3-8b-awq", "meta-llama/Meta-Llama-3-8B", "int4"),
        ("speculative-model=llama-3-8b", "meta-llama/Meta-Llama-3-8B", "bf16"),
        (
            "engine=sglang,speculative_draft_model_path=llama-3-8b",
            "meta-llama/Meta-Llama-3-8B",
            "bf16",
        ),
        ("engine=trtllm,speculative_model_dir=llama-3-8b", "meta-llama/Meta-Llama-3-8B", "bf16"),
    ],
)
def test_it_is_named_as_a_model_is(said: str, model: str, weights: str) -> None:
    found = parse_worker(f"{LARGE},num_speculative_tokens=5,{said}")
    assert found.draft is not None
    assert (found.draft.model.name, found.draft.weights_dtype) == (model, weights)
    assert parse_worker(found.name) == found


def test_a_config_as_the_draft(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,'
        ' "intermediate_size": 128, "vocab_size": 128256}'
    )
    # Its path ends as that of a file of hardware does.
    text = f"{LARGE},draft={tmp_path / 'config.json'}:fp8,num_speculative_tokens=2"
    found = parse_worker(text)
    assert found.gpu.name == "h200"
    assert found.draft is not None
    assert (found.draft.model.hidden, found.draft.weights_dtype) == (64, "fp8")
    assert models_of(text) == ["llama-3-70b", str(tmp_path / "config.json")]
    other = text.replace("draft=", "--speculative-model=")
    assert parse_worker(other) == found
    assert models_of(other) == models_of(text)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("draft=llama-3-8b", "guesses no tokens; add num_speculative_tokens=5"),
        ("draft=llama-3-8b,num_speculative_tokens=0", "guesses no tokens"),
        (
            "draft=lama-3-8b,num_speculative_tokens=5",
            "draft: no model 'lama-3-8b' in the catalogue; nearest",
        ),
        ("draft=llama-3-8b:fp9,num_speculative_tokens=5", "'fp9' is not a known precision"),
        ("speculative_config=x", "num_speculative_tokens=5,draft=MODEL"),
    ],
)
def test_one_that_cannot_guess_is_one_line(said: str, why: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_worker(f"{LARGE},{said}")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


# --- in memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_every_rank_holds_its_part_of_it(engine: str) -> None:
    plain, named = (parse_worker(f"{text},engine={engine}") for text in (LARGE, NAMED))
    (alone,) = rules_of(parse_worker("llama-3-8b@8xh200/tp8")).ranks
    (before,), (after,) = rules_of(plain).ranks, rules_of(named).ranks
    assert after.weights_bytes == before.weights_bytes + alone.weights_bytes
    one, other = size(plain, 8192), size(named, 8192)
    assert other.weights_bytes - one.weights_bytes == 8 * alone.weights_bytes
    # 80 and 32 layers alike: one KV head of 128 on each of 8 ranks.
    assert (one.kv_bytes_per_token, other.kv_bytes_per_token) == (327_680, 327_680 + 131_072)
    assert other.kv_bytes / one.kv_bytes == 112 / 80
    assert other.kv_capacity_tokens < 80 / 112 * one.kv_capacity_tokens
    assert "draft" not in other.assumed


def test_memory_is_not_kept_free_for_one_that_is_counted() -> None:
    text = "deepseek-v3@8xh200/engine=sglang,version=0.5.0"
    plain, named = (
        size(parse_worker(text + more), 8192)
        for more in ("", ",num_speculative_tokens=3,draft=qwen3-8b")
    )
    assert named.activation_bytes == plain.activation_bytes


def test_of_a_pipeline_the_last_stage_holds_it_whole() -> None:
    more = "num_speculative_tokens=5,draft=llama-3-8b"
    first, last = rules_of(parse_worker(f"llama-3-70b@16xh200/tp8,pp2,{more}")).ranks
    (alone,) = rules_of(parse_worker("llama-3-8b@8xh200/tp8")).ranks
    plain = rules_of(parse_worker("llama-3-70b@16xh200/tp8,pp2")).ranks
    assert first == plain[0]
    assert last.weights_bytes == plain[1].weights_bytes + alone.weights_bytes
    assert memory_of(parse_worker(f"llama-3-70b@16xh200/tp8,pp2,{more}")).binding == 1


def test_it_is_on_the_nodes_of_one_stage() -> None:
    for cut, nodes in (("tp8,pp2", 1), ("tp16", 2), ("tp4,dp4", 1)):
        drafting = parse_worker(
            f"llama-3-70b@16xh200/{cut},num_speculative_tokens=5,draft=llama-3-8b"
        ).drafting
        assert drafting is not None
        assert (drafting.gpus, drafting.nodes, drafting.draft) == (drafting.tp, nodes, None)


def test_replicas_have_one_each() -> None:
    plain, named = (
        size(parse_worker(f"llama-3-70b@8xh200/tp4,dp2{more}"), 8192)
        for more in ("", ",num_speculative_tokens=5,draft=llama-3-8b")
    )
    (alone,) = rules_of(parse_worker("llama-3-8b@4xh200/tp4")).ranks
    assert named.weights_bytes - plain.weights_bytes == 8 * alone.weights_bytes


@pytest.mark.parametrize(
    ("deployment", "why"),
    [
        ("qwen2.5-72b@8xh200/draft=qwen2.5-7b", "the 28 attention heads of the draft Qwen/Qwen2.5-7B; tp 1, 2, 4"),
        ("qwen2.5-72b@2xh200/draft=qwen2.5-0.5b,version=0.24", "a vocabulary of 151,936 tokens, Qwen/Qwen2.5-72B one of 152,064"),
        ("deepseek-v3@8xh200/tp1,dp8,attention-dp,engine=sglang,draft=qwen3-8b", "no draft model with attention-dp"),
    ],
)  # fmt: skip
def test_what_engines_refuse(deployment: str, why: str) -> None:
    row = size(parse_worker(f"{deployment},num_speculative_tokens=4"), 8192)
    assert not row.fits
    assert why in row.why


def test_other_engines_take_another_vocabulary() -> None:
    text = "qwen2.5-72b@2xh200/draft=qwen2.5-0.5b,num_speculative_tokens=4,engine="
    for engine in ("sglang", "vllm", "vllm,version=0.25"):
        assert size(parse_worker(text + engine), 8192).fits


# --- in time --------------------------------------------------------------------------------------


class Alone:
    """A model's passes by the fit's own formulas, of arrays."""

    def __init__(self, text: str) -> None:
        self.model = StepModel(parse_worker(text), prior_profile())
        self.work, self.values = self.model.work, self.model.values[None, :]

    def body(self, tokens: int) -> float:
        return float(body_seconds(repeat(self.work, 1), self.values, np.array([float(tokens)]))[0])

    def head(self, sequences: int) -> float:
        return float(head_seconds(self.work, self.values, np.array([float(sequences)]))[0])

    def context(self, rows: int = 1) -> float:
        """Per context token, which so many new tokens of a sequence attend to."""
        work = self.work._replace(context_flops=rows * self.work.context_flops)
        return float(context_seconds(work, self.values)[0][0])

    @property
    def pair(self) -> float:
        return float(pair_seconds(self.work, self.values)[0][0])

    @property
    def launches(self) -> float:
        return float(launch_seconds(self.work, self.values)[0])

    def host(self, sequences: int, *names: str) -> float:
        each = sequences * self.model.values[INDEX["sequence_s"]]
        return float(each + sum(self.model.values[INDEX[name]] for name in names))


def test_each_guess_is_a_pass_of_the_draft() -> None:
    """Of which the first reads all that the large one has verified; then a token of each request at
    a time."""
    large, draft = Alone(LARGE), Alone("llama-3-8b@8xh200/tp8")
    named = StepModel(parse_worker(NAMED), prior_profile(), draft_tokens=5)
    verified = large.body(4 * 6) + large.head(4 * 6)
    guessed = draft.body(4 * 6) + draft.head(4) + 4 * (draft.body(4) + draft.head(4))
    base, slope = named.decode_line(4)
    assert base == pytest.approx(verified + guessed + large.host(4, "step_s"))
    assert slope == pytest.approx(large.context(6) + 5 * draft.context())


def test_it_reads_the_prompts_too() -> None:
    large, draft = Alone(LARGE), Alone("llama-3-8b@8xh200/tp8")
    named = StepModel(parse_worker(NAMED), prior_profile(), draft_tokens=5)
    pairs = 40 * (100 + 20)
    verified = (
        large.body(3 * 6 + 40)
        + large.head(3 * 6 + 1)
        + 3000 * large.context(6)
        + pairs * large.pair
    )
    first = draft.body(3 * 6 + 40) + draft.head(3 + 1) + 3000 * draft.context() + pairs * draft.pair
    later = draft.body(3 + 1) + draft.head(3 + 1) + 3000 * draft.context()
    kernels = verified + first + 4 * later
    launches = large.launches + draft.launches
    for limit, spent in ((58, kernels), (57, (kernels**3 + launches**3) ** (1 / 3))):
        named.graph_tokens = limit
        found = named.step_s(3, 3000, [(40, 100)])
        assert found == pytest.approx(spent + large.host(4, "step_s", "prefill_step_s"))


def test_releases_before_0_26_launch_a_drafts_kernels_one_by_one() -> None:
    """0.4 ms a layer, whatever its size."""
    text = f"{NAMED},version="
    before, since = (
        StepModel(parse_worker(text + release), draft_tokens=5).decode_line(1)[0]
        for release in ("0.25", "0.26")
    )
    layers = parse_worker("llama-3-8b@1xh200").model.layer_count
    assert 0.2e-3 < (before - since) / (5 * layers) < 0.5e-3


def test_without_graphs_every_pass_is_launched() -> None:
    large, draft = Alone(f"{LARGE},enforce_eager=1"), Alone("llama-3-8b@8xh200/tp8")
    eager = StepModel(parse_worker(f"{NAMED},enforce_eager=1"), prior_profile(), draft_tokens=5)
    graphs = StepModel(parse_worker(NAMED), prior_profile(), draft_tokens=5)
    host = large.host(1, "step_s")
    kernels = graphs.decode_line(1)[0] - host
    launches = large.launches + 5 * draft.launches
    assert eager.decode_line(1)[0] - host == pytest.approx((kernels**3 + launches**3) ** (1 / 3))


def test_draws_and_the_speed_of_light_have_a_draft_too() -> None:
    named, layer = (StepModel(parse_worker(text), prior_profile(), draft_tokens=5)
                    for text in (NAMED, f"{LARGE},num_speculative_tokens=5"))  # fmt: skip
    assert named.light().decode_line(1)[0] > layer.light().decode_line(1)[0]
    assert named.light().decode_line(1)[0] < named.decode_line(1)[0]
    for mine, other in zip(named.draws(3, 7), layer.draws(3, 7), strict=True):
        assert mine.decode_line(1)[0] > other.decode_line(1)[0]


# --- in a run -------------------------------------------------------------------------------------


def simulated(tmp_path: Path, deployment: str, **options: Any) -> Any:
    return loadstone.simulate(
        deployment,
        concurrency="1",
        input="128",
        output="64",
        requests=4,
        out=tmp_path,
        draws=0,
        **options,
    ).document()


def test_a_larger_draft_costs_more_and_is_no_assumption(tmp_path: Path) -> None:
    def tpot(more: str) -> float:
        done = simulated(tmp_path, LARGE + more, acceptance=0.7)
        assert "drafts_assumed" not in {
            each["kind"] for each in done["cells"][0]["verdict"]["findings"]
        }
        return float(done["cells"][0]["metrics"]["tpot_s"]["p50"])

    guesses = ",num_speculative_tokens=5,draft="
    plain, small, large = tpot(""), tpot(f"{guesses}llama-3.2-1b"), tpot(f"{guesses}llama-3-8b")
    assert small < large < plain
