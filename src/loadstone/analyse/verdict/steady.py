"""Rules on the state of the server: do the numbers describe one, or a moment on its way to another?
Are they enough?

Trends are looked for in blocks: the requests in the order they were due, cut into BLOCKS of equal
count, each block known by its median. Medians of blocks are robust against outliers, and
neighbouring requests, which share their fate in a queue, count as one. Kendall's τ of the blocks
says how steadily they rise, the first against the last three how far: a trend needs both. For ten
blocks in random order |τ| ≥ 0.75 has a probability of 0.001 (Kendall 1938). Blocks that are as good
as equal tell of no direction (τ_b, 1945): values that rise and then stay have risen. A sudden
change is looked for as such, in the gap that parts the blocks; a warm-up, which is shorter than
some of them, in the first requests against all others.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from loadstone.analyse.verdict import thresholds
from loadstone.analyse.verdict.finding import Findings, finding
from loadstone.analyse.verdict.requests import JudgedCell, RequestTable
from loadstone.analyse.verdict.thresholds import BLOCKS, ENDS
from loadstone.core import arrays
from loadstone.core.pace import Unended
from loadstone.core.statistics import Distribution
from loadstone.core.statistics.dependence import Dependence, spread_between_places
from loadstone.core.vectors import Floats
from loadstone.core.verdict import Finding

_LEAST_REQUESTS = BLOCKS * thresholds.BLOCK_REQUESTS
_LEAST_CLOSED = BLOCKS * thresholds.CLOSED_BLOCK_REQUESTS


def few_samples(cell: JudgedCell) -> Findings:
    """Find a p99 that the requests do not bound from above."""
    values = cell.ttft or cell.e2e
    if values is None:
        return
    low, high = values.ci95["p99"]
    if high is None:
        needed = thresholds.P99_REQUESTS
        name = "few_samples.dependent" if values.n >= needed else "few_samples"
        yield finding(name, requests=values.n, at_least_s=low, needed=needed)


def few_rounds(cell: JudgedCell) -> Findings:
    """Tell where the sends took too short a time, beside the answers, for a steady window."""
    metrics, sent_s = cell.numbers.metrics, arrays.drop_missing(cell.measured.sent_s)
    last_s = arrays.drop_missing(cell.completed.last_s)
    if metrics.steady is not None or cell.load.is_burst or not len(last_s) or len(sent_s) < 2:
        return
    yield finding(
        "few_rounds",
        span_s=np.ptp(sent_s),
        after_s=last_s.max() - sent_s.max(),
        tokens_per_s=None if cell.plan.inputs is not None else metrics.output_tokens_per_s,
    )


class Change(NamedTuple):
    """Medians of the first and the last blocks of a cell, in seconds where values are; `share`: of
    the requests, those before a sudden change."""

    first: float
    last: float
    share: float | None = None


def _medians(values: Floats) -> Floats:
    """Compute the median of each block of `values`, which are in the order they were due, without
    NaN."""
    return np.array([np.median(block) for block in np.array_split(values, BLOCKS)])


def trend(values: Floats, least: int = _LEAST_REQUESTS) -> Change | None:
    """Find a steady rise or fall of the blocks: the medians of the first and the last ENDS of
    them."""
    if len(values) < least:
        return None
    medians = _medians(values)
    rises = (medians[None, :] - medians[:, None])[np.triu_indices(BLOCKS, 1)]
    rises[np.abs(rises) < thresholds.TIED * float(np.median(medians))] = 0.0
    untied = np.count_nonzero(rises)
    if abs(np.sign(rises).sum()) < thresholds.TAU * math.sqrt(len(rises) * untied) or not untied:
        return None
    return Change(float(np.median(medians[:ENDS])), float(np.median(medians[-ENDS:])))


def step(values: Floats, least: int = _LEAST_REQUESTS) -> Change | None:
    """Find blocks of two kinds, one after the other: the medians of both.

    There are ENDS of each at least, further apart than those of a kind are from one another. The
    block within which it happens may be of neither.
    """
    if len(values) < least:
        return None
    medians = _medians(values)
    for within in (0, 1):
        for first in range(ENDS, BLOCKS - ENDS - within + 1):
            left, right = medians[:first], medians[first + within :]
            gap = max(right.min() - left.max(), left.min() - right.max())
            if gap > 0 and gap >= max(np.ptp(left), np.ptp(right)):
                share = (first + within / 2) / BLOCKS
                return Change(float(np.median(left)), float(np.median(right)), share)
    return None


def start(
    values: Floats, sign: int = 1, shares: Sequence[float] = thresholds.STARTS
) -> Change | None:
    """Find first requests that are slower (with `sign` −1 faster) than all later ones, three
    quarters of them than nine tenths of those: the mean of the first, the median of the others. A
    cause that lasts slows down more than a tenth of all, or not so many of the first.
    """
    for share in shares:
        first, rest = np.split(sign * values, [round(share * len(values))])
        if len(first) < thresholds.BLOCK_REQUESTS:
            break
        if np.quantile(first, 0.25) > np.quantile(rest, 0.9):
            return Change(sign * float(first.mean()), sign * float(np.median(rest)), share)
    return None


def sudden(values: Floats, least: int, *, closed: bool) -> Iterator[tuple[bool, Change, float]]:
    """Find sudden changes, each with whether it is a slow start, and the share of the requests that
    it makes slower or faster: blocks of two kinds; first requests that are slower. In a closed loop
    also first ones that are faster, as while credits last, and last ones that are slower: an open
    loop fills up at the start.
    """
    change = step(values, least)
    if change is not None:
        yield False, change, 1.0
    change = start(values)
    if change is not None:
        yield True, change, change.share or 0.0
    if not closed or len(values) < least:
        return
    change = start(values, -1)
    if change is not None:
        yield False, change, change.share or 0.0
    change = start(values[::-1])
    if change is not None:
        share = change.share or 0.0
        yield False, Change(change.last, change.first, 1 - share), share


def no_steady_state(cell: JudgedCell) -> Findings:
    """Find the gravest reason why the server is not in one state, and loops that do not tell if it
    keeps up."""
    gravest = _behind(cell) or _not_stationary(cell)
    if gravest is not None:
        yield gravest
    yield from _unknown_pace(cell)


def _behind(cell: JudgedCell) -> Finding | None:
    """Find a server that does not keep up with an open loop (core.pace)."""
    pace, load = cell.numbers.pace, cell.load
    if pace is None or pace.why is None:
        return None
    why, server = pace.why, None
    if pace.replica is not None:
        urls = cell.target.urls if cell.target is not None else []
        server = urls[pace.replica] if pace.replica < len(urls) else f"server {pace.replica}"
    if isinstance(why, Unended):
        first, last = why.under_way
        return finding(
            "queue_grows",
            server=server,
            from_s=why.from_s,
            span_s=why.span_s,
            ended=why.ended,
            would_end=why.would,
            under_way_first=first,
            under_way_last=last,
        )
    name = "overload.part" if load.process == "trace" or load.profile else "overload"
    return finding(
        "queue_grows.behind" if why.answers and cell.streams else name,
        server=server,
        span_s=why.span_s,
        waiting=why.waiting,
        requests=why.sent,
        lacking="had not ended" if why.answers else "had no first token",
        age_s=why.age_s,
        own_s=why.own_s,
        since_s=why.since_s,
    )


def _unknown_pace(cell: JudgedCell) -> Findings:
    pace, e2e = cell.numbers.pace, cell.e2e
    if pace is None or pace.keeps_up is not None or e2e is None:
        return
    growth, margin = pace.growth or (None, None)
    yield finding(
        "pace_unknown",
        growth_per_s=growth,
        growth_margin_per_s=margin,
        requests=e2e.n,
        span_s=np.ptp(arrays.drop_missing(cell.measured.due_s)),
        e2e_s=e2e.mean,
    )


def _not_stationary(cell: JudgedCell) -> Finding | None:
    """Find a TTFT or TPOT (E2E, without streaming) that rises or falls through the cell, or at one
    moment of it, though the lengths that were requested did not.
    """
    e2e, load, plan = cell.e2e, cell.load, cell.plan
    if e2e is None or load.is_burst or load.profile or load.process == "trace":
        return None
    done = _in_order(cell.completed)
    if plan.has_sessions and load.is_open:
        begun_s = done.due_s[done.turn <= 0]
        if len(begun_s) < _LEAST_CLOSED:
            return None
        done = done.pick(done.due_s <= begun_s.max())  # behind it fewer and fewer sessions go on
    rows = cell.plan_rows(done)
    turns = done.turn if plan.has_sessions else np.zeros(len(done))
    least = _LEAST_CLOSED if load.is_closed else _LEAST_REQUESTS
    for tokens in (plan.input_tokens[rows], plan.output_tokens[rows]):
        lengths = _level_turns(tokens.astype(np.float64), turns)
        change = trend(lengths, least) or step(lengths, least)
        ratio = thresholds.LENGTHS_RATIO
        if change and not 1 / ratio < (change.last + 1) / (change.first + 1) < ratio:
            return None
    latencies = {"E2E": (done.last_s - done.sent_s, 1.0)}
    if cell.streams:
        tokens = np.where(done.output_tokens >= 2, done.output_tokens - 1, np.nan)
        mean = float(np.nanmean(tokens)) if not np.isnan(tokens).all() else 0.0
        latencies = {
            "TTFT": (done.first_s - done.sent_s, 1.0),
            "TPOT": ((done.last_s - done.first_s) / tokens, mean),  # × its count is its part of E2E
        }

    def matters(change: Change, times: float) -> bool:
        low, high = sorted((change.first, change.last))
        part_s = (high - low) * times
        return high >= thresholds.DRIFT_RATIO * low and part_s >= thresholds.DRIFT_SHARE * e2e.p50

    def describe(name: str, latency: str, change: Change) -> Finding:
        return finding(
            name,
            latency=latency,
            before_s=change.first,
            after_s=change.last,
            at_share=change.share,
        )

    for latency, (samples, times) in latencies.items():
        levelled = _level_turns(samples, turns)
        values = arrays.drop_missing(levelled)
        steadily = trend(values, least)
        if steadily is not None and matters(steadily, times):
            return describe("not_stationary", latency, steadily)
        for slow_start, change, share in sudden(values, least, closed=load.is_closed):
            if matters(change, times * share):
                name = "not_stationary.start" if slow_start else "not_stationary.at_once"
                return describe(name, latency, change)
        late = None if load.is_closed or latency == "TTFT" else _slow_end(levelled, done.due_s)
        if late is not None and matters(late, times * (1 - (late.share or 0.0))):
            return describe("not_stationary.at_once", latency, late)
    return None


def _level_turns(values: Floats, turns: Floats) -> Floats:
    """Bring the values of each turn to one median: later turns have longer prompts. Those of turns
    that few requests have are missing."""
    levelled = np.full(len(values), np.nan)
    present = arrays.drop_missing(values)
    for turn in np.unique(turns):
        of_turn = values[turns == turn]
        timed = arrays.drop_missing(of_turn)
        if len(timed) >= thresholds.BLOCK_REQUESTS:
            ratio = np.median(present) / max(1e-9, float(np.median(timed)))
            levelled[turns == turn] = of_turn * ratio
    return levelled


def _slow_end(values: Floats, due_s: Floats) -> Change | None:
    """Find last requests of an open loop that are slower than all before, though they come no more
    often; `values` of them in the order they were due."""
    timed = ~np.isnan(values)
    values, due_s = values[timed], due_s[timed]
    quarter = len(values) // 4
    change = start(values[::-1], shares=thresholds.STARTS[:2])
    if change is None or change.share is None or len(values) < _LEAST_REQUESTS:
        return None
    span_s, last_s = due_s[-1] - due_s[0], due_s[-1] - due_s[-1 - quarter]
    if quarter * span_s > thresholds.DENSER * len(values) * last_s:
        return None
    if change.first < thresholds.SLOW_END * change.last:
        return None
    return Change(change.last, change.first, 1 - change.share)


def intervals(cell: JudgedCell) -> Findings:
    """Find means and throughputs that are known badly, or to an extent that nobody can tell."""
    named = {"TTFT": cell.ttft, "TPOT": cell.tpot, "E2E": cell.e2e}
    latencies = {name: values for name, values in named.items() if values is not None}
    yield from _wide_intervals(cell, latencies)
    # Slow stretches that last about as long as the cell: nobody can tell how many more there would
    # be.
    done = cell.completed
    dependence = Dependence.of(done.sent_s, done.last_s, places=cell.load.slots)
    unknown = [name for name, values in latencies.items() if values.ci95["mean"] == [None, None]]
    if unknown and dependence.most_blocks:
        yield finding("interval_unknown", requests=len(done), latencies=unknown)


def _wide_intervals(cell: JudgedCell, latencies: Mapping[str, Distribution]) -> Findings:
    """Find a mean or throughput whose interval is wider than it. A warning where it is the
    throughput of a closed loop, whose load follows its answers: latencies of a queue below
    saturation may vary so.
    """
    steady = cell.numbers.metrics.steady
    if len(cell.completed) < thresholds.WIDE_REQUESTS:
        return
    wide: list[dict[str, Any]] = []
    for name, values in latencies.items():
        low, high = values.ci95["mean"]
        if low is not None and high is not None and high - low > values.mean:
            wide.append({"latency": name, "value_s": values.mean, "low_s": low, "high_s": high})
    case = ""
    if steady is not None and cell.load.is_closed:
        rate = steady.output_tokens_per_s or 0.0
        low, high = steady.ci95["output_tokens_per_s"]
        if low is not None and high is not None and high - low > rate:
            wide.append({"value_per_s": rate, "low_per_s": low, "high_per_s": high})
            case = ".throughput"
    if wide:
        yield finding(f"wide_interval{case}", wide=wide)


def phases_locked(cell: JudgedCell) -> Findings:
    """Find slots of a closed loop that stay together: requests that were sent together end
    together, and so do their successors, so that the same requests wait for each other all the time
    (core.statistics.dependence).
    """
    slots = cell.load.slots
    sent = cell.measured.pick(np.argsort(cell.measured.sent_s, kind="stable"))
    unlike = cell.load.unit != "requests"
    if unlike or spread_between_places(np.diff(sent.sent_s), slots) < thresholds.LOCKED:
        return
    ttft_s = sent.first_s - sent.sent_s
    if not cell.streams or spread_between_places(ttft_s, slots) < thresholds.LOCKED_APART:
        yield finding("phases_locked", slots=slots)
        return
    generations = ttft_s[: len(ttft_s) // slots * slots].reshape(-1, slots)
    low_s, high_s = np.quantile(np.median(generations, axis=0), (0.1, 0.9))
    yield finding("phases_locked.ttft", slots=slots, ttft_low_s=low_s, ttft_high_s=high_s)


def kinds_mixed(cell: JudgedCell) -> Findings:
    """Find answers of two kinds in turn: nothing lies between their paces, the faster ones also
    begin sooner or take much shorter steps, and neither prompts nor lengths tell them apart. An
    engine serves those that are under way together at one pace.
    """
    done = _in_order(cell.completed)
    done = done.pick((done.output_tokens >= thresholds.KINDS_TOKENS) & (done.last_s > done.first_s))
    if not cell.streams or len(done) < _LEAST_CLOSED or len(cell.replicas) > 1:
        return
    ttft_s = done.first_s - done.sent_s
    pace_s = (done.last_s - done.first_s) / (done.output_tokens - 1)
    block = len(done) // BLOCKS
    middle_s = np.sort(pace_s)[block - 1 : 1 - block]
    gaps = middle_s[1:] / middle_s[:-1]
    if gaps.max() < thresholds.KINDS_APART:
        return
    fast = pace_s <= middle_s[gaps.argmax()]
    rows = cell.plan_rows(done)
    for lengths in (cell.plan.input_tokens[rows], cell.plan.output_tokens[rows]):
        means = (float(lengths[fast].mean()) + 1, float(lengths[~fast].mean()) + 1)
        if max(means) >= thresholds.LENGTHS_RATIO * min(means):
            return
    by_chance = 2 * fast.sum() * (~fast).sum()
    in_turn = np.count_nonzero(np.diff(fast)) * len(fast) >= thresholds.KINDS_IN_TURN * by_chance
    sooner = np.quantile(ttft_s[fast], 0.75) < np.quantile(ttft_s[~fast], 0.25)
    fast_s, slow_s = (arrays.drop_missing(done.step_s[kind]) for kind in (fast, ~fast))
    shorter = len(fast_s) * len(slow_s) > 0 and np.quantile(slow_s, 0.1) >= (
        thresholds.KINDS_STEPS * np.quantile(fast_s, 0.9)
    )
    if in_turn and (sooner or shorter):
        yield finding(
            "kinds_mixed.others"
            if sooner and gaps.max() >= thresholds.KINDS_OTHERS
            else "kinds_mixed",
            fast=fast.sum(),
            answers=len(fast),
            fast_ttft_s=np.median(ttft_s[fast]),
            fast_pace_s=np.median(pace_s[fast]),
            slow_ttft_s=np.median(ttft_s[~fast]),
            slow_pace_s=np.median(pace_s[~fast]),
        )


def paces_apart(cell: JudgedCell) -> Findings:
    """Find answers that are under way together at paces of their own, each at another: something
    replays them, or many machines answer. An engine's steps are those of all that it serves.
    """
    done = _in_order(cell.completed)
    done = done.pick(done.step_s > thresholds.BUNCHED_S)
    if not cell.streams or len(done) < _LEAST_CLOSED or len(cell.replicas) > 1:
        return
    together = done.sent_s[1:] < done.last_s[:-1]
    apart = np.abs(np.diff(np.log(done.step_s)))[together]
    if 2 * len(apart) >= len(done) and apart.mean() >= thresholds.PACES_APART:
        low_s, high_s = np.quantile(done.step_s, [0.1, 0.9])
        yield finding("paces_apart", times=math.exp(apart.mean()), low_s=low_s, high_s=high_s)


def _in_order(requests: RequestTable) -> RequestTable:
    """Sort requests by when they were due, without those that have no such time or no arrivals."""
    due_s = requests.due_s
    order = np.argsort(due_s, kind="stable")
    timed = ~np.isnan(due_s) & ~np.isnan(requests.first_s)
    return requests.pick(order[timed[order]])
