"""Of what a predicted time consists: the seconds of each part, and they add up to it.

A step's time grows in proportion where all its terms do (formulas.py), so it is Σ x·∂t/∂x over these terms x (Euler's
theorem): by how much it grows, to first order, where a coefficient's term does. Terms that meet in a norm share its
time by that. What no coefficient scales, the floors and token moves of experts' kernels, floors of PCIe, the widening
of FP8 caches, is the rest.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from loadstone.predict.step_time.coefficients import COEFFICIENTS, INDEX
from loadstone.predict.step_time.step import StepModel

REST = "kernels' own floors"
_PARTS = {
    "products": ("gemm_compute_bf16", "gemm_compute_fp8", "gemm_compute_fp4"),
    "weights read": ("gemm_memory_bf16", "gemm_memory_fp8", "gemm_memory_fp4"),
    "experts' products": ("expert_compute",),
    "experts read": ("expert_memory",),
    "attention": ("attention_decode", "attention_prefill"),
    "floors of products": ("product_s",),
    "quantising": ("quantised_s",),
    "floors of layers": ("layer_s", "expert_layer_s", "latent_layer_s", "linear_layer_s"),
    "collectives": ("collective_s", "collective_link"),
    "host, per step": ("step_s", "prefill_step_s"),
    "host, per sequence": ("sequence_s",),
    "launches": ("launch_s",),
    "before the engine": ("request_s", "request_token_s"),
    "streaming": ("stream_s",),
}
_MOVE = 1e-3
"""Of ln θ, for slopes by differences."""


def first_token_s(model: StepModel, prompt_tokens: int, step_tokens: int) -> float:
    """TTFT of one prompt in an idle engine whose steps take at most `step_tokens` of it."""
    seconds, cached = model.request_s + model.request_token_s * prompt_tokens + model.stream_s, 0
    while cached < prompt_tokens:
        new = min(prompt_tokens - cached, step_tokens)
        seconds += model.step_s(0, 0, [(new, cached)])
        cached += new
    return seconds


def parts_of(model: StepModel, seconds: Callable[[StepModel], float]) -> dict[str, float]:
    """What `seconds` of a model is made of, s by part, largest first; parts of nothing are left out."""
    total = seconds(model)
    found = {}
    for part, names in _PARTS.items():
        # A share of a peak works the other way round: time grows as it falls.
        signs = [1.0 if COEFFICIENTS[INDEX[name]].unit.startswith("s") else -1.0 for name in names]
        values = model.values.copy()
        values[[INDEX[name] for name in names]] *= np.exp(_MOVE * np.array(signs))
        found[part] = (seconds(model.at(values)) - total) / _MOVE
    found[REST] = total - sum(found.values())
    return dict(sorted(((k, v) for k, v in found.items() if v > 1e-3 * total), key=lambda each: -each[1]))
