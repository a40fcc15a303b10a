"""Families of models, by a table: what is read of each config, exactly, and how near the estimates
of others are.

In configs.json are the numbers of transformers 5.23's and vLLM 0.32's own classes, or of published
checkpoints: parameters of the text model; `cache`: of each run of layers how many there are, the
numbers that a token adds to the cache, and the window; `states`: how many, recurrent numbers, bytes
of a sequence with recurrent states in bf16.
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from loadstone import catalogue
from loadstone.catalogue.architecture.linear import LinearAttention
from loadstone.catalogue.architecture.mlp import DenseMlp, Experts
from loadstone.catalogue.architecture.model import Model
from loadstone.catalogue.config.families import tables
from loadstone.catalogue.config.reader import read_config, read_given, read_path
from loadstone.catalogue.deployment.deployment import Worker
from loadstone.catalogue.deployment.shorthand import parse_worker
from loadstone.catalogue.find import entries_of
from loadstone.core.errors import InputError
from loadstone.engines import rules_of
from loadstone.engines.sharding.rank import CacheLayer
from loadstone.predict.sizing.check import contradictions
from loadstone.predict.step_time.work import work_of

TABLE = json.loads(Path(__file__).with_name("configs.json").read_text())
EXACT = {row["name"]: row for row in TABLE["exact"]}
PACKAGE = Path(catalogue.__file__).parent
WRITTEN = json.loads((PACKAGE / "text_defaults.json").read_text())["defaults"]
"""What the class of each model type writes into a config where nothing else is asked of it."""


def read(name: str, **changes: Any) -> Model:
    """A config of the table, with changes; None takes a field out."""
    config = {**EXACT[name]["config"], **changes}
    return read_config({field: value for field, value in config.items() if value is not None}, name)


def text_parameters(model: Model) -> int:
    return model.parameters - model.vision_parameters


def cache_of(model: Model) -> list[list[Any]]:
    layers = [
        (run.kv_bytes_per_token("bf16") / 2, getattr(run.attention, "window_tokens", None))
        for run in model.layers
        for _ in range(run.count)
    ]
    return [[len(list(equal)), *each] for each, equal in groupby(layers)]


def states_of(model: Model) -> list[list[Any]]:
    layers = [
        (
            sum(each.heads * each.key_dim * each.value_dim for each in run.states),
            sum(s.state_bytes("bf16") for s in run.states),
        )
        for run in model.layers
        for _ in range(run.count)
    ]
    return [[len(list(equal)), *each] for each, equal in groupby(layers)]


@pytest.mark.parametrize("name", EXACT)
def test_is_read_exactly(name: str) -> None:
    row = EXACT[name]
    model = read_config(row["config"], name)
    assert text_parameters(model) == row["parameters"]
    assert row["parameters"] == pytest.approx(row.get("published", row["parameters"]), rel=5e-5)
    assert cache_of(model) == row["cache"]
    if "states" in row:
        assert states_of(model) == row["states"]
    if "vision" in row:
        assert model.vision_parameters == row["vision"]
    assert not [said for said in model.assumed if "not known" in said or "likely to change" in said]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        (name, fields)
        for name, fields in WRITTEN.items()
        if tables().find(name) is not None and "hidden_size" in fields and name != "lfm2"
    ],  # LFM2's default leaves open which layers convolve
)
def test_what_its_class_writes_is_read(name: str, fields: dict[str, Any]) -> None:
    assert read_config({"model_type": name, **fields}, name).parameters > 0


def test_every_family_is_in_the_table_or_the_catalogue() -> None:
    kinds = {read_config(row["config"], "x").model_type for row in EXACT.values()}
    kinds |= {model.model_type for model in catalogue.models()}
    assert set(tables().family) == {tables().same.get(kind, kind) for kind in kinds}


@pytest.mark.parametrize("row", TABLE["estimated"], ids=lambda row: row["name"])
def test_other_types_are_estimated(row: dict[str, Any]) -> None:
    """Within 3 % of what their class has; what may change sizes and is not understood is named."""
    model = read_config(row["config"], row["name"])
    assert "not known: estimated" in " ".join(model.assumed)
    assert text_parameters(model) == pytest.approx(row["exact"], rel=0.03)
    named = [said for said in model.assumed if "likely to change sizes" in said]
    assert model.kv_bytes_per_token("bf16") / 2 == pytest.approx(row["kv"], rel=0.01) or named


# --- the makers' own forms, and flags -------------------------------------------------------------


def same(one: Model, other: Model) -> bool:
    return (one.parameters, cache_of(one), states_of(one)) == (
        other.parameters,
        cache_of(other),
        states_of(other),
    )


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("kimi_linear", {
            "layer_types": None, "mlp_layer_types": None, "linear_head_dim": None, "linear_num_heads": None,
            "first_k_dense_replace": 1,
            "linear_attn_config": {"full_attn_layers": [5], "head_dim": 24, "num_heads": 2},
        }),
        ("lfm2", {
            "layer_types": None, "full_attn_idxs": [1], "intermediate_size": None, "block_ff_dim": 96,
            "tie_word_embeddings": None, "tie_embedding": True,
        }),
        ("falcon_h1", {"mamba_use_mlp": True, "mlp_expansion_factor": 8}),
        ("granitemoehybrid", {"mamba_d_head": "auto"}),
    ],
)  # fmt: skip
def test_makers_write_it_otherwise(name: str, changes: dict[str, Any]) -> None:
    assert same(read(name, **changes), read(name))


def test_deepseek_v4_as_transformers_writes_it() -> None:
    """The catalogue has it as DeepSeek does."""
    name = "deepseek-ai/DeepSeek-V4-Flash"
    published, config = catalogue.model(name), dict(entries_of("models")[name]["config"])
    assert published.parameters == 284_332_240_471
    names = {
        0: "sliding_attention",
        4: "compressed_sparse_attention",
        128: "heavily_compressed_attention",
    }
    config["layer_types"] = [
        names[ratio] for ratio in config.pop("compress_ratios")[: published.layer_count]
    ]
    config["compress_rates"] = {
        "compressed_sparse_attention": 4,
        "heavily_compressed_attention": 128,
    }
    hashed = config.pop("num_hash_layers")
    config["mlp_layer_types"] = ["hash_moe"] * hashed + ["moe"] * (published.layer_count - hashed)
    assert read_config(config, "test").layers == published.layers


def test_minimax_m3s_first_layers_are_as_wide_as_its_config_says() -> None:
    """`shared_intermediate_size` is about its experts, not about its dense MLPs, as it would be in
    a Granite."""
    mlps = [run.mlp for run in catalogue.model("MiniMaxAI/MiniMax-M3").layers]
    assert mlps[0] == DenseMlp(12_288)
    assert isinstance(mlps[1], Experts)
    assert mlps[1].shared_intermediate == 3072


def test_longcat_flash_has_two_attentions_in_a_layer_and_experts_that_do_nothing() -> None:
    model = read("longcat_flash longcat")
    # Of transformers' class, without the halves that it makes for the experts that do nothing:
    # 741_053_606_912
    assert model.parameters == 741_053_606_912 - 28 * 256 * 2 * 2048 * 6144
    assert (model.layer_count, model.kv_bytes_per_token("bf16")) == (56, 56 * 2 * 576)
    # Its makers say 27 B on average, of the 18.6 to 31.3 that a token may take.
    assert model.active_parameters == pytest.approx(27e9, rel=0.05)


BIASES = 12 * (128 + 2 * 32), 12 * 128


@pytest.mark.parametrize(
    ("name", "changes", "biases"),
    [
        ("olmo", {"attention_bias": True}, sum(BIASES)),
        ("olmo", {"qkv_bias": True}, BIASES[0]),
        ("qwen2", {"attention_bias": False}, 0),
        ("qwen2_moe", {"qkv_bias": False}, -BIASES[0]),
        ("ernie4_5", {"head_dim": 16, "use_bias": False}, -sum(BIASES) - 12 * (2 * 320 + 128)),
    ],
)
def test_what_a_bias_field_is_about(name: str, changes: dict[str, Any], biases: int) -> None:
    silent = {field: value for field, value in changes.items() if field == "head_dim"}
    assert read(name, **changes).parameters - read(name, **silent).parameters == biases


# --- embeddings of every layer --------------------------------------------------------------------

E2B = {
    "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35, "num_key_value_heads": 1,
    "head_dim": 256, "global_head_dim": 512, "vocab_size": 262_144, "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256, "num_kv_shared_layers": 20, "use_double_wide_mlp": True,
    "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7, "attention_bias": False,
}  # fmt: skip


def test_a_table_that_is_looked_up_is_not_passed() -> None:
    """Gemma 4 E2B: an effective 2.3 B of parameters, by its makers. The table lies where the
    embeddings are."""
    model = read("gemma4_text", **E2B)
    assert model.parameters - model.active_parameters == 262_144 * 35 * 256
    assert model.active_parameters == pytest.approx(2.3e9, rel=0.01)
    first, second = rules_of(Worker(model=model, gpu=catalogue.gpu("h200"), gpus=2, pp=2)).ranks
    assert first.weights_bytes - second.weights_bytes > 262_144 * 35 * 256


def test_products_of_every_layers_embedding_are_counted() -> None:
    """Two of hidden × 256 in each layer, and one of hidden × (35 · 256) before them."""

    def flops(width: int) -> float:
        model = read("gemma4_text", **{**E2B, "hidden_size_per_layer_input": width})
        work = work_of(Worker(model=model, gpu=catalogue.gpu("h200"), gpus=1))
        return float((work.operators.layers * work.operators.flops).sum())

    assert flops(256) - flops(0) == pytest.approx(2 * 3 * 35 * 1536 * 256)


# --- states ---------------------------------------------------------------------------------------


def deploy(folder: Path, name: str, options: str = "", **changes: Any) -> Any:
    (folder / "config.json").write_text(json.dumps({**EXACT[name]["config"], **changes}))
    return parse_worker(f"{folder / 'config.json'}@{options or '1xh200'}")


def test_attention_and_a_state_in_one_layer_are_two_caches(tmp_path: Path) -> None:
    (rank,) = rules_of(deploy(tmp_path, "falcon_h1")).ranks
    state = 1536 * 2 + 480 * 2  # vLLM keeps both as it computes, where the config does not say
    assert set(rank.cache) == {CacheLayer(2, 0.0, None, state), CacheLayer(2, 64 * 2.0)}
    assert rank.weights_bytes == 2 * 122_608


@pytest.mark.parametrize(
    ("engine", "changes", "width"),
    [
        ("vllm", {}, 2),
        ("sglang", {}, 4),
        ("vllm", {"mamba_ssm_cache_dtype": "float32"}, 4),
        ("sglang", {"mamba_ssm_cache_dtype": "bfloat16"}, 2),
    ],
)
def test_engines_keep_states_of_which_the_config_says_nothing_differently(
    tmp_path: Path, engine: str, changes: dict[str, Any], width: int
) -> None:
    deployment = deploy(tmp_path, "granitemoehybrid", f"1xh200/engine={engine}", **changes)
    state = 2048 * width + 576 * 2
    assert [
        layer.state_bytes for layer in rules_of(deployment).ranks[0].cache if layer.state_bytes
    ] == [state]
    assert float(work_of(deployment).state[0]) == 2 * 2 * state  # two layers; read and written


@pytest.mark.parametrize("name", ["kimi_linear", "nemotron_h"])
def test_states_that_every_engine_keeps_in_fp32(tmp_path: Path, name: str) -> None:
    deployment = deploy(tmp_path, name)
    (state,) = {each for run in deployment.model.layers for each in run.states}
    assert isinstance(state, LinearAttention)
    kept = (
        state.conv_width - 1
    ) * state.conv_channels * 2 + state.heads * state.key_dim * state.value_dim * 4
    assert {
        layer.state_bytes for layer in rules_of(deployment).ranks[0].cache if layer.state_bytes
    } == {kept}


def test_a_state_is_cut_by_its_own_heads(tmp_path: Path) -> None:
    found = contradictions(
        deploy(tmp_path, "falcon_h1", "4xh200/tp4", mamba_n_heads=6, mamba_d_head=16)
    )
    assert any("6 heads of the linear attention" in said for said in found)


# --- text models inside other configs -------------------------------------------------------------


def nested(
    outer: str, inner: str, text: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    text = {"model_type": inner, **(text or {})}
    return {"model_type": outer, "torch_dtype": "bfloat16", "text_config": text} | fields


def test_a_field_by_its_other_name_is_not_left_out() -> None:
    """Qwen3-VL's published files say num_experts; transformers saves num_local_experts."""
    for said in ({"num_experts": 128}, {"num_local_experts": 128}):
        config = nested("qwen3_vl_moe", "qwen3_vl_moe_text", {"num_hidden_layers": 3, **said})
        assert [
            run.mlp.experts
            for run in read_config(config, "q").layers
            if isinstance(run.mlp, Experts)
        ] == [128]


