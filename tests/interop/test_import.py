"""Other tools' results as run folders."""

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadstone.analyse.run_facts import run_facts
from loadstone.analyse.summary import summary_of
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.interop import read
from loadstone.interop.read import Imported, import_files, run_folders
from summary_documents import summarise, trusted

SGLANG = {
    "backend": "sglang", "dataset_name": "random", "request_rate": float("inf"), "max_concurrency": 4,
    "sharegpt_output_len": None, "random_input_len": 100, "random_output_len": 11, "random_range_ratio": 1.0,
    "duration": 10.0, "completed": 40, "total_input_tokens": 4000, "total_output_tokens": 440,
    "total_output_tokens_retokenized": 438, "request_throughput": 4.0, "input_throughput": 400.0,
    "output_throughput": 44.0, "mean_e2e_latency_ms": 990.0, "median_e2e_latency_ms": 1000.0,
    "std_e2e_latency_ms": 50.0, "mean_ttft_ms": 490.0, "median_ttft_ms": 500.0, "std_ttft_ms": 30.0,
    "p99_ttft_ms": 600.0, "mean_tpot_ms": 50.0, "median_tpot_ms": 49.0, "std_tpot_ms": 2.0, "concurrency": 3.96,
}  # fmt: skip
VLLM = {
    "date": "20260102-030405", "backend": "vllm", "model_id": "m/x", "tokenizer_id": "m/x", "num_prompts": 3,
    "request_rate": 2.0, "burstiness": 1.0, "max_concurrency": None, "duration": 4.0, "completed": 3, "failed": 0,
    "total_input_tokens": 30, "total_output_tokens": 9, "request_throughput": 0.75, "output_throughput": 2.25,
    "total_token_throughput": 9.75, "input_lens": [10, 10, 10], "output_lens": [3, 3, 3], "ttfts": [0.5, 0.5, 1.0],
    "itls": [[0.25, 0.25], [0.25, 0.25], [0.5, 0.5]], "errors": ["", "", ""], "mean_ttft_ms": 666.667,
}  # fmt: skip


def save(folder: Path, name: str, *documents: Any) -> Path:
    path = folder / name
    path.write_text(
        "\n".join(text if isinstance(text, str) else json.dumps(text) for text in documents)
    )
    return path


def run(folder: Path, path: Path, **options: Any) -> Imported:
    return import_files([path], folder / "runs", **options)


def document(found: Imported, number: int = 0) -> dict[str, Any]:
    return summarise(found.runs[number])


def kinds(found: Imported) -> set[str]:
    return {finding["kind"] for finding in found.findings}


# --- sums alone -----------------------------------------------------------------------------------


def test_sums_become_a_run_without_records(tmp_path: Path) -> None:
    found = run(tmp_path, save(tmp_path, "a.jsonl", SGLANG))
    (folder,) = found.runs
    assert not (folder / "records.parquet").exists()
    info = run_folder.read_info(folder)
    assert (info.source, info.status, info.run_id) == ("imported", "done", folder.name)
    made = document(found)
    assert (made["source"], made["target"]["engine"]) == ("imported", "SGLang")
    (cell,) = made["cells"]
    assert cell["load"]["kind"] == "concurrency"
    assert cell["load"]["value"] == 4
    assert cell["metrics"]["ttft_s"]["p50"] == 0.5
    assert cell["metrics"]["ttft_s"]["n"] == 40
    assert cell["metrics"]["ttft_s"]["p90"] is None
    assert cell["metrics"]["e2e_s"]["mean"] == 0.99
    assert cell["metrics"]["output_tokens_per_s"] == 44.0
    assert cell["metrics"]["total_tokens_per_s"] == 444.0
    assert [finding["kind"] for finding in cell["verdict"]["findings"]] == ["as_stated"]


def test_what_a_format_cannot_tell_is_missing_and_not_0(tmp_path: Path) -> None:
    (cell,) = document(run(tmp_path, save(tmp_path, "a.jsonl", SGLANG)))["cells"]
    assert cell["requests"] == {
        "sent": None, "ok": 40, "error": None, "timeout": None, "cancelled": None, "short": None,
    }  # fmt: skip
    metrics = cell["metrics"]
    absent = (
        "itl_s",
        "ttft_intended_s",
        "steady",
        "achieved_rate_per_s",
        "cached_input_tokens",
        "output_events",
    )
    assert [metrics[name] for name in absent] == [None] * len(absent)
    assert metrics["tpot_s"]["ci95"]["p99"] == [None, None]


def test_a_measured_summary_has_the_same_keys(tmp_path: Path) -> None:
    stated = document(run(tmp_path, save(tmp_path, "a.jsonl", SGLANG)))
    recorded = document(run(tmp_path, save(tmp_path, "b.json", VLLM)))
    assert set(stated) == set(recorded)
    assert set(stated["cells"][0]["metrics"]) == set(recorded["cells"][0]["metrics"])
    assert set(recorded["cells"][0]) <= set(stated["cells"][0])


