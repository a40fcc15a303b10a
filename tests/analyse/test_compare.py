"""Two sides of runs: what differs, and by more than chance."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loadstone
from conftest import Loadstone
from loadstone import commands
from loadstone.analyse.compare.comparison import judge
from loadstone.analyse.compare.metric import parse_bounds, parse_metric
from loadstone.analyse.compare.permutation import Units
from loadstone.analyse.compare.result import (
    ComparedCell,
    ComparedMetric,
    Difference,
    MetricRow,
    name_loads,
)
from loadstone.analyse.compare.sides import open_run
from loadstone.analyse.stored_run import read_run
from loadstone.analyse.summary import summary_of
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.host import Host
from loadstone.core.plan import Load
from loadstone.core.record import CellInfo, RequestRecord, RunInfo, Target, TokenSource
from loadstone.core.version import __version__
from loadstone.interop.read import import_files
from loadstone.report.data.frames import OUTPUT, TPOT, TTFT
from loadstone.report.data.pairs import effect
from loadstone.report.data.points import points_of
from loadstone.report.pages.comparison import plain, show_conclusion, show_metric
from loadstone.workload.lengths import Length
from loadstone.workload.schedule import make_plan
from loadstone.workload.synthetic import Synthetic
from summary_documents import summarise
from test_import import SGLANG

CLOSED = Load("concurrency", 4)
TOKENS = 20
SOURCE: TokenSource = "running usage"


def make(
    folder: Path, *, seed: int = 0, slower: float = 1.0, load: Load = CLOSED, requests: int = 160,
    drift: float = 0.0, spread: float = 0.05, plan_seed: int = 0, **fields: Any,
) -> Path:  # fmt: skip
    """A run of four places, each request 0.1 s to its first token and 10 ms a token, times noise
    (`spread`).

    `drift`: of a pace that requests under way together share, a random walk that comes back
    (correlation 0.9). `seed`: of what happened; `plan_seed`: of what was asked.
    """
    rng = np.random.default_rng(seed)
    workload = Synthetic(Length("fixed", 10), Length("fixed", TOKENS))
    plan = make_plan(workload, [load], requests=[requests], warmup=0, seed=plan_seed)
    columns: dict[str, list[Any]] = {name: [] for name in run_folder.records_schema().names}
    free, pace = [0.0] * 4, 0.0
    for index in range(requests):
        place = int(np.argmin(free))
        sent = free[place]
        noise = np.exp(rng.normal(0, spread, 2))
        if drift:
            pace = 0.9 * pace + drift * math.sqrt(1 - 0.81) * rng.normal()
            noise *= math.exp(pace)
        first = sent + 0.1 * slower * noise[0]
        arrivals = first + 0.01 * slower * noise[1] * np.arange(TOKENS)
        free[place] = float(arrivals[-1]) + 1e-4
        record = RequestRecord(
            request_id=f"0-{index}", cell=0, phase="measure", intended_s=sent, sent_s=sent,
            arrival_s=arrivals.tolist(), read=list(range(TOKENS)), tokens=list(range(1, TOKENS + 1)),
            token_source=SOURCE, end_s=float(arrivals[-1]), input_tokens=10, output_tokens=TOKENS,
            status="ok", finish_reason="length",
        )  # fmt: skip
        for name, values in columns.items():
            values.append(getattr(record, name))
    folder.mkdir(parents=True)
    target = Target(
        url="http://x", endpoint="completions", model="m", engine="vLLM", prompt_kind="token ids"
    )
    given: dict[str, Any] = {
        "run_id": folder.name, "source": "simulated", "status": "done", "created": "2026-01-02T03:04:05+00:00",
        "command": [], "loadstone": "0.1.0", "host": Host(), "plan_id": plan.plan_id, "seed": plan_seed,
        "salt": None,
        "target": target, "settings": {"workload": plan.workload},
        "cells": [CellInfo(load=load, start_s=0.0, issue_end_s=max(free), end_s=max(free))],
    }  # fmt: skip
    run_folder.write_info(folder, RunInfo(**{**given, **fields}))
    run_folder.write_plan(folder / "plan.parquet", plan)
    writer = run_folder.JournalWriter(folder, 0)
    writer.write(pa.RecordBatch.from_pydict(columns, schema=run_folder.records_schema()))
    writer.close()
    run_folder.assemble(folder)
    return folder


def compare(*sides: Any, **options: Any) -> dict[str, Any]:
    """The document that a comparison prints."""
    document: dict[str, Any] = loadstone.compare(*sides, **options).document()
    return document


def printed(row: dict[str, Any]) -> MetricRow:
    return msgspec.convert(row, MetricRow)


def rows(document: dict[str, Any], cell: int = 0) -> dict[str, Any]:
    return {row["metric"]: row for row in document["cells"][cell]["metrics"]}


def test_a_run_is_no_different_from_itself(tmp_path: Path) -> None:
    a, copied = make(tmp_path / "a"), tmp_path / "b"
    shutil.copytree(a, copied)
    document = compare([a], [copied])
    assert document["setup"] == []
    for row in rows(document).values():
        assert (row["ratio"], row["differs"], row["better"]) == (1.0, False, None)
    assert document["cells"][0]["units"]["paired"]


def test_several_answers_to_a_request_are_another_question(tmp_path: Path) -> None:
    target = Target(
        url="http://x", endpoint="completions", model="m", engine="vLLM", prompt_kind="token ids"
    )
    several = msgspec.structs.replace(target, choices=4)
    document = compare([make(tmp_path / "a")], [make(tmp_path / "b", target=several)])
    assert document["setup"] == [{"what": "answers a request", "a": 1, "b": 4}]
    (finding,) = (each for each in document["findings"] if each["kind"] == "workloads_differ")
    assert "answers a request differ" in finding["evidence"]


def test_a_difference_is_shown_with_its_ratio_and_interval(tmp_path: Path) -> None:
    document = compare([make(tmp_path / "a", seed=1)], [make(tmp_path / "b", seed=2, slower=1.1)])
    found = rows(document)
    for name in ("ttft_p50", "tpot_p50", "e2e_p50"):
        assert found[name]["differs"], name
        assert found[name]["better"] == "a"
        assert found[name]["low"] < 1.1 < found[name]["high"]
        assert found[name]["p"] <= found[name]["p_family"] <= 0.05
    assert found["output_tokens_per_s"]["differs"]
    assert found["output_tokens_per_s"]["ratio"] == pytest.approx(1 / 1.1, rel=0.02)
    assert found["output_tokens_per_s"]["better"] == "a"


def test_a_report_and_a_comparison_have_one_interval(tmp_path: Path) -> None:
    """Of unpaired runs; and a report calls no winner between cells of one law whose requests drift
    together, though as independent ones they lie far apart.
    """
    called = 0
    for seed in range(12):
        a, b = (
            make(tmp_path / name, seed=2 * seed + n, drift=0.25, source="measured", plan_seed=n)
            for n, name in enumerate((f"a{seed}", f"b{seed}"))
        )
        compared = rows(compare([a], [b]))
        over, under = points_of([read_run(b), read_run(a)])
        for measure, metric in (
            (TTFT, "ttft_p50"),
            (TPOT, "tpot_p50"),
            (OUTPUT, "output_tokens_per_s"),
        ):
            row, found = compared[metric], effect(over, under, measure)
            if row["low"] is None:
                assert found is None
                continue
            assert found is not None
            assert (found.ratio, found.low, found.high) == pytest.approx(
                (row["ratio"], row["low"], row["high"])
            )
            called += found.clear
    assert called <= 2  # of 36; it is 14 where requests are taken for independent


def test_a_stored_summary_counts_for_all_where_this_version_made_it(tmp_path: Path) -> None:
    """Else it is made anew of the records, for reports and for comparisons alike."""
    folder = make(tmp_path / "a", source="measured")
    document = summarise(folder)
    ours = document["cells"][0]["metrics"]["ttft_s"]["p50"]
    document["cells"][0]["metrics"]["ttft_s"]["p50"] = 9.0
    run_folder.write_json(folder / "summary.json", document)
    for version, wanted in ((__version__, 9.0), ("0.0.9", ours)):
        info = run_folder.read_info(folder)
        info.loadstone = version
        run_folder.seal(folder, info)
        for run in (read_run(folder), open_run(folder, {})):
            ttft = run.summary.cells[0].metrics.ttft_s
            assert ttft is not None
            assert ttft.p50 == wanted


def test_the_other_way_round_is_the_reciprocal(tmp_path: Path) -> None:
    a, b = make(tmp_path / "a", seed=1), make(tmp_path / "b", seed=2, slower=1.1)
    there, back = rows(compare([a], [b])), rows(compare([b], [a]))
    for name, row in there.items():
        assert row["ratio"] * back[name]["ratio"] == pytest.approx(1.0)
        assert row["differs"] == back[name]["differs"]


def test_the_same_runs_and_seed_give_the_same_document(tmp_path: Path) -> None:
    a, b = make(tmp_path / "a", seed=1), make(tmp_path / "b", seed=2)
    assert compare([a], [b], seed=3) == compare([a], [b], seed=3)


def test_requests_of_one_plan_are_compared_in_pairs(tmp_path: Path) -> None:
    """Pairs need less data where what varies is the request: here noise that both runs share."""
    a, b = make(tmp_path / "a", seed=1), make(tmp_path / "b", seed=1, slower=1.01)
    paired = compare([a], [b])
    assert paired["cells"][0]["units"]["paired"]
    assert rows(paired)["e2e_p50"]["differs"]
    other = make(tmp_path / "c", seed=5, slower=1.01, plan_seed=1)
    apart = compare([a], [other])
    assert not apart["cells"][0]["units"]["paired"]
    assert not rows(apart)["e2e_p50"]["differs"]
    assert rows(apart)["e2e_p50"]["would_show"] > 1.01


def test_repeats_are_compared_as_runs(tmp_path: Path) -> None:
    a = [make(tmp_path / f"a{n}", seed=n) for n in range(4)]
    b = [make(tmp_path / f"b{n}", seed=10 + n, slower=1.1) for n in range(4)]
    document = compare(a, b)
    assert document["cells"][0]["units"] == {"kind": "runs", "a": 4, "b": 4, "paired": False}
    assert rows(document)["tpot_p50"]["differs"]
    assert rows(document)["tpot_p50"]["low"] < 1.1 < rows(document)["tpot_p50"]["high"]
    few = compare(a[:2], b[:2])
    assert few["cells"][0]["units"] == {"kind": "runs", "a": 2, "b": 2, "paired": False}
    assert rows(few)["tpot_p50"]["p"] < rows(few)["tpot_p50"]["p_family"]


def test_a_short_cell_is_not_tested_and_says_why(tmp_path: Path) -> None:
    document = compare(
        [make(tmp_path / "a", requests=16)], [make(tmp_path / "b", requests=16, slower=2.0)]
    )
    (cell,) = document["cells"]
    assert cell["units"]["kind"] is None
    assert "as many requests as were under way at a time, 6 are needed" in cell["why_not_tested"]
    assert rows(document)["tpot_p50"]["ratio"] == pytest.approx(2.0, rel=0.1)
    assert rows(document)["tpot_p50"]["p_family"] is None
    assert "point_values" in {finding["kind"] for finding in document["findings"]}


def test_a_tail_of_few_requests_has_no_interval(tmp_path: Path) -> None:
    found = rows(compare([make(tmp_path / "a", seed=1)], [make(tmp_path / "b", seed=2)]))
    assert found["ttft_p99"]["low"] is None  # 1.6 of 160 requests lie beyond it
    assert found["ttft_p50"]["low"] is not None


def test_arguments_that_nobody_gave_are_no_difference(tmp_path: Path) -> None:
    a = make(tmp_path / "a", settings={"deployment": {"engine": "vllm", "arguments": {}}})
    b = make(tmp_path / "b", settings={"deployment": {"engine": "vllm"}})
    assert compare([a], [b])["setup"] == []


def test_why_there_is_no_test_is_told_of_each_load(tmp_path: Path) -> None:
    document = compare([make(tmp_path / "a", requests=16)], [make(tmp_path / "b", requests=16)])
    (said,) = [each["evidence"] for each in document["findings"] if each["kind"] == "point_values"]
    (cell,) = document["cells"]
    load = f"{cell['load']['kind']} {cell['load']['value']:g}"
    assert said == f"no test, only point values, at {load}: {cell['why_not_tested']}"


def test_what_only_one_side_tells_is_one_line() -> None:
    from loadstone.report.pages.comparison import setup_lines

    told = [
        Difference("engine", "vLLM", "SGLang"),
        Difference("tp", None, 8),
        Difference("seed", None, 0),
        Difference("tool", "AIPerf", None),
    ]
    assert setup_lines(told) == [
        "engine: vLLM → SGLang",
        "only A states tool AIPerf",
        "only B states tp 8, seed 0",
    ]


def test_what_differs_in_the_setup_comes_first(tmp_path: Path) -> None:
    a = make(tmp_path / "a", settings={"deployment": {"engine": "vllm", "gpu": "h200", "tp": 8}})
    b = make(tmp_path / "b", settings={"deployment": {"engine": "sglang", "gpu": "h200", "tp": 4}})
    setup = {one["what"]: (one["a"], one["b"]) for one in compare([a], [b])["setup"]}
    assert setup == {"engine": ("vLLM", "SGLang"), "tp": (8, 4)}


def test_another_workload_is_a_warning(tmp_path: Path) -> None:
    shorter = {"workload": {"kind": "synthetic", "input": {"kind": "fixed", "mean": 5.0}}}
    document = compare([make(tmp_path / "a")], [make(tmp_path / "b", settings=shorter)])
    assert "workloads_differ" in {finding["kind"] for finding in document["findings"]}


@pytest.mark.parametrize("name", ["pictures", "count", "document"])
def test_other_pictures_texts_and_documents_are_another_workload(tmp_path: Path, name: str) -> None:
    """Their text alone is alike; a plan that has no pictures says so."""
    few, many = (
        {"workload": {"kind": "synthetic", "input": {"mean": 5.0}, name: {"mean": number}}}
        for number in (1.0, 2.0)
    )
    a, b = (make(tmp_path / side, settings=each) for side, each in (("a", few), ("b", many)))
    found = {finding["kind"]: finding for finding in compare([a], [b])["findings"]}
    assert found["workloads_differ"]["values"] == {"facts": [f"workload {name}"]}
    text = {"workload": {"kind": "synthetic", "input": {"mean": 5.0}}}
    without = make(tmp_path / "c", settings=text)
    kinds = {finding["kind"] for finding in compare([a], [without])["findings"]}
    assert ("workloads_differ" in kinds) == (name == "pictures")


def test_a_workload_that_one_side_does_not_tell_is_not_called_another(tmp_path: Path) -> None:
    silent = {"workload": {"prefix_tokens": None}}
    told = {"workload": {"prefix_tokens": 0}}
    document = compare(
        [make(tmp_path / "a", settings=silent)], [make(tmp_path / "b", settings=told)]
    )
    said = {finding["kind"]: finding["evidence"] for finding in document["findings"]}
    assert "workloads_differ" not in said
    assert said["workload_not_told"].endswith("one does not state its prefix_tokens")


def test_only_loads_of_both_sides_are_compared(tmp_path: Path) -> None:
    a, b = make(tmp_path / "a"), make(tmp_path / "b", load=Load("concurrency", 8))
    with pytest.raises(
        InputError, match=r"no load is on both sides \(concurrency 4 against concurrency 8\)"
    ):
        compare([a], [b])
    document = compare([a, make(tmp_path / "c", load=Load("concurrency", 8), seed=1)], [b])
    assert [cell["load"]["value"] for cell in document["cells"]] == [8]
    assert [load["value"] for load in document["unmatched"]["a"]] == [4]


def test_one_measured_run_a_side_is_no_verdict(tmp_path: Path) -> None:
    """They differ beyond doubt, and what another run of either would have been nobody knows."""
    command = ["loadstone", "bench", "http://a:1", "--concurrency", "4", "--out", "x", "--json"]
    a, b = (
        make(tmp_path / name, seed=seed, slower=slower, source="measured", command=command)
        for name, seed, slower in (("a", 1, 1.0), ("b", 2, 1.2))
    )
    document = compare([a], [b], fail_on=["tpot_p50>+5%"])
    row = rows(document)["tpot_p50"]
    assert (row["conclusion"], row["differs"], row["better"]) == ("runs_differ", False, None)
    assert row["p_family"] <= 0.05
    assert row["repeats_needed"] >= 3
    assert (
        show_conclusion(printed(row))
        == f"differ between these two runs; repeat {row['repeats_needed']} times to know"
    )
    (bound,) = document["fail_on"]
    assert (bound["met"], bound["at"], bound["one_run"]) == (False, [], ["concurrency 4"])
    assert bound["repeats_needed"] == row["repeats_needed"]
    (finding,) = [each for each in document["findings"] if each["kind"] == "one_run_each"]
    again = f"loadstone bench http://a:1 --concurrency 4 --out {tmp_path}/repeats-a; "
    assert again in finding["remedy"]
    assert finding["remedy"].endswith(
        f"loadstone compare {tmp_path}/repeats-a {tmp_path}/repeats-b"
    )
    # One measured run beside a prediction, or beside repeats, is one run all the same.
    simulated = make(tmp_path / "c", seed=3, slower=2.0)
    assert rows(compare([a], [simulated]))["tpot_p50"]["conclusion"] == "runs_differ"
    assert (
        rows(compare([a, make(tmp_path / "d", seed=4, source="measured")], [b]))["tpot_p50"][
            "better"
        ]
        is None
    )
    # Two predictions have no more runs to differ from.
    fast = make(tmp_path / "e", seed=5)
    assert (
        rows(compare([fast], [simulated], fail_on=["tpot_p50>+5%"]))["tpot_p50"]["conclusion"]
        == "better"
    )


def test_a_gate_of_one_measured_run_lets_it_pass_and_says_why(
    tmp_path: Path, loadstone: Loadstone
) -> None:
    a, b = (
        make(tmp_path / name, seed=n, slower=1 + n, source="measured")
        for n, name in enumerate("ab")
    )
    said = loadstone("compare", a, b, "--fail-on", "tpot_p50>+5%")
    assert said.code == 0
    assert (
        "tpot_p50>+5%: not met; exceeded at concurrency 4, but by one run a side, which decides nothing"
        in said.out
    )
    assert "differ between these two runs;" in said.out


def test_few_repeats_say_how_many_would_do(tmp_path: Path) -> None:
    def repeats(side: str, seed: int, slower: float) -> list[Path]:
        return [
            make(tmp_path / f"{side}{n}", seed=seed + n, slower=slower + 0.1 * n, source="measured")
            for n in range(3)
        ]

    a = repeats("a", 0, 1.0)
    row = rows(compare(a, repeats("b", 10, 1.04)))["tpot_p50"]
    assert row["conclusion"] == "not_shown"
    assert row["would_show"] > 1.1
    assert 10 < row["repeats_needed"] < 200
    assert (
        show_conclusion(printed(row))
        == f"no difference shown; {row['repeats_needed']} runs a side would show it"
    )
    found = rows(compare(a, repeats("c", 50, 2.0)))["tpot_p50"]
    assert (found["conclusion"], found["better"], found["repeats_needed"]) == ("better", "a", None)


def test_sums_are_compared_by_their_values(tmp_path: Path) -> None:
    def imported(name: str, ttft_ms: float) -> Path:
        (tmp_path / name).write_text(json.dumps(SGLANG | {"median_ttft_ms": ttft_ms}))
        return import_files([tmp_path / name], tmp_path / "runs").runs[0]

    a, b = imported("a.jsonl", 500.0), imported("b.jsonl", 510.0)
    document = compare([a], [b], fail_on=["ttft_p50>+1%"])
    row = rows(document)["ttft_p50"]
    assert (row["ratio"], row["p"], row["differs"]) == (pytest.approx(1.02), None, False)
    assert "without its requests" in document["cells"][0]["why_not_tested"]
    assert not document["fail_on"][0]["met"]  # one run a side decides nothing
    assert document["fail_on"][0]["one_run"] == ["concurrency 4"]
    # Repeats of sums can be tested: what differs from run to run is there.
    others = [imported(f"{name}.jsonl", value) for name, value in (("c", 501.0), ("d", 511.0))]
    assert compare([a, others[0]], [b, others[1]])["cells"][0]["units"]["kind"] == "runs"


def test_a_metric_that_is_missing_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(SGLANG))
    a = import_files([tmp_path / "a.jsonl"], tmp_path / "runs").runs[0]
    document = compare([a], [make(tmp_path / "b")], fail_on=["itl_p99>+5%"])
    assert rows(document)["itl_p99"]["ratio"] is None
    assert document["fail_on"] == [
        {
            "bound": "itl_p99>+5%",
            "met": False,
            "at": [],
            "untested": [],
            "not_shown": [],
            "one_run": [],
            "repeats_needed": None,
            "missing": True,
        }
    ]


def test_a_bound_is_met_where_the_data_shows_it(tmp_path: Path) -> None:
    a, b = make(tmp_path / "a", seed=1), make(tmp_path / "b", seed=2, slower=1.1)
    met = {one["bound"]: one["met"] for one in compare([a], [b], fail_on=[
        "tpot_p50>+5%,tpot_p50>+20%", "output_tokens_per_s<-5%", "output_tokens_per_s>+5%"
    ])["fail_on"]}  # fmt: skip
    assert met == {
        "tpot_p50>+5%": True, "tpot_p50>+20%": False, "output_tokens_per_s<-5%": True,
        "output_tokens_per_s>+5%": False,
    }  # fmt: skip
    noisy = make(tmp_path / "c", seed=9, requests=60)
    (bound,) = compare(
        [make(tmp_path / "d", seed=8, requests=60)], [noisy], fail_on=["ttft_p99>-99%"]
    )["fail_on"]
    assert (bound["met"], bound["not_shown"]) == (False, ["concurrency 4"])


@pytest.mark.parametrize(
    "text", ["", "ttft_p99", "ttft_p99>5", "ttft_p98>5%", "x>5%", "ttft_p99>-100%", "tpot>5%"]
)
def test_what_is_no_bound_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^--fail-on"):
        parse_bounds([text])


def test_what_was_not_shown_is_not_said_to_have_been_visible() -> None:
    """A p99 12% lower to ±1%, of which a test of eight blocks that are alike finds nothing."""
    rng = np.random.default_rng(0)
    metric = parse_metric("tpot_p99")
    far, near = (
        ComparedMetric(metric, 1.0, ratio, ratio=ratio, log_error=0.005) for ratio in (0.88, 0.999)
    )
    units = Units(rng.random((8, 2)), rng.random((8, 2)), np.zeros(2))
    judge(
        [ComparedCell(CLOSED, [far, near], unit="blocks", units=units, tested=[far, near])], seed=0
    )
    assert not far.differs
    assert far.would_show is None
    assert near.would_show is not None
    assert near.would_show > 1.01


def test_setups_are_told_apart_by_what_they_say(tmp_path: Path) -> None:
    a, b = make(tmp_path / "a", seed=1), make(tmp_path / "b", seed=1)
    info = run_folder.read_info(b)
    info.settings.sampling, info.settings.structured = {"temperature": None, "stop": []}, None
    run_folder.write_info(b, info)
    assert "client" not in {one["what"] for one in compare([a], [b])["setup"]}
    info.settings.sampling = {"temperature": 0.5, "stop": []}
    run_folder.write_info(b, info)
    (one,) = [one for one in compare([a], [b])["setup"] if one["what"] == "client"]
    assert (plain(one["a"]), plain(one["b"])) == ("-", "sampling temperature 0.5")
    assert plain(1024.0) == "1024"


def test_a_prediction_is_said_to_be_one(tmp_path: Path) -> None:
    a, b = (
        make(tmp_path / "a", seed=1, source="measured"),
        make(tmp_path / "b", seed=2, source="simulated"),
    )
    (said,) = [
        one["evidence"] for one in compare([a], [b])["findings"] if one["kind"] == "predicted"
    ]
    assert said.startswith("B: simulated")


@pytest.mark.parametrize(
    ("ratio", "said"), [(None, "-"), (1 + 1e-9, "< 0.01%"), (1.034, "±3.4%"), (51.0, "×51")]
)
def test_the_least_difference_in_words(ratio: float | None, said: str) -> None:
    row = ComparedMetric(parse_metric("ttft_p50"), 1.0, 1.0, ratio=1.0, would_show=ratio)
    assert show_metric(row.printed)[-1] == said


def test_loads_of_one_side_are_told_by_kind() -> None:
    loads = [Load("rate", 2.0), Load("concurrency", 4.0), Load("rate", 8.0)]
    assert name_loads(loads) == "rate 2, 8; concurrency 4"


def test_empty_runs_and_missing_ones_are_told(tmp_path: Path) -> None:
    empty = make(tmp_path / "a", requests=4, cells=[CellInfo(load=CLOSED)])
    info = run_folder.read_info(empty)
    (empty / "records.parquet").unlink()
    writer = run_folder.JournalWriter(empty, 0)
    writer.close()
    run_folder.assemble(empty)
    run_folder.write_info(empty, info)
    with pytest.raises(InputError, match="nothing was sent in this run"):
        compare([empty], [make(tmp_path / "b")])
    bare = make(tmp_path / "c")
    info = run_folder.read_info(bare)
    info.loadstone = __version__  # its summary.json counts
    run_folder.write_json(bare / "summary.json", summary_of(bare).document())
    info.cells = []
    run_folder.seal(bare, info)
    with pytest.raises(InputError, match="nothing was sent in this run"):
        compare([bare], [make(tmp_path / "d")])
    with pytest.raises(InputError, match="not a run folder"):
        compare([tmp_path / "none"], [empty])
    with pytest.raises(InputError, match="one side has no run"):
        compare([], [empty])


def test_runs_that_all_failed(tmp_path: Path) -> None:
    a = make(tmp_path / "a")
    b = make(tmp_path / "b")
    table = pa.Table.from_batches(run_folder.read_records(b), run_folder.records_schema())
    failed = table.set_column(
        table.schema.get_field_index("status"), "status", pa.array(["error"] * table.num_rows)
    )
    import pyarrow.parquet as pq

    pq.write_table(failed.cast(run_folder.records_schema()), b / "records.parquet")
    document = compare([a], [b])
    assert document["cells"][0]["units"]["kind"] is None
    assert rows(document)["ttft_p50"]["ratio"] is None
    assert "untrusted" in {finding["kind"] for finding in document["findings"]}


def test_the_command_exits_1_where_a_bound_is_met(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = str(make(tmp_path / "a", seed=1)), str(make(tmp_path / "b", seed=2, slower=1.1))

    def call(*arguments: str) -> tuple[int, str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", ["loadstone", "compare", a, b, *arguments])
            with pytest.raises(SystemExit) as ended:
                commands.main()
        code = ended.value.code
        assert isinstance(code, int)
        return code, capsys.readouterr().out

    assert call("--fail-on", "tpot_p50>+20%")[0] == 0
    code, said = call(
        "--fail-on", "goodput_per_s<-5%"
    )  # there was no SLO: a gate that cannot be told is closed
    assert code == 1
    assert "UNKNOWN" in said
    code, said = call("--fail-on", "tpot_p50>+5%")
    assert code == 1
    assert "tpot_p50>+5%: MET at concurrency 4" in said
    assert "A is better" in said
    code, said = call("--json")
    assert code == 0
    assert json.loads(said)["cells"][0]["load"]["value"] == 4
    assert call("--fail-on", "nonsense")[0] == 2


# --- cells of which not all was measured ----------------------------------------------------------


def refusing(folder: Path, every: int, **more: Any) -> Path:
    """A run that answers twice as fast, and refuses each so many-th request."""
    made = make(folder, slower=0.5, **more)
    table = pq.read_table(made / "records.parquet").to_pylist()
    for row in table[::every]:
        row.update(
            status="error",
            error="busy",
            http_status=503,
            arrival_s=[],
            read=[],
            tokens=[],
            output_tokens=None,
        )
    pq.write_table(
        pa.Table.from_pylist(table, schema=run_folder.records_schema()), made / "records.parquet"
    )
    return made


def test_who_refuses_requests_wins_nothing_and_passes_no_gate(
    tmp_path: Path, loadstone: Loadstone
) -> None:
    a = [make(tmp_path / f"a{n}", seed=n, source="measured") for n in range(4)]
    b = [refusing(tmp_path / f"b{n}", 2, seed=10 + n, source="measured") for n in range(4)]
    found = rows(compare(a, b))
    for name in ("ttft_p50", "e2e_p50"):
        assert found[name]["ratio"] < 0.9
        assert (found[name]["conclusion"], found[name]["better"]) == ("not_all_measured", None)
    failed = found["failed_share"]
    assert (failed["a"], failed["b"], failed["better"]) == (0.0, 0.5, "a")
    sides = ",".join(map(str, a)), ",".join(map(str, b))
    gate = loadstone("compare", *sides, "--fail-on", "ttft_p50>+5%")
    assert gate.code == 1
    assert "NOT PASSED at concurrency 4: B has an error there" in " ".join(gate.out.split())
    assert loadstone("compare", *sides, "--fail-on", "ttft_p50>+5%", "--allow-errors").code == 0
    assert loadstone("compare", *sides, "--fail-on", "failed_share>+5%", "--allow-errors").code == 1
    assert rows(compare(b, a))["ttft_p50"]["conclusion"] == "not_all_measured"


def test_failed_shares_of_single_runs_are_tested_by_their_requests(tmp_path: Path) -> None:
    a, b, same = (
        refusing(tmp_path / name, every) for name, every in (("a", 40), ("b", 2), ("c", 40))
    )
    failed = rows(compare([a], [b]))["failed_share"]
    assert failed["p_family"] <= 0.05
    assert (failed["a"], failed["b"]) == (0.025, 0.5)
    assert failed["conclusion"] == "not_all_measured"  # A is ahead, and failed too
    assert rows(compare([a], [same]))["failed_share"]["p_family"] > 0.05
    assert "failed_share" not in rows(compare([make(tmp_path / "d")], [make(tmp_path / "e")]))


def test_runs_one_after_another_do_not_tell_a_setup_from_a_drift(tmp_path: Path) -> None:
    def side(name: str, hours: range, slower: float) -> list[Path]:
        when = [f"2026-01-02T{hour:02}:00:00+00:00" for hour in hours]
        return [
            make(
                tmp_path / f"{name}{n}",
                seed=n,
                slower=slower,
                source="measured",
                created=created,
                spread=0.001,
            )
            for n, created in enumerate(when)
        ]

    a, later, in_turn = (
        side("a", range(0, 8, 2), 1.0),
        side("b", range(10, 18, 2), 1.02),
        side("c", range(1, 9, 2), 1.02),
    )
    assert rows(compare(a, in_turn))["tpot_p50"]["better"] == "a"
    document = compare(a, later)
    assert rows(document)["tpot_p50"]["conclusion"] == "may_be_chance"
    assert "not_in_turn" in [each["kind"] for each in document["findings"]]
    assert rows(compare(a, side("d", range(10, 18, 2), 1.2)))["tpot_p50"]["better"] == "a"


def test_two_runs_a_side_do_not_tell_a_setup_from_a_state_of_the_machine(tmp_path: Path) -> None:
    """A machine of two states has only one of them on either side in an eighth of such pairs."""

    def side(name: str, hours: tuple[int, ...], slower: float) -> list[Path]:
        return [
            make(
                tmp_path / f"{name}{n}", seed=n, slower=slower, source="measured", spread=0.001,
                created=f"2026-01-02T{hour:02}:00:00+00:00",
            )
            for n, hour in enumerate(hours)
        ]  # fmt: skip

    a, state, change = side("a", (0, 4), 1.0), side("b", (2, 6), 1.08), side("c", (3, 7), 1.5)
    assert rows(compare(a, state))["tpot_p50"]["conclusion"] == "may_be_chance"
    assert rows(compare(a, change))["tpot_p50"]["better"] == "a"
    three, others = side("d", (0, 4, 8), 1.0), side("e", (2, 6, 10), 1.08)
    assert rows(compare(three, others))["tpot_p50"]["better"] == "a"


@pytest.mark.parametrize("flags", [["-np", "2"], ["-O3"], None])
def test_a_flag_that_differs_is_part_of_the_setup(
    tmp_path: Path, loadstone: Loadstone, flags: list[str] | None
) -> None:
    def started(words: list[str] | None) -> dict[str, Any]:
        command = ["llama-server", "--port", "7000", *(words or ()), "--no-webui", "-b", "-1"]
        return {"provenance": {"commands": [command]}} if words is not None else {}

    a, b = (
        make(tmp_path / name, source="measured", settings=started(words))
        for name, words in (("a", ["-np", "4"]), ("b", flags))
    )
    text = loadstone("compare", a, b).out
    setup = text[text.index("Setup:") : text.index("concurrency 4")]
    if flags is None:
        assert "Setup: the same, as far as it is known" in setup
    else:
        assert "engine flags" in setup
        assert flags[0].lstrip("-") in setup