def test_what_is_said_stays() -> None:
    """null is said too; a part without a model_type is its maker's own, and gets nothing."""
    assert {
        window
        for _, _, window in cache_of(
            read_config(nested("idefics2", "mistral", {"sliding_window": None}), "x")
        )
    } == {None}
    with pytest.raises(InputError, match="no hidden_size"):
        read_config({"model_type": "llava", "text_config": {"vocab_size": 32_000}}, "x")


@pytest.mark.parametrize(
    ("outer", "inner", "said", "tied"),
    [
        ("llava", "llama", (True, False), True),
        ("llava", "llama", (False, True), False),
        ("mistral3", "mistral", (True, False), True),
        ("llava", "llama", (None, True), True),
        ("llava", "llama", (None, None), False),
        ("paligemma", "gemma", (None, None), True),
        ("paligemma", "gemma", (False, None), False),
        ("llama4", "llama4_text", (False, True), True),
    ],
)
def test_whose_word_on_tied_embeddings_counts(
    outer: str, inner: str, said: tuple[bool | None, bool | None], tied: bool
) -> None:
    whole, text = said
    config = nested(
        outer,
        inner,
        {"num_hidden_layers": 4} | ({} if text is None else {"tie_word_embeddings": text}),
    )
    config |= {} if whole is None else {"tie_word_embeddings": whole}
    model = read_config(config, outer)
    assert model.tied_embeddings is tied
    differ = None not in said and whole != text
    assert (
        any("tie_word_embeddings differs from text_config's" in each for each in model.assumed)
        is differ
    )
    assert any("tie_word_embeddings absent" in each for each in model.assumed) is (
        said == (None, None)
    )


