"""What GPUs say, as figures of a cell and as a finding."""

import math
from typing import Any

import msgspec
import pytest

from loadstone.analyse.server_figures import gpu_figures, server_figures
from loadstone.core.gpu_metrics import Readings
from loadstone.core.machine_figures import GpuFigures
from loadstone.core.verdict import Finding
from test_verdict_server import Said, said, table
from verdict_cells import Case, check, found, rows


def of_gpu(name: str, values: list[float], gpu: int = 0, start_s: float = 10.0) -> list[Said]:
    return said(f"nvml:{name}", values, replica=-1, start_s=start_s, gpu=str(gpu))


def figures(*series: list[Said], start_s: float = 10.0, end_s: float = 13.0) -> dict[str, Any]:
    made = gpu_figures(Readings(table([each for one in series for each in one])), start_s, end_s)
    assert made is not None
    known: dict[str, Any] = msgspec.to_builtins(made)
    return known


def test_gpus_together_over_a_cell() -> None:
    found = figures(
        of_gpu("power_w", [100.0, 300.0, 500.0, 300.0, 9999.0]),  # the last after the cell
        of_gpu("power_w", [10.0, 30.0, 50.0, 30.0], gpu=1),
        of_gpu("sm_clock_mhz", [1980.0, 1980.0, 1200.0, 1980.0]),
        of_gpu("memory_used_bytes", [1.0, 2.0, 3.0, 2.0]),
        of_gpu("memory_used_bytes", [1.0, 1.0, 1.0, 1.0], gpu=1),
        of_gpu("busy_share", [0.0, 1.0, 1.0, 1.0]),
        of_gpu("energy_j_total", [1000.0, 1300.0, 1800.0, 2100.0, 2200.0], start_s=9.5),
        of_gpu("energy_j_total", [50.0, 80.0, 130.0, 160.0], gpu=1),
        of_gpu("clock_reasons", [1.0, 4.0, 0x24, 0.0]),
    )
    assert found == {
        "gpus": 2,
        "samples": 8,
        "throttled": {"power_cap": 0.5, "thermal": 0.25},
        "power_w": {"mean": pytest.approx(330.0), "max": 550.0},
        "sm_clock_mhz": {"mean": 1785.0, "max": 1980.0},
        "sm_clock_min_mhz": 1200.0,
        "memory_used_bytes": 4.0,
        "busy_share": {"mean": 0.75, "max": 1.0},
        # From halfway between 1000 and 1300 to halfway between 2100 and 2200; and 160 − 50.
        "energy_j": pytest.approx(1000.0 + 110.0),
    }


def test_what_a_gpu_does_not_tell_is_missing() -> None:
    assert figures(of_gpu("power_w", [100.0, math.nan, 200.0])) == {
        "gpus": 1,
        "samples": 2,  # NaN is no reading
        "throttled": {},
        "power_w": {"mean": 150.0, "max": 200.0},
    }


def test_gpus_are_no_server_and_servers_no_gpu() -> None:
    engine, gpu = (
        said("vllm:num_requests_running", [1.0, 2.0]),
        of_gpu("power_w", [100.0, 200.0], start_s=10.5),
    )
    assert gpu_figures(Readings(table(engine)), 10.0, 13.0) is None
    assert server_figures(table(gpu), 10.0, 13.0) is None
    both = server_figures(table(engine + gpu), 10.0, 13.0)
    assert both is not None
    assert both.samples == 2


def throttled(
    samples: int = 100, clock_mhz: float | None = 1234.5, **shares: float
) -> dict[str, Finding]:
    figures = GpuFigures(gpus=1, samples=samples, throttled=shares, sm_clock_min_mhz=clock_mhz)
    return found(rows(), gpus=figures)


HELD = "gpu_throttled"
FAULT = (
    "1234 MHz",
    "of 100 readings",
    "!power cap",
    "cooling",
)  # a warning names the trouble, not the ordinary
CAP = ("1234 MHz", "of 100 readings", "power cap", "!cooling")
CASES: list[Case] = [
    (HELD, "warning", {"readings": 100, "clock_mhz": 1234}, lambda: throttled(thermal=0.05)),
    (HELD, "warning", {"readings": 100, "clock_mhz": 1234}, lambda: throttled(hardware_slowdown=0.02, power_cap=0.9)),
    (HELD, None, {}, lambda: throttled(60, power_brake=1 / 60)),  # one reading
    (HELD, "warning", {"readings": 60}, lambda: throttled(60, power_brake=2 / 60)),
    (HELD, None, {}, lambda: throttled(2, thermal=0.5)),
    (HELD, None, {}, lambda: throttled(1000, thermal=0.019)),  # 19 of them
    (HELD, "warning", {"readings": 100, "clock_mhz": 1234}, lambda: throttled(thermal=0.5, hardware_slowdown=0.001)),
    ("gpu_throttled.power_cap", "info", {"readings": 100, "clock_mhz": 1234}, lambda: throttled(power_cap=0.4)),
    ("gpu_throttled.power_cap", "info", {"readings": 100, "clock_mhz": 1234}, lambda: throttled(power_cap=0.4, thermal=0.01)),
    ("gpu_throttled.power_cap", "info", {"readings": 100, "clock_mhz": 1234}, lambda: throttled(power_cap=0.1)),
    (HELD, None, {}, lambda: throttled(power_cap=0.09)),
    (HELD, None, {}, lambda: throttled(application_clocks=1.0)),
    (HELD, None, {}, throttled),
    (
        HELD, "warning", {"reasons": [{"reason": "thermal", "share": 0.5}], "readings": 50},
        lambda: throttled(50, None, thermal=0.5),
    ),
    (HELD, None, {}, lambda: found(rows(), gpus=None)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_heat_is_a_warning_and_the_power_cap_an_info(case: Case) -> None:
    check(case)
