"""What cannot be: parallelism that does not divide the model, contexts beyond its limit; with what would work."""

from __future__ import annotations

import math
from collections.abc import Iterator

from loadstone.catalogue.architecture.model import Experts, FullAttention, Layers, LinearAttention
from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.predict.engine_rules.common import context_limit
from loadstone.predict.sharding.limits import count, version_of
from loadstone.predict.sharding.rank import shape_of

_WAYS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 64)
_REFUSE_LONGER = ("vllm", "sglang")
"""Engines that end at start where they are told of a longer context than the model's; an environment variable of each
(VLLM_ALLOW_LONG_MAX_MODEL_LEN, SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN) is needed to insist."""

_CACHES = {
    "vllm": ("fp32", "bf16", "fp16", "int8", "nvfp4", "fp8_ds_mla", "fp8"),
    "sglang": ("fp32", "bf16", "fp16", "nvfp4", "fp8"),
    "tensorrt-llm": ("fp32", "bf16", "fp16", "nvfp4", "fp8"),
    "llama.cpp": ("fp32", "bf16", "fp16", "int8"),
}
"""What each engine can be told to keep a KV cache in: vLLM 0.32's CacheDType (int8 with a scale of each head),
SGLang's --kv-cache-dtype, TensorRT-LLM's KvCacheConfig, llama.cpp's --cache-type-k (q8_0 is int8 here). The last is
what an error proposes."""
_WITHOUT_NVFP4 = ("Volta", "Turing")
_NVFP4_IN_PART = ("Ampere", "Ada", "Hopper", "Grace Hopper")
"""Where vLLM reads it through a kernel that takes neither heads of 64 nor sinks (its flashinfer backend, 0.32)."""

_OLD = ("Volta", "Turing")
_TRTLLM_WITHOUT = (0, 18)
"""The release of TensorRT-LLM whose support matrix has Ampere as the oldest architecture, as all since."""
_NATIVE = {"fp8": "fp8", "nvfp4": "fp4"}
"""Weights that TensorRT-LLM multiplies as they are or not at all: FP8 from Ada on, NVFP4 from Blackwell on (the
support matrices of 0.18.2 and of Model Optimizer). vLLM and SGLang widen them from Ampere on."""
_NOT_ON_VOLTA = ("fp8", "nvfp4", "mxfp4")
"""Weights whose widening kernels want a newer GPU than that in vLLM (0.32: from Turing on) and SGLang."""


def contradictions(deployment: Deployment, context_tokens: int | None = None) -> list[str]:
    """One line each; empty where the deployment can be."""
    parts = _shape, _hardware, _cache_dtype, _draft
    found = list(dict.fromkeys(each for part in parts for each in part(deployment)))
    model, limit = deployment.model, context_limit(deployment)
    own, said = model.max_context_tokens, count(deployment, "max_model_len", "max_seq_len")
    if said is not None and own is not None and said > own and deployment.engine in _REFUSE_LONGER:
        found.append(
            f"max_model_len {said:,} is beyond the {own:,} that {model.name} was made for, and {deployment.engine} "
            f"will not start; ask for at most {own:,}, or give a config.json whose rope_scaling makes it longer"
        )
    if context_tokens is not None and limit is not None and context_tokens > limit:
        found.append(
            f"context {context_tokens:,} is beyond the {limit:,} that {model.name} was made for; "
            f"ask for at most {limit:,}"
            if limit == own
            else f"context {context_tokens:,} is beyond the {limit:,} that the engine was given; "
            f"ask for at most {limit:,}, or give it more"
        )
    return found


def _hardware(deployment: Deployment) -> Iterator[str]:
    """An engine that the GPU does not have, or not with these weights."""
    engine, gpu, weights = deployment.engine, deployment.gpu, deployment.weights_dtype
    if engine == "tensorrt-llm":
        if gpu.vendor != "nvidia":
            yield f"tensorrt-llm runs on NVIDIA's GPUs alone, not on a {gpu.name}; vllm would (engine=vllm)"
        elif gpu.architecture in _OLD and version_of(deployment, _TRTLLM_WITHOUT) >= _TRTLLM_WITHOUT:
            yield f"tensorrt-llm runs from Ampere on, not on a {gpu.name}; vllm would (engine=vllm)"
        elif weights in _NATIVE and _NATIVE[weights] not in gpu.flops_per_s:
            yield (
                f"tensorrt-llm takes {weights} weights only where the GPU multiplies them, and no {gpu.name} does; "
                "vllm would widen them (engine=vllm), or int4 would work"
            )
    elif engine in ("vllm", "sglang") and gpu.architecture == "Volta" and weights in _NOT_ON_VOLTA:
        yield f"{engine} has no kernels for {weights} weights on a {gpu.name}; bf16 or int4 would work"


