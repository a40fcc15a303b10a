"""What a config.json leaves to its `model_type`: facts that are in the model's code, not in its fields."""

from __future__ import annotations

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
    "gemma4_unified_text": _GEMMA4,
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
    "minimax_m3_text": Family(qk_norm="head", router_bias=True),
    "mimo": Family(bias=True),
    "mimo_v2_flash": Family(output_bias=False, router_bias=True, draft_dense=True, windows_apart=True),
    "mimo_v2": Family(output_bias=False, router_bias=True, draft_dense=True),
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
    "molmo2_text": Family(qk_norm="head", output_bias=False, head_dim=128),
    "muse_glimmer_text": Family(norms=4, gate="element", head_dim=128),
    "baichuan": Family(),
    "internlm2": Family(),
    "internlm3": Family(),
    "orion": Family(norms=4, outer_norms=2),
    "telechat": Family(norms=3),  # the third vector: the MLP's second matrix has a bias
    "telechat3": Family(),
    "TeleFLM": Family(),
    "solar": Family(),
    "step1": Family(),
    "plamo3": Family(qk_norm="head", norms=4, tied=True),
    "iquest_q1": Family(qk_norm="head", norms=3, outer_norms=2),  # one more norm in the first layer
    "iquestloopcoder": Family(),
    "nanbeige": Family(),
    "ouro": Family(norms=4),
    "spark2_5": Family(),
    "gigachat3_5": Family(router_bias=True),
    "grok-1": Family(norms=4),
    "deepseek": Family(),
    "dots_ocr": Family(bias=True),
    "qwen": Family(bias=True),
    "molmo": Family(),
    "mimo_v2_omni": Family(output_bias=False, router_bias=True, draft_dense=True),
    "step3_text": Family(),
    "k2_horizon": Family(qk_norm="whole", qk_norm_if_said=True, gate="element"),
    "PanguEmbedded": Family(),
    "PanguProMoE": Family(),
    "pangu_ultra_moe": Family(),
    "dots1": Family(qk_norm="head", router_bias=True),
    "bailing_moe": Family(qk_norm="head", qk_norm_if_said=True),
    "bailing_moe_v2": Family(qk_norm="head", router_bias=True),
    "sarvam_moe": Family(qk_norm="head", qk_norm_if_said=True, router_bias=True),
    "sarvam_mla": Family(router_bias=True),
    "param2moe": Family(qk_norm="head", qk_norm_if_said=True, router_bias=True),
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
    "deepseek_v41": "tables of n-grams beside its layers, caches that layers share",
    "deepseek_v41_text": "tables of n-grams beside its layers, caches that layers share",
    "interns2_mobius_text": "experts that several layers share",
    "minicpm_sala": "lightning attention with norms and gates of its own beside sparse attention",
    "jet_nemotron": "convolutions whose weights are computed from the tokens",
    "moondream3": "attention scaled by what it reads, MLPs of two kinds",
    "moondream3_text": "attention scaled by what it reads, MLPs of two kinds",
    "zamba": "layers that share one block's weights",
    "diffusion_gemma_text": "it writes blocks of tokens by diffusion",
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
