"""What is believed of an engine on a processor (`1xcpu`) before it was measured: little.

The coefficients are those of GPUs, read for a processor: products at a fraction of the core's peak, no kernel that
costs microseconds to launch, and a host that does its work on the same cores: sampling, detokenising and sending
count in full, for each sequence of each step. The spreads say that a factor of three either way, for the host's times
of seven, would be no surprise [G]: two points of `loadstone calibrate` then decide.
"""

from __future__ import annotations

import numpy as np

from loadstone.predict.step_time.coefficients import HOST, INDEX, NAMES, PRIOR, Array

ARCHITECTURE = "cpu"
"""As families.architecture_of() has it of the catalogue's processor."""

_CENTRES = {
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

SPREAD: Array = np.array([2.0 if name in HOST else 1.0 for name in NAMES])
CENTRE: Array = PRIOR.copy()
for _name, _value in _CENTRES.items():
    CENTRE[INDEX[_name]] = np.log(_value)
