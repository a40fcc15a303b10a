"""The tests and intervals behind `loadstone compare`, on numbers of known law."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loadstone.analyse.compare import permutation, ratio
from loadstone.analyse.compare.permutation import Units, compare_all, welch
from loadstone.analyse.compare.repeats import needed
from loadstone.core.statistics import dependence


def units(a: Any, b: Any, *, paired: bool = False) -> Units:
    rows = [np.asarray(side, np.float64).reshape(len(side), -1) for side in (a, b)]
    return Units(rows[0], rows[1], np.zeros(rows[0].shape[1]), paired)


def test_the_p_value_of_a_permutation_test_is_exact() -> None:
    """Two sides of four that do not overlap: of 70 relabellings two are as far apart."""
    (result,) = compare_all([units([1, 2, 3, 4], [11, 12, 13, 14])], 0, 20_000)
    assert result.p[0] == pytest.approx(2 / 70, abs=0.005)
    (pairs,) = compare_all(
        [units([1, 2, 3, 4, 5, 6], [2, 3.1, 4, 5.1, 6, 7.1], paired=True)], 0, 20_000
    )
    assert pairs.p[0] == pytest.approx(2 / 64, abs=0.005)
    assert pairs.t[0] > 0


def test_sides_that_are_the_same_have_p_1() -> None:
    (result,) = compare_all([units(np.ones((8, 2)), np.ones((8, 2)))], 0)
    assert result.p.tolist() == result.p_family.tolist() == [1, 1]


def test_a_constant_difference_without_noise_is_found() -> None:
    (result,) = compare_all([units(np.ones((8, 1)), np.full((8, 1), 1.0001))], 0)
    assert result.p_family[0] < 0.01


def test_the_family_pays_for_its_size_but_not_for_copies() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(0, 1, (20, 1)), rng.normal(0.9, 1, (20, 1))
    alone = compare_all([units(a, b)], 0)[0].p_family[0]
    copies = compare_all([units(np.repeat(a, 10, 1), np.repeat(b, 10, 1))], 0)[0].p_family[0]
    others = rng.normal(0, 1, (2, 20, 9))
    apart = compare_all([units(np.hstack([a, others[0]]), np.hstack([b, others[1]]))], 0)[
        0
    ].p_family[0]
    assert copies == alone
    assert apart > 2 * alone


def test_correlation_makes_the_test_careful() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(0, 1, (20, 1)), rng.normal(0.9, 1, (20, 1))
    plain = compare_all([units(a, b)], 0)[0]
    careful = compare_all([Units(a, b, np.array([0.6]))], 0)[0]
    assert careful.t[0] == pytest.approx(plain.t[0] / 2)
    assert careful.p[0] > plain.p[0]


def test_few_runs_are_tested_by_rotation() -> None:
    """For one metric alone it is Student's t; the family pays nothing for copies, of one load or of
    several."""
    from scipy.stats import ttest_ind

    rng = np.random.default_rng(3)
    a, b = rng.normal(0, 1, (3, 1)), rng.normal(1.5, 1, (3, 1))
    few = replace(units(a, b), too_few=True)
    (alone,) = compare_all([few], 0, 40_000)
    t, p = ttest_ind(b[:, 0], a[:, 0])
    assert alone.t[0] == pytest.approx(t)
    assert alone.p[0] == pytest.approx(p, abs=0.005)
    copies = compare_all(
        [replace(units(np.repeat(a, 7, 1), np.repeat(b, 7, 1)), too_few=True)] * 3, 0, 40_000
    )
    assert copies[2].p_family[6] == alone.p[0]


def test_few_runs_raise_no_false_alarms_and_see_more_than_holm() -> None:
    """Pairs of three runs, seven metrics that go together: alarms at 5 %, and the power of Welch's
    t with Holm's correction beside it.
    """
    from scipy.stats import ttest_ind

    alarms = seen = by_holm = 0
    for pair in range(400):
        rng = np.random.default_rng([pair, 7])
        common, own = rng.normal(0, 0.05, (6, 1)), rng.normal(0, 0.01, (6, 7))
        runs = common + own
        for difference in (0.0, 0.12):
            b = runs[3:] + difference
            (result,) = compare_all([replace(units(runs[:3], b), too_few=True)], pair, 999)
            shown = bool(result.p_family.min() <= 0.05)
            if difference:
                seen += shown
                by_holm += bool(7 * ttest_ind(runs[:3], b, equal_var=False).pvalue.min() <= 0.05)
            else:
                alarms += shown
    assert alarms <= 33  # of 5 % of 400 more than 33 have a chance of 1 in 500
    assert seen > 1.2 * by_holm


def test_runs_needed_are_those_that_show_it() -> None:
    """Of so many runs a side, drawn from a normal law, four in five comparisons find the
    difference."""
    from scipy.stats import ttest_ind

    many = needed(0.1, 0.05, 0.02)
    assert many == 7
    rng = np.random.default_rng(0)
    draws = rng.normal(0, 0.05, (2, 4000, many))
    power = float(np.mean(ttest_ind(draws[0], draws[1] + 0.1, axis=1).pvalue <= 0.02))
    assert 0.78 <= power <= 0.88
    assert needed(0.1, 0.1, 0.02) > many
    assert needed(1e-6, 0.05, 0.02) is None


def test_welch() -> None:
    difference, error, freedom = welch(np.array([1.0, 2, 3]), np.array([4.0, 6, 8]))
    assert difference == 4
    assert error == pytest.approx(math.sqrt(1 / 3 + 4 / 3))
    assert freedom == pytest.approx((5 / 3) ** 2 / ((1 / 3) ** 2 / 2 + (4 / 3) ** 2 / 2))


def test_false_alarms_on_correlated_blocks_are_held() -> None:
    """A family of four on 200 pairs that do not differ, each an AR(1) of correlation 0.9 within a
    block's length."""
    alarms = 0
    for pair in range(200):
        sides = [_autocorrelated(np.random.default_rng([pair, side])) for side in (0, 1)]

        def correlations(count: int, sides: list[NDArray[Any]] = sides) -> NDArray[Any]:
            return np.asarray(
                np.mean([dependence.correlation(_means(side, count)) for side in sides], axis=0)
            )

        count, rho = dependence.settle(dependence.block_count(400, 8.0), correlations)
        (result,) = compare_all(
            [Units(_means(sides[0], count), _means(sides[1], count), rho)], pair, 399
        )
        alarms += bool(result.p_family.min() <= 0.05)
    assert alarms <= 20  # of 5 % of 200, more than 20 have a chance of 1 in 400


