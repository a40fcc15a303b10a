"""Says what an engine leaves of a GPU for the KV cache, in pieces, and the limits that it schedules
under."""

from __future__ import annotations

import math
import re

import msgspec

from loadstone.catalogue.deployment.deployment import Worker
from loadstone.catalogue.engines import OFF, ON
from loadstone.core.errors import InputError

GIB = 1 << 30
MIB = 1 << 20

Version = tuple[int, ...]


class Budget(msgspec.Struct, frozen=True):
    """Holds the memory of one rank. total = weights + activation + runtime + graphs + outside + kv
    (where that is ≥ 0).

    total_bytes       what the driver reports
    outside_bytes     what the engine leaves alone: 1 − gpu_memory_utilization, or the slack of
                      mem_fraction_static
    weights_bytes     this rank's weights
    activation_bytes  peak of a step's intermediate results
    runtime_bytes     contexts, kernels, collectives' buffers
    graphs_bytes      CUDA graphs, where the engine counts them
    state_bytes       pools of fixed size for linear attention's states, where the engine has them
                      apart
    request_states    states that it keeps there for each running request
    """

    total_bytes: float
    outside_bytes: float
    weights_bytes: float
    activation_bytes: float
    runtime_bytes: float
    graphs_bytes: float = 0.0
    state_bytes: float = 0.0
    request_states: int = 1

    @property
    def kv_bytes(self) -> float:
        """Return the room for the KV cache; negative where the rest alone does not fit."""
        taken = self.outside_bytes + self.weights_bytes + self.activation_bytes + self.runtime_bytes
        return self.total_bytes - taken - self.graphs_bytes - self.state_bytes


class BatchLimits(msgspec.Struct, frozen=True):
    """Holds what an engine decides before it has looked at the memory: tokens and requests of one
    step."""

    block_tokens: int
    max_batched_tokens: int
    max_seqs: int


class EngineLimits(BatchLimits, frozen=True):
    """Holds what a scheduler works under: one data-parallel replica of the engine.

    kv_tokens  that its cache holds; kv_blocks · block_tokens, but for hybrids, see engine_limits()
    kv_blocks  of `block_tokens` tokens each
    """

    kv_tokens: int
    kv_blocks: int


def version_of(deployment: Worker, newest: Version) -> Version:
    """Return `0.19.0` as (0, 19, 0), `~0.4` as (0, 4); `newest` where no version is given, or none
    can be read."""
    match = re.search(r"[0-9]{1,6}(?:\.[0-9]{1,6}){1,2}", deployment.engine_version or "")
    return tuple(map(int, match[0].split("."))) if match else newest


def is_speculative(deployment: Worker) -> bool:
    """Return whether it decodes speculatively: guesses tokens and verifies them."""
    return (deployment.argument("num_speculative_tokens") or "0") != "0"


def count(deployment: Worker, *names: str) -> int | None:
    """Return the first of the engine's arguments `names` that was given, a whole number of at least
    1. Raises InputError."""
    for name in names:
        text = deployment.argument(name)
        if text is not None:
            if not (text.isascii() and text.isdigit() and 1 <= int(text) < 2**40):
                raise InputError(
                    f"{_to_flag(name)}: {text!r} is not a whole number of at least 1; write e.g."
                    " 8192"
                )
            return int(text)
    return None


def fraction(deployment: Worker, name: str) -> float | None:
    """Return such an argument that is a number above 0 and up to 1."""
    text = deployment.argument(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 1:
        raise InputError(
            f"{_to_flag(name)}: {text!r} is not a fraction; write a number above 0 and up to 1,"
            " e.g. 0.9"
        )
    return value


_UNITS = {"gb": 1e9, "tb": 1e12, "gib": float(GIB), "tib": float(1 << 40)}


def memory_size(deployment: Worker, name: str) -> float | None:
    """Return such an argument that is a size of memory, in bytes."""
    text = deployment.argument(name)
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([gt]i?b)", text.lower())
    if match is None or not float(match[1]):
        raise InputError(
            f"{name}={text!r}: is a size of memory with its unit; write e.g. {name}=512gb"
        )
    return float(match[1]) * _UNITS[match[2]]


def _to_flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def switched(deployment: Worker, name: str) -> bool | None:
    """Return such an argument that is true or false."""
    text = deployment.argument(name)
    if text is None:
        return None
    if text.lower() not in (*ON, *OFF):
        raise InputError(f"{_to_flag(name)}: {text!r} is neither true nor false")
    return text.lower() in ON
