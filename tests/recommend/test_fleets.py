"""A plan is judged as it will run: all its replicas, their router, warm caches, sessions out of
step."""

from __future__ import annotations

import math

import numpy as np
import pytest

from asked import planning, plans
from loadstone.catalogue import parse_deployment, parse_worker
from loadstone.predict.simulator.fleet import fleet_of
from loadstone.predict.simulator.latencies import answered_rows, latencies_s
from loadstone.predict.simulator.uncertainty import PredictionError, bound_factors
from loadstone.recommend.demand.effort import Effort
from loadstone.recommend.demand.sessions import run_steady
from loadstone.recommend.judge.asked_load import AskedLoad, simulate_asked
from loadstone.recommend.judge.choices import PlanChoice
from loadstone.recommend.judge.errors import UncertainFinalist, unmeasured_errors
from loadstone.recommend.search.candidates import make_candidate
from loadstone.recommend.search.curve import Curve
from loadstone.recommend.tell.text import answer

pytestmark = pytest.mark.long

ONE = "llama-3.1-8b@1xh100/tp1,engine=vllm"
TALKS = {
    "rate": None, "concurrency": 240, "turns": "6", "think_time": "6s", "input": "1500", "output": "200",
    "slo": "ttft_p90<1s,tpot_p90<30ms",
}  # fmt: skip
PREFIXES = {"input": "5k", "prefix": "4k", "prefix_groups": 60, "output": "64", "rate": 24}


def ask(replicas: int, **changed: object) -> AskedLoad:
    """So many replicas under the asked load."""
    asked = planning(**changed)
    candidate = make_candidate(parse_worker(ONE), asked)
    error = unmeasured_errors([candidate], asked).marginal(0)
    finalist = UncertainFinalist(candidate, Curve([], 0.0), error, np.empty(0), np.empty(0))
    return simulate_asked(PlanChoice(finalist, replicas, 0.0, 0.0, np.empty(0)), asked)


def test_the_router_of_a_plan_is_the_one_that_keeps_its_sessions() -> None:
    likely = {
        route: ask(5, **TALKS, route=route).p_slo for route in ("least-busy", "prefix", "hashed")
    }
    assert likely["least-busy"] < 0.25 * max(likely.values())
    found = ask(5, **TALKS)
    assert (found.side_by_side, found.p_slo) == (5, likely[found.route])
    assert likely[found.route] > max(likely.values()) - 0.05
    assert found.sessions.cached_share > 0.6


def test_without_anything_to_find_the_least_busy_takes_it() -> None:
    asked = {"rate": 50, "input": "uniform:64:6000", "output": "uniform:16:500"}
    found = ask(6, **asked, slo="ttft_p99<1s,tpot_p99<30ms")
    assert (found.route, found.side_by_side) == ("least-busy", 6)
    in_turn = ask(6, **asked, slo="ttft_p99<1s,tpot_p99<30ms", route="round-robin")
    assert in_turn.route == "round-robin"
    assert in_turn.ttft_s[1] > found.ttft_s[1]


@pytest.mark.parametrize("route", ["least-busy", "prefix"])
def test_more_replicas_with_warm_caches_are_no_worse(route: str) -> None:
    """Sixty prefixes on eight replicas: what is computed once is no part of the traffic."""
    few, many = (ask(replicas, **PREFIXES, route=route) for replicas in (4, 12))
    assert many.p_slo >= few.p_slo
    assert many.ttft_s[1] <= few.ttft_s[1]
    alone = ask(4, **PREFIXES | {"prefix_groups": 1}, route="least-busy")
    assert many.ttft_s[0] == pytest.approx(alone.ttft_s[0], rel=0.5)


@pytest.mark.parametrize("pause_s", [20, 60])
def test_pauses_of_one_length_keep_no_sessions_in_step(pause_s: int) -> None:
    tails = []
    for think in (f"{pause_s}s", f"uniform:{pause_s * 0.9}s:{pause_s * 1.1}s"):
        asked = planning(**TALKS | {"concurrency": 24, "think_time": think})
        candidate, sessions = make_candidate(parse_worker(ONE), asked), asked.traffic.sessions
        assert sessions is not None
        plan = sessions.draw(24, candidate.level, Effort(), is_open=False)
        rows = answered_rows(run_steady(plan, fleet_of(parse_deployment(ONE))))
        tails.append(float(np.quantile(latencies_s(rows)["ttft_s"], 0.9)))
    assert tails[0] == pytest.approx(tails[1], rel=0.3)


def test_a_slow_engine_has_more_sessions_that_wait_at_once() -> None:
    """Their pauses stay as long: of a closed loop without any, all times are as much longer."""
    error = PredictionError(np.zeros(2), np.diag([0.1**2, 0.3**2]))
    slow = error.draw_factors()[:, 1] > math.exp(0.3)
    longer = {}
    for think in ("0s", "6s"):
        asked = planning(**TALKS | {"concurrency": 150, "input": "300", "think_time": think})
        candidate, sessions = make_candidate(parse_worker(ONE), asked), asked.traffic.sessions
        assert sessions is not None
        plan = sessions.draw(150, candidate.level, Effort(), is_open=False)
        fleet = fleet_of(parse_deployment(ONE))
        found = bound_factors(plan, run_steady(plan, fleet), fleet, ["tpot_p90"], error)
        longer[think] = np.median(np.array(found["tpot_p90"])[slow] / error.draw_factors()[slow, 1])
    assert longer["0s"] == pytest.approx(1.0, rel=0.03)
    assert longer["6s"] > 1.05


def test_the_router_is_said_and_started() -> None:
    document = plans(**TALKS | {"concurrency": 120}, gpus_max=16)
    first = document.plans[0]
    assert first.route in ("prefix", "hashed")
    assert "behind a router by" in answer(document)
    policy = {"prefix": "cache_aware", "hashed": "consistent_hash"}[first.route]
    (line,) = [line for line in first.launch if "--worker-urls" in line]
    assert f"vllm-router --policy {policy} " in line
    assert line.count("http://replica") == first.replicas > 1


def test_with_misses_for_nothing_confidence_alone_decides() -> None:
    asked = {"rate": 90, "gpus_max": 32, "slo": "ttft_p99<1s,tpot_p99<30ms"}
    least, surer = plans(**asked, miss_cost=0.0).plans[0], plans(**asked, miss_cost=6.0).plans[0]
    assert least.one_fewer is not None
    assert least.one_fewer.replicas == least.replicas - 1
    assert least.one_fewer.p_slo < 0.8 <= least.p_slo
    assert "below the 80% asked for" in least.one_fewer.why
    assert surer.replicas > least.replicas
    assert surer.one_fewer is not None
    assert surer.one_fewer.p_slo >= 0.8
    assert "a month of expected misses" in surer.one_fewer.why
