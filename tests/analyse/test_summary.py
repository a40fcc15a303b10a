import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadstone.core import run_folder
from loadstone.core.bounds import parse_slo
from loadstone.core.errors import InputError
from loadstone.core.host import Host
from loadstone.core.plan import Load, Plan
from loadstone.core.record import CellInfo, RequestRecord, RunInfo, Target
from loadstone.core.statistics.distribution import PERCENTILES
from loadstone.workload.lengths import Length
from loadstone.workload.schedule import make_plan
from loadstone.workload.synthetic import Synthetic
from summary_documents import summarise, trusted

DISTRIBUTION = {"n", "mean", "std", "min", "max", "p50", "p90", "p95", "p99", "ci95", "worth"}
LATENCIES = {"ttft_s", "tpot_s", "itl_s", "e2e_s", "ttft_intended_s", "e2e_intended_s"}
RATES = {"output_tokens_per_s", "total_tokens_per_s", "requests_per_s"}
WORKLOAD = Synthetic(Length("fixed", 10), Length("fixed", 3))


def make_run(
    folder: Path, loads: list[Load], change: dict[str, dict[str, Any]], **fields: Any
) -> Path:
    """A finished run: request i of a cell intended at i, sent 0.25 s later, tokens 0.5, 0.75 and 1
    s after that."""
    folder.mkdir(parents=True, exist_ok=True)
    plan = make_plan(WORKLOAD, loads, requests=[4] * len(loads), warmup=1)
    given: dict[str, Any] = {
        "run_id": folder.name, "source": "measured", "status": "done", "created": "2026-01-02T03:04:05+00:00",
        "command": [], "loadstone": "0.1.0", "host": Host(), "plan_id": plan.plan_id, "seed": 0, "salt": "s",
        "target": Target(url="http://x", endpoint="chat", model="m", prompt_kind="text"), "clock": "kernel",
        "cells": [CellInfo(load=load, start_s=0.0, issue_end_s=4.0, end_s=9.0, client_cpu_s=0.5) for load in loads],
    }  # fmt: skip
    run_folder.write_info(folder, RunInfo(**{**given, **fields}))
    run_folder.write_plan(folder / "plan.parquet", plan)
    write_records(folder, plan, change)
    return folder


def write_records(folder: Path, plan: Plan, change: dict[str, dict[str, Any]]) -> None:
    import pyarrow as pa

    rows = []
    for request in plan:
        at = float(request.index)
        row = dict.fromkeys(RequestRecord.__struct_fields__) | {
            "request_id": request.request_id, "cell": request.cell, "phase": request.phase, "status": "ok",
            "intended_s": at, "sent_s": at + 0.25, "arrival_s": [at + 0.75, at + 1.0, at + 1.25], "read": [0, 1, 2],
            "tokens": [], "token_source": "final usage", "end_s": at + 1.25, "input_tokens": 10, "output_tokens": 3,
            "cached_tokens": 0, "finish_reason": "length", "http_status": 200, "worker": 0, "receive_lag_s": 0.001,
        }  # fmt: skip
        changed = change.get(request.request_id, {})
        if changed.get("status") != "never sent":
            rows.append(row | changed)
    writer = run_folder.JournalWriter(folder, 0)
    writer.write(pa.RecordBatch.from_pylist(rows, schema=run_folder.records_schema()))
    writer.close()
    run_folder.assemble(folder)


def summary(
    folder: Path, load: Load, change: dict[str, dict[str, Any]] | None = None, **fields: Any
) -> dict[str, Any]:
    return summarise(make_run(folder, [load], change or {}, **fields))


CLOSED = Load("concurrency", 1)
OPEN = Load("rate", 1.0)


def test_bounds_are_neither_met_nor_missed_where_nothing_was_measured(tmp_path: Path) -> None:
    never = {f"0-{index}": {"status": "never sent"} for index in range(1, 5)}
    (cell,) = summary(tmp_path / "r", OPEN, never, slo=dict(parse_slo("ttft_p99<1s")))["cells"]
    assert cell["requests"]["sent"] == 0
    assert "slo" not in cell


