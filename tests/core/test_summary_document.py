"""The typed summary: whatever gives a document, decoding and encoding give the same again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import loadstone
from loadstone.core.errors import InputError
from loadstone.core.metrics import Requests, Steady
from loadstone.core.summary import CellSummary, Summary, mean_tokens, read
from loadstone.core.verdict import Finding

HERE = Path(__file__).resolve().parent
DIALECTS = sorted((HERE.parent / "analyse" / "dialects").glob("*.json"))
SHARED = HERE.parents[2] / "shared" / "data" / "results"

LATENCY = {
    "n": 40, "mean": 0.2, "std": 0.1, "min": 0.1, "max": 0.5, "p50": 0.2, "p90": 0.3, "p95": 0.4, "p99": 0.45,
    "ci95": {"mean": [0.1, 0.3], "p50": [0.1, None], "p90": [None, None], "p95": [None, None], "p99": [None, None]},
    "worth": {"p50": 20, "p90": 10, "p95": 5, "p99": 0},
}  # fmt: skip
COUNTS = {"sent": 40, "ok": 39, "error": 1, "timeout": 0, "cancelled": 0, "short": 0}
PART = {
    "requests": COUNTS, "ttft_s": LATENCY, "tpot_s": None, "e2e_s": LATENCY, "ttft_intended_s": None,
    "e2e_intended_s": None, "input_tokens": 400, "cached_input_tokens": None, "output_tokens": 80,
    "mean_input_tokens": 10.0, "mean_output_tokens": 2.0, "token_share": 1.0,
}  # fmt: skip
CELL: dict[str, Any] = {
    "load": {
        "kind": "rate", "value": 4.0, "process": "poisson", "burstiness": 1.0, "max_concurrency": None,
        "duration_s": None, "profile": [[2.0, 6.0, 10.0]], "unit": "requests", "time_scale": 1.0,
    },
    "requests": COUNTS,
    "duration_s": 10.0,
    "metrics": {
        "ttft_s": LATENCY, "tpot_s": LATENCY, "itl_s": LATENCY | {"worth": {}}, "e2e_s": LATENCY,
        "ttft_intended_s": LATENCY, "e2e_intended_s": None, "input_tokens": 400, "output_tokens": 80,
        "output_events": 80, "cached_input_tokens": None, "output_tokens_per_s": 8.0, "total_tokens_per_s": 48.0,
        "requests_per_s": 3.9,
        "steady": {
            "start_s": 0.0, "end_s": 10.0, "output_tokens_per_s": 8.0, "total_tokens_per_s": None,
            "requests_per_s": 3.9, "ci95": {"output_tokens_per_s": [7.0, 9.0]}, "j_per_output_token": 2.5,
            "j_per_total_token": 0.4,
        },
        "sustained": {
            "output_tokens_per_s": 9.0, "total_tokens_per_s": 49.0, "requests_per_s": 4.0,
            "ci95": {"output_tokens_per_s": [8.0, 10.0]},
        },
        "achieved_rate_per_s": 4.1, "shared_input_tokens": 100, "j_per_output_token": 3.0, "j_per_total_token": 0.5,
        "goodput_per_s": None,
        "attainment": None,
    },
    "by_turn": [{"turn": 0, **PART}],
    "by_replica": [{"replica": 0, "url": "http://a", **PART}, {"replica": 1, "url": None, **PART}],
    "by_piece": [{"from": 2.0, "to": 6.0, "seconds": 10.0, "output_tokens_per_s": 8.0, **PART}],
    "client": {
        "send_lag_p99_s": 0.001, "receive_lag_p99_s": None, "clock": "kernel", "cpu_s": 2.0, "selftest": "as tested",
    },
    "verdict": {"trusted": False, "findings": [
        {"kind": "overload", "severity": "warning", "evidence": "e", "remedy": "r"},
    ]},
    "server": {"samples": 10, "restarts": 0, "running": {"mean": 3.0, "max": 5.0}},
    "gpu": {"gpus": 2, "samples": 20, "throttled": {"thermal": 0.5}, "power_w": {"mean": 600.0, "max": 700.0}},
    "slo_per_request_s": {"ttft": 0.5},
    "slo": [
        {"bound": "ttft<500ms", "metric": "ttft", "limit_s": 0.5, "measured_s": 0.5, "value": 0.5, "met": True,
         "p_met": 0.6},
        {"bound": "ttft_p99<1s", "metric": "ttft_p99", "limit_s": 1.0, "measured_s": 0.4, "value": 0.4, "met": True,
         "p_met": 0.8},
        {"bound": "tpot_p99<1s", "metric": "tpot_p99", "limit_s": 1.0, "measured_s": 0.4, "value": 0.4, "met": True,
         "p_met": 0.5},
    ],
    "dialect": {"name": "vllm", "tool": "vllm bench", "metrics": {"completed": 39, "mean_ttft_ms": 1.5, "x": None},
                "definitions": {"completed": "ok"}},
    "light": {"tpot_s": 0.01, "ttft_s": None, "tpot_ratio": 0.5, "ttft_ratio": None, "mbu": 0.4, "mfu": 0.1},
}  # fmt: skip
DOCUMENT: dict[str, Any] = {
    "schema": 1, "run_id": "r", "run_dir": "runs/r", "source": "measured", "status": "done", "target": None,
    "plan_id": "0123456789ab", "seed": 0, "cells": [CELL], "findings": [],
}  # fmt: skip


def check_same(document: dict[str, Any]) -> None:
    """Typed, and from JSON, it becomes the same document again: keys, numbers and their kinds."""
    wanted = json.dumps(document, sort_keys=True)
    assert json.dumps(Summary.of(document).document(), sort_keys=True) == wanted
    assert (
        json.dumps(msgspec.json.decode(wanted, type=Summary).document(), sort_keys=True) == wanted
    )


def with_cell(**changes: Any) -> dict[str, Any]:
    return DOCUMENT | {"cells": [CELL | changes]}


def cell_of(**changes: Any) -> CellSummary:
    return Summary.of(with_cell(**changes)).cells[0]


def test_every_part_of_a_document_stays() -> None:
    check_same(DOCUMENT)
    check_same(DOCUMENT | {"first_token": {"prompt_tokens": 3, "parts_s": {"products": 0.1}}})


def test_another_tools_figures_may_lack_any_number() -> None:
    stated = {name: None for name in LATENCY if name not in ("ci95", "worth")} | {
        "ci95": {"p50": [None, None]}
    }
    cell = {name: CELL[name] for name in ("load", "duration_s", "client", "verdict", "light")} | {
        "requests": dict.fromkeys(COUNTS),
        "metrics": {name: None for name in CELL["metrics"] if name not in (
            "shared_input_tokens", "j_per_output_token", "j_per_total_token", "goodput_per_s", "attainment",
        )} | {"ttft_s": stated, "input_tokens": 40.0},
        "measured_by": "vLLM", "definitions": None,
    }  # fmt: skip
    document = DOCUMENT | {"source": "imported", "cells": [cell]}
    check_same(document)
    assert Summary.of(document).cells[0].is_as_stated


@pytest.mark.parametrize("path", DIALECTS, ids=lambda path: path.stem)
def test_imported_documents_stay(path: Path, tmp_path: Path) -> None:
    try:
        runs = loadstone.import_files([path], tmp_path)
    except InputError:
        pytest.skip("no result file")
    for run in runs:
        check_same(loadstone.open_run(run).summary().document())
        assert read(run).cells


@pytest.mark.skipif(not SHARED.exists(), reason="the shared results are not beside this checkout")
def test_documents_of_the_shared_results_stay(tmp_path: Path) -> None:
    files = [path for path in sorted(SHARED.rglob("*.json")) if path.stat().st_size < 3e5]
    for path in files[::4]:
        try:
            runs = loadstone.import_files([path], tmp_path)
        except InputError:
            continue
        for run in runs:
            check_same(loadstone.open_run(run).summary().document())


def test_simulated_documents_stay(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "input": "64",
        "output": "8",
        "requests": 16,
        "draws": 2,
        "out": tmp_path,
    }
    document = loadstone.simulate(
        "llama-3.1-8b@1xh100", concurrency=[2], slo="ttft<1s,tpot_p99<1s", **options
    ).document()
    assert document["cells"][0]["metrics"]["ttft_s"]["low"] is not None
    check_same(document)
    assert json.dumps(read(Path(document["run_dir"])).document()) == json.dumps(document)


def test_where_no_interval_is_known_a_simulated_document_says_null(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "input": "64",
        "output": "8",
        "requests": 16,
        "draws": 0,
        "out": tmp_path,
    }
    document = loadstone.simulate("llama-3.1-8b@1xh100", rate=[2], **options).document()
    assert document["cells"][0]["metrics"]["ttft_s"]["high"] is None
    check_same(document)


def test_keys_of_a_later_version_are_passed_over() -> None:
    assert Summary.of(with_cell(moon=1) | {"moon": 2}).document() == DOCUMENT


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"cells": []}, "missing required field `schema`"),
        (DOCUMENT | {"schema": 2}, "summary of schema 2; this version of Loadstone reads 1"),
        (DOCUMENT | {"cells": {}}, "`$.cells`"),
        (with_cell(requests=3), "`$.cells[0].requests`"),
        (with_cell(metrics=CELL["metrics"] | {"ttft_s": "soon"}), "`$.cells[0].metrics.ttft_s`"),
        (
            with_cell(metrics=CELL["metrics"] | {"ttft_s": LATENCY | {"ci95": {"p50": [1.0]}}}),
            "length >= 2",
        ),
        (with_cell(metrics=CELL["metrics"] | {"output_tokens": True}), "got `bool`"),
        (with_cell(load=CELL["load"] | {"kind": "tide"}), "Invalid enum value 'tide'"),
        (
            with_cell(verdict={"trusted": True, "findings": [{"kind": "x"}]}),
            "missing required field `severity`",
        ),
    ],
)
def test_what_is_no_summary_is_refused_in_one_line(document: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError) as caught:
        Summary.of(document)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b'{"cells": [', b"[" * 100_000, b"\xff\xfe", b"null", b'{"run_id": "\xff"}'],
)
def test_what_is_no_json_is_refused_in_one_line(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_bytes(text)
    with pytest.raises(
        InputError, match=r"summary\.json: not a summary .+; `loadstone recover .+` makes it"
    ):
        read(tmp_path)


def test_a_folder_without_a_summary_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"cannot be read \(No such file or directory\); import the file again"
    ):
        read(tmp_path, "import the file again")


def test_throughput_in_the_long_run_is_what_comes_then_the_steady_window_then_the_cell() -> None:
    calm = {"trusted": True, "findings": []}
    cell = cell_of(verdict=calm)
    assert cell.lasting() is cell.metrics.sustained
    cell.metrics.sustained = None
    assert cell.lasting() is cell.steady is cell.metrics.steady
    assert cell.lasting(steady=False) is cell.metrics
    assert cell.metrics.ci95 == {}
    growing = cell_of()
    growing.metrics.sustained = None
    assert growing.queue_grows
    assert growing.steady is None
    assert growing.lasting() is growing.metrics


def test_bounds_are_met_together_and_as_likely_as_their_product() -> None:
    cell = cell_of()
    assert cell.slo_probability == 0.6 * 0.5  # of both on TTFT the less likely
    assert cell.slo_met
    cell.metrics.attainment = 0.9
    assert not cell.slo_met
    assert cell_of(slo=[], slo_per_request_s={}).slo_met is None
    assert cell_of(slo=[], slo_per_request_s={}).slo_probability is None
    assert cell_of(slo=[CELL["slo"][0] | {"p_met": None}]).slo_probability is None


def test_a_summary_is_trusted_where_each_cell_and_the_run_are() -> None:
    summary = Summary.of(with_cell(verdict={"trusted": True, "findings": []}))
    assert summary.trusted
    summary.findings = [Finding("cells_not_begun", "warning", "", "")]
    assert not summary.trusted
    assert not Summary.of(DOCUMENT).trusted
    assert not Summary.of(DOCUMENT | {"cells": []}).trusted


def test_mean_tokens_are_over_all_cells_that_tell_both() -> None:
    one = cell_of()
    silent = cell_of(requests=dict.fromkeys(COUNTS))
    assert mean_tokens([one, silent]) == (400 / 39, 80 / 39)
    assert mean_tokens([silent]) == (None, None)
    endless = cell_of(requests=COUNTS | {"ok": 10**400})
    assert mean_tokens([endless]) == (None, None)


def test_latencies_are_read_by_the_names_of_statistics() -> None:
    ttft = cell_of().metrics.latency("ttft_s")
    assert ttft is not None
    assert ttft.value("p99") == 0.45
    assert ttft.bounds("p50") == (0.1, None)
    assert ttft.bounds("std") == (None, None)


def test_what_is_unknown_is_null_or_left_out() -> None:
    assert msgspec.to_builtins(Requests(ok=1)) == dict.fromkeys(COUNTS) | {"ok": 1}
    steady = Steady(start_s=0.0, end_s=1.0, output_tokens_per_s=1.0, requests_per_s=1.0, ci95={})
    assert "j_per_output_token" not in msgspec.to_builtins(steady)
    assert msgspec.to_builtins(steady)["total_tokens_per_s"] is None
