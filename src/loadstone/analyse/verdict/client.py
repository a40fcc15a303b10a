"""Rules on the client and the way to it: did they spoil what was measured?

Kernel stamps make a late reader less harmful, not harmless: data that waited together carries the
stamp of the newest. The gaps between events of one read are then unknown, and so is how much
earlier the first of them came.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from loadstone.analyse.verdict import thresholds
from loadstone.analyse.verdict.finding import Findings, finding
from loadstone.analyse.verdict.requests import (
    JudgedCell,
    RequestTable,
    count_under_way,
)
from loadstone.core.arrays import (
    divide,
    drop_missing,
)
from loadstone.core.statistics import Distribution
from loadstone.core.vectors import Floats, Ints64
from loadstone.core.verdict import Finding

Spoilt = list[dict[str, Any]]
"""Metrics that an error spoils: `metric`, and of a latency its `percentile` and `value_s`."""


def list_spoilt(
    errors_s: Floats, latencies: Mapping[str, Distribution | None], floor_s: float = 0.0
) -> Spoilt:
    """List each percentile of `latencies`, by their names, that the errors' own percentile spoils:
    like is compared with like.

    `errors_s`: one of each request, seconds. `floor_s`: a smaller error spoils nothing.
    """
    spoilt: Spoilt = []
    for percentile, share in (("p50", 0.5), ("p99", 0.01)):  # the share of the requests beyond it
        error_s = top_value(errors_s, share)
        for name, latency in latencies.items():
            if latency is None or error_s <= floor_s:
                continue
            value_s = getattr(latency, percentile)
            if error_s >= thresholds.SPOILT_SHARE * value_s:
                spoilt.append({"metric": name, "percentile": percentile, "value_s": value_s})
    return spoilt


def top_value(values: Floats, share: float) -> float:
    """Return the value that this share of all, and at least two of them, reach; 0 where there are
    fewer: one hiccup in a short run is one request among others.
    """
    rank = max(2, math.ceil(share * len(values)))
    return float(np.sort(values)[-rank]) if rank <= len(values) else 0.0


def client_limits(cell: JudgedCell) -> Findings:
    """Check the client itself: its processor time, warm-up included, its clocks, and which clock
    stamps arrivals."""
    info = cell.info
    workers = len(np.unique(drop_missing(cell.requests.worker)))
    cpu_s, start_s, end_s = info.client_cpu_s, info.start_s, info.end_s
    if cpu_s is not None and start_s is not None and end_s is not None and workers:
        duration_s = end_s - start_s
        share = divide(cpu_s, duration_s * workers) or 0.0
        if duration_s >= thresholds.BUSY_CELL_S and share >= thresholds.BUSY_SHARE:
            yield finding(
                "client_saturated",
                workers=workers,
                cpu_s=cpu_s,
                duration_s=duration_s,
                share=share,
            )
    # Of several machines' workers each latency is of one clock, but who sends when is of all of
    # them.
    if info.clocks_apart_s is not None and info.clocks_apart_s > thresholds.LATE_FLOOR_S:
        yield finding("clocks_apart", apart_s=info.clocks_apart_s)
    if cell.clock == "user":
        yield finding("user_clock")
    if info.packets_missed or info.packets_lost:
        yield finding("packets_missed", missed=info.packets_missed, lost=info.packets_lost)


# --- events that came together --------------------------------------------------------------------


def events_together(cell: JudgedCell) -> Findings:
    """Find stream events that came together, why they did, and which of TTFT, TPOT and ITL that
    spoils.

    Where whole answers came at once, nothing more can be told. Another tool's run has no reads,
    only gaps.
    """
    tpot = cell.tpot
    if tpot is not None and tpot.p50 <= thresholds.BUNCHED_S:
        yield _whole_answers(cell)
        return
    paces_s = {part.url: part.tpot_s.p50 for part in cell.replicas if part.tpot_s is not None}
    bunched = [
        str(url)
        for url, pace_s in paces_s.items()
        if pace_s is not None and pace_s <= thresholds.BUNCHED_S
    ]
    if bunched:
        yield finding("arrivals_bunched", servers=bunched, limit_s=thresholds.BUNCHED_S)
    if tpot is None:
        return
    if cell.origin.source == "imported":
        yield from _unmeasured_gaps(cell, tpot)
    else:
        yield from _shared_reads(cell, tpot)
    yield from _first_reads(cell, tpot)


def _whole_answers(cell: JudgedCell) -> Finding:
    """Describe answers of several tokens that came all at once: no engine writes them so, but a
    proxy may; and a client that is starved sees them so, whoever wrote them. Of a fleet each server
    is judged: few spoil no median.
    """
    lag, e2e, limit_s = cell.numbers.samples["receive_lag_s"], cell.e2e, thresholds.BUNCHED_S
    if lag is None or e2e is None or lag.p50 < thresholds.STARVED_SHARE * e2e.p50:
        return finding("arrivals_bunched", limit_s=limit_s)
    if not cell.completed.together.any():
        return finding("arrivals_bunched", limit_s=limit_s)
    return finding("arrivals_bunched.starved", limit_s=limit_s, lag_s=lag.p50)


def _shared_reads(cell: JudgedCell, tpot: Distribution) -> Findings:
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
    spoilt = _spoilt_by_late_reads(cell, tpot, followers)
    if share < thresholds.TOGETHER_SHARE and not spoilt:
        return
    if not spoilt and lag_s < tpot.p50:
        yield finding("events_coalesced", share=share, lag_s=lag_s)
        return
    if share >= thresholds.READ_LATE_SHARE and itl is not None and lag_s >= tpot.p50:
        spoilt.append({"metric": "ITL", "percentile": "p50", "value_s": itl.p50})
    name = "client_read_late.spoilt" if spoilt else "client_read_late"
    yield finding(name, share=share, lag_s=lag_s, tpot_s=tpot.p50, spoilt=spoilt or None)


def _spoilt_by_late_reads(cell: JudgedCell, tpot: Distribution, followers: int) -> Spoilt:
    """List what late reading spoilt of TTFT, TPOT and the longest gaps. An event alone in its read
    is not affected, and the last one of an answer carries its own stamp, so E2E is not either.
    `followers`: events that follow another.

    Of n₁ events in the first read, all with the stamp of the newest, the first is late by (n₁ − 1)
    times the pace: TTFT is too long by that, and (T − 1)·TPOT too short.
    """
    done, itl = cell.completed, cell.itl
    late = (done.together > 0) & (done.receive_lag_s >= tpot.p50)
    # What came together in most answers that were read in time was sent so.
    timely = done.first_read_events[done.receive_lag_s < tpot.p50]
    usual = float(np.median(timely)) if 2 * len(timely) > len(done) else 1.0
    excess = done.first_read_events - max(1.0, usual)
    rest = done.events - done.first_read_events
    pace_s = np.full(len(done), tpot.p50)
    np.divide(done.last_s - done.first_s, rest, out=pace_s, where=rest > 0)
    held_s = np.where(late & (excess > 0), excess * pace_s, 0.0)
    longer = done.output_tokens >= 2
    short_s = np.zeros(len(done))
    np.divide(held_s, done.output_tokens - 1, out=short_s, where=longer)
    spoilt = list_spoilt(held_s, {"TTFT": cell.ttft})
    spoilt += list_spoilt(short_s[longer], {"TPOT": tpot})
    # A wait as long as the longest gaps makes such gaps before it and after it; each of its events
    # at most one, so that fewer than a hundredth of all spoil no p99.
    wait_s = top_value(np.where(late, done.receive_lag_s, 0.0), thresholds.LONG_WAITS)
    frequent = done.together[late].sum() >= thresholds.LONG_WAITS * followers
    if itl is not None and wait_s >= itl.p99 > 0 and frequent:
        spoilt.append({"metric": "ITL", "percentile": "p99", "value_s": itl.p99})
    return spoilt


def _unmeasured_gaps(cell: JudgedCell, tpot: Distribution) -> Findings:
    """Find a median gap, of another tool's run, that no engine makes at that pace."""
    itl = cell.itl
    if itl is not None and itl.p50 < thresholds.UNMEASURED_GAP * tpot.p50:
        yield finding(
            "client_read_late.other_tool",
            itl_p50_s=itl.p50,
            itl_p99_s=itl.p99,
            tpot_p50_s=tpot.p50,
        )


