"""From a point to the deployment it was measured on and the scheduler's rules, or why there is none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadstone.catalogue import Deployment, Gpu, Model, gpu, model, parse_deployment
from loadstone.catalogue.architecture.precision import dtype_of, kv_dtype_of
from loadstone.catalogue.engines import engine_key
from loadstone.catalogue.find import match_gpu
from loadstone.catalogue.user_files import is_file
from loadstone.core.errors import InputError
from loadstone.predict.calibrate.points import Point, Unpredictable
from loadstone.predict.calibrate.scripts import Arguments, arguments_of, ran_eager
from loadstone.predict.calibrate.sources import version_of
from loadstone.predict.scheduler import EnginePolicy, policy_of

MOST_TP = 16
_ENGINES = ("vllm", "sglang", "tensorrt-llm")
_IDENTIFIED = re.compile(r"_tp(\d+)(?:_0)?_ep(\d+)(?:_0)?_\d+(?:;|$|\s)")


@contextmanager
def _unpredictable() -> Iterator[None]:
    """What is wrong with a deployment is why its point has no prediction."""
    try:
        yield
    except InputError as error:
        raise Unpredictable(str(error)) from error


def deployment_of(point: Point) -> tuple[Deployment, Arguments]:
    """Raises Unpredictable with the reason, in one line."""
    if point.deployment:
        with _unpredictable():
            return _runnable(parse_deployment(point.deployment)), Arguments()
    engine = _engine(point)
    device = _gpu(point.gpu)
    base = _model(point.model)
    weights = _weights(point, base)
    if weights == "nvfp4" and base.weights_dtype != "nvfp4":
        base = _published(base, f"nvidia/{base.name.rpartition('/')[2]}-NVFP4")
    elif weights == "fp8" and base.weights_dtype != "fp8" and base.has_experts:
        base = _published(base, f"{base.name}-FP8")
    tp, dp, ep, attention_dp = _parallelism(point, engine, base)
    said = arguments_of(point, engine, device.name.lower().split("-")[0], tp)
    said = msgspec.structs.replace(said, eager=ran_eager(point))
    if said.experts_dealt and ep == 1 and tp * dp > 1:
        ep = tp * dp
    gpus = tp * dp
    per_node = device.per_node
    if gpus > per_node and not (point.nodes and point.nodes > 1):
        raise Unpredictable(f"{gpus} GPUs on one node")
    # NVIDIA's NVFP4 checkpoints are made for an FP8 cache (kv_cache_quant_algo), and engines follow.
    implied = "fp8" if weights == "nvfp4" else base.kv_dtype
    deployment = Deployment(
        model=base,
        gpu=device,
        gpus=gpus,
        nodes=max(1, -(-gpus // per_node)),
        tp=tp,
        dp=dp,
        ep=ep,
        attention_dp=attention_dp,
        weights_dtype=weights,
        kv_dtype=_kv_dtype(point) or said.kv_dtype or implied,
        engine=engine,
        engine_version="0.2" if "2023" in point.engine else version_of(point),
    )
    for run in base.layers:
        heads = getattr(run.attention, "heads", tp)
        if heads % tp:
            raise Unpredictable(f"tp {tp} does not divide {heads} heads")
    if base.weights_bytes(weights) / gpus > device.usable_bytes and "marlin" not in point.precision.lower():
        raise Unpredictable(
            f"{base.weights_bytes(weights) / 1e9:.0f} GB of weights do not fit {gpus} × {device.name}"
        )
    return _runnable(with_arguments(deployment, said)), said


def _runnable(deployment: Deployment) -> Deployment:
    """The deployment, or the same with experts dealt out where slices of them cannot be (a row may not say `ep`)."""
    if deployment.ep > 1 or deployment.moe_ranks == 1:
        return deployment
    try:
        policy_of(deployment)
    except InputError:
        dealt = msgspec.structs.replace(deployment, ep=deployment.moe_ranks)
        try:
            policy_of(dealt)
        except InputError:
            return deployment
        return dealt
    return deployment


_ARGUMENTS = {
    # engine: how it spells tokens of a step, share of memory, requests at once
    "vllm": ("max_num_batched_tokens", "gpu_memory_utilization", "max_num_seqs"),
    "sglang": ("chunked_prefill_size", "mem_fraction_static", "max_running_requests"),
    "tensorrt-llm": ("max_num_tokens", "free_gpu_memory_fraction", "max_batch_size"),
}


def with_arguments(deployment: Deployment, said: Arguments) -> Deployment:
    """The deployment with what the source's script gave the engine, in the engine's own words."""
    names = _ARGUMENTS.get(deployment.engine, ())
    values = (said.max_batched_tokens, said.memory_fraction, said.max_seqs)
    given: dict[str, object] = dict(zip(names, values, strict=False))
    if deployment.engine == "sglang":
        given["scheduler_recv_interval"] = said.poll_steps
    elif deployment.engine == "vllm":
        given["max_cudagraph_capture_size"] = said.graph_tokens
        given["cudagraph_mode"] = "FULL_DECODE_ONLY" if said.graph_tokens == 0 else None
    elif deployment.engine == "tensorrt-llm":
        given["capture_num_tokens"] = said.graph_tokens
        if deployment.attention_dp:
            given["timeout_iters"] = said.hold_steps
        else:
            given["batch_wait_timeout_iters"] = said.gather_steps
            given["batch_wait_max_tokens_ratio"] = said.gather_share
    given["enforce_eager"] = int(said.eager)
    given["num_speculative_tokens"] = said.draft_tokens
    found = dict(deployment.arguments) | {name: str(value) for name, value in given.items() if value}
    return msgspec.structs.replace(deployment, arguments=tuple(sorted(found.items())))


def schedulers_of(
    deployment: Deployment, lengths: NDArray[np.int64] | None = None, acceptance: float | None = None
) -> EnginePolicy:
    """The policy of each of its schedulers, as `loadstone simulate` has it for requests of these `lengths`. Raises
    Unpredictable where the model does not fit."""
    with _unpredictable():
        return policy_of(deployment, lengths=lengths, acceptance=acceptance)


def _engine(point: Point) -> str:
    key = engine_key(point.engine.split()[0]) if point.engine else None
    if key not in _ENGINES:
        raise Unpredictable(f"engine {point.engine!r} is not modelled")
    return key


@cache
def _gpu(text: str) -> Gpu:
    if is_file(text):
        with _unpredictable():
            return gpu(text)
    match = match_gpu(text)
    try:
        return gpu(text if match is None else match.key)
    except InputError:
        raise Unpredictable(f"GPU {text!r} is not in the catalogue") from None


@cache
def _model(text: str) -> Model:
    for each in (text, text.rpartition("/")[2]):
        try:
            return model(each)
        except InputError:
            continue
    raise Unpredictable(f"model {text!r} is not in the catalogue")


@cache
def _published(base: Model, name: str) -> Model:
    """The checkpoint of that model in fewer bits, where the catalogue has it: it says which layers have them, and how
    they are scaled."""
    try:
        found = model(name)
    except InputError:
        return base
    return found if found.layer_count == base.layer_count else base


def _weights(point: Point, base: Model) -> str:
    said = re.split(r"[\s(?]", point.precision.lower().strip())[0]
    if not said:
        return "bf16" if base.weights_dtype in ("bf16", "fp16") else base.weights_dtype
    with _unpredictable():
        name = dtype_of(said, "precision")
    return "mxfp4" if name == "nvfp4" and base.weights_dtype == "mxfp4" else name


def _kv_dtype(point: Point) -> str | None:
    if point.kv_dtype.strip().lower() in ("", "auto"):
        return None
    with _unpredictable():
        return kv_dtype_of(point.kv_dtype, "kv_dtype")


def _parallelism(point: Point, engine: str, base: Model) -> tuple[int, int, int, bool]:
    """(tp, dp, ep, attention_dp) in the catalogue's words: tp · dp GPUs.

    Rows that went through AIConfigurator's table multiply InferenceX's `tp` and `ep`, which count the same GPUs: a
    row of 64 GPUs with moe_tp = moe_ep = 8 has the TTFT and TPOT, to the last digit, of the row of the same run with
    8. The run's id (tp8_ep8) is believed, else the square is undone.
    """
    tp, dp, gpus = point.tp or 0, point.dp or 0, point.gpus or 0
    moe_tp, moe_ep = point.moe_tp or 0, point.moe_ep or 0
    attention_dp = False
    if point.gpus == 0 or point.dp == 0:
        raise Unpredictable("parallelism is not said: 0 GPUs")
    if gpus <= 0:
        gpus = max(tp, 1) * max(dp, 1)
    found = _IDENTIFIED.search(point.notes)
    ep = moe_ep or 1
    if found:
        width, ep = int(found[1]), int(found[2])
        attention_dp = dp > 1 and tp < width
        return (1, width, max(1, ep), True) if attention_dp else (width, 1, max(1, ep), False)
    if moe_tp == moe_ep > 1 and gpus == moe_tp * moe_ep and gpus > 8:
        width = moe_tp
        return (1, width, width, True) if dp == gpus else (width, 1, width, False)
    if "silicon_sample" in point.source and tp * dp == moe_ep == gpus and tp == dp > 1:
        return tp, 1, tp, False
    if tp > MOST_TP:
        raise Unpredictable(f"tp {tp}: no single instance is cut that finely; the row sums over several")
    if "dp-attention" in point.notes and dp > 1:
        return max(1, gpus // dp), dp, 1, True
    if tp == 0:
        raise Unpredictable("parallelism is not said")
    dp = max(1, dp)
    if tp * dp > gpus:
        dp = max(1, gpus // tp)
    ep = max(1, moe_ep) if base.has_experts else 1
    attention_dp = base.has_experts and dp > 1
    if attention_dp and ep == 1 and engine == "vllm":
        ep = tp * dp
    ranks = tp * dp if attention_dp else tp
    return tp, dp, ep if ranks % ep == 0 else 1, attention_dp
