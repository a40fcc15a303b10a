"""The metrics that engines state of themselves in /metrics: names that all engines share, and each engine's own.

running, waiting   gauges, requests
kv_usage           gauge, share of the KV cache in use
preemptions        counter, requests put back in the queue with their KV lost
prefix_hits        counter, prompt tokens taken from a prefix cache
prefix_queries     counter, prompt tokens looked for in it
late_s, writes     counters, seconds that writes came after their due time, and how many: of the timing server alone
"""

from __future__ import annotations

GAUGES: dict[str, tuple[str, ...]] = {
    "running": (
        "vllm:num_requests_running",
        "sglang:num_running_reqs",
        "llamacpp:requests_processing",
        "trtllm_num_requests_running",
        "nv_trt_llm_request_metrics{request_type=scheduled}",
    ),
    "waiting": (
        "vllm:num_requests_waiting",
        "sglang:num_queue_reqs",
        "llamacpp:requests_deferred",
        "trtllm_num_requests_waiting",
        "nv_trt_llm_request_metrics{request_type=waiting}",
    ),
    "kv_usage": (
        "vllm:kv_cache_usage_perc",  # a share, in spite of its name
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "llamacpp:kv_cache_usage_ratio",
        "trtllm_kv_cache_utilization",
        "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}",
    ),
}


COUNTERS: dict[str, tuple[str, ...]] = {
    "preemptions": ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total"),
    "prefix_hits": (
        "vllm:prefix_cache_hits_total",
        "sglang:cached_tokens_total",
        "llamacpp:prompt_tokens_cached_total",
        "trtllm_prompt_cached_tokens_total",
    ),
    "prefix_queries": (
        "vllm:prefix_cache_queries_total",
        "sglang:prompt_tokens_total",
        "llamacpp:prompt_tokens_total+llamacpp:prompt_tokens_cached_total",  # the former leaves the latter out
        "trtllm_prompt_tokens_total",
    ),
    "late_s": ("loadstone:write_late_seconds_total",),
    "writes": ("loadstone:writes_total",),
}


START_TIME = "process_start_time_seconds"


NAMES = frozenset(
    name.partition("{")[0]
    for names in (*GAUGES.values(), *COUNTERS.values())
    for both in names
    for name in both.split("+")
) | {START_TIME}
