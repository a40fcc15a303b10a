"""Plans from end to end: their probabilities, relations between them, what is refused, what is
printed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from asked import BOUNDS, PLANNED, options, planning, plans, small_options, small_planning
from loadstone.catalogue import parse_deployment
from loadstone.core.errors import InputError
from loadstone.recommend.demand.effort import Effort
from loadstone.recommend.judge.choices import PlanChoice, rank_choices
from loadstone.recommend.judge.confirm import Confirmation, ConfirmedPlan
from loadstone.recommend.judge.errors import draw_errors
from loadstone.recommend.recommend import recommend
from loadstone.recommend.search.candidates import search
from loadstone.recommend.search.finalists import rank_candidates, simulate_finalists
from loadstone.recommend.tell.document import Recommendation
from loadstone.studies.file import load_entries, read_study
from loadstone.studies.plan import plan_study
from tiers import further

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def found() -> Recommendation:
    return recommend(options())


def test_plans_are_few_and_the_first_has_the_least_regret(found) -> None:
    assert len(found.plans) == 3
    regrets = [plan.regret for plan in found.plans if plan.p_slo >= 0.8]
    assert regrets == sorted(regrets)
    for plan in found.plans:
        assert 0 <= plan.p_slo <= 1
        assert plan.gpus == plan.replicas * parse_deployment(plan.deployment).gpus <= 8
        assert plan.usd_per_mtok is not None
        assert plan.usd_per_mtok.low <= plan.usd_per_mtok.value <= plan.usd_per_mtok.high
        assert plan.headroom == pytest.approx(plan.capacity_per_s / 40 - 1)
        assert plan.launch
    assert found.deployments_ranked > 100


def test_every_finalist_is_a_point_and_none_on_the_front_is_dominated(found) -> None:
    front = [each for each in found.finalists if each.front]
    assert front
    for mine in front:
        for other in found.finalists:
            assert not (other.usd_per_month < mine.usd_per_month and other.p_slo > mine.p_slo)
    for each in found.finalists:
        assert len(each.loads) == len(each.worst) > 1
        assert 0 < each.needed_low <= each.needed_high


def test_finalists_that_are_no_plan_are_listed_with_a_reason(found) -> None:
    shown = {plan.deployment for plan in found.plans}
    rejected = {each.deployment: each.why for each in found.rejected}
    assert not shown & set(rejected)
    for each in found.finalists:
        assert (each.deployment in shown) != ("% sure; " in rejected.get(each.deployment, ""))


@pytest.mark.process
def test_the_next_measurement_is_a_command_of_bench(found) -> None:
    step = found.measure_next
    assert step is not None
    assert step.regret_after < step.regret_now
    words = step.command.split()
    assert words[:3] == ["loadstone", "bench", "--launch"]
    assert parse_deployment(words[3].strip("'"))
    assert "--slo" in words


def test_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.exponential(0.1, 400))
    lines = [f"{at:.3f},{rng.integers(200, 800)},{rng.integers(20, 80)}" for at in times]
    trace.write_text("\n".join(["timestamp_s,input_tokens,output_tokens", *lines]) + "\n")
    document = recommend(
        options(rate=None, input=None, output=None, trace=str(trace), gpus="h100", price="h100=2")
    )
    assert document.traffic.trace == str(trace)
    assert document.plans[0].p_slo > 0.5


# --- relations between plans ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"slo": "tpot_p99<60ms"}, {"slo": "tpot_p99<15ms"}),
        ({"rate": 60}, {"rate": 240}),
        ({"rate": None, "concurrency": 200}, {"rate": None, "concurrency": 800}),
        ({"output": "64"}, {"output": "256"}),
        ({"reserve": 0}, {"reserve": 2}),
        *further(
            ({"slo": "ttft_p99<3s"}, {"slo": "ttft_p99<250ms"}),
            ({"slo": "e2e_p99<10s"}, {"slo": "e2e_p99<2s"}),
            ({"slo": BOUNDS}, {"slo": f"{BOUNDS},e2e_p90<1.5s"}),
            ({"input": "512"}, {"input": "4096"}),
            ({"miss_cost": 0.1}, {"miss_cost": 30.0}),
            values=2,
        ),
    ],
    ids=lambda each: " ".join(f"{name}={value}" for name, value in each.items()),
)
def test_what_asks_for_more_never_needs_fewer_gpus(less, more) -> None:
    few, many = (plans(**{"rate": 120} | changed).plans[0].gpus for changed in (less, more))
    assert few <= many


@pytest.mark.parametrize(
    ("load", "amount"), [("rate", 100), ("concurrency", 200), *further(("rate", 300), values=2)]
)
def test_twice_the_traffic_needs_about_twice_the_replicas(load: str, amount: int) -> None:
    asked = {"rate": None, "gpus_max": 256, "arguments": ("max_num_seqs=32",)}
    once, twice = (plans(**(asked | {load: factor * amount})).plans[0] for factor in (1, 2))
    assert 1.4 < twice.gpus / once.gpus < 2.6  # by whole replicas, and with another probability
    carried = [plan.capacity_per_s / plan.gpus for plan in (once, twice)]
    assert carried[0] == pytest.approx(carried[1], rel=0.15)


@pytest.mark.parametrize("growth", [3.0, *further(0.5)])
def test_growth_is_more_traffic_and_nothing_else(growth: float) -> None:
    assert plans(rate=100, growth=growth).plans == plans(rate=100 * growth).plans


@pytest.mark.parametrize("factor", [3.0, *further(0.25)])
def test_prices_in_another_currency_change_no_plan(factor: float) -> None:
    before, after = (plans(rate=100, price=f"h100={2 * scale}").plans for scale in (1, factor))
    assert [(each.deployment, each.replicas, each.p_slo) for each in before] == [
        (each.deployment, each.replicas, each.p_slo) for each in after
    ]
    for one, other in zip(before, after, strict=True):
        assert other.usd_per_month.value == pytest.approx(factor * one.usd_per_month.value)
        assert other.usd_per_mtok.value == pytest.approx(factor * one.usd_per_mtok.value)
        assert other.regret == pytest.approx(factor * one.regret)


@pytest.mark.parametrize("dearer", [3.0, *further(1.5, 10.0)])
def test_a_dearer_gpu_is_never_chosen_for_it(dearer: float) -> None:
    before, after = (
        plans(gpus="h100,h200", price=f"h100={2 * scale},h200=3", rate=100).plans[0]
        for scale in (1, dearer)
    )
    assert "h100" in before.deployment or "h100" not in after.deployment
    assert after.usd_per_month.value >= before.usd_per_month.value


@pytest.mark.parametrize(
    ("price", "chosen"), [("h100=9,h200=0.5", "h200"), ("h100=0.5,h200=9", "h100")]
)
def test_prices_decide_between_gpus(price: str, chosen: str) -> None:
    assert chosen in plans(gpus="h100,h200", price=price).plans[0].deployment


def test_more_is_paid_for_more_probability_where_a_miss_costs_more() -> None:
    careless, careful = (plans(miss_cost=cost, confidence=0.0).plans[0] for cost in (0.1, 20))
    assert careful.p_slo > careless.p_slo
    assert careful.usd_per_month.value > careless.usd_per_month.value


@pytest.mark.parametrize("count", [1, 2])
def test_as_many_plans_as_asked_for_and_the_first_are_the_same(count: int) -> None:
    several = plans(plans=3).plans
    assert plans(plans=count).plans == several[:count]


def test_the_same_seed_gives_the_same_plans() -> None:
    first = plans(seed=7)
    PLANNED.clear()
    again = plans(seed=7)
    assert first.plans == again.plans
    assert first.measure_next == again.measure_next


@pytest.mark.parametrize("reserve", [3, 7])
def test_deployments_that_the_reserve_leaves_no_gpus_for_are_left_out(reserve: int) -> None:
    """Of eight GPUs: eight replicas of one GPU, or two of four."""
    document = plans(rate=4, reserve=reserve, gpus_max=8, tp=(1, 2, 4))
    assert all(each.replicas > reserve for each in document.finalists)
    assert document.plans[0].replicas > reserve


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"price": ()}, "no prices are given: plans are ranked by their number of GPUs"),
        ({"weights_dtype": "fp8", "kv_dtype": "fp8"}, "in fp8 it is published as nvidia/"),
    ],
)
def test_notes_say_what_was_assumed(changed, words) -> None:
    document = plans(**changed)
    other = plans(weights_dtype="bf16")
    assert any(words in note for note in (*document.notes, *document.plans[0].warnings))
    assert not any(words in note for note in (*other.notes, *other.plans[0].warnings))
    assert (document.plans[0].usd_per_month is None) == ("price" in changed)


@pytest.mark.parametrize("rate", [170, *further(100, 260)])
def test_the_seed_alone_moves_no_choice(rate: int) -> None:
    first, *others = (plans(rate=rate, seed=seed) for seed in (0, 1, 2))
    for other in others:
        assert [(each.deployment, each.replicas) for each in other.plans] == [
            (each.deployment, each.replicas) for each in first.plans
        ]
        assert other.plans[0].tpot_s != first.plans[0].tpot_s


def test_every_gpu_that_was_named_has_its_best_plan() -> None:
    document = plans(
        gpus="h100,h200,l4",
        price="h100=2,h200=3,l4=0.5",
        rate=100,
        slo="tpot_p99<30ms",
        gpus_max=16,
    )
    assert [each.gpu for each in document.by_gpu] == ["h100", "h200", "l4"]
    here = {each.gpu: each for each in document.by_gpu}
    first = document.plans[0]
    for each in document.by_gpu:
        if each.deployment is None:
            assert each.why
        else:
            assert each.more_usd_per_month == pytest.approx(
                each.usd_per_month - first.usd_per_month.value
            )
            assert each.p_slo >= 0.8 or each.p_slo <= first.p_slo
    assert here["h200"].deployment is not None


@pytest.mark.parametrize(
    "changed", [{"rate": 100}, {"rate": 200}, {"rate": None, "concurrency": 300}]
)
def test_the_first_plan_holds_with_confidence_or_nothing_does(changed) -> None:
    document = plans(**changed)
    assert document.holds == (document.plans[0].p_slo >= 0.8)
    assert document.plans[0].why
    assert document.plans[0].usd_per_month_one_down == pytest.approx(
        document.plans[0].usd_per_month.value * (1 + 1 / document.plans[0].replicas)
    )
    sure = [each.p_slo >= 0.8 for each in document.plans]
    assert sure == sorted(sure, reverse=True)


@pytest.mark.parametrize("seed", [0, 1])
def test_table_chart_and_gpus_state_one_probability(seed: int) -> None:
    document = plans(rate=100, seed=seed, gpus="h100,h200", price="h100=2,h200=3")
    points = {each.deployment: each for each in document.finalists}
    for plan in document.plans:
        point = points[plan.deployment]
        assert (point.p_slo, point.replicas, point.asked) == (plan.p_slo, plan.replicas, True)
        assert f"{plan.p_slo:.0%} sure, because" in plan.why
    for each in document.by_gpu:
        assert each.deployment is None or points[each.deployment].p_slo == each.p_slo


def test_a_plan_that_breaks_on_the_whole_trace_is_not_said_to_hold(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    lines = [f"{0.1 * at:.1f},300,30" for at in range(300)]
    trace.write_text("\n".join(["timestamp_s,input_tokens,output_tokens", *lines]) + "\n")
    asked = small_planning(rate=None, input=None, output=None, trace=str(trace), engine="vllm")
    asked = dataclasses.replace(asked, effort=Effort(whole_requests=10))
    finalists = draw_errors(simulate_finalists(rank_candidates(asked), asked), asked)
    choices = rank_choices(finalists, asked)
    confirmation = Confirmation(choices, asked, check=lambda *_: (False, 300))
    confirmed = confirmation.confirm()
    assert (confirmation.holds(confirmed[0]), confirmed[0].figures.p_slo) == (False, 0.0)
    assert confirmed[0].on_whole == 300


@pytest.mark.parametrize(
    ("likely", "replicas"), [((0.9, 0.9, 0.9), 1), ((0.7, 0.897, 0.9), 2), ((0.9, 0.8, 0.9), 3)]
)
def test_replicas_that_do_not_help_are_spared(likely, replicas: int) -> None:
    """Of plans with one replica to three, as likely as that; a miss costs fifty of them."""
    finalist = object()
    choices = [
        PlanChoice(finalist, count, 0.9, float(count), np.zeros(1), losses=np.full(10, 50.0))  # type: ignore[arg-type]
        for count in (1, 2, 3)
    ]

    def simulate(choice, *_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(p_slo=likely[choice.replicas - 1], route="least-busy")

    first = ConfirmedPlan(choices[2], simulate(choices[2]))  # type: ignore[arg-type]
    spared = Confirmation(choices, planning(), simulate).spare_replicas(first)  # type: ignore[arg-type]
    assert spared.choice.replicas == replicas


@pytest.mark.parametrize(("second", "tried"), [(1.5, ["a", "b"]), (4.0, ["a"])])
def test_a_plan_that_had_to_grow_is_weighed_against_the_next(
    second: float, tried: list[str]
) -> None:
    """Plan a holds with three replicas, whose regret is 3; b would be next with `second`."""
    counted, asked = [], planning(plans=1)

    def choice(name: str, replicas: int, regret: float) -> PlanChoice:
        worker = SimpleNamespace(gpu=SimpleNamespace(name="h100"))
        candidate = SimpleNamespace(worker=worker)
        finalist = finalists.setdefault(name, SimpleNamespace(name=name, candidate=candidate))
        return PlanChoice(finalist, replicas, 0.9, float(replicas), np.array([regret]))  # type: ignore[arg-type]

    def simulate(each: PlanChoice, *_: object, **__: object) -> SimpleNamespace:
        counted.append(each.finalist.name)
        holds = each.replicas > 2 or each.finalist.name == "b"
        p_slo = 0.9 if holds else 0.5
        return SimpleNamespace(p_slo=p_slo, output_tokens_per_s=1.0, route="least-busy")

    finalists: dict[str, SimpleNamespace] = {}
    choices = [choice("a", 1, 1.0), choice("b", 2, second), choice("a", 3, 3.0)]
    found = Confirmation(choices, asked, simulate).confirm()  # type: ignore[arg-type]
    assert list(dict.fromkeys(counted)) == tried
    assert found[0].choice.finalist.name == tried[-1]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        pytest.param({"burstiness": 0.5}, "--burstiness 0.5", marks=pytest.mark.slow),
        ({"reserve": 2}, "--rate"),
        ({"rate": None, "concurrency": 300, "reserve": 2}, "--concurrency"),
    ],
)
def test_what_is_measured_is_the_load_that_one_replica_must_carry(
    changed, words: str, tmp_path: Path
) -> None:
    """The spread of arrivals too, and with the reserve down."""
    path = tmp_path / "verify.yaml"
    asked = {"rate": 100, "miss_cost": 30.0} | changed | {"study": str(path)}
    document = plans(**asked)
    load, reserve = asked["rate"] or asked["concurrency"], asked.get("reserve", 0)
    assert document.measure_next is not None
    command = document.measure_next.command.split()
    assert words in document.measure_next.command
    (read,) = [load for _, load in load_entries(read_study(path).study)]
    assert read.get("burstiness", 1) == asked.get("burstiness", 1)
    name = "rate" if asked["rate"] else "concurrency"
    share = load / (document.plans[0].replicas - reserve)
    assert any(each == pytest.approx(share, rel=0.1, abs=1) for each in read[name])
    told = float(command[command.index(f"--{name}") + 1])
    measured = document.measure_next.deployment
    replicas = [
        each.replicas - reserve for each in document.finalists if each.deployment == measured
    ]
    assert any(told == pytest.approx(load / each, rel=0.5) for each in replicas)


def test_llama_cpp_is_planned_without_the_command_that_names_its_weights() -> None:
    plan = plans(
        engine="llama.cpp", rate=2, gpus="l40s", price="l40s=1", slo="tpot_p50<60ms"
    ).plans[0]
    assert plan.launch == []
    assert any("--model" in each for each in plan.warnings)


def test_answers_of_one_token_cost_what_one_token_costs() -> None:
    document = plans(output="1", slo="ttft_p99<1s")
    first = document.plans[0]
    assert document.traffic.output_tokens == 1
    tokens = document.traffic.value * 730 * 3600
    assert first.usd_per_mtok.value == pytest.approx(first.usd_per_month.value / tokens * 1e6)


@pytest.mark.parametrize("output", ["1", "8"])
def test_many_short_answers_at_once_take_what_carries_them(output: str) -> None:
    """They wait for one another's prompts: 100 a replica, of 1,024 tokens each."""
    asked = {"rate": None, "concurrency": 400, "output": output, "slo": "ttft_p90<3s"}
    found = search(small_planning(**asked))
    assert 2 <= found.candidates[0].gpus <= 6
    assert plans(**asked).plans[0].gpus <= 6


