"""Holds the work of engine steps: operators (products, experts' kernels, messages) as rows of
arrays, and the totals of each deployment.

So the same formulas (`formulas.py`) serve one deployment over many batch sizes and, in a fit,
thousands of deployments at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from loadstone.core.vectors import Array, Floats, Ints64

GEMM, EXPERTS, HEAD, COLLECTIVE, EXCHANGE = range(5)


class Operators(NamedTuple):
    """Holds the operators of a step as columns: arrays of n, an operator of one deployment in each
    place. Bytes and FLOPs are one rank's, per layer. A column that a kind does not use holds 0.

    row              index of the deployment in the arrays of Work
    kind             GEMM, EXPERTS, HEAD, COLLECTIVE or EXCHANGE
    layers           how many equal layers have this operator
    flops            per token; of experts: per pair of a token and an expert
    weights          bytes read; of experts: those of one expert on one rank
    activations      bytes per token, read and written; of an exchange: bytes per token of a large
                     batch, whose copies for one node travel as one
    peak             FLOP/s
    compute, memory  index of the fitted GEMM efficiency: 0, 1, 2 for 16, 8 and 4 bits
    experts, per_token, ep   experts in a layer; experts for each token; ranks among which whole
                     experts are divided
    fullest          expected excess of the fullest of these ranks over the mean, in standard
                     deviations
    uneven           relative standard deviation of the ranks' loads; below 0: the coefficient
                     `routing_shape` gives it
    dealt            1: tokens are sent to the ranks of their experts, and no fit has seen such
                     kernels: their measured efficiencies hold without a coefficient
    all_pairs        1: the kernel moves the activations of every rank's pairs, not of its own alone
    group            number of schedulers whose tokens one operator takes together
    ranks, link      ranks that exchange messages; bytes/s of one rank
    message          bytes per token
    floor            seconds at any number of tokens, of experts, collectives and exchanges
    efficiency_compute, efficiency_memory   of experts: share of the peak rates, as their kernel was
                     measured; of other products, and of a collective's link: factor on the
                     coefficient, from this GPU to those that were fitted (boards.py)
    efficiency_moving   of experts: share of the memory's rate at which activations move
    """

    row: Ints64
    kind: Ints64
    layers: Floats
    flops: Floats
    weights: Floats
    activations: Floats
    peak: Floats
    compute: Ints64
    memory: Ints64
    experts: Floats
    per_token: Floats
    ep: Floats
    fullest: Floats
    uneven: Floats
    dealt: Floats
    all_pairs: Floats
    group: Floats
    ranks: Floats
    link: Floats
    message: Floats
    floor: Floats
    efficiency_compute: Floats
    efficiency_memory: Floats
    efficiency_moving: Floats


class Work(NamedTuple):
    """Holds the operators of d deployments, and each deployment's totals: arrays of d.

    hbm, peak16                  bytes/s; 16-bit FLOP/s
    cache, context_flops         per context token of a decode: bytes and FLOPs of all layers
    window                       tokens that a layer with a window sees (the mean by cache bytes)
    window_cache, window_flops   like cache and context_flops, of the layers with a window alone
    pair_flops, window_pair_flops   per pair of a new and an earlier token in a prompt
    widening                     cost of widening an FP8 cache: 16-bit FLOPs per byte read
    state                        bytes of linear attention's states, read and written per sequence
    latent                       1: some attention is latent, which has an efficiency of its own
    layers, products, quantised, expert_layers, latent_layers, linear_layers   how often a step pays
                                 the floor of each (FLOORS); quantised: of products whose
                                 activations are quantised first
    launches                     kernels of a step, launched one by one without a CUDA graph
    stages                       stages of the pipeline: each has a host
    overlapped                   1: half of a batch computes while the other half exchanges tokens
    """

    operators: Operators
    hbm: Floats
    peak16: Floats
    cache: Floats
    window: Floats
    window_cache: Floats
    context_flops: Floats
    window_flops: Floats
    pair_flops: Floats
    window_pair_flops: Floats
    widening: Floats
    state: Floats
    latent: Floats
    layers: Floats
    products: Floats
    quantised: Floats
    expert_layers: Floats
    latent_layers: Floats
    linear_layers: Floats
    launches: Floats
    stages: Floats
    overlapped: Floats

    def with_operators(self, **columns: Array) -> Work:
        """Return the work with other columns of its operators."""
        return self._replace(operators=self.operators._replace(**columns))


FLOORS = {
    "layers": "layer_s",
    "products": "product_s",
    "quantised": "quantised_s",
    "expert_layers": "expert_layer_s",
    "latent_layers": "latent_layer_s",
    "linear_layers": "linear_layer_s",
}
"""The coefficient, in seconds, that each of these totals of Work is multiplied by."""
TOTALS = Work._fields[1:]
INTEGERS = {"row", "kind", "compute", "memory"}


def stack(works: Sequence[Work]) -> Work:
    """Return one work with the deployments of all of them, in order."""
    operators, *totals = (list(columns) for columns in zip(*works, strict=True))
    joined = Operators(*map(np.concatenate, zip(*operators, strict=True)))
    first = np.cumsum([0, *(len(work.hbm) for work in works[:-1])])
    row = joined.row + np.repeat(first, [len(table.row) for table in operators])
    return Work(joined._replace(row=row), *map(np.concatenate, totals))


def repeat(work: Work, count: int) -> Work:
    """Return a work that holds this one `count` times, to evaluate it at `count` batch sizes at
    once."""
    operators = Operators._make(np.tile(column, count) for column in work.operators)
    first = np.repeat(np.arange(count) * len(work.hbm), len(work.operators.row))
    totals = (np.tile(column, count) for column in work[1:])
    return Work(operators._replace(row=operators.row + first), *totals)


def idealise(work: Work) -> Work:
    """Return the work at the data sheet's rates: no floors of operators, efficiencies of 1, tokens
    spread evenly over the ranks of experts."""
    ones, zeros = np.ones_like(work.operators.floor), np.zeros_like(work.operators.floor)
    return work._replace(widening=np.zeros_like(work.widening)).with_operators(
        floor=zeros,
        fullest=zeros,
        all_pairs=zeros,
        efficiency_compute=ones,
        efficiency_memory=ones,
        efficiency_moving=ones,
    )


def scale_floors(work: Work, share: float) -> Work:
    """Return the work with the floors of its layers and kernels multiplied by `share`."""
    return work._replace(**{name: getattr(work, name) * share for name in FLOORS})
