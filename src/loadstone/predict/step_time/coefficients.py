"""The coefficients of the performance model: few, each with a physical meaning, a prior and its
source.

All are positive and live in log space: a prior is log-normal, `spread` its standard deviation in ln
(0.2 is about ±20 %). Efficiencies are fractions of a datasheet peak; times are seconds. Speed of
light is the same model with all efficiencies 1 and all times 0 (`LIGHT`).

Sources of the priors: [K] kernel tables of aiconfigurator-core 0.12 (GEMM, attention, collectives
on A100, H100, H200, B200; a fit of t0 + max(FLOPs, bytes)); [B] the host terms of BLIS's fitted
step model; [G] a guess from how the kernel works, with a spread to match.
"""

import csv
from collections.abc import Callable
from importlib import resources

import msgspec
import numpy as np

from loadstone.core.vectors import Floats

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
FRONTEND = ("request_s", "request_token_s", "stream_s")
"""What a request takes before and after its steps."""
CLIENT_S = (12.5e-3, 2.3e-6, 1.1e-3)
"""Of these, what the clients of public measurements take, which tokenise and wait in Python: the
fit's times of vLLM on Hopper less those of LEAST_FRONTEND_S."""
LEAST_FRONTEND_S = (1.5e-3, 0.3e-6, 0.7e-3)
"""vLLM 0.26 on an H200, prompts alone, sent as token ids by our client
(benchmarks/results/h200.md)."""
EXPERT_LAYERS = frozenset({"expert_compute", "expert_memory", "routing_shape", "expert_layer_s"})
"""What layers with experts take."""


class Coefficient(msgspec.Struct, frozen=True):
    """A row of coefficients.csv; `processor`: its prior there."""

    name: str
    prior: float
    processor: float
    spread: float
    unit: str
    meaning: str


_TABLE = resources.files("loadstone.predict.step_time") / "coefficients.csv"
COEFFICIENTS = tuple(
    msgspec.convert(row, Coefficient, strict=False)
    for row in csv.DictReader(_TABLE.read_text("utf-8").splitlines())
)

NAMES = tuple(coefficient.name for coefficient in COEFFICIENTS)
INDEX = {name: position for position, name in enumerate(NAMES)}
PRIOR: Floats = np.log([coefficient.prior for coefficient in COEFFICIENTS])
SPREAD: Floats = np.array([coefficient.spread for coefficient in COEFFICIENTS])
LIGHT: Floats = np.array(
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


def slopes_of(logarithms: Callable[[Floats], Floats], values: Floats) -> Floats:
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
PROCESSOR_PRIOR: Floats = np.log([coefficient.processor for coefficient in COEFFICIENTS])
"""What is believed of an engine on a processor (`1xcpu`) before it was measured: little. The
coefficients are those of GPUs, read for a processor: products at a fraction of the core's peak, no
kernel that costs microseconds to launch, and a host that does its work on the same cores: sampling,
detokenising and sending count in full, for each sequence of each step. The spreads say that a
factor of three either way, for the host's times of seven, would be no surprise [G]: two points of
`loadstone calibrate` then decide."""

PROCESSOR_SPREAD: Floats = np.array([2.0 if name in HOST else 1.0 for name in NAMES])
