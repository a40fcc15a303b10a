"""What a config.json leaves to its `model_type`: facts that are in the model's code, not in its fields."""

from __future__ import annotations

import re
from typing import Literal

import msgspec
from msgspec.structs import replace

Beside = Literal["number", "head_dim", "num_attention_heads", "intermediate_size"]
State = Literal["mamba1", "mamba1-normed", "mamba2", "lightning", "short-conv", "kda-full", "beside", "shared"]
"""`mamba1-normed`: with norms within (Jamba); `kda-full`: KDA whose gates are of full rank; `beside`: Mamba-2 with
attention in each layer; `shared`: Mamba-2 in each layer, and in some one of few blocks that they share."""


class Family(msgspec.Struct, frozen=True):
    """What holds unless the config's own field says otherwise.

    The attention:
    bias                on Q, K, V
    output_bias         on the output, where Q, K, V have theirs; None: by `attention_bias`, unless `bias` is the
                        class's own and no field turns it off
    qk_norm             see FullAttention; bare: without weights
    qk_norm_if_said     only where `use_qk_norm` (`qk_layernorm`) is true
    gate                sigmoid on the output; gate_in_query: see FullAttention
    sinks               a number for each head
    head_dim            where no field says; None: hidden / heads. wide_head_dim: of layers that see everything
    windows             which layers have one where neither `layer_types` nor a pattern says: L a window, G
                        everything, again and again; $ at the end: the last one sees everything
    windows_apart       layers with a window have twice the KV heads, and sinks, where no `swa_` field says it
    rope_norm           on latent attention's RoPE key
    state               what layers without a KV cache keep, where fields do not tell
    only_states         all layers are such, without an MLP
    period              where no field says which, every so many layers one with a KV cache among such without

    The MLP and the experts:
    matrices            of an MLP: 3 with a gate, else 2
    mlp_bias            on an MLP; mlp_plain: the field `mlp_bias` means nothing
    four_times          MLPs are four times hidden where no field says how wide
    expert_bias         on the experts. router_bias: a correction for each in the router. shared_gate: see Experts
    shared_experts      so many, where no field says
    draft_dense         draft layers have the dense MLP and the sliding window, whatever the last layer has

    What is beside both:
    norms               vectors of hidden size in each layer; sparse_norms: more of them in layers with experts
    one_norm            the field by which attention and MLP run side by side, behind one norm
    outer_norms         vectors of hidden size beside the layers
    beside              other vectors of each layer, so many of such a length
    all_biases          the field that turns all biases off or on. head_bias: on the output head
    positions           a learnt table, so many rows longer than the context
    streams_averaged    several residual streams end in their mean, not in weights
    tied                the output head is the input table, where `tie_word_embeddings` is absent
    """

    bias: bool = False
    output_bias: bool | None = None
    qk_norm: Literal["head", "whole", "layer", "bare"] | None = None
    qk_norm_if_said: bool = False
    gate: Literal["element", "head"] | None = None
    gate_in_query: bool = False
    sinks: bool = False
    head_dim: int | None = None
    wide_head_dim: int | None = None
    windows: str = ""
    windows_apart: bool = False
    rope_norm: bool = False
    state: State | None = None
    only_states: bool = False
    period: int = 0
    matrices: Literal[2, 3] = 3
    mlp_bias: bool = False
    mlp_plain: bool = False
    four_times: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False
    shared_experts: int = 0
    draft_dense: bool = False
    norms: int = 2
    sparse_norms: int = 0
    one_norm: str = ""
    outer_norms: int = 1
    beside: tuple[tuple[int, Beside], ...] = ()
    all_biases: str = ""
    head_bias: bool = False
    positions: int | None = None
    streams_averaged: bool = False
    tied: bool = False


_GEMMA4 = Family(qk_norm="head", norms=4, tied=True, windows="LLLLLG$", head_dim=256, wide_head_dim=512)
_FALCON = Family(
    norms=4, outer_norms=2, tied=True, matrices=2, all_biases="bias", one_norm="parallel_attn", four_times=True
)
_BIASED = Family(bias=True, output_bias=True, mlp_bias=True, norms=4, outer_norms=2, matrices=2)
"""LayerNorms and biases everywhere, an MLP of two matrices: as GPT-2 was."""

FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "mistral": Family(),
    "mistral3": Family(),
    "mixtral": Family(),
    "nemotron-nas": Family(),
    "emu3_text_model": Family(),
    "llama4": Family(qk_norm="bare"),
    "llama4_text": Family(qk_norm="bare"),
    "qwen2": Family(bias=True, windows="G"),
    "qwen2_vl": Family(bias=True),
    "qwen2_vl_text": Family(bias=True),
    "qwen2_5_vl": Family(bias=True),
    "qwen2_5_vl_text": Family(bias=True),
    "qwen2_moe": Family(bias=True, shared_gate=True),
    "qwen3": Family(qk_norm="head", windows="G", head_dim=128),
    "qwen3_moe": Family(qk_norm="head"),
    "qwen3_vl_text": Family(qk_norm="head", head_dim=128),
    "qwen3_vl_moe_text": Family(qk_norm="head"),
    "qwen3_omni_moe_text": Family(qk_norm="head"),
    "qwen2_5_omni_text": Family(bias=True),
    "qwen3_next": Family(qk_norm="head", gate="element", gate_in_query=True, shared_gate=True),
    "qwen3_5_text": Family(qk_norm="head", gate="element", gate_in_query=True),
    "qwen3_5_moe_text": Family(qk_norm="head", gate="element", gate_in_query=True, shared_gate=True),
    "gemma2": Family(norms=4, tied=True, windows="LG", head_dim=256),
    "gemma3_text": Family(qk_norm="head", norms=4, tied=True, windows="LLLLLG", head_dim=256),
    "gemma3n_text": Family(qk_norm="head", norms=4, tied=True, windows="LLLLG", head_dim=256),
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": Family(
        qk_norm="head", norms=4, tied=True, windows="LLLLLG$", head_dim=256, wide_head_dim=512
    ),
    "vaultgemma": Family(tied=True, windows="LG", head_dim=256),
    "gpt_oss": Family(bias=True, output_bias=True, sinks=True, expert_bias=True, router_bias=True),
    "glm4_moe": Family(qk_norm="head", qk_norm_if_said=True, output_bias=False, router_bias=True),
    "glm4v_moe_text": Family(qk_norm="head", qk_norm_if_said=True, output_bias=False, router_bias=True),
    "glm_moe_dsa": Family(router_bias=True, mlp_plain=True),
    "glm4_moe_lite": Family(router_bias=True),
    "solar_open": Family(output_bias=False, router_bias=True),
    "deepseek_ocr2_text": Family(),
    "unlimited_ocr_text": Family(),
    "axk1": Family(router_bias=True, sparse_norms=1),
    "dots3_note": Family(gate="head", router_bias=True, rope_norm=True, mlp_plain=True),
    "dots3_note_text": Family(gate="head", router_bias=True, rope_norm=True, mlp_plain=True),
    "hy_v3": Family(qk_norm="head", router_bias=True),
    "hy_v4": Family(gate="element", sinks=True, router_bias=True),
    "longcat_flash": Family(router_bias=True),
    "mistral4": Family(),
    "minicpm3": Family(),
    "youtu": Family(),
    "afmoe": Family(qk_norm="head", norms=4, gate="element", router_bias=True),
    "kolibri1": Family(qk_norm="head", norms=4, router_bias=True),
    "laguna": Family(qk_norm="head", gate="head", router_bias=True),
    "flint": Family(qk_norm="head", sinks=True),
    "flex_olmo": Family(qk_norm="whole"),
    "mellum": Family(qk_norm="head"),
    "muse_spark_text": Family(norms=5, gate="element", router_bias=True),
    "exaone_moe": Family(qk_norm="head", router_bias=True),
    "ernie4_5_moe_vl": Family(tied=True, router_bias=True, all_biases="use_bias"),
    "ernie4_5_vl_moe": Family(tied=True, router_bias=True, all_biases="use_bias"),
    "ernie4_5_vl_moe_text": Family(tied=True, router_bias=True, all_biases="use_bias"),
    "minimax_m3_vl_text": Family(qk_norm="head", router_bias=True),
    "cohere2_moe": Family(norms=1, tied=True),
    "granitemoeshared": Family(),
    "granitemoe_swa": Family(sinks=True),
    "aria_text": Family(),
    "deepseek_v2": Family(),
    "deepseek_v3": Family(router_bias=True),
    "deepseek_v32": Family(router_bias=True, mlp_plain=True),
    "deepseek_v4": Family(router_bias=True),
    "deepseek_ref": Family(router_bias=True),
    "kimi_k2": Family(router_bias=True),
    "kimi_linear": Family(router_bias=True),
    "minimax_m2": Family(qk_norm="whole", router_bias=True),
    "minimax_m3": Family(qk_norm="head", router_bias=True),
    "mimo": Family(bias=True),
    "mimo_v2_flash": Family(output_bias=False, router_bias=True, draft_dense=True, windows_apart=True),
    "nemotron_h": Family(norms=1, matrices=2, router_bias=True),
    "step3p5": Family(qk_norm="head", gate="head", router_bias=True, draft_dense=True),
    "step3p7": Family(qk_norm="head", gate="head", router_bias=True, draft_dense=True),
    "bloom": replace(_BIASED, four_times=True, outer_norms=4, tied=True),
    "opt": replace(_BIASED, tied=True, positions=2, all_biases="enable_bias"),
    "biogpt": replace(_BIASED, tied=True, positions=2),
    "gpt2": replace(_BIASED, four_times=True, tied=True, positions=0),
    "gpt_bigcode": replace(_BIASED, four_times=True, tied=True, positions=0),
    "gpt_neox": _BIASED,
    "jais2": _BIASED,
    "persimmon": replace(_BIASED, qk_norm="layer"),
    "starcoder2": replace(_BIASED, tied=True, all_biases="use_bias"),
    "phi": replace(_BIASED, norms=2, qk_norm="layer", qk_norm_if_said=True, head_bias=True),
    "gptj": Family(four_times=True, mlp_bias=True, norms=2, outer_norms=2, matrices=2, head_bias=True),
    "codegen": Family(four_times=True, mlp_bias=True, norms=2, outer_norms=2, matrices=2, head_bias=True),
    "RefinedWeb": replace(_FALCON, one_norm=""),
    "RefinedWebModel": _FALCON,
    "falcon": _FALCON,
    "mpt": Family(four_times=True, tied=True, matrices=2),
    "nemotron": Family(norms=4, outer_norms=2, matrices=2),
    "arcee": Family(matrices=2),
    "bitnet": Family(norms=3, beside=((1, "intermediate_size"),)),
    "apertus": Family(qk_norm="head", matrices=2, beside=((2, "number"),)),
    "diffllama": Family(beside=((4, "head_dim"),)),
    "helium": Family(output_bias=False, head_dim=128),
    "nanochat": Family(qk_norm="bare", norms=0, outer_norms=0, matrices=2),
    "stablelm": Family(
        norms=4, outer_norms=2, qk_norm="whole", qk_norm_if_said=True, one_norm="use_parallel_residual"
    ),
    "phi3": Family(),
    "phi4_multimodal": Family(),
    "phimoe": Family(norms=4, outer_norms=2),
    "granite": Family(),
    "granite_swa": Family(sinks=True, tied=True, windows="GLLL"),
    "granitemoe": Family(),
    "granitemoehybrid": Family(),
    "olmo": Family(norms=0, outer_norms=0),
    "olmo2": Family(qk_norm="whole"),
    "olmo3": Family(qk_norm="whole", windows="LLLG"),
    "olmoe": Family(qk_norm="whole"),
    "granite_docling_text": Family(tied=True),
    "hunyuan_vl_text": Family(qk_norm="head", tied=True),
    "gemma": Family(tied=True, head_dim=256),
    "cohere": Family(norms=1, tied=True, qk_norm="whole", qk_norm_if_said=True),
    "cohere2": Family(norms=1, tied=True, windows="LLLG"),
    "exaone": Family(),
    "exaone4": Family(qk_norm="head", windows="LLLG"),
    "ernie4_5": Family(tied=True, all_biases="use_bias", head_dim=128),
    "paddleocr_vl_text": Family(tied=True, all_biases="use_bias", head_dim=128),
    "ernie4_5_moe": Family(tied=True, router_bias=True, all_biases="use_bias"),
    "hunyuan_v1_dense": Family(qk_norm="head"),
    "hunyuan_v1_moe": Family(qk_norm="head", shared_experts=1),
    "glm": Family(bias=True, output_bias=False, head_dim=128),
    "glm4": Family(bias=True, norms=4, output_bias=False, head_dim=128),
    "glm4v_text": Family(bias=True, norms=4),
    "glm_ocr_text": Family(norms=4),
    "chatglm": Family(),
    "seed_oss": Family(bias=True, output_bias=False, head_dim=128),
    "smollm3": Family(tied=True, windows="G"),
    "beam": Family(
        router_bias=True,
        qk_norm="head",
        norms=4,
        gate="element",
        windows="LLLLLG$",
        beside=((1, "num_attention_heads"),),
        head_dim=128,
    ),
    "cohere_compass_text": Family(norms=1, tied=True, windows="G"),
    "cosmos3_edge_text": Family(matrices=2),
    "cwm": Family(windows="GLLL", head_dim=128),
    "hyperclovax": Family(norms=4),
    "iquestcoder": Family(head_dim=128),
    "minicpm": Family(tied=True),
    "ministral": Family(),
    "ministral3": Family(head_dim=128),
    "orion": Family(norms=4, outer_norms=2),
    "molmo2_text": Family(qk_norm="head", output_bias=False, head_dim=128),
    "muse_glimmer_text": Family(norms=4, gate="element", head_dim=128),
    "baichuan": Family(),
    "internlm2": Family(),
    "internlm3": Family(),
    "dots1": Family(qk_norm="head", router_bias=True),
    "bailing_moe": Family(),
    "bailing_moe_v2": Family(qk_norm="head", router_bias=True),
    "dbrx": Family(),
    "arctic": Family(norms=3),
    "minimax": Family(state="lightning"),
    "minimax_text_01": Family(state="lightning"),
    "jamba": Family(state="mamba1-normed"),
    "bamba": Family(state="mamba2"),
    "mamba": Family(norms=1, tied=True, state="mamba1", only_states=True),
    "falcon_mamba": Family(norms=1, tied=True, state="mamba1", only_states=True),
    "mamba2": Family(norms=1, only_states=True),
    "lfm2": Family(qk_norm="head", tied=True, state="short-conv"),
    "lfm2_moe": Family(qk_norm="head", tied=True, router_bias=True, state="short-conv"),
    "lfm3": Family(qk_norm="head", tied=True, gate="head", state="short-conv"),
    "bailing_hybrid": Family(router_bias=True, gate="head", state="kda-full"),
    "falcon_h1": Family(state="beside"),
    "zamba2": Family(tied=True, state="shared"),
    "olmo_hybrid": Family(qk_norm="whole"),
    "glm5_next_text": Family(router_bias=True, period=4, streams_averaged=True),
    "zaya": Family(tied=True, router_bias=True),
    "qwen4_exp_text": Family(qk_norm="head", gate="element", gate_in_query=True, shared_gate=True, norms=0),
    "inkling_text": Family(qk_norm="head", outer_norms=2, router_bias=True),
    "inkling_model": Family(qk_norm="head", outer_norms=2, router_bias=True),
    "nemotron_h_puzzle": Family(norms=1, matrices=2, router_bias=True),
}

