"""Capacities from simulated loads, and the joint errors of several deployments, sized by hand."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asked import planning
from loadstone.core.statistics.distribution import Z80
from loadstone.recommend.demand.traffic import QuantileBound, Traffic
from loadstone.recommend.judge.errors import NOISE, JointErrors, unmeasured_errors
from loadstone.recommend.search.candidates import search
from loadstone.recommend.search.curve import Curve, SimulatedLoad, simulate_curve

TPOT, TTFT = (
    QuantileBound("tpot_p99", "tpot", 0.99, 0.020),
    QuantileBound("ttft_p99", "ttft", 0.99, 1.0),
)


def point(load: float, *, keeps_up: bool = True) -> SimulatedLoad:
    """TPOT of 10 ms and TTFT of 0.25 s per unit of load."""
    figures = {"tpot_p99": 0.010 * load, "ttft_p99": 0.25 * load}
    return SimulatedLoad(load, keeps_up, figures, 0.01, load, 128 * load)


CURVE = Curve([point(1), point(2), point(4)], 2.0)


def traffic(*bounds: QuantileBound, kind: str = "rate") -> Traffic:
    return Traffic(None, kind, 10.0, 1024.0, 128.0, bounds)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bounds", "kind", "factors", "capacity"),
    [
        ((TPOT,), "rate", (1, 1), 2),
        ((TTFT,), "rate", (1, 1), 4),
        ((TPOT, TTFT), "rate", (1, 1), 2),
        ((TPOT,), "rate", (9, 1), 2),  # TTFT's factor is none of TPOT's
        ((TTFT,), "rate", (2, 1), 2),
        ((TTFT,), "rate", (4, 1), 1),
        ((TPOT,), "rate", (1, 1.6), 1.25 / 1.6),  # slower, under more load on its clock
        ((TPOT,), "rate", (1, 3), 0),  # an idle engine misses the bound
        ((TPOT,), "rate", (1, 0.5), 8),
        ((TTFT,), "rate", (1, 2), 2),  # the same TTFT, at the load that feels like twice
        ((TPOT,), "concurrency", (1, 1.6), 1.25),
        ((TPOT,), "concurrency", (1, 1), 2),
        ((TTFT,), "concurrency", (1, 2), 4),
    ],
)
def test_a_capacity_is_the_largest_load_within_all_bounds(bounds, kind, factors, capacity) -> None:
    (found,) = CURVE.capacities(traffic(*bounds, kind=kind), np.array([factors], float))
    assert found == pytest.approx(capacity, rel=0.03)
    assert found <= capacity * 1.001


def test_an_open_loop_carries_no_more_than_it_keeps_up_with() -> None:
    curve = Curve([point(1), point(2), point(4, keeps_up=False)], 2.0)
    loose = QuantileBound("tpot_p99", "tpot", 0.99, 1.0)
    (found,) = curve.capacities(traffic(loose), np.ones((1, 2)))
    assert found == pytest.approx(2, rel=0.03)
    overloaded = Curve([point(1, keeps_up=False)], 0.0)
    assert overloaded.capacities(traffic(loose), np.ones((3, 2))).tolist() == [0, 0, 0]
    assert overloaded.saturates == 0


@settings(max_examples=60)
@given(
    factors=st.lists(st.tuples(st.floats(0.3, 3), st.floats(0.3, 3)), min_size=1, max_size=8),
    slower=st.floats(1, 2),
    kind=st.sampled_from(["rate", "concurrency"]),
)
def test_slower_engines_and_tighter_bounds_never_carry_more(factors, slower, kind) -> None:
    drawn = np.array(factors)
    here = CURVE.capacities(traffic(TPOT, TTFT, kind=kind), drawn)
    assert (CURVE.capacities(traffic(TPOT, TTFT, kind=kind), drawn * slower) <= here * 1.001).all()
    tighter = QuantileBound("tpot_p99", "tpot", 0.99, 0.020 / slower)
    assert (CURVE.capacities(traffic(tighter, TTFT, kind=kind), drawn) <= here * 1.001).all()
    assert (CURVE.capacities(traffic(TPOT, kind=kind), drawn) >= here * 0.999).all()


def test_between_loads_figures_are_log_linear_and_beyond_the_last_they_rise_faster() -> None:
    loads = np.array([0.5, 1, math.sqrt(2), 2, 4, 8])
    figures = CURVE.figure("tpot_p99", loads)
    assert figures[:5].tolist() == pytest.approx([0.010, 0.010, 0.010 * math.sqrt(2), 0.020, 0.040])
    assert figures[5] == pytest.approx(0.040 * 2**4)
    noisy = Curve([point(1), SimulatedLoad(2, True, {"tpot_p99": 0.005}, 0, 2, 2)], 1.0)
    assert noisy.figure("tpot_p99", np.array([2.0])) == pytest.approx(0.010)


@pytest.mark.parametrize(
    ("load", "nearest"), [(0.1, 1), (1.4, 1), (1.5, 2), (2.8, 2), (2.9, 4), (100, 4)]
)
def test_the_nearest_load_is_nearest_by_ratio(load: float, nearest: float) -> None:
    assert CURVE.nearest(load).load == nearest


@pytest.mark.parametrize(
    ("bounds", "held"), [((TPOT,), True), ((TPOT, TTFT), True), ((TTFT,), True)]
)
def test_a_load_holds_where_it_keeps_up_within_every_bound(bounds, held) -> None:
    assert point(2).holds(bounds) is held
    assert not point(2, keeps_up=False).holds(bounds)
    assert not point(4.1).holds(bounds)


def test_a_simulated_curve_ascends_to_its_capacity() -> None:
    asked = planning(price=())
    candidate = search(asked).candidates[0]
    curve = simulate_curve(candidate, asked, candidate.replicas)
    loads = [each.load for each in curve.points]
    assert all(after > before for before, after in pairwise(loads))
    assert curve.nearest(curve.capacity).holds(asked.traffic.bounds)
    same, slower, faster, late = curve.capacities(
        asked.traffic, np.array([[1.0, 1.0], [1.0, 1.25], [1.0, 0.8], [3.0, 1.0]])
    )
    assert same == pytest.approx(curve.capacity, rel=0.06)
    assert slower < same < faster
    assert late <= same


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("gap", [-0.5, 0.0, math.log(1.3)])
@pytest.mark.parametrize("spread", [0.02, 0.3])
def test_a_measurement_counts_by_its_noise(gap: float, spread: float) -> None:
    errors = JointErrors(np.zeros(2), np.diag([0.5**2, spread**2])).learn(
        0, np.array([math.nan, gap])
    )
    share = spread**2 / (spread**2 + NOISE[1] ** 2)
    assert errors.mean == pytest.approx([0, gap * share])
    assert np.diag(errors.covariance) == pytest.approx([0.5**2, spread**2 * (1 - share)])


@pytest.mark.parametrize("correlation", [0.0, 0.5, 1.0])
def test_what_is_measured_of_one_moves_the_other_by_what_they_have_in_common(
    correlation: float,
) -> None:
    common = 0.2**2 * np.array([[1, correlation], [correlation, 1]])
    errors = JointErrors(np.zeros(4), np.kron(common, np.eye(2))).learn(0, np.array([0.1, 0.2]))
    assert errors.mean[2:] == pytest.approx(correlation * errors.mean[:2])
    assert (np.diag(errors.covariance)[2:] <= 0.2**2 + 1e-12).all()


@pytest.mark.parametrize("spread", [0.05, 0.3])
def test_drawn_factors_have_the_interval_of_a_normal_and_longer_tails(spread: float) -> None:
    errors = JointErrors(np.array([0.1, 0.0]), np.diag([spread**2, spread**2]))
    logs = np.log(errors.draw(20_000, 1)[:, 0, 0]) - 0.1
    assert np.quantile(logs, (0.1, 0.9)).tolist() == pytest.approx(
        [-Z80 * spread, Z80 * spread], rel=0.06
    )
    assert np.mean(np.abs(logs) > 3 * spread) > 2 * 0.0027
    assert (errors.draw(5, 1) == errors.draw(5, 1)).all()
    assert (errors.draw(5, 1) != errors.draw(5, 2)).any()


def test_measuring_one_tells_of_those_that_share_its_engine_and_gpu() -> None:
    asked = planning(price=())
    rows = search(asked).candidates
    mine = rows[0]
    like = next(
        each for each in rows[1:] if each.group == mine.group and each.worker.tp != mine.worker.tp
    )
    other = next(
        each for each in rows if each.group[0] != mine.group[0] and each.group[1] != mine.group[1]
    )
    errors = unmeasured_errors([mine, like, other], asked)
    after = errors.learn(0, np.array([math.nan, math.log(1.3)]))
    assert after.mean[1] == pytest.approx(math.log(1.3), rel=0.05)
    assert 0.1 < after.mean[3] < after.mean[1]
    assert abs(after.mean[5]) < 0.1 * after.mean[3]
    assert after.covariance[3, 3] < errors.covariance[3, 3]
    assert np.linalg.eigvalsh(errors.covariance).min() > -1e-9
