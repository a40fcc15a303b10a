"""Watts of GPU boards, by the shares of their bandwidth and arithmetic that are used.

    W/TDP = a + (c − a)·(1 − exp(−(k1·MBU^p + k2·MFU^q)))

`power.json` has the coefficients, which benchmarks/power.py fits, and by kind of GPU with
measurements what it draws beyond that, in ln, and an 80 % interval.
"""

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from loadstone.catalogue.hardware import Gpu

LEAST_OWN = 3
"""Measured loads from which on the watts of a GPU without rows are known."""
_DOUBTED = 1.0
"""Loads that the fit counts as, beside those that were measured on a GPU."""


class PowerCurve(NamedTuple):
    """Holds the coefficients."""

    a: float
    c: float
    k1: float
    k2: float
    p: float
    q: float

    def share(self, mbu: Any, mfu: Any) -> Any:
        """Return W/TDP at these shares, numbers or arrays."""
        used = self.k1 * mbu**self.p + self.k2 * mfu**self.q
        return self.a + (self.c - self.a) * -np.expm1(-used)


class _Kind(msgspec.Struct, frozen=True):
    low: float
    high: float
    move: float = 0.0
    rows: int = 0


class _Fit(msgspec.Struct, frozen=True):
    """`own`: of GPUs of which only own loads were measured."""

    curve: PowerCurve
    gpus: dict[str, _Kind]
    own: _Kind


class Power(NamedTuple):
    """Watts of one board, with an 80 % interval."""

    w: float
    low: float
    high: float


@cache
def _fit() -> _Fit:
    return msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=_Fit)


def move(gaps: Sequence[float], believed: float = 0.0) -> float:
    """Return by how much, in ln, a GPU draws more than the curve says, as measured loads and what
    was believed before have it."""
    return (sum(gaps) + _DOUBTED * believed) / (len(gaps) + _DOUBTED)


def board_power(gpu: Gpu, mbu: float, mfu: float, gaps: Sequence[float] = ()) -> Power | None:
    """Predict what a board draws at these shares of its bandwidth and peak; None where no row of
    its kind was fitted and fewer than LEAST_OWN `gaps` loads were measured (their gaps, see
    gap_of())."""
    fit = _fit()
    kind = fit.gpus.get(gpu.name)
    if kind is None and len(gaps) < LEAST_OWN:
        return None
    share = fit.curve.share(mbu, mfu) * math.exp(move(gaps, kind.move if kind else 0.0))
    ends = kind or fit.own
    w, low, high = (
        float(min(1.0, share * factor)) * gpu.tdp_w for factor in (1, ends.low, ends.high)
    )
    return Power(w, low, high)


def gap_of(gpu: Gpu, mbu: float, mfu: float, watts: float) -> float:
    """Return ln(measured/predicted) of a board's watts, where the curve alone predicts."""
    return math.log(watts / gpu.tdp_w / _fit().curve.share(mbu, mfu))
