"""Differences between GPUs: which ones share coefficients, and how boards, caches and links differ
from those that the coefficients were fitted on, which are data centres' GPUs with NVLink and 16-bit
caches for the most part.

The latter is by kernel tables, for the points of the fit tell little or nothing of it: those of
PyPI's aiconfigurator-core 0.12 (Apache-2.0), of vLLM, SGLang and TensorRT-LLM.
`benchmarks/reaches.py` prints what each reaches there; what is here of matrix products are ratios
of L40S and RTX PRO 6000 to H100, H200 and B200, within 4 % of what it prints.
"""

from typing import NamedTuple

from loadstone.catalogue.architecture.attention import CompressedAttention, LatentAttention
from loadstone.catalogue.architecture.model import Model
from loadstone.catalogue.hardware import Gpu
from loadstone.engines.rules import EngineRules

_CUT = frozenset({"h20"})
"""GPUs that were sold with a seventh of their architecture's products, by the first word of their
names."""

_ALSO_MODULES = frozenset({"a100", "h100", "h200"})


def architecture_of(gpu: Gpu) -> str:
    """GPUs whose kernels are the same code: `hopper`, `blackwell`, `cdna 3` …

    Blackwell Ultra and the Grace boards run Blackwell's; cards without a scale-up network are a
    kind of their own, as their memory and clocks are other ones, and so is a GPU with most of its
    products cut off, which reaches other shares of its peak.
    """
    name = (gpu.architecture or gpu.name).lower().replace("grace ", "").replace(" ultra", "")
    if gpu.link == "pcie":
        return f"{name} pcie"
    word = gpu.name.partition("-")[0]
    return f"{name} {word}" if word in _CUT else name


def measured_as(gpu: Gpu) -> str:
    """Return the architecture whose measurements say most of a GPU: of a card for PCIe that has the
    chip of a module with NVLink (A100, H100, H200), the module's."""
    architecture = architecture_of(gpu)
    has_module = gpu.name.partition("-")[0] in _ALSO_MODULES
    return architecture.removesuffix(" pcie") if has_module else architecture


def is_amd(architecture: str) -> bool:
    """Tell whether its kernels, collectives and launches are AMD's libraries'."""
    return architecture.startswith("cdna")


def kind_of(model: Model) -> str:
    """Name the kind of its layers, as engines had to learn them one after the other."""
    if any(
        isinstance(run.attention, LatentAttention | CompressedAttention) for run in model.layers
    ):
        return "latent-attention"
    return "mixture-of-experts" if model.has_experts else "dense"


def shapes_of(model: Model) -> str:
    """Models that differ in their weights alone have the same."""
    return f"{model.hidden} x {model.layer_count} x {model.vocab}"


class BoardEfficiency(NamedTuple):
    """The shares that a board reaches of what the fitted ones do, in products on 16-, 8- and 4-bit
    numbers (the classes of coefficients `gemm_compute_…`, `gemm_memory_…`)."""

    compute: tuple[float, float, float]
    memory: tuple[float, float, float]


_AS_FITTED = BoardEfficiency((1.0, 1.0, 1.0), (1.0, 1.0, 1.0))
_L40S = BoardEfficiency((0.77, 0.75, 0.75), (0.95, 0.95, 0.95))
"""350 W do not hold the clock that its data sheet counts with."""
_GB202 = BoardEfficiency((1.07, 1.22, 1.63), (0.96, 0.99, 1.13))
_BOARDS = {
    "l40s": _L40S,
    "rtx-6000-ada": _L40S,  # the same chip and data sheet, at 300 W
    "rtx-pro-6000": _GB202,
    "rtx-5090": _GB202,  # the same chip and memory
}
_FLOORS = {"ada pcie": 0.75, "blackwell pcie": 0.75}
"""A product's floor there, of the 4 µs in data centres: 2 to 5 µs in 16 bits on RTX PRO 6000, 0 to
5 on L40S, by products of 32 MB of weights and more. Smaller ones stay in these boards' caches (128
and 96 MB) while a table is made, and would put it at 1 and 0 µs."""
_MARLIN = {"a100": 0.6, "a800": 0.6}
"""Of what 16-bit products reach, those on weights that vLLM and SGLang widen within the kernel.
Marlin's experts, the only ones that a table has, reach 150 of A100's 312 TFLOP/s, cuBLAS 245. On
Hopper engines have Machete for it; on Ada Marlin reaches as much as cuBLAS, and TensorRT-LLM's own
kernels do on A100."""
_FOUR_BITS_READ = {"hopper": 0.82, "blackwell": 0.53}
"""Of the bandwidth at which 16-bit weights are read, that of four-bit ones which kernels widen: as
INT4 experts to 16-bit ones in the tables (expert_kernels.json), alike elsewhere (0.98 on
Ampere, 1.03 on Ada, 0.98 on RTX PRO 6000)."""
_WIDENED = frozenset({"hopper", "hopper pcie", "blackwell"})