def test_a_sweep_is_one_run_and_a_load_that_comes_again_another(tmp_path: Path) -> None:
    rows = [SGLANG | {"max_concurrency": places} for places in (8, 4, 16, 4)]
    found = run(tmp_path, save(tmp_path, "a.jsonl", *rows))
    assert [[cell["load"]["value"] for cell in document(found, n)["cells"]] for n in (0, 1)] == [
        [4, 8, 16],
        [4],
    ]
    longer = [SGLANG, SGLANG | {"random_output_len": 22}]
    assert len(run(tmp_path, save(tmp_path, "b.jsonl", *longer)).runs) == 2


def test_an_infinite_rate_is_a_burst_and_a_finite_one_an_open_loop(tmp_path: Path) -> None:
    rows = [
        SGLANG | {"max_concurrency": None},
        SGLANG | {"max_concurrency": 9, "request_rate": 2.5},
    ]
    found = run(tmp_path, save(tmp_path, "a.jsonl", *rows))
    loads = [cell["load"] for number in (0, 1) for cell in document(found, number)["cells"]]
    assert [(load["kind"], load["value"], load["max_concurrency"]) for load in loads] == [
        ("burst", 40, None), ("rate", 2.5, 9),
    ]  # fmt: skip


def test_the_oldest_lines_give_their_quotients(tmp_path: Path) -> None:
    old = {
        key: value
        for key, value in SGLANG.items()
        if key not in ("request_throughput", "input_throughput")
    }
    (cell,) = document(run(tmp_path, save(tmp_path, "a.jsonl", old)))["cells"]
    assert cell["metrics"]["requests_per_s"] == 4.0
    assert cell["metrics"]["total_tokens_per_s"] == 444.0


def test_facts_can_be_given_that_no_file_tells(tmp_path: Path) -> None:
    given = [
        "model=m/y",
        "gpu=h200",
        "gpus=8",
        "tp=8",
        "prefix_cache=off",
        "weights_dtype=fp8",
        "label=eager",
    ]
    found = run(tmp_path, save(tmp_path, "a.jsonl", SGLANG), given=given)
    facts = run_facts(run_folder.read_info(found.runs[0]), summary_of(found.runs[0]))
    assert (facts.engine, facts.model, facts.gpu, facts.gpus, facts.tp) == (
        "SGLang",
        "m/y",
        "H200",
        8,
        8,
    )
    assert (facts.input_tokens, facts.output_tokens, facts.range_ratio) == (100, 11, 1.0)
    assert (facts.prefix_cache, facts.weights_dtype, facts.tool) == (
        False,
        "fp8",
        "sglang.bench_serving",
    )
    assert facts.settings == "eager"


# --- requests -------------------------------------------------------------------------------------


def test_requests_become_records(tmp_path: Path) -> None:
    found = run(tmp_path, save(tmp_path, "a.json", VLLM | {"start_times": [7.0, 7.5, 8.0]}))
    batches = list(run_folder.read_records(found.runs[0]))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["sent_s"] for row in rows] == [0.0, 0.5, 1.0]
    assert [row["arrival_s"] for row in rows] == [
        [0.5, 0.75, 1.0],
        [1.0, 1.25, 1.5],
        [2.0, 2.5, 3.0],
    ]
    assert [row["tokens"] for row in rows] == [[1, 2, 3]] * 3
    assert {row["intended_s"] for row in rows} == {None}
    (cell,) = document(found)["cells"]
    assert cell["duration_s"] == 3.0
    assert cell["metrics"]["tpot_s"]["max"] == 0.5
    assert cell["metrics"]["output_tokens_per_s"] == 3.0
    assert cell["metrics"]["ttft_intended_s"] is None
    assert cell["measured_by"] == "vllm bench serve"
    assert (
        run_folder.read_plan(found.runs[0]).plan_id == run_folder.read_info(found.runs[0]).plan_id
    )


def test_without_start_times_only_durations_are_computed(tmp_path: Path) -> None:
    (cell,) = document(run(tmp_path, save(tmp_path, "a.json", VLLM)))["cells"]
    assert cell["duration_s"] == 4.0  # as stated: the requests do not tell
    assert cell["metrics"]["output_tokens_per_s"] == 2.25
    assert cell["metrics"]["steady"] is None
    assert cell["metrics"]["achieved_rate_per_s"] is None
    assert cell["metrics"]["ttft_s"]["p50"] == 0.5


