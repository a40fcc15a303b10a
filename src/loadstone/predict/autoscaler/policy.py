"""The laws of autoscalers: from what is read of a fleet to how many replicas it should have.

    hpa         ceil(n · metric/target), nothing within the tolerance; of several metrics the most
    slo         s = the worst of P90 TTFT and TPOT over its bound. Above 0.55
                n + ceil(n · (s · ready/n / 0.55 − 1)), below 0.40 n − floor(n · (1 − s/0.40))
    planner     predicted requests/s over what one replica carries within its bounds
    saturation  one more where replicas have little left of cache or queue, one less where the rest
                would keep that
    clock       by the time of day; `fixed`: always as many

A wish goes through windows and limits as Kubernetes has them: up by the least wish of a window,
down by the largest, and by no more than a share or a number within a period. No law reads a clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

Policy = Literal["hpa", "slo", "planner", "saturation", "fixed", "clock"]
Metric = Literal["running", "queued", "waiting", "in_flight", "rate", "kv_usage"]
DAY_S = 86_400.0
QUANTILE = 0.9
"""Of latencies that a law looks at."""
_TINY = 1e-9
_UP_AT, _DOWN_AT, _CLAMP, _SMOOTH_S = 0.55, 0.4, 2.0, 45.0
"""Of llm-d's SLO-aware law: where it acts, the largest s, and the time of its mean."""
_LINE = 8
"""Windows that the planner's line is laid through, which stands for Dynamo's ARIMA."""
_KV, _QUEUE, _SPARE_KV, _SPARE_QUEUE = 0.8, 5.0, 0.1, 3.0
"""Of llm-d's Workload Variant Autoscaler: at which a replica is full, and what is to be spare."""


class MetricTarget(NamedTuple):
    """Says what a metric should be for each replica."""

    metric: Metric
    target: float


class ScalingPace(NamedTuple):
    """How fast replicas change one way: after `window_s`, and by `percent` or `pods`, whichever is
    more, within `period_s`; with neither by any number."""

    window_s: float = 0.0
    percent: float | None = None
    pods: int | None = None
    period_s: float = 15.0

    def limit(self, replicas: int) -> float:
        """Return the most replicas that may come or go within a period that begins with so many,
        as a change."""
        if self.percent is None and self.pods is None:
            return math.inf
        return max(replicas * (self.percent or 0.0) / 100, float(self.pods or 0))


class StartUp(NamedTuple):
    """Says what a replica does until it answers: its image comes, its weights are read, its engine
    compiles and captures graphs, and a probe finds it ready.

    By default the image is there already, and the rest is assumed, near to what 8B to 35B models
    take on one node.
    """

    pull_s: float = 0.0
    bytes_per_s: float = 2e9
    compile_s: float = 60.0
    graphs_s: float = 25.0
    probe_s: float = 10.0

    def seconds(self, weights_bytes: float) -> float:
        """Return how long it takes with so many bytes of weights."""
        read_s = weights_bytes / self.bytes_per_s
        return self.pull_s + read_s + self.compile_s + self.graphs_s + self.probe_s


_AT_ONCE = ScalingPace()


@dataclass(frozen=True, kw_only=True)
class Autoscaler:
    """An autoscaler and its values, as a file has them (file.py); times in seconds.

    poll_s     between decisions; `scrape_s`: between readings of metrics
    age_s      of the newest reading at a decision; `window_s`: over which readings are averaged
    initial    replicas at the beginning; None: `min`
    start_up_s from the request for a replica to its first answer, mean; None: by `start_up`, its
               parts; `start_up_spread`: its standard deviation as a share; None: 12 %
    drain_s    that a replica may still take for its requests
    hold       requests in a replica from which on the router sends it no more and holds them; None:
               it holds none, and they queue in replicas
    idle_s     without any work, until the last replica goes, where `min` is 0
    capacity_per_s  requests/s of a replica within the planner's bounds; None: by the closed form
    schedule   of the clock: seconds of the day, replicas
    """

    policy: Policy
    name: str = ""
    poll_s: float = 15.0
    scrape_s: float = 15.0
    age_s: float = 0.0
    window_s: float = 0.0
    min: int = 1
    max: int = 8
    initial: int | None = None
    start_up_s: float | None = None
    start_up: StartUp | None = None
    start_up_spread: float | None = None
    drain_s: float = 30.0
    hold: int | None = None
    idle_s: float = 300.0
    metrics: tuple[MetricTarget, ...] = ()
    tolerance: float = 0.1
    up: ScalingPace = _AT_ONCE
    down: ScalingPace = _AT_ONCE
    ttft_s: float | None = None
    tpot_s: float | None = None
    capacity_per_s: float | None = None
    replicas: int = 1
    schedule: tuple[tuple[float, int], ...] = ()

    @property
    def first(self) -> int:
        """Count the replicas that are ready when the load begins."""
        if self.initial is not None:
            return self.initial
        if self.policy == "fixed":
            return self.replicas
        return scheduled(self.schedule, 0.0) if self.policy == "clock" else self.min

    @property
    def max_replicas(self) -> int:
        """Count the replicas that it can come to."""
        if self.policy == "clock":
            return max((replicas for _, replicas in self.schedule), default=0)
        return self.replicas if self.policy == "fixed" else self.max


