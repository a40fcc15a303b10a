"""Mixtures of experts, latent and sparse attention, as transformers 5.23 saves their configs and as their makers do.

The numbers of `CASES` are what transformers' own classes have, built on the meta device: all parameters of the
decoder and its output head, with the router's corrections (buffers there, weights in checkpoints); and of each run of
layers how many there are, the numbers that one token adds to the cache, and the window. The indexer's keys come on
top of those; of DeepSeek-V4's one vector transformers keeps two. By hand are the caches of Step and LongCat-Flash,
whose classes do not run on that device, and of Unlimited-OCR, of which engines keep all.
"""

from itertools import groupby
from typing import Any

import pytest

from loadstone import catalogue
from loadstone.catalogue.architecture.attention import CompressedAttention, FullAttention, LatentAttention
from loadstone.catalogue.architecture.mlp import DenseMlp, Experts
from loadstone.catalogue.architecture.model import Model
from loadstone.catalogue.config.reader import read_config
from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.catalogue.find import entries_of
from loadstone.core.errors import InputError
from loadstone.predict.engine_rules import ranks
from loadstone.predict.step_time.work import work_of

_LETTERS = {
    "S": "sliding_attention",
    "F": "full_attention",
    "I": "indexed_attention",
    "C": "compressed_sparse_attention",
    "H": "heavily_compressed_attention",
    "M": "minimax_m3_sparse",
    "R": "reference_sliding_attention",
    "d": "dense",
    "s": "sparse",
    "h": "hash_moe",
    "m": "moe",
    "f": "full",
    "r": "shared",
}


def kinds(letters: str) -> list[str]:
    return [_LETTERS[letter] for letter in letters]