def test_completed_requests_without_a_token_are_failures(tmp_path: Path) -> None:
    empty = {
        "ttfts": [0.0, 0.5, 1.0],
        "output_lens": [0, 3, 3],
        "itls": [[], [0.25, 0.25], [0.5, 0.5]],
    }
    found = run(tmp_path, save(tmp_path, "a.json", VLLM | empty))
    (cell,) = document(found)["cells"]
    assert (cell["requests"]["ok"], cell["requests"]["error"]) == (2, 1)
    assert "empty_completed" in kinds(found)
    assert not trusted(document(found))
    stated = [one for one in cell["verdict"]["findings"] if one["kind"] == "stated_differs"]
    assert "TTFT 667 ms as stated, 750 ms by its requests" in stated[0]["evidence"]


def test_lists_of_unlike_length_are_no_requests(tmp_path: Path) -> None:
    found = run(tmp_path, save(tmp_path, "a.json", VLLM | {"itls": [[0.1]]}))
    assert "lists_differ" in kinds(found)
    assert not (found.runs[0] / "records.parquet").exists()


def test_an_answer_without_its_gaps_has_no_itl(tmp_path: Path) -> None:
    bare = VLLM | {"itls": [[], [], []], "latencies": [1.0, 1.0, 2.0]}
    (cell,) = document(run(tmp_path, save(tmp_path, "a.json", bare)))["cells"]
    assert cell["metrics"]["itl_s"] is None
    assert cell["metrics"]["tpot_s"]["p50"] == 0.25


# --- each tool's own ------------------------------------------------------------------------------


def test_vllm_throughput_counts_input_and_output(tmp_path: Path) -> None:
    offline = {"elapsed_time": 10.0, "num_requests": 20, "total_num_tokens": 4000, "requests_per_second": 2.0,
               "tokens_per_second": 400.0}  # fmt: skip
    found = run(tmp_path, save(tmp_path, "a.json", offline))
    (cell,) = document(found)["cells"]
    assert (cell["load"]["kind"], cell["load"]["value"]) == ("burst", 20)
    assert cell["metrics"]["total_tokens_per_s"] == 400.0
    assert cell["metrics"]["output_tokens_per_s"] is None
    assert run_facts(run_folder.read_info(found.runs[0])).mode == "offline"


def test_vllm_latency_needs_its_batch_told(tmp_path: Path) -> None:
    path = save(
        tmp_path,
        "a.json",
        {"avg_latency": 2.0, "latencies": [1.0, 3.0], "percentiles": {"50": 2.0}},
    )
    with pytest.raises(
        InputError, match=r"does not state the load; state it, e\.g\. --set concurrency=16"
    ):
        run(tmp_path, path)
    (cell,) = document(run(tmp_path, path, given=["burst=8"]))["cells"]
    assert (cell["metrics"]["e2e_s"]["mean"], cell["metrics"]["e2e_s"]["max"]) == (2.0, 3.0)


def test_sglangs_one_batch(tmp_path: Path) -> None:
    batch = {"run_name": "x", "batch_size": 4, "input_len": 100, "output_len": 10, "latency": 2.0,
             "last_ttft": 0.5, "output_throughput": 26.7, "overall_throughput": 220.0}  # fmt: skip
    (cell,) = document(run(tmp_path, save(tmp_path, "a.jsonl", batch)))["cells"]
    assert (cell["metrics"]["output_tokens_per_s"], cell["metrics"]["total_tokens_per_s"]) == (
        20.0,
        220.0,
    )


