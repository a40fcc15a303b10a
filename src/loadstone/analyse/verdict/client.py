"""Rules on the client and the way to it: did they spoil what was measured?

Kernel stamps make a late reader less harmful, not harmless: data that waited together carries the
stamp of the newest. The gaps between events of one read are then unknown, and so is how much
earlier the first of them came.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from loadstone.analyse.verdict import thresholds
from loadstone.analyse.verdict.finding import finding
from loadstone.analyse.verdict.requests import (
    Floats,
    Integers,
    JudgedCell,
    RequestTable,
    count_under_way,
)
from loadstone.core.statistics import Distribution
from loadstone.core.summary import Finding
from loadstone.core.units import show_seconds


def name_spoilt(
    errors_s: Floats, *metrics: tuple[str, Distribution | None], floor_s: float = 0.0
) -> list[str]:
    """List, as `TTFT p99 (31.0 ms)`, each percentile of `metrics`, given with their names, that the
    errors' own percentile spoils: like is compared with like.

    `errors_s`: one of each request, seconds. `floor_s`: a smaller error spoils nothing.
    """
    names = []
    for percentile, share in (("p50", 0.5), ("p99", 0.01)):  # the share of the requests beyond it
        error_s = top_value(errors_s, share)
        for name, metric in metrics:
            if metric is None or error_s <= floor_s:
                continue
            value_s = getattr(metric, percentile)
            if error_s >= thresholds.SPOILT_SHARE * value_s:
                names.append(f"{name} {percentile} ({show_seconds(value_s)})")
    return names


def top_value(values: Floats, share: float) -> float:
    """Return the value that this share of all, and at least two of them, reach; 0 where there are
    fewer: one hiccup in a short run is one request among others.
    """
    rank = max(2, math.ceil(share * len(values)))
    return float(np.sort(values)[-rank]) if rank <= len(values) else 0.0


def client_limits(cell: JudgedCell) -> Iterator[Finding]:
    """Check the client itself: its processor time, warm-up included, its clocks, and which clock
    stamps arrivals."""
    info, worker = cell.info, cell.requests.worker
    workers = len(np.unique(worker[~np.isnan(worker)]))
    if (
        info.client_cpu_s is not None
        and info.start_s is not None
        and info.end_s is not None
        and workers
    ):
        duration_s = info.end_s - info.start_s
        share = (
            info.client_cpu_s / (duration_s * workers)
            if duration_s >= thresholds.BUSY_CELL_S
            else 0.0
        )
        if share >= thresholds.BUSY_SHARE:
            yield finding(
                "client_saturated",
                f"{workers} client worker{'s' * (workers > 1)} took {info.client_cpu_s:.3g} s of"
                f" processor time in {duration_s:.3g} s ({share:.0%})",
            )
    # Of several machines' workers each latency is of one clock, but who sends when is of all of
    # them.
    apart_s = info.clocks_apart_s
    if apart_s is not None and apart_s > thresholds.LATE_FLOOR_S:
        yield finding(
            "clocks_apart",
            f"the clocks of the client's machines may be {show_seconds(apart_s)} apart",
        )
    if cell.clock != "kernel":
        yield finding(
            "user_clock", "arrivals are timed when the client reads them, not by the kernel"
        )


# --- events that came together --------------------------------------------------------------------


def events_together(cell: JudgedCell) -> Iterator[Finding]:
    """Find stream events that came together, why they did, and which of TTFT, TPOT and ITL that
    spoils.

    Where whole answers came at once, nothing more can be told. Another tool's run has no reads,
    only gaps.
    """
    yield from _whole_answers(cell)
    tpot = cell.tpot
    if tpot is None or tpot.p50 <= thresholds.BUNCHED_S:
        return
    if cell.origin.source == "imported":
        yield from _unmeasured_gaps(cell, tpot)
    else:
        yield from _shared_reads(cell, tpot)
    yield from _first_reads(cell, tpot)


def _whole_answers(cell: JudgedCell) -> Iterator[Finding]:
    """Find answers of several tokens that came all at once: no engine writes them so, but a proxy
    may; and a client that is starved sees them so, whoever wrote them. Of a fleet each server is
    judged: few spoil no median.
    """
    tpot, lag_s, e2e = cell.tpot, cell.numbers.samples["receive_lag_s"], cell.e2e
    whole = (
        f"answers arrived whole, their tokens within {show_seconds(thresholds.BUNCHED_S)} of each"
        " other"
    )
    if tpot is None or tpot.p50 > thresholds.BUNCHED_S:
        pace_s = {each.url: each.tpot_s.p50 for each in cell.replicas if each.tpot_s is not None}
        bunched = [
            f"{url}"
            for url, p50_s in pace_s.items()
            if p50_s is not None and p50_s <= thresholds.BUNCHED_S
        ]
        if bunched:
            yield finding("arrivals_bunched", f"{', '.join(bunched)}: half of its {whole}")
        return
    waited = (
        lag_s is not None and e2e is not None and lag_s.p50 >= thresholds.STARVED_SHARE * e2e.p50
    )
    if lag_s is None or not waited or not cell.completed.together.any():
        yield finding("arrivals_bunched", f"half of the {whole}")
        return
    yield finding(
        "arrivals_bunched.starved",
        f"half of the {whole}, after waiting {show_seconds(lag_s.p50)} (median) for the client to"
        " read them",
    )


def _shared_reads(cell: JudgedCell, tpot: Distribution) -> Iterator[Finding]:
    """Find events that came in one read, and judge by the receive lag if they were read late or
    arrived together.

    The lag is the one of the requests that these events are of: a stall of a moment brings together
    events of a few.
    """
    itl, done = cell.itl, cell.completed
    followers = int(np.clip(done.events - 1, 0, None).sum())
    if not cell.streams or not followers:
        return
    share = float(done.together.sum()) / followers
    lag_s = _weighted_median(done.receive_lag_s, done.together)
    names = _spoilt_by_late_reads(cell, tpot, followers)
    if share < thresholds.TOGETHER_SHARE and not names:
        return
    evidence = f"{share:.0%} of stream events came in the same read as the event before"
    if not names and lag_s < tpot.p50:
        yield finding(
            "events_coalesced",
            f"{evidence}, although the client read them within {show_seconds(lag_s)} of their"
            " arrival",
        )
        return
    if share >= thresholds.READ_LATE_SHARE and itl is not None and lag_s >= tpot.p50:
        names.append(f"ITL p50 ({show_seconds(itl.p50)})")
    yield finding(
        "client_read_late.spoilt" if names else "client_read_late",
        f"{evidence}, half of them in answers with a receive lag of {show_seconds(lag_s)} or more "
        "(TPOT p50"
        f" {show_seconds(tpot.p50)}){', which spoils ' if names else ''}{', '.join(names)}",
    )


def _spoilt_by_late_reads(cell: JudgedCell, tpot: Distribution, followers: int) -> list[str]:
    """List what late reading spoilt of TTFT, TPOT and the longest gaps. An event alone in its read
    is not affected, and the last one of an answer carries its own stamp, so E2E is not either.
    `followers`: events that follow another.

    Of n₁ events in the first read, all with the stamp of the newest, the first is late by (n₁ − 1)
    times the pace: TTFT is too long by that, and (T − 1)·TPOT too short.
    """
    done, itl = cell.completed, cell.itl
    late = (done.together > 0) & (done.receive_lag_s >= tpot.p50)
    more = done.first_read_events - 1
    rest = done.events - done.first_read_events
    pace_s = np.full(len(done), tpot.p50)
    np.divide(done.last_s - done.first_s, rest, out=pace_s, where=rest > 0)
    held_s = np.where(late & (more > 0), more * pace_s, 0.0)
    longer = done.output_tokens >= 2
    short_s = np.zeros(len(done))
    np.divide(held_s, done.output_tokens - 1, out=short_s, where=longer)
    names = name_spoilt(held_s, ("TTFT", cell.ttft)) + name_spoilt(short_s[longer], ("TPOT", tpot))
    # A wait as long as the longest gaps makes such gaps before it and after it; each of its events
    # at most one, so that fewer than a hundredth of all spoil no p99.
    wait_s = top_value(np.where(late, done.receive_lag_s, 0.0), thresholds.LONG_WAITS)
    many = done.together[late].sum() >= thresholds.LONG_WAITS * followers
    if itl is not None and wait_s >= itl.p99 > 0 and many:
        names.append(f"ITL p99 ({show_seconds(itl.p99)})")
    return names


def _unmeasured_gaps(cell: JudgedCell, tpot: Distribution) -> Iterator[Finding]:
    """Find a median gap, of another tool's run, that no engine makes at that pace."""
    itl = cell.itl
    if itl is None or itl.p50 >= thresholds.UNMEASURED_GAP * tpot.p50:
        return
    yield finding(
        "client_read_late.other_tool",
        f"half of the stream events came within {show_seconds(itl.p50)} of the event before, at a"
        f" TPOT p50 of {show_seconds(tpot.p50)}: they were read together, which spoils ITL p50"
        f" ({show_seconds(itl.p50)}), ITL p99 ({show_seconds(itl.p99)})",
    )


