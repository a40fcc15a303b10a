"""Fleets for the classes of a mix: how classes divide, and which division is chosen."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asked import FEW, SMALL, plans, small_options
from loadstone.catalogue import parse_deployment
from loadstone.core.errors import InputError
from loadstone.core.plan import TrafficClass
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import fleet_of
from loadstone.predict.simulator.latencies import answered_classes, answered_rows
from loadstone.predict.simulator.parts import hasten
from loadstone.predict.steady_state import Lengths, SteadyState
from loadstone.recommend.demand.classes import classes_of
from loadstone.recommend.demand.options import RecommendOptions
from loadstone.recommend.demand.planning import plan_for
from loadstone.recommend.demand.traffic import traffic_of
from loadstone.recommend.recommend import recommend_mix
from loadstone.recommend.search.layouts import list_machines
from loadstone.recommend.tell.mixed import MixRecommendation
from loadstone.workload.class_requests import ClassRequest
from loadstone.workload.option_fields import options_of
from loadstone.workload.options import Options
from loadstone.workload.planning import plan_of

PARTITIONS = Path(__file__).parents[2] / "benchmarks" / "planner_partitions.py"
CHAT = "chat,share=6,input=512,output=64,slo=ttft_p99<1s,tpot_p99<30ms,priority=high"
DOCUMENTS = "documents,share=1,input=4k,output=200,slo=e2e_p99<30s,priority=low"
NIGHTLY = "nightly,slots=16,input=1k,output=100,slo=e2e_p99<30s"


def asked(*classes: str, **changed: Any) -> RecommendOptions:
    given = {"model": "llama-3.1-8b", **SMALL, "rate": 40, "classes": classes}
    return options_of(given | changed, RecommendOptions)


PLANNED: dict[str, MixRecommendation] = {}


def mixed(*classes: str, **changed: Any) -> MixRecommendation:
    options = asked(*classes, **changed)
    if repr(options) not in PLANNED:
        PLANNED[repr(options)] = recommend_mix(options, FEW)
    return PLANNED[repr(options)]


@pytest.mark.parametrize(("count", "divisions"), [(1, 1), (2, 2), (3, 5), (4, 15)])
def test_up_to_four_classes_divide_in_every_way(count, divisions) -> None:
    classes = [f"c{number},share=1,slo=ttft_p99<1s" for number in range(count)]
    listed = classes_of(asked(*classes)).list_partitions()
    assert len(set(listed)) == divisions
    for sets in listed:
        assert sorted(number for chosen in sets for number in chosen) == list(range(count))


def test_of_many_classes_three_divisions_are_looked_at() -> None:
    classes = [f"c{number},share=1,slo=ttft_p99<1s,priority={number % 2}" for number in range(6)]
    listed = classes_of(asked(*classes)).list_partitions()
    assert [len(sets) for sets in listed] == [1, 2, 6]


def test_fleets_have_one_model_and_slots_are_apart() -> None:
    of_another = "other,share=1,slo=ttft_p99<1s,model=mistral-7b"
    listed = classes_of(asked(CHAT, DOCUMENTS, NIGHTLY, of_another)).list_partitions()
    assert listed == [((0, 1), (2,), (3,)), ((0,), (1,), (2,), (3,))]


def test_what_a_class_asks_is_its_part_of_the_rate() -> None:
    classes = classes_of(asked(CHAT, DOCUMENTS, "fixed,rate=5,slo=ttft_p99<1s", rate=40))
    assert classes.rates == pytest.approx((30.0, 5.0, 5.0))
    options, requests = classes.ask((0, 2))
    assert options.load.rate == pytest.approx(35.0)
    traffic = traffic_of(options, classes=requests)
    counts = np.bincount(traffic.plan.traffic_class) / len(traffic.plan)
    assert counts == pytest.approx([30 / 35, 5 / 35], abs=1e-3)
    assert [bound.name for bound in traffic.bounds] == [
        "chat:ttft_p99", "chat:tpot_p99", "fixed:ttft_p99",
    ]  # fmt: skip


def test_a_mix_of_one_class_is_the_plan_without_a_mix() -> None:
    plain = plans(input="512", output="64", slo="ttft_p99<1s,tpot_p99<30ms", plans=1)
    (division,) = mixed(CHAT).partitions
    (fleet,) = division.fleets
    assert (fleet.plan.deployment, fleet.plan.replicas, division.p_slo) == (
        plain.plans[0].deployment,
        plain.plans[0].replicas,
        plain.plans[0].p_slo,
    )
    assert fleet.plan == plain.plans[0]


def test_the_first_division_is_the_cheapest_in_which_every_class_holds() -> None:
    found = mixed(CHAT, DOCUMENTS)
    holding = [row for row in found.partitions if row.p_slo >= found.confidence]
    assert found.holds
    assert found.partitions[0].usd_per_hour == min(row.usd_per_hour for row in holding)
    ways = [
        [(fleet.classes, fleet.by_priority) for fleet in row.fleets] for row in found.partitions
    ]
    assert [(["chat", "documents"], False)] in ways
    assert [(["chat", "documents"], True)] in ways
    assert [(["chat"], False), (["documents"], False)] in ways
    for row in found.partitions:
        alone = [fleet.plan.p_slo for fleet in row.fleets]
        assert math.prod(alone) - 0.02 <= row.p_slo <= min(alone) + 1e-9
        assert row.gpus == sum(fleet.plan.gpus for fleet in row.fleets)


def test_errors_of_one_model_on_one_gpu_break_fleets_together() -> None:
    """Fleets that are each 80 to 95 % sure hold together more often than if each broke by itself."""
    found = mixed(CHAT, DOCUMENTS)
    apart = next(row for row in found.partitions if len(row.fleets) == 2)
    alone = [fleet.plan.p_slo for fleet in apart.fleets]
    assert apart.p_slo > math.prod(alone) + 0.2 * (min(alone) - math.prod(alone))


def test_one_fleet_saves_what_the_other_division_costs_more() -> None:
    found = mixed(CHAT, DOCUMENTS)
    first, second = found.partitions[:2]
    saving = found.saving
    assert saving.unit == "usd_per_month"
    assert saving.value == pytest.approx(second.usd_per_month - first.usd_per_month)
    assert saving.low <= saving.value <= saving.high
    assert 0 <= saving.probability <= saving.probability + saving.equal <= 1


def test_a_fleet_that_serves_by_priority_is_started_so() -> None:
    found = mixed(CHAT, DOCUMENTS)
    fleet = next(fleet for row in found.partitions for fleet in row.fleets if fleet.by_priority)
    assert "scheduling_policy=priority" in fleet.plan.deployment
    assert any("--scheduling-policy priority" in line for line in fleet.plan.launch)


def test_classes_with_slots_and_other_models_have_their_fleets() -> None:
    found = mixed(
        NIGHTLY, "chat,rate=10,input=256,output=32,slo=ttft_p99<1s,model=mistral-7b", rate=None
    )
    (division,) = found.partitions
    assert [fleet.classes for fleet in division.fleets] == [["nightly"], ["chat"]]
    assert division.fleets[1].plan.deployment.startswith("mistral-7b@")
    assert found.classes[0].kind == "slots"


@pytest.mark.long
def test_the_choice_is_the_best_of_all_that_are_tried_within_its_stated_regret() -> None:
    """Every division and every number of replicas, whole fleets simulated by other requests."""
    spec = importlib.util.spec_from_file_location("partitions", PARTITIONS)
    partitions = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(partitions)
    row = partitions.judge_case(partitions.CASES["alike"], 5, FEW)
    assert row["held"] >= 0.8
    assert row["regret"] <= min(row["stated_regret"], 1.0)


def test_one_adapter_for_all_takes_no_slots() -> None:
    again = LEGAL.replace("legal,share", "contracts,share", 1)
    classes = classes_of(asked(LEGAL, again, CHAT))
    assert [classes.has_adapters(chosen) for chosen in ((0,), (0, 1), (0, 2))] == [
        False,
        False,
        True,
    ]
    assert [request.traffic.adapter for request in classes.ask((0, 1))[1]] == [None, None]


# --- the closed form ------------------------------------------------------------------------------

LEVEL = SteadyState(8.0, 10.0, 4.0, 0.01, 0.1, 0.5, 0.2, prompt_token_s=1e-4)


def mixture(high: int | None, low: int | None) -> Any:
    requests = [
        ClassRequest(TrafficClass("a", slo={"ttft_p99": 1.0}, priority=high), 1.0, workload={"input": "1000"}),
        ClassRequest(TrafficClass("b", slo={"ttft_p99": 1.0}, priority=low), 1.0, workload={"input": "1000"}),
    ]  # fmt: skip
    return traffic_of(small_options(slo=None, rate=1.0, input=None, output=None), classes=requests)


def test_by_closed_form_a_priority_waits_between_alone_and_first_come() -> None:
    traffic = mixture(1, 0)
    plain = LEVEL.latency_s("ttft", 0.99, 128)
    assert traffic.latency_s(LEVEL, "ttft", 0.99, "a") == pytest.approx(plain)
    by_priority = replace(traffic, by_priority=True)
    high, low = (by_priority.latency_s(LEVEL, "ttft", 0.99, name) for name in "ab")
    tail = math.log(LEVEL.busy / 0.01)
    # Half of the work is of either: 1/(1 − ρ/2), and 1/((1 − ρ/2)(1 − ρ)), of 1 − ρ times θ.
    assert high - LEVEL.base_s == pytest.approx(tail * 0.2 * 0.5 / 0.75)
    assert low - LEVEL.base_s == pytest.approx(tail * 0.2 / 0.75)
    assert high < plain < low


def test_by_closed_form_a_class_has_its_own_prompts() -> None:
    requests = [
        ClassRequest(TrafficClass("a", slo={"ttft_p50": 1.0}), 1.0, workload={"input": "100"}),
        ClassRequest(TrafficClass("b", slo={"ttft_p50": 1.0}), 1.0, workload={"input": "900"}),
    ]
    traffic = traffic_of(
        small_options(slo=None, rate=1.0, input=None, output=None), classes=requests
    )
    assert traffic.lengths == Lengths(500.0, 128.0, 0.0)
    assert traffic.varies == pytest.approx(0.64)  # (400/500)²
    short, long = (traffic.latency_s(LEVEL, "ttft", 0.5, name) for name in "ab")
    assert long - short == pytest.approx(800 * LEVEL.prompt_token_s)


# --- two servers, case 7: apart, pooled, pooled by priority ----------------------------------------


def test_priorities_let_two_servers_hold_what_no_other_division_does() -> None:
    """Two servers of one request at a time, 0.8 of each asked for: the first class waits 4 service
    times on average where it is apart, 1.8 in a pool, and 0.6 by priority (M/M/c). So of a bound of
    1 only the pool by priority holds it."""

    def wait(*names: str, servers: int, argument: str = "") -> dict[str, float]:
        text = f"llama-3.1-8b@1xh100/max_num_seqs=1,engine=vllm{argument}"
        fleet = replace(fleet_of(parse_deployment(text)), replicas=servers)
        texts = [
            f"{name},rate=1,input=16,output=lognormal:200:0.8326,priority={1 - number}"
            for number, name in enumerate(names)
        ]
        plan = plan_of(options_of({"classes": texts, "requests": 12_000, "warmup": 0}, Options))
        service_s = fleet.model.step_s(1, 116.0, ()) * float(plan.output_tokens.mean())
        busy = hasten(plan, 0.8 / service_s)
        run = run_cell(busy, 0, fleet, grace_s=math.inf)
        rows, places = answered_rows(run), answered_classes(run, busy)
        waits = (rows["first"] - rows["intended"]) / service_s
        return {name: float(waits[places == at].mean()) for at, name in enumerate(names)}

    apart, pooled = wait("a", servers=1), wait("a", "b", servers=2)
    by_priority = wait("a", "b", servers=2, argument=",scheduling_policy=priority")
    assert by_priority["a"] < 1 < pooled["a"] < apart["a"]
    assert pooled["b"] < by_priority["b"]


# --- bad input ------------------------------------------------------------------------------------

BAD = [
    ((CHAT,), {"slo": "ttft_p99<1s"}, "give each class its slo"),
    ((CHAT,), {"input": "512"}, "each class says this of itself"),
    ((CHAT,), {"rate": None}, "need the --rate"),
    ((CHAT,), {"concurrency": 8}, "give the class slots"),
    (("bare,share=1",), {}, "class bare: has no bound to plan for"),
    ((NIGHTLY,), {}, "--rate: all classes have slots"),
    ((CHAT, CHAT), {}, "two classes have this name"),
    ((CHAT,), {"gpus": "h1000"}, "h1000"),
    ((CHAT,), {"pools": True}, "--mix and --pools"),
    ((CHAT,), {"objective": "throughput"}, "--objective throughput"),
    ((CHAT, "b,rate=50,slo=ttft_p99<1s"), {}, "nothing is left"),
    ((CHAT,), {"gpus_max": 1, "rate": 4000}, "--gpus-max 1"),
]  # fmt: skip


@pytest.mark.parametrize(("classes", "changed", "words"), BAD)
def test_bad_input_is_one_line(classes, changed, words) -> None:
    with pytest.raises(InputError) as raised:
        mixed(*classes, **changed)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_command_prints_the_decision_and_writes_a_page(loadstone, tmp_path: Path) -> None:
    file = tmp_path / "mix.yaml"
    file.write_text(
        "classes:\n"
        "- {name: chat, share: 60%, input: 256, output: 16, slo: 'ttft_p99<1s', priority: high}\n"
        "- {name: batch, share: 40%, input: 512, output: 16, slo: 'e2e_p99<20s'}\n"
    )
    flags = "--rate 20 --gpus h100 --engine vllm --tp 1 --kv-dtype bf16 --weights-dtype bf16 --gpus-max 4"
    page = tmp_path / "plans.html"
    shown = loadstone(
        "recommend", "llama-3.1-8b", "--mix", str(file), *flags.split(), "-o", str(page)
    )
    assert shown.code == 0, shown.err
    assert shown.out.startswith("Deploy ")
    assert "P(every class)" in shown.out
    assert "Fleet 1" in page.read_text()
    refused = loadstone(
        "recommend", "llama-3.1-8b", "--mix", str(tmp_path / "no.yaml"), *flags.split()
    )
    assert refused.code == 2
    assert "Traceback" not in refused.err


BASE = "base,share=3,input=512,output=64,slo=ttft_p99<2s,tpot_p99<80ms"
ENGINES = ("vllm", "sglang")
LEGAL = BASE.replace("base,share=3", "legal,share=1") + ",adapter=legal"
USERS = BASE.replace("base,share=3", "users,share=1") + ",adapters=20"


def slots(options: RecommendOptions, of_mix: tuple[ClassRequest, ...]) -> dict[str, str | None]:
    """Return the slots for adapters that each engine's deployments have."""
    planning = plan_for(options, classes=of_mix)
    return {worker.engine: worker.argument("max_loras") for worker in list_machines(planning)}