# --- by throughput --------------------------------------------------------------------------------


def batch(**changed) -> Recommendation:
    asked = {
        "rate": None,
        "concurrency": 300,
        "slo": "e2e_p99<20s",
        "objective": "throughput",
        "gpus_max": 8,
    }
    return plans(**(asked | changed))


def test_by_throughput_all_gpus_are_taken_and_the_first_plan_gives_most() -> None:
    document, cheapest = batch(), batch(objective="cost")
    assert document.plans[0].gpus == 8 > cheapest.plans[0].gpus
    rates = [each.output_tokens_per_s for each in document.plans if each.p_slo >= 0.8]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 2 * cheapest.plans[0].output_tokens_per_s
    assert document.plans[0].usd_per_mtok.low < document.plans[0].usd_per_mtok.value
    assert (
        document.plans[0].usd_per_month.low == document.plans[0].usd_per_month.high == 8 * 2 * 730
    )


@pytest.mark.parametrize(("changed", "gpus"), [({"budget": "7.9/hour"}, 3), ({"gpus_max": 5}, 5)])
def test_by_throughput_a_plan_takes_what_the_budget_pays_for(changed, gpus) -> None:
    assert {
        each.gpus for each in batch(tp=(1,), arguments=("max_num_seqs=64",), **changed).plans
    } <= {gpus, gpus - 1}


