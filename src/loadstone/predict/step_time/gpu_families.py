"""What shares coefficients: engines by name and era, GPUs by architecture; and which models are of one kind."""

from __future__ import annotations

from loadstone.catalogue.architecture.attention import CompressedAttention, LatentAttention
from loadstone.catalogue.architecture.model import Model
from loadstone.catalogue.hardware import Gpu

_CUT = frozenset({"h20"})
"""GPUs that were sold with a seventh of their architecture's products, by the first word of their names."""


def architecture_of(gpu: Gpu) -> str:
    """GPUs whose kernels are the same code: `hopper`, `blackwell`, `cdna 3` …

    Blackwell Ultra and the Grace boards run Blackwell's; cards without a scale-up network are a kind of their own, as
    their memory and clocks are other ones, and so is a GPU with most of its products cut off, which reaches other
    shares of its peak.
    """
    name = (gpu.architecture or gpu.name).lower().replace("grace ", "").replace(" ultra", "")
    if gpu.link == "pcie":
        return f"{name} pcie"
    word = gpu.name.partition("-")[0]
    return f"{name} {word}" if word in _CUT else name


def is_amd(architecture: str) -> bool:
    """Whether its kernels, collectives and launches are AMD's libraries'."""
    return architecture.startswith("cdna")


def kind_of(model: Model) -> str:
    """What its layers are, as engines had to learn them one after the other."""
    if any(isinstance(run.attention, LatentAttention | CompressedAttention) for run in model.layers):
        return "latent-attention"
    return "mixture-of-experts" if model.has_experts else "dense"


def shapes_of(model: Model) -> str:
    """Models that differ in their weights alone have the same."""
    return f"{model.hidden} x {model.layer_count} x {model.vocab}"
