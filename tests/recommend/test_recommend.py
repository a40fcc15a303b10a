"""Plans, their probabilities, what is passed over, what is worth measuring."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import loadstone
from loadstone.analyse.compare.price import Prices, parse_prices
from loadstone.catalogue import parse_deployment
from loadstone.core.errors import InputError
from loadstone.predict.scheduler import policy_of
from loadstone.predict.steady_state import levels, most_decoding
from loadstone.predict.step_time import StepModel
from loadstone.recommend.candidates import search
from loadstone.recommend.curve import curve_of
from loadstone.recommend.decide import advice, capacity_in, outlook
from loadstone.recommend.errors import errors_of
from loadstone.recommend.options import RecommendOptions
from loadstone.recommend.recommend import recommend
from loadstone.recommend.traffic import traffic_of
from loadstone.studies.file import read_study
from loadstone.studies.plan import plan_study
from loadstone.workload.options import options_of

pytestmark = pytest.mark.long

ASKED = {
    "model": "llama-3.1-8b",
    "input": "1024",
    "output": "128",
    "rate": 40,
    "slo": "ttft_p99<1s,tpot_p99<30ms",
    "gpus": "h100,h200",
    "gpus_max": 8,
    "engine": "vllm,sglang",
    "price": "h100=2,h200=3",
}


def options(**changed: object) -> RecommendOptions:
    return options_of(ASKED | changed, RecommendOptions)


@pytest.fixture(scope="module")
def found() -> loadstone.recommend.result.Recommendation:  # type: ignore[name-defined]
    return recommend(options())


def test_the_closed_form_follows_from_little_s_law_and_the_step_model() -> None:
    deployment = parse_deployment("llama-3.1-8b@1xh100")
    model, policy = StepModel(deployment), policy_of(deployment)
    rows = list(levels(model, policy, 1, 1024, 128))
    assert rows[0].decoding == 1
    assert rows[-1].decoding == pytest.approx(most_decoding(policy, 1024, 128))
    for row in rows:
        assert row.rate_per_s == pytest.approx(row.decoding / (128 * row.tpot_s))
        assert row.users >= row.decoding
    assert all(after.tpot_s > before.tpot_s for before, after in pairwise(rows))
    alone = model.step_s(1, 1024 + 64, ())
    assert alone < rows[0].tpot_s < 1.3 * alone


def test_the_closed_form_is_near_the_simulator() -> None:
    traffic = traffic_of(options())
    rows = search(options(), traffic, parse_prices("h100=2,h200=3")).candidates
    ratios = [curve_of(each, traffic, each.replicas).capacity / each.load for each in rows[:: len(rows) // 12]]
    assert np.median(np.abs(np.log(ratios))) < math.log(1.25)


def test_plans_are_few_and_the_first_has_the_least_regret(found) -> None:  # type: ignore[no-untyped-def]
    assert len(found.plans) == 3
    regrets = [plan.regret for plan in found.plans]
    assert regrets == sorted(regrets)
    for plan in found.plans:
        assert 0 <= plan.p_slo <= 1
        assert plan.gpus == plan.replicas * parse_deployment(plan.deployment).gpus <= 8
        assert plan.usd_per_mtok is not None
        assert plan.usd_per_mtok.low <= plan.usd_per_mtok.value <= plan.usd_per_mtok.high
        assert plan.headroom == pytest.approx(plan.capacity_per_s / 40 - 1)
        assert plan.launch
    assert found.deployments_ranked > 100


def test_more_is_paid_for_more_probability_where_a_miss_costs_more() -> None:
    careless = recommend(options(miss_cost=0.1)).plans[0]
    careful = recommend(options(miss_cost=20)).plans[0]
    assert careful.p_slo > careless.p_slo
    assert careful.usd_per_month.value > careless.usd_per_month.value  # type: ignore[union-attr]


def test_prices_decide_between_gpus() -> None:
    cheap_h200 = recommend(options(price="h100=9,h200=0.5")).plans[0]
    cheap_h100 = recommend(options(price="h100=0.5,h200=9")).plans[0]
    assert "h200" in cheap_h200.deployment
    assert "h100" in cheap_h100.deployment


def test_without_prices_plans_are_ranked_by_gpus_and_it_says_so() -> None:
    document = recommend(options(price=()))
    assert document.plans[0].usd_per_month is None
    assert any("no prices" in note for note in document.notes)


def test_the_next_measurement_is_a_command_of_bench(found, loadstone) -> None:  # type: ignore[no-untyped-def]
    step = found.measure_next
    assert step is not None
    assert step.regret_after < step.regret_now
    words = step.command.split()
    assert words[:3] == ["loadstone", "bench", "--launch"]
    assert parse_deployment(words[3].strip("'"))
    assert "--slo" in words


def test_a_slower_world_carries_less() -> None:
    traffic = traffic_of(options())
    candidate = search(options(), traffic, Prices()).candidates[0]
    curve = curve_of(candidate, traffic, candidate.replicas)
    factors = np.array([[1.0, 1.0], [1.0, 1.25], [1.0, 0.8], [3.0, 1.0]])
    same, slower, faster, late = capacity_in(curve, traffic, factors)
    assert same == pytest.approx(curve.capacity, rel=0.06)
    assert slower < same < faster
    assert late <= same


def test_measuring_one_tells_of_those_that_share_its_engine_and_gpu() -> None:
    traffic = traffic_of(options())
    rows = search(options(), traffic, Prices()).candidates
    mine = rows[0]
    like = next(each for each in rows[1:] if each.group == mine.group and each.deployment.tp != mine.deployment.tp)
    other = next(each for each in rows if each.group[0] != mine.group[0] and each.group[1] != mine.group[1])
    errors = errors_of([mine, like, other], traffic)
    after = errors.after([1], np.array([math.log(1.3)]), np.array([0.03]))
    assert after.mean[1] == pytest.approx(math.log(1.3), rel=0.05)
    assert 0.1 < after.mean[3] < after.mean[1]
    assert abs(after.mean[5]) < 0.1 * after.mean[3]
    assert after.covariance[3, 3] < errors.covariance[3, 3]


def test_advice_never_promises_more_regret() -> None:
    traffic = traffic_of(options())
    rows = search(options(), traffic, Prices()).candidates
    picked = [rows[0], rows[len(rows) // 2], rows[-1]]
    curves = [curve_of(each, traffic, each.replicas) for each in picked]
    errors = errors_of(picked, traffic)
    view = outlook(picked, curves, traffic, errors, 8, 0, 3.0)
    advised = advice(view, errors, len(picked))
    assert len(advised) == 3
    assert all(0 <= each.regret_after <= each.regret_now for each in advised)
    assert [each.regret_after for each in advised] == sorted(each.regret_after for each in advised)


def test_a_closed_loop_and_a_trace(tmp_path: Path) -> None:
    closed = recommend(options(rate=None, concurrency=64))
    assert closed.traffic.kind == "concurrency"
    trace = tmp_path / "trace.csv"
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.exponential(0.1, 400))
    lines = [f"{at:.3f},{rng.integers(200, 800)},{rng.integers(20, 80)}" for at in times]
    trace.write_text("\n".join(["timestamp_s,input_tokens,output_tokens", *lines]) + "\n")
    document = recommend(options(rate=None, input=None, output=None, trace=str(trace)))
    assert document.traffic.trace == str(trace)
    assert document.plans[0].p_slo > 0.5


def test_the_study_that_it_writes_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "verify.yaml"
    document = recommend(options(study=str(path)))
    assert document.study == str(path)
    read = read_study(path)
    assert read.study.slo == ASKED["slo"]
    assert {launch.deployment for launch in plan_study(read)} == {plan.deployment for plan in document.plans}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"slo": "tpot_p99<0.1ms"}, "below the speed of light"),
        ({"rate": 100_000}, "nothing carries this within so many; the nearest,"),
        ({"model": "llama-3.1-405b", "gpus_max": 1}, "do not fit"),
        ({"rate": None}, "--rate: say how much traffic"),
        ({"concurrency": 4}, "--rate: say how much traffic"),
        ({"gpus": "h1000"}, "nearest: h100"),
        ({"price": "h100=2"}, "--price: none is given for h200"),
        ({"slo": "ttft_p98<1s"}, "is not a bound"),
        ({"trace": "nowhere.csv"}, "--trace: comes at its own times"),
        ({"rate": -1}, "--rate -1: must be above 0"),
        ({"growth": 1e308}, "--growth 1e+308: must be above 0 and at most 1,000,000,000"),
        ({"rate": 1e9}, "nothing carries this within so many; the nearest"),
        ({"reserve": 1_000_000}, "--reserve 1000000: leaves none of --gpus-max"),
        ({"every": "0s"}, "--every 0: must be above 0"),
        ({"model": "llama-9"}, "llama-9"),
        ({"input": "300k"}, "beyond the model's context of 131,072"),
    ],
)
def test_bad_input_is_one_line(changed: dict[str, object], words: str) -> None:
    with pytest.raises(InputError) as raised:
        recommend(options(**changed))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_command_prints_the_answer_first_and_the_document(loadstone) -> None:  # type: ignore[no-untyped-def]
    flags = (
        "--input 1024 --output 128 --rate 40 --slo ttft_p99<1s,tpot_p99<30ms --gpus h100 --gpus-max 8 --engine vllm"
    )
    shown = loadstone("recommend", "llama-3.1-8b", *flags.split())
    assert shown.code == 0, shown.err
    assert shown.out.startswith("Deploy ")
    document = loadstone("recommend", "llama-3.1-8b", *flags.split(), "--json").document
    assert document["schema"] == 1
    assert {"model", "traffic", "slo", "plans", "rejected", "measure_next", "study"} <= set(document)
    assert {
        "deployment", "replicas", "gpus", "p_slo", "capacity_per_s", "headroom", "usd_per_mtok", "usd_per_month",
        "ttft_s", "tpot_s", "binds", "source", "launch",
    } <= set(document["plans"][0])  # fmt: skip


def test_the_same_seed_gives_the_same_plans() -> None:
    first, again = recommend(options()), recommend(options())
    assert [plan.deployment for plan in first.plans] == [plan.deployment for plan in again.plans]
    assert [plan.p_slo for plan in first.plans] == [plan.p_slo for plan in again.plans]
