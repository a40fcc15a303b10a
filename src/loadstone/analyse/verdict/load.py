"""Rules on the load: was it offered as it was planned?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loadstone.analyse.verdict import thresholds
from loadstone.analyse.verdict.client import name_spoilt, top_value
from loadstone.analyse.verdict.finding import finding
from loadstone.analyse.verdict.requests import Floats, JudgedCell, count_under_way
from loadstone.core.summary import Finding
from loadstone.core.units import show_load, show_seconds


def interrupted(cell: JudgedCell) -> Iterator[Finding]:
    if cell.interrupted is not None:
        yield finding("interrupted", cell.interrupted)


def sends_late(cell: JudgedCell) -> Iterator[Finding]:
    """Find sends that were late by the client's fault.

    Latencies of open loops count from the intended time, to contain delays of the server: a lag of
    the client is in them too. Those of a closed loop count from sending; but slots that wait for
    the client are filled all at once when it returns, and first tokens then wait for each other;
    and while they wait there is less load.
    """
    samples, closed = cell.numbers.samples, cell.load.is_closed
    if cell.load.max_concurrency is not None:
        return
    lag_s = _send_lag_s(cell)
    lag_s = lag_s[~np.isnan(lag_s)]
    latencies = [("TTFT", samples["ttft_intended_s"]), ("E2E", samples["e2e_intended_s"])]
    if closed:
        latencies = [("TTFT", cell.ttft)]
    names = name_spoilt(lag_s, *latencies, floor_s=thresholds.LATE_FLOOR_S)
    if closed and cell.e2e is not None and len(lag_s):
        missing = float(lag_s.mean()) / cell.e2e.mean
        if missing > thresholds.MISSING_SHARE and top_value(lag_s, 0.01) > thresholds.LATE_FLOOR_S:
            names.append(f"throughput (slots stood empty for {missing:.0%} of the mean E2E)")
    if not names:
        return
    p50_s, p99_s = map(show_seconds, np.quantile(lag_s, [0.5, 0.99]))
    yield finding(
        "sends_late",
        f"requests were sent late, p50 {p50_s}, p99 {p99_s}, which spoils {', '.join(names)}",
    )


def cap_held_back(cell: JudgedCell) -> Iterator[Finding]:
    """Find requests that waited for the cap on requests under way: while it is reached, an open
    loop is none."""
    e2e, slots = cell.e2e, cell.load.max_concurrency
    if e2e is None or slots is None:
        return
    lag_s = _send_lag_s(cell)
    limit_s = max(thresholds.CAP_FLOOR_S, thresholds.CAP_SHARE * e2e.p50)
    late = int((lag_s > limit_s).sum())
    if late < max(2, thresholds.CAP_REQUESTS * len(lag_s)):
        return
    share = late / len(lag_s)
    yield finding(
        "cap_held_back.tail" if share > thresholds.WAITED_SHARE else "cap_held_back",
        f"{late} of {len(lag_s)} requests ({share:.0%}) waited more than {show_seconds(limit_s)}"
        f" for one of the {slots} slots of --max-concurrency, up to"
        f" {show_seconds(float(np.nanmax(lag_s)))}",
    )


def rate(cell: JudgedCell) -> Iterator[Finding]:
    """Compare the rate of an open loop with the one asked for, by the sends and by the arrivals
    that were drawn.

    Later turns of sessions follow their answers and are left out.
    """
    load, first = (
        cell.load,
        cell.measured.pick(~(cell.measured.turn > 0) & ~np.isnan(cell.measured.intended_s)),
    )
    if not load.is_open:
        return
    sent = first.pick(~np.isnan(first.sent_s))
    if load.max_concurrency is None and len(sent) >= thresholds.RATE_REQUESTS:
        # The middle nine tenths: one late send at either end makes no difference.
        planned_s, took_s = (
            float(np.ptp(np.quantile(times, [0.05, 0.95])))
            for times in (sent.intended_s, sent.sent_s)
        )
        if planned_s > 0 and took_s > 0 and planned_s / took_s < thresholds.RATE_SHARE:
            count = 0.9 * (len(sent) - 1)
            yield finding(
                "rate_not_reached",
                f"{count / took_s:.3g} requests/s were sent, {count / planned_s:.3g} were planned "
                f"({planned_s / took_s:.0%})",
            )
    if (
        load.process in ("poisson", "gamma")
        and not load.profile
        and len(first) >= thresholds.RATE_REQUESTS
    ):
        # (arrivals − 1)/(last − first) of n at random is off by 1/√n as a standard deviation.
        span_s = float(np.ptp(first.intended_s))
        drawn = (len(first) - 1) / span_s if span_s > 0 else load.value
        if abs(drawn / load.value - 1) > thresholds.CHANCE_SHARE:
            yield finding(
                "rate_by_chance",
                f"the {len(first)} random arrivals of this cell came to {drawn:.3g} requests/s, "
                f"{show_load(load.value)} were requested",
            )


def warm_up(cell: JudgedCell) -> Iterator[Finding]:
    """Find warm-up requests that burden the measured ones, and a warm-up that mostly failed.

    In a closed loop measured requests take over the slots of warm-up ones as these end; in an open
    loop the warm-up is the first second of the same arrivals, and what is still under way is part
    of the load; a burst begins from rest. Wrong is: more under way than slots; a backlog of the
    start that later load does not have (an engine compiled, or captured graphs, while the warm-up
    waited); anything at all before a burst.
    """
    yield from _leaked_warm_up(cell)
    warm = cell.requests.pick(~cell.requests.measured & (cell.requests.status != "cancelled"))
    failed = int((~warm.completed).sum())
    if 2 * failed > len(warm):
        yield finding("warmup_failed", f"{failed} of {len(warm)} warm-up requests failed")


def _leaked_warm_up(cell: JudgedCell) -> Iterator[Finding]:
    load, requests = cell.load, cell.requests
    sent_s = np.sort(requests.sent_s[requests.measured & ~np.isnan(requests.sent_s)])
    if not len(sent_s) or requests.measured.all():
        return
    still = int(count_under_way(requests.pick(~requests.measured), sent_s[:1])[0])
    usual = 0
    if load.is_closed:
        usual = int(load.value)
    elif load.is_open:
        later = count_under_way(requests, sent_s[len(sent_s) // 2 :])
        usual = int(thresholds.WARM_TIMES * np.quantile(later, 0.95)) + thresholds.WARM_MORE
    if still <= usual:
        return
    usually = "there should be none" if load.is_burst else f"up to {usual} would be normal"
    yield finding(
        "warmup_leaked",
        f"{still} warm-up requests were still under way when the first measured one was sent;"
        f" {usually}",
    )


def ends_late(cell: JudgedCell) -> Iterator[Finding]:
    """Find answers that end long after their last output. A batch ends as a whole."""
    done = cell.completed
    held_s, took_s = done.end_s - done.last_s, done.end_s - done.sent_s
    known = ~np.isnan(held_s) & ~np.isnan(took_s)
    if not known.any() or (cell.target is not None and cell.target.endpoint == "offline"):
        return
    mean_s, share = float(held_s[known].mean()), float(held_s[known].sum() / took_s[known].sum())
    if mean_s < thresholds.ENDS_LATE_S or share < thresholds.ENDS_LATE_SHARE:
        return
    yield finding(
        "ends_late",
        f"answers ended {show_seconds(mean_s)} (mean) after their last output, {share:.0%} of all"
        " their time",
    )


def fleet_imbalance(cell: JudgedCell) -> Iterator[Finding]:
    """Find a server that gave more than its share of a fleet's output."""
    shares = [
        (part.token_share, part.url) for part in cell.replicas if part.token_share is not None
    ]
    if len(shares) < 2 or len(shares) < len(cell.replicas):
        return
    most, url = max(shares, key=lambda share: share[0])
    times = most * len(shares)
    if times < thresholds.IMBALANCE:
        return
    yield finding(
        "fleet_imbalance",
        f"{url} gave {most:.0%} of the output tokens, {times:.2f} times an equal share",
    )


def _send_lag_s(cell: JudgedCell) -> Floats:
    """Compute how late each measured request was sent."""
    return np.asarray(cell.measured.sent_s - cell.measured.intended_s)
