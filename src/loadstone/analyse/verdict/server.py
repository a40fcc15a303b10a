"""Reads what servers report in their /metrics and GPUs of themselves, and judges it. All engines
share these names:

    running, waiting   gauges, requests
    kv_usage           gauge, share of the KV cache in use
    preemptions        counter, requests put back in the queue with their KV lost
    prefix_hits        counter, prompt tokens taken from a prefix cache
    prefix_queries     counter, prompt tokens looked for in it

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
from loadstone.analyse.verdict.finding import finding
from loadstone.analyse.verdict.requests import Floats, JudgedCell
from loadstone.core import gpu_metrics
from loadstone.core.gpu_metrics import Readings
from loadstone.core.nvml import reasons_in
from loadstone.core.summary import Finding, GpuFigures, Level, ServerFigures, TtftParts
from loadstone.core.units import show_seconds
from loadstone.engines.server_metrics import COUNTERS, GAUGES, START_TIME, count_of

if TYPE_CHECKING:
    import pyarrow as pa

RANKS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "engine_rank", "pid"})
"""Labels of processes that work on the same requests: each of them reports the same thing."""
SANE = 1e18
"""Values from here on, and those that are not numbers, are left out: no engine reports them."""


# --- findings -------------------------------------------------------------------------------------


def engine(cell: JudgedCell) -> Iterator[Finding]:
    """Tell what servers reported of themselves: restarts, engines behind a router, late writes,
    preemptions."""
    server, tpot = cell.server, cell.tpot
    if server is None:
        return
    if times := server.restarts:
        yield finding(
            "engine_restarted",
            f"an engine restarted {times} time{'s' * (times > 1)} during the cell: its start time"
            " moved, or its counters fell back",
        )
    if server.in_turns:
        several = f" at {server.in_turns} of the addresses" if server.in_turns > 1 else ""
        yield finding(
            "engines_in_turns",
            f"several engines answered /metrics in turn{several}: a router spreads the requests",
        )
    late_s = server.write_late_s
    shown_s = (
        max(thresholds.SERVER_LATE_S, thresholds.SPOILT_SHARE * tpot.p50)
        if tpot is not None
        else 0.0
    )
    if late_s is not None and tpot is not None and late_s >= shown_s:
        yield finding(
            "server_writes_late",
            f"the server wrote its tokens {show_seconds(late_s)} after they were due, on average"
            f" (TPOT p50 {show_seconds(tpot.p50)})",
        )
    if server.preemptions:
        used = (
            f", with up to {server.kv_usage.max:.0%} of its KV cache in use"
            if server.kv_usage is not None
            else ""
        )
        yield finding(
            "preemptions", f"the engine preempted requests {server.preemptions:.0f} times{used}"
        )


def transfers(cell: JudgedCell) -> Iterator[Finding]:
    """Tell where prefill workers handed over fewer KV caches than there were answers: one side
    served some alone."""
    server, ok = cell.server, cell.requests.completed
    if server is None or not cell.has_pools:
        return
    there, asked, what = server.transfers, float(ok.sum()), "requests"
    if there is None:  # an engine counts either
        there, asked, what = (
            server.transferred_tokens,
            float(cell.requests.input_tokens[ok].sum()),
            "prompt tokens",
        )
    missed = thresholds.NOT_HANDED_OVER_SHARE if server.transfers is None else 0.0
    if there is not None and there < (1 - missed) * asked:
        yield finding(
            "transfers_differ",
            f"KV caches of {there:,.0f} {what} were handed from prefill to decode workers, and"
            f" {asked:,.0f} were answered: one side served the others alone",
        )
    elif server.transfers_failed:
        yield finding(
            "transfers_differ", f"{server.transfers_failed:,.0f} transfers of KV caches failed"
        )


def drafts(cell: JudgedCell) -> Iterator[Finding]:
    """Tell where an acceptance of drafts is no evidence: it was forced, or the prompts are words
    drawn at random."""
    figures = cell.drafts
    if figures is None:
        return
    length = f"{figures.accepted_length:.2f} tokens a step" if figures.accepted_length else "drafts"
    if figures.forced:
        yield finding(
            "drafts_forced", f"{length}, which the engine was told to accept ({figures.forced})"
        )
    elif not cell.plan.prompts:
        rate = f", {figures.rate:.0%} of guesses accepted" if figures.rate is not None else ""
        yield finding(
            "drafts_on_random_text",
            f"drafts were measured on words drawn at random: {length}{rate}",
        )


def gpu(cell: JudgedCell) -> Iterator[Finding]:
    """Tell what held the GPUs' clocks down, and if they were read too seldom to know their energy.

    Heat and failing supplies are a warning; the power cap alone is an info.
    """
    gpus = cell.gpus
    if gpus is None:
        return
    shares = {name: share for name, share in gpus.throttled.items() if name in thresholds.HELD_DOWN}
    worst = max(shares.values(), default=0.0)
    faulty = (
        worst >= thresholds.HELD_DOWN_SHARE
        and round(worst * gpus.samples) >= thresholds.LEAST_HELD_DOWN
    )
    if not faulty:
        shares = {"power_cap": gpus.throttled.get("power_cap", 0.0)}
    if faulty or shares["power_cap"] >= thresholds.CAPPED_SHARE:
        reasons = ", ".join(
            f"{name.replace('_', ' ')} in {share:.0%}" for name, share in shares.items()
        )
        clock = (
            ""
            if gpus.sm_clock_min_mhz is None
            else f"; SM clock down to {gpus.sm_clock_min_mhz:.0f} MHz"
        )
        yield finding(
            "gpu_throttled" if faulty else "gpu_throttled.power_cap",
            f"GPU clocks were held down: {reasons} of {gpus.samples} readings{clock}",
        )
    if gpus.new_every_s is not None and gpus.energy_j is None:
        yield finding(
            "gpu_read_seldom",
            f"the GPUs' power readings changed only about every {gpus.new_every_s:.0f} s: too"
            " seldom to compute the energy of this load",
        )


# --- GPUs -----------------------------------------------------------------------------------------

_STATES = ("power_w", "sm_clock_mhz", "memory_used_bytes", "busy_share", "clock_reasons")


def gpu_figures(readings: Readings, start_s: float, end_s: float) -> GpuFigures | None:
    """Compute a cell's figures of all GPUs; None where no reading within it is of a GPU's state."""
    inside = {name: series for name in _STATES if (series := readings.select(name, start_s, end_s))}
    if not inside:
        return None

    def level(name: str, *, of_sum: bool = False) -> Level | None:
        """Mean and max over the moments of the GPUs' sum, or mean."""
        if name not in inside:
            return None
        each = readings.interpolate(name, start_s, end_s)[1]
        joined = each.sum(axis=0) if of_sum else each.mean(axis=0)
        return Level(float(np.mean(joined)), float(np.max(joined)))

    clocks = [series.value.min() for _, series in inside.get("sm_clock_mhz", ())]
    memory = level("memory_used_bytes", of_sum=True)
    reasons = [
        set(reasons_in(bits))
        for _, series in inside.get("clock_reasons", ())
        for bits in series.value
    ]
    return GpuFigures(
        gpus=len({gpu for by_gpu in inside.values() for gpu, _ in by_gpu}),
        samples=max(sum(len(series.value) for _, series in by_gpu) for by_gpu in inside.values()),
        throttled={
            name: sum(name in each for each in reasons) / len(reasons)
            for name in sorted(set().union(*reasons) - {"idle"})
        },
        power_w=level("power_w", of_sum=True),
        sm_clock_mhz=level("sm_clock_mhz"),
        sm_clock_min_mhz=float(min(clocks)) if clocks else None,
        memory_used_bytes=memory.max if memory is not None else None,
        busy_share=level("busy_share"),
        energy_j=readings.sum_energy_j(start_s, end_s),
        new_every_s=max(
            (_new_every_s(series) for _, series in inside.get("power_w", ())), default=0.0
        )
        or None,
    )


