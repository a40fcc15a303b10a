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
    nvml:clock_reasons        bits, see gpu_metrics.REASONS
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

from loadstone.core.errors import InputError
from loadstone.core.gpu_metrics import NVML_PREFIX

_MAX_GPUS = 16


class _Question(NamedTuple):
    """A function of NVML, nvmlDeviceGet…; the constant that it is asked with, the field of its
    answer, and the factor that makes this the unit of the name."""

    function: str
    factor: float = 1.0
    constant: str | None = None
    field: str | None = None


_VALUES = {
    "power_w": _Question("PowerUsage", 1e-3),
    "energy_j_total": _Question("TotalEnergyConsumption", 1e-3),
    "sm_clock_mhz": _Question("ClockInfo", constant="NVML_CLOCK_SM"),
    "memory_clock_mhz": _Question("ClockInfo", constant="NVML_CLOCK_MEM"),
    "memory_used_bytes": _Question("MemoryInfo", field="used"),
    "temperature_c": _Question("Temperature", constant="NVML_TEMPERATURE_GPU"),
    "busy_share": _Question("UtilizationRates", 0.01, field="gpu"),
}
_REASONS = ("CurrentClocksEventReasons", "CurrentClocksThrottleReasons")
"""Older packages know the reasons by the second name."""
_MEMORY = _Question("MemoryInfo", field="total")
_POWER_LIMIT = _Question("EnforcedPowerLimit", 1e-3)
_CLOCK_LIMIT = _Question("MaxClockInfo", constant="NVML_CLOCK_SM")


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
            count = min(int(self._nvml.nvmlDeviceGetCount()), _MAX_GPUS)
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
        described = []
        for number, handle in enumerate(self._handles):
            memory = self._number(handle, _MEMORY)
            described.append(
                GpuDescription(
                    gpu=number,
                    name=_text(self._ask(handle, "Name") or "unknown"),
                    uuid=_text(self._ask(handle, "UUID") or ""),
                    memory_bytes=None if memory is None else int(memory),
                    power_limit_w=self._number(handle, _POWER_LIMIT),
                    sm_clock_max_mhz=self._number(handle, _CLOCK_LIMIT),
                )
            )
        return described

    def read(self) -> list[GpuValue]:
        """Read all that the GPUs report now."""
        reasons = next(
            (name for name in _REASONS if getattr(self._nvml, f"nvmlDeviceGet{name}", None)),
            _REASONS[0],
        )
        questions = _VALUES | {"clock_reasons": _Question(reasons)}
        found = []
        for number, handle in enumerate(self._handles):
            for name, question in questions.items():
                value = self._number(handle, question)
                if value is not None:
                    found.append(GpuValue(NVML_PREFIX + name, number, value))
        return found

    def _number(self, handle: Any, question: _Question) -> float | None:
        """Ask for a number; None where there is none."""
        answer = self._ask(handle, question.function, question.constant)
        if question.field is not None:
            answer = getattr(answer, question.field, None)
        return float(answer) * question.factor if isinstance(answer, int | float) else None

    def _ask(self, handle: Any, function: str, constant: str | None = None) -> Any:
        """Ask NVML; None where this GPU, its driver or the package does not know the answer."""
        try:
            about = [] if constant is None else [getattr(self._nvml, constant)]
            return getattr(self._nvml, f"nvmlDeviceGet{function}")(handle, *about)
        except (self._nvml.NVMLError, AttributeError, TypeError):
            return None


def _pynvml() -> Any:
    try:
        import pynvml
    except ImportError:
        raise InputError(
            "GPU telemetry: the package nvidia-ml-py is missing; pip install nvidia-ml-py"
        ) from None
    return pynvml


def _text(value: object) -> str:
    """NVML's texts were bytes in older packages. One line, short."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return " ".join(text.split())[:200]
