"""Dense text decoders: what transformers' own classes weigh and cache, type by type, and published totals."""

from __future__ import annotations

from typing import Any

import pytest

from loadstone import catalogue
from loadstone.catalogue.architecture.model import FullAttention, Model
from loadstone.catalogue.config.reader import read_config
from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.core.errors import InputError
from loadstone.predict.engine_rules import ranks
from loadstone.predict.step_time.work import work_of

BASE: dict[str, Any] = {
    "hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 12, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 4096, "dtype": "bfloat16",
}  # fmt: skip
ABSENT = "absent"
WINDOW = {"sliding_window": 64}
MHA = {"num_key_value_heads": ABSENT}
GPT = {
    **dict.fromkeys(BASE.keys() - {"vocab_size", "dtype"}, ABSENT),
    "n_embd": 128, "n_layer": 3, "n_head": 4, "n_positions": 512,
}  # fmt: skip
FALCON = {
    **MHA, "intermediate_size": ABSENT, "multi_query": True, "parallel_attn": True, "new_decoder_architecture": False
}  # fmt: skip
OPT = {**MHA, "intermediate_size": ABSENT, "ffn_dim": 320, "word_embed_proj_dim": 128}
GEMMA_4 = {**WINDOW, "head_dim": 32, "global_head_dim": 64}
GEMMA_3N = {
    **WINDOW, "head_dim": 32, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 900, "laurel_rank": 8,
}  # fmt: skip
ALL = "G" * 12

