"""Computes what servers report in their /metrics, and GPUs of themselves, over a cell. All engines
share these names:

    running, waiting   gauges, requests
    kv_usage           gauge, share of the KV cache in use
    preemptions        counter, requests put back in the queue with their KV lost
    prefix_hits        counter, prompt tokens taken from a prefix cache
    prefix_queries     counter, prompt tokens looked for in it
    picture_hits       counter, pictures taken from a cache of prepared ones
    picture_queries    counter, pictures looked for in it

`engines/server_metrics.py` has the engines' own names; `measure/engines/observe.py` always keeps
these.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from loadstone.analyse.verdict import thresholds
from loadstone.core.gpu_metrics import Readings, Series, reasons_in
from loadstone.core.machine_figures import GpuFigures, Level, ServerFigures, TtftParts
from loadstone.core.settings import FleetFigures
from loadstone.core.vectors import Floats
from loadstone.engines.server_metrics import COUNTERS, GAUGES, READY, START_TIME, count_of

if TYPE_CHECKING:
    import pyarrow as pa

RANKS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "engine_rank", "pid"})
"""Labels of processes that work on the same requests: each of them reports the same thing."""
SANE = 1e18
"""Values from here on, and those that are not numbers, are left out: no engine reports them."""

# --- GPUs -----------------------------------------------------------------------------------------

_STATES = ("power_w", "sm_clock_mhz", "memory_used_bytes", "busy_share", "clock_reasons")


def gpu_figures(readings: Readings, start_s: float, end_s: float) -> GpuFigures | None:
    """Compute a cell's figures of all GPUs; None where no reading within it is of a GPU's state."""
    selected = {name: readings.select(name, start_s, end_s) for name in _STATES}
    inside = {name: by_gpu for name, by_gpu in selected.items() if by_gpu}
    if not inside:
        return None

    def level(name: str, *, of_sum: bool = False) -> Level | None:
        """Mean and max over the moments of the GPUs' sum, or mean."""
        if name not in inside:
            return None
        values = readings.interpolate(name, start_s, end_s)[1]
        joined = values.sum(axis=0) if of_sum else values.mean(axis=0)
        return Level(float(np.mean(joined)), float(np.max(joined)))

    clocks = [series.value.min() for _, series in inside.get("sm_clock_mhz", ())]
    memory = level("memory_used_bytes", of_sum=True)
    reasons = [
        set(reasons_in(bits))
        for _, series in inside.get("clock_reasons", ())
        for bits in series.value
    ]
    new_every_s = [_new_every_s(series) for _, series in inside.get("power_w", ())]
    return GpuFigures(
        gpus=len({gpu for by_gpu in inside.values() for gpu, _ in by_gpu}),
        samples=max(sum(len(series.value) for _, series in by_gpu) for by_gpu in inside.values()),
        throttled={
            name: sum(name in held for held in reasons) / len(reasons)
            for name in sorted(set().union(*reasons) - {"idle"})
        },
        power_w=level("power_w", of_sum=True),
        sm_clock_mhz=level("sm_clock_mhz"),
        sm_clock_min_mhz=float(min(clocks)) if clocks else None,
        memory_used_bytes=memory.max if memory is not None else None,
        busy_share=level("busy_share"),
        energy_j=readings.sum_energy_j(start_s, end_s),
        new_every_s=max(new_every_s, default=0.0) or None,
        power_gap_s=max(
            (series.gap_s(start_s, end_s) for _, series in inside.get("power_w", ())), default=0.0
        )
        or None,
    )


def _new_every_s(series: Series) -> float:
    """Seconds between new readings; 0 where at least every second one was new."""
    return float(np.ptp(series.time_s)) / series.new if len(series.value) > 2 * series.new else 0.0


# --- replicas that come and go ------------------------------------------------------------------

_SILENT_S = 5.0
"""A server that has not answered for so long is not there."""
_MOMENT_S = 0.2


def measured_fleet(samples: pa.Table | None) -> FleetFigures | None:
    """Count the replicas of a measured run over time: as a gateway reports those that are ready,
    else the servers whose /metrics answered. None where their number never changed."""
    if samples is None or not samples.num_rows:
        return None
    last_s = float(samples["time_s"].to_numpy().max())
    servers = {
        replica: families
        for replica, families in _collect_series(samples).items()
        if replica >= 0  # below: GPUs
    }
    for name in READY:
        reported = [
            series for families in servers.values() for series in families.get(name, {}).values()
        ]
        if reported:
            return _count_replicas(reported, name)
    present = [_presence(families, last_s) for families in servers.values()]
    return _count_replicas(present, "servers whose /metrics answered") if present else None


