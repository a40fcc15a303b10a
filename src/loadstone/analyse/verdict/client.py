"""Did the client, or the way to it, spoil what it measured?

Kernel stamps make a late reader less harmful, not harmless: data that waited together carries the stamp of the
newest. What cannot be known is then the gap between events of one read, and the first of them is early by unknown.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadstone.analyse.metrics import CellMetrics
from loadstone.analyse.verdict.facts import Facts, Floats, under_way
from loadstone.analyse.verdict.finding import MORE_PROCESSOR_TIME, Finding
from loadstone.analyse.verdict.lag import reached_by, spoilt
from loadstone.core import Clock
from loadstone.core.units import show_seconds

BUSY_SHARE = 0.9
"""A worker's processor time as a share of the cell, from which it works without a pause: what comes next, waits."""
BUSY_CELL_S = 1.0
"""A cell so short is mostly beginning and end."""
TOGETHER_SHARE = 0.1
"""Events that share a read with the one before, as a share of all that follow another, from which percentiles of ITL
are those of reads."""
READ_LATE_SHARE = 0.5
"""And from which the median gap is one that was not measured."""
LONG_WAITS = 0.01
"""Requests, as a share and at least two, whose wait was as long as the p99 of ITL."""
UNMEASURED_GAP = 0.1
"""Median ITL over median TPOT, of another tool's run, below which half of the gaps are none of an engine's steps."""
UNDERSTATED = 1.1
"""Times that TPOT is too small, median of the answers, for the tokens that came with the first."""
OVERSTATED = 0.1
"""Share of TTFT, median of the answers, for which the first event waited for those that it came with."""
BUNCHED_S = 1e-5
"""Time per output token, median, below which tokens were not streamed: well below any engine's step."""
STARVED_SHARE = 0.1
"""Receive lag over E2E, medians, from which a client that got no processor is what bunched an answer."""
RESENT_SHARE = 0.01
RESENT_REQUESTS = 5
"""Requests sent a second time, from which on both they are more than the race of a server's keep-alive time."""
CHURN_SHARE = 0.5
"""Requests on fresh connections, beyond the first for each place, from which connections are not kept."""
CHURN_REQUESTS = 10
CHURN_COST = 0.05
"""Time to connect over E2E, medians, from which that is no small matter."""
CHURN_FLOOR_S = 0.005


def client_saturated(facts: Facts, cpu_s: float | None, duration_s: float | None) -> Finding | None:
    """`cpu_s`: processor time of all workers; `duration_s`: of the cell, its warm-up included."""
    workers = len(np.unique(facts.worker[~np.isnan(facts.worker)]))
    if cpu_s is None or duration_s is None or duration_s < BUSY_CELL_S or not workers:
        return None
    share = cpu_s / (duration_s * workers)
    if share < BUSY_SHARE:
        return None
    return Finding(
        "client_saturated",
        "warning",
        f"{workers} client worker{'s' * (workers > 1)} took {cpu_s:.3g} s of processor time in {duration_s:.3g} s "
        f"({share:.0%})",
        "The client may be the bottleneck: give it more --workers, or another machine.",
    )


def events_together(metrics: CellMetrics, done: Facts, streams: bool) -> Finding | None:
    """Events that came in one read, told by the receive lag: were they read late, or did they arrive together?

    `done`: measured requests that completed. Left to `arrivals_bunched` where whole answers came so. The lag is the
    one of the requests that these events are of: a stall of a moment brings together what is of a few requests.
    """
    followers = int(np.clip(done.events - 1, 0, None).sum())
    if not streams or not followers or metrics.tpot_s is None or metrics.tpot_s.p50 <= BUNCHED_S:
        return None
    share = float(done.together.sum()) / followers
    lag_s = _typical(done.receive_lag_s, done.together)
    names = _read_late(metrics, done, followers)
    if share < TOGETHER_SHARE and not names:
        return None
    seen = f"{share:.0%} of stream events came in the same read as the event before"
    if names or lag_s >= metrics.tpot_s.p50:
        if share >= READ_LATE_SHARE and metrics.itl_s is not None and lag_s >= metrics.tpot_s.p50:
            names.append(f"ITL p50 ({show_seconds(metrics.itl_s.p50)})")
        return Finding(
            "client_read_late",
            "warning" if names else "info",
            f"{seen}, half of them in answers with a receive lag of {show_seconds(lag_s)} or more "
            f"(TPOT p50 {show_seconds(metrics.tpot_s.p50)}){', which spoils ' if names else ''}{', '.join(names)}",
            MORE_PROCESSOR_TIME,
        )
    return Finding(
        "events_coalesced",
        "info",
        f"{seen}, although the client read them within {show_seconds(lag_s)} of their arrival",
        "The engine or the network sends several at once: ITL is the gap between batches. E2E is not affected; TPOT "
        "is, only by tokens that came with the first one.",
    )


