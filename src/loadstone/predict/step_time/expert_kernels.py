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
_MEASURED = ("floor_s", "compute", "memory", "moving")


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
    nearest = _nearest_kernels(architecture)
    for kind in (dtype, _WIDENING):
        alike = [kernel for kernel in nearest if kernel.dtype == kind]
        exact = [kernel for kernel in alike if kernel.engine == engine]
        if exact:
            return exact[0]
        if alike and kind == PER_TENSOR:
            return _scale_16_bits(engine, architecture, alike)
        if alike:
            return mean_of(engine, architecture, dtype, alike)
    everywhere = [kernel for kernel in expert_kernels() if kernel.dtype == dtype]
    if dtype == PER_TENSOR:
        return _scale_16_bits(engine, architecture, everywhere)
    return mean_of(engine, architecture, dtype, everywhere or expert_kernels())


def _nearest_kernels(architecture: str) -> list[ExpertKernel]:
    related = [
        kernel for kernel in expert_kernels() if architecture.startswith(kernel.architecture)
    ]
    nearest = max((kernel.architecture for kernel in related), key=len, default="")
    return [kernel for kernel in related if kernel.architecture == nearest]


def _scale_16_bits(engine: str, architecture: str, kernels: Sequence[ExpertKernel]) -> ExpertKernel:
    """Estimate the per-tensor kernel of an engine where no table has it: its own of 16 bits, which
    launches and deals out tokens alike, times how much the others' differ from theirs."""
    plain = expert_kernel(engine, architecture, "bf16")
    scaled = mean_of(engine, architecture, PER_TENSOR, kernels)
    unscaled = [expert_kernel(kernel.engine, kernel.architecture, "bf16") for kernel in kernels]
    reference = mean_of(engine, architecture, "bf16", unscaled)
    values = (
        getattr(plain, name) * getattr(scaled, name) / getattr(reference, name)
        for name in _MEASURED
    )
    return ExpertKernel(engine, architecture, PER_TENSOR, *values)


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
        logarithms = [math.log(getattr(kernel, name)) for kernel in kernels]
        return math.exp(sum(logarithms) / len(kernels))

    floor_s, compute, memory, moving = map(mean, _MEASURED)
    return ExpertKernel(engine, architecture, dtype, floor_s, compute, memory, moving)
