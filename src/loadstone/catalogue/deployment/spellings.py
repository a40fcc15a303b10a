"""What engines' own command lines call things: under which name it is said here, or what to do in its place."""

from __future__ import annotations

SAME: dict[str, dict[str, str]] = {
    "vllm": {
        "data_parallel_size": "dp",
        "enable_prefix_caching": "prefix_caching",
        "kv_cache_dtype": "kv",
        "pipeline_parallel_size": "pp",
        "speculative_model": "draft",
        "tensor_parallel_size": "tp",
    },
    "sglang": {
        "context_length": "max_model_len",
        "disable_cuda_graph": "enforce_eager",
        "enable_dp_attention": "attention-dp",
        "dp_size": "dp",
        "ep_size": "ep",
        "kv_cache_dtype": "kv",
        "pp_size": "pp",
        "speculative_draft_model_path": "draft",
        "speculative_num_steps": "num_speculative_tokens",
        "tp_size": "tp",
    },
    "tensorrt-llm": {
        "enable_block_reuse": "prefix_caching",
        "enable_chunked_context": "enable_chunked_prefill",
        "kv_cache_free_gpu_memory_fraction": "free_gpu_memory_fraction",
        "max_draft_len": "num_speculative_tokens",
        "moe_expert_parallel_size": "ep",
        "pipeline_parallel_size": "pp",
        "pp_size": "pp",
        "speculative_model_dir": "draft",
        "tensor_parallel_size": "tp",
        "tp_size": "tp",
    },
    "llama.cpp": {
        "draft_max": "num_speculative_tokens",
        "model_draft": "draft",
        "n_parallel": "parallel",
    },
}
"""By engine: the same thing with the same values, taken under either name."""

_NOTHING = "changes nothing here; leave it out"
_UNKNOWN = "is not simulated here; leave it out"
_DTYPE = "is written after the model's name: {model}:{weights}@…; the default is the checkpoint's"
_DRAFT = "is written as two: num_speculative_tokens=5,draft=MODEL"

ELSEWHERE: dict[str, dict[str, str]] = {
    "": {
        "dtype": _DTYPE,
        "host": _NOTHING,
        "load_format": _NOTHING,
        "model": "stands before the @: {model}@…",
        "port": _NOTHING,
        "quantization": _DTYPE,
        "seed": _NOTHING,
        "served_model_name": _NOTHING,
        "tokenizer": _NOTHING,
        "trust_remote_code": _NOTHING,
    },
    "vllm": {
        "async_scheduling": _UNKNOWN,
        "attention_backend": _UNKNOWN,
        "compilation_config": "is not understood; its cudagraph_mode=NONE and enforce_eager=1 are",
        "disable_log_requests": _NOTHING,
        "distributed_executor_backend": _NOTHING,
        "enable_expert_parallel": "is written as the number of expert-parallel ranks: ep8",
        "enable_lora": _UNKNOWN,
        "no_enable_prefix_caching": "is prefix_caching=0 here",
        "num_scheduler_steps": _UNKNOWN,
        "scheduling_policy": _UNKNOWN,
        "speculative_config": _DRAFT,
        "swap_space": _UNKNOWN,
    },
    "sglang": {
        "attention_backend": _UNKNOWN,
        "cuda_graph_bs": "is written as the largest: cuda_graph_max_bs=256",
        "disable_overlap_schedule": _UNKNOWN,
        "disable_radix_cache": "is prefix_caching=0 here",
        "dist_init_addr": _NOTHING,
        "enable_mixed_chunk": _UNKNOWN,
        "enable_torch_compile": _UNKNOWN,
        "moe_a2a_backend": _UNKNOWN,
        "nnodes": "is nodes=2 here",
        "schedule_conservativeness": _UNKNOWN,
        "schedule_policy": _UNKNOWN,
        "speculative_algorithm": _DRAFT,
        "speculative_eagle_topk": "is taken as 1: a chain of guesses; leave it out",
        "speculative_num_draft_tokens": "is one more than speculative_num_steps where the top k is 1; write that",
        "torch_compile_max_bs": _UNKNOWN,
    },
    "tensorrt-llm": {
        "backend": _NOTHING,
        "cuda_graph_config": "is enforce_eager=1 here where it is none; else leave it out",
        "gemm_plugin": _UNKNOWN,
        "kv_cache_type": "is kv_cache=paged or kv_cache=reserved here",
        "max_beam_width": _UNKNOWN,
        "max_input_len": "ends prompts alone; of both together, max_seq_len does",
        "max_output_len": "ends answers alone; of both together, max_seq_len does",
        "speculative_config": _DRAFT,
        "use_fp8_rowwise": "is written after the model's name: {model}:fp8@…",
        "use_paged_context_fmha": _UNKNOWN,
        "workers": _NOTHING,
    },
    "llama.cpp": {
        "cache_type_k": "is kv=fp16 or kv=int8 here",
        "cont_batching": _NOTHING,
        "flash_attn": _UNKNOWN,
        "n_gpu_layers": _NOTHING,
        "no_cont_batching": "is batching=static here",
    },
}
"""By engine, those of all under "": what is not taken, and what to write in its place. `{model}` and `{weights}` are
the deployment's."""


def owners_of(flag: str) -> list[str]:
    """Engines whose command lines have such a flag."""
    return [engine for engine in SAME if flag in SAME[engine] or flag in ELSEWHERE[engine]]