def test_with_too_few_gpus_the_nearest_is_named() -> None:
    document = plans(rate=260, confidence=0.97, gpus_max=12)
    assert not document.holds
    assert document.plans[0].p_slo == max(each.p_slo for each in document.plans) < 0.97


# --- a study --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"rate": None, "concurrency": 64},
        {"prefix": 256, "prefix_groups": 4},
        {"range_ratio": 0.5},
    ],
)
def test_the_study_that_it_writes_can_be_read(changed, tmp_path: Path) -> None:
    path = tmp_path / "verify.yaml"
    document = plans(study=str(path), **changed)
    assert document.study == str(path)
    read = read_study(path)
    assert read.study.slo == BOUNDS
    launched = [parse_deployment(launch.deployment) for launch in plan_study(read)]
    planned = [parse_deployment(plan.deployment) for plan in document.plans]
    assert all(each in planned for each in launched)
    assert all(each in launched for each in planned)


# --- what is refused ------------------------------------------------------------------------------

REFUSED = [
    ({"slo": "tpot_p99<0.1ms"}, "faster than the hardware allows"),
    ({"rate": 100_000}, "nothing carries this within so many; the nearest,"),
    ({"rate": 1e9}, "nothing carries this within so many; the nearest"),
    ({"model": "llama-3.1-405b", "gpus_max": 1}, "do not fit"),
    ({"model": "llama-9"}, "llama-9"),
    (
        {"output": "1", "slo": "ttft_p99<1s,tpot_p90<50ms"},
        "--slo tpot_p90: answers of one token have no time",
    ),
    ({"rate": None}, "--rate: say how much traffic"),
    ({"concurrency": 4}, "--rate, --concurrency: are two loads; give one"),
    (
        {"rate": None, "concurrency": 4, "burstiness": 0.5},
        "--burstiness: says how arrivals at a rate are spread",
    ),
    ({"confidence": 1.0}, "--confidence 1: must be 0 to 0.99"),
    ({"rate": -1}, "--rate -1: must be above 0"),
    ({"rate": None, "concurrency": 0}, "--concurrency 0: must be 1 to 1,000,000,000"),
    ({"growth": 1e308}, "--growth 1e+308: must be above 0 and at most 1,000,000,000"),
    ({"growth": 0.0}, "--growth 0: must be above 0"),
    ({"gpus": "h1000"}, "nearest: h100"),
    ({"gpus_max": 0}, "--gpus-max 0: must be 1 to 65,536"),
    ({"engine": "vlm"}, "vlm"),
    ({"price": "h100=2"}, "--price: none is given for h200"),
    ({"price": "h100=-2"}, "--price 'h100=-2': write GPU=DOLLARS"),
    ({"slo": "ttft_p98<1s"}, "is not a bound"),
    ({"slo": "ttft<500"}, "500 seconds? write 500ms or 500s"),
    ({"slo": "ttft_p99<0"}, "can never be met"),
    ({"trace": "nowhere.csv"}, "--trace: comes at its own times"),
    ({"trace": "nowhere.csv", "rate": None}, "--input: a trace has its own lengths"),
    ({"trace": "nowhere.csv", "rate": None, "input": None, "output": None}, "nowhere.csv"),
    ({"reserve": 1_000_000}, "--reserve 1000000: leaves none of --gpus-max"),
    ({"every": "0s"}, "--every 0: must be above 0"),
    ({"input": "300k"}, "beyond the model's context of 131,072"),
    ({"acceptance": 1.5}, "--acceptance 1.5: must be 0 to 1"),
    ({"plans": 0}, "--plans 0: must be 1 to 20"),
    ({"weights_dtype": "fp7"}, "fp7"),
    ({"tp": (3,)}, "--tp: no deployment can be made of these"),
    ({"budget": "30k/month", "price": ()}, "--budget: needs prices"),
    ({"objective": "throughput"}, "--objective throughput: is of a batch; give --concurrency"),
    (
        {"objective": "throughput", "rate": None, "concurrency": 64, "budget": "1/hour"},
        "--gpus-max, --budget, --power-budget: give not one replica beyond --reserve",
    ),
    (
        {
            "objective": "throughput",
            "rate": None,
            "concurrency": 64,
            "budget": "9/hour",
            "price": (),
        },
        "needs prices",
    ),
]


