"""Models that vLLM and SGLang serve and transformers has no class for: read from the configs their makers publish."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadstone.catalogue import parse_deployment
from loadstone.catalogue.architecture.linear import LinearAttention
from loadstone.catalogue.architecture.model import FullAttention, Model
from loadstone.catalogue.config.reader import read_config
from loadstone.core.errors import InputError
from loadstone.predict.engine_rules import ranks
from loadstone.predict.sizing.check import contradictions
from loadstone.predict.step_time.work import work_of

CONFIGS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("served_configs.json").read_text())

# By tests/catalogue/vllm_truth.py from vLLM 0.32's own classes: parameters of the text model; numbers that a token
# adds to the cache, of all layers together; caches with a window; numbers of all recurrent states.
VLLM = {
    "orion": (21_242_880, 2048, 0, 0),
    "internlm2": (21_238_272, 2048, 0, 0),
    "internlm3": (21_238_272, 2048, 0, 0),
    "exaone": (21_238_272, 2048, 0, 0),
    "solar": (21_238_272, 2048, 4, 0),
    "minicpm": (21_238_272, 2048, 0, 0),
    "minicpm_moe": (87_314_944, 2048, 0, 0),
    "plamo3": (21_242_880, 2048, 3, 0),
    "iquestcoder": (21_238_272, 2048, 0, 0),
    "iquestloopcoder": (21_240_352, 4096, 4, 0),
    "mimo": (21_242_368, 2048, 0, 0),
    "telechat2": (22_290_944, 4096, 0, 0),
    "telechat2_gqa": (20_718_080, 1024, 0, 0),
    "telechat3": (21_238_272, 2048, 0, 0),
    "teleflm": (21_238_272, 2048, 0, 0),
    "chatglm": (20_717_056, 1024, 0, 0),
    "chatglm4": (20_717_056, 1024, 0, 0),
    "dbrx": (49_566_208, 2048, 0, 0),
    "bailing_moe": (39_621_120, 1024, 0, 0),
    "bailing_moe_v2": (33_715_248, 1024, 0, 0),
    "bailing_moe_v2_type": (33_715_248, 1024, 0, 0),
    "bailing_moe_v2_5": (67_179_504, 320, 0, 196_608),
    "bailing_moe_v3": (68_813_472, 320, 0, 196_608),
    "sarvam_moe": (33_715_248, 1024, 0, 0),
    "sarvam_mla": (34_567_216, 640, 0, 0),
    "param2moe": (33_715_248, 1024, 0, 0),
    "pangu_embedded": (21_244_416, 2048, 0, 0),
    "pangu_ultra_moe": (33_982_256, 640, 0, 0),
    "pangu_pro_moe_v2": (34_511_664, 2048, 0, 0),
    "step3_text": (23_741_696, 512, 0, 0),
    "step3_vl": (23_741_696, 512, 0, 0),
    "k2_horizon_mova": (27_026_980, 2048, 0, 0),
    "k2_horizon": (25_841_176, 2048, 0, 0),
    "mimo_v2_flash": (62_653_088, 4480, 6, 0),
    "mimo_v2": (62_653_088, 4480, 6, 0),
    "deepseek": (35_418_624, 2048, 0, 0),
    "kimi_vl": (35_746_864, 640, 0, 0),
}


def read(name: str, **changes: Any) -> Model:
    return read_config({**CONFIGS[name], **changes}, name)


@pytest.mark.parametrize("name", VLLM)
def test_weighs_and_caches_what_vllms_class_does(name: str) -> None:
    model = read(name)
    runs = model.layers
    windows = sum(run.count for run in runs if getattr(run.attention, "window_tokens", None))
    states = sum(
        run.count * run.attention.heads * run.attention.key_dim * run.attention.value_dim
        for run in runs
        if isinstance(run.attention, LinearAttention)
    )
    text = model.parameters - model.vision_parameters
    assert (text, model.kv_bytes_per_token("bf16") / 2, windows, states) == VLLM[name]


# Also by that script, with one field changed.
@pytest.mark.parametrize(
    ("name", "changed", "parameters"),
    [
        ("bailing_moe_v2", {"moe_shared_expert_intermediate_size": 512}, 34_894_896),
        ("bailing_moe_v2", {"use_qk_norm": False}, 33_714_736),
        ("bailing_moe_v2_5", {"num_shared_experts": 2}, 69_932_016),
        ("chatglm", {"add_bias_linear": True}, 20_733_440),
        ("chatglm", {"multi_query_attention": False}, 22_292_992),
        ("chatglm", {"rmsnorm": False}, 20_721_664),
        ("mimo", {"attention_bias": False}, 21_242_368),
        ("pangu_embedded", {"bias": False}, 21_238_272),
        ("pangu_pro_moe_v2", {"qkv_bias": False}, 34_507_568),
        ("pangu_pro_moe_v2", {"param_sink_with_value": False}, 34_380_592),
        ("pangu_ultra_moe", {"sandwich_norm": False}, 33_978_160),
        ("telechat3", {"attention_bias": True}, 21_244_416),
        ("solar", {"attention_bias": True}, 21_244_416),
        ("k2_horizon", {"query_key_norm": False}, 25_838_104),
        ("k2_horizon", {"moe_gate_bias": False}, 25_841_152),
        ("step3_text", {"share_q_dim": 384}, 24_528_896),
        ("pangu_pro_moe_v2", {"v_channels": 128}, 36_216_624),
    ],
)
def test_flags_of_their_own(name: str, changed: dict[str, Any], parameters: int) -> None:
    assert read(name, **changed).parameters == parameters


def test_step3_passes_queries_through_a_low_rank_and_has_one_kv_head() -> None:
    run = read("step3_text", moe_layers_enum="2,3").layers
    attention = run[0].attention
    assert isinstance(attention, FullAttention)
    assert [each.count for each in run] == [2, 2]
    assert (attention.q_rank, attention.kv_heads, attention.heads) == (192, 1, 8)
    # hidden 512 to 192, its norm, 192 to 8 heads of 64, K and V of one, and the output
    assert (
        sum(each.parameters for each in attention.weights(512)) == 512 * 192 + 192 + 192 * 512 + 2 * 512 * 64 + 512**2
    )


def test_lightning_layers_of_ling_2_5_stand_between_layers_with_latents() -> None:
    model = read("bailing_moe_v2_5")
    kinds = [type(run.attention).__name__ for run in model.layers for _ in range(run.count)]
    assert kinds == (["LinearAttention"] * 3 + ["LatentAttention"]) * 2
    assert model.kv_bytes_per_token("bf16") == 2 * (128 + 32) * 2
    assert model.state_bytes == 6 * 8 * 64 * 64 * 4


def test_of_value_projections_a_token_passes_those_it_takes() -> None:
    plain, chosen = read("k2_horizon"), read("k2_horizon_mova")
    # 3 of the 4 layers have experts: one projection of 512 by 4 heads of 64 more, and a router of 4 with its bias
    assert chosen.active_parameters - plain.active_parameters == 3 * (512 * 256 + 512 * 4 + 4)


# --- layers that run several times ------------------------------------------------------------------------------


def test_loops_weigh_once_and_cache_every_time() -> None:
    once, twice = read("iquestcoder"), read("iquestcoder", model_type="nanbeige", num_loops=3)
    assert twice.parameters == once.parameters
    assert twice.active_parameters == once.active_parameters
    assert twice.weights_bytes() == once.weights_bytes()
    assert twice.kv_bytes_per_token("bf16") == 3 * once.kv_bytes_per_token("bf16")
    assert twice.layer_count == 12


def test_loops_read_their_weights_every_time(tmp_path: Path) -> None:
    read_bytes, held_bytes = [], []
    for loops in (1, 3):
        file = tmp_path / str(loops) / "config.json"
        file.parent.mkdir()
        file.write_text(json.dumps({**CONFIGS["iquestcoder"], "model_type": "nanbeige", "num_loops": loops}))
        deployment = parse_deployment(f"{file.parent}@1xh100")
        work = work_of(deployment)
        read_bytes.append((work.weights * work.count).sum() - 2 * 8448 * 512)
        held_bytes.append(ranks(deployment)[0].weights_bytes)
    assert read_bytes[1] == 3 * read_bytes[0]
    assert held_bytes[1] == held_bytes[0]


def test_loops_are_not_cut_into_stages(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["iquestloopcoder"]))
    found = contradictions(parse_deployment(f"{tmp_path}@2xh100/tp1,pp2"))
    assert found == ["pp2: layers that share weights cannot be cut into stages; pp1 works"]


def test_later_loops_of_the_loop_coder_have_windows() -> None:
    first, second = read("iquestloopcoder", loop_window_size=32).layers
    assert (first.attention.window_tokens, second.attention.window_tokens) == (None, 32)  # type: ignore[union-attr]
    assert (first.shared, second.shared) == (False, True)


def test_loops_are_bounded() -> None:
    with pytest.raises(InputError, match="17 loops; 16 at most"):
        read("iquestcoder", model_type="nanbeige", num_loops=17)


# --- by hand ----------------------------------------------------------------------------------------------------


def test_grok_2_by_its_published_sizes() -> None:
    """Its config says `git`, which is another's. 270 billion as xAI says it, 115 of them active."""
    model = read_config(
        {
            "architectures": ["Grok1ForCausalLM"],
            "model_type": "git",
            "torch_dtype": "bfloat16",
            "vocab_size": 131_072,
            "hidden_size": 8192,
            "intermediate_size": 32_768,
            "moe_intermediate_size": 16_384,
            "num_experts_per_tok": 2,
            "num_local_experts": 8,
            "residual_moe": True,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "num_hidden_layers": 64,
            "head_dim": 128,
            "max_position_embeddings": 131_072,
            "attn_temperature_len": 1024,
            "sliding_window_size": -1,
            "global_attn_every_n": 1,
        },
        "grok-2",
    )
    attention = 2 * 8192 * 8192 + 2 * 8192 * 1024
    mlps = 8192 * 8 + 8 * 3 * 8192 * 16_384 + 3 * 8192 * 32_768
    assert model.parameters == 64 * (attention + mlps + 4 * 8192) + 2 * 131_072 * 8192 + 8192
    assert round(model.parameters / 1e9, 1) == 269.5


