"""Rules that end a cell: what they read, how often their intervals are wrong, and what ends
what."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from loadstone.analyse.stopping import (
    Stopping,
    Watch,
    evidence_against,
    interval_of,
    parse_rules,
    sequential_ranks,
)
from loadstone.core.errors import InputError
from loadstone.core.record import WatchedRequest
from loadstone.core.statistics import Dependence, percentile_bounds


def requests(
    count: int, spread: float = 0.05, places: int = 1, seed: int = 0
) -> list[WatchedRequest]:
    """Of a closed loop; TTFT about 0.1 s, TPOT about 10 ms."""
    draw = np.random.default_rng(seed)
    ttft, tpot = (
        0.1 * np.exp(spread * draw.standard_normal(count)),
        0.01 * np.exp(spread * draw.standard_normal(count)),
    )
    return [
        WatchedRequest(
            float(i // places),
            i // places + 0.9,
            float(ttft[i]),
            float(tpot[i]),
            float(ttft[i] + 0.5),
        )
        for i in range(count)
    ]


def test_rules_are_read() -> None:
    rules = parse_rules(" tpot_p50±2%, ttft_p99+-10%,e2e_p90+/-.5%")
    assert [(rule.metric, rule.percentile, rule.within) for rule in rules] == [
        ("tpot", "p50", 0.02), ("ttft", "p99", 0.1), ("e2e", "p90", 0.005),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tpot±2%",
        "ttft_p99<500",
        "tpot_p50",
        "tpot_p50±2",
        "tpot_p50±0%",
        "tpot_p50±100%",
        "itl_p50±2%",
    ],
)
def test_what_is_no_rule_is_one_line(text: str) -> None:
    with pytest.raises(InputError, match=r"is no rule; write e\.g\."):
        parse_rules(text)


def test_the_evidence_is_a_martingale() -> None:
    """Its mean after one more trial is what it was, whatever came before."""
    for count, n, q in ((0, 0, 0.5), (3, 10, 0.5), (40, 41, 0.9), (0, 200, 0.01)):
        after = q * math.exp(evidence_against(count + 1, n + 1, q)) + (1 - q) * math.exp(
            evidence_against(count, n + 1, q)
        )
        assert after == pytest.approx(math.exp(evidence_against(count, n, q)), rel=1e-9)


def test_ranks_are_those_without_evidence_against_them() -> None:
    for n in (1, 5, 30, 400, 3000):
        for q in (0.5, 0.9, 0.99):
            held = [k for k in range(n + 1) if evidence_against(k, n, q) < math.log(20)]
            assert held == list(range(held[0], held[-1] + 1))
            low, high = sequential_ranks(n, q)
            assert (low or 0, (high or n + 1) - 1) == (held[0], held[-1])


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
def test_intervals_hold_at_all_looks_together(q: float) -> None:
    """A look after each of 1,500 requests: wrong at any of them in 5 % of the runs at most; others
    are far off."""
    draw, looks, runs = np.random.default_rng(1), 1500, 1500
    below = np.cumsum(draw.random((runs, looks)) <= q, axis=1)

    def missed(ranks: Any) -> float:
        bounds = [ranks(n, q) for n in range(1, looks + 1)]
        low = np.array([each[0] or 0 for each in bounds])
        high = np.array([each[1] or looks + 1 for each in bounds])
        return float(((below < low) | (below >= high)).any(axis=1).mean())

    assert 0.005 < missed(sequential_ranks) <= 0.05
    assert missed(percentile_bounds) > 0.15


def test_intervals_hold_where_a_run_stops_though_requests_depend_on_one_another() -> None:
    draw, places, wrong, ends = np.random.default_rng(2), 8, 0, 0
    for _ in range(60):
        shared = draw.standard_normal(1000)
        for i in range(1, len(shared)):
            shared[i] = 0.5 * shared[i - 1] + math.sqrt(0.75) * shared[i]
        values = np.exp(
            0.1 * np.repeat(shared, places) + 0.1 * draw.standard_normal(len(shared) * places)
        )
        generation = np.repeat(np.arange(1000.0), places)
        n = 50
        while n < len(values):
            known = interval_of(
                values[:n], "p50", Dependence.of(generation[:n], generation[:n] + 1, places=places)
            )
            if known is not None and known.is_within(0.04):
                assert known.low is not None
                assert known.high is not None
                ends += 1
                wrong += not known.low <= 1 <= known.high
                break
            n = int(n * 1.1)
    assert ends > 50
    assert wrong <= 6  # 5 % of 60, and what chance adds


def test_a_cell_ends_when_all_of_its_rules_hold() -> None:
    rules = parse_rules("tpot_p50±2%,ttft_p90±5%")
    watch = Watch(Stopping(rules, least_s=5.0))
    assert watch.look(9.0, 20, 0, requests(20)) is None
    enough = requests(4000)
    assert watch.look(4.9, 4000, 0, enough) is None  # its shortest time
    stop = watch.look(5.0, 4000, 0, enough)
    assert stop is not None
    assert stop.rule == "precise"
    assert "tpot_p50±2%: 9.99 ms, between 9.97" in stop.evidence
    assert stop.evidence.endswith("after 4000 requests")
    assert watch.over(enough) is None


def test_a_cell_that_ends_before_is_imprecise() -> None:
    watch = Watch(Stopping(parse_rules("ttft_p99±1%"), most_s=10.0))
    assert watch.look(9.9, 50, 0, requests(50)) is None
    stop = watch.look(10.0, 50, 0, requests(50))
    assert stop is not None
    assert stop.rule == "imprecise"
    assert "and unknown; after 50 requests" in stop.evidence
    over = Watch(Stopping(parse_rules("ttft_p99±1%"))).over([])
    assert over is not None
    assert "no request has one" in over.evidence


def test_the_longest_time_ends_a_cell_without_rules() -> None:
    stop = Watch(Stopping(most_s=3.0)).look(3.1, 5, 5, [])
    assert stop is not None
    assert (stop.rule, stop.evidence) == ("time", "the longest time of 3 s was over")


@pytest.mark.parametrize(
    ("failed", "ended", "share", "ends"),
    [(0, 500, 0.05, False), (3, 4, 0.05, False), (12, 12, 0.05, True), (30, 500, 0.05, False), (60, 500, 0.05, True),
     (1, 500, 0.0, True), (0, 500, 0.0, False)],
)  # fmt: skip
def test_too_many_errors_end_a_cell(failed: int, ended: int, share: float, ends: bool) -> None:
    stop = Watch(Stopping(most_errors=share)).look(1.0, ended, failed, [])
    assert (stop is not None) == ends
    if stop is not None:
        assert stop.rule == "errors"
        assert f"{failed} of {ended} requests failed" in stop.evidence


def test_a_server_at_the_limit_is_seldom_stopped() -> None:
    """Of a server of which 5 % fail, one cell in twenty ends at most, however long it is looked
    at."""
    draw = np.random.default_rng(3)
    failures = np.cumsum(draw.random((300, 800)) < 0.05, axis=1)
    watch = Watch(Stopping(most_errors=0.05))
    ended = [
        any(watch.look(1.0, n, int(run[n - 1]), []) for n in range(1, 801, 7)) for run in failures
    ]
    assert np.mean(ended) <= 0.05
