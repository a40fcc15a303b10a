"""What the servers say of a cell in their /metrics, in words that all engines share, and what that means.

Names as the engines write them, which is also what `loadstone.measure.engines.observe` always keeps:

    running, waiting   gauges, requests
    kv_usage           gauge, share of the KV cache in use
    preemptions        counter, requests put back in the queue with their KV lost
    prefix_hits        counter, prompt tokens taken from a prefix cache
    prefix_queries     counter, prompt tokens looked for in it
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadstone.analyse.verdict.finding import Finding
from loadstone.core.server_metrics import COUNTERS, GAUGES, START_TIME
from loadstone.core.summary import Level, ServerFigures

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]
Series = tuple[Floats, Floats]
"""Times, values; at least one."""


RANKS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "engine_rank", "pid"})
"""Labels of processes that work on the same requests: what they say is one thing said several times."""
FELL_SHARE = 0.5
"""Counters that fell between two samples, of those above 0, from which the engine began anew: all do then, and a
single one may only be misnamed."""
START_MOVED_S = 1.0
SANE = 1e18
"""Values from here on, and what is no number, are no engine's: they are left out."""


def server_figures(samples: pa.Table, start_s: float, end_s: float) -> ServerFigures | None:
    """`samples` as store.read_server gives them. None where none were taken near the cell.

    Counters run from the last sample before the cell to the first one after it: what happened in between is in them,
    and of what neighbouring cells did as little as the samples allow.
    """
    import pyarrow.compute as pc

    # Scrapes come about every second, and one may fail: look a little beyond both ends.
    near = pc.and_(pc.greater(samples["time_s"], start_s - 5.0), pc.less(samples["time_s"], end_s + 5.0))
    near = pc.and_(near, pc.greater_equal(samples["replica"], 0))  # below: GPUs, see verdict.gpu
    by_server: dict[int, dict[str, dict[str, Series]]] = {}
    times: set[float] = set()
    for replica, name, labels, time_s, value in _series(
        samples.filter(pc.and_(near, pc.less(pc.abs(samples["value"]), SANE)))
    ):
        by_server.setdefault(replica, defaultdict(dict))[name][labels] = _between(time_s, value, start_s, end_s)
        times.update(time_s[(time_s >= start_s) & (time_s <= end_s)].tolist())
    if not by_server:
        return None
    at_s = np.array(sorted(times))
    in_turns = _in_turns(samples) & by_server.keys()
    by_server = {replica: families for replica, families in by_server.items() if replica not in in_turns}
    return ServerFigures(
        samples=len(times),
        restarts=sum(_restarts(families) for families in by_server.values()),
        in_turns=len(in_turns),
        running=_level(by_server, GAUGES["running"], at_s),
        waiting=_level(by_server, GAUGES["waiting"], at_s),
        kv_usage=_level(by_server, GAUGES["kv_usage"], at_s, mean=True),
        preemptions=_added(by_server, COUNTERS["preemptions"]),
        prefix_hits=_added(by_server, COUNTERS["prefix_hits"]),
        prefix_queries=_added(by_server, COUNTERS["prefix_queries"]),
    )


def _series(samples: pa.Table) -> Iterator[tuple[int, str, str, Floats, Floats]]:
    """(replica, name, labels, times, values) of each series."""
    columns = ("replica", "name", "labels")
    # On one thread, which keeps the samples of a series in their order.
    series = samples.group_by(columns, use_threads=False).aggregate([("time_s", "list"), ("value", "list")])
    keys = zip(*(series[column].to_pylist() for column in columns), strict=True)
    for key, time_s, value in zip(keys, series["time_s_list"], series["value_list"], strict=True):
        yield *key, time_s.values.to_numpy(), value.values.to_numpy()


def _between(time_s: Floats, value: Floats, start_s: float, end_s: float) -> Series:
    first = max(0, int(np.searchsorted(time_s, start_s, side="right")) - 1)
    last = int(np.searchsorted(time_s, end_s, side="left")) + 1
    return time_s[first:last], value[first:last]


def _merged(families: Mapping[str, Mapping[str, Series]], wanted: str) -> list[list[Series]]:
    """The series of `name` or `name{label=value}`, those of several ranks of one engine put together."""
    name, _, condition = wanted.partition("{")
    key, _, value = condition.rstrip("}").partition("=")
    groups: dict[tuple[tuple[str, str], ...], list[Series]] = defaultdict(list)
    for text, series in families.get(name, {}).items():
        labels = _labels(text)
        if key and labels.get(key) != value:
            continue
        groups[tuple(sorted((k, v) for k, v in labels.items() if k not in RANKS))].append(series)
    return list(groups.values())


