"""Text models inside other configs: what they leave out, whose word counts, and the towers beside them.

The numbers are those of transformers 5.23's classes, built on the meta device as `transformers_truth.py` does.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from loadstone.catalogue.architecture.attention import FullAttention, LinearAttention
from loadstone.catalogue.config.reader import read_config
from loadstone.core.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
TRANSFORMERS = ROOT / ".cache/engines/transformers/bin/python"


def nested(outer: str, inner: str, text: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "model_type": outer,
        "torch_dtype": "bfloat16",
        "text_config": {"model_type": inner, **(text or {})},
    } | fields


Left = tuple[str, str, dict[str, Any], bool, int, float, list[int | None]]
LEFT_OUT: list[Left] = [
    # outer, inner, what differs from the class, tied, parameters of the text model, KV numbers per token, windows
    ("llava", "llama", {"vocab_size": 32_064}, False, 869_822_464, 24_576, [None] * 3),
    ("idefics2", "mistral", {}, False, 916_484_096, 6144, [4096] * 3),
    ("mistral3", "mistral", {"hidden_size": 5120, "head_dim": 128, "sliding_window": None}, True, 981_765_120, 6144,
     [None] * 3),
    ("llava_onevision", "qwen2", {"hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2,
     "intermediate_size": 4864}, False, 317_007_360, 768, [None] * 3),
    ("internvl", "qwen2", {}, True, 1_635_319_808, 24_576, [None] * 3),
    ("paligemma", "gemma", {"vocab_size": 257_216}, True, 1_620_661_248, 24_576, [None] * 3),
    ("gemma3", "gemma3_text", {"num_hidden_layers": 7}, True, 1_149_195_008, 14_336, [4096] * 5 + [None, 4096]),
    ("aya_vision", "cohere2", {"num_hidden_layers": 5}, True, 6_207_619_072, 81_920, [4096] * 3 + [None, 4096]),
    ("qwen2_vl", "qwen2_vl_text", {}, False, 5_124_478_976, 6144, [None] * 3),
    ("qwen3_vl", "qwen3_vl_text", {"num_key_value_heads": 8}, False, 2_182_116_096, 6144, [None] * 3),
    ("qwen3_vl_moe", "qwen3_vl_moe_text", {}, False, 2_230_180_608, 12_288, [None] * 3),
    ("lighton_ocr", "qwen3", {}, True, 1_635_283_712, 24_576, [None] * 3),
    ("glm4v", "glm4v_text", {}, False, 1_853_425_152, 1536, [None] * 3),
    ("glm_ocr", "glm_ocr_text", {}, False, 168_834_048, 3072, [None] * 3),
    ("hunyuan_vl", "hunyuan_vl_text", {"num_hidden_layers": 4, "head_dim": 128}, True, 2_001_241_088, 32_768,
     [None] * 4),
    ("blip-2", "opt", {}, True, 61_448_448, 4608, [None] * 3),
    ("cosmos3_edge", "cosmos3_edge_text", {}, False, 687_880_192, 6144, [None] * 3),
    ("molmo2", "molmo2_text", {"qk_norm_type": "olmo"}, False, 1_824_041_984, 6144, [None] * 3),
]  # fmt: skip


@pytest.mark.parametrize(("outer", "inner", "text", "tied", "parameters", "numbers", "windows"), LEFT_OUT)
def test_what_a_text_config_leaves_out_is_as_in_its_class(
    outer: str, inner: str, text: dict[str, Any], tied: bool, parameters: int, numbers: int, windows: list[int | None]
) -> None:
    """Saved as transformers before 4.52 did: what differs from the class, three layers among it."""
    config = nested(outer, inner, {"num_hidden_layers": 3, **text}, tie_word_embeddings=tied)
    model = read_config(config, outer)
    assert model.parameters == parameters
    assert model.kv_bytes_per_token("bf16") / 2 == numbers
    attention = [run.attention for run in model.layers for _ in range(run.count)]
    assert [each.window_tokens for each in attention if isinstance(each, FullAttention)] == windows
    assert any(said.startswith("left out, and so as in the class") for said in model.assumed)


def test_layers_without_a_cache_are_placed_by_the_class() -> None:
    """Qwen 3.5: each fourth layer has a KV cache; 32 heads of 128 by 128 elsewhere."""
    config = nested("qwen3_5_moe", "qwen3_5_moe_text", {"num_hidden_layers": 5}, tie_word_embeddings=False)
    model = read_config(config, "qwen")
    assert model.parameters == 5_224_170_752
    states = [run.attention for run in model.layers for _ in range(run.count)]
    sizes = [s.heads * s.key_dim * s.value_dim if isinstance(s, LinearAttention) else 0 for s in states]
    assert sizes == [524_288, 524_288, 524_288, 0, 524_288]


def test_a_field_by_its_other_name_is_not_left_out() -> None:
    """Qwen3-VL's published files say num_experts; transformers saves num_local_experts."""
    said = {"num_hidden_layers": 3, "num_experts": 128}
    model = read_config(nested("qwen3_vl_moe", "qwen3_vl_moe_text", said), "qwen")
    assert [run.mlp.experts for run in model.layers if hasattr(run.mlp, "experts")] == [128]
    said = {"num_hidden_layers": 3, "num_local_experts": 16}
    model = read_config(nested("qwen3_vl_moe", "qwen3_vl_moe_text", said), "qwen")
    assert [run.mlp.experts for run in model.layers if hasattr(run.mlp, "experts")] == [16]