@pytest.mark.parametrize(
    ("table", "load", "expected"),
    [
        # MLPerf LoadGen's summary of its Server scenario, in a sheet.
        (
            "Target QPS,Mean First Token,p99 First Token,Mean Time per Output Token,"
            "p99 Time per Output Token,p50 latency,Tokens per second\n"
            "10,300000,850000,20000,25000,4000000,3200.5\n",
            ("rate", 10),
            {"ttft_s": {"mean": 0.3, "p99": 0.85}, "tpot_s": {"mean": 0.02, "p99": 0.025}, "e2e_s": {"p50": 4.0}},
        ),
        # llmperf's, in seconds.
        (
            "num_concurrent_requests,results_ttft_s_mean,results_end_to_end_latency_s_quantiles_p99,"
            "results_mean_output_throughput_token_per_s,results_num_completed_requests,results_number_errors\n"
            "2,0.2,1.2,16.5,3,1\n",
            ("concurrency", 2),
            {"ttft_s": {"mean": 0.2}, "e2e_s": {"p99": 1.2}},
        ),
        # perf_analyzer's `-f` file, whose latencies are in microseconds.
        (
            "Concurrency,Inferences/Second,Avg latency,p50 latency,p99 latency\n2,1.5,1250000,1200000,1400000\n",
            ("concurrency", 2),
            {"e2e_s": {"mean": 1.25, "p50": 1.2, "p99": 1.4}},
        ),
    ],
    ids=["mlperf", "llmperf", "perf_analyzer"],
)  # fmt: skip
def test_figures_of_tools_without_a_reader_come_by_their_columns(
    table: str, load: tuple[str, float], expected: dict[str, dict[str, float]], tmp_path: Path
) -> None:
    """One mapping for all three; what a table does not have is not named to it."""
    names = {
        "rate": "Target QPS", "ttft_mean_us": "Mean First Token", "ttft_p99_us": "p99 First Token",
        "tpot_mean_us": "Mean Time per Output Token", "tpot_p99_us": "p99 Time per Output Token",
        "e2e_p50_us": "p50 latency", "output_tokens_per_s": "Tokens per second",
    }  # fmt: skip
    if "num_concurrent" in table:
        names = {
            "concurrency": "num_concurrent_requests", "ttft_mean_s": "results_ttft_s_mean",
            "e2e_p99_s": "results_end_to_end_latency_s_quantiles_p99", "requests": "results_num_completed_requests",
            "output_tokens_per_s": "results_mean_output_throughput_token_per_s", "failed": "results_number_errors",
        }  # fmt: skip
    elif "Inferences" in table:
        names = {
            "concurrency": "Concurrency", "requests_per_s": "Inferences/Second", "e2e_mean_us": "Avg latency",
            "e2e_p50_us": "p50 latency", "e2e_p99_us": "p99 latency",
        }  # fmt: skip
    path = tmp_path / "sheet.csv"
    path.write_text(table)
    found = import_files(
        [path], tmp_path / "runs", mapped=[f"{name}={column}" for name, column in names.items()]
    )
    (cell,) = document(found)["cells"]
    assert (cell["load"]["kind"], cell["load"]["value"]) == load
    for metric, statistics in expected.items():
        for name, seconds in statistics.items():
            assert cell["metrics"][metric][name] == pytest.approx(seconds)
    if "Tokens per second" in table:
        assert cell["metrics"]["output_tokens_per_s"] == 3200.5
    if "num_concurrent" in table:
        assert (cell["metrics"]["output_tokens_per_s"], cell["requests"]["error"]) == (16.5, 1)
    if "Inferences" in table:
        assert cell["metrics"]["requests_per_s"] == 1.5


def test_llm_ds_report_has_units_beside_its_figures(tmp_path: Path) -> None:
    report = """version: 0.2.1
scenario:
  load: {standardized: {rate_qps: 4, concurrency: .inf, tool: inference-perf, tool_version: 0.3.0,
    input_seq_len: {distribution: fixed, value: 64}, output_seq_len: {distribution: fixed, value: 32}}}
  stack:
  - standardized: {kind: inference_engine, tool: vllm, tool_version: 0.11.0, model: {name: q/q},
      accelerator: {count: 8, model: NVIDIA-H100-80GB-HBM3, parallelism: {tp: 8, dp: 1}}}
results: {request_performance: {aggregate: {
  requests: {total: 24, failures: 0, output_length: {units: count, mean: 32.0}},
  latency: {time_to_first_token: {units: ms, mean: 16.0, p50: 15.0}, request_latency: {units: s, mean: 0.5}},
  throughput: {output_token_rate: {units: tokens/s, mean: 128.0}, request_rate: {units: queries/s, mean: 4.0}}}}}
"""
    found = run(tmp_path, save(tmp_path, "report.yaml", report))
    (cell,) = document(found)["cells"]
    assert (cell["load"]["kind"], cell["load"]["value"]) == ("rate", 4)
    assert (cell["metrics"]["ttft_s"]["p50"], cell["metrics"]["e2e_s"]["mean"]) == (0.015, 0.5)
    facts = run_facts(run_folder.read_info(found.runs[0]))
    assert (facts.engine, facts.engine_version, facts.gpu, facts.gpus, facts.tp) == (
        "vLLM",
        "0.11.0",
        "H100",
        8,
        8,
    )


def test_plain_csv_with_a_map(tmp_path: Path) -> None:
    path = save(
        tmp_path, "a.csv", "users,Median TTFT,engine,tok/s", "4,120,vllm,99.5", "8,=1+1,vllm,150"
    )
    mapped = ["concurrency=users", "ttft_p50_ms=Median TTFT", "output_tokens_per_s=tok/s"]
    found = run(tmp_path, path, mapped=mapped)
    first, second = document(found)["cells"]
    assert (first["metrics"]["ttft_s"]["p50"], first["metrics"]["output_tokens_per_s"]) == (
        0.12,
        99.5,
    )
    assert second["metrics"]["ttft_s"] is None
    assert "no_number" in kinds(found)
    with pytest.raises(InputError, match="no column 'TTFT'; it has 'users'"):
        run(tmp_path, path, mapped=["concurrency=users", "ttft_p50_ms=TTFT"])
    with pytest.raises(InputError, match="--map 'foo=users': write NAME=COLUMN"):
        run(tmp_path, path, mapped=["foo=users"])