def test_a_text_model_alone_has_its_own_word() -> None:
    """Qwen3_5ForCausalLM is built from the text_config; …ForConditionalGeneration is not."""
    config = nested(
        "qwen3_5", "qwen3_5_text", {"num_hidden_layers": 4, "tie_word_embeddings": True}
    )
    config |= {"tie_word_embeddings": False}
    alone = read_config(config | {"architectures": ["Qwen3_5ForCausalLM"]}, "x")
    whole = read_config(config | {"architectures": ["Qwen3_5ForConditionalGeneration"]}, "x")
    assert (alone.tied_embeddings, whole.tied_embeddings) == (True, False)


# Parameters of transformers' classes, with the projector and the classes' default text models.
SIGLIP = {
    "hidden_size": 1152, "intermediate_size": 4304, "patch_size": 14, "image_size": 384,
    "num_hidden_layers": 26, "num_attention_heads": 16,
}  # fmt: skip
MLLAMA = {
    "image_size": 448, "max_num_tiles": 4, "supported_aspect_ratios": [[1, 1], [1, 2], [1, 3],
    [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]],
}  # fmt: skip


@pytest.mark.parametrize(
    ("outer", "inner", "tower", "fields", "parameters"),
    [
        ("llava", "llama", "clip_vision_model", {"hidden_size": 1024, "image_size": 336, "intermediate_size": 4096,
         "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14}, 324_487_168),
        ("internvl", "qwen2", "internvl_vision", {}, 337_509_376),
        ("qwen2_vl", "qwen2_vl_text", "qwen2_vl_vision", {}, 675_759_104),
        ("qwen2_5_vl", "qwen2_5_vl_text", "qwen2_5_vl_vision", {}, 3_083_025_152),
        ("llama4", "llama4_text", "llama4_vision_model", {}, 455_178_240),
        ("glm4v", "glm4v_text", "glm4v_vision", {}, 892_498_432),
        ("glm4v_moe", "glm4v_moe_text", "glm4v_moe_vision", {}, 892_498_432),
        ("mllama", "mllama_text_model", "mllama_vision_model", MLLAMA, 867_749_395),
        ("llava_onevision", "qwen2", "siglip_vision_model", SIGLIP, 419_255_840),
        ("mistral3", "mistral", "pixtral", {"hidden_size": 1024, "intermediate_size": 4096, "patch_size": 14,
         "num_hidden_layers": 24, "head_dim": 64, "image_size": 1540, "num_attention_heads": 16}, 438_958_080),
    ],
)  # fmt: skip
def test_towers_of_models_whose_pictures_are_counted_are_counted(
    outer: str, inner: str, tower: str, fields: dict[str, Any], parameters: int
) -> None:
    hidden = {"llava_onevision": 4096, "mistral3": 5120}.get(outer)
    joined = {"internvl": {"downsample_ratio": 0.5}, "mistral3": {"spatial_merge_size": 2}}
    text = {"hidden_size": hidden, "num_attention_heads": 32} if hidden else {}
    vision = {"model_type": tower, **fields}
    config = nested(outer, inner, text, vision_config=vision, **joined.get(outer, {}))
    model = read_config(config, outer)
    assert model.vision_parameters == pytest.approx(parameters, rel=2e-4)
    assert any(said.startswith("vision tower counted") for said in model.assumed)


def test_every_model_of_the_catalogue_that_takes_pictures_has_its_tower_counted() -> None:
    seen = [model for model in catalogue.models() if model.visual is not None]
    assert len(seen) > 20
    for model in seen:
        told = [said for said in model.assumed if said.startswith("vision tower")]
        assert all(said.startswith("vision tower counted") for said in told), (model.name, told)


@pytest.mark.parametrize(
    ("outer", "inner", "tower", "vision", "parameters"),
    [
        ("paligemma", "gemma", "siglip_vision_model", {"hidden_size": 1152, "intermediate_size": 4096,
         "patch_size": 14, "num_hidden_layers": 27, "num_attention_heads": 16}, 401_858_816),
        ("idefics3", "llama", "idefics3_vision", {}, 171_270_144),
        ("glm_ocr", "glm_ocr_text", "glm_ocr_vision", {}, 434_120_192),
    ],
)  # fmt: skip
def test_other_towers_are_estimated(
    outer: str, inner: str, tower: str, vision: dict[str, Any], parameters: int
) -> None:
    model = read_config(nested(outer, inner, vision_config={"model_type": tower, **vision}), outer)
    assert model.vision_parameters == pytest.approx(parameters, rel=0.17)
    assert any(said.startswith("vision tower ") for said in model.assumed)


def test_a_tower_that_hears_is_estimated() -> None:
    model = read_config(
        nested("qwen2_audio", "qwen2", audio_config={"model_type": "qwen2_audio_encoder"}), "x"
    )
    assert model.vision_parameters == pytest.approx(642_215_936, rel=0.01)
    assert any(
        "audio tower of a kind not known here: roughly estimated" in said for said in model.assumed
    )


def test_what_is_not_counted_is_named() -> None:
    vision = {"model_type": "newest_vision", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128,
              "patch_size": [14, 14], "image_size": 28}  # fmt: skip
    model = read_config(
        nested("newest", "llama", vision_config=vision, qformer_config={"hidden_size": 8}), "x"
    )
    assert any(
        "of a kind not known here: roughly estimated from vision_config" in said
        for said in model.assumed
    )
    assert "qformer_config: that part is not counted" in model.assumed
    model = read_config(
        nested("newest", "llama", vision_config={"patch_size": [7, 3]}, audio_config={"x": 1}), "x"
    )
    assert model.vision_parameters == 0
    assert "vision_config does not say enough: the vision tower is not counted" in model.assumed
    assert "audio_config does not say enough: the audio tower is not counted" in model.assumed


# --- the index of the checkpoint ------------------------------------------------------------------


def checkpoint(
    folder: Path, model_type: str, factor: float, drafts: int = 0
) -> tuple[Model, Model, int]:
    """What is read alone, with an index that says so many times as much, and the bytes that it
    says."""
    config = {
        **EXACT["qwen3_moe"]["config"],
        "model_type": model_type,
        "num_nextn_predict_layers": drafts,
    }
    (folder / "config.json").write_text(json.dumps(config))
    alone = read_path(folder)
    total = 2 * round(factor * (alone.parameters + alone.draft_parameters))
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}})
    )
    return alone, read_path(folder), total


