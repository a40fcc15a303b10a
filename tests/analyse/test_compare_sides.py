"""What may stand on a side of a comparison, what the two were asked, and which conclusions may be
drawn."""

import dataclasses
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loadstone
from conftest import Loadstone
from loadstone import compare
from loadstone.analyse.compare.cells import take_blocks
from loadstone.analyse.compare.comparison import judge
from loadstone.analyse.compare.metric import DEFAULT, parse_metric
from loadstone.analyse.compare.result import (
    ComparedCell,
    ComparedMetric,
    Comparison,
    Difference,
    SideResult,
    Unmatched,
)
from loadstone.analyse.compare.sides import RequestTimes, RunCell, open_run, shared_requests
from loadstone.analyse.stored_run import leave_out_copies, read_run
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.metrics import Latency, Metrics
from loadstone.core.metrics import Requests as Requests_
from loadstone.core.plan import Load
from loadstone.core.record import CellInfo
from loadstone.core.settings import read_settings
from loadstone.core.statistics.dependence import RESOLUTION
from loadstone.core.summary import SCHEMA, CellSummary, Summary
from loadstone.core.verdict import Verdict
from loadstone.report.pages.comparison import explain_conclusions, setup_lines, show_conclusion
from loadstone.workload.dataset import read as read_dataset
from loadstone.workload.lengths import Length
from loadstone.workload.schedule import make_plan
from loadstone.workload.synthetic import Synthetic
from test_compare import CLOSED, make, rows

# --- which runs -----------------------------------------------------------------------------------


def convert(setup: Any) -> list[Difference]:
    return msgspec.convert(setup, list[Difference])


def test_a_run_is_named_once_however_it_is_spelled(tmp_path: Path, loadstone: Loadstone) -> None:
    a, b, other = make(tmp_path / "a"), make(tmp_path / "b", seed=1), make(tmp_path / "c", seed=2)
    link = tmp_path / "link"
    link.symlink_to(a, target_is_directory=True)
    relative = Path(os.path.relpath(a))
    for left, right, where in (
        ([a, a], [b], "twice on side A"),
        ([b], [a, link], "twice on side B"),
        ([a], [a], "on both sides"),
        ([a, b], [other, relative], "on both sides"),
        ([a], [a / ".." / "a"], "on both sides"),
        ([tmp_path / "a", b], [other, link], "on both sides"),
    ):
        with pytest.raises(InputError, match=f"the same run {where}"):
            compare(left, right)
    said = loadstone("compare", f"{a},{link}", b)
    assert said.code == 2
    assert len(said.err.splitlines()) == 1
    assert f"(also as {a})" in said.err


def test_a_folder_stands_for_the_repeats_in_it(tmp_path: Path) -> None:
    a = [make(tmp_path / "A" / str(n), seed=n, plan_seed=n) for n in range(2)]
    b = [make(tmp_path / "B" / str(n), seed=10 + n, plan_seed=n) for n in range(2)]
    document = compare([tmp_path / "A"], [tmp_path / "B"]).document()
    assert document["a"]["runs"] == list(map(str, a))
    assert document["cells"] == compare(a, b).document()["cells"]
    with pytest.raises(InputError, match="the same run twice on side A"):
        compare([tmp_path / "A", a[1]], b)


@pytest.mark.parametrize(
    "other", [{"load": Load("concurrency", 8)}, {"requests": 100}, {"loadstone": "0.0.1"}]
)
def test_a_folder_of_other_runs_than_repeats_is_refused(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    b = make(tmp_path / "b")
    runs = [make(tmp_path / "runs" / "1"), make(tmp_path / "runs" / "2", seed=1, **other)]
    if "loadstone" in other:
        assert len(compare([tmp_path / "runs"], [b]).document()["a"]["runs"]) == 2
        return
    with pytest.raises(InputError, match=rf"name the run in it: {runs[0]}, {runs[1]}"):
        compare([tmp_path / "runs"], [b])


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="neither a run folder nor a folder of run folders"):
        compare([make(tmp_path / "a")], [tmp_path / "empty"])


