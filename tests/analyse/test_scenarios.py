"""Scenarios: what they set, what they refuse, and each of their rules broken once on purpose."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from conftest import Loadstone
from loadstone.analyse.scenario import scenario_findings
from loadstone.core.errors import InputError
from loadstone.core.metrics import Metrics, Requests
from loadstone.core.parts import SessionNumbers
from loadstone.core.plan import Load, Plan
from loadstone.core.record import CellInfo, Target
from loadstone.core.summary import CellSummary
from loadstone.core.verdict import Verdict
from loadstone.measure.simulated_server import TimingServer
from loadstone.workload.options import Options, SimulateOptions
from loadstone.workload.scenarios import Rule, scenarios
from verdict_cells import PLAN, info_of

AGENTX, MLPERF, LIKE = (
    scenarios()["agentx@0.13"],
    scenarios()["mlperf-agentic@ea332753"],
    scenarios()["like:aa-agentperf"],
)
WEKA = [
    {"block_size": 64, "requests": [
        {"t": 0.0, "in": 100 + 10 * session, "out": 3, "hash_ids": [10 * session + 1, 10 * session + 2], "api_time": 0.1},
        {"t": 0.15, "in": 130, "out": 3, "hash_ids": [10 * session + 1, 10 * session + 2, 10 * session + 3], "api_time": 0.1},
    ]}
    for session in range(4)
]  # fmt: skip


@pytest.fixture
def weka(tmp_path: Path) -> Path:
    path = tmp_path / "weka.jsonl"
    path.write_text("".join(json.dumps(session) + "\n" for session in WEKA))
    return path


def test_a_scenario_sets_what_is_not_given(weka: Path) -> None:
    options = Options.read(scenario="agentx@0.13", agents=weka, concurrency=2)
    assert (options.load.duration_s, options.workload.scenario) == (1800, AGENTX.name)
    options = Options.read(scenario="agentx@0.13", agents=weka, duration="20m")
    assert options.load.duration_s == 1200
    simulated = SimulateOptions.read(
        deployment="llama-3.1-8b@1xh100", scenario="like:aa-agentperf", concurrency=2
    )
    assert simulated.workload.turns == "uniform:1:100"
    assert simulated.output.slo == "ttft_p95<10s,tpot_p95<50ms"
    searched = Options.read(scenario="like:aa-agentperf", find_max="ttft_p95<10s")
    assert searched.output.slo is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"scenario": "agentx@0.13", "rate": "2"}, "--rate: --scenario inferencex-agentx-mvp@0.13"),
        ({"scenario": "agentx", "rate": "2"}, "--rate: --scenario"),
        ({"scenario": "agentx", "agents": "x"}, "name their version too, agentx@0.13"),
        ({"scenario": "agentx@0.14", "agents": "x"}, "none of this name and version; write one of"),
        ({"scenario": "agentx@0.13"}, "goes with --agents FILE"),
        ({"scenario": "agentx@0.13", "agents": "x", "stream": False}, "--no-stream: breaks"),
        ({"scenario": "agentx@0.13", "agents": "x", "salt": "none"}, "--salt none: breaks"),
        ({"scenario": "agentx@0.13", "agents": "x", "tool_time": "0.5x"}, "--tool-time"),
        ({"scenario": "agentx@0.13", "agents": "x", "ramp": "1:2:9s"}, "--ramp"),
        ({"scenario": "agentx@0.13", "agents": "x", "stop_when": "e2e_p50±2%"}, "--stop-when"),
        ({"scenario": "mlperf-agentic@ea332753", "agents": "x", "duration": "9s"}, "--duration"),
        ({"scenario": "mlperf-agentic@ea332753", "agents": "x", "tool_time": "0x"}, "--tool-time"),
        ({"scenario": "like:aa-agentperf", "rate": "1"}, "--rate"),
    ],
)
def test_what_contradicts_a_rule_is_refused_by_its_flag(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        Options.read(**given)


def cell(**given: Any) -> set[str]:
    """The rules that a cell of a scenario breaks, of which all keep theirs but for what is given."""
    scenario = given.pop("scenario")
    info = info_of()
    info.salt, info.settings.scenario = given.pop("salt", "s"), scenario.name
    info.target = Target(url="http://h", endpoint="chat", model="m", prompt_kind="text")
    info.target.streams = given.pop("streams", True)
    info.target.model = given.pop("model", "m")
    info.target.accepts = {"ignore_eos": given.pop("ignore_eos", True)}
    load = Load(given.pop("kind", "concurrency"), 2, unit="sessions")
    info.cells = [CellInfo(load=load, start_s=0.0, issue_end_s=given.pop("duration_s", 1800.0))]
    kind = "weka" if scenario is AGENTX else "mlperf"
    workload = {
        "kind": "agents",
        "format": given.pop("format", kind),
        "overflowed": given.pop("overflowed", {}),
    }
    turn = (
        np.arange(len(PLAN), dtype=np.int32)
        if given.pop("has_sessions", True)
        else np.full(len(PLAN), -1, np.int32)
    )
    turn[turn >= 0] = np.minimum(turn[turn >= 0], given.pop("turns", 9) - 1)
    plan: Plan = replace(PLAN, cells=(load,), workload=workload, turn=turn)
    inputs, outputs = given.pop("inputs", [27_000]), given.pop("outputs", [150] * 94 + [2000] * 6)
    rows = [
        {"phase": "measure", "status": "ok", "sent_s": number * 5.0, "end_s": number * 5.0 + 1,
         "input_tokens": inputs[number % len(inputs)], "output_tokens": outputs[number]}
        for number in range(len(outputs))
    ]  # fmt: skip
    rows[-1]["sent_s"] += given.pop("idle_s", 4) - 4
    rows[-1]["end_s"] = rows[-1]["sent_s"] + 1
    sessions = given.pop("sessions", 613)
    summary = CellSummary(
        load=load,
        requests=Requests(sent=100, ok=100, error=0, timeout=0, cancelled=0, short=0),
        metrics=Metrics(),
        verdict=Verdict(trusted=True, findings=[]),
        sessions=SessionNumbers(
            sessions=sessions, finished=sessions - given.pop("unfinished", 0), failed=0
        ),
    )
    assert not given
    table = pa.Table.from_pylist(rows)
    return {str(found.values["rule"]) for found in scenario_findings(info, plan, 0, table, summary)}


def rule(scenario: Any, fact: str, model: str = "") -> Rule:
    (found,) = [rule for rule in scenario.rule if rule.fact == fact and rule.model == model]
    return found


BROKEN = [
    (AGENTX, "format", {"format": "mlperf"}),
    (AGENTX, "streams", {"streams": False}),
    (AGENTX, "exact_output", {"ignore_eos": False}),
    (AGENTX, "salted", {"salt": None}),
    (AGENTX, "closed_loop", {"kind": "rate"}),
    (AGENTX, "duration_s", {"duration_s": 899.0}),
    (AGENTX, "idle_s", {"idle_s": 10.5}),
    (AGENTX, "overflowed", {"overflowed": {"sessions": 1, "calls": 2}}),
    (MLPERF, "format", {"format": "rows"}),
    (MLPERF, "sessions", {"sessions": 612}),
    (MLPERF, "unfinished", {"unfinished": 1}),
    (MLPERF, "salted", {"salt": None}),
    (MLPERF, "output_mean", {"model": "moonshotai/Kimi-K3"}),
    (MLPERF, "output_mean", {"model": "Qwen/Qwen3.6-35B-A3B"}),
    (LIKE, "sessions_in_closed_loop", {"has_sessions": False}),
    (LIKE, "input_mean", {"inputs": [9000]}),
    (LIKE, "input_max", {"inputs": [20_000] * 19 + [140_000]}),
    (LIKE, "output_p50", {"outputs": [100] * 94 + [2000] * 6}),
    (LIKE, "output_p95", {"outputs": [150] * 94 + [3000] * 6}),
    (LIKE, "turns_max", {"turns": 201}),
]


@pytest.mark.parametrize(("scenario", "fact", "broken"), BROKEN)
def test_each_rule_that_is_broken_is_named(
    scenario: Any, fact: str, broken: dict[str, Any]
) -> None:
    model = next(
        (r.model for r in scenario.rule if r.model and r.model in broken.get("model", "").lower()),
        "",
    )
    assert cell(scenario=scenario, **broken) == {rule(scenario, fact, model).name}


@pytest.mark.parametrize("scenario", [AGENTX, MLPERF, LIKE])
def test_a_load_that_keeps_the_rules_has_no_finding(scenario: Any) -> None:
    assert cell(scenario=scenario) == set()
    tested = [
        (s.name, fact, b.get("model", "")[-3:].lower()) for s, fact, b in BROKEN if s is scenario
    ]
    assert len(tested) == len(scenario.rule)  # every rule is broken once above


def test_a_run_says_what_it_keeps_and_what_not(
    loadstone: Loadstone, timing: TimingServer, weka: Path
) -> None:
    flags = [
        "--scenario",
        "agentx@0.13",
        "--duration",
        "1s",
        "--concurrency",
        "2",
        "--warmup",
        "0",
        "--json",
    ]
    outcome = loadstone("bench", timing.url, "--agents", weka, *flags)
    said = outcome.document["scenario"]
    assert (said["name"], said["keeps_rules"]) == ("inferencex-agentx-mvp@0.13", False)
    assert "a load lasts 900 s or longer" in said["broken"]
    assert said["unchecked"]
    assert "agents_per_gpu" not in said
    evidence = [
        finding["evidence"]
        for finding in outcome.cell["verdict"]["findings"]
        if finding["kind"] == "scenario_broken"
    ]
    assert any("a load lasts 900 s or longer" in text for text in evidence)
    shown = loadstone("show", outcome.folder).out
    assert "inferencex-agentx-mvp@0.13" in shown


def test_an_imitation_says_so_and_counts_agents_per_gpu(loadstone: Loadstone) -> None:
    outcome = loadstone(
        "simulate", "llama-3.1-8b@2xh100/tp2", "--scenario", "like:aa-agentperf", "--concurrency", "2,400",
        "--requests", "400", "--warmup", "0", "--draws", "4", "--json",
    )  # fmt: skip
    said = outcome.document["scenario"]
    assert said["name"] == "like:aa-agentperf"
    assert "private" in said["source"]
    agents = said["agents_per_gpu"]
    assert 1 <= agents["value"] <= 200
    assert agents["low"] <= agents["value"]
    assert "per_mw" not in agents  # no power was measured