class FleetSignals(NamedTuple):
    """Holds what a decision sees.

    totals      by metric, of the fleet: sums over replicas, of `kv_usage` the mean; also `ttft_s`,
                `tpot_s` (a quantile, NaN without requests), `input_tokens`, `output_tokens` (means)
    kv, queues  of each ready replica: share of the cache in use, requests that wait
    """

    totals: Mapping[str, float]
    kv: Sequence[float] = ()
    queues: Sequence[float] = ()


CapacityOf = Callable[[float, float], float]
"""Requests/s that a replica carries, by the mean tokens of prompts and answers."""


def scheduled(schedule: Sequence[tuple[float, int]], at_s: float) -> int:
    """Return the replicas that a clock asks for at a time; before its first time of the day, those
    of its last."""
    within_s = at_s % DAY_S
    return next((n for from_s, n in reversed(schedule) if from_s <= within_s), schedule[-1][1])


class Controller:
    """An autoscaler at work: it remembers its wishes, its changes, and what it saw."""

    def __init__(
        self, scaler: Autoscaler, capacity_of: CapacityOf | None = None, start_s: float = 0.0
    ) -> None:
        self._scaler, self._capacity_of, self._start_s = scaler, capacity_of, start_s
        self._wishes: deque[tuple[float, int]] = deque()
        self._changes: deque[tuple[float, int]] = deque()
        self._seen: deque[tuple[float, float]] = deque()
        self._busy_s = start_s

    def decide(self, now_s: float, count: int, ready: int, signals: FleetSignals) -> int:
        """Return how many replicas there should be, of `count` that were asked for and `ready` that
        serve."""
        scaler = self._scaler
        if scaler.policy == "fixed":
            return scaler.replicas
        if scaler.policy == "clock":
            return scheduled(scaler.schedule, now_s - self._start_s)
        idle = not any(signals.totals.get(name, 0.0) > 0 for name in ("in_flight", "rate"))
        if not idle:
            self._busy_s = now_s
        least = max(1, scaler.min)
        if count == 0:
            wanted = 0 if idle else least
        elif scaler.min == 0 and now_s - self._busy_s >= scaler.idle_s:
            wanted = 0
        else:
            wish = self._wish(now_s, count, ready, signals)
            wanted = min(max(self._limit(now_s, count, wish), least), scaler.max)
        if wanted != count:
            self._changes.append((now_s, wanted - count))
        return wanted

    def _wish(self, now_s: float, count: int, ready: int, signals: FleetSignals) -> int:
        scaler = self._scaler
        if scaler.policy == "hpa":
            return max(
                _by_target(metric, count, signals, scaler.tolerance) for metric in scaler.metrics
            )
        if scaler.policy == "slo":
            return self._by_slo(now_s, count, ready, signals)
        if scaler.policy == "planner":
            return self._by_plan(now_s, count, signals)
        return _by_saturation(count, ready, signals)

    def _by_slo(self, now_s: float, count: int, ready: int, signals: FleetSignals) -> int:
        """Apply the s-law to the mean of what was seen."""
        scaler, totals = self._scaler, signals.totals
        bounds = (("ttft_s", scaler.ttft_s), ("tpot_s", scaler.tpot_s))
        shares = [totals[name] / limit for name, limit in bounds if limit and name in totals]
        finite = [share for share in shares if not math.isnan(share)]
        if not finite and totals.get("in_flight", 0.0) > 0:
            return count  # nothing came of what is under way: nothing is known
        self._seen.append((now_s, min(_CLAMP, max(finite, default=0.0))))
        _forget(self._seen, now_s - _SMOOTH_S)
        s = sum(share for _, share in self._seen) / len(self._seen)
        if s > _UP_AT:
            return max(count, count + _ceil(s * ready / _UP_AT - count))
        if s < _DOWN_AT:
            return count - math.floor(count * (1 - s / _DOWN_AT) + _TINY)
        return count

    def _by_plan(self, now_s: float, count: int, signals: FleetSignals) -> int:
        """Divide the predicted rate by what a replica carries."""
        scaler, totals = self._scaler, signals.totals
        self._seen.append((now_s, totals.get("rate", 0.0)))
        while len(self._seen) > _LINE:
            self._seen.popleft()
        rate = self._seen[-1][1]
        if len(self._seen) > 2:
            times, rates = np.array(self._seen).T
            slope, level = np.polyfit(times - now_s, rates, 1)
            rate = max(0.0, float(level + slope * scaler.poll_s))
        capacity = scaler.capacity_per_s
        if capacity is None and self._capacity_of is not None and totals.get("output_tokens"):
            capacity = self._capacity_of(totals["input_tokens"], totals["output_tokens"])
        return count if capacity is None else _ceil(rate / max(capacity, _TINY))

    def _limit(self, now_s: float, count: int, wish: int) -> int:
        """Return the wish as far as windows and limits allow it now."""
        growth, shrinkage = self._scaler.up, self._scaler.down
        self._wishes.append((now_s, wish))
        _forget(self._wishes, now_s - max(growth.window_s, shrinkage.window_s, _TINY))
        lowest = min(
            replicas
            for at_s, replicas in self._wishes
            if at_s > now_s - max(growth.window_s, _TINY)
        )
        highest = max(
            replicas
            for at_s, replicas in self._wishes
            if at_s > now_s - max(shrinkage.window_s, _TINY)
        )
        wanted = min(max(count, lowest), highest)
        _forget(self._changes, now_s - max(growth.period_s, shrinkage.period_s))
        if wanted > count:
            begun = count - self._changed(now_s - growth.period_s)
            return min(wanted, max(count, _ceil(begun + min(growth.limit(begun), wanted + count))))
        begun = count - self._changed(now_s - shrinkage.period_s)
        left = begun - min(shrinkage.limit(begun), begun)
        return max(wanted, min(count, math.floor(left + _TINY)))

    def _changed(self, since_s: float) -> int:
        return sum(change for at_s, change in self._changes if at_s > since_s)


