"""A stand-in for the module `pynvml`: GPUs that say what a test wants. Names and units as in
nvml.h."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    pass


class FakeNvml:
    """`gpus`: for each GPU its values by the name of the question; one that is missing is an
    NVMLError, as of a GPU that does not know it. A list is answered one value after another, the
    last one again and again.
    """

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(
        self, *gpus: dict[str, Any], driver: str = "580.159.04", init: bool = True
    ) -> None:
        self.gpus, self.driver, self.init = gpus, driver, init
        self.open = 0

    def nvmlInit(self) -> None:
        if not self.init:
            raise NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.driver

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)

        def answer(gpu: int, about: int | None = None) -> Any:
            key = name.removeprefix("nvmlDeviceGet") + ("" if about is None else str(about))
            value = self.gpus[gpu].get(key)
            if isinstance(value, list):
                value = value.pop(0) if len(value) > 1 else value[0]
            if value is None:
                raise NVMLError("Not Supported")
            return value

        return answer


def h100(**changed: Any) -> dict[str, Any]:
    """What an H100 answers while it works, by the shape of its answers."""
    return {
        "Name": "NVIDIA H100 80GB HBM3",
        "UUID": "GPU-11111111-2222-3333-4444-555555555555",
        "MemoryInfo": SimpleNamespace(
            total=85_520_809_984, used=70_000_000_000, free=15_520_809_984
        ),
        "EnforcedPowerLimit": 700_000,
        "MaxClockInfo1": 1980,
        "PowerUsage": 512_345,
        "TotalEnergyConsumption": 9_000_000_000,
        "ClockInfo1": 1755,
        "ClockInfo2": 2619,
        "Temperature0": 54,
        "UtilizationRates": SimpleNamespace(gpu=97, memory=60),
        "CurrentClocksEventReasons": 0x4,
    } | changed