def _first_reads(cell: JudgedCell, tpot: Distribution) -> Iterator[Finding]:
    """Find answers that began with several events in one read, unless it was the client that read
    late.

    Of n₁ tokens in the first read nobody saw the time that they took one after the other: of TPOT,
    (tT − t1)/(T − 1), only (T − 1)/(T − n₁) times as much is the pace of those that followed. An
    event whose tokens are known from a final count alone is taken for one token.

    Of n₁ of n events, at the pace of those after them, (tn − t1)/(n − n₁), the first had been there
    for n₁ − 1 times that, which is in TTFT. An event of several tokens is the engine's own way, and
    counts as one.
    """
    done = cell.completed
    several = done.pick((done.output_tokens >= 2) & (done.first_read_events > 0))
    if not len(several) or _weighted_median(several.receive_lag_s, several.together) >= tpot.p50:
        return
    running = np.isin(several.token_source, ["running usage"])
    first = np.where(running, several.first_read_tokens, several.first_read_events)
    total, times = several.output_tokens, np.full(len(several), np.inf)
    np.divide(total - 1, total - first, out=times, where=total > first)
    if np.median(times) >= thresholds.UNDERSTATED:
        later = f"each later token took {np.median(times):.2f} times TPOT"
        yield finding(
            "tpot_understated",
            f"answers began with {np.median(first):.0f} tokens at once (median), which TPOT counts"
            " as if they had come one by one:"
            f" {later if np.isfinite(np.median(times)) else 'in half of them none came later'}",
        )
    several = several.pick(several.events > several.first_read_events)
    first = several.first_read_events
    held_s = (first - 1) * (several.last_s - several.first_s) / (several.events - first)
    share = held_s / np.maximum(several.first_s - several.sent_s, 1e-9)
    if len(several) and np.median(share) >= thresholds.OVERSTATED:
        yield finding(
            "ttft_overstated",
            f"answers began with {np.median(first):.0f} events at once (median): at the pace of the"
            f" later ones, the first was ready {show_seconds(float(np.median(held_s)))} earlier",
        )