def _forget(kept: deque[tuple[float, int]] | deque[tuple[float, float]], since_s: float) -> None:
    while kept and kept[0][0] <= since_s:
        kept.popleft()


def _ceil(value: float) -> int:
    """Round up, but for rounding errors."""
    return math.ceil(value - _TINY)


def _by_target(target: MetricTarget, count: int, signals: FleetSignals, tolerance: float) -> int:
    """Return how many replicas bring a metric to its target."""
    value = signals.totals.get(target.metric, 0.0)
    usage = value if target.metric == "kv_usage" else value / count
    ratio = usage / target.target
    return count if abs(ratio - 1) <= tolerance + _TINY else _ceil(count * ratio)


def _by_saturation(count: int, ready: int, signals: FleetSignals) -> int:
    """Return one replica more or less, or as many; nothing while some start."""
    if ready < count or not signals.kv:
        return count
    used = list(zip(signals.kv, signals.queues, strict=True))
    free = [(kv, queue) for kv, queue in used if kv < _KV and queue < _QUEUE]
    spare_kv = sum(_KV - kv for kv, _ in free) / max(1, len(free))
    spare_queue = sum(_QUEUE - queue for _, queue in free) / max(1, len(free))
    if spare_kv < _SPARE_KV - _TINY or spare_queue < _SPARE_QUEUE - _TINY:
        return count + 1
    if count == 1:
        return count
    kept_kv = _KV - sum(signals.kv) / (count - 1)
    kept_queue = _QUEUE - sum(signals.queues) / (count - 1)
    return count - (kept_kv >= _SPARE_KV and kept_queue >= _SPARE_QUEUE)
