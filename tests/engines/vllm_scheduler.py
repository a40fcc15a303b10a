"""vLLM's own scheduler without a model, for test_vllm_scheduler.py: run by vLLM's Python, with the
model's folder.

Cases on stdin, a JSON object a line; on stdout for each case its steps: tokens that each request
computes, who lost its blocks, who ended.
"""

import json
import sys
from typing import Any

import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.request import LoRARequest
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

HASH = get_hash_fn_by_name("sha256")
init_none_hash(HASH)


def scheduler_of(case: dict[str, Any], model: str) -> Scheduler:
    block = case["block_tokens"]
    config = EngineArgs(
        model=model,
        dtype="float32",
        enforce_eager=True,
        async_scheduling=False,
        block_size=block,
        max_model_len=case["max_model_len"],
        max_num_seqs=case["max_seqs"],
        max_num_batched_tokens=case["max_batched_tokens"],
        enable_prefix_caching=case["prefix_cache"],
        enable_chunked_prefill=case["chunked"],
        scheduling_policy=case["policy"],
        **({"enable_lora": True, "max_loras": case["slots"]} if case["slots"] else {}),
    ).create_engine_config()
    blocks = case["kv_blocks"] + 1  # one of them it never gives out
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=1, dtype=torch.float32)
    cache = KVCacheConfig(
        num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    return Scheduler(config, cache, StructuredOutputManager(config), block)


def lora_of(adapter: int) -> LoRARequest | None:
    return LoRARequest(f"a{adapter}", adapter, f"/a{adapter}") if adapter else None


def steps(case: dict[str, Any], model: str) -> list[Any]:
    scheduler = scheduler_of(case, model)
    hasher = get_request_block_hasher(case["block_tokens"], HASH)
    coming = list(reversed(case["requests"]))
    said: list[Any] = []
    while coming or scheduler.has_unfinished_requests():
        while coming and coming[-1]["step"] <= len(said):
            asked = coming.pop()
            wanted = SamplingParams(max_tokens=asked["output"], ignore_eos=True)
            arrived = len(scheduler.requests) + 1000.0 * len(said)
            scheduler.add_request(
                Request(
                    asked["id"],
                    asked["prompt"],
                    wanted,
                    None,
                    arrival_time=arrived,
                    priority=asked.get("priority", 0),
                    lora_request=lora_of(asked.get("adapter", 0)),
                    block_hasher=hasher,
                )
            )
        before = {name: request.num_preemptions for name, request in scheduler.requests.items()}
        out = scheduler.schedule()
        lost = [
            name
            for name, times in before.items()
            if scheduler.requests[name].num_preemptions > times
        ]
        names = list(out.num_scheduled_tokens)
        written = []
        for name in names:
            request = scheduler.requests[name]
            # Of those whose prompt is done; answers that nobody else has.
            done = request.num_computed_tokens >= request.num_tokens
            written.append([10**6 * (2 + int(name)) + request.num_output_tokens] if done else [])
        places = {name: at for at, name in enumerate(names)}
        answer = ModelRunnerOutput(req_ids=names, req_id_to_index=places, sampled_token_ids=written)
        scheduler.update_from_output(out, answer)
        said.append(
            [out.num_scheduled_tokens, sorted(lost), sorted(set(before) - set(scheduler.requests))]
        )
    return said


def main() -> None:
    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        out.write(json.dumps(steps(json.loads(line), sys.argv[1])) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