@pytest.mark.parametrize("sep", [";", "\t"])
def test_csv_of_other_countries(tmp_path: Path, sep: str) -> None:
    """Semicolons or tabs, as spreadsheets write them; 12,5 is no number here, and never 125."""
    lines = [["users", "Median TTFT", "tok/s"], ["4", "12,5", "1,024.5"], ["8", "14.5", "1,024"]]
    path = save(tmp_path, "a.csv", *(sep.join(line) for line in lines))
    mapped = ["concurrency=users", "ttft_p50_ms=Median TTFT", "output_tokens_per_s=tok/s"]
    found = run(tmp_path, path, mapped=mapped)
    first, second = document(found)["cells"]
    assert (first["metrics"]["ttft_s"], second["metrics"]["ttft_s"]["p50"]) == (None, 0.0145)
    assert [cell["metrics"]["output_tokens_per_s"] for cell in (first, second)] == [1024.5, 1024]
    assert "no_number" in kinds(found)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_encodings_with_a_byte_order_mark(tmp_path: Path, encoding: str) -> None:
    said = json.dumps(SGLANG)
    (tmp_path / "a.jsonl").write_bytes(
        (said if encoding != "utf-16-be" else "\ufeff" + said).encode(encoding)
    )
    (cell,) = document(run(tmp_path, tmp_path / "a.jsonl"))["cells"]
    assert cell["metrics"]["ttft_s"]["p50"] == SGLANG["median_ttft_ms"] / 1e3


@pytest.mark.parametrize(
    ("begin", "kind"),
    [(b"PK\x03\x04", "a ZIP archive"), (b"\x1f\x8b\x08", "gzip"), (b"PAR1", "Parquet")],
)
def test_an_archive_is_called_one(tmp_path: Path, begin: bytes, kind: str) -> None:
    (tmp_path / "a.json").write_bytes(begin + b"\x00\x01")
    with pytest.raises(InputError, match=f"a.json: {kind}, and only text is read; unpack it"):
        run(tmp_path, tmp_path / "a.json")


def test_characters_of_another_encoding_are_told(tmp_path: Path) -> None:
    said = "concurrency,ttft_p50_ms,model\n4,12,caf\u00e9\n"
    (tmp_path / "a.csv").write_bytes(said.encode("latin-1"))
    assert kinds(run(tmp_path, tmp_path / "a.csv")) == {"unreadable_characters"}
    (tmp_path / "b.csv").write_bytes(said.encode())
    assert kinds(run(tmp_path, tmp_path / "b.csv")) == set()


def test_all_prompts_of_a_points_table_at_once_are_a_burst(tmp_path: Path) -> None:
    path = save(
        tmp_path, "a.csv", "arrival,arrival_value,num_prompts,output_tok_s", "offline,inf,320,1500"
    )
    assert document(run(tmp_path, path))["cells"][0]["load"]["value"] == 320


# --- what does not fit together -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"mean_e2e_latency_ms": 1500.0}, "times_do_not_add_up"),
        ({"median_ttft_ms": 300.0}, "spread_impossible"),
        ({"p99_ttft_ms": 400.0}, "percentiles_disordered"),
        ({"output_throughput": 60.0}, "throughput_inconsistent"),
        ({"concurrency": 5.0}, "concurrency_inconsistent"),
        ({"max_concurrency": 2}, "concurrency_inconsistent"),
        ({"total_output_tokens": 0, "output_throughput": 0.0}, "empty_completed"),
        ({"total_output_tokens_retokenized": 10}, "tokens_doubtful"),
        ({"mean_ttft_ms": -1.0, "std_ttft_ms": None}, "negative_time"),
    ],
)
def test_numbers_that_cannot_all_be_true_are_findings(
    tmp_path: Path, change: dict[str, Any], kind: str
) -> None:
    assert kinds(run(tmp_path, save(tmp_path, "a.jsonl", SGLANG))) == set()
    found = run(tmp_path, save(tmp_path, "b.jsonl", SGLANG | change))
    assert kind in kinds(found)
    assert not document(found)["cells"][0]["verdict"]["trusted"]


def test_a_column_that_moved_is_put_back(tmp_path: Path) -> None:
    header = "GPU,backend,dataset_name,max_concurrency,random_input_len,random_output_len,duration,completed," \
        "mean_e2e_latency_ms,median_ttft_ms,mean_itl_ms,p99_itl_ms,concurrency"  # fmt: skip
    rows = [
        "h200,trt-llm,random,4,100,10,10,40,990,50,9,108,111",
        "h200,trt-llm,random,8,100,10,10,79,990,50,9,20,7.9",
    ]
    found = run(tmp_path, save(tmp_path, "a.csv", "\ufeff" + header, *rows))
    first, second = document(found)["cells"]
    assert (first["metrics"]["itl_s"]["p95"], first["metrics"]["itl_s"]["p99"]) == (0.108, 0.111)
    assert (second["metrics"]["itl_s"]["p95"], second["metrics"]["itl_s"]["p99"]) == (None, 0.02)
    assert [finding["kind"] for finding in found.findings] == ["columns_shifted"]
    assert run_facts(run_folder.read_info(found.runs[0])).engine == "TensorRT-LLM"


