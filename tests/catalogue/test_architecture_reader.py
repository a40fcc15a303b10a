"""Every public config that is at hand is read, and what follows from it is what its makers
publish."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadstone import catalogue
from loadstone.catalogue.architecture.model import (
    CompressedAttention,
    Experts,
    FullAttention,
    LatentAttention,
    LinearAttention,
    Model,
)
from loadstone.catalogue.config.quantisation import Patterns
from loadstone.catalogue.config.reader import read_config, read_path
from loadstone.catalogue.find import entries_of
from loadstone.core.errors import InputError

CONFIGS = Path(__file__).resolve().parents[3] / "shared" / "data" / "configs"
FILES = sorted(file for file in CONFIGS.glob("*_config.json") if "hf_quant" not in file.name)
needs_configs = pytest.mark.skipif(
    not FILES, reason="the collection of public configs is not beside the checkout"
)

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "tie_word_embeddings": False,
    "max_position_embeddings": 512,
}


def read(**changes: Any) -> Model:
    config = {**LLAMA, **changes}
    return read_config({key: value for key, value in config.items() if value != "absent"}, "test")


def grouped_as(**weights: Any) -> dict[str, Any]:
    """A quantisation config as compressed-tensors writes it."""
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}, "odd": None}
    return {"quant_method": "compressed-tensors", "config_groups": groups}


# --- by hand --------------------------------------------------------------------------------------


def test_a_small_llama_counted_by_hand() -> None:
    model = read()
    attention = 64 * 64 + 2 * 64 * 32 + 64 * 64  # q; k and v of two heads of 16; o
    layer = attention + 3 * 64 * 128 + 2 * 64
    assert model.parameters == 2 * layer + 2 * 100 * 64 + 64
    assert model.active_parameters == model.parameters
    assert model.weights_bytes() == 2 * model.parameters
    assert (
        model.kv_bytes_per_token() == 2 * 2 * 2 * 16 * 2
    )  # layers, K and V, heads, head_dim, bytes
    assert model.kv_bytes_per_token("fp8") == model.kv_bytes_per_token() / 2
    assert model.assumed == ()


def test_fp8_leaves_embeddings_and_norms() -> None:
    model = read()
    kept = 2 * 100 * 64 + 64 + 2 * 2 * 64
    assert model.weights_bytes("fp8") == (model.parameters - kept) + 2 * kept


def test_tied_embeddings_are_one_matrix() -> None:
    assert read().parameters - read(tie_word_embeddings=True).parameters == 100 * 64


def test_an_explicit_head_dim_is_not_hidden_over_heads() -> None:
    assert read(head_dim=32).kv_bytes_per_token() == 2 * read().kv_bytes_per_token()


@pytest.mark.parametrize(("kv_heads", "numbers"), [(4, 128), (2, 64), (1, 32), ("absent", 128)])
def test_heads_of_mha_gqa_and_mqa(kv_heads: Any, numbers: int) -> None:
    model = read(num_key_value_heads=kv_heads)
    assert model.kv_bytes_per_token("fp8") == 2 * numbers


def test_windows_of_all_layers_or_of_some() -> None:
    def windows(**config: Any) -> list[int | None]:
        return [run.attention.window_tokens for run in read(sliding_window=100, **config).layers]

    assert windows(model_type="mistral") == [100]
    assert windows(layer_types=["sliding_attention", "full_attention"]) == [100, None]


def test_experts_of_which_some_are_active() -> None:
    model = read(model_type="mixtral", num_local_experts=8, num_experts_per_tok=2)
    expert = 3 * 64 * 128
    assert model.parameters_by_kind["experts"] == 2 * 8 * expert
    assert model.parameters - model.active_parameters == 2 * 6 * expert


def test_first_layers_dense_then_experts() -> None:
    model = read(
        model_type="deepseek_v3", n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
        n_shared_experts=2, first_k_dense_replace=1,
    )  # fmt: skip
    dense, sparse = model.layers
    assert dense.mlp is not None
    assert not isinstance(dense.mlp, Experts)
    assert isinstance(sparse.mlp, Experts)
    assert sparse.mlp.shared_intermediate == 64


def test_latent_attention_keeps_one_latent_for_all_heads() -> None:
    model = read(
        model_type="deepseek_v3", kv_lora_rank=32, q_lora_rank=None, qk_nope_head_dim=16, qk_rope_head_dim=8,
        v_head_dim=16,
    )  # fmt: skip
    assert model.kv_bytes_per_token() == 2 * (32 + 8) * 2
    attention = model.layers[0].attention
    assert isinstance(attention, LatentAttention)
    counted = sum(matrix.parameters for matrix in attention.weights(64))
    assert counted == 64 * 4 * 24 + 64 * 40 + 32 + 32 * 4 * 32 + 4 * 16 * 64


def test_sparse_mla_in_vllms_fp8_layout() -> None:
    model = catalogue.model("deepseek-v3.2")
    index_key = 128 + 4
    assert model.kv_bytes_per_token("fp8_ds_mla") == 61 * (656 + index_key)


def test_a_state_does_not_grow() -> None:
    model = catalogue.model("nemotron-h-56b-base-8k")
    attention_only = 10 * 2 * 8 * 128 * 2
    assert model.kv_bytes_per_token() == attention_only
    assert model.state_bytes > 0


def test_draft_layers_are_not_in_the_total() -> None:
    with_draft, without = read(num_nextn_predict_layers=1), read()
    assert with_draft.parameters == without.parameters
    layer = sum(matrix.parameters for matrix in without.layers[0].weights(64))
    assert with_draft.draft_parameters == layer + 2 * 64 * 64 + 3 * 64


# --- quantisation ---------------------------------------------------------------------------------


def formats(model: Model, number: int = 0) -> dict[str, str]:
    layers = [run for run in model.layers for _ in range(run.count)]
    return {name: form.dtype for name, form in layers[number].formats}


def test_block_scales_cost_a_little() -> None:
    model = read(quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})
    assert model.weights_dtype == "fp8"
    plain = read(quantization_config={"quant_method": "fp8"})
    quantised = sum(m.parameters for m in plain.layers[0].weights(64) if m.quantisable) * 2
    assert model.weights_bytes() - plain.weights_bytes() == pytest.approx(quantised * 4 / 128**2)


@pytest.mark.parametrize(
    ("config", "bits"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64}, 4 + 20 / 64),
        ({"quant_method": "mxfp4"}, 4 + 8 / 32),
        ({"quant_algo": "NVFP4", "group_size": 16}, 4 + 8 / 16),
        ({"quant_algo": "MXFP4"}, 4 + 8 / 32),
        ({"quant_algo": "W4A16_AWQ"}, 4 + 20 / 128),
        ({"quant_algo": "FP8_PB_WO"}, 8),
        ({"quant_algo": "W8A8_SQ_PER_CHANNEL"}, 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4 + 32 / 64),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "sym": True}, 4 + 16 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, 4 + 20 / 128),
        (grouped_as(num_bits=4, group_size=128), 4 + 16 / 128),
        (grouped_as(num_bits=4, group_size=128, symmetric=False), 4 + 20 / 128),
        (grouped_as(num_bits=8, type="float"), 8),
        (grouped_as(num_bits=4, type="float", group_size=32), 4 + 8 / 32),
        (grouped_as(num_bits=4, type="float", group_size=16), 4 + 8 / 16),
    ],
)
def test_bits_of_a_weight_with_its_scales(config: dict[str, Any], bits: float) -> None:
    model = read(quantization_config=config)
    (form,) = {form for _, form in model.layers[0].formats}
    assert form.bytes == pytest.approx(bits / 8)


@pytest.mark.parametrize(
    "pattern",
    [
        "model.layers.0.self_attn.o_proj",
        "model.layers.0.self_attn*",
        "re:.*layers.0.self_attn.*",
        "layers.0.self_attn",
    ],
)
def test_what_stays_at_full_precision(pattern: str) -> None:
    model = read(quantization_config={"quant_algo": "NVFP4", "ignore": [pattern]})
    assert "self_attn.o_proj" not in formats(model, 0)
    assert formats(model, 0)["mlp.up_proj"] == "nvfp4"
    assert formats(model, 1)["self_attn.o_proj"] == "nvfp4"
    assert len(model.layers) == 2, "layers that differ only in precision are not one run"


def test_groups_are_of_the_modules_they_name() -> None:
    groups = {
        "a": {
            "targets": ["re:.*mlp.*"],
            "weights": {"num_bits": 4, "type": "float", "group_size": 16},
        },
        "b": {"targets": ["re:.*o_proj"], "weights": {"num_bits": 8, "type": "float"}},
    }
    model = read(
        quantization_config={"quant_method": "compressed-tensors", "config_groups": groups}
    )
    mlp = dict.fromkeys(("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"), "nvfp4")
    assert formats(model, 0) == formats(model, 1) == mlp | {"self_attn.o_proj": "fp8"}


def test_mixed_precision_by_name() -> None:
    named = {
        "model.layers.1.mlp.up_proj": {"quant_algo": "FP8"},
        "lm_head": {"quant_algo": "NVFP4"},
    }
    model = read_config(
        dict(LLAMA), "test", {"quant_algo": "MIXED_PRECISION", "quantized_layers": named}
    )
    assert formats(model, 0) == {}
    assert formats(model, 1) == {"mlp.up_proj": "fp8"}
    assert [(name, form.dtype) for name, form in model.embedding_formats] == [("lm_head", "nvfp4")]


def test_a_checkpoint_may_say_what_its_cache_is_for() -> None:
    model = read_config(
        dict(LLAMA), "test", {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    )
    assert model.kv_dtype == "fp8"
    assert model.kv_bytes_per_token() == read().kv_bytes_per_token("fp8")


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": "absent"}, "no hidden_size"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"hidden_size": 10**12}, "hidden_size is 1000000000000"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"num_hidden_layers": 10**6}, "1000000 layers"),
        ({"num_hidden_layers": 0}, "0 layers"),
        ({"num_nextn_predict_layers": 10**6}, "1000000 draft layers"),
        ({"block_configs": [{}] * 3000}, "3000 layers"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "*" * 3000}, "3000 layers"),
        ({"num_attention_heads": True}, "num_attention_heads is True"),
        ({"layer_types": ["full_attention"]}, "1 entries for 2 layers"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "MX"}, "'X'"),
        ({"n_routed_experts": 4, "num_experts_per_tok": 5}, "5 experts of 4"),
        ({"block_configs": ["x"]}, "block_configs[0]"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": ["a"]}},
            "weight_block_size is 'a'",
        ),
        (
            {"quantization_config": {"config_groups": {"a": {"targets": 5, "weights": {}}}}},
            "targets is 5",
        ),
        (
            {"attn_layer_period": 8, "attn_layer_offset": 4},
            "of which kind its layers without a KV cache are",
        ),
        (
            {"mamba_d_ssm": 64, "mamba_n_heads": 4},
            "likely to change sizes: mamba_d_ssm, mamba_n_heads",
        ),
        ({"quantum_heads": 3}, "quantum_heads; where they do not, take them out of a copy"),
        ({"layer_group_size": 5}, "of which kind its layers without a KV cache are"),
        ({"layer_types": ["full_attention", "retention"]}, "layer type 'retention' is not known"),
        ({"sliding_window": 8, "sliding_window_pattern": "LLX"}, "known are letters L and G"),
        ({"model_type": "zamba"}, "layers that share one block's weights"),
        ({"model_type": "doge"}, "is not read here"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "an encoder with a decoder"),
        ({"num_key_value_heads": [2, 1]}, "differs from layer to layer"),
        (
            {"model_type": "absent", "vocab_size": "absent"},
            "is it the config.json of a language model?",
        ),
        (
            {"block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": "2"},
            "block_ffn_dim_multiplier is '2'",
        ),
    ],
)
def test_a_bad_config_gets_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        read(**changes)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_fields_not_understood_are_named() -> None:
    assert read(quantum_leaps=3).assumed == (
        "fields not understood, taken to change no size: quantum_leaps",
    )
    assert read(quantum_heads=None).assumed == ()


def test_an_unknown_family_is_read_with_the_fields_it_has() -> None:
    model = read(model_type="newest")
    assert model.parameters == read().parameters
    assert "model_type 'newest' not known" in model.assumed[0]


def test_of_an_unknown_family_what_is_not_understood_is_said() -> None:
    """And its MLPs are as the activation has them: two matrices for relu2."""
    model = read(model_type="newest", hidden_act="relu2", quantum_heads=3, mamba_n_heads=4)
    assert read().parameters - model.parameters == 2 * 64 * 128
    assert "MLPs of two matrices" in model.assumed[0]
    assert (
        "fields not understood, and likely to change sizes: mamba_n_heads, quantum_heads"
        in model.assumed
    )


def test_lists_beyond_reason_are_cut_and_said() -> None:
    """Every name against every matrix of every layer would take hours: names are looked up, globs
    are bounded."""
    names = [f"model.layers.{index % 90}.mlp.experts.{index}.up_proj" for index in range(100_000)]
    globs = [f"model.layers.*.mlp.x{index}*" for index in range(10_000)]
    expressions = [f"re:.*a{index}.*b" for index in range(1000)]
    listed = Patterns([*names, *globs, *expressions])
    assert len(listed.refused) == 10_000 - 500 + 1000 - 100
    assert listed.match(7, ["model.layers.7.mlp.experts.7.up_proj"])
    assert not listed.match(7, ["model.layers.7.mlp.experts.8.up_proj"])
    model = read(num_hidden_layers=100, quantization_config={"quant_algo": "FP8", "ignore": globs})
    assert any("not understood, ignored" in said for said in model.assumed)


def test_expressions_that_could_take_for_ever_are_refused() -> None:
    model = read(quantization_config={"quant_algo": "FP8", "ignore": ["re:(a+)+$", "lm_head"]})
    assert any("(a+)+$" in said for said in model.assumed)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": ' * 20_000, "\ud800"])
def test_files_that_are_no_config(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(InputError, match=r"config\.json"):
        read_path(file)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_path(tmp_path / "config.json")


def test_a_config_is_named_after_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two checkpoints of one's own are both called config.json."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "one" / "other_config.json").write_text(json.dumps(LLAMA))
    monkeypatch.chdir(tmp_path / "one")
    assert read_path(tmp_path / "two" / "config.json").name == str(tmp_path / "two")
    assert read_path(Path("../two")).name == "../two"
    assert read_path(Path("config.json")).name == read_path(Path()).name == str(tmp_path / "one")
    assert read_path(Path("other_config.json")).name == "other_config.json"


def test_a_folder_with_its_quantisation_beside(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "hf_quant_config.json").write_text(
        json.dumps({"quantization": {"quant_algo": "NVFP4"}})
    )
    assert read_path(tmp_path).weights_dtype == "nvfp4"


# --- what is published ----------------------------------------------------------------------------

PUBLISHED = json.loads(Path(__file__).with_name("published.json").read_text())
"""Holds what makers publish. parameters: of the text model without draft layers, exact where it is
an integer (of the safetensors), else as many digits as cards and reports give; active: without the
input table; kv_bytes: of a token in bf16; gigabytes: of the checkpoint's files."""


