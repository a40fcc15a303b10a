"""The coefficients of the performance model: few, each with a physical meaning, a prior and its
source.

All are positive and live in log space: a prior is log-normal, `spread` its standard deviation in ln
(0.2 is about ±20 %). Efficiencies are fractions of a datasheet peak; times are seconds. Speed of
light is the same model with all efficiencies 1 and all times 0 (`LIGHT`).

Sources of the priors: [K] kernel tables of aiconfigurator-core 0.12 (GEMM, attention, collectives
on A100, H100, H200, B200; a fit of t0 + max(FLOPs, bytes)); [B] the host terms of BLIS's fitted
step model; [G] a guess from how the kernel works, with a spread to match.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


HOST = frozenset(
    {
        "step_s",
        "sequence_s",
        "prefill_step_s",
        "launch_s",
        "request_s",
        "request_token_s",
        "stream_s",
    }
)
"""Times of the host: each engine's own. The others are of kernels, which engines take from the same
few libraries."""
EXPERT_LAYERS = frozenset({"expert_compute", "expert_memory", "routing_shape", "expert_layer_s"})
"""What layers with experts take."""


class Coefficient(NamedTuple):
    name: str
    prior: float
    spread: float
    unit: str
    meaning: str


COEFFICIENTS = (
    Coefficient(
        "gemm_compute_bf16",
        0.75,
        0.12,
        "of peak",
        "matrix products on 16-bit weights, many tokens [K]",
    ),
    Coefficient(
        "gemm_compute_fp8",
        0.57,
        0.15,
        "of peak",
        "the same on 8-bit weights, quantising included [K]",
    ),
    Coefficient("gemm_compute_fp4", 0.45, 0.20, "of peak", "the same on 4-bit weights [K]"),
    Coefficient(
        "gemm_memory_bf16", 0.83, 0.10, "of peak", "reading 16-bit weights, few tokens [K]"
    ),
    Coefficient("gemm_memory_fp8", 0.77, 0.12, "of peak", "reading 8-bit weights [K]"),
    Coefficient(
        "gemm_memory_fp4", 0.65, 0.15, "of peak", "reading 4-bit weights and their scales [K]"
    ),
    Coefficient(
        "expert_compute", 1.0, 0.35, "of measured", "products of experts, beside their kernel's [K]"
    ),
    Coefficient(
        "expert_memory", 1.0, 0.15, "of measured", "reading the experts that a step touches [K]"
    ),
    Coefficient(
        "routing_shape",
        3.0,
        0.50,
        "",
        "of the gamma distribution of how often experts are asked for [K]",
    ),
    Coefficient(
        "attention_decode",
        0.75,
        0.20,
        "of peak",
        "reading the KV cache, one new token a sequence [K]",
    ),
    Coefficient("latent_decode", 0.75, 0.30, "of above", "the same for latent (MLA) caches [G]"),
    Coefficient(
        "attention_prefill", 0.50, 0.25, "of peak", "attention of prompts, 16-bit products [K]"
    ),
    Coefficient(
        "latent_prefill", 0.80, 0.30, "of above", "the same for latent attention, keys expanded [G]"
    ),
    Coefficient(
        "product_s", 4e-6, 0.30, "s", "the floor of one matrix product: launch, tail, gap [K]"
    ),
    Coefficient(
        "quantised_s", 2e-6, 0.15, "s", "quantising activations before a product of 8 or 4 bits [K]"
    ),
    Coefficient(
        "layer_s",
        16e-6,
        0.25,
        "s",
        "other kernels of a layer: attention's floor, norms, rotary, cache [K]",
    ),
    Coefficient(
        "expert_layer_s",
        5e-6,
        0.50,
        "s",
        "routing, per expert layer, beside their kernel's floor [G]",
    ),
    Coefficient(
        "latent_layer_s",
        16e-6,
        0.40,
        "s",
        "splits, norms and joins of latent attention, per layer [K]",
    ),
    Coefficient(
        "linear_layer_s",
        20e-6,
        0.50,
        "s",
        "convolution and state update, per linear-attention layer [G]",
    ),
    Coefficient("collective_s", 6e-6, 0.30, "s", "the floor of one collective within a node [K]"),
    Coefficient(
        "collective_link",
        0.60,
        0.40,
        "of peak",
        "link bandwidth that a large collective reaches [K]",
    ),
    Coefficient(
        "step_s",
        300e-6,
        0.40,
        "s",
        "host time of a step that its kernels do not hide, and sampling [G]",
    ),
    Coefficient("sequence_s", 6e-6, 0.80, "s", "the same per sequence of the step [B]"),
    Coefficient(
        "prefill_step_s", 4e-3, 0.30, "s", "more of it in a step that holds prompt tokens [G]"
    ),
    Coefficient("launch_s", 8e-6, 0.60, "s", "launching one kernel where no CUDA graph does [B]"),
    Coefficient(
        "request_s",
        15e-3,
        0.35,
        "s",
        "from the client's send to the scheduler: HTTP, hand-over [B]",
    ),
    Coefficient(
        "request_token_s",
        3e-6,
        0.40,
        "s/token",
        "the same per prompt token: reading text, tokenising [G]",
    ),
    Coefficient(
        "stream_s", 2e-3, 0.50, "s", "from the end of a step to the token at the client [G]"
    ),
)

NAMES = tuple(coefficient.name for coefficient in COEFFICIENTS)
INDEX = {name: position for position, name in enumerate(NAMES)}
PRIOR: Array = np.log([coefficient.prior for coefficient in COEFFICIENTS])
SPREAD: Array = np.array([coefficient.spread for coefficient in COEFFICIENTS])
LIGHT: Array = np.array(
    [
        1e-30 if coefficient.unit.startswith("s") or not coefficient.unit else 1.0
        for coefficient in COEFFICIENTS
    ]
)
"""Speed of light, as values (not logarithms)."""
LIGHT[INDEX["routing_shape"]] = (
    1.4  # more uneven than any fit has found, so that fewer experts are read
)

MOVE = 1e-3
"""Of ln θ, for slopes by differences."""


def slopes_of(logarithms: Callable[[Array], Array], values: Array) -> Array:
    """Return d logarithms(values) / d ln(values) by differences. The coefficients are the last axis
    of `values`, and a new last axis of what comes back."""
    start = logarithms(values)
    columns = []
    for number in range(values.shape[-1]):
        moved = values.copy()
        moved[..., number] *= np.exp(MOVE)
        columns.append((logarithms(moved) - start) / MOVE)
    return np.moveaxis(np.array(columns), 0, -1)


PROCESSOR = "cpu"
"""Its architecture, as boards.architecture_of() has it of the catalogue's processor."""
_ON_PROCESSORS = {
    "gemm_compute_bf16": 0.3,
    "gemm_memory_bf16": 0.6,
    "attention_decode": 0.3,
    "attention_prefill": 0.2,
    "product_s": 2e-6,
    "layer_s": 10e-6,
    "step_s": 300e-6,
    "sequence_s": 100e-6,
    "prefill_step_s": 500e-6,
    "launch_s": 2e-6,
    "request_s": 2e-3,
    "request_token_s": 3e-6,
    "stream_s": 200e-6,
}
"""What is believed of an engine on a processor (`1xcpu`) before it was measured: little. The
coefficients are those of GPUs, read for a processor: products at a fraction of the core's peak, no
kernel that costs microseconds to launch, and a host that does its work on the same cores: sampling,
detokenising and sending count in full, for each sequence of each step. The spreads say that a
factor of three either way, for the host's times of seven, would be no surprise [G]: two points of
`loadstone calibrate` then decide."""

PROCESSOR_SPREAD: Array = np.array([2.0 if name in HOST else 1.0 for name in NAMES])
PROCESSOR_PRIOR: Array = PRIOR.copy()
for _name, _value in _ON_PROCESSORS.items():
    PROCESSOR_PRIOR[INDEX[_name]] = np.log(_value)