def _first_reads(cell: JudgedCell, tpot: Distribution) -> Findings:
    """Find answers that began with several events in one read, unless it was the client that read
    late.

    Of n₁ tokens in the first read nobody saw the time that they took one after the other: of TPOT,
    (tT − t1)/(T − 1), only (T − 1)/(T − n₁) times as much is the pace of those that followed. An
    event whose tokens are known from a final count alone is taken for one token, but where events
    have many. Where later reads have as many, tokens come in blocks, and a block is what a user
    sees first.

    Of n₁ of n events, at the pace of those after them, (tn − t1)/(n − n₁), the first had been there
    for n₁ − 1 times that, which is in TTFT. An event of several tokens is the engine's own way, and
    counts as one.
    """
    done = cell.completed
    several = done.pick((done.output_tokens >= 2) & (done.first_read_events > 0))
    if not len(several) or _weighted_median(several.receive_lag_s, several.together) >= tpot.p50:
        return
    running = np.isin(several.token_source, ["running usage"])
    total, times = several.output_tokens, np.full(len(several), np.inf)
    per_event = np.rint(total / several.events)
    guessed = np.where(per_event >= thresholds.BLOCK_TOKENS, per_event, 1.0)
    first = np.where(running, several.first_read_tokens, several.first_read_events * guessed).clip(
        max=total
    )
    np.divide(total - 1, total - first, out=times, where=total > first)
    median = np.median(times)
    reads = several.events - several.together
    regular = (reads > 2) & (first * (reads - 1) <= thresholds.BLOCK_TIMES * (total - first))
    in_blocks = bool(2 * regular.sum() > len(several))
    if median >= thresholds.UNDERSTATED:
        yield finding(
            "tpot_understated.blocks" if in_blocks else "tpot_understated",
            tokens=np.median(first),
            times=median if np.isfinite(median) else None,
        )
    if in_blocks:
        return
    several = several.pick(several.events > several.first_read_events)
    first = several.first_read_events
    held_s = (first - 1) * (several.last_s - several.first_s) / (several.events - first)
    share = held_s / np.maximum(several.first_s - several.sent_s, 1e-9)
    if len(several) and np.median(share) >= thresholds.OVERSTATED:
        yield finding("ttft_overstated", events=np.median(first), held_s=np.median(held_s))


