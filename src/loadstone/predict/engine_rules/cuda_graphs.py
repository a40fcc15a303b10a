"""Which steps run as CUDA graphs: of the others, the host launches every kernel by itself."""

from __future__ import annotations

from loadstone.catalogue.architecture.attention import LatentAttention
from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.predict.engine_rules import sglang, vllm
from loadstone.predict.engine_rules.common import era_of
from loadstone.predict.sharding.limits import count, switched, version_of
from loadstone.predict.sharding.rank import guesses

_VLLM_TOKENS = 512
"""vLLM's V1 core captures piecewise graphs up to so many tokens, or twice max_num_seqs (its _set_cudagraph_sizes)."""
_SGLANG_LATENT_TOKENS = 2048
"""SGLang's for latent attention; otherwise for a whole chunk (ServerArgs, its pull request 15927)."""

_SGLANG_SINCE = (0, 5, 10)


def is_eager(deployment: Deployment) -> bool:
    """Whether decode steps run without CUDA graphs: told so, or too old to have them. Raises InputError."""
    told = switched(deployment, "enforce_eager") is True or vllm.cudagraph_mode(deployment) == "none"
    return told or era_of(deployment) == "eager"


def graph_tokens(deployment: Deployment) -> int:
    """The most tokens of a step that has prompts in it and still runs as CUDA graphs; 0: none does.

    vLLM: `max_cudagraph_capture_size`, unless `cudagraph_mode` leaves prompts out; none before its V1 core.
    SGLang from 0.5.10: `piecewise_cuda_graph_max_tokens`, a chunk; it switches them off where experts are dealt out,
    attention is data-parallel, layers are in a pipeline, the model sees images, the GPU is not NVIDIA's, or tokens
    are guessed (by rule until its pull request 22128; DeepSeek on 0.5.12 still has 212 ms to a first token then, 85
    without). TensorRT-LLM: the largest of `capture_num_tokens`, which nobody has by default. Other engines: none.
    Raises InputError.
    """
    if is_eager(deployment):
        return 0
    if deployment.engine == "vllm" and not vllm.is_v0(deployment):
        if not vllm.CUDAGRAPH_MODES[vllm.cudagraph_mode(deployment)]:
            return 0
        limits = vllm.limits(deployment)
        captured = count(deployment, "max_cudagraph_capture_size") or min(2 * limits.max_seqs, _VLLM_TOKENS)
        return min(captured, limits.max_batched_tokens)
    if deployment.engine == "sglang" and version_of(deployment, sglang.NEWEST) >= _SGLANG_SINCE:
        return _of_sglang(deployment)
    if deployment.engine == "tensorrt-llm":
        return count(deployment, "capture_num_tokens") or 0
    return 0


def _of_sglang(deployment: Deployment) -> int:
    model = deployment.model
    if switched(deployment, "disable_piecewise_cuda_graph"):
        return 0
    if deployment.ep > 1 or deployment.attention_dp or deployment.pp > 1 or model.vision_parameters:
        return 0
    if deployment.gpu.vendor != "nvidia" or guesses(deployment):
        return 0
    latent = any(isinstance(run.attention, LatentAttention) for run in model.kinds)
    chunk = _SGLANG_LATENT_TOKENS if latent else sglang.limits(deployment).max_batched_tokens
    return count(deployment, "piecewise_cuda_graph_max_tokens") or chunk