def _of_text(model: Model) -> int:
    return model.parameters - model.vision_parameters


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row["name"])
def test_a_model_is_what_its_makers_publish(row: dict[str, Any]) -> None:
    model = catalogue.model(row["name"])
    figures = {
        "parameters": (_of_text(model), 0.005),
        "with_towers_and_drafts": (model.parameters + model.draft_parameters, 0.005),
        "active": (model.active_parameters - model.vocab * model.hidden, 0.01),
        "kv_bytes": (model.kv_bytes_per_token("bf16"), 0.0),
        "gigabytes": (model.weights_bytes() / 1e9, 0.01),
    }
    for name, value in row.items():
        if name != "name":
            counted, rel = figures[name]
            exact = name == "parameters" and isinstance(value, int)
            assert counted == pytest.approx(value, rel=0.0 if exact else rel), name


# --- what configs leave out, and what is refused --------------------------------------------------

GEMMA_3 = {
    "4b": ({"hidden_size": 2560, "num_hidden_layers": 34, "intermediate_size": 10_240}, 3_880_263_168, 139_264),
    "12b": (
        {"hidden_size": 3840, "num_hidden_layers": 48, "intermediate_size": 15_360, "num_attention_heads": 16,
         "num_key_value_heads": 8}, 11_766_034_176, 393_216),
}  # fmt: skip


