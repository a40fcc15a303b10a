"""What shares coefficients: engines by name and era, GPUs by architecture; and which models are of one kind."""

from __future__ import annotations

from loadstone.catalogue.attention import CompressedAttention, LatentAttention
from loadstone.catalogue.deployment import Deployment
from loadstone.catalogue.hardware import Gpu
from loadstone.catalogue.model import Model
from loadstone.sizing.budget import version_of

_ERAS = {
    # engine: (first version of an era, its name), newest first
    "vllm": (((0, 14), "async"), ((0, 8), "v1"), ((0, 3), "v0"), ((0, 0), "eager")),
    "sglang": (((0, 5, 11), "0.5.11"), ((0, 5, 10), "graphs"), ((0, 5), "0.5"), ((0, 0), "0.4")),
    "tensorrt-llm": (((1, 3), "1.3"), ((1, 0), "1.0"), ((0, 0), "0.x")),
}
"""vLLM before 0.3 had no CUDA graphs; 0.8 made its V1 core the default, 0.14 asynchronous scheduling. SGLang 0.5 and
TensorRT-LLM 1.0 (PyTorch backend) overlap host and device; SGLang's prompts run in piecewise CUDA graphs by default
from about 0.5.10 on."""
_CUT = frozenset({"h20"})
"""GPUs that were sold with a seventh of their architecture's products, by the first word of their names."""
OLD_ERAS = frozenset({"eager", "v0", "0.4", "0.x"})
"""Whose coefficients are freer than those of later ones, and few rows tell them (docs/perfmodel.md)."""


def era_of(deployment: Deployment) -> str:
    """The era its engine's version belongs to; without a version, or one that cannot be read, the newest."""
    eras = _ERAS.get(deployment.engine)
    if eras is None:
        return "*"
    newest, _ = eras[0]
    version = version_of(deployment, newest)
    return next(name for first, name in eras if version >= first)


def eras_to(engine: str, era: str) -> list[str]:
    """What a release's coefficients are made of: present eras build on one another, so that the newest has what all
    before it had; an old one stands alone."""
    if era in OLD_ERAS or engine not in _ERAS:
        return [era]
    present = [name for _, name in reversed(_ERAS[engine]) if name not in OLD_ERAS]
    return present[: present.index(era) + 1]


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