def _new_every_s(series: gpu_metrics.Series) -> float:
    """Seconds between new readings; 0 where at least every second one was new."""
    return float(np.ptp(series.time_s)) / series.new if len(series.value) > 2 * series.new else 0.0


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
    all_s = np.concatenate(
        [each.time_s for by in whole.values() for series in by.values() for each in series.values()]
    )
    at_s = np.unique(all_s[(all_s >= start_s) & (all_s <= end_s)])
    in_turns = _find_routers(samples) & whole.keys()
    servers: list[Families] = [
        {
            name: {labels: _cut(each, start_s, end_s) for labels, each in series.items()}
            for name, series in families.items()
        }
        for replica, families in whole.items()
        if replica not in in_turns
    ]
    late_s, writes = (_sum_gains(servers, COUNTERS[name]) for name in ("late_s", "writes"))
    return ServerFigures(
        samples=len(at_s),
        restarts=sum(map(_count_restarts, servers)),
        in_turns=len(in_turns),
        running=_read_level(servers, GAUGES["running"], at_s),
        waiting=_read_level(servers, GAUGES["waiting"], at_s),
        kv_usage=_read_level(servers, GAUGES["kv_usage"], at_s, mean=True),
        **{name: _sum_gains(servers, COUNTERS[name]) for name in _GAINED},
        write_late_s=late_s / writes if late_s is not None and writes else None,
        draft_accepted_by_position=_sum_by_position(
            servers, COUNTERS["draft_accepted_by_position"]
        ),
        accepted_length=_read_level(servers, GAUGES["accepted_length"], at_s, mean=True),
        ttft_parts=_read_ttft_parts(servers, answered),
        transferred_tokens=_sum_transferred(servers),
    )