def test_a_fleet_of_several_adapters_has_a_slot_for_each() -> None:
    classes = classes_of(asked(BASE, LEGAL, USERS, engine=ENGINES))
    # One adapter alone is merged into the weights: a deployment of its own without slots.
    assert slots(*classes.ask((0,))) == slots(*classes.ask((1,))) == dict.fromkeys(ENGINES)
    # SGLang needs a slot for requests without an adapter too.
    assert slots(*classes.ask((0, 1))) == {"vllm": "1", "sglang": "2"}
    assert slots(*classes.ask((0, 1, 2))) == {"vllm": "21", "sglang": "22"}
    options, of_mix = classes.ask((2,))
    assert slots(options, of_mix) == {"vllm": "20", "sglang": "20"}
    assert len(traffic_of(options, 0, classes=of_mix).lengths.adapters) == 20
    mine = classes_of(asked(BASE, LEGAL, arguments=("max_loras=4",)))
    assert slots(*mine.ask((0, 1))) == {"vllm": "4"}


def test_adapters_on_one_fleet_against_a_deployment_for_each() -> None:
    low = mixed(BASE, LEGAL, rate=4)
    first, *others = low.partitions
    # Both fit on one GPU at so low a load, and two deployments take two.
    assert [fleet.classes for fleet in first.fleets] == [["base", "legal"]]
    assert "max_loras=1" in first.fleets[0].plan.deployment
    apart = next(each for each in others if len(each.fleets) == 2)
    assert not any("max_loras" in fleet.plan.deployment for fleet in apart.fleets)
    assert apart.gpus == 2 * first.gpus
