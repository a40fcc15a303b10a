"""Reads what is reported of GPUs while a run goes on: by NVML, a Prometheus exporter beside the
servers, or an engine on its own page.

Names and units: NVIDIA's DCGM exporter (etc/default-counters.csv), AMD's device-metrics-exporter
(docs/configuration/metricslist.md; its names come in capitals and with `amd_` before them, too),
nvidia_gpu_exporter (docs/METRICS.md), Triton (docs/user_guide/metrics.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadstone.core.vectors import Floats

SOURCES = ("dcgm", "amd", "nvidia-smi", "nvml", "engine")
"""The first of these that reports GPUs is taken: an exporter was named by the user, and may know of
other machines than this one; an engine tells least."""
GPUS = -1
"""In the column `replica` of samples: what GPUs say, whichever server they work for."""
POOLS = {"prefill": -2, "decode": -3}
"""There: what the GPUs of one pool say."""
LEAST_NEW = 3
"""Readings that an energy needs within its window. Exporters collect by themselves, DCGM's every 30
s by default, and say the same in between: with fewer, much of what neighbouring loads drew would be
in it."""
LONGEST_GAP_S = 3.0
"""Between readings of a power from which an energy is made, or three times their usual distance."""
LEAST_COVERED = 0.9
"""Share of a window that readings of an energy counter must cover: the rest is taken to be like it.
"""
AGREE = 1.5
"""A counter of energy is believed where it is within this factor of the power that was told."""
_PLACE = ("hostname", "host", "instance")
_SELF = ("uuid", "gpu_uuid", "serial_number", "gpu", "gpu_id", "gpu_index", "index", "device")
"""Labels that name a GPU, the surest first. Parts of one GPU (MIG, AMD's partitions) share the
first three."""
_GPU_LABELS = {*_PLACE, *_SELF, "modelname", "card_model", "gpu_i_id", "partition_id"}
_DCGM_BLANK = tuple(blank + why for blank in (2.0**31 - 16, 2.0**47) for why in range(4))
_BLANK_FROM = 9.2e18
"""dcgm_structs.h, DCGM_INT32_BLANK and its kin: what the exporter says where it knows nothing."""


class Meaning(NamedTuple):
    """The quantity of a metric, as gpu_metrics.toml has them, in its unit after `factor`."""

    source: str
    name: str
    factor: float


NVML_PREFIX = "nvml:"
"""Of the quantities' names in samples that were read through NVML."""
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
_TABLE: dict[str, dict[str, tuple[str, float]]] = msgspec.toml.decode(
    Path(__file__).with_suffix(".toml").read_bytes()
)
_NAMES = {
    name: Meaning(source, quantity, factor)
    for source, metrics in _TABLE.items()
    for name, (quantity, factor) in metrics.items()
}


def reasons_in(bits: float) -> list[str]:
    """Name the bits of `clock_reasons` that are set."""
    return [name for name, bit in REASONS.items() if int(bits) & bit]


def find_meaning(name: str) -> Meaning | None:
    """Look up the meaning of a metric by its name; None where it is none of a GPU's."""
    return _NAMES.get(name.lower().removeprefix("amd_"))


def select_gpu_labels(labels: Iterable[tuple[str, str]]) -> list[tuple[str, str]] | None:
    """Keep the labels (name, text) that identify the GPU, and no names of pods and users; None
    where the value is of another clock than that of the GPU's processors.
    """
    labels = list(labels)
    if any(name == "clock_type" and text != "GPU_CLOCK_TYPE_SYSTEM" for name, text in labels):
        return None
    return [(name, text) for name, text in labels if name.lower() in _GPU_LABELS]


def split_pool(text: str) -> tuple[str, str]:
    """Return the pool, "" where none is named, and the address of an exporter:
    `decode=node:9400`."""
    role, equals, url = text.partition("=")
    return (role, url) if equals and role in POOLS else ("", text)


class Series(NamedTuple):
    """Readings of one GPU in their order: seconds of the run, values."""

    time_s: Floats
    value: Floats

    @property
    def new(self) -> int:
        """The count of readings that differ from the one before."""
        return 1 + int(np.count_nonzero(np.diff(self.value)))

    def gap_s(self, start_s: float, end_s: float) -> float:
        """Return the seconds of the longest stretch of this time without a reading; 0 where none is
        longer than LONGEST_GAP_S allows."""
        gaps = np.diff(np.concatenate([[start_s], self.time_s, [end_s]]))
        longest = float(gaps.max())
        return longest if longest > max(LONGEST_GAP_S, 3 * float(np.median(gaps))) else 0.0


class GpuSeries(NamedTuple):
    """One GPU's readings of a quantity."""

    gpu: str
    series: Series


class Readings:
    """The readings of one source of every GPU. `series[name][gpu]`: names as in Meaning.

    `samples`: as store.read_server gives them.
    """

    def __init__(self, samples: pa.Table) -> None:
        by_source = _group_by_source(samples)
        self.series: Mapping[str, Mapping[str, Series]] = next(
            (by_source[source] for source in SOURCES if source in by_source), {}
        )

    @classmethod
    def of_pools(cls, samples: pa.Table) -> dict[str, Readings]:
        """Read what the exporters of each pool reported, of those that have any."""

        parts = {
            role: samples.filter(pc.equal(samples["replica"], number))
            for role, number in POOLS.items()
        }
        return {role: cls(part) for role, part in parts.items() if part.num_rows}

    def select(self, name: str, start_s: float, end_s: float) -> list[GpuSeries]:
        """Select the readings of each GPU taken in this time, of those GPUs that have any."""
        inside = []
        for gpu, (time_s, value) in self.series.get(name, {}).items():
            chosen = (time_s >= start_s) & (time_s <= end_s)
            if chosen.any():
                inside.append(GpuSeries(gpu, Series(time_s[chosen], value[chosen])))
        return inside

    def interpolate(self, name: str, start_s: float, end_s: float) -> tuple[Floats, Floats]:
        """Return (moments at which one of the GPUs was read, GPUs × values at these). No two
        exporters are read at once: what lies between the readings of a GPU is on a line between
        them.
        """
        inside = self.select(name, start_s, end_s)
        moments = np.unique(
            np.concatenate([series.time_s for _, series in inside] or [np.empty(0)])
        )
        rows = [np.interp(moments, *series) for _, series in inside]
        return moments, np.array(rows).reshape(len(rows), len(moments))

    def sum_energy_j(self, start_s: float, end_s: float) -> float | None:
        """Sum the energy of all GPUs in this time; None where it was read too seldom. Counters are
        used where they agree with the power, else the power is.
        """
        power = dict(self.select("power_w", start_s, end_s))
        total = 0.0
        for gpu in power.keys() | self.series.get("energy_j_total", {}).keys():
            counted = _count_gain(self.series.get("energy_j_total", {}).get(gpu), start_s, end_s)
            drawn = None
            if (
                gpu in power
                and power[gpu].new >= LEAST_NEW
                and not power[gpu].gap_s(start_s, end_s)
            ):
                drawn = float(power[gpu].value.mean()) * (end_s - start_s)
            if counted is None or (
                drawn is not None and not drawn / AGREE <= counted <= drawn * AGREE
            ):
                counted = drawn
            if counted is None:
                return None
            total += counted
        return total or None


def _group_by_source(samples: pa.Table) -> dict[str, dict[str, dict[str, Series]]]:

    ours = [name for name in pc.unique(samples["name"]).to_pylist() if find_meaning(name)]
    samples = samples.filter(pc.is_in(samples["name"], value_set=pa.array(ours, pa.string())))
    groups = samples.group_by(["name", "labels"], use_threads=False).aggregate(
        [("time_s", "list"), ("value", "list")]
    )
    parts: dict[tuple[str, str, str], list[Series]] = defaultdict(list)
    for row in groups.to_pylist():
        metric = find_meaning(row["name"])
        time_s, value = (np.array(row[name], np.float64) for name in ("time_s_list", "value_list"))
        chosen = np.isfinite(value) & (value < _BLANK_FROM) & ~np.isin(value, _DCGM_BLANK)
        if metric is not None and chosen.any():
            series = Series(time_s[chosen], value[chosen] * metric.factor)
            parts[metric.source, metric.name, _name_gpu(row["labels"])].append(series)
    by_source: dict[str, dict[str, dict[str, Series]]] = defaultdict(lambda: defaultdict(dict))
    for (source, quantity, gpu), several in parts.items():
        by_source[source][quantity][gpu] = _merge(several)
    return by_source


def _name_gpu(labels: str) -> str:
    """Name the GPU: by its own name where it has one, else by its number on its machine."""
    texts = {
        name.lower(): text
        for name, text in msgspec.json.decode(labels, type=dict[str, Any]).items()
    }
    name = next((name for name in _SELF if texts.get(name)), None)
    if name in _SELF[:3]:
        return str(texts[name])
    labels_used = [label for label in (*_PLACE, name) if label and texts.get(label)]
    return " ".join(str(texts[label]) for label in labels_used)


def _merge(several: list[Series]) -> Series:
    """Merge one GPU's readings in order, the largest of those made at once: parts of a GPU that
    have no meter report 0."""
    time_s = np.concatenate([series.time_s for series in several])
    value = np.concatenate([series.value for series in several])
    order = np.argsort(time_s, kind="stable")
    moments, first = np.unique(time_s[order], return_index=True)
    return Series(moments, np.maximum.reduceat(value[order], first))


def _count_gain(series: Series | None, start_s: float, end_s: float) -> float | None:
    """Compute what a counter gained, on lines between the moments at which it moved."""
    if series is None:
        return None
    moved = np.concatenate([[True], np.diff(series.value) != 0])
    time_s, value = series.time_s[moved], series.value[moved]
    covered_s = min(end_s, float(time_s[-1])) - max(start_s, float(time_s[0]))
    inside = int(((time_s >= start_s) & (time_s <= end_s)).sum())
    if (
        inside < LEAST_NEW
        or covered_s < LEAST_COVERED * (end_s - start_s)
        or (np.diff(value) < 0).any()
    ):
        return None
    first, last = np.interp([start_s, end_s], time_s, value)
    return float(last - first) * (end_s - start_s) / covered_s
