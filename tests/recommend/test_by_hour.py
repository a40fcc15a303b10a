"""Replicas that follow a trace: windows, start-up, reserve, budget."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import loadstone
from loadstone.core.errors import InputError
from loadstone.recommend.by_hour import Hours
from loadstone.recommend.options import RecommendOptions
from loadstone.recommend.recommend import recommend
from loadstone.recommend.text import remarks
from loadstone.recommend.traffic import traffic_of
from loadstone.workload.options import options_of

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four windows of a minute: 60, 120, 240 and 60 requests."""
    path = tmp_path_factory.mktemp("trace") / "day.csv"
    times = [60 * at + (60 / many) * (n + 0.5) for at, many in enumerate((60, 120, 240, 60)) for n in range(many)]
    path.write_text(
        "timestamp_s,input_tokens,output_tokens\n0,512,128\n" + "".join(f"{t:.3f},512,128\n" for t in times)
    )
    return path


def options(day: Path, **changed: object) -> RecommendOptions:
    asked = {
        "model": "llama-3.1-8b", "trace": day, "every": "1m", "start_up": "15s", "growth": 200, "gpus": "h100",
        "slo": "ttft_p99<1s,tpot_p99<30ms", "engine": "vllm", "price": "h100=2", "gpus_max": 64, "plans": 1,
    }  # fmt: skip
    return options_of(asked | changed, RecommendOptions)


def test_windows_have_their_rates_and_the_busiest_is_what_must_be_carried(day: Path) -> None:
    hours = traffic_of(options(day, growth=1)).hours
    assert hours is not None
    assert hours.rates == pytest.approx([61 / 60, 2, 4, 1], rel=0.01)
    assert hours.busiest_s[0] == 120
    assert [len(plan) for plan in hours.plans] == [61, 120, 240, 60]
    assert hours.plans[3].intended_s[0] == pytest.approx(0.5)
    assert traffic_of(options(day, every="4m")).hours is None
    with pytest.raises(InputError, match=r"more than 20,000 windows; give 1s or more"):
        traffic_of(options(day, every="1ms"))


def test_what_starts_for_a_later_window_is_paid_for_before() -> None:
    needed = np.array([1.0, 1.0, 3.0, 1.0])

    def mean(start_up_s: float) -> float:
        return float(Hours(needed, 3600, start_up_s, (0, 1)).mean(needed))

    assert mean(0) == 1.5
    assert mean(900) == 1.5 + 2 * 900 / 3600 / 4
    assert mean(5400) == 2 + 2 * 1800 / 3600 / 4  # [1, 3, 3, 1], and two that start half an hour before that
    assert mean(3600 * 1e300) == 3


def test_a_plan_by_the_hour_has_all_its_replicas_in_the_busiest_window_alone(day: Path) -> None:
    (plan,) = recommend(options(day)).plans
    assert plan.by_hour is not None
    assert plan.by_hour.replicas[2] == max(plan.by_hour.replicas) == plan.replicas
    assert plan.by_hour.replicas[0] == math.ceil(plan.replicas * 61 / 240)
    assert 0 < plan.by_hour.saves < 1
    assert plan.usd_per_month is not None
    assert plan.by_hour.usd_per_month is not None
    assert plan.by_hour.usd_per_month.value == pytest.approx(plan.usd_per_month.value * (1 - plan.by_hour.saves))
    assert plan.by_hour.usd_per_month.low <= plan.by_hour.usd_per_month.value <= plan.by_hour.usd_per_month.high


def test_growth_and_reserve_take_more(day: Path) -> None:
    found, grown, safe = (recommend(options(day, **more)) for more in ({}, {"growth": 400}, {"reserve": 1}))
    assert grown.traffic.value == pytest.approx(2 * found.traffic.value)
    assert grown.plans[0].gpus > found.plans[0].gpus
    by_hour = safe.plans[0].by_hour
    assert by_hour is not None
    assert min(by_hour.replicas) >= 2
    assert safe.plans[0].p_slo == pytest.approx(found.plans[0].p_slo, abs=0.1)
    assert any("by the 1 min" in line for line in remarks(safe))


def test_a_budget_leaves_plans_out_and_says_where_none_is_left(day: Path) -> None:
    (plan,) = recommend(options(day)).plans
    assert plan.by_hour is not None
    assert plan.by_hour.usd_per_month is not None
    dollars = plan.by_hour.usd_per_month.value
    (same,) = recommend(options(day, budget=f"{dollars + 1:.0f}/month")).plans
    assert same == plan
    with pytest.raises(InputError, match=r"--budget: \$100 a month is too little; the cheapest plan"):
        recommend(options(day, budget="0.1k/month"))
    with pytest.raises(InputError, match="--budget: needs prices"):
        recommend(options(day, budget="30k/month", price=()))
    with pytest.raises(InputError, match=r"no budget; write e\.g\. 30k"):
        options(day, budget="much")
    assert options(day, budget="10/hour").budget == 7300


def test_the_function_of_the_package_can_be_called_again_though_the_wing_has_its_name() -> None:
    asked = {"rate": 4, "slo": "tpot_p99<50ms", "gpus": "h100", "engine": "vllm", "gpus_max": 2, "plans": 1}
    first, again = (loadstone.recommend("llama-3.1-8b", **asked) for _ in range(2))  # type: ignore[operator]
    assert first.plans == again.plans