@pytest.mark.parametrize("name", GEMMA_3)
def test_what_a_text_config_leaves_out_is_as_in_its_class(name: str) -> None:
    text, parameters, kv_bytes = GEMMA_3[name]
    rope = {"rope_type": "linear", "factor": 8.0}
    config = {
        "model_type": "gemma3", "torch_dtype": "bfloat16", "mm_tokens_per_image": 256,
        "text_config": {"model_type": "gemma3_text", "sliding_window": 1024, "rope_scaling": rope, **text},
    }  # fmt: skip
    model = read_config(config, "gemma-3")
    assert (model.parameters, model.kv_bytes_per_token(), model.max_context_tokens) == (
        parameters,
        kv_bytes,
        131_072,
    )
    windows = [
        run.attention.window_tokens
        for run in model.layers
        if isinstance(run.attention, FullAttention)
    ]
    assert windows[:2] == [1024, None]
    assert "vocab_size 262208" in model.assumed[0]
    with pytest.raises(
        InputError, match="no vocab_size, which 'gemma3_text' may leave to its code"
    ):
        read_config(config["text_config"], "alone")  # type: ignore[arg-type]


def test_windows_by_letters() -> None:
    """EXAONE 4: three windows, then everything; the last layer sees everything, whatever its
    letter."""
    model = read(
        model_type="exaone4", num_hidden_layers=6, sliding_window=16, sliding_window_pattern="LLLG"
    )
    windows = [
        run.attention.window_tokens
        for run in model.layers
        for _ in range(run.count)
        if run.attention
    ]
    assert windows == [16, 16, 16, None, 16, None]