def _sum_transferred(servers: list[Families]) -> float | None:
    """Sum the prompt tokens that decode workers had from prefill workers, in these transfers or in
    earlier ones: what such a worker finds in its own prefix cache is not sent again."""
    tokens = [_sum_gains([each], COUNTERS["transferred_tokens"]) for each in servers]
    kept = [
        _sum_gains([each], COUNTERS["prefix_hits"])
        for each, moved in zip(servers, tokens, strict=True)
        if moved
    ]
    known = [each for each in tokens if each is not None]
    return sum(known) + sum(each or 0.0 for each in kept) if known else None


def _read_ttft_parts(servers: list[Families], answered: int | None) -> TtftParts | None:
    """Read what of TTFT the engines count; None where they count nothing. Of pools a request is
    counted in both, a cache once by each rank that has a part of it."""
    sums, counts = (
        [
            _sum_gains(servers, tuple(map(part, COUNTERS[name])))
            for name in ("queue_s", "prefill_s", "transfer_s")
        ]
        for part in (str, count_of)
    )
    over = (answered or counts[0], answered or counts[1], counts[2])
    means = [
        total / count if total is not None and count else None
        for total, count in zip(sums, over, strict=True)
    ]
    return (
        None
        if means == [None] * 3
        else TtftParts(queue_s=means[0], prefill_s=means[1], transfer_s=means[2])
    )


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


def _cut(series: MetricSeries, start_s: float, end_s: float) -> MetricSeries:
    """Cut a series to the cell: from the last value before it to the first one after."""
    first = max(0, int(np.searchsorted(series.time_s, start_s, side="right")) - 1)
    last = int(np.searchsorted(series.time_s, end_s, side="left")) + 1
    return MetricSeries(series.time_s[first:last], series.value[first:last])


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
        groups[tuple(sorted((k, v) for k, v in labels.items() if k not in RANKS))].append(series)
    return list(groups.values())


def _labels(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError:
        return {}


def _read_level(
    servers: list[Families], names: tuple[str, ...], at_s: Floats, *, mean: bool = False
) -> Level | None:
    """Read a gauge at each of the moments: its newest value then, or its first one."""
    levels = []
    for families in servers:
        groups = next(filter(None, (_find_series(families, name) for name in names)), [])
        for ranks in groups:
            newest = [
                each.value[np.searchsorted(each.time_s, at_s, side="right").clip(1) - 1]
                for each in ranks
            ]
            levels.append(np.max(newest, axis=0))
    if not levels or not len(at_s):
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
                gains.append(
                    sum(
                        max(_gain(each.value) for each in ranks)
                        for groups in parts
                        for ranks in groups
                    )
                )
                break
    return float(sum(gains)) if gains else None


def _sum_by_position(servers: list[Families], names: tuple[str, ...]) -> list[float] | None:
    """Sum what a counter gained at each place in a draft, which its label tells."""
    gains: dict[int, float] = defaultdict(float)
    for families in servers:
        for text, series in next(
            (families[name] for name in names if name in families), {}
        ).items():
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
    if started := families.get(START_TIME):
        return any(
            bool((np.diff(each.value) < -thresholds.START_MOVED_S).any())
            for each in started.values()
        )
    return any(_regains(families, fell_s) for fell_s in _common_falls(families))


def _regains(families: Families, fell_s: float) -> bool:
    fell = again = 0
    for time_s, values in _counters(families):
        at = int(np.searchsorted(time_s, fell_s))
        if not 0 < at < len(values) or time_s[at] != fell_s or values[at] >= values[at - 1]:
            continue
        before, lost, later = values[at - 1], values[at - 1] - values[at], values[at:]
        fell += 1
        again += bool(
            np.any((np.diff(later) >= lost) & (later[:-1] < before) & (later[1:] >= before))
        )
    return again > 0 and again >= thresholds.FELL_SHARE * fell


def _counters(families: Families) -> Iterator[MetricSeries]:
    for name, series in families.items():
        if name.endswith("_total"):
            yield from series.values()


def _common_falls(families: Families) -> list[float]:
    """Find the moments at which as many counters fell, of those above 0, as do where an engine
    begins anew."""
    above: dict[float, int] = defaultdict(int)
    fell: dict[float, int] = defaultdict(int)
    for time_s, values in _counters(families):
        for before, after, at in zip(values[:-1], values[1:], time_s[1:], strict=True):
            above[at] += int(before > 0)
            fell[at] += int(after < before)
    return sorted(
        at for at, count in fell.items() if count > 0 and count >= thresholds.FELL_SHARE * above[at]
    )


def _count_restarts(families: Families) -> int:
    """Count how often a process began anew, by its start time where it reports it, else by counters
    that fell together.
    """
    if started := families.get(START_TIME):
        return max(
            int((np.diff(each.value) > thresholds.START_MOVED_S).sum()) for each in started.values()
        )
    return len(_common_falls(families))