def test_bounds_of_requests_are_in_the_summary_in_seconds(tmp_path: Path) -> None:
    load = Load("rate", 1.0)
    (cell,) = summary(tmp_path / "r", load, slo=dict(parse_slo("ttft<500ms,e2e<9,tpot_p99<1s")))[
        "cells"
    ]
    assert cell["slo_per_request_s"] == {"ttft": 0.5, "e2e": 9.0}
    assert [bound["bound"] for bound in cell["slo"]] == ["ttft<500ms", "e2e<9s", "tpot_p99<1s"]
    assert [bound["value"] for bound in cell["slo"]] == [
        0.75,
        1.25,
        0.25,
    ]  # of every request, the slowest
    (cell,) = summary(tmp_path / "s", load, slo=dict(parse_slo("tpot_p99<1s")))["cells"]
    assert "slo_per_request_s" not in cell


def test_the_document_has_the_keys_that_scripts_rely_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadstone.analyse.metrics.ROUNDS", 1.0)
    document = summary(tmp_path / "r", CLOSED, slo={"ttft": 0.5, "tpot_p99": 0.5})
    assert set(document) == {
        "schema", "run_id", "run_dir", "source", "status", "target", "plan_id", "seed", "cells", "findings",
    }  # fmt: skip
    assert (document["schema"], document["run_id"], document["run_dir"]) == (
        1,
        "r",
        str(tmp_path / "r"),
    )
    (cell,) = document["cells"]
    assert set(cell) == {
        "load", "requests", "duration_s", "metrics", "client", "verdict", "slo", "p_slo", "slo_per_request_s", "light",
    }  # fmt: skip
    assert cell["light"] is None  # nobody said what it ran on
    assert cell["load"].items() >= {"kind": "concurrency", "value": 1.0}.items()
    assert set(cell["requests"]) == {"sent", "ok", "error", "timeout", "cancelled", "short"}
    metrics = cell["metrics"]
    assert set(metrics) == LATENCIES | RATES | {
        "steady", "achieved_rate_per_s", "goodput_per_s", "attainment", "input_tokens", "output_tokens",
        "output_events", "cached_input_tokens", "sustained",
    }  # fmt: skip
    assert all(set(metrics[name]) == DISTRIBUTION for name in LATENCIES)
    assert set(metrics["steady"]) == RATES | {"start_s", "end_s", "ci95"}
    assert set(cell["client"]) == {"send_lag_p99_s", "receive_lag_p99_s", "clock", "cpu_s"}
    assert set(cell["verdict"]) == {"trusted", "findings"}
    assert all(
        set(one) - {"values"} == {"kind", "severity", "evidence", "remedy"}
        for one in cell["verdict"]["findings"]
    )
    assert set(cell["slo"][0]) == {
        "bound",
        "metric",
        "limit_s",
        "measured_s",
        "value",
        "met",
        "p_met",
    }


def test_the_document_has_the_numbers_of_the_records(tmp_path: Path) -> None:
    (cell,) = summary(tmp_path / "r", OPEN)["cells"]
    assert cell["requests"] == {
        "sent": 4,
        "ok": 4,
        "error": 0,
        "timeout": 0,
        "cancelled": 0,
        "short": 0,
    }
    assert cell["metrics"]["ttft_s"]["p50"] == 0.5
    assert cell["metrics"]["ttft_intended_s"]["p50"] == 0.75
    assert cell["metrics"]["tpot_s"]["p99"] == 0.25
    assert cell["metrics"]["output_tokens"] == 12
    assert cell["metrics"]["achieved_rate_per_s"] == 1.0
    assert cell["duration_s"] == 4.25
    assert cell["client"] == {
        "send_lag_p99_s": 0.25,
        "receive_lag_p99_s": 0.001,
        "clock": "kernel",
        "cpu_s": 0.5,
    }


