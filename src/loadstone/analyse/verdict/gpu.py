"""What the GPUs of a cell say of themselves, and what that means."""

from __future__ import annotations

import numpy as np

from loadstone.analyse.verdict.finding import Finding
from loadstone.core.gpu_metrics import Floats, Readings, Series
from loadstone.core.nvml import reasons_in
from loadstone.core.summary import GpuFigures, Level

HELD_DOWN = {"hardware_slowdown", "thermal", "hardware_thermal", "power_brake"}
"""Reasons for low clocks that are the machine's trouble. The power cap is none: under heavy products it is a GPU's
ordinary state, for at full clocks they draw more than it may."""
HELD_DOWN_SHARE = 0.02
"""Of the readings: at one a second, one in a cell of a minute; heat comes and goes slowly."""
LEAST_HELD_DOWN = 2
"""Readings: a single one may be a spike."""
CAPPED_SHARE = 0.1


def gpu_figures(readings: Readings, start_s: float, end_s: float) -> GpuFigures | None:
    """None where none of the readings, within the cell, is of a GPU's state."""
    inside = {name: found for name in _STATES if (found := readings.within(name, start_s, end_s))}
    if not inside:
        return None
    together = {name: readings.together(name, start_s, end_s)[1] for name in inside}
    clocks = [series.value.min() for series in inside.get("sm_clock_mhz", {}).values()]
    memory = _level(together.get("memory_used_bytes"), by_sum=True)
    reasons = [set(reasons_in(bits)) for by in inside.get("clock_reasons", {}).values() for bits in by.value]
    return GpuFigures(
        gpus=len({gpu for by_gpu in inside.values() for gpu in by_gpu}),
        samples=max(sum(len(series.value) for series in by_gpu.values()) for by_gpu in inside.values()),
        throttled={
            name: sum(name in each for each in reasons) / len(reasons)
            for name in sorted(set().union(*reasons) - {"idle"})
        },
        power_w=_level(together.get("power_w"), by_sum=True),
        sm_clock_mhz=_level(together.get("sm_clock_mhz")),
        sm_clock_min_mhz=float(min(clocks)) if clocks else None,
        memory_used_bytes=memory.max if memory is not None else None,
        busy_share=_level(together.get("busy_share")),
        energy_j=readings.energy_j(start_s, end_s),
        new_every_s=max((_new_every_s(series) for series in inside.get("power_w", {}).values()), default=0.0) or None,
    )


_STATES = ("power_w", "sm_clock_mhz", "memory_used_bytes", "busy_share", "clock_reasons")


def _level(together: Floats | None, by_sum: bool = False) -> Level | None:
    """Mean and max over the moments of the GPUs' sum, or mean."""
    if together is None:
        return None
    joined = together.sum(axis=0) if by_sum else together.mean(axis=0)
    return Level(float(np.mean(joined)), float(np.max(joined)))


def _new_every_s(series: Series) -> float:
    """0 where at least every second reading was a new one."""
    return float(np.ptp(series.time_s)) / series.new if len(series.value) > 2 * series.new else 0.0


def gpu_read_seldom(figures: GpuFigures | None) -> Finding | None:
    """Why no energy is told, where an exporter collects too seldom for it."""
    if figures is None or figures.new_every_s is None or figures.energy_j is not None:
        return None
    return Finding(
        "gpu_read_seldom",
        "info",
        f"the GPUs' power readings changed only about every {figures.new_every_s:.0f} s: too seldom to compute the "
        "energy of this load",
        "Have the exporter collect every second (dcgm-exporter -c 1000), or measure longer.",
    )


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
        "Check nvidia-smi -q -d PERFORMANCE, the machine's cooling and power supply; measure again when it is cool."
        if troubled
        else "Under heavy load the GPU runs at its power limit, and rates are those of this limit. State it with the "
        "results.",
    )
