"""Measurements of engines' kernels for experts: a floor, and shares of the peaks.

    seconds = floor_s + touched·weights/(memory·bandwidth) + pairs·FLOPs/(compute·peak)
                      + pairs·activations/(moving·bandwidth)

`expert_kernels.json` has a row for each engine, architecture and type of weights, fitted by
`benchmarks/expert_kernels.py` on the kernel tables of PyPI's aiconfigurator-core (Apache-2.0). A
variant of an architecture (`hopper pcie`) takes its kernels. Where there is none, the geometric
mean of the nearest stands in: of other engines on that architecture; of those there that widen
four-bit weights, where it has no products of the type (FP8 on Ampere, NVFP4 on Hopper: engines take
Marlin's then); else of all architectures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from importlib import resources

import msgspec

PER_TENSOR = "fp8-per-tensor"
"""FP8 with one scale for a matrix, as engines make it of a 16-bit checkpoint; `fp8` is that of
checkpoints whose blocks of 128 × 128 have one each (DeepSeek's, Qwen's). Kernels of the latter
scale within the products, and take up to 1.9 times as long as those of 16 bits for a prompt, where
the former take 0.5 to 1.2 (docs/accuracy.md)."""
_ALIKE = {"fp16": "bf16", "fp32": "bf16", "int8": PER_TENSOR}
_WIDENING = "int4"


class ExpertKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`compute` of the type's peak; `memory` of the bandwidth, and `moving` of it where tokens are
    dealt out to their experts, quantised, and put together again. `off`: median error of the fit at
    up to 192 tokens, of so many `rows` in all, measured with that `version` of the engine."""

    engine: str
    architecture: str
    dtype: str
    floor_s: float
    compute: float
    memory: float
    moving: float
    version: str = ""
    rows: int = 0
    off: float = 0.0


@cache
def expert_kernel(engine: str, architecture: str, dtype: str) -> ExpertKernel:
    """Return the kernel for experts with weights of a type of the catalogue (`bf16`, `fp8`,
    `nvfp4`, `mxfp4`, `int4` …), or PER_TENSOR."""
    dtype = _ALIKE.get(dtype, dtype)
    here = _nearest_kernels(architecture)
    for kind in (dtype, _WIDENING):
        if near := [each for each in here if each.dtype == kind]:
            exact = [each for each in near if each.engine == engine]
            if kind == PER_TENSOR and not exact:
                return _scale_16_bits(engine, architecture, near)
            return exact[0] if exact else mean_of(engine, architecture, dtype, near)
    if dtype == PER_TENSOR:
        return _scale_16_bits(
            engine, architecture, [each for each in expert_kernels() if each.dtype == dtype]
        )
    known = [each for each in expert_kernels() if each.dtype == dtype] or list(expert_kernels())
    return mean_of(engine, architecture, dtype, known)


def _nearest_kernels(architecture: str) -> list[ExpertKernel]:
    related = [each for each in expert_kernels() if architecture.startswith(each.architecture)]
    nearest = max((each.architecture for each in related), key=len, default="")
    return [each for each in related if each.architecture == nearest]


def _scale_16_bits(engine: str, architecture: str, kernels: Sequence[ExpertKernel]) -> ExpertKernel:
    """Estimate the per-tensor kernel of an engine where no table has it: its own of 16 bits, which
    launches and deals out tokens alike, times how much the others' differ from theirs."""
    plain = [expert_kernel(each.engine, each.architecture, "bf16") for each in kernels]
    own, theirs = (
        expert_kernel(engine, architecture, "bf16"),
        mean_of(engine, architecture, PER_TENSOR, kernels),
    )
    others = mean_of(engine, architecture, "bf16", plain)
    names = ("floor_s", "compute", "memory", "moving")
    return ExpertKernel(
        engine,
        architecture,
        PER_TENSOR,
        *(getattr(own, name) * getattr(theirs, name) / getattr(others, name) for name in names),
    )


@cache
def expert_kernels() -> tuple[ExpertKernel, ...]:
    """Return all that were measured."""
    content = (resources.files("loadstone.predict.step_time") / "expert_kernels.json").read_bytes()
    return msgspec.json.decode(content, type=tuple[ExpertKernel, ...])


def mean_of(
    engine: str, architecture: str, dtype: str, kernels: Sequence[ExpertKernel]
) -> ExpertKernel:
    """Return the geometric mean of others, for a kernel that has no measurements."""

    def mean(name: str) -> float:
        return math.exp(sum(math.log(getattr(each, name)) for each in kernels) / len(kernels))

    return ExpertKernel(
        engine,
        architecture,
        dtype,
        mean("floor_s"),
        mean("compute"),
        mean("memory"),
        mean("moving"),
    )