@pytest.mark.parametrize("factor", [0.7, 0.95, 1.3, 3.0])
def test_an_estimate_takes_what_the_index_says(tmp_path: Path, factor: float) -> None:
    alone, model, total = checkpoint(tmp_path, "newest", factor)
    assert model.parameters == total // 2
    assert model.weights_bytes() == pytest.approx(total, abs=2)
    assert model.kv_bytes_per_token() == alone.kv_bytes_per_token()
    assert (model.active_parameters > alone.active_parameters) == (factor > 1)
    assert model.assumed[-1].startswith("the checkpoint's index says ")
    assert model.assumed[-1].endswith(": taken as the index says")
    kept = read_given({"name": model.name, **(model.given or {})})
    assert (kept.parameters, kept.assumed) == (model.parameters, model.assumed)


def test_an_index_that_agrees_is_said_to(tmp_path: Path) -> None:
    alone, model, _ = checkpoint(tmp_path, "newest", 1.0, drafts=1)
    assert alone.draft_parameters > 0
    assert model.parameters == alone.parameters
    assert "the checkpoint's index says " in model.assumed[-1]


def test_what_no_width_explains_is_said(tmp_path: Path) -> None:
    alone, model, _ = checkpoint(tmp_path, "newest", 0.05)
    assert model.parameters == alone.parameters
    assert model.assumed[-1].endswith("too far for the widths of its MLPs to explain")


