"""What a class costs the others: the same plan without it, request by request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import loadstone
from loadstone.analyse.stored_run import read_run
from loadstone.commands import app
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.workload.mix import leave_out
from loadstone.workload.option_fields import options_of
from loadstone.workload.options import Options
from loadstone.workload.planning import plan_of

OPEN = ["a,rate=6,input=lognormal:200:0.5,output=20", "b,rate=2,input=1k,output=60", "c,rate=1,input=64,output=8"]  # fmt: skip
SLOTS = ["a,slots=4,input=uniform:100:200,output=20", "b,slots=2,input=1k,output=60"]
TURNS = ["a,rate=2,input=100,output=20,turns=3,think_time=1s", "b,rate=2,input=300,output=20"]
COLUMNS = ("phase", "intended_s", "input_tokens", "output_tokens", "turn", "think_s")


@pytest.mark.parametrize(
    ("classes", "load"),
    [(OPEN, {"requests": 90}), (SLOTS, {"duration": "20s"}), (TURNS, {"requests": 40})],
)
def test_requests_of_the_others_are_what_they_were(classes, load) -> None:
    plan = plan_of(options_of({"classes": classes, **load}, Options))
    for number, kind in enumerate(plan.classes):
        less = leave_out(plan, kind.name)
        kept = plan.traffic_class != number
        for column in COLUMNS:
            np.testing.assert_array_equal(getattr(less, column), getattr(plan, column)[kept])
        assert [each.name for each in less.classes] == [
            each.name for each in plan.classes if each.name != kind.name
        ]
        names = np.array([each.name for each in plan.classes])[plan.traffic_class[kept]]
        assert list(names) == [less.classes[place].name for place in less.traffic_class]


def test_the_load_is_that_of_the_others() -> None:
    plan = plan_of(options_of({"classes": OPEN, "requests": 90}, Options))
    assert leave_out(plan, "b").cells[0].value == pytest.approx(7.0)
    closed = plan_of(options_of({"classes": SLOTS}, Options))
    assert leave_out(closed, "b").cells[0].value == 4.0


def simulate(folder: Any, **asked: Any) -> Any:
    return loadstone.simulate(
        "llama-3.1-8b@1xh100/max_num_seqs=4", out=folder, warmup=0, draws=0, **asked
    )


def test_the_cost_is_the_difference_of_both_runs(tmp_path) -> None:
    """Few slots, most of which long answers fill: the others wait for them, and not without."""
    whole = simulate(tmp_path, classes=OPEN, requests=400, without="b")
    (cell,) = whole.cells
    less = loadstone.open_run(whole.class_cost.run_dir).summary().cells[0]
    changes = {
        (each.traffic_class, each.metric, each.statistic): each for each in whole.class_cost.changes
    }
    assert {name for name, _, _ in changes} == {"a", "c"}
    for part, alone in zip([cell.by_class[0], cell.by_class[2]], less.by_class, strict=True):
        change = changes[part.name, "ttft", "p50"]
        assert change.pairs == part.requests.ok == alone.requests.ok
        assert change.present_s == pytest.approx(part.ttft_intended_s.p50)
        assert change.absent_s == pytest.approx(alone.ttft_intended_s.p50)
        assert change.low_s <= change.difference_s <= change.high_s
    assert changes["a", "ttft", "mean"].low_s > 0
    stored = read_run(Path(whole.run_dir))
    assert stored.summary.class_cost.changes == whole.class_cost.changes
    assert not run_folder.find_changed(stored.folder, stored.info.marks)
    page = tmp_path / "page.html"
    words = ["report", whole.run_dir, "--out", str(page)]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert "with b" in page.read_text()


def test_a_class_that_nobody_waits_for_costs_nothing(tmp_path) -> None:
    """Few small requests, on an engine that is idle between them."""
    classes = ["a,rate=0.02,input=100,output=8", "b,rate=0.02,input=100,output=8"]
    whole = simulate(tmp_path, classes=classes, requests=200, without="b")
    for change in whole.class_cost.changes:
        if change.statistic == "p50":
            assert change.difference_s == pytest.approx(0.0, abs=2e-3)
            assert change.low_s <= 2e-3


@pytest.mark.process
def test_bench_runs_the_plan_twice(tmp_path) -> None:
    whole = loadstone.bench(
        sim="ttft=20ms,itl=2ms", classes=SLOTS, duration="2s", without="b", out=tmp_path
    )
    assert [each.name for each in whole.cells[0].by_class] == ["a", "b"]
    assert {each.traffic_class for each in whole.class_cost.changes} == {"a"}
    assert whole.class_cost.changes[0].pairs >= 40


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"classes": OPEN, "requests": 90, "without": "d"}, "one of the classes a, b, c"),
        ({"classes": OPEN[:1], "requests": 90, "without": "a"}, "of a mix of several"),
        ({"rate": [1], "requests": 5, "without": "a"}, "of a mix of several"),
    ],
)
def test_a_class_that_is_not_there_is_refused(asked, words, tmp_path) -> None:
    with pytest.raises(InputError, match=words):
        simulate(tmp_path, **asked)