FAILED = VLLM | {
    "completed": 0, "failed": 3, "total_input_tokens": 0, "total_output_tokens": 0, "request_throughput": 0.0,
    "output_throughput": 0.0, "total_token_throughput": 0.0, "mean_ttft_ms": 0.0, "median_ttft_ms": 0.0,
    "mean_tpot_ms": 0.0, "p99_tpot_ms": 0.0, "ttfts": [], "itls": [], "input_lens": [], "output_lens": [],
    "errors": [],
}  # fmt: skip


def test_where_nothing_completed_no_latency_is_0(tmp_path: Path) -> None:
    found = run(tmp_path, save(tmp_path, "a.json", FAILED))
    assert kinds(found) == {"none_completed", "request_errors"}
    (cell,) = document(found)["cells"]
    assert (cell["metrics"]["ttft_s"], cell["metrics"]["tpot_s"], cell["verdict"]["trusted"]) == (
        None,
        None,
        False,
    )


@pytest.mark.parametrize(("throughput", "severity"), [({}, "info"), ({"output_throughput": None, "input_throughput":
    None, "total_output_tokens": None}, "warning")])  # fmt: skip
def test_latencies_that_are_all_null_are_told(
    tmp_path: Path, throughput: dict[str, Any], severity: str
) -> None:
    nulls = {name: None for name in SGLANG if name.endswith("_ms")} | {"concurrency": None}
    found = run(tmp_path, save(tmp_path, "a.jsonl", SGLANG | nulls | throughput))
    assert [(finding["kind"], finding["severity"]) for finding in found.findings] == [
        ("no_latencies", severity)
    ]


def test_places_that_were_never_filled_are_told(tmp_path: Path) -> None:
    found = run(tmp_path, save(tmp_path, "a.jsonl", SGLANG | {"max_concurrency": 512}))
    assert kinds(found) == {"places_not_filled"}


def test_some_failures_of_sums_are_a_finding(tmp_path: Path) -> None:
    sums = {name: value for name, value in VLLM.items() if not isinstance(value, list)}
    assert kinds(run(tmp_path, save(tmp_path, "a.json", sums))) == set()
    found = run(tmp_path, save(tmp_path, "b.json", sums | {"failed": 2}))
    assert [finding["evidence"] for finding in found.findings] == ["b.json: 2 of 5 requests failed"]


def test_requests_that_are_fewer_than_the_sums_say(tmp_path: Path) -> None:
    assert "requests_missing" in kinds(
        run(tmp_path, save(tmp_path, "a.json", VLLM | {"completed": 9}))
    )


# --- hostile and broken files ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", "", "empty"),
        ("a.json", "{", "no JSON"),
        ("a.json", "[" * 100_000, "nested too deep|no JSON"),
        ("a.json", "{}", "not a result of a known tool"),
        ("a.json", '{"run_id": "x", "cells": []}', "a run folder needs no import"),
        ("a.jsonl", json.dumps(SGLANG) + "\n{}", "line 2: not a result"),
        ("a.jsonl", json.dumps(SGLANG) + "\n[1]", "line 2: not a JSON object"),
        ("a.yaml", "a: [", "no YAML"),
        ("a.yaml", "a: 1", "YAML, but not a result of a known tool"),
        ("a.csv", "a,b\n1,2", "no column has a known name"),
        ("a.json", '{"request_rate": ' + "9" * 5000 + "}", "no JSON|not a result"),
    ],
)
def test_what_is_no_result_is_refused_in_one_line(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    with pytest.raises(InputError, match=said) as raised:
        run(tmp_path, save(tmp_path, name, text))
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "runs").exists()


def test_odd_values_are_missing_and_nothing_breaks(tmp_path: Path) -> None:
    odd = {
        "duration": "x", "completed": True, "mean_ttft_ms": float("nan"), "median_ttft_ms": 1e300,
        "backend": "\x1b[31m<script>", "concurrency": [], "total_input_tokens": -5, "random_input_len": 1e12,
        "server_info": "no", "output_throughput": None,
    }  # fmt: skip
    found = run(tmp_path, save(tmp_path, "a.jsonl", SGLANG | odd))
    (cell,) = document(found)["cells"]
    assert cell["metrics"]["ttft_s"]["mean"] is None
    assert cell["metrics"]["ttft_s"]["p50"] is None
    assert cell["duration_s"] is None
    assert "\x1b" not in (found.runs[0] / "run.json").read_text()


