"""Describes how numbers are kept: what one parameter, and one number of the KV cache, costs in
bytes."""

import msgspec

from loadstone.core.errors import InputError


class Format(msgspec.Struct, frozen=True, cache_hash=True):
    """Describes a storage format. `group` numbers share one scale of `scale_bits` (and one zero
    point of `zero_bits`).

    bytes per number = (bits + (scale_bits + zero_bits) / group) / 8; group 0: no scales worth
    counting.
    """

    dtype: str
    bits: int
    group: int = 0
    scale_bits: int = 0
    zero_bits: int = 0

    @property
    def bytes(self) -> float:
        shared = (self.scale_bits + self.zero_bits) / self.group if self.group else 0.0
        return (self.bits + shared) / 8


FORMATS: dict[str, Format] = {
    "fp32": Format("fp32", 32),
    "bf16": Format("bf16", 16),
    "fp16": Format("fp16", 16),
    "fp8": Format("fp8", 8),
    "int8": Format("int8", 8),
    # Open Compute Project, Microscaling Formats 1.0: 32 E2M1 numbers share an E8M0 scale.
    "mxfp4": Format("mxfp4", 4, 32, 8),
    # NVIDIA: 16 E2M1 numbers share an E4M3 scale (and a tensor one fp32 scale, not counted).
    "nvfp4": Format("nvfp4", 4, 16, 8),
    # What AWQ and GPTQ checkpoints have by default: 128 numbers share an fp16 scale and a 4-bit
    # zero point.
    "int4": Format("int4", 4, 128, 16, 4),
}
"""What a user may write for weights; a checkpoint may have others (block scales, other groups)."""

TORCH_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_SAME = {
    **TORCH_DTYPES,
    "half": "fp16",
    "float": "fp32",
    "fp8_e4m3": "fp8",
    "float8_e4m3fn": "fp8",
    "e4m3": "fp8",
    "e5m2": "fp8_e5m2",
    "fp4": "nvfp4",
    "awq": "int4",
    "gptq": "int4",
    "w4a16": "int4",
    "w8a8": "int8",
}

KV_BYTES: dict[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8_e5m2": 1.0,
    "int8": 1.0,
    "nvfp4": FORMATS["nvfp4"].bytes,
    # vLLM's for sparse MLA, see LatentAttention.kv_bytes_per_token; one byte for all else.
    "fp8_ds_mla": 1.0,
}
"""Bytes of one number in the KV cache, by the cache's dtype; fp8 is E4M3."""


def _name_of(text: str) -> str:
    name = text.strip().lower().removeprefix("torch.")
    return _SAME.get(name, name)


def dtype_of(text: str, what: str) -> str:
    """Return the name this project uses for a precision: `bfloat16` is `bf16`. `what` names the
    place for the error.

    Raises InputError.
    """
    name = _name_of(text).removesuffix("_e5m2")
    if name not in FORMATS:
        raise InputError(
            f"{what}: {text!r} is not a known precision; write one of {', '.join(FORMATS)}"
        )
    return name


def kv_dtype_of(text: str, what: str) -> str:
    """Return the name of a KV cache's precision. Raises InputError."""
    name = _name_of(text)
    if name not in KV_BYTES:
        raise InputError(
            f"{what}: {text!r} is not a precision of a KV cache; write one of {', '.join(KV_BYTES)}"
        )
    return name
