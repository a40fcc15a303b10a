"""Fields of a config.json that change no size."""

from __future__ import annotations

import re

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
    use_grouped_topk moe_router_dtype moe_router_scaling_factor router_jitter_noise
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
    image_seq_length video_seq_length image_grid_pinpoints mm_tokens_per_image num_image_tokens image_patch_id
    spatial_pool_mode spatial_pool_stride vision_aspect_ratio position_id_per_seconds seconds_per_chunk
    downsample_mode insert_layer_id
    image_break_token_id image_end_token_id quantization_config expert_dtype
    hc_eps hc_sinkhorn_iters gate_lower_bound sliding_window_size attention_chunk_size index_skip_topk_offset
    index_topk_freq index_topk_pattern indexer_rope_interleave index_share_for_mtp_iteration sparse_init_block
    use_qk_norm use_routing_bias use_moe_router_bias rescale_layer
    activation activation_function alibi apply_query_key_layer_scaling apply_residual_connection_post_layernorm
    attention_softmax_in_fp32 attn_implementation attn_impl attn_temperature_tuning bias_dropout_fusion block_size
    block_use_swiglu block_use_xavier_init cache_implementation conv_use_xavier_init
    expert_selection_fn shared_expert_combination_strategy layer_rope_theta zero_expert_type attention_method
    mla_scale_kv_lora mla_scale_q_lora swiglu_limits swiglu_limits_shared router_scaling_factor route_scale
    enable_moe_fp32_combine mup_enabled moe_norm_min norm_expert_weight moe_router_activation
    att_impl_type need_fp32_gate use_rope_layers yarn_only_types partial_rotary_factors use_moe swa_rope_parameters
    moe_apply_router_weight_on_input moe_routed_scaling_factor output_multiplier qk_scale_factor
    num_expert_groups num_limited_groups zero_centered moe_router_use_sigmoid dense_list im_patch_id rope_3d
    freq_allocation use_rmsnorm multimodel_experts pixel_hidden_size spatial_conv_size temporal_conv_size
    moe_multimodal_dispatch_use_allgather residual_gate_temperature learnable_sink_init enable_lm_head_fp32
    mtp_loss_factor normalize_tok_embeddings dim_model_base scale_depth scale_emb embedding_initializer_range
    load_balance_coeff route_norm score_func use_grouped_mm
    enable_expert_tensor_parallelism gradient_checkpointing init_config init_device init_method layer_switch
    learned_pos_emb mamba_chunk_size masked_softmax_fusion moe_capacity
    moe_gate moe_normalize_expert_weights moe_router_enable_expert_bias moe_use_aux_free n_ctx no_bias
    anyres_pooling_size attn_res_block_size norm_before_gate
    norm_after
    no_rope_layer_interval no_rope_layers norm_type normalization_function offset_alibi order_of_interleaved_layers
    layer_rope_theta rope_scaling_layers scale_attn_by_inverse_layer_idx activation_sparsity_pattern altup_active_idx
    altup_coef_clip altup_correct_scale scale_emb scale_depth dim_model_base original_rope
    org_vocab_size parallel_attn position_embedding_type post_layer_norm qk_layernorm qk_norm reorder_and_upcast_attn
    rms_norm rmsnorm rope_ratio rope_theta rotary rotary_emb_base rotary_pct scale_attn_weights
    scale_attention_softmax_in_fp32 score_function shared_moe_mode use_expert_bias use_mixed_mlp_moe
    use_embedding_sharing use_gated_activation use_parallel_block use_parallel_residual vision_token_id
    use_mambapy use_associative_scan time_step_init_scheme mamba_norm_before_gate mamba_chunk_size z_loss_coefficient
    mlp_multipliers ssm_multipliers linear_a_log_min linear_a_log_max linear_allow_neg_eigval linear_dt_min
    linear_dt_max linear_dt_init_floor kda_safe_gate kda_lower_bound linear_lower_bound mtp_loss_scaling_factor
    attn_rotary_emb mamba_use_mlp mlp_expansion_factor block_norm_eps block_mlp_init_scale block_out_init_scale
    calc_logits_for_entire_prompt unpadded_vocab_size use_sconv use_embed_norm use_gate_bias use_global_scale
    norm_after_topk gate_activation inference_moe_w13_interleaved mhc index_kpool_compress mamba_dt_min mamba_dt_max
    mamba_dt_limit mamba_dt_init_floor mtp_local_layer_ids
    index_kpool_always_select_tail output_gate_type ssm_in_multiplier ssm_out_multiplier key_multiplier
    lm_head_multiplier attention_in_multiplier attention_out_multiplier logits_mup_width_multiplier
    mtp_hidden_states_first number_of_conv_states log_scaling_n_floor rms_norm_eps_moe_gate route_scale
    q_head_dim is_moe_layer rope_local_theta linear_type use_rmsnorm router_dtype base_seqlen training_seqlen
    flash_attn use_RMSNorm scale_emb scale_depth dim_model_base mup_scale_factor output_mult input_mult use_mup
    residual_moe router_score_func attention_gate_func original_rope router_scaling_factor embd_layer img_processor
    audio_processor vision_lora speech_lora use_position_ids query_num slice_config vision_batch_size version
    use_mla_scaling_factor use_dynamic_ntk use_flash_attn use_logn_attn early_exit_threshold
    router_logit_softcapping im_end_token image_token_len understand_projector_stride patch_token_len
    """.split()  # noqa: SIM905
)
"""Fields that change no size: dropout, tokens, generation defaults, RoPE, scaling of the router's scores ..."""

HARMLESS = re.compile(
    r"_(alpha|beta|alpha_factor|beta_factor|scale|scaling|eps|std|init|coef|loss_weight|dropout|pdrop|noise|act|act_fn"
    r"|token_id|token_index)$|^(attention|embedding|residual)_multiplier$|^(summary|vision_feature|vit)_"
)
"""Likewise, by the ends and beginnings of their names."""