def test_requests_with_odd_values(tmp_path: Path) -> None:
    odd = {
        "ttfts": [None, "x", 1.0], "itls": ["x", [None], [1e308, 1e308]], "output_lens": [1, -3, 10**30],
        "input_lens": [{}, 2, 10**12], "errors": ["\x1b]0;x\x07", 5, ""],
    }  # fmt: skip
    found = run(tmp_path, save(tmp_path, "a.json", VLLM | odd))
    rows = [row for batch in run_folder.read_records(found.runs[0]) for row in batch.to_pylist()]
    assert [row["status"] for row in rows] == ["error"] * 3
    assert all(row["error"].isprintable() for row in rows)


def test_in_a_folder_what_is_no_result_is_passed_over(tmp_path: Path) -> None:
    save(tmp_path, "a.jsonl", SGLANG)
    save(tmp_path, "notes.txt", "hello")
    save(tmp_path, "b.json", "{")
    found = import_files([tmp_path], tmp_path / "runs")
    assert len(found.runs) == 1
    other, broken = found.findings
    assert (other["kind"], other["severity"]) == ("passed_over", "info")
    assert other["evidence"].endswith(": notes.txt")
    assert (broken["kind"], broken["severity"]) == ("broken", "warning")
    assert "b.json: no JSON" in broken["evidence"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no results in it"):
        import_files([tmp_path / "empty"], tmp_path / "runs")
    for name in ("c.json", "d.json"):
        save(tmp_path / "empty", name, "{")
    with pytest.raises(InputError, match=r"c\.json: no JSON .* \(and 1 more files like it\)$"):
        import_files([tmp_path / "empty"], tmp_path / "runs")


def test_of_cut_json_lines_the_whole_ones_are_read(tmp_path: Path) -> None:
    whole = [json.dumps(SGLANG | {"max_concurrency": n}) for n in (4, 8)]
    found = run(tmp_path, save(tmp_path, "a.jsonl", *whole, whole[0][:200]))
    assert len(document(found)["cells"]) == 2
    (told,) = (finding for finding in found.findings if finding["kind"] == "lines_left_out")
    assert "line 3" in told["evidence"]


def test_a_line_separator_in_a_text_ends_no_line(tmp_path: Path) -> None:
    lines = [
        json.dumps(SGLANG | {"tag": "a\u2028b\x85c", "max_concurrency": n}, ensure_ascii=False)
        for n in (4, 8)
    ]
    found = run(tmp_path, save(tmp_path, "a.jsonl", *lines))
    assert len(document(found)["cells"]) == 2
    assert "lines_left_out" not in kinds(found)


@pytest.mark.parametrize("place", ["folder", "file"])
def test_a_name_that_is_no_utf_8(tmp_path: Path, place: str) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    path = inside / "caf\udce9.jsonl"
    try:
        path.write_text(json.dumps(SGLANG))
    except OSError:
        pytest.skip("this file system takes UTF-8 alone")
    found = run(
        tmp_path, inside if place == "folder" else path, command=["loadstone", "import", str(path)]
    )
    assert run_folder.read_info(found.runs[0]).settings.imported.files == ["caf\ufffd.jsonl"]


# --- facts that are given -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", ["foo=1", "gpus", "gpus=x", "rate=0", "prefix_cache=maybe", "model="]
)
def test_facts_that_are_none_are_refused(tmp_path: Path, given: str) -> None:
    with pytest.raises(InputError, match=r"^--set"):
        run(tmp_path, save(tmp_path, "a.jsonl", SGLANG), given=[given])


def test_a_run_whose_summary_is_gone_is_told(tmp_path: Path) -> None:
    (folder,) = run(tmp_path, save(tmp_path, "a.jsonl", SGLANG)).runs
    (folder / "summary.json").write_text("{}")
    with pytest.raises(InputError, match="not a summary"):
        summarise(folder)
    (folder / "summary.json").unlink()
    with pytest.raises(InputError, match="neither records nor a summary"):
        summarise(folder)


EVALUATION = {
    "model": "qwen3.5", "hardware": "h100", "framework": "sglang", "precision": "fp8", "spec_method": "none",
    "disagg": False, "task": "gsm8k", "conc": 256, "decode_tp": 8, "decode_ep": 8, "date": "2026-06-04",
    "metrics": {"em_strict": 0.875, "em_flexible": 0.673, "n_eff": 1319, "em_strict_se": 0.0091},
}  # fmt: skip
LM_EVAL = {
    "results": {
        "gsm8k": {"alias": "gsm8k", "exact_match,strict-match": 0.938, "exact_match,flexible-extract": 0.941},
        "mmlu": {"acc,none": 0.7, "acc_stderr,none": 0.01}, "broken": {"acc,none": 70}, "empty": None,
    },
    "n-samples": {"gsm8k": {"original": 1319, "effective": 1319}}, "model_name": "m/x",
    "config": {"model": "local-completions", "model_args": "model=m/x,num_concurrent=64,max_retries=3"},
}  # fmt: skip


