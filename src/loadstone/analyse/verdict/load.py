"""Was the load offered as it was planned?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loadstone.analyse.metrics import CellMetrics
from loadstone.analyse.verdict.facts import Facts, under_way
from loadstone.analyse.verdict.finding import MORE_PROCESSOR_TIME, Finding
from loadstone.analyse.verdict.lag import reached_by, spoilt
from loadstone.core import Load
from loadstone.core.units import show_load, show_seconds

LATE_FLOOR_S = 0.002
"""A send that is no later than this is as punctual as a process gets that has just been woken."""
MISSING_SHARE = 0.05
"""Of a closed loop, the mean lag of sends over the mean E2E: the part of the load that was not there."""
CAP_SHARE = 0.05
CAP_FLOOR_S = 0.005
CAP_REQUESTS = 0.01
"""A wait for a slot of a capped open loop, beyond this share of the median E2E and so many seconds; of so many of the
requests, and at least two."""
RATE_SHARE = 0.95
"""Achieved rate over planned rate, below which another load was measured than the one asked for."""
RATE_REQUESTS = 20
"""Sends from which a rate is worth comparing: the middle nine tenths of them are."""
CHANCE_SHARE = 0.1
"""Rate of the arrivals that were drawn, over or under the one asked for: as much as a minute of 100 may be off."""
WAITED_SHARE = 0.1
"""Requests that waited for a place, from which a capped open loop is a closed one for the most part that matters:
its tail."""
WARM_TIMES = 2.0
WARM_MORE = 4
"""Warm-up requests under way when the first measured one is sent, beyond this many times the p95 of requests under
way later, and so many more: a backlog of the start. Arrivals at random alone do not come near."""
IMBALANCE = 1.25
"""The busiest server's output tokens over the mean, from which a fleet is unevenly used."""


def interrupted(reason: str | None) -> Finding | None:
    if reason is None:
        return None
    return Finding("interrupted", "warning", reason, "Run the cell again to its end.")


def sends_late(metrics: CellMetrics, load: Load, measured: Facts) -> Finding | None:
    """Latencies of open loops count from the intended time, and mean to contain what the server delays: the lag in
    them is the client's. Those of a closed loop count from sending; but slots that wait for the client are filled
    all at once when it returns, and first tokens then wait for each other; and while they wait there is less load.
    """
    if load.max_concurrency is not None:
        return None
    lag_s = measured.sent_s - measured.intended_s
    lag_s = lag_s[~np.isnan(lag_s)]
    if load.kind == "concurrency":
        named = {"TTFT": metrics.ttft_s}
    else:
        named = {"TTFT": metrics.ttft_intended_s, "E2E": metrics.e2e_intended_s}
    names = spoilt(lag_s, named, floor_s=LATE_FLOOR_S)
    if load.kind == "concurrency" and metrics.e2e_s is not None and len(lag_s):
        missing = float(lag_s.mean()) / metrics.e2e_s.mean
        if missing > MISSING_SHARE and reached_by(lag_s, 0.01) > LATE_FLOOR_S:
            names.append(f"throughput (slots stood empty for {missing:.0%} of the mean E2E)")
    if not names:
        return None
    p50_s, p99_s = np.quantile(lag_s, [0.5, 0.99])
    return Finding(
        "sends_late",
        "warning",
        f"requests were sent late, p50 {show_seconds(p50_s)}, p99 {show_seconds(p99_s)}, which spoils "
        f"{', '.join(names)}",
        MORE_PROCESSOR_TIME,
    )


def cap_held_back(metrics: CellMetrics, load: Load, measured: Facts) -> Finding | None:
    """An open loop whose cap on requests under way was reached is no open loop while it is."""
    if metrics.e2e_s is None or load.max_concurrency is None:
        return None
    lag_s = measured.sent_s - measured.intended_s
    limit_s = max(CAP_FLOOR_S, CAP_SHARE * metrics.e2e_s.p50)
    late = int((lag_s > limit_s).sum())
    if late < max(2, CAP_REQUESTS * len(lag_s)):
        return None
    share = late / len(lag_s)
    return Finding(
        "cap_held_back",
        "warning" if share > WAITED_SHARE else "info",
        f"{late} of {len(lag_s)} requests ({share:.0%}) waited more than {show_seconds(limit_s)} for one of the "
        f"{load.max_concurrency} slots of --max-concurrency, up to {show_seconds(float(np.nanmax(lag_s)))}",
        "Read latencies from the intended time, which include this wait, or raise --max-concurrency.",
    )