def test_the_finding_says_which_side_has_one_run(tmp_path: Path) -> None:
    a, b, c = (make(tmp_path / name, seed=n) for n, name in enumerate("abc"))

    def said(*sides: list[Path]) -> list[str]:
        found = compare(*sides).document()["findings"]
        return [
            each["evidence"].partition(":")[0] for each in found if each["kind"] == "one_run_each"
        ]

    assert said([a, b], [c]) == ["only one run on B"]
    assert said([a], [b, c]) == ["only one run on A"]
    assert said([a], [b]) == ["only one run on each side"]
    assert said([a, b], [c, make(tmp_path / "d", seed=9)]) == []


# --- what they were asked -------------------------------------------------------------------------


def by_time(folder: Path, seconds: float, **fields: Any) -> Path:
    """A run that ended by time: its plan is what was issued, its papers have the time."""
    made = make(folder, **fields)
    info = run_folder.read_info(made)
    (cell,) = info.cells
    load = Load("concurrency", cell.load.value, duration_s=seconds)
    info.cells = [
        CellInfo(load=load, start_s=cell.start_s, issue_end_s=cell.issue_end_s, end_s=cell.end_s)
    ]
    run_folder.write_info(made, info)
    return made


def test_runs_by_time_are_paired_as_far_as_both_went(tmp_path: Path) -> None:
    a = by_time(tmp_path / "a", 6, requests=160, seed=1)
    b = by_time(tmp_path / "b", 6, requests=152, seed=2)
    document = compare([a], [b]).document()
    assert document["setup"] == []
    assert document["cells"][0]["units"]["paired"]
    shorter = compare([a], [by_time(tmp_path / "c", 3, requests=80, seed=3)]).document()
    assert not shorter["cells"][0]["units"]["paired"]  # half of A's would be left out
    assert shorter["setup"] == [{"what": "ends after", "a": ["6 s"], "b": ["3 s"]}]


def test_what_differs_in_the_plan_is_said(tmp_path: Path) -> None:
    a = make(tmp_path / "a", requests=160)
    setup = compare([a], [by_time(tmp_path / "b", 4, requests=156)]).document()["setup"]
    assert setup_lines(convert(setup)) == ["ends after: 160 requests → 4 s"]
    assert setup_lines(
        convert(compare([a], [make(tmp_path / "c", plan_seed=3)]).document()["setup"])
    ) == ["seed: 0 → 3"]
    varied = {"workload": run_folder.read_info(a).settings.workload | {"sessions": {"turns": 3}}}
    info = run_folder.read_info(make(tmp_path / "d", settings=varied))
    info.settings.workload["output"] |= {"sd": 5.0}
    run_folder.write_info(tmp_path / "d", info)
    assert setup_lines(convert(compare([a], [tmp_path / "d"]).document()["setup"])) == [
        "workload output: sd 0 → sd 5"
    ]
    unexplained = make(tmp_path / "e", plan_id="another")
    assert [one["what"] for one in compare([a], [unexplained]).document()["setup"]] == ["plan"]


def placed(folder: Path, plan: Any) -> RunCell:
    """A run whose plan this is."""
    run = open_run(make(folder), {})
    run_folder.write_plan(folder / "plan.parquet", plan)
    run.info.plan_id = plan.plan_id
    return RunCell(run, 0)


def test_plans_are_the_same_up_to_where_they_part(tmp_path: Path) -> None:
    varied = Synthetic(
        Length("uniform", 50, low=10, high=90), Length("uniform", 50, low=10, high=90)
    )

    def plan(count: int, *, seed: int = 0, warmup: int = 3, workload: Any = varied) -> Any:
        return make_plan(workload, [CLOSED], requests=[count], warmup=warmup, seed=seed)

    made = {
        "a": plan(100), "longer": plan(140), "seed": plan(100, seed=1), "warmup": plan(100, warmup=4),
        "other": plan(140), "late": plan(100),
    }  # fmt: skip
    made["late"].output_tokens[3 + 70] += 1
    places = {name: placed(tmp_path / name, each) for name, each in made.items()}
    found = {name: shared_requests(places["a"], place) for name, place in places.items()}
    assert found == {"a": None, "longer": 103, "seed": 0, "warmup": 0, "other": 103, "late": 73}
    places["a"].run.info.source = "imported"
    assert shared_requests(places["a"], places["longer"]) == 0