def test_all_runs_of_an_import_have_one_time_however_long_it_takes(tmp_path: Path) -> None:
    for n in range(3):
        (tmp_path / f"{n}.json").write_text(
            json.dumps({**AIPERF_RESULT, "request_count": {"avg": 60 + n}})
        )
    ticks = (datetime(2026, 1, 2, 3, 4, second, tzinfo=UTC) for second in range(60))
    with pytest.MonkeyPatch.context() as patch:
        for module in (read, run_folders):
            patch.setattr(
                module, "datetime", SimpleNamespace(now=lambda _: next(ticks)), raising=False
            )
        runs = import_files([tmp_path], tmp_path / "out").runs
    assert len(runs) == 3
    assert len({run.name[:15] for run in runs}) == 1


AIPERF_REQUEST = {
    "metadata": {"request_start_ns": 10**18, "request_end_ns": 10**18 + 20_000_000, "benchmark_phase": "profiling"},
    "metrics": {
        "time_to_first_token": {"value": 10.0, "unit": "ms"}, "request_latency": {"value": 20.0, "unit": "ms"},
        "output_sequence_length": {"value": 3, "unit": "tokens"},
    },
}  # fmt: skip
AIPERF_RESULT = {
    "aiperf_version": "0.13.0",
    "request_latency": {"unit": "ms", "avg": 20.0},
    "request_count": {"avg": 60},
    "input_config": {
        "phases": [{"name": "profiling", "concurrency": 4}],
        "models": {"items": [{"name": "gold"}]},
    },
}


def test_accuracy_that_aiperf_writes_beside_a_result_is_read_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "aiperf"
    folder.mkdir()
    (folder / "profile_export_aiperf.json").write_text(json.dumps(AIPERF_RESULT))
    table = folder / "accuracy_results.csv"
    table.write_text(
        "task,correct,total,unparsed,accuracy\r\nOVERALL,43,60,17,0.7167\r\ngsm8k,43,60,17,0.7167\r\n"
    )
    [run] = import_files([folder], tmp_path / "out").runs
    [cell] = summary_of(run).cells
    assert cell.graded is not None
    assert (cell.graded.name, cell.graded.accuracy, cell.graded.questions) == ("gsm8k", 0.7167, 60)
    assert (cell.graded.unparsed, cell.graded.tasks) == (17, [])
    assert cell.graded.low < 0.7167 < cell.graded.high

    (folder / "profile_export.jsonl").write_text(json.dumps(AIPERF_REQUEST))
    [run] = import_files([folder], tmp_path / "of requests").runs
    assert summary_of(run).cells[0].graded == cell.graded

    table.write_text("task,right\r\nOVERALL,43\r\n")
    [run] = import_files([folder], tmp_path / "of another kind").runs
    assert summary_of(run).cells[0].graded is None


@pytest.mark.parametrize("start_ns", [2 * 10**19, 10**400], ids=["large", "huge"])
def test_moments_too_large_to_be_read_are_told(tmp_path: Path, start_ns: int) -> None:
    metadata = AIPERF_REQUEST["metadata"] | {"request_start_ns": start_ns}
    rows = [AIPERF_REQUEST, AIPERF_REQUEST | {"metadata": metadata}]
    (tmp_path / "profile_export.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = import_files([tmp_path], tmp_path / "out", given=["concurrency=2"]).findings
    (told,) = [each["evidence"] for each in found if each["kind"] == "impossible_number"]
    assert "metadata.request_start_ns is over 1e+19" in told


def test_accuracy_is_taken_as_it_is_stated(tmp_path: Path) -> None:
    stated = {}
    for name, document in (("ix", [EVALUATION]), ("lm", LM_EVAL)):
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
        for run in import_files([tmp_path / f"{name}.json"], tmp_path / "runs").runs:
            for cell in summary_of(run).cells:
                assert cell.graded is not None
                stated[cell.graded.name, cell.load.value] = cell.graded
    assert {key: (each.accuracy, each.strict, each.questions) for key, each in stated.items()} == {
        ("gsm8k", 256): (0.673, 0.875, 1319), ("gsm8k", 64): (0.941, 0.938, 1319), ("mmlu", 64): (0.7, None, 0),
    }  # fmt: skip
    graded = stated["gsm8k", 64]
    assert graded.low < 0.941 < graded.high
    assert (graded.cut, graded.share) == (None, None)
    assert graded.undecided == "a tool states them, without the answers"