def test_what_is_said_stays() -> None:
    """null is said too; a part without a model_type is its maker's own, and gets nothing."""
    model = read_config(nested("idefics2", "mistral", {"sliding_window": None}), "x")
    assert [run.attention.window_tokens for run in model.layers if isinstance(run.attention, FullAttention)] == [None]
    with pytest.raises(InputError, match="no hidden_size"):
        read_config({"model_type": "llava", "text_config": {"vocab_size": 32_000}}, "x")


def test_what_a_class_says_and_is_not_understood_is_refused() -> None:
    """Mllama's cross-attention layers, which its text_config leaves out."""
    with pytest.raises(InputError, match="cross attention to images"):
        read_config(nested("mllama", "mllama_text_model", {"num_hidden_layers": 4}), "x")


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
        ("blip-2", "opt", (True, False), False),
        ("cosmos3_edge", "cosmos3_edge_text", (True, True), False),
    ],
)
def test_whose_word_on_tied_embeddings_counts(
    outer: str, inner: str, said: tuple[bool | None, bool | None], tied: bool
) -> None:
    whole, text = said
    config = nested(outer, inner, {"num_hidden_layers": 4} | ({} if text is None else {"tie_word_embeddings": text}))
    config |= {} if whole is None else {"tie_word_embeddings": whole}
    model = read_config(config, outer)
    assert model.tied_embeddings is tied
    differ = None not in said and whole != text
    assert any("tie_word_embeddings differs from text_config's" in each for each in model.assumed) is differ
    assert any("tie_word_embeddings absent" in each for each in model.assumed) is (said == (None, None))


def test_a_text_model_alone_has_its_own_word() -> None:
    """Qwen3_5ForCausalLM is built from the text_config; …ForConditionalGeneration is not."""
    config = nested("qwen3_5", "qwen3_5_text", {"num_hidden_layers": 4, "tie_word_embeddings": True})
    config |= {"tie_word_embeddings": False}
    alone = read_config(config | {"architectures": ["Qwen3_5ForCausalLM"]}, "x")
    whole = read_config(config | {"architectures": ["Qwen3_5ForConditionalGeneration"]}, "x")
    assert (alone.tied_embeddings, whole.tied_embeddings) == (True, False)


