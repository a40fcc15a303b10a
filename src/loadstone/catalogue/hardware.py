"""Describes GPUs and nodes: numbers of their data sheets, each with its source."""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

Link = Literal["nvlink", "nvlink-switch", "xgmi", "ethernet", "pcie"]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e21)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
DTYPES = ("bf16", "fp16", "fp8", "int8", "fp4")
"""That products have a rate of their own for."""


_HOST_LINKS = {
    "Volta": 16e9,
    "Turing": 16e9,
    "Hopper": 64e9,
    "Grace Hopper": 450e9,
    "Blackwell": 64e9,
    "Blackwell Ultra": 64e9,
    "Grace Blackwell": 450e9,
    "Grace Blackwell Ultra": 450e9,
    "CDNA 3": 64e9,
    "CDNA 4": 64e9,
    "Gaudi 3": 64e9,
}
"""Bytes per second and direction to the host: PCIe ×16 of the architecture's generation (3.0 of
Volta and Turing, 5.0 of those here with 64e9, as the hosts of B300 have it too, 4.0 of all others),
or NVLink-C2C of Grace."""
_REACHED_OF_HOST_LINK = 0.85
"""Of pinned memory in large pieces: some 55 of PCIe 5.0's 64 GB/s."""


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Holds an accelerator. All rates are peaks of the data sheet.

    hbm_bytes           the data sheet's capacity, whose GB are 2³⁰ bytes (drivers confirm it, see
                        gpus.toml)
    usable_bytes        total memory as its driver reports it to programs; what engines take their
                        fraction of
    hbm_bytes_per_s     memory bandwidth
    flops_per_s         dense FLOP/s (integer OP/s) of matrix units by dtype, no sparsity: bf16,
                        fp16, fp8, fp4, int8
    link_bytes_per_s    scale-up network, per GPU and per direction, to all its peers together
    pair_bytes_per_s    per direction between two GPUs; smaller than `link_bytes_per_s` in a mesh
    per_node            GPUs that the scale-up network joins
    nic_bytes_per_s     scale-out network per GPU and direction in the usual node; None where there
                        is no usual one
    host_bytes_per_s    link to the host's memory, per direction; None: that of its architecture,
                        see from_host_per_s
    tdp_w               board power
    source              field (for flops: `flops.fp8`) to where its number is from
    """

    name: str
    vendor: Literal["nvidia", "amd", "intel", "any"]
    hbm_bytes: Count
    usable_bytes: Count
    hbm_bytes_per_s: Positive
    flops_per_s: dict[str, Positive]
    link: Link
    link_bytes_per_s: Positive
    pair_bytes_per_s: Positive
    per_node: Count
    tdp_w: Positive
    source: dict[str, str]
    nic_bytes_per_s: Positive | None = None
    host_bytes_per_s: Positive | None = None
    architecture: str = ""
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    given: str = ""

    def __post_init__(self) -> None:
        if "bf16" not in self.flops_per_s:
            raise ValueError(
                "flops_per_s has no bf16, the rate of 16-bit products, which other types fall"
                " back on"
            )
        unknown = self.flops_per_s.keys() - DTYPES
        if unknown:
            raise ValueError(
                f"flops_per_s has {sorted(unknown)[0][:40]!r}; its types are {', '.join(DTYPES)}"
            )
        if self.usable_bytes > self.hbm_bytes:
            raise ValueError("more memory is usable than there is")

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def from_host_per_s(self) -> float:
        """Return the bytes per second that copies from the host's memory reach, and back."""
        return _REACHED_OF_HOST_LINK * (
            self.host_bytes_per_s or _HOST_LINKS.get(self.architecture, 32e9)
        )

    def peak_flops_per_s(self, dtype: str) -> float:
        """Return the dense peak for products in `dtype`; where the GPU has no units for it, the
        next wider kind it would use: fp4 → fp8 → bf16 (weights are widened before the product),
        int8 → bf16, int4 → bf16.
        """
        while dtype not in self.flops_per_s:
            dtype = WIDER.get(dtype, "bf16")
        return self.flops_per_s[dtype]


WIDER: Mapping[str, str] = {
    "nvfp4": "fp4",
    "mxfp4": "fp4",
    "fp4": "fp8",
    "fp8": "bf16",
    "int8": "bf16",
}


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds a server: `gpus` GPUs of one kind, its processors, memory and networks.

    scale_up_bytes_per_s, scale_out_bytes_per_s: per GPU and direction. `nics`: for scale-out, all
    together. A missing value is None: the source does not say. `given`: as a Gpu's.
    """

    name: str
    gpu: str
    gpus: Annotated[int, msgspec.Meta(ge=1, le=65_536)]
    source: str
    cpu: str | None = None
    cpus: int | None = None
    cores: int | None = None
    ram_bytes: int | None = None
    scale_up: str | None = None
    scale_out: str | None = None
    nics: Count | None = None
    nic_bytes_per_s: Positive | None = None
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    given: str = ""

    @property
    def scale_out_bytes_per_s(self) -> float | None:
        """Return the bandwidth per GPU and direction."""
        if self.nics is None or self.nic_bytes_per_s is None:
            return None
        return self.nics * self.nic_bytes_per_s / self.gpus
