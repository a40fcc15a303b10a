"""How a plan is started, with all that its launch warns of, and what narrower numbers would
save."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from loadstone.analyse.verdict.finding import finding
from loadstone.core.errors import InputError
from loadstone.engines.deployment_launch import launch_deployment
from loadstone.predict.sizing.check import contradictions
from loadstone.predict.step_time.exchange import guesses_network
from loadstone.recommend.demand.planning import Planning
from loadstone.recommend.search.candidates import Candidate, make_candidate
from loadstone.recommend.search.precisions import further_precisions, published_precisions

_WORTH = 1.03


class Start(NamedTuple):
    """Holds the commands of a replica, one a rank, the files that must lie beside them, and what is
    to be known before."""

    commands: list[str]
    files: dict[str, str]
    warnings: list[str]


def describe_start(candidate: Candidate) -> Start:
    """Return how one replica is started."""
    deployment = candidate.deployment
    start = Start([], {}, [])
    try:
        launch = launch_deployment(deployment)
        start = Start(launch.shell_lines(), dict(launch.files), list(launch.notes))
    except InputError as error:  # llama.cpp, whose file of weights nobody named
        start.warnings.append(f"`loadstone launch` starts it, which says: {error}")
    precision = (candidate.worker.weights_dtype, candidate.worker.kv_dtype)
    if precision not in published_precisions(candidate.worker):
        start.warnings.append(
            f"weights in {precision[0]} with a KV cache in {precision[1]}: nobody publishes such a"
            " checkpoint; look at the quality of its answers"
        )
    if guesses_network(candidate.worker):
        guessed = finding("network_guessed", nodes=candidate.worker.nodes_crossed)
        start.warnings.append(f"{guessed.kind}: {guessed.evidence}")
    return start


def describe_further(candidate: Candidate, replicas: int, planning: Planning) -> str | None:
    """Say what one step narrower, which nobody publishes, would save by closed form; None:
    nothing."""
    if planning.search.quality == "any" or candidate.deployment.is_split:
        return None
    worker = candidate.worker
    best, change = _WORTH, ""
    for weights, kv in further_precisions(worker):
        narrower = msgspec.structs.replace(worker, weights_dtype=weights, kv_dtype=kv)
        if contradictions(narrower):
            continue
        try:
            gain = make_candidate(narrower, planning).load / candidate.load
        except InputError:
            continue
        if gain > best:
            best = gain
            change = f"kv={kv}" if kv != worker.kv_dtype else f"weights in {weights}"
    if not change:
        return None
    fewer = math.ceil(replicas / best - 1e-9)
    saves = "no GPU fewer"
    if fewer < replicas:
        saves = f"{fewer * worker.gpus} GPUs for {replicas * worker.gpus}"
    return (
        f"one step further (--quality any), {change}, would carry {best - 1:.0%} more per GPU by"
        f" closed form: {saves}"
    )