def rate_not_reached(load: Load, measured: Facts) -> Finding | None:
    """Compares the time that the middle nine tenths of the sends took with the time they were planned to take: one
    late send at either end makes no difference. Later turns of sessions follow their answers and are left out.
    """
    if load.kind != "rate" or load.max_concurrency is not None:
        return None
    first = measured.pick(~(measured.turn > 0) & ~np.isnan(measured.sent_s) & ~np.isnan(measured.intended_s))
    if len(first) < RATE_REQUESTS:
        return None
    low, high = np.array([0.05, 0.95])
    planned_s = float(np.quantile(first.intended_s, high) - np.quantile(first.intended_s, low))
    took_s = float(np.quantile(first.sent_s, high) - np.quantile(first.sent_s, low))
    if planned_s <= 0 or took_s <= 0 or planned_s / took_s >= RATE_SHARE:
        return None
    count = 0.9 * (len(first) - 1)
    return Finding(
        "rate_not_reached",
        "warning",
        f"{count / took_s:.3g} requests/s were sent, {count / planned_s:.3g} were planned ({planned_s / took_s:.0%})",
        "The client could not keep up: give it more --workers or another machine, or ask for a lower rate.",
    )


def rate_by_chance(load: Load, measured: Facts) -> Finding | None:
    """Arrivals at random have the rate asked for in the long run only: (arrivals − 1)/(last − first) of n is off by
    1/√n as a standard deviation. Later turns of sessions follow their answers and are left out.
    """
    if load.kind != "rate" or load.process not in ("poisson", "gamma") or load.profile:
        return None
    due_s = measured.intended_s[~(measured.turn > 0) & ~np.isnan(measured.intended_s)]
    if len(due_s) < RATE_REQUESTS or np.ptp(due_s) <= 0:
        return None
    drawn = (len(due_s) - 1) / float(np.ptp(due_s))
    if abs(drawn / load.value - 1) <= CHANCE_SHARE:
        return None
    return Finding(
        "rate_by_chance",
        "info",
        f"the {len(due_s)} random arrivals of this cell came to {drawn:.3g} requests/s, {show_load(load.value)} were "
        "requested",
        "Read the results as those of the rate drawn; to come closer, send more requests, or send them evenly "
        "(--burstiness inf).",
    )


def warmup_leaked(load: Load, facts: Facts) -> Finding | None:
    """Warm-up that burdens what is measured beyond what is meant.

    Meant is: in a closed loop measured requests take over the places of warm-up ones as these end; in an open loop
    the warm-up is the first second of the same arrivals, and what is still under way is part of the load; a burst
    begins from rest. Wrong is: more under way than places; a backlog of the start that later load does not have
    (an engine compiled, or captured graphs, while the warm-up waited); anything at all beside a burst.
    """
    sent_s = np.sort(facts.sent_s[facts.measured & ~np.isnan(facts.sent_s)])
    if not len(sent_s) or facts.measured.all():
        return None
    warm = facts.pick(~facts.measured)
    still = int(under_way(warm, sent_s[:1])[0])
    if load.kind == "burst":
        usual = 0
    elif load.kind == "concurrency":
        usual = int(load.value)
    else:
        later = under_way(facts, sent_s[len(sent_s) // 2 :])
        usual = int(WARM_TIMES * np.quantile(later, 0.95)) + WARM_MORE
    if still <= usual:
        return None
    usually = "there should be none" if load.kind == "burst" else f"up to {usual} would be normal"
    return Finding(
        "warmup_leaked",
        "warning",
        f"{still} warm-up requests were still under way when the first measured one was sent; {usually}",
        "The first measured requests waited behind the warm-up: send a request or two beforehand, or measure longer.",
    )


def fleet_imbalance(replicas: Sequence[Mapping[str, Any]]) -> Finding | None:
    """How unevenly the output of a fleet came from its servers."""
    shares = [replica["token_share"] for replica in replicas]
    if len(shares) < 2 or None in shares:
        return None
    most = max(range(len(shares)), key=shares.__getitem__)
    over = shares[most] * len(shares)
    if over < IMBALANCE:
        return None
    return Finding(
        "fleet_imbalance",
        "info",
        f"{replicas[most]['url']} gave {shares[most]:.0%} of the output tokens, {over:.2f} times an equal share",
        "A server may be down or slow, or the routing uneven; try --route least-busy.",
    )