# fmt: off
CASES: list[tuple[dict[str, Any], int, list[tuple[int, int, int | None]]]] = [
    ({"model_type": "afmoe", "global_attn_every_n_layers": 3, "head_dim": 96, "hidden_size": 2048,
     "intermediate_size": 6144, "layer_types": kinds("SSFSSF"), "moe_intermediate_size": 1408,
     "num_attention_heads": 10, "num_dense_layers": 2, "num_experts": 64, "num_experts_per_tok": 6,
     "num_hidden_layers": 6, "num_key_value_heads": 1, "num_shared_experts": 2, "sliding_window": 1024,
     "vocab_size": 200192}, 3_217_608_064, [(2, 192, 1024), (1, 192, None), (2, 192, 1024), (1, 192, None)]),
    ({"model_type": "cohere2_moe", "expert_selection_fn": "softmax", "head_dim": 128, "hidden_size": 8192,
     "intermediate_size": 22528, "layer_types": kinds("SSSF"), "mlp_layer_types": kinds("dsss"),
     "num_attention_heads": 64, "num_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 4,
     "num_key_value_heads": 8, "num_shared_experts": 2, "prefix_dense_intermediate_size": 3000,
     "prefix_dense_sliding_window_pattern": 1, "shared_expert_combination_strategy": "average", "sliding_window":
     4096, "sliding_window_pattern": 4, "tie_word_embeddings": True, "vocab_size": 256000}, 19_384_541_184, [(3,
     2048, 4096), (1, 2048, None)]),
    ({"model_type": "cohere2_moe", "expert_selection_fn": "softmax", "head_dim": 128, "hidden_size": 8192,
     "intermediate_size": 22528, "layer_types": kinds("FFSS"), "mlp_layer_types": kinds("ddss"),
     "num_attention_heads": 64, "num_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 4,
     "num_key_value_heads": 64, "num_shared_experts": 0, "prefix_dense_sliding_window_pattern": 1,
     "shared_expert_combination_strategy": "average", "sliding_window": 4096, "sliding_window_pattern": 4,
     "tie_word_embeddings": True, "vocab_size": 256000}, 13_136_732_160, [(2, 16384, None), (2, 16384, 4096)]),
    ({"model_type": "deepseek_v2", "attention_bias": True, "first_k_dense_replace": 1, "head_dim": 64,
     "hidden_size": 4096, "intermediate_size": 11008, "kv_lora_rank": 512, "moe_intermediate_size": 1407,
     "n_routed_experts": 64, "n_shared_experts": 2, "num_attention_heads": 32, "num_experts_per_tok": 6,
     "num_hidden_layers": 4, "num_key_value_heads": 32, "qk_head_dim": 192, "qk_nope_head_dim": 128,
     "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 102400}, 4_592_222_464, [(4, 576, None)]),
    ({"model_type": "deepseek_v3", "attention_bias": True, "first_k_dense_replace": 3, "head_dim": 64,
     "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512, "moe_intermediate_size": 2048,
     "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 128, "num_experts_per_tok": 8,
     "num_hidden_layers": 6, "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "qk_head_dim": 192,
     "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280}, 38_890_123_392, [(6,
     576, None)]),
    ({"model_type": "deepseek_v4", "compress_rates": {"compressed_sparse_attention": 8,
     "heavily_compressed_attention": 64}, "hc_mult": 4, "head_dim": 512, "hidden_size": 4096, "index_head_dim": 128,
     "index_n_heads": 64, "index_topk": 512, "layer_types": kinds("SHCHC"), "mlp_layer_types": kinds("hmmmm"),
     "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 64,
     "num_experts_per_tok": 6, "num_hidden_layers": 5, "num_key_value_heads": 1, "num_nextn_predict_layers": 1,
     "o_groups": 8, "o_lora_rank": 1024, "q_lora_rank": 1024, "qk_rope_head_dim": 64, "sliding_window": 128,
     "vocab_size": 129280}, 33_987_964_243, [(5, 1024, 128)]),
    ({"model_type": "dots3_note_text", "head_dim": 256, "hidden_size": 5120, "index_head_dim": 128, "index_n_heads":
     64, "index_topk": 2048, "intermediate_size": 13824, "kv_lora_rank": 512, "layer_types": kinds("IISSSISS"),
     "mlp_layer_types": kinds("ddssssss"), "moe_intermediate_size": 1536, "n_routed_experts": 256,
     "n_shared_experts": 2, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 8,
     "num_key_value_heads": 128, "per_layer_config": {"2": {"kv_lora_rank": 256, "num_attention_heads": 32,
     "num_key_value_heads": 32, "qk_nope_head_dim": 192, "v_head_dim": 64}, "3": {"kv_lora_rank": 256,
     "num_attention_heads": 32, "num_key_value_heads": 32, "qk_nope_head_dim": 192, "v_head_dim": 64}, "4":
     {"kv_lora_rank": 256, "num_attention_heads": 32, "num_key_value_heads": 32, "qk_nope_head_dim": 192,
     "v_head_dim": 64}, "6": {"kv_lora_rank": 256, "num_attention_heads": 32, "num_key_value_heads": 32,
     "qk_nope_head_dim": 192, "v_head_dim": 64}, "7": {"kv_lora_rank": 256, "num_attention_heads": 32,
     "num_key_value_heads": 32, "qk_nope_head_dim": 192, "v_head_dim": 64}}, "q_lora_rank": 1024,
     "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "shared_experts_intermediate_size": 1536, "sliding_window":
     512, "v_head_dim": 128, "vocab_size": 152064}, 39_083_903_488, [(2, 576, None), (3, 320, 512), (1, 576, None),
     (2, 320, 512)]),
    ({"model_type": "exaone_moe", "first_k_dense_replace": 1, "hidden_size": 4096, "intermediate_size": 16384,
     "layer_types": kinds("SFSFS"), "mlp_layer_types": kinds("dssss"), "moe_intermediate_size": 1024,
     "num_attention_heads": 32, "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 5,
     "num_key_value_heads": 1, "num_shared_experts": 1, "sliding_window": 4096, "sliding_window_pattern": 2,
     "vocab_size": 102400}, 4_485_854_720, [(1, 256, 4096), (1, 256, None), (1, 256, 4096), (1, 256, None), (1, 256,
     4096)]),
    ({"model_type": "ernie4_5_vl_moe_text", "hidden_size": 2560, "intermediate_size": 12288, "mlp_layer_types":
     kinds("dsds"), "moe_intermediate_size": [1000, 300], "moe_k": 6, "moe_norm_min": 1e-12, "moe_num_experts": 64,
     "moe_num_shared_experts": 2, "num_attention_heads": 20, "num_hidden_layers": 4, "num_key_value_heads": 4,
     "tie_word_embeddings": True, "vocab_size": 103424}, 1_825_774_336, [(4, 1024, None)]),
    ({"model_type": "flint", "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 2048, "intermediate_size":
     6144, "layer_types": kinds("FFSSSFF"), "mlp_only_layers": [0, 1], "moe_intermediate_size": 512,
     "num_attention_heads": 32, "num_experts": 256, "num_experts_per_tok": 6, "num_hidden_layers": 7,
     "num_key_value_heads": 4, "shared_expert_intermediate_size": 1024, "sliding_window": 513, "vocab_size":
     150144}, 4_883_251_168, [(2, 1024, None), (3, 1024, 513), (2, 1024, None)]),
    ({"model_type": "glm4_moe_lite", "attention_bias": True, "hidden_size": 2048, "intermediate_size": 10240,
     "kv_lora_rank": 512, "mlp_layer_types": kinds("dsssss"), "moe_intermediate_size": 1536, "n_routed_experts": 64,
     "n_shared_experts": 1, "num_attention_heads": 20, "num_experts_per_tok": 4, "num_hidden_layers": 6,
     "num_key_value_heads": 20, "q_lora_rank": 768, "qk_head_dim": 256, "qk_nope_head_dim": 192, "qk_rope_head_dim":
     64, "v_head_dim": 256, "vocab_size": 154880}, 3_895_645_888, [(6, 576, None)]),
    ({"model_type": "glm_moe_dsa", "attention_bias": True, "first_k_dense_replace": 3, "head_dim": 64,
     "hidden_size": 6144, "index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048, "indexer_types":
     kinds("ffrrfr"), "intermediate_size": 12288, "kv_lora_rank": 512, "layer_types": kinds("IIIIII"),
     "mlp_layer_types": kinds("dddsss"), "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts":
     1, "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 6, "num_key_value_heads": 64,
     "q_lora_rank": 2048, "qk_head_dim": 256, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
     "vocab_size": 154880}, 32_710_018_944, [(6, 576, None)]),
    ({"model_type": "hy_v3", "enable_moe_fp32_combine": True, "head_dim": 96, "hidden_size": 4096,
     "intermediate_size": 13312, "mlp_layer_types": kinds("dsss"), "moe_intermediate_size": 1536,
     "num_attention_heads": 64, "num_experts": 192, "num_experts_per_tok": 8, "num_hidden_layers": 4,
     "num_key_value_heads": 1, "num_shared_experts": 1, "router_scaling_factor": 2.826, "vocab_size": 120832},
     12_288_562_496, [(4, 192, None)]),
    ({"model_type": "hy_v4", "attention_bias": True, "hc_magnitude": 2.0, "hc_mult": 2, "head_dim": 64,
     "hidden_size": 2816, "index_head_dim": 128, "index_n_heads": 16, "index_topk": 2048, "indexer_types":
     kinds("ffrrrf"), "intermediate_size": 6912, "kv_lora_rank": 512, "layer_types": kinds("IIIIII"),
     "mlp_layer_types": kinds("dsssss"), "moe_intermediate_size": 768, "n_routed_experts": 256, "n_shared_experts":
     1, "num_attention_heads": 32, "num_experts_per_tok": 8, "num_hidden_layers": 6, "num_key_value_heads": 32,
     "q_lora_rank": 1536, "qk_head_dim": 256, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
     "vocab_size": 120832}, 9_522_747_275, [(6, 576, None)]),
    ({"model_type": "kolibri1", "head_dim": 128, "hidden_size": 2560, "layer_types": kinds("SSSSFS"),
     "moe_intermediate_size": 512, "num_attention_heads": 48, "num_experts_per_tok": 6, "num_hidden_layers": 6,
     "num_key_value_heads": 4, "num_local_experts": 384, "shared_expert_intermediate_size": 512, "sliding_window":
     513, "vocab_size": 128000}, 9_949_088_000, [(4, 1024, 513), (1, 1024, None), (1, 1024, 513)]),
    ({"model_type": "laguna", "gating": "per-element", "head_dim": 128, "hidden_size": 2048, "intermediate_size":
     8192, "layer_types": kinds("FSSF"), "mlp_layer_types": kinds("dsss"), "moe_intermediate_size": 512,
     "moe_routed_scaling_factor": 1.0, "moe_router_logit_softcapping": 0.0, "num_attention_heads": 48,
     "num_attention_heads_per_layer": [48, 72, 72, 24], "num_experts": 256, "num_experts_per_tok": 8,
     "num_hidden_layers": 4, "num_key_value_heads": 8, "shared_expert_intermediate_size": 512, "sliding_window":
     512, "vocab_size": 100352}, 3_074_969_344, [(1, 2048, None), (2, 2048, 512), (1, 2048, None)]),
    ({"model_type": "laguna", "gating": True, "head_dim": 128, "hidden_size": 2048, "intermediate_size": 8192,
     "layer_types": kinds("FSSF"), "mlp_layer_types": kinds("ddss"), "moe_intermediate_size": 512,
     "moe_routed_scaling_factor": 1.0, "moe_router_logit_softcapping": 0.0, "num_attention_heads": 48,
     "num_attention_heads_per_layer": [48, 72, 72, 24], "num_experts": 256, "num_experts_per_tok": 8,
     "num_hidden_layers": 4, "num_key_value_heads": 8, "shared_expert_intermediate_size": 512, "sliding_window":
     512, "vocab_size": 100352}, 2_260_143_616, [(1, 2048, None), (2, 2048, 512), (1, 2048, None)]),
    ({"model_type": "mellum", "head_dim": 128, "hidden_size": 2304, "intermediate_size": 7168, "layer_types":
     kinds("FSSF"), "mlp_layer_types": kinds("dssd"), "moe_intermediate_size": 896, "num_attention_heads": 32,
     "num_experts_per_tok": 8, "num_hidden_layers": 4, "num_key_value_heads": 4, "num_local_experts": 64,
     "sliding_window": 1024, "vocab_size": 98304}, 1_430_050_048, [(1, 1024, None), (2, 1024, 1024), (1, 1024,
     None)]),
    ({"model_type": "mimo_v2_flash", "head_dim": 128, "hidden_size": 4096, "intermediate_size": 16384,
     "layer_types": kinds("FSSSSFS"), "mlp_layer_types": kinds("dssssss"), "moe_intermediate_size": 2048,
     "n_routed_experts": 256, "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 7,
     "num_key_value_heads": 4, "sliding_window": 129, "v_head_dim": 96, "vocab_size": 152576}, 40_567_371_584, [(1,
     896, None), (4, 1792, 129), (1, 896, None), (1, 1792, 129)]),
    ({"model_type": "minimax_m3_vl_text", "dense_intermediate_size": 12288, "head_dim": 128, "hidden_size": 6144,
     "index_block_size": 128, "index_head_dim": 128, "index_local_blocks": 1, "index_n_heads": 4,
     "index_topk_blocks": 16, "intermediate_size": 3072, "layer_types": kinds("FMMF"), "mlp_layer_types":
     kinds("dsss"), "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 4,
     "num_key_value_heads": 4, "num_local_experts": 128, "shared_intermediate_size": 3072, "vocab_size": 200064},
     25_036_119_936, [(4, 1024, None)]),
    ({"model_type": "muse_spark_text", "head_dim": 64, "hidden_size": 8192, "intermediate_size": 16384,
     "layer_rope_theta": [500000.0, 500000.0, 500000.0, 0], "layer_types": kinds("SSSF"), "mlp_layer_types":
     kinds("dssd"), "moe_hidden_size": 4096, "moe_intermediate_size": 4096, "num_attention_heads": 128,
     "num_experts_per_tok": 8, "num_hidden_layers": 4, "num_key_value_heads": 16, "num_local_experts": 256,
     "output_multiplier": 0.1767766952966369, "qk_scale_factor": 5.4730064863875, "residual_gate_temperature": 0.3,
     "sliding_window": 2048, "vocab_size": 202048}, 30_896_480_768, [(3, 2048, 2048), (1, 2048, None)]),
    ({"model_type": "muse_glimmer_text", "head_dim": 128, "hidden_size": 6656, "intermediate_size": 19968,
     "layer_rope_theta": [10000.0, 0, 10000.0, 10000.0, 10000.0, 0], "layer_types": kinds("SFSSSF"),
     "num_attention_heads": 32, "num_hidden_layers": 6, "num_key_value_heads": 2, "output_multiplier":
     0.19611613513818404, "qk_scale_factor": 3.87, "sliding_window": 2048, "vocab_size": 202048}, 5_593_336_320,
     [(1, 512, 2048), (1, 512, None), (3, 512, 2048), (1, 512, None)]),
    ({"model_type": "step3p5", "head_dim": 128, "hidden_size": 4096, "intermediate_size": 11264, "layer_types":
     kinds("FSSSFS"), "mlp_layer_types": kinds("dddsss"), "moe_intermediate_size": 1280, "n_routed_experts": 288,
     "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 6, "num_key_value_heads": 8,
     "num_nextn_predict_layers": 0, "num_sliding_attention_heads": 96, "per_layer_config": {"1":
     {"num_attention_heads": 96}, "2": {"num_attention_heads": 96}, "3": {"num_attention_heads": 96}, "5":
     {"num_attention_heads": 96}}, "share_expert_dim": 1280, "sliding_window": 512, "vocab_size": 128815},
     15_700_113_760, [(1, 2048, None), (3, 2048, 512), (1, 2048, None), (1, 2048, 512)]),
    ({"model_type": "granitemoe_swa", "hidden_size": 4096, "intermediate_size": 11008, "layer_rope_theta": [10000.0,
     10000.0, 10000.0, 10000.0, 10000.0, 10000.0], "layer_types": kinds("FSSSFS"), "num_attention_heads": 32,
     "num_experts_per_tok": 2, "num_hidden_layers": 6, "num_key_value_heads": 4, "num_local_experts": 8,
     "shared_intermediate_size": 1000, "sliding_window": 128, "vocab_size": 32000}, 7_055_397_056, [(1, 1024, None),
     (3, 1024, 128), (1, 1024, None), (1, 1024, 128)]),
    ({"model_type": "granitemoeshared", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
     "num_experts_per_tok": 2, "num_hidden_layers": 4, "num_key_value_heads": 4, "num_local_experts": 8,
     "shared_intermediate_size": 1000, "vocab_size": 32000}, 4_790_980_608, [(4, 1024, None)]),
    ({"model_type": "minicpm3", "attention_bias": True, "dim_model_base": 256, "head_dim": 32, "hidden_size": 2560,
     "intermediate_size": 6400, "kv_lora_rank": 256, "num_attention_heads": 40, "num_hidden_layers": 4,
     "num_key_value_heads": 40, "q_lora_rank": 300, "qk_head_dim": 96, "qk_nope_head_dim": 64, "qk_rope_head_dim":
     32, "scale_depth": 1.4, "scale_emb": 12, "tie_word_embeddings": True, "v_head_dim": 64, "vocab_size": 73448},
     426_759_136, [(4, 288, None)]),
    ({"model_type": "mistral4", "first_k_dense_replace": 0, "head_dim": 128, "hidden_size": 4096,
     "intermediate_size": 12288, "kv_lora_rank": 256, "moe_intermediate_size": 2048, "n_routed_experts": 128,
     "n_shared_experts": 1, "num_attention_heads": 32, "num_experts_per_tok": 4, "num_hidden_layers": 4,
     "num_key_value_heads": 32, "qk_head_dim": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim":
     128, "vocab_size": 131072}, 14_207_194_112, [(4, 320, None)]),
    ({"model_type": "youtu", "embedding_initializer_range": 0.03952847075210474, "head_dim": 64, "hidden_size":
     2048, "intermediate_size": 6144, "kv_lora_rank": 512, "num_attention_heads": 16, "num_hidden_layers": 5,
     "num_key_value_heads": 16, "qk_head_dim": 192, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
     "tie_word_embeddings": True, "v_head_dim": 128, "vocab_size": 128256}, 520_249_856, [(5, 576, None)]),
    ({"model_type": "deepseek_ocr2_text", "head_dim": 128, "hidden_size": 4096, "intermediate_size": 11008,
     "mlp_layer_types": kinds("dsss"), "moe_intermediate_size": 1407, "n_routed_experts": 64, "n_shared_experts": 2,
     "num_attention_heads": 32, "num_experts_per_tok": 6, "num_hidden_layers": 4, "num_key_value_heads": 2,
     "vocab_size": 102400}, 4_540_821_504, [(4, 512, None)]),
    ({"model_type": "hunyuan_v1_moe", "head_dim": 128, "hidden_size": 4096, "intermediate_size": 11008, "moe_topk":
     2, "num_attention_heads": 32, "num_experts": 16, "num_hidden_layers": 4, "num_key_value_heads": 4,
     "vocab_size": 290943}, 11_732_808_704, [(4, 1024, None)]),
    ({"model_type": "axk1", "attention_bias": True, "head_dim": 64, "hidden_size": 7168, "intermediate_size": 18432,
     "kv_lora_rank": 512, "mlp_layer_types": kinds("dsds"), "moe_intermediate_size": 2048, "n_routed_experts": 192,
     "n_shared_experts": 1, "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 4,
     "num_key_value_heads": 64, "q_lora_rank": 1536, "qk_head_dim": 192, "qk_nope_head_dim": 128,
     "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 163840}, 20_548_413_056, [(4, 576, None)]),
    ({"model_type": "longcat_flash", "attention_bias": True, "expert_ffn_hidden_size": 2048, "ffn_hidden_size":
     12288, "head_dim": 64, "hidden_size": 6144, "kv_lora_rank": 512, "moe_topk": 12, "n_routed_experts": 512,
     "num_attention_heads": 64, "num_key_value_heads": 64, "num_layers": 2, "q_lora_rank": 1536, "qk_head_dim": 192,
     "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 131072, "zero_expert_num":
     0}, 41_539_960_064, [(4, 576, None)]),
    ({"model_type": "flex_olmo", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
     "num_experts": 7, "num_experts_per_tok": 5, "num_hidden_layers": 4, "num_key_value_heads": 32, "vocab_size":
     100352}, 4_878_159_872, [(4, 8192, None)]),
    ({"model_type": "solar_open", "head_dim": 128, "hidden_size": 4096, "moe_intermediate_size": 1280,
     "n_routed_experts": 128, "n_shared_experts": 1, "num_attention_heads": 64, "num_experts_per_tok": 8,
     "num_hidden_layers": 4, "num_key_value_heads": 8, "vocab_size": 196608}, 10_030_715_392, [(4, 2048, None)]),
    ({"model_type": "deepseek_v32", "first_k_dense_replace": 3, "head_dim": 64, "hidden_size": 7168,
     "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048, "intermediate_size": 18432, "kv_lora_rank":
     512, "layer_types": kinds("IIII"), "mlp_layer_types": kinds("ddds"), "moe_intermediate_size": 2048,
     "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 128, "num_experts_per_tok": 8,
     "num_hidden_layers": 4, "num_key_value_heads": 128, "q_lora_rank": 1536, "qk_head_dim": 192,
     "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280, "mlp_bias": True},
     15_166_939_392, [(4, 576, None)]),
    ({"model_type": "hy_v3", "enable_moe_fp32_combine": True, "head_dim": 128, "hidden_size": 4096,
     "intermediate_size": 13312, "mlp_layer_types": kinds("dsss"), "moe_intermediate_size": 1536,
     "num_attention_heads": 64, "num_experts": 192, "num_experts_per_tok": 8, "num_hidden_layers": 4,
     "num_key_value_heads": 8, "num_shared_experts": 1, "router_scaling_factor": 2.826, "vocab_size": 120832,
     "mlp_bias": True}, 12_386_132_544, [(4, 2048, None)]),
    ({"model_type": "unlimited_ocr_text", "head_dim": 128, "hidden_size": 1280, "intermediate_size": 6848,
     "layer_types": kinds("RRRR"), "mlp_layer_types": kinds("dsss"), "moe_intermediate_size": 896,
     "n_routed_experts": 64, "n_shared_experts": 2, "num_attention_heads": 10, "num_experts_per_tok": 6,
     "num_hidden_layers": 4, "num_key_value_heads": 10, "sliding_window": 128, "vocab_size": 129280}, 1_064_971_520,
     [(4, 2560, None)]),
    ({"model_type": "cohere2_moe", "expert_selection_fn": "softmax", "head_dim": 128, "hidden_size": 8192,
     "intermediate_size": 22528, "layer_types": kinds("SSSF"), "mlp_layer_types": kinds("ssss"),
     "num_attention_heads": 64, "num_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 4,
     "num_key_value_heads": 64, "num_shared_experts": 0, "prefix_dense_sliding_window_pattern": 1,
     "shared_expert_combination_strategy": "average", "sliding_window": 4096, "sliding_window_pattern": 4,
     "tie_word_embeddings": True, "vocab_size": 256000}, 20_887_937_024, [(3, 16384, 4096), (1, 16384, None)]),
]

MAKERS: list[tuple[dict[str, Any], int]] = [
    ({"model_type": "step3p5", "hidden_size": 4096, "intermediate_size": 11264, "num_hidden_layers": 45,
     "vocab_size": 128896, "use_qk_norm": True, "moe_layers_enum": ",".join(map(str, range(3, 45))),
     "num_attention_heads": 64, "num_attention_groups": 8, "head_dim": 128, "use_moe": True, "moe_num_experts": 288,
     "moe_top_k": 8, "moe_intermediate_size": 1280, "share_expert_dim": 1280, "moe_layer_offset": 0,
     "moe_every_n_layer": 1, "norm_expert_weight": True, "moe_router_activation": "sigmoid",
     "moe_router_scaling_factor": 3.0, "att_impl_type": "GQA", "use_head_wise_attn_gate": True,
     "use_moe_router_bias": True, "need_fp32_gate": True, "sliding_window": 512, "layer_types": kinds("FSSS" * 12),
     "yarn_only_types": ["full_attention"], "attention_other_setting": {"attention_type": "sliding_attention",
     "num_attention_heads": 96, "num_attention_groups": 8, "head_dim": 128, "true_head_dim": 128},
     "num_nextn_predict_layers": 3, "zero_centered": True}, 196_956_130_368),
    ({"model_type": "dots3_note", "vocab_size": 152064, "hidden_size": 5120, "intermediate_size": 13824,
     "moe_intermediate_size": 1536, "num_hidden_layers": 46, "num_attention_heads": 128, "num_key_value_heads": 128,
     "n_shared_experts": 1, "n_routed_experts": 256, "kv_lora_rank": 512, "q_lora_rank": 1024, "qk_rope_head_dim":
     64, "v_head_dim": 128, "qk_nope_head_dim": 128, "num_experts_per_tok": 8, "index_topk": 2048, "index_head_dim":
     128, "index_n_heads": 64, "first_k_dense_replace": 1, "moe_layer_freq": 1, "use_dsa": True,
     "use_sliding_window": True, "sliding_window_size": 512, "swa_num_attention_heads": 64,
     "swa_num_key_value_heads": 64, "swa_q_lora_rank": 1024, "swa_kv_lora_rank": 1024, "swa_head_dim": 256,
     "swa_qk_nope_head_dim": 192, "swa_qk_rope_head_dim": 64, "swa_v_head_dim": 128, "attention_gate_type":
     "headwise", "swa_attention_gate_type": "headwise", "swa_rope_theta": 50000.0, "layer_types": kinds("F" + "FSSS"
     * 11 + "F"), "scoring_func": "sigmoid"}, 279_551_729_536),
    ({"model_type": "exaone_moe", "first_k_dense_replace": 1, "hidden_size": 6144, "intermediate_size": 18432,
     "head_dim": 128, "num_hidden_layers": 48, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size":
     153600, "moe_intermediate_size": 2048, "num_experts": 128, "num_experts_per_tok": 8, "num_shared_experts": 1,
     "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
     "topk_method": "noaux_tc", "sliding_window": 128, "sliding_window_pattern": "LLLG", "layer_types": kinds("SSSF"
     * 12), "is_moe_layer": [False] + [True] * 47, "mlp_layer_types": kinds("d" + "s" * 47),
     "num_nextn_predict_layers": 1}, 236_571_156_352),
    ({"model_type": "afmoe", "global_attn_every_n_layers": 4, "head_dim": 128, "hidden_size": 2048,
     "intermediate_size": 6144, "layer_types": kinds("SSSF" * 8), "load_balance_coeff": 0.001,
     "moe_intermediate_size": 1024, "mup_enabled": True, "n_group": 1, "num_attention_heads": 32,
     "num_dense_layers": 2, "num_expert_groups": 1, "num_experts": 128, "num_experts_per_tok": 8,
     "num_hidden_layers": 32, "num_key_value_heads": 4, "num_limited_groups": 1, "num_shared_experts": 1,
     "route_norm": True, "route_scale": 2.826, "score_func": "sigmoid", "sliding_window": 2048, "topk_group": 1,
     "use_grouped_mm": True, "vocab_size": 200192}, 26_123_974_400),
    ({"model_type": "glm4_moe_lite", "hidden_size": 2048, "intermediate_size": 10240, "moe_intermediate_size": 1536,
     "topk_method": "noaux_tc", "norm_topk_prob": True, "num_attention_heads": 20, "n_group": 1, "topk_group": 1,
     "n_routed_experts": 64, "n_shared_experts": 1, "routed_scaling_factor": 1.8, "num_experts_per_tok": 4,
     "first_k_dense_replace": 1, "num_hidden_layers": 47, "num_key_value_heads": 20, "num_nextn_predict_layers": 1,
     "partial_rotary_factor": 1.0, "q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 192,
     "qk_rope_head_dim": 64, "v_head_dim": 256, "vocab_size": 154880}, 29_943_393_920),
    ({"model_type": "hy_v4", "vocab_size": 120832, "hidden_size": 2816, "intermediate_size": 6912,
     "moe_intermediate_size": 768, "num_hidden_layers": 34, "num_attention_heads": 32, "num_key_value_heads": 32,
     "head_dim": 256, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "q_lora_rank": 1536,
     "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
     "first_k_dense_replace": 1, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 16, "indexer_types":
     kinds("ffrr" * 8 + "ff"), "enable_lm_head_fp32": True, "enable_ihc": True, "hc_mult": 4, "hc_magnitude": 2.0,
     "gated_mla": True, "gating_type": "elementwise", "learnable_sink": True, "learnable_sink_init": 0.0,
     "swiglu_limit": 10.0, "num_nextn_predict_layers": 1, "mtp_loss_factor": 0.1}, 58_306_613_485),
]
# fmt: on
"""With the fields that the makers' own code has; the numbers are those of transformers' classes for them."""


@pytest.mark.parametrize(("config", "parameters", "cache"), CASES, ids=[case[0]["model_type"] for case in CASES])
def test_as_transformers_counts(
    config: dict[str, Any], parameters: int, cache: list[tuple[int, int, int | None]]
) -> None:
    model = read_config(config, "test")
    assert model.parameters == parameters
    assert not [said for said in model.assumed if "not understood" in said or "not known" in said]
    kept = [each for run in model.layers for each in [_kept(run.attention)] * run.count]
    assert [(len(list(equal)), *each) for each, equal in groupby(kept)] == cache


def _kept(attention: Any) -> tuple[int, int | None]:
    """Numbers of a token, and the window."""
    if isinstance(attention, LatentAttention):
        return attention.kv_rank + attention.rope_dim, attention.window_tokens
    if isinstance(attention, CompressedAttention):
        return 2 * attention.head_dim, attention.window_tokens
    assert isinstance(attention, FullAttention)
    return attention.kv_heads * (attention.head_dim + attention.v_head_dim), attention.window_tokens


@pytest.mark.parametrize(("config", "parameters"), MAKERS, ids=[case[0]["model_type"] for case in MAKERS])
def test_as_makers_write_it(config: dict[str, Any], parameters: int) -> None:
    model = read_config(config, "test")
    assert model.parameters == parameters
    assert not [said for said in model.assumed if "not understood" in said or "not known" in said]


def test_deepseek_v4_as_transformers_writes_it() -> None:
    """The catalogue has it as DeepSeek does."""
    name = "deepseek-ai/DeepSeek-V4-Flash"
    published, config = catalogue.model(name), entries_of("models")[name]["config"]
    assert published.parameters == 284_332_240_471
    names = {0: "S", 4: "C", 128: "H"}
    ratios = config.pop("compress_ratios")[: published.layer_count]
    config["layer_types"] = kinds("".join(names[ratio] for ratio in ratios))
    config["compress_rates"] = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    hashed = config.pop("num_hash_layers")
    config["mlp_layer_types"] = kinds("h" * hashed + "m" * (published.layer_count - hashed))
    assert read_config(config, "test").layers == published.layers


def test_minimax_m3s_first_layers_are_as_wide_as_its_config_says() -> None:
    """`shared_intermediate_size` is about its experts, not about its dense MLPs, as it would be in a Granite."""
    mlps = [run.mlp for run in catalogue.model("MiniMaxAI/MiniMax-M3").layers]
    assert mlps[0] == DenseMlp(12_288)
    assert isinstance(mlps[1], Experts)
    assert mlps[1].shared_intermediate == 3072


LONGCAT: dict[str, Any] = {
    "model_type": "longcat_flash", "hidden_size": 6144, "ffn_hidden_size": 12_288, "expert_ffn_hidden_size": 2048,
    "num_layers": 28, "num_attention_heads": 64, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "qk_nope_head_dim": 128, "n_routed_experts": 512, "vocab_size": 131_072, "moe_topk": 12,
    "attention_method": "MLA", "zero_expert_num": 256, "zero_expert_type": "identity", "mla_scale_q_lora": True,
}  # fmt: skip


def test_longcat_flash_has_two_attentions_in_a_layer_and_experts_that_do_nothing() -> None:
    model = read_config(LONGCAT, "test")
    # Of transformers' class, without the halves that it makes for the experts that do nothing: 741_053_606_912
    assert model.parameters == 741_053_606_912 - 28 * 256 * 2 * 2048 * 6144
    assert model.layer_count == 56
    assert model.kv_bytes_per_token("bf16") == 56 * 2 * 576
    # Its makers say 27 B on average, of the 18.6 to 31.3 that a token may take.
    assert model.active_parameters == pytest.approx(27e9, rel=0.05)
    mlp = model.layers[0].mlp
    assert isinstance(mlp, Experts)
    assert (mlp.experts, mlp.per_token, mlp.shared_intermediate) == (512, 8, 12_288)


def ernie(**changes: Any) -> Model:
    config = next(case[0] for case in CASES if case[0]["model_type"] == "ernie4_5_vl_moe_text")
    return read_config({**config, **changes}, "test")


def test_experts_of_images_weigh_but_no_token_of_text_passes_them() -> None:
    model, without = ernie(), ernie(moe_intermediate_size=1000)
    assert model.parameters - without.parameters == 2 * (64 * 2560 + 64 + 64 * 3 * 2560 * 300)
    assert model.active_parameters == without.active_parameters
    with_them, alone = (work_of(_deployed(each)) for each in (model, without))
    assert (with_them.flops * with_them.count).sum() == (alone.flops * alone.count).sum()
    both = [ranks(_deployed(each))[0].weights_bytes for each in (model, without)]
    assert both[0] - both[1] == 2 * (model.parameters - without.parameters)


def _deployed(model: Model) -> Deployment:
    return Deployment(model, catalogue.gpu("h200"), 1)


def test_experts_of_images_where_baidu_says_so() -> None:
    """Its own form: pairs, for text and for images; those of images end before the last layer."""
    changes = {"moe_num_experts": [64, 64], "moe_layer_start_index": [1, 2], "moe_layer_end_index": [3, 2]}
    model = ernie(mlp_layer_types=None, moe_layer_interval=1, **changes)
    found = [run.mlp.image_intermediate if isinstance(run.mlp, Experts) else None for run in model.layers]
    assert found == [None, 0, 300, 0]


def test_a_latent_with_a_window_keeps_the_window() -> None:
    config = next(case[0] for case in CASES if case[0]["model_type"] == "dots3_note_text")
    deployment = _deployed(read_config(config, "test"))
    # Three layers with a latent of 512 + 64 numbers and an indexer's key, five with 256 + 64 of 512 tokens.
    kept = {(each.count, each.token_bytes, each.window_tokens) for each in ranks(deployment)[0].cache}
    assert kept == {(3, 2 * 576 + 132, None), (5, 2 * 320, 512)}
    work = work_of(deployment)
    assert work.window_cache[0] == 3 * 2 * 576 + 5 * 2 * 320
    assert work.window_flops[0] == 3 * 2 * 128 * (576 + 512) + 5 * 2 * 32 * (320 + 256)


@pytest.mark.parametrize(
    ("model_type", "changes", "said"),
    [
        ("laguna", {"gating": False}, "gating is 'False'; known are true, per-head and per-element"),
        ("laguna", {"mlp_layer_types": ["dense", "wide", "sparse", "sparse"]}, "MLP type 'wide' is not known"),
        ("hy_v4", {"gating_type": "odd"}, "'odd' is not a gate that is known"),
        ("ernie4_5_vl_moe_text", {"use_bias": True}, "use_bias is true"),
        ("ernie4_5_vl_moe_text", {"moe_num_experts": [64, 32]}, "only as many experts of images as of text"),
        ("exaone_moe", {"mlp_layer_types": None, "moe_layers_enum": "3;4"}, "it must list layers: 3,4,5"),
        ("exaone_moe", {"mlp_layer_types": None, "moe_layers_enum": "9" * 5000}, "it must list layers: 3,4,5"),
        ("deepseek_v4", {"layer_types": None}, "compress_rates without layer_types"),
        ("exaone_moe", {"attention_other_setting": {"attention_type": "odd"}}, "must be 'sliding_attention'"),
        ("dots3_note_text", {"per_layer_config": {"2": 7}}, "per_layer_config[2]: must be an object"),
        ("dots3_note_text", {"per_layer_config": {"2": {"odd": 7}}}, "odd is not understood of one layer"),
    ],
)
def test_refused_in_one_line(model_type: str, changes: dict[str, Any], said: str) -> None:
    config = next(case[0] for case in CASES if case[0]["model_type"] == model_type)
    with pytest.raises(InputError) as error:
        read_config({**config, **changes}, "test")
    assert said in str(error.value)
    assert "\n" not in str(error.value)