def test_the_first_qwen_says_the_width_of_gate_and_up_together() -> None:
    """Qwen-7B: 7,721,324,544 parameters in its checkpoint's index."""
    config = {
        "architectures": ["QWenLMHeadModel"], "model_type": "qwen", "torch_dtype": "bfloat16", "hidden_size": 4096,
        "intermediate_size": 22_016, "kv_channels": 128, "num_attention_heads": 32, "num_hidden_layers": 32,
        "vocab_size": 151_936, "seq_length": 8192, "no_bias": True, "tie_word_embeddings": False,
    }  # fmt: skip
    assert read_config(config, "qwen-7b").parameters == 7_721_324_544


def test_molmos_width_is_halved_and_its_table_has_rows_for_images() -> None:
    """21,307,904 by vLLM's class: Llama's, biases on Q, K, V, and 128 rows more."""
    model = read(
        "iquestcoder", model_type="molmo", intermediate_size=3072, embedding_size=8448, vocab_size=8384,
        attention_bias=None, qkv_bias=True, attention_layer_norm=False, weight_tying=False, layer_norm_type="rms",
    )  # fmt: skip
    assert model.parameters == 21_307_904


@pytest.mark.parametrize(
    ("model_type", "more", "parameters"),
    [
        ("minicpmv", {"version": 2.6}, 21_242_368),  # Qwen2: biases
        ("minicpmv", {"version": "4.0"}, 21_238_272),
        ("minicpmv", {"version": 4.5}, 21_238_784),  # Qwen3: norms of 4 layers' queries and keys, 64 each
        ("minicpmo", {"version": 4.5}, 21_238_784),
        ("Keye", {}, 21_238_784),
        ("kimi_audio", {}, 21_242_368),
        ("phi3_v", {"embd_layer": {"embedding_cls": "image"}}, 21_238_272),
        ("dots_ocr", {}, 21_242_368),
        ("xverse", {}, 21_238_272),
    ],
)
def test_the_text_model_of_another_type(model_type: str, more: dict[str, Any], parameters: int) -> None:
    plain = {key: value for key, value in CONFIGS["iquestcoder"].items() if key not in ("attention_bias", "mlp_bias")}
    assert read_config({**plain, "model_type": model_type, **more}, model_type).parameters == parameters