def _weighted_median(values: Floats, weights: Integers) -> float:
    """Return the weighted median of those of `values` that are known; 0 where none is."""
    known = ~np.isnan(values) & (weights > 0)
    if not known.any():
        return 0.0
    order = np.argsort(values[known])
    below = np.cumsum(weights[known][order])
    return float(values[known][order][np.searchsorted(below, below[-1] / 2)])


# --- first events, whole answers, connections -----------------------------------------------------


def first_event_early(cell: JudgedCell) -> Iterator[Finding]:
    """Find answers whose second event came long after the first, by the pace of those that follow
    it and by the time that the first itself took: an engine needs longer for a prompt than for a
    token. Where an engine lets answers wait there for the prompts of others, the later ones have
    waited before their first.
    """
    done = cell.completed
    several = done.pick(done.events >= thresholds.EARLY_EVENTS)
    if not cell.streams or not len(several):
        return
    gap_s, took_s = several.second_s - several.first_s, several.first_s - several.sent_s
    pace_s = (several.last_s - several.second_s) / (several.events - 2)
    early = gap_s > np.maximum(
        thresholds.EARLY_GAPS * np.maximum(pace_s, thresholds.BUNCHED_S), took_s
    )
    if early.mean() < thresholds.EARLY_SHARE:
        return
    gap, pace = (show_seconds(float(np.median(each))) for each in (gap_s, pace_s))
    yield finding(
        "first_event_early",
        f"in {early.sum()} of {len(several)} answers the second event came {gap} after the first,"
        f" and those after it every {pace} (medians)",
    )


