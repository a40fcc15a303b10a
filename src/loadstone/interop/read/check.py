"""Checks that a file's own numbers fit together: each rule gives a finding where they cannot all be
true."""

import math
from collections.abc import Mapping
from itertools import pairwise

from loadstone.core.units import show_number, show_seconds
from loadstone.interop.read.cell import NO_TIME, NO_TOKENS, ResultCell

SUM_SHARE = 0.02
"""E2E and TTFT + TPOT·(n − 1) may differ by this share of E2E: clients end E2E with the stream,
TPOT with a token."""
QUOTIENT_SHARE = 0.02
"""A throughput and its count over the duration may differ by this share: some clients stop the
clock elsewhere."""
UNDER_WAY_SHARE = 0.05
"""The share by which requests under way and Σ E2E/duration may differ (Little's law)."""
UNFILLED_SHARE = 0.5
"""The share of a closed loop's slots that are filled in the mean: below it the load was another
one. Ramps take some.
"""
RATE_SHARE = 0.1
"""The share by which requests sent per second and the stated rate may differ, beyond RATE_SPREADS
standard deviations of chance."""
RATE_SPREADS = 4.0
RATE_REQUESTS = 20
LATE_SHARE = 0.25
"""A run of an open loop lasts longer than its sends by at most this share of them, beyond twice
that of chance."""
WAIT_SPREAD = 1.5
"""The p99 of TTFT over its median: of a growing queue it is 2, and the median half of the time
after the sends.
"""
LONGEST = 3.0
"""The longest E2E over its p99, at most: the last request may take as long."""
ROUNDING = 1e-3
OTHER_UNIT = 30.0
"""The ratio from which two times of one thing are in different units: a thousand is usual, and
unlike lengths do not come to this."""
OTHER_FILL = 4.0
"""The ratio from which requests under way and places are another load's, or in another unit."""
LEAST_TPOT_S = 2e-5
"""The least seconds a token: the fastest machines that are sold take ten times as long."""
LEAST_TTFT_S = 1e-4
"""The least seconds to a first token: a request and its answer alone take longer on one machine."""
PROMPT_SPEED, PART_OF_A_STEP = 5e5, 3.0
"""Tokens a second, from which a prompt is computed in no time if its TTFT is also a small part of a
token's; a prompt from a cache takes a step, too."""
LEAST_TOKENS = 4
"""Tokens from which TPOT and all of an answer's time are not mistaken for one another."""

_QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
_ORDER = ("min", "p50", "p90", "p95", "p99", "max")
_LABELS = {
    "ttft_s": "TTFT",
    "tpot_s": "TPOT",
    "itl_s": "ITL",
    "e2e_s": "E2E",
}
_NOUNS = {
    "output_tokens_per_s": "output tokens",
    "total_tokens_per_s": "tokens in and out",
    "requests_per_s": "requests",
}


def check(cell: ResultCell) -> None:
    """Add findings to `cell`; take out what cannot be (negative times)."""
    _check_impossible(cell)
    _check_unmeasured(cell)
    _check_failed(cell)
    _check_fewer(cell)
    for name, stated in cell.latencies.items():
        _check_order(cell, name, stated)
        _check_spread(cell, name, stated)
    _check_sum(cell)
    _check_units(cell)
    _check_clock(cell)
    _check_quotients(cell)
    _check_under_way(cell)
    _check_rate(cell)
    _check_pace(cell)
    _check_empty(cell)


def _check_impossible(cell: ResultCell) -> None:
    for name, stated in cell.latencies.items():
        negative = sorted(statistic for statistic, value in stated.items() if value < 0)
        if negative:
            cell.say("negative_time", f"{_LABELS[name]} {', '.join(negative)} below 0; left out")
            for statistic in negative:
                del stated[statistic]