def _presence(families: Families, last_s: float) -> MetricSeries:
    """Return 1 from each answer of a server on, and 0 where it fell silent."""
    series = [line.time_s for by_labels in families.values() for line in by_labels.values()]
    times_s = np.unique(np.concatenate(series))
    gone_s = times_s[np.diff(times_s, append=np.inf) > _SILENT_S] + _SILENT_S
    gone_s = gone_s[gone_s < last_s]
    moments_s = np.concatenate([times_s, gone_s])
    order = np.argsort(moments_s, kind="stable")
    return MetricSeries(moments_s[order], np.repeat([1.0, 0.0], [len(times_s), len(gone_s)])[order])


def _count_replicas(series: list[MetricSeries], source: str) -> FleetFigures | None:
    """Add up series, each 0 before its first value, at each moment of any."""
    moments_s = np.unique(np.concatenate([line.time_s for line in series]))
    total = np.zeros(len(moments_s))
    for time_s, value in series:
        place = np.searchsorted(time_s, moments_s, side="right")
        total += np.concatenate([[0.0], value])[place]
    # Servers are asked one after the other: what stands for less than a moment is no change.
    changes = [
        (float(at_s), int(count))
        for at_s, count, until_s in zip(
            moments_s, total, np.append(moments_s[1:], np.inf), strict=True
        )
        if until_s - at_s > _MOMENT_S
    ]
    kept = drop_repeats(changes)
    return FleetFigures(policy="measured", replicas=kept, source=source) if len(kept) > 1 else None