def _weighted_median(values: Floats, weights: Ints64) -> float:
    """Compute the weighted median of those of `values` that are known; 0 where none is."""
    weighed = ~np.isnan(values) & (weights > 0)
    if not weighed.any():
        return 0.0
    order = np.argsort(values[weighed])
    sums = np.cumsum(weights[weighed][order])
    return float(values[weighed][order][np.searchsorted(sums, sums[-1] / 2)])


# --- first events, whole answers, connections -----------------------------------------------------


def first_event_early(cell: JudgedCell) -> Findings:
    """Find answers whose second event came long after the first, by the pace of those that follow
    it and by the time that the first itself took: an engine needs longer for a prompt than for a
    token. Where an engine lets answers wait there for the prompts of others, the later ones have
    waited before their first. First events that say something else in each answer are the model's.
    """
    done = cell.completed
    several = done.pick(done.events >= thresholds.EARLY_EVENTS)
    if not cell.streams or not len(several):
        return
    gap_s, took_s = several.second_s - several.first_s, several.first_s - several.sent_s
    pace_s = (several.last_s - several.second_s) / (several.events - 2)
    usual_s = thresholds.EARLY_GAPS * np.maximum(pace_s, thresholds.BUNCHED_S)
    early = gap_s > np.maximum(usual_s, took_s)
    info = cell.info
    alike = max(info.openings_alike, info.openings_blank) >= thresholds.EARLY_ALIKE * info.openings
    if early.mean() >= thresholds.EARLY_SHARE and (alike or info.void_firsts):
        yield finding(
            "first_event_early",
            early=early.sum(),
            answers=len(several),
            gap_s=np.median(gap_s),
            pace_s=np.median(pace_s),
        )


