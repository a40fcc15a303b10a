"""Measured pools: what each gave, what it cost, and whether every KV cache was handed over."""

from __future__ import annotations

import json

import pytest

from conftest import Loadstone
from loadstone.analyse.compare.price import dollars_per_hour, parse_prices
from loadstone.analyse.run_facts import run_facts
from loadstone.catalogue import parse_deployment
from loadstone.core.host import Host
from loadstone.core.record import RunInfo
from loadstone.core.settings import read_settings
from loadstone.measure.simulated_server import start

POOLS = "llama-3.1-8b@prefill=2*(1xh100/tp1)+decode=1xh200/tp1"
ASKED = (
    "--input",
    "64",
    "--output",
    "8",
    "--concurrency",
    "2",
    "--requests",
    "20",
    "--warmup",
    "2",
    "--json",
)


def test_a_measured_run_says_what_each_pool_gave(loadstone: Loadstone) -> None:
    with start(POOLS) as server:
        done = loadstone("bench", server.url, *ASKED)
    (cell,) = json.loads(done.out)["cells"]
    prefill, decode = cell["pools"]
    assert (prefill["role"], prefill["gpu"], prefill["gpus"]) == ("prefill", "H100", 2)
    assert (decode["role"], decode["gpu"], decode["gpus"]) == ("decode", "H200", 1)
    assert decode["tokens_per_s"] > 0
    assert prefill["tokens_per_s"] == pytest.approx(8 * decode["tokens_per_s"], rel=0.05)
    assert prefill["tokens_per_s_per_gpu"] == prefill["tokens_per_s"] / 2
    assert cell["server"]["transfers"] == 22
    assert "transfers_differ" not in {each["kind"] for each in cell["verdict"]["findings"]}
    page = done.folder.parent / "report.html"
    report = loadstone("report", done.folder, "--price", "h100=2,h200=3", "--json", "-o", page).out
    (priced,) = json.loads(report)["prices"]["cells"]
    assert priced["dollars_per_hour"] == 7
    assert [each["dollars_per_hour"] for each in priced["pools"]] == [4, 3]
    assert priced["pools"][1]["dollars_per_million_tokens"] == pytest.approx(
        3 / 3600 / decode["tokens_per_s"] * 1e6, rel=0.01
    )


@pytest.mark.parametrize(
    ("prices", "dollars"), [("h100=2,h200=3", 7.0), ("h200=3", None), ("h100=2", None)]
)
def test_pools_cost_what_each_ones_gpus_cost(prices: str, dollars: float | None) -> None:
    assert (
        dollars_per_hour(
            run_facts(info(parse_deployment(POOLS).to_settings())), parse_prices(prices)
        )
        == dollars
    )


@pytest.mark.parametrize(
    "pools", ["x", [3], [{"role": "prefill", "gpus": -1, "workers": 2}], [{"role": 1}]]
)
def test_pools_of_anybodys_making_are_none(pools: object) -> None:
    settings = parse_deployment(POOLS).to_settings() | {"pools": pools}
    assert run_facts(info(settings)).pools == ()


def info(deployment: object) -> RunInfo:
    return RunInfo(
        run_id="run", source="measured", created="", command=[], loadstone="", host=Host(), plan_id="", seed=0,
        salt=None, settings=read_settings(json.loads(json.dumps({"deployment": deployment}))), cells=[],
    )  # fmt: skip
