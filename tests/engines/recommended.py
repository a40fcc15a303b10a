"""Twenty deployments as `loadstone recommend` advised them, with what their command must say and be
warned of."""

from __future__ import annotations

RECOMMENDED = [
    ("llama-3.1-405b:nvfp4@2xb200/tp2,kv=fp8,engine=tensorrt-llm",
     "serve nvidia/Llama-3.1-405B-Instruct-FP4 --tp_size 2 --config trtllm.yaml", "the instruct version"),
    ("llama-3.1-405b:nvfp4@2xb200/tp2,kv=fp8,engine=sglang",
     "nvidia/Llama-3.1-405B-Instruct-FP4 --tp-size 2 --kv-cache-dtype fp8_e4m3", "is published as nvidia/Llama"),
    ("llama-3.1-405b:fp8@16xh100/tp8,pp2,nodes=2,engine=vllm",
     "serve meta-llama/Llama-3.1-405B-FP8 --tensor-parallel-size 8", "is published as meta-llama/Llama-3.1-405B-FP8"),
    ("deepseek-r1:mxfp4@2xmi355x/tp1,dp2,ep2,attention-dp,engine=sglang,max_running_requests=256,"
     "num_speculative_tokens=3",
     "amd/DeepSeek-R1-MXFP4 --tp-size 2 --attn-dp-size 2 --ep-size 2", "is published as amd/DeepSeek-R1-MXFP4"),
    ("deepseek-r1:mxfp4@2xmi355x/tp1,dp2,attention-dp,engine=vllm,num_speculative_tokens=3",
     "serve amd/DeepSeek-R1-MXFP4", "in fp8; in mxfp4"),
    ("deepseek-r1@8xh200/tp8,engine=vllm,num_speculative_tokens=1", "serve deepseek-ai/DeepSeek-R1 ", ""),
    ("deepseek-r1@8xmi300x/tp8,engine=sglang", "--model-path deepseek-ai/DeepSeek-R1 ", ""),
    ("deepseek-r1-0528:nvfp4@4xb200/tp2,dp2,attention-dp,kv=fp8,engine=tensorrt-llm,num_speculative_tokens=3",
     "serve nvidia/DeepSeek-R1-0528-FP4 --tp_size 4", "is published as nvidia/DeepSeek-R1-0528-FP4"),
    ("deepseek-r1-0528@8xb200/tp8,engine=sglang", "--model-path deepseek-ai/DeepSeek-R1-0528 ", ""),
    ("llama-3.3-70b:nvfp4@1xb200/tp1,kv=fp8,engine=vllm",
     "serve nvidia/Llama-3.3-70B-Instruct-NVFP4 --tensor-parallel-size 1 --kv-cache-dtype fp8", "in nvfp4"),
    ("llama-3.3-70b:fp8@1xh200/tp1,engine=vllm",
     "serve RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "is published as RedHatAI"),
    ("llama-3.3-70b@4xh100/tp4,engine=sglang", "--model-path meta-llama/Llama-3.3-70B-Instruct ", ""),
    ("llama-3.1-8b-instruct:fp8@1xh100/tp1,kv=fp8,engine=vllm",
     "serve nvidia/Llama-3.1-8B-Instruct-FP8 --tensor-parallel-size 1 --kv-cache-dtype fp8", "in fp8"),
    ("llama-3.1-8b-instruct@1xl40s/tp1,engine=vllm",
     "serve meta-llama/Llama-3.1-8B-Instruct ", ""),
    ("llama-3.1-70b@2xh100/tp2,kv=fp8,engine=vllm",
     "--max-model-len", "the cache holds no request of 131,072 tokens"),
    ("qwen3-32b:fp8@1xb200/tp1,kv=fp8,engine=tensorrt-llm",
     "serve Qwen/Qwen3-32B-FP8-Static-PerTensor --tp_size 1 --config", "is published as Qwen/Qwen3-32B-FP8"),
    ("mixtral-8x7b:fp8@2xh100/tp1,dp2,attention-dp,engine=vllm,max_num_seqs=64",
     "serve RedHatAI/Mixtral-8x7B-Instruct-v0.1-FP8", "the instruct version"),
    ("gpt-oss-120b@1xb200/tp1,engine=tensorrt-llm,max_batch_size=256",
     "serve openai/gpt-oss-120b --tp_size 1 --max_batch_size 256", ""),
    ("llama-3-70b:fp8@2xh100/tp2,engine=tensorrt-llm",
     "serve ./Meta-Llama-3-70B-fp8 ", "convert it into ./Meta-Llama-3-70B-fp8"),
    ("llama-3-70b:fp8@1xh100/tp1,engine=sglang",
     "--quantization fp8", "more than its 79.2 GiB; convert the checkpoint to fp8 first"),
]  # fmt: skip
