"""Rules on the load: was it offered as it was planned?"""

import numpy as np

from loadstone.analyse.verdict import thresholds
from loadstone.analyse.verdict.client import list_spoilt, top_value
from loadstone.analyse.verdict.finding import Findings, finding
from loadstone.analyse.verdict.requests import JudgedCell, count_under_way
from loadstone.core.arrays import (
    drop_missing,
)
from loadstone.core.vectors import Floats


def interrupted(cell: JudgedCell) -> Findings:
    if cell.interrupted is not None:
        yield finding("interrupted", why=cell.interrupted)


def sends_late(cell: JudgedCell) -> Findings:
    """Find sends that were late by the client's fault.

    Latencies of open loops count from the intended time, to contain delays of the server: a lag of
    the client is in them too. Those of a closed loop count from sending; but slots that wait for
    the client are filled all at once when it returns, and first tokens then wait for each other;
    and while they wait there is less load.
    """
    if cell.load.max_concurrency is not None:
        return
    lag_s = drop_missing(_send_lag_s(cell))
    samples, floor_s = cell.numbers.samples, thresholds.LATE_FLOOR_S
    latencies = {"TTFT": samples["ttft_intended_s"], "E2E": samples["e2e_intended_s"]}
    if cell.load.is_closed:
        latencies = {"TTFT": cell.ttft}
    spoilt = list_spoilt(lag_s, latencies, floor_s)
    if cell.load.is_closed and cell.e2e is not None and len(lag_s):
        missing = float(lag_s.mean()) / cell.e2e.mean
        if missing > thresholds.MISSING_SHARE and top_value(lag_s, 0.01) > floor_s:
            spoilt.append({"metric": "throughput", "missing_share": missing})
    if spoilt:
        p50_s, p99_s = np.quantile(lag_s, [0.5, 0.99])
        yield finding("sends_late", p50_s=p50_s, p99_s=p99_s, spoilt=spoilt)


def cap_held_back(cell: JudgedCell) -> Findings:
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
        late=late,
        requests=len(lag_s),
        share=share,
        limit_s=limit_s,
        slots=slots,
        longest_s=np.nanmax(lag_s),
    )


def rate(cell: JudgedCell) -> Findings:
    """Compare the rate of an open loop with the one asked for, by the sends and by the arrivals
    that were drawn.

    Later turns of sessions follow their answers and are left out.
    """
    load, measured = cell.load, cell.measured
    if not load.is_open:
        return
    first = measured.pick(~(measured.turn > 0) & ~np.isnan(measured.intended_s))
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
                sent_per_s=count / took_s,
                planned_per_s=count / planned_s,
                share=planned_s / took_s,
            )
    is_random = load.process in ("poisson", "gamma") and not load.profile
    if is_random and len(first) >= thresholds.RATE_REQUESTS:
        # (arrivals − 1)/(last − first) of n at random is off by 1/√n as a standard deviation.
        span_s = float(np.ptp(first.intended_s))
        drawn = (len(first) - 1) / span_s if span_s > 0 else load.value
        if abs(drawn / load.value - 1) > thresholds.CHANCE_SHARE:
            yield finding(
                "rate_by_chance",
                requests=len(first),
                drawn_per_s=drawn,
                requested_per_s=load.value,
            )


def warm_up(cell: JudgedCell) -> Findings:
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
        yield finding("warmup_failed", failed=failed, requests=len(warm))


def _leaked_warm_up(cell: JudgedCell) -> Findings:
    load, requests = cell.load, cell.requests
    sent_s = np.sort(requests.sent_s[requests.measured & ~np.isnan(requests.sent_s)])
    if not len(sent_s) or requests.measured.all():
        return
    leaked = int(count_under_way(requests.pick(~requests.measured), sent_s[:1])[0])
    usual = 0
    if load.is_closed:
        usual = int(load.value)
    elif load.is_open:
        under_way = count_under_way(requests, sent_s[len(sent_s) // 2 :])
        usual = int(thresholds.WARM_TIMES * np.quantile(under_way, 0.95)) + thresholds.WARM_MORE
    if leaked > usual:
        normal = None if load.is_burst else usual
        yield finding("warmup_leaked", under_way=leaked, usual=normal)


def ends_late(cell: JudgedCell) -> Findings:
    """Find answers that end long after their last output. A batch ends as a whole."""
    done = cell.completed
    held_s, took_s = done.end_s - done.last_s, done.end_s - done.sent_s
    timed = ~np.isnan(held_s) & ~np.isnan(took_s)
    if not timed.any() or cell.is_offline:
        return
    mean_s = float(held_s[timed].mean())
    share = float(held_s[timed].sum() / took_s[timed].sum())
    if mean_s >= thresholds.ENDS_LATE_S and share >= thresholds.ENDS_LATE_SHARE:
        yield finding("ends_late", held_s=mean_s, share=share)


def fleet_imbalance(cell: JudgedCell) -> Findings:
    """Find a server that gave more than its share of a fleet's output."""
    shares = [part.token_share for part in cell.replicas if part.token_share is not None]
    if len(shares) < 2 or len(shares) < len(cell.replicas):
        return
    share = max(shares)
    times = share * len(shares)
    if times >= thresholds.IMBALANCE:
        url = cell.replicas[shares.index(share)].url
        yield finding("fleet_imbalance", url=url, share=share, times=times)


def _send_lag_s(cell: JudgedCell) -> Floats:
    """Compute how late each measured request was sent."""
    return np.asarray(cell.measured.sent_s - cell.measured.intended_s)