def test_gigachat_3_5_counted_by_hand() -> None:
    """From SGLang 0.5.23's gigachat35.py: gated norms before each half and after it, their gates of rank 16;
    gated delta net, and latent attention with a gate of its own in layers 3, 7 and 11.
    """
    config = {
        "architectures": ["GigaChat35ForCausalLM"], "model_type": "gigachat3_5", "torch_dtype": "bfloat16",
        "vocab_size": 128_256, "hidden_size": 1280, "intermediate_size": 8960, "moe_intermediate_size": 896,
        "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 16,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "head_dim": 64, "n_routed_experts": 64, "n_shared_experts": 2,
        "num_experts_per_tok": 6, "moe_layer_freq": 1, "first_k_dense_replace": 1, "topk_method": "noaux_tc",
        "linear_attention_type": "Qwen3NextGatedDeltaNet", "full_attention_layers": [3, 7, 11],
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_num_key_heads": 8, "linear_num_value_heads": 16, "norm_type": "ZeroCenteredGatedNorm",
        "layernorm_type": "pre_post", "gated_attention": True,
    }  # fmt: skip
    model = read_config(config, "gigachat")
    h = 1280
    latent = h * 1536 + 1536 + 1536 * 16 * 192 + h * 576 + 512 + 512 * 16 * 256 + 2 * 16 * 128 * h + 32 * (1536 + 512)
    delta = h * (2 * 8 * 128 + 16 * 128) + h * 16 * 128 + 2 * h * 16 + 4 * 4096 + 2 * 16 + 128 + 2048 * h
    experts = h * 64 + 64 + 64 * 3 * h * 896 + 3 * h * 2 * 896
    norm = h + 2 * 16 * h
    total = 3 * latent + 9 * delta + 12 * 4 * norm + 11 * experts + 3 * h * 8960 + 2 * 128_256 * h + norm
    assert model.parameters == total == 3_002_996_064
    assert model.kv_bytes_per_token("bf16") == 3 * 576 * 2
    with pytest.raises(InputError, match="layernorm_type post"):
        read_config({**config, "layernorm_type": "post"}, "gigachat")


