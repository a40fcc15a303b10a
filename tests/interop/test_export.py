"""Runs for other tools, and back."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from loadstone.analyse.other_tools import summarise_as
from loadstone.analyse.run_facts import run_facts
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
def test_result_json_has_the_tools_keys_and_numbers(
    tmp_path: Path, form: str, dialect: str
) -> None:
    failed = {
        "0-2": {"status": "error", "error": "x", "arrival_s": [], "read": [], "output_tokens": None}
    }
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


@pytest.mark.parametrize(
    ("form", "name"),
    [("vllm", "x.json"), ("sglang", "x.jsonl"), ("llm-d", "x.json"), ("csv", "x.csv")],
)
def test_what_is_exported_comes_back(tmp_path: Path, form: str, name: str) -> None:
    deployment = {"engine": "vLLM", "gpu": "H200", "gpus": 8, "tp": 8, "model": "m/x"}
    folder = make_run(tmp_path / "r", [CLOSED], {}, settings={"deployment": deployment})
    (before,), (after,) = summarise(folder)["cells"], back(tmp_path, folder, form, name)
    assert (after["load"]["kind"], after["load"]["value"]) == ("concurrency", 1)
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        for statistic in ("mean", "p50", "p99"):
            assert after["metrics"][metric][statistic] == pytest.approx(
                before["metrics"][metric][statistic]
            )


def test_a_spreadsheet_gets_no_formulas(tmp_path: Path) -> None:
    target = Target(
        url="", endpoint="chat", model='=HYPERLINK("http://x")', engine="@x", prompt_kind="text"
    )
    folder = make_run(tmp_path / "r", [CLOSED], {}, target=target)
    (row,) = csv.DictReader(io.StringIO(exported(folder, "csv")))
    assert row["model"] == """'=HYPERLINK("http://x")"""
    assert row["engine"] == "'@x"
    assert float(row["ttft_p50_s"]) == 0.5
    assert (row["requests"], row["failed"], row["trusted"]) == ("4", "0", "False")
    assert row["itl_mean_s"] == "0.25"


def test_a_terminal_gets_nothing_to_obey(tmp_path: Path) -> None:
    target = Target(
        url="",
        endpoint="chat",
        model="m\x1b[2J\x9b\u202e\x07",
        engine="=\r\x1b",
        prompt_kind="text",
    )
    text = exported(make_run(tmp_path / "r", [CLOSED], {}, target=target), "csv")
    (row,) = csv.DictReader(io.StringIO(text))
    assert (row["model"], row["engine"]) == ("m\ufffd[2J\ufffd\ufffd\ufffd", "'=\ufffd\ufffd")
    assert text.replace("\n", "").isprintable()


