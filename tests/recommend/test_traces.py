"""Traces, bursts and shared prefixes: which part of a traffic decides, and what a replica gets of
it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from asked import options, planning, plans
from loadstone.catalogue import parse_worker
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import fleet_with
from loadstone.predict.simulator.latencies import answered_rows, latencies_s
from loadstone.predict.simulator.parts import find_busiest, hasten, thin
from loadstone.recommend.demand.planning import Planning
from loadstone.recommend.demand.traffic import traffic_of
from loadstone.recommend.search.candidates import make_candidate, search
from loadstone.recommend.search.curve import simulate_load

TRACED = {"rate": None, "input": None, "output": None}
NAME = "llama-3.1-8b@1xh100/tp1,engine=vllm"


def write_trace(path: Path, *stretches: tuple[float, float, int, int], seed: int = 0) -> Path:
    """Stretches of (seconds, requests/s, tokens in, tokens out), one after another."""
    rng, begun_s, lines = (
        np.random.default_rng(seed),
        0.0,
        ["timestamp_s,input_tokens,output_tokens"],
    )
    for length_s, rate, inputs, outputs in stretches:
        times_s = begun_s + np.sort(rng.uniform(0, length_s, int(length_s * rate)))
        lines += [f"{at:.3f},{inputs},{outputs}" for at in times_s]
        begun_s += length_s
    path.write_text("\n".join(lines) + "\n")
    return path


def traced(path: Path, **changed: object) -> Planning:
    return planning(**(TRACED | {"trace": str(path)} | changed))


# --- parts of a plan ------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.01, 1 / 6, 0.5, 1.0, 2.5])
def test_a_share_keeps_the_times_and_takes_as_many_as_it_says(share: float, tmp_path: Path) -> None:
    plan = traced(
        write_trace(tmp_path / "t.csv", (30, 10, 100, 10), (10, 60, 100, 10))
    ).traffic.plan
    part = thin(plan, share)
    assert len(part) == pytest.approx(share * len(plan), abs=1)
    assert part.cells[0].value == pytest.approx(share * plan.cells[0].value)
    assert part.intended_s[-1] == pytest.approx(plan.intended_s[-1], rel=0.1)
    early = np.mean(plan.intended_s < 30)
    assert np.mean(part.intended_s < 30) == pytest.approx(early, abs=0.02 + 1 / len(part))


def test_hastened_arrivals_are_closer_and_nothing_else() -> None:
    plan = traffic_of(options()).plan
    sooner = hasten(plan, 2.0)
    assert sooner.intended_s == pytest.approx(plan.intended_s / 2)
    assert sooner.cells[0].value == 2 * plan.cells[0].value
    assert (sooner.input_tokens == plan.input_tokens).all()


def test_the_busiest_windows_are_those_of_most_work_and_lie_apart(tmp_path: Path) -> None:
    plan = traced(
        write_trace(tmp_path / "t.csv", (100, 20, 128, 32), (50, 10, 3000, 300), (100, 20, 128, 32))
    ).traffic.plan
    first, second = find_busiest(plan, plan.input_tokens + plan.output_tokens.astype(float), 500, 2)
    assert plan.input_tokens[first].mean() > 1500
    assert not set(first) & set(second)
    assert find_busiest(plan, np.ones(len(plan)), len(plan), 2)[0].tolist() == list(
        range(len(plan))
    )


# --- bursts ---------------------------------------------------------------------------------------


def test_many_replicas_under_a_bursty_trace_are_as_fast_as_all_of_them_simulated(
    tmp_path: Path,
) -> None:
    stretches = [(20, 60, 1024, 64), (4, 500, 1024, 64)] * 2
    asked = traced(write_trace(tmp_path / "t.csv", *stretches), slo="tpot_p90<30ms")
    traffic = asked.traffic
    candidate = make_candidate(parse_worker(NAME), asked)
    fleet = fleet_with(candidate.worker, candidate.policy, candidate.model)
    some = simulate_load(candidate, asked, traffic.demand / 24, 24)
    run = run_cell(traffic.plan, 0, replace(fleet, replicas=24), grace_s=math.inf)
    whole = float(np.quantile(latencies_s(answered_rows(run))["tpot_s"], 0.9))
    assert some.figures["tpot_p90"] == pytest.approx(whole, rel=0.15)


def test_bunched_arrivals_are_thinned_too() -> None:
    bunched = traffic_of(options(burstiness=0.1, rate=240))
    assert bunched.has_times
    (part,) = bunched.parts(10.0, len(bunched.plan), 1.0)
    assert np.ptp(part.intended_s) == pytest.approx(np.ptp(bunched.plan.intended_s), rel=0.1)
    assert not traffic_of(options(rate=240)).has_times


# --- windows --------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    "stretches",
    [
        ((100, 4, 1024, 128), (20, 60, 1024, 128)),  # a quiet part, and a busy one
        ((60, 20, 128, 32), (60, 10, 6000, 200)),  # short prompts, then fewer long ones
        ((60, 20, 128, 32), (60, 10, 128, 700)),  # and long answers
    ],
)
def test_the_first_plan_holds_on_the_whole_trace(stretches, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.csv", *stretches)
    slo = "ttft_p99<2s,tpot_p99<40ms"
    found = plans(**TRACED, trace=str(path), slo=slo)
    plan = found.plans[0]
    assert plan.checked.startswith("simulated on the whole trace")
    assert "the bounds hold by the best prediction" in plan.checked
    asked = traced(path, slo=slo)
    traffic = asked.traffic
    candidate = make_candidate(parse_worker(plan.deployment), asked)
    fleet = fleet_with(candidate.worker, candidate.policy, candidate.model)
    run = run_cell(traffic.plan, 0, replace(fleet, replicas=plan.replicas), grace_s=math.inf)
    latencies = latencies_s(answered_rows(run))
    assert np.quantile(latencies["ttft_intended_s"], 0.99) < 2
    assert np.quantile(latencies["tpot_s"], 0.99) < 0.040


# --- shared prefixes ------------------------------------------------------------------------------


def test_shared_prefixes_count_as_cached_where_candidates_are_chosen() -> None:
    few = {
        "input": "8k",
        "output": "32",
        "rate": 40,
        "gpus": "h100",
        "engine": "vllm",
        "gpus_max": 256,
        "slo": "ttft_p99<2s,tpot_p99<50ms",
    }
    least = []
    for prefix in ("0", "7k"):
        least.append(search(planning(**few, prefix=prefix, price=())).candidates[0].gpus)
    assert least[1] * 3 <= least[0]
    assert traffic_of(options(**few, prefix="7k")).cached_tokens == 7 * 1024


@pytest.mark.parametrize("gap_s", [60, pytest.param(3600, marks=pytest.mark.slow)])
def test_a_trace_that_asks_for_next_to_nothing_is_planned(gap_s: float, tmp_path: Path) -> None:
    path = tmp_path / "sparse.csv"
    lines = [f"{number * gap_s},{400 + 40 * (number % 7)},{60 + number}" for number in range(30)]
    path.write_text("timestamp_s,input_tokens,output_tokens\n" + "\n".join(lines) + "\n")
    document = plans(trace=str(path), input=None, output=None, rate=None, slo="ttft_p99<2s")
    assert document.holds
    assert document.plans[0].gpus == 1