def test_an_unknown_type_is_not_spoken_for() -> None:
    assert (
        "tie_word_embeddings absent: not tied assumed"
        in read(model_type="new", tie_word_embeddings="absent").assumed
    )
    known = read(
        model_type="gemma",
        head_dim=16,
        tie_word_embeddings="absent",
        max_position_embeddings="absent",
    )
    assert known.assumed == (
        "tie_word_embeddings absent: tied, as this model_type is",
        "the config states no longest context: no limit assumed",
    )


def test_omni_models_are_their_thinkers() -> None:
    text = {key: value for key, value in LLAMA.items() if key != "torch_dtype"} | {
        "model_type": "qwen2_5_omni_text"
    }
    config = {
        "model_type": "qwen3_omni_moe",
        "torch_dtype": "bfloat16",
        "thinker_config": {"text_config": text},
        "quantization_config": {"quant_method": "fp8"},
        "talker_config": {"hidden_size": 1},
    }
    model = read_config(config, "omni")
    assert (model.weights_dtype, model.kv_bytes_per_token()) == ("fp8", read().kv_bytes_per_token())
    assert "talker_config: that part is not counted" in model.assumed


# --- the collection -------------------------------------------------------------------------------


@needs_configs
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.removesuffix("_config.json"))
def test_every_config_is_read(file: Path) -> None:
    """And the catalogue's entry, of few fields and short patterns, gives the same as the whole
    file."""
    model = read_path(file)
    assert model.parameters > 0
    assert model.kv_bytes_per_token() > 0
    assert not any(
        said.startswith("model_type") or "not understood: full" in said for said in model.assumed
    )
    ours = catalogue.model(file.name.removesuffix("_config.json").replace("--", "/"))
    assert comparable(ours) == comparable(model)


