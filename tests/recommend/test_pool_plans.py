"""Plans with a prefill and a decode pool: ratios by rate matching, and whether splitting pays."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from asked import plans, small_options
from loadstone.analyse.compare.price import Prices
from loadstone.core.errors import InputError
from loadstone.engines.handover import handover_problem
from loadstone.predict.pool_rates import pool_rates
from loadstone.recommend.candidates import Search
from loadstone.recommend.pools import search_pools
from loadstone.recommend.traffic import traffic_of

ASKED = {
    "input": "4096", "output": "256", "rate": 12, "slo": "ttft_p99<1s,tpot_p99<20ms", "tp": (1, 2), "pools": True,
}  # fmt: skip
NOTHING = Search([], [], 0)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("load", [{}, {"rate": None, "concurrency": 64}])
def test_ratios_come_near_to_balancing_both_pools(engine: str, load: dict[str, object]) -> None:
    options = small_options(**ASKED | {"engine": engine} | load)
    traffic = traffic_of(options)
    found = search_pools(NOTHING, options, traffic, Prices())
    candidates = found.candidates
    assert found.looked_at
    assert candidates
    assert [each.cost for each in candidates] == sorted(each.cost for each in candidates)
    for each in candidates:
        assert handover_problem(each.deployment) is None
        assert each.gpus <= options.gpus_max
        assert each.replicas == math.ceil(traffic.demand / each.load * (1 - 1e-9))
        assert each.fleet is not None
        # What both pools carry at most, without queues, is beyond what is promised.
        bare = pool_rates(each.deployment, 4096, 256)
        asked_per_s = each.level.rate_per_s * each.fleet.replicas
        assert asked_per_s <= min(bare.prefill_per_s, bare.decode_per_s)
    best = pool_rates(candidates[0].deployment, 4096, 256)
    assert 1 / 3 < best.prefill_per_s / best.decode_per_s < 3


def test_bounds_that_no_worker_holds_leave_no_pools() -> None:
    for slo in ("ttft_p99<1ms", "tpot_p99<1ms"):
        options = small_options(**ASKED | {"slo": slo})
        assert search_pools(NOTHING, options, traffic_of(options), Prices()).candidates == []
    options = small_options(**ASKED | {"engine": "llama.cpp"})
    assert search_pools(NOTHING, options, traffic_of(options), Prices()).candidates == []


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
    for plan in document.plans:
        assert ("prefill=" in plan.deployment) == any("sglang_router" in line for line in plan.launch)
    assert plans(**ASKED | {"engine": "sglang", "gpus_max": 16, "pools": False}).split is None


def test_a_study_starts_no_pools(tmp_path: Path) -> None:
    options = small_options(**ASKED | {"study": tmp_path / "study.yaml"})
    with pytest.raises(InputError, match="--study: a study starts no pools"):
        search_pools(NOTHING, options, traffic_of(options), Prices())
