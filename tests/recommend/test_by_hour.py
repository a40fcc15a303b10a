"""Replicas that follow a trace: windows, start-up, reserve, budget."""

from __future__ import annotations

import math

import numpy as np
import pytest

import loadstone
from asked import plans, small_options, small_planning
from loadstone.core.errors import InputError
from loadstone.recommend.demand.hours import Hours
from loadstone.recommend.demand.traffic import traffic_of
from loadstone.recommend.tell.share import share_trace
from loadstone.recommend.tell.text import remarks
from tiers import further

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """A trace of four windows of a minute: 60, 120, 240 and 60 requests, as options."""
    path = tmp_path_factory.mktemp("trace") / "day.csv"
    times = [
        60 * at + (60 / many) * (n + 0.5)
        for at, many in enumerate((60, 120, 240, 60))
        for n in range(many)
    ]
    path.write_text(
        "timestamp_s,input_tokens,output_tokens\n0,512,128\n"
        + "".join(f"{t:.3f},512,128\n" for t in times)
    )
    return {
        "trace": path, "every": "1m", "start_up": "15s", "growth": 200, "input": None, "output": None, "rate": None,
        "plans": 1,
    }  # fmt: skip


def test_windows_have_their_rates_and_the_busiest_is_what_must_be_carried(day) -> None:
    hours = traffic_of(small_options(**(day | {"growth": 1}))).hours
    assert hours is not None
    assert hours.rates == pytest.approx([61 / 60, 2, 4, 1], rel=0.01)
    assert hours.busiest_s[0] == 120
    assert [len(plan) for plan in hours.plans] == [61, 120, 240, 60]
    assert hours.plans[3].intended_s[0] == pytest.approx(0.5)
    assert traffic_of(small_options(**(day | {"every": "4m"}))).hours is None
    with pytest.raises(InputError, match=r"more than 20,000 windows; give 1s or more"):
        traffic_of(small_options(**(day | {"every": "1ms"})))


@pytest.mark.parametrize(
    ("start_up_s", "mean"),
    [
        (0, 1.5),
        (900, 1.5 + 2 * 900 / 3600 / 4),
        (1800, 1.5 + 2 * 1800 / 3600 / 4),
        (3600, 2.0),  # [1, 3, 3, 1]
        (5400, 2 + 2 * 1800 / 3600 / 4),  # and two that start half an hour before that
        (3600 * 1e300, 3),
    ],
)
def test_what_starts_for_a_later_window_is_paid_for_before(start_up_s: float, mean: float) -> None:
    needed = np.array([1.0, 1.0, 3.0, 1.0])
    assert float(Hours(needed, 3600, start_up_s, (0, 1)).mean(needed)) == mean


@pytest.mark.parametrize(
    ("each", "reserve", "replicas"),
    [(1.0, 0, [1, 2, 4, 1]), (2.0, 0, [1, 1, 2, 1]), (3.9, 0, [1, 1, 2, 1]), (4.0, 0, [1, 1, 1, 1]),
     (1.0, 2, [3, 4, 6, 3]), (100.0, 1, [2, 2, 2, 2])],
)  # fmt: skip
def test_a_window_has_the_replicas_that_carry_its_rate_and_one_at_least(
    each, reserve, replicas
) -> None:
    hours = Hours(np.array([1.0, 2.0, 4.0, 0.5]), 3600, 0, (0, 1))
    assert hours.replicas(each, reserve).tolist() == replicas


@pytest.mark.parametrize(
    ("replicas", "reserve", "followed"), [(4, 0, [1, 2, 4, 1]), (6, 2, [3, 4, 6, 3])]
)
def test_the_busiest_window_has_all_replicas(replicas, reserve, followed) -> None:
    hours = Hours(np.array([1.0, 2.0, 4.0, 0.5]), 3600, 0, (0, 1))
    assert hours.followed(replicas, reserve).tolist() == followed
    assert hours.scale(40.0).followed(replicas, reserve).tolist() == followed
    assert hours.scale(40.0).rates.max() == 40


