"""Errors of bounded figures: their draws, and what slower engines do under a load."""

from __future__ import annotations

import dataclasses
import math

import msgspec
import numpy as np
import pytest

from loadstone.calibrate.cases import case_of, predict_latencies
from loadstone.calibrate.points import Point
from loadstone.calibrate.update import update
from loadstone.catalogue import parse_deployment
from loadstone.core.statistics.distribution import Z80
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import fleet_of
from loadstone.predict.simulator.uncertainty import (
    Margins,
    PredictionError,
    bound_factors,
    cell_uncertainties,
    estimate_error,
    intervals,
    median_figures,
)
from loadstone.predict.step_time import StepModel
from loadstone.predict.step_time.coefficients import HOST, NAMES
from loadstone.predict.step_time.profile import profile_of, rows_of
from loadstone.workload.option_fields import options_of
from loadstone.workload.options import SimulateOptions
from loadstone.workload.planning import Planner

FLOORS = {"product_s", "layer_s"}
FLEET = fleet_of(parse_deployment("llama-3.1-8b@1xh100/tp1,engine=vllm"))


def factors_under(
    load: dict[str, object], *slo: str, spread: float = 0.2
) -> dict[str, list[float]]:
    given = {
        "deployment": "",
        "input": "1024",
        "output": "128",
        "requests": [600],
        "warmup": 0,
    } | load
    plan = Planner(options_of(given, SimulateOptions)).plan()
    error = PredictionError(np.zeros(2), np.diag([0.1**2, spread**2]))
    return bound_factors(plan, run_cell(plan, 0, FLEET, grace_s=math.inf), FLEET, slo, error)


@pytest.mark.parametrize("spread", [0.05, 0.3])
def test_draws_have_the_interval_of_a_normal_and_are_always_the_same(spread: float) -> None:
    error = PredictionError(np.array([0.1, 0.0]), np.diag([spread**2, spread**2]))
    for at, mean in enumerate(error.mean):
        logs = np.log(error.draw_factors()[:, at]) - mean
        assert np.quantile(logs, (0.1, 0.9)).tolist() == pytest.approx(
            [-Z80 * spread, Z80 * spread], rel=0.15
        )
        assert abs(np.median(logs)) < 0.1 * spread
    assert (error.draw_factors() == error.draw_factors()).all()


def test_in_a_closed_loop_a_slow_engine_is_slow_and_nothing_else() -> None:
    drawn = PredictionError(np.zeros(2), np.diag([0.1**2, 0.2**2])).draw_factors()
    found = factors_under({"concurrency": [16]}, "tpot_p99", "ttft_p99")
    assert found["tpot_p99"] == pytest.approx(drawn[:, 1].tolist())
    assert found["ttft_p99"] == pytest.approx(drawn[:, 0].tolist())


def test_at_a_rate_a_slow_engine_has_a_larger_batch_and_at_last_does_not_keep_up() -> None:
    drawn = PredictionError(np.zeros(2), np.diag([0.1**2, 0.2**2])).draw_factors()[:, 1]
    idle, busy = (
        np.array(factors_under({"rate": [rate]}, "tpot_p99")["tpot_p99"]) for rate in (1.0, 25.0)
    )
    slow = (drawn > 1.2) & (drawn < 1.4)
    assert np.median(idle[slow] / drawn[slow]) < np.median(busy[slow] / drawn[slow])
    assert (np.sort(busy)[np.argsort(np.argsort(drawn))] == busy).all()


def test_the_error_of_a_run_is_that_of_coefficients_and_what_remains() -> None:
    given = {"deployment": "", "input": "1024", "output": "128", "requests": [200], "rate": [5.0]}
    plan = Planner(options_of(given, SimulateOptions)).plan()
    error = estimate_error(run_cell(plan, 0, FLEET), FLEET)
    assert (np.sqrt(np.diag(error.covariance)) > 0.05).all()
    assert np.linalg.eigvalsh(error.covariance).min() >= 0


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_what_no_measurement_covers_is_wide_within_reason(engine: str) -> None:
    """Twice as wide in ln: what a fit has left of a small term does not drown all others."""
    deployment = parse_deployment(f"llama-3.1-8b@1xmi300x/tp1,engine={engine}")
    fleet = fleet_of(deployment)
    given = {
        "deployment": "",
        "input": "1024",
        "output": "128",
        "requests": [64],
        "concurrency": [32],
    }
    plan = Planner(options_of(given, SimulateOptions)).plan()
    run = run_cell(plan, 0, fleet, grace_s=math.inf)
    spreads = np.sqrt(np.diag(estimate_error(run, fleet).covariance))
    (found,) = cell_uncertainties(plan, fleet, 24)
    for name, spread in zip(("ttft_s", "tpot_s"), spreads, strict=True):
        low, high = found.intervals[name]
        assert math.exp(-4 * spread) < low < 1 < high < math.exp(4 * spread)


def test_intervals_lie_around_the_prediction() -> None:
    """Of times that are each known to a factor, the sum is drawn above the best more than below it:
    the prediction stays in the middle of the draws."""
    given = {"deployment": "", "input": "256", "output": "64", "requests": [40], "concurrency": [4]}
    plan = Planner(options_of(given, SimulateOptions)).plan()
    profile = msgspec.structs.replace(
        FLEET.model.profile,
        covariance=rows_of(np.diag([1.0 if name in HOST | FLOORS else 0.0 for name in NAMES])),
    )
    fleet = dataclasses.replace(FLEET, model=StepModel(FLEET.model.deployment, profile))
    drawn = fleet.draws(64, 0)
    low, high = intervals(plan, 0, fleet, drawn, Margins({"tpot": 0.01, "ttft": 0.01}))["tpot_s"]
    best, *figures = (
        median_figures(run_cell(plan, 0, deployed, grace_s=0.0)) for deployed in (fleet, *drawn)
    )
    logs = np.log([figure["tpot_s"] / best["tpot_s"] for figure in figures])
    assert np.median(logs) > 0.02
    ends = np.quantile(logs, (0.1, 0.9)) - np.median(logs)
    assert np.log([low, high]) == pytest.approx(ends, abs=0.06)


def test_what_a_calibration_cannot_see_stays_in_its_intervals() -> None:
    """Two loads that the model meets exactly do not show what it lacks in others."""
    cases = [case_of(Point(row=1, deployment="llama-3.1-8b@1xh100/engine=vllm", input_tokens=256,
                           output_tokens=32, load="concurrency", load_value=users, requests=4 * users,
                           ttft_s=0.03, tpot_s=0.007)) for users in (1, 8)]  # fmt: skip
    for _ in range(2):
        ttft_s, tpot_s = zip(*(predict_latencies(case) for case in cases), strict=True)
        for case, ttft, tpot in zip(cases, ttft_s, tpot_s, strict=True):
            case.point = msgspec.structs.replace(case.point, ttft_s=ttft, tpot_s=tpot)
    profile = update(profile_of(cases[0].worker), cases, "exact", "2026-11-28").profile
    assert profile.residual["ttft"] == 0.18
    assert profile.residual["tpot"] == 0.03
