"""Says of a plan how it is started, with all that its launch warns of, and what narrower numbers
would save."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from loadstone.analyse.compare.price import Prices
from loadstone.analyse.verdict.run import describe_network_guess
from loadstone.core.errors import InputError
from loadstone.engines.deployment_launch import launch_deployment
from loadstone.predict.sizing.check import contradictions
from loadstone.predict.step_time.exchange import guesses_network
from loadstone.recommend.candidates import Candidate, make_candidate
from loadstone.recommend.options import RecommendOptions
from loadstone.recommend.precisions import further_precisions, published_precisions
from loadstone.recommend.traffic import Traffic

_WORTH = 1.03


def describe_start(
    candidate: Candidate, replicas: int, options: RecommendOptions, traffic: Traffic
) -> dict[str, Any]:
    """Return the fields of a DeploymentPlan about its launch."""
    deployment = candidate.deployment
    try:
        made = launch_deployment(deployment)
        warnings, lines, files = list(made.notes), made.shell_lines(), dict(made.files)
    except InputError as error:  # llama.cpp, whose file of weights nobody named
        warnings, lines, files = [f"`loadstone launch` starts it, which says: {error}"], [], {}
    if (deployment.weights_dtype, deployment.kv_dtype) not in published_precisions(
        candidate.worker
    ):
        what = f"weights in {deployment.weights_dtype} with a KV cache in {deployment.kv_dtype}"
        warnings.append(
            f"{what}: nobody publishes such a checkpoint; look at the quality of its answers"
        )
    if guesses_network(candidate.worker):
        warnings.append(
            f"network_guessed: {describe_network_guess(candidate.worker.nodes_crossed)}"
        )
    narrows = options.quality != "any" and not deployment.is_split
    further = _describe_further(candidate, replicas, options, traffic) if narrows else None
    return {
        "launch": lines,
        "files": files,
        "warnings": warnings,
        "further": further,
    }


def _describe_further(
    candidate: Candidate, replicas: int, options: RecommendOptions, traffic: Traffic
) -> str | None:
    """Say what one step narrower, which nobody publishes, would save by closed form; None:
    nothing."""
    mine = candidate.deployment
    best, what = _WORTH, ""
    for weights, kv in further_precisions(mine):
        narrower = msgspec.structs.replace(mine, weights_dtype=weights, kv_dtype=kv)
        if contradictions(narrower):
            continue
        try:
            gain = make_candidate(narrower, options, traffic, Prices(), {}).load / candidate.load
        except InputError:
            continue
        if gain > best:
            best, what = gain, f"kv={kv}" if kv != mine.kv_dtype else f"weights in {weights}"
    if not what:
        return None
    fewer = math.ceil(replicas / best - 1e-9)
    saves = (
        f"{fewer * mine.gpus} GPUs for {replicas * mine.gpus}"
        if fewer < replicas
        else "no GPU fewer"
    )
    return (
        f"one step further (--quality any), {what}, would carry {best - 1:.0%} more per GPU by"
        f" closed form: {saves}"
    )