CLASSES: list[tuple[str, dict[str, Any], int, int, str]] = [
    # model_type, what differs from BASE; parameters of transformers 5.23's class on the meta device, numbers that its
    # cache takes for a token, and which layers keep a window (L), everything (G), nothing (-).
    ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 24}, 2_485_248, 1152, ALL),
    ("qwen2", {**WINDOW, "use_sliding_window": True, "max_window_layers": 5}, 2_227_584, 768, "GGGGGLLLLLLL"),
    ("qwen2", {**WINDOW, "use_sliding_window": True}, 2_227_584, 768, ALL),
    ("qwen2", WINDOW, 2_227_584, 768, ALL),
    ("qwen3", {**WINDOW, "head_dim": 32, "use_sliding_window": True, "max_window_layers": 5,
     "attention_bias": True}, 2_723_712, 1536, "GGGGGLLLLLLL"),
    ("qwen3", {}, 5_668_992, 6144, ALL),
    ("gemma", {"head_dim": 32, "attention_bias": True}, 2_594_944, 1536, ALL),
    ("gemma2", WINDOW, 9_473_152, 12288, "LGLGLGLGLGLG"),
    ("gemma3_text", {**WINDOW, "head_dim": 32, "sliding_window_pattern": 3}, 2_592_640, 1536, "LLGLLGLLGLLG"),
    ("gemma3_text", {**WINDOW, "head_dim": 32, "use_bidirectional_attention": True}, 2_592_640, 1536,
     "LLLLLGLLLLLG"),
    ("gemma4_text", {**GEMMA_4, "num_hidden_layers": 13, "hidden_size_per_layer_input": 16,
     "vocab_size_per_layer_input": 900, "num_kv_shared_layers": 6, "use_double_wide_mlp": True,
     "attention_bias": True}, 3_925_456, 1024, "LLLLLGL------"),
    ("gemma4_text", {**GEMMA_4, "hidden_size_per_layer_input": 0, "num_global_key_value_heads": 1,
     "attention_k_eq_v": True, "enable_moe_block": True, "num_experts": 8, "top_k_experts": 2,
     "moe_intermediate_size": 48}, 4_495_456, 1536, "LLLLLGLLLLLG"),
    ("gemma4_text", {**GEMMA_4, "hidden_size_per_layer_input": 0, "num_global_key_value_heads": 1}, 2_756_608,
     1792, "LLLLLGLLLLLG"),
    ("gemma4_text", {**WINDOW, "head_dim": 32, "hidden_size_per_layer_input": 0,
     "per_layer_config": {"05": {"head_dim": 64, "num_key_value_heads": 1}, "11": {"head_dim": 64,
     "num_key_value_heads": 1}}}, 2_723_840, 1536, "LLLLLGLLLLLG"),
    ("gemma4_unified_text", GEMMA_4, 2_756_608, 1792, "LLLLLGLLLLLG"),
    ("gemma3n_text", {**GEMMA_3N, "num_hidden_layers": 15, "altup_num_inputs": 4, "num_kv_shared_layers": 5},
     3_580_448, 1280, "LLLLGLLLLG-----"),
    ("gemma3n_text", {**GEMMA_3N, "intermediate_size": [320] * 5 + [640] * 5, "num_hidden_layers": 10,
     "altup_num_inputs": 3, "num_kv_shared_layers": 0, "attention_bias": True}, 3_102_200, 1280, "LLLLGLLLLG"),
    ("vaultgemma", WINDOW, 9_470_080, 12288, "LGLGLGLGLGLG"),
    ("cohere", {"use_qk_norm": True, "attention_bias": True}, 2_101_504, 768, ALL),
    ("cohere2", WINDOW, 2_095_744, 768, "LLLGLLLGLLLG"),
    ("cohere_compass_text", WINDOW, 2_095_744, 768, ALL),
    ("granite_swa", {**WINDOW, "attention_bias": True, "mlp_bias": True}, 2_110_432, 768, "GLLLGLLLGLLL"),
    ("cwm", WINDOW, 5_665_920, 6144, "GLLLGLLLGLLL"),
    ("olmo", {}, 2_222_080, 768, ALL),
    ("olmo2", {"attention_bias": True}, 2_231_040, 768, ALL),
    ("olmo3", WINDOW, 2_227_200, 768, "LLLGLLLGLLLG"),
    ("exaone4", WINDOW, 2_225_664, 768, "LLLGLLLGLLLG"),
    ("smollm3", {**WINDOW, "use_sliding_window": True, "no_rope_layers": [1, 1, 1, 0] * 3}, 2_097_280, 768,
     "GGGLGGGLGGGL"),
    ("starcoder2", {"use_bias": False}, 1_608_960, 768, ALL),
    ("starcoder2", {}, 1_618_176, 768, ALL),
    ("ernie4_5", {"use_bias": True}, 5_567_104, 6144, ALL),
    ("glm", {}, 5_684_352, 6144, ALL),
    ("glm4", {"attention_bias": False, "head_dim": 32}, 2_719_872, 1536, ALL),
    ("helium", {"head_dim": 16, "attention_bias": True, "mlp_bias": True}, 2_236_800, 768, ALL),
    ("seed_oss", {"attention_out_bias": True, "attention_bias": False, "mlp_bias": True}, 5_676_672, 6144, ALL),
    ("stablelm", {"use_qkv_bias": True, "qk_layernorm": True, "use_parallel_residual": True}, 2_229_632, 768, ALL),
    ("stablelm", {}, 2_228_480, 768, ALL),
    ("persimmon", {**MHA, "qk_layernorm": True}, 2_044_160, 3072, ALL),
    ("persimmon", {**MHA, "qk_layernorm": False}, 2_043_392, 3072, ALL),
    ("phi", {"qk_layernorm": True}, 1_744_872, 768, ALL),
    ("phi", {"tie_word_embeddings": True}, 1_616_104, 768, ALL),
    ("gptj", {**GPT, "n_inner": 100}, 532_116, 768, ALL),
    ("codegen", GPT, 849_768, 768, ALL),
    ("gpt_neox", {**MHA, "attention_bias": False}, 2_037_248, 3072, ALL),
    ("biogpt", MHA, 2_439_936, 3072, ALL),
    ("falcon", FALCON, 2_146_560, 384, ALL),
    ("falcon", {**FALCON, "multi_query": False, "parallel_attn": False, "bias": True}, 2_507_520, 3072, ALL),
    ("falcon", {**FALCON, "num_ln_in_parallel_attn": 2, "ffn_hidden_size": 777}, 2_963_712, 384, ALL),
    ("opt", {**OPT, "word_embed_proj_dim": 64, "do_layer_norm_before": False}, 2_392_064, 3072, ALL),
    ("opt", {**OPT, "enable_bias": False}, 2_428_416, 3072, ALL),
    ("opt", {**OPT, "layer_norm_elementwise_affine": False}, 2_433_536, 3072, ALL),
    ("opt", {**OPT, "_remove_final_layer_norm": True, "tie_word_embeddings": False}, 2_567_680, 3072, ALL),
    ("apertus", {"attention_bias": True}, 1_738_008, 768, ALL),
    ("arcee", {"mlp_bias": True, "attention_bias": True}, 1_742_976, 768, ALL),
    ("bitnet", {}, 2_230_656, 768, ALL),
    ("diffllama", {"head_dim": 32}, 2_718_336, 1536, ALL),
    ("jais2", {}, 1_746_176, 768, ALL),
    ("jais2", {"attention_bias": False, "mlp_bias": False}, 1_736_960, 768, ALL),
    ("nanochat", {}, 1_730_560, 768, ALL),
    ("hyperclovax", {}, 2_228_352, 768, ALL),
    ("hyperclovax", {"use_post_norm": False}, 2_225_280, 768, ALL),
    ("nemotron", {"head_dim": 16, "attention_bias": True}, 1_740_800, 768, ALL),
    ("hunyuan_v1_dense", {"head_dim": 16, "attention_bias": True}, 2_229_504, 768, ALL),
    ("iquestcoder", {}, 5_665_920, 6144, ALL),
    ("ministral", {**WINDOW, "head_dim": 16}, 2_225_280, 768, "LLLLLLLLLLLL"),
    ("ministral3", {}, 5_665_920, 6144, ALL),
    ("beam", {**WINDOW, "mlp_layer_types": ["dense"] + ["sparse"] * 11, "num_experts": 4,
     "num_experts_per_tok": 2, "moe_intermediate_size": 64}, 6_980_364, 6144, "LLLLLGLLLLLG"),
    ("molmo2_text", {"additional_vocab_size": 10, "head_dim": 32, "qk_norm_type": "olmo", "attention_bias": True},
     2_726_528, 1536, ALL),
    ("molmo2_text", {"additional_vocab_size": 10, "head_dim": 32, "qk_norm_type": "qwen3"}, 2_718_848, 1536, ALL),
    ("muse_glimmer_text", {**WINDOW, "head_dim": 32,
     "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 3}, 3_113_088, 1536, "LLLGLLLGLLLG"),
    ("glm4v_text", {}, 2_230_656, 768, ALL),
    ("glm_ocr_text", {}, 2_228_352, 768, ALL),
    ("paddleocr_vl_text", {"head_dim": 32, "use_bias": True}, 2_604_160, 1536, ALL),
    ("cosmos3_edge_text", {"head_dim": 128, "mlp_bias": True}, 5_179_776, 6144, ALL),
]  # fmt: skip


def read(model_type: str, **changes: Any) -> Model:
    fields = {"model_type": model_type, **BASE, **changes}
    return read_config({name: value for name, value in fields.items() if value != ABSENT}, model_type)


def letters(model: Model) -> str:
    found = ""
    for run in model.layers:
        assert isinstance(run.attention, FullAttention)
        kept = "L" if run.attention.window_tokens else "G"
        found += run.count * (kept if run.attention.stores_kv else "-")
    return found


@pytest.mark.parametrize(("model_type", "changes", "parameters", "numbers", "kinds"), CLASSES)
def test_as_transformers_class(
    model_type: str, changes: dict[str, Any], parameters: int, numbers: int, kinds: str
) -> None:
    model = read(model_type, **changes)
    assert model.parameters == parameters
    assert model.kv_bytes_per_token("bf16") == 2 * numbers
    assert letters(model) == (kinds[: model.layer_count] if kinds == ALL else kinds)
    assert not any("not known" in said for said in model.assumed)


PUBLISHED: dict[str, tuple[str, dict[str, Any], int]] = {
    # Totals of the safetensors, as their pages on the Hub have them.
    "facebook/opt-350m": (
        "opt", {**OPT, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "ffn_dim": 4096,
                "vocab_size": 50_272, "max_position_embeddings": 2048, "word_embed_proj_dim": 512,
                "do_layer_norm_before": False, "enable_bias": True, "layer_norm_elementwise_affine": True},
        331_196_416),
    "microsoft/phi-2": (
        "phi", {**MHA, "hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32,
                "intermediate_size": 10_240, "vocab_size": 51_200, "qk_layernorm": False}, 2_779_683_840),
    "EleutherAI/gpt-j-6b": (
        "gptj", {**GPT, "n_embd": 4096, "n_layer": 28, "n_head": 16, "vocab_size": 50_400}, 6_050_882_784),
    "Salesforce/codegen-350M-mono": (
        "codegen", {**GPT, "n_embd": 1024, "n_layer": 20, "n_head": 16, "vocab_size": 51_200}, 356_712_448),
    "stabilityai/stablelm-2-12b": (
        "stablelm", {"hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 32,
                     "num_key_value_heads": 8, "intermediate_size": 13_824, "vocab_size": 100_352,
                     "use_qkv_bias": False, "qk_layernorm": True, "use_parallel_residual": True}, 12_143_185_920),
    "tiiuae/falcon-40b": (
        "falcon", {**FALCON, "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128,
                   "vocab_size": 65_024, "new_decoder_architecture": True, "num_kv_heads": 8}, 41_303_293_952),
    "allenai/OLMo-1B-hf": (
        "olmo", {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 16,
                 "intermediate_size": 8192, "vocab_size": 50_304, "tie_word_embeddings": True}, 1_176_764_416),
    "microsoft/bitnet-b1.58-2B-4T": (
        "bitnet", {"hidden_size": 2560, "num_hidden_layers": 30, "num_attention_heads": 20, "num_key_value_heads": 5,
                   "intermediate_size": 6912, "vocab_size": 128_256, "tie_word_embeddings": True}, 2_412_820_480),
    "openbmb/MiniCPM-2B-sft-bf16": (
        "minicpm", {**MHA, "hidden_size": 2304, "num_hidden_layers": 40, "num_attention_heads": 36,
                    "intermediate_size": 5760, "vocab_size": 122_753, "scale_depth": 1.4}, 2_724_880_896),
    "google/vaultgemma-1b": (
        "vaultgemma", {**WINDOW, "hidden_size": 1152, "num_hidden_layers": 26, "num_attention_heads": 4,
                       "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 6912, "vocab_size": 256_000},
        1_038_741_120),
    "swiss-ai/Apertus-8B": (
        "apertus", {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
                    "intermediate_size": 21_504, "vocab_size": 131_072}, 8_053_338_176),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_totals_are_the_published_ones(name: str) -> None:
    model_type, changes, parameters = PUBLISHED[name]
    assert read(model_type, **changes).parameters == parameters


# --- which projections have a bias ----------------------------------------------------------------------------------

QKV, OUT = 12 * (128 + 2 * 32), 12 * 128


@pytest.mark.parametrize(
    ("model_type", "changes", "biases"),
    [
        ("llama", {"attention_bias": True}, QKV + OUT),
        ("llama", {"qkv_bias": True}, QKV),
        ("qwen2", {"attention_bias": False}, 0),
        ("qwen2", {"attention_bias": True}, 0),
        ("qwen2_moe", {"qkv_bias": False}, -QKV),
        ("glm", {"head_dim": 16, "attention_bias": True}, 0),
        ("gpt_oss", {"attention_bias": False, "head_dim": 16}, -QKV - OUT),
        ("seed_oss", {"head_dim": 16, "attention_out_bias": True}, OUT),
        ("ernie4_5", {"head_dim": 16, "use_bias": True}, QKV + OUT + 12 * (2 * 320 + 128)),
    ],
)
def test_what_a_bias_field_is_about(model_type: str, changes: dict[str, Any], biases: int) -> None:
    silent = {name: value for name, value in changes.items() if name == "head_dim"}
    assert read(model_type, **changes).parameters - read(model_type, **silent).parameters == biases


# --- embeddings of every layer --------------------------------------------------------------------------------------

E2B = {
    **GEMMA_4, "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35, "num_key_value_heads": 1,
    "head_dim": 256, "global_head_dim": 512, "vocab_size": 262_144, "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256, "num_kv_shared_layers": 20, "use_double_wide_mlp": True,
    "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
}  # fmt: skip


def test_a_table_that_is_looked_up_is_not_passed() -> None:
    """Gemma 4 E2B: an effective 2.3 B of parameters, by its makers."""
    model = read("gemma4_text", **E2B)
    assert model.parameters - model.active_parameters == 262_144 * 35 * 256
    assert model.active_parameters == pytest.approx(2.3e9, rel=0.01)


def test_the_table_lies_where_the_embeddings_are() -> None:
    model = read("gemma4_text", **E2B)
    first, second = ranks(Deployment(model=model, gpu=catalogue.gpu("h200"), gpus=2, pp=2))
    assert first.weights_bytes - second.weights_bytes > 262_144 * 35 * 256


def test_products_of_every_layers_embedding_are_counted() -> None:
    """Two of hidden × 256 in each layer, and one of hidden × (35 · 256) before them."""

    def flops(width: int) -> float:
        model = read("gemma4_text", **{**E2B, "hidden_size_per_layer_input": width})
        work = work_of(Deployment(model=model, gpu=catalogue.gpu("h200"), gpus=1))
        return float((work.count * work.flops).sum())

    assert flops(256) - flops(0) == pytest.approx(2 * 3 * 35 * 1536 * 256)


# --- refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_type", "changes", "said"),
    [
        ("gemma2", {"layer_types": ["sliding_attention"] * 12}, "no sliding_window says how long it is"),
        ("gemma4_text", {**GEMMA_4, "per_layer_config": {"3": {"skip": ["mlp"]}}}, "[3]: skip is not understood"),
        ("gemma4_text", {**GEMMA_4, "per_layer_config": {"3": 5}}, "per_layer_config[3]: must be an object"),
        ("arcee", {"intermediate_size": ABSENT}, "no intermediate_size"),
        ("doge", {}, "is not read here"),
        ("hrm_text", {}, "layers that run several times"),
        ("mllama_text_model", {}, "cross attention to images"),
        ("diffusion_gemma_text", {}, "by diffusion"),
    ],
)
def test_what_cannot_be_read_is_refused(model_type: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        read(model_type, **changes)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_layer_of_a_number_beyond_all_numbers_is_none() -> None:
    """Python makes no number of more than 4,300 digits."""
    own = {"03": {"head_dim": 64}}
    with_it = read("gemma4_text", **{**GEMMA_4, "per_layer_config": own | {"9" * 5000: {"head_dim": 128}}})
    assert with_it.layers == read("gemma4_text", **{**GEMMA_4, "per_layer_config": own}).layers
