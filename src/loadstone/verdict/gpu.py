"""What the GPUs of a cell say of themselves, and what that means. Names as loadstone.telemetry writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from loadstone.telemetry import CLOCK_REASONS, PREFIX, reasons_in
from loadstone.verdict.finding import Finding
from loadstone.verdict.server import Level

if TYPE_CHECKING:
    import pyarrow as pa

HELD_DOWN = {"hardware_slowdown", "thermal", "hardware_thermal", "power_brake"}
"""Reasons for low clocks that are the machine's trouble. The power cap is none: under heavy products it is a GPU's
ordinary state, for at full clocks they draw more than it may."""
HELD_DOWN_SHARE = 0.02
"""Of the readings: at one a second, one in a cell of a minute; heat comes and goes slowly."""
LEAST_HELD_DOWN = 2
"""Readings: a single one may be a spike."""
CAPPED_SHARE = 0.1


class GpuFigures(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The GPUs of this machine together, over one cell; None, and left out of JSON, where unknown.

    samples      readings within the cell, all GPUs together
    throttled    reason (of telemetry.REASONS) to the share of the readings in which it held the clock down
    energy_j     of all GPUs over the cell, between readings in proportion to time
    other fields of all GPUs: power summed; clocks and busy share averaged, and the lowest clock; memory's largest sum
    """

    gpus: int
    samples: int
    throttled: dict[str, float]
    power_w: Level | None = None
    sm_clock_mhz: Level | None = None
    sm_clock_min_mhz: float | None = None
    memory_used_bytes: float | None = None
    busy_share: Level | None = None
    energy_j: float | None = None


def gpu_figures(samples: pa.Table, start_s: float, end_s: float) -> GpuFigures | None:
    """`samples` as store.read_server gives them. None where none of them, within the cell, is of a GPU."""
    import pyarrow.compute as pc

    readings: dict[str, dict[str, dict[float, float]]] = {}
    energy: dict[str, dict[float, float]] = {}
    for row in samples.filter(pc.starts_with(samples["name"], PREFIX)).to_pylist():
        if not np.isfinite(row["value"]):
            continue
        if row["name"] == PREFIX + "energy_j_total":
            energy.setdefault(row["labels"], {})[row["time_s"]] = row["value"]
        elif start_s <= row["time_s"] <= end_s:
            readings.setdefault(row["name"], {}).setdefault(row["labels"], {})[row["time_s"]] = row["value"]
    if not readings:
        return None
    gpus = {labels for by_gpu in readings.values() for labels in by_gpu}
    clocks = [value for by_time in readings.get(PREFIX + "sm_clock_mhz", {}).values() for value in by_time.values()]
    memory = _level(readings.get(PREFIX + "memory_used_bytes", {}), np.sum)
    reasons = [set(reasons_in(bits)) for by in readings.get(CLOCK_REASONS, {}).values() for bits in by.values()]
    return GpuFigures(
        gpus=len(gpus),
        samples=max(sum(map(len, by_gpu.values())) for by_gpu in readings.values()),
        throttled={
            name: sum(name in each for each in reasons) / len(reasons)
            for name in sorted(set().union(*reasons) - {"idle"})
        },
        power_w=_level(readings.get(PREFIX + "power_w", {}), np.sum),
        sm_clock_mhz=_level(readings.get(PREFIX + "sm_clock_mhz", {}), np.mean),
        sm_clock_min_mhz=min(clocks, default=None),
        memory_used_bytes=memory.max if memory is not None else None,
        busy_share=_level(readings.get(PREFIX + "busy_share", {}), np.mean),
        energy_j=sum(_gained(by_time, start_s, end_s) for by_time in energy.values()) if energy else None,
    )


def _level(by_gpu: dict[str, dict[float, float]], join: Any) -> Level | None:
    """Mean and max over the moments at which all GPUs told it: their sum, or mean, each time."""
    if not by_gpu:
        return None
    moments = set.intersection(*(set(by_time) for by_time in by_gpu.values()))
    if not moments:
        return None
    joined = [float(join([by_time[moment] for by_time in by_gpu.values()])) for moment in moments]
    return Level(float(np.mean(joined)), max(joined))


def _gained(by_time: dict[float, float], start_s: float, end_s: float) -> float:
    """What a counter gained over the cell, as it lies on lines between its readings."""
    first, last = np.interp([start_s, end_s], sorted(by_time), [by_time[time] for time in sorted(by_time)])
    return float(last - first)


def gpu_throttled(figures: GpuFigures | None) -> Finding | None:
    """A warning for heat and failing supplies; for the power cap alone a word."""
    if figures is None:
        return None
    trouble = {name: share for name, share in figures.throttled.items() if name in HELD_DOWN}
    worst = max(trouble.values(), default=0.0)
    troubled = worst >= HELD_DOWN_SHARE and round(worst * figures.samples) >= LEAST_HELD_DOWN
    told = trouble if troubled else {"power_cap": figures.throttled.get("power_cap", 0.0)}
    if not troubled and told["power_cap"] < CAPPED_SHARE:
        return None
    shares = ", ".join(f"{name.replace('_', ' ')} in {share:.0%}" for name, share in told.items())
    clock = "" if figures.sm_clock_min_mhz is None else f"; SM clock down to {figures.sm_clock_min_mhz:.0f} MHz"
    return Finding(
        "gpu_throttled",
        "warning" if troubled else "info",
        f"GPU clocks were held down: {shares} of {figures.samples} readings{clock}",
        "See nvidia-smi -q -d PERFORMANCE, the machine's cooling and its power supply; measure again when it is cool."
        if troubled
        else "Heavy load draws more power than the GPU may: rates are those of its power limit. Name the limit with "
        "the results.",
    )