def test_texts_are_part_of_what_was_asked(tmp_path: Path) -> None:
    places = []
    for name, word_ in (("x", "one"), ("y", "two")):
        lines = "".join(
            f'{{"prompt": "{word_ if n == 5 else n}", "output_tokens": 4}}\n' for n in range(8)
        )
        (tmp_path / f"{name}.jsonl").write_text(lines)
        workload = read_dataset(tmp_path / f"{name}.jsonl", conversations=False, skip_bad=False)
        plan = make_plan(workload, [CLOSED], requests=[8], warmup=0, seed=0)
        places.append((plan, placed(tmp_path / name, plan)))
    (plan, on_a), (_, on_b) = places
    at = next(index for index in range(8) if plan.request(0, index).prompt == "one")
    assert shared_requests(on_a, on_b) == at


# --- what may be concluded ------------------------------------------------------------------------


def test_a_difference_too_small_to_matter_is_none(tmp_path: Path) -> None:
    """All requests of B are slower, and nothing varies: of a millionth that says nothing, of a
    hundredth all."""
    a = make(tmp_path / "a", spread=0)
    same = rows(
        compare([a], [make(tmp_path / "b", spread=0, slower=1 + 1e-6, plan_seed=1)]).document()
    )
    for name in ("ttft_p50", "tpot_p50", "e2e_p50"):
        assert (same[name]["differs"], same[name]["better"], same[name]["conclusion"]) == (
            False,
            None,
            "same",
        ), name
    assert not any(row["differs"] for row in same.values())
    assert same["tpot_p50"]["p"] == 1  # none of these values can be told from another
    assert same["tpot_p50"]["would_show"] == 1 + RESOLUTION
    apart = rows(
        compare([a], [make(tmp_path / "c", spread=0, slower=1.01, plan_seed=1)]).document()
    )
    assert all(apart[name]["better"] == "a" for name in ("ttft_p50", "tpot_p50", "e2e_p50"))


@pytest.mark.parametrize(
    ("ratio", "ends", "p", "said"),
    [
        (1.02, (1.01, 1.03), 0.01, "better"),
        (1.02, None, 0.01, "better"),
        (1.02, (0.99, 1.05), 0.01, "may_be_chance"),
        (1.02, (1.01, 1.03), 0.20, "may_be_chance"),
        (1.02, (0.99, 1.05), 0.20, "not_shown"),
        (1.0005, (1.0004, 1.0006), 0.01, "same"),
        (1.0005, (0.9, 1.1), 0.01, "same"),
        (1.0005, (1.0004, 1.0006), 0.20, "same"),
        (1.0005, (0.9, 1.1), 0.20, "not_shown"),
        (1.0005, None, 0.20, "not_shown"),
        (1.02, (1.01, 1.03), None, None),
    ],
)
def test_test_and_interval_agree_on_what_is_concluded(
    ratio: float, ends: tuple[float, float] | None, p: float | None, said: str | None
) -> None:
    for up in (True, False):
        low, high = ends or (None, None)
        if not up:
            ratio, low, high = 1 / ratio, high and 1 / high, low and 1 / low
        metric = parse_metric("ttft_p50")
        row = ComparedMetric(
            metric, 1.0, ratio, ratio=ratio, low=low, high=high, p=p, p_family=p, would_show=1.1
        )
        assert row.conclusion == said
        assert row.printed.differs == (said == "better")
        assert row.printed.better == (("a" if up else "b") if said == "better" else None)
        row.model = (0.9 * ratio, 1.1 * ratio)
        assert row.printed.conclusion == ("within_model" if said == "better" else said)
    row.would_show = None
    assert row.conclusion == ("too_little" if said == "not_shown" else row.conclusion)