def _read_late(metrics: CellMetrics, done: Facts, followers: int) -> list[str]:
    """What late reading spoilt of TTFT, TPOT and the longest gaps. An event alone in its read is not affected, and
    the last one of an answer carries its own stamp, so E2E is not either. `followers`: events that follow another.

    Of n₁ events in the first read, all with the stamp of the newest, the first is late by (n₁ − 1) times the pace:
    TTFT is too long by that, and (T − 1)·TPOT too short.
    """
    if metrics.tpot_s is None:
        return []
    late = (done.together > 0) & (done.receive_lag_s >= metrics.tpot_s.p50)
    more = done.first_read_events - 1
    rest = done.events - done.first_read_events
    pace_s = np.full(len(done), metrics.tpot_s.p50)
    np.divide(done.last_s - done.first_s, rest, out=pace_s, where=rest > 0)
    held_s = np.where(late & (more > 0), more * pace_s, 0.0)
    longer = done.output_tokens >= 2
    short_s = np.zeros(len(done))
    np.divide(held_s, done.output_tokens - 1, out=short_s, where=longer)
    names = spoilt(held_s, {"TTFT": metrics.ttft_s}) + spoilt(short_s[longer], {"TPOT": metrics.tpot_s})
    # A wait as long as the longest gaps makes such gaps, of what came before it and after; each of its events at most
    # one, so that fewer than a hundredth of all spoil no p99.
    wait_s = reached_by(np.where(late, done.receive_lag_s, 0.0), LONG_WAITS)
    many = done.together[late].sum() >= LONG_WAITS * followers
    if metrics.itl_s is not None and wait_s >= metrics.itl_s.p99 > 0 and many:
        names.append(f"ITL p99 ({show_seconds(metrics.itl_s.p99)})")
    return names


def gaps_unmeasured(metrics: CellMetrics) -> Finding | None:
    """Of another tool's run, which records no reads: half of the gaps are none that an engine makes at that pace."""
    itl, tpot = metrics.itl_s, metrics.tpot_s
    if itl is None or tpot is None or tpot.p50 <= BUNCHED_S or itl.p50 >= UNMEASURED_GAP * tpot.p50:
        return None
    return Finding(
        "client_read_late",
        "warning",
        f"half of the stream events came within {show_seconds(itl.p50)} of the event before, at a TPOT p50 of "
        f"{show_seconds(tpot.p50)}: they were read together, which spoils ITL p50 ({show_seconds(itl.p50)}), "
        f"ITL p99 ({show_seconds(itl.p99)})",
        "The tool's client was late to read, or something on the way held events back: TTFT may be too long as well. "
        "Measure again with cores of its own for the client.",
    )


def tpot_understated(metrics: CellMetrics, done: Facts) -> Finding | None:
    """Answers whose first read brought n₁ tokens: nobody saw the time these took one after the other, and of TPOT,
    (tT − t1)/(T − 1), only (T − 1)/(T − n₁) times as much would be the pace of those that followed.

    An event whose tokens are known from a final count alone is taken for one. Left to `arrivals_bunched` where whole
    answers came so, and to `client_read_late` where the client made them come so.
    """
    several = _begun(metrics, done)
    if several is None:
        return None
    running = np.isin(several.token_source, ["running usage"])
    first = np.where(running, several.first_read_tokens, several.first_read_events)
    total, times = several.output_tokens, np.full(len(several), np.inf)
    np.divide(total - 1, total - first, out=times, where=total > first)
    if np.median(times) < UNDERSTATED:
        return None
    return Finding(
        "tpot_understated",
        "warning",
        f"answers began with {np.median(first):.0f} tokens at once (median), which TPOT counts as if they had come "
        f"one by one: each later token took {np.median(times):.2f} times TPOT",
        "The engine sends tokens in batches, or a proxy holds them back: have each token streamed alone, request "
        "longer answers, or compare E2E.",
    )


def ttft_overstated(metrics: CellMetrics, done: Facts) -> Finding | None:
    """Answers whose first read brought n₁ of their n events: at the pace of those after them, (tn − t1)/(n − n₁), the
    first had been there for n₁ − 1 times that. An event of several tokens is the engine's own way, and counts as one.
    """
    several = _begun(metrics, done)
    if several is None:
        return None
    several = several.pick(several.events > several.first_read_events)
    if not len(several):
        return None
    first = several.first_read_events
    held_s = (first - 1) * (several.last_s - several.first_s) / (several.events - first)
    if np.median(held_s / np.maximum(several.first_s - several.sent_s, 1e-9)) < OVERSTATED:
        return None
    return Finding(
        "ttft_overstated",
        "warning",
        f"answers began with {np.median(first):.0f} events at once (median): at the pace of the later ones, the "
        f"first was ready {show_seconds(float(np.median(held_s)))} earlier",
        "Something holds back the first tokens, and TTFT includes this delay: switch off a proxy's buffering (and "
        "Nagle's algorithm), or measure without the proxy.",
    )


