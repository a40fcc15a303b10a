"""Runs for other tools, and back."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from loadstone.analyse.other_tools import summarise_as
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.plan import Load
from loadstone.core.record import Target
from loadstone.interop.read import import_files
from loadstone.interop.write import export_run
from summary_documents import summarise
from test_import import SGLANG
from test_summary import CLOSED, make_run


def exported(folder: Path, form: str) -> str:
    body = export_run(folder, form)
    assert body is not None
    return body.decode()


def back(tmp_path: Path, folder: Path, form: str, name: str) -> list[dict[str, Any]]:
    (tmp_path / name).write_text(exported(folder, form))
    found = import_files([tmp_path / name], tmp_path / "back")
    return [cell for run in found.runs for cell in summarise(run)["cells"]]


@pytest.mark.parametrize(("form", "dialect"), [("vllm", "vllm"), ("sglang", "sglang-oai")])
def test_result_json_has_the_tools_keys_and_numbers(tmp_path: Path, form: str, dialect: str) -> None:
    failed = {"0-2": {"status": "error", "error": "x", "arrival_s": [], "read": [], "output_tokens": None}}
    folder = make_run(tmp_path / "r", [CLOSED, Load("rate", 2.0)], failed)
    first, second = map(json.loads, exported(folder, form).splitlines())
    numbers = summarise_as(dialect, lambda: run_folder.read_records(folder, 0)).metrics
    assert {key: first[key] for key in numbers} == numbers
    assert first["ttfts"] == [0.5, 0.0, 0.5, 0.5]
    assert first["itls"] == [[0.25, 0.25], [], [0.25, 0.25], [0.25, 0.25]]
    assert first["output_lens"] == [3, 0, 3, 3]
    assert first["errors"] == ["", "x", "", ""]
    infinite = "inf" if form == "vllm" else float("inf")
    assert (first["request_rate"], first["max_concurrency"]) == (infinite, 1)
    assert (second["request_rate"], second["max_concurrency"]) == (2.0, None)


def test_keys_of_the_two_tools(tmp_path: Path) -> None:
    """The configuration keys that each tool's own files have before their numbers."""
    folder = make_run(tmp_path / "r", [CLOSED], {})
    vllm, sglang = (json.loads(exported(folder, form)) for form in ("vllm", "sglang"))
    assert {
        "date",
        "endpoint_type",
        "backend",
        "label",
        "model_id",
        "tokenizer_id",
        "num_prompts",
        "burstiness",
    } <= set(vllm)
    assert {
        "tag", "backend", "dataset_name", "sharegpt_output_len", "random_input_len", "random_output_len",
        "random_range_ratio", "server_info",
    } <= set(sglang)  # fmt: skip


@pytest.mark.parametrize(("form", "name"), [("vllm", "x.json"), ("sglang", "x.jsonl"), ("csv", "x.csv")])
def test_what_is_exported_comes_back(tmp_path: Path, form: str, name: str) -> None:
    deployment = {"engine": "vLLM", "gpu": "H200", "gpus": 8, "tp": 8, "model": "m/x"}
    folder = make_run(tmp_path / "r", [CLOSED], {}, settings={"deployment": deployment})
    (before,), (after,) = summarise(folder)["cells"], back(tmp_path, folder, form, name)
    assert (after["load"]["kind"], after["load"]["value"]) == ("concurrency", 1)
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        for statistic in ("mean", "p50", "p99"):
            assert after["metrics"][metric][statistic] == pytest.approx(before["metrics"][metric][statistic])


def test_a_spreadsheet_gets_no_formulas(tmp_path: Path) -> None:
    target = Target(url="", endpoint="chat", model='=HYPERLINK("http://x")', engine="@x", prompt_kind="text")
    folder = make_run(tmp_path / "r", [CLOSED], {}, target=target)
    (row,) = csv.DictReader(io.StringIO(exported(folder, "csv")))
    assert row["model"] == """'=HYPERLINK("http://x")"""
    assert row["engine"] == "'@x"
    assert float(row["ttft_p50_s"]) == 0.5
    assert (row["requests"], row["failed"], row["trusted"]) == ("4", "0", "False")
    assert row["itl_mean_s"] == "0.25"