def answers_collected(cell: JudgedCell) -> Findings:
    """Find answers that were whole before their first token was sent on: TTFT grows with their
    length, at equal length of the prompt, and the pace after it is the same for all; or with the
    tokens that are counted and have no event, by the pace of those that have one: these were made
    before. In a closed loop the warm-up's answers, which are cut to several lengths, show it too.
    """
    done = cell.requests.pick(cell.requests.completed & (cell.requests.output_tokens >= 2))
    done = done.pick(~np.isnan(done.first_s - done.sent_s))
    if not cell.streams or len(done) < thresholds.COLLECTED_REQUESTS:
        return
    tokens, events = done.output_tokens, done.events
    ttft_s, took_s = done.first_s - done.sent_s, done.last_s - done.first_s
    lower, upper = thresholds.COLLECTED_SHARE
    pace_s = max(thresholds.BUNCHED_S, float(np.median(took_s / np.maximum(1, events - 1))))
    added_s = _added_by(tokens - events, done)
    is_streamed = tokens.sum() < thresholds.UNSEEN_TOKENS * events.sum()
    if lower <= added_s / pace_s <= upper and is_streamed:
        yield finding("tokens_not_streamed.before", token_adds_s=added_s, pace_s=pace_s)
        return
    p10_s, p50_s, p90_s = np.quantile(took_s / (tokens - 1), [0.1, 0.5, 0.9])
    added_s = _added_by(tokens, done)
    share = added_s * tokens.mean() / ttft_s.mean()
    if p90_s - p10_s <= thresholds.COLLECTED_SPREAD * p50_s and lower <= share <= upper:
        yield finding("answers_collected", share=share, token_adds_s=added_s, pace_s=p50_s)


def _added_by(counts: Floats, done: RequestTable) -> float:
    """Compute by how many seconds TTFT grows with each of what is counted, at equal length of the
    prompt, up to its square: what prompts explain is theirs. 0 where too few answers differ in it,
    or it explains too little.
    """
    prompt = np.nan_to_num(done.input_tokens)
    powers = np.vander(prompt / max(1.0, prompt.max()), 3)
    counts, ttft_s = (
        values - powers @ np.linalg.lstsq(powers, values, rcond=None)[0]
        for values in (counts, done.first_s - done.sent_s)
    )
    differs = np.abs(counts) > thresholds.COLLECTED_LENGTH * done.output_tokens.mean()
    product, squares = counts @ ttft_s, counts @ counts
    explained = thresholds.COLLECTED_FIT * squares * (ttft_s @ ttft_s)
    if differs.sum() < thresholds.COLLECTED_OTHERS or product**2 < explained:
        return 0.0
    return float(product / squares)


def connections(cell: JudgedCell) -> Findings:
    """Find connections that the server or a proxy closed: between requests, or under one that was
    then sent again."""
    yield from _fresh_connections(cell)
    yield from _resent_requests(cell)


def _fresh_connections(cell: JudgedCell) -> Findings:
    """Find requests on fresh connections, though others had been used before. A slot needs one
    fresh connection."""
    requests, e2e = cell.requests, cell.e2e
    sent = requests.pick(~np.isnan(requests.sent_s) & ~np.isnan(requests.reused_connection))
    if not len(sent) or e2e is None:
        return
    unused = sent.reused_connection == 0
    slots = int(count_under_way(sent, sent.sent_s).max())
    followers = len(sent) - slots
    fresh = int(unused.sum()) - slots
    if followers < thresholds.CHURN_REQUESTS or fresh < thresholds.CHURN_SHARE * followers:
        return
    wait_s = drop_missing((sent.sent_s - sent.intended_s)[unused])
    late_s = max(0.0, float(np.median(wait_s))) if len(wait_s) else 0.0
    slow = late_s > max(thresholds.CHURN_FLOOR_S, thresholds.CHURN_COST * e2e.p50)
    name = "connections_not_kept.slow" if slow else "connections_not_kept"
    yield finding(name, fresh=fresh, requests=followers, late_s=late_s)


def _resent_requests(cell: JudgedCell) -> Findings:
    """Find requests that were sent twice, warm-up too. Where hardly any kept connection served a
    second request, the server closes all of them (`connections_not_kept`)."""
    resent, requests = cell.info.requests_resent, cell.requests
    if not resent:
        return
    share = resent / max(1, len(requests))
    frequent = share > thresholds.RESENT_SHARE and resent >= thresholds.RESENT_REQUESTS
    dropped = frequent and resent < (requests.reused_connection == 1).sum()
    name = "requests_resent.dropped" if dropped else "requests_resent"
    yield finding(name, resent=resent, requests=len(requests), share=share)
