"""Was the load offered as it was planned?"""

from __future__ import annotations

import numpy as np

from loadstone.analyse.verdict import thresholds
from loadstone.analyse.verdict.client import reached_by, spoilt
from loadstone.analyse.verdict.finding import finding
from loadstone.analyse.verdict.requests import Cell, Floats, under_way
from loadstone.core.summary import Finding
from loadstone.core.units import show_load, show_seconds


def interrupted(cell: Cell) -> Finding | None:
    return finding("interrupted", cell.interrupted) if cell.interrupted is not None else None


def sends_late(cell: Cell) -> Finding | None:
    """Latencies of open loops count from the intended time, and mean to contain what the server delays: the lag in
    them is the client's. Those of a closed loop count from sending; but slots that wait for the client are filled
    all at once when it returns, and first tokens then wait for each other; and while they wait there is less load.
    """
    metrics, closed = cell.metrics, cell.load.is_closed
    if cell.load.max_concurrency is not None:
        return None
    lag_s = _lag_s(cell)
    lag_s = lag_s[~np.isnan(lag_s)]
    latencies = [("TTFT", metrics.ttft_intended_s), ("E2E", metrics.e2e_intended_s)]
    if closed:
        latencies = [("TTFT", metrics.ttft_s)]
    names = spoilt(lag_s, *latencies, floor_s=thresholds.LATE_FLOOR_S)
    if closed and metrics.e2e_s is not None and len(lag_s):
        missing = float(lag_s.mean()) / metrics.e2e_s.mean
        if missing > thresholds.MISSING_SHARE and reached_by(lag_s, 0.01) > thresholds.LATE_FLOOR_S:
            names.append(f"throughput (slots stood empty for {missing:.0%} of the mean E2E)")
    if not names:
        return None
    p50_s, p99_s = map(show_seconds, np.quantile(lag_s, [0.5, 0.99]))
    return finding(
        "sends_late", f"requests were sent late, p50 {p50_s}, p99 {p99_s}, which spoils {', '.join(names)}"
    )


def cap_held_back(cell: Cell) -> Finding | None:
    """An open loop whose cap on requests under way was reached is no open loop while it is."""
    e2e, slots = cell.metrics.e2e_s, cell.load.max_concurrency
    if e2e is None or slots is None:
        return None
    lag_s = _lag_s(cell)
    limit_s = max(thresholds.CAP_FLOOR_S, thresholds.CAP_SHARE * e2e.p50)
    late = int((lag_s > limit_s).sum())
    if late < max(2, thresholds.CAP_REQUESTS * len(lag_s)):
        return None
    share = late / len(lag_s)
    return finding(
        "cap_held_back.tail" if share > thresholds.WAITED_SHARE else "cap_held_back",
        f"{late} of {len(lag_s)} requests ({share:.0%}) waited more than {show_seconds(limit_s)} for one of the "
        f"{slots} slots of --max-concurrency, up to {show_seconds(float(np.nanmax(lag_s)))}",
    )


def rate_not_reached(cell: Cell) -> Finding | None:
    """Compares the time that the middle nine tenths of the sends took with the time they were planned to take: one
    late send at either end makes no difference. Later turns of sessions follow their answers and are left out.
    """
    if not cell.load.is_open or cell.load.max_concurrency is not None:
        return None
    measured = cell.measured
    first = measured.pick(~(measured.turn > 0) & ~np.isnan(measured.sent_s) & ~np.isnan(measured.intended_s))
    if len(first) < thresholds.RATE_REQUESTS:
        return None
    planned_s, took_s = (
        float(np.ptp(np.quantile(times, [0.05, 0.95]))) for times in (first.intended_s, first.sent_s)
    )
    if planned_s <= 0 or took_s <= 0 or planned_s / took_s >= thresholds.RATE_SHARE:
        return None
    count = 0.9 * (len(first) - 1)
    return finding(
        "rate_not_reached",
        f"{count / took_s:.3g} requests/s were sent, {count / planned_s:.3g} were planned ({planned_s / took_s:.0%})",
    )


