"""The seconds that LoRA adapters add to a step, and that loading one takes.

    added = modules · (s·slots + [D > 0]·(b·tokens + d(r)·D))

with D the different adapters in the step, and modules those for which an engine computes adapters:
four in a layer of Llama. s, b and d are of vLLM in May 2025 on an H100 with Llama-3.1-8B (arXiv
2508.08343): five decode steps of rank 16 leave residuals of 0.05 ms, and two of 300 slots came out
16 and 2 % off. They are kernels' times and no bandwidth's: Qwen2.5-7B has the same, and rank 8 that
of 16. Of prompts, other GPUs and later releases there are no such measurements.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from loadstone.core.vectors import Ints32
from loadstone.engines.rules import EngineRules
from loadstone.engines.sharding.adapters import adapted_modules
from loadstone.predict.sizing.memory import DISK_BYTES_PER_S

SLOT_S, TOKEN_S = 0.178e-6, 0.31e-6
ADAPTER_S, WIDER_S, USUAL_RANK = 3.0e-6, 1.7e-6 / 16, 16
"""d(r): up to rank 16, and for each unit of rank beyond; 4.7 µs were measured at 32."""
TENSOR_S = 8e-6
"""Of a load, beside its bytes: 6.4 to 8.1 ms were measured of Llama-3.1-8B, 3.0 to 3.5 of
Qwen2.5-7B, for ranks 8 to 32 alike, and it is between."""
_EFFICIENCY = 0.8
_SPREAD = 0.12
_GUESSED_SPREAD = math.log(3) / 1.2816
"""In ln: the 80 % interval is from a third to three times."""


class AdapterTimes(NamedTuple):
    """Seconds of all modules together.

    slot, token, adapter  of a slot, of a token and of a different adapter in a step
    slots      that a step pays for, by `idle` of AdapterSlots
    load_s     from the host's memory to a slot; disk_s: more, from disk
    spread     of all of a step's, in ln; guessed: why it is so wide, in words
    """

    slot: float
    token: float
    adapter: float
    slots: int
    idle: str
    load_s: float
    disk_s: float
    spread: float
    guessed: str = ""

    def step_s(self, tokens: float, different: float) -> float:
        """Return what a step takes longer with so many tokens and different adapters."""
        slots = min(different, self.slots) if self.idle == "active" else self.slots
        if different <= 0:
            return self.slot * slots if self.idle == "always" else 0.0
        return self.slot * slots + self.token * tokens + self.adapter * different

    def at(self, factor: float) -> "AdapterTimes":
        """Return the times of steps, so many times as long."""
        slot, token, adapter = (factor * seconds for seconds in self[:3])
        return self._replace(slot=slot, token=token, adapter=adapter)


def adapter_times(rules: EngineRules) -> AdapterTimes | None:
    """Return the times of a deployment's adapters; None: it has none."""
    slots, worker = rules.adapter_slots, rules.worker
    if slots is None:
        return None
    modules, tensors = adapted_modules(worker.model, slots.targets)
    slot_bytes, gpu = rules.slot_bytes(), worker.gpu
    adapter = modules * (ADAPTER_S + max(0, slots.rank - USUAL_RANK) * WIDER_S)
    adapter = max(adapter, slot_bytes / (gpu.hbm_bytes_per_s * _EFFICIENCY))
    guessed = ""
    if not slots.measured or gpu.architecture != "Hopper":
        release = f" {worker.engine_version}" if worker.engine_version else ""
        guessed = f"{worker.engine}{release} on {gpu.name}"
    return AdapterTimes(
        modules * SLOT_S,
        modules * TOKEN_S,
        adapter,
        slots.slots,
        slots.idle,
        0.0 if slots.overlaps else slot_bytes / gpu.from_host_per_s + tensors * TENSOR_S,
        0.0 if slots.overlaps else slot_bytes / DISK_BYTES_PER_S,
        _GUESSED_SPREAD if guessed else _SPREAD,
        guessed,
    )


def adapter_shares(adapters: Sequence[int] | Ints32) -> tuple[float, ...]:
    """Return the share of requests that ask for each adapter, of these numbers (0: none)."""
    counts = np.bincount(np.asarray(adapters, np.int64))[1:]
    return tuple((counts[counts > 0] / len(adapters)).tolist())


def different_adapters(shares: tuple[float, ...], requests: float) -> float:
    """Return how many different adapters so many requests have on average, of which each adapter
    is asked for by such a share: Σ 1 − (1 − p)ᴮ."""
    return float((1 - (1 - np.array(shares)) ** requests).sum())