def test_what_was_shown_would_have_shown() -> None:
    rng = np.random.default_rng(0)
    metric = parse_metric("tpot_p50")
    units = np.stack([rng.random(8), rng.random(8) + 9], axis=0)[:, :, None]
    row = ComparedMetric(metric, 1.0, 1.02, ratio=1.02, low=1.01, high=1.03, log_error=0.02)
    from loadstone.analyse.compare.permutation import Units

    judge(
        [
            ComparedCell(
                CLOSED,
                [row],
                unit="blocks",
                units=Units(units[0], units[1], np.zeros(1)),
                tested=[row],
            )
        ],
        seed=0,
    )
    assert row.differs
    assert row.would_show == pytest.approx(1.02)


def test_what_a_conclusion_means_is_said_where_it_stands() -> None:
    untested = ComparedMetric(parse_metric("tpot_p50"), 1.0, 1.0, ratio=1.0)
    same = dataclasses.replace(untested, low=0.9999, high=1.0001, p_family=0.5)
    better = dataclasses.replace(untested, ratio=0.8, low=0.7, high=0.9, p_family=0.001)
    side = SideResult([], "", "measured")
    cells = [ComparedCell(CLOSED, [same]).printed]
    comparison = Comparison(
        a=side, b=side, setup=[], cells=cells, unmatched=Unmatched([], []), findings=[]
    )
    assert explain_conclusions(comparison) == [
        "the same: to within 0.1%; less counts as no difference"
    ]
    assert show_conclusion(same.printed) == "the same"
    assert show_conclusion(better.printed) == "B is better"
    assert show_conclusion(untested.printed) == ""
    assert (
        show_conclusion(dataclasses.replace(untested, ratio=None).printed) == "missing on one side"
    )


# --- runs that others wrote -----------------------------------------------------------------------

HUGE = 10**400
SPOILT_SETTINGS: dict[str, Any] = {
    "no list of intervals": {"intervals": {"a": 1}},
    "intervals that are none": {"intervals": [{"ttft_s": "x"}, 3]},
    "intervals without ends": {"intervals": [{"ttft_s": []}]},
    "a model that may be off by nothing or less": {"intervals": [{"output_tokens_per_s": [0.0, -2.0]}]},
    "a first token of nothing": {"first_token": {"x": 1}},
    "more GPUs than a float holds": {"deployment": {"gpu": "h100", "gpus": HUGE}},
    "a workload that is a list": {"workload": [1, 2]},
    "a deployment that is a word": {"deployment": "x"},
    "a basis of other types": {"basis": {"unmeasured": 5, "assumed": "x"}},
    "a label that is a table": {"label": {"a": {"b": []}}},
    "an import of numbers without end": {"import": {"cells": [{
        "relative_times": True, "unknown": ["requests", "zzz"],
        "stated": {"duration_s": -5, "latencies": {"ttft_s": {"mean": -1, "p50": 0}, "requests": {"mean": 1}},
                   "totals": {"output_tokens_per_s": HUGE}}}]}},
}  # fmt: skip


READ_WHERE = {
    "intervals": "simulated",
    "first_token": "simulated",
    "basis": "simulated",
    "import": "imported",
}
"""Kinds of runs whose readers look at these settings; at others all do."""
SPOILT_RUNS = [
    pytest.param(settings, source, id=f"{source}-{name}", marks=[pytest.mark.thorough] * elsewhere)
    for name, settings in SPOILT_SETTINGS.items()
    for source in ("simulated", "imported", "measured")
    for elsewhere in [source != READ_WHERE.get(next(iter(settings)), "measured")]
]


@pytest.mark.parametrize(("settings", "source"), SPOILT_RUNS)
def test_settings_of_another_version_or_program_are_left_out(
    tmp_path: Path, settings: Any, source: str
) -> None:
    a, b = (
        make(tmp_path / "a", seed=1, source="simulated"),
        make(tmp_path / "b", seed=2, source=source),
    )
    papers = msgspec.to_builtins(run_folder.read_info(b))
    papers["settings"] |= settings
    (b / "run.json").write_text(json.dumps(papers))
    for sides in ((a, b), (b, a)):
        rows_of = rows(loadstone.compare(*sides, price="h100=2").document())
        assert rows_of["tpot_p50"]["ratio"] == pytest.approx(1, abs=0.2)