@pytest.mark.parametrize(
    ("growth", "replicas", "flags"),
    [
        (1.0, 1, {}),
        (1.0, 4, {"trace-sample": "0.25"}),
        (2.0, 4, {"trace-sample": "0.5"}),
        (4.0, 1, {"time-scale": "0.25"}),
        (3.0, 2, {"time-scale": "0.667"}),
    ],
)
def test_one_replicas_share_of_a_trace_is_sampled_or_replayed_faster(
    growth, replicas, flags, day
) -> None:
    named = share_trace(small_planning(**(day | {"growth": growth})), replicas)
    assert named == {"trace": str(day["trace"]), "trace-window": "120s:180.001s"} | flags


@pytest.mark.parametrize("every", ["1m", *further("2m")])
def test_a_plan_by_the_hour_has_all_its_replicas_in_the_busiest_window_alone(
    every: str, day
) -> None:
    (plan,) = plans(**(day | {"every": every})).plans
    assert plan.by_hour is not None
    assert max(plan.by_hour.replicas) == plan.replicas
    assert min(plan.by_hour.replicas) < plan.replicas
    assert 0 < plan.by_hour.saves < 1
    assert plan.usd_per_month is not None
    cost = plan.by_hour.usd_per_month
    assert cost is not None
    assert cost.value == pytest.approx(plan.usd_per_month.value * (1 - plan.by_hour.saves))
    assert cost.low <= cost.value <= cost.high
    if every == "1m":
        assert plan.by_hour.replicas[0] == math.ceil(plan.replicas * 61 / 240)


@pytest.mark.slow
def test_growth_and_reserve_take_more(day) -> None:
    found, grown, safe = (plans(**(day | more)) for more in ({}, {"growth": 400}, {"reserve": 1}))
    assert grown.traffic.value == pytest.approx(2 * found.traffic.value)
    assert grown.plans[0].gpus > found.plans[0].gpus
    by_hour = safe.plans[0].by_hour
    assert by_hour is not None
    assert min(by_hour.replicas) >= 2
    assert safe.plans[0].p_slo == pytest.approx(found.plans[0].p_slo, abs=0.1)
    assert any("by the 1 min" in line for line in remarks(safe))


def test_a_budget_is_compared_with_what_is_paid_by_the_hour(day) -> None:
    (plan,) = plans(**day).plans
    assert plan.by_hour is not None
    assert plan.by_hour.usd_per_month is not None
    dollars = plan.by_hour.usd_per_month.value
    (same,) = plans(**(day | {"budget": f"{dollars + 1:.0f}/month"})).plans
    assert same.by_hour.usd_per_month.value <= dollars + 1
    assert same.p_slo > plan.p_slo - 0.05
    with pytest.raises(
        InputError, match=r"--budget: \$100 a month is too little; the cheapest plan"
    ):
        plans(**(day | {"budget": "0.1k/month"}))


@pytest.mark.parametrize(
    ("text", "dollars"),
    [("30k/month", 30_000), ("40/hour", 29_200), ("1.5k", 1500), ("$2m", 2e6), ("12,000", 12_000), (".5k", 500),
     ("0.5K/HOUR", 365_000), ("7", 7)],
)  # fmt: skip
def test_a_budget_is_dollars_a_month_or_an_hour(text: str, dollars: float) -> None:
    assert small_options(budget=text).choice.budget == pytest.approx(dollars)


@pytest.mark.parametrize("text", ["much", "1.2.3", "-5", "30k/week", "k", "nan", "1e3"])
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"no budget; write e\.g\. 30k"):
        small_options(budget=text)


def test_the_function_of_the_package_can_be_called_again_though_the_wing_has_its_name() -> None:
    asked = {
        "rate": 4,
        "slo": "tpot_p99<50ms",
        "gpus": "h100",
        "engine": "vllm",
        "gpus_max": 1,
        "plans": 1,
    }
    first, again = (loadstone.recommend("llama-3.1-8b", **asked) for _ in range(2))  # type: ignore[operator]
    assert first.plans == again.plans