def _labels(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError:
        return {}


def _level(
    by_server: Mapping[int, Mapping[str, Mapping[str, Series]]],
    names: tuple[str, ...],
    at_s: Floats,
    *,
    mean: bool = False,
) -> Level | None:
    """A gauge at each of the moments: its newest value then, or its first one."""
    found = []
    for families in by_server.values():
        groups = next(filter(None, (_merged(families, name) for name in names)), [])
        for ranks in groups:
            newest = [values[np.searchsorted(t, at_s, side="right").clip(1) - 1] for t, values in ranks]
            found.append(np.max(newest, axis=0))
    if not found or not len(at_s):
        return None
    total = np.sum(found, axis=0) / (len(found) if mean else 1)
    return Level(float(total.mean()), float(total.max()))


def _added(by_server: Mapping[int, Mapping[str, Mapping[str, Series]]], names: tuple[str, ...]) -> float | None:
    """What a counter gained, all servers together. One that fell began anew at 0."""
    total, known = 0.0, False
    for families in by_server.values():
        for name in names:
            parts = [_merged(families, part) for part in name.split("+")]
            if not all(parts):
                continue
            known = True
            total += sum(max(_gain(values) for _, values in ranks) for groups in parts for ranks in groups)
            break
    return total if known else None


def _gain(values: Floats) -> float:
    steps = np.diff(values)
    return float(np.where(steps < 0, values[1:], steps).sum())


def _in_turns(samples: pa.Table) -> set[int]:
    """Servers behind whose address several engines answer in turn, as behind a router: a start time goes back, or
    counters that fell together regain in one step what they had lost. An engine that began anew does neither.
    """
    import pyarrow.compute as pc

    told = pc.or_(pc.equal(samples["name"], START_TIME), pc.ends_with(samples["name"], "_total"))
    by_server: dict[int, dict[str, dict[str, Series]]] = {}
    for replica, name, labels, *series in _series(samples.filter(pc.and_(told, pc.less(samples["value"], SANE)))):
        by_server.setdefault(replica, defaultdict(dict))[name][labels] = (series[0], series[1])
    return {replica for replica, families in by_server.items() if _take_turns(families)}


def _take_turns(families: Mapping[str, Mapping[str, Series]]) -> bool:
    started = [values for _, values in families.get(START_TIME, {}).values()]
    if started:
        return any(bool((np.diff(values) < -START_MOVED_S).any()) for values in started)
    return any(_regained(families, fell_s) for fell_s in _fell_together(families))


def _regained(families: Mapping[str, Mapping[str, Series]], fell_s: float) -> bool:
    fell = again = 0
    for time_s, values in _counters(families):
        at = int(np.searchsorted(time_s, fell_s))
        if not 0 < at < len(values) or time_s[at] != fell_s or values[at] >= values[at - 1]:
            continue
        before, lost, later = values[at - 1], values[at - 1] - values[at], values[at:]
        fell += 1
        again += bool(np.any((np.diff(later) >= lost) & (later[:-1] < before) & (later[1:] >= before)))
    return again > 0 and again >= FELL_SHARE * fell


def _counters(families: Mapping[str, Mapping[str, Series]]) -> Iterator[Series]:
    for name, series in families.items():
        if name.endswith("_total"):
            yield from series.values()


def _fell_together(families: Mapping[str, Mapping[str, Series]]) -> list[float]:
    """Moments at which counters fell, of those above 0 so many as do where an engine begins anew."""
    above: dict[float, int] = defaultdict(int)
    fell: dict[float, int] = defaultdict(int)
    for time_s, values in _counters(families):
        for before, after, at in zip(values[:-1], values[1:], time_s[1:], strict=True):
            above[at] += int(before > 0)
            fell[at] += int(after < before)
    return sorted(at for at, count in fell.items() if count > 0 and count >= FELL_SHARE * above[at])


def _restarts(families: Mapping[str, Mapping[str, Series]]) -> int:
    """Times that a process began anew, by its start time where it tells it, else by counters that fell together."""
    started = [values for _, values in families.get(START_TIME, {}).values()]
    if started:
        return max(int((np.diff(values) > START_MOVED_S).sum()) for values in started)
    return len(_fell_together(families))


def engines_in_turns(server: ServerFigures | None) -> Finding | None:
    if server is None or not server.in_turns:
        return None
    of = f" at {server.in_turns} of the addresses" if server.in_turns > 1 else ""
    return Finding(
        "engines_in_turns",
        "info",
        f"several engines answered /metrics in turn{of}: a router spreads the requests",
        "Results are those of all engines together, and their own metrics (restarts, queues, prefix cache) are left "
        "out. To see each engine, give all their URLs, as a fleet.",
    )


def engine_restarted(server: ServerFigures | None) -> Finding | None:
    if server is None or not server.restarts:
        return None
    return Finding(
        "engine_restarted",
        "error",
        f"an engine restarted {server.restarts} time{'s' * (server.restarts > 1)} during the cell: its start time "
        "moved, or its counters fell back",
        "The cell measured the engine before and after, once cold: see its log for the reason, and run the cell "
        "again. If a router let another engine answer, give each engine's own URL.",
    )


def preemptions(server: ServerFigures | None) -> Finding | None:
    if server is None or not server.preemptions:
        return None
    used = f", with up to {server.kv_usage.max:.0%} of its KV cache in use" if server.kv_usage is not None else ""
    return Finding(
        "preemptions",
        "info",
        f"the engine preempted requests {server.preemptions:.0f} times{used}",
        "Their KV cache is computed twice, and tail latencies grow: give the engine more memory for its KV cache, or "
        "fewer requests.",
    )
