"""Plans with a prefill and a decode pool: ratios by rate matching, and whether splitting pays."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from asked import finalist, plans, small_planning
from loadstone.catalogue import parse_deployment
from loadstone.engines.handover import handover_problem
from loadstone.predict.pool_rates import decode_tpot_s, most_users, pool_rates
from loadstone.recommend.demand.effort import Effort
from loadstone.recommend.judge.choices import rank_choices
from loadstone.recommend.judge.split import compare_split
from loadstone.recommend.search.candidates import Search
from loadstone.recommend.search.curve import Curve, SimulatedLoad
from loadstone.recommend.search.finalists import choose_finalists
from loadstone.recommend.search.measured import MeasuredRun
from loadstone.recommend.search.pools import search_pools
from loadstone.recommend.tell.document import DeploymentPlan, LatencySpan
from loadstone.recommend.tell.notes import tell_split
from loadstone.recommend.tell.share import write_study
from loadstone.studies.file import read_study
from loadstone.studies.plan import plan_study

ASKED = {
    "input": "4096", "output": "256", "rate": 12, "slo": "ttft_p99<1s,tpot_p99<20ms", "tp": (1, 2), "pools": True,
}  # fmt: skip
NOTHING = Search([], [], 0)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("load", [{}, {"rate": None, "concurrency": 64}])
def test_ratios_come_near_to_balancing_both_pools(engine: str, load: dict[str, object]) -> None:
    asked = small_planning(**ASKED | {"engine": engine, "price": ()} | load)
    found = search_pools(NOTHING, asked)
    candidates = found.candidates
    assert found.looked_at
    assert candidates
    assert [each.cost for each in candidates] == sorted(each.cost for each in candidates)
    for each in candidates:
        assert handover_problem(each.deployment) is None
        assert each.gpus <= asked.search.gpus_max
        assert each.replicas == math.ceil(asked.traffic.demand / each.load * (1 - 1e-9))
        assert each.fleet is not None
        # What both pools carry at most, without queues, is beyond what is promised.
        bare = pool_rates(each.deployment, 4096, 256)
        asked_per_s = each.level.rate_per_s * each.fleet.replicas
        assert asked_per_s <= min(bare.prefill_per_s, bare.decode_per_s)
    best = pool_rates(candidates[0].deployment, 4096, 256)
    assert 1 / 3 < best.prefill_per_s / best.decode_per_s < 3


@pytest.mark.parametrize("found_again", [True, False])
def test_pools_that_were_measured_are_finalists_where_they_carry_the_traffic(
    found_again: bool,
) -> None:
    asked = dataclasses.replace(small_planning(**ASKED | {"price": ()}), effort=Effort(of_pools=1))
    found = search_pools(NOTHING, asked).candidates
    name = (
        found[-1].deployment.name
        if found_again
        else "llama-3.1-8b@prefill=9*(1xh100/tp1)+decode=1xh100/tp1"
    )
    run = MeasuredRun(parse_deployment(name).name, np.zeros(2))
    chosen = choose_finalists(found, [run], asked)
    assert (run.deployment in {each.deployment.name for each in chosen}) == found_again


def test_bounds_that_no_worker_holds_leave_no_pools() -> None:
    for slo in ("ttft_p99<1ms", "tpot_p99<1ms"):
        assert search_pools(NOTHING, small_planning(**ASKED | {"slo": slo})).candidates == []
    asked = small_planning(**ASKED | {"engine": "llama.cpp"})
    assert search_pools(NOTHING, asked).candidates == []


@pytest.mark.long
@pytest.mark.parametrize("more", [{}, {"rate": None, "concurrency": 48, "objective": "throughput"}])
def test_it_says_whether_splitting_pays(more: dict[str, object]) -> None:
    document = plans(**ASKED | {"engine": "sglang", "gpus_max": 16} | more)
    split = document.split
    assert split is not None
    assert split.pays == ("prefill=" in document.plans[0].deployment)
    assert "prefill=" in split.split
    assert "prefill=" not in split.whole
    assert 0 <= split.probability <= 1 - split.equal <= 1
    assert split.limit in ("prefill", "decode", "link", "none")
    assert sum("splitting prefill and decode" in note for note in document.notes) == 1
    here = [each for each in split.by_load if each.load == document.traffic.value]
    assert [(each.pays, each.probability) for each in here] == [(split.pays, split.probability)]
    assert [each.load for each in split.by_load] == sorted({each.load for each in split.by_load})
    assert sum("splitting pays" in note for note in document.notes) == 1
    for plan in document.plans:
        assert ("prefill=" in plan.deployment) == any(
            "--pd-disaggregation" in line for line in plan.launch
        )
    assert plans(**ASKED | {"engine": "sglang", "gpus_max": 16, "pools": False}).split is None


def test_a_study_of_plans_has_their_pools(tmp_path: Path) -> None:
    names = [
        parse_deployment(each).name for each in (SPLIT, WHOLE, f"{SPLIT},kv=fp8,engine=sglang")
    ]
    write_study(small_planning(**ASKED, study=str(tmp_path / "study.yaml")), names, 1)
    launches = plan_study(read_study(tmp_path / "study.yaml"))
    assert {each.parsed.name for each in launches if each.parsed is not None} == set(names)


WHOLE, SPLIT = "llama-3.1-8b@1xh100/tp1", "llama-3.1-8b@prefill=1xh100/tp1+decode=2xh100/tp2"


@pytest.mark.parametrize(
    ("whole", "split", "pays_from", "told"),
    [
        # 3 GPUs carry what 4 single ones do: 4 beside 3 under a load of 4, 6 beside 6 under 5.7,
        # and 8 beside 6.
        (
            [1.0] * 16,
            [4.0] * 16,
            8.0,
            "pays from 8 requests/s on, better with 100% there, as good with 0%",
        ),
        (
            [1.0] * 16,
            [4.0] * 12 + [2.5] * 4,
            8.0,
            "pays from 8 requests/s on, better with 75% there, as good with",
        ),
        (
            [1.0] * 16,
            [2.0] * 16,
            None,
            "splitting pays at none of loads from 0.25 to 64 requests/s",
        ),
        (
            [1.0] * 16,
            [100.0] * 16,
            4.0,
            "pays from 4 requests/s on, better with 100% there, as good with 0%",
        ),
        ([1.0] * 16, [3.0] * 16, None, "better with at most 0%"),
    ],
)
def test_it_says_from_which_load_splitting_pays(
    whole: list[float], split: list[float], pays_from: float | None, told: str
) -> None:
    asked = small_planning(rate=4, pools=True, confidence=0.0, miss_cost=0.1)
    curve = Curve([SimulatedLoad(9.0, False, {}, 0, 0, 0, limit="decode")], 4.0)
    known = [
        dataclasses.replace(finalist(*each), curve=curve)
        for each in ((WHOLE, whole), (SPLIT, split))
    ]
    found = compare_split(rank_choices(known, asked), known, asked)
    assert found is not None
    assert found.pays_from == pays_from
    paying = [each for each in found.by_load if pays_from is not None and each.load >= pays_from]
    assert all(each.pays for each in paying)
    assert found.pays_from_probability == (paying[0].probability if paying else None)
    assert [each.load for each in found.by_load][::8] == [0.25, 4, 64]
    assert told in tell_split(found, plan_of(SPLIT), "requests/s")[1]


def test_one_kind_of_plan_alone_is_told() -> None:
    assert "splitting prefill and decode pays" in tell_split(None, plan_of(SPLIT), "requests/s")[0]
    assert (
        "does not pay: of what was simulated, plans without"
        in tell_split(None, plan_of(WHOLE), "requests/s")[0]
    )


def plan_of(deployment: str) -> DeploymentPlan:
    nothing = LatencySpan(0, 0, 0, 0)
    return DeploymentPlan(
        deployment=deployment, replicas=1, gpus=1, p_slo=1, capacity_per_s=1, headroom=0, usd_per_mtok=None,
        usd_per_month=None, ttft_s=nothing, tpot_s=nothing, binds="", helps="", regret=0, source="simulated",
        launch=[],
    )  # fmt: skip


def test_a_decode_worker_is_rated_as_it_is_simulated() -> None:
    """On NVIDIA's GPUs it has smaller floors than the same engine whose steps hold prompts too."""
    asked = small_planning(**ASKED | {"engine": "sglang"})
    for each in search_pools(NOTHING, asked).candidates[:3]:
        assert each.fleet is not None
        assert each.fleet.prefill is not None
        most = most_users(each.fleet, each.fleet.prefill.rules, 4096, 256)
        assert each.level.tpot_s in {
            decode_tpot_s(each.fleet, users, 4096, 256) for users in range(1, most + 1)
        }