def _autocorrelated(rng: np.random.Generator) -> NDArray[Any]:
    values = np.empty((400, 4))
    values[0] = rng.normal(size=4)
    for row in range(1, 400):
        values[row] = 0.9 * values[row - 1] + math.sqrt(1 - 0.81) * rng.normal(size=4)
    return values


def _means(values: NDArray[Any], count: int) -> NDArray[Any]:
    return np.stack(
        [dependence.block_means(values[:, column], count) for column in range(values.shape[1])],
        axis=1,
    )


def test_the_interval_of_a_ratio_is_made_of_those_of_its_values() -> None:
    """On a log scale 3 below and 4 above: √(3² + 4²) = 5 either way; less where both go
    together."""
    a, b = (
        ratio.reach(value, value * math.exp(-0.03), value * math.exp(0.04)) for value in (2.0, 3.0)
    )
    assert a is not None
    assert b is not None
    assert ratio.ratio_margin(a, b) == pytest.approx((0.05, 0.05))
    assert ratio.ratio_margin(a, b, correlation=1.0) == pytest.approx((0.01, 0.01))
    assert ratio.ratio_margin(a, b, more=0.12) == pytest.approx((0.13, 0.13))
    assert ratio.pooled([a, a, a, a]) == pytest.approx((0.015, 0.02))
    assert ratio.bounds(1.5, (0.05, 0.05)) == pytest.approx(
        (1.5 * math.exp(-0.05), 1.5 * math.exp(0.05))
    )


@pytest.mark.parametrize(
    ("low", "high"), [(None, 2.0), (0.5, None), (0.0, 2.0), (1.1, 2.0), (0.5, math.inf)]
)
def test_what_has_no_end_reaches_nowhere(low: float | None, high: float | None) -> None:
    assert ratio.reach(1.0, low, high) is None


def test_a_relabelling_is_a_relabelling() -> None:
    """The sums behind the t of every relabelling are those of the units it takes."""
    rng = np.random.default_rng(0)
    rows = rng.normal(5, 1, (9, 2))
    first = np.array([[1, 0, 1, 0, 0, 1, 1, 0, 0]], np.float64)
    found = permutation.welch_t(first, rows)[0]
    a, b = rows[first[0] == 1], rows[first[0] == 0]
    for column in (0, 1):
        difference, error, _ = welch(a[:, column], b[:, column])
        assert found[column] == pytest.approx(difference / error)
