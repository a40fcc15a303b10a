"""The precisions of weights and KV cache to choose among: as checkpoints are published, or any."""

from itertools import product

from loadstone.catalogue.architecture.precision import FORMATS, dtype_of, kv_dtype_of
from loadstone.catalogue.checkpoints import Checkpoint, published, split_precision
from loadstone.catalogue.deployment.deployment import Worker
from loadstone.engines import rules_of
from loadstone.recommend.demand.options import RecommendOptions

_NATIVE = {"fp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"}
"""Precisions that are looked at only where the GPU multiplies them."""
Precision = tuple[str, str]
"""Of the weights, and of the KV cache."""


def list_precisions(first: Worker, options: RecommendOptions) -> list[Precision]:
    """List what deployments like `first` may have: its own precision, then what the options name,
    or, where these name nothing, what somebody publishes; with --quality any FP8 of both besides.
    Raises InputError.
    """
    search = options.search
    weights = [dtype_of(name, "--weights-dtype") for name in search.weights_dtype]
    if not weights and (":" in options.model or split_precision(options.model)[1] is not None):
        weights = [first.weights_dtype]
    caches = [kv_dtype_of(name, "--kv-dtype") for name in search.kv_dtype]
    pairs = published_precisions(first)
    if search.quality == "any":
        pairs += product(_narrow(first, first.weights_dtype), _narrow(first, first.kv_dtype))
        pairs += list(product([dtype for dtype, _ in pairs], _narrow(first, first.kv_dtype)))
    if weights:
        found = {dtype for dtype, _ in pairs}
        pairs = [pair for pair in pairs if pair[0] in weights]
        pairs += [(dtype, first.model.kv_dtype) for dtype in weights if dtype not in found]
    if caches:
        pairs = list(product(dict.fromkeys(dtype for dtype, _ in pairs), caches))
    return list(dict.fromkeys(pairs))


def published_precisions(first: Worker) -> list[Precision]:
    """List the precisions of checkpoints that the engine reads and the GPU multiplies, the
    deployment's own first."""
    rules = rules_of(first)
    return [
        (first.weights_dtype, first.kv_dtype),
        *(
            (checkpoint.weights, checkpoint.kv)
            for checkpoint in published(first.model, first.named)
            if rules.reads(checkpoint) and _is_native(first, checkpoint)
        ),
    ]


def _is_native(first: Worker, checkpoint: Checkpoint) -> bool:
    dtypes = (checkpoint.weights, checkpoint.kv)
    return all(_NATIVE[dtype] in first.gpu.flops_per_s for dtype in dtypes if dtype in _NATIVE)


def _narrow(first: Worker, dtype: str) -> list[str]:
    """List a precision, and FP8 where that is narrower and the GPU multiplies it."""
    narrower = dtype not in FORMATS or FORMATS[dtype].bytes > FORMATS["fp8"].bytes
    return [dtype, "fp8"] if narrower and "fp8" in first.gpu.flops_per_s else [dtype]


def further_precisions(worker: Worker) -> list[Precision]:
    """List precisions that are one step narrower than a deployment's, and not published."""
    weights, cache = worker.weights_dtype, worker.kv_dtype
    narrower = [(weights, dtype) for dtype in _narrow(worker, cache)[1:]]
    narrower += [(dtype, cache) for dtype in _narrow(worker, weights)[1:]]
    found = published_precisions(worker)
    return [pair for pair in narrower if pair not in found]