def _begun(metrics: CellMetrics, done: Facts) -> Facts | None:
    """Answers of two tokens and more, of which it is known what their first read brought; None where whole answers
    came in one, or where it was the client that read late.
    """
    tpot = metrics.tpot_s
    if tpot is None or tpot.p50 <= BUNCHED_S:
        return None
    several = done.pick((done.output_tokens >= 2) & (done.first_read_events > 0))
    if not len(several) or _typical(several.receive_lag_s, several.together) >= tpot.p50:
        return None
    return several


def _typical(values: Floats, weights: NDArray[np.int64]) -> float:
    """The weighted median of what is known of `values`; 0 where nothing is."""
    known = ~np.isnan(values) & (weights > 0)
    if not known.any():
        return 0.0
    order = np.argsort(values[known])
    below = np.cumsum(weights[known][order])
    return float(values[known][order][np.searchsorted(below, below[-1] / 2)])


def arrivals_bunched(metrics: CellMetrics, done: Facts) -> Finding | None:
    """Answers of several tokens that came all at once: no engine writes them so, but what lies between may; and a
    client that is starved sees them so, whoever wrote them.
    """
    tpot = metrics.tpot_s
    if tpot is None or tpot.p50 > BUNCHED_S:
        return None
    seen = f"half of the answers arrived whole, their tokens within {show_seconds(BUNCHED_S)} of each other"
    lag_s, e2e = metrics.receive_lag_s, metrics.e2e_s
    if lag_s is not None and e2e is not None and lag_s.p50 >= STARVED_SHARE * e2e.p50 and done.together.any():
        return Finding(
            "arrivals_bunched",
            "warning",
            f"{seen}, after waiting {show_seconds(lag_s.p50)} (median) for the client to read them",
            "The client was starved of processor time: do not let it share cores with the engine, or use another "
            "machine.",
        )
    return Finding(
        "arrivals_bunched",
        "warning",
        seen,
        "Something between engine and client buffers the stream: measure without the proxy, or switch off its "
        "buffering.",
    )


def connections_not_kept(metrics: CellMetrics, facts: Facts) -> Finding | None:
    """Requests on fresh connections, though others had been used before. A place needs one fresh connection."""
    sent = facts.pick(~np.isnan(facts.sent_s) & ~np.isnan(facts.reused))
    if not len(sent) or metrics.e2e_s is None:
        return None
    places = int(under_way(sent, sent.sent_s).max())
    more = len(sent) - places
    fresh = int((sent.reused == 0).sum()) - places
    if more < CHURN_REQUESTS or fresh < CHURN_SHARE * more:
        return None
    wait_s = (sent.sent_s - sent.intended_s)[(sent.reused == 0) & ~np.isnan(sent.intended_s)]
    cost_s = float(np.median(wait_s)) if len(wait_s) else 0.0
    dear = cost_s > max(CHURN_FLOOR_S, CHURN_COST * metrics.e2e_s.p50)
    return Finding(
        "connections_not_kept",
        "warning" if dear else "info",
        f"{fresh} of {more} requests needed a new connection, although an earlier one could have served again; sent "
        f"{show_seconds(max(0.0, cost_s))} (median) after they were due",
        "The server or a proxy closes connections: raise its keep-alive time. TTFT from the intended time includes "
        "connecting, TTFT from sending does not (except for requests that were sent a second time).",
    )


def requests_resent(resent: int | None, facts: Facts) -> Finding | None:
    """`facts`: of all requests of the cell, warm-up too. Where hardly any kept connection served a second request
    it is the server's way to close them (`connections_not_kept`)."""
    if not resent:
        return None
    share = resent / max(1, len(facts))
    dropped = share > RESENT_SHARE and resent >= RESENT_REQUESTS and resent < int((facts.reused == 1).sum())
    return Finding(
        "requests_resent",
        "warning" if dropped else "info",
        f"{resent} of {len(facts)} requests ({share:.1%}) were sent a second time: the server had closed their kept "
        "connection without an answer",
        "Their times count from the first sending. A server that closes idle connections does this now and then; one "
        "that keeps them, and does it often all the same, drops requests: check its log.",
    )


def user_clock(clock: Clock) -> Finding | None:
    if clock == "kernel":
        return None
    return Finding(
        "user_clock",
        "info",
        "arrivals are timed when the client reads them, not by the kernel",
        "The kernel stamps arrivals over HTTP on Linux; without its stamps, mind the receive lag under load.",
    )