class Ring(NamedTuple):
    """The collectives of a node, beside their coefficients: seconds on top of the floor, share of
    the link."""

    floor_s: float
    link: float


ALIKE = Ring(0.0, 1.0)
_FOURTH = {2: Ring(0.7e-6, 1.28), 4: Ring(7e-6, 0.60), 8: Ring(17e-6, 0.42)}
_FIFTH = {2: Ring(0.7e-6, 1.30), 4: Ring(7e-6, 0.95), 8: Ring(18e-6, 0.80)}
"""By ranks, over PCIe of the fourth and the fifth generation, beside coefficients that are those of
NVLink (0.47 of the link, 7 µs among eight). All-reduces of RTX PRO 6000 reach 0.62, 0.45 and 0.38
of the link and take 5, 13 and 24 µs at least, with all three engines. L40S' take as long at least;
on one node they reach 0.60, 0.12 and 0.06 of the link, on another 0.57, 0.67 and 0.65, for how a
node is laid out decides: here is the geometric mean of the two."""
_STAGED = {2: Ring(33e-6, 1.28), 4: Ring(41e-6, 0.60), 8: Ring(57e-6, 0.42)}
"""Of GeForce cards, whose driver has no access from one to another: NCCL goes through the host's
memory, 2·(r − 1) times one after the other, and waits for hosts that are not in step. Two users of
RTX 3090: a 27B model in INT4 on one and two cards (syv-ai/qwen38-27b-rtx3090 issue 135) leaves 37
µs for each all-reduce, a 31B one on four (ollama.linkworksinc.com, vLLM TP=4 on 4×RTX 3090) 46. The
share of a link of the fourth generation is that of _FOURTH: NCCL's own tests have 12.7 GB/s among
four RTX 4090 (tinygrad/open-gpu-kernel-modules pull request 22)."""
_GEFORCE = frozenset({"rtx-3090", "rtx-4090", "rtx-5090"})
_FIFTH_BYTES_PER_S = 60e9
_ONE_LINK = Ring(0.0, 1.6)
"""Between two GPUs of AMD's meshes: their one link carries 48 of its 64 GB/s, 0.75 of it (AMD's own
measurement on MI300X: ROCm blog, RCCL and xGMI, March 2025), where NVLink's coefficient is 0.47.
Points have four GPUs or eight."""


def board_efficiency(gpu: Gpu) -> BoardEfficiency:
    return _BOARDS.get(gpu.name, _AS_FITTED)


def floor_of(gpu: Gpu) -> float:
    """Return the floor of one product, of the coefficient `product_s`."""
    return _FLOORS.get(architecture_of(gpu), 1.0)


def widened(gpu: Gpu, rules: EngineRules | type[EngineRules]) -> float:
    """Return the share of their rate on 16-bit weights that products on widened ones reach."""
    return _MARLIN.get(gpu.name.partition("-")[0], 1.0) if rules.marlin else 1.0


def four_bits_read(gpu: Gpu, rules: EngineRules | type[EngineRules]) -> float | None:
    """Return the bandwidth of widened four-bit weights, of that of 16-bit ones; None where that of
    the GPUs that multiply four bits is all that is known."""
    if gpu.vendor != "nvidia" or not (rules.marlin or gpu.link == "pcie"):
        return None
    return _FOUR_BITS_READ.get(measured_as(gpu), 1.0)


def widening_of(gpu: Gpu, rules: EngineRules | type[EngineRules]) -> float:
    """Return the 16-bit FLOPs whose time a byte of an FP8 cache takes to widen; 0 where no table
    tells it apart from reading.

    With it and the time of the bandwidth the tables of attention are met: whatever the heads, vLLM
    reads FP8 at 2.4 and 2.65 TB/s on H100 and H200 (2.9 and 3.9 in 16 bits), SGLang at 1.9 and 2.2
    (2.9 and 4.0), and on B200 at 5.4 and 4.8 (6.3 and 6.5).
    """
    return rules.fp8_widening if architecture_of(gpu) in _WIDENED else 0.0


def multiplies_caches(gpu: Gpu) -> bool:
    """Tell whether kernels of latent attention multiply an FP8 cache as it is.

    Tables of B200 and GB200 have 0.78 to 0.95 of the 16-bit peak there with 128 heads (0.45 to 0.55
    with a 16-bit cache), of H200 0.68 (0.61), and the same share of the bandwidth with few heads.
    """
    return architecture_of(gpu) == "blackwell"


def ring_of(gpu: Gpu, ranks: int) -> Ring:
    if ranks == 2 and gpu.vendor == "amd" and gpu.pair_bytes_per_s < gpu.link_bytes_per_s:
        return _ONE_LINK
    if gpu.link != "pcie" or gpu.vendor != "nvidia":
        return ALIKE
    rings = _FIFTH if gpu.link_bytes_per_s >= _FIFTH_BYTES_PER_S else _FOURTH
    rings = _STAGED if gpu.name in _GEFORCE else rings
    return rings[min((measured for measured in rings if measured >= ranks), default=max(rings))]
