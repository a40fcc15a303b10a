"""Seconds of one engine step from its work and the coefficients, over arrays of d deployments.

`values` is d × K, the coefficients in the order of `coefficients.NAMES`, not their logarithms.

    step    = kernels + pp·(step_s + sequence_s·S + (prefill_step_s where the step holds prompt
            tokens))
    kernels = Σ products(n tokens) + Σ experts(n) + head(S) + Σ collectives(n) + floors + attention
    where no CUDA graph holds the step, the host launches each kernel: ‖ kernels, launch_s·their
    number ‖

    product     ‖ n·FLOPs/(eC·peak), (weights + n·activations)/(eM·bandwidth) ‖
    experts     floor + pairs·FLOPs/(eC·share·peak) + touched·weights/(eM·share·bandwidth) +
                pairs·activations/(share·bandwidth), the floor and the shares as measured of the
                engine's kernel (expert_kernels.py); tokens T of all schedulers; touched = E/ep·(1 −
                (1 + a/s)^−s), a = −T·ln(1 − k/E), where experts are asked for at gamma-distributed
                rates of shape s (s → ∞: uniform routing, 1 − ((E − k)/E)^T). All ranks wait for the
                fullest: by z(ep) standard deviations it has more of both than the mean, the largest
                of ep normal numbers; of a rank's touched experts the variance is E/ep·p·(1 − p), p
                the share touched, of its pairs m + m²·ep/(s·E), m = T·k/ep. Kernels that are not
                told which pairs are their own move the activations of all, T·k
    collective  floor·(1/2 + log₂(ranks)/6) + n·message/(eL·link); ring volume: 2(r − 1)/r of the
                tensor, and between nodes that of each GPU's part of it
    decode      ‖ context·cache/(eA·bandwidth), context·(FLOPs/eP + cache·widening)/peak ‖ +
                S·state/(eA·bandwidth)
    prompt      pairs·FLOPs/(eP·peak), pairs = Σ new·(cached + new/2)

‖a, b‖ = (a³ + b³)^⅓: a kernel near its ridge overlaps the two imperfectly. A grouped kernel of
experts does not overlap them at all: with the sum its measured times are met as well as with any
norm (docs/perfmodel.md). Sources: the roofline is Williams et al. 2009; experts touched under
uniform routing as in BLIS; ring volume as in NCCL's tests; exponents and shapes of the floors are
ours, judged on the points (docs/perfmodel.md).
"""

import math
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from loadstone.core.vectors import Floats, Ints64
from loadstone.predict.step_time.coefficients import INDEX
from loadstone.predict.step_time.exchange import FEW_TOKENS, HIDDEN
from loadstone.predict.step_time.operators import (
    COLLECTIVE,
    EXCHANGE,
    EXPERTS,
    FLOORS,
    GEMM,
    HEAD,
    Operators,
    Work,
    scale_floors,
)

Seconds = TypeVar("Seconds", float, Floats)
"""Of one deployment, or of several at once."""

_GEMM_COMPUTE = np.array(
    [INDEX["gemm_compute_bf16"], INDEX["gemm_compute_fp8"], INDEX["gemm_compute_fp4"]]
)
_GEMM_MEMORY = np.array(
    [INDEX["gemm_memory_bf16"], INDEX["gemm_memory_fp8"], INDEX["gemm_memory_fp4"]]
)

_EXPERTS = np.array([INDEX["expert_compute"], INDEX["expert_memory"]])


def body_seconds(work: Work, values: Floats, tokens: Floats) -> Floats:
    """Return the seconds that depend on the number of tokens alone: products, experts, collectives,
    layers' floors."""
    ops = work.operators
    row, deployments = ops.row, len(work.hbm)
    seconds = np.zeros(len(row))
    met = tokens[row] * np.maximum(ops.group, 1.0)

    timed = {
        GEMM: _product_seconds,
        EXPERTS: _expert_seconds,
        COLLECTIVE: _collective_seconds,
    }
    for kind, seconds_of in timed.items():
        places = np.flatnonzero(ops.kind == kind)
        if len(places):
            seconds[places] = seconds_of(work, values, places, met[places])
    total: Floats = np.bincount(row, seconds * ops.layers, minlength=deployments).astype(np.float64)
    for name, coefficient in FLOORS.items():
        total += getattr(work, name) * values[:, INDEX[coefficient]]
    exchanges = np.flatnonzero(ops.kind == EXCHANGE)
    if len(exchanges):
        of_each = _exchange_seconds(ops, exchanges, tokens[row[exchanges]])
        exchanged = np.bincount(row[exchanges], of_each, minlength=deployments)
        total += exchanged - HIDDEN * work.overlapped * np.minimum(total, exchanged)
    return total