def _check_unmeasured(cell: ResultCell) -> None:
    """Leave out latencies that are 0 throughout: vLLM's and SGLang's clients write 0 for the mean
    and all else of no sample: where every request failed, or none had a second token. A measured
    latency is never 0 throughout.
    """
    cell.latencies = {
        name: stated
        for name, stated in cell.latencies.items()
        if not stated or any(stated.values())
    }
    if cell.completed == 0:
        cell.say("none_completed", "no request completed: there is nothing to measure")
    elif not cell.records and not cell.latencies and cell.graded is None:
        stated = any(
            cell.totals.get(name) is not None
            for name in ("output_tokens_per_s", "total_tokens_per_s")
        )
        if not stated:
            remedy = "Nothing in it can be compared: ask the source."
            cell.say("no_latencies", "states no latency, and no tokens per second", remedy=remedy)
        elif cell.workload.get("mode") != "offline":
            cell.say(
                "no_latencies", "states no latency", "info", "Only its throughput can be compared."
            )


def _check_failed(cell: ResultCell) -> None:
    """Say what failed, of sums; of requests the verdict says it."""
    failed = sum(cell.requests.get(name) or 0 for name in ("error", "timeout"))
    if failed and not cell.records:
        sent = cell.requests.get("sent") or failed + (cell.completed or 0)
        cell.say("request_errors", f"{failed} of {sent} requests failed")


def _check_fewer(cell: ResultCell) -> None:
    """Find a file of requests that ends early, beside sums of all of them."""
    done = sum(record.phase == "measure" for record in cell.records)
    if cell.records and cell.completed is not None and done < cell.completed:
        cell.say(
            "requests_missing",
            f"{cell.completed} requests completed by its totals, but the file holds {done}",
        )


def _check_order(cell: ResultCell, name: str, stated: Mapping[str, float]) -> None:
    shown = [(statistic, stated[statistic]) for statistic in _ORDER if statistic in stated]
    for (low, smaller), (high, larger) in pairwise(shown):
        if smaller > larger * (1 + ROUNDING):
            evidence = (
                f"{_LABELS[name]} {low} {show_seconds(smaller)} is above {high}"
                f" {show_seconds(larger)}"
            )
            cell.say("percentiles_disordered", evidence)


def _check_spread(cell: ResultCell, name: str, stated: Mapping[str, float]) -> None:
    """Check each quantile against Cantelli's bounds: for any sample with mean μ and standard
    deviation σ (over n), a quantile q lies within μ − σ√((1 − q)/q) and μ + σ√(q/(1 − q)) (Cantelli
    1928); so mean and median are at most σ apart.
    """
    if "mean" not in stated or "std" not in stated:
        return
    mean, std = stated["mean"], stated["std"]
    slack = ROUNDING * abs(mean)
    for statistic, q in _QUANTILES.items():
        lower = mean - std * math.sqrt((1 - q) / q) - slack
        upper = mean + std * math.sqrt(q / (1 - q)) + slack
        if not lower <= stated.get(statistic, mean) <= upper:
            cell.say(
                "spread_impossible",
                f"{_LABELS[name]} {statistic} {show_seconds(stated[statistic])} is impossible with"
                f" a mean of {show_seconds(mean)} and a standard deviation of {show_seconds(std)}",
            )


def _check_sum(cell: ResultCell) -> None:
    """Check that mean E2E = mean TTFT + mean TPOT·(n − 1), where all answers have n tokens.

    Where lengths differ, TPOT and n − 1 may go together, which moves the sum by at most
    σ(TPOT)·σ(n) (Cauchy–Schwarz): of such cells, for σ(n) is not told, only a sum of another order
    of size is.
    """
    length, (_, n) = cell.workload.get("output"), cell.mean_lengths
    ttft, tpot, e2e = (cell.mean(name) for name in ("ttft_s", "tpot_s", "e2e_s"))
    if ttft is None or tpot is None or e2e is None or n is None or n < 2:
        return
    total, decode = ttft + tpot * (n - 1), e2e - ttft
    unlike = n != round(n) if not length else length.get("kind") != "fixed"
    whole = n >= LEAST_TOKENS and abs(tpot - decode) <= SUM_SHARE * decode
    far = whole or decode <= 0 or _are_far(tpot, decode / (n - 1)) or _are_far(total, e2e)
    if far or (not unlike and abs(total - e2e) > SUM_SHARE * e2e):
        also = ": TPOT is all of the time behind the first token" if whole else ""
        cell.say(
            "unit_doubted" if far else "times_do_not_add_up",
            f"mean TTFT {show_seconds(ttft)} + TPOT {show_seconds(tpot)} × {n - 1:.0f} ="
            f" {show_seconds(total)}, but the mean E2E is {show_seconds(e2e)}{also}",
        )