@pytest.mark.parametrize(
    ("model_type", "rope", "context"),
    [
        (
            "qwen3",
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768},
            131_072,
        ),
        (
            "qwen3",
            {"type": "yarn", "factor": 4, "original_max_position_embeddings": 32_768},
            131_072,
        ),
        ("qwen3", {"rope_type": "linear", "factor": 2.0}, 81_920),
        ("qwen3", {"rope_type": "dynamic", "factor": 2.0}, 81_920),
        ("gemma3_text", {"rope_type": "linear", "factor": 8.0}, 40_960),
        (
            "llama",
            {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
            40_960,
        ),
        ("qwen3", {"rope_type": "default"}, 40_960),
        ("qwen3", {"rope_type": "yarn", "factor": None}, 40_960),
        ("qwen3", {"rope_type": "linear", "factor": "4"}, 40_960),
        ("qwen3", {"rope_type": "linear", "factor": 1e300}, 40_960),
        ("qwen3", None, 40_960),
    ],
)
def test_the_context_is_as_long_as_rope_makes_it(model_type: str, rope: Any, context: int) -> None:
    """As vLLM derives it; Qwen3's model card asks for the first of these where 131,072 tokens are
    wanted."""
    config = {
        "model_type": model_type, "hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 16,
        "num_key_value_heads": 8, "intermediate_size": 3072, "vocab_size": 1000, "max_position_embeddings": 40_960,
    }  # fmt: skip
    assert read_config(config | {"rope_scaling": rope}, "x").max_context_tokens == context