def _product_seconds(work: Work, values: Floats, at: Ints64, tokens: Floats) -> Floats:
    """Return the seconds of each of the products `at` these places, on so many tokens."""
    ops = work.operators
    row = ops.row[at]
    fitted_compute = values[row, _GEMM_COMPUTE[ops.compute[at]]]
    fitted_memory = values[row, _GEMM_MEMORY[ops.memory[at]]]
    flops_per_s = fitted_compute * ops.efficiency_compute[at] * ops.peak[at]
    bytes_per_s = fitted_memory * ops.efficiency_memory[at] * work.hbm[row]
    moved = ops.weights[at] + tokens * ops.activations[at]
    return both(tokens * ops.flops[at] / flops_per_s, moved / bytes_per_s)


def _expert_seconds(work: Work, values: Floats, at: Ints64, tokens: Floats) -> Floats:
    """Return the seconds of each layer of experts `at` these places, on the tokens of its group."""
    ops = work.operators
    row = ops.row[at]
    fitted = np.where(ops.dealt[at, None] > 0, 1.0, values[np.ix_(row, _EXPERTS)])
    flops_per_s = fitted[:, 0] * ops.efficiency_compute[at] * ops.peak[at]
    bytes_per_s = fitted[:, 1] * ops.efficiency_memory[at] * work.hbm[row]
    ep, experts, per_token = ops.ep[at], ops.experts[at], ops.per_token[at]
    shape, local, fullest = values[row, INDEX["routing_shape"]], experts / ep, ops.fullest[at]
    mean = tokens * per_token / ep
    uneven = np.where(ops.uneven[at] < 0, 1 / (shape * local), ops.uneven[at] ** 2)
    pairs = mean + fullest * np.sqrt(mean + mean**2 * uneven)
    moved = np.where(ops.all_pairs[at] > 0, mean * ep, pairs)
    # Of uniform routing, 1 − e^−demand are touched.
    demand = -tokens * np.log1p(-np.minimum(per_token / experts, 1 - 1e-9))
    share = -np.expm1(-shape * np.log1p(demand / shape))
    touched = np.minimum(local, local * share + fullest * np.sqrt(local * share * (1 - share)))
    return np.asarray(
        ops.floor[at]
        + pairs * ops.flops[at] / flops_per_s
        + touched * ops.weights[at] / bytes_per_s
        + moved * ops.activations[at] / (ops.efficiency_moving[at] * work.hbm[row])
    )


def _collective_seconds(work: Work, values: Floats, at: Ints64, tokens: Floats) -> Floats:
    ops = work.operators
    row = ops.row[at]
    floor = values[row, INDEX["collective_s"]] * (0.5 + np.log2(ops.ranks[at]) / 6)
    link = values[row, INDEX["collective_link"]] * ops.efficiency_memory[at] * ops.link[at]
    return np.asarray(floor + ops.floor[at] + tokens * ops.message[at] / link)


def _exchange_seconds(ops: Operators, at: Ints64, tokens: Floats) -> Floats:
    """Return the seconds of all layers' exchanges `at` these places, of a rank's own tokens."""
    message = ops.message[at]
    bundled = np.maximum(FEW_TOKENS * message, tokens * ops.activations[at])
    sent = np.minimum(tokens * message, bundled)
    return ops.layers[at] * (ops.floor[at] + sent / ops.link[at])


def body_parts(
    work: Work, values: Floats, tokens: Floats, met_tokens: Floats
) -> tuple[Floats, Floats]:
    """Split body_seconds: (what a rank does on its own `tokens`, what the ranks of its group do
    together on `met_tokens` of each)."""
    body, shared = body_seconds(work, values, tokens), _met_part(work)
    if not shared.operators.layers.any():
        return body, np.zeros_like(body)
    alone = body - body_seconds(shared, values, tokens)
    return alone, body_seconds(shared, values, met_tokens)


def _met_part(work: Work) -> Work:
    """Keep of the work behind body_seconds what is done on the tokens of all ranks of an
    attention-DP group together: experts and collectives, or the exchange. Zero without such a
    group."""
    ops = work.operators
    together = (ops.group > 1) | (ops.kind == EXCHANGE)
    return scale_floors(work, 0.0).with_operators(layers=np.where(together, ops.layers, 0.0))


def head_seconds(work: Work, values: Floats, sequences: Floats) -> Floats:
    """Return the seconds of logits and sampling for so many sequences."""
    heads = np.flatnonzero(work.operators.kind == HEAD)
    row = work.operators.row[heads]
    seconds = _product_seconds(work, values, heads, sequences[row])
    return np.asarray(np.bincount(row, seconds, minlength=len(work.hbm)).astype(np.float64))


def context_seconds(work: Work, values: Floats) -> tuple[Floats, Floats, Floats]:
    """Decode attention is linear: (s per context token, s per context token within windows, s per
    sequence)."""
    read = values[:, INDEX["attention_decode"]] * work.hbm
    latent = np.where(work.latent > 0, values[:, INDEX["latent_decode"]], 1.0)
    products = values[:, INDEX["attention_prefill"]] * work.peak16
    widened = work.widening / work.peak16
    full = both(work.cache / (read * latent), work.context_flops / products + work.cache * widened)
    windowed = both(
        work.window_cache / (read * latent),
        work.window_flops / products + work.window_cache * widened,
    )
    return full, windowed, work.state / read


