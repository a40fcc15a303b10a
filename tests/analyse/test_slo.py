"""How sure is it that a bound holds: over the chance in a cell, and over what a performance model
may be off by."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadstone import simulate
from loadstone.analyse.slo import BoundedCell
from loadstone.core.bounds import Bound
from loadstone.core.errors import InputError
from loadstone.core.metrics import Latency, Metrics, Requests
from loadstone.core.plan import Load
from loadstone.core.statistics import distribution

CLOSED = Load("concurrency", 4)


def measured(values: np.ndarray, failed: int = 0) -> tuple[Requests, Metrics]:
    n = len(values)
    return Requests(sent=n + failed, ok=n, short=0), Metrics(
        tpot_s=Latency.of(distribution(values))
    )


def p_met(values: np.ndarray, bound: str, limit_s: float, **options: Any) -> float | None:
    (result,) = BoundedCell(CLOSED, *measured(values), **options).judge([Bound(bound, limit_s)])
    return result.p_met


@pytest.mark.parametrize("bound", ["tpot_p50", "tpot_p90", "tpot_p99"])
def test_the_probability_is_that_of_the_truth_over_many_cells(bound: str) -> None:
    """Of cells whose percentile is truly at its bound, p is as often above ½ as below; truly far
    away, it is sure."""
    rng = np.random.default_rng(0)
    quantile = {"tpot_p50": 0.5, "tpot_p90": 0.9, "tpot_p99": 0.99}[bound]
    truth = 0.02 - 0.005 * np.log(1 - quantile)
    found = [p_met(0.02 + rng.exponential(0.005, 400), bound, truth) or 0.0 for _ in range(400)]
    assert 0.4 < np.mean(np.array(found) > 0.5) < 0.65
    # Uniform where it is calibrated: as many below 0.1 as below a tenth of them.
    assert np.mean(np.array(found) < 0.1) < 0.2
    values = 0.02 + rng.exponential(0.005, 400)
    # A sample of n can say 1 − qⁿ at most: of a p99 98.2 % after 400.
    assert (p_met(values, bound, 2 * truth) or 0) > 0.99 * (1 - quantile**400)
    assert (p_met(values, bound, truth / 1.5) or 0) < 0.01


def test_what_the_model_may_be_off_by_is_in_it() -> None:
    values = np.full(400, 0.0351)
    assert p_met(values, "tpot_p99", 0.04) == pytest.approx(1 - 0.99**400)
    off = np.exp(np.linspace(-0.5, 0.5, 25)).tolist()
    p = p_met(values, "tpot_p99", 0.04, factors_of={"tpot_p99": off}.get)
    assert p == np.mean([0.0351 * each <= 0.04 for each in off])
    assert p_met(values, "tpot_p99", 0.04, factors_of=lambda name: None) is None  # --draws 0


@pytest.mark.parametrize(("other", "both"), [("same", 0.6), ("opposite", 0.2)])
def test_all_bounds_hold_in_the_draws_in_which_each_does(other: str, both: float) -> None:
    """TPOT and TTFT break together where one engine is slow in both: it is no product of two
    probabilities."""
    values = Latency.of(distribution(np.full(400, 0.01)))
    metrics, slo = (
        Metrics(tpot_s=values, ttft_s=values),
        [Bound("tpot_p99", 0.01), Bound("ttft_p99", 0.01)],
    )
    slow = [0.5] * 6 + [2.0] * 4
    factors = {"tpot_p99": slow, "ttft_p99": slow if other == "same" else slow[::-1]}.get
    cell = BoundedCell(CLOSED, Requests(sent=400, ok=400), metrics, factors)
    bounds = cell.judge(slo)
    assert [each.p_met for each in bounds] == pytest.approx([0.6, 0.6])
    assert cell.probability(bounds) == pytest.approx(both)


def test_two_bounds_are_as_sure_together_as_the_requests_allow() -> None:
    """Forty requests within both limits are forty tries of which none missed either."""
    values = Latency.of(distribution(np.linspace(0.01, 0.012, 40)))
    metrics = Metrics(tpot_s=values, ttft_s=values)
    slo = [Bound("tpot_p99", 0.1), Bound("ttft_p99", 0.1)]
    cell = BoundedCell(CLOSED, Requests(sent=40, ok=40), metrics)
    bounds = cell.judge(slo)
    most = pytest.approx(1 - 0.99**40)
    assert [(bound.p_met, bound.p_most) for bound in bounds] == [(most, most)] * 2
    assert all(bound.is_short_of_requests for bound in bounds)
    assert cell.probability(bounds) == most


def test_a_bound_on_every_request_is_one_on_the_slowest() -> None:
    values = np.linspace(0.01, 0.03, 200)
    (result,) = BoundedCell(CLOSED, *measured(values)).judge([Bound("tpot", 0.03)])
    assert (result.bound, result.value, result.met) == ("tpot<30ms", 0.03, True)
    assert result.p_met is not None
    assert 0.4 < result.p_met < 0.6  # the next cell's slowest is as likely slower
    (result,) = BoundedCell(CLOSED, *measured(values, failed=1)).judge([Bound("tpot", 0.03)])
    assert (result.met, result.p_met) == (False, 0.0)


def test_a_simulation_says_how_likely_its_bounds_hold(tmp_path: Path) -> None:
    """A bound at what is predicted is as likely missed as met, with a model that is off by a
    third."""
    options = {"rate": [4.0], "requests": [60], "out": tmp_path, "input": "256", "output": "32"}
    (plain,) = simulate("llama-3.1-8b@1xh100", **options).document()["cells"]
    p50 = plain["metrics"]["tpot_s"]["p50"]
    slo = f"tpot_p50<{p50 * 1e3:.6f}ms,tpot_p99<{20 * p50:.4f}s,ttft<1h"
    document = simulate("llama-3.1-8b@1xh100", **options, slo=slo).document()
    (cell,) = document["cells"]
    at, far, every = cell["slo"]
    assert 0.3 < at["p_met"] < 0.7
    assert far["p_met"] > 0.99
    assert every["p_met"] > 0.99
    assert (
        json.loads((Path(document["run_dir"]) / "summary.json").read_text())["cells"][0]["slo"]
        == cell["slo"]
    )


def test_the_time_of_a_session_is_bounded_where_there_are_sessions(tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "input": "512",
        "output": "32",
        "concurrency": 4,
        "requests": 24,
        "draws": 8,
    }
    talks = asked | {"turns": "3", "think_time": "2s"}
    (cell,) = simulate(
        "llama-3.1-8b@1xh100", **talks, slo="task_p90<60s", out=tmp_path / "met"
    ).document()["cells"]
    (bound,) = cell["slo"]
    assert bound["value"] == cell["sessions"]["task_s"]["p90"] > 4  # two pauses
    assert bound["met"]
    # Where users pause, an engine that is thirteen times slower is simulated: it breaks a minute.
    assert bound["p_met"] == cell["p_slo"] == pytest.approx(1.0, abs=0.01)
    (cell,) = simulate(
        "llama-3.1-8b@1xh100", **talks, slo="task_p90<4s", out=tmp_path / "missed"
    ).document()["cells"]
    assert (cell["slo"][0]["met"], cell["p_slo"]) == (False, 0.0)
    with pytest.raises(InputError, match="is the time of a session; give --agents FILE or --turns"):
        simulate("llama-3.1-8b@1xh100", **asked, slo="task_p90<60s", out=tmp_path / "none")


@pytest.mark.parametrize(("n", "most"), [(9, 0.0865), (40, 0.331), (400, 0.982)])
def test_a_sample_says_of_a_p99_no_more_than_its_size_allows(n: int, most: float) -> None:
    """1 − 0.99ⁿ at most, whatever the tail, though all of them are far below the bound."""
    assert p_met(np.full(n, 0.01), "tpot_p99", 0.08) == pytest.approx(most, rel=2e-3)
    rising = np.linspace(0.01, 0.02, n)
    assert (p_met(rising, "tpot_p99", 0.08) or 0) <= most * 1.001
    assert (p_met(rising, "tpot_p99", 0.0199) or 0) < most