def test_a_terminal_gets_nothing_to_obey(tmp_path: Path) -> None:
    target = Target(url="", endpoint="chat", model="m\x1b[2J\x9b\u202e\x07", engine="=\r\x1b", prompt_kind="text")
    text = exported(make_run(tmp_path / "r", [CLOSED], {}, target=target), "csv")
    (row,) = csv.DictReader(io.StringIO(text))
    assert (row["model"], row["engine"]) == ("m\ufffd[2J\ufffd\ufffd\ufffd", "'=\ufffd\ufffd")
    assert text.replace("\n", "").isprintable()


def test_parquet_has_a_row_per_request(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    # The third has no output; the server of the fourth counted none, so that what arrived counts, as in summaries.
    odd = {
        "0-2": {"status": "error", "error": "x", "arrival_s": [], "read": [], "output_tokens": None},
        "0-3": {"output_tokens": None},
    }
    folder = make_run(tmp_path / "r", [CLOSED], odd)
    assert export_run(folder, "parquet", tmp_path / "x.parquet") is None
    rows = pq.read_table(tmp_path / "x.parquet").to_pylist()
    assert [row["ttft_s"] for row in rows] == [0.5, 0.5, None, 0.5, 0.5]
    assert [row["tpot_s"] for row in rows] == [0.25, 0.25, None, 0.25, 0.25]
    assert {(row["load_kind"], row["load_value"]) for row in rows} == {("concurrency", 1.0)}


@pytest.mark.parametrize(("form", "name"), [("vllm", "r.json"), ("sglang", "r.jsonl")])
def test_requests_without_a_clock_keep_the_stated_duration(tmp_path: Path, form: str, name: str) -> None:
    """vLLM's older files tell no start times: 2 requests in 100 s are not 2 requests in the longest one's seconds."""
    told = {
        "model_id": "m", "backend": "vllm", "num_prompts": 2, "request_rate": "inf", "max_concurrency": 1,
        "duration": 100.0, "completed": 2, "total_input_tokens": 20, "total_output_tokens": 6,
        "request_throughput": 0.02, "output_throughput": 0.06, "total_token_throughput": 0.26,
        "input_lens": [10, 10], "output_lens": [3, 3], "ttfts": [0.5, 0.5], "itls": [[1.0, 1.0], [1.0, 1.0]],
        "errors": ["", ""], "generated_texts": ["a b c", "a b c"],
    }  # fmt: skip
    (tmp_path / "old.json").write_text(json.dumps(told))
    (folder,) = import_files([tmp_path / "old.json"], tmp_path / "runs").runs
    (line,) = map(json.loads, exported(folder, form).splitlines())
    numbers = line["duration"], line["request_throughput"], line["output_throughput"]
    assert numbers == pytest.approx((100.0, 0.02, 0.06))
    assert line["max_concurrent_requests"] is None
    assert "start_times" not in line
    (cell,) = back(tmp_path, folder, form, name)
    assert cell["metrics"]["output_tokens_per_s"] == pytest.approx(0.06)


def test_sums_can_be_exported_as_csv_alone(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(SGLANG))
    (folder,) = import_files([tmp_path / "a.jsonl"], tmp_path / "runs").runs
    (row,) = csv.DictReader(io.StringIO(exported(folder, "csv")))
    assert (row["ttft_p50_s"], row["ttft_p90_s"], row["failed"]) == ("0.5", "", "")
    with pytest.raises(InputError, match="without its requests, which vllm needs"):
        export_run(folder, "vllm")


def test_what_cannot_be_exported_is_told(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", [CLOSED], {})
    with pytest.raises(InputError, match="--format xml: unknown; choose one of vllm, sglang, csv, parquet"):
        export_run(folder, "xml")
    with pytest.raises(InputError, match="name a file with -o"):
        export_run(folder, "parquet")
    with pytest.raises(InputError, match="cannot be written"):
        export_run(folder, "csv", tmp_path / "no" / "x.csv")
    with pytest.raises(InputError, match="cannot be written"):
        export_run(folder, "parquet", tmp_path / "no" / "x.parquet")
