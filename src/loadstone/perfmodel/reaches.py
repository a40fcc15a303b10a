"""What products reach of a data sheet beside what the coefficients say, which are of data centres' GPUs.

From the GEMM tables of PyPI's aiconfigurator-core 0.12 (Apache-2.0; vLLM, SGLang and TensorRT-LLM on A100, H100, H200,
B200, L40S and RTX PRO 6000, 18,000 sizes a table), each fitted by t0 + ‖FLOPs, bytes‖; ratios of geometric means over
the engines to those of H100, H200 and B200. None of the points that coefficients are fitted on tells of these.
"""

from __future__ import annotations

from typing import NamedTuple

from loadstone.catalogue.hardware import Gpu
from loadstone.perfmodel.families import architecture_of


class Reach(NamedTuple):
    """Of products on 16-, 8- and 4-bit numbers (the classes of coefficients `gemm_compute_…`, `gemm_memory_…`)."""

    compute: tuple[float, float, float]
    memory: tuple[float, float, float]


_LIKE_DATA_CENTRES = Reach((1.0, 1.0, 1.0), (1.0, 1.0, 1.0))
_L40S = Reach((0.77, 0.85, 0.85), (0.94, 0.95, 0.95))
"""Its 350 W do not hold the clock that the data sheet counts with: 0.58 of the peak in 16 bits, where H100 has 0.78."""
_BOARDS = {
    "l40s": _L40S,
    "rtx-6000-ada": _L40S,  # the same chip and data sheet at 300 W
    "rtx-pro-6000": Reach((1.07, 1.35, 1.6), (0.96, 1.0, 1.1)),
}
_FLOORS = {"ada pcie": 0.15, "blackwell pcie": 0.3}
"""The floor of a product there, of data centres' 4 µs: 0 to 0.3 and 0.7 to 1.3 µs in 16 bits."""
MARLIN = {"ampere": 0.6}
"""Of what 16-bit products reach, those of weights that vLLM and SGLang widen within the kernel: Marlin's experts, the
only ones in the tables, reach 150 of A100's 312 TFLOP/s, cuBLAS 245. On Hopper they have Machete for it, on Ada Marlin
reaches as much as cuBLAS; TensorRT-LLM's own kernels do everywhere."""


def reach_of(gpu: Gpu) -> Reach:
    return _BOARDS.get(gpu.name, _LIKE_DATA_CENTRES)


def floor_of(gpu: Gpu) -> float:
    """The floor of one product, of the coefficient `product_s`."""
    return _FLOORS.get(architecture_of(gpu), 1.0)


def widened(gpu: Gpu, engine: str) -> float:
    """What products on widened weights reach, of those on 16-bit ones."""
    architecture = architecture_of(gpu).split()[0]
    return MARLIN.get(architecture, 1.0) if engine in ("vllm", "sglang") else 1.0