def test_of_a_family_that_is_exact_a_difference_is_only_said(tmp_path: Path) -> None:
    alone, model, _ = checkpoint(tmp_path, "qwen3_moe", 1.3)
    assert model.parameters == alone.parameters
    assert "(-23.1%)" in model.assumed[-1]
    assert checkpoint(tmp_path, "qwen3_moe", 1.0)[1].assumed == alone.assumed


@pytest.mark.parametrize(
    "index",
    [{}, {"metadata": None}, {"metadata": {"total_size": "9"}}, {"metadata": {"total_size": -1}}],
)
def test_an_index_that_says_nothing_changes_nothing(tmp_path: Path, index: dict[str, Any]) -> None:
    alone, _, _ = checkpoint(tmp_path, "newest", 1.0)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_path(tmp_path).assumed == alone.assumed


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        (
            "gemma2",
            {"layer_types": ["sliding_attention"] * 12, "sliding_window": None},
            "no sliding_window says how long",
        ),
        (
            "gemma4_text",
            {"per_layer_config": {"3": {"skip": ["mlp"]}}},
            "[3]: skip is not understood of one layer",
        ),
        ("gemma4_text", {"per_layer_config": {"3": 5}}, "per_layer_config[3]: must be an object"),
        ("ernie4_5_moe", {"use_bias": True}, "use_bias is true"),
        (
            "step3p5",
            {"mlp_layer_types": None, "moe_layers_enum": "3;4"},
            "it must list layers: 3,4,5",
        ),
        (
            "step3p5",
            {"mlp_layer_types": None, "moe_layers_enum": "9" * 5000},
            "it must list layers: 3,4,5",
        ),
        (
            "step3p5",
            {"attention_other_setting": {"attention_type": "odd"}},
            "must be 'sliding_attention'",
        ),
        ("deepseek_v4", {"layer_types": None}, "compress_rates without layer_types"),
        (
            "hy_v3",
            {"mlp_layer_types": ["dense", "wide", "sparse", "sparse"]},
            "MLP type 'wide' is not known",
        ),
        (
            "kimi_linear",
            {"layer_types": None, "linear_attn_config": {"num_heads": 2}},
            "no full_attn_layers",
        ),
        ("llama", {"layer_types": ["hybrid"] * 12}, "layer type 'hybrid' is not known"),
        ("llama", {"model_type": "hrm_text"}, "layers that run several times"),
        ("llama", {"model_type": "diffusion_gemma_text"}, "by diffusion"),
        ("llama", {"model_type": "moshi"}, "a second decoder that runs at every token"),
    ],
)
def test_refused_in_one_line(name: str, changes: dict[str, Any], said: str) -> None:
    name = name if name in EXACT else "baidu/ERNIE-4.5-21B-A3B-PT"
    with pytest.raises(InputError) as caught:
        read(name, **changes)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