def rate_by_chance(cell: Cell) -> Finding | None:
    """Arrivals at random have the rate asked for in the long run only: (arrivals − 1)/(last − first) of n is off by
    1/√n as a standard deviation. Later turns of sessions follow their answers and are left out.
    """
    load, measured = cell.load, cell.measured
    if not load.is_open or load.process not in ("poisson", "gamma") or load.profile:
        return None
    due_s = measured.intended_s[~(measured.turn > 0) & ~np.isnan(measured.intended_s)]
    if len(due_s) < thresholds.RATE_REQUESTS or np.ptp(due_s) <= 0:
        return None
    drawn = (len(due_s) - 1) / float(np.ptp(due_s))
    if abs(drawn / load.value - 1) <= thresholds.CHANCE_SHARE:
        return None
    return finding(
        "rate_by_chance",
        f"the {len(due_s)} random arrivals of this cell came to {drawn:.3g} requests/s, {show_load(load.value)} were "
        "requested",
    )


def warmup_leaked(cell: Cell) -> Finding | None:
    """Warm-up that burdens what is measured beyond what is meant.

    Meant is: in a closed loop measured requests take over the places of warm-up ones as these end; in an open loop
    the warm-up is the first second of the same arrivals, and what is still under way is part of the load; a burst
    begins from rest. Wrong is: more under way than places; a backlog of the start that later load does not have
    (an engine compiled, or captured graphs, while the warm-up waited); anything at all beside a burst.
    """
    load, requests = cell.load, cell.requests
    sent_s = np.sort(requests.sent_s[requests.measured & ~np.isnan(requests.sent_s)])
    if not len(sent_s) or requests.measured.all():
        return None
    still = int(under_way(requests.pick(~requests.measured), sent_s[:1])[0])
    usual = 0
    if load.is_closed:
        usual = int(load.value)
    elif load.is_open:
        later = under_way(requests, sent_s[len(sent_s) // 2 :])
        usual = int(thresholds.WARM_TIMES * np.quantile(later, 0.95)) + thresholds.WARM_MORE
    if still <= usual:
        return None
    usually = "there should be none" if load.is_burst else f"up to {usual} would be normal"
    return finding(
        "warmup_leaked",
        f"{still} warm-up requests were still under way when the first measured one was sent; {usually}",
    )


def warmup_failed(cell: Cell) -> Finding | None:
    """Most of the warm-up requests failed."""
    warm = cell.requests.pick(~cell.requests.measured & (cell.requests.status != "cancelled"))
    failed = int((~warm.completed).sum())
    if 2 * failed <= len(warm):
        return None
    return finding("warmup_failed", f"{failed} of {len(warm)} warm-up requests failed")


def ends_late(cell: Cell) -> Finding | None:
    """Answers that end long after their last output. A batch ends as a whole."""
    done = cell.completed
    held_s, took_s = done.end_s - done.last_s, done.end_s - done.sent_s
    known = ~np.isnan(held_s) & ~np.isnan(took_s)
    if not known.any() or (cell.target is not None and cell.target.endpoint == "offline"):
        return None
    mean_s, share = float(held_s[known].mean()), float(held_s[known].sum() / took_s[known].sum())
    if mean_s < thresholds.ENDS_LATE_S or share < thresholds.ENDS_LATE_SHARE:
        return None
    return finding(
        "ends_late",
        f"answers ended {show_seconds(mean_s)} (mean) after their last output, {share:.0%} of all their time",
    )


def fleet_imbalance(cell: Cell) -> Finding | None:
    """How unevenly the output of a fleet came from its servers."""
    shares = [(part.token_share, part.url) for part in cell.replicas if part.token_share is not None]
    if len(shares) < 2 or len(shares) < len(cell.replicas):
        return None
    most, url = max(shares, key=lambda share: share[0])
    times = most * len(shares)
    if times < thresholds.IMBALANCE:
        return None
    return finding("fleet_imbalance", f"{url} gave {most:.0%} of the output tokens, {times:.2f} times an equal share")


def _lag_s(cell: Cell) -> Floats:
    """How late each measured request was sent."""
    return np.asarray(cell.measured.sent_s - cell.measured.intended_s)
