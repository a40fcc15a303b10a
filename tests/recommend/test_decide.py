"""Plans by expected regret, on finalists whose capacities are given."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from asked import finalist, planning
from loadstone.catalogue import parse_deployment
from loadstone.core.errors import InputError
from loadstone.recommend.judge.choices import (
    PlanChoice,
    affordable,
    best_of_each,
    rank_choices,
)
from loadstone.recommend.judge.errors import UncertainFinalist
from loadstone.recommend.judge.measurement import plan_measurement, value_measurements

ONE, TWO = "llama-3.1-8b@1xh100/tp1", "llama-3.1-8b@2xh200/tp2"


def choices(*finalists: UncertainFinalist, **changed: object) -> list[PlanChoice]:
    return rank_choices(finalists, planning(**({"rate": 40, "confidence": 0.0} | changed)))


@pytest.mark.parametrize(
    ("capacity", "rate", "replicas"),
    [(10, 40, 4), (10, 41, 5), (10, 39, 4), (50, 40, 1), (6, 40, 7), (5, 40, 8)],
)
def test_a_known_capacity_needs_the_replicas_that_carry_the_rate(capacity, rate, replicas) -> None:
    best = choices(finalist(ONE, [capacity] * 16), rate=rate)[0]
    assert (best.replicas, best.p_slo, best.cost, best.regret) == (
        replicas,
        1.0,
        2.0 * replicas,
        0.0,
    )


@pytest.mark.parametrize(
    ("miss_cost", "replicas", "p_slo"),
    [(0.0, 4, 0.75), (0.1, 4, 0.75), (3.0, 8, 1.0), (20.0, 8, 1.0)],
)
def test_headroom_is_bought_where_a_miss_costs_more(miss_cost, replicas, p_slo) -> None:
    """In a quarter of the draws twice the replicas are needed: 4 more, at 2 dollars each."""
    best = choices(finalist(ONE, [10] * 12 + [5] * 4), miss_cost=miss_cost)[0]
    assert (best.replicas, best.p_slo) == (replicas, p_slo)


def test_regret_is_what_is_paid_beyond_the_least_that_holds() -> None:
    by_replicas = {
        each.replicas: each for each in choices(finalist(ONE, [10] * 12 + [5] * 4), miss_cost=3.0)
    }
    assert by_replicas[8].regret == pytest.approx(
        0.75 * 8.0
    )  # four replicas too many, in three quarters
    assert by_replicas[4].regret == pytest.approx(0.25 * 3.0 * 16.0)  # and the miss, in a quarter


@pytest.mark.parametrize("miss_cost", [0.1, 3.0])
@pytest.mark.parametrize("dearer", [1.5, 4.0])
def test_of_two_that_carry_alike_the_cheaper_is_first(miss_cost, dearer) -> None:
    carried = [10] * 10 + [8] * 6
    rows = [finalist(TWO, carried, 1.0 * dearer), finalist(ONE, carried, 2.0)]
    ranked = choices(*rows, miss_cost=miss_cost, gpus_max=32)
    assert ranked[0].finalist.name == rows[1].name
    assert [each.regret for each in ranked] == sorted(each.regret for each in ranked)


@pytest.mark.parametrize("factor", [0.1, 7.0])
def test_prices_in_another_currency_change_no_choice(factor: float) -> None:
    def rank(scale: float) -> list[PlanChoice]:
        rows = (
            finalist(ONE, [10] * 10 + [6] * 6, 2.0 * scale),
            finalist(TWO, [25] * 12 + [11] * 4, 2.5 * scale),
        )
        return choices(*rows)

    before, after = rank(1.0), rank(factor)
    assert [(each.finalist.name, each.replicas) for each in before] == [
        (each.finalist.name, each.replicas) for each in after
    ]
    assert [each.regret for each in after] == pytest.approx(
        [factor * each.regret for each in before]
    )


@pytest.mark.parametrize("reserve", [0, 1, 3])
def test_a_reserve_is_on_top_of_what_holds(reserve: int) -> None:
    best = choices(finalist(ONE, [10] * 16), reserve=reserve)[0]
    assert (best.replicas, best.p_slo) == (4 + reserve, 1.0)


def test_a_reserve_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"--reserve 8: leaves none of --gpus-max 8 for the traffic"
    ):
        choices(finalist(ONE, [10] * 16), reserve=8)


@pytest.mark.parametrize("gpus_max", [4, 6, 8])
def test_no_choice_takes_more_gpus_than_there_are(gpus_max: int) -> None:
    rows = finalist(ONE, [10] * 8 + [3] * 8), finalist(TWO, [20] * 8 + [1] * 8, replicas=2)
    for each in choices(*rows, gpus_max=gpus_max):
        assert each.replicas * each.finalist.deployment.gpus <= gpus_max


def test_one_that_never_holds_is_last() -> None:
    ranked = choices(finalist(ONE, [1e-6] * 16), finalist(TWO, [20] * 16))
    assert ranked[0].finalist.name == parse_deployment(TWO).name
    assert ranked[0].regret == 0
    assert all(
        each.p_slo == 0 for each in ranked if each.finalist.name == parse_deployment(ONE).name
    )


def test_each_finalist_has_one_best_choice_in_the_order_of_regret() -> None:
    ranked = choices(finalist(ONE, [10] * 12 + [5] * 4), finalist(TWO, [20] * 12 + [9] * 4))
    best = best_of_each(ranked)
    assert best[0] is ranked[0]
    assert len(best) == 2
    assert best[0].regret <= best[1].regret


@pytest.mark.parametrize(
    ("confidence", "replicas", "p_slo"), [(0.5, 4, 0.75), (0.75, 4, 0.75), (0.8, 8, 1.0)]
)
def test_plans_that_hold_with_confidence_stand_before_cheaper_ones(
    confidence, replicas, p_slo
) -> None:
    best = choices(finalist(ONE, [10] * 12 + [5] * 4), miss_cost=0.0, confidence=confidence)[0]
    assert (best.replicas, best.p_slo) == (replicas, p_slo)


# --- a budget -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "most"), [("6k/month", 4), ("8.1/hour", 4), ("10/hour", 5), ("12k/month", 8)]
)
def test_a_budget_bounds_the_replicas(budget: str, most: int) -> None:
    rows = choices(finalist(ONE, [10] * 8 + [8] * 4 + [5] * 4), budget=budget)
    paid = affordable(rows, planning(budget=budget))
    assert max(each.replicas for each in paid) == most
    assert paid == [each for each in rows if each.replicas <= most]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"budget": "100"},
            r"--budget: \$100 a month is too little; the cheapest plan that holds, 4 × .* with 100%, takes \$5,840",
        ),
        ({"budget": "30k", "price": ()}, "--budget: needs prices; add e.g. --price"),
    ],
)
def test_a_budget_that_pays_for_nothing_is_refused(changed, words) -> None:
    asked = planning(**changed)
    with pytest.raises(InputError, match=words):
        affordable(choices(finalist(ONE, [10] * 16)), asked)


# --- what a measurement is worth ------------------------------------------------------------------


def test_measuring_what_is_known_is_worth_nothing() -> None:
    rows = [finalist(ONE, [10] * 16)]
    (value,) = value_measurements(choices(*rows), rows, [math.inf], 0.5)
    assert value.regret_now == value.regret_after == 0


def test_measuring_what_decides_ends_the_regret() -> None:
    """Whether four replicas are needed or eight is seen at once: their times differ by a factor of
    two."""
    rows = [finalist(TWO, [5] * 64), finalist(ONE, [10] * 32 + [5] * 32)]
    first, second = value_measurements(choices(*rows), rows, [math.inf] * 2, 0.5)
    assert first.finalist is rows[1]
    assert first.regret_now > 1
    assert first.regret_after == pytest.approx(0, abs=1e-9)
    assert second.regret_after == pytest.approx(second.regret_now)


@pytest.mark.parametrize("seed", range(4))
def test_no_measurement_is_expected_to_make_the_choice_worse(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [
        finalist(ONE, (12 * np.exp(rng.normal(0, 0.3, 128))).tolist(), rng.uniform(1, 4)),
        finalist(TWO, (25 * np.exp(rng.normal(0, 0.3, 128))).tolist(), rng.uniform(1, 4), 2),
    ]
    values = value_measurements(choices(*rows, gpus_max=16), rows, [math.inf] * 2, 0.5)
    assert all(0 <= each.regret_after <= each.regret_now for each in values)
    assert [each.regret_after for each in values] == sorted(each.regret_after for each in values)


@pytest.mark.parametrize(
    ("rate", "minutes", "requests"), [(10.0, 10, 4800), (0.1, 60, 348), (0.5, 35.33, 1000)]
)
def test_a_measurement_lasts_until_some_requests_lie_beyond_the_quantile(
    rate, minutes, requests
) -> None:
    found = plan_measurement(rate, 0.99)
    assert found == pytest.approx((minutes, requests), rel=0.01)


def test_a_measurement_of_few_requests_is_worth_less() -> None:
    """At 0.03 requests/s a p99 is not known after an hour."""
    rows = [finalist(ONE, [10] * 32 + [7] * 32)]
    (many,) = value_measurements(choices(*rows), rows, [10.0], 0.99)
    (few,) = value_measurements(choices(*rows), rows, [0.03], 0.99)
    assert few.requests < 120
    assert many.requests > 4000
    assert many.regret_after < 0.5 * few.regret_after


def test_by_throughput_the_least_known_is_not_the_first_for_that() -> None:
    """One gives a tenth more; the other may be many times slower or faster, as likely."""
    wide = np.exp(np.linspace(-3, 3, 17))
    known, unknown = (
        replace(
            finalist(name, [1000.0] * 17, replicas=8),
            curve=SimpleNamespace(output_tokens_per_s=lambda _, rate=rate: rate),
            factors=np.column_stack([factors] * 2),
        )
        for name, rate, factors in ((ONE, 110.0, np.ones(17)), (f"{ONE},kv=fp8", 100.0, wide))
    )
    batch = {"rate": None, "concurrency": 64, "objective": "throughput", "slo": "e2e_p99<60s"}
    ranked = choices(unknown, known, **batch)
    assert [choice.finalist for choice in ranked] == [known, unknown]
