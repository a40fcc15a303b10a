"""What one rank has to do in one engine step, as arrays: products, reads and messages.

A `Work` holds operators, one entry an operator, each belonging to a deployment (`row`); a deployment has its own
arrays beside them. So the same formulas (`step.py`) serve one deployment over many batch sizes and, in a fit,
thousands of deployments at once. `counting.py` makes one of a deployment.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from loadstone.predict.step_time.coefficients import Array

GEMM, EXPERTS, HEAD, COLLECTIVE = range(4)


@dataclass(frozen=True)
class Work:
    """Operators (n of them) of d deployments. Bytes and FLOPs are one rank's, per layer; `count` layers are alike.

    n: row (which deployment), kind, count, flops (per token; of experts: per token and expert it
    goes to), weights (bytes; of experts: one expert's share), activations (bytes per token), peak (FLOP/s), compute
    and memory (which GEMM efficiency), experts, per_token, ep, fullest (by so many standard deviations the fullest
    rank is above the mean), group (tokens of so many schedulers meet), ranks, link (bytes/s), message (bytes per
    token); reach_compute and reach_memory (of experts, as their kernel was measured, of peak; of other products and
    of a collective's link, beside the coefficients', reaches.py); floor (s, of experts and collectives); of experts:
    reach_moving (of peak), all_pairs (0 or 1: it moves the activations of all ranks' pairs, not its own alone).
    d: hbm (bytes/s), peak16 (16-bit FLOP/s), cache (bytes per context token, all layers), window, window_cache (the
    same of windowed layers), context_flops, window_flops (per context token of a decode), pair_flops,
    window_pair_flops (per pair of a new and an earlier token in a prompt), widening (of an FP8 cache: the time of so
    many 16-bit FLOPs per byte that is read), state (bytes per sequence), latent (0 or 1), layers, products, quantised
    (products with 8- or 4-bit weights), expert_layers, latent_layers, linear_layers, launches (kernels of a step),
    stages (of a pipeline: each has a host).
    """

    row: NDArray[np.int64]
    kind: NDArray[np.int64]
    count: Array
    flops: Array
    weights: Array
    activations: Array
    peak: Array
    compute: NDArray[np.int64]
    memory: NDArray[np.int64]
    experts: Array
    per_token: Array
    ep: Array
    fullest: Array
    all_pairs: Array
    group: Array
    ranks: Array
    link: Array
    message: Array
    floor: Array
    reach_compute: Array
    reach_memory: Array
    reach_moving: Array

    hbm: Array
    peak16: Array
    cache: Array
    window: Array
    window_cache: Array
    context_flops: Array
    window_flops: Array
    pair_flops: Array
    window_pair_flops: Array
    widening: Array
    state: Array
    latent: Array
    layers: Array
    products: Array
    quantised: Array
    expert_layers: Array
    latent_layers: Array
    linear_layers: Array
    launches: Array
    stages: Array


INTEGERS = {"row", "kind", "compute", "memory"}
OPERATOR = (
    "row", "kind", "count", "flops", "weights", "activations", "peak", "compute", "memory", "experts", "per_token",
    "ep", "fullest", "all_pairs", "group", "ranks", "link", "message", "floor", "reach_compute", "reach_memory",
    "reach_moving",
)  # fmt: skip


def stack(works: list[Work]) -> Work:
    """Many works as one, the deployments numbered in order."""
    columns: dict[str, list[NDArray[np.float64]]] = {each.name: [] for each in fields(Work)}
    before = 0
    for work in works:
        for name, column in columns.items():
            values = getattr(work, name)
            column.append(values + before if name == "row" else values)
        before += len(work.hbm)
    return Work(**{name: np.concatenate(column) for name, column in columns.items()})  # type: ignore[arg-type]


def ideal(work: Work) -> Work:
    """The same work with products, experts and caches at the speed of light, experts evenly spread."""
    ones, none = np.ones_like(work.floor), np.zeros_like(work.floor)
    even = replace(work, floor=none, fullest=none, all_pairs=none, widening=np.zeros_like(work.widening))
    return replace(even, reach_compute=ones, reach_memory=ones, reach_moving=ones)


def repeat(work: Work, count: int) -> Work:
    """The same deployment so many times over: for evaluating it at several batch sizes at once."""
    columns = {each.name: np.tile(getattr(work, each.name), count) for each in fields(Work)}
    columns["row"] += np.repeat(np.arange(count) * len(work.hbm), len(work.row))
    return Work(**columns)
