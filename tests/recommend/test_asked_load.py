"""The load that was asked for: recommend and simulate give one answer to one question."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from asked import planning
from loadstone.catalogue import parse_worker
from loadstone.recommend.judge.asked_load import AskedLoad, simulate_asked
from loadstone.recommend.judge.choices import PlanChoice
from loadstone.recommend.judge.errors import UncertainFinalist, unmeasured_errors
from loadstone.recommend.search.candidates import make_candidate
from loadstone.recommend.search.curve import Curve
from loadstone.runs.simulate import simulate
from loadstone.workload.option_fields import options_of
from loadstone.workload.options import SimulateOptions
from tiers import further

CASES = [
    ("llama-3.1-8b@1xh100/tp1,engine=vllm", 1, {"rate": rate}, slo)
    for rate in (5, 10, 15)
    for slo in ("ttft_p99<300ms,tpot_p99<15ms", "tpot_p50<10ms", "e2e_p90<2s")
]
CASES += [
    (
        "llama-3.1-8b@1xh200/tp1,engine=sglang",
        1,
        {"rate": rate, "input": "4k", "output": "200"},
        "ttft_p95<1s,tpot_p95<25ms",
    )
    for rate in (2, 5, 8)
]
CASES += [
    (
        "llama-3.1-8b@1xh100/tp1,engine=vllm",
        1,
        {"rate": None, "concurrency": users, "range_ratio": 0.7},
        "tpot_p90<12ms,ttft_p90<400ms",
    )
    for users in (8, 32, 64)
]
CASES += [
    (
        "llama-3.1-8b@1xh100/tp1,engine=vllm",
        1,
        {"rate": None, "concurrency": users},
        "ttft_p99<500ms,tpot_p99<27ms",
    )
    for users in (30, 75)
]
CASES += [
    ("llama-3.1-8b@1xh100/tp1,engine=vllm", 2, {"rate": rate}, "ttft_p99<300ms,tpot_p99<15ms")
    for rate in (10, 20, 30)
]
CASES += [
    (
        "llama-3.1-70b:fp8@4xh100/tp4,engine=tensorrt-llm",
        1,
        {"rate": rate},
        "tpot_p99<25ms,ttft_p99<1s",
    )
    for rate in (2, 5)
]


FEW = [CASES[number] for number in (3, 4, 5, 10, 13, 16, 18, 21)]
"""One load of each kind, below what saturates it, and all three bounds at one of them."""
MORE = [case for case in CASES if case not in FEW]


def ask(deployment: str, replicas: int, **changed: object) -> AskedLoad:
    """One plan under the asked load, without choosing it."""
    asked = planning(**({"model": deployment.partition("@")[0]} | changed))
    candidate = make_candidate(parse_worker(deployment), asked)
    finalist = UncertainFinalist(candidate, Curve([], 0.0), None, np.empty(0), np.empty(0))  # type: ignore[arg-type]
    return simulate_asked(PlanChoice(finalist, replicas, 0.0, 0.0, np.empty(0)), asked)


@pytest.mark.parametrize(
    ("deployment", "replicas", "load", "slo"), [*FEW, *further(*MORE, values=4)]
)
def test_recommend_and_simulate_agree(deployment, replicas, load, slo, tmp_path: Path) -> None:
    planned = ask(deployment, replicas, slo=slo, **load)
    given = {"input": "1024", "output": "128"} | load
    rate, users = given.pop("rate"), given.pop("concurrency", None)
    given |= {"rate": [float(rate)]} if rate is not None else {"concurrency": [users]}
    name = (
        deployment
        if replicas == 1
        else deployment.replace("@1x", f"@{replicas}x").replace("tp1", f"tp1,dp{replicas}")
    )
    run = options_of(
        given
        | {
            "deployment": name,
            "slo": slo,
            "requests": [2000],
            "seed": 5,
            "draws": 2,
            "out": tmp_path,
        },
        SimulateOptions,
    )
    (cell,) = simulate(run).cells
    assert planned.p_slo == pytest.approx(cell.slo_probability, abs=0.08)
    assert cell.metrics.tpot_s is not None
    assert planned.tpot_s[0] == pytest.approx(cell.metrics.tpot_s.p50, rel=0.05)


def test_more_at_once_than_any_measurement_covers_is_as_unsure_in_a_plan() -> None:
    known, beyond = (
        ask(
            "llama-3.1-8b@1xh100/tp1,engine=vllm",
            1,
            rate=None,
            concurrency=users,
            output="16",
            slo="e2e_p99<60s",
        )
        for users in (500, 600)
    )
    assert np.diag(beyond.error.covariance) / np.diag(known.error.covariance) == pytest.approx(
        4.0, rel=0.1
    )


@pytest.mark.parametrize(("users", "wider"), [(500, 1.0), (600, 4.0)])
def test_the_errors_by_which_plans_are_chosen_have_it_too(users: int, wider: float) -> None:
    variances = []
    for each in (100, users):
        asked = planning(rate=None, concurrency=each, input="128", output="200", slo="e2e_p99<60s")
        candidate = make_candidate(parse_worker("llama-3.1-8b@1xh100/tp1,engine=vllm"), asked)
        one = candidate._replace(load=float(each), replicas=1)
        variances.append(np.diag(unmeasured_errors([one], asked).covariance))
    assert variances[1] / variances[0] == pytest.approx(wider, rel=0.1)


@pytest.mark.parametrize("users", [300, 3000])
def test_short_prompts_under_wide_bounds_are_carried_by_some_replicas(users: int) -> None:
    """Beyond what an engine has time for the closed form knows no number of users."""
    asked = planning(
        rate=None, concurrency=users, input="128", output="200", slo="e2e_p99<60s", gpus_max=64
    )
    candidate = make_candidate(parse_worker("llama-3.1-8b@1xh100/tp1,engine=vllm"), asked)
    assert 1 <= candidate.replicas <= users / 100