def spoil(
    folder: Path, file: str, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
) -> Path:
    """The same run with other rows in one of its files."""
    table = pq.read_table(folder / file)
    pq.write_table(
        pa.Table.from_pylist(change(table.to_pylist()), schema=table.schema), folder / file
    )
    return folder


def test_a_plan_of_another_run_is_named(tmp_path: Path) -> None:
    a = make(tmp_path / "a", seed=1)
    b = spoil(make(tmp_path / "b", seed=2), "plan.parquet", lambda plan: plan[:0])
    for sides in ((a, b), (b, a)):
        with pytest.raises(InputError, match="plan"):
            compare(*sides)


NAN, INF = float("nan"), float("inf")
SPOILT_RECORDS: dict[str, dict[str, Any]] = {
    "no send": {"sent_s": None}, "a send that is no number": {"sent_s": NAN}, "a send without end": {"sent_s": INF},
    "an end without end": {"end_s": INF}, "arrivals that are none": {"arrival_s": NAN},
    "arrivals without end": {"arrival_s": INF}, "arrivals before time": {"arrival_s": -1e300},
    "no phase": {"phase": None},
    "no status": {"status": None}, "one number for all": {"request_id": "0-7"}, "a number far beyond the plan":
    {"request_id": "0-999999999999999999"},
}  # fmt: skip


