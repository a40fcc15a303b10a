"""Real results of others: what is in them, and what is wrong with them."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import loadstone
from loadstone.analyse.run_facts import RunFacts, run_facts
from loadstone.analyse.summary import summary_of
from loadstone.core import run_folder
from loadstone.interop.read import Imported, import_files
from summary_documents import summarise
from test_tables import shown

RESULTS = Path(__file__).resolve().parents[3] / "shared" / "data" / "results"
pytestmark = pytest.mark.skipif(
    not RESULTS.exists(), reason="the shared results are not beside this checkout"
)


def facts_of(run: Path) -> RunFacts:
    return run_facts(run_folder.read_info(run), summary_of(run))


def cells_of(found: Imported) -> list[dict[str, Any]]:
    return [cell for run in found.runs for cell in summarise(run)["cells"]]


@pytest.fixture(scope="module")
def dstack(tmp_path_factory: pytest.TempPathFactory) -> Imported:
    files = [RESULTS / "dstack" / f"{name}_results.csv" for name in ("online", "offline")]
    return import_files(
        files, tmp_path_factory.mktemp("runs"), given=["model=deepseek-ai/DeepSeek-R1", "gpus=8"]
    )


def test_dstacks_tables_are_sweeps_by_engine_gpu_and_length(dstack: Imported) -> None:
    assert len(cells_of(dstack)) == 54 + 63
    online = [run for run in dstack.runs if facts_of(run).mode == "serving"]
    sweeps = {
        (facts.engine, facts.gpu): [cell["load"]["value"] for cell in summarise(run)["cells"]]
        for run in online
        if (facts := facts_of(run)).output_tokens == 800 and facts.workload == "synthetic"
    }
    assert sweeps["TensorRT-LLM", "H200"] == sweeps["vLLM", "MI300X"] == [4, 8, 16, 32, 64, 128]
    assert {facts_of(run).gpu for run in dstack.runs} == {"H200", "MI300X"}
    assert {facts_of(run).engine for run in dstack.runs} == {"vLLM", "SGLang", "TensorRT-LLM"}
    offline = [run for run in dstack.runs if facts_of(run).mode == "offline"]
    assert sum(len(summarise(run)["cells"]) for run in offline) == 63


def test_dstacks_best_throughputs_count_input_and_output(dstack: Imported) -> None:
    """The numbers in its text: 4,176 online and 6,311 offline on H200, 4,574 on MI300X."""

    def best(gpu: str, mode: str) -> tuple[str | None, int]:
        total, engine = max(
            (cell["metrics"]["total_tokens_per_s"], facts.engine)
            for run in dstack.runs
            if (facts := facts_of(run)).gpu == gpu
            and facts.mode == mode
            and facts.workload == "synthetic"
            for cell in summarise(run)["cells"]
        )
        return engine, round(total)

    assert best("H200", "serving") == ("TensorRT-LLM", 4176)
    assert best("H200", "offline") == ("SGLang", 6311)
    assert best("MI300X", "serving") == ("vLLM", 4574)


def test_dstacks_shifted_and_unused_columns_are_found(dstack: Imported) -> None:
    kinds = [finding["kind"] for finding in dstack.findings]
    assert kinds.count("columns_shifted") == 9  # every row of TensorRT-LLM
    assert kinds.count("lengths_not_used") == 9  # every row of shared prefixes
    shared = [
        facts_of(run) for run in dstack.runs if facts_of(run).workload == "generated-shared-prefix"
    ]
    assert {round(facts.input_tokens or 0, -1) for facts in shared} == {3270, 3280}
    assert {facts.output_tokens for facts in shared} == {800}


def test_datacrunchs_lines_of_all_versions(tmp_path: Path) -> None:
    found = import_files([RESULTS / "datacrunch"], tmp_path, given=["gpu=h200"])
    cells = cells_of(found)
    assert len(cells) == 21
    assert all(cell["metrics"]["output_tokens_per_s"] > 0 for cell in cells)
    assert all(cell["metrics"]["tpot_s"] is None for cell in cells)  # none of these versions had it
    assert {cell["load"]["kind"] for cell in cells} == {"burst", "rate"}
    spread = next(
        facts_of(run) for run in found.runs if facts_of(run).range_ratio == pytest.approx(1 / 1024)
    )
    assert spread.input_tokens == 512.5


def test_vllms_own_sample_holds_failures_counted_as_completed(tmp_path: Path) -> None:
    found = import_files(list((RESULTS / "vllm_serve").glob("*.json")), tmp_path)
    (cell,) = cells_of(found)
    assert cell["requests"] == {
        "sent": 1000,
        "ok": 622,
        "error": 378,
        "timeout": 0,
        "cancelled": 0,
        "short": 0,
    }
    assert cell["metrics"]["ttft_s"]["mean"] == pytest.approx(15.0734, rel=1e-4)
    (stated,) = [one for one in cell["verdict"]["findings"] if one["kind"] == "stated_differs"]
    assert "TTFT 9.38 s as stated, 15.1 s by its requests" in stated["evidence"]


@pytest.mark.parametrize(
    ("path", "requests", "tool", "itl"),
    [
        ("peers/aiperf/artifacts/profile_export_aiperf.json", 24, "AIPerf 0.13.0", True),
        ("peers/aiperf/artifacts/profile_export.jsonl", 24, "AIPerf 0.13.0", True),
        ("peers/guidellm/guidellm.json", 24, "GuideLLM 0.8.1", False),
        (
            "peers/inference-perf/reports/per_request_lifecycle_metrics.json",
            24,
            "inference-perf",
            True,
        ),
        ("peers/sglang_bench/sglang_bench.jsonl", 24, "sglang.bench_serving", True),
        ("peers/vllm_bench/vllm_bench_serve.json", 24, "vllm bench serve", True),
    ],
)
def test_files_with_requests_give_records(
    tmp_path: Path, path: str, requests: int, tool: str, itl: bool
) -> None:
    found = import_files([RESULTS / path], tmp_path)
    (cell,) = cells_of(found)
    assert (cell["requests"]["ok"], cell["measured_by"]) == (requests, tool)
    metrics = cell["metrics"]
    assert (metrics["itl_s"] is not None) == itl
    assert metrics["ttft_s"]["n"] == requests
    assert 0 < metrics["ttft_s"]["p50"] < metrics["e2e_s"]["p50"]


def test_the_numbers_of_requests_are_the_tools_own(tmp_path: Path) -> None:
    """One server, measured by five tools: what each states and what its requests give agree, but
    for token counts."""
    found = import_files([RESULTS / "peers"], tmp_path)
    assert len(found.runs) == 5
    for cell in cells_of(found):
        differing = [one for one in cell["verdict"]["findings"] if one["kind"] == "stated_differs"]
        assert all("TTFT" not in one["evidence"] for one in differing), cell["measured_by"]


def test_the_report_of_llm_d_and_stages_are_sums(tmp_path: Path) -> None:
    files = [
        RESULTS / "peers/inference-perf/reports/inference-perf.partial.stage_0.yaml",
        RESULTS / "inference_perf/stage_0_lifecycle_metrics.json",
        RESULTS / "inference_perf/stage_5_lifecycle_metrics.json",
        RESULTS / "guidellm/guidellm_report_v2.json",
    ]
    found = import_files(files, tmp_path)
    loads = {(cell["load"]["kind"], round(cell["load"]["value"], 2)) for cell in cells_of(found)}
    assert loads == {("rate", 3.92), ("rate", 1.0), ("rate", 196.93), ("rate", 2.0), ("rate", 4.0)}
    # Stage 5 sent 79 of the 197 requests/s that were asked of it.
    assert {one["kind"] for one in found.findings if one["severity"] != "info"} == {
        "load_not_told",
        "rate_differs",
    }
    assert not any((run / "records.parquet").exists() for run in found.runs)


def test_what_a_file_states_otherwise_stands_beside_the_numbers_of_its_requests(
    tmp_path: Path,
) -> None:
    """A tool's throughput is over its whole duration, ours over the steady window: readers of both
    ask why."""
    (folder,) = import_files([RESULTS / "peers/vllm_bench/vllm_bench_serve.json"], tmp_path).runs
    (cell,) = summary_of(folder).cells
    stated = {(one.metric, one.statistic): one for one in cell.stated}
    rate = stated["output_tokens_per_s", None]
    assert rate.stated == pytest.approx(cell.metrics.output_tokens_per_s or 0, rel=1e-3)
    assert rate.ours == cell.lasting().output_tokens_per_s
    assert rate.definition == "total_output_tokens/duration, tokens/s"
    assert all(abs(one.stated - one.ours) > 0.005 * one.ours for one in cell.stated)
    number = f"{rate.stated:.4g}"
    told = " ".join(shown(summarise(folder), 400).split())
    assert f"the file itself reports out tok/s {number} (total_output_tokens/duration" in told
    report = loadstone.write_report(folder, tmp_path / "report.md")[0].read_text()
    assert re.search(rf"\| output tok/s \| {number} \| {rate.ours:.4g} \| total.*duration", report)
    page = loadstone.write_report(folder, tmp_path / "report.html")[0].read_text()
    assert "What files report otherwise" in page
    copied = Path(shutil.copytree(folder, tmp_path / "copied"))
    evidence = [one["evidence"] for one in loadstone.compare(folder, copied).document()["findings"]]
    assert any(
        f"output_tokens_per_s {number}" in one and "total_output_tokens/duration" in one
        for one in evidence
    )


def test_numbers_that_agree_with_the_files_own_are_not_repeated(tmp_path: Path) -> None:
    (folder,) = import_files([RESULTS / "peers/vllm_bench/vllm_bench_serve.json"], tmp_path).runs
    (cell,) = summary_of(folder).cells
    assert not any(one.metric in ("ttft_s", "e2e_s") for one in cell.stated)
    assert "stated" not in loadstone.simulate(
        "llama-3.1-8b@1xh100", concurrency="2", input="64", output="8", requests=4, out=tmp_path, draws=0
    ).document()["cells"][0]  # fmt: skip
