"""What a config.json leaves to its `model_type`: facts that are in the model's code, not in its fields."""

from __future__ import annotations

from typing import Literal

import msgspec


class Family(msgspec.Struct, frozen=True):
    """What holds unless the config's own field says otherwise.

    bias: on Q, K, V. norms: vectors of hidden size in each layer; outer_norms: beside the layers. tied: where
    `tie_word_embeddings` is absent. gate: sigmoid on the attention's output. positions: a learnt table, this many
    rows longer than the context. draft_dense: draft layers have the dense MLP and the sliding window, whatever the
    last layer has.
    """

    bias: bool = False
    qk_norm: Literal["head", "whole"] | None = None
    norms: int = 2
    tied: bool = False
    matrices: Literal[2, 3] = 3
    gate: Literal["element", "head"] | None = None
    sinks: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False
    mlp_bias: bool = False
    output_bias: bool = False
    positions: int | None = None
    outer_norms: int = 1
    draft_dense: bool = False


FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "mistral": Family(),
    "mistral3": Family(),
    "mixtral": Family(),
    "nemotron-nas": Family(),
    "llama4": Family(),
    "llama4_text": Family(),
    "qwen2": Family(bias=True),
    "qwen2_moe": Family(bias=True, shared_gate=True),
    "qwen3": Family(qk_norm="head"),
    "qwen3_moe": Family(qk_norm="head"),
    "qwen3_vl_text": Family(qk_norm="head"),
    "qwen3_vl_moe_text": Family(qk_norm="head"),
    "qwen3_next": Family(qk_norm="head", gate="element", shared_gate=True),
    "qwen3_5_text": Family(qk_norm="head", gate="element"),
    "qwen3_5_moe_text": Family(qk_norm="head", gate="element", shared_gate=True),
    "gemma2": Family(norms=4, tied=True),
    "gemma3_text": Family(qk_norm="head", norms=4, tied=True),
    "gemma4_text": Family(qk_norm="head", norms=4, tied=True),
    "gpt_oss": Family(bias=True, output_bias=True, sinks=True, expert_bias=True, router_bias=True),
    "glm4_moe": Family(router_bias=True),
    "glm_moe_dsa": Family(router_bias=True),
    "deepseek_v2": Family(),
    "deepseek_v3": Family(router_bias=True),
    "deepseek_v32": Family(router_bias=True),
    "deepseek_v4": Family(router_bias=True),
    "deepseek_ref": Family(router_bias=True),
    "kimi_k2": Family(router_bias=True),
    "kimi_linear": Family(router_bias=True),
    "minimax_m2": Family(qk_norm="whole", router_bias=True),
    "minimax_m3": Family(qk_norm="head", router_bias=True),
    "mimo": Family(bias=True),
    "mimo_v2_flash": Family(router_bias=True, draft_dense=True),
    "nemotron_h": Family(norms=1, matrices=2, router_bias=True),
    "step3p7": Family(qk_norm="head", gate="head", router_bias=True, draft_dense=True),
    "bloom": Family(bias=True, output_bias=True, mlp_bias=True, norms=4, outer_norms=4, tied=True, matrices=2),
    "opt": Family(
        bias=True, output_bias=True, mlp_bias=True, norms=4, outer_norms=2, tied=True, matrices=2, positions=2
    ),
    "gpt2": Family(
        bias=True, output_bias=True, mlp_bias=True, norms=4, outer_norms=2, tied=True, matrices=2, positions=0
    ),
    "phi3": Family(),
    "granite": Family(),
    "olmo2": Family(qk_norm="whole"),
}

IGNORED = frozenset(
    """
    architectures model_type auto_map torch_dtype dtype transformers_version _name_or_path name_or_path use_cache
    bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id decoder_start_token_id initializer_range
    attention_dropout hidden_dropout embd_pdrop resid_pdrop classifier_dropout pretraining_tp ep_size
    rope_theta rope_scaling rope_parameters rope_interleave partial_rotary_factor rotary_dim rope_local_base_freq
    swa_rope_theta compress_rope_theta mrope_section mla_use_nope original_max_position_embeddings
    initial_context_length local_rope_theta
    rms_norm_eps layer_norm_eps layer_norm_epsilon layernorm_epsilon norm_eps norm_epsilon use_gemma_norm
    hidden_act hidden_activation mlp_hidden_act mamba_hidden_act swiglu_alpha swiglu_limit activation_situ_beta
    activation_situ_linear_beta final_logit_softcapping attn_logit_softcapping query_pre_attn_scalar
    norm_topk_prob scoring_func n_group topk_group topk_method routed_scaling_factor router_aux_loss_coef seq_aux
    aux_loss_alpha output_router_logits moe_renormalize moe_router_activation_func num_expert_group
    use_grouped_topk moe_router_dtype moe_router_scaling_factor router_jitter_noise num_hash_layers
    max_window_layers attention_value_scale num_logits_to_keep residual_in_fp32 rescale_prenorm_residual
    time_step_floor time_step_limit time_step_max time_step_min time_step_rank chunk_size use_mamba_kernels
    use_bidirectional_attention vocab_size_per_layer_input mlp_bias moe_shared_expert_overlap
    cross_attention_hidden_size add_cross_attention is_decoder is_encoder_decoder id2label label2id finetuning_task
    output_attentions output_hidden_states output_scores return_dict return_dict_in_generate torchscript
    use_bfloat16 tokenizer_class prefix problem_type pruned_heads remove_invalid_values chunk_size_feed_forward
    bad_words_ids begin_suppress_tokens suppress_tokens forced_bos_token_id forced_eos_token_id do_sample
    early_stopping encoder_no_repeat_ngram_size no_repeat_ngram_size repetition_penalty length_penalty
    max_length min_length num_beam_groups num_beams num_return_sequences diversity_penalty temperature top_k top_p
    typical_p exponential_decay_length_penalty task_specific_params tf_legacy_loss tie_encoder_decoder
    ignore_index image_token_id video_token_id audio_token_id image_token_index vision_start_token_id
    vision_end_token_id boa_token_id boi_token_id eoa_token_id eoa_token_index eoi_token_id image_placeholder
    video_placeholder media_placeholder_token_id vision_soft_tokens_per_image use_unified_vision_chunk
    image_break_token_id image_end_token_id quantization_config expert_dtype
    hc_eps hc_sinkhorn_iters gate_lower_bound sliding_window_size attention_chunk_size index_skip_topk_offset
    index_topk_freq index_topk_pattern indexer_rope_interleave index_share_for_mtp_iteration sparse_init_block
    use_qk_norm use_routing_bias use_moe_router_bias rescale_layer
    """.split()  # noqa: SIM905
)
"""Fields that change no size: dropout, tokens, generation defaults, RoPE, scaling of the router's scores ..."""