def test_without_bounds_there_is_no_goodput(tmp_path: Path) -> None:
    (cell,) = summary(tmp_path / "r", CLOSED)["cells"]
    assert not {"goodput_per_s", "attainment"} & set(cell["metrics"])
    assert "slo" not in cell


def test_a_cell_of_which_nothing_was_sent_is_left_out(tmp_path: Path) -> None:
    gone = {f"1-{i}": {"status": "never sent"} for i in range(5)}
    document = summarise(make_run(tmp_path / "r", [CLOSED, Load("concurrency", 2)], gone))
    assert [cell["load"]["value"] for cell in document["cells"]] == [1.0]


def test_what_an_engine_said_is_json(tmp_path: Path) -> None:
    change = {"0-2": {"status": "error", "error": 'quote " back\\slash \x1b[31m\0 ü'}}
    document = summary(tmp_path / "r", CLOSED, change)
    run_folder.write_json(tmp_path / "summary.json", document)
    assert json.loads((tmp_path / "summary.json").read_text()) == document
    evidence = document["cells"][0]["verdict"]["findings"][0]["evidence"]
    assert evidence.isprintable()
    assert "ü" in evidence


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("ttft<500ms", {"ttft": 0.5}),
        ("ttft<500ms, tpot_p99 < 30ms,e2e_p50<=2", {"ttft": 0.5, "tpot_p99": 0.03, "e2e_p50": 2.0}),
    ],
)
def test_bounds(text: str, bounds: dict[str, float]) -> None:
    assert dict(parse_slo(text)) == bounds


@pytest.mark.parametrize(
    "text",
    ["", "ttft", "ttft>1s", "ttft_<1s", "ttft_p98<1s", "itl<1s", "ttft<1s,", "<1s", "ttft<x"],
)
def test_what_is_no_bound_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InputError, match=r"^--slo: .*; write "):
        parse_slo(text)


def test_two_bounds_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match=r"^--slo: ttft has two bounds; give one$"):
        parse_slo("ttft<500ms, ttft<1s")


@pytest.mark.parametrize(
    ("load", "slo", "measured", "met"),
    [
        (CLOSED, "ttft_p50<500ms", 0.5, True),
        (CLOSED, "ttft_p50<499ms", 0.5, False),
        (OPEN, "ttft_p50<500ms", 0.75, False),  # the user waits from the intended time
        (OPEN, "e2e_p99<1.25s", 1.25, True),
        (OPEN, "tpot_p95<250ms", 0.25, True),
    ],
)
def test_bounds_on_percentiles_are_met_or_missed(
    tmp_path: Path, load: Load, slo: str, measured: float, met: bool
) -> None:
    (cell,) = summary(tmp_path / "r", load, slo=dict(parse_slo(slo)))["cells"]
    name, _, limit = slo.partition("<")
    (bound,) = cell["slo"]
    assert (
        bound.items()
        >= {"bound": slo, "metric": name, "limit_s": dict(parse_slo(slo))[name], "met": met}.items()
    ), limit
    assert bound["measured_s"] == bound["value"] == measured
    # All values are equal; of so few that says no more than 1 − qⁿ.
    count, quantile = cell["requests"]["ok"], PERCENTILES[name.partition("_")[2]]
    assert bound["p_met"] == (pytest.approx(1 - quantile**count) if met else 0.0)


def test_bounds_on_requests_give_attainment(tmp_path: Path) -> None:
    late = {"0-2": {"arrival_s": [2.9, 3.0, 3.1]}}
    (cell,) = summary(tmp_path / "r", CLOSED, late, slo={"ttft": 0.5})["cells"]
    assert cell["metrics"]["attainment"] == 0.75
    assert cell["metrics"]["goodput_per_s"] == 3 / cell["duration_s"]
    (bound,) = cell["slo"]
    assert (bound["bound"], bound["met"]) == ("ttft<500ms", False)
    assert bound["value"] > 0.5


