"""Lists the precisions of weights and KV cache to choose among: as checkpoints are published, or
any."""

from __future__ import annotations

from itertools import product

from loadstone.catalogue.architecture.precision import FORMATS, dtype_of, kv_dtype_of
from loadstone.catalogue.checkpoints import Checkpoint, published, split_precision
from loadstone.catalogue.deployment.deployment import Worker
from loadstone.engines import rules_of
from loadstone.recommend.options import RecommendOptions

_NATIVE = {"fp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"}
"""Precisions that are looked at only where the GPU multiplies them."""
Precision = tuple[str, str]
"""Of the weights, and of the KV cache."""


def list_precisions(first: Worker, options: RecommendOptions) -> list[Precision]:
    """List what deployments like `first` may have: its own precision, then what the options name,
    or, where these name nothing, what somebody publishes; with --quality any FP8 of both besides.
    Raises InputError.
    """
    weights = [dtype_of(each, "--weights-dtype") for each in options.weights_dtype]
    if not weights and (":" in options.model or split_precision(options.model)[1] is not None):
        weights = [first.weights_dtype]
    caches = [kv_dtype_of(each, "--kv-dtype") for each in options.kv_dtype]
    known = published_precisions(first)
    if options.quality == "any":
        known += product(_narrow(first, first.weights_dtype), _narrow(first, first.kv_dtype))
        known += [(each, kv) for each, _ in known for kv in _narrow(first, first.kv_dtype)]
    pairs = [pair for pair in known if not weights or pair[0] in weights]
    pairs += [
        (each, first.model.kv_dtype) for each in weights if each not in {pair[0] for pair in pairs}
    ]
    if caches:
        pairs = list(product(dict.fromkeys(each for each, _ in pairs), caches))
    return list(dict.fromkeys(pairs))


def published_precisions(first: Worker) -> list[Precision]:
    """List the precisions of checkpoints that the engine reads and the GPU multiplies, the
    deployment's own first."""
    own = first.weights_dtype, first.kv_dtype
    rules = rules_of(first)
    found = [
        each
        for each in published(first.model, first.named)
        if rules.reads(each) and _is_native(first, each)
    ]
    return [own, *((each.weights, each.kv) for each in found)]


def _is_native(first: Worker, checkpoint: Checkpoint) -> bool:
    dtypes = (checkpoint.weights, checkpoint.kv)
    return all(_NATIVE[each] in first.gpu.flops_per_s for each in dtypes if each in _NATIVE)


def _narrow(first: Worker, own: str) -> list[str]:
    """List a precision, and FP8 where that is narrower and the GPU multiplies it."""
    narrower = own not in FORMATS or FORMATS[own].bytes > FORMATS["fp8"].bytes
    return [own, "fp8"] if narrower and "fp8" in first.gpu.flops_per_s else [own]


def further_precisions(deployment: Worker) -> list[Precision]:
    """List precisions that are one step narrower than a deployment's, and not published."""
    weights = [
        (each, deployment.kv_dtype) for each in _narrow(deployment, deployment.weights_dtype)[1:]
    ]
    caches = [
        (deployment.weights_dtype, each) for each in _narrow(deployment, deployment.kv_dtype)[1:]
    ]
    known = published_precisions(deployment)
    return [each for each in (*caches, *weights) if each not in known]