def drop_repeats(changes: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Leave out changes to the value that there was."""
    return [change for n, change in enumerate(changes) if not n or change[1] != changes[n - 1][1]]


# --- servers --------------------------------------------------------------------------------------


class MetricSeries(NamedTuple):
    """The values of one metric with one set of labels: at least one, in the order of their
    times."""

    time_s: Floats
    value: Floats


Families = dict[str, dict[str, MetricSeries]]
"""The series of one server by name, then by labels."""


_GAINED = (
    "preemptions",
    "prefix_hits",
    "prefix_queries",
    "picture_hits",
    "picture_queries",
    "output_tokens",
    "draft_steps",
    "draft_tokens",
    "draft_accepted",
    "transfers",
    "transfers_failed",
)
"""Fields of ServerFigures that are what counters of the same name gained."""


def server_figures(
    samples: pa.Table, start_s: float, end_s: float, answered: int | None = None
) -> ServerFigures | None:
    """Compute a cell's figures of all servers, from the samples of run_folder.read_server(); None
    where none were taken near the cell.

    Counters run from the last sample before the cell to the first one after it: what happened in
    between is in them, and of what neighbouring cells did as little as the samples allow.
    `answered`: requests, where each passes through two pools.
    """
    import pyarrow.compute as pc

    # Scrapes come about every second, and one may fail: look a little beyond both ends.
    near = pc.and_(
        pc.greater(samples["time_s"], start_s - 5.0), pc.less(samples["time_s"], end_s + 5.0)
    )
    near = pc.and_(near, pc.greater_equal(samples["replica"], 0))  # below: GPUs
    whole = _collect_series(samples.filter(pc.and_(near, pc.less(pc.abs(samples["value"]), SANE))))
    if not whole:
        return None
    every_s = [
        series.time_s
        for families in whole.values()
        for by_labels in families.values()
        for series in by_labels.values()
    ]
    moments_s = np.unique(np.concatenate(every_s))
    moments_s = moments_s[(moments_s >= start_s) & (moments_s <= end_s)]
    in_turns = _find_routers(samples) & whole.keys()
    servers = [
        _cut(families, start_s, end_s)
        for replica, families in whole.items()
        if replica not in in_turns
    ]
    late_s, writes = (_sum_gains(servers, COUNTERS[name]) for name in ("late_s", "writes"))
    return ServerFigures(
        samples=len(moments_s),
        restarts=sum(map(_count_restarts, servers)),
        in_turns=len(in_turns),
        running=_read_level(servers, GAUGES["running"], moments_s),
        waiting=_read_level(servers, GAUGES["waiting"], moments_s),
        kv_usage=_read_level(servers, GAUGES["kv_usage"], moments_s, mean=True),
        **{name: _sum_gains(servers, COUNTERS[name]) for name in _GAINED},
        ttft_s=_read_mean_s(servers, "ttft_s"),
        write_late_s=late_s / writes if late_s is not None and writes else None,
        draft_accepted_by_position=_sum_by_position(
            servers, COUNTERS["draft_accepted_by_position"]
        ),
        accepted_length=_read_level(servers, GAUGES["accepted_length"], moments_s, mean=True),
        ttft_parts=_read_ttft_parts(servers, answered),
        transferred_tokens=_sum_transferred(servers),
    )


def _sum_transferred(servers: list[Families]) -> float | None:
    """Sum the prompt tokens that decode workers had from prefill workers, in these transfers or in
    earlier ones: what such a worker finds in its own prefix cache is not sent again."""
    total = None
    for server in servers:
        tokens = _sum_gains([server], COUNTERS["transferred_tokens"])
        if tokens is not None:
            total = (total or 0.0) + tokens
        if total is not None and tokens:
            total += _sum_gains([server], COUNTERS["prefix_hits"]) or 0.0
    return total


def _read_ttft_parts(servers: list[Families], answered: int | None) -> TtftParts | None:
    """Read what of TTFT the engines count; None where they count nothing. Of pools a request is
    counted in both, a cache once by each rank that has a part of it."""
    parts = TtftParts(
        queue_s=_read_mean_s(servers, "queue_s", answered),
        prefill_s=_read_mean_s(servers, "prefill_s", answered),
        transfer_s=_read_mean_s(servers, "transfer_s"),
    )
    return None if parts == TtftParts() else parts


def _read_mean_s(servers: list[Families], name: str, requests: int | None = None) -> float | None:
    """Read the mean of a histogram; `requests`: over so many, where its own count is of others."""
    total_s = _sum_gains(servers, COUNTERS[name])
    count = requests or _sum_gains(servers, tuple(map(count_of, COUNTERS[name])))
    return total_s / count if total_s is not None and count else None


def _collect_series(samples: pa.Table) -> dict[int, Families]:
    """Collect the series of each server."""
    columns = ("replica", "name", "labels")
    # On one thread, which keeps the samples of a series in their order.
    series = samples.group_by(columns, use_threads=False).aggregate(
        [("time_s", "list"), ("value", "list")]
    )
    by_server: dict[int, Families] = defaultdict(lambda: defaultdict(dict))
    keys = zip(*(series[column].to_pylist() for column in columns), strict=True)
    for (replica, name, labels), time_s, value in zip(
        keys, series["time_s_list"], series["value_list"], strict=True
    ):
        by_server[replica][name][labels] = MetricSeries(
            time_s.values.to_numpy(), value.values.to_numpy()
        )
    return by_server


def _cut(families: Families, start_s: float, end_s: float) -> Families:
    """Cut the series of a server to the cell: from the last value before it to the first one
    after."""

    def cut(series: MetricSeries) -> MetricSeries:
        first = max(0, int(np.searchsorted(series.time_s, start_s, side="right")) - 1)
        last = int(np.searchsorted(series.time_s, end_s, side="left")) + 1
        return MetricSeries(*(values[first:last] for values in series))

    return {
        name: {labels: cut(series) for labels, series in by_labels.items()}
        for name, by_labels in families.items()
    }


def _find_series(families: Families, wanted: str) -> list[list[MetricSeries]]:
    """Find the series of `name` or `name{label=value}`, those of several ranks of one engine put
    together."""
    name, _, condition = wanted.partition("{")
    key, _, value = condition.rstrip("}").partition("=")
    groups: dict[tuple[tuple[str, str], ...], list[MetricSeries]] = defaultdict(list)
    for text, series in families.get(name, {}).items():
        labels = _labels(text)
        if key and labels.get(key) != value:
            continue
        shared = tuple(sorted((k, v) for k, v in labels.items() if k not in RANKS))
        groups[shared].append(series)
    return list(groups.values())


def _labels(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError:
        return {}


def _read_level(
    servers: list[Families], names: tuple[str, ...], moments_s: Floats, *, mean: bool = False
) -> Level | None:
    """Read a gauge at each of the moments: its newest value then, or its first one."""
    levels = []
    for families in servers:
        groups = next(filter(None, (_find_series(families, name) for name in names)), [])
        for ranks in groups:
            newest = [
                value[np.searchsorted(time_s, moments_s, side="right").clip(1) - 1]
                for time_s, value in ranks
            ]
            levels.append(np.max(newest, axis=0))
    if not levels or not len(moments_s):
        return None
    total = np.sum(levels, axis=0) / (len(levels) if mean else 1)
    return Level(float(total.mean()), float(total.max()))


def _sum_gains(servers: list[Families], names: tuple[str, ...]) -> float | None:
    """Sum what a counter gained on all servers. One that fell began anew at 0."""
    gains = []
    for families in servers:
        for name in names:
            parts = [_find_series(families, part) for part in name.split("+")]
            if all(parts):
                groups = [ranks for part in parts for ranks in part]
                gains.append(sum(max(_gain(series.value) for series in ranks) for ranks in groups))
                break
    return float(sum(gains)) if gains else None


def _sum_by_position(servers: list[Families], names: tuple[str, ...]) -> list[float] | None:
    """Sum what a counter gained at each place in a draft, which its label tells."""
    gains: dict[int, float] = defaultdict(float)
    for families in servers:
        reported = [families[name] for name in names if name in families]
        for text, series in reported[0].items() if reported else ():
            labels = _labels(text)
            place = labels.get("position", labels.get("token_position", ""))
            if re.fullmatch("[0-9]{1,2}", place):
                gains[int(place)] += _gain(series.value)
    return [gains[place] for place in range(max(gains) + 1)] if gains else None


def _gain(values: Floats) -> float:
    steps = np.diff(values)
    return float(np.where(steps < 0, values[1:], steps).sum())


def _find_routers(samples: pa.Table) -> set[int]:
    """Find servers behind whose address several engines answer in turn, as behind a router: a start
    time goes back, or counters that fell together regain in one step what they had lost. An engine
    that began anew does neither.
    """
    import pyarrow.compute as pc

    counted = pc.or_(pc.equal(samples["name"], START_TIME), pc.ends_with(samples["name"], "_total"))
    by_server = _collect_series(samples.filter(pc.and_(counted, pc.less(samples["value"], SANE))))
    return {replica for replica, families in by_server.items() if _take_turns(families)}


def _take_turns(families: Families) -> bool:
    if families.get(START_TIME):
        return _count_starts(families, -1) > 0
    return any(_regains(families, fell_s) for fell_s in _common_falls(families))


def _regains(families: Families, fell_s: float) -> bool:
    fell = regained = 0
    for time_s, values in _counters(families):
        place = int(np.searchsorted(time_s, fell_s))
        if not 0 < place < len(values) or time_s[place] != fell_s:
            continue
        high, rest = values[place - 1], values[place:]
        lost = high - values[place]
        if lost <= 0:
            continue
        fell += 1
        steps = (np.diff(rest) >= lost) & (rest[:-1] < high) & (rest[1:] >= high)
        regained += bool(np.any(steps))
    return regained > 0 and regained >= thresholds.FELL_SHARE * fell


def _counters(families: Families) -> Iterator[MetricSeries]:
    for name, series in families.items():
        if name.endswith("_total"):
            yield from series.values()


def _common_falls(families: Families) -> list[float]:
    """Find the moments at which as many counters fell, of those above 0, as do where an engine
    begins anew."""
    positive: dict[float, int] = defaultdict(int)
    fell: dict[float, int] = defaultdict(int)
    for time_s, values in _counters(families):
        for value, following, moment_s in zip(values[:-1], values[1:], time_s[1:], strict=True):
            positive[moment_s] += int(value > 0)
            fell[moment_s] += int(following < value)
    return sorted(
        moment_s
        for moment_s, count in fell.items()
        if count > 0 and count >= thresholds.FELL_SHARE * positive[moment_s]
    )


def _count_restarts(families: Families) -> int:
    """Count how often a process began anew, by its start time where it reports it, else by counters
    that fell together. Where some had counted and none fell, the start was computed by a clock that
    was set.
    """
    falls = len(_common_falls(families))
    counted = any((values[:-1] > 0).any() for _, values in _counters(families))
    if not families.get(START_TIME) or (counted and not falls):
        return falls
    return _count_starts(families, 1)


def _count_starts(families: Families, sign: int) -> int:
    """Count the most moves of a process's start time, to later (with `sign` −1 to earlier) ones."""
    steps_s = [sign * np.diff(series.value) for series in families[START_TIME].values()]
    return max(int((step_s > thresholds.START_MOVED_S).sum()) for step_s in steps_s)