def test_gemma_3s_tower_is_counted() -> None:
    model = catalogue.model("gemma-3-27b")
    # 27.432 B in the checkpoint, of them 27.009 B of text.
    assert _of_text(model) == 27_009_346_304
    assert model.parameters == pytest.approx(27.4324e9, rel=1e-4)


def comparable(model: Model) -> Model:
    """Without names (an entry that is `like` another has its family's), and without the precision
    of draft layers: patterns with a star reach them too."""
    drafts = tuple(msgspec.structs.replace(run, formats=()) for run in model.draft_layers)
    pictures = model.visual and msgspec.structs.replace(model.visual, assumed=())
    return msgspec.structs.replace(
        model,
        visual=pictures,
        name="",
        model_type="",
        aliases=(),
        source="",
        assumed=(),
        draft_layers=drafts,
        given=None,
    )


@needs_configs
def test_kinds_of_attention_are_told_apart() -> None:
    def kinds(name: str) -> set[type]:
        return {
            type(run.attention) for run in catalogue.model(name).layers if run.attention is not None
        }

    assert kinds("deepseek-ai/DeepSeek-V4-Flash") == {CompressedAttention}
    assert kinds("moonshotai/Kimi-K3") == {LatentAttention, LinearAttention}
    assert kinds("Qwen/Qwen3.5-27B") == {FullAttention, LinearAttention}
    assert kinds("zai-org/GLM-5.2") == {LatentAttention}
    windows = [
        run.attention.window_tokens for run in catalogue.model("google/gemma-4-26B-A4B").layers
    ]  # type: ignore[union-attr]
    assert windows == [1024, None] * 5


JUNK = [
    None,
    True,
    -1,
    0,
    3,
    10**30,
    1.5,
    float("inf"),
    "x",
    "",
    [],
    {},
    [None] * 3,
    "M*E-",
    [{}],
    {"x": {}},
]


@pytest.mark.parametrize("seed", range(200))
def test_junk_in_any_field_is_read_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    config = json.loads(
        json.dumps(rng.choice(list(entries_of("models").values())).get("config", LLAMA))
    )
    places = [
        (part, key)
        for part in (config, *(v for v in config.values() if isinstance(v, dict)))
        for key in part
    ]
    for part, key in rng.choices(places, k=rng.randint(1, 3)):
        part[key] = rng.choice(JUNK)
    try:
        model = read_config({**LLAMA, **config}, "test")
    except InputError as error:
        refusal = str(error)
    else:
        assert model.weights_bytes("fp8") > 0
        assert model.kv_bytes_per_token() >= 0
        return
    assert "\n" not in refusal
