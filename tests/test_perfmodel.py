"""The step model: hand-sized figures, the properties any step time must have, and what a profile must hold."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loadstone.catalogue import parse_deployment
from loadstone.errors import InputError
from loadstone.perfmodel import StepModel, profile_of
from loadstone.perfmodel.coefficients import COEFFICIENTS, INDEX, LIGHT, NAMES, PRIOR
from loadstone.perfmodel.families import architecture_of, era_of
from loadstone.perfmodel.formulas import body_seconds, launch_seconds, pairs_of
from loadstone.perfmodel.profile import Profile, load, prior_profile, save
from loadstone.perfmodel.work import COLLECTIVE, EXPERTS, GEMM, HEAD, ideal, work_of

DEPLOYMENTS = (
    "llama-3.1-8b@1xh100/tp1,engine=vllm",
    "llama-3.1-70b:fp8@8xh200/tp8,kv=fp8,engine=tensorrt-llm",
    "deepseek-v3@8xh200/tp8,engine=sglang",
    "deepseek-v3@8xb200/tp1,dp8,ep8,attention-dp,engine=sglang",
    "gpt-oss-120b@2xh100/tp2,engine=vllm",
    "Qwen3.5-397B-A17B:fp8@8xb200/tp8,engine=sglang",
    "llama-3.1-405b:fp8@16xh100/tp8,pp2,engine=vllm",
)


def model_of(text: str) -> StepModel:
    return StepModel(parse_deployment(text), prior_profile())


def test_weights_of_a_rank_are_the_models_share() -> None:
    for text, ranks in (("llama-3.1-8b@1xh100/tp1", 1), ("llama-3.1-70b@8xh100/tp8", 8)):
        deployment = parse_deployment(text)
        work = work_of(deployment)
        held = (work.weights * work.count)[np.isin(work.kind, [GEMM, HEAD])].sum() * ranks
        # All but the input table, norms and biases.
        table = deployment.model.vocab * deployment.model.hidden * 2
        assert held == pytest.approx(deployment.model.weights_bytes() - table, rel=2e-3)


def test_all_experts_are_on_the_ranks_that_share_them() -> None:
    for text, ranks in (("deepseek-v3@8xh200/tp8", 8), ("deepseek-v3@8xh200/tp1,dp8,ep8,attention-dp", 8)):
        deployment = parse_deployment(text)
        work = work_of(deployment)
        at = work.kind == EXPERTS
        held = (work.weights * work.experts / np.maximum(work.ep, 1) * work.count)[at].sum() * ranks
        parameters = deployment.model.parameters_by_kind["experts"]
        assert held == pytest.approx(parameters, rel=1e-3)  # FP8: a byte each, and block scales


def test_speed_of_light_is_the_roofline_by_hand() -> None:
    """Llama-3.1-8B in bf16 on an H100: one token reads all weights but the embedding table once."""
    deployment = parse_deployment("llama-3.1-8b@1xh100/tp1,engine=vllm")
    light = model_of("llama-3.1-8b@1xh100/tp1,engine=vllm").light()
    weights = deployment.model.weights_bytes() - deployment.model.vocab * deployment.model.hidden * 2
    base, slope = light.decode_line(1)
    assert base == pytest.approx(weights / 3.35e12, rel=0.02)
    assert slope == pytest.approx(131072 / 3.35e12, rel=0.01)
    # 4096 prompt tokens: 2 FLOPs a parameter and token, and half of 4·heads·head_dim·n² for each layer.
    parameters = weights / 2 - deployment.model.vocab * deployment.model.hidden
    flops = 2 * parameters * 4096 + 32 * 4 * 32 * 128 * 4096**2 / 2
    assert light.step_s(0, 0, [(4096, 0)]) == pytest.approx(flops / 989e12, rel=0.05)


@pytest.mark.parametrize("text", DEPLOYMENTS)
def test_steps_grow_with_what_they_hold(text: str) -> None:
    model = model_of(text)
    bases = [model.decode_line(batch)[0] for batch in (1, 2, 4, 8, 16, 32, 64, 65, 128, 256, 500)]
    assert all(low < high for low, high in itertools.pairwise(bases))
    assert model.step_s(8, 8000, []) < model.step_s(8, 80000, [])
    assert model.step_s(8, 8000, []) < model.step_s(8, 8000, [(512, 0)]) < model.step_s(8, 8000, [(2048, 0)])
    assert model.step_s(0, 0, [(512, 0)]) < model.step_s(0, 0, [(512, 30000)])
    light = model.light()
    for decodes, context, chunks in ((1, 500, []), (64, 64000, []), (3, 900, [(1000, 0)]), (0, 0, [(8192, 512)])):
        assert light.step_s(decodes, context, chunks) < model.step_s(decodes, context, chunks)


def test_a_decode_step_is_the_line() -> None:
    model = model_of("gpt-oss-120b@2xh100/tp2,engine=vllm")
    base, slope = model.decode_line(17)
    assert model.step_s(17, 17 * 3000, []) == base + slope * 17 * 3000
    assert model.decode_line(17) == (base, slope)


def test_a_table_lookup_is_the_formula_in_between() -> None:
    model = model_of("qwen3-32b@2xh100/tp2,engine=vllm")
    around = [model.decode_line(batch)[0] for batch in (190, 200, 210)]
    assert around[1] == pytest.approx((around[0] + around[2]) / 2, rel=5e-3)


def test_windows_bound_what_attention_sees() -> None:
    new, window = np.array([10.0]), np.array([4.0])
    full, seen = pairs_of(new, np.array([0.0]), window)
    assert full[0] == 50
    assert seen[0] == 4 * 2 + 6 * 4  # rises to the window, then keeps it
    full, seen = pairs_of(new, np.array([100.0]), window)
    assert full[0] == 1050
    assert seen[0] == 40


def test_parallelism_shares_work_and_costs_messages() -> None:
    one = model_of("llama-3.1-70b:fp8@1xh200/tp1,engine=vllm").decode_line(8)[0]
    eight = model_of("llama-3.1-70b:fp8@8xh200/tp8,engine=vllm").decode_line(8)[0]
    assert one / 8 < eight < one
    near = model_of("llama-3.1-405b:fp8@8xh100/tp8,engine=vllm").step_s(0, 0, [(8192, 0)])
    far = StepModel(parse_deployment("llama-3.1-405b:fp8@16xh100/tp16,nodes=2,engine=vllm"), prior_profile())
    assert 0.75 * near < far.step_s(0, 0, [(8192, 0)]) < near  # half the work a rank, and the network between nodes


def test_every_gpu_has_its_part_of_the_network() -> None:
    """An all-reduce over two nodes adds its floor, and a part of the tensor over each network card."""
    near = parse_deployment("llama-3.1-70b@8xh200/tp8,engine=vllm")
    far = parse_deployment("llama-3.1-70b@16xh200/tp16,nodes=2,engine=vllm")
    work = [work_of(each) for each in (near, far)]
    near_ranks, far_ranks = ({*w.ranks[w.kind == COLLECTIVE].tolist()} for w in work)
    assert (near_ranks, far_ranks) == ({8.0}, {8.0, 2.0})
    between = (work[1].kind == COLLECTIVE) & (work[1].ranks == 2) & (work[1].message > 0)
    hidden = near.model.hidden
    assert set(work[1].message[between]) == {2.0 * hidden * 1.0 / 8}  # bytes a token: 2·(2 − 1)/2 of an eighth
    assert set(work[1].link[between]) == {near.gpu.nic_bytes_per_s}


def test_experts_spread_over_more_tokens_until_all_are_touched() -> None:
    model = model_of("deepseek-v3@8xh200/tp8,engine=sglang")
    steps = [model.decode_line(batch)[0] for batch in (1, 8, 64)]
    dense = model_of("llama-3.1-70b:fp8@8xh200/tp8,engine=sglang")
    assert steps[2] / steps[0] > 2 * dense.decode_line(64)[0] / dense.decode_line(1)[0]


@pytest.mark.parametrize("tokens", [1, 4, 32])
def test_all_ranks_wait_for_the_fullest(tokens: int) -> None:
    """Routing drawn at random: how many of its 32 experts the fullest of eight ranks is asked for, over the mean."""
    rng = np.random.default_rng(0)
    chosen = np.argsort(rng.random((2000, tokens, 256)), axis=2)[:, :, :8]
    touched = np.zeros((2000, 256), bool)
    for token in range(tokens):
        np.put_along_axis(touched, chosen[:, token], True, axis=1)
    ranks = touched.reshape(2000, 8, 32).sum(axis=2)

    spread = work_of(parse_deployment("deepseek-v3@8xh200/tp8,ep8,engine=sglang"))
    light = LIGHT[None, :]
    alone = ideal(spread)
    reading = replace(alone, kind=np.where(alone.kind == EXPERTS, EXPERTS, -1), flops=alone.flops * 0)
    even, fullest = (
        body_seconds(replace(reading, fullest=z, activations=alone.activations * 0), light, np.array([float(tokens)]))
        for z in (alone.fullest, spread.fullest)
    )
    assert float(fullest[0] / even[0]) == pytest.approx(ranks.max(axis=1).mean() / ranks.mean(), rel=0.12)
    assert float(even[0]) > 0


def test_biases_are_kernels_of_their_own() -> None:
    """BLOOM's layers launch more kernels than Llama 2's, beside as many products."""
    bloom, llama = (work_of(parse_deployment(f"{name}@8xa100/tp8")) for name in ("bloom", "llama-2-70b"))
    counts = [float(launch_seconds(work, np.ones((1, len(NAMES))))[0] / work.count[0]) for work in (bloom, llama)]
    assert counts == [13, 10]


def test_attention_ranks_share_the_experts() -> None:
    apart = model_of("deepseek-v3@8xh200/tp1,dp8,ep8,attention-dp,engine=sglang")
    together = model_of("deepseek-v3@8xh200/tp8,engine=sglang")
    # One scheduler's 8 sequences are 64 for the experts; its own cache is whole on its rank.
    assert apart.decode_line(8)[0] > together.decode_line(8)[0]
    assert apart.decode_line(1)[1] >= together.decode_line(1)[1]


def test_drafts_cost_a_pass_of_their_own() -> None:
    deployment = parse_deployment("deepseek-v3@8xh200/tp8,engine=sglang")
    plain = StepModel(deployment, prior_profile())
    drafting = StepModel(deployment, prior_profile(), draft_tokens=3)
    assert plain.decode_line(4)[0] < drafting.decode_line(4)[0] < 4 * plain.decode_line(4)[0]


def test_eager_decode_is_bound_by_launches() -> None:
    graphs = model_of("llama-3.1-8b@1xh100/tp1,engine=vllm")
    eager = model_of("llama-3.1-8b@1xh100/tp1,engine=vllm,enforce_eager=true")
    kernels = graphs.decode_line(1)[0] - graphs.values[INDEX["step_s"]] - graphs.values[INDEX["sequence_s"]]
    launches = float(launch_seconds(graphs.work, graphs.values[None, :])[0])
    both = (kernels**3 + launches**3) ** (1 / 3)
    assert eager.decode_line(1)[0] - graphs.decode_line(1)[0] == pytest.approx(both - kernels, rel=1e-9)
    old = StepModel(parse_deployment("llama-3.1-8b@1xh100/tp1,engine=vllm,version=0.2.1"), prior_profile())
    assert old.eager


def test_draws_are_of_the_profile_and_repeatable() -> None:
    model = StepModel(parse_deployment("llama-3.1-8b@1xh100/tp1,engine=vllm"))
    steps = [each.decode_line(32)[0] for each in model.draws(64, 1)]
    assert steps == [each.decode_line(32)[0] for each in model.draws(64, 1)]
    assert min(steps) < model.decode_line(32)[0] < max(steps)


def test_a_profile_is_a_file_or_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = parse_deployment("llama-3.1-8b@1xh100")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    save(prior_profile("kept"), tmp_path / "config" / "loadstone" / "profiles")
    save(prior_profile("here"), tmp_path / "sub")
    assert profile_of(deployment, "kept").name == "kept"
    assert profile_of(deployment, "sub/here.json").name == "here"
    with pytest.raises(InputError, match=r"--profile sub/gone.json: neither a file nor .*config.loadstone.profiles"):
        profile_of(deployment, "sub/gone.json")


def test_every_gpu_and_engine_has_a_profile() -> None:
    for text in (
        "llama-3.1-8b@1xh100/tp1,engine=vllm",
        "llama-3.1-70b:fp8@4xmi300x/tp4,engine=sglang",
        "llama-3.1-8b@1xl40s/tp1,engine=transformers",
        "llama-3.1-70b:fp8@4xgb300/tp4,engine=tensorrt-llm",
        "llama-3.1-8b@1xa100/tp1,engine=vllm,version=0.6.3",
    ):
        profile = profile_of(parse_deployment(text))
        assert profile.provenance.rows > 0, text
        values = profile.values()
        assert values.shape == (len(COEFFICIENTS),)
        assert (values > 0).all()
        efficiencies = [values[INDEX[each.name]] for each in COEFFICIENTS if each.unit == "of peak"]
        assert max(efficiencies) < 1.5, text
        assert np.linalg.eigvalsh(np.array(profile.covariance)).min() > -1e-6


def test_extrapolation_is_less_sure() -> None:
    known = profile_of(parse_deployment("llama-3.1-8b@1xh100/tp1,engine=vllm"))
    unknown = profile_of(parse_deployment("llama-3.1-8b@1xl40s/tp1,engine=transformers"))
    assert np.trace(np.array(unknown.covariance)) > np.trace(np.array(known.covariance))


def test_a_family_held_out_has_its_own_coefficients() -> None:
    profile = profile_of(parse_deployment("llama-3.1-70b:fp8@8xh100/tp8,engine=vllm"))
    assert "llama-70b" in profile.held_out
    assert not np.allclose(profile.values(), profile.values(without="llama-70b"))
    assert np.allclose(profile.values(), profile.values(without="nobody's"))


def test_profiles_are_kept_and_checked(tmp_path) -> None:
    profile = prior_profile("mine")
    path = save(profile, tmp_path)
    assert load(path) == profile
    path.write_text("{}")
    with pytest.raises(InputError, match="write it anew"):
        load(path)
    with pytest.raises(InputError, match="loadstone calibrate"):
        load(tmp_path / "none.json")
    short = Profile(**{name: getattr(profile, name) for name in profile.__struct_fields__} | {"names": ("one",)})
    with pytest.raises(InputError, match="another version"):
        load(save(short, tmp_path))


def test_coefficients_are_named_once_and_light_is_perfect() -> None:
    assert len(set(NAMES)) == len(NAMES) == len(PRIOR) == len(LIGHT)
    assert all(LIGHT[INDEX[each.name]] == 1 for each in COEFFICIENTS if each.unit.startswith("of"))
    assert all(LIGHT[INDEX[each.name]] < 1e-12 for each in COEFFICIENTS if each.unit == "s")


@pytest.mark.parametrize(
    ("engine", "era"),
    [
        ("vllm", "async"),
        ("vllm,version=0.19.0", "async"),
        ("vllm,version=v0.13.0", "v1"),
        ("vllm,version=0.7.3.dev138+g21f6ca217", "v0"),
        ("vllm,version=0.2", "eager"),
        ("sglang,version=0.4.3.post2", "0.4"),
        ("sglang,version=~0.4.0", "0.4"),
        ("tensorrt-llm,version=1.2.0rc6.post2", "1.0"),
        ("tensorrt-llm,version=0.5.1-rc0.pre3", "0.x"),
        ("llama.cpp,version=b1234", "*"),
    ],
)
def test_versions_have_eras(engine: str, era: str) -> None:
    assert era_of(parse_deployment(f"llama-3.1-8b@1xh100/engine={engine}")) == era


def test_a_version_that_is_no_number_is_the_newest() -> None:
    plain, nightly = (f"llama-3.1-8b@1xh100/engine=sglang{version}" for version in ("", ",version=nightly-20260216"))
    assert era_of(parse_deployment(nightly)) == era_of(parse_deployment(plain)) != "0.4"


def test_blackwells_are_one_architecture() -> None:
    gpus = {
        architecture_of(parse_deployment(f"llama-3.1-8b@1x{name}").gpu) for name in ("b200", "b300", "gb200", "gb300")
    }
    assert gpus == {"blackwell"}
    assert architecture_of(parse_deployment("llama-3.1-8b@1xrtx-pro-6000").gpu) != "blackwell"


def test_a_group_s_experts_take_what_all_ranks_bring() -> None:
    """One rank's prompt among decodes of seven others costs its own attention, and an eighth of it in the experts."""
    model = model_of("deepseek-v3@8xh200/tp1,dp8,ep8,attention-dp,engine=sglang")
    prompt, decodes, context = [(8192, 0)], 16, 16 * 2048
    all_bring_one = model.step_s(decodes, context, prompt)
    one_brings_it = model.step_s(decodes, context, prompt, -(-(8192 + 8 * decodes) // 8))
    assert model.step_s(decodes, context, prompt, 8192 + decodes) == all_bring_one
    assert model.step_s(decodes, context, []) < one_brings_it < all_bring_one
    alone = model_of("deepseek-v3@8xh200/tp8,engine=sglang")
    assert alone.step_s(decodes, context, prompt, 1) == alone.step_s(decodes, context, prompt)
