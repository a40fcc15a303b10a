"""Reads the NVIDIA GPUs of this machine: power, clocks, memory, and why their clocks are held down.

Read through NVML (the package nvidia-ml-py, an optional one). A value that a GPU does not tell is
left out: virtual and partitioned GPUs tell few.

Names and units as kept in a run's server.parquet, each with the label `gpu`, NVML's number of it:

    nvml:power_w              board power; Hopper and newer: the mean of the last second
    nvml:energy_j_total       counter, since the driver was loaded
    nvml:sm_clock_mhz         nvml:memory_clock_mhz
    nvml:memory_used_bytes    of all processes
    nvml:temperature_c        of the chip
    nvml:busy_share           of the last sample period, in which some kernel ran
    nvml:clock_reasons        bits, see REASONS
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from loadstone.core.errors import InputError

PREFIX = "nvml:"
MOST_GPUS = 16
REASONS = {
    "idle": 0x1,
    "application_clocks": 0x2,
    "power_cap": 0x4,
    "hardware_slowdown": 0x8,
    "sync_boost": 0x10,
    "thermal": 0x20,
    "hardware_thermal": 0x40,
    "power_brake": 0x80,
    "display_clock": 0x100,
}
"""nvml.h, nvmlClocksEventReason*: what holds the SM clock below its highest."""


class GpuValue(NamedTuple):
    """One value of one GPU."""

    name: str
    gpu: int
    value: float


class GpuDescription(NamedTuple):
    """The properties of a GPU that do not change."""

    gpu: int
    name: str
    uuid: str
    memory_bytes: int | None
    power_limit_w: float | None
    sm_clock_max_mhz: float | None


class Gpus:
    """The GPUs that NVML sees, for as long as the block lasts. `nvml`: the module `pynvml`, or one
    like it.

    Raises InputError where there is no NVML, no driver or no GPU.
    """

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = nvml if nvml is not None else _pynvml()
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise InputError(
                f"GPU telemetry: no NVIDIA driver answers ({_text(error)}); leave it out here"
            ) from None
        try:
            count = min(int(self._nvml.nvmlDeviceGetCount()), MOST_GPUS)
            self._handles = [
                self._nvml.nvmlDeviceGetHandleByIndex(number) for number in range(count)
            ]
            self.driver = _text(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError as error:
            self._shut()
            raise InputError(
                f"GPU telemetry: NVML fails ({_text(error)}); see what nvidia-smi says"
            ) from None
        if not self._handles:
            self._shut()
            raise InputError("GPU telemetry: the driver shows no GPU; see what nvidia-smi says")

    def __enter__(self) -> Gpus:
        return self

    def __exit__(self, *_: object) -> None:
        self._shut()

    def _shut(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def describe(self) -> list[GpuDescription]:
        nvml = self._nvml
        return [
            GpuDescription(
                gpu=number,
                name=_text(self._ask(nvml.nvmlDeviceGetName, handle) or "unknown"),
                uuid=_text(self._ask(nvml.nvmlDeviceGetUUID, handle) or ""),
                memory_bytes=_attribute(self._ask(nvml.nvmlDeviceGetMemoryInfo, handle), "total"),
                power_limit_w=_scaled(
                    self._ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle), 1e-3
                ),
                sm_clock_max_mhz=_scaled(
                    self._ask(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM), 1.0
                ),
            )
            for number, handle in enumerate(self._handles)
        ]

    def read(self) -> list[GpuValue]:
        """Read all that the GPUs report now."""
        return [
            GpuValue(PREFIX + name, number, value)
            for number, handle in enumerate(self._handles)
            for name, value in self._values(handle)
            if value is not None
        ]

    def _values(self, handle: Any) -> Iterator[tuple[str, float | None]]:
        nvml = self._nvml
        # Older packages know the reasons by an older name.
        reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or getattr(
            nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None
        )
        yield "power_w", _scaled(self._ask(nvml.nvmlDeviceGetPowerUsage, handle), 1e-3)
        yield (
            "energy_j_total",
            _scaled(self._ask(nvml.nvmlDeviceGetTotalEnergyConsumption, handle), 1e-3),
        )
        yield (
            "sm_clock_mhz",
            _scaled(self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM), 1.0),
        )
        yield (
            "memory_clock_mhz",
            _scaled(self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM), 1.0),
        )
        yield (
            "memory_used_bytes",
            _attribute(self._ask(nvml.nvmlDeviceGetMemoryInfo, handle), "used"),
        )
        yield (
            "temperature_c",
            _scaled(
                self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU), 1.0
            ),
        )
        yield (
            "busy_share",
            _scaled(_attribute(self._ask(nvml.nvmlDeviceGetUtilizationRates, handle), "gpu"), 0.01),
        )
        yield (
            "clock_reasons",
            _scaled(self._ask(reasons, handle) if reasons is not None else None, 1.0),
        )

    def _ask(self, question: Callable[..., Any], *about: Any) -> Any:
        """Ask NVML; None where this GPU, its driver or the package does not know the answer."""
        try:
            return question(*about)
        except (self._nvml.NVMLError, AttributeError, TypeError):
            return None


def reasons_in(bits: float) -> list[str]:
    """Name the bits that are set."""
    return [name for name, bit in REASONS.items() if int(bits) & bit]


def _pynvml() -> Any:
    try:
        import pynvml
    except ImportError:
        raise InputError(
            "GPU telemetry: the package nvidia-ml-py is missing; pip install nvidia-ml-py"
        ) from None
    return pynvml


def _scaled(value: Any, factor: float) -> float | None:
    return float(value) * factor if isinstance(value, (int, float)) else None


def _attribute(value: Any, name: str) -> int | None:
    number = getattr(value, name, None)
    return int(number) if isinstance(number, (int, float)) else None


def _text(value: object) -> str:
    """NVML's texts were bytes in older packages. One line, short."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return " ".join(text.split())[:200]