def test_parquet_has_a_row_per_request(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    # The third has no output; the server of the fourth counted none, so that what arrived counts,
    # as in summaries.
    odd = {
        "0-2": {
            "status": "error",
            "error": "x",
            "arrival_s": [],
            "read": [],
            "output_tokens": None,
        },
        "0-3": {"output_tokens": None},
    }
    folder = make_run(tmp_path / "r", [CLOSED], odd)
    assert export_run(folder, "parquet", tmp_path / "x.parquet") is None
    rows = pq.read_table(tmp_path / "x.parquet").to_pylist()
    assert [row["ttft_s"] for row in rows] == [0.5, 0.5, None, 0.5, 0.5]
    assert [row["tpot_s"] for row in rows] == [0.25, 0.25, None, 0.25, 0.25]
    assert {(row["load_kind"], row["load_value"]) for row in rows} == {("concurrency", 1.0)}


@pytest.mark.parametrize(("form", "name"), [("vllm", "r.json"), ("sglang", "r.jsonl")])
def test_requests_without_a_clock_keep_the_stated_duration(
    tmp_path: Path, form: str, name: str
) -> None:
    """vLLM's older files tell no start times: 2 requests in 100 s are not 2 requests in the longest
    one's seconds."""
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
    with pytest.raises(
        InputError, match="--format xml: unknown; choose one of vllm, sglang, llm-d, csv, parquet"
    ):
        export_run(folder, "xml")
    with pytest.raises(InputError, match="name a file with -o"):
        export_run(folder, "parquet")
    with pytest.raises(InputError, match="cannot be written"):
        export_run(folder, "csv", tmp_path / "no" / "x.csv")
    with pytest.raises(InputError, match="cannot be written"):
        export_run(folder, "parquet", tmp_path / "no" / "x.parquet")


# --- llm-d's benchmark report ---------------------------------------------------------------------

SCHEMA = json.loads(
    (Path(__file__).parent / "data" / "llm_d_benchmark_report_0.2.1.json").read_text()
)
DEPLOYMENT = {
    "engine": "vLLM",
    "engine_version": "0.33.0",
    "gpu": "H200",
    "gpus": 8,
    "tp": 8,
    "model": "m/x",
}
UNIFORM = {"kind": "uniform", "mean": 75.0, "low": 50, "high": 100}
FIXED = {"kind": "fixed", "mean": 32.0}


def reports(folder: Path) -> list[dict[str, Any]]:
    """Its reports, each valid by llm-d's own schema."""
    made = [json.loads(line) for line in exported(folder, "llm-d").splitlines()]
    for each in made:
        jsonschema.Draft202012Validator(SCHEMA).validate(each)
    return made


def test_the_schema_refuses_what_it_should() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(
            {"version": "0.2.1", "run": {"uid": "x"}, "results": {"x": 1}}
        )


@pytest.mark.parametrize(
    "load", [CLOSED, Load("rate", 2.0), Load("rate", 2.0, max_concurrency=3), Load("burst", 4.0)]
)
@pytest.mark.parametrize("source", ["measured", "simulated"])
def test_a_report_for_llm_d_is_valid_marked_and_comes_back(
    tmp_path: Path, load: Load, source: str
) -> None:
    settings = {
        "deployment": DEPLOYMENT,
        "workload": {"kind": "synthetic", "input": UNIFORM, "output": UNIFORM},
    }
    failed = {
        "0-2": {"status": "error", "error": "x", "arrival_s": [], "read": [], "output_tokens": None}
    }
    folder = make_run(tmp_path / "r", [load], failed, settings=settings, source=source)
    (report,) = reports(folder)
    assert report["run"]["keywords"][0] == source
    assert ("simulate" in report["scenario"]["load"]["standardized"]["tool"]) is (
        source == "simulated"
    )
    assert report["scenario"]["stack"][0]["standardized"]["accelerator"]["count"] == 8
    (tmp_path / "x.json").write_text(exported(folder, "llm-d"))
    (run,) = import_files([tmp_path / "x.json"], tmp_path / "back").runs
    (before,), (after,) = (summarise(each)["cells"] for each in (folder, run))
    assert after["load"] == before["load"]
    assert after["duration_s"] == before["duration_s"]
    assert after["requests"]["error"] == 1
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
        for statistic in ("mean", "std", "min", "max", "p50", "p90", "p95", "p99"):
            assert after["metrics"][name][statistic] == before["metrics"][name][statistic], (
                name,
                statistic,
            )
    for name in (
        "input_tokens",
        "output_tokens",
        "requests_per_s",
        "output_tokens_per_s",
        "total_tokens_per_s",
    ):
        assert after["metrics"][name] == before["metrics"][name]
    first, second = (run_facts(run_folder.read_info(each)) for each in (folder, run))
    for name in (*DEPLOYMENT, "input_tokens", "output_tokens", "range_ratio"):
        assert getattr(second, name) == getattr(first, name), name


def test_a_report_for_llm_d_has_pools_apart(tmp_path: Path) -> None:
    """Each pool is a part of the stack; what is read back, also without what is our own, has the
    GPUs of both."""
    pools = [
        {"role": "prefill", "workers": 2, "gpu": "h100", "gpus": 8, "tp": 8},
        {"role": "decode", "workers": 3, "gpu": "h200", "gpus": 4, "tp": 1, "dp": 4},
    ]
    settings = {"deployment": DEPLOYMENT | {"gpus": 28, "tp": 1, "dp": 4, "pools": pools}}
    folder = make_run(tmp_path / "r", [CLOSED], {}, settings=settings)
    (report,) = reports(folder)
    parts = [each["standardized"] for each in report["scenario"]["stack"]]
    assert [(each["role"], each["replicas"], each["accelerator"]["count"]) for each in parts] == [
        ("prefill", 2, 16), ("decode", 3, 12)
    ]  # fmt: skip
    assert [each["accelerator"]["model"] for each in parts] == ["H100", "H200"]
    for turn in range(2):
        (tmp_path / "x.json").write_text(json.dumps(report))
        (run,) = import_files([tmp_path / "x.json"], tmp_path / f"back{turn}").runs
        first, second = (run_facts(run_folder.read_info(each)) for each in (folder, run))
        for name in ("gpu", "gpus", "tp", "dp", "pools"):
            assert getattr(second, name) == getattr(first, name), name
        report["scenario"]["stack"][0].pop("native", None)


def test_a_report_for_llm_d_leaves_out_what_nobody_knows(tmp_path: Path) -> None:
    """An engine whose GPU is not known has no accelerator to tell of; sums without a mean have no
    statistics."""
    (report,) = reports(make_run(tmp_path / "r", [CLOSED], {}))
    assert report["scenario"]["stack"][0]["standardized"]["kind"] == "generic"
    sums = {key: value for key, value in SGLANG.items() if not key.startswith("mean_ttft")}
    (tmp_path / "a.jsonl").write_text(json.dumps(sums))
    (folder,) = import_files([tmp_path / "a.jsonl"], tmp_path / "runs").runs
    (report,) = reports(folder)
    latency = report["results"]["request_performance"]["aggregate"]["latency"]
    assert "time_to_first_token" not in latency
    assert latency["request_latency"]["mean"] > 0


@pytest.mark.parametrize(
    "odd", [{"load": {"kind": "burst", "value": -1}}, {"load": 7, "totals": [1], "duration_s": "x"}]
)
def test_an_odd_report_for_llm_d_is_read_or_refused_in_a_line(
    tmp_path: Path, odd: dict[str, Any]
) -> None:
    (report,) = reports(make_run(tmp_path / "r", [Load("burst", 4.0)], {}))
    report["scenario"]["load"]["native"]["config"]["loadstone"] = odd
    report["scenario"]["stack"][0]["native"]["config"]["loadstone"] = {
        "gpus": "many",
        "model": ["x"],
    }
    (tmp_path / "x.json").write_text(json.dumps(report))
    found = import_files([tmp_path / "x.json"], tmp_path / "back", given=["burst=4"])
    assert len(found.runs) == 1
