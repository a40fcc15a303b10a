"""Models whose layers keep a state, or mix kinds: read as transformers' own classes (5.23) are made.

Totals, KV and states are those of the class that each config is of, built on the meta device
(tests/catalogue/transformers_truth.py). Totals have the corrections of a router, which checkpoints keep, in them.
transformers keeps `conv_width` inputs of a convolution, engines `conv_width` - 1, and so do we.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadstone.catalogue.architecture.linear import LinearAttention
from loadstone.catalogue.architecture.model import Model
from loadstone.catalogue.config.reader import read_config
from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.core.errors import InputError
from loadstone.predict.engine_rules import ranks
from loadstone.predict.sharding.rank import CacheLayer
from loadstone.predict.sizing.check import contradictions
from loadstone.predict.step_time.work import work_of

L, A, C = "linear_attention", "full_attention", "conv"
SIZES: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "tie_word_embeddings": False, "dtype": "bfloat16",
}  # fmt: skip
MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_d_conv": 4,
    "mamba_expand": 2, "mamba_conv_bias": True,
}  # fmt: skip

# model_type, fields, parameters, numbers that a token adds to each layer's KV, (recurrent numbers, inputs of
# convolutions) of each layer's state.
CASES: list[tuple[str, dict[str, Any], int, list[float], list[tuple[int, int]]]] = [
    ("bamba", {**SIZES, **MAMBA, "attention_bias": True, "attn_layer_indices": [1], "mamba_proj_bias": True,
      "mlp_bias": True, "num_hidden_layers": 3},
     143_168, [0, 64, 0], [(2048, 576), (0, 0), (2048, 576)]),
    ("bamba", {**SIZES, **MAMBA, "num_hidden_layers": 2, "attn_layer_indices": None},
     110_576, [0, 0], [(2048, 576), (2048, 576)]),
    ("granitemoehybrid", {**SIZES, **MAMBA, "layer_types": [L, A, L], "num_experts_per_tok": 2,
      "num_hidden_layers": 3,
      "num_local_experts": 4, "shared_intermediate_size": 80},
     354_160, [0, 64, 0], [(2048, 576), (0, 0), (2048, 576)]),
    ("granitemoehybrid", {**SIZES, **MAMBA, "layer_types": [L, L], "num_experts_per_tok": 0, "num_hidden_layers": 2,
      "num_local_experts": 0, "shared_intermediate_size": 80},
     104_432, [0, 0], [(2048, 576), (2048, 576)]),
    ("jamba", {**SIZES, "attn_layer_offset": 2, "attn_layer_period": 4, "expert_layer_offset": 1,
      "expert_layer_period": 2, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_state": 8,
      "mamba_dt_rank": 4, "mamba_expand": 2, "num_experts": 4, "num_experts_per_tok": 2,
      "num_hidden_layers": 4},
     299_260, [0, 0, 64, 0], [(1024, 384), (1024, 384), (0, 0), (1024, 384)]),
    ("jamba", {**SIZES, "attn_layer_offset": 4, "attn_layer_period": 8, "expert_layer_offset": 1,
      "expert_layer_period": 2, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_state": 8,
      "mamba_dt_rank": 4, "mamba_expand": 2, "mamba_proj_bias": True, "num_experts": 1,
      "num_experts_per_tok": 1, "num_hidden_layers": 4},
     206_736, [0, 0, 0, 0], [(1024, 384), (1024, 384), (1024, 384), (1024, 384)]),
    ("lfm2", {**SIZES, "block_auto_adjust_ff_dim": True, "block_multiple_of": 16, "conv_L_cache": 3,
      "conv_bias": True, "layer_types": [C, A, C], "num_hidden_layers": 3, "tie_word_embeddings": True},
     89_824, [0, 64, 0], [(0, 128), (0, 0), (0, 128)]),
    ("lfm2", {**SIZES, "block_auto_adjust_ff_dim": False, "block_multiple_of": 256, "conv_L_cache": 3,
      "full_attn_idxs": [0, 1], "layer_types": [A, A], "num_hidden_layers": 2, "tie_word_embeddings": True},
     68_224, [64, 64], [(0, 0), (0, 0)]),
    ("lfm2_moe", {**SIZES, "conv_L_cache": 3, "layer_types": [C, A, C], "moe_intermediate_size": 48,
      "num_dense_layers": 1, "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 3,
      "tie_word_embeddings": True, "use_expert_bias": True},
     145_000, [0, 64, 0], [(0, 128), (0, 0), (0, 128)]),
    ("lfm3", {**SIZES, "conv_L_cache": 7, "head_dim": 16, "layer_types": [C, C, A, C, "sliding_attention"],
      "num_hidden_layers": 5, "sliding_window": 32, "tie_word_embeddings": True,
      "use_attention_gate": True, "use_sandwich_norm": True},
     175_552, [0, 0, 64, 0, 64], [(0, 384), (0, 384), (0, 0), (0, 384), (0, 0)]),
    ("lfm3", {**SIZES, "attention_bias": True, "conv_L_cache": 7, "head_dim": 16, "layer_types": [C, C, A],
      "num_hidden_layers": 3, "sliding_window": 256, "tie_word_embeddings": True,
      "use_attention_gate": False, "use_sandwich_norm": False},
     108_320, [0, 0, 64], [(0, 384), (0, 384), (0, 0)]),
    ("kimi_linear", {**SIZES, "head_dim": 8, "kv_lora_rank": 32, "layer_types": [L, L, L, L, A, L],
      "linear_conv_kernel_dim": 4, "linear_head_dim": 24, "linear_num_heads": 2,
      "mlp_layer_types": ["dense", "sparse", "sparse", "sparse", "sparse", "sparse"],
      "model_max_length": 512, "moe_intermediate_size": 48, "num_experts": 4, "num_experts_per_token": 2,
      "num_hidden_layers": 6, "num_key_value_heads": 4, "num_shared_experts": 1, "qk_nope_head_dim": 16,
      "qk_rope_head_dim": 8, "v_head_dim": 12},
     371_366, [0, 0, 0, 0, 40, 0], [(1152, 432), (1152, 432), (1152, 432), (1152, 432), (0, 0), (1152, 432)]),
    ("bailing_hybrid", {**SIZES, "first_k_dense_replace": 2, "head_dim": 8, "kv_lora_rank": 32, "layer_group_size": 4,
      "layer_types": [L, L, L, A], "linear_conv_kernel_dim": 4, "linear_head_dim": 24,
      "linear_num_heads": 4, "mlp_layer_types": ["dense", "dense", "sparse", "sparse"],
      "model_max_length": 512, "moe_intermediate_size": 48, "num_experts": 4, "num_experts_per_token": 2,
      "num_hidden_layers": 4, "num_key_value_heads": 4, "num_nextn_predict_layers": 1,
      "num_shared_experts": 1, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "short_conv_kernel_size": 4,
      "v_head_dim": 12},
     273_756, [0, 0, 0, 40], [(2304, 864), (2304, 864), (2304, 864), (0, 0)]),
    ("falcon_h1", {**SIZES, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 12, "mamba_d_ssm": 96,
      "mamba_d_state": 16, "mamba_expand": 2, "mamba_n_groups": 2, "mamba_n_heads": 8,
      "mamba_rms_norm": True, "num_hidden_layers": 2, "projectors_bias": True},
     122_608, [64, 64], [(1536, 480), (1536, 480)]),
    ("olmo_hybrid", {**SIZES, "layer_types": [L, L, L, A], "linear_conv_kernel_dim": 4, "linear_key_head_dim": 12,
      "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_value_head_dim": 24,
      "num_hidden_layers": 4},
     235_160, [0, 0, 0, 64], [(2304, 864), (2304, 864), (2304, 864), (0, 0)]),
    ("nemotron_h", {**SIZES, "attention_bias": True, "conv_kernel": 4, "expand": 2, "head_dim": 16,
      "layers_block_type": [L, "moe", A, "mlp"], "mamba_head_dim": 12, "mamba_num_heads": 8,
      "mlp_bias": True, "moe_intermediate_size": 48, "moe_latent_size": 32,
      "moe_shared_expert_intermediate_size": 80, "mtp_layers_block_type": [A, "moe"], "n_groups": 2,
      "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
      "num_nextn_predict_layers": 0, "ssm_state_size": 16, "use_bias": True, "use_conv_bias": True},
     89_268, [0, 0, 64, 0], [(1536, 480), (0, 0), (0, 0), (0, 0)]),
    ("minimax", {**SIZES, "layer_types": [A, L], "num_experts_per_tok": 2, "num_hidden_layers": 2,
      "num_local_experts": 4},
     193_920, [64, 0], [(0, 0), (1024, 0)]),
    ("mamba", {"conv_kernel": 4, "expand": 2, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
      "state_size": 8, "tie_word_embeddings": True, "use_bias": True, "use_conv_bias": True,
      "vocab_size": 100},
     66_368, [0, 0], [(1024, 384), (1024, 384)]),
    ("mamba2", {"conv_kernel": 4, "expand": 2, "head_dim": 16, "hidden_size": 64, "n_groups": 2, "num_heads": 8,
      "num_hidden_layers": 2, "state_size": 16, "tie_word_embeddings": False, "use_bias": True,
      "use_conv_bias": True, "vocab_size": 100},
     74_368, [0, 0], [(2048, 576), (2048, 576)]),
    ("falcon_mamba", {"conv_kernel": 4, "expand": 2, "hidden_size": 64, "intermediate_size": 128,
      "num_hidden_layers": 2,
      "state_size": 8, "tie_word_embeddings": True, "use_conv_bias": False, "vocab_size": 100},
     65_472, [0, 0], [(1024, 384), (1024, 384)]),
    ("qwen3_next", {**SIZES, "attention_bias": True, "decoder_sparse_step": 1, "head_dim": 16, "layer_types": [L, A],
      "linear_conv_kernel_dim": 4, "linear_key_head_dim": 8, "linear_num_key_heads": 2,
      "linear_num_value_heads": 4, "linear_value_head_dim": 12, "moe_intermediate_size": 48,
      "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2,
      "shared_expert_intermediate_size": 80},
     146_996, [0, 64], [(384, 240), (0, 0)]),
    ("glm5_next_text", {**SIZES, "hc_mult": 2, "head_dim": 0, "index_head_dim": 32, "index_kpool": 8,
      "index_n_heads": 4,
      "index_topk": 64, "indexer_types": ["full", "full", "full", "full"], "kv_lora_rank": 32,
      "layer_types": [L, L, L, "indexed_attention"], "linear_conv_kernel_dim": 4, "linear_head_dim": 24,
      "linear_num_heads": 2, "mlp_layer_types": ["dense", "dense", "dense", "sparse"],
      "moe_intermediate_size": 48, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
      "num_hidden_layers": 4, "num_key_value_heads": 4, "q_lora_rank": 40, "qk_nope_head_dim": 16,
      "qk_rope_head_dim": 0, "swiglu_limit": 10.0, "v_head_dim": 12},
     202_306, [0, 0, 0, 34], [(1152, 432), (1152, 432), (1152, 432), (0, 0)]),
    ("zaya", {**SIZES, "cca_time0": 2, "cca_time1": 3, "head_dim": 16, "layer_types": ["hybrid", "hybrid_sliding"],
      "moe_intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 1, "num_hidden_layers": 2,
      "router_hidden_size": 24, "sliding_window": 32, "tie_word_embeddings": True},
     122_006, [64, 64], [(0, 304), (0, 304)]),
    ("qwen4_exp_text", {**SIZES, "hc_count": 2, "hc_lowrank": 12, "head_dim": 32, "heads_per_ngram": 2,
      "indexer_budget": 64,
      "indexer_compress_ratio": 8, "indexer_head_dim": 32, "indexer_kv_heads": 1, "indexer_n_heads": 4,
      "layer_types": [L, L, L, "indexed_attention"], "linear_conv_kernel_dim": 4,
      "linear_key_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
      "linear_value_head_dim": 12, "make_ngram_vocab_size_divisible_by": 128, "moe_intermediate_size": 48,
      "ngram_size": 3, "ngram_vocab_size_base": 50, "num_experts": 4, "num_experts_per_tok": 2,
      "num_hidden_layers": 4, "ple_conv_kernel_size": 4, "ple_embed_dim": 32, "ple_layer_ids": [1, 3],
      "seed": 1234, "shared_expert_intermediate_size": 80, "split_ngram_parts": 512},
     352_508, [0, 0, 0, 132], [(384, 1392), (384, 240), (384, 1392), (0, 0)]),
    ("zamba2", {**SIZES, "adapter_rank": 12, "attention_head_dim": 32, "attention_hidden_size": 128,
      "hybrid_layer_ids": [1, 3, 4], "intermediate_size": 256, "kv_channels": 16,
      "layers_block_type": [L, "hybrid", L, "hybrid", "hybrid"], "mamba_d_conv": 4, "mamba_d_state": 16,
      "mamba_expand": 2, "mamba_headdim": 16, "mamba_ngroups": 2, "n_mamba_heads": 8,
      "num_hidden_layers": 5, "num_mem_blocks": 2, "num_query_groups": 4, "tie_word_embeddings": True,
      "use_conv_bias": True, "use_shared_attention_adapter": True},
     399_544, [0, 128, 0, 128, 128], [(2048, 576), (2048, 576), (2048, 576), (2048, 576), (2048, 576)]),
    ("inkling_text", {**SIZES, "conv_kernel_size": 4, "d_rel": 4, "head_dim": 16,
      "layer_types": [*5 * ["hybrid_sliding"], "hybrid", "hybrid_sliding"],
      "mlp_layer_types": ["dense", "sparse", "sparse", "sparse", "sparse", "sparse", "sparse"],
      "moe_intermediate_size": 48, "n_routed_experts": 4, "n_shared_experts": 2, "num_experts_per_tok": 2,
      "num_hidden_layers": 7, "rel_extent": 48, "shared_expert_sink": True, "sliding_window_size": 32,
      "swa_head_dim": 24, "swa_num_attention_heads": 2, "swa_num_key_value_heads": 1},
     444_319, [48, 48, 48, 48, 48, 64, 48], [(0, 528), (0, 528), (0, 528), (0, 528), (0, 528), (0, 576), (0, 528)]),
]  # fmt: skip


def read(model_type: str, **fields: Any) -> Model:
    return read_config({"model_type": model_type, **fields}, "test")


def states(model: Model) -> Iterator[tuple[int, int]]:
    """Of each layer."""
    for run in model.layers:
        recurrent = kept = 0
        for state in run.states:
            if isinstance(state, LinearAttention):
                recurrent += state.heads * state.key_dim * state.value_dim
                kept += (state.conv_width - 1) * state.conv_channels
            else:
                kept += state.numbers
        yield from [(recurrent, kept)] * run.count


@pytest.mark.parametrize(("model_type", "fields", "parameters", "kv", "held"), CASES)
def test_as_transformers_own_class(
    model_type: str, fields: dict[str, Any], parameters: int, kv: list[float], held: list[tuple[int, int]]
) -> None:
    model = read(model_type, **fields)
    assert model.parameters == parameters
    assert [run.kv_bytes_per_token("bf16") / 2 for run in model.layers for _ in range(run.count)] == kv
    assert list(states(model)) == held
    assert not [said for said in model.assumed if "not understood" in said]


# --- the makers' own forms ------------------------------------------------------------------------------------------


def fields_of(model_type: str) -> dict[str, Any]:
    """Of the first case of this type."""
    return next(dict(fields) for name, fields, *_ in CASES if name == model_type)


def without(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def same(one: Model, other: Model) -> bool:
    return (one.parameters, one.kv_bytes_per_token(), list(states(one))) == (
        other.parameters,
        other.kv_bytes_per_token(),
        list(states(other)),
    )


def test_kimi_linears_own_form() -> None:
    fields = fields_of("kimi_linear")
    own = without(fields, "layer_types", "mlp_layer_types", "linear_head_dim", "linear_num_heads")
    kda = {"full_attn_layers": [5], "kda_layers": [1, 2, 3, 4, 6], "head_dim": 24, "num_heads": 2}
    assert same(
        read("kimi_linear", **own, first_k_dense_replace=1, linear_attn_config=kda), read("kimi_linear", **fields)
    )


def test_lings_own_form() -> None:
    fields = fields_of("bailing_hybrid")
    own = without(fields, "layer_types", "mlp_layer_types", "linear_head_dim", "linear_num_heads", "head_dim")
    own |= {"head_dim": 24, "no_kda_lora": True, "gated_attention_proj_granularity_type": "head_wise"}
    assert same(read("bailing_hybrid", **own), read("bailing_hybrid", **fields))


def test_ling_2_5_has_lightning_attention() -> None:
    fields = fields_of("bailing_hybrid")
    new = without(fields, "layer_types", "mlp_layer_types", "linear_head_dim", "linear_num_heads", "head_dim")
    new |= {"head_dim": 24, "no_kda_lora": True}
    old = without(new, "short_conv_kernel_size", "no_kda_lora", "linear_conv_kernel_dim")
    model = read("bailing_hybrid", **old, use_qk_norm=True)
    wide = 4 * 24
    # vLLM's BailingMoELinearAttention: queries, keys, values and a gate; the output; norms of it and of heads.
    lightning = 4 * 64 * wide + wide * 64 + wide + 2 * 24
    decay_beta = 64 * wide + 64 * 4 + 3 * wide * 4 + 4 + wide + 24
    assert read("bailing_hybrid", **new).parameters - model.parameters == 3 * (
        4 * 64 * wide + wide * 64 + decay_beta - lightning
    )
    assert list(states(model)) == [(4 * 24 * 24, 0)] * 3 + [(0, 0)]


def test_inklings_own_form() -> None:
    fields = fields_of("inkling_text")
    own = without(fields, "layer_types", "mlp_layer_types", "moe_intermediate_size", "conv_kernel_size")
    own |= {"local_layer_ids": [0, 1, 2, 3, 4, 6], "dense_mlp_idx": 1, "sconv_kernel_size": 4}
    own |= {"intermediate_size": 48, "dense_intermediate_size": 96}
    assert same(read("inkling_model", **own), read("inkling_text", **fields))


def test_lfm2s_first_form() -> None:
    fields = fields_of("lfm2")
    own = without(fields, "layer_types", "tie_word_embeddings", "intermediate_size")
    own |= {"full_attn_idxs": [1], "block_ff_dim": 96}
    assert same(read("lfm2", **own, tie_embedding=True), read("lfm2", **fields))
    assert read("lfm2", **own, tie_embedding=False).parameters == read("lfm2", **fields).parameters + 100 * 64


def test_falcon_h1s_own_form_says_that_no_layers_are_apart() -> None:
    fields = fields_of("falcon_h1")
    own = {**fields, "attn_layer_indices": None, "mamba_use_mlp": True, "mlp_expansion_factor": 8}
    assert same(read("falcon_h1", **own), read("falcon_h1", **fields))


def test_a_text_only_glm_says_its_states_in_an_object() -> None:
    fields = fields_of("glm5_next_text")
    own = without(fields, "layer_types", "mlp_layer_types", "linear_head_dim", "linear_num_heads")
    kda = {"head_dim": 24, "num_heads": 2, "short_conv_kernel_size": 4, "safe_gate": True}
    model = read("glm5_next_text", **own, first_k_dense_replace=3, linear_attn_config=kda)
    assert same(model, read("glm5_next_text", **fields))  # every fourth layer has a cache


def test_nemotrons_puzzle_has_fields_of_each_layer() -> None:
    fields = without(fields_of("nemotron_h"), "layers_block_type", "mtp_layers_block_type")
    blocks = [{"block_type": "mamba"}, {"block_type": "moe"}, {"block_type": "attention"}, {"block_type": "mlp"}]
    assert same(
        read("nemotron_h_puzzle", **fields, block_configs=blocks), read("nemotron_h", **fields_of("nemotron_h"))
    )
    blocks[1] |= {"n_routed_experts": 2, "moe_intermediate_size": 24, "num_experts_per_tok": 1}
    smaller = read("nemotron_h_puzzle", **fields, block_configs=blocks)
    experts, half = 4 * 2 * 32 * 48, 2 * 2 * 32 * 24
    router = 64 * 2 + 2
    assert smaller.parameters == read("nemotron_h", **fields_of("nemotron_h")).parameters - experts + half - router
    blocks[1] |= {"quantum_width": 3}
    with pytest.raises(InputError, match=r"block_configs\[1\]: quantum_width is not understood"):
        read("nemotron_h_puzzle", **fields, block_configs=blocks)


def test_auto_is_what_the_width_leaves_to_each_head() -> None:
    fields = fields_of("bamba")
    assert same(read("bamba", **{**fields, "mamba_d_head": "auto"}), read("bamba", **fields))


# --- what is and what is not in it ----------------------------------------------------------------------------------


def test_a_table_that_is_looked_up_is_passed_by_no_token() -> None:
    fields = fields_of("qwen4_exp_text")
    model, longer = (read("qwen4_exp_text", **{**fields, "ngram_vocab_size_base": n}) for n in (50, 5_000))
    assert longer.parameters > model.parameters
    assert longer.active_parameters == model.active_parameters


def test_shared_blocks_are_one_layers_weights() -> None:
    fields = fields_of("zamba2")
    one, two = (read("zamba2", **{**fields, "num_mem_blocks": n}) for n in (1, 2))
    attention = 128 * 128 + 2 * 128 * 64 + 128 * 64  # of the residual stream and the embeddings, to the former
    block = attention + 3 * 64 * 256 + 3 * 64  # MLP; norms
    assert two.parameters - one.parameters == block
    assert two.kv_bytes_per_token() == one.kv_bytes_per_token()


@pytest.mark.parametrize(
    ("model_type", "changes", "said"),
    [
        ("kimi_linear", {"layer_types": None, "linear_attn_config": {"num_heads": 2}}, "no full_attn_layers"),
        ("qwen4_exp_text", {"heads_per_ngram": 5_000, "ple_embed_dim": 10_000}, "tables of n-grams; 1000 at most"),
        ("zamba2", {"layers_block_type": ["mamba", "retention"]}, "layer kind 'retention' is not known"),
        ("zamba2", {"layers_block_type": None}, "no layers_block_type"),
        ("newest", {"layer_types": ["hybrid"], "num_hidden_layers": 1}, "layer type 'hybrid' is not known"),
        ("newest", {"layer_types": [A, A], "num_hidden_layers": 2, **MAMBA}, "change sizes: mamba_conv_bias"),
    ],
)
def test_refused_in_one_line(model_type: str, changes: dict[str, Any], said: str) -> None:
    fields = SIZES if model_type == "newest" else fields_of(model_type)
    with pytest.raises(InputError) as caught:
        read(model_type, **{**fields, **changes})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


# --- where sizes go on ----------------------------------------------------------------------------------------------


def deploy(folder: Path, model_type: str, options: str = "", **changes: Any) -> Any:
    config = {**fields_of(model_type), "model_type": model_type, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return parse_deployment(f"{folder / 'config.json'}@{options or '1xh200'}")


def test_attention_and_a_state_in_one_layer_are_two_caches(tmp_path: Path) -> None:
    (rank,) = ranks(deploy(tmp_path, "falcon_h1"))
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
    deployment = deploy(tmp_path, "bamba", f"1xh200/engine={engine}", **changes)
    state = 2048 * width + 576 * 2
    assert [layer.state_bytes for layer in ranks(deployment)[0].cache if layer.state_bytes] == [state]
    assert float(work_of(deployment).state[0]) == 2 * 2 * state  # two layers; read and written


@pytest.mark.parametrize("model_type", ["kimi_linear", "nemotron_h"])
def test_states_that_every_engine_keeps_in_fp32(tmp_path: Path, model_type: str) -> None:
    recurrent, kept = next(held for held in states(deploy(tmp_path, model_type).model) if held[0])
    sizes = {layer.state_bytes for layer in ranks(deploy(tmp_path, model_type))[0].cache if layer.state_bytes}
    assert sizes == {recurrent * 4 + kept * 2}


def test_a_state_is_cut_by_its_own_heads(tmp_path: Path) -> None:
    found = contradictions(deploy(tmp_path, "falcon_h1", "4xh200/tp4", mamba_n_heads=6, mamba_d_head=16))
    assert any("6 heads of the linear attention" in said for said in found)


def test_mixers_of_residual_streams_are_products(tmp_path: Path) -> None:
    def flops(rank: int) -> float:
        work = work_of(deploy(tmp_path, "qwen4_exp_text", hc_lowrank=rank))
        return float((work.count * work.flops).sum())

    # Two of them in each of four layers, and one at the end, from two streams of 64 and back.
    assert flops(20) - flops(12) == (4 * 2 + 1) * 2 * (2 * 128 * 8)