def _cache_dtype(deployment: Deployment) -> Iterator[str]:
    """A KV cache in a precision that the engine does not have, or not there."""
    kv, engine, gpu = deployment.kv_dtype, deployment.engine, deployment.gpu
    known = _CACHES.get(engine)
    if known is not None and kv not in known:
        yield f"{engine} has no KV cache in {kv}; {', '.join(known)} would work (kv={known[-1]})"
        return
    latent = deployment.model.has_latent_attention
    if engine == "vllm" and latent and kv in ("int8", "nvfp4"):
        yield f"vllm has no KV cache in {kv} for MLA; fp8 would work (kv=fp8)"
    elif kv == "nvfp4" and (gpu.vendor in ("amd", "intel") or gpu.architecture in _WITHOUT_NVFP4):
        yield f"{engine} has no KV cache in nvfp4 on a {gpu.name}; fp8 would work (kv=fp8)"
    elif kv == "nvfp4" and engine == "vllm":
        if version_of(deployment, (0, 21)) < (0, 21):
            yield f"vllm {deployment.engine_version} has no KV cache in nvfp4; 0.21 has, or fp8 would work (kv=fp8)"
        elif gpu.architecture in _NVFP4_IN_PART and any(map(_small_or_sunk, deployment.model.kinds)):
            yield (
                f"vllm has no KV cache in nvfp4 on a {gpu.name} for heads of 64 numbers or attention sinks; "
                "fp8 would work (kv=fp8)"
            )


def _small_or_sunk(run: Layers) -> bool:
    return isinstance(run.attention, FullAttention) and (run.attention.head_dim == 64 or run.attention.sinks)


def _draft(deployment: Deployment) -> Iterator[str]:
    """A draft model that cannot be cut as the large one is, or that the engine will not have beside it."""
    if deployment.draft is None:
        return
    model, draft, tp = deployment.model, deployment.draft.model, deployment.tp
    if uncut := list(dict.fromkeys(thing for run in draft.kinds for thing in _uncut(run, tp))):
        ways = ", ".join(str(n) for n in _WAYS if not any(True for run in draft.kinds for _ in _uncut(run, n)))
        yield f"tp{tp} does not divide the {', the '.join(uncut)} of the draft {draft.name}; tp {ways} would"
    if deployment.engine == "vllm" and draft.vocab != model.vocab:
        yield (
            f"the draft {draft.name} has a vocabulary of {draft.vocab:,} tokens, {model.name} one of "
            f"{model.vocab:,}: vllm refuses that; a draft of the same family and release would do"
        )
    if deployment.engine == "sglang" and deployment.attention_dp:
        yield "sglang takes no draft model with attention-dp; leave one of the two out"


def _shape(deployment: Deployment) -> Iterator[str]:
    shape, model = shape_of(deployment), deployment.model
    if shape.pp > 1 and any(run.shared for run in model.layers):
        yield f"pp{shape.pp}: layers that share weights cannot be cut into stages; pp1 works"
    if shape.pp > model.layer_count:
        yield f"pp{shape.pp} is more stages than the {model.layer_count} layers; pp up to {model.layer_count} works"
    uncut = list(dict.fromkeys(thing for run in model.kinds for thing in _uncut(run, shape.tp)))
    if uncut:
        ways = [n for n in _WAYS if not any(True for run in model.kinds for _ in _uncut(run, n))]
        most = max((n for n in ways if deployment.gpus % n == 0), default=1)
        rest = deployment.gpus // most
        would = f"would: of {deployment.gpus} GPUs tp{most} with dp{rest} or pp{rest}" if rest > 1 else "would"
        things = ", the ".join(uncut[:-1]) + (" and the " if uncut[1:] else "") + uncut[-1]
        yield f"tp{shape.tp} does not divide the {things}; tp {', '.join(map(str, ways))} {would}"
    for run in model.kinds:
        yield from _mlp(run, shape.expert_tp, shape.expert_ep)


def _uncut(run: Layers, tp: int) -> Iterator[str]:
    """What `tp` ranks cannot share evenly. KV heads and groups may also be copied, each to as many ranks."""
    attention, mlp = run.attention, run.mlp
    if attention is not None and attention.heads % tp:
        yield f"{attention.heads} attention heads"
    if isinstance(attention, FullAttention) and attention.kv_heads % tp and tp % attention.kv_heads:
        yield f"{attention.kv_heads} KV heads"
    for state in run.states:
        if isinstance(state, LinearAttention) and state.heads % tp:
            yield f"{state.heads} heads of the linear attention"
        if state.key_heads % tp and tp % state.key_heads:
            yield f"{state.key_heads} groups of the linear attention"
    if mlp is not None and not isinstance(mlp, Experts) and mlp.intermediate % tp:
        yield f"{mlp.intermediate} numbers of the MLP's width"


def _mlp(run: Layers, expert_tp: int, expert_ep: int) -> Iterator[str]:
    mlp = run.mlp
    if not isinstance(mlp, Experts):
        return
    if expert_ep > mlp.experts:
        yield f"ep{expert_ep} is more ranks than the {mlp.experts} experts; ep up to {mlp.experts} works"
    if mlp.intermediate % expert_tp:
        ways = ", ".join(str(n) for n in _WAYS if mlp.intermediate % n == 0)
        yield (
            f"experts cut {expert_tp} ways: that does not divide the {mlp.intermediate} numbers of an expert's "
            f"width; {ways} ways would, the rest by ep"
        )
    elif _blocked(run) and mlp.intermediate // expert_tp % 128:
        most = math.gcd(mlp.intermediate // 128, expert_tp)
        ep = expert_ep * expert_tp // most
        yield (
            f"tp{expert_tp} cuts an expert's {mlp.intermediate} to {mlp.intermediate // expert_tp}, which the "
            f"checkpoint's blocks of 128 do not divide; experts cut {most} ways work, the rest by ep (ep{ep})"
        )


def _blocked(run: Layers) -> bool:
    return any(name.startswith("mlp.experts") and shared.group == 128 * 128 for name, shared in run.formats)