def _check_units(cell: ResultCell) -> None:
    """Find a latency in another unit than it is said to be in: ITL is near TPOT, no engine writes a
    token in no time, the first one takes a step, and no request takes longer than the run; and by
    Little's law no more requests are under way than there are places, and not a small part of
    these.
    """
    prompt, n = cell.mean_lengths
    ttft, tpot, itl, e2e = (cell.mean(name) for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s"))
    if tpot and itl and _are_far(tpot, itl):
        evidence = f"mean TPOT {show_seconds(tpot)} and ITL {show_seconds(itl)} are worlds apart"
        cell.say("unit_doubted", evidence)
    elif tpot and tpot < LEAST_TPOT_S:
        cell.say("unit_doubted", f"no engine writes a token every {show_seconds(tpot)}")
    elif ttft and _is_too_early(ttft, tpot, prompt):
        beside = f" where the others take {show_seconds(tpot)}" if tpot else ""
        cell.say("unit_doubted", f"no first token comes in {show_seconds(ttft)}{beside}")
    done, load = cell.completed, cell.load
    if ttft and tpot and n and not e2e:
        e2e = ttft + tpot * (n - 1)
        under_way = e2e * done / cell.duration_s if done and cell.duration_s else None
        full = load is not None and load.is_closed and done and done >= 2 * load.value
        if full and load and under_way and _are_far(under_way, load.value, OTHER_FILL):
            cell.say(
                "unit_doubted",
                f"by TTFT and TPOT {under_way:.3g} requests were under way on average, not"
                f" {load.value:g}",
            )
    longest = max(filter(None, (ttft, e2e)), default=0.0)
    if cell.duration_s and longest > 2 * cell.duration_s:
        evidence = f"its requests took {show_seconds(longest)} on average"
        cell.say("unit_doubted", f"{evidence}, the run {show_seconds(cell.duration_s)}")


def _is_too_early(ttft: float, tpot: float | None, prompt: float | None) -> bool:
    if ttft < LEAST_TTFT_S or not tpot:
        return ttft < LEAST_TTFT_S
    fast = prompt is not None and prompt > PROMPT_SPEED * ttft and PART_OF_A_STEP * ttft < tpot
    return fast or OTHER_UNIT * ttft < tpot


def _are_far(a: float, b: float, times: float = OTHER_UNIT) -> bool:
    return max(a, b) > times * min(a, b)


def _check_clock(cell: ResultCell) -> None:
    """Find starts of requests that are no moments of this run: all the same, so close that more
    were under way than the load has places, or over another time than the run took.
    """
    measured = [
        record
        for record in cell.records
        if record.phase == "measure" and record.end_s is not None and record.error != NO_TIME
    ]
    load = cell.load
    if cell.relative or len(measured) < 2:
        return
    starts = [record.sent_s or 0.0 for record in measured]
    ends = [record.end_s or 0.0 for record in measured]
    span_s = max(ends) - min(starts)
    cap = None if load is None else load.value if load.is_closed else load.max_concurrency
    alone = load is None or load.is_burst or (load.is_closed and len(starts) <= load.value)
    if min(starts) == max(starts) and not alone:
        cell.say("clock_doubted", f"all {len(starts)} requests were sent at the same time")
    elif cap and sum(ends) - sum(starts) > cap * (1 + UNDER_WAY_SHARE) * span_s:
        cell.say("clock_doubted", f"by their times more than {cap:g} requests were under way")
    elif cell.duration_s and _are_far(span_s, cell.duration_s):
        evidence = f"its requests last {show_seconds(span_s)} from the first to the last"
        cell.say("clock_doubted", f"{evidence}, the run {show_seconds(cell.duration_s)}")


def _check_quotients(cell: ResultCell) -> None:
    for name, count in cell.counts.items():
        rate = cell.totals.get(name)
        if rate is None or count is None or cell.duration_s is None:
            continue
        expected = count / cell.duration_s
        if abs(rate - expected) > QUOTIENT_SHARE * max(expected, rate):
            cell.say(
                "throughput_inconsistent",
                f"{show_number(rate, 4)} {_NOUNS[name]}/s are stated, but {count:,.0f} in "
                f"{show_seconds(cell.duration_s)} are {show_number(expected, 4)}/s",
            )


def _check_under_way(cell: ResultCell) -> None:
    """Check Little's law: mean requests under way = Σ E2E/duration; and no more than the cap."""
    little = cell.mean_under_way
    stated = cell.under_way
    load = cell.load
    if little is None:
        return
    if stated is not None and abs(stated - little) > UNDER_WAY_SHARE * little:
        evidence = f"{stated:.4g} requests under way are stated, but Σ E2E/duration is {little:.4g}"
        cell.say("concurrency_inconsistent", evidence)
    if load is None:
        return
    if load.is_closed and little < UNFILLED_SHARE * load.value:
        evidence = (
            f"{little:.4g} requests were under way on average (Σ E2E/duration), not {load.value:g}"
        )
        cell.say("places_not_filled", evidence)
    cap = int(load.value) if load.is_closed else load.max_concurrency
    if cap is not None and little > cap * (1 + UNDER_WAY_SHARE):
        evidence = (
            f"Σ E2E/duration is {little:.4g} requests under way, but at most {cap} are allowed"
        )
        cell.say("concurrency_inconsistent", evidence)


def _check_rate(cell: ResultCell) -> None:
    """Check that requests of an open loop were sent as often as asked for: (n − 1)/(last − first
    send), which of n arrivals at random is off by 1/√n as a standard deviation. Later turns follow
    their answers, and a cap holds sends back.
    """
    load = cell.load
    if load is None or not load.is_open or load.profile or load.max_concurrency is not None:
        return
    first_turns = [
        record for record in cell.records if record.phase == "measure" and not record.turn
    ]
    sent_per_s = cell.sends_per_s(first_turns)
    if len(first_turns) < RATE_REQUESTS or sent_per_s is None:
        return
    spread = (
        0.0
        if load.process == "constant"
        else RATE_SPREADS / math.sqrt(load.burstiness * len(first_turns))
    )
    if abs(sent_per_s / load.value - 1) > max(RATE_SHARE, spread):
        cell.say(
            "rate_differs", f"{sent_per_s:.4g} requests/s were sent, {load.value:.4g} are stated"
        )


def _check_pace(cell: ResultCell) -> None:
    """Find sums of an open loop whose server did not keep up, so that requests waited ever longer
    for their first token and the last ended long after all were sent; or that took longer than
    requests did, as others were sent.
    """
    load = cell.load
    sent = cell.requests.get("sent") or cell.completed or 0
    ttft = cell.latencies.get("ttft_s", {})
    if (
        load is None
        or not load.is_open
        or load.profile
        or sent < RATE_REQUESTS
        or not cell.duration_s
    ):
        return
    sends_s = sent / load.value
    late_s = cell.duration_s - sends_s
    wait_s = ttft.get("p50")
    e2e_s = cell.latencies.get("e2e_s", {}).get("p99")
    if late_s <= (LATE_SHARE + 2 / math.sqrt(sent)) * sends_s or (
        cell.records and not cell.relative
    ):
        return
    evidence = f"{sent / cell.duration_s:.4g} requests/s ended, {load.value:.4g} are stated"
    if wait_s and wait_s >= late_s / 4 and ttft.get("p99", math.inf) >= WAIT_SPREAD * wait_s:
        cell.say(
            "overload",
            f"{evidence}, and half of them waited {show_seconds(wait_s)} or more for a first token",
        )
    elif e2e_s and late_s > LONGEST * e2e_s:
        cell.say(
            "rate_differs", f"{evidence}, though nearly all took {show_seconds(e2e_s)} or less"
        )


def _check_empty(cell: ResultCell) -> None:
    """Find completed requests without a token, which are failures that were counted as
    successes."""
    empty = sum(record.error == NO_TOKENS for record in cell.records)
    done = cell.completed or len(cell.records)
    if not cell.records and cell.totals.get("output_tokens") == 0:
        empty = done
    if empty:
        cell.say(
            "empty_completed", f"{empty} of {done} requests counted as completed returned no token"
        )