NOT_READ = {
    "zamba": "layers that share one block's weights",
    "diffusion_gemma_text": "it writes blocks of tokens by diffusion",
    "qwen": "its MLPs are half as wide as intermediate_size says; with half of that it can be read as a qwen2",
    "hrm_text": "layers that run several times",
    "mllama_text_model": "layers of cross attention to images",
    "doge": "a mask computed from values, experts of single numbers",
    "jetmoe": "experts in the attention",
    "recurrent_gemma": "recurrent layers of a kind of its own",
    "rwkv": "recurrent layers of a kind of its own",
    "moshi": "a second decoder that runs at every token",
    "xlstm": "recurrent layers of a kind of its own",
}
"""Model types whose layers are of a shape that is not known here, and what that is."""

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
    """.split()  # noqa: SIM905
)
"""Fields that change no size: dropout, tokens, generation defaults, RoPE, scaling of the router's scores ..."""

HARMLESS = re.compile(
    r"_(alpha|beta|alpha_factor|beta_factor|scale|scaling|eps|std|init|coef|loss_weight|dropout|pdrop|noise|act|act_fn"
    r"|token_id|token_index)$|^(attention|embedding|residual)_multiplier$|^(summary|vision_feature|vit)_"
)
"""Likewise, by the ends and beginnings of their names."""