def test_iquest_q1_counted_by_hand() -> None:
    """From SGLang 0.5.23's iquest_q1.py: 3 norms in each layer and one more in the first, a sink as wide as a key for
    each KV head, experts in all layers but the first; kinds of layers in blocks.
    """
    config = {
        "architectures": ["IQuestQ1ForCausalLM"], "model_type": "iquest_q1", "dtype": "bfloat16",
        "vocab_size": 160_000, "hidden_size": 3072, "dense_intermediate_size": 12_288, "intermediate_size": 1536,
        "num_hidden_layers": 12, "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 524_288, "sliding_window": 4096, "use_hybrid_layers": True,
        "use_sliding_window": True, "first_layers_types": ["full_attention"],
        "hybrid_layers_types_block": ["full_attention", *["sliding_attention"] * 3], "num_hybrid_layers_block": 2,
        "last_layers_types": ["full_attention"] * 3, "mlp_only_layers": [0], "num_experts": 256,
        "num_experts_per_tok": 8, "enable_sink_attention": True, "tie_word_embeddings": False,
    }  # fmt: skip
    model = read_config(config, "q1")
    h = 3072
    attention = 2 * h * 48 * 128 + 2 * h * 8 * 128 + 2 * 128 + 8 * 128
    experts = h * 256 + 256 * 3 * h * 1536
    assert model.parameters == 12 * (attention + 3 * h) + 11 * experts + 3 * h * 12_288 + 2 * h + 2 * 160_000 * h
    windows = [getattr(run.attention, "window_tokens", None) for run in model.layers for _ in range(run.count)]
    assert windows == [None, *[None, 4096, 4096, 4096] * 2, None, None, None]
    with pytest.raises(InputError, match="kinds for 16 layers, of which there are 12"):
        read_config({**config, "num_hybrid_layers_block": 3}, "q1")