def pair_seconds(work: Work, values: Floats) -> tuple[Floats, Floats]:
    """Attention of prompts: (s per pair of a new and an earlier token, the same within windows)."""
    latent = np.where(work.latent > 0, values[:, INDEX["latent_prefill"]], 1.0)
    products = values[:, INDEX["attention_prefill"]] * work.peak16 * latent
    return work.pair_flops / products, work.window_pair_flops / products


def launch_seconds(work: Work, values: Floats) -> Floats:
    """Return the seconds that launching the kernels one by one takes."""
    return work.launches * values[:, INDEX["launch_s"]]


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds of a step but for those of its tokens: numbers of one deployment, or arrays over
    several.

    context, window      decode attention per context token, and per context token within windows
    state                per sequence whose state is read and written
    pair, window_pair    attention of prompts, per pair of a new and an earlier token, and the same
                         within windows
    launch               launching the kernels of a step one by one
    step, sequence       host time of a step that its kernels do not hide, and more for each
                         sequence
    prompts              more of it where the step holds prompt tokens
    """

    context: Any
    window: Any
    state: Any
    pair: Any
    window_pair: Any
    launch: Any
    step: Any
    sequence: Any
    prompts: Any


def step_terms(work: Work, values: Floats) -> Terms:
    """Return the terms of each of d deployments."""
    step, sequence, prompts = (
        work.stages * values[:, INDEX[name]] for name in ("step_s", "sequence_s", "prefill_step_s")
    )
    return Terms(
        *context_seconds(work, values),
        *pair_seconds(work, values),
        launch_seconds(work, values),
        step,
        sequence,
        prompts,
    )


def attention_seconds(
    terms: Terms,
    context_tokens: Seconds,
    window_tokens: Seconds,
    states: Seconds,
    pairs: Seconds,
    window_pairs: Seconds,
) -> Seconds:
    """Return the seconds of one pass over so many context tokens of decodes, and pairs of
    prompts."""
    seconds: Seconds = (
        terms.context * context_tokens
        + terms.window * window_tokens
        + terms.state * states
        + terms.pair * pairs
        + terms.window_pair * window_pairs
    )
    return seconds


@dataclass(frozen=True)
class MeanStep:
    """A step of each of d deployments, as arrays of means; for fits and limits, which tell no
    request apart.

    decodes, context     sequences that decode, and tokens of each
    sequences, tokens    that want a token of the step; tokens that pass through the model
    met                  tokens that each rank of a group brings to the experts
    pairs, window_pairs  of new and earlier tokens of prompts; the same within windows
    """

    decodes: Floats
    context: Floats
    sequences: Floats
    tokens: Floats
    met: Floats
    pairs: Floats | float = 0.0
    window_pairs: Floats | float = 0.0


def kernel_seconds(work: Work, values: Floats, step: MeanStep) -> tuple[Floats, Floats]:
    """Return the seconds of a step's kernels: (those of a rank alone, those that its group takes
    together)."""
    alone, met = body_parts(work, values, step.tokens, step.met)
    full, windowed, state = context_seconds(work, values)
    pair, window_pair = pair_seconds(work, values)
    decode = full * step.context + windowed * np.minimum(step.context, work.window) + state
    attention = step.decodes * decode + pair * step.pairs + window_pair * step.window_pairs
    return alone + head_seconds(work, values, step.sequences) + attention, met


def step_seconds(terms: Terms, kernels: Seconds, sequences: Seconds, *, prompts: bool) -> Seconds:
    """Return the seconds of a step: its kernels, and what the hosts of its stages add."""
    seconds: Seconds = kernels + terms.step
    if prompts:
        seconds += terms.prompts
    seconds += sequences * terms.sequence
    return seconds


def both(first: Seconds, second: Seconds) -> Seconds:
    """Return the norm ‖first, second‖ of two times that overlap imperfectly."""
    total = first**3 + second**3
    return math.pow(total, 1 / 3) if isinstance(total, float) else np.cbrt(total)


def attended_pairs(new: Seconds, cached: Seconds) -> Seconds:
    """Count the pairs of a new token of a prompt and those before it."""
    return new * (cached + new / 2)


def window_pairs(new: Seconds, cached: Seconds, window: Seconds) -> Seconds:
    """Count the same where each token attends to at most `window` of them."""
    # Token i of the chunk sees min(cached + i, window).
    beyond = window - cached
    rising = min(max(beyond, 0.0), new) if isinstance(beyond, float) else np.clip(beyond, 0.0, new)
    return attended_pairs(rising, cached) + (new - rising) * window