TOWERS: list[tuple[str, str, str, dict[str, Any], int]] = [
    ("gemma3", "gemma3_text", "siglip_vision_model", {}, 94_654_464),
    ("paligemma", "gemma", "siglip_vision_model", {"hidden_size": 1152, "intermediate_size": 4096, "patch_size": 14,
     "num_hidden_layers": 27, "num_attention_heads": 16, "vision_use_head": False, "projection_dim": 2048},
     401_858_816),
    ("llava", "llama", "clip_vision_model", {"hidden_size": 1024, "image_size": 336, "intermediate_size": 4096,
     "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14}, 324_487_168),
    ("mistral3", "mistral", "pixtral", {"patch_size": 14}, 428_472_320),
    ("idefics3", "llama", "idefics3_vision", {}, 171_270_144),
    ("internvl", "qwen2", "internvl_vision", {}, 337_509_376),
    ("kimi_k25", "deepseek_v3", "kimi_k25_vision", {}, 471_143_920),
    ("qwen2_vl", "qwen2_vl_text", "qwen2_vl_vision", {}, 675_759_104),
    ("qwen2_5_vl", "qwen2_5_vl_text", "qwen2_5_vl_vision", {}, 3_083_025_152),
    ("qwen3_vl", "qwen3_vl_text", "qwen3_vl_vision", {}, 566_949_104),
    ("qwen3_5", "qwen3_5_text", "qwen3_5_vision", {}, 453_650_672),
    ("glm4v", "glm4v_text", "glm4v_vision", {}, 892_498_432),
    ("glm_ocr", "glm_ocr_text", "glm_ocr_vision", {}, 434_120_192),
    ("llama4", "llama4_text", "llama4_vision_model", {}, 455_178_240),
    ("video_llava", "llama", "clip_vision_model", {"hidden_size": 1024, "intermediate_size": 4096, "patch_size": 14,
     "num_attention_heads": 16, "num_hidden_layers": 24, "image_size": 224}, 627_339_264),
    ("minicpmv4_6", "qwen3_5_text", "minicpmv4_6_vision", {}, 157_399_552),
]  # fmt: skip


@pytest.mark.parametrize(("outer", "inner", "tower", "vision", "parameters"), TOWERS)
def test_towers_and_projectors(outer: str, inner: str, tower: str, vision: dict[str, Any], parameters: int) -> None:
    """With the classes' default text models."""
    config = nested(outer, inner, vision_config={"model_type": tower, **vision})
    model = read_config(config, outer)
    assert model.vision_parameters == parameters
    assert f"vision tower counted from vision_config: about {parameters / 1e6:.0f} M parameters" in model.assumed


def test_a_tower_that_hears() -> None:
    heard = {"model_type": "qwen2_audio_encoder"}
    model = read_config(nested("qwen2_audio", "qwen2", audio_config=heard), "x")
    assert model.vision_parameters == 642_215_936
    assert "audio tower counted from audio_config: about 642 M parameters" in model.assumed


def test_a_decoder_of_codebooks_is_refused() -> None:
    """Moshi: read as Llama-like, it was half as large again."""
    with pytest.raises(InputError, match="a second decoder that runs at every token"):
        read_config({"model_type": "moshi", "hidden_act": "silu"}, "x")


def test_what_is_not_counted_is_named() -> None:
    """Parts of other kinds, towers whose sizes are not said; a tower of an unknown kind is an estimate."""
    vision = {"model_type": "newest_vision", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128,
              "patch_size": [14, 14], "image_size": 28}  # fmt: skip
    model = read_config(nested("newest", "llama", vision_config=vision, qformer_config={"hidden_size": 8}), "x")
    assert any("of kinds not known here: roughly estimated from vision_config" in said for said in model.assumed)
    assert "qformer_config: that part is not counted" in model.assumed
    model = read_config(nested("newest", "llama", vision_config={"patch_size": [7, 3]}, audio_config={"x": 1}), "x")
    assert model.vision_parameters == 0
    assert "vision_config does not say enough: the vision tower is not counted" in model.assumed
    assert "audio_config: the tower is not counted" in model.assumed


@pytest.mark.slow
@pytest.mark.skipif(not TRANSFORMERS.exists(), reason="no transformers: scripts/engines puts one into .cache/engines")
def test_the_table_of_what_is_left_out_is_up_to_date(tmp_path: Path) -> None:
    script, made = ROOT / "tests/catalogue/transformers_defaults.py", tmp_path / "made.json"
    subprocess.run([str(TRANSFORMERS), str(script), str(made)], check=True, timeout=300, capture_output=True)
    assert made.read_text("utf-8") == (ROOT / "src/loadstone/catalogue/text_defaults.json").read_text("utf-8")