def answers_collected(cell: JudgedCell) -> Iterator[Finding]:
    """Find answers that were whole before their first token was sent on: TTFT grows with their
    length, at equal length of the prompt, and the pace after it is the same for all; or with the
    tokens that are counted and have no event, by the pace of those that have one: these were made
    before. In a closed loop the warm-up's answers, which are cut to several lengths, show it too.
    """
    done = cell.requests.pick(cell.requests.completed & (cell.requests.output_tokens >= 2))
    done = done.pick(~np.isnan(done.first_s - done.sent_s))
    if not cell.streams or len(done) < thresholds.COLLECTED_REQUESTS:
        return
    ttft_s, tokens, took_s = (
        done.first_s - done.sent_s,
        done.output_tokens,
        done.last_s - done.first_s,
    )
    pace_s = max(thresholds.BUNCHED_S, float(np.median(took_s / np.maximum(1, done.events - 1))))
    each_s, (least, most) = _added_by(tokens - done.events, done), thresholds.COLLECTED_SHARE
    if (
        least <= each_s / pace_s <= most
        and tokens.sum() < thresholds.UNSEEN_TOKENS * done.events.sum()
    ):
        yield finding(
            "tokens_not_streamed",
            f"each token that is counted and not streamed adds {show_seconds(each_s)} to TTFT at"
            f" equal prompts, and events come every {show_seconds(pace_s)}: it was made before the"
            " first of them",
        )
        return
    p10_s, p50_s, p90_s = np.quantile(took_s / (tokens - 1), [0.1, 0.5, 0.9])
    each_s = _added_by(tokens, done)
    share = each_s * tokens.mean() / ttft_s.mean()
    if p90_s - p10_s <= thresholds.COLLECTED_SPREAD * p50_s and least <= share <= most:
        yield finding(
            "answers_collected",
            f"{share:.0%} of TTFT grows with the length of the answer at equal prompts"
            f" ({show_seconds(each_s)} a token), and later tokens come every {show_seconds(p50_s)},"
            " whoever else is served",
        )


def _added_by(each: Floats, done: RequestTable) -> float:
    """Compute by how many seconds TTFT grows with each of something, at equal length of the prompt,
    up to its square: what prompts explain is theirs. 0 where too few answers differ in it, or it
    explains too little.
    """
    prompt = np.nan_to_num(done.input_tokens)
    known = np.vander(prompt / max(1.0, prompt.max()), 3)
    ttft_s = done.first_s - done.sent_s
    more, later_s = (
        values - known @ np.linalg.lstsq(known, values, rcond=None)[0] for values in (each, ttft_s)
    )
    others = int((np.abs(more) > thresholds.COLLECTED_LENGTH * done.output_tokens.mean()).sum())
    both, squares = more @ later_s, more @ more
    if others < thresholds.COLLECTED_OTHERS or both**2 < thresholds.COLLECTED_FIT * squares * (
        later_s @ later_s
    ):
        return 0.0
    return float(both / squares)


def connections(cell: JudgedCell) -> Iterator[Finding]:
    """Find connections that the server or a proxy closed: between requests, or under one that was
    then sent again."""
    yield from _fresh_connections(cell)
    yield from _resent_requests(cell)


def _fresh_connections(cell: JudgedCell) -> Iterator[Finding]:
    """Find requests on fresh connections, though others had been used before. A slot needs one
    fresh connection."""
    requests, e2e = cell.requests, cell.e2e
    sent = requests.pick(~np.isnan(requests.sent_s) & ~np.isnan(requests.reused_connection))
    if not len(sent) or e2e is None:
        return
    unused = sent.reused_connection == 0
    slots = int(count_under_way(sent, sent.sent_s).max())
    more = len(sent) - slots
    fresh = int(unused.sum()) - slots
    if more < thresholds.CHURN_REQUESTS or fresh < thresholds.CHURN_SHARE * more:
        return
    wait_s = (sent.sent_s - sent.intended_s)[unused & ~np.isnan(sent.intended_s)]
    cost_s = float(np.median(wait_s)) if len(wait_s) else 0.0
    slow = cost_s > max(thresholds.CHURN_FLOOR_S, thresholds.CHURN_COST * e2e.p50)
    yield finding(
        "connections_not_kept.slow" if slow else "connections_not_kept",
        f"{fresh} of {more} requests needed a new connection, although an earlier one could have"
        f" served again; sent {show_seconds(max(0.0, cost_s))} (median) after they were due",
    )


def _resent_requests(cell: JudgedCell) -> Iterator[Finding]:
    """Find requests that were sent twice, warm-up too. Where hardly any kept connection served a
    second request, the server closes all of them (`connections_not_kept`)."""
    resent, requests = cell.info.requests_resent, cell.requests
    if not resent:
        return
    share = resent / max(1, len(requests))
    many = share > thresholds.RESENT_SHARE and resent >= thresholds.RESENT_REQUESTS
    dropped = many and resent < int((requests.reused_connection == 1).sum())
    yield finding(
        "requests_resent.dropped" if dropped else "requests_resent",
        f"{resent} of {len(requests)} requests ({share:.1%}) were sent a second time: the server"
        " had closed their kept connection without an answer",
    )
