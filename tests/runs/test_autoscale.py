"""`simulate --autoscale`: the fleet and those beside it, what is kept and shown of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadstone
from conftest import Loadstone
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.settings import FleetFigures
from loadstone.core.summary import Summary
from loadstone.predict.scheduler import EnginePolicy
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import Fleet
from loadstone.report.charts.fleets import fleet_over_time
from loadstone.report.data.runs import read_runs
from loadstone.report.pages.document import build
from loadstone.runs.autoscale import Judge, References, requests_of
from test_autoscaler import steps
from test_simulator import Times, plan

EIGHT = "llama-3.1-8b@1xh100"
ONE = EnginePolicy(kv_blocks=10_000, max_batched_tokens=1024, max_seqs=1, order="mixed")
LOAD: dict[str, Any] = {
    "ramp": "2:30:120s,30:2:120s,2:120s",
    "input": "300",
    "output": "200",
    "warmup": 0,
    "slo": "ttft_p99<500ms,tpot_p99<8.2ms",
}


@pytest.fixture(scope="module")
def scaler(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("scaler") / "own.yaml"
    file.write_text(
        "preset: keda\nmetrics: [{metric: running, target: 8}]\nstart_up: 20s\n"
        "down: {window: 30s}\n"
    )
    return str(file)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, scaler: str) -> Path:
    out = tmp_path_factory.mktemp("runs")
    return Path(loadstone.simulate(EIGHT, autoscale=scaler, out=out, **LOAD).run_dir)


def test_the_document_has_the_fleet_and_those_beside_it(folder: Path) -> None:
    document = json.loads((folder / "summary.json").read_text())
    fleet, (cell,) = document["fleet"], document["cells"]
    assert max(count for _, count in fleet["replicas"]) > 1
    assert fleet["replicas"][0] == [0.0, 1]
    assert fleet["attainment"] == pytest.approx(cell["metrics"]["attainment"])
    assert fleet["gpu_hours"] == pytest.approx(fleet["point"]["gpu_hours"])
    # A replica is paid for from its request on: the area under the line.
    end_s = cell["duration_s"] + 10
    times = [at for at, _ in fleet["paid"]] + [end_s]
    area_s = sum(
        count * (after - at) for (at, count), after in zip(fleet["paid"], times[1:], strict=True)
    )
    assert fleet["gpu_hours"] == pytest.approx(area_s / 3600, rel=0.05)
    for name in ("static", "oracle"):
        assert fleet[name]["met"]
        assert 0 < fleet[name]["attainment"] <= 1
    assert fleet["oracle"]["gpu_hours"] < fleet["static"]["gpu_hours"]
    attained = [share for _, share in fleet["attained"]]
    assert min(attained) <= fleet["attainment"] <= max(attained)


def test_the_static_fleet_is_the_smallest_that_holds(folder: Path, tmp_path: Path) -> None:
    fleet = json.loads((folder / "summary.json").read_text())["fleet"]
    count = round(fleet["static"]["replicas"])
    assert count > 1
    for replicas, holds in ((count, True), (count - 1, False)):
        options = LOAD | {"out": tmp_path, "draws": 0}
        run = loadstone.simulate(f"llama-3.1-8b@{replicas}xh100/dp{replicas}", **options)
        assert all(bound.met for bound in run.cells[0].slo) is holds
        if holds:
            assert fleet["static"]["attainment"] == pytest.approx(run.cells[0].metrics.attainment)


def test_samples_are_of_the_whole_fleet(folder: Path) -> None:
    samples = run_folder.read_server(folder)
    assert samples is not None
    rows = samples.to_pylist()
    running = [row["value"] for row in rows if row["name"] == "vllm:num_requests_running"]
    assert max(running) > 8
    tokens = [row["value"] for row in rows if row["name"] == "vllm:generation_tokens_total"]
    assert tokens == sorted(tokens)


def test_the_terminal_says_the_decision_first(
    loadstone: Loadstone, scaler: str, tmp_path: Path
) -> None:
    flags = [f"--{key}={value}" for key, value in LOAD.items()]
    outcome = loadstone("simulate", EIGHT, "--autoscale", scaler, *flags, "--out", str(tmp_path))
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[1].startswith("own: the bounds ")
    assert "replicas all the time" in lines[1]
    assert max(map(len, lines[:12])) <= 80 + len(str(tmp_path))
    rows = [line for line in lines if line.startswith((" own", " static", " knows"))]
    assert len(rows) == 4


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"deployment": "llama-3.1-8b@2xh100/dp2"}, "is several replicas"),
        ({"deployment": "llama-3.1-8b@prefill=1xh100+decode=1xh100"}, "pools are not scaled"),
        ({"ramp": None, "concurrency": [4]}, "one load that comes by the clock"),
        ({"flow_control": "default"}, "are not simulated together"),
        ({"ramp": None, "rate": [2, 4]}, "one load that comes by the clock"),
    ],
)
def test_what_no_autoscaler_is_simulated_with_is_refused(
    options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    asked = {"deployment": EIGHT} | LOAD | options | {"autoscale": "keda", "out": tmp_path}
    with pytest.raises(InputError, match=says):
        loadstone.simulate(asked.pop("deployment"), **asked)
    assert not list(tmp_path.iterdir())


def test_each_class_is_judged_by_its_own_bounds(tmp_path: Path) -> None:
    classes = ["chat,share=3,input=200,output=50,slo=ttft_p90<1s"]
    classes += ["batch,share=1,input=1k,output=200,slo=tpot_p50<1ms"]
    options: dict[str, Any] = {"rate": [8], "requests": [400], "classes": classes, "out": tmp_path}
    run = loadstone.simulate(EIGHT, autoscale="keda", **options)
    fleet = run.fleet
    assert fleet is not None
    assert fleet.point is not None
    assert fleet.point.by_class == {"chat": 1.0, "batch": 0.0}
    assert fleet.point.met is False
    assert fleet.static is None  # no number of replicas is so fast
    assert [part.attainment for part in run.cells[0].by_class] == [1.0, 0.0]


def test_starts_that_were_measured_are_taken(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    for seconds in (40.0, 60.0):
        run = loadstone.simulate(EIGHT, rate=[1], requests=[2], out=out, draws=0)
        path = Path(run.run_dir) / "run.json"
        stored = json.loads(path.read_text())
        stored["settings"]["provenance"] = {"start_up_s": seconds}
        path.write_text(json.dumps(stored))
    short = {"rate": [1], "requests": [5], "out": out}
    fleet = loadstone.simulate(EIGHT, autoscale="hpa", **short).fleet
    assert fleet is not None
    assert (fleet.start_up_s, fleet.start_up_from) == (50.0, "measured, 2 starts")
    other = loadstone.simulate("llama-3.1-8b@1xh200", autoscale="hpa", **short).fleet
    assert other is not None
    # 16.06 GB at 2 GB/s, and 95 s.
    assert other.start_up_from == "assumed"
    assert other.start_up_s == pytest.approx(103.03, abs=0.01)


# --- the fleets beside it, by hand ----------------------------------------------------------------


def beside(rates: list[tuple[float, float]], slo: dict[str, float], **more: Any) -> References:
    """Make the references of a fleet whose replicas take a second for a request."""
    asked = steps(rates, 1.0)
    fleet = Fleet(ONE, Times(step=1.0, token=0.0, request_s=0.0, stream_s=0.0))
    return References(asked, fleet, Judge(asked, slo), 2, rates[-1][1], **more)


def test_the_oracle_has_as_many_as_each_window_needs() -> None:
    """Evenly spaced, 0.9 a second are served by a replica without a wait."""
    rates = [(0.9, 120.0), (2.7, 240.0), (1.8, 300.0)]
    references = beside(rates, {"ttft": 1.0 + 1e-6}, start_up_s=0.0)
    assert references.window_s == 60.0
    static, oracle = references.fewest(1), references.oracle()
    assert static is not None
    assert oracle is not None
    assert static.replicas == pytest.approx(3.0)
    assert static.gpu_hours == pytest.approx(3 * 300 * 2 / 3600)
    assert (static.attainment, oracle.attainment) == (1.0, 1.0)
    area_s = 1 * 120 + 3 * 120 + 2 * 60
    assert oracle.gpu_hours == pytest.approx(area_s * 2 / 3600, rel=0.03)
    assert references.static(2).met is False


def test_the_oracle_pays_for_starts_and_nobody_waits() -> None:
    """A step from 1 to 2 a second: the second replica is asked for as long before as it takes."""
    rates = [(0.9, 120.0), (1.8, 360.0)]
    late, soon = (beside(rates, {"ttft": 1.001}, start_up_s=s).oracle() for s in (0.0, 100.0))
    assert late is not None
    assert soon is not None
    assert (late.attainment, soon.attainment) == (1.0, 1.0)
    lost_s = (soon.gpu_hours or 0.0) - (late.gpu_hours or 0.0)
    assert lost_s * 3600 / 2 == pytest.approx(100.0, abs=6.0)


def test_long_traces_are_judged_by_some_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadstone.runs.autoscale._MOST_REQUESTS", 500)
    rates = [(0.9 * (1 + hour % 3), 600.0 * (hour + 1)) for hour in range(6)]
    references = beside(rates, {"ttft_p99": 1.0 + 1e-6}, start_up_s=0.0)
    assert 0.01 < references.sampled < 0.2
    static, oracle = references.fewest(9), references.oracle()
    assert static is not None
    assert oracle is not None
    assert (static.replicas, static.met) == (3.0, True)
    assert oracle.replicas == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("slo", [{"ttft_p90": 0.05}, {"tpot": 0.0105}, {"e2e_p50": 0.07}])
def test_bounds_are_judged_as_the_summary_judges_them(slo: dict[str, float]) -> None:
    asked = plan(rate=[20], requests=[200], output="5")
    fleet = Fleet(EnginePolicy(kv_blocks=100, max_batched_tokens=1024, max_seqs=8), Times())
    run = run_cell(asked, 0, fleet)
    served, judge = requests_of(run, asked), Judge(asked, slo)
    first = np.array(run.journal.first_s) + run.stream_s
    last = np.array(run.end_s) + run.stream_s
    sent = np.array(run.requests.intended_s_of)
    values = {"ttft": first - sent, "tpot": (last - first) / 4, "e2e": last - sent}
    ((name, limit_s),) = slo.items()
    metric, _, quantile = name.partition("_p")
    of_all = float(np.quantile(values[metric], int(quantile or 100) / 100))
    assert judge.met(served) is (of_all <= limit_s)
    good = judge.good(served)
    assert good is not None
    assert good.mean() == pytest.approx((values[metric] <= limit_s).mean())


# --- pages ----------------------------------------------------------------------------------------


def test_the_page_draws_replicas_metric_and_attainment(folder: Path) -> None:
    summary = Summary.of(json.loads((folder / "summary.json").read_text()))
    fleet = summary.fleet
    assert fleet is not None
    drawn = fleet_over_time(fleet, "a run", key="fleet")
    assert drawn is not None
    titles = [panel["encoding"]["y"]["title"] for panel in drawn.spec["vconcat"]]
    assert titles == ["replicas", "running", "within bounds (%)"]
    most = max(count for _, count in fleet.replicas)
    assert f"from 1 to {most} that serve" in drawn.summary
    measured = FleetFigures(policy="measured", replicas=[(0.0, 2), (9.0, 3)], source="a gateway")
    alone = fleet_over_time(measured, "a run", key="fleet")
    assert alone is not None
    assert len(alone.spec["vconcat"]) == 1
    assert "a gateway" in alone.notes


def test_a_report_tells_the_fleets(folder: Path) -> None:
    report = build(read_runs([folder])[0])
    (part,) = report.parts
    assert part.beside is not None
    assert part.beside.rows[0][0] == "own"
    assert len(part.beside.rows) == 4
    assert any(note.startswith("own: the bounds ") for note in part.notes)
    assert part.figures[0].title == "Replicas over time"