@pytest.mark.parametrize(("changed", "words"), REFUSED)
def test_bad_input_is_one_line(changed, words) -> None:
    two = {"gpus": "h100,h200", "price": "h100=2,h200=3", "gpus_max": 8}
    with pytest.raises(InputError) as raised:
        recommend(small_options(**(two | changed)))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--rate 40", "--slo"),
        ("--rate 40 --slo ttft_p99<1s", "--gpus"),
        ("--rate 40 --slo ttft_p98<1s --gpus h100", "is not a bound"),
        ("--slo ttft_p99<1s --gpus h100", "--rate: say how much traffic"),
        ("--rate x --slo ttft_p99<1s --gpus h100", "--rate"),
        ("--rate 40 --slo ttft_p99<1s --gpus h1000", "nearest: h100"),
        (
            "--rate 40 --slo ttft_p99<1s --gpus h100 --budget much",
            "no budget; write e.g. 30k/month",
        ),
        ("--rate 40 --slo ttft_p99<1s --gpus h100 --price h100=two", "write GPU=DOLLARS"),
        ("--rate 40 --slo ttft_p99<1s --gpus h100 --gpus-max 0", "must be 1 to 65,536"),
        (
            "--rate 1e6 --slo ttft_p99<1s --gpus h100 --engine vllm",
            "nothing carries this within so many",
        ),
    ],
)
def test_the_command_refuses_in_one_line_with_code_2(flags, words, loadstone) -> None:
    shown = loadstone("recommend", "llama-3.1-8b", *flags.split())
    assert shown.code == 2
    assert words in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""


def test_the_command_prints_the_answer_first_and_the_document(loadstone) -> None:
    flags = "--rate 40 --slo ttft_p99<1s,tpot_p99<30ms --gpus h100 --gpus-max 2 --engine vllm --tp 1 --kv-dtype bf16"
    shown = loadstone("recommend", "llama-3.1-8b", *flags.split())
    assert shown.code == 0, shown.err
    assert shown.out.startswith("Deploy ")
    document = loadstone("recommend", "llama-3.1-8b", *flags.split(), "--json").document
    assert document["schema"] == 1
    assert {"model", "traffic", "slo", "plans", "rejected", "measure_next", "study"} <= set(
        document
    )
    assert {
        "deployment", "replicas", "gpus", "p_slo", "capacity_per_s", "headroom", "usd_per_mtok", "usd_per_month",
        "ttft_s", "tpot_s", "binds", "source", "launch",
    } <= set(document["plans"][0])  # fmt: skip