@pytest.mark.parametrize("changes", SPOILT_RECORDS.values(), ids=SPOILT_RECORDS)
def test_records_that_nothing_could_have_measured_end_in_no_traceback(
    tmp_path: Path, changes: Any
) -> None:
    def change(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for record in records:
            for name, value in changes.items():
                record[name] = [value] * len(record[name]) if name == "arrival_s" else value
        return records

    a = make(tmp_path / "a", seed=1)
    b = spoil(make(tmp_path / "b", seed=2), "records.parquet", change)
    for sides in ((a, b), (b, a)):
        if None in (changes.get("phase", ""), changes.get("status", "")):
            with pytest.raises(InputError, match="records whose"):
                compare(*sides)
            continue
        for row in rows(compare(*sides).document()).values():
            numbers = [value for value in row.values() if isinstance(value, float)]
            assert all(map(math.isfinite, numbers)), row


@pytest.mark.parametrize("value", [1e308, 5e-324, 0.0, -1.0])
def test_a_ratio_that_no_two_runs_have_is_none(tmp_path: Path, value: float) -> None:
    """Sums of others may hold whatever a float holds; over an ordinary one that is no number any
    more."""
    load, requests = Load("concurrency", 4.0), Requests_(sent=9, ok=9)
    folders = []
    for name, p50 in (("a", 0.03), ("b", value)):
        folder = make(tmp_path / name, source="imported")
        (folder / "records.parquet").unlink()
        latency = Latency(n=9, p50=p50, mean=p50)
        cell = CellSummary(
            load=load, requests=requests, metrics=Metrics(ttft_s=latency), verdict=Verdict(True, [])
        )
        summary = Summary(
            schema=SCHEMA, run_id=name, run_dir=str(folder), source="imported", status="done", plan_id="",
            seed=0, cells=[cell],
        )  # fmt: skip
        (folder / "summary.json").write_bytes(msgspec.json.encode(summary))
        folders.append(folder)
    for sides in (folders, folders[::-1]):
        assert rows(loadstone.compare(*sides).document())["ttft_p50"]["ratio"] is None


# --- a rhythm -------------------------------------------------------------------------------------


def in_step(rng: np.random.Generator, generations: int, places: int) -> RequestTimes:
    """A closed loop of requests of equal length: at each place a prompt waits for another or does
    not, as the start decided, for the whole run; one in twenty does the other.
    """
    waits = np.repeat(rng.random(places // 2) < 0.5, 2) ^ (rng.random((generations, places)) < 0.05)
    ttft_s = (
        np.where(waits, 0.08, 0.05) * np.exp(rng.normal(0, 0.002, (generations, places)))
    ).ravel()
    count = len(ttft_s)
    sent_s = np.arange(count) / places
    tpot_s = 0.01 * np.exp(rng.normal(0, 0.01, count))
    return RequestTimes(
        index=np.arange(count), ttft_s=ttft_s, tpot_s=tpot_s, e2e_s=np.full(count, 1.0), sent_s=sent_s,
        end_s=sent_s + 1.0, curve=None, window_s=None, span_s=float(generations),
    )  # fmt: skip


def test_a_rhythm_that_lasts_the_run_is_no_difference() -> None:
    alarms = 0
    for pair in range(60):
        sides = [in_step(np.random.default_rng([pair, side]), 16, 32) for side in (0, 1)]
        made = []
        for metric in (metric for metric in DEFAULT if metric.per_request):
            a, b = (
                float(np.quantile(getattr(side, f"{metric.base}_s"), metric.quantile))
                for side in sides
            )
            made.append(ComparedMetric(metric, a, b, ratio=b / a))
        cell = ComparedCell(Load("concurrency", 32.0), made)
        take_blocks(cell, [[sides[0]], [sides[1]]], paired=False)
        judge([cell], pair, relabellings=499)
        alarms += any(row.differs for row in made)
    assert (
        alarms <= 9
        # of 5% of 60 more than 9 have a chance of 1 in 1,000; it is 52 where places are not looked at
    )


# --- predictions ----------------------------------------------------------------------------------


def simulated(folder: Path, **fields: Any) -> Path:
    """A simulation of one H100 whose model is known to 10% either way (80%)."""
    deployment = {"engine": "vllm", "model": "m", "gpu": fields.pop("gpu", "h100"), "gpus": 1}
    given: dict[str, Any] = {"profile": fields.pop("profile", "p"), "deployment": deployment}
    ends = fields.pop("ends", (1 / 1.1, 1.1))
    if ends is not None:
        names = ("ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s")
        given["intervals"] = [dict.fromkeys(names, ends)]
    made = make(folder, spread=0, **fields)
    info = run_folder.read_info(made)
    info.settings = read_settings(msgspec.to_builtins(info.settings) | given)
    run_folder.write_info(made, info)
    return made


def judged(a: Path, b: Path, metric: str = "tpot_p50", **options: Any) -> tuple[Any, str]:
    document = compare([a], [b], **options).document()
    (said,) = [each["evidence"] for each in document["findings"] if each["kind"] == "predicted"]
    return rows(document)[metric], said


@pytest.mark.parametrize(
    ("other", "off", "said"),
    [
        ({}, None, "errors cancel out"),
        ({"gpu": "h200"}, 0.0953 * math.sqrt(0.4), "four fifths of the performance model's error"),
        (
            {"gpu": "h200", "profile": "q"},
            0.0953 * math.sqrt(2 / 3),
            "two thirds of the performance model's error",
        ),
        ({"source": "measured"}, 0.0953, "the conclusions include the performance model's error"),
        ({"gpu": "h200", "ends": None}, None, "--draws 0"),
    ],
)
def test_how_far_the_model_may_be_off_is_in_the_conclusion(
    tmp_path: Path, other: dict[str, Any], off: float | None, said: str
) -> None:
    a = simulated(tmp_path / "a")
    small, told = judged(a, simulated(tmp_path / "b", slower=0.95, **other))
    assert said in told
    alone = other.get("source") == "measured"  # one run, so that nothing is known of another
    assert small["differs"] == (not alone)
    if off is None:
        assert (small["model_low"], small["model_high"]) == (None, None)
        assert (small["conclusion"], small["better"]) == ("better", "b")
        return
    assert math.log(small["model_high"] / small["ratio"]) == pytest.approx(off, rel=1e-3)
    assert math.log(small["ratio"] / small["model_low"]) == pytest.approx(off, rel=1e-3)
    assert (small["conclusion"], small["better"]) == ("within_model", None)
    large, _ = judged(a, simulated(tmp_path / "c", slower=0.8, **other))
    assert (large["conclusion"], large["better"]) == (
        ("runs_differ", None) if alone else ("better", "b")
    )


def test_other_questions_of_one_deployment_are_not_wrong_by_the_same(tmp_path: Path) -> None:
    a, b = simulated(tmp_path / "a"), simulated(tmp_path / "b", slower=0.95)
    info = run_folder.read_info(b)
    info.settings.workload["input"]["mean"] = 500.0
    run_folder.write_info(b, info)
    assert judged(a, b)[0]["conclusion"] == "within_model"


def test_what_tokens_cost_is_as_uncertain_as_how_fast_they_come(tmp_path: Path) -> None:
    ends = (1 / 1.2, 1.05)
    a, b = (
        simulated(tmp_path / "a", source="measured"),
        simulated(tmp_path / "b", slower=1.1, ends=ends),
    )
    rate = judged(a, b, "output_tokens_per_s")[0]
    price = judged(a, b, "dollars_per_million_output_tokens", price=["h100=2"])[0]
    # The throughput of a closed loop is places over E2E, and off as that is, the other way round.
    assert rate["model_low"] == pytest.approx(rate["ratio"] / 1.05)
    assert rate["model_high"] == pytest.approx(rate["ratio"] * 1.2)
    assert price["model_high"] == pytest.approx(1 / rate["model_low"])
    assert price["model_low"] == pytest.approx(1 / rate["model_high"])


def test_repeats_of_a_simulation_do_not_make_the_model_better(tmp_path: Path) -> None:
    a = [
        simulated(tmp_path / f"a{n}", plan_seed=n, ends=(1 / 1.1, 1.1) if n else (0.99, 1.01))
        for n in range(4)
    ]
    b = [simulated(tmp_path / f"b{n}", plan_seed=n, slower=0.95, gpu="h200") for n in range(4)]
    found = rows(compare(a, b).document())["tpot_p50"]
    off = math.log(1.1) * math.sqrt(0.4)
    assert math.log(found["model_high"] / found["ratio"]) == pytest.approx(off)
    assert math.log(found["ratio"] / found["model_low"]) == pytest.approx(off)
    assert found["conclusion"] == "within_model"


@pytest.mark.parametrize("source", ["simulated", "measured"])
def test_a_copy_is_no_repeat(tmp_path: Path, source: str) -> None:
    """By its requests' times, whatever its papers call it."""
    first, other = (
        make(tmp_path / name, seed=seed, source=source) for seed, name in enumerate("ab")
    )
    copied = tmp_path / "c"
    shutil.copytree(first, copied)
    papers = json.loads((copied / "run.json").read_text())
    if papers["source"] == "measured":
        papers["run_id"] = "another"
    (copied / "run.json").write_text(json.dumps(papers))
    with pytest.raises(InputError, match=f"{copied}: a copy of {first}, and no repeat"):
        compare([first, copied], [other])
    runs, copies = leave_out_copies([read_run(folder) for folder in (first, other, copied)])
    assert [run.folder for run in runs] == [first, other]
    assert len(copies) == 1


def test_fields_and_headers_that_differ_are_part_of_the_setup(tmp_path: Path) -> None:
    given = {"extra_body_fields": ["top_k"], "headers": ["X-Key"]}
    digests = [{"sent": {"top_k": digest}} for digest in ("1a2b", "1a2b", "3c4d")] + [{}]
    runs = [
        make(tmp_path / str(number), source="measured", settings=given | sent)
        for number, sent in enumerate(digests)
    ]
    row = {
        "what": "extra fields and headers",
        "a": {"top_k": "digest 1a2b"},
        "b": {"top_k": "digest 3c4d"},
    }
    plain = make(tmp_path / "plain", source="measured")
    for other, expected in ((runs[1], []), (runs[2], [row]), (runs[3], [])):
        assert compare([runs[0]], [other]).document()["setup"] == expected
    shown = {row["what"]: row["a"] for row in compare([runs[3]], [plain]).document()["setup"]}
    assert shown["extra fields and headers"] == {"top_k": "given", "X-Key": "given"}


def test_a_copy_is_another_folder(tmp_path: Path) -> None:
    """Which may be a run's like: only what is one folder is refused."""
    a = simulated(tmp_path / "a")
    shutil.copytree(a, tmp_path / "b")
    assert judged(a, tmp_path / "b")[0]["conclusion"] == "same"