def test_spark_and_its_gates_by_hand() -> None:
    """From SGLang 0.5.23's spark2_5.py: no norms of queries and keys, a gate of one number for each head."""
    config = {
        "architectures": ["Spark2_5ForCausalLM"], "model_type": "spark2_5", "dtype": "bfloat16", "hidden_size": 2048,
        "intermediate_size": 6656, "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 28,
        "head_dim": 256, "headwise_attn_output_gate": True, "sliding_window": 512, "vocab_size": 133_120,
        "tie_word_embeddings": True, "max_position_embeddings": 8192,
    }  # fmt: skip
    model = read_config(config, "spark")
    layer = 2 * 2048 * 2048 + 2 * 2048 * 512 + 2048 * 8 + 3 * 2048 * 6656 + 2 * 2048
    assert model.parameters == 28 * layer + 133_120 * 2048 + 2048
    assert sum(run.count for run in model.layers if getattr(run.attention, "window_tokens", None)) == 21


def test_minimax_m3_as_vllms_own_config_class_calls_it() -> None:
    """Counted by hand: three dense layers, then three with experts and block-sparse attention."""
    sparse = {
        "sparse_index_dim": 128,
        "sparse_num_index_heads": 4,
        "sparse_topk_blocks": 16,
        "sparse_block_size": 128,
    }
    where = [0, 0, 0, 1, 1, 1]
    config = {
        "architectures": ["MiniMaxM3SparseForCausalLM"], "model_type": "minimax_m3_text", "dtype": "bfloat16",
        "vocab_size": 8448, "hidden_size": 512, "intermediate_size": 256, "dense_intermediate_size": 1024,
        "shared_intermediate_size": 256, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 64, "max_position_embeddings": 4096, "hidden_act": "swigluoai", "use_qk_norm": True,
        "num_local_experts": 16, "num_experts_per_tok": 4, "n_shared_experts": 1, "use_routing_bias": True,
        "moe_layer_freq": where, "tie_word_embeddings": False,
        "sparse_attention_config": {"use_sparse_attention": True, **sparse, "sparse_attention_freq": where},
    }  # fmt: skip
    h = 512
    attention, index = 2 * h * 512 + 2 * h * 256 + 2 * 64, h * 4 * 128 + h * 128 + 2 * 128
    experts, dense = h * 16 + 16 + 16 * 3 * h * 256 + 3 * h * 256, 3 * h * 1024
    model = read_config(config, "m3")
    assert model.parameters == 6 * (attention + 2 * h) + 3 * (index + experts + dense) + 2 * 8448 * h + h
    assert model.kv_bytes_per_token("bf16") == 2 * (6 * 512 + 3 * 128)


def test_tables_of_n_grams_are_in_the_total() -> None:
    """12 tables of 3 · 8448 + 1, 3, … 23 rows, 42 wide, each with a projection to 512."""
    changes = {"ngram_vocab_size_ratio": 3, "emb_neighbor_num": 4, "emb_split_num": 4}
    plain, more = read("iquestcoder"), read("iquestcoder", **changes)
    rows = sum(3 * 8448 + 2 * index + 1 for index in range(12))
    assert more.parameters - plain.parameters == rows * 42 + 12 * 42 * 512


# --- refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("bailing_moe", {"use_bias": True}, "use_bias is true"),
        ("param2moe", {"use_bias": True}, "use_bias is true"),
        ("iquestloopcoder", {"mlp_bias": True}, "mlp_bias is true"),
        ("k2_horizon", {"attention_bias": True}, "attention_bias is true"),
        ("sarvam_mla", {"moe_layer_freq": 2}, "moe_layer_freq is 2; it must be 1"),
        ("step3_text", {"moe_layers_enum": "1,x"}, "must list layers"),
        ("k2_horizon", {"mova_num_experts": 8}, "a token takes 0 value projections of 8"),
        ("plamo3", {"interleaved_sliding_window": [1, 2, 3, None]}, "several sizes"),
        ("iquestcoder", {"model_type": "minicpmv", "version": 3.7}, "version 3.7; known are 2.0"),
        ("iquestcoder", {"model_type": "unheard", "num_loops": 2}, "num_loops"),
        ("iquestcoder", {"model_type": "unheard", "mixer_types": ["attention"]}, "mixer_types"),
        ("iquestcoder", {"model_type": "minicpm_sala"}, "cannot be sized: lightning attention"),
        ("iquestcoder", {"model_type": "deepseek_v41"}, "cannot be sized: tables of n-grams"),
    ],
)
def test_what_is_not_understood_is_refused(name: str, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(name, **changed)