def test_bounds_on_percentiles_alone_give_attainment_and_demand_no_more_than_they_say(
    tmp_path: Path,
) -> None:
    late = {f"0-{i}": {"intended_s": i + 0.25} for i in range(5)} | {
        "0-2": {"arrival_s": [2.9, 3.0, 3.1]}
    }
    slo = {"ttft_p50": 0.5, "ttft_p90": 0.4, "tpot_p99": 1.0}
    document = summary(tmp_path / "r", CLOSED, late, slo=slo)
    (cell,) = document["cells"]
    assert cell["metrics"]["attainment"] == 0.75  # of TTFT the larger limit
    assert cell["metrics"]["goodput_per_s"] == 3 / cell["duration_s"]
    assert not trusted(document)
    document = summary(tmp_path / "s", CLOSED, late, slo={"ttft_p50": 0.5})
    assert document["cells"][0]["metrics"]["attainment"] == 0.75
    assert trusted(document)
    document = summary(tmp_path / "t", CLOSED, late, slo={"ttft_p50": 0.5, "ttft": 0.5})
    assert not trusted(document)


def test_a_percentile_of_nothing_misses_its_bound(tmp_path: Path) -> None:
    failed = {f"0-{i}": {"status": "error", "error": "x"} for i in range(5)}
    document = summary(tmp_path / "r", CLOSED, failed, slo={"ttft_p99": 1.0})
    (bound,) = document["cells"][0]["slo"]
    assert (bound["value"], bound["met"], bound["p_met"]) == (None, False, 0.0)
    assert not trusted(document)


def test_a_run_is_trusted_if_every_cell_is_and_every_bound_met(tmp_path: Path) -> None:
    clean = summarise(
        make_run(tmp_path / "a", [CLOSED, Load("concurrency", 2)], {}, slo={"ttft_p50": 5.0})
    )
    # Sends of these runs are late by a quarter of a second.
    assert [f["kind"] for cell in clean["cells"] for f in cell["verdict"]["findings"]] == [
        "sends_late",
        "few_samples",
        "few_rounds",
    ] * 2
    on_time = {f"{c}-{i}": {"intended_s": i + 0.25} for c in (0, 1) for i in range(5)}
    loads = [CLOSED, Load("concurrency", 2)]
    assert trusted(summarise(make_run(tmp_path / "b", loads, on_time, slo={"ttft_p50": 5.0})))
    assert not trusted(summarise(make_run(tmp_path / "c", loads, on_time, slo={"ttft_p50": 0.1})))
    broken = {**on_time, "1-3": {"status": "error", "error": "x"}}
    assert not trusted(summarise(make_run(tmp_path / "d", loads, broken)))
    assert not trusted(clean | {"cells": []})


def test_a_run_without_records_is_told(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", [CLOSED], {})
    (folder / "records.parquet").unlink()
    with pytest.raises(InputError, match="no records; if the run was cut off, `loadstone recover "):
        summarise(folder)


# --- folders of others' making --------------------------------------------------------------------


def test_papers_and_plan_of_two_runs_are_told(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", [CLOSED], {})
    papers = run_folder.read_info(folder)
    for cells in ([], papers.cells * 2):
        run_folder.write_info(folder, msgspec.structs.replace(papers, cells=cells))
        with pytest.raises(
            InputError, match=rf"run\.json has {len(cells)} cells and plan\.parquet 1"
        ):
            summarise(folder)


@pytest.mark.parametrize("name", ["ttft_p99_s", "moon_p99", "e2e_<b>"])
def test_a_bound_on_what_is_not_measured_is_missed(tmp_path: Path, name: str) -> None:
    (cell,) = summary(tmp_path / "r", CLOSED, slo={name: 1.0})["cells"]
    assert [(bound["metric"], bound["value"], bound["met"]) for bound in cell["slo"]] == [
        (name, None, False)
    ]


@pytest.mark.parametrize("change", [{"request_id": "=cmd()"}, {"request_id": None}])
def test_records_without_their_numbers_are_told(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="request_id"):
        summary(tmp_path / "r", CLOSED, {"0-2": change})
